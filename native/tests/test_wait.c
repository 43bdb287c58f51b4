/* Waiting: wakes and no polling, every way to end a wait, and no lost wake. */
#include "test.h"

enum { SIZE = 1 << 20, MANY = 32, LATE_NS = 20000000 };

TEST(a_fact_that_is_there_is_not_waited_for) {
    struct main_member m = open_main(NULL, SIZE);
    md_wait_stats s;
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(await_fact(m.reg, m.member, "n", 1, 0, 0, &s));
    CHECK(s.sleeps == 0 && s.slept_ns == 0);
    EQ(waiters(m.reg), 0);
    close_main(m);
}

TEST(a_sleeper_is_woken_by_the_registration_and_not_by_its_slice) {
    struct main_member m = open_main(NULL, SIZE);
    int times = rounds(200);
    int64_t *latency = calloc((size_t)times, sizeof *latency);
    for (int i = 0; i < times; i++) {
        struct waiter w = {0};
        md_record r;
        waiter_start(&w, m.reg, m.member, "n");
        int64_t start = md_now();
        OK(put(m, MD_STACK, "n", KEY, "b", &r));
        OK(waiter_end(&w));
        latency[i] = w.returned - start;
        CHECK(w.stats.wakes || w.returned - start < limit(LATE_NS)); /* a slice that just ended */
        if (w.stats.slept_ns < 100000000) EQ(w.stats.slices, 0);
        EQ(w.stats.by_lease, 0);
        OK(strike_out(m, &r));
    }
    print_latency("registration to return of the waiter, threads", latency, (size_t)times);
    free(latency);
    close_main(m);
}

TEST(one_registration_wakes_all_who_wait_for_it) {
    struct main_member m = open_main(NULL, SIZE);
    struct waiter w[MANY] = {0};
    for (int i = 0; i < MANY; i++) waiter_start(&w[i], m.reg, m.member, "n");
    EQ(waiters(m.reg), MANY);
    int64_t start = md_now();
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    for (int i = 0; i < MANY; i++) {
        OK(waiter_end(&w[i]));
        CHECK(w[i].stats.wakes || w[i].returned - start < limit(LATE_NS)); /* not by its slice */
    }
    EQ(waiters(m.reg), 0);
    close_main(m);
}

TEST(each_of_many_waits_for_its_own_name_only) {
    struct main_member m = open_main(NULL, SIZE);
    struct waiter w[MANY] = {0};
    static char names[MANY][16];
    md_record r;
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "ns::op%d", i);
        waiter_start(&w[i], m.reg, m.member, names[i]);
    }
    for (int i = MANY - 1; i >= 0; i--) {
        OK(put(m, MD_STACK, names[i], KEY + 1, "another key", &r));
        OK(md_register(m.reg, m.member, MD_DEF, MD_STACK, KEY, names[i], strlen(names[i]),
                       "another kind", 12, "", 0, &(char[256]){0}, 256));
        EQ(waiters(m.reg), i + 1);
        OK(put(m, MD_STACK, names[i], KEY, "b", NULL));
        OK(waiter_end(&w[i]));
        EQ(waiters(m.reg), i);
    }
    close_main(m);
}

TEST(at_least_counts_what_lives) {
    struct main_member m = open_main(NULL, SIZE);
    struct waiter w = {.at_least = 3};
    md_wait_stats s;
    md_record r;
    waiter_start(&w, m.reg, m.member, "n");
    OK(put(m, MD_STACK, "n", KEY, "1", &r));
    OK(put(m, MD_STACK, "n", KEY, "2", NULL));
    OK(strike_out(m, &r));
    OK(put(m, MD_STACK, "n", KEY, "3", NULL));
    EQ(waiters(m.reg), 1);
    EQ(await_fact(m.reg, m.member, "n", 3, 0, 0, &s), MD_ETIMEDOUT);
    OK(put(m, MD_STACK, "n", KEY, "4", NULL));
    OK(waiter_end(&w));
    close_main(m);
}

TEST(a_deadline_is_kept_and_not_anticipated) {
    struct main_member m = open_main(NULL, SIZE);
    md_wait_stats s;
    for (int ms = 0; ms <= 250; ms += 50) {
        int64_t deadline = md_now() + ms * 1000000ll;
        int status, looks = 0;
        do status = await_fact(m.reg, m.member, "n", 1, deadline, 0, &s);
        while (status == MD_EINTR && ++looks < 10); /* the main thread looks for signals */
        EQ(status, MD_ETIMEDOUT);
        CHECK(md_now() >= deadline);
        EQ(s.wakes, 0);
    }
    EQ(await_fact(m.reg, m.member, "n", 1, 0, 0, &s), MD_ETIMEDOUT);
    EQ(s.sleeps, 0);
    close_main(m);
}

TEST(a_cancel_ends_the_waits_of_its_ticket_or_all) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t other = join(m.reg, 1, MD_WORKER);
    struct waiter w[4] = {{.ticket = 1}, {.ticket = 2}, {.ticket = 2}, {.ticket = 1}};
    for (int i = 0; i < 4; i++) waiter_start(&w[i], m.reg, i < 3 ? m.member : other, "n");
    OK(md_cancel(m.reg, m.member, 1));
    EQ(waiter_end(&w[0]), MD_ECANCELED);
    EQ(waiters(m.reg), 3);
    OK(md_cancel(m.reg, m.member, 77));
    EQ(waiters(m.reg), 3);
    OK(md_cancel(m.reg, m.member, 0));
    EQ(waiter_end(&w[1]), MD_ECANCELED);
    EQ(waiter_end(&w[2]), MD_ECANCELED);
    EQ(waiters(m.reg), 1);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(waiter_end(&w[3]));
    OK(md_leave(m.reg, other));
    close_main(m);
}

TEST(a_member_that_leaves_takes_its_own_waiters_along) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t worker = join(m.reg, 1, MD_WORKER), again;
    struct waiter mine = {0}, its = {0};
    md_wait_stats s;
    waiter_start(&mine, m.reg, m.member, "n");
    waiter_start(&its, m.reg, worker, "n");
    OK(md_leave(m.reg, worker));
    EQ(waiter_end(&its), MD_ECLOSED);
    CHECK(its.stats.wakes >= 1); /* not by the end of a slice */
    EQ(waiters(m.reg), 1);
    again = join(m.reg, 1, MD_WORKER);
    CHECK(again != worker);
    EQ(md_leave(m.reg, worker), MD_ECLOSED);
    EQ(await_fact(m.reg, worker, "n", 1, MD_FOREVER, 0, &s), MD_ECLOSED);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(waiter_end(&mine));
    OK(md_leave(m.reg, again));
    close_main(m);
}

struct remote {
    char address[MD_MAX_ADDRESS];
    int rc;
};

static void wait_for_never(void *arg) {
    struct remote *r = arg;
    struct main_member w = attach_worker(r->address);
    md_wait_stats s;
    r->rc = await_fact(w.reg, w.member, "never", 1, MD_FOREVER, 0, &s);
    EQ(await_fact(w.reg, w.member, "never", 1, MD_FOREVER, 0, &s), r->rc);
    OK(md_leave(w.reg, w.member));
    OK(md_close(w.reg));
}

static void waiters_end_when_the_main_one(int leaves) {
    struct remote *r = shared(sizeof *r);
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, r->address, sizeof r->address));
    pid_t pid = child(wait_for_never, r);
    until_waiting(m.reg, 1);
    until_asleep(pid, pid);
    if (leaves) OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
    EQ(reap(pid), 0);
    EQ(r->rc, MD_ECLOSED);
    munmap(r, sizeof *r);
}

struct departing {
    char address[MD_MAX_ADDRESS];
    struct step ready, go;
};

static void be_main_and_leave(void *arg) {
    struct departing *d = arg;
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, d->address, sizeof d->address));
    step_give(d->ready);
    step_take(d->go);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

/* A mark in it would keep the next owner from taking it. */
TEST(who_waits_too_late_leaves_no_mark_in_the_lease_that_nobody_has) {
    struct departing *d = shared(sizeof *d);
    md__reg *reg;
    md_wait_stats s;
    d->ready = step_make();
    d->go = step_make();
    pid_t pid = child(be_main_and_leave, d);
    CHECK(step_take(d->ready));
    struct main_member w = attach_worker(d->address);
    step_give(d->go);
    EQ(reap(pid), 0);
    EQ(await_fact(w.reg, w.member, "n", 1, MD_FOREVER, 0, &s), MD_ECLOSED);
    OK(md__enter(w.reg, &reg));
    EQ(md__read32(md__lease_word(md__process(reg, 0))), 0);
    md__exit(reg);
    OK(md_leave(w.reg, w.member));
    OK(md_close(w.reg));
    step_free(d->ready);
    step_free(d->go);
    munmap(d, sizeof *d);
}

TEST(waiters_in_other_processes_end_when_the_main_member_leaves) {
    waiters_end_when_the_main_one(1);
}

TEST(waiters_in_other_processes_end_when_the_main_process_closes_without_leaving) {
    waiters_end_when_the_main_one(0);
}

TEST(closing_the_handle_ends_its_waits_and_a_second_close_pulls_nothing_away) {
    for (int i = 0; i < rounds(50); i++) {
        struct main_member m = open_main(NULL, SIZE);
        struct waiter w[3] = {0};
        for (int j = 0; j < 3; j++) waiter_start(&w[j], m.reg, m.member, "n");
        OK(md_close(m.reg));
        for (int j = 0; j < 5; j++) EQ(md_close(m.reg), MD_ECLOSED);
        EQ(find(m.reg, "n", KEY, NULL, 0), MD_ECLOSED);
        for (int j = 0; j < 3; j++) EQ(waiter_end(&w[j]), MD_ECLOSED);
    }
}

static void join_twice_and_close(void *arg) {
    struct remote *r = arg;
    struct main_member w = attach_worker(r->address);
    join(w.reg, 1, MD_WORKER);
    OK(md_close(w.reg));
    OK(md_close(w.reg)); /* the opening that it inherited */
    EQ(md_close(w.reg), MD_ECLOSED);
}

TEST(closing_without_leaving_leaves_no_members_behind) {
    struct remote *r = shared(sizeof *r);
    struct main_member m = open_main(NULL, SIZE);
    md_stats s;
    OK(md_address(m.reg, r->address, sizeof r->address));
    for (int i = 0; i < 3; i++) {
        pid_t pid = child(join_twice_and_close, r);
        EQ(reap(pid), 0);
        check_whole(m.reg);
        OK(md_stat(m.reg, &s));
        EQ(s.members, 1);
        EQ(s.processes, 1);
    }
    close_main(m);
}

static void no_op(int signal) {
    (void)signal;
}

TEST(a_signal_returns_to_the_caller_who_can_wait_on) {
    struct main_member m = open_main(NULL, SIZE);
    struct sigaction action = {.sa_handler = no_op};
    sigaction(SIGUSR1, &action, NULL);
    struct waiter w = {0};
    waiter_start(&w, m.reg, m.member, "n");
    int64_t start = md_now();
    while (waiters(m.reg)) { /* again, in case its slice had just ended and it was not asleep */
        pthread_kill(w.thread, SIGUSR1);
        sched_yield();
    }
    EQ(waiter_end(&w), MD_EINTR);
    CHECK(w.returned - start < limit(2000000000));
    close_main(m);
}

struct asked {
    uint64_t member, ticket;
    int64_t deadline;
    int32_t key;
    uint32_t kind;
    const char *name; /* NULL: any change */
};

/* Waits on the main thread, which returns after a slice. Since when does that wait last? */
static uint64_t wait_since(md_registry handle, const struct asked *a) {
    char buf[BUF];
    uint64_t now;
    md_wait_stats s = {0};
    md__reg *reg = inner(handle);
    EQ(a->name ? md_await(handle, a->member, a->kind, a->key, 1, a->name, strlen(a->name),
                          a->deadline, a->ticket, buf, sizeof buf, &s)
               : md_await_change(handle, a->member, md__read64(&md__header(reg)->next_seq),
                                 a->deadline, a->ticket, &now, &s),
       MD_EINTR);
    return md__peek64(&md__member(reg, (uint32_t)a->member)->waiting_ns);
}

TEST(a_wait_that_goes_on_after_a_slice_has_lasted_since_it_began_and_no_other_has) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t other = join(m.reg, 1, MD_WORKER);
    int64_t late = md_now() + 3600000000000ll;
    const struct asked first = {m.member, 0, MD_FOREVER, KEY, MD_IMPL, "n"};
    const struct asked others[] = {
        {other, 0, MD_FOREVER, KEY, MD_IMPL, "n"},     {m.member, 7, MD_FOREVER, KEY, MD_IMPL, "n"},
        {m.member, 0, late, KEY, MD_IMPL, "n"},        {m.member, 0, MD_FOREVER, 9, MD_IMPL, "n"},
        {m.member, 0, MD_FOREVER, KEY, MD_NAME, "n"},  {m.member, 0, MD_FOREVER, KEY, MD_IMPL, "o"},
        {m.member, 0, MD_FOREVER, KEY, MD_IMPL, NULL},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        uint64_t began = wait_since(m.reg, &first);
        EQ(wait_since(m.reg, &first), began);
        CHECK(wait_since(m.reg, &others[i]) > began);
        CHECK(wait_since(m.reg, &first) > began);
    }
    OK(md_leave(m.reg, other));
    close_main(m);
}

TEST(the_waiters_name_and_kind_can_be_seen) {
    struct main_member m = open_main(NULL, SIZE);
    md_member_info info[2];
    size_t n;
    struct waiter w = {0};
    char name[100];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    int64_t start = md_now();
    waiter_start(&w, m.reg, m.member, name);
    OK(md_members(m.reg, info, 2, &n));
    EQ(n, 1);
    CHECK(info[0].waiters == 1 && info[0].wait_kind == MD_IMPL && info[0].wait_key == KEY &&
          info[0].alive == 1);
    CHECK((int64_t)info[0].waiting_ns >= start && (int64_t)info[0].waiting_ns <= md_now());
    EQ(strlen(info[0].wait_name), 63);
    EQ(strncmp(info[0].wait_name, name, 63), 0);
    OK(md_cancel(m.reg, m.member, 0));
    EQ(waiter_end(&w), MD_ECANCELED);
    OK(md_members(m.reg, info, 0, &n));
    EQ(n, 1);
    close_main(m);
}

int main(void) {
    RUN(a_fact_that_is_there_is_not_waited_for);
    RUN(a_sleeper_is_woken_by_the_registration_and_not_by_its_slice);
    RUN(one_registration_wakes_all_who_wait_for_it);
    RUN(each_of_many_waits_for_its_own_name_only);
    RUN(at_least_counts_what_lives);
    RUN(a_deadline_is_kept_and_not_anticipated);
    RUN(a_cancel_ends_the_waits_of_its_ticket_or_all);
    RUN(a_member_that_leaves_takes_its_own_waiters_along);
    RUN(who_waits_too_late_leaves_no_mark_in_the_lease_that_nobody_has);
    RUN(waiters_in_other_processes_end_when_the_main_member_leaves);
    RUN(waiters_in_other_processes_end_when_the_main_process_closes_without_leaving);
    RUN(closing_the_handle_ends_its_waits_and_a_second_close_pulls_nothing_away);
    RUN(closing_without_leaving_leaves_no_members_behind);
    RUN(a_signal_returns_to_the_caller_who_can_wait_on);
    RUN(a_wait_that_goes_on_after_a_slice_has_lasted_since_it_began_and_no_other_has);
    RUN(the_waiters_name_and_kind_can_be_seen);
    return test_done();
}
