"""Ways to call an operator, as multiples of a plain Python call: by its overload, by its packet, by
attributes; with other operators around; redispatched.
"""

from __future__ import annotations

import mdispatch as md

from .calls import python_aim
from .job import Job
from .peers import of_one

_OTHERS, _QUICK_OTHERS = 10_000, 200
_CAPACITY = 256 << 20
_REDISPATCH_AIM = 1.5
#: By how many plain calls other operators may make a call longer.
_ABOVE = 0.3
_CALL = "operator at hand"
_PLAIN = "plain call"
#: As it stands in people's code, without a loop around it.
_WRITTEN_OUT = "md.ops.ns.f(x), unrolled"
_UNROLLED, _WRITTEN_OUT_AIM = 20, 4.0


class Array:
    pass


def _operator(registry: md.Registry, others: int = 0) -> md.OpOverload:
    """An operator with a Python kernel, among so many others with one."""
    library = md.Library("bench", "DEF", registry=registry)
    for i in range(others):
        name = library.define(f"other_{i:05}(Tensor x) -> Tensor")
        library.impl(name, of_one, "CPU")
    library.impl(library.define("f(Tensor x) -> Tensor"), of_one, "CPU")
    return registry.ops.find("bench::f")


def main() -> None:
    job = Job()
    md.register_type(Array, "CPU")
    x = Array()
    others = _QUICK_OTHERS if job.quick else _OTHERS

    def among(count: int) -> tuple[object, ...]:
        registry = md.Registry.create(capacity=_CAPACITY)
        return _operator(registry, count), x

    def through(registry: md.Registry, found: object) -> tuple[object, ...]:
        _operator(registry)
        return found, x

    def redispatch() -> tuple[object, ...]:
        return among(0)[0].redispatch, md.DispatchKeySet("CPU"), x

    def packet() -> tuple[object, ...]:
        registry = md.Registry.create()
        _operator(registry)
        return registry.ops.bench.f, x

    def ops() -> tuple[object, ...]:
        registry = md.Registry.create()
        return through(registry, registry.ops)

    plain = job.statement(_PLAIN, "f(x)", "f, x", lambda: (of_one, x))
    call = job.statement(_CALL, "f(x)", "f, x", lambda: among(0))
    crowd = f"{others:,} other operators"
    found = {
        _CALL: call,
        crowd: job.statement(crowd, "f(x)", "f, x", lambda: among(others)),
        "packet at hand": job.statement("packet at hand", "f(x)", "f, x", packet),
        "ops.ns.f(x)": job.statement("ops.ns.f(x)", "ops.bench.f(x)", "ops, x", ops),
        "ops.ns.f.default(x)": job.statement(
            "ops.ns.f.default(x)", "ops.bench.f.default(x)", "ops, x", ops
        ),
        "redispatch(keys, x)": job.statement(
            "redispatch(keys, x)", "f(keys, x)", "f, keys, x", redispatch
        ),
    }
    unrolled = job.statement(
        f"{_PLAIN}, unrolled", "f(x)", "f, x", lambda: (of_one, x), times=_UNROLLED
    )
    written_out = job.statement(
        _WRITTEN_OUT,
        "md.ops.bench.f(x)",
        "md, x",
        lambda: through(md.default_registry(), md),
        times=_UNROLLED,
    )
    for name, bench in found.items():
        job.ratio(f"{name} / {_PLAIN}", bench, plain, aim=python_aim() if name == _CALL else None)
    job.ratio(f"{_WRITTEN_OUT} / {_PLAIN}", written_out, unrolled, aim=_WRITTEN_OUT_AIM)
    with_, without = (found[crowd], plain), (call, plain)
    job.above(f"{crowd}, above the call without", with_, without, aim=_ABOVE)
    job.ratio("packet / overload", found["packet at hand"], call)
    job.ratio("redispatch / call", found["redispatch(keys, x)"], call, aim=_REDISPATCH_AIM)
    job.end()


if __name__ == "__main__":
    main()
