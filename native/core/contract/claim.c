/* claim.c - makes and releases claims on a namespace. See Note [Claims] in claims.c.
 *
 * When a claim ends, all waiters are woken, because one of them may be the registrar now. When a
 * member makes a claim, the other waits of that member are woken, for the same reason.
 */
#include "contract.h"

static int is_namespace(const char *name, size_t len) {
    if (!name || len == 0) return MD_EINVAL;
    if (len > MD_MAX_NAME) return MD_ETOOLONG;
    return md__space_len(name, len) == len ? 0 : MD_EINVAL;
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

/* `is_new` says that the member was not in the queue before. A buffer that is too small for the
 * answer is refused before anything is changed. */
static int claim_as(md__reg *reg, uint64_t member, struct md__member *m, const struct md__query *q,
                    const struct md__text *where, struct md__sink *out, bool *is_new) {
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

/* Only a bridge queues up to be the host's. */
static bool may_claim(const md__reg *reg, const struct md__member *m, const struct md__query *q) {
    bool is_theirs =
        q->name_len == MD__BRIDGES_LEN && memcmp(q->name, MD__BRIDGES, MD__BRIDGES_LEN) == 0;
    return !md__is_host(reg) || !is_theirs || md__peek32(&m->role) == MD_BRIDGE;
}

/* Takes the lock for a member of this process. */
static int lock_as_member(md__reg *reg, uint64_t member, struct md__member **m) {
    int rc = md__lock(reg);
    if (rc) return rc;
    rc = md__member_check(reg, member, m);
    if (rc == MD_ENOENT) rc = MD_EROLE;
    if (rc == 0 && md__read32(&md__header(reg)->state) == MD__CLOSED) rc = MD_ECLOSED;
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
    rc = lock_as_member(reg, member, &m);
    if (rc == 0) {
        rc = may_claim(reg, m, &q) ? claim_as(reg, member, m, &q, &text, &out, &is_new) : MD_EROLE;
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
    rc = lock_as_member(reg, member, &m);
    if (rc == 0) {
        const struct md__fact *own = own_claim(reg, member, name, name_len);
        rc = own ? md__end_claim(reg, own, name, name_len) : MD_ENOENT;
        if (rc == 0) md__event_ring_all(reg);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}
