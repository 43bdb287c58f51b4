/* Memory and handles: a full registry stays as it was, the memory of struck facts is used again,
 * the index grows while it is read, and calls with a closed handle get an answer. */
#include "test.h"

enum { LEAST = MD__MIN_CAPACITY };

/* Every fact of the registry, packed. */
static size_t all_facts(md_registry reg, char **buf) {
    size_t size = 0;
    uint64_t version, node;
    md_list(reg, NULL, 0, NULL, 0, &size, &version, &node);
    *buf = malloc(size + 8);
    OK(md_list(reg, NULL, 0, *buf, size, &size, &version, &node));
    return size;
}

TEST(a_full_registry_stays_as_it_was_and_what_is_struck_serves_again) {
    struct main_member m = open_main(NULL, LEAST);
    static char body[400];
    static md_record r[400];
    char name[32], *before, *after;
    md_stats s1, s2;
    int n = 0, rc = 0;
    memset(body, 'b', sizeof body - 1);
    for (; n < 400; n++) {
        snprintf(name, sizeof name, "n%d", n % 40);
        rc = put(m, MD_STACK, name, KEY, body, &r[n]);
        if (rc) break;
    }
    EQ(rc, MD_EFULL);
    CHECK(n > 60);
    size_t size = all_facts(m.reg, &before);
    OK(md_stat(m.reg, &s1));
    EQ(s1.facts, n);
    for (int i = 0; i < 100; i++) EQ(put(m, MD_STACK, "n0", KEY, body, NULL), MD_EFULL);
    OK(md_stat(m.reg, &s2));
    EQ(memcmp(&s1, &s2, sizeof s1), 0);
    EQ(all_facts(m.reg, &after), size);
    EQ(memcmp(before, after, size), 0);
    free(before);
    free(after);
    check_whole(m.reg);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < n; i++) OK(strike_out(m, &r[i]));
        check_whole(m.reg);
        for (int i = 0; i < n; i++) {
            snprintf(name, sizeof name, "n%d", i % 40);
            OK(put(m, MD_STACK, name, KEY, body, &r[i]));
        }
        EQ(put(m, MD_STACK, "n0", KEY, body, NULL), MD_EFULL);
        check_whole(m.reg);
    }
    OK(md_stat(m.reg, &s2));
    EQ(s2.used, s1.used);
    close_main(m);
}

TEST(the_last_byte_of_a_registry_serves) {
    struct main_member m = open_main(NULL, LEAST);
    uint32_t ref[(LEAST - MD__ARENA_AT) / 64], more;
    uint64_t left;
    int n = 0;
    md__reg *reg;
    OK(md__enter(m.reg, &reg));
    OK(md__lock(reg));
    while ((left = reg->mapped - md__top(reg))) {
        if (!OK(md__alloc(reg, left < 128 ? left : 64, &ref[n++]))) break;
    }
    EQ(md__alloc(reg, 64, &more), MD_EFULL);
    while (n--) md__free(reg, md__fresh(reg, ref[n]));
    md__unlock(reg);
    md__exit(reg);
    check_whole(m.reg);
    close_main(m);
}

/* There is room for the name, none for the fact, or none in the caller's buffer. */
TEST(names_that_are_refused_leave_nothing) {
    struct main_member m = open_main(NULL, LEAST);
    static char body[MD_MAX_BODY];
    char name[32], buf[16];
    md_stats before, after;
    OK(put(m, MD_STACK, "first", KEY, "b", NULL));
    OK(md_stat(m.reg, &before));
    for (int i = 0; i < 20000; i++) {
        int len = snprintf(name, sizeof name, "refused%d", i);
        EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, name, (size_t)len, body,
                       sizeof body, "", 0, buf, sizeof buf),
           MD_EFULL);
        EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, name, (size_t)len, body, 1, "", 0,
                       buf, sizeof buf),
           MD_ENOBUFS);
        EQ(find(m.reg, name, KEY, NULL, 0), MD_ENOENT);
    }
    OK(md_stat(m.reg, &after));
    EQ(after.names, before.names);
    EQ(after.used, before.used);
    check_whole(m.reg);
    OK(put(m, MD_STACK, "refused0", KEY, "b", NULL));
    OK(put(m, MD_STACK, "another", KEY, "b", NULL));
    close_main(m);
}

TEST(new_names_in_a_full_registry_are_refused_cleanly) {
    struct main_member m = open_main(NULL, LEAST);
    char name[32];
    md_stats s;
    int rc = 0, n = 0, refused = 0;
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "ns::operator_%d", i);
        rc = put(m, MD_STACK, name, KEY, "b", NULL);
        n += rc == 0;
        refused += rc == MD_EFULL;
        if (rc) EQ(find(m.reg, name, KEY, NULL, 0), MD_ENOENT);
    }
    EQ(n + refused, 5000);
    CHECK(refused > 0 && n > 100);
    OK(md_stat(m.reg, &s));
    EQ(s.facts, n);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "ns::operator_%d", i);
        OK(find(m.reg, name, KEY, NULL, 0));
    }
    close_main(m);
}

TEST(a_name_for_which_the_index_cannot_grow_is_refused) {
    struct main_member m = open_main(NULL, LEAST);
    char name[32], *before, *after;
    md_stats s1, s2;
    for (int i = 0; i < 1 << (MD__FIRST_INDEX_LOG2 - 1); i++) {
        snprintf(name, sizeof name, "n%d", i);
        OK(put(m, MD_STACK, name, KEY, "", NULL));
    }
    while (put(m, MD_STACK, "n0", KEY, "", NULL) == 0) {}
    size_t size = all_facts(m.reg, &before);
    OK(md_stat(m.reg, &s1));
    EQ(put(m, MD_STACK, "one more", KEY, "", NULL), MD_EFULL);
    OK(md_stat(m.reg, &s2));
    EQ(memcmp(&s1, &s2, sizeof s1), 0);
    EQ(all_facts(m.reg, &after), size);
    EQ(memcmp(before, after, size), 0);
    free(before);
    free(after);
    check_whole(m.reg);
    close_main(m);
}

TEST(registering_and_striking_for_ever_needs_bounded_memory) {
    struct main_member m = open_main(NULL, 8 << 20);
    static md_record live[64];
    static char body[256];
    md_stats early, late;
    int times = rounds(1000000), k = 0;
    unsigned random = 12345;
    memset(body, 'x', sizeof body);
    for (int i = 0; i < times; i++) {
        char name[16], buf[1024];
        random = random * 1103515245 + 12345;
        k = (int)(random >> 16) % 64;
        snprintf(name, sizeof name, "op%d", k % 16);
        if (live[k].seq) OK(strike_out(m, &live[k]));
        OK(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, name, strlen(name), body,
                       (random >> 8) % 200, "w", 1, buf, sizeof buf));
        memcpy(&live[k], buf, sizeof live[k]);
        if (i == times / 10) OK(md_stat(m.reg, &early));
    }
    OK(md_stat(m.reg, &late));
    EQ(late.committed, early.committed);
    EQ(late.names, 16);
    CHECK(late.facts <= 64);
    close_main(m);
}

struct growth {
    struct main_member m;
    int names;
    md__u32 done;
    md__u32 known; /* names that certainly exist */
    md__u32 looks;
};

static void *look_while_growing(void *arg) {
    struct growth *g = arg;
    unsigned random = 99;
    while (!md__read32(&g->done)) {
        char name[32], body[32];
        uint32_t known = md__read32(&g->known);
        if (!known) continue;
        random = random * 1103515245 + 12345;
        unsigned i = (random >> 8) % known;
        snprintf(name, sizeof name, "ns::op%u", i);
        if (!OK(find(g->m.reg, name, KEY, body, sizeof body))) break;
        if (!CHECK((unsigned)atoi(body) == i)) break;
        md__add32(&g->looks, 1);
    }
    return NULL;
}

TEST(the_index_grows_while_others_look_names_up) {
    struct growth g = {.names = rounds(20000)};
    pthread_t reader[2];
    g.m = open_main(NULL, 256 << 20);
    for (int i = 0; i < 2; i++) pthread_create(&reader[i], NULL, look_while_growing, &g);
    for (int i = 0; i < g.names; i++) {
        char name[32], body[32];
        snprintf(name, sizeof name, "ns::op%d", i);
        snprintf(body, sizeof body, "%d", i);
        OK(put(g.m, MD_UNIQUE, name, KEY, body, NULL));
        md__publish32(&g.known, (uint32_t)i + 1);
    }
    while (md__read32(&g.looks) < 1000 && !test_failures) sched_yield();
    md__publish32(&g.done, 1);
    for (int i = 0; i < 2; i++) pthread_join(reader[i], NULL);
    md_stats s;
    OK(md_stat(g.m.reg, &s));
    EQ(s.names, g.names);
    close_main(g.m);
}

TEST(a_small_disk_is_an_error_and_no_crash) {
    struct main_member m = open_main(NULL, 64 << 20);
    md__reg *reg;
    static char body[60000], buf[70000];
    md_stats before, after;
    OK(md__enter(m.reg, &reg));
    int fd = reg->fd;
    reg->fd = open("/dev/full", O_RDWR | O_CLOEXEC); /* stands for a full file system */
    note_file(reg);
    OK(md_stat(m.reg, &before));
    int rc = 0, n = 0;
    for (; n < 100 && !rc; n++)
        rc = md_register(m.reg, m.member, MD_DEF, MD_STACK, 0, "n", 1, body, sizeof body, "", 0,
                         buf, sizeof buf);
    CHECK(rc <= MD_ESYS && n < 4);
    EQ(md_stat(m.reg, &after), 0);
    EQ(after.committed, before.committed);
    EQ(after.facts, (unsigned)n - 1);
    check_whole(m.reg);
    close(reg->fd);
    reg->fd = fd;
    note_file(reg);
    for (int i = 0; i < 100; i++)
        OK(md_register(m.reg, m.member, MD_DEF, MD_STACK, 0, "n", 1, body, sizeof body, "", 0, buf,
                       sizeof buf));
    md__exit(reg);
    close_main(m);
}

TEST(a_closed_handle_is_answered_for_ever) {
    struct main_member m = open_main(NULL, LEAST), other;
    char buf[BUF];
    size_t n;
    uint64_t u, member;
    uint32_t role;
    md_stats s;
    md_wait_stats w = {0};
    close_main(m);
    other = open_main(NULL, LEAST); /* in the same place of the table */
    EQ(md_close(m.reg), MD_ECLOSED);
    EQ(md_join(m.reg, 0, &member, &role), MD_ECLOSED);
    EQ(md_leave(m.reg, m.member), MD_ECLOSED);
    EQ(put(m, MD_STACK, "n", 0, "b", NULL), MD_ECLOSED);
    EQ(md_strike(m.reg, m.member, 1, 1), MD_ECLOSED);
    EQ(md_find(m.reg, MD_DEF, 0, "n", 1, buf, BUF), MD_ECLOSED);
    EQ(md_await(m.reg, m.member, MD_DEF, 0, 1, "n", 1, 0, 0, buf, BUF, &w), MD_ECLOSED);
    EQ(md_cancel(m.reg, m.member, 0), MD_ECLOSED);
    EQ(md_list(m.reg, NULL, 0, buf, BUF, &n, &u, &u), MD_ECLOSED);
    EQ(md_version(m.reg, 1, &u), MD_ECLOSED);
    EQ(md_members(m.reg, NULL, 0, &n), MD_ECLOSED);
    EQ(md_stat(m.reg, &s), MD_ECLOSED);
    EQ(md_check(m.reg, buf, BUF), MD_ECLOSED);
    EQ(md_address(m.reg, buf, BUF), MD_ECLOSED);
    EQ(md_close(0), MD_ECLOSED);
    EQ(md_close(UINT64_MAX), MD_ECLOSED);
    close_main(other);
}

static void *create_32(void *arg) {
    md_registry *reg = arg;
    for (int i = 0; i < 32; i++) OK(md_create(NULL, LEAST, &reg[i]));
    return NULL;
}

/* Another thread makes half of them: ThreadSanitizer lets no thread hold 64 leases. */
TEST(a_process_has_room_for_64_registries_and_again_after_closing) {
    md_registry reg[64], one_more;
    for (int round = 0; round < 3; round++) {
        pthread_t other;
        create_32(reg);
        pthread_create(&other, NULL, create_32, reg + 32);
        pthread_join(other, NULL);
        EQ(md_create(NULL, LEAST, &one_more), MD_EHANDLES);
        for (int i = 0; i < 64; i++) OK(md_close(reg[i]));
    }
    EQ(md_create(NULL, LEAST - 1, &one_more), MD_EINVAL);
    EQ(md_create(NULL, MD__MAX_CAPACITY + 1, &one_more), MD_EINVAL);
}

TEST(every_opening_is_given_back_by_itself) {
    md_registry a, b, c;
    char address[MD_MAX_ADDRESS];
    md_stats s;
    OK(md_create(NULL, LEAST, &a));
    OK(md_address(a, address, sizeof address));
    EQ(md_address(a, address, 10), MD_ENOBUFS);
    OK(md_attach(address, 0, &b));
    EQ(a, b);
    OK(md_close(b));
    OK(md_stat(a, &s));
    OK(md_close(a));
    EQ(md_close(a), MD_ECLOSED);
    OK(md_open_default(NULL, &a));
    OK(md_open_default("", &b));
    OK(md_address(a, address, sizeof address));
    OK(md_open_default(address, &c));
    CHECK(a == b && b == c);
    for (int i = 0; i < 3; i++) OK(md_close(a));
    EQ(md_close(a), MD_ECLOSED);
}

/* The state after a process was killed between backing the region and noting it. */
TEST(memory_that_a_dead_one_had_backed_is_counted_before_it_is_used) {
    struct main_member m = open_main(NULL, MD__MIN_CAPACITY + (4 << 20));
    md__reg *reg;
    md_stats s;
    OK(md_stat(m.reg, &s));
    OK(md__enter(m.reg, &reg));
    OK(fallocate(reg->fd, 0, (off_t)s.committed, 1 << 20));
    CHECK(md__region_top(reg, s.committed + (1 << 20))); /* this process knows it by now */
    md__exit(reg);
    static char body[MD_MAX_BODY];
    char buf[MD_MAX_BODY + BUF];
    for (int i = 0; i < 12; i++) {
        OK(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, "s::f", 4, body, sizeof body, "", 0,
                       buf, sizeof buf));
        check_whole(m.reg);
    }
    close_main(m);
}

/* --- found while it grows --------------------------------------------------------------------- */

enum { ROOM = 12 << 20 };

struct growing {
    char address[MD_MAX_ADDRESS];
    md_registry inherited;
    md__u32 over;
};

static void attach_until_over(void *arg) {
    struct growing *g = arg;
    md_registry reg;
    OK(md_close(g->inherited)); /* an unrelated process, which opens the file */
    while (!md__read32(&g->over) && OK(md_attach(g->address, 0, &reg))) OK(md_close(reg));
}

/* A process that attaches reads the bounds while the main member changes them. */
TEST(a_registry_that_grows_can_be_attached_to_at_any_moment) {
    static char body[MD_MAX_BODY];
    struct growing *g = shared(sizeof *g);
    for (int i = 0; i < rounds(20); i++) {
        char record[sizeof body + BUF];
        pid_t pid[2];
        int rc = 0;
        md__publish32(&g->over, 0);
        struct main_member m = open_main(NULL, ROOM);
        OK(md_address(m.reg, g->address, sizeof g->address));
        g->inherited = m.reg;
        for (int c = 0; c < 2; c++) pid[c] = child(attach_until_over, g);
        for (int key = 0; rc == 0; key++)
            rc = md_register(m.reg, m.member, MD_IMPL, MD_STACK, key, "n", 1, body, sizeof body,
                             NULL, 0, record, sizeof record);
        EQ(rc, MD_EFULL);
        md__publish32(&g->over, 1);
        for (int c = 0; c < 2; c++) EQ(reap(pid[c]), 0);
        close_main(m);
    }
    munmap(g, sizeof *g);
}

int main(void) {
    RUN(a_full_registry_stays_as_it_was_and_what_is_struck_serves_again);
    RUN(the_last_byte_of_a_registry_serves);
    RUN(names_that_are_refused_leave_nothing);
    RUN(new_names_in_a_full_registry_are_refused_cleanly);
    RUN(a_name_for_which_the_index_cannot_grow_is_refused);
    RUN(registering_and_striking_for_ever_needs_bounded_memory);
    RUN(the_index_grows_while_others_look_names_up);
    RUN(a_small_disk_is_an_error_and_no_crash);
    RUN(a_closed_handle_is_answered_for_ever);
    RUN(a_process_has_room_for_64_registries_and_again_after_closing);
    RUN(every_opening_is_given_back_by_itself);
    RUN(memory_that_a_dead_one_had_backed_is_counted_before_it_is_used);
    RUN(a_registry_that_grows_can_be_attached_to_at_any_moment);
    return test_done();
}
