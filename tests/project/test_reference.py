"""The reference has every public name, with all that is needed to use it: types, errors and, if it
follows PyTorch's dispatcher, which function of that.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit

import mdispatch as md

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.lint

sys.path.insert(0, str(ROOT / "docs" / "site"))
import c_reference  # noqa: E402
import python_reference  # noqa: E402

sys.path.remove(str(ROOT / "docs" / "site"))

LISTED = [
    (module, name)
    for page in python_reference.PAGES
    for module, _, names in python_reference.names(page)
    for name in names
]

# --- what is there --------------------------------------------------------------------------------


def test_every_public_name_of_the_package_has_one_place():
    ours = [name for module, name in LISTED if module == "mdispatch"]
    assert sorted(ours) == sorted(md.__all__)


@pytest.mark.parametrize("name", ["errors", *md._MODULES.split()])
def test_every_public_name_of_a_module_has_a_place(name):
    """Under the package, or under its module."""
    module = importlib.import_module(f"mdispatch.{name}")
    inside = python_reference.INSIDE.get(module.__name__, set())
    assert inside <= set(module.__all__)
    here = {each for of, each in LISTED if of == module.__name__}
    elsewhere = set(md.__all__) if name != "torch_compat" else set()
    assert set(module.__all__) - inside - elsewhere - here == set()
    assert here <= set(module.__all__)


def test_what_is_left_out_is_there():
    for full, hidden in python_reference.INSIDE_OF.items():
        module, _, name = full.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        assert [each for each in hidden.split() if not hasattr(cls, each)] == []


def test_every_value_is_described():
    listed = {f"{module}.{name}" for module, name in LISTED}
    assert set(python_reference.VALUES) <= listed
    assert {"python", *python_reference.PAGES} == set(python_reference.pages())


def test_every_declaration_of_the_header_is_in_the_c_reference():
    header = (ROOT / "native" / "mdispatch.h").read_text()
    contract = header.split("/* contract begins */")[1].split("/* contract ends */")[0]
    code = re.sub(r"/\*.*?\*/", "", contract, flags=re.DOTALL)
    page = c_reference.page(ROOT / "native" / "mdispatch.h")

    functions = re.findall(r"^[a-z][^;{}]*?\b(md_\w+)\(", code, re.MULTILINE)
    constants = re.findall(r"\b(MD_\w+)(?: = [^,}]+)?\s*[,}]", code)
    types = re.findall(r"(?:struct|enum) (md_\w+) \{", code)
    assert (len(functions) > 30, len(constants) > 40, len(types) > 8) == (True, True, True)
    for kind, names in (("function", functions), ("enumerator", constants)):
        for name in names:
            assert len(re.findall(rf"\.\. c:{kind}:: .*\b{name}\b", page)) == 1, name
    for name in types:
        assert re.search(rf"\.\. c:(struct|enum):: {name}$", page, re.MULTILINE), name


@pytest.mark.parametrize("declaration", ["union md_new { int x; };", "#define MD_NEW 1"])
def test_a_declaration_of_an_unknown_form_is_an_error(declaration):
    with pytest.raises(ValueError, match="does not know what this is"):
        list(c_reference.declarations(f"int md_abi(void);\n\n{declaration}\n"))


# --- what it says ---------------------------------------------------------------------------------


def described():
    """``(name, object, is a property)`` of everything with a docstring of its own on the pages."""
    for module, name in LISTED:
        value = getattr(importlib.import_module(module), name)
        full = f"{module}.{name}"
        if inspect.isroutine(value) or inspect.isclass(value):
            yield full, value, False
        if inspect.isclass(value):
            hidden = python_reference.INSIDE_OF.get(full, "").split()
            for member, function, is_property in members(value):
                if member not in hidden:
                    yield f"{full}.{member}", function, is_property


def members(cls):
    for name in dir(cls):
        home = next(base for base in cls.__mro__ if name in vars(base)) if name[0] != "_" else None
        if home is None or not home.__module__.startswith("mdispatch"):
            continue
        value = vars(home)[name]
        if isinstance(value, property):
            yield name, value.fget, True
        elif callable(getattr(value, "__func__", value)):
            yield name, getattr(value, "__func__", value), False


DESCRIBED = {name: (value, is_property) for name, value, is_property in described()}


def test_everything_on_the_pages_has_a_docstring():
    assert len(DESCRIBED) > 300
    assert [name for name, (value, _) in DESCRIBED.items() if not inspect.getdoc(value)] == []


def test_every_parameter_and_every_result_has_a_type():
    untyped = []
    for name, (value, _) in DESCRIBED.items():
        if inspect.isfunction(value):
            parameters = inspect.signature(value).parameters.items()
            untyped += [f"{name}: {p}" for p, of in parameters if of.annotation is of.empty]
            if inspect.signature(value).return_annotation is inspect.Signature.empty:
                untyped.append(f"{name}: its result")
    assert [each for each in untyped if not each.endswith((": self", ": cls"))] == []


def test_every_error_that_is_named_is_there():
    unknown = set()
    for name, (value, _) in DESCRIBED.items():
        for error in re.findall(r"(?<![\w.])([A-Z]\w+(?:Error|Warning))\b", inspect.getdoc(value)):
            if not hasattr(md.errors, error) and not hasattr(builtins, error):
                unknown.add((name, error))
    assert unknown == set()


def words_of(value):
    return " ".join((inspect.getdoc(value) or "").split())


#: Functions with parameters that raise nothing, except for an argument of a wrong type.
RAISE_NOTHING = {
    "mdispatch.AutogradContext.save_for_backward",
    "mdispatch.HigherOrderOperator.replaces",
    "mdispatch.context.Transform.process",
    "mdispatch.needs_grad",
    "mdispatch.config.cflags",
    "mdispatch.dispatch.context.values.TypeHandle.is_replaced_by",
    "mdispatch.fake.DynamicSize.admits",
    "mdispatch.keys.backend_index",
    "mdispatch.keys.backend_keys_of_autograd",
    "mdispatch.keys.functionality_to_backend_keys",
    "mdispatch.keys.highest_index",
    "mdispatch.keys.runtime_keys",
    "mdispatch.registry.ops.Ops.import_module",
    "mdispatch.schema.Type.annotated",
    "mdispatch.schema.compare",
    "mdispatch.schema.compare_signature",
}
#: Or the docstring says where its errors are described.
TOLD = r"Error\b|[Ee]rrors?\b|[Ss]ee :|[Aa]s (?:in )?:|raises"


def test_every_function_says_what_it_raises():
    """Docstrings of torch_compat say only what its module does not say for all."""
    silent = set()
    for name, (value, is_property) in DESCRIBED.items():
        if inspect.isfunction(value) and not is_property and "torch_compat" not in name:
            given = set(inspect.signature(value).parameters) - {"self", "cls"}
            of, _ = DESCRIBED.get(name.rpartition(".")[0], (None, False))
            words = words_of(value) + (words_of(of) if getattr(of, "_is_protocol", False) else "")
            if given and not re.search(TOLD, words):
                silent.add(name)
    assert silent - RAISE_NOTHING == set()
    assert set(DESCRIBED) >= RAISE_NOTHING
    assert "TypeError" in inspect.getdoc(md.torch_compat)
    assert "RuntimeError" in inspect.getdoc(md.torch_compat)


def counterparts():
    """The names of the package that docs/coming-from-pytorch.md puts beside one of PyTorch's."""
    page = (ROOT / "docs" / "coming-from-pytorch.md").read_text()
    page = page.partition("## aten/")[2].partition("## What is different")[0]
    for line in page.splitlines():
        if line.startswith("| `"):
            yield from re.findall(r"`([^`]+)`", line.strip("| ").split(" | ")[1])


#: Names that the table puts beside one of PyTorch's but that follow no rule of it.
OF_OUR_OWN = {
    "Registry",
    "Registry.attach",
    "Registry.close",
    "Registry.create",
    "Registry.registrations",
    "Registry.why",
    "allow_imports",
    "default_registry",
}


def test_what_follows_pytorch_says_what_of_it():
    """If the table names a counterpart, the docstring says where the rule is from; for a member,
    the docstring of its class may.
    """
    silent = set()
    compared = 0
    for name in {each for each in counterparts() if "torch_compat" not in each}:
        value, _ = DESCRIBED.get(f"mdispatch.{name}", (None, False))
        if value is None or name.startswith("errors."):
            continue
        compared += 1
        of, _ = DESCRIBED.get(f"mdispatch.{name.rpartition('.')[0]}", (None, False))
        if not re.search("c10|torch|twin of", f"{words_of(value)} {words_of(of)}", re.IGNORECASE):
            silent.add(name)
    assert compared > 80
    assert silent == OF_OUR_OWN
    assert "python_dispatch.cpp" in inspect.getdoc(md.torch_compat)


#: The names that examples in docstrings use without defining them.
BEFORE = """
import mdispatch
from queue import Queue
from mdispatch import *
from mdispatch import get_kernel, hermetic, impl

class Model: __dispatch_keys__ = "CPU"
model, queue = Model(), Queue()
"""


def test_the_examples_in_docstrings_run(tmp_path):
    texts = [inspect.getdoc(value) for value, _ in DESCRIBED.values()]
    texts.append(inspect.getdoc(importlib.import_module("mdispatch.torch_compat")))
    blocks = re.findall(r"::\n\n((?:    .*(?:\n|\Z)|\n)+)", "\n\n".join(texts))
    assert len(blocks) >= 7
    script = tmp_path / "examples.py"
    script.write_text(BEFORE + "\n".join(f"if True:\n{block}" for block in blocks))
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=limit(60),
        check=False,
        env={"PATH": "/usr/bin:/bin", "MDISPATCH_FOLDER": os.environ["MDISPATCH_FOLDER"]},
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "CPU: fn_cpu [kernel]" in ran.stdout
