/* seam.c - the way of the extension to the features in Python: see seam.h. */
#include "seam.h"

static const char *KEY = "mdispatch.seam";

PyObject *seam_at(const char *point) {
    PyObject *kept = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *at = kept ? PyDict_GetItemString(kept, KEY) : NULL;
    if (!at) {
        PyErr_SetString(PyExc_RuntimeError, "mdispatch is not loaded in this interpreter");
        return NULL;
    }
    Py_INCREF(at);
    PyObject *found = PyObject_CallFunction(at, "s", point);
    Py_DECREF(at);
    return found;
}

PyObject *ext_seam(PyObject *self, PyObject *at) {
    (void)self;
    PyObject *kept = PyInterpreterState_GetDict(PyInterpreterState_Get());
    if (!kept) return PyErr_NoMemory();
    if (PyDict_SetItemString(kept, KEY, at)) return NULL;
    Py_RETURN_NONE;
}
