/* roles.h - what the victims do until they are killed.
 *
 * Every call that a role makes stands between inside() and outside(), so that the watchdog can name
 * it. A role ends by itself only when the main member is gone. Only a main member may register, so
 * registrars and closers are made to write as it does (promote, in test.h): then writers can die
 * and the registry lives on. The main member does the same work in its own right, and its death
 * ends the registry.
 */
#ifndef MD_STRESS_ROLES_H
#define MD_STRESS_ROLES_H

#include "board.h"

struct victim {
    md_registry reg;
    uint64_t member;
    uint64_t random;
    uint64_t other_random; /* of a waiter's other thread */
    md__u64 cancel_began;  /* shared by those two threads, like `ticket` */
    md__u64 ticket;
};

static bool gone(void) {
    return md__read64(&shown->main_gone) != 0;
}

/* Whether to go on after a call. It may answer that the main member is gone only if it is gone. */
static bool goes_on(int rc) {
    if (rc == 0) return true;
    if ((rc != MD_EDIED && rc != MD_ECLOSED) || !gone())
        fail("answered %d (%s), errno %d", rc, md_status_text(rc), md_status_errno(rc));
    return false;
}

static bool enter_registry(struct victim *v, int64_t interp) {
    uint32_t role;
    inside(JOIN);
    int rc = md_join(v->reg, interp, &v->member, &role);
    outside();
    if (rc == 0 && role != MD_WORKER) fail("a second main member");
    return goes_on(rc);
}

/* Makes room for the others: processors are few, and a process needs one to die, too. */
static void breathe(struct victim *v) {
    struct timespec pause = {.tv_nsec = (long)below(&v->random, 1000000)};
    if (below(&v->random, 64) == 0) nanosleep(&pause, NULL);
}

/* --- roles that change facts ------------------------------------------------------------------ */

static uint32_t some_place(struct victim *v) {
    return below(&v->random, 6) ? below(&v->random, HOT) : HOT + below(&v->random, PLACES - HOT);
}

static bool put_one(struct victim *v) {
    uint32_t number = some_place(v);
    place *p = &shown->places[number];
    uint64_t word;
    struct body body;
    char name[16], buf[BUF];
    md_record r;
    if (!claim(p, EMPTY, PUTTING, &word)) return true;
    uint32_t rule = number % 3 ? MD_STACK : MD_UNIQUE;
    if (number % 7 == 0) rule |= MD_RAISE_ALL;
    name_of(number, name);
    size_t size = make_body(&body, number, below(&v->random, FILLER));
    inside(PUT);
    int rc = md_register(v->reg, v->member, MD_IMPL, rule, (int32_t)number, name, strlen(name),
                         (char *)&body, size, "kill.c:1", 8, buf, sizeof buf);
    outside();
    if (rc == 0) {
        memcpy(&r, buf, sizeof r);
        count(&shown->acknowledged);
    }
    settle(p, word, rc == 0 ? &r : NULL);
    return goes_on(rc);
}

static bool strike_one(struct victim *v) {
    place *p = &shown->places[some_place(v)];
    uint64_t word;
    if (!claim(p, LIVE, STRIKING, &word)) return true;
    inside(STRIKE);
    int rc = md_strike(v->reg, v->member, md__peek64(&p->ref), md__peek64(&p->seq));
    outside();
    md_record still = {.ref = md__peek64(&p->ref), .seq = md__peek64(&p->seq)};
    settle(p, word, rc == 0 ? NULL : &still);
    return goes_on(rc);
}

static void be_registrar(struct victim *v) {
    promote(v->reg, v->member);
    while (!gone() && put_one(v)) breathe(v);
}

static void be_closer(struct victim *v) {
    promote(v->reg, v->member);
    while (!gone() && strike_one(v)) breathe(v);
}

static void be_main(struct victim *v) {
    uint32_t role;
    inside(CREATE);
    int rc = md_create(shown->name, CAPACITY, &v->reg);
    outside();
    if (!goes_on(rc)) return;
    inside(JOIN);
    rc = md_join(v->reg, 0, &v->member, &role);
    outside();
    if (goes_on(rc) && role != MD_MAIN) fail("the creator is not the main member");
    for (; rc == 0 && !md__read32(&shown->leave); breathe(v))
        if (!(below(&v->random, 2) ? put_one(v) : strike_one(v))) return;
    md__publish64(&shown->main_gone, (uint64_t)md_now());
    inside(LEAVE);
    rc = md_leave(v->reg, v->member);
    outside();
    if (goes_on(rc)) goes_on(md_close(v->reg));
}

/* --- roles that wait -------------------------------------------------------------------------- */

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Notes a wait that ended without reaching its goal. Returns whether to go on. */
static bool note_end(int rc, uint64_t began, int64_t deadline, uint64_t returned, uint64_t queued) {
    uint64_t main_gone = md__read64(&shown->main_gone);
    if (rc == MD_ETIMEDOUT && deadline != MD_FOREVER && returned >= (uint64_t)deadline) {
        note_wait_time(DEADLINE, later(began, (uint64_t)deadline), returned, queued);
        return true;
    }
    if ((rc == MD_EDIED || rc == MD_ECLOSED) && main_gone) {
        note_wait_time(rc == MD_EDIED ? MAIN_DIED : MAIN_LEFT, later(began, main_gone), returned,
                       queued);
        return false;
    }
    return goes_on(rc);
}

/* A deadline within milliseconds, or none. `awaited` tells the watchdog how long a wait without one
 * may last. */
static int64_t some_deadline(struct victim *v) {
    if (below(&v->random, 4) == 0) return MD_FOREVER;
    return md_now() + (int64_t)below(&v->random, below(&v->random, 8) ? 3000000 : 150000000);
}

static bool wait_once(struct victim *v, uint64_t ticket) {
    uint32_t number = gone() ? NEVER : below(&v->random, HOT);
    char name[16], buf[BUF];
    md_wait_stats stats = {0};
    int64_t deadline = some_deadline(v);
    uint64_t queued = queued_ns(), began = (uint64_t)md_now();
    int rc;
    name_of(number, name);
    md__poke32(&self->awaited, deadline == MD_FOREVER && number != NEVER ? number + 1 : 0);
    inside(WAIT);
    do
        rc = md_await(v->reg, v->member, MD_IMPL, (int32_t)number, 1, name, strlen(name), deadline,
                      ticket, buf, sizeof buf, &stats);
    while (rc == MD_EINTR && md__on_main_thread());
    uint64_t returned = (uint64_t)md_now();
    outside();
    queued = queued_ns() - queued;
    if (rc == 0) {
        note_wait_time(FACT, later(began, read_body(buf, number)), returned, queued);
    } else if (rc == MD_ECANCELED && ticket) {
        note_wait_time(CANCEL, later(began, md__read64(&v->cancel_began)), returned, queued);
    } else {
        return note_end(rc, began, deadline, returned, queued);
    }
    return true;
}

static void *wait_in_thread(void *arg) {
    struct victim *v = arg;
    for (uint64_t ticket = 1; !gone() && wait_once(v, ticket); ticket++)
        md__publish64(&v->ticket, ticket + 1);
    md__publish64(&v->ticket, 0);
    return NULL;
}

/* Now and then the main thread of such a waiter cancels the wait of its other thread. If that wait
 * is not under way, the cancel does nothing. */
static void wait_and_cancel(struct victim *v) {
    pthread_t thread;
    v->other_random = v->random + 1;
    md__publish64(&v->ticket, 1);
    if (pthread_create(&thread, NULL, wait_in_thread, v)) return;
    for (uint64_t ticket; (ticket = md__read64(&v->ticket)) != 0;) {
        struct timespec pause = {.tv_nsec = (long)below(&v->other_random, 4000000)};
        md__publish64(&v->cancel_began, (uint64_t)md_now());
        md_cancel(v->reg, v->member, ticket);
        nanosleep(&pause, NULL);
    }
    pthread_join(thread, NULL);
}

static void be_waiter(struct victim *v) {
    if (below(&v->random, 4) == 0) {
        wait_and_cancel(v);
        return;
    }
    /* Not "while (!gone())": the wait itself must tell that the main member is gone. */
    while (wait_once(v, 0)) {}
}

/* When the registration of the fact that raised the sequence began; 0 when that fact is gone again.
 */
static uint64_t began_of(struct victim *v, uint64_t seq) {
    static char buf[1 << 16];
    size_t size;
    uint64_t live;
    md_record r;
    if (md_list_since(v->reg, 0, seq, buf, sizeof buf, &size, &live)) return 0;
    for (size_t at = 0; at < size; at += r.size) {
        memcpy(&r, buf + at, sizeof r);
        if (r.seq == seq) return read_body(buf + at, PLACES);
    }
    return 0;
}

static void be_listener(struct victim *v) {
    uint64_t seq = 0, now = 0;
    for (bool go = true; go; seq = now) {
        md_wait_stats stats = {0};
        int64_t deadline = below(&v->random, 2) ? MD_FOREVER : md_now() + 2000000;
        uint64_t queued = queued_ns(), began = (uint64_t)md_now();
        int rc;
        md__poke32(&self->awaited, 0);
        inside(LISTEN);
        do rc = md_await_change(v->reg, v->member, seq, deadline, 0, &now, &stats);
        while (rc == MD_EINTR);
        uint64_t returned = (uint64_t)md_now();
        outside();
        queued = queued_ns() - queued;
        if (rc == 0 && (now == 0 || now < seq))
            fail("the sequence went from %llu to %llu", (unsigned long long)seq,
                 (unsigned long long)now);
        uint64_t first = rc == 0 && seq ? began_of(v, seq) : 0;
        if (first) note_wait_time(CHANGE, later(began, first), returned, queued);
        if (rc) go = note_end(rc, began, deadline, returned, queued);
    }
}

/* --- roles that look, come and go ------------------------------------------------------------- */

static void be_reader(struct victim *v) {
    static char buf[1 << 18];
    size_t size;
    uint64_t version, node, live;
    char name[16];
    for (; !gone(); breathe(v)) {
        inside(FIND);
        verify_place(v->reg, some_place(v));
        outside();
        if (below(&v->random, 8)) continue;
        inside(LIST);
        name_of(below(&v->random, HOT), name);
        int rc = below(&v->random, 2)
                     ? md_list(v->reg, name, strlen(name), buf, sizeof buf, &size, &version, &node)
                     : md_list_since(v->reg, MD_IMPL, 0, buf, sizeof buf, &size, &live);
        if (rc == 0) {
            md_record r;
            for (size_t at = 0; at < size; at += r.size) {
                memcpy(&r, buf + at, sizeof r);
                read_body(buf + at, PLACES);
            }
        }
        outside();
        if (rc != MD_ENOBUFS && !goes_on(rc)) return;
    }
}

static void check_now(md_registry reg) {
    char words[2048] = "";
    inside(LOOK);
    int rc = md_check(reg, words, sizeof words);
    if (rc) fail("broken invariants (%s):\n%s", md_status_text(rc), words);
    outside();
}

/* Every join sweeps the dead. */
static void be_sweeper(struct victim *v) {
    static md_member_info infos[MD_MAX_MEMBERS];
    size_t count;
    md_stats stats;
    for (; !gone(); breathe(v)) {
        if (!enter_registry(v, 5)) return;
        check_now(v->reg);
        inside(LOOK);
        int rc = md_members(v->reg, infos, MD_MAX_MEMBERS, &count);
        if (rc == 0) rc = md_stat(v->reg, &stats);
        outside();
        if (!goes_on(rc)) return;
        inside(LEAVE);
        rc = md_leave(v->reg, v->member);
        outside();
        if (!goes_on(rc)) return;
    }
}

static void *join_some(void *arg) {
    struct victim *v = arg;
    uint64_t members[4];
    uint32_t role, n = 1 + below(&v->random, 4);
    for (uint32_t i = 0; i < n; i++) {
        inside(JOIN);
        int rc = md_join(v->reg, 10 + i, &members[i], &role);
        outside();
        if (!goes_on(rc)) return NULL;
    }
    for (uint32_t i = below(&v->random, 2); i < n; i++) { /* the close ends those who remain */
        inside(LEAVE);
        int rc = md_leave(v->reg, members[i]);
        outside();
        if (!goes_on(rc)) return NULL;
    }
    return arg;
}

/* Opens, joins with several interpreters, leaves, closes. Sometimes it joins and leaves in another
 * thread; then a thread of the library holds the lease. */
static void be_joiner(struct victim *v) {
    pthread_t thread;
    void *good = v;
    md_close(v->reg);
    for (; !gone() && good; breathe(v)) {
        inside(ATTACH);
        int rc = md_attach(shown->name, 0, &v->reg);
        outside();
        if (rc == MD_ENOENT && gone()) return;
        if (!goes_on(rc)) return;
        if (below(&v->random, 4))
            good = join_some(v);
        else if (pthread_create(&thread, NULL, join_some, v) == 0)
            pthread_join(thread, &good);
        inside(CLOSE);
        rc = md_close(v->reg);
        outside();
        if (rc) fail("closing its only opening gave %s", md_status_text(rc));
    }
}

/* Attaches by name. It outlives the main members, and finds the registry of the next one. */
static void be_attacher(struct victim *v) {
    md_close(v->reg);
    for (;; breathe(v)) {
        inside(ATTACH);
        int rc = md_attach(shown->name, md_now() + 2000000000, &v->reg);
        outside();
        if (rc == MD_ENOENT || rc == MD_EDIED || rc == MD_ECLOSED || rc == MD_EINTR) continue;
        if (rc) fail("answered %d (%s)", rc, md_status_text(rc));
        char buf[BUF];
        uint32_t role;
        inside(FIND);
        rc = find_place(v->reg, below(&v->random, HOT), buf);
        if (rc == 0) read_body(buf, PLACES);
        outside();
        if (rc && rc != MD_ENOENT) fail("answered %d (%s)", rc, md_status_text(rc));
        inside(JOIN);
        rc = md_join(v->reg, 0, &v->member, &role);
        if (rc && rc != MD_ECLOSED) fail("answered %d (%s)", rc, md_status_text(rc));
        if (rc == 0 && role != MD_WORKER) fail("a second main member");
        outside();
        inside(CLOSE);
        md_close(v->reg);
        outside();
    }
}

/* A worker begins as a child of fork that inherited the registry. Or it closes that and finds the
 * registry by its name, as a stranger does. */
static void be_worker(enum role role, struct victim *v) {
    static void (*const BODIES[ROLES])(struct victim *) = {
        [REGISTRAR] = be_registrar, [CLOSER] = be_closer,     [WAITER] = be_waiter,
        [READER] = be_reader,       [SWEEPER] = be_sweeper,   [JOINER] = be_joiner,
        [ATTACHER] = be_attacher,   [LISTENER] = be_listener,
    };
    bool alone = role == SWEEPER || role == JOINER || role == ATTACHER;
    if (!alone && below(&v->random, 2)) {
        md_close(v->reg);
        inside(ATTACH);
        int rc = md_attach(shown->name, 0, &v->reg);
        outside();
        if (rc == MD_ENOENT && gone()) return;
        if (!goes_on(rc)) return;
    }
    if (!alone && !enter_registry(v, 0)) return;
    BODIES[role](v);
}

#endif
