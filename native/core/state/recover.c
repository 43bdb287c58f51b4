/* recover.c - the region's lock, and the repair after its holder died.
 *
 * The lock is held for microseconds, never across a call out of core/, never while asleep. With
 * glibc's robust mutexes, an unlocker that is killed between clearing the word and its wake can
 * strand a waiter; so nobody waits for longer than a slice before trying anew.
 *
 * A process that finds the last holder dead repairs the derived state before anyone else gets in
 * (md__rebuild), raises every version and rings every word: the dead holder may have published a
 * fact and told nobody. For a mutex that somebody wrote over, see
 * Note [A lock that was written over] in mutex.c.
 *
 * Note [A repair that is owed]
 * A registry is given up only if its bytes contradict each other. A process that finds the last
 * holder dead may be unable to look: it may have lost its descriptor, so that it does not know how
 * far the region is backed, or the system may refuse it something. That says nothing about the
 * region, so another process should repair it. But a robust mutex that is released while
 * inconsistent can never be locked again. So the process that cannot look
 * 1. sets header.repair_owed; 2. makes the mutex consistent; 3. releases it, and answers why it
 * could not look. It has changed nothing that others rely on: any repair begins with the things
 * that it may have begun (raising versions, recomputing derived state).
 *
 * No holder misses the debt. The word is written only under the lock. md__lock and md__mend, the
 * only two places that take the lock, read it there before they let anyone in: a process that finds
 * 1 repairs first, or leaves the repair to the next in its turn. If the process that leaves it is
 * killed before step 3, at any instruction, it is a dead holder itself: the kernel marks the lock,
 * and the next process repairs, whatever the word says. The word is cleared after the last store of
 * a repair that was completed or that gave the registry up. A repairer that is killed before that
 * leaves the mark, the word, or both.
 *
 * No reader misses anything. While the repair is owed nobody changes facts, names or the index,
 * since nobody gets in. Readers find what the dead holder left, as they do between any death and
 * its repair, and that is the old state or the new one. Waiters see the same at their next look.
 * What the dead holder failed to tell (the sequence, the wakes), the repair tells. A waiter whose
 * slice ends finds the word just as it would find the mark, and repairs if it can (md__mend).
 */
#include <errno.h>
#include <linux/futex.h>
#include <time.h>

#include "state.h"

/* Marks the facts that hang on a node, by one walk along its chain. So all chains together cost as
 * many steps as there are facts. The walk ends where the chain cannot be true, and where it meets
 * the facts of another node, which are marked from that node. */
static void mark_chain(md__reg *reg, const struct md__node *node) {
    uint64_t seq = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f || md__peek32(&f->node) != md__ref(reg, node)) return;
        md__poke32(&f->rule, md__peek32(&f->rule) | MD__RULE_MARK);
        ref = md__peek32(&f->next);
    }
}

/* Marks the facts that hang on any node. They keep the mark until md__rebuild meets them. raise_all
 * has already removed the marks that a killed recovery left. */
static void mark_linked(md__reg *reg, uint64_t top) {
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        const struct md__node *node = (struct md__node *)(reg->base + at);
        uint32_t size = md__once32(&node->block.size);
        if (!md__is_step(size, top - at)) return; /* md__rebuild will say so */
        at += size;
        if (md__peek32(&node->block.tag) == MD__TAG_NODE) mark_chain(reg, node);
    }
}

static bool take_mark(struct md__fact *fact) {
    uint32_t rule = md__peek32(&fact->rule);
    md__poke32(&fact->rule, rule & ~(uint32_t)MD__RULE_MARK);
    return rule & MD__RULE_MARK;
}

/* Raises every version, so that the memory of facts that the dead holder unlinked may be written
 * again. That is safe only after the last version is raised, not after the fact's own, since a fact
 * can lie in front of its node. Raises index_moves as well, for the entries that the dead holder
 * moved. Also removes the marks that a killed recovery left. */
static int raise_all(md__reg *reg) {
    uint64_t top = md__top(reg);
    md__raise(&md__header(reg)->index_moves);
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__block *block = (struct md__block *)(reg->base + at);
        uint32_t size_class, size = md__once32(&block->size);
        if (!md__is_step(size, top - at) || md__block_size(size, &size_class) != size ||
            size_class >= MD__CLASSES)
            return MD_EDAMAGED;
        at += size;
        uint32_t tag = md__peek32(&block->tag);
        if (tag == MD__TAG_NODE || tag == MD__TAG_IDLE)
            md__raise(&((struct md__node *)block)->version);
        else if (tag == MD__TAG_FACT)
            take_mark((struct md__fact *)block);
    }
    md__retire();
    return 0;
}

/* Counts a node that has a name. One whose first fact was never committed, or whose last one was
 * struck, becomes idle. */
static void keep_node(struct md__header *h, md__reg *reg, struct md__node *node, uint64_t *names) {
    if (md__peek32(&node->block.tag) == MD__TAG_NODE) {
        if (md__peek32(&node->head)) {
            ++*names;
            return;
        }
        md__node_make_idle(node);
    }
    md__node_put_back(h, reg, node);
}

/* After a death: computes again everything that can be computed, from blocks, chains and the index
 * in force. If the repairer is killed too, at any instruction, the next one can simply run it
 * again. */
int md__rebuild(md__reg *reg) {
    struct md__header *h = md__header(reg);
    uint64_t top = md__top(reg), facts = 0, names = 0, used = 0, last_seq = 0;
    int rc = raise_all(reg);
    if (rc) return rc;
    mark_linked(reg, top);
    for (uint32_t i = 0; i < MD__CLASSES; i++) h->free_lists[i] = h->idle_lists[i] = 0;
    md__poke64(&h->idle, 0);
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__block *block = (struct md__block *)(reg->base + at);
        uint32_t tag = md__peek32(&block->tag), size = md__once32(&block->size);
        if (!md__is_step(size, top - at)) return MD_EDAMAGED;
        at += size;
        bool kept = false;
        if (tag == MD__TAG_FACT) {
            struct md__fact *fact = (struct md__fact *)block;
            kept = take_mark(fact);
            if (kept) {
                facts++;
                if (md__peek64(&fact->seq) > last_seq) last_seq = md__peek64(&fact->seq);
            }
        } else if (tag == MD__TAG_NODE || tag == MD__TAG_IDLE) {
            keep_node(h, reg, (struct md__node *)block, &names);
            kept = true;
        } else if (tag == MD__TAG_INDEX) {
            kept = md__ref(reg, block) == (uint32_t)(md__peek64(&h->index) >> 8);
        }
        if (kept)
            used += size;
        else
            md__put_back(h, reg, block);
    }
    rc = md__index_mend(reg);
    if (rc) return rc;
    md__poke64(&h->facts, facts);
    md__poke64(&h->names, names);
    md__poke64(&h->used, used);
    /* Raised in any case: the dead holder may have committed and died before it raised this. */
    if (md__peek64(&h->next_seq) > last_seq) last_seq = md__peek64(&h->next_seq);
    md__publish64(&h->next_seq, last_seq + !MD_FAULT(RECOVERY_KEEPS_SEQUENCE));
    return 0;
}

static const int64_t SLICE_NS = 50 * 1000 * 1000;
static const int64_t PATIENCE_NS = 10ll * 1000 * 1000 * 1000;

/* Returns 0, MD_EDAMAGED, or the reason why this process cannot tell. */
static int repair(md__reg *reg) {
    if (MD_FAULT(LOCK_TAKEN_WITHOUT_REPAIR)) return 0;
    int rc = md__region_survey(reg, md__read64(&md__header(reg)->arena_top));
    if (rc == 0) rc = md__rebuild(reg);
    return rc == 0 && md__check(reg, NULL, 0) ? MD_EDAMAGED : rc;
}

/* Called by the lock's holder. See Note [A repair that is owed]. */
static int recover(md__reg *reg) {
    struct md__header *h = md__header(reg);
    int rc = repair(reg);
    if (rc && rc != MD_EDAMAGED) {
        md__publish32(&h->repair_owed, 1);
        pthread_mutex_consistent(&h->mutex);
        return rc;
    }
    md__poke64(&h->recoveries, md__peek64(&h->recoveries) + 1);
    if (rc) /* Beyond repair: from now on everyone is told so and nobody works on it. */
        md__publish32(&h->state, MD__DAMAGED);
    else
        md__sweep(reg);
    md__publish32(&h->repair_owed, 0);
    pthread_mutex_consistent(&h->mutex);
    md__event_ring_all(reg);
    return rc;
}

/* Called with the answer that a request for the lock got. */
static int recover_if_owed(md__reg *reg, int rc) {
    bool owed = rc == 0 && md__read32(&md__header(reg)->repair_owed);
    return rc == EOWNERDEAD || owed ? recover(reg) : rc;
}

/* In the child of a fork. In another PID namespace the child's thread ids mean something else, so
 * it cannot take any lock of the region. Otherwise it opens the region for writing. See
 * Note [A child of a fork looks only] in region.c. */
static int look_around(md__reg *reg) {
    uint64_t space = 0;
    int rc = md__pid_space(&space);
    if (rc) return rc == MD_ESYS - ENOENT ? MD_EREOPEN : rc;
    if (space != md__header(reg)->pid_space) return MD_ENAMESPACE;
    rc = md__region_reopen(reg);
    if (rc == 0) md__publish32(&reg->forked, 0);
    return rc;
}

static int lock_within(md__reg *reg, int64_t patience_ns) {
    struct md__header *h = md__header(reg);
    int64_t give_up = md_now() + patience_ns;
    int died;
    if (md__read32(&reg->forked)) {
        int rc = look_around(reg);
        if (rc) return rc;
    }
    for (;;) {
        if (!md__is_of_our_type(&h->mutex)) return MD_EDAMAGED;
        int64_t until = md_now() + SLICE_NS;
        struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        int rc = pthread_mutex_clocklock(&h->mutex, CLOCK_MONOTONIC, &t);
        rc = recover_if_owed(reg, rc);
        if (rc == 0) {
            md__poke32(&reg->stuck, 0);
            if (md__read32(&h->state) != MD__DAMAGED) return 0;
            rc = MD_EDAMAGED;
        }
        if (rc < 0) {
            pthread_mutex_unlock(&h->mutex);
            return rc;
        }
        if (rc != ETIMEDOUT) return MD_EDAMAGED; /* a stray write changed the bytes of the lock */
        if (md__is_held_by_nobody(&h->mutex)) return MD_EDAMAGED;
        if (md_now() >= give_up) {
            md__poke32(&reg->stuck, md__mutex_owner(&h->mutex, &died));
            return MD_ELOCK;
        }
    }
}

int md__lock(md__reg *reg) {
    return lock_within(reg, PATIENCE_NS);
}

/* For a process or member that leaves. If this process has waited in vain before and the same
 * holder still has the lock, it asks only once: so all the steps of leaving together take no longer
 * than one patience. */
int md__lock_to_leave(md__reg *reg) {
    int died;
    uint32_t stuck = md__peek32(&reg->stuck);
    bool same = stuck && md__mutex_owner(&md__header(reg)->mutex, &died) == stuck;
    return lock_within(reg, same ? 0 : PATIENCE_NS);
}

void md__unlock(md__reg *reg) {
    pthread_mutex_unlock(&md__header(reg)->mutex);
}

/* For a waiter whose slice has ended. If the last holder of the lock died, the waiter recovers, and
 * so tells everyone who waits: a next holder may never come. It never waits for the lock: a process
 * that has the lock by now does the recovery itself. */
void md__mend(md__reg *reg) {
    struct md__header *h = md__header(reg);
    bool died = md__read32(md__mutex_word(&h->mutex)) & FUTEX_OWNER_DIED;
    if (!died && !md__read32(&h->repair_owed)) return;
    int rc = pthread_mutex_trylock(&h->mutex);
    if (rc && rc != EOWNERDEAD) return;
    recover_if_owed(reg, rc);
    pthread_mutex_unlock(&h->mutex);
}
