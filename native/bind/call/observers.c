/* observers.c - those who are told of each kernel that runs, told from C.
 * mdispatch/dispatch/context/observers.py is the specification, and tells of the calls that Python
 * makes. It also has the ways that are seldom gone: an observer that raises, a call that ends with
 * an error.
 *
 * Who is told is a tuple of ObserverHandles in the state. Python replaces it when one comes or
 * goes. A call takes it just before its kernel runs. How deep a thread is in observed calls, and
 * whether it runs an observer, lies in its Stack, where Python finds it, too.
 *
 * Locking: the tuple is replaced, and a reference to it taken, under `lock`. The numbers of the
 * calls are atomic. A call is seen by its own thread only, until an observer is told of it.
 */
#include "state.h"

#include <time.h>

/* The slots of an ObservedCall and of an ObserverHandle, in the order of the names below. */
enum slot_of_call {
    OF_OPERATOR,
    OF_HOW,
    OF_KEY,
    OF_KEY_SET,
    OF_KERNEL,
    OF_PROVIDER,
    OF_REASON,
    OF_NUMBER,
    OF_DEPTH,
    OF_ARGUMENTS,
    OF_KEYWORDS,
    OF_DURATION,
    OF_ERROR
};
enum slot_of_handle { BEFORE, AFTER, WITH_ARGUMENTS, IS_FAILING };

static int slots_at(PyObject *type, const char *const *names, Py_ssize_t *at) {
    for (; *names; names++, at++) {
        if ((*at = slot_at(type, *names)) < 0) return -1;
    }
    return 0;
}

/* observing(ObservedCall, ObserverHandle, RUNTIME_KEYS, said, failed, succeeded, ended): what this
 * file needs of Python. The last four are functions, see dispatch/call_c.py and observers.py. */
PyObject *observers_start(PyObject *m, PyObject *args) {
    static const char *const of_call[] = {
        "operator",        "how",   "key",       "key_set",  "kernel",      "provider", "reason",
        "sequence_number", "depth", "arguments", "keywords", "duration_ns", "error",    NULL};
    static const char *const of_handle[] = {"before", "after", "with_arguments", "is_failing",
                                            NULL};
    struct state *st = PyModule_GetState(m);
    PyObject *o[7];
    if (!PyArg_ParseTuple(args, "O!O!O!OOOO", &PyType_Type, &o[0], &PyType_Type, &o[1],
                          &PyTuple_Type, &o[2], &o[3], &o[4], &o[5], &o[6]) ||
        slots_at(o[0], of_call, st->call_at) || slots_at(o[1], of_handle, st->handle_at))
        return NULL;
    PyObject **places[7] = {&st->observed_type,   &st->handle_type,        &st->runtime_keys,
                            &st->said,            &st->observer_failed,    &st->observer_succeeded,
                            &st->observed_ended};
    for (int i = 0; i < 7; i++) Py_XSETREF(*places[i], Py_NewRef(o[i]));
    Py_RETURN_NONE;
}

/* observers(handles): those who are told from now on. */
PyObject *observers_set(PyObject *m, PyObject *handles) {
    struct state *st = PyModule_GetState(m);
    if (!PyTuple_CheckExact(handles)) return PyErr_Format(PyExc_TypeError, "not a tuple");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(handles); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(handles, i), (PyTypeObject *)st->handle_type))
            return PyErr_Format(PyExc_TypeError, "not an observer");
    }
    PyObject *now = PyTuple_GET_SIZE(handles) ? Py_NewRef(handles) : NULL;
    lock(st);
    PyObject *before = atomic_exchange(&st->observers, now);
    if (now && !before) count_contexts(st, 1);
    if (before && !now) count_contexts(st, UINT64_MAX); /* one less */
    unlock(st);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static uint64_t next_number(struct state *st) {
    return atomic_fetch_add(&st->observed, 1) + 1;
}

/* number(): that of an observed call. They count the calls of this interpreter. */
PyObject *observers_number(PyObject *m, PyObject *ignored) {
    return PyLong_FromUnsignedLongLong(next_number(PyModule_GetState(m)));
}

/* The error that is set, a new reference. */
static PyObject *raised(void) {
#if PY_VERSION_HEX >= 0x030c0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback) PyException_SetTraceback(error, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return error;
#endif
}

static int64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- one call --------------------------------------------------------------------------------- */

static PyObject **place_in(PyObject *object, Py_ssize_t at) {
    return (PyObject **)((char *)object + at);
}

/* Takes over the reference to the value; -1 when there is none. */
static int put(const struct watch *w, enum slot_of_call slot, PyObject *value) {
    if (!value) return -1;
    Py_XSETREF(*place_in(w->call, w->st->call_at[slot]), value);
    return 0;
}

/* What a target's calls have in common: the operator's name, the kernel's label, the reason, and the
 * provider.
 * Borrowed; NULL with an error. */
static PyObject *said_of(struct state *st, PyObject *operator, const Plan *plan,
                         struct target *target, uint64_t raw) {
    PyObject *said = atomic_load_explicit(&target->said, memory_order_acquire), *none = NULL;
    if (said) return said;
    said = PyObject_CallFunction(st->said, "OOI", operator, plan->table, index_of(st, raw));
    if (!said) return NULL;
    if (!PyTuple_CheckExact(said) || PyTuple_GET_SIZE(said) != 4) {
        Py_DECREF(said);
        return PyErr_Format(PyExc_TypeError, "not four texts");
    }
    if (atomic_compare_exchange_strong(&target->said, &none, said)) return said;
    Py_DECREF(said);
    return none; /* another thread was faster */
}

static bool is_asked_for_arguments(const struct watch *w) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(w->observers); i++) {
        PyObject *handle = PyTuple_GET_ITEM(w->observers, i);
        if (*place_in(handle, w->st->handle_at[WITH_ARGUMENTS]) == Py_True) return true;
    }
    return false;
}

/* Makes the ObservedCall; -1 with an error. */
static int make_call(struct watch *w, PyObject *operator, const Plan *plan, struct target *target,
                     PyObject *const *values, uint64_t raw, bool is_redispatch) {
    struct state *st = w->st;
    PyTypeObject *type = (PyTypeObject *)st->observed_type;
    PyObject *said = said_of(st, operator, plan, target, raw);
    if (!said || !(w->call = type->tp_alloc(type, 0))) return -1;
    bool with_arguments = is_asked_for_arguments(w);
    const Shape *shape = plan->shape;
    PyObject *args = with_arguments ? shape_positional(shape, values) : Py_NewRef(Py_None);
    PyObject *keywords = with_arguments ? shape_keywords(shape, values) : Py_NewRef(Py_None);
    int failed = put(w, OF_OPERATOR, Py_NewRef(PyTuple_GET_ITEM(said, 0))) |
                 put(w, OF_HOW, Py_NewRef(is_redispatch ? st->by_redispatch : st->by_call)) |
                 put(w, OF_KEY, PySequence_GetItem(st->runtime_keys, index_of(st, raw))) |
                 put(w, OF_KEY_SET, key_set_for(st, target, raw)) |
                 put(w, OF_KERNEL, Py_NewRef(PyTuple_GET_ITEM(said, 1))) |
                 put(w, OF_PROVIDER, Py_NewRef(PyTuple_GET_ITEM(said, 3))) |
                 put(w, OF_REASON, Py_NewRef(PyTuple_GET_ITEM(said, 2))) |
                 put(w, OF_NUMBER, PyLong_FromUnsignedLongLong(next_number(st))) |
                 put(w, OF_DEPTH, PyLong_FromSsize_t(w->stack->depth)) |
                 put(w, OF_ARGUMENTS, args) | put(w, OF_KEYWORDS, keywords) |
                 put(w, OF_DURATION, PyLong_FromLong(0)) | put(w, OF_ERROR, Py_NewRef(Py_None));
    return failed ? -1 : 0;
}

/* Whether the observer's last run has failed. Another thread may be writing that: so the value is
 * compared, and not used. */
static bool is_failing(const struct watch *w, PyObject *handle) {
    return object_at(place_in(handle, w->st->handle_at[IS_FAILING])) == Py_True;
}

/* Tells an observer; false with an error that ends the call. */
static bool tell(const struct watch *w, Py_ssize_t i, enum slot_of_handle which) {
    struct state *st = w->st;
    PyObject *handle = PyTuple_GET_ITEM(w->observers, i);
    PyObject *function = Py_XNewRef(*place_in(handle, st->handle_at[which]));
    PyObject *answer = NULL, *is_after = which == AFTER ? Py_True : Py_False;
    if (!function || function == Py_None) {
        Py_XDECREF(function);
        return true;
    }
    w->stack->is_observer = 1;
    answer = PyObject_CallOneArg(function, w->call);
    if (!answer) {
        PyObject *error = raised();
        answer = PyObject_CallFunctionObjArgs(st->observer_failed, handle, is_after, error, NULL);
        Py_DECREF(error);
    } else if (is_failing(w, handle)) {
        Py_DECREF(answer);
        answer = PyObject_CallFunctionObjArgs(st->observer_succeeded, handle, is_after, NULL);
    }
    w->stack->is_observer = 0;
    Py_DECREF(function);
    Py_XDECREF(answer);
    return answer != NULL;
}

bool observers_begin(struct state *st, PyObject *operator, const Plan *plan, struct target *target,
                     PyObject *const *values, uint64_t raw, bool is_redispatch, struct watch *w) {
    *w = (struct watch){.st = st};
    lock(st);
    PyObject *observers = Py_XNewRef(atomic_load(&st->observers));
    unlock(st);
    if (!observers) return true;
    Stack *stack = stack_own(st);
    if (!stack || stack->is_observer) {
        Py_DECREF(observers);
        return stack != NULL;
    }
    w->observers = observers;
    w->stack = (Stack *)Py_NewRef((PyObject *)stack);
    bool is_well = make_call(w, operator, plan, target, values, raw, is_redispatch) == 0;
    while (is_well && w->told < PyTuple_GET_SIZE(observers)) is_well = tell(w, w->told++, BEFORE);
    if (is_well) {
        stack->depth++;
        w->began = clock_now();
        w->is_running = true;
    }
    return is_well;
}

/* Has Python tell the rest, those who have heard of the beginning, of the end with an error, and
 * raise it. Takes over the reference to the error. */
static void end_with(const struct watch *w, PyObject *error) {
    PyObject *told = PyTuple_GetSlice(w->observers, 0, w->told);
    if (told) (void)PyObject_CallFunctionObjArgs(w->st->observed_ended, told, w->call, error, NULL);
    Py_XDECREF(told);
    Py_DECREF(error);
}

PyObject *observers_end(struct watch *w, PyObject *result) {
    if (!w->observers) return result;
    PyObject *error = NULL;
    if (w->is_running) {
        int64_t duration = clock_now() - w->began;
        w->stack->depth--;
        if (!result) error = raised();
        if (put(w, OF_DURATION, PyLong_FromLongLong(duration))) PyErr_Clear();
    } else if (w->call) {
        error = raised();
    }
    if (error) (void)put(w, OF_ERROR, Py_NewRef(error));
    while (!error && w->told) {
        if (!tell(w, --w->told, AFTER)) error = raised();
    }
    if (error) {
        Py_CLEAR(result);
        end_with(w, error);
    }
    Py_DECREF(w->observers);
    Py_XDECREF(w->call);
    Py_DECREF((PyObject *)w->stack);
    return result;
}
