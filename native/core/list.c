/* list.c - the facts of one name, or of all names. Takes no lock: see Note [Readers take no lock] in
 * registration.c.
 *
 * A list of all names is one of each name after the other, not of one moment: what changes
 * meanwhile is in it or not.
 */
#include "internal.h"

/* Which facts are wanted, and how many of the kind there are. */
struct wanted {
    uint32_t kind;  /* 0: any */
    uint64_t since; /* the smallest seq */
    uint64_t live;
};

static int list_once(const md__reg *reg, struct md__node *node, struct wanted *wanted,
                     struct md__sink *out, uint64_t *version) {
    uint64_t before = md__read64(&node->version);
    uint64_t seq = UINT64_MAX, live = 0;
    uint32_t ref = md__read32(&node->head);
    size_t start = out->used;
    while (ref) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        /* Of one name only, or a list could be as long as the number of names times facts. */
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
    *version = before;
    return 0;
}

static void reverse_bytes(char *from, char *to) {
    while (from < --to) {
        char c = *from;
        *from++ = *to;
        *to = c;
    }
}

/* Chains run from new to old, lists from old to new: all bytes are turned round, then each record's
 * own. */
static void oldest_first(char *from, char *to) {
    char *p = from;
    while (p < to) {
        md_record r;
        memcpy(&r, p, sizeof r);
        reverse_bytes(p, p + r.size);
        p += r.size;
    }
    reverse_bytes(from, to);
}

static int list_node(md__reg *reg, struct md__node *node, struct wanted *wanted,
                     struct md__sink *out, uint64_t *version) {
    size_t start = out->used;
    int rc = MD__AGAIN;
    for (int i = 0; i < MD__TRIES && rc == MD__AGAIN; i++)
        rc = list_once(reg, node, wanted, out, version);
    if (rc == MD__AGAIN) {
        rc = md__lock(reg);
        if (rc) return rc;
        rc = list_once(reg, node, wanted, out, version);
        md__unlock(reg);
    }
    if (rc == 0 && out->used > start && out->used <= out->cap)
        oldest_first(out->buf + start, out->buf + out->used);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
}

static int list_all(md__reg *reg, struct wanted *wanted, struct md__sink *out) {
    uint64_t top = md__top(reg), version;
    if (!top) return MD_EDAMAGED;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__node *node = (struct md__node *)(reg->base + at);
        uint32_t size = md__once32(&node->block.size);
        if (!md__is_step(size, top - at)) return MD_EDAMAGED;
        at += size;
        if (md__read32(&node->block.tag) != MD__TAG_NODE) continue;
        int rc = list_node(reg, node, wanted, out, &version);
        if (rc) return rc;
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
        struct md__node *node;
        rc = md__node_find(reg, name, name_len, md__hash(name, name_len), &node);
        if (rc == 0) {
            rc = list_node(reg, node, &all, &out, version);
            *node_out = md__ref(reg, node);
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
