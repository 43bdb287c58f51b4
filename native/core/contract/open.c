/* open.c - opens and closes regions in this process: create, attach, elect, the default, close.
 *
 * Locking: the table's lock (handles.c) is held while a region is opened, but not while a caller
 * waits for a name to appear.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "contract.h"

static const uint64_t DEFAULT_CAPACITY =
    256ull << 20; /* bytes of address space; memory only as it is used */
static const int64_t DEFAULT_NS = 2000000000;   /* for a default registry that has a name */
static const int64_t PATIENCE_NS = 10000000000; /* for a team's name that comes and goes */

static md_registry default_handle; /* under the table's lock */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int minds_forks; /* set once in set_up() or, without memory then, under the table's lock */

static void set_up(void) {
    for (int i = 0; i < MD__HANDLES; i++) {
        md__table[i].fd = -1;
        md__table[i].process = MD__NO_SLOT;
        pthread_mutex_init(&md__table[i].waits_lock, NULL);
    }
    minds_forks = pthread_atfork(md__before_fork, md__after_fork_parent, md__after_fork_child) == 0;
}

/* Called under the lock before a region is opened. Returns 0, or the reason why none can be opened.
 * If a step failed for want of memory, the next caller tries it again. */
static int prepare(void) {
    if (md__peek64(&md__parked)) md__unpark();
    int rc = md__lease_probe();
    if (rc || minds_forks) return rc;
    rc = pthread_atfork(md__before_fork, md__after_fork_parent, md__after_fork_child);
    minds_forks = rc == 0;
    return rc ? MD_ESYS - rc : 0;
}

int md__set_up(void) {
    pthread_once(&once, set_up);
    pthread_mutex_lock(&md__table_lock);
    int rc = prepare();
    pthread_mutex_unlock(&md__table_lock);
    return rc;
}

/* A free place in the table, under its lock. A place without a mapping has no opening and no call
 * either. Its generation becomes valid with its first opening. */
static md__reg *free_place(void) {
    for (int i = 0; i < MD__HANDLES; i++) {
        if (!md__table[i].base) return &md__table[i];
    }
    return NULL;
}

static md_registry first_opening(md__reg *reg) {
    uint64_t refs = md__peek64(&reg->refs);
    md__publish64(&reg->refs, refs + MD__OPENING);
    return md__handle_of(reg, (uint32_t)(refs >> 32));
}

/* Makes one more opening of a registry that this process already has open under this address. Skips
 * a registry whose main member is gone: another registry may have its name by now. */
static int open_again(const char *address, md_registry *out) {
    for (int i = 0; i < MD__HANDLES; i++) {
        md__reg *reg, *place = &md__table[i];
        if (!place->base || strcmp(place->address, address)) continue;
        md_registry handle = md__handle_of(place, (uint32_t)(md__peek64(&place->refs) >> 32));
        if (md__enter(handle, &reg)) continue;
        bool opened = md__region_served(reg) == 0 && md__count_up(handle, MD__OPENING, &reg) == 0;
        if (opened) *out = handle;
        if (md__exit_locked(place)) i = -1; /* another thread may have opened it: start anew */
        if (opened) return 0;
    }
    return MD_ENOENT;
}

static int create(const char *name, uint64_t capacity, uint32_t policy, md_registry *out) {
    md__reg *reg = free_place();
    if (!reg) return MD_EHANDLES;
    int rc = md__region_create(reg, name, capacity, policy);
    if (rc == 0) {
        *out = first_opening(reg);
    } else if (reg->base) {
        md__process_leave(reg);
        md__region_discard(reg);
        md__vacate(reg);
    }
    return rc;
}

int md_create(const char *name, uint64_t capacity, md_registry *out) {
    pthread_once(&once, set_up);
    pthread_mutex_lock(&md__table_lock);
    int rc = prepare();
    if (rc == 0) rc = create(name, capacity, MD_POLICY_MAIN, out);
    pthread_mutex_unlock(&md__table_lock);
    return rc;
}

/* Puts a region that was attached outside the lock into the table, unless another thread has done
 * so meanwhile. */
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
    reg->device = attached->device;
    reg->inode = attached->inode;
    memcpy(reg->address, attached->address, sizeof reg->address);
    memcpy(reg->path, attached->path, sizeof reg->path);
    *out = first_opening(reg);
    return 0;
}

static bool is_elect_address(const char *address) {
    return strncmp(address, MD__ELECT, strlen(MD__ELECT)) == 0;
}

/* It waits for a name to appear without the table's lock. */
int md_attach(const char *address, int64_t deadline_ns, md_registry *out) {
    md__reg fresh = {.fd = -1, .process = MD__NO_SLOT};
    char whole[MD_MAX_ADDRESS];
    *out = 0;
    if (!address || deadline_ns < MD_FOREVER) return MD_EINVAL;
    if (strlen(address) > MD_MAX_ADDRESS - 8) return MD_ENAME;
    address = md__name_in(address);
    snprintf(whole, sizeof whole, "%s%s", strchr(address, ':') ? "" : MD__SHM, address);
    pthread_once(&once, set_up);
    pthread_mutex_lock(&md__table_lock);
    int rc = prepare();
    if (rc == 0) rc = open_again(whole, out);
    pthread_mutex_unlock(&md__table_lock);
    if (rc != MD_ENOENT) return rc;
    rc = md__region_attach(&fresh, whole, deadline_ns);
    if (rc) return rc;
    pthread_mutex_lock(&md__table_lock);
    rc = keep(&fresh, out);
    pthread_mutex_unlock(&md__table_lock);
    return rc;
}

/* Refuses a registry of another policy than the caller asked for. */
static int refuse_other(md_registry *out, uint32_t policy) {
    md__reg *reg;
    int rc = md__enter(*out, &reg);
    if (rc) return rc;
    bool same = md__header(reg)->policy == policy;
    md__exit(reg);
    if (same) return 0;
    md_close(*out);
    *out = 0;
    return MD_EEXIST;
}

/* Attaches to the registry or creates it, whichever is possible. The registry may come or go
 * between the two attempts: then the other one is possible, so we try again. A process that could
 * not create the registry because another process has created it attaches to that one before it
 * gives up, however long it had to wait for the folder. Where others of the team come and go fast,
 * or this process is slow, both attempts may come at the wrong moment many times. */
static int meet(const char *name, uint64_t capacity, uint32_t policy, md_registry *out) {
    int64_t give_up = md_now() + PATIENCE_NS;
    int rc = 0;
    *out = 0;
    if (name && strlen(name) > MD_MAX_REGISTRY_NAME) return MD_ENAME;
    pthread_once(&once, set_up);
    for (;;) {
        int attached = name ? md_attach(name, 0, out) : MD_ENOENT;
        if (attached == 0) return refuse_other(out, policy);
        if (attached != MD_ENOENT && attached != MD_EDIED && attached != MD_ECLOSED &&
            attached != MD_EBOOT && attached != MD_ENAMESPACE)
            return attached;
        if (rc == MD_EEXIST && md_now() >= give_up) return rc;
        pthread_mutex_lock(&md__table_lock);
        rc = prepare();
        if (rc == 0) rc = create(name, capacity, policy, out);
        pthread_mutex_unlock(&md__table_lock);
        if (!name || rc != MD_EEXIST) return rc;
    }
}

int md_elect(const char *name, uint64_t capacity, md_registry *out) {
    return meet(name, capacity, MD_POLICY_ELECT, out);
}

int md_bridge(const char *name, uint64_t capacity, md_registry *out) {
    return meet(name, capacity, MD_POLICY_BRIDGE, out);
}

/* Whether this very process published the address, before it called exec. In another PID namespace
 * its pid is that of another process. */
static bool is_own_past(const char *address) {
    struct md__fd_address asked;
    return md__parse_fd_address(address, &asked) && asked.pid == getpid() && asked.uuid[0] &&
           md__judge_origin(asked.origin) == 0;
}

/* Under the lock: makes one more opening of the default that is open. Skips a registry without a main member
 * that was closed before this process joined it: nobody can join it any more, so the caller opens a
 * default anew. */
static int default_again(md_registry *out) {
    md__reg *reg;
    *out = default_handle;
    int rc = md__enter(default_handle, &reg);
    if (rc) return rc;
    bool over = !md__has_main(reg) && md__read32(&md__header(reg)->state) == MD__CLOSED;
    rc = over ? MD_ECLOSED : md__count_up(default_handle, MD__OPENING, &reg);
    return md__exit_locked(reg) ? default_again(out) : rc; /* another thread may have opened one */
}

/* Under the lock: takes the default that is open; else the candidate, and then uses up its opening;
 * else creates a new one. */
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
    pthread_mutex_lock(&md__table_lock);
    rc = default_again(out);
    pthread_mutex_unlock(&md__table_lock);
    if (rc != MD_ECLOSED) return rc;
    if (address && strpbrk(address, "{}")) return MD_EBRACES;
    rc = 0;
    if (address && is_elect_address(address)) {
        rc = md_elect(md__name_in(address), DEFAULT_CAPACITY, &candidate);
        if (rc) return rc;
    } else if (address && *address) {
        rc = md_attach(address, md_now() + DEFAULT_NS, &candidate);
        /* The process of an address had a registry. Of a name we cannot know whether it ever was. */
        bool died = rc == MD_ENOENT && strncmp(address, MD__FD, strlen(MD__FD)) == 0;
        if (rc && !is_own_past(address)) return died ? MD_EDIED : rc;
    }
    pthread_mutex_lock(&md__table_lock);
    rc = prepare();
    if (rc == 0) rc = settle_default(&candidate, out);
    pthread_mutex_unlock(&md__table_lock);
    if (candidate) md_close(candidate);
    return rc;
}

int md_close(md_registry handle) {
    md__reg *reg;
    int rc = md__enter(handle, &reg);
    if (rc) return rc;
    uint64_t refs = md__read64(&reg->refs);
    do {
        if ((uint32_t)refs < MD__OPENING) rc = MD_ECLOSED;
    } while (rc == 0 && !md__swap_if64(&reg->refs, &refs, refs - MD__OPENING));
    if (rc == 0 && md__is_closed(reg)) md__disturb_all(reg);
    md__exit(reg);
    return rc;
}
