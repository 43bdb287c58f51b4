/* visit.c - a call in another interpreter of this process, on the thread that calls.
 *
 * The thread lets go of its own interpreter, attaches a thread state of the owner, calls the function
 * there, and comes back. It keeps that state for its next visit: making one, and the memory for its
 * first frame, takes 9 us. A thread that has a state of the owner in the calls it is in uses that one,
 * and so does the main thread in the main interpreter; so threading.local is what it was there.
 *
 *   owner   an interpreter that serves: its functions, how many visits are inside, its seats
 *   seat    one thread at one owner: the thread state that it keeps there
 *   visit   one call under way, on the stack of its thread; `top` is the innermost one
 *
 * Objects: `served`, `describe`, `opened` and `lent` belong to the owner. Only a thread that is attached to it,
 * and whose visit is counted, uses them; the owner itself drops them once nobody is inside.
 *
 * The end of an owner: CPython refuses to end an interpreter in which a thread state is left. So it
 * calls visit_close() before (atexit), which sets CLOSED in `inside`, waits until nobody is inside,
 * and ends the states of its seats. A visitor counts itself first and looks for CLOSED then: one
 * that came before CLOSED is waited for, one that comes after it goes away again, untouched.
 * No wake is lost: the closer looks at `inside` under `lock`; who leaves takes its count back first
 * and then wakes under `lock`, so the closer has seen the new count or sleeps already.
 *
 * Locking: `lock` guards the list of owners, the lists of seats, and `ts` and `orphan` of a seat for
 * those who are not its thread. It is taken with a GIL or without; nobody waits for a GIL, or runs
 * Python, while he has it. No GIL is held while another one is waited for, so visits close no circle.
 *
 * A thread ends: its seats become orphans, whose states the next visitor of the owner, or its end,
 * clears. The ending thread itself could not: it has no way to attach that is safe then. CPython may
 * end a thread in the midst of a visit, when the process ends (3.13): its seats know how many, and it
 * takes them back under `lock`.
 */
#include "visit.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "../../mdispatch.h"
#include "object.h"

static const int64_t CLOSED = INT64_C(1) << 62;

/* Why a visit came to nothing: what ext_visit() tells `failed`. across/routing.py knows them. */
enum { RAISED = 1, GONE, NO_KERNEL, LATE, UNFIT, UNFIT_RESULT, DEEP, KEPT };

struct seat;

struct owner {
    struct owner *next; /* under lock */
    int64_t id;
    PyInterpreterState *interp;
    PyObject *served;       /* dict: ticket -> function */
    PyObject *describe;     /* makes values of an exception */
    PyObject *opened;       /* what the kernel gets for a handle, or for a list with some */
    PyTypeObject *lent;     /* the owner's type of lent memory */
    struct seat *seats;     /* under lock */
    int refs;               /* under lock: the open owner, and its seats */
    _Atomic int orphans;    /* raised under lock; read without it */
    _Atomic int64_t inside; /* visits, and CLOSED */
};

struct seat {
    struct seat *next;     /* of the thread; only the thread uses it */
    struct seat *at_owner; /* under lock */
    struct owner *owner;   /* set once */
    PyThreadState *ts;     /* the thread's, and under lock the closer's; NULL until it is made */
    PyThreadState *own;    /* a state that the thread has there for ever; not ours */
    int orphan;            /* under lock */
    int inside;            /* the thread's: visits of it that `inside` of the owner counts */
};

struct visit {
    struct visit *outer;
    struct owner *owner;
    PyThreadState *home, *there;
    int64_t deadline;
    int depth;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left_one = PTHREAD_COND_INITIALIZER;
static struct owner *owners; /* under lock */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_ends;
static _Thread_local struct seat *my_seats;
static _Thread_local struct visit *top;

/* --- owners and seats ------------------------------------------------------------------------- */

/* With the lock. */
static void owner_let_go(struct owner *o) {
    if (--o->refs) return;
    for (struct owner **at = &owners; *at; at = &(*at)->next) {
        if (*at == o) {
            *at = o->next;
            break;
        }
    }
    free(o);
}

/* With the lock: frees a seat without a thread state. */
static void seat_free(struct seat *s) {
    for (struct seat **at = &s->owner->seats; *at; at = &(*at)->at_owner) {
        if (*at == s) {
            *at = s->at_owner;
            break;
        }
    }
    owner_let_go(s->owner);
    free(s);
}

/* The thread has ended. */
static void leave_seats(void *seats) {
    pthread_mutex_lock(&lock);
    for (struct seat *s = seats, *next; s; s = next) {
        next = s->next;
        if (s->inside) { /* CPython has ended the thread there, as it does when the process ends */
            atomic_fetch_sub(&s->owner->inside, s->inside);
            pthread_cond_broadcast(&left_one);
        }
        if (s->ts) { /* whoever clears it frees the seat */
            s->orphan = 1;
            atomic_store(&s->owner->orphans, 1);
        } else {
            seat_free(s);
        }
    }
    pthread_mutex_unlock(&lock);
    my_seats = NULL;
}

/* With the lock: this thread's seats at owners that have ended. */
static void give_up_seats(void) {
    for (struct seat **at = &my_seats; *at;) {
        struct seat *s = *at;
        if (s->owner->interp || s->ts) {
            at = &s->next;
        } else {
            *at = s->next;
            seat_free(s);
        }
    }
    pthread_setspecific(thread_ends, my_seats);
}

/* In the child of a fork: the other threads, and the interpreters, are not here. Their memory is
 * left alone, for they may have been changing it. */
static void forked(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&left_one, NULL);
    owners = NULL;
    my_seats = NULL;
    pthread_setspecific(thread_ends, NULL);
    parcel_forked();
    object_forked();
}

static int may_visit(void);
static void drop_at(int64_t id, uint64_t number);

static void set_up(void) {
    pthread_key_create(&thread_ends, leave_seats);
    pthread_atfork(NULL, NULL, forked);
    object_visits(may_visit, drop_at);
}

/* With the lock: the open owner of this number. */
static struct owner *owner_of(int64_t id) {
    for (struct owner *o = owners; o; o = o->next) {
        if (o->id == id && o->interp) return o;
    }
    return NULL;
}

/* This thread's seat; NULL without an exception where the owner is gone, or with one. */
static struct seat *seat_at(int64_t id) {
    for (struct seat *s = my_seats; s; s = s->next) {
        if (s->owner->id == id) return s;
    }
    struct seat *made = calloc(1, sizeof *made);
    if (!made) return (struct seat *)PyErr_NoMemory();
    pthread_mutex_lock(&lock);
    give_up_seats();
    struct owner *o = owner_of(id);
    if (o) {
        made->owner = o;
        made->at_owner = o->seats;
        o->seats = made;
        o->refs++;
    }
    pthread_mutex_unlock(&lock);
    if (!o) {
        free(made);
        return NULL;
    }
    made->next = my_seats;
    my_seats = made;
    pthread_setspecific(thread_ends, my_seats);
    return made;
}

/* Whether the interpreter that this thread is attached to still has a state. At the end of the process
 * CPython ends the interpreters that the program has left: it deletes the state at the head of the
 * list, whosesoever that is, and attaches by a new one, which may lie where that lay. */
static int is_there(const PyThreadState *state) {
    PyThreadState *mine = PyThreadState_Get();
    PyThreadState *ts = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(mine));
    while (ts && ts != state) ts = PyThreadState_Next(ts);
    return ts && ts != mine;
}

/* Clears and frees these states, whose threads have ended or are not inside. The thread is attached
 * to their interpreter. */
static void end_states(PyThreadState **states, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_there(states[i])) continue;
        PyThreadState_Clear(states[i]);
        PyThreadState_Delete(states[i]);
    }
}

/* Takes up to `most` states of seats: of orphans, or of all. Returns how many. */
static int take_states(struct owner *o, int all, PyThreadState **states, int most) {
    int count = 0;
    pthread_mutex_lock(&lock);
    if (!all) atomic_store(&o->orphans, 0);
    for (struct seat **at = &o->seats; *at;) {
        struct seat *s = *at;
        if (!s->ts || !(all || s->orphan)) {
            at = &s->at_owner;
            continue;
        }
        if (count == most) {
            atomic_store(&o->orphans, 1);
            break;
        }
        states[count++] = s->ts;
        s->ts = NULL;
        if (s->orphan) { /* nobody else knows it */
            *at = s->at_owner;
            free(s);
            owner_let_go(o); /* not the last: the owner is open, or its closer holds it */
        } else {
            at = &s->at_owner;
        }
    }
    pthread_mutex_unlock(&lock);
    return count;
}

/* --- the thread state of a visit --------------------------------------------------------------
 *
 * Whether it is kept for the next visit. Not without a GIL: only its own thread may clear it there,
 * and that thread may end first. Before 3.13 not in sub-interpreters: to run code in one, or to end
 * it, CPython takes the state at the head of its list, whosesoever that is. */
#ifdef Py_GIL_DISABLED
#define IS_KEPT(interp) 0
#elif PY_VERSION_HEX >= 0x030D0000
#define IS_KEPT(interp) 1
#else
#define IS_KEPT(interp) ((interp) == PyInterpreterState_Main())
#endif

/* A state that this thread has in the owner by its calls under way. */
static PyThreadState *state_under_way(const struct owner *o, PyThreadState *home) {
    if (PyThreadState_GetInterpreter(home) == o->interp) return home;
    for (struct visit *v = top; v; v = v->outer) {
        if (v->owner == o) return v->there;
        if (PyThreadState_GetInterpreter(v->home) == o->interp) return v->home;
    }
    return NULL;
}

/* Another state that this thread has in the interpreter to which it is attached by `mine`. The list
 * grows at its head only, and what leaves it does so with the GIL that we have. */
static PyThreadState *other_state(PyThreadState *mine) {
    PyThreadState *ts = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(mine));
    for (; ts; ts = PyThreadState_Next(ts)) {
        if (ts != mine && ts->thread_id == mine->thread_id) return ts;
    }
    return NULL;
}

/* Attaches this thread to the owner. Returns the state, NULL for want of memory. `*made` is one
 * that is to be ended after the visit. */
static PyThreadState *attach(struct seat *s, PyThreadState *home, PyThreadState **made) {
    struct owner *o = s->owner;
    *made = NULL;
    PyThreadState *ts = state_under_way(o, home);
    if (!ts) ts = s->own;
    if (!ts) ts = s->ts;
    if (ts) {
        if (ts != home) PyThreadState_Swap(ts);
        return ts;
    }
    ts = PyThreadState_New(o->interp);
    if (!ts) return NULL;
    PyThreadState_Swap(ts);
    if (o->interp == PyInterpreterState_Main() && getpid() == gettid()) {
        PyThreadState *own = other_state(ts);
        if (own) { /* that of the program itself: it lives as long as the interpreter */
            PyThreadState_Clear(ts);
            PyThreadState_Swap(own);
            PyThreadState_Delete(ts);
            return s->own = own;
        }
    }
    if (IS_KEPT(o->interp))
        s->ts = ts; /* nobody else looks at it while this visit is inside */
    else
        *made = ts;
    return ts;
}

static void detach(PyThreadState *home, PyThreadState *there, PyThreadState *made) {
    if (there == home) return;
    if (made) PyThreadState_Clear(made);
    PyThreadState_Swap(home);
    if (made) PyThreadState_Delete(made);
}

static int enter(struct seat *s) {
    s->inside++;
    return !(atomic_fetch_add(&s->owner->inside, 1) & CLOSED);
}

static void leave(struct seat *s) {
    s->inside--;
    if (!(atomic_fetch_sub(&s->owner->inside, 1) & CLOSED)) return;
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&left_one);
    pthread_mutex_unlock(&lock);
}

/* --- in the owner ----------------------------------------------------------------------------- */

/* The exception that is set, as values: what `describe` makes of it, or nothing. */
static void describe(struct owner *o, struct parcel *back, struct parcel_value *out,
                     const struct parcel *given) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback) PyException_SetTraceback(value, traceback);
    PyObject *told = value ? PyObject_CallOneArg(o->describe, value) : NULL;
    if (!told || parcel_put(back, told, out, 0, given)) out->kind = VISIT_NONE;
    PyErr_Clear();
    Py_XDECREF(told);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

/* An argument, in the owner. */
static PyObject *take_given(struct owner *o, const struct parcel *given,
                            const struct parcel_value *value) {
    PyObject *taken = parcel_take(o->lent, value);
    if (!taken || !given->objects) return taken;
    if (value->kind != VISIT_OBJECT && value->kind != VISIT_LIST) return taken;
    PyObject *opened = PyObject_CallOneArg(o->opened, taken);
    Py_DECREF(taken);
    return opened;
}

/* Calls the function of the ticket. Returns 0 or why not. */
static int answer(struct owner *o, long long ticket, struct parcel *given, int positional,
                  const struct parcel_value *names, const struct parcel_value *values,
                  struct parcel *back, struct parcel_value *out) {
    int named = names->kind == VISIT_LIST ? (int)names->as.list.size : 0,
        count = positional + named;
    PyObject *small[10], **stack = small, *kwnames = NULL, *result = NULL;
    PyObject *number = PyLong_FromLongLong(ticket);
    PyObject *function = number ? PyDict_GetItemWithError(o->served, number) : NULL;
    Py_XDECREF(number);
    if (!function && !PyErr_Occurred()) return NO_KERNEL;
    Py_XINCREF(function);
    if (count > 9) stack = parcel_alloc(given, (size_t)(count + 1) * sizeof *stack);
    int taken = 0, why = 0;
    for (; function && stack && taken < count; taken++) {
        stack[taken + 1] = take_given(o, given, &values[taken]);
        if (!stack[taken + 1]) break;
    }
    if (function && stack && taken == count) {
        if (named) {
            kwnames = PyTuple_New(named);
            for (int i = 0; kwnames && i < named; i++) {
                PyObject *name = parcel_take(o->lent, &names->as.list.items[i]);
                if (name) PyUnicode_InternInPlace(&name);
                PyTuple_SET_ITEM(kwnames, i, name);
                if (!name) Py_CLEAR(kwnames);
            }
        }
        if (kwnames || !named)
            result = PyObject_Vectorcall(
                function, stack + 1, (size_t)positional | PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames);
    }
    if (result) {
        why = parcel_put(back, result, out, 0, given);
        if (why == -1) why = UNFIT_RESULT;
    }
    if (!result || why == -2) {
        why = RAISED;
        describe(o, back, out, given);
    }
    while (taken > 0) Py_DECREF(stack[taken--]);
    Py_XDECREF(kwnames);
    Py_XDECREF(result);
    Py_XDECREF(function);
    return why;
}

static void end_orphans(struct owner *o) {
    PyThreadState *states[16];
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    while (atomic_load(&o->orphans)) end_states(states, take_states(o, 0, states, 16));
    PyErr_Restore(type, value, traceback);
}

/* --- dropping an object ------------------------------------------------------------------------- */

/* Whether this interpreter may be visited; one that is ending may not, and visits nobody. */
static int may_visit(void) {
    int64_t id = PyInterpreterState_GetID(PyInterpreterState_Get());
    pthread_mutex_lock(&lock);
    struct owner *o = owner_of(id);
    int may = o && !(atomic_load(&o->inside) & CLOSED);
    pthread_mutex_unlock(&lock);
    return may;
}

static void drop(struct owner *o, uint64_t number) {
    PyObject *key = PyLong_FromLong(VISIT_DROP), *value = PyLong_FromUnsignedLongLong(number);
    PyObject *function = key && value ? PyDict_GetItemWithError(o->served, key) : NULL;
    Py_XINCREF(function);
    PyObject *result = function ? PyObject_CallOneArg(function, value) : NULL;
    if (PyErr_Occurred()) PyErr_WriteUnraisable(function);
    Py_XDECREF(result);
    Py_XDECREF(function);
    Py_XDECREF(value);
    Py_XDECREF(key);
}

/* Has an interpreter drop an object, if it may be visited. What that raises is only shown; an exception
 * that is set stays. Whoever calls is attached, and may_visit(). */
static void drop_at(int64_t id, uint64_t number) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct seat *s = seat_at(id);
    if (s && enter(s)) {
        struct owner *o = s->owner;
        PyThreadState *home = PyThreadState_Get(), *made;
        struct visit v = {top, o, home, NULL, 0, top ? top->depth + 1 : 1};
        v.there = attach(s, home, &made);
        if (v.there) {
            PyObject *its[3];
            top = &v;
            PyErr_Fetch(&its[0], &its[1], &its[2]); /* of a visit further out */
            drop(o, number);
            PyErr_Restore(its[0], its[1], its[2]);
            top = v.outer;
            detach(home, v.there, made);
        }
    }
    if (s) leave(s);
    PyErr_Restore(type, value, traceback); /* also clears what seat_at() has set */
}

/* --- the functions of the module -------------------------------------------------------------- */

/* The numbers of the interpreters on the way here, the outermost first. */
static PyObject *way_here(int64_t to) {
    PyObject *list = PyList_New(0);
    PyObject *last = list ? PyLong_FromLongLong(to) : NULL;
    if (!last || PyList_Append(list, last)) Py_CLEAR(list);
    Py_XDECREF(last);
    for (struct visit *v = top; list && v; v = v->outer) {
        int64_t id = PyInterpreterState_GetID(PyThreadState_GetInterpreter(v->home));
        PyObject *number = PyLong_FromLongLong(v->owner->id);
        if (!number || PyList_Insert(list, 0, number)) Py_CLEAR(list);
        Py_XDECREF(number);
        if (!v->outer && list) {
            number = PyLong_FromLongLong(id);
            if (!number || PyList_Insert(list, 0, number)) Py_CLEAR(list);
            Py_XDECREF(number);
        }
    }
    return list;
}

/* failed(why, value) raises. */
static PyObject *tell(PyObject *failed, int why, PyObject *value) {
    if (!value && PyErr_Occurred()) return NULL;
    PyObject *result = PyObject_CallFunction(failed, "iN", why, value ? value : Py_NewRef(Py_None));
    if (!result) return NULL;
    Py_DECREF(result);
    PyErr_SetString(PyExc_SystemError, "a visit has failed, and nobody said so");
    return NULL;
}

/* visit(failed, interpreter, ticket, deadline in ns or 0, args, kwargs) -> what the function of the
 * ticket returns in that interpreter. failed(why, value) is called for what it does not, and
 * raises. */
PyObject *ext_visit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6 || !PyTuple_Check(args[4]) || !PyDict_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "visit() takes six arguments");
        return NULL;
    }
    long long id = PyLong_AsLongLong(args[1]), ticket = PyLong_AsLongLong(args[2]);
    long long deadline = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    parcel_sweep();
    object_sweep();
    struct seat *s = seat_at(id);
    if (!s) return tell(args[0], GONE, NULL);
    if (top && top->depth == VISIT_MAX_DEPTH) return tell(args[0], DEEP, way_here(id));
    if (top && top->deadline && (!deadline || top->deadline < deadline)) deadline = top->deadline;

    struct parcel given = {0}, back = {0};
    struct parcel_value small[8], *values = small, names = {VISIT_NONE, {0}},
                                  out = {VISIT_NONE, {0}};
    int positional = (int)PyTuple_GET_SIZE(args[4]), named = (int)PyDict_GET_SIZE(args[5]);
    int why = 0;
    PyObject *result = NULL, *keys = NULL, *its = NULL, *unfit = NULL;
    if (positional + named > 8)
        values = parcel_alloc(&given, (size_t)(positional + named) * sizeof *values);
    if (!values) why = -2;
    for (int i = 0; why == 0 && i < positional; i++)
        why = parcel_put(&given, PyTuple_GET_ITEM(args[4], i), &values[i], 0, NULL);
    if (named && why == 0) {
        keys = PyDict_Keys(args[5]);
        its = PyDict_Values(args[5]);
        why = keys && its ? parcel_put(&given, keys, &names, 0, NULL) : -2;
        for (int i = 0; why == 0 && i < named; i++)
            why = parcel_put(&given, PyList_GET_ITEM(its, i), &values[positional + i], 0, NULL);
    }
    if (why == -1) why = UNFIT;
    if (why == UNFIT)
        unfit = PyUnicode_DecodeUTF8(given.unfit, (Py_ssize_t)strlen(given.unfit), "replace");
    if (why == 0) {
        struct owner *o = s->owner;
        if (enter(s)) {
            PyThreadState *home = PyThreadState_Get(), *made;
            struct visit v = {top, o, home, NULL, deadline, top ? top->depth + 1 : 1};
            v.there = attach(s, home, &made);
            if (v.there) {
                top = &v;
                if (atomic_load_explicit(&o->orphans, memory_order_relaxed)) end_orphans(o);
                if (deadline && md_now() >= deadline)
                    why = LATE;
                else
                    why = answer(o, ticket, &given, positional, &names, values, &back, &out);
                top = v.outer;
                detach(home, v.there, made);
            } else {
                PyErr_NoMemory();
                why = -2;
            }
        } else {
            why = GONE;
        }
        leave(s);
    }
    if (why == 0 || why == RAISED) {
        result = parcel_take(visit_lent(self), &out);
        if (!result) why = -2;
    }
    if (why == UNFIT_RESULT)
        unfit = PyUnicode_DecodeUTF8(back.unfit, (Py_ssize_t)strlen(back.unfit), "replace");
    Py_XDECREF(keys);
    Py_XDECREF(its);
    parcel_end(&back);
    if (parcel_end(&given) && why == 0) {
        Py_CLEAR(result);
        why = KEPT;
    }
    if (why == 0) return result;
    if (why == -2) return NULL;
    return tell(args[0], why, why == RAISED ? result : unfit);
}

/* visit_open(served, describe, opened): from now on this interpreter may be visited. */
PyObject *ext_visit_open(PyObject *self, PyObject *args) {
    PyObject *served, *described, *opened;
    if (!PyArg_ParseTuple(args, "O!OO", &PyDict_Type, &served, &described, &opened)) return NULL;
    pthread_once(&once, set_up);
    struct owner *o = calloc(1, sizeof *o);
    if (!o) return PyErr_NoMemory();
    o->interp = PyInterpreterState_Get();
    o->id = PyInterpreterState_GetID(o->interp);
    o->served = Py_NewRef(served);
    o->describe = Py_NewRef(described);
    o->opened = Py_NewRef(opened);
    o->lent = (PyTypeObject *)Py_NewRef(visit_lent(self));
    o->refs = 1;
    pthread_mutex_lock(&lock);
    o->next = owners;
    owners = o;
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

/* visit_close(): this interpreter is visited no more. Waits for the visits that are inside. */
PyObject *ext_visit_close(PyObject *self, PyObject *args) {
    pthread_mutex_lock(&lock);
    struct owner *o = owner_of(PyInterpreterState_GetID(PyInterpreterState_Get()));
    pthread_mutex_unlock(&lock);
    if (!o) Py_RETURN_NONE;
    int64_t mine = 0; /* this thread may be inside itself: it does not wait for that */
    for (struct visit *v = top; v; v = v->outer) mine += v->owner == o;
    atomic_fetch_or(&o->inside, CLOSED);
    Py_BEGIN_ALLOW_THREADS;
    pthread_mutex_lock(&lock);
    while (atomic_load(&o->inside) - CLOSED > mine) pthread_cond_wait(&left_one, &lock);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS;
    PyThreadState *states[16];
    for (int found = 16; found == 16;) {
        found = mine ? 0 : take_states(o, 1, states, 16);
        end_states(states, found);
    }
    PyObject *its[] = {o->served, o->describe, o->opened, (PyObject *)o->lent};
    pthread_mutex_lock(&lock);
    o->interp = NULL; /* its number is never used again; seats keep the rest until they end */
    owner_let_go(o);
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < sizeof its / sizeof *its; i++) Py_DECREF(its[i]);
    Py_RETURN_NONE;
}
