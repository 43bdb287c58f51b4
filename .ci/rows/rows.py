"""The rows of .ci/run: what each runs, in the order in which they start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from change import Change
from row import Row

PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.13t")
#: The Python on which an everyday run has every test. The others have the default ones.
WHOLE = "3.13"
#: What another Python cannot change: tests of names, pages and structure, and recorded answers.
SAME = "not lint and not specification"


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


def lint(sources: Path) -> Iterator[Row]:
    def row(name: str, command: str, **more: object) -> Row:
        return Row(f"lint/{name}", command, "lint", "3.11", shard=1, **more)  # type: ignore[arg-type]

    yield row("install", ".ci/environment 3.11 --without-package dev docs packages plot")
    tools = ("lint/install",)
    yield row("ruff", ".venv/bin/ruff check .", needs=tools)
    yield row("format", ".venv/bin/ruff format --check .", needs=tools)
    yield row("imports", ".venv/bin/lint-imports", needs=tools)
    yield row("mypy", ".venv/bin/mypy --strict mdispatch", needs=tools)
    scripts = "run arm environment pythons in-python sanitized lib.sh"
    yield row("shellcheck", f"cd .ci && shellcheck -x {scripts}")
    yield row("build", ".venv/bin/python -m pip install -qq --no-deps -e .", needs=tools)
    built = ("lint/build",)
    # Tests of names, pages and structure: no Python changes what they show, so they run here only.
    yield row("tests", f"-m lint --all {marked(sources, 'lint')}", needs=built, counts="pytest")
    yield row(
        "docs",
        ".venv/bin/sphinx-build -qnW --keep-going -j2 -c docs/site docs build/site",
        needs=built,
    )
    yield row("autodoc", "tests/dispatch/test_help.py", needs=built, counts="pytest")
    yield row("packages", ".venv/bin/python .ci/packages.py", needs=built)
    # What axe-core calls serious: on the site that lint/docs built, the report, the bench page.
    yield row(
        "axe",
        """
        npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4
        [ -e build/site ] || .venv/bin/sphinx-build -qn -c docs/site docs build/site
        .venv/bin/python -m pytest -q --all --record "$RECORD" tests/house/test_accessible.py""",
        needs=built,
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
    yield Row("readme/setup", read_block(page, "setup"), "readme", "3.11", shard=1)
    setup = ("readme/setup",)
    yield Row(
        "readme/test",
        read_block(page, "test"),
        "readme",
        "3.11",
        needs=setup,
        cores=2,
        counts="readme",
        # lint/tests has the others. The browser has to be there once.
        environment={"PYTEST_ADDOPTS": "-m 'not lint'", "MDISPATCH_BROWSER": "chromium"},
        shard=1,
    )
    yield Row(
        "readme/examples",
        ".venv/bin/python examples/run.py",
        "readme",
        needs=setup,
        counts="lines",
        shard=1,
    )


def native(change: Change) -> Iterator[Row]:
    def row(name: str, arguments: str, everyday: bool = False, **more: object) -> Row:
        return Row(
            f"native/{name}",
            f"make -C native {arguments}",
            f"native-{name}",
            everyday=everyday,
            counts="lines",
            shard=2,
            **more,  # type: ignore[arg-type]
        )

    yield row("gcc", "-j2 test CC='ccache gcc'", True, cores=2)
    yield row("thread", "-j2 test SANITIZE=thread CC='ccache gcc'", True, cores=2)
    yield row(
        "sanitize",
        "-j2 test CC='ccache clang' SANITIZE=address,undefined",
        change.has("native"),
        cores=2,
    )
    yield row("refusals", "refusals", change.has("native"))
    yield row("history", "history SEED=7", change.has("native"))
    yield row("model", "model", change.has("native"))
    yield row("clang", "-j2 test CC=clang ALL=1", cores=2)
    yield row("sanitize-gcc", "-j2 test CC=gcc ALL=1 SANITIZE=address,undefined", cores=2)
    yield row("coverage", "-j2 coverage", cores=2)


def install(version: str, **more: object) -> Row:
    return Row(
        f"suite/{version}/install",
        f".ci/environment {version} test",
        f"suite-{version}",
        version,
        **more,  # type: ignore[arg-type]
    )


def suite(version: str, sources: Path, change: Change) -> Iterator[Row]:
    """The tests on one Python, against the package as a user would install it."""
    shard = {"3.11": 3, "3.12": 3, "3.13": 4, "3.14": 5, "3.15": 5, "3.13t": 6}[version]

    def row(name: str, arguments: str, everyday: bool = False, **more: object) -> Row:
        return Row(
            f"suite/{version}/{name}",
            arguments,
            f"suite-{version}",
            version,
            needs=(f"suite/{version}/install",),
            counts=str(more.pop("counts", "pytest")),
            cores=int(more.pop("cores", 2)),  # type: ignore[call-overload]
            everyday=everyday,
            shard=shard,
            **more,  # type: ignore[arg-type]
        )

    yield install(version, shard=shard, everyday=version != "3.11")
    # Everything, in three lanes: tests that wait run beside the others; tests of memory and clocks
    # run alone, at the end.
    folders = change.folders(sources)
    whole = version == WHOLE
    others = "-m 'not lint and not waits and not alone'"
    yield row("all", f"-n 2 --all {others} {' '.join(folders)}", whole)
    for lane, workers, more in (("waits", 6, {"cores": 0}), ("alone", 0, {"alone": True})):
        files = marked(sources, lane, folders)
        if files:
            yield row(lane, f"-n {workers} --all -m '{lane} and not lint' {files}", whole, **more)
    # Every test that is cheap, and one instance of each that is not. The oldest Python has them by
    # README.md's command.
    binding = {"MDISPATCH_BINDING": "ext"} if version == "3.12" else {}
    yield row(
        "default", f"-n 3 -m '{SAME}' tests", version not in (WHOLE, "3.11"), environment=binding
    )
    # Without libmdispatch, as on other systems: all that needs no sharing.
    yield row(
        "none",
        f"-n 3 -m '{SAME} and not shared' tests",
        whole,
        environment={"MDISPATCH_BINDING": "none"},
    )
    if not version.endswith("t"):
        yield row(
            "ext",
            "-n 2 --all -m 'not lint and not either_binding' tests",
            environment={"MDISPATCH_BINDING": "ext"},
        )
    if version == "3.11":
        # Everything through cffi, also what usually is the extension's.
        yield row(
            "cffi",
            "-n 2 --all -m 'not lint and not either_binding' tests",
            environment={"MDISPATCH_BINDING": "cffi"},
        )
    if version == "3.12":
        # What calls promise, with none of them made in C.
        names = ("operators", "calls", "generations", "guards", "modes", "observers")
        names += ("ops_python", "values")
        yield row(
            "calls",
            "-n 2 --all " + " ".join(f"tests/dispatch/test_{name}.py" for name in names),
            environment={"MDISPATCH_CALLS": "python"},
        )
    if version == WHOLE:
        # Every recording of the original, where other rows replay a sixth.
        yield row("recorded", "-n 2 --long tests/registry/test_oracle_sequences.py")
    yield row("examples", ".venv/bin/python examples/run.py", counts="lines", cores=1)
    yield row("stress", ".venv/bin/python -m pytest -q -n 2 stress --seconds 5", counts="lines")


def extras(sources: Path, change: Change) -> Iterator[Row]:
    """What is there only with PyTorch, matplotlib or the tools that people have."""
    everyday = change.has("authoring", "torch_compat", "dispatch", "workers", "cli")

    def row(name: str, command: str, **more: object) -> Row:
        return Row(f"extras/{name}", command, "extras", "3.11", shard=7, **more)  # type: ignore[arg-type]

    yield row(
        "install",
        """
        .ci/environment 3.11 -r torch==2.13.0 -r expecttest test plot""",
        everyday=everyday,
    )
    needs = ("extras/install",)
    found = [
        str(file.relative_to(sources))
        for file in sorted((sources / "tests").rglob("test_*.py"))
        if re.search(r"\btorch\b|matplotlib", file.read_text())
    ]
    files = " ".join(found)
    yield row(
        "default",
        f"-n 3 -m 'not lint' {files}",
        needs=needs,
        cores=2,
        counts="pytest",
        everyday=everyday,
    )
    yield row(
        "all",
        f"-n 2 --all -m 'not lint' {files}",
        needs=needs,
        cores=2,
        counts="pytest",
        everyday=False,
    )
    yield row(
        "examples",
        ".venv/bin/python examples/run.py torch_job hosts/torchrun",
        needs=needs,
        counts="lines",
        everyday=False,
    )
    tools = "cython ipykernel nbclient cloudpickle joblib 'ray>=2.40'"
    yield row("tools", f".venv/bin/python -m pip install -qq {tools}", needs=needs, everyday=False)
    yield row(
        "cells",
        "-n 2 --all tests/registry/test_notebooks.py tests/registry/test_without_frames.py "
        "tests/registry/test_travel.py",
        needs=("extras/tools",),
        cores=2,
        counts="pytest",
        everyday=False,
    )
    yield row(
        "pools",
        "-n 2 --long -k 'joblib or ray' tests/workers/test_pool_table.py "
        "tests/workers/test_initializer.py",
        needs=("extras/tools",),
        cores=2,
        counts="pytest",
        everyday=False,
    )


def torch(version: str, runtime: str) -> Iterator[Row]:
    """An older PyTorch, or the newest one. The index has them as builds for CUDA, so what they need
    for that is left out but the runtime, and the functions that they look for are put in its place.
    docs/coming-from-pytorch.md says what does not hold there.
    """
    name = f"torch/{version}"
    old = version.startswith("2.6.")
    tests = ["tests/dispatch/test_torch_keys.py", "tests/authoring/test_torch_statements.py"]
    tests += ["tests/authoring/test_torch_export.py"]
    held = "statements.py::test_a_statement_holds_or_fails_for_the_reason_in_the_table"
    # What 2.6's compiler does not follow; and it tells other places of registrations than watch()
    # looks for.
    left_out = [
        "export.py::test_compile_in_one_graph",
        "export.py::test_torch_export",
        "export.py::test_the_compiler_follows_calls_by_name",
        "export.py::test_what_is_not_exported_breaks_the_graph",
        f"{held}[a_tag_of_the_layout_reaches_the_compiler]",
        f"{held}[without_a_fake_kernel_the_error_names_the_operator]",
        f"{held}[the_compiler_runs_the_fake_kernel_then_the_kernel]",
    ]
    if not old:
        tests += ["tests/authoring/test_torch_watch.py"]
        left_out = []
    yield Row(
        f"{name}/install",
        f"""
        .ci/environment 3.11 -r filelock -r typing_extensions -r sympy -r networkx -r fsspec \\
            -r setuptools test
        .venv/bin/python -m pip install -qq --no-deps torch=={version} {runtime}
        .venv/bin/python .ci/without_cuda.py .venv/bin/python""",
        name,
        "3.11",
        everyday=False,
        shard=7,
    )
    without = " ".join(f"--deselect 'tests/authoring/test_torch_{each}'" for each in left_out)
    yield Row(
        f"{name}/suite",
        f"-n 2 --all {without} {' '.join(tests)}",
        name,
        "3.11",
        needs=(f"{name}/install",),
        cores=2,
        counts="pytest",
        everyday=False,
        shard=7,
    )


def examples() -> Iterator[Row]:
    """Every example, also those that need packages which nothing else here does; and the servers
    that Debian builds for its own Python, whose processes read the environment as another user.
    """
    yield Row(
        "examples/install",
        ".ci/environment 3.13 examples",
        "examples",
        "3.13",
        everyday=False,
        shard=8,
    )
    needs = ("examples/install",)
    for name, arguments in (("all", "--all"), ("team", "--all --team pools")):
        yield Row(
            f"examples/{name}",
            f".venv/bin/python examples/run.py {arguments}",
            "examples",
            "3.13",
            needs=needs,
            counts="lines",
            everyday=False,
            shard=8,
        )
    yield Row(
        "servers/install",
        "/usr/bin/python3 -m venv .venv; .venv/bin/pip install -qq .; rm -rf mdispatch build",
        "servers",
        everyday=False,
        shard=8,
    )
    yield Row(
        "servers/all",
        ".venv/bin/python examples/run.py --all servers/apache servers/uwsgi servers/daemon",
        "servers",
        needs=("servers/install",),
        counts="lines",
        everyday=False,
        shard=8,
    )


def rare() -> Iterator[Row]:
    """What finds little, or takes long."""
    # Programs that embed Python, over a library and an extension that were built with
    # AddressSanitizer; what it says of ours is red. Without it they run with the suite.
    yield Row(
        "host/sanitized",
        "bash .ci/sanitized address 3.13 --all tests/c_kernels/test_embedding.py",
        "host",
        counts="lines",
        everyday=False,
        shard=2,
    )
    # Fifteen small mistakes, put in one at a time. No more than two may live, and the tests that
    # notice the others pass without them. None is begun after 700 seconds.
    yield Row(
        "mutants/install",
        ".ci/environment 3.11 --without-package dev\n"
        ".venv/bin/python -m pip install -qq --no-deps -e .",
        "mutants",
        "3.11",
        everyday=False,
        shard=6,
    )
    yield Row(
        "mutants/sample",
        ".venv/bin/python stress/mutants.py --count 15 --seed 7 --survivors 2 --seconds 700",
        "mutants",
        "3.11",
        needs=("mutants/install",),
        cores=2,
        counts="lines",
        limit=1500,
        everyday=False,
        shard=6,
    )
    # The oldest versions of other packages that pyproject.toml claims to work with.
    yield Row(
        "lowest/install",
        ".ci/environment 3.11 --lowest test",
        "lowest",
        "3.11",
        everyday=False,
        shard=8,
    )
    yield Row(
        "lowest/default",
        f"-n 2 -m '{SAME}' tests",
        "lowest",
        "3.11",
        needs=("lowest/install",),
        cores=2,
        counts="pytest",
        everyday=False,
        shard=8,
    )
    # The C tests on ARM, in an emulated machine of a processor with instructions for atomic
    # operations and of one without.
    for processor in ("neoverse-n1", "cortex-a57"):
        yield Row(
            f"arm/{processor}",
            f"bash .ci/arm {processor}",
            "arm",
            cores=2,
            counts="lines",
            limit=2400,
            everyday=False,
            shard=9,
        )


def rows(sources: Path, change: Change) -> list[Row]:
    """All rows. Those of an everyday run are marked, and depend on the change."""
    found = [*lint(sources), *readme(sources)]
    found += suite(WHOLE, sources, change)
    found += native(change)
    for version in PYTHONS:
        if version != WHOLE:
            found += suite(version, sources, change)
    found += extras(sources, change)
    found += torch("2.6.0", "nvidia-cuda-runtime-cu12==12.4.127")
    found += torch("2.15.0", "nvidia-cuda-runtime==13.2.75")
    found += [*examples(), *rare()]
    return found
