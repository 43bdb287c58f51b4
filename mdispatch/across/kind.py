"""The kind of registrations of classes that schemas name: across/classes.py."""

from __future__ import annotations

from ..facts.kinds import Kind
from ..facts.native.constants import MD_CLASS, MD_UNIQUE

CLASS = MD_CLASS


class Class(Kind):
    number, name, rule = CLASS, "class", MD_UNIQUE
    there = "class {0} is registered"
    title = "Classes"
    instead = "Register this one under another name, or close the library of the first."

    def called(self, name: str) -> tuple[str, str]:
        return name.replace("::", "."), ""


KIND = Class()
