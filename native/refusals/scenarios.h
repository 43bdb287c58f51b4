/* scenarios.h - the calls of the contract as programs make them, one after the other. Every call is
 * judged (judge.h). Whatever was refused, the scenario goes on to its end: if it could not get a
 * handle or a member, it goes on with the handle 0 or with no member. */
#ifndef MD_REFUSALS_SCENARIOS_H
#define MD_REFUSALS_SCENARIOS_H

#include "../mdispatch_kernels.h"
#include "judge.h"

enum { SIZE = MD__MIN_CAPACITY + (1 << 19) };
enum { NOBODY = -1 };

static char name[MD_MAX_REGISTRY_NAME], packed[1 << 17];

/* --- the usual calls -------------------------------------------------------------------------- */

static md_registry make(const char *called, int should) {
    md_registry reg = 0;
    CHANGE(0, CREATES, should, md_create(called, SIZE, &reg));
    return reg;
}

static md_registry find_registry(const char *address, int64_t deadline, int should) {
    md_registry reg = 0;
    CHANGE(0, ATTACHES, should, md_attach(address, deadline, &reg));
    return reg;
}

static uint64_t enter(md_registry reg, int64_t interp, uint32_t role) {
    uint64_t member = (uint64_t)NOBODY;
    uint32_t is = 0;
    if (CHANGE(reg, JOINS, 0, md_join(reg, interp, &member, &is)) == 0)
        CHECK(is == role || shim.has_refused());
    return member;
}

static md_record add(md_registry reg, uint64_t member, uint32_t rule, int32_t key, const char *body,
                     size_t len, int should) {
    md_record r = {0};
    int rc = CHANGE(reg, REGISTERS, should,
                    md_register(reg, member, MD_IMPL, rule, key, "n", 1, body, len, "t.c:1", 5,
                                packed, sizeof packed));
    if (rc == 0) memcpy(&r, packed, sizeof r);
    return r;
}

static void take(md_registry reg, uint64_t member, const md_record *r, int should) {
    CHANGE(reg, STRIKES, should, md_strike(reg, member, r->ref, r->seq));
}

static void look_up(md_registry reg, int32_t key, const char *body) {
    md_record r;
    if (LOOK(FINDS, 0, md_find(reg, MD_IMPL, key, "n", 1, packed, sizeof packed))) return;
    memcpy(&r, packed, sizeof r);
    EQ(r.body_len, strlen(body));
    CHECK(memcmp(packed + sizeof r + 1, body, r.body_len) == 0);
}

static int wait_for(md_registry reg, uint64_t member, int32_t key, int64_t deadline, int should) {
    md_wait_stats stats = {0};
    int rc;
    do
        rc = md_await(reg, member, MD_IMPL, key, 1, "n", 1, deadline, 5, packed, sizeof packed,
                      &stats);
    while (rc == MD_EINTR);
    return LOOK(AWAITS, should, rc);
}

static int wait_for_change(md_registry reg, uint64_t member, uint64_t seq, int64_t deadline,
                           int should) {
    md_wait_stats stats = {0};
    uint64_t now;
    int rc;
    do rc = md_await_change(reg, member, seq, deadline, 5, &now, &stats);
    while (rc == MD_EINTR);
    return LOOK(AWAITS, should, rc);
}

static void leave(md_registry reg, uint64_t member) {
    check_sound(reg);
    CHANGE(reg, LEAVES, 0, md_leave(reg, member));
}

static void let_go(md_registry reg) {
    LOOK(HANDLED, reg ? 0 : MD_ECLOSED, md_close(reg));
}

/* --- other processes and threads -------------------------------------------------------------- */

/* A main member in a process of its own. It does nothing but live. */
struct server {
    struct step go, ready;
    const char *called;
    pid_t pid;
    char *address;
};

static struct server server;

static void serve(void *arg) {
    struct server *s = arg;
    shim.pause();
    step_take(s->go);
    struct main_member m = open_main(s->called, SIZE);
    OK(put(m, MD_UNIQUE, "n", KEY, "A", NULL));
    OK(md_address(m.reg, s->address, MD_MAX_ADDRESS));
    step_give(s->ready);
    step_take(s->go);
    kill(getpid(), SIGKILL);
}

static void start_server(const char *called, int at_once) {
    server = (struct server){step_make(), step_make(), called, 0, shared(MD_MAX_ADDRESS)};
    server.pid = child(serve, &server);
    if (!at_once) return;
    step_give(server.go);
    step_take(server.ready);
}

static void remove_name(void) {
    char path[256];
    md__file_path(path, sizeof path, name);
    unlink(path);
}

static void end_server(void) {
    kill_now(server.pid);
    remove_name();
    step_free(server.go);
    step_free(server.ready);
}

static void start_named_server(void) {
    start_server(name, 1);
}

static void start_anonymous_server(void) {
    start_server(NULL, 1);
}

/* A deed that another thread does as soon as this thread sleeps in the kernel or, if it does not
 * need to sleep, has finished its call. */
struct meanwhile {
    void (*deed)(void);
    int one, other; /* the system calls in which this thread sleeps */
    pid_t tid;
    md__u32 over;
    pthread_t thread;
};

static void *do_meanwhile(void *arg) {
    struct meanwhile *w = arg;
    char path[64], text[32];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)w->tid);
    while (!md__read32(&w->over)) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = '\0';
        int number = text[0] >= '0' && text[0] <= '9' ? atoi(text) : -1;
        if (number == w->one || number == w->other) break;
        sched_yield();
    }
    w->deed();
    return NULL;
}

static void begin_meanwhile(struct meanwhile *w, void (*deed)(void), int one, int other) {
    *w = (struct meanwhile){.deed = deed, .one = one, .other = other};
    w->tid = (pid_t)syscall(SYS_gettid);
    pthread_create(&w->thread, NULL, do_meanwhile, w);
}

static void end_meanwhile(struct meanwhile *w) {
    md__publish32(&w->over, 1);
    pthread_join(w->thread, NULL);
}

/* Does a deed in another thread and waits for its end. */
static void *run_deed(void *arg) {
    ((void (*)(void))arg)();
    return NULL;
}

static void elsewhere(void (*deed)(void)) {
    pthread_t thread;
    pthread_create(&thread, NULL, run_deed, (void *)deed);
    pthread_join(thread, NULL);
}

/* --- the scenarios ---------------------------------------------------------------------------- */

static md_registry reg, other;
static uint64_t member;
static md_record fact;

static void nothing(void) {
}

static void an_anonymous_registry(void) {
    md_stats stats;
    md_member_info infos[4];
    char address[MD_MAX_ADDRESS];
    size_t n;
    uint64_t version, node;
    reg = make(NULL, 0);
    member = enter(reg, 0, MD_MAIN);
    LOOK(HANDLED, 0, md_address(reg, address, sizeof address));
    fact = add(reg, member, MD_UNIQUE, KEY, "A", 1, 0);
    add(reg, member, MD_UNIQUE, KEY, "B", 1, MD_EEXIST);
    md_record second = add(reg, member, MD_STACK | MD_RAISE_ALL, 8, "C", 1, 0);
    LOOK(LISTS, 0, md_list(reg, "n", 1, packed, sizeof packed, &n, &version, &node));
    LOOK(S(MD_ECLOSED) | S(MD_EINVAL), 0, md_version(reg, node, &version));
    LOOK(HANDLED, 0, md_stat(reg, &stats));
    LOOK(HANDLED, 0, md_members(reg, infos, 4, &n));
    take(reg, member, &second, 0);
    take(reg, member, &second, MD_ENOENT);
    uint64_t worker = enter(reg, 1, MD_WORKER);
    add(reg, worker, MD_STACK, KEY, "D", 1, MD_EROLE);
    CHANGE(reg, LEAVES, 0, md_leave(reg, worker));
    leave(reg, member);
    let_go(reg);
    LOOK(HANDLED, MD_ECLOSED, md_close(reg));
}

/* In the end the last hold lets go of the memory, whatever was refused. */
static void a_region_that_is_held(void) {
    const uint64_t *word;
    md_held *first = NULL, *second = NULL;
    reg = find_registry(server.address, 0, 0);
    LOOK(SYS | HANDLED, 0, md_hold(reg, &first)); /* whoever joins has a count of holds already */
    LOOK(HANDLED | S(MD_EINVAL), 0, md_word(reg, 0, &word));
    LOOK(SYS | HANDLED, 0, md_hold(reg, &second));
    let_go(reg);
    md_let_go(first);
    md_let_go(second);
}

static void a_named_registry(void) {
    reg = make(name, 0);
    member = enter(reg, 0, MD_MAIN);
    other = make(name, reg ? MD_EEXIST : 0);
    let_go(other);
    md_registry again = find_registry(name, 0, reg || other ? 0 : MD_ENOENT);
    add(again, member, MD_UNIQUE, KEY, "A", 1, 0);
    let_go(again);
    leave(reg, member);
    let_go(reg);
}

static void die_as_main(void *arg) {
    shim.pause();
    struct main_member m = open_main(name, SIZE);
    OK(put(m, MD_UNIQUE, "n", KEY, "dead", NULL));
    kill(getpid(), SIGKILL);
}

static void a_dead_registry_makes_room(void) {
    reap(child(die_as_main, NULL));
    LOOK(ATTACHES, MD_EDIED, md_attach(name, 0, &other));
    reg = 0;
    LOOK(CREATES, 0, md_create(name, SIZE, &reg)); /* refused: perhaps removed the dead one */
    member = enter(reg, 0, MD_MAIN);
    add(reg, member, MD_UNIQUE, KEY, "A", 1, 0);
    let_go(reg);
    remove_name();
}

static char editions[2][MD_MAX_REGISTRY_NAME];

static void remove_editions(void) {
    char path[MD__MAX_PATH];
    for (int i = 0; i < 2; i++) {
        md__file_path(path, sizeof path, editions[i]);
        unlink(path);
    }
}

/* The first one is alive for the second. */
static void editions_are_made_beside_each_other(void) {
    for (int i = 0; i < 2; i++) snprintf(editions[i], sizeof editions[i], "%.100s@%d", name, i);
    reg = make(editions[0], 0);
    member = enter(reg, 0, MD_MAIN);
    other = make(editions[1], 0);
    if (other) let_go(other);
    let_go(reg);
    remove_editions();
}

static void use_as_worker(void) {
    member = enter(reg, 0, MD_WORKER);
    add(reg, member, MD_STACK, KEY, "B", 1, MD_EROLE);
    look_up(reg, KEY, "A");
    wait_for(reg, member, KEY, MD_FOREVER, 0);
    leave(reg, member);
}

static void attached_by_name(void) {
    reg = find_registry(name, 0, 0);
    use_as_worker();
    let_go(reg);
}

static void attached_by_address(void) {
    reg = find_registry(server.address, 0, 0);
    other = find_registry(server.address, 0, 0);
    let_go(reg);
    reg = other;
    use_as_worker();
    let_go(reg);
}

static void appear(void) {
    step_give(server.go);
}

static void attached_when_it_appears(void) {
    struct meanwhile m;
    start_server(name, 0);
    begin_meanwhile(&m, appear, SYS_ppoll, SYS_poll);
    reg = 0;
    LOOK(ATTACHES, 0, md_attach(name, md_now() + 5000000000, &reg));
    end_meanwhile(&m);
    step_take(server.ready);
    use_as_worker();
    let_go(reg);
    end_server();
}

static void waited_for_in_vain(void) {
    LOOK(ATTACHES, MD_ENOENT, md_attach(name, md_now() + 2000000, &reg));
}

static void the_default_registry(void) {
    reg = other = 0;
    CHANGE(0, CREATES | ATTACHES, 0, md_open_default(NULL, &reg));
    CHANGE(reg, CREATES | ATTACHES, 0, md_open_default("", &other));
    member = enter(reg, 0, MD_MAIN);
    fact = add(reg, member, MD_STACK, KEY, "A", 1, 0);
    take(reg, member, &fact, 0);
    leave(reg, member);
    let_go(other);
    let_go(reg);
}

static void the_default_registry_of_another(void) {
    reg = 0;
    CHANGE(0, CREATES | ATTACHES, 0, md_open_default(server.address, &reg));
    use_as_worker();
    let_go(reg);
}

static void make_and_enter(void) {
    reg = make(NULL, 0);
    member = enter(reg, 0, MD_MAIN);
}

static void made_and_left_by_another_thread(void) {
    elsewhere(make_and_enter);
    add(reg, member, MD_UNIQUE, KEY, "A", 1, 0);
    look_up(reg, KEY, "A");
    leave(reg, member);
    let_go(reg);
}

static void find_and_enter(void) {
    reg = find_registry(name, 0, 0);
    member = enter(reg, 0, MD_WORKER);
}

static void joined_by_another_thread(void) {
    elsewhere(find_and_enter);
    look_up(reg, KEY, "A");
    leave(reg, member);
    let_go(reg);
}

static void let_go_of_it(void) {
    let_go(reg);
}

static void closed_by_another_thread(void) {
    make_and_enter();
    leave(reg, member);
    elsewhere(let_go_of_it);
}

/* Fills the backed memory until less than a page is left. */
static void fill_up(void) {
    static char body[MD_MAX_BODY];
    shim.pause();
    for (;;) {
        md_stats s = {0};
        if (md_stat(reg, &s)) break;
        uint64_t left = s.committed - MD__ARENA_AT - s.used;
        if (left < 2048) break;
        if (md_register(reg, member, MD_IMPL, MD_STACK, 99, "n", 1, body, left / 2, "", 0, packed,
                        sizeof packed))
            break;
    }
    shim.go_on();
}

static void a_registry_that_grows(void) {
    static char body[60000];
    make_and_enter();
    fill_up();
    fact = add(reg, member, MD_STACK, KEY, body, sizeof body, 0);
    int rc = 0;
    shim.pause();
    while (rc == 0)
        rc = md_register(reg, member, MD_IMPL, MD_STACK, KEY, "n", 1, body, sizeof body, "", 0,
                         packed, sizeof packed);
    shim.go_on();
    add(reg, member, MD_STACK, KEY, body, sizeof body, MD_EFULL);
    take(reg, member, &fact, 0);
    add(reg, member, MD_STACK, KEY, body, sizeof body, 0);
    leave(reg, member);
    let_go(reg);
}

/* The 128th name needs a larger index, and the region has no backed room left for it. */
static void an_index_that_grows(void) {
    make_and_enter();
    shim.pause();
    for (int i = 0; i < 126; i++) {
        char other_name[8];
        snprintf(other_name, sizeof other_name, "m%d", i);
        md_register(reg, member, MD_IMPL, MD_STACK, KEY, other_name, strlen(other_name), "", 0, "",
                    0, packed, sizeof packed);
    }
    shim.go_on();
    fill_up();
    for (int i = 0; i < 3; i++) {
        char new_name[8];
        snprintf(new_name, sizeof new_name, "new%d", i);
        CHANGE(reg, REGISTERS, 0,
               md_register(reg, member, MD_IMPL, MD_STACK, KEY, new_name, 4, "A", 1, "", 0, packed,
                           sizeof packed));
    }
    leave(reg, member);
    let_go(reg);
}

/* --- waits ------------------------------------------------------------------------------------ */

static int deed_rc;

/* Tries again what is refused here, so the wait gets its outcome in any case. */
static void add_what_is_waited_for(void) {
    char buf[256];
    for (int i = 0; i < 3; i++) {
        deed_rc = md_register(reg, member, MD_IMPL, MD_STACK, KEY, "n", 1, "A", 1, "", 0, buf,
                              sizeof buf);
        if (deed_rc == 0) break;
    }
}

static void cancel_it(void) {
    deed_rc = md_cancel(reg, member, 5);
}

static int64_t soon(void) {
    return md_now() + 1000000000;
}

static void waits_of_the_main_member(void) {
    struct meanwhile m;
    md_stats s = {0};
    make_and_enter();
    wait_for(reg, member, KEY, md_now() + 2000000, MD_ETIMEDOUT);
    begin_meanwhile(&m, add_what_is_waited_for, SYS_futex, 449);
    wait_for(reg, member, KEY, soon(), 0);
    end_meanwhile(&m);
    LOOK(REGISTERS, 0, deed_rc);
    md_stat(reg, &s);
    begin_meanwhile(&m, add_what_is_waited_for, SYS_futex, 449);
    wait_for_change(reg, member, s.next_seq, soon(), 0);
    end_meanwhile(&m);
    begin_meanwhile(&m, cancel_it, SYS_futex, 449);
    wait_for(reg, member, 11, soon(), MD_ECANCELED);
    end_meanwhile(&m);
    LOOK(HANDLED, 0, deed_rc);
    leave(reg, member);
    let_go(reg);
}

static void kill_server(void) {
    kill(server.pid, SIGKILL);
}

static void waits_for_one_who_dies(void) {
    struct meanwhile m;
    start_anonymous_server();
    reg = find_registry(server.address, 0, 0);
    member = enter(reg, 0, MD_WORKER);
    begin_meanwhile(&m, kill_server, SYS_futex, 449);
    wait_for(reg, member, 11, soon(), MD_EDIED);
    end_meanwhile(&m);
    wait_for_change(reg, member, 0, soon(), 0);
    leave(reg, member);
    let_go(reg);
    end_server();
}

/* --- kernels ---------------------------------------------------------------------------------- */

static int kernel(md_call *call, const md_value *args, size_t n_args, md_value *results,
                  size_t n_results) {
    return 0;
}

static void a_hosts_library(void) {
    md_library *m = NULL;
    reg = make(NULL, 0);
    member = enter(reg, MD_HOST, MD_MAIN);
    CHANGE(reg, REGISTERS, 0, md_library_open(reg, member, "shop", MD_DEF_LIBRARY, "p", "w:1", &m));
    if (m) {
        CHANGE(reg, REGISTERS, 0, md_def(m, "f(Tensor x) -> int"));
        CHANGE(reg, REGISTERS, 0, md_impl(m, "f", KEY, kernel));
        CHANGE(reg, REGISTERS, 0, md_class(m, "C", NULL, 0));
        LOOK(LEAVES, 0, md_library_close(m)); /* ends as much as it can */
    }
    leave(reg, member);
    let_go(reg);
}

static void a_library_that_is_loaded(void) {
    static char path[4096 + 16], words[256];
    const md_loaded *loaded;
    ssize_t n = readlink("/proc/self/exe", path, 4096);
    strcpy(path + (n < 0 ? 0 : n) - strlen("refusals"), "libs/good.so");
    if (CHANGE(0, SYS | S(MD_ENOENT), 0, md_load(path, &loaded, words, sizeof words))) return;
    EQ(loaded->size, 31);
}

/* --- fork ------------------------------------------------------------------------------------- */

static void be_a_child(void *arg) {
    uint64_t mine = enter(reg, 0, MD_WORKER);
    add(reg, member, MD_STACK, KEY, "B", 1, MD_EROLE);
    look_up(reg, KEY, "A");
    wait_for(reg, mine, KEY, soon(), 0);
    leave(reg, mine);
    let_go(reg);
}

static void a_forked_child(void) {
    make_and_enter();
    fact = add(reg, member, MD_STACK, KEY, "A", 1, 0);
    OK(reap(child(be_a_child, NULL)));
    take(reg, member, &fact, 0);
    leave(reg, member);
    let_go(reg);
}

#include "teams.h"

static const struct scenario {
    const char *name;
    void (*prepare)(void);
    void (*act)(void);
    void (*end)(void);
    int regions_stay; /* a lease that its thread could not release keeps its region */
    int brief;        /* without --long, each call fails only in its first way */
} SCENARIOS[] = {
    {"an anonymous registry", nothing, an_anonymous_registry, nothing, 0, 0},
    {"a region that is held", start_anonymous_server, a_region_that_is_held, end_server, 0, 1},
    {"a named registry", nothing, a_named_registry, nothing, 0, 0},
    {"a dead registry makes room", nothing, a_dead_registry_makes_room, nothing, 0, 0},
    {"editions are made beside each other", nothing, editions_are_made_beside_each_other, nothing, 0,
     0},
    {"attached by name", start_named_server, attached_by_name, end_server, 0, 0},
    {"attached by address", start_anonymous_server, attached_by_address, end_server, 0, 0},
    {"attached when it appears", nothing, attached_when_it_appears, nothing, 0, 0},
    {"waited for in vain", nothing, waited_for_in_vain, nothing, 0, 0},
    {"the default registry", nothing, the_default_registry, nothing, 0, 0},
    {"the default registry of another", start_anonymous_server, the_default_registry_of_another,
     end_server, 0, 0},
    {"made and left by another thread", nothing, made_and_left_by_another_thread, nothing, 0, 0},
    {"joined by another thread", start_named_server, joined_by_another_thread, end_server, 0, 0},
    {"closed by another thread", nothing, closed_by_another_thread, nothing, 1, 0},
    {"a registry that grows", nothing, a_registry_that_grows, nothing, 0, 0},
    {"an index that grows", nothing, an_index_that_grows, nothing, 0, 0},
    {"waits of the main member", nothing, waits_of_the_main_member, nothing, 0, 0},
    {"waits for one who dies", nothing, waits_for_one_who_dies, nothing, 0, 0},
    {"a host's library", nothing, a_hosts_library, nothing, 0, 1},
    {"a library that is loaded", nothing, a_library_that_is_loaded, nothing, 0, 1},
    {"a forked child", nothing, a_forked_child, nothing, 0, 0},
    {"a folder that lacks a right", nothing, a_folder_that_lacks_a_right, nothing, 0, 1},
    {"a look from outside", start_named_server, a_look_from_outside, end_server, 0, 1},
    {"a look at what a process has open", start_anonymous_server, a_look_by_address, end_server, 0,
     1},
    {"a dead registry is removed", nothing, a_dead_registry_is_removed, nothing, 0, 1},
    {"a team", nothing, a_team, nothing, 0, 1},
    {"a team without a name", nothing, a_team_without_a_name, nothing, 0, 1},
    {"the default registry of a team", nothing, the_default_registry_of_a_team, nothing, 0, 1},
    {"a dead team makes room", nothing, a_dead_team_makes_room, nothing, 0, 1},
    {"a dead team is removed", nothing, a_dead_team_is_removed, nothing, 0, 1},
    {"a registrar that dies", nothing, a_registrar_that_dies, nothing, 0, 1},
    {"a lock whose holder died", nothing, a_lock_whose_holder_died, nothing, 0, 1},
};
enum { SCENARIO_COUNT = sizeof SCENARIOS / sizeof *SCENARIOS };

#endif
