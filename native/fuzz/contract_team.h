/* contract_team.h - the calls of fuzz_contract.c by which members share out whose turn it is.
 */
#ifndef MD_FUZZ_CONTRACT_TEAM_H
#define MD_FUZZ_CONTRACT_TEAM_H

/* Most names up to their "::", as claims have them. */
static const char *draw_space(const struct op *op, size_t *len) {
    const char *name = draw_name(op, len);
    if (name && *len <= MD_MAX_NAME && op->c & 0x7000) *len = space_of(name, *len);
    return name;
}

static int space_refused(const char *name, size_t len) {
    int rc = query_refused(name, len, 1);
    return rc ? rc : space_of(name, len) == len ? 0 : MD_EINVAL;
}

/* Only a bridge stands in the queue of bridges. */
static int claim_refused(struct registry *r, uint64_t member, const char *name, size_t len) {
    int rc = absent(r, member), unused;
    if (rc || !r->host || len != strlen(QUEUE) || memcmp(name, QUEUE, len)) return rc;
    return member_of(r, member, &unused)->role == MD_BRIDGE ? 0 : MD_EROLE;
}

static struct fact *claim_of(struct registry *r, uint64_t member, const char *name, size_t len) {
    for (size_t i = 0; i < r->fact_count; i++) {
        struct fact *f = &r->facts[i];
        const struct name *n = &r->names[f->name];
        if (f->live && f->kind == MD_CLAIM && f->member == member && n->len == len &&
            memcmp(n->text, name, len) == 0)
            return f;
    }
    return NULL;
}

/* The member has a claim now; what was told is the registrar's, so its own is looked up. */
static void must_be_queued(struct registry *r, uint64_t member, size_t at, size_t where_len) {
    static char own[sizeof(md_record) + MD_MAX_NAME + MD_MAX_WHERE + 8];
    size_t size;
    uint64_t live;
    MUST(md_list_since(r->handle, MD_CLAIM, r->next_seq, own, sizeof own, &size, &live) == 0);
    MUST(size);
    must_be_new(r,
                (struct fact){.member = member,
                              .name = at,
                              .where_len = where_len,
                              .kind = MD_CLAIM,
                              .rule = MD_STACK},
                own, size);
}

static void do_claim(const struct op *op) {
    size_t len, claims, cap = op->c & 0x400 ? POOL : draw_cap(op->c);
    const char *name = draw_space(op, &len);
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t member = draw_member(op);
    size_t where_len = draw_length(op->c >> 16, MD_MAX_WHERE);
    bool no_where = op->c >> 30 == 2;
    int rc = md_claim(handle, member, name, len, no_where ? NULL : text, where_len, room(cap), cap);

    int should = space_refused(name, len);
    if (!should && no_where && where_len) should = MD_EINVAL;
    if (!should && where_len > MD_MAX_WHERE) should = MD_ETOOLONG;
    if (!should) should = claim_refused(r, member, name, len);
    if (should) {
        MUST(rc == should);
        return;
    }
    struct fact *first = registrar_of(r, name, len, &claims);
    if (first && size_of(r, first) > cap) {
        MUST(rc == MD_ENOBUFS);
        return;
    }
    if (!claim_of(r, member, name, len)) {
        size_t at = name_of(r, name, len);
        if (rc == MD_EFULL) {
            must_be_full(r, len, where_len);
            must_have_version(r, at);
            return;
        }
        if (packed(len, 0, where_len) > cap) {
            MUST(rc == MD_ENOBUFS);
            must_have_version(r, at);
            return;
        }
        must_be_queued(r, member, at, where_len);
        first = registrar_of(r, name, len, &claims);
    }
    MUST(rc == (first->member == member ? 0 : MD_EEXIST));
    must_be_fact(r, first, room(cap), cap);
}

static void do_release(const struct op *op) {
    size_t len;
    const char *name = draw_space(op, &len);
    md_registry handle = draw_handle(op);
    struct registry *r = registry_of(handle);
    uint64_t member = draw_member(op);
    int rc = md_release(handle, member, name, len), should = space_refused(name, len);
    if (!should) should = absent(r, member);
    struct fact *own = should ? NULL : claim_of(r, member, name, len);
    MUST(rc == (should ? should : own ? 0 : MD_ENOENT));
    uint32_t rules = 0;
    if (own) end_claim(r, own, &rules);
    struck(r, rules);
}

static void do_await_or_elect(const struct op *op) {
    await(op, true);
}

static void call_of_team(const struct op *op) {
    static void (*const calls[])(const struct op *) = {do_claim, do_claim, do_release,
                                                       do_await_or_elect};
    calls[op->what % 4](op);
}

#endif
