/* types.c - which dispatch keys a value carries. The rules are those of mdispatch/values.py.
 *
 * Note [Types]
 * Most values have the keys that their type was registered with. These are kept by the type's
 * address and its version tag, which CPython gives to one state of one type and never again: a type
 * that was changed, or another one at the address of a dead type, has another tag or none, and is
 * looked up anew. Registering a type can change what its subclasses carry, so it empties the table.
 *
 * Of a type that is not registered it is kept that its values are asked one by one: for an attribute
 * `__dispatch_keys__` that is a DispatchKeySet, or names that Python was asked about before, here;
 * for everything else in Python. (With a torch in the process, too: its tensors have no such
 * attribute, and Python is asked.)
 */
#include "call.h"

enum { UNKNOWN, REGISTERED, BY_ATTRIBUTE, BY_PYTHON };
enum { MOST_NAMED = 1024 };

static uint32_t tag_of(PyTypeObject *type) {
#ifdef Py_GIL_DISABLED
    return __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
#else
    return type->tp_version_tag;
#endif
}

static void known_put(struct known *k, PyTypeObject *type, uint32_t tag, uint32_t how,
                      uint64_t raw) {
#ifdef Py_GIL_DISABLED
    uint64_t before = peek(&k->sequence);
    if (before & 1 || !atomic_compare_exchange_strong(&k->sequence, &before, before + 1)) return;
    atomic_thread_fence(memory_order_release);
#endif
    atomic_store_explicit(&k->type, type, memory_order_relaxed);
    atomic_store_explicit(&k->tag, tag, memory_order_relaxed);
    atomic_store_explicit(&k->how, how, memory_order_relaxed);
    atomic_store_explicit(&k->raw, raw, memory_order_relaxed);
#ifdef Py_GIL_DISABLED
    atomic_store_explicit(&k->sequence, before + 2, memory_order_release);
#endif
}

void md__types_changed(struct state *st) {
    atomic_fetch_add(&st->types_epoch, 1);
    for (int i = 0; i < TYPES; i++) {
        struct known *k = &st->known[i];
#ifdef Py_GIL_DISABLED
        uint64_t before;
        do /* until whoever writes it is done */
            before = peek(&k->sequence) & ~1ull;
        while (!atomic_compare_exchange_strong(&k->sequence, &before, before + 1));
#endif
        atomic_store_explicit(&k->type, NULL, memory_order_relaxed);
#ifdef Py_GIL_DISABLED
        atomic_store_explicit(&k->sequence, before + 2, memory_order_release);
#endif
    }
}

/* An int of Python; -1 with no error for anything else, which sets of keys have not. */
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

/* How the values of a type are to be asked, and the keys of a registered one; UNKNOWN with an error.
 * The value may be given another class meanwhile. */
static uint32_t ask_type(struct state *st, struct known *k, PyTypeObject *type, uint64_t *raw) {
    uint64_t before = peek(&st->types_epoch);
    Py_INCREF(type);
    PyObject *answer = PyObject_CallFunctionObjArgs(st->raw_of_type, type, NULL);
    uint32_t how = UNKNOWN, tag = tag_of(type);
    if (!answer) {
        Py_DECREF(type);
        return UNKNOWN;
    }
    if (as_raw(answer, raw) == 0)
        how = REGISTERED;
    else
        how = answer == Py_None ? BY_ATTRIBUTE : BY_PYTHON;
    Py_DECREF(answer);
    /* What was registered meanwhile may have come too late for the answer. */
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
    md__forget_own(st);
    return found;
}

/* A name, or a tuple of names: what equal ones stand for is the same. */
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
        PyObject *known = md__dict_find(st->raw_by_name, keys);
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

int md__tensor_slow(struct state *st, PyObject *value, uint64_t *raw) {
    PyTypeObject *type = Py_TYPE(value);
    struct known *k = &st->known[((uintptr_t)type >> 4 ^ (uintptr_t)type >> 13) % TYPES];
    uint32_t how = UNKNOWN;
    uint64_t found = 0;
    if (value == Py_None) return 0;
#ifndef Py_GIL_DISABLED /* there a registered type is asked again where somebody just wrote */
    if (k->type == type && k->tag == type->tp_version_tag) how = k->how;
#endif
    if (how == UNKNOWN && (how = ask_type(st, k, type, &found)) == UNKNOWN) return 0;
    if (how == BY_ATTRIBUTE && (md__is_builtin(type) || !ask_attribute(st, value, &found)))
        return 0;
    if (how == BY_PYTHON && !ask_python(st, value, &found)) return 0;
    *raw |= found;
    return 1;
}
