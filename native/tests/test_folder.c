/* MDISPATCH_FOLDER: named registries lie in the folder that it names. If it does not name a folder,
 * a call that needs one says so before it changes anything.
 *
 * A process reads the variable once. So a child makes each test, and this process never reads it.
 * No process here opens a registry in this user's own folder: tests ask for its path only.
 */
#include "test.h"

enum { SIZE = MD__MIN_CAPACITY };

static const char *own; /* this program's folder, which holds all files of these tests */

/* Sets the variable for this child and its children. */
static void set(const char *value) {
    if (value)
        setenv("MDISPATCH_FOLDER", value, 1);
    else
        unsetenv("MDISPATCH_FOLDER");
}

static const char *beside(const char *what) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", own, what);
    return path;
}

static int is_used(const char *base) {
    char path[512];
    snprintf(path, sizeof path, "%s/mdispatch-%u", base, (unsigned)geteuid());
    return access(path, F_OK) == 0;
}

static void told(int should, const char *path) {
    char is[MD_MAX_ADDRESS] = "?";
    EQ(md_folder(is, sizeof is), should);
    if (!CHECK(strcmp(is, path) == 0)) fprintf(stderr, "    it is %s\n", is);
}

/* --- where they lie --------------------------------------------------------------------------- */

static void live_in(void *arg) {
    const char *base = arg;
    char path[MD__MAX_PATH], folder[MD_MAX_ADDRESS];
    md_registry reg;
    set(base);
    snprintf(folder, sizeof folder, "%s/mdispatch-%u/", base, (unsigned)geteuid());
    snprintf(path, sizeof path, "%sa-name", folder);
    told(MD_ENOENT, folder); /* no folder is needed yet */
    EQ(md_attach("a-name", 0, &reg), MD_ENOENT);
    told(0, folder);
    struct main_member m = open_main("a-name", SIZE);
    OK(access(path, F_OK));
    OK(md_attach("shm:a-name", 0, &reg));
    OK(md_close(reg));
    close_main(m);
    EQ(access(path, F_OK), -1);
    OK(md_elect("a-team", SIZE, &reg));
    join(reg, 0, MD_PEER);
    snprintf(path, sizeof path, "%sa-team", folder);
    OK(access(path, F_OK));
    OK(md_close(reg));
    EQ(access(path, F_OK), -1);
    OK(rmdir(folder));
}

TEST(named_registries_lie_in_the_folder_that_the_environment_names) {
    OK(mkdir(beside("given"), 0700));
    EQ(reap(child(live_in, (void *)beside("given"))), 0);
    OK(rmdir(beside("given")));
}

/* As a umask leaves it to a process that dies before it sets them. */
static void live_where_its_owner_has_too_few_rights(void *arg) {
    char folder[MD_MAX_ADDRESS];
    struct stat st;
    set(arg);
    snprintf(folder, sizeof folder, "%s/mdispatch-%u", (char *)arg, (unsigned)geteuid());
    OK(mkdir(folder, 0500));
    close_main(open_main("a-name", SIZE));
    OK(stat(folder, &st));
    EQ(st.st_mode & 07777, 0700);
    OK(rmdir(folder));
}

TEST(its_owner_gets_back_the_rights_that_the_folder_lacks) {
    OK(mkdir(beside("poor"), 0700));
    EQ(reap(child(live_where_its_owner_has_too_few_rights, (void *)beside("poor"))), 0);
    OK(rmdir(beside("poor")));
}

/* The longest folder, with the longest name in it. */
static void live_deep(void *arg) {
    char name[MD_MAX_REGISTRY_NAME + 1], path[MD__MAX_PATH];
    md_registry reg;
    live_in(arg);
    memset(name, 'n', sizeof name);
    name[MD_MAX_REGISTRY_NAME] = '\0';
    struct main_member m = open_main(name, SIZE);
    snprintf(path, sizeof path, "%s/mdispatch-%u/%s", (char *)arg, (unsigned)geteuid(), name);
    OK(access(path, F_OK));
    OK(md_attach(name, 0, &reg));
    OK(md_close(reg));
    close_main(m);
    EQ(access(path, F_OK), -1); /* its path was complete, so it was found and removed */
    *strrchr(path, '/') = '\0';
    OK(rmdir(path));
}

TEST(a_folder_may_have_160_bytes_and_not_161) {
    char base[MD_MAX_FOLDER + 2];
    size_t n = (size_t)snprintf(base, sizeof base, "%s/", own);
    memset(base + n, 'd', sizeof base - n);
    base[MD_MAX_FOLDER] = '\0';
    OK(mkdir(base, 0700));
    EQ(reap(child(live_deep, base)), 0);
    OK(rmdir(base));
}

static void be_by_default(void *arg) {
    char folder[64], path[MD_MAX_ADDRESS] = "";
    set(arg);
    snprintf(folder, sizeof folder, "/dev/shm/mdispatch-%u/", (unsigned)geteuid());
    int rc = md_folder(path, sizeof path);
    CHECK(rc == 0 || rc == MD_ENOENT || rc == MD_EOWNER);
    CHECK(strcmp(path, folder) == 0);
}

TEST(without_the_variable_or_with_an_empty_one_they_lie_in_dev_shm) {
    EQ(reap(child(be_by_default, NULL)), 0);
    EQ(reap(child(be_by_default, (void *)"")), 0);
}

/* --- what is none ----------------------------------------------------------------------------- */

/* Each call that needs the folder says so; all others work. */
static void be_refused(const char *path) {
    md_registry reg = 0;
    md_inspection seen;
    size_t count;
    for (int i = 0; i < 2; i++) {
        EQ(md_create("a-name", SIZE, &reg), MD_EFOLDER);
        EQ(md_elect("a-name", SIZE, &reg), MD_EFOLDER);
        EQ(md_attach("a-name", md_now() + 1000000000, &reg), MD_EFOLDER);
        EQ(md_open_default("elect:a-name", &reg), MD_EFOLDER);
        EQ(md_open_default("a-name", &reg), MD_EFOLDER);
        EQ(md_inspect("a-name", &seen, NULL, 0, &count), MD_EFOLDER);
        EQ(md_reap("a-name"), MD_EFOLDER);
        told(MD_EFOLDER, path);
    }
    CHECK(strstr(md_status_text(MD_EFOLDER), "MDISPATCH_FOLDER"));
    struct main_member m = open_main(NULL, SIZE);
    char address[MD_MAX_ADDRESS];
    OK(md_address(m.reg, address, sizeof address));
    OK(md_inspect(address, &seen, NULL, 0, &count));
    md_registry again;
    OK(md_attach(address, 0, &again));
    OK(md_close(again));
    close_main(m);
}

static void be_refused_unread(void *arg) {
    set(arg);
    OK(chdir(own)); /* where a relative path would lead */
    be_refused("");
}

static void be_refused_unfound(void *arg) {
    char path[MD_MAX_ADDRESS];
    set(arg);
    snprintf(path, sizeof path, "%s/mdispatch-%u/", (char *)arg, (unsigned)geteuid());
    be_refused(path);
}

TEST(what_cannot_be_a_folder_is_refused_before_anything_is_done) {
    static char too_long[4096];
    size_t n = (size_t)snprintf(too_long, sizeof too_long, "%s/", own);
    OK(mkdir(beside("here"), 0700));
    memset(too_long + n, 'd', sizeof too_long - 1 - n);
    EQ(reap(child(be_refused_unread, too_long)), 0);
    too_long[n + 200] = '\0';
    OK(mkdir(too_long, 0700)); /* it exists, but it is no folder for registries */
    EQ(reap(child(be_refused_unread, too_long)), 0);
    CHECK(!is_used(too_long));
    OK(rmdir(too_long));
    memset(too_long + n, 'd', MD_MAX_FOLDER + 1 - n);
    too_long[MD_MAX_FOLDER + 1] = '\0';
    OK(mkdir(too_long, 0700));
    EQ(reap(child(be_refused_unread, too_long)), 0);
    OK(rmdir(too_long));
    EQ(reap(child(be_refused_unread, (void *)"here")), 0);
    EQ(reap(child(be_refused_unread, (void *)"./here")), 0);
    EQ(reap(child(be_refused_unread, (void *)".")), 0);
    EQ(reap(child(be_refused_unread, (void *)" ")), 0);
    OK(rmdir(beside("here"))); /* nothing was created in it */
}

TEST(what_is_no_folder_is_refused_and_none_is_made) {
    EQ(reap(child(be_refused_unfound, (void *)beside("missing"))), 0);
    EQ(access(beside("missing"), F_OK), -1);
    int fd = open(beside("file"), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    close(fd);
    EQ(reap(child(be_refused_unfound, (void *)beside("file"))), 0);
    OK(unlink(beside("file")));
    EQ(reap(child(be_refused_unfound, (void *)"/dev/null")), 0);
}

/* --- another user's --------------------------------------------------------------------------- */

enum { NOBODY = 1000000000, SOMEBODY };

static void be_kept_out(void *arg) {
    md_registry reg;
    char folder[MD_MAX_ADDRESS];
    set(arg);
    OK(setuid(NOBODY)); /* access() checks the real user */
    EQ(md_create("a-name", SIZE, &reg), MD_ESYS - EACCES);
    EQ(md_attach("a-name", 0, &reg), MD_ESYS - EACCES);
    EQ(md_folder(folder, sizeof folder), MD_EOWNER); /* it may not even look */
    EQ(md_reap("a-name"), MD_EOWNER);
}

static void be_forestalled(void *arg) {
    md_registry reg;
    set(arg);
    OK(seteuid(NOBODY));
    EQ(md_create("a-name", SIZE, &reg), MD_EOWNER);
    EQ(md_attach("a-name", 0, &reg), MD_EOWNER);
    EQ(md_reap("a-name"), MD_EOWNER);
}

TEST(in_another_users_folder_nothing_is_made_nor_believed) {
    char theirs[MD__MAX_PATH];
    if (geteuid()) {
        printf("       (left out: not root)\n");
        return;
    }
    OK(mkdir(beside("another"), 0700));
    OK(chown(beside("another"), SOMEBODY, SOMEBODY));
    EQ(reap(child(be_kept_out, (void *)beside("another"))), 0);
    OK(chmod(beside("another"), 01777));
    snprintf(theirs, sizeof theirs, "%s/mdispatch-%u", beside("another"), (unsigned)NOBODY);
    OK(mkdir(theirs, 0700));
    OK(chown(theirs, SOMEBODY, SOMEBODY));
    EQ(reap(child(be_forestalled, (void *)beside("another"))), 0);
    OK(rmdir(theirs));
    OK(symlink(own, theirs));
    EQ(reap(child(be_forestalled, (void *)beside("another"))), 0);
    OK(unlink(theirs));
    OK(rmdir(beside("another")));
}

/* --- once ------------------------------------------------------------------------------------- */

static void find_it(void *arg) {
    const char *name = arg;
    md_registry reg;
    OK(md_attach(name, 0, &reg));
    OK(md_close(reg));
}

static void change_it_late(void *arg) {
    char folder[MD_MAX_ADDRESS], again[MD_MAX_ADDRESS];
    EQ(md_folder(folder, sizeof folder), MD_ENOENT);
    set(arg);
    struct main_member m = open_main("a-name", SIZE);
    EQ(reap(child(find_it, (void *)"a-name")),
       0); /* a child of fork has the value that its parent read */
    set("no/folder");
    EQ(reap(child(find_it, (void *)"a-name")), 0);
    OK(md_folder(again, sizeof again));
    EQ(strcmp(folder, again), 0);
    CHECK(!is_used(arg));
    close_main(m);
    OK(rmdir(folder));
}

TEST(a_change_after_the_first_look_has_no_effect) {
    OK(mkdir(beside("late"), 0700));
    EQ(reap(child(change_it_late, (void *)beside("late"))), 0);
    OK(rmdir(beside("late")));
}

static void *look(void *arg) {
    char *path = arg;
    CHECK(md_folder(path, MD_MAX_ADDRESS) == MD_ENOENT);
    return NULL;
}

static void look_at_once(void *arg) {
    enum { THREADS = 8 };
    static char paths[THREADS][MD_MAX_ADDRESS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, look, paths[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 1; i < THREADS; i++) EQ(strcmp(paths[0], paths[i]), 0);
}

TEST(threads_that_look_first_at_once_see_one_folder) {
    EQ(reap(child(look_at_once, NULL)), 0);
}

/* --- more rights than the caller has ---------------------------------------------------------- */

static int say_folder(void) {
    char path[MD_MAX_ADDRESS] = "";
    md_folder(path, sizeof path);
    puts(path);
    fflush(stdout);
    _exit(0);
}

static char program[64];

static void be_the_caller(void *arg) {
    const int *out = arg;
    dup2(out[1], 1);
    OK(setgid(SOMEBODY));
    OK(setuid(SOMEBODY));
    execl(program, program, "say-folder", (char *)NULL);
    _exit(9);
}

TEST(a_setuid_program_takes_no_folder_from_its_caller) {
    static char bytes[1 << 16];
    char is[128] = "", should[64];
    int out[2];
    ssize_t n;
    snprintf(program, sizeof program, "/tmp/mdispatch-setuid-%d", (int)getpid());
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int to = geteuid() ? -1 : open(program, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0700);
    while (to >= 0 && (n = read(from, bytes, sizeof bytes)) > 0) EQ(write(to, bytes, (size_t)n), n);
    close(from);
    if (to < 0 || fchown(to, NOBODY, NOBODY) || fchmod(to, 04755) || close(to) || pipe(out)) {
        printf("       (left out: not root)\n");
        return;
    }
    pid_t pid = child(be_the_caller, out);
    close(out[1]);
    for (size_t got = 0; (n = read(out[0], is + got, sizeof is - 1 - got)) > 0;) got += (size_t)n;
    close(out[0]);
    EQ(reap(pid), 0);
    snprintf(should, sizeof should, "/dev/shm/mdispatch-%u/\n", (unsigned)NOBODY);
    if (!CHECK(strcmp(is, should) == 0)) fprintf(stderr, "    it is %s\n", is);
    OK(unlink(program));
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "say-folder") == 0) return say_folder();
    own = getenv("MDISPATCH_FOLDER");
    RUN(named_registries_lie_in_the_folder_that_the_environment_names);
    RUN(its_owner_gets_back_the_rights_that_the_folder_lacks);
    RUN(a_folder_may_have_160_bytes_and_not_161);
    RUN(without_the_variable_or_with_an_empty_one_they_lie_in_dev_shm);
    RUN(what_cannot_be_a_folder_is_refused_before_anything_is_done);
    RUN(what_is_no_folder_is_refused_and_none_is_made);
    RUN(in_another_users_folder_nothing_is_made_nor_believed);
    RUN(a_change_after_the_first_look_has_no_effect);
    RUN(threads_that_look_first_at_once_see_one_folder);
    RUN(a_setuid_program_takes_no_folder_from_its_caller);
    return test_done();
}
