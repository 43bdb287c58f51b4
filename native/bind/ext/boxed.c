/* boxed.c - a kernel in C as a builtin: turns arguments into boxed values, calls the kernel, and
 * turns its results into objects.
 *
 * Interpreters share nothing here. A builtin and the objects in its boxed_kernel belong to the
 * interpreter that made them; all else that a call needs is on its stack or in memory of its own
 * (frame.h). So interpreters with their own GILs can call one kernel at the same time.
 */
#include "frame.h"

static const char CAPSULE[] = "mdispatch.kernel";

static PyObject *call_boxed(PyObject *capsule, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames) {
    const struct boxed_kernel *k = PyCapsule_GetPointer(capsule, CAPSULE);
    if (!k) return NULL;
    const md_kernel_spec *spec = md_kernel_spec_of(k->held);
    struct frame f;
    boxed_begin(&f, k, spec->user);
    f.pub.call_op = boxed_call_op;
    md_value small[16], *values = small;
    size_t count = (size_t)(k->positional + PyTuple_GET_SIZE(k->names)), all = count;
    all += (size_t)k->returns;
    if (all > 16) values = boxed_alloc(&f.pub, all * sizeof *values);
    if (!values) return PyErr_NoMemory();
    memset(values, 0, all * sizeof *values);
    PyObject *result = NULL;
    Py_INCREF(capsule); /* the kernel may drop the last reference to the builtin */
    if (boxed_arguments(&f, args, nargs, kwnames, values) == 0) {
        md_value *results = values + count;
        int rc;
        if (spec->flags & MD_RELEASE_GIL) {
            f.released = PyEval_SaveThread();
            rc = spec->function(&f.pub, values, count, results, (size_t)k->returns);
            PyEval_RestoreThread(f.released);
            f.released = NULL;
        } else {
            rc = spec->function(&f.pub, values, count, results, (size_t)k->returns);
        }
        if (rc)
            boxed_raise(&f, f.error ? f.error : rc);
        else
            result = boxed_results(&f, results);
    }
    boxed_end(&f);
    object_sweep();
    Py_DECREF(capsule);
    return result;
}

static void free_kernel(struct boxed_kernel *k) {
    if (k->held) md_kernel_let_go(k->held);
    Py_XDECREF(k->op);
    Py_XDECREF(k->label);
    Py_XDECREF(k->names);
    Py_XDECREF(k->find);
    Py_XDECREF(k->buffer_type);
    Py_XDECREF(k->kernel_error);
    Py_XDECREF(k->boxing_error);
    PyMem_Free(k->flags);
    PyMem_Free(k);
}

static void capsule_destructor(PyObject *capsule) {
    free_kernel(PyCapsule_GetPointer(capsule, CAPSULE));
}

static PyMethodDef boxed_method = {"c_kernel", (PyCFunction)(void (*)(void))call_boxed,
                                   METH_FASTCALL | METH_KEYWORDS,
                                   "A kernel in C: takes what its operator's schema says."};

PyObject *boxed_builtin(struct boxed_kernel *k) {
    PyObject *capsule = PyCapsule_New(k, CAPSULE, capsule_destructor);
    if (!capsule) {
        free_kernel(k);
        return NULL;
    }
    PyObject *builtin = PyCFunction_NewEx(&boxed_method, capsule, NULL);
    Py_DECREF(capsule);
    return builtin;
}
