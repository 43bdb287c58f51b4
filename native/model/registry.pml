/* registry.pml - the protocol of the native core for Spin: commit, ring, wait, lock, recover, and
 * the lease of the main member, with SIGKILL before every step. README.md says how to run it and
 * what it leaves out. `file.c: function` at a step names the code that the step stands for.
 *
 * Five processes share one region:
 *   R0  the main member: registers fact A; with MAIN=1 strikes it, with MAIN=2 leaves afterwards;
 *       may end after any of these deeds
 *   R1  another process that writes: registers fact B
 *   W0  waits for B        W1  waits for a fact that nobody registers
 *   W2  takes the sequence, lists the facts, then waits for any change
 * A and B hang in one chain and ring one event word; W1's name rings another. The first JOINS
 * waiters join first, under the lock, so they may be the ones that recover it.
 *
 * STEP(...) is one access to shared memory, or one step of the kernel. Before a step, and while
 * asleep, its process can be killed. Every sleep may end by its slice at any moment.
 *
 * -DWITHOUT=2, 3 or 4 leaves out W0, W1 or W2, for a shorter search.
 *
 * Without -DMORTAL all can be killed. Its bits say who can: 1 R0, 2 R1, 4 W0, 8 W1, 16 W2.
 * -DDEATHS=2 limits how many can be killed. Deaths come at any moment.
 *
 * WRONG=n builds a protocol that is broken in one place; each must fail:
 *   1  waiters sleep without a slice           2  the event words are raised before the commit
 *   3  a waiter looks before it prepares       4  the lock is waited for without a slice
 *   5  recovery does not raise the sequence    6  the sequence is raised before the commit
 *   7  a waiter that the lease woke returns what it found and does not wake the rest
 *   8  recovery keeps what it finds tagged as a fact, linked or not
 *   9  a process that finds the lock of a dead holder repairs nothing
 *  10  a process that takes the lock does not look whether a repair is owed
 *
 * -DBLIND=4, 8 or 16: W0, W1 or W2 cannot repair (it has lost its descriptor, say) and leaves the
 * repair to the next holder. Only waiters can be blind, for they do nothing under the lock.
 */
#ifndef WRONG
#define WRONG 0
#endif
#ifndef JOINS
#define JOINS 1
#endif
#ifndef MAIN
#define MAIN 0
#endif
#ifndef BLIND
#define BLIND 0
#endif
#ifndef MORTAL
#define MORTAL 31
#endif
#ifdef DEATHS
byte deaths;
#define KILLS (((MORTAL >> me) & 1) && deaths < DEATHS)
#define DEATH deaths++;
#else
#define KILLS ((MORTAL >> me) & 1)
#define DEATH
#endif

#define R0 0
#define R1 1
#define W0 2
#define W1 3
#define W2 4
#define A 1
#define B 2

/* What a process does, as far as others can tell. A waker makes a sleeper RUN. */
#define RUN 0
#define ON_EVENT 1 /* asleep on its event word and on the lease */
#define ON_LOCK 2  /* asleep on the mutex */
#define OVER 3    /* done, or dead */
byte st[5];
#define me _pid

/* The mutex word as glibc and the kernel keep it: owner's id, FUTEX_WAITERS, FUTEX_OWNER_DIED. */
byte owner;
bit lock_waiters, lock_died;
bit owed; /* header.repair_owed */
/* The main member's lease word: the same two bits. */
bit lease_waiters, lease_died;

/* Bit 0 of the event words: that of A and B (0), header.changes (1), that of W1's name (2). Instead
 * of the count above bit 0 the model keeps its purpose: fresh[w] says that no ring came since w
 * prepared, so that word == seen. */
bit armed[3];
bit fresh[5];

/* header.state, the chain, header.facts, the free lists. */
bit closed;
byte head, next[3], facts;
bit is_fact[3], listed[3] = 1;
/* The purpose of header.next_seq: whether it is greater than the seq of every fact, and whether it
 * has risen since W2 took it. */
bit ahead = 1, risen;

/* Ghosts: variables that only the properties use. */
byte inside;          /* holders of the lock */
bit acked_a, acked_b; /* md_register has returned 0; for A: and md_strike was not called */
byte took;            /* W2 has taken the sequence (1), listed the facts (2); 0 once it is over */
bit missed;           /* the facts have changed since, and the sequence has not risen since */
bit owes[5];          /* this process has published something and must still wake somebody */
bit excused;          /* a process died that owed a wake */

#define in_chain(f) (head == f || (head != 0 && next[head] == f))
#define TELL risen = (took > 0); missed = 0 /* the sequence goes up */
#define whole                                                                                      \
    (facts == in_chain(A) + in_chain(B) && is_fact[A] == in_chain(A) &&                            \
     is_fact[B] == in_chain(B) && listed[A] != is_fact[A] && listed[B] != is_fact[B] && ahead)

#define DIE atomic { KILLS -> DEATH st[me] = RUN; goto killed }
#define STEP(...) if :: atomic { __VA_ARGS__ } :: DIE fi
/* Inside a STEP, between two stores to state that only the holder of the lock reads (the model also
 * checks that there is one holder): there the steps of others make no difference, but a death does.
 */
#define OR_DIE if :: true :: KILLS -> DEATH goto killed fi

#define WAKE(i, what) if :: st[i] == what -> st[i] = RUN :: else fi
/* The real kernel wakes the longest sleeper; here it wakes any. */
inline wake_one_locker() {
    if
    :: st[R0] == ON_LOCK -> st[R0] = RUN; owes[R0] = 1
    :: st[R1] == ON_LOCK -> st[R1] = RUN; owes[R1] = 1
    :: st[W0] == ON_LOCK -> st[W0] = RUN; owes[W0] = 1
    :: st[W1] == ON_LOCK -> st[W1] = RUN; owes[W1] = 1
    :: st[W2] == ON_LOCK -> st[W2] = RUN; owes[W2] = 1
    :: else
    fi
}
inline wake_one_of_the_lease() {
    if
    :: st[W0] == ON_EVENT -> st[W0] = RUN; owes[W0] = 1
    :: st[W1] == ON_EVENT -> st[W1] = RUN; owes[W1] = 1
    :: st[W2] == ON_EVENT -> st[W2] = RUN; owes[W2] = 1
    :: else
    fi
}

/* eventcount.c: md__event_ring: the CAS and then, if bit 0 was set, the wake. A word whose bit 0 is
 * clear is fresh for no waiter. */
#define RING(word, cas, wake, then)                                                                \
    do                                                                                             \
    :: atomic { !was && armed[word]; armed[word] = 0; cas; was = 1 }                               \
    :: atomic { !was && !armed[word]; then } -> break                                              \
    :: atomic { was; wake; was = 0; then } -> break                                                \
    :: DIE                                                                                         \
    od
#define RING_NAME RING(0, fresh[W0] = 0, WAKE(W0, ON_EVENT), skip)
#define RING_OTHER RING(2, fresh[W1] = 0, WAKE(W1, ON_EVENT), skip)
#define RING_CHANGES RING(1, fresh[W2] = 0, WAKE(W2, ON_EVENT), owes[me] = 0)

/* recover.c: recover, with the lock. Versions, recoveries and slots decide nothing here. */
inline recover() {
    STEP(listed[A] = 0; listed[B] = 0; count = 0; /* recover.c: md__rebuild */
         OR_DIE;
         if
         :: is_fact[A] && (in_chain(A) || WRONG == 8) -> count++
         :: else -> is_fact[A] = 0; listed[A] = 1
         fi;
         OR_DIE;
         if
         :: is_fact[B] && (in_chain(B) || WRONG == 8) -> count++
         :: else -> is_fact[B] = 0; listed[B] = 1
         fi;
         OR_DIE;
         facts = count; count = 0;
         OR_DIE;
         ahead = 1; if :: WRONG != 5 -> TELL :: else fi; owes[me] = 1;
         assert(whole); /* check.c: md__check */
         OR_DIE;
         owed = 0);
    RING_NAME; /* crowd.c: md__event_ring_all */
    RING_OTHER;
    RING_CHANGES
}

/* recover.c: md__lock; inside it glibc's pthread_mutex_clocklock of a robust mutex. */
inline lock() {
    do
    :: atomic { /* CAS 0 -> id */
           owner == 0 && !lock_died && (!owed || WRONG == 10);
           owner = me + 1; lock_waiters = assume; inside++; owes[me] = 0; assume = 0; pending = 0
       } -> break
    :: atomic { /* CAS of a dead holder's word: EOWNERDEAD; or CAS of 0, then the word is read */
           lock_died || (owner == 0 && owed && WRONG != 10);
           lock_died = 0; owner = me + 1; lock_waiters = lock_waiters | assume; inside++;
           owes[me] = 0; assume = 0; pending = 0
       } ->
#if WRONG != 9
           if
           :: (BLIND >> me) & 1 -> STEP(owed = 1) /* and the mutex is consistent: no state here */
           :: else -> recover()
           fi;
#endif
           break
    :: atomic { /* CAS: sets FUTEX_WAITERS, so that the holder owes a wake */
           owner != 0;
           lock_waiters = 1; seen = owner; owes[me] = 0; pending = 1
       } ->
           if
           :: atomic { /* futex_wait: the kernel compares and queues in one */
                  owner == seen && lock_waiters;
                  st[me] = ON_LOCK; seen = 0
              } ->
                  if
                  :: atomic { st[me] == RUN; assume = 1 }
                  :: atomic { WRONG != 4 && st[me] == ON_LOCK; st[me] = RUN; pending = 0 }
                  :: DIE
                  fi
           :: atomic { !(owner == seen && lock_waiters); seen = 0; assume = 1 }
           :: DIE
           fi
    :: DIE
    od
}

/* recover.c: md__unlock; inside it glibc: the word is cleared, then one is woken. */
#define UNLOCK(then)                                                                               \
    if                                                                                             \
    :: atomic {                                                                                    \
           !lock_waiters;                                                                          \
           assert(whole || owed || WRONG == 9); inside--; owner = 0; then                          \
       }                                                                                           \
    :: atomic {                                                                                    \
           lock_waiters;                                                                           \
           assert(whole || owed || WRONG == 9); inside--; owner = 0; lock_waiters = 0;             \
           pending = 1; owes[me] = 1                                                               \
       } ->                                                                                        \
           STEP(wake_one_locker(); pending = 0; owes[me] = 0; then)                                \
    :: DIE                                                                                         \
    fi

/* chain.c: md__commit. */
inline commit(f) {
#if WRONG == 2
    RING_NAME;
    RING_CHANGES;
#elif WRONG == 6
    STEP(TELL);
#endif
    STEP(assert(ahead); listed[f] = 0; /* md__alloc */
         OR_DIE;
         next[f] = head; is_fact[f] = 1;
         OR_DIE;
         head = f; ahead = (WRONG == 6); missed = (took == 2); owes[me] = 1); /* the commit */
    STEP(if :: WRONG != 6 -> ahead = 1; TELL :: else fi; /* raise_sequence */
         OR_DIE;
         facts++);
#if WRONG != 2
    RING_NAME;
    RING_CHANGES
#else
    owes[me] = 0
#endif
}

/* chain.c: md__strike. */
inline strike(f) {
    STEP(if :: head == f -> head = next[f] :: else -> next[head] = next[f] fi;
         missed = (took == 2); owes[me] = 1);
    STEP(TELL; /* raise_sequence */
         OR_DIE;
         facts--);
    RING_NAME;
    RING_CHANGES;
    STEP(is_fact[f] = 0; /* md__free */
         OR_DIE;
         listed[f] = 1)
}

/* The kernel at the end of a process: exit_robust_list, in either order for two threads. The kernel
 * is never killed. The mutex: FUTEX_OWNER_DIED and a wake; or, for an operation under way on a word
 * that is 0, a wake, which older kernels leave out. */
inline release_mutex() {
    if
    :: atomic {
           owner == me + 1;
           owner = 0; lock_died = 1; inside--; was = lock_waiters
       } ->
           atomic { if :: was -> wake_one_locker() :: else fi; was = 0 }
    :: atomic {
           owner != me + 1;
           if
           :: pending && owner == 0 && !lock_died -> wake_one_locker()
           :: true
           fi
       }
    fi
}
inline release_lease() {
    if
    :: me == R0 ->
           atomic { lease_died = 1; was = lease_waiters };
           atomic { if :: was -> wake_one_of_the_lease() :: else fi; was = 0 }
    :: else
    fi
}
inline end_of_process() {
    atomic {
        excused = excused | owes[me]; owes[me] = 0;
        if :: me == W2 -> took = 0; risen = 0; missed = 0 :: else fi;
        fresh[me] = 0; was = 0; assume = 0; count = 0; seen = 0;
        if
        :: owner != me + 1 && !pending && me != R0 -> st[me] = OVER; goto end_over
        :: else
        fi
    };
    if
    :: release_mutex(); release_lease()
    :: me == R0 -> release_lease(); release_mutex()
    fi;
    atomic { pending = 0; st[me] = OVER }
}

#define LOCALS bit was, assume, pending; byte seen, count

active proctype main_member() { /* R0: the processes have their ids in the order of the text */
    LOCALS;
    lock();
    commit(A);
    UNLOCK(acked_a = 1); /* md_register returns 0 */
#if MAIN == 1
    if
    :: acked_a = 0 ->
           lock();
           strike(A);
           UNLOCK(skip)
    :: true
    fi;
#elif MAIN == 2
    if
    :: true -> /* join.c: md_leave, md__close_registry */
           lock();
           STEP(closed = 1; owes[me] = 1);
           RING_NAME;
           RING_OTHER;
           RING_CHANGES;
           UNLOCK(skip)
    :: true
    fi;
#endif
    st[me] = OVER; /* the process lives on */
end_idle:
    if :: DIE fi;
killed:
    end_of_process();
end_over:
    false
}

active proctype registrar() { /* R1 */
    LOCALS;
    lock();
    if
    :: closed -> UNLOCK(st[me] = OVER; goto end_over) /* lock_as_main: MD_ECLOSED */
    :: else -> commit(B); UNLOCK(acked_b = 1; st[me] = OVER; goto end_over)
    fi;
killed:
    end_of_process();
end_over:
    false
}

#define EVENT_OF (me == W0 -> 0 : (me == W1 -> 2 : 1))
#define PASSED_ON (!died || passed_on)
#define GOAL ((me == W0 && in_chain(B)) || (me == W2 && risen))

#define WAKE_ALL WAKE(W0, ON_EVENT); WAKE(W1, ON_EVENT); WAKE(W2, ON_EVENT)
#define RETURN                                                                                     \
    died = 0; ended = 0; passed_on = 0; fresh[me] = 0; owes[me] = 0;                              \
    if :: me == W2 -> took = 0; risen = 0; missed = 0 :: else fi; st[me] = OVER; goto end_over

active [3] proctype waiter() { /* W0, W1, W2 */
    LOCALS;
    bit died; /* lease_seen & FUTEX_OWNER_DIED */
    bit ended; /* header.state */
    bit passed_on = (WRONG == 7); /* a waiter that saw the death wakes the others on the lease */
#ifdef WITHOUT
    atomic { if :: me == WITHOUT -> st[me] = OVER; goto end_over :: else fi };
#endif
    if
    :: me - W0 < JOINS -> lock(); UNLOCK(skip) /* join.c: md_join */
    :: else
    fi;
    if
    :: me == W2 ->
           STEP(took = 1); /* await.c: md_await_change with seq 0 */
           STEP(took = 2) /* read.c: md_list */
    :: else
    fi;
#if WRONG == 3
#define PREPARE skip
#else
#define PREPARE armed[EVENT_OF] = 1; fresh[me] = 1 /* eventcount.c: md__event_prepare */
#endif
    do /* await.c: await */
    :: /* Here the waiter reads earlier than in the code, where the reads come one after the other.
        * So it knows less, the harder case; what changes between them shows at the sleep. */
       STEP(PREPARE;
            OR_DIE;
            lease_waiters = 1; died = lease_died; ended = closed);
       do
       :: atomic { died && !passed_on; WAKE_ALL; owes[me] = 0; passed_on = 1 }
       :: atomic { PASSED_ON && ended; RETURN }          /* MD_ECLOSED */
       :: atomic { PASSED_ON && !ended && GOAL; RETURN } /* 0 */
       :: atomic { PASSED_ON && !ended && !GOAL && died; /* MD_EDIED */
                   if :: WRONG == 7 -> WAKE_ALL :: else fi; RETURN }
       :: PASSED_ON && !ended && !GOAL && !died -> break
       :: DIE
       od;
#if WRONG == 3
       STEP(armed[EVENT_OF] = 1; fresh[me] = 1);
#endif
       /* eventcount.c: md__sleep: the kernel compares and queues each word in one step, and its two
        * steps commute with everything that changes the other word. */
       if
       :: atomic { fresh[me] && !lease_died; st[me] = ON_EVENT } ->
              if
              :: st[me] == RUN
              :: atomic { WRONG != 1 && st[me] == ON_EVENT; st[me] = RUN } /* the slice */
              :: DIE
              fi
       :: !(fresh[me] && !lease_died)
       :: DIE
       fi
    od;
killed:
    atomic { died = 0; ended = 0; passed_on = 0 };
    end_of_process();
end_over:
    false
}

#define AT_REST (st[R0] && st[R1] && st[W0] && st[W1] && st[W2])
#define TOLD (closed || lease_died) /* to every waiter */
/* Asleep although there is something to tell, and nobody is left who will tell it. */
#define LEFT_ASLEEP                                                                                \
    ((st[W0] == ON_EVENT && (TOLD || in_chain(B))) || (st[W1] == ON_EVENT && TOLD) ||              \
     (st[W2] == ON_EVENT && (TOLD || risen)))
#define LEFT_LOCKED                                                                                \
    (st[R0] == ON_LOCK || st[R1] == ON_LOCK || st[W0] == ON_LOCK || st[W1] == ON_LOCK ||           \
     st[W2] == ON_LOCK)

/* The properties. In every state: */
active proctype properties() {
end:
    do
    :: atomic { inside > 1 -> assert(false) } /* mutual exclusion */
    :: atomic { acked_b && !in_chain(B) -> assert(false) } /* no acknowledged registration lost */
    :: atomic { acked_a && !in_chain(A) -> assert(false) }
    /* When nobody runs any more, nobody sleeps who should be awake, unless a death lost the wake;
     * in that case there is a slice. */
    :: atomic { AT_REST && LEFT_ASLEEP && (!excused || WRONG == 1) -> assert(false) }
    :: atomic { AT_REST && LEFT_LOCKED && (!excused || WRONG == 4) -> assert(false) }
    /* And a slice helps: once the lock is clean, the sequence tells of every change. */
    :: atomic { AT_REST && st[W2] == ON_EVENT && missed && !lock_died && !owed ->
                assert(false) }
    od
}
