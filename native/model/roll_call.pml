/* roll_call.pml - members that take one verdict about all of them, for Spin: Note [One verdict] in
 * mdispatch/choices/roll_call.py.
 *
 * Three members. Each posts, and waits until EXPECTED have posted, or until its time is over, which
 * may be at any moment. Then it publishes the next
 * verdict after the last one that it has seen, if there is none meanwhile. A verdict is of no account
 * when no member that it counts has its post any more. DEATHS of them may be
 * killed before any step. A member that has a verdict may leave, and its post ends. A commit with
 * its ring, a read of one name and a sweep are one step each: registry.pml takes them apart.
 *
 * Beside them another round of the same name publishes up to OTHERS verdicts, whose numbers are of
 * the same row. After each it removes the verdict of this round, where it is of no account.
 *
 * Properties: a member takes the verdict that counts it as long as there is no other, so all that
 * it counts and that live take the same. A member that it does not count may take it, too; no other
 * verdict counts that one. Whoever takes a verdict takes one that counts a member that has its post.
 * A member that waits without a deadline, while nobody does anything any more, waits with reason:
 * there is no verdict, and too few live and have posted.
 *
 * WRONG=n builds a protocol that is broken in one place; each must fail:
 *   1  a verdict may be published beside another one
 *   2  a member takes the verdict of those that are gone
 *   3  a member removes a verdict that is of no account, so its number comes again
 *   4  who waits takes the registry's sequence after it has looked
 *   5  a member that a verdict does not count takes it and keeps its post
 *   6  the other round removes a verdict without looking whether it is of account
 */
#ifndef WRONG
#define WRONG 0
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef EXPECTED
#define EXPECTED 2
#endif
#ifndef PATIENT /* the members whose time is never over, as bits */
#define PATIENT 0
#endif

#ifndef OTHERS
#define OTHERS 0
#endif

#define N 3
bit dead[N], post[N];
byte last;       /* the last number of the name */
byte verdict;    /* the number of the last one of this round; 0: there is none */
byte counted;    /* the members that it counts and that have not posted again since, as bits */
byte again[N];   /* the members that have posted again since a member has looked */
bit risen[N];    /* whether the registry has changed since a member took its sequence */
byte taken[N];   /* a ghost: the verdict that a member has taken */
byte deaths;

#define TELL risen[0] = 1; risen[1] = 1; risen[2] = 1
#define STEP(...) if :: atomic { !dead[m] -> __VA_ARGS__ } :: dead[m] -> goto over fi
#define SWEEP(o) if :: dead[o] -> post[o] = 0 :: else fi
#define BIT(o) ((post[o] && !dead[o]) << o)
#define POSTS (BIT(0) | BIT(1) | BIT(2))
#define NUMBER(s) ((s & 1) + ((s >> 1) & 1) + ((s >> 2) & 1))
#define COUNTS(s, o) ((s >> o) & 1)
/* A verdict counts nobody that has taken another one. */
#define FRESH(o) assert(!(COUNTS(counted, o) && taken[o]))

proctype member(byte m) {
    byte posts, number, seen, its;
begin:
    STEP(SWEEP(0); SWEEP(1); SWEEP(2);
         post[m] = 1; counted = counted & ~(1 << m);
         again[0] = again[0] | (1 << m); again[1] = again[1] | (1 << m);
         again[2] = again[2] | (1 << m); again[m] = 0;
         TELL);
look:
    if :: WRONG != 4 -> STEP(risen[m] = 0) :: else fi;
    STEP(number = last; seen = verdict; its = counted; again[m] = 0);
    STEP(its = its & ~again[m]; posts = POSTS; again[m] = 0);
    if
    :: WRONG == 2 && seen || its & posts ->
       if
       :: COUNTS(its, m) || !post[m] || WRONG == 5 ->
          STEP(taken[m] = seen;
               assert(its & posts);
               if
               :: COUNTS(its, m) -> assert(verdict == seen || !verdict && !post[m])
               :: else -> assert(!COUNTS(counted, m))
               fi);
          goto took
       :: else -> /* no other verdict may count this member, once it has taken this one */
          STEP(post[m] = 0; TELL);
          goto look
       fi
    :: else ->
       if
       :: WRONG == 3 && seen -> STEP(if :: verdict == seen -> last = 0; verdict = 0; counted = 0 :: else fi);
          goto look
       :: else
       fi
    fi;
    if
    :: !post[m] -> goto begin
    :: post[m] && NUMBER(posts) >= EXPECTED
    :: post[m] && NUMBER(posts) < EXPECTED ->
       if
       :: !COUNTS(PATIENT, m) /* its time is over */
       :: true ->
          if :: WRONG == 4 -> STEP(risen[m] = 0) :: else fi;
          if
          :: risen[m] && !dead[m] -> goto look
          :: dead[m] -> goto over
          :: atomic { timeout -> assert(!(counted & POSTS) && NUMBER(POSTS) < EXPECTED); goto over }
          fi
       fi
    fi;
    STEP(SWEEP(0); SWEEP(1); SWEEP(2);
         if
         :: last == number || WRONG == 1 ->
            last++; verdict = last; counted = posts & ~again[m]; FRESH(0); FRESH(1); FRESH(2); TELL
         :: else
         fi);
    goto look;
took:
    if
    :: STEP(skip)
    :: STEP(post[m] = 0; TELL)
    fi;
over:
    skip
}

proctype others() {
    byte number, seen, count;
    bit is_over;
    do
    :: count < OTHERS ->
       count++;
       number = last;
       atomic {
           if
           :: last == number -> last++; TELL
           :: else -> goto next /* somebody was first: it looks again */
           fi
       };
       seen = verdict;
       is_over = !(counted & POSTS) || verdict != seen;
       atomic {
           if
           :: seen && (is_over || WRONG == 6) && verdict == seen -> verdict = 0; counted = 0; TELL
           :: else
           fi
       }
next:  skip
    :: break
    od
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
    atomic { run member(0); run member(1); run member(2); run others(); run killer() }
}
