"""Devices and their keys, and the names that extensions give to the backends that are theirs.

Given names are the one thing about keys that changes. They are this interpreter's alone: what
interpreters share, the numbers and canonical names of keys, never holds one.

``_renaming`` guards every change. Readers take no lock: what they read is replaced as a whole.
"""

from __future__ import annotations

from _thread import allocate_lock

from ._keys import (
    BACKENDS,
    DispatchKey,
    key_names,
    names_of_backend,
    parse_key,
    publish_names,
)
from ._schema_names import MAX_NAME, is_identifier
from .errors import DuplicateRegistrationError, InvalidKeyError, InvalidNameError

__all__ = ["canonical_device", "device_key", "rename_privateuse_backend"]

# The names of torch.device, the same in every interpreter. Metal has none.
_COMMON_DEVICES = {
    name.lower(): parse_key(name) for name in (*BACKENDS[:12], "Meta", "Vulkan", "FPGA")
} | {"privateuseone": DispatchKey.PrivateUse1}
# These, and the names given in this interpreter.
_devices = _COMMON_DEVICES


def device_key(device: str) -> DispatchKey:
    """The key of a device by its name, with or without an index: CUDA for "cuda:1".

    InvalidKeyError, with the nearest names, when there is no such device. (c10:
    computeDispatchKey; torch: _dispatch_key_for_device)
    """
    devices = _devices
    kind, colon, index = device.partition(":")
    key = devices.get(kind)
    if key is None or (colon and not (index.isascii() and index.isdigit())):
        from ._nearest import nearest, shown

        raise InvalidKeyError(
            f"no device {shown(device)}; there are {', '.join(devices)}, and with a number, as"
            " cuda:1; rename_privateuse_backend names an extension's",
            device,
            nearest(kind, devices),
        )
    return key


def canonical_device(device: str) -> str:
    """The device by the name that every interpreter knows: "privateuseone:1" for "npu:1".

    InvalidKeyError when there is no such device, or none by another name than the one given here,
    as for PrivateUse2 and PrivateUse3.
    """
    key = device_key(device)
    kind, colon, index = device.partition(":")
    if kind in _COMMON_DEVICES:
        return device
    for common, known in _COMMON_DEVICES.items():
        if known is key:
            return common + colon + index
    raise InvalidKeyError(
        f"the device {device} is {key}, which has a name in this interpreter only: where other"
        " interpreters read it too, name another device",
        device,
    )


# The name given to each backend so far, and where. Guarded by _renaming.
_given: dict[str, tuple[str, str]] = {}
_renaming = allocate_lock()
_PRIVATE = (DispatchKey.PrivateUse1, DispatchKey.PrivateUse2, DispatchKey.PrivateUse3)


def rename_privateuse_backend(backend: DispatchKey | str, name: str) -> None:
    """Gives the backend of an extension a name of its own, in this interpreter.

    After ``rename_privateuse_backend("PrivateUse1", "npu")`` there are devices "npu" and "npu:1",
    and names of keys may have the word, as given or in capitals, in place of the backend's:
    "Autogradnpu" and "AutogradNPU" are read as AutogradPrivateUse1. The old names stay, and keys
    keep showing them: other interpreters must be able to read what this one writes. Each one that
    uses the name gives it; a module that does so at its import does so everywhere.

    ``backend`` is PrivateUse1, PrivateUse2 or PrivateUse3. ``name`` is an identifier of ASCII; case
    matters for devices. A backend is named once, and the same name again changes nothing.

    Nothing is changed by InvalidKeyError, for another backend; InvalidNameError, for a name that is
    no identifier, or that makes a name which a device or key has already, if in other case;
    DuplicateRegistrationError, with both places, for a backend that has another name. (PyTorch:
    torch.utils.rename_privateuse1_backend, c10: register_privateuse1_backend. There it is once per
    process, for PrivateUse1 alone, and names of keys have the word in capitals only.)
    """
    from ._nearest import shown
    from ._place import caller, place_of

    key = parse_key(backend)
    if key not in _PRIVATE:
        raise InvalidKeyError(
            f"{key} has its name for good; only PrivateUse1, PrivateUse2 and PrivateUse3 are named"
            " by extensions",
            backend,
        )
    if not isinstance(name, str) or not is_identifier(name) or len(name) > MAX_NAME:
        raise InvalidNameError(
            f"{shown(name)} cannot be the name of {key}: choose an identifier of at most"
            f" {MAX_NAME} letters of ASCII, digits and underscores, as npu",
            name,
        )
    where = place_of(caller())
    with _renaming:
        there, first = _given.get(key.name, ("", ""))
        if there and there != name:
            raise DuplicateRegistrationError(
                f"{key} has a name in this interpreter, {shown(there)}, and cannot be called"
                f" {shown(name)}\n  first:  {first}\n  second: {where}\n"
                f"A backend is named once: use {shown(there)}, or take another PrivateUse backend.",
                "backend name",
                name,
                key.name,
                first,
                where,
            )
        if not there:
            _give(key, name, where)


def _give(key: DispatchKey, name: str, where: str) -> None:
    from ._nearest import shown

    global _devices
    names = names_of_backend(key.name, name) | names_of_backend(key.name, name.upper())
    taken = {other.lower(): other for other in (*key_names(), *_devices)}
    for new in names:
        if new.lower() in taken:
            raise InvalidNameError(
                f"{shown(name)} cannot be the name of {key}: {shown(new)} would mean one of its"
                f" keys, and {taken[new.lower()]} is there already; choose another word",
                name,
            )
    publish_names(names)
    _devices = {**_devices, name: key}
    _given[key.name] = (name, where)
