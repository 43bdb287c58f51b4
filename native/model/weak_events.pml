/* weak_events.pml - event words on weak memory: eventcount.c, Note [Event words], for Spin.
 *
 * Two committers, one after the other under the lock, publish facts A and B of one event word. Two
 * waiters wait for one each, without slices. All must end: nobody stays asleep.
 *
 * WRONG=1  a waiter prepares without acquire       2  a committer rings without release
 *       3  a committer looks at bit 0 by a load, and does not ring when that is clear
 *       4  a waiter looks before it prepares
 */
#ifndef WRONG
#define WRONG 0
#endif
#define WORDS 3
#define AGES 9 /* two rings, and three times two waiters prepare */
#define THREADS 4
#include "weak.h"
#define EVENT 0
#define FACT(i) (1 + (i))

bit asleep[THREADS];

active [2] proctype committer() { /* 0, 1 */
    SCRATCH;
    byte got;
    lock();
    publish(FACT(me), 1, ORDERED); /* chain.c: md__commit */
#if WRONG == 3
    peek(EVENT, got);
    if :: got & 1 :: else -> goto rung fi;
#endif
    change(EVENT, got, (got + 2) & 254, WRONG != 2); /* md__event_ring */
    if :: got & 1 -> atomic { asleep[2] = 0; asleep[3] = 0 } :: else fi; /* the wake */
#if WRONG == 3
rung:
#endif
    unlock()
}

active [2] proctype waiter() { /* 2, 3 */
    SCRATCH;
    byte got, seen;
    bit fact;
    do
    ::
#if WRONG == 4
       read(FACT(me - 2), fact, ORDERED);
#endif
       change(EVENT, got, got | 1, WRONG != 1); /* md__event_prepare */
       seen = got | 1;
#if WRONG != 4
       read(FACT(me - 2), fact, ORDERED); /* read.c: md__look */
#endif
       if
       :: fact -> break
       /* md__sleep: the kernel compares with what the got is by then, and queues, in one step. */
       :: atomic { !fact && LAST(EVENT) == seen; asleep[me] = 1 } -> !asleep[me]
       :: atomic { !fact && LAST(EVENT) != seen }
       fi
    od
}
