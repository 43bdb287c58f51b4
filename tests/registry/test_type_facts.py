"""Types are registrations that members write for themselves: who comes second with other keys is
told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import INTERPRETERS, run_main
from patience import limit

import mdispatch as md

KINDS = [*INTERPRETERS, "forkserver", "spawn", "subprocess"]

#: What two versions of one module are to each other.
SHOP = """
import os
import mdispatch as md

class Array:
    pass

class Other:
    pass

md.register_type(Other, "CPU")
md.register_type(Array, "CPU" if md.is_main_interpreter() else "CUDA")

lib = md.Library("shop", "DEF")
lib.define("size(Tensor x) -> int")
lib.impl("size", lambda x: 1, "CompositeExplicitAutograd")
"""


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop_types.py").write_text(SHOP)
    return str(tmp_path)


TELLS = """
import mdispatch as md
try:
    IMPORT
    error = None
except md.errors.TypeKeysMismatchError as caught:
    error = caught
backing = md.default_registry().dispatcher.facts
report(
    text=str(error), kind=error.kind, name=error.name, here=error.here, there=error.there,
    keys=(error.keys_here, error.keys_there),
    types=sorted(
        (f.name, f.body) for f in backing.registrations()[2] if f.name.startswith("shop_")
    ),
)
"""

MAIN = """
kind, folder, text = args
sys.path.insert(0, folder)
import shop_types
found = results(start(kind, text, 1, Path(folder)))[0]
done(pid=os.getpid(), **found)
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "imports", ["import shop_types", "md.Library('first', 'FRAGMENT'); import shop_types"]
)
def test_a_worker_that_registers_another_key_is_told_with_both_lines(kind, imports, shop) -> None:
    got = run_main(MAIN, kind, shop, TELLS.replace("IMPORT", imports))
    place = f"{shop}/shop_types.py:12"
    assert (got["kind"], got["name"]) == ("type", "shop_types.Array")
    assert (got["here"], got["there"]) == (place, place)
    assert got["keys"] == (("CUDA",), ("CPU",))
    assert f"for CPU in pid {got['pid']}, interpreter 0, and here for CUDA" in got["text"]
    assert got["types"].count(("shop_types.Array", "CPU")) == 1
    assert ("shop_types.Array", "CUDA") not in got["types"]  # it was refused
    assert got["types"].count(("shop_types.Other", "CPU")) == 2  # each member has its own


WARMS_UP = """
import mdispatch as md
try:
    md.warm_up("shop_types", timeout=0.5)
except md.errors.WarmUpError as error:
    found = [(type(each).__name__, each.name) for each in error.differences]
    text = str(error)
try:
    md.warm_up("shop_types", timeout=0.5)
except md.errors.WarmUpError as error:
    again = [(type(each).__name__, each.name) for each in error.differences]
report(found=found, again=again, text=text)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_up_tells_it_in_all_that_differs(kind, shop) -> None:
    module = Path(shop, "shop_types.py")
    more = 'lib.define("f(int x) -> int" if md.is_main_interpreter() else "f(int y) -> int")\n'
    module.write_text(module.read_text() + more)
    got = run_main(MAIN, kind, shop, WARMS_UP)
    both = [("SchemaMismatchError", "shop::f"), ("TypeKeysMismatchError", "shop_types.Array")]
    assert sorted(got["found"]) == both
    assert sorted(got["again"]) == both
    assert got["text"].count(f"{shop}/shop_types.py:12") == 2


@pytest.mark.shared
def test_a_fact_ends_with_its_class_and_others_may_have_another_key(shop) -> None:
    got = run_main(
        """
        folder, = args
        sys.path.insert(0, folder)
        import shop_types
        from mdispatch.dispatch.context.values import register_type
        handle = register_type(shop_types.Array, "CPU")
        backing = md.default_registry().dispatcher.facts
        def types():
            there = backing.registrations("shop_types.Array")[2]
            return [f.where.rpartition(":")[2] for f in there]
        one = types()
        text = '''
        import mdispatch as md
        import shop_types
        report(keys=repr(md.key_set_of(shop_types.Array())))
        '''
        import gc
        del shop_types.Array
        gc.collect()
        none = types()
        worker = results(start("subprocess", textwrap.dedent(text), 1, Path(folder)))[0]
        done(one=one, none=none, worker=worker, check=backing.check())
        """,
        shop,
    )
    assert got["one"] == ["12"]
    assert got["none"] == []
    assert "CUDA" in got["worker"]["keys"]
    assert got["check"] == ""


KILLED = """
folder, text = args
go = md.Library("go", "DEF")
backing = md.default_registry().dispatcher.facts
workers = []
for name, key in (("first", "CUDA"), ("second", "CPU")):
    Path(folder, name).mkdir()
    workers += start("subprocess", text.replace("KEY", key), 1, Path(folder, name))
    until_asleep(workers[-1:])
first, second = workers
both = [(f.body, f.pid == first.pid) for f in backing.registrations("worker_types.Array")[2]]
os.kill(first.pid, signal.SIGKILL)
first.join()
go.define("now() -> ()")
second.join()
md.register_type(float, "CPU")  # the next fact of a member's own finds the death
left = [f.body for f in backing.registrations("worker_types.Array")[2]]
done(both=both, left=left, check=backing.check(), **second.result())
"""

MEMBER = """
import sys, types
import mdispatch as md
module = sys.modules["worker_types"] = types.ModuleType("worker_types")
exec("class Array: pass", vars(module))
md.Library("own", "FRAGMENT")
told = []
for turn in (1, 2):
    try:
        md.register_type(module.Array, "KEY")
        told.append(None)
    except md.errors.TypeKeysMismatchError as error:
        told.append(error.keys_there)
    if turn == 1:
        i_am_here()
        backing = md.default_registry().dispatcher.facts
        backing.await_fact(2, 0, "go::now", 1, None)
there = [f.body for f in backing.registrations("worker_types.Array")[2]]
report(told=told, there=there)
"""


@pytest.mark.shared
def test_the_types_of_a_killed_member_are_struck_and_refuse_nobody(tmp_path) -> None:
    got = run_main(KILLED, str(tmp_path), MEMBER)
    assert got["both"] == [("CUDA", True)]
    assert got["told"] == [("CUDA",), None]  # while the first one lived, and after its death
    assert got["there"] == ["CPU"]
    assert (got["left"], got["check"]) == ([], "")


@pytest.mark.parametrize("kind", [*KINDS, "fork"])
def test_in_a_team_the_first_one_is_right(kind, tmp_path) -> None:
    (tmp_path / "team_types.py").write_text(
        "import os, mdispatch as md\nclass Array: pass\n"
        "md.register_type(Array, os.environ['KEY'])\nlib = md.Library('team', 'DEF')\n"
    )
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        os.environ["MDISPATCH_REGISTRY"] = f"elect:types-{os.getpid()}"
        md.Library("other", "DEF")
        text = '''
        import os
        os.environ["KEY"] = f"KEY{INDEX}"
        try:
            import team_types
            told = None
        except md.errors.TypeKeysMismatchError as error:
            told = error.keys_there
        report(told=told)
        '''
        os.environ["KEY"] = "CUDA"
        import team_types
        del sys.modules["team_types"]  # where it is inherited, it is imported again
        text = textwrap.dedent(text).replace("md.errors", "mdispatch.errors")
        text = "import mdispatch\\n" + text.replace('f"KEY{INDEX}"', '("CUDA", "CPU")[INDEX]')
        done(told=[each["told"] for each in results(start(kind, text, 2, Path(folder)))])
        """,
        kind,
        str(tmp_path),
    )
    assert got["told"] == [None, ("CUDA",)]


@pytest.mark.shared
def test_of_two_members_that_look_before_either_writes_one_is_told(tmp_path) -> None:
    got = run_main(
        """
        folder, = args
        text = '''
        import sys, types
        import mdispatch as md
        md.Library("own", "FRAGMENT")
        module = sys.modules["both"] = types.ModuleType("both")
        exec("class Array: pass", vars(module))
        backing = md.default_registry().dispatcher.facts
        register = backing.register
        def later(kind, *rest):
            arrived("to write")
            backing.await_fact(2, 0, "go::now", 1, None)
            fact = register(kind, *rest)
            arrived("written")
            backing.await_fact(2, 0, "go::on", 1, None)
            return fact
        backing.register = later
        key = ("CPU", "CUDA")[INDEX]
        try:
            md.register_type(module.Array, key)
            report(key=key)
        except md.errors.TypeKeysMismatchError as error:
            report(key=error.keys_there[0])
        arrived("done")
        backing.await_fact(2, 0, "go::home", 1, None)
        '''
        go = md.Library("go", "DEF")
        backing = md.default_registry().dispatcher.facts
        workers = start("subprocess", textwrap.dedent(text), 2, Path(folder))
        until_arrived(workers, "to write")
        go.define("now() -> ()")
        until_arrived(workers, "written")
        go.define("on() -> ()")
        until_arrived(workers, "done")
        types = [f.body for f in backing.registrations("both.Array")[2]]
        go.define("home() -> ()")
        done(types=types, keys=[each["key"] for each in results(workers)], check=backing.check())
        """,
        str(tmp_path),
    )
    assert len(got["types"]) == 1
    assert got["keys"] == got["types"] * 2
    assert got["check"] == ""


PROGRAM = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import mdispatch as md

class Array:
    pass

md.register_type(Array, "CPU" if md.is_main_interpreter() else "CUDA")
lib = md.Library("shop", "DEF")
lib.define("size(Tensor x) -> int")
lib.impl("size", lambda x: 1, "CompositeExplicitAutograd")

def job(n):
    return md.ops.shop.size(Array())

def outcome(ask):
    try:
        return ask()
    except md.errors.WarmUpError as error:
        return [(type(e).__name__, e.name, e.here, e.there) for e in error.differences]

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    start = {"initializer": md.initializer(())} if "with" in sys.argv else {}
    with POOL as pool:
        if hasattr(pool, "submit"):
            tasks = [pool.submit(job, n).result for n in range(3)]
        else:
            tasks = [pool.apply_async(job, (n,)).get for n in range(3)]
        print(repr([outcome(each) for each in tasks]))
"""

POOLS = {
    "Pool": "spawn.Pool(2, **start)",
    "ProcessPoolExecutor": "ProcessPoolExecutor(2, spawn, **start)",
}


def run_program(folder: Path, *arguments: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Exception ignored" not in ran.stderr
    return ran.stdout


@pytest.mark.shared
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("initializer", ["with", "without"])
def test_a_type_of_the_main_script_is_that_of_its_copies(pool, initializer, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("POOL", POOLS[pool]))
    place = f"{program}:11"
    told = [("TypeKeysMismatchError", f"__main__({program}).Array", place, place)]
    assert eval(run_program(tmp_path, "program.py", initializer)) == [told] * 3


@pytest.mark.shared
def test_a_program_that_is_run_by_name_has_the_types_of_its_module(tmp_path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "run.py").write_text(PROGRAM.replace("POOL", POOLS["Pool"]))
    (told, *_) = eval(run_program(tmp_path, "-m", "shop.run", "with"))
    assert [each[:2] for each in told] == [("TypeKeysMismatchError", "shop.run.Array")]


NAMES = """
import sys
import mdispatch as md

def types():
    _, _, there = md.default_registry().dispatcher.facts.registrations()
    return {f.name: f.body for f in there if f.kind == 16}

def on(*keys):
    def registers(cls):
        md.register_type(cls, keys)
        return cls
    return registers

def makes():
    class Within:
        pass
    md.register_type(Within, "CPU")
    named = type("Named", (), {})
    md.register_type(named, "CPU")
    return Within, named

md.Library("names", "DEF")

@on("CPU", "AutogradCPU")
class Decorated:
    class Inner:
        pass

kept = makes()
inner = md.register_type(Decorated.Inner, "Meta")
before = types()
md.Library("names", "FRAGMENT")
after = types()
inner.close()
import mdispatch.registry
with mdispatch.registry.Registry.local() as registry:
    md.Library("other", "DEF", registry=registry)
    there = registry.dispatcher.facts.registrations()[2]
    local = {f.name: f.body for f in there if f.kind == 16}
print(repr((before, after, types(), local)))
"""


def test_a_class_has_a_fact_once_its_module_has_it_under_its_name(tmp_path) -> None:
    (tmp_path / "named.py").write_text(NAMES)
    before, after, ended, local = eval(run_program(tmp_path, "-c", "import named"))
    assert before == {"named.Decorated.Inner": "Meta"}
    assert after == {"named.Decorated": "CPU, AutogradCPU", "named.Decorated.Inner": "Meta"}
    assert ended == {"named.Decorated": "CPU, AutogradCPU"}
    assert local == ended
    # A prompt's or a notebook's classes are no other program's.
    run_program(tmp_path, "-c", f"{NAMES}\nassert types() == {{}}")


@pytest.mark.shared
def test_a_child_of_fork_writes_its_own_with_its_next_library() -> None:
    got = run_main(
        """
        md.Library("first", "DEF")
        md.register_type(float, "CPU")
        backing = md.default_registry().dispatcher.facts
        def types():
            return sorted(f.pid == os.getpid() for f in backing.registrations("builtins.float")[2])
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            found = [types()]
            lib = md.Library("first", "FRAGMENT")
            found.append(types())
            try:
                md.register_type(int, "CPU")
                found.append(len(backing.registrations("builtins.int")[2]))
            finally:
                os.write(write, repr(found).encode())
                os._exit(0)
        found = eval(os.read(read, 1000))
        os.waitpid(child, 0)
        md.register_type(int, "CUDA")  # the child is gone, and what it said of int with it
        done(child=found, parent=types())
        """
    )
    assert got["child"] == [[False], [False, True], 1]
    assert got["parent"] == [True]


@pytest.mark.shared
def test_what_one_registry_refuses_no_other_has(shop) -> None:
    got = run_main(
        """
        kind, folder = args
        sys.path.insert(0, folder)
        import shop_types
        text = '''
        import mdispatch as md
        from mdispatch.registry import Registry
        own = Registry.create()
        md.Library("own", "DEF", registry=own)
        md.Library("own", "FRAGMENT")
        import types, sys
        module = sys.modules["shop_types"] = types.ModuleType("shop_types")
        exec("class Array: pass", vars(module))
        try:
            md.register_type(module.Array, "CUDA")
        except md.errors.TypeKeysMismatchError as error:
            told = error.keys_there
        names = [f.name for f in own.dispatcher.facts.registrations()[2]]
        report(told=told, names=names, keys=repr(md.key_set_of(module.Array())),
               check=own.dispatcher.facts.check())
        '''
        done(**results(start(kind, textwrap.dedent(text), 1, Path(folder)))[0])
        """,
        "subprocess",
        shop,
    )
    assert got["told"] == ("CPU",)
    assert got["names"] == ["own"]
    assert (got["keys"], got["check"]) == (repr(md.DispatchKeySet()), "")


def test_a_registry_that_is_gone_or_full_takes_none_and_hinders_nobody() -> None:
    class Array:
        pass

    with md.Registry.create() as registry:
        md.Library("gone", "DEF", registry=registry)
        registry.dispatcher.facts.close()
        with md.register_type(Array, "CPU"):
            assert md.key_set_of(Array()) == md.DispatchKeySet("CPU")


HALF_IMPORTED = """
import threading
module, blocked, does, first = args
for each in first:
    __import__(each)
stopped, go_on = threading.Event(), threading.Event()

class Stops:
    # A finder that stops the import of a module in its midst: at one that it imports.
    def find_spec(self, name, path=None, target=None):
        if name == blocked and module in sys.modules and not go_on.is_set():
            stopped.set()
            assert go_on.wait(limit(30))

registry = md.Registry.create()
for each in (module, blocked):
    sys.modules.pop(each, None)
sys.meta_path.insert(0, Stops())
importer = threading.Thread(target=__import__, args=(module,))
importer.start()
assert stopped.wait(limit(30))
spec = sys.modules[module].__spec__
told = [spec._initializing, eval(does)]
go_on.set()
importer.join()
done(told=told)
"""


@pytest.mark.shared
@pytest.mark.parametrize(
    ("module", "blocked", "does", "first"),
    [
        ("mdispatch.registry.type_facts", "mdispatch.dispatch.own_types", "registry.close()", []),
        (
            "multiprocessing.process",
            "_weakrefset",
            "sys.modules['mdispatch.registry.unheard'].parent_process()",
            ["mdispatch.workers.warm_up"],
        ),
    ],
)
def test_a_module_that_another_thread_imports_counts_as_not_there(module, blocked, does, first):
    assert run_main(HALF_IMPORTED, module, blocked, does, first)["told"] == [True, None]
