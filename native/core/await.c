/* await.c - waiting for a fact: the one loop of all waits.
 *
 * It looks, and sleeps while neither the event word of the name nor the lease of the main member
 * has changed; whatever ended the sleep, it looks again. The deadline is absolute, so an
 * interrupted wait can simply be called again. Who waits for what stands in the member's slot, for
 * people to see; it decides nothing.
 *
 * Locking: waits_lock guards the list of this process's sleepers, by which a cancel, a leaving
 * member and the closing of the registry find those they must send home. No lock is held while
 * asleep.
 */
#include <linux/futex.h>

#include "internal.h"

static void note_wait(struct md__member *m, const struct md__query *q) {
    char name[64] = {0};
    memcpy(name, q->name, q->name_len < 63 ? q->name_len : 63);
    md__store_words(m->wait_name, name, sizeof name);
    md__poke32(&m->wait_kind, q->kind);
    md__poke32(&m->wait_key, (uint32_t)q->key);
    md__poke64(&m->waiting_ns, (uint64_t)md_now());
    md__add32(&m->waiters, 1);
}

/* The one loop of all waits. The order inside matters, see Note [Event words]: arm both words, then
 * look. */
static int await(md__reg *reg, struct md__wait *wait, const struct md__query *q,
                 int64_t deadline_ns, struct md__sink *out, md_wait_stats *stats) {
    struct md__header *h = md__header(reg);
    md__u32 *lease = md__lease_word(md__process(reg, 0));
    struct md__member *m;
    for (;;) {
        uint32_t seen = md__event_prepare(wait->event);
        uint32_t lease_seen = md__or32(lease, FUTEX_WAITERS) | FUTEX_WAITERS;
        int rc = md__member_check(reg, wait->member, &m);
        if (rc) return rc;
        if (md__is_closed(reg)) return MD_ECLOSED;
        if (md__read32(&wait->cancelled)) return MD_ECANCELED;
        uint32_t state = md__read32(&h->state);
        if (state != MD__OPEN) return state == MD__CLOSED ? MD_ECLOSED : MD_EDAMAGED;
        rc = md__look(reg, q, out);
        if (rc != MD_ENOENT) return rc;
        if (lease_seen & FUTEX_OWNER_DIED) {
            /* The kernel woke one of us: that one wakes the rest. */
            md__futex_wake(lease, INT32_MAX);
            stats->by_lease = 1;
            return MD_EDIED;
        }
        int64_t now = md_now();
        if (deadline_ns != MD_FOREVER && now >= deadline_ns) return MD_ETIMEDOUT;
        rc = md__sleep(wait->event, seen, lease, lease_seen, deadline_ns);
        stats->slept_ns += (uint64_t)(md_now() - now);
        stats->sleeps++;
        stats->wakes += rc == MD__SLEPT_RUNG;
        stats->slices += rc == MD__SLEPT_SLICE;
        /* A signal that came just before the sleep did not end it; its handlers are the main
         * thread's to run, so that one asks its caller to look after each slice. */
        if (rc == MD__SLEPT_SIGNAL || (rc == MD__SLEPT_SLICE && md__on_main_thread()))
            return MD_EINTR;
        if (rc < 0) return rc;
    }
}

int md_await(md_registry handle, uint64_t member, uint32_t kind, int32_t key, uint32_t at_least,
             const char *name, size_t name_len, int64_t deadline_ns, uint64_t ticket, void *buf,
             size_t cap, md_wait_stats *stats) {
    struct md__query q;
    struct md__sink out = {buf, cap, 0};
    struct md__member *m;
    md__reg *reg;
    if (deadline_ns < MD_FOREVER) return MD_EINVAL;
    int rc = md__query_make(&q, kind, key, at_least, name, name_len);
    if (rc) return rc;
    rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = md__member_check(reg, member, &m);
    if (rc == 0) {
        struct md__wait wait = {.member = member,
                                .ticket = ticket,
                                .event = &md__event(reg, q.hash)->word,
                                .cancelled = 0};
        pthread_mutex_lock(&reg->waits_lock);
        wait.next = reg->waits;
        reg->waits = &wait;
        note_wait(m, &q);
        pthread_mutex_unlock(&reg->waits_lock);

        rc = await(reg, &wait, &q, deadline_ns, &out, stats);

        pthread_mutex_lock(&reg->waits_lock);
        struct md__wait **link = &reg->waits;
        while (*link != &wait) link = &(*link)->next;
        *link = wait.next;
        if (md__member_check(reg, member, &m) == 0) md__add32(&m->waiters, (uint32_t)-1);
        pthread_mutex_unlock(&reg->waits_lock);
    }
    md__exit(reg);
    return rc;
}
