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
 * For a type that is not registered the table says how each of its values is asked:
 *
 *   BY_ATTRIBUTE  by its attribute `__dispatch_keys__`: a DispatchKeySet, or names, whose keys
 *                 Python is asked for once. A value without it has the keys that the table has for
 *                 the type (a subclass of NumPy's array: CPU), or else those of the device that
 *                 its `__dlpack_device__` names.
 *   BY_DEVICE     the same, by a `__dlpack_device__` of its class. All its values are tensors.
 *   BY_SHARDING   the same, but by its sharding, which an array of jax has: equal ones are on the
 *                 same devices, so Python tells the keys of one of them.
 *   BY_TORCH      the same, but PyTorch says the keys of a value without the attribute. It does not
 *                 ask modes or `__torch_function__` for them.
 *   BY_PYTHON     Python is asked about each value.
 *   HANDLED       by its attribute or its device, and all have the keys that the table has for the
 *                 type, too: their class has `__md_dispatch__`.
 *   NEVER         none of its values carries keys: they cannot have attributes of their own, and
 *                 their class has none that matters.
 */
#include "state.h"

enum { MOST_NAMED = 1024, MOST_SHARDINGS = 256 };

/* Keeps what Python said of a type, unless types were registered since it was asked. (If they are
 * registered now, types_changed waits for `end_write`, then empties the entry.) */
static void known_put(struct state *st, PyTypeObject *type, uint32_t tag, uint64_t asked,
                      uint32_t how, uint64_t raw) {
    struct known *k = known_at(st, type);
    if (!begin_write(&k->sequence)) return;
    if (asked == atomic_load(&st->types_epoch)) {
        atomic_store_explicit(&k->type, type, memory_order_relaxed);
        atomic_store_explicit(&k->tag, tag, memory_order_relaxed);
        atomic_store_explicit(&k->how, how, memory_order_relaxed);
        atomic_store_explicit(&k->raw, raw, memory_order_relaxed);
    }
    end_write(&k->sequence);
}

void types_changed(struct state *st) {
    atomic_fetch_add(&st->types_epoch, 1);
    for (int i = 0; i < TYPES; i++) {
        struct known *k = &st->known[i];
        while (!begin_write(&k->sequence)) continue; /* another thread is at its few stores */
        atomic_store_explicit(&k->type, NULL, memory_order_relaxed);
        end_write(&k->sequence);
    }
    atomic_fetch_add(&st->types_epoch, 1);
}

uint32_t given_tag(struct state *st, PyTypeObject *type) {
#if PY_VERSION_HEX >= 0x030c0000
    (void)PyUnstable_Type_AssignVersionTag(type);
#else
    if (st->keys_name) (void)_PyType_Lookup(type, st->keys_name);
#endif
    return version_tag(type);
}

/* Asks Python how values of the type are asked, and for the keys of the type; UNKNOWN with an
 * error. Meanwhile the value may get another class, so this keeps a reference to the type; and the
 * type may be changed: then it has another tag than before. */
static uint32_t ask_type(struct state *st, PyTypeObject *type, uint64_t *raw) {
    uint64_t asked = atomic_load(&st->types_epoch);
    unsigned int how = UNKNOWN;
    unsigned long long keys = 0;
    Py_INCREF(type);
    uint32_t tag = given_tag(st, type);
    PyObject *told[TOLD] = {NULL}; /* of BY_TORCH */
    PyObject *answer = PyObject_CallFunctionObjArgs(st->how_of_type, type, NULL);
    if (answer && !PyArg_ParseTuple(answer, "IK|OOOOOOOOO", &how, &keys, &told[0], &told[1], &told[2],
                                    &told[3], &told[4], &told[5], &told[6], &told[7], &told[8]))
        how = UNKNOWN;
    if (how == BY_TORCH && torch_is(st, told)) how = UNKNOWN;
    Py_XDECREF(answer);
    if (how == NEVER && type->tp_getattro != PyObject_GenericGetAttr) how = BY_ATTRIBUTE;
    *raw = keys;
    if (how != UNKNOWN && tag && tag == version_tag(type))
        known_put(st, type, tag, asked, how, keys);
    Py_DECREF(type);
    return how;
}

/* 1 with the value's keys, 0 when it carries none, -1 with an error, but for one of mdispatch:
 * Python will raise that again. */
static int ask_python(struct state *st, PyObject *value, uint64_t *raw) {
    PyObject *answer = PyObject_CallFunctionObjArgs(st->raw_of, value, NULL);
    int found = answer == Py_None ? 0 : as_raw(answer, raw) == 0 ? 1 : -1;
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

/* The keys of these names, without those that a value has by its class. Results as those of
 * ask_python. */
static int ask_names(struct state *st, PyObject *names, uint64_t *raw) {
    PyObject *made = PyObject_CallOneArg(st->key_set_type, names);
    int found = made && as_raw(*(PyObject **)((char *)made + st->raw_at), raw) == 0 ? 1 : -1;
    Py_XDECREF(made);
    forget_own(st);
    return found;
}

/* The keys that an attribute `__dispatch_keys__` stands for. Results as those of ask_python. */
static int from_attribute(struct state *st, PyObject *value, PyObject *keys, uint64_t *raw) {
    int found = -1;
    if (Py_TYPE(keys) == (PyTypeObject *)st->key_set_type)
        return as_raw(*(PyObject **)((char *)keys + st->raw_at), raw) == 0 ? 1 : -1;
    if (!is_named(keys) || !st->raw_by_name) return ask_python(st, value, raw);
    PyObject *known = dict_find(st->raw_by_name, keys);
    if (known) {
        found = as_raw(known, raw) == 0 ? 1 : -1;
        Py_DECREF(known);
    } else if (!PyErr_Occurred() && (found = ask_names(st, keys, raw)) == 1) {
        PyObject *number = PyLong_FromUnsignedLongLong(*raw);
        if (PyDict_GET_SIZE(st->raw_by_name) >= MOST_NAMED) PyDict_Clear(st->raw_by_name);
        if (!number || PyDict_SetItem(st->raw_by_name, keys, number)) found = -1;
        Py_XDECREF(number);
    }
    return found;
}

/* The keys of an array with a sharding. Results as those of ask_python. */
static int from_sharding(struct state *st, PyObject *value, uint64_t *raw) {
    PyObject *sharding = PyObject_GetAttr(value, st->sharding_name);
    PyObject *known = sharding ? dict_find(st->raw_by_sharding, sharding) : NULL;
    int found = -1;
    if (known)
        found = as_raw(known, raw) == 0 ? 1 : -1;
    else if (PyErr_Occurred()) { /* it has none, or one that is no key of a dict */
        PyErr_Clear();
        found = ask_python(st, value, raw);
    } else if ((found = ask_python(st, value, raw)) == 1) {
        PyObject *number = PyLong_FromUnsignedLongLong(*raw);
        if (PyDict_GET_SIZE(st->raw_by_sharding) >= MOST_SHARDINGS)
            PyDict_Clear(st->raw_by_sharding);
        if (!number || PyDict_SetItem(st->raw_by_sharding, sharding, number)) found = -1;
        Py_XDECREF(number);
    }
    Py_XDECREF(known);
    Py_XDECREF(sharding);
    return found;
}

/* The keys of the device that `__dlpack_device__` names. Results as those of ask_python. */
static int from_dlpack(struct state *st, PyObject *value, uint32_t how, uint64_t *raw) {
    PyObject *device, *pair;
    if (how == BY_DEVICE) { /* no bound method is made, which costs nearly as much as its call */
        pair = PyObject_VectorcallMethod(st->device_name, &value, 1, NULL);
        if (!pair && (PyErr_ExceptionMatches(PyExc_AttributeError) ||
                      PyErr_ExceptionMatches(PyExc_TypeError))) {
            PyErr_Clear(); /* the value may hide what its class has: Python asks again, and tells */
            return ask_python(st, value, raw);
        }
    } else {
        int there = optional_attribute(value, st->device_name, &device);
        if (there <= 0) return there;
        pair = device == Py_None ? NULL : PyObject_CallNoArgs(device);
        Py_DECREF(device);
        if (!pair && !PyErr_Occurred()) return 0;
    }
    if (!pair) return -1;
    long kind = -1;
    if (PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) &&
        PyLong_Check(PyTuple_GET_ITEM(pair, 0))) { /* an IntEnum, too */
        kind = PyLong_AsLong(PyTuple_GET_ITEM(pair, 0));
        if (kind == -1) PyErr_Clear();
    }
    Py_DECREF(pair);
    if (kind < 0 || kind >= DEVICES || !st->devices[kind]) return ask_python(st, value, raw);
    *raw = st->devices[kind];
    return 1;
}

/* Asks a value. Results as those of ask_python. */
static int ask_value(struct state *st, PyObject *value, uint32_t how, uint64_t instead,
                     uint64_t *raw) {
    PyObject *keys = NULL;
    if (PyType_Check(value) || !st->keys_name) return 0; /* what a class has is its values' */
    int there = optional_attribute(value, st->keys_name, &keys);
    if (there < 0) return -1;
    int found = 0;
    if (there && keys != Py_None)
        found = from_attribute(st, value, keys, raw);
    else if (how == BY_TORCH)
        found = from_torch(st, value, raw) == 1 ? 1
                : PyErr_Occurred()              ? -1
                                                : ask_python(st, value, raw);
    else if (instead)
        found = (*raw = instead, 1);
    else if (how == BY_SHARDING)
        found = from_sharding(st, value, raw);
    else
        found = from_dlpack(st, value, how, raw);
    Py_XDECREF(keys);
    return found;
}

int ask_keys(struct state *st, PyObject *value, uint32_t how, uint64_t keys, uint64_t *raw) {
    uint64_t found = 0;
    int is = 1;
    if (value == Py_None) return 0;
    if (how == UNKNOWN && (how = ask_type(st, Py_TYPE(value), &keys)) == UNKNOWN) return -1;
    if (how == NEVER) return 0;
    if (how == REGISTERED)
        found = keys;
    else if (how == BY_PYTHON)
        is = ask_python(st, value, &found);
    else if (how == HANDLED) {
        is = ask_value(st, value, how, 0, &found);
        if (is >= 0) is = 1, found |= keys;
    } else if (how == BY_TORCH) {
        is = ask_value(st, value, how, 0, &found);
        found |= keys | FROM_TORCH;
    } else
        is = ask_value(st, value, how, keys, &found);
    if (is > 0) *raw |= found;
    return is;
}

int ask_tensor(struct state *st, PyObject *value, uint32_t how, uint64_t keys) {
    uint64_t ignored = 0;
    if (how == UNKNOWN && value != Py_None) how = ask_type(st, Py_TYPE(value), &keys);
    if (how == UNKNOWN) return 0;
    return is_tensors(how, keys) || ask_keys(st, value, how, keys, &ignored) > 0;
}
