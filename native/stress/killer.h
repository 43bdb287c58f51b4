/* killer.h - how the killers (kill.c, elect.c) choose the instant. */
#ifndef MD_STRESS_KILLER_H
#define MD_STRESS_KILLER_H

#include <sys/resource.h>

#include "report.h"

enum {
    SPIN_NS = 200000,
    NAP_NS = 300000,
    INSIDE_NS = 10000,
    HUNT_NS = 400000,
    TURN_NS = 100000,
};
static const int64_t HANG_NS = 12ll * 1000000000; /* more than the 10 s of patience for a lock */

static uint64_t dice;

static void spin(int64_t ns) {
    for (int64_t end = md_now() + ns; md_now() < end;) {}
}

/* Where there are fewer processors than busy processes, a killer that spins keeps its victim from
 * running. A nap does not: the interrupt that ends it finds the victim at a random instruction. */
static void kill_somewhere(uint32_t i) {
    cell *c = &shown->cells[i];
    struct timespec nap = {.tv_nsec = (long)below(&dice, NAP_NS)};
    int64_t end = md_now() + HUNT_NS;
    switch (below(&dice, 3)) {
    case 0:
        spin(below(&dice, SPIN_NS));
        break;
    case 1:
        nanosleep(&nap, NULL);
        break;
    default:
        while (md__read32(&c->op) == NOTHING && md_now() < end) sched_yield();
        spin(below(&dice, INSIDE_NS));
    }
    kill(c->pid, SIGKILL);
}

/* Asks for shorter time slices. Then kills hit more processes in the midst of something, and dead
 * processes end sooner. It is only a wish: kernels before 6.12 ignore it. */
static void take_short_turns(void) {
    struct { /* the kernel's struct sched_attr: its header cannot be included with <sched.h> */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attr = {.size = sizeof attr, .runtime = TURN_NS};
    attr.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &attr, 0);
}

static void on_alarm(int signal) {
    static const char words[] = "FAILED: the killer itself hangs\n";
    (void)signal;
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0) _exit(4);
    _exit(3);
}

#endif
