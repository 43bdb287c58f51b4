/* Holding a region: its words stay where they are, show every change, and outlive the opening; and
 * nothing but memory is kept. */
#include "test.h"

enum { SIZE = MD__MIN_CAPACITY };

static uint64_t look(const uint64_t *word) {
    return md__read64((const md__u64 *)word);
}

static uint64_t node_of(md_registry reg, const char *name, uint64_t *version) {
    char buf[65536];
    size_t size;
    uint64_t node = 0;
    OK(md_list(reg, name, strlen(name), buf, sizeof buf, &size, version, &node));
    return node;
}

/* Whether there is a mapping at this address. */
static int is_mapped(const void *p) {
    unsigned char there;
    return mincore((void *)((uintptr_t)p & ~(uintptr_t)4095), 1, &there) == 0;
}

TEST(a_word_shows_every_change_of_its_name_and_no_other) {
    struct main_member m = open_main(NULL, SIZE);
    const uint64_t *word;
    uint64_t version, now;
    md_held *held;
    md_record r;
    OK(md_hold(m.reg, &held));
    OK(put(m, MD_UNIQUE, "a", KEY, "1", &r));
    uint64_t node = node_of(m.reg, "a", &version);
    OK(md_word(m.reg, node, &word));
    EQ(look(word), version);
    OK(put(m, MD_UNIQUE, "b", KEY, "2", NULL));
    EQ(look(word), version);
    OK(strike_out(m, &r));
    CHECK(look(word) != version);
    OK(md_version(m.reg, node, &now));
    EQ(look(word), now);
    md_let_go(held);
    close_main(m);
}

TEST(node_0_is_the_sequence_of_all_changes) {
    struct main_member m = open_main(NULL, SIZE);
    md_wait_stats stats = {0, 0, 0, 0, 0};
    const uint64_t *word;
    uint64_t now;
    OK(md_word(m.reg, 0, &word));
    for (int i = 0; i < 3; i++) {
        OK(md_await_change(m.reg, m.member, 0, 0, 0, &now, &stats));
        EQ(look(word), now);
        OK(put(m, MD_STACK, "a", KEY, "1", NULL));
        EQ(look(word), now + 1);
    }
    close_main(m);
}

TEST(what_is_no_node_has_no_word) {
    struct main_member m = open_main(NULL, SIZE);
    const uint64_t *word = NULL;
    md_record r;
    OK(put(m, MD_STACK, "a", KEY, "1", &r));
    EQ(md_word(m.reg, r.ref, &word), MD_EINVAL);
    EQ(md_word(m.reg, 1, &word), MD_EINVAL);
    EQ(md_word(m.reg, UINT64_MAX, &word), MD_EINVAL);
    EQ((uintptr_t)word, 0);
    md_registry closed = m.reg;
    close_main(m);
    EQ(md_word(closed, 0, &word), MD_ECLOSED);
}

TEST(memory_that_is_held_outlives_the_opening_and_ends_with_the_last_hold) {
    struct main_member m = open_main(NULL, SIZE);
    const uint64_t *word;
    md_held *first, *second, *late;
    uint64_t version;
    OK(put(m, MD_STACK, "a", KEY, "1", NULL));
    OK(md_word(m.reg, node_of(m.reg, "a", &version), &word));
    OK(md_hold(m.reg, &first));
    OK(md_hold(m.reg, &second));
    md_registry closed = m.reg;
    close_main(m);
    EQ(look(word), version);
    EQ(md_hold(closed, &late), MD_ECLOSED);
    EQ((uintptr_t)late, 0);
    md_let_go(first);
    EQ(look(word), version);
    CHECK(is_mapped(word));
    md_let_go(second);
    CHECK(!is_mapped(word));
    md_let_go(NULL);
}

TEST(a_held_region_lets_its_place_and_its_name_go) {
    char name[64];
    md_held *held[70];
    snprintf(name, sizeof name, "hold-%d", getpid());
    for (int i = 0; i < 70; i++) { /* more than can be open at once */
        struct main_member m = open_main(name, SIZE);
        OK(md_hold(m.reg, &held[i]));
        close_main(m);
    }
    for (int i = 0; i < 70; i++) md_let_go(held[i]);
}

struct holder {
    md_registry reg;
    md__u32 *go;
    pthread_t thread;
    int failed;
};

static void *hold_when_told(void *arg) {
    struct holder *h = arg;
    md_held *held;
    while (!md__read32(h->go)) sched_yield();
    for (int i = 0; i < 100; i++) {
        h->failed += md_hold(h->reg, &held) != 0;
        md_let_go(held);
    }
    return NULL;
}

TEST(threads_that_hold_for_the_first_time_at_once_share_one_count) {
    for (int round = 0; round < 50; round++) {
        struct main_member m = open_main(NULL, SIZE);
        const uint64_t *word;
        struct holder holders[4];
        md__u32 go = 0;
        OK(md_word(m.reg, 0, &word));
        for (int i = 0; i < 4; i++) {
            holders[i] = (struct holder){m.reg, &go, 0, 0};
            pthread_create(&holders[i].thread, NULL, hold_when_told, &holders[i]);
        }
        md__publish32(&go, 1);
        for (int i = 0; i < 4; i++) {
            pthread_join(holders[i].thread, NULL);
            EQ(holders[i].failed, 0);
        }
        close_main(m);
        CHECK(!is_mapped(word));
    }
}

int main(void) {
    RUN(a_word_shows_every_change_of_its_name_and_no_other);
    RUN(node_0_is_the_sequence_of_all_changes);
    RUN(what_is_no_node_has_no_word);
    RUN(memory_that_is_held_outlives_the_opening_and_ends_with_the_last_hold);
    RUN(a_held_region_lets_its_place_and_its_name_go);
    RUN(threads_that_hold_for_the_first_time_at_once_share_one_count);
    return test_done();
}
