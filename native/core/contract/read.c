/* read.c - finds and lists facts, and hands out the words that tell of changes.
 *
 * Readers take no lock, unless writers outrun them: see Note [Readers take no lock] in chain.c. A
 * list of all names takes one name after the other, so it is not of one moment: a change that comes
 * meanwhile may or may not be in it.
 */
#include <errno.h>

#include "contract.h"

/* One walk along the chain of a name: counts the matches and packs the newest. */
static int find_once(const md__reg *reg, const struct md__query *q, struct md__sink *out) {
    struct md__node *node;
    uint64_t before, seq = UINT64_MAX;
    int rc = md__node_seek(reg, q->name, q->name_len, q->hash, &node, &before);
    if (rc) return rc;
    uint32_t found = 0, ref = md__read32(&node->head);
    out->used = 0;
    while (ref) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return MD__AGAIN;
        if (md__matches(f, q->kind, q->key) && found++ == 0 && md__pack(reg, node, f, out))
            return MD__AGAIN;
        if (found + MD_FAULT(ONE_TOO_FEW) >= q->at_least) break;
        ref = md__read32(&f->next);
    }
    if (!MD_FAULT(VERSION_NOT_COMPARED) && md__version_after(&node->version) != before)
        return MD__AGAIN;
    if (found + MD_FAULT(ONE_TOO_FEW) < q->at_least) return MD_ENOENT;
    return out->used > out->cap ? MD_ENOBUFS : 0;
}

/* Returns MD__AGAIN when writers have outrun it. */
static int look_unlocked(const md__reg *reg, const struct md__query *q, struct md__sink *out) {
    int rc = MD__AGAIN;
    for (int i = 0; i < MD__TRIES && rc == MD__AGAIN; i++) rc = find_once(reg, q, out);
    return rc;
}

int md__look(md__reg *reg, const struct md__query *q, struct md__sink *out) {
    int rc = look_unlocked(reg, q, out);
    if (rc != MD__AGAIN) return rc;
    rc = md__lock(reg);
    if (rc) return rc;
    rc = find_once(reg, q, out);
    md__unlock(reg);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
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

int md_find_at_once(md_registry handle, uint32_t kind, int32_t key, const char *name,
                    size_t name_len, void *buf, size_t cap) {
    struct md__query q;
    struct md__sink out = {buf, cap, 0};
    md__reg *reg;
    int rc = md__query_make(&q, kind, key, 1, name, name_len);
    if (rc) return rc;
    rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = look_unlocked(reg, &q, &out);
    md__exit(reg);
    return rc == MD__AGAIN ? MD_ELOCK : rc;
}

/* Finds the queue of a name's namespace. Takes no lock, unless writers outrun it. */
int md__look_queue(md__reg *reg, const char *name, size_t len, struct md__queue *q) {
    int rc = MD__AGAIN;
    for (int i = 0; i < MD__TRIES && rc == MD__AGAIN; i++) rc = md__queue_once(reg, name, len, q);
    if (rc != MD__AGAIN) return rc;
    rc = md__lock(reg);
    if (rc) return rc;
    rc = md__queue_now(reg, name, len, q);
    md__unlock(reg);
    return rc;
}

/* Which facts the caller wants, and how many of that kind are live. */
struct wanted {
    uint32_t kind;  /* 0: any */
    uint64_t since; /* the smallest seq */
    uint64_t live;
};

/* The facts of a node that had a name at this version. */
static int list_once(const md__reg *reg, const struct md__node *node, uint64_t before,
                     struct wanted *wanted, struct md__sink *out) {
    uint64_t seq = UINT64_MAX, live = 0;
    uint32_t ref = md__read32(&node->head);
    size_t start = out->used;
    while (ref) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        /* The facts of one name only: else the list of a damaged region could be as long as the
         * number of names times the number of facts. */
        if (!f || md__peek32(&f->node) != md__ref(reg, node)) break;
        if (!wanted->kind || md__peek32(&f->kind) == wanted->kind) {
            live++;
            if (seq >= wanted->since && md__pack(reg, node, f, out)) break;
        }
        ref = md__read32(&f->next);
    }
    if (ref || md__version_after(&node->version) != before) {
        out->used = start;
        return MD__AGAIN;
    }
    wanted->live += live;
    return 0;
}

static void reverse_bytes(char *from, char *to) {
    while (from < --to) {
        char c = *from;
        *from++ = *to;
        *to = c;
    }
}

/* Chains run from new to old, lists from old to new. So we reverse the bytes of each record, and
 * then all bytes. One record is in order. */
static void oldest_first(char *from, char *to) {
    char *p = from;
    md_record first;
    memcpy(&first, from, sizeof first);
    if (from + first.size == to) return;
    while (p < to) {
        md_record r;
        memcpy(&r, p, sizeof r);
        reverse_bytes(p, p + r.size);
        p += r.size;
    }
    reverse_bytes(from, to);
}

/* Which node to list: that of a name or, without one, the node itself if it has a name. */
struct listed {
    const char *name;
    size_t len;
    struct md__node *node;
    uint64_t version;
};

static int list_it(const md__reg *reg, struct listed *it, struct wanted *wanted,
                   struct md__sink *out) {
    int rc = 0;
    if (it->name) {
        rc = md__node_seek(reg, it->name, it->len, md__hash(it->name, it->len), &it->node,
                           &it->version);
    } else {
        it->version = md__read64(&it->node->version);
        if (md__read32(&it->node->block.tag) != MD__TAG_NODE) rc = MD_ENOENT;
    }
    return rc ? rc : list_once(reg, it->node, it->version, wanted, out);
}

/* MD_ENOENT when it has no name. */
static int list_node(md__reg *reg, struct listed *it, struct wanted *wanted, struct md__sink *out) {
    size_t start = out->used;
    int rc = MD__AGAIN;
    for (int i = 0; i < MD__TRIES && rc == MD__AGAIN; i++) rc = list_it(reg, it, wanted, out);
    if (rc == MD__AGAIN) {
        rc = md__lock(reg);
        if (rc) return rc;
        rc = list_it(reg, it, wanted, out);
        md__unlock(reg);
    }
    if (rc == 0 && out->used > start && out->used <= out->cap)
        oldest_first(out->buf + start, out->buf + out->used);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
}

static int list_all(md__reg *reg, struct wanted *wanted, struct md__sink *out) {
    uint64_t top = md__top(reg);
    if (!top) return MD_EDAMAGED;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct listed it = {.node = (struct md__node *)(reg->base + at)};
        uint32_t size = md__once32(&it.node->block.size);
        if (!md__is_step(size, top - at)) return MD_EDAMAGED;
        at += size;
        if (md__peek32(&it.node->block.tag) != MD__TAG_NODE) continue;
        int rc = list_node(reg, &it, wanted, out);
        if (rc && rc != MD_ENOENT) return rc;
    }
    return 0;
}

int md_list(md_registry handle, const char *name, size_t name_len, void *buf, size_t cap,
            size_t *size, uint64_t *version, uint64_t *node_out) {
    md__reg *reg;
    struct md__sink out = {buf, cap, 0};
    struct wanted all = {0, 0, 0};
    *size = 0;
    *version = *node_out = 0;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    if (name) {
        struct listed it = {.name = name, .len = name_len};
        rc = list_node(reg, &it, &all, &out);
        if (rc == 0) {
            *version = it.version;
            *node_out = md__ref(reg, it.node);
        } else if (rc == MD_ENOENT) {
            rc = 0;
        }
    } else {
        rc = list_all(reg, &all, &out);
    }
    *size = out.used;
    md__exit(reg);
    return rc == 0 && out.used > cap ? MD_ENOBUFS : rc;
}

int md_list_since(md_registry handle, uint32_t kind, uint64_t since, void *buf, size_t cap,
                  size_t *size, uint64_t *live) {
    md__reg *reg;
    struct md__sink out = {buf, cap, 0};
    struct wanted wanted = {kind, since, 0};
    *size = 0;
    *live = 0;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = list_all(reg, &wanted, &out);
    *size = out.used;
    *live = wanted.live;
    md__exit(reg);
    return rc == 0 && out.used > cap ? MD_ENOBUFS : rc;
}

int md_version(md_registry handle, uint64_t node_ref, uint64_t *version) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    struct md__node *node =
        node_ref > UINT32_MAX ? NULL : md__at(reg, (uint32_t)node_ref, sizeof *node);
    uint32_t tag = node ? md__peek32(&node->block.tag) : 0;
    if (tag == MD__TAG_NODE || tag == MD__TAG_IDLE) /* a place that was a name's stays one */
        *version = md__read64(&node->version);
    else
        rc = MD_EINVAL;
    md__exit(reg);
    return rc;
}

int md_hold(md_registry handle, md_held **out) {
    md__reg *reg;
    *out = NULL;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    struct md_held *held = md__held_of(reg);
    if (!held) held = md__held_make(reg);
    if (held)
        md__add64(&held->holds, 1);
    else
        rc = MD_ESYS - ENOMEM;
    *out = held;
    md__exit(reg);
    return rc;
}

int md_word(md_registry handle, uint64_t node_ref, const uint64_t **word) {
    uint64_t version;
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    if (node_ref == 0)
        *word = (const uint64_t *)&md__header(reg)->next_seq;
    else if ((rc = md_version(handle, node_ref, &version)) == 0)
        *word = (const uint64_t *)&((struct md__node *)md__fresh(reg, (uint32_t)node_ref))->version;
    md__exit(reg);
    return rc;
}
