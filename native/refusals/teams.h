/* teams.h - more scenarios: looks from outside, remains of dead processes, and registries without a
 * main member. */
#ifndef MD_REFUSALS_TEAMS_H
#define MD_REFUSALS_TEAMS_H

/* --- from outside ----------------------------------------------------------------------------- */

static md_inspection seen;

static int look_at(const char *address, int should) {
    md_member_info infos[4];
    size_t n;
    return LOOK(INSPECTS, should, md_inspect(address, &seen, infos, 4, &n));
}

static void a_folder_that_lacks_a_right(void) {
    char path[64];
    md__file_path(path, sizeof path, "");
    chmod(path, 0500); /* as a umask may leave it; the next process that opens it mends it */
    reg = make(name, 0);
    leave(reg, enter(reg, 0, MD_MAIN));
    let_go(reg);
    chmod(path, 0700);
}

static void a_look_from_outside(void) {
    char folder[MD_MAX_ADDRESS];
    if (look_at(name, 0) == 0) {
        EQ(seen.attach, 0);
        EQ(seen.alive, 1);
        CHECK(seen.torn || seen.kinds[MD_IMPL] == 1);
        CHECK(!seen.torn || shim.has_refused()); /* torn: a read was refused */
    }
    LOOK(FOLDERS, 0, md_folder(folder, sizeof folder));
    LOOK(ORIGINS, 0, md_origin(name, folder, sizeof folder));
    LOOK(ORIGINS, 0, md_origin(NULL, folder, sizeof folder));
    LOOK(REAPS, MD_EEXIST, md_reap(name));
    look_at(name, 0); /* it is still there */
}

static void a_look_by_address(void) {
    if (look_at(server.address, 0) == 0) EQ(seen.alive, 1);
}

/* If the answer is that the registry could not be removed, it is still there and can be removed. */
static void is_removed(void) {
    int rc = CHANGE(0, REAPS, 0, md_reap(name));
    shim.pause();
    int again = md_reap(name);
    CHECK(again == MD_ENOENT || (rc && again == 0));
    shim.go_on();
    remove_name();
}

static void a_dead_registry_is_removed(void) {
    reap(child(die_as_main, NULL));
    is_removed();
}

/* --- teams ------------------------------------------------------------------------------------ */

static void join_team(const char *called) {
    reg = 0;
    CHANGE(0, ELECTS, 0, md_elect(called, SIZE, &reg));
    member = enter(reg, 0, MD_PEER);
}

/* An answer that says "wait for your turn" is no refusal. */
static int queue_up(int should) {
    int rc = md_claim(reg, member, "n", 1, "t.c:2", 5, packed, sizeof packed);
    return rc == should ? 0 : rc;
}

static void claim(int should) {
    CHANGE(reg, CLAIMS, 0, queue_up(should));
}

static int wait_or_elect(int32_t key, int64_t deadline, int should) {
    md_wait_stats stats = {0};
    int rc;
    do
        rc = md_await_or_elect(reg, member, MD_IMPL, key, 1, "n", 1, deadline, 5, packed,
                               sizeof packed, &stats);
    while (rc == MD_EINTR);
    return LOOK(AWAITS | S(MD_EELECTED), should, rc);
}

static void use_as_peer(void) {
    claim(0);
    fact = add(reg, member, MD_UNIQUE, KEY, "A", 1, 0);
    wait_or_elect(KEY, soon(), 0);
    wait_or_elect(11, soon(), MD_EELECTED);
    take(reg, member, &fact, 0);
    CHANGE(reg, RELEASES, 0, md_release(reg, member, "n", 1));
    CHANGE(reg, RELEASES, MD_ENOENT, md_release(reg, member, "n", 1));
    wait_or_elect(11, md_now() + 2000000, MD_ETIMEDOUT);
    claim(0);
    leave(reg, member);
    let_go(reg);
}

static void a_team(void) {
    join_team(name);
    look_at(name, reg ? 0 : MD_ENOENT);
    use_as_peer();
    remove_name(); /* nobody removes the name of a team that could not be joined */
}

static void a_team_without_a_name(void) {
    join_team(NULL);
    use_as_peer();
}

static void the_default_registry_of_a_team(void) {
    char address[MD_MAX_ADDRESS];
    snprintf(address, sizeof address, MD__ELECT "%s", name);
    reg = other = 0;
    CHANGE(0, ELECTS, 0, md_open_default(address, &reg));
    CHANGE(reg, ELECTS, 0, md_open_default("", &other));
    member = enter(reg, 0, MD_PEER);
    claim(0);
    leave(reg, member);
    let_go(other);
    let_go(reg);
    remove_name();
}

static void die_as_team(void *arg) {
    const struct step *ready = arg;
    shim.pause();
    join_team(name);
    claim(0);
    if (ready) {
        step_give(ready[0]);
        step_take(ready[1]);
    }
    kill(getpid(), SIGKILL);
}

static void a_dead_team_makes_room(void) {
    reap(child(die_as_team, NULL));
    LOOK(ATTACHES, MD_EDIED, md_attach(name, 0, &other));
    reg = 0;
    LOOK(ELECTS, 0, md_elect(name, SIZE, &reg)); /* refused: perhaps removed the dead one */
    member = enter(reg, 0, MD_PEER);
    claim(0);
    let_go(reg);
    remove_name();
}

static void a_dead_team_is_removed(void) {
    reap(child(die_as_team, NULL));
    is_removed();
}

static struct step death[2];
static void let_it_die(void) {
    step_give(death[1]);
}

/* When the registrar dies, the turn comes to the waiter. */
static void a_registrar_that_dies(void) {
    struct meanwhile m;
    death[0] = step_make();
    death[1] = step_make();
    pid_t pid = child(die_as_team, death);
    step_take(death[0]);
    join_team(name);
    claim(MD_EEXIST);
    begin_meanwhile(&m, let_it_die, SYS_futex, 449);
    wait_or_elect(KEY, soon(), MD_EELECTED);
    end_meanwhile(&m);
    EQ(reap(pid), -SIGKILL);
    add(reg, member, MD_UNIQUE, KEY, "A", 1, 0);
    leave(reg, member);
    let_go(reg);
    step_free(death[0]);
    step_free(death[1]);
    remove_name();
}

static void die_with_the_lock(void *arg) {
    md__reg *inside;
    shim.pause();
    if (md__enter(reg, &inside) == 0) OK(md__lock(inside));
    kill(getpid(), SIGKILL);
}

static void a_lock_whose_holder_died(void) {
    make_and_enter();
    if (reg) reap(child(die_with_the_lock, NULL));
    add(reg, member, MD_UNIQUE, KEY, "A", 1, 0);
    leave(reg, member);
    let_go(reg);
}

#endif
