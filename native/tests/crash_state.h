/* crash_state.h - the state of a registry at one moment, to compare with the state after a death:
 * the facts, and the words by which waiters and readers must have been told of changes. */
#ifndef MD_TESTS_CRASH_STATE_H
#define MD_TESTS_CRASH_STATE_H

#include "stepper.h"

enum { MAX_NODES = 256, MAX_LIST = 1 << 18 };

struct state {
    uint64_t facts; /* hash of the list of all facts */
    uint64_t next_seq;
    uint32_t nodes;
    struct {
        uint32_t ref, hash;
        uint64_t version, chain; /* hash of its facts */
    } node[MAX_NODES];
    uint32_t event[MD__EVENTS], changes;
};

static char listed[MAX_LIST];
static size_t listed_size;

static uint64_t list_all_facts(md_registry reg) {
    uint64_t version, node;
    OK(md_list(reg, NULL, 0, listed, sizeof listed, &listed_size, &version, &node));
    return hash_bytes(7, listed, listed_size);
}

/* Each listed fact is also found by its name: the list does not use the index. */
static void check_all_found(md_registry reg) {
    char buf[sizeof(md_record) + MD_MAX_BODY + MD_MAX_NAME + 64];
    md_record r;
    for (size_t at = 0; at < listed_size; at += r.size) {
        memcpy(&r, listed + at, sizeof r);
        if (!CHECK(r.size)) return;
        OK(md_find(reg, r.kind, r.key, listed + at + sizeof r, r.name_len, buf, sizeof buf));
    }
}

/* No listed fact has this seq or a later one. */
static void check_newest(const md_record *newest) {
    md_record r;
    for (size_t at = 0; at < listed_size; at += r.size) {
        memcpy(&r, listed + at, sizeof r);
        if (!CHECK(r.seq < newest->seq) || !CHECK(r.size)) return;
    }
}

static uint64_t hash_chain(const md__reg *reg, const struct md__node *node) {
    uint64_t h = 5, seq = UINT64_MAX;
    for (uint32_t ref = md__peek32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!CHECK(f)) break;
        h = hash_bytes(h, &seq, sizeof seq);
        ref = md__peek32(&f->next);
    }
    return h;
}

static void take_state(md_registry handle, struct state *s) {
    md__reg *reg;
    s->facts = list_all_facts(handle);
    OK(md__enter(handle, &reg));
    const struct md__header *h = md__header(reg);
    s->next_seq = md__read64(&h->next_seq);
    s->changes = md__read32(&h->changes);
    for (uint32_t i = 0; i < MD__EVENTS; i++) s->event[i] = md__read32(&md__event(reg, i)->word);
    s->nodes = 0;
    for (uint64_t at = MD__ARENA_AT, top = md__read64(&h->arena_top); at < top;) {
        struct md__node *n = (struct md__node *)(reg->base + at);
        if (!CHECK(md__is_step(n->block.size, top - at))) break;
        at += n->block.size;
        uint32_t tag = md__peek32(&n->block.tag);
        if (tag != MD__TAG_NODE && tag != MD__TAG_IDLE) continue;
        if (!CHECK(s->nodes < MAX_NODES)) break;
        uint32_t i = s->nodes++;
        s->node[i].ref = md__ref(reg, n);
        s->node[i].hash = n->hash;
        s->node[i].version = md__read64(&n->version);
        s->node[i].chain = hash_chain(reg, n);
    }
    md__exit(reg);
}

/* If the facts have changed, others must have been told: by the version words, for readers that
 * have built tables; by the sequence and the event words, for waiters. */
static void check_told(const struct state *old, const struct state *now, int raises_all) {
    uint64_t nothing = 5; /* hash_chain of an empty chain */
    int changed = now->facts != old->facts;
    CHECK(now->next_seq >= old->next_seq + (uint64_t)changed);
    CHECK(!changed || now->changes != old->changes);
    /* Named or idle, in the order of the arena: none ever goes, and new ones come in between. */
    CHECK(now->nodes >= old->nodes);
    for (uint32_t i = 0, k = 0; i < now->nodes; i++) {
        uint64_t version = 0, chain = nothing;
        if (k < old->nodes && old->node[k].ref == now->node[i].ref) {
            version = old->node[k].version;
            chain = old->node[k++].chain;
        }
        int concerned = chain != now->node[i].chain;
        uint32_t e = now->node[i].hash % MD__EVENTS;
        CHECK(now->node[i].version >= version + (concerned || (changed && raises_all)));
        CHECK(!concerned || now->event[e] != old->event[e]);
        if (i + 1 == now->nodes) EQ(k, old->nodes);
    }
}

#endif
