/* remember.c - calls that were made before.
 *
 * Note [Remembered calls]
 * A plan remembers one call: for each argument its type and the type's version tag, and the target
 * that the call led to. A call whose arguments have these types, with these tags, goes to that
 * target at once. In the same way the plan remembers the type of a result that fitted.
 *
 * An argument whose type does not decide is put in its place as in any other call: one that is
 * asked for its keys, that is converted, whose items are looked at. If its keys count, the target
 * is found by the keys of all. (If code of users may have run, all of them are read again.) For the
 * other arguments the type alone decides, and nothing that this depends on can change without a
 * sign:
 *
 *   the schema, the table      A plan never changes them. It is looked into only by a call that has
 *                              found it current, and that holds it.
 *   a type                     CPython gives a tag to one state of one type, and never again: not
 *                              after a change of the type or of a base, which takes the tag away,
 *                              not to a new type at the address of a dead one, and not when its
 *                              tags are used up. A type without a tag (0) is not remembered.
 *   what types mean here       Registering a type raises `types_epoch`, and what was remembered
 *                              under another one counts for nothing.
 *   the sets of the thread     A call that has others than threads start with does not look here;
 *                              what is remembered was computed with those.
 *
 * Nothing is taken from the call that gives the occasion: while it looked at its arguments, other
 * code may have run, and changed a class that it had looked at before. All is looked up again here,
 * by code that runs nothing else: with a GIL, in one step. Without one, `types_epoch` is read
 * first. If it is odd, nothing is remembered. If it is even, then no entry of the table of types is
 * older (see `known_put`); if types are registered while it is read, the number that is kept is out
 * of date. The tag is read before the table is: if the type changes after that, the tag that is
 * kept is none that the type will ever have again.
 *
 * The kernel may do all of this while it runs: so the result is compared by what is remembered, and
 * true, when the kernel has returned. A call that the kernel makes may put another call in the
 * place of this one. That is why the two memories do not refer to each other.
 *
 * Types are only compared, so no reference is held. Where types change from call to call,
 * remembering each would cost more than it gives: see `is_due`. Without a GIL the memory is read as
 * an entry of the table of types is.
 */
#include "state.h"

/* Whether its type alone decides that a value is taken as it is, and with which keys. `raw`: NULL
 * for a result, whose keys count for nothing. */
static bool is_by_type(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    PyTypeObject *type = Py_TYPE(value);
    uint64_t keys = 0;
    uint32_t how;
    if (t->kind == ANYTHING || type == t->exact) return true;
    if (value == Py_None) return t->none_fits;
    switch (t->kind) {
    case SOMETHING:
        return true;
    case EXACT:
        return t->exact == &PyUnicode_Type && PyUnicode_Check(value);
    case CLASS:
        return PyType_IsSubtype(type, (PyTypeObject *)t->values) || was_accepted(t, type);
    case NUMBER:
        return PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value);
    case TENSOR:
        how = how_known(st, type, &keys);
        if (!raw) return is_tensors(how, keys);
        if (how != REGISTERED) return false;
        *raw |= keys & t->counts;
        return true;
    default:
        return false;
    }
}

struct seen {
    PyTypeObject *types[REMEMBERED]; /* NULL: any */
    uint32_t tags[REMEMBERED];
    struct remembered call;
};

/* Notes the type of a value, unless the take has any type and that `chooses` nothing. False when it
 * can't be remembered, since it has no tag. */
static bool is_seen(struct state *st, const struct take *t, PyObject *value, struct seen *seen,
                    Py_ssize_t i, bool chooses) {
    if (t->kind == ANYTHING && !chooses) return true;
    seen->types[i] = Py_TYPE(value);
    seen->tags[i] = given_tag(st, Py_TYPE(value));
    return seen->tags[i] != 0;
}

static void keep(struct memory *m, uint64_t types_epoch, const struct seen *seen, Py_ssize_t n) {
    if (types_epoch & 1 || !begin_write(&m->sequence)) return;
    for (Py_ssize_t i = 0; i < n; i++) {
        atomic_store_explicit(&m->types[i], seen->types[i], memory_order_relaxed);
        atomic_store_explicit(&m->tags[i], seen->tags[i], memory_order_relaxed);
    }
    atomic_store_explicit(&m->target, seen->call.target, memory_order_relaxed);
    atomic_store_explicit(&m->raw, seen->call.raw, memory_order_relaxed);
    atomic_store_explicit(&m->others, seen->call.others, memory_order_relaxed);
    atomic_store_explicit(&m->converted, seen->call.converted, memory_order_relaxed);
    atomic_store_explicit(&m->types_epoch, types_epoch, memory_order_relaxed);
    end_write(&m->sequence);
}

/* The target of these keys in a thread without guards, if a call has reached it, and if its kernel
 * gets the arguments alone; or NULL. */
static struct target *target_there(struct state *st, Plan *plan, uint64_t raw) {
    if (effective_in(st, plan, st->included, st->kept, &raw) != 1) return NULL;
    int at = atomic_load_explicit(&plan->at[index_of(st, raw)], memory_order_acquire);
    struct target *target = at && at != NO_TARGET ? &plan->targets[at - 1] : NULL;
    return target && !target->with_operator && !target->with_key_set ? target : NULL;
}

void remember_arguments(struct state *st, Plan *plan, PyObject *const *args) {
    struct seen seen = {0};
    uint64_t types_epoch = atomic_load(&st->types_epoch);
    bool leads = true; /* the keys are known */
    const struct choices *choices = plan->choices;
    if (plan->remembered < 0 || !is_due(&plan->arguments.times)) return;
    /* See Note [Abstract classes] in by_type.c. */
    if (choices && atomic_load((_Atomic uint8_t *)&choices->is_abstract)) return;
    for (Py_ssize_t i = 0; i < plan->remembered; i++) {
        const struct take *t = &plan->shape->arguments[i].take;
        bool chooses = choices && choices->is_plain && t->counts;
        if (!is_seen(st, t, args[i], &seen, i, chooses)) return;
        if (is_by_type(st, t, args[i], &seen.call.raw)) continue;
        seen.call.others |= 1u << i;
        if (t->kind != TENSOR) seen.call.converted |= 1u << i;
        leads &= !(t->kind == TENSOR || t->kind == LIST) || !t->counts;
    }
    Plan *chosen = plan;
    if (choices) chosen = seen.call.others ? NULL : plan_kept_for_types(plan, args);
    if (leads && chosen) seen.call.target = target_there(st, chosen, seen.call.raw);
    keep(&plan->arguments, types_epoch, &seen, plan->remembered);
}

void remember_result(struct state *st, Plan *plan, PyObject *result) {
    struct seen seen = {0};
    uint64_t types_epoch = atomic_load(&st->types_epoch);
    const struct take *t = plan->shape->results;
    if (is_due(&plan->result.times) && is_seen(st, t, result, &seen, 0, false) &&
        is_by_type(st, t, result, NULL))
        keep(&plan->result, types_epoch, &seen, 1);
}
