"""Warming up reports all differences. (As the initializer of pools: test_pools.py.)"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from kinds import INTERPRETERS, run_main
from patience import limit

import mdispatch as md

MODULE = """
import mdispatch as md
md.register_type(bytearray, "CPU")
lib = md.Library("shop", "DEF")
lib.define("scale(Tensor x, int factor=2) -> Tensor")
lib.define("size(Tensor x) -> int")
lib.define("join(Tensor[] xs) -> Tensor")
main = md.register_or_verify() == "register"

@lib.impl("scale", dispatch_key="CPU")
def scale(x, factor=2):
    return x * factor

lib.impl("size", len, "CPU")
lib.impl("join", lambda xs: bytearray().join(xs), "CompositeExplicitAutograd")
"""

DIVERGENT = """
import mdispatch as md
main = md.is_main_interpreter()
lib = md.Library("shop", "DEF")
factor = "float factor=2.0" if main else "int factor=2"
lib.define(f"scale(Tensor x, {factor}) -> Tensor")
lib.define("colour(Tensor x) -> Tensor" if main else "color(Tensor x) -> Tensor")
lib.define("size(Tensor x) -> int")
lib.impl("size", len, "CPU" if main else "CUDA")
if main:
    lib.define("only_main(Tensor x) -> int")
else:
    other = md.Library("elsewhere", "DEF")
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop_ops.py").write_text(MODULE)
    (tmp_path / "divergent_ops.py").write_text(DIVERGENT)
    return tmp_path


@pytest.mark.waits
@pytest.mark.parametrize("kind", [*INTERPRETERS, "fork", "spawn"])
def test_it_tells_everything_that_differs_not_the_first_difference(kind, shop) -> None:
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        if kind == "fork":
            read, write = os.pipe()
            text_ready = os.fork()
        else:
            text_ready = 1
        text = '''
        import mdispatch as md
        try:
            md.warm_up(["divergent_ops"], timeout=0.5)
        except md.errors.WarmUpError as error:
            found = [(type(e).__name__, e.kind, e.name, e.key) for e in error.differences]
            report(text=str(error), found=found)
        '''
        if text_ready == 0:
            # The child is a worker of a registry that its parent made after the fork.
            os.environ["MDISPATCH_REGISTRY"] = os.read(read, 300).decode()
            import kinds
            kinds.run_source(textwrap.dedent(text), 0, folder, sys.path)
            os._exit(0)
        md.warm_up(["divergent_ops"])
        from mdispatch.facts.differing import DIFFERS
        def there():  # a worker that was forked, and has ended without Python, leaves its notes
            facts = md.default_registry().dispatcher.facts
            return [fact for fact in facts.registrations()[2] if fact.name != DIFFERS]
        before = there()
        if kind == "fork":
            os.write(write, md.default_registry().address.encode())
            os.waitpid(text_ready, 0)
            result = eval((Path(folder) / "0").read_text())
        else:
            result = results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0]
        done(unchanged=before == there(), **result)
        """,
        kind,
        str(shop),
    )
    assert got["unchanged"]
    assert sorted(got["found"]) == [
        ("KeyMismatchError", "impl", "shop::size", "CUDA"),
        ("MainNeverArrivedError", "library", "elsewhere", ""),
        ("MissingInWorkerError", "def", "shop::colour", ""),
        ("MissingInWorkerError", "def", "shop::only_main", ""),
        ("MissingInWorkerError", "impl", "shop::size", "CPU"),
        ("NameMismatchError", "def", "shop::color", ""),
        ("SchemaMismatchError", "def", "shop::scale", ""),
    ]
    for words in (
        "7 differences",
        "shop::scale(Tensor x, int factor=2) -> Tensor",
        "shop::scale(Tensor x, float factor=2.) -> Tensor",
        "nearest names there: shop::colour",
        "divergent_ops.py:6",
        "kernels at CPU",
    ):
        assert words in got["text"]


TWICE = """
import mdispatch as md
from mdispatch import custom_op
name = lambda *args: None
scale = custom_op("t::scale", name, mutates_args=(), schema="(Tensor x) -> Tensor",
                  device_types=("cpu", "cuda"))
scale.register_fake(name)
scale.register_kernel("cuda", name)
if md.is_main_interpreter():
    scale.register_kernel("cuda", name)
"""


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_several_kernels_at_one_key_are_several_registrations(kind, tmp_path) -> None:
    (tmp_path / "twice_ops.py").write_text(TWICE)
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        md.warm_up("twice_ops")
        text = '''
        from mdispatch.workers.warm_up import examine
        found = [(type(e).__name__, e.name, e.key) for e in examine("twice_ops").differences]
        report(found=found)
        '''
        done(**results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0])
        """,
        kind,
        str(tmp_path),
    )
    assert got["found"] == [("MissingInWorkerError", "t::scale", "CUDA")]


PARTS = """
import mdispatch as md
other = md.Library("whole", "DEF").define("f(Tensor x) -> int")
if md.is_main_interpreter():
    md.Library("part", "DEF")
    md.Library("part", "FRAGMENT").register_name("g")
    md.Library("_", "IMPL").fallback(print, "CPU")
    md.register_class("part.Thing")(type("Thing", (), {}))
"""


@pytest.mark.needs("across")
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_it_tells_of_whatever_kind_of_registration_is_missing(kind, tmp_path) -> None:
    (tmp_path / "part_ops.py").write_text(PARTS)
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        import part_ops
        text = '''
        from mdispatch.workers.warm_up import examine
        found = [(e.kind, e.name, e.key, str(e)) for e in examine("part_ops").differences]
        report(found=found)
        '''
        done(**results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0])
        """,
        kind,
        str(tmp_path),
    )
    found = {each[:3]: each[3] for each in got["found"]}
    assert set(found) == {
        ("library", "part", ""),
        ("name", "part::g", ""),
        ("fallback", "_", "CPU"),
        ("class", "part.Thing", ""),
    }
    assert "class part.Thing is registered" in found["class", "part.Thing", ""]
    assert "namespace 'part' has a DEF library" in found["library", "part", ""]
    assert "there is a fallback at CPU" in found["fallback", "_", "CPU"]


# Where a worker lacks something: in the module that is named, in modules that this imports, in the
# package of one of them, and in a module with which it has nothing to do.
LACKS = {
    "first_ops": "import second_ops\nfrom deep.inner import anything\n",
    "second_ops": "",
    "deep/__init__": "",
    "deep/inner": "anything = type('anything', (), {})\n",
    "other_ops": "",
}
LACKS_ONE = """
import mdispatch as md
lib = md.Library("{name}", "DEF")
lib.define("f() -> int")
if md.is_main_interpreter():
    lib.define("g() -> int")
"""


@pytest.mark.parametrize("imported", ["", "first_ops", "first_ops, other_ops"])
@pytest.mark.parametrize("kind", [*INTERPRETERS, "spawn"])
def test_it_looks_at_all_that_a_module_brings_whoever_imported_it(kind, imported, tmp_path) -> None:
    for name, text in LACKS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        source = LACKS_ONE.format(name=name.replace("/__init__", "").replace("/", "_"))
        (tmp_path / f"{name}.py").write_text(source + text)
    got = run_main(
        """
        kind, imported, folder = args
        sys.path.insert(0, folder)
        md.warm_up(["first_ops", "other_ops"])
        text = f"import {imported}" * bool(imported) + textwrap.dedent('''
        from mdispatch.workers.warm_up import examine
        done = examine("first_ops")
        found = [(type(e).__name__, e.name) for e in done.differences]
        report(found=sorted(found), counts=(done.operators, done.kernels))
        ''')
        done(**results(start(kind, text, 1, Path(folder)))[0])
        """,
        kind,
        imported,
        str(tmp_path),
    )
    names = ["deep", "deep_inner", "first_ops", "second_ops"]
    assert got["found"] == [("MissingInWorkerError", f"{name}::g") for name in names]
    assert got["counts"] == ((1, 0) if imported else (4, 0))


@pytest.mark.parametrize("kind", [*INTERPRETERS, "fork", "spawn"])
def test_it_counts_what_was_verified_before_it(kind, shop) -> None:
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        md.warm_up("shop_ops")
        text = '''
        import mdispatch as md
        import shop_ops
        done = md.warm_up("shop_ops")
        report(counts=[done.operators, done.kernels, len(done.differences)])
        '''
        done(**results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0])
        """,
        kind,
        str(shop),
    )
    # A child of fork has it from its parent, and has verified nothing.
    assert got["counts"] == ([0, 0, 0] if kind == "fork" else [3, 3, 0])


def test_what_a_worker_has_closed_it_lacks(shop) -> None:
    got = run_main(
        """
        sys.path.insert(0, args[0])
        md.warm_up("shop_ops")
        text = '''
        import shop_ops
        from mdispatch.workers.warm_up import examine
        shop_ops.lib.close()
        report(found=sorted((e.kind, e.name) for e in examine("shop_ops").differences))
        '''
        done(**results(start("spawn", textwrap.dedent(text), 1, Path(args[0])))[0])
        """,
        str(shop),
    )
    names = ["shop::join", "shop::scale", "shop::size"]
    found = [(kind, name) for kind in ("def", "impl") for name in names]
    assert got["found"] == [*found, ("library", "shop")]


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_it_says_that_the_registrar_died_where_all_is_there(kind, shop) -> None:
    """In a process whose registrar is another process, and in an interpreter of that process."""
    got = run_main(
        """
        import subprocess
        kind, folder = args
        sys.path.insert(0, folder)
        code = "import sys, shop_ops, mdispatch as md; print(md.default_registry().address)"
        main = subprocess.Popen([sys.executable, "-c", code + "; sys.stdout.flush(); input()"],
            env=os.environ | {"PYTHONPATH": folder}, stdin=-1, stdout=-1, text=True)
        os.environ["MDISPATCH_REGISTRY"] = main.stdout.readline().strip()
        before = md.warm_up("shop_ops")
        main.kill()
        main.wait()
        try:
            here = repr(md.warm_up("shop_ops"))
        except md.errors.RegistrarGoneError as error:
            here = error.pid == main.pid
        text = '''
        import mdispatch as md
        try:
            report(said=repr(md.warm_up("shop_ops")))
        except md.errors.RegistrarGoneError as error:
            report(said=error.pid)
        '''
        there = results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0]["said"]
        calls = md.ops.shop.size(bytearray(3))
        done(before=before.operators, here=here, there=there == main.pid, calls=calls)
        main.stdin.close(), main.stdout.close()
        """,
        kind,
        str(shop),
    )
    assert got["before"] == 3
    assert (got["here"], got["there"], got["calls"]) == (True, True, 3)


def test_in_the_main_interpreter_it_counts_what_the_modules_registered(shop) -> None:
    got = run_main(
        """
        sys.path.insert(0, args[0])
        first = md.warm_up("shop_ops")
        again = md.warm_up(["shop_ops"])
        done(counts=[(w.operators, w.kernels, len(w.differences)) for w in (first, again)])
        """,
        str(shop),
    )
    assert got["counts"] == [(3, 3, 0), (3, 3, 0)]


@pytest.mark.thorough
def test_all_waits_together_take_no_longer_than_the_timeout(tmp_path) -> None:
    lines = [f"lib.define('f{i}(Tensor x) -> int')" for i in range(100)]
    (tmp_path / "many.py").write_text(
        "import mdispatch as md\nlib = md.Library('many', 'FRAGMENT')\n"
        "if not md.is_main_interpreter():\n" + textwrap.indent("\n".join(lines), "    ")
    )
    got = run_main(
        """
        sys.path.insert(0, args[0])
        md.warm_up("many")
        text = '''
        import mdispatch as md, time
        began = time.monotonic()
        try:
            md.warm_up("many", timeout=limit(0.5))
        except md.errors.WarmUpError as error:
            report(count=len(error.differences), took=time.monotonic() - began)
        '''
        done(**results(start(INTERPRETERS[-1], text, 1, Path(args[0])))[0])
        """,
        str(tmp_path),
    )
    assert got["count"] == 100
    assert got["took"] < limit(20)  # 100 times the timeout would be limit(50)


@pytest.mark.parametrize("modules", [[""], [1], [None]])
def test_what_is_no_module_name_is_refused(modules, registry) -> None:
    with pytest.raises(md.errors.InvalidArgumentError):
        md.warm_up(modules, registry=registry)


def test_what_a_module_raises_passes_through(registry) -> None:
    with pytest.raises(ModuleNotFoundError):
        md.warm_up("no_such_module_anywhere", registry=registry)


def test_differences_found_before_a_module_raised_are_told_with_its_error(tmp_path) -> None:
    (tmp_path / "raises.py").write_text(
        "import mdispatch as md\nlib = md.Library('raises', 'FRAGMENT')\n"
        "if not md.is_main_interpreter():\n    lib.define('f() -> ()')\n    1 / 0\n"
    )
    got = run_main(
        """
        sys.path.insert(0, args[0])
        md.warm_up("raises")
        text = '''
        import mdispatch as md
        try:
            md.warm_up("raises", timeout=0.1)
        except ZeroDivisionError as error:
            report(notes=error.__notes__)
        '''
        done(**results(start(INTERPRETERS[-1], text, 1, Path(args[0])))[0])
        """,
        str(tmp_path),
    )
    assert len(got["notes"]) == 1
    told = re.search(r"did not define raises::f within ([\d.]+) s", got["notes"][0])
    assert float(told[1]) >= 0.1
