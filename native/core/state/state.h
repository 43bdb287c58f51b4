/* state.h - the contents of a region: facts, claims, members, leases, and the check of all of it.
 *
 * Callers hold the region's lock when they call a function of this layer that changes the region.
 * Only recover.c takes that lock, since a process that takes it from a dead holder must first
 * repair the region.
 */
#ifndef MD_STATE_H
#define MD_STATE_H

#include "../store/store.h"

static inline bool md__has_main(const md__reg *reg) {
    return md__header(reg)->policy == MD_POLICY_MAIN;
}
static inline bool md__is_elect(const md__reg *reg) {
    return md__header(reg)->policy == MD_POLICY_ELECT;
}
/* The registry of a host of a cluster, and the queue of its bridges: see Note [Claims] in claims.c. */
#define MD__BRIDGES "mdispatch.bridge"
enum { MD__BRIDGES_LEN = sizeof MD__BRIDGES - 1 };
static inline bool md__is_host(const md__reg *reg) {
    return md__header(reg)->policy == MD_POLICY_BRIDGE;
}

/* What a reader looks for. */
struct md__query {
    const char *name;
    size_t name_len;
    uint32_t hash;
    uint32_t kind;
    int32_t key;
    uint32_t at_least;
};
static inline int md__query_make(struct md__query *q, uint32_t kind, int32_t key, uint32_t at_least,
                                 const char *name, size_t len) {
    if (!name || len == 0 || at_least == 0) return MD_EINVAL;
    if (len > MD_MAX_NAME) return MD_ETOOLONG;
    *q = (struct md__query){name, len, md__hash(name, len), kind, key, at_least};
    return 0;
}
/* Whether any member may register facts of a kind. */
static inline bool md__is_anyones(uint32_t kind) {
    return kind >= MD_ANY_MEMBER;
}
/* Whether they are that member's own, and go with it. */
static inline bool md__is_own(uint32_t kind) {
    return md__is_anyones(kind) && kind < MD_AGREED;
}
static inline bool md__matches(const struct md__fact *f, uint32_t kind, int32_t key) {
    return md__peek32(&f->kind) == kind && md__peek32(&f->key) == (uint32_t)key;
}

/* A buffer for packed records. `used` counts on when no more records fit. */
struct md__sink {
    char *buf;
    size_t cap;
    size_t used;
};

/* The texts of a fact to register. */
struct md__text {
    const char *body;
    size_t body_len;
    const char *where;
    size_t where_len;
};

/* Members that are gone: one, or with `member` MD__NOBODY all members of some process slots. */
#define MD__NOBODY UINT64_MAX
struct md__gone {
    uint64_t member;
    uint64_t processes[MD_MAX_PROCESSES / 64]; /* a bit each */
};
static inline bool md__is_gone(const struct md__gone *gone, uint32_t process) {
    return process < MD_MAX_PROCESSES && gone->processes[process / 64] >> process % 64 & 1;
}

/* chain.c */
enum { MD__TRIES = 64 }; /* without the lock, before a reader takes it */
int md__pack(const md__reg *reg, const struct md__node *node, struct md__fact *f,
             struct md__sink *out);
struct md__fact *md__older_at(const md__reg *reg, uint32_t ref, uint64_t *seq);
int md__commit(md__reg *reg, struct md__member *m, uint64_t member, const struct md__query *q,
               uint32_t rule, const struct md__text *t, struct md__sink *out);
struct md__node *md__node_of(const md__reg *reg, uint64_t ref, uint64_t seq,
                             struct md__fact **fact);
int md__strike(md__reg *reg, uint64_t ref, uint64_t seq);
void md__strike_own(md__reg *reg, const struct md__gone *gone);
typedef bool md__choice(const md__reg *reg, const struct md__fact *f, const void *arg);
typedef bool md__name_choice(const md__reg *reg, const struct md__node *node, const void *arg);
int md__strike_many(md__reg *reg, md__name_choice *is_name, md__choice *is_one, const void *arg,
                    uint64_t *struck);
void md__strike_all_of(md__reg *reg, uint64_t member);

/* lease.c */
int md__on_main_thread(void);
md__u32 *md__lease_word(struct md__process *p);
int md__lease_is_dead(struct md__process *p);
md__u32 *md__lease_of(const md__reg *reg, uint64_t member);
int md__take_lease(md__reg *reg, struct md__process *p);
bool md__drop_lease(md__reg *reg, struct md__process *p);
extern md__u64 md__parked;
void md__unpark(void);
void md__forget_parked(void);

/* One wait under way in this process, on its thread's stack. It knows the pointer that points to
 * it, so it leaves the list in one step: when thousands are woken at once, a thread that walked the
 * list would hold up the others. */
struct md__wait {
    struct md__wait *next;  /* under waits_lock, like `link` */
    struct md__wait **link; /* the list's head, or the `next` of the one before */
    uint64_t member;
    uint64_t ticket;
    md__u32 *event;
    md__u32 cancelled; /* set once, by md_cancel */
};

/* crowd.c */
void md__crowd_enter(md__reg *reg, struct md__wait *wait);
void md__crowd_leave(md__reg *reg, struct md__wait *wait);
int64_t md__slice(const md__reg *reg);
void md__disturb(md__reg *reg, uint64_t member, uint64_t ticket, int cancel);
void md__disturb_all(md__reg *reg);
void md__event_ring_all(md__reg *reg);

/* The claims on a namespace: how many there are, the oldest, and its member. */
struct md__queue {
    uint64_t registrar;
    struct md__fact *first;
    uint32_t claims;
};

/* claims.c */
size_t md__space_len(const char *name, size_t len);
int md__queue_once(const md__reg *reg, const char *name, size_t len, struct md__queue *q);
int md__queue_now(md__reg *reg, const char *name, size_t len, struct md__queue *q);
int md__end_claim(md__reg *reg, const struct md__fact *claim, const char *name, size_t len);
void md__end_claims(md__reg *reg, const struct md__gone *gone);

/* members.c */
int md__process_join(md__reg *reg);
void md__free_member(struct md__member *m);
void md__free_members(md__reg *reg, const struct md__gone *gone);
void md__close_registry(md__reg *reg);
int md__is_anyone_here(md__reg *reg);
void md__sweep(md__reg *reg);
int md__member_check(const md__reg *reg, uint64_t member, struct md__member **out);
int md__region_served(md__reg *reg);

/* check.c: under the lock; writes lines, returns how many invariants are broken */
int md__check(md__reg *reg, char *buf, size_t cap);

/* recover.c */
int md__rebuild(md__reg *reg);
int md__lock(md__reg *reg);
int md__lock_to_leave(md__reg *reg);
void md__unlock(md__reg *reg);
void md__mend(md__reg *reg);

#endif
