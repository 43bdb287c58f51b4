"""The native part of the build; everything else is in pyproject.toml.

libmdispatch is one real shared library with a fixed name, so that cffi's module, the extension and
any host program share one copy in a process. It lies beside the modules that are linked to it.
Whatever does not compile ends the build.

With SOURCE_DATE_EPOCH set, two builds of one source give the same bytes, wherever they are made:
nothing in an archive or a binary is of the folder, the user or the minute of its build.
"""

import gzip
import os
import shutil
import sysconfig
import tarfile
import time
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

NATIVE = Path("native")
HEADERS = ("mdispatch.h", "mdispatch_kernels.h")
SONAME = "libmdispatch.so.1"
# cffi supports free-threading from 3.14 on; there the extension serves alone.
WITH_CFFI = not (
    sysconfig.get_config_var("Py_GIL_DISABLED") and sysconfig.get_python_version() == "3.13"
)
COMPILE = ["-std=c11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-pthread"]
# -lc is named although it is the default: packaging tools take a library without it for a foreign
# one.
LINK = [f"-Wl,-soname,{SONAME}", "-Wl,--no-undefined", "-Wl,--no-as-needed"]
LINK += ["-pthread", "-ldl", "-lc"]


# For programs in C; beside the library, so that it needs to know no place.
PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/_native

Name: mdispatch
Description: {description}
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -l:{soname} -Wl,-rpath,${{libdir}}
"""


def put(source: Path, target: Path) -> None:
    """Copies a library to where processes may have the one before it mapped: they keep that one.
    Written over, it would change under their feet.
    """
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copy2(source, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


class BuildWithLibrary(build_ext):
    """Makes libmdispatch first, then links every module to it."""

    def build_extensions(self) -> None:
        # Some Pythons were built to look for libraries in their own folder first, and build what is
        # built with them alike. There is one place for libmdispatch: see extension().
        self.compiler.linker_so = [
            word for word in self.compiler.linker_so if not word.startswith("-Wl,-rpath")
        ]
        self.compiler.compiler_so = [
            *self.compiler.compiler_so,
            f"-ffile-prefix-map={Path.cwd()}=.",
        ]
        made = Path(self.build_temp, "libmdispatch").resolve()
        made.mkdir(parents=True, exist_ok=True)
        sources = sorted(str(p) for p in (NATIVE / "core").glob("*.c"))
        objects = self.compiler.compile(sources, output_dir=str(made), extra_postargs=COMPILE)
        self.compiler.link_shared_object(objects, str(made / SONAME), extra_postargs=LINK)
        for extension in self.extensions:
            extension.library_dirs.append(str(made))
        super().build_extensions()
        package = Path(self.get_ext_fullpath("mdispatch._native._ext")).parent
        package.mkdir(parents=True, exist_ok=True)
        put(made / SONAME, package / SONAME)
        self.add_development_files(package.parent)

    def add_development_files(self, package: Path) -> None:
        for folder in ("include", "_native/pkgconfig"):
            (package / folder).mkdir(parents=True, exist_ok=True)
        for header in HEADERS:
            shutil.copy2(NATIVE / header, package / "include" / header)
        metadata = self.distribution.metadata
        text = PKG_CONFIG.format(
            description=metadata.description, version=metadata.version, soname=SONAME
        )
        (package / "_native" / "pkgconfig" / "mdispatch.pc").write_text(text)

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        package = Path(self.get_finalized_command("build_py").get_package_dir("mdispatch"))
        put(Path(self.build_lib, "mdispatch", "_native", SONAME), package / "_native" / SONAME)
        self.add_development_files(package)

    def get_outputs(self) -> list[str]:
        package = Path(self.build_lib, "mdispatch")
        added = [package / "_native" / SONAME, package / "_native" / "pkgconfig" / "mdispatch.pc"]
        added += [package / "include" / header for header in HEADERS]
        return [*super().get_outputs(), *map(str, added)]


class SameBytes(sdist):
    """An archive in which nothing is of the machine that made it."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, *args, **kwargs):  # type: ignore[no-untyped-def]
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, *args, **kwargs)
        moment = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime = moment
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=moment) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in sorted([Path(base_dir), *Path(base_dir).rglob("*")]):
                tar.add(path, recursive=False, filter=plain)
        return name


BIND = NATIVE / "bind"
#: What calls are made of; the rest is the contract for every interpreter.
CALLS = {BIND / f"{name}.c" for name in ("call", "handles", "plan", "readers", "types")}


def extension(name: str, sources: list[Path]) -> Extension:
    return Extension(
        f"mdispatch._native.{name}",
        [str(source) for source in sources],
        depends=[str(header) for header in (*BIND.glob("*.h"), *NATIVE.glob("*.h"))],
        extra_compile_args=["-std=c11", "-fvisibility=hidden"],
        extra_link_args=[f"-l:{SONAME}", "-Wl,-rpath,$ORIGIN"],
    )


setup(
    cmdclass={"build_ext": BuildWithLibrary, "sdist": SameBytes},
    cffi_modules=["native/bind/build_cffi.py:ffibuilder"] if WITH_CFFI else [],
    ext_modules=[
        extension("_ext", sorted({*BIND.glob("*.c")} - CALLS)),
        extension("_call", sorted(CALLS)),
    ],
)
