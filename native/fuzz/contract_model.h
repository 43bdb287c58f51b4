/* contract_model.h - what fuzz_contract.c believes of a registry: who is a member, which facts are
 * live, which names have changed since they were listed, whose turn it is in a team or at a host.
 * Nothing of it is read from the region.
 */
#ifndef MD_FUZZ_CONTRACT_MODEL_H
#define MD_FUZZ_CONTRACT_MODEL_H

#include <linux/futex.h>
#include <unistd.h>

#include "ops.h"

enum { REGISTRIES = 2, MADE = 4, TEAM = 2, HOST = 3, TEXT = MD_MAX_BODY + 256 };

static const char QUEUE[] = "mdispatch.bridge"; /* in which the bridges of a host stand */

struct name {
    char text[MD_MAX_NAME + 1];
    size_t len;
};

/* Where a list found a name, and at which version. The place may serve another name by now. */
struct place {
    uint64_t node, version;
    size_t name;
    bool changed; /* a change concerned that name since then */
};

struct fact {
    uint64_t ref, seq, member;
    int64_t interp;
    size_t name, body_len, where_len;
    uint32_t kind, rule, body_at;
    int32_t key;
    bool live;
};

struct membership {
    uint64_t id;
    int64_t interp;
    uint32_t role;
    bool live;
};

struct registry {
    md_registry handle; /* 0: closed for good */
    uint64_t capacity;
    char address[MD_MAX_ADDRESS];
    int openings;
    bool team;   /* one of md_elect() */
    bool host;   /* one of md_bridge() */
    bool closed; /* its main member left */
    bool had_main;
    uint64_t next_seq, recoveries;
    struct name names[MAX_OPS + 1];
    struct fact facts[MAX_OPS + 1];
    struct membership members[MAX_OPS + 1];
    struct place places[MAX_OPS + 1];
    size_t name_count, fact_count, member_count, place_count;
    char *fresh; /* its bytes when it was new */
};

static char text[TEXT]; /* all bodies and places are pieces of it */

static inline struct membership *member_of(struct registry *r, uint64_t id, int *rc) {
    *rc = (uint32_t)id >= MD_MAX_MEMBERS ? MD_ENOENT : MD_ECLOSED;
    for (size_t i = 0; i < r->member_count; i++) {
        if (r->members[i].live && r->members[i].id == id) {
            *rc = 0;
            return &r->members[i];
        }
    }
    return NULL;
}

static inline size_t live_members(const struct registry *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->member_count; i++) n += r->members[i].live;
    return n;
}

/* The place of a name in the model, made when it is new. */
static inline size_t name_of(struct registry *r, const char *name, size_t len) {
    size_t i = 0;
    while (i < r->name_count && (r->names[i].len != len || memcmp(r->names[i].text, name, len)))
        i++;
    if (i == r->name_count) {
        MUST(i <= MAX_OPS);
        memcpy(r->names[i].text, name, len);
        r->names[i].len = len;
        r->name_count++;
    }
    return i;
}

static inline bool is_known(const struct registry *r, size_t name) {
    for (size_t i = 0; i < r->fact_count; i++)
        if (r->facts[i].live && r->facts[i].name == name) return true;
    return false;
}

static inline struct place *place_of(struct registry *r, uint64_t node) {
    size_t i = 0;
    while (i < r->place_count && r->places[i].node != node) i++;
    if (i == r->place_count) {
        MUST(i <= MAX_OPS);
        r->places[r->place_count++] = (struct place){.node = node, .name = SIZE_MAX};
    }
    return &r->places[i];
}

/* Kinds of facts that any member registers, and those of them that are the member's own. */
static inline bool is_anyones(uint32_t kind) {
    return kind >= MD_ANY_MEMBER;
}
static inline bool is_own(uint32_t kind) {
    return is_anyones(kind) && kind < MD_AGREED;
}

static const uint64_t ANYBODY = UINT64_MAX; /* no member has this number */

/* The newest live fact, and how many there are: of one member, or of anybody. */
static inline struct fact *newest_of(struct registry *r, uint64_t member, uint32_t kind,
                                     int32_t key, const char *name, size_t len, size_t *count) {
    struct fact *found = NULL;
    *count = 0;
    for (size_t i = r->fact_count; i--;) {
        struct fact *f = &r->facts[i];
        const struct name *n = &r->names[f->name];
        if (!f->live || f->kind != kind || f->key != key || n->len != len ||
            memcmp(n->text, name, len) || (member != ANYBODY && f->member != member))
            continue;
        if (!found) found = f;
        ++*count;
    }
    return found;
}
static inline struct fact *newest(struct registry *r, uint32_t kind, int32_t key, const char *name,
                                  size_t len, size_t *count) {
    return newest_of(r, ANYBODY, kind, key, name, len, count);
}

static inline size_t packed(size_t name, size_t body, size_t where) {
    return (sizeof(md_record) + name + body + where + 7) & ~(size_t)7;
}
static inline size_t size_of(const struct registry *r, const struct fact *f) {
    return packed(r->names[f->name].len, f->body_len, f->where_len);
}

static inline void must_be_fact(const struct registry *r, const struct fact *f, const char *at,
                                size_t left) {
    md_record got;
    const struct name *n = &r->names[f->name];
    must_be_record(at, left, &got);
    MUST(got.seq == f->seq && got.ref == f->ref && got.interp == f->interp);
    MUST(got.pid == (uint32_t)getpid() && got.kind == f->kind && got.key == f->key);
    MUST(got.name_len == n->len && got.body_len == f->body_len && got.where_len == f->where_len);
    at += sizeof got;
    MUST(memcmp(at, n->text, n->len) == 0);
    MUST(memcmp(at + n->len, text + f->body_at, f->body_len) == 0);
    MUST(memcmp(at + n->len + f->body_len, text, f->where_len) == 0);
}

/* All records of a list are live facts, as many as should be, those of a name oldest first. */
static inline void must_be_facts(const struct registry *r, const char *at, size_t size,
                                 size_t should) {
    md_record got, before = {0};
    size_t n = 0;
    size_t name = SIZE_MAX;
    for (size_t done = 0; done < size; done += got.size, n++) {
        must_be_record(at + done, size - done, &got);
        size_t i = 0;
        while (i < r->fact_count && (!r->facts[i].live || r->facts[i].seq != got.seq)) i++;
        MUST(i < r->fact_count);
        must_be_fact(r, &r->facts[i], at + done, size - done);
        MUST(r->facts[i].name != name || got.seq > before.seq);
        name = r->facts[i].name;
        before = got;
    }
    MUST(n == should);
}

/* --- teams and hosts ------------------------------------------------------------------------------------ */

/* How much of a name is its namespace. */
static inline size_t space_of(const char *name, size_t len) {
    const char *end = memmem(name, len, "::", 2);
    return end ? (size_t)(end - name) : len;
}

/* The oldest claim on the namespace that a name is in, and how many there are. */
static inline struct fact *registrar_of(struct registry *r, const char *name, size_t len,
                                        size_t *count) {
    struct fact *first = NULL;
    size_t space = space_of(name, len);
    *count = 0;
    for (size_t i = r->fact_count; i--;) {
        struct fact *f = &r->facts[i];
        const struct name *n = &r->names[f->name];
        if (!f->live || f->kind != MD_CLAIM || n->len != space || memcmp(n->text, name, space))
            continue;
        first = f;
        ++*count;
    }
    return first;
}

/* 0 or MD_EROLE. */
static inline int may_change(struct registry *r, uint64_t member, const char *name, size_t len,
                             bool alone) {
    size_t claims;
    const struct fact *first = registrar_of(r, name, len, &claims);
    return first && first->member == member && (!alone || claims == 1) ? 0 : MD_EROLE;
}

/* The same for who has the role for it: where there is a main member, it may. */
static inline int may_change_there(struct registry *r, uint64_t member, const char *name,
                                   size_t len, bool alone) {
    if (r->host) return may_change(r, member, QUEUE, strlen(QUEUE), false);
    return r->team ? may_change(r, member, name, len, alone) : 0;
}

static inline void all_changed(struct registry *r) {
    for (size_t i = 0; i < r->place_count; i++) r->places[i].changed = true;
}

/* A change: the sequence goes on, and the versions of those whom it concerns. */
static inline void changed(struct registry *r, size_t name, uint32_t rule) {
    r->next_seq++;
    for (size_t i = 0; i < r->place_count; i++) r->places[i].changed |= r->places[i].name == name;
    if (rule & MD_RAISE_ALL) all_changed(r);
}

static inline void strike(struct registry *r, struct fact *f) {
    f->live = false;
    changed(r, f->name, f->rule);
}

/* One of several that are struck at once: `rules` says whom else it concerns. */
static inline void strike_one(struct registry *r, struct fact *f, uint32_t *rules) {
    f->live = false;
    *rules |= f->rule;
    changed(r, f->name, f->rule & ~(uint32_t)MD_RAISE_ALL);
}

/* After all of them: all names are raised once, if any rule asks for it. */
static inline void struck(struct registry *r, uint32_t rules) {
    if (rules & MD_RAISE_ALL) all_changed(r);
}

/* In a team, the last claim takes along what is registered in its namespace. */
static inline void end_claim(struct registry *r, struct fact *claim, uint32_t *rules) {
    const struct name *space = &r->names[claim->name];
    size_t claims;
    registrar_of(r, space->text, space->len, &claims);
    for (size_t i = 0; r->team && claims == 1 && i < r->fact_count; i++) {
        struct fact *f = &r->facts[i];
        const struct name *n = &r->names[f->name];
        if (f->live && f->kind != MD_CLAIM && !is_anyones(f->kind) &&
            space_of(n->text, n->len) == space->len &&
            memcmp(n->text, space->text, space->len) == 0)
            strike_one(r, f, rules);
    }
    strike_one(r, claim, rules);
}

static inline void forget(struct registry *r) {
    r->openings = 1;
    r->closed = r->had_main = false;
    r->next_seq = 1;
    r->recoveries = 0;
    r->name_count = r->fact_count = r->member_count = r->place_count = 0;
}

#endif
