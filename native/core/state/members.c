/* members.c - the slots of processes and of their interpreters.
 *
 * Slots are taken and given back under the region's mutex. A process slot counts from the moment
 * its state says so, which is after its lease is held. If the process dies in between, it leaves a
 * free slot; the next process that takes the slot makes the mutex anew.
 */
#include <linux/futex.h>
#include <unistd.h>

#include "state.h"

/* Under the region's mutex. */
int md__process_join(md__reg *reg) {
    struct md__header *h = md__header(reg);
    if (reg->process != MD__NO_SLOT) return 0;
    uint32_t first = reg->creator || !md__has_main(reg) ? 0 : 1, top = md__read32(&h->process_top),
             i;
    for (i = first; i < MD_MAX_PROCESSES && i < top; i++) {
        if (md__read32(&md__process(reg, i)->state) == MD__FREE) break;
    }
    if (i >= MD_MAX_PROCESSES) return MD_EMEMBERS;
    struct md__process *p = md__process(reg, i);
    int rc = md__take_lease(reg, p);
    if (rc) return rc;
    md__poke32(&p->pid, (uint32_t)getpid());
    md__poke32(&p->generation, md__peek32(&p->generation) + 1);
    md__publish32(&p->state, MD__LIVE);
    if (i >= top) md__publish32(&h->process_top, i + 1);
    reg->process = i;
    return 0;
}

void md__free_member(struct md__member *m) {
    md__poke32(&m->generation, md__peek32(&m->generation) + 1);
    m->has_own = 0;
    md__publish32(&m->state, MD__FREE);
}

/* Frees all members of some process slots. */
void md__free_members(md__reg *reg, const struct md__gone *gone) {
    md__strike_own(reg, gone);
    md__end_claims(reg, gone);
    uint32_t top = md__read32(&md__header(reg)->member_top);
    for (uint32_t i = 0; i < top && i < MD_MAX_MEMBERS; i++) {
        struct md__member *m = md__member(reg, i);
        if (md__read32(&m->state) != MD__FREE && md__is_gone(gone, md__peek32(&m->process)))
            md__free_member(m);
    }
}

/* The name goes first: as soon as the state says closed, another process may give it to a registry
 * of its own. */
void md__close_registry(md__reg *reg) {
    struct md__header *h = md__header(reg);
    md__region_unlink(reg);
    md__publish32(&h->main_state, MD__MAIN_LEFT);
    md__publish32(&h->state, MD__CLOSED);
    md__event_ring_all(reg);
}

/* Whether the process of a slot that is not free still has its lease. */
static bool is_here(struct md__process *p) {
    uint32_t word = md__read32(md__lease_word(p));
    return !(word & FUTEX_OWNER_DIED) && (word & FUTEX_TID_MASK);
}

/* Whether any other process is here. One that is leaving does not count, though it may still have
 * its lease. */
int md__is_anyone_here(md__reg *reg) {
    uint32_t top = md__read32(&md__header(reg)->process_top);
    for (uint32_t i = 0; i < top && i < MD_MAX_PROCESSES; i++) {
        struct md__process *p = md__process(reg, i);
        if (i != reg->process && md__read32(&p->state) == MD__LIVE && is_here(p)) return 1;
    }
    return 0;
}

/* Frees the slots of all processes that ended without leaving, all at once, so that the cost of
 * ending claims is paid once. Under the region's mutex, so nobody gets one of these slots
 * meanwhile. */
void md__sweep(md__reg *reg) {
    struct md__header *h = md__header(reg);
    struct md__gone gone = {.member = MD__NOBODY};
    uint32_t processes = MD_FAULT(DEAD_NOT_SWEPT) ? 0 : md__read32(&h->process_top);
    bool any = false;
    for (uint32_t i = md__has_main(reg) ? 1 : 0; i < processes && i < MD_MAX_PROCESSES; i++) {
        struct md__process *p = md__process(reg, i);
        if (md__read32(&p->state) == MD__FREE || is_here(p)) continue;
        gone.processes[i / 64] |= 1ull << i % 64;
        any = true;
    }
    if (!any) return;
    md__free_members(reg, &gone);
    for (uint32_t i = 0; i < processes && i < MD_MAX_PROCESSES; i++) {
        if (md__is_gone(&gone, i)) md__publish32(&md__process(reg, i)->state, MD__FREE);
    }
}

/* The slot of a member, if it is a live member of this very process. */
int md__member_check(const md__reg *reg, uint64_t member, struct md__member **out) {
    uint32_t i = (uint32_t)member;
    if (i >= MD_MAX_MEMBERS) return MD_ENOENT;
    struct md__member *m = md__member(reg, i);
    if (md__read32(&m->state) != MD__LIVE || md__peek32(&m->generation) != member >> 32)
        return MD_ECLOSED;
    if (md__peek32(&m->process) != reg->process) return MD_ENOENT;
    *out = m;
    return 0;
}

/* Whether a member can still register in the region. A damaged region whose main member died counts
 * as dead, so that it may be replaced. */
int md__region_served(md__reg *reg) {
    uint32_t state = md__read32(&md__header(reg)->state);
    if (state == MD__CLOSED) return MD_ECLOSED;
    bool dead = md__has_main(reg) ? md__lease_is_dead(md__process(reg, 0))
                                  : reg->process == MD__NO_SLOT && !md__is_anyone_here(reg);
    if (dead) return MD_EDIED;
    return state == MD__OPEN ? 0 : MD_EDAMAGED;
}
