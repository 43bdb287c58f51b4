/* hash.c - the hash of a name. It chooses the name's slot in the index and its event word. */
#include "ground.h"

/* Takes eight bytes at a time: every look-up hashes a name. The hash is part of the format. */
uint32_t md__hash(const char *name, size_t len) {
    uint64_t h = len, w;
    for (; len >= 8; len -= 8, name += 8) {
        memcpy(&w, name, 8);
        h = (h ^ le64toh(w)) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 32;
    }
    h = (h ^ (len ? md__few_bytes(name, len) : 0)) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 32; /* the upper bits depend on every byte, the lower bits do not yet */
    h *= 0xd6e8feb86659fd93ull;
    return (uint32_t)(h >> 32);
}
