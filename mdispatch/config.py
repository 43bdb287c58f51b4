"""Paths of mdispatch, and compiler flags for programs in C.

    cc -o host host.c $(python -m mdispatch.config --cflags --libs --embed)
    cc -shared -fPIC -o libshop.so shop.c $(python -m mdispatch.config --cflags)

Header, library and a file for pkg-config are in the package, installed and editable. The examples
are installed beside it:

    cp -r "$(python -m mdispatch.config --examples)" .
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cdef", "cflags", "examples_dir", "include_dir", "library_dir", "libs", "main"]
__all__ += ["pkgconfig_dir"]

_PACKAGE = Path(__file__).resolve().parent
_SONAME = "libmdispatch.so.1"


def _existing(folder: Path, file: str = "") -> str:
    if not (folder / file).exists():
        raise FileNotFoundError(
            f"{folder / file} is not there: mdispatch has a part in C on Linux with the GNU C "
            f"library only, and this is {sys.platform} (docs/other-systems.md)"
        )
    return str(folder)


def include_dir() -> str:
    """The folder with mdispatch.h and mdispatch_kernels.h.

    This and the functions below raise FileNotFoundError where mdispatch has no part in C
    (docs/other-systems.md).
    """
    return _existing(_PACKAGE / "include")


def library_dir() -> str:
    """The folder with libmdispatch."""
    return _existing(_PACKAGE / "facts" / "native", _SONAME)


def pkgconfig_dir() -> str:
    """The folder with mdispatch.pc, for PKG_CONFIG_PATH."""
    return _existing(_PACKAGE / "facts" / "native" / "pkgconfig")


def examples_dir() -> str:
    """The folder with the examples: where they were installed, or that of the checkout.

    Raises FileNotFoundError if they are in neither place.
    """
    from importlib.metadata import files

    if (_PACKAGE.parent / "native" / "mdispatch.h").exists():
        return str(_PACKAGE.parent / "examples")
    for file in files("mdispatch") or ():
        if file.parts[-3:] == ("mdispatch", "examples", "README.md"):
            return str(Path(file.locate()).resolve().parent)
    raise FileNotFoundError("the examples were not installed with this package")


def cflags(*, embed: bool = False) -> list[str]:
    """The compiler flags that find the headers, with ``embed`` those of this Python, too."""
    found = [f"-I{include_dir()}"]
    if embed:
        paths = sysconfig.get_paths()
        found += dict.fromkeys(f"-I{paths[name]}" for name in ("include", "platinclude"))
    return found


def libs(*, embed: bool = False) -> list[str]:
    """The linker flags for libmdispatch, with ``embed`` for this Python, too.

    A kernel library needs none of them. Raises FileNotFoundError if this Python has no library to
    embed.
    """
    found = [f"-L{library_dir()}", f"-l:{_SONAME}", f"-Wl,-rpath,{library_dir()}"]
    if embed:
        found += _python_libs()
    return found


def _python_libs() -> list[str]:
    variable = sysconfig.get_config_var
    for folder in (variable("LIBDIR"), variable("LIBPL")):
        for name in (variable("INSTSONAME"), variable("LDLIBRARY"), variable("LIBRARY")):
            if folder and name and Path(folder, name).exists():
                found = [f"-L{folder}", f"-l:{name}"]
                if ".so" in name:
                    found.append(f"-Wl,-rpath,{folder}")
                else:
                    found += ["-Wl,--export-dynamic", *(variable("MODLIBS") or "").split()]
                more = (variable(each) or "" for each in ("LIBS", "SYSLIBS"))
                return [*found, *" ".join(more).split()]
    raise FileNotFoundError(
        f"Python {sys.version.split()[0]} was built without a library that programs could embed "
        f"({variable('LDLIBRARY')} is not in {variable('LIBDIR')}): build it with --enable-shared"
    )


def cdef() -> str:
    """The text with which ffi.cdef() declares kernels in C."""
    blocks = []
    for name, begin, end in (
        ("mdispatch.h", "/* contract begins */", "/* contract ends */"),
        ("mdispatch_kernels.h", "/* kernels begin */", "/* kernels end */"),
    ):
        text = Path(include_dir(), name).read_text()
        blocks.append(text.partition(begin)[2].partition(end)[0])
    return "\n".join(blocks)


_OPTIONS = {
    "--cflags": "what a compiler needs",
    "--libs": "what a linker needs, for hosts: kernel libraries need no library",
    "--embed": "with --cflags or --libs: for this Python, too",
    "--includedir": "the folder with the headers",
    "--libdir": "the folder with libmdispatch",
    "--pkgconfigdir": "the folder with mdispatch.pc, for PKG_CONFIG_PATH",
    "--examples": "the folder with the examples",
    "--cdef": "the declarations for cffi",
    "--version": "the version of this package",
    "--schema": "followed by TEXT: that schema in canonical form, as hosts in C register it",
}


def _usage() -> str:
    lines = ["usage: python -m mdispatch.config OPTION...", ""]
    lines += [f"  {name:15} {text}" for name, text in _OPTIONS.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """The command line of this module: prints the answers to the options in one line.

    Returns 0, 1 if something does not exist, 2 for wrong use.
    """
    if list(arguments) in (["--help"], ["-h"]):
        print(_usage())
        return 0
    asked = list(arguments)
    if len(asked) == 2 and asked[0] == "--schema":
        from .errors import MdispatchError
        from .schema import parse_schema

        try:
            print(parse_schema(asked[1]))
        except MdispatchError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if not asked or any(each not in _OPTIONS or each == "--schema" for each in asked):
        print(_usage(), file=sys.stderr)
        return 2
    embed = "--embed" in asked
    out: list[str] = []
    try:
        for each in asked:
            if each == "--cflags":
                out += cflags(embed=embed)
            elif each == "--libs":
                out += libs(embed=embed)
            elif each == "--cdef":
                out.append(cdef())
            elif each == "--version":
                from . import __version__

                out.append(__version__)
            elif each != "--embed":
                found = {"--includedir": include_dir, "--libdir": library_dir}
                found["--examples"] = examples_dir
                out.append(found.get(each, pkgconfig_dir)())
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    print(*out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
