"""What operators tell of themselves: to help, to inspect, to notebooks and to Sphinx."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
import typing
from collections.abc import Sequence

import pytest

import mdispatch as md
from mdispatch import Tensor, errors

pytestmark = pytest.mark.either_binding


class Array:
    __dispatch_keys__ = "CPU"


SCHEMA = "scale(Tensor x, float factor=2.0, *, int[2] k=[1, 2], str? s=None) -> Tensor"


@pytest.fixture
def scale(registry, lib):
    lib.define(SCHEMA, doc="Scales everything.\n\n    By a factor.")
    return registry.ops.s.scale


def test_the_signature_is_that_of_the_schema(scale):
    for each in (scale, scale.default):
        signature = inspect.signature(each)
        parameters = signature.parameters
        assert [*parameters] == ["x", "factor", "k", "s"]
        assert parameters["factor"].default == 2.0
        assert parameters["k"].default == [1, 2]
        assert parameters["s"].default is None
        assert parameters["k"].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters["x"].default is inspect.Parameter.empty
        assert signature.return_annotation is Tensor
        assert each.__text_signature__ == "(x, factor=2.0, *, k=[1, 2], s=None)"
        assert str(signature) == (
            "(x: mdispatch.Tensor, factor: float = 2.0, *, k: collections.abc.Sequence[int] | int "
            "= [1, 2], s: str | None = None) -> mdispatch.Tensor"
        )
        signature.bind(Array(), k=[3, 4])


def test_the_annotations_are_types(scale):
    wanted = {
        "x": Tensor,
        "factor": float,
        "k": Sequence[int] | int,
        "s": str | None,
        "return": Tensor,
    }
    assert scale.__annotations__ == scale.default.__annotations__ == wanted
    assert typing.get_type_hints(scale.default) == wanted


@pytest.mark.parametrize(
    ("schema", "signature"),
    [
        ("f() -> ()", "() -> None"),
        ("f(int x, ...) -> ...", "(x: int, *args) -> tuple[typing.Any, ...]"),
        ("f(int lambda, int y) -> int", "(_0: int, /, y: int) -> int"),
        ("f(*, int from=1) -> int", "(**kwargs) -> int"),
        (
            "f(int[] x, Tensor? y, Union(int, str) z) -> (int, Tensor[])",
            "(x: collections.abc.Sequence[int], y: mdispatch.Tensor | None, z: int | str) -> "
            "tuple[int, list[mdispatch.Tensor]]",
        ),
        ("f(Device d, Dict(str, int) e) -> Any", "(d: object, e: dict[str, int]) -> Any"),
    ],
)
def test_signatures_of_other_schemas(registry, lib, schema, signature):
    lib.define(schema)
    text = str(inspect.signature(registry.ops.s.f)).replace("typing.Any)", "Any)")
    assert text.replace("-> typing.Any", "-> Any") == signature.replace("-> typing.Any", "-> Any")


def test_a_packet_of_several_overloads_takes_anything_and_tells_all(registry, lib):
    lib.define("f(int x) -> int", doc="Of ints.")
    lib.define("f.t(Tensor x) -> int", doc="Of tensors.")
    f = registry.ops.s.f
    assert str(inspect.signature(f)) == "(*args, **kwargs)"
    assert f.__doc__ == (
        "Of ints.\n\nOf tensors.\n\nSchema: ``s::f(int x) -> int``\n\n"
        "Schema: ``s::f.t(Tensor x) -> int``"
    )


def test_the_docstring_is_the_text_given_to_define_and_the_schema(scale):
    canonical = "s::scale(Tensor x, float factor=2., *, int[2] k=[1, 2], str? s=None) -> Tensor"
    wanted = f"Scales everything.\n\nBy a factor.\n\nSchema: ``{canonical}``"
    assert scale.__doc__ == scale.default.__doc__ == wanted


def test_without_it_the_docstring_is_that_of_a_kernel(registry, lib):
    def cpu(x):
        """For CPUs."""

    def everywhere(x):
        """Anywhere."""

    class Kernel:
        """A class of kernels."""

        def __call__(self, x):
            return x

    def doc():
        return (registry.ops.s.f.__doc__ or "").partition("\n")[0]

    lib.define("f(Tensor x) -> Any")
    assert doc() == "Schema: ``s::f(Tensor x) -> Any``"
    lib.impl("f", Kernel(), "CUDA")  # the text of its class says nothing of the operator
    assert doc() == "Schema: ``s::f(Tensor x) -> Any``"
    lib.impl("f", cpu, "CPU")
    assert doc() == "For CPUs."
    lib.impl("f", everywhere)
    assert doc() == "Anywhere."


def test_a_text_belongs_to_one_definition(registry):
    for text in ("first", "", "third"):
        with md.scoped_library("s", "FRAGMENT", registry=registry) as lib:
            lib.define("f(Tensor x) -> Any", doc=text)
            assert (registry.ops.s.f.__doc__.partition("\n")[0] == text) == bool(text)
    assert registry.dispatcher.docs == {}


def test_a_text_that_is_none_is_refused_before_anything_is_defined(registry, lib):
    for given in (5, None, b"text"):
        with pytest.raises(errors.InvalidArgumentError, match="doc is a str"):
            lib.define("f(Tensor x) -> Any", doc=given)
    assert registry.operators() == []
    md.define("s::f", "(Tensor x) -> Any", doc="Told.", registry=registry)
    assert registry.ops.s.f.__doc__.startswith("Told.")


def test_a_custom_operator_has_the_signature_and_the_text_of_its_function(registry):
    @md.custom_op("s::double", mutates_args=(), registry=registry)
    def double(x: Tensor, by: float = 2.0) -> Tensor:
        """Doubles it."""

    assert inspect.signature(double) == inspect.signature(double.__wrapped__)
    assert double.__doc__ == "Doubles it."
    assert double.__annotations__ == double.__wrapped__.__annotations__
    assert double.operator.__doc__.startswith("Doubles it.\n\nSchema: ``s::double(Tensor x")
    bare = md.custom_op(
        "s::bare", lambda x: x, mutates_args=(), schema="(Tensor x) -> Any", registry=registry
    )
    assert bare.__doc__ == "Schema: ``s::bare(Tensor x) -> Any``"


def test_help_shows_signature_and_text(scale, registry):
    @md.custom_op("s::double", mutates_args=(), registry=registry)
    def double(x: Tensor) -> Tensor:
        """Doubles it."""

    for each, line, text in (
        (scale, "x: mdispatch.Tensor, factor: float = 2.0, *, ", "By a factor."),
        (scale.default, "x: mdispatch.Tensor, factor: float = 2.0, *, ", "Scales every"),
        (double, "double(x: ", "Doubles it."),
    ):
        assert inspect.isroutine(each)
        # From 3.13 on a long signature has several lines.
        told = " ".join(pydoc.render_doc(each, renderer=pydoc.plaintext).split())
        assert line in told
        assert text in told
        assert len(told) < 1000


def test_the_classes_keep_what_they_tell_of_themselves():
    for cls in (md.OpOverload, md.OpOverloadPacket, md.CustomOpDef):
        assert isinstance(cls.__doc__, str)
        assert len(cls.__doc__) > 50
        assert cls.__annotations__ == {}
        assert typing.get_type_hints(cls) == {}
        assert not hasattr(cls, "__signature__")
        assert "self" not in inspect.signature(cls).parameters
        pydoc.render_doc(cls)


def test_an_operator_in_a_class_is_no_method(scale):
    class Model:
        op = scale
        overload = scale.default

    assert Model.op is Model().op is scale
    assert Model.overload is Model().overload is scale.default


def test_an_operator_that_ended_tells_nothing_and_raises_nothing_strange(registry, lib, scale):
    operator = scale.default
    lib.close()
    for each in (scale, operator):
        assert each.__doc__ is None
        assert each.__annotations__ == {}
        assert not hasattr(each, "__signature__")
        with pytest.raises(ValueError, match="no signature"):
            inspect.signature(each)
        assert "<pre>" in each._repr_html_()


def test_notebooks_get_schema_kernels_and_reasons_and_nothing_is_markup(registry, lib):
    lib.define('f(Tensor x, str s="<script>&") -> Any', doc="<b>Bold</b> & more.")

    def kernel(x, s):
        return x

    kernel.__qualname__ = "<img src=x>"
    lib.impl("f", kernel, "CPU")
    lib.impl("f", lambda x, s: x, "CPU")
    for each in (registry.ops.s.f, registry.ops.s.f.default):
        text = each._repr_html_()
        assert "&lt;script&gt;&amp;" in text
        assert "&lt;b&gt;Bold&lt;/b&gt; &amp; more." in text
        assert "&lt;img src=x&gt; (inactive)" in text
        for forbidden in ("<script", "<b>", "<img"):
            assert forbidden not in text
        assert text.count("<table>") == text.count("</table>") == 2
        assert f"{__file__}:" in text
        assert "<td>backend fallback</td>" in text
        assert "<td>kernel</td>" in text


def test_a_module_of_operators_is_documented_by_sphinx(tmp_path):
    pytest.importorskip("sphinx")
    (tmp_path / "geo.py").write_text(
        '"""Geometry."""\n'
        "import mdispatch as md\n"
        "from mdispatch import Tensor\n"
        'lib = md.Library("geo", "DEF")\n'
        'lib.define("scale(Tensor x, *, int from_=2) -> Tensor", doc="Scales *everything*.")\n'
        "scale = md.ops.geo.scale\n"
        "scale_default = md.ops.geo.scale.default\n"
        '@md.custom_op("geo::double", mutates_args=())\n'
        "def double(x: Tensor, by: float = 2.0) -> Tensor:\n"
        '    """Doubles it."""\n'
        "    return x\n"
    )
    (tmp_path / "conf.py").write_text("extensions = ['sphinx.ext.autodoc']\nproject = 'geo'\n")
    (tmp_path / "index.rst").write_text(
        "Geo\n===\n\n.. automodule:: geo\n   :members:\n\n.. autofunction:: geo.scale\n\n"
        ".. autofunction:: geo.scale_default\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "sphinx", "-qW", "-b", "text", ".", "out"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    text = (tmp_path / "out" / "index.txt").read_text()
    assert "geo.double(x: Tensor, by: float = 2.0) -> Tensor\n\n   Doubles it." in text
    for name in ("scale", "scale_default"):
        assert f"geo.{name}(x: Tensor, *, from_: int = 2) -> Tensor\n\n   Scales *every" in text


def test_what_is_for_help_is_loaded_when_it_is_asked_for():
    script = (
        "import sys, mdispatch as md\n"
        "lib = md.Library('s', 'DEF')\n"
        "lib.define('f(int x) -> int', doc='text')\n"
        "lib.impl('f', lambda x: x)\n"
        "md.ops.s.f(1), md.ops.s.f.default(1)\n"
        "late = {'inspect', 'ast', 'html', 'pickle', 'mdispatch.dispatch.help'}\n"
        "assert not late & {*sys.modules}, late & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
