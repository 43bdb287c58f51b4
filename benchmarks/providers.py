"""Calls that choose among providers: by how many plain calls of the kernel they take more than a
call of an operator with one kernel.
"""

from __future__ import annotations

import mdispatch as md

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNROLLED = 20
_ONE = "one kernel"
#: What is open until the process ends.
_GUARDS: list[md.Handle] = []


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


_BY_ORDER: list[dict[str, Any]] = [{"provider": f"p{order}", "order": order} for order in range(3)]


def _asks(*supports: Any) -> list[dict[str, Any]]:
    """Three providers, of which the first ones have these predicates."""
    these = (*supports, None, None)
    return [{**each, "supports": these[2 - i]} for i, each in enumerate(_BY_ORDER)]


#: The providers, what guards have asked for before, and whether one is open; and the aim.
_CALLS: dict[str, tuple[list[dict[str, Any]], bool | None, float | None]] = {
    "three providers by order": (_BY_ORDER, None, 0.2),
    "three providers by type": (
        [{**_BY_ORDER[0], "types": Array}, {**_BY_ORDER[1], "types": Other}, _BY_ORDER[2]],
        None,
        0.2,
    ),
    "the first has a predicate, which accepts": (_asks(_takes), None, 2.5),
    "the first two have predicates, the first refuses": (_asks(_refuses, _takes), None, None),
    "the first two refuse": (_asks(_refuses, _refuses), None, None),
    "a guard was open": (_BY_ORDER, False, 0.3),
    "a guard is open": (_BY_ORDER, True, 0.3),
    "a guard is open, and a predicate accepts": (_asks(None, _takes), True, 2.8),
}


def main() -> None:
    job = Job()
    md.register_type(Array, "CPU")
    md.register_type(Other, "CPU")
    array = Array()
    registry = md.Registry.create()
    library = md.Library("providers", "DEF", registry=registry)

    def measured(what: str, kernels: list[dict[str, Any]], guarded: bool | None) -> Any:
        name = f"f{[_ONE, *_CALLS].index(what)}"

        def prepare() -> tuple[Any, ...]:
            full = library.define(f"{name}(Tensor x) -> Tensor")
            for each in kernels:
                library.impl(full, _kernel, "CPU", **each)
            operator = registry.ops.find(full)
            if guarded is not None:
                guard = md.priority(operator, ["p1"])
                if guarded:
                    _GUARDS.append(guard)
                else:
                    guard.close()
            return operator, array

        return job.statement(what, "f(x)", "f, x", prepare, times=_UNROLLED)

    plain = job.statement("plain call", "f(x)", "f, x", lambda: (_kernel, array), times=_UNROLLED)
    one = measured(_ONE, [{}], None)
    job.ratio(f"{_ONE} / plain call", one, plain)
    for what, (kernels, guarded, aim) in _CALLS.items():
        these = measured(what, kernels, guarded), plain
        job.above(f"{what}: above one kernel", these, (one, plain), aim=aim)
    job.end()


if __name__ == "__main__":
    main()
