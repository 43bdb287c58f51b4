"""The default registry needs no call: a process that shares one finds it, any other works alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from addresses import address_of
from kinds import INTERPRETERS, PROCESSES, run_main
from patience import limit

USES_IT = """
import mdispatch as md
md.register_type(bytearray, "CPU")
lib = md.Library("d", "DEF")
lib.define("size(Tensor x) -> int")
lib.impl("size", len, "CPU")
size = md.ops.d.size(bytearray(3))
report(role=md.register_or_verify(), address=md.default_registry().address, size=size)
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, *PROCESSES])
def test_interpreters_and_child_processes_find_it_by_themselves(kind, tmp_path) -> None:
    got = run_main(
        """
        kind, folder, text = args
        lib = md.Library("d", "DEF")
        lib.define("size(Tensor x) -> int")
        lib.impl("size", len, "CPU")
        workers = start(kind, text, 2, Path(folder))
        done(results=results(workers), address=md.default_registry().address)
        """,
        kind,
        str(tmp_path),
        USES_IT,
    )
    expected = {"role": "verify", "address": got["address"], "size": 3}
    assert got["results"] == [expected] * 2


@pytest.mark.shared
def test_grandchildren_find_it_too(tmp_path) -> None:
    got = run_main(
        """
        folder, text = args
        lib = md.Library("d", "DEF")
        lib.define("size(Tensor x) -> int")
        lib.impl("size", len, "CPU")
        child = f'''
        import sys; sys.path.insert(0, {SUPPORT!r})
        import kinds, pathlib
        workers = kinds.start("subprocess", {text!r}, 1, pathlib.Path({folder!r}))
        print(kinds.results(workers))
        '''
        import subprocess
        command = [sys.executable, "-c", textwrap.dedent(child)]
        out = subprocess.run(command, capture_output=True, text=True)
        done(out=eval(out.stdout), address=md.default_registry().address)
        """,
        str(tmp_path),
        USES_IT,
    )
    assert got["out"] == [{"role": "verify", "address": got["address"], "size": 3}]


def run_alone(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"} | environment
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        env=env,
        timeout=limit(60),
    )


def test_a_process_that_stands_alone_registers() -> None:
    ran = run_alone(
        "import mdispatch as md; print(md.register_or_verify(), md.is_main_interpreter())"
    )
    assert ran.stdout.split() == ["register", "True"], ran.stderr


def test_importing_mdispatch_makes_no_registry() -> None:
    ran = run_alone(
        "import os; n = len(os.listdir('/proc/self/fd')); "
        "import mdispatch, mdispatch.registry.library; "
        "print(len(os.listdir('/proc/self/fd')) - n, 'MDISPATCH_REGISTRY' in os.environ)"
    )
    assert ran.stdout.split() == ["0", "False"], ran.stderr


@pytest.mark.shared
@pytest.mark.skipif(sys.platform == "win32", reason="no signals there")
def test_a_signal_handler_that_wants_it_while_it_is_opened_gets_the_same() -> None:
    code = """
import os, signal
import mdispatch as md
from mdispatch.registry import registry

found, real = [], registry._default_backing

def interrupted():
    if not found:
        found.append(None)
        os.kill(os.getpid(), signal.SIGTERM)
    return real()

signal.signal(signal.SIGTERM, lambda *_: found.append(md.default_registry()))
registry._default_backing = interrupted
assert md.default_registry() is found[1]
(member,) = [each for each in found[1].dispatcher.facts.members() if each[1] == os.getpid()]
"""
    ran = run_alone(code)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.shared
def test_a_closed_default_is_forgotten_by_the_environment() -> None:
    """A child would be told that the registrar died."""
    child = "import mdispatch as md; print(md.register_or_verify(), flush=True)"
    ran = run_alone(
        "import mdispatch as md, os, subprocess, sys\n"
        "def child(): return subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
        "with md.default_registry():\n"
        "    child()\n"
        "print('MDISPATCH_REGISTRY' in os.environ, flush=True)\n"
        "child()\n",
        child,
    )
    assert ran.stdout.split() == ["verify", "False", "register"], ran.stderr


@pytest.mark.shared
def test_a_child_whose_registrar_is_gone_is_told_so() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    gone.send_signal(signal.SIGKILL)
    gone.wait()
    ran = run_alone(
        "import mdispatch as md; md.default_registry()",
        MDISPATCH_REGISTRY=address_of(gone.pid, 3),
    )
    assert ran.returncode == 1
    assert "RegistrarGoneError" in ran.stderr
    assert "Unset it to work alone" in ran.stderr


def test_a_process_replaced_by_exec_works_alone() -> None:
    code = (
        "import mdispatch as md, os, sys\nmd.default_registry()\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'import mdispatch as md; "
        "print(md.register_or_verify())'])"
    )
    assert run_alone(code).stdout.split() == ["register"]


@pytest.mark.parametrize("address", ["nonsense/../x", "fd:1:2", "fd:x:y:z", "shm:", "a b"])
@pytest.mark.shared
def test_a_malformed_address_in_the_environment_is_refused(address) -> None:
    ran = run_alone("import mdispatch as md; md.default_registry()", MDISPATCH_REGISTRY=address)
    assert ran.returncode == 1
    assert "InvalidNameError" in ran.stderr
    assert "MDISPATCH_REGISTRY" in ran.stderr
    assert ("gives this to its children" in ran.stderr) == address.startswith("fd:")


@pytest.mark.shared
def test_a_named_registry_serves_processes_that_are_not_related(tmp_path) -> None:
    got = run_main(
        """
        folder, = args
        name = f"test-{os.getpid()}"
        registry = md.Registry.create(name)
        lib = md.Library("d", "DEF", registry=registry)
        lib.define("size(Tensor x) -> int")
        text = f'''
        import mdispatch as md
        with md.Registry.attach({name!r}) as registry:
            report(body=md.wait_for_def("d::size", registry=registry).body, main=registry.is_main)
        '''
        workers = start("subprocess", text, 2, Path(folder))
        got = results(workers)
        registry.close()
        try:
            md.Registry.attach(name, timeout=0)
        except md.errors.RegistryNotFoundError as error:
            done(results=got, error=str(error))
        """,
        str(tmp_path),
    )
    assert got["results"] == [{"body": "d::size(Tensor x) -> int", "main": False}] * 2
    assert "create it first" in got["error"]


@pytest.mark.shared
def test_attach_waits_for_the_name_to_appear(tmp_path) -> None:
    got = run_main(
        """
        folder, = args
        name = f"late-{os.getpid()}"
        text = f'''
        import mdispatch as md, os, _thread
        i_am_here()
        with md.Registry.attach({name!r}, timeout={limit(30)}) as registry:
            report(address=registry.address)
        '''
        workers = start("subprocess", text, 1, Path(folder))
        def waits():
            try:
                pid, tid = (Path(folder) / "0.task").read_text().split()
                call = Path(f"/proc/{pid}/task/{tid}/syscall").read_text()
                return call.split()[0] == "271"  # ppoll
            except OSError:
                return False
        until(waits)
        with md.Registry.create(name):
            done(results=results(workers), name=name)
        """,
        str(tmp_path),
    )
    assert got["results"] == [{"address": "shm:" + got["name"]}]


@pytest.mark.shared
def test_the_name_of_a_registry_whose_process_was_killed_is_taken_over() -> None:
    got = run_main(
        """
        name = f"dead-{os.getpid()}"
        pid = os.fork()
        if pid == 0:
            md.Registry.create(name)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        try:
            md.Registry.attach(name, timeout=0)
        except md.errors.RegistrarGoneError as error:
            refused = type(error).__name__
        with md.Registry.create(name) as registry:
            exists = False
            try:
                md.Registry.create(name)
            except md.errors.RegistryExistsError:
                exists = True
            done(main=registry.is_main, refused=refused, exists=exists)
        """
    )
    assert (got["main"], got["refused"], got["exists"]) == (True, "RegistrarGoneError", True)


@pytest.mark.shared
def test_a_forked_child_keeps_its_kernels_and_cannot_close_what_its_parent_registered() -> None:
    got = run_main(
        """
        md.register_type(bytearray, "CPU")
        lib = md.Library("d", "DEF")
        lib.define("size(Tensor x) -> int")
        lib.impl("size", len, "CPU")
        assert md.ops.d.size(bytearray(2)) == 2
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = [md.register_or_verify(), md.ops.d.size(bytearray(4))]
            lib.close()
            os.write(write, repr(said).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        done(child=eval(os.read(read, 1000)), here=md.ops.d.size(bytearray(5)),
             check=md.default_registry().dispatcher.facts.check())
        """
    )
    assert got["child"] == ["verify", 4]
    assert (got["here"], got["check"]) == (5, "")
