/* A writer that is killed at any instruction leaves the old state or the new one, and the next
 * holder of the lock goes on.
 *
 * The writer is a child that is made to write as the main member does. So the main member, here the
 * parent, lives on and checks. The child is stepped to an instruction by ptrace, or killed after a
 * random time in the middle of its work.
 */
#include "trace.h"

enum { SIZE = MD__MIN_CAPACITY + (1 << 18), POINTS = 24 };

static char address[MD_MAX_ADDRESS];

struct deed {
    const char *name;
    void (*prepare)(struct main_member m);
    void (*act)(struct main_member w);
    int (*is_done)(struct main_member m); /* 0 old, 1 new, -1 neither; takes no lock */
    int as_worker;                        /* this child is not made to write */
};

/* The bodies of one name, put together. */
static void bodies(md_registry reg, const char *name, char *text) {
    char buf[BUF];
    size_t size;
    uint64_t version, node;
    md_record r;
    OK(md_list(reg, name, strlen(name), buf, sizeof buf, &size, &version, &node));
    for (size_t at = 0; at < size; at += r.size) {
        memcpy(&r, buf + at, sizeof r);
        memcpy(text, buf + at + sizeof r + r.name_len, r.body_len);
        text += r.body_len;
    }
    *text = '\0';
}

static int old_or_new(md_registry reg, const char *name, const char *old, const char *new) {
    char text[256];
    bodies(reg, name, text);
    return strcmp(text, old) == 0 ? 0 : strcmp(text, new) == 0 ? 1 : -1;
}

static md_record middle;

static void three_facts(struct main_member m) {
    OK(put(m, MD_STACK, "n", KEY, "A", NULL));
    OK(put(m, MD_STACK, "n", KEY, "B", &middle));
    OK(put(m, MD_STACK, "n", KEY, "C", NULL));
}
static void half_full_index(struct main_member m) {
    char name[16];
    for (int i = 0; i < 128; i++) {
        snprintf(name, sizeof name, "n%d", i);
        OK(put(m, MD_STACK, name, KEY, "A", NULL));
    }
}
static void reused_block(struct main_member m) {
    three_facts(m);
    OK(strike_out(m, &middle));
}
static void register_one(struct main_member w) {
    put(w, MD_STACK, "n", KEY, "D", NULL);
}
static void register_for_all(struct main_member w) {
    put(w, MD_STACK | MD_RAISE_ALL, "n", KEY, "D", NULL);
}
static void register_new_name(struct main_member w) {
    put(w, MD_STACK, "fresh", KEY, "D", NULL);
}
static void strike_middle(struct main_member w) {
    strike_out(w, &middle);
}
static void join_again(struct main_member w) {
    uint64_t member;
    uint32_t role;
    md_join(w.reg, 3, &member, &role);
}
static void leave(struct main_member w) {
    md_leave(w.reg, w.member);
}
static int has_d(struct main_member m) {
    return old_or_new(m.reg, "n", "ABC", "ABCD");
}
static int has_d_without_b(struct main_member m) {
    return old_or_new(m.reg, "n", "AC", "ACD");
}
static int has_fresh(struct main_member m) {
    return old_or_new(m.reg, "fresh", "", "D");
}
static int lacks_b(struct main_member m) {
    return old_or_new(m.reg, "n", "ABC", "AC");
}
static int nothing_to_see(struct main_member m) {
    return old_or_new(m.reg, "n", "ABC", "ABC");
}

static const struct deed DEEDS[] = {
    {"register", three_facts, register_one, has_d, 0},
    {"register in a block that served before", reused_block, register_one, has_d_without_b, 0},
    {"register with raise-all", three_facts, register_for_all, has_d, 0},
    {"register a new name", three_facts, register_new_name, has_fresh, 0},
    {"register a new name while the index grows", half_full_index, register_new_name, has_fresh, 0},
    {"strike", three_facts, strike_middle, lacks_b, 0},
    {"join", three_facts, join_again, nothing_to_see, 0},
    {"leave", three_facts, leave, nothing_to_see, 1},
};

static void do_traced(void *arg) {
    const struct deed *d = arg;
    struct main_member w = attach_worker(address);
    if (!d->as_worker) promote(w.reg, w.member);
    be_traced();
    d->act(w);
    _exit(0);
}

static void check_goes_on(struct main_member m) {
    md_record r;
    check_whole(m.reg);
    OK(put(m, MD_STACK, "n", KEY, "after", &r));
    OK(put(m, MD_STACK, "fresh", KEY, "after", NULL));
    OK(put(m, MD_STACK, "newer", KEY, "after", NULL));
    OK(strike_out(m, &r));
    uint64_t member = join(m.reg, 9, MD_WORKER); /* sweeps */
    md_stats s;
    OK(md_stat(m.reg, &s));
    EQ(s.members, 2);
    OK(md_leave(m.reg, member));
}

/* Kills it after `count` instructions. Returns whether the deed was done by then, and sets `count`
 * to the steps that it took. */
static int kill_at(const struct deed *d, long *count) {
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, address, sizeof address));
    d->prepare(m);
    md_stats s;
    OK(md_stat(m.reg, &s));
    uint64_t seq = s.next_seq;
    pid_t pid = child(do_traced, (void *)d);
    long took = step(pid, *count);
    int ended = took < *count;
    if (!ended) {
        kill(pid, SIGKILL);
        EQ(reap(pid), -SIGKILL);
    }
    *count = took;
    int done = d->is_done(m);
    CHECK(done >= 0);
    check_whole(m.reg);
    EQ(d->is_done(m), done);
    OK(md_stat(m.reg, &s));
    CHECK(s.next_seq > seq || !done); /* a waiter for any change hears of this one */
    check_goes_on(m);
    OK(md_stat(m.reg, &s));
    done |= (int)s.recoveries << 1;
    close_main(m);
    return done;
}

static void kill_everywhere(const struct deed *d) {
    long total = 1L << 30;
    EQ(kill_at(d, &total) >> 1, 0);
    long stride = total / rounds(POINTS), recoveries = 0, points = 0;
    if (stride < 1) stride = 1;
    for (long at = first_point(stride); at < total && !test_failures; at += stride, points++) {
        long steps = at;
        int done = kill_at(d, &steps);
        recoveries += done >> 1;
    }
    CHECK(recoveries > 0 || points < 20);
    printf("       %s: killed at %ld of %ld instructions, holding the lock at %ld\n", d->name,
           points, total, recoveries);
}

TEST(a_writer_killed_at_any_instruction_leaves_the_old_state_or_the_new_one) {
    cpu_set_t before = share_one_processor();
    for (size_t i = 0; i < sizeof DEEDS / sizeof *DEEDS; i++) kill_everywhere(&DEEDS[i]);
    sched_setaffinity(0, sizeof before, &before);
}

/* A sleeper sees the fact that the killed writer had committed, although no ring came: its slice
 * ends its sleep. */
TEST(a_fact_that_was_committed_but_not_rung_is_found_within_a_slice) {
    long total = 1L << 30;
    int found = 0;
    kill_at(&DEEDS[0], &total);
    for (long i = 0; i < rounds(20); i++) {
        struct main_member m = open_main(NULL, SIZE);
        struct waiter w = {.at_least = 4};
        OK(md_address(m.reg, address, sizeof address));
        three_facts(m);
        pid_t pid = child(do_traced, (void *)&DEEDS[0]); /* before a thread exists */
        waiter_start(&w, m.reg, m.member, "n");
        long at = total / 2 + (total / 2) * i / rounds(20);
        if (step(pid, at) == at) {
            kill(pid, SIGKILL);
            reap(pid);
        }
        int64_t killed = md_now();
        if (has_d(m) == 1) {
            OK(waiter_end(&w));
            CHECK(w.returned - killed < limit(1000000000));
            found++;
        } else {
            OK(md_cancel(m.reg, m.member, 0));
            EQ(waiter_end(&w), MD_ECANCELED);
        }
        close_main(m);
    }
    CHECK(found > 0 || rounds(20) < 20);
}

/* --- killed after a random time --------------------------------------------------------------- */

enum { SLOTS = 24, NAMES = 3 };

/* The writer's diary: it notes each deed before and after. */
struct diary {
    md__u32 live[SLOTS];
    md__u32 pending; /* the slot that it is changing; SLOTS: none */
    md__u32 deeds;
    md_record record[SLOTS];
};
static struct diary *diary;

static const char *name_of(int slot) {
    static const char *const names[NAMES] = {"x", "y", "z"};
    return names[slot % NAMES];
}

static void work_for_ever(void *arg) {
    struct main_member w = attach_worker(address);
    unsigned random = (unsigned)test_seed() + md__read32(&diary->deeds);
    promote(w.reg, w.member);
    step_give(*(struct step *)arg);
    while (!test_failures) {
        char body[200];
        random = random * 1103515245 + 12345;
        int slot = (int)(random >> 16) % SLOTS;
        md__publish32(&diary->pending, (uint32_t)slot);
        if (md__read32(&diary->live[slot])) {
            OK(strike_out(w, &diary->record[slot]));
            md__publish32(&diary->live[slot], 0);
        } else {
            snprintf(body, sizeof body, "%*d", 1 + (int)(random >> 8) % 150, slot);
            OK(put(w, slot % 5 ? MD_STACK : MD_STACK | MD_RAISE_ALL, name_of(slot), slot, body,
                   &diary->record[slot]));
            md__publish32(&diary->live[slot], 1);
        }
        md__publish32(&diary->pending, SLOTS);
        md__add32(&diary->deeds, 1);
    }
}

/* Compares the registry with the diary, and brings the diary up to date if the writer was
 * interrupted. */
static void read_diary(struct main_member m) {
    uint32_t pending = md__read32(&diary->pending);
    for (int slot = 0; slot < SLOTS; slot++) {
        char buf[BUF];
        int rc = md_find(m.reg, MD_IMPL, slot, name_of(slot), 1, buf, sizeof buf);
        CHECK(rc == 0 || rc == MD_ENOENT);
        if ((uint32_t)slot != pending) EQ(rc == 0, md__peek32(&diary->live[slot]));
        md__poke32(&diary->live[slot], rc == 0);
        if (rc) continue;
        memcpy(&diary->record[slot], buf, sizeof(md_record));
        char body[256] = "";
        memcpy(body, buf + sizeof(md_record) + 1, diary->record[slot].body_len);
        EQ(atoi(body), slot);
    }
}

TEST(writers_killed_at_random_moments_spoil_nothing) {
    struct main_member m = open_main(NULL, SIZE);
    struct step ready = step_make();
    unsigned random = (unsigned)test_seed();
    md_stats s;
    int times = rounds(400);
    OK(md_address(m.reg, address, sizeof address));
    diary = shared(sizeof *diary);
    for (int i = 0; i < times && !test_failures; i++) {
        md__poke32(&diary->pending, SLOTS);
        pid_t pid = child(work_for_ever, &ready);
        if (!CHECK(step_take(ready))) break;
        random = random * 1103515245 + 12345;
        for (int64_t end = md_now() + (random >> 8) % 1000000; md_now() < end;) {}
        kill_now(pid);
        read_diary(m);
        check_whole(m.reg);
        read_diary(m);
    }
    OK(md_stat(m.reg, &s));
    printf("       %d killed, %u deeds, %llu recoveries\n", times, md__read32(&diary->deeds),
           (unsigned long long)s.recoveries);
    EQ(s.names, NAMES);
    CHECK(s.committed < SIZE);
    munmap(diary, sizeof *diary);
    step_free(ready);
    close_main(m);
}

int main(void) {
    RUN_STEPPED(a_writer_killed_at_any_instruction_leaves_the_old_state_or_the_new_one);
    RUN_STEPPED(a_fact_that_was_committed_but_not_rung_is_found_within_a_slice);
    RUN(writers_killed_at_random_moments_spoil_nothing);
    return test_done();
}
