/* choices.pml - one member decides and all use what it has chosen, for Spin: Note [Claims] in
 * native/core/state/claims.c, Note [One turn for each interpreter] in mdispatch/choices/choosing.py.
 *
 * Three processes beside each other in a registry that has a main member; up to four threads ask
 * for one choice, each at some moment: A in the main member's process, B1 and B2 in one interpreter of a
 * worker's, C in another worker's. Whoever decides may raise (RAISES times), whoever waits for
 * another's decision may run out of time (TIMEOUTS times), and each process may be killed before
 * each step (DEATHS of them). With LOADS=1 the main member also loads the choice from a file. The bits
 * of ASKERS say who asks: 1 A, 2 B1, 4 B2, 8 C.
 *
 * A ring of an event word is one step, and so is a recovery; registry.pml takes them apart. A slice
 * helps who sleeps only where the core needs it: after a death that took along a wake that was owed
 * or the lock, and when the main member is dead, of which a waiter whose decider lives is told by
 * its slice. Nothing is withdrawn, nobody leaves.
 *
 * Properties: no two decide at once, of processes that live. Nobody begins to decide when there is a
 * choice (but one that is being loaded). A choice is made once, and all that are told one are told
 * the same. Each thread ends, unless it is killed: it is told the choice, raises, runs out of time,
 * or is told that the main member is gone. (Who does not end is a deadlock of the search.)
 *
 * WRONG=n builds a protocol that is broken in one place; each must fail:
 *   1  who has claimed does not look once more whether the choice is there
 *   2  who decides releases its claim before it registers the choice
 *   3  who raises does not release its claim
 *   4  the end of a claim rings nobody
 *   5  who waits for a choice does not watch the lease of who decides
 *   6  who hears that the decider is dead does not sweep it
 *   7  a turn ends before its claim is released: the next thread takes the claim for its own
 *   8  a turn is not marked as ending while its claim is released
 *   9  a choice may be made twice (needs LOADS=1)
 */
#ifndef WRONG
#define WRONG 0
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef RAISES
#define RAISES 1
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 1
#endif
#ifndef LOADS
#define LOADS 0
#endif

#ifndef ASKERS
#define ASKERS 15
#endif

#define MAIN 1 /* processes: MAIN, B and C */
#define LOADER 4
#define its(thread) (thread == 0 || thread == LOADER -> MAIN : (thread == 3 -> 3 : 2))

bit dead[4];
byte lock;  /* the thread that has the region's lock, plus 1 */
byte q[3];  /* the claims: processes, the oldest first */
byte choice; /* who made it, plus 1 */
byte turn[4]; /* Turns.deciding: the thread whose turn it is, plus 1 */
bit ending[4];

#define NAME 1
#define CHANGES 2
/* For each thread: the word that it has prepared, whether no ring came since, the process on whose
 * lease it sleeps, whether the registry's sequence has risen since it took it. */
byte word[4], on[4];
bit fresh[4], asleep[4], risen[4];

/* Ghosts. */
bit owes[4]; /* the kernel has woken this thread alone on a lease */
bit excused, deciding[4];
byte deaths, raises, timeouts;

#define TELL risen[0] = 1; risen[1] = 1; risen[2] = 1; risen[3] = 1
#define RING_ONE(t, w) if :: word[t] == w -> fresh[t] = 0; asleep[t] = 0 :: else fi
#define RING(w) RING_ONE(0, w); RING_ONE(1, w); RING_ONE(2, w); RING_ONE(3, w)
#define WAKE_LEASE_ONE(t, w) if :: asleep[t] && on[t] == w -> asleep[t] = 0 :: else fi
#define WAKE_LEASE(w)                                                                              \
    WAKE_LEASE_ONE(0, w); WAKE_LEASE_ONE(1, w); WAKE_LEASE_ONE(2, w); WAKE_LEASE_ONE(3, w)
#define DROP(w)                                                                                    \
    if                                                                                             \
    :: q[0] == w -> q[0] = q[1]; q[1] = q[2]; q[2] = 0                                             \
    :: q[1] == w -> q[1] = q[2]; q[2] = 0                                                          \
    :: q[2] == w -> q[2] = 0                                                                       \
    :: else                                                                                        \
    fi

#define STEP(...) if :: atomic { !dead[p] -> __VA_ARGS__ } :: dead[p] -> goto over fi

/* recover.c: md__lock. */
inline take_lock() {
    if
    :: atomic { !dead[p] && lock == 0 -> lock = t + 1 }
    :: atomic { !dead[p] && lock != 0 && dead[its(lock - 1)] -> lock = t + 1; TELL; RING(NAME); RING(CHANGES) }
    :: dead[p] -> goto over
    fi
}
/* chain.c: what follows a commit or a strike. */
inline tell() {
    STEP(TELL);
    STEP(RING(NAME); RING(CHANGES))
}
/* members.c: md__sweep; chain.c: md__strike_own. The main member's process is never swept. */
inline sweep() {
    if
    :: atomic { !dead[p] && ((dead[2] && (q[0] == 2 || q[1] == 2 || q[2] == 2)) ||
                             (dead[3] && (q[0] == 3 || q[1] == 3 || q[2] == 3))) ->
           if :: dead[2] -> DROP(2) :: else fi;
           if :: dead[3] -> DROP(3) :: else fi
       };
       tell()
    :: else -> if :: dead[p] -> goto over :: else fi
    fi
}
/* claim.c: md_release. */
inline release() {
    take_lock();
    if
    :: atomic { !dead[p] && (q[0] == p || q[1] == p || q[2] == p) -> DROP(p) };
       if :: WRONG != 4 -> tell() :: else fi
    :: else -> if :: dead[p] -> goto over :: else fi
    fi;
    STEP(lock = 0)
}

proctype asker(byte t) {
    byte p = its(t);
    bit first, died, raised;
again: /* choosing.py: _agree */
    STEP(risen[t] = 0; word[t] = 0; on[t] = 0);
    if
    :: atomic { !dead[p] && choice != 0 -> goto over }
    :: atomic { !dead[p] && choice == 0 }
    :: dead[p] -> goto over
    fi;
    if
    :: atomic { !dead[p] && turn[p] == 0 -> turn[p] = t + 1; goto claim }
    :: atomic { !dead[p] && turn[p] != 0 && !ending[p] }
    :: atomic { !dead[p] && ending[p] } -> /* it looks again soon */
           if :: !ending[p] || dead[p] -> goto again fi
    :: dead[p] -> goto over
    fi;
change: /* await.c: md_await_change */
    STEP(word[t] = CHANGES; fresh[t] = 1);
    if
    :: atomic { !dead[p] && risen[t] -> goto again }
    :: atomic { !dead[p] && !risen[t] && dead[MAIN] -> WAKE_LEASE(MAIN); owes[t] = 0; goto over }
    :: atomic { !dead[p] && !risen[t] && !dead[MAIN] }
    :: dead[p] -> goto over
    fi;
    STEP(if :: fresh[t] && !dead[MAIN] -> asleep[t] = 1; on[t] = MAIN :: else fi);
    if
    :: !asleep[t] -> goto change
    :: atomic { asleep[t] && excused -> asleep[t] = 0; goto slice }
    :: dead[p] -> goto over
    fi;
claim: /* claim.c: claim_as */
    take_lock();
    sweep();
    if
    :: atomic { !dead[p] && q[0] != p && q[1] != p && q[2] != p ->
           if :: q[0] == 0 -> q[0] = p :: q[0] && q[1] == 0 -> q[1] = p :: else -> q[2] = p fi };
       tell()
    :: else -> if :: dead[p] -> goto over :: else fi
    fi;
    STEP(first = (q[0] == p); lock = 0);
    if
    :: atomic { !dead[p] && choice != 0 && WRONG != 1 -> goto end_turn }
    :: atomic { !dead[p] && (choice == 0 || WRONG == 1) && first -> goto decide }
    :: atomic { !dead[p] && choice == 0 && !first }
    :: atomic { !dead[p] && choice != 0 && WRONG == 1 && !first }
    :: dead[p] -> goto over
    fi;
fact: /* await.c: md_await_or_elect */
    STEP(word[t] = NAME; fresh[t] = 1);
    STEP(/* watch */
         first = 0; on[t] = MAIN;
         if
         :: dead[MAIN] || q[0] == 0 || WRONG == 5
         :: !dead[MAIN] && q[0] == p -> first = 1
         :: else -> on[t] = q[0]
         fi;
         if :: WRONG == 5 && !dead[MAIN] && q[0] == p -> first = 1 :: else fi;
         died = dead[on[t]];
         if :: died -> WAKE_LEASE(on[t]); owes[t] = 0 :: else fi);
    if
    :: atomic { !dead[p] && choice != 0 -> goto end_turn }
    :: atomic { !dead[p] && choice == 0 && first -> goto claim }
    :: atomic { !dead[p] && choice == 0 && !first && died && on[t] == MAIN -> goto end_turn }
    :: atomic { !dead[p] && choice == 0 && !first && died && on[t] != MAIN } ->
           if :: WRONG != 6 -> take_lock(); sweep(); STEP(lock = 0) :: else fi /* bury */
    :: atomic { !dead[p] && choice == 0 && !first && !died }
    :: atomic { !dead[p] && choice == 0 && !first && !died && timeouts < TIMEOUTS -> timeouts++; goto end_turn }
    :: dead[p] -> goto over
    fi;
    STEP(if :: fresh[t] && dead[on[t]] == died -> asleep[t] = 1 :: else fi);
    if
    :: !asleep[t] -> goto fact
    :: atomic { asleep[t] && (excused || dead[MAIN]) -> asleep[t] = 0; goto slice }
    :: dead[p] -> goto over
    fi;
slice: /* recover.c: md__mend */
    if
    :: atomic { !dead[p] && lock != 0 && dead[its(lock - 1)] -> lock = 0; TELL; RING(NAME); RING(CHANGES) }
    :: atomic { !dead[p] && !(lock != 0 && dead[its(lock - 1)]) }
    :: dead[p] -> goto over
    fi;
    if :: word[t] == NAME -> goto fact :: else -> goto change fi;
decide:
    STEP(word[t] = 0; on[t] = 0;
         assert(LOADS || choice == 0);
         assert(!(deciding[1] && !dead[1]) && !(deciding[2] && !dead[2]) && !(deciding[3] && !dead[3]));
         deciding[p] = 1);
    if
    :: atomic { !dead[p] -> deciding[p] = 0 }
    :: atomic { !dead[p] && raises < RAISES -> raises++; deciding[p] = 0; raised = 1; goto end_turn }
    :: dead[p] -> goto over
    fi;
    if :: WRONG == 2 -> release() :: else fi;
    take_lock(); /* register.c */
    if
    :: atomic { !dead[p] && (choice == 0 || WRONG == 9) -> assert(choice == 0); choice = t + 1 };
       tell()
    :: else -> if :: dead[p] -> goto over :: else fi
    fi;
    STEP(lock = 0);
end_turn: /* choosing.py: _end_turn */
    STEP(word[t] = 0; on[t] = 0;
         if
         :: WRONG == 7 -> turn[p] = 0
         :: WRONG == 8
         :: else -> ending[p] = 1
         fi);
    if :: !(WRONG == 3 && raised) -> release() :: else fi;
    STEP(if :: WRONG != 7 -> turn[p] = 0 :: else fi; ending[p] = 0);
over:
    atomic { word[t] = 0; on[t] = 0; asleep[t] = 0; first = 0; died = 0; raised = 0 }
}

proctype loader(byte t) {
    byte p = MAIN;
    take_lock();
    if
    :: atomic { !dead[p] && (choice == 0 || WRONG == 9) -> assert(choice == 0); choice = t + 1 };
       tell()
    :: else -> if :: dead[p] -> goto over :: else fi
    fi;
    STEP(lock = 0);
over:
    skip
}

#define MAY_WAKE(t) :: asleep[t] && on[t] == w -> asleep[t] = 0; owes[t] = 1
/* The kernel, at the end of a process: exit_robust_list wakes one on its lease. */
proctype killer() {
    byte w;
    do
    :: atomic {
           deaths < DEATHS -> deaths++;
           if :: !dead[1] -> w = 1 :: !dead[2] -> w = 2 :: !dead[3] -> w = 3 fi;
           dead[w] = 1; deciding[w] = 0;
           if
           :: (lock != 0 && its(lock - 1) == w) || (w == 1 && owes[0]) ||
              (w == 2 && (owes[1] || owes[2])) || (w == 3 && owes[3]) -> excused = 1
           :: else
           fi;
           if MAY_WAKE(0) MAY_WAKE(1) MAY_WAKE(2) MAY_WAKE(3) :: else fi;
           w = 0
       }
    :: break
    od
}

init {
    atomic {
        if :: ASKERS & 1 -> run asker(0) :: else fi;
        if :: ASKERS & 2 -> run asker(1) :: else fi;
        if :: ASKERS & 4 -> run asker(2) :: else fi;
        if :: ASKERS & 8 -> run asker(3) :: else fi;
        run killer();
        if :: LOADS -> run loader(LOADER) :: else fi
    }
}
