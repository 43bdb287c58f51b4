"""The rows of .ci/run: what each runs, in the order in which they start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from change import Change
from row import Row

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.13t")
#: The Python on which an everyday run has every test. The others have the default ones.
WHOLE = "3.13"
#: The Pythons between two others that have every cheap test. Where everything is looked at, an
#: everyday run tests on them what meets CPython's own code: the core, and kernels in C.
BETWEEN = ("3.12", "3.14")
CORE = tuple(
    f"tests/{name}" for name in ("keys", "schema", "facts", "dispatch", "registry", "c_kernels")
)
#: What another Python cannot change: tests of names, pages and structure, and recorded answers.
SAME = "not lint and not specification"

#: What decides what is in a package: a change elsewhere changes the contents of files.
PACKAGING = ("native/", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", ".ci/packages")
PACKAGING += (".ci/client.py", ".ci/alone.py", "docs/quick-start.md", "mdispatch/__init__.py")

#: The shards of --all. Each is meant to take less than an hour; none was timed yet.
SHARDS = {
    "lint": 1,
    "readme": 1,
    "counts": 1,
    "native": 2,
    "host": 2,
    "suite/3.11": 3,
    "suite/3.12": 3,
    "suite/3.13": 4,
    "suite/3.14": 5,
    "suite/3.15": 5,
    "suite/3.13t": 6,
    "mutants": 6,
    "extras": 7,
    "torch": 7,
    "examples": 8,
    "servers": 8,
    "lowest": 8,
    "without": 8,
    "pins": 8,
    "arm": 9,
    "coverage": 10,
    "locks": 10,
    "long": 11,
}


def shard(row: Row) -> int:
    return next(number for name, number in SHARDS.items() if f"{row.name}/".startswith(f"{name}/"))


def marked(sources: Path, mark: str, folders: tuple[str, ...] = ("tests",)) -> str:
    """The files that have tests with this mark, which may stand in the conftest.py of their folder.
    Others need not be imported to leave them out.
    """

    def has(file: Path) -> bool:
        return file.exists() and re.search(rf"\bmark\.{mark}\b", file.read_text()) is not None

    found = [
        str(file.relative_to(sources))
        for folder in folders
        for file in sorted((sources / folder).rglob("test_*.py"))
        if has(file) or has(file.with_name("conftest.py"))
    ]
    return " ".join(found)


def read_block(readme: Path, name: str) -> str:
    """The fenced block of README.md under the line <!-- ci: NAME -->."""
    found = re.findall(rf"^<!-- ci: {name} -->\n```sh\n(.*?)^```", readme.read_text(), re.M | re.S)
    if len(found) != 1:
        raise SystemExit(f"README.md must have one ```sh block under <!-- ci: {name} -->")
    return str(found[0])


def lint(sources: Path, change: Change) -> Iterator[Row]:
    row = partial(Row, folder="lint", python="3.11")
    yield row("lint/install", ".ci/environment 3.11 --without-package dev docs packages")
    row = partial(row, needs=("lint/install",))
    yield row("lint/ruff", ".venv/bin/ruff check .")
    yield row("lint/format", ".venv/bin/ruff format --check .")
    yield row("lint/imports", ".venv/bin/lint-imports")
    # The stub of the package hides its __init__.py from the first of the two.
    types = ".venv/bin/mypy --strict mdispatch"
    yield row("lint/mypy", f"{types}; {types}/__init__.py")
    scripts = "run arm environment pins pythons in-python sanitized lib.sh"
    yield row("lint/shellcheck", f"cd .ci && shellcheck -x {scripts}", needs=())
    yield row("lint/commits", "python3 .ci/rows/commits.py $CHECKOUT", needs=(), counts="lines")
    yield row("lint/build", ".venv/bin/python -m pip install -qq --no-deps -e .")
    row = partial(row, needs=("lint/build",))
    # Tests of names, pages and structure: no Python changes what they show, so they run here only.
    yield row("lint/tests", f"-m lint --all {marked(sources, 'lint')}", counts="pytest")
    site = ".venv/bin/sphinx-build -qnW --keep-going -j2 -c docs/site docs build/site"
    yield row("lint/docs", site)
    yield row("lint/autodoc", "tests/dispatch/test_help.py", counts="pytest")
    yield row(
        "lint/packages",
        ".venv/bin/python .ci/packages.py",
        everyday=change.touches(*PACKAGING),
    )
    # What axe-core calls serious: on the site that lint/docs built, the report, the stress page.
    yield row(
        "lint/axe",
        f"""
        export NODE_EXTRA_CA_CERTS=${{SSL_CERT_FILE:-}} # npm's name for it
        npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4
        [ -e build/site ] || {site}
        .venv/bin/python -m pytest -q --all --record="$RECORD" tests/project/test_accessible.py""",
        counts="readme",
        environment={
            "MDISPATCH_BROWSER": "chromium",
            "MDISPATCH_AXE": "build/axe/node_modules/axe-core/axe.min.js",
        },
        everyday=False,
    )


def readme(sources: Path) -> Iterator[Row]:
    """The commands of README.md, as they stand there, in a new clone."""
    page = sources / "README.md"
    row = partial(Row, folder="readme", python="3.11")
    yield row("readme/setup", read_block(page, "setup"))
    row = partial(row, needs=("readme/setup",))
    yield row(
        "readme/test",
        read_block(page, "test"),
        cores=2,
        counts="readme",
        # lint/tests and suite/3.13 have the others.
        environment={"PYTEST_ADDOPTS": f"-m '{SAME}'"},
    )
    row = partial(row, counts="lines")
    yield row("readme/examples", ".venv/bin/python examples/run.py")
    # As on other systems. The pages run so with readme/test.
    alone = {"MDISPATCH_BINDING": "none"}
    yield row("readme/none", ".venv/bin/python examples/run.py", environment=alone)


def without(change: Change) -> Iterator[Row]:
    """The tests of what is left where features were left out: all together, and each alone."""
    row = partial(
        Row, folder="readme", python="3.11", needs=("readme/setup",), counts="lines", cores=2
    )
    command = f".venv/bin/python .ci/without {{}} -- -n 3 -m '{SAME}'"
    yield row("without/all", command.format("all"), everyday=change.touches("mdispatch/", "tests/"))
    for feature in ("across", "choices", "cluster", "editions", "observing", "providers", "torch"):
        yield row(f"without/{feature}", command.format(feature), everyday=False)


def native(change: Change) -> Iterator[Row]:
    """The C core without Python. A change elsewhere breaks none of it."""
    everyday = change.touches("native/")
    row = partial(Row, counts="lines", cores=2, everyday=everyday)
    make = "make -C native -j2 test"
    yield row("native/gcc", f"{make} CC='ccache gcc'", folder="native-gcc")
    yield row("native/thread", f"{make} SANITIZE=thread CC='ccache gcc'", folder="native-thread")
    yield row(
        "native/sanitize",
        f"{make} CC='ccache clang' SANITIZE=address,undefined",
        folder="native-sanitize",
    )
    # These have one process each that works. The model reads its own files alone.
    for name, more, reads in (
        ("refusals", "", "native/"),
        ("history", " SEED=7", "native/"),
        ("model", "", "native/model/"),
    ):
        yield row(
            f"native/{name}",
            f"make -C native {name}{more}",
            folder=f"native-{name}",
            cores=1,
            everyday=change.touches(reads),
        )
    row = partial(row, everyday=False, limit=3600)  # every death at every instruction
    yield row("native/clang", f"{make} CC=clang ALL=1", folder="native-clang")
    yield row(
        "native/sanitize-gcc",
        f"{make} CC=gcc SANITIZE=address,undefined",
        folder="native-sanitize-gcc",
    )
    yield row("native/coverage", "make -C native -j2 coverage", folder="native-coverage")


def counts() -> Iterator[Row]:
    """The instructions of 30 operations, compared with those of the merge base. On main itself the
    base is the commit that this row found good last, if that was on this machine.
    """
    row = partial(Row, folder="counts", python="3.11")
    yield row("counts/install", ".ci/environment 3.11 --without-package test build")
    yield row(
        "counts/instructions",
        """
        export GIT_DIR=$(git -C "$CHECKOUT" rev-parse --absolute-git-dir)
        good=$CACHE/instructions/good base=()
        here=$(git rev-parse HEAD)
        if [[ $here == "$(git rev-parse -q --verify origin/main || echo "$here")" && -e $good ]] &&
            git merge-base --is-ancestor "$(<"$good")" HEAD; then
            base=(--base "$(<"$good")")
        fi
        .venv/bin/python -m benchmarks.instructions "${base[@]}"
        echo "$here" >"$good"
        """,
        needs=("counts/install",),
        cores=2,
        counts="lines",
    )


def suite(version: str, sources: Path, change: Change) -> Iterator[Row]:
    """The tests on one Python, against the package as a user would install it."""
    name = f"suite/{version}"
    row = partial(Row, folder=f"suite-{version}", python=version)
    whole = version == WHOLE
    more = "-r gunicorn -r mypy -r uvicorn " if whole else ""
    everyday = change.packages is None or bool(change.packages)
    yield row(
        f"{name}/install",
        f".ci/environment {version} {more}test",
        everyday=whole or (everyday and version != "3.11"),
    )
    row = partial(row, needs=(f"{name}/install",), counts="pytest", cores=2)
    # Everything, in three lanes: tests that wait run beside the others; tests of memory and clocks
    # run alone, at the end.
    folders = change.folders(sources)
    words = "not lint and not waits and not alone"
    yield row(f"{name}/all", f"-n 2 --all -m '{words}' {' '.join(folders)}", everyday=whole)
    if waiting := marked(sources, "waits", folders):
        yield row(
            f"{name}/waits",
            f"-n 6 --all -m 'waits and not lint and not alone' {waiting}",
            cores=0,
            everyday=whole,
        )
    if lonely := marked(sources, "alone", folders):
        yield row(
            f"{name}/alone",
            f"--all -m 'alone and not lint' {lonely}",
            alone=True,
            everyday=whole,
        )
    # Every test that is cheap, and one instance of each that is not. The oldest Python has them by
    # README.md's command.
    few = CORE if change.packages is None else folders
    yield row(
        f"{name}/default",
        f"-n 3 -m '{SAME}' {' '.join(few if version in BETWEEN else ('tests',))}",
        environment={"MDISPATCH_BINDING": "ext"} if version == "3.12" else {},
        everyday=everyday and not whole and version != "3.11",
    )
    if version in BETWEEN:
        # What CPython changes the most from one version to the next.
        yield row(
            f"{name}/interpreters", f"-n 3 --all -m '{SAME}' -k own-gil tests", everyday=everyday
        )
    # Without libmdispatch, as on other systems: all that needs no sharing.
    yield row(
        f"{name}/none",
        f"-n 3 -m '{SAME} and not shared' tests",
        environment={"MDISPATCH_BINDING": "none"},
        everyday=whole and everyday,
    )
    row = partial(row, everyday=False)
    # With the extension everywhere; and everything through cffi, also what usually is the
    # extension's.
    bindings = () if version.endswith("t") else ("ext", "cffi") if version == "3.11" else ("ext",)
    for binding in bindings:
        yield row(
            f"{name}/{binding}",
            "-n 3 --all -m 'not lint and not either_binding' tests",
            environment={"MDISPATCH_BINDING": binding},
        )
    if version == "3.12":
        # What calls promise, with none of them made in C.
        names = "operators calls generations guards modes observers ops_python values"
        files = " ".join(f"tests/dispatch/test_{each}.py" for each in names.split())
        yield row(
            f"{name}/calls",
            f"-n 2 --all {files}",
            environment={"MDISPATCH_CALLS": "python"},
        )
    if whole:
        # Every recording of the original, where other rows replay a sixth.
        yield row(f"{name}/recorded", "-n 2 --long tests/registry/test_oracle_sequences.py")
    row = partial(row, counts="lines")
    yield row(f"{name}/examples", ".venv/bin/python examples/run.py", cores=1)
    yield row(f"{name}/stress", ".venv/bin/python -m pytest -q -n 2 stress --seconds 5")


def extras(sources: Path, change: Change) -> Iterator[Row]:
    """What is there only with PyTorch, jax, matplotlib or the tools that people have."""
    upper = ("authoring", "torch_compat", "workers", "cli")
    everyday = change.has("dispatch", "torch", "pytorch", *upper)
    row = partial(Row, folder="extras", python="3.11", everyday=everyday)
    yield row(
        "extras/install",
        ".ci/environment 3.11 -r torch==2.13.0 -r expecttest -r jax -r matplotlib -r attrs"
        " -r pydantic test",
    )
    files = " ".join(
        str(file.relative_to(sources))
        for file in sorted((sources / "tests").rglob("test_*.py"))
        if re.search(
            "(PyTorch|jax|matplotlib) is not installed|torch_store|a_store", file.read_text()
        )
    )
    row = partial(row, needs=("extras/install",), counts="pytest", cores=2)
    yield row("extras/default", f"-n 3 -m 'not lint' {files}")
    row = partial(row, everyday=False)
    yield row("extras/all", f"-n 3 --all -m 'not lint' {files}")
    yield row(
        "extras/stress",
        ".venv/bin/python -m pytest -q stress/test_answers.py --seconds 20",
        counts="lines",
    )
    yield row(
        "extras/examples",
        ".venv/bin/python examples/run.py torch_job hosts/torchrun",
        counts="lines",
    )
    tools = "cython ipykernel nbclient cloudpickle joblib 'ray>=2.40'"
    yield row("extras/tools", f".venv/bin/python -m pip install -qq {tools}", counts="")
    row = partial(row, needs=("extras/tools",))
    cells = " ".join(f"tests/registry/test_{each}.py" for each in ("notebooks", "travel"))
    yield row("extras/cells", f"-n 2 --all {cells} tests/registry/test_without_frames.py")
    pools = " ".join(f"tests/workers/test_{each}.py" for each in ("pool_table", "initializer"))
    yield row("extras/pools", f"-n 2 --long -k 'joblib or ray' {pools}")


def torch(version: str, runtime: str) -> Iterator[Row]:
    """An older PyTorch, or the newest one. The index has them as builds for CUDA, so what they need
    for that is left out but the runtime, and the functions that they look for are put in its place.
    docs/coming-from-pytorch.md says what does not hold there.
    """
    name = f"torch/{version}"
    tests = ["tests/pytorch"]
    left_out: list[str] = []
    if version.startswith("2.6."):
        tests = [f"tests/pytorch/test_torch_{each}.py" for each in ("keys", "statements", "export")]
        # What 2.6's compiler does not follow; and it tells other locations of registrations than
        # watch() looks for.
        held = "statements.py::test_a_statement_holds_or_fails_for_the_reason_in_the_table"
        left_out = [
            "export.py::test_compile_in_one_graph",
            "export.py::test_torch_export",
            "export.py::test_the_compiler_follows_calls_by_name",
            "export.py::test_what_is_not_exported_breaks_the_graph",
            f"{held}[a_tag_of_the_layout_reaches_the_compiler]",
            f"{held}[without_a_fake_kernel_the_error_names_the_operator]",
            f"{held}[the_compiler_runs_the_fake_kernel_then_the_kernel]",
        ]
    row = partial(Row, folder=name, python="3.11", everyday=False)
    needs = "-r filelock -r typing_extensions -r sympy -r networkx -r fsspec -r setuptools"
    needs += " -r expecttest"
    yield row(
        f"{name}/install",
        f"""
        .ci/environment 3.11 {needs} test
        .venv/bin/python -m pip install -qq --no-deps torch=={version} {runtime}
        .venv/bin/python .ci/without_cuda.py .venv/bin/python""",
    )
    without = " ".join(f"--deselect 'tests/pytorch/test_torch_{each}'" for each in left_out)
    yield row(
        f"{name}/suite",
        f"-n 2 --all {without} {' '.join(tests)}",
        needs=(f"{name}/install",),
        counts="pytest",
        cores=2,
    )


def examples() -> Iterator[Row]:
    """Every example, also those that need packages which nothing else here does; and the servers
    that Debian builds for its own Python, whose processes read the environment as another user.
    """
    row = partial(Row, folder="examples", python="3.13", everyday=False)
    yield row("examples/install", ".ci/environment 3.13 examples")
    row = partial(row, needs=("examples/install",), counts="lines")
    yield row("examples/all", ".venv/bin/python examples/run.py --all")
    yield row(
        "examples/none",
        ".venv/bin/python examples/run.py --all",
        environment={"MDISPATCH_BINDING": "none"},
    )
    yield row("examples/team", ".venv/bin/python examples/run.py --all --team pools")
    row = partial(Row, folder="servers", everyday=False)
    yield row(
        "servers/install",
        "/usr/bin/python3 -m venv .venv; .venv/bin/pip install -qq .; rm -rf mdispatch build",
    )
    servers = "servers/apache servers/uwsgi servers/daemon"
    yield row(
        "servers/all",
        f".venv/bin/python examples/run.py --all {servers}",
        needs=("servers/install",),
        counts="lines",
    )


def rare() -> Iterator[Row]:
    """What finds little for its time."""
    # Programs that embed Python, over a library and an extension that were built with
    # AddressSanitizer; what it says of ours is red. Without it they run with the suite.
    yield Row(
        "host/sanitized",
        "bash .ci/sanitized address 3.13 --all tests/c_kernels/test_embedding.py",
        folder="host",
        counts="lines",
        everyday=False,
    )
    # Fifteen small mistakes, put in one at a time. No more than two may live, and the tests that
    # notice the others pass without them. None is begun after 700 seconds.
    row = partial(Row, folder="mutants", python="3.11", everyday=False)
    yield row(
        "mutants/install",
        ".ci/environment 3.11 --without-package dev\n"
        ".venv/bin/python -m pip install -qq --no-deps -e .",
    )
    yield row(
        "mutants/sample",
        ".venv/bin/python stress/mutants.py --count 15 --seed 7 --survivors 2 --seconds 700",
        needs=("mutants/install",),
        cores=2,
        counts="lines",
        limit=1500,
    )
    # The oldest versions of other packages that pyproject.toml claims to work with.
    row = partial(Row, folder="lowest", python="3.11", everyday=False)
    yield row("lowest/install", ".ci/environment 3.11 --lowest test")
    yield row(
        "lowest/default",
        f"-n 2 -m '{SAME}' tests",
        needs=("lowest/install",),
        counts="pytest",
        cores=2,
    )
    # Writes the constraints of this checkout anew, and shows what is newer than they were.
    yield Row(
        "pins/renew",
        "$CHECKOUT/.ci/pins; git -C $CHECKOUT diff -- .ci",
        folder="pins",
        counts="",
        everyday=False,
    )
    # The C tests on ARM, in an emulated machine of a processor with instructions for atomic
    # operations and of one without.
    for processor in ("neoverse-n1", "cortex-a57"):
        yield Row(
            f"arm/{processor}",
            f"bash .ci/arm {processor}",
            folder="arm",
            cores=2,
            counts="lines",
            limit=2400,
            everyday=False,
        )
    # What of each package the tests run: figures, on no condition.
    row = partial(Row, folder="coverage", python="3.11", everyday=False)
    yield row("coverage/install", ".ci/environment 3.11 -r coverage test")
    yield row(
        "coverage/packages",
        ".venv/bin/python .ci/coverage -q -n 3 --all -m 'not lint' --record=$RECORD tests",
        needs=("coverage/install",),
        cores=2,
        counts="readme",
        limit=3600,
    )
    # In which order threads take locks: an edge that the table in docs/locks.md lacks is red.
    row = partial(Row, folder="locks", python="3.11", everyday=False)
    yield row("locks/install", ".ci/environment 3.11 test")
    row = partial(row, needs=("locks/install",), cores=2)
    command = ".venv/bin/python .ci/locks"
    yield row(
        "locks/suite",
        f"{command} -q -n 3 -m '{SAME}' --record=$RECORD tests",
        counts="readme",
        limit=1800,
    )
    yield row("locks/stress", f"{command} -q -n 2 stress --seconds 20", counts="lines", limit=1800)
    # Every test in its long form, with numbers that are drawn anew.
    row = partial(Row, folder="long", python="3.13", everyday=False)
    yield row("long/install", ".ci/environment 3.13 -r gunicorn -r mypy -r uvicorn test")
    yield row(
        "long/all",
        "-n 3 --long -m 'not lint' tests",
        needs=("long/install",),
        counts="pytest",
        cores=2,
        limit=3600,
    )


def rows(sources: Path, change: Change) -> list[Row]:
    """All rows. Those of an everyday run are marked, and depend on the change."""
    found = [*lint(sources, change)]
    first = [*readme(sources), *counts()]
    parts = [*suite(WHOLE, sources, change)]
    # Where the packages that have changed are known, their tests are the likeliest to fail.
    found += first + parts if change.packages is None else parts + first
    found += native(change)
    found += without(change)
    for version in PYTHONS:
        if version != WHOLE:
            found += suite(version, sources, change)
    found += extras(sources, change)
    found += torch("2.6.0", "nvidia-cuda-runtime-cu12==12.4.127")
    found += torch("2.15.0", "nvidia-cuda-runtime==13.2.75")
    found += [*examples(), *rare()]
    return found
