/* crowd.c - who of this process waits, and how long each of them sleeps before it looks by itself.
 *
 * Note [Slices]
 * A sleep ends after a slice although nobody rang. Three things need that:
 * 1. A committer was killed before its wake. It held the lock, so the lock's word says that its
 *    holder died, and whoever is brought back by its slice sees that and recovers (md__mend in
 *    mutex.c), which wakes all sleepers of all words.
 * 2. The one waiter that the kernel woke when a lease's owner died was killed before it woke the
 *    others. Whoever watches that lease and is brought back by its slice wakes them.
 * 3. A signal came to the process's main thread just before its sleep.
 * For 1 and 2 it is enough that somebody comes back soon, it need not be everybody. That matters when
 * thousands wait: with slices of 0.1 s, 10,000 threads cost two processors all their time while
 * nothing happens, and then none is left to wake them with. So among n waiters of a process, once n
 * is beyond CROWD, each sleeps for a random part of n / CROWD times 0.2 s, a second at most. They
 * come back at CROWD times 10 in a second or more often, evenly spread, and nobody in 0.1 s with a
 * probability of 2^-46. The main thread's slice stays 0.1 s, for 3.
 *
 * n shrinks while others sleep in slices that were chosen for a larger one. When half of them have
 * gone, the rest is rung once, to choose anew: log n times in all, if nobody comes.
 */
#include "internal.h"

enum { CROWD = 128 };
static const int64_t LONGEST_NS = 1000000000;

/* Under waits_lock, like the next. */
void md__crowd_enter(md__reg *reg, struct md__wait *wait) {
    uint32_t n = md__peek32(&reg->waiting) + 1;
    wait->next = reg->waits;
    wait->link = &reg->waits;
    if (wait->next) wait->next->link = &wait->next;
    reg->waits = wait;
    md__poke32(&reg->waiting, n);
    if (n > reg->paced) reg->paced = n;
}

void md__crowd_leave(md__reg *reg, struct md__wait *wait) {
    uint32_t n = md__peek32(&reg->waiting) - 1;
    *wait->link = wait->next;
    if (wait->next) wait->next->link = wait->link;
    md__poke32(&reg->waiting, n);
    if (n >= reg->paced / 2) return;
    bool crowded = reg->paced > CROWD;
    reg->paced = n;
    if (!crowded) return;
    for (struct md__wait *w = reg->waits; w; w = w->next) md__event_ring(w->event);
}

/* How long a waiter of this process may sleep at a time. */
int64_t md__slice(const md__reg *reg) {
    int64_t n = md__peek32(&reg->waiting);
    if (n <= CROWD || md__on_main_thread()) return MD__SLICE_NS;
    int64_t span = 2 * MD__SLICE_NS * n / CROWD;
    if (span > LONGEST_NS) span = LONGEST_NS;
    /* Random enough: when each of them happens to go to sleep. */
    uint64_t dice = (uint64_t)md_now() * 0x9e3779b97f4a7c15u >> 32;
    return (int64_t)((uint64_t)span * dice >> 32);
}
