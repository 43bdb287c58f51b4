"""Programs in C that embed Python: the example, the page about them, and mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from c_libraries import compile_c

from mdispatch import config
from mdispatch.pool import interpreters as host

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "host"
PAGE = ROOT / "docs" / "embedding.md"

try:
    FLAGS = [*config.cflags(embed=True), *config.libs(embed=True)]
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "MDISPATCH_REGISTRY"}
    folder = os.path.dirname(sys.executable)
    return kept | {"PATH": f"{folder}:{kept.get('PATH', '/usr/bin:/bin')}"} | more


def run(*command, folder, seconds=100.0, **more):
    return subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=folder,
        env=environment(**more),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("host")


# --- the example ----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_example_runs_interpreters_at_once_and_ends_cleanly(folder, long_form):
    text = (EXAMPLE / "host.c").read_text()
    program = compile_c(folder, "example", text, *FLAGS, shared=False)
    count, seconds = (8, 60) if long_form else (2 if host.OWN_GIL else 1, 1)
    ran = run(
        *(program, "--python", sys.executable, "--modules", EXAMPLE),
        *("--interpreters", count, "--seconds", seconds),
        folder=folder,
        seconds=seconds + 100,
    )
    print(ran.stdout)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert len(lines) == (2 if count == 1 else 3)
    for line in lines[:-1]:
        found = re.fullmatch(r"\d+ interpreters?: (\d+) calls/s, (\d+) operators .*", line)
        assert found, line
        assert int(found[1]) > 0
        assert int(found[2]) > 0
    assert re.fullmatch(
        rf"{count} interpreters make [\d.]+ times the calls of one; \d+ changes heard; no errors",
        lines[-1],
    )


def test_the_example_says_what_it_takes(folder):
    program = folder / "example"
    if not program.exists():
        compile_c(folder, "example", (EXAMPLE / "host.c").read_text(), *FLAGS, shared=False)
    for wrong in (["--interpreters", "0"], ["--seconds"], ["--what", "1"]):
        ran = run(program, *wrong, folder=folder)
        assert ran.returncode == 2
        assert ran.stderr.startswith("usage: host")


@pytest.mark.thorough
def test_the_example_with_one_object_counts_every_call_and_destroys_it_once(folder, long_form):
    text = (EXAMPLE / "shared_index.c").read_text()
    program = compile_c(folder, "shared_index", text, *FLAGS, shared=False)
    count, rounds = (16, 100_000) if long_form else (4, 2_000)
    ran = run(program, sys.executable, count, rounds, folder=folder, seconds=500)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == (
        f"{count} interpreters made {2 * count * rounds} calls of one object, which was destroyed "
        "1 times: all counted\n"
    )
    ran = run(program, sys.executable, 0, folder=folder)
    assert (ran.returncode, ran.stderr[:20]) == (2, "usage: shared_index ")


# --- the page -------------------------------------------------------------------------------------


def blocks(page):
    """The fenced blocks of a page: language and text, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.thorough
def test_the_page_compiles_and_runs(tmp_path):
    """Writes every text to the file that its first line names, and runs the commands."""
    commands = []
    for language, text in blocks(PAGE):
        if language == "sh":
            commands.append(text)
            continue
        first, _, rest = text.partition("\n")
        name = re.fullmatch(r"(?:/\* (\w+\.c) \*/|# (\w+\.py))", first)
        assert name, f"no file for {first!r}"
        with open(tmp_path / (name[1] or name[2]), "a") as file:
            file.write(rest)
    assert len(commands) == 3
    strict = 'set -eux\ncc() { command cc -Wall -Wextra -Werror "$@"; }\n'
    for command in commands:
        ran = run("sh", "-c", strict + command, folder=tmp_path, PYTHONWARNINGS="error")
        assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout == "all three called it\n"


def test_the_schema_of_the_page_is_in_canonical_form():
    ran = run(
        sys.executable, "-m", "mdispatch.config", "--schema", "mixer::volume()->int", folder="."
    )
    assert ran.stdout == "mixer::volume() -> int\n"
    assert ran.stdout.strip() in PAGE.read_text()


# --- the wrong order ------------------------------------------------------------------------------

HOST = """
#include <Python.h>
#include <mdispatch_kernels.h>
#include <stdio.h>
#include <stdlib.h>

#define NEED(call) do { int rc_ = (call); if (rc_) { \\
    fprintf(stderr, "%s: %s\\n", #call, md_status_text(rc_)); exit(1); } } while (0)
#define RUN(code) do { if (PyRun_SimpleString(code)) exit(3); } while (0)

static md_registry reg;
static uint64_t host;

static int one(md_call *call, const md_value *args, size_t n, md_value *results, size_t n_results) {
    results[0] = md_of_int(1);
    return 0;
}

static void begin(const char *python) {
    uint32_t role;
    NEED(md_open_default(NULL, &reg));
    NEED(md_join(reg, MD_HOST, &host, &role));
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    PyConfig_SetBytesString(&config, &config.program_name, python);
    if (PyStatus_Exception(Py_InitializeFromConfig(&config))) exit(1);
    PyConfig_Clear(&config);
    RUN("import mdispatch as md\\nregistry = md.default_registry()\\n");
}

static md_library *shop(void) {
    md_library *m;
    char text[512];
    NEED(md_library_open(reg, host, "shop", MD_DEF_LIBRARY, "host", MD_HERE, &m));
    md_def(m, "shop::one() -> int");
    md_impl(m, "one", MD_KEY_CompositeExplicitAutograd, one);
    if (md_library_status(m, text, sizeof text)) { fputs(text, stderr); exit(1); }
    return m;
}

int main(int argc, char **argv) {
    begin(argv[1]);
    BODY
    return 0;
}
"""


def program(folder, name, body):
    text = HOST.replace("BODY", body)
    return compile_c(folder, name, text, "-Wno-unused-function", *FLAGS, shared=False)


def test_python_that_ends_before_its_interpreters_says_so(folder):
    made = program(
        folder,
        "early",
        """
        PyThreadState *main_state = PyThreadState_Get(), *inner = Py_NewInterpreter();
        RUN("import mdispatch\\nmdispatch.default_registry()\\n");
        (void)inner;
        PyThreadState_Swap(main_state);
        Py_FinalizeEx();
        """,
    )
    ran = run(made, sys.executable, folder=folder)
    assert "RuntimeWarning: this program ends Python while its interpreters [1] live" in ran.stderr


def test_a_host_that_leaves_first_takes_along_what_is_its_own(folder):
    made = program(
        folder,
        "leaves",
        """
        md_library *m = shop();
        RUN("assert md.ops.shop.one() == 1\\none = md.ops.shop.one.default\\n"
            "md.Library('mine', 'DEF').define('f() -> int')\\n");
        NEED(md_leave(reg, host));
        RUN("try:\\n    one()\\nexcept md.errors.OperatorGoneError as error:\\n"
            "    assert 'shop::one is not defined' in str(error)\\n"
            "else:\\n    raise SystemExit(4)\\n"
            "md.Library('mine', 'FRAGMENT').define('g() -> int')\\n"
            "assert registry.operators() == ['mine::f', 'mine::g']\\n"
            "registry.check_invariants()\\n");
        if (md_library_close(m) != MD_ECLOSED) return 5;
        if (md_leave(reg, host) != MD_ECLOSED) return 6;
        NEED(md_close(reg));
        RUN("assert registry.operators() == ['mine::f', 'mine::g']\\n");
        if (Py_FinalizeEx()) return 7;
        puts("fine");
        """,
    )
    ran = run(made, sys.executable, folder=folder, PYTHONWARNINGS="error")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "fine\n", "")


def test_host_and_python_define_overloads_of_one_name_and_python_forks_without_a_warning(folder):
    made = program(
        folder,
        "overloads",
        """
        md_library *m = shop();
        RUN("library = md.Library('shop', 'FRAGMENT')\\n"
            "library.define('one.text(str s) -> int')\\n"
            "library.impl('one.text', lambda s: 2, 'CompositeExplicitAutograd')\\n"
            "assert md.ops.shop.one.overloads() == ['default', 'text']\\n"
            "assert (md.ops.shop.one(), md.ops.shop.one('s')) == (1, 2)\\n"
            "import os\\npid = os.fork()\\n"
            "if pid == 0:\\n    os._exit(md.ops.shop.one() != 1)\\n"
            "assert os.waitpid(pid, 0)[1] == 0\\n");
        if (Py_FinalizeEx()) return 5;
        NEED(md_library_close(m));
        NEED(md_leave(reg, host));
        puts("fine");
        """,
    )
    ran = run(made, sys.executable, folder=folder, PYTHONWARNINGS="error")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "fine\n", "")


@pytest.mark.needs("across")
def test_a_class_of_the_host_is_there_once_and_ends_with_its_library(folder):
    made = program(
        folder,
        "classes",
        """
        static const md_method methods[] = {MD_METHOD("size() -> int", one)};
        md_library *m = shop();
        if (md_class(m, "Index", methods, 1)) return 3;
        RUN("class Index:\\n    def size(self): ...\\n"
            "def register():\\n"
            "    md.register_class('shop.Index', methods=dict(size='() -> int'))(Index)\\n"
            "try:\\n    register()\\nexcept md.errors.DuplicateRegistrationError as error:\\n"
            "    assert 'class shop.Index is registered already' in str(error), error\\n"
            "    assert '/classes.c:' in error.first, error.first\\n"
            "else:\\n    raise SystemExit(4)\\n"
            "assert registry.operators() == ['shop::one', 'shop::Index.size']\\n"
            "assert str(md.ops.shop.Index.size.schema) == "
            "'shop::Index.size(shop.Index self) -> int'\\n");
        NEED(md_library_close(m));
        RUN("assert registry.operators() == []\\nregister()\\n"
            "assert registry.operators() == ['shop::Index.size']\\n");
        if (Py_FinalizeEx()) return 5;
        NEED(md_leave(reg, host));
        puts("fine");
        """,
    )
    ran = run(made, sys.executable, folder=folder, PYTHONWARNINGS="error")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "fine\n", "")


@pytest.mark.thorough
def test_python_started_anew_finds_the_host_and_registers_again(folder):
    made = program(
        folder,
        "anew",
        """
        md_library *m = shop();
        for (int life = 0; life < 3; life++) {
            if (life) {
                PyConfig config;
                PyConfig_InitPythonConfig(&config);
                PyConfig_SetBytesString(&config, &config.program_name, argv[1]);
                if (PyStatus_Exception(Py_InitializeFromConfig(&config))) return 4;
                PyConfig_Clear(&config);
                RUN("import mdispatch as md\\nregistry = md.default_registry()\\n");
            }
            RUN("assert registry.is_main\\nassert md.ops.shop.one() == 1\\n"
                "assert registry.operators() == ['shop::one'], registry.operators()\\n"
                "library = md.Library('mine', 'DEF')\\nlibrary.define('f() -> int')\\n"
                "library.impl('f', lambda: 5, 'CompositeExplicitAutograd')\\n"
                "assert md.ops.mine.f() == 5\\n");
            if (Py_FinalizeEx()) return 5;
        }
        NEED(md_library_close(m));
        NEED(md_leave(reg, host));
        NEED(md_close(reg));
        puts("fine");
        """,
    )
    # A second life of 3.14 does not look for the virtual environment again. cffi's module has one
    # life only: the extension serves.
    path = os.pathsep.join(each for each in sys.path if each)
    ran = run(made, sys.executable, folder=folder, MDISPATCH_BINDING="ext", PYTHONPATH=path)
    # In such a life 3.15 warns that it cannot find its standard library, and then finds it.
    said = [line for line in ran.stderr.splitlines() if not line.startswith("WARN: Could not find")]
    assert (ran.returncode, ran.stdout, said) == (0, "fine\n", [])


def test_a_kernel_that_is_closed_during_its_call_ends_first(folder):
    """The data that it was registered with is freed after the call, not during it."""
    made = compile_c(
        folder,
        "during",
        HOST.replace(
            "int main",
            """
struct state { md_library *library; };
static int times;
static void released(void *user) {
    times++;
    free(user);
}
static int end(md_call *call, const md_value *args, size_t n, md_value *results, size_t n_results) {
    struct state *s = call->user;
    if (md_library_close(s->library)) return call->fail(call, MD_ERROR_VALUE, "not closed");
    if (times || s->library == NULL) return call->fail(call, MD_ERROR_VALUE, "freed too early");
    results[0] = md_of_int(42);
    return 0;
}
int main""",
        ).replace(
            "BODY",
            """
    md_library *m;
    struct state *s = calloc(1, sizeof *s);
    NEED(md_library_open(reg, host, "shop", MD_DEF_LIBRARY, "host", MD_HERE, &m));
    s->library = m;
    md_def(m, "shop::end() -> int");
    md_impl_with(m, "end", MD_KEY_CompositeExplicitAutograd, end, s, released, 0);
    NEED(md_library_status(m, NULL, 0));
    RUN("end = md.ops.shop.end.default\\nassert end() == 42\\n"
        "try:\\n    end()\\nexcept md.errors.OperatorGoneError:\\n    pass\\n"
        "else:\\n    raise SystemExit(4)\\n");
    if (Py_FinalizeEx()) return 5;
    NEED(md_leave(reg, host));
    NEED(md_close(reg));
    printf("released %d times\\n", times);
    """,
        ),
        "-Wno-unused-function",
        *FLAGS,
        shared=False,
    )
    ran = run(made, sys.executable, folder=folder)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "released 1 times\n", "")


# --- mdispatch.config -----------------------------------------------------------------------------


def test_what_config_names_is_there():
    for name in ("mdispatch.h", "mdispatch_kernels.h"):
        installed = Path(config.include_dir(), name)
        assert installed.read_bytes() == (ROOT / "native" / name).read_bytes()
    assert Path(config.library_dir(), "libmdispatch.so.1").exists()
    assert Path(config.pkgconfig_dir(), "mdispatch.pc").exists()


def test_pkg_config_says_what_config_says(tmp_path):
    ran = run(
        *("pkg-config", "--cflags", "--libs", "mdispatch"),
        folder=tmp_path,
        PKG_CONFIG_PATH=config.pkgconfig_dir(),
    )
    assert ran.returncode == 0, ran.stderr
    found = [
        re.sub(r"(-I|-L|-Wl,-rpath,)(.*)", lambda m: m[1] + os.path.realpath(m[2]), word)
        for word in ran.stdout.split()
    ]
    assert found == [*config.cflags(), *config.libs()]


@pytest.mark.thorough
def test_config_prints_what_is_asked_for(tmp_path):
    def asked(*arguments):
        return run(sys.executable, "-m", "mdispatch.config", *arguments, folder=tmp_path)

    assert asked("--cflags", "--libs").stdout.split() == [*config.cflags(), *config.libs()]
    assert asked("--libs", "--embed").stdout.split() == config.libs(embed=True)
    assert asked("--includedir", "--libdir", "--pkgconfigdir").stdout.split() == [
        config.include_dir(),
        config.library_dir(),
        config.pkgconfig_dir(),
    ]
    assert asked("--version").stdout.split() == [__import__("mdispatch").__version__]
    assert asked("--cdef").stdout.strip() == config.cdef().strip()
    assert "usage" in asked("--help").stdout
    for wrong in ([], ["--schema"], ["--what"], ["--cflags", "x"]):
        ran = asked(*wrong)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "usage" in ran.stderr
    ran = asked("--schema", "f(Tensr x) -> Tensor")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "Tensr" in ran.stderr
