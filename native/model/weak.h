/* weak.h - memory in which stores are seen late and loads may be old, for the models weak_*.pml.
 *
 * Each word keeps all values that it has had, in their order. A thread has a view: for each word, the
 * oldest value that it may still read. A load takes any value from there on, so it may be old, and
 * two threads may see the stores of a third in different orders, or each miss the other's (that is
 * what store buffers do). What moves a view:
 *
 *   a load or a store moves the thread's view of that word to what it read or wrote
 *   a release store gives its value the view of its thread; an acquire load takes that view over
 *   after a release fence every store gives its value the view that the thread had at the fence; an
 *   acquire fence takes over the views of all values that were loaded before it
 *   a read-modify-write reads the last value and writes the next one, with nothing in between; its
 *   value has the view of the one that it replaced, too
 *
 * This is the memory of C11 without loads that read from stores to come ("load buffering"), which C11
 * and ARM allow where nothing orders a load before a store. README.md says what that leaves out.
 *
 * A file that includes this defines WORDS (at most 7), AGES (at most 16 values of a word) and THREADS.
 */
#define AT(view, word) (((view) >> (4 * (word))) & 15)
#define SET(view, word, age) (((view) & ~(15 << (4 * (word)))) | ((age) << (4 * (word))))

byte value[WORDS * AGES]; /* of word w the values at w * AGES and behind */
int carried[WORDS * AGES]; /* the view that a value gives to who acquires it */
byte newest[WORDS];
int view[THREADS], read_views[THREADS], fenced[THREADS];
#define me _pid

/* a = the later of a and b for each word */
inline join(a, b) {
    k = 0;
    do
    :: k < WORDS -> if :: AT(b, k) > AT(a, k) -> a = SET(a, k, AT(b, k)) :: else fi; k++
    :: else -> break
    od;
    k = 0
}

inline read_at(word, to) {
    to = value[word * AGES + age];
    view[me] = SET(view[me], word, age);
    join(read_views[me], carried[word * AGES + age])
}
inline acquire_at(word) { join(view[me], carried[word * AGES + age]) }
/* Any value that the thread may still read. */
inline choose(word) {
    age = AT(view[me], word);
    do :: age < newest[word] -> age++ :: break od
}
inline append(word, what, gives) {
    newest[word] = newest[word] + 1;
    assert(newest[word] < AGES);
    value[word * AGES + newest[word]] = what;
    view[me] = SET(view[me], word, newest[word]);
    carried[word * AGES + newest[word]] = SET(gives, word, newest[word])
}

/* atomics.h, by its names. `order` is RELAXED or ORDERED: wrong variants take the order away. */
#define RELAXED 0
#define ORDERED 1
inline peek(word, to) { atomic { choose(word); read_at(word, to); age = 0 } }
inline read(word, to, order) {
    atomic { choose(word); read_at(word, to); if :: order -> acquire_at(word) :: else fi; age = 0 }
}
inline poke(word, what) { atomic { append(word, what, fenced[me]) } }
inline publish(word, what, order) {
    atomic { if :: order -> append(word, what, view[me]) :: else -> append(word, what, fenced[me]) fi }
}
inline release_fence() { atomic { fenced[me] = view[me] } }
inline acquire_fence() { atomic { join(view[me], read_views[me]) } }
/* A read-modify-write: `old` is what it read, `new` an expression of it. */
inline change(word, old, new, order) {
    atomic {
        age = newest[word];
        read_at(word, old);
        seen_view = carried[word * AGES + age];
        if
        :: order -> acquire_at(word); append(word, new, view[me])
        :: else -> append(word, new, fenced[me])
        fi;
        join(carried[word * AGES + newest[word]], seen_view);
        seen_view = 0; age = 0
    }
}
/* A compare-and-swap. A failed one is an acquire load of the last value, which `old` has then. */
inline change_if(word, old, expected, new, order) {
    atomic {
        age = newest[word];
        if
        :: value[word * AGES + age] == expected -> change(word, old, new, order)
        :: else -> read_at(word, old); if :: order -> acquire_at(word) :: else fi
        fi;
        age = 0
    }
}
/* The value that all will agree on: for the kernel, and for properties. */
#define LAST(word) value[(word) * AGES + newest[word]]

/* A lock: who takes it has the view of who released it. */
bit locked;
int lock_view;
inline lock() { atomic { !locked -> locked = 1; join(view[me], lock_view) } }
inline unlock() { atomic { lock_view = view[me]; locked = 0 } }

#define SCRATCH byte age, k; int seen_view
