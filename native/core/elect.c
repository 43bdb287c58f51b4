/* elect.c - who registers where there is no main member: namespaces, their claims, their registrars.
 *
 * Note [Claims]
 * A claim is a fact of kind MD_CLAIM under a namespace's own name, with the member whose it is. The
 * facts of a name form a chain in the order of their numbers, so the claims of a namespace are a
 * queue; the oldest one's member is the registrar. Claims are made and ended under the lock, and
 * whoever registers or strikes compares itself with the oldest claim under that same lock: so at no
 * instant two members pass for the registrar of one namespace.
 *
 * A claim ends when its member releases it, leaves, or is found dead by a sweep. The last claim of a
 * namespace ends after all facts of the namespace, never before: whoever is killed between the two
 * leaves a claim of a dead member, by which the next sweep finds what is to be done. (A claim that is
 * not the last ends alone: what is registered is now the next one's.)
 *
 * After any claim has ended all event words are rung: who waits may be the registrar now. That wait
 * (md_await_or_elect, in await.c) prepares its event word, and then looks for the registrar and for
 * the fact. No wake is lost, by Note [Event words], with "publishes its fact" read as "links past
 * the claim". A member can become the registrar by its own claim, too, while another of its threads
 * waits: whose words are rung after the commit, likewise. The registrar's death is told by its
 * process's lease, on which the wait sleeps as well, or noticed after a slice.
 */
#include "internal.h"

/* How much of a name is its namespace: what stands before the first "::", or all of it. */
static size_t space_len(const char *name, size_t len) {
    for (size_t i = 0; i + 1 < len; i++)
        if (name[i] == ':' && name[i + 1] == ':') return i;
    return len;
}

/* The claims in one node's chain. MD_ENOENT when there is none. */
static int queue_once(const md__reg *reg, const struct md__node *node, struct md__queue *q) {
    uint64_t before = md__read64(&node->version), seq = UINT64_MAX;
    q->claims = 0;
    for (uint32_t ref = md__read32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return MD__AGAIN;
        if (md__peek32(&f->kind) == MD_CLAIM) {
            q->claims++;
            q->registrar = md__peek64(&f->member);
            q->first = f;
        }
        ref = md__read32(&f->next);
    }
    if (md__version_after(&node->version) != before) return MD__AGAIN;
    return q->claims ? 0 : MD_ENOENT;
}

/* The queue of the namespace to which a name belongs. Takes no lock, unless it is outrun. */
int md__queue(md__reg *reg, const char *name, size_t len, struct md__queue *q) {
    struct md__node *node;
    size_t space = space_len(name, len);
    int rc = md__node_find(reg, name, space, md__hash(name, space), &node);
    if (rc) return rc;
    for (int i = 0; i < MD__TRIES; i++) {
        rc = queue_once(reg, node, q);
        if (rc != MD__AGAIN) return rc;
    }
    rc = md__lock(reg);
    if (rc) return rc;
    rc = queue_once(reg, node, q);
    md__unlock(reg);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
}

/* The same under the lock, where nobody can outrun it. */
int md__queue_now(md__reg *reg, const char *name, size_t len, struct md__queue *q) {
    struct md__node *node;
    size_t space = space_len(name, len);
    int rc = md__node_find(reg, name, space, md__hash(name, space), &node);
    if (rc == 0) rc = queue_once(reg, node, q);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
}

/* The lease of a member's process, NULL when that member is not there any more. */
md__u32 *md__lease_of(const md__reg *reg, uint64_t member) {
    uint32_t i = (uint32_t)member;
    if (i >= MD_MAX_MEMBERS) return NULL;
    struct md__member *m = md__member(reg, i);
    uint32_t process = md__peek32(&m->process);
    if (md__read32(&m->state) != MD__LIVE || md__peek32(&m->generation) != member >> 32 ||
        process >= MD_MAX_PROCESSES)
        return NULL;
    return md__lease_word(md__process(reg, process));
}

/* Under the lock: 0 when the member is the registrar of the name's namespace, and with `alone` when
 * nobody else has a claim on it. Those in the queue before it may be dead and not yet swept. */
int md__may_change(md__reg *reg, uint64_t member, const char *name, size_t len, bool alone) {
    struct md__queue q;
    int rc = md__queue_now(reg, name, len, &q);
    if (rc == 0 && (q.registrar != member || (alone && q.claims > 1))) {
        md__sweep(reg);
        rc = md__queue_now(reg, name, len, &q);
    }
    if (rc) return rc == MD_ENOENT ? MD_EROLE : rc;
    return q.registrar == member && (!alone || q.claims == 1) ? 0 : MD_EROLE;
}

/* --- the end of claims, under the lock -------------------------------------------------------- */

static bool is_in(const struct md__node *node, const char *space, size_t len) {
    char name[MD_MAX_NAME + 1];
    size_t n = node->name_len;
    if (n > MD_MAX_NAME || sizeof *node + n > node->block.size || n < len) return false;
    md__load_words(name, node->name, n);
    return memcmp(name, space, len) == 0 && space_len(name, n) == len;
}

/* Strikes out what is registered under one name, its claims excepted. */
static int strike_name(md__reg *reg, const struct md__node *node) {
    uint64_t seq = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return MD_EDAMAGED;
        uint32_t next = md__peek32(&f->next);
        if (md__peek32(&f->kind) != MD_CLAIM) {
            int rc = md__strike(reg, ref, seq);
            if (rc) return rc;
        }
        ref = next;
    }
    return 0;
}

static int strike_namespace(md__reg *reg, const char *space, size_t len) {
    uint64_t top = md__peek64(&md__header(reg)->arena_top);
    if (top > reg->mapped) return MD_EDAMAGED;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        const struct md__node *node = (struct md__node *)(reg->base + at);
        if (!md__is_step(node->block.size, top - at)) return MD_EDAMAGED;
        at += node->block.size;
        if (md__peek32(&node->block.tag) != MD__TAG_NODE || !is_in(node, space, len)) continue;
        int rc = strike_name(reg, node);
        if (rc) return rc;
    }
    return 0;
}

static int end_claim(md__reg *reg, const struct md__fact *claim) {
    char space[MD_MAX_NAME + 1];
    struct md__queue q;
    uint32_t ref = md__peek32(&claim->node);
    const struct md__node *node = md__at(reg, ref, sizeof *node);
    size_t len = node ? node->name_len : 0;
    if (!node || len > MD_MAX_NAME || !md__at(reg, ref, sizeof *node + len)) return MD_EDAMAGED;
    md__load_words(space, node->name, len);
    int rc = md__queue_now(reg, space, len, &q);
    if (rc == 0 && q.claims == 1) rc = strike_namespace(reg, space, len);
    return rc ? rc : md__strike(reg, md__ref(reg, claim), md__peek64(&claim->seq));
}

/* Whether a claim is that of this member, or with MD__ALL of any member of this process slot. */
static bool is_of(const md__reg *reg, const struct md__fact *f, uint32_t process, uint64_t member) {
    uint64_t whose = md__peek64(&f->member);
    if (md__peek32(&f->block.tag) != MD__TAG_FACT || md__peek32(&f->kind) != MD_CLAIM) return false;
    if (member != MD__ALL) return whose == member;
    return (uint32_t)whose < MD_MAX_MEMBERS &&
           md__peek32(&md__member(reg, (uint32_t)whose)->process) == process;
}

/* Before a member, or with MD__ALL all members of a process slot, are no more. */
void md__end_claims(md__reg *reg, uint32_t process, uint64_t member) {
    uint64_t top = md__peek64(&md__header(reg)->arena_top);
    bool ended = false;
    if (!md__is_elect(reg) || top > reg->mapped) return;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        const struct md__fact *f = (struct md__fact *)(reg->base + at);
        if (!md__is_step(f->block.size, top - at)) break;
        at += f->block.size;
        if (is_of(reg, f, process, member)) ended |= end_claim(reg, f) == 0;
    }
    if (ended) md__event_ring_all(reg);
}

/* --- the contract ----------------------------------------------------------------------------- */

static int is_namespace(const char *name, size_t len) {
    if (!name || len == 0) return MD_EINVAL;
    if (len > MD_MAX_NAME) return MD_ETOOLONG;
    return space_len(name, len) == len ? 0 : MD_EINVAL;
}

static struct md__fact *own_claim(md__reg *reg, uint64_t member, const char *name, size_t len) {
    struct md__node *node;
    uint64_t seq = UINT64_MAX;
    if (md__node_find(reg, name, len, md__hash(name, len), &node)) return NULL;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return NULL;
        if (md__peek32(&f->kind) == MD_CLAIM && md__peek64(&f->member) == member) return f;
        ref = md__peek32(&f->next);
    }
    return NULL;
}

/* Packs the registrar's claim. MD_ENOENT when there is none. */
static int tell_registrar(md__reg *reg, const struct md__query *q, struct md__queue *queue,
                          struct md__sink *out) {
    struct md__node *node;
    int rc = md__queue_now(reg, q->name, q->name_len, queue);
    if (rc == 0) rc = md__node_find(reg, q->name, q->name_len, q->hash, &node);
    if (rc) return rc;
    out->used = 0;
    if (md__pack(reg, node, queue->first, out)) return MD_EDAMAGED;
    return out->used > out->cap ? MD_ENOBUFS : 0;
}

/* `is_new` tells whether the member was not in the queue before. A buffer that is too small for what
 * is to be told is found out before anything is changed. */
static int claim(md__reg *reg, uint64_t member, const struct md__member *m,
                 const struct md__query *q, const struct md__text *where, struct md__sink *out,
                 bool *is_new) {
    struct md__queue queue;
    md__sweep(reg);
    int rc = tell_registrar(reg, q, &queue, out);
    if (rc && rc != MD_ENOENT) return rc;
    *is_new = !own_claim(reg, member, q->name, q->name_len);
    if (*is_new) {
        out->used = 0;
        rc = md__commit(reg, m, member, q, MD_STACK, where, out);
        if (rc == 0) rc = tell_registrar(reg, q, &queue, out);
    }
    if (rc) return rc;
    return queue.registrar == member ? 0 : MD_EEXIST;
}

/* Takes the lock for a member of a registry without a main one. */
static int lock_as_peer(md__reg *reg, uint64_t member, struct md__member **m) {
    if (!md__is_elect(reg)) return MD_EROLE;
    int rc = md__lock(reg);
    if (rc) return rc;
    rc = md__member_check(reg, member, m);
    if (rc == MD_ENOENT) rc = MD_EROLE;
    if (rc) md__unlock(reg);
    return rc;
}

int md_claim(md_registry handle, uint64_t member, const char *name, size_t name_len,
             const char *where, size_t where_len, void *buf, size_t cap) {
    struct md__query q;
    struct md__text text = {"", 0, where ? where : "", where_len};
    struct md__sink out = {buf, cap, 0};
    struct md__member *m;
    md__reg *reg;
    bool is_new = false;
    int rc = is_namespace(name, name_len);
    if (rc == 0) rc = md__query_make(&q, MD_CLAIM, 0, 1, name, name_len);
    if (rc) return rc;
    if (!where && where_len) return MD_EINVAL;
    if (where_len > MD_MAX_WHERE) return MD_ETOOLONG;
    rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = lock_as_peer(reg, member, &m);
    if (rc == 0) {
        rc = claim(reg, member, m, &q, &text, &out, &is_new);
        md__unlock(reg);
    }
    if (rc == 0 && is_new) md__disturb(reg, member, 0, 0);
    md__exit(reg);
    return rc;
}

int md_release(md_registry handle, uint64_t member, const char *name, size_t name_len) {
    struct md__member *m;
    md__reg *reg;
    int rc = is_namespace(name, name_len);
    if (rc) return rc;
    rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = lock_as_peer(reg, member, &m);
    if (rc == 0) {
        const struct md__fact *own = own_claim(reg, member, name, name_len);
        rc = own ? end_claim(reg, own) : MD_ENOENT;
        if (rc == 0) md__event_ring_all(reg);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}
