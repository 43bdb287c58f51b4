/* clocklock.h - tells ThreadSanitizer about pthread_mutex_clocklock, which it does not know:
 * without this it would take each of our mutexes for an unlocked one. Part of the C tests;
 * .ci/sanitized loads it into Python together with the sanitizer.
 */
#ifndef MD_TESTS_CLOCKLOCK_H
#define MD_TESTS_CLOCKLOCK_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

void __tsan_mutex_pre_lock(void *m, unsigned flags);
void __tsan_mutex_post_lock(void *m, unsigned flags, int recursion);
int pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t clock, const struct timespec *until) {
    enum { TRY = 1 << 4, TRY_FAILED = 1 << 5 };
    int (*real)(pthread_mutex_t *, clockid_t, const struct timespec *);
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_clocklock");
    __tsan_mutex_pre_lock(m, TRY);
    int rc = real(m, clock, until);
    __tsan_mutex_post_lock(m, rc == 0 || rc == EOWNERDEAD ? TRY : TRY | TRY_FAILED, 0);
    return rc;
}

#endif
