"""Pools of every kind whose workers warm up: what works, and how each kind of mistake ends."""

from __future__ import annotations

import sys
import textwrap
from types import ModuleType

import pytest
from kinds import INTERPRETERS, run_main

import mdispatch as md
from mdispatch.registry.unheard import is_unheard

pytestmark = pytest.mark.either_binding

OPS = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("twice(int x) -> int")
lib.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")

def work(x):
    return md.register_or_verify(), md.ops.shop.twice(x)
"""

# A worker has an operator more, and one that the main interpreter has in another way.
DIFFER = """
import mdispatch as md
lib = md.Library("odd", "DEF")
lib.define("f(int x) -> int" if md.is_main_interpreter() else "f(int x, int y=2) -> int")
lib.impl("f", lambda x, y=2: x * y, "CompositeExplicitAutograd")
if not md.is_main_interpreter():
    lib.define("more(int x) -> int")

def work(x):
    return md.ops.odd.f(x)
"""

# Modules that workers cannot import, each with the function that they have to call in it.
BROKEN = """
import mdispatch as md
lib = md.Library("broken", "DEF")
if not md.is_main_interpreter():
    import no_such_module_anywhere

def work(x):
    return x
"""

#: Made by these expressions, in the main part of a test.
POOLS = {
    "threads": "concurrent.futures.ThreadPoolExecutor(2, **start)",
    "interpreters": "md.InterpreterPool(2, **start)",
    "processes": "concurrent.futures.ProcessPoolExecutor(2, **start)",
    "fork": "multiprocessing.get_context('fork').Pool(2, **start)",
    "forkserver": "multiprocessing.get_context('forkserver').Pool(2, **start)",
    "spawn": "multiprocessing.get_context('spawn').Pool(2, **start)",
}

PRELUDE = """
import concurrent.futures, multiprocessing, importlib
expression, folder = args
os.chdir(folder)
sys.path.insert(0, folder)

def pool(*modules, timeout=0.5):
    from functools import partial
    start = {"initializer": partial(md.warm_up, timeout=timeout), "initargs": (modules, sys.path)}
    return eval(expression, globals() | {"start": start, "concurrent": concurrent,
                                         "multiprocessing": multiprocessing})

def told(error):
    # A broken executor's own words, and what has broken it where it says so.
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    notes = [note for each in chain for note in getattr(each, "__notes__", ())]
    return [type(e).__name__ for e in chain], "\\n".join([*map(str, chain), *notes])

def failure(*modules, work=abs):
    with pool(*modules) as workers:
        try:
            return [], list(workers.map(work, [1, 2, 3]))
        except Exception as error:
            return told(error)
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in {"shop": OPS, "odd": DIFFER, "broken": BROKEN}.items():
        (tmp_path / f"{name}_ops.py").write_text(text)
    return str(tmp_path)


def run(kind, folder, text):
    return run_main(PRELUDE + textwrap.dedent(text), POOLS[kind], folder)


@pytest.mark.parametrize("kind", POOLS)
def test_a_pool_of_every_kind_warms_up_with_the_same_initializer(kind, folder) -> None:
    got = run(
        kind,
        folder,
        """
        md.warm_up("shop_ops")
        from shop_ops import work
        with pool("shop_ops", timeout=2.0) as workers:
            found = list(workers.map(work, range(8)))
        # What a fork inherits it has; nobody else has anything.
        done(found=found, broken=md.default_registry().dispatcher.facts.check())
        """,
    )
    role = "register" if kind == "threads" else "verify"
    assert got["found"] == [(role, 2 * x) for x in range(8)]
    assert got["broken"] == ""
    assert got["stderr"] == ""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [kind for kind in POOLS if kind != "threads"])
def test_what_goes_wrong_in_the_warm_up_is_told_and_nothing_hangs(kind, folder) -> None:
    """A pool that is older than the registry, a module that registers more than its main
    interpreter, a module that cannot be imported; and after all that a correct pool.
    """
    got = run(
        kind,
        folder,
        """
        early = failure("shop_ops")
        # Children of a fork server have its environment, which is as old as it is.
        import multiprocessing.forkserver
        multiprocessing.forkserver._forkserver._stop()
        md.warm_up("shop_ops")
        before = md.default_registry().dispatcher.facts.registrations()
        # By spawn and in interpreters: nothing is inherited from a fork.
        importlib.import_module("odd_ops")
        differs = failure("odd_ops")
        importlib.import_module("broken_ops")
        broken = failure("broken_ops", work=sys.modules["broken_ops"].work)
        absent = failure("absent_ops")
        from shop_ops import work
        well = failure("shop_ops", work=work)
        there = md.default_registry().dispatcher.facts.registrations()[2]
        lost = [fact.name for fact in before[2] if fact not in there]
        done(early=early, differs=differs, broken=broken, absent=absent, well=well, lost=lost)
        """,
    )
    pool = {"interpreters": "BrokenInterpreterPool"}.get(kind)
    # From Python 3.14 on concurrent.futures logs what the initializer raised in an interpreter, and
    # has no words for it in its errors.
    heard = got["stderr"] if pool else ""

    def raised(case, name, *words):
        classes, text = got[case]
        assert classes[0] == (pool or name)
        for word in (name, *words) if pool else words:
            assert word in f"{classes}\n{text}\n{heard}"

    if kind == "interpreters":
        raised("early", "WarmUpError", "did not open library 'shop'")
    else:
        raised("early", "RegistryNotFoundError", "was started before process")
    if kind == "fork" or (kind == "processes" and sys.version_info < (3, 14)):
        # The children have what their parent had imported, and nothing to import.
        assert got["differs"] == ([], [1, 2, 3])
        assert got["broken"] == ([], [1, 2, 3])
    else:
        raised(
            "differs",
            "WarmUpError",
            "odd::f has another schema in the main interpreter",
            "did not define odd::more",
        )
        raised("broken", "ModuleNotFoundError", "no_such_module_anywhere")
    raised("absent", "ModuleNotFoundError", "absent_ops")
    assert got["well"] == ([], [("verify", 2), ("verify", 4), ("verify", 6)])
    assert got["lost"] == []


def test_interpreters_that_are_there_before_their_main_interpreter_imports_wait_for_it(
    folder,
) -> None:
    got = run(
        "interpreters",
        folder,
        """
        with pool("shop_ops", timeout=limit(60)) as workers:
            first = workers.submit(abs, -1)  # its worker waits in the initializer
            import shop_ops
            done(got=[first.result(), workers.submit(shop_ops.work, 3).result()])
        """,
    )
    assert got["got"] == [1, ("verify", 6)]


TWICE = """
import mdispatch as md
found = []
for modules in (["odd_ops"], ["shop_ops", "odd_ops"], "shop_ops", "odd_ops"):
    try:
        md.warm_up(modules, timeout=0.2)
        found.append("well")
    except md.errors.WarmUpError as error:
        found.append(str(error))
report(found=found)
"""


@pytest.mark.parametrize("kind", [INTERPRETERS[-1], "spawn"])
def test_a_worker_that_warms_up_twice_hears_the_same_twice(kind, folder) -> None:
    got = run_main(
        """
        kind, folder, text = args
        sys.path.insert(0, folder)
        md.warm_up(["shop_ops", "odd_ops"])
        done(**results(start(kind, text, 1, Path(folder)))[0])
        """,
        kind,
        folder,
        TWICE,
    )
    first, both, *others = got["found"]
    assert first.startswith("2 differences from the main interpreter")
    # shop_ops is no different, but of those that were imported together nobody can know.
    assert both == first
    assert others == [first, first] or others == ["well", first]


def test_a_module_that_is_mended_and_imported_again_warms_up(folder) -> None:
    text = """
import mdispatch as md, sys
try:
    md.warm_up("odd_ops", timeout=0.2)
except md.errors.WarmUpError:
    pass
del sys.modules["odd_ops"]
with open(FOLDER + "/odd_ops.py", "w") as file:
    file.write("\\nimport mdispatch as md\\nlib = md.Library('odd', 'DEF')\\n"
               "lib.define('f(int x) -> int')\\n"
               "lib.impl('f', abs, 'CompositeExplicitAutograd')\\n")
md.warm_up("odd_ops", timeout=2)
report(got=md.ops.odd.f(-3))
"""
    got = run_main(
        """
        folder, text = args
        sys.path.insert(0, folder)
        md.warm_up("odd_ops")
        done(**results(start("spawn", text, 1, Path(folder)))[0])
        """,
        folder,
        text,
    )
    assert got["got"] == 3


def test_a_module_that_is_not_found_is_told_with_the_place_where_main_has_it(folder) -> None:
    got = run_main(
        """
        folder, = args
        sys.path.insert(0, folder)
        md.warm_up("shop_ops")
        sys.path.remove(folder)
        text = '''
        import mdispatch as md
        try:
            md.warm_up("shop_ops")
        except ModuleNotFoundError as error:
            report(notes=error.__notes__)
        '''
        done(**results(start("subprocess", text, 1, Path(folder)))[0])
        """,
        folder,
    )
    (note,) = got["notes"]
    assert note.startswith(f"the main interpreter has it from {folder}/shop_ops.py; ")
    assert "warm_up(modules, sys.path)" in note


def test_a_child_that_is_to_register_says_so(folder) -> None:
    got = run_main(
        """
        import multiprocessing
        folder, = args
        sys.path.insert(0, folder)
        text = '''
        import mdispatch as md
        md.default_registry()
        report(operators=md.warm_up("shop_ops").operators, role=md.register_or_verify())
        '''
        done(**results(start("spawn", text, 1, Path(folder)))[0])
        """,
        folder,
    )
    assert (got["operators"], got["role"]) == (1, "register")


@pytest.mark.parametrize("path", ["folder", 5, [5], [None], ["a", b"b"]])
def test_what_is_no_path_is_refused_and_changes_nothing(path, registry) -> None:
    before = list(sys.path)
    with pytest.raises(md.errors.InvalidArgumentError, match=r"like sys\.path"):
        md.warm_up("json", path, registry=registry)
    assert sys.path == before


def test_the_path_comes_first_in_its_order_and_the_rest_stays(registry, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a", "/b", "/c"])
    monkeypatch.setitem(sys.modules, "there_already", sys)
    for path, expected in (
        ([], ["/a", "/b", "/c"]),
        (["/c", "/n", "/c"], ["/c", "/n", "/a", "/b"]),
        (["/c", "/n"], ["/c", "/n", "/a", "/b"]),
        (iter(["/b"]), ["/b", "/c", "/n", "/a"]),
    ):
        md.warm_up("there_already", path, registry=registry)
        assert sys.path == expected


def test_a_look_at_an_operator_stands_a_module_that_another_thread_is_importing(monkeypatch):
    begun = ModuleType("multiprocessing.process")
    monkeypatch.setitem(sys.modules, "multiprocessing.process", begun)
    assert not is_unheard()
    exec("def current_process():\n    return _current_process", begun.__dict__)
    assert not is_unheard()
