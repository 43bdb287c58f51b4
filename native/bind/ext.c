/* ext.c - the contract for interpreters in which cffi cannot be relied on: sub-interpreters of
 * every kind.
 *
 * Multi-phase init, no state, no classes, no logic: ints, bytes and tuples, the same names and
 * results as mdispatch/_native/_cffi_binding.py gives over cffi. The GIL (or the thread state) is
 * released around every call that can take the lock or sleep.
 *
 * Two functions have no twin: interpreter_id(), by which it is decided who binds how, and
 * run_signal_handlers().
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../mdispatch.h"

enum { BUFFER = 8192 };

/* A buffer for packed records: on the stack as long as that does. */
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

/* (ref, seq, kind, key, name, body, where, pid, interp) */
static PyObject *record_tuple(const char *p) {
    md_record r;
    memcpy(&r, p, sizeof r);
    const char *name = p + sizeof r, *body = name + r.name_len, *where = body + r.body_len;
    return Py_BuildValue("(KKIiy#y#y#IL)", (unsigned long long)r.ref, (unsigned long long)r.seq,
                         r.kind, (int)r.key, name, (Py_ssize_t)r.name_len, body,
                         (Py_ssize_t)r.body_len, where, (Py_ssize_t)r.where_len, r.pid,
                         (long long)r.interp);
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

static PyObject *ext_create(PyObject *self, PyObject *args) {
    const char *name;
    unsigned long long capacity;
    md_registry reg = 0;
    int status;
    if (!PyArg_ParseTuple(args, "zK", &name, &capacity)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_create(name, capacity, &reg);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iK)", status, (unsigned long long)reg);
}

static PyObject *ext_attach(PyObject *self, PyObject *args) {
    const char *address;
    long long deadline;
    md_registry reg = 0;
    int status;
    if (!PyArg_ParseTuple(args, "yL", &address, &deadline)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_attach(address, deadline, &reg);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iK)", status, (unsigned long long)reg);
}

static PyObject *ext_open_default(PyObject *self, PyObject *args) {
    const char *address;
    md_registry reg = 0;
    int status;
    if (!PyArg_ParseTuple(args, "y", &address)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_open_default(address, &reg);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iK)", status, (unsigned long long)reg);
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
    Py_END_ALLOW_THREADS return Py_BuildValue("(iKI)", status, (unsigned long long)member, role);
}

static PyObject *ext_leave(PyObject *self, PyObject *args) {
    unsigned long long reg, member;
    int status;
    if (!PyArg_ParseTuple(args, "KK", &reg, &member)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_leave(reg, member);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

static PyObject *ext_register(PyObject *self, PyObject *args) {
    unsigned long long reg, member;
    unsigned int kind, rule;
    int key, status;
    const char *name, *body, *where;
    Py_ssize_t name_len, body_len, where_len;
    struct buffer b;
    if (!PyArg_ParseTuple(args, "KKIIiy#y#y#", &reg, &member, &kind, &rule, &key, &name, &name_len,
                          &body, &body_len, &where, &where_len))
        return NULL;
    buffer_init(&b);
    for (;;) {
        uint64_t need = 0;
        Py_BEGIN_ALLOW_THREADS status =
            md_register(reg, member, kind, rule, key, name, (size_t)name_len, body,
                        (size_t)body_len, where, (size_t)where_len, b.data, b.cap);
        Py_END_ALLOW_THREADS if (status != MD_ENOBUFS) break;
        memcpy(&need, b.data, sizeof need);
        if (buffer_grow(&b, need)) return NULL;
    }
    PyObject *result = status_and_record(status, status == MD_OK || status == MD_EEXIST, b.data);
    buffer_free(&b);
    return result;
}

static PyObject *ext_strike(PyObject *self, PyObject *args) {
    unsigned long long reg, member, ref, seq;
    int status;
    if (!PyArg_ParseTuple(args, "KKKK", &reg, &member, &ref, &seq)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_strike(reg, member, ref, seq);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

static PyObject *ext_find(PyObject *self, PyObject *args) {
    unsigned long long reg;
    unsigned int kind;
    int key, status;
    const char *name;
    Py_ssize_t name_len;
    struct buffer b;
    if (!PyArg_ParseTuple(args, "KIiy#", &reg, &kind, &key, &name, &name_len)) return NULL;
    buffer_init(&b);
    while ((status = md_find(reg, kind, key, name, (size_t)name_len, b.data, b.cap)) ==
           MD_ENOBUFS) {
        uint64_t need;
        memcpy(&need, b.data, sizeof need);
        if (buffer_grow(&b, need)) return NULL;
    }
    PyObject *result = status_and_record(status, status == MD_OK, b.data);
    buffer_free(&b);
    return result;
}

static PyObject *ext_await_fact(PyObject *self, PyObject *args) {
    unsigned long long reg, member, ticket;
    unsigned int kind, at_least;
    long long deadline;
    int key, status;
    const char *name;
    Py_ssize_t name_len;
    struct buffer b;
    md_wait_stats stats = {0, 0, 0, 0, 0};
    if (!PyArg_ParseTuple(args, "KKIiIy#LK", &reg, &member, &kind, &key, &at_least, &name,
                          &name_len, &deadline, &ticket))
        return NULL;
    buffer_init(&b);
    for (;;) {
        uint64_t need = 0;
        Py_BEGIN_ALLOW_THREADS status =
            md_await(reg, member, kind, key, at_least, name, (size_t)name_len, deadline, ticket,
                     b.data, b.cap, &stats);
        Py_END_ALLOW_THREADS if (status != MD_ENOBUFS) break;
        memcpy(&need, b.data, sizeof need);
        if (buffer_grow(&b, need)) return NULL;
    }
    PyObject *record = status == MD_OK ? record_tuple(b.data) : Py_NewRef(Py_None);
    buffer_free(&b);
    if (!record) return NULL;
    return Py_BuildValue("(iN(KIIII))", status, record, (unsigned long long)stats.slept_ns,
                         stats.sleeps, stats.wakes, stats.slices, stats.by_lease);
}

static PyObject *ext_await_change(PyObject *self, PyObject *args) {
    unsigned long long reg, member, seq, ticket;
    long long deadline;
    uint64_t now_seq = 0;
    md_wait_stats stats = {0, 0, 0, 0, 0};
    int status;
    if (!PyArg_ParseTuple(args, "KKKLK", &reg, &member, &seq, &deadline, &ticket)) return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        md_await_change(reg, member, seq, deadline, ticket, &now_seq, &stats);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iK(KIIII))", status, (unsigned long long)now_seq,
                                              (unsigned long long)stats.slept_ns, stats.sleeps,
                                              stats.wakes, stats.slices, stats.by_lease);
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

static PyObject *ext_list_facts(PyObject *self, PyObject *args) {
    unsigned long long reg;
    const char *name;
    Py_ssize_t name_len;
    int status;
    size_t size = 0;
    uint64_t version = 0, node = 0;
    struct buffer b;
    if (!PyArg_ParseTuple(args, "Kz#", &reg, &name, &name_len)) return NULL;
    buffer_init(&b);
    for (;;) {
        Py_BEGIN_ALLOW_THREADS status =
            md_list(reg, name, (size_t)name_len, b.data, b.cap, &size, &version, &node);
        Py_END_ALLOW_THREADS if (status != MD_ENOBUFS) break;
        if (buffer_grow(&b, size + size / 8)) return NULL;
    }
    PyObject *list = status == MD_OK ? records_list(b.data, size) : PyList_New(0);
    buffer_free(&b);
    if (!list) return NULL;
    return Py_BuildValue("(iKKN)", status, (unsigned long long)version, (unsigned long long)node,
                         list);
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

static PyObject *ext_version(PyObject *self, PyObject *args) {
    unsigned long long reg, node;
    uint64_t version = 0;
    if (!PyArg_ParseTuple(args, "KK", &reg, &node)) return NULL;
    int status = md_version(reg, node, &version);
    return status < 0 ? PyLong_FromLong(status) : PyLong_FromUnsignedLongLong(version);
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
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        md_member_info *m = &infos[i];
        PyObject *t = Py_BuildValue("(LIIIIKIiy)", (long long)m->interp, m->pid, m->role, m->alive,
                                    m->waiters, (unsigned long long)m->waiting_ns, m->wait_kind,
                                    (int)m->wait_key, m->wait_name);
        if (!t || PyList_Append(list, t) < 0) Py_CLEAR(list);
        Py_XDECREF(t);
    }
    PyMem_RawFree(infos);
    return list ? Py_BuildValue("(iN)", status, list) : NULL;
}

static PyObject *ext_stat(PyObject *self, PyObject *args) {
    unsigned long long reg;
    md_stats s;
    memset(&s, 0, sizeof s);
    if (!PyArg_ParseTuple(args, "K", &reg)) return NULL;
    int status = md_stat(reg, &s);
    return Py_BuildValue("(i(KKKKKKKIIII))", status, (unsigned long long)s.capacity,
                         (unsigned long long)s.committed, (unsigned long long)s.used,
                         (unsigned long long)s.facts, (unsigned long long)s.names,
                         (unsigned long long)s.next_seq, (unsigned long long)s.recoveries,
                         s.main_pid, s.main_state, s.processes, s.members);
}

static PyObject *ext_check(PyObject *self, PyObject *args) {
    unsigned long long reg;
    char report[4096] = "";
    int status;
    if (!PyArg_ParseTuple(args, "K", &reg)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_check(reg, report, sizeof report);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iy)", status, report);
}

static PyObject *ext_interpreter_id(PyObject *self, PyObject *args) {
    return PyLong_FromLongLong(PyInterpreterState_GetID(PyInterpreterState_Get()));
}

/* Runs the Python signal handlers that are due, wherever it is called.
 *
 * They belong to the main interpreter; while the main thread works inside another one,
 * PyErr_CheckSignals() does nothing there. So this thread visits the main interpreter with a thread
 * state made for the purpose, lets it run its handlers, and comes back. Returns None, or the name
 * and the text of the exception that a handler raised. */
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
    {"attach", ext_attach, METH_VARARGS, NULL},
    {"open_default", ext_open_default, METH_VARARGS, NULL},
    {"close", ext_close, METH_VARARGS, NULL},
    {"address", ext_address, METH_VARARGS, NULL},
    {"join", ext_join, METH_VARARGS, NULL},
    {"leave", ext_leave, METH_VARARGS, NULL},
    {"register", ext_register, METH_VARARGS, NULL},
    {"strike", ext_strike, METH_VARARGS, NULL},
    {"find", ext_find, METH_VARARGS, NULL},
    {"await_fact", ext_await_fact, METH_VARARGS, NULL},
    {"await_change", ext_await_change, METH_VARARGS, NULL},
    {"cancel", ext_cancel, METH_VARARGS, NULL},
    {"list_facts", ext_list_facts, METH_VARARGS, NULL},
    {"list_since", ext_list_since, METH_VARARGS, NULL},
    {"version", ext_version, METH_VARARGS, NULL},
    {"members", ext_members, METH_VARARGS, NULL},
    {"stat", ext_stat, METH_VARARGS, NULL},
    {"check", ext_check, METH_VARARGS, NULL},
    {"interpreter_id", ext_interpreter_id, METH_NOARGS, NULL},
    {"run_signal_handlers", ext_run_signal_handlers, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_MOD_PER_INTERPRETER_GIL_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mdispatch._native._ext",
    .m_doc = "The native contract for every interpreter. Use mdispatch, not this.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__ext(void) {
    return PyModuleDef_Init(&module);
}
