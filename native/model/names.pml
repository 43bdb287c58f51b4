/* names.pml - names that are given back and nodes that are used again, for Spin: Note [Names are given
 * back] in native/core/store/index.c says how, and why it is right.
 *
 * The model: a writer that can be killed before every store, and that then repairs as the next holder
 * of the lock does; and a reader that takes no lock.
 *
 * The index has four slots. The names X and Y share the home 0. Two nodes: X lives in node 0 and is
 * never struck, in all lives but that of WHO=1. Y comes and goes and comes back, and Z, whose home is
 * 0 too, gets its node. So X's entry is moved whenever Y's is taken out before it, and a node has
 * changing names.
 *
 * The reader looks for X (WHO=0) or for Y (WHO=1): it reads index_moves, probes, reads the version,
 * the tag and the name. If it is the name, it reads the fact and the version again; if it found none,
 * index_moves again. It returns what it found, or "not found", or starts over.
 *
 * Properties: a reader that looks for X, which lives all the time, never returns "not found". No
 * reader returns the fact of another name. The version word of a node never falls, and a holder of
 * the word that has seen version v for a name never sees v again for another name. A repair takes at
 * most one entry out, and after it each name is in the index exactly once, and nothing else is.
 *
 * WRONG=n builds a protocol that is broken in one place; each must fail:
 *   1  the version is not raised when a name is given back
 *   2  index_moves is not raised between the copy and the overwriting of an entry
 *   3  the reader does not compare index_moves
 *   4  the reader reads the version after the name
 *   5  the version is reset when a node gets another name
 *   6  the repair leaves entries as they are
 *   7  the repair does not raise index_moves: the dead writer may have copied an entry and told nobody
 */
#ifndef WRONG
#define WRONG 0
#endif
#ifndef WHO
#define WHO 0
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif

#define X 1
#define Y 2
#define Z 3
#define NONE 0

/* The index: a node's number plus 1, 0 for empty. All names have home 0. */
byte slot[4];
byte moves;

/* The nodes. A fact is its name. `part` is a second byte of the name: both are written one by one. */
bit tag[2]; /* 1: it has a name */
byte name[2], part[2], fact[2], version[2];

byte deaths;
bit ready; /* the first state is made */

#define DIE(label) :: deaths < DEATHS -> deaths++; goto label

inline raise_node(n) {
    if
    :: WRONG == 1
    :: else -> version[n] = version[n] + 1
    fi
}

/* take_out: `gap` is the slot to empty. */
inline take_out() {
    i = gap;
    do
    :: i < 3 && slot[i + 1] != 0 ->
           i = i + 1;
           if :: atomic { true -> slot[gap] = slot[i] } DIE(dead) fi;
           if :: atomic { WRONG != 2 -> moves = moves + 1 } :: WRONG == 2 DIE(dead) fi;
           gap = i
    :: else -> break
    od;
    if :: atomic { true -> slot[gap] = 0; gap = 0; i = 0 } DIE(dead) fi
}

/* md__node_give_back of node n. */
inline give_back(n) {
    if :: atomic { true -> tag[n] = 0 } DIE(dead) fi;
    if :: atomic { true -> raise_node(n) } DIE(dead) fi;
    gap = 0;
    do
    :: gap < 4 && slot[gap] == n + 1 -> take_out(); break
    :: gap < 4 && slot[gap] != n + 1 && slot[gap] != 0 -> gap++
    :: else -> break
    od;
    gap = 0
}

/* md__node_prepare with an idle node, md__node_publish and the commit, for a name in node n. */
inline register(n, what) {
    if :: atomic { true -> name[n] = what; if :: WRONG == 5 -> version[n] = 1 :: else fi } DIE(dead) fi;
    if :: atomic { true -> part[n] = what } DIE(dead) fi;
    if :: atomic { true -> tag[n] = 1 } DIE(dead) fi;
    gap = 0;
    do
    :: slot[gap] != 0 -> gap++
    :: else -> break
    od;
    if :: atomic { true -> slot[gap] = n + 1; gap = 0 } DIE(dead) fi;
    if :: atomic { true -> fact[n] = what } DIE(dead) fi; /* the commit */
    if :: atomic { true -> version[n] = version[n] + 1 } DIE(dead) fi
}

inline strike(n) {
    if :: atomic { true -> fact[n] = 0 } DIE(dead) fi; /* the commit */
    if :: atomic { true -> version[n] = version[n] + 1 } DIE(dead) fi
}

#define COUNT(n) ((slot[0] == n + 1) + (slot[1] == n + 1) + (slot[2] == n + 1) + (slot[3] == n + 1))

active proctype writer() {
    byte round, gap, i, k, mended;
    atomic {
        /* Y first, then X: X's entry lies behind Y's. */
        slot[0] = 2; slot[1] = 1;
        tag[0] = 1; name[0] = X; part[0] = X; fact[0] = X; version[0] = 1;
        tag[1] = 1; name[1] = Y; part[1] = Y; fact[1] = Y; version[1] = 1;
        ready = 1;
    }
again:
    do
    :: round < ROUNDS && fact[1] != 0 -> strike(1); give_back(1)
    :: round < ROUNDS && fact[1] == 0 && !tag[1] ->
           round++;
           if :: register(1, Y) :: register(1, Z) fi
    :: else -> break
    od;
    goto end_done;
dead:
    /* The next holder: recover.c, md__rebuild. Every version is raised first. */
    i = 0; gap = 0; mended = 0;
repair:
    atomic {
        version[0] = version[0] + 1; version[1] = version[1] + 1;
        if :: WRONG != 7 -> moves = moves + 1 :: else fi
    };
    if :: true DIE(dead) fi;
    if
    :: tag[1] && fact[1] == 0 ->
           if :: atomic { true -> tag[1] = 0 } DIE(dead) fi;
           if :: atomic { true -> raise_node(1) } DIE(dead) fi
    :: else
    fi;
    /* md__index_mend: entries of idle nodes, and the second of two */
    k = 0;
    do
    :: k < 4 && WRONG != 6 ->
           if
           :: slot[k] != 0 && (!tag[slot[k] - 1] ||
                               (k > 0 && slot[0] == slot[k]) || (k > 1 && slot[1] == slot[k]) ||
                               (k > 2 && slot[2] == slot[k])) ->
                  mended++; assert(mended == 1); gap = k; take_out()
           :: else -> k++
           fi
    :: else -> break
    od;
    k = 0; mended = 0;
    assert(COUNT(0) == 1 && COUNT(1) == tag[1]); /* check.c */
    goto again;
end_done:
    false
}

#define WANTED (WHO == 0 -> X : Y)

active proctype reader() {
    byte m, v, n, p, got;
    ready;
over:
    atomic { m = 0; v = 0; n = 0; p = 0; got = 0 };
    m = moves;
    do
    :: p < 4 ->
           n = slot[p];
           if
           :: n == 0 -> break
           :: else
           fi;
           n = n - 1;
           if :: WRONG != 4 -> v = version[n] :: else fi;
           if
           :: tag[n] ->
                  if
                  :: name[n] == WANTED ->
                         if
                         :: part[n] == WANTED -> goto found
                         :: else
                         fi
                  :: else
                  fi
           :: else
           fi;
           p++
    :: else -> break
    od;
    if
    :: moves != m && WRONG != 3 -> goto over
    :: else
    fi;
    assert(WHO != 0); /* X lives all the time */
    goto end_done;
found:
    if :: WRONG == 4 -> v = version[n] :: else fi;
    got = fact[n];
    if
    :: version[n] != v -> goto over
    :: else
    fi;
    assert(got == 0 || got == WANTED);
    assert(WHO != 0 || got == X);
end_done:
    false
}

/* One who holds the version word of node 1, as a call does, and never looks at anything else. */
active proctype holder() {
    byte v, was;
    /* It notes the version under which it knew the name of the node, as md_list tells it. */
    atomic { tag[1] && fact[1] != 0 -> v = version[1]; was = fact[1] };
    /* At any later moment: the same version means the same name. */
    atomic { version[1] == v && tag[1] && fact[1] != was && fact[1] != 0 -> assert(false) }
end_done:
    false
}
