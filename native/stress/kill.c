/* kill.c - kills the users of a registry at random instants, and looks at what is left.
 *
 *     kill [--seconds N] [--rounds N] [--kills N] [--seed S] [--roles registrar,waiter,...]
 *
 * One round is the life of one main member. It creates the registry of this run's name, and workers
 * of all roles use it. The killer kills them with SIGKILL, one after the other, and replaces them
 * at once. Then the main member is killed as well, or leaves; the others hear of it, and the next
 * main member takes the name over. The killer lives on, takes part as a reader, and checks:
 *
 * - after each kill, what the dead one was changing: it must be in the old state or the new one;
 * - after each round, and now and then in between, everything: md_check, every acknowledged
 *   registration, no fact that nobody registered, no slot still taken;
 * - the delay of each wait, which the waiters note themselves (board.h);
 * - that every worker makes progress: a hang ends the run, with what the kernel says of the
 *   process.
 *
 * The killer chooses an instant by spinning for some microseconds, by a nap as short, or by
 * watching until the victim is inside a call and then for a few microseconds more. A seed gives the
 * same choices again; what they hit is up to the scheduler.
 */
#include "killer.h"
#include "roles.h"

enum { KILLS_A_ROUND = 60, AT_ONCE = 4 };
static const int64_t TOLD_NS = 5ll * 1000000000;

static const enum role CAST[] = {MAIN,   REGISTRAR, REGISTRAR, CLOSER,  CLOSER,
                                 WAITER, WAITER,    WAITER,    READER,  SWEEPER,
                                 JOINER, ATTACHER,  LISTENER,  LISTENER};
enum { CAST_SIZE = sizeof CAST / sizeof *CAST };

static uint64_t children;

/* --- starting and ending workers -------------------------------------------------------------- */

static bool takes_part(enum role role) {
    return role == MAIN || !*options.roles || strstr(options.roles, ROLE_NAMES[role]);
}

static void start(uint32_t i, md_registry reg) {
    cell *c = &shown->cells[i];
    struct victim v = {.reg = reg, .random = options.seed * 1000003 + ++children};
    md__poke32(&c->role, CAST[i]);
    md__poke32(&c->op, NOTHING);
    md__poke32(&c->awaited, 0);
    md__poke64(&c->since, (uint64_t)md_now());
    total.started[CAST[i]]++;
    pid_t killer = getpid(), pid = fork();
    if (pid < 0) fail("fork: %s", strerror(errno));
    if (pid) {
        c->pid = pid > 0 ? pid : 0;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != killer) _exit(0);
    alarm(0);
    self = c;
    if (CAST[i] == MAIN)
        be_main(&v);
    else
        be_worker(CAST[i], &v);
    _exit(0);
}

/* Settles the places that the dead worker was changing: each has its old or its new state by now,
 * and keeps it. */
static void settle_for(uint32_t i, md_registry reg) {
    for (uint32_t n = 0; n < PLACES; n++) {
        place *p = &shown->places[n];
        uint64_t word = md__read64(&p->word);
        char buf[BUF];
        md_record r;
        if (standing(word) == EMPTY || standing(word) == LIVE || owner_of(word) != i) continue;
        int rc = find_place(reg, n, buf);
        if (rc && rc != MD_ENOENT) fail("looking up place %u: %s", n, md_status_text(rc));
        if (rc == 0) read_body(buf, n);
        if (rc == 0) memcpy(&r, buf, sizeof r);
        if (rc == 0 && standing(word) == STRIKING && r.seq != md__peek64(&p->seq))
            fail("place %u was being struck out and became another fact", n);
        settle(p, word, rc == 0 ? &r : NULL);
    }
}

/* Buries a worker that was killed or may have ended by itself. Returns whether it had ended. */
static bool bury(uint32_t i, md_registry reg, int flags) {
    cell *c = &shown->cells[i];
    int status;
    pid_t pid = waitpid(c->pid, &status, flags);
    if (pid == 0) return false;
    if (pid < 0) fail("waitpid: %s", strerror(errno));
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        total.killed[CAST[i]]++;
        total.inside[CAST[i]] += md__peek32(&c->op) != NOTHING;
        total.kills++;
    } else if (status || !gone()) {
        self = c;
        fail("ended by itself, status %#x", (unsigned)status);
        self = NULL;
    }
    c->pid = 0;
    if (reg) settle_for(i, reg);
    return true;
}

/* --- the watchdog ----------------------------------------------------------------------------- */

/* The time by which this worker should have gone on, or 0 when it may stay where it is. */
static int64_t due(const cell *c) {
    uint32_t op = md__read32(&c->op), awaited = md__peek32(&c->awaited);
    int64_t since = (int64_t)md__peek64(&c->since),
            main_gone = (int64_t)md__read64(&shown->main_gone);
    if (op != WAIT && op != LISTEN) return since + limit(HANG_NS);
    if (main_gone) return (main_gone > since ? main_gone : since) + limit(TOLD_NS);
    if (op == LISTEN) return 0; /* perhaps nobody has changed anything */
    if (!awaited) return since + limit(TOLD_NS);
    const place *p = &shown->places[awaited - 1];
    uint64_t word = md__read64(&p->word);
    int64_t live = (int64_t)md__peek64(&p->since);
    if (standing(word) != LIVE || md__read64(&p->word) != word) return 0;
    return (live > since ? live : since) + limit(TOLD_NS);
}

static bool all_go_on(void) {
    int64_t now = md_now();
    for (uint32_t i = 0; i < CAST_SIZE; i++) {
        cell *c = &shown->cells[i];
        uint64_t began = md__peek64(&c->since);
        int64_t then = c->pid ? due(c) : 0;
        if (!then || now < then || md__peek64(&c->since) != began) continue;
        self = c;
        fail("hangs, pid %d, for %.1f s", (int)c->pid, (double)(now - (int64_t)began) / 1e9);
        self = NULL;
        show_process(c->pid);
    }
    return !md__read32(&shown->failures);
}

/* --- a round ---------------------------------------------------------------------------------- */

static void verify_all(md_registry reg) {
    char words[2048] = "";
    for (uint32_t n = 0; n < PLACES; n++) verify_place(reg, n);
    int rc = md_check(reg, words, sizeof words);
    if (rc) fail("broken invariants (%s):\n%s", md_status_text(rc), words);
    for (uint32_t n = 0; n < PLACES; n++) verify_place(reg, n);
}

/* When all is quiet: there must be as many facts as were acknowledged, and a sweep must have freed
 * every slot of the dead. */
static void verify_quiet(md_registry reg, uint32_t attachers) {
    char few[8];
    size_t size;
    uint64_t live = 0, acknowledged = 0, member;
    uint32_t role;
    md_stats s;
    verify_all(reg);
    for (uint32_t n = 0; n < PLACES; n++)
        acknowledged += standing(md__read64(&shown->places[n].word)) == LIVE;
    int rc = md_list_since(reg, MD_IMPL, 0, few, sizeof few, &size, &live);
    if ((rc && rc != MD_ENOBUFS) || live != acknowledged)
        fail("%llu facts are there, %llu acknowledged (%s)", (unsigned long long)live,
             (unsigned long long)acknowledged, md_status_text(rc));
    rc = md_join(reg, 0, &member, &role); /* sweeps */
    if (rc && rc != MD_ECLOSED) fail("joining after all are gone: %s", md_status_text(rc));
    if (rc == 0 && md_leave(reg, member)) fail("leaving after all are gone");
    if (md_stat(reg, &s)) fail("md_stat after all are gone");
    /* Nobody else ever gets the main member's slot, we have one, and attachers come and go. */
    if (rc == 0 && (s.processes > 2 + attachers || s.members > 1 + attachers))
        fail("%u processes and %u members are left", s.processes, s.members);
    total.recoveries += s.recoveries;
    if (s.committed > total.committed) total.committed = s.committed;
}

static bool is_done(int64_t began) {
    if (md__read32(&shown->failures)) return true;
    if (options.rounds && total.rounds >= options.rounds) return true;
    if (options.kills && total.kills >= options.kills) return true;
    return (double)(md_now() - began) / 1e9 >= options.seconds;
}

static void clear_board(void) {
    for (uint32_t n = 0; n < PLACES; n++)
        settle(&shown->places[n], md__read64(&shown->places[n].word), NULL);
    md__poke32(&shown->leave, 0);
    md__publish64(&shown->main_gone, 0);
}

static bool start_main(md_registry *reg) {
    clear_board();
    while (below(&dice, 4) == 0) { /* a main member that is killed as it begins */
        start(0, 0);
        spin(below(&dice, 2 * SPIN_NS));
        kill(shown->cells[0].pid, SIGKILL);
        bury(0, 0, 0);
        clear_board();
    }
    start(0, 0);
    int rc = md_attach(shown->name, md_now() + limit(HANG_NS), reg);
    if (rc) fail("the new main member's registry: %s", md_status_text(rc));
    return rc == 0;
}

/* The others hear that the main member is gone, and some are killed as they do. */
static void end_round(md_registry reg) {
    int64_t end = md_now() + limit(HANG_NS + TOLD_NS);
    uint32_t left = CAST_SIZE, kills = below(&dice, 2) ? below(&dice, CAST_SIZE) : 0;
    if (below(&dice, 4)) {
        md__publish64(&shown->main_gone, (uint64_t)md_now());
        kill_somewhere(0);
        bury(0, reg, 0);
    } else {
        md__publish32(&shown->leave, 1);
        while (!gone() && md_now() < end && all_go_on()) {}
    }
    while (left && md_now() < end && all_go_on()) {
        left = 0;
        for (uint32_t i = 0; i < CAST_SIZE; i++) {
            if (!shown->cells[i].pid || CAST[i] == ATTACHER || bury(i, reg, WNOHANG)) continue;
            left++;
            if (!kills || below(&dice, 2)) continue;
            kills--;
            kill_somewhere(i);
            bury(i, reg, 0);
        }
        sched_yield();
    }
    if (left) fail("%u workers do not end", left);
}

/* Several die before the first of them is buried. So a recovery can be killed as well. And dying
 * takes a processor, of which there are few. */
static void kill_some(uint32_t present, md_registry reg) {
    uint32_t dead[AT_ONCE], many = 1 + below(&dice, AT_ONCE), n = 0;
    while (n < many) {
        uint32_t i = 1 + below(&dice, CAST_SIZE - 1), twice = 0;
        if (!(present >> i & 1)) continue;
        for (uint32_t k = 0; k < n; k++) twice |= dead[k] == i;
        if (twice) break;
        kill_somewhere(i);
        dead[n++] = i;
    }
    for (uint32_t k = 0; k < n; k++) bury(dead[k], reg, 0);
    if (below(&dice, 8) == 0) verify_all(reg);
    for (uint32_t k = 0; k < n; k++) start(dead[k], reg);
}

static void play_round(int64_t began) {
    md_registry reg;
    uint32_t attachers = 0, kills = 1 + below(&dice, KILLS_A_ROUND), present = 0;
    unsigned long until = total.kills;
    alarm((unsigned)limit(60));
    if (!start_main(&reg)) return;
    while (!present) {
        for (uint32_t i = 1; i < CAST_SIZE; i++)
            present |= (uint32_t)(takes_part(CAST[i]) && below(&dice, 3) == 0) << i;
    }
    for (uint32_t i = 1; i < CAST_SIZE; i++) {
        cell *c = &shown->cells[i];
        if (c->pid) present |= 1u << i; /* an attacher from the round before */
        if (!c->pid && present >> i & 1) start(i, reg);
        attachers += CAST[i] == ATTACHER && c->pid;
    }
    for (until += kills; total.kills < until && !is_done(began) && all_go_on();)
        kill_some(present, reg);
    end_round(reg);
    if (!md__read32(&shown->failures)) verify_quiet(reg, attachers);
    md_close(reg);
    total.rounds++;
}

/* --- the program ------------------------------------------------------------------------------ */

static void read_roles(int argc, char **argv) {
    bool anybody = false, good = read_options(argc, argv);
    for (uint32_t i = 1; i < CAST_SIZE; i++) anybody |= takes_part(CAST[i]);
    if (good && anybody) return;
    fprintf(stderr, "usage: kill [--seconds N] [--rounds N] [--kills N] [--seed S] [--roles A,B]\n"
                    "roles, beside the main member's:");
    for (int r = MAIN + 1; r < ROLES; r++) fprintf(stderr, " %s", ROLE_NAMES[r]);
    fprintf(stderr, "\n");
    exit(2);
}

/* Removes the name that the last main member left behind when it was killed. */
static void remove_name(void) {
    struct main_member m;
    uint32_t role;
    if (md_create(shown->name, CAPACITY, &m.reg)) return;
    if (md_join(m.reg, 0, &m.member, &role) == 0) md_leave(m.reg, m.member);
    md_close(m.reg);
}

int main(int argc, char **argv) {
    read_roles(argc, argv);
    shown = shared(sizeof *shown);
    dice = options.seed;
    snprintf(shown->name, sizeof shown->name, "kill-%d", (int)getpid());
    printf("== kill --seed %llu\n", (unsigned long long)options.seed);
    fflush(stdout);
    signal(SIGALRM, on_alarm);
    take_short_turns();
    int64_t began = md_now();
    while (!is_done(began)) play_round(began);
    for (uint32_t i = 0; i < CAST_SIZE; i++) {
        if (!shown->cells[i].pid) continue;
        kill(shown->cells[i].pid, SIGKILL);
        bury(i, 0, 0);
    }
    remove_name();
    return print_report((double)(md_now() - began) / 1e9);
}
