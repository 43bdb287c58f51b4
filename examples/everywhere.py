"""Runs one function of an operator module in every kind of interpreter at once, and compares.

Used by the examples when they are run as programs. Only text goes between the interpreters,
through pipes: what they share otherwise is the registry.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import perf_counter

import mdispatch as md

HERE = str(Path(__file__).parent)


def _program(module: str, function: str, pipe: int) -> str:
    return (
        "import os, sys\n"
        f"sys.path.insert(0, {HERE!r})\n"
        f"import {module}\n"
        f"os.write({pipe}, {module}.{function}().encode())\n"
    )


def in_interpreter(module: str, function: str) -> str:
    """Calls the function in a new sub-interpreter, which has a GIL of its own from 3.12 on."""
    interpreter = md.create_interpreter()
    read, write = os.pipe()
    try:
        interpreter.exec(_program(module, function, write))
    finally:
        interpreter.close()
        os.close(write)
        with open(read) as pipe:
            answer = pipe.read()
    return answer


def in_process(module: str, function: str) -> str:
    """Calls the function in a new process, which finds the registry through its environment."""
    read, write = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-c", _program(module, function, write)],
            pass_fds=(write,),
            check=True,
            text=True,
            stderr=subprocess.PIPE,
        )
    except subprocess.CalledProcessError as error:
        raise RuntimeError(error.stderr) from None
    finally:
        os.close(write)
        with open(read) as pipe:
            answer = pipe.read()
    return answer


def run_everywhere(module: str, function: str = "job") -> None:
    """Runs ``function`` of ``module``, which is the program itself here: here, then in two
    sub-interpreters and a process at once. Ends with status 1 when the answers are not the same.
    Where nothing is shared, it leaves out the sub-interpreters.
    """
    places: dict[str, Callable[[], str]] = {
        "main interpreter": getattr(sys.modules["__main__"], function),
        "sub-interpreter a": lambda: in_interpreter(module, function),
        "sub-interpreter b": lambda: in_interpreter(module, function),
        "process": lambda: in_process(module, function),
    }
    answers: dict[str, str] = {}

    def note(place: str) -> None:
        began = perf_counter()
        try:
            answers[place] = places[place]()
        except md.errors.NotSharedError as error:
            print(f"{place}: left out. {error}")
            return
        except Exception as error:
            answers[place] = f"{type(error).__name__}: {error}"
        took = (perf_counter() - began) * 1e3
        print(f"{place} ({took:.0f} ms)\n    " + answers[place].strip().replace("\n", "\n    "))

    first, *others = places
    note(first)
    threads = [Thread(target=note, args=(place,)) for place in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same = len(set(answers.values())) == 1
    print("All answers are the same." if same else "The answers differ.")
    sys.exit(not same)
