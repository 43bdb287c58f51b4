/* stepper.h - tries every death that a process can die in an operation, without ending the
 * operation.
 *
 * A child runs with the processor's trap flag set. After each instruction its SIGTRAP handler looks
 * whether the region has changed; if so, the child stops and tells its parent. At such a stop a
 * twin can be killed in the child's place: the child forks in its handler, the twin replaces its
 * mapping of the region by a copy of the region as it is at this instant, and the twin is killed.
 * The copy then has what the kernel makes of the death of a process at that very instruction. That
 * includes its robust mutexes, even between taking the word and entering it in the list: the list
 * is the twin's own memory, with the content that the child's had at that instruction.
 *
 * One thing needs help: the word of a robust mutex has its holder's thread id, and a twin has its
 * own id. So in the copy the child's id in such words becomes the twin's, and the twin tells the
 * kernel where its list of robust mutexes is (as the C library's fork does).
 *
 * A trap comes after the instruction that follows a system call, not before it. None of the system
 * calls made here writes to the region, so no image is lost. (A stop by ptrace, which trace.h uses
 * for single points, costs several times as much as a signal.)
 *
 * Only x86-64 has the trap flag.
 */
#ifndef MD_TESTS_STEPPER_H
#define MD_TESTS_STEPPER_H

#include <linux/futex.h>

#include "trace.h"

enum { LOOK_AT_SLOTS = 8 }; /* tests never use more; stepper_end checks that */

/* Memory that the child and its parent share. */
struct stops {
    md__u32 calls_done; /* how many calls of its operation the child has made */
    long instructions;
    uint64_t list[3]; /* the head of the child's robust list, and the pending entry */
};

struct stepper {
    pid_t pid;
    md__reg *reg; /* the parent's own side of the region */
    char *base;   /* another mapping of it, which stays */
    char *was;    /* the region at the last look */
    char *view;   /* the parent's mapping of the copy */
    int copy;     /* the copy's file */
    uint64_t was_committed;
    uint32_t was_calls;
    uint64_t was_list[3];
    const uint64_t *list; /* in the child: the list itself */
    struct stops *stops;
    struct step said, told; /* by the child, to the child */
    int changed;            /* the region or the list, at this stop */
};

/* --- the region's bytes ----------------------------------------------------------------------- */

struct span {
    uint64_t at, size;
};

/* All that can change, without the slots that are never used: that saves time. */
static inline void spans_of(uint64_t committed, struct span spans[4]) {
    spans[0] = (struct span){0, MD__PROCESSES_AT};
    spans[1] = (struct span){MD__PROCESSES_AT, LOOK_AT_SLOTS * sizeof(struct md__process)};
    spans[2] = (struct span){MD__MEMBERS_AT, LOOK_AT_SLOTS * sizeof(struct md__member)};
    spans[3] = (struct span){MD__ARENA_AT, committed - MD__ARENA_AT};
}

static inline uint64_t hash_bytes(uint64_t h, const void *bytes, size_t size) {
    const char *p = bytes;
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    for (; size; size--, p++) h = (h ^ (unsigned char)*p) * 0x100000001b3ull;
    return h;
}

/* Identifies the image of this instant: the region's bytes and the head of the child's robust list.
 * The two decide what the child's death would leave. */
static inline uint64_t image_hash(const struct stepper *s) {
    struct span spans[4];
    uint64_t h = hash_bytes(1, s->was_list, sizeof s->was_list);
    spans_of(s->was_committed, spans);
    for (int i = 0; i < 4; i++) h = hash_bytes(h, s->was + spans[i].at, spans[i].size);
    return h;
}

/* Brings `was` up to date. Returns whether anything has changed. */
static inline int look_for_changes(struct stepper *s, const uint64_t list[3]) {
    const struct md__header *h = (const struct md__header *)s->base;
    uint64_t committed = md__peek64(&h->committed);
    struct span spans[4];
    int changed = committed != s->was_committed;
    spans_of(committed, spans);
    for (int i = 0; i < 4; i++) {
        const char *now = s->base + spans[i].at;
        if (!changed && memcmp(s->was + spans[i].at, now, spans[i].size) == 0) continue;
        memcpy(s->was + spans[i].at, now, spans[i].size);
        changed = 1;
    }
    s->was_committed = committed;
    changed |= memcmp(list, s->was_list, sizeof s->was_list) != 0;
    memcpy(s->was_list, list, sizeof s->was_list);
    return changed;
}

static inline uint32_t holder_of_the_lock(const char *region) {
    const struct md__header *h = (const struct md__header *)region;
    return md__read32(md__lease_word((struct md__process *)&h->mutex));
}

/* --- in the child ----------------------------------------------------------------------------- */

enum { GO_ON = 'g', MAKE_TWIN = 't', STOPPED = 's' };

static struct stepper *stepped; /* in the child only */

static inline void say(struct step s, char c) {
    while (write(s.fd[1], &c, 1) < 0 && errno == EINTR) {}
}
static inline int hear(struct step s) {
    char c;
    ssize_t n;
    while ((n = read(s.fd[0], &c, 1)) < 0 && errno == EINTR) {}
    return n == 1 ? c : 0;
}

/* A sibling of the child, for which the parent waits. It is killed while it sleeps. */
static inline void make_twin(const struct stepper *s) {
    if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL)) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    void *p = mmap(s->reg->base, s->reg->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   s->copy, 0);
    if (p != MAP_FAILED && syscall(SYS_set_robust_list, s->list, 24) == 0) {
        pid_t self = (pid_t)syscall(SYS_getpid);
        if (write(s->said.fd[1], &self, sizeof self) == sizeof self) {
            for (;;) pause();
        }
    }
    _exit(9);
}

static inline void stop_and_tell(struct stepper *s) {
    int order;
    memcpy(s->stops->list, s->list, sizeof s->stops->list);
    say(s->said, STOPPED);
    while ((order = hear(s->told)) == MAKE_TWIN) make_twin(s);
    if (order != GO_ON) _exit(8);
}

static inline void on_step(int signal) {
    struct stepper *s = stepped;
    int saved = errno;
    s->stops->instructions++;
    int changed = look_for_changes(s, s->list);
    uint32_t calls = md__read32(&s->stops->calls_done);
    if (changed || calls != s->was_calls) stop_and_tell(s);
    s->was_calls = calls;
    errno = saved;
}

#if defined(__x86_64__)
enum { STEPPER_WORKS = 1 };

static inline void trap_each_instruction(int on) {
    uint64_t trap = 1 << 8, flags = __builtin_ia32_readeflags_u64();
    __builtin_ia32_writeeflags_u64(on ? flags | trap : flags & ~trap);
}
#else
enum { STEPPER_WORKS = 0 };

static inline void trap_each_instruction(int on) {
    abort();
}
#endif

/* The child is stepped from here to be_stepped_no_more. */
static inline void be_stepped(struct stepper *s) {
    struct sigaction on = {.sa_handler = on_step};
    size_t len;
    stepped = s;
    if (syscall(SYS_get_robust_list, 0, &s->list, &len) || len != 24) abort();
    close(s->said.fd[0]);
    close(s->told.fd[1]);
    look_for_changes(s, s->list);
    sigaction(SIGTRAP, &on, NULL);
    stop_and_tell(s);
    trap_each_instruction(1);
}

static inline void be_stepped_no_more(void) {
    trap_each_instruction(0);
}

/* --- in the parent ---------------------------------------------------------------------------- */

/* Begins stepping in one registry, for any number of children, one after the other. */
static inline void stepper_open(struct stepper *s, md_registry handle) {
    memset(s, 0, sizeof *s);
    OK(md__enter(handle, &s->reg));
    md__exit(s->reg); /* the parent keeps it open */
    size_t size = s->reg->mapped;
    s->copy = memfd_create("image", MFD_CLOEXEC);
    s->base = mmap(NULL, size, PROT_READ, MAP_SHARED, s->reg->fd, 0);
    s->was = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    s->view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, s->copy, 0);
    s->stops = shared(sizeof *s->stops);
    if (s->copy < 0 || s->base == MAP_FAILED || s->was == MAP_FAILED || s->view == MAP_FAILED)
        abort();
}

static inline void stepper_close(struct stepper *s) {
    munmap(s->base, s->reg->mapped);
    munmap(s->was, s->reg->mapped);
    munmap(s->view, s->reg->mapped);
    munmap(s->stops, sizeof *s->stops);
    close(s->copy);
}

/* Whether the child came to a stop; else it ended. */
static inline int await_stop(struct stepper *s) {
    if (hear(s->said) != STOPPED) return 0;
    s->changed = look_for_changes(s, s->stops->list);
    return 1;
}

/* Starts a child that calls be_stepped(); returns at its first stop, before any change. */
static inline void stepper_start(struct stepper *s, void (*body)(void *), void *arg) {
    memset(s->stops, 0, sizeof *s->stops);
    s->was_calls = 0;
    s->said = step_make();
    s->told = step_make();
    s->pid = child(body, arg);
    close(s->said.fd[1]); /* so that the child's end is the pipe's end */
    close(s->told.fd[0]);
    if (!await_stop(s)) abort();
    s->changed = 1;
}

/* Lets it go to the next stop. Returns 0 when the child has finished. */
static inline int stepper_next(struct stepper *s) {
    say(s->told, GO_ON);
    return await_stop(s);
}

static inline void rename_holder(md__u32 *word, pid_t from, pid_t to) {
    uint32_t is = md__peek32(word);
    if ((is & FUTEX_TID_MASK) == (uint32_t)from)
        md__poke32(word, (is & ~(uint32_t)FUTEX_TID_MASK) | (uint32_t)to);
}

static inline void take_copy(struct stepper *s, pid_t twin) {
    struct stat st;
    if (fstat(s->reg->fd, &st)) abort();
    /* First shortened to the bytes that are copied: this removes what was written behind the last
     * image. */
    if (ftruncate(s->copy, (off_t)s->was_committed) || ftruncate(s->copy, st.st_size)) abort();
    memcpy(s->view, s->base, s->was_committed);
    struct md__header *h = (struct md__header *)s->view;
    rename_holder(md__lease_word((struct md__process *)&h->mutex), s->pid, twin);
    for (int i = 0; i < LOOK_AT_SLOTS; i++) {
        struct md__process *p = (struct md__process *)(s->view + MD__PROCESSES_AT) + i;
        rename_holder(md__lease_word(p), s->pid, twin);
    }
}

/* Kills the stopped child's twin, here and now, in a copy of the region. */
static inline void stepper_kill_twin(struct stepper *s) {
    pid_t twin;
    say(s->told, MAKE_TWIN);
    if (read(s->said.fd[0], &twin, sizeof twin) != sizeof twin) abort();
    take_copy(s, twin);
    kill(twin, SIGKILL);
    EQ(reap(twin), -SIGKILL);
}

/* For another child of the parent: makes the copy the registry of the handle. */
static inline void enter_copy(const struct stepper *s) {
    void *p = mmap(s->reg->base, s->reg->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   s->copy, 0);
    if (p != s->reg->base || dup2(s->copy, s->reg->fd) < 0) abort();
    note_file(s->reg);
}

/* --- the end of a child ----------------------------------------------------------------------- */

/* All slots that were used were also looked at. */
static inline void check_unused_slots(const struct stepper *s) {
    const char *base = s->base;
    for (uint64_t at = MD__PROCESSES_AT + LOOK_AT_SLOTS * sizeof(struct md__process);
         at < MD__ARENA_AT; at++) {
        if (at == MD__MEMBERS_AT) at += LOOK_AT_SLOTS * sizeof(struct md__member);
        if (base[at]) {
            CHECK(!"a slot is in use that the steps did not look at");
            return;
        }
    }
}

static inline void forget_child(struct stepper *s) {
    close(s->said.fd[0]);
    close(s->told.fd[1]);
    check_unused_slots(s);
}

/* Kills the stopped child itself. */
static inline void stepper_kill(struct stepper *s) {
    kill_now(s->pid);
    forget_child(s);
}

/* Lets the child run to its end, if it has not finished yet. */
static inline void stepper_end(struct stepper *s) {
    do say(s->told, GO_ON);
    while (hear(s->said) == STOPPED);
    EQ(reap(s->pid), 0);
    forget_child(s);
}

#endif
