/* The death of a process: its waiters are told at once, and all that it held is free again. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#include "test.h"

enum { SIZE = 1 << 20, CROWD = 16 };

/* Memory that a main member in a process of its own shares with its test. */
struct stage {
    char address[MD_MAX_ADDRESS];
    struct step ready, go;
    md__u32 by_thread;
    int rc[CROWD];
    md_wait_stats stats[CROWD];
    int64_t returned[CROWD];
};

static struct stage *stage_make(void) {
    struct stage *s = shared(sizeof *s);
    s->ready = step_make();
    s->go = step_make();
    return s;
}

static void stage_free(struct stage *s) {
    step_free(s->ready);
    step_free(s->go);
    munmap(s, sizeof *s);
}

static void *create_and_join(void *arg) {
    struct stage *s = arg;
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, s->address, sizeof s->address));
    return NULL;
}

/* The main member: creates, says so, and then waits for a step. */
static void be_main(void *arg) {
    struct stage *s = arg;
    if (md__read32(&s->by_thread)) {
        pthread_t t; /* the thread ends at once: the lease must not end with it */
        pthread_create(&t, NULL, create_and_join, s);
        pthread_join(t, NULL);
    } else {
        create_and_join(s);
    }
    step_give(s->ready);
    step_take(s->go);
}

struct bystander {
    struct stage *stage;
    int place;
};

static void await_never(void *arg) {
    struct bystander *b = arg;
    struct stage *s = b->stage;
    struct main_member w = attach_worker(s->address);
    s->rc[b->place] = await_fact(w.reg, w.member, "never", 1, MD_FOREVER, 0, &s->stats[b->place]);
    s->returned[b->place] = md_now();
}

static void main_dies_before_a_crowd(int by_thread, int times) {
    int64_t *latency = calloc((size_t)(times * CROWD), sizeof *latency);
    int64_t *last = calloc((size_t)times, sizeof *last);
    int woken = 0;
    for (int round = 0; round < times; round++) {
        struct stage *s = stage_make();
        struct bystander b[CROWD];
        pid_t pid[CROWD];
        md_registry look;
        md_stats stats;
        md__poke32(&s->by_thread, (uint32_t)by_thread);
        pid_t main_pid = child(be_main, s);
        CHECK(step_take(s->ready));
        for (int i = 0; i < CROWD; i++) {
            b[i] = (struct bystander){s, i};
            pid[i] = child(await_never, &b[i]);
        }
        OK(md_attach(s->address, 0, &look));
        until_waiting(look, CROWD);
        for (int i = 0; i < CROWD; i++) until_asleep(pid[i], pid[i]);
        OK(md_stat(look, &stats));
        EQ(stats.main_state, 1);
        int64_t start = md_now();
        kill(main_pid, SIGKILL);
        for (int i = 0; i < CROWD; i++) {
            EQ(reap(pid[i]), 0);
            EQ(s->rc[i], MD_EDIED);
            if (has_waitv()) EQ(s->stats[i].by_lease, 1);
            latency[round * CROWD + i] = s->returned[i] - start;
            if (s->returned[i] - start > last[round]) last[round] = s->returned[i] - start;
            CHECK(s->returned[i] - start < limit(2000000000));
            woken += s->stats[i].wakes > 0;
        }
        EQ(reap(main_pid), -SIGKILL);
        OK(md_stat(look, &stats));
        EQ(stats.main_state, 3);
        OK(md_close(look));
        stage_free(s);
    }
    /* The lease woke it, or a waiter that the lease woke; not the end of a slice. But on a loaded
     * machine some are just between two slices. */
    if (has_waitv()) CHECK(woken > times * CROWD / 2);
    print_latency("kill of the main member to return of a waiter", latency,
                  (size_t)(times * CROWD));
    print_latency("the same, the last of 16", last, (size_t)times);
    free(latency);
    free(last);
}

TEST(all_who_wait_are_told_when_the_main_member_is_killed) {
    main_dies_before_a_crowd(0, rounds(20));
}

TEST(a_lease_taken_by_a_thread_lives_and_dies_with_the_process) {
    main_dies_before_a_crowd(1, rounds(5));
}

TEST(a_wait_that_begins_after_the_death_ends_at_once_and_facts_can_still_be_read) {
    struct stage *s = stage_make();
    md_registry look;
    md_wait_stats w;
    pid_t pid = child(be_main, s);
    CHECK(step_take(s->ready));
    OK(md_attach(s->address, 0, &look));
    uint64_t member = join(look, 0, MD_WORKER);
    kill_now(pid);
    EQ(await_fact(look, member, "n", 1, MD_FOREVER, 0, &w), MD_EDIED);
    EQ(w.sleeps, 0);
    EQ(find(look, "n", KEY, NULL, 0), MD_ENOENT);
    check_whole(look);
    md_registry again;
    EQ(md_attach(s->address, 0, &again), MD_EDIED);
    OK(md_close(look));
    stage_free(s);
}

/* The main member, killed between a commit and its wake. */
static void commit_and_tell_nobody(void *arg) {
    struct stage *s = arg;
    struct main_member m = open_main(NULL, SIZE);
    md__reg *reg;
    OK(md_address(m.reg, s->address, sizeof s->address));
    OK(md__enter(m.reg, &reg));
    step_give(s->ready);
    step_take(s->go);
    md__u32 *word = &md__event(reg, md__hash("n", 1))->word;
    md__poke32(word, md__peek32(word) & ~1u); /* so that a ring wakes no waiter */
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    step_give(s->ready);
    step_take(s->go);
}

/* The kernel wakes one sleeper, here the one whose fact exists: it returns with the fact. */
TEST(who_is_woken_by_the_death_tells_the_rest_even_when_it_has_what_it_waited_for) {
    int times = rounds(20), woken = 0;
    for (int i = 0; i < times; i++) {
        struct stage *s = stage_make();
        struct waiter first = {0}, second = {0};
        md_registry look;
        pid_t pid = child(commit_and_tell_nobody, s);
        CHECK(step_take(s->ready));
        OK(md_attach(s->address, 0, &look));
        uint64_t member = join(look, 0, MD_WORKER);
        waiter_start(&first, look, member, "n");
        waiter_start(&second, look, member, "never");
        step_give(s->go);
        CHECK(step_take(s->ready));
        kill_now(pid);
        OK(waiter_end(&first));
        EQ(waiter_end(&second), MD_EDIED);
        woken += second.stats.slices == 0;
        OK(md_leave(look, member));
        OK(md_close(look));
        stage_free(s);
    }
    if (has_waitv()) CHECK(woken > times / 2); /* a loaded machine may take a slice's time */
}

TEST(waiters_that_are_killed_hinder_nobody) {
    struct stage *s = stage_make();
    struct main_member m = open_main(NULL, SIZE);
    md_stats stats;
    OK(md_address(m.reg, s->address, sizeof s->address));
    for (int round = 0; round < rounds(30); round++) {
        struct bystander b = {s, 0};
        pid_t pid[6];
        md_record r;
        for (int i = 0; i < 6; i++) pid[i] = child(await_never, &b);
        struct waiter w = {0};
        until_waiting(m.reg, 6);
        waiter_start(&w, m.reg, m.member, "never");
        for (int i = 0; i < 3; i++) kill_now(pid[i]);
        OK(put(m, MD_STACK, "never", KEY, "b", &r));
        OK(waiter_end(&w));
        if (w.stats.slept_ns < 100000000) EQ(w.stats.slices, 0);
        for (int i = 3; i < 6; i++) EQ(reap(pid[i]), 0);
        OK(strike_out(m, &r));
        OK(md_leave(m.reg, join(m.reg, 1, MD_WORKER))); /* sweeps */
        EQ(waiters(m.reg), 0);
    }
    OK(md_stat(m.reg, &stats));
    EQ(stats.members, 1);
    EQ(stats.processes, 1);
    close_main(m);
    stage_free(s);
}

static void hold_the_lock(void *arg) {
    struct stage *s = arg;
    struct main_member w = attach_worker(s->address);
    md__reg *reg;
    OK(md__enter(w.reg, &reg));
    OK(md__lock(reg));
    step_give(s->ready);
    step_take(s->go);
}

TEST(the_lock_of_a_killed_holder_is_had_at_once_and_readers_never_stop) {
    struct stage *s = stage_make();
    struct main_member m = open_main(NULL, SIZE);
    int times = rounds(20);
    int64_t *latency = calloc((size_t)times, sizeof *latency);
    md_stats stats;
    OK(md_address(m.reg, s->address, sizeof s->address));
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    for (int i = 0; i < times; i++) {
        md_record r;
        pid_t pid = child(hold_the_lock, s);
        CHECK(step_take(s->ready));
        OK(find(m.reg, "n", KEY, NULL, 0));
        OK(md_stat(m.reg, &stats));
        kill_now(pid);
        int64_t start = md_now();
        OK(put(m, MD_STACK, "n", KEY, "b", &r));
        latency[i] = md_now() - start;
        OK(strike_out(m, &r));
        OK(md_stat(m.reg, &stats));
        EQ(stats.recoveries, i + 1);
        EQ(stats.members, 1);
        check_whole(m.reg);
    }
    print_latency("registration that finds the lock of a dead holder", latency, (size_t)times);
    free(latency);
    close_main(m);
    stage_free(s);
}

TEST(a_lock_that_is_held_for_long_is_waited_for_and_then_had) {
    struct stage *s = stage_make();
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, s->address, sizeof s->address));
    pid_t pid = child(hold_the_lock, s);
    CHECK(step_take(s->ready));
    pid_t killer = fork();
    if (killer == 0) {
        until_asleep(getppid(), getppid()); /* the parent waits for the lock */
        kill(pid, SIGKILL);
        _exit(0);
    }
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    EQ(reap(killer), 0);
    EQ(reap(pid), -SIGKILL);
    close_main(m);
    stage_free(s);
}

/* It takes ten seconds, so only in the long form. */
TEST(a_holder_that_was_stopped_is_reported_and_goes_on_later) {
    if (!getenv("MD_ROUNDS")) {
        printf("       (left out: set MD_ROUNDS)\n");
        return;
    }
    struct stage *s = stage_make();
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, s->address, sizeof s->address));
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    pid_t pid = child(hold_the_lock, s);
    CHECK(step_take(s->ready));
    kill(pid, SIGSTOP);
    int64_t start = md_now();
    EQ(put(m, MD_STACK, "n", KEY, "b", NULL), MD_ELOCK);
    CHECK(md_now() - start < limit(12000000000));
    OK(find(m.reg, "n", KEY, NULL, 0));
    kill_now(pid);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    close_main(m);
    stage_free(s);
}

static void join_and_stay(void *arg) {
    struct stage *s = arg;
    struct main_member w = attach_worker(s->address);
    join(w.reg, 1, MD_WORKER);
    step_give(s->ready);
    step_take(s->go);
}

TEST(dead_members_are_shown_as_dead_and_their_slots_serve_again) {
    struct stage *s = stage_make();
    struct main_member m = open_main(NULL, SIZE);
    md_member_info info[8];
    md_stats stats;
    size_t n;
    OK(md_address(m.reg, s->address, sizeof s->address));
    for (int i = 0; i < rounds(50); i++) {
        pid_t pid = child(join_and_stay, s);
        CHECK(step_take(s->ready));
        OK(md_members(m.reg, info, 8, &n));
        EQ(n, 3);
        CHECK(info[1].alive && info[2].alive && info[1].pid == (uint32_t)pid &&
              info[1].role == MD_WORKER);
        kill_now(pid);
        OK(md_members(m.reg, info, 8, &n));
        EQ(n, 3);
        CHECK(!info[1].alive && !info[2].alive && info[0].alive);
    }
    OK(md_leave(m.reg, join(m.reg, 1, MD_WORKER)));
    OK(md_stat(m.reg, &stats));
    EQ(stats.members, 1);
    EQ(stats.processes, 1);
    md__reg *reg;
    OK(md__enter(m.reg, &reg));
    EQ(md__read32(&md__header(reg)->process_top), 2);
    EQ(md__read32(&md__header(reg)->member_top), 3);
    md__exit(reg);
    close_main(m);
    stage_free(s);
}

TEST(there_is_room_for_all_the_members_and_an_error_for_one_more) {
    struct main_member m = open_main(NULL, SIZE);
    static uint64_t member[MD_MAX_MEMBERS];
    uint32_t role;
    uint64_t extra;
    for (int i = 1; i < MD_MAX_MEMBERS; i++) OK(md_join(m.reg, i, &member[i], &role));
    EQ(md_join(m.reg, 9999, &extra, &role), MD_EMEMBERS);
    check_whole(m.reg);
    OK(md_leave(m.reg, member[1000]));
    OK(md_join(m.reg, 9999, &extra, &role));
    for (int i = 1; i < MD_MAX_MEMBERS; i++)
        if (i != 1000) OK(md_leave(m.reg, member[i]));
    OK(md_leave(m.reg, extra));
    close_main(m);
}

/* --- futex_waitv, refused ----------------------------------------------------------------------- */

/* As a container's filter of system calls does it. */
static void refuse_waitv(uint32_t error) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 449 /* futex_waitv */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    EQ(syscall(449, NULL, 0, 0, NULL, 0), -1);
    EQ(errno, error);
}

struct refused {
    struct stage *stage;
    uint32_t error;
};

static void await_fact_and_death(void *arg) {
    struct refused *r = arg;
    struct stage *s = r->stage;
    struct main_member w = attach_worker(s->address);
    refuse_waitv(r->error);
    const char *names[] = {"n", "never"};
    for (int i = 0; i < 2; i++) {
        s->rc[i] = await_fact(w.reg, w.member, names[i], 1, MD_FOREVER, 0, &s->stats[i]);
        s->returned[i] = md_now();
        step_give(s->ready);
    }
}

TEST(whatever_errno_refuses_futex_waitv_facts_and_deaths_are_told) {
    uint32_t errors[] = {ENOSYS, EPERM, EACCES, EINVAL, EOPNOTSUPP, ENOMEM};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct stage *s = stage_make();
        struct refused r = {s, errors[i]};
        pid_t main_pid = child(be_main, s);
        CHECK(step_take(s->ready));
        pid_t waiter = child(await_fact_and_death, &r);
        struct main_member w = attach_worker(s->address);
        promote(w.reg, w.member);
        until_waiting(w.reg, 1);
        until_asleep(waiter, waiter);
        int64_t start = md_now();
        OK(put(w, MD_STACK, "n", KEY, "b", NULL));
        CHECK(step_take(s->ready));
        OK(s->rc[0]);
        CHECK(s->returned[0] - start < limit(2000000000));
        until_waiting(w.reg, 1);
        until_asleep(waiter, waiter);
        start = md_now();
        kill_now(main_pid);
        OK(reap(waiter));
        EQ(s->rc[1], MD_EDIED);
        CHECK(s->returned[1] - start < limit(2000000000));
        OK(md_leave(w.reg, w.member));
        OK(md_close(w.reg));
        stage_free(s);
    }
}

int main(void) {
    RUN(all_who_wait_are_told_when_the_main_member_is_killed);
    RUN(a_lease_taken_by_a_thread_lives_and_dies_with_the_process);
    RUN(a_wait_that_begins_after_the_death_ends_at_once_and_facts_can_still_be_read);
    RUN(who_is_woken_by_the_death_tells_the_rest_even_when_it_has_what_it_waited_for);
    RUN(waiters_that_are_killed_hinder_nobody);
    RUN(the_lock_of_a_killed_holder_is_had_at_once_and_readers_never_stop);
    RUN(a_lock_that_is_held_for_long_is_waited_for_and_then_had);
    RUN(a_holder_that_was_stopped_is_reported_and_goes_on_later);
    RUN(dead_members_are_shown_as_dead_and_their_slots_serve_again);
    RUN(there_is_room_for_all_the_members_and_an_error_for_one_more);
    RUN(whatever_errno_refuses_futex_waitv_facts_and_deaths_are_told);
    return test_done();
}
