/* Names: a name belongs to one registry, dead registries make room, and a file of that name is
 * examined before it is used. */
#include <sys/file.h>

#include "test.h"

enum { SIZE = MD__MIN_CAPACITY };

static char name[64]; /* this test's name in this user's folder */
static char folder[64];
static char path[160];

static void set_names(void) {
    snprintf(name, sizeof name, "test-%d", (int)getpid());
    md__file_path(folder, sizeof folder, "");
    snprintf(path, sizeof path, "%s%s", folder, name);
}

static int attach_now(md_registry *reg) {
    return md_attach(name, 0, reg);
}

static void check_status(int should, const char *what) {
    md_registry reg;
    int64_t start = md_now();
    int rc = attach_now(&reg);
    if (!EQ(rc, should)) fprintf(stderr, "    %s\n", what);
    CHECK(md_now() - start < limit(100000000));
    if (rc == 0) md_close(reg);
}

TEST(malformed_names_and_addresses_are_refused) {
    static const char *const bad[] = {"",
                                      ".",
                                      "..",
                                      "../x",
                                      "a/b",
                                      "/a",
                                      ".hidden",
                                      "a b",
                                      "a\n",
                                      "\xc3\xa4",
                                      "a:b",
                                      "shm:",
                                      "shm:../x",
                                      "shm:a/b",
                                      "fd:",
                                      "fd:1",
                                      "fd:1:2",
                                      "fd:1:2:",
                                      "fd:1:2:xyz",
                                      "fd:1:2:0123456789abcdef0123456789abcde",
                                      "fd:1:2:0123456789abcdef0123456789abcdef0",
                                      "fd:1:2:0123456789abcdef0123456789abcde/",
                                      "fd:1:2:0123456789abcdef0123456789abcde:",
                                      "fd:1:2:0123456789abcdef0123456789abcdeF",
                                      "fd:1:2:0123456789abcdef0123456789abcdeg",
                                      "fd:a:b:c",
                                      "fd:-1:3:0123456789abcdef0123456789abcdef",
                                      "fd:0:3:0123456789abcdef0123456789abcdef",
                                      "fd:1:-3:0123456789abcdef0123456789abcdef",
                                      "fd: 1:3:0123456789abcdef0123456789abcdef",
                                      "fd:+1:3:0123456789abcdef0123456789abcdef",
                                      "fd:01:3:0123456789abcdef0123456789abcdef",
                                      "fd:1:03:0123456789abcdef0123456789abcdef",
                                      "fd:4294967297:3:0123456789abcdef0123456789abcdef",
                                      "fd:1:4294967299:0123456789abcdef0123456789abcdef",
                                      "fd:1:99999999999999999999:0123456789abcdef0123456789abcdef",
                                      "x\\y",
                                      "a*",
                                      "@",
                                      "@1",
                                      "a@",
                                      "a@1@2",
                                      "a+1",
                                      "a+b@1",
                                      "a@{env:RELEASE}"};
    char long_name[MD_MAX_ADDRESS * 4], whole[MD_MAX_ADDRESS * 2], origin[MD__ORIGIN];
    md_registry reg;
    OK(md_origin("", origin, sizeof origin));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (!EQ(md_attach(bad[i], 0, &reg), MD_ENAME)) fprintf(stderr, "    \"%s\"\n", bad[i]);
        if (!EQ(md_create(bad[i], SIZE, &reg), MD_ENAME)) fprintf(stderr, "    \"%s\"\n", bad[i]);
        snprintf(whole, sizeof whole, "%s:%s", bad[i], origin);
        if (!EQ(md_attach(whole, 0, &reg), MD_ENAME)) fprintf(stderr, "    \"%s\"\n", whole);
    }
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    EQ(md_attach(long_name, 0, &reg), MD_ENAME);
    EQ(md_create(long_name, SIZE, &reg), MD_ENAME);
    long_name[129] = '\0';
    EQ(md_attach(long_name, 0, &reg), MD_ENAME);
    EQ(md_create(long_name, SIZE, &reg), MD_ENAME);
    long_name[128] = '\0';
    snprintf(long_name, 16, "%d", (int)getpid()); /* nobody else's */
    long_name[strlen(long_name)] = 'x';
    EQ(strlen(long_name), 128);
    EQ(md_attach(long_name, 0, &reg), MD_ENOENT);
    struct main_member m = open_main(long_name, SIZE);
    OK(md_attach(long_name, 0, &reg));
    EQ(reg, m.reg);
    OK(md_close(reg));
    close_main(m);
    EQ(md_attach(NULL, 0, &reg), MD_EINVAL);
    EQ(md_attach(name, -2, &reg), MD_EINVAL);
    EQ(md_attach(address_of(999999999, 3), 0, &reg), MD_EDIED);
}

TEST(malformed_origins_are_refused) {
#define HEX "0123456789abcdef0123456789abcdef"
    static const char *const bad[] = {"",
                                      ":",
                                      ":1",
                                      ":" HEX,
                                      ":" HEX ":",
                                      ":" HEX "1",
                                      ":" HEX "1:1",
                                      ":" HEX ":01",
                                      ":" HEX ":-1",
                                      ":" HEX ": 1",
                                      ":" HEX ":1 ",
                                      ":" HEX ":1:1",
                                      ":" HEX ":1/../x",
                                      ":" HEX ":a",
                                      ":" HEX ":123456789012345678901",
                                      "::1",
                                      ":0123456789abcdef0123456789abcde:1",
                                      ":0123456789abcdef0123456789abcdeF:1",
                                      ":0123456789abcdef0123456789abcde :1"};
    char address[MD_MAX_ADDRESS], origin[MD__ORIGIN];
    md_registry reg;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(address, sizeof address, "fd:%ld:0:" HEX "%s", (long)getpid(), bad[i]);
        if (!EQ(md_attach(address, 0, &reg), MD_ENAME) ||
            !EQ(md_origin(address, origin, sizeof origin), MD_ENAME))
            fprintf(stderr, "    \"%s\"\n", address);
    }
    /* The largest that there can be. */
    snprintf(address, sizeof address, "fd:2147483647:2147483647:" HEX ":" HEX ":%s",
             "18446744073709551615");
    EQ(md_attach(address, 0, &reg), MD_EBOOT);
    OK(md_origin(address, origin, sizeof origin));
    CHECK(strcmp(origin, HEX ":18446744073709551615") == 0);
    EQ(strlen(origin), MD__ORIGIN - 1);
    EQ(md_origin(address, origin, sizeof origin - 1), MD_ENOBUFS);
#undef HEX
}

/* Its pid is that of another process there, or of none: nobody died. */
TEST(an_address_from_elsewhere_says_so) {
    struct main_member m = open_main(NULL, SIZE);
    char address[MD_MAX_ADDRESS], good_one[MD_MAX_ADDRESS], origin[MD__ORIGIN], here[MD__ORIGIN];
    md_registry reg;
    OK(md_address(m.reg, good_one, sizeof good_one));
    OK(md_origin(NULL, here, sizeof here));
    OK(md_origin(good_one, origin, sizeof origin));
    CHECK(strcmp(origin, here) == 0);
    for (int field = IN_BOOT; field <= IN_SPACE; field++) {
        for (int gone = 0; gone < 2; gone++) {
            snprintf(address, sizeof address, "%s", gone ? address_of(999999999, 3) : good_one);
            change_digit(address, field);
            EQ(md_attach(address, 0, &reg), field == IN_BOOT ? MD_EBOOT : MD_ENAMESPACE);
            OK(md_origin(address, origin, sizeof origin));
            CHECK(strcmp(origin, strchr(strchr(strchr(address + 3, ':') + 1, ':') + 1, ':') + 1) ==
                  0);
        }
    }
    close_main(m);
}

/* The rule of mdispatch.h: letters, digits, hyphen, underscore, and a dot that is not the first. */
TEST(each_character_is_allowed_in_a_name_or_it_is_not) {
    for (int c = 1; c < 256; c++) {
        static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789_-.@";
        int good = strchr(ALLOWED, c) != NULL;
        char text[80];
        md_registry reg;
        for (int first = 0; first < 2; first++) {
            snprintf(text, sizeof text, first ? "%c%s" : "x%c%s", c, name);
            int rc = md_create(text, SIZE, &reg);
            if (!EQ(rc, good && !(first && (c == '.' || c == '@')) ? 0 : MD_ENAME))
                fprintf(stderr, "    \"%s\"\n", text);
            if (rc == 0) OK(md_close(reg));
        }
    }
}

/* The number of a descriptor that another file has by now. */
TEST(an_address_names_one_registry_and_no_other) {
    struct main_member m = open_main(NULL, SIZE);
    char address[MD_MAX_ADDRESS];
    md_registry reg;
    OK(md_address(m.reg, address, sizeof address));
    change_digit(address, IN_UUID);
    EQ(md_attach(address, 0, &reg), MD_ENOENT);
    close_main(m);
}

/* --- what may lie there ----------------------------------------------------------------------- */

/* The bytes of a real registry whose main member lives: it is this process. */
static struct main_member model;
static char *good;
static size_t good_size;

static void take_model(void) {
    struct stat st;
    md__reg *reg;
    model = open_main(NULL, SIZE);
    OK(put(model, MD_STACK, "n", KEY, "b", NULL));
    OK(md__enter(model.reg, &reg));
    if (fstat(reg->fd, &st)) abort();
    good_size = (size_t)st.st_size;
    good = malloc(good_size);
    EQ(pread(reg->fd, good, good_size, 0), good_size);
    md__exit(reg);
}

static void lay_down(const void *bytes, size_t size) {
    unlink(path);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    EQ(write(fd, bytes, size), size);
    close(fd);
}

/* A copy of the model with `size` bytes at `at` replaced. */
static void lay_down_with(size_t at, const void *bytes, size_t size) {
    char *copy = malloc(good_size);
    memcpy(copy, good, good_size);
    memcpy(copy + at, bytes, size);
    lay_down(copy, good_size);
    free(copy);
}

#define WITH(field, value, status)                                                                 \
    do {                                                                                           \
        __typeof__(((struct md__header *)0)->field) v = value;                                     \
        lay_down_with(offsetof(struct md__header, field), (void *)&v, sizeof v);                   \
        check_status(status, #field " = " #value);                                                 \
    } while (0)

TEST(a_hostile_file_is_refused_with_the_reason_and_at_once) {
    take_model();
    lay_down(good, good_size);
    check_status(0, "the model itself");
    lay_down("", 0);
    check_status(MD_EFORMAT, "empty");
    lay_down("hello", 5);
    check_status(MD_EFORMAT, "short");
    lay_down(good, 4096);
    check_status(MD_EFORMAT, "a header and no more");
    lay_down(good, MD__ARENA_AT);
    check_status(MD_EDAMAGED, "truncated at the arena");
    lay_down(good, good_size - 1);
    check_status(MD_EDAMAGED, "truncated by one byte");
    char *zeroes = calloc(1, good_size);
    lay_down(zeroes, good_size);
    check_status(MD_EFORMAT, "zeroes");
    free(zeroes);
    lay_down_with(0, "mdisptcX", 8);
    check_status(MD_EFORMAT, "magic");
    WITH(format, MD_FORMAT + 1, MD_EVERSION);
    WITH(stamp, 0, MD_EVERSION);
    lay_down_with(offsetof(struct md__header, boot), "0123456789abcdef", 16);
    check_status(MD_EBOOT, "boot");
    lay_down_with(offsetof(struct md__header, boot), "01234567", 8);
    check_status(MD_EBOOT, "the first half of boot");
    lay_down_with(offsetof(struct md__header, boot) + 8, "89abcdef", 8);
    check_status(MD_EBOOT, "the second half of boot");
    int fd = open(path, O_RDWR | O_CLOEXEC); /* a process of a container with its own boot id */
    md_registry reg;
    EQ(md_create(name, SIZE, &reg), MD_EBOOT);
    EQ(md_elect(name, SIZE, &reg), MD_EBOOT);
    check_status(MD_EBOOT, "a file that somebody has open stays");
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    EQ(md_create(name, SIZE, &reg), MD_EBOOT); /* a mapping counts as well */
    munmap(p, 4096);
    char origin[MD__ORIGIN];
    OK(md_origin(name, origin, sizeof origin));
    CHECK(strncmp(origin + 16, "3839616263646566", 16) == 0); /* "89abcdef" */
    close_main(open_main(name, SIZE)); /* no process of it is alive: it makes room */
    WITH(pid_space, 1, MD_ENAMESPACE); /* likewise */
    fd = open(path, O_RDWR | O_CLOEXEC);
    EQ(md_create(name, SIZE, &reg), MD_ENAMESPACE);
    EQ(md_elect(name, SIZE, &reg), MD_ENAMESPACE);
    check_status(MD_ENAMESPACE, "a file that somebody has open stays");
    p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    EQ(md_elect(name, SIZE, &reg), MD_ENAMESPACE);
    munmap(p, 4096);
    close_main(open_main(name, SIZE));
    CHECK(access(path, F_OK) < 0);
    WITH(uid, geteuid() + 1, MD_EOWNER);
    WITH(policy, 0, MD_EDAMAGED);
    WITH(policy, MD_POLICY_BRIDGE + 1, MD_EDAMAGED);
    WITH(capacity, 0, MD_EDAMAGED);
    WITH(capacity, MD__MIN_CAPACITY + 8, MD_EDAMAGED);
    WITH(capacity, UINT64_MAX, MD_EDAMAGED);
    WITH(capacity, MD__MIN_CAPACITY - 1, MD_EDAMAGED);
    WITH(capacity, MD__MAX_CAPACITY + 1, MD_EDAMAGED);
    WITH(committed, UINT64_MAX, MD_EDAMAGED);
    WITH(committed, 0, MD_EDAMAGED);
    WITH(arena_top, UINT64_MAX, MD_EDAMAGED);
    WITH(arena_top, 0, MD_EDAMAGED);
    WITH(state, MD__CLOSED, MD_ECLOSED);
    WITH(state, MD__DAMAGED, MD_EDAMAGED);
    WITH(state, 77, MD_EDAMAGED);
    unlink(path);
    check_status(MD_ENOENT, "nothing");
}

TEST(what_is_no_file_of_ours_is_refused) {
    mkdir(path, 0700);
    check_status(MD_ENOTFILE, "folder");
    md_registry reg;
    EQ(md_create(name, SIZE, &reg), MD_ENOTFILE);
    rmdir(path);
    if (mkfifo(path, 0600)) abort();
    check_status(MD_ENOTFILE, "FIFO");
    unlink(path);
    lay_down(good, good_size);
    char real[200];
    snprintf(real, sizeof real, "%s.real", path);
    if (rename(path, real) || symlink(real, path)) abort();
    check_status(MD_ENOTFILE, "symbolic link");
    unlink(path);
    if (symlink("/nowhere", path)) abort();
    check_status(MD_ENOTFILE, "dangling link");
    unlink(path);
    unlink(real);
    static const mode_t other_modes[] = {0620, 0602, 0666, 0640, 0604, 0700, 0400, 04600, 02600};
    for (size_t i = 0; i < sizeof other_modes / sizeof *other_modes; i++) {
        lay_down(good, good_size);
        chmod(path, other_modes[i]);
        check_status(MD_EOWNER, "rights other than ours");
        EQ(md_create(name, SIZE, &reg), MD_EOWNER);
    }
    lay_down(good, good_size);
    if (chown(path, 12345, (gid_t)-1) == 0)
        check_status(MD_EOWNER, "another user's");
    else
        printf("       (not root: no file of another user)\n");
    unlink(path);
}

/* Without free memory, touching a hole is as deadly as touching bytes beyond the end. */
TEST(a_file_with_holes_is_refused) {
    lay_down(good, good_size);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    OK(ftruncate(fd, (off_t)good_size + 65536));
    check_status(0, "longer than it needs to be");
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MD__MEMBERS_AT, 65536));
    check_status(MD_EDAMAGED, "a hole");
    OK(ftruncate(fd, 0));
    OK(ftruncate(fd, (off_t)good_size));
    EQ(pwrite(fd, good, 4096, 0), 4096);
    check_status(MD_EFORMAT, "holes behind the header");
    close(fd);
    unlink(path);
}

TEST(who_leaves_takes_away_its_own_file_only) {
    md_registry left_over;
    struct main_member m = open_main(name, SIZE);
    unlink(path);
    OK(md_create(name, SIZE, &left_over));
    close_main(m);
    CHECK(access(path, F_OK) == 0);
    OK(md_close(left_over));
    CHECK(access(path, F_OK) < 0);
}

/* --- the dead make room ----------------------------------------------------------------------- */

static void create_and_stay(void *arg) {
    open_main(name, SIZE);
    step_give(*(struct step *)arg);
    for (;;) pause();
}

static pid_t foreign_main(void) {
    struct step ready = step_make();
    pid_t pid = child(create_and_stay, &ready);
    CHECK(step_take(ready));
    step_free(ready);
    return pid;
}

TEST(the_name_of_a_dead_main_member_is_given_anew_and_of_a_living_one_not) {
    md_registry old, new, reg;
    pid_t pid = foreign_main();
    OK(attach_now(&old));
    EQ(md_create(name, SIZE, &reg), MD_EEXIST);
    kill_now(pid);
    check_status(MD_EDIED, "dead");
    pid = foreign_main();
    OK(attach_now(&new)); /* not the old one, though that is open here under the same address */
    CHECK(new != old);
    md_stats s;
    OK(md_stat(new, &s));
    EQ(s.main_pid, pid);
    EQ(s.main_state, 1);
    kill_now(pid);
    struct main_member m = open_main(name, SIZE);
    EQ(md_create(name, SIZE, &reg), MD_EEXIST);
    OK(md_close(old));
    OK(md_close(new));
    close_main(m);
    check_status(MD_ENOENT, "left");
    CHECK(access(path, F_OK) < 0);
    OK(md_create(name, SIZE, &reg)); /* closed without joining: the name is free */
    OK(md_close(reg));
    check_status(MD_ENOENT, "closed");
}

struct race {
    struct step ready, go;
    md__u32 won, lost, done;
    int sides;
};

static void race_to_create(void *arg) {
    struct race *r = arg;
    md_registry reg;
    char c;
    step_give(r->ready);
    close(r->go.fd[1]);
    EQ(read(r->go.fd[0], &c, 1), 0); /* all of them see the pipe close at the same time */
    int rc = md_create(name, SIZE, &reg);
    CHECK(rc == 0 || rc == MD_EEXIST);
    md__add32(rc ? &r->lost : &r->won, 1);
    while (md__read32(&r->won) + md__read32(&r->lost) < (uint32_t)r->sides) sched_yield();
}

TEST(of_racing_creators_exactly_one_wins) {
    enum { SIDES = 6 };
    for (int round = 0; round < rounds(60);
         round++) { /* from the second round on the last winner's file is in the way */
        struct race *r = shared(sizeof *r);
        pid_t pid[SIDES];
        *r = (struct race){.ready = step_make(), .go = step_make(), .sides = SIDES};
        for (int i = 0; i < SIDES; i++) pid[i] = child(race_to_create, r);
        for (int i = 0; i < SIDES; i++) CHECK(step_take(r->ready));
        close(r->go.fd[1]);
        for (int i = 0; i < SIDES; i++) EQ(reap(pid[i]), 0);
        EQ(md__read32(&r->won), 1);
        EQ(md__read32(&r->lost), SIDES - 1);
        close(r->go.fd[0]);
        step_free(r->ready);
        munmap(r, sizeof *r);
    }
    unlink(path);
}

/* --- waiting for a name ----------------------------------------------------------------------- */

struct patience {
    int64_t returned;
    md__u32 tid;
    int64_t deadline;
};

static void attach_patiently(void *arg) {
    struct patience *p = arg;
    md_registry reg;
    OK(md_attach(name, p->deadline, &reg));
    p->returned = md_now();
    join(reg, 0, MD_WORKER);
}

static void attach_waits(int over_a_corpse) {
    struct patience *p = shared(sizeof *p);
    int times = rounds(20);
    int64_t *latency = calloc((size_t)times, sizeof *latency);
    for (int i = 0; i < times; i++) {
        if (over_a_corpse) kill_now(foreign_main());
        p->deadline = i % 2 ? MD_FOREVER : md_now() + limit(30000000000);
        pid_t pid = child(attach_patiently, p);
        until_inside(pid, pid, SYS_ppoll, SYS_ppoll);
        int64_t start = md_now();
        struct main_member m = open_main(name, SIZE);
        EQ(reap(pid), 0);
        latency[i] = p->returned - start;
        OK(md_leave(m.reg, join(m.reg, 1, MD_WORKER)));
        close_main(m);
    }
    print_latency("creation to return of the attaching process", latency, (size_t)times);
    free(latency);
    munmap(p, sizeof *p);
}

TEST(attaching_waits_for_the_name) {
    attach_waits(0);
}

TEST(attaching_waits_for_a_dead_registry_to_be_replaced) {
    attach_waits(1);
}

TEST(attaching_gives_up_at_its_deadline_and_says_why) {
    md_registry reg;
    int64_t deadline = md_now() + 50000000;
    EQ(md_attach(name, deadline, &reg), MD_ENOENT);
    CHECK(md_now() >= deadline);
    kill_now(foreign_main());
    deadline = md_now() + 50000000;
    EQ(md_attach(name, deadline, &reg), MD_EDIED);
    CHECK(md_now() >= deadline);
    unlink(path);
}

static void no_op(int signal) {
    (void)signal;
}

static void attach_interrupted(void *arg) {
    (void)arg;
    struct sigaction action = {.sa_handler = no_op};
    md_registry reg;
    sigaction(SIGUSR1, &action, NULL);
    EQ(md_attach(name, MD_FOREVER, &reg), MD_EINTR);
}

TEST(a_signal_interrupts_the_wait_for_a_name) {
    pid_t pid = child(attach_interrupted, NULL);
    until_inside(pid, pid, SYS_ppoll, SYS_ppoll);
    kill(pid, SIGUSR1);
    EQ(reap(pid), 0);
}

/* --- all at once ------------------------------------------------------------------------------ */

/* As long as a creator has its registry open, the name stays with that registry, whichever other
 * process leaves. */
static void create_and_leave_for_long(void *arg) {
    struct race *r = arg;
    while (md__read32(&r->won) < (uint32_t)r->sides && !test_failures) {
        struct main_member m;
        md__reg *reg;
        struct stat mine, there;
        int rc = md_create(name, SIZE, &m.reg);
        if (rc == MD_EEXIST) continue;
        if (!OK(rc)) break;
        m.member = join(m.reg, 0, MD_MAIN);
        OK(md__enter(m.reg, &reg));
        OK(fstat(reg->fd, &mine));
        md__exit(reg);
        for (int i = 0; i < 20; i++) {
            if (!OK(stat(path, &there)) || !EQ(there.st_ino, mine.st_ino)) break;
        }
        md__add32(&r->won, 1);
        close_main(m);
    }
}

static void attach_for_long(void *arg) {
    struct race *r = arg;
    while (md__read32(&r->won) < (uint32_t)r->sides && !test_failures) {
        md_registry reg;
        uint64_t member;
        uint32_t role;
        int rc = md_attach(name, md_now() + 100000000, &reg);
        if (rc == MD_ENOENT || rc == MD_ECLOSED) continue;
        if (!OK(rc)) break;
        rc = md_join(reg, 0, &member, &role);
        CHECK(rc == 0 || rc == MD_ECLOSED);
        if (rc == 0) check_whole(reg);
        OK(md_close(reg));
        md__add32(&r->done, 1);
    }
}

TEST(creators_and_attachers_of_one_name_get_along) {
    struct race *r = shared(sizeof *r);
    pid_t pid[6];
    *r = (struct race){.sides = rounds(1500)};
    for (int i = 0; i < 6; i++)
        pid[i] = child(i % 2 ? attach_for_long : create_and_leave_for_long, r);
    for (int i = 0; i < 6; i++) EQ(reap(pid[i]), 0);
    printf("       %u created, %u attached\n", md__read32(&r->won), md__read32(&r->done));
    munmap(r, sizeof *r);
    CHECK(access(path, F_OK) < 0);
    unlink(path);
}

static void wait_without_standard_input(void *arg) {
    md_registry reg;
    close(0); /* descriptor 0 is a descriptor like the others */
    EQ(md_attach(arg, md_now() + 1000000, &reg), MD_ENOENT);
}

TEST(a_process_without_standard_input_waits_for_a_name) {
    EQ(reap(child(wait_without_standard_input, "never-there")), 0);
}

int main(void) {
    set_names();
    RUN(malformed_names_and_addresses_are_refused);
    RUN(malformed_origins_are_refused);
    RUN(an_address_from_elsewhere_says_so);
    RUN(each_character_is_allowed_in_a_name_or_it_is_not);
    RUN(an_address_names_one_registry_and_no_other);
    RUN(a_hostile_file_is_refused_with_the_reason_and_at_once);
    RUN(what_is_no_file_of_ours_is_refused);
    RUN(a_file_with_holes_is_refused);
    RUN(who_leaves_takes_away_its_own_file_only);
    RUN(the_name_of_a_dead_main_member_is_given_anew_and_of_a_living_one_not);
    RUN(of_racing_creators_exactly_one_wins);
    RUN(attaching_waits_for_the_name);
    RUN(attaching_waits_for_a_dead_registry_to_be_replaced);
    RUN(attaching_gives_up_at_its_deadline_and_says_why);
    RUN(a_signal_interrupts_the_wait_for_a_name);
    RUN(creators_and_attachers_of_one_name_get_along);
    if (good) close_main(model);
    free(good);
    RUN(a_process_without_standard_input_waits_for_a_name);
    return test_done();
}
