"""Mixed blows: three registrars, sixteen workers of every kind and two teams. Anybody may be
killed, stopped, robbed of its descriptors, its user or its memory; the disk fills up at times.

    python stress/mixed_blows.py [--seconds N] [--blows N] [--seed S]

Each registrar with its workers is a round of kill_python.py, judged from the same journals: what
was acknowledged is there, what was closed or refused is not, nobody else has defined anything,
check_invariants finds nothing, all hear of the registrar's end. A wait returns within the limit
after which a stopped holder of the lock is given up (10 s), and some seconds for the machine.

Who was robbed may fail with the errors that docs/reliability.md promises it ("What a process can
lose") and with no others; who was only stopped, or has lost nothing, may not fail at all. A team's
member finds in each of its lives all that belongs to the module that it imports.

As root on a machine that lets it, registries lie on a small disk of the run's own, which is filled;
elsewhere, and for other users, those blows are left out, and the last line says so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import kill_roles as roles
from kill_python import Killer, Victim, be_worker, in_thread, load_everything
from kill_report import Totals
from measure import HANG_SECONDS, Dice

import mdispatch as md

MAINS, MEMBERS, TEAMS = 3, 3, 2
#: The sixteen workers, by the number of their registrar. "fork" is a process that forks others.
CASTS = (
    (("wait",), ("wait", "verify"), ("+wait", "+verify"), ("attach",), ("fork",), ("listen",)),
    (("verify",), ("+wait", "wait"), ("attach", "wait"), ("fork",), ("wait", "listen")),
    (("wait",), ("+verify", "+attach"), ("verify", "listen"), ("fork",), ("attach",)),
)
#: A stopped process may have the lock, which others give up after 10 s.
ALLOWED_NS = 15_000_000_000
TEAM_NAMES = [f"f{i}" for i in range(6)]
NOBODY = 65534

# What each blow may make its victim fail with. Memory: anything that comes of having none.
NO_ROOM = ("SystemCallError", "RegistryFullError", "MemoryError")
PROMISED = {
    "descriptor": ("RegistryAccessError",),
    # It may be just opening one; or it finds a folder of registries of its own, and no files.
    # Python ends a process, with code 1, whose new interpreter may not read Python's own files.
    "user": (
        "RegistryOwnerError",
        "missing",
        "Permission",
        "RegistryNotFoundError",
        "ModuleNotFoundError",
        "ended with 256",
    ),
    "memory": (*NO_ROOM, "can't start new thread", "interpreter creation failed", "ended"),
}
BLOWS = {"descriptor": signal.SIGUSR1, "user": signal.SIGUSR2, "memory": signal.SIGXCPU}


# --- what the victims do --------------------------------------------------------------------------


def lose_descriptors(*_: object) -> None:
    for fd in os.listdir("/proc/self/fd"):
        try:
            if re.search(r"/mdispatch-\d+/", os.readlink(f"/proc/self/fd/{fd}")):
                os.close(int(fd))
        except OSError:
            pass  # that of the listing, or another thread has closed it


def lose_user(*_: object) -> None:
    os.setresuid(NOBODY, NOBODY, NOBODY)


def lose_memory(*_: object) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


LOSSES = {"descriptor": lose_descriptors, "user": lose_user, "memory": lose_memory}


def be_main(name: str, path: str, seed: int, leave: int) -> None:
    diary = roles.Diary(path)
    registry = md.Registry.create(name, capacity=1 << 26)
    library = roles.define_stable(registry)
    refusals = (
        md.errors.SystemCallError,
        md.errors.RegistryFullError,
        md.errors.RegistryAccessError,
        MemoryError,
    )
    for i in range(roles.NAMESPACES):
        threading.Thread(
            target=diary.run,
            args=(roles.churn, registry, i, seed * 8 + i, refusals),
            daemon=True,
        ).start()
    os.read(leave, 1)
    diary.write("leaving", time.monotonic_ns())
    registry.close()
    assert library is not None


def fork_on(diary: roles.Diary, name: str) -> None:
    """Forks children, which wait and end, until the registrar is gone."""
    with md.Registry.attach(name, timeout=0) as registry:
        while True:
            pid = os.fork()
            if pid == 0:
                roles.Diary.run(diary, lambda diary: wait_in_vain(registry))
                os._exit(0)
            os.waitpid(pid, 0)
            wait_in_vain(registry)
            diary.write("forked")


def wait_in_vain(registry: md.Registry) -> None:
    try:
        md.wait_for_def("never::comes", 0.001, registry=registry)
    except md.errors.NotRegisteredError:
        return
    raise AssertionError("what nobody defines came")


def be_member(name: str, path: str, leave: int) -> None:
    """Imports a module for ever, as a member of a team: until a byte comes, or the end of it."""

    def live(diary: roles.Diary) -> None:
        while not select.select([leave], [], [], 0)[0]:
            live_once(diary, name)

    roles.Diary(path).run(live)


def live_once(diary: roles.Diary, name: str) -> None:
    try:
        with md.Registry.elect(name, capacity=1 << 24) as registry:
            library = md.Library("shop", "DEF", registry=registry, timeout=HANG_SECONDS)
            for i, each in enumerate(TEAM_NAMES):
                library.define(f"{each}(int x) -> int")
                library.impl(each, lambda x, i=i: x + i, "CompositeExplicitAutograd")
            assert registry.operators() == ["shop::" + each for each in TEAM_NAMES]
            for i, each in enumerate(TEAM_NAMES):
                assert getattr(registry.ops.shop, each)(10) == 10 + i
            registry.check_invariants()
            library.close()
        diary.write("lived")
    except NO_DISK as error:
        if "No space left" not in str(error):  # the disk is full now and then
            raise


NO_DISK = (md.errors.SystemCallError, md.errors.RegistryFullError)


# --- who deals the blows --------------------------------------------------------------------------


class Site(Killer):
    """One registry with all who have to do with it."""

    def __init__(
        self, name: str, seed: int, folder: Path, cast: tuple[tuple[str, ...], ...]
    ) -> None:
        super().__init__(0, 0, seed, folder)
        self.name, self.cast = name, cast
        self.total = Totals(allowed_ns=ALLOWED_NS)
        self.blows: dict[int, str] = {}  # of robbed processes, by their number
        self.began: list[Victim] = []
        self.alive: list[Victim] = []

    def live(self, kind: int, path: str, seed: int, leave: int) -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nobody outlives the run
        warnings.simplefilter("ignore")  # of forks beside threads, and of changed users
        for blow, number in BLOWS.items():
            signal.signal(number, LOSSES[blow])
        # Who has become another user before it has opened its diary can still write there.
        Path(path).touch()
        Path(path).chmod(0o666)
        os.write(self.is_up, b"x")
        if kind < 0:
            be_main(self.name, path, seed, leave)
        elif self.cast[kind] == ("member",):
            be_member(self.name, path, leave)
        elif self.cast[kind] == ("fork",):
            roles.Diary(path).run(fork_on, self.name)
        elif len(self.cast[kind]) == 1:
            in_thread(self.cast[kind][0], self.name, path, seed * 8)
        else:
            be_worker(self.cast[kind], self.name, path, seed)

    def start(self, kind: int, leave: int = -1) -> Victim:
        up, self.is_up = os.pipe()
        victim = super().start(kind, leave)
        os.close(self.is_up)
        os.read(up, 1)  # it knows the signals by which it is robbed
        os.close(up)
        self.began.append(victim)
        self.alive.append(victim)
        return victim

    def what(self, victim: Victim) -> str:
        blow = self.blows.get(victim.pid)
        return super().what(victim) + (f", robbed of its {blow}," if blow else "")

    def forgives(self, victim: Victim, said: str) -> bool:
        words = PROMISED.get(self.blows.get(victim.pid, ""), ())
        return any(word in said for word in words)

    def begin(self) -> None:
        self.began, self.alive, self.blows = [], [], {}
        self.read, self.write = os.pipe()
        self.main = self.start(-1, self.read)
        # A full disk, a killed predecessor: it may take the registrar a moment.
        self.registry = md.Registry.attach(self.name, timeout=HANG_SECONDS)
        for kind in range(len(self.cast)):
            self.start(kind)

    def finish(self, leaves: bool) -> None:
        """The end of its registrar, and of all others by it."""
        gone = 0
        self.alive.remove(self.main)
        if leaves:
            os.write(self.write, b"x")
            self.await_ends([self.main])
        else:
            gone = time.monotonic_ns()
            os.kill(self.main.pid, signal.SIGKILL)
            os.waitpid(self.main.pid, 0)
            self.total.kills += 1
            self.total.mains += 1
        self.await_ends(self.alive)
        os.close(self.read)
        os.close(self.write)
        self.compare(self.registry, self.main)
        self.registry.close()
        self.read_diaries(self.began, self.main, gone)
        self.total.rounds += 1

    def clear(self) -> None:
        """After a failure: there is nothing to judge any more."""
        for victim in self.alive:
            os.kill(victim.pid, signal.SIGKILL)
            os.waitpid(victim.pid, 0)

    def replace(self, victim: Victim) -> None:
        """Kills a worker or a member of a team, and starts another one of its kind."""
        os.kill(victim.pid, signal.SIGKILL)
        os.waitpid(victim.pid, 0)
        self.alive.remove(victim)
        self.total.kills += 1
        self.start(victim.kind, self.read)


class Team(Site):
    """A registry whose namespaces have registrars of their own."""

    def __init__(self, name: str, seed: int, folder: Path) -> None:
        super().__init__(name, seed, folder, (("member",),) * MEMBERS)
        self.lives = 0

    def begin(self) -> None:
        self.began, self.alive, self.blows = [], [], {}
        self.read, self.write = os.pipe()
        self.main = Victim(-1, 0, self.folder / "none")
        for kind in range(MEMBERS):
            self.start(kind, self.read)

    def finish(self, leaves: bool) -> None:
        os.write(self.write, b"x")
        self.await_ends(self.alive)
        os.close(self.read)
        os.close(self.write)
        for victim in self.began:
            text = victim.diary.read_text() if victim.diary.exists() else ""
            self.lives += text.count("lived")
        self.read_diaries(self.began, self.main, 0)
        with md.Registry.elect(self.name) as registry:  # nothing is left, under a name that serves
            if registry.operators():
                self.total.failures.append(f"{registry.operators()} is left of team {self.name}")
            registry.check_invariants()
        self.total.rounds += 1


class Blows:
    """One run."""

    def __init__(self, seconds: float, most: int, seed: int, folder: Path) -> None:
        self.end = time.monotonic() + seconds
        self.most, self.seed, self.dice = most, seed, Dice(seed)
        self.disk = own_disk(folder)
        name = f"mixed-{os.getpid()}"
        self.sites: list[Site] = []
        for i in range(MAINS + TEAMS):
            mine = folder / f"site{i}"
            mine.mkdir()
            if i < MAINS:
                self.sites.append(Site(f"{name}-{i}", seed * 8 + i, mine, CASTS[i]))
            else:
                self.sites.append(Team(f"{name}-{i}", seed * 8 + i, mine))
        self.counts = dict.fromkeys(("kill", "stop", "descriptor", "user", "memory", "disk"), 0)

    def deal(self) -> None:
        """One blow."""
        dice = self.dice
        select.select([], [], [], dice.below(100) / 1000)
        site = self.sites[dice.below(len(self.sites))]
        victim = site.alive[dice.below(len(site.alive))]
        blow = list(self.counts)[dice.below(6)]
        if (
            (blow == "disk" and self.disk is None)
            or (blow == "user" and os.geteuid() != 0)
            or (blow in BLOWS and victim.pid in site.blows)  # it has lost enough
        ):
            blow = "kill"
        self.counts[blow] += 1
        if blow == "kill":
            if victim is site.main:
                site.finish(leaves=dice.below(3) == 0)
                site.alive = []
                site.begin()
            else:
                site.replace(victim)
        elif blow == "stop":
            os.kill(victim.pid, signal.SIGSTOP)
            select.select([], [], [], dice.below(1000) / 1000)
            os.kill(victim.pid, signal.SIGCONT)
        elif blow == "disk":
            self.fill_disk(dice.below(500) / 1000)
        else:
            site.blows[victim.pid] = blow
            os.kill(victim.pid, BLOWS[blow])

    def fill_disk(self, seconds: float) -> None:
        assert self.disk is not None
        with tempfile.TemporaryFile(dir=self.disk) as ballast:
            free = 1
            while free:
                at = os.statvfs(self.disk)
                free = at.f_bavail * at.f_bsize
                try:
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, free)
                except OSError:
                    continue  # others have taken of it meanwhile, or it is full
            select.select([], [], [], seconds)

    def run(self) -> int:
        began = time.monotonic()
        load_everything()
        for site in self.sites:
            site.begin()
        while not self.failures() and time.monotonic() < self.end:
            self.deal()
            if self.most and sum(self.counts.values()) >= self.most:
                break
        for site in self.sites:
            if self.failures():
                site.clear()
            else:
                site.finish(leaves=True)
        self.report(time.monotonic() - began)
        return 1 if self.failures() else 0

    def failures(self) -> list[str]:
        return [failure for site in self.sites for failure in site.total.failures]

    def figures(self) -> dict:
        first, *others = [site.total.figures() for site in self.sites]
        for each in others:
            first.merge(each)
        first.count("blows", sum(self.counts.values()))
        first.count("operations", sum(h.lives for h in self.sites if isinstance(h, Team)))
        return first.as_dict()

    def report(self, seconds: float) -> None:
        totals = [site.total for site in self.sites]
        lives = sum(site.lives for site in self.sites if isinstance(site, Team))
        waits = sum(len(took) for t in totals for took in t.times.values())
        slowest = max(
            (max(took, default=0) for t in totals for took in t.times.values()), default=0
        )
        print(
            f"seed {self.seed}, {seconds:.0f} s:",
            *(f"{n} {what}" for what, n in self.counts.items()),
        )
        print(
            f"{sum(t.rounds for t in totals)} lives of registries, "
            f"{sum(t.mains for t in totals)} registrars killed; "
            f"{sum(t.acknowledged for t in totals)} acknowledged definitions, "
            f"{sum(t.compared for t in totals)} names compared, "
            f"{waits} waits, the slowest after {slowest / 1e6:.0f} ms, {lives} lives in teams"
        )
        if self.disk is None:
            print("no full disks: this user or machine allows no disk of the run's own")
        for failure in self.failures()[:10]:
            print("FAILED:", failure[:6000])
        if self.failures():
            blows = sum(self.counts.values())
            print(f"again: python stress/mixed_blows.py --seed {self.seed} --blows {blows}")


def own_disk(folder: Path) -> Path | None:
    """A disk of 64 MiB for registries, in a mount namespace of this process's own, so that it is
    gone with the last of the run's processes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    disk = folder / "disk"
    disk.mkdir()
    folder.chmod(0o711)  # who becomes another user has a folder of registries there, too
    private, new_mounts = 0x44000, 0x20000  # MS_PRIVATE and MS_REC; CLONE_NEWNS
    if (
        libc.unshare(new_mounts) != 0
        or libc.mount(b"none", b"/", None, private, None) != 0
        or libc.mount(b"tmpfs", bytes(disk), b"tmpfs", 0, b"size=64m,mode=1777") != 0
    ):
        return None
    os.environ["MDISPATCH_FOLDER"] = str(disk)
    return disk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--blows", type=int, default=0, help="end after so many")
    parser.add_argument("--figures", help="a file for the figures, as JSON")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1000 % 1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mdispatch-mixed-") as folder:
        blows = Blows(options.seconds, options.blows, options.seed, Path(folder))
        try:
            code = blows.run()
        finally:
            if blows.disk is not None:
                ctypes.CDLL(None).umount2(bytes(blows.disk), 2)  # MNT_DETACH
        if options.figures:
            Path(options.figures).write_text(json.dumps(blows.figures()))
    return code


if __name__ == "__main__":
    sys.exit(main())
