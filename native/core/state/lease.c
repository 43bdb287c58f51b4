/* lease.c - how a process shows that it lives: a mutex that the kernel marks when its owner ends.
 *
 * Locking: a lease is taken and released under the region's lock, except for a parked one, which is
 * released without it. The word of a lease is read without a lock.
 *
 * Note [Leases]
 * A process's lease is a robust mutex in its slot that it holds for as long as it has the region
 * open. Nobody ever waits for it with a lock call: others only look at its word. When the process
 * ends, however it ends, the kernel marks the word FUTEX_OWNER_DIED and, if FUTEX_WAITERS is set in
 * it, wakes one sleeper; that one wakes the rest.
 *
 * The owner of a robust mutex is a thread. The process's main thread lives as long as the process
 * does, so it takes the lease itself if it is the thread that joins. If another thread joins (then
 * the process has threads anyway), a thread of our own takes the lease and does nothing else. (With
 * such a thread in every process, every fork() would fork a multi-threaded process, about which
 * CPython 3.12+ rightly warns.)
 *
 * Only the thread that has a mutex can release it. When a thread other than the main one gives the
 * region back, it parks the main thread's lease: the lease goes into a list, a hold keeps its
 * mapping in place, and the next call of the main thread, whatever it is about, releases it
 * (md__enter, md_create and the like). That needs no lock of the region. By then the slot's state
 * is MD__LEAVING, and in that state only a sweep looks at the lease. The sweep reads the word and
 * may give the slot away as soon as the word is 0; glibc does not touch the mutex after that. The
 * list is a stack, changed by single compare-and-swaps, so the child of a fork finds it whole. The
 * leases in it are those of the child's parent, and the child lets go of the mappings.
 *
 * Slot 0 belongs to the creator, whose lease the waiters watch; no other process ever gets it.
 * Where there is no main member (claims.c) it is a slot like the others, and waiters watch the
 * lease of the registrar's process.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state.h"

struct md__lease_thread {
    pthread_t thread;
    pthread_mutex_t *lease;
    int refused;   /* the errno of a lease that could not be locked; set before phase 3 */
    md__u32 phase; /* 0 starting, 1 held, 2 asked to release it, 3 could not lock it */
};

md__u32 *md__lease_word(struct md__process *p) {
    return md__mutex_word(&p->lease);
}

int md__lease_is_dead(struct md__process *p) {
    return (md__read32(md__lease_word(p)) & FUTEX_OWNER_DIED) != 0;
}

static void *hold_lease(void *arg) {
    struct md__lease_thread *t = arg;
    t->refused = pthread_mutex_trylock(t->lease);
    int held = t->refused == 0;
    md__publish32(&t->phase, held ? 1 : 3);
    md__futex_wake(&t->phase, INT_MAX);
    while (held && md__read32(&t->phase) == 1) md__futex_wait(&t->phase, 1);
    if (held) pthread_mutex_unlock(t->lease);
    return NULL;
}

/* Returns an errno. The stack also holds the thread's static TLS, and its size depends on what the
 * program has loaded. If that makes a small stack too small, we take one of the usual size. */
static int spawn(struct md__lease_thread *t) {
    pthread_attr_t attr;
    sigset_t all, before;
    int rc = pthread_attr_init(&attr);
    if (rc) return rc;
    pthread_attr_setstacksize(&attr, 128 * 1024); /* if refused, a larger stack serves as well */
    sigfillset(&all);                             /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&t->thread, &attr, hold_lease, t);
    if (rc == EINVAL) rc = pthread_create(&t->thread, NULL, hold_lease, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

static int start_lease_thread(md__reg *reg, pthread_mutex_t *lease) {
    struct md__lease_thread *t = calloc(1, sizeof *t);
    if (!t) return MD_ESYS - ENOMEM;
    t->lease = lease;
    int rc = spawn(t);
    if (rc == 0) {
        while (md__read32(&t->phase) == 0) md__futex_wait(&t->phase, 0);
        rc = t->refused;
        if (rc) pthread_join(t->thread, NULL);
    }
    if (rc) {
        free(t);
        return MD_ESYS - rc;
    }
    reg->lease_thread = t;
    return 0;
}

int md__on_main_thread(void) {
    return syscall(SYS_gettid) == getpid();
}

/* Takes the lease. On the main thread it first allocates what parking needs, so that parking cannot
 * fail. */
int md__take_lease(md__reg *reg, struct md__process *p) {
    int rc = md__mutex_init(&p->lease);
    if (rc) return rc;
    if (!md__on_main_thread()) return start_lease_thread(reg, &p->lease);
    if (!md__held_of(reg) && !md__held_make(reg)) return MD_ESYS - ENOMEM;
    rc = pthread_mutex_trylock(&p->lease);
    return rc ? MD_ESYS - rc : 0;
}

md__u64 md__parked; /* atomic, any thread: the newest struct md_held * of a parked lease */

static void park(md__reg *reg, pthread_mutex_t *lease) {
    struct md_held *held = md__held_of(reg);
    uint64_t next = md__read64(&md__parked);
    md__add64(&held->holds, 1);
    held->lease = lease;
    do held->next = (struct md_held *)(uintptr_t)next;
    while (!md__swap_if64(&md__parked, &next, (uintptr_t)held));
}

static struct md_held *take_parked(void) {
    uint64_t all = md__read64(&md__parked);
    while (!md__swap_if64(&md__parked, &all, 0)) {}
    return (struct md_held *)(uintptr_t)all;
}

/* Releases the parked leases if this is the main thread. */
void md__unpark(void) {
    struct md_held *next, *held = md__on_main_thread() ? take_parked() : NULL;
    for (; held; held = next) {
        next = held->next;
        pthread_mutex_unlock(held->lease);
        md_let_go(held);
    }
}

/* In the child of a fork: lets go of the mappings, and leaves the leases to the parent. */
void md__forget_parked(void) {
    struct md_held *next, *held = take_parked();
    for (; held; held = next) {
        next = held->next;
        md_let_go(held);
    }
}

/* Releases the lease. If only the main thread can and we are another thread, parks it and returns
 * false. A fork may come at any moment, so we clear reg->lease_thread before we free its memory. */
bool md__drop_lease(md__reg *reg, struct md__process *p) {
    struct md__lease_thread *t = reg->lease_thread;
    if (t) {
        md__publish32(&t->phase, 2);
        md__futex_wake(&t->phase, INT_MAX);
        pthread_join(t->thread, NULL);
        reg->lease_thread = NULL;
        md__retire();
        free(t);
    } else if (md__on_main_thread()) {
        pthread_mutex_unlock(&p->lease);
    } else {
        park(reg, &p->lease);
        return false;
    }
    return true;
}

/* The lease word of a member's process, or NULL when that member is gone. */
md__u32 *md__lease_of(const md__reg *reg, uint64_t member) {
    uint32_t i = (uint32_t)member;
    if (i >= MD_MAX_MEMBERS) return NULL;
    struct md__member *m = md__member(reg, i);
    uint32_t process = md__peek32(&m->process);
    if (md__read32(&m->state) != MD__LIVE || md__peek32(&m->generation) != member >> 32 ||
        process >= MD_MAX_PROCESSES)
        return NULL;
    return md__lease_word(md__process(reg, process));
}
