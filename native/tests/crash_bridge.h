/* crash_bridge.h - the operations of bridges (Note [Claims] in claims.c) in which every death is tried.
 *
 * The scene's own member is a bridge, and was the host's for as long as it took to register three facts
 * and to fill the registry. Facts stay whoever dies, but for the claims of the dead.
 */
#ifndef MD_TESTS_CRASH_BRIDGE_H
#define MD_TESTS_CRASH_BRIDGE_H

#include "crash_elect.h"

static const char QUEUE[] = "mdispatch.bridge";

static void queues_up(struct main_member m) {
    int rc = peer_claim(m, QUEUE);
    CHECK(rc == 0 || rc == MD_EEXIST);
}

static void is_the_bridge(struct main_member m) {
    OK(peer_claim(m, QUEUE));
}

/* A bridge in a process of its own, to be killed later. It has registered part of a batch. */
static void be_a_bridge(void *arg) {
    struct main_member m = attach_worker(address);
    m.member = join(m.reg, MD_AS_BRIDGE, MD_BRIDGE);
    OK(peer_claim(m, QUEUE));
    OK(put_body(m, "n", "D", NULL));
    step_give(registrar_ready);
    for (;;) pause();
}

static void another_bridge(struct main_member m) {
    registrar_ready = step_make();
    registrar = child(be_a_bridge, NULL);
    CHECK(step_take(registrar_ready));
    step_free(registrar_ready);
}

static void a_dead_bridge_before_me(struct main_member m) {
    another_bridge(m);
    EQ(peer_claim(m, QUEUE), MD_EEXIST);
    kill_now(registrar);
}

static int queue_up(struct main_member w, int call) {
    return peer_claim(w, QUEUE);
}
static int two_of_a_batch(struct main_member w, int call) {
    return put_body(w, call ? "fresh" : "n", "E", NULL);
}
static int wait_for_the_turn(struct main_member w, int call) {
    char buf[BUF];
    md_wait_stats stats = {0};
    int rc;
    do
        rc = md_await_or_elect(w.reg, w.member, MD_LIBRARY, 0, 1, "mdispatch.bridge::turn", 22,
                               MD_FOREVER, 0, buf, sizeof buf, &stats);
    while (rc == MD_EINTR);
    return rc;
}

#define HOST .host = 1, .room = ROOM
static const struct op FIRST_BRIDGE = {"a bridge queues up, the first", NULL, queue_up, 1,
                                       HOST};
static const struct op BRIDGE_IN_WAITING = {
    "a bridge queues up behind another", is_the_bridge, queue_up, 1, .should = MD_EEXIST, HOST};
static const struct op BY_BRIDGE = {"two registrations by a bridge, another one waits",
                                    NULL,
                                    two_of_a_batch,
                                    2,
                                    .ready = queues_up,
                                    .then = queues_up,
                                    HOST};
static const struct op STRIKE_BY_BRIDGE = {"strike by a bridge, another one waits",
                                           NULL,
                                           strike_middle,
                                           1,
                                           .ready = queues_up,
                                           .then = queues_up,
                                           HOST};
static const struct op BY_NEXT_BRIDGE = {"registration by a bridge that has to sweep the last one",
                                         another_bridge,
                                         two_of_a_batch,
                                         1,
                                         .ready = queues_up,
                                         .then = the_registrar_dies,
                                         HOST};
static const struct op BRIDGE_LEAVES = {"leave of a bridge, then close, another one waits",
                                        NULL,
                                        leave_then_close,
                                        2,
                                        .ready = queues_up,
                                        .then = queues_up,
                                        HOST};
static const struct op LAST_BRIDGE_LEAVES = {"leave of the only bridge, then close",
                                             NULL,
                                             leave_then_close,
                                             2,
                                             .ready = queues_up,
                                             HOST};
static const struct op SWEEP_BRIDGE = {"join that sweeps a dead bridge, another one is next",
                                       a_dead_bridge_before_me,
                                       join_as,
                                       1,
                                       STRANGER,
                                       HOST};
static const struct op BRIDGE_WAITER = {"wait that sweeps the bridge and comes next",
                                        another_bridge,
                                        wait_for_the_turn,
                                        1,
                                        .should = MD_EELECTED,
                                        .ready = queues_up,
                                        .then = the_registrar_dies,
                                        HOST};

#endif
