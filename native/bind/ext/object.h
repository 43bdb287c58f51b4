/* object.h - objects that interpreters share by handles. See object.c. */
#ifndef MD_EXT_OBJECT_H
#define MD_EXT_OBJECT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../mdispatch_kernels.h"

/* An object: of Python, at home in one interpreter, which keeps it under its number; or of a kernel
 * in C, with a payload, at home in the whole process. */
struct object {
    md_object pub;                  /* first: what kernels see */
    struct object *next;            /* under lock: of its bucket, or of those that are left */
    int64_t home;                   /* the interpreter's number; OBJECT_OF_C */
    void (*destroy)(void *payload); /* of C, or NULL */
    _Atomic int64_t refs;           /* handles, values under way, kernels, and a pickle */
    int pickled;                    /* under lock: `refs` has one for all pickles */
    int64_t given_out_by;           /* under lock: the process that lets others call it, or 0 */
    char class_name[];
};

enum { OBJECT_OF_C = -1 };

/* A new one with a count of one for the caller. `number` counts for an object of Python. NULL with
 * MemoryError, or for C without an exception. */
struct object *object_make(const char *class_name, int64_t home, uint64_t number, void *payload,
                           void (*destroy)(void *payload));
/* The object whose handle this is, else NULL without an exception. The handle keeps it. */
struct object *object_of(PyObject *handle);
/* The handle of this interpreter; NULL with an exception. */
PyObject *object_shown(struct object *o);
void object_hold(struct object *o);
/* With this thread attached. Whoever lets go last ends the object: he goes home and drops it. */
void object_let_go(struct object *o);
/* Ends what kernels have let go of, with this thread attached. */
void object_sweep(void);
void object_forked(void);
/* How a home is visited: see visit.c. */
void object_visits(int (*may)(void), void (*drop)(int64_t home, uint64_t number));

PyObject *ext_object_close(PyObject *self, PyObject *args);
PyObject *ext_object_find(PyObject *self, PyObject *args);
PyObject *ext_object_give_out(PyObject *self, PyObject *held);
PyObject *ext_object_given_out(PyObject *self, PyObject *args);
PyObject *ext_object_list(PyObject *self, PyObject *args);
PyObject *ext_object_new(PyObject *self, PyObject *args);
PyObject *ext_object_pickled(PyObject *self, PyObject *args);
PyObject *ext_object_sweep(PyObject *self, PyObject *args);

#endif
