"""The recordings of PyTorch 2.13 in tests/oracle: reading them, doing their steps, comparing.

Of an error the class and the registrations are compared (names, keys, locations, types), not the
words: see facts_of.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import warnings
from functools import cache
from pathlib import Path

import mdispatch as md


@cache
def recording(name):
    path = Path(__file__).parents[1] / "oracle" / f"{name}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


# Seven of the recorded numbers are markers and not keys.
KEYS = {
    key["name"]: key["value"]
    for key in recording("keys")["keys"]
    if key["value"] not in (47, 48, 65, 82, 99, 116, 133)
}
RUNTIME_KEYS = recording("keys")["runtime_keys_in_table_order"]
FALLBACKS = recording("keys")["backend_fallbacks"]


def fallback_at_start(compat, name):
    """Stands for one of the fallbacks that PyTorch has in C++."""

    def fallback(keyset, op, *args, **kwargs):
        if name == "Meta":
            raise NotImplementedError("there is no kernel at Meta")
        assert name.startswith("Autograd"), f"the fallback of {name} has no counterpart here"
        return op.redispatch(keyset & compat._after_autograd_keyset, *args, **kwargs)

    return fallback


@contextlib.contextmanager
def fresh(compat):
    """A new registry, with the backend fallbacks that PyTorch has at start."""
    with md.Registry.create() as registry, compat.using(registry):
        libraries = []
        for name, recorded in FALLBACKS.items():
            file, _, line = recorded["debug"].removeprefix("registered at ").rpartition(":")
            library = compat._dispatch_library("IMPL", "_", "", file, int(line))
            if recorded["fallthrough"]:
                library.fallback_fallthrough(name)
            else:
                key = compat.DispatchKey(KEYS[name])
                library.fallback(key, fallback_at_start(compat, name), True)
            libraries.append(library)
        yield registry


def has_fallback(compat, name):
    return compat._dispatch_has_backend_fallback(compat.DispatchKey(KEYS[name]))


class Player:
    """Takes the steps of a recording."""

    def __init__(self, compat, kernels=None):
        self.compat = compat
        self.libraries = {}
        self.kernels = {"fallthrough": md.fallthrough_kernel, **(kernels or {})}

    def run(self, do):
        op = do["op"]
        given = {name: do[name] for name in ("dispatch", "debug") if name in do}
        alias = {"alias": do["alias"]} if "alias" in do else {}
        if op == "lib":
            place = (do["file"], do["line"]) if "file" in do else ()
            library = self.compat._dispatch_library(do["kind"], do["ns"], do["dispatch"], *place)
            self.libraries[do["id"]] = library
            return library
        if op == "drop":
            self.libraries.pop(do["lib"], None)
            return None
        library = self.libraries[do["lib"]]
        if op == "reset":
            return library.reset()
        if op == "def_":
            return library.def_(do["schema"], **alias)
        if op == "define":
            analysis = {"alias_analysis": do["alias"]} if alias else {}
            return library.define(do["schema"], **analysis)
        if op == "def_legacy":
            return library.def_legacy(do["schema"])
        if op == "def_name_t_t":
            return library.def_name_t_t(do["name"], **given)
        if op == "def_schema_t_t":
            return library.def_schema_t_t(do["schema"], **alias, **given)
        if op == "impl_t_t":
            return library.impl_t_t(do["name"], **given)
        if op == "fallback_fallthrough":
            return library.fallback_fallthrough(**given)
        if op == "impl_fallthrough":
            return library.impl(do["name"], do["dispatch"], md.fallthrough_kernel)
        key = do["dispatch"]
        if isinstance(key, dict):
            key = self.compat.DispatchKey(key["key"])
        keyset = {"with_keyset": True} if do.get("with_keyset") else {}
        kernel = self.kernels[do["kernel"]]
        if op == "impl":
            return library.impl(do["name"], key, kernel, **keyset)
        assert op == "fallback", op
        return library.fallback(key, kernel, **keyset)

    def step(self, step):
        """Takes one step and compares the outcome. Returns the warnings."""
        do = step["do"]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                returned = self.run(do)
            except Exception as error:
                failed = error.with_traceback(None)
                returned = None
            else:
                failed = None
        if step["ok"]:
            assert failed is None, f"{do}: {failed!r}"
            if "returned" in step:
                assert returned == step["returned"]
            elif op_returns_its_library(do):
                assert returned is self.libraries[do["lib"]]
        else:
            assert failed is not None, f"{do} is to fail: {step['error']}"
            assert_same_error(failed, step["error_type"], step["error"])
        assert all(issubclass(w.category, UserWarning) for w in warned)
        return [str(w.message) for w in warned]


def op_returns_its_library(do):
    return do["op"] not in (
        "lib",
        "drop",
        "reset",
        "define",
        "impl_fallthrough",
        "impl",
        "fallback",
    )


# The registrations in the texts of PyTorch's errors.
FACTS = [
    re.compile(pattern)
    for pattern in (
        r"registered at (.+?:\d+)(?:; latest|, new|\. Original|\n|$)",  # locations
        r"block at (.+?:\d+)\)",
        r"could not parse (?:dispatch key: )?(?!dispatch key:$)(.+)$",
        r"(?:def|impl)\(\"\s*([^\"]*?)\s*\"",
        r"dispatch key \((\w+)\)",
        r"same dispatch key (\w+);",
        r"the dispatch key of the enclosing \w+ block \((\w+)\)",
        r"provided namespace \((\w*)\)",
        r"namespace of enclosing \w+ block \((\w+)\)",
        r"used to register the namespace (\w+);",
        r"you specified (\w+)\)",
        r"Tried to register an operator \(([^(]+)\(.*\) with the same name",
        r"  operator: (.+)",
        r"number of \w+ is different\. (\d+) vs (\d+)",
        r"Type mismatch in (?:argument|return) (\d+): (.+) vs (.+)\.$",
        r"^operator (.*) does not exist$",
        r"no kernel for (\w+) on (.+)$",
        r"Could not find schema for (\S*?)\.?(?: but|$)",
    )
]


def facts_of(text):
    """The registrations in an error of PyTorch's, without its words."""
    facts = []
    for pattern in FACTS:
        for found in pattern.finditer(text):
            facts += [fact.strip() for fact in found.groups()]
    return facts


def assert_same_error(error, type_name, text):
    expected = {"RuntimeError": RuntimeError, "TypeError": TypeError}.get(type_name)
    if expected is None:
        assert type(error).__name__ == type_name
    else:
        assert isinstance(error, expected), f"{error!r} is to be a {type_name}: {text}"
    for fact in facts_of(text):
        assert fact in str(error), f"{fact!r} is not in {str(error)!r}; PyTorch says {text!r}"


def table_of(compat, name):
    """The lines of _dispatch_dump_table: key -> [debug, reason, "fallthrough"?]."""
    table = {}
    for line in compat._dispatch_dump_table(name).splitlines():
        key, colon, rest = line.partition(": ")
        debug, bracket, reason = rest.rpartition(" [")
        assert colon
        assert bracket
        assert reason.endswith("]")
        through = debug.startswith("fallthrough ")
        table[key] = [debug.removeprefix("fallthrough "), reason[:-1], *["fallthrough"] * through]
    return table


# --- the names of torch_compat --------------------------------------------------------------------

RECORDED = recording("compat")


def made(compat, value):
    """A recorded argument."""
    if isinstance(value, dict) and "key" in value:
        return compat.DispatchKey(value["key"])
    if isinstance(value, dict):
        return compat.DispatchKeySet.from_raw_repr(value["set"])
    return value


def plain(compat, value):
    """A result, in the form of the recording."""
    if isinstance(value, compat.DispatchKey):
        return {"key": value.value}
    if isinstance(value, compat.DispatchKeySet):
        return {"set": value.raw_repr()}
    if isinstance(value, (list, tuple)):
        return [plain(compat, item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return {"type": type(value).__name__}


def answer(run):
    """The value, or the error without its stack, which would keep libraries alive."""
    try:
        return {"value": run()}
    except Exception as error:
        return {"error": error.with_traceback(None)}


def assert_outcome(compat, run, recorded):
    found = answer(run)
    if "error" in recorded:
        assert "error" in found, f"{found} is to be: {recorded}"
        assert_same_error(found["error"], recorded["error"], recorded["text"])
    else:
        assert "error" not in found, f"{found} is to be: {recorded}"
        assert plain(compat, found["value"]) == recorded["value"]


def sets_of_thread(compat):
    sets = compat._dispatch_tls_local_include_set(), compat._dispatch_tls_local_exclude_set()
    return [keys.raw_repr() for keys in sets]


class Carrier:
    """An object that carries these bits."""

    def __init__(self, raw):
        self.__dispatch_keys__ = md.DispatchKeySet.from_raw(raw)


def in_a_thread(run):
    """The result of ``run`` in a thread of its own."""
    result = []

    def target():
        try:
            result.append(run())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def python_kernel(*args, **kwargs):
    return None
