"""The native part of the build; everything else is in pyproject.toml.

libmdispatch is a shared library with a fixed name, so that cffi's module, the extension and any
host program share one copy in a process. It lies beside the modules that are linked to it. A file
that does not compile ends the build, in words.

Systems that cannot share a registry (mdispatch/facts/native/system.py) get the package without it,
in a wheel for that system: one for any would end up on Linux.

A build in place, an editable installation's too, compiles what changed since the one before: see
made_anew().

With SOURCE_DATE_EPOCH set, two builds of one source give the same bytes anywhere: no archive and no
binary depends on the folder, the user or the minute of its build.
"""

import gzip
import itertools
import json
import os
import platform
import re
import runpy
import shutil
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from setuptools import Distribution, Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import SetupError

NATIVE = Path("native")
README = Path("README.md").read_text(encoding="utf-8")
HEADERS = ("mdispatch.h", "mdispatch_kernels.h")
SONAME = "libmdispatch.so.1"
#: The folder of the package for the library and the modules that are linked to it.
HOME = Path("facts", "native")
#: Why no registry can be shared on the system that this builds for; "" on Linux.
ALONE = runpy.run_path("mdispatch/facts/native/system.py")["problem"]()
# cffi supports free-threading from 3.14 on; there the extension serves alone.
WITH_CFFI = not (
    sysconfig.get_config_var("Py_GIL_DISABLED") and sysconfig.get_python_version() == "3.13"
)
COMPILE = ["-std=c11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-pthread"]
# -lc is the default, and named all the same: packaging tools take a library without it for one of
# another platform.
LINK = [f"-Wl,-soname,{SONAME}", "-Wl,--no-undefined", "-Wl,--no-as-needed"]
LINK += ["-pthread", "-ldl", "-lc"]


# For programs in C. It lies beside the library, so that its paths can be relative.
PKG_CONFIG = """\
prefix=${{pcfiledir}}/../../..
includedir=${{prefix}}/include
libdir=${{prefix}}/facts/native

Name: mdispatch
Description: {description}
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -l:{soname} -Wl,-rpath,${{libdir}}
"""


NOT_BUILT = """\
mdispatch could not be built: {error}

pip had no wheel of mdispatch for this machine and this Python, so its part in C is built from its
source. That needs a C compiler (gcc or clang), the headers of Linux and of this Python, and glibc
2.30 or newer. What the compiler said stands above.
  Debian, Ubuntu: apt install gcc libc6-dev python3-dev
  Fedora:         dnf install gcc python3-devel
"""


def put(source: Path, target: Path) -> None:
    """Replaces a library that processes may have mapped: they keep the old file. Writing into the
    file would change it under their feet.
    """
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copy2(source, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


#: What a compiler finds and writes depends on these, too.
ENVIRONMENT = ("COMPILER_PATH", "CPATH", "C_INCLUDE_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH")
OF_COMPILER = ("compiler_so", "linker_so", "include_dirs", "macros", "library_dirs", "libraries")


def state(path: str) -> list[int]:
    """What tells that a file was written; nothing for one that is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_size]


def made_anew(target: str, note: Path, how: object, make: Callable[[], Iterable[str]]) -> None:
    """Makes a file, unless it is there as the last build made it: in the same way, from files of
    which none has another time or size since, be it newer or older.

    ``make`` returns the files that it read. They and ``how`` are kept in the note. That is empty
    while the file is made, and stays so where a file that was read was written meanwhile: then the
    next build makes the file again.
    """
    how = json.loads(json.dumps(how))  # as it comes back
    try:
        before = json.loads(note.read_text())
        if before["how"] == how and all(state(f) == seen for f, seen in before["files"].items()):
            return
    except (OSError, ValueError):
        pass
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("")
    began = note.stat().st_mtime_ns  # by the clock of the file system, which other clocks precede
    files = {path: state(path) for path in make()}
    if all(seen and seen[0] <= began for seen in files.values()):
        files[target] = state(target)
        note.write_text(json.dumps({"how": how, "files": files}))


def named_in(rule: str) -> list[str]:
    """The files on which a rule of make says that its target depends, as compilers write it."""
    words = re.findall(r"(?:\\.|\S)+", rule.replace("\\\n", " ").partition(":")[2])
    return [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words]


class BuildWithLibrary(build_ext):
    """Makes libmdispatch first, then links every module to it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.inplace or self.editable_mode:  # that of pip is a new folder each time
            self.build_temp = str(Path("build", f"temp.{sysconfig.get_config_var('SOABI')}"))

    def build_extensions(self) -> None:
        try:
            self.build_library_and_modules()
        except Exception as error:  # setuptools has no class for all of them
            raise SetupError(NOT_BUILT.format(error=error)) from error

    def build_library_and_modules(self) -> None:
        # Some Pythons were built to look for libraries in their own folder first, and pass that on
        # to the modules they build. There is one place for libmdispatch: see extension().
        self.compiler.linker_so = [
            word for word in self.compiler.linker_so if not word.startswith("-Wl,-rpath")
        ]
        self.compiler.compiler_so = [
            *self.compiler.compiler_so,
            f"-ffile-prefix-map={Path.cwd()}=.",
        ]
        made = Path(self.build_temp, "libmdispatch").resolve()
        made.mkdir(parents=True, exist_ok=True)
        self.build_what_changed(str(made / SONAME))
        sources = sorted(str(p) for p in (NATIVE / "core").rglob("*.c"))
        objects = self.compiler.compile(sources, output_dir=str(made), extra_postargs=COMPILE)
        self.compiler.link_shared_object(objects, str(made / SONAME), extra_postargs=LINK)
        for extension in self.extensions:
            extension.library_dirs.append(str(made))
        super().build_extensions()
        home = Path(self.get_ext_fullpath("mdispatch.facts.native._ext")).parent
        home.mkdir(parents=True, exist_ok=True)
        put(made / SONAME, home / SONAME)
        self.add_development_files(home.parents[1])

    def build_what_changed(self, library: str) -> None:
        """From here on the compiler's ``compile`` and ``link_shared_object`` do what is to be done
        again. With --force that is everything.
        """
        compiler, again = self.compiler, self.force
        compile_all, link = compiler.compile, compiler.link_shared_object
        self.force = compiler.force = True  # they know no headers; what is asked below does
        programs = [
            found
            for command in (compiler.compiler_so, compiler.linker_so)
            for word in itertools.takewhile(lambda word: not word.startswith("-"), command)
            if (found := shutil.which(word))
        ]
        always = [
            *(sys.version, [os.environ.get(name) for name in ENVIRONMENT]),
            *(getattr(compiler, name) for name in OF_COMPILER),
        ]

        def noted(target: str, note: str, how: object, make: Callable[[], Iterable[str]]) -> None:
            if again:
                Path(note).unlink(missing_ok=True)
            made_anew(target, Path(note), [always, target, how], lambda: [*make(), *programs])

        def compile_changed(sources, output_dir=None, extra_postargs=None, depends=None, **how):  # type: ignore[no-untyped-def]
            objects = compiler.object_filenames(sources, output_dir=output_dir or "")
            for source, target in zip(sources, objects, strict=True):
                rule = Path(f"{target}.d")
                arguments = [*(extra_postargs or ()), "-MD", "-MT", "it", "-MF", str(rule)]

                def make(source=source, rule=rule, arguments=arguments):  # type: ignore[no-untyped-def]
                    compile_all([source], output_dir, extra_postargs=arguments, **how)
                    return named_in(rule.read_text())

                noted(target, f"{target}.json", [source, arguments, how], make)
            return objects

        def link_changed(objects, target, **how):  # type: ignore[no-untyped-def]
            def make() -> list[str]:
                link(objects, target, **how)
                return [*objects] if target == library else [*objects, library]

            note = str(Path(self.build_temp, f"{Path(target).name}.json"))
            noted(target, note, [objects, how], make)

        compiler.compile, compiler.link_shared_object = compile_changed, link_changed

    def add_development_files(self, package: Path) -> None:
        for folder in (package / "include", package / HOME / "pkgconfig"):
            folder.mkdir(parents=True, exist_ok=True)
        for header in HEADERS:
            shutil.copy2(NATIVE / header, package / "include" / header)
        metadata = self.distribution.metadata
        text = PKG_CONFIG.format(
            description=metadata.description, version=metadata.version, soname=SONAME
        )
        (package / HOME / "pkgconfig" / "mdispatch.pc").write_text(text)

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        package = Path(self.get_finalized_command("build_py").get_package_dir("mdispatch"))
        put(Path(self.build_lib, "mdispatch", HOME, SONAME), package / HOME / SONAME)
        self.add_development_files(package)

    def get_outputs(self) -> list[str]:
        package = Path(self.build_lib, "mdispatch")
        added = [package / HOME / SONAME, package / HOME / "pkgconfig" / "mdispatch.pc"]
        added += [package / "include" / header for header in HEADERS]
        return [*super().get_outputs(), *map(str, added)]


class SameBytes(sdist):
    """An archive that does not depend on the machine that made it."""

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


class OfThisSystem(Distribution):
    """Not a distribution for any system, although nothing in it is compiled for this one."""

    def has_ext_modules(self) -> bool:
        return True


class WheelOfThisSystem(bdist_wheel):
    """It serves every version of Python on this system."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, system = super().get_tag()
        if sys.platform == "darwin":  # nothing in it depends on the processor
            system = re.sub("_(arm64|x86_64)$", "_universal2", system)
        elif sys.platform == "linux":  # with another C library than that of the Linux wheels
            system = f"musllinux_1_2_{platform.machine()}"
        return "py3", "none", system


BIND = NATIVE / "bind"


def extension(name: str, sources: list[Path]) -> Extension:
    return Extension(
        f"mdispatch.facts.native.{name}",
        [str(source) for source in sources],
        extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
        extra_link_args=[f"-l:{SONAME}", "-Wl,-rpath,$ORIGIN"],
    )


def long_description() -> str:
    """README.md for an index, which has none of the files that it links to: their names stand in
    location of links, and the picture is left out. Once the sources have an address, put it in
    front.
    """
    text = re.sub(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n+", "", README, flags=re.M)
    text = re.sub(r"^<!--.*-->\n", "", text, flags=re.M)

    def named(found: re.Match[str]) -> str:
        words, target = found.groups()
        return f"`{target}`" if words in target else f"{words} (`{target}`)"

    return re.sub(r"\[([^]]+)\]\((?!https?:|#)([^)]+)\)", named, text)


WITHOUT_C = {
    "distclass": OfThisSystem,
    "cmdclass": {"bdist_wheel": WheelOfThisSystem, "sdist": SameBytes},
}
WITH_C = {
    "cmdclass": {"build_ext": BuildWithLibrary, "sdist": SameBytes},
    "cffi_modules": ["native/bind/build_cffi.py:ffibuilder"] if WITH_CFFI else [],
    "ext_modules": [
        extension("_ext", sorted((BIND / "ext").glob("*.c"))),
        extension("_call", sorted((BIND / "call").glob("*.c"))),
    ],
}

setup(
    packages=find_packages(include=["mdispatch", "mdispatch.*"]),
    long_description=long_description(),
    long_description_content_type="text/markdown",
    **(WITHOUT_C if ALONE else WITH_C),
)
