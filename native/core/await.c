/* await.c - waiting, for a fact or for any change: the one loop of all waits.
 *
 * It looks, and sleeps while neither the event word of what it waits for nor the lease of the main
 * member has changed; whatever ended the sleep, it looks again. The deadline is absolute, so an
 * interrupted wait can simply be called again. Who waits for what stands in the member's slot, for
 * people to see; it decides nothing.
 *
 * Where there is no main member (elect.c), a wait for a fact that the waiter would register itself
 * watches the registrar's lease instead, and ends when the waiter is the registrar; all others watch
 * no lease, since nobody's death ends them.
 *
 * Locking: waits_lock guards the list of this process's sleepers, by which a cancel, a leaving
 * member and the closing of the registry find those they must send home. No lock is held while
 * asleep.
 *
 * Note [Any change]
 * Who waits for any change sleeps on an event word of its own, header.changes, and looks at
 * header.next_seq, the registry's sequence. A committer 1. publishes its fact, or the link past the
 * one it strikes; 2. publishes the sequence, one higher; 3. rings the word of the name; 4. rings
 * `changes`. It holds the lock throughout, so the sequence only rises, and no two rise to the same.
 *
 * No wake is lost: the argument of Note [Event words] holds for 2 and 4 as its two steps. Ring
 * first: prepare reads what ring wrote, and so the look sees the sequence that was published before
 * it. Prepare first: ring finds bit 0 set and wakes, or the kernel's compare sends the waiter back.
 *
 * No change is missed between two waits, for 1 comes before 2: whoever reads n in next_seq (acquire
 * after release) sees all commits by which it became n, thus every fact with a smaller seq that was
 * not struck out since. A commit that it does not see raises the sequence beyond n later, and ends
 * the wait for another one than n. That is why the sequence is raised after the commit and not
 * before it: a waiter that looked in between would take note of n and never hear of the change.
 *
 * A committer killed between 1 and 2 has changed the facts under the old sequence. Nobody can
 * commit before the lock's next holder has repaired what it left, and that one raises the sequence
 * in any case (md__rebuild) before it rings all words. Killed between 2 and 4 it has told nobody:
 * the slice of each sleep brings the waiters back.
 */
#include <linux/futex.h>

#include "internal.h"

/* What a wait is for: a fact or, without a query, another sequence than this one. */
struct goal {
    const struct md__query *query;
    struct md__sink *out;
    uint64_t seq;
    bool or_elect; /* or that the waiter is the registrar */
};

/* Whose death a wait has to hear of: the word of that lease, NULL for nobody's. */
struct watch {
    md__u32 *lease;
    uint32_t seen;
};

static void note_wait(struct md__member *m, const struct md__query *q) {
    char name[64] = {0};
    if (q) memcpy(name, q->name, q->name_len < 63 ? q->name_len : 63);
    md__store_words(m->wait_name, name, sizeof name);
    md__poke32(&m->wait_kind, q ? q->kind : 0);
    md__poke32(&m->wait_key, q ? (uint32_t)q->key : 0);
    md__poke64(&m->waiting_ns, (uint64_t)md_now());
    md__add32(&m->waiters, 1);
}

/* 0 when it is reached, MD_ENOENT when it is not yet. */
static int look(md__reg *reg, struct goal *goal) {
    if (goal->query) return md__look(reg, goal->query, goal->out);
    uint64_t now = md__read64(&md__header(reg)->next_seq);
    if (now == goal->seq) return MD_ENOENT;
    goal->seq = now;
    return 0;
}

/* Sets the mark by which the kernel wakes us when the lease's owner dies. Not in the word of a lease
 * that nobody has: its next owner would find it taken. */
static uint32_t arm(md__u32 *lease) {
    uint32_t seen = md__read32(lease);
    while (seen & FUTEX_TID_MASK && !(seen & FUTEX_WAITERS)) {
        if (md__swap_if32(lease, &seen, seen | FUTEX_WAITERS)) return seen | FUTEX_WAITERS;
    }
    return seen;
}

/* Arms the lease that this wait depends on. MD_EDIED when its owner is dead, MD_EELECTED when the
 * waiter depends on itself. */
static int watch(md__reg *reg, const struct md__wait *wait, const struct goal *goal,
                 struct watch *w) {
    struct md__queue q;
    *w = (struct watch){NULL, 0};
    if (!md__is_elect(reg)) {
        w->lease = md__lease_word(md__process(reg, 0));
    } else if (goal->or_elect) {
        int rc = md__queue(reg, goal->query->name, goal->query->name_len, &q);
        if (rc) return rc == MD_ENOENT ? 0 : rc;
        if (q.registrar == wait->member) return MD_EELECTED;
        w->lease = md__lease_of(reg, q.registrar);
    }
    if (!w->lease) return 0;
    w->seen = arm(w->lease);
    if (!(w->seen & FUTEX_OWNER_DIED)) {
        /* A registrar's process without a lease has left and could not say so. (A main member's is
         * closing the registry.) */
        return md__is_elect(reg) && !(w->seen & FUTEX_TID_MASK) ? MD_EDIED : 0;
    }
    /* The kernel woke one of us: that one wakes the rest, whatever it will return itself. */
    if (!MD_FAULT_IS(19)) md__futex_wake(w->lease, INT32_MAX);
    return MD_EDIED;
}

/* The registrar is dead: its claims end now. */
static int bury(md__reg *reg) {
    int rc = md__lock(reg);
    if (rc) return rc;
    md__sweep(reg);
    md__unlock(reg);
    return 0;
}

/* The one loop of all waits. The order inside matters, see Note [Event words]: arm both words, then
 * look. */
static int await(md__reg *reg, struct md__wait *wait, struct goal *goal, int64_t deadline_ns,
                 md_wait_stats *stats) {
    struct md__header *h = md__header(reg);
    struct watch on;
    struct md__member *m;
    for (;;) {
        uint32_t seen = md__event_prepare(wait->event);
        int watched = watch(reg, wait, goal, &on);
        int rc = md__member_check(reg, wait->member, &m);
        if (rc) return rc;
        if (md__is_closed(reg)) return MD_ECLOSED;
        if (md__read32(&wait->cancelled)) return MD_ECANCELED;
        uint32_t state = md__read32(&h->state);
        if (state != MD__OPEN) return state == MD__CLOSED ? MD_ECLOSED : MD_EDAMAGED;
        rc = look(reg, goal);
        if (rc != MD_ENOENT) return rc;
        if (watched == MD_EDIED) {
            stats->by_lease = 1;
            if (!md__is_elect(reg)) return MD_EDIED;
            rc = bury(reg); /* and rings our word: the sleep below ends at once */
            if (rc) return rc;
        } else if (watched) {
            return watched;
        }
        int64_t now = md_now();
        if (deadline_ns != MD_FOREVER && now >= deadline_ns) return MD_ETIMEDOUT;
        rc = md__sleep(wait->event, seen, on.lease, on.seen, deadline_ns, md__slice(reg));
        stats->slept_ns += (uint64_t)(md_now() - now);
        stats->sleeps++;
        stats->wakes += rc == MD__SLEPT_RUNG;
        stats->slices += rc == MD__SLEPT_SLICE;
        if (rc == MD__SLEPT_SLICE) md__mend(reg);
        /* A signal that came just before the sleep did not end it; its handlers are the main
         * thread's to run, so that one asks its caller to look after each slice. */
        if (rc == MD__SLEPT_SIGNAL || (rc == MD__SLEPT_SLICE && md__on_main_thread()))
            return MD_EINTR;
        if (rc < 0) return rc;
    }
}

/* A member's wait from its beginning to its end, in the list of sleepers meanwhile. */
static int await_as(md__reg *reg, uint64_t member, uint64_t ticket, md__u32 *event,
                    struct goal *goal, int64_t deadline_ns, md_wait_stats *stats) {
    struct md__wait wait = {.member = member, .ticket = ticket, .event = event, .cancelled = 0};
    struct md__member *m;
    int rc = md__member_check(reg, member, &m);
    if (rc) return rc;
    pthread_mutex_lock(&reg->waits_lock);
    md__crowd_enter(reg, &wait);
    note_wait(m, goal->query);
    pthread_mutex_unlock(&reg->waits_lock);

    rc = await(reg, &wait, goal, deadline_ns, stats);

    pthread_mutex_lock(&reg->waits_lock);
    md__crowd_leave(reg, &wait);
    if (md__member_check(reg, member, &m) == 0) md__add32(&m->waiters, (uint32_t)-1);
    pthread_mutex_unlock(&reg->waits_lock);
    return rc;
}

static int await_fact(md_registry handle, uint64_t member, struct goal *goal,
                      const struct md__query *q, int64_t deadline_ns, uint64_t ticket,
                      md_wait_stats *stats) {
    md__reg *reg;
    if (deadline_ns < MD_FOREVER) return MD_EINVAL;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = await_as(reg, member, ticket, &md__event(reg, q->hash)->word, goal, deadline_ns, stats);
    md__exit(reg);
    return rc;
}

int md_await(md_registry handle, uint64_t member, uint32_t kind, int32_t key, uint32_t at_least,
             const char *name, size_t name_len, int64_t deadline_ns, uint64_t ticket, void *buf,
             size_t cap, md_wait_stats *stats) {
    struct md__query q;
    struct md__sink out = {buf, cap, 0};
    struct goal goal = {.query = &q, .out = &out};
    int rc = md__query_make(&q, kind, key, at_least, name, name_len);
    return rc ? rc : await_fact(handle, member, &goal, &q, deadline_ns, ticket, stats);
}

int md_await_or_elect(md_registry handle, uint64_t member, uint32_t kind, int32_t key,
                      uint32_t at_least, const char *name, size_t name_len, int64_t deadline_ns,
                      uint64_t ticket, void *buf, size_t cap, md_wait_stats *stats) {
    struct md__query q;
    struct md__sink out = {buf, cap, 0};
    struct goal goal = {.query = &q, .out = &out, .or_elect = true};
    int rc = md__query_make(&q, kind, key, at_least, name, name_len);
    return rc ? rc : await_fact(handle, member, &goal, &q, deadline_ns, ticket, stats);
}

int md_await_change(md_registry handle, uint64_t member, uint64_t seq, int64_t deadline_ns,
                    uint64_t ticket, uint64_t *now_seq, md_wait_stats *stats) {
    struct goal goal = {.seq = seq};
    md__reg *reg;
    *now_seq = seq;
    if (deadline_ns < MD_FOREVER) return MD_EINVAL;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = await_as(reg, member, ticket, &md__header(reg)->changes, &goal, deadline_ns, stats);
    *now_seq = goal.seq;
    md__exit(reg);
    return rc;
}
