/* seam.h - the way to the features in Python, by the points of mdispatch/seam.py: C names no module. */
#ifndef MD_EXT_SEAM_H
#define MD_EXT_SEAM_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* The home of a point of the seam, a new reference; NULL with an exception. */
PyObject *seam_at(const char *point);

/* seam(at): the function that seam_at() asks in this interpreter. It is set once, when the package is
 * loaded, and stays as long as the interpreter. */
PyObject *ext_seam(PyObject *self, PyObject *at);

#endif
