/* call.h - what the files of the call path know of each other: call.c (operators), plan.c (what a call
 * was found to need), types.c (which keys a value carries), readers.c (free threading).
 *
 * Python is the specification (mdispatch/_call_py.py): whatever is not plain here is done there, so
 * a file of these never raises on its own, and never decides otherwise. But what is asked here runs
 * code of users, and between two of its steps a signal's handler: what those raise ends the call.
 * Therefore a 0 or NULL that says "Python has to see to it" may come with an error, which is then the
 * call's, see `md__forget_own`.
 *
 * Locking: with a GIL, what is marked [gil] is read and written while holding it. Without one, see
 * Note [Readers] in readers.c; [atomic] is read and written through the atomics below in every build.
 */
#ifndef MD_BIND_CALL_H
#define MD_BIND_CALL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <structmember.h>

#include "../mdispatch.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum { FUNCTIONALITIES = 47, BACKENDS = 16, ENTRIES = 160, TYPES = 512, MOST_ARGUMENTS = 48 };

typedef _Atomic uint64_t a64;

static inline uint64_t peek(const a64 *p) {
    return atomic_load_explicit((a64 *)p, memory_order_relaxed);
}

/* How a value is taken as it is: what else a type of a schema takes is converted, or refused, in
 * Python. The numbers are those of mdispatch/_shapes_of_calls.py. */
enum kind { OTHER, ANYTHING, SOMETHING, EXACT, NUMBER, TENSOR, LIST };

struct take {
    PyTypeObject *exact; /* EXACT, or a LIST of those; owned */
    uint64_t counts;     /* TENSOR: which bits of its keys the call is about, all or none */
    uint8_t kind;
    uint8_t none_fits;
    uint8_t item; /* LIST: the kind of its items */
    uint8_t item_none_fits;
};

struct argument {
    struct take take;
    PyObject *name;
    PyObject *value; /* the default, NULL without one */
    uint8_t is_list; /* the default is a tuple of which every call gets a list of its own */
};

/* A schema, as far as calls need it. Never changes. */
typedef struct {
    PyObject_HEAD Py_ssize_t positional, keyword_only, returns;
    PyObject *keywords; /* the names of the keyword-only ones; NULL without any */
    uint8_t is_plain; /* arguments that are all given by position go on to the kernel as they are */
    struct argument *arguments; /* the positional ones, then the keyword-only ones */
    struct take *results;
} Shape;

/* What keeps a registry's words in place, one per registry and interpreter. */
typedef struct {
    PyObject_HEAD struct state *state;
    md_registry registry;
    md_held *held;
    a64 touched; /* what this interpreter knows of its overloads has changed so often */
} View;

/* A kernel that a call came to. */
struct target {
    PyObject *function;
    PyObject *kernel;  /* the LocalKernel, for errors */
    PyObject *key_set; /* [gil] the last one it was given */
    uint64_t key_set_raw;
    uint8_t with_operator; /* what it gets in front of the arguments */
    uint8_t with_key_set;
};

/* What the facts of one version give. Its targets are found one by one, as calls come to them. */
typedef struct {
    PyObject_VAR_HEAD const a64 *word; /* the operator's version, in the registry */
    uint64_t version, epoch, generation;
    uint64_t mask;
    uint64_t *masks; /* by backend, NULL where one is enough */
    View *view;
    Shape *shape;
    PyObject *table, *signature;
    _Atomic uint8_t at[ENTRIES]; /* number of the target + 1; 0: not known yet */
#ifdef Py_GIL_DISABLED
    PyMutex lock; /* over adding a target */
#endif
    uint8_t used, most;
    struct target targets[];
} Plan;

enum { NO_TARGET = 255 }; /* in at[]: Python has to see to it */

/* The plan of an operator, shared by all its handles. */
typedef struct {
    PyObject_HEAD struct state *state;
    _Atomic(Plan *) plan;
    a64 changes; /* how often what is here was said to have changed */
} Cell;

/* The base of OpOverload. */
typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    struct state *state;
    Cell *cell; /* set once, before the first call */
    uint64_t generation;
} Operator;

/* What a thread adds to its calls' keys and takes away. The base of guards.ThreadSets. */
typedef struct {
    PyObject_HEAD struct state *state;
    a64 sequence; /* odd while it is written */
    a64 included, kept;
    uint8_t differs; /* from what threads start with; under the lock of ThreadSets */
} Sets;

/* See Note [Types] in types.c. */
struct known {
    a64 sequence;
    _Atomic(PyTypeObject *) type;
    a64 raw;
    _Atomic uint32_t tag, how;
};

struct state {
    a64 epoch;  /* raised by all that concerns every plan of this interpreter */
    a64 guards; /* the threads' sets that differ from what threads start with */
    a64 off;    /* bits: why every call goes through Python */
    a64 types_epoch;
    uint64_t included, kept, special;
    uint64_t per_backend; /* the bits of the functionalities that exist per backend */
    uint8_t offset[FUNCTIONALITIES + 1];
    PyTypeObject *operator_type, *packet_type, *route_type, *names_type, *shape_type, *view_type,
        *plan_type, *cell_type, *sets_type;
    PyObject *call, *redispatch, *renew, *target, *check, *call_packet, *renew_packet;
    PyObject *raw_of_type, *raw_of, *from_raw, *local, *key_set_type, *own_errors;
    PyObject *sets_name, *keys_name, *missing_name, *raw_by_name;
    Py_ssize_t raw_at; /* where a DispatchKeySet has its bits */
    struct known known[TYPES];
    struct readers *readers;
};

/* Our own complaints are forgotten: Python comes to the same, and has more to say. */
static inline void md__forget_own(const struct state *st) {
    if (PyErr_Occurred() && st->own_errors && PyErr_ExceptionMatches(st->own_errors)) PyErr_Clear();
}

/* A new reference, or NULL with an error or without: without a GIL, another thread may take out what
 * was found. */
static inline PyObject *md__dict_find(PyObject *dict, PyObject *key) {
    PyObject *found = NULL;
#if PY_VERSION_HEX >= 0x030d0000
    (void)PyDict_GetItemRef(dict, key, &found);
#else
    found = Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
    return found;
}

/* Whether it is one of Python's own types: what their values are not, these do not become by an
 * attribute. */
static inline int md__is_builtin(const PyTypeObject *type) {
    return type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type ||
           type == &PyBool_Type || type == &PyList_Type || type == &PyTuple_Type ||
           type == &PyDict_Type || type == &PyComplex_Type || type == &PyBytes_Type;
}

/* types.c */
int md__tensor_slow(struct state *st, PyObject *value, uint64_t *raw);
void md__types_changed(struct state *st);

/* The bits of a value that is a tensor; 0 when it is none, or Python has to find out, or with an
 * error. */
static inline int tensor(struct state *st, PyObject *value, uint64_t *raw) {
    PyTypeObject *type = Py_TYPE(value);
    struct known *k = &st->known[((uintptr_t)type >> 4 ^ (uintptr_t)type >> 13) % TYPES];
#ifdef Py_GIL_DISABLED
    uint64_t sequence = atomic_load_explicit(&k->sequence, memory_order_acquire);
#endif
    PyTypeObject *known = atomic_load_explicit(&k->type, memory_order_relaxed);
    uint32_t tag = atomic_load_explicit(&k->tag, memory_order_relaxed);
    uint64_t found = peek(&k->raw);
    uint32_t how = atomic_load_explicit(&k->how, memory_order_relaxed);
#ifdef Py_GIL_DISABLED
    atomic_thread_fence(memory_order_acquire);
    if (UNLIKELY(sequence & 1 || peek(&k->sequence) != sequence))
        return md__tensor_slow(st, value, raw);
    uint32_t tag_now = __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
#else
    uint32_t tag_now = type->tp_version_tag;
#endif
    if (LIKELY(known == type && tag == tag_now && how == 1)) {
        *raw |= found;
        return 1;
    }
    return md__tensor_slow(st, value, raw);
}

/* readers.c */
int md__readers_make(struct state *st);
void md__readers_free(struct state *st);
#ifdef Py_GIL_DISABLED
a64 *md__readers_enter(struct state *st);
void md__retire(struct state *st, PyObject *object);
void md__readers_unlock(struct state *st);
static inline void md__readers_exit(a64 *inside) {
    atomic_fetch_sub_explicit(inside, 1, memory_order_release);
}
#else
static inline void md__retire(struct state *st, PyObject *object) {
    (void)st;
    Py_XDECREF(object);
}
#endif

/* call.c */
PyObject *md__operator_call(PyObject *self, PyObject *const *args, size_t nargsf,
                            PyObject *kwnames);
/* Whether the operator takes the arguments as they are; then it was called. */
bool md__operator_try(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                      PyObject **result);
/* Whether it certainly refuses them: 1; 0 when Python has to find out; -1 with an error. */
int md__operator_refuses(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *md__operator_redispatch(PyObject *self, PyObject *const *args, Py_ssize_t n,
                                  PyObject *kwnames);
PyObject *md__in_python(PyObject *function, PyObject *self, PyObject *const *args, size_t nargsf,
                        PyObject *kwnames);

/* handles.c */
struct state *md__state_of(PyTypeObject *type);

/* plan.c */
extern PyType_Spec md__shape_spec, md__view_spec, md__plan_spec, md__cell_spec, md__sets_spec;
struct target *md__target_find(struct state *st, Plan *plan, unsigned index);

#endif
