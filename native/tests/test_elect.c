/* test_elect.c - registries without a main member: claims, their queue, the next registrar. */
#include <sys/file.h>

#include "test.h"

enum { TEAM = MD__MIN_CAPACITY + 262144 };

static const char *team_name(void) {
    static char name[64];
    static int count;
    snprintf(name, sizeof name, "elect-%d-%d", (int)getpid(), count++);
    return name;
}

static struct main_member open_peer(const char *name) {
    struct main_member m = {0};
    OK(md_elect(name, TEAM, &m.reg));
    m.member = join(m.reg, 0, MD_PEER);
    return m;
}

static struct main_member another(struct main_member m, int64_t interp) {
    struct main_member other = {m.reg, join(m.reg, interp, MD_PEER)};
    return other;
}

static int claim(struct main_member m, const char *space, md_record *out) {
    char buf[BUF];
    int rc = md_claim(m.reg, m.member, space, strlen(space), "t.c:2", 5, buf, sizeof buf);
    if (out && (rc == 0 || rc == MD_EEXIST)) memcpy(out, buf, sizeof *out);
    return rc;
}

static int release(struct main_member m, const char *space) {
    return md_release(m.reg, m.member, space, strlen(space));
}

static int await_counting(struct main_member m, const char *name, int64_t deadline,
                          md_wait_stats *stats) {
    char buf[BUF];
    int rc;
    do
        rc = md_await_or_elect(m.reg, m.member, MD_IMPL, KEY, 1, name, strlen(name), deadline, 0,
                               buf, sizeof buf, stats);
    while (rc == MD_EINTR);
    return rc;
}

static int await_or_elect(struct main_member m, const char *name, int64_t deadline) {
    md_wait_stats stats = {0};
    return await_counting(m, name, deadline, &stats);
}

static void leave(struct main_member m) {
    check_whole(m.reg);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

static uint64_t facts(md_registry reg) {
    md_stats s;
    OK(md_stat(reg, &s));
    EQ(s.policy, MD_POLICY_ELECT);
    return s.facts;
}

TEST(who_claims_first_registers_and_the_others_do_not) {
    struct main_member a = open_peer(NULL), b = another(a, 1);
    md_record r, first, fact;
    EQ(put(a, MD_STACK, "shop::f", KEY, "a", NULL), MD_EROLE);
    OK(claim(a, "shop", &first));
    OK(claim(a, "shop", &r));
    EQ(r.seq, first.seq);
    EQ(claim(b, "shop", &r), MD_EEXIST);
    EQ(r.seq, first.seq);
    EQ(r.kind, MD_CLAIM);
    OK(put(a, MD_STACK, "shop::f", KEY, "a", &fact));
    EQ(put(b, MD_STACK, "shop::g", KEY, "b", NULL), MD_EROLE);
    EQ(strike_out(b, &fact), MD_EROLE);
    OK(claim(b, "shoppe", NULL)); /* another namespace, though it begins with the same letters */
    OK(put(b, MD_STACK, "shoppe::f", KEY, "b", NULL));
    OK(put(a, MD_STACK, "shop", KEY, "of the namespace's own name", NULL));
    EQ(put(a, MD_STACK, "shoppe::g", KEY, "a", NULL), MD_EROLE);
    EQ(facts(a.reg), 6);
    check_whole(a.reg);
    OK(md_leave(b.reg, b.member));
    EQ(facts(a.reg), 3);
    leave(a);
}

TEST(a_claim_needs_a_namespace) {
    struct main_member a = open_peer(NULL);
    char long_name[MD_MAX_NAME + 2], buf[BUF];
    memset(long_name, 'n', sizeof long_name);
    EQ(claim(a, "shop::f", NULL), MD_EINVAL);
    EQ(claim(a, "shop::", NULL), MD_EINVAL);
    EQ(release(a, "shop::"), MD_EINVAL);
    EQ(claim(a, "", NULL), MD_EINVAL);
    EQ(md_claim(a.reg, a.member, NULL, 4, "", 0, buf, sizeof buf), MD_EINVAL);
    EQ(md_claim(a.reg, a.member, "shop", 4, NULL, 1, buf, sizeof buf), MD_EINVAL);
    EQ(md_claim(a.reg, a.member, long_name, MD_MAX_NAME + 1, "", 0, buf, sizeof buf), MD_ETOOLONG);
    EQ(md_claim(a.reg, a.member, "shop", 4, "", MD_MAX_WHERE + 1, buf, sizeof buf), MD_ETOOLONG);
    EQ(md_claim(a.reg, a.member, "shop", 4, "", 0, buf, 8), MD_ENOBUFS);
    EQ(md_claim(a.reg, a.member + 1, "shop", 4, "", 0, buf, sizeof buf), MD_ECLOSED);
    EQ(md_claim(0, a.member, "shop", 4, "", 0, buf, sizeof buf), MD_ECLOSED);
    EQ(md_release(a.reg, a.member, "shop::f", 7), MD_EINVAL);
    EQ(md_release(a.reg, a.member, long_name, MD_MAX_NAME + 1), MD_ETOOLONG);
    EQ(md_release(0, a.member, "shop", 4), MD_ECLOSED);
    EQ(release(a, "shop"), MD_ENOENT);
    EQ(md_register(a.reg, a.member, MD_CLAIM, MD_STACK, 0, "shop", 4, "", 0, "", 0, buf, BUF),
       MD_EINVAL);
    EQ(facts(a.reg), 0);
    leave(a);
}

TEST(facts_stay_as_long_as_anybody_has_a_claim) {
    struct main_member a = open_peer(NULL), b = another(a, 1);
    md_record fact, own;
    OK(claim(a, "shop", &own));
    EQ(claim(b, "shop", NULL), MD_EEXIST);
    OK(put(a, MD_STACK, "shop::f", KEY, "a", &fact));
    EQ(strike_out(a, &fact), MD_EROLE);
    EQ(strike_out(a, &own), MD_EROLE);
    OK(release(a, "shop"));
    EQ(release(a, "shop"), MD_ENOENT);
    OK(find(a.reg, "shop::f", KEY, NULL, 0));
    EQ(put(a, MD_STACK, "shop::g", KEY, "a", NULL), MD_EROLE);
    OK(put(b, MD_STACK, "shop::g", KEY, "b", NULL));
    EQ(claim(a, "shop", NULL), MD_EEXIST); /* it is now the last one */
    OK(release(a, "shop"));
    EQ(strike_out(a, &fact), MD_EROLE);
    OK(strike_out(b, &fact)); /* which another member had registered */
    EQ(facts(b.reg), 2);
    check_whole(b.reg);
    OK(release(b, "shop"));
    EQ(facts(b.reg), 0);
    EQ(find(b.reg, "shop::g", KEY, NULL, 0), MD_ENOENT);
    OK(md_leave(b.reg, b.member));
    leave(a);
}

TEST(a_claim_that_cannot_be_answered_is_not_made) {
    struct main_member a = open_peer(NULL), b = another(a, 1);
    char where[1000], buf[512];
    memset(where, 'w', sizeof where);
    OK(claim(a, "shop", NULL));
    OK(md_claim(a.reg, a.member, "shoppe", 6, where, sizeof where, (char[BUF]){0}, BUF));
    EQ(md_claim(b.reg, b.member, "shoppe", 6, "", 0, buf, sizeof buf), MD_ENOBUFS);
    EQ(facts(a.reg), 2);
    OK(release(a, "shoppe"));
    OK(md_claim(b.reg, b.member, "shoppe", 6, "", 0, buf, sizeof buf));
    EQ(facts(a.reg), 2);
    OK(md_leave(b.reg, b.member));
    leave(a);
}

TEST(who_comes_after_in_the_same_slot_is_somebody_else) {
    struct main_member a = open_peer(NULL), b = another(a, 1), again;
    OK(claim(b, "shop", NULL));
    OK(put(b, MD_STACK, "shop::f", KEY, "b", NULL));
    EQ(claim(a, "shop", NULL), MD_EEXIST);
    OK(md_leave(b.reg, b.member));
    again = another(a, 1);
    EQ((uint32_t)again.member, (uint32_t)b.member);
    EQ(put(again, MD_STACK, "shop::g", KEY, "again", NULL), MD_EROLE);
    EQ(put(b, MD_STACK, "shop::g", KEY, "b", NULL), MD_ECLOSED);
    EQ(claim(b, "shop", NULL), MD_ECLOSED);
    EQ(release(b, "shop"), MD_ECLOSED);
    OK(put(a, MD_STACK, "shop::g", KEY, "a", NULL));
    EQ(claim(again, "shop", NULL), MD_EEXIST);
    OK(md_leave(again.reg, again.member));
    leave(a);
}

/* Which cannot be in a whole registry: a claim ends with its member. */
TEST(a_claim_whose_member_is_no_more_is_not_taken_for_one_of_who_has_its_slot) {
    struct main_member a = open_peer(NULL), b = another(a, 1), next;
    OK(claim(b, "shop", NULL));
    OK(put(b, MD_STACK, "shop::f", KEY, "b", NULL));
    md__reg *reg;
    OK(md__enter(b.reg, &reg));
    md__free_member(md__member(reg, (uint32_t)b.member));
    md__exit(reg);
    next = another(a, 1);
    EQ((uint32_t)next.member, (uint32_t)b.member);
    CHECK(next.member != b.member);
    OK(claim(next, "shoppe", NULL));
    OK(md_leave(next.reg, next.member));
    EQ(facts(a.reg), 2);
    OK(find(a.reg, "shop::f", KEY, NULL, 0));
    OK(md_leave(a.reg, a.member));
    OK(md_close(a.reg));
}

/* Joins the queue of a namespace, and dies there unnoticed. */
static void queue_up_and_die(void *arg) {
    struct main_member *m = arg, mine = {m->reg, join(m->reg, 0, MD_PEER)};
    EQ(claim(mine, "shop", NULL), MD_EEXIST);
    kill(getpid(), SIGKILL);
}

TEST(who_is_alone_with_the_claims_of_the_dead_can_strike) {
    struct main_member a = open_peer(NULL);
    md_record fact;
    md_stats s;
    OK(claim(a, "shop", NULL));
    OK(put(a, MD_STACK, "shop::f", KEY, "a", &fact));
    EQ(reap(child(queue_up_and_die, &a)), -SIGKILL);
    OK(md_stat(a.reg, &s));
    EQ(s.members, 2); /* not swept yet */
    OK(strike_out(a, &fact));
    EQ(facts(a.reg), 1);
    leave(a);
}

struct turn {
    struct main_member m;
    md_wait_stats stats;
    int rc;
    md__u32 tid;
    pthread_t thread;
};

static void *await_turn(void *arg) {
    struct turn *t = arg;
    md__publish32(&t->tid, (uint32_t)syscall(SYS_gettid));
    t->rc = await_counting(t->m, "shop::f", MD_FOREVER, &t->stats);
    return NULL;
}

static void start_turn(struct turn *t, struct main_member m) {
    uint32_t before = waiters(m.reg);
    t->m = m;
    pthread_create(&t->thread, NULL, await_turn, t);
    until_waiting(m.reg, before + 1);
    until_asleep(getpid(), (pid_t)md__read32(&t->tid));
}

static int end_turn(struct turn *t) {
    pthread_join(t->thread, NULL);
    return t->rc;
}

TEST(the_next_one_is_told_when_the_registrar_releases_leaves_or_registers) {
    struct main_member a = open_peer(NULL), b = another(a, 1), c = another(a, 2);
    struct turn of_b = {0}, of_c = {0};
    OK(claim(a, "shop", NULL));
    EQ(claim(b, "shop", NULL), MD_EEXIST);
    EQ(claim(c, "shop", NULL), MD_EEXIST);
    EQ(await_or_elect(a, "shop::f", MD_FOREVER), MD_EELECTED);
    EQ(await_or_elect(b, "shop::f", md_now()), MD_ETIMEDOUT);
    start_turn(&of_b, b);
    start_turn(&of_c, c);
    OK(release(a, "shop"));
    EQ(end_turn(&of_b), MD_EELECTED);
    OK(md_leave(b.reg, b.member));
    EQ(end_turn(&of_c), MD_EELECTED);
    EQ(claim(a, "shop", NULL), MD_EEXIST);
    start_turn(&of_b, a);
    OK(put(c, MD_STACK, "shop::f", KEY, "c", NULL));
    OK(end_turn(&of_b));
    OK(await_or_elect(c, "shop::f", MD_FOREVER)); /* a fact that exists needs no registrar */
    OK(md_leave(c.reg, c.member));
    leave(a);
}

TEST(who_has_no_claim_just_waits) {
    struct main_member a = open_peer(NULL), b = another(a, 1);
    struct waiter w = {.deadline = 0};
    EQ(await_or_elect(a, "shop::f", md_now() + 1000000), MD_ETIMEDOUT);
    waiter_start(&w, b.reg, b.member, "shop::f");
    OK(claim(a, "shop", NULL));
    OK(put(a, MD_STACK, "shop::f", KEY, "a", NULL));
    OK(waiter_end(&w));
    OK(md_leave(b.reg, b.member));
    leave(a);
}

/* A slice may end before the claim is made, but not each time: the claim is what ends the wait. */
TEST(who_waits_is_told_when_its_own_member_claims) {
    struct main_member a = open_peer(NULL);
    uint32_t slices = 1;
    for (int i = 0; i < 20 && slices; i++) {
        struct turn t = {0};
        start_turn(&t, a);
        OK(claim(a, "shop", NULL));
        EQ(end_turn(&t), MD_EELECTED);
        slices = t.stats.slices;
        OK(release(a, "shop"));
    }
    EQ(slices, 0);
    leave(a);
}

/* --- processes -------------------------------------------------------------------------------- */

struct stage {
    char name[64];
    struct step ready, stop;
};

/* Claims, registers half of its facts, and stays until it is killed or told to leave. */
static void be_registrar(void *arg) {
    struct stage *s = arg;
    struct main_member m = open_peer(s->name);
    OK(claim(m, "shop", NULL));
    OK(put(m, MD_STACK, "shop::e", KEY, "first", NULL));
    step_give(s->ready);
    step_take(s->stop);
    leave(m);
}

static struct stage stage_make(void) {
    struct stage s = {.ready = step_make(), .stop = step_make()};
    snprintf(s.name, sizeof s.name, "%s", team_name());
    return s;
}

static void stage_free(struct stage s) {
    step_free(s.ready);
    step_free(s.stop);
}

TEST(a_survivor_is_told_at_once_and_goes_on_where_the_dead_one_stopped) {
    int64_t ns[60];
    for (int i = 0; i < 60; i++) {
        struct stage s = stage_make();
        struct turn t = {0};
        pid_t pid = child(be_registrar, &s);
        step_take(s.ready);
        struct main_member b = open_peer(s.name);
        EQ(claim(b, "shop", NULL), MD_EEXIST);
        OK(await_or_elect(b, "shop::e", MD_FOREVER));
        start_turn(&t, b);
        int64_t killed = md_now();
        kill(pid, SIGKILL);
        EQ(end_turn(&t), MD_EELECTED);
        ns[i] = md_now() - killed;
        EQ(reap(pid), -SIGKILL);
        OK(find(b.reg, "shop::e", KEY, NULL, 0));
        OK(put(b, MD_STACK, "shop::f", KEY, "second", NULL));
        EQ(facts(b.reg), 3);
        leave(b);
        stage_free(s);
    }
    print_latency("from the kill to the next one's turn", ns, 60);
}

/* As be_registrar, but it cannot get the lock when it closes. */
static void leave_without_the_lock(void *arg) {
    struct stage *s = arg;
    struct main_member m = open_peer(s->name);
    OK(claim(m, "shop", NULL));
    OK(put(m, MD_STACK, "shop::e", KEY, "first", NULL));
    step_give(s->ready);
    step_take(s->stop);
    md__publish32(&md__header(inner(m.reg))->state, MD__DAMAGED);
    OK(md_close(m.reg));
    step_give(s->ready);
    step_take(s->stop);
}

TEST(who_leaves_without_the_lock_touches_no_facts_and_is_swept) {
    struct stage s = stage_make();
    pid_t pid = child(leave_without_the_lock, &s);
    step_take(s.ready);
    struct main_member b = open_peer(s.name);
    EQ(claim(b, "shop", NULL), MD_EEXIST);
    step_give(s.stop);
    step_take(s.ready); /* it is out of the team, and lives on */
    EQ(facts(b.reg), 3);
    md__publish32(&md__header(inner(b.reg))->state, MD__OPEN);
    check_whole(b.reg);
    EQ(await_or_elect(b, "shop::f", MD_FOREVER), MD_EELECTED);
    OK(put(b, MD_STACK, "shop::f", KEY, "second", NULL));
    EQ(facts(b.reg), 3);
    step_give(s.stop);
    OK(reap(pid));
    leave(b);
    stage_free(s);
}

/* Dies with the lock, after damage that no recovery can repair. */
static void spoil(void *arg) {
    struct stage *s = arg;
    struct main_member m = open_peer(s->name);
    EQ(claim(m, "shop", NULL), MD_EEXIST);
    OK(claim(m, "other", NULL));
    md__reg *reg = inner(m.reg);
    OK(md__lock(reg));
    md__header(reg)->magic[0] = 'X';
    kill(getpid(), SIGKILL);
}

TEST(a_damaged_registry_is_left_as_it_is) {
    struct stage s = stage_make();
    md_registry reg;
    struct main_member a = open_peer(s.name);
    OK(claim(a, "shop", NULL));
    EQ(reap(child(spoil, &s)), -SIGKILL);
    EQ(claim(a, "shop", NULL), MD_EDAMAGED);
    EQ(await_or_elect(a, "shop::f", MD_FOREVER), MD_EDAMAGED);
    EQ(facts(a.reg), 3);                               /* also the claims of the dead one */
    md__header(inner(a.reg))->magic[0] = MD__MAGIC[0]; /* so that its kind is still known */
    EQ(md_elect(s.name, TEAM, &reg), MD_EDAMAGED);
    EQ(md_leave(a.reg, a.member), MD_EDAMAGED);
    OK(md_close(a.reg));
    struct main_member b = open_peer(s.name); /* no member is left: it is replaced */
    EQ(facts(b.reg), 0);
    leave(b);
    stage_free(s);
}

static void *close_it(void *arg) {
    OK(md_close(*(md_registry *)arg));
    return NULL;
}

/* The main thread joins, and another one closes: then it cannot release the lease. */
static void be_parked(void *arg) {
    struct stage *s = arg;
    pthread_t thread;
    struct main_member m = open_peer(s->name);
    OK(claim(m, "shop", NULL));
    OK(put(m, MD_STACK, "shop::e", KEY, "first", NULL));
    step_give(s->ready);
    step_take(s->stop);
    pthread_create(&thread, NULL, close_it, &m.reg);
    pthread_join(thread, NULL);
    step_give(s->ready);
    step_take(s->stop);
    m = open_peer(s->name);
    EQ(claim(m, "shop", NULL), MD_EEXIST);
    step_give(s->ready);
    for (;;) pause();
}

TEST(who_has_left_is_no_registrar_though_its_lease_stays) {
    struct stage s = stage_make();
    struct turn t = {0};
    pid_t pid = child(be_parked, &s);
    step_take(s.ready);
    struct main_member b = open_peer(s.name);
    EQ(claim(b, "shop", NULL), MD_EEXIST);
    start_turn(&t, b);
    step_give(s.stop);
    EQ(end_turn(&t), MD_EELECTED);
    step_take(s.ready);
    OK(put(b, MD_STACK, "shop::f", KEY, "second", NULL));
    EQ(facts(b.reg), 3);
    step_give(s.stop);
    step_take(s.ready); /* in another slot, as the next in line */
    EQ(facts(b.reg), 4);
    kill_now(pid);
    OK(claim(b, "other", NULL));
    md_stats stats;
    OK(md_stat(b.reg, &stats));
    EQ(stats.processes, 1);
    EQ(stats.facts, 4);
    leave(b);
    stage_free(s);
}

/* A child of fork has none of its parent's claims, and its end ends no membership. */
static void be_forked(void *arg) {
    struct main_member parent = *(struct main_member *)arg, m;
    EQ(put(parent, MD_STACK, "shop::g", KEY, "child", NULL), MD_EROLE);
    EQ(claim(parent, "shop", NULL), MD_EROLE);
    EQ(release(parent, "shop"), MD_EROLE);
    m = another(parent, 0);
    EQ(put(m, MD_STACK, "shop::g", KEY, "child", NULL), MD_EROLE);
    EQ(claim(m, "shop", NULL), MD_EEXIST);
    OK(claim(m, "of the child", NULL));
}

TEST(a_forked_child_queues_up_for_itself) {
    struct main_member a = open_peer(NULL);
    OK(claim(a, "shop", NULL));
    OK(put(a, MD_STACK, "shop::f", KEY, "a", NULL));
    OK(reap(child(be_forked, &a)));
    OK(put(a, MD_STACK, "shop::g", KEY, "a", NULL));
    OK(claim(a, "shop", NULL)); /* and sweeps */
    EQ(facts(a.reg), 3);
    leave(a);
}

TEST(what_nobody_claims_any_more_is_gone_with_the_dead_one) {
    struct stage s = stage_make();
    struct main_member b = open_peer(s.name);
    pid_t pid = child(be_registrar, &s);
    step_take(s.ready);
    OK(find(b.reg, "shop::e", KEY, NULL, 0));
    kill_now(pid);
    OK(claim(b, "other", NULL)); /* unrelated, but a member that claims sweeps */
    EQ(find(b.reg, "shop::e", KEY, NULL, 0), MD_ENOENT);
    OK(claim(b, "shop", NULL));
    EQ(facts(b.reg), 2);
    leave(b);
    stage_free(s);
}

TEST(the_last_one_out_takes_the_name_along_whoever_made_it) {
    struct stage s = stage_make();
    char path[128];
    md_registry none;
    md__file_path(path, sizeof path, s.name);
    pid_t pid = child(be_registrar, &s);
    step_take(s.ready);
    struct main_member b = open_peer(s.name);
    step_give(s.stop);
    OK(reap(pid));
    OK(access(path, F_OK));
    EQ(facts(b.reg), 0); /* b never claimed it */
    struct main_member again = {0};
    OK(md_attach(s.name, 0, &again.reg));
    EQ(again.reg, b.reg);
    OK(md_close(again.reg));
    leave(b);
    EQ(access(path, F_OK), -1);
    EQ(md_attach(s.name, 0, &none), MD_ENOENT);
    stage_free(s);
}

TEST(a_team_that_was_killed_is_replaced_and_a_main_member_is_not) {
    struct stage s = stage_make();
    char address_of[MD_MAX_ADDRESS], wanted[MD_MAX_ADDRESS];
    md_registry reg;
    pid_t pid = child(be_registrar, &s);
    step_take(s.ready);
    EQ(md_create(s.name, TEAM, &reg), MD_EEXIST);
    kill_now(pid);
    EQ(md_attach(s.name, 0, &reg), MD_EDIED);
    struct main_member b = open_peer(s.name);
    EQ(facts(b.reg), 0);
    OK(md_address(b.reg, address_of, sizeof address_of));
    snprintf(wanted, sizeof wanted, "elect:%s", s.name);
    OK(strcmp(address_of, wanted));
    OK(md_attach(address_of, 0, &reg));
    EQ(reg, b.reg);
    OK(md_close(reg));
    leave(b);
    struct main_member m = open_main(s.name, TEAM);
    EQ(md_elect(s.name, TEAM, &reg), MD_EEXIST);
    close_main(m);
    stage_free(s);
}

TEST(who_found_a_team_before_it_died_does_not_bring_it_back) {
    struct stage s = stage_make();
    struct main_member late = {0};
    uint32_t role;
    pid_t pid = child(be_registrar, &s);
    step_take(s.ready);
    OK(md_attach(s.name, 0, &late.reg));
    kill_now(pid);
    pid = child(be_registrar, &s); /* its successor, under the same name */
    step_take(s.ready);
    EQ(md__read32(&md__header(inner(late.reg))->state),
       MD__CLOSED); /* it has not merely lost its name */
    EQ(md_join(late.reg, 0, &late.member, &role), MD_ECLOSED);
    OK(md_close(late.reg));
    struct main_member b = open_peer(s.name);
    EQ(claim(b, "shop", NULL), MD_EEXIST);
    step_give(s.stop);
    OK(reap(pid));
    leave(b);
    stage_free(s);
}

static void path_of(const char *name, char path[128]) {
    md__file_path(path, 128, name);
}

TEST(who_found_a_team_that_has_lost_its_name_does_not_join_it) {
    struct stage s = stage_make();
    char path[128];
    md_registry late;
    uint64_t member;
    uint32_t role;
    pid_t pid = child(be_registrar, &s);
    step_take(s.ready);
    OK(md_attach(s.name, 0, &late));
    path_of(s.name, path);
    OK(unlink(path));
    EQ(md_join(late, 0, &member, &role), MD_ECLOSED);
    OK(md_close(late));
    step_give(s.stop);
    OK(reap(pid));
    stage_free(s);
}

/* It has no members, but a process could join it. */
TEST(a_dead_teams_file_is_left_to_who_has_it_open) {
    struct stage s = stage_make();
    md_registry late;
    pid_t pid = child(be_registrar, &s);
    step_take(s.ready);
    OK(md_attach(s.name, 0, &late));
    EQ(md_reap(s.name), MD_EEXIST);
    kill_now(pid);
    EQ(md_reap(s.name), MD_EEXIST);
    OK(md_close(late));
    OK(md_reap(s.name));
    stage_free(s);
}

/* The words of md_check about claims. */
TEST(each_broken_invariant_of_a_team_is_told_in_words) {
    struct main_member a = open_peer(NULL), b = another(a, 1);
    char words[1024];
    md_record r;
    OK(claim(a, "shop", &r));
    EQ(claim(b, "shop", NULL), MD_EEXIST);
    OK(put(a, MD_STACK, "shop::f", KEY, "b", NULL));
    md__reg *reg = inner(a.reg);
    struct md__fact *first = md__at(reg, (uint32_t)r.ref, sizeof *first), *second;
    struct md__node *node;
    OK(md__node_find(reg, "shop", 4, md__hash("shop", 4), &node));
    second = md__at(reg, md__peek32(&node->head), sizeof *second);
    check_whole(a.reg);
    md__poke64(&second->member, a.member);
    EQ(md_check(a.reg, words, sizeof words), MD_EDAMAGED);
    CHECK(strstr(words, "are claims of one member"));
    md__poke64(&second->member, b.member);
    const uint64_t odd[] = {MD_MAX_MEMBERS, a.member + 7, a.member ^ 1ull << 40};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        md__poke64(&first->member, odd[i]);
        EQ(md_check(a.reg, words, sizeof words), MD_EDAMAGED);
        CHECK(strstr(words, "the registrar of its namespace is no member"));
    }
    md__poke64(&first->member, a.member);
    uint32_t process = md__peek32(&md__member(reg, (uint32_t)a.member)->process);
    md__poke32(&md__member(reg, (uint32_t)a.member)->process, MD_MAX_PROCESSES);
    EQ(md_check(a.reg, words, sizeof words), MD_EDAMAGED);
    CHECK(strstr(words, "the registrar of its namespace is no member"));
    md__poke32(&md__member(reg, (uint32_t)a.member)->process, process);
    md__poke32(&first->kind, MD_IMPL);
    md__poke32(&second->kind, MD_IMPL);
    EQ(md_check(a.reg, words, sizeof words), MD_EDAMAGED);
    CHECK(strstr(words, "facts in a namespace on which nobody has a claim"));
    md__poke32(&first->kind, MD_CLAIM);
    md__poke32(&second->kind, MD_CLAIM);
    OK(md_leave(b.reg, b.member));
    leave(a);
}

/* The file of a team whose members are dead, with one changed word in its header. */
static int open_spoilt(const char *name, size_t at, const void *word, size_t size) {
    char path[128];
    md_registry reg = 0;
    struct main_member m = open_peer(name);
    path_of(name, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char *all = malloc(TEAM);
    ssize_t n = pread(fd, all, TEAM, 0);
    close(fd);
    leave(m);
    memcpy(all + at, word, size);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EQ(write(fd, all, (size_t)n), n);
    close(fd);
    free(all);
    int rc = md_elect(name, TEAM, &reg);
    if (rc == 0) leave((struct main_member){reg, join(reg, 0, MD_PEER)});
    unlink(path);
    return rc;
}

TEST(a_teams_name_is_given_to_a_new_one_when_what_has_it_is_over_and_not_when_it_is_odd) {
    char long_name[MD_MAX_REGISTRY_NAME + 2];
    md_registry reg;
    struct stage s = stage_make();
    uint32_t state = MD__CLOSED, format = MD_FORMAT + 1;
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    EQ(md_elect(long_name, TEAM, &reg), MD_ENAME);
    OK(open_spoilt(s.name, offsetof(struct md__header, state), &state, sizeof state));
    OK(open_spoilt(s.name, offsetof(struct md__header, boot), "0123456789abcdef", 16));
    EQ(open_spoilt(s.name, offsetof(struct md__header, format), &format, sizeof format),
       MD_EVERSION);
    stage_free(s);
}

static struct md__node *its_node;
static void lengthen_beyond_the_arena(void) {
    its_node->name_len = MD_MAX_NAME;
}
static void lengthen_beyond_any_name(void) {
    its_node->name_len = MD_MAX_NAME + 1;
}

/* The facts under it stay as they are. */
TEST(a_namespace_whose_name_cannot_be_true_is_left_as_it_is) {
    static void (*const spoils[])(void) = {lengthen_beyond_the_arena, lengthen_beyond_any_name};
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
        struct main_member a = open_peer(NULL);
        md_record r, fact;
        OK(claim(a, "shop", &r));
        OK(put(a, MD_STACK, "shop::f", KEY, "b", &fact));
        md__reg *reg = inner(a.reg);
        struct md__node *node = NULL;
        OK(md__node_find(reg, "shop::f", 7, md__hash("shop::f", 7), &node));
        node->name_len = MD_MAX_NAME;
        EQ(strike_out(a, &fact), MD_ENOENT);
        node->name_len = 7;
        OK(md__node_find(reg, "shop", 4, md__hash("shop", 4), &its_node));
        spoils[i]();
        OK(md_leave(a.reg, a.member));
        EQ(facts(a.reg), 2);
        OK(md_close(a.reg));
    }
}

TEST(a_claim_whose_length_cannot_be_true_is_told_to_nobody) {
    struct main_member a = open_peer(NULL), b = another(a, 1);
    md_record r;
    OK(claim(a, "shop", &r));
    struct md__fact *its = md__at(inner(a.reg), (uint32_t)r.ref, sizeof *its);
    its->body_len = MD_MAX_BODY + 1;
    EQ(claim(b, "shop", NULL), MD_EDAMAGED);
    its->body_len = 0;
    OK(md_leave(b.reg, b.member));
    leave(a);
}

TEST(a_namespace_ends_without_those_whose_names_begin_like_its_own) {
    struct main_member a = open_peer(NULL);
    OK(claim(a, "shop", NULL));
    OK(claim(a, "shopping", NULL));
    OK(put(a, MD_STACK, "shop::f", KEY, "b", NULL));
    OK(put(a, MD_STACK, "shopping::f", KEY, "b", NULL));
    OK(release(a, "shop"));
    EQ(facts(a.reg), 2);
    OK(find(a.reg, "shopping::f", KEY, NULL, 0));
    leave(a);
}

TEST(a_dead_main_members_name_can_be_taken_over_by_a_team) {
    struct stage s = stage_make();
    md_registry reg;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct main_member m = open_main(s.name, TEAM);
        OK(put(m, MD_STACK, "shop::f", KEY, "main", NULL));
        step_give(s.ready);
        for (;;) pause();
    }
    step_take(s.ready);
    kill_now(pid);
    EQ(md_attach(s.name, 0, &reg), MD_EDIED);
    struct main_member b = open_peer(s.name);
    EQ(find(b.reg, "shop::f", KEY, NULL, 0), MD_ENOENT);
    leave(b);
    stage_free(s);
}

TEST(the_default_registry_can_be_a_teams) {
    char address_of[MD_MAX_ADDRESS] = "elect:", text[MD_MAX_ADDRESS];
    md_registry a, b;
    strcat(address_of, team_name());
    OK(md_open_default(address_of, &a));
    OK(md_open_default("", &b));
    EQ(a, b);
    OK(md_address(a, text, sizeof text));
    OK(strcmp(text, address_of));
    struct main_member m = {a, join(a, 0, MD_PEER)};
    OK(md_close(b));
    leave(m);
    EQ(md_open_default("elect:", &a), MD_ENAME);
    EQ(md_open_default("elect:a/b", &a), MD_ENAME);
}

TEST(a_default_that_was_closed_before_it_was_joined_is_opened_anew) {
    struct stage s = stage_make();
    char address_of[MD_MAX_ADDRESS];
    md_registry a, b;
    uint64_t member;
    uint32_t role;
    snprintf(address_of, sizeof address_of, "elect:%s", s.name);
    pid_t pid = child(be_registrar, &s);
    step_take(s.ready);
    OK(md_open_default(address_of, &a));
    step_give(s.stop);
    OK(reap(pid));
    EQ(md_join(a, 0, &member, &role), MD_ECLOSED);
    OK(md_open_default(address_of, &b));
    struct main_member m = {b, join(b, 0, MD_PEER)};
    OK(md_close(a));
    leave(m);
    stage_free(s);
}

/* --- races ------------------------------------------------------------------------------------ */

struct race {
    char name[64];
    md__u32 inside; /* how many registrars there are now */
    md__u32 most;   /* the most that there were at one time */
    md__u32 turns;
};

/* Opens the team's registry until it can join it: the last other member may leave meanwhile. */
static struct main_member open_until_joined(const char *name) {
    struct main_member m = {0};
    uint32_t role;
    for (;;) {
        OK(md_elect(name, TEAM, &m.reg));
        int rc = md_join(m.reg, 0, &m.member, &role);
        if (rc == 0) return m;
        EQ(rc, MD_ECLOSED);
        OK(md_close(m.reg));
        if (test_failures) return m;
    }
}

static void race_for_turns(void *arg) {
    struct race *r = arg;
    for (int i = 0; i < rounds(60) && !test_failures; i++) {
        struct main_member m = open_until_joined(r->name);
        int rc = claim(m, "shop", NULL);
        if (rc == MD_EEXIST) rc = await_or_elect(m, "shop::f", MD_FOREVER);
        if (rc == MD_EELECTED) rc = 0;
        OK(rc);
        uint32_t before = md__read32(&r->inside), most = md__read32(&r->most);
        while (!md__swap_if32(&r->inside, &before, before + 1)) {}
        while (before + 1 > most && !md__swap_if32(&r->most, &most, before + 1)) {}
        md__add32(&r->turns, 1);
        sched_yield();
        md__add32(&r->inside, (uint32_t)-1);
        OK(md_leave(m.reg, m.member));
        OK(md_close(m.reg));
    }
}

TEST(of_many_who_race_one_is_the_registrar_at_every_instant) {
    enum { PROCESSES = 6 };
    struct race *r = shared(sizeof *r);
    md_registry reg;
    pid_t pid[PROCESSES];
    snprintf(r->name, sizeof r->name, "%s", team_name());
    for (int i = 0; i < PROCESSES; i++) pid[i] = child(race_for_turns, r);
    for (int i = 0; i < PROCESSES; i++) OK(reap(pid[i]));
    EQ(md__read32(&r->most), 1);
    EQ(md__read32(&r->turns), PROCESSES * rounds(60));
    EQ(md_attach(r->name, 0, &reg), MD_ENOENT);
    munmap(r, sizeof *r);
}

/* --- two who open one name at once -------------------------------------------------------------- */

struct opener {
    const char *name;
    struct step ready, done, go;
};

static void open_beside_another(void *arg) {
    struct opener *o = arg;
    md_registry reg;
    step_give(o->ready);
    OK(md_elect(o->name, TEAM, &reg));
    join(reg, 0, MD_PEER);
    step_give(o->done);
    CHECK(step_take(o->go));
}

/* Both find nothing and wait for the folder, for longer than they try again. Then one of them
 * creates it. */
TEST(who_was_not_the_first_to_create_it_attaches_however_long_it_waited) {
    struct opener o = {team_name(), step_make(), step_make(), step_make()};
    char path[MD__MAX_PATH];
    pid_t pids[2];
    leave(open_peer(team_name())); /* makes the folder */
    md__file_path(path, sizeof path, ".");
    int folder = open(path, O_RDONLY | O_CLOEXEC);
    OK(flock(folder, LOCK_EX));
    for (int i = 0; i < 2; i++) pids[i] = child(open_beside_another, &o);
    for (int i = 0; i < 2; i++) CHECK(step_take(o.ready));
    struct timespec longer = {.tv_sec = 2, .tv_nsec = 300000000};
    nanosleep(&longer, NULL);
    OK(flock(folder, LOCK_UN)); /* the children have the descriptor, too */
    OK(close(folder));
    for (int i = 0; i < 2; i++) CHECK(step_take(o.done));
    for (int i = 0; i < 2; i++) step_give(o.go);
    for (int i = 0; i < 2; i++) EQ(reap(pids[i]), 0);
    step_free(o.ready);
    step_free(o.done);
    step_free(o.go);
}

int main(void) {
    RUN(who_claims_first_registers_and_the_others_do_not);
    RUN(a_claim_needs_a_namespace);
    RUN(facts_stay_as_long_as_anybody_has_a_claim);
    RUN(a_claim_that_cannot_be_answered_is_not_made);
    RUN(who_comes_after_in_the_same_slot_is_somebody_else);
    RUN(a_claim_whose_member_is_no_more_is_not_taken_for_one_of_who_has_its_slot);
    RUN(who_is_alone_with_the_claims_of_the_dead_can_strike);
    RUN(the_next_one_is_told_when_the_registrar_releases_leaves_or_registers);
    RUN(who_has_no_claim_just_waits);
    RUN(who_waits_is_told_when_its_own_member_claims);
    RUN(a_survivor_is_told_at_once_and_goes_on_where_the_dead_one_stopped);
    RUN(who_leaves_without_the_lock_touches_no_facts_and_is_swept);
    RUN(a_damaged_registry_is_left_as_it_is);
    RUN(who_has_left_is_no_registrar_though_its_lease_stays);
    RUN(a_forked_child_queues_up_for_itself);
    RUN(what_nobody_claims_any_more_is_gone_with_the_dead_one);
    RUN(the_last_one_out_takes_the_name_along_whoever_made_it);
    RUN(a_team_that_was_killed_is_replaced_and_a_main_member_is_not);
    RUN(who_found_a_team_before_it_died_does_not_bring_it_back);
    RUN(a_dead_teams_file_is_left_to_who_has_it_open);
    RUN(each_broken_invariant_of_a_team_is_told_in_words);
    RUN(who_found_a_team_that_has_lost_its_name_does_not_join_it);
    RUN(a_teams_name_is_given_to_a_new_one_when_what_has_it_is_over_and_not_when_it_is_odd);
    RUN(a_namespace_whose_name_cannot_be_true_is_left_as_it_is);
    RUN(a_claim_whose_length_cannot_be_true_is_told_to_nobody);
    RUN(a_namespace_ends_without_those_whose_names_begin_like_its_own);
    RUN(a_dead_main_members_name_can_be_taken_over_by_a_team);
    RUN(the_default_registry_can_be_a_teams);
    RUN(a_default_that_was_closed_before_it_was_joined_is_opened_anew);
    RUN(who_was_not_the_first_to_create_it_attaches_however_long_it_waited);
    RUN(of_many_who_race_one_is_the_registrar_at_every_instant);
    return test_done();
}
