/* create.c - makes a new region, fills it and gives it its name.
 *
 * An anonymous region is a memfd sealed against shrinking. Other processes open it through
 * /proc/PID/fd, and it is gone with its last user. A named region is a file in this user's own
 * folder. The creator fills it while it has no name and then links it to its name, so nobody sees
 * half of it.
 *
 * Locking: nobody else knows the region yet. The folder is locked while the creator decides about a
 * name.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contract.h"

enum { NOEXEC_SEAL = 8 }; /* MFD_NOEXEC_SEAL: a system can refuse memory files without it */

/* Fills a fresh region whose memory is all zeroes up to the arena. Nobody else knows it yet. */
static int format(md__reg *reg, uint64_t capacity, uint64_t committed, uint32_t policy) {
    struct md__header *h = md__header(reg);
    memcpy(h->magic, MD__MAGIC, 8);
    h->format = MD_FORMAT;
    h->stamp = md__region_stamp();
    h->capacity = capacity;
    h->uid = (uint32_t)geteuid();
    h->main_pid = (uint32_t)getpid();
    h->policy = policy;
    h->made = md_now();
    ssize_t n = getrandom(h->uuid, sizeof h->uuid, 0);
    if (n != sizeof h->uuid) return n < 0 ? md__sys() : MD_ESYS - EIO;
    int rc = md__boot_id(h->boot);
    if (rc == 0) rc = md__pid_space(&h->pid_space);
    if (rc) return rc;
    md__poke64(&h->committed, committed);
    md__poke64(&h->arena_top, MD__ARENA_AT);
    md__publish64(&h->next_seq, 1);
    rc = md__mutex_init(&h->mutex);
    if (rc == 0) rc = md__index_create(reg, MD__FIRST_INDEX_LOG2);
    if (rc == 0) rc = md__process_join(reg);
    return rc;
}

static int make(md__reg *reg, int fd, uint64_t capacity, uint32_t policy) {
    uint64_t committed = (MD__ARENA_AT + MD__FIRST_CHUNK + 4095) & ~4095ull;
    /* A umask removes rights, and a memfd begins with 0777. */
    int rc = fchmod(fd, 0600) < 0 ? md__sys() : md__region_reserve(fd, 0, committed);
    if (rc == 0) rc = md__region_map(reg, fd, capacity);
    if (rc) {
        close(fd);
        return rc;
    }
    reg->creator = 1;
    return format(reg, capacity, committed, policy);
}

static int create_anonymous(md__reg *reg, uint64_t capacity, uint32_t policy) {
    char uuid[33], origin[MD__ORIGIN];
    int fd = memfd_create("mdispatch", MFD_CLOEXEC | MFD_ALLOW_SEALING | NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* a kernel before 6.3 */
        fd = memfd_create("mdispatch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return md__sys();
    int rc = make(reg, fd, capacity, policy);
    if (rc) return rc;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) < 0) return md__sys();
    md__region_print_uuid(uuid, md__header(reg)->uuid);
    md__region_print_origin(origin, md__header(reg));
    snprintf(reg->address, sizeof reg->address, MD__FD "%ld:%d:%s:%s", (long)getpid(), fd, uuid,
             origin);
    return 0;
}

static int take_name(int folder, const char *name) {
    return unlinkat(folder, name, 0) < 0 && errno != ENOENT ? md__sys() : 0;
}

static bool may_be_over(int status) {
    return status == MD_EDIED || status == MD_ECLOSED || status == MD_EBOOT ||
           status == MD_ENAMESPACE;
}

/* Takes a name if no process has its file open, see Note [Reaping] in inspect.c; else returns `why`.
 * So a registry of another boot or PID namespace makes room, if it is not that of a living container,
 * which can have both for itself. */
static int take_unused_name(int folder, const char *name, int why) {
    int fd;
    int rc = md__region_open(folder, name, &fd);
    if (rc) return rc == MD_ENOENT ? 0 : rc;
    rc = md__region_is_unused(fd) ? take_name(folder, name) : why;
    close(fd);
    return rc;
}

/* Refuses an edition where MD_MAX_EDITIONS others of the same name are alive. Removes those that
 * nobody has open: nobody may ever ask for one of them again. The folder is locked, so that none of
 * them comes meanwhile. */
static int judge_editions(int folder, const char *name) {
    size_t same = md__edition_at(name);
    if (!same) return 0;
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *files = fd < 0 ? NULL : fdopendir(fd);
    if (!files) {
        int rc = md__sys();
        if (fd >= 0) close(fd);
        return rc;
    }
    int alive = 0;
    for (struct dirent *file; errno = 0, file = readdir(files);) {
        md__reg other = {.fd = -1, .process = MD__NO_SLOT};
        if (strncmp(file->d_name, name, same) || strcmp(file->d_name, name) == 0) continue;
        int rc = md__open_named(&other, folder, file->d_name, false);
        if (rc == 0) {
            md__region_discard(&other);
            alive++;
        } else if (may_be_over(rc)) {
            take_unused_name(folder, file->d_name, rc);
        }
    }
    int rc = errno ? md__sys() : 0;
    closedir(files);
    return rc || alive < MD_MAX_EDITIONS ? rc : MD_EEDITIONS;
}

/* Links the filled file to its name, after removing a dead registry that still has that name. The
 * folder is locked, so that only one of several creators decides at a time. */
static int publish_name(md__reg *reg, int folder, const char *name) {
    char self[64];
    md__reg old = {.fd = -1, .process = MD__NO_SLOT};
    int rc = md__lock_folder(folder, false);
    if (rc) return rc;
    rc = md__open_named(&old, folder, name, true);
    if (rc == 0) {
        md__region_discard(&old);
        return MD_EEXIST;
    }
    int room = judge_editions(folder, name);
    if (room) return room;
    if (rc == MD_EDIED || rc == MD_ECLOSED)
        rc = take_name(folder, name);
    else if (rc == MD_EBOOT || rc == MD_ENAMESPACE)
        rc = take_unused_name(folder, name, rc);
    if (rc && rc != MD_ENOENT) return rc;
    snprintf(self, sizeof self, "/proc/thread-self/fd/%d", reg->fd);
    if (linkat(AT_FDCWD, self, folder, name, AT_SYMLINK_FOLLOW) < 0)
        return errno == EEXIST ? MD_EEXIST : md__sys();
    return 0;
}

static int create_named(md__reg *reg, const char *name, uint64_t capacity, uint32_t policy) {
    int folder, rc;
    if (!md__is_name(name)) return MD_ENAME;
    rc = md__open_folder(&folder);
    if (rc) return rc;
    int fd = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    rc = fd < 0 ? md__sys() : make(reg, fd, capacity, policy);
    if (rc == 0) rc = publish_name(reg, folder, name);
    close(folder); /* this also unlocks it */
    if (rc) return rc;
    snprintf(reg->address, sizeof reg->address, MD__SHM "%s", name);
    md__file_path(reg->path, sizeof reg->path, name);
    return 0;
}

int md__region_create(md__reg *reg, const char *name, uint64_t capacity, uint32_t policy) {
    if (capacity < MD__MIN_CAPACITY || capacity > MD__MAX_CAPACITY) return MD_EINVAL;
    capacity = (capacity + 4095) & ~4095ull;
    return name ? create_named(reg, name, capacity, policy)
                : create_anonymous(reg, capacity, policy);
}
