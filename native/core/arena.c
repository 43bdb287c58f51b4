/* arena.c - blocks of the region: given out, taken back, and found again after a death. Under the
 * lock throughout.
 *
 * Sizes come in classes, four to each power of two, and a block keeps its size for ever: what is
 * freed serves the next fact of its class, so a bounded set of facts needs bounded memory, and the
 * arena can always be walked. The free lists and the counts are derived: md__rebuild makes them
 * anew from the blocks and the chains.
 */
#include "internal.h"

/* A free block's link lies where a fact has its `next`. */
struct free_block {
    struct md__block block;
    md__u32 next;
};

/* The size of the block that holds `size` bytes, and its class. */
uint64_t md__block_size(uint64_t size, uint32_t *size_class) {
    if (size < 64) size = 64;
    uint32_t log2 = 63 - (uint32_t)__builtin_clzll(size);
    uint64_t step = 1ull << (log2 - 2);
    uint64_t steps = (size - (1ull << log2) + step - 1) / step;
    *size_class = (log2 - 6) * 4 + (uint32_t)steps;
    return (1ull << log2) + steps * step;
}

/* A block of at least `size` bytes, tagged free, in no list and unknown to anybody. A death before
 * it is published leaks nothing: md__rebuild finds it. */
int md__alloc(md__reg *reg, uint64_t size, uint32_t *ref) {
    struct md__header *h = md__header(reg);
    uint32_t size_class;
    uint64_t whole = md__block_size(size, &size_class);
    if (size_class >= MD__CLASSES) return MD_EFULL;
    uint32_t first = h->free_lists[size_class];
    if (first) {
        struct free_block *b = md__at(reg, first, whole);
        if (!b || b->block.size != whole || md__peek32(&b->block.tag) != MD__TAG_FREE)
            return MD_EDAMAGED;
        h->free_lists[size_class] = md__peek32(&b->next);
        *ref = first;
    } else {
        uint64_t top = md__top(reg);
        if (top < MD__ARENA_AT || top % 16) return MD_EDAMAGED;
        if (top + whole > reg->mapped) return MD_EFULL;
        int rc = md__region_grow(reg, top + whole);
        if (rc) return rc;
        struct free_block *b = (struct free_block *)(reg->base + top);
        b->block.size = (uint32_t)whole;
        md__poke32(&b->block.tag, MD__TAG_FREE);
        md__publish64(&h->arena_top, top + whole);
        *ref = (uint32_t)(top / 8);
    }
    md__poke64(&h->used, md__peek64(&h->used) + whole);
    return 0;
}

/* A block whose size no class has was never given out by us: it stays out of the lists. */
static void put_back(struct md__header *h, md__reg *reg, struct md__block *block) {
    struct free_block *b = (struct free_block *)block;
    uint32_t size_class;
    uint32_t size = md__once32(&block->size);
    if (md__block_size(size, &size_class) != size || size_class >= MD__CLASSES) return;
    md__poke32(&b->block.tag, MD__TAG_FREE);
    md__poke32(&b->next, h->free_lists[size_class]);
    h->free_lists[size_class] = md__ref(reg, block);
}

void md__free(md__reg *reg, struct md__block *block) {
    struct md__header *h = md__header(reg);
    if (!MD_FAULT_IS(11)) md__poke64(&h->used, md__peek64(&h->used) - block->size);
    put_back(h, reg, block);
}

/* Whether the fact hangs in its node's chain. */
static bool is_linked(md__reg *reg, struct md__fact *fact) {
    struct md__node *node = md__at(reg, md__peek32(&fact->node), sizeof *node);
    if (!node || md__peek32(&node->block.tag) != MD__TAG_NODE) return false;
    uint32_t wanted = md__ref(reg, fact);
    uint64_t seq = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        if (ref == wanted) return true;
        struct md__fact *f = md__at(reg, ref, sizeof *f);
        if (!f || md__peek64(&f->seq) >= seq || md__peek64(&f->seq) <= md__peek64(&fact->seq))
            return false;
        seq = md__peek64(&f->seq); /* from newer to older, as all chains run */
        ref = md__peek32(&f->next);
    }
    return false;
}

/* A node once made is kept: md_list may be looking at it already. */
static int index_again(md__reg *reg, struct md__node *node) {
    struct md__node *found = NULL;
    char name[MD_MAX_NAME + 1];
    uint32_t len = md__once32(&node->name_len);
    if (len > MD_MAX_NAME || sizeof *node + len > node->block.size) return MD_EDAMAGED;
    md__load_words(name, node->name, len);
    int rc = md__node_find(reg, name, len, node->hash, &found);
    if (rc == MD_ENOENT) return md__node_index(reg, node);
    return rc == 0 && found != node ? MD_EDAMAGED : rc;
}

/* Raises every version, so that the memory of what the dead one unlinked may be written again:
 * after the last version, not after its own, since a fact can lie in front of its node. */
static int raise_all(md__reg *reg) {
    uint64_t top = md__top(reg);
    if (!top) return MD_EDAMAGED;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__block *block = (struct md__block *)(reg->base + at);
        uint32_t size_class, size = md__once32(&block->size);
        if (!md__is_step(size, top - at) || md__block_size(size, &size_class) != size ||
            size_class >= MD__CLASSES)
            return MD_EDAMAGED;
        at += size;
        if (md__peek32(&block->tag) == MD__TAG_NODE)
            md__raise(&((struct md__node *)block)->version);
    }
    md__retire();
    return 0;
}

/* After a death: everything that can be computed is computed again, from blocks, chains and the
 * index in force. Killed itself at any instruction, it can simply be run again. */
int md__rebuild(md__reg *reg) {
    struct md__header *h = md__header(reg);
    uint64_t top = md__top(reg), facts = 0, names = 0, used = 0, last_seq = 0;
    int rc = raise_all(reg);
    if (rc) return rc;
    for (uint32_t i = 0; i < MD__CLASSES; i++) h->free_lists[i] = 0;
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__block *block = (struct md__block *)(reg->base + at);
        uint32_t tag = md__peek32(&block->tag), size = md__once32(&block->size);
        if (!md__is_step(size, top - at)) return MD_EDAMAGED;
        at += size;
        bool kept = false;
        if (tag == MD__TAG_FACT) {
            struct md__fact *fact = (struct md__fact *)block;
            kept = is_linked(reg, fact);
            if (kept) {
                facts++;
                if (md__peek64(&fact->seq) > last_seq) last_seq = md__peek64(&fact->seq);
            }
        } else if (tag == MD__TAG_NODE) {
            rc = index_again(reg, (struct md__node *)block);
            if (rc) return rc;
            kept = true;
            names++;
        } else if (tag == MD__TAG_INDEX) {
            kept = md__ref(reg, block) == (uint32_t)(md__peek64(&h->index) >> 8);
        }
        if (kept)
            used += size;
        else
            put_back(h, reg, block);
    }
    md__poke64(&h->facts, facts);
    md__poke64(&h->names, names);
    md__poke64(&h->used, used);
    /* Raised in any case: the dead one may have committed and not come to raise it. */
    if (md__peek64(&h->next_seq) > last_seq) last_seq = md__peek64(&h->next_seq);
    md__publish64(&h->next_seq, last_seq + !MD_FAULT_IS(18));
    return 0;
}
