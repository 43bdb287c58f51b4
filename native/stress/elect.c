/* elect.c - kills the members of a team at random instants, while newcomers keep coming.
 *
 *     elect [--seconds N] [--rounds N] [--kills N] [--seed S]
 *
 * A member opens the team's registry and claims some namespaces, one after the other. Where it is
 * the registrar it registers what is missing of a fixed set, and where it is not it waits for the
 * rest. Then it verifies, releases, leaves, and begins again. Now and then it does so in a thread
 * that is not the main one, or it closes without leaving first. A round ends when all members are
 * killed or all leave. These things are checked all the time:
 *
 * - A member that is told that it is the registrar of a namespace takes the namespace's word on the
 *   board, by compare-and-swap, and gives it back before its claim ends. Two never have it at once.
 *   The next registrar takes over a word that a dead one left; before the killer kills a member it
 *   says so on the board.
 * - A member that has imported a namespace finds all its facts until it lets go of it.
 * - All who are members at the same time are members of the same region.
 * - md_check holds: among other things, no facts without claims, and no claims of strangers.
 * - Each wait ends within 300 ms of its outcome. The fact's body says when its registration began
 *   (if a wait ends late, the time that the registration took is subtracted). The board says when a
 *   registrar was killed or let go. Everybody makes progress.
 * - When all have left, the name is gone. When all were killed, a newcomer takes the name over and
 *   finds the registry empty.
 */
#include "killer.h"

enum { SPACES = 3, SET = 12, MEMBERS = 8, MOST_AT_ONCE = 4, A_ROUND = 120 };

/* A process's life: a number that is never used again and that contains the number of its cell. */
typedef struct life {
    _Alignas(64) md__u64 dying; /* the life that is about to be killed, or was */
    md__u64 now;    /* the life in this cell now; it began after the one before was over */
    md__u64 region; /* the region of which it is a member now, 0: none */
} life;

typedef struct space {
    _Alignas(64) md__u64 registrar; /* the life that knows that it registers there, 0: none */
    md__u64 ended;                  /* when the latest registrar was killed, or began to let go */
    md__u64 began[SET], took[SET];  /* of each fact's latest registration that returned */
} space;

typedef struct team {
    life lives[MEMBERS];
    space spaces[SPACES];
    md__u32 leave;
    md__u64 turns, inherited, imports, registered, lives_ended, checks, taken_over;
} team;

static team *seen;

struct member {
    md_registry reg;
    uint64_t member, random, life;
    uint32_t cell;
    bool goes_on;
};

static uint64_t life_of(uint32_t cell, uint64_t number) {
    return number * MEMBERS + cell + 1;
}
static life *where(uint64_t of) {
    return &seen->lives[(of - 1) % MEMBERS];
}
static bool is_dying(uint64_t of) {
    return md__read64(&where(of)->dying) == of || md__read64(&where(of)->now) != of;
}

/* --- what a member does ----------------------------------------------------------------------- */

static void fact_name(char name[24], uint32_t n, uint32_t i) {
    snprintf(name, 24, i ? "s%u::f%u" : "s%u", n, i);
}
static void space_name(char name[24], uint32_t n) {
    snprintf(name, 24, "s%u", n);
}

static bool right(struct member *m, int rc, const char *what) {
    if (rc == 0) return true;
    fail("%s answered %d (%s), errno %d", what, rc, md_status_text(rc), md_status_errno(rc));
    m->goes_on = false;
    return false;
}

/* Checks that the bytes are the fact's own. Returns when its registration began. */
static uint64_t read_fact(const char *buf, uint32_t n, uint32_t i) {
    uint64_t body[2] = {0, 0};
    md_record r;
    memcpy(&r, buf, sizeof r);
    if (r.body_len == sizeof body) memcpy(body, buf + sizeof r + r.name_len, sizeof body);
    if (body[0] != ((uint64_t)n << 32 | i)) fail("fact %u of s%u has other bytes", i, n);
    return body[1];
}

/* Pauses, so that others begin to wait and can be killed while they wait. */
static void dawdle(struct member *m, uint32_t one_in, uint32_t most_ns) {
    struct timespec pause = {.tv_nsec = (long)below(&m->random, most_ns)};
    if (below(&m->random, one_in) == 0) nanosleep(&pause, NULL);
}

static void take_space(struct member *m, uint32_t n) {
    space *s = &seen->spaces[n];
    uint64_t other = md__read64(&s->registrar);
    for (;;) {
        if (other && !is_dying(other))
            fail("s%u has two registrars, lives %llu and %llu", n, (unsigned long long)other,
                 (unsigned long long)m->life);
        if (md__swap_if64(&s->registrar, &other, m->life)) break;
    }
    md__publish64(&s->ended, (uint64_t)md_now()); /* not before */
    count(other ? &seen->inherited : &seen->turns);
}

/* Called before the claim ends, whatever ends it. */
static void let_go(struct member *m, uint32_t n) {
    uint64_t mine = m->life;
    if (md__read64(&seen->spaces[n].registrar) != mine) return;
    md__publish64(&seen->spaces[n].ended, (uint64_t)md_now());
    if (!md__swap_if64(&seen->spaces[n].registrar, &mine, 0))
        fail("s%u was taken by %llu while %llu registers there", n, (unsigned long long)mine,
             (unsigned long long)m->life);
}

static bool is_here(struct member *m, uint32_t n, uint32_t i) {
    char name[24], buf[BUF];
    fact_name(name, n, i);
    inside(FIND);
    int rc = md_find(m->reg, MD_DEF, 0, name, strlen(name), buf, sizeof buf);
    outside();
    if (rc == 0) read_fact(buf, n, i);
    if (rc == MD_ENOENT) return false;
    return right(m, rc, "md_find");
}

/* Registers a fact; the caller is the registrar. */
static void put_fact(struct member *m, uint32_t n, uint32_t i) {
    uint64_t body[2] = {(uint64_t)n << 32 | i, (uint64_t)md_now()};
    char name[24], buf[BUF];
    fact_name(name, n, i);
    inside(PUT);
    int rc = md_register(m->reg, m->member, MD_DEF, MD_UNIQUE, 0, name, strlen(name), (char *)body,
                         sizeof body, "elect.c:1", 9, buf, sizeof buf);
    outside();
    if (right(m, rc, "md_register")) count(&seen->registered);
    md__poke64(&seen->spaces[n].took[i], (uint64_t)md_now() - body[1]);
    md__publish64(&seen->spaces[n].began[i], body[1]);
    if (md__read64(&seen->spaces[n].registrar) != m->life)
        fail("s%u is registered by life %llu, and by this one", n,
             (unsigned long long)md__read64(&seen->spaces[n].registrar));
}

/* How long the registration that began at `began` took. On a busy machine the registrar waits for a
 * processor, or for the lock, before the fact is there. 0 when nobody says it: the registrar is
 * dead. */
static uint64_t registrars_time(uint32_t n, uint32_t i, uint64_t began) {
    const space *s = &seen->spaces[n];
    for (int64_t until = md_now() + limit(ALLOWED_NS); md_now() < until; sched_yield())
        if (md__read64(&s->began[i]) == began) return md__peek64(&s->took[i]);
    return 0;
}

/* Waits for a fact that the registrar should register. Returns whether this member is the registrar
 * now. */
static bool wait_for(struct member *m, uint32_t n, uint32_t i) {
    char name[24], buf[BUF];
    md_wait_stats stats = {0};
    uint64_t queued = queued_ns(), began = (uint64_t)md_now();
    int rc;
    fact_name(name, n, i);
    inside(WAIT);
    do
        rc = md_await_or_elect(m->reg, m->member, MD_DEF, 0, 1, name, strlen(name), MD_FOREVER, 0,
                               buf, sizeof buf, &stats);
    while (rc == MD_EINTR);
    uint64_t returned = (uint64_t)md_now(), came;
    outside();
    bool elected = rc == MD_EELECTED;
    if (!elected && !right(m, rc, "md_await_or_elect")) return false;
    came = elected ? md__read64(&seen->spaces[n].ended) : read_fact(buf, n, i);
    uint64_t lacked = queued_ns() - queued;
    if (!elected && returned > came + (uint64_t)limit(ALLOWED_NS))
        lacked += registrars_time(n, i, came);
    note_wait_time(elected ? MAIN_DIED : FACT, came > began ? came : began, returned, lacked);
    if (elected) take_space(m, n);
    return elected;
}

/* Does as the import of a module does: registers what is missing, or waits for it. */
static void import_space(struct member *m, uint32_t n) {
    char name[24], buf[BUF];
    space_name(name, n);
    inside(ATTACH);
    int rc = md_claim(m->reg, m->member, name, strlen(name), "elect.c:2", 9, buf, sizeof buf);
    outside();
    if (rc != MD_EEXIST && !right(m, rc, "md_claim")) return;
    bool registers = rc == 0;
    if (registers) take_space(m, n);
    for (uint32_t i = 0; i < SET && m->goes_on; i++) {
        if (is_here(m, n, i) || !m->goes_on) continue;
        if (!registers) registers = wait_for(m, n, i);
        if (registers && !is_here(m, n, i)) put_fact(m, n, i);
        if (registers) dawdle(m, 3, 400000);
    }
    count(&seen->imports);
}

static void verify(struct member *m, uint32_t n) {
    for (uint32_t i = 0; i < SET && m->goes_on; i++)
        if (!is_here(m, n, i) && m->goes_on) fail("fact %u of s%u is lost", i, n);
}

static void check_team(md_registry reg) {
    char words[2048] = "";
    inside(LOOK);
    int rc = md_check(reg, words, sizeof words);
    outside();
    if (rc) fail("broken invariants (%s):\n%s", md_status_text(rc), words);
    count(&seen->checks);
}

static uint64_t region_of(md_registry handle) {
    md__reg *reg;
    uint64_t id;
    if (md__enter(handle, &reg)) return 0;
    memcpy(&id, md__header(reg)->uuid, sizeof id);
    md__exit(reg);
    return id | 1;
}

/* Checks that nobody is a member of another region at the same time. */
static void show_region(struct member *m) {
    uint64_t mine = region_of(m->reg);
    md__publish64(&where(m->life)->region, mine);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        life *other = &seen->lives[i];
        uint64_t region = md__read64(&other->region), dying = md__read64(&other->dying);
        if (!region || region == mine || dying || md__read64(&other->region) != region) continue;
        fail("cell %u is a member of another region of the same name", i);
    }
}

static bool enter_team(struct member *m) {
    uint32_t role;
    int rc;
    do {
        inside(CREATE);
        rc = md_elect(shown->name, CAPACITY, &m->reg);
        outside();
        if (!right(m, rc, "md_elect")) return false;
        inside(JOIN);
        rc = md_join(m->reg, 0, &m->member, &role);
        outside();
        if (rc) md_close(m->reg);
    } while (rc == MD_ECLOSED);
    if (!right(m, rc, "md_join")) return false;
    if (role != MD_PEER) fail("role %u in a team", role);
    show_region(m);
    return true;
}

static void leave_team(struct member *m, uint32_t mine) {
    bool says_so = below(&m->random, 4) != 0;
    for (uint32_t n = 0; n < SPACES; n++) {
        char name[24];
        if (!(mine >> n & 1)) continue;
        let_go(m, n);
        space_name(name, n);
        if (below(&m->random, 2)) continue; /* leaving ends the claim */
        inside(STRIKE);
        int rc = md_release(m->reg, m->member, name, strlen(name));
        outside();
        if (!right(m, rc, "md_release")) return;
    }
    md__publish64(&where(m->life)->region, 0);
    inside(LEAVE);
    int rc = says_so ? md_leave(m->reg, m->member) : 0;
    outside();
    if (!right(m, rc, "md_leave")) return;
    inside(CLOSE);
    rc = md_close(m->reg);
    outside();
    right(m, rc, "md_close");
}

static void *live_once(void *arg) {
    struct member *m = arg;
    uint32_t mine = 0, many = 1 + below(&m->random, SPACES);
    if (!enter_team(m)) return NULL;
    for (uint32_t k = 0; k < many && m->goes_on; k++) {
        uint32_t n = below(&m->random, SPACES);
        if (mine >> n & 1) continue;
        import_space(m, n);
        mine |= 1u << n;
        for (uint32_t i = 0; i < SPACES && m->goes_on; i++)
            if (mine >> i & 1) verify(m, i);
        dawdle(m, 2, 2000000);
        if (below(&m->random, 8) == 0) check_team(m->reg);
    }
    if (!m->goes_on) return NULL;
    leave_team(m, mine);
    count(&seen->lives_ended);
    return NULL;
}

static void be_member(struct member *m) {
    pthread_t thread;
    while (m->goes_on && !md__read32(&seen->leave)) {
        if (below(&m->random, 4))
            live_once(m);
        else if (pthread_create(&thread, NULL, live_once, m) == 0)
            pthread_join(thread, NULL);
    }
}

/* --- the killer ------------------------------------------------------------------------------- */

static void start(uint32_t i) {
    static uint64_t children;
    cell *c = &shown->cells[i];
    struct member m = {.cell = i, .goes_on = true};
    m.random = options.seed * 1000003 + ++children;
    m.life = life_of(i, children);
    md__poke32(&c->role, PEER);
    md__poke32(&c->op, NOTHING);
    md__poke64(&c->since, (uint64_t)md_now());
    md__poke64(&seen->lives[i].region, 0);
    md__publish64(&seen->lives[i].dying, 0);
    md__publish64(&seen->lives[i].now, m.life);
    total.started[0]++;
    pid_t killer = getpid(), pid = fork();
    if (pid < 0) fail("fork: %s", strerror(errno));
    if (pid) {
        c->pid = pid > 0 ? pid : 0;
        c->started = (uint32_t)children;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != killer) _exit(0);
    alarm(0);
    self = c;
    be_member(&m);
    _exit(0);
}

/* Notes on the board that the member dies, before it dies, and since when its namespaces have no
 * registrar: that time is a moment too early. */
static void end_life(uint32_t i) {
    uint64_t of = life_of(i, shown->cells[i].started);
    md__publish64(&seen->lives[i].dying, of);
    for (uint32_t n = 0; n < SPACES; n++) {
        if (md__read64(&seen->spaces[n].registrar) != of) continue;
        md__publish64(&seen->spaces[n].ended, (uint64_t)md_now());
        total.killed[1]++;
    }
    kill_somewhere(i);
}

static bool bury(uint32_t i, int flags) {
    cell *c = &shown->cells[i];
    int status;
    pid_t pid = waitpid(c->pid, &status, flags);
    if (pid == 0) return false;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        total.kills++;
        total.inside[0] += md__peek32(&c->op) != NOTHING;
    } else if (status || !md__read32(&seen->leave)) {
        fail("cell %u ended by itself, status %#x", i, (unsigned)status);
    }
    c->pid = 0;
    md__publish64(&seen->lives[i].region, 0);
    return true;
}

static bool all_go_on(void) {
    for (uint32_t i = 0; i < MEMBERS; i++) {
        cell *c = &shown->cells[i];
        int64_t since = (int64_t)md__peek64(&c->since);
        if (!c->pid || md_now() < since + limit(HANG_NS) || md__read32(&c->op) == NOTHING) continue;
        if ((int64_t)md__peek64(&c->since) != since) continue;
        self = c;
        fail("hangs, pid %d", (int)c->pid);
        self = NULL;
        show_process(c->pid);
    }
    return !md__read32(&shown->failures);
}

/* Looks from outside: a process that has the registry open but is no member keeps nothing alive. */
static void look(void) {
    md_registry reg;
    md_stats s;
    int rc = md_attach(shown->name, 0, &reg);
    if (rc == MD_ENOENT || rc == MD_EDIED || rc == MD_ECLOSED) return;
    if (rc) fail("md_attach answered %d (%s)", rc, md_status_text(rc));
    if (rc || md__read32(&shown->failures)) return;
    self = &shown->cells[MEMBERS];
    check_team(reg);
    self = NULL;
    if (md_stat(reg, &s) == 0 && s.recoveries > total.recoveries) total.recoveries = s.recoveries;
    if (s.committed > total.committed) total.committed = s.committed;
    md_close(reg);
}

static void kill_some(void) {
    uint32_t dead[MOST_AT_ONCE], many = 1 + below(&dice, MOST_AT_ONCE), n = 0;
    while (n < many) {
        uint32_t i = below(&dice, MEMBERS), twice = 0;
        for (uint32_t k = 0; k < n; k++) twice |= dead[k] == i;
        if (twice) break;
        end_life(i);
        dead[n++] = i;
    }
    for (uint32_t k = 0; k < n; k++) bury(dead[k], 0);
    if (below(&dice, 4) == 0) look();
    for (uint32_t k = 0; k < n; k++) start(dead[k]);
}

/* Everybody leaves; or everybody leaves and some are killed as they do; or everybody is killed. */
static void end_round(void) {
    uint32_t how = below(&dice, 3), left = MEMBERS;
    char path[160];
    md__file_path(path, sizeof path, shown->name);
    if (how < 2) md__publish32(&seen->leave, 1);
    for (uint32_t i = 0; i < MEMBERS; i++)
        if (how == 2 || (how == 1 && below(&dice, 2))) end_life(i);
    while (left && all_go_on()) {
        left = 0;
        for (uint32_t i = 0; i < MEMBERS; i++) left += shown->cells[i].pid && !bury(i, WNOHANG);
        sched_yield();
    }
    if (left) return;
    bool there = access(path, F_OK) == 0;
    if (how == 0 && there) fail("all have left, and the name is still there");
    if (how == 2 && there) count(&seen->taken_over);
    for (uint32_t n = 0; n < SPACES; n++) {
        uint64_t other = md__read64(&seen->spaces[n].registrar);
        if (how == 0 && other && !is_dying(other)) fail("s%u was not given back", n);
        md__publish64(&seen->spaces[n].registrar, 0);
    }
    md__publish32(&seen->leave, 0);
    /* The killer is the newcomer: it finds nothing of the dead, and its own end removes the name.
     */
    struct member m = {.goes_on = true, .life = life_of(0, 0)};
    md_stats s = {0};
    self = &shown->cells[MEMBERS];
    if (enter_team(&m) && (md_stat(m.reg, &s) || s.facts || s.members != 1))
        fail("a newcomer finds %llu facts and %u members", (unsigned long long)s.facts, s.members);
    md__publish64(&seen->lives[0].region, 0);
    if (m.goes_on && right(&m, md_leave(m.reg, m.member), "md_leave")) md_close(m.reg);
    self = NULL;
    if (access(path, F_OK) == 0) fail("the last one has left, and the name is still there");
}

static bool is_done(int64_t began) {
    if (md__read32(&shown->failures)) return true;
    if (options.rounds && total.rounds >= options.rounds) return true;
    if (options.kills && total.kills >= options.kills) return true;
    return (double)(md_now() - began) / 1e9 >= options.seconds;
}

static void play_round(int64_t began) {
    unsigned long until = total.kills + 1 + below(&dice, A_ROUND);
    alarm((unsigned)limit(60));
    for (uint32_t i = 0; i < MEMBERS; i++) start(i);
    while (total.kills < until && !is_done(began) && all_go_on()) kill_some();
    if (!md__read32(&shown->failures)) end_round();
    total.rounds++;
}

static int print_team(double seconds) {
    uint32_t failures = md__read32(&shown->failures);
    const char *const words[] = {"fact there", "next in line"};
    const enum outcome which[] = {FACT, MAIN_DIED};
    printf("from the outcome to the waiter's return, numbers of waits (columns: at most so many "
           "us)\n%-12s",
           "");
    for (size_t c = 0; c < COLUMNS - 1; c++) printf(" %7d", BOUNDS[c]);
    printf("  beyond    worst ms\n");
    for (int o = 0; o < 2; o++) {
        printf("%-12s", words[o]);
        for (size_t c = 0; c < COLUMNS; c++)
            printf(" %7llu", (unsigned long long)md__peek64(&shown->times[which[o]][c]));
        printf(" %11.2f\n", (double)md__peek64(&shown->worst[which[o]]) / 1e6);
    }
    printf("%llu waits returned after more than %lld ms, %llu of them for want of a processor\n\n",
           (unsigned long long)md__peek64(&shown->beyond), (long long)limit(ALLOWED_NS) / 1000000,
           (unsigned long long)md__peek64(&shown->queued));
    printf("seed %llu: %lu kills in %.1f s (%.0f a second), %lu of them inside a call, %lu of "
           "namespaces' registrars;\n%lu rounds, %llu times all were killed and the name taken "
           "over;\n%llu turns of registrars and %llu after a killed one, %llu imports, %llu "
           "registrations, %llu leavings, %llu checks;\nat most %lu recoveries of one lock and %lu "
           "KiB of memory\n",
           (unsigned long long)options.seed, total.kills, seconds, (double)total.kills / seconds,
           total.inside[0], total.killed[1], total.rounds,
           (unsigned long long)md__peek64(&seen->taken_over),
           (unsigned long long)md__peek64(&seen->turns),
           (unsigned long long)md__peek64(&seen->inherited),
           (unsigned long long)md__peek64(&seen->imports),
           (unsigned long long)md__peek64(&seen->registered),
           (unsigned long long)md__peek64(&seen->lives_ended),
           (unsigned long long)md__peek64(&seen->checks), total.recoveries, total.committed / 1024);
    if (failures)
        printf(
            "FAILED (%u): %s\nagain: elect --seed %llu --seconds %.0f --rounds %lu --kills %lu\n",
            failures, shown->words, (unsigned long long)options.seed, options.seconds,
            options.rounds, options.kills);
    printf("%d passed, %d failed\n", failures ? 0 : 1, failures ? 1 : 0);
    return failures ? 1 : 0;
}

int main(int argc, char **argv) {
    if (!read_options(argc, argv) || *options.roles) {
        fprintf(stderr, "usage: elect [--seconds N] [--rounds N] [--kills N] [--seed S]\n");
        return 2;
    }
    shown = shared(sizeof *shown);
    seen = shared(sizeof *seen);
    dice = options.seed;
    snprintf(shown->name, sizeof shown->name, "elect-%d@1.4.2+g1", (int)getpid());
    printf("== elect --seed %llu\n", (unsigned long long)options.seed);
    fflush(stdout);
    signal(SIGALRM, on_alarm);
    take_short_turns();
    md__poke32(&shown->cells[MEMBERS].role, PEER);
    int64_t began = md_now();
    while (!is_done(began)) play_round(began);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        if (shown->cells[i].pid > 0) kill(shown->cells[i].pid, SIGKILL);
        if (shown->cells[i].pid > 0) reap(shown->cells[i].pid);
    }
    struct member m = {.goes_on = true, .life = life_of(0, 0)};
    self = &shown->cells[MEMBERS];
    if (md__read32(&shown->failures) && enter_team(&m)) { /* so that no name stays behind */
        md_leave(m.reg, m.member);
        md_close(m.reg);
    }
    return print_team((double)(md_now() - began) / 1e9);
}
