/* packet.c - finding an operator by name: the attributes of a namespace, the overloads of a packet.
 *
 * Locking: a route never changes. It is replaced as a whole, like a plan: see Note [Readers] in
 * readers.c.
 */
#include "state.h"

/* Finds a plain attribute; for any other name, calls __missing__(name). (With __getattr__ in the
 * class, every look-up would be slower, also that of a plain attribute.) */
static PyObject *look_up(PyObject *self, PyObject *name) {
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (LIKELY(found != NULL) || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    struct state *st = state_of(Py_TYPE(self));
    PyErr_Clear();
    return st ? PyObject_CallMethodOneArg(self, st->missing_name, name) : NULL;
}

/* --- Packet ----------------------------------------------------------------------------------- */

/* The overloads of a packet, valid while the registry's sequence and this interpreter's knowledge
 * of its overloads are unchanged. Never changes. */
typedef struct {
    PyObject_HEAD const a64 *word;
    uint64_t sequence, epoch, touched;
    View *view;
    PyObject *order;   /* the overloads, in the order in which they are tried */
    PyObject *by_name; /* overloads by name, but for names that are attributes of the packet */
    uint8_t is_only;   /* the packet has one overload */
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
PyType_Spec route_spec = {
    "mdispatch.facts.native._call.Route", sizeof(Route), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, route_slots};

/* The packet's route, or NULL when it has none that is valid; the caller has to call `leave` in
 * both cases. */
static inline Route *route_of(Packet *self, in_use *use) {
    struct state *st = self->state;
    *use = enter(st);
    Route *route = atomic_load_explicit(&self->route, ENTERED);
    if (route &&
        (atomic_load_explicit(route->word, memory_order_acquire) != route->sequence ||
         route->epoch != peek(&st->epoch) || route->touched != peek(&route->view->touched)))
        route = NULL;
    hold(use, route);
    return route;
}

/* Calls the first overload that takes the arguments as they are, provided that those before it
 * certainly refuse them. 0 when Python has to make the call: to convert arguments, or to say why
 * all overloads refuse them. */
static int try_all(PyObject *order, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                   PyObject **result) {
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(order); i++) {
        PyObject *overload = PyTuple_GET_ITEM(order, i);
        if (operator_try(overload, args, nargsf, kwnames, result)) return 1;
        int refused = operator_refuses(overload, args, n, kwnames);
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
    Route *route = route_of(self, &use);
    if (UNLIKELY(!route) && !peek(&st->off) && st->renew_packet) {
        leave(use);
        PyObject *answer = PyObject_CallOneArg(st->renew_packet, self_);
        if (!answer) return NULL;
        Py_DECREF(answer);
        route = route_of(self, &use);
    }
    int done = route != NULL;
    if (LIKELY(route && route->is_only))
        result = operator_call(PyTuple_GET_ITEM(route->order, 0), args, nargsf, kwnames);
    else if (route)
        done = try_all(route->order, args, nargsf, kwnames, &result);
    leave(use);
    return LIKELY(done) ? result : in_python(st->call_packet, self_, args, nargsf, kwnames);
}

static PyObject *packet_getattro(PyObject *self, PyObject *name) {
    PyObject *found = NULL;
    in_use use;
    Route *route = route_of((Packet *)self, &use);
    if (route && route->by_name && PyUnicode_CheckExact(name))
        found = dict_find(route->by_name, name);
    leave(use);
    return found || PyErr_Occurred() ? found : look_up(self, name);
}

static PyObject *packet_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    struct state *st = state_of(type);
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
    retire(self->state, (PyObject *)atomic_exchange(&self->route, NULL));
    return 0;
}

static void packet_dealloc(Packet *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(atomic_exchange(&self->route, NULL));
    type->tp_free(self);
    Py_DECREF(type);
}

/* begin(view): what settle() has to be given. Python calls it before it looks up the overloads. */
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

/* settle(begun, view, order, is_only, by_name): the new route, valid until one of the numbers that
 * begin() read changes. Nobody else may have the dictionary. */
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
    retire(st, (PyObject *)atomic_exchange(&self->route, route));
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
PyType_Spec packet_spec = {"mdispatch.facts.native._call.Packet", sizeof(Packet), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                               Py_TPFLAGS_HAVE_VECTORCALL,
                           packet_slots};

/* --- Names ------------------------------------------------------------------------------------ */

/* The base of classes that have operators as attributes. */

/* Whether the packet has been looked up since the registry changed. */
static inline bool is_current(Packet *packet) {
    in_use use;
    bool current = route_of(packet, &use) != NULL;
    leave(use);
    return current;
}

/* A packet that this object keeps as an attribute. It may have lost its last overload since, here
 * or elsewhere: then the attribute goes, and Python says what is missing. Takes over `packet`. */
static PyObject *look_again(PyObject *self, PyObject *name, PyObject *packet) {
    struct state *st = ((Packet *)packet)->state;
    if (!st->renew_packet) return packet;
    /* "default" only: a look-up alone does not map the registry's memory for C. */
    PyObject *known = PyObject_CallFunction(st->renew_packet, "Os", packet, "default");
    Py_ssize_t count = known ? PyObject_Size(known) : -1;
    Py_XDECREF(known);
    if (count > 0) return packet;
    Py_DECREF(packet);
    if (count < 0) return NULL;
    if (PyObject_GenericSetAttr(self, name, NULL)) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return NULL;
        PyErr_Clear(); /* another thread was faster */
    }
    return PyObject_CallMethodOneArg(self, st->missing_name, name);
}

static PyObject *names_getattro(PyObject *self, PyObject *name) {
    PyObject *found = look_up(self, name);
    if (!found || Py_TYPE(found)->tp_getattro != packet_getattro || is_current((Packet *)found))
        return found;
    return look_again(self, name, found);
}

static void names_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot names_slots[] = {
    {Py_tp_getattro, names_getattro},
    {Py_tp_dealloc, names_dealloc},
    {0, NULL},
};
PyType_Spec names_spec = {"mdispatch.facts.native._call.Names", sizeof(PyObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, names_slots};
