/* region_made.h - the regions that fuzz_region.c spoils: made once by the contract's own calls,
 * kept as bytes, and put back after each execution.
 */
#ifndef MD_FUZZ_REGION_MADE_H
#define MD_FUZZ_REGION_MADE_H

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops.h"

enum { MADE_NAMES = 9, MADE_BLOCKS = 512, KINDS_OF_REGION = 3, TEAM = 3 };

struct made {
    char *good;   /* the bytes as they were made, all of the file */
    size_t size;  /* of the file */
    uint64_t top; /* end of the last block */
    uint32_t blocks[MADE_BLOCKS];
    uint32_t block_count;
    int fd; /* a memfd with these bytes */
    char address[MD_MAX_ADDRESS];
    char *mine;           /* a mapping of it, of our own */
    md_registry attached; /* 0: each execution attaches anew */
};

static struct made
    made_files[KINDS_OF_REGION + 1]; /* attached to each time; the last one a team's */
static struct made made_mapped[3];   /* attached to once; likewise */

static struct {
    const char *text;
    size_t len;
} made_names[MADE_NAMES];

static inline void made_set_names(void) {
    static char longest[MD_MAX_NAME], longer[100];
    static const char *const usual[] = {"n0", "n1", "ns::op", "ns::op.overload", "_", "8letters"};
    memset(longest, 'x', sizeof longest);
    memset(longer, 'y', sizeof longer);
    for (int i = 0; i < 6; i++) {
        made_names[i].text = usual[i];
        made_names[i].len = strlen(usual[i]);
    }
    made_names[6].text = longest;
    made_names[6].len = sizeof longest;
    made_names[7].text = longer;
    made_names[7].len = sizeof longer;
    made_names[8].text = "\xc3\xa4\n\0b";
    made_names[8].len = 5;
}

static inline int made_put(md_registry reg, uint64_t member, int i, size_t body_len,
                           md_record *out) {
    static char body[MD_MAX_BODY], buf[2 * MD_MAX_BODY];
    int n = i == 20 ? 6 : i % 8 == 6 ? 8 : i % 8; /* the longest once: it costs most of the time */
    for (size_t k = 0; k < body_len; k++) body[k] = (char)('a' + (k + (size_t)i) % 26);
    int rc = md_register(reg, member, 1 + (uint32_t)i % 6, i % 5 ? MD_STACK : MD_UNIQUE, i / 8 % 8,
                         made_names[n].text, made_names[n].len, body, body_len, "made.c:7", 8, buf,
                         sizeof buf);
    if (rc == 0) memcpy(out, buf, sizeof *out);
    return rc;
}

/* The namespaces of the first `n` names. */
static inline void made_claims(md_registry reg, uint64_t member, int n) {
    for (int i = 0; i < n; i++) {
        size_t len = i == 2 || i == 3 ? 2 : made_names[i].len;
        int rc = md_claim(reg, member, made_names[i].text, len, "made.c:8", 8, pool, POOL);
        MUST(rc == 0 || rc == MD_EEXIST);
    }
}

/* A process that joined and was killed; in a team it is in the queues of two namespaces. */
static inline void made_death(md_registry reg, bool team) {
    pid_t pid = fork();
    if (pid == 0) {
        uint64_t member;
        uint32_t role;
        if (md_join(reg, 5, &member, &role)) _exit(1);
        if (team) made_claims(reg, member, 2);
        raise(SIGKILL);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

static inline md_registry made_region(int kind) {
    md_registry reg;
    md_record r[64];
    uint64_t member, worker;
    uint32_t role;
    uint64_t capacity = kind == 2 ? MD__MIN_CAPACITY + (1 << 19) : MD__MIN_CAPACITY;
    bool team = kind == TEAM;
    MUST((team ? md_elect(NULL, capacity, &reg) : md_create(NULL, capacity, &reg)) == 0);
    MUST(md_join(reg, 0, &member, &role) == 0 && role == (team ? MD_PEER : MD_MAIN));
    MUST(md_join(reg, 3, &worker, &role) == 0 && role == (team ? MD_PEER : MD_WORKER));
    if (team) made_claims(reg, member, MADE_NAMES);
    for (int i = 0; i < 26; i++) MUST(made_put(reg, member, i, (size_t)i * 7 % 150, &r[i]) == 0);
    for (int i = 0; i < 26; i += 4) MUST(md_strike(reg, member, r[i].ref, r[i].seq) == 0);
    if (kind == 1) { /* not even the shortest fact fits any more */
        for (size_t len = 16384; len >= 8; len /= 2) {
            while (made_put(reg, member, 49, len, &r[49]) == 0) {}
        }
    }
    if (kind == 2) { /* the region has grown, and so has the index */
        char name[16];
        for (int i = 0; i < 140; i++) {
            snprintf(name, sizeof name, "g%d", i);
            MUST(md_register(reg, member, MD_NAME, MD_STACK, 0, name, strlen(name), NULL, 0, NULL,
                             0, pool, POOL) == 0);
        }
        MUST(made_put(reg, member, 50, MD_MAX_BODY, &r[50]) == 0);
    }
    if (team) made_claims(reg, worker, 3);
    made_death(reg, team);
    MUST(md_check(reg, pool, POOL) == 0);
    return reg;
}

static inline void made_blocks(struct made *m) {
    for (uint64_t at = MD__ARENA_AT; at < m->top; at += *(const uint32_t *)(m->good + at)) {
        if (m->block_count < MADE_BLOCKS) m->blocks[m->block_count++] = (uint32_t)at;
    }
}

/* A copy in a memfd, with an address of its own. */
static inline void made_copy(struct made *m, const md__reg *from) {
    const struct md__header *h = md__header(from);
    char uuid[33], origin[MD__ORIGIN];
    m->size = (size_t)md__peek64(&h->committed);
    m->top = md__peek64(&h->arena_top);
    m->good = malloc(m->size);
    m->fd = memfd_create("fuzz", MFD_CLOEXEC);
    MUST(m->fd < 0 || fchmod(m->fd, 0600) == 0);
    MUST(m->good && m->fd >= 0);
    memcpy(m->good, from->base, m->size);
    MUST(pwrite(m->fd, m->good, m->size, 0) == (ssize_t)m->size);
    m->mine = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    MUST(m->mine != MAP_FAILED);
    for (int i = 0; i < 16; i++) snprintf(uuid + 2 * i, 3, "%02x", h->uuid[i]);
    md__region_print_origin(origin, h);
    snprintf(m->address, sizeof m->address, "fd:%ld:%d:%s:%s", (long)getpid(), m->fd, uuid, origin);
    made_blocks(m);
}

/* Around the mapping nothing may be touched. */
static inline void made_attach_once(struct made *m) {
    enum { AROUND = 1 << 24 };
    md__reg *reg;
    MUST(md_attach(m->address, 0, &m->attached) == 0);
    MUST(md__enter(m->attached, &reg) == 0);
    char *place = mmap(NULL, 2 * AROUND + reg->mapped, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(place != MAP_FAILED);
    void *to =
        mremap(reg->base, reg->mapped, reg->mapped, MREMAP_MAYMOVE | MREMAP_FIXED, place + AROUND);
    MUST(to == place + AROUND);
    reg->base = to;
    MUST(reg->mapped == m->size);
    md__exit(reg);
}

static inline void made_all(void) {
    made_set_names();
    for (int kind = 0; kind <= TEAM; kind++) {
        md__reg *inside;
        md_registry reg = made_region(kind);
        MUST(md__enter(reg, &inside) == 0);
        made_copy(&made_files[kind], inside);
        if (kind != 2) {
            struct made *mapped = &made_mapped[kind == TEAM ? 2 : kind];
            made_copy(mapped, inside);
            made_attach_once(mapped);
        }
        md__exit(inside);
        MUST(md_close(reg) == 0);
    }
}

static inline struct made *made_get(bool attach, uint32_t n, bool team) {
    if (team) return attach ? &made_files[TEAM] : &made_mapped[2];
    return attach ? &made_files[n % KINDS_OF_REGION] : &made_mapped[n % 2];
}

static inline void made_truncate(struct made *m, uint32_t c) {
    static const uint32_t sizes[] = {0, 1, 4095, 4096, MD__ARENA_AT - 1, MD__ARENA_AT};
    size_t size = c & 0x100 ? m->size - c % 8 * 4096 + (c & 0x200 ? 1 : 0) : sizes[c % 6];
    MUST(ftruncate(m->fd, (off_t)size) == 0);
}

/* What calls and patches can have written to: all but the unused slots. */
static inline void made_put_back(const struct made *m, char *to) {
    enum { LOW = 64 * 128 };
    static const size_t slots[] = {MD__PROCESSES_AT, MD__MEMBERS_AT};
    static const size_t last[] = {MD__MEMBERS_AT - 128, MD__ARENA_AT - 128};
    memcpy(to, m->good, MD__PROCESSES_AT);
    for (int i = 0; i < 2; i++) {
        memcpy(to + slots[i], m->good + slots[i], LOW);
        memcpy(to + last[i], m->good + last[i], 128);
    }
    memcpy(to + MD__ARENA_AT, m->good + MD__ARENA_AT, m->size - MD__ARENA_AT);
    static uint32_t often;
    if (often++ % 4096 == 0) MUST(memcmp(to, m->good, m->size) == 0);
}

static inline void made_restore_file(const struct made *m) {
    struct stat st;
    MUST(fstat(m->fd, &st) == 0);
    bool cut = (size_t)st.st_size < m->size;
    if ((size_t)st.st_size != m->size) MUST(ftruncate(m->fd, (off_t)m->size) == 0);
    if (cut)
        memcpy(m->mine, m->good, m->size);
    else
        made_put_back(m, m->mine);
}

#endif
