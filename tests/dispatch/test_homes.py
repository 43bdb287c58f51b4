"""A home names one interpreter of one process, for all time, and says whether it still exists."""

from __future__ import annotations

import ctypes
import os
import pickle
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import INTERPRETERS, run_main, until
from places import PLACES, run_at

from mdispatch import errors
from mdispatch.dispatch.context.homes import Home, foreign, here

pytestmark = pytest.mark.either_binding

TELLS = """
import os, pickle, sys
from mdispatch.dispatch.context.homes import here
sys.stdout.buffer.write(pickle.dumps(here()))
sys.stdout.buffer.flush()
os.close(1)
"""
READS = "sys.stdin.read()\n"  # at the latest until the parent dies


class Other:
    """Another process, which prints its home and then waits to be killed."""

    def __init__(self, after: str = READS) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TELLS + after],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        self.home = pickle.loads(self.process.stdout.read())

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("place", PLACES)
def test_here_is_the_interpreter_that_asks(place, tmp_path):
    body = """
    import os, pickle
    from mdispatch.facts import native
    from mdispatch.dispatch.context.homes import here
    home = here()
    result = dict(
        parts=(home.pid == os.getpid(), home.interpreter_id == native.interpreter_id),
        same=home is here() and home.is_here and pickle.loads(pickle.dumps(home)) == home,
        known=bool(home.space and home.started),
        alive=home.is_alive,
        text=str(home) == f"interpreter {home.interpreter_id} of process {home.pid}",
        number=home.interpreter_id,
    )
    """
    result = run_at(place, "import mdispatch", body, tmp_path)
    assert (result.pop("number") > 0) == (place in INTERPRETERS)
    assert result == {
        "parts": (True, True),
        "same": True,
        "known": True,
        "alive": True,
        "text": True,
    }


def test_a_home_is_a_value():
    home = Home("boot/1", 4711, 99, 3)
    same = Home("boot/1", 4711, 99, 3)
    assert home == same
    assert hash(home) == hash(same)
    others = [
        Home("boot/2", 4711, 99, 3),
        Home("boot/1", 4712, 99, 3),
        Home("boot/1", 4711, 98, 3),
        Home("boot/1", 4711, 99, 2),
    ]
    assert len({home, same, *others}) == 5
    assert home.neighbour(2) == others[3]
    assert home != "interpreter 3 of process 4711"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(home, protocol)) == home
    with pytest.raises(AttributeError, match="a Home is a value"):
        home.pid = 1
    with pytest.raises(AttributeError, match="a Home is a value"):
        del home.pid
    assert home == same


def test_a_home_is_told_in_words():
    assert str(here().neighbour(3)) == f"interpreter 3 of process {os.getpid()}"
    assert repr(here()) == f"<Home: interpreter 0 of process {os.getpid()}>"
    far = Home("boot/1", 4711, 99, 0)
    assert str(far) == "interpreter 0 of process 4711 (of another boot or PID namespace)"


def test_a_refusal_names_both_homes_the_thing_and_the_operator():
    with Other() as other:
        error = foreign("the kernel k", other.home, "s::f", "run")
        assert type(error) is errors.ForeignObjectError
        assert str(error) == (
            f"s::f(): the kernel k belongs to {other.home}; it cannot be run in {here()}\n"
            "Use it there, or give this interpreter one of its own."
        )
        assert (error.home, error.here, error.operator) == (str(other.home), str(here()), "s::f")
    error = foreign("the kernel k", other.home, "s::f", "run")
    assert type(error) is errors.ObjectGoneError
    assert str(error) == f"s::f(): the kernel k is gone: its home, {other.home}, has ended"
    assert (error.home, error.here, error.operator) == (str(other.home), str(here()), "s::f")


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_is_alive_until_it_is_closed_and_none_takes_its_place(kind, tmp_path):
    main = """
    kind, folder = args
    import pickle
    from mdispatch.dispatch.context.homes import here

    tell = textwrap.dedent(f'''
        import sys
        sys.path[:] = {sys.path!r}
        import pickle
        from mdispatch.dispatch.context.homes import here
        with open({folder!r}, "rb") as file:
            seen = [home.is_alive for home in pickle.load(file)]
        with open({folder!r}, "wb") as file:
            pickle.dump((here(), seen), file)
    ''')

    def ask(interpreter, *homes):
        with open(folder, "wb") as file:
            pickle.dump(homes, file)
        interpreter.exec(tell)
        with open(folder, "rb") as file:
            return pickle.load(file)

    def create():
        return md.create_interpreter(own_gil=kind == "own-gil")

    first, second = create(), create()
    home, seen = ask(first, here(), here().neighbour(second.id))
    told = [home == here().neighbour(first.id), home.is_here, home.is_alive]
    first.close()
    told.append(home.is_alive)
    third = create()
    told.append(home.is_alive)
    seen += ask(second, home, here())[1]
    second.close()
    third.close()
    done(seen=seen, told=told)
    """
    values = run_main(main, kind, str(tmp_path / "homes"))
    assert values["seen"] == [True, True, False, True]
    assert values["told"] == [True, False, True, False, False]


def test_a_process_is_alive_until_it_is_killed_before_and_after_it_is_waited_for():
    with Other() as other:
        home, process = other.home, other.process
        assert (home.pid, home.is_here, home.is_alive) == (process.pid, False, True)
        assert home.neighbour(1).is_alive is None, "nobody sees another process's interpreters"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert home.is_alive is False
        assert home.neighbour(1).is_alive is False
        process.wait()
        assert home.is_alive is False


def test_a_process_lives_on_in_its_other_threads_when_its_first_has_ended():
    exit_thread = 60 if platform.machine() == "x86_64" else 93
    after = f"""
import ctypes, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({exit_thread}, 0)
"""
    with Other(after) as other:
        stat = Path(f"/proc/{other.home.pid}/stat")
        until(lambda: stat.read_text().rpartition(") ")[2][0] == "Z")
        assert other.home.is_alive is True
        other.process.kill()
        other.process.wait()
        assert other.home.is_alive is False


def test_a_process_of_the_same_pid_is_another_one():
    later = Home(here().space, os.getppid(), here().started + 1, 0)
    assert later.is_alive is False
    assert Home(here().space, os.getpid(), here().started + 1, 0).is_alive is False


def test_a_pid_that_was_given_away_again_does_not_bring_the_home_back():
    main = """
    import ctypes, pickle
    from mdispatch.dispatch.context.homes import here

    def tell(home_to):
        os.write(home_to, pickle.dumps(here()))
        os.close(home_to)
        signal.pause()

    def kill(pid):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def fork_as(pid):
        # clone3 with set_tid: the one way to choose a pid.
        tids = (ctypes.c_int * 1)(pid)
        flags = (ctypes.c_uint64 * 11)()
        flags[4], flags[8], flags[9] = signal.SIGCHLD, ctypes.addressof(tids), 1
        libc = ctypes.CDLL(None, use_errno=True)
        found = libc.syscall(435, ctypes.byref(flags), ctypes.sizeof(flags))
        if found == 0:
            while True:
                libc.pause()
        return found, ctypes.get_errno()

    end, start = os.pipe()
    first = os.fork()
    if first == 0:
        tell(start)
    home = pickle.loads(os.read(end, 4096))
    before = home.is_alive
    until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
          > home.started + 2)
    kill(first)
    again, problem = fork_as(first)
    if again != first:
        done(problem=os.strerror(problem))
        return
    runs = Path(f"/proc/{first}/stat").read_text().rpartition(") ")[2][0]
    found = home.is_alive
    kill(first)
    done(problem="", runs=runs in "RS", before=before, found=found)
    """
    values = run_main(main)
    if values["problem"]:
        pytest.skip(f"this user cannot choose a pid: {values['problem']}; imitated above")
    assert values["runs"]
    assert (values["before"], values["found"]) == (True, False)


def test_of_another_boot_or_namespace_nothing_is_claimed():
    boot, _, namespace = here().space.partition("/")
    for space in (f"{boot}/1", f"another-boot/{namespace}", ""):
        assert Home(space, os.getpid(), here().started, 0).is_alive is None
    assert Home(here().space, os.getppid(), 0, 0).is_alive is None


def test_no_process_can_have_a_pid_out_of_range():
    for pid in (1 << 22, 1 << 40, 1 << 80):
        assert Home(here().space, pid, 1, 0).is_alive in (False, None)


def test_a_fork_makes_another_home_and_both_see_each_other():
    main = """
    import pickle
    from mdispatch.dispatch.context.homes import here

    parent = here()
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(start, pickle.dumps((here(), parent.is_here, parent.is_alive)))
        signal.pause()
    child, was_here, was_alive = pickle.loads(os.read(end, 4096))
    told = [child == parent, child.pid == pid, was_here, was_alive, child.is_alive]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    done(told=[*told, child.is_alive, parent is here()])
    """
    assert run_main(main)["told"] == [False, True, False, True, True, False, True]


def test_in_a_new_pid_namespace_nothing_is_claimed_of_those_outside():
    if ctypes.CDLL(None).geteuid() != 0:
        pytest.skip("only root makes PID namespaces")
    code = """
import os, pickle, sys
sys.path[:] = {path!r}
home = pickle.loads({home!r})
CLONE_NEWPID = 0x20000000
import ctypes
if ctypes.CDLL(None).unshare(CLONE_NEWPID):
    print("refused")
    sys.exit()
pid = os.fork()
if pid == 0:
    from mdispatch.dispatch.context.homes import here
    # This /proc still counts the pids of the old namespace: nor is anything claimed of its own.
    print(os.getpid(), home.is_alive, here().is_here, here().is_alive,
          here().__class__(here().space, 2, 1, 0).is_alive, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    code = code.format(path=sys.path, home=pickle.dumps(here()))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if ran.stdout == "refused\n":
        pytest.skip("this system lets nobody make a PID namespace")
    assert ran.stdout == "1 None True True None\n", ran.stderr
