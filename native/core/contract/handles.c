/* handles.c - the handles by which callers name the regions that this process has open.
 *
 * A handle is a place in a table and a generation. One word counts openings and, apart from them,
 * calls under way. A call enters (it is refused when the generation is over or the last opening was
 * given back) and exits. The thread that brings both counts to 0 gives the region back. So neither
 * a first nor a second close pulls the mapping away from a call under way in another thread, and a
 * stale handle gets an answer but leads nowhere.
 *
 * Locking: the table's lock is held while a region is opened or given back, and across fork(). The
 * lock of kernels.c is taken after it. The table's lock is not held while this process leaves a
 * region, since leaving can wait for the region's own lock, and a fork must not wait with it. A
 * place that has a mapping but neither an opening nor a call belongs to the leaving thread alone.
 * If a fork comes meanwhile, the child gives its copy of the place back at once.
 */
#include "contract.h"

enum { SLOT_BITS = 8 };

md__reg md__table[MD__HANDLES];
pthread_mutex_t md__table_lock = PTHREAD_MUTEX_INITIALIZER;

/* This process leaves the region, with those of its members that did not leave before. If it is the
 * creator or, without a main member, the last process, it also closes the registry: nobody can
 * register any more.
 *
 * If it cannot get the lock (the region is damaged, or the holder is stopped) it leaves all the
 * same. Then it must not touch facts. So without a main member its claims stay, and with them its
 * members and its slot: it is as if the process had died, and the next sweep finds that nobody has
 * its lease.
 */
void md__process_leave(md__reg *reg) {
    if (reg->process == MD__NO_SLOT) return;
    struct md__process *p = md__process(reg, reg->process);
    int locked = md__lock_to_leave(reg) == 0;
    bool has_main = md__has_main(reg), clears = locked || has_main;
    if (locked && !has_main) md__sweep(reg);
    if (has_main ? reg->creator : locked && !md__is_anyone_here(reg)) md__close_registry(reg);
    struct md__gone gone = {.member = MD__NOBODY};
    gone.processes[reg->process / 64] |= 1ull << reg->process % 64;
    if (clears) md__free_members(reg, &gone);
    bool frees = clears && (reg->process != 0 || !has_main);
    if (frees) md__publish32(&p->state, MD__LEAVING);
    bool dropped = md__drop_lease(reg, p);
    if (frees && dropped && locked) md__publish32(&p->state, MD__FREE);
    reg->process = MD__NO_SLOT;
    if (locked) md__unlock(reg);
}

/* Under the table's lock, like md__give_back: empties a place that has no mapping any more, and
 * begins its next generation. */
void md__vacate(md__reg *reg) {
    reg->creator = 0;
    reg->address[0] = reg->path[0] = '\0';
    md__publish64(&reg->refs, ((md__peek64(&reg->refs) >> 32) + 1) << 32);
}

/* Unmaps a region that this process has left. */
void md__give_back(md__reg *reg) {
    md__region_unmap(reg);
    md__vacate(reg);
}

md_registry md__handle_of(const md__reg *reg, uint32_t generation) {
    return (uint64_t)generation << SLOT_BITS | (uint64_t)(reg - md__table + 1);
}

/* Counts one more MD__CALL or MD__OPENING of a handle that has an opening. */
int md__count_up(md_registry handle, uint64_t one, md__reg **out) {
    uint64_t slot = handle & ((1u << SLOT_BITS) - 1), generation = handle >> SLOT_BITS;
    if (slot == 0 || slot > MD__HANDLES) return MD_ECLOSED;
    md__reg *reg = &md__table[slot - 1];
    uint64_t refs = md__read64(&reg->refs);
    do {
        if (refs >> 32 != generation || (uint32_t)refs < MD__OPENING) return MD_ECLOSED;
        if ((refs & MD__COUNT * one) == MD__COUNT * one) return MD_EHANDLES;
    } while (!md__swap_if64(&reg->refs, &refs, refs + one));
    *out = reg;
    return 0;
}

/* Counts one call less. Returns whether that was the last use of all. */
bool md__count_down(md__reg *reg) {
    uint64_t refs = md__read64(&reg->refs);
    while (!md__swap_if64(&reg->refs, &refs, refs - MD__CALL)) {}
    return (uint32_t)refs == MD__CALL;
}

int md__enter(md_registry handle, md__reg **out) {
    if (md__peek64(&md__parked)) md__unpark();
    return md__count_up(handle, MD__CALL, out);
}

bool md__is_open(md_registry handle) {
    uint64_t slot = handle & ((1u << SLOT_BITS) - 1), generation = handle >> SLOT_BITS;
    if (slot == 0 || slot > MD__HANDLES) return false;
    uint64_t refs = md__read64(&md__table[slot - 1].refs);
    return refs >> 32 == generation && (uint32_t)refs >= MD__OPENING;
}

int md__is_closed(const md__reg *reg) {
    return (uint32_t)md__read64(&reg->refs) < MD__OPENING;
}

void md__exit(md__reg *reg) {
    if (!md__count_down(reg)) return;
    md__process_leave(reg);
    pthread_mutex_lock(&md__table_lock);
    md__give_back(reg);
    pthread_mutex_unlock(&md__table_lock);
}

/* The same under the table's lock. Returns true if it released that lock in between. */
bool md__exit_locked(md__reg *reg) {
    if (!md__count_down(reg)) return false;
    pthread_mutex_unlock(&md__table_lock);
    md__process_leave(reg);
    pthread_mutex_lock(&md__table_lock);
    md__give_back(reg);
    return true;
}
