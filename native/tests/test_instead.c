/* Moments that are too short to hit, and waits that are too long for a test: here the C library is
 * made to answer as it would then. */
#include "test.h"

#if defined(__SANITIZE_THREAD__)
int main(void) {
    printf("left out: ThreadSanitizer stands in these calls itself\n");
    return 0;
}
#else
#include <linux/futex.h>
#include <sys/file.h>

#include "instead.h"

enum { SIZE = MD__MIN_CAPACITY };
static const int64_t SECOND = 1000000000;

static struct main_member m;
static md__reg *reg;
static md__u32 *lock_word;
static char name[64];

static void open_it(const char *called) {
    m = open_main(called, SIZE);
    OK(md__enter(m.reg, &reg));
    md__exit(reg);
    lock_word = md__mutex_word(&md__header(reg)->mutex);
}

static const char *fresh_name(void) {
    static int count;
    snprintf(name, sizeof name, "instead-%d-%d", (int)getpid(), count++);
    return name;
}

static uint64_t recoveries(void) {
    md_stats s;
    OK(md_stat(m.reg, &s));
    return s.recoveries;
}

/* --- a lock that was not to be had in one slice ----------------------------------------------- */

static uint32_t held_as, held_after; /* the lock's word after the slice, and then */
static int slices, answer;

static int let_a_slice_pass(pthread_mutex_t *mutex) {
    if (slices++) return GO_ON;
    md__poke32(lock_word, held_as);
    return ETIMEDOUT;
}
static int ask_for_the_holder(void) {
    md__poke32(lock_word, held_after);
    return answer;
}

static int lock_after(uint32_t as, uint32_t after, int error) {
    slices = 0;
    held_as = as;
    held_after = after;
    answer = error;
    instead.clocklock = let_a_slice_pass;
    instead.tkill = ask_for_the_holder;
    int rc = md_check(m.reg, NULL, 0);
    instead.clocklock = NULL;
    instead.tkill = NULL;
    return rc;
}

/* If the lock's word names a holder that does not exist, and the kernel did not mark it as dead, no
 * one will ever release the lock: that is damage, but only if the word stays like this. */
TEST(a_holder_is_believed_to_be_gone_only_when_it_is) {
    open_it(NULL);
    OK(lock_after(FUTEX_OWNER_DIED, 0,
                  0)); /* the holder died during the slice: the lock is recovered */
    EQ(recoveries(), 1);
    OK(lock_after(77, 0, ESRCH)); /* it released the lock and ended after the slice */
    EQ(recoveries(), 1);
    OK(lock_after(77, FUTEX_OWNER_DIED, ESRCH)); /* it died after the slice */
    EQ(recoveries(), 2);
    OK(lock_after(77, 0, EPERM)); /* another thread has it, and releases it before the next slice */
    EQ(recoveries(), 2);
    EQ(lock_after(77, 77, ESRCH), MD_EDAMAGED);
    md__poke32(lock_word, 0);
    close_main(m);
}

static void hold_and_die(void *arg) {
    OK(md__lock(reg));
    kill(getpid(), SIGKILL);
}
static int be_busy(pthread_mutex_t *mutex) {
    return mutex == &md__header(reg)->mutex ? EBUSY : GO_ON;
}
static int be_late(pthread_mutex_t *mutex) {
    instead.trylock = NULL;
    if (mutex == &md__header(reg)->mutex) check_whole(m.reg);
    return GO_ON;
}

TEST(a_sleeper_that_wants_to_mend_the_lock_leaves_it_to_who_has_it) {
    open_it(NULL);
    EQ(reap(child(hold_and_die, NULL)), -SIGKILL);
    instead.trylock = be_busy;
    md__mend(reg);
    EQ(recoveries(), 0);
    instead.trylock = be_late; /* another thread repairs it just before */
    md__mend(reg);
    EQ(recoveries(), 1);
    check_whole(m.reg); /* it was released again */
    EQ(reap(child(hold_and_die, NULL)), -SIGKILL);
    md__mend(reg);
    EQ(recoveries(), 2);
    close_main(m);
}

static int pass_three_slices(pthread_mutex_t *mutex) {
    return mutex == &md__header(reg)->mutex && slices++ < 3 ? ETIMEDOUT : GO_ON;
}

TEST(who_gave_a_lock_up_once_waits_for_its_next_holder_all_the_same) {
    open_it(NULL);
    md__poke32(&reg->stuck, 77);
    slices = 0;
    instead.clocklock = pass_three_slices;
    OK(md_leave(m.reg, m.member));
    instead.clocklock = NULL;
    CHECK(slices > 3);
    OK(md_close(m.reg));
}

static int have_no_word(void) {
    return EFAULT;
}

TEST(a_wait_whose_words_are_gone_ends) {
    char buf[BUF];
    md_wait_stats s = {0};
    open_it(NULL);
    instead.waitv = have_no_word;
    EQ(md_await(m.reg, m.member, MD_IMPL, KEY, 1, "n", 1, MD_FOREVER, 0, buf, sizeof buf, &s),
       MD_ESYS - EFAULT);
    instead.waitv = NULL;
    close_main(m);
}

/* --- what is waited for in vain --------------------------------------------------------------- */

struct stage {
    struct step ready, go;
    md_registry reg;
};
static struct stage stage;

static void hold_the_folder(void *arg) {
    char path[64];
    md__file_path(path, sizeof path, "");
    OK(flock(open(path, O_RDONLY | O_CLOEXEC), LOCK_EX));
    step_give(stage.ready);
    step_take(stage.go);
}

static pid_t begin(void (*body)(void *)) {
    stage = (struct stage){step_make(), step_make(), 0};
    pid_t pid = child(body, NULL);
    CHECK(step_take(stage.ready));
    return pid;
}

static void end(pid_t pid, int should) {
    step_give(stage.go);
    EQ(reap(pid), should);
    step_free(stage.ready);
    step_free(stage.go);
}

TEST(a_folder_that_somebody_keeps_locked_is_not_waited_for_for_ever) {
    md_registry none = 0;
    open_it(fresh_name());
    close_main(m); /* now the folder exists */
    pid_t pid = begin(hold_the_folder);
    instead.clock_step = SECOND;
    EQ(md_create(fresh_name(), SIZE, &none), MD_EBUSY);
    instead.clock_step = 0;
    end(pid, 0);
    OK(md_create(name, SIZE, &none));
    OK(md_close(none));
}

/* A team whose members are all dead; another process has it open. */
static void live_as_team(void *arg) {
    md_registry mine;
    OK(md_elect(name, SIZE, &mine));
    join(mine, 0, MD_PEER);
    step_give(stage.ready);
    step_take(stage.go);
    kill(getpid(), SIGKILL);
}

static struct step late_ready, late_go;
static void have_it_open(void *arg) {
    md__reg *mine;
    OK(md_attach(name, 0, &m.reg));
    step_give(late_ready);
    step_take(late_go);
    if (arg) {
        OK(md__enter(m.reg, &mine));
        OK(md__lock(mine));
    } else {
        join(m.reg, 0, MD_PEER);
    }
    step_give(late_ready);
    step_take(late_go);
}

static pid_t leave_a_dead_team(int locks) {
    late_ready = step_make();
    late_go = step_make();
    fresh_name();
    pid_t pid = begin(live_as_team);
    pid_t late = child(have_it_open, locks ? &locks : NULL);
    CHECK(step_take(late_ready));
    end(pid, -SIGKILL);
    return late;
}

static void go_on_late(void) {
    step_give(late_go);
    CHECK(step_take(late_ready));
}

static void end_late(pid_t late) {
    step_give(late_go);
    OK(reap(late));
    step_free(late_ready);
    step_free(late_go);
}

static int never_get_it(pthread_mutex_t *mutex) {
    return ETIMEDOUT;
}

TEST(a_dead_teams_lock_that_a_stranger_holds_is_not_waited_for_for_ever) {
    md_registry none = 0;
    pid_t late = leave_a_dead_team(1);
    go_on_late();
    instead.clocklock = never_get_it;
    instead.clock_step = SECOND;
    EQ(md_elect(name, SIZE, &none), MD_ELOCK);
    instead.clocklock = NULL;
    instead.clock_step = 0;
    end_late(late);
    OK(md_elect(name, SIZE, &none));
    join(none, 0, MD_PEER);
    OK(md_close(none));
}

static int be_overtaken(pthread_mutex_t *mutex) {
    instead.clocklock = NULL;
    go_on_late();
    return GO_ON;
}

TEST(a_team_that_somebody_joins_just_before_it_is_closed_as_dead_lives_on) {
    struct main_member b = {0};
    pid_t late = leave_a_dead_team(0);
    instead.clocklock = be_overtaken;
    OK(md_elect(name, SIZE, &b.reg));
    b.member = join(b.reg, 0, MD_PEER);
    md_stats s;
    OK(md_stat(b.reg, &s));
    EQ(s.members, 2); /* the other process is in the same registry */
    end_late(late);
    OK(md_leave(b.reg, b.member));
    OK(md_close(b.reg));
}

static int be_there_already(void) {
    return EEXIST;
}

/* It appears and disappears, always at the wrong moment. */
TEST(a_name_that_is_never_there_and_never_free_is_given_up_after_10_s) {
    md_registry none = 0;
    instead.linkat = be_there_already;
    instead.clock_step = SECOND / 10;
    int64_t before = md_now();
    EQ(md_elect(fresh_name(), SIZE, &none), MD_EEXIST);
    CHECK(md_now() - before >= 10 * SECOND);
    instead.clock_step = 0;
    instead.linkat = NULL;
}

/* --- what another thread does meanwhile ------------------------------------------------------- */

static void live_as_main(void *arg) {
    open_it(name);
    step_give(stage.ready);
    step_take(stage.go);
    close_main(m);
}

static md_registry found;
static void close_what_was_found(void) {
    if (!found) return;
    instead.unlocked = NULL;
    OK(md_close(found));
}

TEST(a_handle_that_is_closed_while_it_is_handed_out_is_closed) {
    fresh_name();
    pid_t pid = begin(live_as_main);
    found = 0;
    instead.unlocked = close_what_was_found;
    EQ(md_elect(name, SIZE, &found), MD_ECLOSED);
    EQ(instead.unlocked == NULL, 1);
    end(pid, 0);
}

/* --- a file of another file system ------------------------------------------------------------ */

static void be_mounted_over(struct stat *st) {
    st->st_dev++;
}

TEST(what_is_mounted_over_the_file_is_not_the_registrys) {
    char path[160];
    md__file_path(path, sizeof path, fresh_name());
    open_it(name);
    instead.lstat = be_mounted_over;
    close_main(m);
    instead.lstat = NULL;
    OK(unlink(path)); /* it was not touched */
}

int main(void) {
    RUN(a_holder_is_believed_to_be_gone_only_when_it_is);
    RUN(a_sleeper_that_wants_to_mend_the_lock_leaves_it_to_who_has_it);
    RUN(who_gave_a_lock_up_once_waits_for_its_next_holder_all_the_same);
    RUN(a_wait_whose_words_are_gone_ends);
    RUN(a_folder_that_somebody_keeps_locked_is_not_waited_for_for_ever);
    RUN(a_dead_teams_lock_that_a_stranger_holds_is_not_waited_for_for_ever);
    RUN(a_team_that_somebody_joins_just_before_it_is_closed_as_dead_lives_on);
    RUN(a_name_that_is_never_there_and_never_free_is_given_up_after_10_s);
    RUN(a_handle_that_is_closed_while_it_is_handed_out_is_closed);
    RUN(what_is_mounted_over_the_file_is_not_the_registrys);
    return test_done();
}
#endif
