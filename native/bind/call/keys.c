/* keys.c - which dispatch keys a value carries. mdispatch/dispatch/context/values.py is the
 * specification.
 *
 * Note [Types]
 * Most values have the keys that their type was registered with. A table keeps these keys by the
 * type's address and its version tag. CPython never gives a tag to a second type, or to a second
 * state of one type. So a type that was changed, or a new type at the address of a dead one, has
 * another tag or none, and Python is asked about it again. Registering a type can change the keys
 * of its subclasses, so it empties the table.
 *
 * For a type that is not registered the table says how each of its values is asked. If the value
 * has an attribute `__dispatch_keys__`, this file reads it: a DispatchKeySet, or names, whose keys
 * Python is asked for once. Python is asked about all other values, each time. (Tensors of torch
 * have no such attribute, so Python is asked about them.)
 */
#include "state.h"

enum { MOST_NAMED = 1024 };

static void known_put(struct known *k, PyTypeObject *type, uint32_t tag, uint32_t how,
                      uint64_t raw) {
    if (!begin_write(k)) return;
    atomic_store_explicit(&k->type, type, memory_order_relaxed);
    atomic_store_explicit(&k->tag, tag, memory_order_relaxed);
    atomic_store_explicit(&k->how, how, memory_order_relaxed);
    atomic_store_explicit(&k->raw, raw, memory_order_relaxed);
    end_write(k);
}

void types_changed(struct state *st) {
    atomic_fetch_add(&st->types_epoch, 1);
    for (int i = 0; i < TYPES; i++) {
        struct known *k = &st->known[i];
        while (!begin_write(k)) continue; /* another thread is at its few stores */
        atomic_store_explicit(&k->type, NULL, memory_order_relaxed);
        end_write(k);
    }
}

/* The bits that a Python int holds; -1 without an error when it cannot hold a set of keys. */
static int as_raw(PyObject *number, uint64_t *raw) {
    if (!number || !PyLong_CheckExact(number)) return -1;
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    if (value == (unsigned long long)-1) {
        PyErr_Clear();
        return -1;
    }
    *raw = value;
    return 0;
}

/* Asks Python how values of the type are asked, and for the keys of a registered type; UNKNOWN with
 * an error. Meanwhile the value may get another class, so this keeps a reference to the type. */
static uint32_t ask_type(struct state *st, struct known *k, PyTypeObject *type, uint64_t *raw) {
    uint64_t before = peek(&st->types_epoch);
    Py_INCREF(type);
    PyObject *answer = PyObject_CallFunctionObjArgs(st->raw_of_type, type, NULL);
    uint32_t how = UNKNOWN, tag = version_tag(type);
    if (!answer) {
        Py_DECREF(type);
        return UNKNOWN;
    }
    if (as_raw(answer, raw) == 0)
        how = REGISTERED;
    else
        how = answer == Py_None ? BY_ATTRIBUTE : BY_PYTHON;
    Py_DECREF(answer);
    /* If a type was registered meanwhile, the answer may be too old to keep. */
    if (tag && before == peek(&st->types_epoch)) {
        known_put(k, type, tag, how, how == REGISTERED ? *raw : 0);
        if (before != peek(&st->types_epoch)) known_put(k, NULL, 0, UNKNOWN, 0);
    }
    Py_DECREF(type);
    return how;
}

static int ask_python(struct state *st, PyObject *value, uint64_t *raw) {
    PyObject *answer = PyObject_CallFunctionObjArgs(st->raw_of, value, NULL);
    int found = as_raw(answer, raw) == 0;
    Py_XDECREF(answer);
    forget_own(st);
    return found;
}

/* Whether it is a name or a tuple of names: equal ones always stand for the same keys. */
static int is_named(PyObject *keys) {
    if (!PyTuple_CheckExact(keys)) return PyUnicode_CheckExact(keys);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(keys, i))) return 0;
    }
    return 1;
}

static int ask_attribute(struct state *st, PyObject *value, uint64_t *raw) {
    PyObject *keys =
        PyType_Check(value) || !st->keys_name ? NULL : PyObject_GetAttr(value, st->keys_name);
    int found = 0;
    if (!keys) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_AttributeError)) return 0;
        PyErr_Clear();
        return ask_python(st, value, raw);
    }
    if (Py_TYPE(keys) == (PyTypeObject *)st->key_set_type) {
        found = as_raw(*(PyObject **)((char *)keys + st->raw_at), raw) == 0;
    } else if (is_named(keys) && st->raw_by_name) {
        PyObject *known = dict_find(st->raw_by_name, keys);
        if (known) {
            found = as_raw(known, raw) == 0;
            Py_DECREF(known);
        } else if (!PyErr_Occurred() && ask_python(st, value, raw)) {
            PyObject *number = PyLong_FromUnsignedLongLong(*raw);
            if (PyDict_GET_SIZE(st->raw_by_name) >= MOST_NAMED) PyDict_Clear(st->raw_by_name);
            found = number && PyDict_SetItem(st->raw_by_name, keys, number) == 0;
            Py_XDECREF(number);
        }
    } else {
        found = ask_python(st, value, raw);
    }
    Py_DECREF(keys);
    return found;
}

int tensor_slow(struct state *st, PyObject *value, uint64_t *raw) {
    PyTypeObject *type = Py_TYPE(value);
    struct known *k = known_at(st, type);
    uint32_t how = UNKNOWN;
    uint64_t found = 0;
    if (value == Py_None) return 0;
    uint64_t begun = begin_read(k);
    if (k->type == type && k->tag == version_tag(type)) how = k->how;
    /* REGISTERED means that another thread has just written the entry: ask again, for the keys. */
    if (!is_whole(k, begun) || how == REGISTERED) how = UNKNOWN;
    if (how == UNKNOWN && (how = ask_type(st, k, type, &found)) == UNKNOWN) return 0;
    if (how == BY_ATTRIBUTE && (is_builtin(type) || !ask_attribute(st, value, &found))) return 0;
    if (how == BY_PYTHON && !ask_python(st, value, &found)) return 0;
    *raw |= found;
    return 1;
}
