/* eventcount.c - event words, which every commit raises and every wait watches.
 *
 * Note [Event words]
 * A waiter    1. prepares: reads the word and makes sure, by one CAS, that its bit 0 is set; the
 *                value is `seen`
 *             2. looks at the facts
 *             3. sleeps while the word equals `seen`; then starts again
 * A committer 1. publishes its fact
 *             2. rings: raises the count and clears bit 0 in one CAS; if bit 0 was set, wakes all
 *
 * No wake is lost. Prepare and ring are read-modify-writes of one word, so one of them comes first
 * in the word's order. Ring first: prepare reads what ring wrote (acquire after release), so the
 * waiter sees the fact in its step 2. Prepare first: ring finds bit 0 set and wakes. It has also
 * changed the word, so the kernel's own compare sends back a waiter that has not gone to sleep yet.
 * By the same argument a committer may skip the wake when bit 0 is clear: a waiter that prepares
 * later sees the fact. The first ring clears a bit that nobody needs any more, so killed waiters
 * cost one needless system call, once.
 *
 * A committer that is killed between its two steps, or between its CAS and its wake, has told
 * nobody. For this reason every sleep ends after a slice at the latest, and a recovery of the lock
 * wakes the sleepers of all words, whatever their bit 0 is. See Note [Slices] in crowd.c.
 *
 * The count wraps after 2^31 rings. To be misled by that, a waiter would have to miss exactly that
 * many rings between its steps 1 and 3.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ground.h"

/* Our own copy of the kernel's struct, so that this file compiles with kernel headers older than
 * futex_waitv (5.16). */
struct md__waitv {
    uint64_t val;
    uint64_t uaddr;
    uint32_t flags;
    uint32_t reserved;
};
enum { MD__SYS_FUTEX_WAITV = 449, MD__WAITV_U32 = 2 };

/* Whether futex_waitv is refused: the kernel lacks it (ENOSYS), or a system call filter forbids it.
 * The author of a filter chooses its errno. So every errno counts as a refusal, except those that
 * the kernel itself returns for a call like ours. */
static md__u32 waitv_refused; /* atomic, any thread; never taken back */

/* EAGAIN, ETIMEDOUT and EINTR end a sleep. EFAULT says that the memory of a word is gone; falling
 * back to a sleep on one word could hide that. */
static bool is_refusal(int error) {
    return error != EAGAIN && error != ETIMEDOUT && error != EINTR && error != EFAULT;
}

static struct timespec as_timespec(int64_t ns) {
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

uint32_t md__event_prepare(md__u32 *word) {
    uint32_t seen = md__read32(word);
    if (MD_FAULT(WAITER_NOT_ANNOUNCED)) return seen;
    while (!(seen & 1)) {
        if (md__swap_if32(word, &seen, seen | 1)) return seen | 1;
    }
    /* Bit 0 is set already. A CAS that changes nothing still gives this waiter its place in the
     * word's order. */
    while (!md__swap_if32(word, &seen, seen | 1)) {}
    return seen | 1;
}

void md__event_ring(md__u32 *word) {
    uint32_t seen = md__peek32(word);
    while (!md__swap_if32(word, &seen, (seen + 2) & ~1u)) {}
    if (seen & 1) md__futex_wake(word, MD_FAULT(ONE_SLEEPER_WOKEN) ? 1 : INT_MAX);
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
 * `until_ns` has come, or a signal has arrived. With `lease` NULL it watches only the event word.
 * Where the kernel can watch only one word, it watches the event word; then the caller learns of
 * the lease at the end of a slice, so slices are short. */
int md__sleep(md__u32 *event, uint32_t seen, md__u32 *lease, uint32_t lease_seen, int64_t until_ns,
              int64_t slice_ns) {
    bool refused = md__peek32(&waitv_refused);
    int64_t slice = md_now() + (refused ? MD__SLICE_NS : slice_ns);
    if (until_ns == MD_FOREVER || slice < until_ns) until_ns = slice;
    struct timespec until = as_timespec(until_ns);
    int rc;
    if (lease && !refused) {
        rc = sleep_on_two(event, seen, lease, lease_seen, &until);
        if (rc < 0 && is_refusal(errno)) {
            /* On ENOMEM the kernel has no memory for the two words just now: no refusal. */
            if (errno != ENOMEM) md__poke32(&waitv_refused, 1);
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
