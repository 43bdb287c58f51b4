"""Processes of one container, of two, and of a pod: in PID and mount namespaces of their own, with
a tmpfs as /dev/shm, as container runtimes make them. docs/containers.md describes their behaviour.

test_elsewhere.py tries addresses and names of elsewhere in every kind of use, and test_folder.py
values of MDISPATCH_FOLDER that lead to no folder.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kinds import SUPPORT
from patience import limit
from registries import FOLDER

pytestmark = [pytest.mark.shared]

VARIABLE = "MDISPATCH_FOLDER"
USER = f"mdispatch-{os.geteuid()}"
#: Where a named registry is in a container that sets no folder.
FILE = f"/dev/shm/{USER}/shop"
BEGINS = 456  # KiB, as the error says

OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
SAME_PIDS = ("unshare", "--mount", "--propagation", "private")


def container(*mounts: str, pids: tuple[str, ...] = OWN_PIDS) -> tuple[str, ...]:
    """A prefix for a command that runs as in a container: with its own mounts, and its own PIDs or
    ours.
    """
    script = " && ".join([*(f"mount {each}" for each in mounts), 'exec "$@"'])
    return (*pids, "sh", "-c", script, "sh")


def own_shm(options: str = "mode=1777") -> str:
    return f"-t tmpfs -o {options} none /dev/shm"


def may(*command: str) -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


needs_containers = pytest.mark.skipif(
    not may(*container(own_shm())) or not may(*container(own_shm(), pids=SAME_PIDS)),
    reason="may not make PID and mount namespaces, or mount a tmpfs, here",
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


# --- programs in them -----------------------------------------------------------------------------

#: Defines an operator, says how that went, and lives until its input ends.
SHOP = """
import json, os, sys
import mdispatch as md
def told():
    try:
        @md.custom_op("shop::price", mutates_args=())
        def price(amount: float, tax: float = {tax}) -> float:
            return amount * (1 + tax)
        return {{"role": md.register_or_verify(), "price": round(price(100.0), 2)}}
    except md.errors.MdispatchError as error:
        return {{"class": type(error).__name__, "text": str(error), **vars(error)}}
of_process = {{"pid": os.getpid(), "space": os.stat("/proc/self/ns/pid").st_ino}}
print(json.dumps(told() | of_process, default=str), flush=True)
"""
STAYS = "sys.stdin.readline()\n"
DIES = "os.kill(os.getpid(), 9)\n"
ELECTS = {"MDISPATCH_REGISTRY": "elect:shop"}


def variables(**changes: str) -> dict[str, str]:
    """The environment of a container: without what this run of the tests sets."""
    left_out = ("MDISPATCH_REGISTRY", VARIABLE, "COLUMNS", "FORCE_COLOR")
    return {k: v for k, v in os.environ.items() if k not in left_out} | changes


def ran(*command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(60),
        env=variables(**changes),
    )


def python(where: tuple[str, ...], code: str, *arguments: str, **changes: str) -> Any:
    """The JSON that a program prints in a container."""
    done = ran(*where, sys.executable, "-c", code, *arguments, **changes)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)


def shop(where: tuple[str, ...], tax: float = 0.19, **changes: str) -> dict[str, Any]:
    return python(where, SHOP.format(tax=tax), **(ELECTS | changes))


@contextmanager
def living(where: tuple[str, ...], tax: float = 0.19, **changes: str) -> Iterator[dict[str, Any]]:
    """The first line of a process of a container that lives meanwhile."""
    process = subprocess.Popen(
        [*where, sys.executable, "-c", SHOP.format(tax=tax) + STAYS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables(**(ELECTS | changes)),
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert select.select([process.stdout], [], [], limit(60))[0], "it said nothing"
            yield json.loads(process.stdout.readline())
            process.stdin.close()
            assert process.wait(limit(60)) == 0
        finally:
            process.kill()  # with --kill-child, also the one in the namespace


@pytest.fixture
def place() -> Iterator[str]:
    """A folder on a tmpfs that containers share."""
    made = FOLDER.parent / f"pod-{os.getpid()}"
    made.mkdir(0o700)
    yield str(made)
    shutil.rmtree(made)


def shared_shm(place: str) -> str:
    return f"--bind {place} /dev/shm"


# --- what is compared -----------------------------------------------------------------------------


@needs_containers
def test_processes_of_one_pid_namespace_and_one_shm_are_one_registry(place: str) -> None:
    """Two containers of a pod with shareProcessNamespace, or two processes of one container."""
    pod = container(shared_shm(place), pids=SAME_PIDS)
    with living(pod) as first:
        same, other = shop(pod), shop(pod, 0.16)
    assert (first["role"], first["price"]) == ("register", 119.0)
    assert (same["role"], same["price"]) == ("verify", 119.0)
    assert other["class"] == "SchemaMismatchError"
    assert "the default of 'tax' is 0.16 here, 0.19 there" in other["text"]
    assert f"(pid {first['pid']})" in other["text"]


@needs_containers
def test_a_pod_may_share_another_folder_than_shm(place: str) -> None:
    """Each container has a /dev/shm of its own, and the variable names a folder of both."""
    pod = container(f"--bind {place} /mnt", own_shm(), pids=SAME_PIDS)
    with living(pod, **{VARIABLE: "/mnt"}) as first:
        other = shop(pod, 0.16, **{VARIABLE: "/mnt"})
        assert os.stat(f"{place}/{USER}/shop").st_size == BEGINS * 1024
    assert (first["role"], other["class"]) == ("register", "SchemaMismatchError")


@needs_containers
def test_two_pid_namespaces_that_share_shm_are_refused_with_the_cause_and_remedies(
    place: str,
) -> None:
    apart = container(shared_shm(place))
    with living(apart) as first:
        told = shop(apart, 0.16)
        remedied = shop(apart, 0.16, MDISPATCH_REGISTRY="elect:another")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert first["role"] == "register"
    assert told["class"] == "ForeignRegistryError"
    assert told["registry"] == "elect:shop"
    assert told["there"] == f"{boot}:{first['space']}"
    assert told["here"] == f"{boot}:{told['space']}"
    head, remedies, variable = told["text"].split("\n")
    assert head == (
        "registry elect:shop belongs to another PID namespace (container): its number is "
        f"{first['space']} there and {told['space']} here"
    )
    for remedy in (
        "share one PID namespace",
        "shareProcessNamespace: true",
        "--pid=container:NAME",
        "a registry of their own (MDISPATCH_REGISTRY=elect:NAME, another NAME in each)",
        "MDISPATCH_REGISTRY=cluster:URL",
    ):
        assert remedy in remedies
    assert "Unset it to work alone." in variable
    assert (remedied["role"], remedied["price"]) == ("register", 116.0)


@needs_containers
def test_the_name_of_a_container_that_was_killed_is_taken_over_and_of_a_living_one_not(
    place: str,
) -> None:
    """A volume outlives a container, and the next one has another PID namespace."""
    apart = container(shared_shm(place))
    # The shell is process 1, which cannot kill itself.
    dies = (*apart, "sh", "-c", '"$@"; true', "sh", sys.executable, "-c")
    with living(apart, MDISPATCH_REGISTRY="elect:kept"):
        killed = json.loads(ran(*dies, SHOP.format(tax=0.19) + DIES, **ELECTS).stdout)
        assert killed["role"] == "register"
        assert sorted(os.listdir(f"{place}/{USER}")) == ["kept", "shop"]
        # This one may get the number of the namespace that has ended.
        with living(container(own_shm()), MDISPATCH_REGISTRY=""):
            assert shop(apart)["role"] == "register"
            refused = shop(apart, MDISPATCH_REGISTRY="elect:kept")
        assert refused["class"] == "ForeignRegistryError"
        assert os.listdir(f"{place}/{USER}") == ["kept"]


@needs_containers
def test_containers_with_a_shm_each_are_not_compared_and_nothing_says_so() -> None:
    """The gap of docs/containers.md: only a cluster compares them."""
    pytest.importorskip("click", reason="the commands need click")
    looks = """
import subprocess
done = subprocess.run([sys.executable, "-m", "mdispatch", "doctor", "--json"],
                      capture_output=True, text=True)
print(json.dumps([done.returncode, json.loads(done.stdout)]))
"""
    with living(container(own_shm()), 0.19) as first:
        done = ran(
            *container(own_shm()), sys.executable, "-c", SHOP.format(tax=0.16) + looks, **ELECTS
        )
    assert done.returncode == 0, done.stderr
    second, (code, found) = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["role"], first["price"]) == ("register", 119.0)
    assert (second["role"], second["price"]) == ("register", 116.0)
    assert code == 0
    (seen,) = found["registries"]
    assert (seen["name"], seen["state"]) == ("shop", "open")


# --- a /dev/shm that does not do ------------------------------------------------------------------


@needs_containers
@pytest.mark.parametrize("kind", ["read-only", "missing"])
def test_where_shm_takes_no_files_the_variable_or_no_name_is_the_remedy(kind: str) -> None:
    """A registry without a name needs no /dev/shm."""
    mounts = (own_shm("ro") if kind == "read-only" else "-t tmpfs none /dev",)
    where = container(*mounts)
    told = shop(where)
    if kind == "read-only":
        assert (told["class"], told["registry"]) == ("SystemCallError", "elect:shop")
        head, file, advice, variable = told["text"].split("\n")
        assert head == "registry elect:shop cannot be used: Read-only file system"
        assert file == f"  its file: {FILE}"
        assert advice.startswith("/dev/shm is on a file system that is mounted read-only: mount it")
        assert "Or let MDISPATCH_FOLDER, in the environment of all processes" in advice
    else:
        assert told["class"] == "RegistryAccessError"
        head, variable = told["text"].split("\n")
        assert "/dev/shm is no folder here. Mount it (a tmpfs), or let MDISPATCH_FOLDER" in head
    assert variable.endswith("Unset it to work alone.")

    elsewhere = shop(container(*mounts, "-t tmpfs none /mnt"), **{VARIABLE: "/mnt"})
    alone = shop(where, MDISPATCH_REGISTRY="")
    assert [elsewhere.get("role"), alone.get("role")] == ["register", "register"]


FILLS = """
import json, os, subprocess, sys
import mdispatch as md
def told(function, *arguments):
    try:
        return function(*arguments)
    except md.errors.MdispatchError as error:
        return {"class": type(error).__name__, "text": str(error), "errno": error.errno}
registry = told(md.Registry.create, "shop")
if isinstance(registry, dict):
    print(json.dumps(registry))
    sys.exit()
lib = md.Library("shop", "DEF", registry=registry)
def define(number):
    lib.define(f"f{number}(int x, int by={number}) -> int")
count, failed = 0, None
while failed is None and count < 50_000:
    failed = told(define, count)
    count += failed is None
again = told(define, count)
assert registry.dispatcher.facts.check() == ""
def looks():
    code = '''
import json, sys
import mdispatch as md
count = int(sys.argv[1])
with md.Registry.attach("shop", timeout=0) as registry:
    lib = md.Library("shop", "DEF", registry=registry)
    for number in range(count):
        lib.define(f"f{number}(int x, int by={number}) -> int")
    print(json.dumps(registry.is_worker))
'''
    done = subprocess.run([sys.executable, "-c", code, str(count)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
verified = looks()
subprocess.run(["mount", "-o", "remount,size=4m", "/dev/shm"], check=True)
for number in range(count, count + 100):
    define(number)
count += 100
assert registry.dispatcher.facts.check() == ""
verified_later = looks()
print(json.dumps({"count": count, "failed": failed, "again": again,
                  "verified": [verified, verified_later]}))
"""


def judge_full(told: dict[str, Any], size: str) -> None:
    """Whether the error says which file, how large its file system is, and the remedies."""
    assert (told["class"], told["errno"]) == ("SystemCallError", 28)
    head, file, advice = told["text"].split("\n")
    assert head.endswith("cannot be used: No space left on device")
    assert file == f"  its file: {FILE}"
    assert advice.startswith(f"The file system of /dev/shm/{USER} has {size}, of which ")
    for part in (
        f"begins with {BEGINS} KiB",
        "--shm-size",
        "an emptyDir with medium: Memory",
        "let MDISPATCH_FOLDER",
    ):
        assert part in advice


@needs_containers
def test_a_shm_that_is_smaller_than_a_registry_is_an_error_that_says_its_size() -> None:
    told = python(container(own_shm("size=256k")), FILLS)
    judge_full(told, "256 KiB")
    assert "of which 256 KiB are free" in told["text"]  # nothing is left there


@needs_containers
@pytest.mark.parametrize(("size", "words"), [("512k", "512 KiB"), ("1m", "1,024 KiB")])
def test_a_small_shm_that_fills_up_is_an_error_and_nothing_is_lost(size: str, words: str) -> None:
    """All that is registered can be verified, and once there is more space registering goes on."""
    told = python(container(own_shm(f"size={size}")), FILLS)
    judge_full(told["failed"], words)
    judge_full(told["again"], words)
    assert told["count"] > 200
    assert told["verified"] == [True, True]


# --- the folder that the variable names -----------------------------------------------------------

#: The user may not read where Python is, so imports come first.
AS_USER = f"""
import sys
sys.path.insert(0, {SUPPORT!r})
from hostile_stage import become
from mdispatch.facts import status
import mdispatch as md
with md.Registry.create() as registry:
    @md.custom_op("loads::all", mutates_args=(), registry=registry)
    def all_of_it(amount: float, tax: float = 0.19) -> float:
        return amount
become(4242)
"""


@needs_containers
@pytest.mark.parametrize(
    ("folder", "cause"),
    [("/mnt/not/there", "does not exist"), ("mnt", "is no absolute path")],
)
def test_a_folder_that_a_container_does_not_have_is_named(folder: str, cause: str) -> None:
    told = shop(container(own_shm(), "-t tmpfs none /mnt"), **{VARIABLE: folder})
    assert told["class"] == "RegistryAccessError"
    assert told["text"].split("\n")[0] == (
        f"there is no folder for named registries: {VARIABLE}={folder} in the environment {cause}. "
        "Give the absolute path, of at most 160 bytes, of an existing folder, or unset it"
    )


@needs_containers
@as_root
@pytest.mark.parametrize("rights", ["1777", "0777", "2777", "0755"])
def test_a_volume_does_whose_rights_let_the_containers_user_in(rights: str) -> None:
    """emptyDir is root's, 0777, and 2777 with a fsGroup. Whether it is sticky makes no difference
    to a registry (docs/security.md says why it should be).
    """
    where = container(f"-t tmpfs -o mode={rights} none /mnt")
    told = python(where, AS_USER + SHOP.format(tax=0.19), **ELECTS, **{VARIABLE: "/mnt"})
    if rights == "0755":
        assert told["class"] == "SystemCallError"
        assert "\nThis process may not make files in /mnt: give its user the right." in told["text"]
    else:
        assert told.get("role") == "register", told


@needs_containers
@as_root
def test_a_folder_of_another_user_is_refused_with_a_remedy_that_works() -> None:
    """As where an image or an init container has made it."""
    mount = "-t tmpfs -o mode=1777 none /mnt && mkdir -m 700 /mnt/mdispatch-4242 /mnt/own"
    where = container(f"{mount} && chown 4242 /mnt/own")
    told, remedied = (
        python(where, AS_USER + SHOP.format(tax=0.19), **ELECTS, **{VARIABLE: folder})
        for folder in ("/mnt", "/mnt/own")
    )
    assert told["class"] == "RegistryOwnerError"
    assert told["text"].split("\n")[0] == (
        "registry elect:shop is not used: the folder /mnt/mdispatch-4242 is user 0's, and this "
        "process is user 4242's. A registry is for the processes of one user: run all of them as "
        "that user, or let MDISPATCH_FOLDER in the environment name a folder in which this one may "
        "make its own"
    )
    assert remedied.get("role") == "register", remedied


# --- an environment that was carried --------------------------------------------------------------

PARENT = """
import json, os, subprocess, sys
import mdispatch as md
@md.custom_op("shop::price", mutates_args=())
def price(amount: float, tax: float = 0.19) -> float:
    return amount * (1 + tax)
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
assert done.returncode == 0, done.stderr
told = json.loads(done.stdout)
print(json.dumps([os.environ["MDISPATCH_REGISTRY"], told]))
"""


@needs_containers
@pytest.mark.parametrize("pids", ["own", "shared"])
def test_an_address_carried_into_a_container_needs_the_same_pids(pids: str) -> None:
    where = container(own_shm(), pids=OWN_PIDS if pids == "own" else SAME_PIDS)
    child = (*where, sys.executable, "-c", SHOP.format(tax=0.19))
    address, told = python((), PARENT, *child)
    assert address.startswith("fd:")
    if pids == "shared":
        assert told.get("role") == "verify", told
        return
    assert told["class"] == "ForeignRegistryError"
    assert told["registry"] == address
    assert told["there"] == ":".join(address.split(":")[4:])
    assert told["here"] == f"{told['there'].partition(':')[0]}:{told['space']}"
    assert "belongs to another PID namespace (container)" in told["text"]
    assert "in the environment asks for it. Unset it to work alone." in told["text"]
    assert "doctor --reap" not in told["text"]  # nothing of it lies in a folder
