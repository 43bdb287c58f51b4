/* remember.c - calls that were made before.
 *
 * Note [Remembered calls]
 * A plan remembers one call: for each argument its type and the type's version tag, and the target
 * that the call led to. A call whose arguments have these types, with these tags, goes to that
 * target at once. In the same way the plan remembers the type of a result that fitted.
 *
 * This is right because then the types alone decide, and nothing that they depend on can change
 * without a sign:
 *
 *   the schema, the table      A plan never changes them. It is looked into only by a call that has
 *                              found it current, and that holds it.
 *   a type                     CPython gives a tag to one state of one type, and never again: not
 *                              after a change of the type or of a base, which takes the tag away,
 *                              not to a new type at the address of a dead one, and not when its
 *                              tags are used up. A type without a tag (0) is not remembered.
 *   what types mean here       Registering a type raises `types_epoch`, and what was remembered
 *                              under another one counts for nothing.
 *   the value                  Only what the type decides is remembered: not a value that is asked
 *                              for its keys, that is converted, or whose items are looked at.
 *   the sets of the thread     A call that has others than threads start with does not look here;
 *                              what is remembered was computed with those.
 *
 * Nothing is taken from the call that gives the occasion: while it looked at its arguments, other
 * code may have run, and changed a class that it had looked at before. All is looked up again here,
 * by code that runs nothing else: with a GIL, in one step. Without one, `types_epoch` is read first.
 * If it is odd, nothing is remembered. If it is even, then no entry of the table of types is older
 * (see `known_put`); if types are registered while it is read, the number that is kept is out of
 * date. The tag is read before the table is: if the type changes after that, the tag that is kept
 * is none that the type will ever have again.
 *
 * The kernel may do all of this while it runs: so the result is compared by what is remembered, and
 * true, when the kernel has returned. A call that the kernel makes may put another call in the place
 * of this one. That is why the two memories do not refer to each other.
 *
 * Types are only compared, so no reference is held. Without a GIL the memory is read as an entry of
 * the table of types is, and written rarely: a plan remembers no more than MOST_TIMES calls, so
 * that threads that call one operator with many types do not write to one place for ever.
 */
#include "state.h"

enum { MOST_TIMES = 64 };

/* Whether its type alone decides that a value is taken as it is, and with which keys. `raw`: NULL for
 * a result, whose keys count for nothing. */
static bool is_by_type(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    PyTypeObject *type = Py_TYPE(value);
    uint64_t keys = 0;
    uint32_t how;
    if (t->kind == ANYTHING || (t->kind == EXACT && type == t->exact)) return true;
    if (value == Py_None) return t->none_fits;
    switch (t->kind) {
    case SOMETHING:
        return true;
    case EXACT:
        return t->exact == &PyUnicode_Type && PyUnicode_Check(value);
    case NUMBER:
        return PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value);
    case TENSOR:
        how = how_known(st, type, &keys);
        if (!raw) return is_tensors(how, keys);
        *raw |= keys & t->counts;
        return how == REGISTERED;
    default:
        return false;
    }
}

struct seen {
    PyTypeObject *type; /* NULL: any */
    uint32_t tag;
};

static bool is_seen(struct state *st, const struct take *t, PyObject *value, uint64_t *raw,
                    struct seen *seen) {
    *seen = (struct seen){Py_TYPE(value), given_tag(st, Py_TYPE(value))};
    if (t->kind == ANYTHING) seen->type = NULL;
    return (seen->tag || !seen->type) && is_by_type(st, t, value, raw);
}

static void put(struct memory *m, uint64_t types_epoch, const struct seen *seen, Py_ssize_t n,
                struct target *target) {
    if (types_epoch & 1 || !begin_write(&m->sequence)) return;
    for (Py_ssize_t i = 0; i < n; i++) {
        atomic_store_explicit(&m->types[i], seen[i].type, memory_order_relaxed);
        atomic_store_explicit(&m->tags[i], seen[i].tag, memory_order_relaxed);
    }
    atomic_store_explicit(&m->target, target, memory_order_relaxed);
    atomic_store_explicit(&m->types_epoch, types_epoch, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->times, 1, memory_order_relaxed);
    end_write(&m->sequence);
}

static inline bool is_full(const struct memory *m) {
    return atomic_load_explicit(&m->times, memory_order_relaxed) >= MOST_TIMES;
}

void remember_arguments(struct state *st, Plan *plan, PyObject *const *args) {
    Py_ssize_t n = plan->shape->positional;
    struct seen seen[REMEMBERED];
    uint64_t types_epoch = atomic_load(&st->types_epoch), raw = 0;
    if (plan->remembered != n || is_full(&plan->arguments)) return;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!is_seen(st, &plan->shape->arguments[i].take, args[i], &raw, &seen[i])) return;
    }
    struct target *target = target_there(st, plan, raw);
    if (target && !target->with_operator && !target->with_key_set)
        put(&plan->arguments, types_epoch, seen, n, target);
}

void remember_result(struct state *st, Plan *plan, PyObject *result) {
    struct seen seen;
    uint64_t types_epoch = atomic_load(&st->types_epoch);
    if (!is_full(&plan->result) && is_seen(st, &plan->shape->results[0], result, NULL, &seen))
        put(&plan->result, types_epoch, &seen, 1, NULL);
}
