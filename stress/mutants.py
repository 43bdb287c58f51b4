"""Which mistakes the tests notice: small ones are put in, one at a time, and tests run until one
fails.

    python stress/mutants.py --count 15 --seed 7 --survivors 2
    python stress/mutants.py --count 40 --only mdispatch/schema,native/bind   # or python, or c
    python stress/mutants.py --count 400 --tried stress/mutants_tried.jsonl --map /tmp/lines.db
    python stress/mutants.py --score stress/mutants_tried.jsonl

A comparison is turned or shifted by one, a condition is negated, `and` becomes `or`, a number is
one more, a statement (a call, an assignment to an attribute, a raise) is left out, a result is not
returned. The seed gives each mutant of native/core, native/bind and six packages its
place in a queue, and the first ones are tried. The place depends on the changed line alone, not
on what stands elsewhere. So with --tried, which keeps what came out, several runs add up to one
sample, also when the code goes on changing between them.

Each mutant is made in a copy of the checkout. Asked are the tests that pass through its line (with
--map, which coverage makes when the file is not there yet), then the files of the package's tests
that have most of its words, then all of the package's, and with --whole all others. A mutant with
which the tests do not end has been noticed. What is printed: each mutant and what noticed it, then
the part that was noticed, with its interval of 95 % (Wilson's).

stress/equivalents.txt names mutants that cannot be told from the original, each with the reason.
They are not tried. A mutant is known by its lines, before and after, so it may move. One in C does
not count either if it does not compile, or if the compiler makes the same of it as of the original
(in a file that this Python's build leaves out, say).

The tests that noticed a mutant run again without it, and have to pass. The exit status is 1 when
they do not, or when more mutants survived than --survivors allows. --tried has a line for each
attempt, so its first line about a mutant says what the tests were worth when it was drawn, and the
last one what they are worth now. --again tries those once more that nothing has noticed yet.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[1]
EQUIVALENTS = Path(__file__).with_name("equivalents.txt")
HOME = Path("mdispatch/facts/native")
SONAME = "libmdispatch.so.1"
#: By the beginning of a file's path: tests, the nearest first. A word before them names a binding,
#: or make, for the C tests.
NEAREST = {
    "mdispatch/facts/": ("tests/facts", "tests/registry", "tests/cli", "cffi tests/facts"),
    "mdispatch/dispatch/": (
        "tests/dispatch",
        "tests/authoring",
        "tests/c_kernels",
        "tests/project",
    ),
    "mdispatch/registry/": ("tests/registry", "tests/authoring", "tests/c_kernels"),
    "mdispatch/schema/": ("tests/schema", "tests/authoring", "tests/registry"),
    "mdispatch/providers/": ("tests/providers", "tests/registry", "tests/cluster"),
    "mdispatch/across/": ("tests/across", "tests/c_kernels", "--all tests/across"),
    "mdispatch/choices/": ("tests/choices", "tests/cluster", "tests/cli"),
    "mdispatch/cluster/": ("tests/cluster", "--all tests/cluster"),
    "mdispatch/torch/": ("tests/pytorch", "tests/dispatch"),
    "native/bind/call/": ("tests/dispatch", "tests/providers", "tests/torch_compat"),
    "native/bind/ext/": (
        "tests/across",
        "tests/c_kernels",
        "tests/dispatch",
        "ext tests/facts",
        "ext tests/registry",
    ),
    "native/core/": ("make test", "tests/facts"),
}
#: Only tests with PyTorch notice what is wrong there, and most machines are without it.
WITH_PYTORCH = ("mdispatch/torch/exported.py", "mdispatch/torch/watching.py")
#: What a mutant is known by: its file, the lines before and after, and which one of those it is.
Key: TypeAlias = tuple[str, str, str, int]
#: What noticed each mutant, "" for nothing, attempt by attempt.
Attempts: TypeAlias = dict[Key, list[str]]
#: What came of a mutant in C that does not compile, or of which the compiler makes the same as of
#: the original. Neither counts.
NO_CODE_OF_ITS_OWN = "no mutant: the compiler refuses it, or makes the same of it"
#: Seconds; whoever has not ended by then hangs, and has been noticed.
LIMIT = 900 * float(os.environ.get("MDISPATCH_TEST_PATIENCE") or 1)
#: So many of the tests that pass through a line are asked by name.
NAMED = 40
#: So many files of tests are asked first, for their words.
LIKELY = 3


class Mutant(NamedTuple):
    path: str
    line: int
    start: int
    end: int
    new: str
    #: The lines that it changes, as they were and as they are, without their white space.
    before: str
    after: str
    #: Which one of those in the file that look the same, from 1.
    number: int

    @property
    def key(self) -> Key:
        return self.path, self.before, self.after, self.number

    @property
    def place(self) -> str:
        return next(each for each in NEAREST if self.path.startswith(each))

    def applied(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]

    def __str__(self) -> str:
        number = f" ({self.number})" if self.number > 1 else ""
        return f"{self.path}{number}, line {self.line}\n    - {self.before}\n    + {self.after}"


class Change(NamedTuple):
    start: int
    end: int
    new: str


def mutants_of(path: str) -> Iterator[Mutant]:
    text = (ROOT / path).read_text()
    seen: Counter[tuple[str, str]] = Counter()
    for change in sorted(set((in_python if path.endswith(".py") else in_c)(text))):
        first = text.rfind("\n", 0, change.start) + 1
        last = (text.find("\n", change.end) + len(text) + 1) % (len(text) + 1)
        before = " ".join(text[first:last].split())
        changed = text[first : change.start] + change.new + text[change.end : last]
        after = " ".join(changed.split())
        seen[before, after] += 1
        line = text.count("\n", 0, change.start) + 1
        yield Mutant(path, line, *change, before, after, seen[before, after])


# --- in Python ------------------------------------------------------------------------------------

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def changed(node: ast.AST) -> str | None:
    """The text of the node with a mistake in it."""
    match node:
        case ast.Compare(left, [operator], right):
            return f"({ast.unparse(ast.Compare(left, [TURNED[type(operator)]()], right))})"
        case ast.BoolOp(operator, values):
            other = ast.And() if isinstance(operator, ast.Or) else ast.Or()
            return f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            return f"bool({ast.unparse(operand)})"
        case ast.Constant(value) if type(value) is int:
            return str(value + 1)
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            return "return None"
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete():
            return "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            return "pass"
    return None


def negated(node: ast.AST) -> ast.expr | None:
    """A condition for which nothing else is put in."""
    test = getattr(node, "test", None) if isinstance(node, (ast.If, ast.IfExp, ast.While)) else None
    return None if isinstance(test, (ast.Compare, ast.UnaryOp, ast.Constant)) else test


def in_python(text: str) -> Iterator[Change]:
    assert text.isascii(), "columns are counted in bytes"
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def change(node: ast.stmt | ast.expr, new: str) -> Change:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        return Change(start, starts[node.end_lineno - 1] + node.end_col_offset, new)

    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.JoinedStr):  # Python 3.11 does not know where its parts stand
            continue
        for name, below in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                several = below if isinstance(below, list) else [below]
                nodes += [each for each in several if isinstance(each, ast.AST)]
        test = negated(node)
        if test is not None:
            yield change(test, f"(not ({ast.unparse(test)}))")
        new = changed(node)
        if new is not None:
            assert isinstance(node, (ast.stmt, ast.expr))
            yield change(node, new)


# --- in C -----------------------------------------------------------------------------------------

IN_C = [
    (re.compile(r"(?<=\w |\) |\] )(<=|>=|==|!=|<|>|&&|\|\|)(?= )"), None),
    (re.compile(r"(?<=[+-] )1\b(?!\.)"), "2"),
    (re.compile(r"(?<=\bif \()(?!UNLIKELY|LIKELY)([^()]*(?:\([^()]*\)[^()]*)*)(?=\) )"), "!({})"),
    (re.compile(r"(?<=\n) +[a-z]\w*\([^;{}]*\);(?=\n)"), ";"),
    (re.compile(r"(?<=\n) +[a-z][\w.>\[\]-]*(?: [|+-]?= |\+\+)[^;{}]*;(?=\n)"), ";"),
]
TURNED_IN_C = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||"}
TURNED_IN_C["||"] = "&&"
NO_CODE = re.compile(
    r'/\*.*?\*/|^#(?:[^\n]*\\\n)*[^\n]*|"(?:[^"\\]|\\.)*"', re.DOTALL | re.MULTILINE
)


def in_c(text: str) -> Iterator[Change]:
    code = NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for pattern, new in IN_C:
        for found in pattern.finditer(code):
            made = TURNED_IN_C[found[0]] if new is None else new.format(found[0])
            yield Change(*found.span(), made)


# --- which ----------------------------------------------------------------------------------------


def candidates(only: str) -> list[Mutant]:
    """Those of all files, of Python, of C, or of the files whose paths begin with one of these."""
    found = []
    for place in NEAREST:
        suffix = ".py" if place.startswith("mdispatch/") else ".c"
        if only in ("", "python" if suffix == ".py" else "c") or "/" in only:
            files = (path.relative_to(ROOT) for path in (ROOT / place).rglob("*" + suffix))
            below = tuple(only.split(",")) if "/" in only else ("",)
            found += [
                mutant
                for each in map(str, files)
                if each.startswith(below) and each not in WITH_PYTORCH
                for mutant in mutants_of(each)
            ]
    return found


def in_the_order_of(seed: int, mutants: Iterable[Mutant]) -> list[Mutant]:
    def turn(mutant: Mutant) -> bytes:
        return hashlib.sha256(repr((seed, *mutant.key)).encode()).digest()

    return sorted(mutants, key=turn)


def equivalents() -> dict[Key, str]:
    """Why each cannot be told from the original."""
    text = "".join(each for each in EQUIVALENTS.open() if not each.startswith("#"))
    block = re.compile(r"^(\S+)(?: \((\d+)\))?\n- (.*)\n\+ (.*)\n  (.+)\n?$")
    found = {}
    for each in re.split(r"\n\n+", text.strip("\n")) if text.strip() else []:
        said = block.match(each)
        if said is None:
            raise SystemExit(f"{EQUIVALENTS}: not five lines of one mutant:\n{each}")
        path, number, before, after, why = said.groups()
        found[path, before, after, int(number or 1)] = why
    return found


# --- the tests that pass through a line -----------------------------------------------------------


def make_map(file: Path, folder: Path) -> None:
    """Runs the tests of the package under coverage, each file by itself: a test that sets a trace
    function of its own ends coverage's for those after it.
    """
    configuration = folder / "coverage.ini"
    configuration.write_text(
        "[run]\nsource = mdispatch\ndynamic_context = test_function\nparallel = true\n"
        f"data_file = {folder / 'lines'}\n"
    )
    run = [sys.executable, "-m", "coverage"]
    # coverage asks for each file of code that runs, and this test has code from a file with a NUL.
    odd = "not code_from_a_file_with_an_odd_name"
    nearest = {each.split()[-1] for row in NEAREST.values() for each in row} - {"test"}
    for tests in sorted(nearest):
        for each in sorted((ROOT / tests).glob("test_*.py")):
            subprocess.run(
                [*run, "run", f"--rcfile={configuration}", "-m", "pytest", "-q", "-k", odd, each],
                cwd=ROOT,
                stdout=sys.stderr,
                check=False,  # a test that measures itself may fail under coverage
            )
    subprocess.run([*run, "combine", "-q", f"--data-file={file.resolve()}", folder], check=True)


class Lines:
    """Which tests pass through which lines of this checkout."""

    def __init__(self, file: Path) -> None:
        import coverage

        self.data = coverage.CoverageData(str(file))
        self.data.read()
        self.files = {each.stem: each for each in (ROOT / "tests").rglob("test_*.py")}
        #: By a test's name: how many lines it passes through. The one with fewest is asked first.
        self.size: Counter[str] = Counter()
        for path in self.data.measured_files():
            for tests in self.data.contexts_by_lineno(path).values():
                self.size.update(tests)

    def through(self, mutant: Mutant) -> list[str]:
        by_line = self.data.contexts_by_lineno(str(ROOT / mutant.path))
        tests = set(by_line.get(mutant.line, ())) - {""}
        named = sorted(tests, key=lambda test: (self.size[test], test))
        found = []
        for each in named:
            file, _, name = each.partition(".")
            if file in self.files and name.startswith("test_"):
                found.append(f"{self.files[file].relative_to(ROOT)}::{name}")
        return found[:NAMED]


def likely(mutant: Mutant) -> list[str]:
    """The files of the package's tests that have most of the words around a mutant's line, and the
    rarest ones: what they say most of the time is about it.
    """
    packages = [
        f"{ROOT}/{each.split()[-1]}" for each in NEAREST[mutant.place] if "make" not in each
    ]
    files = sorted({file for package in packages for file in Path(package).rglob("test_*.py")})
    lines = (ROOT / mutant.path).read_text().splitlines()
    around = [Path(mutant.path).stem, *lines[max(0, mutant.line - 12) : mutant.line + 3]]
    words = set(re.findall(r"[a-z]{4,}", " ".join(around).lower()))
    said = {file: words & set(re.findall(r"[a-z]{4,}", file.read_text().lower())) for file in files}
    common = Counter(word for each in said.values() for word in each)
    weight = {file: sum(1 / common[word] for word in said[file]) for file in files}
    best = sorted(files, key=lambda file: -weight[file])[:LIKELY]
    return [str(file.relative_to(ROOT)) for file in best]


# --- running --------------------------------------------------------------------------------------


class Notice(NamedTuple):
    by: str
    #: What to ask to see it once more.
    again: list[str]


class Checkout:
    """A copy of the checkout, and the objects of its C files as they are without a mistake."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT, self.root, ignore=ignored)
        self.objects = folder / "objects"
        self.said = folder / "said"

    def built(self, mutant: Mutant) -> str:
        """As setup.py builds it, the changed file alone. Returns "" when there is a binary."""
        flags = ["-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-pthread"]
        flags += ["-w", f"-I{sysconfig.get_path('include')}"]
        sources = sorted((self.root / mutant.place).rglob("*.c"))
        linked = []
        for source in sources:
            place = self.objects / source.relative_to(self.root).with_suffix(".o")
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                subprocess.run(
                    ["cc", *flags, "-c", "-o", place, ROOT / source.relative_to(self.root)],
                    check=True,
                )
            if source == self.root / mutant.path:
                changed = self.objects / "mutant.o"
                done = subprocess.run(
                    ["cc", *flags, "-c", "-o", changed, source], stderr=subprocess.DEVNULL
                )
                if done.returncode:
                    return NO_CODE_OF_ITS_OWN
                if changed.read_bytes() == place.read_bytes():
                    return NO_CODE_OF_ITS_OWN
                place = changed
            linked.append(place)
        home = self.root / HOME
        name, more = SONAME, [f"-Wl,-soname,{SONAME}", "-ldl", "-lc"]
        if mutant.place != "native/core/":
            name = f"_{Path(mutant.place).name}{sysconfig.get_config_var('EXT_SUFFIX')}"
            more = [f"-L{home}", f"-l:{SONAME}", "-Wl,-rpath,$ORIGIN"]
        beside = home / f".{name}"
        subprocess.run(["cc", "-shared", "-pthread", "-o", beside, *linked, *more], check=True)
        beside.replace(home / name)
        return ""

    def notices(self, mutant: Mutant, questions: Iterable[list[str]]) -> Notice:
        text = (ROOT / mutant.path).read_text()
        (self.root / mutant.path).write_text(mutant.applied(text))
        try:
            built = self.built(mutant) if mutant.path.endswith(".c") else ""
            if built:
                return Notice(built, [])
            return next(filter(None, map(self.failing, questions)), Notice("", []))
        finally:
            (self.root / mutant.path).write_text(text)
            for each in (ROOT / HOME).glob("*.so*"):
                shutil.copy2(each, self.root / HOME)

    def failing(self, question: list[str]) -> Notice | None:
        """What fails first of some tests, None when nothing does."""
        binding = question[:1] if question[0] in ("ext", "cffi") else []
        tests = question[len(binding) :]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("MDISPATCH_REGISTRY", None)
        environment.update([("MDISPATCH_BINDING", each) for each in binding])
        by_make = tests[0] == "make"
        if by_make:
            command = ["make", "-j2", "-C", "native", "STRESS=--seconds 2", *tests[1:]]
        else:
            command = [str(Path(sys.executable).with_name("pytest")), "-qx", "--tb=line"]
            command += ["-p", "no:cacheprovider", *tests]
        with self.said.open("wb") as said:
            running = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = running.wait(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                return Notice(f"{tests[0]}, which does not end", question)
            finally:
                end_all_of(running)
        if code in (0, 5):  # 5: none of them is a test of this tier
            return None
        text = self.said.read_text(errors="replace")
        if by_make:
            target = re.search(r"^make.*: \*\*\* \[\S+: (\S+)\] ", text, re.MULTILINE)
            again = ["make", target[1]] if target else question
            check = re.search(r"\w+\.c:\d+: .*", text)
            return Notice(check[0] if check else " ".join(again), again)
        named = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", text, re.MULTILINE)
        if named:
            return Notice(named[1], [*binding, named[1]])
        return Notice(f"{tests[0]}, exit {code}", question)


def end_all_of(running: subprocess.Popen[bytes]) -> None:
    """Ends what the tests left, in their session or process group."""
    try:
        os.killpg(running.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        running.wait()


# --- what came out --------------------------------------------------------------------------------


def wilson(noticed: int, tried: int) -> tuple[float, float]:
    """The interval of 95 % for a part."""
    z, part = 1.96, noticed / tried
    middle = part + z * z / (2 * tried)
    wide = z * (part * (1 - part) / tried + z * z / (4 * tried * tried)) ** 0.5
    return (middle - wide) / (1 + z * z / tried), (middle + wide) / (1 + z * z / tried)


def score(attempts: Attempts) -> str:
    """A line for each location that was tried, and one for all: as they were drawn, and now."""
    counts: dict[str, list[int]] = {}
    for (path, *_), noticed in attempts.items():
        if noticed[-1] == NO_CODE_OF_ITS_OWN:
            continue
        for place in (next(each for each in NEAREST if path.startswith(each)), "all"):
            count = counts.setdefault(place, [0, 0, 0])
            count[0] += bool(noticed[0])
            count[1] += bool(noticed[-1])
            count[2] += 1
    lines = []
    for place in [each for each in (*NEAREST, "all") if each in counts]:
        drawn, now, tried = counts[place]
        low, high = wilson(drawn, tried)
        said = f"{drawn} of {tried} noticed, {drawn / tried:.1%} ({low:.1%} to {high:.1%})"
        lines.append(f"{place}: {said}" + (f"; {now} of them by now" if now != drawn else ""))
    return "\n".join(lines)


def read(file: Path | None) -> Attempts:
    """What noticed each mutant that a file has, attempt by attempt, but for equivalents."""
    attempts: Attempts = {}
    if file is not None and file.exists():
        for each in map(json.loads, file.read_text().splitlines()):
            key = (each["path"], each["before"], each["after"], each["number"])
            attempts.setdefault(key, []).append(each["by"])
    known = equivalents()
    return {key: noticed for key, noticed in attempts.items() if key not in known}


def queue_of(asked: argparse.Namespace, before: Attempts) -> list[Mutant]:
    known = equivalents()
    queue = in_the_order_of(asked.seed, candidates(asked.only))
    if not asked.only:
        gone = known.keys() - {each.key for each in queue}
        for path, line, *_ in sorted(gone):
            print(f"{EQUIVALENTS.name}: {path} has no such line any more: {line}")
    wanted = (each for each in queue if each.key not in known)
    if asked.again:
        return [each for each in wanted if before.get(each.key, ["-"])[-1] == ""]
    return [each for each in wanted if each.key not in before]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=15, help="how many mutants this run tries")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default="", help="python, c, or beginnings of paths, with commas")
    parser.add_argument("--tried", type=Path, help="a file: what it has is not tried again")
    parser.add_argument("--again", action="store_true", help="the survivors in that file are")
    parser.add_argument("--map", type=Path, help="which tests pass through which line")
    parser.add_argument("--seconds", type=float, default=1e9, help="after these none is begun")
    parser.add_argument("--survivors", type=int, default=10**9, help="so many are forgiven")
    parser.add_argument("--whole", action="store_true", help="ask all tests about a survivor")
    parser.add_argument("--score", type=Path, help="only says what a file has come to")
    asked = parser.parse_args()
    if asked.score:
        print(score(read(asked.score)))
        return 0
    # A shell lets what it runs in the background ignore SIGINT, and tests of Ctrl-C would hang.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = read(asked.tried)
    queue = queue_of(asked, before)
    end = monotonic() + asked.seconds
    attempts: Attempts = {}
    print(f"{min(asked.count, len(queue))} of {len(queue)} mutants, seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # a test becomes another user, who imports the package from there
        if asked.map and not asked.map.exists():
            make_map(asked.map, folder)
        lines = Lines(asked.map) if asked.map else None
        checkout = Checkout(folder)
        sound: list[list[str]] = []
        for mutant in queue[: asked.count]:
            if monotonic() > end:
                break
            through = lines.through(mutant) if lines else []
            questions = [through] if through else []
            questions += (
                [[each] for each in likely(mutant)] if mutant.place != "native/core/" else []
            )
            questions += [each.split() for each in NEAREST[mutant.place]]
            questions += [["tests"]] * asked.whole
            by, again = checkout.notices(mutant, questions)
            if again and again not in sound:
                if checkout.failing(again):
                    print(f"{' '.join(again)} fails without a mistake: nothing can be said")
                    return 1
                sound.append(again)
            attempts[mutant.key] = [by]
            print(f"{'noticed by ' + by if by else 'SURVIVES'}: {mutant}", flush=True)
            if asked.tried:
                path, was, becomes, number = mutant.key
                told = {"path": path, "before": was, "after": becomes, "number": number, "by": by}
                with asked.tried.open("a") as file:
                    file.write(json.dumps(told) + "\n")
    print(score(attempts))
    tried = [by for (by,) in attempts.values() if by != NO_CODE_OF_ITS_OWN]
    survivors = tried.count("")
    failed = max(0, survivors - asked.survivors)
    print(f"{len(tried) - survivors} passed, {failed} failed, {survivors - failed} skipped")
    return int(not tried or failed > 0)


if __name__ == "__main__":
    sys.exit(main())
