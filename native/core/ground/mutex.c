/* mutex.c - robust mutexes that processes share, and the words inside them.
 *
 * A region's lock and each lease are such mutexes. This file makes them and judges them by their
 * words. It locks only mutexes of its own; recover.c locks the region's.
 *
 * Note [A lock that was written over]
 * The C library trusts the bytes of a mutex. If stray bytes turn the region's mutex into one of
 * another type, the C library locks it by other rules. Some of these end the process (assertions)
 * or wait without a deadline. So the words that say the type are compared first. If the mutex's
 * futex word names a thread that does not exist, a wait for that thread would be in vain. When a
 * thread ends, the kernel marks its locks before it gives the thread's number out again. So an
 * unmarked word with such a number is false, unless its holder had unmapped the region before it
 * died. In either case the region is damaged. A number that belongs to another thread cannot be
 * told from a true one: then the waiter gives up when its patience ends. And if the mutex is
 * written over while it is held, above all its links into the list of robust mutexes, the holder
 * itself is hit; docs/security.md says so.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ground.h"

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

/* Finds the words that say the type: those in which ours differs from a plain mutex. We look
 * instead of assuming. */
static void learn_type(void) {
    static pthread_mutex_t ours, plain; /* static: bytes that no initialisation writes are 0 */
    uint32_t other[MUTEX_WORDS];
    if (md__mutex_init(&ours)) return;
    pthread_mutex_init(&plain, NULL);
    memcpy(typical, &ours, sizeof typical);
    memcpy(other, &plain, sizeof other);
    for (int i = 0; i < MUTEX_WORDS; i++) says_type[i] = typical[i] != other[i];
    pthread_mutex_destroy(&plain);
    pthread_mutex_destroy(&ours);
}

bool md__is_of_our_type(const pthread_mutex_t *m) {
    const uint32_t *words = (const uint32_t *)m;
    pthread_once(&learned, learn_type);
    for (int i = 0; i < MUTEX_WORDS; i++) {
        if (says_type[i] && md__once32(&words[i]) != typical[i]) return false;
    }
    return true;
}

/* The offset in a pthread_mutex_t at which the C library keeps the futex word. We look instead of
 * assuming. */
static md__u32 lease_word_at;
static md__u32 lease_word_known;

/* Returns 0 when the word of a lease can be watched. Called under the lock of the table of regions,
 * before the first region is opened. */
int md__lease_probe(void) {
    if (md__peek32(&lease_word_known)) return 0;
    pthread_mutex_t m;
    int rc = md__mutex_init(&m);
    if (rc) return rc;
    pthread_mutex_lock(&m);
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    uint32_t words[sizeof m / 4];
    memcpy(words, &m, sizeof m);
    rc = MD_ESYS - ENOTSUP;
    for (uint32_t i = 0; i < sizeof m / 4 && rc; i++) { /* coverage: one-sided, every libc has it */
        if ((words[i] & FUTEX_TID_MASK) != tid) continue; /* coverage: one-sided, glibc: in front */
        md__poke32(&lease_word_at, i * 4);
        md__poke32(&lease_word_known, 1);
        rc = 0;
    }
    pthread_mutex_unlock(&m);
    pthread_mutex_destroy(&m);
    return rc;
}

md__u32 *md__mutex_word(pthread_mutex_t *m) {
    return (md__u32 *)((char *)m + md__peek32(&lease_word_at));
}

/* The id of the thread that holds a lock, or 0. */
uint32_t md__mutex_owner(const pthread_mutex_t *m, int *died) {
    uint32_t word = md__read32((const md__u32 *)((const char *)m + md__peek32(&lease_word_at)));
    *died = (word & FUTEX_OWNER_DIED) != 0;
    return word & FUTEX_TID_MASK;
}

/* The second look excludes a holder that ended after the first look and before the tkill. */
bool md__is_held_by_nobody(pthread_mutex_t *m) {
    md__u32 *word = md__mutex_word(m);
    uint32_t seen = md__read32(word), holder = seen & FUTEX_TID_MASK;
    if (!seen || seen & FUTEX_OWNER_DIED) return false;
    if (holder && (syscall(SYS_tkill, (pid_t)holder, 0) == 0 || errno != ESRCH)) return false;
    seen = md__read32(word);
    return seen && (seen & (FUTEX_TID_MASK | FUTEX_OWNER_DIED)) == holder;
}
