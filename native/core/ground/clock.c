/* clock.c - the clock of all deadlines: monotonic, so setting the system time ends no wait. */
#include <time.h>

#include "ground.h"

int64_t md_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
