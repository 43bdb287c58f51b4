"""Calls of kernels that another process serves."""

from __future__ import annotations

import sys

import pytest
from kinds import PROCESSES, run_main

import mdispatch as md
from mdispatch.across.routing import error_of
from mdispatch.across.transports.transport import RAISED
from mdispatch.dispatch.context.homes import here

pytestmark = pytest.mark.shared

#: What each main part begins with. Its process serves the kernels of "shop"; workers that are to
#: have none are forked before.
SHOP = """
import threading, tempfile
kind, *rest = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
lib = md.Library("shop", "DEF")
ANY = "CompositeExplicitAutograd"
def served(schema, **options):
    def register(function):
        name = lib.define(schema)
        lib.impl(name, function, options.pop("key", ANY), serve="host", **options)
        return function
    return register
BEGIN = '''
import os
import mdispatch as md
md.wait_for_def("shop::ready", timeout=limit(60.0))
'''
def begin(text):
    return Worker(kind, textwrap.dedent(BEGIN) + textwrap.dedent(text), 0, folder)
def end(worker):
    lib.define("ready() -> ()")
    return results([worker])[0]
"""


def shop(text: str, *args: object, **options: object) -> dict:
    return run_main(SHOP + text, *args, **options)


VALUES = [None, True, 0, -(2**63), 1.5, "smørg", b"\0b", [1, ["a", [None, b""]]], [1, 2], "", []]


@pytest.mark.parametrize("kind", PROCESSES)
def test_values_arrive_as_they_are_there_and_back(kind):
    got = shop(
        """
worker = begin('''
values = [None, True, 0, -2**63, 1.5, "sm\\u00f8rg", b"\\\\0b", [1, ["a", [None, b""]]], (1, 2), ""]
values += [[], "x" * 100_000, b"y" * 3_000_000]
try:
    md.ops.shop.echo(1)
except md.errors.LocalKernelMissingError as error:
    refused = type(error).__name__
with md.routing("shop", timeout=limit(60.0)):
    *same, long, longer = [md.ops.shop.echo(each) for each in values]
    named = md.ops.shop.last(3, end=4)
    why = md.default_registry().why("shop::echo").route
report(same=same, refused=refused, named=named, why=why, size=[len(long), len(longer)])
''')
@served("echo(Any x) -> Any")
def echo(x):
    seen.append(x)
    return x
@served("last(int x, *, int end=0) -> int[]")
def last(x, end):
    return [x, end, os.getpid()]
seen = []
got = end(worker)
done(**got, seen=seen[:11], pid=os.getpid())
""",
        kind,
    )
    assert got["same"] == got["seen"] == VALUES
    assert [type(each) for each in got["same"]] == [type(each) for each in VALUES]
    assert got["size"] == [100_000, 3_000_000]
    assert got["refused"] == "LocalKernelMissingError"
    assert got["named"] == [3, 4, got["pid"]]
    assert f"routed to interpreter 0 of process {got['pid']}, which serves it" in got["why"]


def test_what_is_served_within_its_process_is_not_served_to_others():
    got = shop(
        """
worker = begin('''
from mdispatch.across.transports import transport_named
from mdispatch.across.offers import offer_of
facts = md.default_registry().dispatcher.facts
def ticket(name):
    return next(o for o in map(offer_of, facts.registrations(name)[2]) if o)
def call(ticket, address):
    return transport_named("host").call(address, [ticket, 0, [], [], [], []], (), 0)[0]
with md.routing("shop"):
    try:
        md.ops.shop.near()
    except md.errors.LocalKernelMissingError:
        report(here=call(ticket("shop::last").ticket, ticket("shop::last").address),
               near=call(ticket("shop::near").ticket, ticket("shop::last").address))
''')
lib.define("near() -> int")
lib.impl("near", lambda: 1, ANY, serve=True)
served("last() -> int")(lambda: 2)
done(**end(worker))
""",
        "subprocess",
    )
    assert got["here"] == 0
    assert got["near"] == 3  # NO_KERNEL: whoever guesses its number gets nothing


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_memory_comes_back_where_the_schema_says_that_it_is_written(size):
    got = shop(
        """
@served("fill(Tensor(a!) x, int with_) -> Tensor(a!)", key="CPU")
def fill(x, with_):
    x.cast("B")[:] = bytes([with_]) * x.nbytes
    return x
@served("fill_all(Tensor(a!)[] them, Tensor left) -> int", key="CPU")
def fill_all(them, left):
    for each in them:
        each.cast("B")[:] = b"z" * each.nbytes
    return sum(left.cast("B")) + 1000 * left.readonly
@served("half(Tensor x) -> Tensor", key="CPU")
def half(x):
    return x[::2]
@served("keep(Tensor x) -> int", key="CPU")
def keep(x):
    kept.append(x)
    return len(kept)
served("last() -> int")(lambda: sum(each.nbytes for each in kept))
kept = []
worker = begin(f'''
SIZE = {rest[0]}
import array
for cls in (array.array, bytearray, memoryview):
    md.register_type(cls, "CPU")
mine, other = array.array("i", [0] * (SIZE // 4)), bytearray(SIZE)
with md.routing("shop", timeout=limit(60.0)):
    shop = md.ops.shop
    same = [shop.fill(mine, n) is mine for n in (1, 2)]
    filled = set(mine)
    left = shop.fill_all([other, mine[:2]], bytearray(b"ab"))
    halves = shop.half(memoryview(mine))
    halves[0] = 7  # its own memory
    try:
        shop.keep(mine)
    except md.errors.RoutedError as error:
        told = str(error)
    shop.fill(mine, 3)
    kept = shop.last()
    nothing = shop.half(memoryview(b"")).nbytes
mine.append(1)  # nobody holds it
other.append(1)
report(same=same, filled=filled, left=left, other=set(other), halves=halves.tolist()[:2],
       length=len(halves), told=told, mine=set(mine), kept=kept, nothing=nothing)
''')
got = end(worker)
done(first=[kept[0].tolist()[0]], **got)
""",
        "subprocess",
        size,
    )
    assert got["same"] == [True, True]
    assert got["filled"] == {0x02020202}
    assert got["left"] == 97 + 98 + 1000
    assert got["other"] == {ord("z"), 1}
    assert got["halves"] == [7, 0x02020202][: size // 8]
    assert got["length"] == size // 8
    assert "has kept memory of an argument, which is its own for the time" in got["told"]
    assert got["first"] == [0x02020202]  # and no later call has written over it
    assert got["mine"] == {0x03030303, 1}
    assert got["kept"] == size
    assert got["nothing"] == 0


@pytest.mark.parametrize("size", [16, 1 << 17])
def test_memory_comes_back_from_kernels_that_get_the_key_set_too(size):
    got = shop(
        """
@served("fill(Tensor left, Tensor(a!) x, *, Tensor(b!) y) -> str", key="CPU", with_keyset=True)
def fill(keys, left, x, y):
    for each, with_ in ((x, b"x"), (y, b"y")):
        each[:] = with_ * each.nbytes
    return f"{left.readonly} {x.readonly} {y.readonly} {'CPU' in str(keys)}"
served("last() -> int")(lambda: 1)
worker = begin(f'''
md.register_type(bytearray, "CPU")
left, x, y = (bytearray({rest[0]}) for _ in range(3))
with md.routing("shop", timeout=limit(60.0)):
    told = md.ops.shop.fill(left, x, y=y)
report(told=told, held=[set(each) for each in (left, x, y)])
''')
done(**end(worker))
""",
        "subprocess",
        size,
    )
    assert got["told"] == "True False False True"
    assert got["held"] == [{0}, {ord("x")}, {ord("y")}]


def test_a_kernel_that_has_ended_is_served_to_nobody_whose_plan_is_older():
    got = shop(
        """
worker = begin('''
from mdispatch.across.transports import transport_named
from mdispatch.across.offers import offer_of
facts = md.default_registry().dispatcher.facts
offer = next(o for o in map(offer_of, facts.registrations("shop::f")[2]) if o)
def call(ticket):
    values = [0, 0, []] if ticket < 0 else []
    return transport_named("host").call(offer.address, [ticket, 0, [], values, [], []], (), 0)[:2]
before = [call(offer.ticket), call(-offer.ticket)]
with md.routing("shop", timeout=limit(60.0)):
    md.ops.shop.end_it()
report(before=before, after=[call(offer.ticket), call(-offer.ticket)])
''')
lib.define("f() -> int")
other = md.Library("shop", "IMPL")
other.impl("f", lambda: 5, ANY, serve="host")
served("end_it() -> ()")(other.close)
done(**end(worker))
""",
        "subprocess",
    )
    assert got["before"] == [(0, 5)] * 2
    assert got["after"] == [(3, None)] * 2  # NO_KERNEL


def test_exceptions_keep_their_class_and_nothing_is_imported():
    got = shop(
        """
import wave
@served("last(str how) -> Any")
def fail(how):
    if how == "os":
        raise OSError(2, "not there", "file")
    if how == "wave":
        raise wave.Error("no caller has it")
    if how == "odd":
        raise ValueError(object(), 2**70, memoryview(b"x"))
    if how == "exit":
        raise SystemExit(3)
    return {1: 2}
worker = begin('''
import pickle, sys
outcomes = {}
before = set(sys.modules)
with md.routing("shop"):
    for how in ("os", "wave", "odd", "dict"):
        try:
            md.ops.shop.last(how)
        except md.errors.RoutedError as error:
            again = pickle.loads(pickle.dumps(error))
            assert type(again) is type(error) and str(again) == str(error)
            outcomes[how] = [each.__name__ for each in type(error).__mro__[1:]], repr(error.args)
            outcomes[how] += "".join(getattr(error, "__notes__", [])), error.pid, error.told
    try:
        md.ops.shop.last("exit")
    except SystemExit as error:
        outcomes["exit"] = error.code, type(error).__name__
    try:
        md.ops.shop.last({})
    except md.MdispatchError as error:
        outcomes["here"] = type(error).__name__
report(outcomes=outcomes, wave="wave" in set(sys.modules) - before)
''')
done(pid=os.getpid(), **end(worker))
""",
        "subprocess",
    )
    outcomes = got["outcomes"]
    assert "OSError" in outcomes["os"][0]
    assert outcomes["wave"][0][0] == "MdispatchError"
    assert outcomes["wave"][4] == "wave.Error"
    assert not got["wave"]
    assert "ValueError" in outcomes["odd"][0]
    assert str(2**70) in outcomes["odd"][1]
    assert outcomes["exit"] == (3, "SystemExit")
    assert "TypeError" in outcomes["dict"][0]  # CannotTravelError, for the result
    for how in ("os", "wave", "odd"):
        assert ", in fail\n" in outcomes[how][2]
        assert "serving.py" not in outcomes[how][2]
        assert outcomes[how][3] == got["pid"]


def test_a_caller_hears_of_exceptions_whose_own_code_raises_whatever_it_raises():
    got = shop(
        """
import sys
class Odd(Exception):
    pass
def spoilt(name, raised):
    def fail(*args):
        raise raised
    return type(f"Odd{name}", (Odd,), {name: property(fail) if name[:2] != "__" else fail})
ODD = [(name, raised) for name in ("args", "__str__", "__repr__", "__dict__", "__cause__")
       for raised in (ValueError("odd"), KeyboardInterrupt(), SystemExit(3))]
class Item:
    def __init__(self, raised):
        self.raised = raised
    def __repr__(self):
        raise self.raised
@served("last(int at) -> Any")
def fail(at):
    if at < len(ODD):
        name, raised = ODD[at]
        raise spoilt(name, raised)("told")
    raise Odd(Item(ODD[at - len(ODD)][1]))
@served("fine() -> int")
def fine():
    return 7
@served("nameless() -> int")
def nameless():
    raise type("Nameless", (Exception,), {"__module__": 3})("said")
worker = begin(f\'\'\'
outcomes = []
with md.routing("shop", timeout=limit(60.0)):
    for at in range({len(ODD)} + 3):
        try:
            md.ops.shop.last(at)
        except md.errors.RoutedError as error:
            outcomes.append([type(error).__name__, str(error), error.pid])
    try:
        md.ops.shop.nameless()
    except md.errors.RoutedError as error:
        nameless = str(error)
    fine = md.ops.shop.fine()
report(outcomes=outcomes, fine=fine, nameless=nameless)
\'\'\')
done(pid=os.getpid(), **end(worker))
""",
        "subprocess",
    )
    assert len(got["outcomes"]) == 18
    for cls, text, pid in got["outcomes"]:
        assert cls == "RoutedError"
        assert "last() raised" in text
        assert "Odd" in text
        assert pid == got["pid"]
    assert got["fine"] == 7
    assert "Nameless" in got["nameless"]


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        "text",
        [],
        ["a", "b", "c", [], []],
        ["a", "b", "c", [], ["odd"], "t"],
        ["a", "b", "c", [], [1, 2], "t"],
        ["a", "b", "c", (), [], "t"],
        [1, "b", "c", [], [], "t"],
        ["builtins", "ValueError", None, [], [], "t"],
        ["builtins", "ValueError", "c", [], [], None],
    ],
)
def test_a_description_of_no_exception_is_an_error_of_the_call(told):

    error = error_of("shop::f", here(), RAISED, told, 1.0, True)
    assert type(error) is md.errors.RoutedError
    assert "shop::f()" in str(error)
    assert (error.operator, error.pid) == ("shop::f", here().pid)


#: What has been made of this class, by whatever somebody else has named.
_made = []


class Loaded:
    """A class that this process has, and no exception. subprocess.Popen would run something."""

    def __new__(cls, *args: object) -> Loaded:
        _made.append(args)
        return object.__new__(cls)

    class Within:
        __new__ = _made.append


@pytest.mark.parametrize("name", ["Loaded", "Loaded.Within", "Loaded.__new__", "pytest", "x", ""])
def test_only_exceptions_are_made_of_what_an_owner_says_was_raised(name):
    for module in (__name__, "builtins", "nowhere.at_all", ""):
        error = error_of("shop::f", here(), RAISED, [module, name, "text", ["true"], [], "trace"])
        assert type(error) is md.errors.RoutedError
        assert _made == []
        assert f"raised {module}.{name}" in str(error)
    error = error_of("shop::f", here(), RAISED, ["builtins", "OSError", "t", [2, "no"], [], ""])
    assert isinstance(error, OSError)
    assert error.errno == 2


def test_an_attribute_that_cannot_be_set_here_is_left_out():

    state = ["__traceback__", 3, "__class__", "x", "read", 1, "said", "fine"]
    told = [__name__, "Refusing", "text", ["a"], state, "trace"]
    error = error_of("shop::f", here(), RAISED, told)
    assert isinstance(error, Refusing)
    assert error.said == "fine"


class Refusing(Exception):
    @property
    def read(self):
        return 0

    @read.setter
    def read(self, value):
        raise LookupError("not set from elsewhere")


def test_the_key_set_and_the_threads_keys_go_with_the_call():
    got = shop(
        """
from mdispatch.context import excluded_keys, included_keys
@served("last(Tensor x, int n) -> str", key="AutogradCPU", with_keyset=True)
def look(keys, x, n):
    return f"{[key.name for key in keys]} {included_keys().raw} {excluded_keys().raw} {n}"
before = included_keys().raw, excluded_keys().raw
worker = begin('''
from mdispatch.context import excluded_keys, included_keys
class Buffer(bytearray):
    __dispatch_keys__ = md.DispatchKeySet("CPU", "AutogradCPU")
sets, saw = [], []
with md.routing("shop"):
    for n, key in enumerate(("Tracer", "Functionalize")):
        with md.context.ExcludeDispatchKeyGuard(key):
            sets.append(f"{included_keys().raw} {excluded_keys().raw} {n}")
            saw.append(md.ops.shop.last(Buffer(b"x"), n))
report(sets=sets, saw=saw)
''')
done(**end(worker), same=before == (included_keys().raw, excluded_keys().raw))
""",
        "subprocess",
    )
    for sets, saw in zip(got["sets"], got["saw"], strict=True):
        assert saw.endswith(sets)
        assert "'AutogradCPU', 'CPU'" in saw or "'CPU', 'AutogradCPU'" in saw
    assert got["same"]


# --- deadlines, stops and deaths ------------------------------------------------------------------

#: An owner that is a process of its own, and a caller in this one: so each can be stopped.
OWNER = """
import subprocess, tempfile, threading
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
registry = md.default_registry()
lib = md.Library("shop", "DEF")
lib.define("work(str word, float seconds=0.) -> int")
lib.define("until_cancelled() -> ()")
ANY = "CompositeExplicitAutograd"
OWNER = '''
import os, signal, sys, threading, time
import mdispatch as md
from mdispatch.across.transports import host
folder = sys.argv[1]
def journal(word):
    with open(f"{folder}/journal", "a") as file:
        file.write(f"{word}\\\\n")
def work(word, seconds):
    journal(word)
    if word == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while (seconds or word == "stop") and not os.path.exists(f"{folder}/go"):
        time.sleep(0.001)
    return os.getpid()
def until_cancelled():
    journal("began")
    while not md.cancelled():
        time.sleep(0.001)
    journal("cancelled")
host.CALLS = 2
lib = md.Library("shop", "IMPL")
lib.impl("work", work, "CompositeExplicitAutograd", serve="host")
lib.impl("until_cancelled", until_cancelled, "CompositeExplicitAutograd", serve="host")
journal("ready")
sys.stdin.read()
'''
# The registrar has the kernels' facts; a worker serves its own callables for them.
lib.impl("work", lambda word, seconds: -1, ANY)
lib.impl("until_cancelled", lambda: None, ANY)
def journaled():
    path = folder / "journal"
    return path.read_text().split() if path.exists() else []
def own():
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    until(lambda: "ready" in journaled())
    return process
CALLER = '''
import glob, os, signal, subprocess, sys, threading, time
import mdispatch as md
from patience import limit
def stop(pid):
    os.kill(pid, signal.SIGSTOP)  # each of its threads stops when it gets round to it
    while not all(open(each).read().rpartition(")")[2].split()[0] == "T"
                  for each in glob.glob(f"/proc/{pid}/task/*/stat")):
        time.sleep(0.001)
def call(word, timeout=limit(60.0), seconds=0.0):
    try:
        with md.routing("shop", timeout=timeout):
            return md.ops.shop.work(word, seconds)
    except md.errors.RoutedError as error:
        return type(error).__name__, getattr(error, "started", None)
    except md.errors.LocalKernelMissingError:
        return "nobody"  # serves it any more
'''
import sys
def ask(text, **values):
    code = f"import sys; sys.path.insert(0, {SUPPORT!r})\\\n{textwrap.dedent(CALLER)}\\n"
    code += "".join(f"{name} = {value!r}\\n" for name, value in values.items())
    code += textwrap.dedent(text)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
def asked(text, **values):
    caller = ask(text, **values)
    out, _ = caller.communicate(timeout=limit(60.0))
    assert caller.returncode == 0, out
    return eval(out)
"""


def owner(text: str, *args: object, **options: object) -> dict:
    return run_main(OWNER + text, *args, **options)


def test_an_owner_that_is_stopped_before_a_call_never_runs_it():
    got = owner("""
serving = own()
answers = asked('''
answers = [call("first") == pid]
stop(pid)
answers.append(call("never", timeout=0.2))  # on a line that is there
other = threading.Thread(target=lambda: answers.append(call("never", timeout=0.2)))
other.start(); other.join()  # on a line of its own? no: that one is free again
lines = []
threads = [threading.Thread(target=lambda: lines.append(call("never", 0.2))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os.kill(pid, signal.SIGCONT)
answers.append(call("last") == pid)
print([answers, lines])
''', pid=serving.pid)
done(answers=answers, journal=journaled())
serving.kill()
""")
    answers, lines = got["answers"]
    late = ("CallTimeoutError", False)
    assert answers == [True, late, late, True]
    assert lines == [late] * 4  # also those that nobody has greeted
    assert got["journal"] == ["ready", "first", "last"]


def test_an_owner_that_stops_in_the_midst_has_begun_and_is_not_waited_for():
    got = owner("""
serving = own()
answers = asked('''
answers = [call("stop", timeout=0.5)]
open(folder + "/go", "w").close()
os.kill(pid, signal.SIGCONT)
answers.append(call("last") == pid)
print(answers)
''', pid=serving.pid, folder=str(folder))
done(answers=answers, journal=journaled())
serving.kill()
""")
    assert got["answers"] == [("CallTimeoutError", True), True]
    assert got["journal"] == ["ready", "stop", "last"]


@pytest.mark.thorough
def test_an_owner_that_is_killed_is_gone_at_once():
    got = owner("""
# A folder to itself: whoever serves there removes what was left.
mine = tempfile.TemporaryDirectory(dir="/dev/shm")
os.environ["MDISPATCH_FOLDER"] = mine.name
serving = own()
answers = asked('''
answers = [call("first") == pid, call("die")]
os.kill(os.getppid(), 0)
answers.append(call("after"))
print(answers)
''', pid=serving.pid)
serving.wait()
# Nothing that it has left is in the way of the next one, which removes it.
from mdispatch.facts.outside import folder as place
calls = Path(os.path.normpath(place()) + ".calls")
left = len(list(calls.glob(f"{serving.pid}.*")))
killed = serving.pid
(folder / "journal").write_text("")
serving = own()
again = asked("print([call('again') == pid])", pid=serving.pid)
done(answers=answers, again=again, left=left, now=len(list(calls.glob(f"{serving.pid}.*"))),
     after=len(list(calls.glob(f"{killed}.*"))),
     mode=calls.stat().st_mode & 0o777,
     modes=[each.stat().st_mode & 0o77 for each in calls.glob("*.key")])
serving.kill()
""")
    assert got["answers"] == [True, ("OwnerGoneError", True), ("OwnerGoneError", False)]
    assert got["again"] == [True]
    assert got["left"] == got["now"] == 2
    assert got["after"] == 0
    assert got["mode"] == 0o700
    assert got["modes"] == [0]


@pytest.mark.thorough
def test_an_owner_that_is_killed_while_it_is_stopped_has_not_begun():
    got = owner("""
serving = own()
answers = asked('''
answers = [call("first") == pid]
stop(pid)
killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
killer.start()
answers.append(call("never", timeout=None))
print(answers)
''', pid=serving.pid)
done(answers=answers, journal=journaled())
serving.kill()
""")
    assert got["answers"] == [True, ("OwnerGoneError", False)]
    assert got["journal"] == ["ready", "first"]


@pytest.mark.thorough
def test_a_call_that_is_interrupted_while_its_owner_is_stopped_never_runs():
    got = owner("""
serving = own()
answers = asked('''
answers = [call("first") == pid]
stop(pid)
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    call("never", timeout=None)
except KeyboardInterrupt:
    answers.append("interrupted")
os.kill(pid, signal.SIGCONT)
answers.append(call("last") == pid)
print(answers)
''', pid=serving.pid)
done(answers=answers, journal=journaled())
serving.kill()
""")
    assert got["answers"] == [True, "interrupted", True]
    assert got["journal"] == ["ready", "first", "last"]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "deadline"])
def test_a_kernel_can_ask_whether_its_caller_is_still_there(how):
    got = owner(
        """
serving = own()
caller = ask('''
with md.routing("shop", timeout=1.0 if how == "deadline" else None):
    md.ops.shop.until_cancelled()
''', how=args[0])
if args[0] != "deadline":
    until(lambda: "began" in journaled())
    caller.send_signal(getattr(signal, args[0]))
until(lambda: "cancelled" in journaled())
caller.wait()
done(again=asked("print([call('again') == pid])", pid=serving.pid), here=md.cancelled())
serving.kill()
""",
        how,
    )
    assert got["again"] == [True]
    assert got["here"] is False


@pytest.mark.thorough
def test_a_caller_that_is_stopped_is_answered_when_it_goes_on():
    got = owner("""
serving = own()
caller = ask('print([call("slow", seconds=1.0) == pid])', pid=serving.pid)
until(lambda: "slow" in journaled())
caller.send_signal(signal.SIGSTOP)
until(lambda: is_stopped(caller.pid))
(folder / "go").touch()
other = asked("print([call('other') == pid])", pid=serving.pid)
caller.send_signal(signal.SIGCONT)
out, _ = caller.communicate(timeout=limit(60.0))
done(out=eval(out), other=other, journal=journaled())
serving.kill()
""")
    assert got["out"] == got["other"] == [True]
    assert got["journal"] == ["ready", "slow", "other"]


@pytest.mark.thorough
def test_an_owner_takes_so_many_calls_and_refuses_the_next():
    got = owner("""
serving = own()
callers = [ask('print([call("slow", seconds=1.0) == pid])', pid=serving.pid) for _ in range(2)]
until(lambda: journaled().count("slow") == 2)
busy = asked("print(call('never'))")
(folder / "go").touch()
answers = [eval(caller.communicate(timeout=limit(60.0))[0]) for caller in callers]
done(busy=busy, answers=answers, later=asked("print([call('later') == pid])", pid=serving.pid),
     journal=journaled())
serving.kill()
""")
    assert got["busy"] == ("OwnerBusyError", None)
    assert got["answers"] == [[True], [True]]
    assert got["later"] == [True]
    assert got["journal"] == ["ready", "slow", "slow", "later"]


@pytest.mark.thorough
def test_an_owner_that_ends_waits_for_the_call_that_is_inside_and_refuses_others():
    got = owner("""
serving = own()
caller = ask('''
answers = []
inside = threading.Thread(target=lambda: answers.append(call("slow", seconds=1.0)))
inside.start()
sys.stdin.read()
print([answers, call("never")])
inside.join()
print(answers)
'''.replace("sys.stdin.read()", "while not os.path.exists(ending): time.sleep(0.001)"),
    ending=str(folder / "ending"))
until(lambda: "slow" in journaled())
serving.stdin.close()
# Its end has begun when nobody listens any more.
from mdispatch.facts.outside import folder as place
(folder / "ending").touch()
(folder / "go").touch()
out, _ = caller.communicate(timeout=limit(60.0))
serving.wait()
answers = eval(out.split("\\n")[-2])
done(answers=answers, pid=serving.pid, status=serving.returncode, journal=journaled(),
     left=list(Path(os.path.normpath(place()) + ".calls").glob(f"{serving.pid}.*")))
""")
    assert got["answers"] == [got["pid"]]
    assert got["status"] == 0
    assert got["left"] == []


# --- calls in circles -----------------------------------------------------------------------------

GRAPHS = """
import subprocess
from itertools import permutations
lib = md.Library("ring", "DEF")
ANY = "CompositeExplicitAutograd"
for name in "abc":
    lib.define(f"{name}(int[] graph) -> int")
    lib.impl(name, lambda graph: -1, ANY)
OWNER = '''
import sys
import mdispatch as md
md.allow_routing("ring", timeout=LIMIT)
lib = md.Library("ring", "IMPL")
def answer(graph):
    count = 1
    for place, name in enumerate("abc"):
        if graph[ME] >> place & 1:
            count += getattr(md.ops.ring, name)(graph)
    return count
lib.impl("abc"[ME], answer, "CompositeExplicitAutograd", serve=SERVE)
'''
def expected(graph, at, path=()):
    if at in path:
        return None
    count = 1
    for place in range(3):
        if graph[at] >> place & 1:
            more = expected(graph, place, (*path, at))
            if more is None:
                return None
            count += more
    return count
CALLER = '''
import mdispatch as md
md.allow_routing("ring", timeout=LIMIT)
answers = []
for graph in GRAPHS:
    for name in "abc":
        try:
            answers.append(getattr(md.ops.ring, name)(graph))
        except RecursionError as error:
            # One that calls itself is no routed call: CPython refuses it.
            answers.append(None)
            circle = isinstance(error, md.errors.RoutingCycleError) or "maximum" in str(error)
            assert circle and len(getattr(error, "chain", [0] * 32)) >= 32, error
'''
graphs = [[n & 7, n >> 3 & 7, n >> 6] for n in range(512)]
if not args[1]:
    # Without those in which one calls itself, which is no routed call; and of those that are alike
    # but for the names, one.
    def renamed(graph, names):
        return [sum((graph[names[at]] >> names[to] & 1) << to for to in range(3))
                for at in range(3)]
    graphs = [each for each in graphs if not any(each[at] >> at & 1 for at in range(3))
              and each == min(renamed(each, names) for names in permutations(range(3)))]
wanted = [expected(graph, start) for graph in graphs for start in range(3)]
CALLER = f"LIMIT, GRAPHS = {limit(60.0)}, {graphs}\\n{textwrap.dedent(CALLER)}"
"""


ALL = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)


@pytest.mark.thorough
@ALL
def test_each_call_graph_of_three_processes_is_answered_or_refused(every):
    """From each of the three: where there is no circle each call is answered, and a circle is
    refused at its end. There are 16 graphs without calls of oneself, but for the names.
    """
    got = run_main(
        GRAPHS
        + """
owners = []
for me in range(3):
    code = f"LIMIT, ME, SERVE = {limit(60.0)}, {me}, 'host'\\n{textwrap.dedent(OWNER)}\\n"
    code += "print(1, flush=True); sys.stdin.read()"
    owners.append(subprocess.Popen([sys.executable, "-c", code],
                  stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    owners[-1].stdout.readline()
ran = subprocess.run([sys.executable, "-c", CALLER + "print(answers)"],
                     stdout=subprocess.PIPE, text=True)
for each in owners:
    each.communicate()
done(same=eval(ran.stdout) == wanted, refused=wanted.count(None), count=len(wanted),
     ends=[each.returncode for each in owners])
""".replace("sys.executable", "__import__('sys').executable"),
        "",
        every,
        timeout=800.0 if every else 110.0,
    )
    assert got["same"]
    assert 0 < got["refused"] < got["count"] == (1536 if every else 48)
    assert got["ends"] == [0, 0, 0]


@pytest.mark.thorough
@ALL
@pytest.mark.parametrize("kind", ["shared-gil", "own-gil"])
def test_each_call_graph_of_three_interpreters_is_answered_or_refused(kind, every):
    if kind == "own-gil" and sys.version_info < (3, 12):
        pytest.skip("interpreters have a GIL of their own from Python 3.12 on")
    got = run_main(
        GRAPHS
        + """
import threading
owners = [md.create_interpreter(own_gil=args[0] == "own-gil") for _ in range(3)]
for me, each in enumerate(owners):
    each.exec(f"LIMIT, ME, SERVE = {limit(60.0)}, {me}, True\\n{textwrap.dedent(OWNER)}")
file = Path(__file__).with_name("answers")
write = f"open({str(file)!r}, 'w').write(repr(answers))"
caller = md.create_interpreter(own_gil=args[0] == "own-gil")
thread = threading.Thread(target=caller.exec, args=(CALLER + write,))
thread.start()
thread.join()
caller.close()
for each in owners:
    each.close()
done(same=eval(file.read_text()) == wanted, refused=wanted.count(None))
""",
        kind,
        every,
        timeout=800.0 if every else 110.0,
    )
    assert got["same"]
    assert got["refused"]
