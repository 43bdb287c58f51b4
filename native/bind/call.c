/* call.c - a call, from its arguments to the kernel that runs.
 *
 *     plan       the cell's, if its three words are what they were; else Python makes one
 *     bind       each argument as it is, if it is plainly what the schema wants
 *     key set    the union over the arguments, by their types; then what this thread adds and takes
 *     target     that of the highest key; found by Python when a call first comes to it
 *     kernel     by vectorcall, with the caller's own array where nothing has to be added
 *     result     as it is, if it is plainly what the schema says
 *
 * Whatever is not plain goes to Python from the beginning, as if it had not been here: nothing has been
 * done by then but looking, and asking values for their keys. mdispatch/_call_py.py is what this
 * has to agree with, tests/test_call_paths.py what compares the two.
 *
 * A plan is in use from `enter` to `leave`, also while the kernel runs, which may close what the plan
 * was made of.
 */
#include "call.h"
#include "probes.h"

/* --- a plan in use ------------------------------------------------------------------------------ */

/* What `leave` needs: the plan, or without a GIL where the call was counted. */
#ifdef Py_GIL_DISABLED
typedef a64 *in_use;
static inline Plan *enter(struct state *st, Cell *cell, in_use *use) {
    *use = md__readers_enter(st);
    return atomic_load(&cell->plan);
}
static inline void leave(in_use use) {
    md__readers_exit(use);
}
#else
typedef Plan *in_use;
static inline Plan *enter(struct state *st, Cell *cell, in_use *use) {
    (void)st;
    *use = atomic_load_explicit(&cell->plan, memory_order_relaxed);
    Py_XINCREF(*use);
    return *use;
}
static inline void leave(in_use use) {
    Py_XDECREF(use);
}
#endif

static inline bool is_current(const struct state *st, const Plan *plan, uint64_t generation) {
    return plan && atomic_load_explicit(plan->word, memory_order_acquire) == plan->version &&
           plan->epoch == peek(&st->epoch) && plan->generation == generation;
}

/* Has Python make a plan: 1 if it did, 0 if calls are Python's to make, -1 with its error. */
static int renew(Operator *self) {
    struct state *st = self->state;
    if (peek(&st->off) || !st->renew) return 0;
    PyObject *answer = PyObject_CallOneArg(st->renew, (PyObject *)self);
    if (!answer) return -1;
    Py_DECREF(answer);
    return 1;
}

/* --- arguments ---------------------------------------------------------------------------------- */

static int fits_slow(struct state *st, uint8_t kind, PyTypeObject *exact, int none_fits,
                     PyObject *value, uint64_t *raw) {
    if (value == Py_None) return none_fits || kind == ANYTHING;
    switch (kind) {
    case ANYTHING:
    case SOMETHING:
        return 1;
    case EXACT:
        return Py_TYPE(value) == exact;
    case NUMBER:
        return PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyBool_Check(value) ||
               PyComplex_CheckExact(value);
    case TENSOR:
        return tensor(st, value, raw);
    default:
        return 0;
    }
}

/* Whether a value is taken as it is; no list. Adds its keys. */
static inline int fits(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    if (t->kind == TENSOR) {
        uint64_t carried = 0;
        if (UNLIKELY(!tensor(st, value, &carried))) return value == Py_None && t->none_fits;
        *raw |= carried & t->counts;
        return 1;
    }
    if (t->kind == EXACT && LIKELY(Py_TYPE(value) == t->exact)) return 1;
    return fits_slow(st, t->kind, t->exact, t->none_fits, value, raw);
}

/* Of a list that nobody else has: asking for keys runs code, and there are other threads. */
static int items_fit(struct state *st, const struct take *t, PyObject *list, uint64_t *raw) {
    PyObject *const *items = ((PyListObject *)list)->ob_item;
    uint64_t carried = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        if (!fits_slow(st, t->item, t->exact, t->item_none_fits, items[i], &carried)) return 0;
    }
    *raw |= carried & t->counts;
    return 1;
}

/* A list of the kernel's own, from the list or tuple that was given; NULL when Python has to see to
 * it. */
static PyObject *list_of(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    PyObject *made = NULL;
    if (PyList_CheckExact(value))
        made = PyList_GetSlice(value, 0, PY_SSIZE_T_MAX);
    else if (PyTuple_CheckExact(value))
        made = PySequence_List(value);
    if (made && items_fit(st, t, made, raw)) return made;
    Py_XDECREF(made);
    return NULL;
}

/* Where the arguments of a kernel are put together. In front there is room for two more, and for the
 * one that a callee may overwrite (PY_VECTORCALL_ARGUMENTS_OFFSET). */
enum { FRONT = 3 };
struct bound {
    PyObject *room[FRONT + MOST_ARGUMENTS];
    PyObject *made[MOST_ARGUMENTS + 1]; /* to be let go of */
    Py_ssize_t n_made;
};

static void let_go(struct bound *b) {
    while (b->n_made) Py_DECREF(b->made[--b->n_made]);
}

static int put(struct state *st, const struct argument *a, PyObject *value, PyObject **place,
               struct bound *b, uint64_t *raw) {
    if (a->take.kind == LIST && value != Py_None) {
        value = list_of(st, &a->take, value, raw);
        if (!value) return 0;
        b->made[b->n_made++] = value;
    } else if (a->take.kind == LIST ? !a->take.none_fits : !fits(st, &a->take, value, raw)) {
        return 0;
    }
    *place = value;
    return 1;
}

static int put_default(const struct argument *a, PyObject **place, struct bound *b) {
    *place = a->value;
    if (a->value && a->is_list) {
        *place = PySequence_List(a->value);
        if (*place) b->made[b->n_made++] = *place;
    }
    return *place != NULL;
}

/* The place of a keyword; -1 when it is not one of the names themselves. */
static Py_ssize_t place_of(const Shape *shape, Py_ssize_t from, PyObject *name) {
    for (Py_ssize_t i = from; i < shape->positional + shape->keyword_only; i++) {
        if (shape->arguments[i].name == name) return i;
    }
    return -1;
}

/* All arguments in their places; 0 when Python has to see to it. */
static int bind(struct state *st, const Shape *shape, PyObject *const *args, Py_ssize_t n,
                PyObject *kwnames, struct bound *b, uint64_t *raw) {
    Py_ssize_t all = shape->positional + shape->keyword_only;
    Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    PyObject **values = b->room + FRONT;
    b->n_made = 0;
    if (n > shape->positional || n + named > all) return 0;
    for (Py_ssize_t i = 0; i < n; i++) values[i] = args[i];
    memset(values + n, 0, (size_t)(all - n) * sizeof *values);
    for (Py_ssize_t k = 0; k < named; k++) {
        Py_ssize_t i = place_of(shape, n, PyTuple_GET_ITEM(kwnames, k));
        if (i < 0) return 0;
        values[i] = args[n + k];
    }
    /* In the schema's order, as Python does it. */
    for (Py_ssize_t i = 0; i < all; i++) {
        const struct argument *a = &shape->arguments[i];
        if (values[i] ? !put(st, a, values[i], &values[i], b, raw) : !put_default(a, &values[i], b))
            return 0;
    }
    return 1;
}

/* --- refusals ----------------------------------------------------------------------------------- */

/* For packets, which go on to the next overload when Binder.bind (mdispatch/_bind.py) refuses: it
 * does where these say 1. 0: that is for it to find out; -1: what was asked has raised. */

static int is_a(PyObject *value, PyTypeObject *type) {
    if (PyObject_TypeCheck(value, type)) return 1;
    return md__is_builtin(Py_TYPE(value)) ? 0 : PyObject_IsInstance(value, (PyObject *)type);
}

/* What is neither of these types nor has their protocol is none of them, and is not converted. */
static int is_no_number(PyObject *value, PyTypeObject *const *types, const char *protocol) {
    for (; *types; types++) {
        int is = is_a(value, *types);
        if (is) return is < 0 ? -1 : 0;
    }
    return !protocol || !PyObject_HasAttrString((PyObject *)Py_TYPE(value), protocol);
}

/* Of a value that does not fit as it is. */
static int is_unfit(const struct take *t, PyObject *value) {
    static PyTypeObject *const integers[] = {&PyLong_Type, NULL},
                               *const reals[] = {&PyLong_Type, &PyFloat_Type, NULL},
                               *const numbers[] = {&PyLong_Type, &PyFloat_Type, &PyComplex_Type,
                                                   NULL},
                               *const texts[] = {&PyUnicode_Type, NULL};
    if (t->kind == TENSOR) return md__is_builtin(Py_TYPE(value));
    if (t->kind == NUMBER) return is_no_number(value, numbers, "__float__");
    if (t->kind != EXACT) return 0;
    if (t->exact == &PyLong_Type) return is_no_number(value, integers, "__index__");
    if (t->exact == &PyFloat_Type) return is_no_number(value, reals, "__float__");
    if (t->exact == &PyBool_Type) return is_no_number(value, integers, NULL);
    if (t->exact == &PyComplex_Type) return is_no_number(value, numbers, NULL);
    if (t->exact == &PyUnicode_Type) return is_no_number(value, texts, NULL);
    return 0;
}

enum { FITS = 2 };
static int fits_or_not(struct state *st, const struct argument *a, PyObject *value) {
    uint64_t ignored = 0;
    if (fits(st, &a->take, value, &ignored)) return FITS;
    return PyErr_Occurred() ? -1 : is_unfit(&a->take, value);
}

/* The value of a keyword, or NULL. */
static PyObject *named(PyObject *kwnames, PyObject *const *values, PyObject *name) {
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++) {
        PyObject *given = PyTuple_GET_ITEM(kwnames, k);
        if (given == name || PyUnicode_Compare(given, name) == 0) return values[k];
    }
    return NULL;
}

/* In the order in which they are bound: values first, then what is too many or missing. */
static int refuses(struct state *st, const Shape *shape, PyObject *const *args, Py_ssize_t n,
                   PyObject *kwnames) {
    Py_ssize_t all = shape->positional + shape->keyword_only, taken = 0, missing = 0;
    if (shape->positional < 0) return 0; /* of which C knows nothing */
    for (Py_ssize_t i = 0; i < n && i < shape->positional; i++) {
        int found = fits_or_not(st, &shape->arguments[i], args[i]);
        if (found != FITS) return found;
    }
    if (n > shape->positional) return 1;
    for (Py_ssize_t i = n; i < all; i++) {
        const struct argument *a = &shape->arguments[i];
        PyObject *value = named(kwnames, args + n, a->name);
        missing += !value && !a->value;
        if (!value) continue;
        int found = fits_or_not(st, a, value);
        if (found != FITS) return found;
        taken++;
    }
    return missing || taken < (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
}

/* --- keys --------------------------------------------------------------------------------------- */

static inline unsigned bits(uint64_t word) {
    return word ? 64 - (unsigned)__builtin_clzll(word) : 0;
}

/* (mdispatch/_keys.py: highest_index, backend_index) */
static inline unsigned index_of(const struct state *st, uint64_t raw) {
    if (!(raw & 0xffff)) raw &= ~st->per_backend;
    unsigned functionality = bits(raw >> BACKENDS);
    if (functionality && st->per_backend >> (BACKENDS - 1 + functionality) & 1)
        return st->offset[functionality] + bits((raw & 0xffff) >> 1);
    return st->offset[functionality];
}

/* What this thread adds and keeps, when some thread's guards are open; 0 when that is Python's to say. */
static int thread_sets(struct state *st, uint64_t *included, uint64_t *kept) {
    PyObject *found = st->local ? PyObject_GetAttr(st->local, st->sets_name) : NULL;
    if (!found || !PyObject_TypeCheck(found, st->sets_type)) {
        Py_XDECREF(found);
        return 0;
    }
    Sets *sets = (Sets *)found;
    uint64_t before;
    do { /* until both are of one moment: without a GIL, a guard may just end in another thread */
        before = atomic_load(&sets->sequence);
        *included = atomic_load(&sets->included);
        *kept = atomic_load(&sets->kept);
    } while (before & 1 || atomic_load(&sets->sequence) != before);
    Py_DECREF(found);
    return 1;
}

/* The key set of a call; 0 when it is Python's to make. */
static inline int effective(struct state *st, const Plan *plan, uint64_t *raw) {
    uint64_t included = st->included, kept = st->kept;
    if (UNLIKELY(peek(&st->guards)) && !thread_sets(st, &included, &kept)) return 0;
    uint64_t all = (*raw | included) & kept;
    if (UNLIKELY(all & st->special)) return 0;
    uint64_t mask = plan->mask;
    if (UNLIKELY(plan->masks != NULL)) mask = plan->masks[bits((all & 0xffff) >> 1)];
    *raw = all & mask;
    return 1;
}

static inline struct target *target_of(struct state *st, Plan *plan, uint64_t raw) {
    unsigned index = index_of(st, raw);
    int at = atomic_load_explicit(&plan->at[index], memory_order_acquire);
    if (LIKELY(at != 0 && at != NO_TARGET)) return &plan->targets[at - 1];
    return md__target_find(st, plan, index);
}

/* --- kernels ------------------------------------------------------------------------------------ */

static inline PyObject *invoke(PyObject *function, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames) {
    if (PyFunction_Check(function))
        return ((PyFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
    if (PyCFunction_CheckExact(function) && ((PyCFunctionObject *)function)->vectorcall)
        return ((PyCFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
    return PyObject_Vectorcall(function, args, nargsf, kwnames);
}

/* A new reference to the key set for a kernel that wants it. */
static PyObject *key_set_for(struct state *st, struct target *target, uint64_t raw) {
#ifndef Py_GIL_DISABLED
    if (target->key_set && target->key_set_raw == raw) return Py_NewRef(target->key_set);
#endif
    PyObject *number = PyLong_FromUnsignedLongLong(raw);
    PyObject *made = NULL;
    if (number) made = PyObject_CallFunctionObjArgs(st->from_raw, number, NULL);
    Py_XDECREF(number);
#ifndef Py_GIL_DISABLED
    if (made) {
        PyObject *before = target->key_set;
        target->key_set = Py_NewRef(made);
        target->key_set_raw = raw;
        Py_XDECREF(before);
    }
#endif
    return made;
}

/* Runs a kernel with what `bind` has put together. */
static PyObject *invoke_bound(struct state *st, PyObject *self, const Shape *shape,
                              struct target *target, struct bound *b, uint64_t raw) {
    PyObject **first = b->room + FRONT;
    if (target->with_operator) *--first = self;
    if (target->with_key_set) {
        PyObject *key_set = key_set_for(st, target, raw);
        if (!key_set) return NULL;
        b->made[b->n_made++] = *--first = key_set;
    }
    size_t n = (size_t)(b->room + FRONT + shape->positional - first);
    return invoke(target->function, first, n | PY_VECTORCALL_ARGUMENTS_OFFSET, shape->keywords);
}

static int result_fits(struct state *st, const struct take *t, PyObject *result) {
    uint64_t ignored = 0;
    if (t->kind != LIST) return fits(st, t, result, &ignored);
    if (result == Py_None) return t->none_fits;
    PyObject *copy = PyList_CheckExact(result) ? PyList_GetSlice(result, 0, PY_SSIZE_T_MAX) : NULL;
    int found = copy && items_fit(st, t, copy, &ignored);
    Py_XDECREF(copy);
    return found;
}

static int results_fit(struct state *st, const Shape *shape, PyObject *result) {
    if (shape->returns == 0) return result == Py_None;
    if (!PyTuple_CheckExact(result) || PyTuple_GET_SIZE(result) != shape->returns) return 0;
    for (Py_ssize_t i = 0; i < shape->returns; i++) {
        if (!result_fits(st, &shape->results[i], PyTuple_GET_ITEM(result, i))) return 0;
    }
    return 1;
}

/* What a caller gets for a result, which is consumed. */
static inline PyObject *checked(struct state *st, PyObject *self, const Plan *plan,
                                const struct target *target, PyObject *result) {
    const Shape *shape = plan->shape;
    if (UNLIKELY(!result)) return NULL;
    if (LIKELY(shape->returns == 1) ? LIKELY(result_fits(st, shape->results, result))
                                    : results_fit(st, shape, result))
        return result;
    PyObject *answer = NULL;
    if (!PyErr_Occurred())
        answer = PyObject_CallFunctionObjArgs(st->check, self, plan->signature, result,
                                              target->kernel, NULL);
    Py_DECREF(result);
    return answer;
}

/* --- calls -------------------------------------------------------------------------------------- */

/* The same call in Python. */
PyObject *md__in_python(PyObject *function, PyObject *self, PyObject *const *args, size_t nargsf,
                        PyObject *kwnames) {
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    if (!function) {
        PyErr_SetString(PyExc_RuntimeError, "this interpreter ends: its operators are gone");
        return NULL;
    }
    PyObject *positional = PyTuple_New(n), *keywords = PyDict_New(), *result = NULL;
    if (!positional || !keywords) goto done;
    for (Py_ssize_t i = 0; i < n; i++) PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t k = 0; k < named; k++) {
        if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(kwnames, k), args[n + k])) goto done;
    }
    result = PyObject_CallFunctionObjArgs(function, self, positional, keywords, NULL);
done:
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    return result;
}

/* How far a way of calling comes: DONE, also with an error; or not at all. */
enum { DONE, TRY_BOUND, TO_PYTHON };

/* Nothing was done but looking: the call is Python's, unless what was asked has raised. */
static __attribute__((noinline, cold)) int given_up(void) {
    return PyErr_Occurred() ? DONE : TO_PYTHON;
}

/* One whose arguments go on as they were given. `given`: the key set of a redispatch, or NULL. */
static inline int call_plain(Operator *self, Plan *plan, PyObject *const *args, size_t nargsf,
                             const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    const Shape *shape = plan->shape;
    uint64_t raw = 0;
    for (Py_ssize_t i = 0; i < shape->positional; i++) {
        if (UNLIKELY(!fits(st, &shape->arguments[i].take, args[i], &raw))) return given_up();
    }
    if (given)
        raw = *given;
    else if (UNLIKELY(!effective(st, plan, &raw)))
        return given_up();
    struct target *target = target_of(st, plan, raw);
    if (UNLIKELY(!target)) return given_up();
    if (UNLIKELY(target->with_operator | target->with_key_set)) return TRY_BOUND;
    *result =
        checked(st, (PyObject *)self, plan, target, invoke(target->function, args, nargsf, NULL));
    return DONE;
}

/* One that needs an array of its own. */
static int call_bound(Operator *self, Plan *plan, PyObject *const *args, Py_ssize_t n,
                      PyObject *kwnames, const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    struct target *target = NULL;
    struct bound b;
    uint64_t raw = 0;
    if (bind(st, plan->shape, args, n, kwnames, &b, &raw)) {
        if (given)
            raw = *given;
        else if (!effective(st, plan, &raw))
            goto done;
        target = target_of(st, plan, raw);
    }
    if (target)
        *result = checked(st, (PyObject *)self, plan, target,
                          invoke_bound(st, (PyObject *)self, plan->shape, target, &b, raw));
done:
    let_go(&b);
    return target ? DONE : given_up();
}

/* A call or a redispatch in C; TO_PYTHON when it is Python's to make. */
static inline int call(Operator *self, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                       const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int how = TRY_BOUND;
    in_use use;
    if (UNLIKELY(!self->cell)) return TO_PYTHON;
    Plan *plan = enter(st, self->cell, &use);
    if (UNLIKELY(!is_current(st, plan, self->generation))) {
        leave(use);
        int renewed = renew(self);
        if (renewed <= 0) return renewed ? DONE : TO_PYTHON;
        plan = enter(st, self->cell, &use);
        if (!is_current(st, plan, self->generation)) {
            leave(use);
            return TO_PYTHON;
        }
    }
    if (LIKELY(!kwnames && plan->shape->is_plain && n == plan->shape->positional))
        how = call_plain(self, plan, args, nargsf, given, result);
    if (UNLIKELY(how == TRY_BOUND)) how = call_bound(self, plan, args, n, kwnames, given, result);
    leave(use);
    return how;
}

static inline __attribute__((always_inline)) PyObject *
operator_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyObject *result = NULL;
    Operator *op = (Operator *)self;
    if (LIKELY(call(op, args, nargsf, kwnames, NULL, &result) == DONE)) return result;
    return md__in_python(op->state->call, self, args, nargsf, kwnames);
}

/* redispatch(key_set, ...) */
static inline __attribute__((always_inline)) PyObject *
operator_redispatch(PyObject *self, PyObject *const *args, size_t n, PyObject *kwnames) {
    PyObject *result = NULL;
    Operator *op = (Operator *)self;
    struct state *st = op->state;
    if (LIKELY(n > 0 && Py_TYPE(args[0]) == (PyTypeObject *)st->key_set_type)) {
        PyObject *number = *(PyObject **)((char *)args[0] + st->raw_at);
        uint64_t raw = number ? PyLong_AsUnsignedLongLong(number) : UINT64_MAX;
        if (UNLIKELY(raw & st->special)) /* all bits, too, when that was no set */
            PyErr_Clear();
        else if (LIKELY(call(op, args + 1, n - 1, kwnames, &raw, &result) == DONE))
            return result;
    }
    return md__in_python(st->redispatch, self, args, n, kwnames);
}

PyObject *md__operator_call(PyObject *self, PyObject *const *args, size_t nargsf,
                            PyObject *kwnames) {
    if (UNLIKELY(probes_are_wanted())) return probed(operator_call, self, args, nargsf, kwnames);
    return operator_call(self, args, nargsf, kwnames);
}

bool md__operator_try(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                      PyObject **result) {
    return !probes_are_wanted() &&
           call((Operator *)self, args, nargsf, kwnames, NULL, result) == DONE;
}

int md__operator_refuses(PyObject *self_, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    Operator *self = (Operator *)self_;
    in_use use;
    if (probes_are_wanted() || !self->cell) return 0;
    Plan *plan = enter(self->state, self->cell, &use);
    int found = 0;
    if (is_current(self->state, plan, self->generation))
        found = refuses(self->state, plan->shape, args, n, kwnames);
    leave(use);
    return found;
}

PyObject *md__operator_redispatch(PyObject *self, PyObject *const *args, Py_ssize_t n,
                                  PyObject *kwnames) {
    if (UNLIKELY(probes_are_wanted()))
        return probed(operator_redispatch, self, args, (size_t)n, kwnames);
    return operator_redispatch(self, args, (size_t)n, kwnames);
}
