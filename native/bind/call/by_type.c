/* by_type.c - kernels by type: the plan for calls whose tensors have these types.
 * mdispatch/dispatch/by_type.py is the specification.
 *
 * Note [Choices]
 * Where kernels of an operator are for types, its plan has no targets of its own. It has choices:
 * what Python has answered for the types of a call, which is a plan with the table of these types.
 * A choice is found again by the types of all tensors in the call, each with its version tag and
 * the argument that it stands in; None and what stands twice in a list are left out, as in Python.
 *
 * A choice never becomes out of date while its plan is current:
 *
 *   - Kernels come and go: that raises the operator's version, or clears the cell. The plan goes,
 *     and its choices with it.
 *   - A type gets other bases, or one of its bases does: CPython takes its version tag away, and
 *     never gives that tag to any type again. See Note [Types] in keys.c.
 *   - A type dies: a choice keeps no type alive, and a new type at the same address has another
 *     tag.
 *   - A type changes while Python is asked: then its tag is not what it was before, and nothing is
 *     kept. Nor is it where a type has no tag (0), or where Python says that the types of this call
 *     alone do not decide.
 *
 * Note [Abstract classes]
 * Of plain values an abstract class may get a virtual subclass at any time, which changes no tag. As
 * functools.singledispatch does it, each call then compares the token of abstract classes with the
 * one of the choices, and drops the cell if it is another one. A choice stays only if that was the
 * token before Python chose, and afterwards. So all choices are right for their token.
 *
 * Choices are only added, each with one store, so calls read them without a lock. When there are
 * too many, the cell is cleared: the next call makes a plan without any. A choice, and the plan in
 * it, live as long as the plan that has them, which each call keeps while it uses it.
 */
#include "state.h"

enum { MOST_TYPES = 8 };

struct types {
    uint32_t n;
    struct tensor_type seen[MOST_TYPES];
};

/* Adds a type. 0 when there are too many. */
static inline int add_type(struct types *t, uint32_t first, PyTypeObject *type, uint32_t argument) {
    for (uint32_t i = first; i < t->n; i++) {
        if (t->seen[i].type == type) return 1;
    }
    if (UNLIKELY(t->n == MOST_TYPES)) return 0;
    t->seen[t->n++] = (struct tensor_type){type, version_tag(type), argument};
    return 1;
}

/* The types of a call; 0 when there are too many. */
static inline int types_of(const struct choices *c, const Shape *shape, PyObject *const *values,
                           struct types *t) {
    t->n = 0;
    for (uint32_t i = 0; i < c->n_tensors; i++) {
        uint32_t argument = c->tensors[i], first = t->n;
        PyObject *value = values[argument];
        if (c->is_plain) {
            if (!add_type(t, first, Py_TYPE(value), argument)) return 0;
            continue;
        }
        if (UNLIKELY(value == Py_None)) continue;
        if (LIKELY(shape->arguments[argument].take.kind == TENSOR)) {
            if (!add_type(t, first, Py_TYPE(value), argument)) return 0;
            continue;
        }
        for (Py_ssize_t k = 0; k < PyList_GET_SIZE(value); k++) { /* a list of ours: `list_of` */
            PyObject *item = PyList_GET_ITEM(value, k);
            if (item != Py_None && !add_type(t, first, Py_TYPE(item), argument)) return 0;
        }
    }
    return 1;
}

static inline size_t place_of_types(const struct types *t) {
    size_t hash = 0;
    for (uint32_t i = 0; i < t->n; i++) hash = hash * 31 + t->seen[i].tag + t->seen[i].argument;
    return hash;
}

static inline bool is_of(const struct choice *choice, const struct types *t) {
    if (choice->n != t->n) return false;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tensor_type *a = &choice->seen[i], *b = &t->seen[i];
        if (a->type != b->type || a->tag != b->tag || a->argument != b->argument) return false;
    }
    return true;
}

/* The choice for these types; NULL, with the place where it would be put. */
static inline struct choice *find(const struct choices *c, const struct types *t, size_t *place) {
    for (*place = place_of_types(t) % PLACES_OF_CHOICES;;
         *place = (*place + 1) % PLACES_OF_CHOICES) {
        struct choice *choice = atomic_load_explicit(&c->at[*place], memory_order_acquire);
        if (!choice || LIKELY(is_of(choice, t))) return choice;
    }
}

/* The types as Python gets them: for each Tensor argument a tuple of types. */
static PyObject *as_given(const struct choices *c, const struct types *t) {
    PyObject *given = PyTuple_New(c->n_tensors);
    for (uint32_t i = 0, at = 0; given && i < c->n_tensors; i++) {
        uint32_t end = at;
        while (end < t->n && t->seen[end].argument == c->tensors[i]) end++;
        PyObject *types = PyTuple_New(end - at);
        if (!types) {
            Py_CLEAR(given);
            break;
        }
        for (Py_ssize_t k = 0; at < end; k++, at++)
            PyTuple_SET_ITEM(types, k, Py_NewRef(t->seen[at].type));
        PyTuple_SET_ITEM(given, i, types);
    }
    return given;
}

static bool are_unchanged(const struct types *t) {
    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->seen[i].tag || version_tag(t->seen[i].type) != t->seen[i].tag) return false;
    }
    return true;
}

/* A plan for a table of types: that of another choice, if it has the same table. A new
 * reference. */
static Plan *plan_with(struct state *st, const Plan *plan, PyObject *table, uint64_t mask,
                       PyObject *masks, int most) {
    struct choices *c = plan->choices;
    for (int i = 0; i < PLACES_OF_CHOICES; i++) {
        struct choice *choice = atomic_load_explicit(&c->at[i], memory_order_acquire);
        if (choice && choice->plan->table == table) return (Plan *)Py_NewRef(choice->plan);
    }
    return plan_narrowed(st, plan, table, mask, masks, most);
}

/* Keeps what Python has answered; NULL, perhaps with an error, when it cannot be kept. */
static Plan *keep(struct state *st, Cell *cell, Plan *plan, const struct types *t, Plan *found) {
    struct choices *c = plan->choices;
    struct choice *made = PyMem_Malloc(sizeof *made + t->n * sizeof *made->seen);
    if (!made) {
        Py_DECREF(found);
        PyErr_NoMemory();
        return NULL;
    }
    made->plan = found;
    made->n = t->n;
    memcpy(made->seen, t->seen, t->n * sizeof *made->seen);
    size_t place;
    lock(st);
    struct choice *there = find(c, t, &place); /* another thread may have been faster */
    bool is_full = !there && c->used == MOST_CHOICES;
    if (!there && !is_full) {
        c->used++;
        atomic_store_explicit(&c->at[place], made, memory_order_release);
        there = made;
        made = NULL;
    }
    unlock(st);
    choice_free(made);
    if (is_full) cell_drop(cell);
    return there ? there->plan : NULL;
}

/* A number that is another one once an abstract class has got a virtual subclass; 0 with an error. */
static uint64_t token_now(struct state *st) {
    PyObject *token = PyObject_CallNoArgs(st->abstract_token);
    uint64_t now = token ? PyLong_AsUnsignedLongLong(token) + 1 : 0;
    Py_XDECREF(token);
    return PyErr_Occurred() ? 0 : now;
}

/* Whether a choice that Python has made since then may stay: no abstract class has got a virtual
 * subclass meanwhile, and the other choices are of the same token. */
static bool is_of_token(struct state *st, struct choices *c, uint64_t token) {
    if (token_now(st) != token) return false;
    lock(st);
    if (!atomic_load(&c->is_abstract)) {
        atomic_store(&c->token, token);
        atomic_store(&c->is_abstract, 1);
    }
    bool is = atomic_load(&c->token) == token;
    unlock(st);
    return is;
}

/* Asks Python which table the types choose. */
static __attribute__((noinline, cold)) Plan *ask(struct state *st, Cell *cell, Plan *plan,
                                                 const struct types *t) {
    PyObject *given = as_given(plan->choices, t), *answer = NULL, *table, *masks;
    unsigned long long mask;
    int most, lasts, is_abstract;
    uint64_t token = plan->choices->is_plain ? token_now(st) : 1; /* before Python looks */
    Plan *found = NULL;
    if (given && st->for_types && token)
        answer = PyObject_CallFunctionObjArgs(st->for_types, plan->table, given,
                                              plan->choices->is_plain ? Py_True : Py_False, NULL);
    if (answer && PyArg_ParseTuple(answer, "OKOipp", &table, &mask, &masks, &most, &lasts,
                                   &is_abstract) &&
        lasts && are_unchanged(t) && (!is_abstract || is_of_token(st, plan->choices, token))) {
        found = plan_with(st, plan, table, mask, masks, most);
        if (found) found = keep(st, cell, plan, t, found);
    }
    Py_XDECREF(answer);
    Py_XDECREF(given); /* the last that keeps the types */
    forget_own(st);
    return found;
}

/* As `find`, for one or two arguments that are no lists, in the one place that is most likely. For
 * None there is no choice of as many types. */
static inline Plan *likely(const struct choices *c, PyObject *const *values) {
    const PyTypeObject *first = Py_TYPE(values[c->tensors[0]]), *second = NULL;
    uint32_t tag = version_tag(first), second_tag = 0;
    size_t hash = tag + c->tensors[0];
    if (c->n_tensors == 2) {
        second = Py_TYPE(values[c->tensors[1]]);
        second_tag = version_tag(second);
        hash = hash * 31 + second_tag + c->tensors[1];
    }
    const struct choice *choice =
        atomic_load_explicit(&c->at[hash % PLACES_OF_CHOICES], memory_order_acquire);
    if (UNLIKELY(!choice || choice->n != c->n_tensors)) return NULL;
    const struct tensor_type *seen = choice->seen;
    if (seen[0].type != first || seen[0].tag != tag) return NULL;
    if (second && (seen[1].type != second || seen[1].tag != second_tag)) return NULL;
    return choice->plan;
}

Plan *plan_kept_for_types(const Plan *plan, PyObject *const *values) {
    struct types t;
    size_t place;
    if (!types_of(plan->choices, plan->shape, values, &t)) return NULL;
    struct choice *choice = find(plan->choices, &t, &place);
    return choice ? choice->plan : NULL;
}

Plan *plan_for_types(struct state *st, Cell *cell, Plan *plan, PyObject *const *values) {
    struct types t;
    size_t place;
    if (UNLIKELY(atomic_load_explicit(&plan->choices->is_abstract, memory_order_acquire)) &&
        token_now(st) != peek(&plan->choices->token)) {
        cell_drop(cell);
        return NULL;
    }
    Plan *found = plan->choices->are_few ? likely(plan->choices, values) : NULL;
    if (LIKELY(found != NULL)) return found;
    if (UNLIKELY(!types_of(plan->choices, plan->shape, values, &t))) return NULL;
    struct choice *choice = find(plan->choices, &t, &place);
    return LIKELY(choice != NULL) ? choice->plan : ask(st, cell, plan, &t);
}
