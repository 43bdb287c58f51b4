/* names.pml - names that are given back and nodes that are used again, for Spin. native/core does not
 * do this yet: a name keeps its node for as long as the registry lives. This is the protocol that it
 * is to get, searched before it is built.
 *
 * Note [Names are given back]
 * A name lives while it has facts. When its last one is struck, its node becomes idle, and another
 * name can have the node. Readers take no lock meanwhile, and holders of md_word read the version
 * word of a node at any time. So
 *
 * - a block that was a node once stays one, named or idle. Only blocks that were never published as
 *   nodes go back to the arena.
 * - its version only rises. It is not reset for the next name. A name that comes back to its node
 *   finds a higher version than it left, and whoever remembers node and version looks again.
 *
 * The holder of the lock gives a name back by 1. the tag (idle); 2. a raise of the version; 3. taking
 * the entry out of the index. It reuses the node by 4. the new hash and name; 5. the tag (named); 6.
 * an entry in the index; 7. the first fact, and a raise.
 *
 * A reader 1. reads the version; 2. reads the tag; 3. compares the name; 4. reads the chain; 5. reads
 * the version again, and starts over with the index if it has changed. If it read a byte of the next
 * name, that was written after the raise, so it finds the version changed. If the version that it
 * read first is that of the raise already, it finds the tag idle, or a tag that was published after
 * all of the next name: then the name that it compares is whole.
 *
 * An entry is taken out by moving later ones of its run back over it, so no graves make probes longer
 * for ever. A mover 1. copies an entry to its new slot; 2. raises index_moves; 3. writes over the old
 * slot. So each entry is in the array at every moment, once or, between 1 and 3, twice. A reader can
 * still miss it, if it passed the new slot before 1 and came to the old one after 3. Then it sees the
 * raise, and probes again: it believes what it found or missed only if index_moves is what it was.
 *
 * A holder that is killed in between leaves a node with no facts, an entry whose node is idle, or an
 * entry that is there twice. The recovery raises index_moves in its stead, makes the first idle, and
 * takes the others out by one walk over the array.
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
 * the tag and the name, then the fact, the version again, and index_moves again. It returns what it
 * found, or "not found", or starts over.
 *
 * Properties: a reader that looks for X, which lives all the time, never returns "not found". No
 * reader returns the fact of another name. The version word of a node never falls, and a holder of
 * the word that has seen version v for a name never sees v again for another name. After a repair,
 * each name is in the index exactly once, and nothing else is.
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

/* md__node_prepare, md__node_publish and the commit, for a name in node n. */
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
    byte round, gap, i, k;
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
    i = 0; gap = 0;
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
                  gap = k; take_out()
           :: else -> k++
           fi
    :: else -> break
    od;
    /* index_again: a name that is not in the index yet */
    if
    :: tag[1] && COUNT(1) == 0 -> gap = (slot[0] == 0 -> 0 : (slot[1] == 0 -> 1 : 2)); slot[gap] = 2; gap = 0
    :: else
    fi;
    k = 0;
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
    if
    :: moves != m && WRONG != 3 -> goto over
    :: else
    fi;
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
