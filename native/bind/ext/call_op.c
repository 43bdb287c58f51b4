/* call_op.c - a kernel in C calls an operator: by name, with boxed values, on its own thread, and so
 * with the guards, the key sets and the modes that its caller has.
 *
 * The operator is one of the kernel's registry, in the interpreter that has called the kernel
 * (dispatch/dispatcher.py). A kernel that runs without the GIL has it for the call.
 */
#include "frame.h"

static PyObject *arguments_of(struct frame *f, const md_value *args, size_t n_args) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)n_args);
    for (size_t i = 0; tuple && i < n_args; i++) {
        PyObject *one = boxed_shown(f, &args[i]);
        if (one)
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, one);
        else
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* Takes over `result`. The call keeps it, for the values point into it. */
static int put_results(struct frame *f, const char *op, PyObject *result, md_value *results,
                       size_t n_results) {
    if (boxed_keep(f, result)) return -1;
    for (size_t i = 0; i < n_results; i++) memset(&results[i], 0, sizeof results[i]);
    if (n_results == 1) return boxed_value(f, result, 0, &results[0]);
    size_t size = PyTuple_Check(result) ? (size_t)PyTuple_GET_SIZE(result) : result != Py_None;
    if (size != n_results)
        return boxed_unfit(f, "it calls %s and wants %zu results, not %zu", op, n_results, size);
    for (size_t i = 0; i < n_results; i++) {
        if (boxed_value(f, PyTuple_GET_ITEM(result, (Py_ssize_t)i), 0, &results[i])) return -1;
    }
    return 0;
}

int boxed_call_op(md_call *call, const char *op, const md_value *args, size_t n_args,
                  md_value *results, size_t n_results) {
    struct frame *f = (struct frame *)call;
    int rc = -1;
    if (f->released) PyEval_RestoreThread(f->released);
    PyObject *tuple = arguments_of(f, args, n_args);
    PyObject *found = tuple ? PyObject_CallFunction(f->kernel->find, "s", op) : NULL;
    PyObject *result = found ? PyObject_Call(found, tuple, NULL) : NULL;
    if (result) rc = put_results(f, op, result, results, n_results);
    Py_XDECREF(found);
    Py_XDECREF(tuple);
    if (rc) { /* the caller gets it, unless the kernel does without or fails otherwise */
        for (int i = 0; i < 3; i++) Py_CLEAR(f->raised[i]);
        PyErr_Fetch(&f->raised[0], &f->raised[1], &f->raised[2]);
        f->error = rc = MD_ERROR_RAISED;
    }
    if (f->released) PyEval_SaveThread();
    return rc;
}
