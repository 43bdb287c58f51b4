"""Devices and their keys, and the names that extensions give to their own backends.

Given names are the only changing thing about keys. They belong to this interpreter alone:
interpreters share the numbers and the canonical names of keys, and never a given name.

``_renaming`` guards every change. Readers take no lock: a writer replaces the mappings that they
read as a whole. Of these, ``_given`` is the registration, and the others are computed from it: so a
change is made by one store, and what a thread left undone at a fork can be done again in the child.
"""

from __future__ import annotations

from ..errors import DuplicateRegistrationError, InvalidKeyError, InvalidNameError
from ..forking import in_child, new_lock
from .names import MAX_NAME, is_identifier
from .numbers import BACKENDS, DispatchKey, key_names, names_of_backend, parse_key, publish_names

# The names of torch.device, the same in every interpreter. Metal has none.
_COMMON_DEVICES = {
    name.lower(): parse_key(name) for name in (*BACKENDS[:12], "Meta", "Vulkan", "FPGA")
} | {"privateuseone": DispatchKey.PrivateUse1}
# The common names and the names given in this interpreter.
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
        from ..errors.words import nearest, shown

        raise InvalidKeyError(
            f"there is no device {shown(device)}; there are {', '.join(devices)}, each also with a "
            "number, as in cuda:1; rename_privateuse_backend names the device of an extension",
            device,
            nearest(kind, devices),
        )
    return key


def canonical_device(device: str) -> str:
    """The device by the name that every interpreter knows: "privateuseone:1" for "npu:1".

    InvalidKeyError when there is no such device, or when its only name was given here, as for
    PrivateUse2 and PrivateUse3.
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


# By backend: the name that it was given, and where.
_given: dict[DispatchKey, tuple[str, str]] = {}
_renaming = new_lock()
_PRIVATE = (DispatchKey.PrivateUse1, DispatchKey.PrivateUse2, DispatchKey.PrivateUse3)


def rename_privateuse_backend(backend: DispatchKey | str, name: str) -> None:
    """Gives the backend of an extension a name of its own, in this interpreter.

    After ``rename_privateuse_backend("PrivateUse1", "npu")`` there are devices "npu" and "npu:1",
    and names of keys may have the word, as given or in capitals, in place of the backend's:
    "Autogradnpu" and "AutogradNPU" are read as AutogradPrivateUse1. The old names stay, and keys
    keep showing them: other interpreters must be able to read what this one writes. Every
    interpreter that uses the name must give it; a module that gives it at import does so
    everywhere.

    ``backend`` is PrivateUse1, PrivateUse2 or PrivateUse3. ``name`` is an identifier of ASCII; case
    matters for devices. A backend is named once, and the same name again changes nothing.

    Raises InvalidKeyError for another backend; InvalidNameError for a name that is no identifier,
    or that would make a name which a device or key has already, in any case;
    DuplicateRegistrationError, with both locations, for a backend that has another name. An error
    changes nothing. (PyTorch:
    torch.utils.rename_privateuse1_backend, c10: register_privateuse1_backend. There it is once per
    process, for PrivateUse1 alone, and names of keys have the word in capitals only.)
    """
    from ..errors.locations import caller, location_of
    from ..errors.words import shown

    key = parse_key(backend)
    if key not in _PRIVATE:
        raise InvalidKeyError(
            f"{key} cannot be renamed; extensions name only PrivateUse1, PrivateUse2 and "
            "PrivateUse3",
            backend,
        )
    if not isinstance(name, str) or not is_identifier(name) or len(name) > MAX_NAME:
        raise InvalidNameError(
            f"{shown(name)} cannot be the name of {key}: choose an identifier of at most "
            f"{MAX_NAME} ASCII letters, digits and underscores, such as npu",
            name,
        )
    where = location_of(caller())
    with _renaming:
        there, first = _given.get(key, ("", ""))
        if there and there != name:
            raise DuplicateRegistrationError(
                f"{key} is already named {shown(there)} in this interpreter, and cannot be named "
                f"{shown(name)}\n  first:  {first}\n  second: {where}\nA backend can be named only "
                f"once: use {shown(there)}, or take another PrivateUse backend.",
                "backend name",
                name,
                key.name,
                first,
                where,
            )
        if not there:
            _give(key, name, where)


def _give(key: DispatchKey, name: str, where: str) -> None:
    from ..errors.words import shown

    global _given
    names = _names_of(key, name)
    taken = {other.lower(): other for other in (*key_names(), *_devices)}
    for new in names:
        if new.lower() in taken:
            raise InvalidNameError(
                f"{shown(name)} cannot be the name of {key}: one of its keys would be called "
                f"{shown(new)}, and {taken[new.lower()]} exists already; choose another name",
                name,
            )
    _given = {**_given, key: (name, where)}
    _publish()


def _names_of(key: DispatchKey, name: str) -> dict[str, DispatchKey]:
    return names_of_backend(key.name, name) | names_of_backend(key.name, name.upper())


@in_child
def _publish() -> None:
    """Makes what readers see what ``_given`` says. Idempotent."""
    global _devices
    for key, (name, _) in _given.items():
        publish_names(_names_of(key, name))
    _devices = _COMMON_DEVICES | {name: key for key, (name, _) in _given.items()}
