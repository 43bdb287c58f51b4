/* fuzz_region.c - nothing in a region is trusted: a real, filled region is spoilt as the input
 * says, and every call of the contract is made on it. None may crash, reach outside the mapping or
 * the caller's buffer, run on, or return what its documentation does not know.
 *
 * An input is a program of patches and calls (ops.h), and the same calls at its end. What is real
 * and what is not:
 *
 * - The regions are made once, by the contract's own calls: two processes, one of which was killed,
 *   and facts of all kinds. Each execution begins with a copy of one of them.
 * - One input of eight goes all the way: the memfd is written, md_attach() judges and maps it, and
 *   md_close() unmaps. For the others it was attached to once; what they write is undone
 *   behind the contract's back. That is ten times as fast, and lets a region be spoilt between two
 *   calls as well. Pages that may not be touched lie around that mapping.
 * - The member that writes was made the main member by hand, as nobody but the creator is. (In a
 *   registry of md_elect it is one of the team, and has to claim.)
 * - Of the locks only what a death leaves is written: the word of a dead owner, and the mark of a
 *   lock that nobody can have. The C library trusts the rest of a mutex blindly.
 */
#include "region_patch.h"

/* --- calls ------------------------------------------------------------------------------------ */

enum { NAMES = MADE_NAMES + 2 };
static const char *draw_name(uint32_t n, size_t *len) {
    static const char odd[2][8] = {"new", "\0\xff/::"};
    n %= NAMES;
    *len = n < MADE_NAMES ? made_names[n].len : n == MADE_NAMES ? 3 : 6;
    return n < MADE_NAMES ? made_names[n].text : odd[n - MADE_NAMES];
}

static void call_list(const struct op *op) {
    size_t len, cap = draw_cap(op->c), size;
    const char *name = op->a % 4 ? draw_name(op->b, &len) : NULL;
    uint64_t version, node;
    int rc = md_list(now.reg, name, name ? len : 0, room(cap), cap, &size, &version, &node);
    MAY(rc, "md_list", MD_ECLOSED, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK, MD_ESYS);
    if (rc == 0) {
        MUST(size <= cap);
        must_be_records(room(cap), size);
        if (node) {
            rc = md_version(now.reg, node, &version);
            MUST(rc == 0 || rc == MD_EINVAL);
        }
    }
    MUST(rc != MD_ENOBUFS || size > cap);
}

static void call_list_since(const struct op *op) {
    size_t cap = draw_cap(op->c), size;
    uint64_t live;
    int rc = md_list_since(now.reg, op->a % 8, op->b % 80, room(cap), cap, &size, &live);
    MAY(rc, "md_list_since", MD_ECLOSED, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK, MD_ESYS);
    if (rc == 0) {
        MUST(size <= cap);
        MUST(must_be_records(room(cap), size) <= live);
    }
}

static void must_be_answer(int rc, size_t cap, uint32_t kind, int32_t key, const char *name,
                           size_t len) {
    md_record r;
    if (rc) return;
    must_be_record(room(cap), cap, &r);
    MUST(r.kind == kind && r.key == key && r.name_len == len);
    MUST(memcmp(room(cap) + sizeof r, name, len) == 0);
}

static void call_find(const struct op *op) {
    size_t len, cap = draw_cap(op->c);
    const char *name = draw_name(op->b, &len);
    uint32_t kind = 1 + op->a % 6;
    int32_t key = op->b / NAMES % 8;
    int rc = md_find(now.reg, kind, key, name, len, room(cap), cap);
    MAY(rc, "md_find", MD_ENOENT, MD_ECLOSED, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK, MD_ESYS);
    must_be_answer(rc, cap, kind, key, name, len);
}

static void call_await(const struct op *op) {
    size_t len, cap = draw_cap(op->c);
    const char *name = draw_name(op->b, &len);
    uint32_t kind = 1 + op->a % 6;
    int32_t key = op->b / NAMES % 8;
    md_wait_stats stats = {0};
    int rc = md_await(now.reg, now.member, kind, key, 1 + (op->a >> 6), name, len, 0, 1, room(cap),
                      cap, &stats);
    MAY(rc, "md_await", MD_ETIMEDOUT, MD_EDIED, MD_ECLOSED, MD_ENOENT, MD_ENOBUFS, MD_EDAMAGED,
        MD_ELOCK, MD_ESYS);
    must_be_answer(rc, cap, kind, key, name, len);
    MUST(stats.sleeps == 0);
}

static void call_await_change(const struct op *op) {
    md_wait_stats stats = {0};
    uint64_t seq = 0;
    int rc = md_await_change(now.reg, now.member, op->c & 1 ? op->c >> 1 : 0, 0, 1, &seq, &stats);
    MAY(rc, "md_await_change", MD_ETIMEDOUT, MD_EDIED, MD_ECLOSED, MD_ENOENT, MD_EDAMAGED);
    if (rc == 0) rc = md_await_change(now.reg, now.member, seq, 0, 1, &seq, &stats);
    MUST(rc != 0 && stats.sleeps == 0);
}

static void call_members(const struct op *op) {
    static md_member_info infos[MD_MAX_MEMBERS];
    size_t cap = op->a & 1 ? MD_MAX_MEMBERS : op->c % 5, n = 0;
    int rc = md_members(now.reg, infos + MD_MAX_MEMBERS - cap, cap, &n);
    MAY(rc, "md_members", MD_ECLOSED);
    MUST(n <= MD_MAX_MEMBERS);
    for (size_t i = 0; rc == 0 && i < n && i < cap; i++) {
        const char *name = infos[MD_MAX_MEMBERS - cap + i].wait_name;
        MUST(memchr(name, '\0', sizeof infos->wait_name));
    }
}

static void call_stat(void) {
    md_stats stats;
    int rc = md_stat(now.reg, &stats);
    MAY(rc, "md_stat", MD_ECLOSED);
    MUST(rc || (stats.processes <= MD_MAX_PROCESSES && stats.members <= MD_MAX_MEMBERS));
}

static void call_check(const struct op *op) {
    size_t cap = draw_cap(op->c);
    int rc = md_check(now.reg, room(cap), cap);
    MAY(rc, "md_check", MD_EDAMAGED, MD_ECLOSED, MD_ELOCK, MD_ESYS);
    MUST(!cap || memchr(room(cap), '\0', cap) || rc);
}

static void call_join(const struct op *op) {
    uint32_t role;
    uint64_t member;
    int rc = md_join(now.reg, op->c % 3, &member, &role);
    MAY(rc, "md_join", MD_ECLOSED, MD_EMEMBERS, MD_EDAMAGED, MD_ELOCK, MD_ESYS);
    if (rc) return;
    now.member = member;
    if (md__has_main(now.inside))
        md__poke32(&md__member(now.inside, (uint32_t)member)->role, MD_MAIN);
}

static void call_leave(void) {
    int rc = md_leave(now.reg, now.member);
    MAY(rc, "md_leave", MD_ECLOSED, MD_ENOENT, MD_EDAMAGED, MD_ELOCK, MD_ESYS);
}

static void call_register(const struct op *op) {
    static char body[MD_MAX_BODY];
    static const size_t lengths[] = {0, 1, 7, 8, 9, 200, 1024, 5000, MD_MAX_BODY};
    size_t len, cap = op->c & 1 ? POOL : draw_cap(op->c >> 8);
    const char *name = draw_name(op->b, &len);
    uint32_t kind = 1 + op->a % 6, rule = op->a & 0x40 ? MD_UNIQUE : MD_STACK;
    int32_t key = op->b / NAMES % 8;
    if (op->a & 0x80) rule |= MD_RAISE_ALL;
    int rc = md_register(now.reg, now.member, kind, rule, key, name, len, body,
                         lengths[op->c / 2 % 9], "w.c:1", op->c / 64 % 6, room(cap), cap);
    MAY(rc, "md_register", MD_ECLOSED, MD_EROLE, MD_EEXIST, MD_EFULL, MD_ENOBUFS, MD_EDAMAGED,
        MD_ELOCK, MD_ESYS);
    if (rc == 0) {
        must_be_answer(rc, cap, kind, key, name, len);
        memcpy(&now.known[op->c >> 24 & 7], room(cap), sizeof(md_record));
    }
}

static void call_strike(const struct op *op) {
    const struct made *m = now.made;
    uint64_t ref, seq;
    if (op->a & 1) {
        ref = now.known[op->b & 7].ref;
        seq = now.known[op->b & 7].seq;
    } else { /* a block of the region, whatever it says that it is */
        ref = m->blocks[op->b % m->block_count] / 8;
        memcpy(&seq, now.base + ref * 8 + offsetof(struct md__fact, seq), 8);
        if (op->a & 2) ref += op->c % 8;
    }
    int rc = md_strike(now.reg, now.member, ref, seq);
    MAY(rc, "md_strike", MD_ENOENT, MD_ECLOSED, MD_EROLE, MD_EDAMAGED, MD_ELOCK, MD_ESYS);
}

/* Two of three names up to their "::", as claims have them. */
static const char *draw_space(const struct op *op, size_t *len) {
    const char *name = draw_name(op->b, len);
    const char *end = memmem(name, *len, "::", 2);
    if (end && end > name && op->b / NAMES % 3) *len = (size_t)(end - name);
    return name;
}

static void call_claim(const struct op *op) {
    size_t len, cap = op->c & 1 ? POOL : draw_cap(op->c >> 8);
    const char *name = draw_space(op, &len);
    int rc = md_claim(now.reg, now.member, name, len, "w.c:2", op->c / 2 % 6, room(cap), cap);
    MAY(rc, "md_claim", MD_EEXIST, MD_ECLOSED, MD_EROLE, MD_EINVAL, MD_EFULL, MD_ENOBUFS,
        MD_EDAMAGED, MD_ELOCK, MD_ESYS);
    if (rc && rc != MD_EEXIST) return;
    md_record r;
    must_be_record(room(cap), cap, &r); /* its key is nobody's concern, and may be any */
    MUST(r.kind == MD_CLAIM && r.name_len == len);
    MUST(memcmp(room(cap) + sizeof r, name, len) == 0);
}

static void call_release(const struct op *op) {
    size_t len;
    const char *name = draw_space(op, &len);
    int rc = md_release(now.reg, now.member, name, len);
    MAY(rc, "md_release", MD_ENOENT, MD_ECLOSED, MD_EROLE, MD_EINVAL, MD_EDAMAGED, MD_ELOCK,
        MD_ESYS);
}

static void call_await_or_elect(const struct op *op) {
    size_t len, cap = draw_cap(op->c);
    const char *name = draw_name(op->b, &len);
    uint32_t kind = 1 + op->a % 7;
    int32_t key = op->b / NAMES % 8;
    md_wait_stats stats = {0};
    int rc = md_await_or_elect(now.reg, now.member, kind, key, 1 + (op->a >> 6), name, len, 0, 1,
                               room(cap), cap, &stats);
    MAY(rc, "md_await_or_elect", MD_EELECTED, MD_ETIMEDOUT, MD_EDIED, MD_ECLOSED, MD_ENOENT,
        MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK, MD_ESYS);
    must_be_answer(rc, cap, kind, key, name, len);
    MUST(stats.sleeps == 0);
}

static void call_of_team(const struct op *op) {
    if (op->what % 4 == 0)
        call_release(op);
    else if (op->what % 4 == 1)
        call_await_or_elect(op);
    else
        call_claim(op);
}

static void call(const struct op *op) {
    uint64_t version;
    int rc;
    if ((op->what & 0x70) == 0x70) {
        call_of_team(op);
        return;
    }
    switch (op->what % 16) {
    case 0:
    case 1:
        call_register(op);
        break;
    case 2:
    case 3:
        call_strike(op);
        break;
    case 4:
        call_list(op);
        break;
    case 5:
        call_list_since(op);
        break;
    case 6:
        call_find(op);
        break;
    case 7:
        call_await(op);
        break;
    case 8:
        call_await_change(op);
        break;
    case 9:
        call_members(op);
        break;
    case 10:
        call_stat();
        break;
    case 11:
        call_check(op);
        break;
    case 12:
        call_join(op);
        break;
    case 13:
        call_leave();
        break;
    case 14:
        rc = md_version(now.reg, op->a & 1 ? op->c : op->b, &version);
        MUST(rc == 0 || rc == MD_EINVAL);
        break;
    default:
        MUST(md_cancel(now.reg, now.member, op->c) == 0);
    }
}

/* Each call at least once, and what the next one does after a death. */
static void call_all(uint8_t flags) {
    static const struct op all[] = {
        {4, 0, 0, 0x100}, {5, 3, 9, 0x100}, {6, 2, 1, 0x100},  {6, 1, 12, 0x100}, {9, 1, 0, 0},
        {10, 0, 0, 0},    {14, 0, 401, 0},  {11, 0, 0, 0x100}, {12, 0, 0, 0},     {7, 2, 1, 0x100},
        {8, 0, 0, 0},     {0, 0x42, 1, 1},  {0, 0x81, 8, 1},   {0, 2, 40, 0x11},  {2, 1, 0, 0},
        {2, 0, 7, 0},     {4, 1, 1, 0x100}, {4, 1, 8, 0x100},  {15, 0, 0, 0},
    };
    static const struct op of_team[] = {
        {0x71, 2, 2, 0x100}, {0x72, 0, 13, 1}, {0x72, 0, 1, 1},  {0, 0x42, 2, 1}, {0, 0x42, 1, 1},
        {0x71, 2, 1, 0x100}, {2, 1, 0, 0},     {0x70, 0, 13, 0}, {0x72, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) call(&all[i]);
    if (md__is_elect(now.inside)) {
        for (size_t i = 0; i < sizeof of_team / sizeof *of_team; i++) call(&of_team[i]);
    }
    if (flags & 0x80) break_lock(0);
    const struct op check = {11, 0, 0, 0x100};
    call(&check);
    call_leave();
}

/* --- one execution ---------------------------------------------------------------------------- */

static void run(const uint8_t *data, size_t ops) {
    struct op op;
    for (size_t i = 0; i < ops; i++) {
        memcpy(&op, data + 1 + i * OP_SIZE, OP_SIZE);
        if (is_patch(&op))
            apply(&op);
        else
            call(&op);
    }
    call_all(data[0]);
}

/* All the way: what lies in the file is judged, mapped, used and let go. */
static void run_attached(const uint8_t *data, size_t ops) {
    struct op op;
    size_t before = 0;
    now.inside = NULL;
    now.base = now.made->mine;
    for (; before < ops; before++) {
        memcpy(&op, data + 1 + before * OP_SIZE, OP_SIZE);
        if (!is_patch(&op)) break;
        apply(&op);
    }
    if (now.length) made_truncate(now.made, now.length);
    int rc = md_attach(now.made->address, 0, &now.reg);
    MAY(rc, "md_attach", MD_ENOENT, MD_EDIED, MD_ECLOSED, MD_EFORMAT, MD_EVERSION, MD_EBOOT,
        MD_ENAMESPACE, MD_EOWNER, MD_EDAMAGED, MD_ESYS);
    if (rc == 0) {
        MUST(md__enter(now.reg, &now.inside) == 0);
        md__exit(now.inside);
        static uint8_t rest[1 + MAX_OPS * OP_SIZE];
        rest[0] = data[0];
        size_t left = 0;
        for (; before < ops; before++) { /* the file is not ours to spoil any more */
            memcpy(&op, data + 1 + before * OP_SIZE, OP_SIZE);
            if (!is_patch(&op)) memcpy(rest + 1 + left++ * OP_SIZE, &op, OP_SIZE);
        }
        now.base = now.inside->base;
        run(rest, left);
        MUST(md_close(now.reg) == 0);
    }
    made_restore_file(now.made);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    made_all();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    size_t ops = (size - 1) / OP_SIZE;
    if (ops > MAX_OPS) ops = MAX_OPS;
    now.member = NOBODY;
    now.length = 0;
    memset(now.known, 0, sizeof now.known);
    bool attach = (data[0] >> 2 & 7) == 0;
    now.made = made_get(attach, data[0] & 3, (data[0] >> 5 & 3) == 3);
    if (attach) {
        run_attached(data, ops);
        return 0;
    }
    now.reg = now.made->attached;
    MUST(md__enter(now.reg, &now.inside) == 0);
    md__exit(now.inside);
    now.base = now.inside->base;
    run(data, ops);
    md__process_leave(now.inside);
    made_put_back(now.made, now.base);
    return 0;
}
