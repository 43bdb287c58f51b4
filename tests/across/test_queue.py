"""Calls that wait at a busy owner, in a queue of bounded length."""

from __future__ import annotations

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch.across.transports.transport import queues

pytestmark = [pytest.mark.shared, pytest.mark.needs("across")]

#: An owner that is a process of its own and takes one call at a time, and threads that call it.
OWNER = """
import ast, json, subprocess, tempfile, threading
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
lib = md.Library("shop", "DEF")
for schema in ("work(str word, bytes data=b'') -> str", "plain() -> ()", "count() -> int"):
    name = lib.define(schema)
    lib.impl(name, lambda *args, **kwargs: None, "CompositeExplicitAutograd")
OWNER = '''
import os, sys, threading, time
import mdispatch as md
from mdispatch.across.transports import host
from mdispatch.across.transports.transport import transport_named
folder, host.CALLS, queue = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lib = md.Library("shop", "IMPL")
def work(word, data):
    with open(f"{folder}/journal", "a") as file:
        file.write(f"{word}\\\\n")
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.001)
    return word
inside, most = [], []
def count():
    inside.append(None)
    most.append(len(inside))
    time.sleep(0)
    inside.pop()
    return len(most)
key = "CompositeExplicitAutograd"
lib.impl("work", work, key, serve=md.Serve("host", queue=queue))
lib.impl("count", count, key, serve=md.Serve("host", queue=queue))
lib.impl("plain", lambda: None, key, serve="host")
owner = transport_named("host")._owner
print("ready", flush=True)
for line in sys.stdin:
    if line == "end\\\\n":
        break
    print(len(owner._turns), owner._inside, max(most, default=0), flush=True)
'''
def own(calls, queue):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(OWNER), str(folder)]
    command += [str(calls), str(queue)]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert made.stdout.readline() == "ready\\n"
    return made
def ask(serving):
    serving.stdin.write("state\\n")
    serving.stdin.flush()
    return tuple(map(int, serving.stdout.readline().split()))
def waiting(serving, count):
    until(lambda: ask(serving)[0] == count)
def journaled():
    path = folder / "journal"
    return path.read_text().split() if path.exists() else []
CALLER = '''
import asyncio, os, signal, sys, threading
import mdispatch as md
from patience import limit
shop = md.ops.shop
def call(operator, *args, timeout=limit(60.0)):
    try:
        with md.routing("shop", timeout=timeout):
            return operator(*args)
    except md.errors.RoutedError as error:
        return [type(error).__name__, getattr(error, "started", None),
                getattr(error, "queue", None), str(error)]
'''
class Caller:
    def __init__(self, text):
        code = f"import sys; sys.path.insert(0, {SUPPORT!r})\\n{textwrap.dedent(CALLER)}\\n"
        code += f"print({text})" if "\\n" not in text else textwrap.dedent(text)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(folder)],
            stdout=subprocess.PIPE, text=True)
    def result(self):
        out, _ = self.process.communicate(timeout=limit(60.0))
        assert self.process.returncode == 0, out
        return ast.literal_eval(out) if out[0] in "[(" else out.strip()
def end(*processes):
    for each in processes:
        each.kill()
        each.communicate()
"""


def owner(text: str, *args: object) -> dict:
    return run_main(OWNER + text, *args)


@pytest.mark.thorough
def test_calls_wait_and_begin_in_their_order_and_the_one_beyond_is_refused():
    got = owner("""
serving = own(1, 3)
callers = [Caller("call(shop.work, 'first')")]
until(lambda: "first" in journaled())
for count, word in enumerate("abc", 1):
    data = "b'x' * 100_000" if word == "b" else "b''"  # in memory of its own
    callers.append(Caller(f"call(shop.work, {word!r}, {data})"))
    waiting(serving, count)
refused = Caller("call(shop.work, 'never')").result()
plain = Caller("call(shop.plain)").result()
(folder / "go").touch()
answers = [each.result() for each in callers]
done(answers=answers, refused=refused, plain=plain, journal=journaled(),
     later=Caller("call(shop.work, 'later')").result(), state=ask(serving)[:2])
end(serving)
""")
    assert got["answers"] == got["journal"] == ["first", "a", "b", "c"]
    assert got["later"] == "later"
    assert got["refused"][:3] == ["OwnerBusyError", None, 3]
    assert "as it takes, and 3 more wait, which is its whole queue" in got["refused"][3]
    assert got["plain"][:3] == ["OwnerBusyError", None, 0]
    assert "serve=mdispatch.Serve(" in got["plain"][3]
    assert got["state"] == (0, 0)


@pytest.mark.thorough
def test_who_has_ended_or_waits_no_longer_leaves_the_queue_and_is_not_run():
    got = owner("""
serving = own(1, 2)
first = Caller("call(shop.work, 'first')")
until(lambda: "first" in journaled())
killed = [Caller("call(shop.work, 'never')") for _ in range(2)]
waiting(serving, 2)
end(*(each.process for each in killed))
waiting(serving, 0)
late = Caller("call(shop.work, 'never', timeout=0.2)").result()
cancelled = Caller('''
def wait():
    while not os.path.exists(f"{sys.argv[1]}/cancel"):
        os.sched_yield()
async def main():
    task = asyncio.create_task(md.call_async(shop.work, "never"))
    await asyncio.to_thread(wait)
    task.cancel()
    await asyncio.wait([task])
    print([task.cancelled()])
with md.routing("shop"):
    asyncio.run(main())
''')
waiting(serving, 1)
(folder / "cancel").touch()
cancelled = cancelled.result()
waiting(serving, 0)
last = Caller("call(shop.work, 'last')")
waiting(serving, 1)
(folder / "go").touch()
done(late=late, cancelled=cancelled, answers=[first.result(), last.result()],
     journal=journaled(), state=ask(serving)[:2])
end(serving)
""")
    assert got["late"][:2] == ["CallTimeoutError", False]
    assert got["cancelled"] == [True]
    assert got["answers"] == got["journal"] == ["first", "last"]
    assert got["state"] == (0, 0)


def test_a_call_of_a_served_kernel_does_not_wait():
    got = owner("""
serving = own(1, 2)
first = Caller("call(shop.work, 'first')")
until(lambda: "first" in journaled())
from mdispatch.across.offers import offer_of
from mdispatch.across.transports.transport import BUSY, transport_named
facts = md.default_registry().dispatcher.facts
offer = next(o for o in map(offer_of, facts.registrations("shop::work")[2]) if o and o.address)
call = [offer.ticket, 0, ["one", "another"], ["never", b""], [], []]
why, told, started = transport_named("host").call(offer.address, call, (), 0)
done(inside=[why == BUSY, told, started])
end(serving, first.process)
""")
    assert got["inside"] == [True, 0, False]


def test_an_owner_that_ends_runs_no_call_that_waits():
    got = owner("""
serving = own(1, 2)
first = Caller("call(shop.work, 'first')")
until(lambda: "first" in journaled())
second = Caller("call(shop.work, 'never')")
waiting(serving, 1)
serving.stdin.write("end\\n")
serving.stdin.flush()
gone = second.result()
(folder / "go").touch()
done(gone=gone, first=first.result(), code=serving.wait(), journal=journaled())
end(serving)
""")
    assert got["gone"][:2] == ["OwnerGoneError", False]
    assert got["first"] == "first"
    assert got["code"] == 0
    assert got["journal"] == ["first"]


@pytest.mark.thorough
def test_many_callers_are_all_answered_and_never_more_than_may_are_inside():
    got = owner("""
serving = own(2, 100)
sys.setswitchinterval(1e-5)
text = '''
found = []
def run():
    with md.routing("shop", timeout=limit(60.0)):
        for _ in range(200):
            found.append(shop.count())
threads = [threading.Thread(target=run) for _ in range(12)]
for each in threads: each.start()
for each in threads: each.join()
print([len(found)])
'''
callers = [Caller(text) for _ in range(2)]
counts = [each.result() for each in callers]
done(counts=counts, state=ask(serving))
end(serving)
""")
    assert got["counts"] == [[2400], [2400]]
    assert got["state"][:2] == (0, 0)
    assert got["state"][2] <= 2


@pytest.mark.parametrize("queue", [-1, True, 1.5, None, "8"])
def test_a_queue_of_no_length_is_refused(queue):
    with pytest.raises(md.errors.InvalidArgumentError, match="queue is how many calls may wait"):
        md.Serve("host", queue=queue)


def test_a_queue_is_of_a_kernel_and_ends_with_it(registry):
    with pytest.raises(md.errors.InvalidArgumentError, match="no transport is named hots"):
        md.Serve("hots", queue=1)
    with pytest.raises(md.errors.InvalidArgumentError, match="an object has no queue"):
        md.share(object(), serve=md.Serve("host", queue=1))
    before = dict(queues)
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("f() -> ()")
    lib.impl("f", print, "CompositeExplicitAutograd", serve=md.Serve("host", queue=5))
    assert [*queues.values()] == [*before.values(), 5]
    lib.close()
    assert queues == before
