/* handles.c - the module: what Python makes operators and packets of, and what it tells the calls. */
#include "call.h"

/* --- Operator ----------------------------------------------------------------------------------- */

static PyObject *operator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    struct state *st = md__state_of(type);
    Operator *self = st ? (Operator *)type->tp_alloc(type, 0) : NULL;
    if (!self) return NULL;
    self->state = st;
    self->vectorcall = md__operator_call;
    return (PyObject *)self;
}

static int operator_traverse(Operator *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->cell);
    return 0;
}

static int operator_tp_clear(Operator *self) {
    Py_CLEAR(self->cell);
    return 0;
}

static void operator_dealloc(Operator *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->cell);
    type->tp_free(self);
    Py_DECREF(type);
}

/* attach(cell, generation): once, before the operator is called. */
static PyObject *operator_attach(Operator *self, PyObject *args) {
    PyObject *cell;
    unsigned long long generation;
    if (!PyArg_ParseTuple(args, "O!K", self->state->cell_type, &cell, &generation)) return NULL;
    if (self->cell) {
        PyErr_SetString(PyExc_TypeError, "an operator has one cell");
        return NULL;
    }
    self->generation = generation;
    self->cell = (Cell *)Py_NewRef(cell);
    Py_RETURN_NONE;
}

static const char redispatch_doc[] =
    "redispatch($self, key_set, /, *args, **kwargs)\n--\n\n"
    "Runs the kernel of ``key_set`` as it is, whatever keys the arguments carry: this thread's\n"
    "included and excluded keys do not count, and nothing falls through.\n\n"
    "From inside a kernel that was registered with its key set, ``op.redispatch(key_set &\n"
    "DispatchKeySet.full_after(\"AutogradCPU\"), ...)`` goes on below AutogradCPU. (c10:\n"
    "redispatch)";

static PyMethodDef operator_methods[] = {
    {"_attach", (PyCFunction)operator_attach, METH_VARARGS, NULL},
    {"redispatch", (PyCFunction)(void (*)(void))md__operator_redispatch,
     METH_FASTCALL | METH_KEYWORDS, redispatch_doc},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef operator_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Operator, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot operator_slots[] = {
    {Py_tp_new, operator_new},         {Py_tp_traverse, operator_traverse},
    {Py_tp_clear, operator_tp_clear},  {Py_tp_dealloc, operator_dealloc},
    {Py_tp_call, PyVectorcall_Call},   {Py_tp_methods, operator_methods},
    {Py_tp_members, operator_members}, {0, NULL},
};
static PyType_Spec operator_spec = {"mdispatch._native._call.Operator", sizeof(Operator), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                                        Py_TPFLAGS_HAVE_VECTORCALL,
                                    operator_slots};

/* --- looking up by attribute -------------------------------------------------------------------- */

/* A plain attribute; what is none, __missing__(name) finds. (A class with __getattr__ makes every
 * look-up slower, also of what is there.) */
static PyObject *look_up(PyObject *self, PyObject *name) {
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (LIKELY(found != NULL) || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    struct state *st = md__state_of(Py_TYPE(self));
    PyErr_Clear();
    return st ? PyObject_CallMethodOneArg(self, st->missing_name, name) : NULL;
}

/* --- Packet ------------------------------------------------------------------------------------- */

/* The overloads of a packet, as long as the registry's sequence and what this interpreter knows of it
 * are the same. Never changes. */
typedef struct {
    PyObject_HEAD const a64 *word;
    uint64_t sequence, epoch, touched;
    View *view;
    PyObject *order;   /* the overloads that are tried one after the other */
    PyObject *by_name; /* those looked up; none that an attribute of the packet is called like */
    uint8_t is_only;   /* there is no other than the first */
} Route;

typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    struct state *state;
    _Atomic(Route *) route;
} Packet;

static int route_traverse(Route *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->view);
    Py_VISIT(self->order);
    Py_VISIT(self->by_name);
    return 0;
}

static void route_dealloc(Route *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->view);
    Py_XDECREF(self->order);
    Py_XDECREF(self->by_name);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot route_slots[] = {
    {Py_tp_traverse, route_traverse},
    {Py_tp_dealloc, route_dealloc},
    {0, NULL},
};
static PyType_Spec route_spec = {
    "mdispatch._native._call.Route", sizeof(Route), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, route_slots};

/* The packet's route in use, as plans are in call.c; NULL when it has none that holds. */
#ifdef Py_GIL_DISABLED
typedef a64 *in_use;
static void leave(in_use use) {
    md__readers_exit(use);
}
#else
typedef Route *in_use;
static void leave(in_use use) {
    Py_XDECREF(use);
}
#endif

static inline Route *enter(Packet *self, in_use *use) {
    struct state *st = self->state;
#ifdef Py_GIL_DISABLED
    *use = md__readers_enter(st);
#endif
    Route *route = atomic_load(&self->route);
    if (route &&
        (atomic_load_explicit(route->word, memory_order_acquire) != route->sequence ||
         route->epoch != peek(&st->epoch) || route->touched != peek(&route->view->touched)))
        route = NULL;
#ifndef Py_GIL_DISABLED
    *use = route;
    Py_XINCREF(route);
#endif
    return route;
}

/* Of several overloads, the first is called that takes the arguments as they are, if those before it
 * refuse them beyond doubt. What one would have to convert is Python's to find out, and what to say
 * when all refuse. 0 when it is Python's; else the call was made. */
static int try_all(PyObject *order, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                   PyObject **result) {
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(order); i++) {
        PyObject *overload = PyTuple_GET_ITEM(order, i);
        if (md__operator_try(overload, args, nargsf, kwnames, result)) return 1;
        int refused = md__operator_refuses(overload, args, n, kwnames);
        if (refused <= 0) return refused < 0;
    }
    return 0;
}

static PyObject *packet_call(PyObject *self_, PyObject *const *args, size_t nargsf,
                             PyObject *kwnames) {
    Packet *self = (Packet *)self_;
    struct state *st = self->state;
    PyObject *result = NULL;
    in_use use;
    Route *route = enter(self, &use);
    if (UNLIKELY(!route) && !peek(&st->off) && st->renew_packet) {
        leave(use);
        PyObject *answer = PyObject_CallOneArg(st->renew_packet, self_);
        if (!answer) return NULL;
        Py_DECREF(answer);
        route = enter(self, &use);
    }
    int done = route != NULL;
    if (LIKELY(route && route->is_only))
        result = md__operator_call(PyTuple_GET_ITEM(route->order, 0), args, nargsf, kwnames);
    else if (route)
        done = try_all(route->order, args, nargsf, kwnames, &result);
    leave(use);
    return LIKELY(done) ? result : md__in_python(st->call_packet, self_, args, nargsf, kwnames);
}

static PyObject *packet_getattro(PyObject *self, PyObject *name) {
    PyObject *found = NULL;
    in_use use;
    Route *route = enter((Packet *)self, &use);
    if (route && route->by_name && PyUnicode_CheckExact(name))
        found = md__dict_find(route->by_name, name);
    leave(use);
    return found || PyErr_Occurred() ? found : look_up(self, name);
}

static PyObject *packet_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    struct state *st = md__state_of(type);
    Packet *self = st ? (Packet *)type->tp_alloc(type, 0) : NULL;
    if (!self) return NULL;
    self->state = st;
    self->vectorcall = packet_call;
    return (PyObject *)self;
}

static int packet_traverse(Packet *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Route *route = atomic_load_explicit(&self->route, memory_order_relaxed);
    Py_VISIT(route);
    return 0;
}

static int packet_tp_clear(Packet *self) {
    md__retire(self->state, (PyObject *)atomic_exchange(&self->route, NULL));
    return 0;
}

static void packet_dealloc(Packet *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(atomic_exchange(&self->route, NULL));
    type->tp_free(self);
    Py_DECREF(type);
}

/* begin(view): to be handed to settle(), taken before the overloads are looked up. */
static PyObject *packet_begin(Packet *self, PyObject *view) {
    const uint64_t *word;
    if (!PyObject_TypeCheck(view, self->state->view_type) ||
        md_word(((View *)view)->registry, 0, &word))
        Py_RETURN_NONE;
    uint64_t touched = atomic_load(&((View *)view)->touched);
    return Py_BuildValue(
        "(NKKK)", PyLong_FromVoidPtr((void *)word),
        (unsigned long long)atomic_load_explicit((const a64 *)word, memory_order_acquire),
        (unsigned long long)peek(&self->state->epoch), (unsigned long long)touched);
}

/* settle(begun, view, order, is_only, by_name): the route from now on, until what begin() saw has
 * changed. Nobody else has the dictionary. */
static PyObject *packet_settle(Packet *self, PyObject *args) {
    struct state *st = self->state;
    PyObject *view, *order, *by_name, *word;
    unsigned long long sequence, epoch, touched;
    int is_only;
    if (!PyArg_ParseTuple(args, "(OKKK)O!O!pO!", &word, &sequence, &epoch, &touched, st->view_type,
                          &view, &PyTuple_Type, &order, &is_only, &PyDict_Type, &by_name))
        return NULL;
    Py_ssize_t operators = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(order); i++)
        operators += PyObject_TypeCheck(PyTuple_GET_ITEM(order, i), st->operator_type);
    if (operators == 0 || operators < PyTuple_GET_SIZE(order))
        return PyErr_Format(PyExc_TypeError, "a route is made of one operator or more");
    Route *route = (Route *)st->route_type->tp_alloc(st->route_type, 0);
    if (!route) return NULL;
    route->word = PyLong_AsVoidPtr(word);
    route->sequence = sequence;
    route->epoch = epoch;
    route->touched = touched;
    route->view = (View *)Py_NewRef(view);
    route->order = Py_NewRef(order);
    route->is_only = is_only != 0;
    route->by_name = Py_NewRef(by_name);
    md__retire(st, (PyObject *)atomic_exchange(&self->route, route));
    Py_RETURN_NONE;
}

static PyMethodDef packet_methods[] = {
    {"_begin", (PyCFunction)packet_begin, METH_O, NULL},
    {"_settle", (PyCFunction)packet_settle, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef packet_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Packet, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot packet_slots[] = {
    {Py_tp_new, packet_new},
    {Py_tp_traverse, packet_traverse},
    {Py_tp_clear, packet_tp_clear},
    {Py_tp_dealloc, packet_dealloc},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_methods, packet_methods},
    {Py_tp_members, packet_members},
    {Py_tp_getattro, packet_getattro},
    {0, NULL},
};
static PyType_Spec packet_spec = {"mdispatch._native._call.Packet", sizeof(Packet), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                                      Py_TPFLAGS_HAVE_VECTORCALL,
                                  packet_slots};

/* --- Names -------------------------------------------------------------------------------------- */

/* The base of what has operators as attributes. */
static void names_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot names_slots[] = {
    {Py_tp_getattro, look_up},
    {Py_tp_dealloc, names_dealloc},
    {0, NULL},
};
static PyType_Spec names_spec = {"mdispatch._native._call.Names", sizeof(PyObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, names_slots};

/* --- the module --------------------------------------------------------------------------------- */

static struct PyModuleDef module;

struct state *md__state_of(PyTypeObject *type) {
    PyObject *m = PyType_GetModuleByDef(type, &module);
    return m ? PyModule_GetState(m) : NULL;
}

/* Every plan of this interpreter is out of date. */
static PyObject *call_changed(PyObject *m, PyObject *ignored) {
    struct state *st = PyModule_GetState(m);
    atomic_fetch_add(&st->epoch, 1);
    Py_RETURN_NONE;
}

/* Note [Locks that nobody has]
 * Without a GIL each object has a lock. One that was waited for is handed to a waiter that is still
 * asleep, and CPython's fork, which stops all threads first, can come before that one wakes. In the
 * child the lock is taken for ever: the first change of that dict, a look into that set would wait
 * without end. Nobody was in the midst of a change: who is stops only after it. So the child, which has
 * one thread, takes these for free. Only those of our own objects: that of
 * the collector can be taken likewise, so what goes through all objects could itself wait for ever. */
static PyObject *call_unlock(PyObject *m, PyObject *const *objects, Py_ssize_t n) {
#ifdef Py_GIL_DISABLED
    for (Py_ssize_t i = 0; i < n; i++) objects[i]->ob_mutex = (PyMutex){0};
    md__readers_unlock(PyModule_GetState(m));
#endif
    Py_RETURN_NONE;
}

/* A type was registered. */
static PyObject *call_types_changed(PyObject *m, PyObject *ignored) {
    md__types_changed(PyModule_GetState(m));
    Py_RETURN_NONE;
}

/* turn(bit, off): all calls go through Python while one of the bits says so. */
static PyObject *call_turn(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    unsigned int bit;
    int off;
    if (!PyArg_ParseTuple(args, "Ip", &bit, &off)) return NULL;
    if (off)
        atomic_fetch_or(&st->off, 1ull << bit);
    else
        atomic_fetch_and(&st->off, ~(1ull << bit));
    return call_changed(m, NULL);
}

/* Lets instances of a class be called without its __call__: from 3.12 on CPython does it by itself. */
static PyObject *call_callable(PyObject *m, PyObject *type) {
    if (!PyType_Check(type) || ((PyTypeObject *)type)->tp_call != PyVectorcall_Call) {
        PyErr_SetString(PyExc_TypeError, "a class with a __call__ of its own");
        return NULL;
    }
#if PY_VERSION_HEX < 0x030c0000
    ((PyTypeObject *)type)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    PyType_Modified((PyTypeObject *)type);
#endif
    return Py_NewRef(type);
}

/* How many threads' sets differ from what threads start with; for tests. */
static PyObject *call_guards(PyObject *m, PyObject *ignored) {
    struct state *st = PyModule_GetState(m);
    return PyLong_FromUnsignedLongLong(peek(&st->guards));
}

/* start(included, kept): what every thread's sets begin with. */
static PyObject *call_start(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    unsigned long long included, kept;
    if (!PyArg_ParseTuple(args, "KK", &included, &kept)) return NULL;
    st->included = included;
    st->kept = kept;
    Py_RETURN_NONE;
}

/* keys(offsets, per_backend, special): the order of the keys, from _keys.py, and which of them are
 * Python's. */
static PyObject *call_keys(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyObject *offsets;
    unsigned long long per_backend, special;
    if (!PyArg_ParseTuple(args, "O!KK", &PyTuple_Type, &offsets, &per_backend, &special))
        return NULL;
    for (int i = 0; i < FUNCTIONALITIES && i < PyTuple_GET_SIZE(offsets); i++) {
        long offset = PyLong_AsLong(PyTuple_GET_ITEM(offsets, i));
        if (offset < 0 || offset + BACKENDS >= ENTRIES)
            return PyErr_Format(PyExc_ValueError, "no such offset");
        st->offset[i] = (uint8_t)offset;
    }
    st->per_backend = per_backend;
    st->special = special;
    Py_RETURN_NONE;
}

static void set(PyObject **place, PyObject *value) {
    PyObject *before = *place;
    *place = Py_XNewRef(value);
    Py_XDECREF(before);
}

/* values(raw_of_type, raw_of, DispatchKeySet, from_raw, local, MdispatchError): how Python asks. */
static PyObject *call_values(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyObject *raw_of_type, *raw_of, *key_set_type, *from_raw, *local, *own_errors;
    if (!PyArg_ParseTuple(args, "OOO!OOO", &raw_of_type, &raw_of, &PyType_Type, &key_set_type,
                          &from_raw, &local, &own_errors))
        return NULL;
    PyObject *member = PyObject_GetAttrString(key_set_type, "_raw");
    if (!member) return NULL;
    if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) {
        Py_DECREF(member);
        return PyErr_Format(PyExc_TypeError, "a DispatchKeySet has its bits in a slot");
    }
    st->raw_at = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    set(&st->raw_of_type, raw_of_type);
    set(&st->raw_of, raw_of);
    set(&st->key_set_type, key_set_type);
    set(&st->from_raw, from_raw);
    set(&st->local, local);
    set(&st->own_errors, own_errors);
    Py_RETURN_NONE;
}

/* paths(call, redispatch, renew, target, check, call_packet, renew_packet): what Python does. */
static PyObject *call_paths(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyObject *p[7];
    if (!PyArg_ParseTuple(args, "OOOOOOO", &p[0], &p[1], &p[2], &p[3], &p[4], &p[5], &p[6]))
        return NULL;
    PyObject **places[7] = {&st->call,  &st->redispatch,  &st->renew,       &st->target,
                            &st->check, &st->call_packet, &st->renew_packet};
    for (int i = 0; i < 7; i++) set(places[i], p[i]);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"callable", call_callable, METH_O, NULL},
    {"changed", call_changed, METH_NOARGS, NULL},
    {"guards", call_guards, METH_NOARGS, NULL},
    {"keys", call_keys, METH_VARARGS, NULL},
    {"paths", call_paths, METH_VARARGS, NULL},
    {"start", call_start, METH_VARARGS, NULL},
    {"turn", call_turn, METH_VARARGS, NULL},
    {"types_changed", call_types_changed, METH_NOARGS, NULL},
    {"unlock", (PyCFunction)(void (*)(void))call_unlock, METH_FASTCALL, NULL},
    {"values", call_values, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* clang-format off */
#define EACH_OBJECT(DO) \
    DO(st->operator_type); DO(st->packet_type); DO(st->route_type); DO(st->names_type); DO(st->shape_type); \
    DO(st->view_type); DO(st->plan_type); DO(st->cell_type); DO(st->sets_type); \
    DO(st->call); DO(st->redispatch); DO(st->renew); DO(st->target); \
    DO(st->check); DO(st->call_packet); DO(st->renew_packet); DO(st->raw_of_type); \
    DO(st->raw_of); DO(st->from_raw); DO(st->local); DO(st->key_set_type); \
    DO(st->own_errors); DO(st->raw_by_name);
/* clang-format on */

static int module_traverse(PyObject *m, visitproc visit, void *arg) {
    struct state *st = PyModule_GetState(m);
    EACH_OBJECT(Py_VISIT)
    return 0;
}

/* The interpreter ends. What is called from now on, by finalizers, is refused. */
static int module_clear(PyObject *m) {
    struct state *st = PyModule_GetState(m);
    atomic_store(&st->off, UINT64_MAX);
    atomic_fetch_add(&st->epoch, 1);
    md__types_changed(st);
    EACH_OBJECT(Py_CLEAR)
    Py_CLEAR(st->sets_name);
    Py_CLEAR(st->keys_name);
    Py_CLEAR(st->missing_name);
    return 0;
}

static void module_free(void *m) {
    module_clear(m);
    md__readers_free(PyModule_GetState(m));
}

static int add_type(PyObject *m, PyTypeObject **place, PyType_Spec *spec, int is_public) {
    *place = (PyTypeObject *)PyType_FromModuleAndSpec(m, spec, NULL);
    return *place ? is_public ? PyModule_AddType(m, *place) : 0 : -1;
}

static int module_exec(PyObject *m) {
    struct state *st = PyModule_GetState(m);
    if (md__readers_make(st)) return -1;
    if (add_type(m, &st->operator_type, &operator_spec, 1) ||
        add_type(m, &st->packet_type, &packet_spec, 1) ||
        add_type(m, &st->route_type, &route_spec, 0) ||
        add_type(m, &st->names_type, &names_spec, 1) ||
        add_type(m, &st->shape_type, &md__shape_spec, 1) ||
        add_type(m, &st->view_type, &md__view_spec, 1) ||
        add_type(m, &st->plan_type, &md__plan_spec, 0) ||
        add_type(m, &st->cell_type, &md__cell_spec, 1) ||
        add_type(m, &st->sets_type, &md__sets_spec, 1))
        return -1;
    st->sets_name = PyUnicode_InternFromString("sets");
    st->keys_name = PyUnicode_InternFromString("__dispatch_keys__");
    st->missing_name = PyUnicode_InternFromString("__missing__");
    st->raw_by_name = PyDict_New();
    return st->missing_name && st->sets_name && st->keys_name && st->raw_by_name ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_MOD_PER_INTERPRETER_GIL_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mdispatch._native._call",
    .m_doc = "Calls of operators, and what they are kept in. Use mdispatch, not this.",
    .m_size = sizeof(struct state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__call(void) {
    return PyModuleDef_Init(&module);
}
