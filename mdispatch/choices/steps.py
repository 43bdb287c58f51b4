"""Agreements on the steps of a running job: a window of them, in constant memory.

Note [Steps that leave]
~~~~~~~~~~~~~~~~~~~~~~~
The members of a run have a token in common, on which they agree (the first one's holds, ``follow``)
as long as one of them is there. The name of a step's registration has the token, so the steps of an
earlier run are of no use to a later one. The first member of a run ends those that an earlier one
has left.

The first member that comes to a step registers its value, in a registration that outlives it. The
others compare. Each member ends those that it has made, when they have left the window.

A member that comes to a step which has left must not take itself for the first. So before a member
ends some, it raises the *floor*, a registration whose key is the lowest step that is there. After
it has registered a step, a member looks at the floor, and ends its registration again if the step
is below it. If it did not find the step because that had left, the floor was there before. A
member that compares looks at the floor, too: the value that it found may be that of a late one.

native/model/steps.pml has the protocol.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from json.encoder import encode_basestring_ascii
from os import urandom

from .. import seam
from ..errors import DuplicateRegistrationError, InvalidArgumentError, StepGoneError
from ..errors.locations import registrants_location
from ..facts.native.calls import surely
from ..registry.registry import Registry, given_or_default
from .agreeing import Agreed, agree, leave, sealed
from .kind import KEPT
from .patterns import Rules
from .profiles import REGISTRY
from .values import digest_of, dumps, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import NoReturn, Self

    from ..facts import Registration

__all__ = ["Steps", "agreeing"]

_LONGEST = 2048  # characters of a step's value
_MOST = (1 << 31) - 1  # of a key of the registry


def agreeing(
    name: str, *, window: int = 1000, scope: str = REGISTRY, registry: Registry | None = None
) -> Steps:
    """A context in which the members of a running job agree on each of its steps::

        import mdispatch as md

        with md.agreeing("steps", window=1000) as steps:
            for n, batch in enumerate(["a", "b", "c"]):
                steps.agree(n, batch)

    ``window`` is how many steps the fastest member may be ahead of the slowest: older steps leave
    by themselves, so the memory is constant. All members have to give the same. Where the last
    member has left, the next one begins a new run.

    Raises what :func:`mdispatch.agree` raises.
    """
    if type(window) is not int or not 0 < window < _MOST:
        raise InvalidArgumentError(f"window={window!r}: it is a number of steps")
    return Steps(name, window, scope, given_or_default(registry))


class Steps:
    """Made by :func:`agreeing`. One thread at a time may use it."""

    __slots__ = (
        "_agreed",
        "_facts",
        "_floor",
        "_floor_now",
        "_floor_seen",
        "_made",
        "_name",
        "_names",
        "_over",
        "_prefix",
        "_registry",
        "_rules",
        "_window",
    )

    def __init__(self, name: str, window: int, scope: str, registry: Registry) -> None:
        self._name, self._window, self._registry = name, window, registry
        self._names = [name, f"{name} (run)"]
        self._facts = facts = registry.dispatcher.facts
        self._rules = Rules((), (), None, lambda text: sealed(facts, text))
        #: The steps that this member has registered.
        self._made: deque[tuple[int, Registration]] = deque()
        self._agreed = registry.dispatcher.of(Agreed)
        #: Why nobody can ask here any more.
        self._over = ""
        try:
            self._join(scope)
        except BaseException:
            # See Note [Handlers that raise] in native/bind/call/surely.c.
            surely(self.close)
            raise

    def _join(self, scope: str) -> None:
        """Takes part in the run that is under way, or begins one."""
        self._agreed.runs[self] = None
        name, registry, facts = self._name, self._registry, self._facts
        agree(name, {"window": self._window}, scope=scope, registry=registry)
        mine = urandom(12).hex()
        token = agree(self._names[1], mine, follow=True, scope=scope, registry=registry)
        began = f"(steps of {name!a}) ".replace(":", "\\:")
        self._prefix = f"{began}{token} "
        if token == mine:
            _, there = facts.registrations_since(KEPT, 0)
            for fact in there:
                if fact.name.startswith(began) and not fact.name.startswith(self._prefix):
                    facts.remove(fact)
        self._raise_floor(0)
        self._look_at_floor()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the run. The steps that this member was the first to come to stay for the
        others. Idempotent.
        """
        self._over = self._over or "this member has left the run already"
        for name in self._names:
            leave(name, registry=self._registry)
        self._names = []
        self._agreed.runs.pop(self, None)

    def forked(self) -> None:
        """In the child of a fork: the run is the parent's."""
        self._over = "the run is that of the parent of this process, which has to begin one itself"
        self._names = []

    def agree(self, step: int, value: object) -> None:
        """Makes sure that all members that come to this step have the same value. The values are as
        for :func:`mdispatch.agree`; a large one is compared by its digest.

        Raises DisagreementError, StepGoneError (the step has left the window),
        InvalidArgumentError, RegistryClosedError, RegistryFullError.
        """
        if type(step) is not int or not 0 <= step < _MOST:
            raise InvalidArgumentError(f"agree({step!r}): a step is a number from 0 on")
        if self._over:
            raise InvalidArgumentError(f"agree({step}): {self._over}")
        if type(value) is str:
            text = encode_basestring_ascii(value)
        else:
            text = dumps(plain(value, self._rules))
        if len(text) > _LONGEST:
            text = dumps({"#digest": [digest_of(text), len(text)]})
        name = f"{self._prefix}{step}"
        fact = self._facts.find(KEPT, 0, name)
        if fact is None:
            fact = self._register(step, name, text)
        if self._floor_now() != self._floor_seen:
            self._look_at_floor()
        if fact is None or step < self._floor:
            self._refuse(step)
        if fact.text != text:
            self._differs(step, text, fact)
        if self._made and self._made[0][0] <= step - 2 * self._window:
            self._end_old(step)

    def _register(self, step: int, name: str, text: str) -> Registration | None:
        """The registration of a step: this member's, if it is the first. None where that has left
        meanwhile.
        """
        try:
            fact = self._facts.register(KEPT, 0, name, text, registrants_location())
        except DuplicateRegistrationError:
            return self._facts.find(KEPT, 0, name)
        self._made.append((step, fact))
        return fact

    def _refuse(self, step: int) -> NoReturn:
        """The step has left the window."""
        if self._made and self._made[-1][0] == step:
            self._facts.remove(self._made.pop()[1])
        raise StepGoneError(
            f"step {step} of {self._name!r} has left the window of {self._window} steps: a member "
            f"is at step {self._floor + self._window - 1} or further, so nobody has compared this "
            "value\nGive a larger window=, or look for what holds this member up.",
            name=self._name,
            step=step,
            window=self._window,
        )

    def _differs(self, step: int, text: str, other: Registration) -> None:
        from .disagreeing import step_differs

        error = step_differs(self._name, step, text, other, registrants_location())
        if not self._facts.observes:
            raise error
        what = KEPT, 0, self._name, str(step)
        seam.at("a difference that one call meets")(self._registry.dispatcher, what, error)

    def _look_at_floor(self) -> None:
        self._floor_seen, node, there = self._facts.registrations(f"{self._prefix}floor")
        self._floor_now: Callable[[], int] = self._facts.reader(node)
        self._floor = max(int(fact.key) for fact in there)

    def _raise_floor(self, floor: int) -> None:
        """There is a floor at every moment: the new one comes before the others end."""
        name = f"{self._prefix}floor"
        with suppress(DuplicateRegistrationError):
            self._facts.register(KEPT, floor, name, "", "(mdispatch)")
        for fact in self._facts.registrations(name)[2]:
            if int(fact.key) < floor:
                self._facts.remove(fact)

    def _end_old(self, step: int) -> None:
        """Ends the steps of this member that have left the window. As many as a window has at once,
        since the floor costs as much as a step.
        """
        floor = step - self._window + 1
        self._raise_floor(floor)
        while self._made and self._made[0][0] < floor:
            self._facts.remove(self._made.popleft()[1])
