/* store.h - a region as memory: its file, its blocks, its names.
 *
 * A `md__reg` is this process's side of one open region.
 *
 * Locking: `md__table_lock` (handles.c) guards the table of open regions. It is held during an open
 * or a close, never while waiting. `waits_lock` guards the list of this process's sleepers. The
 * region's own mutex is taken after either of them, never before. No file of this layer takes the
 * lock of a region: a caller that changes the arena or the index has it already.
 */
#ifndef MD_STORE_H
#define MD_STORE_H

#include "../ground/ground.h"

enum { MD__MAX_PATH = 320 }; /* of a named registry's file, terminated */

typedef struct md__reg {
    md__u64
        refs; /* generation << 32 | openings << 16 | calls under way; 0 below: nothing is mapped */
    char *base;
    uint64_t mapped;
    md__u64 backed; /* as far as is known; the file only grows. See md__top */
    int fd;
    uint64_t device, inode; /* of the file that was mapped. See look() in region.c */
    uint32_t process;       /* our process slot, MD__NO_SLOT when we have none (yet) */
    uint32_t process_generation;
    int creator;    /* this process made the region */
    md__u32 forked; /* atomic, any thread: we are a fork's child, perhaps in another PID namespace;
                       see look_around() in recover.c */
    md__u32 stuck;  /* atomic, any thread: the thread that had the lock when we gave up, see
                       recover.c; or 0 */
    md__u64 held;   /* atomic: a struct md_held *, see Note [Holds] in hold.c */
    struct md__lease_thread *lease_thread;
    char address[MD_MAX_ADDRESS];
    char path[MD__MAX_PATH]; /* path by which a named region's file was opened; "" without a name */
    pthread_mutex_t waits_lock;
    struct md__wait *waits; /* under waits_lock, like `paced` */
    md__u32 waiting;        /* atomic, written under waits_lock: the number of waits */
    uint32_t paced;         /* no slice under way was chosen for more waiters than this */
} md__reg;

#define MD__NO_SLOT UINT32_MAX

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

uint64_t md__region_top(md__reg *reg, uint64_t top);

/* Where the arena ends, or 0 when the header's value cannot be true. All memory before the end is
 * backed, whatever a stray write put into the header. */
static inline uint64_t md__top(const md__reg *reg) {
    uint64_t top = md__read64(&md__header(reg)->arena_top);
    return top <= md__peek64(&reg->backed) ? top : md__region_top((md__reg *)reg, top);
}

/* The block at a ref, or NULL when no block of at least `size` bytes can be there. We trust nothing
 * that we read from a region. */
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

/* names.c. The prefixes of a named registry's address: the first in the table of this process, the
 * second for others where there is no main member. The third is that of an anonymous one. */
#define MD__SHM "shm:"
#define MD__ELECT "elect:"
#define MD__FD "fd:"
enum { MD__ORIGIN = 54 }; /* BOOT:SPACE: 32 digits, ":", up to 20 digits, the terminator */
const char *md__name_in(const char *address);
bool md__is_name(const char *name);
size_t md__edition_at(const char *name);

/* What an address of an anonymous region says, see md__parse_fd_address(). */
struct md__fd_address {
    int pid;
    int number;
    char uuid[33];           /* "" in a short one */
    char origin[MD__ORIGIN]; /* likewise */
};

bool md__parse_fd_address(const char *address, struct md__fd_address *out);
void md__file_path(char *path, size_t cap, const char *name);
int md__find_folder(char *path, size_t cap);
int md__open_folder(int *fd);
int md__lock_folder(int folder, bool heed_signals);
int md__open_file(int folder, const char *path, int flags, int *fd);
int md__region_is_named(const md__reg *reg);
void md__region_unlink(md__reg *reg);
int md__region_folder(char *path, size_t cap, int *fd);
int md__region_open(int folder, const char *name, int *fd);
bool md__region_is_unused(int fd);
int md__region_open_fd(const struct md__fd_address *address, int *fd);

/* region.c */
enum { MD__FIRST_CHUNK = 64 * 1024 };
uint32_t md__region_stamp(void);
int md__boot_id(uint8_t id[16]);
int md__pid_space(uint64_t *id);
void md__region_print_uuid(char out[33], const uint8_t uuid[16]);
void md__region_print_origin(char out[MD__ORIGIN], const struct md__header *h);
int md__origin_here(char out[MD__ORIGIN]);
int md__judge_origin(const char *origin);
int md__region_reserve(int fd, uint64_t from, uint64_t to);
int md__region_map(md__reg *reg, int fd, uint64_t capacity);
void md__region_look_only(md__reg *reg);
int md__region_reopen(md__reg *reg);
void md__region_unmap(md__reg *reg);
void md__region_discard(md__reg *reg);
int md__region_survey(md__reg *reg, uint64_t top);
int md__region_grow(md__reg *reg, uint64_t need_top);
int md__region_judge(int fd, struct md__header *h);
int md__region_judge_bounds(const md__reg *reg, int fd);

/* hold.c */
struct md_held {
    md__u64 holds;
    char *base;
    uint64_t mapped;
    pthread_mutex_t *lease; /* this and `next` are for Note [Leases] in lease.c */
    struct md_held *next;
};
struct md_held *md__held_of(const md__reg *reg);
struct md_held *md__held_make(md__reg *reg);
void md__unmap(md__reg *reg);

/* arena.c: under the lock */
int md__alloc(md__reg *reg, uint64_t size, uint32_t *ref);
void md__put_back(struct md__header *h, md__reg *reg, struct md__block *block);
void md__free(md__reg *reg, struct md__block *block);
uint64_t md__block_size(uint64_t size, uint32_t *size_class);

/* index.c */
enum { MD__AGAIN = 1 }; /* writers have outrun a reader that takes no lock */
int md__index_create(md__reg *reg, uint32_t log2);
int md__index_mend(md__reg *reg);
int md__node_seek(const md__reg *reg, const char *name, size_t len, uint32_t hash,
                  struct md__node **out, uint64_t *version);
int md__node_find(const md__reg *reg, const char *name, size_t len, uint32_t hash,
                  struct md__node **out);
int md__node_prepare(md__reg *reg, const char *name, size_t len, uint32_t hash,
                     struct md__node **out, bool *is_new);
int md__node_publish(md__reg *reg, struct md__node *node);
void md__node_refuse(md__reg *reg, struct md__node *node);
void md__node_make_idle(struct md__node *node);
void md__node_put_back(struct md__header *h, md__reg *reg, struct md__node *node);
void md__node_give_back(md__reg *reg, struct md__node *node);

#endif
