/* region_patch.h - the patches of fuzz_region.c: what a damaged or hostile region may hold. */
#ifndef MD_FUZZ_REGION_PATCH_H
#define MD_FUZZ_REGION_PATCH_H

#include "region_made.h"

/* What an input works on. */
static struct {
    struct made *made;
    char *base; /* where to patch */
    md_registry reg;
    md__reg *inside; /* NULL before the attach */
    uint64_t member; /* NOBODY before the join */
    uint32_t length; /* how the file is cut, 0: not at all */
    md_record known[8];
} now;

#define NOBODY UINT64_MAX

/* The value to write over `old`. */
static uint64_t value(uint8_t mode, uint32_t c, uint64_t old) {
    const struct made *m = now.made;
    switch (mode % 12) {
    case 0:
        return c;
    case 1: /* the ref of a block */
        return m->blocks[c % m->block_count] / 8;
    case 2: /* where a block begins, or near it */
        return m->blocks[c % m->block_count] + (c >> 24);
    case 3: /* the ends of things */
        return (c & 1 ? m->size : c & 2 ? MD__MAX_CAPACITY : m->top) + (c >> 8) % 33 - 16;
    case 4:
        return old + (uint64_t)(int8_t)c;
    case 5:
        return UINT64_MAX - c % 80;
    case 6:
        return c % 300;
    case 7:
        return old ^ 1ull << c % 64;
    case 8:
        return (uint64_t)c << 32 | (old & UINT32_MAX);
    case 9: /* a word of the index, or of an index slot */
        return m->blocks[c % m->block_count] / 8 << 8 | (c >> 16) % 32;
    case 10:
        return old << 32 | m->blocks[c % m->block_count] / 8;
    default: /* what stands elsewhere */
        memcpy(&old, now.base + MD__ARENA_AT + c % (m->top - MD__ARENA_AT - 8), 8);
        return old;
    }
}

static void patch(const struct op *op, size_t at) {
    uint64_t old;
    size_t width = op->a & 0x80 ? 8 : 4;
    memcpy(&old, now.base + at, 8);
    if (width == 4) old &= UINT32_MAX;
    uint64_t v = value(op->a & 0x7f, op->c, old);
    memcpy(now.base + at, &v, width);
}

/* Locks in use are left alone: ours by then, and the C library's business. */
static void patch_header(const struct op *op) {
    size_t lock = offsetof(struct md__header, mutex), after = lock + sizeof(pthread_mutex_t);
    size_t at = op->b * 4u % sizeof(struct md__header);
    if (at + 8 > lock && at < after) return;
    patch(op, at);
}

static size_t slot_of(uint16_t b, uint32_t last) {
    return b % 17 == 16 ? last : b % 17;
}

static void patch_process(const struct op *op) {
    size_t slot = slot_of(op->b, MD_MAX_PROCESSES - 1), word = op->b / 17 % 20;
    struct md__process *p = (struct md__process *)(now.base + MD__PROCESSES_AT) + slot;
    bool ours = now.inside && now.inside->process == slot;
    if (word >= 16) {
        patch(op, (size_t)((char *)p - now.base) + 64 + (word - 16) * 4);
    } else if (!ours) { /* its lease: held by somebody, by nobody, or by one who died */
        static const uint32_t words[] = {0, 1, FUTEX_OWNER_DIED, FUTEX_OWNER_DIED | 77,
                                         FUTEX_WAITERS | 77};
        md__poke32(md__lease_word(p), words[op->c % 5]);
    }
}

static void patch_member(const struct op *op) {
    size_t slot = slot_of(op->b, MD_MAX_MEMBERS - 1);
    patch(op, MD__MEMBERS_AT + slot * sizeof(struct md__member) + op->b / 17 % 30 * 4);
}

static void patch_block(const struct op *op) {
    size_t at = now.made->blocks[op->b % now.made->block_count];
    uint32_t size = *(const uint32_t *)(now.made->good + at);
    patch(op, at + op->b / now.made->block_count % (size / 4 - 1) * 4);
}

static size_t arena_place(uint32_t n) {
    return MD__ARENA_AT + n * 8ull % (now.made->top - MD__ARENA_AT - 8);
}

static void copy_within(const struct op *op) {
    size_t from = arena_place(op->b), to = arena_place(op->c & 0xffff), n = (op->c >> 16) % 512;
    size_t last = from > to ? from : to;
    if (n > now.made->top - last) n = now.made->top - last;
    memmove(now.base + to, now.base + from, n);
}

/* Noise without zeroes: what is full of it has no free place left. */
static void fill(const struct op *op) {
    size_t at = arena_place(op->b), n = op->c % 4096;
    if (n > now.made->top - at) n = now.made->top - at;
    memset(now.base + at, (int)(op->a | 1), n);
}

/* The lock's last holder died, or died before it could say that all is well. */
static void break_lock(uint8_t how) {
    struct md__header *h = (struct md__header *)now.base;
    enum { OWNER_AT = 8, NOT_RECOVERABLE = INT32_MAX - 1 };
    int32_t owner = NOT_RECOVERABLE;
    if (how % 8 == 7)
        memcpy((char *)&h->mutex + OWNER_AT, &owner, sizeof owner);
    else
        md__poke32(md__lease_word((struct md__process *)(void *)&h->mutex),
                   FUTEX_OWNER_DIED | (how & 1 ? 77 : 0) | (how & 2 ? FUTEX_WAITERS : 0));
}

static bool is_patch(const struct op *op) {
    return op->what & 0x80;
}

static void apply(const struct op *op) {
    switch (op->what % 16) {
    case 0:
    case 1:
        patch_header(op);
        break;
    case 2:
        patch_process(op);
        break;
    case 3:
        patch_member(op);
        break;
    case 4:
        patch(op, MD__EVENTS_AT + op->b % 1000 * 4);
        break;
    case 5:
        patch(op, arena_place(op->b));
        break;
    case 6:
        copy_within(op);
        break;
    case 7:
        fill(op);
        break;
    case 8:
        break_lock(op->a);
        break;
    case 9:                 /* the file is cut, or lengthened */
        now.length = op->c; /* last of all */
        break;
    default:
        patch_block(op);
    }
}

#endif
