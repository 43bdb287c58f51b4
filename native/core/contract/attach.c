/* attach.c - from an address to an open region: finds, judges and maps it, or waits for it.
 *
 * The file of a named region is opened in this user's own folder, that of an anonymous region
 * through /proc/PID/fd. A file is judged before it is mapped (region.c).
 *
 * Locking: no other thread of this process uses the region yet. The region's own lock is taken only
 * to close a region that no living process uses.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "contract.h"

/* Without a main member: closes a region in which nobody is alive, so that it can be replaced. A
 * process that has mapped the region but not yet joined would have made it live again. It joins
 * under the same lock, and finds the region closed. */
static int retire(md__reg *reg) {
    int rc = md__lock(reg);
    if (rc == MD_EDAMAGED) return md__region_served(reg); /* nobody can join it any more */
    if (rc) return rc;
    rc = md__region_served(reg);
    if (rc == MD_EDIED) md__publish32(&md__header(reg)->state, MD__CLOSED);
    md__unlock(reg);
    return rc;
}

/* Maps an open file, or closes it. */
static int adopt(md__reg *reg, int fd, const char *uuid, bool to_replace) {
    struct md__header h;
    char found[33];
    int rc = md__region_judge(fd, &h);
    if (rc == 0 && uuid) {
        md__region_print_uuid(found, h.uuid);
        if (strcmp(found, uuid)) rc = MD_ENOENT;
    }
    if (rc == 0) rc = md__region_map(reg, fd, h.capacity);
    if (rc) {
        close(fd);
        return rc;
    }
    rc = md__region_judge_bounds(reg, fd);
    if (rc == 0) rc = md__region_served(reg);
    if (rc == MD_EDIED && to_replace && !md__has_main(reg)) rc = retire(reg);
    if (rc) md__region_discard(reg);
    return rc;
}

int md__open_named(md__reg *reg, int folder, const char *name, bool to_replace) {
    int fd, rc = md__open_file(folder, name, O_NOFOLLOW, &fd);
    return rc ? rc : adopt(reg, fd, NULL, to_replace);
}

/* Waits until a file appears in the watched folder. */
static int await_change(int watch, int64_t left_ns) {
    char events[4096] __attribute__((aligned(8)));
    struct pollfd p = {.fd = watch, .events = POLLIN};
    struct timespec t = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
    int n = ppoll(&p, 1, left_ns == INT64_MAX ? NULL : &t, NULL);
    if (n < 0) return errno == EINTR ? MD_EINTR : md__sys();
    if (n == 0) return MD_ETIMEDOUT;
    return read(watch, events, sizeof events) < 0 ? md__sys() : 0;
}

static int64_t time_left(int64_t deadline_ns) {
    return deadline_ns == MD_FOREVER ? INT64_MAX : deadline_ns - md_now();
}

/* Whether a later file of this name may be the one that the caller wants. */
static bool is_worth_waiting(int rc) {
    return rc == MD_ENOENT || rc == MD_EDIED || rc == MD_ECLOSED;
}

/* Opens a watch on the folder. The system allows few of them, so only a caller that must wait takes
 * one. */
static int open_watch(int *watch) {
    char path[MD_MAX_ADDRESS];
    md__file_path(path, sizeof path, ".");
    *watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return *watch < 0 || inotify_add_watch(*watch, path, IN_CREATE | IN_MOVED_TO) < 0 ? md__sys()
                                                                                      : 0;
}

/* After it has set the watch it looks once more. So a file that is linked after that look wakes the
 * wait. */
static int attach_named(md__reg *reg, const char *name, int64_t deadline_ns) {
    int folder, watch = -1, rc;
    int64_t left;
    if (!md__is_name(name)) return MD_ENAME;
    rc = md__open_folder(&folder);
    if (rc) return rc;
    rc = md__open_named(reg, folder, name, false);
    while (is_worth_waiting(rc) && (left = time_left(deadline_ns)) > 0) {
        int waited = watch < 0 ? open_watch(&watch) : await_change(watch, left);
        if (waited == MD_ETIMEDOUT)
            break; /* the caller gets the reason why it could not attach, not "timed out" */
        rc = waited ? waited : md__open_named(reg, folder, name, false);
    }
    if (watch >= 0) close(watch);
    close(folder);
    if (rc == 0) {
        snprintf(reg->address, sizeof reg->address, MD__SHM "%s", name);
        md__file_path(reg->path, sizeof reg->path, name);
    }
    return rc;
}

/* We judge the origin of the address before we look for the process. Elsewhere its pid is that of
 * another process or of none, and "none" would mean that the main process died. */
static int attach_fd(md__reg *reg, const char *address) {
    struct md__fd_address asked;
    char path[64];
    int fd;
    if (!md__parse_fd_address(address, &asked) || !asked.uuid[0]) return MD_ENAME;
    int rc = md__judge_origin(asked.origin);
    if (rc) return rc;
    snprintf(path, sizeof path, "/proc/%d", asked.pid);
    if (access(path, F_OK) < 0) return errno == ENOENT ? MD_EDIED : md__sys();
    snprintf(path, sizeof path, "/proc/%d/fd/%d", asked.pid, asked.number);
    rc = md__open_file(AT_FDCWD, path, 0, &fd);
    if (rc) return rc;
    rc = adopt(reg, fd, asked.uuid, false);
    if (rc == 0) snprintf(reg->address, sizeof reg->address, "%s", address);
    return rc;
}

int md__region_attach(md__reg *reg, const char *address, int64_t deadline_ns) {
    if (strncmp(address, MD__FD, strlen(MD__FD)) == 0) return attach_fd(reg, address);
    return attach_named(reg, md__name_in(address), deadline_ns);
}
