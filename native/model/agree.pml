/* agree.pml - members that must have the same value, for Spin: Note [Ask, then look] in
 * mdispatch/choices/agreeing.py.
 *
 * Three members. Each asks up to ASKS times, each time for any of two values; it may be killed
 * before each step (DEATHS of them), and may leave between two calls. With AMONG=n each waits, when
 * it has agreed, until n members have asked for its value. A commit with its ring, a read of one
 * name and a sweep are one step each: registry.pml takes them apart.
 *
 * Properties: of two living members whose last call has returned a value both have the same. Who is
 * refused was refused by a member with another value that was there, and not refused, when it asked. A member that
 * waits, while nobody does anything any more, waits with reason: too few have its value, and none
 * that lives was refused by it.
 *
 * WRONG=n builds a protocol that is broken in one place; each must fail:
 *   1  a member looks before it asks
 *   2  nobody ends the registrations of the dead: a dead member refuses
 *   3  a member that is refused keeps its registration
 *   4  a member keeps its earlier value until it knows that it may have the next one
 *   5  who waits takes the registry's sequence after it has looked (needs AMONG=2)
 *   6  who is refused leaves no mark (needs AMONG=2)
 */
#ifndef WRONG
#define WRONG 0
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef ASKS
#define ASKS 2
#endif
#ifndef AMONG
#define AMONG 1
#endif

#define N 3
bit dead[N];
/* The registrations of each member: the value (0: none) and the sequence of its last one, the same of
 * the one before (WRONG=4), and the value with which it was refused. */
byte value[N], seq[N], old[N], old_seq[N], mark[N];
byte sequence; /* of the registry */
bit risen[N];  /* whether it has risen since a member took it */

/* Ghosts. */
byte agreed[N]; /* what the last call has returned */
byte was[N];    /* the value with which a member that lives was refused last */
byte deaths;

#define TELL risen[0] = 1; risen[1] = 1; risen[2] = 1
#define STEP(...) if :: atomic { !dead[m] -> __VA_ARGS__ } :: dead[m] -> goto over fi
#define SWEEP(o) if :: dead[o] -> value[o] = 0; old[o] = 0; mark[o] = 0 :: else fi
#define COUNTS(o) (o != m && value[o] && seq[o] < seq[m])
#define COUNTS_OLD(o) (o != m && old[o] && old_seq[o] < seq[m] && !COUNTS(o))
/* Whether a member that counts has another value. */
#define DIFFERS(o) ((COUNTS(o) && value[o] != value[m]) || (COUNTS_OLD(o) && old[o] != value[m]))
#define HAS(o) (value[o] == value[m])
#define NUMBER (HAS(0) + HAS(1) + HAS(2))
#define MARKED(o) (mark[o] && mark[o] != value[m])
#define ANY_MARKED (MARKED(0) || MARKED(1) || MARKED(2))
#define SAME(o) assert(o == m || dead[o] || !agreed[o] || agreed[o] == value[m])
#define EARLY(o) (o != m && value[o] && value[o] != wanted)
#define WAS(o) (!dead[o] && was[o] && was[o] != value[m])
/* A member that is there, and has asked for another value and was not refused. */
#define ASKED(o) (o != m && !dead[o] && value[o] && value[o] != value[m] && !was[o])

proctype member(byte m) {
    byte calls, wanted;
    bit refused, reason;
call:
    if
    :: atomic { !dead[m] && calls < ASKS -> calls++; agreed[m] = 0; was[m] = 0 }
    :: atomic { !dead[m] -> goto over } /* it stays, and asks no more */
    :: atomic { !dead[m] -> /* it leaves */
           value[m] = 0; old[m] = 0; mark[m] = 0; agreed[m] = 0; was[m] = 0; TELL; goto over }
    :: dead[m] -> goto over
    fi;
    if
    :: WRONG != 4 -> STEP(value[m] = 0; mark[m] = 0; TELL)
    :: else -> STEP(old[m] = value[m]; old_seq[m] = seq[m])
    fi;
    STEP(if :: wanted = 1 :: wanted = 2 fi; refused = 0;
         if :: WRONG == 1 -> refused = EARLY(0) || EARLY(1) || EARLY(2) :: else fi);
    /* may_register, md__commit */
    STEP(if
         :: WRONG != 2 -> SWEEP(0); SWEEP(1); SWEEP(2)
         :: else
         fi;
         value[m] = wanted; seq[m] = sequence + 1; sequence++; TELL;
         reason = WRONG == 1 || ASKED(0) || ASKED(1) || ASKED(2));
    /* Each member's registration is read at another moment. */
    if :: WRONG != 1 -> STEP(refused = refused || DIFFERS(0)) :: else fi;
    if :: WRONG != 1 -> STEP(refused = refused || DIFFERS(1)) :: else fi;
    if :: WRONG != 1 -> STEP(refused = refused || DIFFERS(2)) :: else fi;
    if
    :: atomic { refused -> assert(reason) };
       STEP(was[m] = value[m];
            if :: WRONG != 6 -> mark[m] = value[m] :: else fi;
            if :: WRONG == 3 :: WRONG == 4 -> value[m] = old[m]; seq[m] = old_seq[m]; agreed[m] = old[m]
               :: else -> value[m] = 0 fi;
            old[m] = 0; TELL);
       goto call
    :: else
    fi;
    STEP(old[m] = 0; agreed[m] = value[m]; SAME(0); SAME(1); SAME(2));
wait:
    if :: WRONG != 5 -> STEP(risen[m] = 0) :: else fi;
    if
    :: atomic { !dead[m] && (ANY_MARKED || NUMBER >= AMONG) -> goto call }
    :: atomic { !dead[m] && !ANY_MARKED && NUMBER < AMONG }
    :: dead[m] -> goto over
    fi;
    if :: WRONG == 5 -> STEP(risen[m] = 0) :: else fi;
    if
    :: risen[m] && !dead[m] -> goto wait
    :: dead[m] -> goto over
    :: atomic { timeout -> /* nobody does anything any more */
           assert(!WAS(0) && !WAS(1) && !WAS(2) && NUMBER < AMONG); goto over }
    fi;
over:
    skip
}

proctype killer() {
end:
    do
    :: atomic { deaths < DEATHS && !dead[0] -> dead[0] = 1; deaths++ }
    :: atomic { deaths < DEATHS && !dead[1] -> dead[1] = 1; deaths++ }
    :: atomic { deaths < DEATHS && !dead[2] -> dead[2] = 1; deaths++ }
    od
}

init {
    atomic { run member(0); run member(1); run member(2); run killer() }
}
