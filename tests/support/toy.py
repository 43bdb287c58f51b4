"""A feature in one file, as a stranger would write it: a kind of registrations, the greetings of a
program, and a plug that counts those of a registry. No file of the core knows of it.
"""

from __future__ import annotations

from mdispatch import errors, facts
from mdispatch.dispatch.plugs import Plug
from mdispatch.errors.locations import registrants_location
from mdispatch.facts.kinds import REFUSED, Kind
from mdispatch.facts.native.constants import MD_UNIQUE
from mdispatch.facts.registration import add
from mdispatch.registry import given_or_default
from mdispatch.registry.differences import beside, process_of
from mdispatch.registry.register import publish, registered, verified
from mdispatch.registry.roles import register_or_verify, who
from mdispatch.registry.verify import verify

GREETING = 12


class Greeting(Kind):
    number, name, rule, hosts = GREETING, "greeting", MD_UNIQUE, REFUSED
    what = "the greeting of {0}"
    does = "greet {0}"
    there = "{0} is greeted"
    title = "Greetings"


KIND = add(Greeting())


class Greetings(Plug):
    """How many greetings this interpreter has in a registry."""

    __slots__ = ("count", "told")

    def __init__(self, dispatcher):
        self.count = 0
        self.told = []

    def look(self):
        self.told.append("look")

    def forked(self, is_heir):
        self.told.append("forked")

    def ended(self):
        self.told.append("ended")


def greet(name, words, *, registry=None, timeout=5.0):
    """Registers the greeting of a name, or compares with it."""
    dispatcher = given_or_default(registry).dispatcher
    where = registrants_location().itself
    handle = register_or_verify(dispatcher, _wanted, _register, _verify)(
        dispatcher, name, words, where, timeout
    )
    dispatcher.of(Greetings).count += 1
    return handle


def _wanted(dispatcher, name, words, where, timeout):
    return GREETING, 0, name, None


def _register(dispatcher, name, words, where, timeout):
    return registered(dispatcher, publish(dispatcher, GREETING, 0, name, words, where()))


def _verify(dispatcher, name, words, where, timeout):
    def compare(fact):
        if fact.text != words:
            raise errors.VerificationError(
                f"{KIND.say(KIND.what, name)} is {words!r} here, and {fact.text!r} in "
                f"{who(dispatcher.facts)} ({process_of(fact)})\n"
                f"  here:  {beside(fact, where())}\n  there: {fact.where}\nSay the same in both.",
                kind=KIND.name,
                name=name,
                here=where(),
                there=fact.where,
            )

    there = verify(dispatcher, GREETING, 0, name, words, where, timeout=timeout, accept=compare)
    return None if there is None else verified(dispatcher, there.what, there)


def greetings(registry=None):
    """The greetings that are registered, by name."""
    _, there = given_or_default(registry).dispatcher.facts.registrations_since(GREETING, 0)
    return {fact.name: fact.text for fact in there}


assert facts.kind_of(GREETING) is KIND
