"""Shared by all recordings: the keys by name, values as JSON, processes of their own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings

from torch import _C as C

K = C.DispatchKey
KS = C.DispatchKeySet

# By number; the enum's attributes lack 17 keys, and have markers, which are not keys.
MARKERS = (47, 48, 65, 82, 99, 116, 133)
VALUES = tuple(value for value in range(156) if value not in MARKERS)
NAMES = {value: C._dispatch_key_name(K(value)) for value in VALUES}
BY_NAME = {name: K(value) for value, name in NAMES.items()}
PARSED = tuple(name for name in NAMES.values() if C._parse_dispatch_key(name) is not None)
RUNTIME = ["Undefined", *repr(C._dispatch_keyset_full())[len("DispatchKeySet(") : -1].split(", ")]
ALIASES = tuple(name for value, name in NAMES.items() if value >= 150)
FULL = C._dispatch_keyset_full().raw_repr()


def words(text: str) -> list[str]:
    return text.split()


def bits(*names: str) -> int:
    raw = 0
    for name in names:
        raw |= KS(BY_NAME[name]).raw_repr()
    return raw


def key_set(raw: int) -> C.DispatchKeySet:
    return KS.from_raw_repr(raw)


def plain(value: object) -> object:
    """A value as JSON: a key is {"key": number}, a set {"set": bits}, a module or handle its
    type's name.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, K):
        return {"key": value.value}
    if isinstance(value, KS):
        return {"set": value.raw_repr()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[plain(k), plain(v)] for k, v in value.items()]}
    return {"type": type(value).__name__}


def text_of(error: BaseException) -> str:
    """An error's text, without the stack of C++ and the addresses of the arguments."""
    return str(error).split("Exception raised from")[0].split("\n\nInvoked with")[0].rstrip("\n ")


def outcome(run) -> dict:
    """The outcome: {"value": ...} or {"error": type, "text": words}."""
    try:
        return {"value": plain(run())}
    except Exception as error:
        return {"error": type(error).__name__, "text": text_of(error)}


def forked(run) -> object:
    """The result of ``run`` in a forked process, as JSON."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            data = json.dumps(run()).encode()
            while data:
                data = data[os.write(writes, data) :]
            status = 0
        finally:
            if status:
                import traceback

                traceback.print_exc()
            os._exit(status)
    os.close(writes)
    with open(reads, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"a recording process ended with status {status}")
    return json.loads(data)


class Warned:
    """Collects warnings: Python's own, and those of TORCH_WARN on standard error."""

    def __enter__(self) -> Warned:
        self._file = tempfile.TemporaryFile()
        self._stderr = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        self._catch = warnings.catch_warnings(record=True)
        self._caught = self._catch.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *exc: object) -> None:
        self._catch.__exit__(*exc)
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
        self._file.seek(0)
        text = self._file.read().decode()
        self._file.close()
        for warned in self._caught:
            text += f"] Warning: {warned.message}"
        # The location in C++ comes first, the function or the location comes last.
        words = text.partition("] Warning: ")[2]
        self.text = words.partition(" (function ")[0].partition(" (Triggered ")[0].strip()


def local_sets() -> list[int]:
    """The included and the excluded set of this thread."""
    sets = (C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set())
    return [keys.raw_repr() for keys in sets]


def argument(value: object) -> object:
    """Makes a recorded argument."""
    if isinstance(value, dict):
        return K(value["key"]) if "key" in value else key_set(value["set"])
    return value
