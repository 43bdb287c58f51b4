/* contract_lives.h - the calls of fuzz_contract.c by which registries and members come and go. */
#ifndef MD_FUZZ_CONTRACT_LIVES_H
#define MD_FUZZ_CONTRACT_LIVES_H

static void do_members(const struct op *op) {
    static md_member_info infos[8];
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    size_t cap = op->b % 9, n = 77, should = r ? live_members(r) : 77;
    int rc = md_members(handle, infos + 8 - cap, cap, &n);
    MUST(rc == (r ? 0 : MD_ECLOSED) && n == should);
    for (size_t i = 0; !rc && i < n && i < cap; i++) {
        const md_member_info *info = &infos[8 - cap + i];
        MUST(info->pid == (uint32_t)getpid() && info->alive && !info->waiters);
        MUST(!info->wait_name[0] && !info->waiting_ns);
    }
}

static void do_stat(const struct op *op) {
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    md_stats s;
    int rc = md_stat(handle, &s);
    MUST(rc == (r ? 0 : MD_ECLOSED));
    if (rc) return;
    uint64_t live = 0;
    for (size_t i = 0; i < r->fact_count; i++) live += r->facts[i].live;
    MUST(s.facts == live && s.next_seq == r->next_seq && s.recoveries == r->recoveries);
    MUST(s.capacity == r->capacity && s.committed <= s.capacity && s.used <= s.committed);
    MUST(s.main_pid == (uint32_t)getpid() && s.processes == 1 && s.members == live_members(r));
    MUST(s.main_state == (r->closed ? 2u : r->had_main ? 1u : 0u));
    MUST(s.policy == (r->team   ? MD_POLICY_ELECT
                      : r->host ? MD_POLICY_BRIDGE
                                : MD_POLICY_MAIN));
}

static void do_check(const struct op *op) {
    md_registry handle = draw_handle(op);
    size_t cap = draw_cap(op->c);
    MUST(md_check(handle, room(cap), cap) == (registry_of(handle) ? 0 : MD_ECLOSED));
    if (cap && registry_of(handle)) MUST(!*room(cap));
}

static void do_join(const struct op *op) {
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    int64_t interp = op->b & 1 ? (int64_t)((uint64_t)op->c << 32 | op->b) : op->b & 2;
    bool bridge = r && r->host ? !(op->b & 4) : (op->b & 0x1c) == 4;
    uint64_t id;
    uint32_t role;
    if (bridge) interp = MD_AS_BRIDGE;
    int rc = md_join(handle, interp, &id, &role);
    MUST(rc == (!r || r->closed ? MD_ECLOSED : bridge && !r->host ? MD_EROLE : 0));
    if (rc) return;
    for (size_t i = 0; i < r->member_count; i++) MUST(r->members[i].id != id);
    MUST(role == (r->team                        ? MD_PEER
                  : bridge                       ? MD_BRIDGE
                  : r->host                      ? MD_WORKER
                  : interp == 0 && !r->had_main ? MD_MAIN
                                                 : MD_WORKER));
    if (role == MD_MAIN) r->had_main = true;
    r->members[r->member_count++] = (struct membership){id, interp, role, true};
}

static void do_leave(const struct op *op) {
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t id = draw_member(op);
    int should = MD_ECLOSED;
    struct membership *m = r ? member_of(r, id, &should) : NULL;
    MUST(md_leave(handle, id) == should);
    if (!m) return;
    m->live = false;
    if (m->role == MD_MAIN) r->closed = true;
    uint32_t rules = 0;
    for (size_t i = 0; i < r->fact_count; i++) {
        struct fact *f = &r->facts[i];
        if (!f->live || f->member != id) continue;
        if (f->kind == MD_CLAIM)
            end_claim(r, f, &rules);
        else if (is_own(f->kind))
            strike_one(r, f, &rules);
    }
    struck(r, rules);
}

static void gone(struct registry *r) {
    stale[stale_count++ & 3] = r->handle;
    r->handle = 0;
}

static void do_close(const struct op *op) {
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    if (r && r->openings == 1 && !may_make) return;
    MUST(md_close(handle) == (r ? 0 : MD_ECLOSED));
    if (!r || --r->openings) return;
    gone(r);
    MUST(md_close(handle) == MD_ECLOSED);
}

/* Another opening of the same one. */
static void do_attach(const struct op *op) {
    struct registry *r = regs[op->a & 1];
    md_registry again = 0;
    int rc = md_attach(r->address, 0, &again);
    if (r->handle && !r->closed) {
        MUST(rc == 0 && again == r->handle);
        r->openings++;
    } else {
        MAY(rc, "md_attach", MD_ECLOSED, MD_ENOENT, MD_ENOTFILE, MD_EFORMAT, MD_EOWNER, MD_ESYS);
        MUST(rc);
    }
}

static void do_address(const struct op *op) {
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    size_t cap = draw_cap(op->c), need = r ? strlen(r->address) + 1 : 0;
    int rc = md_address(handle, room(cap), cap);
    MUST(rc == (!r ? MD_ECLOSED : need > cap ? MD_ENOBUFS : 0));
    if (!rc) MUST(strcmp(room(cap), r->address) == 0);
}

static void do_cancel(const struct op *op) {
    md_registry handle = draw_handle(op);
    MUST(md_cancel(handle, draw_member(op), op->c) == (registry_of(handle) ? 0 : MD_ECLOSED));
}

/* The lock's holder dies after it has begun to change what can be computed again. */
static void do_die(const struct op *op) {
    struct registry *r = registry_of(draw_handle(op));
    md__reg *inside;
    if (!r) return;
    MUST(md__enter(r->handle, &inside) == 0);
    struct md__header *h = md__header(inside);
    if (op->b & 1) md__poke64(&h->facts, op->c);
    if (op->b & 2) md__poke64(&h->names, op->c);
    if (op->b & 4) md__poke64(&h->used, (uint64_t)op->c << 20);
    if (op->b & 0x20) md__poke64(&h->idle, op->c);
    for (uint32_t i = 0; i < MD__CLASSES; i++) {
        if (op->b & 8) h->free_lists[i] = i & 1 ? 0 : op->c;
        if (op->b & 0x10) h->idle_lists[i] = i & 1 ? 0 : op->c;
    }
    md__poke32(md__lease_word((struct md__process *)(void *)&h->mutex), FUTEX_OWNER_DIED | 77);
    md__exit(inside);
    MUST(md_check(r->handle, pool, POOL) == 0);
    r->recoveries++;
    r->next_seq++;
    all_changed(r);
}

static void do_version(const struct op *op) {
    md_registry handle = draw_handle(op);
    uint64_t version, node = op->a & 0x10 ? (uint64_t)op->c << 32 | op->b : op->c % 65536;
    int rc = md_version(handle, node, &version);
    if (!registry_of(handle)) MUST(rc == MD_ECLOSED);
    MUST(rc == 0 || rc == MD_EINVAL || rc == MD_ECLOSED);
}

/* Names, addresses and capacities of any bytes. None may be somebody else's name or process. */
static void do_odd(const struct op *op) {
    char odd[300];
    md_registry reg = 0, again = 0;
    uint64_t capacity = op->c & 1 ? MD__MIN_CAPACITY : op->c & 2 ? op->c : (uint64_t)op->c << 32;
    int rc, n = snprintf(odd, sizeof odd, "z%d", (int)getpid());
    if (!may_make) return;
    switch (op->b % 8) {
    case 0: /* an odd name */
        memcpy(odd + n, &op->c, 4);
        odd[n + 4] = '\0';
        rc = md_create(odd, capacity, &reg);
        MAY(rc, "md_create", MD_EINVAL, MD_ENAME, MD_EEXIST);
        MUST(rc != MD_EINVAL || capacity < MD__MIN_CAPACITY || capacity > MD__MAX_CAPACITY);
        break;
    case 1:
        memset(odd + n, 'x', sizeof odd - (size_t)n);
        odd[sizeof odd - 1] = '\0';
        odd[op->c % 256] = '\0';
        if (op->c % 256 < (uint32_t)n) odd[0] = '/';
        rc = md_attach(odd, 0, &reg);
        MUST(rc == MD_ENOENT || rc == MD_ENAME);
        return;
    case 2:
        n = snprintf(odd, sizeof odd, "fd:%d:%d:%08x%s:", (int)getpid(), (int)op->c, op->c,
                     op->c & 1 ? "00112233445566778899aabb" : "");
        MUST(md_origin(NULL, odd + n, sizeof odd - (size_t)n) == 0);
        rc = md_attach(odd, 0, &reg);
        MUST(rc && rc != MD_EINVAL);
        return;
    case 3:
        MUST(md_attach(NULL, 0, &reg) == MD_EINVAL && md_attach("z", -2, &reg) == MD_EINVAL);
        MUST(md_attach("", 0, &reg) == MD_ENAME && md_attach("shm:", 0, &reg) == MD_ENAME);
        MUST(md_attach("fd:", 0, &reg) == MD_ENAME && md_attach("a:b", 0, &reg) == MD_ENAME);
        return;
    case 4: /* the default one, twice */
        MUST(md_open_default(op->c & 1 ? NULL : "", &reg) == 0);
        MUST(md_open_default(NULL, &again) == 0 && again == reg);
        MUST(md_close(again) == 0);
        rc = 0;
        break;
    case 5:
        rc = md_create(NULL, capacity, &reg);
        MAY(rc, "md_create", MD_EINVAL, MD_ESYS);
        break;
    case 6: /* a name twice */
        rc = md_create(odd, MD__MIN_CAPACITY + op->c % 5000, &reg);
        MUST(rc == 0 && md_create(odd, MD__MIN_CAPACITY, &again) == MD_EEXIST);
        MUST(md_attach(odd, 0, &again) == 0 && again == reg && md_close(again) == 0);
        break;
    default:
        MUST(md_status_text((int)op->c) && md_status_errno((int)op->c) >= 0 && md_abi() == MD_ABI);
        return;
    }
    if (rc == 0) {
        MUST(md_check(reg, pool, POOL) == 0 && md_close(reg) == 0);
        MUST(md_close(reg) == MD_ECLOSED);
        stale[stale_count++ & 3] = reg;
    }
}

/* --- lives ------------------------------------------------------------------------------------ */

static void begin(struct registry *r, int which) {
    md__reg *inside;
    forget(r);
    if (r->handle) return;
    r->capacity = MD__MIN_CAPACITY + (which == 1 ? 0 : 1 << 20);
    r->team = which == TEAM;
    r->host = which == HOST;
    MUST((r->team ? md_elect : r->host ? md_bridge : md_create)(NULL, r->capacity, &r->handle) == 0);
    MUST(md_address(r->handle, r->address, sizeof r->address) == 0);
    MUST(md__enter(r->handle, &inside) == 0);
    if (!r->fresh) r->fresh = malloc(MD__ARENA_AT + 4096);
    MUST(r->fresh && md__read64(&md__header(inside)->arena_top) <= MD__ARENA_AT + 4096);
    memcpy(r->fresh, inside->base, MD__ARENA_AT + 4096);
    md__exit(inside);
}

/* Everything is as the model has it; then as if nothing had been. The leases stay as they are: the
 * C library has linked them with each other. */
static void end(struct registry *r) {
    enum { SLOTS = (MAX_OPS + 1) * sizeof(struct md__member) };
    const struct op all = {0, r == regs[1], 10, 0x100};
    md__reg *inside;
    if (!r->handle) return;
    do_check(&all);
    do_list(&all);
    do_stat(&all);
    for (size_t i = 0; i < r->name_count; i++) must_have_version(r, i);
    for (; r->openings > 1; r->openings--) MUST(md_close(r->handle) == 0);
    MUST(md__enter(r->handle, &inside) == 0);
    uint64_t top = md__read64(&md__header(inside)->arena_top);
    memcpy(inside->base, r->fresh, MD__PROCESSES_AT);
    memcpy(inside->base + MD__MEMBERS_AT, r->fresh + MD__MEMBERS_AT, SLOTS);
    memcpy(inside->base + MD__ARENA_AT, r->fresh + MD__ARENA_AT, 4096);
    if (top > MD__ARENA_AT + 4096)
        memset(inside->base + MD__ARENA_AT + 4096, 0, top - MD__ARENA_AT - 4096);
    md__exit(inside);
}

#endif
