/* call.c - a call, from its arguments to the kernel that runs.
 *
 *     plan       the cell's plan, if the three values that it depends on are unchanged; else Python
 *                makes a new one
 *     memory     a call with the types of one that was made before goes straight to its target
 *     bind       takes each argument as it is, if that is plainly what the schema wants, or
 *                converts it (take.c)
 *     types      where kernels are for types: the plan of the arguments' types (by_type.c)
 *     key set    the union of the arguments' keys, with those that this thread includes, without
 *                those that it excludes
 *     target     the kernel of the highest key; Python finds it when a call first reaches that key
 *     kernel     called by vectorcall, with the caller's array when nothing has to be added to it
 *     result     returned as it is, if that is plainly what the schema says, or converted
 *
 * A call that is not plain is handed to Python, which starts it from the beginning. Until then this
 * file has only looked at the arguments, asked values for their keys and for their numbers.
 * mdispatch/dispatch/call_py.py is the specification; tests/dispatch/test_call_paths.py compares
 * the two.
 *
 * A plan is in use from `enter` to `leave`. That includes the time in which the kernel runs: the
 * kernel may close the objects that the plan was made of.
 */
#include "state.h"
#include "probes.h"

/* --- a plan in use ---------------------------------------------------------------------------- */

/* The cell's plan, or NULL; the caller has to call `leave` in both cases. */
static inline Plan *plan_of(struct state *st, Cell *cell, in_use *use) {
    *use = enter(st);
    Plan *plan = atomic_load_explicit(&cell->plan, ENTERED);
    hold(use, plan);
    return plan;
}

static inline bool is_current(const struct state *st, const Plan *plan, uint64_t generation) {
    return plan && atomic_load_explicit(plan->word, memory_order_acquire) == plan->version &&
           plan->epoch == peek(&st->epoch) && plan->generation == generation;
}

/* Has Python make a plan: 1 when it did, 0 when Python has to make the call, -1 with an error. */
static int renew(Operator *self) {
    struct state *st = self->state;
    if (peek(&st->off) || !st->renew) return 0;
    PyObject *answer = PyObject_CallOneArg(st->renew, (PyObject *)self);
    if (!answer) return -1;
    Py_DECREF(answer);
    return 1;
}

/* --- arguments -------------------------------------------------------------------------------- */

/* The arguments for a kernel. There is room in front of them for the operator and the key set, and
 * for the one place that a callee may overwrite (PY_VECTORCALL_ARGUMENTS_OFFSET). */
enum { FRONT = 3 };
struct bound {
    PyObject *room[FRONT + MOST_ARGUMENTS];
    PyObject *made[MOST_ARGUMENTS + 1]; /* owned references, for `let_go` */
    Py_ssize_t n_made;
};

static void let_go(struct bound *b) {
    while (b->n_made) Py_DECREF(b->made[--b->n_made]);
}

static int put(struct state *st, const struct argument *a, PyObject *value, PyObject **place,
               struct bound *b, uint64_t *raw) {
    const struct take *t = &a->take;
    *place = value;
    if (t->exact) { /* finding out that it does not fit runs no code of users */
        if (Py_TYPE(value) == t->exact || fits_slow(st, t, value, raw)) return 1;
        value = converted(st, t, value);
    } else if (is_composed(t)) {
        value = taken(st, t, value, raw);
    } else {
        return fits(st, t, value, raw);
    }
    if (!value) return 0;
    b->made[b->n_made++] = *place = value;
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

/* The place of a keyword; -1 when no argument has this very object as its name. */
static Py_ssize_t place_of(const Shape *shape, Py_ssize_t from, PyObject *name) {
    for (Py_ssize_t i = from; i < shape->positional + shape->keyword_only; i++) {
        if (shape->arguments[i].name == name) return i;
    }
    return -1;
}

/* Puts all arguments in their places; 0 when Python has to handle the call. */
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
    /* In the order of the schema, as the specification does it. */
    for (Py_ssize_t i = 0; i < all; i++) {
        const struct argument *a = &shape->arguments[i];
        if (values[i] ? !put(st, a, values[i], &values[i], b, raw) : !put_default(a, &values[i], b))
            return 0;
    }
    return 1;
}

/* --- refusals --------------------------------------------------------------------------------- */

/* A packet goes on to the next overload when Binder.bind (mdispatch/dispatch/arguments.py) refuses
 * the arguments. These functions return 1 when it certainly would, 0 when only it can tell, and -1
 * with an error when code of users raised one. */

static int is_a(PyObject *value, PyTypeObject *type) {
    if (PyObject_TypeCheck(value, type)) return 1;
    return is_builtin(Py_TYPE(value)) ? 0 : PyObject_IsInstance(value, (PyObject *)type);
}

/* Whether a value has none of these types, nor the protocol by which Python would convert it. */
static int is_no_number(PyObject *value, PyTypeObject *const *types, const char *protocol) {
    for (; *types; types++) {
        int is = is_a(value, *types);
        if (is) return is < 0 ? -1 : 0;
    }
    return !protocol || !PyObject_HasAttrString((PyObject *)Py_TYPE(value), protocol);
}

/* Whether Python would refuse a value that does not fit as it is. */
static int is_unfit(const struct take *t, PyObject *value) {
    static PyTypeObject *const integers[] = {&PyLong_Type, NULL},
                               *const reals[] = {&PyLong_Type, &PyFloat_Type, NULL},
                               *const numbers[] = {&PyLong_Type, &PyFloat_Type, &PyComplex_Type,
                                                   NULL},
                               *const texts[] = {&PyUnicode_Type, NULL};
    if (t->kind == TENSOR) return is_builtin(Py_TYPE(value));
    if (t->kind == NUMBER) return is_no_number(value, numbers, "__float__");
    if (!t->exact) return 0;
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
    if (!is_composed(&a->take) && fits(st, &a->take, value, &ignored)) return FITS;
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

/* In the order of Binder.bind: first each value, then too many and missing arguments. */
static int refuses(struct state *st, const Shape *shape, PyObject *const *args, Py_ssize_t n,
                   PyObject *kwnames) {
    Py_ssize_t all = shape->positional + shape->keyword_only, taken = 0, missing = 0;
    if (shape->positional < 0) return 0; /* only Python knows this schema */
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

/* --- keys ------------------------------------------------------------------------------------- */

/* Whether a call with these tensors of PyTorch is dispatched here, and not for PyTorch's eyes.
 * Takes the marks of the tensors out of the keys. */
static bool stays(struct state *st, const Plan *plan, uint64_t *raw, PyObject *const *args,
                  Py_ssize_t n) {
    uint64_t keys = *raw;
    *raw &= ~(FROM_TORCH | WITH_FUNCTION);
    return plan->gate == NO_GATE ||
           (!(keys & (st->wrapped | WITH_FUNCTION)) && !torch_wants(st, plan->gate, args, n));
}

/* Whether a call that PyTorch wants can go straight to its operator: all tensors are PyTorch's, and
 * no mode, rule or observer of ours comes first. The arguments fit as they are. */
static bool goes_to_torch(struct state *st, const Operator *self, const Plan *plan,
                          PyObject *const *values, Py_ssize_t n) {
    uint64_t ignored;
    if (!plan->torch || peek(&st->contexts) || is_observed(st) || peek(&self->cell->has_rules))
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        const struct take *t = &plan->shape->arguments[i].take;
        if (is_composed(t)) return false; /* perhaps of tensors */
        if (t->kind == TENSOR && values[i] != Py_None &&
            how_known(st, Py_TYPE(values[i]), &ignored) != BY_TORCH)
            return false;
    }
    return true;
}

/* The key set in this thread. */
static inline int effective(struct state *st, const Plan *plan, uint64_t *raw) {
    uint64_t included = st->included, kept = st->kept;
    if (UNLIKELY(peek(&st->contexts))) thread_sets(st, &included, &kept);
    return effective_in(st, plan, included, kept, raw);
}

static inline struct target *target_of(struct state *st, Plan *plan, uint64_t raw) {
    unsigned index = index_of(st, raw);
    int at = atomic_load_explicit(&plan->at[index], memory_order_acquire);
    if (LIKELY(at != 0 && at != NO_TARGET)) return &plan->targets[at - 1];
    return target_find(st, plan, index);
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* Runs a kernel with the arguments that `bind` has put in place. */
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

/* As invoke_bound, and tells the observers, if there are any. `plan`: that of the arguments' types. */
static inline PyObject *invoke_there(struct state *st, PyObject *self, const Plan *plan,
                                     struct target *target, struct bound *b, uint64_t raw,
                                     bool is_redispatch) {
    PyObject *result = NULL;
    struct watch watch;
    if (!is_observed(st)) return invoke_bound(st, self, plan->shape, target, b, raw);
    if (observers_begin(st, self, plan, target, b->room + FRONT, raw, is_redispatch, &watch))
        result = invoke_bound(st, self, plan->shape, target, b, raw);
    return observers_end(&watch, result);
}

static int result_fits(struct state *st, const struct take *t, PyObject *result) {
    uint64_t ignored = 0;
    if (t->kind == TENSOR) return is_tensor(st, result) || (result == Py_None && t->none_fits);
    return !is_composed(t) && fits(st, t, result, &ignored);
}

/* What the caller gets for a kernel's results: a new reference; NULL, perhaps with an error, when
 * that is for Python. */
static PyObject *results_taken(struct state *st, const Shape *shape, PyObject *result) {
    if (shape->returns == 0) return result == Py_None ? Py_NewRef(result) : NULL;
    if (shape->returns == 1) return taken_result(st, shape->results, result);
    PyObject *made = PyTuple_CheckExact(result)  ? Py_NewRef(result)
                     : PyList_CheckExact(result) ? PyList_AsTuple(result)
                                                 : NULL;
    if (!made || PyTuple_GET_SIZE(made) != shape->returns) goto failed;
    for (Py_ssize_t i = 0; i < shape->returns; i++) {
        PyObject *value = PyTuple_GET_ITEM(made, i);
        if (result_fits(st, &shape->results[i], value)) continue;
        PyObject *other = PyErr_Occurred() ? NULL : taken_result(st, &shape->results[i], value);
        if (!other) goto failed;
        if (other != value && made == result) { /* the kernel's tuple stays as it is */
            PyObject *own = PyTuple_New(shape->returns);
            for (Py_ssize_t k = 0; own && k < shape->returns; k++)
                PyTuple_SET_ITEM(own, k, Py_NewRef(PyTuple_GET_ITEM(made, k)));
            Py_SETREF(made, own);
        }
        if (!made) {
            Py_DECREF(other);
            return NULL;
        }
        if (other == value)
            Py_DECREF(other);
        else {
            PyTuple_SET_ITEM(made, i, other);
            Py_DECREF(value);
        }
    }
    return made;
failed:
    Py_XDECREF(made);
    return NULL;
}

/* As `checked`, for a result whose type is not remembered. */
static __attribute__((noinline)) PyObject *looked_at(struct state *st, PyObject *self, Plan *plan,
                                                     const struct target *target,
                                                     PyObject *result) {
    const Shape *shape = plan->shape;
    if (shape->returns == 1 && result_fits(st, shape->results, result)) {
        remember_result(st, plan, result);
        return result;
    }
    PyObject *answer = PyErr_Occurred() ? NULL : results_taken(st, shape, result);
    if (!answer && !PyErr_Occurred())
        answer = PyObject_CallFunctionObjArgs(st->check, self, plan->signature, result,
                                              target->kernel, NULL);
    Py_DECREF(result);
    return answer;
}

/* What the caller gets for a kernel's result. Takes over the reference to the result. */
static inline PyObject *checked(struct state *st, PyObject *self, Plan *plan,
                                const struct target *target, PyObject *result) {
    if (LIKELY(result && remembers(st, &plan->result, &result, 1, NULL))) return result;
    return result ? looked_at(st, self, plan, target, result) : NULL;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Makes the call in Python. */
PyObject *in_python(PyObject *function, PyObject *self, PyObject *const *args, size_t nargsf,
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

/* For an attempt that has called no kernel: Python makes the call, unless an error is set. */
static __attribute__((noinline, cold)) int given_up(void) {
    return PyErr_Occurred() ? DONE : TO_PYTHON;
}

/* What the caller gets for the result of a mode or a type. Takes over both references. */
static PyObject *answered(struct state *st, Operator *self, const Plan *plan, PyObject *result,
                          PyObject *handler) {
    const Shape *shape = plan->shape;
    PyObject *answer = NULL;
    if (shape->returns == 1 && result_fits(st, shape->results, result))
        answer = Py_NewRef(result);
    else if (!PyErr_Occurred())
        answer = results_taken(st, shape, result);
    if (!answer && !PyErr_Occurred())
        answer =
            PyObject_CallFunctionObjArgs(st->answered, (PyObject *)self, result, handler, NULL);
    Py_DECREF(result);
    Py_DECREF(handler);
    return answer;
}

/* A call on whose way modes and types are asked. */
static __attribute__((noinline)) int answer(Operator *self, Plan *plan, struct bound *b,
                                            uint64_t raw, PyObject **result) {
    struct state *st = self->state;
    if (!handlers_are_plain(st, self->cell)) return given_up();
    struct target *target = target_of(st, plan, raw);
    PyObject *handler = NULL;
    int how = NOBODY, noted = 0;
    if (target && target->function == st->snapshot_fallback) {
        if ((noted = handlers_note(st)) < 0) return DONE;
        raw &= st->below_snapshot;
        target = target_of(st, plan, raw);
    }
    if (target && target->function == st->python_fallback) {
        how = handlers_ask(st, (PyObject *)self, plan->shape, b->room + FRONT, result, &handler);
        if (*result) *result = answered(st, self, plan, *result, handler);
        if (how == NOBODY) {
            raw &= st->below_python;
            target = target_of(st, plan, raw);
        }
    }
    if (!target) {
        how = given_up();
    } else if (how != TO_PYTHON) {
        if (how == NOBODY)
            *result = invoke_bound(st, (PyObject *)self, plan->shape, target, b, raw);
        *result = checked(st, (PyObject *)self, plan, target, *result);
        how = DONE;
    }
    if (noted) handlers_forget(st);
    return how;
}

static __attribute__((noinline)) int answer_plain(Operator *self, Plan *plan, PyObject *const *args,
                                                  uint64_t raw, PyObject **result) {
    struct bound b;
    b.n_made = 0;
    memcpy(b.room + FRONT, args, (size_t)plan->shape->positional * sizeof *args);
    int how = answer(self, plan, &b, raw, result);
    let_go(&b);
    return how;
}

/* Runs a kernel that needs an array of its own, or that observers are told of. */
static __attribute__((noinline)) PyObject *invoke_copied(Operator *self, const Plan *plan,
                                                         struct target *target,
                                                         PyObject *const *args, uint64_t raw,
                                                         bool is_redispatch) {
    struct bound b;
    b.n_made = 0;
    memcpy(b.room + FRONT, args, (size_t)plan->shape->positional * sizeof *args);
    PyObject *result =
        invoke_there(self->state, (PyObject *)self, plan, target, &b, raw, is_redispatch);
    let_go(&b);
    return result;
}

/* Has PyTorch's operator make a call whose arguments are in their places, or Python. */
static __attribute__((noinline)) int handed_over(Operator *self, const Plan *plan,
                                                 PyObject *const *values, PyObject **result) {
    const Shape *shape = plan->shape;
    if (!goes_to_torch(self->state, self, plan, values, shape->positional + shape->keyword_only))
        return given_up();
    *result = PyObject_Vectorcall(plan->torch, values, (size_t)shape->positional, shape->keywords);
    return DONE;
}

/* Runs a kernel with tensors of PyTorch. `b`: where the arguments are, or NULL: they are the
 * caller's, and positional. */
static PyObject *invoke_of_torch(Operator *self, Plan *chosen, struct target *target,
                                 PyObject *const *values, struct bound *b, uint64_t raw) {
    struct state *st = self->state;
    if (b) return invoke_there(st, (PyObject *)self, chosen, target, b, raw, false);
    if (target->with_operator | target->with_key_set || is_observed(st))
        return invoke_copied(self, chosen, target, values, raw, false);
    return invoke(target->function, values, (size_t)chosen->shape->positional, NULL);
}

/* The same, and tells PyTorch's profiler. */
static PyObject *invoke_recorded(Operator *self, Plan *chosen, struct target *target,
                                 PyObject *const *values, struct bound *b, uint64_t raw) {
    struct state *st = self->state;
    const Shape *shape = chosen->shape;
    PyObject *record =
        begin_record(st, (PyObject *)self, values, shape->positional + shape->keyword_only);
    PyObject *answer = record ? invoke_of_torch(self, chosen, target, values, b, raw) : NULL;
    if (record && end_record(record)) Py_CLEAR(answer);
    return answer;
}

/* A call with tensors of PyTorch. `b` as above; `remembers`: the arguments of a call that may be
 * remembered, or NULL. */
static __attribute__((noinline)) int run_of_torch(Operator *self, Plan *plan, Plan *chosen,
                                                  PyObject *const *values, struct bound *b,
                                                  uint64_t raw, PyObject *const *remembers,
                                                  PyObject **result) {
    struct state *st = self->state;
    uint64_t kept = 0;
    if (!stays(st, plan, &raw, values, plan->shape->positional + plan->shape->keyword_only))
        return handed_over(self, plan, values, result);
    uint64_t all = raw;
    int is = effective(st, chosen, &raw);
    if (UNLIKELY(is == ANSWERED && !plan->written))
        return b ? answer(self, chosen, b, raw, result)
                 : answer_plain(self, chosen, values, raw, result);
    struct target *target = is == 1 ? target_of(st, chosen, raw) : NULL;
    if (UNLIKELY(!target)) return given_up();
    if (remembers) remember_arguments(st, plan, remembers);
    if (plan->written) {
        int begun = target->with_operator | target->with_key_set || is_observed(st)
                        ? 0
                        : begin_write_of_torch(st, plan->written, values, all, &kept);
        if (begun <= 0) return begun ? DONE : handed_over(self, plan, values, result);
    }
    PyObject *answer = UNLIKELY(is_profiled(st))
                           ? invoke_recorded(self, chosen, target, values, b, raw)
                           : invoke_of_torch(self, chosen, target, values, b, raw);
    if (plan->written) end_below_autograd(st, kept);
    *result = checked(st, (PyObject *)self, plan, target, answer);
    return DONE;
}

/* A call whose arguments are in the caller's array, and taken as they are, with these keys.
 * `chosen`: the plan of their types. `given`: the key set of a redispatch, or NULL. */
static inline __attribute__((always_inline)) int run(Operator *self, Plan *plan, Plan *chosen,
                                                     PyObject *const *args, size_t nargsf,
                                                     const uint64_t *given, uint64_t raw,
                                                     bool is_known, PyObject **result) {
    struct state *st = self->state;
    if (given)
        raw = *given;
    else if (UNLIKELY(raw & FROM_TORCH))
        return run_of_torch(self, plan, chosen, args, NULL, raw, is_known ? NULL : args, result);
    int is = given ? is_answered(st, raw) : effective(st, chosen, &raw);
    if (UNLIKELY(is != 1)) return is ? answer_plain(self, chosen, args, raw, result) : given_up();
    struct target *target = target_of(st, chosen, raw);
    if (UNLIKELY(!target)) return given_up();
    if (!is_known) remember_arguments(st, plan, args);
    PyObject *answer = target->with_operator | target->with_key_set || is_observed(st)
                           ? invoke_copied(self, chosen, target, args, raw, given != NULL)
                           : invoke(target->function, args, nargsf, NULL);
    *result = checked(st, (PyObject *)self, plan, target, answer);
    return DONE;
}

/* A call by position alone, of which nothing is remembered. */
static inline int call_plain(Operator *self, Plan *plan, PyObject *const *args, size_t nargsf,
                             const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    const Shape *shape = plan->shape;
    uint64_t raw = 0;
    for (Py_ssize_t i = 0; i < shape->positional; i++) {
        const struct take *t = &shape->arguments[i].take;
        if (UNLIKELY(!fits(st, t, args[i], &raw))) return t->exact ? TRY_BOUND : given_up();
    }
    Plan *chosen = plan;
    if (UNLIKELY(plan->choices)) chosen = plan_for_types(st, self->cell, plan, args);
    if (UNLIKELY(!chosen)) return given_up();
    return run(self, plan, chosen, args, nargsf, given, raw, false, result);
}

/* A call of which all is remembered but the target, and the keys of tensors that have to be asked:
 * with PyTorch's, in a thread with guards, a redispatch, with a kernel that gets the key set. */
static __attribute__((noinline)) int call_known(Operator *self, Plan *plan, PyObject *const *args,
                                                size_t nargsf, const uint64_t *given,
                                                const struct remembered *known, PyObject **result) {
    uint64_t raw = known->raw;
    for (Py_ssize_t i = 0; known->others >> i; i++) {
        const struct take *t = &plan->shape->arguments[i].take;
        if (known->others >> i & 1 && UNLIKELY(!fits(self->state, t, args[i], &raw)))
            return given_up();
    }
    return run(self, plan, plan, args, nargsf, given, raw, true, result);
}

/* Puts the arguments of a remembered call in their places; 0 when Python has to handle the call. */
static int bind_others(struct state *st, const Plan *plan, PyObject *const *args,
                       const struct remembered *known, struct bound *b, uint64_t *raw) {
    PyObject **values = b->room + FRONT;
    b->n_made = 0;
    *raw = known->raw;
    for (Py_ssize_t i = 0; i < plan->remembered; i++) {
        values[i] = args[i];
        if (known->others >> i & 1 &&
            !put(st, &plan->shape->arguments[i], args[i], &values[i], b, raw))
            return 0;
    }
    return 1;
}

/* The keys of arguments that are in their places: while one of them was converted, another one's
 * class may have changed. 0 when Python has to handle the call. */
static int keys_again(struct state *st, const Shape *shape, const struct bound *b, uint64_t *raw) {
    *raw = 0;
    for (Py_ssize_t i = 0; i < shape->positional + shape->keyword_only; i++) {
        const struct take *t = &shape->arguments[i].take;
        PyObject *value = b->room[FRONT + i];
        if (!t->counts) continue;
        if (t->kind == TENSOR && !fits(st, t, value, raw)) return 0;
        for (Py_ssize_t k = 0; t->kind == LIST && value != Py_None && k < PyList_GET_SIZE(value);
             k++)
            if (!fits(st, t->inner, PyList_GET_ITEM(value, k), raw)) return 0;
    }
    return 1;
}

/* A call whose arguments are in their places, with these keys. `args`: those of a call that may be
 * remembered, or NULL. `given`: the key set of a redispatch, or NULL. */
static __attribute__((noinline)) int run_bound(Operator *self, Plan *plan, struct bound *b,
                                               uint64_t raw, PyObject *const *args,
                                               const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    PyObject *const *values = b->room + FRONT;
    Plan *chosen = plan;
    if (UNLIKELY(plan->choices)) chosen = plan_for_types(st, self->cell, plan, values);
    if (!chosen) return given_up();
    if (given)
        raw = *given;
    else if (UNLIKELY(raw & FROM_TORCH))
        return run_of_torch(self, plan, chosen, values, b, raw, args, result);
    int is = given ? is_answered(st, raw) : effective(st, chosen, &raw);
    if (UNLIKELY(is == ANSWERED)) return answer(self, chosen, b, raw, result);
    struct target *target = is ? target_of(st, chosen, raw) : NULL;
    if (!target) return given_up();
    if (args) remember_arguments(st, plan, args);
    PyObject *answer = invoke_there(st, (PyObject *)self, chosen, target, b, raw, given != NULL);
    *result = checked(st, (PyObject *)self, plan, target, answer);
    return DONE;
}

/* A call whose kernel needs an array of its own. */
static int call_bound(Operator *self, Plan *plan, PyObject *const *args, Py_ssize_t n,
                      PyObject *kwnames, const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    struct bound b;
    uint64_t raw = 0, converted = peek(&st->converted);
    int is_bound = bind(st, plan->shape, args, n, kwnames, &b, &raw);
    if (is_bound && UNLIKELY(peek(&st->converted) != converted))
        is_bound = keys_again(st, plan->shape, &b, &raw);
    PyObject *const *remembers = kwnames || n != plan->remembered ? NULL : args;
    int how = is_bound ? run_bound(self, plan, &b, raw, remembers, given, result) : given_up();
    let_go(&b);
    return how;
}

/* The same for a call of which it is remembered what each argument's type tells. */
static __attribute__((noinline)) int call_converted(Operator *self, Plan *plan,
                                                    PyObject *const *args, const uint64_t *given,
                                                    const struct remembered *known,
                                                    PyObject **result) {
    struct state *st = self->state;
    struct bound b;
    uint64_t raw, converted = peek(&st->converted);
    int how = DONE, is_bound = bind_others(st, plan, args, known, &b, &raw);
    bool is_same = LIKELY(peek(&st->converted) == converted);
    /* Who comes to observe after a target was remembered has come later. */
    if (LIKELY(is_bound && is_same && known->target && !given && !peek(&st->contexts))) {
        PyObject *answer = invoke(known->target->function, b.room + FRONT,
                                  (size_t)plan->remembered | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        *result = checked(st, (PyObject *)self, plan, known->target, answer);
    } else {
        if (is_bound && !is_same) is_bound = keys_again(st, plan->shape, &b, &raw);
        how = is_bound ? run_bound(self, plan, &b, raw, NULL, given, result) : given_up();
    }
    let_go(&b);
    return how;
}

/* As `call`, for a call of which nothing is remembered. It ends the use of the plan, which may be
 * out of date. */
static __attribute__((noinline)) int call_found_out(Operator *self, Plan *plan, in_use use,
                                                    PyObject *const *args, size_t nargsf,
                                                    PyObject *kwnames, const uint64_t *given,
                                                    PyObject **result) {
    struct state *st = self->state;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int how = TRY_BOUND;
    if (UNLIKELY(!is_current(st, plan, self->generation))) {
        leave(use);
        int renewed = renew(self);
        if (renewed <= 0) return renewed ? DONE : TO_PYTHON;
        plan = plan_of(st, self->cell, &use);
        if (!is_current(st, plan, self->generation)) {
            leave(use);
            return TO_PYTHON;
        }
    }
    if (!kwnames && plan->shape->is_plain && n == plan->shape->positional)
        how = call_plain(self, plan, args, nargsf, given, result);
    if (how == TRY_BOUND) how = call_bound(self, plan, args, n, kwnames, given, result);
    leave(use);
    return how;
}

/* A call or a redispatch in C; TO_PYTHON when Python has to make it. */
static inline __attribute__((always_inline)) int call(Operator *self, PyObject *const *args,
                                                      size_t nargsf, PyObject *kwnames,
                                                      const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    struct remembered found;
    in_use use;
    if (UNLIKELY(!self->cell)) return TO_PYTHON;
    Plan *plan = plan_of(st, self->cell, &use);
    if (LIKELY(is_current(st, plan, self->generation) && !kwnames) &&
        LIKELY(PyVectorcall_NARGS(nargsf) == plan->remembered) &&
        LIKELY(remembers(st, &plan->arguments, args, plan->remembered, &found))) {
        if (LIKELY(found.target && !found.others && !given && !peek(&st->contexts))) {
            *result = checked(st, (PyObject *)self, plan, found.target,
                              invoke(found.target->function, args, nargsf, NULL));
            leave(use);
            return DONE;
        }
        int how = found.converted || plan->choices
                      ? call_converted(self, plan, args, given, &found, result)
                      : call_known(self, plan, args, nargsf, given, &found, result);
        leave(use);
        return how;
    }
    return call_found_out(self, plan, use, args, nargsf, kwnames, given, result);
}

static inline __attribute__((always_inline)) PyObject *
unprobed_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyObject *result = NULL;
    Operator *op = (Operator *)self;
    if (LIKELY(call(op, args, nargsf, kwnames, NULL, &result) == DONE)) return result;
    return in_python(op->state->call, self, args, nargsf, kwnames);
}

/* redispatch(key_set, ...) */
static inline __attribute__((always_inline)) PyObject *
unprobed_redispatch(PyObject *self, PyObject *const *args, size_t n, PyObject *kwnames) {
    PyObject *result = NULL;
    Operator *op = (Operator *)self;
    struct state *st = op->state;
    if (LIKELY(n > 0 && Py_TYPE(args[0]) == (PyTypeObject *)st->key_set_type)) {
        PyObject *number = *(PyObject **)((char *)args[0] + st->raw_at);
        uint64_t raw;
        bool is_set = as_raw(number, &raw) == 0 && !(raw & st->special & ~st->python);
        if (LIKELY(is_set && call(op, args + 1, n - 1, kwnames, &raw, &result) == DONE))
            return result;
    }
    return in_python(st->redispatch, self, args, n, kwnames);
}

PyObject *operator_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    if (UNLIKELY(probes_are_wanted())) return probed(unprobed_call, self, args, nargsf, kwnames);
    return unprobed_call(self, args, nargsf, kwnames);
}

bool operator_try(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                  PyObject **result) {
    return !probes_are_wanted() &&
           call((Operator *)self, args, nargsf, kwnames, NULL, result) == DONE;
}

int operator_refuses(PyObject *self_, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    Operator *self = (Operator *)self_;
    in_use use;
    if (probes_are_wanted() || !self->cell) return 0;
    Plan *plan = plan_of(self->state, self->cell, &use);
    int found = 0;
    if (is_current(self->state, plan, self->generation))
        found = refuses(self->state, plan->shape, args, n, kwnames);
    leave(use);
    return found;
}

PyObject *operator_redispatch(PyObject *self, PyObject *const *args, Py_ssize_t n,
                              PyObject *kwnames) {
    if (UNLIKELY(probes_are_wanted()))
        return probed(unprobed_redispatch, self, args, (size_t)n, kwnames);
    return unprobed_redispatch(self, args, (size_t)n, kwnames);
}
