/* handlers.c - modes and types that answer calls, asked from C. mdispatch/dispatch/handlers.py is
 * the specification; mdispatch/dispatch/context/modes.py says what a mode is.
 *
 *   Stack   the modes of one thread, and the sets with which its calls were made
 *
 * What is not plain is left to Python: modes before dispatch, a mode of another interpreter, an
 * operator with rules for classes, classes with a metaclass of their own, and all while there are
 * observers.
 *
 * A thread's Stack lies in CPython's dict of the thread, beside its Sets, and only that thread uses
 * it. Between the change of the stack and the handler's call, and between the handler's return and
 * the stack as it was, no code of Python runs: a signal handler finds both done or neither.
 */
#include "state.h"

enum { MOST_TYPES = 16 };

/* --- the stack of a thread -------------------------------------------------------------------- */

static void stack_dealloc(Stack *self) {
    PyTypeObject *type = Py_TYPE(self);
    forget_stack(self->state, self);
    Py_XDECREF(self->entries);
    Py_XDECREF(self->pre_dispatch);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *noted_get(Stack *self, void *at) {
    const struct noted *noted = (struct noted *)((char *)self + (size_t)at);
    if (!noted->is_set) Py_RETURN_NONE;
    PyObject *included = key_set_of(self->state, noted->included);
    PyObject *excluded = included ? key_set_of(self->state, noted->excluded) : NULL;
    PyObject *both = excluded ? PyTuple_Pack(2, included, excluded) : NULL;
    Py_XDECREF(included);
    Py_XDECREF(excluded);
    return both;
}

static int noted_set(Stack *self, PyObject *both, void *at) {
    struct noted *noted = (struct noted *)((char *)self + (size_t)at);
    const struct state *st = self->state;
    struct noted made = {.is_set = both != Py_None};
    if (made.is_set) {
        PyObject *key_set[2];
        if (!both || !PyArg_ParseTuple(both, "O!O!", st->key_set_type, &key_set[0],
                                       st->key_set_type, &key_set[1]))
            return -1;
        if (as_raw(*(PyObject **)((char *)key_set[0] + st->raw_at), &made.included) ||
            as_raw(*(PyObject **)((char *)key_set[1] + st->raw_at), &made.excluded))
            return -1;
    }
    *noted = made;
    return 0;
}

static PyObject *priority_get(Stack *self, void *ignored) {
    return PyLong_FromUnsignedLongLong(peek(&self->priority));
}

static int priority_set(Stack *self, PyObject *number, void *ignored) {
    unsigned long long value = number ? PyLong_AsUnsignedLongLong(number) : 0;
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return -1;
    atomic_store_explicit(&self->priority, value, memory_order_relaxed);
    return 0;
}

static PyMemberDef stack_members[] = {
    {"entries", T_OBJECT_EX, offsetof(Stack, entries), READONLY, NULL},
    {"pre_dispatch", T_OBJECT_EX, offsetof(Stack, pre_dispatch), READONLY, NULL},
    {"depth", T_PYSSIZET, offsetof(Stack, depth), 0, NULL},
    {"is_observer", T_BOOL, offsetof(Stack, is_observer), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef stack_getset[] = {
    {"on_entry", (getter)noted_get, (setter)noted_set, NULL, (void *)offsetof(Stack, on_entry)},
    {"handled", (getter)noted_get, (setter)noted_set, NULL, (void *)offsetof(Stack, handled)},
    {"priority", (getter)priority_get, (setter)priority_set, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot stack_slots[] = {
    {Py_tp_dealloc, stack_dealloc},
    {Py_tp_members, stack_members},
    {Py_tp_getset, stack_getset},
    {0, NULL},
};
PyType_Spec stack_spec = {"mdispatch.facts.native._call.Stack", sizeof(Stack), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, stack_slots};

Stack *stack_own(struct state *st) {
    Stack *found = stack_here(st);
    if (found) return found;
    PyObject *dict = st->stack_type ? PyThreadState_GetDict() : NULL;
    Stack *made = dict ? (Stack *)st->stack_type->tp_alloc(st->stack_type, 0) : NULL;
    if (made) {
        made->state = st;
        made->entries = PyList_New(0);
        made->pre_dispatch = PyList_New(0);
        if (made->entries && made->pre_dispatch &&
            PyDict_SetItem(dict, (PyObject *)st->stack_type, (PyObject *)made) == 0) {
            found = made;
            remember(st, sets_here(st), found);
        }
        Py_DECREF((PyObject *)made);
    }
    if (!found && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "this interpreter ends: it has no modes any more");
    return found;
}

/* `local.stack` is this thread's: an attribute, since a signal handler may run where Python calls a
 * function. */
typedef struct {
    PyObject_HEAD struct state *state;
} Local;

static PyObject *local_stack(Local *self, void *ignored) {
    return Py_XNewRef((PyObject *)stack_own(self->state));
}

/* The module has it, and its type has the module: only the collector finds that out. */
static int local_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void local_dealloc(Local *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyGetSetDef local_getset[] = {
    {"stack", (getter)local_stack, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot local_slots[] = {
    {Py_tp_traverse, local_traverse},
    {Py_tp_dealloc, local_dealloc},
    {Py_tp_getset, local_getset},
    {0, NULL},
};
static PyType_Spec local_spec = {
    "mdispatch.facts.native._call.Local", sizeof(Local), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, local_slots};

int handlers_add_local(PyObject *m) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(m, &local_spec, NULL);
    Local *made = type ? (Local *)type->tp_alloc(type, 0) : NULL;
    Py_XDECREF((PyObject *)type);
    if (!made) return -1;
    made->state = PyModule_GetState(m);
    int status = PyModule_AddObjectRef(m, "local", (PyObject *)made);
    Py_DECREF((PyObject *)made);
    return status;
}

Py_ssize_t slot_at(PyObject *type, const char *name) {
    PyObject *member = PyObject_GetAttrString(type, name);
    Py_ssize_t at = -1;
    if (member && Py_IS_TYPE(member, &PyMemberDescr_Type))
        at = ((PyMemberDescrObject *)member)->d_member->offset;
    else if (member)
        PyErr_Format(PyExc_TypeError, "%s is no slot", name);
    Py_XDECREF(member);
    return at;
}

/* handlers(python_fallback, snapshot_fallback, DispatchMode, ModeEntry, answered, declined,
 *          (Python, below it, above it, PythonTLSSnapshot, below it)): what this file needs. The
 * five are bits. */
PyObject *handlers_start(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyObject *o[6];
    unsigned long long bits[5];
    if (!PyArg_ParseTuple(args, "OOO!O!OO(KKKKK)", &o[0], &o[1], &PyType_Type, &o[2], &PyType_Type,
                          &o[3], &o[4], &o[5], &bits[0], &bits[1], &bits[2], &bits[3], &bits[4]))
        return NULL;
    Py_ssize_t mode_at = slot_at(o[3], "mode"), rank_at = slot_at(o[3], "rank");
    if (mode_at < 0 || rank_at < 0) return NULL;
    st->mode_at = mode_at;
    st->rank_at = rank_at;
    PyObject **places[6] = {&st->python_fallback, &st->snapshot_fallback, &st->mode_type,
                            &st->entry_type,      &st->answered,          &st->declined};
    for (int i = 0; i < 6; i++) Py_XSETREF(*places[i], Py_NewRef(o[i]));
    st->python = bits[0];
    st->below_python = bits[1];
    st->above_python = bits[2];
    st->snapshot = bits[3];
    st->below_snapshot = bits[4];
    Py_RETURN_NONE;
}

/* --- who is asked ----------------------------------------------------------------------------- */

static PyObject *slot_of(PyObject *entry, Py_ssize_t at) {
    return *(PyObject **)((char *)entry + at);
}

/* The innermost entry, borrowed; NULL when there is none. */
static PyObject *innermost(const Stack *stack) {
    Py_ssize_t n = stack ? PyList_GET_SIZE(stack->entries) : 0;
    return n ? PyList_GET_ITEM(stack->entries, n - 1) : NULL;
}

bool handlers_are_plain(struct state *st, Cell *cell) {
    const Stack *stack = stack_here(st);
    if (peek(&cell->has_rules) || !st->python_fallback || is_observed(st)) return false;
    if (!stack) return true;
    PyObject *entry = innermost(stack);
    if (PyList_GET_SIZE(stack->pre_dispatch)) return false;
    return !entry ||
           (Py_IS_TYPE(entry, (PyTypeObject *)st->entry_type) &&
            PyObject_TypeCheck(slot_of(entry, st->mode_at), (PyTypeObject *)st->mode_type));
}

/* Adds the class of a value if it has a handler: before its bases, else as the last. -1, perhaps
 * with an error, when Python has to find them. */
static int add_type_of(struct state *st, PyObject *value, PyTypeObject **found, int *n) {
    PyTypeObject *type = Py_TYPE(value);
    if (is_builtin(type) || value == Py_None) return 0;
    for (int i = 0; i < *n; i++) {
        if (found[i] == type) return 0;
    }
    if (!Py_IS_TYPE((PyObject *)type, &PyType_Type)) return -1;
    const PyObject *handler = _PyType_Lookup(type, st->handler_name);
    if (!handler || handler == Py_None || PyType_IsSubtype(type, (PyTypeObject *)st->mode_type))
        return 0;
    if (*n == MOST_TYPES) return -1;
    int at = 0;
    while (at < *n && !PyType_IsSubtype(type, found[at])) at++;
    for (int i = *n; i > at; i--) found[i] = found[i - 1];
    found[at] = (PyTypeObject *)Py_NewRef((PyObject *)type);
    ++*n;
    return 0;
}

/* The types that are asked, a new tuple; NULL, perhaps with an error, when Python finds them. */
static PyObject *types_of(struct state *st, const Shape *shape, PyObject *const *values) {
    PyTypeObject *found[MOST_TYPES];
    int n = 0, status = 0;
    for (Py_ssize_t i = 0; i < shape->positional + shape->keyword_only && !status; i++) {
        PyObject *value = values[i];
        /* A list is one that `bind` has made, or any other thread's: so a slice of it. */
        if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
            PyObject *items = PySequence_Tuple(value);
            if (!items) status = -1;
            for (Py_ssize_t k = 0; items && k < PyTuple_GET_SIZE(items) && !status; k++)
                status = add_type_of(st, PyTuple_GET_ITEM(items, k), found, &n);
            Py_XDECREF(items);
        } else {
            status = add_type_of(st, value, found, &n);
        }
    }
    PyObject *types = status ? NULL : PyTuple_New(n);
    for (int i = 0; i < n; i++) {
        if (types)
            PyTuple_SET_ITEM(types, i, (PyObject *)found[i]);
        else
            Py_DECREF((PyObject *)found[i]);
    }
    return types;
}

/* --- asking ----------------------------------------------------------------------------------- */

/* Puts a mode's entry back, as `put_on` in modes.py does: above those of its rank and below. */
static int put_back(struct state *st, Stack *stack, PyObject *entry) {
    Py_ssize_t n = PyList_GET_SIZE(stack->entries), at = n;
    long rank = PyLong_AsLong(slot_of(entry, st->rank_at));
    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyList_GET_ITEM(stack->entries, i) == entry) return 0; /* the handler did it */
    }
    while (at &&
           PyLong_AsLong(slot_of(PyList_GET_ITEM(stack->entries, at - 1), st->rank_at)) > rank)
        at--;
    return PyList_Insert(stack->entries, at, entry);
}

/* Calls a handler: of the mode of an entry, or, without an entry, of a type. call: the handler,
 * the operator, the types, the arguments, the keywords. */
static PyObject *ask(struct state *st, PyObject *entry, PyObject *const *call) {
    Stack *stack = stack_own(st);
    if (!stack) return NULL;
    struct noted on_entry = stack->on_entry, handled = stack->handled, now = guards_noted(st);
    uint64_t left_out =
        entry && PyList_GET_SIZE(stack->entries) == 1 ? st->python | st->snapshot : 0;
    uint64_t opening;
    Sets *sets = guards_begin(st, st->above_python, left_out, &opening);
    if (!sets) return NULL;
    PyObject *result = NULL;
    Py_INCREF((PyObject *)stack);
    stack->handled = on_entry.is_set ? on_entry : now;
    stack->on_entry.is_set = false;
    Py_ssize_t n = PyList_GET_SIZE(stack->entries);
    bool is_off = entry && PyList_SetSlice(stack->entries, n - 1, n, NULL) == 0;
    if (!entry || is_off)
        result = PyObject_VectorcallMethod(st->handler_name, call,
                                           5 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    guards_end(sets, opening);
    stack->on_entry = on_entry;
    stack->handled = handled;
    if (is_off && put_back(st, stack, entry)) Py_CLEAR(result);
    Py_DECREF((PyObject *)stack);
    Py_DECREF((PyObject *)sets);
    return result;
}

int handlers_ask(struct state *st, PyObject *operator, const Shape *shape, PyObject *const *values,
                 PyObject **result, PyObject **handler) {
    PyObject *entry = Py_XNewRef(innermost(stack_here(st)));
    PyObject *types = types_of(st, shape, values), *asked = NULL, *who = NULL, *answer = NULL;
    PyObject *args = NULL, *keywords = NULL;
    int how = DONE;
    if (!types || (!entry && !PyTuple_GET_SIZE(types))) {
        how = types ? NOBODY : PyErr_Occurred() ? DONE : TO_PYTHON;
        goto done;
    }
    args = shape_positional(shape, values);
    keywords = shape_keywords(shape, values);
    if (!args || !keywords) goto done;
    /* call[0] is for the callee */
    PyObject *call[6] = {NULL, NULL, operator, types, args, keywords};
    for (Py_ssize_t i = entry ? -1 : 0; i < PyTuple_GET_SIZE(types); i++) {
        who = i < 0 ? slot_of(entry, st->mode_at) : PyTuple_GET_ITEM(types, i);
        call[1] = Py_NewRef(who);
        answer = ask(st, i < 0 ? entry : NULL, call + 1);
        Py_DECREF(call[1]);
        if (answer != Py_NotImplemented) break;
        Py_CLEAR(answer);
        if (!asked && !(asked = PyList_New(0))) goto done;
        if (PyList_Append(asked, who)) goto done;
        who = NULL;
    }
    if (answer)
        *handler = Py_NewRef(who);
    else if (!PyErr_Occurred())
        answer = PyObject_CallFunctionObjArgs(st->declined, operator, asked, NULL); /* raises */
done:
    *result = answer;
    Py_XDECREF(entry);
    Py_XDECREF(types);
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    Py_XDECREF(asked);
    return how;
}

int handlers_note(struct state *st) {
    Stack *stack = stack_own(st);
    if (!stack) return -1;
    if (stack->on_entry.is_set) return 0;
    stack->on_entry = guards_noted(st);
    return 1;
}

void handlers_forget(struct state *st) {
    Stack *stack = stack_here(st);
    if (stack) stack->on_entry.is_set = false;
}
