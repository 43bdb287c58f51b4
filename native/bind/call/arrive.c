/* arrive.c - whether a call that another process has sent certainly fits the schema of a kernel here.
 * mdispatch/across/arrivals.py is the specification. It decides where this file is not sure, and
 * refuses.
 *
 * Nothing is converted, so no code of users runs. The lists are new ones that no other code has.
 */
#include "state.h"

static bool is_certain(const struct take *t, PyObject *value) {
    if (value == Py_None && t->none_fits) return true;
    switch (t->kind) {
    case ANYTHING:
        return true;
    case SOMETHING:
        return value != Py_None;
    case CLASS:
        return Py_TYPE(value) == (PyTypeObject *)t->values;
    case EXACT:
    case SIZE:
        return Py_TYPE(value) == t->exact;
    case NUMBER:
        return PyLong_CheckExact(value) || PyFloat_CheckExact(value);
    case TENSOR:
        return PyMemoryView_Check(value);
    case LIST:
        if (!PyList_CheckExact(value)) return false;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); i++) {
            PyObject *item = PyList_GET_ITEM(value, i);
            if (Py_TYPE(item) != t->inner->exact && !is_certain(t->inner, item)) return false;
        }
        return true;
    case TUPLE:
        if (!PyList_CheckExact(value) || PyList_GET_SIZE(value) != t->inners) return false;
        for (Py_ssize_t i = 0; i < t->inners; i++) {
            if (!is_certain(&t->inner[i], PyList_GET_ITEM(value, i))) return false;
        }
        return true;
    default:
        return false;
    }
}

static bool all_fit(const Shape *shape, Py_ssize_t front, PyObject *args, PyObject *names,
                    PyObject *values) {
    if (shape->positional < 0 || PyList_GET_SIZE(args) - front != shape->positional ||
        PyList_GET_SIZE(names) != shape->keyword_only ||
        PyList_GET_SIZE(values) != shape->keyword_only)
        return false;
    for (Py_ssize_t i = 0; i < shape->positional; i++) {
        if (!is_certain(&shape->arguments[i].take, PyList_GET_ITEM(args, front + i))) return false;
    }
    for (Py_ssize_t i = 0; i < shape->keyword_only; i++) {
        const struct argument *a = &shape->arguments[shape->positional + i];
        PyObject *name = PyList_GET_ITEM(names, i);
        if (!PyUnicode_CheckExact(name) || PyUnicode_Compare(name, a->name) ||
            !is_certain(&a->take, PyList_GET_ITEM(values, i)))
            return false;
    }
    return true;
}

/* arrived(shape, front, args, names, values): whether `args` behind the first `front` values, and
 * the values by keyword, are just what a kernel of this shape gets. */
PyObject *arrived(PyObject *m, PyObject *const *given, Py_ssize_t n) {
    struct state *st = PyModule_GetState(m);
    if (n != 5 || !Py_IS_TYPE(given[0], st->shape_type) || !PyList_CheckExact(given[2]) ||
        !PyList_CheckExact(given[3]) || !PyList_CheckExact(given[4]))
        return PyErr_Format(PyExc_TypeError, "arrived takes a shape, a number and three lists");
    Py_ssize_t front = PyLong_AsSsize_t(given[1]);
    if (front < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no such place");
        return NULL;
    }
    return PyBool_FromLong(all_fit((Shape *)given[0], front, given[2], given[3], given[4]));
}
