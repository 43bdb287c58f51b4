/* names.c - from a name or an address to an open file.
 *
 * Neither who says what is to be opened (an argument, the environment) nor what lies there is
 * trusted. A name cannot lead out of the folder. Folder and file are judged by descriptors, not by
 * paths, so nothing can be put in their place between the look and the use. What is no regular file
 * is looked at and not opened: to open a device or a FIFO is to do something to it.
 *
 * Rights: the folder is 0700 and each file 0600, whatever the umask.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

static const char FOLDER[] = "/dev/shm";
static const int64_t PATIENCE_NS = 10ll * 1000 * 1000 * 1000;

/* The name in an address; what has no such beginning is a name itself. */
const char *md__name_in(const char *address) {
    if (strncmp(address, MD__SHM, strlen(MD__SHM)) == 0) return address + strlen(MD__SHM);
    if (strncmp(address, MD__ELECT, strlen(MD__ELECT)) == 0) return address + strlen(MD__ELECT);
    return address;
}

bool md__is_name(const char *name) {
    size_t n = 0;
    for (; name[n]; n++) {
        char c = name[n];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || (c == '.' && n);
        if (!ok || n >= MD_MAX_REGISTRY_NAME) return false;
    }
    return n > 0;
}

/* A whole number as we write it: digits, no more of them than it takes, up to INT_MAX. */
static const char *parse_number(const char *text, int *out) {
    int64_t value = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && p - text < 10; p++) value = value * 10 + (*p - '0');
    if (p == text || value > INT_MAX || (*text == '0' && p - text > 1)) return NULL;
    *out = (int)value;
    return p;
}

/* What follows "fd:" in an address: PID:NUMBER:UUID, and not a character else. */
bool md__is_fd_address(const char *rest, int *pid, int *number, char uuid[33]) {
    const char *p = parse_number(rest, pid);
    if (!p || *p++ != ':' || *pid == 0) return false;
    p = parse_number(p, number);
    if (!p || *p++ != ':' || strlen(p) != 32) return false;
    for (int i = 0; i < 32; i++) {
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f'))) return false;
    }
    memcpy(uuid, p, 33);
    return true;
}

void md__file_path(char *path, size_t cap, const char *name) {
    snprintf(path, cap, "%s/mdispatch-%u/%s", FOLDER, (unsigned)geteuid(), name);
}

/* The folder's rights. Those that others have make it unfit for use; what a umask kept from us is
 * taken here, and not only by whoever made the folder: that one may have died before it could. */
static int judge_folder(int there) {
    struct stat st;
    char self[64];
    if (fstat(there, &st) < 0) return md__sys();
    if (st.st_uid != geteuid() || (st.st_mode & 077)) return MD_EOWNER;
    if ((st.st_mode & 0700) == 0700) return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", there);
    return chmod(self, 0700) < 0 ? md__sys() : 0;
}

/* The folder of this user's named registries: ours alone, or nothing. */
int md__open_folder(int *fd) {
    char path[64];
    snprintf(path, sizeof path, "%s/mdispatch-%u", FOLDER, (unsigned)geteuid());
    if (mkdir(path, 0700) < 0 && errno != EEXIST) return md__sys();
    int there = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (there < 0) return errno == ENOTDIR || errno == ELOOP ? MD_EOWNER : md__sys();
    int rc = judge_folder(there);
    if (rc == 0) {
        *fd = openat(there, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (*fd < 0) rc = md__sys();
    }
    close(there);
    return rc;
}

/* For one who decides about a name. It is held for moments; but every process of this user can hold
 * it, or be stopped while it does, and the lock has no wait with an end: so it is tried. MD_EINTR
 * only where signals count. */
int md__lock_folder(int folder, bool heed_signals) {
    const struct timespec nap = {.tv_nsec = 1000000};
    int64_t give_up = md_now() + PATIENCE_NS;
    sigset_t all, before;
    int rc = 0;
    /* One that arrives between two naps is kept for the next one, and ends it. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (rc == 0 && flock(folder, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            rc = md__sys();
        else if (md_now() >= give_up)
            rc = MD_ELOCK;
        else if (ppoll(NULL, 0, &nap, &before) < 0 && heed_signals)
            rc = MD_EINTR;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int md__open_status(int err) {
    switch (err) {
    case ENOENT:
    case EWOULDBLOCK: /* it is being taken away, see Note [Reaping] in inspect.c */
        return MD_ENOENT;
    case ELOOP:
        return MD_ENOTFILE;
    case EACCES:
    case EPERM:
        return MD_EOWNER;
    default:
        return MD_ESYS - err;
    }
}

/* Opens a regular file; `flags` O_NOFOLLOW where no link may stand. */
int md__open_file(int folder, const char *path, int flags, int *fd) {
    char self[64];
    struct stat st;
    int there = openat(folder, path, O_PATH | O_CLOEXEC | flags);
    if (there < 0) return md__open_status(errno);
    int rc = fstat(there, &st) < 0 ? md__sys() : 0;
    if (rc == 0 && !S_ISREG(st.st_mode)) rc = MD_ENOTFILE;
    if (rc == 0) {
        snprintf(self, sizeof self, "/proc/self/fd/%d", there);
        *fd = open(self, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (*fd < 0) rc = md__open_status(errno);
    }
    close(there);
    return rc;
}

/* Whether a name is that of our own file, and not of what another has put in its place. */
bool md__is_own(const char *path, int fd) {
    struct stat here, there;
    if (fstat(fd, &here) < 0 || lstat(path, &there) < 0) return false;
    return here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}
