"""Whether a definition can take the place of another one: each difference, with its verdict.

:data:`RULES` is the one table of the rules, and docs/diff.md is made from it. Two definitions are
the *old* and the *new* one. A difference is compatible if all that works with the old definition
works with the new one: calls in code that was written for the old one, calls that other processes
send, and the use of their results. Whether new callers can use the old definition is the same
question with the two exchanged.

Note [The list of compatible differences]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The list is closed: a difference is compatible because a rule says so, and breaking otherwise. So a
schema that differs in a way for which there is no rule yet is never taken for the same one.

Note [Calls that are sent]
~~~~~~~~~~~~~~~~~~~~~~~~~~
A routed call is sent with the arguments that the caller's definition has bound, and its kernel gets
just these. Members of one registry have one definition, so nothing is missing. Where an owner with
the new definition is to serve a caller with the old one, the owner has to fill in the defaults that
the caller does not know; the rules take for granted that it does.

All here is a function of its arguments: nothing looks into a registry.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

from .names import OperatorName
from .schemas import compare
from .types import Argument, FunctionSchema, Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    #: A definition's alias analysis and its tags.
    Attributes = tuple[str, tuple[str, ...]]

__all__ = ["BREAKING", "COMPATIBLE", "RULES", "SAME", "VERDICTS", "WHERE", "Difference", "Rule"]
__all__ += ["attribute_differences", "differences", "takes_calls", "worst"]

SAME, COMPATIBLE, BREAKING = "same", "compatible", "breaking"
#: From the best to the worst.
VERDICTS = (SAME, COMPATIBLE, BREAKING)

#: How sentences name the two definitions.
WHERE = ("in OLD", "in NEW")


class Rule(NamedTuple):
    """One row of the table: the change, its verdict, and the reason."""

    change: str
    verdict: str
    why: str


class Difference(NamedTuple):
    """One difference: the name of its rule, and a sentence that names the argument."""

    rule: str
    words: str

    @property
    def verdict(self) -> str:
        return RULES[self.rule].verdict


RULES = {
    "argument-added": Rule(
        "an argument with a default is added after all others that are given by position",
        COMPATIBLE,
        "Old calls leave it out and get the default. A new call that gives it needs the new "
        "definition: exchanged, it is an argument removed.",
    ),
    "keyword-added": Rule(
        "an argument with a default is added that is given by keyword only",
        COMPATIBLE,
        "As above, wherever it stands: no call gives it by position.",
    ),
    "default-added": Rule(
        "an argument that had no default gets one",
        COMPATIBLE,
        "Old calls give the argument and go on to do so. A new call that leaves it out needs the "
        "new definition: exchanged, it is a default removed.",
    ),
    "name-changed": Rule(
        "the operator has another name",
        BREAKING,
        "Old calls and old pickles look for the old name and do not find it, in both directions.",
    ),
    "argument-removed": Rule(
        "an argument is removed",
        BREAKING,
        "Old calls that give it are refused, whether or not it has a default.",
    ),
    "argument-required": Rule(
        "an argument without a default is added",
        BREAKING,
        "Old calls do not give it and are refused. Exchanged, it is an argument removed.",
    ),
    "argument-inserted": Rule(
        "an argument is added before others that are given by position",
        BREAKING,
        "Old calls give by position what is now another argument. Nothing need refuse that.",
    ),
    "argument-renamed": Rule(
        "an argument has another name",
        BREAKING,
        "Old calls that give it by keyword are refused, in both directions.",
    ),
    "argument-moved": Rule(
        "arguments are in another order",
        BREAKING,
        "Old calls by position give each the value of another. Arguments by keyword only count, "
        "too: types= and kernels in C of other packages have them in the order of the schema.",
    ),
    "argument-kind": Rule(
        "an argument is given by position in one, and by keyword only in the other",
        BREAKING,
        "Old calls by position are refused; in the other direction a kernel of another package, "
        "which takes it by keyword, gets it by position.",
    ),
    "argument-retyped": Rule(
        "an argument has another type, a wider one included",
        BREAKING,
        "Old calls may give what is refused now. A wider type lets values in that kernels of other "
        "packages do not expect, and exchanged it is a narrower one.",
    ),
    "argument-alias": Rule(
        "what an argument shares, or whether it is written to, has changed",
        BREAKING,
        "Callers, gradients and copies of arguments rely on it: a caller does not expect that its "
        "value is written to, or waits for a result in it that does not come.",
    ),
    "default-changed": Rule(
        "a default has another value",
        BREAKING,
        "Old calls that leave the argument out give other results, and nothing refuses them.",
    ),
    "default-removed": Rule(
        "an argument has no default any more",
        BREAKING,
        "Old calls that leave it out are refused. Exchanged, it is a default added.",
    ),
    "more-arguments": Rule(
        "only one of the two takes any number of arguments ('...')",
        BREAKING,
        "Old calls with more arguments are refused; in the other direction a call with too many is "
        "not refused any more.",
    ),
    "return-changed": Rule(
        "the returns differ, in their number, types, names or in what they share",
        BREAKING,
        "Old callers unpack and use what they do not get. Both sides of a routed call compare its "
        "result with the schema.",
    ),
    "alias-analysis": Rule(
        "the alias analysis differs",
        BREAKING,
        "It says what may be left out, repeated or moved, and old code was optimised by it.",
    ),
    "tags": Rule(
        "the tags differ",
        BREAKING,
        "They are promises (pure, in place, data-dependent), and old code asks for them.",
    ),
    "schema": Rule(
        "the schemas differ in anything else",
        BREAKING,
        "No rule says that it is compatible.",
    ),
}


def worst(verdicts: Iterable[str]) -> str:
    """The worst of these verdicts; "same" for none."""
    return max(verdicts, key=VERDICTS.index, default=SAME)


# --- one schema against another -------------------------------------------------------------------

#: Any name: compared with itself.
_NAME = OperatorName("", "f")


def differences(
    old: FunctionSchema, new: FunctionSchema, where: tuple[str, str] = WHERE
) -> list[Difference]:
    """All differences of two schemas; none when they are equal. ``where`` says of each schema where
    it is.
    """
    if old == new:
        return []
    found = [*_of_names(old, new, where), *_of_arguments(old, new, where)]
    if old.stars != new.stars:
        found.append(Difference("schema", compare(_starred(old), _starred(new), where) or ""))
    elif old.is_vararg != new.is_vararg:
        its = where[new.is_vararg]
        found.append(Difference("more-arguments", f"only {its} it takes more arguments ('...')"))
    words = compare(_returned(old), _returned(new), where)
    if words is not None:
        found.append(Difference("return-changed", words))
    if not found:
        found.append(Difference("schema", compare(old, new, where) or f"it is {old} and {new}"))
    return found


def _starred(schema: FunctionSchema) -> FunctionSchema:
    """A schema of the arguments with stars alone."""
    return FunctionSchema(_NAME, (), (), rest=schema.rest, others=schema.others)


def _returned(schema: FunctionSchema) -> FunctionSchema:
    """A schema of the returns alone."""
    return FunctionSchema(_NAME, (), schema.returns, False, schema.is_varret)


def attribute_differences(
    old: Attributes, new: Attributes, where: tuple[str, str] = WHERE
) -> list[Difference]:
    """The differences of two definitions beside their schemas."""
    found = []
    if old[0] != new[0]:
        words = f"the alias analysis is {old[0]} {where[0]}, {new[0]} {where[1]}"
        found.append(Difference("alias-analysis", words))
    if sorted(old[1]) != sorted(new[1]):
        tags = [", ".join(sorted(each)) or "none" for each in (old[1], new[1])]
        words = f"the tags are {tags[0]} {where[0]}, {tags[1]} {where[1]}"
        found.append(Difference("tags", words))
    return found


def _of_names(
    old: FunctionSchema, new: FunctionSchema, where: tuple[str, str]
) -> Iterator[Difference]:
    if old.name != new.name:
        words = f"the name is {old.name} {where[0]}, {new.name} {where[1]}"
        yield Difference("name-changed", words)


def _of_arguments(
    old: FunctionSchema, new: FunctionSchema, where: tuple[str, str]
) -> Iterator[Difference]:
    before = {each.name: each for each in old.arguments}
    after = {each.name: each for each in new.arguments}
    renamed = _renamed(old, new)
    for argument in old.arguments:
        name = renamed.get(argument.name, argument.name)
        if name in after:
            yield from _of_argument(argument, after[name], where)
        else:
            yield Difference("argument-removed", f"argument '{argument}' is only {where[0]}")
    here = [renamed.get(each.name, each.name) for each in old.arguments]
    for argument in new.arguments:
        if argument.name not in before and argument.name not in renamed.values():
            yield _added(argument, new, here, where)
    yield from _of_order(old, new, renamed, where)


def _renamed(old: FunctionSchema, new: FunctionSchema) -> dict[str, str]:
    """Arguments by position that have another name and are else where they were, of one type: by
    the old name the new one.
    """
    before = {each.name for each in old.arguments}
    after = {each.name for each in new.arguments}
    pairs = zip(_by_position(old), _by_position(new), strict=False)
    return {
        one.name: other.name
        for one, other in pairs
        if one.name not in after and other.name not in before and one.type == other.type
    }


def _by_position(schema: FunctionSchema) -> list[Argument]:
    return [each for each in schema.arguments if not each.kwarg_only]


def _of_argument(old: Argument, new: Argument, where: tuple[str, str]) -> Iterator[Difference]:
    name, (one, other) = f"'{new.name}'", where
    if old.name != new.name:
        words = f"'{old.name}' {one} is called {name} {other}"
        yield Difference("argument-renamed", words)
    if old.kwarg_only != new.kwarg_only:
        words = f"{name} is given by keyword only {where[new.kwarg_only]}"
        yield Difference("argument-kind", words)
    if old.type != new.type:
        words = f"the type of {name} is {old.type} {one}, {new.type} {other}"
        yield Difference("argument-retyped", words)
    if old.alias_info != new.alias_info:
        texts = [each.type.annotated(each.alias_info) for each in (old, new)]
        words = f"{name} is {texts[0]} {one}, {texts[1]} {other}"
        yield Difference("argument-alias", words)
    if old.has_default and not new.has_default:
        words = f"{name} has the default {_default(old)} {one}, and none {other}"
        yield Difference("default-removed", words)
    elif new.has_default and not old.has_default:
        words = f"{name} has no default {one}, and {_default(new)} {other}"
        yield Difference("default-added", words)
    elif _default(old) != _default(new) and (old.type == new.type or old.default != new.default):
        words = f"the default of {name} is {_default(old)} {one}, {_default(new)} {other}"
        yield Difference("default-changed", words)


def _default(argument: Argument) -> str:
    """The default as it is written. Texts are compared: 1, 1.0 and True are equal values."""
    return str(argument).partition("=")[2]


def _added(
    argument: Argument, new: FunctionSchema, here: Sequence[str], where: tuple[str, str]
) -> Difference:
    words = f"argument '{argument}' is only {where[1]}"
    if not argument.kwarg_only:
        names = [each.name for each in _by_position(new)]
        follow = [each for each in names[names.index(argument.name) :] if each in here]
        if follow:
            return Difference("argument-inserted", f"{words}, before '{follow[0]}'")
    if not argument.has_default:
        return Difference("argument-required", f"{words}, and has no default")
    if argument.kwarg_only:
        return Difference("keyword-added", f"{words}, by keyword")
    return Difference("argument-added", words)


def _of_order(
    old: FunctionSchema, new: FunctionSchema, renamed: dict[str, str], where: tuple[str, str]
) -> Iterator[Difference]:
    """The first argument of both that others pass by, among those by position and the others."""
    for kwarg_only in (False, True):
        orders = [
            [
                names.get(each.name, each.name)
                for each in schema.arguments
                if each.kwarg_only == kwarg_only
            ]
            for schema, names in ((old, renamed), (new, {}))
        ]
        there, here = ([n for n in order if n in other] for order, other in _each_way(*orders))
        for one, other in zip(there, here, strict=True):
            if one != other:
                words = f"'{one}' is before '{other}' {where[0]}, and after it {where[1]}"
                yield Difference("argument-moved", words)
                break


def _each_way(one: list[str], other: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    yield one, other
    yield other, one


# --- overloads ------------------------------------------------------------------------------------


def takes_calls(old: FunctionSchema, new: FunctionSchema, later: FunctionSchema) -> bool:
    """Whether the new definition of an overload takes calls by the name that the old one leaves to
    ``later``, an overload that is tried after it.

    A call is looked at as so many arguments by position, and the names of those by keyword. Types
    decide only where no value is of both (``_are_apart``), so this may say yes where a call never
    fits both; it says no only where none does.
    """
    most = 1 + max(len(_by_position(each)) for each in (old, new, later))
    return any(_takes(old, new, later, given) for given in range(most + 1))


def _takes(old: FunctionSchema, new: FunctionSchema, later: FunctionSchema, given: int) -> bool:
    """The same of calls that give so many arguments by position."""
    fits = [_fits(each, given) for each in (new, later)]
    if fits[0] is None or fits[1] is None:
        return False
    for one, other in zip_longest(_by_position(new)[:given], _by_position(later)[:given]):
        if one is not None and other is not None and _are_apart(one.type, other.type):
            return False
    (needs, takes), (its_needs, its_takes) = fits[0], fits[1]
    names = {n for n in takes.keys() & its_takes.keys() if not _are_apart(takes[n], its_takes[n])}
    least = needs | its_needs
    if not least <= names:
        return False
    before = _fits(old, given)
    return before is None or not names <= before[1].keys() or not before[0] <= least


def _fits(schema: FunctionSchema, given: int) -> tuple[set[str], dict[str, Type]] | None:
    """The arguments that a call has to give by keyword beside so many by position, and those that
    it can; None where it cannot give so many.
    """
    positional = _by_position(schema)
    if given > len(positional) and not schema.is_vararg:
        return None
    taken = {each.name for each in positional[:given]}
    left = [each for each in schema.arguments if each.name not in taken]
    return {e.name for e in left if not e.has_default}, {e.name: e.type for e in left}


#: Types of which no value is one of another group.
_GROUPS = {
    "Tensor": "tensors",
    **dict.fromkeys(("str", "Device"), "texts"),
    **dict.fromkeys(("int", "SymInt", "float", "complex", "bool", "SymBool", "Scalar"), "numbers"),
}


def _are_apart(one: Type, other: Type) -> bool:
    """Whether no value is of both types."""
    groups = [_group(each) for each in (one, other)]
    return None not in groups and groups[0] != groups[1]


def _group(type: Type) -> str | None:
    if type.name == Type.LIST and type.size is None:  # a number stands for a list with a size
        return "lists"
    return _GROUPS.get(type.name)
