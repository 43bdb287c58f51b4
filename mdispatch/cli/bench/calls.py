"""A call of each dispatcher, as a multiple of a plain Python call with the same arguments.

One process measures them all, so they can also be compared with each other.
"""

from __future__ import annotations

import sys

from .figures import Figure, LeftOut, figure, ratio
from .measure import Settings, compiled, in_turns
from .peers import AGAIN, PEERS, PLAIN, SHAPES, Case, Peer, Shape, UnfitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .measure import Work

    #: Seconds of one's own, and of the plain call before it, round by round.
    Pair = tuple[list[float], list[float]]
    Times = dict[str, Pair]

ROUNDS = 80
#: The aim of an operator with a C kernel. See python_aim for one with a Python kernel.
_C_AIM = 1.3
#: How much a keyword argument, more kernels or more operators may add to a call.
_ABOVE = 0.3
#: How many times faster than these peers mdispatch has to be.
_FASTER = {"dict by type": 1.0, "ovld": 2.0, "torch.library": 20.0}
_US = "mdispatch"


def python_aim() -> float:
    return 2.2 if sys.version_info < (3, 12) else 2.5


def _aim(shape: Shape, peer: str) -> float | None:
    if peer != _US:
        return None
    return {"one": python_aim(), "two": python_aim(), "c-one": _C_AIM, "c-two": _C_AIM}.get(
        shape.name
    )


def figures(asked: Settings) -> Iterator[Figure | LeftOut]:
    works: dict[str, Work] = {}
    for peer in (AGAIN, *PEERS):
        if asked.peers is None or peer is AGAIN or peer.name in asked.peers:
            if peer.missing:
                yield LeftOut(peer.name, peer.missing)
            else:
                yield from _prepared(peer, works)
    plain = {f"{shape.name}/{PLAIN.name}": _work(shape, PLAIN.case(shape)) for shape in SHAPES}
    against = {name: f"{name.partition('/')[0]}/{PLAIN.name}" for name in works}
    times = in_turns(plain | works, against, asked, ROUNDS)
    yield from _calls(times)
    yield from _compared(times)


def _prepared(peer: Peer, works: dict[str, Work]) -> Iterator[LeftOut]:
    """Adds the works that this peer can do, and yields those that it cannot. Each work runs once
    before it is added: a call that a newer version of a peer refuses costs its own row only.
    """
    for shape in SHAPES:
        try:
            work = _work(shape, peer.case(shape))
            work(1)
        except UnfitError as reason:
            yield LeftOut(f"{peer.name}, {shape.what}", str(reason))
        except Exception as error:
            if peer.name == _US:
                raise
            yield LeftOut(f"{peer.name}, {shape.what}", f"{type(error).__name__}: {error}")
        else:
            works[f"{shape.name}/{peer.name}"] = work


def _work(shape: Shape, case: Case) -> Work:
    call = case.call or shape.call
    names = {"f": case.f, "x": case.x, "y": case.y}
    return compiled(call, {name: each for name, each in names.items() if name in call})


def compared(
    what: str, these: Pair, those: Pair, *, aim: float | None = None, at_least: bool = False
) -> Figure:
    """The ratio of two ratios of the same run."""
    rounds = [a / b for a, b in zip(_ratios(these), _ratios(those), strict=True)]
    best = _best(these) / _best(those)
    return figure(what, rounds, "x", aim=aim, at_least=at_least, best=best)


def above(what: str, these: Pair, first: Pair) -> Figure:
    """By how many plain calls these take more than the first ones."""
    rounds = [a - b for a, b in zip(_ratios(these), _ratios(first), strict=True)]
    return figure(what, rounds, "+x", aim=_ABOVE, best=_best(these) - _best(first))


def _ratios(pair: Pair) -> list[float]:
    return [a / b for a, b in zip(*pair, strict=True)]


def _best(pair: Pair) -> float:
    return min(pair[0]) / min(pair[1])


def _calls(times: Times) -> Iterator[Figure]:
    for shape in SHAPES:
        plain = [b for name in times if name.startswith(f"{shape.name}/") for b in times[name][1]]
        yield figure(shape.what, plain, "ns", scale=1e9, peer=PLAIN.name)
        for peer in (AGAIN, *PEERS):
            if found := times.get(f"{shape.name}/{peer.name}"):
                yield ratio(shape.what, *found, aim=_aim(shape, peer.name), peer=peer.name)


def _compared(times: Times) -> Iterator[Figure]:
    """mdispatch with itself, and with others."""
    if f"one/{_US}" not in times:
        return
    first = times[f"one/{_US}"]
    for shape in SHAPES:
        if shape.name in ("keyword", "kernels"):
            yield above(
                f"mdispatch: {shape.what}, above 1 arg", times[f"{shape.name}/{_US}"], first
            )
    for peer, aim in _FASTER.items():
        if f"one/{peer}" in times:
            for shape in SHAPES[:2]:
                these, ours = (times[f"{shape.name}/{each}"] for each in (peer, _US))
                what = f"{peer} / mdispatch, {shape.what}"
                yield compared(what, these, ours, aim=aim, at_least=True)
