/* crowd.c - the waits under way in this process, and how long each sleeps before it looks by
 * itself.
 *
 * Note [Slices]
 * A sleep ends after a slice even if nobody rang. Three cases need that:
 * 1. A committer was killed before its wake. It held the lock, so the lock's word says that its
 *    holder died. A waiter whose slice ends sees that and recovers (md__mend in recover.c), which
 *    wakes all sleepers of all words.
 * 2. When a lease's owner died, the kernel woke one waiter, and that one was killed before it woke
 *    the others. A waiter that watches the same lease wakes them when its slice ends.
 * 3. A signal came to the process's main thread just before its sleep.
 * In cases 1 and 2 it is enough that one waiter comes back soon; not all need to. That matters when
 * thousands wait: with slices of 0.1 s, 10,000 threads take all the time of two processors while
 * nothing happens, and none is left to wake them with. So once the number n of waiters of a process
 * is beyond CROWD, each sleeps for a random part of n / CROWD times 0.2 s, but for a second at
 * most. Then CROWD times 10 of them or more come back in each second, evenly spread, and the
 * probability that none comes back in 0.1 s is 2^-46. The main thread's slice stays 0.1 s, because
 * of 3.
 *
 * n can shrink while waiters sleep in slices that were chosen for a larger n. When half of the
 * waiters have gone, the rest are rung once, to choose anew: log n times in all, if no more come.
 */
#include <limits.h>

#include "state.h"

enum { CROWD = 128 };
static const int64_t LONGEST_NS = 1000000000;

/* Under waits_lock, like md__crowd_leave. */
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
    /* Random enough: the time at which a waiter happens to go to sleep. */
    uint64_t dice = (uint64_t)md_now() * 0x9e3779b97f4a7c15u >> 32;
    return (int64_t)((uint64_t)span * dice >> 32);
}

/* Makes this process's waits of one member that have this ticket (0: any ticket) look again; with
 * `cancel` they end. */
void md__disturb(md__reg *reg, uint64_t member, uint64_t ticket, int cancel) {
    pthread_mutex_lock(&reg->waits_lock);
    for (struct md__wait *w = reg->waits; w; w = w->next) {
        if (w->member != member || (ticket && w->ticket != ticket)) continue;
        if (cancel) md__publish32(&w->cancelled, 1);
        md__event_ring(w->event);
    }
    pthread_mutex_unlock(&reg->waits_lock);
}

void md__disturb_all(md__reg *reg) {
    pthread_mutex_lock(&reg->waits_lock);
    for (struct md__wait *w = reg->waits; w; w = w->next) md__event_ring(w->event);
    pthread_mutex_unlock(&reg->waits_lock);
}

/* Wakes even where bit 0 is clear: a committer may have died between its CAS and its wake. */
void md__event_ring_all(md__reg *reg) {
    for (uint32_t i = 0; i <= MD__EVENTS; i++) {
        md__u32 *word = i < MD__EVENTS ? &md__event(reg, i)->word : &md__header(reg)->changes;
        md__event_ring(word);
        md__futex_wake(word, INT_MAX);
    }
}
