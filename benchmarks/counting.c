/* What operations.py tells callgrind: to begin and to pause, to forget what it counted, to write it
 * down. Outside of valgrind these requests are a few instructions that do nothing.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <valgrind/callgrind.h>

static PyObject *begin(PyObject *self, PyObject *unused) {
    CALLGRIND_START_INSTRUMENTATION;
    Py_RETURN_NONE;
}

static PyObject *pause_(PyObject *self, PyObject *unused) {
    CALLGRIND_STOP_INSTRUMENTATION;
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *self, PyObject *unused) {
    CALLGRIND_ZERO_STATS;
    Py_RETURN_NONE;
}

static PyObject *write_down(PyObject *self, PyObject *unused) {
    CALLGRIND_DUMP_STATS;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"begin", begin, METH_NOARGS, NULL},
    {"pause", pause_, METH_NOARGS, NULL},
    {"forget", forget, METH_NOARGS, NULL},
    {"write_down", write_down, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "counting", .m_size = -1, .m_methods = functions,
};

PyMODINIT_FUNC PyInit_counting(void) {
    return PyModule_Create(&definition);
}
