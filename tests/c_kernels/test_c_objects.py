"""Kernels in C that take and return handles, and that call operators."""

from __future__ import annotations

import pytest
from c_libraries import HEAD, SIGNATURE, compile_c
from kinds import INTERPRETERS, run_main

from mdispatch import config

SOURCE = (
    HEAD
    + f"#define KERNEL(name) static int name{SIGNATURE}\n"
    + """
#include <stdatomic.h>

/* A class of C: a number that interpreters share. */
static _Atomic int living;
static md_object *first;
static void end_of_counter(void *payload) {
    free(payload);
    atomic_fetch_sub(&living, 1);
}
KERNEL(counter) {
    int64_t *value = malloc(sizeof *value);
    *value = args[0].as.integer;
    md_object *made = md_object_new(call, "shop.Counter", value, end_of_counter);
    if (!made) return MD_ERROR_MEMORY;
    atomic_fetch_add(&living, 1);
    results[0] = md_of_object(made);
    return 0;
}
KERNEL(add) {
    int64_t *value = md_payload(&args[0], "shop.Counter");
    if (!value) return call->fail(call, MD_ERROR_TYPE, "no counter");
    results[0] = md_of_int(__atomic_add_fetch(value, args[1].as.integer, __ATOMIC_SEQ_CST));
    return 0;
}
KERNEL(count_living) {
    results[0] = md_of_int(atomic_load(&living));
    return 0;
}
/* Keeps one object beyond its calls. */
KERNEL(keep) {
    md_object *before = first;
    first = args[0].kind == MD_OBJECT ? args[0].as.object : NULL;
    if (first) first->hold(first);
    if (before) before->let_go(before);
    return 0;
}
KERNEL(kept) {
    if (first) results[0] = md_of_object(first);
    return 0;
}
KERNEL(about) {
    md_value *items = call->alloc(call, 3 * sizeof *items);
    items[0] = md_of_int(args[0].kind);
    if (args[0].kind == MD_OBJECT) {
        const char *name = args[0].as.object->class_name;
        items[1] = md_of_str(name, strlen(name));
        items[2] = md_of_bool(args[0].as.object->payload != NULL);
    } else {
        items[1] = items[2] = md_of_none();
    }
    results[0] = md_of_list(items, 3);
    return 0;
}
/* Calls the operator that is named, with the list of arguments. */
KERNEL(forward) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)args[0].as.text.size, args[0].as.text.data);
    return md_call_op(call, name, args[1].as.list.items, args[1].as.list.size, results, 1);
}
KERNEL(try_it) {
    md_value out;
    int rc = md_call_op(call, "shop::forward", args, n, &out, 1);
    results[0] = rc ? md_of_int(rc) : out;
    return 0;
}
KERNEL(other_words) {
    md_value out;
    if (md_call_op(call, "shop::forward", args, n, &out, 1))
        return call->fail(call, MD_ERROR_INDEX, "it did not work");
    return 0;
}
KERNEL(old_caller) {
    const uint32_t minor = call->minor; /* a copy of the call would be no call */
    call->minor = 0;
    const int refused = md_call_op(call, "shop::forward", args, n, results, 1);
    call->minor = minor;
    return refused ? call->fail(call, MD_ERROR_NOT_IMPLEMENTED, "refused") : 0;
}
MDISPATCH_LIBRARY(shop, m) {
    const int32_t key = MD_KEY_CompositeExplicitAutograd;
    md_def(m, "counter(int start) -> shop.Counter");
    md_def(m, "add(shop.Counter c, int n) -> int");
    md_def(m, "count_living() -> int");
    md_def(m, "keep(Any object) -> ()");
    md_def(m, "kept() -> Any");
    md_def(m, "about(Any object) -> Any");
    md_def(m, "about.typed(shop.Tokenizer object) -> Any");
    md_def(m, "forward(str name, Any args) -> Any");
    md_def(m, "forward.released(str name, Any args) -> Any");
    md_def(m, "try_it(str name, Any args) -> Any");
    md_def(m, "other_words(str name, Any args) -> Any");
    md_def(m, "old_caller(str name, Any args) -> Any");
    md_impl(m, "counter", key, counter);
    md_impl_with(m, "add", key, add, NULL, NULL, MD_RELEASE_GIL);
    md_impl(m, "count_living", key, count_living);
    md_impl_with(m, "keep", key, keep, NULL, NULL, MD_RELEASE_GIL);
    md_impl(m, "kept", key, kept);
    md_impl(m, "about", key, about);
    md_impl(m, "about.typed", key, about);
    md_impl(m, "forward", key, forward);
    md_impl_with(m, "forward.released", key, forward, NULL, NULL, MD_RELEASE_GIL);
    md_impl(m, "try_it", key, try_it);
    md_impl(m, "other_words", key, other_words);
    md_impl(m, "old_caller", key, old_caller);
}
"""
).replace("#include <stdlib.h>", "#include <stdio.h>\n#include <stdlib.h>")

MAIN = """
import gc, pickle, tempfile
from mdispatch.facts.native import c_kernels as native
path, kind, *rest = args
folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent))
md.ops.load_library(path)
shop = md.ops.shop
def counts():
    gc.collect()
    return [row[3] for row in native.object_list()]
def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def runs(*texts):
    return results([Worker(kind, text, index, folder) for index, text in enumerate(texts)])
"""


@pytest.fixture(scope="module")
def objects_path(tmp_path_factory) -> str:
    return compile_c(tmp_path_factory.mktemp("objects"), "objects", SOURCE, *config.cflags())


def main(text: str, path: str, kind: str) -> dict:
    got = run_main(MAIN + text, path, kind)
    return {name: got[name] for name in got if name not in ("returncode", "stdout", "stderr")}


@pytest.mark.needs("across")
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_interpreters_share_an_object_of_c(kind, objects_path):
    got = main(
        """
counter = shop.counter(5)
sent = pickle.dumps(counter)
[got] = runs(f'''
import gc, pickle
import mdispatch as md
counter = pickle.loads({sent!r})
again = pickle.loads({sent!r})
own = md.ops.shop.counter(100)
report(added=[md.ops.shop.add(counter, 1), md.ops.shop.add(again, 1)], same=again is counter,
       own=md.ops.shop.add(own, 1), living=md.ops.shop.count_living(),
       home=[counter.is_home, counter.class_name])
del own
''')
text = outcome(counter.open)
total, living = shop.add(counter, 10), shop.count_living()
counter.close()
del counter
done(**got, total=total, left=living, text=text.split(":")[0], counts=counts(),
     after=shop.count_living(), wrong=outcome(shop.add, 3, 4).split("(")[0])
""",
        objects_path,
        kind,
    )
    assert got == {
        "added": [6, 7],
        "same": True,
        "own": 101,
        "living": 2,
        "home": [False, "shop.Counter"],
        "total": 17,
        "left": 1,
        "text": "InvalidArgumentError",
        "counts": [],
        "after": 0,
        "wrong": "ArgumentError: shop::add",
    }


@pytest.mark.needs("across")
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_a_kernel_takes_keeps_and_returns_handles_of_objects_of_python(kind, objects_path):
    got = main(
        """
class Box:
    def give(self):
        return 7
    def __del__(self):
        ended.append(1)
ended = []
@md.register_class("shop.Tokenizer", methods={"vocab": "() -> int"})
class Tokenizer:
    def vocab(self):
        return 3
handle = md.share(Box())
about = [shop.about(handle), shop.about.typed(Tokenizer()), shop.about(md.share(Tokenizer())),
         shop.about(1), outcome(shop.about, Box()).split(":")[0]]
shop.keep(handle)
kept = shop.kept() is handle
ended.clear()
del handle
alone = counts()
[got] = runs('''
import mdispatch as md
handle = md.ops.shop.kept()
report(given=handle.give(), about=md.ops.shop.about(handle), type_name=handle.type_name)
md.ops.shop.keep(None)   # without the GIL: whoever comes next drops the object at home
''')
shop.kept()
done(there=got, about=about, kept=kept, alone=alone, ended=ended, counts=counts())
""",
        objects_path,
        kind,
    )
    assert got == {
        "there": {"given": 7, "about": [8, "", False], "type_name": "an unregistered class"},
        "about": [
            [8, "", False],
            [8, "shop.Tokenizer", False],
            [8, "shop.Tokenizer", False],
            [2, None, None],
            "BoxingError",
        ],
        "kept": True,
        "alone": [1],
        "ended": [1],
        "counts": [],
    }


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_a_kernel_calls_operators_with_the_guards_of_its_caller(kind, objects_path):
    got = main(
        """
md.define("shop::scale", "(Any x, int n=2) -> Any")
md.impl("shop::scale", "default", lambda x, n: x * n)
md.define("shop::which", "(int n) -> str")
md.impl("shop::which", "default", lambda n: "default")
md.impl("shop::which", "Tracer", lambda n: "traced")
for each in ("shop::forward", "shop::forward.released"):
    md.impl(each, "Tracer", md.fallthrough_kernel)
md.define("shop::fail", "(str text) -> int")
def fail(text):
    raise LookupError(text)
md.impl("shop::fail", "default", fail)
BOTH = '''
import mdispatch as md
shop = md.ops.shop
def outcome(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
forward, released = shop.forward.default, shop.forward.released
with md.context.IncludeDispatchKeyGuard("Tracer"):
    guarded = [forward("shop::which", [1]), released("shop::which", [1])]
told = dict(
    values=[forward("shop::scale", [each]) for each in (3, "ab", b"c", [1, None], 2.5)],
    released=released("shop::scale", ["x", 3]),
    deep=forward("shop::forward", ["shop::scale", [4, 5]]),
    guarded=guarded,
    plain=forward("shop::which", [1]),
    raised=outcome(forward, "shop::fail", ["gone"]),
    without=shop.try_it("shop::fail", ["gone"]),
    with_words=outcome(shop.other_words, "shop::fail", ["gone"]),
    unknown=outcome(forward, "shop::nothing", []).split(";")[0],
    unfit=outcome(forward, "shop::which", ["a"]).split(",")[0],
    old=outcome(shop.old_caller, "shop::scale", [1]),
)
'''
names = {}
exec(textwrap.dedent(BOTH), names)
WORKER = '''
md.define("shop::scale", "(Any x, int n=2) -> Any")
md.impl("shop::scale", "default", lambda x, n: x * n)
md.define("shop::which", "(int n) -> str")
md.impl("shop::which", "default", lambda n: "default")
md.impl("shop::which", "Tracer", lambda n: "traced")
for each in ("shop::forward", "shop::forward.released"):
    md.impl(each, "Tracer", md.fallthrough_kernel)
md.define("shop::fail", "(str text) -> int")
def fail(text):
    raise LookupError(text)
md.impl("shop::fail", "default", fail)
'''
[there] = runs("import mdispatch as md\\n" + textwrap.dedent(WORKER) + textwrap.dedent(BOTH)
               + "\\nreport(**told)\\n")
done(here=names["told"], there=there, same=names["told"] == there)
""",
        objects_path,
        kind,
    )
    assert got["here"] == {
        "values": [6, "abab", b"cc", [1, None, 1, None], 5.0],
        "released": "xxx",
        "deep": 20,
        "guarded": ["traced", "traced"],
        "plain": "default",
        "raised": "LookupError: gone",
        "without": 9,
        "with_words": "IndexError: it did not work",
        "unknown": "OperatorNotFoundError: there is no operator shop::nothing",
        "unfit": "ArgumentError: shop::which() takes int for 'n'",
        "old": "NotImplementedError: refused",
    }
    assert got["same"]
