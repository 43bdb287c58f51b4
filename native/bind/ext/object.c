/* object.c - objects that the interpreters of a process share by handles.
 *
 * An object has one count for the whole process. It counts the handles (one Python object in each
 * interpreter that has one, see mdispatch/across/sharing.py), the values that are under way in
 * visits and kernels, and one more from its first pickle until close().
 *
 * Whoever takes the last count away ends the object, once. An object of C: its `destroy` is called,
 * there and then. An object of Python: the thread visits its home and has it dropped there. A
 * thread cannot do that where its own interpreter is ending, or where it has no interpreter, as in a
 * kernel without the GIL. It leaves the object to the next thread that has to do with one.
 *
 * An interpreter that ends gives up its objects (object_close); handles elsewhere find them gone. Its
 * handles of others' objects end with it, as any object of Python does.
 *
 * Locking: `lock` guards the table, the list of those that are left, `pickled`, `given_out_by`, and
 * the step of a count from zero: an object is looked up and held under it, and leaves the table before it ends.
 * Nobody waits, or runs Python, while he has it.
 */
#include "object.h"
#include "seam.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { BUCKETS = 256 };

static const char CAPSULE[] = "mdispatch.object";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *table[BUCKETS]; /* under lock */
static struct object *left;           /* under lock: ended, and not yet dropped at home */
static _Atomic int left_count;        /* changed under lock; read without it, to skip the sweep */
static _Atomic uint64_t numbers_of_c;
/* visit.c: whether this interpreter may visit others, and has a home drop an object. Set once, before
 * the first object of Python. */
static int (*may_visit)(void);
static void (*drop_at)(int64_t home, uint64_t number);

void object_visits(int (*may)(void), void (*drop)(int64_t home, uint64_t number)) {
    may_visit = may;
    drop_at = drop;
}

static struct object **bucket_of(int64_t home, uint64_t number) {
    return &table[((uint64_t)home * 31 + number) % BUCKETS];
}

static void leave_it(struct object *o) {
    pthread_mutex_lock(&lock);
    o->next = left;
    left = o;
    atomic_fetch_add(&left_count, 1);
    pthread_mutex_unlock(&lock);
}

/* Takes one count away. Returns whether that was the last one; then the object is the caller's. */
static int was_last(struct object *o) {
    int64_t refs = atomic_load(&o->refs);
    while (refs > 1) {
        if (atomic_compare_exchange_weak(&o->refs, &refs, refs - 1)) return 0;
    }
    pthread_mutex_lock(&lock); /* else somebody could find it and hold it meanwhile */
    int last = atomic_fetch_sub(&o->refs, 1) == 1;
    for (struct object **at = bucket_of(o->home, o->pub.number); last && *at; at = &(*at)->next) {
        if (*at == o) {
            *at = o->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return last;
}

static int end_of_c(struct object *o) {
    if (o->home != OBJECT_OF_C) return 0;
    if (o->destroy) o->destroy(o->pub.payload);
    free(o);
    return 1;
}

void object_hold(struct object *o) {
    atomic_fetch_add(&o->refs, 1);
}

void object_let_go(struct object *o) {
    if (!was_last(o) || end_of_c(o)) return;
    if (!may_visit || !may_visit()) {
        leave_it(o);
        return;
    }
    drop_at(o->home, o->pub.number);
    free(o);
}

/* For kernels, which may have no interpreter at hand. */
static void pub_hold(md_object *object) {
    object_hold((struct object *)object);
}

static void pub_let_go(md_object *object) {
    struct object *o = (struct object *)object;
    if (was_last(o) && !end_of_c(o)) leave_it(o);
}

void object_sweep(void) {
    if (!atomic_load_explicit(&left_count, memory_order_relaxed) || !may_visit || !may_visit())
        return;
    pthread_mutex_lock(&lock);
    struct object *ended = left;
    left = NULL;
    atomic_store(&left_count, 0);
    pthread_mutex_unlock(&lock);
    while (ended) {
        struct object *o = ended;
        ended = o->next;
        drop_at(o->home, o->pub.number);
        free(o);
    }
}

struct object *object_make(const char *class_name, int64_t home, uint64_t number, void *payload,
                           void (*destroy)(void *payload)) {
    size_t size = strlen(class_name) + 1;
    struct object *o = calloc(1, sizeof *o + size);
    if (!o) return NULL;
    memcpy(o->class_name, class_name, size);
    if (home == OBJECT_OF_C) number = atomic_fetch_add(&numbers_of_c, 1) + 1;
    o->pub = (md_object){o->class_name, payload, number, pub_hold, pub_let_go};
    o->home = home;
    o->destroy = destroy;
    atomic_store(&o->refs, 1);
    pthread_mutex_lock(&lock);
    struct object **at = bucket_of(home, number);
    o->next = *at;
    *at = o;
    pthread_mutex_unlock(&lock);
    return o;
}

/* The object, held once more; NULL if there is none. */
static struct object *find(int64_t home, uint64_t number) {
    pthread_mutex_lock(&lock);
    struct object *o = *bucket_of(home, number);
    while (o && (o->home != home || o->pub.number != number)) o = o->next;
    if (o) atomic_fetch_add(&o->refs, 1); /* not zero: it would not be in the table */
    pthread_mutex_unlock(&lock);
    return o;
}

/* In the child of a fork. Another thread may have had the lock; the objects are left alone. */
void object_forked(void) {
    pthread_mutex_init(&lock, NULL);
}

/* --- as Python has them: a capsule holds one count -------------------------------------------- */

static void capsule_destructor(PyObject *capsule) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    object_let_go(PyCapsule_GetPointer(capsule, CAPSULE));
    PyErr_Restore(type, value, traceback);
}

/* Takes over one count, even when it fails. */
static PyObject *capsule_of(struct object *o) {
    PyObject *made = PyCapsule_New(o, CAPSULE, capsule_destructor);
    if (!made) object_let_go(o);
    return made;
}

struct object *object_of(PyObject *handle) {
    PyTypeObject *type = Py_TYPE(handle);
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return NULL;
    /* Asked of the type first: an object may have an answer to every name. */
    PyObject *slot = PyObject_GetAttrString((PyObject *)type, "_mdispatch_object"), *held = NULL;
    if (slot) held = PyObject_GetAttrString(handle, "_mdispatch_object");
    struct object *o = NULL;
    if (held && PyCapsule_IsValid(held, CAPSULE)) o = PyCapsule_GetPointer(held, CAPSULE);
    PyErr_Clear();
    Py_XDECREF(slot);
    Py_XDECREF(held); /* the handle keeps it */
    return o;
}

PyObject *object_shown(struct object *o) {
    object_hold(o);
    PyObject *held = capsule_of(o);
    PyObject *make = held ? seam_at("a handle of an object") : NULL;
    PyObject *made = make ? PyObject_CallFunction(make, "OLKs", held, (long long)o->home,
                                                  (unsigned long long)o->pub.number, o->class_name)
                          : NULL;
    Py_XDECREF(make);
    Py_XDECREF(held);
    return made;
}

/* object_new(class name, number) -> a capsule of a new object, at home here. */
PyObject *ext_object_new(PyObject *self, PyObject *args) {
    const char *class_name;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "sK", &class_name, &number)) return NULL;
    int64_t home = PyInterpreterState_GetID(PyInterpreterState_Get());
    struct object *o = object_make(class_name, home, number, NULL, NULL);
    return o ? capsule_of(o) : PyErr_NoMemory();
}

/* object_find(home, number) -> a capsule, or None. */
PyObject *ext_object_find(PyObject *self, PyObject *args) {
    long long home;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "LK", &home, &number)) return NULL;
    struct object *o = find(home, number);
    if (!o) Py_RETURN_NONE;
    return capsule_of(o);
}

/* object_pickled(capsule, whether): from now on pickles keep the object, or no longer. */
PyObject *ext_object_pickled(PyObject *self, PyObject *args) {
    PyObject *held;
    int pickled;
    if (!PyArg_ParseTuple(args, "Op", &held, &pickled)) return NULL;
    struct object *o = PyCapsule_GetPointer(held, CAPSULE);
    if (!o) return NULL;
    pthread_mutex_lock(&lock);
    int change = pickled - o->pickled;
    o->pickled = pickled;
    if (change > 0) atomic_fetch_add(&o->refs, 1);
    pthread_mutex_unlock(&lock);
    if (change < 0) object_let_go(o); /* not the last: the capsule has one */
    Py_RETURN_NONE;
}

/* object_give_out(capsule): from now on messages of other processes may name the object. The child of
 * a fork has given out nothing, so the process is written down. */
PyObject *ext_object_give_out(PyObject *self, PyObject *held) {
    struct object *o = PyCapsule_GetPointer(held, CAPSULE);
    if (!o) return NULL;
    pthread_mutex_lock(&lock);
    o->given_out_by = getpid();
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

/* object_given_out(home, number) -> a capsule and the name of the object's class, if this process has
 * given it out for others; else None. */
PyObject *ext_object_given_out(PyObject *self, PyObject *args) {
    long long home, number;
    if (!PyArg_ParseTuple(args, "LL", &home, &number)) return NULL;
    struct object *o = find(home, (uint64_t)number);
    if (!o) Py_RETURN_NONE;
    pthread_mutex_lock(&lock);
    int is_given_out = o->given_out_by == getpid();
    pthread_mutex_unlock(&lock);
    PyObject *held = capsule_of(o);
    if (!held || is_given_out) return held ? Py_BuildValue("(Ns)", held, o->class_name) : NULL;
    Py_DECREF(held);
    Py_RETURN_NONE;
}

/* object_list() -> [(home, number, class name, count)], and how many are left. */
PyObject *ext_object_list(PyObject *self, PyObject *args) {
    size_t count = 0, most = 64;
    struct {
        long long home, refs;
        uint64_t number;
        struct object *o;
    } *copy = NULL;
    for (;;) { /* nothing of Python is made under the lock */
        copy = malloc(most * sizeof *copy);
        if (!copy) return PyErr_NoMemory();
        count = 0;
        pthread_mutex_lock(&lock);
        for (int i = 0; i < BUCKETS; i++) {
            for (struct object *o = table[i]; o; o = o->next, count++) {
                if (count >= most) continue;
                copy[count].home = o->home;
                copy[count].refs = atomic_fetch_add(&o->refs, 1);
                copy[count].number = o->pub.number;
                copy[count].o = o;
            }
        }
        pthread_mutex_unlock(&lock);
        if (count <= most) break;
        for (size_t i = 0; i < most; i++) object_let_go(copy[i].o);
        free(copy);
        most = 2 * count;
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < count; i++) {
        PyObject *row =
            list ? Py_BuildValue("(LKsL)", copy[i].home, (unsigned long long)copy[i].number,
                                 copy[i].o->class_name, copy[i].refs)
                 : NULL;
        if (list && (!row || PyList_Append(list, row))) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    for (size_t i = 0; i < count; i++) object_let_go(copy[i].o);
    free(copy);
    return list;
}

/* With the lock: moves the objects of a home from a list to `ended`. From the table only those that
 * nobody has but pickles, which go to it as well: no pickle finds an object that has ended. */
static int end_of(struct object **at, int64_t home, int in_table, struct object **ended) {
    int count = 0;
    while (*at) {
        struct object *o = *at;
        int its = o->home == home;
        if (its && in_table) {
            its = o->pickled && atomic_fetch_sub(&o->refs, 1) == 1;
            o->pickled = 0;
        }
        if (!its) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        o->next = *ended;
        *ended = o;
        count++;
    }
    return count;
}

/* object_close(): this interpreter ends, and its objects with it: those that are left need no visit.
 * The others end with the last handle elsewhere. */
PyObject *ext_object_close(PyObject *self, PyObject *args) {
    int64_t home = PyInterpreterState_GetID(PyInterpreterState_Get());
    struct object *ended = NULL;
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&left_count, end_of(&left, home, 0, &ended));
    for (int i = 0; i < BUCKETS; i++) end_of(&table[i], home, 1, &ended);
    pthread_mutex_unlock(&lock);
    while (ended) {
        struct object *o = ended;
        ended = o->next;
        free(o);
    }
    Py_RETURN_NONE;
}

/* object_sweep(): see there. */
PyObject *ext_object_sweep(PyObject *self, PyObject *args) {
    object_sweep();
    Py_RETURN_NONE;
}
