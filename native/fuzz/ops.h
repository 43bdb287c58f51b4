/* ops.h - what the fuzz targets share: an input is a small program, one byte of flags and then ops
 * of eight bytes each. So a mutation that moves, repeats or changes whole ops keeps the rest of the
 * program what it was, and every input is a valid one.
 */
#ifndef MD_FUZZ_OPS_H
#define MD_FUZZ_OPS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/contract/contract.h"

enum { OP_SIZE = 8, MAX_OPS = 48 };

struct op {
    uint8_t what;
    uint8_t a;
    uint16_t b;
    uint32_t c;
};

static_assert(sizeof(struct op) == OP_SIZE, "ops are read as they lie in the input");

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise that does not hold ends the process: libFuzzer keeps the input, the replay names it. */
#define MUST(truth) must((truth) ? 1 : 0, #truth, __FILE__, __LINE__)
static inline void must(int truth, const char *words, const char *file, int line) {
    if (truth) return;
    fprintf(stderr, "%s:%d: %s\n", file, line, words);
    abort();
}

/* A caller's buffer of exactly `cap` bytes, with the sanitizer's forbidden zone right behind it. */
#define POOL (1 << 18)
static char pool[POOL];
static inline char *room(size_t cap) {
    return cap ? pool + POOL - cap : NULL;
}

/* Sizes at which something changes, and any other. */
static inline size_t draw_cap(uint32_t c) {
    static const size_t edges[] = {0, 1, 7, 8, 15, 16, 55, 56, 63, 64, 72, 88, 128, 4096};
    return c & 0x100   ? POOL
           : c & 0x200 ? (c >> 16) % POOL
                       : edges[c % (sizeof edges / sizeof *edges)];
}

/* The last codes a call may return by its documentation; MD_ESYS stands for all system calls. */
static inline void must_be_one_of(int rc, const int *codes, size_t n, const char *call) {
    if (rc == 0) return;
    for (size_t i = 0; i < n; i++) {
        if (rc == codes[i] || (codes[i] == MD_ESYS && rc < MD_ESYS)) return;
    }
    fprintf(stderr, "%s returned %d (%s), of which its documentation knows nothing\n", call, rc,
            md_status_text(rc));
    abort();
}
#define MAY(rc, call, ...)                                                                         \
    must_be_one_of(rc, (const int[]){__VA_ARGS__},                                                 \
                   sizeof((const int[]){__VA_ARGS__}) / sizeof(int), call)

/* Packed records are what the contract says, whatever the region holds. */
static inline void must_be_record(const char *buf, size_t left, md_record *r) {
    MUST(left >= sizeof *r);
    memcpy(r, buf, sizeof *r);
    MUST(r->name_len <= MD_MAX_NAME && r->body_len <= MD_MAX_BODY && r->where_len <= MD_MAX_WHERE);
    uint64_t text = (uint64_t)r->name_len + r->body_len + r->where_len;
    MUST(r->size == ((sizeof *r + text + 7) & ~7ull) && r->size <= left);
    for (uint64_t i = sizeof *r + text; i < r->size; i++) MUST(buf[i] == 0);
}
static inline size_t must_be_records(const char *buf, size_t size) {
    md_record r;
    size_t n = 0;
    for (size_t at = 0; at < size; at += r.size, n++) must_be_record(buf + at, size - at, &r);
    return n;
}

#endif
