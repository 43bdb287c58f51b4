/* weak_readers.pml - readers without a lock on weak memory: chain.c, Note [Readers take no lock].
 *
 * A chain of at most one fact in one block. The writer registers fact 1, strikes it, and registers
 * fact 2 in the same block. Readers look all the time. What a reader believes is a fact as it was
 * registered, or that there is none; and nobody who has seen fact 2 finds what was before it.
 *
 * WRONG=1  the raise is not followed by a release fence     2  a reader compares without acquire fence
 *       3  the head is published without release            4  a reader does not compare
 */
#ifndef WRONG
#define WRONG 0
#endif
#define WORDS 4
#define AGES 8
#define THREADS 3
#include "weak.h"
#define VERSION 0
#define HEAD 1
#define BODY(i) (2 + (i)) /* of the one block: two words, both the fact's number */

inline register(fact) { /* md__commit, then md__raise */
    poke(BODY(0), fact);
    poke(BODY(1), fact);
    publish(HEAD, 1, WRONG != 3);
    raise()
}
inline raise() {
    version++;
    publish(VERSION, version, ORDERED);
#if WRONG != 1
    release_fence()
#endif
}

active proctype writer() { /* 0 */
    SCRATCH;
    byte version;
    register(1);
    publish(HEAD, 0, ORDERED); /* md__strike: the link past it; it frees the block after the raise */
    raise();
    register(2)
}

active [2] proctype reader() { /* 1, 2: read.c, find_once, twice */
    SCRATCH;
    byte before, after, first, second, was, looks;
    bit head;
again:
    read(VERSION, before, ORDERED);
    read(HEAD, head, ORDERED);
    if
    :: head -> peek(BODY(0), first); peek(BODY(1), second)
    :: else
    fi;
#if WRONG != 2
    acquire_fence(); /* md__version_after */
#endif
    peek(VERSION, after);
    if
    :: WRONG != 4 && before != after /* outrun: looks again; here it may give up, too */
    :: WRONG == 4 || before == after ->
           assert(!head || (first == second && first)); /* as it was registered */
           assert(was != 2 || (head && first == 2));    /* and no older one after a newer one */
           atomic { was = (head -> first : 0); first = 0; second = 0 }
    fi;
    atomic { looks++; before = 0; after = 0; head = 0 };
    if :: looks < 2 -> goto again :: else fi
}
