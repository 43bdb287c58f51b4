/* chain.c - the facts of a name: a chain that is read without the lock and changed under it.
 *
 * Note [Readers take no lock]
 * The facts of a name form a chain, newest first, that hangs on the name's node. Two kinds of store
 * change it: a new head (register), and a link past a fact (strike). Each publishes a complete
 * state. After that store, and before anything may write to the memory of a struck fact, the writer
 * raises the node's version (md__raise: the raise is ordered before everything that follows). A
 * reader reads the version, walks, copies, and reads the version again (md__version_after: ordered
 * after everything that it read). If it read a single byte that was written into reused memory, it
 * also sees the raise, and starts over. What it read until then may be arbitrary. So it checks
 * every ref against the arena and every length against its limit, and walks only from newer to
 * older facts. The version also tells it that the node was given to another name: see
 * Note [Names are given back] in index.c. Writers of the same name can outrun such a reader for ever; after some tries it
 * takes the lock (read.c).
 *
 * Killed writers: before the publishing store a writer has changed nothing, after it everything.
 * The next holder of the lock then does what is missing: the raises, the free list, the rings
 * (recover.c, recover).
 */
#include "state.h"

static uint64_t packed_size(uint64_t text) {
    return (sizeof(md_record) + text + 7) & ~7ull;
}

/* A record in a caller's buffer, at any alignment. We write its fields there one by one: to put the
 * record together elsewhere and copy it would cost more than all the rest. */
struct __attribute__((packed, may_alias)) record_at {
    md_record fields;
};

/* Packs one fact. Returns MD__AGAIN when the fact cannot be true: a reader walked into reused
 * memory. */
int md__pack(const md__reg *reg, const struct md__node *node, struct md__fact *f,
             struct md__sink *out) {
    uint64_t body = md__peek32(&f->body_len), where = md__peek32(&f->where_len),
             name = md__peek32(&node->name_len);
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
        r->fields.origin = md__peek32(&f->origin);
        r->fields.reserved = 0;
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

/* The fact at a ref, if it is older than `*seq`, which the caller read from the fact before it. In
 * a chain each fact is, so no walk goes round in circles. */
struct md__fact *md__older_at(const md__reg *reg, uint32_t ref, uint64_t *seq) {
    struct md__fact *f = fact_at(reg, ref);
    if (!f || md__peek64(&f->seq) >= *seq) return NULL;
    *seq = md__peek64(&f->seq);
    return f;
}

/* --- registering, under the lock -------------------------------------------------------------- */

/* Raises the registry's sequence: right after a commit, before all that follows it. See
 * Note [Any change] in await.c. */
static void raise_sequence(md__reg *reg) {
    md__u64 *next_seq = &md__header(reg)->next_seq;
    md__publish64(next_seq, md__peek64(next_seq) + 1);
}

/* Rings the waiters for this name and the waiters for any change. */
static void ring(md__reg *reg, const struct md__node *node) {
    if (!MD_FAULT(NAME_NOT_RUNG)) md__event_ring(&md__event(reg, md__peek32(&node->hash))->word);
    if (!MD_FAULT(CHANGE_NOT_RUNG)) md__event_ring(&md__header(reg)->changes);
}

/* Raises the versions of all names but one, if the rule of a fact says that it concerns them. */
static void raise_others(md__reg *reg, const struct md__node *node, uint32_t rule) {
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

static void raise_versions(md__reg *reg, struct md__node *node, uint32_t rule) {
    if (!MD_FAULT(VERSION_NOT_RAISED)) md__raise(&node->version);
    raise_others(reg, node, rule);
}

/* The live fact of this kind and key, or, if the kind is members' own, that of this member. */
static struct md__fact *live_twin(md__reg *reg, struct md__node *node, const struct md__query *q,
                                  uint64_t member) {
    uint64_t seq = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (MD_FAULT(UNIQUE_NOT_COMPARED)) return NULL;
        if (!f) return NULL;
        bool same = md__matches(f, q->kind, q->key);
        if (same && (!md__is_own(q->kind) || md__peek64(&f->member) == member)) return f;
        ref = md__peek32(&f->next);
    }
    return NULL;
}

int md__commit(md__reg *reg, struct md__member *m, uint64_t member, const struct md__query *q,
               uint32_t rule, const struct md__text *t, struct md__sink *out) {
    struct md__header *h = md__header(reg);
    struct md__node *node;
    struct md__fact *f = NULL;
    uint32_t ref;
    bool is_new;
    int rc = md__node_prepare(reg, q->name, q->name_len, q->hash, &node, &is_new);
    if (rc) return rc;
    if (!is_new && rule & MD_UNIQUE) {
        struct md__fact *twin = live_twin(reg, node, q, member);
        if (twin && md__pack(reg, node, twin, out)) return MD_EDAMAGED;
        if (twin) return out->used > out->cap ? MD_ENOBUFS : MD_EEXIST;
    }
    rc = md__alloc(reg, sizeof(struct md__fact) + ((t->body_len + t->where_len + 7) & ~7ull), &ref);
    if (rc) goto done;
    f = md__fresh(reg, ref);
    md__poke32(&f->next, MD_FAULT(OLDER_FACTS_FORGOTTEN) ? 0 : md__peek32(&node->head));
    if (MD_FAULT(PUBLISHED_BEFORE_WRITTEN)) md__publish32(&node->head, ref);
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
    md__poke32(&f->origin, 0);
    md__poke32(&f->reserved, 0);
    char *joined =
        (char *)f->text; /* nobody else reads this block yet, or the reader will start over */
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
    if (rc == 0 && is_new) rc = md__node_publish(reg, node);
    if (rc) goto done;
    /* Before the commit, for md__strike_own. */
    if (md__is_own(q->kind) || q->kind == MD_CLAIM) m->has_own = 1;
    md__publish32(&node->head, ref); /* the commit */
    raise_sequence(reg);
    if (!MD_FAULT(FACTS_NOT_COUNTED)) md__poke64(&h->facts, md__peek64(&h->facts) + 1);
    raise_versions(reg, node, rule);
    ring(reg, node);
    return 0;
done: /* refused: nothing refers to the new blocks */
    if (f) md__free(reg, &f->block);
    if (is_new) md__node_refuse(reg, node);
    return rc;
}

/* The node of the fact at `ref`, or NULL when no fact with this `seq` is there. */
struct md__node *md__node_of(const md__reg *reg, uint64_t ref, uint64_t seq,
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
    struct md__node *node = md__node_of(reg, ref, seq, &f);
    if (!node) return MD_ENOENT;
    md__u32 *link = &node->head;
    uint64_t last = UINT64_MAX;
    while (md__peek32(link) != (uint32_t)ref) {
        struct md__fact *newer = md__older_at(reg, md__peek32(link), &last);
        if (!newer) return MD_ENOENT;
        link = &newer->next;
    }
    md__publish32(link, MD_FAULT(STRIKE_CUTS_OLDER) ? 0 : md__peek32(&f->next)); /* the commit */
    if (!MD_FAULT(SEQUENCE_NOT_RAISED)) raise_sequence(reg);
    md__poke64(&h->facts, md__peek64(&h->facts) - 1);
    raise_versions(reg, node, md__peek32(&f->rule));
    ring(reg, node);
    md__free(reg, &f->block);
    if (!md__peek32(&node->head)) md__node_give_back(reg, node);
    return 0;
}

/* --- striking many, under the lock -------------------------------------------------------------
 *
 * Note [Striking many]
 * One walk over the arena strikes all of them, from name to name, and along each chain once. So n
 * facts cost n steps, whatever their names are. To look each up in its chain, as md__strike does,
 * would cost n^2 when all have one name, and everybody would wait for the lock meanwhile. For the
 * same reason the versions of all names are raised only once, for all the facts whose rules ask for
 * it. After that the caller rings all words once. A caller that dies in between has told nobody:
 * the recovery raises and rings in its stead.
 */

/* Strikes the facts of one name that `is_one` chooses, and ORs their rules into `rules`. */
static int strike_in(md__reg *reg, struct md__node *node, md__choice *is_one, const void *arg,
                     uint32_t *rules, uint64_t *struck) {
    struct md__header *h = md__header(reg);
    md__u32 *link = &node->head;
    uint64_t seq = UINT64_MAX;
    for (uint32_t ref; (ref = md__peek32(link));) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return MD_EDAMAGED;
        if (!is_one(reg, f, arg)) {
            link = &f->next;
            continue;
        }
        *rules |= md__peek32(&f->rule);
        ++*struck;
        md__publish32(link, md__peek32(&f->next)); /* the commit */
        if (!MD_FAULT(SEQUENCE_NOT_RAISED)) raise_sequence(reg);
        md__poke64(&h->facts, md__peek64(&h->facts) - 1);
        if (!MD_FAULT(VERSION_NOT_RAISED)) md__raise(&node->version);
        md__free(reg, &f->block);
    }
    return 0;
}

/* The same for all names that `is_name` chooses (NULL: for every name). */
int md__strike_many(md__reg *reg, md__name_choice *is_name, md__choice *is_one, const void *arg,
                    uint64_t *struck) {
    uint64_t top = md__peek64(&md__header(reg)->arena_top);
    uint32_t rules = 0;
    int rc = top > reg->mapped ? MD_EDAMAGED : 0;
    for (uint64_t at = MD__ARENA_AT; rc == 0 && at < top;) {
        struct md__node *node = (struct md__node *)(reg->base + at);
        uint32_t size = md__once32(&node->block.size);
        if (!md__is_step(size, top - at)) {
            rc = MD_EDAMAGED;
            break;
        }
        at += size;
        if (md__peek32(&node->block.tag) != MD__TAG_NODE || !md__peek32(&node->head)) continue;
        if (is_name && !is_name(reg, node, arg)) continue;
        rc = strike_in(reg, node, is_one, arg, &rules, struck);
        if (rc == 0 && !md__peek32(&node->head)) md__node_give_back(reg, node);
    }
    raise_others(reg, NULL, rules);
    return rc;
}

static bool is_of_member(const md__reg *reg, const struct md__fact *f, const void *arg) {
    return md__peek64(&f->member) == *(const uint64_t *)arg && md__peek32(&f->kind) < MD_AGREED;
}

/* Strikes all facts that one member has registered, but for what all have agreed on. */
void md__strike_all_of(md__reg *reg, uint64_t member) {
    uint64_t struck = 0;
    md__strike_many(reg, NULL, is_of_member, &member, &struck);
    if (struck) md__event_ring_all(reg);
}

static bool is_of_gone(const md__reg *reg, const struct md__fact *f, const void *arg) {
    const struct md__gone *gone = arg;
    uint64_t whose = md__peek64(&f->member);
    uint32_t kind = md__peek32(&f->kind);
    if (!md__is_own(kind) && (kind != MD_CLAIM || md__is_elect(reg))) return false;
    if (gone->member != MD__NOBODY) return whose == gone->member;
    return (uint32_t)whose < MD_MAX_MEMBERS &&
           md__is_gone(gone, md__peek32(&md__member(reg, (uint32_t)whose)->process));
}

/* Strikes the own facts of members that are gone, before their slots are freed, and their claims;
 * those of a team md__end_claims ends. The slots say whether there can be any: without this, each
 * death would cost a walk over the arena. */
void md__strike_own(md__reg *reg, const struct md__gone *gone) {
    uint64_t struck = 0;
    uint32_t top = md__read32(&md__header(reg)->member_top);
    bool any = false;
    for (uint32_t i = 0; i < top && i < MD_MAX_MEMBERS; i++) {
        const struct md__member *m = md__member(reg, i);
        bool is_gone = gone->member == MD__NOBODY ? md__is_gone(gone, md__peek32(&m->process))
                                                  : i == (uint32_t)gone->member;
        any |= is_gone && m->has_own;
    }
    if (any) md__strike_many(reg, NULL, is_of_gone, gone, &struck);
    if (struck) md__event_ring_all(reg);
}
