/* weak_lease.pml - the lease on weak memory: lease.c and await.c.
 *
 * The main member takes its lease, publishes its slot as live, registers a fact, and dies: at any of
 * these moments. The kernel marks its lease. One process attaches and looks at the slot. Two waiters
 * wait for the fact, without slices. All must end. A waiter says "died" only when the fact was never
 * registered, and nobody finds a live slot whose lease nobody has.
 *
 * WRONG=1  a slot is published without release      2  a waiter reads the lease without acquire
 *       3  a waiter looks for its fact before it looks at the lease
 *       4  a waiter marks the lease by a load and a store in place of a compare-and-swap
 *       5  who is woken by the death does not wake the rest
 */
#ifndef WRONG
#define WRONG 0
#endif
#define WORDS 3
#define AGES 8
#define THREADS 4
#include "weak.h"
#define LEASE 0 /* bit 0: it has an owner, bit 1: FUTEX_WAITERS, bit 2: FUTEX_OWNER_DIED */
#define SLOT 1
#define FACT 2
#define OWNED 1
#define WAITED 2
#define DIED 4

bit asleep[THREADS];
int woken_by[THREADS]; /* the view of who woke it: the kernel's queue has a lock */

#define WAKE(i) asleep[i] = 0; woken_by[i] = view[me]
inline wake_one() {
    if
    :: asleep[2] -> WAKE(2)
    :: asleep[3] -> WAKE(3)
    :: !asleep[2] && !asleep[3]
    fi
}
inline wake_all() {
    if :: asleep[2] -> WAKE(2) :: else fi;
    if :: asleep[3] -> WAKE(3) :: else fi
}

active proctype main_member() { /* 0 */
    SCRATCH;
    byte got;
    change(LEASE, got, OWNED, ORDERED); /* md__take_lease */
    publish(SLOT, 1, WRONG != 1);        /* members.c: md__process_enter */
    if
    :: publish(FACT, 1, ORDERED)
    :: true
    fi;
    /* The kernel, handle_futex_death: the mark orders what came before it, then it wakes one. */
    change(LEASE, got, (got & WAITED) | DIED, ORDERED);
    if :: got & WAITED -> atomic { wake_one() } :: else fi
}

active proctype newcomer() { /* 1 */
    SCRATCH;
    byte got;
    bit live;
    read(SLOT, live, ORDERED);
    read(LEASE, got, ORDERED);
    assert(!live || got) /* else a living process would be taken for one that has left */
}

active [2] proctype waiter() { /* 2, 3 */
    SCRATCH;
    byte got, seen;
    bit fact;
    atomic { LAST(SLOT); join(view[me], carried[SLOT * AGES + newest[SLOT]]) } /* it has joined */
    do
    ::
#if WRONG == 3
       read(FACT, fact, ORDERED);
#endif
       /* await.c: arm */
#if WRONG == 4
       read(LEASE, got, ORDERED);
       if :: !(got & DIED) -> got = got | WAITED; publish(LEASE, got, ORDERED) :: else fi;
       seen = got;
#else
       read(LEASE, got, WRONG != 2);
       do
       :: (got & OWNED) && !(got & WAITED) ->
              seen = got;
              change_if(LEASE, seen, got, got | WAITED, WRONG != 2);
              if :: seen == got -> got = got | WAITED; break :: else -> got = seen fi
       :: else -> break
       od;
       seen = got;
#endif
       if
       :: (seen & DIED) && WRONG != 5 -> atomic { wake_all() }
       :: else
       fi;
#if WRONG != 3
       read(FACT, fact, ORDERED); /* read.c: md__look */
#endif
       if
       :: fact -> break
       :: !fact && (seen & DIED) -> assert(!LAST(FACT)); break
       /* md__sleep: the kernel reads what the word is by then, and so does this thread from now on. */
       :: atomic {
              !fact && !(seen & DIED) && LAST(LEASE) == seen;
              view[me] = SET(view[me], LEASE, newest[LEASE]); asleep[me] = 1
          } ->
              atomic { !asleep[me]; join(view[me], woken_by[me]) }
       :: atomic {
              !fact && !(seen & DIED) && LAST(LEASE) != seen;
              view[me] = SET(view[me], LEASE, newest[LEASE])
          }
       fi
    od
}
