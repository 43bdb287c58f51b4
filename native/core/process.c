/* process.c - which regions this process has open, and the handles by which callers name them.
 *
 * A handle is a place in a table and a generation. Openings and calls under way are counted apart,
 * in one word: a call enters (refused when the generation is over or the last opening was given
 * back) and exits; whoever brings both counts to 0 gives the region back. So a close never pulls
 * the mapping away from a call under way in another thread, nor does a second close, and a stale
 * handle is answered, not followed.
 *
 * The table's lock is held while a region is opened or given back, and across fork(): the child
 * finds it free and forgets what belongs to its parent only. The lock of kernels.c is taken after
 * it.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"
#include "kernels.h"

enum { HANDLES = 64, SLOT_BITS = 8 };

/* The parts of md__reg.refs below the generation. */
enum { CALL = 1, OPENING = 1 << 16, COUNT = 0xffff };

static const uint64_t DEFAULT_CAPACITY =
    256ull << 20; /* bytes of address space; memory only as it is used */
static const int64_t PATIENCE_NS = 2000000000; /* for a default registry that has a name */

static md__reg table[HANDLES];
static md_registry default_handle; /* under lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int minds_forks; /* set once in set_up() or, when there was no memory, under lock */

/* Under the table's lock. The next generation begins. */
static void give_back(md__reg *reg) {
    md__process_leave(reg);
    md__region_unmap(reg);
    reg->creator = reg->parked = 0;
    reg->address[0] = '\0';
    md__publish64(&reg->refs, ((md__peek64(&reg->refs) >> 32) + 1) << 32);
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
    md__kernels_before_fork();
}

static void after_fork_parent(void) {
    md__kernels_after_fork();
    pthread_mutex_unlock(&lock);
}

/* The calls under way belong to threads that did not come along. */
static void after_fork_child(void) {
    md__kernels_after_fork();
    md__load_after_fork_child();
    for (int i = 0; i < HANDLES; i++) {
        md__reg *reg = &table[i];
        if (!reg->base) continue;
        md__process_forked(reg);
        md__poke64(&reg->refs, md__peek64(&reg->refs) & ~(uint64_t)COUNT);
        if ((uint32_t)md__peek64(&reg->refs) == 0) give_back(reg);
    }
    pthread_mutex_unlock(&lock);
}

static void set_up(void) {
    for (int i = 0; i < HANDLES; i++) {
        table[i].fd = -1;
        table[i].process = MD__NO_SLOT;
        pthread_mutex_init(&table[i].waits_lock, NULL);
    }
    minds_forks = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
}

/* Under the lock, before a region is opened: 0, or why none can be. What failed for want of memory
 * is tried again by the next one who asks. */
static int prepare(void) {
    int rc = md__lease_probe();
    if (rc || minds_forks) return rc;
    rc = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    minds_forks = rc == 0;
    return rc ? MD_ESYS - rc : 0;
}

static md_registry handle_of(const md__reg *reg, uint32_t generation) {
    return (uint64_t)generation << SLOT_BITS | (uint64_t)(reg - table + 1);
}

/* One more CALL or OPENING of a handle that has an opening. */
static int count_up(md_registry handle, uint64_t one, md__reg **out) {
    uint64_t slot = handle & ((1u << SLOT_BITS) - 1), generation = handle >> SLOT_BITS;
    if (slot == 0 || slot > HANDLES) return MD_ECLOSED;
    md__reg *reg = &table[slot - 1];
    uint64_t refs = md__read64(&reg->refs);
    do {
        if (refs >> 32 != generation || (uint32_t)refs < OPENING) return MD_ECLOSED;
        if ((refs & COUNT * one) == COUNT * one) return MD_EHANDLES;
    } while (!md__swap_if64(&reg->refs, &refs, refs + one));
    *out = reg;
    return 0;
}

/* One call less; whether it was the last use of all. */
static bool count_down(md__reg *reg) {
    uint64_t refs = md__read64(&reg->refs);
    while (!md__swap_if64(&reg->refs, &refs, refs - CALL)) {}
    return (uint32_t)refs == CALL;
}

int md__enter(md_registry handle, md__reg **out) {
    return count_up(handle, CALL, out);
}

bool md__is_open(md_registry handle) {
    uint64_t slot = handle & ((1u << SLOT_BITS) - 1), generation = handle >> SLOT_BITS;
    if (slot == 0 || slot > HANDLES) return false;
    uint64_t refs = md__read64(&table[slot - 1].refs);
    return refs >> 32 == generation && (uint32_t)refs >= OPENING;
}

int md__is_closed(const md__reg *reg) {
    return (uint32_t)md__read64(&reg->refs) < OPENING;
}

void md__exit(md__reg *reg) {
    if (!count_down(reg)) return;
    pthread_mutex_lock(&lock);
    give_back(reg);
    pthread_mutex_unlock(&lock);
}

/* A free place in the table, under its lock: what is not mapped has no opening and no call either.
 * Its generation becomes valid when it gets its first opening. */
static md__reg *free_place(void) {
    for (int i = 0; i < HANDLES; i++) {
        if (!table[i].base) return &table[i];
    }
    return NULL;
}

static md_registry first_opening(md__reg *reg) {
    uint64_t refs = md__peek64(&reg->refs);
    md__publish64(&reg->refs, refs + OPENING);
    return handle_of(reg, (uint32_t)(refs >> 32));
}

/* One more opening of what this process has open under this address already. Not of a registry
 * whose main member is gone: its name may be another's by now. */
static int open_again(const char *address, md_registry *out) {
    for (int i = 0; i < HANDLES; i++) {
        md__reg *reg, *place = &table[i];
        if (!place->base || strcmp(place->address, address)) continue;
        md_registry handle = handle_of(place, (uint32_t)(md__peek64(&place->refs) >> 32));
        if (md__enter(handle, &reg)) continue;
        bool opened = md__region_served(reg) == 0 && count_up(handle, OPENING, &reg) == 0;
        if (count_down(place)) give_back(place);
        if (!opened) continue;
        *out = handle;
        return 0;
    }
    return MD_ENOENT;
}

static int create(const char *name, uint64_t capacity, uint32_t policy, md_registry *out) {
    md__reg *reg = free_place();
    if (!reg) return MD_EHANDLES;
    int rc = md__region_create(reg, name, capacity, policy);
    if (rc == 0)
        *out = first_opening(reg);
    else if (reg->base)
        give_back(reg);
    return rc;
}

int md_create(const char *name, uint64_t capacity, md_registry *out) {
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
    int rc = prepare();
    if (rc == 0) rc = create(name, capacity, MD_POLICY_MAIN, out);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Puts a region that was attached outside the lock into the table, unless another thread did the
 * same meanwhile. */
static int keep(const md__reg *attached, md_registry *out) {
    md__reg *reg = open_again(attached->address, out) == 0 ? NULL : free_place();
    if (!reg) {
        munmap(attached->base, attached->mapped);
        close(attached->fd);
        return *out ? 0 : MD_EHANDLES;
    }
    reg->base = attached->base;
    reg->mapped = attached->mapped;
    reg->fd = attached->fd;
    memcpy(reg->address, attached->address, sizeof reg->address);
    *out = first_opening(reg);
    return 0;
}

static bool is_elect_address(const char *address) {
    return strncmp(address, MD__ELECT, strlen(MD__ELECT)) == 0;
}

/* The wait for a name to appear is done without the table's lock. */
int md_attach(const char *address, int64_t deadline_ns, md_registry *out) {
    md__reg fresh = {.fd = -1, .process = MD__NO_SLOT};
    char whole[MD_MAX_ADDRESS];
    *out = 0;
    if (!address || deadline_ns < MD_FOREVER) return MD_EINVAL;
    if (strlen(address) > MD_MAX_ADDRESS - 8) return MD_ENAME;
    address = md__name_in(address);
    snprintf(whole, sizeof whole, "%s%s", strchr(address, ':') ? "" : MD__SHM, address);
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
    int rc = prepare();
    if (rc == 0) rc = open_again(whole, out);
    pthread_mutex_unlock(&lock);
    if (rc != MD_ENOENT) return rc;
    rc = md__region_attach(&fresh, whole, deadline_ns);
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    rc = keep(&fresh, out);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* A registry with a main member is not what was asked for. */
static int refuse_main(md_registry *out) {
    md__reg *reg;
    int rc = md__enter(*out, &reg);
    if (rc) return rc;
    bool elect = md__is_elect(reg);
    md__exit(reg);
    if (elect) return 0;
    md_close(*out);
    *out = 0;
    return MD_EEXIST;
}

/* Creates it or attaches to it, whichever can be done. Between the two it may come or go: then the
 * other one can be. */
int md_elect(const char *name, uint64_t capacity, md_registry *out) {
    int64_t give_up = md_now() + PATIENCE_NS;
    int rc;
    *out = 0;
    if (name && strlen(name) > MD_MAX_REGISTRY_NAME) return MD_ENAME;
    pthread_once(&once, set_up);
    do {
        rc = name ? md_attach(name, 0, out) : MD_ENOENT;
        if (rc == 0) return refuse_main(out);
        if (rc != MD_ENOENT && rc != MD_EDIED && rc != MD_ECLOSED && rc != MD_EBOOT) return rc;
        pthread_mutex_lock(&lock);
        rc = prepare();
        if (rc == 0) rc = create(name, capacity, MD_POLICY_ELECT, out);
        pthread_mutex_unlock(&lock);
    } while (name && rc == MD_EEXIST && md_now() < give_up);
    return rc;
}

/* An address that this very process published, in another life: it has exec'ed since. */
static int is_own_past(const char *address) {
    long pid;
    return sscanf(address, "fd:%ld:", &pid) == 1 && pid == (long)getpid();
}

/* Under the lock: one more opening of the default that is open. Not of a team's that was closed
 * before this process joined it: nobody can join it any more, and who tries opens it anew. */
static int default_again(md_registry *out) {
    md__reg *reg;
    *out = default_handle;
    int rc = md__enter(default_handle, &reg);
    if (rc) return rc;
    bool over = md__is_elect(reg) && md__read32(&md__header(reg)->state) == MD__CLOSED;
    rc = over ? MD_ECLOSED : count_up(default_handle, OPENING, &reg);
    if (count_down(reg)) give_back(reg);
    return rc;
}

/* Under the lock: the default that is open, else the candidate, whose opening is used then, else a
 * new one. */
static int settle_default(md_registry *candidate, md_registry *out) {
    int rc = default_again(out);
    if (rc != MD_ECLOSED) return rc;
    *out = *candidate;
    rc = *candidate ? 0 : create(NULL, DEFAULT_CAPACITY, MD_POLICY_MAIN, out);
    if (rc == 0) default_handle = *out;
    *candidate = 0;
    return rc;
}

int md_open_default(const char *address, md_registry *out) {
    md_registry candidate = 0;
    int rc;
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
    rc = default_again(out);
    pthread_mutex_unlock(&lock);
    if (rc != MD_ECLOSED) return rc;
    rc = 0;
    if (address && is_elect_address(address)) {
        rc = md_elect(md__name_in(address), DEFAULT_CAPACITY, &candidate);
        if (rc) return rc;
    } else if (address && *address) {
        rc = md_attach(address, md_now() + PATIENCE_NS, &candidate);
        if (rc && !is_own_past(address)) return rc == MD_ENOENT ? MD_EDIED : rc;
    }
    pthread_mutex_lock(&lock);
    rc = prepare();
    if (rc == 0) rc = settle_default(&candidate, out);
    pthread_mutex_unlock(&lock);
    if (candidate) md_close(candidate);
    return rc;
}

int md_close(md_registry handle) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    uint64_t refs = md__read64(&reg->refs);
    do {
        if ((uint32_t)refs < OPENING) rc = MD_ECLOSED;
    } while (rc == 0 && !md__swap_if64(&reg->refs, &refs, refs - OPENING));
    if (rc == 0 && md__is_closed(reg)) md__disturb_all(reg);
    md__exit(reg);
    return rc;
}

int md_address(md_registry handle, char *buf, size_t cap) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    char whole[MD_MAX_ADDRESS + sizeof MD__ELECT];
    const char *name = md__name_in(reg->address);
    bool elect = md__is_elect(reg) && name != reg->address;
    snprintf(whole, sizeof whole, "%s%s", elect ? MD__ELECT : "", elect ? name : reg->address);
    size_t n = strlen(whole) + 1;
    if (n <= cap)
        memcpy(buf, whole, n);
    else
        rc = MD_ENOBUFS;
    md__exit(reg);
    return rc;
}

void md__stat(const md__reg *reg, md_stats *out) {
    const struct md__header *h = md__header(reg);
    memset(out, 0, sizeof *out);
    out->capacity = h->capacity;
    out->committed = md__peek64(&h->committed);
    out->used = md__peek64(&h->used);
    out->facts = md__peek64(&h->facts);
    out->names = md__peek64(&h->names);
    out->next_seq = md__read64(&h->next_seq);
    out->recoveries = md__peek64(&h->recoveries);
    out->main_pid = h->main_pid;
    out->policy = h->policy;
    if (!md__is_elect(reg)) {
        out->main_state = md__read32(&h->main_state);
        if (out->main_state != MD__MAIN_LEFT && md__lease_is_dead(md__process(reg, 0)))
            out->main_state = 3;
    }
    uint32_t processes = md__read32(&h->process_top), members = md__read32(&h->member_top);
    for (uint32_t i = 0; i < processes && i < MD_MAX_PROCESSES; i++)
        out->processes += md__read32(&md__process(reg, i)->state) != MD__FREE;
    for (uint32_t i = 0; i < members && i < MD_MAX_MEMBERS; i++)
        out->members += md__read32(&md__member(reg, i)->state) != MD__FREE;
}

int md_stat(md_registry handle, md_stats *out) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    md__stat(reg, out);
    md__exit(reg);
    return 0;
}

int md__set_up(void) {
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
    int rc = prepare();
    pthread_mutex_unlock(&lock);
    return rc;
}

/* The folder stays locked in a child of fork that inherits it, so none may come meanwhile. */
int md_reap(const char *name) {
    int rc = md__set_up();
    if (rc) return rc;
    pthread_mutex_lock(&lock);
    rc = md__region_reap(name);
    pthread_mutex_unlock(&lock);
    return rc;
}
