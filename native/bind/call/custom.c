/* custom.c - what calls of `custom_op` pass through.
 *
 *   Forward    the base of CustomOpDef: its calls are calls of its operator
 *   Unshared   the base of DeviceKernel: runs a function, and looks whether the result is one of
 *              the arguments or may share memory with one. mdispatch/authoring/device_kernels.py is
 *              the specification; it decides wherever this file is not sure.
 */
#include "state.h"

/* --- Forward ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    _Atomic(PyObject *) operator; /* set once */
} Forward;

static PyObject *forward_call(PyObject *self, PyObject *const *args, size_t nargsf,
                              PyObject *kwnames) {
    PyObject *known = atomic_load_explicit(&((Forward *)self)->operator, memory_order_acquire);
    PyObject *operator = known ? Py_NewRef(known) : PyObject_GetAttrString(self, "operator");
    PyObject *result = operator ? PyObject_Vectorcall(operator, args, nargsf, kwnames) : NULL;
    Py_XDECREF(operator);
    return result;
}

static PyObject *forward_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Forward *self = (Forward *)type->tp_alloc(type, 0);
    if (self) self->vectorcall = forward_call;
    return (PyObject *)self;
}

static int forward_traverse(Forward *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(atomic_load(&self->operator));
    return 0;
}

static int forward_clear(Forward *self) {
    Py_XDECREF(atomic_exchange(&self->operator, NULL));
    return 0;
}

static void forward_dealloc(Forward *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    forward_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* _attach(operator): returns the operator that its calls go to, which is the first one. */
static PyObject *forward_attach(Forward *self, PyObject *operator) {
    PyObject *none = NULL;
    if (atomic_compare_exchange_strong(&self->operator, &none, operator))
        return Py_NewRef(Py_NewRef(operator));
    return Py_NewRef(none);
}

static PyObject *forward_attached(Forward *self, void *ignored) {
    PyObject *known = atomic_load_explicit(&self->operator, memory_order_acquire);
    return Py_NewRef(known ? known : Py_None);
}

static PyMethodDef forward_methods[] = {
    {"_attach", (PyCFunction)forward_attach, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef forward_getset[] = {
    {"_operator", (getter)forward_attached, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef forward_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Forward, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot forward_slots[] = {
    {Py_tp_new, forward_new},
    {Py_tp_traverse, forward_traverse},
    {Py_tp_clear, forward_clear},
    {Py_tp_dealloc, forward_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_methods, forward_methods},
    {Py_tp_members, forward_members},
    {Py_tp_getset, forward_getset},
    {0, NULL},
};
PyType_Spec forward_spec = {"mdispatch.facts.native._call.Forward", sizeof(Forward), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                                Py_TPFLAGS_HAVE_VECTORCALL,
                            forward_slots};

/* --- Unshared --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    struct state *state;
    PyObject *function, *switched; /* never change */
    Py_ssize_t guards_at;          /* where `switched` has its guards; never changes, either */
    int looks;                     /* whether results are looked at; nor does this */
} Unshared;

static bool is_list(PyObject *value) {
    return PyList_CheckExact(value) || PyTuple_CheckExact(value);
}

/* The owner of the memory that a value looks at, as `_owner` in Python finds it: a new reference,
 * NULL when there is none. Sets `unsure`, perhaps with an error, when only Python can tell. */
static PyObject *owner_of(const struct state *st, PyObject *value, bool *unsure) {
    PyTypeObject *type = Py_TYPE(value);
    PyObject *base = NULL;
    if (value == Py_None || is_builtin(type)) return NULL;
    /* PyTorch's tensors have the second attribute. */
    if (type == &PyByteArray_Type || type == &PyMemoryView_Type ||
        _PyType_Lookup(type, st->cuda_name)) {
        *unsure = true;
        return NULL;
    }
    if (!_PyType_Lookup(type, st->array_name)) return NULL;
    if (optional_attribute(value, st->base_name, &base) < 0) *unsure = true;
    if (base && base != Py_None) return base;
    Py_XDECREF(base);
    return *unsure ? NULL : Py_NewRef(value);
}

/* Whether an argument certainly shares nothing with a result of this owner, or with one without. */
static bool is_apart(const struct state *st, PyObject *result, const PyObject *owner,
                     PyObject *value) {
    if (value == result) return value == Py_None;
    if (!owner) return true;
    bool unsure = false;
    /* A tensor of PyTorch knows no memory but that of other tensors. */
    if (_PyType_Lookup(Py_TYPE(value), st->cuda_name)) return true;
    PyObject *other = owner_of(st, value, &unsure);
    bool is = !unsure && other != owner;
    Py_XDECREF(other);
    return is;
}

/* Whether a result certainly shares nothing with the arguments; 0, perhaps with an error, when
 * Python has to look. */
static bool is_unshared(const struct state *st, PyObject *result, PyObject *const *args,
                        Py_ssize_t n) {
    bool unsure = is_list(result);
    PyObject *owner = unsure ? NULL : owner_of(st, result, &unsure);
    for (Py_ssize_t i = 0; i < n && !unsure; i++) {
        PyObject *items = is_list(args[i]) ? PySequence_Tuple(args[i]) : NULL;
        if (!items) {
            unsure = PyErr_Occurred() || !is_apart(st, result, owner, args[i]);
            continue;
        }
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(items) && !unsure; k++) {
            PyObject *item = PyTuple_GET_ITEM(items, k);
            unsure = is_list(item) || !is_apart(st, result, owner, item);
        }
        Py_DECREF(items);
    }
    Py_XDECREF(owner);
    return !unsure;
}

/* How deep lists are looked into: one may contain itself. */
enum { DEEPEST = 4 };

/* Whether a value is one of these, or in a list of them; also when only Python can tell, perhaps with
 * an error. */
static bool is_among(PyObject *value, PyObject *const *values, Py_ssize_t n, int depth) {
    bool is = depth > DEEPEST;
    for (Py_ssize_t i = 0; i < n && !is; i++) {
        is = values[i] == value;
        if (is || !is_list(values[i])) continue;
        /* A copy: without a GIL another thread may change a list meanwhile. */
        PyObject *items = PySequence_Tuple(values[i]);
        is = !items ||
             is_among(value, PySequence_Fast_ITEMS(items), PyTuple_GET_SIZE(items), depth + 1);
        Py_XDECREF(items);
    }
    return is;
}

/* Whether results that are all tensors of PyTorch share nothing with the arguments nor with each
 * other, as PyTorch says; 0, perhaps with an error, when Python has to look. */
static bool is_unshared_in_torch(struct state *st, PyObject *result, PyObject *const *args,
                                 Py_ssize_t n) {
    PyObject *ask = atomic_load_explicit(&st->torch.ask, memory_order_acquire);
    bool are_several = is_list(result), are_tensors = ask && st->torch.are_aliases != Py_None;
    PyObject *results = !are_tensors  ? NULL
                        : are_several ? PySequence_Tuple(result)
                                      : PyTuple_Pack(1, result);
    for (Py_ssize_t i = 0; results && i < PyTuple_GET_SIZE(results); i++) {
        uint64_t ignored;
        PyObject *one = PyTuple_GET_ITEM(results, i);
        are_tensors = are_tensors && how_known(st, Py_TYPE(one), &ignored) == BY_TORCH;
        /* PyTorch compares memory, and tensors of some layouts have none. */
        are_tensors = are_tensors && !is_among(one, args, n, 0) &&
                      !is_among(one, PySequence_Fast_ITEMS(results), i, 0);
    }
    PyObject *given = results && are_tensors ? PyTuple_New(n) : NULL, *none = NULL, *answer = NULL;
    for (Py_ssize_t i = 0; given && i < n; i++) PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
    if (given && (none = PyDict_New()))
        answer = PyObject_CallFunctionObjArgs(st->torch.are_aliases, given, none, results, NULL);
    bool is = answer == Py_False;
    Py_XDECREF(results);
    Py_XDECREF(given);
    Py_XDECREF(none);
    Py_XDECREF(answer);
    return is;
}

/* Has Python compare the result with the arguments: _check(result, args, kwargs). */
static int look(PyObject *self, PyObject *result, PyObject *const *args, Py_ssize_t n,
                PyObject *kwnames) {
    Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    PyObject *positional = PyTuple_New(n), *keywords = PyDict_New(), *answer = NULL;
    for (Py_ssize_t i = 0; positional && i < n; i++)
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t k = 0; keywords && k < named; k++) {
        if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(kwnames, k), args[n + k])) Py_CLEAR(keywords);
    }
    if (positional && keywords)
        answer = PyObject_CallMethod(self, "_look", "OOO", result, positional, keywords);
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    Py_XDECREF(answer);
    return answer ? 0 : -1;
}

/* Whether a tensor of PyTorch is one of these, or in a list of them. */
static bool are_of_torch(struct state *st, PyObject *const *args, Py_ssize_t n, int depth) {
    uint64_t ignored;
    bool are = false;
    for (Py_ssize_t i = 0; i < n && depth <= DEEPEST && !are; i++) {
        are = how_known(st, Py_TYPE(args[i]), &ignored) == BY_TORCH;
        if (are || !is_list(args[i])) continue;
        PyObject *items = PySequence_Tuple(args[i]);
        if (!items) PyErr_Clear(); /* no memory: the call will find that out */
        are = items && are_of_torch(st, PySequence_Fast_ITEMS(items), PyTuple_GET_SIZE(items),
                                    depth + 1);
        Py_XDECREF(items);
    }
    return are;
}

/* Calls the function. With tensors of PyTorch, nothing that it does is recorded for gradients. */
static __attribute__((noinline)) PyObject *unrecorded(Unshared *self, PyObject *function,
                                                      PyObject *const *args, size_t nargsf,
                                                      PyObject *kwnames) {
    struct state *st = self->state;
    uint64_t kept;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    if (!are_of_torch(st, args, n + named, 0))
        return PyObject_Vectorcall(function, args, nargsf, kwnames);
    int begun = begin_below_autograd(st, &kept);
    if (begun < 0) return NULL;
    if (!begun) {
        PyObject *below = PyObject_GetAttrString((PyObject *)self, "_below");
        PyObject *bound = below ? PyObject_CallOneArg(below, function) : NULL;
        PyObject *result = bound ? PyObject_Vectorcall(bound, args, nargsf, kwnames) : NULL;
        Py_XDECREF(below);
        Py_XDECREF(bound);
        return result;
    }
    PyObject *result = PyObject_Vectorcall(function, args, nargsf, kwnames);
    end_below_autograd(st, kept);
    return result;
}

static PyObject *unshared_call(PyObject *self_, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames) {
    Unshared *self = (Unshared *)self_;
    struct state *st = self->state;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    /* The guards that enable and disable kernels: a tuple, empty when nothing is switched. */
    PyObject *guards =
        self->switched ? slot_find(self->switched, self->guards_at, st->guards_name) : NULL;
    if (!guards) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "no function");
    int is_switched = PyObject_IsTrue(guards);
    Py_DECREF(guards);
    PyObject *function =
        is_switched ? PyObject_CallMethod(self_, "_chosen", NULL) : Py_NewRef(self->function);
    PyObject *result = !function ? NULL
                       : UNLIKELY(atomic_load_explicit(&self->state->torch.ask,
                                                       memory_order_acquire) &&
                                  self->looks)
                           ? unrecorded(self, function, args, nargsf, kwnames)
                           : PyObject_Vectorcall(function, args, nargsf, kwnames);
    Py_XDECREF(function);
    if (!result || !self->looks || is_unshared(st, result, args, n + named)) return result;
    if (!PyErr_Occurred() && is_unshared_in_torch(st, result, args, n + named)) return result;
    if (PyErr_Occurred() || look(self_, result, args, n, kwnames)) Py_CLEAR(result);
    return result;
}

static PyObject *unshared_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    struct state *st = state_of(type);
    Unshared *self = st ? (Unshared *)type->tp_alloc(type, 0) : NULL;
    if (!self) return NULL;
    self->state = st;
    self->vectorcall = unshared_call;
    return (PyObject *)self;
}

/* Unshared(function, switch, whether results are looked at): called once. */
static int unshared_init(Unshared *self, PyObject *args, PyObject *kwargs) {
    PyObject *function, *switched;
    int looks;
    if (!PyArg_ParseTuple(args, "OOp", &function, &switched, &looks)) return -1;
    if (self->function) {
        PyErr_SetString(PyExc_TypeError, "a kernel has one function");
        return -1;
    }
    self->guards_at = slot_at((PyObject *)Py_TYPE(switched), "_guards");
    if (self->guards_at < 0) return -1;
    self->looks = looks;
    self->function = Py_NewRef(function);
    self->switched = Py_NewRef(switched);
    return 0;
}

static int unshared_traverse(Unshared *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->switched);
    return 0;
}

static int unshared_clear(Unshared *self) {
    Py_CLEAR(self->switched); /* then it cannot be called */
    Py_CLEAR(self->function);
    return 0;
}

static void unshared_dealloc(Unshared *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    unshared_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef unshared_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Unshared, vectorcall), READONLY, NULL},
    {"function", T_OBJECT_EX, offsetof(Unshared, function), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot unshared_slots[] = {
    {Py_tp_new, unshared_new},           {Py_tp_init, unshared_init},
    {Py_tp_traverse, unshared_traverse}, {Py_tp_clear, unshared_clear},
    {Py_tp_dealloc, unshared_dealloc},   {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, unshared_members},   {0, NULL},
};
PyType_Spec unshared_spec = {"mdispatch.facts.native._call.Unshared", sizeof(Unshared), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                                 Py_TPFLAGS_HAVE_VECTORCALL,
                             unshared_slots};
