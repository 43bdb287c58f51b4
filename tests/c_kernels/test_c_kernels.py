"""Kernels in C: values in both directions, errors, libraries, the process's table."""

from __future__ import annotations

import array
import gc
import math
import shutil
import struct
import subprocess
import sys
import threading
from textwrap import dedent

import pytest
from c_libraries import library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import run_main
from known_types import types_as_before
from patience import limit

import mdispatch as md
from mdispatch import config, errors
from mdispatch.dispatch.c_kernels import _flags
from mdispatch.pool import interpreters as host
from mdispatch.registry import load_library
from mdispatch.schema import parse_schema

OWN_GIL = pytest.mark.skipif(not host.OWN_GIL, reason="this Python has no GIL per interpreter")


class Refuses:
    """Has memory but does not lend it."""

    __dispatch_keys__ = "CPU"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("c")


@pytest.fixture(scope="module")
def boxes_path(folder):
    return library(folder, "boxes")


@pytest.fixture(scope="module", autouse=True)
def types():
    with types_as_before():
        for cls in (array.array, memoryview, bytearray, bytes):
            md.register_type(cls, "CPU")
        yield


@pytest.fixture(scope="module")
def boxes(boxes_path):
    with md.Registry.create() as registry:
        registry.ops.load_library(boxes_path)
        yield registry.ops.boxes
        registry.check_invariants()


# --- values, there and back -----------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
SWEEP = settings(
    max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def typed(value):
    """The value with all its types, at every depth: True is neither 1 nor 1.0."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value), struct.pack("d", value) if isinstance(value, float) else value


@pytest.mark.thorough
@SWEEP
@given(VALUES)
def test_a_value_comes_back_as_it_went(boxes, value):
    assert typed(boxes.echo(value)) == typed(value)


@pytest.mark.thorough
@pytest.mark.dear
@SWEEP
@given(VALUES, VALUES)
def test_two_values_come_back_as_a_tuple(boxes, one, other):
    assert typed(list(boxes.two(one, other))) == typed([one, other])


def test_special_values_come_back(boxes):
    assert math.isnan(boxes.echo(math.nan))
    assert math.copysign(1, boxes.echo(-0.0)) == -1
    assert boxes.echo("a\0b") == "a\0b"
    assert boxes.echo(("a", (1, 2.5), b"\0")) == ["a", [1, 2.5], b"\0"]  # a list, then
    assert boxes.none(5) is None


def test_every_value_has_its_kind(boxes):
    assert boxes.kinds(None, True, 1) == [0, 1, 2]
    assert boxes.kinds(1.0, "s", b"b") == [3, 4, 5]
    assert boxes.kinds(bytearray(1), [], ()) == [6, 7, 7]
    assert boxes.kinds(memoryview(b"x"), array.array("d"), [[]]) == [6, 6, 7]


def test_arguments_by_keyword_come_in_the_order_of_the_schema(boxes):
    wanted = (1, 2.0, True, "s", [1, 2], None, "k", [True, False])
    assert boxes.typed(1, 2, True, "s", (1, 2)) == wanted
    assert boxes.typed(l=[1, 2], s="s", b=True, f=2.0, i=1) == wanted
    given = boxes.typed(1, 2.0, True, "s", [1, 2], 0.5, bs=[False, False], k="other")
    assert given == (1, 2.0, True, "s", [1, 2], 0.5, "other", [False, False])


class OfInts(int):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2**63, "an int is larger than the 64 bits"),
        (-(2**63) - 1, "an int is larger than the 64 bits"),
        ("\ud800", "half a character"),
        (1j, "an object of complex cannot be passed"),
        ({}, "an object of dict cannot be passed"),
        (object(), "an object of object cannot be passed"),
        ([1, [2, {3}]], "an object of set cannot be passed"),
    ],
    ids=["large", "small", "surrogate", "complex", "dict", "object", "inside"],
)
def test_what_cannot_be_told_is_refused(boxes, value, words):
    with pytest.raises(errors.BoxingError, match=words) as caught:
        boxes.echo(value)
    assert caught.value.operator == "boxes::echo"
    assert caught.value.kernel == "c:libboxes.so:echo"
    assert str(caught.value).startswith("boxes::echo(): ")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_lists_are_nested_so_deep_and_no_deeper(boxes):
    assert boxes.echo(nested(32)) == nested(32)
    endless = []
    endless.append(endless)
    for value in (nested(33), endless):
        with pytest.raises(errors.BoxingError, match="nested deeper than 32"):
            boxes.echo(value)


def test_numbers_of_derived_classes_are_numbers(boxes):
    assert typed(boxes.echo(OfInts(5))) == typed(5)


# --- buffers --------------------------------------------------------------------------------------

FORMATS = {
    "b": (0, 8), "h": (0, 16), "i": (0, 32), "q": (0, 64), "l": (0, 64), "n": (0, 64),
    "B": (1, 8), "H": (1, 16), "I": (1, 32), "Q": (1, 64), "c": (1, 8), "L": (1, 64),
    "f": (2, 32), "d": (2, 64), "?": (6, 8),
}  # fmt: skip


@pytest.mark.dear
@SWEEP
@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.integers(1, 4), max_size=4),
    st.integers(-2, 2).filter(bool),
    st.randoms(use_true_random=False),
)
def test_a_buffer_is_told_and_copied_with_all_its_figures(boxes, letter, shape, step, random):
    code, bits = FORMATS[letter]
    data = bytearray(random.randbytes(math.prod(shape) * bits // 8))
    if letter == "?":
        data = bytearray(byte % 2 for byte in data)
    view = memoryview(data).cast(letter, shape) if shape else memoryview(data).cast(letter)
    if not shape:
        view = memoryview(data).cast(letter, [1])
    if len(view.shape) == 1:
        view = view[::step]
    told = boxes.describe(view)
    assert told == [code, bits, 1, 0, view.ndim, *view.shape, *view.strides]
    copied = boxes.clone(view)
    assert copied.obj is not view.obj
    assert (copied.shape, copied.itemsize, copied.tobytes()) == (
        view.shape,
        view.itemsize,
        view.tobytes(),
    )
    if letter not in "lLnc":
        assert copied.format == view.format
        same = copied.tolist() == view.tolist()
        assert same or any(x != x for x in copied.cast("B").cast(letter).tolist())


def test_empty_buffers_and_read_only_ones(boxes):
    assert boxes.describe(b"abc") == [1, 8, 1, 1, 1, 3, 1]
    assert boxes.describe(array.array("d")) == [2, 64, 1, 0, 1, 0, 8]
    assert boxes.clone(array.array("d")).tolist() == []
    assert not boxes.clone(b"abc").readonly


def test_a_tensor_that_is_returned_is_the_very_object(boxes):
    x = array.array("d", [1.0])
    assert boxes.same(x) is x
    assert boxes.pick(x) is x
    assert boxes.pick(None) is None
    found = boxes.list([x, b"abc", x])
    assert [id(each) for each in found] == [id(x), id(found[1]), id(x)]


def test_a_buffer_that_is_returned_twice_is_one_object(boxes):
    one, other = boxes.twice(array.array("d", [1.0, 2.0]))
    assert one is other
    assert one.tolist() == [1.0, 2.0]


def test_what_a_kernel_writes_is_written(boxes):
    x = bytearray(4)
    assert boxes.fill_(x, 7) is x
    assert x == b"\7" * 4
    x.append(1)  # nothing keeps its memory
    with pytest.raises(errors.BoxingError, match="the memory of this bytes is read-only"):
        boxes.fill_(b"1234", 0)


def test_memory_that_cannot_be_told_is_refused(boxes):
    with pytest.raises(errors.BoxingError, match="not an object of Refuses"):
        boxes.describe(Refuses())
    with pytest.raises(errors.BoxingError, match="memory of format"):
        boxes.describe(memoryview(struct.pack("P", 0)).cast("P"))
    np = pytest.importorskip("numpy")
    with pytest.raises(errors.BoxingError, match="format '>d'"):
        boxes.describe(np.zeros(2, ">f8"))
    with pytest.raises(errors.BoxingError, match=r"memory of format 'T\{"):
        boxes.describe(np.zeros(2, [("a", "f8"), ("b", "i4")]))
    with pytest.raises(errors.BoxingError, match="does not lend its memory"):
        boxes.describe(np.array(["2026-01-01"], "M8[D]"))


def test_arrays_of_numpy_are_buffers(boxes):
    np = pytest.importorskip("numpy")
    x = np.arange(12.0).reshape(3, 4)[::2, ::-1]
    assert boxes.describe(x) == [2, 64, 1, 0, 2, 2, 4, 64, -8]
    assert boxes.describe(x.T) == [2, 64, 1, 0, 2, 4, 2, -8, 64]
    assert np.asarray(boxes.clone(x)).tolist() == x.tolist()
    for dtype in ("complex64", "complex128", "float16", "bool"):
        y = np.array([0, 1, 2], dtype)
        assert np.asarray(boxes.clone(y)).tobytes() == y.tobytes()
        assert np.asarray(boxes.clone(y)).dtype == y.dtype
    empty = np.zeros((2, 0, 3))
    assert boxes.clone(empty).shape == (2, 0, 3)
    scalar = np.array(5.0)
    assert boxes.describe(scalar) == [2, 64, 1, 0, 0]
    assert boxes.clone(scalar).tolist() == 5.0


# --- what kernels do wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (2, ValueError), (3, TypeError), (4, IndexError), (5, MemoryError),
        (6, OverflowError), (7, ArithmeticError), (8, NotImplementedError),
    ],
)  # fmt: skip
def test_errors_cross_over_with_their_text(boxes, code, cls):
    with pytest.raises(cls) as caught:
        boxes.fail(code, "five is no pr\N{LATIN SMALL LETTER I WITH DIAERESIS}ce")
    assert type(caught.value) is cls
    assert str(caught.value) == "five is no pr\N{LATIN SMALL LETTER I WITH DIAERESIS}ce"
    with pytest.raises(cls, match=r"boxes::fail\(\): kernel c:libboxes.so:fail failed"):
        boxes.fail(code, None)


@pytest.mark.parametrize("code", [1, 9, -1, 4711])
def test_any_other_number_is_an_error_of_the_kernel(boxes, code):
    with pytest.raises(errors.KernelError, match=r"^boxes::fail\(\): out of paper$") as caught:
        boxes.fail(code, "out of paper")
    error = caught.value
    assert (error.operator, error.kernel, error.code) == (
        "boxes::fail",
        "c:libboxes.so:fail",
        code,
    )
    with pytest.raises(errors.KernelError, match=r"kernel c:libboxes\.so:fail failed"):
        boxes.fail(code, None)


def test_a_long_text_is_cut_and_a_broken_one_is_shown(boxes):
    with pytest.raises(ValueError, match=r"^x{1023}$"):
        boxes.fail(2, "x" * 5000)
    with pytest.raises(ValueError, match=r"^.{511}\uFFFD$"):
        boxes.fail(2, "\N{LATIN SMALL LETTER E WITH ACUTE}" * 2000)


@pytest.mark.parametrize(
    ("what", "cls", "words"),
    [
        (0, errors.BoxingError, "a value of kind 99, which is none"),
        (1, errors.BoxingError, "a str that is not UTF-8"),
        (2, errors.BoxingError, "a buffer that is neither an argument nor its call's"),
        (3, errors.BoxingError, "a list that is none"),
        (4, errors.BoxingError, "a list that is none"),
        (5, errors.BoxingError, "a value of kind 5, which is none"),
        (6, ValueError, "elements of code 2 with 7 bits"),
        (7, ValueError, "no buffer can have this shape"),
        (8, MemoryError, "kernel c:libboxes.so:lie failed"),
        (10, MemoryError, "kernel c:libboxes.so:lie failed"),
    ],
)
def test_results_that_are_none_are_refused(boxes, what, cls, words):
    with pytest.raises(cls, match=words):
        boxes.lie(what)
    assert boxes.lie(9) == ""


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.dear
def test_calls_leave_nothing_behind(boxes):
    x = array.array("d", range(100))

    def calls():
        for _ in range(300):
            boxes.echo(["a" * 100, [1, 2.5, b"x" * 1000]])
            boxes.clone(x)
            boxes.twice(x)
            for refused in (lambda: boxes.echo([x, {}]), lambda: boxes.lie(4)):
                with pytest.raises(errors.BoxingError):
                    refused()

    calls()
    gc.collect()
    before = sys.getrefcount(x), sys.getrefcount(errors.BoxingError), sys.getrefcount(None) // 1000
    calls()
    gc.collect()
    after = sys.getrefcount(x), sys.getrefcount(errors.BoxingError), sys.getrefcount(None) // 1000
    assert after == before
    x.append(1.0)  # its memory is not lent any more


# --- threads and interpreters ---------------------------------------------------------------------


def test_a_kernel_that_releases_the_gil_runs_in_two_threads_at_once(boxes):
    met = []
    meet = boxes.meet.released
    threads = [
        threading.Thread(target=lambda: met.append(meet(2, released=True))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [True, True]


@pytest.mark.parametrize("what", ["open_namespace", "define", "implement_in_c"])
def test_what_a_raising_handler_interrupts_leaves_nothing_of_a_library(
    boxes_path, monkeypatch, what
):
    """As a signal handler that raises right after something was registered."""
    real = getattr(load_library, what)

    def interrupted(*args, **options):
        real(*args, **options)
        raise KeyboardInterrupt

    with md.Registry.create() as registry:
        monkeypatch.setattr(load_library, what, interrupted)
        with pytest.raises(KeyboardInterrupt):
            registry.ops.load_library(boxes_path)
        there = [fact for fact in registry.dispatcher.facts.registrations()[2] if fact.where]
        assert there == []
        monkeypatch.undo()
        registry.ops.load_library(boxes_path).close()
        registry.check_invariants()


def test_the_end_of_a_library_goes_on_where_a_raising_handler_interrupts_it(boxes_path):
    class Interrupting(list):
        def pop(self):
            if interrupts:
                raise interrupts.pop()
            return super().pop()

    interrupts = [KeyboardInterrupt()]
    with md.Registry.create() as registry:
        library = registry.ops.load_library(boxes_path)
        library._handles = Interrupting(library._handles)
        with pytest.raises(KeyboardInterrupt):
            library.close()
        assert library.closed
        assert [fact for fact in registry.dispatcher.facts.registrations()[2] if fact.where] == []
        assert registry.ops.loaded_libraries == set()


@OWN_GIL
def test_interpreters_with_a_gil_of_their_own_run_one_kernel_at_once(boxes_path):
    """Each holds its GIL in the kernel until all four are in it. They begin when all four have made
    a call: without a GIL, making an interpreter or importing a module in C, as a first call does,
    waits for all threads in a kernel that does not release it.
    """
    run_main(
        """
        md.ops.load_library(args[0])
        folder = Path(args[0]).parent / "together"
        folder.mkdir()
        go = md.Library("go", "DEF")
        workers = start("own-gil", '''
            import mdispatch as md
            from mdispatch.facts.native import interpreter_id
            kinds = md.ops.boxes.kinds(1, "a", [])
            open(f"{folder}/{interpreter_id}.ready", "w").close()
            md.wait_for_def("go::now", 60)
            report(met=[md.ops.boxes.meet(4) for _ in range(3)], kinds=kinds)
        '''.replace("{folder}", str(folder)), 4, folder)
        until(lambda: len(list(folder.glob("*.ready"))) == 4)
        go.define("now() -> ()")
        assert [w["met"] for w in results(workers)] == [[True] * 3] * 4
        assert results(workers)[0]["kinds"] == [2, 4, 7]
        """,
        boxes_path,
    )


@pytest.mark.parametrize("own_gil", [False, pytest.param(True, marks=OWN_GIL)])
def test_interpreters_call_what_another_has_loaded(boxes_path, own_gil):
    ran = run_main(
        """
        before = md.create_interpreter(own_gil=args[1])
        before.exec("import mdispatch as md")
        library = md.ops.load_library(args[0])
        after = md.create_interpreter(own_gil=args[1])
        for each in (before, after):
            each.exec('''if True:
                import mdispatch as md, sys
                md.register_type(bytearray, "CPU")
                assert md.register_or_verify() == "verify"
                assert md.ops.boxes.echo([1, "a"]) == [1, "a"]
                assert md.ops.boxes.fill_(bytearray(2), 9) == b"\\\\t\\\\t"
                try:
                    md.ops.boxes.fail(1, "text")
                except md.errors.KernelError as error:
                    assert str(error) == "boxes::fail(): text", error
                else:
                    raise AssertionError
                assert "_cffi_backend" not in sys.modules
                assert md.ops.loaded_libraries == set()
                md.default_registry().check_invariants()
            ''')
        after.exec(f'''if True:
            again = md.ops.load_library({args[0]!r})
            assert ("boxes::echo", md.DispatchKey.CompositeExplicitAutograd) in again.kernels
            again.close()
            assert md.ops.boxes.echo(5) == 5
        ''')
        library.close()
        for each in (before, after):
            each.exec('''if True:
                try:
                    md.ops.boxes.echo(5)
                except md.errors.OperatorNotFoundError:
                    pass
                except md.errors.OperatorGoneError:
                    pass
                else:
                    raise AssertionError
            ''')
            each.close()
        done(invariants=md.default_registry().check_invariants())
        """,
        boxes_path,
        own_gil,
    )
    assert ran["invariants"] is None


def test_a_child_of_fork_calls_what_its_parent_has_loaded(boxes_path):
    run_main(
        """
        md.ops.load_library(args[0])
        pid = os.fork()
        if pid == 0:
            md.ops.load_library(args[0])
            os._exit(0 if md.ops.boxes.echo([5]) == [5] else 1)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        boxes_path,
    )


# --- other processes ------------------------------------------------------------------------------

WORKER = """
import sys, mdispatch as md
from mdispatch import errors
path = sys.argv[1]
def raised(cls, function, *args):
    try:
        function(*args)
    except cls as error:
        return str(error)
    raise AssertionError(f"{cls} was not raised")
"""


def other_process(script, *arguments):
    """Runs a script in a child that finds this process's default registry by the environment."""
    return f"""
    import subprocess
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", {WORKER + script!r}, *map(str, args)],
        capture_output=True, text=True, timeout=limit(60),
    )
    assert ran.returncode == 0, ran.stderr
    """


def test_another_process_verifies_what_it_loads(boxes_path):
    run_main(
        "md.ops.load_library(args[0])\n"
        + dedent(
            other_process("""
text = raised(errors.LocalKernelMissingError, md.ops.boxes.echo, 5)
assert "this process has not loaded the library that contains it" in text, text
assert "ops.load_library(path)" in text, text
# What one interpreter of the process loads, all of it can call: also those that could not before.
worker = md.create_interpreter(own_gil=md.OWN_GIL)
worker.exec(f"import mdispatch as md; md.ops.load_library({path!r})")
assert md.ops.boxes.echo(5) == 5
worker.close()
library = md.ops.load_library(path)
assert library is md.ops.load_library(path)
assert len(library.kernels) == 16 and library.operators[0] == "boxes::echo"
assert md.ops.boxes.echo(5) == 5
md.default_registry().check_invariants()
""")
        ),
        boxes_path,
    )


def test_a_process_that_loads_what_the_main_one_has_not_is_refused(boxes_path, folder):
    run_main(
        "md.Library('shop', 'DEF').define('scale(Tensor x) -> int')\n"
        "md.Library('shop', 'IMPL').impl('scale', len, 'CPU')\n"
        + dedent(
            other_process("""
text = raised(errors.MainNeverArrivedError, lambda: md.ops.load_library(path, timeout=0.1))
assert "'boxes'" in text, text
assert md.ops.loaded_libraries == set()
# A kernel in Python is there at the same key: no function in C stands for it.
text = raised(errors.KeyMismatchError, lambda: md.ops.load_library(sys.argv[2], timeout=0.1))
assert "register 2 kernels for shop::scale at CPU" in text, text
""")
        ),
        boxes_path,
        library(folder, "kernels_only"),
    )


def test_in_a_team_the_first_registers_and_the_others_verify(boxes_path):
    with md.Registry.elect() as registry:
        one = registry.ops.load_library(boxes_path)
        script = f"""if True:
            import mdispatch as md
            with md.Registry.attach({registry.address!r}) as registry:
                library = registry.ops.load_library({boxes_path!r})
                assert registry.ops.boxes.echo(5) == 5
                assert registry.registrar("boxes").pid != __import__("os").getpid()
                library.close()
        """
        subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=limit(60))
        assert registry.ops.boxes.echo(5) == 5
        one.close()
        assert registry.operators() == []


# --- libraries ------------------------------------------------------------------------------------


def test_a_library_loaded_twice_is_the_same_until_it_is_closed(boxes_path, registry):
    library = registry.ops.load_library(boxes_path)
    assert registry.ops.load_library(boxes_path) is library
    assert registry.ops.loaded_libraries == {boxes_path}
    assert "load_library" in dir(registry.ops)
    library.close()
    library.close()
    assert registry.operators() == []
    assert registry.namespaces() == []
    assert registry.ops.loaded_libraries == set()
    with registry.ops.load_library(boxes_path) as again:
        assert again is not library
        assert registry.ops.boxes.echo(5) == 5
    assert registry.operators() == []


class Grid(array.array):
    pass


@pytest.mark.needs("providers")
def test_kernels_for_types_and_providers_stand_beside_one_in_c(boxes_path, registry):
    registry.ops.load_library(boxes_path)
    lib = md.Library("boxes", "FRAGMENT", registry=registry)
    describe, view = registry.ops.boxes.describe, array.array("d")
    in_c = describe(view)
    lib.impl("describe", lambda x: [7], "CPU", types=Grid)
    for _ in range(2):  # the second time the tables of both types are there
        assert [describe(view), describe(Grid("d"))] == [in_c, [7]]
    registry.check_invariants()
    key = "CompositeExplicitAutograd"
    lib.impl("describe", lambda x: [8], key, provider="long", supports=lambda x: len(x) > 2)
    assert [describe(view), describe(array.array("d", [0.0] * 3))] == [in_c, [8]]
    registry.check_invariants()


def test_two_registries_have_a_library_each(boxes_path, registry):
    with md.Registry.create() as other:
        registry.ops.load_library(boxes_path)
        library = other.ops.load_library(boxes_path)
        library.close()
        assert registry.ops.boxes.echo(5) == 5
        assert other.operators() == []


def test_an_older_kernel_returns_when_the_one_in_c_goes(folder, registry):
    md.Library("shop", "DEF", registry=registry).define("scale(Tensor x) -> int")
    md.Library("shop", "IMPL", registry=registry).impl("scale", len, "CPU")
    scale = registry.ops.shop.scale
    assert scale(b"12345") == 5
    library_ = registry.ops.load_library(library(folder, "kernels_only"))
    assert scale(b"12345") == 1
    assert "c:libkernels_only.so:one" in registry.dump("shop::scale")
    assert "kernels_only.c:" in registry.dump("shop::scale")
    md.Library("shop", "IMPL", registry=registry).impl("scale", lambda x: 3, "CPU")
    assert scale(b"12345") == 3
    library_.close()
    assert scale(b"12345") == 3
    registry.check_invariants()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_block", "libno_block.so has no MDISPATCH_LIBRARY block"),
        ("refuses", "no such device"),
        ("other_abi", "version 2 of kernels, this mdispatch has version 1"),
    ],
)
def test_what_is_no_library_of_ours_is_refused(folder, registry, name, words):
    path = library(folder, name)
    for _ in range(2):
        with pytest.raises(errors.LibraryLoadError, match=words) as caught:
            registry.ops.load_library(path)
        assert caught.value.path == path
    assert registry.dispatcher.facts.stat()[3] == 0


def test_a_library_in_cpp_is_a_library(folder, registry):
    source = """
#include "mdispatch_kernels.h"
#include <string>
static int greet(md_call *call, const md_value *args, size_t, md_value *results, size_t) {
    std::string text = "hello, " + std::string(args[0].as.text.data, args[0].as.text.size);
    char *kept = static_cast<char *>(call->alloc(call, text.size()));
    if (!kept) return MD_ERROR_MEMORY;
    text.copy(kept, text.size());
    results[0] = md_of_str(kept, text.size());
    return 0;
}
MDISPATCH_LIBRARY(cpp, m) {
    md_def(m, "greet(str name) -> str");
    md_impl(m, "greet", MD_KEY_CompositeExplicitAutograd, greet);
    md_impl_with(m, "greet", MD_KEY_CPU, greet, nullptr, nullptr, MD_RELEASE_GIL);
}
"""
    if not shutil.which("c++"):
        pytest.skip("there is no C++ compiler")
    (folder / "greet.cpp").write_text(source)
    path = str(folder / "libgreet.so")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *config.cflags()]
    subprocess.run(["c++", *flags, "-o", path, str(folder / "greet.cpp")], check=True)
    with registry.ops.load_library(path):
        assert registry.ops.cpp.greet("world") == "hello, world"


def test_a_file_that_is_no_library_is_refused(folder, registry):
    text = folder / "notes.txt"
    text.write_text("not a library")
    for path in (text, folder / "absent.so", "absent.so"):
        with pytest.raises(errors.LibraryLoadError, match="cannot be loaded") as caught:
            registry.ops.load_library(path)
        assert str(path) in str(caught.value)
    for nonsense in ("", "a\0b", None, 5):
        with pytest.raises(errors.InvalidArgumentError, match="the path of a shared library"):
            registry.ops.load_library(nonsense)
    with pytest.raises(errors.InvalidArgumentError, match="timeout"):
        registry.ops.load_library(text, timeout=-1)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("no_schema", errors.SchemaSyntaxError),
        ("reserved", errors.InvalidNameError),
        ("other_key", errors.InvalidKeyError),
        ("part", errors.DuplicateRegistrationError),
    ],
)
def test_what_fails_half_way_leaves_nothing_registered(folder, registry, name, cls):
    mine = md.Library("shop", "FRAGMENT", registry=registry)
    mine.define("taken() -> float")
    before = registry.dispatcher.facts.stat()[3]
    for _ in range(2):
        with pytest.raises(cls):
            registry.ops.load_library(library(folder, name))
        assert registry.dispatcher.facts.stat()[3] == before
        assert registry.operators() == ["shop::taken"]
        assert registry.ops.loaded_libraries == set()
    mine.close()
    if name == "part":  # when nothing is in its way any more, it loads
        registry.ops.load_library(library(folder, name))
        assert registry.ops.shop.first() == 1
    registry.check_invariants()


def test_a_library_is_closed_after_its_registry(boxes_path):
    registry = md.Registry.create()
    loaded = registry.ops.load_library(boxes_path)
    registry.close()
    loaded.close()
    assert loaded.closed


def test_what_c_is_told_of_an_argument_is_whether_it_has_tensors_and_is_written():
    schema = parse_schema(
        "f(int a, Tensor b, Tensor? c, Tensor[] d, Tensor?[] e, int[]? f, Tensor(x!) g, "
        "Tensor(y!)[] h, Tensor(z) i, str? j) -> ()"
    )
    tensor, written = 1, 2  # boxed.h
    both = tensor | written
    expected = [0, tensor, tensor, tensor, tensor, 0, both, both, tensor, 0]
    assert [_flags(argument) for argument in schema.arguments] == expected
