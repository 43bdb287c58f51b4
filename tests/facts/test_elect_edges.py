"""Moments in which a team could come apart: a refusal, an interrupt, a close, a fork or an import
in the middle leaves no claim behind, and every call ends with an answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from alarms import end_alarms
from kinds import run_main
from patience import limit
from test_elect import team  # noqa: F401 (a fixture)

import mdispatch as md
from mdispatch import errors, facts
from mdispatch.facts.native import native
from mdispatch.registry.register import RegistrationHandle

pytestmark = pytest.mark.shared

MODULE = """
lib = md.Library("shop", "DEF", registry=registry, timeout=0.2)
lib.define("f(int x) -> int")
lib.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
"""


def import_it(registry, text=MODULE):
    """Runs a module's text, or a notebook's cell, so that each run has the same file and lines."""
    space = {"__name__": "shop_module", "md": md, "registry": registry}
    exec(compile(text, "/somewhere/shop.py", "exec"), space)
    return space["lib"]


@pytest.fixture
def pair(request):
    """Two memberships of this interpreter; their claims end with the test."""
    name = f"edge-{os.getpid()}-{abs(hash(request.node.name)) % 10**8}"
    with md.Registry.elect(name) as a, md.Registry.elect(name) as b:
        yield a, b
        for each in (a, b):
            with contextlib.suppress(errors.RegistryClosedError):
                each.check_invariants()


def claims(registry):
    _, _, there = registry.dispatcher.facts.registrations()
    return [(fact.name, fact.where) for fact in there if fact.kind == 7]


def test_a_module_imported_again_by_the_registrar_goes_on_beside_the_others(pair):
    a, b = pair
    import_it(a)
    import_it(b)
    again = import_it(a)  # the team's registrations stay and are verified
    assert a.registers("shop")
    assert [each.ops.shop.f(1) for each in pair] == [2, 2]
    with pytest.raises(errors.SchemaMismatchError):
        import_it(a, MODULE.replace("int x)", "int x, int y=0)"))
    assert again.closed
    assert b.ops.shop.f(1) == 2
    # It has taken the place of the earlier one, and its claim with it.
    assert claims(b) == [("shop", "/somewhere/shop.py:2")] * 2


def test_a_successor_verifies_a_definition_that_is_spelled_with_blanks(pair):
    a, b = pair
    first = md.Library("shop", "FRAGMENT", registry=a)
    first.define("f (int x) -> int")
    second = md.Library("shop", "FRAGMENT", registry=b, timeout=0.2)
    second.define("f (int x) -> int")
    first.close()
    third = md.Library("shop", "FRAGMENT", registry=b, timeout=0.2)
    third.define(" f (int x) -> int")
    assert b.registers("shop")
    assert b.operators() == ["shop::f"]
    with pytest.raises(errors.SchemaMismatchError):
        third.define("f (int x, int y) -> int")
    third.close()
    second.close()
    assert claims(a) == []


def test_the_last_one_to_have_what_another_registered_takes_it_along(pair):
    """The successor has two libraries of the namespace; one of them had verified."""
    a, b = pair

    def names():
        _, _, there = b.dispatcher.facts.registrations()
        return sorted((f.kind, f.name) for f in there if f.kind != facts.CLAIM)

    def library(registry):
        lib = md.Library("shop", "DEF", registry=registry, timeout=0.2)
        lib.register_name("held")
        lib.define("f(int x) -> int")
        lib.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
        return lib

    first = library(a)
    kept = md.Library("shop", "FRAGMENT", registry=b, timeout=0.2)
    verified = library(b)
    registered = names()
    assert len(registered) == 4
    first.close()
    assert names() == registered
    verified.close()
    assert names() == []
    kept.define("f(str x) -> str")
    assert names() == [(facts.DEF, "shop::f")]


def test_a_library_closed_in_the_midst_of_a_registration_leaves_no_claim(pair):
    a, b = pair
    lib = md.Library("shop", "FRAGMENT", registry=a)

    class ClosesIt(str):
        def strip(self, *letters):
            closer = threading.Thread(target=lib.close)
            closer.start()
            closer.join()
            return super().strip(*letters)

    with pytest.raises(errors.LibraryClosedError):
        lib.impl(ClosesIt("f"), lambda x: x, "CPU")
    assert claims(a) == []
    assert b.registers("shop")


def test_what_raises_while_a_library_opens_or_closes_leaves_no_claim(pair):
    a, _ = pair

    def fails():
        raise KeyboardInterrupt

    lib = import_it(a)
    lib.hold(RegistrationHandle(None, fails))
    with pytest.raises(KeyboardInterrupt):
        import_it(a)
    assert lib.closed
    assert claims(a) == []
    lib = import_it(a)
    lib.hold(RegistrationHandle(None, fails))
    with pytest.raises(KeyboardInterrupt):
        lib.close()
    lib.close()
    assert claims(a) == []
    assert a.operators() == []


def test_a_library_that_is_refused_is_not_counted(pair):
    a, b = pair
    lib = md.Library("shop", "FRAGMENT", registry=a)
    with pytest.raises(errors.MainNeverArrivedError):
        md.Library("shop", "DEF", registry=b, timeout=0.0)
    with pytest.raises(errors.InvalidArgumentError):
        md.Library("shop", "SHELF", registry=a)
    assert len(claims(a)) == 1
    lib.close()
    lib.close()
    assert claims(a) == []


def test_a_registry_closed_first_takes_its_claims_along(pair):
    a, b = pair
    lib = import_it(a)
    import_it(b)
    other = md.Registry.attach(a.address)
    theirs = md.Library("shop", "FRAGMENT", registry=other)
    a.close()
    a.close()
    assert b.registers("shop")
    assert not other.registers("shop")
    lib.close()
    with pytest.raises(errors.RegistryClosedError):
        md.Library("shop", "FRAGMENT", registry=a)
    other.close()
    theirs.close()
    assert len(claims(b)) == 1


def test_a_signal_handler_may_close_the_library_that_is_waited_for(pair):
    a, b = pair
    lib = md.Library("shop", "DEF", registry=a)

    def close_it(number, frame):
        lib.close()

    signal.signal(signal.SIGALRM, close_it)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        mine = md.Library("shop", "FRAGMENT", registry=b, timeout=limit(60.0))
        mine.define("f(int x) -> int")  # whether or not it waits by then
        assert b.operators() == ["shop::f"]
    finally:
        end_alarms()
    assert b.registers("shop")
    mine.close()
    assert claims(b) == []


def test_threads_that_open_and_close_libraries_of_one_namespace_lose_nothing(pair):
    a, b = pair
    failed = []
    before = sys.getswitchinterval()

    def come_and_go(registry, number):
        try:
            for _ in range(40):
                with md.Library("shop", "FRAGMENT", registry=registry, timeout=limit(60.0)) as lib:
                    lib.define(f"f{number}(int x) -> int")
                    lib.impl(f"f{number}", lambda x: x, "CPU")
                lib.close()
        except BaseException as error:
            failed.append(error)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=come_and_go, args=(a, number)) for number in range(3)]
        threads += [threading.Thread(target=come_and_go, args=(b, 3 + number)) for number in (0, 1)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(limit(60.0))
    finally:
        sys.setswitchinterval(before)
    assert failed == []
    assert not any(each.is_alive() for each in threads)
    assert a.dispatcher.facts.registrations()[2] == []


def test_a_definition_has_to_fit_the_kernels_of_the_registrar_before(pair):
    _, b = pair
    libs = [md.Library("shop", "FRAGMENT", registry=each, timeout=0.2) for each in pair]
    for lib in libs:
        lib.impl("f", lambda x: x, "CPU", signature="(int x) -> int")
    libs[0].close()
    with pytest.raises(errors.SignatureMismatchError):
        libs[1].define("f(int x, int y) -> int")
    assert b.operators() == []
    libs[1].define("f(int x) -> int")
    assert b.registers("shop")


def test_a_formula_for_an_operator_that_is_not_there_is_refused_by_the_registrar(pair):
    a, _ = pair
    lib = md.Library("shop", "FRAGMENT", registry=a)
    with pytest.raises(errors.OperatorNotFoundError):
        md.register_autograd("shop::f", lambda ctx, grad: grad, lib=lib)
    assert [fact.kind for fact in a.dispatcher.facts.registrations()[2]] == [7]


def test_an_address_whose_registry_is_closed_is_answered_in_time():
    name = f"edge-{os.getpid()}-closed"
    file = Path(os.fsdecode(native.folder()[1]), name)
    code = (
        "import os, signal, sys, mdispatch as md; md.Registry.elect(sys.argv[1]); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, name], check=False)
    # Now as another process leaves the file when it is killed before it replaces it.
    with file.open("r+b") as region:
        region.seek(152)
        assert region.read(4) == struct.pack("I", 0)
        region.seek(152)
        region.write(struct.pack("I", 1))
    began = time.monotonic()
    for address in (name, f"elect:{name}"):
        with pytest.raises(errors.RegistryClosedError):
            md.Registry.attach(address, timeout=0.05)
    assert time.monotonic() - began < limit(30)
    with md.Registry.elect(name) as registry:
        assert registry.registers("shop")


def test_imports_in_opposite_orders_end_in_errors_within_the_timeout(team):  # noqa: F811
    a, b = team(), team()
    ask = "lib = md.Library({!r}, 'DEF', registry=registry, timeout=0.5)"
    cross = (
        "other = md.Library({!r}, 'FRAGMENT', registry=registry, timeout=0.5); "
        "other.define('f(int x) -> int'); lib.define('f(int x) -> int')"
    )
    for each, mine in ((a, "left"), (b, "right")):
        assert each.tell(ask.format(mine)) == ["ok"]
    began = time.monotonic()
    for each, theirs in ((a, "right"), (b, "left")):
        each.begin(cross.format(theirs))
    answers = [each.end()[0] for each in (a, b)]
    assert time.monotonic() - began < limit(10)
    # Each waited for a definition that the other makes later. When one gives up, the other may not
    # have to wait any more.
    assert all(each.startswith(("NameMismatchError", "MainNeverArrived")) for each in answers)
    # The one that leaves passes its part on, and the other one finishes.
    a.leave()
    assert b.tell(cross.format("left")) == ["ok"]
    assert b.asks("registry.operators()") == ["left::f", "right::f"]


def test_a_forked_child_without_a_slot_is_told_by_its_next_call():
    got = run_main(
        """
        import mdispatch as md
        from mdispatch.facts.native import native
        registry = md.Registry.elect()
        lib = md.Library("shop", "DEF", registry=registry)
        lib.define("f(int x) -> int")
        while native.join(registry.dispatcher.facts._handle, 0)[0] == 0:
            pass
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                lib.define("g(int x) -> int")
            except md.errors.MdispatchError as error:
                os.write(write, type(error).__name__.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        done(told=os.read(read, 100).decode(), left=registry.operators())
        """
    )
    assert got["told"]
    assert got["left"] == ["shop::f"]
    assert got["stderr"] == ""


TEAM_OF_ALL_KINDS = """
import sys
import mdispatch as md
from mdispatch import torch_compat

@md.custom_op("shop::twice", mutates_args=())
def twice(x: float) -> float:
    return 2 * x

@md.register_fake("shop::twice")
def fake(x):
    return x

def backward(ctx, grad):
    return 2 * grad

md.register_autograd("shop::twice", backward)
lib = md.Library("shop", "FRAGMENT")
lib.define("names(int x) -> int", tags="pointwise")
lib.register_name("held")
lib.impl("names", lambda x: x, "CompositeExplicitAutograd", signature="(int x) -> int")
lib.register_python_module("names", "shop_fakes")
falls = md.Library("_", "IMPL")
falls.fallback(md.fallthrough_kernel, "Tracer")
c = torch_compat._dispatch_library("FRAGMENT", "torchy", "", "shop.py", 3)
c.define("g(Tensor x) -> Tensor", "")
c.impl("g", "CPU", lambda x: x)
found = md.default_registry().registrations("shop::twice")
report = (md.ops.shop.twice(2.0), md.ops.shop.names(3), len(found))
print(report, md.register_or_verify("shop"), flush=True)
sys.stdin.readline()
md.default_registry().check_invariants()
"""


@pytest.mark.thorough
def test_each_kind_of_registration_is_made_once_and_verified_by_the_others(tmp_path):
    (tmp_path / "shop.py").write_text(TEAM_OF_ALL_KINDS)
    environment = {**os.environ, "MDISPATCH_REGISTRY": f"elect:edge-{os.getpid()}-kinds"}
    members = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(tmp_path / "shop.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(3)
    ]
    told = [each.stdout.readline().split(") ") for each in members]
    assert len({values for values, _ in told}) == 1
    assert sorted(turn.strip() for _, turn in told) == ["register", "verify", "verify"]
    first = next(each for each, (_, turn) in zip(members, told, strict=True) if "reg" in turn)
    first.kill()
    first.wait()
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(tmp_path / "shop.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as late:
        values, turn = late.stdout.readline().split(") ")
        assert (values, turn.strip()) == (told[0][0], "verify")
        for each in (*(m for m in members if m is not first), late):
            each.stdin.write("\n")
            each.stdin.close()
            assert each.wait(limit(30)) == 0
    for each in members:
        each.stdin.close()
        each.stdout.close()


@pytest.mark.thorough
def test_the_workers_of_a_test_run_are_a_team(tmp_path):
    """The line for conftest.py that docs/teams.md shows."""
    page = (Path(__file__).parents[2] / "docs" / "teams.md").read_text()
    line = next(each for each in page.splitlines() if "os.environ.setdefault" in each)
    (tmp_path / "conftest.py").write_text(f"import os\n{line.strip()}\n")
    (tmp_path / "shop.py").write_text(
        f"import mdispatch as md\nlib = md.Library('shop', 'DEF', timeout={limit(30)})\n"
        "lib.define('f(int x) -> int')\n"
        "lib.impl('f', lambda x: x + 1, 'CompositeExplicitAutograd')\n"
    )
    (tmp_path / "test_shop.py").write_text(
        "import os, mdispatch as md, shop, pytest\n"
        "@pytest.mark.parametrize('turn', range(4))\n"
        "def test_f(turn):\n"
        "    assert os.environ['MDISPATCH_REGISTRY'].startswith('elect:tests-')\n"
        "    assert md.ops.shop.f(turn) == turn + 1\n"
        "    assert md.default_registry().elects\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MDISP", "PYTEST"))}
    environment["MDISPATCH_FOLDER"] = os.environ["MDISPATCH_FOLDER"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout
