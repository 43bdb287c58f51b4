"""Promises about registrations other than schemas and kernels, in the main interpreter and in
workers: held names, tags, alias analysis.
"""

from __future__ import annotations

import pytest
from kinds import KINDS, THREAD, run_main
from runs import in_another_run

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds
from mdispatch.facts.differing import DIFFERS


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


def says(word):
    return lambda *args: word


def there(registry):
    """The kind, name and key of every registration."""
    _, _, found = registry.dispatcher.facts.registrations()
    return sorted((kinds.kind_of(f.kind).name, f.name, md.DispatchKey(f.key).name) for f in found)


def everything(registry):
    """All that a refused registration leaves unchanged: registrations, versions, and this
    interpreter's state. A worker that differs tells so in a note.
    """
    _, _, found = registry.dispatcher.facts.registrations()
    found = [fact for fact in found if fact.name != DIFFERS]
    versions = {fact.name: registry.dispatcher.facts.registrations(fact.name)[:2] for fact in found}
    entries = {name: (entry, entry._state) for name, entry in registry.dispatcher.entries.items()}
    kernels = {name: dict(entry.kernels) for name, entry in registry.dispatcher.entries.items()}
    overloads = {
        name: list(known) for name, known in registry.dispatcher._overloads.items() if known
    }
    signatures = set(registry.dispatcher.names_with_signatures)
    return (
        found,
        versions,
        entries,
        kernels,
        overloads,
        signatures,
        registry.dispatcher.fallbacks.kernels,
    )


# --- held names -----------------------------------------------------------------------------------


def test_a_held_name_is_there_without_being_an_operator(registry, lib):
    assert lib.register_name("f") == lib.register_name("s::f") == "s::f"
    assert lib.register_name("f.out") == "s::f.out"
    assert there(registry)[1:] == [("name", "s::f", "Undefined")] * 2 + [
        ("name", "s::f.out", "Undefined")
    ]
    assert [fact.kind for fact in registry.registrations("s::f")] == [kinds.NAME] * 2
    assert all(f.where.startswith(f"{__file__}:") for f in registry.registrations("s::f"))
    assert registry.operators() == registry.dangling_implementations() == []
    assert "name held at" in registry.dump("s::f")
    with pytest.raises(errors.OperatorNotFoundError):
        registry.ops.s.f  # noqa: B018


def test_a_name_is_held_until_its_library_closes_beside_definition_and_kernels(registry, lib):
    holder = md.Library("s", "FRAGMENT", registry=registry)
    holder.register_name("f")
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("kernel"), "CPU")
    f = registry.ops.s.f.default
    holder.close()
    assert [kind for kind, _, _ in there(registry)] == ["def", "impl", "library"]
    assert f(CPU) == "kernel"
    holder = md.Library("s", "IMPL", registry=registry)
    holder.register_name("f")
    lib.close()
    assert there(registry) == [("name", "s::f", "Undefined")]
    with pytest.raises(errors.OperatorGoneError):
        f(CPU)
    holder.close()
    assert there(registry) == []


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("", errors.InvalidNameError),
        ("a b", errors.InvalidNameError),
        ("f.default", errors.InvalidNameError),
        ("a::b::c", errors.InvalidNameError),
        (5, errors.InvalidNameError),
        (None, errors.InvalidNameError),
        ("t::f", errors.InvalidArgumentError),
    ],
)
def test_what_is_no_name_of_the_namespace_is_not_held(registry, lib, name, cls):
    before = everything(registry)
    with pytest.raises(cls):
        lib.register_name(name)
    assert everything(registry) == before


def test_a_closed_library_holds_no_names(registry, lib):
    lib.close()
    with pytest.raises(errors.LibraryClosedError):
        lib.register_name("f")
    assert there(registry) == []


def test_a_worker_holds_the_names_that_the_main_interpreter_holds(registry, lib, mine):
    lib.register_name("f")
    before = everything(registry)
    assert mine.register_name("f") == mine.register_name("f") == "s::f"
    mine.close()
    assert everything(registry) == before


def test_a_worker_that_holds_another_name_hears_so(registry, lib, mine):
    lib.register_name("scale")
    lib.define("f(Tensor x) -> str")
    before = everything(registry)
    for name, near in (("scael", ("s::scale",)), ("f", None)):
        with pytest.raises(errors.NameMismatchError, match=f"register the name s::{name}") as found:
            mine.register_name(name)
        error = found.value
        assert (error.kind, error.name, error.key) == ("name", f"s::{name}", "")
        assert error.here.startswith(f"{__file__}:")
        assert near in (None, error.nearest)
    assert everything(registry) == before


HOLDING = """
import mdispatch as md
lib = md.Library("held", "DEF")
lib.register_name("f")
if {also}:
    lib.register_name("only_there")
"""

WORKER = """
import mdispatch as md
seen = []
for also in (False, True):
    try:
        exec(compile({module!r}.format(also=also), "<holding module>", "exec"), {{"__name__": "m"}})
        seen.append("held")
    except md.errors.VerificationError as error:
        seen.append((type(error).__name__, error.kind, error.name))
report(seen=seen, kept=[fact.where for fact in md.default_registry().registrations("held::f")])
"""


@pytest.mark.waits
@pytest.mark.parametrize("kind", KINDS)
def test_in_workers_of_every_kind_names_are_held_or_differ(kind, tmp_path):
    got = run_main(
        """
        kind, folder, module, worker = args
        code = compile(module.format(also=False), "<holding module>", "exec")
        exec(code, {"__name__": "m"})
        # Two threads would open the one library of this interpreter again at the same time.
        count = 1 if kind == THREAD else 2
        done(seen=results(start(kind, worker, count, Path(folder))))
        """,
        kind,
        str(tmp_path),
        HOLDING,
        WORKER.format(module=HOLDING),
    )
    differs = ("NameMismatchError", "name", "held::only_there")
    for result in got["seen"]:
        assert result["kept"] == ["<m: holding module>:4"]
        assert result["seen"] == ["held", "held" if kind == THREAD else differs]


# --- attributes -----------------------------------------------------------------------------------


def test_tags_and_alias_analysis_are_kept_with_the_definition(registry, lib):
    lib.define("f(Tensor x) -> str", tags=("b", "a", "b"), alias_analysis="CONSERVATIVE")
    lib.define("g(Tensor x) -> str", tags="one", alias_analysis="FROM_SCHEMA")
    lib.define("h(Tensor x) -> str")
    assert registry.ops.s.f.default.tags == ("a", "b")
    assert registry.ops.s.g.default.tags == ("one",)
    assert registry.ops.s.h.default.tags == ()
    (f,), (g,), (h,) = (registry.registrations(f"s::{name}") for name in "fgh")
    assert (f.alias_analysis, g.alias_analysis) == ("CONSERVATIVE", "FROM_SCHEMA")
    assert (h.alias_analysis, h.tags) == ("FROM_SCHEMA", ())
    assert "CONSERVATIVE" in registry.dump("s::f")
    assert "a, b" in registry.dump("s::f")


@pytest.mark.parametrize(
    "attributes",
    [
        {"tags": "a b"},
        {"tags": ["a", ""]},
        {"tags": ["a", 5]},
        {"tags": 5},
        {"tags": ["a\n"]},
        {"tags": "ä"},
        {"alias_analysis": "conservative"},
        {"alias_analysis": "PURE"},
        {"alias_analysis": 5},
    ],
    ids=repr,
)
def test_attributes_that_are_none_are_refused_and_nothing_is_defined(registry, lib, attributes):
    before = everything(registry)
    with pytest.raises(errors.InvalidArgumentError):
        lib.define("f(Tensor x) -> str", **attributes)
    assert everything(registry) == before


ATTRIBUTES = [
    {},
    {"tags": "a"},
    {"tags": ["a", "b"]},
    {"alias_analysis": "PURE_FUNCTION"},
    {"alias_analysis": "PURE_FUNCTION", "tags": ["b"]},
]


@pytest.mark.parametrize("main", ATTRIBUTES, ids=repr)
def test_a_worker_has_to_give_the_same_attributes_and_hears_both(registry, lib, mine, main):
    lib.define("f(Tensor x) -> str", **main)
    before = everything(registry)
    for given in ATTRIBUTES:
        for schema in ("f(Tensor x) -> str", "f( Tensor  x)->str"):
            if given == main:
                assert mine.define(schema, **given) == "s::f"
                continue
            with pytest.raises(errors.SchemaMismatchError) as caught:
                mine.define(schema, **given)
            error = caught.value
            assert (error.kind, error.name) == ("def", "s::f")
            assert error.schema_here == error.schema_there == "s::f(Tensor x) -> str"
            for place in (error.here, error.there):
                assert place.startswith(f"{__file__}:")
                assert place in str(error)
            assert error.here != error.there
            difference = str(error).partition("\n")[0]
            for attributes in (given, main):
                for word in (attributes.get("alias_analysis", ""), *attributes.get("tags", ())):
                    assert word in difference
    assert everything(registry) == before


def test_the_order_of_tags_and_the_default_in_words_are_no_difference(lib, mine):
    lib.define("f(Tensor x) -> str", tags=["b", "a"])
    lib.define("g(Tensor x) -> str", alias_analysis="FROM_SCHEMA")
    mine.define("f(Tensor x) -> str", tags=("a", "b", "b"), alias_analysis="FROM_SCHEMA")
    mine.define("g(Tensor x) -> str")


def test_a_worker_that_loads_its_module_again_compares_with_what_is_there_now(registry, worker):
    def in_this_run(where, **attributes):
        lib = md.Library("s", "DEF", registry=where, timeout=0)
        lib.define("f(Tensor x) -> str", **attributes)

    def open_again(where, **attributes):
        in_another_run(in_this_run)(where, **attributes)

    open_again(registry, tags="old")
    open_again(worker, tags="old")
    f = worker.ops.s.f.default
    open_again(registry, tags="new")
    with pytest.raises(errors.SchemaMismatchError, match=r"old.*new"):
        open_again(worker, tags="old")
    assert f.is_gone
    open_again(worker, tags="new")
    assert worker.ops.s.f.default.tags == ("new",)


def test_a_kernel_that_may_not_override_that_of_another_member_leaves_nothing(registry, lib):
    lib.define("f(Tensor x) -> str")
    facts = registry.dispatcher.facts
    facts.register(kinds.IMPL, md.DispatchKey.CPU, "s::f", "a kernel in C", "host.c:7")
    before = everything(registry)
    assert "s::f" not in registry.dispatcher.entries
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        lib.impl("f", says("cpu"), "CPU", allow_override=False)
    assert caught.value.first == "host.c:7"
    assert everything(registry) == before


def test_a_registry_says_what_this_interpreter_is_in_it(registry, worker):
    said = [(each.is_main, each.is_worker, each.elects) for each in (registry, worker)]
    assert said == [(True, False, False), (False, True, False)]


@pytest.mark.parametrize("named", ["by its name", "by itself"])
def test_a_worker_may_have_the_one_kernel_that_overrides_none(registry, worker, lib, mine, named):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("main"), "CPU", allow_override=False)
    op = "f" if named == "by its name" else worker.ops.s.f.default
    mine.impl(op, says("worker"), "CPU", allow_override=False)
    with pytest.raises(errors.DuplicateRegistrationError):
        mine.impl(op, says("second"), "CPU", allow_override=False)


def test_a_closed_library_of_fallbacks_refuses_one_and_changes_nothing(registry):
    wild = md.Library("_", "IMPL", registry=registry)
    wild.close()
    before = registry.dispatcher.facts.await_change(0, 0.0)[0], there(registry)
    with pytest.raises(errors.LibraryClosedError):
        wild.fallback(says("late"), "CPU")
    assert (registry.dispatcher.facts.await_change(0, 0.0)[0], there(registry)) == before
