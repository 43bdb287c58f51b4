"""Registries and addresses of another PID namespace, boot or host: in real namespaces, and in a
container with a boot id of its own, which a process cannot tell from another host.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import limit
from registries import FOLDER, main_of

import mdispatch as md

pytestmark = [pytest.mark.shared, pytest.mark.either_binding]

BOOT_ID = "/proc/sys/kernel/random/boot_id"
OTHER_BOOT = "0123456789abcdef" * 2
SPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
#: The first argument of what follows is a file with a boot id.
HOST = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
HOST += (f'mount --bind "$1" {BOOT_ID} && shift && exec "$@"', "sh")


def may(*command: str) -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


needs_spaces = pytest.mark.skipif(not may(*SPACE), reason="may not make namespaces here")
needs_hosts = pytest.mark.skipif(not may(*HOST, BOOT_ID), reason="may not make namespaces here")

#: Each opens the default registry in its own way.
USES = {
    "default_registry": "md.default_registry()",
    "a library": "md.Library('shop', 'DEF')",
    "warm_up": "md.warm_up('json')",
    "attach": "md.Registry.attach(os.environ['MDISPATCH_REGISTRY'], timeout=0)",
}

TELLS = """
import json, os
import mdispatch as md
try:
    {use}
    told = {{"role": md.register_or_verify()}}
except md.errors.MdispatchError as error:
    told = {{"class": type(error).__name__, "text": str(error), **vars(error)}}
print(json.dumps(told | {{"pid": os.getpid()}}))
"""


def tell(*before: str, use: str = USES["default_registry"], **environment: str) -> dict[str, str]:
    """What a process in that place says of its attempt."""
    kept = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    ran = subprocess.run(
        [*before, sys.executable, "-c", TELLS.format(use=use)],
        capture_output=True,
        text=True,
        env=kept | environment,
        timeout=limit(60),
        check=False,
    )
    assert ran.stdout, ran.stderr
    return json.loads(ran.stdout)


@contextmanager
def anonymous():
    """The address of a living registry of another process, and its uuid."""
    with main_of("") as main:
        yield main.address


@pytest.fixture
def other_host(tmp_path: Path) -> tuple[str, ...]:
    """What makes a command run where the boot id is another one, as on another host."""
    id_there = "-".join([OTHER_BOOT[:8], *(OTHER_BOOT[i : i + 4] for i in (8, 12, 16))])
    (tmp_path / "boot_id").write_text(f"{id_there}-{OTHER_BOOT[20:]}\n")
    return (*HOST, str(tmp_path / "boot_id"))


@pytest.fixture
def name():
    name = f"test-elsewhere-{os.getpid()}"
    yield name
    (FOLDER / name).unlink(missing_ok=True)


@needs_spaces
@pytest.mark.parametrize("use", USES)
def test_an_address_that_a_container_was_given_is_of_elsewhere_and_nobody_died(use: str) -> None:
    with anonymous() as address:
        told = tell(*SPACE, use=USES[use], MDISPATCH_REGISTRY=address)
    boot, space = address.split(":")[4:]
    assert told["class"] == "ForeignRegistryError"
    assert (told["registry"], told["there"]) == (address, f"{boot}:{space}")
    assert told["here"].startswith(f"{boot}:")
    assert told["here"] != told["there"]
    assert f"its number is {space} there and {told['here'].partition(':')[2]} here" in told["text"]
    for remedy in (
        "shareProcessNamespace: true",
        "--pid=container:NAME",
        "elect:NAME",
        "cluster:URL",
    ):
        assert remedy in told["text"]
    assert "died" not in told["text"]
    assert ("Unset it to work alone" in told["text"]) == (use != "attach")
    assert "parent" not in told["text"]


@needs_spaces
def test_the_process_of_that_number_in_a_container_is_another_one() -> None:
    """An address with a process's own pid is one that it has published before an exec; here it is
    another process's.
    """
    here = tell(*SPACE)
    assert here["role"] == "register"
    with anonymous() as address:
        _, _, rest = address.split(":", 2)
        told = tell(*SPACE, MDISPATCH_REGISTRY=f"fd:{here['pid']}:{rest}")
    assert (told["pid"], told.get("class")) == (here["pid"], "ForeignRegistryError")


@needs_hosts
@pytest.mark.parametrize("use", USES)
def test_an_address_that_another_host_was_given_is_of_elsewhere(use: str, other_host) -> None:
    with anonymous() as address:
        told = tell(*other_host, use=USES[use], MDISPATCH_REGISTRY=address)
    boot, space = address.split(":")[4:]
    assert told["class"] == "ForeignRegistryError"
    assert (told["there"], told["here"]) == (f"{boot}:{space}", f"{OTHER_BOOT}:{space}")
    assert f"the boot is {boot} there and {OTHER_BOOT} here" in told["text"]
    for remedy in ("elect:NAME", "cluster:URL"):
        assert remedy in told["text"]
    assert "died" not in told["text"]


def test_an_address_of_before_the_last_boot_is_of_elsewhere_whoever_has_its_pid() -> None:
    with anonymous() as address:
        *fields, boot, space = address.split(":")
        assert boot == Path(BOOT_ID).read_text().strip().replace("-", "")
        assert int(space) == os.stat("/proc/self/ns/pid").st_ino
        for pid in (fields[1], str(os.getpid()), "999999999"):
            old = ":".join([fields[0], pid, *fields[2:], OTHER_BOOT, space])
            with pytest.raises(md.errors.ForeignRegistryError) as caught:
                md.Registry.attach(old, timeout=0)
            assert caught.value.registry == old
            assert caught.value.there == f"{OTHER_BOOT}:{space}"
            assert caught.value.here == f"{boot}:{space}"
        with md.Registry.attach(address) as registry:
            assert registry.is_worker


@needs_spaces
@pytest.mark.parametrize("team", [False, True])
def test_a_name_in_a_folder_that_containers_share_says_how_they_can_share_it(name, team) -> None:
    with main_of(name):
        told = tell(*SPACE, MDISPATCH_REGISTRY=f"elect:{name}" if team else f"shm:{name}")
    assert told["class"] == "ForeignRegistryError"
    assert told["there"].endswith(f":{os.stat('/proc/self/ns/pid').st_ino}")
    assert "shareProcessNamespace: true" in told["text"]
    assert "in the environment asks for it. Unset it to work alone." in told["text"]


@needs_hosts
def test_a_living_registry_of_another_boot_keeps_its_name(name, other_host) -> None:
    """A container can have a boot id of its own, and the folder of its host."""
    use = f"md.Registry.create({name!r})"
    with main_of(name):
        inode = (FOLDER / name).stat().st_ino
        for told in (
            tell(*other_host, use=use),
            tell(*other_host, MDISPATCH_REGISTRY=f"elect:{name}"),
        ):
            assert told["class"] == "ForeignRegistryError"
            assert told["here"].startswith(OTHER_BOOT)
            assert "boot id of its own" in told["text"]
        assert (FOLDER / name).stat().st_ino == inode
        with md.Registry.attach(name) as registry:
            assert registry.is_worker
    assert tell(*other_host, use=use)["role"] == "register"  # by now nobody has it open


@needs_hosts
def test_a_name_that_a_container_of_its_own_folder_was_given_is_not_there_and_nobody_died(name):
    own_folder = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
    own_folder += ('mount -t tmpfs none "$MDISPATCH_FOLDER" && exec "$@"', "sh")
    with main_of(name):
        told = tell(*own_folder, MDISPATCH_REGISTRY=f"shm:{name}")
    assert told["class"] == "RegistryNotFoundError"
    assert told["registry"] == f"shm:{name}"
    assert f"asks for it: in {FOLDER}/ on this host, where nobody has it now" in told["text"]
    assert "died" not in told["text"]


@needs_spaces
def test_a_child_that_is_forked_into_a_container_is_told_so() -> None:
    use = """
    md.Library('shop', 'DEF')
    import ctypes
    assert ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)
    md.wait_for_def('shop::scale', 0)"""
    told = tell(use=use)
    assert told["class"] == "ForeignRegistryError"
    assert told["registry"].endswith(told["there"])
    assert told["here"] != told["there"]


@needs_spaces
def test_a_look_at_such_an_address_says_so() -> None:
    pytest.importorskip("click", reason="the commands need click")
    with anonymous() as address:
        done = subprocess.run(
            [*SPACE, sys.executable, "-m", "mdispatch", "doctor", address],
            capture_output=True,
            text=True,
            timeout=limit(60),
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert "belongs to another PID namespace" in done.stderr
