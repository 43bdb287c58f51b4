/* wire.c - the values of parcel.c as bytes, for calls in other processes.
 *
 * A message is STAMP, one value, and the bytes of the memory that the value shows. A value is a byte
 * that says its kind, then what that kind needs, in the byte order of the machine. A list has its
 * count and its items. Memory has its shape and where in the message its bytes stand; so the owner
 * shows a kernel memory that lies in a message, without a copy. An array is memory behind its form.
 *
 * What is read is anybody's bytes. Each number is read once, compared with what is left of the
 * message, and then used; nothing of the size of a number is made before that. A value may take a
 * hundred times its bytes in the message, so their count has a limit of its own. No object is made but
 * of the kinds of a parcel, nothing of the user is imported, and nothing of his is called but the
 * decode() of a class that he has registered here.
 */
#include <stddef.h>

#include "visit.h"

enum { ALIGNMENT = 64, STAMP = 0x4d02 };
enum { MOST_VALUES = 1 << 20 };  /* in a message, those in lists and lists themselves */
enum { LONGEST_FORM = 1 << 12 }; /* of an array, in bytes */
enum { SHARED = 1, COPIES = 2 }; /* how unpack() reads: see there */

static Py_ssize_t aligned(Py_ssize_t size) {
    return (size + ALIGNMENT - 1) & ~(Py_ssize_t)(ALIGNMENT - 1);
}

/* --- packing ---------------------------------------------------------------------------------- */

struct writer {
    char *start, *at;
    PyObject *known;   /* tuple: memory that the reader has already */
    PyObject *written; /* tuple: memory that the reader may write to */
    PyObject *met;     /* list: the memory, as often and in the order as it is written down */
    Py_ssize_t data;   /* how many bytes the memory needs */
    Py_ssize_t values; /* how many there are */
    int failed;
};

/* The place of an object in a tuple, by identity; -1. */
static Py_ssize_t place_in(PyObject *tuple, PyObject *object) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        if (PyTuple_GET_ITEM(tuple, i) == object) return i;
    }
    return -1;
}

/* How many bytes a value takes, without those of its memory, which get their places. */
static Py_ssize_t measure(struct writer *w, const struct parcel_value *v) {
    w->values++;
    switch (v->kind) {
    case VISIT_NONE:
        return 1;
    case VISIT_BOOL:
        return 2;
    case VISIT_STR:
    case VISIT_BYTES:
        return 9 + v->as.text.size;
    case VISIT_ENCODED:
    case VISIT_LIST: {
        Py_ssize_t size = 9;
        for (Py_ssize_t i = 0; i < v->as.list.size; i++) size += measure(w, &v->as.list.items[i]);
        return size;
    }
    case VISIT_MEMORY: {
        struct memory *m = v->as.memory;
        if (place_in(w->known, m->object) >= 0) return 9;
        if (m->at < 0) {
            m->at = w->data;
            w->data += aligned(m->len);
        }
        return 3 + VISIT_FORMAT + 8 * (2 + m->ndim) + (m->form ? 8 + strlen(m->form) : 0);
    }
    default:
        return 9;
    }
}

static void put(struct writer *w, const void *from, size_t size) {
    memcpy(w->at, from, size);
    w->at += size;
}

static void put_byte(struct writer *w, int byte) {
    *w->at++ = (char)byte;
}

static void put_number(struct writer *w, int64_t number) {
    put(w, &number, sizeof number);
}

static void put_value(struct writer *w, const struct parcel_value *v) {
    Py_ssize_t place;
    if (v->kind == VISIT_MEMORY && (place = place_in(w->known, v->as.memory->object)) >= 0) {
        put_byte(w, VISIT_ARGUMENT);
        put_number(w, place);
        return;
    }
    const char *form = v->kind == VISIT_MEMORY ? v->as.memory->form : NULL;
    put_byte(w, form ? VISIT_ARRAY : v->kind);
    if (form) {
        put_number(w, (int64_t)strlen(form));
        put(w, form, strlen(form));
    }
    switch (v->kind) {
    case VISIT_BOOL:
        put_byte(w, v->as.integer != 0);
        break;
    case VISIT_INT:
        put_number(w, v->as.integer);
        break;
    case VISIT_FLOAT:
        put(w, &v->as.real, 8);
        break;
    case VISIT_STR:
    case VISIT_BYTES:
        put_number(w, v->as.text.size);
        put(w, v->as.text.data, (size_t)v->as.text.size);
        break;
    case VISIT_ENCODED:
    case VISIT_LIST:
        put_number(w, v->as.list.size);
        for (Py_ssize_t i = 0; i < v->as.list.size; i++) put_value(w, &v->as.list.items[i]);
        break;
    case VISIT_MEMORY: {
        struct memory *m = v->as.memory;
        put_byte(w, m->ndim);
        put_byte(w, m->readonly || place_in(w->written, m->object) < 0);
        put(w, m->format, VISIT_FORMAT);
        put_number(w, m->itemsize);
        for (int i = 0; i < m->ndim; i++) put_number(w, m->dims[i]);
        put_number(w, m->at);
        if (PyList_Append(w->met, m->object)) w->failed = 1;
        break;
    }
    default:
        break;
    }
}

static int put_data(struct writer *w, char *data, struct memory *all) {
    for (struct memory *m = all; m; m = m->next) {
        if (m->at >= 0 && PyBuffer_ToContiguous(data + m->at, &m->view, m->len, 'C')) return -1;
    }
    return 0;
}

/* pack(value, depth, known, written, met, arena, limit): the value as a message. `depth` is that of the
 * value's lists which are none of the user's, below 0; `known` and `written` are tuples of memory,
 * by identity, `met` a list. Returns bytes where the message has at most `limit` of them; its size where it is
 * larger, and then it stands in `arena`, if that is large enough (None is not); the number of its
 * values, below 0, where these are more than MOST_VALUES; the name of a type that cannot travel. */
PyObject *ext_pack(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 7 || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3]) ||
        !PyList_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "pack() takes seven arguments");
        return NULL;
    }
    long depth = PyLong_AsLong(args[1]);
    Py_ssize_t limit = PyLong_AsSsize_t(args[6]);
    if (PyErr_Occurred()) return NULL;
    struct parcel p = {.leaves = 1};
    struct parcel_value value = {VISIT_NONE, {0}};
    PyObject *result = NULL;
    int why = parcel_put(&p, args[0], &value, (int)depth, NULL);
    if (why == -1) result = PyUnicode_DecodeUTF8(p.unfit, (Py_ssize_t)strlen(p.unfit), "replace");
    if (why == 0) {
        struct writer w = {NULL, NULL, args[2], args[3], args[4], 0, 0, 0};
        for (struct memory *m = p.memory; m; m = m->next) m->at = -1;
        Py_ssize_t head = aligned(2 + measure(&w, &value)), size = head + w.data;
        for (struct memory *m = p.memory; m; m = m->next) m->at += m->at < 0 ? 0 : head;
        Py_buffer arena = {0};
        if (w.values > MOST_VALUES) {
            result = PyLong_FromSsize_t(-w.values);
        } else if (size <= limit) {
            result = PyBytes_FromStringAndSize(NULL, size);
            if (result) w.start = PyBytes_AS_STRING(result);
        } else if (args[5] == Py_None || PyObject_GetBuffer(args[5], &arena, PyBUF_WRITABLE) == 0) {
            result = PyLong_FromSsize_t(size);
            if (result && arena.len >= size) w.start = arena.buf;
        }
        if (w.start) {
            uint16_t stamp = STAMP;
            w.at = w.start;
            put(&w, &stamp, sizeof stamp);
            put_value(&w, &value);
            memset(w.at, 0, (size_t)(w.start + head - w.at));
            if (put_data(&w, w.start, p.memory) || w.failed) Py_CLEAR(result);
        }
        PyBuffer_Release(&arena);
    }
    parcel_end(&p);
    return result;
}

/* --- unpacking -------------------------------------------------------------------------------- */

struct reader {
    PyObject *body, *known, *met;
    PyTypeObject *lent;
    const char *start, *at, *end;
    int how;
    Py_ssize_t left; /* how many values may still come */
};

static void *bad(const char *what) {
    PyErr_Format(PyExc_ValueError, "a message of a routed call is damaged: %s", what);
    return NULL;
}

static int take(struct reader *r, void *to, size_t size) {
    if ((size_t)(r->end - r->at) < size) return bad("it is cut off"), -1;
    memcpy(to, r->at, size);
    r->at += size;
    return 0;
}

/* A number from 0 to `most`. */
static int take_number(struct reader *r, Py_ssize_t most, Py_ssize_t *out) {
    int64_t number;
    if (take(r, &number, sizeof number)) return -1;
    if (number < 0 || number > most) return bad("a size is wrong"), -1;
    *out = (Py_ssize_t)number;
    return 0;
}

/* Whether readers of memory with this format stay inside its items: memoryview trusts it. */
static int format_fits(const char *format, Py_ssize_t itemsize) {
    static const struct {
        char format;
        size_t size;
    } sizes[] = {{'?', sizeof(_Bool)},
                 {'c', 1},
                 {'b', 1},
                 {'B', 1},
                 {'h', sizeof(short)},
                 {'H', sizeof(short)},
                 {'i', sizeof(int)},
                 {'I', sizeof(int)},
                 {'l', sizeof(long)},
                 {'L', sizeof(long)},
                 {'q', 8},
                 {'Q', 8},
                 {'n', sizeof(size_t)},
                 {'N', sizeof(size_t)},
                 {'e', 2},
                 {'f', sizeof(float)},
                 {'d', sizeof(double)},
                 {'P', sizeof(void *)}};
    if (strchr(format, 'O')) return 0;
    const char *code = format[0] == '@' ? format + 1 : format;
    if (strlen(code) != 1) return 1; /* memoryview does not read these, and NumPy checks them */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].format == *code) return (size_t)itemsize == sizes[i].size;
    }
    return 0;
}

/* Takes over `form`, NULL for memory that is no array. */
static PyObject *take_memory(struct reader *r, char *form) {
    unsigned char head[2 + VISIT_FORMAT];
    Py_ssize_t whole = r->end - r->start, itemsize, len, place;
    struct memory *m = calloc(1, sizeof *m);
    if (!m) {
        free(form);
        return PyErr_NoMemory();
    }
    atomic_store(&m->refs, 1);
    m->form = form;
    PyObject *view = NULL;
    if (take(r, head, sizeof head) || take_number(r, whole, &itemsize)) goto done;
    if (head[0] > VISIT_MAX_NDIM || !itemsize || head[sizeof head - 1]) {
        bad("odd memory");
        goto done;
    }
    memcpy(m->format, head + 2, VISIT_FORMAT);
    m->ndim = head[0];
    m->readonly = head[1] != 0;
    m->itemsize = len = itemsize;
    for (int i = 0; i < m->ndim; i++) {
        if (take_number(r, PY_SSIZE_T_MAX, &m->dims[i])) goto done;
        if (m->dims[i] && len > whole / m->dims[i]) {
            bad("memory is larger than the message");
            goto done;
        }
        len *= m->dims[i];
    }
    Py_ssize_t step = itemsize;
    for (int i = m->ndim - 1; i >= 0; i--) {
        m->dims[m->ndim + i] = step;
        step *= m->dims[i] ? m->dims[i] : 1; /* nothing is read where a length is 0 */
        if (step > whole && len) {
            bad("odd memory");
            goto done;
        }
        if (step > whole) step = itemsize;
    }
    m->len = len;
    if (take_number(r, whole, &place)) goto done;
    if (len > whole - place || !format_fits(m->format, itemsize)) {
        bad("odd memory");
        goto done;
    }
    if (r->how & COPIES) {
        m->own = malloc(len ? (size_t)len : 1);
        if (!m->own) {
            PyErr_NoMemory();
            goto done;
        }
        memcpy(m->own, r->start + place, (size_t)len);
        m->data = m->own;
        m->readonly = 0;
        view = parcel_show(r->lent, m, NULL);
    } else {
        Py_buffer pin;
        if (PyObject_GetBuffer(r->body, &pin, PyBUF_SIMPLE)) goto done;
        m->data = (char *)pin.buf + place;
        if (pin.readonly) m->readonly = 1;
        view = parcel_show(r->lent, m, &pin);
    }
    view = parcel_formed(m, view);
    if (view && PyList_Append(r->met, atomic_load(&m->refs) > 1 ? view : Py_None)) Py_CLEAR(view);
done:
    parcel_let_go(m);
    return view;
}

/* Memory behind its form: visible ASCII and spaces. */
static PyObject *take_array(struct reader *r) {
    Py_ssize_t size;
    if (take_number(r, LONGEST_FORM, &size)) return NULL;
    char *form = malloc((size_t)size + 1);
    if (!form) return PyErr_NoMemory();
    form[size] = 0;
    if (take(r, form, (size_t)size)) {
        free(form);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        if (form[i] < ' ' || form[i] > '~') {
            free(form);
            return bad("odd memory");
        }
    }
    return take_memory(r, form);
}

static PyObject *take_text(struct reader *r, int kind) {
    Py_ssize_t size;
    if (take_number(r, r->end - r->at, &size)) return NULL;
    if (size > r->end - r->at) return bad("it is cut off");
    const char *text = r->at;
    r->at += size;
    if (kind == VISIT_STR && !(r->how & SHARED)) return PyUnicode_DecodeUTF8(text, size, NULL);
    PyObject *bytes = PyBytes_FromStringAndSize(text, size), *made = bytes;
    if (bytes && kind == VISIT_STR) { /* nobody changes it while it is decoded */
        made = PyUnicode_DecodeUTF8(PyBytes_AS_STRING(bytes), size, NULL);
        Py_DECREF(bytes);
    }
    return made;
}

static PyObject *take_value(struct reader *r, int depth) {
    unsigned char kind, byte;
    int64_t number;
    double real;
    Py_ssize_t size;
    if (r->left-- <= 0) return bad("it has too many values");
    if (take(r, &kind, 1)) return NULL;
    switch (kind) {
    case VISIT_NONE:
        Py_RETURN_NONE;
    case VISIT_BOOL:
        return take(r, &byte, 1) ? NULL : PyBool_FromLong(byte != 0);
    case VISIT_INT:
        return take(r, &number, 8) ? NULL : PyLong_FromLongLong(number);
    case VISIT_FLOAT:
        return take(r, &real, 8) ? NULL : PyFloat_FromDouble(real);
    case VISIT_STR:
    case VISIT_BYTES:
        return take_text(r, kind);
    case VISIT_MEMORY:
        return take_memory(r, NULL);
    case VISIT_ARRAY:
        return take_array(r);
    case VISIT_ARGUMENT:
        if (take_number(r, PyTuple_GET_SIZE(r->known) - 1, &size)) return NULL;
        return Py_NewRef(PyTuple_GET_ITEM(r->known, size));
    case VISIT_LIST: {
        if (depth > VISIT_MAX_DEPTH + 4) return bad("its lists are too deep");
        if (take_number(r, r->end - r->at, &size)) return NULL; /* an item has at least a byte */
        if (size > r->left) return bad("it has too many values");
        PyObject *made = PyList_New(size);
        for (Py_ssize_t i = 0; made && i < size; i++) {
            PyObject *item = take_value(r, depth + 1);
            if (item)
                PyList_SET_ITEM(made, i, item);
            else
                Py_CLEAR(made);
        }
        return made;
    }
    case VISIT_ENCODED: {
        if (depth > VISIT_MAX_DEPTH + 4) return bad("its lists are too deep");
        if (take_number(r, 2, &size)) return NULL;
        if (size != 2) return bad("a size is wrong");
        PyObject *name = take_value(r, depth + 1);
        return parcel_decoded(name, name ? take_value(r, depth + 1) : NULL);
    }
    default:
        return bad("it has a value of an unknown kind");
    }
}

/* unpack(body, known, met, how): the value of a message, any memory. `met` is a list as for
 * pack(), with None for an array that is a copy; `known` is the tuple that it had. `how` is a sum: SHARED, another
 * process can write to the body; COPIES, its memory is copied and not shown. ValueError for what is
 * no message. */
PyObject *ext_unpack(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !PyTuple_Check(args[1]) || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "unpack() takes four arguments");
        return NULL;
    }
    long how = PyLong_AsLong(args[3]);
    Py_buffer body;
    if ((how == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[0], &body, PyBUF_SIMPLE))
        return NULL;
    PyObject *made = NULL;
    const char *start = body.buf;
    struct reader r = {args[0], args[1], args[2],          visit_lent(self),
                       start,   start,   start + body.len, (int)how, MOST_VALUES};
    uint16_t stamp;
    if (take(&r, &stamp, sizeof stamp) == 0)
        made = stamp == STAMP ? take_value(&r, 0) : bad("it begins with another stamp");
    PyBuffer_Release(&body);
    return made;
}

/* write_back(to, from): copies memory of the same shape. */
PyObject *ext_write_back(PyObject *self, PyObject *args) {
    PyObject *to, *from;
    if (!PyArg_ParseTuple(args, "OO", &to, &from) || PyObject_CopyData(to, from)) return NULL;
    Py_RETURN_NONE;
}
