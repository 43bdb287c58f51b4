"""The Python API: programs of libraries, definitions, kernels, calls, waits and questions with odd
values. Only errors of mdispatch.errors and TypeError come out, and the invariants hold at the end.

An input is a program: four bytes an op, what it does and which values it takes. Each has a registry
of its own.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import driver

if "--plain" not in sys.argv and driver.atheris_is_there():
    import atheris

    with atheris.instrument_imports(include=["mdispatch"]):
        import mdispatch as md
        import mdispatch.registry
        import mdispatch.registry.library
        import mdispatch.registry.waiting
import mdispatch as md
from mdispatch.cli import stubs
from mdispatch.errors import MdispatchError, PystubOverrideWarning

OPS = 40
CAPACITY = 1 << 20


class Thing:
    """An object of a kind that nobody has heard of."""


NAMES = [
    *("a", "b", "ns::a", "ns::b.out", "other::c", "a.x", "", "::", "ns::", "a::b::c", ".", "é"),
    *("\0", "\ud800", "x" * 300, "ns::" + "y" * 1100, " a", "__init__", "ns::a.default", "0"),
]
SCHEMAS = [
    *("a(Tensor x) -> Tensor", "b.out(Tensor x, *, int n=2) -> (Tensor, int)", "a(int[] x) -> ()"),
    *("ns::a(Any x, ...) -> Any", "c(Tensor(a!) x) -> Tensor(a!)", "a(", "other::c() -> int"),
    *("b(str s='q', float? f=None) -> str", "a(Tensor x) -> Tensor", "d(Tensor[2] x) -> Tensor[]"),
]
KEYS = [
    *(
        "CPU",
        "CUDA",
        "",
        "CompositeImplicitAutograd",
        "Autograd",
        "AutogradCPU",
        "Meta",
        "Undefined",
    ),
    *("BackendSelect", "nonsense", "Python", "CompositeExplicitAutograd", md.DispatchKey.CPU),
]
ODD = [
    *(None, 0, -1, 1 << 70, 1.5, float("nan"), True, b"a", [], (), {}, set(), object(), Thing),
    *("\0", "ns::a", ["a"], "x" * 70_000, Thing(), lambda: None, len, KeyError("k"), range(3)),
]
KERNELS: list[object] = [
    *(lambda *a, **k: a[0] if a else 0, lambda x: x, lambda: None, lambda x, n=2: (x, n)),
    *(print, len, Thing, int, None, "no callable", lambda x, *, n: x),
]
KINDS = ["DEF", "FRAGMENT", "IMPL", "def", "", None]


class Program:
    """One execution: a registry, what was opened in it, and where in the input it stands."""

    def __init__(self, registry: md.Registry) -> None:
        self.registry = registry
        self.libraries: list[md.Library] = []
        self.a = self.b = self.c = 0

    def pick(self, values: list, n: int) -> object:
        """A value of the kind that is wanted, or now and then of any other."""
        return ODD[n // 8 % len(ODD)] if n >= 232 else values[n % len(values)]

    def library(self) -> md.Library:
        if not self.libraries:
            self.open()
        return self.libraries[self.a % len(self.libraries)]

    def open(self) -> None:
        namespace = ["ns", "other", "_", "ns", "a.b", ""][self.b % 6]
        values = (self.pick([namespace], self.b), self.pick(KINDS[:3], self.c))
        key = self.pick(KEYS, self.a) if self.a & 1 else ""
        # From several locations: a library opened again from the same one replaces the earlier one.
        if self.a & 2:
            library = md.Library(*values, key, registry=self.registry, timeout=0)
        else:
            library = md.Library(*values, key, registry=self.registry, timeout=0)
        self.libraries.append(library)

    def define(self) -> None:
        tags = self.pick([(), "core", ["a", "b"]], self.c)
        self.library().define(self.pick(SCHEMAS, self.b), tags=tags)

    def impl(self) -> None:
        kernel, key = self.pick(KERNELS, self.c), self.pick(KEYS, self.a)
        self.library().impl(self.pick(NAMES, self.b), kernel, key)

    def fallback(self) -> None:
        self.library().fallback(self.pick(KERNELS, self.b), self.pick(KEYS, self.c))

    def fake(self) -> None:
        self.library().register_fake(self.pick(NAMES, self.b), self.pick(KERNELS, self.c))

    def stub(self) -> None:
        if self.c & 1:
            self.library().set_python_module(self.pick(["m.n", None, "", "1x"], self.b))
        else:
            self.library().register_python_module(self.pick(NAMES, self.b), "m.n", "why")

    def name(self) -> None:
        self.library().register_name(self.pick(NAMES, self.b))

    def close(self) -> None:
        self.library().close()

    def call(self) -> None:
        namespace = getattr(self.registry.ops, ["ns", "other", "nowhere"][self.a % 3])
        operator = getattr(namespace, ["a", "b", "c", "d", "e"][self.b % 5])
        if self.b & 128:
            operator = getattr(operator, ["default", "out", "x"][self.b % 3])
        arguments = [self.pick([1, 2.0, "s"], self.c + i) for i in range(self.a % 4)]
        operator(*arguments, **({"n": 3} if self.c & 1 else {}))

    def wait(self) -> None:
        if self.c & 1:
            md.wait_for_def(self.pick(NAMES, self.b), 0, registry=self.registry)
        elif self.c & 2:
            timeout = self.pick([0], self.c)
            if timeout is None or (isinstance(timeout, int | float) and timeout > 0):
                return  # it would wait
            md.wait_for_def(self.pick(NAMES, self.b), timeout, registry=self.registry)
        else:
            key = self.pick(KEYS, self.a)
            md.wait_for_impl(self.pick(NAMES, self.b), key, 0, registry=self.registry)

    def ask(self) -> None:
        registry, name = self.registry, self.pick(NAMES, self.b)
        questions: list[Callable[[], object]] = [
            lambda: str(registry.why(name)),
            lambda: str(registry.why(name, [self.pick(KEYS, self.a)])),
            lambda: registry.table(name),
            lambda: registry.dump(name),
            lambda: registry.dump_table(name),
            lambda: registry.registrations(name),
            lambda: registry.operators(),
            lambda: registry.namespaces(),
            lambda: registry.dangling_implementations(),
            lambda: registry.check_invariants(name),
            lambda: stubs.stub_text(registry, "fuzz"),
            lambda: repr(registry) + repr(self.libraries),
        ]
        questions[self.c % len(questions)]()

    def run(self, data: bytes) -> None:
        actions = [self.open, self.define, self.define, self.impl, self.impl, self.fallback]
        actions += [self.fake, self.stub, self.name, self.close, self.call, self.call]
        actions += [self.wait, self.ask, self.ask]
        for at in range(0, min(len(data), 4 * OPS) - 3, 4):
            what, self.a, self.b, self.c = data[at : at + 4]
            try:
                actions[what % len(actions)]()
            except (MdispatchError, TypeError) as error:
                said = str(error)
            else:
                continue
            assert said


def one_input(data: bytes) -> None:
    start = time.process_time()
    with warnings.catch_warnings(), md.Registry.create(capacity=CAPACITY) as registry:
        warnings.simplefilter("ignore", PystubOverrideWarning)
        program = Program(registry)
        program.run(data)
        registry.check_invariants()
        for library in program.libraries:
            library.close()
        registry.check_invariants()
        assert not registry.operators(), registry.operators()
    spent = time.process_time() - start
    assert spent < 5.0, f"{spent:.1f} s for {len(data)} bytes"


if __name__ == "__main__":
    driver.main("api", one_input)
