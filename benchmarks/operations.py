"""The operations whose instructions are counted, and the process that counts them: instructions.py
starts it under callgrind, as ``python -S operations.py FOLDER:FOLDER LAYOUT [OPERATION...]``.

Nothing is imported before ``import mdispatch`` but what every Python has loaded by then. Each
operation prepares what it needs, runs once to get warm, and once to be counted. What a process does
once only is counted at its first run.
"""

import gc
import sys
from itertools import count, repeat

__all__ = ["OPERATIONS", "run"]

#: Name, how often its work does it, the function that prepares the work, and a module that this
#: needs: in this order.
OPERATIONS = []
#: The sub-interpreters: CPython 3.11 loses the exit status of a process that leaves one.
_INTERPRETERS = []

_CALLS = 500
#: How often a statement stands in its loop, so that the loop itself is next to nothing.
_UNROLLED = 20
_LOOP = """
def work(_repeat=repeat, {names}):
    for _ in _repeat(None, {rounds}):
        {statements}
"""

_VERIFY = """
import gc, sys
gc.disable()
sys.path[:] = {path!r}
import mdispatch as md
library, numbers = md.Library("verified", "DEF"), iter(range({most}))
def kernel(x, factor=2.0):
    return x
def verify():
    for _ in range({repeats}):
        number = next(numbers)
        library.define(f"f{{number:03}}(Tensor x, float factor=2.0) -> Tensor")
        library.impl(f"f{{number:03}}", kernel, "CPU")
"""


class Array:
    pass


class Narrow(Array):
    pass


class Exchanged:
    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        return None


class Answers:
    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return args[0]


def _one(x):
    return x


def _two(x, y):
    return x


def _factor(x, factor=2.0):
    return x


def _accepts(x):
    return True


def _undecided():
    raise AssertionError("this choice has been made")


def operation(name, repeats, needs=""):
    """Adds an operation. The function below it returns its work, which does it ``repeats`` times;
    1 is for what a process does once. ``needs`` is a module that is dear to import.
    """

    def add(prepare):
        OPERATIONS.append((name, repeats, prepare, needs))
        return prepare

    return add


def _unrolled(statement, repeats=_CALLS, **names):
    """The work that runs a statement so often, with these local names bound."""
    scope = {"repeat": repeat, **names}
    text = _LOOP.format(
        names=", ".join(f"{name}={name}" for name in names),
        rounds=repeats // _UNROLLED,
        statements="\n        ".join([statement] * _UNROLLED),
    )
    exec(text, scope)
    return scope["work"]


def _library(namespace, kept={}):  # noqa: B006  # kept is meant to outlive the call
    """The one library of that namespace: it lives as long as the process."""
    import mdispatch as md

    if namespace not in kept:
        kept[namespace] = md.Library(namespace, "DEF")
    return kept[namespace]


def _array(kept={}):  # noqa: B006
    """The one object of a registered type."""
    import mdispatch as md

    if not kept:
        md.register_type(Array, "CPU")
        kept["array"] = Array()
    return kept["array"]


def _operator(schema, kernel=_one, key="CPU", **options):
    import mdispatch as md

    name = _library("counted").define(schema)
    _library("counted").impl(name, kernel, key, **options)
    return md.default_registry().ops.find(name)


@operation("import", 1)
def _():
    def work():
        import mdispatch  # noqa: F401

    return work


@operation("default registry", 1)
def _():
    import mdispatch as md

    return md.default_registry


@operation("first definition, kernel and call of a process", 1)
def _():
    import mdispatch as md

    md.default_registry()

    def work():
        library = _library("first")
        library.define("f(Tensor x, float factor=2.0) -> Tensor")
        library.impl("f", _factor, "CPU")
        md.ops.first.f(_array())

    return work


@operation("call", _CALLS)
def _():
    return _unrolled("f(x)", f=_operator("one(Tensor x) -> Tensor"), x=_array())


@operation("call, two arguments", _CALLS)
def _():
    f = _operator("two(Tensor x, Tensor y) -> Tensor", _two)
    return _unrolled("f(x, x)", f=f, x=_array())


@operation("call, keyword", _CALLS)
def _():
    f = _operator("keyword(Tensor x, float factor=2.0) -> Tensor", _factor)
    return _unrolled("f(x, factor=3.0)", f=f, x=_array())


@operation("call, md.ops.ns.f", _CALLS)
def _():
    import mdispatch as md

    _operator("attribute(Tensor x) -> Tensor")
    return _unrolled("md.ops.counted.attribute(x)", md=md, x=_array())


@operation("call, array of DLPack", _CALLS)
def _():
    return _unrolled("f(x)", f=_operator("dlpack(Tensor x) -> Tensor"), x=Exchanged())


@operation("call, array of NumPy", _CALLS, needs="numpy")
def _():
    import numpy

    return _unrolled("f(x)", f=_operator("numpy(Tensor x) -> Tensor"), x=numpy.ones(2))


@operation("call, int for float", _CALLS)
def _():
    f = _operator("real(float x) -> float", key="CompositeExplicitAutograd")
    return _unrolled("f(1)", f=f)


@operation("call, kernel in C", _CALLS)
def _():
    return _unrolled("f(x)", f=_operator("in_c(Tensor x) -> bool", callable), x=_array())


@operation("call, kernels by type", _CALLS)
def _():
    f = _operator("typed(Tensor x) -> Tensor", types=Array)
    _library("counted").impl("typed", _one, "CPU", types=Narrow)
    _array()
    return _unrolled("f(x)", f=f, x=Narrow())


@operation("call, kernels by plain type", _CALLS)
def _():
    library = _library("plain")
    name = library.define("f(Any x) -> Any")
    for cls in (int, str, list):
        library.impl(name, _one, types=cls)
    f = library.registry.ops.find(name)
    f(1)
    return _unrolled("f(1)", f=f)


@operation("call, custom_op of a text", _CALLS)
def _():
    import mdispatch as md

    def doubled(text: str, times: float = 2.0) -> str:
        return text

    return _unrolled("f('a', 2.0)", f=md.custom_op("counted::doubled", doubled))


@operation("call, provider with a predicate", _CALLS)
def _():
    f = _operator("provided(Tensor x) -> Tensor", provider="plain")
    options = {"provider": "fast", "order": 1, "supports": _accepts}
    _library("counted").impl("provided", _one, "CPU", **options)
    return _unrolled("f(x)", f=f, x=_array())


@operation("guard around a call", _CALLS)
def _():
    import mdispatch as md

    f, keys = _operator("guarded(Tensor x) -> Tensor"), md.DispatchKeySet("AutogradCPU")
    names = {"guard": md.context.ExcludeDispatchKeyGuard, "keys": keys, "f": f, "x": _array()}
    return _unrolled("with guard(keys): f(x)", **names)


@operation("call, in a mode", _CALLS)
def _():
    import mdispatch as md

    class Mode(md.context.DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return args[0]

    calls = _unrolled("f(x)", f=_operator("moded(Tensor x) -> Tensor"), x=_array())

    def work():
        with Mode():
            calls()

    return work


@operation("call, __md_dispatch__", _CALLS)
def _():
    return _unrolled("f(x)", f=_operator("answered(Tensor x) -> Tensor"), x=Answers())


@operation("call, custom_op", _CALLS)
def _():
    import mdispatch as md

    other = Array()  # what a custom_op returns has memory of its own
    options = {"mutates_args": (), "schema": "(Tensor x) -> Tensor"}
    f = md.custom_op("counted::custom", lambda x: other, **options)
    return _unrolled("f(x)", f=f, x=_array())


@operation("redispatch", _CALLS)
def _():
    import mdispatch as md

    f, keys = _operator("redispatched(Tensor x) -> Tensor"), md.DispatchKeySet("CPU")
    return _unrolled("again(keys, x)", again=f.redispatch, keys=keys, x=_array())


@operation("wait for what is there", 60)
def _():
    import mdispatch as md

    _operator("awaited(Tensor x) -> Tensor")
    return _unrolled("wait('counted::awaited')", 60, wait=md.wait_for_def)


@operation("choice that is there", _CALLS)
def _():
    import mdispatch as md

    profile, tiles = (128, 64), [16, 32, 64]
    md.choose("counted::tile", profile, tiles, lambda: 32)
    names = {"choose": md.choose, "profile": profile, "tiles": tiles, "decide": _undecided}
    return _unrolled("choose('counted::tile', profile, tiles, decide)", **names)


@operation("choice that is made", 25)
def _():
    import mdispatch as md

    name = _library("chosen").define("g(Tensor x) -> Tensor")
    sizes = count()
    md.choose(name, next(sizes), [16, 32], lambda: 16)

    def work():
        for _ in range(25):
            md.choose(name, next(sizes), [16, 32], lambda: 16)

    return work


@operation("define", 50)
def _():
    define, numbers = _library("defined").define, count()

    def work():
        for _ in range(50):
            define(f"f{next(numbers):03}(Tensor x, float factor=2.0) -> Tensor")

    return work


@operation("impl", 50)
def _():
    library, numbers = _library("implemented"), count()
    for number in range(100):
        library.define(f"f{number:03}(Tensor x, float factor=2.0) -> Tensor")

    def work():
        for _ in range(50):
            library.impl(f"f{next(numbers):03}", _factor, "CPU")

    return work


@operation("impl with a provider", 50)
def _():
    library = _library("provided")
    names = iter([library.define(f"p{number:03}(Tensor x) -> Tensor") for number in range(101)])
    library.impl(next(names), _one, "CPU", provider="plain")

    def work():
        for _ in range(50):
            library.impl(next(names), _one, "CPU", provider="plain")

    return work


@operation("first call of an operator", 20)
def _():
    import mdispatch as md

    x, library, numbers = _array(), _library("called"), count()
    for number in range(40):
        library.define(f"f{number:03}(Tensor x, float factor=2.0) -> Tensor")
        library.impl(f"f{number:03}", _factor, "CPU")

    def work():
        for _ in range(20):
            getattr(md.ops.called, f"f{next(numbers):03}")(x)

    return work


@operation("first call after a change", 20)
def _():
    import mdispatch as md

    f, x = _operator("changed(Tensor x) -> Tensor"), _array()

    def work():
        for _ in range(20):
            library = md.Library("counted", "IMPL")
            library.impl("changed", _one, "FPGA")
            library.close()
            f(x)

    return work


@operation("verify in a sub-interpreter", 25)
def _():
    import mdispatch as md

    library = _library("verified")
    for number in range(50):
        library.define(f"f{number:03}(Tensor x, float factor=2.0) -> Tensor")
        library.impl(f"f{number:03}", _factor, "CPU")
    interpreter = md.create_interpreter()
    _INTERPRETERS.append(interpreter)
    interpreter.exec(_VERIFY.format(path=sys.path, most=50, repeats=25))
    return lambda: interpreter.exec("verify()")


@operation("close", 25)
def _():
    import mdispatch as md

    libraries = [md.Library("closed", "FRAGMENT") for _ in range(2)]
    for each, library in enumerate(libraries):
        for number in range(25):
            name = library.define(f"f{each}_{number:02}(Tensor x, float factor=2.0) -> Tensor")
            library.impl(name, _factor, "CPU")
    return lambda: libraries.pop().close()


def run(counting, names=()):
    """Runs the operations of these names, or all, and tells ``counting`` (counting.c) what counts.
    Returns of each its name, how often it ran, and why it could not run, or "".
    """
    told = []
    counting.begin()
    for name, repeats, prepare, needs in OPERATIONS:
        if names and name not in names:
            continue
        try:
            if needs:
                counting.pause()  # which costs a second, and importing NumPy three
                try:
                    __import__(needs)
                finally:
                    counting.begin()
            work = prepare()
            if repeats > 1:
                work()
            counting.forget()
            work()
            counting.write_down()
        except Exception as error:
            told.append((name, repeats, f"{type(error).__name__}: {error}"))
        else:
            told.append((name, repeats, ""))
    while _INTERPRETERS:
        _INTERPRETERS.pop().close()
    return told


def _moved(layout):
    """Moves all that follows to other addresses. A method's location in CPython's cache of methods
    is made of addresses, and two of one place drive each other out: that costs up to 1.6 %.
    """
    kept = []
    for i in range(1000 * layout):
        kept.append(bytes(33 + 37 * (i % 12)))
        kept.append(sys.intern(f"name_{i}"))
        kept.append({i: i})
    return kept


def _main():
    import os
    import site  # noqa: F401  # -S left it out, and what it loads is there in every Python

    folders, layout, *names = sys.argv[1:]
    sys.path += folders.split(os.pathsep)
    import counting

    gc.disable()
    moved = _moved(int(layout))
    told = run(counting, names)
    del moved
    print(repr(told), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main()
