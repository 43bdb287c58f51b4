/* readers.c - without a GIL: plans are replaced while other threads call through them.
 *
 * Note [Readers]
 * A call must not write to memory that other threads' calls write to, not even a reference count, or
 * two threads that call one operator are slower than one. So a call takes no reference to the plan that
 * it uses. It counts itself into one of two counters of its thread's own, says so no more when it has
 * ended, and what was replaced meanwhile is let go of only when nobody can be using it:
 *
 *   1. A call raises the counter of the current phase, then reads the cell.
 *   2. Whoever replaces a plan takes it out of the cell, then puts it on the list with the number of the
 *      present grace period.
 *   3. A grace period ends when all counters of the other phase are 0; the phase is changed then. Calls
 *      that begin count themselves into the new phase, so that the old one runs dry.
 *   4. A plan goes two periods after its own. A call that can have read it from the cell was counted
 *      before it was taken out, in one of the two phases, and each of them has been seen at 0 since.
 *      (A call that read the phase long ago and counts itself only now is in one of the counters too,
 *      before it reads the cell: hence both have to be seen at 0, and one is not enough.)
 *
 * Steps 1 and 3 look at each other's words, the one after writing its own: both are sequentially
 * consistent. A counter is on a cache line of its own; threads share one when there are more of them
 * than lines, and are slower then, nothing else. A child of fork finds the counters of threads that it
 * does not have: it lets go of nothing that was replaced, until it ends.
 *
 * With a GIL a call takes a reference, and what is replaced is let go of at once.
 */
#include "call.h"

#ifdef Py_GIL_DISABLED

enum { LINES = 64, KEPT = 2 };

struct line {
    _Alignas(64) a64 inside[2]; /* calls under way, by phase */
};

struct retired {
    struct retired *next;
    PyObject *object;
    uint64_t period;
};

struct readers {
    struct line lines[LINES];
    a64 phase, period;
    PyMutex lock; /* over the list, and over ending a period */
    struct retired *first;
};

static a64 next_line;
static _Thread_local unsigned line_of_thread; /* + 1 */

int md__readers_make(struct state *st) {
    void *made = NULL;
    if (posix_memalign(&made, 64, sizeof(struct readers))) {
        PyErr_NoMemory();
        return -1;
    }
    memset(made, 0, sizeof(struct readers));
    st->readers = made;
    return 0;
}

a64 *md__readers_enter(struct state *st) {
    struct readers *r = st->readers;
    if (UNLIKELY(!line_of_thread))
        line_of_thread = (unsigned)(atomic_fetch_add(&next_line, 1) % LINES) + 1;
    a64 *inside = &r->lines[line_of_thread - 1].inside[atomic_load(&r->phase) & 1];
    atomic_fetch_add(inside, 1);
    return inside;
}

static bool is_dry(const struct readers *r, uint64_t phase) {
    for (int i = 0; i < LINES; i++) {
        if (atomic_load((a64 *)&r->lines[i].inside[phase & 1])) return false;
    }
    return true;
}

/* Under the lock: what nobody can be using any more, off the list. */
static struct retired *ripe(struct readers *r) {
    struct retired *found = NULL, **link = &r->first;
    for (int i = 0; i < KEPT && is_dry(r, peek(&r->phase) + 1); i++) {
        atomic_fetch_add(&r->phase, 1);
        atomic_fetch_add(&r->period, 1);
    }
    while (*link) {
        struct retired *each = *link;
        if (each->period + KEPT <= peek(&r->period)) {
            *link = each->next;
            each->next = found;
            found = each;
        } else {
            link = &each->next;
        }
    }
    return found;
}

static void let_go(struct retired *each) {
    while (each) {
        struct retired *next = each->next;
        Py_DECREF(each->object); /* may run anything: no lock is held */
        PyMem_RawFree(each);
        each = next;
    }
}

/* Takes the caller's reference to what calls may still be using. */
void md__retire(struct state *st, PyObject *object) {
    struct readers *r = st->readers;
    struct retired *fresh = object ? PyMem_RawMalloc(sizeof *fresh) : NULL;
    if (!fresh) return; /* no memory: it stays for ever */
    PyMutex_Lock(&r->lock);
    *fresh = (struct retired){r->first, object, peek(&r->period)};
    r->first = fresh;
    struct retired *found = ripe(r);
    PyMutex_Unlock(&r->lock);
    let_go(found);
}

/* In the child of a fork: Note [Locks that nobody has] in handles.c. */
void md__readers_unlock(struct state *st) {
    st->readers->lock = (PyMutex){0};
}

/* No call is under way any more: the module itself goes. */
void md__readers_free(struct state *st) {
    if (!st->readers) return;
    let_go(st->readers->first);
    free(st->readers);
    st->readers = NULL;
}

#else

int md__readers_make(struct state *st) {
    (void)st;
    return 0;
}

void md__readers_free(struct state *st) {
    (void)st;
}

#endif
