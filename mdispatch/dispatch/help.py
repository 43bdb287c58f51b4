"""What an operator tells of itself: signature, annotations, docstring, and a table for notebooks.

The signature is that of the schema. The text is the one given to ``define``, else the docstring of
a kernel that this interpreter has. Nothing here is for calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from html import escape

from ..errors import OperatorGoneError
from ..keys.numbers import DispatchKey
from ..schema.python_types import EITHER, KEYWORD, POSITIONAL, parameters, returned
from .annotations import Tensor
from .explain import existing, kernels_by_key, table_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable, Iterator
    from typing import Any

    from ..schema import FunctionSchema

    # An OpOverload; its module needs this one.
    Operator = Any


def _operators(made: Any) -> list[Operator]:
    """The overloads of a packet, or the one operator that this is. AttributeError without any."""
    found: list[Operator] = made.operators_described()
    try:
        for each in found:
            each.entry.current(each.generation)
    except OperatorGoneError as error:
        raise AttributeError(str(error)) from None
    if not found:
        raise AttributeError(f"{made!r} has no overloads")
    return found


# --- the signature --------------------------------------------------------------------------------

_KINDS = {
    POSITIONAL: inspect.Parameter.POSITIONAL_ONLY,
    EITHER: inspect.Parameter.POSITIONAL_OR_KEYWORD,
    KEYWORD: inspect.Parameter.KEYWORD_ONLY,
}


def signature_of(made: Any) -> inspect.Signature:
    """The signature of a call. That of an operator which was made from a function is the
    function's.
    """
    function = getattr(made, "__wrapped__", None)
    if function is not None:
        try:
            return inspect.signature(function)
        except (TypeError, ValueError):  # no function of Python's
            pass
    operators = _operators(made)
    if len(operators) == 1:
        return _signature(operators[0].schema)
    kinds = {"args": inspect.Parameter.VAR_POSITIONAL, "kwargs": inspect.Parameter.VAR_KEYWORD}
    return inspect.Signature([inspect.Parameter(name, kind) for name, kind in kinds.items()])


def _signature(schema: FunctionSchema) -> inspect.Signature:
    found, args, kwargs = parameters(schema)
    named = [
        inspect.Parameter(
            each.name,
            _KINDS[each.how],
            default=_default(each.argument.default)
            if each.argument.has_default
            else inspect.Parameter.empty,
            annotation=_evaluated(each.annotation),
        )
        for each in found
    ]
    if args:
        at = sum(each.how is not KEYWORD for each in found)
        named.insert(at, inspect.Parameter(args, inspect.Parameter.VAR_POSITIONAL))
    if kwargs:
        named.append(inspect.Parameter(kwargs, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(named, return_annotation=_evaluated(returned(schema)))


def _default(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _evaluated(annotation: ast.expr) -> Any:
    """The object that an annotation of our own making stands for."""
    import ast
    import typing

    names = {"Any": typing.Any, "Sequence": Sequence, "Tensor": Tensor}
    return eval(ast.unparse(annotation), names)


def text_signature_of(made: Any) -> str:
    """The signature without types, for tools that read only that."""
    signature = signature_of(made)
    bare = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def annotations_of(made: Any) -> dict[str, Any]:
    """The types of the arguments and, as "return", of what is returned."""
    try:
        signature = signature_of(made)
    except AttributeError:
        return {}
    found = {
        name: each.annotation
        for name, each in signature.parameters.items()
        if each.annotation is not inspect.Parameter.empty
    }
    if signature.return_annotation is not inspect.Signature.empty:
        found["return"] = signature.return_annotation
    return found


# --- the text -------------------------------------------------------------------------------------

#: Whose docstring counts first; then those of other keys.
_FIRST = (
    DispatchKey.CompositeImplicitAutograd,
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CPU,
)


def doc_of(made: Any) -> str | None:
    """What the author says of the operator, then its schema."""
    try:
        operators = _operators(made)
    except AttributeError:
        return None
    texts = dict.fromkeys(text for each in operators if (text := _text_of(each)))
    # As a literal: Sphinx takes a first line that looks like one for the signature, and a lone star
    # for markup.
    return "\n\n".join((*texts, *(f"Schema: ``{each.schema}``" for each in operators)))


def _text_of(operator: Operator) -> str:
    """The text given to ``define``, else a kernel's docstring; "" without any."""
    generation, text = operator.dispatcher.docs.get(operator.name, (0, ""))
    if text and generation == operator.generation:
        return inspect.cleandoc(text)
    by_key = dict(operator.entry.kernels)
    for key in dict.fromkeys((*_FIRST, *by_key)):
        # One that is for some types only says less of the operator.
        newest_first = by_key.get(key, ())[::-1]
        for kernel in sorted(newest_first, key=lambda each: bool(each.types)):
            text = _docstring(kernel.function)
            if text:
                return inspect.cleandoc(text)
    return ""


def _docstring(function: Any) -> str:
    """A function's own docstring, not that of its class; of a callable of ours, that of the
    function within.
    """
    while _is_ours(function):
        function = getattr(function, "function", None)
    text = getattr(function, "__doc__", None)
    return text if isinstance(text, str) and text != type(function).__doc__ else ""


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", None)).startswith("mdispatch.")


# --- the table for notebooks ----------------------------------------------------------------------

#: How many keys one line of the table names.
_NAMED = 12


def html_of(made: Any) -> str:
    """The operator as HTML: its schema, its kernels by key, and what runs at which keys and why."""
    try:
        operators = _operators(made)
    except AttributeError as error:
        return f"<pre>{escape(str(error))}</pre>"
    return "\n".join(line for each in operators for line in _html(each))


def _html(operator: Operator) -> Iterator[str]:
    registry = operator.dispatcher.facts
    there = existing(registry, operator.name)
    yield f"<p><code>{escape(str(operator.schema))}</code></p>"
    text = _text_of(operator)
    if text:
        yield f"<p>{escape(text.partition(chr(10) * 2)[0])}</p>"
    here = operator.entry.kernels
    yield from _table(
        ("key", "kernel", "registered at", "in this interpreter"),
        (
            (key.name, _marked(fact.body, not place), fact.where, "yes" if key in here else "no")
            for key, kernels in kernels_by_key(there)
            for place, fact in enumerate(kernels)
        ),
    )
    runs: dict[tuple[str, str, str], list[str]] = {}
    for row in table_rows(registry, operator.name):
        if row.reason != "missing":
            runs.setdefault((row.kernel or "-", row.reason, row.where), []).append(row.key.name)
    yield from _table(
        ("a call with", "runs", "because", "registered at"),
        ((_some(keys), *what) for what, keys in runs.items()),
    )


def _marked(label: str, is_active: bool) -> str:
    return label if is_active else f"{label} (inactive)"


def _some(keys: list[str]) -> str:
    more = len(keys) - _NAMED
    return ", ".join(keys[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "<table>"
    yield f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{escape(each)}</td>' for each in row)}</tr>"
    yield "</table>"
