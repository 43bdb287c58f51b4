/* wake_up.c - how long from telling to the waiter's return, from one process to another: a bare
 * futex against a fact in a registry.
 *
 *     wake_up BLOCKS PINGS CPU CPU
 *
 * prints one line per block: the median ns of the futex's pings, and of the registry's. The parent
 * runs on the first processor and the child on the second; -1 leaves one to the scheduler. Where it
 * wakes the child, beside the parent or on the other processor, matters more than what is measured
 * (3 us or 20 here): hence the processors are chosen, and a coin decides which way a ping goes.
 *
 * Before each ping the child says that it is about to sleep, and the parent gives it PAUSE_NS to do
 * so. What is measured begins before the parent's call and ends after the child's.
 */
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mdispatch.h"

enum { PAUSE_NS = 150 * 1000, CAPACITY = 256 << 20 };

/* What the two share besides the registry. */
struct shared {
    _Atomic uint32_t word;  /* the futex: raised by the parent */
    _Atomic uint32_t ready; /* pings for which the child is about to sleep */
    _Atomic uint32_t done;  /* pings for which `woken` is there */
    _Atomic int64_t woken;
    char address[MD_MAX_ADDRESS];
};

enum way { BARE, REGISTRY, WAYS };

static void must(int status, const char *what) {
    if (status == 0) return;
    fprintf(stderr, "%s: %s\n", what, md_status_text(status));
    exit(1);
}

static void run_on(int cpu) {
    cpu_set_t set;
    if (cpu < 0) return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) perror("sched_setaffinity");
}

/* Both toss the same coin. */
static enum way toss(uint32_t *coin) {
    *coin = *coin * 1664525 + 1013904223;
    return *coin >> 31 ? REGISTRY : BARE;
}

static int name_of(char *buf, size_t cap, uint32_t ping) {
    return snprintf(buf, cap, "bench::wake_%u", ping);
}

/* The bare futex, of which the rest of the conversation is made too: no timer, no spinning. */
static void say(_Atomic uint32_t *counter, uint32_t value) {
    atomic_store(counter, value);
    syscall(SYS_futex, counter, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void until(_Atomic uint32_t *counter, uint32_t value) {
    uint32_t seen;
    while ((seen = atomic_load(counter)) < value)
        syscall(SYS_futex, counter, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void pause_ns(long ns) {
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

static void child(struct shared *s, uint32_t pings) {
    md_registry reg;
    uint64_t member;
    uint32_t role, coin = 1;
    char name[64], buf[4096];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(md_attach(s->address, md_now() + 5000000000, &reg), "md_attach");
    must(md_join(reg, 0, &member, &role), "md_join");
    for (uint32_t ping = 0; ping < pings; ping++) {
        md_wait_stats stats = {0};
        uint32_t seen = atomic_load(&s->word);
        int len = name_of(name, sizeof name, ping);
        say(&s->ready, ping + 1);
        if (toss(&coin) == REGISTRY) {
            int status;
            do /* a pause of the machine ends the sleep of a futex, as a signal does */
                status = md_await(reg, member, MD_DEF, 0, 1, name, (size_t)len, MD_FOREVER, 0, buf,
                                  sizeof buf, &stats);
            while (status == MD_EINTR);
            must(status, "md_await");
        } else {
            until(&s->word, seen + 1);
        }
        atomic_store(&s->woken, md_now());
        say(&s->done, ping + 1);
    }
    md_leave(reg, member);
    exit(0);
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(int64_t *values, uint32_t count) {
    qsort(values, count, sizeof *values, by_size);
    return values[count / 2];
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    uint32_t blocks = (uint32_t)atoi(argv[1]), pings = (uint32_t)atoi(argv[2]), ping = 0, coin = 1;
    int64_t *took[WAYS] = {calloc(pings, sizeof(int64_t)), calloc(pings, sizeof(int64_t))};
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    md_registry reg;
    uint64_t member;
    uint32_t role;
    char name[64], buf[4096];
    int start[2];
    if (s == MAP_FAILED || !took[BARE] || !took[REGISTRY] || pipe(start)) return 1;
    pid_t pid = fork(); /* before there is a registry: the child is a process like any other */
    if (pid == 0) {
        run_on(atoi(argv[4]));
        if (read(start[0], buf, 1) != 1) return 1;
        child(s, blocks * pings);
    }
    run_on(atoi(argv[3]));
    must(md_create(NULL, CAPACITY, &reg), "md_create");
    must(md_join(reg, 0, &member, &role), "md_join");
    must(md_address(reg, s->address, sizeof s->address), "md_address");
    if (write(start[1], "", 1) != 1) return 1;
    for (uint32_t block = 0; block < blocks; block++) {
        uint32_t count[WAYS] = {0, 0};
        for (uint32_t i = 0; i < pings; i++, ping++) {
            int len = name_of(name, sizeof name, ping);
            enum way way = toss(&coin);
            until(&s->ready, ping + 1);
            pause_ns(PAUSE_NS);
            int64_t began = md_now();
            if (way == REGISTRY) {
                must(md_register(reg, member, MD_DEF, MD_UNIQUE, 0, name, (size_t)len, "bench", 5,
                                 "here", 4, buf, sizeof buf),
                     "md_register");
            } else {
                say(&s->word, atomic_load(&s->word) + 1);
            }
            until(&s->done, ping + 1);
            took[way][count[way]++] = atomic_load(&s->woken) - began;
        }
        printf("%lld %lld\n", (long long)median(took[BARE], count[BARE]),
               (long long)median(took[REGISTRY], count[REGISTRY]));
    }
    waitpid(pid, NULL, 0);
    md_leave(reg, member);
    md_close(reg);
    return 0;
}
