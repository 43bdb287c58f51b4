"""Interpreters are created, warmed up, used and destroyed, thousands of times: members,
descriptors, threads and mappings are as at the start, and the cycle takes no more memory than the
same cycle without mdispatch.

Each side runs in a fresh process. Memory is the slope of a line through many samples, after the
first third: two points would show where the allocator happens to stand. "heap" is what the C
library's allocator has handed out, and with PYTHONMALLOC=malloc, which the test sets, that is every
object; "anonymous" and "pss" are pages.

The cycle without mdispatch imports what mdispatch imports of the standard library. CPython 3.12
and 3.13 lose memory with each interpreter, 0.3 MB or more, and the strings of all code that it
imported: there the other cycle runs the same code over a registry in plain Python, without the
native one.
"""

from __future__ import annotations

import sys
import sysconfig

import pytest
from kinds import INTERPRETERS, run_main

ALLOWED = 4096  # bytes a cycle
LEAKY = (3, 12) <= sys.version_info < (3, 14)

# Imported by warm_up; of the plain one the registry is the cycle's own.
MODULE = """
import mdispatch as md
md.register_type(bytearray, "CPU")
registry = {registry}
lib = md.Library("cycled", "DEF", registry=registry)
lib.define("size(Tensor x) -> int")
lib.impl("size", len, "CPU")
lib.define("twice(Tensor x) -> int")
lib.impl("twice", lambda x: 2 * registry.ops.cycled.size(x), "CPU")
"""
DEFAULT = "md.default_registry()"
PLAIN = "__import__('builtins').plain"

CYCLE = """
import sys
sys.path[:] = {path!r}
import mdispatch as md
class Listener:
    heard = []
    def on_operator_registered(self, fact): self.heard.append(fact.name)
    def on_operator_deregistered(self, fact): pass
registry = {registry}
handle = registry.add_listener(Listener())
md.warm_up("{module}", timeout=None, registry=registry)
assert md.wait_for_def("cycled::twice", None, registry=registry).name == "cycled::twice"
assert registry.ops.cycled.twice(bytearray(3)) == 6
assert sorted(Listener.heard) == ["cycled::size", "cycled::twice"], Listener.heard
try:
    md.wait_for_def("cycled::nowhere", 0, registry=registry)
except md.MdispatchError:
    pass
handle.close()
import {module}
{module}.lib.close()
"""

# The modules that mdispatch imports from the standard library; the cycle finds them itself.
NAMES = """
with open({file!r}, "w") as file:
    file.write(" ".join(name for name in sys.modules
                        if name.partition(".")[0] not in ("mdispatch", "cycled", "__main__")))
"""

CYCLES = r"""
import ctypes, importlib, statistics
kind, cycles, samples, folder, side = args
sys.path.insert(0, folder)
libc = ctypes.CDLL(None)

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
                .split()]

libc.mallinfo2.restype = Mallinfo2

def memory():
    info = libc.mallinfo2()
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kib = {line.split()[0].rstrip(":"): int(line.split()[1]) for line in rollup[1:]}
    return {"heap": info.uordblks + info.hblkhd, "anonymous": 1024 * kib["Anonymous"],
            "pss": 1024 * kib["Pss"]}

def counts():
    maps = [line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines()]
    members = registry.dispatcher.facts.stat()[10]
    return {"members": members, "fds": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            # Files by their names; the allocator maps and unmaps what has none.
            "maps": sorted(name[0] for name in maps if name and not name[0].startswith("["))}

def cycle(code):
    interpreter = md.create_interpreter(own_gil=kind == "own-gil")
    interpreter.exec(code)
    interpreter.close()

def slope(points):
    # The median over a quarter of the points: that a table of CPython's grows, in one cycle, is no
    # leak.
    apart = max(1, len(points) // 4)
    pairs = list(zip(points, points[apart:]))
    return {key: statistics.median((b[1][key] - a[1][key]) / (b[0] - a[0]) for a, b in pairs)
            for key in points[0][1]}

md.warm_up("cycled")
registry = md.default_registry()
listing = os.path.join(folder, "modules")
used = CYCLE.format(path=sys.path, registry=DEFAULT, module="cycled")
cycle(used + NAMES.format(file=listing))
if side == "used":
    code = used
elif side == "plain":
    code = "from mdispatch.facts.local import LocalRegistry\nimport builtins\n"
    code += "builtins.plain = md.Registry(LocalRegistry())\n"
    code = CYCLE.format(path=sys.path, registry=PLAIN, module="cycled_plain").replace(
        "import mdispatch as md\n", "import mdispatch as md\n" + code)
    code += "registry.close()\n"
else:
    code = f"import sys\nsys.path[:] = {sys.path!r}\nimport importlib\n"
    code += f"for name in {Path(listing).read_text().split()!r}: importlib.import_module(name)\n"
for _ in range(3):
    cycle(code)
before, points = counts(), []
every = max(1, cycles // samples)
for i in range(cycles):
    cycle(code)
    if (i + 1) % every == 0:
        points.append((i + 1, memory()))
after = counts()
done(before=before, after=after, slope=slope(points[len(points) // 3 :]), cycles=cycles,
     heaps=[b[1]["heap"] - a[1]["heap"] for a, b in zip(points, points[1:])],
     check=registry.dispatcher.facts.check(), first=points[0][1], last=points[-1][1])
"""

FORMS = [
    pytest.param("", 14, id="14 cycles"),
    *(
        pytest.param(
            binding,
            5000,
            id=f"5000 cycles, {binding or 'binding chosen'}",
            marks=[pytest.mark.long, pytest.mark.timeout(10800)],
        )
        for binding in ("", "ext", "cffi")
    ),
]


#: Its objects are in no heap that could be counted exactly.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def measure(kind: str, cycles: int, folder: str, side: str) -> dict:
    names = ("CYCLE", "NAMES", "DEFAULT", "PLAIN")
    text = "".join(f"{name} = {globals()[name]!r}\n" for name in names) + CYCLES
    return run_main(text, kind, cycles, 500, folder, side, timeout=55 if cycles < 100 else 5300)


def shown(what: dict) -> str:
    return ", ".join(f"{key} {value:.0f}" for key, value in what.items())


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.parametrize(("binding", "cycles"), FORMS)
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_a_cycle_leaves_what_it_leaves_without_mdispatch(
    kind, binding, cycles, tmp_path, monkeypatch
) -> None:
    if binding == "cffi" and kind == "own-gil":
        pytest.skip("cffi modules do not load in interpreters with a GIL of their own")
    (tmp_path / "cycled.py").write_text(MODULE.format(registry=DEFAULT))
    (tmp_path / "cycled_plain.py").write_text(MODULE.format(registry=PLAIN))
    if not FREE_THREADED:
        monkeypatch.setenv("PYTHONMALLOC", "malloc")
    # Compiling everything anew in each cycle would be most of it.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    if binding:
        monkeypatch.setenv("MDISPATCH_BINDING", binding)
    used = measure(kind, cycles, str(tmp_path), "used")
    without = measure(kind, cycles, str(tmp_path), "plain" if LEAKY else "without")
    print(
        f"\n{kind}, {binding or 'binding chosen'}, {cycles} cycles, bytes a cycle\n"
        f"with mdispatch: {shown(used['slope'])}, each {used['heaps'][:30]}\n"
        f"{'over plain Python' if LEAKY else 'without'}: {shown(without['slope'])}"
    )
    assert used["after"] == used["before"]
    assert used["check"] == ""
    if not FREE_THREADED:
        assert used["slope"]["heap"] - without["slope"]["heap"] < ALLOWED
    if cycles > 1000:
        assert used["slope"]["anonymous"] - without["slope"]["anonymous"] < ALLOWED
