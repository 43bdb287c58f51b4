"""A client of the installed package: it is run outside the checkout, and checked by mypy --strict.

    python client.py [FOLDER]

It ends with an error unless the package comes from FOLDER (by default this Python's own) and its
library from beside its modules; a worker process and, where one can be made, a sub-interpreter
verify what it registers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mdispatch as md
from mdispatch.facts.native import _call, which
from mdispatch.pool import InterpreterPool

OPERATORS = """
import mdispatch as md

lib = md.Library("client", "DEF")
lib.define("joined(Tensor x, str by='-', *, int times=1) -> str")
lib.impl("joined", lambda x, by, times: by.join(map(str, x)) * times, "CPU")
md.register_type(bytes, "CPU")
"""
WORKER = """
import client_operators, mdispatch as md
assert md.register_or_verify() == "verify"
assert md.ops.client.joined(bytes([1, 2]), "+") == "1+2"
"""


def kinds(call: md.ObservedCall) -> tuple[str, md.DispatchKey, md.DispatchKeySet]:
    return call.operator, call.key, call.key_set


def run(folder: Path) -> None:
    package = Path(md.__file__).resolve().parent
    assert package.is_relative_to(folder.resolve()), f"{package} is not in {folder}"
    Path("client_operators.py").write_text(OPERATORS)
    sys.path.insert(0, os.getcwd())
    os.environ["PYTHONPATH"] = os.getcwd()
    __import__("client_operators")

    seen: list[tuple[str, md.DispatchKey, md.DispatchKeySet]] = []
    operator: md.OpOverload = md.ops.client.joined.default
    assert isinstance(operator, _call.Operator), type(operator)
    assert operator(b"\x01\x02", times=2) == "1-21-2"
    with md.observe_calls(after=lambda call: seen.append(kinds(call))):
        md.ops.client.joined(b"\x03")
    assert seen == [("client::joined", md.DispatchKey.CPU, md.DispatchKeySet("CPU"))], seen
    definition: md.Registration = md.wait_for_def("client::joined", timeout=2.0)
    assert definition.body.startswith("client::joined(Tensor x"), definition
    modes: tuple[md.context.DispatchMode | md.SafeObject, ...] = md.context.mode_stack()
    assert modes == ()
    assert md.context.excluded_keys() == md.context.DEFAULT_EXCLUDED
    with InterpreterPool(1) as pool:
        assert pool.submit(len, "ab").result(timeout=60) == 2
    refused: md.MdispatchError | None = None
    try:
        md.ops.client.joined(1)
    except md.errors.ArgumentError as error:
        refused = error
    assert isinstance(refused, TypeError), "an int is no Tensor"

    subprocess.run([sys.executable, "-c", WORKER], check=True, timeout=60)
    interpreter = md.create_interpreter()
    try:
        interpreter.exec(f"import sys; sys.path.insert(0, {os.getcwd()!r})")
        interpreter.exec(WORKER)
    finally:
        interpreter.close()

    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if "libmdispatch" in line}
    assert mapped == {str(package / "facts" / "native" / "libmdispatch.so.1")}, mapped
    print(f"mdispatch {md.__version__} serves in {package}, bound by {which}")


if __name__ == "__main__":
    run(Path(sys.argv[1] if len(sys.argv) > 1 else sys.prefix))
