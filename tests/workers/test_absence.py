"""What a worker lacks is told by the module's name, wherever its file lies.

Each test has a registrar and a worker of another process, with folders of their own: as the
releases of a deployment, two virtual environments or two containers have.
"""

from __future__ import annotations

import builtins
import os
import random
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from commands import environment
from patience import limit
from seeds import seed_of

import mdispatch as md

# The registrar imports what it is told to, says its registry's address, and waits.
MAIN = """
import sys
import mdispatch as md
{program}
print(md.default_registry().address, flush=True)
sys.stdin.read()
"""

WORKER = """
import json, sys
import mdispatch as md
try:
    md.warm_up({modules!r}, timeout={limit}, complete={complete!r})
except md.errors.WarmUpError as error:
    told = [[type(e).__name__, e.kind, e.name, e.there, str(e)] for e in error.differences]
else:
    told = []
print(json.dumps(told))
"""


def told(
    program: str | list[str],
    here: Path,
    there: Path,
    modules: list[str],
    complete: tuple[str, ...] = (),
    pythons: tuple[str, str] = (sys.executable, sys.executable),
) -> list[list[str]]:
    """What a worker says that has the modules from ``here``. The registrar runs ``program`` with
    those from ``there``: the lines that import them, or the words of a command.
    """
    words = ["-c", MAIN.format(program=program)] if isinstance(program, str) else program
    main = subprocess.Popen(
        [pythons[0], *words],
        env=environment(PYTHONPATH=str(there)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with main:
        assert main.stdin is not None
        assert main.stdout is not None
        address = main.stdout.readline().strip()
        worker = subprocess.run(
            [pythons[1], "-c", WORKER.format(modules=modules, complete=complete, limit=limit(20))],
            env=environment(PYTHONPATH=str(here), MDISPATCH_REGISTRY=address),
            capture_output=True,
            text=True,
            check=False,
        )
        main.stdin.close()
    assert worker.returncode == 0, worker.stderr
    import json

    found: list[list[str]] = json.loads(worker.stdout)
    return found


def names(found: list[list[str]]) -> list[tuple[str, str, str]]:
    return sorted((cls, kind, name) for cls, kind, name, *_ in found)


WHOLE = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("f(int x) -> int")
lib.define("g(int x) -> int")
lib.impl("g", lambda x: x)
"""
LESS = WHOLE.replace('lib.define("g(int x) -> int")\nlib.impl("g", lambda x: x)\n', "")
MISSING = [
    ("MissingInWorkerError", "def", "shop::g"),
    ("MissingInWorkerError", "impl", "shop::g"),
]


@pytest.fixture
def releases(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the package ``shop``; in the second one an operator is missing."""
    for folder, text in (("r1", WHOLE), ("r2", LESS)):
        package = tmp_path / folder / "shop"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "ops.py").write_text(text)
    return tmp_path / "r1", tmp_path / "r2"


@pytest.mark.shared
def test_a_worker_of_another_folder_is_told_what_it_lacks(releases):
    there, here = releases
    found = told("import shop.ops", here, there, ["shop.ops"])
    assert names(found) == MISSING
    (text,) = [text for *_, kind, _name, _there, text in found if kind == "def"]
    assert f"here:  nothing    ({here / 'shop' / 'ops.py'})" in text
    assert f"there: shop::g(int x) -> int    ({there / 'shop' / 'ops.py'}:5)" in text


@pytest.mark.shared
def test_the_same_in_another_folder_is_no_difference(releases):
    there, here = releases
    (here / "shop" / "ops.py").write_text(WHOLE)
    assert told("import shop.ops", here, there, ["shop.ops"]) == []


def _linked(folder: Path) -> Path:
    link = folder.with_name(f"current-{folder.name}")
    link.symlink_to(folder, target_is_directory=True)
    return link


def _zipped(folder: Path) -> Path:
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        for file in folder.rglob("*.py"):
            archive.write(file, file.relative_to(folder))
    return folder.with_suffix(".zip")


def _compiled(folder: Path) -> Path:
    """The folder without sources."""
    import compileall

    assert compileall.compile_dir(folder, quiet=1, legacy=True)
    for file in folder.rglob("*.py"):
        file.unlink()
    return folder


LAYOUTS = {"folder": lambda folder: folder, "link": _linked, "zip": _zipped, "pyc": _compiled}


@pytest.mark.parametrize("there", LAYOUTS)
@pytest.mark.parametrize("here", LAYOUTS)
@pytest.mark.shared
def test_it_is_told_whichever_way_either_finds_the_module(here, there, releases):
    first, second = releases
    found = told("import shop.ops", LAYOUTS[here](second), LAYOUTS[there](first), ["shop.ops"])
    assert names(found) == MISSING


@pytest.mark.thorough
@pytest.mark.shared
def test_it_is_told_in_another_virtual_environment(tmp_path, releases):
    import venv

    pythons = []
    for folder in releases:
        home = tmp_path / f"venv-{folder.name}"
        venv.create(home, with_pip=False, symlinks=True)
        (packages,) = home.glob("lib/python*/site-packages")
        (folder / "shop").rename(packages / "shop")
        # The package itself, and what it needs, are those that this process has.
        (packages / "all.pth").write_text("\n".join(each for each in sys.path if each))
        pythons.append(str(home / "bin" / "python"))
    found = told("import shop.ops", tmp_path, tmp_path, ["shop.ops"], pythons=tuple(pythons))
    assert names(found) == MISSING


@pytest.mark.shared
def test_a_module_that_is_run_by_its_name_is_known_by_it(releases):
    """``python -m``. Another process imports the module by the same name."""
    there, here = releases
    for folder, text in ((there, WHOLE), (here, LESS)):
        (folder / "shop" / "serve.py").write_text(
            text + 'if __name__ == "__main__":\n' + textwrap.indent(MAIN.format(program=""), "    ")
        )
    assert names(told(["-m", "shop.serve"], here, there, ["shop.serve"])) == MISSING


@pytest.mark.shared
def test_a_script_is_known_by_its_file_and_by_the_namespace_that_it_owns(releases):
    there, here = releases
    (there / "main.py").write_text(WHOLE + MAIN.format(program=""))
    (here / "main.py").write_text(LESS)
    script = [str(there / "main.py")]
    assert names(told(script, here, there, ["main"])) == MISSING
    # Without a DEF library nothing ties the two scripts together. The page says so.
    for file in (there / "main.py", here / "main.py"):
        file.write_text(file.read_text().replace("DEF", "FRAGMENT"))
    assert told(script, here, there, ["main"]) == []
    assert names(told(script, here, there, ["main"], ("shop",))) == MISSING


# A project with a decorator of its own, as PyTorch's users have.
ADAPTER = """
import mdispatch as md
lib = md.Library("kernels", "FRAGMENT")
def operator(schema):
    def register(function):
        lib.define(schema)
        lib.impl(schema.partition("(")[0], function)
        return function
    return register
"""


def tree(folder: Path, left_out: set[int], changed: set[int]) -> list[str]:
    """76 modules with 120 operators in all, and the adapter. Returns the names of the modules."""
    package = folder / "srt"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "adapter.py").write_text(ADAPTER)
    texts = ["from srt.adapter import operator\n"] * 76
    for i in range(120):
        default = 2 if i in changed else 1
        decorator = f"@operator('f{i}(int x, int by={default}) -> int')\n" * (i not in left_out)
        texts[i % 76] += f"{decorator}def f{i}(x, by):\n    return x * by\n"
    for i, text in enumerate(texts):
        (package / f"m{i}.py").write_text(text)
    return [f"srt.m{i}" for i in range(76)]


@pytest.mark.shared
def test_each_decorator_that_was_removed_or_changed_is_named(tmp_path, long_form):
    drawn = random.Random(seed_of(long_form)).sample(range(120), 20)
    left_out, changed = set(drawn[:10]), set(drawn[10:])
    modules = tree(tmp_path / "r1", set(), set())
    tree(tmp_path / "r2", left_out, changed)
    program = "".join(f"import {name}\n" for name in modules)
    found = told(program, tmp_path / "r2", tmp_path / "r1", modules)
    wanted = [("MissingInWorkerError", kind, f"kernels::f{i}") for i in left_out for kind in KINDS]
    wanted += [("SchemaMismatchError", "def", f"kernels::f{i}") for i in changed]
    assert names(found) == sorted(wanted)
    for cls, _, name, there, _ in found:
        number = int(name.partition("::f")[2])
        if cls == "MissingInWorkerError":
            assert there.startswith(f"{tmp_path}/r1/srt/m{number % 76}.py:")


KINDS = ("def", "impl")


@pytest.mark.shared
def test_who_imports_some_modules_of_an_adapter_lacks_nothing_of_the_others(tmp_path):
    modules = tree(tmp_path / "r1", set(), set())
    program = "".join(f"import {name}\n" for name in modules)
    assert told(program, tmp_path / "r1", tmp_path / "r1", modules[:3]) == []


@pytest.mark.shared
def test_a_namespace_can_be_asked_for_as_a_whole(tmp_path):
    """A worker that has not imported the kernels at all lacks them, if it is to have them."""
    folder = tmp_path / "r1"
    modules = tree(folder, set(), set())[:2]
    (folder / "other.py").write_text(WHOLE)
    program = "import other\n" + "".join(f"import {name}\n" for name in modules)
    assert told(program, folder, folder, []) == []
    found = told(program, folder, folder, ["srt.m0"], ("kernels",))
    # The first two modules have the operators 0, 76, 1 and 77.
    assert names(found) == sorted(
        ("MissingInWorkerError", kind, f"kernels::f{i}") for i in (1, 77) for kind in KINDS
    )
    assert "has not imported srt.m1" in found[0][4]
    assert "Import srt.m1 here, too" in found[0][4]
    everything = told(program, folder, folder, [], ("kernels", "shop"))
    assert len(everything) == 8 + 4  # the definitions and kernels, and the DEF library of shop


@pytest.mark.parametrize("bad", [7, ["a::b"], [None], "a b", [""]])
def test_what_is_no_namespace_is_refused(bad):
    with pytest.raises(md.errors.InvalidArgumentError, match="complete names namespaces"):
        md.warm_up([], complete=bad)


# --- the location of a registration
# ------------------------------------------------------------------


def found(registry: md.Registry) -> list[md.Registration]:
    return registry.dispatcher.facts.registrations()[2]


@pytest.fixture
def project(tmp_path, monkeypatch, registry):
    """A function that writes modules, imports the last one, and returns the registrations of
    ``p``."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def imported(**texts: str) -> dict[str, md.Registration]:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        monkeypatch.setattr(builtins, "reg", registry, raising=False)
        for name in texts:
            monkeypatch.setitem(sys.modules, name, None)
            del sys.modules[name]  # and again when the test has ended
        __import__(name)
        return {fact.name: fact for fact in found(registry)}

    return imported


HELPER = """
import mdispatch as md
lib = md.Library("p", "FRAGMENT", registry=reg)
def operator(function, **told):
    lib.define(f"{function.__name__}() -> int", **told)
    return function
"""


def test_the_module_that_is_imported_registers_and_not_its_helper(project):
    facts = project(
        place_helper=HELPER,
        place_user="""
        from place_helper import operator
        @operator
        def f():
            return 1
        def several():
            operator(f)
        f.__name__ = "g"
        several()
        """,
    )
    assert {name: (fact.module, fact.where.rpartition("/")[2]) for name, fact in facts.items()} == {
        "p::f": ("place_user", "place_user.py:3"),
        "p::g": ("place_user", "place_user.py:7"),
    }


def test_where_nothing_is_imported_the_helper_registers_unless_it_says_for_whom(project, registry):
    project(
        place_helper=HELPER,
        place_user="""
        import place_helper
        def f(): pass
        def g(): pass
        class h: pass
        def late():
            place_helper.operator(f)
            place_helper.operator(g, where=g)
            place_helper.operator(h, where=h)
            place_helper.lib.impl("f", f, where=g)
            place_helper.lib.impl("g", g)
        reg.late = late
        """,
    )
    registry.late()
    facts = {(f.name, f.kind): f for f in found(registry)}
    places = {what: (fact.module, fact.where.rpartition("/")[2]) for what, fact in facts.items()}
    DEF, IMPL = md.facts.DEF, md.facts.IMPL
    assert places["p::f", DEF] == ("place_helper", "place_helper.py:5")
    assert places["p::g", DEF] == ("place_user", "place_user.py:4")
    assert places["p::h", DEF][0] == "place_user"
    assert places["p::f", IMPL] == ("place_user", "place_user.py:4")
    assert places["p::g", IMPL] == ("place_user", "place_user.py:11")


class Endless:
    """Has any attribute, as objects that record calls have."""

    def __getattr__(self, name):
        return Endless()


@pytest.mark.parametrize("bad", [3, "shop", print, object(), Endless()])
def test_what_has_no_place_is_refused_and_nothing_is_registered(bad, lib, registry):
    for register in (
        lambda: lib.define("f() -> int", where=bad),
        lambda: lib.impl("f", lambda: 1, where=bad),
    ):
        before = found(registry)
        with pytest.raises(md.errors.InvalidArgumentError, match="function, class or module"):
            register()
        assert found(registry) == before


def test_a_place_is_as_long_as_the_registry_has_room_for_and_its_module_stays(
    project, tmp_path, monkeypatch
):
    deep = tmp_path / ("d" * 200) / ("e" * 200) / ("f" * 200) / ("g" * 200) / ("h" * 200)
    deep.mkdir(parents=True)
    (deep / "place_deep.py").write_text(
        "import mdispatch as md\nmd.Library('p', 'FRAGMENT', registry=reg).define('f() -> int')\n"
    )
    monkeypatch.syspath_prepend(str(deep))
    facts = project(place_first="import place_deep")
    monkeypatch.delitem(sys.modules, "place_deep")
    fact = facts["p::f"]
    assert fact.module == "place_deep"
    assert fact.where.endswith(f"{'h' * 200}/place_deep.py:2")
    assert len(os.fsencode(fact.origin)) <= 1024


ASKS = """
from mdispatch.facts.native import alone, binding
def ask():
    found = []
    for caller in (binding.caller, alone.caller):
        code, at, names = caller("__name__")
        found.append((code.co_name, names["__name__"]))
    asked.append(found)
"""
IMPORTS = """
import place_asks
def own():
    place_asks.ask()
place_asks.ask()
own()
class Body:
    place_asks.ask()
late = own
"""


@pytest.mark.parametrize("way", ["import", "reload", "exec_module", "exec"])
def test_c_and_python_find_the_same_code_whoever_executes_the_module(way, tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.syspath_prepend(str(tmp_path))
    asked: list[list[tuple[str, str]]] = []
    monkeypatch.setattr(builtins, "asked", asked, raising=False)
    (tmp_path / "place_asks.py").write_text(ASKS)
    (tmp_path / "place_imports.py").write_text(IMPORTS)
    for name in ("place_asks", "place_imports"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    if way == "exec":  # nobody imports it
        space = {"__name__": "place_exec"}
        exec(compile(IMPORTS, "place_exec.py", "exec"), space)
        late = space["late"]
    elif way == "exec_module":  # as loaders of plug-ins do
        spec = importlib.util.spec_from_file_location(
            "place_imports", tmp_path / "place_imports.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        late = module.late
    else:
        module = importlib.import_module("place_imports")
        if way == "reload":
            asked.clear()
            importlib.reload(module)
        late = module.late
    late()
    for of_c, of_python in asked:
        assert of_c == of_python
    found = [of_c for of_c, _ in asked]
    helper = ("ask", "place_asks")
    if way == "exec":
        assert found == [helper] * 4
    else:
        name = "place_imports"
        assert found == [("<module>", name), ("own", name), ("Body", name), helper]
