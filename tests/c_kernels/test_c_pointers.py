"""Kernels given as cffi's pointers to functions."""

from __future__ import annotations

import array
import os
import subprocess
import sys

import pytest
from c_libraries import HEAD, SIGNATURE, compile_c
from kinds import run_main
from known_types import types_as_before
from patience import limit
from runs import in_another_run

import mdispatch as md
from mdispatch import config, errors
from mdispatch.pool import interpreters as host

cffi = pytest.importorskip("cffi", reason="cffi has no support for this Python")

SOURCE = f"""{HEAD}
#define EXPORTED __attribute__((visibility("default")))
EXPORTED int total{SIGNATURE} {{
    const md_buffer *x = args[0].as.buffer;
    double sum = 0;
    for (int64_t i = 0; i < x->shape[0]; i++) sum += ((double *)x->data)[i];
    results[0] = md_of_float(sum);
    return 0;
}}
EXPORTED double half(double x) {{
    return x / 2;
}}
static int hidden{SIGNATURE} {{
    return call->fail(call, MD_ERROR_VALUE, "hidden");
}}
EXPORTED md_kernel get_hidden(void) {{
    return hidden;
}}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return compile_c(tmp_path_factory.mktemp("c"), "pointers", SOURCE, *config.cflags())


@pytest.fixture(scope="module", autouse=True)
def arrays():
    with types_as_before():
        md.register_type(array.array, "CPU")
        yield


def opened(path):
    ffi = cffi.FFI()
    ffi.cdef(config.cdef())
    ffi.cdef(
        "int total(md_call *, const md_value *, size_t, md_value *, size_t);"
        "double half(double); md_kernel get_hidden(void);"
    )
    return ffi, ffi.dlopen(path)


@pytest.fixture(scope="module")
def pointers(path):
    return opened(path)


@pytest.fixture
def shop(registry):
    library = md.Library("shop", "DEF", registry=registry)
    library.define("total(Tensor x) -> float")
    library.define("half(float x) -> float")
    library.define("hidden() -> int")
    return library


X = array.array("d", [1.0, 2.5])


@pytest.mark.dear
def test_a_pointer_to_a_boxed_kernel_is_a_kernel(registry, shop, pointers):
    ffi, lib = pointers
    assert shop.impl("total", ffi.addressof(lib, "total"), "CPU")
    assert registry.ops.shop.total(X) == 3.5
    assert "c:libpointers.so:total" in registry.dump("shop::total")
    registry.check_invariants()
    shop.close()
    assert registry.operators() == []


def test_a_pointer_without_a_name_is_known_by_its_place_in_the_file(registry, shop, pointers):
    _, lib = pointers
    shop.impl("hidden", lib.get_hidden(), "CompositeExplicitAutograd")
    with pytest.raises(ValueError, match=r"^hidden$"):
        registry.ops.shop.hidden()
    fact = next(f for f in registry.registrations("shop::hidden") if f.kind == 3)
    assert fact.body.startswith("c:libpointers.so:")
    assert fact.body.rpartition(":")[2].isdigit()


def test_a_pointer_of_another_type_is_called_by_cffi(registry, shop, pointers):
    ffi, lib = pointers
    shop.impl("half", ffi.addressof(lib, "half"), "CompositeExplicitAutograd")
    assert registry.ops.shop.half(5) == 2.5
    assert "cffi:libpointers.so:half" in registry.dump("shop::half")
    calls = []

    @ffi.callback("double(double)")
    def tripled(x):
        calls.append(x)
        return 3 * x

    shop.impl("half", tripled, "CompositeExplicitAutograd")
    assert registry.ops.shop.half(5) == 15.0
    assert calls == [5.0]
    assert "cffi:double(*)(double)" in registry.dump("shop::half")


def test_a_callback_is_no_kernel_of_all_interpreters(registry, shop, pointers):
    ffi, _ = pointers

    @ffi.callback("md_kernel")
    def python(call, args, n, results, n_results):
        return 0

    before = registry.dispatcher.facts.stat()[3]
    with pytest.raises(errors.InvalidArgumentError, match=r"ffi\.callback\(\)"):
        shop.impl("total", python, "CPU")
    with pytest.raises(errors.InvalidArgumentError, match="not in a shared library"):
        shop.impl("total", ffi.cast("md_kernel", 0), "CPU")
    assert registry.dispatcher.facts.stat()[3] == before


def test_what_a_pointer_cannot_be_given_is_refused(registry, shop, pointers):
    ffi, lib = pointers
    total = ffi.addressof(lib, "total")
    for more in ({"with_keyset": True}, {"signature": "(Tensor x) -> float"}, {"types": object}):
        with pytest.raises(
            errors.InvalidArgumentError, match="without with_keyset, signature and types"
        ):
            shop.impl("total", total, "CPU", **more)
    with pytest.raises(errors.InvalidArgumentError, match="is not a pointer to a function"):
        shop.impl("total", ffi.new("int *"), "CPU")
    shop.impl("total", total, "CPU")
    with pytest.raises(errors.DuplicateRegistrationError, match="has a kernel at CPU already"):
        shop.impl("total", total, "CPU", allow_override=False)
    assert registry.ops.shop.total(X) == 3.5


def test_an_older_pointer_returns_when_the_newer_is_closed(registry, shop, pointers):
    ffi, lib = pointers
    shop.impl("total", ffi.addressof(lib, "total"), "CPU")
    newer = md.Library("shop", "IMPL", registry=registry)
    newer.impl("total", lib.get_hidden(), "CPU")
    with pytest.raises(ValueError, match="hidden"):
        registry.ops.shop.total(X)
    newer.close()
    assert registry.ops.shop.total(X) == 3.5


SETUP = """
import array, cffi, mdispatch as md
from mdispatch import config
md.register_type(array.array, "CPU")
ffi = cffi.FFI()
ffi.cdef(config.cdef())
ffi.cdef("int total(md_call *, const md_value *, size_t, md_value *, size_t);")
lib = ffi.dlopen(PATH)
library = md.Library("shop", "DEF")
library.define("total(Tensor x) -> float")
library.impl("total", ffi.addressof(lib, "total"), "CPU")
assert md.ops.shop.total(array.array("d", [1, 2])) == 3.0
"""


@pytest.mark.thorough
def test_every_interpreter_of_the_process_calls_it_and_other_processes_verify(path):
    run_main(
        """
        setup, path, own = args
        exec(setup, {"PATH": path})
        worker = md.create_interpreter(own_gil=own)
        worker.exec('''if True:
            import array, sys, mdispatch as md
            md.register_type(array.array, "CPU")
            assert md.ops.shop.total(array.array("d", [1, 2])) == 3.0
            assert "_cffi_backend" not in sys.modules
        ''')
        worker.close()
        import subprocess
        script = f"PATH = {path!r}\\n" + setup
        subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=limit(60))
        """,
        SETUP,
        path,
        host.OWN_GIL,
    )


def test_a_registry_that_is_closed_takes_no_pointer(path):
    script = f"PATH = {path!r}\n{SETUP}" + (
        "fragment = md.Library('shop', 'FRAGMENT')\nmd.default_registry().close()\n"
        "try:\n    fragment.impl('total', ffi.addressof(lib, 'total'), 'CPU')\n"
        "except md.errors.RegistryClosedError:\n    pass\nelse:\n    raise AssertionError\n"
    )
    alone = {**os.environ, "MDISPATCH_REGISTRY": ""}  # whatever has run before in this process
    command = [sys.executable, "-W", "error", "-c", script]
    subprocess.run(command, check=True, timeout=limit(60), env=alone)


def test_a_kernel_in_c_that_was_verified_belongs_to_its_text(registry, worker, pointers):
    ffi, lib = pointers
    total = ffi.addressof(lib, "total")

    def opened(registry, argument):
        library = in_another_run(lambda: md.Library("shop", "DEF", registry=registry, timeout=0))()
        library.impl(library.define(f"total(Tensor {argument}) -> float"), total, "CPU")
        return library

    first = opened(registry, "x")
    opened(worker, "x")
    assert worker.ops.shop.total(x=X) == 3.5
    first.close()
    second = opened(registry, "y")
    assert registry.ops.shop.total(y=X) == 3.5
    worker.allow_imports("nothing")
    for _ in range(2):
        with pytest.raises(errors.KernelOutdatedError, match=r"c:libpointers\.so:total"):
            worker.ops.shop.total(y=X)
    second.close()
    opened(registry, "x")
    assert worker.ops.shop.total(x=X) == 3.5
    opened(registry, "y")
    mine = opened(worker, "y")
    assert worker.ops.shop.total(y=X) == 3.5
    worker.check_invariants()
    mine.close()
    assert worker.ops.shop.total(y=X) == 3.5  # as in an interpreter that has not verified it
