"""What a process can lose, and what it does then: each cell of the table in docs/reliability.md
under "What a process can lose" is played by real processes, and what is seen is its promise.

What holds in every cell is not in the table: nobody hangs, and who has lost nothing finds what was
registered, registers and is told of a registry without a fault.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from losing import LOSSES, Actor, Scene
from registries import FOLDER

from mdispatch.facts import DEF

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

NEVER = 'md.wait_for_def("shop::unheard_of", {seconds}, registry=registry)'
LATER = 'md.wait_for_def("shop::later", {seconds}, registry=registry)'
DEFINE_LATER = 'lib.define("later(Tensor x) -> Tensor")'
CHECK = "registry.check_invariants(); answer = registry.dispatcher.facts.stat()[6]"  # recoveries
# Until the registry has grown.
FILL = """
arguments = ", ".join(f"Tensor x{i:0200}" for i in range(60))
facts = registry.dispatcher.facts
committed, i = facts.stat()[1], 0
while facts.stat()[1] == committed:
    lib.define(f"long_{i}({arguments}) -> Tensor")
    i += 1
"""
OVER = {"NotRegisteredError", "NameMismatchError", "MainNeverArrivedError"}  # its limit of time
LONG = 60  # seconds: for what comes


class Loss:
    """One process of a scene that loses something."""

    def __init__(self, scene: Scene, what: str, hold: str) -> None:
        self.scene = scene
        self.what = what
        self.hold = hold
        self.takes_time = what == "its time"

    def main(self) -> tuple[Actor, Actor]:
        return self.scene.orphan() if self.what == "its parent" else self.scene.main()

    def worker(self) -> tuple[Actor, Actor]:
        """A registrar, and a worker; the registrar is the parent that the worker can lose."""
        main, worker = self.scene.main()
        if self.what == "its parent":
            self.scene.fork(main, worker)
        else:
            worker = self.scene.worker()
        return main, worker

    def befall(self, victim: Actor) -> None:
        victim.do(LOSSES[self.what])
        if self.takes_time:
            victim.stop()

    def end(self, victim: Actor) -> None:
        if self.takes_time:
            victim.go_on()

    def said(self, error: str) -> str:
        return f"`{error}`" if error else "yes, when it goes on" if self.takes_time else "yes"


def whole(scene: Scene) -> None:
    """For who comes now: all is there, and nothing has a fault."""
    one = scene.worker()
    one.do('md.wait_for_def("shop::old", 0, registry=registry)')
    one.do(CHECK)


def is_swept(worker: Actor) -> str:
    """Adds to what is said when a worker is no member any more since somebody joined."""
    gone, _ = worker.attempt('md.wait_for_def("shop::old", 0, registry=registry)')
    if not gone:
        return ""
    worker.do("registry.close(); registry = md.Registry.attach(name)")
    worker.do('md.wait_for_def("shop::old", 0, registry=registry)')
    return f"; then `{gone}`, until it opens the registry again"


def registers(loss: Loss) -> str:
    main, _ = loss.main()
    other = loss.scene.worker()
    loss.befall(main)
    if loss.takes_time:  # nobody waits beyond a limit of its own
        assert other.attempt(NEVER.format(seconds=0.1))[0] in OVER
    loss.end(main)
    said = loss.said(main.attempt(DEFINE_LATER)[0])
    if said.startswith("yes"):
        error, _ = main.attempt(FILL)
        if error:
            said = f"as far as there is memory, then `{error}`"
        other.do(LATER.format(seconds=LONG))
        other.do("registry.check_invariants()")
    told, _ = other.attempt(NEVER.format(seconds=0))
    if told == "RegistrarGoneError":
        return f"{said}; who waits is told that it died"
    assert told in OVER
    whole(loss.scene)
    return said


def waits(loss: Loss) -> str:
    main, worker = loss.worker()
    if loss.what == "its parent":
        main.kill()
        return loss.said(worker.attempt(LATER.format(seconds=LONG))[0])
    if loss.takes_time:
        seconds = 0.5
        worker.begin(LATER.format(seconds=seconds))
        worker.until_asleep()
        began = time.monotonic()
        worker.stop()
        main.do(DEFINE_LATER)
        time.sleep(max(0, began + seconds - time.monotonic()))  # its limit is over
        worker.go_on()
        error, _ = worker.end()
    else:
        loss.befall(worker)
        worker.begin(LATER.format(seconds=LONG))
        worker.until_asleep()
        main.do(DEFINE_LATER)
        error, _ = worker.end()
    assert error or worker.attempt(NEVER.format(seconds=0.05))[0] in OVER
    whole(loss.scene)
    swept = is_swept(worker)
    worker.begin(NEVER.format(seconds=LONG))
    worker.until_asleep()
    main.kill()
    assert worker.end()[0] == "RegistrarGoneError"
    return loss.said(error) + swept


def recovers(loss: Loss) -> str:
    main, worker = loss.worker()
    if loss.what == "its descriptor":  # without it the worker does not see that more is backed
        main.do(FILL)
    with subprocess.Popen([loss.hold, loss.scene.name], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        if loss.what == "its parent":
            main.kill()
        else:
            loss.befall(worker)
        holder.kill()
    if loss.takes_time:
        main.do(DEFINE_LATER)
    loss.end(worker)
    error, answer = worker.attempt(CHECK)
    if loss.what == "its parent":
        assert worker.attempt(NEVER.format(seconds=LONG))[0] == "RegistrarGoneError"
        assert answer == 1
        return loss.said(error)
    assert main.do(CHECK) == 1
    whole(loss.scene)
    if loss.takes_time or error:
        return f"`{error}`; the next one does" if error else "the next one does"
    return loss.said(error) + is_swept(worker)


def leaves(loss: Loss) -> str:
    main, _ = loss.main()
    other = loss.scene.worker()
    other.begin(NEVER.format(seconds=LONG))
    other.until_asleep()
    loss.befall(main)
    loss.end(main)
    told = other.end()[0] if loss.what == "its main thread" else ""  # of that already
    said = loss.said(main.attempt("registry.close()")[0])
    told = told or other.end()[0]
    stays = Path(FOLDER, loss.scene.name).exists()
    main.kill()
    again, _ = loss.scene.main()  # the name serves again
    again.do(CHECK)
    if told == "RegistrarGoneError":
        return f"{said}; who waits is told that it died"
    assert told == "RegistryClosedError"
    return f"{said}; the name stays until the next one takes it" if stays else said


def forks(loss: Loss) -> str:
    main, child = loss.main()
    other = loss.scene.worker()
    loss.befall(main)
    loss.end(main)
    loss.scene.fork(main, child)
    if loss.takes_time:
        main.stop()
        assert child.attempt(NEVER.format(seconds=0.1))[0] in OVER
        main.go_on()
    child.begin(LATER.format(seconds=LONG))
    child.until_asleep()
    main.do(DEFINE_LATER)
    error, _ = child.end()
    child.do(f"assert registry.dispatcher.facts.find({DEF}, 0, 'shop::old')")  # in any case
    other.do(LATER.format(seconds=LONG))
    other.do(CHECK)
    main.do('lib.define("last(Tensor x) -> Tensor")')
    return loss.said(error)


DEEDS: dict[str, Callable[[Loss], str]] = {
    "registers": registers,
    "waits": waits,
    "recovers": recovers,
    "leaves": leaves,
    "forks": forks,
}


def promises() -> Iterator[tuple[str, str, str]]:
    """The cells of the table: what is lost, what is done then, what is promised."""
    text = PAGE.read_text().split("\n### What a process can lose\n")[1].split("\n### ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    (_, *deeds), *losses = rows
    for loss, *cells in losses:
        yield from ((loss, deed, cell) for deed, cell in zip(deeds, cells, strict=True))


def test_the_table_has_each_loss_with_each_deed() -> None:
    cells = [(loss, deed) for loss, deed, _ in promises()]
    assert cells == [(loss, deed) for loss in LOSSES for deed in DEEDS]


@pytest.mark.parametrize(
    ("loss", "deed", "promise"), [pytest.param(*cell, id="-".join(cell[:2])) for cell in promises()]
)
def test_who_lost_something_keeps_the_promise_of_the_table(loss, deed, promise, hold) -> None:
    if loss == "its rights" and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with Scene(f"losses-{os.getpid()}") as scene:
        assert DEEDS[deed](Loss(scene, loss, hold)) == promise
