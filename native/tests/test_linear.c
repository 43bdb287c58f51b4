/* What a repair costs while all others wait for the lock: ten times as much to repair takes about ten
 * times as long. Where each fact were looked up among the others, it would take a hundred times as
 * long. Time is that of this thread's processor, so a loaded machine changes little; the bound lies
 * between the two. */
#include <time.h>

#include "test.h"

enum { MORE = 10, TOO_MUCH = 40 };

static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* `make(n)`, then `act`, whose time counts, then `end`. */
struct repair {
    const char *what;
    void (*make)(int n);
    void (*act)(void);
    void (*end)(void);
};

static double time_of(const struct repair *r, int n) {
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        r->make(n);
        double start = cpu_now();
        r->act();
        double took = cpu_now() - start;
        if (took < best) best = took;
        r->end();
        if (took > 1) break; /* too long to be of the kind where a few microseconds matter */
    }
    return best;
}

static void grows_with(const struct repair *r, int n) {
    double few = time_of(r, n), many = time_of(r, MORE * n);
    printf("       %s: %d in %.2f ms, %d in %.2f ms: %.1f times\n", r->what, n, few * 1e3, MORE * n,
           many * 1e3, many / few);
    CHECK(many < TOO_MUCH * few);
}

static struct main_member m;
static md__reg *reg;

static void look_inside(void) {
    OK(md__enter(m.reg, &reg));
    md__exit(reg);
}

/* --- the death of a member with many namespaces ------------------------------------------------- */

static void claim_many(void *arg) {
    struct main_member dead = {m.reg, join(m.reg, 0, MD_PEER)};
    char name[32], buf[BUF];
    for (int i = 0; i < *(int *)arg; i++) {
        int len = snprintf(name, sizeof name, "ns%d", i);
        OK(md_claim(dead.reg, dead.member, name, (size_t)len, "", 0, buf, sizeof buf));
        strcat(name, "::f");
        OK(put(dead, MD_STACK, name, KEY, "b", NULL));
    }
    kill(getpid(), SIGKILL);
}

static void leave_claims_of_a_dead(int n) {
    m = (struct main_member){0};
    OK(md_elect(NULL, 64 << 20, &m.reg));
    m.member = join(m.reg, 0, MD_PEER);
    look_inside();
    EQ(reap(child(claim_many, &n)), -SIGKILL);
    md_stats s;
    OK(md_stat(m.reg, &s));
    EQ(s.facts, 2 * n);
}

static void sweep(void) {
    char buf[BUF];
    OK(md_claim(m.reg, m.member, "mine", 4, "", 0, buf, sizeof buf));
}

static void close_the_team(void) {
    md_stats s;
    OK(md_stat(m.reg, &s));
    EQ(s.facts, 1);
    close_main(m);
}

TEST(the_death_of_a_member_with_many_namespaces_costs_one_walk) {
    grows_with(&(struct repair){"namespaces of a dead member", leave_claims_of_a_dead, sweep,
                                close_the_team},
               300);
}

/* --- the leave of one of two main members ------------------------------------------------------- */

static uint64_t host;

static void open_with_host(int n) {
    m = open_main(NULL, 64 << 20);
    look_inside();
    host = join(m.reg, MD_HOST, MD_MAIN);
    struct main_member other = {m.reg, host};
    for (int i = 0; i < n; i++) OK(put(other, MD_STACK, "n", KEY, "b", NULL));
}

static void leave_as_host(void) {
    OK(md_leave(m.reg, host));
}

static void close_without_facts(void) {
    md_stats s;
    OK(md_stat(m.reg, &s));
    EQ(s.facts, 0);
    close_main(m);
}

TEST(the_leave_of_a_member_with_many_facts_of_one_name_costs_one_walk) {
    grows_with(&(struct repair){"facts of one that leaves", open_with_host, leave_as_host,
                                close_without_facts},
               3000);
}

/* --- a holder of the lock that died ------------------------------------------------------------- */

static int facts;

static void hold_and_die(void *arg) {
    OK(md__lock(reg));
    kill(getpid(), SIGKILL);
}

static void open_and_fill(int n, uint32_t rule) {
    m = open_main(NULL, 64 << 20);
    look_inside();
    facts = n;
    for (int i = 0; i < n; i++) OK(put(m, rule, "n", i, "b", NULL));
    EQ(reap(child(hold_and_die, NULL)), -SIGKILL);
}

static void open_with_stack(int n) {
    open_and_fill(n, MD_STACK);
}

static void open_with_unique(int n) {
    open_and_fill(n, MD_UNIQUE);
}

static void recover(void) {
    OK(md__lock(reg));
    md__unlock(reg);
}

static void close_recovered(void) {
    md_stats s;
    OK(md_stat(m.reg, &s));
    EQ(s.recoveries, 1);
    EQ(s.facts, facts);
    close_main(m);
}

TEST(a_recovery_looks_at_each_fact_of_a_name_a_few_times) {
    grows_with(&(struct repair){"facts of one name", open_with_stack, recover, close_recovered},
               3000);
    grows_with(&(struct repair){"unique facts of one name", open_with_unique, recover,
                                close_recovered},
               500);
}

/* --- an index that grows ------------------------------------------------------------------------ */

static void open_with_names(int n) {
    char name[32];
    m = open_main(NULL, 64 << 20);
    look_inside();
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "n%d", i);
        OK(put(m, MD_STACK, name, KEY, "b", NULL));
    }
    OK(md__lock(reg));
}

static void grow_index(void) {
    OK(md__index_create(reg, (uint32_t)(md__peek64(&md__header(reg)->index) & 255) + 1));
}

static void close_grown(void) {
    md__unlock(reg);
    OK(find(m.reg, "n0", KEY, NULL, 0));
    close_main(m);
}

TEST(an_index_grows_in_the_time_of_its_names) {
    grows_with(&(struct repair){"names in a growing index", open_with_names, grow_index,
                                close_grown},
               3000);
}

int main(void) {
    RUN(the_death_of_a_member_with_many_namespaces_costs_one_walk);
    RUN(the_leave_of_a_member_with_many_facts_of_one_name_costs_one_walk);
    RUN(a_recovery_looks_at_each_fact_of_a_name_a_few_times);
    RUN(an_index_grows_in_the_time_of_its_names);
    return test_done();
}
