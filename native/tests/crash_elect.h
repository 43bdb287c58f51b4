/* crash_elect.h - the operations with claims (claims.c), choices and members' own facts in which every
 * death is tried.
 *
 * A process that dies loses its claims, and the facts on which no other process has a claim go with
 * it. So a death has to leave neither the state before the call nor the state after it, but what
 * remains of that state without the dead: the claims of the process that lives on (the scene's
 * own), and the facts in the namespaces that it has claimed. A reader without the lock, before the
 * sweep, may also see states between them, since a namespace ends fact by fact; but never one with
 * facts on which no process has a claim.
 */
#ifndef MD_TESTS_CRASH_ELECT_H
#define MD_TESTS_CRASH_ELECT_H

#include "crash_ops.h"
#include "crash_state.h"

/* --- what is left of a list ------------------------------------------------------------------- */

static size_t space_of(const char *record, md_record *r) {
    memcpy(r, record, sizeof *r);
    const char *name = record + sizeof *r;
    const char *end = memmem(name, r->name_len, "::", 2);
    return end ? (size_t)(end - name) : r->name_len;
}

/* Whether a process (0: any process) has a claim on a namespace in the latest list. */
static int is_claimed(const char *space, size_t len, uint32_t pid) {
    md_record r;
    for (size_t at = 0; at < listed_size; at += r.size) {
        memcpy(&r, listed + at, sizeof r);
        if (!r.size) break;
        if (r.kind == MD_CLAIM && (!pid || r.pid == pid) && r.name_len == len &&
            memcmp(listed + at + sizeof r, space, len) == 0)
            return 1;
    }
    return 0;
}

/* The hash of the latest list without the facts of the dead, which are all processes but one. Where
 * there is a main member, only claims and their own facts go with them. */
static uint64_t hash_for(uint32_t pid) {
    uint64_t h = 7;
    md_record r;
    for (size_t at = 0; at < listed_size; at += r.size) {
        size_t len = space_of(listed + at, &r);
        if (!CHECK(r.size)) break;
        int is_own = r.kind == MD_CLAIM || md__is_own(r.kind);
        int stays = is_own ? r.pid == pid
                           : !team_now || is_claimed(listed + at + sizeof r, len, pid);
        if (stays) h = hash_bytes(h, listed + at, r.size);
    }
    return h;
}

static void check_all_claimed(void) {
    md_record r;
    for (size_t at = 0; at < listed_size; at += r.size) {
        size_t len = space_of(listed + at, &r);
        if (!CHECK(r.size)) return;
        CHECK(is_claimed(listed + at + sizeof r, len, 0));
    }
}

/* --- operations ------------------------------------------------------------------------------- */

static int peer_claim(struct main_member m, const char *space) {
    char buf[BUF];
    return md_claim(m.reg, m.member, space, strlen(space), "t.c:1", 5, buf, sizeof buf);
}

static int peer_release(struct main_member m, const char *space) {
    return md_release(m.reg, m.member, space, strlen(space));
}

/* Short, so that it fits into a nearly full registry. */
static void peer_put(struct main_member m, const char *name, md_record *out) {
    OK(put_kind(m, MD_IMPL, MD_STACK, KEY, name, "", out));
}

static void claims_shop(struct main_member m) {
    int rc = peer_claim(m, "shop");
    CHECK(rc == 0 || rc == MD_EEXIST);
}

static void has_shop(struct main_member m) {
    OK(peer_claim(m, "shop"));
    peer_put(m, "shop::f", NULL);
}

static void has_a_full_shop(struct main_member m) {
    has_shop(m);
    peer_put(m, "shop::f", &facts[0]);
    peer_put(m, "shop::g", NULL);
    peer_put(m, "shop", NULL);
}

static void has_shop_and_more(struct main_member m) {
    has_shop(m);
    OK(peer_claim(m, "own"));
    peer_put(m, "own::f", NULL);
}

/* A registrar in a process of its own, to be killed later. */
static struct step registrar_ready;
static pid_t registrar;

static void be_a_registrar(void *arg) {
    struct main_member m = attach_as(address, MD_PEER);
    has_a_full_shop(m);
    step_give(registrar_ready);
    for (;;) pause();
}

static void a_registrar(struct main_member m) {
    registrar_ready = step_make();
    registrar = child(be_a_registrar, NULL);
    CHECK(step_take(registrar_ready));
    step_free(registrar_ready);
}

static void the_registrar_dies(struct main_member m) {
    kill_now(registrar);
}

static void a_dead_registrar(struct main_member m) {
    a_registrar(m);
    the_registrar_dies(m);
}

static void a_dead_registrar_before_me(struct main_member m) {
    a_registrar(m);
    EQ(peer_claim(m, "shop"), MD_EEXIST);
    the_registrar_dies(m);
}

static int claim_shop(struct main_member w, int call) {
    return peer_claim(w, "shop");
}
static int release_shop(struct main_member w, int call) {
    return peer_release(w, "shop");
}
static int register_in_shop(struct main_member w, int call) {
    return put_kind(w, MD_IMPL, MD_STACK, KEY, call ? "shop::g" : "shop::f", "", NULL);
}
static int leave_then_close(struct main_member w, int call) {
    return call == 0 ? md_leave(w.reg, w.member) : md_close(w.reg);
}
static int wait_or_register(struct main_member w, int call) {
    char buf[BUF];
    md_wait_stats stats = {0};
    int rc;
    do
        rc = md_await_or_elect(w.reg, w.member, MD_IMPL, KEY, 1, "shop::never", 11, MD_FOREVER, 0,
                               buf, sizeof buf, &stats);
    while (rc == MD_EINTR);
    return rc;
}

/* --- choices, beside a main member ------------------------------------------------------------ */

static int choose_as(struct main_member w, const char *name) {
    return put_kind(w, MD_CHOICE, MD_UNIQUE, 0, name, "", NULL);
}

static void one_choice(struct main_member m) {
    three_facts(m);
    OK(put_kind(m, MD_CHOICE, MD_UNIQUE, 0, "tile", "", &facts[3]));
}

/* A decider in a process of its own, to be killed later: one choice is made, another is not. */
static void be_a_decider(void *arg) {
    struct main_member w = attach_worker(address);
    OK(peer_claim(w, "tile"));
    OK(choose_as(w, "tile"));
    OK(peer_claim(w, "next"));
    step_give(registrar_ready);
    for (;;) pause();
}

static void a_decider(struct main_member m) {
    three_facts(m);
    registrar_ready = step_make();
    registrar = child(be_a_decider, NULL);
    CHECK(step_take(registrar_ready));
    step_free(registrar_ready);
}

static void a_dead_decider(struct main_member m) {
    a_decider(m);
    kill_now(registrar);
}

static void claims_next(struct main_member m) {
    int rc = peer_claim(m, "next");
    CHECK(rc == 0 || rc == MD_EEXIST);
}

static int claim_and_choose(struct main_member w, int call) {
    if (call == 0) return peer_claim(w, "tile");
    return call == 1 ? choose_as(w, "tile") : peer_release(w, "tile");
}
static int choose_again(struct main_member w, int call) {
    return choose_as(w, "tile");
}
static int withdraw(struct main_member w, int call) {
    return strike_out(w, &facts[3]);
}
static int wait_or_decide(struct main_member w, int call) {
    char buf[BUF];
    md_wait_stats stats = {0};
    int rc;
    do
        rc = md_await_or_elect(w.reg, w.member, MD_CHOICE, 0, 1, "next", 4, MD_FOREVER, 0, buf,
                               sizeof buf, &stats);
    while (rc == MD_EINTR);
    return rc;
}

static const struct op CHOOSES = {"claim of a turn, choice, release, by a worker",
                                  three_facts,
                                  claim_and_choose,
                                  3,
                                  WORKER,
                                  .room = ROOM};
static const struct op CHOSEN = {"choice where there is one", one_choice,  choose_again, 1, WORKER,
                                 .should = MD_EEXIST,         .room = ROOM};
static const struct op WITHDRAWN = {
    "withdrawal of another member's choice", one_choice, withdraw, 1, WORKER, .room = ROOM};
static const struct op SWEEP_DECIDER = {
    "join that sweeps a dead decider", a_dead_decider, join_as, 1, STRANGER, .room = ROOM};
static const struct op DECIDER_WAITER = {"wait that sweeps the decider and comes next",
                                         a_decider,
                                         wait_or_decide,
                                         1,
                                         WORKER,
                                         .should = MD_EELECTED,
                                         .room = ROOM,
                                         .ready = claims_next,
                                         .then = the_registrar_dies};

/* --- facts of a member's own ------------------------------------------------------------------ */

static int note_or_type(struct main_member w, int call) {
    return put_kind(w, call ? MD_TYPE : MD_NOTE, MD_UNIQUE, 0, call ? "own" : "n", "", NULL);
}
static int priority_or_standing(struct main_member w, int call) {
    return put_kind(w, call ? MD_STANDING : MD_PRIORITY, MD_STACK, 0, call ? "host" : "n", "", NULL);
}
static void has_own_facts(struct main_member w) {
    OK(note_or_type(w, 0));
    OK(note_or_type(w, 1));
}

/* A worker with facts of its own in a process of its own, to be killed later. */
static void be_an_owner(void *arg) {
    has_own_facts(attach_worker(address));
    step_give(registrar_ready);
    for (;;) pause();
}

static void an_owner(struct main_member m) {
    three_facts(m);
    registrar_ready = step_make();
    registrar = child(be_an_owner, NULL);
    CHECK(step_take(registrar_ready));
    step_free(registrar_ready);
}

static void a_dead_owner(struct main_member m) {
    an_owner(m);
    kill_now(registrar);
}

static const struct op OF_OTHER_KINDS = {
    "registration of a priority, then of a standing", three_facts, priority_or_standing, 2,
    .room = ROOM};
static const struct op OWN = {"note, then type, a worker's own", three_facts, note_or_type, 2, WORKER,
                              .room = ROOM};
static const struct op OWN_AFTER_ANOTHERS = {
    "note of a worker that has to sweep another one's, then type",
    an_owner,
    note_or_type,
    2,
    WORKER,
    .room = ROOM,
    .then = the_registrar_dies};
static const struct op LEAVE_OWN = {"leave of a worker with facts of its own, then close",
                                    three_facts,
                                    leave_then_close,
                                    2,
                                    WORKER,
                                    .room = ROOM,
                                    .ready = has_own_facts};
static const struct op SWEEP_OWN = {"join that sweeps a dead worker with facts of its own",
                                    a_dead_owner,
                                    join_as,
                                    1,
                                    STRANGER,
                                    .room = ROOM};

#define TEAM .team = 1, .room = ROOM
static const struct op CLAIM = {"first claim of a namespace", NULL, claim_shop, 1, TEAM};
static const struct op SECOND_CLAIM = {
    "another claim of a namespace", has_shop, claim_shop, 1, .should = MD_EEXIST, TEAM};
static const struct op RELEASE = {"release of one claim of two", has_shop, release_shop, 1,
                                  .ready = claims_shop,          TEAM};
static const struct op HAND_ON = {"release by the registrar, another one is next",
                                  NULL,
                                  release_shop,
                                  1,
                                  .ready = has_a_full_shop,
                                  .then = claims_shop,
                                  TEAM};
static const struct op LAST_RELEASE = {"release of the last claim, with facts of three names",
                                       NULL,
                                       release_shop,
                                       1,
                                       .ready = has_a_full_shop,
                                       TEAM};
static const struct op BY_REGISTRAR = {"two registrations by the registrar",
                                       NULL,
                                       register_in_shop,
                                       2,
                                       .ready = has_shop,
                                       .then = claims_shop,
                                       TEAM};
static const struct op BY_THE_NEXT = {"registration by who has to sweep the registrar first",
                                      a_registrar,
                                      register_in_shop,
                                      1,
                                      .ready = claims_shop,
                                      .then = the_registrar_dies,
                                      TEAM};
static const struct op SOLE_STRIKE = {"strike by who alone has a claim", NULL, strike_oldest, 1,
                                      .ready = has_a_full_shop,          TEAM};
static const struct op LEAVE_CLAIMS = {"leave with two claims, of one the last, then close",
                                       NULL,
                                       leave_then_close,
                                       2,
                                       .ready = has_shop_and_more,
                                       .then = claims_shop,
                                       TEAM};
static const struct op CLOSE_CLAIMS = {"close with two claims without leaving",
                                       NULL,
                                       close_only,
                                       2,
                                       .ready = has_shop_and_more,
                                       .then = claims_shop,
                                       TEAM};
static const struct op SWEEP_NEXT = {"join that sweeps a dead registrar, another one is next",
                                     a_dead_registrar_before_me,
                                     join_as,
                                     1,
                                     STRANGER,
                                     TEAM};
static const struct op SWEEP_LAST = {"join that sweeps a dead registrar, the only one",
                                     a_dead_registrar,
                                     join_as,
                                     1,
                                     STRANGER,
                                     TEAM};
static const struct op WAITER_SWEEPS = {"wait that sweeps the registrar and comes next",
                                        a_registrar,
                                        wait_or_register,
                                        1,
                                        .should = MD_EELECTED,
                                        .ready = claims_shop,
                                        .then = the_registrar_dies,
                                        TEAM};

static const struct death KILLED_CLAIMS[] = {{&CLAIM, 1, 2},
                                             {0},
                                             {&LAST_RELEASE, 1, 3},
                                             {0},
                                             {&LAST_RELEASE, 2, 3},
                                             {0},
                                             {&LEAVE_CLAIMS, 1, 2},
                                             {0},
                                             {&SWEEP_LAST, 1, 2},
                                             {0},
                                             {&SWEEP_NEXT, 1, 2},
                                             {0},
                                             {&LAST_RELEASE, 1, 2},
                                             {&RECOVERY, 1, 2},
                                             {0},
                                             {0}};

#endif
