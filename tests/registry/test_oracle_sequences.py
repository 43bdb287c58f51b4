"""Random sequences of registering and closing, replayed against recordings of PyTorch 2.13.

Each of the two recordings, tests/oracle/sequences.json.gz and more_sequences.json.gz, is replayed
step by step through mdispatch.torch_compat, in a registry of its own that begins with the backend
fallbacks PyTorch has at start. After each step everything that the recording observes is compared.

Where mdispatch decides otherwise, on purpose:

- The cached table. PyTorch refreshes some entries of it too late, and then its invariants are
  broken; the recording says so in ``invariants_ok``. Here there is one table, and the invariants
  always hold: test_stale_tables_of_the_recording_are_right_here.
- The warning about a kernel that replaces another one. Both give it once, mdispatch once for each
  registry. PyTorch names the operator's first typed kernel as the previous one, mdispatch the
  kernel that was active at the key: test_the_warning_of_an_override_names_the_kernel_before_it. -
  Names of keys. mdispatch reads all of them: test_the_names_of_all_keys_are_read. - Words. Of an
  error the class and the registrations are compared (names, keys, locations, types), not the words:
  see facts_of in tests/support/recordings.py.

These sequences have nothing that PyTorch allows and mdispatch does not: see
test_oracle_programs.py.
"""

from __future__ import annotations

import re

import pytest
from recordings import (
    FALLBACKS,
    KEYS,
    RUNTIME_KEYS,
    Player,
    assert_same_error,
    facts_of,
    fresh,
    has_fallback,
    recording,
    table_of,
)

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

# --- sequences ------------------------------------------------------------------------------------

FILES = ("sequences", "more_sequences")


def kernels_in(dump):
    """The kernels' debug texts in a dump, by the word for their key, the active one first."""
    kernels = {}
    for line in dump.splitlines():
        key, _, rest = line.partition(": ")
        if " :: " in rest:
            kernels.setdefault(key.removesuffix(" (inactive)"), []).append(rest.split(" :: ")[0])
    return kernels


class Replay:
    """Replays one sequence, step by step."""

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
        """mdispatch's table, which is also PyTorch's where that is not stale."""
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
        """Compares the dumps, too: they tell what was there before."""
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
        # A kernel registered without a key is a kernel at CompositeImplicitAutograd.
        assert key in text or (key == "(catch all)" and "CompositeImplicitAutograd" in text)
        assert len(overridden) <= 1
        for name, _, previous, new in overridden:  # there is none if the operator is not observed
            assert all(fact in text for fact in (name, previous, new))
            self.overrides.append((previous, new))


@pytest.fixture
def compat():
    from mdispatch import torch_compat

    return torch_compat


def fails_at_a_key(sequence):
    """Whether PyTorch does not read this name although it is the name of a key."""
    texts = [
        step.get("error", "").partition("could not parse dispatch key: ")
        for step in sequence["steps"]
    ]
    return any(name in KEYS for _, _, name in texts)


#: One in eighteen every day, all of them in the long form.
EVERY_SEQUENCE = [
    pytest.param(
        file,
        number,
        id=f"{file}-{sequence['id']}",
        marks=[pytest.mark.long] if number % 18 else [],
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


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.parametrize(("file", "number"), EVERY_SEQUENCE)
def test_a_sequence_has_the_recorded_effects(compat, file, number):
    replayed(compat, file, number)


def first_where(file, there):
    sequences = recording(file)["sequences"]
    return next(n for n, s in enumerate(sequences) if any(there(step) for step in s["steps"]))


@pytest.mark.dear
@pytest.mark.parametrize("file", FILES)
def test_stale_tables_of_the_recording_are_right_here(compat, file):
    def stale(step):
        seen = [o for o in step["changed"].values() if isinstance(o, dict)]
        return any(not o["invariants_ok"] for o in seen)

    assert replayed(compat, file, first_where(file, stale)).stale


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.parametrize("file", FILES)
def test_the_warning_of_an_override_names_the_kernel_before_it(compat, file):
    def wrong(step):
        # PyTorch names a kernel that is just the operator's first one.
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
    # PyTorch does not read AutogradHIP and 41 other names, so nothing can be registered at them.
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
