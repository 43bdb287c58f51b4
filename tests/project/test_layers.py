"""native/layers.py finds nothing wrong in the tree, and each kind of mistake in a worse copy of
it. That copy has only the files that the mistakes are about: the whole tree is compiled once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

NATIVE = Path(__file__).resolve().parents[2] / "native"

#: By file: a text to add to it, and what is found then.
WORSE = {
    "core/ground/clock.c": (
        '#include "../store/store.h"\nvoid higher(md__reg *r) { md__unmap(r); }',
        [
            "core/ground/clock.c includes ../store/store.h, which is of a higher layer",
            "core/ground/clock.c uses md__unmap of core/store/hold.c, which is of a higher layer",
        ],
    ),
    "core/state/chain.c": (
        "int take(md__reg *r) { return md__lock(r); }",
        ["core/state/chain.c uses md__lock, which is not its to call"],
    ),
    "core/state/lease.c": (
        "int md__enter(md_registry, md__reg **);\n"
        "void *handed_on(void) { return (void *)md__enter; }",
        [
            "core/state/lease.c uses md__enter, which is not its to call",
            "core/state/lease.c uses md__enter of core/contract/handles.c,"
            " which is of a higher layer",
        ],
    ),
    "bind/call/keys.c": (
        "PyObject *back(void) { return in_python(NULL, NULL, NULL, 0, NULL); }",
        ["a circle: bind/call/call.c -> bind/call/keys.c -> bind/call/call.c"],
    ),
    "bind/ext/frame.c": (
        "int back(struct frame *f) { return boxed_arguments(f, NULL, 0, NULL, NULL); }",
        ["a circle: bind/ext/box.c -> bind/ext/frame.c -> bind/ext/box.c"],
    ),
}


def layers(native: Path) -> tuple[int, set[str]]:
    command = [sys.executable, str(NATIVE / "layers.py"), str(native)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, set(done.stdout.splitlines())


@pytest.mark.thorough
def test_each_file_uses_its_layer_and_lower_ones_and_none_in_a_circle():
    assert layers(NATIVE) == (0, set())


@pytest.mark.thorough
def test_a_use_of_a_higher_floor_a_circle_and_a_lock_that_is_not_its_own_are_found(tmp_path):
    lines = "\n".join(line for _, expected in WORSE.values() for line in expected)
    named = {NATIVE / file for file in re.findall(r"\S+\.c", lines)}
    for path in (*NATIVE.rglob("*.h"), *named):
        copy = tmp_path / path.relative_to(NATIVE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for file, (added, _) in WORSE.items():
        with (tmp_path / file).open("a") as source:
            source.write(f"{added}{os.linesep}")
    code, found = layers(tmp_path)
    assert code == 1
    for _, expected in WORSE.values():
        assert set(expected) <= found
    assert any(line.startswith("a circle: core/") for line in found)
