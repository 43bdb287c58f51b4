/* fork: a child is an unrelated process that knows the handle, whatever its parent's threads were
 * doing. */
#include "test.h"

enum { SIZE = 1 << 20 };

/* Memory that a test shares with its children. */
struct family {
    struct main_member m;
    md_record fact;
    struct step ready, go;
};

static struct family family_make(void) {
    struct family f = {.m = open_main(NULL, SIZE), .ready = step_make(), .go = step_make()};
    OK(put(f.m, MD_STACK, "n", KEY, "parent's", &f.fact));
    return f;
}

static void family_free(struct family *f) {
    step_free(f->ready);
    step_free(f->go);
    close_main(f->m);
}

static void grow_up(void *arg) {
    struct family *f = arg;
    char body[32];
    md_wait_stats s;
    struct main_member mine = f->m;
    OK(find(f->m.reg, "n", KEY, body, sizeof body));
    CHECK(!strcmp(body, "parent's"));
    EQ(put(f->m, MD_STACK, "n", KEY, "child's", NULL), MD_EROLE);
    EQ(strike_out(f->m, &f->fact), MD_EROLE);
    EQ(md_leave(f->m.reg, f->m.member), MD_ENOENT);
    EQ(await_fact(f->m.reg, f->m.member, "n", 1, 0, 0, &s), MD_ENOENT);
    mine.member = join(f->m.reg, 0, MD_WORKER);
    EQ(put(mine, MD_STACK, "n", KEY, "child's", NULL), MD_EROLE);
    EQ(strike_out(mine, &f->fact), MD_EROLE);
    OK(await_fact(f->m.reg, mine.member, "n", 1, 0, 0, &s));
    check_whole(f->m.reg);
    step_give(f->ready);
    OK(await_fact(f->m.reg, mine.member, "later", 1, MD_FOREVER, 0, &s));
    OK(md_leave(f->m.reg, mine.member));
    OK(md_close(f->m.reg));
    EQ(md_close(f->m.reg), MD_ECLOSED);
    EQ(find(f->m.reg, "n", KEY, NULL, 0), MD_ECLOSED);
}

TEST(a_child_reads_and_waits_as_a_member_of_its_own_and_changes_nothing) {
    struct family f = family_make();
    md_stats s;
    pid_t pid = child(grow_up, &f);
    CHECK(step_take(f.ready));
    OK(md_stat(f.m.reg, &s));
    EQ(s.members, 2);
    EQ(s.processes, 2);
    until_waiting(f.m.reg, 1);
    until_asleep(pid, pid);
    OK(put(f.m, MD_STACK, "later", KEY, "b", NULL));
    EQ(reap(pid), 0);
    OK(md_stat(f.m.reg, &s));
    EQ(s.members, 1);
    EQ(s.main_state, 1);
    EQ(s.main_pid, getpid());
    family_free(&f);
}

static void close_only(void *arg) {
    struct family *f = arg;
    OK(md_close(f->m.reg));
}

static void end_at_once(void *arg) {
    (void)arg;
}

static void join_and_be_killed(void *arg) {
    struct family *f = arg;
    join(f->m.reg, 0, MD_WORKER);
    raise(SIGKILL);
}

static void check_parent_lives(struct family *f) {
    md_stats s;
    OK(md_stat(f->m.reg, &s));
    EQ(s.main_state, 1);
    struct waiter w = {0};
    md_record r;
    waiter_start(&w, f->m.reg, f->m.member, "own");
    OK(put(f->m, MD_STACK, "own", KEY, "b", &r));
    OK(waiter_end(&w));
    OK(strike_out(f->m, &r));
}

TEST(the_parents_lease_and_registry_survive_whatever_its_children_do) {
    struct family f = family_make();
    for (int i = 0; i < 3; i++) {
        EQ(reap(child(close_only, &f)), 0);
        check_parent_lives(&f);
        EQ(reap(child(end_at_once, &f)), 0);
        check_parent_lives(&f);
        EQ(reap(child(join_and_be_killed, &f)), -SIGKILL);
        check_parent_lives(&f);
    }
    OK(md_leave(f.m.reg, join(f.m.reg, 1, MD_WORKER)));
    family_free(&f);
}

static void raise_a_grandchild(void *arg) {
    struct family *f = arg;
    join(f->m.reg, 0, MD_WORKER);
    EQ(reap(child(grow_up, f)), 0);
}

TEST(a_grandchild_is_a_member_too) {
    struct family f = family_make();
    pid_t pid = child(raise_a_grandchild, &f);
    CHECK(step_take(f.ready));
    until_waiting(f.m.reg, 1);
    OK(put(f.m, MD_STACK, "later", KEY, "b", NULL));
    EQ(reap(pid), 0);
    OK(md_leave(f.m.reg, join(f.m.reg, 1, MD_WORKER)));
    family_free(&f);
}

/* --- fork beside threads ---------------------------------------------------------------------- */

struct busy {
    struct family *f;
    md__u32 done;
    md__u32 turns;
};

static void *register_for_ever(void *arg) {
    struct busy *b = arg;
    while (!md__read32(&b->done)) {
        md_record r;
        if (!OK(put(b->f->m, MD_STACK, "n", KEY, "busy", &r)) || !OK(strike_out(b->f->m, &r)))
            break;
        md__add32(&b->turns, 1);
    }
    return NULL;
}

static void *open_for_ever(void *arg) {
    struct busy *b = arg;
    while (!md__read32(&b->done)) {
        struct main_member m = {0};
        if (!OK(md_create(NULL, MD__MIN_CAPACITY, &m.reg)) || !OK(md_close(m.reg))) break;
        md__add32(&b->turns, 1);
    }
    return NULL;
}

static void use_everything(void *arg) {
    struct family *f = arg;
    struct main_member mine = f->m, own;
    md__reg *reg;
    OK(md__enter(f->m.reg, &reg));
    forget_parents_lock(&md__header(reg)->mutex);
    md__exit(reg);
    OK(find(f->m.reg, "n", KEY, NULL, 0));
    mine.member = join(f->m.reg, 0, MD_WORKER);
    check_whole(f->m.reg);
    own = open_main(NULL, SIZE);
    OK(put(own, MD_STACK, "n", KEY, "b", NULL));
    close_main(own);
    OK(md_leave(f->m.reg, mine.member));
    OK(md_close(f->m.reg));
}

static void fork_beside(void *(*body)(void *), int times) {
    if (!FORKS_BESIDE_BUSY_THREADS) {
        printf("       (left out: ThreadSanitizer itself hangs in such a child)\n");
        return;
    }
    struct family f = family_make();
    struct busy b = {.f = &f};
    pthread_t t;
    pthread_create(&t, NULL, body, &b);
    while (!md__read32(&b.turns)) sched_yield();
    for (int i = 0; i < times && !test_failures; i++) EQ(reap(child(use_everything, &f)), 0);
    md__publish32(&b.done, 1);
    pthread_join(t, NULL);
    family_free(&f);
}

TEST(a_child_is_sound_that_was_forked_while_another_thread_registered) {
    fork_beside(register_for_ever, rounds(150));
}

TEST(a_child_is_sound_that_was_forked_while_another_thread_opened_and_closed) {
    fork_beside(open_for_ever, rounds(25)); /* mostly it holds fork()'s lock */
}

static void open_all_places(void) {
    md_registry reg[64];
    for (int i = 0; i < LEASES_PER_THREAD; i++) OK(md_create(NULL, MD__MIN_CAPACITY, &reg[i]));
    _exit(test_failures != 0);
}

static void close_in_child(void *arg) {
    struct family *f = arg;
    md_stats s;
    OK(md_stat(f->m.reg, &s));
    EQ(md_cancel(f->m.reg, f->m.member, 0), 0); /* the parent's waiters do not count here */
    OK(md_close(f->m.reg));
    EQ(md_close(f->m.reg), MD_ECLOSED);
    open_all_places(); /* it is free although a thread of the parent was in a call */
}

TEST(a_child_is_sound_that_was_forked_while_other_threads_waited) {
    struct family f = family_make();
    struct waiter w[3] = {0};
    for (int i = 0; i < 3; i++) waiter_start(&w[i], f.m.reg, f.m.member, "later");
    EQ(reap(child(use_everything, &f)), 0);
    EQ(reap(child(close_in_child, &f)), 0);
    EQ(waiters(f.m.reg), 3);
    OK(put(f.m, MD_STACK, "later", KEY, "b", NULL));
    for (int i = 0; i < 3; i++) OK(waiter_end(&w[i]));
    family_free(&f);
}

static void find_it_closed(void *arg) {
    struct family *f = arg;
    md_stats s;
    EQ(md_stat(f->m.reg, &s), MD_ECLOSED);
    open_all_places();
}

TEST(a_child_has_the_place_of_a_registry_that_was_closed_during_a_call_of_its_parent) {
    struct family f = family_make();
    md__reg *reg;
    OK(md__enter(f.m.reg, &reg));
    OK(md_close(f.m.reg));
    EQ(reap(child(find_it_closed, &f)), 0);
    CHECK(reg->base);
    md__exit(reg);
    CHECK(!reg->base);
    step_free(f.ready);
    step_free(f.go);
}

static void *hold_and_let_go(void *arg) {
    struct family *f = arg;
    md__reg *reg;
    OK(md__enter(f->m.reg, &reg));
    OK(md__lock(reg));
    step_give(f->ready);
    step_take(f->go);
    md__unlock(reg);
    md__exit(reg);
    return NULL;
}

static void join_when_told(void *arg) {
    struct family *f = arg;
    OK(find(f->m.reg, "n", KEY, NULL, 0));
    step_give(f->go);
    use_everything(f);
}

TEST(a_child_waits_for_the_lock_that_a_thread_of_its_parent_held_at_the_fork) {
    struct family f = family_make();
    pthread_t t;
    md_stats s;
    pthread_create(&t, NULL, hold_and_let_go, &f);
    CHECK(step_take(f.ready));
    pid_t pid = child(join_when_told, &f);
    EQ(reap(pid), 0);
    pthread_join(t, NULL);
    OK(md_stat(f.m.reg, &s));
    EQ(s.recoveries, 0);
    family_free(&f);
}

static void join_and_leave(void *arg) {
    struct main_member *m = arg;
    uint64_t member = join(m->reg, 0, MD_WORKER);
    OK(md_leave(m->reg, member));
}

/* The file in /dev/shm was removed: no other process finds the registry; those that have it go
 * on. */
TEST(a_child_joins_although_the_file_has_lost_its_name) {
    char name[64], path[128];
    snprintf(name, sizeof name, "fork-%d", (int)getpid());
    md__file_path(path, sizeof path, name);
    struct main_member m = open_main(name, MD__MIN_CAPACITY);
    OK(unlink(path));
    EQ(reap(child(join_and_leave, &m)), 0);
    close_main(m);
}

static void lock_as_a_stranger(void *arg) {
    const struct family *f = arg;
    uint64_t member;
    uint32_t role;
    EQ(md_check(f->m.reg, NULL, 0), MD_ENAMESPACE);
    EQ(md_join(f->m.reg, 0, &member, &role), MD_ENAMESPACE);
    OK(find(f->m.reg, "n", KEY, NULL, 0)); /* this takes no lock */
    /* It is process 1 here, and not the process 1 of its parent's namespace. */
    char address[MD_MAX_ADDRESS], of_one[MD_MAX_ADDRESS];
    md_registry reg;
    OK(md_address(f->m.reg, address, sizeof address));
    snprintf(of_one, sizeof of_one, "fd:%d%s", (int)getpid(), strchr(address + 3, ':'));
    EQ(md_open_default(of_one, &reg), MD_ENAMESPACE);
}

static void go_elsewhere(void *arg) {
    if (unshare(CLONE_NEWPID)) {
        printf("       (left out: no PID namespace to be had: %s)\n", strerror(errno));
        return;
    }
    OK(reap(child(lock_as_a_stranger, arg)));
}

TEST(a_child_in_another_pid_namespace_takes_no_lock) {
    struct family f = family_make();
    OK(reap(child(go_elsewhere, &f)));
    family_free(&f);
}

/* --- what a child may do before it joins ----------------------------------------------------------- */

static md__reg *reg_of(md_registry handle) {
    md__reg *reg;
    OK(md__enter(handle, &reg));
    md__exit(reg);
    return reg;
}

static void write_to(void *base) {
    signal(SIGSEGV, SIG_DFL); /* a sanitizer would turn it into an exit status */
    *(volatile char *)base = 'x';
}

static void write_before_joining(void *arg) {
    struct family *f = arg;
    md__reg *reg = reg_of(f->m.reg);
    EQ(fcntl(reg->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    EQ(mprotect(reg->base, reg->mapped, PROT_READ | PROT_WRITE), -1);
    EQ(errno, EACCES);
    write_to(reg->base);
}

static void write_before_joining_again(void *arg) {
    EQ(reap(child(write_before_joining, arg)), -SIGSEGV);
    write_before_joining(arg);
}

TEST(a_child_can_only_read_until_it_joins) {
    struct family f = family_make();
    EQ(reap(child(write_before_joining, &f)), -SIGSEGV);
    EQ(reap(child(write_before_joining_again, &f)), -SIGSEGV);
    check_parent_lives(&f);
    family_free(&f);
}

static void write_to_a_word(void *word) {
    write_to(word);
}

TEST(what_is_held_of_a_closed_registry_can_only_be_read) {
    struct main_member m = open_main(NULL, SIZE);
    const uint64_t *word;
    md_held *held;
    OK(md_hold(m.reg, &held));
    OK(md_word(m.reg, 0, &word));
    close_main(m);
    EQ(reap(child(write_to_a_word, (void *)(uintptr_t)word)), -SIGSEGV);
    md_let_go(held);
}

static void go_on_without_writing(struct family *f) {
    uint64_t member;
    uint32_t role;
    EQ(md_join(f->m.reg, 0, &member, &role), MD_EREOPEN);
    OK(find(f->m.reg, "n", KEY, NULL, 0));
    EQ(put(f->m, MD_STACK, "n", KEY, "child's", NULL), MD_EREOPEN);
    EQ(md_join(f->m.reg, 0, &member, &role), MD_EREOPEN);
    OK(find(f->m.reg, "n", KEY, NULL, 0));
}

static void become_another_user(void *arg) {
    EQ(syscall(SYS_setresuid, 65534, 65534, 65534), 0);
    go_on_without_writing(arg);
    write_before_joining(arg);
}

TEST(a_child_that_became_another_user_only_reads) {
    if (geteuid()) {
        printf("       (left out: only root can become somebody else)\n");
        return;
    }
    struct family f = family_make();
    EQ(reap(child(become_another_user, &f)), -SIGSEGV);
    check_parent_lives(&f);
    family_free(&f);
}

static void lose_proc(void *arg) {
    OK(chroot("/dev/shm"));
    go_on_without_writing(arg);
}

TEST(a_child_without_proc_only_reads) {
    if (geteuid()) {
        printf("       (left out: only root can change its root)\n");
        return;
    }
    struct family f = family_make();
    EQ(reap(child(lose_proc, &f)), 0);
    check_parent_lives(&f);
    family_free(&f);
}

int main(void) {
    RUN(a_child_joins_although_the_file_has_lost_its_name);
    RUN(a_child_reads_and_waits_as_a_member_of_its_own_and_changes_nothing);
    RUN(the_parents_lease_and_registry_survive_whatever_its_children_do);
    RUN(a_grandchild_is_a_member_too);
    RUN(a_child_in_another_pid_namespace_takes_no_lock);
    RUN(a_child_is_sound_that_was_forked_while_another_thread_registered);
    RUN(a_child_is_sound_that_was_forked_while_another_thread_opened_and_closed);
    RUN(a_child_is_sound_that_was_forked_while_other_threads_waited);
    RUN(a_child_has_the_place_of_a_registry_that_was_closed_during_a_call_of_its_parent);
    RUN(a_child_waits_for_the_lock_that_a_thread_of_its_parent_held_at_the_fork);
    RUN(a_child_can_only_read_until_it_joins);
    RUN(what_is_held_of_a_closed_registry_can_only_be_read);
    RUN(a_child_that_became_another_user_only_reads);
    RUN(a_child_without_proc_only_reads);
    return test_done();
}
