/* operator.c - the type of operators: how Python makes and attaches them. call.c calls them. */
#include "state.h"

static PyObject *operator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    struct state *st = state_of(type);
    Operator *self = st ? (Operator *)type->tp_alloc(type, 0) : NULL;
    if (!self) return NULL;
    self->state = st;
    self->vectorcall = operator_call;
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

/* attach(cell, generation): called once, before the operator is called. */
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
    {"redispatch", (PyCFunction)(void (*)(void))operator_redispatch, METH_FASTCALL | METH_KEYWORDS,
     redispatch_doc},
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
PyType_Spec operator_spec = {"mdispatch.facts.native._call.Operator", sizeof(Operator), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                                 Py_TPFLAGS_HAVE_VECTORCALL,
                             operator_slots};
