/* layout.h - the format of a region, byte by byte.
 *
 *     offset        size          what
 *     0             4096          header (struct md__header)
 *     4096          64 x 64       event words, one per cache line, chosen by a name's hash
 *     8192          1024 x 128    process slots: the lease of each process
 *     139264        2048 x 128    member slots: one per interpreter of a process
 *     401408        ...           arena: blocks, one after the other, up to header.arena_top
 *
 * A block is { u32 size, u32 tag, ... }. Its size is a multiple of 16 and never changes once
 * arena_top has passed the block, so the arena can be walked at any time. A place inside the region
 * is a "ref": its offset divided by 8, or 0 for none. Processes map the region at different
 * addresses, so we never store a pointer of ours in it.
 *
 * What the format, since number 6, holds for names: each name that has facts has one node
 * (MD__TAG_NODE) and one entry in the index. A node whose name has ended is idle (MD__TAG_IDLE) and
 * has no entry; the idle nodes of one size class are a list, from header.idle_lists on by next_idle.
 * header.names and header.idle count both. header.index_moves tells readers that entries of the
 * index have moved. See Note [Names are given back] in index.c.
 *
 * Rules of the fields. [once]: set before anybody else can see it, then constant. [lock]: read and
 * written under the mutex. [atomic]: written under the mutex, read by anybody through atomics.h.
 * [any]: written by anybody.
 */
#ifndef MD_GROUND_LAYOUT_H
#define MD_GROUND_LAYOUT_H

#include <assert.h>
#include <pthread.h>

#include "../../mdispatch.h"
#include "atomics.h"

#define MD__MAGIC "mdisptch"

enum {
    MD__EVENTS = 64,
    MD__CLASSES = 96,
    MD__HEADER_SIZE = 4096,
    MD__EVENTS_AT = MD__HEADER_SIZE,
    MD__PROCESSES_AT = MD__EVENTS_AT + MD__EVENTS * 64,
    MD__MEMBERS_AT = MD__PROCESSES_AT + MD_MAX_PROCESSES * 128,
    MD__ARENA_AT = MD__MEMBERS_AT + MD_MAX_MEMBERS * 128,
    MD__FIRST_INDEX_LOG2 = 8,
    MD__MIN_CAPACITY = MD__ARENA_AT + 65536
};
#define MD__MAX_CAPACITY (1ull << 34)

enum { MD__OPEN = 0, MD__CLOSED = 1, MD__DAMAGED = 2 };              /* header.state */
enum { MD__MAIN_NOT_YET = 0, MD__MAIN_HERE = 1, MD__MAIN_LEFT = 2 }; /* header.main_state */
enum { MD__FREE = 0, MD__LIVE = 1, MD__LEAVING = 2 };                /* slots' state */

enum {
    MD__TAG_FREE = 0x46524545,
    MD__TAG_NODE = 0x4e4f4445,
    MD__TAG_IDLE = 0x49444c45,
    MD__TAG_FACT = 0x46414354,
    MD__TAG_INDEX = 0x494e4458
};

struct md__header {
    char magic[8];      /* [once] */
    uint32_t format;    /* [once] */
    uint32_t stamp;     /* [once] a hash of the sizes and limits that this build uses */
    uint64_t capacity;  /* [once] bytes */
    uint8_t boot[16];   /* [once] boot id of the kernel */
    uint8_t uuid[16];   /* [once] unique to this region */
    uint64_t pid_space; /* [once] inode of the PID namespace: a thread id means something only
                           inside its own */
    uint32_t uid;       /* [once] owner */
    uint32_t main_pid;  /* [once] creator */
    uint32_t policy;    /* [once] md_policy */
    int64_t made;       /* [once] when, by md_now() */

    _Alignas(64) md__u64 committed; /* [atomic] bytes backed by memory; only grows */
    md__u64 arena_top;              /* [atomic] end of the last block; only grows */
    md__u64 index;                  /* [atomic] ref of the index block << 8 | log2 of its slots */
    md__u32 state;                  /* [atomic] MD__OPEN... */
    md__u32 main_state;             /* [atomic] */
    md__u32 process_top;            /* [atomic] slots ever used; only grows */
    md__u32 member_top;             /* [atomic] likewise */
    md__u32 repair_owed;            /* [atomic] 1: see Note [A repair that is owed] in recover.c */
    md__u64 index_moves;            /* [atomic] raised when entries have moved, see index.c */

    _Alignas(64) pthread_mutex_t mutex; /* robust, shared; taken through recover.c only */

    _Alignas(64) md__u32 changes; /* [any] the event word of waits for any change */

    _Alignas(64) md__u64 next_seq;    /* [atomic] raised after each commit, see Note [Any change]
                                         in await.c */
    md__u64 names;                    /* [lock] derived: nodes in the index */
    md__u64 facts;                    /* [lock] derived: live facts */
    md__u64 used;                     /* [lock] derived: bytes in blocks that are not free */
    md__u64 recoveries;               /* [lock] */
    md__u64 idle;                     /* [lock] derived: nodes without a name */
    uint32_t free_lists[MD__CLASSES]; /* [lock] derived: refs of the first free block of each size
                                         class */
    uint32_t
        idle_lists[MD__CLASSES]; /* [lock] derived: of the first idle node of each size class */
    uint64_t reserved[16];       /* 0: room for what a bridge between hosts has to keep */
};

/* One event word; header.changes is another. Bit 0 says that a waiter may be asleep on it, the
 * other bits count rings. See Note [Event words] in eventcount.c. */
struct md__event {
    _Alignas(64) md__u32 word; /* [any] */
};

/* A process that has the region open. See Note [Leases] in lease.c. */
struct md__process {
    _Alignas(64) pthread_mutex_t lease; /* robust, shared: held while the process lives */
    _Alignas(64) md__u32 state;         /* [atomic] MD__LEAVING: left; its lease may be held */
    md__u32 generation;                 /* [atomic] raised when the slot is given out again */
    md__u32 pid;                        /* [atomic] */
};

/* One interpreter of such a process. */
struct md__member {
    _Alignas(64) md__u32 state;       /* [atomic] MD__FREE, MD__LIVE */
    md__u32 generation;               /* [atomic] raised when the slot is given out again */
    md__u32 process;                  /* [atomic] index of its process slot */
    md__u32 role;                     /* [atomic] md_role */
    md__u64 interp;                   /* [atomic] */
    md__u32 waiters;                  /* [any] threads that wait; only for people to read */
    md__u32 wait_kind;                /* [any] of the newest waiter; only for people to read */
    md__u64 waiting_ns;               /* [any] */
    md__u32 wait_key;                 /* [any] */
    uint32_t has_own;                 /* [lock] 1: it may have facts that go with it, or claims */
    _Alignas(8) md__u64 wait_name[8]; /* [any] */
};

/* A bit of a fact's rule that md_rule does not use: the fact hangs on a node. A recovery first
 * clears this bit in all facts, then sets it, and clears it again. Nobody else looks at it. */
enum { MD__RULE_MARK = 1 << 30 };

struct md__block {
    uint32_t size; /* [once] bytes, this header included */
    md__u32 tag;   /* [atomic] MD__TAG_... */
};

/* A name that has facts or, with MD__TAG_IDLE, a place that had one and is kept for another: see
 * Note [Names are given back] in index.c. A node is never freed. */
struct md__node {
    struct md__block block;
    md__u64 version;            /* [atomic] only rises, whichever name the node has */
    md__u32 head;               /* [atomic] newest live fact; the older ones follow it */
    md__u32 hash;               /* [atomic] like the name, changed only while the node is idle */
    md__u32 name_len;           /* [atomic] */
    uint32_t next_idle;         /* [lock] derived */
    _Alignas(8) md__u64 name[]; /* [atomic] */
};

/* One live fact. While it can be reached from its node, only `next` changes. */
struct md__fact {
    struct md__block block;
    md__u32 next; /* [atomic] the next older one of this name */
    md__u32 node;
    md__u64 seq;
    md__u64 interp;
    md__u64 member; /* the member that registered it, as md_join named it */
    md__u32 pid;
    md__u32 kind;
    md__u32 key;
    md__u32 rule; /* [lock] md_rule, MD__RULE_MARK */
    md__u32 body_len;
    md__u32 where_len;
    md__u32 origin;             /* 0: this host */
    md__u32 reserved;           /* 0 */
    _Alignas(8) md__u64 text[]; /* body, then where */
};

struct md__index {
    struct md__block block;
    md__u64
        slots[]; /* [atomic] hash << 32 | ref of a node, 0 for empty; filled by linear probing */
};

static_assert(sizeof(md__u32) == 4 && sizeof(md__u64) == 8, "atomics are plain words");
static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
              "atomics work across processes");
static_assert(sizeof(struct md__header) <= MD__HEADER_SIZE, "header fits its page");
static_assert(sizeof(struct md__event) == 64, "event words do not share cache lines");
static_assert(sizeof(struct md__process) == 128, "process slot");
static_assert(sizeof(struct md__member) == 128, "member slot");
static_assert(sizeof(struct md__node) == 32 && sizeof(struct md__fact) == 72, "blocks");
static_assert(MD__ARENA_AT == 401408, "the table above says where the arena starts");

#endif
