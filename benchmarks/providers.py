"""Calls that choose among providers: by how many plain calls of the kernel they take more than a
call of an operator with one kernel, in the same round.
"""

from __future__ import annotations

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, figure, ratio
from mdispatch.cli.bench.measure import Settings, compiled, in_turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["figures"]

ROUNDS = 40
_UNROLLED = 20
_ONE = "one kernel"


class Array:
    pass


class Other:
    pass


def _kernel(x: Any) -> Any:
    return x


def _takes(x: Any) -> bool:
    return True


def _refuses(x: Any) -> bool:
    return False


_BY_RANK: list[dict[str, Any]] = [{"provider": f"p{rank}", "rank": rank} for rank in range(3)]


def _asks(*supports: Any) -> list[dict[str, Any]]:
    """Three providers, of which the first ones have these predicates."""
    these = (*supports, None, None)
    return [{**each, "supports": these[2 - i]} for i, each in enumerate(_BY_RANK)]


#: The providers, what guards have asked for before, and whether one is open; and the aim.
_CALLS: dict[str, tuple[list[dict[str, Any]], bool | None, float | None]] = {
    "three providers by rank": (_BY_RANK, None, 0.2),
    "three providers by type": (
        [{**_BY_RANK[0], "types": Array}, {**_BY_RANK[1], "types": Other}, _BY_RANK[2]],
        None,
        0.2,
    ),
    "the first has a predicate, which accepts": (_asks(_takes), None, 2.5),
    "the first two have predicates, the first refuses": (_asks(_refuses, _takes), None, None),
    "the first two refuse": (_asks(_refuses, _refuses), None, None),
    "a guard was open": (_BY_RANK, False, 0.3),
    "a guard is open": (_BY_RANK, True, 0.3),
    "a guard is open, and a predicate accepts": (_asks(None, _takes), True, 2.8),
}


def figures(asked: Settings) -> Iterator[Figure]:
    md.register_type(Array, "CPU")
    md.register_type(Other, "CPU")
    array = Array()
    plain = "plain call"
    works = {plain: compiled("; ".join(["f(x)"] * _UNROLLED), {"f": _kernel, "x": array})}
    guards = []
    with md.Registry.create() as registry:
        library = md.Library("providers", "DEF", registry=registry)
        for number, what in enumerate((_ONE, *_CALLS)):
            kernels, guarded, _ = _CALLS.get(what, ([{}], None, None))
            name = library.define(f"f{number}(Tensor x) -> Tensor")
            for each in kernels:
                library.impl(name, _kernel, "CPU", **each)
            operator = registry.ops.find(name)
            if guarded is not None:
                guard = md.priority(operator, ["p1"])
                guards.append(guard)
                if not guarded:
                    guard.close()
            works[what] = compiled("; ".join(["f(x)"] * _UNROLLED), {"f": operator, "x": array})
        times = in_turns(works, dict.fromkeys((_ONE, *_CALLS), plain), asked, ROUNDS)
        for guard in guards:
            guard.close()
    yield ratio(_ONE, *times[_ONE])
    one = [these / those for these, those in zip(*times[_ONE], strict=True)]
    for what, (_, _, aim) in _CALLS.items():
        mine = [these / those for these, those in zip(*times[what], strict=True)]
        more = [a - b for a, b in zip(mine, one, strict=True)]
        yield figure(f"{what}: above one kernel", more, "+x", aim=aim)
