/* await.c - waits for a fact or for any change: the one loop of all waits.
 *
 * The loop looks, and sleeps while neither the event word of its goal nor the lease of the main
 * member has changed. Whatever ended the sleep, it looks again. The deadline is absolute, so an
 * interrupted wait can simply be called again. A member's slot says what the member waits for. That
 * is for people to see and decides nothing.
 *
 * A wait for a fact that the waiter would register itself (claims.c) watches the registrar's lease
 * instead, and ends when the waiter is the registrar; of the main member's death it learns when its
 * slice ends. Where there is no main member, all other waits watch no lease, since nobody's death
 * ends them.
 *
 * Locking: waits_lock guards the list of this process's sleepers. A cancel, a leaving member and
 * the closing of the registry find in it the waits that they must end. No lock is held while
 * asleep.
 *
 * Note [Any change]
 * Waits for any change have an event word of their own, header.changes. Such a waiter sleeps on
 * that word and looks at header.next_seq, the registry's sequence. A committer 1. publishes its
 * fact, or the link past the fact that it strikes; 2. publishes the sequence, one higher; 3. rings
 * the word of the name; 4. rings `changes`. It holds the lock throughout, so the sequence only
 * rises, and no two commits raise it to the same number.
 *
 * No wake is lost: the argument of Note [Event words] holds with 2 and 4 as the committer's two
 * steps. Ring first: prepare reads what ring wrote, so the waiter's look sees the sequence that was
 * published before the ring. Prepare first: ring finds bit 0 set and wakes, or the kernel's compare
 * sends the waiter back.
 *
 * No change is missed between two waits, because 1 comes before 2. A process that reads n in
 * next_seq (acquire after release) sees all commits that raised it up to n, and thus every fact
 * with a smaller seq that was not struck since. A commit that it does not see raises the sequence
 * beyond n later, and so ends a wait for a sequence other than n. That is why the sequence is
 * raised after the commit and not before it: otherwise a waiter that looked in between would note n
 * and never hear of the change.
 *
 * A committer that is killed between 1 and 2 has changed the facts under the old sequence. Nobody
 * can commit before the lock's next holder has repaired what the dead committer left. That holder
 * raises the sequence in any case (md__rebuild) before it rings all words. A committer that is
 * killed between 2 and 4 has told nobody: the slice of each sleep brings the waiters back.
 */
#include <linux/futex.h>

#include "contract.h"

/* What a wait is for: a fact or, without a query, a sequence other than `seq`. */
struct goal {
    const struct md__query *query;
    struct md__sink *out;
    uint64_t seq;
    bool or_elect; /* the wait also ends when the waiter is the registrar */
};

/* The lease word that tells a wait of a death, NULL when nobody's death matters. */
struct watch {
    md__u32 *lease;
    uint32_t seen;
    bool is_mains;
};

/* A wait as its caller names it. A caller that repeats the same call after MD_EINTR goes on with
 * the same wait. */
struct call {
    md_registry handle;
    uint64_t member, ticket, seq;
    int64_t deadline_ns;
    uint32_t kind, hash;
    int32_t key;
};

/* The wait from which the process's main thread last returned with MD_EINTR, and since when it waits.
 * Without a handle: there is none, or it went on. A main thread's wait returns after each slice;
 * without this record it would never seem to wait for longer than a slice. Only the main thread
 * reads and writes it. */
static struct {
    struct call call;
    uint64_t since;
} interrupted;

static bool is_same(const struct call *a, const struct call *b) {
    return a->handle == b->handle && a->member == b->member && a->ticket == b->ticket &&
           a->seq == b->seq && a->deadline_ns == b->deadline_ns && a->kind == b->kind &&
           a->hash == b->hash && a->key == b->key;
}

/* When a wait that enters now began to wait. */
static uint64_t since_when(const struct call *call) {
    if (!md__on_main_thread() || !is_same(call, &interrupted.call)) return (uint64_t)md_now();
    interrupted.call.handle = 0;
    return interrupted.since;
}

static void note_wait(struct md__member *m, const struct md__query *q, uint64_t since) {
    char name[64] = {0};
    if (q) memcpy(name, q->name, q->name_len < 63 ? q->name_len : 63);
    md__store_words(m->wait_name, name, sizeof name);
    md__poke32(&m->wait_kind, q ? q->kind : 0);
    md__poke32(&m->wait_key, q ? (uint32_t)q->key : 0);
    md__poke64(&m->waiting_ns, since);
    md__add32(&m->waiters, 1);
}

/* Returns 0 when the goal is reached, MD_ENOENT while it is not. */
static int look(md__reg *reg, struct goal *goal) {
    if (goal->query) return md__look(reg, goal->query, goal->out);
    uint64_t now = md__read64(&md__header(reg)->next_seq);
    if (now == goal->seq) return MD_ENOENT;
    goal->seq = now;
    return 0;
}

/* Sets FUTEX_WAITERS, so that the kernel wakes us when the owner of the lease dies. Does not set it
 * in the word of a lease that nobody has: the next owner would find that lease taken. */
static uint32_t arm(md__u32 *lease) {
    uint32_t seen = md__read32(lease);
    while (seen & FUTEX_TID_MASK && !(seen & FUTEX_WAITERS)) {
        if (md__swap_if32(lease, &seen, seen | FUTEX_WAITERS)) return seen | FUTEX_WAITERS;
    }
    return seen;
}

/* Arms the lease that this wait depends on. Returns MD_EDIED when its owner is dead, MD_EELECTED
 * when the waiter itself is the registrar. */
static int watch(md__reg *reg, const struct md__wait *wait, const struct goal *goal,
                 struct watch *w) {
    struct md__process *main = md__has_main(reg) ? md__process(reg, 0) : NULL;
    struct md__queue q;
    *w = (struct watch){main ? md__lease_word(main) : NULL, 0, main != NULL};
    if (goal->or_elect && !(main && md__lease_is_dead(main))) {
        int rc = md__look_queue(reg, goal->query->name, goal->query->name_len, &q);
        if (rc && rc != MD_ENOENT) return rc;
        if (rc == 0 && q.registrar == wait->member) return MD_EELECTED;
        md__u32 *its = rc == 0 ? md__lease_of(reg, q.registrar) : NULL;
        if (its) w->is_mains = w->lease == its;
        if (its) w->lease = its;
    }
    if (!w->lease) return 0;
    w->seen = arm(w->lease);
    if (!(w->seen & FUTEX_OWNER_DIED)) {
        /* If the registrar's process has no lease, it has left but could not record it. (A main
         * member's process without a lease is closing the registry.) */
        return !w->is_mains && !(w->seen & FUTEX_TID_MASK) ? MD_EDIED : 0;
    }
    /* The kernel woke one of us. That one wakes the rest, whatever it will return itself. */
    if (!MD_FAULT(LEASE_WAKES_ONE)) md__futex_wake(w->lease, INT32_MAX);
    return MD_EDIED;
}

/* Sweeps, because the registrar is dead: that ends its claims. */
static int bury(md__reg *reg) {
    int rc = md__lock(reg);
    if (rc) return rc;
    md__sweep(reg);
    md__unlock(reg);
    return 0;
}

/* The one loop of all waits. Its order matters, see Note [Event words]: first arm both words, then
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
            if (on.is_mains) return MD_EDIED;
            rc = bury(reg); /* this rings our word, so the sleep below ends at once */
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
        /* A signal that came just before the sleep did not end it. The main thread has to run its
         * handler, so on that thread we return to the caller after each slice. */
        if (rc == MD__SLEPT_SIGNAL || (rc == MD__SLEPT_SLICE && md__on_main_thread()))
            return MD_EINTR;
        if (rc < 0) return rc;
    }
}

/* A member's wait from beginning to end. Meanwhile it stands in the list of sleepers. */
static int await_as(md__reg *reg, const struct call *call, md__u32 *event, struct goal *goal,
                    md_wait_stats *stats) {
    struct md__wait wait = {
        .member = call->member, .ticket = call->ticket, .event = event, .cancelled = 0};
    struct md__member *m;
    int rc = md__member_check(reg, call->member, &m);
    if (rc) return rc;
    uint64_t since = since_when(call);
    pthread_mutex_lock(&reg->waits_lock);
    md__crowd_enter(reg, &wait);
    note_wait(m, goal->query, since);
    pthread_mutex_unlock(&reg->waits_lock);

    rc = await(reg, &wait, goal, call->deadline_ns, stats);

    pthread_mutex_lock(&reg->waits_lock);
    md__crowd_leave(reg, &wait);
    if (md__member_check(reg, call->member, &m) == 0) md__add32(&m->waiters, (uint32_t)-1);
    pthread_mutex_unlock(&reg->waits_lock);
    if (rc == MD_EINTR && md__on_main_thread()) {
        interrupted.call = *call;
        interrupted.since = since;
    }
    return rc;
}

static int await_fact(md_registry handle, uint64_t member, struct goal *goal,
                      const struct md__query *q, int64_t deadline_ns, uint64_t ticket,
                      md_wait_stats *stats) {
    md__reg *reg;
    if (deadline_ns < MD_FOREVER) return MD_EINVAL;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    struct call call = {.handle = handle,
                        .member = member,
                        .ticket = ticket,
                        .deadline_ns = deadline_ns,
                        .kind = q->kind,
                        .hash = q->hash,
                        .key = q->key};
    rc = await_as(reg, &call, &md__event(reg, q->hash)->word, goal, stats);
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
    struct call call = {.handle = handle,
                        .member = member,
                        .ticket = ticket,
                        .seq = seq,
                        .deadline_ns = deadline_ns};
    rc = await_as(reg, &call, &md__header(reg)->changes, &goal, stats);
    *now_seq = goal.seq;
    md__exit(reg);
    return rc;
}

int md_cancel(md_registry handle, uint64_t member, uint64_t ticket) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    md__disturb(reg, member, ticket, 1);
    md__exit(reg);
    return 0;
}
