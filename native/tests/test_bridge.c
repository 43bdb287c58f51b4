/* test_bridge.c - the registry of a host of a cluster: only bridges register, the others are workers,
 * and when a bridge goes the next one goes on with what is there. */
#include "test.h"

enum { SIZE = MD__MIN_CAPACITY + 262144 };
static const char QUEUE[] = "mdispatch.bridge", TURN[] = "mdispatch.bridge::turn";

static const char *host_name(void) {
    static char name[64];
    static int count;
    snprintf(name, sizeof name, "host-%d-%d", (int)getpid(), count++);
    return name;
}

static struct main_member open_bridge(const char *name) {
    struct main_member m = {0};
    OK(md_bridge(name, SIZE, &m.reg));
    m.member = join(m.reg, MD_AS_BRIDGE, MD_BRIDGE);
    return m;
}

static int claim(struct main_member m) {
    char buf[BUF];
    return md_claim(m.reg, m.member, QUEUE, strlen(QUEUE), "t.c:2", 5, buf, sizeof buf);
}

static int release(struct main_member m) {
    return md_release(m.reg, m.member, QUEUE, strlen(QUEUE));
}

static int await_turn(struct main_member m, int64_t deadline, md_wait_stats *stats) {
    char buf[BUF];
    int rc;
    do
        rc = md_await_or_elect(m.reg, m.member, MD_LIBRARY, 0, 1, TURN, strlen(TURN), deadline, 0,
                               buf, sizeof buf, stats);
    while (rc == MD_EINTR);
    return rc;
}

static void leave(struct main_member m) {
    check_whole(m.reg);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

TEST(only_the_hosts_bridge_registers_and_strikes) {
    struct main_member a = open_bridge(NULL), b = {a.reg, join(a.reg, MD_AS_BRIDGE, MD_BRIDGE)};
    struct main_member worker = {a.reg, join(a.reg, 0, MD_WORKER)}; /* of the creator, too */
    md_record r = {0}, own;
    md_stats s;
    char buf[BUF];
    OK(md_stat(a.reg, &s));
    EQ(s.policy, MD_POLICY_BRIDGE);
    EQ(s.main_state, 0);
    EQ(put(a, MD_STACK, "shop::f", KEY, "a", NULL), MD_EROLE); /* it does not stand in the queue */
    EQ(claim(worker), MD_EROLE);
    OK(claim(a));
    EQ(claim(b), MD_EEXIST);
    OK(put(a, MD_STACK, "shop::f", KEY, "a", &r));
    EQ(put(b, MD_STACK, "shop::f", KEY, "b", NULL), MD_EROLE);
    EQ(put(worker, MD_STACK, "shop::f", KEY, "w", NULL), MD_EROLE);
    EQ(strike_out(b, &r), MD_EROLE);
    EQ(strike_out(worker, &r), MD_EROLE);
    OK(md_register(a.reg, a.member, MD_STANDING, MD_STACK, 0, "host", 4, "", 0, "", 0, buf,
                   sizeof buf));
    /* What any member registers it registers here, and a worker queues up for a choice. */
    OK(md_register(worker.reg, worker.member, MD_NOTE, MD_STACK, 0, "n", 1, "", 0, "", 0, buf,
                   sizeof buf));
    memcpy(&own, buf, sizeof own);
    EQ(strike_out(a, &own), MD_EROLE);
    OK(md_claim(worker.reg, worker.member, "tile", 4, "", 0, buf, sizeof buf));
    /* One whose name is as long as that of the queue of the bridges. */
    OK(md_claim(worker.reg, worker.member, "mdispatch.choice", 16, "", 0, buf, sizeof buf));
    EQ(put(worker, MD_STACK, "tile", KEY, "w", NULL), MD_EROLE);
    OK(strike_out(a, &r));
    EQ(strike_out(a, &r), MD_ENOENT);
    OK(md_leave(b.reg, b.member));
    OK(md_leave(worker.reg, worker.member));
    leave(a);
}

TEST(facts_stay_when_the_last_bridge_goes_and_the_next_goes_on_with_them) {
    struct main_member a = open_bridge(NULL), b = {a.reg, join(a.reg, MD_AS_BRIDGE, MD_BRIDGE)};
    md_record r = {0};
    OK(claim(a));
    OK(put(a, MD_STACK, "shop::f", KEY, "a", &r));
    OK(release(a));
    OK(find(a.reg, "shop::f", KEY, NULL, 0));
    EQ(put(a, MD_STACK, "shop::g", KEY, "a", NULL), MD_EROLE);
    OK(claim(b));
    OK(md_leave(a.reg, a.member));
    OK(put(b, MD_STACK, "shop::g", KEY, "b", NULL));
    OK(strike_out(b, &r)); /* which the one before it had registered */
    leave(b);
}

struct host {
    const char *name;
    struct step ready, stop;
};

/* Registers one fact, and waits to be killed. */
static void be_a_bridge(void *arg) {
    struct host *s = arg;
    struct main_member m = open_bridge(s->name);
    OK(claim(m));
    OK(put(m, MD_STACK, "shop::f", KEY, "first", NULL));
    step_give(s->ready);
    for (;;) pause();
}

struct turn {
    struct main_member m;
    pthread_t thread;
    int rc;
    md_wait_stats stats;
};
static void *take_turn(void *arg) {
    struct turn *t = arg;
    t->rc = await_turn(t->m, md_now() + limit(30000000000), &t->stats);
    return NULL;
}

TEST(when_the_bridge_is_killed_the_next_takes_over_and_a_workers_wait_goes_on) {
    struct host s = {host_name(), step_make(), step_make()};
    md_wait_stats stats = {0};
    pid_t pid = child(be_a_bridge, &s);
    step_take(s.ready);
    struct main_member b = open_bridge(s.name), worker = {b.reg, join(b.reg, 0, MD_WORKER)};
    EQ(claim(b), MD_EEXIST);
    EQ(await_turn(b, md_now(), &stats), MD_ETIMEDOUT);
    struct turn t = {.m = b};
    struct waiter w = {.deadline = md_now() + limit(30000000000)};
    waiter_start(&w, worker.reg, worker.member, "shop::g");
    pthread_create(&t.thread, NULL, take_turn, &t);
    kill_now(pid);
    pthread_join(t.thread, NULL);
    EQ(t.rc, MD_EELECTED);
    OK(find(b.reg, "shop::f", KEY, NULL, 0));
    OK(put(b, MD_STACK, "shop::g", KEY, "second", NULL));
    EQ(waiter_end(&w), 0);
    EQ(w.rc, 0);
    md_stats stat;
    OK(md_stat(b.reg, &stat));
    EQ(stat.processes, 1);
    OK(md_leave(worker.reg, worker.member));
    leave(b);
    step_free(s.ready);
    step_free(s.stop);
}

/* A worker keeps the registry of its host while there is no bridge. */
TEST(a_worker_keeps_the_registry_until_a_bridge_comes_again) {
    struct host s = {host_name(), step_make(), step_make()};
    pid_t pid = child(be_a_bridge, &s);
    step_take(s.ready);
    struct main_member worker = attach_worker(s.name);
    kill_now(pid);
    OK(find(worker.reg, "shop::f", KEY, NULL, 0));
    struct main_member late = attach_worker(s.name); /* others still come */
    OK(md_leave(late.reg, late.member));
    OK(md_close(late.reg));
    struct main_member again = open_bridge(s.name);
    OK(claim(again));
    OK(put(again, MD_STACK, "shop::g", KEY, "again", NULL));
    OK(find(worker.reg, "shop::g", KEY, NULL, 0));
    leave(again);
    OK(find(worker.reg, "shop::g", KEY, NULL, 0));
    leave(worker);
    md_registry none;
    EQ(md_attach(s.name, 0, &none), MD_ENOENT); /* the last one has gone, and the name with it */
    step_free(s.ready);
    step_free(s.stop);
}

TEST(when_all_of_a_host_are_dead_the_next_bridge_begins_anew) {
    struct host s = {host_name(), step_make(), step_make()};
    md_registry none;
    pid_t pid = child(be_a_bridge, &s);
    step_take(s.ready);
    kill_now(pid);
    EQ(md_attach(s.name, 0, &none), MD_EDIED);
    struct main_member b = open_bridge(s.name);
    EQ(find(b.reg, "shop::f", KEY, NULL, 0), MD_ENOENT);
    OK(claim(b));
    leave(b);
    step_free(s.ready);
    step_free(s.stop);
}

TEST(a_registry_of_another_policy_is_no_hosts) {
    const char *name = host_name();
    md_registry none = 0;
    uint64_t member;
    uint32_t role;
    struct main_member m = open_main(name, SIZE);
    EQ(md_bridge(name, SIZE, &none), MD_EEXIST);
    EQ(md_join(m.reg, MD_AS_BRIDGE, &member, &role), MD_EROLE);
    close_main(m);
    OK(md_elect(name, SIZE, &m.reg));
    EQ(md_bridge(name, SIZE, &none), MD_EEXIST);
    EQ(md_join(m.reg, MD_AS_BRIDGE, &member, &role), MD_EROLE);
    OK(md_close(m.reg));
    m = open_bridge(name);
    EQ(md_create(name, SIZE, &none), MD_EEXIST);
    EQ(md_elect(name, SIZE, &none), MD_EEXIST);
    leave(m);
}

int main(void) {
    RUN(only_the_hosts_bridge_registers_and_strikes);
    RUN(facts_stay_when_the_last_bridge_goes_and_the_next_goes_on_with_them);
    RUN(when_the_bridge_is_killed_the_next_takes_over_and_a_workers_wait_goes_on);
    RUN(a_worker_keeps_the_registry_until_a_bridge_comes_again);
    RUN(when_all_of_a_host_are_dead_the_next_bridge_begins_anew);
    RUN(a_registry_of_another_policy_is_no_hosts);
    return test_done();
}
