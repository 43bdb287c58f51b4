/* take.c - what a kernel gets for a value that is not plainly what the schema wants, and a caller
 * for such a result. mdispatch/dispatch/arguments.py and results.py are the specification.
 *
 * These functions convert what is certainly converted to the same there. They leave the rest to
 * Python, which also refuses. They look at real types only, where Python believes a value's
 * `__class__`, too. A conversion may run code of users.
 *
 * A value's items are looked at in a copy that no other code has, since code of users, and other
 * threads, may change the value meanwhile.
 */
#include "state.h"

/* Whether the type of a value that is no tensor has one of Python's ways to make a number of it. */
static int is_number(struct state *st, PyObject *value, size_t slot) {
    const PyNumberMethods *methods = Py_TYPE(value)->tp_as_number;
    uint64_t ignored = 0;
    return methods && *(void *const *)((const char *)methods + slot) &&
           carries(st, value, &ignored) == 0;
}

/* Whether a value's type alone decides that it is of an abstract base class: the value does not say
 * itself of which class it is, and the metaclass looks at no more than that. */
static bool decides_type(const struct state *st, const PyTypeObject *cls, PyTypeObject *type) {
    return st->abstract == Py_TYPE(cls) && _PyType_Lookup(type, st->class_name) ==
                                               _PyType_Lookup(&PyBaseObject_Type, st->class_name);
}

/* Whether a value is of a class, as isinstance() says; 0, perhaps with an error, when it is not or
 * when Python has to find out. An abstract base class has a metaclass that knows more, and which may
 * run code of users. It never takes back what it has said of a type, as long as the type does not
 * change. So the take remembers the last type that the class has accepted. */
static int is_of_class(struct state *st, const struct take *t, PyObject *value) {
    PyTypeObject *cls = (PyTypeObject *)t->values, *type = Py_TYPE(value);
    if (PyType_IsSubtype(type, cls)) return 1;
    if (Py_IS_TYPE(cls, &PyType_Type)) return 0; /* a value may still say so of itself */
    if (was_accepted(t, type)) return 1;
    uint32_t tag = given_tag(st, type);
    int is = PyObject_IsInstance(value, (PyObject *)cls);
    if (is > 0 && decides_type(st, cls, type))
        atomic_store_explicit((_Atomic uint32_t *)&t->accepted, tag, memory_order_relaxed);
    if (is < 0) forget_own(st);
    return is > 0;
}

static int is_literal(const struct take *t, PyObject *value) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(t->values); i++) {
        PyObject *one = PyTuple_GET_ITEM(t->values, i);
        if (value == one) return 1;
        /* Types of Python: comparing them runs no code of users, and does not fail. */
        bool is_plain = PyUnicode_CheckExact(one) || PyLong_CheckExact(one) || PyBytes_CheckExact(one);
        if (is_plain && Py_IS_TYPE(value, Py_TYPE(one)) &&
            PyObject_RichCompareBool(value, one, Py_EQ) > 0)
            return 1;
    }
    return 0;
}

static int fits_one(struct state *st, const struct take *t, PyObject *value) {
    uint64_t ignored = 0;
    for (Py_ssize_t i = 0; i < t->inners; i++) {
        if (fits(st, &t->inner[i], value, &ignored)) return 1;
        if (PyErr_Occurred()) return 0;
    }
    return 0;
}

int fits_slow(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    if (t->exact && t->exact != &PyUnicode_Type) return value == Py_None && t->none_fits;
    if (value == Py_None && (t->none_fits || t->kind < CLASS))
        return t->none_fits || t->kind == ANYTHING;
    switch (t->kind) {
    case CLASS:
        return is_of_class(st, t, value);
    case ONE_OF:
        return fits_one(st, t, value);
    case ANYTHING:
    case SOMETHING:
        return 1;
    case EXACT:
        return t->exact == &PyUnicode_Type && PyUnicode_Check(value);
    case LITERAL:
        return is_literal(t, value);
    case NUMBER:
        return PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value) ||
               is_number(st, value, offsetof(PyNumberMethods, nb_float));
    default:
        return 0;
    }
}

/* Whether a value that may stand for a size is one that depends on data; -1 with an error. */
static int is_dynamic(struct state *st, PyObject *value) {
    PyObject *found = NULL;
    if (is_builtin(Py_TYPE(value))) return 0;
    int there = st->dynamic_name ? optional_attribute(value, st->dynamic_name, &found) : -1;
    if (there > 0) there = PyObject_IsTrue(found);
    Py_XDECREF(found);
    return there;
}

/* What is taken for an object of a registered class: what a handle has at home, if it is of just that
 * class (its methods, as kernels, do without looking at the class). NULL, perhaps with an error, for
 * all else. */
static PyObject *as_object(struct state *st, PyTypeObject *wanted, PyObject *value) {
    PyObject *open = NULL, *found;
    if (!Py_IS_TYPE(wanted, &PyType_Type)) return NULL; /* it may say itself what its objects are */
    if (optional_attribute((PyObject *)Py_TYPE(value), st->object_name, &open) <= 0) return NULL;
    /* None is the name of no class, so a handle of elsewhere is left to Python. */
    found = PyObject_CallFunctionObjArgs(open, value, Py_None, NULL);
    Py_DECREF(open);
    if (found && !Py_IS_TYPE(found, wanted)) Py_CLEAR(found);
    return found;
}

PyObject *converted(struct state *st, const struct take *t, PyObject *value) {
    PyObject *made = NULL;
    if (value == Py_None) return NULL;
    if (Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) atomic_fetch_add(&st->converted, 1);
    if (t->exact->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        made = as_object(st, t->exact, value);
    } else if (t->exact == &PyFloat_Type && PyLong_CheckExact(value)) {
        double real = PyLong_AsDouble(value); /* as PyNumber_Float, and sooner there */
        if (real != -1.0 || !PyErr_Occurred()) made = PyFloat_FromDouble(real);
    } else if (t->exact == &PyFloat_Type) {
        if (PyLong_Check(value) || PyFloat_Check(value) ||
            is_number(st, value, offsetof(PyNumberMethods, nb_float)))
            made = PyNumber_Float(value);
    } else if (t->exact == &PyLong_Type) {
        if ((PyLong_Check(value) || is_number(st, value, offsetof(PyNumberMethods, nb_index))) &&
            (t->kind != SIZE || is_dynamic(st, value) == 0))
            made = PyNumber_Index(value);
    } else if (t->exact == &PyBool_Type && PyLong_Check(value)) {
        int truth = PyObject_IsTrue(value);
        made = truth < 0 ? NULL : Py_NewRef(truth ? Py_True : Py_False);
    } else if (t->exact == &PyComplex_Type &&
               (PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value))) {
        made = PyObject_CallOneArg((PyObject *)&PyComplex_Type, value);
    }
    if (made) return made;
    if (PyErr_Occurred() &&
        (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
         PyErr_ExceptionMatches(PyExc_OverflowError)))
        PyErr_Clear(); /* Python refuses it, in words */
    forget_own(st);
    return NULL;
}

/* Puts in place of each item what is taken for it. Returns how many became other objects; -1,
 * perhaps with an error, when that is for Python. `inner`: of the first item; `step`: from one
 * item's to the next one's. */
static Py_ssize_t take_items(struct state *st, const struct take *inner, Py_ssize_t step,
                             PyObject **items, Py_ssize_t n, uint64_t *raw) {
    Py_ssize_t others = 0;
    for (Py_ssize_t i = 0; i < n; i++, inner += step) {
        if (Py_TYPE(items[i]) == inner->exact) continue;
        /* An int fits nowhere as it is where another class is wanted. */
        bool is_int = inner->kind == EXACT && PyLong_CheckExact(items[i]);
        PyObject *other = is_int ? converted(st, inner, items[i]) : taken(st, inner, items[i], raw);
        if (!other) return -1;
        others += other != items[i];
        Py_SETREF(items[i], other);
    }
    return others;
}

static Py_ssize_t take_list(struct state *st, const struct take *t, PyObject *list, uint64_t *raw) {
    uint64_t carried = 0;
    Py_ssize_t others = take_items(st, t->inner, 0, ((PyListObject *)list)->ob_item,
                                   PyList_GET_SIZE(list), &carried);
    *raw |= carried & t->counts;
    return others;
}

/* Whether Python would take it for a list or a tuple, by what it says of itself; -1: an error. */
static int claims_to_be_list(PyObject *value) {
    if (PyLong_Check(value) || PyFloat_Check(value) || is_builtin(Py_TYPE(value))) return 0;
    int is = PyObject_IsInstance(value, (PyObject *)&PyList_Type);
    return is ? is : PyObject_IsInstance(value, (PyObject *)&PyTuple_Type);
}

/* A new list of floats from a list or tuple of floats and ints; NULL, perhaps with an error, when it
 * has other items. This runs no code of users, so that no copy is needed first. */
static PyObject *list_of_floats(PyObject *value) {
    Py_ssize_t n = Py_SIZE(value), i = 0;
    PyObject *made = PyList_New(n); /* may collect garbage, whose code may change the list */
    bool is_list = PyList_Check(value);
    if (!made || n != Py_SIZE(value)) goto failed;
    PyObject *const *items =
        is_list ? ((PyListObject *)value)->ob_item : ((PyTupleObject *)value)->ob_item;
    for (; i < n; i++) {
        PyObject *item = items[i];
        if (PyFloat_CheckExact(item)) {
            Py_INCREF(item);
        } else {
            double real = PyLong_CheckExact(item) ? PyLong_AsDouble(item) : -1.0;
            bool is_real = PyLong_CheckExact(item) && (real != -1.0 || !PyErr_Occurred());
            if (!is_real || !(item = PyFloat_FromDouble(real))) goto failed;
        }
        PyList_SET_ITEM(made, i, item);
    }
    return made;
failed:
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError)) PyErr_Clear();
    Py_XDECREF(made);
    return NULL;
}

/* A new list from a list or tuple, or from one number. */
static PyObject *list_of(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    PyObject *made = NULL;
    uint64_t ignored = 0;
    bool is_plain = PyList_CheckExact(value) || PyTuple_CheckExact(value);
    if (t->inner->exact == &PyFloat_Type && is_plain && stands_still(value)) {
        made = list_of_floats(value);
        if (made || PyErr_Occurred()) return made;
    }
    if (PyList_CheckExact(value)) {
        made = PyList_GetSlice(value, 0, PY_SSIZE_T_MAX);
    } else if (PyList_Check(value) || PyTuple_Check(value)) {
        made = PySequence_List(value);
    } else if (t->size && t->inner->exact && claims_to_be_list(value) == 0) {
        PyObject *number = taken(st, t->inner, value, &ignored);
        made = number ? PyList_New(t->size) : NULL;
        for (Py_ssize_t i = 0; made && i < t->size; i++)
            PyList_SET_ITEM(made, i, Py_NewRef(number));
        Py_XDECREF(number);
        return made;
    }
    if (made && take_list(st, t, made, raw) < 0) Py_CLEAR(made);
    return made;
}

static PyObject *tuple_of(struct state *st, const struct take *t, PyObject *value) {
    uint64_t ignored = 0;
    if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != t->inners) return NULL;
    PyObject *made = PyTuple_New(t->inners);
    for (Py_ssize_t i = 0; made && i < t->inners; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(PyTuple_GET_ITEM(value, i)));
    if (made &&
        take_items(st, t->inner, 1, ((PyTupleObject *)made)->ob_item, t->inners, &ignored) < 0)
        Py_CLEAR(made);
    return made;
}

/* A new dict. Keys that have to be converted are for Python, and values that have to be where a key
 * has a hash or a comparison of its own. */
static PyObject *dict_of(struct state *st, const struct take *t, PyObject *value) {
    PyObject *key, *item, *made = PyDict_CheckExact(value) ? PyDict_Copy(value) : NULL;
    const struct take *keys = &t->inner[0], *values = &t->inner[1];
    uint64_t ignored = 0;
    for (Py_ssize_t at = 0; made && PyDict_Next(made, &at, &key, &item);) {
        if (is_composed(keys) || !fits(st, keys, key, &ignored)) goto failed;
        if (!is_composed(values) && fits(st, values, item, &ignored)) continue;
        if (PyErr_Occurred() || !is_builtin(Py_TYPE(key)) || PyTuple_Check(key)) goto failed;
        PyObject *other = taken(st, values, item, &ignored);
        int failed = !other || PyDict_SetItem(made, key, other);
        Py_XDECREF(other);
        if (failed) goto failed;
    }
    return made;
failed:
    Py_DECREF(made);
    return NULL;
}

PyObject *taken(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    if (!is_composed(t)) {
        if (fits(st, t, value, raw)) return Py_NewRef(value);
        return t->exact ? converted(st, t, value) : NULL;
    }
    if (value == Py_None) return t->none_fits ? Py_NewRef(value) : NULL;
    if (t->kind == DICT) return dict_of(st, t, value);
    return t->kind == LIST ? list_of(st, t, value, raw) : tuple_of(st, t, value);
}

PyObject *taken_result(struct state *st, const struct take *t, PyObject *value) {
    uint64_t ignored = 0;
    if (t->kind == TENSOR) return NULL;
    if (t->exact) return converted(st, t, value);
    if (t->kind != LIST || !PyList_CheckExact(value)) return taken(st, t, value, &ignored);
    /* The kernel's own list, if all of its items fit as they are. */
    PyObject *made = PyList_GetSlice(value, 0, PY_SSIZE_T_MAX);
    Py_ssize_t others = made ? take_list(st, t, made, &ignored) : -1;
    if (others > 0) return made;
    Py_XDECREF(made);
    return others ? NULL : Py_NewRef(value);
}
