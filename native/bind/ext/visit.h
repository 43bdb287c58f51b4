/* visit.h - calls in other interpreters of this process, on the thread that calls. See visit.c. */
#ifndef MD_EXT_VISIT_H
#define MD_EXT_VISIT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>

enum { VISIT_MAX_DEPTH = 32, VISIT_MAX_NDIM = 16, VISIT_FORMAT = 16 };

/* Memory that one interpreter shows to another one. `refs` counts the visit that lends it, and the
 * objects that show it. It is the caller's memory, and `view` pins it; or it is a result, and
 * `own` is freed with the last object. */
struct memory {
    struct memory *next; /* of one visit, later of the memory that was kept */
    Py_buffer view;      /* the caller's; obj is NULL for a result */
    PyObject *object;    /* the caller's argument */
    PyObject *shown;     /* the owner's object for it; compared, never used */
    char *form;          /* of an array: see across/arrays.py; NULL of other memory */
    PyInterpreterState *home;
    char *own;
    char *data;
    Py_ssize_t len, itemsize;
    Py_ssize_t dims[2 * VISIT_MAX_NDIM]; /* ndim lengths, then ndim steps */
    Py_ssize_t at;                       /* wire.c: where its bytes stand in the message */
    int ndim, readonly;
    char format[VISIT_FORMAT];
    _Atomic int refs;
};

enum visit_kind {
    VISIT_NONE,
    VISIT_BOOL,
    VISIT_INT,
    VISIT_FLOAT,
    VISIT_STR,
    VISIT_BYTES,
    VISIT_LIST,
    VISIT_MEMORY,
    VISIT_ARGUMENT, /* only in messages: memory of the request, returned */
    VISIT_OBJECT,   /* not in messages */
    VISIT_ENCODED,  /* a list of two: a name, and what decoded() makes an object of. See parcel.c */
    VISIT_ARRAY,    /* only in messages: memory with a form in front of it */
};

/* A value on its way, without an object. */
struct parcel_value {
    enum visit_kind kind;
    union {
        int64_t integer;
        double real;
        struct {
            const char *data;
            Py_ssize_t size;
        } text;
        struct {
            struct parcel_value *items;
            Py_ssize_t size;
        } list;
        struct memory *memory;
        struct object *object;
    } as;
};

struct parcel_chunk;
struct parcel_object;

/* The values of one way, and the memory that they need. Belongs to the thread of its visit. */
struct parcel {
    struct parcel_chunk *chunks;
    struct memory *memory;         /* what the caller lends, or results that nobody has taken yet */
    struct parcel_object *objects; /* each held once */
    PyObject *keepers; /* the caller's list of tuples whose items are under way, or NULL */
    int leaves;        /* it goes to another process, where no objects go */
    const char *unfit; /* the type of what cannot travel; a copy in the parcel */
};

/* parcel.c. Each of these is called by a thread that is attached to the interpreter of the objects.
 *
 * parcel_put: 0; -1 where `unfit` is set and there is no exception; -2 with an exception. With
 * `given`, the way home: everything is copied, and memory of the caller is known again. */
int parcel_put(struct parcel *p, PyObject *object, struct parcel_value *out, int depth,
               const struct parcel *given);
PyObject *parcel_take(PyTypeObject *lent, const struct parcel_value *value);
/* The object that a VISIT_ENCODED stands for. Takes over both references, which may be NULL. */
PyObject *parcel_decoded(PyObject *name, PyObject *text);
/* The array of the memory's form, or `view` where it has none: that is from parcel_show(). Takes over the reference, which may be NULL. */
PyObject *parcel_formed(const struct memory *m, PyObject *view);
void *parcel_alloc(struct parcel *p, size_t bytes);
/* Ends a parcel with the caller attached. Returns whether somebody has kept memory of it. */
int parcel_end(struct parcel *p);
/* Gives back what was kept of this interpreter's memory, and is kept no longer. */
void parcel_sweep(void);
void parcel_forked(void);

/* A memoryview of this memory, in the interpreter that is attached. `pin`, or NULL, is released with
 * the last use of it. Takes a reference of its own to the memory; parcel_let_go() gives one back. */
PyObject *parcel_show(PyTypeObject *lent, struct memory *m, Py_buffer *pin);
void parcel_let_go(struct memory *m);

/* The tickets that every owner has: of a method of an object (with a minus: under the caller's
 * included and excluded keys), and of dropping an object. across/serving.py knows them. */
enum { VISIT_METHOD = 1, VISIT_DROP = 2 };

/* Adds the type of lent memory to the extension's module, whose state is a pointer to it. */
int visit_exec(PyObject *module);
PyTypeObject *visit_lent(PyObject *module); /* borrowed from the module */

PyObject *ext_visit(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ext_visit_close(PyObject *self, PyObject *args);
PyObject *ext_visit_open(PyObject *self, PyObject *args);

/* wire.c: the same values as bytes, for other processes. */
PyObject *ext_pack(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ext_unpack(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ext_write_back(PyObject *self, PyObject *args);

#endif
