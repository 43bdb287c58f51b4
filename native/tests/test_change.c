/* Waiting for any change: every waiter hears of every change, and no wake is lost. */
#include "trace.h"

enum { SIZE = 1 << 20, MANY = 32, CROWD = 8, LATE_NS = 20000000 };

/* --- one who waits for a change --------------------------------------------------------------- */

static uint64_t sequence(struct main_member m) {
    md_wait_stats s = {0};
    uint64_t now = 0;
    OK(md_await_change(m.reg, m.member, 0, 0, 0, &now, &s));
    EQ(s.sleeps, 0);
    return now;
}

struct watcher {
    struct main_member m;
    uint64_t seq;
    uint64_t ticket;
    int rc; /* these four are valid after watcher_end */
    uint64_t now;
    md_wait_stats stats;
    int64_t returned;
    md__u32 tid;
    pthread_t thread;
};

static void *watcher_run(void *arg) {
    struct watcher *w = arg;
    md__publish32(&w->tid, (uint32_t)syscall(SYS_gettid));
    w->rc =
        md_await_change(w->m.reg, w->m.member, w->seq, MD_FOREVER, w->ticket, &w->now, &w->stats);
    w->returned = md_now();
    return NULL;
}

/* Returns when the thread sleeps in its wait. */
static void watcher_start(struct watcher *w, md_registry reg, uint64_t member) {
    uint32_t before = waiters(reg);
    w->m = (struct main_member){reg, member};
    if (!w->seq) w->seq = sequence(w->m);
    pthread_create(&w->thread, NULL, watcher_run, w);
    until_waiting(reg, before + 1);
    until_asleep(getpid(), (pid_t)md__read32(&w->tid));
}

static int watcher_end(struct watcher *w) {
    pthread_join(w->thread, NULL);
    return w->rc;
}

/* --- the sequence ----------------------------------------------------------------------------- */

TEST(whoever_has_another_sequence_is_told_the_present_one_without_sleeping) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t first = sequence(m), now;
    md_wait_stats s = {0};
    md_record r;
    CHECK(first > 0);
    OK(put(m, MD_STACK, "n", KEY, "b", &r));
    EQ(r.seq, first);
    uint64_t seqs[] = {first, first - 1, first + 7, 0, UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        OK(md_await_change(m.reg, m.member, seqs[i], MD_FOREVER, 0, &now, &s));
        EQ(now, first + 1);
    }
    EQ(s.sleeps, 0);
    close_main(m);
}

TEST(every_change_raises_the_sequence_and_what_changes_no_fact_does_not) {
    struct main_member m = open_main(NULL, SIZE);
    md_record r, other;
    uint64_t seq = sequence(m);
    OK(put(m, MD_UNIQUE, "n", KEY, "b", &r));
    CHECK(sequence(m) > seq);
    seq = sequence(m);
    EQ(put(m, MD_UNIQUE, "n", KEY, "b", NULL), MD_EEXIST);
    uint64_t worker = join(m.reg, 1, MD_WORKER);
    EQ(md_strike(m.reg, worker, r.ref, r.seq), MD_EROLE);
    EQ(md_strike(m.reg, m.member, r.ref, r.seq + 1), MD_ENOENT);
    OK(find(m.reg, "n", KEY, NULL, 0));
    EQ(find(m.reg, "never", KEY, NULL, 0), MD_ENOENT);
    OK(md_leave(m.reg, worker));
    check_whole(m.reg);
    EQ(sequence(m), seq);
    OK(put(m, MD_STACK | MD_RAISE_ALL, "other", KEY, "b", &other));
    CHECK(sequence(m) > seq);
    seq = sequence(m);
    OK(strike_out(m, &r));
    CHECK(sequence(m) > seq);
    seq = sequence(m);
    OK(strike_out(m, &other));
    CHECK(sequence(m) > seq);
    close_main(m);
}

/* The number of a kind's records since a sequence, and of all live records of the kind. */
static size_t listed(struct main_member m, uint32_t kind, uint64_t since, uint64_t *live) {
    static char buf[1 << 19];
    size_t size, count = 0;
    uint64_t before = 0;
    md_record r;
    OK(md_list_since(m.reg, kind, since, buf, sizeof buf, &size, live));
    for (size_t at = 0; at < size; at += r.size, count++) {
        memcpy(&r, buf + at, sizeof r);
        CHECK(r.seq >= since && (!kind || r.kind == kind));
        CHECK(buf[at + sizeof r] == 'n' &&
              r.seq > before); /* all have one name here, so the oldest is first */
        before = r.seq;
    }
    return count;
}

TEST(facts_since_a_sequence_are_listed_and_all_of_the_kind_are_counted) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t live, first = sequence(m);
    md_record r[6];
    for (int i = 0; i < 6; i++) {
        char buf[BUF];
        uint32_t kind = i % 2 ? MD_DEF : MD_IMPL;
        OK(md_register(m.reg, m.member, kind, MD_STACK, i, "n", 1, "body", 4, "w", 1, buf,
                       sizeof buf));
        memcpy(&r[i], buf, sizeof r[i]);
    }
    for (uint64_t i = 0; i <= 6; i++) {
        EQ(listed(m, 0, first + i, &live), 6 - i);
        EQ(live, 6);
        EQ(listed(m, MD_DEF, first + i, &live), (6 - i + 1) / 2);
        EQ(live, 3);
        EQ(listed(m, MD_IMPL, first + i, &live), (6 - i) / 2);
        EQ(live, 3);
    }
    OK(strike_out(m, &r[1]));
    EQ(listed(m, MD_DEF, first + 4, &live), 1);
    EQ(live, 2);
    EQ(listed(m, MD_DEF, 0, &live), 2);
    EQ(listed(m, MD_LIBRARY, 0, &live), 0);
    EQ(live, 0);
    char small[8];
    size_t size;
    EQ(md_list_since(m.reg, MD_DEF, 0, small, sizeof small, &size, &live), MD_ENOBUFS);
    CHECK(size > sizeof small && live == 2);
    OK(md_list_since(m.reg, MD_DEF, UINT64_MAX, NULL, 0, &size, &live));
    CHECK(size == 0 && live == 2);
    close_main(m);
    EQ(md_list_since(m.reg, MD_DEF, 0, small, sizeof small, &size, &live), MD_ECLOSED);
}

/* A reader takes the sequence while a writer registers: all facts with a smaller seq exist. */
struct numbering {
    struct main_member m;
    md__u32 done;
    int facts;
};

static void *register_all(void *arg) {
    struct numbering *n = arg;
    for (int i = 0; i < n->facts && !test_failures; i++) {
        char name[4] = {'n', (char)('0' + i % 10), (char)('0' + i / 10 % 10)};
        OK(put(n->m, MD_STACK, name, KEY, "b", NULL));
    }
    md__publish32(&n->done, 1);
    return NULL;
}

TEST(facts_with_a_smaller_seq_are_there_to_be_seen) {
    enum { FACTS = 2000 };
    static char buf[1 << 19];
    for (int round = 0; round < rounds(20); round++) {
        uint64_t known = 0, live;
        struct numbering n = {.m = open_main(NULL, SIZE), .facts = FACTS};
        uint64_t seq = sequence(n.m), first = seq, now, version, node;
        md_wait_stats s = {0};
        pthread_t t;
        pthread_create(&t, NULL, register_all, &n);
        while (seq < first + FACTS && !test_failures) {
            size_t size, smaller = 0;
            md_record r;
            if (md_await_change(n.m.reg, n.m.member, seq, MD_FOREVER, 0, &now, &s) == MD_EINTR)
                continue; /* the main thread looks for signals */
            CHECK(now > seq);
            seq = now;
            OK(md_list(n.m.reg, NULL, 0, buf, sizeof buf, &size, &version, &node));
            for (size_t at = 0; at < size; at += r.size) {
                memcpy(&r, buf + at, sizeof r);
                smaller += r.seq < seq;
            }
            EQ(smaller, seq - first);
            uint64_t since = first + known;
            OK(md_list_since(n.m.reg, MD_IMPL, since, buf, sizeof buf, &size, &live));
            for (size_t at = smaller = 0; at < size; at += r.size) {
                memcpy(&r, buf + at, sizeof r);
                CHECK(r.seq >= since);
                smaller += r.seq < seq;
                known++;
            }
            EQ(smaller, seq - since);
            EQ(live, known);
            known = seq - first;
        }
        pthread_join(t, NULL);
        close_main(n.m);
    }
}

/* --- woken ------------------------------------------------------------------------------------ */

TEST(a_sleeper_is_woken_by_a_registration_and_by_a_strike_and_not_by_its_slice) {
    struct main_member m = open_main(NULL, SIZE);
    int times = rounds(200);
    int64_t *latency = calloc((size_t)times, sizeof *latency);
    md_record r;
    for (int i = 0; i < times; i++) {
        struct watcher w = {0};
        char name[2] = {(char)('a' + i / 2 % 26)}; /* the words of many names */
        watcher_start(&w, m.reg, m.member);
        int64_t start = md_now();
        OK(i % 2 ? strike_out(m, &r) : put(m, MD_STACK, name, KEY, "b", &r));
        OK(watcher_end(&w));
        latency[i] = w.returned - start;
        EQ(w.now, w.seq + 1);
        CHECK(w.stats.wakes || w.returned - start < limit(LATE_NS)); /* a slice that just ended */
        if (w.stats.slept_ns < 100000000) EQ(w.stats.slices, 0);
        EQ(w.stats.by_lease, 0);
    }
    print_latency("change to return of the waiter, threads", latency, (size_t)times);
    free(latency);
    close_main(m);
}

TEST(one_change_wakes_all_who_wait_for_any) {
    struct main_member m = open_main(NULL, SIZE);
    struct watcher w[MANY] = {0};
    struct waiter other = {0};
    waiter_start(&other, m.reg, m.member, "never");
    for (int i = 0; i < MANY; i++) watcher_start(&w[i], m.reg, m.member);
    EQ(waiters(m.reg), MANY + 1);
    int64_t start = md_now();
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    for (int i = 0; i < MANY; i++) {
        OK(watcher_end(&w[i]));
        CHECK(w[i].stats.wakes || w[i].returned - start < limit(LATE_NS));
        EQ(w[i].now, sequence(m));
    }
    EQ(waiters(m.reg), 1);
    OK(md_cancel(m.reg, m.member, 0));
    EQ(waiter_end(&other), MD_ECANCELED);
    close_main(m);
}

TEST(a_deadline_is_kept_and_not_anticipated) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t seq = sequence(m), now;
    for (int ms = 0; ms <= 250; ms += 50) {
        int64_t deadline = md_now() + ms * 1000000ll;
        md_wait_stats s = {0};
        int status, looks = 0;
        do status = md_await_change(m.reg, m.member, seq, deadline, 0, &now, &s);
        while (status == MD_EINTR && ++looks < 10); /* the main thread looks for signals */
        EQ(status, MD_ETIMEDOUT);
        EQ(now, seq);
        CHECK(md_now() >= deadline);
        EQ(s.wakes, 0);
    }
    md_wait_stats s = {0};
    EQ(md_await_change(m.reg, m.member, seq, -2, 0, &now, &s), MD_EINVAL);
    close_main(m);
}

TEST(who_waits_for_any_change_can_be_seen) {
    struct main_member m = open_main(NULL, SIZE);
    struct waiter before = {0};
    struct watcher w = {0};
    md_member_info info;
    size_t n;
    waiter_start(&before, m.reg, m.member, "name");
    int64_t start = md_now();
    watcher_start(&w, m.reg, m.member);
    OK(md_members(m.reg, &info, 1, &n));
    CHECK(info.waiters == 2 && info.wait_kind == 0 && info.wait_key == 0 && !info.wait_name[0]);
    CHECK((int64_t)info.waiting_ns >= start && (int64_t)info.waiting_ns <= md_now());
    OK(md_cancel(m.reg, m.member, 0));
    EQ(watcher_end(&w), MD_ECANCELED);
    EQ(waiter_end(&before), MD_ECANCELED);
    EQ(waiters(m.reg), 0);
    close_main(m);
}

/* --- ended ------------------------------------------------------------------------------------ */

TEST(a_cancel_ends_the_waits_of_its_ticket_whatever_they_wait_for) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t other = join(m.reg, 1, MD_WORKER);
    struct watcher w[3] = {{.ticket = 1}, {.ticket = UINT64_MAX}, {.ticket = 1}};
    struct waiter fact = {.ticket = 1};
    for (int i = 0; i < 3; i++) watcher_start(&w[i], m.reg, i < 2 ? m.member : other);
    waiter_start(&fact, m.reg, m.member, "n");
    uint64_t seq = sequence(m);
    OK(md_cancel(m.reg, m.member, 77));
    EQ(waiters(m.reg), 4);
    OK(md_cancel(m.reg, m.member, 1));
    EQ(watcher_end(&w[0]), MD_ECANCELED);
    EQ(w[0].now, seq);
    EQ(waiter_end(&fact), MD_ECANCELED);
    EQ(waiters(m.reg), 2);
    OK(md_cancel(m.reg, m.member, UINT64_MAX));
    EQ(watcher_end(&w[1]), MD_ECANCELED);
    EQ(waiters(m.reg), 1);
    OK(md_cancel(m.reg, other, 0));
    EQ(watcher_end(&w[2]), MD_ECANCELED);
    EQ(sequence(m), seq);
    OK(md_leave(m.reg, other));
    close_main(m);
}

/* A slice may end just then, so not every round shows the ring. */
TEST(who_waits_for_any_change_is_rung_when_the_main_member_leaves) {
    uint64_t wakes = 0;
    for (int round = 0; round < 10; round++) {
        struct main_member m = open_main(NULL, SIZE);
        char address[MD_MAX_ADDRESS];
        OK(md_address(m.reg, address, sizeof address));
        struct main_member other = attach_worker(address);
        struct watcher w = {0};
        watcher_start(&w, other.reg, other.member);
        OK(md_leave(m.reg, m.member));
        EQ(watcher_end(&w), MD_ECLOSED);
        wakes += w.stats.wakes;
        OK(md_leave(other.reg, other.member));
        OK(md_close(other.reg));
        OK(md_close(m.reg));
    }
    CHECK(wakes > 0);
}

TEST(a_member_that_leaves_takes_its_own_waits_along) {
    struct main_member m = open_main(NULL, SIZE);
    uint64_t worker = join(m.reg, 1, MD_WORKER), now;
    struct watcher mine = {0}, its = {0};
    md_wait_stats s = {0};
    watcher_start(&mine, m.reg, m.member);
    watcher_start(&its, m.reg, worker);
    OK(md_leave(m.reg, worker));
    EQ(watcher_end(&its), MD_ECLOSED);
    EQ(waiters(m.reg), 1);
    EQ(md_await_change(m.reg, worker, 0, MD_FOREVER, 0, &now, &s), MD_ECLOSED);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(watcher_end(&mine));
    close_main(m);
}

TEST(closing_the_handle_ends_its_waits) {
    for (int i = 0; i < rounds(50); i++) {
        struct main_member m = open_main(NULL, SIZE);
        struct watcher w[3] = {0};
        uint64_t now = 0;
        md_wait_stats s = {0};
        for (int j = 0; j < 3; j++) watcher_start(&w[j], m.reg, m.member);
        OK(md_close(m.reg));
        EQ(md_await_change(m.reg, m.member, 5, MD_FOREVER, 0, &now, &s), MD_ECLOSED);
        EQ(now, 5);
        for (int j = 0; j < 3; j++) EQ(watcher_end(&w[j]), MD_ECLOSED);
    }
}

/* Memory that the processes share with their test. */
struct stage {
    char address[MD_MAX_ADDRESS];
    struct step ready, go;
    int leaves;
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

static void be_main(void *arg) {
    struct stage *s = arg;
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, s->address, sizeof s->address));
    step_give(s->ready);
    step_take(s->go);
    if (s->leaves) OK(md_leave(m.reg, m.member));
}

struct bystander {
    struct stage *stage;
    int place;
};

static void await_one_change(void *arg) {
    struct bystander *b = arg;
    struct stage *s = b->stage;
    struct main_member w = attach_worker(s->address);
    uint64_t now, seq = sequence(w);
    do
        s->rc[b->place] =
            md_await_change(w.reg, w.member, seq, MD_FOREVER, 0, &now, &s->stats[b->place]);
    while (s->rc[b->place] == MD_EINTR);
    s->returned[b->place] = md_now();
}

static void main_ends_before_a_crowd(int leaves, int times) {
    int64_t *latency = calloc((size_t)(times * CROWD), sizeof *latency);
    for (int round = 0; round < times; round++) {
        struct stage *s = stage_make();
        struct bystander b[CROWD];
        pid_t pid[CROWD];
        md_registry look;
        s->leaves = leaves;
        pid_t main_pid = child(be_main, s);
        CHECK(step_take(s->ready));
        for (int i = 0; i < CROWD; i++) {
            b[i] = (struct bystander){s, i};
            pid[i] = child(await_one_change, &b[i]);
        }
        OK(md_attach(s->address, 0, &look));
        until_waiting(look, CROWD);
        for (int i = 0; i < CROWD; i++) until_asleep(pid[i], pid[i]);
        int64_t start = md_now();
        if (leaves)
            step_give(s->go);
        else
            kill(main_pid, SIGKILL);
        for (int i = 0; i < CROWD; i++) {
            EQ(reap(pid[i]), 0);
            EQ(s->rc[i], leaves ? MD_ECLOSED : MD_EDIED);
            if (has_waitv() && !leaves) EQ(s->stats[i].by_lease, 1);
            latency[round * CROWD + i] = s->returned[i] - start;
            CHECK(s->returned[i] - start < limit(2000000000));
        }
        EQ(reap(main_pid), leaves ? 0 : -SIGKILL);
        OK(md_close(look));
        stage_free(s);
    }
    print_latency(leaves ? "leaving of the main member to return of a waiter"
                         : "kill of the main member to return of a waiter",
                  latency, (size_t)(times * CROWD));
    free(latency);
}

TEST(all_who_wait_are_told_when_the_main_member_is_killed) {
    main_ends_before_a_crowd(0, rounds(20));
}

TEST(all_who_wait_are_told_when_the_main_member_leaves) {
    main_ends_before_a_crowd(1, rounds(5));
}

TEST(waiters_that_are_killed_hinder_nobody) {
    struct stage *s = stage_make();
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, s->address, sizeof s->address));
    for (int round = 0; round < rounds(30); round++) {
        struct bystander b = {s, 0};
        struct watcher w = {0};
        pid_t pid[6];
        md_record r;
        for (int i = 0; i < 6; i++) pid[i] = child(await_one_change, &b);
        until_waiting(m.reg, 6);
        watcher_start(&w, m.reg, m.member);
        for (int i = 0; i < 3; i++) kill_now(pid[i]);
        OK(put(m, MD_STACK, "n", KEY, "b", &r));
        OK(watcher_end(&w));
        if (w.stats.slept_ns < 100000000) EQ(w.stats.slices, 0);
        for (int i = 3; i < 6; i++) EQ(reap(pid[i]), 0);
        OK(strike_out(m, &r));
        OK(md_leave(m.reg, join(m.reg, 1, MD_WORKER))); /* sweeps */
        EQ(waiters(m.reg), 0);
    }
    close_main(m);
    stage_free(s);
}

static void wait_as_ones_parent(void *arg) {
    struct main_member *m = arg;
    uint64_t now;
    md_wait_stats s = {0};
    EQ(md_await_change(m->reg, m->member, 0, MD_FOREVER, 0, &now, &s), MD_ENOENT);
    m->member = join(m->reg, 0, MD_WORKER);
    CHECK(sequence(*m) == 2);
}

TEST(a_child_of_fork_waits_as_a_member_of_its_own_or_not_at_all) {
    struct main_member m = open_main(NULL, SIZE);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    EQ(reap(child(wait_as_ones_parent, &m)), 0);
    OK(md_leave(m.reg, join(m.reg, 1, MD_WORKER)));
    close_main(m);
}

/* --- killed writers --------------------------------------------------------------------------- */

static char address[MD_MAX_ADDRESS];
static md_record struck;

static void change_traced(void *arg) {
    int strikes = *(int *)arg;
    struct main_member w = attach_worker(address);
    promote(w.reg, w.member);
    be_traced();
    if (strikes)
        strike_out(w, &struck);
    else
        put(w, MD_STACK, "n", KEY, "B", NULL);
    _exit(0);
}

/* Kills the writer after that many instructions while another thread waits. Returns how many it
 * took. */
static long change_killed_at(int strikes, long at) {
    struct main_member m = open_main(NULL, SIZE);
    struct watcher w = {0};
    OK(md_address(m.reg, address, sizeof address));
    OK(put(m, MD_STACK, "n", KEY, "A", &struck));
    pid_t pid = child(change_traced, &strikes); /* before a thread exists */
    watcher_start(&w, m.reg, m.member);
    long took = step(pid, at);
    if (took == at) {
        kill(pid, SIGKILL);
        EQ(reap(pid), -SIGKILL);
    }
    char body[8] = "";
    find(m.reg, "n", KEY, body, sizeof body);
    int changed = strcmp(body, "A") != 0;
    int64_t killed = md_now();
    check_whole(m.reg); /* the lock's next holder repairs */
    if (changed) CHECK(sequence(m) > w.seq);
    if (sequence(m) == w.seq) {
        OK(md_cancel(m.reg, m.member, 0));
        EQ(watcher_end(&w), MD_ECANCELED);
    } else {
        OK(watcher_end(&w));
        CHECK(w.now > w.seq);
        CHECK(w.returned - killed < limit(1000000000));
    }
    close_main(m);
    return took;
}

TEST(a_change_by_a_writer_killed_at_any_instruction_is_heard_of) {
    cpu_set_t before = share_one_processor();
    for (int strikes = 0; strikes < 2; strikes++) {
        long points = 0, total = change_killed_at(strikes, 1L << 30);
        long stride = total / rounds(40);
        if (stride < 1) stride = 1;
        for (long at = first_point(stride); at < total && !test_failures;
             at += stride, points++)
            change_killed_at(strikes, at);
        printf("       %s: killed at %ld of %ld instructions\n", strikes ? "strike" : "register",
               points, total);
    }
    sched_setaffinity(0, sizeof before, &before);
}

/* Leaves the registry like a writer that was killed right after its commit: the facts are new, the
 * sequence is old, the lock is held. */
static void commit_only(void *arg) {
    struct bystander *b = arg;
    struct main_member w = attach_worker(b->stage->address);
    int strikes = b->place;
    md__reg *reg;
    struct md__node *node;
    promote(w.reg, w.member);
    if (!strikes) OK(put(w, MD_STACK, "n", KEY, "B", NULL));
    OK(md__enter(w.reg, &reg));
    OK(md__lock(reg));
    if (strikes) {
        OK(md__node_find(reg, "n", 1, md__hash("n", 1), &node));
        struct md__fact *newest = md__at(reg, md__peek32(&node->head), sizeof *newest);
        md__publish32(&node->head, md__peek32(&newest->next));
    } else {
        md__u64 *next_seq = &md__header(reg)->next_seq;
        md__publish64(next_seq, md__peek64(next_seq) - 1);
    }
    step_give(b->stage->ready);
    step_take(b->stage->go);
}

TEST(a_change_that_its_writer_could_not_tell_is_told_by_the_locks_next_holder) {
    for (int strikes = 0; strikes < 2; strikes++) {
        struct stage *s = stage_make();
        struct main_member m = open_main(NULL, SIZE);
        struct bystander b = {s, strikes};
        struct watcher w = {0};
        OK(md_address(m.reg, s->address, sizeof s->address));
        OK(put(m, MD_STACK, "n", KEY, "A", NULL));
        uint64_t seq = sequence(m);
        pid_t pid = child(commit_only, &b);
        CHECK(step_take(s->ready));
        EQ(find(m.reg, "n", KEY, NULL, 0), strikes ? MD_ENOENT : 0);
        EQ(sequence(m), seq);
        watcher_start(&w, m.reg, m.member);
        kill_now(pid);
        check_whole(m.reg); /* takes the lock, unless the watcher has, at the end of a slice */
        OK(watcher_end(&w));
        CHECK(w.now > seq);
        close_main(m);
        stage_free(s);
    }
}

/* --- no wake is lost -------------------------------------------------------------------------- */

/* Two sides take turns: each waits for changes until it is its turn, and then makes a change. */
struct game {
    char address[MD_MAX_ADDRESS];
    int rounds;
    md__u32 turn;
    md__u64 rung; /* when the change that gave it the turn returned; 0 before that */
    md__u64 lost, sleeps, slices, wakes;
};

static void play(struct game *g, struct main_member m, uint32_t side) {
    md_record r;
    uint64_t seq = sequence(m);
    for (uint32_t i = 0; i < (uint32_t)g->rounds && !test_failures; i++) {
        md_wait_stats s = {0};
        while (md__read32(&g->turn) != 2 * i + side) {
            int rc =
                md_await_change(m.reg, m.member, seq, md_now() + limit(30000000000), 0, &seq, &s);
            if (rc != MD_EINTR && !OK(rc)) return;
        }
        int64_t now = md_now(), rung;
        while ((rung = (int64_t)md__read64(&g->rung)) == 0) sched_yield();
        if (s.slices && !s.wakes && now - rung > LATE_NS) atomic_fetch_add(&g->lost, 1);
        atomic_fetch_add(&g->sleeps, s.sleeps);
        atomic_fetch_add(&g->slices, s.slices);
        atomic_fetch_add(&g->wakes, s.wakes);
        md__poke64(&g->rung, 0);
        md__publish32(&g->turn, 2 * i + side + 1);
        if (i % 2)
            OK(strike_out(m, &r));
        else
            OK(put(m, MD_UNIQUE, side ? "pong" : "ping", KEY, "ball", &r));
        md__publish64(&g->rung, (uint64_t)md_now());
    }
}

struct player {
    struct game *game;
    struct main_member m;
    uint32_t side;
};

static void *play_in_thread(void *arg) {
    struct player *p = arg;
    play(p->game, p->m, p->side);
    return NULL;
}

static void play_in_process(void *arg) {
    struct player *p = arg;
    struct main_member m = attach_worker(p->game->address);
    promote(m.reg, m.member);
    play(p->game, m, p->side);
    OK(md_close(m.reg));
}

static void hammer(int in_processes) {
    struct game *g = shared(sizeof *g);
    struct main_member m = open_main(NULL, SIZE);
    struct player p[2];
    pthread_t t[2];
    pid_t pid[2];
    g->rounds = rounds(20000);
    md__poke64(&g->rung, (uint64_t)md_now());
    OK(md_address(m.reg, g->address, sizeof g->address));
    int64_t start = md_now();
    for (uint32_t i = 0; i < 2; i++) {
        p[i] = (struct player){g, m, i};
        if (in_processes)
            pid[i] = child(play_in_process, &p[i]);
        else
            pthread_create(&t[i], NULL, play_in_thread, &p[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (in_processes)
            EQ(reap(pid[i]), 0);
        else
            pthread_join(t[i], NULL);
    }
    printf("       %d rounds, %.1f us per turn, %llu sleeps, %llu wakes, %llu slices\n", g->rounds,
           (double)(md_now() - start) / 1e3 / g->rounds / 2, (unsigned long long)g->sleeps,
           (unsigned long long)g->wakes, (unsigned long long)g->slices);
    EQ(g->lost, 0);
    EQ(md__read32(&g->turn), 2 * g->rounds);
    close_main(m);
    munmap(g, sizeof *g);
}

TEST(two_threads_lose_no_wake) {
    hammer(0);
}

TEST(two_processes_lose_no_wake) {
    hammer(1);
}

/* One side falls asleep while the other makes a change, with each delay between them that
 * matters. */
struct meeting {
    struct main_member m;
    md__u32 round;    /* raised by the changing side when both may start */
    md__u32 returned; /* raised by the waiting side */
    md__u64 rung;
    uint64_t seq;
    int rounds, lost;
};

static void *fall_asleep(void *arg) {
    struct meeting *g = arg;
    for (int i = 1; i <= g->rounds && !test_failures; i++) {
        md_wait_stats s = {0};
        uint64_t now_seq;
        for (int spins = 0; md__read32(&g->round) != (uint32_t)i; spins++)
            if (spins > 10000) sched_yield();
        if (!OK(md_await_change(g->m.reg, g->m.member, g->seq, md_now() + limit(30000000000), 0,
                                &now_seq, &s)))
            break;
        EQ(now_seq, g->seq + 1);
        g->seq = now_seq;
        int64_t now = md_now(), rung;
        while ((rung = (int64_t)md__read64(&g->rung)) == 0) sched_yield();
        g->lost += s.slices && !s.wakes && now - rung > LATE_NS;
        md__publish32(&g->returned, (uint32_t)i);
    }
    return NULL;
}

TEST(no_wake_is_lost_on_one_who_is_just_falling_asleep) {
    struct meeting g = {.rounds = rounds(20000)};
    pthread_t t;
    md_record r;
    g.m = open_main(NULL, SIZE);
    g.seq = sequence(g.m);
    pthread_create(&t, NULL, fall_asleep, &g);
    for (int i = 1; i <= g.rounds && !test_failures; i++) {
        md__publish64(&g.rung, 0);
        md__publish32(&g.round, (uint32_t)i);
        for (volatile int pause = i % 700; pause > 0; pause--) {}
        OK(i % 2 ? put(g.m, MD_STACK, "meet", KEY, "b", &r) : strike_out(g.m, &r));
        md__publish64(&g.rung, (uint64_t)md_now());
        while (md__read32(&g.returned) != (uint32_t)i && !test_failures) sched_yield();
    }
    pthread_join(t, NULL);
    EQ(g.lost, 0);
    close_main(g.m);
}

int main(void) {
    RUN(whoever_has_another_sequence_is_told_the_present_one_without_sleeping);
    RUN(every_change_raises_the_sequence_and_what_changes_no_fact_does_not);
    RUN(facts_since_a_sequence_are_listed_and_all_of_the_kind_are_counted);
    RUN(facts_with_a_smaller_seq_are_there_to_be_seen);
    RUN(a_sleeper_is_woken_by_a_registration_and_by_a_strike_and_not_by_its_slice);
    RUN(one_change_wakes_all_who_wait_for_any);
    RUN(a_deadline_is_kept_and_not_anticipated);
    RUN(who_waits_for_any_change_can_be_seen);
    RUN(a_cancel_ends_the_waits_of_its_ticket_whatever_they_wait_for);
    RUN(who_waits_for_any_change_is_rung_when_the_main_member_leaves);
    RUN(a_member_that_leaves_takes_its_own_waits_along);
    RUN(closing_the_handle_ends_its_waits);
    RUN(all_who_wait_are_told_when_the_main_member_is_killed);
    RUN(all_who_wait_are_told_when_the_main_member_leaves);
    RUN(waiters_that_are_killed_hinder_nobody);
    RUN(a_child_of_fork_waits_as_a_member_of_its_own_or_not_at_all);
    RUN_STEPPED(a_change_by_a_writer_killed_at_any_instruction_is_heard_of);
    RUN(a_change_that_its_writer_could_not_tell_is_told_by_the_locks_next_holder);
    RUN(two_threads_lose_no_wake);
    RUN(two_processes_lose_no_wake);
    RUN(no_wake_is_lost_on_one_who_is_just_falling_asleep);
    return test_done();
}
