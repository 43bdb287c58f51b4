/* providers.c - a call that asks predicates which provider takes it, and looks for this thread's
 * guards. mdispatch/providers/chain.py is the specification, and makes the calls that observers
 * are told of, works out an order, and raises where all have refused.
 *
 *   Steps   the kernels of a Chain, each with its predicate, in their order
 *
 * A Steps stands in a plan as a kernel's function. It is never changed, but for what it keeps of
 * guards: for a number that a thread has in its Stack, the Steps of the order which the guards that
 * are open there lead to. Python gives one number to the same guards, and never to others
 * (mdispatch/providers/order.py). What is kept is only added, so calls read it without a lock,
 * and it lives as long as the Steps, which its caller keeps.
 */
#include "state.h"

enum { MOST_KEPT = 8 };

struct predicate {
    PyObject *supports; /* NULL: the kernel takes every call */
    PyObject *function;
    int with_key_set;
};

typedef struct {
    PyObject_VAR_HEAD vectorcallfunc vectorcall;
    struct state *state;
    PyObject *run;    /* makes the whole call in Python */
    PyObject *refuse; /* raises what a call gets that all have refused */
    PyObject *find;   /* the number of the guards that are open, and what they lead to; or NULL */
    PyObject *direct; /* the function of the first step, if that takes every call as it is; or NULL.
                       * Borrowed from the steps */
    int with_key_set; /* the call has the key set in front of its arguments */
    _Atomic uint32_t n_kept;
    struct {
        uint64_t number;
        PyObject *steps;
    } kept[MOST_KEPT]; /* each set once, under `lock`, before `n_kept` says so */
    struct predicate steps[];
} Steps;

/* Whether a predicate accepts; one that raises has refused. -1 for what no predicate may hold up,
 * such as KeyboardInterrupt. */
static int accepts(PyObject *supports, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyObject *answer = invoke(supports, args, nargsf, kwnames);
    int takes = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (takes >= 0) return takes;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear();
    return 0;
}

static __attribute__((noinline)) PyObject *in_order(Steps *self, PyObject *const *args,
                                                    size_t nargsf, PyObject *kwnames) {
    PyObject *const *given = args;
    size_t n_given = nargsf;
    if (self->with_key_set) {
        if (!PyVectorcall_NARGS(nargsf))
            return PyObject_Vectorcall(self->run, args, nargsf, kwnames);
        given = args + 1;
        n_given = (size_t)(PyVectorcall_NARGS(nargsf) - 1);
    }
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        const struct predicate *step = &self->steps[i];
        int takes = step->supports ? accepts(step->supports, given, n_given, kwnames) : 1;
        if (takes < 0) return NULL;
        if (!takes) continue;
        if (step->with_key_set) return invoke(step->function, args, nargsf, kwnames);
        return invoke(step->function, given, n_given, kwnames);
    }
    return PyObject_Vectorcall(self->refuse, args, nargsf, kwnames);
}

static inline Steps *kept_for(Steps *self, uint64_t number) {
    uint32_t n = atomic_load_explicit(&self->n_kept, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        if (self->kept[i].number == number) return (Steps *)self->kept[i].steps;
    }
    return NULL;
}

static void keep(Steps *self, uint64_t number, PyObject *steps) {
    lock(self->state);
    uint32_t n = atomic_load_explicit(&self->n_kept, memory_order_relaxed);
    if (number > NOT_NUMBERED && n < MOST_KEPT && !kept_for(self, number)) {
        self->kept[n].number = number;
        self->kept[n].steps = Py_NewRef(steps);
        atomic_store_explicit(&self->n_kept, n + 1, memory_order_release);
    }
    unlock(self->state);
}

/* A call in a thread with guards that nothing is kept of. */
static __attribute__((noinline, cold)) PyObject *found_out(Steps *self, PyObject *const *args,
                                                           size_t nargsf, PyObject *kwnames) {
    unsigned long long number;
    PyObject *steps, *result = NULL, *found = PyObject_CallNoArgs(self->find);
    if (found && PyArg_ParseTuple(found, "KO", &number, &steps)) {
        /* The number is that of the guards which Python has looked at. */
        if (Py_IS_TYPE(steps, Py_TYPE(self))) keep(self, number, steps);
        result = PyObject_Vectorcall(steps, args, nargsf, kwnames);
    }
    Py_XDECREF(found);
    return result;
}

static PyObject *steps_call(PyObject *self_, PyObject *const *args, size_t nargsf,
                            PyObject *kwnames) {
    Steps *self = (Steps *)self_;
    struct state *st = self->state;
    if (is_observed(st)) return PyObject_Vectorcall(self->run, args, nargsf, kwnames);
    if (self->find) {
        const Stack *stack = stack_here(st);
        uint64_t number = stack ? peek(&stack->priority) : 0;
        if (number && !(self = kept_for(self, number)))
            return found_out((Steps *)self_, args, nargsf, kwnames);
    }
    if (LIKELY(self->direct != NULL)) return invoke(self->direct, args, nargsf, kwnames);
    return in_order(self, args, nargsf, kwnames);
}

/* --- making it -------------------------------------------------------------------------------- */

/* Steps(steps, with_key_set, run, refuse, find): each step is (predicate or None, function, whether
 * that gets the key set). */
static PyObject *steps_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *steps, *run, *refuse, *find;
    int with_key_set;
    struct state *st = state_of(type);
    if (!st || !PyArg_ParseTuple(args, "O!pOOO", &PyTuple_Type, &steps, &with_key_set, &run,
                                 &refuse, &find))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(steps);
    Steps *self = (Steps *)type->tp_alloc(type, n);
    if (!self) return NULL;
    self->vectorcall = steps_call;
    self->state = st;
    self->with_key_set = with_key_set;
    self->run = Py_NewRef(run);
    self->refuse = Py_NewRef(refuse);
    self->find = find == Py_None ? NULL : Py_NewRef(find);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *supports, *function;
        struct predicate *step = &self->steps[i];
        PyObject *each = PyTuple_GET_ITEM(steps, i);
        if (!PyTuple_Check(each) ||
            !PyArg_ParseTuple(each, "OOp", &supports, &function, &step->with_key_set)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a step is a tuple");
            Py_DECREF(self);
            return NULL;
        }
        step->supports = supports == Py_None ? NULL : Py_NewRef(supports);
        step->function = Py_NewRef(function);
    }
    if (n && !self->steps[0].supports && self->steps[0].with_key_set == with_key_set)
        self->direct = self->steps[0].function;
    return (PyObject *)self;
}

static int steps_traverse(Steps *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->run);
    Py_VISIT(self->refuse);
    Py_VISIT(self->find);
    uint32_t n = atomic_load_explicit(&self->n_kept, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) Py_VISIT(self->kept[i].steps);
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_VISIT(self->steps[i].supports);
        Py_VISIT(self->steps[i].function);
    }
    return 0;
}

static void steps_dealloc(Steps *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->run);
    Py_XDECREF(self->refuse);
    Py_XDECREF(self->find);
    for (uint32_t i = 0; i < self->n_kept; i++) Py_DECREF(self->kept[i].steps);
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        Py_XDECREF(self->steps[i].supports);
        Py_XDECREF(self->steps[i].function);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef steps_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Steps, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot steps_slots[] = {
    {Py_tp_new, steps_new},         {Py_tp_traverse, steps_traverse},
    {Py_tp_dealloc, steps_dealloc}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, steps_members}, {0, NULL},
};
/* Without tp_clear, as a plan, which has it: calls use it. */
PyType_Spec steps_spec = {
    "mdispatch.facts.native._call.Steps", offsetof(Steps, steps), sizeof(struct predicate),
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, steps_slots};
