"""Operators travel by their names: pickles and copies of them, in every kind of worker."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest
from kinds import run_main
from places import PLACES, run_at
from runs import in_another_run

import mdispatch as md
from mdispatch import errors

GEO = """
import mdispatch as md
from mdispatch import Tensor

lib = md.Library("geo", "DEF")
lib.define("twice(int x) -> int")
lib.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
lib.define("twice.float(float x) -> float")
lib.impl("twice.float", lambda x: 2 * x, "CompositeExplicitAutograd")

@md.custom_op("geo::thrice", mutates_args=())
def thrice(x: int) -> int:
    return 3 * x

def _fourfold(x: int) -> int:
    return 4 * x

fourfold = md.custom_op("geo::fourfold", _fourfold, mutates_args=())

def call(what, x):
    \"\"\"A call of what came as an argument: by its name, of a namespace or of all.\"\"\"
    return getattr(getattr(what, "geo", what), "twice")(x)
"""

POOLS = {
    "processes": "ProcessPoolExecutor(1, multiprocessing.get_context('spawn'))",
    "fork": "ProcessPoolExecutor(1, multiprocessing.get_context('fork'))",
    "forkserver": "ProcessPoolExecutor(1, multiprocessing.get_context('forkserver'))",
    # From 3.14 on a new interpreter does not have this one's sys.path.
    "interpreters": "md.InterpreterPool(1, initializer=md.initializer('geo'))",
    "threads": "ThreadPoolExecutor(1)",
}

PRELUDE = """
    import multiprocessing, pickle
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    folder, expression = args
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "geo.py").write_text(GEO)
    return str(tmp_path)


def test_every_kind_of_thing_with_a_name_is_copied_as_itself(registry, lib):
    lib.define("f(int x) -> int")
    made = md.custom_op("s::g", mutates_args=(), registry=registry)(_annotated)
    ops = registry.ops
    for each in (ops, ops.s, ops.s.f, ops.s.f.default, made, md.ops, md.ops.higher_order):
        assert copy.copy(each) is copy.deepcopy(each) is copy.deepcopy([each])[0] is each


def _annotated(x: int) -> int:
    return x


@pytest.mark.parametrize("place", PLACES)
def test_all_of_them_are_pickled_by_their_name(place, tmp_path):
    body = """
    import pickle, mdispatch as md, geo
    def back(value):
        return pickle.loads(pickle.dumps(value))
    packet = back(md.ops.geo.twice)
    result = {
        "packet": (packet.overloads(), packet(2), packet(1.5)),
        "overload": back(md.ops.geo.twice.float) == md.ops.geo.twice.float,
        "namespace": back(md.ops.geo) is md.ops.geo,
        "ops": back(md.ops) is md.ops,
        "of registry": back(md.default_registry().ops) is md.default_registry().ops,
        "custom": back(geo.thrice) is geo.thrice,
        "under another name": back(geo.fourfold) == geo.fourfold.operator,
        "with protocol 0": pickle.loads(pickle.dumps(md.ops.geo.twice, 0)).overloads(),
        "in Python": pickle._loads(pickle._dumps(geo.thrice)) is geo.thrice,
    }
    """
    # The module has the name under which it is pickled.
    (tmp_path / "geo.py").write_text(GEO)
    found = run_at(place, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport geo", body,
                   tmp_path)  # fmt: skip
    assert found.pop("packet") == (["default", "float"], 4, 3.0)
    assert found.pop("with protocol 0") == ["default", "float"]
    assert set(found.values()) == {True}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.shared
def test_an_operator_is_the_job_or_an_argument_in_every_kind_of_pool(kind, folder):
    main = """
    import geo
    with eval(expression) as pool:
        # The worker imports the module for the first of them; the others are looked up.
        jobs = [geo.thrice, geo.fourfold, md.ops.geo.twice, md.ops.geo.twice.default]
        done(
            ran=[pool.submit(job, 5).result() for job in jobs],
            overload=pool.submit(md.ops.geo.twice, 2.5).result(),
            arguments=[
                pool.submit(geo.call, what, 5).result() for what in (md.ops, md.ops.geo)
            ],
            came_back=pool.submit(getattr, md.ops.geo, "twice").result().overloads(),
        )
    """
    found = run_main(PRELUDE + main, folder, POOLS[kind])
    assert found["ran"] == [15, 20, 10, 10]
    assert found["overload"] == 5.0
    assert found["arguments"] == [10, 10]
    assert found["came_back"] == ["default", "float"]


@pytest.mark.waits
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_map_of_an_operator_in_a_pool_of_multiprocessing(method, folder):
    main = """
    import geo
    with multiprocessing.get_context(expression).Pool(1) as pool:
        done(ran=pool.map(geo.thrice, range(4)) + pool.map(md.ops.geo.twice, range(4)))
    """
    assert run_main(PRELUDE + main, folder, method)["ran"] == [0, 3, 6, 9, 0, 2, 4, 6]


def test_cloudpickle_takes_functions_that_use_operators(folder):
    pytest.importorskip("cloudpickle")
    main = """
    import cloudpickle, geo, subprocess
    from mdispatch import ops
    def job(x, twice=ops.geo.twice):
        return twice(x) + ops.geo.twice(x) + geo.thrice(x)
    text = cloudpickle.dumps((job, geo.thrice, geo.fourfold, ops.geo))
    script = (
        "import cloudpickle, sys\\n"
        "job, thrice, fourfold, namespace = cloudpickle.load(sys.stdin.buffer)\\n"
        "print(job(1), thrice(1), fourfold(1), namespace.twice(1))"
    )
    ran = subprocess.run([sys.executable, "-c", script], input=text, capture_output=True)
    done(ran=ran.stdout.decode().split(), heard=ran.stderr.decode())
    """
    assert run_main(PRELUDE + main, folder, "")["ran"] == ["7", "3", "4", "2"]


# --- where it cannot be had -----------------------------------------------------------------------


def test_an_operator_with_another_schema_here_is_told_with_both_places(tmp_path):
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    text = 'import mdispatch as md\nlib = md.Library("old", "DEF")\n'
    one.write_text(text + 'lib.define("f(int x, int by=2) -> int")')
    two.write_text(text + '\nlib.define("f(int x, int by=3) -> int")')
    write = """
    import pickle
    sys.path.insert(0, args[0])
    import one
    for name, what in (("packet", md.ops.old.f), ("operator", md.ops.old.f.default)):
        open(args[0] + "/" + name, "wb").write(pickle.dumps(what))
    done()
    """
    read = """
    import pickle
    sys.path.insert(0, args[0])
    import two
    told = []
    for name in ("packet", "operator"):
        op = pickle.load(open(args[0] + "/" + name, "rb"))
        for use in (lambda: op(1), lambda: op.schema, lambda: pickle.loads(pickle.dumps(op))(1)):
            try:
                use()
            except md.errors.SchemaMismatchError as error:
                told.append((error.name, error.here, error.there, error.schema_here,
                             error.schema_there, str(error)))
        assert "another schema" in repr(op)
    done(told=told)
    """
    run_main(write, str(tmp_path))
    told = run_main(read, str(tmp_path))["told"]
    assert len(told) == 6
    for name, here, there, schema_here, schema_there, text in told:
        assert (name, here, there) == ("old::f", f"{two}:4", f"{one}:3")
        assert schema_here.endswith("by=3) -> int")
        assert schema_there.endswith("by=2) -> int")
        assert here in text
        assert there in text


def test_an_operator_with_other_tags_here_is_told_and_the_same_text_is_no_change(monkeypatch):
    with md.Registry.local() as registry:
        monkeypatch.setattr("mdispatch.registry.registry.default", registry)

        def defined(tags):
            lib = in_another_run(lambda: md.Library("old", "DEF", registry=registry))()
            lib.impl(lib.define("f(int x) -> int", tags=tags), lambda x: x)

        defined("core")
        texts = [pickle.dumps(each) for each in (registry.ops.old.f, registry.ops.old.f.default)]
        defined("core")
        assert [pickle.loads(text)(3) for text in texts] == [3, 3]
        defined("pointwise")
        for text in texts:
            with pytest.raises(errors.SchemaMismatchError, match="pointwise here, core there"):
                pickle.loads(text)(3)


def test_a_pool_of_multiprocessing_does_not_hang_for_an_operator_that_its_workers_lack(folder):
    """Its worker is older than the registry, so it has one of its own, without the operator. An
    error in a load would end the worker, and Pool would wait for the lost task for ever.
    """
    main = """
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(md.is_main_interpreter)  # it has made a registry of its own
        import geo
        try:
            pool.apply_async(md.ops.geo.twice, (1,)).get(limit(60))
        except md.errors.MdispatchError as error:
            done(told=type(error).__name__, text=str(error))
    """
    found = run_main(PRELUDE + main, folder, "")
    assert found["told"] == "OperatorNotFoundError"
    assert "geo::twice" in found["text"]


def test_what_has_ended_is_not_pickled_and_its_pickle_says_so(monkeypatch, registry, lib):
    lib.define("f(int x) -> int")
    packet, operator = registry.ops.s.f, registry.ops.s.f.default
    lib.close()
    for each in (packet, operator):
        with pytest.raises(errors.OperatorGoneError):
            pickle.dumps(each)


def test_what_is_of_another_registry_or_is_one_does_not_travel(registry, lib):
    lib.define("f(int x) -> int")
    for each in (registry.ops, registry.ops.s, registry.ops.s.f, registry.ops.s.f.default):
        with pytest.raises(TypeError, match="send its name"):
            pickle.dumps(each)
    with pytest.raises(TypeError, match="send its address"):
        pickle.dumps(registry)


# --- a namespace agrees with what is registered ---------------------------------------------------


def test_an_operator_that_ended_is_gone_from_its_namespace(registry, lib):
    lib.define("stays(int x) -> int")
    fragment = md.Library("s", "FRAGMENT", registry=registry)
    fragment.define("ends(int x) -> int")
    fragment.define("ends.other(float x) -> float")
    ns = registry.ops.s
    packet = ns.ends
    assert (hasattr(ns, "ends"), dir(ns)) == (True, ["ends", "stays"])
    fragment.close()
    assert (hasattr(ns, "ends"), hasattr(ns, "stays"), dir(ns)) == (False, True, ["stays"])
    with pytest.raises(errors.OperatorNotFoundError, match="s::ends"):
        ns.ends  # noqa: B018
    assert "ends" not in vars(ns)
    md.Library("s", "FRAGMENT", registry=registry).define("ends(int x) -> int")
    assert dir(ns) == ["ends", "stays"]
    assert ns.ends.overloads() == packet.overloads() == ["default"]


def test_it_is_gone_also_after_calls_and_for_one_of_several_overloads(registry, lib):
    fragment = md.Library("s", "FRAGMENT", registry=registry)
    fragment.define("f.a(int x) -> int")
    lib.define("f(int x) -> int")
    for overload in ("f", "f.a"):
        (lib if overload == "f" else fragment).impl(overload, lambda x: x)
    ns = registry.ops.s
    assert [ns.f(1) for _ in range(3)] == [1, 1, 1]
    assert hasattr(ns.f, "a")
    fragment.close()
    assert ns.f(1) == 1
    assert not hasattr(ns.f, "a")
    lib.close()
    assert not hasattr(ns, "f")


@pytest.mark.parametrize("place", [place for place in PLACES if place != "main"])
def test_it_is_gone_in_a_worker_when_the_main_interpreter_ends_it(place, tmp_path):
    module = """
    import mdispatch as md
    lib = md.Library("gone", "DEF")
    lib.define("f(int x) -> int")
    lib.impl("f", lambda x: x, "CompositeExplicitAutograd")
    """
    main = """
    place, folder = args
    sys.path.insert(0, folder)
    import gone
    text = '''
import gone, mdispatch as md, time
before = (hasattr(md.ops.gone, "f"), md.ops.gone.f(1), dir(md.ops.gone))
arrived(0)
gone.lib.close()
md.Library("after", "FRAGMENT", timeout=limit(60)).define("done() -> ()")
report(before=before, after=(hasattr(md.ops.gone, "f"), dir(md.ops.gone)))
'''
    worker = start(place, text, 1, Path(folder))
    until_arrived(worker, 0)
    gone.lib.close()
    md.Library("after", "FRAGMENT").define("done() -> ()")
    done(**results(worker)[0])
    """
    (tmp_path / "gone.py").write_text(module.replace("\n    ", "\n"))
    found = run_main(main, place, str(tmp_path))
    assert found["before"] == (True, 1, ["f"])
    assert found["after"] == (False, [])


def test_a_name_that_cannot_be_had_by_attribute_is_not_in_dir(registry, lib):
    lib.define("__odd(int x) -> int")
    assert dir(registry.ops.s) == []
    assert not hasattr(registry.ops.s, "__odd")
    assert registry.ops.find("s::__odd").name == "s::__odd"


def test_a_look_up_of_an_attribute_gives_the_same_packet_and_keeps_no_reference(registry, lib):
    lib.define("f(int x) -> int")
    lib.impl("f", lambda x: x)
    ns = registry.ops.s
    found = [ns.f for _ in range(3)]
    assert found[0] is found[1] is found[2]
    ns.f(1)  # the first call makes what later ones use
    before = sys.getrefcount(found[0])
    for _ in range(100):
        ns.f(1)
    after = sys.getrefcount(found[0])
    assert after == before
