"""Builds the cffi binding (API mode) from the contract itself: cffi parses the marked block of
mdispatch.h."""

from pathlib import Path

import cffi

HERE = Path(__file__).resolve().parent


def contract() -> str:
    text = (HERE.parent / "mdispatch.h").read_text()
    return text.split("/* contract begins */")[1].split("/* contract ends */")[0]


ffibuilder = cffi.FFI()
ffibuilder.cdef(contract())
ffibuilder.set_source(
    "mdispatch.facts.native._cffi",
    '#include "mdispatch.h"',
    include_dirs=[str(HERE.parent)],
    extra_link_args=["-l:libmdispatch.so.1", "-Wl,-rpath,$ORIGIN"],
    py_limited_api=False,
)
