"""Members that differ under MDISPATCH_ON_DIFFERENCE=warn: they go on with their own registrations,
and say so. All answers are compared with those of a program that has no registry of others.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import members
import pytest
from c_libraries import library
from command_line import mdispatch
from kinds import INTERPRETERS, run_main
from members import Member

import mdispatch as md
from mdispatch import errors
from mdispatch.facts import outside
from mdispatch.observing.registry import OWN, VARIABLE

pytestmark = pytest.mark.shared

SHOP = """
import os
import mdispatch as md
lib = md.Library("shop", "DEF")
def gross(amount, tax):
    return amount * (1 + tax)
lib.define("price(float amount, float tax=0.2) -> float")
lib.impl("price", gross, "CompositeExplicitAutograd")
lib.define("count(int x) -> int")
lib.impl("count", lambda x: x + 1, "CompositeExplicitAutograd")
"""


@pytest.fixture
def name() -> str:
    return f"w{secrets.token_hex(5)}"


@contextmanager
def both(name: str, tmp_path: Path, old: str, new: str) -> Iterator[tuple[Member, Member]]:
    """Two members of a team that have warmed up: the first with ``old``, the second observes."""
    for which, text in (("old", old), ("new", new)):
        (tmp_path / which).mkdir()
        (tmp_path / which / "shop.py").write_text(text)
    address = f"elect:{name}"
    with (
        members.member(address, tmp_path / "old") as first,
        members.member(address, tmp_path / "new", **{VARIABLE: "warn"}) as second,
    ):
        first.run("md.warm_up('shop')")
        yield first, second


def changed(old: str, new: str) -> str:
    assert SHOP.count(old)
    return SHOP.replace(old, new, 1)


@pytest.mark.parametrize(
    ("change", "call", "old", "new"),
    [
        (("tax=0.2", "tax=0.5"), "md.ops.shop.price(10.0)", "12.0", "15.0"),
        (("float tax=0.2)", "float tax=0.2, *, int more=3)"), "md.ops.shop.count(1)", "2", "2"),
        (
            ("count(int x) -> int", "count(int x, int by=4) -> int"),
            "md.ops.shop.count.default.schema",
            "shop::count(int x) -> int",
            "shop::count(int x, int by=4) -> int",
        ),
        (
            ('x + 1, "CompositeExplicitAutograd"', 'x + 2, "CompositeImplicitAutograd"'),
            "md.ops.shop.count(1)",
            "2",
            "3",
        ),
        (("int x) -> int", "float x) -> float"), "md.ops.shop.count(1.5)", None, "2.5"),
    ],
    ids=["default", "keyword of another", "argument", "key", "types"],
)
def test_each_computes_with_its_own(
    name: str, tmp_path: Path, change: tuple[str, str], call: str, old: str | None, new: str
) -> None:
    text = changed(*change)
    if "int by" in change[1]:
        text = text.replace("lambda x: x + 1", "lambda x, by: x + by")
    if "int more" in change[1]:
        text = text.replace("def gross(amount, tax)", "def gross(amount, tax, *, more)")
    with both(name, tmp_path, SHOP, text) as (first, second):
        told = second.run("result = md.warm_up('shop')")
        assert told.count("goes on with its own: ") == told.count("mdispatch.verify: ") == 1
        assert second.run(f"print({call})") == f"{new}\n"
        if old is not None:
            assert first.run(f"print({call})") == f"{old}\n"
        assert second.run("print(len(result.differences))") == "1\n"
        assert second.run("md.default_registry().check_invariants()") == ""
        assert second.run("again = md.warm_up('shop')") == ""
        assert second.run("print(len(again.differences))") == "1\n"


def test_an_operator_more_is_its_own_and_the_next_ones_are_not_waited_for(
    name: str, tmp_path: Path
) -> None:
    more = "\nfor i in range(100):\n    lib.define(f'new{i}(int x) -> int')\n"
    more += "    lib.impl(f'new{i}', lambda x, i=i: x * i, 'CompositeExplicitAutograd')\n"
    with both(name, tmp_path, SHOP, SHOP + more) as (first, second):
        told = second.run(
            """
            import time
            began = time.monotonic()
            result = md.warm_up('shop')
            took = time.monotonic() - began
            """
        )
        assert told.count("goes on with its own: ") == 100
        assert second.run("print(md.ops.shop.new3(5), md.ops.shop.new99(2))") == "15 198\n"
        # One wait of 2 s. With one for each of the 100 it would be 200 s.
        assert float(second.run("print(took)")) < 60
        assert first.run("print(hasattr(md.ops.shop, 'new3'))") == "False\n"
        # The registrar defines another one meanwhile, and the next import waits again for it.
        (tmp_path / "old" / "late.py").write_text(
            "import shop\nshop.lib.define('late(int x) -> int')\n"
        )
        (tmp_path / "new" / "late.py").write_text(
            "import shop\nshop.lib.define('late(int x) -> int')\n"
        )
        first.run("import late")
        assert second.run("import late") == ""
        assert second.run(
            "print(md.default_registry().dispatcher.facts.is_apart('shop::late'))"
        ) == ("False\n")


def test_at_the_import_alone_it_is_the_same(name: str, tmp_path: Path) -> None:
    with both(name, tmp_path, SHOP, changed("tax=0.2", "tax=0.5")) as (_, second):
        assert second.run("import shop").count("goes on with its own") == 1
        assert second.run("print(md.ops.shop.price(10.0), md.ops.shop.count(1))") == "15.0 2\n"


def test_a_kernel_of_the_registrar_that_is_not_here_is_told_at_the_warm_up(
    name: str, tmp_path: Path
) -> None:
    more = "lib.impl('count', lambda x: x + 100, 'CPU')\n"
    with both(name, tmp_path, SHOP + more, SHOP) as (_, second):
        told = second.run("result = md.warm_up('shop')")
        assert told.count("goes on with its own") == 1
        assert "shop::count" in told
        assert second.run("print(md.ops.shop.count(1))") == "2\n"
        assert second.run("result = md.warm_up('shop')") == ""
        assert second.run("print(len(result.differences))") == "1\n"


def test_an_operator_of_the_registrar_that_is_not_here_is_told_and_not_there(
    name: str, tmp_path: Path
) -> None:
    more = "lib.define('gone(int x) -> int')\nlib.impl('gone', lambda x: x, 'CPU')\n"
    with both(name, tmp_path, SHOP + more, SHOP) as (_, second):
        told = second.run("result = md.warm_up('shop')")
        assert told.count("goes on with its own") >= 1
        assert second.run("print(md.ops.shop.count(1))") == "2\n"


def test_handles_that_were_made_before_go_on(name: str, tmp_path: Path) -> None:
    """The operator is defined alike, a handle of it is made, and then a kernel differs."""
    held = "\nheld = md.ops.shop.count.default\npacket = md.ops.shop.count\n"
    new = SHOP + held + "lib.impl('count', lambda x: x + 1000, 'CompositeImplicitAutograd')\n"
    with both(name, tmp_path, SHOP + held, new) as (first, second):
        second.run("md.warm_up('shop'); import shop")
        expression = "print(shop.held(1), shop.packet(1), md.ops.shop.count(1))"
        assert second.run(expression) == "2 2 2\n"
        assert first.run("import shop\n" + expression) == "2 2 2\n"


def test_no_operator_is_half_one_version_and_half_another(name: str, tmp_path: Path) -> None:
    """Its first kernel agrees, its second one differs: both are its own then."""
    old = SHOP + "lib.impl('count', lambda x: 'old', 'CPU')\n"
    new = SHOP.replace("x + 1", "x + 10") + "lib.impl('count', lambda x: x, 'CUDA')\n"
    with both(name, tmp_path, old, new) as (_, second):
        second.run("md.warm_up('shop')")
        keys = """
            there = md.default_registry().dispatcher.facts.registrations("shop::count")[2]
            print(sorted(md.DispatchKey(fact.key).name for fact in there if fact.kind == 3))
        """
        assert second.run(keys) == "['CUDA', 'CompositeExplicitAutograd']\n"
        assert second.run("print(md.ops.shop.count(1))") == "11\n"


def test_a_name_comes_together_again_when_its_registrations_end(name: str, tmp_path: Path) -> None:
    with both(name, tmp_path, SHOP, changed("tax=0.2", "tax=0.5")) as (first, second):
        second.run("import shop")
        apart = "print(list(md.default_registry().dispatcher.facts.apart))"
        assert second.run(apart) == "['shop::price']\n"
        (tmp_path / "new" / "shop.py").write_text(SHOP + "# the same again\n")
        second.run("import importlib; shop.lib.close(); shop = importlib.reload(shop)")
        assert second.run(apart) == "[]\n"
        assert second.run("print(md.ops.shop.price(10.0))") == "12.0\n"
        assert second.run("print(md.warm_up('shop').differences)") == "()\n"
        assert doctor(name)["differing"] == []
        second.run("shop.lib.close()")
        assert second.run("print(hasattr(md.ops.shop, 'price'))") == "True\n"
        first.run("import shop; shop.lib.close()")
        assert second.run("print(hasattr(md.ops.shop, 'price'))") == "False\n"


@pytest.mark.thorough
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_leaves_no_name_half_apart(
    name: str, tmp_path: Path, number: int, after: bool
) -> None:
    """It comes before or after one of the registrations that set the name apart."""
    new = SHOP + "lib.impl('count', lambda x: x, 'CUDA')\n"  # after count was verified
    with both(name, tmp_path, SHOP, new) as (first, second):
        told = second.run(f"""
            import sys
            from mdispatch.observing.registry import Observer
            registers, calls = Observer.register, []
            def interrupted(self, *args):
                calls.append(self.is_apart(args[2]))
                if not {after} and sum(calls) == {number}:
                    raise KeyboardInterrupt
                made = registers(self, *args)
                if {after} and sum(calls) == {number} and calls[-1]:
                    raise KeyboardInterrupt
                return made
            Observer.register = interrupted
            try: import shop
            except KeyboardInterrupt: print("interrupted")
            Observer.register = registers
            sys.modules.pop("shop", None)
            import shop
            print(md.ops.shop.price(10.0), md.ops.shop.count(1))
            md.default_registry().check_invariants()
        """)
        assert "interrupted" in told.splitlines()
        assert told.splitlines()[-1] == "12.0 2"
        assert first.run("print(md.ops.shop.price(10.0), md.ops.shop.count(1))") == "12.0 2\n"
        second.run("shop.lib.close()")
        own = "print(md.default_registry().dispatcher.facts.own.registrations()[2])"
        assert second.run(own) == "[]\n"


def test_a_fallback_of_its_own_ends_with_its_library(name: str, tmp_path: Path) -> None:
    every = '\nevery = md.Library("_", "IMPL")\n'
    every += 'every.fallback(lambda op, *args: "old", "Conjugate")\n'
    new = SHOP + every + 'every.fallback(lambda op, *args: "new", "Negative")\n'
    with both(name, tmp_path, SHOP + every, new) as (_, second):
        assert second.run("import shop").count("goes on with its own") == 1
        second.run("shop.every.close(); shop.lib.close()")
        own = "print(md.default_registry().dispatcher.facts.own.registrations()[2])"
        assert second.run(own) == "[]\n"


def test_a_name_whose_own_registration_was_refused_is_verified_again(
    name: str, tmp_path: Path
) -> None:
    with both(name, tmp_path, SHOP, SHOP) as (_, second):
        told = second.run("""
            lib = md.Library("shop", "FRAGMENT")
            lib.impl("price", lambda amount, tax: 1.0, "CompositeExplicitAutograd")
            try: lib.define("price(float amount) -> float")
            except errors.SignatureMismatchError as error: print(type(error).__name__)
        """)
        assert told.count("goes on with its own") == 1
        assert told.splitlines()[-1] == "SignatureMismatchError"
        lib = "lib.close(); lib = md.Library('shop', 'FRAGMENT'); "
        assert second.run(lib + "lib.define('price(float amount, float tax=0.2) -> float')") == ""
        assert second.run("print(list(md.default_registry().dispatcher.facts.apart))") == "[]\n"


def test_closing_the_library_ends_what_is_its_own(name: str, tmp_path: Path) -> None:
    new = SHOP + "lib.impl('count', lambda x: x, 'CUDA')\n"  # after count was verified
    with both(name, tmp_path, SHOP, new) as (first, second):
        second.run("import shop")
        second.run("held = md.ops.shop.count.default")
        second.run("shop.lib.close()")
        assert (
            second.run("print(md.default_registry().dispatcher.facts.own.registrations()[2])")
            == "[]\n"
        )
        first.run("import shop; shop.lib.close()")
        told = second.run("""
            try: held(1)
            except errors.OperatorGoneError: print("gone")
        """)
        assert told == "gone\n"


def test_what_differs_is_shown_until_the_member_ends(name: str, tmp_path: Path) -> None:
    with both(name, tmp_path, SHOP, changed("tax=0.2", "tax=0.5")) as (_, second):
        second.run("import shop")
        (differs,) = doctor(name)["differing"]
        assert differs["pid"] == second.process.pid
        assert "the default of 'tax' is 0.5 here" in differs["text"]
        done = mdispatch("doctor", name)
        assert done.returncode == 1
        assert f"pid {second.process.pid}, interpreter 0, differs: shop::price" in " ".join(
            done.stdout.split()
        )
        second.end()
        assert doctor(name)["differing"] == []


def doctor(name: str) -> dict[str, list[dict[str, object]]]:
    done = mdispatch("doctor", name, "--json")
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)["registries"][0]
    return found


def test_kernels_in_c_are_its_own_too(name: str, tmp_path: Path) -> None:
    """The first kernel is verified, and the definition of another operator in C differs."""
    path = library(tmp_path, "boxes")
    first = f"md.ops.load_library({path!r})"
    more = "; lib = md.Library('boxes', 'FRAGMENT'); lib.impl('echo', lambda x: x, 'CUDA')"
    with both(name, tmp_path, SHOP, SHOP) as (old, new):
        assert old.run(f"c = {first}") == ""
        assert new.run(f"c = {first}") == ""
        assert new.run("print(md.ops.boxes.echo(5))") == "5\n"
        assert new.run("held = md.ops.boxes.echo; " + more[2:]).count("goes on with its own") == 1
        assert new.run("print(md.ops.boxes.echo(6), held(7))") == "6 7\n"
        assert new.run("md.default_registry().check_invariants()") == ""
        new.run("lib.close(); c.close()")
        own = "print(md.default_registry().dispatcher.facts.own.registrations()[2])"
        assert new.run(own) == "[]\n"


def test_waits_still_raise(name: str, tmp_path: Path) -> None:
    with both(name, tmp_path, SHOP, SHOP) as (_, second):
        told = second.run("""
            import shop
            try: md.wait_for_def("shop::none", timeout=0)
            except errors.VerificationError as error: print(type(error).__name__)
        """)
        assert told == "NameMismatchError\n"


@pytest.mark.needs("choices")
def test_a_choice_that_is_no_candidate_is_its_own(name: str, tmp_path: Path) -> None:
    choose = "print(md.choose('shop::price', 1, {}, lambda: {}, timeout=5))"
    with both(name, tmp_path, SHOP, SHOP) as (first, second):
        assert first.run(choose.format([16, 32], 16)) == "16\n"
        assert second.run(choose.format([16, 64], 64)) == "16\n"
        told = second.run(choose.format([64, 128], 128))
        assert told.count("goes on with its own") == 1
        assert told.splitlines()[-1] == "128"
        assert second.run(choose.format([64, 128], 64)) == "128\n"  # remembered
        assert len(doctor(name)["differing"]) == 1


def test_fallbacks_may_differ(name: str, tmp_path: Path) -> None:
    old = (
        SHOP
        + """
every = md.Library("_", "IMPL")
every.fallback(lambda op, *args: "old", "Conjugate")
md.set_priority("shop::count", ["a", "b"])
for provider in "ab":
    lib.impl("count", lambda x, p=provider: p, "CPU", provider=provider)
"""
    )
    new = old.replace('"Conjugate"', '"Negative"').replace('["a", "b"]', '["b", "a"]')
    with both(name, tmp_path, old, new) as (_, second):
        told = second.run("result = md.warm_up('shop')")
        assert "did not register a fallback at Negative" in told
        assert second.run("print(md.ops.shop.price(10.0))") == "12.0\n"
        assert second.run("md.default_registry().check_invariants()") == ""


def test_the_child_of_a_fork_goes_on_with_what_is_its_own(name: str, tmp_path: Path) -> None:
    with both(name, tmp_path, SHOP, changed("tax=0.2", "tax=0.5")) as (_, second):
        told = second.run("""
            import os, shop, sys, warnings
            warnings.simplefilter("error")
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                try:
                    print(md.ops.shop.price(10.0), md.ops.shop.count(1))
                    other = md.Library("other", "DEF")
                    other.define("f(int x) -> int")
                    other.impl("f", lambda x: x, "CompositeExplicitAutograd")
                    print(md.ops.other.f(3))
                finally:
                    sys.stdout.flush()
                    os._exit(0)
            os.waitpid(pid, 0)
        """)
        assert told.splitlines()[-2:] == ["15.0 2", "3"]


def test_calls_in_threads_while_a_name_is_set_apart(name: str, tmp_path: Path) -> None:
    new = SHOP + "ready = md.ops.shop.count.default\n"
    with both(name, tmp_path, SHOP, new) as (_, second):
        told = second.run("""
            import threading, shop
            answers, stop = set(), threading.Event()
            def call():
                while not stop.is_set():
                    answers.add(shop.ready(1))
                    answers.add(md.ops.shop.count(1))
            threads = [threading.Thread(target=call) for _ in range(4)]
            for each in threads: each.start()
            shop.lib.impl("count", lambda x: x + 1, "CUDA")
            stop.set()
            for each in threads: each.join()
            print(answers)
        """)
        assert told.splitlines()[-1] == "{2}"


@pytest.mark.parametrize("text", ["Warn", "yes", "raise,warn"])
def test_another_value_is_refused(name: str, tmp_path: Path, text: str) -> None:
    with members.member(f"elect:{name}", tmp_path, **{VARIABLE: text}) as one:
        told = one.run("""
            try: md.default_registry()
            except errors.InvalidArgumentError as error: print(error)
        """)
        assert told.splitlines()[-1] == (
            f"{VARIABLE}={text} in the environment: it is raise, as without it, warn, or roll_call"
        )


@pytest.mark.parametrize("text", ["", "raise"])
def test_without_it_a_difference_is_raised(name: str, tmp_path: Path, text: str) -> None:
    for which, module in (("old", SHOP), ("new", changed("tax=0.2", "tax=0.5"))):
        (tmp_path / which).mkdir()
        (tmp_path / which / "shop.py").write_text(module)
    with (
        members.member(f"elect:{name}", tmp_path / "old") as first,
        members.member(f"elect:{name}", tmp_path / "new", **{VARIABLE: text}) as second,
    ):
        first.run("import shop")
        told = second.run("""
            try: import shop
            except errors.SchemaMismatchError as error: print("refused")
        """)
        assert told == "refused\n" or told.endswith("refused\n")


IN_MAIN = """
    import os, sys
    name, kind, folder, body = args
    sys.path.insert(0, folder)
    os.environ["MDISPATCH_ON_DIFFERENCE"] = "warn"
    os.environ["TAX"] = "0.2"
    import shop
    os.environ["TAX"] = "0.5"
    worker = results(start(kind, body, 1, Path(folder)))[0]
    done(main=md.ops.shop.price(10.0), **worker)
"""

IN_WORKER = """
import sys
import mdispatch as md
import shop
report(worker=md.ops.shop.price(10.0), apart=list(md.default_registry().dispatcher.facts.apart))
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, "spawn", "subprocess"])
def test_workers_of_a_main_interpreter_go_on_too(name: str, tmp_path: Path, kind: str) -> None:
    text = SHOP.replace(
        '"price(float amount, float tax=0.2) -> float"',
        "f\"price(float amount, float tax={os.environ['TAX']}) -> float\"",
    )
    (tmp_path / "shop.py").write_text(text)
    values = run_main(IN_MAIN, name, kind, str(tmp_path), IN_WORKER)
    assert (values["main"], values["worker"], values["apart"]) == (12.0, 15.0, ["shop::price"])


@pytest.mark.thorough
def test_a_job_with_thirty_differences_runs_to_its_end_and_tells_them_all(
    name: str, tmp_path: Path
) -> None:
    """Eight processes of one module: the first registers, six differ in five operators each, one in
    none.
    """
    base = 'import mdispatch as md\nlib = md.Library("job", "DEF")\nfor i in range(40):\n'
    base += '    lib.define(f"f{i}(int x, int by={i + PLUS.get(i, 0)}) -> int")\n'
    base += '    lib.impl(f"f{i}", lambda x, by: x * by, "CompositeExplicitAutograd")\n'
    (tmp_path / "job.py").write_text(
        "import os\nPLUS = {int(i): 1000 for i in os.environ['PLUS'].split()}\n" + base
    )
    address = f"elect:{name}"
    plus = ["", "", *(" ".join(str(5 * n + i) for i in range(5)) for n in range(6))]
    there = [Member(address, tmp_path, PLUS=text, **{VARIABLE: "warn"}) for text in plus]
    try:
        told = [each.run("md.warm_up('job')") for each in there]
        counts = [text.count("goes on with its own: job::f") for text in told]
        assert counts == [0, 0, *[5] * 6]
        total = "print(sum(getattr(md.ops.job, f'f{i}')(1) for i in range(40)))"
        answers = [int(each.run(total)) for each in there]
        assert answers == [780, 780, *[5780] * 6]
        differing = doctor(name)["differing"]
        assert len(differing) == 30
        found = {(each["pid"], re.match(r"job::f\d+", str(each["text"]))[0]) for each in differing}  # type: ignore[index]
        planted = {
            (each.process.pid, f"job::f{i}")
            for each, text in zip(there, plus, strict=True)
            for i in text.split()
        }
        assert found == planted
        logged = {
            (each.process.pid, f"job::f{i}")
            for each, text in zip(there, told, strict=True)
            for i in re.findall(r"own: job::f(\d+) has", text)
        }
        assert logged == planted
    finally:
        for each in there:
            each.end()


@pytest.mark.parametrize("kind", ["format", "boot"])
def test_a_registry_that_it_cannot_join_is_set_aside(name: str, tmp_path: Path, kind: str) -> None:
    """Of another format, as that of another version of mdispatch; of another host or boot. Children
    join the registry that the process makes instead.
    """
    (tmp_path / "shop.py").write_text(SHOP)
    path = Path(outside.folder(), name)
    if kind == "format":
        with md.Registry.create(name, capacity=1 << 20):
            data = bytearray(path.read_bytes())
        data[8:12] = (5).to_bytes(4, "little")  # in the header, behind the magic
        path.write_bytes(data)
        path.chmod(0o600)
        address, cause = f"elect:{name}", "it has format 5"
    else:
        address = f"fd:{os.getpid()}:3:{'0' * 32}:{'1' * 32}:4026531836"
        cause = "is of another host, or from before this one was booted"
    with members.member(address, tmp_path, **{VARIABLE: "warn"}) as one:
        told = one.run("import shop")
        assert told.startswith("mdispatch.registry: not joined, and goes on with a registry of")
        assert cause in told
        assert one.run("print(md.ops.shop.price(10.0))") == "12.0\n"
        child = """
            import os, subprocess, sys
            code = "import shop, mdispatch as md; r = md.default_registry(); print(r.is_worker)"
            done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
            print(done.stdout)
        """
        assert one.run(child).strip() == "True"
    with members.member(address, tmp_path) as other:
        refused = """
            try: md.default_registry()
            except errors.RegistryError as error: print(type(error).__name__)
        """
        expected = {"format": "RegistryFormatError", "boot": "ForeignRegistryError"}[kind]
        assert other.run(refused).splitlines()[-1] == expected
    path.unlink(missing_ok=True)


def test_numbers_of_its_own_are_above_all_shared_ones(name: str) -> None:
    with md.Registry.elect(name) as registry:
        assert registry.dispatcher.facts.stat()[5] < OWN
    with pytest.raises(errors.RegistryNotFoundError):
        md.Registry.attach(name, timeout=0)


def test_a_module_that_is_loaded_again_may_differ_and_agree_again(
    name: str, tmp_path: Path
) -> None:
    with both(name, tmp_path, SHOP, SHOP) as (_, second):
        second.run("import importlib, shop")
        pairs = ("0.5", "15.0"), ("0.7", "17.0"), ("0.2", "12.0"), ("0.5", "15.0")
        for number, (tax, answer) in enumerate(pairs, 1):  # each file has another length
            (tmp_path / "new" / "shop.py").write_text(
                changed("tax=0.2", f"tax={tax}") + "#" * number
            )
            told = second.run("shop = importlib.reload(shop)")
            assert told.count("goes on with its own") == (tax != "0.2")
            assert (
                second.run("print(md.ops.shop.price(10.0), md.ops.shop.count(1))")
                == f"{answer} 2\n"
            )
            expected = [] if tax == "0.2" else ["shop::price"]
            apart = "print(list(md.default_registry().dispatcher.facts.apart))"
            assert second.run(apart) == f"{expected}\n"
            assert second.run("md.default_registry().check_invariants()") == ""
