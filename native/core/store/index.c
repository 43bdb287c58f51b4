/* index.c - finds the node of a name, gives names nodes and takes them back. The index is one array
 * of words with linear probing, at most half full.
 *
 * Note [Names are given back]
 * A name lives while it has facts. When its last one is struck, its node becomes idle, and another
 * name can have the node. Readers take no lock meanwhile, and holders of md_word read the version
 * word of a node at any time. So
 *
 * - a block that was a node once stays one, named or idle. Only blocks that were never published as
 *   nodes go back to the arena. Idle nodes are kept by their size classes, like free blocks.
 * - its version only rises. It is not reset for the next name. A name that comes back to its node
 *   finds a higher version than it left, and whoever remembers node and version looks again.
 *
 * The holder of the lock gives a name back by 1. the tag (idle); 2. a raise of the version; 3. taking
 * the entry out of the index. It reuses the node by 4. the new hash and name; 5. the tag (named); 6.
 * an entry in the index; 7. the first fact, and a raise.
 *
 * A reader 1. reads the version; 2. reads the tag; 3. compares the name; 4. reads the chain; 5. reads
 * the version again, and starts over with the index if it has changed. If it read a byte of the next
 * name, that was written after the raise, so it finds the version changed. If the version that it
 * read first is that of the raise already, it finds the tag idle, or a tag that was published after
 * all of the next name: then the name that it compares is whole. So it may believe a node that it
 * finds, whatever has become of the index meanwhile.
 *
 * To miss a name is another matter. Entries move. A larger array takes the place of the old one: the
 * writer fills it completely, publishes it by one store, and the memory of the old one may then
 * serve something else. And an entry is taken out by moving later ones of its run back over it, so no
 * graves make probes longer for ever. Either way the writer 1. makes the entries readable where they
 * will be; 2. raises index_moves; 3. writes over where they were. So each entry is there at every
 * moment, once or, between 1 and 3, twice. A reader can still miss it, if it passed the new place
 * before 1 and came to the old one after 3. Then it sees the raise. So it believes that a name is not
 * there only if index_moves is what it was before it read the index.
 *
 * A waiter has no node. It knows its name, sleeps on an event word that is chosen by the name's hash,
 * and looks the name up by each look (await.c). A registration enters the name into the index before
 * its commit, and so before its ring: a look that comes after the ring finds it, in whichever node.
 *
 * A holder that is killed in between leaves one of these: a named node without facts, an idle node
 * with an entry, or one entry that is there twice. The recovery raises index_moves in its stead (it
 * may have copied an entry and told nobody), makes the first idle, and takes the entry of the second,
 * or the later of the two entries, out by one walk over the array. All that its readers may see
 * meanwhile is what they may see of a living holder.
 */
#include "store.h"

enum { PLACE_BITS = 8 };

static uint64_t index_word(uint32_t ref, uint32_t log2) {
    return (uint64_t)ref << PLACE_BITS | log2;
}

/* The array that an index word leads to, or NULL when the word cannot be true. */
static struct md__index *index_at(const md__reg *reg, uint64_t word, uint64_t *mask) {
    uint32_t log2 = word & ((1u << PLACE_BITS) - 1);
    if (log2 > 28) return NULL;
    *mask = (1ull << log2) - 1;
    return md__at(reg, (uint32_t)(word >> PLACE_BITS),
                  sizeof(struct md__index) + ((*mask + 1) << 3));
}

static bool has_name(const md__reg *reg, const struct md__node *node, const char *name,
                     size_t len) {
    if (md__peek32(&node->name_len) != len || !md__at(reg, md__ref(reg, node), sizeof *node + len))
        return false;
    const md__u64 *words = node->name;
    uint64_t there;
    for (; len >= 8; len -= 8, name += 8) {
        memcpy(&there, name, 8);
        if (md__peek64(words++) != there) return false;
    }
    if (len == 0) return true;
    uint64_t behind = ~0ull << 8 * len; /* bytes behind the name: they do not count */
    return (le64toh(md__peek64(words)) & ~behind) == md__few_bytes(name, len);
}

/* Takes no lock. 0, the node, and the version under which it has this name: the caller compares it
 * after it has read what it needs of the node. MD_ENOENT; or MD__AGAIN when writers have moved
 * entries meanwhile. */
int md__node_seek(const md__reg *reg, const char *name, size_t len, uint32_t hash,
                  struct md__node **out, uint64_t *version) {
    const struct md__header *h = md__header(reg);
    uint64_t moves = md__read64(&h->index_moves), mask;
    struct md__index *index = index_at(reg, md__read64(&h->index), &mask);
    if (!index) return MD_EDAMAGED;
    for (uint64_t i = 0; i <= mask; i++) {
        uint64_t slot = md__read64(&index->slots[(hash + i) & mask]);
        if (!slot) break;
        if (slot >> 32 != hash) continue;
        struct md__node *node = md__at(reg, (uint32_t)slot, sizeof *node);
        if (!node) continue;
        *version = md__read64(&node->version);
        if (md__read32(&node->block.tag) == MD__TAG_NODE && has_name(reg, node, name, len)) {
            *out = node;
            return 0;
        }
    }
    return md__version_after(&h->index_moves) == moves ? MD_ENOENT : MD__AGAIN;
}

/* The same under the lock, where nobody moves anything. */
int md__node_find(const md__reg *reg, const char *name, size_t len, uint32_t hash,
                  struct md__node **out) {
    uint64_t version;
    int rc = md__node_seek(reg, name, len, hash, out, &version);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
}

/* The slot for a new name of this hash. By the count of names there is room. But the count is a
 * word of the region too, so it may be wrong: NULL when the array is full after all. */
static md__u64 *free_slot(struct md__index *index, uint64_t mask, uint32_t hash) {
    for (uint64_t i = 0; i <= mask; i++) {
        md__u64 *slot = &index->slots[(hash + i) & mask];
        if (!md__peek64(slot)) return slot;
    }
    return NULL;
}

static uint64_t entry_of(uint32_t hash, uint32_t ref) {
    return (uint64_t)hash << 32 | ref;
}

/* Under the lock, like all functions below. */
int md__index_create(md__reg *reg, uint32_t log2) {
    struct md__header *h = md__header(reg);
    uint32_t ref;
    uint64_t size = sizeof(struct md__index) + (8ull << log2), mask = (1ull << log2) - 1;
    uint64_t old_word = md__peek64(&h->index), old_mask;
    struct md__index *old = old_word ? index_at(reg, old_word, &old_mask) : NULL;
    if (old_word && !old) return MD_EDAMAGED;
    int rc = md__alloc(reg, size, &ref);
    if (rc) return rc;
    struct md__index *index = md__fresh(reg, ref);
    for (uint64_t i = 0; i <= mask; i++) md__poke64(&index->slots[i], 0);
    if (old) {
        for (uint64_t i = MD_FAULT(INDEX_GROWS_WITH_LOSS) ? old_mask / 2 : 0; i <= old_mask; i++) {
            uint64_t slot = md__peek64(&old->slots[i]);
            if (!slot) continue;
            md__u64 *to = free_slot(index, mask, (uint32_t)(slot >> 32));
            if (to) md__poke64(to, slot);
        }
    }
    md__poke32(&index->block.tag, MD__TAG_INDEX);
    md__publish64(&h->index, index_word(ref, log2));
    if (old) {
        md__raise(&h->index_moves);
        md__free(reg, &old->block);
    }
    return 0;
}

/* Makes room in the index for one more name. */
static int reserve(md__reg *reg) {
    struct md__header *h = md__header(reg);
    uint64_t word = md__peek64(&h->index), mask;
    if (!index_at(reg, word, &mask)) return MD_EDAMAGED;
    if (2 * (md__peek64(&h->names) + 1) <= mask + 1) return 0;
    return md__index_create(reg, (uint32_t)(word & ((1u << PLACE_BITS) - 1)) + 1);
}

/* Takes the entry out of a slot. A later entry of its run moves into the gap, unless its home lies
 * behind the gap; then the next into the gap that this one leaves, and so on. */
static void take_out(struct md__header *h, struct md__index *index, uint64_t mask, uint64_t gap) {
    for (uint64_t i = (gap + 1) & mask, n = 0; n < mask; i = (i + 1) & mask, n++) {
        uint64_t slot = md__peek64(&index->slots[i]);
        if (!slot) break;
        if (((i - (slot >> 32)) & mask) < ((i - gap) & mask)) continue;
        md__publish64(&index->slots[gap], slot);
        if (!MD_FAULT(MOVES_NOT_TOLD)) md__raise(&h->index_moves);
        gap = i;
    }
    md__poke64(&index->slots[gap], 0);
}

/* Whether the entry in a slot is that of a node without a name, or the later of two of one node. */
static bool is_left_over(const md__reg *reg, const struct md__index *index, uint64_t mask,
                         uint64_t at) {
    uint64_t slot = md__peek64(&index->slots[at]);
    const struct md__node *node = md__at(reg, (uint32_t)slot, sizeof *node);
    if (!node || md__peek32(&node->block.tag) != MD__TAG_NODE) return true;
    for (uint64_t i = slot >> 32 & mask; i != at; i = (i + 1) & mask)
        if (md__peek64(&index->slots[i]) == slot) return true;
    return false;
}

/* For the recovery: takes out the entry that a dead holder has left. There is at most one. */
int md__index_mend(md__reg *reg) {
    struct md__header *h = md__header(reg);
    uint64_t mask;
    struct md__index *index = index_at(reg, md__peek64(&h->index), &mask);
    bool found = false;
    if (!index) return MD_EDAMAGED;
    if (MD_FAULT(ENTRIES_LEFT_OVER)) return 0;
    for (uint64_t i = 0; i <= mask; i++) {
        if (!md__peek64(&index->slots[i]) || !is_left_over(reg, index, mask, i)) continue;
        if (found) return MD_EDAMAGED;
        found = true;
        take_out(h, index, mask, i--); /* another entry may be there now */
    }
    return 0;
}

/* Makes a node idle, before its entry is taken out of the index. */
void md__node_make_idle(struct md__node *node) {
    md__publish32(&node->block.tag, MD__TAG_IDLE);
    if (!MD_FAULT(IDLE_NOT_RAISED)) md__raise(&node->version);
}

/* Keeps an idle node for another name. One whose size is not that of a class is never used again. */
void md__node_put_back(struct md__header *h, md__reg *reg, struct md__node *node) {
    uint32_t size_class, size = md__once32(&node->block.size);
    md__poke64(&h->idle, md__peek64(&h->idle) + 1);
    if (md__block_size(size, &size_class) != size || size_class >= MD__CLASSES) return;
    node->next_idle = h->idle_lists[size_class];
    h->idle_lists[size_class] = md__ref(reg, node);
}

/* Gives the name of a node back, whose last fact was struck. */
void md__node_give_back(md__reg *reg, struct md__node *node) {
    struct md__header *h = md__header(reg);
    uint64_t mask, entry = entry_of(md__peek32(&node->hash), md__ref(reg, node));
    struct md__index *index = index_at(reg, md__peek64(&h->index), &mask);
    md__node_make_idle(node);
    for (uint64_t n = 0; index && n <= mask; n++) {
        uint64_t i = ((entry >> 32) + n) & mask, slot = md__peek64(&index->slots[i]);
        if (slot == entry) take_out(h, index, mask, i);
        if (slot == entry || !slot) break;
    }
    md__poke64(&h->names, md__peek64(&h->names) - 1);
    md__node_put_back(h, reg, node);
}

/* A node for a name: an idle one, or a fresh block. */
static int find_place(md__reg *reg, size_t len, struct md__node **out) {
    struct md__header *h = md__header(reg);
    uint32_t size_class, ref;
    uint64_t size = md__block_size(sizeof **out + ((len + 7) & ~7ull), &size_class);
    uint32_t first = h->idle_lists[size_class];
    struct md__node *node = first ? md__at(reg, first, size) : NULL;
    if (first) {
        if (!node || node->block.size != size || md__peek32(&node->block.tag) != MD__TAG_IDLE)
            return MD_EDAMAGED;
        h->idle_lists[size_class] = node->next_idle;
        md__poke64(&h->idle, md__peek64(&h->idle) - 1);
        if (MD_FAULT(VERSION_BEGINS_ANEW)) md__poke64(&node->version, 1);
    } else {
        int rc = md__alloc(reg, size, &ref);
        if (rc) return rc;
        node = md__fresh(reg, ref);
        md__poke64(&node->version, 1);
    }
    *out = node;
    return 0;
}

/* The node of a name. When the name is new, nobody finds the node by it yet, and the index has room
 * for it: md__node_publish makes it known, md__node_refuse takes it back. If the caller dies in
 * between, the node is still an idle one, or a free block. So waits, look-ups and refused
 * registrations leave no names. */
int md__node_prepare(md__reg *reg, const char *name, size_t len, uint32_t hash,
                     struct md__node **out, bool *is_new) {
    int rc = md__node_find(reg, name, len, hash, out);
    *is_new = rc == MD_ENOENT;
    if (!*is_new) return rc;
    rc = reserve(reg);
    if (rc == 0) rc = find_place(reg, len, out);
    if (rc) return rc;
    struct md__node *node = *out;
    md__poke32(&node->head, 0);
    md__poke32(&node->hash, hash);
    md__poke32(&node->name_len, (uint32_t)len);
    node->next_idle = 0;
    md__store_words(node->name, name, len);
    return 0;
}

int md__node_publish(md__reg *reg, struct md__node *node) {
    struct md__header *h = md__header(reg);
    uint64_t mask;
    uint32_t hash = md__peek32(&node->hash);
    struct md__index *index = index_at(reg, md__peek64(&h->index), &mask);
    md__u64 *slot = index ? free_slot(index, mask, hash) : NULL;
    if (!slot) return MD_EDAMAGED;
    md__publish32(&node->block.tag, MD__TAG_NODE); /* from now on md_list finds it */
    if (!MD_FAULT(NAME_NOT_INDEXED)) md__publish64(slot, entry_of(hash, md__ref(reg, node)));
    md__poke64(&h->names, md__peek64(&h->names) + 1);
    return 0;
}

/* The registration for which a node was prepared is refused. */
void md__node_refuse(md__reg *reg, struct md__node *node) {
    if (md__peek32(&node->block.tag) == MD__TAG_IDLE)
        md__node_put_back(md__header(reg), reg, node);
    else
        md__free(reg, &node->block);
}
