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
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { FIRST_CHUNK = 64 * 1024, LARGEST_CHUNK = 1024 * 1024 };

static const char FOLDER[] = "/dev/shm";

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
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (v < 0) continue;
        id[digits / 2] |= (uint8_t)(v << (digits % 2 ? 0 : 4));
        digits++;
    }
    return digits == 32 ? 0 : MD_ESYS - EIO;
}

static uint64_t pid_space(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* --- names and addresses ---------------------------------------------------------------------- */

static bool is_name(const char *name) {
    size_t n = 0;
    for (; name[n]; n++) {
        char c = name[n];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-' || (c == '.' && n);
        if (!ok || n >= MD_MAX_REGISTRY_NAME) return false;
    }
    return n > 0;
}

/* The folder of this user's named registries: ours alone, or nothing. */
static int open_folder(int *fd) {
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "%s/mdispatch-%u", FOLDER, (unsigned)geteuid());
    if (mkdir(path, 0700) < 0 && errno != EEXIST) return md__sys();
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0)
        return errno == ENOTDIR || errno == ELOOP || errno == EACCES ? MD_EOWNER : md__sys();
    if (fstat(*fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 077)) {
        close(*fd);
        return MD_EOWNER;
    }
    return 0;
}

static void file_path(char *path, size_t cap, const char *name) {
    snprintf(path, cap, "%s/mdispatch-%u/%s", FOLDER, (unsigned)geteuid(), name);
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

void md__region_unmap(md__reg *reg) {
    if (reg->base && !reg->parked) munmap(reg->base, reg->mapped);
    if (reg->fd >= 0) close(reg->fd);
    reg->base = NULL;
    reg->fd = -1;
}

/* Under the lock: backs the region with memory up to `need_top`. */
int md__region_grow(md__reg *reg, uint64_t need_top) {
    struct md__header *h = md__header(reg);
    uint64_t committed = md__peek64(&h->committed), chunk = committed / 8;
    if (need_top <= committed) return 0;
    if (chunk < FIRST_CHUNK) chunk = FIRST_CHUNK;
    if (chunk > LARGEST_CHUNK) chunk = LARGEST_CHUNK;
    uint64_t to = (need_top + chunk + 4095) & ~4095ull;
    if (to > h->capacity) to = h->capacity;
    int rc = reserve(reg->fd, committed, to);
    if (rc == 0) md__publish64(&h->committed, to);
    return rc;
}

/* Fills a fresh region whose memory is all zeroes up to the arena. Nobody else knows it yet. */
static int format(md__reg *reg, uint64_t capacity, uint64_t committed) {
    struct md__header *h = md__header(reg);
    memcpy(h->magic, MD__MAGIC, 8);
    h->format = MD__FORMAT;
    h->stamp = stamp();
    h->capacity = capacity;
    h->pid_space = pid_space();
    h->uid = (uint32_t)geteuid();
    h->main_pid = (uint32_t)getpid();
    if (getrandom(h->uuid, sizeof h->uuid, 0) != sizeof h->uuid) return md__sys();
    int rc = boot_id(h->boot);
    if (rc) return rc;
    md__poke64(&h->committed, committed);
    md__poke64(&h->arena_top, MD__ARENA_AT);
    md__publish64(&h->next_seq, 1);
    rc = md__mutex_init(&h->mutex);
    if (rc == 0) rc = md__index_create(reg, MD__FIRST_INDEX_LOG2);
    if (rc == 0) rc = md__process_join(reg);
    return rc;
}

static int make(md__reg *reg, int fd, uint64_t capacity) {
    uint64_t committed = (MD__ARENA_AT + FIRST_CHUNK + 4095) & ~4095ull;
    int rc = reserve(fd, 0, committed);
    if (rc == 0) rc = map(reg, fd, capacity);
    if (rc) {
        close(fd);
        return rc;
    }
    reg->creator = 1;
    return format(reg, capacity, committed);
}

/* --- judging what is there -------------------------------------------------------------------- */

/* Reads the header of an open file and says what is wrong with it. */
static int judge(int fd, struct md__header *h) {
    struct stat st;
    uint8_t boot[16];
    if (fstat(fd, &st) < 0) return md__sys();
    if (!S_ISREG(st.st_mode)) return MD_ENOTFILE;
    /* A memfd has mode 0777 from birth, but no name by which others could reach it. */
    if (st.st_uid != geteuid() || (st.st_nlink && (st.st_mode & 022))) return MD_EOWNER;
    if (st.st_size < MD__ARENA_AT || pread(fd, h, sizeof *h, 0) != sizeof *h) return MD_EFORMAT;
    if (memcmp(h->magic, MD__MAGIC, 8)) return MD_EFORMAT;
    if (h->format != MD__FORMAT || h->stamp != stamp()) return MD_EVERSION;
    int rc = boot_id(boot);
    if (rc) return rc;
    if (memcmp(boot, h->boot, 16)) return MD_EBOOT;
    if (h->pid_space != pid_space()) return MD_ENAMESPACE;
    if (h->capacity < MD__MIN_CAPACITY || h->capacity > MD__MAX_CAPACITY) return MD_EDAMAGED;
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
        committed > (uint64_t)st.st_size)
        return MD_EDAMAGED;
    return 0;
}

/* Whether somebody can still register in it. A damaged one whose main member died is just dead: it
 * may be replaced. */
int md__region_served(md__reg *reg) {
    uint32_t state = md__read32(&md__header(reg)->state);
    if (state == MD__CLOSED) return MD_ECLOSED;
    if (md__lease_is_dead(md__process(reg, 0))) return MD_EDIED;
    return state == MD__OPEN ? 0 : MD_EDAMAGED;
}

/* Maps an open file, or closes it. */
static int adopt(md__reg *reg, int fd, const char *uuid) {
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
    if (rc) md__region_unmap(reg);
    return rc;
}

static int open_status(int err) {
    switch (err) {
    case ENOENT:
        return MD_ENOENT;
    case ELOOP:
    case EISDIR:
    case ENXIO:
        return MD_ENOTFILE;
    case EACCES:
    case EPERM:
        return MD_EOWNER;
    default:
        return MD_ESYS - err;
    }
}

static int open_named(md__reg *reg, int folder, const char *name) {
    int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return fd < 0 ? open_status(errno) : adopt(reg, fd, NULL);
}

/* --- creating and attaching ------------------------------------------------------------------- */

static int create_anonymous(md__reg *reg, uint64_t capacity) {
    char uuid[33];
    int fd = memfd_create("mdispatch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return md__sys();
    int rc = make(reg, fd, capacity);
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
    md__reg old = {.fd = -1};
    while (flock(folder, LOCK_EX) < 0) {
        if (errno != EINTR) return md__sys();
    }
    int rc = open_named(&old, folder, name);
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

static int create_named(md__reg *reg, const char *name, uint64_t capacity) {
    int folder, rc;
    if (!is_name(name)) return MD_ENAME;
    rc = open_folder(&folder);
    if (rc) return rc;
    int fd = openat(folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    rc = fd < 0 ? md__sys() : make(reg, fd, capacity);
    if (rc == 0) rc = publish_name(reg, folder, name);
    close(folder); /* and with it the lock */
    if (rc) return rc;
    snprintf(reg->address, sizeof reg->address, "shm:%s", name);
    file_path(reg->path, sizeof reg->path, name);
    return 0;
}

int md__region_create(md__reg *reg, const char *name, uint64_t capacity) {
    if (capacity < MD__MIN_CAPACITY || capacity > MD__MAX_CAPACITY) return MD_EINVAL;
    capacity = (capacity + 4095) & ~4095ull;
    return name ? create_named(reg, name, capacity) : create_anonymous(reg, capacity);
}

/* Waits until something appears in the watched folder. */
static int await_change(int watch, int64_t deadline_ns) {
    char events[4096] __attribute__((aligned(8)));
    struct pollfd p = {.fd = watch, .events = POLLIN};
    int64_t left = deadline_ns == MD_FOREVER ? 1 : deadline_ns - md_now();
    if (left <= 0) return MD_ETIMEDOUT;
    struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    int n = ppoll(&p, 1, deadline_ns == MD_FOREVER ? NULL : &t, NULL);
    if (n < 0) return errno == EINTR ? MD_EINTR : md__sys();
    if (n == 0) return MD_ETIMEDOUT;
    return read(watch, events, sizeof events) < 0 ? md__sys() : 0;
}

/* Whether a later file of this name may be what is wanted. */
static bool is_worth_waiting(int rc) {
    return rc == MD_ENOENT || rc == MD_EDIED || rc == MD_ECLOSED;
}

/* A watch on the folder; there are few of them to be had, so only those who must wait take one. */
static int open_watch(int *watch) {
    char path[MD_MAX_ADDRESS];
    file_path(path, sizeof path, ".");
    *watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return *watch < 0 || inotify_add_watch(*watch, path, IN_CREATE | IN_MOVED_TO) < 0 ? md__sys()
                                                                                      : 0;
}

/* Once the watch is set there is another look, so a file linked after that look wakes the wait. */
static int attach_named(md__reg *reg, const char *name, int64_t deadline_ns) {
    int folder, watch = -1, rc;
    if (!is_name(name)) return MD_ENAME;
    rc = open_folder(&folder);
    if (rc) return rc;
    rc = open_named(reg, folder, name);
    while (is_worth_waiting(rc) && (deadline_ns == MD_FOREVER || deadline_ns > md_now())) {
        int waited = watch < 0 ? open_watch(&watch) : await_change(watch, deadline_ns);
        if (waited == MD_ETIMEDOUT)
            break; /* the answer is why it could not be attached, not that time is up */
        rc = waited ? waited : open_named(reg, folder, name);
    }
    if (watch >= 0) close(watch);
    close(folder);
    if (rc == 0) snprintf(reg->address, sizeof reg->address, "shm:%s", name);
    return rc;
}

static int attach_fd(md__reg *reg, const char *address) {
    char path[64], uuid[33] = "";
    long pid;
    int number, end = 0;
    if (sscanf(address, "fd:%ld:%d:%32[0-9a-f]%n", &pid, &number, uuid, &end) != 3 ||
        address[end] || strlen(uuid) != 32)
        return MD_ENAME;
    snprintf(path, sizeof path, "/proc/%ld", pid);
    if (access(path, F_OK) < 0) return MD_EDIED;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", pid, number);
    int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return open_status(errno);
    int rc = adopt(reg, fd, uuid);
    if (rc == 0) snprintf(reg->address, sizeof reg->address, "%s", address);
    return rc;
}

int md__region_attach(md__reg *reg, const char *address, int64_t deadline_ns) {
    if (strncmp(address, "fd:", 3) == 0) return attach_fd(reg, address);
    if (strncmp(address, "shm:", 4) == 0) address += 4;
    return attach_named(reg, address, deadline_ns);
}
