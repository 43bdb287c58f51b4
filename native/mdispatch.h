/* mdispatch.h - the contract of libmdispatch: a registry of facts shared by interpreters and
 * processes.
 *
 * CAVEATS
 *
 * - Nothing here knows Python. A fact is plain bytes. Callables stay with the interpreter or the
 *   program that made them.
 * - A handle (md_registry) is a number with a generation in it. A call with a handle that was
 *   closed returns MD_ECLOSED for ever; it never reaches another registry. All functions may be
 *   called from any thread.
 * - After fork() the child may use the handles that it inherited, but it is not a member: it has to
 *   call md_join() before md_await(). It never owns what its parent registered.
 * - When the process's main thread is the first thread to join, it carries the process's lease: it
 *   must not end by pthread_exit() while the process goes on. When another thread joins first, a
 *   small thread of the library carries the lease.
 * - Only the main member may register: interpreter 0 of the process that created the registry. All
 *   others get MD_EROLE, with one exception: a program that embeds interpreters and joins as
 *   MD_HOST in that process is a main member, too. A registry of md_elect() has no main member:
 *   there the registrar of a namespace may register in it, see ELECT. Facts of some kinds any
 *   member may register, see FACTS OF ANY MEMBER.
 * - A wait returns MD_EINTR for a signal whose handler was installed without SA_RESTART. A signal
 *   can arrive in the moment before the sleep. So on the process's main thread, which has to run
 *   the handlers, a wait also returns MD_EINTR every 0.1 s. Run the handlers that are due and call
 *   again.
 * - While a process that holds the registry's lock is stopped, calls of others return MD_ELOCK
 *   after 10 s.
 * - A full disk, a full registry and a refused fact leave everything as it was. The limit of a memory
 *   cgroup is not a full disk: the kernel kills a process that goes beyond it, see
 *   docs/reliability.md.
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
 * A registry of md_elect() serves a team without a main member. It lives until the last process
 * that has joined it is gone, whichever process created it. A member opens a namespace (the part of
 * a name before its "::", or a whole name without one) with md_claim(). Claims queue up. The member
 * with the oldest claim is the registrar: only it may register in the namespace. When it releases
 * its claim, leaves or dies, the next member in the queue becomes the registrar, and all facts
 * stay. When a namespace loses its last claim, it loses all its facts. A claim is a fact of kind
 * MD_CLAIM under the namespace's name. A member that verifies what the registrar registers waits
 * with md_await_or_elect(), which also returns when that member becomes the registrar.
 *
 * BRIDGES
 *
 * A registry of md_bridge() is that of one host of a cluster. Only bridges register there: members
 * that joined as MD_AS_BRIDGE, beside the interpreters of their process, which are workers. Bridges
 * queue up for the namespace "mdispatch.bridge" with md_claim(), which is refused to others. The one
 * with the oldest claim is the host's, and it alone registers and strikes, under any name. When it
 * releases its claim, leaves or dies, the next in the queue is the host's, and goes on with all that
 * is there. A bridge waits for that with md_await_or_elect(), for a fact in that namespace that
 * nobody registers. Without a bridge facts stay, and waits go on. The registry lives until the last
 * process that has joined it is gone.
 *
 * FACTS OF ANY MEMBER
 *
 * Facts of kind MD_ANY_MEMBER and above every member may register, under any name, in every
 * registry. The end of a namespace leaves them alone.
 *
 * Below MD_AGREED they say something about the member that registers them. MD_UNIQUE counts for one
 * member only: two members may each have a fact of the same kind, name and key. Only its own member
 * strikes such a fact. The rest goes when the member leaves; after its death, when the next member
 * joins, or registers a fact of any member, or claims.
 *
 * From MD_AGREED on they are what the members have agreed on. They stay when their member goes,
 * MD_UNIQUE counts for all members together, and every member may strike them. So that only one
 * member works out what all shall agree on, members queue up for it with md_claim(), in a registry
 * with a main member too, and wait with md_await_or_elect(). There a claim gives no right to
 * register, and its end takes no facts along.
 *
 * NAMES
 *
 * A named registry is a file in the folder mdispatch-UID. That folder lies in the one that the
 * environment variable MDISPATCH_FOLDER names, or in /dev/shm when the variable is missing or
 * empty. So a run of tests, or a job, can have a folder of its own, in which it meets no names of
 * others. Processes that have to meet by a name need the same value. A process reads the variable
 * once, when it first needs the folder: a later change has no effect. A program with more rights
 * than its caller (setuid) uses /dev/shm.
 *
 * The value has to be an absolute path of at most MD_MAX_FOLDER bytes, and the folder has to exist:
 * otherwise a call that needs it returns MD_EFOLDER and changes nothing. The folder has to be on a
 * local file system with O_TMPFILE and shared mappings, best on a tmpfs. It has to belong to this
 * user or to root. If other users may write in it, it has to be sticky (1777, like /dev/shm), so
 * that they cannot rename or delete our files.
 *
 * A name has 1 to MD_MAX_REGISTRY_NAME of A-Z a-z 0-9 _ - . and does not begin with a dot. It may be
 * one of several editions, NAME@EDITION, where the edition may have + too. Each edition is a registry
 * of its own. A call that would create one where MD_MAX_EDITIONS others of the same name are alive
 * returns MD_EEDITIONS.
 *
 * DESCRIPTORS
 *
 * A process has one descriptor open for each registry. When the program closes it (a daemon that
 * closes all it has), nothing is done by its number any more, whatever file has that by then. Reading,
 * waiting and registering go on; what needs the descriptor answers MD_ELOST, and nothing has changed:
 * a registration for which the registry must grow; and whatever takes the lock while somebody else
 * has to repair what a dead holder left. Close the registry, and open it again.
 *
 * FORK
 *
 * The child of a fork has its parent's handles and is not a member. It can read at once. The region
 * is mapped for reading only until the child first calls a function that takes the lock, as md_join
 * does: then the child opens the file again, as the user that it is by then. When it may not,
 * because it changed its user, or when there is no /proc, that function and all others that take the
 * lock return MD_EREOPEN; reading goes on. Open the registry after the change of user, or start such
 * processes with exec.
 *
 * RESULTS
 *
 * Every function returns 0 or a negative md_status. MD_ESYS - errno means that a system call failed
 * (see md_status_errno). A function that returns a record writes it packed into the caller's
 * buffer: an md_record, then name, body and where without terminators, then zeroes up to the next
 * multiple of 8. When the buffer is too small, the function returns MD_ENOBUFS and, if there is
 * room for 8 bytes, writes the record's size there.
 *
 * In the child of a fork that is in another PID namespace than its parent, every function that
 * takes the lock returns MD_ENAMESPACE; and MD_EREOPEN where FORK says so.
 *
 * Times are absolute, in nanoseconds of CLOCK_MONOTONIC; MD_FOREVER waits without end.
 *
 * The block between the two marker lines is plain C without macros and includes, so that cffi's
 * parser can read it.
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

enum { MD_ABI = 6 };
enum { MD_FORMAT = 7 }; /* of a region: processes with one format share a registry */
enum { MD_FOREVER = -1 };
enum { MD_HOST = -1 }; /* in place of an interpreter's number: the program that embeds them */
enum { MD_AS_BRIDGE = -2 }; /* the same: a bridge, see BRIDGES */

typedef enum md_status {
    MD_OK = 0,
    MD_EINVAL = -1,    /* an argument that no call could use */
    MD_ENAME = -2,     /* a registry's name or address is malformed */
    MD_ECLOSED = -3,   /* the handle, the membership or the registry is closed */
    MD_EDIED = -4,     /* the main member's process is dead */
    MD_ETIMEDOUT = -5, /* the deadline passed */
    MD_EINTR = -6,     /* a signal came, or may have: handle it, call again, same deadline */
    MD_ECANCELED = -7, /* md_cancel() ended the wait */
    MD_EEXIST = -8,    /* a registry of this name, or a live fact under MD_UNIQUE, exists already */
    MD_ENOENT = -9,    /* no such fact, registry or member */
    MD_EROLE = -10,    /* this member may not register or strike this */
    MD_EFULL = -11,    /* the registry's capacity is used up */
    MD_EMEMBERS = -12, /* no free slot for another process or member */
    MD_ETOOLONG = -13, /* a name, body or place is longer than the format allows */
    MD_ENOBUFS = -14,  /* the caller's buffer is too small */
    MD_EFORMAT = -15,  /* not a registry */
    MD_EVERSION = -16, /* a registry of another version or build */
    MD_EBOOT = -17,    /* a registry of another boot: made before the last one, or on another host */
    MD_ENAMESPACE = -18, /* a registry made in another PID namespace */
    MD_EOWNER = -19,     /* another user's registry, or a file with other rights than 0600 */
    MD_ENOTFILE = -20,   /* the name is that of something else than a regular file */
    MD_EDAMAGED = -21,   /* the registry's bytes contradict each other */
    MD_ELOCK = -22,      /* a live process has held the lock for 10 s: is it stopped? */
    MD_EHANDLES = -23,   /* this process has too many registries open */
    MD_EELECTED = -24,   /* the caller is the registrar: no other member will register it */
    MD_EFOLDER = -25,    /* the folder for named registries cannot be used, see NAMES */
    MD_ELOST = -26,      /* this process has closed the registry's descriptor, see DESCRIPTORS */
    MD_EREOPEN = -27,    /* a child of a fork that may not open the registry anew, see FORK */
    MD_EBUSY = -28,      /* a live process has held that folder's lock for 10 s: is it stopped? */
    MD_EEDITIONS = -29,  /* as many editions of the name are alive as there may be, see NAMES */
    MD_EBRACES = -30,    /* an address with braces, which Python replaces and C does not */
    MD_ESYS = -1000      /* MD_ESYS - errno: a system call failed */
} md_status;

typedef enum md_kind {
    MD_LIBRARY = 1,
    MD_DEF = 2,
    MD_IMPL = 3,
    MD_FALLBACK = 4,
    MD_PYSTUB = 5,
    MD_NAME = 6,
    MD_CLAIM = 7,       /* made by md_claim() only */
    MD_TORCH = 8,       /* what torch.library has registered */
    MD_STANDING = 9,    /* how a host of a cluster stands */
    MD_PRIORITY = 10,   /* which providers come first */
    MD_CLASS = 11,      /* a class whose objects schemas name: its methods */
    MD_ANY_MEMBER = 16, /* kinds from here on any member registers */
    MD_TYPE = 16,       /* which key a member gives to a type */
    MD_NOTE = 17,       /* what a member tells the others of itself */
    MD_VARIANT = 18,    /* the definition of a member that has another one than the registry */
    MD_VALUE = 19,      /* the value on which a member wants to agree with the others */
    MD_AGREED = 24,     /* kinds from here on stay when their member goes */
    MD_CHOICE = 24,     /* what one member has chosen for all */
    MD_MATCH = 25,      /* that members with compatible definitions belong together */
    MD_KEPT = 26,       /* a value on which all agree as long as the registry is there */
    MD_KINDS = 32       /* no kind is this high; numbers without a name are for kinds of others */
} md_kind;

typedef enum md_rule {
    MD_UNIQUE = 1,    /* one live fact per kind, name and key: a second one is MD_EEXIST */
    MD_STACK = 2,     /* any number: the newest is in effect, after it the one before */
    MD_RAISE_ALL = 16 /* flag: it concerns every name, so every version word is raised */
} md_rule;

typedef enum md_role {
    MD_MAIN = 1,
    MD_WORKER = 2,
    MD_PEER = 3,  /* in a registry of md_elect() */
    MD_BRIDGE = 4 /* in a registry of md_bridge(), who joined as MD_AS_BRIDGE */
} md_role;

typedef enum md_policy { MD_POLICY_MAIN = 1, MD_POLICY_ELECT = 2, MD_POLICY_BRIDGE = 3 } md_policy;

typedef enum md_limit {
    MD_MAX_NAME = 1023,
    MD_MAX_BODY = 65536,
    MD_MAX_WHERE = 1024,
    MD_MAX_REGISTRY_NAME = 128,
    MD_MAX_ADDRESS = 192,
    MD_MAX_EDITIONS = 16, /* of one name that are alive at once */
    MD_MAX_FOLDER = 160, /* of MDISPATCH_FOLDER */
    MD_MAX_PROCESSES = 1024,
    MD_MAX_MEMBERS = 2048
} md_limit;

typedef uint64_t md_registry;

typedef struct md_record {
    uint64_t size;  /* size of the packed record, a multiple of 8 */
    uint64_t seq;   /* its place in the order of registrations; never used twice */
    uint64_t ref;   /* where it is; ref and seq together name the fact */
    int64_t interp; /* the interpreter that registered it */
    uint32_t pid;
    uint32_t kind;
    int32_t key;
    uint32_t name_len;
    uint32_t body_len;
    uint32_t where_len;
    uint32_t origin;   /* 0: this host; there are no others yet */
    uint32_t reserved; /* 0 */
} md_record;

typedef struct md_wait_stats {
    uint64_t slept_ns; /* time asleep in the kernel */
    uint32_t sleeps;   /* times it went to sleep */
    uint32_t wakes;    /* sleeps ended by a ring or by the lease */
    uint32_t slices;   /* sleeps ended by the backstop's slice */
    uint32_t by_lease; /* 1 when the wait saw the main member's death by its lease */
} md_wait_stats;

typedef struct md_member_info {
    int64_t interp;
    uint64_t waiting_ns; /* when its newest waiter began (CLOCK_MONOTONIC); 0: none waits */
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
    uint64_t used;       /* bytes in use by names, facts and the index, without free blocks; places
                            kept for names are in use */
    uint64_t facts;      /* live */
    uint64_t names;      /* that have facts */
    uint64_t next_seq;   /* the registry's sequence: the seq of the next registration */
    uint64_t recoveries; /* how often the lock was recovered from a dead holder */
    uint32_t main_pid;
    uint32_t main_state; /* 0: not joined yet, 1: joined, 2: left, 3: died */
    uint32_t processes;  /* slots in use */
    uint32_t members;
    uint32_t policy; /* md_policy; main_state is always 0 but with MD_POLICY_MAIN */
    uint32_t idle;   /* places of names that have ended, kept for others */
    int64_t made;    /* when it was created, by md_now() */
} md_stats;

/* The words for a status, a constant string. Never fails. */
const char *md_status_text(int status);

/* The errno inside a status, 0 when there is none. */
int md_status_errno(int status);

/* MD_ABI of the loaded library. Compare it with the header's. */
int md_abi(void);

/* The clock of all deadlines, in nanoseconds. */
int64_t md_now(void);

/* Creates a registry of at most `capacity` bytes: without a name in anonymous memory, with a name
 * as a file that other processes can find. Replaces the file of a registry whose main member has
 * died. MD_EINVAL (capacity), MD_ENAME, MD_EEXIST, MD_EHANDLES, MD_EOWNER and MD_EFOLDER (folder),
 * MD_EBUSY (another creator does not go on), MD_EEDITIONS, MD_ESYS; and when the file of that name is
 * not a dead registry: MD_EFORMAT, MD_EVERSION, MD_ENOTFILE, MD_EDAMAGED; MD_EBOOT and MD_ENAMESPACE
 * (a process of another container has it open). */
int md_create(const char *name, uint64_t capacity, md_registry *out);

/* Opens the registry with this name or address (md_address). Waits until the deadline for the name
 * to appear. MD_ENAME, MD_ENOENT, MD_EINTR, MD_EDIED, MD_ECLOSED, MD_EFORMAT, MD_EVERSION,
 * MD_EBOOT, MD_ENAMESPACE, MD_EOWNER, MD_ENOTFILE, MD_EDAMAGED, MD_EHANDLES, MD_EFOLDER,
 * MD_ESYS. */
int md_attach(const char *address, int64_t deadline_ns, md_registry *out);

/* Opens the registry with this name for a team without a main member. Attaches to it, or creates it
 * with at most `capacity` bytes when there is none, or none with a live member. When several
 * processes call this at once, one of them creates it. Without a name, creates a new one in
 * anonymous memory. When md_join() returns MD_ECLOSED, the last other member has left meanwhile:
 * close the handle and call this again. MD_EEXIST when a registry with a main member has the name,
 * or when for 10 s the name was never there to attach to and never free; MD_ELOCK in place of a
 * team without a live member; else as md_create, md_attach. */
int md_elect(const char *name, uint64_t capacity, md_registry *out);

/* Opens the registry with this name for a host of a cluster, as md_elect does for a team: attaches
 * to it, or creates it. MD_EEXIST when a registry that is no host's has the name; else as md_elect.
 * See BRIDGES. */
int md_bridge(const char *name, uint64_t capacity, md_registry *out);

/* Opens the process's default registry: the one that is open, else the one at `address`, else a new
 * anonymous one. `address` may be NULL or "" for none; one that this very process published before
 * an exec() counts as none. "elect:NAME" is opened as by md_elect. MD_EBRACES for an address with
 * { or }: Python replaces what is in braces, as in elect:shop@{env:RELEASE}, before the name comes
 * here, and a program in C has to do the same. As md_create, md_attach; but of an address fd:... whose
 * process has closed the registry, MD_EDIED in place of MD_ENOENT. */
int md_open_default(const char *address, md_registry *out);

/* Closes a handle, once for each time that it was opened; the process's last close unmaps the
 * registry. Calls under way in other threads end first. MD_ECLOSED. */
int md_close(md_registry reg);

/* The address by which other processes of this machine find the registry, terminated: shm:NAME or,
 * without a name, fd:PID:NUMBER:UUID:BOOT:SPACE, where PID has it open as the descriptor NUMBER; BOOT
 * and SPACE are its origin (md_origin). MD_ECLOSED, MD_ENOBUFS. */
int md_address(md_registry reg, char *buf, size_t cap);

/* Makes an interpreter of this process a member, and returns its role. It is MD_MAIN for the first
 * membership of interpreter 0 and for that of MD_HOST in the process that created the registry,
 * else MD_WORKER; in a registry of md_elect it is MD_PEER. As MD_AS_BRIDGE it is MD_BRIDGE in a
 * registry of md_bridge, and MD_EROLE in any other. MD_ECLOSED, MD_EMEMBERS, MD_EDAMAGED,
 * MD_ELOCK, MD_ESYS. */
int md_join(md_registry reg, int64_t interp, uint64_t *member, uint32_t *role);

/* Ends a membership: the member's waiters return MD_ECLOSED, and its claims are released. When the
 * main member leaves, the registry is closed for all. When there are two, interpreter 0 and
 * MD_HOST, the facts of the first to leave are struck out, and the second closes the registry.
 * MD_ECLOSED, MD_ENOENT, MD_EDAMAGED, MD_ELOCK. */
int md_leave(md_registry reg, uint64_t member);

/* Puts the member into the queue for a namespace, unless it is in the queue already. `buf` receives
 * the record of the registrar's claim. MD_OK when this member is the registrar, MD_EEXIST when
 * another one is. MD_ECLOSED, MD_EROLE (not a member of this process), MD_EINVAL (the name has "::" in it), MD_ETOOLONG, MD_EFULL, MD_ENOBUFS, MD_EDAMAGED,
 * MD_ELOCK, MD_ELOST, MD_ESYS. */
int md_claim(md_registry reg, uint64_t member, const char *name, size_t name_len, const char *where,
             size_t where_len, void *buf, size_t cap);

/* Takes the member out of the queue of a namespace. With the last member the namespace loses all
 * its facts, in a registry of md_elect. MD_ENOENT, MD_ECLOSED, MD_EROLE, MD_EINVAL, MD_ETOOLONG, MD_EDAMAGED, MD_ELOCK. */
int md_release(md_registry reg, uint64_t member, const char *name, size_t name_len);

/* Registers a fact and wakes its waiters. `buf` receives the fact's record; on MD_EEXIST, the
 * record of the fact that is in the way. MD_ECLOSED, MD_EROLE, MD_EEXIST, MD_EINVAL, MD_ETOOLONG,
 * MD_EFULL, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK, MD_ELOST, MD_ESYS (no memory for growth). */
int md_register(md_registry reg, uint64_t member, uint32_t kind, uint32_t rule, int32_t key,
                const char *name, size_t name_len, const char *body, size_t body_len,
                const char *where, size_t where_len, void *buf, size_t cap);

/* Strikes out a fact. MD_ENOENT when it is gone already. In a registry of md_elect a fact stays
 * while other members have a claim on its namespace: then this returns MD_EROLE. MD_ECLOSED,
 * MD_EROLE, MD_EDAMAGED, MD_ELOCK. */
int md_strike(md_registry reg, uint64_t member, uint64_t ref, uint64_t seq);

/* Finds the newest live fact of exactly this kind, name and key. Takes the lock only when writers
 * keep changing the facts of this name while it reads them. MD_ENOENT, MD_ECLOSED, MD_EINVAL,
 * MD_ETOOLONG, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK. */
int md_find(md_registry reg, uint32_t kind, int32_t key, const char *name, size_t name_len,
            void *buf, size_t cap);

/* The same, without ever taking the lock: MD_ELOCK where md_find would have taken it, and writers of
 * this name were too fast. For those who hold a lock of their own, and call md_find without it then.
 * MD_ENOENT, MD_ECLOSED, MD_EINVAL, MD_ETOOLONG, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK. */
int md_find_at_once(md_registry reg, uint32_t kind, int32_t key, const char *name, size_t name_len,
                    void *buf, size_t cap);

/* Waits until there are at least `at_least` live facts of exactly this kind, name and key, and
 * returns the newest. It counts every kernel of a key, also one whose text says that it cannot
 * serve where it was registered (docs/choosing-kernels.md). A caller to whom that matters looks at
 * the text, and waits for one fact more. `ticket` names this wait for md_cancel; with 0, only a
 * cancel of all waits ends it. Adds to `stats`. MD_ETIMEDOUT, MD_EINTR, MD_EDIED, MD_ECLOSED,
 * MD_ECANCELED, MD_ENOENT (no member of this process), MD_EINVAL, MD_ETOOLONG, MD_ENOBUFS,
 * MD_EDAMAGED, MD_ELOCK, MD_ESYS.
 */
int md_await(md_registry reg, uint64_t member, uint32_t kind, int32_t key, uint32_t at_least,
             const char *name, size_t name_len, int64_t deadline_ns, uint64_t ticket, void *buf,
             size_t cap, md_wait_stats *stats);

/* As md_await, but it also ends, with MD_EELECTED, when the fact is missing and the member is the
 * registrar of its namespace. (md_await goes on waiting when a registrar dies.) */
int md_await_or_elect(md_registry reg, uint64_t member, uint32_t kind, int32_t key,
                      uint32_t at_least, const char *name, size_t name_len, int64_t deadline_ns,
                      uint64_t ticket, void *buf, size_t cap, md_wait_stats *stats);

/* Waits until the registry's sequence differs from `seq`, and returns the present sequence. Every
 * registration and every strike raises it. It is never 0, so a call with `seq` 0 returns at once.
 * All facts with a smaller seq can be read already: a caller that takes the sequence, then lists
 * the facts, and then waits for another sequence misses no change. Several changes may come as one,
 * so a caller may never see a fact that lived for a moment only. After a writer's death the
 * sequence may differ although no fact does. `ticket` and `stats` as for md_await. `now_seq` is
 * always written, with `seq` itself if there is no other. MD_ETIMEDOUT, MD_EINTR, MD_EDIED,
 * MD_ECLOSED, MD_ECANCELED, MD_ENOENT (no member of this process), MD_EINVAL, MD_EDAMAGED,
 * MD_ESYS. */
int md_await_change(md_registry reg, uint64_t member, uint64_t seq, int64_t deadline_ns,
                    uint64_t ticket, uint64_t *now_seq, md_wait_stats *stats);

/* Ends this member's waits with this ticket; with ticket 0, all its waits. MD_ECLOSED. */
int md_cancel(md_registry reg, uint64_t member, uint64_t ticket);

/* Lists all live facts of a name, or with name NULL of all names, oldest first. `size` receives the
 * number of bytes written (with MD_ENOBUFS: needed); `version` and `node`, which are 0 while the
 * name has no facts, receive the name's version and its place for md_version. Takes the lock as
 * md_find does. MD_ECLOSED, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK. */
int md_list(md_registry reg, const char *name, size_t name_len, void *buf, size_t cap, size_t *size,
            uint64_t *version, uint64_t *node);

/* Lists the live facts of a kind (0: of all kinds) whose seq is at least `since`; those of one name
 * are oldest first. `live` receives the number of all live facts of the kind: a caller that knows
 * the older ones can tell by it whether one of them is gone. `size` and the lock as for md_list.
 * MD_ECLOSED, MD_ENOBUFS, MD_EDAMAGED, MD_ELOCK. */
int md_list_since(md_registry reg, uint32_t kind, uint64_t since, void *buf, size_t cap,
                  size_t *size, uint64_t *live);

/* The version word of a name. Every change that concerns the name raises it afterwards. When the last
 * fact of the name is struck, its place may serve another name. But a place stays a place of names,
 * and its word never returns to a value that it had: whoever remembers place and version lists the
 * name again when the version has changed, and is never wrong before. MD_ECLOSED, MD_EINVAL. */
int md_version(md_registry reg, uint64_t node, uint64_t *version);

/* Keeps the region's memory where it is until md_let_go, even after md_close: for callers that read
 * a word of md_word without a call. MD_ECLOSED, MD_ESYS (no memory). */
typedef struct md_held md_held;
int md_hold(md_registry reg, md_held **out);
void md_let_go(md_held *held);

/* The address of a name's version word or, with node 0, of the registry's sequence (the one of
 * md_await_change). Others may write both at any time: read them atomically, with acquire order,
 * while the region is held. After a close they have no meaning. MD_ECLOSED, MD_EINVAL. */
int md_word(md_registry reg, uint64_t node, const uint64_t **word);

/* Lists the members, with dead ones that were not swept yet. `count` receives how many there are.
 * MD_ECLOSED. */
int md_members(md_registry reg, md_member_info *infos, size_t cap, size_t *count);

/* The registry's figures. MD_ECLOSED. */
int md_stat(md_registry reg, md_stats *out);

/* Takes the lock, computes all derived values again, and compares. `buf` receives a line of words
 * for each broken invariant, terminated; MD_OK when there is none. MD_EDAMAGED, MD_ECLOSED,
 * MD_ELOCK. */
int md_check(md_registry reg, char *buf, size_t cap);

/* What md_inspect sees of a registry from outside. */
typedef struct md_inspection {
    md_stats stats;
    uint64_t device; /* with the inode: the same for all addresses of one registry */
    uint64_t inode;
    uint64_t kinds[32]; /* live facts of each md_kind */
    int32_t attach;     /* what md_attach would return now: 0, MD_ECLOSED, MD_EDIED, MD_EDAMAGED, or
                           MD_EBOOT, MD_ENAMESPACE (then `alive` may be wrong) */
    uint32_t alive;     /* processes that have joined and are alive */
    uint32_t dead;      /* processes that have died and were not swept yet */
    uint32_t lock_tid;  /* the thread that holds the lock; 0: none does */
    uint32_t lock_died; /* 1: that thread has died, and the next to take the lock recovers */
    uint32_t torn;      /* 1: the chain of its blocks is broken, see md_check */
    uint32_t fixed;     /* bytes of the capacity that no fact can use */
    uint32_t format;    /* of the region; also with MD_EVERSION. 0: not known */
    uint32_t reserved;
    char address[192]; /* the address for md_attach */
} md_inspection;

/* Reads the registry with this name or address (of an address, fd:PID:NUMBER is enough) without
 * opening it: takes no lock, joins nothing, keeps nothing, changes nothing. So it works for a
 * registry that md_attach refuses or that a stopped process has locked; but the figures are not
 * from one moment. Members as for md_members. MD_ENAME, MD_ENOENT, MD_EDIED (no such process),
 * MD_EBOOT and MD_ENAMESPACE (so says the address, and it does not lead to the registry from here),
 * MD_EFORMAT, MD_EVERSION, MD_EDAMAGED (truncated), MD_EOWNER, MD_ENOTFILE, MD_EFOLDER, MD_ESYS. */
int md_inspect(const char *address, md_inspection *out, md_member_info *infos, size_t cap,
               size_t *count);

/* Where the registry with this name or address was made, also one that md_attach refuses for it: its
 * origin, BOOT:SPACE, terminated. BOOT is the kernel's boot id, 32 hexadecimal digits, SPACE the
 * number of the PID namespace (the inode of /proc/self/ns/pid). Of an address fd:... its text tells,
 * and nothing is opened. NULL or "" asks for the origin of this process. A buffer of 54 bytes is
 * enough. MD_ENAME, MD_ENOENT, MD_EFORMAT, MD_EVERSION, MD_EDAMAGED, MD_EOWNER, MD_ENOTFILE,
 * MD_EFOLDER, MD_ENOBUFS, MD_ESYS. */
int md_origin(const char *address, char *buf, size_t cap);

/* The folder with the files of this user's named registries, terminated; MD_MAX_ADDRESS bytes are
 * enough. `buf` receives the path also with MD_ENOENT (the folder does not exist yet), MD_EOWNER
 * (other users can get into it) and MD_EFOLDER ("" when it cannot be a path); MD_ENOBUFS,
 * MD_ESYS. */
int md_folder(char *buf, size_t cap);

/* Removes the file of a named registry that is no longer in use: all processes that joined it are
 * dead or, if it is damaged or of another version, boot or PID namespace, no process has it open.
 * Creators wait meanwhile. MD_EEXIST (it is in use and stays), MD_EDAMAGED, MD_EVERSION, MD_EBOOT,
 * MD_ENAMESPACE (it stays, since a process has it open), MD_EBUSY (a creator does not go on),
 * MD_EINTR, MD_ENAME, MD_ENOENT, MD_EFORMAT, MD_EOWNER, MD_ENOTFILE, MD_EFOLDER, MD_ESYS. */
int md_reap(const char *name);

/* contract ends */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
