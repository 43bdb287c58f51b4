"""Plug-ins: the entry points of a group, which distributions declare that are installed.

A member imports those that it finds, in the order of their names. Members agree on the list first,
so the error names a plug-in that is not installed everywhere, also where it registers nothing.
"""

from __future__ import annotations

from .. import errors, seam
from ..errors.words import entry_point, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

    from ..registry import Registry

#: Its entry points are kernels, see providers/later.py: nothing is imported before a call.
PROVIDERS = "mdispatch.providers"


def group_names(groups: str | Iterable[str]) -> list[str]:
    """The groups as a list. InvalidArgumentError for anything that cannot name one."""
    try:
        names = [groups] if isinstance(groups, str) else list(groups)
    except TypeError:
        names = [groups]  # type: ignore[list-item]
    for name in names:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise errors.InvalidArgumentError(
                f"entry_points names groups of entry points, one or several, not {shown(name)}"
            )
    return list(dict.fromkeys(names))


def find(group: str) -> list[EntryPoint]:
    """Those of a group, by name and value."""
    from importlib.metadata import entry_points

    return sorted(set(entry_points(group=group)))


def agree_on(
    registry: Registry, group: str, found: list[EntryPoint]
) -> errors.DisagreementError | None:
    """The error, if another member has found other ones."""
    agree = seam.perhaps("agree")
    if agree is None or registry.dispatcher.facts.alone:
        return None
    listed: dict[str, str] = {}
    for each in found:
        before = listed.get(each.name)
        listed[each.name] = each.value if before is None else f"{before}, {each.value}"
    try:
        # The members of a host: those of another one compare what the plug-ins register.
        agree(f"entry points of {group}", listed, secret=(), scope="host", registry=registry)
    except errors.DisagreementError as error:
        return error
    return None


def load(registry: Registry, found: list[EntryPoint]) -> None:
    """Imports the modules that they name, and looks up what they name there."""
    for each in found:
        try:
            each.load()
        except BaseException as error:
            error.add_note(entry_point(each))
            raise
