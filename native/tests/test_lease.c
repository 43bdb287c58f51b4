/* Leases: a lease belongs to its process, whichever thread joined, and ends with the process, also
 * by exec. */
#include <dirent.h>
#include <dlfcn.h>
#include <linux/futex.h>

#include "test.h"

enum { SIZE = 1 << 20 };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { PRELOADS = 0 }; /* a sanitizer wants to be the first library that is loaded */
#else
enum { PRELOADS = 1 };
#endif

static int threads_of_this_process(void) {
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void *create_here(void *arg) {
    *(struct main_member *)arg = open_main(NULL, SIZE);
    return NULL;
}

static void *close_there(void *arg) {
    struct main_member *m = arg;
    OK(md_close(m->reg));
    return NULL;
}

static void in_thread(void *(*body)(void *), void *arg) {
    pthread_t t;
    pthread_create(&t, NULL, body, arg);
    pthread_join(t, NULL);
}

static void *do_nothing(void *arg) {
    return arg;
}

/* A thread that was joined is still listed for a moment. */
static void until_threads(int count) {
    while (threads_of_this_process() != count) sched_yield();
}

TEST(the_thread_that_holds_a_lease_ends_with_the_last_close) {
    struct main_member m;
    in_thread(do_nothing, NULL); /* with the first thread a sanitizer starts one of its own */
    int before = threads_of_this_process();
    for (int i = 0; i < rounds(50); i++) {
        in_thread(create_here, &m);
        until_threads(before + 1);
        if (i % 2)
            close_main(m);
        else
            in_thread(close_there, &m);
        until_threads(before);
    }
}

static void be_a_worker(void *arg) {
    struct main_member *m = arg, mine = *m;
    mine.member = join(m->reg, 0, MD_WORKER);
    OK(find(m->reg, "n", KEY, NULL, 0));
    EQ(put(mine, MD_STACK, "n", KEY, "b", NULL), MD_EROLE);
    OK(md_leave(m->reg, mine.member));
    OK(md_close(m->reg));
}

static void *wait_in_vain(void *arg) {
    struct main_member *m = arg;
    md_wait_stats s;
    EQ(await_fact(m->reg, join(m->reg, 1, MD_WORKER), "never", 1, md_now() + 20000000, 0, &s),
       MD_ETIMEDOUT);
    return NULL;
}

TEST(a_child_can_be_forked_beside_a_lease_thread) {
    struct main_member m;
    in_thread(create_here, &m);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    for (int i = 0; i < rounds(20); i++) EQ(reap(child(be_a_worker, &m)), 0);
    in_thread(wait_in_vain, &m); /* the lease is still held */
    md_stats s;
    OK(md_stat(m.reg, &s));
    EQ(s.main_state, 1);
    close_main(m);
}

/* A child whose first member joins in a thread that ends. */
static void join_by_thread(void *arg) {
    struct main_member *m = arg;
    in_thread(wait_in_vain, m);
    md_member_info info[4];
    size_t n;
    OK(md_members(m->reg, info, 4, &n));
    EQ(n, 2);
    CHECK(info[1].alive && info[1].pid == (uint32_t)getpid());
}

TEST(a_worker_that_joined_in_a_thread_is_alive_until_its_process_ends) {
    struct main_member m = open_main(NULL, SIZE);
    md_member_info info[4];
    size_t n;
    EQ(reap(child(join_by_thread, &m)), 0);
    OK(md_members(m.reg, info, 4, &n));
    EQ(n, 2);
    CHECK(!info[1].alive);
    OK(md_leave(m.reg, join(m.reg, 1, MD_WORKER)));
    close_main(m);
}

static void parked_main(void *arg) {
    struct main_member m = open_main(NULL, SIZE);
    char address[MD_MAX_ADDRESS] = "";
    OK(md_address(m.reg, address, sizeof address));
    in_thread(close_there, &m); /* it cannot release what the main thread holds */
    EQ(find(m.reg, "n", KEY, NULL, 0), MD_ECLOSED);
    md_registry again;
    CHECK(md_attach(address, 0, &again) < 0);
    m = open_main(NULL, SIZE);
    close_main(m);
    (void)arg;
}

TEST(closing_in_another_thread_than_the_one_with_the_lease_ends_well) {
    EQ(reap(child(parked_main, NULL)), 0);
}

static md_registry inherited;

static void parked_worker(void *arg) {
    OK(md_close(inherited)); /* an unrelated process, which opens it by its address */
    struct main_member w = attach_worker(arg);
    in_thread(close_there, &w);
    md_registry look;
    md_stats s;
    OK(md_attach(arg, 0, &look)); /* a call of the main thread: the lease is let go of */
    OK(md_stat(look, &s));
    EQ(s.processes, 2); /* until somebody sweeps */
    join(look, 0, MD_WORKER);
    OK(md_stat(look, &s));
    EQ(s.processes, 2);
    EQ(s.members, 2);
    in_thread(close_there, &(struct main_member){.reg = look});
}

/* Its process ends without another call. */
TEST(a_worker_that_closed_in_another_thread_is_swept) {
    struct main_member m = open_main(NULL, SIZE);
    char address[MD_MAX_ADDRESS];
    md_stats s;
    OK(md_address(m.reg, address, sizeof address));
    inherited = m.reg;
    EQ(reap(child(parked_worker, address)), 0);
    OK(md_stat(m.reg, &s));
    EQ(s.processes, 2);
    EQ(s.members, 1);
    OK(md_leave(m.reg, join(m.reg, 1, MD_WORKER)));
    OK(md_stat(m.reg, &s));
    EQ(s.processes, 1);
    close_main(m);
}

struct closing {
    struct step closed, go;
    char address[MD_MAX_ADDRESS];
};

static void close_in_a_thread_and_stay(void *arg) {
    struct closing *c = arg;
    OK(md_close(inherited));
    struct main_member w = attach_worker(c->address);
    in_thread(close_there, &w);
    step_give(c->closed);
    step_take(c->go);
}

/* Its main thread, which has the lease, has called nothing since. */
TEST(a_worker_that_closed_in_another_thread_is_seen_no_more) {
    struct main_member m = open_main(NULL, SIZE);
    struct closing c = {.closed = step_make(), .go = step_make()};
    md_inspection seen;
    size_t count;
    OK(md_address(m.reg, c.address, sizeof c.address));
    inherited = m.reg;
    pid_t pid = child(close_in_a_thread_and_stay, &c);
    CHECK(step_take(c.closed));
    OK(md_inspect(c.address, &seen, NULL, 0, &count));
    EQ(seen.alive, 1);
    step_give(c.go);
    EQ(reap(pid), 0);
    step_free(c.closed);
    step_free(c.go);
    close_main(m);
}

/* How many mappings of registries this process has. */
static int regions_mapped(void) {
    char line[512];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps)) n += strstr(line, "memfd:mdispatch") != NULL;
    if (maps) fclose(maps);
    return n;
}

static int robust_mutexes(void) {
    struct robust_list_head *head;
    const struct robust_list *at;
    size_t size;
    int n = 0;
    if (syscall(SYS_get_robust_list, 0, &head, &size)) abort();
    for (at = head->list.next; at != &head->list; at = at->next) n++;
    return n;
}

static void *look_there(void *arg) {
    md_stats s;
    EQ(md_stat(((struct main_member *)arg)->reg, &s), MD_ECLOSED);
    return NULL;
}

static void count_in_child(void *arg) {
    EQ(regions_mapped(), *(int *)arg);
}

TEST(what_another_thread_closed_is_given_back_at_the_next_call_of_the_main_thread) {
    int before = regions_mapped(), locks = robust_mutexes();
    struct main_member m;
    md_stats s;
    for (int i = 0; i < 100; i++) {
        m = open_main(NULL, SIZE);
        in_thread(close_there, &m);
        EQ(regions_mapped(), before + 1);
    }
    EQ(reap(child(count_in_child, &before)), 0); /* what is parked is its parent's */
    in_thread(look_there, &m);
    EQ(regions_mapped(), before + 1);
    EQ(robust_mutexes(), locks + 1);
    EQ(md_stat(m.reg, &s), MD_ECLOSED); /* any call */
    EQ(regions_mapped(), before);
    EQ(robust_mutexes(), locks);
}

/* The next registry in the same place of the table has words of its own. */
TEST(a_hold_after_a_close_by_another_thread_is_of_the_new_region) {
    struct main_member m = open_main(NULL, SIZE);
    md_held *held;
    const uint64_t *word;
    uint64_t next;
    in_thread(close_there, &m);
    m = open_main(NULL, SIZE);
    OK(md_hold(m.reg, &held));
    OK(md_word(m.reg, 0, &word));
    next = md__read64((const md__u64 *)word);
    close_main(m);
    EQ(md__read64((const md__u64 *)word), next); /* still there to be read */
    md_let_go(held);
}

/* --- exec ------------------------------------------------------------------------------------- */

static void exec_self(void *arg) {
    const char *how = arg;
    md_registry reg;
    char address[MD_MAX_ADDRESS];
    OK(md_open_default(NULL, &reg));
    join(reg, 0, MD_MAIN);
    OK(md_address(reg, address, sizeof address));
    setenv("MD_TEST_ADDRESS", address, 1);
    execl("/proc/self/exe", "test_lease", how, (char *)NULL);
    abort();
}

struct exec_stage {
    char address[MD_MAX_ADDRESS];
    struct step ready, go;
};

static void exec_when_told(void *arg) {
    struct exec_stage *s = arg;
    struct main_member m = open_main(NULL, SIZE);
    OK(md_address(m.reg, s->address, sizeof s->address));
    step_give(s->ready);
    step_take(s->go);
    execl("/proc/self/exe", "test_lease", "linger", (char *)NULL);
    abort();
}

TEST(waiters_are_told_when_the_main_process_becomes_another_program) {
    struct exec_stage *s = shared(sizeof *s);
    md_registry look;
    s->ready = step_make();
    s->go = step_make();
    pid_t pid = child(exec_when_told, s);
    CHECK(step_take(s->ready));
    OK(md_attach(s->address, 0, &look));
    struct waiter w = {0};
    waiter_start(&w, look, join(look, 0, MD_WORKER), "n");
    step_give(s->go);
    EQ(waiter_end(&w), MD_EDIED);
    kill_now(pid);
    OK(md_close(look));
    step_free(s->ready);
    step_free(s->go);
    munmap(s, sizeof *s);
}

static int after_exec(const char *how) {
    md_registry reg;
    while (!strcmp(how, "linger")) pause();
    const char *address = getenv("MD_TEST_ADDRESS");
    if (!strcmp(
            how,
            "own")) { /* an address that this process published before the exec counts as none */
        OK(md_open_default(address, &reg));
        join(reg, 0, MD_MAIN);
    } else {
        pid_t pid = fork();
        if (pid) return reap(pid);
        EQ(md_open_default(address, &reg),
           MD_EDIED); /* the address of another process, which is gone, is an error */
    }
    return test_failures != 0;
}

TEST(a_process_that_execs_starts_anew_and_its_children_learn_that_it_died) {
    EQ(reap(child(exec_self, "own")), 0);
    EQ(reap(child(exec_self, "child")), 0);
}

/* --- static TLS ------------------------------------------------------------------------------- */

static void exec_with_much_tls(void *arg) {
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    CHECK(n > 0);
    path[n > 0 ? n : 0] = '\0';
    strcpy(strrchr(path, '/'), "/libs/much_tls.so");
    setenv("LD_PRELOAD", path, 1);
    execl("/proc/self/exe", "test_lease", "much TLS", (char *)NULL);
    abort();
}

static int join_with_much_tls(void) {
    struct main_member m;
    size_t *size = dlsym(RTLD_DEFAULT, "much_tls_size");
    CHECK(size && *size > 128 * 1024); /* it is loaded, and a stack of 128 KiB has no room for it */
    in_thread(create_here, &m);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    close_main(m);
    return test_failures != 0;
}

TEST(a_thread_can_join_where_static_tls_is_larger_than_a_small_stack) {
    EQ(reap(child(exec_with_much_tls, NULL)), 0);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "much TLS")) return join_with_much_tls();
    if (argc == 2) return after_exec(argv[1]);
    RUN(the_thread_that_holds_a_lease_ends_with_the_last_close);
    RUN(a_child_can_be_forked_beside_a_lease_thread);
    RUN(a_worker_that_joined_in_a_thread_is_alive_until_its_process_ends);
    RUN(closing_in_another_thread_than_the_one_with_the_lease_ends_well);
    RUN(a_worker_that_closed_in_another_thread_is_swept);
    RUN(a_worker_that_closed_in_another_thread_is_seen_no_more);
    RUN(what_another_thread_closed_is_given_back_at_the_next_call_of_the_main_thread);
    RUN(a_hold_after_a_close_by_another_thread_is_of_the_new_region);
    RUN(waiters_are_told_when_the_main_process_becomes_another_program);
    RUN(a_process_that_execs_starts_anew_and_its_children_learn_that_it_died);
    if (PRELOADS) RUN(a_thread_can_join_where_static_tls_is_larger_than_a_small_stack);
    return test_done();
}
