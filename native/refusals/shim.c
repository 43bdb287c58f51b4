/* shim.c - a library for LD_PRELOAD that makes a call of libmdispatch fail: the nth one, in one of
 * the ways in which that call can fail.
 *
 * A call counts when its return address lies in libmdispatch.so. So it does not disturb the rest of
 * the program. The count is in memory that forked children share, and goes on in them. calls.txt
 * lists everything that libmdispatch calls, and says why some calls are never refused.
 *
 * A refused call is not made, with two exceptions: close() closes whatever it answers, and
 * EOWNERDEAD hands out the lock that it speaks of. So a refused FUTEX_WAKE has woken nobody. Only a
 * wake on a region's word can be refused: memory of the process's own is always there.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

enum { SHORT = 0, END = -1, REGIONS = 256, FUTEX_WAITV = 449 };

struct state {
    _Atomic long calls;
    _Atomic int active, refused;
    long nth;
    int kind, on, kinds, error;
    const char *_Atomic call;
};

static struct state *state;
static _Thread_local int paused;
static uintptr_t ours_from, ours_to;
static _Atomic uintptr_t region_from[REGIONS], region_to[REGIONS];

static int is_ours(struct dl_phdr_info *info, size_t size, void *arg) {
    if (!strstr(info->dlpi_name, "libmdispatch.so")) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        ours_from = info->dlpi_addr + p->p_vaddr;
        ours_to = ours_from + p->p_memsz;
    }
    return 1;
}

__attribute__((constructor)) static void set_up(void) {
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED) abort();
}

void shim_arm(long nth, int kind, int on) {
    if (!ours_to) dl_iterate_phdr(is_ours, NULL);
    if (!ours_to) abort(); /* nothing would ever be refused */
    *state = (struct state){.nth = nth, .kind = kind, .on = on, .call = "", .active = 1};
}

void shim_disarm(struct shim_report *r) {
    state->active = 0;
    *r =
        (struct shim_report){state->calls, state->refused, state->kinds, state->error, state->call};
}

void shim_pause(void) {
    paused++;
}

void shim_go_on(void) {
    paused--;
}

int shim_has_refused(void) {
    return state->refused;
}

static int says_again(int error) {
    return error == EINTR || error == EAGAIN || error == ETIMEDOUT;
}

/* Whether to refuse the call of this name that returns to `to`. If so, `error` says how. */
static int is_refused(const char *call, const void *to, const int *errors, int *error) {
    uintptr_t at = (uintptr_t)to;
    if (!state || !state->active || paused || at < ours_from || at >= ours_to) return 0;
    long n = ++state->calls;
    if (state->on && state->refused && n > state->nth) {
        *error = state->error;
        return strcmp(state->call, call) == 0 && !says_again(*error);
    }
    if (n != state->nth) return 0;
    if (state->kind < 0) kill(getpid(), SIGKILL);
    int kinds = 0;
    while (errors[kinds] != END) kinds++;
    state->kinds = kinds;
    state->call = call;
    *error = state->error = errors[state->kind % kinds];
    state->refused++;
    return 1;
}

#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

#define REFUSED(name, ...)                                                                         \
    static const int errors[] = {__VA_ARGS__, END};                                                \
    int error;                                                                                     \
    if (is_refused(name, __builtin_return_address(0), errors, &error))

/* A call that returns -1 and sets errno. */
#define PLAIN(type, name, params, args, ...)                                                       \
    type name params {                                                                             \
        REAL(name);                                                                                \
        REFUSED(#name, __VA_ARGS__) {                                                              \
            errno = error;                                                                         \
            return -1;                                                                             \
        }                                                                                          \
        return real args;                                                                          \
    }

/* A call that returns its error. */
#define DIRECT(name, params, args, ...)                                                            \
    int name params {                                                                              \
        REAL(name);                                                                                \
        REFUSED(#name, __VA_ARGS__) return error;                                                  \
        return real args;                                                                          \
    }

/* --- memory ----------------------------------------------------------------------------------- */

void *__libc_malloc(size_t size);

void *malloc(size_t size) {
    REFUSED("malloc", ENOMEM) {
        errno = error;
        return NULL;
    }
    return __libc_malloc(size);
}

void *__libc_calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size) {
    REFUSED("calloc", ENOMEM) {
        errno = error;
        return NULL;
    }
    return __libc_calloc(n, size);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    REFUSED("mmap", ENOMEM, EAGAIN, EPERM) {
        errno = error;
        return MAP_FAILED;
    }
    void *p = real(at, size, protection, flags, fd, offset);
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (p == MAP_FAILED || !(flags & MAP_SHARED) || caller < ours_from || caller >= ours_to)
        return p;
    for (int i = 0; i < REGIONS; i++) {
        uintptr_t free = 0;
        if (!atomic_compare_exchange_strong(&region_from[i], &free, (uintptr_t)p)) continue;
        region_to[i] = (uintptr_t)p + size;
        break;
    }
    return p;
}

int munmap(void *p, size_t size) {
    REAL(munmap);
    for (int i = 0; i < REGIONS; i++) {
        if (region_from[i] == (uintptr_t)p) region_from[i] = 0;
    }
    return real(p, size);
}

static int is_in_region(uintptr_t word) {
    for (int i = 0; i < REGIONS; i++) {
        if (region_from[i] && word >= region_from[i] && word < region_to[i]) return 1;
    }
    return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

/* Reads the mode even where there is none, as the C library does. */
#define MODE(flags)                                                                                \
    mode_t mode = 0;                                                                               \
    va_list rest;                                                                                  \
    va_start(rest, flags);                                                                         \
    if ((flags) & (O_CREAT | __O_TMPFILE)) mode = va_arg(rest, mode_t);                            \
    va_end(rest)

int open(const char *path, int flags, ...) {
    MODE(flags);
    REAL(open);
    REFUSED("open", EMFILE, ENFILE, EACCES, ENOENT, ENOTDIR, ELOOP, ENXIO, EPERM, EINTR, ENOMEM) {
        errno = error;
        return -1;
    }
    return real(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags);
    REAL(openat);
    REFUSED("openat", ENFILE, EACCES, ENOENT, EISDIR, ENOSPC, EOPNOTSUPP, EINTR) {
        errno = error;
        return -1;
    }
    return real(folder, path, flags, mode);
}

DIR *fdopendir(int fd) {
    REAL(fdopendir);
    REFUSED("fdopendir", ENOMEM) {
        errno = error;
        return NULL;
    }
    return real(fd);
}

struct dirent *readdir(DIR *folder) {
    REAL(readdir);
    REFUSED("readdir", ENOENT, EIO) {
        errno = error;
        return NULL;
    }
    return real(folder);
}

/* A call that may also give less than it was asked for. */
#define READS(type, name, params, args, ...)                                                       \
    type name params {                                                                             \
        REAL(name);                                                                                \
        REFUSED(#name, __VA_ARGS__) {                                                              \
            errno = error;                                                                         \
            return error == SHORT ? 0 : -1;                                                        \
        }                                                                                          \
        return real args;                                                                          \
    }

READS(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), EIO, EINTR, EAGAIN, SHORT)
READS(ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), EIO, EINTR, SHORT)
READS(ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags), ENOSYS, EINTR,
      EAGAIN, SHORT)

int close(int fd) {
    REAL(close);
    int rc = real(fd);
    REFUSED("close", EIO, EINTR) {
        errno = error;
        return -1;
    }
    return rc;
}

int fcntl(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    void *arg = va_arg(rest, void *);
    va_end(rest);
    REAL(fcntl);
    REFUSED("fcntl", EPERM, EBUSY, EINVAL) {
        errno = error;
        return -1;
    }
    return real(fd, command, arg);
}

PLAIN(int, fstat, (int fd, struct stat *st), (fd, st), EIO, ENOMEM, EOVERFLOW)
PLAIN(int, lstat, (const char *path, struct stat *st), (path, st), EACCES, ENOENT, ENOMEM)
PLAIN(int, chmod, (const char *path, mode_t mode), (path, mode), EPERM, EROFS)
PLAIN(int, fchmod, (int fd, mode_t mode), (fd, mode), EPERM, EROFS)
PLAIN(int, stat, (const char *path, struct stat *st), (path, st), EACCES, ENOENT, ENOMEM)
PLAIN(int, access, (const char *path, int mode), (path, mode), ENOENT, EACCES, ENOMEM)
PLAIN(int, mkdir, (const char *path, mode_t mode), (path, mode), EACCES, ENOSPC, EROFS, EEXIST)
PLAIN(int, fallocate, (int fd, int mode, off_t from, off_t size), (fd, mode, from, size), ENOSPC,
      EINTR, EOPNOTSUPP, EFBIG)
PLAIN(int, memfd_create, (const char *name, unsigned flags), (name, flags), EMFILE, ENOMEM, ENOSYS,
      EINVAL)
PLAIN(int, flock, (int fd, int how), (fd, how), EINTR, ENOLCK, EWOULDBLOCK)
PLAIN(int, linkat, (int from, const char *old, int to, const char *new, int flags),
      (from, old, to, new, flags), EEXIST, ENOSPC, ENOENT, EPERM, EMLINK)
PLAIN(int, unlink, (const char *path), (path), EACCES, ENOENT, EROFS)
PLAIN(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), EACCES,
      ENOENT, EROFS)
PLAIN(int, dup3, (int from, int to, int flags), (from, to, flags), EBUSY, EINTR)
PLAIN(int, mprotect, (void *at, size_t size, int rights), (at, size, rights), ENOMEM, EACCES)
PLAIN(int, inotify_init1, (int flags), (flags), EMFILE, ENOMEM)
PLAIN(int, inotify_add_watch, (int fd, const char *path, uint32_t mask), (fd, path, mask), ENOSPC,
      EACCES, ENOENT, ENOMEM)
PLAIN(int, ppoll, (struct pollfd * p, nfds_t n, const struct timespec *t, const sigset_t *mask),
      (p, n, t, mask), EINTR, ENOMEM, EINVAL)

/* --- threads and locks ------------------------------------------------------------------------ */

DIRECT(pthread_create,
       (pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
       (thread, attr, run, arg), EAGAIN, EPERM, EINVAL)
DIRECT(pthread_attr_init, (pthread_attr_t * attr), (attr), ENOMEM)
DIRECT(pthread_attr_setstacksize, (pthread_attr_t * attr, size_t size), (attr, size), EINVAL)
DIRECT(pthread_mutexattr_init, (pthread_mutexattr_t * attr), (attr), ENOMEM)
DIRECT(pthread_mutexattr_setpshared, (pthread_mutexattr_t * attr, int shared), (attr, shared),
       ENOTSUP)
DIRECT(pthread_mutexattr_setrobust, (pthread_mutexattr_t * attr, int robust), (attr, robust),
       ENOTSUP)
DIRECT(pthread_mutex_trylock, (pthread_mutex_t * m), (m), EBUSY, EINVAL)
int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
DIRECT(__register_atfork,
       (void (*before)(void), void (*parent)(void), void (*child)(void), void *dso),
       (before, parent, child, dso), ENOMEM)

/* Without attributes (a mutex of the process's own) it is a few stores and cannot fail. */
int pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr) {
    REAL(pthread_mutex_init);
    if (!attr) return real(m, attr);
    REFUSED("pthread_mutex_init", ENOMEM, EAGAIN) return error;
    return real(m, attr);
}

int pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t clock, const struct timespec *until) {
    REAL(pthread_mutex_clocklock);
    REFUSED("pthread_mutex_clocklock", ETIMEDOUT, EOWNERDEAD, ENOTRECOVERABLE, EINVAL) {
        if (error != EOWNERDEAD) return error;
        int rc = real(m, clock, until);
        return rc ? rc : EOWNERDEAD;
    }
    return real(m, clock, until);
}

/* --- system calls by number ------------------------------------------------------------------- */

long syscall(long number, ...) {
    const void *to = __builtin_return_address(0);
    static const int waits[] = {EINTR, EAGAIN, ETIMEDOUT, ENOMEM, END};
    static const int wakes[] = {EFAULT, END};
    static const int two[] = {EINTR,  EAGAIN, ETIMEDOUT, ENOSYS, EPERM,
                              EACCES, EINVAL, ENOMEM,    EFAULT, END};
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    REAL(syscall);
    int error = 0, refused = 0;
    if (number == FUTEX_WAITV)
        refused = is_refused("futex_waitv", to, two, &error);
    else if (number == SYS_futex && (a[1] & FUTEX_CMD_MASK) != FUTEX_WAKE)
        refused = is_refused("futex_wait", to, waits, &error);
    else if (number == SYS_futex && is_in_region((uintptr_t)a[0]))
        refused = is_refused("futex_wake", to, wakes, &error);
    if (refused) {
        errno = error;
        return -1;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
