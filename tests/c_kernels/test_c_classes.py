"""Classes that a library in C registers: md_class."""

from __future__ import annotations

import pytest
from c_libraries import HEAD, SIGNATURE, compile_c
from kinds import INTERPRETERS, run_main

from mdispatch import config
from mdispatch.across.sharing import ObjectHandle

SOURCE = (
    HEAD
    + "#include <stdio.h>\n"
    + f"#define KERNEL(name) static int name{SIGNATURE}\n"
    + """
/* A sum that interpreters share; its kernels may run at the same time. */
static int64_t living;
static void end_of_index(void *payload) {
    free(payload);
    __atomic_sub_fetch(&living, 1, __ATOMIC_SEQ_CST);
}
KERNEL(make) {
    int64_t *sum = calloc(1, sizeof *sum);
    md_object *made = sum ? md_object_new(call, "shop.Index", sum, end_of_index) : NULL;
    if (!made) return MD_ERROR_MEMORY;
    __atomic_add_fetch(&living, 1, __ATOMIC_SEQ_CST);
    results[0] = md_of_object(made);
    return 0;
}
KERNEL(count_living) {
    results[0] = md_of_int(__atomic_load_n(&living, __ATOMIC_SEQ_CST));
    return 0;
}
KERNEL(add) {
    int64_t *sum = md_payload(&args[0], "shop.Index");
    if (!sum) return call->fail(call, MD_ERROR_TYPE, "no index");
    results[0] = md_of_int(__atomic_add_fetch(sum, args[1].as.integer, __ATOMIC_SEQ_CST));
    return 0;
}
KERNEL(total) {
    int64_t *sum = md_payload(&args[0], "shop.Index");
    if (!sum) return call->fail(call, MD_ERROR_TYPE, "no index");
    results[0] = md_of_int(__atomic_load_n(sum, __ATOMIC_SEQ_CST) * *(int *)call->user);
    return 0;
}
KERNEL(same) {
    results[0] = args[0];
    return 0;
}
static int factor = 10;
static const md_method methods[] = {
    MD_METHOD("add(int n=1) -> int", add),
    MD_METHOD_WITH("total( ) -> int", total, &factor, NULL, MD_RELEASE_GIL),
    MD_METHOD("same(shop.Index? other=None, *, int[] more=[]) -> shop.Index", same),
};
MDISPATCH_LIBRARY(shop, m) {
    BEFORE
    md_class(m, "Index", methods, 3);
    md_def(m, "make() -> shop.Index");
    md_def(m, "count_living() -> int");
    md_impl(m, "make", MD_KEY_CompositeExplicitAutograd, make);
    md_impl(m, "count_living", MD_KEY_CompositeExplicitAutograd, count_living);
    AFTER
}
"""
)

MAIN = """
import gc, pickle, tempfile
path, *rest = args
def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def runs(kind, *texts):
    folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
    workers = [Worker(kind, text, index, folder) for index, text in enumerate(texts)]
    return results(workers)
def facts():
    found = md.default_registry().dispatcher.facts.registrations("shop::Index")[2]
    return [[each.text, each.where.rpartition("/")[2].partition(":")[0]] for each in found]
OTHER = '''
import mdispatch as md
class Index:
    def add(self, n): ...
    def total(self): ...
    def same(self, other, more): ...
METHODS = dict(add="(int n=1) -> int", total="() -> int",
               same="(shop.Index? other=None, *, int[] more=[]) -> shop.Index")
def register(methods=METHODS):
    try:
        md.register_class("shop.Index", methods=methods)(Index)
    except md.MdispatchError as error:
        told = [getattr(error, each, None) for each in ("methods_here", "methods_there")]
        return [type(error).__name__, str(error), *told]
'''
names = {}
exec(textwrap.dedent(OTHER), names)
register = names["register"]
"""

#: What the class's registration says; the schemas are in canonical form.
ADD = "shop::Index.add(shop.Index self, int n=1) -> int"
SAME = "shop::Index.same(shop.Index self, shop.Index? other=None, *, int[] more=[]) -> shop.Index"
TOTAL = "shop::Index.total(shop.Index self) -> int"
TEXT = "\n".join([ADD, SAME, TOTAL, "it is made in C"])


def compiled(folder, name="index", before="", after="") -> str:
    text = SOURCE.replace("BEFORE", before).replace("AFTER", after)
    return compile_c(folder, name, text, *config.cflags())


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return compiled(tmp_path_factory.mktemp("classes"))


def main(text: str, *args: str) -> dict:
    got = run_main(MAIN + text, *args)
    return {name: got[name] for name in got if name not in ("returncode", "stdout", "stderr")}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_interpreters_call_the_methods_of_one_object(kind, path):
    got = main(
        """
library = md.ops.load_library(path)
index = md.ops.shop.make()
sent = pickle.dumps(index)
WORKER = f'''
import pickle
index = pickle.loads({sent!r})
for _ in range(500):
    index.add(2)
import mdispatch as md
seen = []
with md.observe_calls(lambda call: seen.append(call.operator)):
    last = index.total() > 0
try:
    index.nothing
except AttributeError as error:
    nothing = str(error).partition(":")[0]
report(seen=seen, last=last, nothing=nothing, same=index.same() is index,
       living=md.ops.shop.count_living())
'''
told = runs(rest[0], *[WORKER] * 4)
total = index.total()
index.close()
del index
gc.collect()
done(told=told[0], equal=told.count(told[0]), total=total, left=md.ops.shop.count_living(),
     classes=library.classes)
""",
        path,
        kind,
    )
    assert got == {
        "told": {
            "seen": ["shop::Index.total"],
            "last": True,
            "nothing": "class shop.Index has no method 'nothing' that is registered",
            "same": True,
            "living": 1,
        },
        "equal": 4,
        "total": 40000,
        "left": 0,
        "classes": ("shop.Index",),
    }


@pytest.mark.parametrize("kind", [*INTERPRETERS, "subprocess"])
def test_who_registers_another_class_is_refused_with_both_places(kind, path):
    got = main(
        """
library = md.ops.load_library(path)
WORKER = textwrap.dedent(OTHER) + textwrap.dedent('''
CHANGED = dict(METHODS, total="() -> float")
report(python=register(), methods=register(CHANGED))
''')
[told] = runs(rest[0], WORKER)
done(**told, there=facts())
""",
        path,
        kind,
    )
    for name, line in (("python", "it is made in C"), ("methods", TOTAL)):
        error, words, here, there = got[name]
        assert error == "ClassMismatchError"
        assert "class shop.Index is made in Python here, unlike in" in words
        assert f"  only there: {line}" in words
        assert "  here:  " in words
        assert "/index.c:" in words.partition("  there: ")[2]
        assert there == (ADD, SAME, TOTAL)
        assert here == (ADD, SAME, TOTAL if name == "python" else TOTAL[:-3] + "float")
    assert got["there"] == [[TEXT, "index.c"]]


def test_another_process_loads_the_library_and_has_objects_of_its_own(path):
    got = main(
        """
library = md.ops.load_library(path)
index = md.ops.shop.make()
index.add(3)
[told] = runs("subprocess", f'''
import mdispatch as md
library = md.ops.load_library({path!r})
index = md.ops.shop.make()
report(sums=[index.add(4), index.total()], living=md.ops.shop.count_living(),
       classes=library.classes, role=md.register_or_verify())
''')
done(**told, here=index.total())
""",
        path,
    )
    assert got == {
        "sums": [4, 40],
        "living": 1,
        "classes": ("shop.Index",),
        "role": "verify",
        "here": 30,
    }


def test_a_library_with_another_class_of_the_name_is_refused_where_it_is_verified(tmp_path, path):
    text = SOURCE.replace("methods, 3)", "methods, 2)").replace("BEFORE", "").replace("AFTER", "")
    fewer = compile_c(tmp_path, "fewer", text, *config.cflags())
    got = main(
        """
library = md.ops.load_library(path)
[told] = runs("subprocess", f'''
import mdispatch as md
try:
    md.ops.load_library({rest[0]!r})
except md.errors.ClassMismatchError as error:
    report(words=str(error))
''')
done(**told)
""",
        path,
        fewer,
    )
    assert "class shop.Index has other methods here than in" in got["words"]
    assert f"  only there: {SAME}" in got["words"]
    assert "/fewer.c:" in got["words"]
    assert "/index.c:" in got["words"]


def test_a_class_is_there_once_and_ends_with_its_library(path):
    got = main(
        """
library = md.ops.load_library(path)
loaded = facts()
twice = register()
shown = [md.ops.shop.Index.total.schema, md.default_registry().why("shop::Index.total")]
index, add = md.ops.shop.make(), md.ops.shop.Index.add
called = [add(index, 5), index.total(), outcome(index.add, "a"), outcome(add, 3)]
library.close()
closed = [facts(), outcome(lambda: index.add), md.default_registry().operators()]
library = md.ops.load_library(path)
again = [facts() == loaded, index.add(1)]
library.close()
python = register()
done(loaded=loaded, twice=twice[:2], shown=[str(each) for each in shown], called=called,
     closed=closed, again=again, python=python, after=facts()[0][0])
""",
        path,
    )
    assert got["loaded"] == [[TEXT, "index.c"]]
    name, words = got["twice"]
    assert name == "DuplicateRegistrationError"
    assert "/index.c:" in words
    schema, why = got["shown"]
    assert schema == TOTAL
    assert "c:libindex.so:total" in why
    assert got["called"][:2] == [5, 50]
    assert got["called"][2].startswith("ArgumentError: shop::Index.add() takes int for 'n'")
    assert got["called"][3].startswith("ArgumentError: shop::Index.add() takes shop.Index")
    assert got["closed"][::2] == [[], []]
    assert got["closed"][1].startswith("AttributeError: class shop.Index has no method 'add'")
    assert got["again"] == [True, 6]
    assert got["python"] is None
    assert got["after"] == "\n".join([ADD, SAME, TOTAL])


def test_fakes_and_kernels_at_other_keys_hold_for_methods(path):
    got = main(
        """
md.ops.load_library(path)
index = md.ops.shop.make()
md.impl("shop::Index.add", "Tracer", lambda self, n: -n)
md.define("shop::sum_up", "(shop.Index[] all) -> int")
md.impl("shop::sum_up", "default", lambda all: sum(each.total() for each in all))
with md.context.IncludeDispatchKeyGuard("Tracer"):
    traced = index.add(4)
index.add(2)
done(traced=traced, sum=md.ops.shop.sum_up([index, index.same()]),
     wrong=outcome(md.ops.shop.sum_up, [index, 1]).partition(":")[0])
""",
        path,
    )
    assert got == {"traced": -4, "sum": 40, "wrong": "ArgumentError"}


def test_a_class_belongs_to_the_registry_that_loads_its_library(path):
    got = main(
        """
registry = md.Registry.create()
registry.ops.load_library(path)
index = registry.ops.shop.make()
done(sums=[index.add(1), index.total()], default=md.default_registry().operators())
""",
        path,
    )
    assert got == {"sums": [1, 10], "default": []}


def method(*schemas: str) -> str:
    """Registers the class shop.Other."""
    made = ", ".join(f'MD_METHOD("{each}", add)' for each in schemas)
    return f'const md_method b[] = {{{made}}}; md_class(m, "Other", b, {len(schemas)});'


BAD = {
    'md_class(m, "2nd", NULL, 0);': "'2nd' is no name of a class in namespace shop",
    "md_class(m, NULL, NULL, 0);": "'' is no name of a class",
    'md_class(m, "Other", NULL, 1);': "class shop.Other has no array of methods",
    method("f() -> int").replace(
        "add", "NULL"
    ): "the method f of class shop.Other needs a function",
    method("f()"): "'f()' is no method of class shop.Other: write it without `self`",
    method("a::f() -> int"): "'a::f() -> int' is no method of class shop.Other",
    method("f() -> int", "g() -> int", "f(int n) -> int"): "has the method shop::Other.f twice",
    method("_f() -> int"): "class shop.Other cannot have the method _f: a handle has such a name",
    method("f(nothing x) -> int"): "SchemaSyntaxError",
    'md_class(m, "Index", NULL, 0);': "DuplicateRegistrationError",
    'm->minor = 1; md_class(m, "Other", NULL, 0);': "this mdispatch has no md_class()",
}


@pytest.mark.thorough
def test_what_is_no_class_is_refused_and_nothing_stays(tmp_path, path):
    paths = [compiled(tmp_path, f"bad{i}", after=each) for i, each in enumerate(BAD)]
    got = main(
        """
told = [outcome(md.ops.load_library, each) for each in rest]
dispatcher = md.default_registry().dispatcher
left = [dispatcher.facts.registrations(each)[2] for each in
        ("shop", "shop::Index", "shop::Other", "shop::Index.add", "shop::make", "shop::Other.f")]
md.ops.load_library(path)
done(told=told, left=left, fine=md.ops.shop.make().add(1))
""",
        path,
        *paths,
    )
    for told, words in zip(got["told"], BAD.values(), strict=True):
        assert words in told
    assert (got["left"], got["fine"]) == ([[]] * 6, 1)


def test_no_method_has_a_name_that_handles_have_for_themselves(tmp_path):
    handles = {each for each in dir(ObjectHandle) if not each.startswith("_")}
    block = """
        char text[64];
        snprintf(text, sizeof text, "%s() -> int", getenv("METHOD"));
        const md_method b[] = {MD_METHOD(text, add)};
        md_class(m, "Other", b, 1);
    """
    got = main(
        """
import os
told = {}
for name in rest:
    os.environ["METHOD"] = name
    told[name] = outcome(lambda: md.ops.load_library(path).close())
done(told=told)
""",
        compiled(tmp_path, after=block),
        *sorted(handles),
        "size",  # last: once a block has succeeded it does not run again
    )
    assert len(handles) > 5
    assert got["told"].pop("size") is None
    for name, told in got["told"].items():
        assert f"class shop.Other cannot have the method {name}: " in told
