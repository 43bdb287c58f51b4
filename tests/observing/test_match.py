"""Members of different versions in a registry with ``match="compatible"``. Each answer is compared
with that of a program that has the version for itself.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import members
import pytest
from command_line import mdispatch
from kinds import INTERPRETERS, run_main
from members import Member

import mdispatch as md
from mdispatch import errors

pytestmark = [pytest.mark.shared, pytest.mark.needs("editions")]

SHOP = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("price(float amount, float tax=0.5) -> float")
lib.impl("price", lambda amount, tax: amount * (1 + tax), "CompositeExplicitAutograd")
lib.define("count(int x) -> int")
lib.impl("count", lambda x: x + 1, "CompositeExplicitAutograd")
"""
COMPATIBLE = {"MDISPATCH_MATCH": "compatible"}


def changed(*pairs: tuple[str, str]) -> str:
    text = SHOP
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


MORE = changed(
    ("count(int x)", "count(int x, int by=4)"), ("lambda x: x + 1", "lambda x, by: x + by")
)
ADDED = SHOP + (
    'lib.define("twice(int x) -> int")\n'
    'lib.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")\n'
)
REMOVED = SHOP.partition('lib.define("count')[0]
DEFAULT = changed(("tax=0.5", "tax=0.25"))


@pytest.fixture
def name() -> str:
    return f"m{secrets.token_hex(5)}"


@contextmanager
def team(name: str, tmp_path: Path, *versions: str, **env: str) -> Iterator[list[Member]]:
    """Members with these versions of the module shop. The first one has warmed up."""
    there: list[Member] = []
    try:
        for i, text in enumerate(versions):
            (tmp_path / str(i)).mkdir()
            (tmp_path / str(i) / "shop.py").write_text(text)
            there.append(Member(f"elect:{name}", tmp_path / str(i), **COMPATIBLE, **env))
        there[0].run("md.warm_up('shop')")
        yield there
    finally:
        for each in there:
            if each.process.poll() is None:
                each.end()


WARM_UP = "result = md.warm_up('shop', complete='shop')"


def refused(member: Member, line: str = WARM_UP) -> tuple[str, str]:
    """The class and the text of the error."""
    told = member.run(f"""
        import json
        try:
            {line}
        except errors.WarmUpError as error:
            print("refused", json.dumps([type(error.differences[0]).__name__, str(error)]))
        except errors.MdispatchError as error:
            print("refused", json.dumps([type(error).__name__, str(error)]))
    """)
    line = told.splitlines()[-1]
    assert line.startswith("refused "), told
    kind, text = json.loads(line.removeprefix("refused "))
    return kind, text


@pytest.mark.parametrize(
    ("old", "new", "call", "answers"),
    [
        (SHOP, MORE, "md.ops.shop.count(1)", ("2", "5")),
        (MORE, SHOP, "md.ops.shop.count(1)", ("5", "2")),
        (SHOP, MORE, "md.ops.shop.count.default.schema", ("shop::count(int x) -> int",
            "shop::count(int x, int by=4) -> int")),
        (SHOP, ADDED, "getattr(md.ops.shop, 'twice', len)('abc'*2)", ("6", None)),
        (ADDED, SHOP, "md.ops.shop.count(1)", ("2", "2")),
        (SHOP, REMOVED, "md.ops.shop.price(2.0)", ("3.0", "3.0")),
        (REMOVED, SHOP, "md.ops.shop.price(2.0)", ("3.0", "3.0")),
    ],
    ids=["argument", "argument less", "schema", "added", "added there", "removed", "removed there"],
)  # fmt: skip
def test_each_calls_by_its_own(
    name: str, tmp_path: Path, old: str, new: str, call: str, answers: tuple[str, str | None]
) -> None:
    with team(name, tmp_path, old, new) as (first, second):
        assert second.run(WARM_UP) == ""
        assert second.run("print(result.differences)") == "()\n"
        for member, answer in zip((first, second), answers, strict=True):
            if answer is not None:
                assert member.run(f"print({call})") == f"{answer}\n"
        assert mdispatch("doctor", name).returncode == 0
        assert second.run("md.default_registry().check_invariants()") == ""
        assert first.run("md.warm_up('shop')") == ""


def test_a_member_says_what_another_one_has_of_its_own(name: str, tmp_path: Path) -> None:
    with team(name, tmp_path, SHOP, ADDED) as (first, second):
        second.run(WARM_UP)
        assert second.run("print(md.ops.shop.twice(4))") == "8\n"
        told = first.run("""
            try: md.ops.shop.twice(4)
            except errors.OperatorNotFoundError as error: print(error)
        """)
        where = tmp_path / "1" / "shop.py"
        assert told == (
            f"there is no operator shop::twice; pid {second.process.pid}, interpreter 0 has it of "
            f"its own, from shop\n  there: shop::twice(int x) -> int    ({where}:8)\n"
            "The version of that module here does not define it.\n"
        )
        listed = json.loads(mdispatch("ls", "--registry", name, "--json").stdout)["others"]
        (its,) = (each for each in listed if each["kind"] == "variant")
        assert its["name"] == "shop::twice"
        assert its["text"] == "shop::twice(int x) -> int"
        assert its["location"]["where"] == f"{where}:8"
        second.end()
        assert "Definitions that differ" not in mdispatch("ls", "--registry", name).stdout


def test_an_operator_of_the_registrar_names_its_module(name: str, tmp_path: Path) -> None:
    with team(name, tmp_path, ADDED, SHOP) as (_, second):
        second.run(WARM_UP)
        _, text = refused(second, "md.ops.shop.twice(4)")
        assert "shop" in text
        assert str(tmp_path / "0" / "shop.py") in text


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        (SHOP, DEFAULT, "SchemaMismatchError", "the default of 'tax' is 0.25 here"),
        (SHOP, changed(("int x) -> int", "float x) -> float")), "SchemaMismatchError", "count"),
        (
            SHOP,
            SHOP + 'lib.impl("count", lambda x: 0, "CPU")\n',
            "KeyMismatchError",
            "did not register a kernel for shop::count at CPU",
        ),
        (SHOP + 'lib.impl("count", lambda x: 0, "CPU")\n', SHOP, "MissingInWorkerError", "at CPU"),
    ],
    ids=["default", "types", "kernel that takes calls", "kernel lacking"],
)
def test_what_breaks_is_refused_as_ever(
    name: str, tmp_path: Path, old: str, new: str, error: str, words: str
) -> None:
    with team(name, tmp_path, old, new) as (first, second):
        kind, text = refused(second)
        assert kind == error
        assert words in text
        assert first.run("print(md.ops.shop.count(1))") == "2\n"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_kernel_where_there_was_none(name: str, tmp_path: Path, is_first: bool) -> None:
    plain = SHOP.replace("CompositeExplicitAutograd", "CPU")
    more = plain + 'lib.impl("count", lambda x: x + 100, "CUDA")\n'
    versions = (more, plain) if is_first else (plain, more)
    with team(name, tmp_path, *versions) as there:
        assert there[1].run(WARM_UP) == ""
        with_it = there[not is_first]
        on = "with md.context.ForceDispatchKeyGuard(['CUDA'], []): "
        assert with_it.run(f"{on}print(md.ops.shop.count(1))") == "101\n"


def test_overloads_have_to_be_in_one_order(name: str, tmp_path: Path) -> None:
    """Calls by the name try them in the order of their definitions."""
    two = 'lib.define("count.{} -> int")\nlib.impl("count.{}", lambda x: {}, "CPU")\n'
    after = SHOP + two.format("s(str x)", "s", 7)
    before = SHOP.replace(
        'lib.define("count(', two.format("s(str x)", "s", 7) + 'lib.define("count('
    )
    with team(name, tmp_path, SHOP, after, before) as (_, second, third):
        assert second.run(WARM_UP) == ""
        kind, text = refused(third)
        assert kind == "NotCompatibleError"
        assert "shop::count goes together with that of the registry in neither direction" in text
        assert "calls try" in text


@pytest.mark.thorough
def test_overloads_of_their_own_have_to_be_in_one_order(name: str, tmp_path: Path) -> None:
    """Of two members that the registrar goes together with: each has all overloads of the other."""
    one = 'lib.define("count.s(str s) -> int")\n'
    other = 'lib.define("count.t(str[] t) -> int")\n'
    with team(name, tmp_path, SHOP, SHOP + one + other, SHOP + other + one, SHOP + one) as there:
        _, second, third, fourth = there
        assert second.run(WARM_UP) == ""
        kind, text = refused(third)
        assert kind == "NotCompatibleError"
        assert f"goes together with that of pid {second.process.pid}, interpreter 0 in" in text
        assert "calls try shop::count.t" in text or "calls try shop::count.s" in text
        third.end()
        assert fourth.run(WARM_UP) == ""


def test_where_the_registry_is_full_nothing_is_half_there(name: str, tmp_path: Path) -> None:
    with team(name, tmp_path, SHOP, MORE) as (_, second):
        second.run("""
            facts = md.default_registry().dispatcher.facts
            its = type(facts).__mro__[1]
            def full(self, kind, *rest, register=its.register):
                if kind == 18:
                    raise errors.RegistryFullError("full", "full")
                return register(self, kind, *rest)
            before, its.register = its.register, full
        """)
        kind, _ = refused(second, "import shop")
        assert kind == "RegistryFullError"
        second.run("its.register = before")
        assert second.run("print(facts.own.registrations()[2])") == "[]\n"
        assert second.run(WARM_UP) == ""
        assert second.run("print(md.ops.shop.count(1))") == "5\n"


def test_versions_of_their_own_have_to_go_together(name: str, tmp_path: Path) -> None:
    """Both go together with the registrar's, which has no such argument."""
    other = MORE.replace("by=4", "by=5")
    with team(name, tmp_path, SHOP, MORE, other, MORE) as (_, second, third, fourth):
        assert second.run(WARM_UP) == ""
        kind, text = refused(third)
        assert kind == "SchemaMismatchError"
        assert (
            f"shop::count is defined otherwise in pid {second.process.pid}, interpreter 0: " in text
        )
        assert "the default of 'by' is 4 there, 5 here" in text
        assert third.run(
            "print(hasattr(md.ops.shop, 'count') and md.ops.shop.count.default.schema)"
        ) == ("shop::count(int x) -> int\n")
        assert fourth.run(WARM_UP) == ""
        assert fourth.run("print(md.ops.shop.count(1))") == "5\n"
        second.end()
        fourth.end()
        third.end()


def test_a_later_registrar_has_to_go_together_with_those_who_are_there(
    name: str, tmp_path: Path
) -> None:
    """The first one ends, and with it the only version that had no such operator."""
    other = ADDED.replace("twice(int x)", "twice(float x)")
    with team(name, tmp_path, SHOP, ADDED, other, ADDED) as (first, second, third, fourth):
        assert second.run(WARM_UP) == ""
        first.end()
        assert second.run("print(md.ops.shop.twice(4), md.ops.shop.count(1))") == "8 2\n"
        kind, text = refused(third)
        assert kind == "SchemaMismatchError"
        assert "the type of 'x' is" in text
        third.end()
        assert fourth.run(WARM_UP) == ""
        assert fourth.run("print(md.ops.shop.twice(4), md.ops.shop.count(1))") == "8 2\n"
        assert second.run("print(md.ops.shop.twice(4), md.ops.shop.count(1))") == "8 2\n"


def test_a_hand_over_changes_nothing_for_those_who_are_there(name: str, tmp_path: Path) -> None:
    with team(name, tmp_path, SHOP, MORE, MORE) as (first, second, third):
        second.run(WARM_UP)
        calls = "print(md.ops.shop.count(1), md.ops.shop.price(2.0))"
        assert second.run(calls) == "5 3.0\n"
        first.end()
        assert second.run(calls) == "5 3.0\n"
        assert third.run(WARM_UP) == ""
        assert (second.run(calls), third.run(calls)) == ("5 3.0\n", "5 3.0\n")
        second.end()
        assert third.run(calls) == "5 3.0\n"
        assert third.run("md.default_registry().check_invariants()") == ""


def test_an_operator_that_this_version_lacks_is_told_as_that(name: str, tmp_path: Path) -> None:
    with team(name, tmp_path, ADDED, SHOP) as (first, second):
        assert second.run("print(md.warm_up('shop').differences)") == "()\n"
        call = "print(md.ops.shop.twice(4))"
        assert first.run(call) == "8\n"
        kind, told = refused(second, call)
        assert kind == "LocalKernelMissingError"
        assert told.endswith("\nIs it a version without that? Import the one that has it.")


@pytest.mark.thorough
def test_of_versions_that_come_at_once_no_two_break_each_other(name: str, tmp_path: Path) -> None:
    """Twelve members of four versions, of which each pair breaks. All start at one signal."""
    versions = [MORE.replace("by=4", f"by={4 + i % 4}") for i in range(12)]
    with team(name, tmp_path, SHOP, *versions) as (_, *others):
        lines = """
            import sys
            try:
                import shop
                print("in", md.ops.shop.count(0))
            except errors.SchemaMismatchError:
                print("refused")
        """
        told: list[str] = []
        threads = [
            threading.Thread(target=lambda m=each: told.append(m.run(lines).splitlines()[-1]))
            for each in others
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 12
        assert len({each for each in told if each != "refused"}) <= 1


def test_a_member_keeps_its_own_where_the_registry_defines_it_anew(
    name: str, tmp_path: Path
) -> None:
    """Until its next warm-up its calls are refused in words."""
    define = """
        lib = md.Library("shop", "DEF", registry=one)
        lib.define("count(int x{}) -> int")
        lib.impl("count", lambda x, by=10: x + by, "CompositeExplicitAutograd")
    """
    call = "print(one.ops.shop.count(1))"
    warm_up = "print(md.warm_up((), registry=one, complete='shop').differences)"
    with members.member("", tmp_path) as first, members.member("", tmp_path) as second:
        first.run(f"one = md.Registry.create({name!r}, match='compatible')")
        second.run(f"one = md.Registry.attach({name!r})")
        for each in (first, second):
            each.run(define.format(""))
        first.run("lib.close()")
        first.run(define.format(", int by=3"))
        assert refused(second, call)[0] == "KernelOutdatedError"
        assert second.run(warm_up) == "()\n"
        assert (first.run(call), second.run(call)) == ("4\n", "11\n")
        first.run("lib.close(); lib = md.Library('shop', 'DEF', registry=one)")
        kind, text = refused(first, "lib.define('count(int x, str by) -> int')")
        assert kind == "SchemaMismatchError"
        assert f"is defined otherwise in pid {second.process.pid}" in text


def test_a_pickle_goes_where_its_calls_are_known(name: str, tmp_path: Path) -> None:
    with team(name, tmp_path, SHOP, MORE) as (first, second):
        second.run(WARM_UP)
        dump = "import pickle; print(pickle.dumps(md.ops.shop.count.default).hex())"
        old, new = first.run(dump).strip(), second.run(dump).strip()
        load = "import pickle; print(pickle.loads(bytes.fromhex('{}'))(1))"
        assert second.run(load.format(old)) == "5\n"
        _, text = refused(first, load.format(new))
        assert "shop::count(int x, int by=4) -> int" in text
        assert "shop::count(int x) -> int" in text
        assert (first.run(load.format(old)), second.run(load.format(new))) == ("2\n", "5\n")


def test_no_call_is_sent_from_one_version_to_the_other(name: str, tmp_path: Path) -> None:
    served = SHOP.replace('"CompositeExplicitAutograd")', '"CPU", serve="host")')
    without = "".join(each for each in MORE.splitlines(True) if "impl" not in each)
    with team(name, tmp_path, served, without) as (_, second):
        assert second.run("import shop") == ""
        second.run("""
            cpu, nothing = md.DispatchKeySet(["CPU"]), md.DispatchKeySet()
            second = md.context.ForceDispatchKeyGuard(cpu, nothing)
            second.__enter__()
            md.routing("shop").__enter__()
        """)
        assert second.run("print(md.ops.shop.price(2.0))") == "3.0\n"
        kind, text = refused(second, "md.ops.shop.count(1)")
        assert kind == "MissingKernelError"
        assert f"here:  shop::count(int x, int by=4) -> int    ({tmp_path}/1/shop.py:5)" in text
        assert f"there: shop::count(int x) -> int    ({tmp_path}/0/shop.py:6)" in text


def test_a_child_of_a_fork_tells_its_own_versions(name: str, tmp_path: Path) -> None:
    other = MORE.replace("by=4", "by=5")
    with team(name, tmp_path, SHOP, MORE, other) as (_, second, third):
        second.run(WARM_UP)
        second.run("""
            import os, sys
            r, w = os.pipe()
            r2, w2 = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(r), os.close(w2)
                os.write(w, b"%d" % md.ops.shop.count(1))
                os.read(r2, 1)
                os._exit(0)
            os.close(w), os.close(r2)
            print(os.read(r, 1))
        """)
        second.run("md.default_registry().close()")
        kind, text = refused(third)
        assert kind == "SchemaMismatchError"
        assert "defined otherwise" in text
        second.run("os.close(w2); os.waitpid(child, 0)")


# --- what a registry asks for ---------------------------------------------------------------------


def test_whoever_makes_a_registry_decides(name: str) -> None:
    with md.Registry.elect(name, match="compatible") as one:
        with md.Registry.elect(name), md.Registry.elect(name, match="compatible"):
            with pytest.raises(errors.MatchError) as caught:
                md.Registry.elect(name, match="same")
            assert (caught.value.wanted, caught.value.there) == ("same", "compatible")
            assert str(caught.value).startswith(f"elect:{name} was made with match=compatible, and")
        assert one.dispatcher.facts.matches
    with md.Registry.elect(name) as one, md.Library("space", "DEF", registry=one) as lib:
        lib.define("f() -> ()")
        with pytest.raises(errors.MatchError):
            md.Registry.elect(name, match="compatible")
        md.Registry.elect(name, match="same").close()


@pytest.mark.needs("cluster")
def test_the_hosts_of_a_cluster_have_to_be_the_same(name: str, tmp_path: Path) -> None:
    """The leader is refused, joins without it, and then are the workers beside it."""
    url = f"cluster:memory:match?run={name}"
    with members.member(url, tmp_path, **COMPATIBLE) as leader:
        assert (
            "Hosts of a cluster have to be the same: unset it."
            in refused(leader, "md.default_registry()")[1]
        )
        leader.run("import os; os.environ.pop('MDISPATCH_MATCH'); md.default_registry()")
        with members.member(name, tmp_path, **COMPATIBLE) as worker:
            kind, told = refused(worker, "md.default_registry()")
            assert kind == "MatchError"
            assert told.endswith("\nHosts of a cluster have to be the same: unset it.")


@pytest.mark.needs("cluster")
def test_a_worker_of_another_host_of_a_cluster_may_not_differ(name: str, tmp_path: Path) -> None:
    from cluster_threads import host, leader

    from mdispatch.cluster import parse_url

    url = parse_url(f"memory:match?run={name}")
    with (
        leader(url, f"{name}-a"),
        host(url, f"{name}-b"),
        members.member(f"{name}-b", tmp_path, **COMPATIBLE) as worker,
    ):
        kind, told = refused(worker, "md.default_registry()")
        assert kind == "MatchError"
        assert told.endswith("\nHosts of a cluster have to be the same: unset it.")


def test_another_word_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="match=alike"):
        md.Registry.elect(name, match="alike")


def test_a_worker_follows_its_main_interpreter(name: str) -> None:
    with md.Registry.create(name, match="compatible") as one:
        assert one.dispatcher.facts.matches
    with md.Registry.local() as one:
        assert not one.dispatcher.facts.keeps_own


IN_MAIN = """
    import os, sys
    name, kind, folder, body = args
    sys.path.insert(0, folder)
    os.environ["MDISPATCH_MATCH"] = "compatible"
    os.environ["MORE"] = ""
    import shop
    os.environ["MORE"] = ", int by=4"
    worker = results(start(kind, body, 1, Path(folder)))[0]
    done(main=md.ops.shop.count(1), **worker)
"""

IN_WORKER = """
import sys
import mdispatch as md
result = md.warm_up("shop")
report(worker=md.ops.shop.count(1), apart=list(md.default_registry().dispatcher.facts.apart),
       differences=len(result.differences))
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, "spawn", "subprocess"])
def test_workers_of_a_main_interpreter_too(name: str, tmp_path: Path, kind: str) -> None:
    text = SHOP.replace('"count(int x) -> int"', "f\"count(int x{os.environ['MORE']}) -> int\"")
    text = "import os\n" + text.replace("lambda x: x + 1", "lambda x, by=1: x + by")
    (tmp_path / "shop.py").write_text(text)
    values = run_main(IN_MAIN, name, kind, str(tmp_path), IN_WORKER)
    assert values["main"] == 2
    assert (values["worker"], values["apart"], values["differences"]) == (5, ["shop::count"], 0)


def test_it_goes_with_telling(name: str, tmp_path: Path) -> None:
    """MDISPATCH_ON_DIFFERENCE=warn beside it warns of breaking differences alone."""
    both = MORE.replace("tax=0.5", "tax=0.25")
    with team(name, tmp_path, SHOP, both, MDISPATCH_ON_DIFFERENCE="warn") as (_, second):
        told = second.run(WARM_UP)
        assert told.count("goes on with its own: ") == told.count("shop::price has another") == 1
        assert second.run("print(md.ops.shop.count(1), md.ops.shop.price(2.0))") == "5 2.5\n"
