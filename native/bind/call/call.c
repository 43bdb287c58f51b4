/* call.c - a call, from its arguments to the kernel that runs.
 *
 *     plan       the cell's plan, if the three values that it depends on are unchanged; else Python
 *                makes a new one
 *     bind       takes each argument as it is, if that is plainly what the schema wants, or as the
 *                number that the schema wants
 *     key set    the union of the arguments' keys, with those that this thread includes, without
 *                those that it excludes
 *     target     the kernel of the highest key; Python finds it when a call first reaches that key
 *     kernel     called by vectorcall, with the caller's array when nothing has to be added to it
 *     result     returned as it is, if that is plainly what the schema says
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

/* Whether the type of a value that is no tensor has one of Python's ways to make a number of it. */
static int is_number(struct state *st, PyObject *value, size_t slot) {
    const PyNumberMethods *methods = Py_TYPE(value)->tp_as_number;
    uint64_t ignored = 0;
    return methods && *(void *const *)((const char *)methods + slot) &&
           carries(st, value, &ignored) == 0;
}

/* A value as the number that the schema wants, a new reference. NULL, perhaps with an error, when
 * Python has to refuse it or to convert it. */
static PyObject *converted(struct state *st, const PyTypeObject *wanted, PyObject *value) {
    PyObject *made = NULL;
    if (wanted == &PyLong_Type) {
        if (PyLong_Check(value) || is_number(st, value, offsetof(PyNumberMethods, nb_index)))
            made = PyNumber_Index(value);
    } else if (wanted == &PyFloat_Type) {
        if (PyLong_Check(value) || PyFloat_Check(value) ||
            is_number(st, value, offsetof(PyNumberMethods, nb_float)))
            made = PyNumber_Float(value);
    } else if (wanted == &PyBool_Type && PyLong_Check(value)) {
        int truth = PyObject_IsTrue(value);
        made = truth < 0 ? NULL : Py_NewRef(truth ? Py_True : Py_False);
    } else if (wanted == &PyComplex_Type &&
               (PyLong_CheckExact(value) || PyFloat_CheckExact(value))) {
        double real = PyFloat_AsDouble(value);
        made = real == -1 && PyErr_Occurred() ? NULL : PyComplex_FromDoubles(real, 0);
    }
    if (!made && PyErr_Occurred() &&
        (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError) ||
         PyErr_ExceptionMatches(PyExc_OverflowError)))
        PyErr_Clear(); /* Python refuses it, in words */
    forget_own(st);
    return made;
}

static int fits_slow(struct state *st, uint8_t kind, PyTypeObject *exact, int none_fits,
                     PyObject *value, uint64_t *raw) {
    if (value == Py_None) return none_fits || kind == ANYTHING;
    switch (kind) {
    case ANYTHING:
    case SOMETHING:
        return 1;
    case EXACT:
        return Py_TYPE(value) == exact || (exact == &PyUnicode_Type && PyUnicode_Check(value));
    case NUMBER:
        return PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value) ||
               is_number(st, value, offsetof(PyNumberMethods, nb_float));
    case TENSOR:
        return tensor(st, value, raw);
    default:
        return 0;
    }
}

/* Whether a value is taken as it is; not for lists. Adds its keys. */
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

/* The same for the items of a list, which takes numbers instead of those that do not fit. No other
 * code may have the list: asking an item for its keys runs code of users, and other threads run at
 * the same time. */
static int items_fit(struct state *st, const struct take *t, PyObject *list, uint64_t *raw) {
    PyObject **items = ((PyListObject *)list)->ob_item;
    uint64_t carried = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        if (fits_slow(st, t->item, t->exact, t->item_none_fits, items[i], &carried)) continue;
        if (t->item != EXACT || PyErr_Occurred()) return 0;
        PyObject *number = converted(st, t->exact, items[i]);
        if (!number) return 0;
        Py_SETREF(items[i], number);
    }
    *raw |= carried & t->counts;
    return 1;
}

/* A new list for the kernel, made from the caller's list or tuple, or from one number; NULL when
 * Python has to handle it. */
static PyObject *list_of(struct state *st, const struct take *t, PyObject *value, uint64_t *raw) {
    PyObject *made = NULL;
    if (PyList_CheckExact(value)) {
        made = PyList_GetSlice(value, 0, PY_SSIZE_T_MAX);
    } else if (PyList_Check(value) || PyTuple_Check(value)) {
        made = PySequence_List(value);
    } else if (t->size && t->item == EXACT) {
        PyObject *number =
            Py_TYPE(value) == t->exact ? Py_NewRef(value) : converted(st, t->exact, value);
        made = number ? PyList_New(t->size) : NULL;
        for (Py_ssize_t i = 0; made && i < t->size; i++)
            PyList_SET_ITEM(made, i, Py_NewRef(number));
        Py_XDECREF(number);
    }
    if (made && items_fit(st, t, made, raw)) return made;
    Py_XDECREF(made);
    return NULL;
}

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
    if (a->take.kind == LIST && value != Py_None) {
        value = list_of(st, &a->take, value, raw);
        if (!value) return 0;
        b->made[b->n_made++] = value;
    } else if (a->take.kind == LIST ? !a->take.none_fits : !fits(st, &a->take, value, raw)) {
        if (a->take.kind != EXACT || value == Py_None || PyErr_Occurred()) return 0;
        value = converted(st, a->take.exact, value);
        if (!value) return 0;
        b->made[b->n_made++] = value;
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

static inline unsigned bits(uint64_t word) {
    return word ? 64 - (unsigned)__builtin_clzll(word) : 0;
}

/* (mdispatch/keys/numbers.py: highest_index, backend_index) */
static inline unsigned index_of(const struct state *st, uint64_t raw) {
    if (!(raw & 0xffff)) raw &= ~st->per_backend;
    unsigned functionality = bits(raw >> BACKENDS);
    if (functionality && st->per_backend >> (BACKENDS - 1 + functionality) & 1)
        return st->offset[functionality] + bits((raw & 0xffff) >> 1);
    return st->offset[functionality];
}

enum { ANSWERED = 2 }; /* modes and types are asked on the way of a call */

static inline int is_answered(const struct state *st, uint64_t raw) {
    return UNLIKELY(raw & st->python) ? ANSWERED : 1;
}

/* The key set of a call; 0 when Python has to make the call, or ANSWERED. */
static inline int effective(struct state *st, const Plan *plan, uint64_t *raw) {
    uint64_t included = st->included, kept = st->kept;
    if (UNLIKELY(peek(&st->guards))) thread_sets(st, &included, &kept);
    uint64_t all = (*raw | included) & kept;
    uint64_t mask = plan->mask;
    if (UNLIKELY(plan->masks != NULL)) mask = plan->masks[bits((all & 0xffff) >> 1)];
    *raw = all & mask;
    if (UNLIKELY(all & st->special))
        return all & st->special & ~st->python ? 0 : is_answered(st, *raw);
    return 1;
}

static inline struct target *target_of(struct state *st, Plan *plan, uint64_t raw) {
    unsigned index = index_of(st, raw);
    int at = atomic_load_explicit(&plan->at[index], memory_order_acquire);
    if (LIKELY(at != 0 && at != NO_TARGET)) return &plan->targets[at - 1];
    return target_find(st, plan, index);
}

/* --- kernels ---------------------------------------------------------------------------------- */

static inline PyObject *invoke(PyObject *function, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames) {
    if (PyFunction_Check(function))
        return ((PyFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
    if (PyCFunction_CheckExact(function) && ((PyCFunctionObject *)function)->vectorcall)
        return ((PyCFunctionObject *)function)->vectorcall(function, args, nargsf, kwnames);
    return PyObject_Vectorcall(function, args, nargsf, kwnames);
}

/* A new reference to the key set, for a kernel that takes it. */
static PyObject *key_set_for(struct state *st, struct target *target, uint64_t raw) {
    if (keeps_key_set(target, raw)) return Py_NewRef(target->key_set);
    PyObject *made = NULL;
    PyObject *number = PyLong_FromUnsignedLongLong(raw);
    if (number) made = PyObject_CallFunctionObjArgs(st->from_raw, number, NULL);
    Py_XDECREF(number);
    if (made) keep_key_set(target, made, raw);
    return made;
}

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

static int result_fits(struct state *st, const struct take *t, PyObject *result) {
    uint64_t ignored = 0;
    if (t->kind == TENSOR) return is_tensor(st, result) || (result == Py_None && t->none_fits);
    if (t->kind != LIST) return fits(st, t, result, &ignored);
    if (result == Py_None) return t->none_fits;
    PyObject *copy = PyList_CheckExact(result) ? PyList_GetSlice(result, 0, PY_SSIZE_T_MAX) : NULL;
    int found = copy != NULL;
    /* As they are: the caller gets the kernel's own list. Python converts. */
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(copy); i++)
        found =
            fits_slow(st, t->item, t->exact, t->item_none_fits, PyList_GET_ITEM(copy, i), &ignored);
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

/* Whether a result is plainly what the schema says; 0, perhaps with an error, when it is not. */
static inline int is_plain(struct state *st, const Shape *shape, PyObject *result) {
    return LIKELY(shape->returns == 1) ? LIKELY(result_fits(st, shape->results, result))
                                       : results_fit(st, shape, result);
}

/* A kernel's result, which does not fit as it is, as the number that the schema wants: a new
 * reference. NULL, perhaps with an error, when it is for Python. */
static PyObject *result_converted(struct state *st, const Shape *shape, PyObject *result) {
    const struct take *t = shape->results;
    if (shape->returns != 1 || t->kind != EXACT || result == Py_None) return NULL;
    return converted(st, t->exact, result);
}

/* What the caller gets for a kernel's result. Takes over the reference to the result. */
static inline PyObject *checked(struct state *st, PyObject *self, const Plan *plan,
                                const struct target *target, PyObject *result) {
    const Shape *shape = plan->shape;
    if (UNLIKELY(!result)) return NULL;
    if (LIKELY(is_plain(st, shape, result))) return result;
    PyObject *answer = PyErr_Occurred() ? NULL : result_converted(st, shape, result);
    if (!answer && !PyErr_Occurred())
        answer = PyObject_CallFunctionObjArgs(st->check, self, plan->signature, result,
                                              target->kernel, NULL);
    Py_DECREF(result);
    return answer;
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
    PyObject *answer = NULL;
    if (is_plain(st, plan->shape, result))
        answer = Py_NewRef(result);
    else if (!PyErr_Occurred())
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

/* A call whose kernel gets the caller's array. `given`: the key set of a redispatch, or NULL. */
static inline int call_plain(Operator *self, Plan *plan, PyObject *const *args, size_t nargsf,
                             const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    const Shape *shape = plan->shape;
    uint64_t raw = 0;
    for (Py_ssize_t i = 0; i < shape->positional; i++) {
        const struct take *t = &shape->arguments[i].take;
        if (UNLIKELY(!fits(st, t, args[i], &raw)))
            return t->kind == EXACT && !PyErr_Occurred() ? TRY_BOUND : given_up();
    }
    if (given) raw = *given;
    int is = given ? is_answered(st, raw) : effective(st, plan, &raw);
    if (UNLIKELY(is != 1)) return is ? answer_plain(self, plan, args, raw, result) : given_up();
    struct target *target = target_of(st, plan, raw);
    if (UNLIKELY(!target)) return given_up();
    if (UNLIKELY(target->with_operator | target->with_key_set)) return TRY_BOUND;
    *result =
        checked(st, (PyObject *)self, plan, target, invoke(target->function, args, nargsf, NULL));
    return DONE;
}

/* A call whose kernel needs an array of its own. */
static int call_bound(Operator *self, Plan *plan, PyObject *const *args, Py_ssize_t n,
                      PyObject *kwnames, const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    struct target *target = NULL;
    struct bound b;
    uint64_t raw = 0;
    if (bind(st, plan->shape, args, n, kwnames, &b, &raw)) {
        if (given) raw = *given;
        int is = given ? is_answered(st, raw) : effective(st, plan, &raw);
        if (UNLIKELY(is == ANSWERED)) {
            int how = answer(self, plan, &b, raw, result);
            let_go(&b);
            return how;
        }
        if (!is) goto done;
        target = target_of(st, plan, raw);
    }
    if (target)
        *result = checked(st, (PyObject *)self, plan, target,
                          invoke_bound(st, (PyObject *)self, plan->shape, target, &b, raw));
done:
    let_go(&b);
    return target ? DONE : given_up();
}

/* A call or a redispatch in C; TO_PYTHON when Python has to make it. */
static inline int call(Operator *self, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                       const uint64_t *given, PyObject **result) {
    struct state *st = self->state;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int how = TRY_BOUND;
    in_use use;
    if (UNLIKELY(!self->cell)) return TO_PYTHON;
    Plan *plan = plan_of(st, self->cell, &use);
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
    if (LIKELY(!kwnames && plan->shape->is_plain && n == plan->shape->positional))
        how = call_plain(self, plan, args, nargsf, given, result);
    if (UNLIKELY(how == TRY_BOUND)) how = call_bound(self, plan, args, n, kwnames, given, result);
    leave(use);
    return how;
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
