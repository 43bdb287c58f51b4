/* register.c - registers and strikes facts, after judging the caller under the lock. */
#include "contract.h"

/* Under the lock: returns 0 when the member is the registrar of the name's namespace and, with
 * `alone`, nobody else has a claim on it. It sweeps first if need be: other members in the queue
 * may be dead and not yet swept. */
static int may_change(md__reg *reg, uint64_t member, const char *name, size_t len, bool alone) {
    struct md__queue q;
    int rc = md__queue_now(reg, name, len, &q);
    if (rc == 0 && (q.registrar != member || (alone && q.claims > 1))) {
        md__sweep(reg);
        rc = md__queue_now(reg, name, len, &q);
    }
    if (rc) return rc == MD_ENOENT ? MD_EROLE : rc;
    return q.registrar == member && (!alone || q.claims == 1) ? 0 : MD_EROLE;
}

static bool is_registrar(const md__reg *reg, const struct md__member *m) {
    uint32_t role = md__has_main(reg) ? MD_MAIN : md__is_elect(reg) ? MD_PEER : MD_BRIDGE;
    return md__peek32(&m->role) == role;
}

/* Takes the lock for a member. A child of fork cannot act as a member of its parent. */
static int lock_as_member(md__reg *reg, uint64_t member, struct md__member **m) {
    int rc = md__lock(reg);
    if (rc) return rc;
    rc = md__member_check(reg, member, m);
    if (rc == MD_ENOENT) rc = MD_EROLE;
    if (rc == 0 && md__read32(&md__header(reg)->state) == MD__CLOSED) rc = MD_ECLOSED;
    if (rc) md__unlock(reg);
    return rc;
}

static bool is_kind(uint32_t kind) {
    return kind >= MD_LIBRARY && kind < MD_KINDS && kind != MD_CLAIM;
}

/* Under the lock. The own facts of dead members may stand in the way of readers: so whoever
 * registers a fact of any member sweeps first. */
static int may_register(md__reg *reg, uint64_t member, const struct md__member *m,
                        const struct md__query *q) {
    if (md__is_anyones(q->kind)) {
        md__sweep(reg);
        return 0;
    }
    if (!is_registrar(reg, m)) return MD_EROLE;
    if (md__is_host(reg)) return may_change(reg, member, MD__BRIDGES, MD__BRIDGES_LEN, false);
    return md__is_elect(reg) ? may_change(reg, member, q->name, q->name_len, false) : 0;
}

int md_register(md_registry handle, uint64_t member, uint32_t kind, uint32_t rule, int32_t key,
                const char *name, size_t name_len, const char *body, size_t body_len,
                const char *where, size_t where_len, void *buf, size_t cap) {
    struct md__query q;
    struct md__text t = {body ? body : "", body_len, where ? where : "", where_len};
    struct md__sink out = {buf, cap, 0};
    struct md__member *m;
    md__reg *reg;
    int rc = md__query_make(&q, kind, key, 1, name, name_len);
    if (rc) return rc;
    uint32_t base = rule & ~(uint32_t)MD_RAISE_ALL;
    if ((!body && body_len) || (!where && where_len)) return MD_EINVAL;
    if (!is_kind(kind) || (base != MD_UNIQUE && base != MD_STACK)) return MD_EINVAL;
    if (body_len > MD_MAX_BODY || where_len > MD_MAX_WHERE) return MD_ETOOLONG;
    rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = lock_as_member(reg, member, &m);
    if (rc == 0) {
        rc = may_register(reg, member, m, &q);
        if (rc == 0) rc = md__commit(reg, m, member, &q, rule, &t, &out);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}

static int may_strike(md__reg *reg, uint64_t member, const struct md__member *m, uint64_t ref,
                      uint64_t seq) {
    char name[MD_MAX_NAME + 1];
    struct md__fact *f;
    const struct md__node *node = md__node_of(reg, ref, seq, &f);
    uint32_t kind = node ? md__peek32(&f->kind) : 0;
    if (md__is_anyones(kind))
        return !md__is_own(kind) || md__peek64(&f->member) == member ? 0 : MD_EROLE;
    if (!is_registrar(reg, m) || kind == MD_CLAIM) return MD_EROLE; /* that is md_release's */
    if (!node || md__has_main(reg)) return node ? 0 : MD_ENOENT;
    if (md__is_host(reg)) return may_change(reg, member, MD__BRIDGES, MD__BRIDGES_LEN, false);
    size_t len = md__peek32(&node->name_len);
    if (len > MD_MAX_NAME || !md__at(reg, md__ref(reg, node), sizeof *node + len))
        return MD_ENOENT;
    md__load_words(name, node->name, len);
    return may_change(reg, member, name, len, true);
}

int md_strike(md_registry handle, uint64_t member, uint64_t ref, uint64_t seq) {
    struct md__member *m;
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = lock_as_member(reg, member, &m);
    if (rc == 0) {
        rc = may_strike(reg, member, m, ref, seq);
        if (rc == 0) rc = md__strike(reg, ref, seq);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}
