/* A process that dies at any instruction of any operation leaves the old state or the new one, and
 * the next process goes on.
 *
 * A child is stepped through an operation. After each instruction that has changed the region (or
 * the list by which the kernel knows the child's robust mutexes) the child's twin is killed at that
 * point in a copy of the region (stepper.h). A fresh process then uses the copy: it reads without
 * the lock, takes the lock (and recovers, if its holder died), checks every invariant, compares the
 * state with those before and after the call under way, and registers and strikes. A recovery is an
 * operation like the others: it, too, is stepped and killed everywhere.
 *
 * Before that one, another process comes that has lost its descriptor: it reads the same, cannot
 * repair, and leaves the repair.
 *
 * A sample has each operation in an empty registry and each kind of recovery after one of the
 * moments of a death, of each a part of the images; and some operations in a registry that is not
 * empty. Seeds in a row have others, until all have been tried. With MD_ALL=1 all are, at once:
 * docs/reliability.md has the table. An argument selects the operations with this text in their
 * names.
 */
#include "crash_bridge.h"

enum { MAX_IMAGES = 1 << 14, LONGEST_CHAIN = 3 };

/* Of a sample. One operation in so many is tried in a registry that is not empty; one image in so
 * many is looked at, and one of these in so many also left to the next process. The last three are
 * primes, and no recovery has a multiple of them as the number of its moments: so some seed has each
 * image with each of the rest. No scene has fewer than 15 images. */
enum { ONE_OPERATION_IN = 16, ONE_IMAGE_IN = 5, ONE_OF_MANY_IN = 11, ONE_LEFT_IN = 13 };

static const char *only = ""; /* the rows with this text in their names */

/* Shows a few faults, not thousands. */
static int give_up(void) {
    return test_failures >= 20;
}

/* --- one image -------------------------------------------------------------------------------- */

struct found {
    uint64_t facts;
    int held; /* by the dead one */
    int ended;
};

struct image {
    struct found found;
    int call; /* that was under way */
    long instruction;
};

/* One cell of the table: an operation in a registry filled to some degree. */
struct cell {
    const struct op *op;
    enum fill fill;
    struct main_member m;
    struct stepper stepper;
    struct state state; /* before the call under way */
    uint64_t facts[8];  /* before the operation, and after each of its calls */
    long images;
    struct image *image; /* those that were checked */
    long looked;
    uint64_t *seen; /* hashes */
    struct found *found;
};

static void check_goes_on(struct cell *c) {
    struct main_member w = c->m;
    md_stats s;
    md_record r;
    uint32_t role;
    EQ(md_join(w.reg, 98, &w.member, &role), 0);
    OK(md_stat(w.reg, &s)); /* the dead processes are gone */
    EQ(s.members, 2);
    EQ(s.processes, 2);
    promote(w.reg, w.member);
    if (listed_size) {
        /* Another of its kind must fit into the place that it leaves, however full the region
         * is. */
        char name[MD_MAX_NAME + 1] = "";
        memcpy(&r, listed, sizeof r);
        memcpy(name, listed + sizeof r, r.name_len);
        char *body = listed + sizeof r + r.name_len;
        body[r.body_len] = '\0';
        OK(strike_out(w, &r));
        EQ(strike_out(w, &r), MD_ENOENT);
        OK(put_kind(w, r.kind, MD_STACK, r.key, name, body, &r));
        check_newest(&r);
        OK(strike_out(w, &r));
    }
    int rc = put_body(w, "a name that was never there", "D", &r);
    if (rc != MD_EFULL || c->fill != NEARLY_FULL) OK(rc);
    if (rc == 0) {
        check_newest(&r);
        OK(find(w.reg, "a name that was never there", KEY, NULL, 0));
        OK(strike_out(w, &r));
        EQ(find(w.reg, "a name that was never there", KEY, NULL, 0), MD_ENOENT);
    }
    check_whole(w.reg);
    OK(md_leave(w.reg, w.member));
}

/* The same in a team. `left` is the state without the dead processes. */
static void check_team_goes_on(struct cell *c, uint64_t left) {
    static const char *const SPACES[] = {"shop", "own", "fresh"};
    struct main_member w = c->m;
    md_stats s;
    md_record r;
    w.member = join(w.reg, 98, MD_PEER);
    CHECK(list_all_facts(w.reg) == left);
    OK(md_stat(w.reg, &s));
    EQ(s.members, 2);
    EQ(s.processes, 2);
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s::f", SPACES[i]);
        int other = is_claimed(SPACES[i], strlen(SPACES[i]), 0), rc = peer_claim(w, SPACES[i]);
        if (rc == MD_EFULL && c->fill == NEARLY_FULL) continue;
        EQ(rc, other ? MD_EEXIST : 0);
        rc = put_body(w, name, "", &r);
        if (rc != MD_EFULL || c->fill != NEARLY_FULL) EQ(rc, other ? MD_EROLE : 0);
        if (rc == 0) {
            check_newest(&r);
            OK(strike_out(w, &r));
            OK(put_body(w, name, "", &r));
        }
        OK(peer_release(w, SPACES[i]));
    }
    CHECK(list_all_facts(w.reg) == left);
    check_whole(w.reg);
    OK(md_leave(w.reg, w.member));
}

/* The same on a host of a cluster: whatever the dead have left, it stays, and the next bridge goes on
 * with it. */
static void check_host_goes_on(struct cell *c, uint64_t left) {
    struct main_member worker = c->m, bridge = c->m;
    md_stats s;
    md_record r;
    worker.member = join(worker.reg, 98, MD_WORKER);
    bridge.member = join(bridge.reg, MD_AS_BRIDGE, MD_BRIDGE);
    CHECK(list_all_facts(bridge.reg) == left);
    OK(md_stat(bridge.reg, &s));
    EQ(s.members, 3);
    EQ(s.processes, 2);
    int other = is_claimed(QUEUE, strlen(QUEUE), 0);
    EQ(peer_claim(worker, QUEUE), MD_EROLE);
    EQ(put_body(worker, "n", "", &r), MD_EROLE);
    EQ(put_body(bridge, "n", "", &r), MD_EROLE);
    int rc = peer_claim(bridge, QUEUE);
    if (rc != MD_EFULL || c->fill != NEARLY_FULL) EQ(rc, other ? MD_EEXIST : 0);
    if (rc == 0) {
        rc = put_body(bridge, "n", "", &r);
        if (rc != MD_EFULL || c->fill != NEARLY_FULL) OK(rc);
        if (rc == 0) {
            check_newest(&r);
            EQ(strike_out(worker, &r), MD_EROLE);
            OK(strike_out(bridge, &r));
        }
        OK(peer_release(bridge, QUEUE));
    }
    OK(md_leave(worker.reg, worker.member));
    check_whole(bridge.reg);
    OK(md_leave(bridge.reg, bridge.member));
    CHECK(list_all_facts(c->m.reg) == left);
}

static int needs_repair(const char *region) {
    const struct md__header *h = (const struct md__header *)region;
    return (holder_of_the_lock(region) & FUTEX_OWNER_DIED) || md__read32(&h->repair_owed);
}

/* In a process that cannot look. */
static void leave_to_the_next(void *arg) {
    struct cell *c = arg;
    md_stats before, after;
    alarm((unsigned)limit(30));
    enter_copy(&c->stepper);
    lose_descriptor(c->m);
    int held = needs_repair(c->stepper.view);
    OK(md_stat(c->m.reg, &before));
    uint64_t facts = list_all_facts(c->m.reg);
    check_all_found(c->m.reg);
    EQ(md_check(c->m.reg, NULL, 0), held ? MD_ELOST : 0);
    EQ(needs_repair(c->stepper.view), held);
    EQ(holder_of_the_lock(c->stepper.view), 0);
    OK(md_stat(c->m.reg, &after));
    EQ(memcmp(&before, &after, sizeof after), 0);
    CHECK(list_all_facts(c->m.reg) == facts);
}

/* In a fresh process: checks the state that the dead one has left. */
static void look_after_death(void *arg) {
    struct cell *c = arg;
    static struct state now;
    md_stats s;
    alarm((unsigned)limit(30));
    enter_copy(&c->stepper);
    int held = needs_repair(c->stepper.view);
    OK(md_stat(c->m.reg, &s));
    uint64_t recoveries = s.recoveries, unlocked = list_all_facts(c->m.reg);
    check_all_found(c->m.reg);
    uint64_t left = hash_for((uint32_t)getppid());
    if (team_now) check_all_claimed();
    OK(md_stat(c->m.reg, &s));
    EQ(s.recoveries, recoveries); /* the readers did not need the lock */
    check_whole(c->m.reg);
    OK(md_stat(c->m.reg, &s));
    EQ(s.recoveries, recoveries + (uint64_t)held);
    EQ(needs_repair(c->stepper.view), 0);
    take_state(c->m.reg, &now);
    CHECK(now.facts == (held ? left : unlocked)); /* a recovery sweeps */
    check_told(&c->state, &now, c->op->raises_all);
    c->found->facts = left;
    c->found->held = held;
    md__reg *reg;
    OK(md__enter(c->m.reg, &reg));
    uint32_t state = md__read32(&md__header(reg)->state);
    md__exit(reg);
    if (state == MD__OPEN && team_now)
        check_team_goes_on(c, left);
    else if (state == MD__OPEN && host_now)
        check_host_goes_on(c, left);
    else if (state == MD__OPEN)
        check_goes_on(c);
    else
        CHECK(state == MD__CLOSED && c->op == &MAIN_LEAVES);
    c->found->ended = 1;
}

static void look_at_image(struct cell *c) {
    if (!CHECK(c->looked < MAX_IMAGES)) return;
    struct image *i = &c->image[c->looked++];
    *c->found = (struct found){0};
    stepper_kill_twin(&c->stepper);
    int rc = in_sample((uint64_t)c->looked, ONE_LEFT_IN) ? reap(child(leave_to_the_next, c)) : 0;
    if (rc == 0) rc = reap(child(look_after_death, c));
    i->found = *c->found;
    i->found.ended &= rc == 0;
    i->call = (int)md__read32(&c->stepper.stops->calls_done);
    i->instruction = c->stepper.stops->instructions;
    if (i->found.ended) return;
    fprintf(stderr, "%s, fill %d: after instruction %ld of call %d\n", c->op->name, c->fill,
            i->instruction, i->call);
    test_failures++;
}

static int is_new_image(struct cell *c) {
    uint64_t h = image_hash(&c->stepper) | 1;
    uint64_t at = h;
    while (c->seen[at % (4 * MAX_IMAGES)]) {
        if (c->seen[at++ % (4 * MAX_IMAGES)] == h) return 0;
    }
    if (!CHECK(c->images < 2 * MAX_IMAGES)) return 0;
    c->seen[at % (4 * MAX_IMAGES)] = h;
    return 1;
}

/* --- one operation ---------------------------------------------------------------------------- */

static void act_stepped(void *arg) {
    struct cell *c = arg;
    struct main_member w = c->m;
    OK(md_attach(address, 0, &w.reg));
    if (c->op->as != STRANGER) w.member = join(w.reg, 0, team_now ? MD_PEER : MD_WORKER);
    if (c->op->as == WRITER && host_now)
        w.member = join(w.reg, MD_AS_BRIDGE, MD_BRIDGE);
    else if (c->op->as == WRITER && !team_now)
        promote(w.reg, w.member);
    if (c->op->ready) c->op->ready(w);
    be_stepped(&c->stepper);
    for (int call = 0; call < c->op->calls; call++) {
        EQ(c->op->act(w, call), c->op->should);
        md__add32(&c->stepper.stops->calls_done, 1);
    }
    be_stepped_no_more();
}

/* As if a waiter slept on every word, so that each ring has one to wake. */
static void arm_all_words(md_registry handle) {
    md__reg *reg;
    OK(md__enter(handle, &reg));
    for (uint32_t i = 0; i < MD__EVENTS; i++) md__event_prepare(&md__event(reg, i)->word);
    md__event_prepare(&md__header(reg)->changes);
    md__exit(reg);
}

static void start(struct cell *c, const struct op *op) {
    c->op = op;
    arm_all_words(c->m.reg);
    stepper_start(&c->stepper, act_stepped, c);
    if (op->then) op->then(c->m);
}

static int holds_the_lock(const struct cell *c) {
    return (holder_of_the_lock(c->stepper.base) & FUTEX_TID_MASK) == (uint32_t)c->stepper.pid;
}

/* Lets the child run until it has made that many changes while it holds the lock, or to its end.
 * Returns how many it made. */
static long step_to_change(struct cell *c, long count) {
    long changes = 0;
    do {
        if (c->stepper.changed && holds_the_lock(c) && ++changes == count) break;
    } while (stepper_next(&c->stepper));
    return changes;
}

/* Like a thread that finds the lock taken, so that the release has one to wake, too. */
static void wait_for_the_lock(struct cell *c) {
    struct md__header *h = md__header(c->stepper.reg);
    if (holds_the_lock(c)) md__or32(md__lease_word((struct md__process *)&h->mutex), FUTEX_WAITERS);
}

static void step_and_look(struct cell *c, uint64_t one_in) {
    int done = -1;
    do {
        if ((int)md__read32(&c->stepper.stops->calls_done) > done) {
            done++;
            take_state(c->m.reg, &c->state);
            c->facts[done] = hash_for((uint32_t)getpid());
        }
        if (c->stepper.changed && is_new_image(c) && in_sample((uint64_t)c->images++, one_in))
            look_at_image(c);
        if (c->op->waited_for) wait_for_the_lock(c);
    } while (!give_up() && stepper_next(&c->stepper));
}

/* --- a killed operation, and what follows it -------------------------------------------------- */

static void close_scene(struct cell *c) {
    stepper_close(&c->stepper);
    close_main(c->m);
}

/* A registry in which all operations of the chain have died. The last one first runs to its end in
 * a registry of its own, to count its changes. */
static void open_after(struct cell *c, const struct op *first, const struct death *chain) {
    long count = 0;
    int n = 0;
    while (chain && chain[n].op) n++;
    long at[LONGEST_CHAIN];
    for (int known = 0; known <= n && !give_up(); known++) {
        c->m = open_scene(first, c->fill);
        stepper_open(&c->stepper, c->m.reg);
        for (int i = 0; i < known; i++) {
            start(c, chain[i].op);
            if (chain[i].den) {
                EQ(step_to_change(c, at[i]), at[i]);
                stepper_kill(&c->stepper);
            } else {
                stepper_end(&c->stepper);
            }
        }
        if (known == n) break;
        start(c, chain[known].op);
        count = step_to_change(c, 0);
        stepper_end(&c->stepper);
        at[known] = chain[known].den ? count * chain[known].num / chain[known].den : 0;
        if (at[known] < 1) at[known] = 1;
        close_scene(c);
    }
}

/* --- the table -------------------------------------------------------------------------------- */

struct row {
    const char *name;
    const struct op *op;
    const struct death *chains; /* each chain ends with {0}, and so does the list */
    long instructions[FILLS], images[FILLS], looked, held, old, new, same, faults, cells;
};

static void judge(struct row *row, const struct cell *c) {
    for (long i = 0; i < c->looked; i++) {
        const struct image *im = &c->image[i];
        uint64_t old = c->facts[im->call];
        uint64_t new = c->facts[im->call + (im->call < c->op->calls)];
        int is_old = im->found.facts == old, is_new = im->found.facts == new;
        row->looked++;
        row->held += im->found.held;
        if (!im->found.ended || (!is_old && !is_new)) {
            row->faults++;
            fprintf(stderr, "%s, fill %d: after instruction %ld of call %d: neither old nor new\n",
                    c->op->name, c->fill, im->instruction, im->call);
            test_failures++;
        } else if (is_old && is_new) {
            row->same++;
        } else {
            row->old += is_old;
            row->new += is_new;
        }
    }
}

static void run_cell(struct row *row, enum fill fill, const struct death *chain, uint64_t one_in) {
    static struct image image[MAX_IMAGES];
    static uint64_t seen[4 * MAX_IMAGES];
    static struct cell c;
    static struct found *found;
    if (!found) found = shared(sizeof *found);
    memset(&c, 0, sizeof c);
    memset(seen, 0, sizeof seen);
    c.fill = fill;
    c.image = image;
    c.seen = seen;
    c.found = found;
    open_after(&c, chain ? chain[0].op : row->op, chain);
    if (!give_up()) {
        start(&c, row->op);
        step_and_look(&c, one_in);
        stepper_end(&c.stepper);
        CHECK(c.looked > 0);
        judge(row, &c);
        row->instructions[fill] += c.stepper.stops->instructions;
        row->images[fill] += c.images;
        row->cells++;
    }
    close_scene(&c);
}

/* The chain after this one. */
static const struct death *after(const struct death *chain) {
    while (chain->op) chain++;
    return chain + 1;
}

static struct row rows[] = {
    {.op = &FIRST},
    {.op = &AGAIN},
    {.op = &FOR_ALL},
    {.op = &CONTENDED},
    {.op = &NEW_INDEX},
    {.op = &GROWTH},
    {.op = &FULL},
    {.op = &REFUSED},
    {.op = &NEWEST},
    {.op = &MIDDLE},
    {.op = &OLDEST},
    {.op = &LAST},
    {.op = &MOVING},
    {.op = &REUSE},
    {.op = &LIBRARY},
    {.op = &CONTENDED_STRIKE},
    {.op = &JOIN},
    {.op = &SWEEP},
    {.op = &LEAVE},
    {.op = &MAIN_LEAVES},
    {.name = "recovery after a killed first registration, 6 moments",
     .op = &RECOVERY,
     .chains = KILLED_REGISTRATIONS},
    {.name = "recovery after one killed while the index grew, 3 moments",
     .op = &RECOVERY,
     .chains = KILLED_INDEX},
    {.name = "recovery after a killed strike, 3 moments",
     .op = &RECOVERY,
     .chains = KILLED_STRIKES},
    {.name = "recovery after a killed end of a name, 9 moments",
     .op = &RECOVERY,
     .chains = KILLED_ENDS},
    {.name = "recovery after a killed reuse of a place, 8 moments",
     .op = &RECOVERY,
     .chains = KILLED_REUSES},
    {.name = "recovery after a killed join, leave, sweep",
     .op = &RECOVERY,
     .chains = KILLED_MEMBERS},
    {.name = "recovery after a killed recovery, 3 moments",
     .op = &RECOVERY,
     .chains = KILLED_RECOVERIES},
    {.name = "repair that is left to the next one, after 3 killed operations",
     .op = &LEFT,
     .chains = KILLED_BEFORE_LEFT},
    {.name = "repair that was left, 4 moments", .op = &RECOVERY, .chains = LEFT_REPAIRS},
    {.op = &CHOOSES},
    {.op = &CHOSEN},
    {.op = &WITHDRAWN},
    {.op = &SWEEP_DECIDER},
    {.op = &DECIDER_WAITER},
    {.op = &OF_OTHER_KINDS},
    {.op = &OWN},
    {.op = &OWN_AFTER_ANOTHERS},
    {.op = &LEAVE_OWN},
    {.op = &SWEEP_OWN},
    {.op = &CLAIM},
    {.op = &SECOND_CLAIM},
    {.op = &RELEASE},
    {.op = &HAND_ON},
    {.op = &LAST_RELEASE},
    {.op = &BY_REGISTRAR},
    {.op = &BY_THE_NEXT},
    {.op = &SOLE_STRIKE},
    {.op = &LEAVE_CLAIMS},
    {.op = &CLOSE_CLAIMS},
    {.op = &SWEEP_NEXT},
    {.op = &SWEEP_LAST},
    {.op = &WAITER_SWEEPS},
    {.op = &FIRST_BRIDGE},
    {.op = &BRIDGE_IN_WAITING},
    {.op = &BY_BRIDGE},
    {.op = &STRIKE_BY_BRIDGE},
    {.op = &BY_NEXT_BRIDGE},
    {.op = &BRIDGE_LEAVES},
    {.op = &LAST_BRIDGE_LEAVES},
    {.op = &SWEEP_BRIDGE},
    {.op = &BRIDGE_WAITER},
    {.name = "recovery after a killed claim, release, leave, sweep, recovery in a team",
     .op = &RECOVERY,
     .chains = KILLED_CLAIMS},
};
enum { ROWS = sizeof rows / sizeof *rows };

static long cells; /* those that were left out, too */

static void run_row(struct row *row) {
    for (enum fill fill = EMPTY; fill < FILLS && !give_up(); fill++) {
        uint64_t number = fill * ROWS + (uint64_t)(row - rows), chain = 0, chains = 0;
        const struct death *d = row->chains;
        for (; d && d->op; d = after(d)) chains++;
        cells += d ? (long)chains : 1;
        if (fill != EMPTY && !tries_all() && (d || !in_sample(number, ONE_OPERATION_IN))) continue;
        if (!d) run_cell(row, fill, NULL, fill == EMPTY ? ONE_IMAGE_IN : ONE_OF_MANY_IN);
        for (d = row->chains; d && d->op && !give_up(); d = after(d)) {
            if (in_sample(chain++, chains)) run_cell(row, fill, d, ONE_OF_MANY_IN);
        }
    }
}

static void print_three(const long n[FILLS]) {
    printf(" | %ld, %ld, %ld", n[0], n[1], n[2]);
}

static void print_row(const struct row *r) {
    printf("| %s", r->name ? r->name : r->op->name);
    print_three(r->instructions);
    print_three(r->images);
    printf(" | %ld | %ld | %ld | %ld | %ld | %ld |\n", r->looked, r->held, r->old, r->new, r->same,
           r->faults);
    fflush(stdout);
}

static void add(struct row *sum, const struct row *r) {
    for (int f = 0; f < FILLS; f++) {
        sum->instructions[f] += r->instructions[f];
        sum->images[f] += r->images[f];
    }
    sum->looked += r->looked;
    sum->held += r->held;
    sum->old += r->old;
    sum->new += r->new;
    sum->same += r->same;
    sum->faults += r->faults;
    sum->cells += r->cells;
}

TEST(a_death_at_any_instruction_leaves_the_old_state_or_the_new_one) {
    cpu_set_t before = share_one_processor();
    struct row sum = {.name = "all"};
    alarm((unsigned)limit(tries_all() ? 3500 : 280)); /* below the Makefile's limit */
    printf("| operation | instructions: empty, hundreds, nearly full | distinct images | "
           "looked at | lock held | old | new | facts unchanged | faults |\n"
           "|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < ROWS && !give_up(); i++) {
        if (!strstr(rows[i].name ? rows[i].name : rows[i].op->name, only)) continue;
        run_row(&rows[i]);
        print_row(&rows[i]);
        add(&sum, &rows[i]);
    }
    print_row(&sum);
    printf("       looked at %ld of %ld crash points, in %ld of %ld scenes of %d operations\n",
           sum.looked, sum.images[EMPTY] + sum.images[HUNDREDS] + sum.images[NEARLY_FULL],
           sum.cells, cells, ROWS);
    sched_setaffinity(0, sizeof before, &before);
}

int main(int argc, char **argv) {
    if (argc > 1) only = argv[1];
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const char *why_not = "a sanitizer's own instructions are not the library's";
#else
    const char *why_not = STEPPER_WORKS ? NULL : "x86-64 only";
#endif
    if (why_not) {
        printf("0 passed, 0 failed, 1 left out: %s\n", why_not);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN); /* a child that has finished does not listen any more */
    RUN(a_death_at_any_instruction_leaves_the_old_state_or_the_new_one);
    return test_done();
}
