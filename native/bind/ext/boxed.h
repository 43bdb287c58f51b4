/* boxed.h - the functions for kernels in C that ext.c puts into its module. */
#ifndef MD_EXT_BOXED_H
#define MD_EXT_BOXED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../mdispatch_kernels.h"

/* A kernel in C as Python calls it: the function, and what a call needs of the operator's
 * schema. */
struct boxed_kernel {
    md_held_kernel *held;
    PyObject *op;          /* str */
    PyObject *label;       /* str */
    PyObject *names;       /* tuple of the keyword-only arguments' names, in the schema's order */
    PyObject *find;        /* find(name) -> an operator of the kernel's registry */
    PyObject *buffer_type; /* mdispatch.facts.native._ext.Buffer */
    PyObject *kernel_error;
    PyObject *boxing_error;
    const char *op_utf8; /* of `op` */
    Py_ssize_t positional;
    Py_ssize_t returns;
    unsigned char *flags; /* BOXED_..., one per argument; boxed_kernel owns it */
};

/* Flags of an argument: the schema calls it a Tensor; the operator writes to it. */
enum { BOXED_TENSOR = 1, BOXED_WRITTEN = 2 };

/* The builtin that calls a kernel; owns `k` and what is in it, even when it fails. */
PyObject *boxed_builtin(struct boxed_kernel *k);

/* Adds the type of buffers that kernels make to the extension's module. */
int boxed_exec(PyObject *module);

/* kernels.c */
PyObject *ext_has_host(PyObject *self, PyObject *args);
PyObject *ext_kernel_drop(PyObject *self, PyObject *args);
PyObject *ext_kernel_function(PyObject *self, PyObject *args);
PyObject *ext_kernel_label(PyObject *self, PyObject *args);
PyObject *ext_kernel_bind(PyObject *self, PyObject *args);
PyObject *ext_kernel_definition(PyObject *self, PyObject *args);
PyObject *ext_kernel_put(PyObject *self, PyObject *args);
PyObject *ext_load(PyObject *self, PyObject *args);

#endif
