/* between.h - runs something between any two instructions of a call.
 *
 * The calling thread runs with the processor's trap flag set. After the chosen instruction its
 * SIGTRAP handler does something that another thread or process could do at that moment. So a test
 * loses a race at each instruction where it can be lost, by choice and not by luck. The handler
 * must not wait for anything that the interrupted call holds.
 *
 * Only x86-64 has the trap flag.
 */
#ifndef MD_TESTS_BETWEEN_H
#define MD_TESTS_BETWEEN_H

#include <ucontext.h>

#include "test.h"

static volatile struct {
    long at, now;
    void (*deed)(void);
    int on; /* repeat it after each later instruction */
} between;

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
enum { BETWEEN_WORKS = 1, TRAP = 1 << 8 };

static inline void between_on_trap(int signal, siginfo_t *info, void *context) {
    int saved = errno;
    if (++between.now >= between.at) {
        between.deed();
        if (between.on) return;
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &=
            ~TRAP; /* run the rest at full speed */
    }
    errno = saved;
}

static inline void between_trap(int on) {
    uint64_t flags = __builtin_ia32_readeflags_u64();
    __builtin_ia32_writeeflags_u64(on ? flags | TRAP : flags & ~(uint64_t)TRAP);
}
#else
enum { BETWEEN_WORKS = 0 };
static inline void between_on_trap(int signal, siginfo_t *info, void *context) {
}
static inline void between_trap(int on) {
}
#endif

enum { FIRST_FEW = 48, BETWEEN_SAMPLE = 8 };

/* Calls `act`, and `deed` after its instruction number `at`. Returns whether it has that many. */
static inline int act_between(long at, void (*act)(void), void (*deed)(void)) {
    struct sigaction on = {.sa_sigaction = between_on_trap, .sa_flags = SA_SIGINFO};
    between.at = at;
    between.now = 0;
    between.deed = deed;
    sigaction(SIGTRAP, &on, NULL);
    void (*volatile call)(void) = act; /* the compiler must not mix it with the code around it */
    between_trap(1);
    call();
    between_trap(0);
    return between.now >= at;
}

/* Runs `start`, `act` and `end` again and again: with `deed` after the first instruction of `act`,
 * then after `stride` more, and so on up to `last` or to the end of `act`. Each run traps at all
 * instructions before its own, so beyond the first few a sample is tried. */
static inline void at_instructions(long stride, long last, void (*start)(void), void (*act)(void),
                                   void (*deed)(void), void (*end)(void)) {
    int more = BETWEEN_WORKS, failures = test_failures;
    long at = 1, tried = 0, points = 0;
    for (; more && at <= last; at += stride, points++) {
        if (at > FIRST_FEW && !in_sample((uint64_t)points, BETWEEN_SAMPLE)) continue;
        tried++;
        start();
        more = act_between(at, act, deed);
        end();
        if (test_failures != failures) break; /* show a few faults, not thousands */
    }
    if (!BETWEEN_WORKS)
        printf("       (left out: no trap flag here)\n");
    else
        printf("       tried at %ld of %ld points up to instruction %ld\n", tried, points,
               at - stride);
    if (test_failures != failures) fprintf(stderr, "at instruction %ld\n", at);
}

#endif
