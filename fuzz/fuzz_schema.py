"""Schemas: any text is a schema whose printed form is an equal one, or it is refused with
InvalidArgumentError (SchemaSyntaxError, InvalidNameError); nothing else is raised, and no text
takes long.
"""

from __future__ import annotations

import contextlib
import sys
import time

import driver

if "--plain" not in sys.argv and driver.atheris_is_there():
    import atheris

    with atheris.instrument_imports(include=["mdispatch"]):
        import mdispatch.schema.parser  # noqa: F401
from mdispatch.errors import InvalidArgumentError
from mdispatch.schema import compare, parse_schema, split_name

WORDS = [
    *(b"Tensor", b"Tensor(a!)", b"Tensor(a -> *)", b"Tensor(a|b)", b"int", b"SymInt", b"float"),
    *(b"bool", b"str", b"Scalar", b"Device", b"Dict(str, int)", b"Union[int, str]", b"Future(t)"),
    *(b"()", b"[]", b"[2]", b"?", b"!", b"...", b"*, ", b" -> ", b"::", b".", b"=None", b"=[1, 2]"),
    *(b"=-1", b"=1e300", b"='\\n'", b'="', b"=True", b"=inf", b"t", b"(", b")", b"[", b"]", b","),
    *(b"ns::op(Tensor x) -> Tensor", b"op.out(", b"\xc3\xa4", b"\xed\xa0\x80", b"0x10", b"_"),
]

SECONDS = 1.0  # of the processor's time, for 4096 bytes at most; usual are milliseconds


def one_input(data: bytes) -> None:
    """The first byte says what is asked for, the rest is the text."""
    if not data:
        return
    typevars, text = bool(data[0] & 1), data[1:4097].decode("utf-8", "surrogateescape")
    namespace = "ns" if data[0] & 2 else None
    start = time.process_time()
    schema = None
    with contextlib.suppress(InvalidArgumentError):
        schema = parse_schema(text, namespace, allow_typevars=typevars)
    if schema is not None:
        printed = str(schema)
        again = parse_schema(printed, namespace, allow_typevars=typevars)
        assert again == schema, (printed, str(again))
        assert hash(again) == hash(schema)
        assert str(again) == printed
        assert compare(schema, again) is None
        assert not schema.name.namespace or schema.name.namespace in printed
    with contextlib.suppress(InvalidArgumentError):
        split_name(text)
    spent = time.process_time() - start
    assert spent < SECONDS, f"{spent:.1f} s for {len(data)} bytes"


if __name__ == "__main__":
    driver.main("schema", one_input, WORDS)
