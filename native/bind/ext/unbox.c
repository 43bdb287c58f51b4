/* unbox.c - turns results into objects, by their kinds. Callers compare the objects with the
 * schema, as they do for kernels in Python. */
#include "frame.h"

static PyObject *boxed_made(struct frame *f, struct owned *o) {
    if (!o->object) o->object = boxed_view((PyTypeObject *)f->kernel->buffer_type, o);
    return Py_XNewRef(o->object);
}

static PyObject *unbox_buffer(struct frame *f, const md_buffer *buffer) {
    for (const struct lent *l = f->lent; l; l = l->next) {
        if (&l->pub == buffer) return Py_NewRef(l->object);
    }
    for (struct owned *o = f->owned; o; o = o->next) {
        if (&o->pub == buffer) return boxed_made(f, o);
    }
    boxed_unfit(f, "the kernel returned a buffer that is neither an argument nor its call's");
    return NULL;
}

static PyObject *unbox(struct frame *f, const md_value *v, int depth);

static PyObject *unbox_list(struct frame *f, const md_items *list, int depth) {
    if (depth > MD_MAX_DEPTH || list->size > PY_SSIZE_T_MAX / sizeof(md_value) ||
        (list->size && !list->items)) {
        boxed_unfit(f, "the kernel returned a list that is none");
        return NULL;
    }
    PyObject *made = PyList_New((Py_ssize_t)list->size);
    for (size_t i = 0; made && i < list->size; i++) {
        PyObject *item = unbox(f, &list->items[i], depth + 1);
        if (item)
            PyList_SET_ITEM(made, (Py_ssize_t)i, item);
        else
            Py_CLEAR(made);
    }
    return made;
}

static PyObject *unbox_str(struct frame *f, const md_text *text) {
    PyObject *made =
        PyUnicode_DecodeUTF8(text->data ? text->data : "", (Py_ssize_t)text->size, NULL);
    if (!made && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        boxed_unfit(f, "the kernel returned a str that is not UTF-8");
    }
    return made;
}

static PyObject *unbox(struct frame *f, const md_value *v, int depth) {
    switch (v->kind) {
    case MD_NONE:
        return Py_NewRef(Py_None);
    case MD_BOOL:
        return PyBool_FromLong(v->as.integer != 0);
    case MD_INT:
        return PyLong_FromLongLong(v->as.integer);
    case MD_FLOAT:
        return PyFloat_FromDouble(v->as.real);
    case MD_BUFFER:
        return unbox_buffer(f, v->as.buffer);
    case MD_LIST:
        return unbox_list(f, &v->as.list, depth);
    case MD_OBJECT:
        if (v->as.object) return object_shown((struct object *)v->as.object);
        break;
    case MD_STR:
    case MD_BYTES:
        if (v->as.text.size > PY_SSIZE_T_MAX || (v->as.text.size && !v->as.text.data)) break;
        if (v->kind == MD_STR) return unbox_str(f, &v->as.text);
        return PyBytes_FromStringAndSize(v->as.text.data ? v->as.text.data : "",
                                         (Py_ssize_t)v->as.text.size);
    default:
        break;
    }
    boxed_unfit(f, "the kernel returned a value of kind %u, which is none", (unsigned)v->kind);
    return NULL;
}

PyObject *boxed_shown(struct frame *f, const md_value *value) {
    return unbox(f, value, 0);
}

PyObject *boxed_results(struct frame *f, const md_value *results) {
    Py_ssize_t n = f->kernel->returns;
    if (n == 0) return Py_NewRef(Py_None);
    if (n == 1) return unbox(f, results, 0);
    PyObject *all = PyTuple_New(n);
    for (Py_ssize_t i = 0; all && i < n; i++) {
        PyObject *one = unbox(f, &results[i], 0);
        if (one)
            PyTuple_SET_ITEM(all, i, one);
        else
            Py_CLEAR(all);
    }
    return all;
}
