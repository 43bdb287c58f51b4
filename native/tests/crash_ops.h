/* crash_ops.h - the operations in which every death is tried, and how full the registry is then. */
#ifndef MD_TESTS_CRASH_OPS_H
#define MD_TESTS_CRASH_OPS_H

#include "test.h"

enum fill { EMPTY, HUNDREDS, NEARLY_FULL, FILLS };

/* The kind of process that does it. */
enum { WRITER = 0, WORKER = 1, STRANGER = 2 /* it has not joined yet */ };

struct op {
    const char *name;
    void (*prepare)(struct main_member m);
    int (*act)(struct main_member w, int call); /* makes one call of the operation */
    int calls;
    int as;
    int should; /* the status of each call */
    int raises_all;
    int waited_for; /* other threads want the lock meanwhile */
    int room;       /* bytes of capacity beyond the minimum */
    int names;      /* how many the registry knows at the beginning; 0: any number */
    int tight;      /* all bytes that are backed by memory are used */
    int no_spares;  /* when it is nearly full, so is the whole capacity */
    int team;       /* in a registry without a main member, see crash_elect.h */
    int host;       /* in that of a host of a cluster, see crash_bridge.h */
    void (*ready)(struct main_member w); /* what it does before, without being stepped */
    void (*then)(struct main_member m);  /* what the scene does afterwards */
};

static char address[MD_MAX_ADDRESS];
static md_record facts[8]; /* the operation's own */
static enum fill fill_now;
static int team_now; /* the scene is a team's: names without a namespace get one of the scene's */
static int host_now; /* the scene is a host's: its own member is a bridge */

static char xs[MD_MAX_BODY]; /* open_scene fills it, so that no steps are spent on it */

static int put_text(struct main_member m, uint32_t kind, uint32_t rule, int32_t key,
                    const char *name, const char *body, size_t len, md_record *out) {
    char buf[sizeof(md_record) + MD_MAX_BODY + MD_MAX_NAME + 64], full[64];
    if (team_now && strncmp(name, "shop", 4) && !strstr(name, "::")) {
        snprintf(full, sizeof full, "t::%s", name);
        name = full;
    }
    int rc = md_register(m.reg, m.member, kind, rule, key, name, strlen(name), body, len, "t.c:1",
                         5, buf, sizeof buf);
    if (rc == 0 && out) memcpy(out, buf, sizeof *out);
    return rc;
}

static int put_kind(struct main_member m, uint32_t kind, uint32_t rule, int32_t key,
                    const char *name, const char *body, md_record *out) {
    return put_text(m, kind, rule, key, name, body, strlen(body), out);
}

static int put_long(struct main_member m, const char *name, size_t len, md_record *out) {
    return put_text(m, MD_IMPL, MD_STACK, KEY, name, xs, len, out);
}

static int put_body(struct main_member m, const char *name, const char *body, md_record *out) {
    return put_kind(m, MD_IMPL, MD_STACK, KEY, name, body, out);
}

/* --- how full --------------------------------------------------------------------------------- */

static uint64_t names_known(struct main_member m) {
    md_stats s;
    OK(md_stat(m.reg, &s));
    return s.names;
}

static uint64_t backed_and_unused(struct main_member m) {
    md__reg *reg;
    OK(md__enter(m.reg, &reg));
    uint64_t left =
        md__read64(&md__header(reg)->committed) - md__read64(&md__header(reg)->arena_top);
    md__exit(reg);
    return left;
}

static void know_names(struct main_member m, uint64_t count) {
    char name[16];
    for (int i = 0; names_known(m) < count && !test_failures; i++) {
        snprintf(name, sizeof name, "i%d", i);
        OK(put_body(m, name, "once", NULL));
    }
}

static void some_hundred_facts(struct main_member m) {
    char name[16], body[128];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "s%d", i % 100);
        snprintf(body, sizeof body, "%*d", 1 + i * 37 % 60, i);
        OK(put_kind(m, i % 5 ? MD_IMPL : MD_DEF, MD_STACK, i % 7, name, body, NULL));
    }
}

/* Takes a block for a name, or gives it back: without a fact, no call does. */
static void hold_room(struct main_member m, uint32_t *ref, int take) {
    md__reg *reg;
    OK(md__enter(m.reg, &reg));
    OK(md__lock(reg));
    if (take)
        OK(md__alloc(reg, sizeof(struct md__node) + 16, ref));
    else
        md__free(reg, md__at(reg, *ref, 16));
    md__unlock(reg);
    md__exit(reg);
}

/* Fills the registry, except for a few places for short facts and names, and one for an index. */
static void use_up(struct main_member m, int spares) {
    enum { SHORT = 10, NAMES = 4 };
    md_record spare[SHORT + 1];
    uint32_t room[NAMES];
    if (spares) {
        for (int i = 0; i < SHORT; i++) OK(put_body(m, "spare", "", &spare[i]));
        for (int i = 0; i < NAMES; i++) hold_room(m, &room[i], 1);
        OK(put_long(m, "spare", 4500, &spare[SHORT]));
    } else {
        OK(put_body(m, "spare", "", NULL));
    }
    for (size_t len = 8192; len; len /= 2) {
        while (put_long(m, "spare", len, NULL) == 0) {}
    }
    EQ(put_body(m, "spare", "", NULL), MD_EFULL);
    for (int i = 0; spares && i <= SHORT; i++) OK(strike_out(m, &spare[i]));
    for (int i = 0; spares && i < NAMES; i++) hold_room(m, &room[i], 0);
}

static void use_up_what_is_backed(struct main_member m) {
    md_record pad[64];
    int n = 0;
    while (backed_and_unused(m) > 2048 && n < 64) {
        OK(put_long(m, "pad", 1024, &pad[n]));
        n++;
    }
    CHECK(backed_and_unused(m) <= 2048);
    while (fill_now == EMPTY && n--) OK(strike_out(m, &pad[n]));
}

static void three_facts(struct main_member m) {
    OK(put_body(m, "n", "A", &facts[0]));
    OK(put_body(m, "n", "B", &facts[1]));
    OK(put_body(m, "n", "C", &facts[2]));
}

/* A registry for the operation, with its main member here. */
static struct main_member open_scene(const struct op *op, enum fill fill) {
    uint64_t room = (uint64_t)(op->tight && fill == NEARLY_FULL ? 4096 : op->room);
    struct main_member m = {0};
    char buf[BUF];
    team_now = op->team;
    host_now = op->host;
    if (team_now) {
        OK(md_elect(NULL, MD__MIN_CAPACITY + room, &m.reg));
        m.member = join(m.reg, 0, MD_PEER);
        OK(md_claim(m.reg, m.member, "t", 1, "", 0, buf, sizeof buf));
    } else if (host_now) {
        OK(md_bridge(NULL, MD__MIN_CAPACITY + room, &m.reg));
        m.member = join(m.reg, MD_AS_BRIDGE, MD_BRIDGE);
        OK(md_claim(m.reg, m.member, "mdispatch.bridge", 16, "", 0, buf, sizeof buf));
        three_facts(m);
    } else {
        m = open_main(NULL, MD__MIN_CAPACITY + room);
    }
    fill_now = fill;
    memset(xs, 'x', sizeof xs);
    OK(md_address(m.reg, address, sizeof address));
    if (op->prepare && !host_now) op->prepare(m);
    if (fill != EMPTY) some_hundred_facts(m);
    if (op->names) {
        if (fill == NEARLY_FULL) OK(put_body(m, "spare", "", NULL));
        know_names(m, (uint64_t)op->names);
    }
    if (op->tight)
        use_up_what_is_backed(m);
    else if (fill == NEARLY_FULL)
        use_up(m, !op->no_spares);
    if (host_now) {
        OK(md_release(m.reg, m.member, "mdispatch.bridge", 16));
        if (op->prepare) op->prepare(m);
    }
    check_whole(m.reg);
    return m;
}

/* --- operations ------------------------------------------------------------------------------- */

static void one_fact(struct main_member m) {
    OK(put_body(m, "n", "A", &facts[0]));
}

/* The first of four names that have the same home in the index: when its entry is taken out, the
 * others move. */
static void names_of_one_home(struct main_member m) {
    char name[16];
    uint32_t mask = (1 << MD__FIRST_INDEX_LOG2) - 1;
    int found = 0;
    OK(put_body(m, "n", "A", &facts[0]));
    for (int i = 0; found < 3; i++) {
        int len = snprintf(name, sizeof name, "c%d", i);
        if ((md__hash(name, (size_t)len) ^ md__hash("n", 1)) & mask) continue;
        OK(put_body(m, name, "C", NULL));
        found++;
    }
}

/* Names that have ended, of two lengths. */
static void names_that_ended(struct main_member m) {
    md_record r[3];
    OK(put_body(m, "ended", "E", &r[0]));
    OK(put_body(m, "also", "E", &r[1]));
    OK(put_body(m, "a name that is longer than the others, and lies in another class", "E", &r[2]));
    for (int i = 0; i < 3; i++) OK(strike_out(m, &r[i]));
}

static void a_library(struct main_member m) {
    OK(put_kind(m, MD_LIBRARY, MD_UNIQUE, 0, "ns", "", &facts[0]));
    OK(put_kind(m, MD_DEF, MD_UNIQUE, 0, "ns::f", "f(x) -> y", &facts[1]));
    OK(put_kind(m, MD_NAME, MD_STACK, 0, "ns::f", "", &facts[2]));
    OK(put_kind(m, MD_IMPL, MD_STACK, 1, "ns::f", "CPU", &facts[3]));
    OK(put_kind(m, MD_IMPL, MD_STACK, 2, "ns::f", "CUDA", &facts[4]));
    OK(put_kind(m, MD_DEF, MD_UNIQUE, 0, "ns::g", "g() -> ()", &facts[5]));
}

static void join_twice_and_stay(void *arg) {
    struct main_member w = attach_worker(address);
    join(w.reg, 1, MD_WORKER);
    step_give(*(struct step *)arg);
    pause();
}

static void dead_members(struct main_member m) {
    struct step ready = step_make();
    pid_t pid[2];
    three_facts(m);
    for (int i = 0; i < 2; i++) {
        pid[i] = child(join_twice_and_stay, &ready);
        CHECK(step_take(ready));
    }
    for (int i = 0; i < 2; i++) kill_now(pid[i]);
    step_free(ready);
}

static int first_of_a_name(struct main_member w, int call) {
    return put_body(w, "fresh", "D", NULL);
}
static int one_more(struct main_member w, int call) {
    return put_body(w, "n", "D", NULL);
}
static int one_for_all(struct main_member w, int call) {
    return put_kind(w, MD_FALLBACK, MD_STACK | MD_RAISE_ALL, 3, "*", "D", NULL);
}
static int long_one(struct main_member w, int call) {
    return put_long(w, "n", 2048, NULL);
}
static int twin(struct main_member w, int call) {
    return put_kind(w, MD_DEF, MD_UNIQUE, 0, "ns::f", "other", NULL);
}
/* One for a known name, one for an unknown name. */
static int too_much(struct main_member w, int call) {
    return put_long(w, call ? "fresh" : "n", fill_now == NEARLY_FULL ? 1 : MD_MAX_BODY, NULL);
}
static int strike_oldest(struct main_member w, int call) {
    return strike_out(w, &facts[0]);
}
static int strike_middle(struct main_member w, int call) {
    return strike_out(w, &facts[1]);
}
static int strike_newest(struct main_member w, int call) {
    return strike_out(w, &facts[2]);
}
static int close_library(struct main_member w, int call) {
    return strike_out(w, &facts[5 - call]);
}
static int join_as(struct main_member w, int call) {
    uint64_t member;
    uint32_t role;
    return md_join(w.reg, call, &member, &role);
}
/* Ends the membership, its own opening, and the opening that it inherited, with the mapping. */
static int leave_and_close(struct main_member w, int call) {
    return call == 0 ? md_leave(w.reg, w.member) : md_close(w.reg);
}
static int leave(struct main_member w, int call) {
    return md_leave(w.reg, w.member);
}
static int close_only(struct main_member w, int call) {
    return md_close(w.reg);
}

enum { ROOM = 1 << 16 };

static const struct op FIRST = {"first registration of a name", three_facts, first_of_a_name,
                                .calls = 1, .room = ROOM};
static const struct op AGAIN = {"another registration of a name", three_facts, one_more, .calls = 1,
                                .room = ROOM};
static const struct op FOR_ALL = {"registration that concerns all names",
                                  three_facts,
                                  one_for_all,
                                  1,
                                  .raises_all = 1,
                                  .room = ROOM};
static const struct op CONTENDED = {"another registration, the lock is waited for",
                                    three_facts,
                                    one_more,
                                    .calls = 1,
                                    .waited_for = 1,
                                    .room = ROOM};
static const struct op CONTENDED_STRIKE = {"strike, the lock is waited for",
                                           three_facts,
                                           strike_middle,
                                           .calls = 1,
                                           .waited_for = 1,
                                           .room = ROOM};
static const struct op NEW_INDEX = {"first registration of a name, the index grows",
                                    NULL,
                                    first_of_a_name,
                                    1,
                                    .room = ROOM,
                                    .names = 128};
static const struct op GROWTH = {
    "registration, the region grows", one_fact, long_one, 1, .room = ROOM, .tight = 1};
static const struct op FULL = {"two registrations into a full region",
                               one_fact,
                               too_much,
                               2,
                               .should = MD_EFULL,
                               .no_spares = 1};
static const struct op REFUSED = {
    "registration that is refused", a_library, twin, 1, .should = MD_EEXIST, .room = ROOM};
static const struct op NEWEST = {"strike of the newest", three_facts, strike_newest, 1,
                                 .room = ROOM};
static const struct op MIDDLE = {"strike of a middle one", three_facts, strike_middle, 1,
                                 .room = ROOM};
static const struct op OLDEST = {"strike of the oldest", three_facts, strike_oldest, 1,
                                 .room = ROOM};
static const struct op LAST = {"strike of a name's last one", one_fact, strike_oldest, 1,
                               .room = ROOM};
static const struct op MOVING = {"strike of a name's last one, entries move", names_of_one_home,
                                 strike_oldest, 1, .room = ROOM};
static const struct op REUSE = {"first registration of a name, in the place of another",
                                names_that_ended, first_of_a_name, 1, .room = ROOM};
static const struct op LIBRARY = {"close of a library: six strikes", a_library, close_library, 6,
                                  .room = ROOM};
static const struct op JOIN = {"join of a process, then of another interpreter",
                               three_facts,
                               join_as,
                               2,
                               STRANGER,
                               .room = ROOM};
static const struct op SWEEP = {
    "join that sweeps two dead processes", dead_members, join_as, 1, STRANGER, .room = ROOM};
static const struct op LEAVE = {
    "leave, then close and unmap", three_facts, leave_and_close, 3, WORKER, .room = ROOM};
static const struct op MAIN_LEAVES = {
    "leave of the main member", three_facts, leave, 1, WRITER, .room = ROOM};
/* It recovers from the operation that was killed before. */
static const struct op RECOVERY = {"recovery", NULL, join_as, 1, STRANGER, .room = ROOM};

/* As a daemon that attached, has looked at nothing yet, and closes all its descriptors. */
static void lose_descriptor(struct main_member w) {
    md__reg *reg;
    OK(md__enter(w.reg, &reg));
    OK(md__region_reopen(reg)); /* what attached can write, unlike what was forked */
    md__poke32(&reg->forked, 0);
    md__poke64(&reg->backed, 0);
    OK(close(reg->fd));
    md__exit(reg);
}
static int look_in_vain(struct main_member w, int call) {
    return md_check(w.reg, NULL, 0);
}
static const struct op LEFT = {"repair that is left to the next one",
                               NULL,
                               look_in_vain,
                               1,
                               STRANGER,
                               .should = MD_ELOST,
                               .room = ROOM,
                               .ready = lose_descriptor};

/* --- operations that died before -------------------------------------------------------------- */

/* Operations that are killed one after the other, each after this part of its changes under the
 * lock; or that end, where it is no part. */
struct death {
    const struct op *op;
    int num, den;
};

static const struct death KILLED_REGISTRATIONS[] = {{&FIRST, 1, 6},
                                                    {0},
                                                    {&FIRST, 2, 6},
                                                    {0},
                                                    {&FIRST, 3, 6},
                                                    {0},
                                                    {&FIRST, 4, 6},
                                                    {0},
                                                    {&FIRST, 5, 6},
                                                    {0},
                                                    {&FIRST, 6, 6},
                                                    {0},
                                                    {0}};
static const struct death KILLED_INDEX[] = {
    {&NEW_INDEX, 1, 4}, {0}, {&NEW_INDEX, 3, 4}, {0}, {&NEW_INDEX, 7, 8}, {0}, {0}};
static const struct death KILLED_STRIKES[] = {
    {&MIDDLE, 1, 4}, {0}, {&MIDDLE, 2, 4}, {0}, {&MIDDLE, 3, 4}, {0}, {0}};
static const struct death KILLED_ENDS[] = {{&MOVING, 2, 8},
                                           {0},
                                           {&MOVING, 3, 8},
                                           {0},
                                           {&MOVING, 4, 8},
                                           {0},
                                           {&MOVING, 5, 8},
                                           {0},
                                           {&MOVING, 6, 8},
                                           {0},
                                           {&MOVING, 7, 8},
                                           {0},
                                           {&MOVING, 5, 8},
                                           {&RECOVERY, 1, 2},
                                           {0},
                                           {&MOVING, 6, 8},
                                           {&RECOVERY, 1, 2},
                                           {0},
                                           {&MOVING, 6, 8},
                                           {&LEFT, 0, 0},
                                           {0},
                                           {0}};
static const struct death KILLED_REUSES[] = {{&REUSE, 1, 6},
                                             {0},
                                             {&REUSE, 2, 6},
                                             {0},
                                             {&REUSE, 3, 6},
                                             {0},
                                             {&REUSE, 4, 6},
                                             {0},
                                             {&REUSE, 5, 6},
                                             {0},
                                             {&REUSE, 6, 6},
                                             {0},
                                             {&REUSE, 4, 6},
                                             {&RECOVERY, 1, 2},
                                             {0},
                                             {&REUSE, 5, 6},
                                             {&RECOVERY, 1, 2},
                                             {0},
                                             {0}};
static const struct death KILLED_MEMBERS[] = {
    {&JOIN, 1, 2}, {0}, {&LEAVE, 2, 3}, {0}, {&SWEEP, 1, 2}, {0}, {0}};
static const struct death KILLED_RECOVERIES[] = {{&FIRST, 3, 6},
                                                 {&RECOVERY, 1, 3},
                                                 {0},
                                                 {&FIRST, 3, 6},
                                                 {&RECOVERY, 2, 3},
                                                 {0},
                                                 {&MIDDLE, 2, 4},
                                                 {&RECOVERY, 1, 2},
                                                 {0},
                                                 {0}};
/* Of a repair that is left to the next one: before it, and after it. */
static const struct death KILLED_BEFORE_LEFT[] = {
    {&FIRST, 3, 6}, {0}, {&NEW_INDEX, 3, 4}, {0}, {&MIDDLE, 2, 4}, {0}, {0}};
static const struct death LEFT_REPAIRS[] = {{&FIRST, 3, 6},
                                            {&LEFT, 0, 0},
                                            {0},
                                            {&MIDDLE, 2, 4},
                                            {&LEFT, 0, 0},
                                            {0},
                                            {&FIRST, 3, 6},
                                            {&LEFT, 1, 1},
                                            {0},
                                            {&FIRST, 3, 6},
                                            {&LEFT, 0, 0},
                                            {&RECOVERY, 1, 2},
                                            {0},
                                            {0}};

#endif
