"""What happens when a module's code runs again: reloaded, imported anew, typed again cell by cell,
executed again. See Note [Runs of a module] in mdispatch/errors/runs.py.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
import threading
import types
import warnings

import pytest
from kinds import KINDS, THREAD, run_main

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds
from mdispatch.dispatch.higher_order import HigherOrderOperator, find_higher_order


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


@pytest.fixture
def module(tmp_path, monkeypatch, registry):
    """Writes a module; its globals ``registry`` and ``md`` come from ``import given``."""
    monkeypatch.setitem(sys.modules, "given", types.SimpleNamespace(registry=registry, md=md))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name, text):
        text = "from given import registry, md\n" + text
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
        if sys.modules[name] is None:
            del sys.modules[name]
            return importlib.import_module(name)
        return importlib.reload(sys.modules[name])

    return write


class Notebook:
    """Runs texts as cells of one notebook. Each run is another file, as in IPython."""

    def __init__(self, registry):
        self.names = {"__name__": "__main__", "md": md, "registry": registry, "says": says}
        self.count = 0

    def run(self, text):
        self.count += 1
        code = compile(textwrap.dedent(text), f"<ipython-input-{self.count}-ab>", "exec")
        exec(code, self.names)


@pytest.fixture
def notebook(registry):
    return Notebook(registry)


def says(word):
    return lambda *args: word


def kernels(registry, name):
    return [f.body for f in registry.registrations(name) if f.kind == kinds.IMPL]


def there(registry):
    _, _, found = registry.dispatcher.facts.registrations()
    return sorted((kinds.kind_of(f.kind).name, f.key, f.name) for f in found)


EVERY = """
lib = md.Library("s", "DEF", registry=registry)
lib.define("f(Tensor x) -> str")
lib.impl("f", lambda x: WORD, "CPU")
lib.register_python_module("f", MODULE)
more = md.Library("s", "FRAGMENT", registry=registry)
more.define("g(Tensor x) -> str")
more.register_name("held")
third = md.Library("s", "FRAGMENT", registry=registry)
third.define("h(Tensor x) -> str")
impls = md.Library("s", "IMPL", "CUDA", registry=registry)
impls.impl("f", lambda x: WORD)
wild = md.Library("_", "IMPL", registry=registry)
wild.fallback(lambda op, *args: WORD, "XPU")
md.define("s::free", "(Tensor x) -> str", registry=registry)
md.impl("s::free", "CPU", lambda x: WORD, registry=registry)
md.register_fake("s::free", lambda x: WORD, registry=registry)

@md.register_op("s::one(Tensor x) -> str", registry=registry)
def one(x):
    return WORD

custom = md.custom_op(
    "s::custom", lambda x: WORD, schema="(Tensor x) -> str", mutates_args=(), registry=registry
)
custom.register_fake(lambda x: WORD)
registry.ops.s.f.default.py_impl("AutogradCPU")(lambda *args: WORD)
"""
NAMES = ("f", "free", "one", "custom")


def every(word, stub="brings"):
    return EVERY.replace("WORD", repr(word)).replace("MODULE", repr(stub))


# --- modules --------------------------------------------------------------------------------------


@pytest.mark.dear
@pytest.mark.parametrize("how", ["reload", "import"])
def test_all_that_a_module_registers_is_replaced_after_its_lines_moved(registry, module, how):
    module("ops_of_mine", every("old"))
    first = there(registry)
    held = [registry.ops.find(f"s::{name}") for name in (*NAMES, "g", "h")]
    for turn in range(3):
        if how == "import":
            del sys.modules["ops_of_mine"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # another stub is no second one
            module("ops_of_mine", "# a line\n" * (turn + 1) + every(f"new {turn}", f"brings{turn}"))
        assert there(registry) == first
        for name in NAMES:
            assert getattr(registry.ops.s, name)(CPU) == f"new {turn}"
        assert not any(operator.is_gone for operator in held)
        registry.check_invariants()


def test_what_a_module_has_no_more_is_gone_after_a_reload(registry, module):
    fragment = 'md.Library("s", "FRAGMENT", registry=registry).define("{}(Tensor x) -> str")\n'
    module("shrinks", "".join(map(fragment.format, "abc")))
    # What `b` was is now first: the fragments are replaced together, not one by one.
    module("shrinks", "".join(map(fragment.format, "bc")))
    assert registry.operators() == ["s::b", "s::c"]
    module("shrinks", "".join(map(fragment.format, "dcab")))
    assert sorted(registry.operators()) == ["s::a", "s::b", "s::c", "s::d"]


def test_many_libraries_of_one_run_stay_many(registry, module):
    loop = """
for n in range(3):
    md.Library("s", "FRAGMENT", registry=registry).define(f"f{n}(Tensor x) -> str")
    md.Library("s", "IMPL", registry=registry).impl("f0", lambda x, n=n: str(n), "CPU")
    md.impl("s::f1", "CPU", lambda x, n=n: str(n), registry=registry)
[md.Library("t", "FRAGMENT", registry=registry).register_name(f"n{n}") for n in range(3)]
    """
    for _ in range(3):
        module("many", loop)
        assert registry.operators() == ["s::f0", "s::f1", "s::f2"]
        assert len(kernels(registry, "s::f0")) == len(kernels(registry, "s::f1")) == 3
        assert registry.ops.s.f0(CPU) == registry.ops.s.f1(CPU) == "2"
        assert [name for kind, _, name in there(registry) if kind == "name"] == [
            "t::n0",
            "t::n1",
            "t::n2",
        ]


TWICE = {
    "a library": 'md.Library("s", "DEF", registry=registry)',
    "register_op": 'md.register_op("s::f(Tensor x) -> str", registry=registry)(str)',
    "define": 'md.define("s::f", "(Tensor x) -> str", registry=registry)',
    "custom_op": (
        'md.custom_op("s::f", str, schema="(Tensor x) -> str", mutates_args=(), registry=registry)'
    ),
    "a fallback": 'md.Library("_", "IMPL", registry=registry).fallback(str, "CPU")',
}


@pytest.mark.parametrize("what", TWICE)
@pytest.mark.parametrize("text", ["LINE\nLINE", "\nfor _ in range(2):\n    LINE"])
@pytest.mark.parametrize("again", [False, True])
def test_twice_in_one_run_is_refused_with_both_lines(registry, module, what, text, again):
    if again:
        module("twice", TWICE[what])  # that the first one replaces an earlier run makes no odds
    before = there(registry)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        module("twice", text.replace("LINE", TWICE[what]))
    error = caught.value
    lines = [int(each.rpartition(":")[2]) for each in (error.first, error.second)]
    assert error.first.rpartition(":")[0].endswith("/twice.py")
    if "for" in text:
        assert lines == [4, 4]
        assert "That line ran twice in one run of its module" in str(error)
    else:
        assert lines == [2, 3]
        assert "ran twice" not in str(error)
    if again:
        assert there(registry) == before


def test_a_function_that_opens_is_of_the_run_of_its_module(registry, module):
    text = 'def setup():\n    return md.Library("s", "DEF", registry=registry)\n'
    first = module("has_setup", text)
    lib = first.setup()
    with pytest.raises(errors.DuplicateRegistrationError, match="ran twice in one run"):
        first.setup()
    assert not lib.closed
    again = module("has_setup", "# moved\n" + text)
    opened = []
    # Also from a thread, over which there is no code of any module.
    thread = threading.Thread(target=lambda: opened.append(again.setup()))
    thread.start()
    thread.join()
    assert [lib.closed, opened[0].closed] == [True, False]


def test_fragments_of_functions_lose_only_what_is_registered_again(registry, module):
    text = """
def add(name, word, key="CPU"):
    lib = md.Library("s", "FRAGMENT", registry=registry)
    lib.impl(lib.define(f"{name}(Tensor x) -> str"), lambda x: word, key)
    return lib
"""
    first = module("adds", text)
    libs = [first.add("f", "old"), first.add("g", "old")]
    held = registry.ops.s.f.default
    again = module("adds", "# moved\n" + text)
    again.add("f", "new")
    assert held(CPU) == "new"
    assert registry.ops.s.g(CPU) == "old"
    assert [lib.closed for lib in libs] == [True, False]


def test_a_decorator_of_a_package_is_used_by_modules_that_are_run_again(registry, module):
    module(
        "decorators",
        """
def op(name):
    return md.register_op(f"s::{name}(Tensor x) -> str", registry=registry)
""",
    )
    use = "from decorators import op\n@op('f')\ndef f(x):\n    return {!r}\n"
    module("uses", use.format("old"))
    module("uses", "# moved\n" + use.format("new"))
    assert registry.ops.s.f(CPU) == "new"
    with pytest.raises(errors.DuplicateRegistrationError):  # another module
        module("uses_too", use.format("other"))
    with pytest.raises(errors.DuplicateRegistrationError):  # the same run
        module("uses", (use + use).format("newer", "newest"))


def test_another_module_is_refused_whatever_it_is_called_by(registry, module):
    line = 'lib = md.Library("s", "DEF", registry=registry)'
    module("one_module", line)
    with pytest.raises(errors.DuplicateRegistrationError, match="open the others as 'FRAGMENT'"):
        module("other_module", line)
    module("calls", "def run(text):\n    exec(text, globals())").run("")
    with pytest.raises(errors.DuplicateRegistrationError):
        sys.modules["calls"].run(line)
    # Texts that a module executes while it is imported are of its run.
    sys.modules["one_module"].lib.close()
    with pytest.raises(errors.DuplicateRegistrationError):
        module("executes", f"exec({line!r})\nexec({line!r})")


def test_higher_order_operators_are_of_their_module_too(module):
    text = "from mdispatch import HigherOrderOperator\nop = HigherOrderOperator('ho')"
    first = module("higher", text)
    again = module("higher", "# moved\n" + text)
    assert find_higher_order("ho") is again.op is first.op
    with pytest.raises(errors.DuplicateRegistrationError):
        HigherOrderOperator("ho")
    with pytest.raises(errors.DuplicateRegistrationError):
        module("higher", text + "\nop = HigherOrderOperator('ho')")
    find_higher_order("ho").close()


# --- cells ----------------------------------------------------------------------------------------


def test_a_cell_may_be_edited_and_run_again(registry, notebook):
    notebook.run(every("old"))
    first = there(registry)
    held = registry.ops.s.f.default
    for turn in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            notebook.run("# edited\n" * turn + every(f"new {turn}", f"brings{turn}"))
        assert there(registry) == first
        for name in NAMES:
            assert getattr(registry.ops.s, name)(CPU) == f"new {turn}"
    assert not held.is_gone
    registry.check_invariants()


def test_fragments_and_kernels_of_other_cells_stay(registry, notebook):
    notebook.run('lib = md.Library("nb", "DEF", registry=registry)')
    for name in "fgh":
        notebook.run(f"""
        fragment = md.Library("nb", "FRAGMENT", registry=registry)
        fragment.define("{name}(Tensor x) -> str")
        """)
        notebook.run(f"""
        impls = md.Library("nb", "IMPL", "CPU", registry=registry)
        @impls.impl("{name}")
        def _(x):
            return "{name}"
        """)
    assert [getattr(registry.ops.nb, name)(CPU) for name in "fgh"] == ["f", "g", "h"]
    # A kernel of another name lies on top, and the earlier one returns when it goes.
    notebook.run("""
    patch = md.Library("nb", "IMPL", "CPU", registry=registry)
    @patch.impl("f")
    def patched(x):
        return "patched"
    """)
    assert registry.ops.nb.f(CPU) == "patched"
    notebook.run("patch.close()")
    assert registry.ops.nb.f(CPU) == "f"


def adds(name, schema="(Tensor x) -> str", word=None, var="lib"):
    """A cell that adds an operator by a DEF library."""
    return f"""
    {var} = md.Library("nb", "DEF", registry=registry)
    {var}.impl({var}.define("{name}{schema}"), says("{word or name}"), "CPU")
    """


def test_a_second_def_library_in_another_cell_adds_to_the_namespace(registry, notebook):
    notebook.run(adds("f"))
    held, place = registry.ops.nb.f.default, registry.registrations("nb::f")[0].where
    before = there(registry)
    notebook.run(adds("g", var="other"))
    assert [registry.ops.nb.f(CPU), registry.ops.nb.g(CPU)] == ["f", "g"]
    assert registry.ops.nb.f.default is held
    assert not held.is_gone
    assert registry.registrations("nb::f")[0].where == place
    assert [each for each in there(registry) if each[2] != "nb::g"] == before
    notebook.run('lib.define("h(Tensor x) -> str"); lib.impl("h", says("h"), "CPU")')
    notebook.run('other.define("i(Tensor x) -> str"); other.impl("i", says("i"), "CPU")')
    for cell, name in ((adds("f", word="new"), "f"), (adds("g", word="new", var="other"), "g")):
        notebook.run(cell)
        notebook.run("# edited\n" + textwrap.dedent(cell))
        assert getattr(registry.ops.nb, name)(CPU) == "new"
        assert [f.kind for f in registry.registrations("nb::" + name)] == [kinds.DEF, kinds.IMPL]
    assert [registry.ops.nb.h(CPU), registry.ops.nb.i(CPU)] == ["h", "i"]
    assert not held.is_gone
    registry.check_invariants()


def test_the_newest_def_library_of_the_cells_owns_the_namespace(registry, notebook, module):
    notebook.run('lib = md.Library("nb", "DEF", registry=registry)')
    notebook.run(adds("g", var="other"))
    notebook.run("lib.define('f(Tensor x) -> str'); lib.close()")
    with pytest.raises(errors.DuplicateRegistrationError):
        module("owner", 'lib = md.Library("nb", "DEF", registry=registry)')
    assert registry.operators() == ["nb::g"]
    notebook.run(adds("f"))
    notebook.run("lib.close()")
    assert registry.operators() == ["nb::g"]
    module("owner", 'lib = md.Library("nb", "DEF", registry=registry)').lib.close()
    notebook.run("other.close()")
    assert there(registry) == []


def test_two_def_libraries_in_one_cell_are_refused_whatever_other_cells_have(registry, notebook):
    notebook.run(adds("f"))
    before = there(registry)
    with pytest.raises(errors.DuplicateRegistrationError, match="has a DEF library already"):
        notebook.run(2 * 'md.Library("nb", "DEF", registry=registry)\n')
    assert there(registry) == before
    assert registry.ops.nb.f(CPU) == "f"


@pytest.mark.parametrize("kind", ["DEF", "FRAGMENT"])
def test_an_edited_cell_may_change_the_arguments_of_its_operator(registry, notebook, kind):
    cell = f"""
    lib = md.Library("nb", "{kind}", registry=registry)
    lib.impl(lib.define("f(ARGUMENTS) -> int"), KERNEL, "CPU")
    """
    notebook.run(cell.replace("ARGUMENTS", "Tensor x").replace("KERNEL", "lambda x: 1"))
    notebook.run(adds("g"))
    notebook.run(cell.replace("ARGUMENTS", "Tensor x, int n").replace("KERNEL", "lambda x, n: n"))
    assert registry.ops.nb.f(CPU, 2) == 2
    assert registry.ops.nb.g(CPU) == "g"
    assert [f.kind for f in registry.registrations("nb::f")] == [kinds.DEF, kinds.IMPL]


def test_a_definition_that_kernels_of_other_cells_do_not_fit_ends_nothing(registry, notebook):
    notebook.run(adds("f"))
    notebook.run("""
    impls = md.Library("nb", "IMPL", registry=registry)
    impls.impl("f", lambda x: "CUDA", "CUDA")
    """)
    before = there(registry)
    with pytest.raises(errors.SignatureMismatchError, match="gets 2"):
        notebook.run(adds("f", "(Tensor x, int n) -> str"))
    assert there(registry) == before
    assert registry.ops.nb.f(CPU) == "f"


def test_def_libraries_of_two_cells_are_verified_by_a_worker_with_the_same_cells(registry, worker):
    main, other = Notebook(registry), Notebook(worker)
    for cell in (adds("f"), adds("g", var="other"), adds("f", word="new")):
        main.run(cell)
        other.run(cell)
        word = "new" if "new" in cell else "f"
        assert [each.ops.nb.f(CPU) for each in (registry, worker)] == [word, word]
    assert worker.ops.nb.g(CPU) == "g"
    worker.check_invariants()


def test_what_a_cell_does_badly_leaves_what_was_there(registry, notebook):
    notebook.run("""
    lib = md.Library("nb", "FRAGMENT", registry=registry)
    lib.define("f(Tensor x) -> str")
    """)
    before = there(registry)
    with pytest.raises(errors.SchemaSyntaxError):
        notebook.run('md.Library("nb", "FRAGMENT", registry=registry).define("f(Tensor x")')
    assert there(registry) == before
    with pytest.raises(errors.DuplicateRegistrationError):
        notebook.run("""
        again = md.Library("nb", "FRAGMENT", registry=registry)
        again.define("f(Tensor x) -> str")
        again.define("f(Tensor x, int y) -> str")
        """)
    assert there(registry) == before
    assert notebook.names["lib"].closed


def test_a_cell_that_calls_a_function_of_the_notebook_runs_it_again(registry, notebook):
    notebook.run("""
    def setup(word):
        lib = md.Library("nb", "DEF", registry=registry)
        lib.impl(lib.define("f(Tensor x) -> str"), says(word), "CPU")
    """)
    for word in ("one", "two"):
        notebook.run(f"setup({word!r})")
        assert registry.ops.nb.f(CPU) == word
    with pytest.raises(errors.DuplicateRegistrationError, match="ran twice in one run"):
        notebook.run("setup(3); setup(4)")


def test_the_same_code_may_be_executed_again_and_a_loop_is_not_taken_for_that(registry):
    names = {"__name__": "plugin", "md": md, "registry": registry}
    straight = compile(
        '0\n0\nlib = md.Library("s", "DEF", registry=registry)\n'
        'lib.define("f(Tensor x) -> str")\n'
        'more = md.Library("s", "FRAGMENT", registry=registry)\n'
        'more.define("g(Tensor x) -> str")',
        "<plugin>",
        "exec",
    )
    for _ in range(3):
        exec(straight, names)
        assert registry.operators() == ["s::f", "s::g"]
    names["lib"].close()
    for text in (
        'for _ in range(2):\n    lib = md.Library("s", "DEF", registry=registry)',
        'n = 0\nwhile n < 2:\n    n += 1\n    lib = md.Library("s", "DEF", registry=registry)',
    ):
        with pytest.raises(errors.DuplicateRegistrationError):
            exec(compile(text, "<plugin>", "exec"), names)
        names["lib"].close()


def test_what_code_has_no_more_is_gone_when_it_is_executed_again(registry):
    text = """
lib = md.Library(namespace, "DEF", registry=registry)
for name in given:
    lib.define(f"{name}(Tensor x) -> str")
"""
    code = compile(text, "<plugin>", "exec")
    same = {"__name__": "plugin", "md": md, "registry": registry}
    for given in ("fg", "g"):
        others = {**same, "namespace": "others", "given": given}
        exec(text, others)  # other globals, as a module that a loader executes again
        same |= {"namespace": "same", "given": given}
        exec(code, same)
        for namespace in ("others", "same"):
            its = [each for each in registry.operators() if each.startswith(namespace)]
            assert its == [f"{namespace}::{name}" for name in given]


def test_a_cell_that_registers_by_functions_replaces_what_it_had_under_the_name(registry, notebook):
    notebook.run(adds("f"))
    for word in ("first", "second"):
        notebook.run(f"""
        def {word}(x):
            return "{word}"
        md.impl("nb::f", "CPU", {word}, registry=registry)
        """)
        assert registry.ops.nb.f(CPU) == word
        assert len(kernels(registry, "nb::f")) == 2


def test_main_programs_of_other_files_are_other_modules(registry):
    def run(file):
        text = 'lib = md.Library("s", "DEF", registry=registry)'
        names = {"__name__": "__main__", "__file__": file, "md": md, "registry": registry}
        exec(compile(text, file, "exec"), names)

    run("/somewhere/a.py")
    run("/somewhere/a.py")
    with pytest.raises(errors.DuplicateRegistrationError):
        run("/somewhere/b.py")


def test_a_class_whose_body_registers_is_of_the_run_around_it(registry, module):
    text = 'class Ops:\n    lib = md.Library("s", "DEF", registry=registry)\n'
    first = module("has_class", text)
    assert not module("has_class", "# moved\n" + text).Ops.lib.closed
    assert first.Ops.lib is not None
    with pytest.raises(errors.DuplicateRegistrationError):
        module("has_class", text + text.replace("Ops", "More"))


# --- workers --------------------------------------------------------------------------------------

MODULE = """
import mdispatch as md
lib = md.Library("r", "DEF")
lib.define("f(Tensor x) -> str")
lib.impl("f", lambda x: {word!r}, "CPU")
more = md.Library("r", "FRAGMENT")
more.define("g(Tensor x) -> str")
more.impl("g", lambda x: {word!r}, "CPU")

@md.register_op("r::one(Tensor x) -> str", "CPU")
def one(x):
    return {word!r}

custom = md.custom_op("r::custom", lambda x: {word!r}, schema="(Tensor x) -> str", mutates_args=())
"""

WORKER = """
import importlib, sys
sys.path.insert(0, FOLDER)
sys.dont_write_bytecode = True
import mdispatch as md, moving_ops
class Array:
    __dispatch_keys__ = "CPU"
names = ("f", "g", "one", "custom")
held = [md.ops.find("r::" + name) for name in names]
seen = [[f(Array()) for f in held]]
arrived(1)
md.wait_for_def("turn::next", 30)
if not md.is_main_interpreter():
    # Twice: each takes the place of the one before, or would wait for another kernel.
    for _ in range(2):
        importlib.reload(moving_ops)
seen.append([f(Array()) for f in held])
report(seen=seen)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_reloads_a_module_whose_lines_moved(kind, tmp_path):
    got = run_main(
        """
        import importlib
        kind, folder, module, worker = args
        sys.path.insert(0, folder)
        sys.dont_write_bytecode = True
        file = Path(folder, "moving_ops.py")
        file.write_text(module.format(word="first"))
        import moving_ops
        workers = start(kind, worker, 2, Path(folder))
        until_arrived(workers, 1)
        file.write_text("# moved" + chr(10) + module.format(word="second"))
        importlib.reload(moving_ops)
        md.Library("turn", "FRAGMENT").define("next() -> ()")
        seen = [result["seen"] for result in results(workers)]
        md.default_registry().check_invariants()
        done(seen=seen)
        """,
        kind,
        str(tmp_path),
        MODULE,
        WORKER,
    )
    assert len(got["seen"]) == (2 if kind != THREAD else len(got["seen"]))
    for seen in got["seen"]:
        assert seen == [["first"] * 4, ["second"] * 4]
