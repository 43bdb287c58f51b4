/* region.c - the memory of a region: judges, maps, grows and unmaps it.
 *
 * A region is mapped at its full capacity at once and backed by memory (fallocate) up to
 * `committed`. We touch only backed memory, so a full file system is an error and never a SIGBUS.
 *
 * A file is judged before it is mapped: type, owner, magic, format, stamp, boot, PID namespace
 * (thread ids in robust mutexes mean something only inside their own), bounds.
 *
 * Locking: none. A region grows under its own lock, which the caller has.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store.h"

enum { LARGEST_CHUNK = 1024 * 1024 };

uint32_t md__region_stamp(void) {
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

int md__boot_id(uint8_t id[16]) {
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
    if (stat("/proc/thread-self/ns/pid", &st) < 0) return md__sys();
    *id = (uint64_t)st.st_ino;
    return 0;
}

void md__region_print_uuid(char out[33], const uint8_t uuid[16]) {
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", uuid[i]);
}

/* Where a region was made, as addresses say it: BOOT:SPACE. */
void md__region_print_origin(char out[MD__ORIGIN], const struct md__header *h) {
    md__region_print_uuid(out, h->boot);
    snprintf(out + 32, MD__ORIGIN - 32, ":%" PRIu64, h->pid_space);
}

/* The same of this process. */
int md__origin_here(char out[MD__ORIGIN]) {
    struct md__header h;
    int rc = md__boot_id(h.boot);
    if (rc == 0) rc = md__pid_space(&h.pid_space);
    if (rc == 0) md__region_print_origin(out, &h);
    return rc;
}

/* Whether thread ids and pids from there mean something here. */
int md__judge_origin(const char *origin) {
    char here[MD__ORIGIN];
    int rc = md__origin_here(here);
    if (rc) return rc;
    if (memcmp(origin, here, 32)) return MD_EBOOT;
    return strcmp(origin, here) ? MD_ENAMESPACE : 0;
}

/* --- mapping ---------------------------------------------------------------------------------- */

int md__region_reserve(int fd, uint64_t from, uint64_t to) {
    while (fallocate(fd, 0, (off_t)from, (off_t)(to - from)) < 0) {
        if (errno != EINTR) return md__sys();
    }
    return 0;
}

int md__region_map(md__reg *reg, int fd, uint64_t capacity) {
    struct stat st;
    if (fstat(fd, &st) < 0) return md__sys();
    void *p = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return md__sys();
    reg->base = p;
    reg->mapped = capacity;
    reg->fd = fd;
    reg->device = st.st_dev;
    reg->inode = st.st_ino;
    return 0;
}

/* Whether the descriptor still names the region, and the state of its file. A program can close any
 * descriptor, as daemons do, and then the number may be that of another file. So every use of the
 * descriptor looks first. (If another thread closes it between the look and the use, we do not
 * notice.) */
static int look(const md__reg *reg, struct stat *st) {
    if (fstat(reg->fd, st) < 0) return errno == EBADF ? MD_ELOST : md__sys();
    return st->st_dev == reg->device && st->st_ino == reg->inode ? 0 : MD_ELOST;
}

/* Note [A child of a fork looks only]
 * A fork copies the mapping and the descriptor. The child may then become another user, with fewer
 * rights than its parent. The region must not give such a child a way back to those rights: it
 * contains the parent's lease, and glibc follows the lease's links in the parent. So the child's
 * fork handler maps the region for reading, at the same addresses, by a descriptor that can only
 * read. The kernel never makes such a mapping writable again. The child finds and reads facts as
 * before. It writes nothing: it is no member, and a process that is no member writes only under the
 * lock.
 *
 * When the child first takes the lock, it opens the file anew for writing (recover.c). The kernel
 * then checks the rights that the child has by that time.
 *
 * Two threads may open the file at once. Each maps the same pages of the same file over the old
 * mapping, so a third thread that reads meanwhile finds one or the other. If the first step fails
 * (no /proc, or a descriptor that was closed before the fork), the old mapping is only protected
 * against writing. That stops a mistake, but not a program that means to write. */

/* Opens the region's file anew and puts it in the place of the mapping and the descriptor. */
static int map_anew(md__reg *reg, int mode, int rights) {
    char path[64];
    struct stat st;
    int fd, rc = look(reg, &st);
    if (rc) return rc;
    snprintf(path, sizeof path, "/proc/thread-self/fd/%d", reg->fd);
    fd = open(path, mode | O_CLOEXEC);
    if (fd < 0) return errno == EMFILE || errno == ENFILE ? md__sys() : MD_EREOPEN;
    if (mmap(reg->base, reg->mapped, rights, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
        dup3(fd, reg->fd, O_CLOEXEC) < 0)
        rc = md__sys();
    close(fd);
    return rc;
}

void md__region_look_only(md__reg *reg) {
    if (map_anew(reg, O_RDONLY, PROT_READ)) mprotect(reg->base, reg->mapped, PROT_READ);
}

int md__region_reopen(md__reg *reg) {
    return map_anew(reg, O_RDWR, PROT_READ | PROT_WRITE);
}

/* How much of a file is surely backed: no more than its size, and no more than its allocated bytes,
 * so that it has no hole before that point. Touching the rest is a SIGBUS: always beyond the end,
 * and in a hole when no memory is left. */
static uint64_t backed_by(const struct stat *st) {
    uint64_t size = (uint64_t)st->st_size, blocks = (uint64_t)st->st_blocks * 512;
    return size < blocks ? size : blocks;
}

/* Asks the file whether all memory before `top` is backed. Returns 0 if it is, MD_EDAMAGED if it is
 * not, else the reason why this process cannot see. */
int md__region_survey(md__reg *reg, uint64_t top) {
    struct stat st;
    if (top > reg->mapped) return MD_EDAMAGED;
    if (top <= md__peek64(&reg->backed)) return 0;
    int rc = look(reg, &st);
    if (rc) return rc;
    uint64_t backed = backed_by(&st);
    if (backed > reg->mapped) backed = reg->mapped;
    md__poke64(&reg->backed, backed);
    return top <= backed ? 0 : MD_EDAMAGED;
}

/* For a top of the arena beyond the memory that we know to be backed. Either the file has grown, or
 * the top is false: then returns 0. A process that cannot see the file any more goes by
 * `committed`, which is published before the top and is true unless a stray write changed it. */
uint64_t md__region_top(md__reg *reg, uint64_t top) {
    int rc = md__region_survey(reg, top);
    if (rc == 0) return top;
    return rc != MD_EDAMAGED && top <= md__read64(&md__header(reg)->committed) ? top : 0;
}

static void unmap(md__reg *reg, bool is_ours) {
    md__unmap(reg);
    if (is_ours) close(reg->fd);
    md__poke64(&reg->backed, 0);
    reg->base = NULL;
    reg->creator = 0; /* also if making it failed: another region gets this place next */
    md__poke32(&reg->forked, 0);
    reg->fd = -1;
}

void md__region_unmap(md__reg *reg) {
    struct stat st;
    const struct md_held *held = md__held_of(reg);
    if (held && !held->lease) md__region_look_only(reg); /* remaining holders only read */
    unmap(reg, look(reg, &st) != MD_ELOST);
}

/* Unmaps a region that the call under way has opened itself. */
void md__region_discard(md__reg *reg) {
    unmap(reg, true);
}

/* Under the lock: backs the region with memory up to `need_top`. */
int md__region_grow(md__reg *reg, uint64_t need_top) {
    struct md__header *h = md__header(reg);
    uint64_t committed = md__peek64(&h->committed), chunk = committed / 8;
    /* A process killed between the two steps below leaves more backed than committed. The others go
     * by `committed`. */
    bool backed = need_top <= md__peek64(&reg->backed);
    if (need_top <= committed) return backed || md__region_top(reg, need_top) ? 0 : MD_EDAMAGED;
    if (chunk < MD__FIRST_CHUNK) chunk = MD__FIRST_CHUNK;
    if (chunk > LARGEST_CHUNK) chunk = LARGEST_CHUNK;
    uint64_t to = (need_top + chunk + 4095) & ~4095ull;
    if (to > reg->mapped) to = reg->mapped;
    struct stat st;
    int rc = look(reg, &st);
    if (rc == 0) rc = md__region_reserve(reg->fd, committed, to);
    if (rc) return rc;
    md__poke64(&reg->backed, to);
    md__publish64(&h->committed, to);
    return 0;
}

/* --- judging a file --------------------------------------------------------------------------- */

/* Reads the header of an open file and says what is wrong with it. */
int md__region_judge(int fd, struct md__header *h) {
    struct stat st;
    char origin[MD__ORIGIN];
    if (fstat(fd, &st) < 0) return md__sys();
    if (!S_ISREG(st.st_mode)) return MD_ENOTFILE;
    /* Only the owner may have rights: a process that can only read can still sleep on our words,
     * and so take wakes that are meant for others. */
    if (st.st_uid != geteuid() || (st.st_mode & 07777) != 0600) return MD_EOWNER;
    if (backed_by(&st) < MD__ARENA_AT || pread(fd, h, sizeof *h, 0) != sizeof *h) return MD_EFORMAT;
    if (memcmp(h->magic, MD__MAGIC, 8)) return MD_EFORMAT;
    if (h->format != MD_FORMAT || h->stamp != md__region_stamp()) return MD_EVERSION;
    md__region_print_origin(origin, h);
    int rc = md__judge_origin(origin);
    if (rc) return rc;
    if (h->uid != (uint32_t)st.st_uid) return MD_EOWNER;
    if (h->capacity < MD__MIN_CAPACITY || h->capacity > MD__MAX_CAPACITY || h->capacity % 4096)
        return MD_EDAMAGED;
    if (h->policy < MD_POLICY_MAIN || h->policy > MD_POLICY_BRIDGE) return MD_EDAMAGED;
    for (size_t i = 0; i < sizeof h->reserved / sizeof *h->reserved; i++)
        if (h->reserved[i]) return MD_EDAMAGED;
    return 0;
}

/* Judges the bounds of a mapped region. A writer may be at work: it lengthens the file, then
 * publishes `committed`, then `arena_top`, and none of the three ever shrinks. So we read them in
 * the opposite order, each as one word (a copy of the header may mix two moments). */
int md__region_judge_bounds(const md__reg *reg, int fd) {
    const struct md__header *h = md__header(reg);
    struct stat st;
    uint64_t top = md__read64(&h->arena_top), committed = md__read64(&h->committed);
    if (fstat(fd, &st) < 0) return md__sys();
    if (top < MD__ARENA_AT || top > committed || committed > reg->mapped ||
        committed > backed_by(&st))
        return MD_EDAMAGED;
    return 0;
}
