/* instead.h - lets a test answer calls of the C library itself, or do something before or after
 * them: for answers that a test cannot get otherwise, or not at the moment that matters, or only
 * after ten seconds. The core is linked into the tests, so its calls come here first. Calls for
 * which no test has set anything go to the C library.
 */
#ifndef MD_TESTS_INSTEAD_H
#define MD_TESTS_INSTEAD_H

#include <dlfcn.h>
#include <stdarg.h>

#include "test.h"

enum { GO_ON = -1 }; /* a test returns it to have the C library called after all */
enum { FUTEX_WAITV = 449 };

static struct {
    int (*clocklock)(pthread_mutex_t *m); /* an error */
    int (*trylock)(pthread_mutex_t *m);   /* likewise */
    void (*unlocked)(void);
    int (*tkill)(void);  /* an errno */
    int (*waitv)(void);  /* likewise: futex_waitv */
    int (*linkat)(void); /* likewise */
    void (*lstat)(struct stat *st);
    int64_t clock_ahead, clock_step; /* each look at the clock sees it one step later */
} instead;

static void *real_one(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}
#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real) *(void **)&real = real_one(#name)

int clock_gettime(clockid_t clock, struct timespec *t) {
    REAL(clock_gettime);
    int rc = real(clock, t);
    if (!instead.clock_step) return rc;
    instead.clock_ahead += instead.clock_step;
    int64_t now = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + instead.clock_ahead;
    t->tv_sec = now / 1000000000;
    t->tv_nsec = now % 1000000000;
    return rc;
}

int pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t clock, const struct timespec *until) {
    REAL(pthread_mutex_clocklock);
    int rc = instead.clocklock ? instead.clocklock(m) : GO_ON;
    return rc == GO_ON ? real(m, clock, until) : rc;
}

int pthread_mutex_trylock(pthread_mutex_t *m) {
    REAL(pthread_mutex_trylock);
    int rc = instead.trylock ? instead.trylock(m) : GO_ON;
    return rc == GO_ON ? real(m) : rc;
}

int pthread_mutex_unlock(pthread_mutex_t *m) {
    REAL(pthread_mutex_unlock);
    int rc = real(m);
    if (instead.unlocked) instead.unlocked();
    return rc;
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(linkat);
    int error = instead.linkat ? instead.linkat() : GO_ON;
    if (error == GO_ON) return real(from, old, to, new, flags);
    errno = error;
    return -1;
}

int lstat(const char *path, struct stat *st) {
    REAL(lstat);
    int rc = real(path, st);
    if (rc == 0 && instead.lstat) instead.lstat(st);
    return rc;
}

/* Always six arguments: only the kernel knows how many of them were given. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...) {
    REAL(syscall);
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    int error = GO_ON;
    if (number == SYS_tkill && instead.tkill) error = instead.tkill();
    if (number == FUTEX_WAITV && instead.waitv) error = instead.waitv();
    if (error == GO_ON) return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    errno = error;
    return -1;
}

#endif
