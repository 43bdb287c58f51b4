"""Runs the statements of each row of tests/data/coming_from_pytorch.toml, and prints what they
raised as a list in JSON: ``python tests/support/table_rows.py FILE SECONDS``.

Each row has a child of its own, whose default registry is fresh, and which SIGALRM ends. A child
takes as long to end as it has objects for the collector to look at: so pytest is not imported here,
and what was there before the children is frozen.
"""

from __future__ import annotations

import copy
import gc
import importlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
import traceback
import types
import warnings
from contextlib import contextmanager

import mdispatch as md
from mdispatch import torch_compat

OURS = ("errors", "keys")
MODULES = [importlib.import_module(f"mdispatch.{name}") for name in OURS]
OTHERS = (copy, gc, os, pickle, subprocess, sys, types, warnings)


class Value:
    __dispatch_keys__ = "CPU"
    dtype = "float32"
    shape = (2,)


@contextmanager
def raises(cls, match=""):
    """As pytest's: the block has to raise such an error, with words that match."""
    try:
        yield
    except cls as error:
        if not re.search(match, str(error)):
            raise AssertionError(f"no {match!r} in the words") from error
    else:
        raise AssertionError(f"nothing raised {cls}")


def at_hand():
    """What the statements may use: modules by their last names, and two operators."""
    lib = md.Library("s", "DEF")
    lib.define("double(int x) -> int")
    lib.impl("double", lambda x: 2 * x, "CompositeExplicitAutograd")
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: x, "CPU")
    return {
        **{each.__name__.rpartition(".")[2]: each for each in (md, *MODULES, *OTHERS)},
        "md": md,
        "torch_compat": torch_compat,
        "raises": raises,
        "Value": Value,
        "registry": lib.registry,
        "lib": lib,
        "op": md.ops.s.double.default,
    }


def main(file, limit):
    with open(file, "rb") as opened:
        rows = [row for rows in tomllib.load(opened).values() for row in rows]
    raised = []
    gc.collect()
    gc.freeze()
    for row in rows:
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if not child:
                signal.alarm(int(limit))
                try:
                    exec(compile(row.get("shown", ""), row["there"], "exec"), at_hand())
                except BaseException:
                    output.write(traceback.format_exc())
                    output.flush()
                sys.stdout = None
                return
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            raised.append(output.read() or (f"exit status {status}" if status else ""))
    print(json.dumps(raised))


main(*sys.argv[1:])
