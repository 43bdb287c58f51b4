/* guards.c - the keys that a thread adds to its calls and those that it keeps, and the guards that
 * change them. mdispatch/facts/native/guards_py.py is the specification.
 *
 *   Sets    the two sets of one thread: what each starts from, and the steps of the open guards
 *   Guard   the base of the guards: the steps that it takes, and its openings
 *
 * A set is computed from the steps of the guards that are open, each time that one opens or ends.
 * So guards may end in any order, and in another thread than the one that they began in. A guard
 * whose `of_thread` is set ends in the thread that it began in, or where the generator goes on that
 * entered it.
 *
 * A thread's Sets lie in CPython's dict of the thread, so the thread's end drops them. A guard that
 * is open has a reference, too. A thread without Sets has those that threads start with.
 *
 * Locking: steps and openings change under `lock`, which is a leaf. With a GIL that is nothing, and
 * no code of Python runs between the change of a step and the computed sets: neither a signal
 * handler nor a fork sees one without the other. Calls take no lock: see `thread_sets`.
 */
#include "state.h"

enum { BACKEND_BITS = 0xffff, MOST_STEPS = 3, FEW_STEPS = 4 };
#define FULL ((UINT64_C(1) << 62) - 1)

/* What an open guard does to a set: it keeps some bits, then adds some. `own` are the bits of the
 * key of a guard that is about a single key. Such a guard does not undo what setters do to other
 * keys. */
struct step {
    uint64_t keep, add, own;
    uint64_t opening; /* its number among those of the thread */
    PyObject *tag;    /* borrowed from the opening, or NULL */
};

static int fail(const char *what) {
    PyErr_SetString(PyExc_TypeError, what);
    return -1;
}

/* --- the sets of a thread --------------------------------------------------------------------- */

static uint64_t value_of(const struct state *st, const struct side *side) {
    uint64_t raw = side->base;
    for (Py_ssize_t i = 0; i < side->used; i++)
        raw = (raw & side->steps[i].keep) | side->steps[i].add;
    /* A backend without a functionality is no key, and must not draw calls to itself. */
    return raw & st->functionalities ? raw : raw & ~(uint64_t)BACKEND_BITS;
}

static uint64_t kept_by(uint64_t excluded) {
    return ~(excluded & ~(uint64_t)BACKEND_BITS) & FULL;
}

/* Under the lock: computes what calls read. */
static void renew(Sets *self) {
    struct state *st = self->state;
    uint64_t included = value_of(st, &self->sides[INCLUDED]);
    uint64_t kept = kept_by(value_of(st, &self->sides[EXCLUDED]));
    uint8_t differs = included != st->included || kept != st->kept;
    /* Raised before other threads see the sets, lowered after: a call that finds 0 misses none. */
    if (differs && !self->differs) count_contexts(st, 1);
    write_sets(self, included, kept);
    if (!differs && self->differs) count_contexts(st, UINT64_MAX); /* one less */
    self->differs = differs;
}

/* Whether removing the key must change nothing, since only other backends' keys are in the set. */
static bool spares(const struct state *st, const struct side *side, uint64_t key) {
    return key & BACKEND_BITS && (value_of(st, side) & key) != key;
}

/* Under the lock: a place for one more step; NULL without memory. */
static struct step *place_in(struct side *side) {
    if (side->used == side->room) {
        Py_ssize_t room = side->room ? 2 * side->room : FEW_STEPS;
        struct step *more = PyMem_RawRealloc(side->steps, (size_t)room * sizeof *more);
        if (!more) return NULL;
        side->steps = more;
        side->room = room;
    }
    return &side->steps[side->used++];
}

/* Under the lock: takes the steps of an opening away. */
static void end_steps(Sets *self, uint64_t opening) {
    for (int s = 0; s < 2; s++) {
        struct side *side = &self->sides[s];
        Py_ssize_t left = 0;
        for (Py_ssize_t i = 0; i < side->used; i++) {
            if (side->steps[i].opening != opening) side->steps[left++] = side->steps[i];
        }
        side->used = left;
    }
    renew(self);
}

static PyObject *sets_make(struct state *st) {
    Sets *self = (Sets *)st->sets_type->tp_alloc(st->sets_type, 0);
    if (!self) return NULL;
    self->state = st;
    self->sides[INCLUDED].base = st->included;
    self->sides[EXCLUDED].base = st->excluded;
    write_sets(self, st->included, st->kept);
    return (PyObject *)self;
}

static void sets_dealloc(Sets *self) {
    PyTypeObject *type = Py_TYPE(self);
    forget_sets(self->state, self);
    if (self->differs) count_contexts(self->state, UINT64_MAX);
    PyMem_RawFree(self->sides[INCLUDED].steps);
    PyMem_RawFree(self->sides[EXCLUDED].steps);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot sets_slots[] = {{Py_tp_dealloc, sets_dealloc}, {0, NULL}};
PyType_Spec sets_spec = {"mdispatch.facts.native._call.Sets", sizeof(Sets), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, sets_slots};

static PyObject *find(PyTypeObject *type) {
    PyObject *dict = type ? PyThreadState_GetDict() : NULL;
    return dict ? PyDict_GetItemWithError(dict, (PyObject *)type) : NULL;
}

Sets *sets_find(struct state *st) {
    Sets *found = (Sets *)find(st->sets_type);
    remember(st, found, (Stack *)find(st->stack_type));
    return found;
}

Stack *stack_find(struct state *st) {
    Stack *found = (Stack *)find(st->stack_type);
    remember(st, (Sets *)find(st->sets_type), found);
    return found;
}

/* This thread's own Sets, borrowed, which it may change; NULL with an error. */
static Sets *own_sets(struct state *st) {
    Sets *found = sets_here(st);
    if (found) return found;
    PyObject *dict = st->sets_type ? PyThreadState_GetDict() : NULL;
    PyObject *made = dict ? sets_make(st) : NULL;
    if (made && PyDict_SetItem(dict, (PyObject *)st->sets_type, made) == 0) {
        found = (Sets *)made;
        remember(st, found, stack_here(st));
    }
    Py_XDECREF(made);
    if (!found && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "this interpreter ends: it has no guards any more");
    return found;
}

/* --- what Python asks and sets ---------------------------------------------------------------- */

/* now(): the bits that this thread's calls add, and those that they keep. */
PyObject *guards_now(PyObject *m, PyObject *ignored) {
    uint64_t included, kept;
    thread_sets(PyModule_GetState(m), &included, &kept);
    return Py_BuildValue("KK", (unsigned long long)included, (unsigned long long)kept);
}

/* sets(): the bits that this thread includes, and those that it excludes. */
PyObject *guards_sets(PyObject *m, PyObject *ignored) {
    struct state *st = PyModule_GetState(m);
    struct noted now = guards_noted(st);
    return Py_BuildValue("KK", (unsigned long long)now.included, (unsigned long long)now.excluded);
}

/* changed_sets(): the same, or None for those that threads start with. */
PyObject *guards_changed_sets(PyObject *m, PyObject *ignored) {
    struct state *st = PyModule_GetState(m);
    struct noted now = guards_noted(st);
    if (now.included == st->included && now.excluded == st->excluded) Py_RETURN_NONE;
    return guards_sets(m, ignored);
}

/* tags(): those of this thread's open guards. */
PyObject *guards_tags(PyObject *m, PyObject *ignored) {
    struct state *st = PyModule_GetState(m);
    const Sets *sets = sets_here(st);
    PyObject *found = PyList_New(0);
    /* Only this thread opens guards here. Others may end some, which are then not found. */
    for (Py_ssize_t i = 0; found && sets; i++) {
        PyObject *tag = NULL;
        lock(st);
        const struct side *side = &sets->sides[INCLUDED];
        bool is_over = i >= side->used;
        if (!is_over) tag = Py_XNewRef(side->steps[i].tag);
        unlock(st);
        if (is_over) break;
        if (tag && PyList_Append(found, tag)) Py_CLEAR(found);
        Py_XDECREF(tag);
    }
    PyObject *tags = found ? PyList_AsTuple(found) : NULL;
    Py_XDECREF(found);
    return tags;
}

/* change(side, key, keep, add): what a setter does to a key. It lasts until the innermost guard
 * that undoes it ends; without such a guard, for good. */
PyObject *guards_change(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    unsigned long long key, keep, add;
    int which;
    if (!PyArg_ParseTuple(args, "iKKK", &which, &key, &keep, &add)) return NULL;
    Sets *sets = own_sets(st);
    if (!sets) return NULL;
    lock(st);
    struct side *side = &sets->sides[which != INCLUDED];
    if (add || !spares(st, side, key)) {
        Py_ssize_t i = side->used;
        while (--i >= 0) {
            struct step *step = &side->steps[i];
            step->keep &= keep;
            step->add = (step->add & keep) | add;
            if (!step->own || step->own == key) break;
        }
        if (i < 0) {
            side->base = (side->base & keep) | add;
            if (!(side->base & st->functionalities)) side->base &= ~(uint64_t)BACKEND_BITS;
        }
        renew(sets);
    }
    unlock(st);
    Py_RETURN_NONE;
}

/* start(included, excluded, functionalities, DispatchKey, DispatchKeySet): the sets that threads
 * start with, the functionalities that exist per backend, and the classes of keys and sets. */
PyObject *guards_start(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    unsigned long long included, excluded, functionalities;
    PyObject *key_type, *key_set_type;
    if (!PyArg_ParseTuple(args, "KKKO!O!", &included, &excluded, &functionalities, &PyType_Type,
                          &key_type, &PyType_Type, &key_set_type))
        return NULL;
    PyObject *member = PyObject_GetAttrString(key_set_type, "_raw");
    if (!member || !Py_IS_TYPE(member, &PyMemberDescr_Type)) {
        Py_XDECREF(member);
        return PyErr_Format(PyExc_TypeError, "a DispatchKeySet has its bits in a slot");
    }
    st->raw_at = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    Py_XSETREF(st->key_set_type, Py_NewRef(key_set_type));
    st->included = included;
    st->excluded = excluded;
    st->kept = kept_by(excluded);
    st->functionalities = functionalities;
    Py_XSETREF(st->key_type, Py_NewRef(key_type));
    Py_RETURN_NONE;
}

struct noted guards_noted(struct state *st) {
    const Sets *sets = sets_here(st);
    struct noted now = {st->included, st->excluded, true};
    if (sets) {
        lock(st);
        now.included = value_of(st, &sets->sides[INCLUDED]);
        now.excluded = value_of(st, &sets->sides[EXCLUDED]);
        unlock(st);
    }
    return now;
}

Sets *guards_begin(struct state *st, uint64_t excluded, uint64_t left_out, uint64_t *opening) {
    Sets *sets = own_sets(st);
    if (!sets) return NULL;
    lock(st);
    *opening = ++sets->openings;
    struct step *step = place_in(&sets->sides[EXCLUDED]);
    if (step) *step = (struct step){FULL, excluded, 0, *opening, NULL};
    if (step && left_out) {
        step = place_in(&sets->sides[INCLUDED]);
        if (step) *step = (struct step){FULL & ~left_out, 0, 0, *opening, NULL};
    }
    if (step)
        renew(sets);
    else
        end_steps(sets, *opening);
    unlock(st);
    return step ? (Sets *)Py_NewRef((PyObject *)sets) : (Sets *)PyErr_NoMemory();
}

void guards_end(Sets *sets, uint64_t opening) {
    lock(sets->state);
    end_steps(sets, opening);
    unlock(sets->state);
}

/* --- guards ----------------------------------------------------------------------------------- */

/* One time that a guard was entered and not left. */
struct opening {
    Sets *sets;
    uint64_t number;
    const void *generator; /* see calling_generator; NULL where the guard is not `of_thread` */
    PyObject *tag;         /* what `make_tag` has made, or NULL */
};

typedef struct {
    PyObject_HEAD struct state *state;
    struct {
        uint64_t keep, add, own;
        uint8_t side;
    } steps[MOST_STEPS];
    uint8_t n_steps;
    bool of_thread;     /* nothing but its generator ends an opening in another thread */
    PyObject *make_tag; /* makes an object for each opening, or NULL; one that makes no cycle */
    struct opening *openings, first;
    Py_ssize_t used, room;
} Guard;

static Guard *guard_make(struct state *st, PyTypeObject *type) {
    Guard *self = st ? (Guard *)type->tp_alloc(type, 0) : NULL;
    if (!self) return NULL;
    self->state = st;
    self->openings = &self->first;
    self->room = 1;
    return self;
}

static PyObject *guard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return (PyObject *)guard_make(state_of(type), type);
}

/* Guard(*steps, tag=None, of_thread=False): each step is (side, bits to keep, bits to add, bits of
 * the key that it is about, or 0). */
static int guard_init(Guard *self, PyObject *args, PyObject *kwargs) {
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    PyObject *tag = kwargs ? PyDict_GetItemString(kwargs, "tag") : NULL;
    PyObject *of_thread = kwargs ? PyDict_GetItemString(kwargs, "of_thread") : NULL;
    Py_ssize_t known = (tag != NULL) + (of_thread != NULL);
    if (n > MOST_STEPS || (kwargs && PyDict_GET_SIZE(kwargs) != known))
        return fail("a guard takes some steps, a tag, and of_thread");
    self->of_thread = of_thread == Py_True;
    self->n_steps = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long keep, add, own;
        int side;
        if (!PyTuple_Check(PyTuple_GET_ITEM(args, i))) return fail("a step is a tuple");
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(args, i), "iKKK", &side, &keep, &add, &own))
            return -1;
        self->steps[i].side = side != INCLUDED;
        self->steps[i].keep = keep;
        self->steps[i].add = add;
        self->steps[i].own = own;
    }
    self->n_steps = (uint8_t)n;
    Py_XSETREF(self->make_tag, Py_XNewRef(tag));
    return 0;
}

/* The frame of the generator or coroutine that calls a method of a guard; NULL if what calls it is
 * none. Such a frame may go on in another thread. Its address stands for it: as long as it lives,
 * and has a guard to end, no other frame has that address. */
static const void *calling_generator(void) {
    PyFrameObject *frame = PyEval_GetFrame();
    if (!frame) return NULL;
    PyCodeObject *code = PyFrame_GetCode(frame);
    int flags = code->co_flags;
    Py_DECREF(code);
    return flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR) ? frame : NULL;
}

/* Under the lock: notes an opening, and takes its steps. -1 without memory. */
static int open_here(Guard *self, Sets *sets, PyObject *tag, const void *generator) {
    struct state *st = self->state;
    if (self->used == self->room) {
        Py_ssize_t room = 2 * self->room;
        struct opening *before = self->openings == &self->first ? NULL : self->openings;
        struct opening *more = PyMem_RawRealloc(before, (size_t)room * sizeof *more);
        if (!more) return -1;
        if (!before) more[0] = self->first;
        self->openings = more;
        self->room = room;
    }
    uint64_t number = ++sets->openings;
    bool is_spared[MOST_STEPS]; /* by the sets as they were before any of the steps */
    for (int i = 0; i < self->n_steps; i++) {
        uint64_t own = self->steps[i].own;
        is_spared[i] =
            own && !self->steps[i].add && spares(st, &sets->sides[self->steps[i].side], own);
    }
    for (int i = 0; i < self->n_steps; i++) {
        uint64_t own = self->steps[i].own;
        struct step *step = place_in(&sets->sides[self->steps[i].side]);
        if (!step) {
            end_steps(sets, number);
            return -1;
        }
        *step = (struct step){self->steps[i].keep, self->steps[i].add, own, number,
                              i == 0 ? tag : NULL};
        if (is_spared[i]) step->keep = FULL;
    }
    renew(sets);
    self->openings[self->used++] =
        (struct opening){(Sets *)Py_NewRef((PyObject *)sets), number, generator, Py_XNewRef(tag)};
    return 0;
}

static PyObject *guard_enter(Guard *self, PyObject *ignored) {
    struct state *st = self->state;
    Sets *sets = own_sets(st);
    PyObject *tag = NULL;
    if (!sets || (self->make_tag && !(tag = PyObject_CallNoArgs(self->make_tag)))) return NULL;
    const void *generator = self->of_thread ? calling_generator() : NULL;
    lock(st);
    int status = open_here(self, sets, tag, generator);
    unlock(st);
    Py_XDECREF(tag);
    return status ? PyErr_NoMemory() : Py_NewRef((PyObject *)self);
}

/* Ends the steps of an opening, and tells its tag. Idempotent; -1 with an error. */
static int end_opening(struct state *st, const struct opening *each) {
    lock(st);
    end_steps(each->sets, each->number);
    unlock(st);
    PyObject *answer = each->tag ? PyObject_CallMethodNoArgs(each->tag, st->end_name) : NULL;
    Py_XDECREF(answer);
    return each->tag && !answer ? -1 : 0;
}

static void let_go(struct opening *each) {
    Py_DECREF((PyObject *)each->sets);
    Py_XDECREF(each->tag);
}

/* Under the lock: the newest opening of a generator, or without one of a thread. -1 for none. */
static Py_ssize_t newest(const Guard *self, const void *generator, const Sets *here) {
    Py_ssize_t i = self->used - 1;
    while (i >= 0 && (generator ? self->openings[i].generator != generator
                                : self->openings[i].sets != here))
        i--;
    return i;
}

/* __exit__(exc_type=None, exc=None, traceback=None) */
static PyObject *guard_exit(Guard *self, PyObject *const *args, Py_ssize_t n) {
    struct state *st = self->state;
    const Sets *here = sets_here(st);
    struct opening found;
    if (n > 3) return PyErr_Format(PyExc_TypeError, "__exit__ takes at most 3 arguments");
    const void *generator = self->of_thread ? calling_generator() : NULL;
    lock(st);
    Py_ssize_t i = generator ? newest(self, generator, NULL) : -1;
    if (i < 0) i = newest(self, NULL, here);
    if (i < 0 && !self->of_thread) i = self->used - 1;
    if (i >= 0) {
        found = self->openings[i];
        self->used--;
        for (Py_ssize_t k = i; k < self->used; k++) self->openings[k] = self->openings[k + 1];
    }
    unlock(st);
    if (i < 0) return PyObject_CallMethodNoArgs((PyObject *)self, st->not_entered_name);
    if (end_opening(st, &found) == 0) {
        let_go(&found);
        Py_RETURN_NONE;
    }
    lock(st); /* from a signal handler: another __exit__ tells the tag, or the guard's end does */
    bool is_back = self->used < self->room;
    if (is_back) self->openings[self->used++] = found;
    unlock(st);
    if (!is_back) let_go(&found);
    return NULL;
}

static void guard_dealloc(Guard *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->used) {
        PyObject *error, *value, *traceback;
        PyErr_Fetch(&error, &value, &traceback);
        while (self->used) {
            struct opening each = self->openings[--self->used];
            if (end_opening(self->state, &each)) PyErr_WriteUnraisable((PyObject *)type);
            let_go(&each);
        }
        PyErr_Restore(error, value, traceback);
    }
    if (self->openings != &self->first) PyMem_RawFree(self->openings);
    Py_XDECREF(self->make_tag);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *guard_is_open(Guard *self, void *ignored) {
    return PyBool_FromLong(self->used != 0);
}

static const char enter_doc[] = "__enter__($self, /)\n--\n\n"
                                "Takes the guard's steps in this thread's sets.";
static const char exit_doc[] =
    "__exit__($self, exc_type=None, exc=None, traceback=None, /)\n--\n\n"
    "Undoes the newest ``__enter__`` of this thread; if there is none, the newest of any\n"
    "thread. InvalidArgumentError if the guard is not open. A guard that isolates undoes what\n"
    "this thread or this generator has entered, else it raises ModeStackError.";
static PyMethodDef guard_methods[] = {
    {"__enter__", (PyCFunction)guard_enter, METH_NOARGS, enter_doc},
    {"__exit__", (PyCFunction)(void (*)(void))guard_exit, METH_FASTCALL, exit_doc},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef guard_getset[] = {
    {"is_open", (getter)guard_is_open, NULL,
     "Whether the guard is in effect: entered and not yet left.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot guard_slots[] = {
    {Py_tp_new, guard_new},         {Py_tp_init, guard_init},     {Py_tp_dealloc, guard_dealloc},
    {Py_tp_methods, guard_methods}, {Py_tp_getset, guard_getset}, {0, NULL},
};
PyType_Spec guard_spec = {"mdispatch.facts.native._call.Guard", sizeof(Guard), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, guard_slots};

/* --- making guards quickly -------------------------------------------------------------------- */

/* The keys that a guard of one of the quick classes is given: a DispatchKeySet, or a key or a name
 * with which one was made before. */
static bool known_keys(struct state *st, struct quick *q, PyObject *given, uint64_t *raw) {
    const PyTypeObject *type = Py_TYPE(given);
    if (knows_given(q, given, raw)) return true;
    if (type == (PyTypeObject *)st->key_set_type) {
        if (as_raw(*(PyObject **)((char *)given + st->raw_at), raw)) return false;
        keep_given(q, given, *raw);
        return true;
    }
    if (type != &PyUnicode_Type && type != (PyTypeObject *)st->key_type) return false;
    PyObject *known = st->raw_by_key ? dict_find(st->raw_by_key, given) : NULL;
    bool is_known = known && as_raw(known, raw) == 0;
    Py_XDECREF(known);
    return is_known;
}

static void learn_keys(struct state *st, PyObject *given, uint64_t raw) {
    if (!PyUnicode_CheckExact(given) && Py_TYPE(given) != (PyTypeObject *)st->key_type) return;
    PyObject *number = PyLong_FromUnsignedLongLong(raw);
    if (!number || !st->raw_by_key || PyDict_SetItem(st->raw_by_key, given, number)) PyErr_Clear();
    Py_XDECREF(number);
}

/* A quick class called with what it plainly takes; else Python's __init__ runs. */
static PyObject *guard_call(PyObject *type, PyObject *const *args, size_t nargsf,
                            PyObject *kwnames) {
    struct state *st = state_of((PyTypeObject *)type);
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    struct quick *q = st ? st->quick : NULL;
    while (q && q < st->quick + QUICK && q->type != (PyTypeObject *)type) q++;
    if (!st || q == st->quick + QUICK) q = NULL;
    uint64_t raw = q ? q->raw : 0;
    if (q && !named && n == q->takes_keys && (n == 0 || known_keys(st, q, args[0], &raw))) {
        Guard *self = guard_make(st, (PyTypeObject *)type);
        if (!self) return NULL;
        self->n_steps = 1;
        self->of_thread = q->of_thread;
        self->steps[0].side = q->side;
        self->steps[0].keep = FULL;
        self->steps[0].add = raw;
        return (PyObject *)self;
    }
    PyObject *positional = PyTuple_New(n), *keywords = named ? PyDict_New() : NULL, *made = NULL;
    if (!positional || (named && !keywords)) goto done;
    for (Py_ssize_t i = 0; i < n; i++) PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t k = 0; k < named; k++) {
        if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(kwnames, k), args[n + k])) goto done;
    }
    made = PyType_Type.tp_call(type, positional, keywords);
    if (made && q && n == 1 && Py_IS_TYPE(made, (PyTypeObject *)type))
        learn_keys(st, args[0], ((Guard *)made)->steps[0].add);
done:
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    return made;
}

/* quick(class, side, bits, of_thread=False): guards of the class add these bits to a set, or, with
 * None, those of the keys that they are made with. Then C makes them, without their __init__. */
PyObject *guards_quick(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyTypeObject *type;
    PyObject *bits;
    uint64_t raw = 0;
    int side, of_thread = 0;
    if (!PyArg_ParseTuple(args, "O!iO|p", &PyType_Type, &type, &side, &bits, &of_thread))
        return NULL;
    if (!PyType_IsSubtype(type, st->guard_type) || (bits != Py_None && as_raw(bits, &raw)))
        return PyErr_Format(PyExc_TypeError, "a class of guards and its bits are needed");
    for (int i = 0; i < QUICK; i++) {
        struct quick *q = &st->quick[i];
        if (q->type && q->type != type) continue;
        q->side = side != INCLUDED;
        q->raw = raw;
        q->takes_keys = bits == Py_None;
        q->of_thread = of_thread != 0;
        Py_XSETREF(q->type, (PyTypeObject *)Py_NewRef((PyObject *)type));
        type->tp_vectorcall = guard_call;
        Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "too many classes");
}
