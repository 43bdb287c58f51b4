/* registration.c - facts: claimed, struck, found. list.c lists them, await.c waits for them.
 *
 * Note [Readers take no lock]
 * The facts of a name form a chain, newest first, that hangs on the name's node. Two stores change
 * it: a new head (register), a link past a fact (strike); each publishes a state that is complete.
 * After it, and before the memory of a struck fact may be written again, the writer raises the
 * node's version (md__raise: the raise is ordered before all that follows). A reader takes the
 * version, walks, copies, and takes the version again (md__version_after: ordered after all that it
 * read). If it read a single byte that was written into reused memory, it also sees the raise, and
 * starts over. What it may have read meanwhile is arbitrary: so every ref is checked against the
 * arena, every length against its limit, and a walk goes on from newer to older only. Such a reader
 * can be outrun for ever by writers of the same name; after some tries it takes the lock.
 *
 * Killed writers: before the publishing store nothing was changed, after it everything was, and
 * what is missing then (the raises, the free list, the rings) is done by the next holder of the lock
 * (mutex.c, recover).
 */
#include "internal.h"

static uint64_t packed_size(uint64_t text) {
    return (sizeof(md_record) + text + 7) & ~7ull;
}

/* A record in a caller's buffer, of whatever alignment. Its fields are written there one by one:
 * copied as a whole from where they have just been put together, they cost more than all the rest. */
struct __attribute__((packed, may_alias)) record_at {
    md_record fields;
};

/* Packs one fact. MD__AGAIN when it cannot be true: a reader has walked into reused memory. */
int md__pack(const md__reg *reg, const struct md__node *node, struct md__fact *f,
             struct md__sink *out) {
    uint64_t body = md__peek32(&f->body_len), where = md__peek32(&f->where_len),
             name = md__once32(&node->name_len);
    if (body > MD_MAX_BODY || where > MD_MAX_WHERE || name > MD_MAX_NAME) return MD__AGAIN;
    uint32_t ref = md__ref(reg, f);
    if (!md__at(reg, ref, sizeof *f + body + where) ||
        !md__at(reg, md__ref(reg, node), sizeof *node + name))
        return MD__AGAIN;
    uint64_t size = packed_size(name + body + where);
    if (out->used + size <= out->cap) {
        char *to = out->buf + out->used;
        struct record_at *r = (struct record_at *)to;
        memset(to + size - 8, 0, 8);
        r->fields.size = size;
        r->fields.seq = md__peek64(&f->seq);
        r->fields.ref = ref;
        r->fields.interp = (int64_t)md__peek64(&f->interp);
        r->fields.pid = md__peek32(&f->pid);
        r->fields.kind = md__peek32(&f->kind);
        r->fields.key = (int32_t)md__peek32(&f->key);
        r->fields.name_len = (uint32_t)name;
        r->fields.body_len = (uint32_t)body;
        r->fields.where_len = (uint32_t)where;
        md__load_words(to + sizeof *r, node->name, name);
        md__load_words(to + sizeof *r + name, f->text, body + where);
    } else if (out->used == 0 && out->cap >= sizeof size) {
        memcpy(out->buf, &size, sizeof size);
    }
    out->used += size;
    return 0;
}

static struct md__fact *fact_at(const md__reg *reg, uint32_t ref) {
    struct md__fact *f = md__at(reg, ref, sizeof *f);
    return f && md__peek32(&f->block.tag) == MD__TAG_FACT ? f : NULL;
}

/* The same, if it is older than the one before it, as all in a chain are: so no walk goes round in
 * circles. */
struct md__fact *md__older_at(const md__reg *reg, uint32_t ref, uint64_t *seq) {
    struct md__fact *f = fact_at(reg, ref);
    if (!f || md__peek64(&f->seq) >= *seq) return NULL;
    *seq = md__peek64(&f->seq);
    return f;
}

static bool matches(const struct md__fact *f, uint32_t kind, int32_t key) {
    return md__peek32(&f->kind) == kind && md__peek32(&f->key) == (uint32_t)key;
}

/* One walk along a chain: counts the matches and packs the newest. */
static int find_once(const md__reg *reg, struct md__node *node, const struct md__query *q,
                     struct md__sink *out) {
    uint64_t before = md__read64(&node->version);
    uint64_t seq = UINT64_MAX;
    uint32_t found = 0, ref = md__read32(&node->head);
    out->used = 0;
    while (ref) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return MD__AGAIN;
        if (matches(f, q->kind, q->key) && found++ == 0 && md__pack(reg, node, f, out))
            return MD__AGAIN;
        if (found + MD_FAULT_IS(14) >= q->at_least) break;
        ref = md__read32(&f->next);
    }
    if (!MD_FAULT_IS(8) && md__version_after(&node->version) != before) return MD__AGAIN;
    if (found + MD_FAULT_IS(14) < q->at_least) return MD_ENOENT;
    return out->used > out->cap ? MD_ENOBUFS : 0;
}

int md__look(md__reg *reg, const struct md__query *q, struct md__sink *out) {
    struct md__node *node;
    int rc = md__node_find(reg, q->name, q->name_len, q->hash, &node);
    if (rc) return rc;
    for (int i = 0; i < MD__TRIES; i++) {
        rc = find_once(reg, node, q, out);
        if (rc != MD__AGAIN) return rc;
    }
    rc = md__lock(reg);
    if (rc) return rc;
    rc = find_once(reg, node, q, out);
    md__unlock(reg);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
}

int md__query_make(struct md__query *q, uint32_t kind, int32_t key, uint32_t at_least,
                   const char *name, size_t len) {
    if (!name || len == 0 || at_least == 0) return MD_EINVAL;
    if (len > MD_MAX_NAME) return MD_ETOOLONG;
    *q = (struct md__query){name, len, md__hash(name, len), kind, key, at_least};
    return 0;
}

int md_find(md_registry handle, uint32_t kind, int32_t key, const char *name, size_t name_len,
            void *buf, size_t cap) {
    struct md__query q;
    struct md__sink out = {buf, cap, 0};
    md__reg *reg;
    int rc = md__query_make(&q, kind, key, 1, name, name_len);
    if (rc) return rc;
    rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = md__look(reg, &q, &out);
    md__exit(reg);
    return rc;
}

int md_version(md_registry handle, uint64_t node_ref, uint64_t *version) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    struct md__node *node =
        node_ref > UINT32_MAX ? NULL : md__at(reg, (uint32_t)node_ref, sizeof *node);
    if (node && md__peek32(&node->block.tag) == MD__TAG_NODE)
        *version = md__read64(&node->version);
    else
        rc = MD_EINVAL;
    md__exit(reg);
    return rc;
}

/* --- registering, under the lock -------------------------------------------------------------- */

/* After a commit, and before anything that follows it: the registry's sequence goes on. See
 * Note [Any change] in await.c. */
static void raise_sequence(md__reg *reg) {
    md__u64 *next_seq = &md__header(reg)->next_seq;
    md__publish64(next_seq, md__peek64(next_seq) + 1);
}

/* Who waits for this name, and who waits for any change. */
static void ring(md__reg *reg, const struct md__node *node) {
    if (!MD_FAULT_IS(1)) md__event_ring(&md__event(reg, node->hash)->word);
    if (!MD_FAULT_IS(2)) md__event_ring(&md__header(reg)->changes);
}

static void raise_versions(md__reg *reg, struct md__node *node, uint32_t rule) {
    if (!MD_FAULT_IS(7)) md__raise(&node->version);
    if (!(rule & MD_RAISE_ALL)) return;
    uint64_t top = md__top(reg);
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__node *other = (struct md__node *)(reg->base + at);
        uint32_t size = md__once32(&other->block.size);
        if (!md__is_step(size, top - at)) return;
        if (md__peek32(&other->block.tag) == MD__TAG_NODE && other != node)
            md__raise(&other->version);
        at += size;
    }
}

static struct md__fact *live_twin(md__reg *reg, struct md__node *node, uint32_t kind, int32_t key) {
    uint64_t seq = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (MD_FAULT_IS(15)) return NULL;
        if (!f || matches(f, kind, key)) return f;
        ref = md__peek32(&f->next);
    }
    return NULL;
}

int md__commit(md__reg *reg, const struct md__member *m, uint64_t member, const struct md__query *q,
               uint32_t rule, const struct md__text *t, struct md__sink *out) {
    struct md__header *h = md__header(reg);
    struct md__node *node;
    uint32_t ref;
    int rc = md__node_make(reg, q->name, q->name_len, q->hash, &node);
    if (rc) return rc;
    if (rule & MD_UNIQUE) {
        struct md__fact *twin = live_twin(reg, node, q->kind, q->key);
        if (twin && md__pack(reg, node, twin, out)) return MD_EDAMAGED;
        if (twin) return out->used > out->cap ? MD_ENOBUFS : MD_EEXIST;
    }
    rc = md__alloc(reg, sizeof(struct md__fact) + ((t->body_len + t->where_len + 7) & ~7ull), &ref);
    if (rc) return rc;
    struct md__fact *f = md__fresh(reg, ref);
    md__poke32(&f->next, MD_FAULT_IS(6) ? 0 : md__peek32(&node->head));
    if (MD_FAULT_IS(5)) md__publish32(&node->head, ref);
    md__poke32(&f->node, md__ref(reg, node));
    md__poke64(&f->seq, md__peek64(&h->next_seq));
    md__poke64(&f->interp, md__peek64(&m->interp));
    md__poke64(&f->member, member);
    md__poke32(&f->pid, md__peek32(&md__process(reg, reg->process)->pid));
    md__poke32(&f->kind, q->kind);
    md__poke32(&f->key, (uint32_t)q->key);
    md__poke32(&f->rule, rule);
    md__poke32(&f->body_len, (uint32_t)t->body_len);
    md__poke32(&f->where_len, (uint32_t)t->where_len);
    char *joined =
        (char *)f->text; /* nobody else reads this block yet, or its reader will start over */
    size_t whole = t->body_len & ~(size_t)7, rest = t->body_len - whole;
    md__store_words(f->text, t->body, whole);
    char seam[8] = {0};
    memcpy(seam, t->body + whole, rest);
    size_t lead = t->where_len < 8 - rest ? t->where_len : 8 - rest;
    memcpy(seam + rest, t->where, lead);
    md__store_words((md__u64 *)(joined + whole), seam, rest + lead);
    md__store_words((md__u64 *)(joined + whole + 8), t->where + lead, t->where_len - lead);
    md__poke32(&f->block.tag, MD__TAG_FACT);
    if (md__pack(reg, node, f, out)) rc = MD_EDAMAGED;
    if (out->used > out->cap) rc = MD_ENOBUFS;
    if (rc) {
        md__free(reg, &f->block);
        return rc;
    }
    md__publish32(&node->head, ref); /* the commit */
    raise_sequence(reg);
    if (!MD_FAULT_IS(10)) md__poke64(&h->facts, md__peek64(&h->facts) + 1);
    raise_versions(reg, node, rule);
    ring(reg, node);
    return 0;
}

/* Takes the lock for a member that may change facts, or may in its namespaces. To a child of fork,
 * its parent's members are nobody. */
static int lock_as_registrar(md__reg *reg, uint64_t member, struct md__member **m) {
    int rc = md__lock(reg);
    if (rc) return rc;
    rc = md__member_check(reg, member, m);
    if (rc == MD_ENOENT) rc = MD_EROLE;
    if (rc == 0 && md__read32(&md__header(reg)->state) == MD__CLOSED) rc = MD_ECLOSED;
    uint32_t role = md__is_elect(reg) ? MD_PEER : MD_MAIN;
    if (rc == 0 && md__peek32(&(*m)->role) != role) rc = MD_EROLE;
    if (rc) md__unlock(reg);
    return rc;
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
    if (kind < MD_LIBRARY || kind > MD_NAME || (base != MD_UNIQUE && base != MD_STACK))
        return MD_EINVAL;
    if (body_len > MD_MAX_BODY || where_len > MD_MAX_WHERE) return MD_ETOOLONG;
    rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = lock_as_registrar(reg, member, &m);
    if (rc == 0) {
        if (md__is_elect(reg)) rc = md__may_change(reg, member, name, name_len, false);
        if (rc == 0) rc = md__commit(reg, m, member, &q, rule, &t, &out);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}

/* The node of a fact, when both are what `ref` and `seq` say. */
static struct md__node *node_of(const md__reg *reg, uint64_t ref, uint64_t seq,
                                struct md__fact **fact) {
    struct md__fact *f = *fact = ref > UINT32_MAX ? NULL : fact_at(reg, (uint32_t)ref);
    if (!f || md__peek64(&f->seq) != seq) return NULL;
    struct md__node *node = md__at(reg, md__peek32(&f->node), sizeof *node);
    return node && md__peek32(&node->block.tag) == MD__TAG_NODE ? node : NULL;
}

/* Under the lock. */
int md__strike(md__reg *reg, uint64_t ref, uint64_t seq) {
    struct md__header *h = md__header(reg);
    struct md__fact *f;
    struct md__node *node = node_of(reg, ref, seq, &f);
    if (!node) return MD_ENOENT;
    md__u32 *link = &node->head;
    uint64_t last = UINT64_MAX;
    while (md__peek32(link) != (uint32_t)ref) {
        struct md__fact *newer = md__older_at(reg, md__peek32(link), &last);
        if (!newer) return MD_ENOENT;
        link = &newer->next;
    }
    md__publish32(link, MD_FAULT_IS(20) ? 0 : md__peek32(&f->next)); /* the commit */
    if (!MD_FAULT_IS(9)) raise_sequence(reg);
    md__poke64(&h->facts, md__peek64(&h->facts) - 1);
    raise_versions(reg, node, md__peek32(&f->rule));
    ring(reg, node);
    md__free(reg, &f->block);
    return 0;
}

/* Under the lock: what one member has registered. */
void md__strike_all_of(md__reg *reg, uint64_t member) {
    uint64_t top = md__peek64(&md__header(reg)->arena_top);
    if (top > reg->mapped) return;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        const struct md__fact *f = (struct md__fact *)(reg->base + at);
        if (!md__is_step(f->block.size, top - at)) break;
        at += f->block.size;
        if (md__peek32(&f->block.tag) == MD__TAG_FACT && md__peek64(&f->member) == member)
            md__strike(reg, md__ref(reg, f), md__peek64(&f->seq));
    }
}

static int may_strike(md__reg *reg, uint64_t member, uint64_t ref, uint64_t seq) {
    char name[MD_MAX_NAME + 1];
    struct md__fact *f;
    const struct md__node *node = node_of(reg, ref, seq, &f);
    size_t len = node ? node->name_len : 0;
    if (!node || len > MD_MAX_NAME || !md__at(reg, md__ref(reg, node), sizeof *node + len))
        return MD_ENOENT;
    if (md__peek32(&f->kind) == MD_CLAIM) return MD_EROLE; /* md_release does that */
    md__load_words(name, node->name, len);
    return md__may_change(reg, member, name, len, true);
}

int md_strike(md_registry handle, uint64_t member, uint64_t ref, uint64_t seq) {
    struct md__member *m;
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = lock_as_registrar(reg, member, &m);
    if (rc == 0) {
        if (md__is_elect(reg)) rc = may_strike(reg, member, ref, seq);
        if (rc == 0) rc = md__strike(reg, ref, seq);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}
