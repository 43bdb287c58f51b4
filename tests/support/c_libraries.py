"""Libraries in C for the tests: sources by name, compiled when a test needs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from patience import limit

from mdispatch import config

HEAD = '#include "mdispatch_kernels.h"\n#include <stdlib.h>\n'
SIGNATURE = "(md_call *call, const md_value *args, size_t n, md_value *results, size_t n_results)"

BOXES = """
#include <stdatomic.h>
#include <time.h>

/* A deep copy, in memory of the call. */
static int copy(md_call *call, const md_value *from, md_value *to) {
    *to = *from;
    if (from->kind == MD_STR || from->kind == MD_BYTES) {
        char *data = call->alloc(call, from->as.text.size);
        if (!data) return MD_ERROR_MEMORY;
        memcpy(data, from->as.text.data, from->as.text.size);
        to->as.text.data = data;
    }
    if (from->kind == MD_LIST) {
        to->as.list.items = call->alloc(call, from->as.list.size * sizeof(md_value));
        if (!to->as.list.items) return MD_ERROR_MEMORY;
        for (size_t i = 0; i < from->as.list.size; i++) {
            int rc = copy(call, &from->as.list.items[i], &to->as.list.items[i]);
            if (rc) return rc;
        }
    }
    return 0;
}
KERNEL(echo) {
    for (size_t i = 0; i < n_results; i++) {
        int rc = copy(call, &args[i], &results[i]);
        if (rc) return rc;
    }
    return 0;
}
KERNEL(kinds) {
    md_value *items = call->alloc(call, (n + 1) * sizeof *items);
    for (size_t i = 0; i < n; i++) items[i] = md_of_int(args[i].kind);
    results[0] = md_of_list(items, n);
    return 0;
}
KERNEL(same) {
    results[0] = args[0];
    return 0;
}
static void copy_elements(const md_buffer *x, md_buffer *y, int dim, const char *from, char *to) {
    if (dim == x->ndim) {
        memcpy(to, from, x->bits / 8);
        return;
    }
    for (int64_t i = 0; i < x->shape[dim]; i++)
        copy_elements(x, y, dim + 1, from + i * x->strides[dim], to + i * y->strides[dim]);
}
KERNEL(clone) {
    const md_buffer *x = args[0].as.buffer;
    md_buffer *y = call->buffer(call, x->code, x->bits, x->ndim, x->shape);
    if (!y) return MD_ERROR_MEMORY;
    copy_elements(x, y, 0, x->data, y->data);
    results[0] = md_of_buffer(y);
    if (n_results > 1) results[1] = results[0];
    return 0;
}
KERNEL(describe) {
    const md_buffer *x = args[0].as.buffer;
    int count = 5 + 2 * x->ndim, at = 5;
    md_value *items = call->alloc(call, count * sizeof *items);
    items[0] = md_of_int(x->code);
    items[1] = md_of_int(x->bits);
    items[2] = md_of_int(x->device);
    items[3] = md_of_int(x->flags);
    items[4] = md_of_int(x->ndim);
    for (int i = 0; i < x->ndim; i++) items[at++] = md_of_int(x->shape[i]);
    for (int i = 0; i < x->ndim; i++) items[at++] = md_of_int(x->strides[i]);
    results[0] = md_of_list(items, count);
    return 0;
}
KERNEL(fill) {
    memset(args[0].as.buffer->data, (int)args[1].as.integer, args[0].as.buffer->shape[0]);
    results[0] = args[0];
    return 0;
}
KERNEL(fail) {
    int code = (int)args[0].as.integer;
    if (args[1].kind == MD_NONE) return code;
    return call->fail(call, code, "%s", args[1].as.text.data);
}
static md_buffer elsewhere;
KERNEL(lie) {
    int what = (int)args[0].as.integer;
    const int64_t shape[] = {1ll << 40, 1ll << 40};
    if (what == 0) results[0].kind = 99;
    if (what == 1) results[0] = md_of_str("\\xff\\xfe", 2);
    if (what == 2) results[0] = md_of_buffer(&elsewhere);
    if (what == 3) results[0] = md_of_list(NULL, 3);
    if (what == 4) results[0] = md_of_list(&results[0], 1); /* a list in itself */
    if (what == 5) results[0] = md_of_bytes(NULL, 5);
    if (what == 6) return call->buffer(call, MD_DTYPE_FLOAT, 7, 1, shape) ? 0 : -1;
    if (what == 7) return call->buffer(call, MD_DTYPE_FLOAT, 64, 2, shape) ? 0 : -1;
    if (what == 8) return call->alloc(call, (size_t)-1) ? 0 : MD_ERROR_MEMORY;
    if (what == 9) results[0] = md_of_str(NULL, 0);
    if (what == 10) call->fail(call, MD_ERROR_VALUE, "what was tried first");
    if (what == 10) return call->alloc(call, (size_t)-1) ? 0 : MD_ERROR_MEMORY;
    return 0;
}
/* Returns when as many are in it as it was told, or after 30 s: whether they met. */
static atomic_int arrived;
KERNEL(meet) {
    int wanted = (int)args[0].as.integer, mine = atomic_fetch_add(&arrived, 1);
    int until = (mine / wanted + 1) * wanted;
    struct timespec now, pause = {0, 100000};
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t end = now.tv_sec + 30;
    while (atomic_load(&arrived) < until && now.tv_sec < end) {
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
    results[0] = md_of_bool(atomic_load(&arrived) >= until);
    return 0;
}
MDISPATCH_LIBRARY(boxes, m) {
    md_def(m, "echo(Any x) -> Any");
    md_def(m, "two(Any x, Any y) -> (Any, Any)");
    md_def(m, "typed(int i, float f, bool b, str s, int[] l, float? n=None, *, str k=\\"k\\", "
              "bool[2] bs=[True, False]) -> (int, float, bool, str, int[], float?, str, bool[])");
    md_def(m, "none(Any x) -> ()");
    md_def(m, "kinds(Any a, Any b, Any c) -> int[]");
    md_def(m, "same(Tensor(a) x) -> Tensor(a)");
    md_def(m, "pick(Tensor(a)? x) -> Tensor(a)?");
    md_def(m, "list(Tensor[] xs) -> Tensor[]");
    md_def(m, "clone(Tensor x) -> Tensor");
    md_def(m, "twice(Tensor x) -> (Tensor, Tensor)");
    md_def(m, "describe(Tensor x) -> int[]");
    md_def(m, "fill_(Tensor(a!) x, int value) -> Tensor(a!)");
    md_def(m, "fail(int code, str? text) -> ()");
    md_def(m, "lie(int what) -> Any");
    md_def(m, "meet(int n) -> bool");
    md_def(m, "meet.released(int n, *, bool released) -> bool");
    const int32_t key = MD_KEY_CompositeExplicitAutograd;
    const char *echoes[] = {"echo", "two", "typed", "none", "list"};
    for (int i = 0; i < 5; i++) md_impl(m, echoes[i], key, echo);
    md_impl(m, "kinds", key, kinds);
    md_impl(m, "same", key, same);
    md_impl(m, "pick", key, same);
    md_impl(m, "clone", key, clone);
    md_impl(m, "twice", key, clone);
    md_impl(m, "describe", key, describe);
    md_impl(m, "fill_", key, fill);
    md_impl(m, "fail", key, fail);
    md_impl(m, "lie", key, lie);
    md_impl(m, "meet", key, meet);
    md_impl_with(m, "meet.released", key, meet, NULL, NULL, MD_RELEASE_GIL);
}
"""

ONE = "KERNEL(one) {\n    results[0] = md_of_int(1);\n    return 0;\n}\n"

SOURCES = {
    "boxes": BOXES,
    "part": ONE + 'MDISPATCH_FRAGMENT(shop, m) {\n    md_def(m, "first() -> int");\n'
    '    md_impl(m, "first", MD_KEY_CompositeExplicitAutograd, one);\n'
    '    md_def(m, "taken() -> int");\n}\n',
    "no_block": "int nothing;\n",
    "no_schema": 'MDISPATCH_LIBRARY(shop, m) {\n    md_def(m, "f(Tensr x) -> Tensor");\n}\n',
    "refuses": 'MDISPATCH_LIBRARY(shop, m) {\n    md_def(m, "f() -> int");\n'
    '    md_refuse(m, "no such device");\n}\n',
    "other_abi": "MD_EXPORTED const md_library_block mdispatch_library;\n"
    "const md_library_block mdispatch_library = {MD_KERNEL_ABI + 1, MD_DEF_LIBRARY, "
    '"shop", "x.c:1", 0};\n',
    "kernels_only": ONE + "MDISPATCH_FRAGMENT(shop, m) {\n"
    '    md_impl(m, "scale", MD_KEY_CPU, one);\n}\n',
    "reserved": 'MDISPATCH_LIBRARY(prim, m) {\n    md_def(m, "f() -> int");\n}\n',
    "other_key": ONE + 'MDISPATCH_FRAGMENT(shop, m) {\n    md_impl(m, "scale", 48, one);\n}\n',
}


def compile_c(folder: Path, name: str, source: str, *flags: str, shared: bool = True) -> str:
    """Compiles a source text in C. Returns the path of the library."""
    file = folder / f"{name}.c"
    file.write_text(source)
    out = folder / (f"lib{name}.so" if shared else name)
    kind = ["-shared", "-fPIC"] if shared else []
    warn = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run(
        [*compiler, *warn, "-O1", "-g", "-pthread", *kind, "-o", str(out), str(file), *flags],
        check=True,
        timeout=limit(120),
    )
    return str(out)


def library(folder: Path, name: str) -> str:
    """One of the libraries above."""
    text = HEAD + f"#define KERNEL(name) static int name{SIGNATURE}\n" + SOURCES[name]
    return compile_c(folder, name, text, *config.cflags())
