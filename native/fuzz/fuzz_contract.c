/* fuzz_contract.c - sequences of calls with any arguments: every answer is the one that a small
 * model gives, and md_check finds nothing at the end.
 *
 * Two registries, of which the second soon is full, or serves a team without a main member, or the
 * bridges of a host; members of both, the main one and workers; handles that are stale or were never given out; names and bodies of any bytes and any length up
 * to the limits and over them; buffers that are too small; a holder of the lock who dies;
 * registries that are closed, opened again and made anew.
 *
 * All of it is real but one thing: a registry that a sequence has not closed is put back to the
 * bytes it had when it was new, instead of being made again, which would take most of the time.
 * That the holder of the lock died is written into the lock's word, as the kernel does it.
 */
#include "../tests/own_folder.h"
#include "contract_model.h"

static struct registry made[MADE]; /* the last ones are a team's and a host's */
static struct registry *regs[REGISTRIES] = {&made[0], &made[1]};
static md_registry stale[4];
static uint32_t stale_count;
static bool may_make; /* registries take long to make: one input of sixteen may */

/* --- arguments -------------------------------------------------------------------------------- */

static md_registry draw_handle(const struct op *op) {
    struct registry *r = regs[op->a & 1];
    switch (op->a >> 1 & 7) {
    case 6:
        return stale[op->c & 3];
    case 7:
        return r->handle ^ (uint64_t)op->c >> 8 ^ (uint64_t)op->c << 32;
    default:
        return r->handle ? r->handle : stale[op->a & 3];
    }
}

static struct registry *registry_of(md_registry handle) {
    for (int i = 0; i < MADE; i++) {
        if (handle && made[i].handle == handle) return &made[i];
    }
    return NULL;
}

/* A member of this registry or of the other one, there or gone, or none at all. */
static uint64_t draw_member(const struct op *op) {
    const struct registry *r = regs[op->a & 1], *other = regs[~op->a & 1];
    switch (op->a >> 4 & 3) {
    case 0:
    case 1:
        if ((r->team || r->host) && r->member_count) return r->members[(op->c >> 5) % r->member_count].id;
        for (size_t i = r->member_count; i--;) {
            if (r->members[i].role == MD_MAIN) return r->members[i].id;
        }
        break;
    case 2:
        r = op->a & 0x80 ? other : r;
        if (r->member_count) return r->members[op->c % r->member_count].id;
        break;
    default:
        break;
    }
    return (uint64_t)op->c << 32 | op->b;
}

/* NULL, empty, usual, odd, the longest, too long. */
static const char *draw_name(const struct op *op, size_t *len) {
    static char odd[4];
    static const char *const usual[] = {"a", "b", "ns::op", "ns::op.out", "8letters", "9_letters"};
    uint32_t n = op->b % 16;
    if (n < 6) {
        const char *name = n == 0 && regs[op->a & 1]->host ? QUEUE : usual[n];
        *len = strlen(name);
        return name;
    }
    memcpy(odd, &op->c, 4);
    *len = n == 6    ? MD_MAX_NAME
           : n == 7  ? MD_MAX_NAME - op->c % 16
           : n == 8  ? (size_t)MD_MAX_NAME + 1
           : n == 9  ? SIZE_MAX - op->c % 3
           : n <= 11 ? 0
                     : 1 + n % 4;
    return n == 10 ? NULL : n >= 12 ? odd : text + 64;
}

static int32_t draw_key(const struct op *op) {
    uint32_t k = op->b >> 4 & 7;
    return k == 7 ? INT32_MIN : (int32_t)k - 1;
}

/* Of all that there are, and of some that there are not. */
static uint32_t draw_kind(uint32_t n) {
    static const uint32_t kinds[] = {0,           MD_LIBRARY,  MD_DEF,    MD_IMPL,
                                     MD_FALLBACK, MD_PYSTUB,   MD_NAME,   MD_CLAIM,
                                     MD_TORCH,    MD_STANDING, MD_PRIORITY, 15,
                                     MD_TYPE,     MD_NOTE,     MD_CHOICE, MD_KINDS};
    return kinds[n % 16];
}
static bool is_kind(uint32_t kind) {
    return kind && kind < MD_KINDS && kind != MD_CLAIM;
}

static size_t draw_length(uint32_t n, size_t most) {
    const size_t lengths[] = {0,  0,   1,    3,        7,    8,        9,  15,
                              16, 100, 1000, most - 1, most, most + 1, 40, 5000};
    size_t length = lengths[n % 16];
    return length > 5000 && n & 0x30 ? n & 0xff : length; /* the longest take the most time */
}

/* --- calls and what they should return -------------------------------------------------------- */

static int absent(struct registry *r, uint64_t member) {
    int rc;
    if (!r) return MD_ECLOSED;
    member_of(r, member, &rc);
    if (!rc && r->closed) rc = MD_ECLOSED;
    return rc == MD_ENOENT ? MD_EROLE : rc;
}

static int refused(struct registry *r, uint64_t member) {
    int rc = absent(r, member), unused;
    if (rc) return rc;
    return member_of(r, member, &unused)->role == MD_WORKER ? MD_EROLE : 0;
}

static int query_refused(const char *name, size_t len, uint32_t at_least) {
    if (!name || !len || !at_least) return MD_EINVAL;
    return len > MD_MAX_NAME ? MD_ETOOLONG : 0;
}

/* It can only be full when the arena's end is near. */
static void must_be_full(const struct registry *r, size_t name, size_t text_len) {
    md__reg *inside;
    uint32_t unused;
    MUST(md__enter(r->handle, &inside) == 0);
    uint64_t top = md__read64(&md__header(inside)->arena_top);
    uint64_t need = md__block_size(sizeof(struct md__node) + name + 7, &unused) +
                    md__block_size(sizeof(struct md__fact) + text_len + 7, &unused);
    MUST(top + need > r->capacity);
    md__exit(inside);
}

static void must_have_version(struct registry *r, size_t i) {
    size_t size;
    uint64_t version, node;
    struct name *n = &r->names[i];
    int rc = md_list(r->handle, n->text, n->len, pool, POOL, &size, &version, &node);
    MUST(rc == (size > POOL ? MD_ENOBUFS : 0));
    MUST(!node == !version);
    MUST(!node == !is_known(r, i));
    if (!node) return;
    struct place *p = place_of(r, node);
    uint64_t again;
    if (p->name == i && !p->changed)
        MUST(version == p->version);
    else
        MUST(version > p->version);
    MUST(md_version(r->handle, node, &again) == 0 && again == version);
    *p = (struct place){node, version, i, false};
}

/* A fact was registered, and this is its record. */
static void must_be_new(struct registry *r, struct fact fact, const char *record, size_t left) {
    int unused;
    md_record got;
    memcpy(&got, record, sizeof got);
    MUST(r->fact_count <= MAX_OPS);
    struct fact *f = &r->facts[r->fact_count++];
    *f = fact;
    f->ref = got.ref;
    f->seq = r->next_seq;
    f->interp = member_of(r, fact.member, &unused)->interp;
    f->live = true;
    for (size_t i = 0; i + 1 < r->fact_count; i++)
        MUST(!r->facts[i].live || r->facts[i].ref != f->ref);
    must_be_fact(r, f, record, left);
    changed(r, f->name, f->rule);
}

static void do_register(const struct op *op) {
    size_t len, cap = op->c & 0x400 ? POOL : draw_cap(op->c), others;
    const char *name = draw_name(op, &len);
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t member = draw_member(op);
    static const uint32_t rules[] = {MD_UNIQUE, MD_STACK, MD_UNIQUE | MD_RAISE_ALL,
                                     MD_STACK | MD_RAISE_ALL};
    uint32_t kind = draw_kind(op->b >> 12), body_at = op->c >> 24 & 63;
    uint32_t rule = op->b >> 10 & 3 ? rules[op->b >> 8 & 3] : op->c & 3 ? MD_STACK : op->c;
    size_t body_len = draw_length(op->c >> 12, MD_MAX_BODY);
    size_t where_len = draw_length(op->c >> 16, MD_MAX_WHERE);
    int32_t key = draw_key(op);
    bool no_body = op->c >> 30 == 1, no_where = op->c >> 30 == 2;

    int rc =
        md_register(handle, member, kind, rule, key, name, len, no_body ? NULL : text + body_at,
                    body_len, no_where ? NULL : text, where_len, room(cap), cap);

    uint32_t base = rule & ~(uint32_t)MD_RAISE_ALL;
    int should = query_refused(name, len, 1);
    if (!should && ((no_body && body_len) || (no_where && where_len) || !is_kind(kind) ||
                    (base != MD_UNIQUE && base != MD_STACK)))
        should = MD_EINVAL;
    if (!should && (body_len > MD_MAX_BODY || where_len > MD_MAX_WHERE)) should = MD_ETOOLONG;
    if (!should) should = is_anyones(kind) ? absent(r, member) : refused(r, member);
    if (!should && !is_anyones(kind)) should = may_change_there(r, member, name, len, false);
    if (should) {
        MUST(rc == should);
        return;
    }
    size_t at = name_of(r, name, len);
    struct fact *twin = NULL;
    if (rule & MD_UNIQUE)
        twin = newest_of(r, is_own(kind) ? member : ANYBODY, kind, key, name, len, &others);
    if (rc == MD_EFULL) {
        MUST(!twin);
        must_be_full(r, len, body_len + where_len);
        must_have_version(r, at);
        return;
    }
    size_t size = twin ? size_of(r, twin) : packed(len, body_len, where_len);
    MUST(rc == (size > cap ? MD_ENOBUFS : twin ? MD_EEXIST : 0));
    if (rc == MD_ENOBUFS && cap >= 8) MUST(memcmp(room(cap), &size, 8) == 0);
    if (rc == MD_EEXIST) must_be_fact(r, twin, room(cap), cap);
    if (rc) {
        must_have_version(r, at);
        return;
    }
    must_be_new(r,
                (struct fact){.member = member,
                              .name = at,
                              .body_len = body_len,
                              .where_len = where_len,
                              .kind = kind,
                              .rule = rule,
                              .body_at = body_at,
                              .key = key},
                room(cap), cap);
}

static void do_strike(const struct op *op) {
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle), *from = regs[op->c >> 31 ? ~op->a & 1 : op->a & 1];
    uint64_t member = draw_member(op), ref = op->c, seq = op->b;
    if (op->b & 0xfff && from->fact_count) {
        ref = from->facts[op->b % from->fact_count].ref + (op->b >> 13 == 7);
        seq = from->facts[op->b % from->fact_count].seq + (op->b >> 13 == 6);
    }
    int rc = md_strike(handle, member, ref, seq), should = absent(r, member);
    if (should) {
        MUST(rc == should);
        return;
    }
    struct fact *f = NULL;
    for (size_t i = 0; !f && i < r->fact_count; i++) {
        struct fact *each = &r->facts[i];
        if (each->live && each->ref == ref && each->seq == seq) f = each;
    }
    if (f && is_anyones(f->kind)) {
        should = is_own(f->kind) && f->member != member ? MD_EROLE : 0;
    } else {
        should = refused(r, member);
        if (!should) should = !f ? MD_ENOENT : f->kind == MD_CLAIM ? MD_EROLE : 0;
    }
    if (!should && !is_anyones(f->kind)) {
        const struct name *n = &r->names[f->name];
        should = may_change_there(r, member, n->text, n->len, true);
    }
    MUST(rc == should);
    if (!rc) strike(r, f);
}

static void must_be_found(struct registry *r, int rc, int refusal, uint32_t at_least, int otherwise,
                          uint32_t kind, int32_t key, const char *name, size_t len, size_t cap) {
    size_t count;
    struct fact *f = refusal ? NULL : newest(r, kind, key, name, len, &count);
    if (!refusal && (!f || count < at_least)) refusal = otherwise;
    if (!refusal && size_of(r, f) > cap) refusal = MD_ENOBUFS;
    MUST(rc == refusal);
    if (!rc) must_be_fact(r, f, room(cap), cap);
}

static void do_find(const struct op *op) {
    size_t len, cap = draw_cap(op->c);
    const char *name = draw_name(op, &len);
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint32_t kind = draw_kind(op->b >> 12);
    int rc = md_find(handle, kind, draw_key(op), name, len, room(cap), cap);
    int should = query_refused(name, len, 1);
    if (!should && !r) should = MD_ECLOSED;
    must_be_found(r, rc, should, 1, MD_ENOENT, kind, draw_key(op), name, len, cap);
}

static void await(const struct op *op, bool or_elect) {
    size_t len, cap = draw_cap(op->c);
    const char *name = draw_name(op, &len);
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t member = draw_member(op);
    uint32_t kind = draw_kind(op->b >> 12), at_least = op->b >> 8 & 3;
    int64_t deadline = op->a & 0x40 ? 0 : op->c & 0x800 ? INT64_MIN : md_now() - 1;
    md_wait_stats stats = {0};
    int rc = (or_elect ? md_await_or_elect : md_await)(handle, member, kind, draw_key(op), at_least,
                                                       name, len, deadline, op->c, room(cap), cap,
                                                       &stats);
    int should = query_refused(name, len, at_least);
    if (!should && deadline < 0) should = MD_EINVAL;
    if (!should && !r) should = MD_ECLOSED;
    if (!should) member_of(r, member, &should);
    if (!should && r->closed) should = MD_ECLOSED;
    bool elected = or_elect && !should && !may_change(r, member, name, len, false);
    must_be_found(r, rc, should, at_least, elected ? MD_EELECTED : MD_ETIMEDOUT, kind, draw_key(op),
                  name, len, cap);
    MUST(!stats.sleeps && !stats.slept_ns);
}

static void do_await(const struct op *op) {
    await(op, op->c & 0x1000);
}

static void do_await_change(const struct op *op) {
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t member = draw_member(op), seq = op->c & 1 && r ? r->next_seq : op->b, now = 0;
    md_wait_stats stats = {0};
    int rc = md_await_change(handle, member, seq, 0, 1, &now, &stats);
    int should = MD_ECLOSED;
    if (r) member_of(r, member, &should);
    if (!should && r->closed) should = MD_ECLOSED;
    if (!should && seq == r->next_seq) should = MD_ETIMEDOUT;
    MUST(rc == should && now == (rc ? seq : r->next_seq));
}

static void do_list(const struct op *op) {
    size_t len, cap = draw_cap(op->c), size = 1, should = 0, n = 0;
    const char *name = draw_name(op, &len);
    if (len > TEXT - 64) return; /* no promise is made for a length that is a lie */
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t version = 1, node = 1;
    int rc = md_list(handle, name, len, room(cap), cap, &size, &version, &node);
    for (size_t i = 0; r && i < r->fact_count; i++) {
        struct fact *f = &r->facts[i];
        const struct name *of = &r->names[f->name];
        if (!f->live || (name && (of->len != len || memcmp(of->text, name, len)))) continue;
        should += size_of(r, f);
        n++;
    }
    MUST(rc == (!r ? MD_ECLOSED : should > cap ? MD_ENOBUFS : 0) && size == should);
    if (!rc) must_be_facts(r, room(cap), size, n);
    if (!rc && name && len && len <= MD_MAX_NAME) must_have_version(r, name_of(r, name, len));
}

static void do_list_since(const struct op *op) {
    size_t cap = draw_cap(op->c), size = 1, should = 0, n = 0;
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t live = 1, since = op->b >> 3 & 31, there = 0;
    uint32_t kind = draw_kind((op->b & 7) | (op->b >> 8 & 8));
    int rc = md_list_since(handle, kind, since, room(cap), cap, &size, &live);
    for (size_t i = 0; r && i < r->fact_count; i++) {
        struct fact *f = &r->facts[i];
        if (!f->live || (kind && f->kind != kind)) continue;
        there++;
        if (f->seq < since) continue;
        should += size_of(r, f);
        n++;
    }
    MUST(rc == (!r ? MD_ECLOSED : should > cap ? MD_ENOBUFS : 0));
    MUST(size == should && live == there);
    if (!rc) must_be_facts(r, room(cap), size, n);
}

#include "contract_lives.h"
#include "contract_team.h"

static void call(const struct op *op) {
    static void (*const calls[])(const struct op *) = {
        do_register, do_register,     do_register, do_register, do_register, do_strike,
        do_strike,   do_strike,       do_find,     do_await,    do_list,     do_list_since,
        do_find,     do_await_change, do_members,  do_stat,     do_check,    do_join,
        do_join,     do_leave,        do_close,    do_attach,   do_address,  do_cancel,
        do_die,      do_die,          do_version,  do_odd,
    };
    if ((op->what & 0xe0) == 0xe0)
        call_of_team(op);
    else
        calls[op->what % (sizeof calls / sizeof *calls)](op);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    for (size_t i = 0; i < TEXT; i++) text[i] = (char)(i * 7 + i / 256);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct op op;
    if (size < 1) return 0;
    size_t ops = (size - 1) / OP_SIZE;
    may_make = md__hash((const char *)data, size) % 16 == 0; /* whatever the fuzzer prefers */
    regs[1] = &made[(data[0] & 12) == 12 ? TEAM : (data[0] & 12) == 4 ? HOST : 1];
    for (int i = 0; i < REGISTRIES; i++) begin(regs[i], (int)(regs[i] - made));
    /* Most programs should begin where something can happen. */
    const struct op join_main[] = {{0, 0, 0, 0}, {0, 1, 0, 0}};
    if (!(data[0] & 1)) do_join(&join_main[0]);
    if (!(data[0] & 2)) do_join(&join_main[1]);
    const struct op queue_up = {0, 1, 0, 0x400};
    if (regs[1]->host && !(data[0] & 16)) do_claim(&queue_up);
    for (size_t i = 0; i < ops && i < MAX_OPS - 2; i++) {
        memcpy(&op, data + 1 + i * OP_SIZE, OP_SIZE);
        call(&op);
    }
    for (int i = 0; i < REGISTRIES; i++) end(regs[i]);
    return 0;
}
