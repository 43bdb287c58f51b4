/* Registering and striking: the two rules, the records, the limits, the order, the versions. */
#include "test.h"

enum { SMALL = 1 << 20 };

/* The list of one name as text: the bodies, oldest first, with a comma after each. */
static void listed(md_registry reg, const char *name, char *text, size_t cap) {
    char buf[65536];
    size_t size;
    uint64_t version, node;
    OK(md_list(reg, name, name ? strlen(name) : 0, buf, sizeof buf, &size, &version, &node));
    text[0] = '\0';
    uint64_t seq = 0;
    for (size_t at = 0; at < size;) {
        md_record r;
        memcpy(&r, buf + at, sizeof r);
        if (name) CHECK(r.seq > seq);
        seq = r.seq;
        size_t n = strlen(text);
        snprintf(text + n, cap - n, "%.*s,", (int)r.body_len, buf + at + sizeof r + r.name_len);
        at += r.size;
    }
}

static void check_list(md_registry reg, const char *name, const char *should) {
    char text[4096];
    listed(reg, name, text, sizeof text);
    if (!CHECK(strcmp(text, should) == 0))
        fprintf(stderr, "    \"%s\", not \"%s\"\n", text, should);
}

TEST(the_first_of_a_unique_kind_is_kept_and_shown_to_the_second) {
    struct main_member m = open_main(NULL, SMALL);
    char buf[BUF];
    md_record first, r;
    OK(put(m, MD_UNIQUE, "shop::scale", KEY, "first", &first));
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_UNIQUE, KEY, "shop::scale", 11, "second", 6,
                   "b.py:2", 6, buf, BUF),
       MD_EEXIST);
    memcpy(&r, buf, sizeof r);
    EQ(memcmp(&r, &first, sizeof r), 0);
    EQ(memcmp(buf + sizeof r, "shop::scalefirstt.c:1", 21), 0);
    EQ(r.pid, getpid());
    check_list(m.reg, "shop::scale", "first,");
    OK(put(m, MD_UNIQUE, "shop::scale", KEY + 1, "other key", NULL));
    OK(put(m, MD_UNIQUE, "shop::scale2", KEY, "other name", NULL));
    EQ(md_register(m.reg, m.member, MD_DEF, MD_UNIQUE, KEY, "shop::scale", 11, "d", 1, "", 0, buf,
                   BUF),
       0);
    OK(strike_out(m, &first));
    OK(put(m, MD_UNIQUE, "shop::scale", KEY, "after", NULL));
    close_main(m);
}

TEST(texts_of_every_length_come_back_whole_at_any_alignment_of_the_buffer) {
    struct main_member m = open_main(NULL, SMALL);
    const char *text = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP";
    char buf[BUF], name[32];
    md_record r;
    for (size_t len = 1; len <= 17; len++) { /* and each differs from the next one in one byte */
        for (size_t at = 0; at < len; at++) {
            memcpy(name, text, len);
            name[at] = '\xff';
            OK(md_register(m.reg, m.member, MD_DEF, MD_UNIQUE, 0, name, len, text + at, len, text,
                           at, buf, BUF));
        }
        EQ(md_find(m.reg, MD_DEF, 0, text, len, buf, BUF), MD_ENOENT);
    }
    for (size_t len = 1; len <= 17; len++) {
        for (size_t at = 0; at < len; at++) {
            char *to = buf + (len + at) % 8;
            memcpy(name, text, len);
            name[at] = '\xff';
            OK(md_find(m.reg, MD_DEF, 0, name, len, to, BUF - 8));
            memcpy(&r, to, sizeof r);
            EQ(r.name_len == len && r.body_len == len && r.where_len == at, 1);
            EQ(memcmp(to + sizeof r, name, len), 0);
            EQ(memcmp(to + sizeof r + len, text + at, len), 0);
            EQ(memcmp(to + sizeof r + len + len, text, at), 0);
        }
    }
    close_main(m);
}

TEST(a_unique_fact_is_refused_where_a_stacked_one_lives) {
    struct main_member m = open_main(NULL, SMALL);
    OK(put(m, MD_STACK, "a", KEY, "1", NULL));
    EQ(put(m, MD_UNIQUE, "a", KEY, "2", NULL), MD_EEXIST);
    OK(put(m, MD_STACK, "a", KEY, "3", NULL));
    check_list(m.reg, "a", "1,3,");
    close_main(m);
}

TEST(the_newest_of_a_stack_is_in_effect_and_the_one_before_returns) {
    struct main_member m = open_main(NULL, SMALL);
    md_record a, b, c;
    char body[64];
    OK(put(m, MD_STACK, "n", KEY, "a", &a));
    OK(put(m, MD_STACK, "n", KEY, "b", &b));
    OK(put(m, MD_STACK, "n", KEY + 1, "of another key", NULL));
    OK(put(m, MD_STACK, "n", KEY, "c", &c));
    OK(find(m.reg, "n", KEY, body, sizeof body));
    CHECK(!strcmp(body, "c"));
    OK(strike_out(m, &b));
    OK(strike_out(m, &c));
    OK(find(m.reg, "n", KEY, body, sizeof body));
    CHECK(!strcmp(body, "a"));
    EQ(strike_out(m, &c), MD_ENOENT);
    OK(strike_out(m, &a));
    EQ(find(m.reg, "n", KEY, NULL, 0), MD_ENOENT);
    close_main(m);
}

static void strike_in_order(const int order[5]) {
    struct main_member m = open_main(NULL, SMALL);
    static const char *const bodies[] = {"0", "1", "2", "3", "4"};
    md_record r[5];
    int there[5] = {1, 1, 1, 1, 1};
    for (int i = 0; i < 5; i++) OK(put(m, MD_STACK, "n", KEY, bodies[i], &r[i]));
    for (int i = 0; i < 5; i++) {
        char should[32] = "", body[8];
        int newest = -1;
        OK(strike_out(m, &r[order[i]]));
        EQ(strike_out(m, &r[order[i]]), MD_ENOENT);
        there[order[i]] = 0;
        for (int j = 0; j < 5; j++) {
            if (!there[j]) continue;
            newest = j;
            snprintf(should + strlen(should), sizeof should - strlen(should), "%d,", j);
        }
        check_list(m.reg, "n", should);
        EQ(find(m.reg, "n", KEY, body, sizeof body), newest < 0 ? MD_ENOENT : 0);
        if (newest >= 0) EQ(body[0], '0' + newest);
    }
    close_main(m);
}

static void permute(int order[5], int from) {
    if (from == 5) strike_in_order(order);
    for (int i = from; i < 5; i++) {
        int held = order[from];
        order[from] = order[i];
        order[i] = held;
        permute(order, from + 1);
        order[i] = order[from];
        order[from] = held;
    }
}

TEST(five_facts_can_be_struck_in_every_order) {
    int order[5] = {0, 1, 2, 3, 4};
    permute(order, 0);
}

/* Registers and reads back one fact of these lengths, and compares every byte. */
static void check_exact(struct main_member m, size_t name_len, size_t body_len, size_t where_len) {
    static char text[MD_MAX_BODY + MD_MAX_NAME + MD_MAX_WHERE];
    static char buf[3][sizeof text + 128];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 31 + name_len + 3 * body_len + 5 * where_len + 1);
    const char *name = text, *body = text + name_len, *where = body + body_len;
    size_t whole = (sizeof(md_record) + name_len + body_len + where_len + 7) & ~(size_t)7, size;
    uint64_t version, node;
    md_record r;
    memset(buf, 0xee, sizeof buf);
    EQ(md_register(m.reg, m.member, MD_DEF, MD_STACK, -3, name, name_len, body, body_len, where,
                   where_len, buf[0], whole - 1),
       MD_ENOBUFS);
    memcpy(&size, buf[0], 8);
    EQ(size, whole);
    OK(md_register(m.reg, m.member, MD_DEF, MD_STACK, -3, name, name_len, body, body_len, where,
                   where_len, buf[0], whole));
    OK(md_find(m.reg, MD_DEF, -3, name, name_len, buf[1], whole));
    OK(md_list(m.reg, name, name_len, buf[2], whole, &size, &version, &node));
    EQ(size, whole);
    memcpy(&r, buf[0], sizeof r);
    EQ(r.size, whole);
    CHECK(r.name_len == name_len && r.body_len == body_len && r.where_len == where_len &&
          r.key == -3);
    for (int i = 0; i < 3; i++) {
        static const char zeroes[8];
        size_t text_len = name_len + body_len + where_len;
        EQ(memcmp(buf[i], buf[0], whole), 0);
        EQ(memcmp(buf[i] + sizeof r, text, text_len), 0);
        EQ(memcmp(buf[i] + sizeof r + text_len, zeroes, whole - sizeof r - text_len), 0);
        EQ((unsigned char)buf[i][whole], 0xee);
    }
    OK(md_strike(m.reg, m.member, r.ref, r.seq));
}

TEST(records_come_back_byte_for_byte_at_every_length) {
    struct main_member m = open_main(NULL, 16 << 20);
    for (size_t name = 1; name <= 17; name++)
        for (size_t body = 0; body <= 17; body++)
            for (size_t where = 0; where <= 17; where++) check_exact(m, name, body, where);
    for (int d = -9; d <= 0; d++) {
        check_exact(m, (size_t)(MD_MAX_NAME + d), 5, 5);
        check_exact(m, 3, (size_t)(MD_MAX_BODY + d), 5);
        check_exact(m, 3, 3, (size_t)(MD_MAX_WHERE + d));
    }
    check_exact(m, MD_MAX_NAME, MD_MAX_BODY, MD_MAX_WHERE);
    close_main(m);
}

TEST(what_no_call_could_use_is_refused_and_changes_nothing) {
    struct main_member m = open_main(NULL, SMALL);
    static char big[MD_MAX_BODY + 1];
    char buf[BUF];
    md_stats before, after;
    md_wait_stats w = {0};
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(md_stat(m.reg, &before));
    memset(big, 'x', sizeof big);
#define REG(kind, rule, name, nlen, body, blen, where, wlen)                                       \
    md_register(m.reg, m.member, kind, rule, KEY, name, nlen, body, blen, where, wlen, buf, BUF)
    EQ(REG(0, MD_STACK, "n", 1, "", 0, "", 0), MD_EINVAL);
    EQ(REG(7, MD_STACK, "n", 1, "", 0, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, 0, "n", 1, "", 0, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, 3, "n", 1, "", 0, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, MD_RAISE_ALL, "n", 1, "", 0, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, MD_STACK | 32, "n", 1, "", 0, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, MD_STACK, "n", 0, "", 0, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, MD_STACK, NULL, 1, "", 0, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, MD_STACK, "n", 1, NULL, 1, "", 0), MD_EINVAL);
    EQ(REG(MD_DEF, MD_STACK, "n", 1, "", 0, NULL, 1), MD_EINVAL);
    EQ(REG(MD_DEF, MD_STACK, big, MD_MAX_NAME + 1, "", 0, "", 0), MD_ETOOLONG);
    EQ(REG(MD_DEF, MD_STACK, "n", 1, big, MD_MAX_BODY + 1, "", 0), MD_ETOOLONG);
    EQ(REG(MD_DEF, MD_STACK, "n", 1, "", 0, big, MD_MAX_WHERE + 1), MD_ETOOLONG);
#undef REG
    EQ(md_find(m.reg, MD_DEF, 0, "", 0, buf, BUF), MD_EINVAL);
    EQ(md_find(m.reg, MD_DEF, 0, big, MD_MAX_NAME + 1, buf, BUF), MD_ETOOLONG);
    EQ(md_await(m.reg, m.member, MD_DEF, 0, 0, "n", 1, 0, 0, buf, BUF, &w), MD_EINVAL);
    EQ(md_await(m.reg, m.member, MD_DEF, 0, 1, "n", 1, -2, 0, buf, BUF, &w), MD_EINVAL);
    EQ(md_strike(m.reg, m.member, 0, 1), MD_ENOENT);
    EQ(md_strike(m.reg, m.member, UINT64_MAX, 1), MD_ENOENT);
    EQ(md_strike(m.reg, m.member, 50177, 1), MD_ENOENT);
    OK(md_stat(m.reg, &after));
    EQ(memcmp(&before, &after, sizeof before), 0);
    close_main(m);
}

TEST(a_buffer_too_small_learns_the_size_and_nothing_is_registered) {
    struct main_member m = open_main(NULL, SMALL);
    char buf[BUF];
    uint64_t size = 0, version, node;
    size_t listed_size;
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, "n", 1, "body", 4, "w", 1, NULL, 0),
       MD_ENOBUFS);
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, "n", 1, "body", 4, "w", 1, &size, 7),
       MD_ENOBUFS);
    EQ(size, 0);
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, "n", 1, "body", 4, "w", 1, &size, 8),
       MD_ENOBUFS);
    EQ(size, 72);
    EQ(find(m.reg, "n", KEY, NULL, 0), MD_ENOENT);
    for (int i = 0; i < 10; i++) OK(put(m, MD_STACK, i % 2 ? "n" : "nn", KEY, "body", NULL));
    EQ(md_find(m.reg, MD_IMPL, KEY, "n", 1, NULL, 0), MD_ENOBUFS);
    EQ(md_list(m.reg, NULL, 0, NULL, 0, &listed_size, &version, &node), MD_ENOBUFS);
    EQ(listed_size, 800);
    EQ(md_list(m.reg, NULL, 0, buf, 799, &listed_size, &version, &node), MD_ENOBUFS);
    OK(md_list(m.reg, NULL, 0, buf, 800, &listed_size, &version, &node));
    OK(md_list(m.reg, "unknown", 7, NULL, 0, &listed_size, &version, &node));
    CHECK(listed_size == 0 && version == 0 && node == 0);
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_UNIQUE, KEY, "n", 1, "body", 4, "w", 1, buf, 8),
       MD_ENOBUFS);
    close_main(m);
}

static uint64_t version_of(md_registry reg, const char *name, uint64_t *node) {
    char buf[BUF];
    size_t size;
    uint64_t version, again;
    OK(md_list(reg, name, strlen(name), buf, sizeof buf, &size, &version, node));
    OK(md_version(reg, *node, &again));
    EQ(again, version);
    return version;
}

TEST(versions_rise_for_the_name_concerned_and_with_raise_all_for_all) {
    struct main_member m = open_main(NULL, SMALL);
    md_record a, all;
    uint64_t node_a, node_b, version;
    OK(put(m, MD_STACK, "a", KEY, "1", &a));
    OK(put(m, MD_STACK, "b", KEY, "1", NULL));
    uint64_t va = version_of(m.reg, "a", &node_a), vb = version_of(m.reg, "b", &node_b);
    OK(put(m, MD_STACK, "a", KEY, "2", NULL));
    CHECK(version_of(m.reg, "a", &node_a) > va);
    EQ(version_of(m.reg, "b", &node_b), vb);
    va = version_of(m.reg, "a", &node_a);
    OK(strike_out(m, &a));
    CHECK(version_of(m.reg, "a", &node_a) > va);
    EQ(version_of(m.reg, "b", &node_b), vb);
    va = version_of(m.reg, "a", &node_a);
    EQ(put(m, MD_UNIQUE, "a", KEY, "refused", NULL), MD_EEXIST);
    EQ(strike_out(m, &a), MD_ENOENT);
    EQ(version_of(m.reg, "a", &node_a), va);
    OK(put(m, MD_STACK | MD_RAISE_ALL, "c", KEY, "1", &all));
    CHECK(version_of(m.reg, "a", &node_a) > va && version_of(m.reg, "b", &node_b) > vb);
    va = version_of(m.reg, "a", &node_a);
    vb = version_of(m.reg, "b", &node_b);
    OK(strike_out(m, &all));
    CHECK(version_of(m.reg, "a", &node_a) > va && version_of(m.reg, "b", &node_b) > vb);
    EQ(md_version(m.reg, 0, &version), MD_EINVAL);
    EQ(md_version(m.reg, node_a + 1, &version), MD_EINVAL);
    EQ(md_version(m.reg, UINT64_MAX, &version), MD_EINVAL);
    close_main(m);
}

TEST(only_interpreter_0_of_the_creator_registers) {
    struct main_member m = {0}, w;
    OK(md_create(NULL, SMALL, &m.reg));
    w = m;
    w.member = join(m.reg, 1, MD_WORKER);
    EQ(put(w, MD_STACK, "n", KEY, "b", NULL), MD_EROLE);
    m.member = join(m.reg, 0, MD_MAIN);
    md_record r;
    OK(put(m, MD_STACK, "n", KEY, "b", &r));
    w.member = join(m.reg, 0, MD_WORKER);
    EQ(put(w, MD_STACK, "n", KEY, "b", NULL), MD_EROLE);
    EQ(strike_out(w, &r), MD_EROLE);
    OK(md_leave(w.reg, w.member));
    EQ(put(w, MD_STACK, "n", KEY, "b", NULL), MD_ECLOSED);
    check_list(m.reg, "n", "b,");
    close_main(m);
}

/* The right to write ends with the registry. */
TEST(nobody_registers_in_a_registry_whose_main_member_left) {
    struct main_member m = open_main(NULL, SMALL), w = m;
    w.member = join(m.reg, 1, MD_WORKER);
    promote(w.reg, w.member);
    OK(put(w, MD_STACK, "n", KEY, "b", NULL));
    OK(md_leave(m.reg, m.member));
    EQ(put(w, MD_STACK, "n", KEY, "b", NULL), MD_ECLOSED);
    check_list(m.reg, "n", "b,");
    OK(md_close(m.reg));
}

TEST(what_has_no_body_and_no_place_is_registered_without_them) {
    struct main_member m = open_main(NULL, SMALL);
    char buf[BUF];
    md_record r;
    OK(md_register(m.reg, m.member, MD_NAME, MD_STACK, 0, "n", 1, NULL, 0, NULL, 0, buf, BUF));
    memcpy(&r, buf, sizeof r);
    EQ(r.body_len + r.where_len, 0);
    close_main(m);
}

TEST(each_status_has_words_of_its_own_and_a_failed_call_its_errno) {
    EQ(md_abi(), MD_ABI);
    for (int status = 0; status >= MD_EHANDLES; status--) {
        CHECK(strcmp(md_status_text(status), "unknown status"));
        EQ(md_status_errno(status), 0);
        for (int other = 0; other > status; other--)
            CHECK(strcmp(md_status_text(status), md_status_text(other)));
    }
    EQ(strcmp(md_status_text(MD_ESYS - ENOMEM), "a system call failed"), 0);
    EQ(md_status_errno(MD_ESYS - ENOMEM), ENOMEM);
    EQ(md_status_errno(MD_ESYS), 0);
    EQ(strcmp(md_status_text(1), "unknown status"), 0);
    EQ(strcmp(md_status_text(-999), "unknown status"), 0);
}

int main(void) {
    RUN(the_first_of_a_unique_kind_is_kept_and_shown_to_the_second);
    RUN(texts_of_every_length_come_back_whole_at_any_alignment_of_the_buffer);
    RUN(a_unique_fact_is_refused_where_a_stacked_one_lives);
    RUN(the_newest_of_a_stack_is_in_effect_and_the_one_before_returns);
    RUN(five_facts_can_be_struck_in_every_order);
    RUN(records_come_back_byte_for_byte_at_every_length);
    RUN(what_no_call_could_use_is_refused_and_changes_nothing);
    RUN(a_buffer_too_small_learns_the_size_and_nothing_is_registered);
    RUN(versions_rise_for_the_name_concerned_and_with_raise_all_for_all);
    RUN(only_interpreter_0_of_the_creator_registers);
    RUN(nobody_registers_in_a_registry_whose_main_member_left);
    RUN(what_has_no_body_and_no_place_is_registered_without_them);
    RUN(each_status_has_words_of_its_own_and_a_failed_call_its_errno);
    return test_done();
}
