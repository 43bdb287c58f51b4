/* surely.c - for what has to be given back although signal handlers may raise.
 * mdispatch/facts/native/calls_py.py has the twin.
 *
 * Note [Handlers that raise]
 * CPython runs a signal handler after a call of C, where a function of Python begins, and where a
 * loop goes back. What the handler raises (KeyboardInterrupt, a TimeoutError of the user's own)
 * comes out there: in the middle of whatever the main thread does, of a `finally`, too. So:
 *
 *   - What is taken has a token first, which is made before the `try`. Within the `try` one call of
 *     C takes it for the token (an item of a dict, a set, a list). Nothing lies between taking and
 *     owning.
 *   - The first call in the `finally` is one of C: either it gives back by itself, or it is
 *     `surely`, which runs a function of Python until that has come to its end. Between calls C
 *     looks for no signal.
 *   - What C has made, and Python has not seen yet, is in a list that was there before: `noted`.
 *
 * Python 3.13 has a hole beside: tests/project/test_interruptible.py. */
#include "state.h"

/* A handler that raises each time leaves no way to an end. Errors of the function's own come back
 * each time, so these end soon. */
enum { MOST_INTERRUPTS = 1000, MOST_ERRORS = 20 };

/* surely(function, *args): calls it again where something was raised, which it has to bear, and
 * then raises what was raised first. */
PyObject *surely(PyObject *m, PyObject *const *args, Py_ssize_t n) {
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    int interrupts = 0, errors = 0;
    if (n < 1) return PyErr_Format(PyExc_TypeError, "surely takes a function");
    for (;;) {
        PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(n - 1), NULL);
        if (result) {
            if (!type) return result;
            Py_DECREF(result);
            break;
        }
        int is_over = PyErr_ExceptionMatches(PyExc_Exception) ? ++errors == MOST_ERRORS
                                                              : ++interrupts == MOST_INTERRUPTS;
        if (!type || is_over) {
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(traceback);
            PyErr_Fetch(&type, &value, &traceback);
        } else {
            PyErr_Clear();
        }
        if (is_over) break;
    }
    PyErr_Restore(type, value, traceback);
    return NULL;
}

/* noted(list, function, *args): what the function returns, which is in the list before any handler
 * runs. */
PyObject *noted(PyObject *m, PyObject *const *args, Py_ssize_t n) {
    if (n < 2 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "noted takes a list and a function");
    PyObject *result = PyObject_Vectorcall(args[1], args + 2, (size_t)(n - 2), NULL);
    if (result && PyList_Append(args[0], result)) Py_CLEAR(result);
    return result;
}
