/* frame.c - one boxed call: its memory, and its errors. */
#include "frame.h"

#include <stdarg.h>
#include <stdio.h>

static int note_no_memory(struct frame *f) {
    f->error = MD_ERROR_MEMORY;
    f->text[0] = '\0';
    return MD_ERROR_MEMORY;
}

void *boxed_alloc(md_call *call, size_t bytes) {
    struct frame *f = (struct frame *)call;
    struct chunk *c = bytes > PY_SSIZE_T_MAX ? NULL : malloc(sizeof *c + (bytes ? bytes : 1));
    if (!c) {
        note_no_memory(f);
        return NULL;
    }
    c->next = f->chunks;
    f->chunks = c;
    return c->data;
}

static int call_fail(md_call *call, int error, const char *format, ...) {
    struct frame *f = (struct frame *)call;
    va_list args;
    va_start(args, format);
    vsnprintf(f->text, sizeof f->text, format, args);
    va_end(args);
    f->error = error ? error : MD_ERROR_KERNEL;
    return f->error;
}

/* The letter of the struct module for an element type; NULL when it has none. */
const char *boxed_format(int code, int bits) {
    static const struct {
        int code, bits;
        const char *format;
    } known[] = {
        {MD_DTYPE_INT, 8, "b"},        {MD_DTYPE_INT, 16, "h"},   {MD_DTYPE_INT, 32, "i"},
        {MD_DTYPE_INT, 64, "q"},       {MD_DTYPE_UINT, 8, "B"},   {MD_DTYPE_UINT, 16, "H"},
        {MD_DTYPE_UINT, 32, "I"},      {MD_DTYPE_UINT, 64, "Q"},  {MD_DTYPE_FLOAT, 16, "e"},
        {MD_DTYPE_FLOAT, 32, "f"},     {MD_DTYPE_FLOAT, 64, "d"}, {MD_DTYPE_COMPLEX, 64, "Zf"},
        {MD_DTYPE_COMPLEX, 128, "Zd"}, {MD_DTYPE_BOOL, 8, "?"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].code == code && known[i].bits == bits) return known[i].format;
    }
    return NULL;
}

/* Writes shape and strides, in C order. Returns the size in bytes, -1 when that is too large. */
static int64_t lay_out(int64_t *dims, int ndim, const int64_t *shape, int64_t itemsize) {
    int64_t size = itemsize, step = itemsize;
    for (int i = ndim - 1; i >= 0; i--) {
        dims[i] = shape[i];
        dims[ndim + i] = step;
        if (shape[i] < 0 || __builtin_mul_overflow(size, shape[i], &size)) return -1;
        if (__builtin_mul_overflow(step, shape[i] ? shape[i] : 1, &step)) return -1;
    }
    return size > PY_SSIZE_T_MAX / 2 ? -1 : size;
}

static md_buffer *call_buffer(md_call *call, int code, int bits, int ndim, const int64_t *shape) {
    struct frame *f = (struct frame *)call;
    if (!boxed_format(code, bits) || ndim < 0 || ndim > MD_MAX_NDIM || (ndim && !shape)) {
        call_fail(call, MD_ERROR_VALUE,
                  "no buffer can have elements of code %d with %d bits in %d dimensions", code,
                  bits, ndim);
        return NULL;
    }
    struct owned *o = calloc(1, sizeof *o);
    int64_t size = o ? lay_out(o->shape, ndim, shape, bits / 8) : 0;
    if (o && size < 0) {
        free(o);
        call_fail(call, MD_ERROR_VALUE, "no buffer can have this shape");
        return NULL;
    }
    if (o) o->pub.data = calloc(1, size ? (size_t)size : 1);
    if (!o || !o->pub.data) {
        free(o);
        note_no_memory(f);
        return NULL;
    }
    o->size = size;
    o->pub.shape = o->shape;
    o->pub.strides = o->shape + ndim;
    o->pub.ndim = ndim;
    o->pub.device = MD_DEVICE_CPU;
    o->pub.code = (uint32_t)code;
    o->pub.bits = (uint32_t)bits;
    o->next = f->owned;
    f->owned = o;
    return &o->pub;
}

static md_object *call_object(md_call *call, const char *class_name, void *payload,
                              void (*destroy)(void *payload)) {
    struct frame *f = (struct frame *)call;
    struct made *m = boxed_alloc(call, sizeof *m);
    struct object *o =
        m ? object_make(class_name ? class_name : "", OBJECT_OF_C, 0, payload, destroy) : NULL;
    if (!o) {
        note_no_memory(f);
        return NULL;
    }
    *m = (struct made){f->made, o};
    f->made = m;
    return &o->pub;
}

void boxed_end(struct frame *f) {
    for (; f->made; f->made = f->made->next) object_let_go(f->made->object);
    for (int i = 0; i < 3; i++) Py_XDECREF(f->raised[i]);
    while (f->chunks) {
        struct chunk *next = f->chunks->next;
        free(f->chunks);
        f->chunks = next;
    }
    while (f->lent) {
        struct lent *next = f->lent->next;
        PyBuffer_Release(&f->lent->view);
        free(f->lent);
        f->lent = next;
    }
    while (f->owned) {
        struct owned *next = f->owned->next;
        if (!f->owned->object) free(f->owned->pub.data); /* else the object owns it */
        Py_XDECREF(f->owned->object);
        free(f->owned);
        f->owned = next;
    }
}

int boxed_unfit(const struct frame *f, const char *format, ...) {
    va_list args;
    va_start(args, format);
    PyObject *what = PyUnicode_FromFormatV(format, args);
    va_end(args);
    if (!what) return -1;
    PyObject *error = PyObject_CallFunction(f->kernel->boxing_error, "NOO",
                                            PyUnicode_FromFormat("%U(): %U", f->kernel->op, what),
                                            f->kernel->op, f->kernel->label);
    Py_DECREF(what);
    if (error) PyErr_SetObject(f->kernel->boxing_error, error);
    Py_XDECREF(error);
    return -1;
}

void boxed_raise(struct frame *f, int error) {
    PyObject *const classes[] = {
        [MD_ERROR_VALUE] = PyExc_ValueError,
        [MD_ERROR_TYPE] = PyExc_TypeError,
        [MD_ERROR_INDEX] = PyExc_IndexError,
        [MD_ERROR_MEMORY] = PyExc_MemoryError,
        [MD_ERROR_OVERFLOW] = PyExc_OverflowError,
        [MD_ERROR_ARITHMETIC] = PyExc_ArithmeticError,
        [MD_ERROR_NOT_IMPLEMENTED] = PyExc_NotImplementedError,
    };
    const struct boxed_kernel *k = f->kernel;
    size_t size = strlen(f->text);
    PyObject *text = PyUnicode_DecodeUTF8(f->text, (Py_ssize_t)size, "replace"), *made = NULL;
    if (!text) return;
    if (error == MD_ERROR_RAISED && f->raised[0]) {
        Py_DECREF(text);
        PyErr_Restore(f->raised[0], f->raised[1], f->raised[2]);
        memset(f->raised, 0, sizeof f->raised);
        return;
    }
    int is_builtin = error > MD_ERROR_KERNEL && error <= MD_ERROR_NOT_IMPLEMENTED;
    if (is_builtin && size) {
        PyErr_SetObject(classes[error], text);
    } else if (is_builtin) {
        PyErr_Format(classes[error], "%U(): kernel %U failed", k->op, k->label);
    } else {
        PyObject *whole = PyUnicode_FromFormat(size ? "%U(): %U" : "%U(): kernel %U failed", k->op,
                                               size ? text : k->label);
        if (whole)
            made = PyObject_CallFunction(k->kernel_error, "NOOi", whole, k->op, k->label, error);
        if (made) PyErr_SetObject(k->kernel_error, made);
    }
    Py_XDECREF(made);
    Py_DECREF(text);
}

void boxed_begin(struct frame *f, const struct boxed_kernel *k, void *user) {
    memset(f, 0, offsetof(struct frame, text) + 1);
    f->pub = (md_call){MD_KERNEL_ABI, MD_KERNEL_MINOR, k->op_utf8,  user, boxed_alloc,
                       call_buffer,   call_fail,       call_object, NULL};
    f->kernel = k;
}
