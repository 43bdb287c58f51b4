/* frame.h - what the files of boxed calls share: the frame, one call under way.
 *
 * Locking: none, since a frame is on the stack of its call and no other thread sees it. While the
 * GIL is released the kernel touches only the frame's memory and the memory that the arguments have
 * lent; box.c takes those views before, and boxed_end gives them back after.
 */
#ifndef MD_EXT_FRAME_H
#define MD_EXT_FRAME_H

#include "boxed.h"
#include "object.h"

/* Memory that lives until the call ends. */
struct chunk {
    struct chunk *next;
    max_align_t data[];
};

/* The memory that an argument lends to the call. */
struct lent {
    struct lent *next;
    Py_buffer view;
    PyObject *object; /* the argument */
    md_buffer pub;
    int64_t dims[2 * MD_MAX_NDIM];
};

/* A buffer that the kernel has made during the call. */
struct owned {
    struct owned *next;
    md_buffer pub;
    Py_ssize_t size;
    PyObject *object; /* set once the buffer is a result; it owns the memory then */
    int64_t shape[2 * MD_MAX_NDIM];
};

/* An object that the kernel has made; held once. */
struct made {
    struct made *next;
    struct object *object;
};

struct frame {
    md_call pub; /* first: what the kernel sees */
    const struct boxed_kernel *kernel;
    struct chunk *chunks;
    struct lent *lent;
    struct owned *owned;
    struct made *made;
    PyThreadState *released; /* of the caller, while the kernel runs without the GIL */
    PyObject *raised[3];     /* by an operator that the kernel has called */
    int error;
    char text[1024];
};

/* frame.c: begins and ends a call, and the memory in between. */
void boxed_begin(struct frame *f, const struct boxed_kernel *k, void *user);
void boxed_end(struct frame *f);
void *boxed_alloc(md_call *call, size_t bytes);
const char *boxed_format(int code, int bits);

/* Raises BoxingError(text, operator, kernel): "shop::f(): " and what does not fit. Returns -1. */
int boxed_unfit(const struct frame *f, const char *format, ...);
/* Raises the error with which a kernel has failed. */
void boxed_raise(struct frame *f, int error);

/* box.c: 0, or -1 with an exception. */
int boxed_arguments(struct frame *f, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                    md_value *values);

/* The same for one value. `flags` are BOXED_... */
int boxed_value(struct frame *f, PyObject *object, unsigned flags, md_value *out);
/* Has the call keep an object until it ends. Takes it over, even when it fails with MemoryError. */
int boxed_keep(struct frame *f, PyObject *object);

/* call_op.c: what a kernel calls as call->call_op(). */
int boxed_call_op(md_call *call, const char *op, const md_value *args, size_t n_args,
                  md_value *results, size_t n_results);

/* unbox.c: None, the one result or a tuple, by the schema's number of returns. */
PyObject *boxed_results(struct frame *f, const md_value *results);
/* The same for one value. */
PyObject *boxed_shown(struct frame *f, const md_value *value);

/* buffer.c: the object for a buffer that the kernel has made; it takes over the memory. */
PyObject *boxed_view(PyTypeObject *type, struct owned *o);

#endif
