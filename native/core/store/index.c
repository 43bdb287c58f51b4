/* index.c - finds the node of a name: one array of words with linear probing. It is at most half
 * full, and no entry is ever taken out.
 *
 * A reader loads the index word and probes. If it finds nothing it loads the word again, and starts
 * over if a writer has published a larger array meanwhile. The memory of the old array may serve
 * something else by then. So the reader believes an entry only after it has compared the name with
 * that of the node. The writer fills a larger array completely before it publishes it by one store.
 */
#include "store.h"

enum { PLACE_BITS = 8 };

static uint64_t index_word(uint32_t ref, uint32_t log2) {
    return (uint64_t)ref << PLACE_BITS | log2;
}

/* The array that an index word leads to, or NULL when the word cannot be true. */
static struct md__index *index_at(const md__reg *reg, uint64_t word, uint64_t *mask) {
    uint32_t log2 = word & ((1u << PLACE_BITS) - 1);
    if (log2 > 28) return NULL;
    *mask = (1ull << log2) - 1;
    return md__at(reg, (uint32_t)(word >> PLACE_BITS),
                  sizeof(struct md__index) + ((*mask + 1) << 3));
}

static bool has_name(const md__reg *reg, const struct md__node *node, const char *name,
                     size_t len) {
    if (node->name_len != len || !md__at(reg, md__ref(reg, node), sizeof *node + len)) return false;
    const md__u64 *words = node->name;
    uint64_t there;
    for (; len >= 8; len -= 8, name += 8) {
        memcpy(&there, name, 8);
        if (md__peek64(words++) != there) return false;
    }
    if (len == 0) return true;
    uint64_t behind = ~0ull << 8 * len; /* bytes behind the name: they do not count */
    return (le64toh(md__peek64(words)) & ~behind) == md__few_bytes(name, len);
}

/* Takes no lock. 0 and the node, or MD_ENOENT. */
int md__node_find(const md__reg *reg, const char *name, size_t len, uint32_t hash,
                  struct md__node **out) {
    const struct md__header *h = md__header(reg);
    for (;;) {
        uint64_t word = md__read64(&h->index), mask;
        struct md__index *index = index_at(reg, word, &mask);
        if (!index) return MD_EDAMAGED;
        for (uint64_t i = 0; i <= mask; i++) {
            uint64_t slot = md__read64(&index->slots[(hash + i) & mask]);
            if (!slot) break;
            if (slot >> 32 != hash) continue;
            struct md__node *node = md__at(reg, (uint32_t)slot, sizeof *node);
            /* Acquire: if the array was replaced meanwhile, a slot may lead to a block that has
             * just become this node. Its writer published the tag after the name. */
            if (node && md__read32(&node->block.tag) == MD__TAG_NODE &&
                has_name(reg, node, name, len)) {
                *out = node;
                return 0;
            }
        }
        if (md__read64(&h->index) == word) return MD_ENOENT;
    }
}

/* The slot for a new name of this hash. By the count of names there is room. But the count is a
 * word of the region too, so it may be wrong: NULL when the array is full after all. */
static md__u64 *free_slot(struct md__index *index, uint64_t mask, uint32_t hash) {
    for (uint64_t i = 0; i <= mask; i++) {
        md__u64 *slot = &index->slots[(hash + i) & mask];
        if (!md__peek64(slot)) return slot;
    }
    return NULL;
}

static void place(md__u64 *slot, uint32_t hash, uint32_t ref) {
    md__publish64(slot, (uint64_t)hash << 32 | ref);
}

/* Under the lock, like all functions below. */
int md__index_create(md__reg *reg, uint32_t log2) {
    struct md__header *h = md__header(reg);
    uint32_t ref;
    uint64_t size = sizeof(struct md__index) + (8ull << log2), mask = (1ull << log2) - 1;
    uint64_t old_word = md__peek64(&h->index), old_mask;
    struct md__index *old = old_word ? index_at(reg, old_word, &old_mask) : NULL;
    if (old_word && !old) return MD_EDAMAGED;
    int rc = md__alloc(reg, size, &ref);
    if (rc) return rc;
    struct md__index *index = md__fresh(reg, ref);
    for (uint64_t i = 0; i <= mask; i++) md__poke64(&index->slots[i], 0);
    if (old) {
        for (uint64_t i = MD_FAULT(INDEX_GROWS_WITH_LOSS) ? old_mask / 2 : 0; i <= old_mask; i++) {
            uint64_t slot = md__peek64(&old->slots[i]);
            if (!slot) continue;
            md__u64 *to = free_slot(index, mask, (uint32_t)(slot >> 32));
            if (to) place(to, (uint32_t)(slot >> 32), (uint32_t)slot);
        }
    }
    md__poke32(&index->block.tag, MD__TAG_INDEX);
    md__publish64(&h->index, index_word(ref, log2));
    if (old) {
        md__retire();
        md__free(reg, &old->block);
    }
    return 0;
}

/* Makes room in the index for one more name. */
static int reserve(md__reg *reg) {
    struct md__header *h = md__header(reg);
    uint64_t word = md__peek64(&h->index), mask;
    if (!index_at(reg, word, &mask)) return MD_EDAMAGED;
    if (2 * (md__peek64(&h->names) + 1) <= mask + 1) return 0;
    return md__index_create(reg, (uint32_t)(word & ((1u << PLACE_BITS) - 1)) + 1);
}

/* Enters a node that a dead holder of the lock made but did not enter. That holder had already made
 * room for it. */
int md__node_index(md__reg *reg, struct md__node *node) {
    uint64_t mask;
    struct md__index *index = index_at(reg, md__peek64(&md__header(reg)->index), &mask);
    md__u64 *slot = index ? free_slot(index, mask, node->hash) : NULL;
    if (!slot) return MD_EDAMAGED;
    place(slot, node->hash, md__ref(reg, node));
    return 0;
}

/* The node of a name. When the name is new, the node is a block that nobody knows yet, and the
 * index has room for it: md__node_publish makes it known, md__free gives it back. If the caller
 * dies in between, the block is still tagged free. So waits, look-ups and refused registrations
 * leave no nodes. */
int md__node_prepare(md__reg *reg, const char *name, size_t len, uint32_t hash,
                     struct md__node **out, bool *is_new) {
    uint32_t ref;
    int rc = md__node_find(reg, name, len, hash, out);
    *is_new = rc == MD_ENOENT;
    if (!*is_new) return rc;
    rc = reserve(reg);
    if (rc) return rc;
    rc = md__alloc(reg, sizeof(struct md__node) + ((len + 7) & ~7ull), &ref);
    if (rc) return rc;
    struct md__node *node = md__fresh(reg, ref);
    md__poke64(&node->version, 1);
    md__poke32(&node->head, 0);
    node->hash = hash;
    node->name_len = (uint32_t)len;
    node->unused = 0;
    md__store_words(node->name, name, len);
    *out = node;
    return 0;
}

int md__node_publish(md__reg *reg, struct md__node *node) {
    struct md__header *h = md__header(reg);
    uint64_t mask;
    struct md__index *index = index_at(reg, md__peek64(&h->index), &mask);
    md__u64 *slot = index ? free_slot(index, mask, node->hash) : NULL;
    if (!slot) return MD_EDAMAGED;
    md__publish32(&node->block.tag, MD__TAG_NODE); /* from now on md_list finds it */
    if (!MD_FAULT(NAME_NOT_INDEXED)) place(slot, node->hash, md__ref(reg, node));
    md__poke64(&h->names, md__peek64(&h->names) + 1);
    return 0;
}
