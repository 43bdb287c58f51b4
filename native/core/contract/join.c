/* join.c - interpreters become members of a registry, and leave it. Under the region's lock. */
#include "kernels.h"

static md__u32 host_joined; /* atomic, any thread; never taken back */

int md_has_host(void) {
    return md__read32(&host_joined) != 0;
}

/* The main member that joined as `interp`, which is interpreter 0 or the host of the creator's
 * process. */
static struct md__member *find_main(const md__reg *reg, int64_t interp) {
    uint32_t top = md__read32(&md__header(reg)->member_top);
    for (uint32_t i = 0; i < top && i < MD_MAX_MEMBERS; i++) {
        struct md__member *m = md__member(reg, i);
        if (md__read32(&m->state) == MD__LIVE && md__peek32(&m->role) == MD_MAIN &&
            md__peek32(&m->process) == 0 && (int64_t)md__peek64(&m->interp) == interp)
            return m;
    }
    return NULL;
}

static int join(md__reg *reg, int64_t interp, uint64_t *member, uint32_t *role) {
    struct md__header *h = md__header(reg);
    if (md__read32(&h->state) == MD__CLOSED) return MD_ECLOSED;
    bool is_bridge = interp == MD_AS_BRIDGE;
    if (is_bridge && !md__is_host(reg)) return MD_EROLE;
    /* Without a main member, a newer registry may have the name by now. With one the name does not
     * matter. */
    int rc = !md__has_main(reg) && reg->process == MD__NO_SLOT ? md__region_is_named(reg) : 1;
    if (rc <= 0) return rc ? rc : MD_ECLOSED;
    md__sweep(reg);
    rc = md__process_join(reg);
    if (rc) return rc;
    uint32_t top = md__read32(&h->member_top), i = 0;
    while (i < MD_MAX_MEMBERS && i < top && md__read32(&md__member(reg, i)->state) != MD__FREE) i++;
    if (i >= MD_MAX_MEMBERS) return MD_EMEMBERS;
    struct md__member *m = md__member(reg, i);
    *role = is_bridge ? MD_BRIDGE : MD_WORKER;
    if (md__is_elect(reg))
        *role = MD_PEER;
    else if (md__has_main(reg) && reg->creator && (interp == 0 || interp == MD_HOST) && !find_main(reg, interp))
        *role = MD_MAIN;
    md__poke32(&m->process, reg->process);
    md__poke32(&m->role, *role);
    md__poke64(&m->interp, (uint64_t)interp);
    md__poke32(&m->waiters, 0);
    md__publish32(&m->state, MD__LIVE);
    if (i >= top) md__publish32(&h->member_top, i + 1);
    if (*role == MD_MAIN) md__publish32(&h->main_state, MD__MAIN_HERE);
    if (interp == MD_HOST) md__publish32(&host_joined, 1);
    *member = (uint64_t)md__peek32(&m->generation) << 32 | i;
    return 0;
}

int md_join(md_registry handle, int64_t interp, uint64_t *member, uint32_t *role) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = md__lock(reg);
    if (rc == 0) {
        rc = join(reg, interp, member, role);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}

int md_leave(md_registry handle, uint64_t member) {
    md__reg *reg;
    struct md__member *m;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = md__lock_to_leave(reg);
    if (rc == 0) {
        rc = md__member_check(reg, member, &m);
        if (rc == 0) {
            if (md__peek32(&m->role) == MD_MAIN) {
                int64_t other = md__peek64(&m->interp) == 0 ? MD_HOST : 0;
                if (find_main(reg, other))
                    md__strike_all_of(reg, member);
                else
                    md__close_registry(reg);
            }
            struct md__gone gone = {.member = member};
            md__strike_own(reg, &gone);
            md__end_claims(reg, &gone);
            md__free_member(m);
        }
        md__unlock(reg);
    }
    if (rc == 0) md__disturb(reg, member, 0, 0);
    md__exit(reg);
    return rc;
}
