/* box.c - turns arguments into boxed values: by the schema where it says Tensor, else by the
 * argument. */
#include "frame.h"
#include "seam.h"

static const char *type_name(PyObject *object) {
    return Py_TYPE(object)->tp_name;
}

/* The element type of a letter of the struct module, in this machine's byte order. */
static int dtype_of(const Py_buffer *view, uint32_t *code) {
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' || *format == '<') format++;
    if (strcmp(format, "Zf") == 0 || strcmp(format, "Zd") == 0) {
        *code = MD_DTYPE_COMPLEX;
        return 0;
    }
    if (*format == '\0' || format[1] != '\0') return -1;
    if (strchr("bhilqn", *format))
        *code = MD_DTYPE_INT;
    else if (strchr("BHILQNc", *format))
        *code = MD_DTYPE_UINT;
    else if (strchr("efd", *format))
        *code = MD_DTYPE_FLOAT;
    else if (*format == '?')
        *code = MD_DTYPE_BOOL;
    else
        return -1;
    return 0;
}

static int box_buffer(struct frame *f, PyObject *object, unsigned flags, md_value *out) {
    struct lent *l;
    for (l = f->lent; l; l = l->next) {
        if (l->object == object) break; /* one object is one buffer, even if it is passed twice */
    }
    if (!l) {
        if (!PyObject_CheckBuffer(object))
            return boxed_unfit(f,
                               "a kernel in C takes values with memory of their own (the buffer "
                               "protocol), not an object of %s",
                               type_name(object));
        l = calloc(1, sizeof *l);
        if (!l) return PyErr_NoMemory(), -1;
        if (PyObject_GetBuffer(object, &l->view, PyBUF_RECORDS_RO)) {
            PyObject *type, *value, *traceback;
            free(l);
            if (!PyErr_ExceptionMatches(PyExc_BufferError) &&
                !PyErr_ExceptionMatches(PyExc_ValueError)) /* NumPy raises it for dates */
                return -1;
            PyErr_Fetch(&type, &value, &traceback);
            boxed_unfit(f, "an object of %s does not lend its memory: %S", type_name(object),
                        value ? value : Py_None);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(traceback);
            return -1;
        }
        l->next = f->lent;
        f->lent = l; /* from here on `boxed_end` gives it back */
        l->object = object;
        if (l->view.ndim > MD_MAX_NDIM || dtype_of(&l->view, &l->pub.code))
            return boxed_unfit(f, "no kernel in C takes memory of format '%s' in %d dimensions",
                               l->view.format ? l->view.format : "B", l->view.ndim);
        for (int i = 0; i < l->view.ndim; i++) {
            l->dims[i] = l->view.shape[i];
            l->dims[l->view.ndim + i] = l->view.strides[i];
        }
        l->pub.data = l->view.buf;
        l->pub.shape = l->dims;
        l->pub.strides = l->dims + l->view.ndim;
        l->pub.ndim = l->view.ndim;
        l->pub.device = MD_DEVICE_CPU;
        l->pub.bits = (uint32_t)l->view.itemsize * 8;
        l->pub.flags = l->view.readonly ? MD_READ_ONLY : 0;
    }
    if (flags & BOXED_WRITTEN && l->pub.flags & MD_READ_ONLY)
        return boxed_unfit(f, "it writes to an argument, and the memory of this %s is read-only",
                           type_name(object));
    out->kind = MD_BUFFER;
    out->as.buffer = &l->pub;
    return 0;
}

static int box(struct frame *f, PyObject *object, unsigned flags, int depth, md_value *out);

int boxed_keep(struct frame *f, PyObject *object) {
    struct lent *keeper = calloc(1, sizeof *keeper);
    if (!keeper) {
        Py_DECREF(object);
        return PyErr_NoMemory(), -1;
    }
    keeper->view.obj = object; /* PyBuffer_Release drops this reference */
    keeper->next = f->lent;
    f->lent = keeper;
    return 0;
}

/* A handle, or an object of a registered class, which gets one. 1: it is neither. */
static int box_object(struct frame *f, PyObject *object, md_value *out) {
    struct object *shared = object_of(object);
    if (!shared) {
        if (!(Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return 1;
        PyObject *asked = seam_at("a handle for an object of a class");
        PyObject *handle = asked ? PyObject_CallOneArg(asked, object) : NULL;
        Py_XDECREF(asked);
        if (!handle) return -1;
        shared = object_of(handle);
        if (!shared) {
            Py_DECREF(handle);
            return 1;
        }
        if (boxed_keep(f, handle)) return -1;
    }
    out->kind = MD_OBJECT;
    out->as.object = &shared->pub;
    return 0;
}

static int box_list(struct frame *f, PyObject *list, unsigned flags, int depth, md_value *out) {
    if (depth > MD_MAX_DEPTH)
        return boxed_unfit(f, "lists are nested deeper than %d", MD_MAX_DEPTH);
    /* A copy, since another thread may change the list meanwhile. */
    PyObject *items = PySequence_Tuple(list);
    if (!items) return -1;
    Py_ssize_t size = PyTuple_GET_SIZE(items);
    int rc = 0;
    if (boxed_keep(f, items)) return -1; /* so that the items live until the call ends */
    out->kind = MD_LIST;
    out->as.list.size = (size_t)size;
    out->as.list.items = boxed_alloc(&f->pub, (size_t)size * sizeof(md_value));
    if (!out->as.list.items) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < size && rc == 0; i++) {
        memset(&out->as.list.items[i], 0, sizeof(md_value));
        rc = box(f, PyTuple_GET_ITEM(items, i), flags, depth + 1, &out->as.list.items[i]);
    }
    return rc;
}

static int box_int(struct frame *f, PyObject *object, md_value *out) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow)
        return boxed_unfit(f, "an int is larger than the 64 bits that a kernel in C takes");
    if (value == -1 && PyErr_Occurred()) return -1;
    out->kind = MD_INT;
    out->as.integer = value;
    return 0;
}

static int box_str(struct frame *f, PyObject *object, md_value *out) {
    Py_ssize_t size;
    const char *utf8 = PyUnicode_AsUTF8AndSize(object, &size);
    if (!utf8) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return -1;
        PyErr_Clear();
        return boxed_unfit(f, "a str has half a character, which UTF-8 cannot say");
    }
    *out = md_of_str(utf8, (size_t)size);
    return 0;
}

static int box(struct frame *f, PyObject *object, unsigned flags, int depth, md_value *out) {
    if (object == Py_None) return 0;
    if (flags & BOXED_TENSOR) {
        if (PyList_CheckExact(object) || PyTuple_CheckExact(object))
            return box_list(f, object, flags, depth, out);
        return box_buffer(f, object, flags, out);
    }
    if (PyBool_Check(object)) {
        *out = md_of_bool(object == Py_True);
        return 0;
    }
    if (PyLong_Check(object)) return box_int(f, object, out);
    if (PyFloat_Check(object)) {
        *out = md_of_float(PyFloat_AS_DOUBLE(object));
        return 0;
    }
    if (PyUnicode_Check(object)) return box_str(f, object, out);
    if (PyBytes_Check(object)) {
        *out = md_of_bytes(PyBytes_AS_STRING(object), (size_t)PyBytes_GET_SIZE(object));
        return 0;
    }
    if (PyList_Check(object) || PyTuple_Check(object))
        return box_list(f, object, flags, depth, out);
    if (PyObject_CheckBuffer(object)) return box_buffer(f, object, flags, out);
    int rc = box_object(f, object, out);
    if (rc <= 0) return rc;
    return boxed_unfit(f,
                       "an object of %s cannot be passed to a kernel in C\n"
                       "A kernel in C takes None, bool, int, float, str, bytes, memory, handles "
                       "(mdispatch.share) and lists of these.",
                       type_name(object));
}

int boxed_value(struct frame *f, PyObject *object, unsigned flags, md_value *out) {
    return box(f, object, flags, 0, out);
}

int boxed_arguments(struct frame *f, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                    md_value *values) {
    const struct boxed_kernel *k = f->kernel;
    Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0, wanted = PyTuple_GET_SIZE(k->names);
    if (nargs != k->positional || named != wanted)
        return boxed_unfit(
            f,
            "its kernel in C takes %zd positional arguments and %zd by keyword, not %zd "
            "and %zd",
            k->positional, wanted, nargs, named);
    for (Py_ssize_t i = 0; i < nargs; i++) {
        if (box(f, args[i], k->flags[i], 0, &values[i])) return -1;
    }
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        Py_ssize_t at = 0;
        while (at < wanted && PyTuple_GET_ITEM(k->names, at) != name &&
               PyUnicode_Compare(PyTuple_GET_ITEM(k->names, at), name))
            at++;
        if (at == wanted) return boxed_unfit(f, "its kernel in C has no argument %R", name);
        at += nargs;
        if (box(f, args[nargs + i], k->flags[at], 0, &values[at])) return -1;
    }
    return 0;
}
