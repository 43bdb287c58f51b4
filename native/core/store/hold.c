/* hold.c - keeps a region mapped for callers that read its words without a call of this library.
 *
 * Note [Holds]
 * When an operator is called, its binding compares a version word with the version from which it
 * made its table. Asking for the version (md_version) would cost more than the rest of the call. So
 * we hand out the address of the word, and the mapping must outlive everyone who has that address.
 * A hold is a count in this process: the opening of the region has one, every md_hold adds one, and
 * whoever gives up the last one unmaps the region. A hold keeps nothing else. A region that is only
 * held has no lease, no member and no descriptor here, so other processes see that it was closed.
 *
 * The first md_hold makes the count, with one compare-and-swap: of two that come at once, one
 * throws its own away. A region is unmapped only while no call is under way (handles.c). md_hold is
 * such a call, so it finds the region mapped.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "store.h"

struct md_held *md__held_of(const md__reg *reg) {
    return (struct md_held *)(uintptr_t)md__read64(&reg->held);
}

/* The count of holds, made if there is none yet; it begins with the hold of the opening. */
struct md_held *md__held_make(md__reg *reg) {
    uint64_t expected = 0;
    struct md_held *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return NULL;
    md__poke64(&fresh->holds, 1);
    fresh->base = reg->base;
    fresh->mapped = reg->mapped;
    if (md__swap_if64(&reg->held, &expected, (uintptr_t)fresh)) return fresh;
    free(fresh);
    return md__held_of(reg);
}

void md_let_go(md_held *held) {
    if (!held || md__add64(&held->holds, (uint64_t)-1) != 1) return;
    munmap(held->base, held->mapped);
    free(held);
}

/* Ends the opening's use of the mapping. */
void md__unmap(md__reg *reg) {
    struct md_held *held = md__held_of(reg);
    md__poke64(&reg->held, 0);
    if (held)
        md_let_go(held);
    else
        munmap(reg->base, reg->mapped);
}
