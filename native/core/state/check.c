/* check.c - checks every invariant of a region and reports in words which are broken. Under the
 * lock; changes nothing.
 *
 * Canonical: the chains of live facts under their nodes, and the block sizes of the arena. Derived,
 * and therefore recomputed and compared here: the index, the free lists, the idle lists, the counts.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "state.h"

struct report {
    char *buf;
    size_t cap;
    size_t used;
    int broken;
};

__attribute__((format(printf, 2, 3))) static void say(struct report *r, const char *words, ...) {
    va_list args;
    r->broken++;
    if (r->used >= r->cap) return;
    va_start(args, words);
    int n = vsnprintf(r->buf + r->used, r->cap - r->used, words, args);
    va_end(args);
    r->used += (size_t)n;
}

struct totals {
    uint64_t facts, names, idle, used, free_blocks, last_seq;
};

/* Whether a fact is one of a member's own, or a claim, and that member is gone, or has no note of
 * it. */
static bool is_ownerless(const md__reg *reg, const struct md__fact *f) {
    uint64_t whose = md__peek64(&f->member);
    uint32_t kind = md__peek32(&f->kind);
    if (!md__is_own(kind) && kind != MD_CLAIM) return false;
    if ((uint32_t)whose >= MD_MAX_MEMBERS) return true;
    const struct md__member *m = md__member(reg, (uint32_t)whose);
    return md__read32(&m->state) == MD__FREE || !m->has_own ||
           md__peek32(&m->generation) != whose >> 32;
}

static void check_fact(md__reg *reg, struct report *r, uint32_t ref, const struct md__fact *f) {
    unsigned long long seq = md__peek64(&f->seq);
    if (seq >= md__peek64(&md__header(reg)->next_seq))
        say(r, "fact %u has a seq that was not given out yet\n", ref);
    if (sizeof *f + md__peek32(&f->body_len) + md__peek32(&f->where_len) > f->block.size)
        say(r, "fact %u is longer than its block\n", ref);
    if (md__peek32(&f->origin) || md__peek32(&f->reserved))
        say(r, "fact %u comes from another host, in a registry of this one\n", ref);
    if (is_ownerless(reg, f)) say(r, "fact %u belongs to a member that is gone\n", ref);
}

/* The place that a fact has to itself if its rule allows only one: its kind and key and, for a
 * claim, its member. A hash table compares the facts of a name, for there can be a hundred
 * thousand. */
struct place {
    uint32_t kind, key;
    uint64_t member; /* plus 1; 0 if members have that place in common */
};
static struct place place_of(const struct md__fact *f) {
    uint32_t kind = md__peek32(&f->kind);
    bool each = kind == MD_CLAIM || md__is_own(kind);
    return (struct place){kind, md__peek32(&f->key), each ? md__peek64(&f->member) + 1 : 0};
}
static bool is_alone(const struct md__fact *f) {
    return md__peek32(&f->kind) == MD_CLAIM || md__peek32(&f->rule) & MD_UNIQUE;
}

/* Enters a fact, after all newer ones, unless a newer one has that place to itself. */
static void enter(md__reg *reg, struct report *r, uint32_t *table, uint64_t mask,
                  const struct md__fact *f) {
    struct place mine = place_of(f);
    uint32_t ref = md__ref(reg, f);
    uint64_t i = md__hash((const char *)&mine, sizeof mine) & mask;
    for (; table[i]; i = (i + 1) & mask) {
        const struct md__fact *other = md__fresh(reg, table[i]); /* checked when it was entered */
        struct place its = place_of(other);
        if (memcmp(&its, &mine, sizeof its)) continue;
        if (!is_alone(other)) break; /* its rule allows older ones */
        say(r,
            mine.kind == MD_CLAIM ? "facts %u and %u are claims of one member\n"
                                  : "facts %u and %u are both live under a rule that allows one\n",
            table[i], ref);
        return;
    }
    table[i] = ref;
}

/* Looks for twins among the first `facts` of a chain, whose links were found in order. Without
 * memory for the table we skip this: a lack of memory says nothing about the region. */
static void check_twins(md__reg *reg, struct report *r, const struct md__node *node,
                        uint64_t facts) {
    uint64_t size = 2;
    if (facts < 2) return;
    while (size < 2 * facts) size *= 2;
    uint32_t *table = calloc(size, sizeof *table);
    uint32_t ref = md__peek32(&node->head);
    for (uint64_t i = 0; table && i < facts; i++) {
        const struct md__fact *f = md__at(reg, ref, sizeof *f);
        if (!f) break;
        enter(reg, r, table, size - 1, f);
        ref = md__peek32(&f->next);
    }
    free(table);
}

/* Whether any fact of a node is one that not every member may register. */
static bool has_facts_of_space(const md__reg *reg, const struct md__node *node) {
    uint64_t seq = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        const struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f || !md__is_anyones(md__peek32(&f->kind))) return true;
        ref = md__peek32(&f->next);
    }
    return false;
}

/* Where there is no main member, every other fact is in a namespace on which some member has a claim. See
 * Note [Claims] in claims.c. */
static void check_claims(md__reg *reg, struct report *r, const struct md__node *node,
                         const char *name, size_t len) {
    struct md__queue q;
    if (!has_facts_of_space(reg, node)) return;
    bool claimed = md__queue_now(reg, name, len, &q) == 0;
    if (claimed && !md__lease_of(reg, q.registrar))
        say(r, "node %u: the registrar of its namespace is no member\n", md__ref(reg, node));
    if (!claimed && md__is_elect(reg))
        say(r, "node %u: facts in a namespace on which nobody has a claim\n", md__ref(reg, node));
}

/* Counts the facts that hang on a node, up to the first that cannot be one. */
static uint64_t check_links(md__reg *reg, struct report *r, const struct md__node *node,
                            struct totals *t) {
    uint64_t facts = 0;
    uint64_t newer = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        const struct md__fact *f = md__at(reg, ref, sizeof *f);
        if (!f || md__peek32(&f->block.tag) != MD__TAG_FACT) {
            say(r, "node %u: its chain leads to %u, which is no fact\n", md__ref(reg, node), ref);
            return facts;
        }
        if (md__peek64(&f->seq) >= newer) {
            say(r, "fact %u is not older than the one before it\n", ref);
            return facts;
        }
        /* We look at a fact only with the node that it names. So we look at no fact twice, and the
         * check of a damaged region takes no longer than that of a sound one. */
        if (md__peek32(&f->node) != md__ref(reg, node)) {
            say(r, "fact %u names another node than the one it hangs on\n", ref);
            return facts;
        }
        check_fact(reg, r, ref, f);
        newer = md__peek64(&f->seq);
        if (newer > t->last_seq) t->last_seq = newer;
        facts++;
        t->used += f->block.size;
        ref = md__peek32(&f->next);
    }
    return facts;
}

static void check_chain(md__reg *reg, struct report *r, const struct md__node *node,
                        struct totals *t) {
    uint64_t facts = check_links(reg, r, node, t);
    check_twins(reg, r, node, facts);
    t->facts += facts;
}

static void check_node(md__reg *reg, struct report *r, struct md__node *node, struct totals *t) {
    char name[MD_MAX_NAME + 1];
    struct md__node *found = NULL;
    uint32_t len = md__peek32(&node->name_len), hash = md__peek32(&node->hash);
    if (len > MD_MAX_NAME || sizeof *node + len > node->block.size) {
        say(r, "node %u is longer than its block\n", md__ref(reg, node));
        return;
    }
    md__load_words(name, node->name, len);
    if (hash != md__hash(name, len)) say(r, "node %u has a wrong hash\n", md__ref(reg, node));
    if (md__node_find(reg, name, len, hash, &found) || found != node)
        say(r, "node %u is not found by its name\n", md__ref(reg, node));
    if (!md__peek32(&node->head)) say(r, "node %u has a name and no facts\n", md__ref(reg, node));
    t->names++;
    t->used += node->block.size;
    check_chain(reg, r, node, t);
    check_claims(reg, r, node, name, len);
}

static void check_blocks(md__reg *reg, struct report *r, struct totals *t) {
    const struct md__header *h = md__header(reg);
    uint64_t top = md__top(reg);
    uint32_t index = (uint32_t)(md__peek64(&h->index) >> 8), facts = 0, size_class;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__block *b = (struct md__block *)(reg->base + at);
        uint32_t size = md__once32(&b->size);
        if (!md__is_step(size, top - at) || md__block_size(size, &size_class) != size) {
            say(r, "the block at %llu has size %u\n", (unsigned long long)at, size);
            return;
        }
        at += size;
        switch (md__peek32(&b->tag)) {
        case MD__TAG_NODE:
            check_node(reg, r, (struct md__node *)b, t);
            break;
        case MD__TAG_IDLE:
            if (md__peek32(&((struct md__node *)b)->head))
                say(r, "node %u has facts and no name\n", md__ref(reg, b));
            t->idle++;
            t->used += size;
            break;
        case MD__TAG_FACT:
            facts++;
            break;
        case MD__TAG_INDEX:
            if (md__ref(reg, b) != index)
                say(r, "block %u is an index that is not in force\n", md__ref(reg, b));
            t->used += size;
            break;
        case MD__TAG_FREE:
            t->free_blocks++;
            break;
        default:
            say(r, "block %u has an unknown tag\n", md__ref(reg, b));
        }
    }
    if (facts != t->facts)
        say(r, "%u blocks are facts, %llu facts hang on nodes\n", facts,
            (unsigned long long)t->facts);
}

/* The blocks of one tag that wait to be used again, each in the list of its class. */
static void check_lists(md__reg *reg, struct report *r, const char *what, const uint32_t *lists,
                        uint32_t tag, uint64_t blocks) {
    uint64_t listed = 0;
    for (uint32_t i = 0; i < MD__CLASSES; i++) {
        for (uint32_t ref = lists[i]; ref && listed <= blocks; listed++) {
            /* a free block has its link where a fact has its own */
            const struct md__fact *b = md__at(reg, ref, sizeof(struct md__node));
            uint32_t size_class = 0;
            if (b) md__block_size(b->block.size, &size_class);
            if (!b || md__peek32(&b->block.tag) != tag || size_class != i) {
                say(r, "%s list %u leads to %u, which is no %s block of its class\n", what, i, ref,
                    what);
                break;
            }
            ref = tag == MD__TAG_FREE ? md__peek32(&b->next)
                                      : ((const struct md__node *)b)->next_idle;
        }
    }
    if (listed != blocks)
        say(r, "%llu blocks are %s, %llu are in the %s lists\n", (unsigned long long)blocks, what,
            (unsigned long long)listed, what);
}

/* Each name was found by its entry; so that nothing else is there, the entries are counted. */
static void check_index(md__reg *reg, struct report *r, uint64_t names) {
    uint64_t word = md__peek64(&md__header(reg)->index), entries = 0;
    uint64_t slots = 1ull << (word & 31);
    const struct md__index *index =
        md__at(reg, (uint32_t)(word >> 8), sizeof *index + (slots << 3));
    for (uint64_t i = 0; index && i < slots; i++) entries += md__peek64(&index->slots[i]) != 0;
    if (entries != names)
        say(r, "%llu nodes have names, %llu entries are in the index\n", (unsigned long long)names,
            (unsigned long long)entries);
}

static void compare(struct report *r, const char *what, uint64_t counted, uint64_t noted) {
    if (counted != noted)
        say(r, "%s: %llu by count, %llu in the header\n", what, (unsigned long long)counted,
            (unsigned long long)noted);
}

static void check_slots(md__reg *reg, struct report *r) {
    const struct md__header *h = md__header(reg);
    uint32_t top = md__read32(&h->member_top);
    if (top > MD_MAX_MEMBERS || md__read32(&h->process_top) > MD_MAX_PROCESSES) {
        say(r, "more slots in use than there are\n");
        return;
    }
    for (uint32_t i = 0; i < top; i++) {
        const struct md__member *m = md__member(reg, i);
        if (md__read32(&m->state) == MD__FREE) continue;
        uint32_t p = md__peek32(&m->process);
        if (p >= MD_MAX_PROCESSES || md__read32(&md__process(reg, p)->state) == MD__FREE)
            say(r, "member %u belongs to process slot %u, which is free\n", i, p);
    }
}

int md__check(md__reg *reg, char *buf, size_t cap) {
    struct report r = {buf, cap, 0, 0};
    struct totals t = {0};
    const struct md__header *h = md__header(reg);
    if (cap) buf[0] = '\0';
    if (memcmp(h->magic, MD__MAGIC, 8)) say(&r, "the magic is gone\n");
    for (size_t i = 0; i < sizeof h->reserved / sizeof *h->reserved; i++)
        if (h->reserved[i]) say(&r, "reserved word %u of the header is not 0\n", (uint32_t)i);
    if (!md__top(reg) || md__peek64(&h->arena_top) > md__peek64(&h->committed) ||
        md__peek64(&h->committed) > reg->mapped)
        say(&r, "the arena reaches beyond the memory that backs it\n");
    else
        check_blocks(reg, &r, &t);
    check_index(reg, &r, t.names);
    check_lists(reg, &r, "free", h->free_lists, MD__TAG_FREE, t.free_blocks);
    check_lists(reg, &r, "idle", h->idle_lists, MD__TAG_IDLE, t.idle);
    compare(&r, "facts", t.facts, md__peek64(&h->facts));
    compare(&r, "names", t.names, md__peek64(&h->names));
    compare(&r, "idle nodes", t.idle, md__peek64(&h->idle));
    compare(&r, "bytes in use", t.used, md__peek64(&h->used));
    check_slots(reg, &r);
    return r.broken;
}
