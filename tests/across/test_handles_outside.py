"""Handles in other processes: methods run at home, and home keeps what others hold."""

from __future__ import annotations

import json

import pytest
from kinds import PROCESSES, run_main

pytestmark = pytest.mark.shared

#: What the main part begins with. It is the home; a worker is started before and may hold objects.
HEAD = """
import gc, pickle, subprocess, sys, tempfile
from mdispatch.facts.native import c_kernels as native
kind, *rest = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
BEGIN = '''
import gc, os, pickle, time
import mdispatch as md
md.wait_for_def("shop::ready", timeout=limit(60.0))
def outcome(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except Exception as error:
        told = [type(error).__name__, str(error)]
        return told + [error.started] if hasattr(error, "started") else told
def got():
    with open(os.environ["HANDLE"], "rb") as file:
        return pickle.load(file)
'''
os.environ["HANDLE"] = str(folder / "handle")
def begin(text, index=0):
    return Worker(kind, textwrap.dedent(BEGIN) + textwrap.dedent(text), index, folder)
lib = md.Library("shop", "FRAGMENT")
def served(schema):
    def register(function):
        lib.impl(lib.define(schema), function, "CompositeExplicitAutograd", serve="host")
        return function
    return register
def end(*workers):
    lib.define("ready() -> ()")
    return results(list(workers))
def put(handle):
    (folder / "handle").write_bytes(pickle.dumps(handle))
def counts():
    gc.collect()
    return sorted(row[3] for row in native.object_list())
class Box:
    def __init__(self, *items):
        self.items = list(items)
        self.size = 3
    def add(self, item):
        self.items.append(item)
        return len(self.items)
    def pid(self):
        return os.getpid()
    def take(self, other):
        return other
    def fail(self):
        raise LookupError("not here")
    def _hidden(self):
        return 1
Box.__qualname__ = "Box"
"""


def home(text: str, kind: str = "subprocess") -> dict:
    return run_main(HEAD + text, kind)


@pytest.mark.parametrize("kind", PROCESSES)
def test_methods_of_a_handle_run_at_home_in_another_process(kind):
    got = home(
        """
worker = begin('''
handle = got()
added = [handle.add(each) for each in ("a", 2.5, [1, [None]])]
again = pickle.loads(pickle.dumps(handle))
with md.routing("shop", timeout=limit(60.0)):
    sent = md.ops.shop.echo(handle)
    at_home = md.ops.shop.is_it(handle)
report(added=added, same=again is handle is sent is handle.take(handle), at_home=at_home,
       taken=handle.is_box(handle), pid=handle.pid(), size=handle.size, fail=outcome(handle.fail),
       hidden=outcome(lambda: handle.call_at_home("x", "_hidden", (), {})), equal=again == handle,
       opened=outcome(handle.open), is_home=handle.is_home, homepid=handle.home.pid,
       plain=outcome(handle.take, object()))
''')
handle = md.share(Box(1), serve="host")
box = handle.open()
Box.is_box = lambda self, other: other is handle
put(handle)
served("echo(Any x) -> Any")(lambda x: x)
served("is_it(Any x) -> bool")(lambda x: x is handle)
[told] = end(worker)
done(**told, items=box.items, mine=os.getpid(), back=md.share(box) is handle)
""",
        kind,
    )
    assert got["added"] == [2, 3, 4]
    assert got["items"] == [1, "a", 2.5, [1, [None]]]
    assert all(got[each] for each in ("same", "at_home", "taken", "equal", "back"))
    assert got["pid"] == got["mine"] == got["homepid"]
    assert got["size"] == 3
    assert got["is_home"] is False
    assert got["fail"][:2] == ["LookupError", "not here"]
    assert got["hidden"][0] == "ObjectGoneError"
    assert got["opened"][0] == "ForeignObjectError"
    assert got["plain"][0] == "CannotTravelError"


def test_a_handle_asks_once_for_a_method_and_each_time_for_an_attribute():
    got = home(
        """
class Watched:
    def __init__(self):
        self.value, self.asked = (lambda: "called"), []
    def __getattribute__(self, name):
        if name[0] != "_" and name not in ("asked", "keys"):
            object.__getattribute__(self, "asked").append(name)
        return object.__getattribute__(self, name)
    def method(self):
        return "ran"
    def change(self):
        self.value = 5
        del self.asked[:]
worker = begin('''
handle = got()
first = handle.value()
handle.change()
ran = [handle.method() for _ in range(3)]
report(first=first, ran=ran, value=handle.value)
''')
watched = Watched()
put(md.share(watched, serve="host"))
[told] = end(worker)
done(**told, asked=watched.asked)
""",
        "subprocess",
    )
    assert (got["first"], got["ran"], got["value"]) == ("called", ["ran"] * 3, 5)
    assert got["asked"] == ["method", *["method"] * 3, "value"]  # asked for, and called thrice


CLASS = """
@md.register_class("shop.Speller", methods={
    "fix": "(str text) -> str",
    "with_words": "(shop.Speller other) -> shop.Speller",
})
class Speller:
    def __init__(self, *words):
        self.words = list(words)
    def fix(self, text):
        return next((word for word in self.words if word[0] == text[0]), text)
    def with_words(self, other):
        return Speller(*self.words, *other.words)
"""


@pytest.mark.parametrize("is_registered", [True, False])
def test_methods_of_a_class_are_operators_in_other_processes_too(is_registered):
    got = home(
        f"CLASS, SEES = {CLASS!r}, {is_registered!r}\n{CLASS}"
        + """
worker = begin((CLASS if SEES else "") + '''
speller = got()
more = speller.with_words(speller)
with md.routing("shop", timeout=limit(60.0)):
    made = md.ops.shop.make("open")
    words = md.ops.shop.words(speller, more=[made])
fixed = [each.fix("opne") for each in (speller, more, made)]
report(fixed=fixed, words=words, name=more.class_name, made=md.ops.shop.Speller.fix(made, "o"))
''')
put(md.share(Speller("shop"), serve="host"))
sizes = lambda speller, more: [len(each.words) for each in (speller, *more)]
served("words(shop.Speller speller, *, shop.Speller[] more) -> int[]")(sizes)
served("make(str word) -> shop.Speller")(lambda word: md.share(Speller(word), serve="host"))
[told] = end(worker)
done(**told)
"""
    )
    assert got["fixed"] == ["opne", "opne", "open"]
    assert got["words"] == [1, 1]  # the kernel has the objects: handles have no `words`
    assert got["name"] == "shop.Speller"
    assert got["made"] == "open"


def test_a_mode_of_another_process_is_asked_there():
    got = home(
        """
class Twice(md.context.DispatchMode):
    def __md_dispatch__(self, op, types, args=(), kwargs=None):
        return 2 * op(*args, **kwargs)
served("size(str word) -> int")(len)
worker = begin('''
from mdispatch.context import pop_mode, push_mode
mode = got()
push_mode(mode)
answer = md.ops.shop.size("four")
report(answer=answer, same=pop_mode() is mode)
''')
put(md.share(Twice(), serve="host"))
[told] = end(worker)
done(**told)
"""
    )
    assert (got["answer"], got["same"]) == (8, True)


@pytest.mark.thorough
def test_home_keeps_what_another_process_holds_until_it_lets_go():
    got = home("""
worker = begin('''
with md.routing("shop", timeout=limit(60.0)):
    held = [md.ops.shop.make() for each in range(5)]
    first = md.ops.shop.count()
    sizes = [each.add(1) for each in held]
    del held[1:]
    gc.collect()
    held[0].add(2)  # tells home first
    last = md.ops.shop.count()
report(first=first, last=last, sizes=sizes)
''')
served("make() -> Any")(lambda: md.share(Box(), serve="host"))
served("count() -> int")(lambda: len(counts()))
[told] = end(worker)
until(lambda: not counts())
from mdispatch.across import sharing
done(**told, left=[len(sharing._objects), len(sharing._outside), len(sharing._by_id)])
""")
    assert got["first"] == 5
    assert got["sizes"] == [1] * 5
    assert got["last"] == 1
    assert got["left"] == [0, 0, 0]


@pytest.mark.thorough
def test_what_a_killed_process_held_is_dropped_and_one_that_lives_keeps_its_own():
    got = home("""
TEXT = '''
with md.routing("shop", timeout=limit(60.0)):
    held = [md.ops.shop.make() for each in range(3)]
if INDEX:
    arrived(0)
    import time
    time.sleep(limit(600.0))
while not os.path.exists(os.environ["HANDLE"]):
    time.sleep(0.001)
report(sizes=[each.add(1) for each in held])
'''
killed, other = begin(TEXT, 1), begin(TEXT, 0)
served("make() -> Any")(lambda: md.share(Box(), serve="host"))
lib.define("ready() -> ()")
until_arrived([killed], 0)
until(lambda: len(counts()) == 6)
os.kill(killed.pid, signal.SIGKILL)
until(lambda: len(counts()) == 3)
put(None)
[told] = results([other])
until(lambda: not counts())
done(**told)
""")
    assert got["sizes"] == [1, 1, 1]


HOME = """
import os, pickle, sys
import mdispatch as md
@md.register_class("shop.Box", methods={"add": "() -> int", "wait": "() -> int"})
class Box:
    def add(self):
        return 1
    def wait(self):
        open(sys.argv[1] + "/began", "w").close()
        while not md.cancelled():
            pass
        return 5
with open(sys.argv[1] + "/handle", "wb") as file:
    pickle.dump(md.share(Box(), serve="host"), file)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_home_that_is_killed_or_stopped_is_told_of_in_time():
    got = home(
        f"HOME = {HOME!r}\n"
        + """
import threading
def own():
    command = [sys.executable, "-c", HOME, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\\n"
    return process, pickle.loads((folder / "handle").read_bytes())
def end_of(process):
    process.kill()
    process.communicate()
def outcome(call):
    try:
        return call()
    except Exception as error:
        return [type(error).__name__, getattr(error, "started", None)]
md.Library("shop", "DEF").define("first() -> ()")  # this process registers; others verify
for name, methods in (("shop.Box", {"add": "() -> int", "wait": "() -> int"}),):
    md.register_class(name, methods=methods)(type("Box", (), dict.fromkeys(methods, len)))
process, handle = own()
fine = handle.add()
def kill():
    until(lambda: (folder / "began").exists())
    process.kill()
killer = threading.Thread(target=kill)
killer.start()
inside = outcome(handle.wait)
killer.join()
end_of(process)
after = outcome(handle.add)
arrives = pickle.loads(pickle.dumps(handle)) is handle
process, handle = own()
again = handle.add()
process.send_signal(signal.SIGSTOP)
until(lambda: is_stopped(process.pid))
began = time.monotonic()
with md.routing("shop", timeout=0.5):
    stopped = outcome(handle.add)
took = time.monotonic() - began
end_of(process)
done(fine=fine, inside=inside, after=after, stopped=stopped, took=took < limit(5.0),
     arrives=arrives, again=again)
"""
    )
    assert got["fine"] == got["again"] == 1
    assert got["inside"] == ["OwnerGoneError", True]
    assert got["after"] == ["OwnerGoneError", False]
    assert got["stopped"] == ["CallTimeoutError", False]
    assert got["took"]
    assert got["arrives"]


@pytest.mark.thorough
def test_what_is_not_served_is_refused_in_words():
    got = home("""
worker = begin('''
handle = got()
with md.routing("shop", timeout=limit(60.0)):
    result = outcome(md.ops.shop.make)
    served = outcome(lambda: md.share(handle, serve="host"))
    gone = md.ops.shop.closed()
    closed = outcome(lambda: gone.add(1))
report(called=outcome(lambda: handle.add(1)), result=result, served=served, closed=closed)
''')
handle = md.share(Box())
put(handle)
served("make() -> Any")(lambda: md.share(Box()))
def closed():
    made = md.share(Box(), serve="host")
    made.close()
    return made
served("closed() -> Any")(closed)
[told] = end(worker)
worker = md.create_interpreter()
try:
    worker.exec("import mdispatch as md\\nclass A: pass\\nmd.share(A(), serve='host')")
    inner = ""
except Exception as error:
    inner = str(error)
worker.close()
done(**told, inner=inner)
""")
    assert got["called"][0] == "ForeignObjectError"
    assert got["result"][0] == "CannotTravelError"
    assert "its result is an object of Box, whose handle is for its own process" in got["result"][1]
    assert got["served"][0] == "InvalidArgumentError"
    assert got["closed"][0] == "ObjectGoneError"
    assert "a sub-interpreter serves no other processes" in got["inner"]


@pytest.mark.thorough
def test_a_child_of_a_fork_holds_by_itself_and_serves_nothing_of_its_parent():
    got = home("""
worker = begin('''
with md.routing("shop", timeout=limit(60.0)):
    held = md.ops.shop.make()
held.add(1)
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
read, write = os.pipe()
child = os.fork()
if not child:
    try:
        os.write(write, repr(outcome(held.add, 2)).encode())
    finally:
        os._exit(0)
os.waitpid(child, 0)
report(child=os.read(read, 4096).decode(), last=held.add(3))
''')
served("make() -> Any")(lambda: md.share(Box(), serve="host"))
kept = md.share(Box(), serve="host")
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
read, write = os.pipe()
child = os.fork()
if not child:
    try:
        os.write(write, repr([kept._way, kept.add(7), kept.is_home]).encode())
    finally:
        os._exit(0)
os.waitpid(child, 0)
[told] = end(worker)
del kept
until(lambda: not counts())
done(**told, mine=os.read(read, 4096).decode())
""")
    assert got["child"] == "2"
    assert got["last"] == 3
    assert got["mine"] == "[None, 1, True]"


FORGE = """
from mdispatch.across.transports import transport_named
from mdispatch.across.serving import HOLD, METHOD
from mdispatch.across import sharing
real = got()
transport, address = transport_named("host"), real._way[1]
def forged(number, class_name, interpreter=0):
    home = real.home.neighbour(interpreter)
    return sharing._arrived(home, number, "Box", None, class_name, real._way)
def asked(*call):
    why, told, _ = transport.call(address, [*call, [], []], (), 0)
    return [why, told[1] if why == 1 else told]
def passed(handle):
    told = outcome(md.ops.shop.look, handle)
    return told if isinstance(told, str) else told[0]
"""


def test_a_guessed_number_of_an_object_is_found_by_none_of_the_ways():
    got = home(
        f"FORGE = {FORGE!r}"
        + """
worker = begin(FORGE + textwrap.dedent('''
md.allow_routing("shop", timeout=limit(60.0))
number = md.ops.shop.secret()
called = asked(METHOD, 0, [], [number, "add", "called"])
read = asked(METHOD, 0, [], [number, ".size"])
held = asked(HOLD, 0, [], [[number, real._number]])
as_ = [passed(forged(number, name)) for name in ("", "shop.Box")]
odd = [asked(METHOD, 0, [], [each, "add", 1])
       for each in (-1, 0, 2**63 - 1, None, True, "1", [1], 1.0)]
fine = [asked(METHOD, 0, [], [real._number, "add", 1])[0],
        passed(real)]
report(called=called, read=read, held=held[0], as_=as_, odd=odd, fine=fine,
       dropped=md.ops.shop.drop(number))
'''))
seen, secrets = [], [md.share(Box())]
secret = secrets[0].open()
put(md.share(Box(), serve="host"))
kept = pickle.loads((folder / "handle").read_bytes())
served("secret() -> int")(lambda: secrets[0]._number)
def look(x):
    seen.append(x)
    return type(x).__name__
served("look(Any x) -> str")(look)
def drop(number):
    secrets.clear()
    gc.collect()
    # Without a GIL the thread that has made the handle ends it, when it gets round to it.
    until(lambda: native.object_find(0, number) is None)
    return True
served("drop(int number) -> bool")(drop)
[told] = end(worker)
done(**told, secret=secret.items, seen=len(seen), kept=seen[0] is kept)
"""
    )
    assert got["called"] == got["read"] == [1, "ObjectGoneError"]  # raised there
    assert got["held"] == 0  # what is not given out is passed by, as what is gone
    assert got["dropped"]  # and so nobody has held it
    assert got["as_"] == ["ObjectGoneError"] * 2
    assert got["odd"] == [[1, "ObjectGoneError"]] * 8
    assert got["fine"] == [0, "_AskingHandle"]
    assert (got["secret"], got["seen"], got["kept"]) == ([], 1, True)


def test_a_handle_says_no_other_class_than_its_object_has_at_home():
    got = home(
        f"FORGE = {FORGE!r}\n{CLASS}"
        + """
worker = begin(FORGE + textwrap.dedent('''
md.allow_routing("shop", timeout=limit(60.0))
number = real._number
def said(name, **options):
    sharing._handles.clear()
    return passed(forged(number, name, **options))
report(as_=[said(name) for name in ("shop.Speller", "", "shop.Other", "x.Y")],
       elsewhere=said("shop.Speller", interpreter=7), neighbour=said("", interpreter=2**70))
'''))
seen = []
speller = Speller("shop")
handle = md.share(speller, serve="host")
put(handle)
held = native.object_find(0, handle._number)
del handle
gc.collect()  # what home knows of the class is not the handle's word only
def look(x):
    seen.append(x is speller)
    return type(x).__name__
served("look(Any x) -> str")(look)
[told] = end(worker)
done(**told, seen=seen)
"""
    )
    assert got["as_"] == ["Speller", "Speller", "CannotTravelError", "CannotTravelError"]
    assert got["elsewhere"] == "ObjectGoneError"
    assert got["neighbour"] == "OwnerGoneError"  # it is no handle: the line has ended
    assert got["seen"] == [True, True]


def test_a_sub_interpreter_takes_back_only_what_its_process_has_given_out():
    got = home(
        """
import json
given, hidden = md.share(Box(1), serve="host"), md.share(Box(2))
told = given.to_outside()
texts = [json.dumps(told)]
for number, name in ((hidden._number, ""), (given._number, "shop.Other")):
    texts.append(json.dumps([told[0], number, told[2], None, name, told[5]]))
worker = md.create_interpreter()
file = folder / "outcomes"
worker.exec(textwrap.dedent(f'''
from mdispatch.across.sharing import from_outside
def outcome(text):
    try:
        return from_outside(text).add(3)
    except Exception as error:
        return type(error).__name__
with open({str(file)!r}, "w") as out:
    out.write(repr([outcome(each) for each in {texts!r}]))
'''))
worker.close()
done(outcomes=eval(file.read_text()), items=[each.open().items for each in (given, hidden)])
"""
    )
    assert got["outcomes"] == [2, "ObjectGoneError", "CannotTravelError"]
    assert got["items"] == [[1, 3], [2]]


def test_a_child_of_a_fork_does_not_wait_for_a_thread_that_told_a_home():
    got = home("""
from mdispatch.across import sharing
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
far = sharing._far_home(("host", "7.0123456789abcdef"))
read, write = os.pipe()
with far._lock:  # as a thread has it that tells that home
    child = os.fork()
    if not child:
        try:
            os.write(write, repr(far._lock.acquire(False)).encode())
        finally:
            os._exit(0)
os.waitpid(child, 0)
done(free=os.read(read, 4096).decode(), mine=far._lock.acquire(False))
""")
    assert (got["free"], got["mine"]) == ("True", True)


@pytest.mark.thorough
def test_what_a_child_of_a_fork_holds_outlives_what_its_parent_lets_go_of():
    got = home("""
worker = begin('''
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
with md.routing("shop", timeout=limit(60.0)):
    held, other = md.ops.shop.make(), md.ops.shop.make()
first = held.add(1)
(read, write), (told_read, told), (report_read, report_write) = (os.pipe() for _ in range(3))
child = os.fork()
if not child:
    try:
        mine = [held.add(2)]  # home hears that the child has it
        os.write(told, b"+")
        os.read(read, 1)
        mine.append(outcome(held.add, 3))
        os.write(report_write, repr(mine).encode())
    finally:
        os._exit(0)
os.read(told_read, 1)
del held
gc.collect()
other.add(1)  # home hears that the parent has it no more
os.write(write, b"+")
os.waitpid(child, 0)
report(first=first, child=eval(os.read(report_read, 4096)))
''')
served("make() -> Any")(lambda: md.share(Box(), serve="host"))
[told] = end(worker)
until(lambda: not counts())
done(**told)
""")
    assert got["first"] == 1
    assert got["child"] == [2, 3]


HANDLE = ["boot/1", 7, 8, 0], 3, "Box", None, "", ["host", "7.0123456789abcdef"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, []),
        (0, ["boot/1", 7, 8]),
        (0, [1, 7, 8, 0]),
        (0, ["boot/1", "7", 8, 0]),
        (0, ["boot/1", -7, 8, 0]),
        (0, ["boot/1", 7, None, 0]),
        (0, ["boot/1", 7, 8, 2**63]),
        (0, ["boot/1", 7, 8, True]),
        (1, None),
        (1, "3"),
        (1, -1),
        (1, 2**64 + 3),
        (1, 1.0),
        (2, None),
        (2, 5),
        (3, "keys"),
        (3, []),
        (3, 1.5),
        (3, True),
        (3, -1),
        (3, 2**64),
        (4, None),
        (4, 0),
        (5, None),
        (5, "host"),
        (5, ["host"]),
        (5, ["host", 1]),
        (5, [None, "there"]),
    ],
)
def test_what_is_no_handle_in_a_message_is_refused(place, value):
    from mdispatch.across.sharing import from_outside

    told = [*HANDLE]
    told[place] = value
    with pytest.raises(ValueError, match="it has an odd handle"):
        from_outside(json.dumps(told))


@pytest.mark.parametrize(
    "text",
    ["", "3", "{}", "[]", "null", '"abcdef"', "[" * 100_000, "[" * 500 + "]" * 500, "9" * 9999],
)
def test_a_text_that_is_no_handle_is_refused(text):
    from mdispatch.across.sharing import from_outside

    with pytest.raises(ValueError, match="it has an odd handle"):
        from_outside(text)
