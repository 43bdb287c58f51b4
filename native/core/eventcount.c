/* eventcount.c - the words that every commit raises and every wait watches.
 *
 * Note [Event words]
 * A waiter    1. prepares: reads the word and makes sure, by one CAS, that its bit 0 is set; `seen`
 *             2. looks at the facts
 *             3. sleeps while the word equals `seen`; then starts again
 * A committer 1. publishes its fact
 *             2. rings: raises the count and clears bit 0 in one CAS; if bit 0 was set, wakes all
 *
 * No wake is lost. Prepare and ring are read-modify-writes of one word, so one of them comes first
 * in its order. Ring first: prepare reads what ring wrote, thus (acquire after release) sees the
 * fact in its step 2. Prepare first: ring finds bit 0 set and wakes; and since it changed the word,
 * a waiter that has not reached the kernel yet is sent back by the kernel's own compare. Skipping
 * the wake when bit 0 is clear is safe by the same argument: whoever prepares later sees the fact.
 * The bit is never left set for nothing longer than one ring, so waiters that were killed cost one
 * needless system call, once.
 *
 * A committer killed between its two steps, or between its CAS and its wake, has told nobody: hence
 * every sleep ends after a slice at the latest, and a recovery of the lock wakes the sleepers of all
 * words, whatever their bit 0. See Note [Slices] in crowd.c.
 *
 * The count wraps after 2^31 rings; a waiter would have to miss exactly that many between its steps
 * 1 and 3.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Of our own, so that it builds with kernel headers older than futex_waitv (5.16). */
struct md__waitv {
    uint64_t val;
    uint64_t uaddr;
    uint32_t flags;
    uint32_t reserved;
};
enum { MD__SYS_FUTEX_WAITV = 449, MD__WAITV_U32 = 2 };

/* Whether the kernel has futex_waitv and lets us use it; some container runtimes answer EPERM. */
static md__u32 waitv_refused;

int64_t md_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct timespec as_timespec(int64_t ns) {
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

uint32_t md__event_prepare(md__u32 *word) {
    uint32_t seen = md__read32(word);
    if (MD_FAULT_IS(4)) return seen;
    while (!(seen & 1)) {
        if (md__swap_if32(word, &seen, seen | 1)) return seen | 1;
    }
    /* Bit 0 is set already; a no-op CAS still gives this waiter a place in the word's order. */
    while (!md__swap_if32(word, &seen, seen | 1)) {}
    return seen | 1;
}

void md__event_ring(md__u32 *word) {
    uint32_t seen = md__peek32(word);
    while (!md__swap_if32(word, &seen, (seen + 2) & ~1u)) {}
    if (seen & 1) md__futex_wake(word, MD_FAULT_IS(3) ? 1 : INT_MAX);
}

/* Wakes unasked: bit 0 may be clear because somebody was killed between its CAS and its wake. */
void md__event_ring_all(md__reg *reg) {
    for (uint32_t i = 0; i <= MD__EVENTS; i++) {
        md__u32 *word = i < MD__EVENTS ? &md__event(reg, i)->word : &md__header(reg)->changes;
        md__event_ring(word);
        md__futex_wake(word, INT_MAX);
    }
}

void md__futex_wake(md__u32 *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

void md__futex_wait(md__u32 *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static int sleep_on_two(md__u32 *event, uint32_t seen, md__u32 *lease, uint32_t lease_seen,
                        struct timespec *until) {
    struct md__waitv w[2] = {
        {.val = seen, .uaddr = (uintptr_t)event, .flags = MD__WAITV_U32},
        {.val = lease_seen, .uaddr = (uintptr_t)lease, .flags = MD__WAITV_U32},
    };
    return (int)syscall(MD__SYS_FUTEX_WAITV, w, 2, 0, until, CLOCK_MONOTONIC);
}

static int sleep_on_one(md__u32 *event, uint32_t seen, struct timespec *until) {
    return (int)syscall(SYS_futex, event, FUTEX_WAIT_BITSET, seen, until, NULL,
                        FUTEX_BITSET_MATCH_ANY);
}

/* Sleeps until the event word or the lease word is rung or has changed, a slice has passed,
 * `until_ns` is there, or a signal arrived. With `lease` NULL only the event word is watched; where
 * only one can be, the slices have to tell of the lease, and are short. */
int md__sleep(md__u32 *event, uint32_t seen, md__u32 *lease, uint32_t lease_seen, int64_t until_ns,
              int64_t slice_ns) {
    bool refused = md__peek32(&waitv_refused);
    int64_t slice = md_now() + (refused ? MD__SLICE_NS : slice_ns);
    if (until_ns == MD_FOREVER || slice < until_ns) until_ns = slice;
    struct timespec until = as_timespec(until_ns);
    int rc;
    if (lease && !refused) {
        rc = sleep_on_two(event, seen, lease, lease_seen, &until);
        if (rc < 0 && (errno == ENOSYS || errno == EPERM)) {
            md__poke32(&waitv_refused, 1);
            rc = sleep_on_one(event, seen, &until);
        }
    } else {
        rc = sleep_on_one(event, seen, &until);
    }
    if (rc >= 0 || errno == EAGAIN) return MD__SLEPT_RUNG;
    if (errno == ETIMEDOUT) return MD__SLEPT_SLICE;
    if (errno == EINTR) return MD__SLEPT_SIGNAL;
    return md__sys();
}
