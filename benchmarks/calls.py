"""A call of each dispatcher, as a multiple of a plain Python call with the same arguments."""

from __future__ import annotations

import sys
from functools import partial

from .job import Job
from .peers import AGAIN, PEERS, PLAIN, SHAPES, Peer, Shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pyperf import Benchmark

__all__ = ["python_aim"]

#: The aim of an operator with a C kernel. See python_aim for one with a Python kernel.
_C_AIM = 1.3
#: By how many plain calls a keyword argument, or more kernels, may make a call longer.
_ABOVE = 0.3
#: How many times faster than these peers mdispatch has to be.
_FASTER = {"dict by type": 1.0, "ovld": 2.0, "torch.library": 20.0}
_US = "mdispatch"


def python_aim() -> float:
    """How many plain calls an operator with a Python kernel may take."""
    return 2.2 if sys.version_info < (3, 12) else 2.5


def _aim(shape: Shape, peer: str) -> float | None:
    aims = {"one": python_aim(), "two": python_aim(), "c-one": _C_AIM, "c-two": _C_AIM}
    return aims.get(shape.name) if peer == _US else None


def _called(peer: Peer, shape: Shape) -> None:
    case = peer.case(shape)
    eval(peer.call(shape), {"f": case.f, "x": case.x, "y": case.y})


def _measured(job: Job, peer: Peer, shape: Shape) -> Benchmark | None:
    """None for a peer that cannot do that here: it costs its own row only."""
    what = f"{peer.name}, {shape.what}"
    if peer.name != _US and not job.can(what, partial(_called, peer, shape)):
        return None

    def prepare() -> tuple[object, object, object]:
        case = peer.case(shape)
        return case.f, case.x, case.y

    return job.statement(what, peer.call(shape), "f, x, y", prepare)


def _peers(job: Job) -> list[Peer]:
    names = [name.strip() for name in job.args.peers.split(",") if name.strip()]
    if unknown := {*names} - {peer.name for peer in PEERS}:
        raise SystemExit(f"there is no peer {min(unknown)!r}: see --help")
    asked = [peer for peer in PEERS if not names or peer.name in names]
    for peer in asked:
        if peer.missing:
            job.left_out(peer.name, peer.missing)
    return [peer for peer in asked if not peer.missing]


def main() -> None:
    names = ", ".join(peer.name for peer in PEERS)
    job = Job(peers=f"only these, with commas between the names: {names}")
    peers = _peers(job)
    found: dict[str, dict[str, Benchmark | None]] = {}
    for shape in SHAPES:
        found[shape.name] = {
            peer.name: _measured(job, peer, shape) for peer in (PLAIN, AGAIN, *peers)
        }
    for shape in SHAPES:
        plain = found[shape.name].pop(PLAIN.name)
        for name, bench in found[shape.name].items():
            aim = _aim(shape, name)
            job.ratio(f"{shape.what}: {name} / plain call", bench, plain, aim=aim)
        ours = found[shape.name].get(_US)
        if shape.name == "one":
            first = ours, plain
        if shape.name in ("keyword", "kernels"):
            job.above(f"{shape.what}: {_US}, above 1 arg", (ours, plain), first, aim=_ABOVE)
        for name, aim in _FASTER.items():
            if shape.name in ("one", "two"):
                theirs = found[shape.name].get(name)
                job.ratio(f"{shape.what}: {name} / {_US}", theirs, ours, aim=aim, at_least=True)
    job.end()


if __name__ == "__main__":
    main()
