/* steps.pml - a step of a running job leaves its window, for Spin: Note [Steps that leave] in
 * mdispatch/choices/steps.py.
 *
 * Three members come to one step, each at some moment, and each may be killed before any of its
 * steps. The first one registers its value. When it has gone on far enough, it raises the floor and
 * ends its registration. A commit, a read and an end are one step each.
 *
 * Property: of all members that have come to the step and were not told that it has left, one was
 * the first, and each other one has compared with its value.
 *
 * WRONG=n builds a protocol that is broken in one place; each must fail:
 *   1  a member ends its registration before it raises the floor
 *   2  a member looks at the floor before it registers
 *   3  nobody looks at the floor
 *   4  a member that compares does not look at the floor: the value may be that of a late one
 */
#ifndef WRONG
#define WRONG 0
#endif

#define N 3
bit dead[N];
byte value; /* the member whose value is registered, plus 1 */
bit floor;
byte first; /* ghost: the member whose value counts, plus 1 */

#define STEP(...) if :: atomic { !dead[m] -> __VA_ARGS__ } :: dead[m] -> goto over fi

proctype member(byte m) {
    bit mine, seen_floor;
    byte seen;
    STEP(seen = value); /* find */
    if
    :: seen != 0 -> goto compare
    :: else
    fi;
    if :: WRONG == 2 -> STEP(seen_floor = floor) :: else fi;
    STEP(if :: value == 0 -> value = m + 1; mine = 1 :: else -> seen = value fi); /* register */
    if
    :: !mine && seen == 0 -> goto over
    :: !mine && seen != 0 -> goto compare
    :: mine
    fi;
    if :: WRONG != 2 && WRONG != 3 -> STEP(seen_floor = floor) :: else fi;
    if
    :: seen_floor -> /* it has left: the caller hears that */
       STEP(if :: value == m + 1 -> value = 0 :: else fi);
       goto over
    :: else
    fi;
    STEP(assert(first == 0 || first == m + 1); first = m + 1);
    /* it goes on, and the step leaves its window */
    if
    :: WRONG != 1 -> STEP(floor = 1); STEP(if :: value == m + 1 -> value = 0 :: else fi)
    :: else -> STEP(if :: value == m + 1 -> value = 0 :: else fi); STEP(floor = 1)
    fi;
    goto over;
compare:
    /* It has read the value: a registration's text does not change. */
    if :: WRONG != 4 -> STEP(seen_floor = floor) :: else fi;
    if
    :: seen_floor
    :: else -> STEP(assert(first == 0 || first == seen); first = seen)
    fi;
over:
    skip
}

proctype killer() {
end:
    if
    :: atomic { !dead[0] -> dead[0] = 1 }
    :: atomic { !dead[1] -> dead[1] = 1 }
    :: atomic { !dead[2] -> dead[2] = 1 }
    fi
}

init {
    atomic { run member(0); run member(1); run member(2); run killer() }
}
