"""Modules whose code has no frame or no file: compiled to C, frozen, executed from a text, or
without their source. They are told apart by their names, counted, and found when missing.

Cython compiles a module here where it is installed; a module in C stands for it everywhere.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from kinds import run_main
from patience import limit

#: Registers in C, as a module does that Cython compiled. In a worker it lacks what it has in the
#: main interpreter. MORE is C, too.
SOURCE = """
#include <Python.h>
#define DO(what) do { PyObject *done_ = (what); if (!done_) goto end; Py_DECREF(done_); } while (0)
static int run(PyObject *module) {
    int status = -1, is_main;
    PyObject *lib = NULL, *main = NULL, *md = PyImport_ImportModule("mdispatch");
    if (!md || !(lib = PyObject_CallMethod(md, "Library", "ss", "compiled", "KIND"))) goto end;
    if (!(main = PyObject_CallMethod(md, "is_main_interpreter", NULL))) goto end;
    if ((is_main = PyObject_IsTrue(main)) < 0) goto end;
    DO(PyObject_CallMethod(lib, "define", "s", "of_NAME(Tensor x) -> int"));
    if (is_main) DO(PyObject_CallMethod(lib, "define", "s", "only_in_main(Tensor x) -> int"));
    status = PyObject_SetAttrString(module, "lib", lib);
end:
    Py_XDECREF(main), Py_XDECREF(lib), Py_XDECREF(md);
    return status;
}
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, run},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "NAME", .m_slots = slots};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModuleDef_Init(&definition); }
"""

CYTHON = """
import mdispatch as md
lib = md.Library("compiled", "KIND")
lib.define("of_NAME(Tensor x) -> int")
if md.is_main_interpreter():
    lib.define("only_in_main(Tensor x) -> int")
"""

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def compile_c(folder: Path, name: str, kind: str) -> None:
    source = folder / f"{name}.c"
    source.write_text(SOURCE.replace("NAME", name).replace("KIND", kind))
    include = sysconfig.get_path("include")
    command = ["cc", "-shared", "-fPIC", "-I", include, str(source), "-o"]
    subprocess.run([*command, str(folder / f"{name}{SUFFIX}")], check=True, timeout=limit(60))


def compile_cython(folder: Path, name: str, kind: str) -> None:
    pytest.importorskip("Cython")
    (folder / f"{name}.pyx").write_text(CYTHON.replace("NAME", name).replace("KIND", kind))
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", f"{name}.pyx"],
        check=True, cwd=folder, timeout=limit(60),
    )  # fmt: skip
    include = sysconfig.get_path("include")
    command = ["cc", "-shared", "-fPIC", "-I", include, f"{name}.c", "-o", f"{name}{SUFFIX}"]
    subprocess.run(command, check=True, cwd=folder, timeout=limit(60))


COMPILERS = {"C": compile_c, "Cython": compile_cython}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_modules_are_told_apart(compiler, tmp_path):
    for name in ("one", "two"):
        COMPILERS[compiler](tmp_path, name, "DEF")
    got = run_main(
        """
        folder, compiler = args
        sys.path.insert(0, folder)
        import one
        try:
            import two
            refused = None
        except md.errors.DuplicateRegistrationError as error:
            refused = error.first, error.second, str(error)
        registry = md.default_registry()
        operators = registry.operators()
        if compiler == "C":  # imported anew it is the same module
            del sys.modules["one"]
            import one
        done(refused=refused, operators=operators, again=registry.operators(),
             where=registry.registrations("compiled::of_one")[0].where)
        """,
        str(tmp_path),
        compiler,
    )
    first, second, text = got["refused"]
    assert [first, second] == [str(tmp_path / f"{name}{SUFFIX}") for name in ("one", "two")]
    assert "open the others as 'FRAGMENT'" in text
    assert got["operators"] == got["again"] == ["compiled::of_one", "compiled::only_in_main"]
    assert got["where"] == first


WARM = """
    import json, subprocess
    from mdispatch.workers.warm_up import examine
    folder, name, prepare = args
    sys.path.insert(0, folder)
    exec(prepare, globals())
    done_here = examine(name)
    worker = subprocess.run(
        [sys.executable, "-c", "import sys, json; sys.path.insert(0, " + repr(folder) + ")\\n"
         + prepare + "\\nfrom mdispatch.workers.warm_up import examine\\n"
         "found = examine(" + repr(name) + ")\\n"
         "print(json.dumps([found.operators, [(e.name, str(e)) for e in found.differences]]))"],
        capture_output=True, text=True)
    assert worker.returncode == 0, worker.stderr
    done(here=done_here.operators, worker=json.loads(worker.stdout),
         where=[f.where for f in md.default_registry().registrations("compiled::only_in_main")])
"""

#: A module made from a text, as a program that embeds Python makes one.
EXECUTED = """
import sys, types
from importlib import machinery, abc, util
class Finder(abc.MetaPathFinder, abc.Loader):
    def find_spec(self, name, path, target=None):
        return util.spec_from_loader(name, self) if name == "in_text" else None
    def exec_module(self, module):
        exec(compile(TEXT, "FILE", "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
"""

#: What a freezing tool adds to Python's table: real frozen modules.
FROZEN = """
import ctypes, marshal, sys
code = marshal.dumps(compile(TEXT, "<frozen is_frozen>", "exec"))
class Frozen(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("code", ctypes.c_char_p), ("size", ctypes.c_int),
                ("is_package", ctypes.c_bool)]
    if sys.version_info < (3, 12):
        _fields_.append(("get_code", ctypes.c_void_p))
table = (Frozen * 2)()
table[0].name, table[0].code, table[0].size = b"is_frozen", code, len(code)
ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyImport_FrozenModules").value = ctypes.addressof(table)
"""

#: Distributed as bytecode alone: the file of its code is not there.
SOURCELESS = """
import marshal, importlib.util, pathlib
pathlib.Path(FOLDER, "no_source.pyc").write_bytes(
    importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(
        compile(TEXT, "/where/it/was/made/no_source.py", "exec")))
"""

TEXT = CYTHON.replace("KIND", "DEF")


def prepared(how: str, name: str, folder: Path, file: str = "<string>") -> str:
    text = repr(TEXT.replace("NAME", name))
    return how.replace("TEXT", text).replace("FILE", file).replace("FOLDER", repr(str(folder)))


@pytest.mark.parametrize(
    ("name", "how", "where"),
    [
        ("compiled_c", "C", "{folder}/compiled_c{suffix}"),
        ("compiled_cy", "Cython", "{folder}/compiled_cy{suffix}"),
        ("in_text", EXECUTED, "<in_text>:6"),
        ("in_text", EXECUTED.replace("FILE", "<plugin 7>"), "<in_text: plugin 7>:6"),
        ("is_frozen", FROZEN, "<is_frozen>:6"),
        ("no_source", SOURCELESS, "/where/it/was/made/no_source.py:6"),
    ],
    ids=["C", "Cython", "text", "named text", "frozen", "no source"],
)
@pytest.mark.shared
def test_they_are_counted_and_what_a_worker_lacks_is_found(name, how, where, tmp_path):
    prepare = ""
    if how in COMPILERS:
        COMPILERS[how](tmp_path, name, "DEF")
    else:
        prepare = prepared(how, name, tmp_path)
    got = run_main(WARM, str(tmp_path), name, prepare)
    assert got["here"] == 2
    operators, differences = got["worker"]
    assert operators == 1
    ((missing, text),) = differences
    assert missing == "compiled::only_in_main"
    assert got["where"] == [where.format(folder=tmp_path, suffix=SUFFIX)]
    assert got["where"][0] in text
