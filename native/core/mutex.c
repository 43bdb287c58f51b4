/* mutex.c - the region's mutex: robust, shared, taken in slices, cleaned up after.
 *
 * It is held for microseconds, never across a call out of core/, never while asleep. A waiter can
 * be stranded by glibc's robust mutexes when the unlocker is killed between clearing the word and
 * its wake; so nobody waits for longer than a slice before trying anew.
 *
 * Whoever finds that the last holder died repairs what is derived before anyone else gets in
 * (md__rebuild), raises every version and rings every word: the dead one may have published a fact
 * and told nobody.
 *
 * Note [A lock that was written over]
 * The C library believes what stands in a mutex. One of another type is locked by other rules, some
 * of which end the process (assertions) or wait without a deadline: so the words that say the type
 * are compared first. One whose word names a thread that does not exist is waited for in vain: the
 * kernel marks the locks of a thread that ends before its number is free again, so an unmarked
 * word with such a number is not true, unless its holder had unmapped the region before it died. In
 * either case the region is damaged. What cannot be seen is a number that is somebody else's: then
 * patience ends it. And what is written over while it is held, its links into the list of robust
 * mutexes above all, hits the holder: docs/security.md says so.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

enum { MUTEX_WORDS = sizeof(pthread_mutex_t) / 4 };
static uint32_t typical[MUTEX_WORDS];
static bool says_type[MUTEX_WORDS];
static pthread_once_t learned = PTHREAD_ONCE_INIT;

/* Which words say the type: those in which ours differs from a plain mutex. Found by looking, not
 * assumed. */
static void learn_type(void) {
    static pthread_mutex_t ours, plain; /* static: what no initialisation writes is 0 in both */
    uint32_t other[MUTEX_WORDS];
    if (md__mutex_init(&ours)) return;
    pthread_mutex_init(&plain, NULL);
    memcpy(typical, &ours, sizeof typical);
    memcpy(other, &plain, sizeof other);
    for (int i = 0; i < MUTEX_WORDS; i++) says_type[i] = typical[i] != other[i];
    pthread_mutex_destroy(&plain);
    pthread_mutex_destroy(&ours);
}

static bool is_of_our_type(const pthread_mutex_t *m) {
    const uint32_t *words = (const uint32_t *)m;
    pthread_once(&learned, learn_type);
    for (int i = 0; i < MUTEX_WORDS; i++) {
        if (says_type[i] && md__once32(&words[i]) != typical[i]) return false;
    }
    return true;
}

/* The second look is for a holder that ended between the first one and the question. */
static bool is_held_by_nobody(pthread_mutex_t *m) {
    md__u32 *word = md__mutex_word(m);
    uint32_t seen = md__read32(word), holder = seen & FUTEX_TID_MASK;
    if (!seen || seen & FUTEX_OWNER_DIED) return false;
    if (holder && (syscall(SYS_tkill, (pid_t)holder, 0) == 0 || errno != ESRCH)) return false;
    seen = md__read32(word);
    return seen && (seen & (FUTEX_TID_MASK | FUTEX_OWNER_DIED)) == holder;
}

static int recover(md__reg *reg) {
    struct md__header *h = md__header(reg);
    int rc = MD_FAULT_IS(17) ? 0 : md__rebuild(reg);
    md__poke64(&h->recoveries, md__peek64(&h->recoveries) + 1);
    if (rc || md__check(reg, NULL, 0)) {
        /* Not repairable: say so to everyone from now on instead of working on it. */
        md__publish32(&h->state, MD__DAMAGED);
        rc = MD_EDAMAGED;
    } else {
        md__sweep(reg);
    }
    pthread_mutex_consistent(&h->mutex);
    md__event_ring_all(reg);
    return rc;
}

/* In the child of a fork: in another PID namespace its thread ids are others, and no lock of the region
 * can be its own. */
static int look_around(md__reg *reg) {
    uint64_t space = 0;
    int rc = md__pid_space(&space);
    if (rc) return rc;
    if (space != md__header(reg)->pid_space) return MD_ENAMESPACE;
    md__poke32(&reg->forked, 0);
    return 0;
}

int md__lock(md__reg *reg) {
    struct md__header *h = md__header(reg);
    int64_t give_up = md_now() + PATIENCE_NS;
    if (md__read32(&reg->forked)) {
        int rc = look_around(reg);
        if (rc) return rc;
    }
    for (;;) {
        if (!is_of_our_type(&h->mutex)) return MD_EDAMAGED;
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
        if (rc != ETIMEDOUT) return MD_EDAMAGED; /* the lock's own bytes are not what they were */
        if (is_held_by_nobody(&h->mutex)) return MD_EDAMAGED;
        if (md_now() >= give_up) return MD_ELOCK;
    }
}

void md__unlock(md__reg *reg) {
    pthread_mutex_unlock(&md__header(reg)->mutex);
}

/* For who was brought back by its slice: when the last holder died, recovers in the next one's
 * stead, who may never come, and so tells all who wait. Never waits for the lock: when somebody has
 * it by now, it is that one who recovers. */
void md__mend(md__reg *reg) {
    struct md__header *h = md__header(reg);
    if (!(md__read32(md__mutex_word(&h->mutex)) & FUTEX_OWNER_DIED)) return;
    int rc = pthread_mutex_trylock(&h->mutex);
    if (rc == EOWNERDEAD) recover(reg);
    if (rc == 0 || rc == EOWNERDEAD) pthread_mutex_unlock(&h->mutex);
}
