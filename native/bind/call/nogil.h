/* nogil.h - how threads share the objects of the call path in a build without a GIL. gil.h has the
 * same functions for a build with one; state.h includes one of the two.
 *
 * Locking: a call takes no lock, see Note [Readers] in readers.c. `lock` is a leaf: its holder runs
 * no code of Python and takes no other lock. */
#ifndef MD_CALL_NOGIL_H
#define MD_CALL_NOGIL_H

/* --- objects that calls use while another thread may replace them ----------------------------- */

/* The counter that the call has incremented. */
typedef a64 *in_use;

/* Begins a use. Comes before the pointer to the object is read. */
in_use enter(struct state *st);

/* The memory order in which that pointer is read: here, after the counter was incremented. */
enum { ENTERED = memory_order_seq_cst };

/* Keeps the object that was read, if any, until `leave`: here the counter does. */
static inline void hold(in_use *use, void *object) {
}

static inline void leave(in_use use) {
    atomic_fetch_sub_explicit(use, 1, memory_order_release);
}

/* Takes over a reference to an object that was replaced, or to none. Drops it when no call can be
 * using the object. */
void retire(struct state *st, PyObject *object);

int readers_make(struct state *st);
void readers_free(struct state *st);

/* --- what is kept of types: the sequence of such an entry is odd during a write -------------- */

static inline uint64_t begin_read(const a64 *sequence) {
    return atomic_load_explicit((a64 *)sequence, memory_order_acquire);
}

/* Whether no thread was writing the entry between `begin_read` and now. */
static inline bool is_whole(const a64 *sequence, uint64_t begun) {
    atomic_thread_fence(memory_order_acquire);
    return LIKELY(!(begun & 1) && peek(sequence) == begun);
}

/* False when another thread is writing the entry. */
static inline bool begin_write(a64 *sequence) {
    uint64_t before = peek(sequence);
    if (before & 1 || !atomic_compare_exchange_strong(sequence, &before, before + 1)) return false;
    atomic_thread_fence(memory_order_release);
    return true;
}

/* Nobody else changes an odd sequence. */
static inline void end_write(a64 *sequence) {
    atomic_store_explicit(sequence, peek(sequence) + 1, memory_order_release);
}

/* Whether to remember a call, given how often there was an occasion: the first times only, so that
 * threads that call one operator with many types do not write to one place for ever. */
static inline bool is_due(_Atomic uint32_t *times) {
    if (atomic_load_explicit(times, memory_order_relaxed) >= 256) return false;
    atomic_fetch_add_explicit(times, 1, memory_order_relaxed);
    return true;
}

/* An object that a thread may replace meanwhile, to be compared and not used. */
static inline PyObject *object_at(PyObject *const *place) {
    return __atomic_load_n(place, __ATOMIC_RELAXED);
}

static inline unsigned int version_tag(const PyTypeObject *type) {
    return __atomic_load_n(&type->tp_version_tag, __ATOMIC_RELAXED);
}

/* --- the sets and the modes of a thread ------------------------------------------------------- */

/* The thread's Sets, borrowed: only their thread drops them from its dict. NULL when it has none. */
static inline Sets *sets_here(struct state *st) {
    return sets_find(st);
}

static inline Stack *stack_here(struct state *st) {
    return stack_find(st);
}

/* Under the lock: for other threads, both change in one step. */
static inline void write_sets(Sets *sets, uint64_t included, uint64_t kept) {
    atomic_fetch_add(&sets->sequence, 1);
    atomic_store(&sets->included, included);
    atomic_store(&sets->kept, kept);
    atomic_fetch_add(&sets->sequence, 1);
}

static inline void read_sets(const Sets *sets, uint64_t *included, uint64_t *kept) {
    uint64_t before;
    do { /* until both are from one moment: another thread may be ending a guard */
        before = atomic_load(&sets->sequence);
        *included = atomic_load(&sets->included);
        *kept = atomic_load(&sets->kept);
    } while (before & 1 || atomic_load(&sets->sequence) != before);
}

/* Adds to the number of contexts. */
static inline void count_contexts(struct state *st, uint64_t more) {
    atomic_fetch_add(&st->contexts, more);
}

/* Keeps what was found, for the next call of the same thread. Here nothing is kept: the state is for
 * all threads. An id is never given to a second thread of an interpreter. */
static inline void remember(struct state *st, Sets *sets, Stack *stack) {
}

/* They are freed. */
static inline void forget_sets(struct state *st, const Sets *sets) {
}

static inline void forget_stack(struct state *st, const Stack *stack) {
}

/* --- the rest --------------------------------------------------------------------------------- */

/* Over the list of retired objects, over adding targets to plans, and over guards. */
void lock(struct state *st);
void unlock(struct state *st);

/* See Note [Locks that nobody has] in module.c. */
void unlock_in_child(struct state *st, PyObject *const *objects, Py_ssize_t n);

enum { KEY_SETS_KEEP = 0 };

static inline bool stands_still(const PyObject *items) {
    return PyTuple_CheckExact(items);
}

/* Whether the target keeps a key set with these bits, the last one that its kernel got. Here it
 * keeps none: calls of several threads would write to one place. */
static inline bool keeps_key_set(const struct target *target, uint64_t raw) {
    return false;
}

static inline void keep_key_set(struct target *target, PyObject *key_set, uint64_t raw) {
}

/* As for the key sets of targets: here no class of guards keeps what it was given. */
static inline bool knows_given(const struct quick *q, const PyObject *given, uint64_t *raw) {
    return false;
}

static inline void keep_given(struct quick *q, PyObject *given, uint64_t raw) {
}

/* A new reference to what an object has in a slot, by its place or its name; here another thread may
 * be replacing it. NULL, perhaps with an error, when there is nothing. */
static inline PyObject *slot_find(PyObject *object, Py_ssize_t at, PyObject *name) {
    return PyObject_GetAttr(object, name);
}

/* A new reference, since another thread may take the value out of the dict at any time. NULL, with
 * an error or without, when there is none. */
static inline PyObject *dict_find(PyObject *dict, PyObject *key) {
    PyObject *found = NULL;
    (void)PyDict_GetItemRef(dict, key, &found);
    return found;
}

#endif
