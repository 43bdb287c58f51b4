"""Objects that are a name and a text on their way: those of a class that is registered with a
codec, and handles that go to other processes (across/sharing.py), whose name is empty.

An object of such a class is the name of the class and a text: the bytes that ``encode`` has given,
or the JSON of what else it has. native/bind/ext/parcel.c asks for both where it meets an object
that is no value, on the way to another interpreter and to another process.

Only a class that is registered where the text arrives is ever made there, by the ``decode`` of that
registration. Nothing is imported because of a name.
"""

from __future__ import annotations

from ..schema.classes import class_of, codec_of, name_of
from .sharing import ObjectHandle, from_outside, not_made

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: How many bytes a text has at most.
LARGEST = 1 << 20
_DO = "Such an object travels by what its codec makes of it: bytes, or what JSON can say."


def encoded(obj: object) -> tuple[str, bytes | str] | str | None:
    """The name and the text of an object. A str says why there is none, as error_of() in
    across/routing.py takes it; None for an object of a class without a codec. Called by C.
    """
    name = name_of(type(obj))
    codec = codec_of(name)
    if codec is None:
        if not isinstance(obj, ObjectHandle):
            return None
        try:
            told = obj.to_outside()
        except Exception as error:  # of the object's own code, which names its keys
            told = f"{obj.type_name}, whose keys cannot be told: {_told(error)}"
        return told if isinstance(told, str) else ("", _json(told))
    if type(obj) is not class_of(name):
        return (
            f"{type(obj).__qualname__}, whose base class {name} has a codec, and it has none\n{_DO}"
        )
    try:
        plain = codec[0](obj)
        text = plain if isinstance(plain, bytes) else _json(plain)
    except Exception as error:
        return f"{name}, whose encode() failed: {_told(error)}\n{_DO}"
    if len(text) > LARGEST:
        return f"{name}, whose encode() gives {len(text):,} bytes, not at most {LARGEST:,}\n{_DO}"
    return name, text


def decoded(name: object, text: object) -> Any:
    """The object of a name and a text. Called by C. Raises CannotTravelError."""
    if not isinstance(name, str) or not isinstance(text, (bytes, str)) or len(text) > LARGEST:
        raise ValueError("a message of a routed call is damaged: it has an odd constant")
    if not name and isinstance(text, str):
        return from_outside(text)
    codec, cls = codec_of(name), class_of(name)
    if codec is None:
        what = "is registered there" if cls is None else "has a codec there"
        raise not_made(name, f"no class of that name {what}") from None
    try:
        if isinstance(text, str):
            from json import loads

            made = codec[1](loads(text))
        else:
            made = codec[1](text)
    except Exception as error:
        raise not_made(name, f"its decode() failed there: {_told(error)}") from error
    if type(made) is not cls:
        raise not_made(name, f"its decode() gave an object of {type(made).__qualname__} there")
    return made


def _json(plain: object) -> str:
    from json import dumps

    return dumps(plain)


def _told(error: Exception) -> str:
    """An exception in one line of characters that UTF-8 has, without a zero byte."""
    try:
        text = str(error)
    except Exception:
        text = "it cannot be shown"
    text = f"{type(error).__qualname__}: {text}".encode(errors="backslashreplace").decode()
    return " ".join(text.replace("\0", "\\0").split("\n"))
