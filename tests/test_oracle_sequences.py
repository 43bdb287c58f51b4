"""Random sequences of registering and closing, replayed against recordings of PyTorch 2.13.

Each of the two recordings, tests/oracle/sequences.json.gz and more_sequences.json.gz, is replayed
step by step through mdispatch.torch_compat, in a registry of its own that begins with the backend
fallbacks PyTorch has at start. After each step everything that the recording observes is compared.

Where mdispatch decides otherwise, on purpose:

- The cached table. PyTorch refreshes some entries of it too late, and then its invariants are
  broken; the recording says so in ``invariants_ok``. Here there is one table, and the invariants
  always hold: test_stale_tables_of_the_recording_are_right_here.
- The warning of a kernel that takes the place of another, which both give once, here for each
  registry. PyTorch names the first typed kernel of the operator as the previous one. Here it is the
  kernel that was active there: test_the_warning_of_an_override_names_the_kernel_before_it.
- Names of keys. All are read here: test_the_names_of_all_keys_are_read.
- Words. Of an error the class and the facts are compared (names, keys, places, types), not how it
  is said: see facts_of.

What is laxer in PyTorch than here does not occur in these sequences, test_oracle_compat.py has it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import warnings
from functools import cache
from pathlib import Path

import pytest

import mdispatch as md

# --- what test_oracle_compat.py uses too ----------------------------------------------------------


@cache
def recording(name):
    path = Path(__file__).parent / "oracle" / f"{name}.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


# Seven of the recorded numbers are markers, which are no keys.
KEYS = {
    key["name"]: key["value"]
    for key in recording("keys")["keys"]
    if key["value"] not in (47, 48, 65, 82, 99, 116, 133)
}
RUNTIME_KEYS = recording("keys")["runtime_keys_in_table_order"]
FALLBACKS = recording("keys")["backend_fallbacks"]


def fallback_at_start(compat, name):
    """What stands here for one of the fallbacks that PyTorch has in C++."""

    def fallback(keyset, op, *args, **kwargs):
        if name == "Meta":
            raise NotImplementedError("there is no kernel at Meta")
        assert name.startswith("Autograd"), f"the fallback of {name} has no counterpart here"
        return op.redispatch(keyset & compat._after_autograd_keyset, *args, **kwargs)

    return fallback


@contextlib.contextmanager
def fresh(compat):
    """A registry of its own, with the backend fallbacks that PyTorch has at start."""
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
    """Does the steps of a recording."""

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
        """Does one step and compares what came of it. Returns the warnings."""
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


# The facts in the texts of PyTorch's errors.
FACTS = [
    re.compile(pattern)
    for pattern in (
        r"registered at (.+?:\d+)(?:; latest|, new|\. Original|\n|$)",  # places
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
    """What an error of PyTorch's says beside its words."""
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


# --- sequences ------------------------------------------------------------------------------------

FILES = ("sequences", "more_sequences")


def kernels_in(dump):
    """The kernels by their key's word in a dump, the active one first: their debug texts."""
    kernels = {}
    for line in dump.splitlines():
        key, _, rest = line.partition(": ")
        if " :: " in rest:
            kernels.setdefault(key.removesuffix(" (inactive)"), []).append(rest.split(" :: ")[0])
    return kernels


class Replay:
    """One sequence, step by step."""

    def __init__(self, compat, recorded, sequence):
        self.compat = compat
        self.player = Player(compat)
        self.table_keys = recorded["table_keys"]
        self.cached_keys = recorded["cached_has_keys"]
        self.sequence = sequence
        self.expected = {}
        self.dumps = dict.fromkeys(sequence["observe"], "")
        self.stale = 0  # observations in which PyTorch's cached table is
        self.overrides = []  # (the kernel before, the new one)

    def run(self):
        for number, step in enumerate(self.sequence["steps"]):
            try:
                warned = self.player.step(step)
                self.expected.update(step["changed"])
                self.compare()
                self.compare_warnings(step, warned)
            except AssertionError as error:
                error.add_note(f"step {number} of sequence {self.sequence['id']}: {step['do']}")
                raise
        self.compat._dispatch_check_all_invariants()

    def compare(self):
        compat = self.compat
        for name in self.sequence["observe"]:
            expected = self.expected[name]
            compat._dispatch_check_invariants(name)
            assert compat._dispatch_has_kernel(name) is expected["has"]
            table = table_of(compat, name)
            if expected["has"]:
                seen = {key: table.get(key) for key in self.table_keys}
                assert seen == expected["table"]
                self.compare_cached(name, table, expected)
            else:
                assert not table
            self.compare_schema(name, expected["find_schema"])
        differ = [n for n in RUNTIME_KEYS if has_fallback(compat, n) != (n in FALLBACKS)]
        assert sorted(differ) == self.expected["#fallbacks_vs_start"]
        dangling = [d.split("\n")[0] for d in compat._dispatch_find_dangling_impls()]
        assert sorted(dangling) == ["name: " + n for n in self.expected["#dangling"]]

    def compare_cached(self, name, table, expected):
        """Here it is the table; in PyTorch, where it is not stale."""
        cached = {
            key: self.compat._dispatch_has_computed_kernel_for_dispatch_key(name, key)
            for key in self.cached_keys
        }
        # In C++ a functionality has the slot of its first backend.
        there = {key: {"Dense": "CPU"}.get(key, key) in table for key in self.cached_keys}
        assert cached == there
        if expected["invariants_ok"]:
            assert cached == expected["cached_has"]
        else:
            self.stale += 1

    def compare_schema(self, name, expected):
        base, _, overload = name.partition(".")
        find = self.compat._dispatch_find_schema_or_throw
        if expected.startswith("ERR "):
            with pytest.raises(RuntimeError) as raised:
                find(base, overload)
            assert_same_error(raised.value, "RuntimeError", expected.removeprefix("ERR "))
        else:
            assert str(find(base, overload).schema()) == expected

    def compare_warnings(self, step, warned):
        """And the dumps, from which it is known what was there before."""
        overridden = []
        for name in self.sequence["observe"]:
            dump = self.compat._dispatch_dump(name)
            assert dump == self.expected[name]["dump"]
            before, after = kernels_in(self.dumps[name]), kernels_in(dump)
            overridden += [
                (name, key.removesuffix("[alias]"), before[key][0], kernels[0])
                for key, kernels in after.items()
                if key in before and len(kernels) > len(before[key])
                if key not in ("Meta", "MTIA")
            ]
            self.dumps[name] = dump
        assert len(warned) == ("warning" in step), warned
        if not warned:
            return
        (text,) = warned
        assert step["warning"].rpartition("new kernel: ")[2] in text
        key = re.search(r"dispatch key: (.*)", step["warning"])[1]
        # A kernel that is registered without a key is one at CompositeImplicitAutograd.
        assert key in text or (key == "(catch all)" and "CompositeImplicitAutograd" in text)
        assert len(overridden) <= 1
        for name, _, previous, new in overridden:  # none, if nobody observes the operator
            assert all(fact in text for fact in (name, previous, new))
            self.overrides.append((previous, new))


@pytest.fixture
def compat():
    from mdispatch import torch_compat

    return torch_compat


def fails_at_a_key(sequence):
    """Whether PyTorch does not read the name of a key that is one."""
    texts = [
        step.get("error", "").partition("could not parse dispatch key: ")
        for step in sequence["steps"]
    ]
    return any(name in KEYS for _, _, name in texts)


#: A sixth of them every day, all of them in the long form.
EVERY_SEQUENCE = [
    pytest.param(
        file,
        number,
        id=f"{file}-{sequence['id']}",
        marks=[pytest.mark.slow] if number % 6 else [],
    )
    for file in FILES
    for number, sequence in enumerate(recording(file)["sequences"])
    if not fails_at_a_key(sequence)
]


def replayed(compat, file, number):
    recorded = recording(file)
    replay = Replay(compat, recorded, recorded["sequences"][number])
    with fresh(compat):
        replay.run()
        replay.player.libraries.clear()
        assert compat._dispatch_get_all_op_names() == []
    return replay


@pytest.mark.parametrize(("file", "number"), EVERY_SEQUENCE)
def test_a_sequence_has_the_recorded_effects(compat, file, number):
    replayed(compat, file, number)


def first_where(file, there):
    sequences = recording(file)["sequences"]
    return next(n for n, s in enumerate(sequences) if any(there(step) for step in s["steps"]))


@pytest.mark.parametrize("file", FILES)
def test_stale_tables_of_the_recording_are_right_here(compat, file):
    def stale(step):
        seen = [o for o in step["changed"].values() if isinstance(o, dict)]
        return any(not o["invariants_ok"] for o in seen)

    assert replayed(compat, file, first_where(file, stale)).stale


@pytest.mark.parametrize("file", FILES)
def test_the_warning_of_an_override_names_the_kernel_before_it(compat, file):
    def wrong(step):
        # PyTorch names a kernel that is no more than the first of the operator.
        before = re.search(r"previous kernel: (.*)", step.get("warning", ""))
        dumps = [o["dump"] for o in step["changed"].values() if isinstance(o, dict)]
        if not before or not any("(inactive)" in dump for dump in dumps):
            return False
        return not any(f"(inactive): {before[1]} ::" in dump for dump in dumps)

    assert replayed(compat, file, first_where(file, wrong)).overrides


def test_what_is_recorded_is_all_replayed():
    counted = {file: len(recording(file)["sequences"]) for file in FILES}
    assert counted == {"sequences": 140, "more_sequences": 120}
    assert len(EVERY_SEQUENCE) == 255


def test_the_names_of_all_keys_are_read(compat):
    # PyTorch does not read AutogradHIP and 41 others, so that nothing can be registered there.
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "read", "")
        for number, name in enumerate(RUNTIME_KEYS[1:]):
            library.impl_t_t(f"op{number}", name)
            assert compat._dispatch_has_kernel_for_dispatch_key(f"read::op{number}", name)


def test_every_kind_of_operation_is_recorded():
    operations = {
        step["do"]["op"]
        for file in FILES
        for sequence in recording(file)["sequences"]
        for step in sequence["steps"]
    }
    assert len(operations) == 11


def test_the_facts_of_an_error_are_its_names_keys_and_places():
    text = (
        "Tried to register multiple backend fallbacks for the same dispatch key XLA; previous"
        " registration registered at a b:1.py:3, new registration registered at /x/y.cpp:70"
    )
    assert facts_of(text) == ["a b:1.py:3", "/x/y.cpp:70", "XLA"]
    text = (
        'impl("f", ...): Explicitly provided dispatch key (CPU) is inconsistent with the dispatch'
        " key of the enclosing TORCH_LIBRARY_IMPL block (Autograd).  Please (Error occurred while"
        " processing TORCH_LIBRARY_IMPL block at /dev/null:0)"
    )
    assert sorted(facts_of(text)) == ["/dev/null:0", "Autograd", "CPU", "f"]
    assert facts_of("Type mismatch in argument 1: int vs Tensor.") == ["1", "int", "Tensor"]
