/* test.h - shared by the C tests: checks, children, steps, waiters that are known to sleep, and
 * short forms of the usual calls.
 *
 * No test sleeps for a time. Steps go through pipes. A waiter is known to be asleep when md_members
 * counts it and the kernel says that its thread is in a futex call. Tests wait for the end of a
 * process. Children never return from the function that they run, so that a test runs once.
 */
#ifndef MD_TESTS_TEST_H
#define MD_TESTS_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../core/contract/contract.h"
#include "own_folder.h"

#define TEST(name) static void name(void)
#define RUN(name) test_run(name, #name)
/* For tests that step instruction by instruction. */
#define RUN_STEPPED(name) test_run_stepped(name, #name)
#define CHECK(truth) test_check((truth) ? 1 : 0, #truth, __FILE__, __LINE__)
#define EQ(is, should) test_equal((long long)(is), (long long)(should), #is, __FILE__, __LINE__)
#define OK(call) EQ(call, 0)

static int test_failures, test_passed, test_failed;
static int test_chose; /* 1: by a seed; 2: a sample or all */

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
enum { LEASES_PER_THREAD = 60 };        /* it can follow only that many locks */
enum { FORKS_BESIDE_BUSY_THREADS = 0 }; /* locks of its own stay locked for ever in the child */
void __tsan_mutex_create(void *m, unsigned flags);
void __tsan_mutex_destroy(void *m, unsigned flags);
/* In a child it still believes that the lock is held by the thread of the parent that held it at
 * the fork. */
static inline void forget_parents_lock(pthread_mutex_t *m) {
    __tsan_mutex_destroy(m, 0);
    __tsan_mutex_create(m, 0);
}
/* An option for programs that fork with threads; it suppresses nothing. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "die_after_fork=0:halt_on_error=1:report_destroy_locked=0"; /* the last for
                                                                          forget_parents_lock */
}

#include "clocklock.h"
#else
enum { LEASES_PER_THREAD = 64 };
enum { FORKS_BESIDE_BUSY_THREADS = 1 };
static inline void forget_parents_lock(pthread_mutex_t *m) {
    (void)m;
}
#endif

static inline int test_check(int truth, const char *words, const char *file, int line) {
    if (truth) return 1;
    __atomic_add_fetch(&test_failures, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "%s:%d: %s\n", file, line, words);
    return 0;
}

static inline int test_equal(long long is, long long should, const char *words, const char *file,
                             int line) {
    if (is == should) return 1;
    __atomic_add_fetch(&test_failures, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "%s:%d: %s is %lld (%s), not %lld\n", file, line, words, is,
            is < 0 && is > -1000 ? md_status_text((int)is) : "", should);
    return 0;
}

/* Whether a process can be stepped. ThreadSanitizer makes a hundred instructions of one, and it
 * finds nothing, since only one thread runs. An ARM processor without instructions for atomic
 * operations has pairs of an exclusive load and store instead: the trap between the two makes the
 * store fail, so that a stepped process repeats the pair for ever. */
static inline int can_be_stepped(void) {
#if defined(__SANITIZE_THREAD__)
    return 0;
#elif defined(__aarch64__)
    return (getauxval(AT_HWCAP) & HWCAP_ATOMICS) != 0;
#else
    return 1;
#endif
}

/* A limit of time, as long as MDISPATCH_TEST_PATIENCE says: 10 is for a machine with much else to
 * do, and for an emulated one. */
static inline int64_t limit(int64_t usual) {
    const char *patience = getenv("MDISPATCH_TEST_PATIENCE");
    double times = patience ? atof(patience) : 0;
    return times > 0 ? (int64_t)((double)usual * times) : usual;
}

static inline void test_run(void (*test)(void), const char *name) {
    int64_t start = md_now();
    const char *only = getenv("MD_ONLY");
    if (only && !strstr(name, only)) return;
    /* So that a hang fails with the name of the test. */
    alarm((unsigned)limit(getenv("MD_ROUNDS") ? 3600 : 120));
    fflush(stdout);
    test_failures = 0; /* of those before: loops end where it is not */
    test();
    int failed = test_failures != 0;
    printf("%s %s (%.0f ms)\n", failed ? "FAILED" : "ok    ", name,
           (double)(md_now() - start) / 1e6);
    fflush(stdout);
    test_failed += failed;
    test_passed += !failed;
}

static inline void test_run_stepped(void (*test)(void), const char *name) {
    if (can_be_stepped())
        test_run(test, name);
    else
        printf("left out %s\n", name);
}

/* --- samples ---------------------------------------------------------------------------------- */

/* What a test chooses by chance, it chooses by this: MD_SEED, or `make test SEED=8`. */
static inline uint64_t test_seed(void) {
    const char *given = getenv("MD_SEED");
    test_chose |= 1;
    return given ? strtoull(given, NULL, 0) : 1;
}

/* Whether to try all that can be tried, or a sample: MD_ALL=1, or `make test ALL=1`. */
static inline int tries_all(void) {
    const char *all = getenv("MD_ALL");
    test_chose |= 2;
    return all && *all;
}

/* Whether number 0, 1, 2 ... is in a sample of one in so many. That many seeds in a row have all. */
static inline int in_sample(uint64_t number, uint64_t one_in) {
    return tries_all() || (number + test_seed()) % one_in == 0;
}

/* The first of the points 1, 1 + stride ... or, by another seed, 2, 2 + stride ... */
static inline long first_point(long stride) {
    return 1 + (long)(test_seed() % (uint64_t)stride);
}

static inline int test_done(void) {
    printf("%d passed, %d failed\n", test_passed, test_failed);
    if (test_chose) {
        int sampled = test_chose & 2 && !tries_all();
        printf("seed %llu%s\n", (unsigned long long)test_seed(),
               sampled ? "; MD_ALL=1 (make test ALL=1) tries what the samples left out" : "");
    }
    return test_failed ? 1 : 0;
}

/* How often to repeat something: `usual` times, multiplied by MD_ROUNDS, which can be 0.1 where all
 * is slow; less with a sanitizer. */
static inline int rounds(int usual) {
    const char *more = getenv("MD_ROUNDS");
    double times = more && atof(more) > 0 ? atof(more) : 1;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    usual = usual > 10 ? usual / 5 : usual;
#endif
    return usual * times < 1 ? 1 : (int)(usual * times);
}

/* --- children --------------------------------------------------------------------------------- */

/* Runs `body` in a child that dies with its parent. Its exit code says whether all its checks
 * held. */
static inline pid_t child(void (*body)(void *), void *arg) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    test_failures = 0;
    body(arg);
    fflush(NULL);
    _exit(test_failures ? 1 : 0);
}

/* Waits for a child: 0 when it ended well, the negated signal when it was killed. */
static inline int reap(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) return 1000 + errno;
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void kill_now(pid_t pid) {
    kill(pid, SIGKILL);
    EQ(reap(pid), -SIGKILL);
}

/* Memory that a test and its children share, apart from the registry. */
static inline void *shared(size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

/* A step for which another process waits: one byte in a pipe. */
struct step {
    int fd[2];
};
static inline struct step step_make(void) {
    struct step s;
    if (pipe2(s.fd, O_CLOEXEC)) abort();
    return s;
}
static inline void step_give(struct step s) {
    while (write(s.fd[1], "x", 1) < 0 && errno == EINTR) {}
}
static inline int step_take(struct step s) {
    char c;
    ssize_t n;
    while ((n = read(s.fd[0], &c, 1)) < 0 && errno == EINTR) {}
    return n == 1;
}
static inline void step_free(struct step s) {
    close(s.fd[0]);
    close(s.fd[1]);
}

/* --- waiters ---------------------------------------------------------------------------------- */

static inline uint32_t waiters(md_registry reg) {
    static md_member_info infos[MD_MAX_MEMBERS];
    size_t n = 0;
    uint32_t sum = 0;
    if (md_members(reg, infos, MD_MAX_MEMBERS, &n)) return 0;
    for (size_t i = 0; i < n; i++) sum += infos[i].waiters;
    return sum;
}

static inline void until_waiting(md_registry reg, uint32_t count) {
    while (waiters(reg) < count) sched_yield();
}

/* Waits until the kernel says that this thread is in one of two system calls. */
static inline void until_inside(pid_t pid, pid_t tid, int one, int other) {
    char path[64], text[32];
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)pid, (int)tid);
    for (;;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        if (n < 0) return;
        text[n] = '\0';
        int call = text[0] >= '0' && text[0] <= '9' ? atoi(text) : -1;
        if (call == one || call == other) return;
        sched_yield();
    }
}

static inline void until_asleep(pid_t pid, pid_t tid) {
    until_inside(pid, tid, 449 /* futex_waitv */, SYS_futex);
}

static inline int has_waitv(void) {
    return !(syscall(449, NULL, 0, 0, NULL, 0) < 0 && (errno == ENOSYS || errno == EPERM));
}

static inline int compare_ns(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}
static inline void print_latency(const char *what, int64_t *ns, size_t n) {
    qsort(ns, n, sizeof *ns, compare_ns);
    printf("       %s: median %.1f us, p99 %.1f us, worst %.1f us (%zu)\n", what,
           (double)ns[n / 2] / 1e3, (double)ns[n * 99 / 100] / 1e3, (double)ns[n - 1] / 1e3, n);
}

/* --- the usual calls in short ----------------------------------------------------------------- */

enum { KEY = 7, BUF = 8192 };

struct main_member {
    md_registry reg;
    uint64_t member;
};

static inline uint64_t join(md_registry reg, int64_t interp, uint32_t should) {
    uint64_t member = UINT64_MAX;
    uint32_t role = 0;
    OK(md_join(reg, interp, &member, &role));
    EQ(role, should);
    return member;
}

static inline struct main_member open_main(const char *name, uint64_t capacity) {
    struct main_member m = {0};
    OK(md_create(name, capacity, &m.reg));
    m.member = join(m.reg, 0, MD_MAIN);
    return m;
}

/* The fields of an address fd:PID:NUMBER:UUID:BOOT:SPACE. */
enum { IN_PID = 1, IN_NUMBER, IN_UUID, IN_BOOT, IN_SPACE };

/* Changes the last digit of one of them. */
static inline void change_digit(char *address, int field) {
    char *p = address;
    for (; field; field--) p = strchr(p, ':') + 1;
    p += strcspn(p, ":") - 1;
    *p = *p == '1' ? '2' : '1';
}

/* An address of this boot and PID namespace that leads nowhere. */
static inline const char *address_of(long pid, int number) {
    static char address[MD_MAX_ADDRESS];
    char origin[MD__ORIGIN];
    OK(md_origin(NULL, origin, sizeof origin));
    snprintf(address, sizeof address, "fd:%ld:%d:0123456789abcdef0123456789abcdef:%s", pid, number,
             origin);
    return address;
}

static inline void check_whole(md_registry reg) {
    char words[4096];
    if (!OK(md_check(reg, words, sizeof words))) fputs(words, stderr);
}

static inline void close_main(struct main_member m) {
    check_whole(m.reg);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

static inline int put(struct main_member m, uint32_t rule, const char *name, int32_t key,
                      const char *body, md_record *out) {
    char buf[BUF];
    int rc = md_register(m.reg, m.member, MD_IMPL, rule, key, name, strlen(name), body,
                         strlen(body), "t.c:1", 5, buf, sizeof buf);
    if (rc == 0 && out) memcpy(out, buf, sizeof *out);
    return rc;
}

static inline int strike_out(struct main_member m, const md_record *r) {
    return md_strike(m.reg, m.member, r->ref, r->seq);
}

static inline int find(md_registry reg, const char *name, int32_t key, char *body, size_t cap) {
    char buf[BUF];
    md_record r;
    int rc = md_find(reg, MD_IMPL, key, name, strlen(name), buf, sizeof buf);
    if (rc || !body) return rc;
    memcpy(&r, buf, sizeof r);
    snprintf(body, cap, "%.*s", (int)r.body_len, buf + sizeof r + r.name_len);
    return 0;
}

static inline int await_fact(md_registry reg, uint64_t member, const char *name, uint32_t at_least,
                             int64_t deadline, uint64_t ticket, md_wait_stats *stats) {
    char buf[BUF];
    int rc;
    memset(stats, 0, sizeof *stats);
    do
        rc = md_await(reg, member, MD_IMPL, KEY, at_least, name, strlen(name), deadline, ticket,
                      buf, sizeof buf, stats);
    while (rc == MD_EINTR && md__on_main_thread()); /* which has to look for signals now and then */
    return rc;
}

/* For a child of fork or an unrelated process: opens the registry by its address and joins. */
static inline struct main_member attach_as(const char *address, uint32_t role) {
    struct main_member m = {0};
    OK(md_attach(address, md_now() + limit(5000000000), &m.reg));
    m.member = join(m.reg, 0, role);
    return m;
}
static inline struct main_member attach_worker(const char *address) {
    return attach_as(address, MD_WORKER);
}

/* One thread that waits for one fact of kind MD_IMPL under KEY. */
struct waiter {
    md_registry reg;
    uint64_t member;
    const char *name;
    uint32_t at_least;
    int64_t deadline;
    uint64_t ticket;
    int rc; /* these three: after waiter_end */
    md_wait_stats stats;
    int64_t returned;
    md__u32 tid;
    pthread_t thread;
};

static inline void *waiter_run(void *arg) {
    struct waiter *w = arg;
    md__publish32(&w->tid, (uint32_t)syscall(SYS_gettid));
    w->rc = await_fact(w->reg, w->member, w->name, w->at_least, w->deadline, w->ticket, &w->stats);
    w->returned = md_now();
    return NULL;
}

/* Returns when the thread sleeps in its wait. */
static inline void waiter_start(struct waiter *w, md_registry reg, uint64_t member,
                                const char *name) {
    uint32_t before = waiters(reg);
    w->reg = reg;
    w->member = member;
    w->name = name;
    if (!w->at_least) w->at_least = 1;
    if (!w->deadline) w->deadline = MD_FOREVER;
    pthread_create(&w->thread, NULL, waiter_run, w);
    until_waiting(reg, before + 1);
    until_asleep(getpid(), (pid_t)md__read32(&w->tid));
}

static inline int waiter_end(struct waiter *w) {
    pthread_join(w->thread, NULL);
    return w->rc;
}

/* Whatever the region's descriptor names now is the region. */
static inline void note_file(md__reg *reg) {
    struct stat st;
    if (fstat(reg->fd, &st)) abort();
    reg->device = st.st_dev;
    reg->inode = st.st_ino;
}

static inline md__reg *inner(md_registry handle) {
    md__reg *reg;
    OK(md__enter(handle, &reg));
    md__exit(reg);
    return reg;
}

/* Makes a worker write as the main member does, so that a writer can be killed while the main
 * member lives on. */
static inline void promote(md_registry reg, uint64_t member) {
    md__reg *r;
    OK(md__enter(reg, &r));
    md__poke32(&md__member(r, (uint32_t)member)->role, MD_MAIN);
    md__exit(r);
}

#endif
