/* internal.h - what the files of core/ know of each other. Nothing outside includes it.
 *
 * A `md__reg` is this process's side of one open region. Locking: `md__process_lock` guards the
 * table of open regions and is held for the time of an open or a close, never while waiting;
 * `waits_lock` guards the list of this process's sleepers. The region's own mutex is taken after
 * either of them, never before.
 */
#ifndef MD_CORE_INTERNAL_H
#define MD_CORE_INTERNAL_H

#include "fault.h"
#include "layout.h"

/* One wait under way in this process, on its thread's stack. It knows what points to it, so that it
 * leaves the list in one step: when thousands are woken at once, each that walked the list would hold
 * up the others. */
struct md__wait {
    struct md__wait *next;  /* under waits_lock, as the next one */
    struct md__wait **link; /* the list's head, or the `next` of the one before */
    uint64_t member;
    uint64_t ticket;
    md__u32 *event;
    md__u32 cancelled; /* set once, by md_cancel */
};

typedef struct md__reg {
    md__u64
        refs; /* generation << 32 | openings << 16 | calls under way; 0 below: nothing is mapped */
    char *base;
    uint64_t mapped;
    md__u64 backed; /* as far as is known; the file only grows. See md__top */
    int fd;
    uint32_t process; /* our process slot, MD__NO_SLOT when we are none (yet) */
    uint32_t process_generation;
    int creator;    /* this process made the region */
    md__u32 forked; /* atomic, any thread: perhaps into another PID namespace, see md__lock */
    int parked; /* the lease could not be released: the mapping stays for the life of the process */
    md__u64 held; /* atomic: a struct md_held *, see Note [Holds] in hold.c */
    struct md__lease_thread *lease_thread;
    char address[MD_MAX_ADDRESS];
    pthread_mutex_t waits_lock;
    struct md__wait *waits; /* under waits_lock, as `paced` */
    md__u32 waiting;        /* atomic, written under waits_lock: how many there are */
    uint32_t paced;         /* no slice under way was chosen for more than so many */
} md__reg;

#define MD__NO_SLOT UINT32_MAX

/* process.c: handles */
int md__enter(md_registry handle, md__reg **out);
void md__exit(md__reg *reg);
int md__is_closed(
    const md__reg *reg); /* while calls are under way: the last opening was given back */

/* names.c. How the address of a named registry begins, in the table of this process and, where there is
 * no main member, for others. */
#define MD__SHM "shm:"
#define MD__ELECT "elect:"
const char *md__name_in(const char *address);
bool md__is_name(const char *name);
bool md__is_fd_address(const char *rest, int *pid, int *number, char uuid[33]);
void md__file_path(char *path, size_t cap, const char *name);
int md__open_folder(int *fd);
int md__lock_folder(int folder, bool heed_signals);
int md__open_status(int err);
int md__open_file(int folder, const char *path, int flags, int *fd);
bool md__is_own(const char *path, int fd);

/* region.c */
int md__region_create(md__reg *reg, const char *name, uint64_t capacity, uint32_t policy);
int md__region_attach(md__reg *reg, const char *address, int64_t deadline_ns);
void md__region_unmap(md__reg *reg);
void md__region_unlink(md__reg *reg);
int md__region_is_named(const md__reg *reg);
int md__region_served(md__reg *reg);
int md__region_grow(md__reg *reg, uint64_t need_top);
int md__pid_space(uint64_t *id);
uint64_t md__region_top(md__reg *reg, uint64_t top);
int md__sys(void);

static inline struct md__header *md__header(const md__reg *reg) {
    return (struct md__header *)reg->base;
}
static inline struct md__event *md__event(const md__reg *reg, uint32_t hash) {
    return (struct md__event *)(reg->base + MD__EVENTS_AT) + hash % MD__EVENTS;
}
static inline struct md__process *md__process(const md__reg *reg, uint32_t i) {
    return (struct md__process *)(reg->base + MD__PROCESSES_AT) + i;
}
static inline struct md__member *md__member(const md__reg *reg, uint32_t i) {
    return (struct md__member *)(reg->base + MD__MEMBERS_AT) + i;
}

/* Where the arena ends; 0 when that cannot be true: all before it is backed by memory, whatever
 * somebody wrote into the header. */
static inline uint64_t md__top(const md__reg *reg) {
    uint64_t top = md__read64(&md__header(reg)->arena_top);
    return top <= md__peek64(&reg->backed) ? top : md__region_top((md__reg *)reg, top);
}

/* The block at a ref, when that can be one of at least `size` bytes: nothing read from a region is
 * trusted. */
static inline void *md__at(const md__reg *reg, uint32_t ref, uint64_t size) {
    uint64_t at = (uint64_t)ref * 8;
    uint64_t top = md__top(reg);
    if (at < MD__ARENA_AT || size > top || at > top - size) return NULL;
    return reg->base + at;
}
/* Whether a walk over the arena can go on by the size it found. */
static inline bool md__is_step(uint32_t size, uint64_t left) {
    return size >= 64 && size % 16 == 0 && size <= left;
}
/* The block that md__alloc has just given out. */
static inline void *md__fresh(const md__reg *reg, uint32_t ref) {
    return reg->base + (uint64_t)ref * 8;
}
static inline uint32_t md__ref(const md__reg *reg, const void *p) {
    return (uint32_t)((uint64_t)((const char *)p - reg->base) / 8);
}

/* mutex.c */
int md__mutex_init(pthread_mutex_t *m);
int md__lock(md__reg *reg);
void md__unlock(md__reg *reg);
void md__mend(md__reg *reg);

/* arena.c: under the lock */
int md__alloc(md__reg *reg, uint64_t size, uint32_t *ref);
void md__free(md__reg *reg, struct md__block *block);
uint64_t md__block_size(uint64_t size, uint32_t *size_class);
int md__rebuild(md__reg *reg);

/* index.c */
uint32_t md__hash(const char *name, size_t len);
int md__index_create(md__reg *reg, uint32_t log2);
int md__node_find(const md__reg *reg, const char *name, size_t len, uint32_t hash,
                  struct md__node **out);
int md__node_make(md__reg *reg, const char *name, size_t len, uint32_t hash, struct md__node **out);
int md__node_index(md__reg *reg, struct md__node *node);

/* eventcount.c */
uint32_t md__event_prepare(md__u32 *word);
void md__event_ring(md__u32 *word);
void md__event_ring_all(md__reg *reg);
enum { MD__SLICE_NS = 100 * 1000 * 1000 };
enum { MD__SLEPT_RUNG = 0, MD__SLEPT_SLICE = 1, MD__SLEPT_SIGNAL = 2 };
int md__sleep(md__u32 *event, uint32_t seen, md__u32 *lease, uint32_t lease_seen, int64_t until_ns,
              int64_t slice_ns);
void md__futex_wake(md__u32 *word, int count);
void md__futex_wait(md__u32 *word, uint32_t seen);

/* hold.c */
void md__unmap(md__reg *reg);

/* crowd.c */
void md__crowd_enter(md__reg *reg, struct md__wait *wait);
void md__crowd_leave(md__reg *reg, struct md__wait *wait);
int64_t md__slice(const md__reg *reg);

/* member.c */
int md__on_main_thread(void);
int md__lease_probe(void);
md__u32 *md__mutex_word(pthread_mutex_t *m);
md__u32 *md__lease_word(struct md__process *p);
int md__lease_is_dead(struct md__process *p);
int md__process_join(md__reg *reg);
void md__process_leave(md__reg *reg);
void md__process_forked(md__reg *reg);
int md__is_anyone_here(md__reg *reg);
void md__disturb(md__reg *reg, uint64_t member, uint64_t ticket, int cancel);
void md__disturb_all(md__reg *reg);
void md__sweep(md__reg *reg);
int md__member_check(const md__reg *reg, uint64_t member, struct md__member **out);

/* What a reader is after. */
struct md__query {
    const char *name;
    size_t name_len;
    uint32_t hash;
    uint32_t kind;
    int32_t key;
    uint32_t at_least;
};

/* Where packed records go. `used` goes on counting when nothing fits any more. */
struct md__sink {
    char *buf;
    size_t cap;
    size_t used;
};

/* registration.c */
enum { MD__TRIES = 64, MD__AGAIN = 1 }; /* without the lock, before one takes it */
int md__pack(const md__reg *reg, const struct md__node *node, struct md__fact *f,
             struct md__sink *out);
struct md__fact *md__older_at(const md__reg *reg, uint32_t ref, uint64_t *seq);
int md__query_make(struct md__query *q, uint32_t kind, int32_t key, uint32_t at_least,
                   const char *name, size_t len);
int md__look(md__reg *reg, const struct md__query *q, struct md__sink *out);

/* Texts of a fact that is to be registered. */
struct md__text {
    const char *body;
    size_t body_len;
    const char *where;
    size_t where_len;
};
int md__commit(md__reg *reg, const struct md__member *m, uint64_t member, const struct md__query *q,
               uint32_t rule, const struct md__text *t, struct md__sink *out);
int md__strike(md__reg *reg, uint64_t ref, uint64_t seq);
void md__strike_all_of(md__reg *reg, uint64_t member);

/* elect.c. Who has claims on a namespace: how many, and the oldest. */
struct md__queue {
    uint64_t registrar;
    struct md__fact *first;
    uint32_t claims;
};
#define MD__ALL UINT64_MAX
static inline bool md__is_elect(const md__reg *reg) {
    return md__header(reg)->policy == MD_POLICY_ELECT;
}
int md__queue(md__reg *reg, const char *name, size_t len, struct md__queue *q);
int md__queue_now(md__reg *reg, const char *name, size_t len, struct md__queue *q);
int md__may_change(md__reg *reg, uint64_t member, const char *name, size_t len, bool alone);
void md__end_claims(md__reg *reg, uint32_t process, uint64_t member);
md__u32 *md__lease_of(const md__reg *reg, uint64_t member);
/* for inspect.c, from region.c, member.c and process.c */
int md__region_folder(char *path, size_t cap, int *fd);
int md__region_open(int folder, const char *name, int *fd);
int md__region_open_fd(const char *address, int *fd, long *pid, int *number, char uuid[33]);
int md__region_judge(int fd, struct md__header *h);
void md__region_print_uuid(char out[33], const uint8_t uuid[16]);
void md__members(md__reg *reg, md_member_info *infos, size_t cap, size_t *count);
void md__stat(const md__reg *reg, md_stats *out);
uint32_t md__mutex_owner(const pthread_mutex_t *m, int *died);
int md__set_up(void);

/* inspect.c: under the lock of the table of open regions */
int md__region_reap(const char *name);

/* check.c: under the lock; appends lines, returns how many invariants are broken */
int md__check(md__reg *reg, char *buf, size_t cap);

#endif
