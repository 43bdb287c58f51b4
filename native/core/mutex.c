/* mutex.c - the region's mutex: robust, shared, taken in slices, cleaned up after.
 *
 * It is held for microseconds, never across a call out of core/, never while asleep. A waiter can
 * be stranded by glibc's robust mutexes when the unlocker is killed between clearing the word and
 * its wake; so nobody waits for longer than a slice before trying anew.
 *
 * Whoever finds that the last holder died repairs what is derived before anyone else gets in
 * (md__rebuild), raises every version and rings every word: the dead one may have published a fact
 * and told nobody.
 */
#include <errno.h>
#include <time.h>

#include "internal.h"

static const int64_t SLICE_NS = 50 * 1000 * 1000;
static const int64_t PATIENCE_NS = 10ll * 1000 * 1000 * 1000;

int md__mutex_init(pthread_mutex_t *m) {
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);
    if (rc) return MD_ESYS - rc;
    rc = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    if (!rc) rc = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (!rc) rc = pthread_mutex_init(m, &attr);
    pthread_mutexattr_destroy(&attr);
    return rc ? MD_ESYS - rc : 0;
}

static int recover(md__reg *reg) {
    struct md__header *h = md__header(reg);
    int rc = MD_FAULT_IS(17) ? 0 : md__rebuild(reg);
    md__poke64(&h->recoveries, md__peek64(&h->recoveries) + 1);
    if (rc || md__check(reg, NULL, 0)) {
        /* Not repairable: say so to everyone from now on instead of working on it. */
        md__publish32(&h->state, MD__DAMAGED);
        rc = MD_EDAMAGED;
    }
    md__sweep(reg);
    pthread_mutex_consistent(&h->mutex);
    md__event_ring_all(reg);
    return rc;
}

int md__lock(md__reg *reg) {
    struct md__header *h = md__header(reg);
    int64_t give_up = md_now() + PATIENCE_NS;
    for (;;) {
        int64_t until = md_now() + SLICE_NS;
        struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        int rc = pthread_mutex_clocklock(&h->mutex, CLOCK_MONOTONIC, &t);
        if (rc == EOWNERDEAD) rc = recover(reg);
        if (rc == 0) {
            if (md__read32(&h->state) != MD__DAMAGED) return 0;
            rc = MD_EDAMAGED;
        }
        if (rc == MD_EDAMAGED) {
            pthread_mutex_unlock(&h->mutex);
            return rc;
        }
        if (rc != ETIMEDOUT) return MD_ESYS - rc;
        if (md_now() >= give_up) return MD_ELOCK;
    }
}

void md__unlock(md__reg *reg) {
    pthread_mutex_unlock(&md__header(reg)->mutex);
}
