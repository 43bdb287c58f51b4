"""The native part of the build; everything else is in pyproject.toml.

libmdispatch is one real shared library with a fixed name, so that cffi's module, the extension and
any host program share one copy in a process. It lies beside the modules that are linked to it.
Whatever does not compile ends the build.
"""

import shutil
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("native")
SONAME = "libmdispatch.so.1"
# cffi supports free-threading from 3.14 on; there the extension serves alone.
WITH_CFFI = not (
    sysconfig.get_config_var("Py_GIL_DISABLED") and sysconfig.get_python_version() == "3.13"
)
COMPILE = ["-std=c11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-pthread"]
# -lc is named although it is the default: packaging tools take a library without it for a foreign
# one.
LINK = [f"-Wl,-soname,{SONAME}", "-Wl,--no-undefined", "-Wl,--no-as-needed", "-pthread", "-lc"]


class BuildWithLibrary(build_ext):
    """Makes libmdispatch first, then links every module to it."""

    def build_extensions(self) -> None:
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
        shutil.copy2(made / SONAME, package / SONAME)

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        package = self.get_finalized_command("build_py").get_package_dir("mdispatch._native")
        shutil.copy2(Path(self.build_lib, "mdispatch", "_native", SONAME), Path(package, SONAME))

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), str(Path(self.build_lib, "mdispatch", "_native", SONAME))]


setup(
    cmdclass={"build_ext": BuildWithLibrary},
    cffi_modules=["native/bind/build_cffi.py:ffibuilder"] if WITH_CFFI else [],
    ext_modules=[
        Extension(
            "mdispatch._native._ext",
            [str(NATIVE / "bind" / "ext.c")],
            extra_compile_args=["-std=c11"],
            extra_link_args=[f"-l:{SONAME}", "-Wl,-rpath,$ORIGIN"],
        )
    ],
)
