"""Teams whose namespaces have registrars of their own: the member that opens a namespace first
registers; the next in line continues after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kinds import INTERPRETERS, SUPPORT, run_main

import mdispatch as md
from mdispatch import errors
from mdispatch.facts import Elected
from mdispatch.facts.native import native

pytestmark = pytest.mark.shared

# A module that every member of a team imports, and the script of a member in a process of its own:
# it runs each line that it reads, and prints the answer.
MEMBER = """
import sys
import mdispatch as md
from patience import limit
registry = md.Registry.elect(sys.argv[1])

def open_shop(schema="f(int x) -> int", timeout=limit(10)):
    lib = md.Library("shop", "DEF", registry=registry, timeout=timeout)
    lib.define(schema)
    lib.impl("f", increment, "CompositeExplicitAutograd")
    return lib

def increment(x):
    return x + 1

def f(x):
    return registry.ops.shop.f(x)

for line in sys.stdin:
    try:
        exec(compile(line, "<told>", "exec"))
        answer = "ok"
    except Exception as error:
        answer = type(error).__name__ + ": " + str(error).replace(chr(10), " | ")
    print("answer", answer, flush=True)
"""


class Member:
    """A process of the team that runs the lines that it is sent."""

    def __init__(self, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {SUPPORT!r})\n{MEMBER}", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def begin(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> list[str]:
        """The output of a line, and how it ended."""
        printed = []
        while True:
            line = self.process.stdout.readline()
            assert line, "the member is dead"
            if line.startswith("answer "):
                return [*printed, line.removeprefix("answer ").strip()]
            printed.append(line.strip())

    def tell(self, line: str) -> list[str]:
        self.begin(line)
        return self.end()

    def asks(self, expression: str):
        *printed, answer = self.tell(f"print(repr({expression}))")
        assert answer == "ok", answer
        return eval(printed[-1])

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def leave(self) -> None:
        self.process.stdin.close()
        assert self.process.wait() == 0


def waits(pid: int) -> None:
    """Waits until the main thread of a process sleeps in a futex call."""
    calls = {"202", "449"}
    while Path(f"/proc/{pid}/syscall").read_text().split()[0] not in calls:
        os.sched_yield()


@pytest.fixture
def team(request):
    """Makes members, which end with the test."""
    name = f"team-{os.getpid()}-{abs(hash(request.node.name)) % 10**8}"
    members: list[Member] = []

    def member() -> Member:
        members.append(Member(name))
        return members[-1]

    member.name = name
    yield member
    for each in members:
        if each.process.poll() is None:
            each.leave()
        each.process.stdin.close()
        each.process.stdout.close()
    assert not Path(os.fsdecode(native.folder()[1]), name).exists()


def test_the_first_one_registers_and_the_others_verify(team):
    a, b = team(), team()
    assert a.asks("registry.registers('shop')")
    assert a.asks("registry.registrar('shop')") is None
    assert a.tell("lib = open_shop()") == ["ok"]
    assert b.tell("lib = open_shop()") == ["ok"]
    assert [each.asks("registry.registers('shop')") for each in (a, b)] == [True, False]
    assert [each.asks("registry.registrar('shop').pid") for each in (a, b)] == [a.pid, a.pid]
    assert [each.asks("f(1)") for each in (a, b)] == [2, 2]
    assert b.asks("registry.registers('another')")
    assert b.asks("(registry.is_main, registry.is_worker, registry.elects)") == (False, False, True)


def test_without_a_namespace_that_is_asked_of_all_that_the_member_has_open(team):
    a, b, c = team(), team(), team()

    def register():
        return [each.asks("registry.registers()") for each in (a, b, c)]

    assert register() == [True, True, True]  # whoever opens a library now
    a.tell("lib = open_shop()")
    assert register() == [True, False, False]
    b.tell("lib = open_shop()")
    b.tell("other = md.Library('audio', 'DEF', registry=registry)")
    assert register() == [True, False, False]
    assert b.asks("registry.registers('audio')")
    a.tell("other = md.Library('audio', 'DEF', registry=registry)")
    assert register() == [False, False, False]  # each verifies something
    b.tell("lib.close()")
    assert register() == [False, True, False]
    a.kill()
    b.kill()
    c.tell("lib = open_shop()")
    assert c.asks("registry.registers()")


def test_when_the_registrar_is_killed_the_next_one_goes_on_and_nothing_was_lost(team):
    a, b = team(), team()
    a.tell("lib = open_shop()")
    b.tell("lib = open_shop()")
    assert b.tell("op = registry.ops.shop.f.default") == ["ok"]
    a.kill()
    assert b.asks("op(1)") == 2
    assert b.asks("registry.registers('shop')")
    assert b.tell("lib.define('g(int x) -> int')") == ["ok"]
    c = team()
    assert c.tell("lib = open_shop(); lib.define('g(int x) -> int')") == ["ok"]
    assert c.asks("registry.registrar('shop').pid") == b.pid
    assert c.asks("registry.operators()") == ["shop::f", "shop::g"]
    assert [each.tell("registry.check_invariants()") for each in (b, c)] == [["ok"]] * 2


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_who_waits_for_the_registrar_becomes_it_and_registers_the_rest(team, how):
    a, b = team(), team()
    a.tell("lib = md.Library('shop', 'DEF', registry=registry)")
    b.begin("lib = open_shop(timeout=limit(60))")
    waits(b.pid)
    getattr(a, how)()
    assert b.end() == ["ok"]
    assert b.asks("f(1)") == 2
    assert b.asks("registry.registrar('shop').pid") == b.pid
    assert b.tell("registry.check_invariants()") == ["ok"]


def test_with_the_last_one_everything_goes(team):
    a, b = team(), team()
    a.tell("lib = open_shop()")
    b.tell("lib = open_shop()")
    b.tell("lib.close()")
    assert a.asks("registry.operators()") == ["shop::f"]
    assert a.asks("f(1)") == 2
    a.tell("lib.close()")
    assert a.asks("registry.operators()") == b.asks("registry.operators()") == []
    assert a.asks("registry.dispatcher.facts.registrations()[2]") == []
    b.tell("lib = open_shop()")
    b.kill()
    a.tell("other = md.Library('other', 'DEF', registry=registry)")
    assert a.asks("registry.operators()") == []


def test_the_registrar_that_closes_its_libraries_leaves_them_to_the_others(team):
    a, b = team(), team()
    a.tell("lib = open_shop()")
    b.tell("lib = open_shop()")
    a.tell("lib.close()")
    assert b.asks("f(1)") == 2
    assert b.asks("registry.registrar('shop').pid") == b.pid
    # The first one comes back, and is now the last in line.
    assert a.tell("lib = open_shop()") == ["ok"]
    assert b.asks("registry.registers('shop')")
    # A registrar without other members removes what it closes, its predecessor's registrations
    # too.
    a.tell("lib.close()")
    b.tell("other = md.Library('shop', 'FRAGMENT', registry=registry)")
    b.tell("lib.close()")
    assert b.asks("registry.operators()") == []


def test_a_member_that_differs_is_told_by_whom_and_where(team):
    a, b = team(), team()
    a.tell("lib = open_shop()")
    (answer,) = b.tell("lib = open_shop('f(float x) -> int')")
    assert answer.startswith("SchemaMismatchError: shop::f has another schema in the registrar")
    assert f"(pid {a.pid})" in answer
    (answer,) = b.tell("lib.define('h() -> int')")
    b.tell("lib = md.Library('shop', 'FRAGMENT', registry=registry, timeout=0.0)")
    (answer,) = b.tell("lib.define('h() -> int')")
    assert f"the registrar of 'shop' (pid {a.pid}) did not define shop::h" in answer


def test_a_kernel_more_than_the_predecessor_had_is_registered_by_the_next_one(team):
    a, b = team(), team()
    a.tell("lib = open_shop()")
    b.tell("lib = open_shop()")
    a.kill()
    b.tell("lib.impl('f', lambda x: x + 10, 'CompositeExplicitAutograd')")
    assert b.asks("f(1)") == 11
    assert b.asks("len(registry.registrations('shop::f'))") == 3
    assert b.tell("lib.impl('f', increment, 'CPU')") == ["ok"]
    assert b.tell("registry.check_invariants()") == ["ok"]


def test_two_definitions_by_one_member_are_refused_as_anywhere(team):
    a = team()
    a.tell("lib = open_shop()")
    (answer,) = a.tell("lib.define('f(int x) -> int')")
    assert answer.startswith("DuplicateRegistrationError")


def test_a_module_run_again_replaces_what_it_had_registered(team):
    a = team()
    assert a.tell("lib = open_shop()") == ["ok"]
    assert a.tell("lib = open_shop('f(int x=1) -> int')") == ["ok"]
    assert a.asks("str(registry.ops.shop.f.default.schema)") == "shop::f(int x=1) -> int"
    assert a.asks("registry.registers('shop')")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_interpreters_of_one_process_are_a_team(kind, tmp_path):
    text = textwrap.dedent(
        """
        import mdispatch as md
        lib = md.Library("shop", "DEF", timeout=limit(30))
        lib.define("f(int x) -> int")
        lib.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
        turn, main = md.register_or_verify("shop"), md.is_main_interpreter()
        report(turn=turn, value=md.ops.shop.f(1), main=main)
        """
    )
    got = run_main(
        """
        kind, text, name, folder = args
        os.environ["MDISPATCH_REGISTRY"] = "elect:" + name
        import mdispatch as md
        registry = md.default_registry()
        assert os.environ["MDISPATCH_REGISTRY"] == "elect:" + name == registry.address
        workers = start(kind, text, 4, Path(folder))
        for worker in workers:
            worker.join()
        done(found=[w.result() for w in workers], left=registry.operators(),
             members=registry.dispatcher.facts.stat()[10], check=registry.dispatcher.facts.check())
        """,
        kind,
        text,
        f"team-{os.getpid()}-{kind}",
        str(tmp_path),
    )
    assert {each["value"] for each in got["found"]} == {2}
    assert all(each["main"] == (each["turn"] == "register") for each in got["found"])
    assert "register" in {each["turn"] for each in got["found"]}
    assert (got["left"], got["members"], got["check"]) == ([], 1, "")


@pytest.mark.thorough
def test_of_many_that_import_at_once_one_registers(team):
    members = [team() for _ in range(6)]
    for each in members:
        each.begin("lib = open_shop(timeout=limit(60))")
    assert [each.end() for each in members] == [["ok"]] * 6
    assert sum(each.asks("registry.registers('shop')") for each in members) == 1
    # The processes are killed one after the other, in the order in which they register. The last
    # one still has all registrations.
    while len(members) > 1:
        registrar = members[0].asks("registry.registrar('shop').pid")
        dead = next(each for each in members if each.pid == registrar)
        members.remove(dead)
        dead.kill()
        assert members[0].asks("f(1)") == 2
        assert sum(each.asks("registry.registers('shop')") for each in members) == 1
    assert members[0].asks("registry.operators()") == ["shop::f"]


def test_warm_up_counts_what_it_registered_or_verified(tmp_path):
    got = run_main(
        """
        name, root = args
        import mdispatch as md
        sys.path.insert(0, root)
        os.environ["MDISPATCH_REGISTRY"] = "elect:" + name
        first = md.warm_up(["examples.audio_ops"])
        code = '''if True:
            import mdispatch as md
            found = md.warm_up(["examples.audio_ops"])
            print(found.operators, found.kernels, md.register_or_verify("audio"))'''
        import subprocess
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
        done(first=(first.operators, first.kernels), second=second.stdout.split())
        """,
        f"team-{os.getpid()}-warm",
        str(Path(__file__).parents[2]),
    )
    operators, kernels = got["first"]
    assert operators > 0
    assert kernels > 0
    assert got["second"] == [str(operators), str(kernels), "verify"]


def test_a_living_registry_with_a_registrar_is_no_teams():
    name = f"team-{os.getpid()}-main"
    with md.Registry.create(name) as main:
        assert main.registers("shop")
        assert main.registrar("shop") is None
        with pytest.raises(errors.RegistryExistsError):
            md.Registry.elect(name)
    with md.Registry.elect(name) as team:
        assert team.elects
        with pytest.raises(errors.RegistryExistsError):
            md.Registry.create(name)


def test_a_team_without_a_name_serves_one_process():
    with md.Registry.elect() as registry:
        lib = md.Library("shop", "DEF", registry=registry)
        lib.define("f(int x) -> int")
        assert registry.registers("shop")
        with md.Registry.attach(registry.address) as other:
            mine = md.Library("shop", "FRAGMENT", registry=other)
            mine.define("f(int x) -> int")
            assert not other.registers("shop")
            assert repr(other).endswith(" peer>")
            lib.close()
            assert other.registers("shop")
            assert registry.operators() == ["shop::f"]
            mine.close()
        assert registry.operators() == []
        registry.check_invariants()


def test_the_exception_that_ends_such_a_wait_reaches_nobody():
    with md.Registry.elect() as registry:
        lib = md.Library("shop", "DEF", registry=registry)
        with pytest.raises(errors.NotRegisteredError):
            md.wait_for_def("shop::f", 0.0, registry=registry)
        with pytest.raises(Elected):
            registry.dispatcher.facts.await_fact(2, 0, "shop::f", 1, 0.0, or_elect=True)
        lib.close()


@pytest.mark.parametrize("namespace", ["", "a::b", 7, "no space"])
def test_what_is_no_namespace_is_refused(namespace):
    with md.Registry.elect() as registry:
        for ask in (registry.registers, registry.registrar):
            with pytest.raises((errors.InvalidNameError, errors.InvalidArgumentError)):
                ask(namespace)
