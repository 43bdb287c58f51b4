/* hold.c - the memory of a region, kept in place for those who look at its words without a call.
 *
 * Note [Holds]
 * A call compares a version word with the one that its table was made of. To ask for it (md_version)
 * would cost more than the rest of the call, so the address of the word is handed out, and the
 * mapping must outlive whoever has it. A hold is a count of this process: the opening of the region
 * has one, every md_hold another, and the last to let go unmaps. It keeps nothing else: a region that
 * is held only has no lease, no member and no descriptor here, so others see that it was closed.
 *
 * The count is made by the first md_hold, with one compare-and-swap: of two that come at once, one
 * throws its own away. A region is unmapped when no call is under way (process.c), so md_hold, which
 * is one, finds it mapped.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

struct md_held {
    md__u64 holds;
    char *base;
    uint64_t mapped;
};

static struct md_held *held_of(const md__reg *reg) {
    return (struct md_held *)(uintptr_t)md__read64(&reg->held);
}

/* One hold more of what is mapped: the first one comes with that of the opening. */
static struct md_held *held_make(md__reg *reg) {
    uint64_t expected = 0;
    struct md_held *fresh = malloc(sizeof *fresh);
    if (!fresh) return NULL;
    md__poke64(&fresh->holds, 1);
    fresh->base = reg->base;
    fresh->mapped = reg->mapped;
    if (md__swap_if64(&reg->held, &expected, (uintptr_t)fresh)) return fresh;
    free(fresh);
    return held_of(reg);
}

int md_hold(md_registry handle, md_held **out) {
    md__reg *reg;
    *out = NULL;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    struct md_held *held = held_of(reg);
    if (!held) held = held_make(reg);
    if (held)
        md__add64(&held->holds, 1);
    else
        rc = MD_ESYS - ENOMEM;
    *out = held;
    md__exit(reg);
    return rc;
}

void md_let_go(md_held *held) {
    if (!held || md__add64(&held->holds, (uint64_t)-1) != 1) return;
    munmap(held->base, held->mapped);
    free(held);
}

/* The opening's part of the mapping has ended. */
void md__unmap(md__reg *reg) {
    struct md_held *held = held_of(reg);
    md__poke64(&reg->held, 0);
    if (held)
        md_let_go(held);
    else
        munmap(reg->base, reg->mapped);
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
