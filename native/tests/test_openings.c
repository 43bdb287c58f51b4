/* Opening and closing at the same time: a process has one registry for one address, every opening
 * is counted, and the folder is ours alone or not used. */
#include "test.h"

enum { SIZE = MD__MIN_CAPACITY, OPENINGS = 65535 };

static char name[64];

/* A main member in a process of its own, which starts when it is asked to. */
struct far_main {
    struct step go, ready;
    pid_t pid;
};

static void be_far_main(void *arg) {
    struct far_main *f = arg;
    step_take(f->go);
    open_main(name, SIZE);
    step_give(f->ready);
    for (;;) pause();
}
static struct far_main far_main_start(void) {
    struct far_main f = {step_make(), step_make(), 0};
    f.pid = child(be_far_main, &f);
    return f;
}
static void far_main_end(struct far_main *f) {
    char path[160];
    kill_now(f->pid);
    md__file_path(path, sizeof path, name);
    unlink(path);
    step_free(f->go);
    step_free(f->ready);
}

/* A thread that opens, and is known to be waiting for the name. */
struct opener {
    int64_t deadline;
    int by_default;
    md_registry reg;
    int rc;
    md__u32 tid;
    pthread_t thread;
};

static void *open_by_name(void *arg) {
    struct opener *o = arg;
    md__publish32(&o->tid, (uint32_t)syscall(SYS_gettid));
    do
        o->rc =
            o->by_default ? md_open_default(name, &o->reg) : md_attach(name, o->deadline, &o->reg);
    while (o->rc == MD_EINTR);
    return NULL;
}
static void opener_start(struct opener *o) {
    pthread_create(&o->thread, NULL, open_by_name, o);
    while (!md__read32(&o->tid)) sched_yield();
    until_inside(getpid(), (pid_t)md__read32(&o->tid), SYS_ppoll, SYS_ppoll);
}
static int opener_end(struct opener *o) {
    pthread_join(o->thread, NULL);
    return o->rc;
}

TEST(two_threads_that_waited_for_one_name_have_one_registry) {
    struct far_main f = far_main_start();
    struct opener o[2] = {{.deadline = MD_FOREVER}, {.deadline = MD_FOREVER}};
    md_stats s;
    for (int i = 0; i < 2; i++) opener_start(&o[i]);
    step_give(f.go);
    for (int i = 0; i < 2; i++) OK(opener_end(&o[i]));
    EQ(o[0].reg, o[1].reg);
    step_take(f.ready);
    OK(md_close(o[0].reg));
    OK(md_stat(o[0].reg, &s));
    OK(md_close(o[1].reg));
    EQ(md_close(o[1].reg), MD_ECLOSED);
    far_main_end(&f);
}

TEST(who_waited_while_the_last_place_was_taken_is_told) {
    struct far_main f = far_main_start();
    struct opener o = {.deadline = MD_FOREVER};
    md_registry reg[LEASES_PER_THREAD];
    opener_start(&o);
    if (LEASES_PER_THREAD == 64) {
        for (int i = 0; i < 64; i++) OK(md_create(NULL, SIZE, &reg[i]));
        step_give(f.go);
        EQ(opener_end(&o), MD_EHANDLES);
        step_take(f.ready);
        EQ(md_attach(name, 0, &o.reg), MD_EHANDLES);
        for (int i = 0; i < 64; i++) OK(md_close(reg[i]));
        OK(md_attach(name, 0, &o.reg));
    } else {
        step_give(f.go);
        OK(opener_end(&o));
    }
    OK(md_close(o.reg));
    far_main_end(&f);
}

TEST(the_default_that_another_thread_has_settled_meanwhile_is_everyones) {
    struct far_main f = far_main_start();
    struct opener o = {.by_default = 1};
    md_registry ours;
    md_stats s;
    opener_start(&o);
    OK(md_open_default(NULL, &ours));
    step_give(f.go);
    OK(opener_end(&o));
    EQ(o.reg, ours);
    step_take(f.ready);
    OK(md_close(ours));
    OK(md_stat(ours, &s));
    OK(md_close(ours));
    EQ(md_stat(ours, &s), MD_ECLOSED);
    far_main_end(&f);
}

TEST(a_default_address_that_is_none_is_refused) {
    md_registry reg;
    EQ(md_open_default("a/b", &reg), MD_ENAME);
    EQ(md_open_default(address_of(999999999, 3), &reg), MD_EDIED);
    EQ(md_open_default(address_of(getppid(), 999999), &reg), MD_EDIED); /* it has closed it */
    EQ(md_open_default(name, &reg), MD_ENOENT); /* there may never have been one */
}

/* By its number the process that called exec. */
TEST(an_address_of_elsewhere_is_not_this_process_before_an_exec) {
    char address[MD_MAX_ADDRESS];
    md_registry reg;
    for (int field = IN_BOOT; field <= IN_SPACE; field++) {
        snprintf(address, sizeof address, "%s", address_of(getpid(), 3));
        change_digit(address, field);
        EQ(md_open_default(address, &reg), field == IN_BOOT ? MD_EBOOT : MD_ENAMESPACE);
    }
    OK(md_open_default(address_of(getpid(), 3), &reg));
    OK(md_close(reg));
}

/* --- closed while it is used ------------------------------------------------------------------ */

static md__reg *held;

static void hold_the_lock(void *arg) {
    struct step *steps = arg;
    md__lock(held);
    step_give(steps[0]);
    step_take(steps[1]);
    md__unlock(held);
}

struct joiner {
    md_registry reg;
    int rc;
    md__u32 tid;
};

static void *join_slowly(void *arg) {
    struct joiner *j = arg;
    uint64_t member;
    uint32_t role;
    md__publish32(&j->tid, (uint32_t)syscall(SYS_gettid));
    j->rc = md_join(j->reg, 1, &member, &role);
    return NULL;
}

static md_registry inherited;

static void close_under_a_call(void *arg) {
    const char *address = arg;
    struct step steps[2] = {step_make(), step_make()};
    struct joiner j = {0};
    md_registry again;
    pthread_t thread;
    OK(md_close(inherited)); /* an unrelated process from here on */
    OK(md_attach(address, 0, &j.reg));
    OK(md__enter(j.reg, &held));
    md__exit(held);
    pid_t holder = child(hold_the_lock, steps);
    step_take(steps[0]);
    pthread_create(&thread, NULL, join_slowly, &j);
    while (!md__read32(&j.tid)) sched_yield();
    until_asleep(getpid(), (pid_t)md__read32(&j.tid));
    OK(md_close(j.reg)); /* the last opening, while a call is under way */
    OK(md_attach(address, 0, &again));
    CHECK(again != j.reg);
    step_give(steps[1]);
    EQ(reap(holder), 0);
    pthread_join(thread, NULL);
    OK(j.rc);
    EQ(md_close(j.reg), MD_ECLOSED);
    join(again, 2, MD_WORKER);
    OK(md_close(again));
}

TEST(a_registry_that_is_closed_while_a_call_is_under_way_can_be_opened_anew) {
    char address[MD_MAX_ADDRESS];
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, address, sizeof address));
    inherited = m.reg;
    EQ(reap(child(close_under_a_call, address)), 0);
    close_main(m);
}

TEST(the_65536th_opening_is_refused_or_is_another_one) {
    char address[MD_MAX_ADDRESS];
    md_registry reg, other;
    OK(md_open_default(NULL, &reg));
    OK(md_address(reg, address, sizeof address));
    for (int i = 1; i < OPENINGS; i++) {
        if (!OK(md_attach(address, 0, &other)) || !EQ(other, reg)) return;
    }
    EQ(md_open_default(NULL, &other), MD_EHANDLES);
    OK(md_attach(address, 0, &other));
    CHECK(other != reg);
    OK(md_close(other));
    for (int i = 0; i < OPENINGS; i++) {
        if (!OK(md_close(reg))) return;
    }
    EQ(md_close(reg), MD_ECLOSED);
}

/* --- the folder ------------------------------------------------------------------------------- */

/* As a user who never had a registry, and whose folder is not as it should be. */
static void be_another_user(void *arg) {
    const uid_t *uid = arg;
    char folder[64];
    md_registry reg;
    snprintf(folder, sizeof folder, "%s/mdispatch-%u", getenv("MDISPATCH_FOLDER"), (unsigned)*uid);
    OK(seteuid(*uid));
    EQ(md_attach("x", 0, &reg), MD_ENOENT); /* it has made the folder */
    struct main_member m = open_main("x", SIZE);
    close_main(m);
    OK(chmod(folder, 0750));
    EQ(md_create("x", SIZE, &reg), MD_EOWNER);
    EQ(md_attach("x", 0, &reg), MD_EOWNER);
    OK(seteuid(0));
    OK(chown(folder, 0, 0));
    OK(chmod(folder, 0755));
    OK(seteuid(*uid));
    EQ(md_create("x", SIZE, &reg), MD_EOWNER);
    OK(seteuid(0));
    OK(chmod(folder, 0700));
    OK(seteuid(*uid));
    EQ(md_create("x", SIZE, &reg), MD_EOWNER);
    OK(seteuid(0));
    OK(rmdir(folder));
    OK(symlink("/dev/shm", folder));
    OK(seteuid(*uid));
    EQ(md_create("x", SIZE, &reg), MD_EOWNER);
    OK(seteuid(0));
    OK(unlink(folder));
}

TEST(a_folder_that_is_not_this_users_alone_is_refused) {
    uid_t uid = 1000000000u + (uid_t)getpid(); /* nobody's */
    if (geteuid()) {
        printf("       (left out: not root)\n");
        return;
    }
    EQ(reap(child(be_another_user, &uid)), 0);
}

int main(void) {
    snprintf(name, sizeof name, "openings-%d", (int)getpid());
    RUN(two_threads_that_waited_for_one_name_have_one_registry);
    RUN(who_waited_while_the_last_place_was_taken_is_told);
    RUN(the_default_that_another_thread_has_settled_meanwhile_is_everyones);
    RUN(a_default_address_that_is_none_is_refused);
    RUN(an_address_of_elsewhere_is_not_this_process_before_an_exec);
    RUN(a_registry_that_is_closed_while_a_call_is_under_way_can_be_opened_anew);
    RUN(the_65536th_opening_is_refused_or_is_another_one);
    RUN(a_folder_that_is_not_this_users_alone_is_refused);
    return test_done();
}
