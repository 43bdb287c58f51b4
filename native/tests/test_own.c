/* test_own.c - the facts of any member: those for itself, and those on which all agree. */
#include "test.h"

enum { SMALL = 1 << 20, EACH = 2000 };

static int put_own(md_registry reg, uint64_t member, uint32_t kind, uint32_t rule, const char *name,
                   const char *body, md_record *out) {
    char buf[BUF];
    int rc = md_register(reg, member, kind, rule, 0, name, strlen(name), body, strlen(body),
                         "own.c:1", 7, buf, sizeof buf);
    if (out && (rc == 0 || rc == MD_EEXIST)) memcpy(out, buf, sizeof *out);
    return rc;
}

static int choose(md_registry reg, uint64_t member, const char *body, md_record *out) {
    return put_own(reg, member, MD_CHOICE, MD_UNIQUE, "tile", body, out);
}

static int put_type(md_registry reg, uint64_t member, const char *name, const char *body,
                    md_record *out) {
    return put_own(reg, member, MD_TYPE, MD_UNIQUE, name, body, out);
}

/* How many facts of a kind are live. */
static uint64_t live(md_registry reg, uint32_t kind) {
    char buf[65536];
    size_t size;
    uint64_t count = 0;
    OK(md_list_since(reg, kind, UINT64_MAX, buf, sizeof buf, &size, &count));
    return count;
}

TEST(each_member_has_a_type_of_its_own_and_only_one) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t worker = join(m.reg, 1, MD_WORKER);
    md_record first, other, in_the_way;
    OK(put_type(m.reg, m.member, "np.ndarray", "CPU", &first));
    OK(put_type(m.reg, worker, "np.ndarray", "CUDA", &other));
    EQ(put_type(m.reg, worker, "np.ndarray", "CPU", &in_the_way), MD_EEXIST);
    EQ(memcmp(&in_the_way, &other, sizeof other), 0);
    EQ(put_type(m.reg, m.member, "np.ndarray", "CUDA", &in_the_way), MD_EEXIST);
    EQ(memcmp(&in_the_way, &first, sizeof first), 0);
    EQ(live(m.reg, MD_TYPE), 2);
    EQ(other.interp == 1 && other.origin == 0 && other.reserved == 0, 1);
    check_whole(m.reg);
    OK(md_leave(m.reg, worker));
    close_main(m);
}

TEST(the_newest_type_of_a_member_is_in_effect_and_the_one_before_returns) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t worker = join(m.reg, 1, MD_WORKER);
    char buf[BUF];
    md_record first, second, found;
    OK(put_own(m.reg, worker, MD_TYPE, MD_STACK, "t", "CPU", &first));
    OK(put_own(m.reg, worker, MD_TYPE, MD_STACK, "t", "CUDA", &second));
    OK(md_find(m.reg, MD_TYPE, 0, "t", 1, buf, sizeof buf));
    memcpy(&found, buf, sizeof found);
    EQ(found.seq, second.seq);
    OK(md_strike(m.reg, worker, second.ref, second.seq));
    OK(md_find(m.reg, MD_TYPE, 0, "t", 1, buf, sizeof buf));
    memcpy(&found, buf, sizeof found);
    EQ(found.seq, first.seq);
    OK(md_leave(m.reg, worker));
    close_main(m);
}

TEST(of_choices_the_first_member_decides_and_the_others_are_told_what) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t one = join(m.reg, 1, MD_WORKER), two = join(m.reg, 2, MD_WORKER);
    md_record first, in_the_way;
    OK(choose(m.reg, one, "64", &first));
    EQ(choose(m.reg, two, "128", &in_the_way), MD_EEXIST);
    EQ(memcmp(&in_the_way, &first, sizeof first), 0);
    EQ(choose(m.reg, m.member, "64", NULL), MD_EEXIST);
    EQ(choose(m.reg, one, "64", NULL), MD_EEXIST);
    EQ(live(m.reg, MD_CHOICE), 1);
    check_whole(m.reg);
    close_main(m);
}

TEST(a_choice_outlives_its_member_and_any_member_withdraws_it) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t one = join(m.reg, 1, MD_WORKER), two = join(m.reg, 2, MD_WORKER);
    md_record r;
    OK(choose(m.reg, one, "64", &r));
    OK(md_leave(m.reg, one));
    EQ(live(m.reg, MD_CHOICE), 1);
    check_whole(m.reg);
    EQ(choose(m.reg, join(m.reg, 1, MD_WORKER), "128", NULL), MD_EEXIST); /* in the same slot */
    OK(md_strike(m.reg, two, r.ref, r.seq));
    EQ(md_strike(m.reg, two, r.ref, r.seq), MD_EROLE); /* as for any fact that is gone */
    OK(choose(m.reg, two, "128", NULL));
    check_whole(m.reg);
    close_main(m);
}

TEST(of_two_main_members_the_first_to_leave_leaves_its_choices) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t host = join(m.reg, MD_HOST, MD_MAIN);
    OK(choose(m.reg, host, "64", NULL));
    OK(put((struct main_member){m.reg, host}, MD_UNIQUE, "f", KEY, "a kernel", NULL));
    OK(md_leave(m.reg, host));
    EQ(live(m.reg, 0), 1);
    EQ(live(m.reg, MD_CHOICE), 1);
    close_main(m);
}

static int claim(md_registry reg, uint64_t member) {
    char buf[BUF];
    return md_claim(reg, member, "tile", 4, "own.c:2", 7, buf, sizeof buf);
}

static int await_choice(md_registry reg, uint64_t member, int64_t deadline, md_wait_stats *stats) {
    char buf[BUF];
    int rc;
    do
        rc = md_await_or_elect(reg, member, MD_CHOICE, 0, 1, "tile", 4, deadline, 0, buf,
                               sizeof buf, stats);
    while (rc == MD_EINTR);
    return rc;
}

TEST(beside_a_main_member_a_claim_is_a_turn_and_no_right_to_register) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t one = join(m.reg, 1, MD_WORKER), two = join(m.reg, 2, MD_WORKER);
    md_wait_stats stats = {0};
    OK(put(m, MD_UNIQUE, "tile::f", KEY, "a kernel", NULL));
    OK(claim(m.reg, one));
    OK(claim(m.reg, one));
    EQ(claim(m.reg, two), MD_EEXIST);
    EQ(claim(m.reg, m.member), MD_EEXIST);
    check_whole(m.reg);
    EQ(put((struct main_member){m.reg, one}, MD_STACK, "tile::g", KEY, "b", NULL), MD_EROLE);
    EQ(await_choice(m.reg, one, MD_FOREVER, &stats), MD_EELECTED);
    EQ(await_choice(m.reg, two, md_now(), &stats), MD_ETIMEDOUT);
    OK(md_release(m.reg, one, "tile", 4));
    EQ(md_release(m.reg, one, "tile", 4), MD_ENOENT);
    EQ(await_choice(m.reg, two, MD_FOREVER, &stats), MD_EELECTED);
    OK(choose(m.reg, two, "64", NULL));
    OK(await_choice(m.reg, m.member, MD_FOREVER, &stats));
    OK(md_leave(m.reg, two));
    EQ(await_choice(m.reg, m.member, MD_FOREVER, &stats), 0);
    OK(md_release(m.reg, m.member, "tile", 4));
    EQ(live(m.reg, MD_CLAIM), 0);
    EQ(live(m.reg, 0), 2); /* no end of a claim took a fact along */
    check_whole(m.reg);
    OK(md_leave(m.reg, m.member));
    EQ(claim(m.reg, one), MD_ECLOSED);
    OK(md_close(m.reg));
}

TEST(only_md_release_ends_a_claim_beside_a_main_member) {
    struct main_member m = open_main(NULL, SMALL);
    char buf[BUF];
    md_record r;
    OK(claim(m.reg, m.member));
    OK(md_find(m.reg, MD_CLAIM, 0, "tile", 4, buf, sizeof buf));
    memcpy(&r, buf, sizeof r);
    EQ(md_strike(m.reg, m.member, r.ref, r.seq), MD_EROLE);
    EQ(live(m.reg, MD_CLAIM), 1);
    close_main(m);
}

TEST(only_its_own_member_strikes_it) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t worker = join(m.reg, 1, MD_WORKER), other = join(m.reg, 2, MD_WORKER);
    md_record mine, mains;
    OK(put_type(m.reg, worker, "t", "CPU", &mine));
    OK(put_type(m.reg, m.member, "t", "CPU", &mains));
    EQ(md_strike(m.reg, m.member, mine.ref, mine.seq), MD_EROLE);
    EQ(md_strike(m.reg, other, mine.ref, mine.seq), MD_EROLE);
    EQ(md_strike(m.reg, worker, mains.ref, mains.seq), MD_EROLE);
    EQ(live(m.reg, MD_TYPE), 2);
    OK(md_strike(m.reg, worker, mine.ref, mine.seq));
    EQ(md_strike(m.reg, worker, mine.ref, mine.seq), MD_EROLE); /* as for any fact that is gone */
    EQ(live(m.reg, MD_TYPE), 1);
    close_main(m);
}

TEST(a_number_that_is_no_kind_is_refused_and_a_worker_registers_those_of_any_member) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t worker = join(m.reg, 1, MD_WORKER);
    for (uint32_t kind = 0; kind < MD_KINDS + 2; kind++) {
        bool mains = kind >= MD_LIBRARY && kind < MD_ANY_MEMBER && kind != MD_CLAIM;
        bool own = kind >= MD_ANY_MEMBER && kind < MD_KINDS; /* or agreed on */
        EQ(put_own(m.reg, m.member, kind, MD_STACK, "a", "", NULL), mains || own ? 0 : MD_EINVAL);
        EQ(put_own(m.reg, worker, kind, MD_STACK, "a", "", NULL), own     ? 0
                                                                  : mains ? MD_EROLE
                                                                          : MD_EINVAL);
    }
    close_main(m);
}

TEST(they_go_with_the_member_that_leaves_and_no_others) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t one = join(m.reg, 1, MD_WORKER), two = join(m.reg, 2, MD_WORKER);
    md_record of_two;
    OK(put(m, MD_UNIQUE, "t", KEY, "a kernel", NULL));
    OK(put_type(m.reg, one, "t", "CPU", NULL));
    OK(put_type(m.reg, two, "t", "CPU", &of_two));
    OK(put_type(m.reg, one, "u", "CPU", NULL));
    OK(md_leave(m.reg, one));
    EQ(live(m.reg, 0), 2);
    EQ(live(m.reg, MD_TYPE), 1);
    check_whole(m.reg);
    OK(md_leave(m.reg, two));
    EQ(live(m.reg, 0), 1);
    close_main(m);
}

struct worker {
    char address[MD_MAX_ADDRESS];
    struct step ready;
    uint32_t role;
};

static void register_and_sleep(void *arg) {
    struct worker *w = arg;
    struct main_member m = attach_as(w->address, w->role);
    OK(put_type(m.reg, m.member, "t", "CUDA", NULL));
    OK(put_type(m.reg, m.member, "u", "CUDA", NULL));
    int rc = claim(m.reg, m.member), chosen = choose(m.reg, m.member, "64", NULL);
    CHECK(rc == 0 && (chosen == 0 || chosen == MD_EEXIST));
    step_give(w->ready);
    for (;;) pause();
}

static void dies_and_leaves_none(md_registry reg, uint64_t member, uint32_t role) {
    struct worker *w = shared(sizeof *w);
    w->ready = step_make();
    w->role = role;
    OK(md_address(reg, w->address, sizeof w->address));
    OK(put_type(reg, member, "t", "CPU", NULL));
    pid_t pid = child(register_and_sleep, w);
    CHECK(step_take(w->ready));
    EQ(live(reg, MD_TYPE), 3);
    EQ(live(reg, MD_CLAIM), 1);
    kill_now(pid);
    check_whole(reg);
    /* The next one that joins finds the death, and so does the next that registers such a fact. */
    uint64_t another = join(reg, 7, role);
    EQ(live(reg, MD_TYPE), 1);
    EQ(live(reg, MD_CLAIM), 0);
    EQ(live(reg, MD_CHOICE), 1); /* what it chose stays */
    check_whole(reg);
    pid = child(register_and_sleep, w);
    CHECK(step_take(w->ready));
    kill_now(pid);
    OK(put_type(reg, another, "t", "CPU", NULL));
    EQ(live(reg, MD_TYPE), 2);
    EQ(live(reg, MD_CLAIM), 0);
    EQ(live(reg, MD_CHOICE), 1);
    OK(md_leave(reg, another));
    step_free(w->ready);
    munmap(w, sizeof *w);
}

TEST(those_of_a_dead_worker_are_struck_by_the_next_who_joins_or_registers_one) {
    struct main_member m = open_main(NULL, SMALL);
    dies_and_leaves_none(m.reg, m.member, MD_WORKER);
    close_main(m);
}

/* Overwritten words: such a fact is nobody's. */
TEST(those_of_a_member_that_cannot_be_one_are_told_and_left) {
    struct main_member m = open_main(NULL, SMALL);
    struct worker *w = shared(sizeof *w);
    md_record r;
    w->ready = step_make();
    w->role = MD_WORKER;
    OK(md_address(m.reg, w->address, sizeof w->address));
    OK(put_type(m.reg, m.member, "t", "CPU", &r));
    pid_t pid = child(register_and_sleep, w);
    CHECK(step_take(w->ready));
    kill_now(pid);
    md__reg *reg = inner(m.reg);
    struct md__fact *fact = md__at(reg, (uint32_t)r.ref, sizeof *fact);
    struct md__member *slot = md__member(reg, (uint32_t)m.member);
    md__poke64(&fact->member, MD_MAX_MEMBERS + 5);
    EQ(md_check(m.reg, NULL, 0), MD_EDAMAGED);
    OK(md_leave(m.reg, join(m.reg, 7, MD_WORKER))); /* who joins sweeps */
    EQ(live(m.reg, MD_TYPE), 1);
    md__poke64(&fact->member, m.member);
    check_whole(m.reg);
    const uint64_t other = m.member ^ 1ull << 32;
    md__poke64(&fact->member, other);
    EQ(md_check(m.reg, NULL, 0), MD_EDAMAGED);
    md__poke64(&fact->member, m.member);
    md__poke32(&slot->state, MD__FREE);
    EQ(md_check(m.reg, NULL, 0), MD_EDAMAGED);
    md__poke32(&slot->state, MD__LIVE);
    check_whole(m.reg);
    step_free(w->ready);
    munmap(w, sizeof *w);
    close_main(m);
}

TEST(in_a_team_they_belong_to_members_and_not_to_a_namespace) {
    struct main_member m = {0};
    char buf[BUF];
    OK(md_elect(NULL, SMALL, &m.reg));
    m.member = join(m.reg, 0, MD_PEER);
    OK(put_type(m.reg, m.member, "shop::t", "CPU", NULL)); /* without a claim */
    OK(md_claim(m.reg, m.member, "shop", 4, "w", 1, buf, sizeof buf));
    OK(put(m, MD_UNIQUE, "shop::t", KEY, "a kernel", NULL));
    check_whole(m.reg);
    OK(md_release(m.reg, m.member, "shop", 4));
    EQ(live(m.reg, 0), 1);
    check_whole(m.reg);
    close_main(m);
}

TEST(in_a_team_those_of_a_dead_member_are_struck) {
    struct main_member m = {0};
    OK(md_elect(NULL, SMALL, &m.reg));
    m.member = join(m.reg, 0, MD_PEER);
    dies_and_leaves_none(m.reg, m.member, MD_PEER);
    close_main(m);
}

struct decider {
    char address[MD_MAX_ADDRESS];
    struct step ready;
};

static void decide_for_ever(void *arg) {
    struct decider *d = arg;
    struct main_member m = attach_worker(d->address);
    OK(claim(m.reg, m.member));
    step_give(d->ready);
    for (;;) pause();
}

struct turn {
    md_registry reg;
    uint64_t member;
    md_wait_stats stats;
    int rc;
};

static void *await_turn(void *arg) {
    struct turn *t = arg;
    t->rc = await_choice(t->reg, t->member, MD_FOREVER, &t->stats);
    return NULL;
}

TEST(whoever_waits_for_a_choice_hears_of_its_deciders_death_and_is_the_next) {
    struct main_member m = open_main(NULL, SMALL);
    struct decider *d = shared(sizeof *d);
    struct turn t = {.reg = m.reg, .member = join(m.reg, 1, MD_WORKER)};
    pthread_t thread;
    d->ready = step_make();
    OK(md_address(m.reg, d->address, sizeof d->address));
    pid_t pid = child(decide_for_ever, d);
    CHECK(step_take(d->ready));
    EQ(claim(m.reg, t.member), MD_EEXIST);
    pthread_create(&thread, NULL, await_turn, &t);
    until_waiting(m.reg, 1);
    kill_now(pid);
    pthread_join(thread, NULL);
    EQ(t.rc, MD_EELECTED);
    EQ(t.stats.by_lease, 1);
    EQ(live(m.reg, MD_CLAIM), 1);
    check_whole(m.reg);
    step_free(d->ready);
    munmap(d, sizeof *d);
    close_main(m);
}

static void be_the_main_member(void *arg) {
    struct decider *d = arg;
    struct main_member m = open_main(NULL, SMALL);
    OK(md_address(m.reg, d->address, sizeof d->address));
    step_give(d->ready);
    for (;;) pause();
}

TEST(whoever_waits_for_a_choice_hears_of_the_main_members_death_though_its_decider_lives) {
    struct decider *d = shared(sizeof *d);
    d->ready = step_make();
    pid_t pid = child(be_the_main_member, d);
    CHECK(step_take(d->ready));
    struct main_member one = attach_worker(d->address);
    struct turn t = {.reg = one.reg, .member = join(one.reg, 1, MD_WORKER)};
    pthread_t thread;
    OK(claim(one.reg, one.member));
    EQ(claim(one.reg, t.member), MD_EEXIST);
    pthread_create(&thread, NULL, await_turn, &t);
    until_waiting(one.reg, 1);
    kill_now(pid);
    pthread_join(thread, NULL);
    EQ(t.rc, MD_EDIED);
    step_free(d->ready);
    munmap(d, sizeof *d);
    OK(md_close(one.reg));
}

struct many {
    char address[MD_MAX_ADDRESS];
    int n;
};

static void register_many(void *arg) {
    struct many *w = arg;
    char name[32];
    struct main_member m = attach_worker(w->address);
    for (int i = 0; i < EACH; i++) {
        snprintf(name, sizeof name, "t%d", i % 50);
        md_record r;
        OK(put_type(m.reg, m.member, name, w->n % 2 ? "CPU" : "CUDA", &r));
        OK(md_strike(m.reg, m.member, r.ref, r.seq));
    }
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

TEST(processes_that_register_them_at_once_do_not_disturb_each_other) {
    struct main_member m = open_main(NULL, SMALL);
    struct many each[4];
    pid_t pid[4];
    for (int i = 0; i < 4; i++) {
        each[i].n = i;
        OK(md_address(m.reg, each[i].address, sizeof each[i].address));
        pid[i] = child(register_many, &each[i]);
    }
    for (int i = 0; i < 4; i++) EQ(reap(pid[i]), 0);
    EQ(live(m.reg, 0), 0);
    close_main(m);
}

static void *await_type(void *arg) {
    struct main_member *m = arg;
    char buf[BUF];
    md_wait_stats stats = {0};
    OK(md_await(m->reg, m->member, MD_TYPE, 0, 2, "t", 1, MD_FOREVER, 0, buf, sizeof buf, &stats));
    return NULL;
}

TEST(a_wait_for_them_counts_those_of_all_members) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t worker = join(m.reg, 1, MD_WORKER);
    pthread_t thread;
    pthread_create(&thread, NULL, await_type, &m);
    until_waiting(m.reg, 1);
    OK(put_type(m.reg, worker, "t", "CPU", NULL));
    OK(put_type(m.reg, m.member, "t", "CPU", NULL));
    pthread_join(thread, NULL);
    close_main(m);
}

TEST(when_the_main_member_has_left_no_member_registers_more_of_them) {
    struct main_member m = open_main(NULL, SMALL);
    uint64_t worker = join(m.reg, 1, MD_WORKER);
    OK(md_leave(m.reg, m.member));
    EQ(put_type(m.reg, worker, "t", "CPU", NULL), MD_ECLOSED);
    OK(md_close(m.reg));
}

int main(void) {
    RUN(each_member_has_a_type_of_its_own_and_only_one);
    RUN(the_newest_type_of_a_member_is_in_effect_and_the_one_before_returns);
    RUN(of_choices_the_first_member_decides_and_the_others_are_told_what);
    RUN(a_choice_outlives_its_member_and_any_member_withdraws_it);
    RUN(of_two_main_members_the_first_to_leave_leaves_its_choices);
    RUN(beside_a_main_member_a_claim_is_a_turn_and_no_right_to_register);
    RUN(only_md_release_ends_a_claim_beside_a_main_member);
    RUN(whoever_waits_for_a_choice_hears_of_its_deciders_death_and_is_the_next);
    RUN(whoever_waits_for_a_choice_hears_of_the_main_members_death_though_its_decider_lives);
    RUN(only_its_own_member_strikes_it);
    RUN(a_number_that_is_no_kind_is_refused_and_a_worker_registers_those_of_any_member);
    RUN(they_go_with_the_member_that_leaves_and_no_others);
    RUN(those_of_a_dead_worker_are_struck_by_the_next_who_joins_or_registers_one);
    RUN(those_of_a_member_that_cannot_be_one_are_told_and_left);
    RUN(in_a_team_they_belong_to_members_and_not_to_a_namespace);
    RUN(in_a_team_those_of_a_dead_member_are_struck);
    RUN(processes_that_register_them_at_once_do_not_disturb_each_other);
    RUN(a_wait_for_them_counts_those_of_all_members);
    RUN(when_the_main_member_has_left_no_member_registers_more_of_them);
    return test_done();
}
