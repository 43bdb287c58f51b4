/* mdispatch.h - the contract of libmdispatch: a registry of facts shared by interpreters and
 * processes.
 *
 * CAVEATS
 *
 * - Nothing here knows Python. A fact is plain bytes; what runs (a callable) stays with whoever
 *   made it.
 * - A handle (md_registry) is a number with a generation in it. A handle that was closed is
 *   answered with MD_ECLOSED for ever; it never reaches another registry. All calls are safe from
 *   any thread.
 * - After fork() the child may use the handles it inherited, but it is no member: md_join() again
 *   before md_await(). It never owns what its parent registered.
 * - The thread that joins first in a process carries the process's lease when it is the process's
 *   main thread: that thread must not leave by pthread_exit() while the process goes on. When
 *   another thread joins first, a small thread of the library's own carries it.
 * - Registering is the right of one member, the main one: interpreter 0 of the process that created
 *   the registry. All others are answered MD_EROLE, but for a program that embeds interpreters and
 *   joins as MD_HOST in that process: it is a main member, too. In a registry of md_elect() there
 *   is no main member: it is the right of a namespace's registrar, see ELECT.
 * - A wait returns MD_EINTR for a signal whose handler was installed without SA_RESTART. A signal
 *   can arrive in the moment before the sleep: so on the process's main thread, which is to run the
 *   handlers, a wait also returns MD_EINTR every 0.1 s. Look for signals, call again.
 * - A process that is stopped while it holds the registry's lock makes the others' calls return
 *   MD_ELOCK after 10 s.
 * - A full disk, a full registry and a refused fact leave everything as it was.
 *
 * USAGE
 *
 *     md_registry reg; uint64_t member; uint32_t role; char buf[4096];
 *     md_open_default(getenv("MDISPATCH_REGISTRY"), &reg);
 *     md_join(reg, 0, &member, &role);
 *     if (role == MD_MAIN)
 *         md_register(reg, member, MD_DEF, MD_UNIQUE, 0, "shop::scale", 11, schema, schema_len,
 *                     where, where_len, buf, sizeof buf);
 *     else
 *         md_await(reg, member, MD_DEF, 0, 1, "shop::scale", 11, deadline, 0, buf, sizeof buf,
 *                  &stats);
 *     ...
 *     md_leave(reg, member); md_close(reg);
 *
 * ELECT
 *
 * A registry of md_elect() serves a team without a main member: it lives as long as any process that
 * has joined it, whoever made it. A namespace (a name up to its "::", or a name without one) is
 * opened with md_claim(). Claims queue up; the registrar is the member with the oldest claim, and
 * only it registers there. When it releases its claim, leaves or dies, the next in the queue is the
 * registrar, and everything that is registered stays; with its last claim a namespace loses all its
 * facts. Claims are facts of kind MD_CLAIM under the namespace's name. Who verifies what the
 * registrar registers waits with md_await_or_elect(), which tells it when its own turn has come.
 *
 * RESULTS
 *
 * Every function returns 0 or a negative md_status; MD_ESYS - errno stands for a system call that
 * failed (see md_status_errno). A function that hands out a record writes it packed into the
 * caller's buffer: an md_record, then name, body and where without terminators, then zeroes up to
 * the next multiple of 8. A buffer that is too small is MD_ENOBUFS, and the record's size stands in
 * its first 8 bytes where there is room for them.
 *
 * Whatever takes the lock answers MD_ENAMESPACE in the child of a fork that is in another PID
 * namespace than its parent.
 *
 * Times are absolute, in nanoseconds of CLOCK_MONOTONIC; MD_FOREVER waits without end.
 *
 * The block between the two marker lines is plain C that cffi's parser reads as it stands: no
 * macros, no includes.
 */
#ifndef MDISPATCH_H
#define MDISPATCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* contract begins */

enum { MD_ABI = 3 };
enum { MD_FOREVER = -1 };
enum { MD_HOST = -1 }; /* in place of an interpreter's number: the program that embeds them */

typedef enum md_status {
    MD_OK = 0,
    MD_EINVAL = -1,    /* an argument that no call could use */
    MD_ENAME = -2,     /* a registry's name or address is malformed */
    MD_ECLOSED = -3,   /* the handle, the membership or the registry is closed */
    MD_EDIED = -4,     /* the main member's process is dead */
    MD_ETIMEDOUT = -5, /* the deadline passed */
    MD_EINTR = -6,     /* a signal arrived, or may have: look, call again with the same deadline */
    MD_ECANCELED = -7, /* md_cancel() ended the wait */
    MD_EEXIST = -8, /* a registry of this name, or a live fact under MD_UNIQUE, is there already */
    MD_ENOENT = -9, /* no such fact, registry or member */
    MD_EROLE = -10, /* only the main member registers and strikes */
    MD_EFULL = -11, /* the registry's capacity is used up */
    MD_EMEMBERS = -12,   /* no free slot for another process or member */
    MD_ETOOLONG = -13,   /* a name, body or place is longer than the format allows */
    MD_ENOBUFS = -14,    /* the caller's buffer is too small */
    MD_EFORMAT = -15,    /* not a registry */
    MD_EVERSION = -16,   /* a registry of another version or build */
    MD_EBOOT = -17,      /* a registry made before the last boot */
    MD_ENAMESPACE = -18, /* a registry made in another PID namespace */
    MD_EOWNER = -19,     /* a registry of another user, or one of other rights than 0600 */
    MD_ENOTFILE = -20,   /* what bears the name is not a regular file */
    MD_EDAMAGED = -21,   /* the registry's bytes contradict each other */
    MD_ELOCK = -22,      /* the lock's holder is alive and has not let go for 10 s: stopped? */
    MD_EHANDLES = -23,   /* this process has too many registries open */
    MD_EELECTED = -24,   /* the caller is the registrar: nobody else will register it */
    MD_ESYS = -1000      /* MD_ESYS - errno: a system call failed */
} md_status;

typedef enum md_kind {
    MD_LIBRARY = 1,
    MD_DEF = 2,
    MD_IMPL = 3,
    MD_FALLBACK = 4,
    MD_PYSTUB = 5,
    MD_NAME = 6,
    MD_CLAIM = 7 /* made by md_claim() only */
} md_kind;

typedef enum md_rule {
    MD_UNIQUE = 1,    /* one live fact per kind, name and key: a second one is MD_EEXIST */
    MD_STACK = 2,     /* any number: the newest is in effect, the one before returns when it goes */
    MD_RAISE_ALL = 16 /* flag: concerns every name, so every version word is raised */
} md_rule;

typedef enum md_role {
    MD_MAIN = 1,
    MD_WORKER = 2,
    MD_PEER = 3 /* in a registry of md_elect() */
} md_role;

typedef enum md_policy { MD_POLICY_MAIN = 1, MD_POLICY_ELECT = 2 } md_policy;

typedef enum md_limit {
    MD_MAX_NAME = 1023,
    MD_MAX_BODY = 65536,
    MD_MAX_WHERE = 1024,
    MD_MAX_REGISTRY_NAME = 128,
    MD_MAX_ADDRESS = 192,
    MD_MAX_PROCESSES = 1024,
    MD_MAX_MEMBERS = 2048
} md_limit;

typedef uint64_t md_registry;

typedef struct md_record {
    uint64_t size;  /* of the packed record, a multiple of 8 */
    uint64_t seq;   /* when it was registered, in the order of the registry; never used twice */
    uint64_t ref;   /* where it is; only together with seq does it name the fact */
    int64_t interp; /* who registered it */
    uint32_t pid;
    uint32_t kind;
    int32_t key;
    uint32_t name_len;
    uint32_t body_len;
    uint32_t where_len;
} md_record;

typedef struct md_wait_stats {
    uint64_t slept_ns; /* time asleep in the kernel */
    uint32_t sleeps;   /* times it went to sleep */
    uint32_t wakes;    /* sleeps ended by a ring or by the lease */
    uint32_t slices;   /* sleeps ended by the backstop's slice */
    uint32_t by_lease; /* 1 when the main member's lease told of its death */
} md_wait_stats;

typedef struct md_member_info {
    int64_t interp;
    uint64_t waiting_ns; /* since when its newest waiter waits (CLOCK_MONOTONIC), 0: none does */
    uint32_t pid;
    uint32_t role;
    uint32_t alive;
    uint32_t waiters;   /* threads of this member that wait now */
    uint32_t wait_kind; /* the newest waiter's; 0: it waits for any change */
    int32_t wait_key;
    char wait_name[64]; /* cut off, always terminated */
} md_member_info;

typedef struct md_stats {
    uint64_t capacity;   /* bytes */
    uint64_t committed;  /* bytes backed by memory */
    uint64_t used;       /* bytes in use by names, facts and the index, free blocks not counted */
    uint64_t facts;      /* live */
    uint64_t names;      /* ever seen */
    uint64_t next_seq;   /* the registry's sequence: of the next registration */
    uint64_t recoveries; /* times a dead holder of the lock was cleaned up after */
    uint32_t main_pid;
    uint32_t main_state; /* 0 not joined yet, 1 there, 2 left, 3 died */
    uint32_t processes;  /* slots in use */
    uint32_t members;
    uint32_t policy; /* md_policy; with MD_POLICY_ELECT main_state is always 0 */
    uint32_t reserved;
} md_stats;

/* The words for a status, a constant string. Never fails. */
const char *md_status_text(int status);

/* The errno inside a status, 0 when there is none. */
int md_status_errno(int status);

/* MD_ABI of the library that is loaded, to be compared with the header's. */
int md_abi(void);

/* The clock of all deadlines, in nanoseconds. */
int64_t md_now(void);

/* Creates a registry of at most `capacity` bytes: without a name in anonymous memory, with one as a
 * file that other processes can find. The file of a main member that died is replaced. MD_EINVAL
 * (capacity), MD_ENAME, MD_EEXIST, MD_EHANDLES, MD_EOWNER (folder), MD_ELOCK (another creator does
 * not go on), MD_ESYS; and where a file of that name is no dead registry: MD_EFORMAT, MD_EVERSION,
 * MD_ENOTFILE, MD_ENAMESPACE, MD_EDAMAGED. */
int md_create(const char *name, uint64_t capacity, md_registry *out);

/* Opens the registry of a name or of an address (md_address), waiting for a name to appear until
 * the deadline. MD_ENAME, MD_ENOENT, MD_EINTR, MD_EDIED, MD_ECLOSED, MD_EFORMAT, MD_EVERSION,
 * MD_EBOOT, MD_ENAMESPACE, MD_EOWNER, MD_ENOTFILE, MD_EDAMAGED, MD_EHANDLES, MD_ESYS. */
int md_attach(const char *address, int64_t deadline_ns, md_registry *out);

/* Opens the registry of a name for a team without a main member: attaches to it, or creates it with
 * at most `capacity` bytes where there is none, or none with anybody alive in it. Of several that do
 * so at once one creates it. Without a name it is a new one in anonymous memory. Where md_join()
 * answers MD_ECLOSED, the last of the others has left meanwhile: close, and call again. MD_EEXIST
 * when a registry with a main member has the name; else as md_create, md_attach. */
int md_elect(const char *name, uint64_t capacity, md_registry *out);

/* The process's default registry: the one that is open, else the one at `address` (NULL or "" for
 * none; one that this very process published before an exec() counts as none; "elect:NAME" is opened
 * as by md_elect), else a new anonymous one. As md_create, md_attach. */
int md_open_default(const char *address, md_registry *out);

/* Gives back one opening; the last one of the process unmaps. Calls under way in other threads end
 * first. MD_ECLOSED. */
int md_close(md_registry reg);

/* Where other processes of this machine find the registry, terminated. MD_ECLOSED, MD_ENOBUFS. */
int md_address(md_registry reg, char *buf, size_t cap);

/* One interpreter of this process becomes a member, and learns its role: MD_MAIN for the first
 * membership of interpreter 0, and that of MD_HOST, in the process that created the registry, else
 * MD_WORKER; MD_PEER in a registry of md_elect. MD_ECLOSED, MD_EMEMBERS, MD_EDAMAGED, MD_ELOCK,
 * MD_ESYS. */
int md_join(md_registry reg, int64_t interp, uint64_t *member, uint32_t *role);

/* A member leaves: its waiters return MD_ECLOSED, its claims are released. When the main one leaves,
 * the registry is closed for all. Of two, interpreter 0 and MD_HOST, the last one closes it; what the
 * first one has registered is struck out. MD_ECLOSED, MD_ENOENT, MD_EDAMAGED, MD_ELOCK. */
int md_leave(md_registry reg, uint64_t member);

/* Queues up for a namespace, unless the member is in its queue already; `buf` receives the record of
 * the registrar's claim. MD_OK when the registrar is this member, MD_EEXIST when it is another one.
 * MD_ECLOSED, MD_EROLE (no registry of md_elect, or no member of this process), MD_EINVAL (the name
 * has "::" in it), MD_ETOOLONG, MD_EFULL, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK, MD_ESYS. */
int md_claim(md_registry reg, uint64_t member, const char *name, size_t name_len, const char *where,
             size_t where_len, void *buf, size_t cap);

/* Takes the member out of the queue of a namespace. The last one takes all its facts along.
 * MD_ENOENT, MD_ECLOSED, MD_EROLE, MD_EINVAL, MD_ETOOLONG, MD_EDAMAGED, MD_ELOCK. */
int md_release(md_registry reg, uint64_t member, const char *name, size_t name_len);

/* Registers a fact and wakes those who wait for it. `buf` receives its record; on MD_EEXIST the
 * record of the fact that is in the way. MD_ECLOSED, MD_EROLE, MD_EEXIST, MD_EINVAL, MD_ETOOLONG,
 * MD_EFULL, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK, MD_ESYS (no memory for growth). */
int md_register(md_registry reg, uint64_t member, uint32_t kind, uint32_t rule, int32_t key,
                const char *name, size_t name_len, const char *body, size_t body_len,
                const char *where, size_t where_len, void *buf, size_t cap);

/* Strikes a fact out. MD_ENOENT when it is gone already. In a registry of md_elect facts stay while
 * others have a claim on their namespace, so that it is MD_EROLE. MD_ECLOSED, MD_EROLE, MD_EDAMAGED,
 * MD_ELOCK. */
int md_strike(md_registry reg, uint64_t member, uint64_t ref, uint64_t seq);

/* The newest live fact of exactly this kind, name and key. Takes no lock, unless writers of this name
 * outrun it. MD_ENOENT, MD_ECLOSED, MD_EINVAL, MD_ETOOLONG, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK. */
int md_find(md_registry reg, uint32_t kind, int32_t key, const char *name, size_t name_len,
            void *buf, size_t cap);

/* Waits until at least `at_least` live facts of exactly this kind, name and key are there, and
 * hands out the newest. `ticket` names this wait for md_cancel (0: only a cancel of all ends it).
 * The statistics are added to. MD_ETIMEDOUT, MD_EINTR, MD_EDIED, MD_ECLOSED, MD_ECANCELED,
 * MD_ENOENT (no member of this process), MD_EINVAL, MD_ETOOLONG, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK,
 * MD_ESYS.
 */
int md_await(md_registry reg, uint64_t member, uint32_t kind, int32_t key, uint32_t at_least,
             const char *name, size_t name_len, int64_t deadline_ns, uint64_t ticket, void *buf,
             size_t cap, md_wait_stats *stats);

/* As md_await, in a registry of md_elect: ends with MD_EELECTED when the fact is not there and the
 * member is the registrar of its namespace. Otherwise the same as md_await, which in such a registry
 * goes on when a registrar dies. */
int md_await_or_elect(md_registry reg, uint64_t member, uint32_t kind, int32_t key,
                      uint32_t at_least, const char *name, size_t name_len, int64_t deadline_ns,
                      uint64_t ticket, void *buf, size_t cap, md_wait_stats *stats);

/* Waits until the registry's sequence differs from `seq`, and hands out the present one. Every
 * registration and every strike raises it; it is never 0, so with `seq` 0 it is just told. Facts
 * with a smaller seq are all there to be seen: whoever takes the sequence first, then lists the
 * facts, and then waits for another sequence misses no change. Changes come together, so a fact
 * that lived for a moment may go unseen, and after a writer's death the sequence may differ although
 * no fact does. `ticket` and `stats` as for md_await; `now_seq` is written in any case, with `seq`
 * itself where there is no other. MD_ETIMEDOUT, MD_EINTR, MD_EDIED, MD_ECLOSED, MD_ECANCELED,
 * MD_ENOENT (no member of this process), MD_EINVAL, MD_EDAMAGED, MD_ESYS. */
int md_await_change(md_registry reg, uint64_t member, uint64_t seq, int64_t deadline_ns,
                    uint64_t ticket, uint64_t *now_seq, md_wait_stats *stats);

/* Ends this member's waits with this ticket, or all of them with ticket 0. MD_ECLOSED. */
int md_cancel(md_registry reg, uint64_t member, uint64_t ticket);

/* All live facts of one name, oldest first, or with name NULL of all names. `size` receives the
 * bytes written (or needed, with MD_ENOBUFS), `version` and `node` the name's version and place for
 * md_version (0 while the name is unknown). Takes the lock as md_find does. MD_ECLOSED, MD_ENOBUFS,
 * MD_EDAMAGED, MD_ELOCK. */
int md_list(md_registry reg, const char *name, size_t name_len, void *buf, size_t cap, size_t *size,
            uint64_t *version, uint64_t *node);

/* The live facts of a kind (0: of any) with seq `since` or a greater one, those of a name oldest
 * first. `live` receives how many of the kind there are in all: whoever knows the others can tell
 * by it whether one of them has gone. `size` and the lock as for md_list. MD_ECLOSED, MD_ENOBUFS,
 * MD_EDAMAGED, MD_ELOCK. */
int md_list_since(md_registry reg, uint32_t kind, uint64_t since, void *buf, size_t cap,
                  size_t *size, uint64_t *live);

/* The version word of a name: raised after every change that concerns it. MD_ECLOSED, MD_EINVAL. */
int md_version(md_registry reg, uint64_t node, uint64_t *version);

/* Keeps the region's memory where it is, also after md_close, until md_let_go: for those who look at
 * a word of md_word without a call. MD_ECLOSED, MD_ESYS (no memory). */
typedef struct md_held md_held;
int md_hold(md_registry reg, md_held **out);
void md_let_go(md_held *held);

/* Where the version word of a name is, or with node 0 the registry's sequence, as md_await_change
 * tells it. Both are written by others at any time: read them atomically, with acquire order, while
 * the region is held. After a close they say nothing any more. MD_ECLOSED, MD_EINVAL. */
int md_word(md_registry reg, uint64_t node, const uint64_t **word);

/* Members, dead ones not yet swept included. `count` receives how many there are. MD_ECLOSED. */
int md_members(md_registry reg, md_member_info *infos, size_t cap, size_t *count);

/* MD_ECLOSED. */
int md_stat(md_registry reg, md_stats *out);

/* Recomputes what can be derived and compares, holding the lock. One line of words per broken
 * invariant, terminated; MD_OK when none is. MD_EDAMAGED, MD_ECLOSED, MD_ELOCK. */
int md_check(md_registry reg, char *buf, size_t cap);

/* What md_inspect sees: a registry from outside. */
typedef struct md_inspection {
    md_stats stats;
    uint64_t device; /* with the inode: the same for all addresses of one registry */
    uint64_t inode;
    uint64_t kinds[8];  /* live facts of each md_kind */
    int32_t attach;     /* what md_attach answers now: 0, MD_ECLOSED, MD_EDIED, MD_EDAMAGED, or
                           MD_EBOOT, MD_ENAMESPACE (then who is alive may not be believed) */
    uint32_t alive;     /* processes that joined, and live */
    uint32_t dead;      /* those that died and were not swept since */
    uint32_t lock_tid;  /* the thread that holds the lock, 0: none does */
    uint32_t lock_died; /* 1: it died, whoever takes the lock next cleans up after it */
    uint32_t torn;      /* 1: its blocks could not be followed to their end, see md_check */
    uint32_t fixed;     /* bytes of the capacity that no fact can take */
    char address[192];  /* by which md_attach finds it */
} md_inspection;

/* Looks at the registry of a name or an address (of the latter fd:PID:NUMBER is enough) without
 * opening it: reads its bytes, takes no lock, joins nothing, keeps nothing, changes nothing. So it
 * answers for those, too, that md_attach refuses or that a stopped process has locked; the figures
 * are not of one moment. Members as for md_members. MD_ENAME, MD_ENOENT, MD_EDIED (no such process),
 * MD_EFORMAT, MD_EVERSION, MD_EDAMAGED (truncated), MD_EOWNER, MD_ENOTFILE, MD_ESYS. */
int md_inspect(const char *address, md_inspection *out, md_member_info *infos, size_t cap,
               size_t *count);

/* The folder with the files of this user's named registries, terminated. MD_ENOENT (there is none
 * yet; the path is told), MD_EOWNER (others can get into it; likewise), MD_ENOBUFS, MD_ESYS. */
int md_folder(char *buf, size_t cap);

/* Removes the file of a named registry that is nobody's any more: all processes that joined it are
 * dead; for one that is damaged, of another version, boot or PID namespace, no process has it open.
 * Creators wait meanwhile. MD_EEXIST (it is somebody's: left alone), MD_EDAMAGED, MD_EVERSION,
 * MD_EBOOT, MD_ENAMESPACE (left alone, for somebody has it open), MD_ELOCK (a creator does not let go),
 * MD_EINTR, MD_ENAME, MD_ENOENT, MD_EFORMAT, MD_EOWNER, MD_ENOTFILE, MD_ESYS. */
int md_reap(const char *name);

/* contract ends */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
