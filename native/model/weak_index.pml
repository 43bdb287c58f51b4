/* weak_index.pml - the index on weak memory: index.c.
 *
 * An array of one slot leads to a node. The writer makes the node of a name, enters it, then replaces
 * the array by a larger one and writes over the old array, which has become another block. Or, with
 * MOVES=1, the array has two slots, and the writer moves the entry from the second to the first, over
 * one that it takes out. Readers look for the name. One that knows of the registration finds it; one
 * that finds a node finds it as it was made.
 *
 * WRONG=1  what is replaced serves again without a release fence  2  a reader loads a slot without acquire
 *       3  a slot is published without release                    4  the new array, likewise
 *       5  a reader that finds nothing does not look whether entries have moved
 *       6  moves are raised without release
 */
#ifndef WRONG
#define WRONG 0
#endif
#ifndef MOVES
#define MOVES 0
#endif
#define WORDS 7
#define AGES 4
#define THREADS 3
#include "weak.h"
#define INDEX 0      /* which array: 0 the old one, 1 the new one */
#define SLOT(i) (1 + (i))
#define NAME 3       /* of the node; with its tag */
#define NODE 4       /* its version: 1 as it was made */
#define KNOWN 5      /* by another way a reader has heard of the registration: an event word, say */
#define INDEX_MOVES 6

active proctype writer() { /* 0 */
    SCRATCH;
    poke(NODE, 1); /* md__node_prepare */
    poke(NAME, 1);
    publish(SLOT(0), 1, WRONG != 3); /* md__node_publish */
    publish(KNOWN, 1, ORDERED);
#if MOVES
    publish(SLOT(1), 1, WRONG != 3); /* take_out: the gap comes first in every probe */
#else
    poke(SLOT(1), 1); /* md__index_create: all of the array, then the index word */
    publish(INDEX, 1, WRONG != 4);
#endif
    publish(INDEX_MOVES, 1, WRONG != 6); /* md__raise */
#if WRONG != 1
    release_fence();
#endif
    poke(SLOT(0), 0) /* the block, or the slot, serves something else */
}

active [2] proctype reader() { /* 1, 2: md__node_seek, until it is not outrun */
    SCRATCH;
    bit known, index, moves, again, slot, name, version;
    read(KNOWN, known, ORDERED);
    do
    :: read(INDEX_MOVES, moves, ORDERED);
#if MOVES
       read(SLOT(1), slot, WRONG != 2);
       if :: !slot -> read(SLOT(0), slot, WRONG != 2) :: else fi;
#else
       read(INDEX, index, ORDERED);
       read(SLOT(index), slot, WRONG != 2);
#endif
       if :: slot -> peek(NAME, name) :: else fi;
       if
       :: slot && name ->
              peek(NODE, version);
              assert(version);
              break
       :: else
       fi;
       acquire_fence(); /* md__version_after; the loads of the slots acquire already */
#if WRONG != 5
       peek(INDEX_MOVES, again);
#else
       again = moves;
#endif
       if
       :: again == moves -> assert(!known); break /* MD_ENOENT */
       :: else
       fi
    od
}
