/* frame.h - what the files of boxed calls know of each other: one call under way.
 *
 * A frame is on the stack of the call, and nobody else's: no lock. While the GIL is released, only
 * its memory is touched and what its objects have lent: views are taken before, given back after.
 */
#ifndef MD_BIND_FRAME_H
#define MD_BIND_FRAME_H

#include "boxed.h"

/* Memory of the call. */
struct chunk {
    struct chunk *next;
    max_align_t data[];
};

/* An argument's memory, lent for the call. */
struct lent {
    struct lent *next;
    Py_buffer view;
    PyObject *object; /* the argument's */
    md_buffer pub;
    int64_t dims[2 * MD_MAX_NDIM];
};

/* A buffer that the kernel has made. */
struct owned {
    struct owned *next;
    md_buffer pub;
    Py_ssize_t size;
    Py_ssize_t *dims; /* goes to the object */
    PyObject *object; /* once it is a result */
    int64_t shape[2 * MD_MAX_NDIM];
};

struct frame {
    md_call pub; /* first: what the kernel sees */
    const struct boxed_kernel *kernel;
    struct chunk *chunks;
    struct lent *lent;
    struct owned *owned;
    int error;
    char text[1024];
};

/* frame.c: what the kernel is given to call, and the end of it all. */
void boxed_begin(struct frame *f, const struct boxed_kernel *k, void *user);
void boxed_end(struct frame *f);
void *boxed_alloc(md_call *call, size_t bytes);
const char *boxed_format(int code, int bits);

/* Raises BoxingError(text, operator, kernel): "shop::f(): " and what does not fit. -1. */
int boxed_unfit(const struct frame *f, const char *format, ...);
/* Raises what a kernel has failed with. */
void boxed_raise(struct frame *f, int error);

/* box.c: 0, or -1 with an exception. */
int boxed_arguments(struct frame *f, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                    md_value *values);

/* unbox.c: as many as the schema has: none, the one, a tuple. */
PyObject *boxed_results(struct frame *f, const md_value *results);

/* buffer.c: the object of a buffer that the kernel has made; it takes the memory over. */
PyObject *boxed_view(PyTypeObject *type, struct owned *o);

#endif
