"""A kernel that was verified belongs to the text that it was verified against. These tests look at
answers: by name and with keywords, while the main interpreter defines the operator anew.
"""

from __future__ import annotations

import threading

import outdated
import pytest
from c_libraries import HEAD, compile_c
from kinds import INTERPRETERS, KINDS, THREAD, run_main
from outdated import (
    NEW,
    OF_TENSORS,
    OLD,
    Array,
    Other,
    div_new,
    div_old,
    is_of_its_text,
    new,
    old,
    opened,
    outcome,
)
from runs import in_another_run

import mdispatch as md
from mdispatch import config, errors
from mdispatch.authoring.computed_kernel import computed_kernel

pytestmark = pytest.mark.shared

ANY_OLD, ANY_NEW = "div(int x, int by) -> Any", "div(int by, int x) -> Any"


# --- through each path ----------------------------------------------------------------------------

PATHS = {
    "by name": lambda ops: ops.s.div(x=8, by=2),
    "by name, twice": lambda ops: [ops.s.div(x=8, by=2) for _ in range(2)][1],
    "overload": lambda ops: ops.s.div.default(x=8, by=2),
    "found": lambda ops: ops.find("s::div")(x=8, by=2),
    "key set": lambda ops: ops.s.div.default.call_with_keyset(md.DispatchKeySet(), x=8, by=2),
    "redispatch": lambda ops: ops.s.div.default.redispatch(md.DispatchKeySet(), x=8, by=2),
    "exactly": lambda ops: ops.s.div.default.call_for_dispatch_key("CPU", x=8, by=2),
    "decompose": lambda ops: ops.s.div.default.decompose(x=8, by=2),
    "boxed": lambda ops: boxed(ops.s.div.default),
    "computed": lambda ops: computed_kernel(ops.s.div.default, "Undefined")(x=8, by=2),
}


def boxed(operator):
    by_name = {"x": 8, "by": 2}
    stack = [by_name[each.name] for each in operator.schema.arguments]
    operator.call_boxed(stack)
    return stack[0]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_a_kernel_of_another_definition(registry, worker, way, path):
    call = PATHS[path]
    first = opened(registry, OLD, old)
    first.impl("div", old, "CPU")
    opened(worker, OLD, old).impl("div", old, "CPU")
    held = worker.ops.s.div.default
    assert call(worker.ops) == 4.0
    first.close()
    second = opened(registry, NEW, new)
    second.impl("div", new, "CPU")
    assert call(registry.ops) == 4.0
    with pytest.raises(errors.KernelOutdatedError) as raised:
        call(worker.ops)
    error = raised.value
    assert (error.schema_here, error.schema_there) == (f"s::{OLD}", f"s::{NEW}")
    assert error.here.startswith(outdated.__file__)
    assert error.there.startswith(outdated.__file__)
    assert error.operator == "s::div"
    with pytest.raises(errors.OperatorGoneError):
        held(x=8, by=2)
    second.close()
    opened(registry, OLD, old).impl("div", old, "CPU")  # the old text is back
    assert call(worker.ops) == 4.0


def test_the_kernel_serves_again_once_the_module_is_registered_again(registry, worker, way):
    opened(registry, OLD, old)
    opened(worker, OLD, old)
    opened(registry, NEW, new)
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"
    with pytest.raises(errors.SchemaMismatchError):
        opened(worker, OLD, old)
    opened(worker, NEW, new)
    assert worker.ops.s.div(x=8, by=2) == 4.0


def test_a_default_an_attribute_and_a_type_are_of_the_text(registry, worker, way):
    for changed, options in (
        ("div(int x, int by=5) -> float", {}),
        ("div(int x, float by=2) -> float", {}),
        ("div(int x, int by=2) -> Any", {}),
        ("div(int x, int by=2) -> float", {"tags": "core"}),
    ):
        opened(registry, "div(int x, int by=2) -> float", old)
        opened(worker, "div(int x, int by=2) -> float", old)
        assert worker.ops.s.div(8) == 4.0
        lib = outdated.library(registry)
        lib.impl(lib.define(changed, **options), old)
        with pytest.raises(errors.KernelOutdatedError) as raised:
            worker.ops.s.div(8)
        assert "tags core" in str(raised.value) or not options


def test_the_same_text_written_in_another_way_is_no_change(registry, worker, way):
    opened(registry, OLD, old)
    opened(worker, OLD, old)
    assert worker.ops.s.div(x=8, by=2) == 4.0
    for text in (OLD, "div( int x,  int by )->float"):
        opened(registry, text, lambda x, by: x / by)
        assert worker.ops.s.div(x=8, by=2) == 4.0


def test_where_an_interpreter_registers_kernels_outlive_a_definition(registry, way):
    for role in (registry, md.Registry.local()):
        first = in_another_run(lambda role=role: md.Library("s", "DEF", registry=role))()
        first.define(ANY_OLD)
        kernels = md.Library("s", "IMPL", registry=role)
        kernels.impl("div", lambda *values: values)
        assert role.ops.s.div(x=8, by=2) == (8, 2)
        first.close()
        md.Library("s", "DEF", registry=role).define(ANY_NEW)
        assert role.ops.s.div(x=8, by=2) == (2, 8)


# --- what else there is of kernels ----------------------------------------------------------------


def test_a_kernel_that_came_before_its_definition_belongs_to_the_first(registry, worker, way):
    kernels = md.Library("s", "IMPL", registry=registry)
    kernels.impl("div", lambda *values: values)
    early = md.Library("s", "IMPL", registry=worker, timeout=0)
    early.impl("div", lambda *values: values)
    first = in_another_run(lambda: md.Library("s", "DEF", registry=registry))()
    first.define(ANY_OLD)
    assert worker.ops.s.div(x=8, by=2) == (8, 2)
    first.close()
    md.Library("s", "DEF", registry=registry).define(ANY_NEW)
    assert registry.ops.s.div(x=8, by=2) == (2, 8)
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"


def test_a_kernel_that_came_before_its_definition_belongs_to_the_one_verified(registry, worker):
    md.Library("s", "IMPL", registry=registry).impl("div", lambda *values: values)
    md.Library("s", "IMPL", registry=worker, timeout=0).impl("div", lambda *values: values)
    first = in_another_run(lambda: md.Library("s", "DEF", registry=registry))()
    first.define(OLD)
    md.Library("s", "FRAGMENT", registry=worker, timeout=0).define(OLD)
    first.close()  # before any call
    md.Library("s", "DEF", registry=registry).define(NEW)
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"


def test_a_kernel_of_a_library_without_definitions_belongs_to_the_text_it_has_met(
    registry, worker, way
):
    first = opened(registry, OLD, old)
    md.Library("s", "IMPL", registry=worker, timeout=0).impl("div", old)
    first.close()  # before any call
    opened(registry, NEW, new)
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"
    again = md.Library("s", "IMPL", registry=worker, timeout=0)
    again.impl("div", new)  # beside the old one, which does not count
    assert worker.ops.s.div(x=8, by=2) == 4.0
    again.close()
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"


def test_an_outdated_kernel_of_the_same_label_does_not_take_the_place_of_a_new_one(
    registry, worker
):
    def kernel(names):
        given = "x, by" if names == OLD else "by, x"
        made = {}
        exec(f"def div({given}):\n    return x / by", made)
        return made["div"]

    first = opened(registry, OLD, kernel(OLD))
    for schema in (OLD, NEW):
        if schema == NEW:
            first.close()
            opened(registry, NEW, kernel(NEW))
        md.Library("s", "IMPL", registry=worker, timeout=0).impl("div", kernel(schema))
        assert worker.ops.s.div(x=8, by=2) == 4.0


def test_a_kernel_is_for_the_definition_that_was_verified_not_for_a_later_one(registry, worker):
    first = in_another_run(lambda: md.Library("s", "DEF", registry=registry))()
    first.define(OLD)
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    mine.define(OLD)
    first.close()  # between the two lines of the worker's module
    opened(registry, NEW, new)
    mine.impl("div", lambda *values: values[0] / values[1])
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"


@pytest.mark.parametrize(
    "options",
    [
        {"types": Array},
        {"types": Other},
        {"signature": "(Tensor a, int n, int m) -> float"},
        {"with_keyset": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_kernels_by_type_providers_and_others_alike(registry, worker, way, options):
    is_of_its_text(registry, worker, options)


def test_a_fake_kernel_is_a_kernel(registry, worker):
    def opened(registry, schema, function):
        lib = in_another_run(lambda: md.Library("s", "DEF", registry=registry, timeout=0))()
        name = lib.define(schema)
        lib.impl(name, function, "CPU")
        lib.register_fake(name, function)
        return lib

    meta = md.MetaTensor((2,))
    opened(registry, OF_TENSORS[0], div_old)
    opened(worker, OF_TENSORS[0], div_old)
    assert worker.ops.s.div(meta, x=8, by=2) == 4.0
    opened(registry, OF_TENSORS[1], div_new)
    assert registry.ops.s.div(meta, x=8, by=2) == 4.0
    assert outcome(worker.ops.s.div, meta, x=8, by=2) == "KernelOutdatedError"
    opened(worker, OF_TENSORS[1], div_new)
    assert worker.ops.s.div(meta, x=8, by=2) == 4.0


def test_the_order_of_overloads_leads_to_none_either(registry, worker, way):
    def opened(registry, schema, function):
        lib = in_another_run(lambda: md.Library("s", "DEF", registry=registry, timeout=0))()
        lib.impl(lib.define("div.text(str x, str by) -> str"), lambda x, by: x + by)
        lib.impl(lib.define(schema), function)

    opened(registry, OLD, old)
    opened(worker, OLD, old)
    assert worker.ops.s.div(x=8, by=2) == 4.0
    opened(registry, NEW, new)
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"
    assert worker.ops.s.div(x="8", by="2") == "82"


def test_invariants_hold_while_a_kernel_is_outdated(registry, worker):
    opened(registry, OLD, old)
    opened(worker, OLD, old)
    assert worker.ops.s.div(x=8, by=2) == 4.0
    opened(registry, NEW, new)
    assert outcome(worker.ops.s.div, x=8, by=2) == "KernelOutdatedError"
    worker.check_invariants()
    registry.check_invariants()


# --- rules ----------------------------------------------------------------------------------------


def test_a_rule_of_a_worker_goes_on_under_the_same_text_and_not_under_another(registry, worker):
    first = opened(registry, OF_TENSORS[0], div_old, "CPU")
    opened(worker, OF_TENSORS[0], div_old, "CPU")
    worker.ops.s.div.default.py_impl("CPU")(lambda a, x, by: -x / by)

    def call():
        with md.context.enable_python_dispatcher():
            return worker.ops.s.div(Array(), x=8, by=2)

    assert call() == -4.0
    first.close()
    first = opened(registry, OF_TENSORS[0], div_old, "CPU")
    assert call() == -4.0
    first.close()
    opened(registry, OF_TENSORS[1], div_new, "CPU")
    assert outcome(call) == "KernelOutdatedError"
    opened(worker, OF_TENSORS[1], div_new, "CPU")
    assert call() == 4.0


def test_a_rule_ends_with_a_definition_that_was_made_here(registry):
    first = opened(registry, OF_TENSORS[0], div_old, "CPU")
    registry.ops.s.div.default.py_impl("CPU")(lambda a, x, by: -x / by)
    first.close()
    opened(registry, OF_TENSORS[0], div_old, "CPU")
    with md.context.enable_python_dispatcher():
        assert registry.ops.s.div(Array(), x=8, by=2) == 4.0


# --- priorities -----------------------------------------------------------------------------------


# --- workers of every kind ------------------------------------------------------------------------

WORKER = """
import mdispatch as md
if not md.is_main_interpreter():
    lib = md.Library("shop", "DEF")
    lib.define("div(int x, int by) -> float")
    lib.impl("div", lambda x, by: x / by)
def call():
    try:
        return md.ops.shop.div(x=8, by=2)
    except md.MdispatchError as error:
        return type(error).__name__
seen = [call()]
for turn in ("swapped", "back"):
    arrived(turn)
    md.wait_for_def(f"turn::{turn}", limit(30))
    seen += [call(), call()]
report(seen=seen)
"""

MAIN = """
kind, worker, *_ = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
def opened(schema, kernel):
    lib = md.Library("shop", "DEF")
    lib.impl(lib.define(schema), kernel)
    return lib
old = "div(int x, int by) -> float", lambda x, by: x / by
lib = opened(*old)
workers = start(kind, worker, 2, folder)
turns = md.Library("turn", "FRAGMENT")
for turn, now in (
    ("swapped", ("div(int by, int x) -> float", lambda by, x: x / by)),
    ("back", old),
):
    until_arrived(workers, turn)
    lib.close()
    lib = opened(*now)
    turns.define(f"{turn}() -> ()")
done(seen=[result["seen"] for result in results(workers)])
"""


@pytest.mark.parametrize("kind", KINDS)
def test_in_workers_of_every_kind_no_call_runs_a_kernel_of_another_definition(kind):
    got = run_main("import tempfile\n" + MAIN, kind, WORKER)
    outdated = 4.0 if kind == THREAD else "KernelOutdatedError"
    assert got["seen"] == [[4.0, outdated, outdated, 4.0, 4.0]] * 2


@pytest.mark.parametrize("kind", ["fork", "subprocess"])
def test_a_kernel_that_was_never_called_belongs_to_its_text_as_well(kind):
    got = run_main("import tempfile\n" + MAIN, kind, WORKER.replace("seen = [call()]", "seen = []"))
    assert got["seen"] == [["KernelOutdatedError", "KernelOutdatedError", 4.0, 4.0]] * 2


def test_a_kernel_that_came_with_a_fork_belongs_to_the_text_at_the_fork():
    text = WORKER.replace("if not md.is_main_interpreter():", "if False:")
    got = run_main("import tempfile\n" + MAIN, "fork", text.replace("[call()]", "[]"))
    assert got["seen"] == [["KernelOutdatedError", "KernelOutdatedError", 4.0, 4.0]] * 2


def test_a_kernel_that_came_with_a_fork_does_not_outlive_a_definition_as_its_parents_does():
    text = WORKER.replace("if not md.is_main_interpreter():", "if False:")
    main = MAIN.replace("lib.impl(lib.define(schema), kernel)", "lib.define(schema)")
    main = main.replace(
        "lib = opened(*old)\n",
        "lib = opened(*old)\nmd.Library('shop', 'IMPL').impl('div', lambda a, b: a / b)\n",
    )
    got = run_main("import tempfile\n" + main, "fork", text)
    assert got["seen"] == [[4.0, "KernelOutdatedError", "KernelOutdatedError", 4.0, 4.0]] * 2


def test_no_call_has_another_answer_while_definitions_change_under_it(registry, worker, way):
    opened(registry, OLD, old)
    opened(worker, OLD, old)
    seen, ended = {"main": set(), "worker": set()}, threading.Event()

    def calls(ops, answers):
        while not ended.is_set():
            answers.add(outcome(lambda: ops.s.div(x=8, by=2)))

    callers = [
        threading.Thread(target=calls, args=(registry.ops, seen["main"])),
        threading.Thread(target=calls, args=(worker.ops, seen["worker"])),
    ]
    for each in callers:
        each.start()
    try:
        for n in range(200):
            opened(registry, *((OLD, old) if n % 2 else (NEW, new)))
            if n % 8 == 3:
                opened(worker, OLD, old)
    finally:
        ended.set()
        for each in callers:
            each.join()
    refusals = {"MissingKernelError", "OperatorGoneError", "OperatorNotFoundError"}
    assert seen["main"] <= {4.0, *refusals}
    refusals |= {"KernelOutdatedError", "LocalKernelMissingError"}
    assert seen["worker"] <= {4.0, *refusals}


# --- keys of types --------------------------------------------------------------------------------

TYPED = """
import mdispatch as md
class Value:
    pass
handle = md.register_type(Value, "CPU")
lib = md.Library("shop", "FRAGMENT")
lib.define("f(Tensor x) -> str")
for key in ("CPU", "CUDA"):
    lib.impl("f", lambda x, key=key: key, key)
"""

TYPES = """
import tempfile
kind, module = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
(folder / "typed.py").write_text(module)
sys.path.insert(0, str(folder))
import typed
workers = start(kind, '''
import sys
sys.path.insert(0, FOLDER)
import mdispatch as md, typed
seen = [md.ops.shop.f(typed.Value())]
arrived(1)
md.wait_for_def("turn::told", limit(30))
report(seen=[*seen, md.ops.shop.f(typed.Value())])
''', 1, folder)
until_arrived(workers, 1)
typed.handle.close()
told = ""
try:
    md.register_type(typed.Value, "CUDA")
except md.errors.TypeKeysMismatchError as error:
    told = type(error).__name__
md.Library("turn", "DEF").define("told() -> ()")
done(told=told, seen=results(workers)[0]["seen"])
"""


@pytest.mark.parametrize("kind", ["subprocess", INTERPRETERS[0]])
def test_a_type_gets_no_other_keys_while_a_worker_has_it(kind):
    assert run_main(TYPES, kind, TYPED)["told"] == "TypeKeysMismatchError"


DIVIDES = (
    HEAD
    + """
static int divide(md_call *call, const md_value *args, size_t n, md_value *results, size_t m) {
    results[0] = md_of_float((double)args[X].as.integer / (double)args[1 - X].as.integer);
    return 0;
}
MDISPATCH_LIBRARY(built, m) {
    if (LATE) md_impl(m, "div", MD_KEY_CompositeExplicitAutograd, divide);
    md_def(m, X ? "div(int by, int x) -> float" : "div(int x, int by) -> float");
    if (!LATE) md_impl(m, "div", MD_KEY_CompositeExplicitAutograd, divide);
}
"""
)

#: Calls, has the main interpreter load the other build under the same file name, and calls again.
BUILDS = """
kind, old, new = args
loaded = md.ops.load_library(old)
def turn(changes):
    seen = [md.ops.built.div(x=8, by=2)]
    changes()
    try:
        seen.append(md.ops.built.div(x=8, by=2))
    except md.MdispatchError as error:
        seen.append(type(error).__name__)
    return seen
def change():
    loaded.close()
    md.ops.load_library(new)
if kind == "fork":
    (read, write), (back, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        def wait():
            os.write(answer, b"x")
            os.read(read, 1)
        os.write(answer, repr(turn(wait)).encode())
        os._exit(0)
    os.read(back, 1)
    change()
    os.write(write, b"x")
    there = eval(os.read(back, 1000))
    os.waitpid(child, 0)
else:
    text = '''
import mdispatch as md
def see():
    try:
        return md.ops.built.div(x=8, by=2)
    except md.MdispatchError as error:
        return type(error).__name__
seen = [see()]
arrived(1)
md.wait_for_def("turn::new", limit(30))
report(seen=[*seen, see()])
'''
    workers = start(kind, text, 1, Path(old).parent)
    until_arrived(workers, 1)
    change()
    md.Library("turn", "FRAGMENT").define("new() -> ()")
    there = results(workers)[0]["seen"]
done(here=md.ops.built.div(x=8, by=2), there=there)
"""


@pytest.mark.parametrize("order", ["definition first", "kernel first"])
@pytest.mark.parametrize("kind", ["fork", INTERPRETERS[0]])
def test_a_build_of_a_library_belongs_to_its_text_where_nobody_has_verified_it(
    kind, order, tmp_path
):
    """A child of fork has the function of the old build, and nothing that says so. Another
    interpreter of the registrar gets that of the new one.
    """
    builds = []
    for number in (0, 1):
        (tmp_path / f"{number}").mkdir()
        flags = [*config.cflags(), f"-DX={number}", f"-DLATE={int(order == 'kernel first')}"]
        builds.append(compile_c(tmp_path / f"{number}", "divides", DIVIDES, *flags))
    got = run_main(BUILDS, kind, *builds)
    assert got["here"] == 4.0
    assert got["there"] == [4.0, "KernelOutdatedError" if kind == "fork" else 4.0]


def test_an_operator_made_of_a_function_belongs_to_its_text_with_all_that_it_brings(
    registry, worker, way
):
    def made(where, schema, function):
        made = in_another_run(
            lambda: md.custom_op("s::div", function, mutates_args=(), schema=schema, registry=where)
        )()
        made.register_fake(lambda *args: "fake")
        made.register_autograd(lambda ctx, gradient: (gradient, None))
        return made

    old_text, new_text = (text.removeprefix("div") for text in (ANY_OLD, ANY_NEW))
    made(registry, old_text, old)
    ours = made(worker, old_text, old)
    seen = [ours(8, 2), worker.ops.s.div(x=8, by=2)]
    made(registry, new_text, new)
    seen += [outcome(ours, 8, 2), outcome(ours, x=8, by=2), outcome(worker.ops.s.div, x=8, by=2)]
    div = worker.ops.s.div.default
    for key in ("Meta", "AutogradCPU"):
        seen.append(outcome(div.redispatch, md.DispatchKeySet(key), x=8, by=2))
    gone, late = "OperatorGoneError", "KernelOutdatedError"
    assert seen == [4.0, 4.0, *[gone] * 2, *[late] * 3]
    assert made(worker, new_text, new)(x=8, by=2) == 4.0
