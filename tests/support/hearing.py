"""For the tests of listeners: a listener that notes what it hears, and definitions to hear of."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager

from mdispatch.facts import DEF

SECONDS = 60.0


class Recorder:
    """Notes what it hears, then calls ``then`` with each name."""

    def __init__(self, then=None):
        self.heard = []
        self.facts = []
        self.gone = []
        self.then = then

    def on_operator_registered(self, fact):
        self.note("+", fact)

    def on_operator_deregistered(self, fact):
        self.note("-", fact)

    def on_registry_gone(self, error):
        self.gone.append(error)

    def note(self, sign, fact):
        self.heard.append(f"{sign}{fact.name}")
        self.facts.append(fact)
        if self.then is not None:
            self.then(f"{sign}{fact.name}")


@contextmanager
def switching_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def define(listeners, name="s::f"):
    """Defines as a library in the main interpreter does."""
    return listeners.registered(
        lambda: listeners._facts.register(DEF, 0, name, f"{name}() -> ()", "ops.py:1")
    )


def end(listeners, fact):
    return listeners.removed(fact, lambda: listeners._facts.remove(fact))


def start(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def ended(thread):
    thread.join(SECONDS)
    return not thread.is_alive()


def check_order(heard, facts):
    """Definitions by number. For each name, definitions and ends alternate."""
    begun = [fact.seq for sign, fact in zip(heard, facts, strict=True) if sign[0] == "+"]
    assert begun == sorted(set(begun))
    live = {}
    for sign, fact in zip(heard, facts, strict=True):
        if sign[0] == "+":
            assert fact.name not in live
            live[fact.name] = fact
        else:
            assert live.pop(fact.name) == fact
    return live
