"""Calls of kernels that another interpreter of the process serves."""

from __future__ import annotations

import sys

import pytest
from kinds import INTERPRETERS, run_main

pytestmark = pytest.mark.shared

#: What each main part begins with. The kernels of "shop" are the main interpreter's alone.
SHOP = """
import threading, tempfile
kind, *rest = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
lib = md.Library("shop", "DEF")
ANY = "CompositeExplicitAutograd"
def served(schema, **options):
    def register(function):
        name = lib.define(schema)
        lib.impl(name, function, options.pop("key", ANY), serve=True, **options)
        return function
    return register
def runs(*texts):
    return results([Worker(kind, text, index, folder) for index, text in enumerate(texts)])
"""


def shop(text: str, *args: object, **options: object) -> dict:
    return run_main(SHOP + text, *args, **options)


ECHO = """
@served("echo(Any x) -> Any")
def echo(x):
    seen.append(x)
    return x
seen = []
[got] = runs('''
import mdispatch as md
values = [None, True, 0, -2**63, 1.5, "sm\\u00f8rg", b"\\\\0b", [1, ["a", [None, b""]]], (1, 2), ""]
values.append([])
with md.routing("shop"):
    report(same=[md.ops.shop.echo(each) for each in values])
''')
done(got=got["same"], seen=seen)
"""

VALUES = [None, True, 0, -(2**63), 1.5, "smørg", b"\0b", [1, ["a", [None, b""]]], [1, 2], "", []]


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_values_arrive_as_they_are_there_and_back(kind):
    got = shop(ECHO, kind)
    assert got["got"] == got["seen"] == VALUES
    assert [type(each) for each in got["got"]] == [type(each) for each in VALUES]


@pytest.mark.parametrize("way", ["c", "python"])
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_c_and_python_route_the_same_calls(kind, way):
    got = shop(
        """
@served("join(str a, int n=2, *, str end='.') -> str")
def join(a, n, end):
    return a * n + end
served("at(str a) -> str", key="CPU")(str)
[got] = runs(f'''
import mdispatch as md
from mdispatch.dispatch import call_c
call_c.turn({rest[0] == "c"})
join = md.ops.shop.join
def outcome(*args, **kwargs):
    try:
        return join(*args, **kwargs)
    except md.MdispatchError as error:
        return type(error).__name__
with md.routing("shop"):
    allowed = [outcome("x", i % 3, end="!") for i in range(4)]
    at = md.ops.shop.at.default
    both = [outcome("y"), join.default("z"), at.call_for_dispatch_key("CPU", "w")]
refused = [outcome("x", 1) for _ in range(2)]
with md.routing("other"):
    refused.append(outcome("x", 1))
md.allow_routing("shop")
report(allowed=allowed, both=both, refused=refused, for_good=outcome("q", end=""))
''')
done(**got)
""",
        kind,
        way,
    )
    assert got["allowed"] == ["!", "x!", "xx!", "!"]
    assert got["both"] == ["yy.", "zz.", "w"]
    assert got["refused"] == ["LocalKernelMissingError"] * 3
    assert got["for_good"] == "qq"


def test_what_one_side_does_not_allow_is_refused_in_the_same_words():
    got = shop(
        """
lib.define("own(int n) -> int")
lib.impl("own", lambda n: n, ANY)
served("shown(int n) -> int")(lambda n: n)
[got] = runs('''
import mdispatch as md
def words(name):
    try:
        getattr(md.ops.shop, name)(1)
    except md.MdispatchError as error:
        return str(error).replace(name, "NAME").split("registered at")[0]
outside = [words("own"), words("shown")]
with md.routing("shop"):
    report(outside=outside, inside=words("own"), answer=md.ops.shop.shown(3))
''')
done(**got)
""",
        "shared-gil",
    )
    assert got["outside"][0] == got["outside"][1] == got["inside"]
    assert "has not imported the module" in got["inside"]
    assert got["answer"] == 3


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_memory_is_shown_and_not_copied_and_an_argument_comes_back_as_itself(kind):
    got = shop(
        """
import ctypes
def address(view):
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
@served("fill(Tensor(a!) x, int with_) -> Tensor(a!)")
def fill(x, with_):
    seen.append((address(x), x.format, x.shape, x.readonly))
    x.cast("B")[:] = bytes([with_]) * x.nbytes
    return x
@served("twice(Tensor x) -> Tensor")
def twice(x):
    seen.append((x.strides, x.readonly))
    return memoryview(bytes(x) * 2).cast("B", (2, x.nbytes))
seen = []
[got] = runs('''
import array
import mdispatch as md
for cls in (array.array, bytearray, memoryview):
    md.register_type(cls, "CPU")
mine = array.array("i", [0] * 4)
at = mine.buffer_info()[0]
with md.routing("shop"):
    fill, twice = md.ops.shop.fill, md.ops.shop.twice
    same = [fill(mine, n) is mine for n in (1, 2)]
    double = twice(memoryview(b"abcdef")[::2])
    mine.append(1)  # nobody holds it
report(at=at, same=same, mine=mine.tolist(), double=double.tolist(), shape=double.shape)
''')
done(seen=seen, **got)
""",
        kind,
    )
    assert got["same"] == [True, True]
    assert got["mine"] == [0x02020202] * 4 + [1]
    assert got["seen"] == [(got["at"], "i", (4,), False)] * 2 + [((2,), True)]
    assert got["double"] == [list(b"aceace"[:3])] * 2
    assert got["shape"] == (2, 3)


def test_memory_of_a_call_is_lent_in_the_order_that_it_has():
    """The flags are CPython's: PyBUF_SIMPLE, PyBUF_STRIDES and so on (docs.python.org, Buffer
    Protocol).
    """
    got = shop(
        """
import ctypes
get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
release.argtypes = [ctypes.c_void_p]
FLAGS = {"plain": 0, "strides": 0x18, "C": 0x38, "Fortran": 0x58, "any": 0x98, "write": 0x19}
@served("told(Tensor x) -> str[]")
def told(x):
    lent, found = x.obj, []
    for name, flags in FLAGS.items():
        buffer = ctypes.create_string_buffer(128)
        try:
            get(lent, buffer, flags)
            release(buffer)
        except BufferError as error:
            found.append(f"{name}: {error}")
    return found
[got] = runs('''
import mdispatch as md
md.register_type(memoryview, "CPU")
memory = memoryview(b"abcdef")
with md.routing("shop"):
    report(whole=md.ops.shop.told(memory), half=md.ops.shop.told(memory[::2]))
''')
done(**got)
""",
        "shared-gil",
    )
    assert got["whole"] == ["write: the memory is read-only"]
    assert got["half"] == [
        "plain: the memory is not in C order",
        "C: the memory is not in C order",
        "Fortran: the memory is not in Fortran's order",
        "any: the memory is not contiguous",
        "write: the memory is read-only",
    ]


def test_memory_that_a_kernel_keeps_stays_pinned_until_it_is_dropped():
    got = shop(
        """
@served("keep(Tensor x) -> ()")
def keep(x):
    kept.append(x)
@served("drop() -> str")
def drop():
    return bytes(kept.pop()).decode()
kept = []
[got] = runs('''
import mdispatch as md
md.register_type(bytearray, "CPU")
mine = bytearray(b"still there")
errors = []
with md.routing("shop"):
    try:
        md.ops.shop.keep(mine)
    except md.errors.RoutedError as error:
        errors.append(str(error))
    try:
        mine.append(1)
    except BufferError:
        errors.append("pinned")
    there = md.ops.shop.drop()
    md.ops.shop.drop.default  # nothing is given back yet
    try:
        md.ops.shop.drop()
    except IndexError:
        pass
mine.append(1)
report(errors=errors, there=there)
''')
done(**got)
""",
        "shared-gil",
    )
    assert "has kept memory of an argument" in got["errors"][0]
    assert got["errors"][1:] == ["pinned"]
    assert got["there"] == "still there"


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_exceptions_keep_their_class_where_the_caller_has_it_and_nothing_is_imported(kind):
    got = shop(
        """
import colorsys, wave
@served("fail(str how) -> ()")
def fail(how):
    if how == "os":
        raise OSError(2, "not there", "file")
    if how == "wave":
        raise wave.Error("no caller has it")
    if how == "ours":
        raise md.errors.InvalidNameError("which", "name")
    if how == "odd":
        raise ValueError(object(), 2**70, "half \\ud800")
    if how == "exit":
        raise SystemExit(3)
    raise KeyError("key")
[got] = runs('''
import pickle, sys
import mdispatch as md
outcomes = {}
before = set(sys.modules)
with md.routing("shop"):
    for how in ("os", "wave", "ours", "odd", "key"):
        try:
            md.ops.shop.fail(how)
        except md.errors.RoutedError as error:
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is type(error) and str(again) == str(error)
            outcomes[how] = [each.__name__ for each in type(error).__mro__[1:]], repr(error.args)
            outcomes[how] += error.__notes__[0], error.operator, error.told, again.home
            if how == "os":
                outcomes["errno"] = error.errno, error.filename
            if how == "ours":
                outcomes["name"] = error.name
    try:
        md.ops.shop.fail("exit")
    except SystemExit as error:
        outcomes["exit"] = error.code, type(error).__name__
report(outcomes=outcomes, wave="wave" in set(sys.modules) - before)
''')
done(**got)
""",
        kind,
    )
    outcomes = got["outcomes"]
    assert outcomes["os"][0][0] == "RoutedError"
    assert "OSError" in outcomes["os"][0]
    assert outcomes["errno"] == (2, "file")
    assert outcomes["wave"][0][0] == "MdispatchError"
    assert "() raised wave.Error in interpreter 0 of process" in outcomes["wave"][1]
    assert ": no caller has it" in outcomes["wave"][1]
    assert outcomes["wave"][4] == "wave.Error"
    assert not got["wave"]
    assert "InvalidNameError" in outcomes["ours"][0]
    assert outcomes["name"] == "name"
    assert "<object object" in outcomes["odd"][1]
    assert str(2**70) in outcomes["odd"][1]
    assert "KeyError" in outcomes["key"][0]
    assert outcomes["exit"] == (3, "SystemExit")
    for how in ("os", "wave", "ours", "odd", "key"):
        assert ", in fail\n" in outcomes[how][2]
        assert outcomes[how][2].startswith("raised in interpreter 0 of process")
        assert outcomes[how][3] == "shop::fail"
        assert outcomes[how][5].startswith("interpreter 0 of process")


def test_what_cannot_travel_is_refused_before_the_call_or_told_after_it():
    got = shop(
        """
@served("take(Any x) -> Any")
def take(x):
    seen.append(x)
    return {1: 2} if x == "dict" else x
seen = []
[got] = runs('''
import mdispatch as md
def why(value):
    try:
        return md.ops.shop.take(value)
    except md.errors.CannotTravelError as error:
        assert isinstance(error, TypeError)
        return error.value_type
deep = [[]]
for _ in range(40):
    deep = [deep]
with md.routing("shop"):
    report(why=[why(each) for each in (object(), {}, 2**63, [1, {2}], "\\\\ud800", deep, "dict")])
''')
done(seen=seen, **got)
""",
        "shared-gil",
    )
    assert got["why"] == ["object", "dict", "int", "set", "str", "list", "dict"]
    assert got["seen"] == ["dict"]


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_the_key_set_and_the_threads_keys_go_with_the_call(kind):
    got = shop(
        """
from mdispatch.context import excluded_keys, included_keys
@served("look(Tensor x, int n) -> str", key="AutogradCPU", with_keyset=True)
def look(keys, x, n):
    return f"{[key.name for key in keys]} {included_keys().raw} {excluded_keys().raw} {n}"
before = included_keys().raw, excluded_keys().raw
[got] = runs('''
import mdispatch as md
from mdispatch.context import excluded_keys, included_keys
class Buffer(bytearray):
    __dispatch_keys__ = md.DispatchKeySet("CPU", "AutogradCPU")
sets, saw = [], []
with md.routing("shop"):
    for guards in range(3):
        with md.context.ExcludeDispatchKeyGuard("AutogradCUDA" if guards == 2 else "AutogradOther"):
            sets.append(f"{included_keys().raw} {excluded_keys().raw}")
            try:
                saw.append(md.ops.shop.look(Buffer(b"x"), guards))
            except md.MdispatchError as error:
                saw.append(type(error).__name__)
    saw.append(md.ops.shop.look(Buffer(b"x"), 9))
report(sets=sets, saw=saw)
''')
done(same=before == (included_keys().raw, excluded_keys().raw), **got)
""",
        kind,
    )
    keys = "['CPU', 'AutogradCPU']"
    assert got["saw"][0] == f"{keys} {got['sets'][0]} 0"
    assert got["saw"][1] == f"{keys} {got['sets'][1]} 1"
    assert got["saw"][2] == "MissingKernelError"  # all functionalities of a kind are excluded
    assert got["saw"][3].startswith(keys)
    assert got["same"]


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_a_call_that_comes_too_late_is_not_begun(kind):
    got = shop(
        """
served("f(int n) -> int")(lambda n: ran.append(n) or n)
ran = []
[got] = runs('''
import mdispatch as md
with md.routing("shop", timeout=0):
    try:
        md.ops.shop.f(1)
    except TimeoutError as error:
        said = type(error).__name__, error.started, error.timeout, error.operator
with md.routing("shop"):
    report(said=said, answer=md.ops.shop.f(2))
''')
done(ran=ran, **got)
""",
        kind,
    )
    assert got["said"] == ("CallTimeoutError", False, 0.0, "shop::f")
    assert got["answer"] == 2
    assert got["ran"] == [2]


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_why_says_where_a_call_goes(kind):
    got = shop(
        """
served("f() -> int")(int)
[got] = runs('''
import mdispatch as md
why = md.default_registry().why
before = why("shop::f")
with md.routing("shop"):
    report(before=before.route, owners=before.owners, within=str(why("shop::f")))
''')
here = md.default_registry().why("shop::f")
done(here=[here.route, here.owners], **got)
""",
        kind,
    )
    assert got["here"] == ["", ()]
    assert got["before"].startswith("not loaded here; interpreter 0 of process")
    [(owner, how)] = got["owners"]
    assert owner.startswith("interpreter 0 of process")
    assert how.startswith("to its process, since 2")
    assert "main.py:" in how
    *_, heading, listed, last = got["within"].split("\n")
    assert heading == "  served by, the newest first:"
    assert listed == f"    {owner}: {how}"
    assert last.startswith(
        f"  routed to {owner}, which serves it, by a visit on the caller's thread"
    )
    assert "main.py:" in last


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_the_program_s_own_thread_is_itself_in_the_main_interpreter(kind):
    got = shop(
        """
from mdispatch.pool.interpreters import create_interpreter
local = threading.local()
local.word = "mine"
@served("word() -> str")
def word():
    is_main = threading.get_ident() == threading.main_thread().ident
    return getattr(local, "word", "none") + f" {is_main}"
other = create_interpreter(own_gil=kind == "own-gil")
CALL = '''
import mdispatch as md
with md.routing("shop"):
    words = [md.ops.shop.word() for _ in range(2)]
assert words == {!r}, words
'''
CALL = textwrap.dedent(CALL)
other.exec(CALL.format(["mine True"] * 2))
thread = threading.Thread(target=other.exec, args=(CALL.format(["none False"] * 2),))
thread.start()
thread.join()
other.close()
done()
""",
        kind,
    )
    assert got["returncode"] == 0


#: Two workers: the first one serves ping, the second one pong. Both have the main interpreter's
#: registrations, and neither has the other's kernel.
PING = """
for name in ("ping", "pong"):
    lib.define(f"{name}(int n) -> int")
    lib.impl(name, lambda n: -1, ANY)
from mdispatch.pool.interpreters import create_interpreter
OWNER = '''
import sys
sys.path[:] = {path!r}
import threading
import mdispatch as md
md.allow_routing("shop")
local = threading.local()
def {mine}(n):
    local.depth = getattr(local, "depth", 0) + 1
    try:
        return (md.ops.shop.{other}(n - 1) if n else 0) + local.depth * 1000 + 1
    finally:
        local.depth -= 1
lib = md.Library("shop", "IMPL")
lib.impl("{mine}", {mine}, "CompositeExplicitAutograd", serve=True)
'''
owners = []
for mine, other in (("ping", "pong"), ("pong", "ping")):
    owner = create_interpreter(own_gil=kind == "own-gil")
    owner.exec(textwrap.dedent(OWNER).format(mine=mine, other=other, path=sys.path))
    owners.append(owner)
def close():
    for owner in owners:
        owner.close()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_calls_back_are_answered_and_calls_without_end_refused(kind):
    got = shop(
        "import sys\n"
        + PING
        + """
[got] = runs('''
import mdispatch as md
md.allow_routing("shop")
answers = [md.ops.shop.ping(n) for n in (0, 1, 5, 5)]
try:
    md.ops.shop.ping(1000)
except md.errors.RoutingCycleError as error:
    said = error.chain, str(error)
    assert isinstance(error, RecursionError)
report(answers=answers, said=said, again=md.ops.shop.ping(3))
''')
close()
done(owners=[owner.id for owner in owners], **got)
""",
        kind,
    )
    # In a call back the thread is the one that it was: its threading.local counts on.
    assert got["answers"] == [1001, 2002, 12006, 12006]
    assert got["again"] == 6004
    chain, text = got["said"]
    assert set(chain[1:]) == set(got["owners"])
    assert len(chain) == 34
    assert "32 routed calls inside one another" in text


@pytest.mark.thorough
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_two_threads_that_call_from_each_other_s_owner_wait_in_no_circle(kind):
    got = shop(
        "import sys\n"
        + PING
        + """
CROSS = '''
import os
def cross_{mine}(arrive, wait):
    os.write(arrive, b"x")
    os.read(wait, 1)
    return md.ops.shop.{other}(1)  # the other thread is in there now, and comes here
lib.impl("cross_{mine}", cross_{mine}, "CompositeExplicitAutograd", serve=True)
'''
for owner, mine, other in zip(owners, ("ping", "pong"), ("pong", "ping")):
    lib.define(f"cross_{mine}(int arrive, int wait) -> int")
    lib.impl(f"cross_{mine}", lambda arrive, wait: -1, ANY)
    owner.exec(textwrap.dedent(CROSS).format(mine=mine, other=other))
(mine, say_mine), (its, say_its) = os.pipe(), os.pipe()
got = runs(*(f'''
import mdispatch as md
md.allow_routing("shop")
report(got=md.ops.shop.cross_{name}({arrive}, {wait}))
''' for name, arrive, wait in (("ping", say_mine, its), ("pong", say_its, mine))))
close()
done(got=[each["got"] for each in got])
""",
        kind,
    )
    assert got["got"] == [2002, 2002]


def owner_script(body: str) -> str:
    """Main parts with one owner, a sub-interpreter that serves shop::f, and a worker that calls."""
    return (
        """
from mdispatch.pool.interpreters import create_interpreter
lib.define("f(int n) -> int")
lib.impl("f", lambda n: -1, ANY)
import sys
(inside, say_inside), (go, say_go) = os.pipe(), os.pipe()
OWNER = f'''
import sys
sys.path[:] = {sys.path!r}
import os
import mdispatch as md
def f(n):
    if n == 1:
        os.write({say_inside}, b"x")
        os.read({go}, 1)
    return n * 10
lib = md.Library("shop", "IMPL")
lib.impl("f", f, {ANY!r}, serve=True)
'''
owner = create_interpreter(own_gil=kind == "own-gil")
owner.exec(textwrap.dedent(OWNER))
"""
        + body
    )


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_owner_that_has_ended_serves_no_more(kind):
    got = shop(
        owner_script(
            """
CALLER = f'''
import os
import mdispatch as md
def outcome():
    try:
        return md.ops.shop.f(2)
    except md.MdispatchError as error:
        return type(error).__name__
with md.routing("shop"):
    first = outcome()
    arrived(1)
    os.read({go}, 1)
    second = outcome()
    arrived(2)
    os.read({go}, 1)
    report(outcomes=[first, second, outcome()])
'''
workers = [Worker(kind, CALLER, 0, folder)]
until_arrived(workers, 1)
# Its facts stay.
owner.exec("from mdispatch.facts.native import c_kernels; c_kernels.visit_close()")
os.write(say_go, b"x")
until_arrived(workers, 2)
owner.close()
os.write(say_go, b"x")
[got] = results(workers)
done(**got)
"""
        ),
        kind,
    )
    assert got["outcomes"] == [20, "OwnerGoneError", "LocalKernelMissingError"]


@pytest.mark.skipif(
    sys.version_info < (3, 13), reason="CPython before 3.13 ends no interpreter with two threads"
)
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_owner_that_ends_waits_for_the_call_that_is_inside_and_refuses_others(kind):
    got = shop(
        owner_script(
            """
CALL = '''
import mdispatch as md
try:
    with md.routing("shop"):
        report(outcome=md.ops.shop.f({}))
except md.errors.OwnerGoneError as error:
    report(outcome=type(error).__name__, is_answered=False)
'''
first = Worker(kind, CALL.format(1), 0, folder)
os.read(inside, 1)
ending = threading.Thread(target=owner.close)
ending.start()
# Until the owner refuses: another caller finds out.
for index in range(1, 1000):
    [other] = results([Worker(kind, CALL.format(2), index, folder)])
    if other["outcome"] != 20:
        break
is_waiting = ending.is_alive()
os.write(say_go, b"x")
[got] = results([first])
ending.join(limit(60))
done(first=got["outcome"], other=other["outcome"], is_waiting=is_waiting,
     has_ended=not ending.is_alive())
"""
        ),
        kind,
    )
    assert got["other"] == "OwnerGoneError"
    assert got["first"] == 10
    assert got["is_waiting"]
    assert got["has_ended"]


@pytest.mark.skipif(
    sys.version_info < (3, 13), reason="CPython before 3.13 ends no interpreter with two threads"
)
@pytest.mark.parametrize("last", ["main", "thread", "ended thread"])
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_a_process_ends_that_has_left_an_owner_which_its_threads_have_visited(kind, last):
    got = shop(
        """
import pickle, sys, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of interpreters that were left
owner = md.create_interpreter(own_gil=kind == "own-gil")
out, say = os.pipe()
OWNER = f'''
import sys
sys.path[:] = {sys.path!r}
import os, pickle
import mdispatch as md
class Box:
    def value(self):
        return 3
handle = md.share(Box())
os.write({say}, pickle.dumps(handle))
'''
owner.exec(textwrap.dedent(OWNER))
handle = pickle.loads(os.read(out, 65536))
visited, end = threading.Event(), threading.Event()
def visit():
    handle.value()
    visited.set()
    end.wait()
def in_thread():
    thread = threading.Thread(target=visit, daemon=True)  # it is there when the process ends
    thread.start()
    visited.wait()
    if rest[0] == "ended thread":
        end.set()
        thread.join()
sys.kept = owner  # newer Pythons end an interpreter that nobody has any more
for each in (handle.value, in_thread)[:: -1 if rest[0] == "main" else 1]:
    each()
done(value=handle.value())
""",
        kind,
        last,
    )
    assert (got["value"], got["returncode"]) == (3, 0)


@pytest.mark.skipif(
    sys.version_info < (3, 13), reason="CPython before 3.13 ends no interpreter with two threads"
)
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_a_process_ends_that_has_left_an_owner_while_a_thread_is_inside(kind):
    got = shop(
        """
import pickle, sys, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of interpreters that were left
owner = md.create_interpreter(own_gil=kind == "own-gil")
(out, say), (inside, say_inside), (go, say_go) = os.pipe(), os.pipe(), os.pipe()
OWNER = f'''
import sys
sys.path[:] = {sys.path!r}
import os, pickle
import mdispatch as md
class Box:
    def wait(self):
        os.write({say_inside}, b"x")
        os.read({go}, 1)
handle = md.share(Box())
os.write({say}, pickle.dumps(handle))
'''
owner.exec(textwrap.dedent(OWNER))
handle = pickle.loads(os.read(out, 65536))
threading.Thread(target=handle.wait, daemon=True).start()
os.read(inside, 1)
# The owner, at its end, waits for the call. Another process ends that.
import subprocess
closed, say_closed = os.pipe()
# It reads until the process that ends has closed the pipe: the first that its atexit does.
code = f"import os; os.read({closed}, 1); os.write({say_go}, b'x')"
subprocess.Popen([sys.executable, "-c", code], pass_fds=(closed, say_go))
import atexit
atexit.register(os.close, say_closed)
sys.kept = owner  # newer Pythons end an interpreter that nobody has any more
done()
""",
        kind,
    )
    assert got["returncode"] == 0


@pytest.mark.alone
@pytest.mark.thorough
def test_threads_that_end_leave_no_state_with_the_owner():
    got = shop(
        """
import ctypes
api = ctypes.pythonapi
for name in ("PyInterpreterState_Main", "PyInterpreterState_ThreadHead", "PyThreadState_Next"):
    getattr(api, name).restype = ctypes.c_void_p
def states():
    main = ctypes.c_void_p(api.PyInterpreterState_Main())
    found, state = 0, api.PyInterpreterState_ThreadHead(main)
    while state:
        found, state = found + 1, api.PyThreadState_Next(ctypes.c_void_p(state))
    return found
served("f(int n) -> int")(lambda n: n)
runs(*['''
import mdispatch as md
import threading
def call():
    with md.routing("shop"):
        md.ops.shop.f(1)
for _ in range(20):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
report()
'''] * 10)
done(states=states())
""",
        "shared-gil",
    )
    assert got["states"] <= 4  # the program's own, and those of the threads that ended last


@pytest.mark.thorough
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_calls_leave_nothing_behind(kind):
    got = shop(
        """
@served("f(Any x, *, str how='') -> Any")
def f(x, how):
    if how == "raise":
        raise ValueError(x)
    return {1: 2} if how == "dict" else x
CALLER = '''
import gc, sys
import mdispatch as md
def blocks():
    gc.collect()
    return sys.getallocatedblocks()
values = [1, 2**40, "text" * 9, b"bytes" * 9, [1.5, ["x" * 99]], bytearray(99)]
values.append(memoryview(b"abc")[::2])
f = md.ops.shop.f
def lap():
    for value in values:
        f(value, how="")
        for how in ("raise", "dict"):
            try:
                f(value, how=how)
            except md.errors.RoutedError:
                pass
        try:
            f([value, {}])
        except md.errors.CannotTravelError:
            pass
with md.routing("shop"):
    for _ in range(30):
        lap()
    more = []
    for _ in range(3):
        before = blocks()
        for _ in range(100):
            lap()
        more.append(blocks() - before)
    report(more=min(more))
'''
[got] = runs(CALLER)
done(**got)
""",
        kind,
    )
    # Of 2,800 calls, on both sides: the count is the process's. A table of CPython's may grow once.
    assert got["more"] < 50


def test_kernels_that_are_in_every_interpreter_are_not_served(registry, lib):
    import mdispatch as md

    lib.define("g(int n) -> int")
    with pytest.raises(md.errors.InvalidArgumentError, match="cannot be served"):
        lib.impl("g", md.fallthrough_kernel, "CPU", serve=True)
    for wrong in ((), ("",), (3,)):
        with pytest.raises(md.errors.InvalidArgumentError, match="allowed for namespaces"):
            md.routing(*wrong)
        with pytest.raises(md.errors.InvalidArgumentError, match="allowed for namespaces"):
            md.allow_routing(*wrong)


def test_an_offer_ends_with_its_kernel(registry, lib):
    lib.define("g(int n) -> int")
    lib.impl("g", lambda n: n, "CompositeExplicitAutograd", serve=True)
    notes = [fact for fact in registry.dispatcher.facts.registrations("s::g")[2] if fact.kind == 17]
    assert len(notes) == 1
    lib.close()
    assert not registry.dispatcher.facts.registrations("s::g")[2]


@pytest.mark.parametrize("chosen", [None, 0.002])
def test_who_serves_gives_its_gil_away_sooner_unless_the_program_has_chosen(chosen):
    got = shop(
        """
if rest[0]:
    sys.setswitchinterval(rest[0])
before = sys.getswitchinterval()
library = md.Library("quiet", "DEF")
library.define("f(int n) -> int")
library.impl("f", abs, ANY)
unserved = sys.getswitchinterval()
served("f(int n) -> int")(abs)
done(before=before, unserved=unserved, serving=sys.getswitchinterval())
""",
        INTERPRETERS[-1],
        chosen,
    )
    usual = chosen or 0.005
    assert (got["before"], got["unserved"]) == (usual, usual)
    assert got["serving"] == (chosen or 0.0005)


@pytest.mark.needs("providers")
@pytest.mark.parametrize("kind", [*INTERPRETERS, "spawn"])
def test_the_provider_that_a_priority_asks_for_serves_whatever_its_kernel_is_called(kind):
    got = shop(
        """
lib.define("which() -> str")
for each in ("left", "right"):
    lib.impl("which", lambda each=each: each, provider=each, serve="host")
asks = '''
import mdispatch as md
with md.routing("shop"):
    report(said=md.ops.shop.which())
'''
said = []
for first in ("left", "right", "left"):
    order = [first, {"left": "right", "right": "left"}[first]]
    with md.set_priority("shop::*", order):
        [got] = results(start(kind, textwrap.dedent(asks), 1, folder))
        said.append(got["said"])
done(said=said)
""",
        kind,
    )
    assert got["said"] == ["left", "right", "left"]
