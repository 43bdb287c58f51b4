/* inspect.c - looks at a registry from outside, and removes registries that nobody uses any more.
 *
 * A look opens the region for reading only and copies the header and the slots into memory of its
 * own. So it can neither change the region nor wait for its lock, and a file that is truncated
 * meanwhile causes a short read and no SIGBUS. The copy is not of one moment, since the kernel made
 * it while others wrote. So a figure can be wrong in one look, and nothing in the copy is used as a
 * place.
 *
 * Note [Reaping]
 * We judge a name and take it away under one hold of the folder's lock, the same lock under which
 * creators judge and link (publish_name in create.c). So nobody links another file to the name in
 * between. Only its own main member unlinks a file otherwise, and then that member is alive. The
 * leases tell whether anybody is alive. In two cases they are not enough: where we cannot trust
 * them (damage, another version, boot or PID namespace), and where an attaching process need not
 * find a living main member (elect). Then we ask the kernel whether the file is open for writing,
 * as it is in every process that uses a registry. We ask by a read lease (F_SETLEASE): the kernel
 * grants it only if nobody has the file open for writing. As long as we hold it, until the name is
 * gone, nobody can open the file for writing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contract.h"

static_assert(sizeof(((md_inspection *)0)->address) == MD_MAX_ADDRESS, "addresses fit");
static_assert(sizeof(((md_inspection *)0)->kinds) == 8 * MD_KINDS, "kinds fit");

static ssize_t read_at(int fd, char *to, uint64_t size, uint64_t at) {
    ssize_t n;
    do n = pread(fd, to, size, (off_t)at);
    while (n < 0 && errno == EINTR);
    return n;
}

static int read_part(int fd, char *base, uint64_t at, uint64_t size) {
    while (size) {
        ssize_t n = read_at(fd, base + at, size, at);
        if (n < 0) return md__sys();
        if (n == 0) return MD_EDAMAGED;
        at += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return 0;
}

static uint64_t at_most(uint32_t n, uint32_t most) {
    return n < most ? n : most;
}

/* Reads the header and the slots that were ever used; the other slots stay zero. */
static int read_slots(const md__reg *copy, int fd) {
    const struct md__header *h = md__header(copy);
    int rc = read_part(fd, copy->base, 0, MD__HEADER_SIZE);
    if (rc) return rc;
    uint64_t processes = at_most(md__peek32(&h->process_top), MD_MAX_PROCESSES);
    uint64_t members = at_most(md__peek32(&h->member_top), MD_MAX_MEMBERS);
    rc = read_part(fd, copy->base, MD__PROCESSES_AT, processes * sizeof(struct md__process));
    if (rc) return rc;
    return read_part(fd, copy->base, MD__MEMBERS_AT, members * sizeof(struct md__member));
}

/* Judges the bounds. They only grow: the file's size first, then `committed`, then `arena_top`. So
 * it takes them in the opposite order, `arena_top` from an `earlier` copy of the header. */
static int judge_bounds(const struct md__header *earlier, const md__reg *copy, int fd) {
    uint64_t top = md__peek64(&earlier->arena_top);
    uint64_t committed = md__peek64(&md__header(copy)->committed);
    struct stat st;
    if (fstat(fd, &st) < 0) return md__sys();
    return top < MD__ARENA_AT || top > committed || committed > earlier->capacity ||
                   committed > (uint64_t)st.st_size
               ? MD_EDAMAGED
               : 0;
}

/* Counts the facts of each kind, block by block. */
static int count_kinds(int fd, uint64_t top, uint64_t kinds[MD_KINDS]) {
    enum { PART = 256 * 1024 };
    char *part = malloc(PART);
    uint64_t from = 0, to = 0, at = MD__ARENA_AT;
    int rc = 0;
    if (!part) return MD_ESYS - ENOMEM;
    while (at < top) {
        struct md__fact f;
        if (at + sizeof f > to) {
            ssize_t n = read_at(fd, part, PART, at);
            if (n < 0) rc = md__sys();
            if (n < (ssize_t)sizeof f) break;
            from = at;
            to = at + (uint64_t)n;
        }
        memcpy((void *)&f, part + (at - from), sizeof f);
        if (!md__is_step(f.block.size, top - at)) break;
        uint32_t kind = md__peek32(&f.kind);
        if (md__peek32(&f.block.tag) == MD__TAG_FACT && kind < MD_KINDS) kinds[kind]++;
        at += f.block.size;
    }
    free(part);
    return rc == 0 && at != top ? MD_EDAMAGED : rc;
}

static void count_processes(const md__reg *copy, md_inspection *out) {
    for (uint32_t i = 0; i < MD_MAX_PROCESSES; i++) {
        const struct md__process *p = md__process(copy, i);
        int died;
        uint32_t tid = md__mutex_owner(&p->lease, &died);
        if (md__peek32(&p->state) != MD__LIVE) continue;
        out->alive += tid && !died;
        out->dead += died;
    }
}

/* Fills in everything but the address. The status returned is that of the look itself; out->attach
 * says whether one could attach. */
static int look(int fd, md__reg *copy, md_inspection *out) {
    struct md__header h;
    struct stat st;
    int died, rc = md__region_judge(fd, &h);
    if (fstat(fd, &st) < 0) return md__sys();
    out->device = st.st_dev;
    out->inode = st.st_ino;
    bool is_region = rc != MD_EFORMAT && rc != MD_ENOTFILE && rc != MD_EOWNER && rc > MD_ESYS;
    out->format = is_region ? h.format : 0;
    bool readable = rc == 0 || rc == MD_EBOOT || rc == MD_ENAMESPACE || rc == MD_EDAMAGED;
    if (!readable) return rc;
    out->attach = rc;
    rc = read_slots(copy, fd);
    if (rc) return rc;
    rc = judge_bounds(&h, copy, fd);
    if (rc == 0) {
        rc = count_kinds(fd, md__peek64(&h.arena_top), out->kinds);
        out->torn = rc == MD_EDAMAGED;
    } else if (rc == MD_EDAMAGED) {
        out->attach = rc;
    }
    if (rc <= MD_ESYS) return rc; /* a failed system call says nothing about the registry */
    if (out->attach == 0) out->attach = md__region_served(copy);
    md__stat(copy, &out->stats);
    out->fixed = MD__ARENA_AT;
    count_processes(copy, out);
    out->lock_tid = md__mutex_owner(&md__header(copy)->mutex, &died);
    out->lock_died = died || md__peek32(&md__header(copy)->repair_owed);
    return 0;
}

/* Makes memory for a copy: all zeroes, aligned for every slot. */
static int begin(md__reg *copy) {
    void *p = mmap(NULL, MD__ARENA_AT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return md__sys();
    *copy = (md__reg){.base = p, .mapped = MD__ARENA_AT, .fd = -1, .process = MD__NO_SLOT};
    return 0;
}

static void end(md__reg *copy) {
    munmap(copy->base, copy->mapped);
}

/* --- the look --------------------------------------------------------------------------------- */

static int inspect_named(const char *name, md__reg *copy, md_inspection *out) {
    char path[MD_MAX_ADDRESS];
    int folder, fd;
    int rc = md__region_folder(path, sizeof path, &folder);
    if (rc) return rc;
    rc = md__region_open(folder, name, &fd);
    close(folder);
    if (rc) return rc;
    rc = look(fd, copy, out);
    close(fd);
    bool elect = rc == 0 && md__is_elect(copy);
    snprintf(out->address, sizeof out->address, "%s%s", elect ? MD__ELECT : MD__SHM, name);
    return rc;
}

/* An address of another boot or PID namespace may lead to the registry all the same: a process can
 * see those of namespaces in its own. If it does not, the reason is where the address is from. */
static int inspect_fd(const char *address, md__reg *copy, md_inspection *out) {
    struct md__fd_address asked;
    char uuid[33], origin[MD__ORIGIN];
    int fd;
    if (!md__parse_fd_address(address, &asked)) return MD_ENAME;
    int apart = asked.uuid[0] ? md__judge_origin(asked.origin) : 0;
    int rc = md__region_open_fd(&asked, &fd);
    if (rc) return apart ? apart : rc;
    rc = look(fd, copy, out);
    close(fd);
    if (rc) return apart ? apart : rc;
    md__region_print_uuid(uuid, md__header(copy)->uuid);
    md__region_print_origin(origin, md__header(copy));
    snprintf(out->address, sizeof out->address, MD__FD "%d:%d:%s:%s", asked.pid, asked.number, uuid,
             origin);
    if (!asked.uuid[0] || strcmp(asked.uuid, uuid) == 0) return 0;
    return apart ? apart : MD_ENOENT;
}

int md_inspect(const char *address, md_inspection *out, md_member_info *infos, size_t cap,
               size_t *count) {
    md__reg copy;
    memset(out, 0, sizeof *out);
    *count = 0;
    if (!address) return MD_EINVAL;
    if (strlen(address) > MD_MAX_ADDRESS - 8) return MD_ENAME;
    int rc = md__set_up();
    if (rc == 0) rc = begin(&copy);
    if (rc) return rc;
    if (strncmp(address, MD__FD, strlen(MD__FD)) == 0)
        rc = inspect_fd(address, &copy, out);
    else
        rc = inspect_named(md__name_in(address), &copy, out);
    if (rc == 0) md__members(&copy, infos, cap, count);
    end(&copy);
    return rc;
}

/* The origin of a named registry, whatever one could do with it otherwise. */
static int named_origin(const char *name, char origin[MD__ORIGIN]) {
    struct md__header h;
    char path[MD_MAX_ADDRESS];
    int folder, fd;
    int rc = md__region_folder(path, sizeof path, &folder);
    if (rc) return rc;
    rc = md__region_open(folder, name, &fd);
    close(folder);
    if (rc) return rc;
    rc = md__region_judge(fd, &h);
    close(fd);
    if (rc == MD_EBOOT || rc == MD_ENAMESPACE) rc = 0;
    if (rc == 0) md__region_print_origin(origin, &h);
    return rc;
}

int md_origin(const char *address, char *buf, size_t cap) {
    struct md__fd_address asked;
    char origin[MD__ORIGIN] = "";
    int rc = 0;
    if (!address || !*address)
        rc = md__origin_here(origin);
    else if (strncmp(address, MD__FD, strlen(MD__FD)))
        rc = named_origin(md__name_in(address), origin);
    else if (md__parse_fd_address(address, &asked) && asked.uuid[0])
        memcpy(origin, asked.origin, sizeof origin);
    else
        rc = MD_ENAME;
    if (rc) return rc;
    if (strlen(origin) >= cap) return MD_ENOBUFS;
    memcpy(buf, origin, strlen(origin) + 1);
    return 0;
}

int md_folder(char *buf, size_t cap) {
    char path[MD_MAX_ADDRESS];
    int fd;
    int rc = md__region_folder(path, sizeof path, &fd);
    if (rc == 0) close(fd);
    size_t n = strlen(path) + 1;
    if (n > cap) return MD_ENOBUFS;
    memcpy(buf, path, n);
    return rc;
}

/* --- the removal ------------------------------------------------------------------------------ */

/* Whether nobody uses the file, see Note [Reaping]. A lease that this took lasts until `fd` is
 * closed. */
static int judge_leftover(int fd, md__reg *copy, md_inspection *in) {
    int rc = look(fd, copy, in);
    if (rc && rc != MD_EVERSION && rc != MD_EDAMAGED) return rc;
    int why = rc ? rc : in->attach;
    bool told = why == 0 || why == MD_ECLOSED || why == MD_EDIED;
    if (told && in->alive) return MD_EEXIST;
    if (told && in->stats.policy == MD_POLICY_MAIN) return 0;
    if (!md__region_is_unused(fd)) return told ? MD_EEXIST : why;
    return 0;
}

static int remove_leftover(int folder, const char *name) {
    md_inspection in = {0};
    md__reg copy;
    int fd;
    int rc = md__lock_folder(folder, true);
    if (rc == 0) rc = md__region_open(folder, name, &fd);
    if (rc) return rc;
    rc = begin(&copy);
    if (rc == 0) {
        rc = judge_leftover(fd, &copy, &in);
        end(&copy);
    }
    if (rc == 0 && unlinkat(folder, name, 0) < 0) rc = errno == ENOENT ? MD_ENOENT : md__sys();
    close(fd);
    return rc;
}

static int reap(const char *name) {
    char path[MD_MAX_ADDRESS];
    int folder;
    if (!name) return MD_EINVAL;
    name = md__name_in(name);
    int rc = md__region_folder(path, sizeof path, &folder);
    if (rc) return rc;
    rc = remove_leftover(folder, name);
    close(folder); /* this also unlocks it */
    return rc;
}

/* A child of fork that inherited the folder's descriptor would keep it locked. So the table's lock
 * keeps forks away meanwhile. */
int md_reap(const char *name) {
    int rc = md__set_up();
    if (rc) return rc;
    pthread_mutex_lock(&md__table_lock);
    rc = reap(name);
    pthread_mutex_unlock(&md__table_lock);
    return rc;
}
