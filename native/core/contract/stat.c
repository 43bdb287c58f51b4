/* stat.c - what an open registry tells people about itself: address, figures, members, faults.
 *
 * Figures and members are read without the lock, word by word, so they are not of one moment. The
 * check of all invariants takes the lock.
 */
#include <stdio.h>

#include "contract.h"

int md_address(md_registry handle, char *buf, size_t cap) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    char whole[MD_MAX_ADDRESS + sizeof MD__ELECT];
    const char *name = md__name_in(reg->address);
    bool elect = md__is_elect(reg) && name != reg->address;
    snprintf(whole, sizeof whole, "%s%s", elect ? MD__ELECT : "", elect ? name : reg->address);
    size_t n = strlen(whole) + 1;
    if (n <= cap)
        memcpy(buf, whole, n);
    else
        rc = MD_ENOBUFS;
    md__exit(reg);
    return rc;
}

void md__stat(const md__reg *reg, md_stats *out) {
    const struct md__header *h = md__header(reg);
    memset(out, 0, sizeof *out);
    out->capacity = h->capacity;
    out->committed = md__peek64(&h->committed);
    out->used = md__peek64(&h->used);
    out->facts = md__peek64(&h->facts);
    out->names = md__peek64(&h->names);
    out->idle = (uint32_t)md__peek64(&h->idle);
    out->next_seq = md__read64(&h->next_seq);
    out->recoveries = md__peek64(&h->recoveries);
    out->main_pid = h->main_pid;
    out->policy = h->policy;
    out->made = h->made;
    if (md__has_main(reg)) {
        out->main_state = md__read32(&h->main_state);
        if (out->main_state != MD__MAIN_LEFT && md__lease_is_dead(md__process(reg, 0)))
            out->main_state = 3;
    }
    uint32_t processes = md__read32(&h->process_top), members = md__read32(&h->member_top);
    for (uint32_t i = 0; i < processes && i < MD_MAX_PROCESSES; i++)
        out->processes += md__read32(&md__process(reg, i)->state) != MD__FREE;
    for (uint32_t i = 0; i < members && i < MD_MAX_MEMBERS; i++)
        out->members += md__read32(&md__member(reg, i)->state) != MD__FREE;
}

int md_stat(md_registry handle, md_stats *out) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    md__stat(reg, out);
    md__exit(reg);
    return 0;
}

void md__members(md__reg *reg, md_member_info *infos, size_t cap, size_t *count) {
    uint32_t top = md__read32(&md__header(reg)->member_top);
    *count = 0;
    for (uint32_t i = 0; i < top && i < MD_MAX_MEMBERS; i++) {
        const struct md__member *m = md__member(reg, i);
        if (md__read32(&m->state) == MD__FREE) continue;
        uint32_t slot = md__peek32(&m->process);
        if (slot >= MD_MAX_PROCESSES) continue;
        struct md__process *p = md__process(reg, slot);
        size_t n = (*count)++;
        if (n >= cap) continue;
        md_member_info *info = &infos[n];
        memset(info, 0, sizeof *info);
        info->interp = (int64_t)md__peek64(&m->interp);
        info->pid = md__peek32(&p->pid);
        info->role = md__peek32(&m->role);
        info->alive = !md__lease_is_dead(p);
        info->waiters = md__peek32(&m->waiters);
        if (info->waiters) {
            info->waiting_ns = md__peek64(&m->waiting_ns);
            info->wait_kind = md__peek32(&m->wait_kind);
            info->wait_key = (int32_t)md__peek32(&m->wait_key);
            md__load_words(info->wait_name, m->wait_name, sizeof info->wait_name);
            info->wait_name[sizeof info->wait_name - 1] = '\0';
        }
    }
}

int md_members(md_registry handle, md_member_info *infos, size_t cap, size_t *count) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    md__members(reg, infos, cap, count);
    md__exit(reg);
    return 0;
}

int md_check(md_registry handle, char *buf, size_t cap) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = md__lock(reg);
    if (rc == 0) {
        rc = md__check(reg, buf, cap) ? MD_EDAMAGED : 0;
        md__unlock(reg);
    } else {
        snprintf(buf, cap, "the lock cannot be had: %s\n", md_status_text(rc));
    }
    md__exit(reg);
    return rc;
}
