/* A look from outside sees everything, waits for no process and leaves no trace. A registry that is
 * no longer in use can be removed, and no other. */
#include <linux/futex.h>
#include <sys/file.h>

#include "between.h"

enum { SIZE = MD__MIN_CAPACITY };

static char name[64]; /* this test's name in this user's folder */
static char path[160];
static md_inspection seen;
static md_member_info infos[MD_MAX_MEMBERS];
static size_t members;

static void set_names(void) {
    snprintf(name, sizeof name, "inspect-%d", (int)getpid());
    md__file_path(path, sizeof path, name);
}

static int look_at(const char *address) {
    memset(infos, 0, sizeof infos);
    return md_inspect(address, &seen, infos, MD_MAX_MEMBERS, &members);
}

/* All bytes of a registry, for comparison. */
static char *bytes_of(int fd, size_t *size) {
    struct stat st;
    if (fstat(fd, &st)) abort();
    *size = (size_t)st.st_size;
    char *all = malloc(*size);
    EQ(pread(fd, all, *size, 0), *size);
    return all;
}

static void lay_down(const void *bytes, size_t size) {
    unlink(path);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    EQ(write(fd, bytes, size), size);
    close(fd);
}

/* The main member: a child that can be told to take the lock. */
struct life {
    struct step ready, go;
    const char *name;
    int locks;
};

static void live_as_main(void *arg) {
    struct life *l = arg;
    md__reg *reg;
    struct main_member m = open_main(l->name, SIZE);
    OK(put(m, MD_STACK, "a", KEY, "body", NULL));
    if (l->locks) {
        OK(md__enter(m.reg, &reg));
        OK(md__lock(reg));
    }
    step_give(l->ready);
    if (l->locks == 2) raise(SIGSTOP);
    for (;;) pause();
}

static void live_as_worker(void *arg) {
    struct life *l = arg;
    attach_worker(l->name);
    step_give(l->ready);
    for (;;) pause();
}

static pid_t begin_life(void (*body)(void *), int locks) {
    struct life l = {.ready = step_make(), .name = name, .locks = locks};
    pid_t pid = child(body, &l);
    CHECK(step_take(l.ready));
    step_free(l.ready);
    return pid;
}

/* --- the look --------------------------------------------------------------------------------- */

TEST(a_look_sees_what_members_see) {
    struct main_member m = open_main(name, SIZE);
    uint64_t worker = join(m.reg, 3, MD_WORKER);
    md_record r;
    OK(put(m, MD_STACK, "a", KEY, "one", NULL));
    OK(put(m, MD_STACK, "a", KEY, "two", &r));
    OK(put(m, MD_STACK, "b", KEY, "three", NULL));
    OK(strike_out(m, &r));
    struct waiter w = {0};
    waiter_start(&w, m.reg, worker, "c");
    char address[MD_MAX_ADDRESS];
    OK(md_address(m.reg, address, sizeof address));
    const char *const ways[] = {name, address};
    for (int i = 0; i < 2; i++) {
        OK(look_at(ways[i]));
        md_stats s;
        OK(md_stat(m.reg, &s));
        CHECK(memcmp(&s, &seen.stats, sizeof s) == 0);
        CHECK(strcmp(seen.address, address) == 0);
        EQ(seen.attach, 0);
        EQ(seen.stats.policy, MD_POLICY_MAIN);
        EQ(seen.kinds[MD_IMPL], 2);
        EQ(seen.kinds[MD_DEF], 0);
        EQ(seen.alive, 1);
        EQ(seen.dead, 0);
        EQ(seen.lock_tid, 0);
        EQ(seen.torn, 0);
        EQ(seen.fixed, MD__ARENA_AT);
        EQ(members, 2);
        EQ(infos[1].interp, 3);
        EQ(infos[1].waiters, 1);
        EQ(infos[1].wait_kind, MD_IMPL);
        CHECK(strcmp(infos[1].wait_name, "c") == 0);
        CHECK(infos[1].waiting_ns && (int64_t)infos[1].waiting_ns <= md_now());
    }
    OK(put(m, MD_STACK, "c", KEY, "four", NULL));
    EQ(waiter_end(&w), 0);
    close_main(m);
    EQ(look_at(name), MD_ENOENT);
}

TEST(an_anonymous_registry_is_seen_by_what_a_process_has_open) {
    struct main_member m = open_main(NULL, SIZE);
    char address[MD_MAX_ADDRESS], shorter[MD_MAX_ADDRESS];
    OK(md_address(m.reg, address, sizeof address));
    snprintf(shorter, sizeof shorter, "%s", address);
    for (int field = IN_UUID; field <= IN_SPACE; field++) *strrchr(shorter, ':') = '\0';
    OK(look_at(shorter));
    CHECK(strcmp(seen.address, address) == 0);
    uint64_t inode = seen.inode;
    OK(look_at(address));
    EQ(seen.inode, inode);
    change_digit(address, IN_UUID);
    EQ(look_at(address), MD_ENOENT);
    /* From elsewhere: it may lead here all the same. */
    change_digit(address, IN_SPACE);
    EQ(look_at(address), MD_ENAMESPACE);
    change_digit(address, IN_BOOT);
    EQ(look_at(address), MD_EBOOT);
    OK(md_address(m.reg, address, sizeof address));
    change_digit(address, IN_SPACE);
    OK(look_at(address));
    EQ(seen.inode, inode);
    EQ(seen.attach, 0);
    snprintf(address, sizeof address, "%s", address_of(999999999, 3));
    EQ(look_at(address), MD_EDIED);
    change_digit(address, IN_SPACE);
    EQ(look_at(address), MD_ENAMESPACE);
    static const char *const bad[] = {"fd:", "fd:1", "fd:1:2:", "fd:1:2:xyz", "fd:1:2:0123",
                                      "fd:1:2:0123456789abcdef0123456789abcdef",
                                      "",    "a/b",  "../x",    "shm:"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!EQ(look_at(bad[i]), MD_ENAME)) fprintf(stderr, "    \"%s\"\n", bad[i]);
    EQ(look_at("fd:999999999:3"), MD_EDIED);
    EQ(look_at(NULL), MD_EINVAL);
    char long_one[MD_MAX_ADDRESS * 2];
    memset(long_one, 'x', sizeof long_one);
    long_one[sizeof long_one - 1] = '\0';
    EQ(look_at(long_one), MD_ENAME);
    close_main(m);
}

/* This process's mappings of the test's file or of an anonymous registry. */
static int count_mappings(void) {
    char line[512];
    int found = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, f))
        found += strstr(line, path) || strstr(line, "memfd:mdispatch");
    fclose(f);
    return found;
}

TEST(a_look_changes_nothing_and_keeps_nothing) {
    pid_t pid = begin_life(live_as_main, 0);
    size_t size, size_after;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *before = bytes_of(fd, &size);
    EQ(count_mappings(), 0);
    int next = dup(0);
    close(next);
    for (int i = 0; i < 100; i++) OK(look_at(name));
    int again = dup(0);
    EQ(again, next);
    close(again);
    EQ(count_mappings(), 0);
    char *after = bytes_of(fd, &size_after);
    EQ(size, size_after);
    CHECK(memcmp(before, after, size) == 0);
    free(before);
    free(after);
    close(fd);
    kill_now(pid);
    OK(md_reap(name));
}

TEST(a_registry_is_seen_while_a_stopped_process_holds_its_lock) {
    pid_t pid = begin_life(live_as_main, 2);
    int status;
    EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    int64_t start = md_now();
    OK(look_at(name));
    CHECK(md_now() - start < limit(1000000000));
    EQ(seen.attach, 0);
    EQ(seen.lock_tid, pid);
    EQ(seen.lock_died, 0);
    EQ(seen.alive, 1);
    EQ(md_reap(name), MD_EEXIST);
    kill_now(pid);
    OK(look_at(name));
    EQ(seen.lock_died, 1);
    EQ(seen.attach, MD_EDIED);
    OK(md_reap(name));
}

TEST(a_registry_is_seen_after_its_main_member_died_and_with_who_died_beside_it) {
    pid_t pid = begin_life(live_as_main, 0);
    pid_t worker = begin_life(live_as_worker, 0), other = begin_life(live_as_worker, 0);
    kill_now(other);
    OK(look_at(name));
    EQ(seen.alive, 2);
    EQ(seen.dead, 1);
    EQ(members, 3);
    EQ(infos[0].alive + infos[1].alive + infos[2].alive, 2);
    kill_now(pid);
    md_registry reg;
    EQ(md_attach(name, 0, &reg), MD_EDIED);
    OK(look_at(name));
    EQ(seen.attach, MD_EDIED);
    EQ(seen.stats.main_pid, pid);
    EQ(seen.stats.main_state, 3);
    EQ(seen.kinds[MD_IMPL], 1);
    EQ(seen.alive, 1);
    EQ(seen.dead, 2);
    EQ(md_reap(name), MD_EEXIST);
    kill_now(worker);
    OK(look_at(name));
    EQ(seen.alive, 0);
    OK(md_reap(name));
    EQ(md_reap(name), MD_ENOENT);
}

/* Grows to some thousand facts, then strikes and registers alternately. */
static void change_for_long(void *arg) {
    enum { MOST = 3000 };
    static md_record live[MOST];
    struct life *l = arg;
    struct main_member m = open_main(l->name, 8 << 20);
    char key[32];
    step_give(l->ready);
    for (uint64_t i = 0;; i++) {
        md_record *r = &live[i % MOST];
        snprintf(key, sizeof key, "n%d", (int)(i % 1700));
        if (i >= MOST) OK(strike_out(m, r));
        OK(put(m, MD_STACK, key, KEY, "body", r));
        if (test_failures) _exit(3);
    }
}

TEST(a_look_at_a_registry_that_changes_and_grows_finds_it_whole) {
    pid_t pid = begin_life(change_for_long, 0);
    uint64_t last = 0, most = 0;
    int looks = 0, before = test_failures;
    do {
        OK(look_at(name));
        EQ(seen.attach, 0);
        EQ(seen.torn, 0);
        CHECK(seen.stats.next_seq >= last);
        last = seen.stats.next_seq;
        if (seen.kinds[MD_IMPL] > most) most = seen.kinds[MD_IMPL];
    } while ((++looks < rounds(100) || most < 2500) && test_failures == before);
    printf("       %d looks during %llu changes\n", looks, (unsigned long long)last);
    kill_now(pid);
    OK(md_reap(name));
}

/* --- hostile files, and what is left of them -------------------------------------------------- */

static char *good;
static size_t good_size;

static void lay_down_with(size_t at, const void *bytes, size_t size) {
    char *copy = malloc(good_size);
    memcpy(copy, good, good_size);
    memcpy(copy + at, bytes, size);
    lay_down(copy, good_size);
    free(copy);
}

#define WITH(field, value, attach)                                                                 \
    do {                                                                                           \
        __typeof__(((struct md__header *)0)->field) v = value;                                     \
        lay_down_with(offsetof(struct md__header, field), (void *)&v, sizeof v);                   \
        check_odd(0, attach, #field " = " #value);                                                 \
    } while (0)

/* The answer of the look; then of the reaper, while a process has the file open and afterwards. */
static void check_odd(int look, int attach, const char *what) {
    int before = test_failures;
    EQ(look_at(name), look);
    if (look == 0) EQ(seen.attach, attach);
    int why = look ? look : attach;
    int known = why == MD_EVERSION || why == MD_EDAMAGED || why == MD_EBOOT || why == MD_ENAMESPACE;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    EQ(md_reap(name), why);
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    EQ(md_reap(name), why); /* a mapping counts as well */
    if (p != MAP_FAILED) munmap(p, 4096);
    EQ(md_reap(name), known ? 0 : why);
    EQ(access(path, F_OK), known ? -1 : 0);
    if (test_failures != before) fprintf(stderr, "    %s\n", what);
}

TEST(what_cannot_be_judged_by_its_members_is_removed_only_when_nobody_has_it_open) {
    pid_t pid = begin_life(live_as_main, 0); /* the leases look alive in the copies */
    int file = open(path, O_RDONLY | O_CLOEXEC);
    good = bytes_of(file, &good_size);
    close(file);
    kill_now(pid);
    OK(md_reap(name));
    lay_down("", 0);
    check_odd(MD_EFORMAT, 0, "empty");
    lay_down(good, 4096);
    check_odd(MD_EFORMAT, 0, "a header and no more");
    lay_down_with(0, "mdisptcX", 8);
    check_odd(MD_EFORMAT, 0, "magic");
    uint32_t format = MD_FORMAT + 1;
    lay_down_with(offsetof(struct md__header, format), &format, sizeof format);
    check_odd(MD_EVERSION, 0, "format");
    lay_down_with(offsetof(struct md__header, boot), "0123456789abcdef", 16);
    check_odd(0, MD_EBOOT, "boot");
    WITH(pid_space, 1, MD_ENAMESPACE);
    WITH(capacity, 0, MD_EDAMAGED);
    WITH(committed, UINT64_MAX, MD_EDAMAGED);
    WITH(committed, 0, MD_EDAMAGED);
    WITH(arena_top, UINT64_MAX, MD_EDAMAGED);
    WITH(arena_top, 0, MD_EDAMAGED);
    WITH(state, MD__DAMAGED, MD_EDAMAGED);
    uint32_t top = UINT32_MAX;
    lay_down_with(offsetof(struct md__header, process_top), &top, sizeof top);
    OK(look_at(name));
    lay_down_with(offsetof(struct md__header, member_top), &top, sizeof top);
    OK(look_at(name));
    lay_down(good, MD__ARENA_AT);
    check_odd(0, MD_EDAMAGED, "truncated at the arena");
    lay_down_with(MD__ARENA_AT, "\1\0\0\0", 4);
    OK(look_at(name));
    EQ(seen.torn, 1);
    uint32_t kind = 200;
    size_t fact = 0;
    for (size_t at = MD__ARENA_AT; !fact; at += *(const uint32_t *)(good + at))
        if (*(const uint32_t *)(good + at + 4) == MD__TAG_FACT) fact = at;
    lay_down_with(fact + offsetof(struct md__fact, kind), &kind, sizeof kind);
    OK(look_at(name));
    EQ(seen.torn, 0);
    EQ(seen.kinds[MD_IMPL], 0);
    uint32_t dead_and_there = FUTEX_OWNER_DIED | 77; /* no kernel leaves it like this */
    size_t lease = (size_t)((char *)md__lease_word((struct md__process *)(void *)good) - good);
    lay_down_with(MD__PROCESSES_AT + lease, &dead_and_there, sizeof dead_and_there);
    OK(look_at(name));
    EQ(seen.alive, 0);
    EQ(seen.dead, 1);
    char *noise = malloc(good_size);
    srand(7);
    for (int round = 0; round < rounds(50); round++) {
        for (size_t i = 0; i < good_size; i++) noise[i] = (char)rand();
        memcpy(noise, good, offsetof(struct md__header, committed));
        lay_down(noise, good_size);
        OK(look_at(name));
        CHECK(seen.attach == MD_EDAMAGED || seen.attach == MD_EDIED);
    }
    free(noise);
    unlink(path);
    if (mkfifo(path, 0600)) abort();
    EQ(look_at(name), MD_ENOTFILE);
    EQ(md_reap(name), MD_ENOTFILE);
    unlink(path);
    mkdir(path, 0700);
    EQ(look_at(name), MD_ENOTFILE);
    EQ(md_reap(name), MD_ENOTFILE);
    rmdir(path);
    if (symlink("/etc/passwd", path)) abort();
    EQ(look_at(name), MD_ENOTFILE);
    EQ(md_reap(name), MD_ENOTFILE);
    unlink(path);
    lay_down(good, good_size);
    chmod(path, 0620);
    EQ(look_at(name), MD_EOWNER);
    EQ(md_reap(name), MD_EOWNER);
    unlink(path);
    free(good);
}

static int shrinking, look_of_shrinking;
static char shrinking_address[64];
static void lay_down_good(void) {
    lay_down(good, good_size);
    shrinking = open(path, O_RDWR | O_CLOEXEC);
    snprintf(shrinking_address, sizeof shrinking_address, "fd:%d:%d", (int)getpid(), shrinking);
    errno = EINTR; /* of an earlier call: it says nothing about a read that comes to the end */
}
static void look_at_it(void) {
    look_of_shrinking = md_inspect(shrinking_address, &seen, infos, MD_MAX_MEMBERS, &members);
}
static void shrink(void) {
    if (ftruncate(shrinking, 0)) abort();
}
static void check_look_of_shrinking(void) {
    CHECK(look_of_shrinking == 0 || look_of_shrinking == MD_EDAMAGED ||
          look_of_shrinking == MD_EFORMAT);
    close(shrinking);
}

TEST(a_look_at_a_file_that_shrinks_at_any_moment_ends) {
    pid_t pid = begin_life(live_as_main, 0);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    good = bytes_of(file, &good_size);
    close(file);
    kill_now(pid);
    at_instructions(200, 6000, lay_down_good, look_at_it, shrink, check_look_of_shrinking);
    unlink(path);
    free(good);
}

/* A registry is judged by its members, even while another process has it open, such as a forked
 * child that never joined. */
TEST(the_dead_are_removed_although_somebody_has_the_file_open) {
    kill_now(begin_life(live_as_main, 0));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    OK(md_reap(name));
    close(fd);
}

TEST(a_creation_that_was_killed_leaves_what_can_be_removed) {
    struct step ready = step_make();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        md_registry reg;
        OK(md_create(name, SIZE, &reg)); /* it never joins */
        step_give(ready);
        for (;;) pause();
    }
    CHECK(step_take(ready));
    OK(look_at(name));
    EQ(seen.stats.main_state, 0);
    EQ(seen.alive, 1);
    EQ(md_reap(name), MD_EEXIST);
    kill_now(pid);
    OK(md_reap(name));
    step_free(ready);
}

TEST(arguments_that_no_reaper_can_use_are_refused) {
    EQ(md_reap(NULL), MD_EINVAL);
    EQ(md_reap(""), MD_ENAME);
    EQ(md_reap("../x"), MD_ENAME);
    EQ(md_reap("shm:a/b"), MD_ENAME);
    EQ(md_reap(name), MD_ENOENT);
    char buf[MD_MAX_ADDRESS], folder[64];
    OK(md_folder(buf, sizeof buf));
    snprintf(folder, sizeof folder, "%s/mdispatch-%u/", getenv("MDISPATCH_FOLDER"),
             (unsigned)geteuid());
    CHECK(strcmp(buf, folder) == 0);
    EQ(md_folder(buf, 3), MD_ENOBUFS);
}

/* --- all at once ------------------------------------------------------------------------------ */

struct race {
    md__u32 created, reaped;
    uint32_t enough;
};

/* On a loaded machine the reapers may not run before enough were created: then it takes longer. */
static bool goes_on(struct race *r) {
    uint32_t created = md__read32(&r->created);
    bool has_all = created >= r->enough && md__read32(&r->reaped) > 0;
    return !has_all && created / 100 < r->enough && !test_failures;
}

/* As long as a creator has its registry open, no reaper removes the name. */
static void create_and_leave(void *arg) {
    struct race *r = arg;
    while (goes_on(r)) {
        md_registry handle;
        md__reg *reg;
        struct stat mine, there;
        int rc = md_create(name, SIZE, &handle);
        if (rc == MD_EEXIST) continue;
        if (!OK(rc)) break;
        OK(md__enter(handle, &reg));
        OK(fstat(reg->fd, &mine));
        md__exit(reg);
        for (int i = 0; i < 20; i++)
            if (!OK(stat(path, &there)) || !EQ(there.st_ino, mine.st_ino)) break;
        md__add32(&r->created, 1);
        OK(md_close(handle));
    }
}

/* Their children die with a registry open, so that there is something to reap. */
static void create_and_die(void *arg) {
    struct race *r = arg;
    while (goes_on(r)) {
        pid_t pid = fork();
        if (pid == 0) {
            md_registry handle;
            int rc = md_create(name, SIZE, &handle);
            _exit(rc && rc != MD_EEXIST ? 9 : 0);
        }
        EQ(reap(pid), 0);
    }
}

static void reap_for_long(void *arg) {
    struct race *r = arg;
    while (goes_on(r)) {
        int rc = md_reap(name);
        if (rc == 0) md__add32(&r->reaped, 1);
        if (rc != MD_EEXIST && rc != MD_ENOENT) OK(rc);
        rc = look_at(name);
        if (rc != MD_ENOENT) OK(rc);
    }
}

static void no_op(int signal) {
    (void)signal;
}

static void reap_interrupted(void *arg) {
    struct sigaction action = {.sa_handler = no_op};
    sigaction(SIGUSR1, &action, NULL);
    EQ(md_reap(arg), MD_EINTR);
}

/* Also when the nap during which it comes ends before the reaper goes on. */
TEST(a_signal_interrupts_a_reaper_that_waits_for_the_folder) {
    char folder[MD_MAX_ADDRESS];
    OK(md_folder(folder, sizeof folder));
    for (int stopped = 0; stopped < 2; stopped++) {
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), status;
        CHECK(flock(fd, LOCK_EX) == 0);
        pid_t pid = child(reap_interrupted, name);
        until_inside(pid, pid, SYS_ppoll, SYS_ppoll);
        if (stopped) {
            struct timespec nap = {.tv_nsec = 5000000};
            kill(pid, SIGSTOP);
            CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
            nanosleep(&nap, NULL);
        }
        kill(pid, SIGUSR1);
        kill(pid, SIGCONT);
        EQ(reap(pid), 0);
        close(fd);
    }
}

static struct step noted;
static void note_it(int signal) {
    step_give(noted);
}

static void create_undisturbed(void *arg) {
    struct sigaction action = {.sa_handler = note_it};
    md_registry handle;
    sigaction(SIGUSR1, &action, NULL);
    OK(md_create(arg, SIZE, &handle));
    OK(md_close(handle));
}

TEST(a_signal_does_not_keep_anybody_from_creating_who_waits_for_the_folder) {
    char folder[MD_MAX_ADDRESS];
    OK(md_folder(folder, sizeof folder));
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(flock(fd, LOCK_EX) == 0);
    noted = step_make();
    pid_t pid = child(create_undisturbed, name);
    until_inside(pid, pid, SYS_ppoll, SYS_ppoll);
    kill(pid, SIGUSR1);
    CHECK(step_take(noted)); /* signals come only during its naps */
    until_inside(pid, pid, SYS_ppoll, SYS_ppoll);
    flock(fd, LOCK_UN); /* the child has the descriptor too */
    close(fd);
    EQ(reap(pid), 0);
    step_free(noted);
}

TEST(reaping_and_creating_at_the_same_time_harms_nobody) {
    struct race *r = shared(sizeof *r);
    void (*const roles[])(void *) = {create_and_leave, create_and_die, reap_for_long,
                                     create_and_leave, reap_for_long};
    pid_t pid[5];
    *r = (struct race){.enough = (uint32_t)rounds(1000)};
    for (int i = 0; i < 5; i++) pid[i] = child(roles[i], r);
    for (int i = 0; i < 5; i++) EQ(reap(pid[i]), 0);
    printf("       %u created, %u reaped\n", md__read32(&r->created), md__read32(&r->reaped));
    CHECK(md__read32(&r->reaped) > 0);
    munmap(r, sizeof *r);
    unlink(path);
}

int main(void) {
    set_names();
    RUN(a_look_sees_what_members_see);
    RUN(an_anonymous_registry_is_seen_by_what_a_process_has_open);
    RUN(a_look_changes_nothing_and_keeps_nothing);
    RUN(a_registry_is_seen_while_a_stopped_process_holds_its_lock);
    RUN(a_registry_is_seen_after_its_main_member_died_and_with_who_died_beside_it);
    RUN(a_look_at_a_registry_that_changes_and_grows_finds_it_whole);
    RUN(what_cannot_be_judged_by_its_members_is_removed_only_when_nobody_has_it_open);
    RUN_STEPPED(a_look_at_a_file_that_shrinks_at_any_moment_ends);
    RUN(the_dead_are_removed_although_somebody_has_the_file_open);
    RUN(a_creation_that_was_killed_leaves_what_can_be_removed);
    RUN(arguments_that_no_reaper_can_use_are_refused);
    RUN(a_signal_interrupts_a_reaper_that_waits_for_the_folder);
    RUN(a_signal_does_not_keep_anybody_from_creating_who_waits_for_the_folder);
    RUN(reaping_and_creating_at_the_same_time_harms_nobody);
    return test_done();
}
