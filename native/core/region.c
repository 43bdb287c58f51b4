/* region.c - the memory itself: made, found, judged, grown, let go.
 *
 * A region is mapped at its full capacity at once and backed by memory (fallocate) as far as
 * `committed` says; only what is backed is touched, so a full file system is an error and never a
 * SIGBUS. An anonymous region is a memfd sealed against shrinking, which other processes open
 * through /proc/PID/fd; it is gone with its last user. A named one is a file in a folder of this
 * user's own, filled under no name and then linked to its name: nobody sees half of it.
 *
 * What is attached is judged before it is mapped: type, owner, magic, format, stamp, boot, PID
 * namespace (thread ids in robust mutexes mean something only inside one), bounds.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { FIRST_CHUNK = 64 * 1024, LARGEST_CHUNK = 1024 * 1024 };
enum { NOEXEC_SEAL = 8 }; /* MFD_NOEXEC_SEAL: a system can refuse memory files without it */

int md__sys(void) {
    return MD_ESYS - errno;
}

static uint32_t stamp(void) {
    uint32_t sizes[] = {sizeof(struct md__header),
                        sizeof(struct md__process),
                        sizeof(struct md__member),
                        sizeof(struct md__node),
                        sizeof(struct md__fact),
                        sizeof(pthread_mutex_t),
                        MD_MAX_PROCESSES,
                        MD_MAX_MEMBERS,
                        MD__CLASSES,
                        MD_MAX_NAME,
                        MD_MAX_BODY,
                        MD_MAX_WHERE,
                        0x01020304u};
    return md__hash((const char *)sizes, sizeof sizes);
}

static int boot_id(uint8_t id[16]) {
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return md__sys();
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    int digits = 0;
    memset(id, 0, 16);
    for (ssize_t i = 0; i < n && digits < 32; i++) {
        char c = text[i];
        if (c < '0') continue; /* a hyphen; the rest are digits and small letters */
        int v = c <= '9' ? c - '0' : c - 'a' + 10;
        id[digits / 2] |= (uint8_t)(v << (digits % 2 ? 0 : 4));
        digits++;
    }
    return digits == 32 ? 0 : MD_ESYS - EIO;
}

int md__pid_space(uint64_t *id) {
    struct stat st;
    if (stat("/proc/self/ns/pid", &st) < 0) return md__sys();
    *id = (uint64_t)st.st_ino;
    return 0;
}

static void print_uuid(char out[33], const uint8_t uuid[16]) {
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", uuid[i]);
}

/* --- mapping ---------------------------------------------------------------------------------- */

static int reserve(int fd, uint64_t from, uint64_t to) {
    while (fallocate(fd, 0, (off_t)from, (off_t)(to - from)) < 0) {
        if (errno != EINTR) return md__sys();
    }
    return 0;
}

static int map(md__reg *reg, int fd, uint64_t capacity) {
    void *p = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return md__sys();
    reg->base = p;
    reg->mapped = capacity;
    reg->fd = fd;
    return 0;
}

/* How much of a file there is: not beyond its end, and, counting what is there, no hole before it.
 * Touching the rest is SIGBUS, beyond the end always, in a hole when no memory is left. */
static uint64_t backed_by(const struct stat *st) {
    uint64_t size = (uint64_t)st->st_size, blocks = (uint64_t)st->st_blocks * 512;
    return size < blocks ? size : blocks;
}

/* A top of the arena beyond what we know to be backed: the file has grown, or it is not true, then
 * 0. */
uint64_t md__region_top(md__reg *reg, uint64_t top) {
    struct stat st;
    if (top > reg->mapped || fstat(reg->fd, &st) < 0) return 0;
    uint64_t backed = backed_by(&st);
    if (backed > reg->mapped) backed = reg->mapped;
    md__poke64(&reg->backed, backed);
    return top <= backed ? top : 0;
}

void md__region_unmap(md__reg *reg) {
    if (!reg->parked) md__unmap(reg);
    close(reg->fd);
    md__poke64(&reg->backed, 0);
    reg->base = NULL;
    reg->creator = 0; /* also of one that could not be made: the place is another region's next */
    md__poke32(&reg->forked, 0);
    reg->fd = -1;
}

/* Under the lock: backs the region with memory up to `need_top`. */
int md__region_grow(md__reg *reg, uint64_t need_top) {
    struct md__header *h = md__header(reg);
    uint64_t committed = md__peek64(&h->committed), chunk = committed / 8;
    /* More may be backed than is committed, by one who was killed in between: `committed` is what
     * the others go by. */
    bool backed = need_top <= md__peek64(&reg->backed);
    if (need_top <= committed) return backed || md__region_top(reg, need_top) ? 0 : MD_EDAMAGED;
    if (chunk < FIRST_CHUNK) chunk = FIRST_CHUNK;
    if (chunk > LARGEST_CHUNK) chunk = LARGEST_CHUNK;
    uint64_t to = (need_top + chunk + 4095) & ~4095ull;
    if (to > reg->mapped) to = reg->mapped;
    int rc = reserve(reg->fd, committed, to);
    if (rc) return rc;
    md__poke64(&reg->backed, to);
    md__publish64(&h->committed, to);
    return 0;
}

/* Fills a fresh region whose memory is all zeroes up to the arena. Nobody else knows it yet. */
static int format(md__reg *reg, uint64_t capacity, uint64_t committed, uint32_t policy) {
    struct md__header *h = md__header(reg);
    memcpy(h->magic, MD__MAGIC, 8);
    h->format = MD__FORMAT;
    h->stamp = stamp();
    h->capacity = capacity;
    h->uid = (uint32_t)geteuid();
    h->main_pid = (uint32_t)getpid();
    h->policy = policy;
    ssize_t n = getrandom(h->uuid, sizeof h->uuid, 0);
    if (n != sizeof h->uuid) return n < 0 ? md__sys() : MD_ESYS - EIO;
    int rc = boot_id(h->boot);
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
    uint64_t committed = (MD__ARENA_AT + FIRST_CHUNK + 4095) & ~4095ull;
    /* A umask takes rights away, a memfd is born with 0777. */
    int rc = fchmod(fd, 0600) < 0 ? md__sys() : reserve(fd, 0, committed);
    if (rc == 0) rc = map(reg, fd, capacity);
    if (rc) {
        close(fd);
        return rc;
    }
    reg->creator = 1;
    return format(reg, capacity, committed, policy);
}

/* --- judging what is there -------------------------------------------------------------------- */

/* Reads the header of an open file and says what is wrong with it. */
static int judge(int fd, struct md__header *h) {
    struct stat st;
    uint8_t boot[16];
    uint64_t space = 0;
    if (fstat(fd, &st) < 0) return md__sys();
    if (!S_ISREG(st.st_mode)) return MD_ENOTFILE;
    /* Who may only read may still sleep on our words, and take the wakes of those they are for. */
    if (st.st_uid != geteuid() || (st.st_mode & 07777) != 0600) return MD_EOWNER;
    if (backed_by(&st) < MD__ARENA_AT || pread(fd, h, sizeof *h, 0) != sizeof *h) return MD_EFORMAT;
    if (memcmp(h->magic, MD__MAGIC, 8)) return MD_EFORMAT;
    if (h->format != MD__FORMAT || h->stamp != stamp()) return MD_EVERSION;
    int rc = boot_id(boot);
    if (rc == 0) rc = md__pid_space(&space);
    if (rc) return rc;
    if (memcmp(boot, h->boot, 16)) return MD_EBOOT;
    if (h->pid_space != space) return MD_ENAMESPACE;
    if (h->uid != (uint32_t)st.st_uid) return MD_EOWNER;
    if (h->capacity < MD__MIN_CAPACITY || h->capacity > MD__MAX_CAPACITY || h->capacity % 4096)
        return MD_EDAMAGED;
    if (h->policy != MD_POLICY_MAIN && h->policy != MD_POLICY_ELECT) return MD_EDAMAGED;
    return 0;
}

/* The bounds of what is mapped. A writer may be at work: it lengthens the file, then publishes
 * `committed`, then `arena_top`, and none of them ever shrinks. So they are read the other way
 * round, and whole (a copy of the header may be one of two moments). */
static int judge_bounds(const md__reg *reg, int fd) {
    const struct md__header *h = md__header(reg);
    struct stat st;
    uint64_t top = md__read64(&h->arena_top), committed = md__read64(&h->committed);
    if (fstat(fd, &st) < 0) return md__sys();
    if (top < MD__ARENA_AT || top > committed || committed > reg->mapped ||
        committed > backed_by(&st))
        return MD_EDAMAGED;
    return 0;
}

/* Whether somebody can still register in it. A damaged one whose main member died is just dead: it
 * may be replaced. */
int md__region_served(md__reg *reg) {
    uint32_t state = md__read32(&md__header(reg)->state);
    if (state == MD__CLOSED) return MD_ECLOSED;
    bool dead = md__is_elect(reg) ? reg->process == MD__NO_SLOT && !md__is_anyone_here(reg)
                                  : md__lease_is_dead(md__process(reg, 0));
    if (dead) return MD_EDIED;
    return state == MD__OPEN ? 0 : MD_EDAMAGED;
}

/* Without a main member: closes one in which nobody is alive, so that it can be replaced. Who has
 * it mapped but has not joined yet would have made it live again: it joins under the same lock, and
 * finds it closed. */
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
    int rc = judge(fd, &h);
    if (rc == 0 && uuid) {
        print_uuid(found, h.uuid);
        if (strcmp(found, uuid)) rc = MD_ENOENT;
    }
    if (rc == 0) rc = map(reg, fd, h.capacity);
    if (rc) {
        close(fd);
        return rc;
    }
    rc = judge_bounds(reg, fd);
    if (rc == 0) rc = md__region_served(reg);
    if (rc == MD_EDIED && to_replace && md__is_elect(reg)) rc = retire(reg);
    if (rc) md__region_unmap(reg);
    return rc;
}

static int open_named(md__reg *reg, int folder, const char *name, bool to_replace) {
    int fd, rc = md__open_file(folder, name, O_NOFOLLOW, &fd);
    return rc ? rc : adopt(reg, fd, NULL, to_replace);
}

/* --- creating and attaching ------------------------------------------------------------------- */

static int create_anonymous(md__reg *reg, uint64_t capacity, uint32_t policy) {
    char uuid[33];
    int fd = memfd_create("mdispatch", MFD_CLOEXEC | MFD_ALLOW_SEALING | NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* a kernel before 6.3 */
        fd = memfd_create("mdispatch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return md__sys();
    int rc = make(reg, fd, capacity, policy);
    if (rc) return rc;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) < 0) return md__sys();
    print_uuid(uuid, md__header(reg)->uuid);
    snprintf(reg->address, sizeof reg->address, "fd:%ld:%d:%s", (long)getpid(), fd, uuid);
    return 0;
}

/* Links the filled file to its name, once whatever dead registry has it is out of the way. The
 * folder is locked, so that of several creators one decides at a time. */
static int publish_name(md__reg *reg, int folder, const char *name) {
    char self[64];
    md__reg old = {.fd = -1, .process = MD__NO_SLOT};
    int rc = md__lock_folder(folder, false);
    if (rc) return rc;
    rc = open_named(&old, folder, name, true);
    if (rc == 0) {
        md__region_unmap(&old);
        return MD_EEXIST;
    }
    if (rc == MD_EDIED || rc == MD_ECLOSED || rc == MD_EBOOT) {
        if (unlinkat(folder, name, 0) < 0 && errno != ENOENT) return md__sys();
    } else if (rc != MD_ENOENT) {
        return rc;
    }
    snprintf(self, sizeof self, "/proc/self/fd/%d", reg->fd);
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
    close(folder); /* and with it the lock */
    if (rc) return rc;
    snprintf(reg->address, sizeof reg->address, MD__SHM "%s", name);
    return 0;
}

/* Where a named region's file has its name, "" for an anonymous one. */
static void path_of(const md__reg *reg, char *path, size_t cap) {
    const char *name = md__name_in(reg->address);
    path[0] = '\0';
    if (name != reg->address) md__file_path(path, cap, name);
}

/* Whether the file still bears its name: others may have replaced it since it was opened. */
int md__region_is_named(const md__reg *reg) {
    char path[MD_MAX_ADDRESS];
    path_of(reg, path, sizeof path);
    return !path[0] || md__is_own(path, reg->fd);
}

/* Takes the name away from a region of which this process is the last user. */
void md__region_unlink(md__reg *reg) {
    char path[MD_MAX_ADDRESS];
    path_of(reg, path, sizeof path);
    if (path[0] && md__is_own(path, reg->fd)) unlink(path);
}

int md__region_create(md__reg *reg, const char *name, uint64_t capacity, uint32_t policy) {
    if (capacity < MD__MIN_CAPACITY || capacity > MD__MAX_CAPACITY) return MD_EINVAL;
    capacity = (capacity + 4095) & ~4095ull;
    return name ? create_named(reg, name, capacity, policy)
                : create_anonymous(reg, capacity, policy);
}

/* Waits until something appears in the watched folder. */
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

/* Whether a later file of this name may be what is wanted. */
static bool is_worth_waiting(int rc) {
    return rc == MD_ENOENT || rc == MD_EDIED || rc == MD_ECLOSED;
}

/* A watch on the folder; there are few of them to be had, so only those who must wait take one. */
static int open_watch(int *watch) {
    char path[MD_MAX_ADDRESS];
    md__file_path(path, sizeof path, ".");
    *watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return *watch < 0 || inotify_add_watch(*watch, path, IN_CREATE | IN_MOVED_TO) < 0 ? md__sys()
                                                                                      : 0;
}

/* Once the watch is set there is another look, so a file linked after that look wakes the wait. */
static int attach_named(md__reg *reg, const char *name, int64_t deadline_ns) {
    int folder, watch = -1, rc;
    int64_t left;
    if (!md__is_name(name)) return MD_ENAME;
    rc = md__open_folder(&folder);
    if (rc) return rc;
    rc = open_named(reg, folder, name, false);
    while (is_worth_waiting(rc) && (left = time_left(deadline_ns)) > 0) {
        int waited = watch < 0 ? open_watch(&watch) : await_change(watch, left);
        if (waited == MD_ETIMEDOUT)
            break; /* the answer is why it could not be attached, not that time is up */
        rc = waited ? waited : open_named(reg, folder, name, false);
    }
    if (watch >= 0) close(watch);
    close(folder);
    if (rc == 0) snprintf(reg->address, sizeof reg->address, MD__SHM "%s", name);
    return rc;
}

static int attach_fd(md__reg *reg, const char *address) {
    char path[64], uuid[33];
    int pid, number, fd;
    if (!md__is_fd_address(address + 3, &pid, &number, uuid)) return MD_ENAME;
    snprintf(path, sizeof path, "/proc/%d", pid);
    if (access(path, F_OK) < 0) return errno == ENOENT ? MD_EDIED : md__sys();
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
    int rc = md__open_file(AT_FDCWD, path, 0, &fd);
    if (rc) return rc;
    rc = adopt(reg, fd, uuid, false);
    if (rc == 0) snprintf(reg->address, sizeof reg->address, "%s", address);
    return rc;
}

int md__region_attach(md__reg *reg, const char *address, int64_t deadline_ns) {
    if (strncmp(address, "fd:", 3) == 0) return attach_fd(reg, address);
    return attach_named(reg, md__name_in(address), deadline_ns);
}

/* --- for inspect.c, which looks and keeps nothing ---------------------------------------------- */

/* The folder of this user's named registries, if there is one. */
int md__region_folder(char *path, size_t cap, int *fd) {
    md__file_path(path, cap, "");
    if (access(path, F_OK) < 0) return md__open_status(errno);
    return md__open_folder(fd);
}

/* Opens a named registry's file for reading. */
int md__region_open(int folder, const char *name, int *fd) {
    if (!md__is_name(name)) return MD_ENAME;
    *fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return *fd < 0 ? md__open_status(errno) : 0;
}

/* Opens what a process has open, for reading; `uuid` is what it must be, or "". */
int md__region_open_fd(const char *address, int *fd, long *pid, int *number, char uuid[33]) {
    char path[64];
    int end = 0;
    uuid[0] = '\0';
    if (sscanf(address, "fd:%ld:%d%n:%32[0-9a-f]%n", pid, number, &end, uuid, &end) < 2 ||
        address[end] || (uuid[0] && strlen(uuid) != 32))
        return MD_ENAME;
    snprintf(path, sizeof path, "/proc/%ld", *pid);
    if (access(path, F_OK) < 0) return MD_EDIED;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", *pid, *number);
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return *fd < 0 ? md__open_status(errno) : 0;
}

int md__region_judge(int fd, struct md__header *h) {
    return judge(fd, h);
}

void md__region_print_uuid(char out[33], const uint8_t uuid[16]) {
    print_uuid(out, uuid);
}
