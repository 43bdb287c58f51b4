/* arena.c - gives out blocks of the region and takes them back. Under the lock throughout.
 *
 * Sizes come in classes, four to each power of two, and a block keeps its size for ever. A freed
 * block serves the next fact of its class, so a bounded set of facts needs bounded memory, and the
 * arena can always be walked. The free lists and the counts are derived: md__rebuild (recover.c)
 * makes them anew from the blocks and the chains.
 */
#include "store.h"

/* A free block keeps its link where a fact has its `next`. */
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

/* Gives out a block of at least `size` bytes, tagged free. It is in no list, and nothing refers to
 * it. If the caller dies before it publishes the block, nothing leaks: md__rebuild finds it. */
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

/* We never gave out a block whose size is not that of a class: it stays out of the lists. */
void md__put_back(struct md__header *h, md__reg *reg, struct md__block *block) {
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
    if (!MD_FAULT(FREED_BYTES_STAY_COUNTED))
        md__poke64(&h->used, md__peek64(&h->used) - block->size);
    md__put_back(h, reg, block);
}
