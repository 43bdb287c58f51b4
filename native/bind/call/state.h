/* state.h - what the files of the call path share: the module's state, and the objects that a call
 * is made of.
 *
 * mdispatch/dispatch/call_py.py is the specification. These files handle plain calls and leave all
 * others to Python, so they raise no error of their own and decide nothing differently. But they
 * run code of users when they ask a value for its keys, and a signal handler may run in between. An
 * error from there ends the call. So where these files return 0 or NULL for "Python handles this",
 * an error may be set, and then it is the call's error: see `forget_own`.
 *
 * Locking: gil.h and nogil.h say how threads share these objects, and Note [Readers] in readers.c
 * why that is enough without a GIL. A field of type a64 or _Atomic is atomic in both builds; [gil]
 * marks the fields that only the build with a GIL uses, while it holds the GIL. All other fields
 * are set before other threads see the object, or have their rule beside them.
 */
#ifndef MD_CALL_STATE_H
#define MD_CALL_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <structmember.h>

#include "../../mdispatch.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    FUNCTIONALITIES = 47,
    BACKENDS = 16,
    ENTRIES = 160,
    TYPES = 512,
    MOST_ARGUMENTS = 48,
    DEVICES = 32,
    QUICK = 5,
    CALL_SLOTS = 13,
    HANDLE_SLOTS = 4
};

typedef _Atomic uint64_t a64;

static inline uint64_t peek(const a64 *p) {
    return atomic_load_explicit((a64 *)p, memory_order_relaxed);
}

/* Which values a type of a schema takes as they are. What it takes after a conversion, `taken` in
 * take.c knows. Python refuses the others. The numbers are those of dispatch/shape.py. */
enum kind {
    OTHER,
    ANYTHING,
    SOMETHING,
    EXACT, /* of this class, or what can be converted to it */
    NUMBER,
    TENSOR,
    LIST,
    SIZE, /* as EXACT, or a DynamicSize, which is for Python */
    DICT,
    TUPLE,
    CLASS, /* of this class or one that is derived from it, or an object that says so itself */
    LITERAL, /* one of `values`, of just its class */
    ONE_OF   /* a value that fits one of the inner takes as it is; none is composed, or a TENSOR */
};

struct take {
    PyTypeObject *exact; /* EXACT, SIZE: the class; owned. Else NULL */
    uint64_t counts;     /* TENSOR, LIST: all bits when its keys count for the call, else 0 */
    struct take *inner;  /* LIST: of the items; DICT: of keys and values; TUPLE: of each item;
                            ONE_OF: those that are tried */
    Py_ssize_t inners;
    PyObject *values; /* CLASS: the class; LITERAL: a tuple; owned. Else NULL */
    Py_ssize_t size;  /* LIST: so many are made of one number; 0: a number is no list */
    uint8_t kind;
    uint8_t none_fits;
    _Atomic uint32_t accepted; /* CLASS: the tag of a type that an abstract class has accepted, or 0 */
};

struct argument {
    struct take take;
    PyObject *name;
    PyObject *value; /* the default, NULL without one */
    uint8_t is_list; /* the default is a tuple; each call gets a new list of its items */
};

/* What calls need of a schema. Never changes. */
typedef struct {
    PyObject_HEAD Py_ssize_t positional, keyword_only, returns;
    PyObject *keywords;         /* the names of the keyword-only ones; NULL without any */
    uint8_t is_plain;           /* a call by position alone can pass on the caller's array */
    struct argument *arguments; /* the positional ones, then the keyword-only ones */
    struct take *results;
} Shape;

/* Keeps a registry's memory mapped, so that plans can point to its version words. There is one for
 * each registry and interpreter. */
typedef struct {
    PyObject_HEAD struct state *state;
    md_registry registry;
    md_held *held;
    a64 touched; /* raised when what this interpreter knows of the overloads changes */
} View;

/* A kernel that some call has reached. */
struct target {
    PyObject *function;
    PyObject *kernel;  /* the LocalKernel, for errors */
    PyObject *key_set; /* [gil] the one that it got last */
    uint64_t key_set_raw;
    uint8_t with_operator;    /* it gets the operator in front of the arguments */
    uint8_t with_key_set;     /* it gets the key set in front of all that */
    _Atomic(PyObject *) said; /* for observers, see observers.c; NULL until one is there */
};

/* See Note [Remembered calls] in remember.c. */
enum { REMEMBERED = 4 };
struct memory {
    a64 sequence;                    /* odd while it is written */
    a64 types_epoch;                 /* of the state; 0: nothing is remembered */
    _Atomic(struct target *) target; /* NULL: it has to be found out */
    a64 raw;                         /* the keys of the arguments that are taken as they are */
    _Atomic uint32_t others;         /* a bit for each argument that is none of these */
    _Atomic uint32_t converted;      /* and those of them that are no Tensors by the schema */
    _Atomic(PyTypeObject *) types[REMEMBERED]; /* only compared; NULL: any type */
    _Atomic uint32_t tags[REMEMBERED];
    _Atomic uint32_t times; /* see `is_due` */
};

/* See Note [Choices] in by_type.c. A tensor's type, and the argument that it stands in. */
struct tensor_type {
    PyTypeObject *type;
    uint32_t tag, argument;
};

struct choice {
    struct plan *plan; /* owned */
    uint32_t n;
    struct tensor_type seen[];
};

/* A table in which there are always places without a choice. */
enum { PLACES_OF_CHOICES = 128, MOST_CHOICES = 96 };
struct choices {
    uint8_t used; /* under `lock` */
    uint8_t n_tensors;
    uint8_t is_plain;                               /* these are no tensors, but plain values */
    _Atomic uint8_t is_abstract;                    /* abstract classes may choose */
    a64 token;                                      /* of abstract classes, then */
    uint8_t are_few;                                /* one or two, and no lists */
    uint8_t tensors[MOST_ARGUMENTS];                /* the arguments whose types choose */
    _Atomic(struct choice *) at[PLACES_OF_CHOICES]; /* each set once */
};

/* What calls need of one version of an operator's facts. A target is added when a call first
 * reaches it, and one call is remembered; nothing else changes. */
typedef struct plan {
    PyObject_VAR_HEAD const a64 *word; /* the operator's version, in the registry */
    uint64_t version, epoch, generation;
    uint64_t mask;
    uint64_t *masks; /* by backend; NULL when `mask` serves all */
    View *view;
    Shape *shape;
    PyObject *table, *signature;
    uint8_t gate;     /* what PyTorch wants to see of its calls */
    uint64_t written; /* the arguments that calls write to which PyTorch does not want */
    PyObject *torch; /* PyTorch's operator, if it wants all with its tensors alone; or NULL */
    struct memory arguments, result;
    Py_ssize_t remembered;       /* how many arguments a remembered call has; -1 when none can be */
    struct choices *choices;     /* NULL, or the types of each call choose another plan */
    _Atomic uint8_t at[ENTRIES]; /* number of the target + 1; 0: not known yet */
    uint8_t used, most;          /* `used`: under `lock` */
    struct target targets[];
} Plan;

enum { NO_TARGET = 255 }; /* in at[]: Python makes these calls */

/* Holds the plan of an operator. All handles of the operator share it. */
typedef struct {
    PyObject_HEAD struct state *state;
    _Atomic(Plan *) plan;
    a64 changes;   /* how often the cell was cleared */
    a64 has_rules; /* whether the operator ever had rules for classes: see handlers.c */
} Cell;

/* The base of OpOverload. */
typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    struct state *state;
    Cell *cell; /* set once, before the first call */
    uint64_t generation;
} Operator;

/* The keys that a thread includes in its calls and those that it excludes: see guards.c. */
enum { INCLUDED, EXCLUDED };
struct step;
struct side {
    uint64_t base;
    struct step *steps; /* of the open guards, the oldest first */
    Py_ssize_t used, room;
};
typedef struct {
    PyObject_HEAD struct state *state;
    a64 sequence; /* without a GIL: odd while the next two are written */
    a64 included, kept;
    /* The rest: under `lock`. */
    struct side sides[2];
    uint64_t openings;
    uint8_t differs; /* from the sets that threads start with */
} Sets;

/* The sets with which a call was made. */
struct noted {
    uint64_t included, excluded;
    bool is_set;
};

/* The modes of a thread, see handlers.c, and the observed calls that it is in, see observers.c.
 * Only that thread uses it. */
typedef struct {
    PyObject_HEAD struct state *state;
    PyObject *entries, *pre_dispatch; /* lists of ModeEntry, the lowest first */
    struct noted on_entry, handled;   /* see ModeStack in modes.py */
    Py_ssize_t depth;                 /* of observed calls */
    char is_observer;                 /* it runs an observer */
    a64 priority; /* the number of the open guards of priorities, 0 without any; who ends a guard may
                 * be another thread: see providers.c */
} Stack;

enum { NOT_NUMBERED = 1 }; /* in Stack.priority: Python has to look which guards are open */

/* A class of guards that C makes: see guards.c. */
struct quick {
    PyTypeObject *type;
    uint64_t raw;
    uint8_t side, takes_keys, of_thread;
    PyObject *given; /* [gil] the DispatchKeySet that one was made with last, or NULL */
    uint64_t given_raw;
};

/* See Note [Types] in keys.c. */
enum { UNKNOWN, REGISTERED, BY_ATTRIBUTE, BY_TORCH, BY_PYTHON, NEVER, HANDLED, BY_DEVICE, BY_SHARDING };
struct known {
    a64 sequence;
    _Atomic(PyTypeObject *) type;
    a64 raw;
    _Atomic uint32_t tag, how;
};

/* In a word of keys, beside our bits: a tensor of PyTorch is among the values, and one whose class
 * has a __torch_function__. Python gives the second one with the class: see
 * mdispatch/dispatch/context/values.py. */
#define FROM_TORCH (UINT64_C(1) << 63)
#define WITH_FUNCTION (UINT64_C(1) << 62)

/* What PyTorch wants to see of an operator's calls (mdispatch/torch/side.py: gate_of). The last one
 * is for a plan from before PyTorch was there. */
enum { NO_GATE, ALWAYS, WATCHED, GRADIENTS, UNDECIDED };

/* See Note [Tensors] in torch.c. */
enum { SETS = 64, PLACES = 64, UNWATCHED = 8, TOLD = 9 };
struct torch {
    _Atomic(PyObject *) ask; /* PyTorch's function that says a tensor's keys */
    PyObject *known;         /* a dict: the numbers of its sets as ours. Set before `ask` */
    PyObject *other;         /* makes a tensor of another set, or None. Set before `ask` */
    PyObject *is_watched;    /* whether PyTorch watches this thread. Set before `ask` */
    PyObject *writing;       /* for calls that write. Set before `ask` */
    PyObject *record;        /* makes a record for PyTorch's profiler. Set before `ask` */
    PyObject *are_aliases;   /* whether results share memory, or None. Set before `ask` */
    void *library;           /* that has the sets of threads; NULL when they are not found */
    /* Of this thread; NULL: not found. The last one: whether it has a TorchFunctionMode. */
    bool (*are_gradients_on)(void), (*is_profiled)(void), (*asks_functions)(void);
    /* [gil] The rest. */
    /* Of Note [Writes]; the first is NULL as long as PyTorch has not confirmed the rest. */
    PyObject *raise_version, *forward, *level_name;
    uint64_t below_autograd, at_views, views, autograd;
    bool writes_refused;
    uint8_t search; /* OPEN, FOUND or GIVEN_UP */
    uint16_t in_object, in_impl;
    uint64_t first; /* the first set that was seen */
    struct words {
        uint64_t included, excluded;
    } unwatched[UNWATCHED]; /* sets of threads of which Python said that PyTorch does not watch */
    uint8_t n_unwatched;
    uint8_t n_places, tried;
    struct place {
        uint16_t in_object, in_impl;
    } places[PLACES];
    struct {
        uint64_t theirs, ours;
    } sets[SETS];
};

struct state {
    a64 epoch;    /* raised by each change that concerns all plans of this interpreter */
    a64 contexts; /* how many threads have Sets that differ from those that threads start with, and
                   * one more while there are observers: while it is 0, a call that is remembered
                   * looks at neither */
    a64 off;      /* not 0: every call goes through Python */
    a64 types_epoch; /* raised before and after the table of types is emptied: odd meanwhile */
    a64 converted;   /* raised when a conversion may have run code of users */
    uint64_t included, excluded, kept, special;
    uint64_t wrapped;         /* the keys of values that PyTorch has wrapped */
    uint64_t functionalities; /* the bits of those that exist per backend, known from the start */
    uint64_t thread;          /* [gil] the id of the thread whose Sets are in `sets` */
    Sets *sets;               /* [gil] borrowed, or NULL: it has none */
    Stack *stack;             /* [gil] the same */
    uint64_t python, below_python, above_python, snapshot, below_snapshot; /* see handlers.c */
    Py_ssize_t mode_at, rank_at; /* where a ModeEntry has these */
    struct quick quick[QUICK];
    uint64_t per_backend; /* the bits of the functionalities that exist per backend */
    uint8_t offset[FUNCTIONALITIES + 1];
    PyTypeObject *operator_type, *packet_type, *route_type, *names_type, *shape_type, *view_type,
        *plan_type, *cell_type, *sets_type, *guard_type, *stack_type, *forward_type, *unshared_type,
        *steps_type;
    PyObject *call, *redispatch, *renew, *target, *check, *call_packet, *renew_packet, *for_types;
    PyObject *how_of_type, *raw_of, *key_type, *key_set_type, *own_errors;
    PyObject *python_fallback, *snapshot_fallback, *mode_type, *entry_type, *answered, *declined;
    PyObject *handler_name, *cuda_name, *array_name, *base_name, *guards_name;
    PyObject *raw_by_key; /* of what guards were given, see guards.c */
    PyObject *end_name, *not_entered_name, *keys_name, *device_name, *sharding_name, *repr_name, *grad_name,
        *missing_name, *raw_by_name, *raw_by_sharding, *dynamic_name, *object_name, *class_name;
    PyTypeObject *abstract; /* the metaclass of abstract base classes */
    PyObject *abstract_token; /* abc.get_cache_token */
    /* Of observers.c: those who are told, NULL when there are none; how many calls they were told
     * of; and where an ObservedCall and an ObserverHandle have their slots. */
    _Atomic(PyObject *) observers;
    a64 observed;
    PyObject *observed_type, *handle_type, *runtime_keys, *said, *observer_failed,
        *observer_succeeded, *observed_ended;
    PyObject *by_call, *by_redispatch;
    Py_ssize_t call_at[CALL_SLOTS], handle_at[HANDLE_SLOTS];
    struct torch torch;
    uint64_t devices[DEVICES]; /* the keys of DLPack's devices; 0 where there is none */
    Py_ssize_t raw_at;         /* where a DispatchKeySet has its bits */
    struct known known[TYPES];
    struct readers *readers;
};

/* guards.c: this thread's Sets and Stack, borrowed; NULL without an error when it has none. */
Sets *sets_find(struct state *st);
Stack *stack_find(struct state *st);

#ifdef Py_GIL_DISABLED
#include "nogil.h"
#else
#include "gil.h"
#endif

/* An attribute that a value may lack: 1 with a new reference, 0, or -1 with an error. */
static inline int optional_attribute(PyObject *value, PyObject *name, PyObject **found) {
#if PY_VERSION_HEX >= 0x030d0000
    return PyObject_GetOptionalAttr(value, name, found);
#else
    return _PyObject_LookupAttr(value, name, found);
#endif
}

/* Clears an error of mdispatch: Python will raise the same error, with better words. */
static inline void forget_own(const struct state *st) {
    if (PyErr_Occurred() && st->own_errors && PyErr_ExceptionMatches(st->own_errors)) PyErr_Clear();
}

/* Whether it is one of Python's own types: their values have no attributes that could carry keys or
 * make them anything else. */
static inline int is_builtin(const PyTypeObject *type) {
    return type == &PyLong_Type || type == &PyFloat_Type || type == &PyUnicode_Type ||
           type == &PyBool_Type || type == &PyList_Type || type == &PyTuple_Type ||
           type == &PyDict_Type || type == &PyComplex_Type || type == &PyBytes_Type;
}

/* The bits that a Python int holds; -1 without an error when it cannot hold a set of keys. */
static inline int as_raw(PyObject *number, uint64_t *raw) {
    if (!number || !PyLong_CheckExact(number)) return -1;
#if PY_VERSION_HEX < 0x030e0000 /* the digits themselves: this is in the way of every call */
#if PY_VERSION_HEX < 0x030c0000
    const digit *digits = ((PyLongObject *)number)->ob_digit;
    Py_ssize_t n = Py_SIZE(number);
#else
    const digit *digits = ((PyLongObject *)number)->long_value.ob_digit;
    uintptr_t tag = ((PyLongObject *)number)->long_value.lv_tag;
    Py_ssize_t n = (tag & 3) == 2 ? -1 : (Py_ssize_t)(tag >> 3);
#endif
    if (LIKELY(PyLong_SHIFT == 30 && n >= 0 && n <= 3 && (n < 3 || digits[2] < 16))) {
        *raw = 0;
        for (Py_ssize_t i = n; i-- > 0;) *raw = *raw << 30 | digits[i];
        return 0;
    }
#endif
    unsigned long long value = PyLong_AsUnsignedLongLong(number);
    if (value == (unsigned long long)-1) {
        PyErr_Clear();
        return -1;
    }
    *raw = value;
    return 0;
}

/* keys.c */
/* Adds the keys of a value whose type the table says this of: 1 when it is a tensor, 0 when it is
 * none, -1, perhaps with an error, when only Python can tell. */
int ask_keys(struct state *st, PyObject *value, uint32_t how, uint64_t keys, uint64_t *raw);
/* As is_tensor, where the table does not tell. */
int ask_tensor(struct state *st, PyObject *value, uint32_t how, uint64_t keys);
void types_changed(struct state *st);
/* The type's version tag; CPython gives it one now if it has none. 0 when it gives it none. Runs no
 * code of users. */
uint32_t given_tag(struct state *st, PyTypeObject *type);

static inline struct known *known_at(struct state *st, const PyTypeObject *type) {
    return &st->known[((uintptr_t)type >> 4 ^ (uintptr_t)type >> 13) % TYPES];
}

/* What the table says of a type: how its values are asked for their keys, and the type's keys.
 * UNKNOWN when it says nothing. */
static inline uint32_t how_known(struct state *st, PyTypeObject *type, uint64_t *keys) {
    const struct known *k = known_at(st, type);
    uint64_t begun = begin_read(&k->sequence);
    PyTypeObject *known = atomic_load_explicit(&k->type, memory_order_relaxed);
    uint32_t tag = atomic_load_explicit(&k->tag, memory_order_relaxed);
    uint32_t how = atomic_load_explicit(&k->how, memory_order_relaxed);
    *keys = peek(&k->raw);
    if (UNLIKELY(!is_whole(&k->sequence, begun))) return UNKNOWN;
    return LIKELY(known == type && tag == version_tag(type)) ? how : UNKNOWN;
}

/* As ask_keys, which is only asked where the type does not tell. */
static inline int carries(struct state *st, PyObject *value, uint64_t *raw) {
    uint64_t keys;
    uint32_t how = how_known(st, Py_TYPE(value), &keys);
    if (UNLIKELY(how != REGISTERED)) return ask_keys(st, value, how, keys, raw);
    *raw |= keys;
    return 1;
}

/* Whether a type makes its values tensors, by what the table says of it, whatever their keys. */
static inline bool is_tensors(uint32_t how, uint64_t keys) {
    return how == REGISTERED || how == BY_TORCH || how == HANDLED || how == BY_DEVICE ||
           how == BY_SHARDING || (how == BY_ATTRIBUTE && keys);
}

/* Whether a value is a tensor, by its type where that tells: a result's keys count for nothing. */
static inline int is_tensor(struct state *st, PyObject *value) {
    uint64_t keys;
    uint32_t how = how_known(st, Py_TYPE(value), &keys);
    return is_tensors(how, keys) || ask_tensor(st, value, how, keys);
}

/* Adds the keys of a value that is a tensor. 0, perhaps with an error, when it is none or Python
 * has to decide. */
static inline int tensor(struct state *st, PyObject *value, uint64_t *raw) {
    return carries(st, value, raw) > 0;
}

/* remember.c */
/* Remembers what the types of a call's arguments tell, or the type of a result. */
void remember_arguments(struct state *st, Plan *plan, PyObject *const *args);
void remember_result(struct state *st, Plan *plan, PyObject *result);

/* Whether the types of these values are those that are remembered, unchanged, and then what is
 * remembered of the call. */
struct remembered {
    struct target *target;
    uint64_t raw;
    uint32_t others, converted;
};
static inline bool remembers(const struct state *st, const struct memory *m,
                             PyObject *const *values, Py_ssize_t n, struct remembered *found) {
    uint64_t begun = begin_read(&m->sequence);
    if (peek(&m->types_epoch) != peek(&st->types_epoch)) return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyTypeObject *known = atomic_load_explicit(&m->types[i], memory_order_relaxed);
        uint32_t tag = atomic_load_explicit(&m->tags[i], memory_order_relaxed);
        PyTypeObject *type = Py_TYPE(values[i]);
        if (UNLIKELY(known != type || tag != version_tag(type)) && known) return false;
    }
    if (found) {
        found->target = atomic_load_explicit(&m->target, memory_order_relaxed);
        found->raw = peek(&m->raw);
        found->others = atomic_load_explicit(&m->others, memory_order_relaxed);
        found->converted = atomic_load_explicit(&m->converted, memory_order_relaxed);
    }
    return is_whole(&m->sequence, begun);
}

/* arrive.c */
PyObject *arrived(PyObject *m, PyObject *const *given, Py_ssize_t n);

/* surely.c */
PyObject *noted(PyObject *m, PyObject *const *args, Py_ssize_t n);
PyObject *surely(PyObject *m, PyObject *const *args, Py_ssize_t n);

/* guards.c */
PyObject *guards_now(PyObject *m, PyObject *ignored);
PyObject *guards_sets(PyObject *m, PyObject *ignored);
PyObject *guards_changed_sets(PyObject *m, PyObject *ignored);
PyObject *guards_tags(PyObject *m, PyObject *ignored);
PyObject *guards_change(PyObject *m, PyObject *args);
PyObject *guards_start(PyObject *m, PyObject *args);
PyObject *guards_quick(PyObject *m, PyObject *args);
/* This thread's sets as they are now. */
struct noted guards_noted(struct state *st);
/* As a guard that excludes some bits and does not include some others, until guards_end. Returns a
 * new reference, or NULL with an error. */
Sets *guards_begin(struct state *st, uint64_t excluded, uint64_t left_out, uint64_t *opening);
void guards_end(Sets *sets, uint64_t opening);

/* handlers.c */
int handlers_add_local(PyObject *m);
PyObject *handlers_start(PyObject *m, PyObject *args);
/* Whether C can make calls that come to modes and types: to those that are there now. */
bool handlers_are_plain(struct state *st, Cell *cell);
/* Asks the innermost mode, then the types: NOBODY, TO_PYTHON, or DONE with an error or with a
 * result and a new reference to the mode or type that gave it. */
int handlers_ask(struct state *st, PyObject *operator, const Shape * shape, PyObject *const *values,
                 PyObject **result, PyObject **handler);
/* Notes the sets of the outermost call under way: 1 when it did, for `handlers_forget`; 0 when this
 * call is not the outermost; -1 with an error. */
int handlers_note(struct state *st);
void handlers_forget(struct state *st);

/* This thread's own Stack, borrowed; NULL with an error. */
Stack *stack_own(struct state *st);
/* Where the objects of a class have a slot; -1 with an error. */
Py_ssize_t slot_at(PyObject *type, const char *name);

/* observers.c */
PyObject *observers_start(PyObject *m, PyObject *args);
PyObject *observers_set(PyObject *m, PyObject *handles);
PyObject *observers_number(PyObject *m, PyObject *ignored);
/* A call that observers are told of. */
struct watch {
    struct state *st;
    PyObject *observers; /* NULL: nobody is told */
    PyObject *call;      /* the ObservedCall */
    Stack *stack;
    Py_ssize_t told; /* so many have heard of the beginning */
    int64_t began;
    bool is_running; /* all have */
};
/* Tells observers that a kernel is about to run, if there are any. False with an error, which ends
 * the call. In both cases the caller has to call observers_end. */
bool observers_begin(struct state *st, PyObject *operator, const Plan * plan, struct target *target,
                     PyObject *const *values, uint64_t raw, bool is_redispatch, struct watch *w);
/* Tells those who have heard of the beginning. Takes over the reference to the result, and returns
 * it, or NULL with an error. */
PyObject *observers_end(struct watch *w, PyObject *result);

static inline bool is_observed(const struct state *st) {
    return UNLIKELY(atomic_load_explicit(&st->observers, memory_order_relaxed) != NULL);
}

/* The keys that this thread includes and keeps. */
static inline void thread_sets(struct state *st, uint64_t *included, uint64_t *kept) {
    const Sets *sets = sets_here(st);
    *included = st->included;
    *kept = st->kept;
    if (sets) read_sets(sets, included, kept);
}

/* The keys of a call, and the entry of the table that they lead to. */

static inline unsigned bits(uint64_t word) {
    return word ? 64 - (unsigned)__builtin_clzll(word) : 0;
}

/* (mdispatch/keys/numbers.py: highest_index, backend_index) */
static inline unsigned index_of(const struct state *st, uint64_t raw) {
    if (!(raw & 0xffff)) raw &= ~st->per_backend;
    unsigned functionality = bits(raw >> BACKENDS);
    if (functionality && st->per_backend >> (BACKENDS - 1 + functionality) & 1)
        return st->offset[functionality] + bits((raw & 0xffff) >> 1);
    return st->offset[functionality];
}

enum { ANSWERED = 2 }; /* modes and types are asked on the way of a call */

static inline int is_answered(const struct state *st, uint64_t raw) {
    return UNLIKELY(raw & st->python) ? ANSWERED : 1;
}

/* The key set of a call in a thread with these sets; 0 when Python has to make the call, or
 * ANSWERED. */
static inline int effective_in(const struct state *st, const Plan *plan, uint64_t included,
                               uint64_t kept, uint64_t *raw) {
    uint64_t all = (*raw | included) & kept;
    uint64_t mask = plan->mask;
    if (UNLIKELY(plan->masks != NULL)) mask = plan->masks[bits((all & 0xffff) >> 1)];
    *raw = all & mask;
    if (UNLIKELY(all & st->special))
        return all & st->special & ~st->python ? 0 : is_answered(st, *raw);
    return 1;
}

/* torch.c */
/* Keeps what TorchKeys (mdispatch/torch/keys.py) says of PyTorch: its function, the
 * dict of what that answered, which Python fills, a function that makes a tensor, one that says
 * whether this thread is watched, the paths of two libraries, and functions for calls that write, for
 * its profiler, and for results that may share memory. They are the same at each call, and never
 * change. -1 with an error. */
int torch_is(struct state *st, PyObject *const told[TOLD]);
/* The keys that PyTorch says a tensor has: 1, or -1, perhaps with an error, when Python has to be
 * asked: also about a set that is new. */
int from_torch(struct state *st, PyObject *value, uint64_t *raw);
/* Whether PyTorch wants to see a call that has a tensor of it among these arguments, or Python has
 * to find out. */
bool torch_wants(struct state *st, int gate, PyObject *const *args, Py_ssize_t n);
/* See Note [Writes]. Turns gradients off for the calls of this thread, or begins a write, which does
 * that, too: 1; 0 when this thread cannot do it here; -1 with an error. After 1,
 * `end_below_autograd` gets what is in `kept`. */
int begin_below_autograd(struct state *st, uint64_t *kept);
int begin_write_of_torch(struct state *st, uint64_t written, PyObject *const *values, uint64_t raw,
                         uint64_t *kept);
void end_below_autograd(struct state *st, uint64_t kept);
/* Whether PyTorch's profiler looks at this thread. */
static inline bool is_profiled(const struct state *st) {
    return st->torch.is_profiled && st->torch.is_profiled();
}
/* Begins what it records of a call: a new reference, which `end_record` takes over; NULL with an
 * error. */
PyObject *begin_record(struct state *st, PyObject *self, PyObject *const *values, Py_ssize_t n);
/* -1 with an error; it leaves one that is set. */
int end_record(PyObject *record);
PyObject *torch_place(PyObject *m, PyObject *args);
PyObject *torch_found(PyObject *m, PyObject *ignored);

/* take.c */
/* What the kernel gets for a value: a new reference; NULL, perhaps with an error, when Python has
 * to convert or to refuse it. Adds its keys. */
PyObject *taken(struct state *st, const struct take *t, PyObject *value, uint64_t *raw);
/* The same for a value of a kind that is not composed, when it does not fit as it is. */
PyObject *converted(struct state *st, const struct take *t, PyObject *value);
/* The same for a result that does not fit as it is. */
PyObject *taken_result(struct state *st, const struct take *t, PyObject *value);
int fits_slow(struct state *st, const struct take *t, PyObject *value, uint64_t *raw);

/* See `is_of_class` in take.c. */
static inline bool was_accepted(const struct take *t, const PyTypeObject *type) {
    uint32_t tag = atomic_load_explicit((_Atomic uint32_t *)&t->accepted, memory_order_relaxed);
    return tag && tag == version_tag(type);
}

static inline bool is_composed(const struct take *t) {
    return t->kind == LIST || t->kind == DICT || t->kind == TUPLE;
}

/* Whether a value is taken as it is; not for kinds that are composed. Adds its keys. */
static inline int fits(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    if (t->kind == TENSOR) {
        uint64_t carried = 0;
        if (UNLIKELY(!tensor(st, value, &carried))) return value == Py_None && t->none_fits;
        *raw |= carried & t->counts;
        return 1;
    }
    return LIKELY(Py_TYPE(value) == t->exact) || fits_slow(st, t, value, raw);
}

/* Calls a kernel, a function of Python as such. */
static inline PyObject *invoke(PyObject *function, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames) {
    if (PyFunction_Check(function))
        return ((PyFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
    if (PyCFunction_CheckExact(function) && ((PyCFunctionObject *)function)->vectorcall)
        return ((PyCFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
    return PyObject_Vectorcall(function, args, nargsf, kwnames);
}

/* call.c */
/* What came of an attempt: DONE means that the call was made or has failed with an error. */
enum { DONE, TRY_BOUND, TO_PYTHON, NOBODY };
PyObject *operator_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);
/* Calls the operator if it takes the arguments as they are; returns whether it did. */
bool operator_try(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                  PyObject **result);
/* 1 when it certainly refuses the arguments, 0 when Python has to decide, -1 with an error. */
int operator_refuses(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
PyObject *operator_redispatch(PyObject *self, PyObject *const *args, Py_ssize_t n,
                              PyObject *kwnames);
PyObject *in_python(PyObject *function, PyObject *self, PyObject *const *args, size_t nargsf,
                    PyObject *kwnames);

/* module.c */
extern struct PyModuleDef call_module;
static inline struct state *state_of(PyTypeObject *type) {
    PyObject *m = PyType_GetModuleByDef(type, &call_module);
    return m ? PyModule_GetState(m) : NULL;
}

/* key_sets.c */
/* A new DispatchKeySet with these bits. */
PyObject *key_set_of(const struct state *st, uint64_t raw);
/* The same for the calls of a target, which may keep it. */
PyObject *key_set_for(struct state *st, struct target *target, uint64_t raw);
/* Makes C compute `&`, `|` and `-` of the class of key sets, which has its slots there. */
void key_sets_install(PyTypeObject *type, Py_ssize_t raw_at, Py_ssize_t met, Py_ssize_t meet);

/* custom.c */
extern PyType_Spec forward_spec, unshared_spec;

/* operator.c and packet.c */
extern PyType_Spec operator_spec, packet_spec, route_spec, names_spec;

/* providers.c */
extern PyType_Spec steps_spec;

/* plan.c, guards.c and handlers.c */
extern PyType_Spec shape_spec, view_spec, plan_spec, cell_spec, sets_spec, guard_spec, stack_spec;
/* The values of all arguments as a call in Python has them: a new tuple and a new dict. */
PyObject *shape_positional(const Shape *shape, PyObject *const *values);
PyObject *shape_keywords(const Shape *shape, PyObject *const *values);
struct target *target_find(struct state *st, Plan *plan, unsigned index);
/* A plan like another one, for the table of some types. A new reference. */
Plan *plan_narrowed(struct state *st, const Plan *plan, PyObject *table, uint64_t mask,
                    PyObject *masks, int most);
void choice_free(struct choice *choice);
/* Drops the cell's plan, and one that is being made. */
void cell_drop(Cell *cell);

/* by_type.c */
/* The plan for a call with these arguments, all in their places; it lives as long as `plan`. NULL,
 * perhaps with an error, when Python has to make the call. */
Plan *plan_for_types(struct state *st, Cell *cell, Plan *plan, PyObject *const *values);
/* The one that is kept for them, or NULL: this runs no other code. Lists must be plain lists. */
Plan *plan_kept_for_types(const Plan *plan, PyObject *const *values);

#endif
