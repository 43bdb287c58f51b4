/* What a process can lose, and what it does then: its descriptor, the right to look at the file, its
 * user, and a lock whose holder does not go on. Nobody else is the worse for it. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>

#include "test.h"

enum { SIZE = 4 << 20, STRANGE = 8 };

static char body[MD_MAX_BODY];

/* Facts so long that a dozen of them make the region grow. */
static int put_long(struct main_member m, int32_t key) {
    static char record[MD_MAX_BODY + BUF];
    return md_register(m.reg, m.member, MD_IMPL, MD_STACK, key, "long", 4, body, sizeof body, "", 0,
                       record, sizeof record);
}

static int find_long(md_registry reg, int32_t key) {
    static char record[MD_MAX_BODY + BUF];
    return md_find(reg, MD_IMPL, key, "long", 4, record, sizeof record);
}

static int descriptor_of(md_registry handle) {
    md__reg *reg;
    OK(md__enter(handle, &reg));
    int fd = reg->fd;
    md__exit(reg);
    return fd;
}

static void lose_descriptor(md_registry handle) {
    OK(close(descriptor_of(handle)));
}

/* As daemons do: closes it, and another file gets its number. */
static int give_its_number_away(md_registry handle) {
    int fd = descriptor_of(handle), other = memfd_create("stranger", MFD_CLOEXEC);
    EQ(write(other, "stranger", STRANGE), STRANGE);
    EQ(dup2(other, fd), fd);
    OK(close(other));
    return fd;
}

static void check_stranger(int fd) {
    char text[64];
    struct stat st;
    OK(fstat(fd, &st));
    EQ(st.st_size, STRANGE);
    EQ(pread(fd, text, sizeof text, 0), STRANGE);
    EQ(memcmp(text, "stranger", STRANGE), 0);
}

/* --- its descriptor ---------------------------------------------------------------------------- */

static void grow_without(struct main_member m) {
    md_record r;
    int32_t keys = 0;
    int rc;
    while ((rc = put_long(m, keys)) == 0) keys++;
    EQ(rc, MD_ELOST);
    CHECK(keys < 12); /* the region did not grow */
    EQ(find_long(m.reg, keys), MD_ENOENT);
    if (keys) OK(find_long(m.reg, keys - 1));
    OK(put(m, MD_STACK, "short", KEY, "b", &r)); /* for which there is room */
    OK(find(m.reg, "short", KEY, NULL, 0));
    OK(strike_out(m, &r));
    EQ(put_long(m, keys), MD_ELOST);
    check_whole(m.reg);
}

TEST(a_registry_whose_descriptor_was_closed_does_not_grow_and_goes_on) {
    struct main_member m = open_main(NULL, SIZE);
    lose_descriptor(m.reg);
    grow_without(m);
    close_main(m);
}

TEST(a_file_that_has_the_number_of_a_closed_descriptor_is_left_alone) {
    struct main_member m = open_main(NULL, SIZE);
    int fd = give_its_number_away(m.reg);
    grow_without(m);
    close_main(m);
    check_stranger(fd); /* and is open still */
    OK(close(fd));
}

struct scene {
    struct main_member m;
    char address[MD_MAX_ADDRESS];
    struct step ready, go, done;
    md__u32 tid;
};

static struct scene scene_make(void) {
    struct scene s = {open_main(NULL, SIZE), "", step_make(), step_make(), step_make(), 0};
    OK(md_address(s.m.reg, s.address, sizeof s.address));
    return s;
}

static void scene_free(struct scene *s) {
    step_free(s->ready);
    step_free(s->go);
    step_free(s->done);
    OK(md_leave(s->m.reg, join(s->m.reg, 1, MD_WORKER))); /* which sweeps */
    close_main(s->m);
}

/* A stranger, whose mapping is its own. */
static struct main_member attach_anew(const struct scene *s) {
    OK(md_close(s->m.reg));
    return attach_worker(s->address);
}

static void grow(struct main_member m) {
    for (int32_t key = 0; key < 20; key++) OK(put_long(m, key));
}

TEST(a_device_that_has_the_number_of_a_closed_descriptor_is_left_alone) {
    struct main_member m = open_main(NULL, SIZE);
    int fd = descriptor_of(m.reg), other = open("/dev/null", O_RDWR | O_CLOEXEC);
    EQ(dup2(other, fd), fd);
    OK(close(other));
    grow_without(m);
    close_main(m);
    OK(close(fd)); /* it was not closed with the registry */
}

/* It goes by what the header says is backed, and no further. */
TEST(who_lost_its_descriptor_believes_no_end_of_the_arena_beyond_the_memory) {
    struct main_member m = open_main(NULL, SIZE);
    md__reg *reg = inner(m.reg);
    uint64_t committed = md__peek64(&md__header(reg)->committed);
    lose_descriptor(m.reg);
    md__poke64(&reg->backed, 0);
    EQ(md__region_top(reg, committed), committed);
    EQ(md__region_top(reg, committed + 16), 0);
    close_main(m);
}

static void read_and_wait_without(void *arg) {
    const struct scene *s = arg;
    struct main_member w = attach_anew(s);
    md_wait_stats stats;
    int fd = give_its_number_away(w.reg);
    step_give(s->ready);
    OK(await_fact(w.reg, w.member, "told", 1, MD_FOREVER, 0, &stats));
    OK(find_long(w.reg, 19));
    check_whole(w.reg);
    OK(md_leave(w.reg, w.member));
    OK(md_close(w.reg));
    check_stranger(fd);
}

TEST(who_lost_its_descriptor_reads_and_waits_in_a_region_that_grows) {
    struct scene s = scene_make();
    pid_t pid = child(read_and_wait_without, &s);
    CHECK(step_take(s.ready));
    until_waiting(s.m.reg, 1);
    grow(s.m);
    OK(put(s.m, MD_STACK, "told", KEY, "b", NULL));
    EQ(reap(pid), 0);
    scene_free(&s);
}

/* --- a repair that it cannot do ---------------------------------------------------------------- */

static void hold_and_die(void *arg) {
    const struct scene *s = arg;
    md__reg *reg;
    OK(md__enter(s->m.reg, &reg));
    OK(md__lock(reg));
    raise(SIGKILL);
}

static uint64_t recoveries(md_registry reg) {
    md_stats s;
    OK(md_stat(reg, &s));
    return s.recoveries;
}

/* What everybody may still believe while the repair is owed. */
static void check_it_is_left(struct main_member w, int why) {
    uint64_t member, before = recoveries(w.reg);
    uint32_t role;
    char words[256];
    for (int i = 0; i < 3; i++) {
        EQ(md_check(w.reg, words, sizeof words), why);
        EQ(md_join(w.reg, 5, &member, &role), why);
    }
    EQ(recoveries(w.reg), before);
    OK(find_long(w.reg, 19));
    EQ(find_long(w.reg, 20), MD_ENOENT);
}

static void leave_the_repair(void *arg) {
    const struct scene *s = arg;
    struct main_member w = attach_anew(s);
    lose_descriptor(w.reg);
    step_give(s->ready);
    step_take(s->go);
    check_it_is_left(w, MD_ELOST);
    step_give(s->ready);
    step_take(s->go); /* another one has repaired */
    check_whole(w.reg);
    OK(md_leave(w.reg, w.member));
    OK(md_close(w.reg));
}

static void wait_in_vain(void *arg) {
    const struct scene *s = arg;
    struct main_member w = attach_anew(s);
    md_wait_stats stats;
    step_give(s->ready);
    await_fact(w.reg, w.member, "never", 1, MD_FOREVER, 0, &stats);
}

/* Kills a holder of the lock beside a worker that cannot look; returns when that one has left the
 * repair. */
static pid_t owe_a_repair(struct scene *s, void (*worker)(void *)) {
    pid_t pid = child(worker, s);
    CHECK(step_take(s->ready));
    grow(s->m);
    EQ(reap(child(hold_and_die, s)), -SIGKILL);
    step_give(s->go);
    CHECK(step_take(s->ready));
    return pid;
}

TEST(who_cannot_look_leaves_the_repair_to_the_next_one) {
    struct scene s = scene_make();
    pid_t pid = owe_a_repair(&s, leave_the_repair);
    md_inspection in;
    size_t n;
    OK(md_inspect(s.address, &in, NULL, 0, &n));
    EQ(in.lock_died, 1);
    OK(in.attach);
    EQ(recoveries(s.m.reg), 0);
    OK(put(s.m, MD_STACK, "n", KEY, "b", NULL));
    EQ(recoveries(s.m.reg), 1);
    OK(md_inspect(s.address, &in, NULL, 0, &n));
    EQ(in.lock_died, 0);
    step_give(s.go);
    EQ(reap(pid), 0);
    EQ(recoveries(s.m.reg), 1);
    scene_free(&s);
}

/* Nobody calls: who waits comes back by its slice. */
TEST(a_waiter_does_the_repair_that_was_left) {
    struct scene s = scene_make();
    pid_t pid = owe_a_repair(&s, leave_the_repair), waiter = child(wait_in_vain, &s);
    CHECK(step_take(s.ready)); /* its joining repaired; so once more, under its eyes */
    EQ(recoveries(s.m.reg), 1);
    md__reg *reg;
    OK(md__enter(s.m.reg, &reg));
    until_waiting(s.m.reg, 1);
    md__publish32(&md__header(reg)->repair_owed, 1);
    while (md__read32(&md__header(reg)->repair_owed)) sched_yield(); /* cleared after the count */
    EQ(recoveries(s.m.reg), 2);
    md__exit(reg);
    step_give(s.go);
    EQ(reap(pid), 0);
    kill_now(waiter);
    scene_free(&s);
}

/* The one who left it goes on to die with the lock in its hands, before and after it said so. */
static void die_with_what_is_owed(void *arg) {
    const struct scene *s = arg;
    struct main_member w = attach_anew(s);
    md__reg *reg;
    lose_descriptor(w.reg);
    step_give(s->ready);
    step_take(s->go);
    OK(md__enter(w.reg, &reg));
    EQ(md__lock(reg), MD_ELOST);
    EQ(pthread_mutex_trylock(&md__header(reg)->mutex), 0); /* consistent, and free */
    step_give(s->ready);
    for (;;) pause();
}

TEST(who_dies_with_a_repair_that_is_owed_leaves_it_too) {
    struct scene s = scene_make();
    pid_t pid = owe_a_repair(&s, die_with_what_is_owed);
    kill_now(pid);
    OK(put(s.m, MD_STACK, "n", KEY, "b", NULL));
    EQ(recoveries(s.m.reg), 1);
    scene_free(&s);
}

/* Bytes that contradict each other still give the registry up, when somebody can look. */
TEST(what_is_damaged_is_given_up_by_the_first_who_can_look) {
    struct scene s = scene_make();
    pid_t pid = owe_a_repair(&s, leave_the_repair);
    md__reg *reg;
    OK(md__enter(s.m.reg, &reg));
    md__header(reg)->magic[0] = 'X';
    EQ(put(s.m, MD_STACK, "n", KEY, "b", NULL), MD_EDAMAGED);
    EQ(md__read32(&md__header(reg)->state), MD__DAMAGED);
    md__exit(reg);
    kill_now(pid);
    step_free(s.ready);
    step_free(s.go);
    step_free(s.done);
    OK(md_close(s.m.reg));
}

/* From here on nobody tells this process anything about its files. */
static int refuse_to_look(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstat, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_newfstatat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void leave_it_for_want_of_rights(void *arg) {
    const struct scene *s = arg;
    struct main_member w = attach_anew(s);
    OK(refuse_to_look());
    step_give(s->ready);
    step_take(s->go);
    check_it_is_left(w, MD_ESYS - EACCES);
    step_give(s->ready);
    step_take(s->go);
    check_whole(w.reg);
}

TEST(who_may_not_look_leaves_the_repair_to_the_next_one) {
    struct scene s = scene_make();
    pid_t pid = owe_a_repair(&s, leave_it_for_want_of_rights);
    OK(put(s.m, MD_STACK, "n", KEY, "b", NULL));
    EQ(recoveries(s.m.reg), 1);
    step_give(s.go);
    EQ(reap(pid), 0);
    scene_free(&s);
}

/* --- time -------------------------------------------------------------------------------------- */

static const int64_t ONE_LIMIT = 10ll * 1000 * 1000 * 1000, ROOM = 4ll * 1000 * 1000 * 1000;

static void hold_and_stop(void *arg) {
    const struct scene *s = arg;
    md__reg *reg;
    OK(md__enter(s->m.reg, &reg));
    OK(md__lock(reg));
    step_give(s->ready);
    for (;;) pause();
}

static void leave_beside_a_stopped_one(void *arg) {
    const struct scene *s = arg;
    struct main_member w = attach_anew(s);
    step_give(s->done);
    step_take(s->go);
    int64_t start = md_now();
    EQ(md_leave(w.reg, w.member), MD_ELOCK);
    OK(md_close(w.reg));
    CHECK(md_now() - start < ONE_LIMIT + limit(ROOM));
}

static void *close_in_thread(void *arg) {
    struct scene *s = arg;
    md__publish32(&s->tid, (uint32_t)syscall(SYS_gettid));
    OK(md_close(s->m.reg));
    return NULL;
}

static void end_at_once(void *arg) {
    (void)arg;
}

/* One closes, and another forks and opens registries of its own meanwhile. */
static void fork_beside_a_stopped_one(void *arg) {
    struct scene *s = arg, mine = *s;
    pthread_t t;
    mine.m = attach_anew(s);
    step_give(s->done);
    step_take(s->go);
    int64_t start = md_now();
    pthread_create(&t, NULL, close_in_thread, &mine);
    while (!md__read32(&mine.tid)) sched_yield();
    until_inside(getpid(), (pid_t)md__read32(&mine.tid), SYS_futex, SYS_futex);
    EQ(reap(child(end_at_once, NULL)), 0);
    close_main(open_main(NULL, SIZE));
    CHECK(md_now() - start < ONE_LIMIT / 2);
    pthread_join(t, NULL);
    CHECK(md_now() - start < ONE_LIMIT + limit(ROOM));
}

TEST(leaving_beside_a_stopped_holder_takes_one_limit_and_holds_nobody_up) {
    struct scene s = scene_make();
    pid_t leaves = child(leave_beside_a_stopped_one, &s);
    CHECK(step_take(s.done));
    pid_t forks = child(fork_beside_a_stopped_one, &s);
    CHECK(step_take(s.done));
    pid_t holder = child(hold_and_stop, &s);
    CHECK(step_take(s.ready));
    int status;
    kill(holder, SIGSTOP);
    EQ(waitpid(holder, &status, WUNTRACED), holder);
    step_give(s.go);
    step_give(s.go);
    EQ(reap(leaves), 0);
    EQ(reap(forks), 0);
    kill_now(holder);
    scene_free(&s);
}

/* --- its user ---------------------------------------------------------------------------------- */

enum { NOBODY = 65534 };

static char name[64], path[MD__MAX_PATH];

static int has_name(void) {
    struct stat st;
    return lstat(path, &st) == 0;
}

static void close_as_nobody(void *arg) {
    struct main_member m = open_main(name, SIZE);
    md__file_path(path, sizeof path, name);
    CHECK(has_name());
    if (arg) OK(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0));
    OK(setresuid(NOBODY, NOBODY, NOBODY));
    close_main(m);
}

/* Where the name was is known, whatever the user is by then. Whether it can be taken away there is
 * for the system to say: who has given up all rights leaves a closed registry, which stands in nobody's
 * way. */
TEST(who_changed_its_user_takes_its_name_away_or_leaves_it_closed) {
    md_registry reg;
    snprintf(name, sizeof name, "lost-user-%d", (int)getpid());
    md__file_path(path, sizeof path, name);
    if (geteuid()) {
        printf("       (left out: only root can become somebody else)\n");
        return;
    }
    EQ(reap(child(close_as_nobody, name)), 0);
    CHECK(!has_name());
    EQ(reap(child(close_as_nobody, NULL)), 0);
    CHECK(has_name());
    EQ(md_attach(name, 0, &reg), MD_ECLOSED);
    close_main(open_main(name, SIZE));
    CHECK(!has_name());
}

int main(void) {
    RUN(a_registry_whose_descriptor_was_closed_does_not_grow_and_goes_on);
    RUN(a_file_that_has_the_number_of_a_closed_descriptor_is_left_alone);
    RUN(a_device_that_has_the_number_of_a_closed_descriptor_is_left_alone);
    RUN(who_lost_its_descriptor_believes_no_end_of_the_arena_beyond_the_memory);
    RUN(who_lost_its_descriptor_reads_and_waits_in_a_region_that_grows);
    RUN(who_cannot_look_leaves_the_repair_to_the_next_one);
    RUN(a_waiter_does_the_repair_that_was_left);
    RUN(who_dies_with_a_repair_that_is_owed_leaves_it_too);
    RUN(what_is_damaged_is_given_up_by_the_first_who_can_look);
    RUN(who_may_not_look_leaves_the_repair_to_the_next_one);
    RUN(leaving_beside_a_stopped_holder_takes_one_limit_and_holds_nobody_up);
    RUN(who_changed_its_user_takes_its_name_away_or_leaves_it_closed);
    return test_done();
}
