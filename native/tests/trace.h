/* trace.h - stops a child at a chosen instruction. */
#ifndef MD_TESTS_TRACE_H
#define MD_TESTS_TRACE_H

#include <sys/ptrace.h>

#include "test.h"

/* In the child: from here on its parent steps it. */
static inline void be_traced(void) {
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
}

/* Stepping is several times faster when both processes share a processor. */
static inline cpu_set_t share_one_processor(void) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    return all;
}

/* In the child: the stepping ends here at the latest. */
static inline void be_traced_no_more(void) {
    raise(SIGSTOP);
}

/* In the parent: lets the child run to its end. Returns 0 when it ended well. */
static inline int let_run(pid_t pid) {
    int status;
    do {
        ptrace(PTRACE_CONT, pid, NULL, NULL);
        if (waitpid(pid, &status, 0) != pid) return -1;
    } while (WIFSTOPPED(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Steps the child over that many instructions. Returns how many it took, fewer if it ended
 * before. */
static inline long step(pid_t pid, long count) {
    int status;
    waitpid(pid, &status, 0);
    for (long i = 0; i < count; i++) {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) < 0) return -1;
        if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
            return i;
    }
    return count;
}

#endif
