"""Ways to call an operator, as multiples of a plain Python call: by its overload, by its packet, by
attributes; with other operators around; redispatched.
"""

from __future__ import annotations

import mdispatch as md
from mdispatch.cli.bench.calls import above, compared, python_aim
from mdispatch.cli.bench.figures import Figure, ratio
from mdispatch.cli.bench.measure import Settings, compiled, in_turns
from mdispatch.cli.bench.peers import of_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["figures"]

ROUNDS = 80
_OTHERS, _QUICK_OTHERS = 10_000, 200
_CAPACITY = 256 << 20
_REDISPATCH_AIM = 1.5
_CALL = "operator at hand"
_PLAIN = "plain call"
#: As it stands in people's code, without a loop around it.
_WRITTEN_OUT = "md.ops.ns.f(x), unrolled"
_UNROLLED, _WRITTEN_OUT_AIM = 20, 4.0


class Array:
    pass


def _unrolled(call: str) -> str:
    return "; ".join([call] * _UNROLLED)


def _operator(registry: md.Registry, others: int = 0) -> md.OpOverload:
    """An operator with a Python kernel, among so many others with one."""
    library = md.Library("bench", "DEF", registry=registry)
    for i in range(others):
        name = library.define(f"other_{i:05}(Tensor x) -> Tensor")
        library.impl(name, of_one, "CPU")
    library.impl(library.define("f(Tensor x) -> Tensor"), of_one, "CPU")
    return registry.ops.find("bench::f")


def figures(asked: Settings) -> Iterator[Figure]:
    md.register_type(Array, "CPU")
    x = Array()
    others = _QUICK_OTHERS if asked.quick else _OTHERS
    # Each with the registry to itself that its operator is in.
    with (
        md.Registry.create() as registry,
        md.Registry.create(capacity=_CAPACITY) as crowded,
    ):
        f, among = _operator(registry), _operator(crowded, others)
        key_set = md.DispatchKeySet("CPU")
        crowd = f"{others:,} other operators"
        _operator(md.default_registry())
        works = {
            _PLAIN: compiled("f(x)", {"f": of_one, "x": x}),
            _CALL: compiled("f(x)", {"f": f, "x": x}),
            crowd: compiled("f(x)", {"f": among, "x": x}),
            "packet at hand": compiled("f(x)", {"f": registry.ops.bench.f, "x": x}),
            "ops.ns.f(x)": compiled("ops.bench.f(x)", {"ops": registry.ops, "x": x}),
            "ops.ns.f.default(x)": compiled(
                "ops.bench.f.default(x)", {"ops": registry.ops, "x": x}
            ),
            "redispatch(keys, x)": compiled(
                "redispatch(keys, x)", {"redispatch": f.redispatch, "keys": key_set, "x": x}
            ),
            _WRITTEN_OUT: compiled(_unrolled("md.ops.bench.f(x)"), {"md": md, "x": x}),
        }
        against = dict.fromkeys([name for name in works if name != _PLAIN], _PLAIN)
        against[_WRITTEN_OUT] = f"{_PLAIN}, unrolled"
        works[against[_WRITTEN_OUT]] = compiled(_unrolled("f(x)"), {"f": of_one, "x": x})
        times = in_turns(works, against, asked, ROUNDS)
    aims = {_CALL: python_aim(), _WRITTEN_OUT: _WRITTEN_OUT_AIM}
    for name in against:
        yield ratio(name, *times[name], aim=aims.get(name))
    call = times[_CALL]
    yield above(f"{crowd}, above the call without", times[crowd], call)
    yield compared("packet / overload", times["packet at hand"], call)
    redispatched = times["redispatch(keys, x)"]
    yield compared("redispatch / call", redispatched, call, aim=_REDISPATCH_AIM)
