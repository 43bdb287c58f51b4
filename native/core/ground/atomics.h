/* atomics.h - the one place where memory order is spelled.
 *
 * Processes read the mapped region without a lock. So every word of it that can change after it was
 * published is accessed through these functions only. A function's name says what the order is for,
 * not which C11 constant it uses.
 */
#ifndef MD_GROUND_ATOMICS_H
#define MD_GROUND_ATOMICS_H

#include <endian.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef _Atomic uint32_t md__u32;
typedef _Atomic uint64_t md__u64;

/* For a word whose order does not matter: the caller has the lock, or checks a version word after
 * the read. */
static inline uint32_t md__peek32(const md__u32 *p) {
    return atomic_load_explicit((md__u32 *)p, memory_order_relaxed);
}
static inline uint64_t md__peek64(const md__u64 *p) {
    return atomic_load_explicit((md__u64 *)p, memory_order_relaxed);
}
static inline void md__poke32(md__u32 *p, uint32_t v) {
    atomic_store_explicit(p, v, memory_order_relaxed);
}
static inline void md__poke64(md__u64 *p, uint64_t v) {
    atomic_store_explicit(p, v, memory_order_relaxed);
}

/* Reads a field that is constant once published, exactly once. So the value that the caller checks
 * is the value that it uses, even if a stray write changes the field in between. */
static inline uint32_t md__once32(const uint32_t *p) {
    return *(const volatile uint32_t *)p;
}

/* Publish: a reader that gets the new value by md__read* sees everything written before it. */
static inline void md__publish32(md__u32 *p, uint32_t v) {
    atomic_store_explicit(p, v, memory_order_release);
}
static inline void md__publish64(md__u64 *p, uint64_t v) {
    atomic_store_explicit(p, v, memory_order_release);
}
static inline uint32_t md__read32(const md__u32 *p) {
    return atomic_load_explicit((md__u32 *)p, memory_order_acquire);
}
static inline uint64_t md__read64(const md__u64 *p) {
    return atomic_load_explicit((md__u64 *)p, memory_order_acquire);
}

/* Changes to a word that several threads may change at once. Each orders what comes before it and
 * what comes after it. */
static inline bool md__swap_if32(md__u32 *p, uint32_t *expected, uint32_t v) {
    return atomic_compare_exchange_strong_explicit(p, expected, v, memory_order_acq_rel,
                                                   memory_order_acquire);
}
static inline bool md__swap_if64(md__u64 *p, uint64_t *expected, uint64_t v) {
    return atomic_compare_exchange_strong_explicit(p, expected, v, memory_order_acq_rel,
                                                   memory_order_acquire);
}
static inline uint32_t md__or32(md__u32 *p, uint32_t bits) {
    return atomic_fetch_or_explicit(p, bits, memory_order_acq_rel);
}
static inline void md__add32(md__u32 *p, uint32_t v) {
    atomic_fetch_add_explicit(p, v, memory_order_acq_rel);
}
static inline uint64_t md__add64(md__u64 *p, uint64_t v) {
    return atomic_fetch_add_explicit(p, v, memory_order_acq_rel);
}

/* Call it between publishing a replacement and writing over what it replaced. */
static inline void md__retire(void) {
    atomic_thread_fence(memory_order_release);
}

/* A version word. The holder of the lock raises it after it has published a change, and before
 * anything writes to the memory that the change unlinked. Note [Readers take no lock] in chain.c
 * explains how the two functions pair. */
static inline void md__raise(md__u64 *version) {
    atomic_store_explicit(version, atomic_load_explicit(version, memory_order_relaxed) + 1,
                          memory_order_release);
    atomic_thread_fence(memory_order_release);
}
static inline uint64_t md__version_after(const md__u64 *version) {
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit((md__u64 *)version, memory_order_relaxed);
}

/* One to seven bytes as a number, the first byte lowest. The loads overlap where that saves a step.
 * No byte is stored and loaded again, for which the processor would have to wait. */
static inline uint64_t md__few_bytes(const char *p, size_t bytes) {
    if (bytes >= 4) {
        uint32_t first, last;
        memcpy(&first, p, 4);
        memcpy(&last, p + bytes - 4, 4);
        return le32toh(first) | (uint64_t)le32toh(last) << 8 * (bytes - 4);
    }
    uint64_t first = (uint8_t)p[0], middle = (uint8_t)p[bytes / 2], last = (uint8_t)p[bytes - 1];
    return first | middle << 8 * (bytes / 2) | last << 8 * (bytes - 1);
}
static inline void md__put_few_bytes(char *to, uint64_t w, size_t bytes) {
    for (size_t i = 0; i < bytes; i++, w >>= 8) to[i] = (char)w;
}

/* Copy the bytes of a record, word by word. A writer may rewrite the record while a reader copies
 * it; the reader judges its copy by the version afterwards. Shared words are aligned to 8 bytes,
 * and there is room for whole words. */
static inline void md__store_words(md__u64 *to, const void *from, size_t bytes) {
    const char *src = from;
    for (; bytes >= 8; bytes -= 8, src += 8, to++) {
        uint64_t w;
        memcpy(&w, src, 8);
        md__poke64(to, w);
    }
    if (bytes) md__poke64(to, htole64(md__few_bytes(src, bytes)));
}
static inline void md__load_words(void *to, const md__u64 *from, size_t bytes) {
    char *dst = to;
    for (; bytes >= 8; bytes -= 8, dst += 8, from++) {
        uint64_t w = md__peek64(from);
        memcpy(dst, &w, 8);
    }
    if (bytes) md__put_few_bytes(dst, le64toh(md__peek64(from)), bytes);
}

#endif
