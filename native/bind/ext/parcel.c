/* parcel.c - values on their way from one interpreter to another one of the process.
 *
 * None, bool, int, float, str, bytes, lists of these, memory (the buffer protocol), handles, and objects
 * of classes with a codec, which are a name and a text on their way (across/by_value.py). On the way
 * there texts stay where the caller has them, for the caller stays in its call until the visit has
 * ended. On the way home everything is copied, for the owner's objects end in the owner.
 *
 * Memory is shown, and not copied: the owner gets a memoryview of an object of the type Lent. When
 * that object is gone, nobody in the owner can reach the memory any more. A kernel that keeps it has
 * broken the rule; the memory then stays pinned, and the caller gives it back at a later visit.
 *
 * An array of NumPy or of PyTorch is memory with a form, a text that only across/arrays.py reads. The
 * receiver gets the array that is made there of the memoryview and the form.
 *
 * Locking: `lock` guards the list of what was kept. Nobody waits, or runs Python, with it.
 */
#include <pthread.h>
#include <stddef.h>

#include "object.h"
#include "seam.h"
#include "visit.h"

struct parcel_chunk {
    struct parcel_chunk *next;
    max_align_t data[];
};

struct parcel_object {
    struct parcel_object *next;
    struct object *object;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *kept;    /* under lock */
static _Atomic int kept_count; /* changed under lock; read without it, to skip the sweep */

void *parcel_alloc(struct parcel *p, size_t bytes) {
    struct parcel_chunk *c = malloc(sizeof *c + (bytes ? bytes : 1));
    if (!c) {
        PyErr_NoMemory();
        return NULL;
    }
    c->next = p->chunks;
    p->chunks = c;
    return c->data;
}

/* --- Lent: memory of another interpreter, or of a result -------------------------------------- */

struct lent {
    PyObject_HEAD struct memory *memory;
    Py_buffer pin; /* of a message that has the memory; obj is NULL in a visit */
};

void parcel_let_go(struct memory *m) {
    if (atomic_fetch_sub(&m->refs, 1) == 1) {
        free(m->own);
        free(m->form);
        free(m);
    }
}

static int lent_get(PyObject *self, Py_buffer *view, int flags) {
    struct memory *m = ((struct lent *)self)->memory;
    memset(view, 0, sizeof *view);
    view->buf = m->data;
    view->len = m->len;
    view->itemsize = m->itemsize;
    view->ndim = m->ndim;
    view->format = m->format;
    view->shape = m->dims;
    view->strides = m->dims + m->ndim;
    view->readonly = m->readonly;
    const char *refusal = NULL;
    if (flags & PyBUF_WRITABLE && m->readonly) refusal = "the memory is read-only";
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !PyBuffer_IsContiguous(view, 'C'))
        refusal = "the memory is not in C order";
    if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'C'))
        refusal = "the memory is not in C order";
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'F'))
        refusal = "the memory is not in Fortran's order";
    if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !PyBuffer_IsContiguous(view, 'A'))
        refusal = "the memory is not contiguous";
    if (refusal) {
        PyErr_SetString(PyExc_BufferError, refusal);
        return -1;
    }
    if (!(flags & PyBUF_FORMAT)) view->format = NULL;
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES) view->strides = NULL;
    if (!(flags & PyBUF_ND)) view->shape = NULL;
    view->obj = Py_NewRef(self);
    return 0;
}

static void lent_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc tp_free = PyType_GetSlot(type, Py_tp_free);
    PyBuffer_Release(&((struct lent *)self)->pin);
    parcel_let_go(((struct lent *)self)->memory);
    tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot lent_slots[] = {
    {Py_tp_dealloc, lent_dealloc},
    {Py_bf_getbuffer, lent_get},
    {Py_tp_doc, "Memory of a call from another interpreter. Use memoryview()."},
    {0, NULL},
};

static PyType_Spec lent_spec = {
    .name = "mdispatch.facts.native._ext.Lent",
    .basicsize = sizeof(struct lent),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = lent_slots,
};

int visit_exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &lent_spec, NULL);
    int rc = type ? PyModule_AddObjectRef(module, "Lent", type) : -1;
    Py_XDECREF(type);
    *(PyTypeObject **)PyModule_GetState(module) = rc ? NULL : (PyTypeObject *)type;
    return rc;
}

PyTypeObject *visit_lent(PyObject *module) {
    return *(PyTypeObject **)PyModule_GetState(module);
}

PyObject *parcel_show(PyTypeObject *type, struct memory *m, Py_buffer *pin) {
    struct lent *made = (struct lent *)type->tp_alloc(type, 0);
    if (!made) {
        if (pin) PyBuffer_Release(pin);
        return NULL;
    }
    made->memory = m;
    if (pin) made->pin = *pin;
    atomic_fetch_add(&m->refs, 1);
    PyObject *view = PyMemoryView_FromObject((PyObject *)made);
    Py_DECREF(made);
    return view;
}

/* --- putting ---------------------------------------------------------------------------------- */

static int unfit_by_name(struct parcel *p, const char *name) {
    char *copy = parcel_alloc(p, strlen(name) + 1);
    if (!copy) return -2;
    p->unfit = strcpy(copy, name);
    return -1;
}

static int unfit(struct parcel *p, PyObject *object) {
    return unfit_by_name(p, Py_TYPE(object)->tp_name);
}

static int put_text(struct parcel *p, const char *data, Py_ssize_t size, int copies,
                    struct parcel_value *out) {
    if (copies) {
        char *copy = parcel_alloc(p, (size_t)size);
        if (!copy) return -2;
        data = memcpy(copy, data, (size_t)size);
    }
    out->as.text.data = data;
    out->as.text.size = size;
    return 0;
}

/* The steps of memory in C order. */
static void set_steps(struct memory *m, const Py_ssize_t *shape) {
    Py_ssize_t step = m->itemsize;
    for (int i = m->ndim - 1; i >= 0; i--) {
        m->dims[m->ndim + i] = step;
        step *= shape[i];
    }
}

/* The result's memory is copied in C order: the owner's object stays behind. */
static int copy_memory(struct memory *m) {
    Py_buffer *view = &m->view;
    m->own = malloc(view->len ? (size_t)view->len : 1);
    if (!m->own) return PyErr_NoMemory(), -1;
    if (PyBuffer_ToContiguous(m->own, view, view->len, 'C')) return -1;
    set_steps(m, view->shape);
    m->data = m->own;
    m->readonly = 0;
    PyBuffer_Release(view);
    m->object = NULL;
    return 0;
}

/* Whether it is memory that the other side, or this parcel, has already. */
static int is_known(struct parcel *p, PyObject *object, struct parcel_value *out,
                    const struct parcel *given) {
    out->kind = VISIT_MEMORY;
    for (struct memory *m = given ? given->memory : NULL; m; m = m->next) {
        if (m->shown == object) { /* an argument, returned */
            out->as.memory = m;
            return 1;
        }
    }
    for (struct memory *m = given ? NULL : p->memory; m; m = m->next) {
        if (m->object == object) { /* one object is one memory, even if it is passed twice */
            out->as.memory = m;
            return 1;
        }
    }
    return 0;
}

/* The memory of an object, which `exporter` shows: the object itself, or another for an array. */
static int put_memory(struct parcel *p, PyObject *object, PyObject *exporter, const char *form,
                      struct parcel_value *out, const struct parcel *given) {
    out->kind = VISIT_MEMORY;
    size_t size = form ? strlen(form) + 1 : 0;
    struct memory *m = calloc(1, sizeof *m);
    if (m && form) m->form = malloc(size);
    if (!m || (form && !m->form)) {
        free(m);
        return PyErr_NoMemory(), -2;
    }
    if (form) memcpy(m->form, form, size);
    if (PyObject_GetBuffer(exporter, &m->view, PyBUF_RECORDS_RO)) {
        free(m->form);
        free(m);
        if (!PyErr_ExceptionMatches(PyExc_BufferError) &&
            !PyErr_ExceptionMatches(PyExc_ValueError)) /* NumPy raises it for dates */
            return -2;
        PyErr_Clear();
        return unfit(p, object);
    }
    const char *format = m->view.format ? m->view.format : "B";
    if (format[0] == '<' && format[1] && m->view.itemsize == 1)
        format++; /* of ctypes: it says nothing */
    int fits = m->view.ndim <= VISIT_MAX_NDIM && strlen(format) < VISIT_FORMAT &&
               !strchr(format, 'O'); /* an object is no memory */
    m->object = object;
    m->home = PyInterpreterState_Get();
    m->len = m->view.len;
    m->itemsize = m->view.itemsize;
    m->ndim = m->view.ndim;
    m->data = m->view.buf;
    m->readonly = m->view.readonly;
    if (fits) {
        strcpy(m->format, format);
        for (int i = 0; i < m->ndim; i++) {
            m->dims[i] = m->view.shape[i];
            if (m->view.strides) m->dims[m->ndim + i] = m->view.strides[i];
        }
        if (!m->view.strides) set_steps(m, m->view.shape); /* ctypes says none: C order */
    }
    if (!fits || (given && copy_memory(m))) {
        PyBuffer_Release(&m->view);
        free(m->own);
        free(m->form);
        free(m);
        return fits ? -2 : unfit(p, object);
    }
    atomic_store(&m->refs, 1);
    m->next = p->memory;
    p->memory = m;
    out->as.memory = m;
    return 0;
}

static int put_list(struct parcel *p, PyObject *list, struct parcel_value *out, int depth,
                    const struct parcel *given) {
    if (depth > VISIT_MAX_DEPTH) return unfit(p, list);
    /* A copy, since another thread may change the list meanwhile. */
    PyObject *items = PySequence_Tuple(list);
    if (!items) return -2;
    Py_ssize_t size = PyTuple_GET_SIZE(items);
    int rc = -2;
    out->kind = VISIT_LIST;
    out->as.list.size = size;
    out->as.list.items = parcel_alloc(p, (size_t)size * sizeof *out->as.list.items);
    if (out->as.list.items) rc = 0;
    if (!given && rc == 0) { /* the texts are the items' own */
        if (!p->keepers) p->keepers = PyList_New(0);
        if (!p->keepers || PyList_Append(p->keepers, items)) rc = -2;
    }
    for (Py_ssize_t i = 0; i < size && rc == 0; i++)
        rc = parcel_put(p, PyTuple_GET_ITEM(items, i), &out->as.list.items[i], depth + 1, given);
    Py_DECREF(items);
    return rc;
}

static int put_object(struct parcel *p, struct object *o, struct parcel_value *out) {
    struct parcel_object *each = parcel_alloc(p, sizeof *each);
    if (!each) return -2;
    object_hold(o);
    *each = (struct parcel_object){p->objects, o};
    p->objects = each;
    out->kind = VISIT_OBJECT;
    out->as.object = o;
    return 0;
}

/* An object of a class with a codec. Python's encoded() gives a pair of the name and the text, a str that
 * says why there is none, or None for an object of any other class. */
static int put_encoded(struct parcel *p, PyObject *object, struct parcel_value *out,
                       const struct parcel *given) {
    if (!(Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return unfit(p, object);
    PyObject *encode = seam_at("the text of an object");
    PyObject *told = encode ? PyObject_CallOneArg(encode, object) : NULL;
    Py_XDECREF(encode);
    if (!told) return -2;
    int rc;
    if (PyTuple_Check(told)) {
        rc = put_list(p, told, out, 0, given);
        out->kind = VISIT_ENCODED;
    } else if (PyUnicode_Check(told)) {
        const char *why = PyUnicode_AsUTF8(told);
        rc = why ? unfit_by_name(p, why) : -2;
    } else {
        rc = unfit(p, object);
    }
    Py_DECREF(told);
    return rc;
}

/* Memory, an array, a handle, or an object of a class with a codec. Python's memory_of() gives a pair of
 * the form of an array and an object that shows its memory, a str that says why there is none, or
 * None for any other object. */
static int put_other(struct parcel *p, PyObject *object, struct parcel_value *out,
                     const struct parcel *given) {
    int is_memory = PyObject_CheckBuffer(object);
    if (is_known(p, object, out, given)) return 0;
    if (is_memory && !(Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) &&
        (PyMemoryView_Check(object) || PyByteArray_Check(object)))
        return put_memory(p, object, object, NULL, out, given);
    struct object *shared = p->leaves || is_memory ? NULL : object_of(object);
    if (shared) return put_object(p, shared, out);
    PyObject *ask = seam_at("the memory of an array");
    PyObject *told = ask ? PyObject_CallOneArg(ask, object) : NULL;
    Py_XDECREF(ask);
    if (!told) return -2;
    int rc = -2;
    const char *text;
    if (told == Py_None) {
        rc = is_memory ? put_memory(p, object, object, NULL, out, given)
                       : put_encoded(p, object, out, given);
    } else if (PyUnicode_Check(told)) {
        if ((text = PyUnicode_AsUTF8(told))) rc = unfit_by_name(p, text);
    } else if ((text = PyUnicode_AsUTF8(PyTuple_GetItem(told, 0)))) {
        rc = put_memory(p, object, PyTuple_GetItem(told, 1), text, out, given);
    }
    Py_DECREF(told);
    return rc;
}

int parcel_put(struct parcel *p, PyObject *object, struct parcel_value *out, int depth,
               const struct parcel *given) {
    if (PyLong_Check(object) && !PyBool_Check(object)) {
        int overflow;
        out->kind = VISIT_INT;
        out->as.integer = PyLong_AsLongLongAndOverflow(object, &overflow);
        return overflow ? unfit(p, object) : 0;
    }
    if (object == Py_None) {
        out->kind = VISIT_NONE;
        return 0;
    }
    if (PyBool_Check(object)) {
        out->kind = VISIT_BOOL;
        out->as.integer = object == Py_True;
        return 0;
    }
    if (PyFloat_Check(object)) {
        out->kind = VISIT_FLOAT;
        out->as.real = PyFloat_AS_DOUBLE(object);
        return 0;
    }
    if (PyUnicode_Check(object)) {
        Py_ssize_t size;
        const char *utf8 = PyUnicode_AsUTF8AndSize(object, &size);
        out->kind = VISIT_STR;
        if (utf8) return put_text(p, utf8, size, given != NULL, out);
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return -2;
        PyErr_Clear(); /* half a character, which UTF-8 cannot say */
        return unfit(p, object);
    }
    if (PyBytes_Check(object)) {
        out->kind = VISIT_BYTES;
        return put_text(p, PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object), given != NULL, out);
    }
    if (PyList_Check(object) || PyTuple_Check(object))
        return put_list(p, object, out, depth, given);
    return put_other(p, object, out, given);
}

/* --- taking ----------------------------------------------------------------------------------- */

static PyObject *take_memory(PyTypeObject *lent, struct memory *m) {
    if (m->home == PyInterpreterState_Get() && m->object) return Py_NewRef(m->object);
    PyObject *taken = parcel_formed(m, parcel_show(lent, m, NULL));
    m->shown = atomic_load(&m->refs) > 1 ? taken : NULL; /* a copy is no argument */
    return taken;
}

PyObject *parcel_formed(const struct memory *m, PyObject *view) {
    if (!view || !m->form) return view;
    PyObject *make = seam_at("an array of its memory");
    PyObject *made =
        make ? PyObject_CallFunction(make, "sOO", m->form, view, m->own ? Py_True : Py_False)
             : NULL;
    Py_XDECREF(make);
    Py_DECREF(view);
    return made;
}

PyObject *parcel_decoded(PyObject *name, PyObject *text) {
    PyObject *made = NULL, *decode = NULL;
    if (name && text) decode = seam_at("an object from its text");
    if (decode) made = PyObject_CallFunctionObjArgs(decode, name, text, NULL);
    Py_XDECREF(decode);
    Py_XDECREF(name);
    Py_XDECREF(text);
    return made;
}

PyObject *parcel_take(PyTypeObject *lent, const struct parcel_value *value) {
    switch (value->kind) {
    case VISIT_NONE:
    case VISIT_ARGUMENT: /* not in a visit */
    case VISIT_ARRAY:
        break;
    case VISIT_BOOL:
        return PyBool_FromLong(value->as.integer != 0);
    case VISIT_INT:
        return PyLong_FromLongLong(value->as.integer);
    case VISIT_FLOAT:
        return PyFloat_FromDouble(value->as.real);
    case VISIT_STR:
        return PyUnicode_DecodeUTF8(value->as.text.data, value->as.text.size, NULL);
    case VISIT_BYTES:
        return PyBytes_FromStringAndSize(value->as.text.data, value->as.text.size);
    case VISIT_MEMORY:
        return take_memory(lent, value->as.memory);
    case VISIT_OBJECT:
        return object_shown(value->as.object);
    case VISIT_ENCODED: {
        PyObject *name = parcel_take(lent, &value->as.list.items[0]);
        return parcel_decoded(name, name ? parcel_take(lent, &value->as.list.items[1]) : NULL);
    }
    case VISIT_LIST: {
        PyObject *made = PyList_New(value->as.list.size);
        for (Py_ssize_t i = 0; made && i < value->as.list.size; i++) {
            PyObject *item = parcel_take(lent, &value->as.list.items[i]);
            if (item)
                PyList_SET_ITEM(made, i, item);
            else
                Py_CLEAR(made);
        }
        return made;
    }
    }
    Py_RETURN_NONE;
}

/* --- ending ----------------------------------------------------------------------------------- */

static void keep(struct memory *m) {
    pthread_mutex_lock(&lock);
    m->next = kept;
    kept = m;
    atomic_fetch_add(&kept_count, 1);
    pthread_mutex_unlock(&lock);
}

int parcel_end(struct parcel *p) {
    int was_kept = 0;
    while (p->memory) {
        struct memory *m = p->memory;
        p->memory = m->next;
        if (m->view.obj && atomic_load(&m->refs) > 1) {
            Py_INCREF(m->object);
            keep(m);
            was_kept = 1;
            continue;
        }
        PyBuffer_Release(&m->view); /* does nothing for a result */
        parcel_let_go(m);
    }
    for (; p->objects; p->objects = p->objects->next) object_let_go(p->objects->object);
    while (p->chunks) {
        struct parcel_chunk *next = p->chunks->next;
        free(p->chunks);
        p->chunks = next;
    }
    Py_CLEAR(p->keepers);
    return was_kept;
}

void parcel_sweep(void) {
    if (!atomic_load_explicit(&kept_count, memory_order_relaxed)) return;
    PyInterpreterState *here = PyInterpreterState_Get();
    struct memory *ended = NULL;
    pthread_mutex_lock(&lock);
    for (struct memory **at = &kept; *at;) {
        struct memory *m = *at;
        if (m->home == here && atomic_load(&m->refs) == 1) {
            *at = m->next;
            m->next = ended;
            ended = m;
            atomic_fetch_sub(&kept_count, 1);
        } else {
            at = &m->next;
        }
    }
    pthread_mutex_unlock(&lock);
    while (ended) {
        struct memory *m = ended;
        ended = m->next;
        PyBuffer_Release(&m->view);
        Py_DECREF(m->object);
        parcel_let_go(m);
    }
}

/* In the child of a fork another thread may have had the lock. */
void parcel_forked(void) {
    pthread_mutex_init(&lock, NULL);
}
