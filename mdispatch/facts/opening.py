"""Opens registries: new ones, those of a name or an address, and the one in the environment.

Each function refuses arguments that the native registry would misread, and returns a handle.
"""

from __future__ import annotations

import os

from .. import errors, seam
from .native import native, run_signal_handlers
from .native.constants import MD_EBRACES, MD_EINTR, MD_ENAME, MD_MAX_ADDRESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The environment variable by which child processes find the default registry of their parent.
ENVIRONMENT = "MDISPATCH_REGISTRY"

DEFAULT_CAPACITY = 256 * 1024 * 1024
_LEAST, _MOST = 466944, 1 << 34


def _address_bytes(text: str) -> bytes:
    if not isinstance(text, str):
        raise errors.InvalidNameError(
            f"a registry's name is a str, not {type(text).__name__}", text
        )
    # Text beyond ASCII is no name or address, and would not reach the native registry as it is.
    if not text or len(text) >= MD_MAX_ADDRESS or not text.isascii() or "\0" in text:
        from .status import error_for  # few starts fail, here and below

        raise error_for(MD_ENAME, text[:60])
    return text.encode()


def without_braces(address: str) -> str:
    """The name or address as C takes it. Raises EditionError."""
    if isinstance(address, str) and ("{" in address or "}" in address):
        replaced: str = seam.at("braces in an address")(address)
        return replaced
    return address


def check_capacity(capacity: int) -> None:
    """Refuses what no registry could have."""
    if not isinstance(capacity, int) or isinstance(capacity, bool):
        from ..errors.words import shown

        raise errors.InvalidArgumentError(
            f"capacity={shown(capacity)}: give a whole number of bytes"
        )
    if not _LEAST <= capacity <= _MOST:
        from ..errors.words import shown

        raise errors.InvalidArgumentError(
            f"capacity={shown(capacity)}: a registry has 458 KiB ({_LEAST} bytes) to 16 GiB; "
            f"the default is {DEFAULT_CAPACITY} and costs memory only as it is used"
        )


def create_or_elect(
    open_it: Callable[[str | None, int], tuple[int, int]], name: str | None, capacity: int
) -> int:
    """Creates a registry, or opens the elected one of that name. Returns its handle."""
    text = None if name is None else _address_bytes(without_braces(name)).decode()
    check_capacity(capacity)
    status, handle = open_it(text, capacity)
    if status:
        from .status import error_for

        raise error_for(status, text or "(anonymous)")
    return handle


def attach(address: str, deadline: int) -> int:
    address = without_braces(address)
    data = _address_bytes(address)
    while True:
        status, handle = native.attach(data, deadline)
        if status != MD_EINTR:
            break
        handle_signals()
    if status:
        from .status import error_for

        raise error_for(status, address)
    return handle


def open_default(address: str) -> int:
    try:
        data = _address_bytes(address) if address else b""
        while True:
            status, handle = native.open_default(data)
            if status == MD_EBRACES:
                data = _address_bytes(without_braces(address))
            elif status == MD_EINTR:
                handle_signals()
            else:
                break
        if status:
            from .status import error_for

            raise error_for(status, data.decode())
    except errors.MdispatchError as error:
        if address:
            from ..errors.words import shown

            variable = f"{ENVIRONMENT}={shown(address, MD_MAX_ADDRESS)}"
            error.args = (_asked_for(error, variable, address),)
        raise
    return handle


def _asked_for(error: errors.MdispatchError, variable: str, address: str) -> str:
    """The error's text for a registry for which the environment asks."""
    text = error.args[0]
    if address.startswith("fd:") and not isinstance(error, errors.ForeignRegistryError):
        gives = "a process that has a registry gives this to its children. Unset it to work alone."
        return f"{text}\n{variable} in the environment names it; {gives}"
    if isinstance(error, errors.RegistryNotFoundError):
        folder = native.folder()[1].decode("utf-8", "replace")
        name = address.removeprefix("shm:")
        return (
            f"{text}\n{variable} in the environment asks for it: in {folder} on this host, where "
            "nobody has it now. Unset it to work alone, start its registrar first, or let "
            f"whoever comes first make it: {ENVIRONMENT}=elect:{name}."
        )
    return f"{text}\n{variable} in the environment asks for it. Unset it to work alone."


def named_registries() -> list[str]:
    """The names of all files in the folder of named registries, sorted; the editions of a name
    follow each other.
    """
    status, path = native.folder()
    if status:
        return []
    try:
        return sorted(os.listdir(os.fsdecode(path)), key=lambda name: name.partition("@"))
    except OSError:
        return []


def handle_signals() -> None:
    """Runs the signal handlers that are due after an interrupted wait. In a sub-interpreter on the
    main thread Python would not run them by itself.
    """
    raised = run_signal_handlers()
    if raised is None:
        return
    name, text = raised
    if name == "KeyboardInterrupt":
        raise KeyboardInterrupt(text)
    raise RuntimeError(f"a signal handler of the main interpreter raised {name}: {text}")
