/* test_crowd.c - many waiters in one process: Note [Slices] in core/state/crowd.c, and no waiter is
 * forgotten.
 *
 * How a crowd hears of a change for which no ring came is shown by what ended each wait, not by a
 * clock: a waiter that came back at the end of its own slice counts no wake.
 */
#include "test.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MOST = 300 };
#else
enum { MOST = 1200 };
#endif

/* How many wait: MD_CROWD says fewer, for an emulator, in which each of them takes long to wake. */
static int many = MOST;

struct crowd {
    struct waiter waiters[MOST];
    struct main_member m;
};

/* When this returns, all of them are counted as waiting, and all but the last few sleep. */
static void crowd_begin(struct crowd *c, const char *const names[2], int second) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    for (int i = 0; i < many; i++) {
        c->waiters[i] = (struct waiter){.reg = c->m.reg,
                                        .member = c->m.member,
                                        .name = names[i >= many - second],
                                        .at_least = 1,
                                        .deadline = MD_FOREVER};
        OK(pthread_create(&c->waiters[i].thread, &attr, waiter_run, &c->waiters[i]));
    }
    pthread_attr_destroy(&attr);
    until_waiting(c->m.reg, many);
    for (int i = 0; i < many; i++) until_asleep(getpid(), (pid_t)md__read32(&c->waiters[i].tid));
}

static void crowd_end(struct crowd *c, int from, int to, int rc) {
    for (int i = from; i < to; i++) {
        OK(pthread_join(c->waiters[i].thread, NULL));
        EQ(c->waiters[i].rc, rc);
    }
}

static struct crowd crowd;
static const char *const ONE[2] = {"t::one", "t::one"};

TEST(one_registration_wakes_a_crowd) {
    crowd.m = open_main(NULL, 1 << 20);
    for (int round = 0; round < rounds(10); round++) {
        md_record r;
        crowd_begin(&crowd, ONE, 0);
        OK(put(crowd.m, MD_UNIQUE, "t::one", KEY, "b", &r));
        crowd_end(&crowd, 0, many, 0);
        OK(strike_out(crowd.m, &r));
    }
    close_main(crowd.m);
}

TEST(a_cancel_ends_its_waits_in_a_crowd_and_no_others) {
    crowd.m = open_main(NULL, 1 << 20);
    crowd_begin(&crowd, ONE, 0);
    struct waiter one = {.reg = crowd.m.reg,
                         .member = crowd.m.member,
                         .name = "t::one",
                         .at_least = 1,
                         .deadline = MD_FOREVER,
                         .ticket = 77};
    OK(pthread_create(&one.thread, NULL, waiter_run, &one));
    until_waiting(crowd.m.reg, many + 1);
    OK(md_cancel(crowd.m.reg, crowd.m.member, 77));
    OK(pthread_join(one.thread, NULL));
    EQ(one.rc, MD_ECANCELED);
    EQ(waiters(crowd.m.reg), many);
    OK(md_cancel(crowd.m.reg, crowd.m.member, 0));
    crowd_end(&crowd, 0, many, MD_ECANCELED);
    close_main(crowd.m);
}

/* The main thread runs signal handlers. It looks for signals every tenth of a second, even if it is
 * one of many waiters. */
TEST(the_main_thread_has_short_slices_in_a_crowd_as_well) {
    md__reg *reg;
    crowd.m = open_main(NULL, 1 << 20);
    crowd_begin(&crowd, ONE, 0);
    OK(md__enter(crowd.m.reg, &reg));
    for (int i = 0; i < 100; i++) EQ(md__slice(reg), MD__SLICE_NS);
    md__exit(reg);
    OK(md_cancel(crowd.m.reg, crowd.m.member, 0));
    crowd_end(&crowd, 0, many, MD_ECANCELED);
    close_main(crowd.m);
}

/* --- a writer that was killed before its wake ------------------------------------------------- */

struct writer {
    struct main_member m;
    uint64_t right; /* the main member's: the writer, a child of its fork, borrows it */
    bool raises;    /* whether it is killed after it raised the word, or before */
    uint32_t *left; /* how many still waited just before its death */
};

/* Commits, but cannot ring, since its event words are copies of its own. Then it dies with the
 * lock. */
static void commit_and_die(void *arg) {
    struct writer *w = arg;
    md__reg *reg;
    uint64_t member;
    uint32_t role;
    md__u32 *word, *words;
    md_record r;
    OK(md_join(w->m.reg, 0, &member, &role));
    OK(md__enter(w->m.reg, &reg));
    md__poke32(&md__member(reg, (uint32_t)member)->role, MD_MAIN);
    word = &md__event(reg, md__hash("t::one", 6))->word;
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reg->fd, MD__EVENTS_AT);
    if (words == MAP_FAILED) abort();
    word = words + (word - &md__event(reg, 0)->word);
    if (mmap(md__event(reg, 0), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, reg->fd,
             MD__EVENTS_AT) == MAP_FAILED)
        abort();
    OK(put((struct main_member){w->m.reg, member}, MD_UNIQUE, "t::one", KEY, "b", &r));
    OK(md__lock(reg));
    uint32_t seen = md__read32(word);
    while (w->raises && !md__swap_if32(word, &seen, (seen + 2) & ~1u)) {}
    *w->left = waiters(w->m.reg);
    if (test_failures == 0) kill(getpid(), SIGKILL);
}

static void tell_without_a_ring(bool raises) {
    struct writer w = {.raises = raises, .left = shared(sizeof *w.left)};
    int rung = 0;
    crowd.m = open_main(NULL, 1 << 20);
    w.m = crowd.m;
    crowd_begin(&crowd, ONE, 0);
    EQ(reap(child(commit_and_die, &w)), -SIGKILL);
    crowd_end(&crowd, 0, many, 0);
    for (int i = 0; i < many; i++) rung += crowd.waiters[i].stats.wakes > 0;
    /* The first whose slice ends rings the others; a machine that is slow has fewer asleep by then. */
    printf("       %d of %d were rung\n", rung, many);
    md_stats s;
    OK(md_stat(crowd.m.reg, &s));
    /* On a slow machine a processor may come to the writer so late that by its death they have found
     * the fact by themselves. Then nobody is left who would see how it died. */
    if (*w.left >= (uint32_t)many / 2)
        EQ(s.recoveries, 1);
    else
        printf("       (left out: at the writer's death only %u were left)\n", *w.left);
    close_main(crowd.m);
}

TEST(a_crowd_hears_of_what_was_committed_by_one_who_was_killed_before_its_ring) {
    tell_without_a_ring(false);
}

TEST(a_crowd_hears_of_what_was_committed_by_one_who_was_killed_between_ring_and_wake) {
    tell_without_a_ring(true);
}

/* --- a crowd that goes ------------------------------------------------------------------------ */

/* The waiters that stay chose their slices for a crowd; a ring makes them choose shorter ones. */
TEST(who_stays_behind_when_a_crowd_goes_does_not_keep_its_long_slices) {
    enum { FEW = 10 };
    static const char *const NAMES[2] = {"t::one", "t::other"};
    CHECK(md__hash(NAMES[0], 6) % MD__EVENTS != md__hash(NAMES[1], 8) % MD__EVENTS);
    crowd.m = open_main(NULL, 1 << 20);
    crowd_begin(&crowd, NAMES, FEW);
    OK(put(crowd.m, MD_UNIQUE, "t::one", KEY, "b", NULL));
    crowd_end(&crowd, 0, many - FEW, 0);
    EQ(waiters(crowd.m.reg), FEW);
    md__reg *reg;
    OK(md__enter(crowd.m.reg, &reg));
    CHECK(reg->paced < 2 * (FEW + 1)); /* no slice under way was chosen for more waiters */
    md__exit(reg);
    /* The waiters that were rung sleep again; otherwise the next ring would be the same one for
     * them. */
    for (int i = many - FEW; i < many; i++)
        until_asleep(getpid(), (pid_t)md__read32(&crowd.waiters[i].tid));
    OK(md_cancel(crowd.m.reg, crowd.m.member, 0));
    crowd_end(&crowd, many - FEW, many, MD_ECANCELED);
    /* On a slow machine the slice of a waiter may end just when the first ring comes. It finds by
     * itself that it goes on waiting, and only the second ring wakes it. */
    int twice = 0;
    for (int i = many - FEW; i < many; i++) twice += crowd.waiters[i].stats.wakes >= 2;
    printf("       %d of %d were rung twice\n", twice, FEW);
    CHECK(twice > 0);
    close_main(crowd.m);
}

int main(void) {
    const char *fewer = getenv("MD_CROWD");
    if (fewer && atoi(fewer) > 0 && atoi(fewer) < MOST) many = atoi(fewer);
    RUN(one_registration_wakes_a_crowd);
    RUN(a_cancel_ends_its_waits_in_a_crowd_and_no_others);
    RUN(the_main_thread_has_short_slices_in_a_crowd_as_well);
    RUN(a_crowd_hears_of_what_was_committed_by_one_who_was_killed_before_its_ring);
    RUN(a_crowd_hears_of_what_was_committed_by_one_who_was_killed_between_ring_and_wake);
    RUN(who_stays_behind_when_a_crowd_goes_does_not_keep_its_long_slices);
    return test_done();
}
