/* member.c - who is there: processes with their leases, interpreters with their slots.
 *
 * Note [Leases]
 * A process's lease is a robust mutex in its slot that it holds for as long as it has the region
 * open. Nobody ever waits for it with a lock call: others only look at its word. When the process
 * ends, however it ends, the kernel marks the word FUTEX_OWNER_DIED and, if FUTEX_WAITERS is set in
 * it, wakes one sleeper; that one wakes the rest.
 *
 * The owner of a robust mutex is a thread. The process's main thread lives as long as the process
 * does, so it takes the lease itself when it is the one that joins. When another thread joins (the
 * process has threads then anyway), a thread of our own takes it and does nothing else. (Such a
 * thread in every process would make every fork() of it a fork of a multi-threaded process, about
 * which CPython 3.12+ rightly warns.)
 *
 * Slot 0 belongs to the creator, whose lease waiters watch; it is never given to anyone else. Where
 * there is no main member (elect.c) it is a slot like the others, and waiters watch the registrar's.
 *
 * Slots are taken and given back under the region's mutex. A slot counts from the moment its state
 * says so, which is after its lease is held; a death in between leaves a free slot, whose mutex is
 * made anew when it is taken.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"
#include "kernels.h"

struct md__lease_thread {
    pthread_t thread;
    pthread_mutex_t *lease;
    int refused;   /* why it could not be had; set before phase 3 */
    md__u32 phase; /* 0 starting, 1 held, 2 asked to let go, 3 could not be had */
};

/* Where in a pthread_mutex_t the C library keeps the futex word: found by looking, not assumed. */
static md__u32 lease_word_at;
static md__u32 lease_word_known;

/* 0 when a lease's word can be watched. Called before the first region is opened, under the process
 * lock. */
int md__lease_probe(void) {
    if (md__peek32(&lease_word_known)) return 0;
    pthread_mutex_t m;
    int rc = md__mutex_init(&m);
    if (rc) return rc;
    pthread_mutex_lock(&m);
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    uint32_t words[sizeof m / 4];
    memcpy(words, &m, sizeof m);
    rc = MD_ESYS - ENOTSUP;
    for (uint32_t i = 0; i < sizeof m / 4 && rc; i++) { /* one-sided: no C library is without it */
        if ((words[i] & FUTEX_TID_MASK) != tid) continue; /* one-sided: glibc has it in front */
        md__poke32(&lease_word_at, i * 4);
        md__poke32(&lease_word_known, 1);
        rc = 0;
    }
    pthread_mutex_unlock(&m);
    pthread_mutex_destroy(&m);
    return rc;
}

md__u32 *md__mutex_word(pthread_mutex_t *m) {
    return (md__u32 *)((char *)m + md__peek32(&lease_word_at));
}

md__u32 *md__lease_word(struct md__process *p) {
    return md__mutex_word(&p->lease);
}

int md__lease_is_dead(struct md__process *p) {
    return (md__read32(md__lease_word(p)) & FUTEX_OWNER_DIED) != 0;
}

static void *hold_lease(void *arg) {
    struct md__lease_thread *t = arg;
    t->refused = pthread_mutex_trylock(t->lease);
    int held = t->refused == 0;
    md__publish32(&t->phase, held ? 1 : 3);
    md__futex_wake(&t->phase, INT_MAX);
    while (held && md__read32(&t->phase) == 1) md__futex_wait(&t->phase, 1);
    if (held) pthread_mutex_unlock(t->lease);
    return NULL;
}

/* An errno. */
static int spawn(struct md__lease_thread *t) {
    pthread_attr_t attr;
    sigset_t all, before;
    int rc = pthread_attr_init(&attr);
    if (rc) return rc;
    pthread_attr_setstacksize(&attr, 128 * 1024); /* refused: a larger one serves as well */
    sigfillset(&all);                             /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&t->thread, &attr, hold_lease, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

static int start_lease_thread(md__reg *reg, pthread_mutex_t *lease) {
    struct md__lease_thread *t = calloc(1, sizeof *t);
    if (!t) return MD_ESYS - ENOMEM;
    t->lease = lease;
    int rc = spawn(t);
    if (rc == 0) {
        while (md__read32(&t->phase) == 0) md__futex_wait(&t->phase, 0);
        rc = t->refused;
        if (rc) pthread_join(t->thread, NULL);
    }
    if (rc) {
        free(t);
        return MD_ESYS - rc;
    }
    reg->lease_thread = t;
    return 0;
}

int md__on_main_thread(void) {
    return syscall(SYS_gettid) == getpid();
}

static int take_lease(md__reg *reg, struct md__process *p) {
    int rc = md__mutex_init(&p->lease);
    if (rc) return rc;
    if (!md__on_main_thread()) return start_lease_thread(reg, &p->lease);
    rc = pthread_mutex_trylock(&p->lease);
    return rc ? MD_ESYS - rc : 0;
}

/* Lets the lease go, if this thread can. A mutex must be released by the thread that has it: when
 * that is the main thread and we are not, the lease, and with it the mapping it lies in, stays
 * until the process ends. */
static void drop_lease(md__reg *reg, struct md__process *p) {
    struct md__lease_thread *t = reg->lease_thread;
    if (t) {
        md__publish32(&t->phase, 2);
        md__futex_wake(&t->phase, INT_MAX);
        pthread_join(t->thread, NULL);
        free(t);
        reg->lease_thread = NULL;
    } else if (md__on_main_thread()) {
        pthread_mutex_unlock(&p->lease);
    } else {
        reg->parked = 1;
    }
}

/* Under the region's mutex. */
int md__process_join(md__reg *reg) {
    struct md__header *h = md__header(reg);
    if (reg->process != MD__NO_SLOT) return 0;
    uint32_t first = reg->creator || md__is_elect(reg) ? 0 : 1, top = md__read32(&h->process_top),
             i;
    for (i = first; i < MD_MAX_PROCESSES && i < top; i++) {
        if (md__read32(&md__process(reg, i)->state) == MD__FREE) break;
    }
    if (i >= MD_MAX_PROCESSES) return MD_EMEMBERS;
    struct md__process *p = md__process(reg, i);
    int rc = take_lease(reg, p);
    if (rc) return rc;
    md__poke32(&p->pid, (uint32_t)getpid());
    md__poke32(&p->generation, md__peek32(&p->generation) + 1);
    md__publish32(&p->state, MD__LIVE);
    if (i >= top) md__publish32(&h->process_top, i + 1);
    reg->process = i;
    return 0;
}

static void free_member(struct md__member *m) {
    md__poke32(&m->generation, md__peek32(&m->generation) + 1);
    md__publish32(&m->state, MD__FREE);
}

static void free_members(md__reg *reg, uint32_t process) {
    md__end_claims(reg, process, MD__ALL);
    uint32_t top = md__read32(&md__header(reg)->member_top);
    for (uint32_t i = 0; i < top && i < MD_MAX_MEMBERS; i++) {
        struct md__member *m = md__member(reg, i);
        if (md__read32(&m->state) != MD__FREE && md__peek32(&m->process) == process) free_member(m);
    }
}

/* The name goes first: as soon as the state says closed, another process may give it to a registry
 * of its own. */
static void close_registry(md__reg *reg) {
    struct md__header *h = md__header(reg);
    md__region_unlink(reg);
    md__publish32(&h->main_state, MD__MAIN_LEFT);
    md__publish32(&h->state, MD__CLOSED);
    md__event_ring_all(reg);
}

/* Of a slot that is not free. */
static bool is_here(struct md__process *p) {
    uint32_t word = md__read32(md__lease_word(p));
    return !(word & FUTEX_OWNER_DIED) && (word & FUTEX_TID_MASK);
}

/* Whether any process but this one is there: one that is leaving may still have its lease. */
int md__is_anyone_here(md__reg *reg) {
    uint32_t top = md__read32(&md__header(reg)->process_top);
    for (uint32_t i = 0; i < top && i < MD_MAX_PROCESSES; i++) {
        struct md__process *p = md__process(reg, i);
        if (i != reg->process && md__read32(&p->state) == MD__LIVE && is_here(p)) return 1;
    }
    return 0;
}

/* Takes along the members that did not leave before. Nobody registers once the creator is gone, or
 * the last one of those who have no main member.
 *
 * Where the lock cannot be had (damaged, or its holder is stopped) it leaves all the same. Facts are
 * not to be touched then, so claims stay, and with them the members and the slot: it is as if the
 * process had died, and whoever sweeps next finds that nobody has its lease. */
void md__process_leave(md__reg *reg) {
    if (reg->process == MD__NO_SLOT) return;
    struct md__process *p = md__process(reg, reg->process);
    int locked = md__lock(reg) == 0;
    bool elect = md__is_elect(reg), clears = locked || !elect;
    if (locked && elect) md__sweep(reg);
    if (elect ? locked && !md__is_anyone_here(reg) : reg->creator) close_registry(reg);
    if (clears) free_members(reg, reg->process);
    drop_lease(reg, p);
    if (clears && (reg->process != 0 || elect))
        md__publish32(&p->state, reg->parked ? MD__LEAVING : MD__FREE);
    reg->process = MD__NO_SLOT;
    if (locked) md__unlock(reg);
}

/* In the child of a fork: nothing of the parent's is ours. Its lease thread did not come along. */
void md__process_forked(md__reg *reg) {
    md__publish32(&reg->forked, 1);
    free(reg->lease_thread);
    reg->lease_thread = NULL;
    reg->process = MD__NO_SLOT;
    reg->creator = 0;
    reg->parked = 0;
    reg->waits = NULL;
    reg->paced = 0;
    md__poke32(&reg->waiting, 0);
    pthread_mutex_init(&reg->waits_lock, NULL);
}

/* Frees the slots of processes that ended without saying so. Under the region's mutex. */
void md__sweep(md__reg *reg) {
    struct md__header *h = md__header(reg);
    uint32_t processes = MD_FAULT_IS(16) ? 0 : md__read32(&h->process_top);
    for (uint32_t i = md__is_elect(reg) ? 0 : 1; i < processes && i < MD_MAX_PROCESSES; i++) {
        struct md__process *p = md__process(reg, i);
        if (md__read32(&p->state) == MD__FREE || is_here(p)) continue;
        free_members(reg, i);
        md__publish32(&p->state, MD__FREE);
    }
}

/* The slot behind a member's handle, when it is a member of this very process. */
int md__member_check(const md__reg *reg, uint64_t member, struct md__member **out) {
    uint32_t i = (uint32_t)member;
    if (i >= MD_MAX_MEMBERS) return MD_ENOENT;
    struct md__member *m = md__member(reg, i);
    if (md__read32(&m->state) != MD__LIVE || md__peek32(&m->generation) != member >> 32)
        return MD_ECLOSED;
    if (md__peek32(&m->process) != reg->process) return MD_ENOENT;
    *out = m;
    return 0;
}

static md__u32 host_joined; /* atomic, any thread; never taken back */

int md_has_host(void) {
    return md__read32(&host_joined) != 0;
}

/* The main member that joined as `interp`: interpreter 0, or the host; both of the creator's process. */
static struct md__member *find_main(const md__reg *reg, int64_t interp) {
    uint32_t top = md__read32(&md__header(reg)->member_top);
    for (uint32_t i = 0; i < top && i < MD_MAX_MEMBERS; i++) {
        struct md__member *m = md__member(reg, i);
        if (md__read32(&m->state) == MD__LIVE && md__peek32(&m->role) == MD_MAIN &&
            md__peek32(&m->process) == 0 && (int64_t)md__peek64(&m->interp) == interp)
            return m;
    }
    return NULL;
}

static int join(md__reg *reg, int64_t interp, uint64_t *member, uint32_t *role) {
    struct md__header *h = md__header(reg);
    if (md__read32(&h->state) == MD__CLOSED) return MD_ECLOSED;
    /* Of a team's name a newer registry may be in use by now; a main member needs no name. */
    if (md__is_elect(reg) && reg->process == MD__NO_SLOT && !md__region_is_named(reg))
        return MD_ECLOSED;
    md__sweep(reg);
    int rc = md__process_join(reg);
    if (rc) return rc;
    uint32_t top = md__read32(&h->member_top), i = 0;
    while (i < MD_MAX_MEMBERS && i < top && md__read32(&md__member(reg, i)->state) != MD__FREE) i++;
    if (i >= MD_MAX_MEMBERS) return MD_EMEMBERS;
    struct md__member *m = md__member(reg, i);
    *role = MD_WORKER;
    if (md__is_elect(reg))
        *role = MD_PEER;
    else if (reg->creator && (interp == 0 || interp == MD_HOST) && !find_main(reg, interp))
        *role = MD_MAIN;
    md__poke32(&m->process, reg->process);
    md__poke32(&m->role, *role);
    md__poke64(&m->interp, (uint64_t)interp);
    md__poke32(&m->waiters, 0);
    md__publish32(&m->state, MD__LIVE);
    if (i >= top) md__publish32(&h->member_top, i + 1);
    if (*role == MD_MAIN) md__publish32(&h->main_state, MD__MAIN_HERE);
    if (interp == MD_HOST) md__publish32(&host_joined, 1);
    *member = (uint64_t)md__peek32(&m->generation) << 32 | i;
    return 0;
}

int md_join(md_registry handle, int64_t interp, uint64_t *member, uint32_t *role) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = md__lock(reg);
    if (rc == 0) {
        rc = join(reg, interp, member, role);
        md__unlock(reg);
    }
    md__exit(reg);
    return rc;
}

/* Sends this process's sleepers of one member to look again; to cancel ends those with the ticket
 * (0: any). */
void md__disturb(md__reg *reg, uint64_t member, uint64_t ticket, int cancel) {
    pthread_mutex_lock(&reg->waits_lock);
    for (struct md__wait *w = reg->waits; w; w = w->next) {
        if (w->member != member || (ticket && w->ticket != ticket)) continue;
        if (cancel) md__publish32(&w->cancelled, 1);
        md__event_ring(w->event);
    }
    pthread_mutex_unlock(&reg->waits_lock);
}

void md__disturb_all(md__reg *reg) {
    pthread_mutex_lock(&reg->waits_lock);
    for (struct md__wait *w = reg->waits; w; w = w->next) md__event_ring(w->event);
    pthread_mutex_unlock(&reg->waits_lock);
}

int md_leave(md_registry handle, uint64_t member) {
    md__reg *reg;
    struct md__member *m;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    rc = md__lock(reg);
    if (rc == 0) {
        rc = md__member_check(reg, member, &m);
        if (rc == 0) {
            if (md__peek32(&m->role) == MD_MAIN) {
                int64_t other = md__peek64(&m->interp) == 0 ? MD_HOST : 0;
                if (find_main(reg, other))
                    md__strike_all_of(reg, member);
                else
                    close_registry(reg);
            }
            md__end_claims(reg, reg->process, member);
            free_member(m);
        }
        md__unlock(reg);
    }
    if (rc == 0) md__disturb(reg, member, 0, 0);
    md__exit(reg);
    return rc;
}

int md_cancel(md_registry handle, uint64_t member, uint64_t ticket) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    md__disturb(reg, member, ticket, 1);
    md__exit(reg);
    return 0;
}

void md__members(md__reg *reg, md_member_info *infos, size_t cap, size_t *count) {
    uint32_t top = md__read32(&md__header(reg)->member_top);
    *count = 0;
    for (uint32_t i = 0; i < top && i < MD_MAX_MEMBERS; i++) {
        const struct md__member *m = md__member(reg, i);
        if (md__read32(&m->state) == MD__FREE) continue;
        uint32_t slot = md__peek32(&m->process);
        if (slot >= MD_MAX_PROCESSES) continue;
        struct md__process *p = md__process(reg, slot);
        size_t n = (*count)++;
        if (n >= cap) continue;
        md_member_info *info = &infos[n];
        memset(info, 0, sizeof *info);
        info->interp = (int64_t)md__peek64(&m->interp);
        info->pid = md__peek32(&p->pid);
        info->role = md__peek32(&m->role);
        info->alive = !md__lease_is_dead(p);
        info->waiters = md__peek32(&m->waiters);
        if (info->waiters) {
            info->waiting_ns = md__peek64(&m->waiting_ns);
            info->wait_kind = md__peek32(&m->wait_kind);
            info->wait_key = (int32_t)md__peek32(&m->wait_key);
            md__load_words(info->wait_name, m->wait_name, sizeof info->wait_name);
            info->wait_name[sizeof info->wait_name - 1] = '\0';
        }
    }
}

int md_members(md_registry handle, md_member_info *infos, size_t cap, size_t *count) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    md__members(reg, infos, cap, count);
    md__exit(reg);
    return 0;
}

/* Who holds a lock: the thread's id, 0 for nobody. */
uint32_t md__mutex_owner(const pthread_mutex_t *m, int *died) {
    uint32_t word = md__read32((const md__u32 *)((const char *)m + md__peek32(&lease_word_at)));
    *died = (word & FUTEX_OWNER_DIED) != 0;
    return word & FUTEX_TID_MASK;
}
