/* ext.c - the binding of the contract for all sub-interpreters, in which cffi is not reliable.
 *
 * Multi-phase init, no state, no classes, no logic: ints, texts and tuples. The names and results
 * are those of mdispatch/facts/native/cffi_binding.py, the binding over cffi. Each function
 * releases the GIL (or the thread state) around a call that can take the lock or sleep.
 *
 * Some functions have no twin over cffi: interpreter_id(), which the choice of a binding needs;
 * run_signal_handlers(), caller() and fact(), which are about Python and not about the contract;
 * those for kernels in C (kernels.c, boxed.c); those for calls in other interpreters (visit.c) and
 * processes (wire.c); and those for the objects that interpreters share (object.c).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../mdispatch.h"
#include "boxed.h"
#include "gate.h"
#include "object.h"
#include "seam.h"
#include "visit.h"

enum { BUFFER = 8192 };

/* A buffer for packed records: on the stack while they fit there. */
struct buffer {
    char small[BUFFER];
    char *data;
    size_t cap;
};

static void buffer_init(struct buffer *b) {
    b->data = b->small;
    b->cap = sizeof b->small;
}

static void buffer_free(struct buffer *b) {
    if (b->data != b->small) PyMem_RawFree(b->data);
}

static int buffer_grow(struct buffer *b, size_t cap) {
    buffer_free(b);
    b->data = PyMem_RawMalloc(cap);
    b->cap = cap;
    if (b->data) return 0;
    buffer_init(b);
    PyErr_NoMemory();
    return -1;
}

/* Texts are UTF-8. The core may have cut one off inside a character: that one is shown, too. */
static PyObject *text_of(const char *p, uint32_t len) {
    return PyUnicode_DecodeUTF8(p, (Py_ssize_t)len, "replace");
}

/* A tuple of what was made for it; NULL when one of the parts is. In place of Py_BuildValue where
 * every registration and every wait makes one: reading the format takes longer than the tuple. */
static PyObject *tuple_of(PyObject *const *parts, int count) {
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; i < count; i++) {
        if (!parts[i]) Py_CLEAR(tuple);
    }
    for (int i = 0; i < count; i++) {
        if (tuple)
            PyTuple_SET_ITEM(tuple, i, parts[i]);
        else
            Py_XDECREF(parts[i]);
    }
    return tuple;
}

/* (ref, seq, kind, key, name, body, where, pid, interp) */
static PyObject *record_tuple(const char *p) {
    md_record r;
    memcpy(&r, p, sizeof r);
    const char *name = p + sizeof r, *body = name + r.name_len, *where = body + r.body_len;
    PyObject *parts[] = {
        PyLong_FromUnsignedLongLong(r.ref), PyLong_FromUnsignedLongLong(r.seq),
        PyLong_FromLong((long)r.kind),      PyLong_FromLong(r.key),
        text_of(name, r.name_len),          text_of(body, r.body_len),
        text_of(where, r.where_len),        PyLong_FromLong((long)r.pid),
        PyLong_FromLongLong(r.interp),
    };
    return tuple_of(parts, sizeof parts / sizeof *parts);
}

/* The bytes of an argument, a bytes or a str; they live as long as the argument. */
static int take_text(PyObject *text, const char **p, size_t *len) {
    Py_ssize_t size;
    if (PyUnicode_Check(text)) {
        *p = PyUnicode_AsUTF8AndSize(text, &size);
    } else {
        char *bytes = NULL;
        if (PyBytes_AsStringAndSize(text, &bytes, &size)) return -1;
        *p = bytes;
    }
    *len = (size_t)size;
    return *p ? 0 : -1;
}

/* Arguments that are numbers: a handle, member, kind, rule, key. */
static int take_numbers(PyObject *const *args, int count, uint64_t *out) {
    for (int i = 0; i < count; i++) {
        out[i] = (uint64_t)PyLong_AsUnsignedLongLongMask(args[i]);
        if (out[i] == (uint64_t)-1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static int has_count(const char *what, Py_ssize_t count, Py_ssize_t right) {
    if (count == right) return 1;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", what, right, count);
    return 0;
}

/* (status, record or None) */
static PyObject *status_and_record(int status, int has_record, const char *p) {
    PyObject *record = has_record ? record_tuple(p) : Py_NewRef(Py_None);
    return record ? Py_BuildValue("(iN)", status, record) : NULL;
}

static PyObject *ext_abi(PyObject *self, PyObject *args) {
    return PyLong_FromLong(md_abi());
}

static PyObject *ext_now(PyObject *self, PyObject *args) {
    return PyLong_FromLongLong(md_now());
}

static PyObject *ext_status_text(PyObject *self, PyObject *args) {
    int status;
    if (!PyArg_ParseTuple(args, "i", &status)) return NULL;
    return PyUnicode_FromString(md_status_text(status));
}

/* (status, handle). If the handle cannot be returned, nobody else could close it. */
static PyObject *status_and_handle(int status, md_registry reg) {
    PyObject *result = Py_BuildValue("(iK)", status, (unsigned long long)reg);
    if (!result && status == MD_OK) md_close(reg);
    return result;
}

static PyObject *made(PyObject *args, int (*make)(const char *, uint64_t, md_registry *)) {
    const char *name;
    unsigned long long capacity;
    md_registry reg = 0;
    int status;
    if (!PyArg_ParseTuple(args, "zK", &name, &capacity)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = make(name, capacity, &reg);
    Py_END_ALLOW_THREADS return status_and_handle(status, reg);
}

static PyObject *ext_create(PyObject *self, PyObject *args) {
    return made(args, md_create);
}

static PyObject *ext_elect(PyObject *self, PyObject *args) {
    return made(args, md_elect);
}

static PyObject *ext_bridge(PyObject *self, PyObject *args) {
    return made(args, md_bridge);
}

static PyObject *ext_attach(PyObject *self, PyObject *args) {
    const char *address;
    long long deadline;
    md_registry reg = 0;
    int status;
    if (!PyArg_ParseTuple(args, "yL", &address, &deadline)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_attach(address, deadline, &reg);
    Py_END_ALLOW_THREADS return status_and_handle(status, reg);
}

static PyObject *ext_open_default(PyObject *self, PyObject *args) {
    const char *address;
    md_registry reg = 0;
    int status;
    if (!PyArg_ParseTuple(args, "y", &address)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_open_default(address, &reg);
    Py_END_ALLOW_THREADS return status_and_handle(status, reg);
}

static PyObject *ext_close(PyObject *self, PyObject *args) {
    unsigned long long reg;
    int status;
    if (!PyArg_ParseTuple(args, "K", &reg)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_close(reg);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

static PyObject *ext_address(PyObject *self, PyObject *args) {
    unsigned long long reg;
    char buf[MD_MAX_ADDRESS] = "";
    if (!PyArg_ParseTuple(args, "K", &reg)) return NULL;
    int status = md_address(reg, buf, sizeof buf);
    return Py_BuildValue("(iy)", status, buf);
}

static PyObject *ext_join(PyObject *self, PyObject *args) {
    unsigned long long reg;
    long long interp;
    uint64_t member = 0;
    uint32_t role = 0;
    int status;
    if (!PyArg_ParseTuple(args, "KL", &reg, &interp)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_join(reg, interp, &member, &role);
    Py_END_ALLOW_THREADS PyObject *result =
        Py_BuildValue("(iKI)", status, (unsigned long long)member, role);
    if (!result && status == MD_OK) md_leave(reg, member);
    return result;
}

static PyObject *ext_leave(PyObject *self, PyObject *args) {
    unsigned long long reg, member;
    int status;
    if (!PyArg_ParseTuple(args, "KK", &reg, &member)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_leave(reg, member);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

static PyObject *ext_claim(PyObject *self, PyObject *args) {
    unsigned long long reg, member;
    const char *name, *where;
    Py_ssize_t name_len, where_len;
    int status;
    struct buffer b;
    if (!PyArg_ParseTuple(args, "KKy#y#", &reg, &member, &name, &name_len, &where, &where_len))
        return NULL;
    buffer_init(&b); /* always large enough: a claim has no body */
    Py_BEGIN_ALLOW_THREADS status =
        md_claim(reg, member, name, (size_t)name_len, where, (size_t)where_len, b.data, b.cap);
    Py_END_ALLOW_THREADS return status_and_record(status, status == MD_OK || status == MD_EEXIST,
                                                  b.data);
}

static PyObject *ext_release(PyObject *self, PyObject *args) {
    unsigned long long reg, member;
    const char *name;
    Py_ssize_t name_len;
    int status;
    if (!PyArg_ParseTuple(args, "KKy#", &reg, &member, &name, &name_len)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_release(reg, member, name, (size_t)name_len);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

/* What this thread has published since it has asked to forget: a signal handler may raise before
 * Python has seen it. See Note [Handlers that raise] in bind/call/surely.c. */
enum { MOST_PUBLISHED = 4 };
static _Thread_local struct {
    unsigned n;
    uint64_t registry, ref[MOST_PUBLISHED], seq[MOST_PUBLISHED];
} published;

static PyObject *ext_forget_published(PyObject *self, PyObject *ignored) {
    published.n = 0;
    Py_RETURN_NONE;
}

static void note_published(uint64_t registry, const md_record *r) {
    if (published.registry != registry) published.n = 0;
    if (published.n == MOST_PUBLISHED) return;
    published.registry = registry;
    published.ref[published.n] = r->ref;
    published.seq[published.n++] = r->seq;
}

/* published(registry): (ref, seq) of each, oldest first. */
static PyObject *ext_published(PyObject *self, PyObject *registry) {
    uint64_t handle = PyLong_AsUnsignedLongLong(registry);
    if (PyErr_Occurred()) return NULL;
    PyObject *found = PyList_New(0);
    for (unsigned i = 0; found && published.registry == handle && i < published.n; i++) {
        PyObject *each = Py_BuildValue("KK", (unsigned long long)published.ref[i],
                                       (unsigned long long)published.seq[i]);
        if (!each || PyList_Append(found, each)) Py_CLEAR(found);
        Py_XDECREF(each);
    }
    return found;
}

/* (status, ref, seq, None), or (MD_EEXIST, 0, 0, the record that is in the way) */
static PyObject *ext_register(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t n[5];
    const char *name, *body, *where;
    size_t name_len, body_len, where_len;
    int status;
    struct buffer b;
    md_record r = {0};
    if (!has_count("register", count, 8) || take_numbers(args, 5, n) ||
        take_text(args[5], &name, &name_len) || take_text(args[6], &body, &body_len) ||
        take_text(args[7], &where, &where_len))
        return NULL;
    buffer_init(&b);
    for (;;) {
        uint64_t need = 0;
        Py_BEGIN_ALLOW_THREADS status =
            md_register(n[0], n[1], (uint32_t)n[2], (uint32_t)n[3], (int32_t)n[4], name, name_len,
                        body, body_len, where, where_len, b.data, b.cap);
        Py_END_ALLOW_THREADS if (status != MD_ENOBUFS) break;
        memcpy(&need, b.data, sizeof need);
        if (buffer_grow(&b, need)) return NULL;
    }
    if (status == MD_OK) {
        memcpy(&r, b.data, sizeof r);
        note_published(n[0], &r);
    }
    PyObject *parts[] = {
        PyLong_FromLong(status),
        PyLong_FromUnsignedLongLong(r.ref),
        PyLong_FromUnsignedLongLong(r.seq),
        status == MD_EEXIST ? record_tuple(b.data) : Py_NewRef(Py_None),
    };
    PyObject *result = tuple_of(parts, sizeof parts / sizeof *parts);
    /* the caller gets an error: it must have changed nothing */
    if (!result && status == MD_OK) md_strike(n[0], n[1], r.ref, r.seq);
    buffer_free(&b);
    return result;
}

static PyObject *ext_strike(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t n[4];
    int status;
    if (!has_count("strike", count, 4) || take_numbers(args, 4, n)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_strike(n[0], n[1], n[2], n[3]);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

/* A look takes no time, except where writers outrun it: only then it has to wait for the registry's
 * lock, and gives up the GIL meanwhile. */
static int find_it(const uint64_t n[3], const char *name, size_t name_len, char *buf, size_t cap) {
    int status = md_find_at_once(n[0], (uint32_t)n[1], (int32_t)n[2], name, name_len, buf, cap);
    if (status != MD_ELOCK) return status;
    Py_BEGIN_ALLOW_THREADS status =
        md_find(n[0], (uint32_t)n[1], (int32_t)n[2], name, name_len, buf, cap);
    Py_END_ALLOW_THREADS return status;
}

static PyObject *ext_find(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t n[3];
    const char *name;
    size_t name_len;
    int status;
    struct buffer b;
    if (!has_count("find", count, 4) || take_numbers(args, 3, n) ||
        take_text(args[3], &name, &name_len))
        return NULL;
    buffer_init(&b);
    while ((status = find_it(n, name, name_len, b.data, b.cap)) == MD_ENOBUFS) {
        uint64_t need;
        memcpy(&need, b.data, sizeof need);
        if (buffer_grow(&b, need)) return NULL;
    }
    PyObject *result = status_and_record(status, status == MD_OK, b.data);
    buffer_free(&b);
    return result;
}

/* MD_OK when there is such a fact: find has it when it lacks nothing but a large enough buffer. */
static PyObject *ext_has(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t n[3];
    const char *name;
    size_t name_len;
    char none[1];
    if (!has_count("has", count, 4) || take_numbers(args, 3, n) ||
        take_text(args[3], &name, &name_len))
        return NULL;
    int status = find_it(n, name, name_len, none, 0);
    return PyLong_FromLong(status == MD_ENOBUFS ? MD_OK : status);
}

/* (status, result, (slept_ns, sleeps, wakes, slices, by_lease)); takes the result over. */
static PyObject *waited(int status, PyObject *result, const md_wait_stats *stats) {
    PyObject *course[] = {
        PyLong_FromUnsignedLongLong(stats->slept_ns), PyLong_FromUnsignedLong(stats->sleeps),
        PyLong_FromUnsignedLong(stats->wakes),        PyLong_FromUnsignedLong(stats->slices),
        PyLong_FromUnsignedLong(stats->by_lease),
    };
    PyObject *parts[] = {PyLong_FromLong(status), result,
                         tuple_of(course, sizeof course / sizeof *course)};
    return tuple_of(parts, sizeof parts / sizeof *parts);
}

static PyObject *ext_await_fact(PyObject *self, PyObject *args) {
    unsigned long long reg, member, ticket;
    unsigned int kind, at_least;
    long long deadline;
    int key, status, or_elect;
    const char *name;
    Py_ssize_t name_len;
    struct buffer b;
    md_wait_stats stats = {0, 0, 0, 0, 0};
    if (!PyArg_ParseTuple(args, "KKIiIs#LKp", &reg, &member, &kind, &key, &at_least, &name,
                          &name_len, &deadline, &ticket, &or_elect))
        return NULL;
    buffer_init(&b);
    for (;;) {
        uint64_t need = 0;
        PyThreadState *thread = PyEval_SaveThread();
        status = (or_elect ? md_await_or_elect : md_await)(reg, member, kind, key, at_least, name,
                                                           (size_t)name_len, deadline, ticket,
                                                           b.data, b.cap, &stats);
        gate_come_back(thread);
        if (status != MD_ENOBUFS) break;
        memcpy(&need, b.data, sizeof need);
        if (buffer_grow(&b, need)) return NULL;
    }
    PyObject *record = status == MD_OK ? record_tuple(b.data) : Py_NewRef(Py_None);
    buffer_free(&b);
    return waited(status, record, &stats);
}

static PyObject *ext_await_change(PyObject *self, PyObject *args) {
    unsigned long long reg, member, seq, ticket;
    long long deadline;
    uint64_t now_seq = 0;
    md_wait_stats stats = {0, 0, 0, 0, 0};
    int status;
    if (!PyArg_ParseTuple(args, "KKKLK", &reg, &member, &seq, &deadline, &ticket)) return NULL;
    PyThreadState *thread = PyEval_SaveThread();
    status = md_await_change(reg, member, seq, deadline, ticket, &now_seq, &stats);
    gate_come_back(thread);
    return waited(status, PyLong_FromUnsignedLongLong(now_seq), &stats);
}

static PyObject *ext_cancel(PyObject *self, PyObject *args) {
    unsigned long long reg, member, ticket;
    int status;
    if (!PyArg_ParseTuple(args, "KKK", &reg, &member, &ticket)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_cancel(reg, member, ticket);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

static PyObject *records_list(const char *p, size_t size) {
    PyObject *list = PyList_New(0);
    for (const char *end = p + size; list && p < end;) {
        uint64_t step;
        memcpy(&step, p, sizeof step);
        PyObject *t = record_tuple(p);
        if (!t || PyList_Append(list, t) < 0) Py_CLEAR(list);
        Py_XDECREF(t);
        p += step;
    }
    return list;
}

static PyObject *ext_list_facts(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t reg, version = 0, node = 0;
    const char *name = NULL;
    size_t name_len = 0, size = 0;
    int status;
    struct buffer b;
    if (!has_count("list_facts", count, 2) || take_numbers(args, 1, &reg) ||
        (args[1] != Py_None && take_text(args[1], &name, &name_len)))
        return NULL;
    buffer_init(&b);
    for (;;) {
        Py_BEGIN_ALLOW_THREADS status =
            md_list(reg, name, name_len, b.data, b.cap, &size, &version, &node);
        Py_END_ALLOW_THREADS if (status != MD_ENOBUFS) break;
        if (buffer_grow(&b, size + size / 8)) return NULL;
    }
    PyObject *parts[] = {
        PyLong_FromLong(status),
        PyLong_FromUnsignedLongLong(version),
        PyLong_FromUnsignedLongLong(node),
        status == MD_OK ? records_list(b.data, size) : PyList_New(0),
    };
    buffer_free(&b);
    return tuple_of(parts, sizeof parts / sizeof *parts);
}

static PyObject *ext_list_since(PyObject *self, PyObject *args) {
    unsigned long long reg, since;
    unsigned int kind;
    int status;
    size_t size = 0;
    uint64_t live = 0;
    struct buffer b;
    if (!PyArg_ParseTuple(args, "KIK", &reg, &kind, &since)) return NULL;
    buffer_init(&b);
    for (;;) {
        Py_BEGIN_ALLOW_THREADS status =
            md_list_since(reg, kind, since, b.data, b.cap, &size, &live);
        Py_END_ALLOW_THREADS if (status != MD_ENOBUFS) break;
        if (buffer_grow(&b, size + size / 8)) return NULL;
    }
    PyObject *list = status == MD_OK ? records_list(b.data, size) : PyList_New(0);
    buffer_free(&b);
    return list ? Py_BuildValue("(iKN)", status, (unsigned long long)live, list) : NULL;
}

static PyObject *ext_version(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t n[2], version = 0;
    if (!has_count("version", count, 2) || take_numbers(args, 2, n)) return NULL;
    int status = md_version(n[0], n[1], &version);
    return status < 0 ? PyLong_FromLong(status) : PyLong_FromUnsignedLongLong(version);
}

static PyObject *members_list(const md_member_info *infos, size_t count) {
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        const md_member_info *m = &infos[i];
        PyObject *t = Py_BuildValue("(LIIIIKIiy)", (long long)m->interp, m->pid, m->role, m->alive,
                                    m->waiters, (unsigned long long)m->waiting_ns, m->wait_kind,
                                    (int)m->wait_key, m->wait_name);
        if (!t || PyList_Append(list, t) < 0) Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}

static PyObject *ext_members(PyObject *self, PyObject *args) {
    unsigned long long reg;
    size_t cap = 16, count = 0;
    md_member_info *infos = NULL;
    int status;
    if (!PyArg_ParseTuple(args, "K", &reg)) return NULL;
    for (;;) {
        md_member_info *more = PyMem_RawRealloc(infos, cap * sizeof *infos);
        if (!more) {
            PyMem_RawFree(infos);
            return PyErr_NoMemory();
        }
        infos = more;
        status = md_members(reg, infos, cap, &count);
        if (count <= cap) break;
        cap = count + 16;
    }
    PyObject *list = members_list(infos, count);
    PyMem_RawFree(infos);
    return list ? Py_BuildValue("(iN)", status, list) : NULL;
}

static PyObject *figures_tuple(const md_stats *s) {
    return Py_BuildValue("(KKKKKKKIIIIIIL)", (unsigned long long)s->capacity,
                         (unsigned long long)s->committed, (unsigned long long)s->used,
                         (unsigned long long)s->facts, (unsigned long long)s->names,
                         (unsigned long long)s->next_seq, (unsigned long long)s->recoveries,
                         s->main_pid, s->main_state, s->processes, s->members, s->policy, s->idle,
                         (long long)s->made);
}

static PyObject *ext_stat(PyObject *self, PyObject *args) {
    unsigned long long reg;
    md_stats s;
    memset(&s, 0, sizeof s);
    if (!PyArg_ParseTuple(args, "K", &reg)) return NULL;
    int status = md_stat(reg, &s);
    PyObject *figures = figures_tuple(&s);
    return figures ? Py_BuildValue("(iN)", status, figures) : NULL;
}

static PyObject *ext_check(PyObject *self, PyObject *args) {
    unsigned long long reg;
    char report[4096] = "";
    int status;
    if (!PyArg_ParseTuple(args, "K", &reg)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_check(reg, report, sizeof report);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iy)", status, report);
}

/* (figures, device, inode, facts of each kind, attach, alive, dead, lock_tid, lock_died,
 * torn, fixed, address) */
static PyObject *inspection_tuple(const md_inspection *in) {
    PyObject *figures = figures_tuple(&in->stats), *kinds = PyTuple_New(MD_KINDS);
    for (int i = 0; kinds && i < MD_KINDS; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(in->kinds[i]);
        if (!count || PyTuple_SetItem(kinds, i, count)) Py_CLEAR(kinds);
    }
    if (!figures || !kinds) {
        Py_XDECREF(figures);
        Py_XDECREF(kinds);
        return NULL;
    }
    return Py_BuildValue("(NKKNiIIIIIIy)", figures, (unsigned long long)in->device,
                         (unsigned long long)in->inode, kinds, (int)in->attach, in->alive, in->dead,
                         in->lock_tid, in->lock_died, in->torn, in->fixed, in->address);
}

static PyObject *ext_inspect(PyObject *self, PyObject *args) {
    const char *address;
    size_t cap = 16, count = 0;
    md_member_info *infos = NULL;
    md_inspection in;
    int status;
    if (!PyArg_ParseTuple(args, "y", &address)) return NULL;
    for (;;) {
        md_member_info *more = PyMem_RawRealloc(infos, cap * sizeof *infos);
        if (!more) {
            PyMem_RawFree(infos);
            return PyErr_NoMemory();
        }
        infos = more;
        Py_BEGIN_ALLOW_THREADS status = md_inspect(address, &in, infos, cap, &count);
        Py_END_ALLOW_THREADS if (count <= cap) break;
        cap = count + 16;
    }
    PyObject *list = members_list(infos, count);
    PyObject *seen = status ? Py_NewRef(Py_None) : inspection_tuple(&in);
    PyMem_RawFree(infos);
    if (list && seen) return Py_BuildValue("(iNN)", status, seen, list);
    Py_XDECREF(list);
    Py_XDECREF(seen);
    return NULL;
}

static PyObject *ext_format_of(PyObject *self, PyObject *args) {
    const char *address;
    size_t count;
    md_inspection in = {0};
    if (!PyArg_ParseTuple(args, "y", &address)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    md_inspect(address, &in, NULL, 0, &count);
    Py_END_ALLOW_THREADS;
    return PyLong_FromUnsignedLong(in.format);
}

static PyObject *ext_origin(PyObject *self, PyObject *args) {
    const char *address;
    char origin[MD_MAX_ADDRESS] = "";
    int status;
    if (!PyArg_ParseTuple(args, "y", &address)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = md_origin(address, origin, sizeof origin);
    Py_END_ALLOW_THREADS;
    return Py_BuildValue("(iy)", status, origin);
}

static PyObject *ext_folder(PyObject *self, PyObject *args) {
    char path[MD_MAX_ADDRESS] = "";
    int status = md_folder(path, sizeof path);
    return Py_BuildValue("(iy)", status, path);
}

static PyObject *ext_reap(PyObject *self, PyObject *args) {
    const char *name;
    int status;
    if (!PyArg_ParseTuple(args, "y", &name)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_reap(name);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

/* Whether these are the globals of this package or of one of its modules. */
static int is_ours(PyObject *globals, PyObject *key) {
    PyObject *name = PyDict_GetItemWithError(globals, key);
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (!text) PyErr_Clear(); /* a name with half a character is none of ours */
    return text && strncmp(text, "mdispatch", 9) == 0 && (text[9] == '\0' || text[9] == '.');
}

/* Whether a frame is one of importlib's, which are frozen. */
static int is_importlib(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    if (!file) PyErr_Clear();
    Py_DECREF(code);
    return file && strncmp(file, "<frozen importlib.", 18) == 0;
}

/* Whether the code of a frame is that of a function; else it is a module's or a class's. */
static int is_function(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    int flags = code->co_flags;
    Py_DECREF(code);
    return flags & CO_OPTIMIZED;
}

/* Whether this is the top-level code of a module that is being imported; `back` called it. A loader
 * may execute it by itself, so importlib is asked which modules it is at, too. */
static int is_imported(PyFrameObject *frame, PyFrameObject *back) {
    if (is_function(frame)) return 0;
    if (back && is_importlib(back)) return 1;
    PyObject *globals = PyFrame_GetGlobals(frame);
    PyObject *spec = PyDict_GetItemString(globals, "__spec__"), *is_at = NULL;
    if (spec && spec != Py_None) { /* a script has None */
        is_at = PyObject_GetAttrString(spec, "_initializing");
        if (!is_at) PyErr_Clear();
    }
    Py_DECREF(globals);
    Py_XDECREF(is_at);
    return is_at == Py_True;
}

/* Takes over a function's frame. Returns that of the code on whose behalf the function runs: where
 * a module is being imported, the nearest code of that module; else the function itself. */
static PyFrameObject *on_behalf(PyFrameObject *frame) {
    PyFrameObject *outer = PyFrame_GetBack(frame), *back;
    for (; outer; outer = back) {
        back = PyFrame_GetBack(outer);
        if (is_imported(outer, back)) break;
        Py_DECREF(outer);
    }
    if (!outer) return frame;
    Py_XDECREF(back);
    PyObject *module = PyFrame_GetGlobals(outer);
    Py_DECREF(outer);
    for (;;) { /* ends at `outer` at the latest */
        PyObject *globals = PyFrame_GetGlobals(frame);
        Py_DECREF(globals);
        if (globals == module) break;
        back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_DECREF(module);
    return frame;
}

/* (code, last instruction, globals) of the code that registers, or None where there is none: the
 * nearest frame that is not of this package or, if a module is being imported meanwhile, the
 * nearest of that module. In C because every registration asks for it. `on_behalf(caller())` of
 * errors/locations.py is its twin in Python. `key` is "__name__". */
static PyObject *ext_caller(PyObject *self, PyObject *key) {
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame) {
        PyObject *globals = PyFrame_GetGlobals(frame);
        int ours = is_ours(globals, key);
        Py_DECREF(globals);
        if (!ours) break;
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    if (frame && is_function(frame) && !is_importlib(frame)) frame = on_behalf(frame);
    if (PyErr_Occurred()) { /* no memory for a frame */
        Py_XDECREF(frame);
        return NULL;
    }
    if (!frame) Py_RETURN_NONE;
    PyCodeObject *code = PyFrame_GetCode(frame);
    PyObject *globals = PyFrame_GetGlobals(frame);
    int at = PyFrame_GetLasti(frame);
    Py_DECREF(frame);
    return Py_BuildValue("(NiN)", code, at, globals);
}

/* fact(cls, record): an instance of `cls`, a class of tuples, with the elements of the tuple `record`.
 * The collector does not visit it where it can be in no cycle, because it holds numbers and texts
 * only. CPython does the same for tuples, and not for instances of subclasses. */
static PyObject *ext_fact(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (!has_count("fact", count, 2)) return NULL;
    PyTypeObject *cls = (PyTypeObject *)args[0];
    if (!PyType_Check(args[0]) || !PyType_IsSubtype(cls, &PyTuple_Type) ||
        !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "fact() takes a class of tuples and a tuple");
        return NULL;
    }
    Py_ssize_t length = PyTuple_GET_SIZE(args[1]);
    PyObject *made = cls->tp_alloc(cls, length); /* as tuple.__new__ makes one of a subclass */
    int is_plain = made != NULL;
    for (Py_ssize_t i = 0; made && i < length; i++) {
        PyObject *item = PyTuple_GET_ITEM(args[1], i);
        PyTuple_SET_ITEM(made, i, Py_NewRef(item));
        is_plain = is_plain && !PyObject_IS_GC(item);
    }
    if (is_plain) PyObject_GC_UnTrack(made);
    return made;
}

static PyObject *ext_interpreter_id(PyObject *self, PyObject *args) {
    return PyLong_FromLongLong(PyInterpreterState_GetID(PyInterpreterState_Get()));
}

/* Runs the Python signal handlers that are due, in whichever interpreter it is called.
 *
 * Handlers belong to the main interpreter. While the main thread runs in another interpreter,
 * PyErr_CheckSignals() does nothing. So this thread enters the main interpreter with a thread state
 * of its own, runs the handlers, and comes back. Returns None, or the name and the text of the
 * exception that a handler raised. */
static PyObject *ext_run_signal_handlers(PyObject *self, PyObject *args) {
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    char name[64] = "", text[256] = "";
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        if (PyErr_CheckSignals() < 0) return NULL;
        Py_RETURN_NONE;
    }
    PyThreadState *visitor = PyThreadState_New(PyInterpreterState_Main());
    if (!visitor) return PyErr_NoMemory();
    PyThreadState *home = PyThreadState_Swap(visitor);
    int raised = PyErr_CheckSignals() < 0;
    if (raised) {
        PyErr_Fetch(&type, &value, &traceback);
        snprintf(name, sizeof name, "%s", ((PyTypeObject *)type)->tp_name);
        PyObject *s = value ? PyObject_Str(value) : NULL;
        const char *utf8 = s ? PyUnicode_AsUTF8(s) : NULL;
        if (utf8) snprintf(text, sizeof text, "%s", utf8);
        Py_XDECREF(s);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        PyErr_Clear();
    }
    PyThreadState_Clear(visitor);
    PyThreadState_Swap(home);
    PyThreadState_Delete(visitor);
    if (!raised) Py_RETURN_NONE;
    return Py_BuildValue("(sN)", name,
                         PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"));
}

static PyMethodDef methods[] = {
    {"abi", ext_abi, METH_NOARGS, NULL},
    {"now", ext_now, METH_NOARGS, NULL},
    {"status_text", ext_status_text, METH_VARARGS, NULL},
    {"create", ext_create, METH_VARARGS, NULL},
    {"elect", ext_elect, METH_VARARGS, NULL},
    {"bridge", ext_bridge, METH_VARARGS, NULL},
    {"attach", ext_attach, METH_VARARGS, NULL},
    {"open_default", ext_open_default, METH_VARARGS, NULL},
    {"close", ext_close, METH_VARARGS, NULL},
    {"address", ext_address, METH_VARARGS, NULL},
    {"join", ext_join, METH_VARARGS, NULL},
    {"leave", ext_leave, METH_VARARGS, NULL},
    {"claim", ext_claim, METH_VARARGS, NULL},
    {"release", ext_release, METH_VARARGS, NULL},
    {"forget_published", ext_forget_published, METH_NOARGS, NULL},
    {"published", ext_published, METH_O, NULL},
    {"register", (PyCFunction)(void (*)(void))ext_register, METH_FASTCALL, NULL},
    {"strike", (PyCFunction)(void (*)(void))ext_strike, METH_FASTCALL, NULL},
    {"find", (PyCFunction)(void (*)(void))ext_find, METH_FASTCALL, NULL},
    {"has", (PyCFunction)(void (*)(void))ext_has, METH_FASTCALL, NULL},
    {"await_fact", ext_await_fact, METH_VARARGS, NULL},
    {"await_change", ext_await_change, METH_VARARGS, NULL},
    {"cancel", ext_cancel, METH_VARARGS, NULL},
    {"list_facts", (PyCFunction)(void (*)(void))ext_list_facts, METH_FASTCALL, NULL},
    {"list_since", ext_list_since, METH_VARARGS, NULL},
    {"version", (PyCFunction)(void (*)(void))ext_version, METH_FASTCALL, NULL},
    {"members", ext_members, METH_VARARGS, NULL},
    {"stat", ext_stat, METH_VARARGS, NULL},
    {"check", ext_check, METH_VARARGS, NULL},
    {"inspect", ext_inspect, METH_VARARGS, NULL},
    {"format_of", ext_format_of, METH_VARARGS, NULL},
    {"folder", ext_folder, METH_NOARGS, NULL},
    {"origin", ext_origin, METH_VARARGS, NULL},
    {"reap", ext_reap, METH_VARARGS, NULL},
    {"caller", ext_caller, METH_O, NULL},
    {"fact", (PyCFunction)(void (*)(void))ext_fact, METH_FASTCALL, NULL},
    {"has_host", ext_has_host, METH_NOARGS, NULL},
    {"kernel_bind", ext_kernel_bind, METH_VARARGS, NULL},
    {"kernel_definition", ext_kernel_definition, METH_VARARGS, NULL},
    {"kernel_drop", ext_kernel_drop, METH_VARARGS, NULL},
    {"kernel_function", ext_kernel_function, METH_VARARGS, NULL},
    {"kernel_label", ext_kernel_label, METH_VARARGS, NULL},
    {"kernel_put", ext_kernel_put, METH_VARARGS, NULL},
    {"load", ext_load, METH_VARARGS, NULL},
    {"interpreter_id", ext_interpreter_id, METH_NOARGS, NULL},
    {"object_close", ext_object_close, METH_NOARGS, NULL},
    {"object_find", ext_object_find, METH_VARARGS, NULL},
    {"object_give_out", ext_object_give_out, METH_O, NULL},
    {"object_given_out", ext_object_given_out, METH_VARARGS, NULL},
    {"object_list", ext_object_list, METH_NOARGS, NULL},
    {"object_new", ext_object_new, METH_VARARGS, NULL},
    {"object_pickled", ext_object_pickled, METH_VARARGS, NULL},
    {"object_sweep", ext_object_sweep, METH_NOARGS, NULL},
    {"run_signal_handlers", ext_run_signal_handlers, METH_NOARGS, NULL},
    {"seam", ext_seam, METH_O, NULL},
    {"pack", (PyCFunction)(void (*)(void))ext_pack, METH_FASTCALL, NULL},
    {"unpack", (PyCFunction)(void (*)(void))ext_unpack, METH_FASTCALL, NULL},
    {"write_back", ext_write_back, METH_VARARGS, NULL},
    {"visit", (PyCFunction)(void (*)(void))ext_visit, METH_FASTCALL, NULL},
    {"visit_close", ext_visit_close, METH_NOARGS, NULL},
    {"visit_open", ext_visit_open, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, boxed_exec},
    {Py_mod_exec, visit_exec},
#ifdef Py_MOD_PER_INTERPRETER_GIL_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mdispatch.facts.native._ext",
    .m_doc = "The native contract for every interpreter. Use mdispatch, not this.",
    .m_size = sizeof(PyTypeObject *), /* see visit_lent() */
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__ext(void) {
    return PyModuleDef_Init(&module);
}
