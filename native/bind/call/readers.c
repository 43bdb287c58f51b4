/* readers.c - without a GIL: how a thread frees a plan or a route that it has replaced while other
 * threads may be calling through it.
 *
 * Note [Readers]
 * A call must not write to memory that calls of other threads write to, not even to a reference
 * count: otherwise two threads that call one operator are slower than one. So a call takes no
 * reference to the plan that it uses. Instead each thread has two counters. A call increments one
 * of them when it begins and decrements the same one when it ends, and a replaced plan is freed
 * only when no call can be using it:
 *
 *   1. A call increments its thread's counter of the current phase, then reads the cell.
 *   2. A writer takes the old plan out of the cell, then puts it on the list of retired objects
 *      with the number of the current grace period.
 *   3. A grace period ends when all counters of the other phase are 0; the other phase then becomes
 *      the current one. New calls use its counters, so that those of the old phase fall to 0.
 *   4. A retired plan is freed two periods after its own. A call that may have read it from the
 *      cell had incremented a counter, of one of the two phases, before the writer took the plan
 *      out, and since then all counters of each phase have been seen at 0. (A call may read the
 *      phase and increment that phase's counter only much later; but it still does so before it
 *      reads the cell. This is why both phases must have been seen at 0, and one is not enough.)
 *
 * In step 1 a call writes its counter and then reads the cell; in steps 2 and 3 a writer writes the
 * cell and then reads the counters. All of these are sequentially consistent, so one of the two
 * sees the other. A thread's counters have a cache line of their own. When there are more threads
 * than lines, some threads share a line; their calls are slower, and nothing else changes. The
 * child of a fork inherits counters of threads that it does not have, so it may free nothing that
 * was replaced.
 */
#include "state.h"

#ifdef Py_GIL_DISABLED

enum { LINES = 64, KEPT = 2 };

struct line {
    _Alignas(64) a64 inside[2]; /* how many calls are under way, by phase */
};

struct retired {
    struct retired *next;
    PyObject *object;
    uint64_t period;
};

struct readers {
    struct line lines[LINES];
    a64 phase, period;
    PyMutex lock; /* of `lock`: over the list, the end of a period, and the targets of plans */
    struct retired *first;
};

static a64 next_line;
static _Thread_local unsigned line_of_thread; /* + 1 */

int readers_make(struct state *st) {
    void *made = NULL;
    if (posix_memalign(&made, 64, sizeof(struct readers))) {
        PyErr_NoMemory();
        return -1;
    }
    memset(made, 0, sizeof(struct readers));
    st->readers = made;
    return 0;
}

in_use enter(struct state *st) {
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

/* Under the lock: takes the objects off the list that no call can be using, and returns them. */
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

void lock(struct state *st) {
    PyMutex_Lock(&st->readers->lock);
}

void unlock(struct state *st) {
    PyMutex_Unlock(&st->readers->lock);
}

void retire(struct state *st, PyObject *object) {
    struct readers *r = st->readers;
    struct retired *fresh = object ? PyMem_RawMalloc(sizeof *fresh) : NULL;
    if (!fresh) return; /* without memory to note it, the object is never freed */
    lock(st);
    *fresh = (struct retired){r->first, object, peek(&r->period)};
    r->first = fresh;
    struct retired *found = ripe(r);
    unlock(st);
    let_go(found);
}

void unlock_in_child(struct state *st, PyObject *const *objects, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) objects[i]->ob_mutex = (PyMutex){0};
    st->readers->lock = (PyMutex){0};
}

/* The module is freed, so no call is under way. */
void readers_free(struct state *st) {
    if (!st->readers) return;
    let_go(st->readers->first);
    free(st->readers);
    st->readers = NULL;
}

#endif
