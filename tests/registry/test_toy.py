"""The packages work with a kind and a plug of a stranger, in one file (support/toy.py)."""

import json

import pytest
import toy
from command_line import mdispatch
from kinds import INTERPRETERS, run_main

import mdispatch as md
from mdispatch import errors, facts
from mdispatch.facts.kinds import Kind

pytestmark = pytest.mark.shared

WORKER = """
import toy
import mdispatch as md
outcomes = []
for words in ("hello", "good day"):
    try:
        toy.greet("ann", words)
        outcomes.append("")
    except md.MdispatchError as error:
        outcomes.append(f"{type(error).__name__}: {error}")
try:
    toy.greet("bob", "hello", timeout=0.01)
except md.errors.NotRegisteredError as error:
    outcomes.append(f"{type(error).__name__}: {error}")
from mdispatch.workers.warm_up import examine
missing = [str(error) for error in examine("toys").differences]
report(outcomes=outcomes, missing=missing)
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, "spawn"])
def test_it_is_registered_verified_compared_and_missed(kind, tmp_path):
    (tmp_path / "toys.py").write_text(
        "import toy\nimport mdispatch as md\n"
        "if md.is_main_interpreter():\n    toy.greet('eve', 'hello')\n"
    )
    got = run_main(
        """
        kind, folder, text = args
        sys.path.insert(0, folder)
        import toy, toys
        toy.greet("ann", "hello")
        done(**results(start(kind, text, 1, Path(folder)))[0])
        """,
        kind,
        str(tmp_path),
        WORKER,
    )
    same, other, absent = got["outcomes"]
    assert same == ""
    assert other.startswith(
        "VerificationError: the greeting of ann is 'good day' here, and 'hello'"
    )
    assert absent.startswith("MainNeverArrivedError: ")
    assert "did not greet bob within" in absent
    (missing,) = [each for each in got["missing"] if each.startswith("eve ")]
    assert missing.startswith("eve is greeted in the main interpreter (pid ")


def test_a_second_one_is_refused_with_both_lines(registry):
    toy.greet("ann", "hello", registry=registry)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        toy.greet("ann", "hello", registry=registry)
    assert str(caught.value).startswith("ann is greeted already\n  first:  ")
    assert (caught.value.kind, caught.value.name) == ("greeting", "ann")
    assert toy.greetings(registry) == {"ann": "hello"}


def test_ls_shows_it(tmp_path):
    (tmp_path / "greeted.py").write_text(
        "import toy\nimport mdispatch as md\ntoy.greet('ann', 'hello')\n"
        "md.Library('greeted', 'DEF').define('f() -> int')\n"
    )
    asked = ("ls", "--import", "greeted")
    assert "\nGreetings: ann.\n" in mdispatch(*asked, cwd=tmp_path).stdout
    (other,) = json.loads(mdispatch(*asked, "--json", cwd=tmp_path).stdout)["others"]
    assert (other["kind"], other["name"], other["text"]) == ("greeting", "ann", "hello")


def test_a_registry_of_several_hosts_refuses_it(registry):
    its = registry.dispatcher.facts
    its.register(facts.STANDING, 0, facts.STANDS, "open", "")  # as a leader or a bridge does
    with pytest.raises(errors.NotSharedError, match="the greeting of ann cannot be registered"):
        toy.greet("ann", "hello", registry=registry)
    assert toy.greetings(registry) == {}


#: In a process of its own, since that of the tests may have threads when it forks.
LOOKED_AND_FORKED = """
import os, toy
with md.Registry.create() as registry:
    toy.greet("ann", "hello", registry=registry)
    plug = registry.dispatcher.of(toy.Greetings)
    registry.dispatcher.look()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, ",".join(plug.told).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    child = os.read(read, 100).decode()
done(count=plug.count, child=child, told=plug.told)
"""


def test_the_plug_is_told_of_a_look_a_fork_and_the_end():
    got = run_main(LOOKED_AND_FORKED)
    assert (got["count"], got["child"], got["told"]) == (1, "look,forked", ["look", "ended"])


def test_a_number_belongs_to_one_kind():
    class Other(Kind):
        number, name = toy.GREETING, "other"

    with pytest.raises(
        errors.InvalidArgumentError, match="12 is the number of the kind 'greeting'"
    ):
        facts.registration.add(Other())
    assert facts.kind_of(toy.GREETING) is toy.KIND


def test_a_kind_that_nobody_knows_has_a_name():
    assert facts.kind_of(31).name == "kind 31"
    assert (facts.kind_of(31).hosts, facts.kind_of(31).title) == ("refused", "Kind 31")


def test_a_kind_takes_no_field_that_kinds_do_not_have():
    with pytest.raises(TypeError, match="a kind has no nmae"):
        Kind(number=13, nmae="other")


def test_ls_lists_what_it_does_not_know_by_its_number(registry):
    """The command runs in a process of its own, which has not loaded the toy."""
    toy.greet("ann", "hello", registry=registry)
    md.Library("s", "DEF", registry=registry).define("f() -> int")
    shown = mdispatch("ls", "--registry", registry.address, process=True).stdout
    assert "\nKind 12: ann.\n" in shown
