/* gil.h - how threads share the objects of the call path in a build with a GIL. nogil.h has the
 * same functions for a build without one, and says what each promises; state.h includes one of the
 * two.
 *
 * Locking: all of these run with the GIL held, so most have nothing to do. A call has a reference
 * to the plan that it uses, and a replaced plan is freed with the last reference.
 */
#ifndef MD_CALL_GIL_H
#define MD_CALL_GIL_H

/* --- objects that calls use while another thread may replace them ----------------------------- */

/* The call's reference. */
typedef PyObject *in_use;

static inline in_use enter(struct state *st) {
    return NULL;
}

enum { ENTERED = memory_order_relaxed };

static inline void hold(in_use *use, void *object) {
    *use = object;
    Py_XINCREF(*use);
}

static inline void leave(in_use use) {
    Py_XDECREF(use);
}

static inline void retire(struct state *st, PyObject *object) {
    Py_XDECREF(object);
}

static inline int readers_make(struct state *st) {
    return 0;
}

static inline void readers_free(struct state *st) {
}

/* --- what is kept of types -------------------------------------------------------------------- */

static inline uint64_t begin_read(const a64 *sequence) {
    return 0;
}

static inline bool is_whole(const a64 *sequence, uint64_t begun) {
    return true;
}

static inline bool begin_write(a64 *sequence) {
    return true;
}

static inline void end_write(a64 *sequence) {
}

/* Whether to remember a call, given how often there was an occasion. It costs a few percent of a
 * call: the first ones are remembered, then one of many, so that calls with types that change all
 * the time pay next to nothing, and those that change at times find theirs again. */
static inline bool is_due(_Atomic uint32_t *times) {
    uint32_t so_often = atomic_load_explicit(times, memory_order_relaxed);
    atomic_store_explicit(times, so_often + 1, memory_order_relaxed);
    return so_often < 32 || so_often % 16 == 0;
}

/* An object that a thread may replace meanwhile, to be compared and not used. */
static inline PyObject *object_at(PyObject *const *place) {
    return *place;
}

static inline unsigned int version_tag(const PyTypeObject *type) {
    return type->tp_version_tag;
}

/* --- the sets and the modes of a thread ------------------------------------------------------- */

static inline Sets *sets_here(struct state *st) {
    return LIKELY(PyThreadState_Get()->id == st->thread) ? st->sets : sets_find(st);
}

static inline void write_sets(Sets *sets, uint64_t included, uint64_t kept) {
    atomic_store_explicit(&sets->included, included, memory_order_relaxed);
    atomic_store_explicit(&sets->kept, kept, memory_order_relaxed);
}

static inline void read_sets(const Sets *sets, uint64_t *included, uint64_t *kept) {
    *included = peek(&sets->included);
    *kept = peek(&sets->kept);
}

static inline void count_contexts(struct state *st, uint64_t more) {
    atomic_store_explicit(&st->contexts, peek(&st->contexts) + more, memory_order_relaxed);
}

static inline Stack *stack_here(struct state *st) {
    return LIKELY(PyThreadState_Get()->id == st->thread) ? st->stack : stack_find(st);
}

static inline void remember(struct state *st, Sets *sets, Stack *stack) {
    st->thread = PyThreadState_Get()->id;
    st->sets = sets;
    st->stack = stack;
}

static inline void forget_sets(struct state *st, const Sets *sets) {
    if (st->sets == sets) st->thread = 0;
}

static inline void forget_stack(struct state *st, const Stack *stack) {
    if (st->stack == stack) st->thread = 0;
}

/* --- the rest --------------------------------------------------------------------------------- */

static inline void lock(struct state *st) {
}

static inline void unlock(struct state *st) {
}

static inline void unlock_in_child(struct state *st, PyObject *const *objects, Py_ssize_t n) {
}

/* Whether a set of keys keeps what was made of it: see key_sets.c. */
enum { KEY_SETS_KEEP = 1 };

/* Whether no other thread changes a list or tuple until this one runs other code. */
static inline bool stands_still(const PyObject *items) {
    return true;
}

static inline bool keeps_key_set(const struct target *target, uint64_t raw) {
    return target->key_set && target->key_set_raw == raw;
}

static inline void keep_key_set(struct target *target, PyObject *key_set, uint64_t raw) {
    PyObject *before = target->key_set;
    target->key_set = Py_NewRef(key_set);
    target->key_set_raw = raw;
    Py_XDECREF(before);
}

static inline bool knows_given(const struct quick *q, const PyObject *given, uint64_t *raw) {
    *raw = q->given_raw;
    return q->given == given;
}

static inline void keep_given(struct quick *q, PyObject *given, uint64_t raw) {
    q->given_raw = raw;
    Py_XSETREF(q->given, Py_NewRef(given));
}

static inline PyObject *slot_find(PyObject *object, Py_ssize_t at, PyObject *name) {
    return Py_XNewRef(*(PyObject **)((char *)object + at));
}

static inline PyObject *dict_find(PyObject *dict, PyObject *key) {
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
}

#endif
