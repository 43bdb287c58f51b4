"""Golden errors of workers: registrations that differ from those of the main interpreter, and calls
of kernels that the worker has not loaded.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from golden_stage import Stage, case, elsewhere
from patience import limit

from mdispatch.facts.opening import ENVIRONMENT

SHOP = """
import mdispatch as md

in_main = md.is_main_interpreter()
lib = md.Library("shop", "FRAGMENT")
lib.define("scale(Tensor x, float factor=2.0) -> Tensor" if in_main else
           "scale(Tensor x, int factor=2) -> Tensor")
lib.define("colour(Tensor x) -> Tensor" if in_main else "color(Tensor x) -> Tensor")
lib.define("size(Tensor x) -> int")
lib.impl("size", len, "CPU" if in_main else "CUDA")
lib.impl("size", max, "Meta")
lib.define("weigh(Tensor x) -> float")
lib.register_python_module("weigh", "shop_fakes", "It comes with the package shop.")
if in_main:
    lib.define("only_main(Tensor x) -> Tensor")
"""

# Only the main interpreter imports it.
GAMES = """
import mdispatch as md

lib = md.Library("games", "DEF")
lib.define("roll(Tensor dice) -> Tensor")
lib.register_fake("roll", lambda dice: dice)
lib.set_python_module("games_fakes", "It comes with the package games.")
lib.define("deal(Tensor cards) -> Tensor")

@md.register_class("games.Die", methods={"turn": "(int by) -> ()", "sides": "() -> int"})
class Die:
    def turn(self, by): ...
    def sides(self): ...

md.register_type(bytes, "CPU")
"""

# The main interpreter defines it anew once the worker has verified it.
PARTS = """
import mdispatch as md

lib = md.Library("parts", "DEF", timeout=0)
lib.define("div(int x, int by) -> float")

def div(x, by):
    return x / by

lib.impl("div", div)
"""

WORKER = """
import sys, pickle
import mdispatch as md
import parts_ops

class Array:
    __dispatch_keys__ = "CPU"

class Die:
    def turn(self, by, up): ...
    def sides(self): ...

other = md.register_class(
    "games.Die", methods={"turn": "(int by, bool up) -> ()", "sides": "() -> int"}, timeout=0
)
lib = md.Library("shop", "FRAGMENT", timeout=0)
wild = md.Library("_", "IMPL", timeout=0)
named = md.Library("shop", "FRAGMENT", timeout=0)
named.set_python_module("shop_fakes")

CASES = {
    "kernel not here": lambda: md.ops.shop.size(Array()),
    "warm_up": lambda: md.warm_up("shop_ops", timeout=0),  # before others that it would tell, too
    "schema": lambda: lib.define("scale(Tensor x, int factor=2) -> Tensor"),
    "returns": lambda: lib.define("scale(Tensor x, float factor=2.0) -> (Tensor, Tensor)"),
    "attributes": lambda: lib.define("scale(Tensor x, float factor=2.0) -> Tensor", tags="core"),
    "name": lambda: lib.define("scael(Tensor x) -> Tensor"),
    "name unlike any": lambda: lib.define("entirely_different(Tensor x) -> Tensor"),
    "name of a kernel": lambda: lib.impl("scael", len, "CPU"),
    "name waited for": lambda: md.wait_for_def("shop::scael", 0),
    "name held": lambda: lib.register_name("held"),
    "key": lambda: lib.impl("size", len, "CUDA"),
    "key, without kernels": lambda: lib.impl("scale", len, "CPU"),
    "types": lambda: lib.impl("size", len, "CPU", types=Array),
    "provider": lambda: lib.impl("size", len, "CPU", provider="fast"),
    "priority": lambda: md.set_priority("shop::size", ["fast"], timeout=0),
    "key waited for": lambda: md.wait_for_impl("shop::size", "CUDA", 0),
    "library": lambda: md.Library("toys", "DEF", timeout=0),
    "library of others' fragments": lambda: md.Library("shop", "DEF", timeout=0),
    "namespace": lambda: md.Library("toys", "FRAGMENT", timeout=0).define("f() -> ()"),
    "namespace waited for": lambda: md.wait_for_def("toys::f", 0),
    "fake not here": lambda: md.ops.games.roll(md.MetaTensor((6,))),
    "fake nowhere": lambda: md.ops.games.deal(md.MetaTensor((52,))),
    "fallback": lambda: wild.fallback(len, "CPU"),
    "fallback, another key": lambda: wild.fallback(len, "Conjugate"),
    "signature": lambda: lib.impl("size", len, "CPU", signature="(Tensor x, int n) -> int"),
    "module": lambda: lib.register_python_module("weigh", "shop_meta"),
    "context": lambda: lib.register_python_module("weigh", "shop_fakes", "See the manual."),
    "module of a definition": lambda: named.define("scale(Tensor x, float factor=2.0) -> Tensor"),
    "key, once more": lambda: lib.impl("size", max, "Meta"),
    "fallback for fakes": lambda: md.ops.games.deal(md.MetaTensor((52,))),
    "class": lambda: other(Die),
    "type": lambda: md.register_type(bytes, ["CUDA", "AutogradCUDA"]),
    "outdated": lambda: md.ops.parts.div(x=8, by=2),
}

found = {}
for name, provoke in CASES.items():
    if name == "fallback, another key":
        # From now on the main interpreter has a fallback, and another definition of parts::div.
        print("go on", flush=True)
        sys.stdin.readline()
    try:
        provoke()
    except md.errors.MdispatchError as error:
        found[name] = error
for error in found["warm_up"].differences:
    if type(error) is md.errors.MissingInWorkerError:
        found[f"missing {error.kind}"] = error
pickle.dump(found, open(sys.argv[1], "wb"))
"""

MAIN = """
import subprocess, sys
import mdispatch as md
import games_ops, parts_ops, shop_ops

with subprocess.Popen(
    [sys.executable, "-W", "error", "worker.py", sys.argv[1]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
) as worker:
    worker.stdout.readline()
    md.Library("_", "IMPL").fallback(len, "Meta")
    parts_ops.lib.close()
    parts = md.Library("parts", "DEF")
    parts.impl(parts.define("div(int by, int x) -> float"), lambda by, x: x / by)
    print("there it is", file=worker.stdin, flush=True)
sys.exit(worker.returncode)
"""


def found_in_worker(folder: Path) -> dict[str, Exception]:
    """The error that each of the worker's CASES raises."""
    texts = {"shop_ops": SHOP, "games_ops": GAMES, "parts_ops": PARTS}
    texts |= {"main": MAIN, "worker": WORKER}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-W", "error", "main.py", "found"],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        timeout=limit(100),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Exception] = pickle.loads((folder / "found").read_bytes())
    return found


def from_worker(title: str, name: str) -> None:
    def provoke(stage: Stage) -> None:
        raise stage.worker[name]

    case(title)(provoke)


from_worker("SchemaMismatchError: another argument", "schema")
from_worker("SchemaMismatchError: another return", "returns")
from_worker("SchemaMismatchError: other tags", "attributes")
from_worker("ClassMismatchError: a class with other methods", "class")
from_worker("NameMismatchError: a typo in a definition", "name")
from_worker(
    "NameMismatchError: a definition like none of the main interpreter's", "name unlike any"
)
from_worker("NameMismatchError: a kernel for an operator misspelled", "name of a kernel")
from_worker("NameMismatchError: a wait for a definition", "name waited for")
from_worker("NameMismatchError: a name that is held here only", "name held")
from_worker(
    "MainNeverArrivedError: a DEF library where others have a FRAGMENT",
    "library of others' fragments",
)
from_worker("KeyMismatchError: a fallback at another key", "fallback, another key")
from_worker("KeyMismatchError: a kernel at another key", "key")
from_worker("KeyMismatchError: a kernel for an operator without any", "key, without kernels")
from_worker("KeyMismatchError: one kernel more at a key", "key, once more")
from_worker("KeyMismatchError: a wait for a kernel", "key waited for")
from_worker("TypesMismatchError: a kernel for other types", "types")
from_worker("ProviderMissingError: a provider that the main interpreter lacks", "provider")
from_worker("PriorityMismatchError: a priority that only a worker sets", "priority")
from_worker("MainNeverArrivedError: a DEF library", "library")
from_worker("MainNeverArrivedError: a definition", "namespace")
from_worker("MainNeverArrivedError: a wait for a definition", "namespace waited for")
from_worker("MainNeverArrivedError: a fallback", "fallback")
from_worker("SignatureMismatchError: a kernel of a worker", "signature")
from_worker("LocalKernelMissingError: a call of what was not imported here", "kernel not here")
from_worker("KernelOutdatedError: a kernel that was verified for another definition", "outdated")
from_worker("WarmUpError: everything that differs", "warm_up")
from_worker("MissingInWorkerError: a definition", "missing def")
from_worker("MissingInWorkerError: a kernel", "missing impl")
from_worker("PystubMismatchError: another module", "module")
from_worker("PystubMismatchError: another context", "context")
from_worker("PystubMismatchError: a definition that names none there", "module of a definition")
from_worker("TypeKeysMismatchError: another member has it for another key", "type")
from_worker("FakeKernelMissingError: a fake kernel that was not imported here", "fake not here")
from_worker("FakeKernelMissingError: a module that another process has named", "fake nowhere")
from_worker("FakeKernelMissingError: a fallback that was not imported here", "fallback for fakes")

# Its main interpreter imports mdispatch, and opens no registry.
ONLY_SUB = """
import pickle
import mdispatch as md

# What an interpreter calls the text that it runs, differs from version to version.
interpreter = md.create_interpreter()
interpreter.exec("exec(compile(" + repr({code!r}) + ", 'app.py', 'exec'))")
interpreter.close()
raise pickle.load(open("found", "rb"))
"""
IN_SUB = """
import pickle, sys
import mdispatch as md

sys.modules.setdefault({host!r}, sys)
try:
    md.Library("shop", "DEF", timeout=0)
except md.errors.MdispatchError as error:
    pickle.dump(error, open("found", "wb"))
"""


@case("MainNeverArrivedError: no main interpreter")
def _(stage: Stage) -> None:
    elsewhere(stage, ONLY_SUB.format(code=IN_SUB.format(host="sys")))


@case("MainNeverArrivedError: no main interpreter, under mod_wsgi")
def _(stage: Stage) -> None:
    elsewhere(stage, ONLY_SUB.format(code=IN_SUB.format(host="mod_wsgi")))
