/* Editions of a name, NAME@EDITION: registries of their own, of which so many may be alive at once.
 */
#include "test.h"

enum { SIZE = MD__MIN_CAPACITY, MANY = MD_MAX_EDITIONS };

static char name[64];

static const char *edition(const char *what) {
    static char text[MD_MAX_REGISTRY_NAME * 2];
    snprintf(text, sizeof text, "%s@%s", name, what);
    return text;
}

static const char *path_of(const char *which) {
    static char path[MD__MAX_PATH];
    md__file_path(path, sizeof path, which);
    return path;
}

static const char *numbered(int i) {
    char digits[16];
    snprintf(digits, sizeof digits, "%d", i);
    return edition(digits);
}

static void leave(struct main_member m) {
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

static struct main_member open_edition(const char *which) {
    struct main_member m = {0, 0};
    OK(md_elect(which, SIZE, &m.reg));
    m.member = join(m.reg, 0, MD_PEER);
    return m;
}

TEST(each_character_is_allowed_in_an_edition_or_it_is_not) {
    static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.+";
    for (int c = 1; c < 256; c++) {
        char what[4] = {(char)c, '\0'};
        md_registry reg;
        int rc = md_create(edition(what), SIZE, &reg);
        if (!EQ(rc, strchr(ALLOWED, c) ? 0 : MD_ENAME)) fprintf(stderr, "    \"%s\"\n", what);
        if (rc == 0) OK(md_close(reg));
    }
}

TEST(an_edition_may_fill_the_name_and_not_more) {
    char long_one[MD_MAX_REGISTRY_NAME + 1];
    md_registry reg;
    memset(long_one, 'x', sizeof long_one);
    long_one[MD_MAX_REGISTRY_NAME - strlen(name) - 1] = '\0';
    OK(md_create(edition(long_one), SIZE, &reg));
    OK(md_close(reg));
    long_one[strlen(long_one)] = 'x';
    long_one[MD_MAX_REGISTRY_NAME - strlen(name)] = '\0';
    EQ(md_create(edition(long_one), SIZE, &reg), MD_ENAME);
    EQ(md_elect(edition(long_one), SIZE, &reg), MD_ENAME);
}

TEST(editions_share_nothing_and_each_ends_with_its_last_member) {
    char buf[256];
    md_registry none;
    struct main_member plain = open_edition(name);
    struct main_member one = open_edition(edition("1"));
    struct main_member two = open_edition(edition("2"));
    OK(md_claim(one.reg, one.member, "shop", strlen("shop"), "t.c:2", 5, buf, sizeof buf));
    OK(put(one, MD_STACK, "shop::f", KEY, "b", NULL));
    OK(find(one.reg, "shop::f", KEY, NULL, 0));
    EQ(find(two.reg, "shop::f", KEY, NULL, 0), MD_ENOENT);
    EQ(find(plain.reg, "shop::f", KEY, NULL, 0), MD_ENOENT);
    leave(one);
    EQ(md_attach(edition("1"), 0, &none), MD_ENOENT);
    md_registry same;
    OK(md_attach(edition("2"), 0, &same));
    EQ(same, two.reg);
    OK(md_close(same));
    leave(two);
    leave(plain);
}

static void die_in(void *arg) {
    open_edition(arg);
    kill(getpid(), SIGKILL);
}

/* Neither the dead nor other names take a place, and one that lives is joined also when no other has
 * room. The maker of an edition removes those that nobody has open any more. */
TEST(so_many_editions_are_alive_and_no_more) {
    struct main_member there[MANY], more;
    char other[80];
    md_registry none;
    EQ(reap(child(die_in, (void *)edition("dead"))), -SIGKILL);
    struct main_member plain = open_edition(name);
    snprintf(other, sizeof other, "%sx@1", name);
    struct main_member of_other = open_edition(other);
    OK(access(path_of(edition("dead")), F_OK));
    there[0] = open_edition(numbered(0));
    EQ(access(path_of(edition("dead")), F_OK), -1);
    EQ(reap(child(die_in, (void *)edition("dead"))), -SIGKILL);
    int held = open(path_of(edition("dead")), O_RDWR | O_CLOEXEC);
    for (int i = 1; i < MANY; i++) there[i] = open_edition(numbered(i));
    EQ(md_elect(edition("one-more"), SIZE, &none), MD_EEDITIONS);
    EQ(md_create(edition("one-more"), SIZE, &none), MD_EEDITIONS);
    EQ(md_attach(edition("one-more"), 0, &none), MD_ENOENT);
    EQ(md_elect(edition("dead"), SIZE, &none), MD_EEDITIONS);
    more = open_edition(numbered(3));
    EQ(more.reg, there[3].reg);
    OK(md_close(more.reg));
    leave(there[5]);
    more = open_edition(edition("one-more"));
    there[5] = more;
    for (int i = 0; i < MANY; i++) leave(there[i]);
    leave(of_other);
    leave(plain);
    OK(access(path_of(edition("dead")), F_OK)); /* somebody had it open */
    close(held);
    OK(md_reap(edition("dead")));
}

struct race {
    struct step ready, go, end;
    md__u32 won, refused;
};

struct side {
    struct race *race;
    int number;
};

static void race_to_open(void *arg) {
    struct side *side = arg;
    struct race *r = side->race;
    md_registry reg;
    step_give(r->ready);
    step_take(r->go);
    int rc = md_elect(numbered(side->number), SIZE, &reg);
    if (rc == 0) join(reg, 0, MD_PEER);
    if (rc) EQ(rc, MD_EEDITIONS);
    md__add32(rc ? &r->refused : &r->won, 1);
    step_give(r->ready);
    step_take(r->end); /* all live until the last of them knows */
}

TEST(of_racing_editions_so_many_come_to_live) {
    enum { SIDES = MANY + 5 };
    for (int round = 0; round < rounds(20); round++) {
        struct race *r = shared(sizeof *r);
        pid_t pid[SIDES];
        *r = (struct race){.ready = step_make(), .go = step_make(), .end = step_make()};
        for (int i = 0; i < SIDES; i++) pid[i] = child(race_to_open, &(struct side){r, i});
        for (int i = 0; i < SIDES; i++) CHECK(step_take(r->ready));
        for (int i = 0; i < SIDES; i++) step_give(r->go);
        for (int i = 0; i < SIDES; i++) CHECK(step_take(r->ready));
        EQ(md__read32(&r->won), MANY);
        EQ(md__read32(&r->refused), SIDES - MANY);
        for (int i = 0; i < SIDES; i++) step_give(r->end);
        for (int i = 0; i < SIDES; i++) EQ(reap(pid[i]), 0);
        for (int i = 0; i < SIDES; i++) md_reap(numbered(i));
        step_free(r->ready);
        step_free(r->go);
        step_free(r->end);
        munmap(r, sizeof *r);
    }
}

TEST(a_registry_says_when_it_was_made) {
    md_stats s;
    md_inspection seen;
    size_t count;
    int64_t before = md_now();
    struct main_member m = open_edition(edition("1"));
    int64_t after = md_now();
    OK(md_stat(m.reg, &s));
    CHECK(before <= s.made && s.made <= after);
    OK(md_inspect(edition("1"), &seen, NULL, 0, &count));
    EQ(seen.stats.made, s.made);
    leave(m);
}

static void open_with_braces(void *arg) {
    (void)arg;
    md_registry reg, same;
    EQ(md_open_default("elect:shop@{env:RELEASE}", &reg), MD_EBRACES);
    EQ(md_open_default("cluster:redis:host/0?run=shop@{dist:shop}", &reg), MD_EBRACES);
    EQ(md_open_default("shop}", &reg), MD_EBRACES);
    OK(md_open_default(NULL, &reg));
    OK(md_open_default("elect:shop@{env:RELEASE}", &same)); /* the one that is open */
    EQ(same, reg);
}

TEST(the_default_registry_has_no_braces_in_its_address) {
    EQ(reap(child(open_with_braces, NULL)), 0);
}

int main(void) {
    snprintf(name, sizeof name, "e%d", (int)getpid());
    RUN(each_character_is_allowed_in_an_edition_or_it_is_not);
    RUN(an_edition_may_fill_the_name_and_not_more);
    RUN(editions_share_nothing_and_each_ends_with_its_last_member);
    RUN(so_many_editions_are_alive_and_no_more);
    RUN(of_racing_editions_so_many_come_to_live);
    RUN(a_registry_says_when_it_was_made);
    RUN(the_default_registry_has_no_braces_in_its_address);
    return test_done();
}
