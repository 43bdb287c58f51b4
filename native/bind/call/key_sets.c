/* key_sets.c - `&`, `|` and `-` of two DispatchKeySets, which kernels use to go on below their key.
 *
 * The class is one of Python (mdispatch/keys/key_sets.py), and its own methods are the
 * specification. Its slots for these operators lead to functions of C instead, which compute the
 * bits of two sets of this very class and call the method for everything else. A subclass that has
 * a method of its own has a slot of its own, too.
 *
 * A kernel gets the same set in call after call, and takes the keys below its own of it: so a set
 * keeps what `&` has made of it last, and of which bits. The set that is kept is always the younger
 * one, so that sets make no cycles. Without a GIL none is kept.
 *
 * These functions see only the two sets, so where a set has its slots is kept for the whole process:
 * it is the same in all interpreters.
 */
#include "state.h"

static a64 place, met_at, meet_at;
static PyObject *key_sets_and(PyObject *a, PyObject *b);

enum which { AND, OR, SUBTRACT };

static inline PyObject *with_bits(PyTypeObject *type, Py_ssize_t at, uint64_t raw) {
    PyObject *number = PyLong_FromUnsignedLongLong(raw);
    PyObject *made = number ? type->tp_alloc(type, 0) : NULL;
    if (made)
        *(PyObject **)((char *)made + at) = number;
    else
        Py_XDECREF(number);
    return made;
}

PyObject *key_set_of(const struct state *st, uint64_t raw) {
    if (st->key_set_type) return with_bits((PyTypeObject *)st->key_set_type, st->raw_at, raw);
    return PyErr_Format(PyExc_RuntimeError, "this interpreter ends: its key sets are gone");
}

PyObject *key_set_for(struct state *st, struct target *target, uint64_t raw) {
    if (keeps_key_set(target, raw)) return Py_NewRef(target->key_set);
    PyObject *made = key_set_of(st, raw);
    if (made) keep_key_set(target, made, raw);
    return made;
}

/* What the slot of CPython would do: it looks whether it is in its place. */
static __attribute__((noinline)) PyObject *by_method(PyObject *a, PyObject *b, const char *method) {
    const PyTypeObject *base = Py_TYPE(a);
    while (base && base->tp_base != &PyBaseObject_Type) base = base->tp_base;
    const PyNumberMethods *methods = base ? base->tp_as_number : NULL;
    if (!methods || methods->nb_and != key_sets_and) Py_RETURN_NOTIMPLEMENTED; /* b is the set */
    return PyObject_CallMethod(a, method, "O", b);
}

static inline PyObject **slot_of(PyObject *set, const a64 *at) {
    return (PyObject **)((char *)set + peek(at));
}

/* What `a & b` was when it was made last, if that was of these bits; or NULL. */
static inline PyObject *kept_meet(PyObject *a, PyObject *b) {
    if (!KEY_SETS_KEEP || Py_TYPE(a)->tp_base != &PyBaseObject_Type) return NULL;
    if (*slot_of(a, &met_at) != *slot_of(b, &place)) return NULL;
    return Py_XNewRef(*slot_of(a, &meet_at));
}

static inline void keep_meet(PyObject *a, PyObject *b, PyObject *made) {
    if (!KEY_SETS_KEEP) return;
    Py_XSETREF(*slot_of(a, &met_at), Py_NewRef(*slot_of(b, &place)));
    Py_XSETREF(*slot_of(a, &meet_at), Py_NewRef(made));
}

static inline PyObject *combined(PyObject *a, PyObject *b, enum which which, const char *method) {
    PyTypeObject *type = Py_TYPE(a);
    Py_ssize_t at = (Py_ssize_t)peek(&place);
    uint64_t left, right;
    if (which == AND && LIKELY(type == Py_TYPE(b))) {
        PyObject *kept = kept_meet(a, b);
        if (kept) return kept;
    }
    if (UNLIKELY(type != Py_TYPE(b) || type->tp_base != &PyBaseObject_Type ||
                 as_raw(*(PyObject **)((char *)a + at), &left) ||
                 as_raw(*(PyObject **)((char *)b + at), &right)))
        return by_method(a, b, method);
    uint64_t raw = which == AND  ? left & right
                   : which == OR ? left | right
                                 : left & ~(right & ~UINT64_C(0xffff)); /* backends stay */
    PyObject *made = with_bits(type, at, raw);
    if (which == AND && made) keep_meet(a, b, made);
    return made;
}

static PyObject *key_sets_and(PyObject *a, PyObject *b) {
    return combined(a, b, AND, "__and__");
}
static PyObject *key_sets_or(PyObject *a, PyObject *b) {
    return combined(a, b, OR, "__or__");
}
static PyObject *key_sets_subtract(PyObject *a, PyObject *b) {
    return combined(a, b, SUBTRACT, "__sub__");
}

void key_sets_install(PyTypeObject *type, Py_ssize_t raw_at, Py_ssize_t met, Py_ssize_t meet) {
    PyNumberMethods *methods = type->tp_as_number;
    if (!methods || type->tp_base != &PyBaseObject_Type) return;
    atomic_store(&place, (uint64_t)raw_at);
    atomic_store(&met_at, (uint64_t)met);
    atomic_store(&meet_at, (uint64_t)meet);
    methods->nb_and = key_sets_and;
    methods->nb_or = key_sets_or;
    methods->nb_subtract = key_sets_subtract;
}
