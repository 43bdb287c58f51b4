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

/* One wait under way in this process, on its thread's stack. */
struct md__wait {
    struct md__wait *next;
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
    int fd;
    uint32_t process; /* our process slot, MD__NO_SLOT when we are none (yet) */
    uint32_t process_generation;
    int creator; /* this process made the region */
    int parked; /* the lease could not be released: the mapping stays for the life of the process */
    struct md__lease_thread *lease_thread;
    char address[MD_MAX_ADDRESS];
    char path[MD_MAX_ADDRESS]; /* file to unlink when the creator closes, or "" */
    pthread_mutex_t waits_lock;
    struct md__wait *waits;
} md__reg;

#define MD__NO_SLOT UINT32_MAX

/* process.c: handles */
int md__enter(md_registry handle, md__reg **out);
void md__exit(md__reg *reg);
int md__is_closed(
    const md__reg *reg); /* while calls are under way: the last opening was given back */

/* region.c */
int md__region_create(md__reg *reg, const char *name, uint64_t capacity);
int md__region_attach(md__reg *reg, const char *address, int64_t deadline_ns);
void md__region_unmap(md__reg *reg);
int md__region_served(md__reg *reg);
int md__region_grow(md__reg *reg, uint64_t need_top);
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

/* The block at a ref, when that can be one of at least `size` bytes: nothing read from a region is
 * trusted. */
static inline void *md__at(const md__reg *reg, uint32_t ref, uint64_t size) {
    uint64_t at = (uint64_t)ref * 8;
    uint64_t top = md__read64(&md__header(reg)->arena_top);
    if (at < MD__ARENA_AT || top > reg->mapped || size > top || at > top - size) return NULL;
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
enum { MD__SLEPT_RUNG = 0, MD__SLEPT_SLICE = 1, MD__SLEPT_SIGNAL = 2 };
int md__sleep(md__u32 *event, uint32_t seen, md__u32 *lease, uint32_t lease_seen, int64_t until_ns);
void md__futex_wake(md__u32 *word, int count);
void md__futex_wait(md__u32 *word, uint32_t seen);

/* member.c */
int md__on_main_thread(void);
int md__lease_probe(void);
md__u32 *md__lease_word(struct md__process *p);
int md__lease_is_dead(struct md__process *p);
int md__process_join(md__reg *reg);
void md__process_leave(md__reg *reg);
void md__process_forked(md__reg *reg);
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

/* check.c: under the lock; appends lines, returns how many invariants are broken */
int md__check(md__reg *reg, char *buf, size_t cap);

#endif
