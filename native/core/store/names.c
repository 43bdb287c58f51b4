/* names.c - from a name or an address to an open file.
 *
 * We trust neither the source of a name (an argument, the environment) nor the file that we find. A
 * name cannot lead out of the folder. The place of the folder is read from the environment once, so
 * a name means one file during a process's life. We judge folder and file by descriptors, not by
 * paths, so nobody can replace them between the check and the use. We look at a file that is not
 * regular but do not open it, because opening a device or a FIFO may change something.
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
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store.h"

#define FOLDER_OF_USER "%s/mdispatch-%u"
static_assert(MD_MAX_FOLDER + sizeof "/mdispatch-4294967295/" <= MD_MAX_ADDRESS, "folders fit");
static_assert(MD_MAX_ADDRESS + MD_MAX_REGISTRY_NAME <= MD__MAX_PATH, "paths fit");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char base[MD_MAX_FOLDER + 1] = "/dev/shm"; /* set once in read_base() */
static int base_status;                           /* set once in read_base() */

static const int64_t PATIENCE_NS = 10ll * 1000 * 1000 * 1000;

/* The name in an address. An address without one of these prefixes is itself a name. */
const char *md__name_in(const char *address) {
    if (strncmp(address, MD__SHM, strlen(MD__SHM)) == 0) return address + strlen(MD__SHM);
    if (strncmp(address, MD__ELECT, strlen(MD__ELECT)) == 0) return address + strlen(MD__ELECT);
    return address;
}

/* A name, or NAME@EDITION. An edition may have "+" too, as versions of Python packages do. */
bool md__is_name(const char *name) {
    size_t n = 0, edition = 0;
    for (; name[n]; n++) {
        char c = name[n];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || (c == '.' && n) || (c == '+' && edition) ||
                  (c == '@' && n && !edition);
        if (!ok || n >= MD_MAX_REGISTRY_NAME) return false;
        if (c == '@') edition = n + 1;
    }
    return n > edition;
}

/* How much of the name all editions of it begin with: up to "@" and with it. 0 without an edition. */
size_t md__edition_at(const char *name) {
    const char *at = strchr(name, '@');
    return at ? (size_t)(at + 1 - name) : 0;
}

/* A whole number as we write it: digits, without leading zeroes, up to INT_MAX. */
static const char *parse_number(const char *text, int *out) {
    int64_t value = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && p - text < 10; p++) value = value * 10 + (*p - '0');
    if (p == text || value > INT_MAX || (*text == '0' && p - text > 1)) return NULL;
    *out = (int)value;
    return p;
}

/* The end of 32 hexadecimal digits, as we write them. */
static const char *skip_digits(const char *p) {
    for (int i = 0; i < 32; i++, p++) {
        if (!((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'))) return NULL;
    }
    return p;
}

/* Whether the text is an address of an anonymous region, fd:PID:NUMBER:UUID:BOOT:SPACE, or one in
 * the short form fd:PID:NUMBER, and nothing more. A pid means something only in its own PID
 * namespace and until the next boot. So the address says in which: BOOT and SPACE are its origin. */
bool md__parse_fd_address(const char *address, struct md__fd_address *out) {
    memset(out, 0, sizeof *out);
    if (strncmp(address, MD__FD, strlen(MD__FD))) return false;
    const char *p = parse_number(address + strlen(MD__FD), &out->pid);
    if (!p || *p++ != ':' || out->pid == 0) return false;
    p = parse_number(p, &out->number);
    if (!p || !*p) return p != NULL;
    const char *uuid = p + 1, *origin = *p == ':' ? skip_digits(uuid) : NULL;
    if (!origin || *origin++ != ':') return false;
    p = skip_digits(origin);
    if (!p || *p++ != ':') return false;
    size_t digits = strspn(p, "0123456789");
    if (!digits || digits > 20 || p[digits] || (*p == '0' && digits > 1)) return false;
    memcpy(out->uuid, uuid, 32);
    memcpy(out->origin, origin, strlen(origin) + 1);
    return true;
}

/* A program with more rights than its caller (setuid, say) ignores the caller's folder. */
static void read_base(void) {
    const char *asked = secure_getenv("MDISPATCH_FOLDER");
    if (!asked || !asked[0]) return;
    size_t n = strlen(asked);
    if (asked[0] != '/' || n > MD_MAX_FOLDER)
        base_status = MD_EFOLDER;
    else
        memcpy(base, asked, n + 1);
}

/* Finds the folder that contains every user's folder. */
static int find_base(void) {
    pthread_once(&once, read_base);
    return base_status;
}

void md__file_path(char *path, size_t cap, const char *name) {
    find_base();
    snprintf(path, cap, FOLDER_OF_USER "/%s", base, (unsigned)geteuid(), name);
}

static int open_status(int err) {
    switch (err) {
    case ENOENT:
    case EWOULDBLOCK: /* another process is removing it: Note [Reaping] in inspect.c */
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

/* The folder of this user's named registries, if there is one. */
int md__find_folder(char *path, size_t cap) {
    path[0] = '\0';
    if (find_base()) return base_status;
    md__file_path(path, cap, "");
    if (access(path, F_OK) == 0) return 0;
    int err = errno;
    if (err == ENOTDIR || (err == ENOENT && access(base, F_OK) < 0)) return MD_EFOLDER;
    return open_status(err);
}

/* Judges the rights of the folder. If others have any, it is unfit for use. If a umask took rights
 * from its owner, we set them here. It is not enough that the process that made the folder does so:
 * it may have died before it could. */
static int judge_folder(int there) {
    struct stat st;
    char self[64];
    if (fstat(there, &st) < 0) return md__sys();
    if (st.st_uid != geteuid() || (st.st_mode & 077)) return MD_EOWNER;
    if ((st.st_mode & 0700) == 0700) return 0;
    snprintf(self, sizeof self, "/proc/thread-self/fd/%d", there);
    return chmod(self, 0700) < 0 ? md__sys() : 0;
}

/* Opens the folder of this user's named registries, and makes it if need be. Fails unless the
 * folder is this user's alone. */
int md__open_folder(int *fd) {
    char path[MD_MAX_ADDRESS];
    if (find_base()) return base_status;
    snprintf(path, sizeof path, FOLDER_OF_USER, base, (unsigned)geteuid());
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return errno == ENOENT || errno == ENOTDIR ? MD_EFOLDER : md__sys();
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

/* Locks the folder for a caller that decides about a name. The lock is held for moments. But any
 * process of this user can hold it, and can be stopped while it does. flock cannot wait with a
 * deadline, so we try again and again. Answers MD_EINTR only with `heed_signals`. */
int md__lock_folder(int folder, bool heed_signals) {
    const struct timespec nap = {.tv_nsec = 1000000};
    int64_t give_up = md_now() + PATIENCE_NS;
    sigset_t all, before;
    int rc = 0;
    /* A signal that arrives between two naps stays pending and ends the next nap. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (rc == 0 && flock(folder, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            rc = md__sys();
        else if (md_now() >= give_up)
            rc = MD_EBUSY;
        else if (ppoll(NULL, 0, &nap, &before) < 0 && heed_signals)
            rc = MD_EINTR;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* Opens a regular file. `flags` is O_NOFOLLOW if the path must not be a symbolic link, else 0. */
int md__open_file(int folder, const char *path, int flags, int *fd) {
    char self[64];
    struct stat st;
    int there = openat(folder, path, O_PATH | O_CLOEXEC | flags);
    if (there < 0) return open_status(errno);
    int rc = fstat(there, &st) < 0 ? md__sys() : 0;
    if (rc == 0 && !S_ISREG(st.st_mode)) rc = MD_ENOTFILE;
    if (rc == 0) {
        snprintf(self, sizeof self, "/proc/thread-self/fd/%d", there);
        *fd = open(self, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (*fd < 0) rc = open_status(errno);
    }
    close(there);
    return rc;
}

/* Whether the file still has its name: others may have replaced it since we opened it. Returns 0,
 * 1, or the reason why we cannot see: this process may now run as another user, who has no access
 * to the folder. */
int md__region_is_named(const md__reg *reg) {
    struct stat st;
    if (!reg->path[0]) return 1;
    if (lstat(reg->path, &st) < 0) return errno == ENOENT ? 0 : md__sys();
    return st.st_dev == reg->device && st.st_ino == reg->inode;
}

/* Removes the name of a region whose last user is this process. If this process may not remove it,
 * the name stays with a closed registry, and the next creator of that name replaces it. */
void md__region_unlink(md__reg *reg) {
    if (reg->path[0] && md__region_is_named(reg) == 1) unlink(reg->path);
}

/* --- for inspections, which keep nothing open ------------------------------------------------- */

/* The folder of this user's named registries, if there is one. */
int md__region_folder(char *path, size_t cap, int *fd) {
    int rc = md__find_folder(path, cap);
    return rc ? rc : md__open_folder(fd);
}

/* Opens a named registry's file for reading. */
int md__region_open(int folder, const char *name, int *fd) {
    if (!md__is_name(name)) return MD_ENAME;
    *fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return *fd < 0 ? open_status(errno) : 0;
}

/* Whether no process has the file open for writing, see Note [Reaping] in inspect.c. It was opened
 * for reading. The lease that this takes lasts until it is closed. If a process opens the file
 * meanwhile, the kernel sends us a signal. We choose one that is ignored by default. */
bool md__region_is_unused(int fd) {
    return fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_RDLCK) == 0;
}

/* Opens for reading a file that a process has open. */
int md__region_open_fd(const struct md__fd_address *address, int *fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d", address->pid);
    if (access(path, F_OK) < 0) return MD_EDIED;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", address->pid, address->number);
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return *fd < 0 ? open_status(errno) : 0;
}
