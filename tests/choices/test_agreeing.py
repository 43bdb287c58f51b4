"""All members that ask have the same value, or the one that differs gets an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from commands import environment
from dying import POINTS, ends_by_itself
from kinds import KINDS, OUTCOMES, run_main
from members import member
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.choices.agreeing import ASKS, REFUSED
from mdispatch.choices.kind import KEPT, VALUE

shared = pytest.mark.shared

CONFIG = {"scheduler": {"max_num_batched_tokens": 4096, "policy": "fcfs"}, "plugins": ["a", "b"]}


def there(registry: md.Registry, key: int = ASKS) -> list[str]:
    """The patterns and the values of the members that have asked."""
    facts = registry.dispatcher.facts
    found = [*facts.registrations_since(VALUE, 0)[1], *facts.registrations_since(KEPT, 0)[1]]
    return [
        fact.text.partition("\n")[2] for fact in found if fact.key == key and "(agree" in fact.name
    ]


def other(registry: md.Registry, tmp_path, **env: str):
    return member(registry.address, tmp_path, **env)


# --- one member -----------------------------------------------------------------------------------


@pytest.mark.either_binding
def test_one_member_agrees_with_itself_and_may_change_its_mind(registry) -> None:
    assert md.agree("engine", CONFIG, registry=registry) is CONFIG
    assert len(there(registry)) == 1
    changed = {**CONFIG, "plugins": []}
    assert md.agree("engine", changed, registry=registry) is changed
    assert len(there(registry)) == 1
    assert '"plugins":[]' in there(registry)[0]


def test_a_value_that_was_changed_in_place_is_asked_for_anew(registry) -> None:
    value = {"a": {"b": [1, 2]}}
    md.agree("engine", value, registry=registry)
    value["a"]["b"].append(3)
    md.agree("engine", value, registry=registry)
    assert '"b":[1,2,3]' in there(registry)[0]
    patterns = ["a"]
    md.agree("engine", value, ignore=patterns, registry=registry)
    patterns.append("c")
    md.agree("engine", value, ignore=patterns, registry=registry)
    assert '"ignore":["a","c"]' in there(registry)[0]


def test_each_call_returns_its_own_value(registry) -> None:
    first, second = {"a": 1}, {"a": 1}
    assert md.agree("engine", first, registry=registry) is first
    first["a"] = 2
    assert md.agree("engine", second, registry=registry) is second


def test_what_is_known_is_compared_by_value(registry) -> None:
    value = {"a": float("nan"), "b": (1, [2, {"c": 3}]), 4: None}
    for _ in range(3):
        md.agree("engine", value, registry=registry)
        md.agree("engine", {"b": (1, [2, {"c": 3}]), 4: None, "a": float("nan")}, registry=registry)
    assert len(there(registry)) == 1
    facts = registry.dispatcher.facts
    (first,) = facts.registrations_since(VALUE, 0)[1]
    assert first.name == "(agree engine)"


@pytest.mark.parametrize(
    ("name", "value", "options", "why"),
    [
        ("", 1, {}, "an agreement has a name of 1 to 200 printable letters, not ''"),
        ("a\n", 1, {}, "an agreement has a name"),
        (3, 1, {}, "an agreement has a name"),
        ("a", {"x": object()}, {}, "^x is of type object, which members of other processes"),
        ("a", 1, {"among": 0}, "among=0: it is a number of members"),
        ("a", 1, {"among": True}, "among=True: it is a number of members"),
        ("a", 1, {"scope": "all"}, "scope=all: an agreement is of all members of the registry"),
        ("a", 1, {"timeout": -1}, "timeout"),
        ("a", 1, {"ignore": "x"}, "ignore= takes a list of patterns"),
        ("a", {"token": "t"}, {"follow": True}, "a part that seems to be a secret"),
        ("a", {"b": 1}, {"follow": True, "ignore": ["b"]}, "follow= takes the whole value"),
        ("a", {"b": os}, {"follow": True}, "follow=: b is a module"),
        ("a", "x" * 70_000, {"follow": True}, "takes 68 KiB, and follow= hands on 64 at most"),
    ],
    ids=[
        "empty",
        "line",
        "number",
        "object",
        "zero",
        "bool",
        "scope",
        "time",
        "text",
        "secret",
        "ignore",
        "module",
        "long",
    ],
)
def test_bad_input_is_refused_before_anything_changed(registry, name, value, options, why) -> None:
    md.agree("a", "before", registry=registry)
    before = there(registry)
    with pytest.raises(errors.InvalidArgumentError, match=why):
        md.agree(name, value, **options, registry=registry)
    assert there(registry) == before


def test_alone_it_is_trivially_true_and_nobody_can_be_waited_for() -> None:
    with md.Registry.local() as registry:
        assert md.agree("engine", CONFIG, registry=registry) is CONFIG
        assert md.agree("engine", 3, registry=registry) == 3
        assert md.agree("flags", {"a": (1,)}, follow=True, registry=registry) == {"a": (1,)}
        with pytest.raises(errors.NotSharedError, match=r"agree\(among=2\) needs a registry that"):
            md.agree("engine", 3, among=2, registry=registry)


def test_a_closed_registry_says_so(registry) -> None:
    md.agree("engine", 1, registry=registry)
    registry.close()
    with pytest.raises(errors.RegistryClosedError):
        md.agree("engine", 1, registry=registry)


# --- several members ------------------------------------------------------------------------------


@shared
def test_the_one_that_differs_is_told_each_field_and_both_locations(registry, tmp_path) -> None:
    md.agree("engine", CONFIG, registry=registry)
    with other(registry, tmp_path, RANK="3") as its:
        told = its.run(
            f"""
            config = {CONFIG!r}
            md.agree("engine", config)
            config["scheduler"]["max_num_batched_tokens"] = 8192
            config["plugins"].append("c")
            del config["scheduler"]["policy"]
            try:
                md.agree("engine", config)
            except errors.DisagreementError as error:
                print(*error.fields, sep="\\n")
                print(error.name, error.pid, error.interpreter, error.rank)
                print(error)
            """
        )
        lines = told.splitlines()
        assert lines[:4] == [
            "scheduler.max_num_batched_tokens is 8192 here, and 4096 there",
            "scheduler.policy is missing here, and 'fcfs' there",
            "plugins[2] is 'c' here, and missing there",
            f"engine {os.getpid()} 0 None",
        ]
        assert f"{os.path.basename(__file__)}:" in told
        assert "(rank 3)" in told
        assert len(there(registry)) == 1  # it has given its first value up
        (mark,) = there(registry, REFUSED)
        assert "8192" in mark
        assert its.run(f"md.agree('engine', {CONFIG!r})") == ""
        assert there(registry, REFUSED) == []


@shared
def test_many_differences_are_counted(registry, tmp_path) -> None:
    md.agree("engine", dict.fromkeys(map(str, range(50)), 1), registry=registry)
    with other(registry, tmp_path) as its:
        told = its.run(
            """
            try:
                md.agree("engine", dict.fromkeys(map(str, range(50)), 2))
            except errors.DisagreementError as error:
                print(len(error.fields), error)
            """
        )
    assert told.startswith("50 ")
    assert "... (50 in all)" in told
    assert told.count("is 2 here, and 1 there") == 8


@shared
def test_an_agreement_ends_with_its_members_and_a_killed_one_refuses_nobody(
    tmp_path, registry
) -> None:
    with other(registry, tmp_path) as first, other(registry, tmp_path) as second:
        first.run("md.agree('engine', 1)")
        assert "DisagreementError" in second.run(
            """
            try:
                md.agree("engine", 2)
            except errors.DisagreementError as error:
                print(type(error).__name__)
            """
        )
        first.process.kill()
        first.end()
        assert second.run("md.agree('engine', 2)") == ""
    md.agree("engine", 3, registry=registry)


@shared
def test_a_kept_one_stays_as_long_as_the_registry(registry, tmp_path) -> None:
    with other(registry, tmp_path) as its:
        its.run("md.agree('engine', 1, keep=True); md.agree('engine', 1, keep=True)")
    with pytest.raises(errors.DisagreementError, match="is 2 here, and 1 there"):
        md.agree("engine", 2, registry=registry)
    md.agree("engine", 1, registry=registry)
    md.agree("engine", True, keep=True, registry=registry)


@shared
def test_those_that_follow_take_the_first_ones_value(registry, tmp_path) -> None:
    value = {"flags": (1, 2.5, True), "names": {"b", "a"}, "raw": b"\x00", 3: None}
    with other(registry, tmp_path) as first, other(registry, tmp_path) as second:
        ask = "print(md.agree('flags', {0}, follow=True) == {1!r})"
        assert first.run(ask.format(repr(value), value)) == "True\n"
        assert second.run(ask.format({"flags": 0}, value)) == "True\n"
        first.end()
        assert md.agree("flags", 7, follow=True, registry=registry) == value
        assert len(there(registry)) == 2
        second.end()
    assert md.agree("flags", 7, follow=True, registry=registry) == value  # this member has it


@shared
def test_who_follows_and_who_compares_differ_in_that(registry, tmp_path) -> None:
    md.agree("flags", 1, follow=True, registry=registry)
    md.agree("config", 1, ignore=["a.*", "b"], registry=registry)
    with other(registry, tmp_path) as its:
        told = its.run(
            """
            for name, options in ("flags", {}), ("config", {"ignore": ["b"]}), ("config", {}):
                try:
                    md.agree(name, 1, **options)
                except errors.DisagreementError as error:
                    print(*error.fields)
            """
        )
    assert told.splitlines() == [
        "follow= is not given here, and 1 there",
        "ignore= is ['b'] here, and ['a.*', 'b'] there",
        "ignore= is not given here, and ['a.*', 'b'] there",
    ]


@shared
def test_a_value_whose_name_is_that_of_a_secret_is_one(registry) -> None:
    md.agree("db.password", "gEhEiM", registry=registry)
    (asked,) = there(registry)
    assert "gEhEiM" not in asked
    assert "#secret" in asked
    md.agree("db.password", "gEhEiM", secret=(), registry=registry)
    assert there(registry) == ['{"secret":[]}\n"gEhEiM"']


@shared
def test_two_registries_of_one_interpreter_are_one_member(registry, worker) -> None:
    md.agree("engine", 1, registry=registry)
    md.agree("engine", 2, registry=worker)
    md.agree("engine", 3, registry=registry)


# --- among ----------------------------------------------------------------------------------------

ALL = """
import mdispatch as md
md.default_registry()
value = {"plan": [1, 2, 3], "index": INDEX} if SPREAD else {"plan": [1, 2, 3]}
try:
    md.agree("plan", value, ignore=["index"] if SPREAD else (), among=4, timeout=limit(60))
    report(outcome="agreed")
except md.errors.DisagreementError as error:
    report(outcome=[field.path for field in error.fields])
"""


@shared
@pytest.mark.parametrize(("kind", "count"), [(kind, 4) for kind in KINDS if kind != "thread"])
@pytest.mark.parametrize("spread", [False, True])
def test_members_of_every_kind_wait_for_each_other(kind, count, spread, tmp_path) -> None:
    text = ALL.replace("SPREAD", repr(spread))
    got = run_main(OUTCOMES, kind, count, str(tmp_path), text)
    assert got["got"] == ["agreed"] * 4
    assert got["check"] == ""


@shared
def test_threads_of_an_interpreter_are_one_member(registry) -> None:
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(md.agree("plan", 1, among=2, timeout=0.05, registry=registry))
        except errors.AgreementTimeoutError as error:
            found.append(error.came)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(limit(60))
    assert found == [((os.getpid(), 0),)] * 3


@shared
def test_one_that_differs_ends_the_wait_of_all(registry, tmp_path) -> None:
    with other(registry, tmp_path, RANK="0") as first, other(registry, tmp_path, RANK="5") as odd:
        assert first.process.stdin
        first.process.stdin.write(
            "exec("
            + repr(
                textwrap.dedent(
                    """
                try:
                    md.agree("plan", 1, among=3, timeout=None)
                except errors.DisagreementError as error:
                    print(error.rank, *error.fields)
                """
                )
            )
            + ")\n"
        )
        first.process.stdin.flush()
        facts = registry.dispatcher.facts
        facts.await_fact(VALUE, 0, "(agree plan)", 1, limit(60))
        odd.run(
            """
            try:
                md.agree("plan", 2, among=3)
            except errors.DisagreementError:
                pass
            """
        )
        assert first.process.stdout
        assert first.process.stdout.readline() == "5 it is 1 here, and 2 there\n"
        assert first.process.stdout.readline() == "done\n"


@shared
def test_a_refusal_by_a_value_that_is_gone_ends_no_other_wait(registry, tmp_path) -> None:
    with other(registry, tmp_path) as odd, other(registry, tmp_path) as its:
        md.agree("plan", 1, registry=registry)
        told = odd.run(
            """
            try:
                md.agree("plan", 2)
            except errors.DisagreementError:
                print("refused")
            """
        )
        assert told == "refused\n"
        md.choices.leave("plan", registry=registry)
        with pytest.raises(errors.AgreementTimeoutError, match="1 of 2 members"):
            md.agree("plan", 2, among=2, timeout=0.02, registry=registry)  # it asks no more
        md.choices.leave("plan", registry=registry)
        its.run("md.agree('plan', 3)")
        assert md.agree("plan", 3, among=2, timeout=limit(60), registry=registry) == 3
        assert len(there(registry, REFUSED)) == 1


@shared
def test_those_that_are_absent_are_named(registry, tmp_path) -> None:
    with (
        other(registry, tmp_path, RANK="0") as first,
        other(registry, tmp_path, RANK="2") as second,
    ):
        second.run("md.agree('plan', 1)")
        told = first.run(
            """
            try:
                md.agree("plan", 1, among=4, timeout=0.05)
            except errors.AgreementTimeoutError as error:
                print(error.absent, error.among, len(error.came), error.waited >= 0.05)
                print(error)
            """
        )
    assert told.startswith("(1, 3) 4 2 True\n2 of 4 members have asked for 'plan' within ")
    assert "  absent: ranks 1, 3\n" in told
    assert ", rank 2)" in told


@shared
@pytest.mark.parametrize(
    ("variable", "text", "rank"),
    [
        ("RANK", "3", 3),
        ("SLURM_PROCID", "4", 4),
        ("OMPI_COMM_WORLD_RANK", "5", 5),
        ("PMI_RANK", "6", 6),
        ("JOB_COMPLETION_INDEX", "7", 7),
        ("RANK", "x", None),
        ("RANK", "²", None),
        ("RANK", "9" * 5000, None),
        ("RANK", "-1", None),
    ],
)
def test_the_rank_is_the_launchers(variable, text, rank, monkeypatch) -> None:
    from mdispatch.choices.ranks import rank as rank_now

    monkeypatch.setenv(variable, text)
    assert rank_now() == rank


# --- forks, signals, other members ----------------------------------------------------------------


@shared
def test_the_child_of_a_fork_is_a_member_of_its_own(tmp_path) -> None:
    code = """
        import os, mdispatch as md
        md.default_registry()
        md.agree("engine", {"a": 1})
        pid = os.fork()
        if pid == 0:
            md.agree("engine", {"a": 1}, among=2, timeout=None)
            try:
                md.agree("engine", {"a": 2})
            except md.errors.DisagreementError as error:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        md.agree("engine", {"a": 3})
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(),
        check=True,
        timeout=limit(60),
    )


@shared
def test_a_wait_is_ended_by_a_signal_and_can_be_begun_again(registry, tmp_path) -> None:
    with other(registry, tmp_path) as its:
        its.run(
            """
            import signal
            def handler(*_):
                raise KeyboardInterrupt
            signal.signal(signal.SIGUSR1, handler)
            """
        )
        assert its.process.stdin
        its.process.stdin.write(
            "exec("
            + repr(
                textwrap.dedent(
                    """
                try:
                    md.agree("plan", 1, among=2, timeout=None)
                except KeyboardInterrupt:
                    print("interrupted")
                """
                )
            )
            + ")\n"
        )
        its.process.stdin.flush()
        registry.dispatcher.facts.await_fact(VALUE, 0, "(agree plan)", 1, limit(60))
        its.process.send_signal(signal.SIGUSR1)
        assert its.process.stdout
        assert its.process.stdout.readline() == "interrupted\n"
        assert its.process.stdout.readline() == "done\n"
        md.agree("plan", 1, registry=registry)
        assert its.run("md.agree('plan', 1, among=2, timeout=None)") == ""


@shared
def test_a_member_that_observes_is_told_and_goes_on(registry, tmp_path) -> None:
    md.agree("engine", {"a": 1}, registry=registry)
    with other(registry, tmp_path, MDISPATCH_ON_DIFFERENCE="warn") as its:
        told = its.run("print(md.agree('engine', {'a': 2}), md.agree('engine', {'a': 2}))")
        assert told.endswith("{'a': 2} {'a': 2}\n")
        assert told.count("a is 2 here, and 1 there") == 1  # the log has it once
        assert its.run("print(md.agree('engine', {'a': 1}))") == "{'a': 1}\n"
    assert len(there(registry)) == 1


@shared
def test_an_agreement_that_nobody_of_ours_wrote_is_refused(registry, tmp_path) -> None:
    facts = registry.dispatcher.facts
    with other(registry, tmp_path) as its:
        its.run(
            """
            facts = md.default_registry().dispatcher.facts
            for name, text in (
                ("a", "nothing"),
                ("b", '{"rank":null,"at":1,"among":null}\\n{}\\n{"#what":1}'),
                ("c", '{"rank":"x","at":1,"among":null}\\n{}\\n2'),
                ("d", '{"rank":null,"at":1,"among":null}\\n{"follow":1}\\n{"#tuple":1}'),
            ):
                facts.register(19, 0, f"(agree {name})", text, "here:1")
            """
        )
        for name in "abc":
            with pytest.raises(errors.RegistryDamagedError, match="is none that mdispatch"):
                md.agree(name, 1, registry=registry)
        with pytest.raises(errors.RegistryDamagedError):
            md.agree("d", 1, follow=True, registry=registry)
    assert facts.check() == ""


@shared
def test_planted_secrets_are_nowhere(registry, tmp_path, caplog) -> None:
    planted = "gEhEiM-4711"
    value = {"db": {"password": planted, "port": 1}, "api_key": [planted], "own": planted}
    secret = ["db.password", "api_key", "own"]
    md.agree("login", value, secret=secret, registry=registry)
    md.agree("default", {"db": {"passwd": planted}}, registry=registry)
    with other(registry, tmp_path, MDISPATCH_ON_DIFFERENCE="warn") as its:
        told = its.run(
            f"""
            value = {value!r}
            value["db"]["password"] += "!"
            value["own"] += "!"
            md.agree("login", value, secret={secret!r})
            md.agree("default", {{"db": {{"passwd": {planted!r} + "!"}}}})
            """
        )
        assert told.count("a secret (") == 6
        everything = [told, caplog.text]
        for fact in registry.dispatcher.facts.registrations()[2]:
            everything += [fact.name, fact.text, fact.origin]
        words = ["-m", "mdispatch", "agree", "--json", "--registry"]
        listed = subprocess.run(
            [sys.executable, *words, registry.address],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
        assert (listed.returncode, listed.stderr) == (1, "")  # a member differs
        everything.append(listed.stdout)
        pid = os.getpid()
        number = registry.address.split(":")[2]
        with open(f"/proc/{pid}/fd/{number}", "rb") as region:
            everything.append(region.read().decode("latin-1"))
    assert not any(planted in each for each in everything)
    assert any("passwd" in each for each in everything)


# --- deaths ---------------------------------------------------------------------------------------


@shared
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("", "md.agree('plan', [1])"),
        ("", "md.agree('plan', [2])"),
        ("md.agree('plan', [1])", "md.agree('plan', [1], keep=True)"),
        ("md.agree('plan', [1])", "md.agree('plan', [2])"),
        ("", "md.agree('plan', [1], among=2)"),
        ("", "md.agree('login', {'password': 'x'})"),
        ("md.agree('flags', 3, follow=True)", "md.agree('flags', 4, follow=True)"),
    ],
    ids=["agrees", "refused", "keeps", "changes", "meets", "hides", "follows"],
)
def test_a_member_may_die_before_and_after_each_step(registry, tmp_path, before, call) -> None:
    """It leaves a registry in order, in which the others agree at once."""
    facts = registry.dispatcher.facts
    for point in range(1, 200):
        md.agree("plan", [1], registry=registry)
        with other(registry, tmp_path) as its:
            its.run(before + POINTS.format(point))
            its.begin(f"try:\n  {call}\nexcept errors.DisagreementError:\n  pass")
            if ends_by_itself(its.process):
                break
            its.end()
        assert facts.check() == ""
        md.agree("plan", [1], among=1, timeout=0, registry=registry)
        md.agree("flags", point, follow=True, registry=registry)
        md.agree("login", {"password": point}, registry=registry)
        kept = [fact for fact in facts.registrations_since(KEPT, 0)[1] if "plan" in fact.name]
        with other(registry, tmp_path) as its:
            told = its.run("print(md.agree('plan', [1], among=2, timeout=None))")
            assert told == "[1]\n"
        assert len(kept) <= 2
    else:
        raise AssertionError("it has not come to its end")
    assert point > 2


# --- pools, and where nothing is shared -----------------------------------------------------------

POOLS = """
import sys
import concurrent.futures
import multiprocessing
import mdispatch as md

def begin():
    {call}

def work(n):
    return n

if __name__ == "__main__":
    md.agree("engine", {{"size": 1}})
    context = multiprocessing.get_context({method!r})
    if {executor}:
        pool = concurrent.futures.ProcessPoolExecutor(1, context, begin)
        result = pool.submit(work, 1).result
    else:
        pool = context.Pool(1, begin)
        result = pool.apply_async(work, (1,)).get
    try:
        print(result(timeout={limit}))
    except md.errors.AgreementError as error:
        print(type(error).__name__, *getattr(error, "fields", ()))
    pool.shutdown() if {executor} else pool.terminate()
"""


@shared
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("executor", [False, True], ids=["Pool", "ProcessPoolExecutor"])
@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "md.agree('engine', {'size': 2})",
            "DisagreementError size is 2 here, and 1 there\n",
        ),
        ("md.roll_call(expected=3, timeout=0)", "RollCallError\n"),
    ],
    ids=["agree", "roll_call"],
)
def test_the_callers_of_a_pool_get_the_error_of_its_initializer(
    tmp_path, method, executor, call, told
) -> None:
    script = tmp_path / "pools.py"
    script.write_text(POOLS.format(call=call, method=method, executor=executor, limit=limit(60)))
    done = subprocess.run(
        [sys.executable, script], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout == told


def test_where_nothing_can_be_shared_one_warning_says_so(tmp_path) -> None:
    script = """
import mdispatch as md
for n in range(3):
    md.agree(f"engine {n}", n)
with md.Registry.local() as registry:
    md.agree("engine", 1, registry=registry)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(MDISPATCH_BINDING="none"),
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [each for each in done.stderr.splitlines() if "Warning" in each]
    assert ":4: NotSharedWarning: this value is compared with no other process: MDISPATCH_" in line
