/* find.c - what md_find takes when the fact is there, in one process and in two at once.
 *
 *     find ROUNDS FINDS NAMES
 *
 * prints one line per round: ns per find of one process alone, ns per find while two processes find
 * at once (of the slower one), and ns per turn of a loop that does the same without the registry, by
 * which it is seen what the machine has to give, alone and at once.
 *
 * Both processes attach the same registry and look for all its names in an order that no cache
 * foresees. They are on processors of their own where there are two.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "mdispatch.h"

enum { CAPACITY = 256 << 20, NAME = 32 };
enum work { FIND, SPIN, END };

/* What the two share besides the registry. Each turn is told by a byte through a pipe. */
struct shared {
    _Atomic uint32_t ready; /* processes at the start; both leave it at once */
    _Atomic double ns;      /* the child's, per repetition */
    char address[MD_MAX_ADDRESS];
};

struct names {
    uint32_t count;
    int *length;
    char (*name)[NAME];
};

static void must(int status, const char *what) {
    if (status == 0) return;
    fprintf(stderr, "%s: %s\n", what, md_status_text(status));
    exit(1);
}

/* The nth processor that we may use, if there are so many. */
static void run_on(int nth) {
    cpu_set_t allowed, set;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    if (nth >= CPU_COUNT(&allowed)) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || nth-- > 0) continue;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof set, &set);
        return;
    }
}

static struct names named(uint32_t count) {
    struct names n = {count, calloc(count, sizeof *n.length), calloc(count, sizeof *n.name)};
    if (!n.length || !n.name) exit(1);
    for (uint32_t i = 0; i < count; i++)
        n.length[i] = snprintf(n.name[i], NAME, "bench::operator_%u", i);
    return n;
}

/* ns per repetition. */
static double run(enum work work, md_registry reg, const struct names *n, uint32_t repeat) {
    _Alignas(16) char buf[4096];
    uint32_t dice = 1;
    int64_t began = md_now();
    for (uint32_t i = 0; i < repeat; i++) {
        dice = dice * 1664525 + 1013904223;
        uint32_t which = (uint32_t)(((uint64_t)dice * n->count) >> 32);
        if (work == FIND)
            must(md_find(reg, MD_DEF, 0, n->name[which], (size_t)n->length[which], buf, sizeof buf),
                 "md_find");
        else
            __asm__ volatile("" : : "r"(n->name[which][0]) : "memory");
    }
    return (double)(md_now() - began) / repeat;
}

static void start(struct shared *s) {
    atomic_fetch_add(&s->ready, 1);
    while (atomic_load(&s->ready) < 2) sched_yield();
}

static void child(struct shared *s, int told, int tells, const struct names *n, uint32_t repeat) {
    md_registry reg;
    char turn;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_on(1);
    if (read(told, &turn, 1) != 1) exit(1);
    must(md_attach(s->address, md_now() + 5000000000, &reg), "md_attach");
    while (read(told, &turn, 1) == 1 && turn != END) {
        start(s);
        atomic_store(&s->ns, run((enum work)turn, reg, n, repeat));
        if (write(tells, "", 1) != 1) exit(1);
    }
    exit(0);
}

static double both(enum work work, struct shared *s, int tells, int told, md_registry reg,
                   const struct names *n, uint32_t repeat) {
    char turn = (char)work;
    atomic_store(&s->ready, 0);
    if (write(tells, &turn, 1) != 1) exit(1);
    start(s);
    double ours = run(work, reg, n, repeat);
    if (read(told, &turn, 1) != 1) exit(1);
    double theirs = atomic_load(&s->ns);
    return ours > theirs ? ours : theirs;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint32_t rounds = (uint32_t)atoi(argv[1]), repeat = (uint32_t)atoi(argv[2]), role;
    struct names n = named((uint32_t)atoi(argv[3]));
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    md_registry reg;
    uint64_t member;
    char buf[4096], end = END;
    int there[2], back[2];
    if (s == MAP_FAILED || pipe(there) || pipe(back)) return 1;
    pid_t pid = fork(); /* before there is a registry: the child is a process like any other */
    if (pid == 0) child(s, there[0], back[1], &n, repeat);
    run_on(0);
    must(md_create(NULL, CAPACITY, &reg), "md_create");
    must(md_join(reg, 0, &member, &role), "md_join");
    must(md_address(reg, s->address, sizeof s->address), "md_address");
    for (uint32_t i = 0; i < n.count; i++)
        must(md_register(reg, member, MD_DEF, MD_UNIQUE, 0, n.name[i], (size_t)n.length[i],
                         "(Tensor x) -> Tensor", 20, "operators.py:100", 16, buf, sizeof buf),
             "md_register");
    if (write(there[1], "", 1) != 1) return 1;
    for (uint32_t round = 0; round <= rounds; round++) {
        double found[4] = {
            run(FIND, reg, &n, repeat),
            both(FIND, s, there[1], back[0], reg, &n, repeat),
            run(SPIN, reg, &n, repeat),
            both(SPIN, s, there[1], back[0], reg, &n, repeat),
        };
        if (round) printf("%f %f %f %f\n", found[0], found[1], found[2], found[3]);
    }
    if (write(there[1], &end, 1) != 1) return 1;
    waitpid(pid, NULL, 0);
    md_leave(reg, member);
    md_close(reg);
    return 0;
}
