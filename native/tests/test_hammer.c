/* No wake is lost: many rounds in which one side falls asleep for a fact that the other is about to
 * register.
 *
 * A wake was lost when a waiter came back because its slice ended, long after the registration that
 * it waited for had returned. Each side notes when its registration returned, so that the other can
 * tell.
 */
#include "test.h"

enum { SIZE = 4 << 20, LATE_NS = 20000000, SIDES = 4 };

/* Shared by the sides of one game. A side waits for its own name, then registers the next
 * side's. */
struct game {
    char address[MD_MAX_ADDRESS];
    int sides, rounds;
    md__u64
        rung[SIDES]; /* when the registration for which this side waits returned; 0 before that */
    md__u64 lost;
    md__u64 sleeps, slices, wakes;
};

static const char *const NAMES[SIDES] = {"ping", "pong", "pang", "pung"};

/* Passes the ball to `to`: its fact exists when this returns. */
static void pass(struct game *g, struct main_member m, int to, md_record *r) {
    OK(put(m, MD_UNIQUE, NAMES[to], KEY, "ball", r));
    md__publish64(&g->rung[to], (uint64_t)md_now());
}

static void judge_wait(struct game *g, int side, const md_wait_stats *s) {
    int64_t now = md_now(), rung;
    while ((rung = (int64_t)md__read64(&g->rung[side])) == 0) sched_yield();
    md__poke64(&g->rung[side], 0);
    if (s->slices && !s->wakes && now - rung > LATE_NS) atomic_fetch_add(&g->lost, 1);
    atomic_fetch_add(&g->sleeps, s->sleeps);
    atomic_fetch_add(&g->slices, s->slices);
    atomic_fetch_add(&g->wakes, s->wakes);
}

static void play(struct game *g, struct main_member m, int side) {
    int next = (side + 1) % g->sides;
    for (int i = 0; i < g->rounds && !test_failures; i++) {
        char buf[BUF];
        md_record mine;
        md_wait_stats s = {0};
        int64_t deadline = md_now() + limit(30000000000);
        int rc;
        do
            rc = md_await(m.reg, m.member, MD_IMPL, KEY, 1, NAMES[side], 4, deadline, 0, buf, BUF,
                          &s);
        while (rc == MD_EINTR); /* the main thread of a process looks for signals */
        if (!OK(rc)) break;
        judge_wait(g, side, &s);
        memcpy(&mine, buf, sizeof mine);
        OK(strike_out(m, &mine)); /* before the ball returns */
        pass(g, m, next, &mine);
    }
}

struct player {
    struct game *game;
    struct main_member m;
    int side;
    pthread_t thread;
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

static void tell(const struct game *g, int64_t ns) {
    printf("       %d sides, %d rounds, %.1f us per pass, %llu sleeps, %llu wakes, %llu slices\n",
           g->sides, g->rounds, (double)ns / 1e3 / g->rounds / g->sides,
           (unsigned long long)g->sleeps, (unsigned long long)g->wakes,
           (unsigned long long)g->slices);
    EQ(g->lost, 0);
}

static void hammer(int sides, int in_processes) {
    struct game *g = shared(sizeof *g);
    struct main_member m = open_main(NULL, SIZE);
    struct player p[SIDES];
    pid_t pid[SIDES];
    md_record r;
    g->sides = sides;
    g->rounds = rounds(20000);
    OK(md_address(m.reg, g->address, sizeof g->address));
    for (int i = 0; i < sides; i++) {
        p[i] = (struct player){.game = g, .m = m, .side = i};
        if (in_processes)
            pid[i] = child(play_in_process, &p[i]);
        else
            pthread_create(&p[i].thread, NULL, play_in_thread, &p[i]);
    }
    until_waiting(m.reg, (uint32_t)sides);
    int64_t start = md_now();
    pass(g, m, 0, &r);
    for (int i = 0; i < sides; i++) {
        if (in_processes)
            EQ(reap(pid[i]), 0);
        else
            pthread_join(p[i].thread, NULL);
    }
    tell(g, md_now() - start);
    close_main(m);
    munmap(g, sizeof *g);
}

TEST(two_threads_lose_no_wake) {
    hammer(2, 0);
}

TEST(four_threads_lose_no_wake) {
    hammer(4, 0);
}

TEST(two_processes_lose_no_wake) {
    hammer(2, 1);
}

TEST(four_processes_lose_no_wake) {
    hammer(4, 1);
}

/* Sleepers come and go on one event word while it is rung: only those that have to wake up do. */
struct crowd {
    struct main_member m;
    md__u32 round;
    int rounds;
    md__u64 lost;
    md__u64 rung;
};

static void *stand_in_crowd(void *arg) {
    struct crowd *c = arg;
    for (int i = 1; i <= c->rounds && !test_failures; i++) {
        md_wait_stats s;
        if (!OK(await_fact(c->m.reg, c->m.member, "crowd", (uint32_t)i,
                           md_now() + limit(30000000000), 0, &s)))
            break;
        int64_t now = md_now(), rung = (int64_t)md__read64(&c->rung);
        if (s.slices && !s.wakes && rung && now - rung > LATE_NS) atomic_fetch_add(&c->lost, 1);
        md__add32(&c->round, 1);
    }
    return NULL;
}

TEST(a_crowd_is_woken_each_time) {
    enum { CROWD = 6 };
    struct crowd c = {.rounds = rounds(300)};
    pthread_t t[CROWD];
    c.m = open_main(NULL, SIZE);
    for (int i = 0; i < CROWD; i++) pthread_create(&t[i], NULL, stand_in_crowd, &c);
    for (int i = 1; i <= c.rounds && !test_failures; i++) {
        md__poke64(&c.rung, 0);
        OK(put(c.m, MD_STACK, "crowd", KEY, "b", NULL));
        md__publish64(&c.rung, (uint64_t)md_now());
        while (md__read32(&c.round) < (uint32_t)(i * CROWD) && !test_failures) sched_yield();
    }
    for (int i = 0; i < CROWD; i++) pthread_join(t[i], NULL);
    EQ(c.lost, 0);
    close_main(c.m);
}

/* One side falls asleep while the other registers, with each delay between them that matters. */
struct meeting {
    struct main_member m;
    md__u32 round;    /* raised by the registering side when both may start */
    md__u32 returned; /* raised by the waiting side */
    md__u64 rung;
    int rounds, lost;
};

static void *fall_asleep(void *arg) {
    struct meeting *g = arg;
    for (int i = 1; i <= g->rounds && !test_failures; i++) {
        md_wait_stats s;
        while (md__read32(&g->round) != (uint32_t)i) {}
        if (!OK(await_fact(g->m.reg, g->m.member, "meet", 1, md_now() + limit(30000000000), 0, &s)))
            break;
        int64_t now = md_now(), rung;
        while ((rung = (int64_t)md__read64(&g->rung)) == 0) {}
        g->lost += s.slices && !s.wakes && now - rung > LATE_NS;
        md__publish32(&g->returned, (uint32_t)i);
    }
    return NULL;
}

TEST(no_wake_is_lost_on_one_who_is_just_falling_asleep) {
    struct meeting g = {.rounds = rounds(60000)};
    pthread_t t;
    g.m = open_main(NULL, SIZE);
    pthread_create(&t, NULL, fall_asleep, &g);
    for (int i = 1; i <= g.rounds && !test_failures; i++) {
        md_record r;
        md__publish64(&g.rung, 0);
        md__publish32(&g.round, (uint32_t)i);
        for (volatile int pause = i % 700; pause > 0; pause--) {}
        OK(put(g.m, MD_STACK, "meet", KEY, "b", &r));
        md__publish64(&g.rung, (uint64_t)md_now());
        while (md__read32(&g.returned) != (uint32_t)i && !test_failures) {}
        OK(strike_out(g.m, &r));
    }
    pthread_join(t, NULL);
    EQ(g.lost, 0);
    close_main(g.m);
}

int main(void) {
    RUN(no_wake_is_lost_on_one_who_is_just_falling_asleep);
    RUN(two_threads_lose_no_wake);
    RUN(four_threads_lose_no_wake);
    RUN(two_processes_lose_no_wake);
    RUN(four_processes_lose_no_wake);
    RUN(a_crowd_is_woken_each_time);
    return test_done();
}
