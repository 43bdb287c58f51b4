/* buffer.c - the object for memory that a kernel has made. */
#include "frame.h"

#include <stdio.h>

/* Memory that a call has handed over, with the buffer protocol. */
struct buffer_object {
    PyObject_HEAD void *data;
    Py_ssize_t size, itemsize;
    int ndim;
    char format[4];
    Py_ssize_t *shape; /* ndim lengths, then ndim steps */
};

static int buffer_get(PyObject *self, Py_buffer *view, int flags) {
    struct buffer_object *b = (struct buffer_object *)self;
    memset(view, 0, sizeof *view);
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && b->ndim > 1) {
        PyErr_SetString(PyExc_BufferError, "it is in C order");
        return -1;
    }
    view->buf = b->data;
    view->obj = Py_NewRef(self);
    view->len = b->size;
    view->itemsize = b->itemsize;
    view->ndim = b->ndim;
    view->format = flags & PyBUF_FORMAT ? b->format : NULL;
    view->shape = flags & PyBUF_ND ? b->shape : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? b->shape + b->ndim : NULL;
    return 0;
}

static void buffer_dealloc(PyObject *self) {
    struct buffer_object *b = (struct buffer_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc tp_free = PyType_GetSlot(type, Py_tp_free);
    free(b->data);
    free(b->shape);
    tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot buffer_slots[] = {
    {Py_tp_dealloc, buffer_dealloc},
    {Py_bf_getbuffer, buffer_get},
    {Py_tp_doc, "Memory that a kernel in C has made. Use memoryview()."},
    {0, NULL},
};

static PyType_Spec buffer_spec = {
    .name = "mdispatch.facts.native._ext.Buffer",
    .basicsize = sizeof(struct buffer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = buffer_slots,
};

int boxed_exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &buffer_spec, NULL);
    int rc = type ? PyModule_AddObjectRef(module, "Buffer", type) : -1;
    Py_XDECREF(type);
    return rc;
}

PyObject *boxed_view(PyTypeObject *type, struct owned *o) {
    int ndim = o->pub.ndim;
    Py_ssize_t *dims = malloc((size_t)(2 * ndim + 1) * sizeof *dims);
    struct buffer_object *b = dims ? (struct buffer_object *)type->tp_alloc(type, 0) : NULL;
    if (!b) {
        free(dims);
        return PyErr_NoMemory();
    }
    for (int i = 0; i < 2 * ndim; i++) dims[i] = (Py_ssize_t)o->shape[i];
    b->shape = dims;
    b->ndim = ndim;
    b->size = o->size;
    b->itemsize = (Py_ssize_t)o->pub.bits / 8;
    snprintf(b->format, sizeof b->format, "%s", boxed_format((int)o->pub.code, (int)o->pub.bits));
    b->data = o->pub.data;
    PyObject *view = PyMemoryView_FromObject((PyObject *)b);
    if (!view) b->data = NULL; /* the call still owns it */
    Py_DECREF(b);
    return view;
}
