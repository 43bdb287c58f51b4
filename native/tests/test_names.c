/* Names that come and go: their places serve others, and readers, waiters and holders of version
 * words are right all the while. See Note [Names are given back] in index.c. */
#include "between.h"

enum { SIZE = MD__MIN_CAPACITY + (1 << 18), MASK = (1 << MD__FIRST_INDEX_LOG2) - 1 };

static struct main_member m;
static md__reg *reg;

static void open_it(void) {
    m = open_main(NULL, SIZE);
    OK(md__enter(m.reg, &reg));
    md__exit(reg);
}

static uint32_t home_of(const char *name) {
    return md__hash(name, strlen(name)) & MASK;
}

/* The next name of that length whose home in the index is this one. */
static void name_at(uint32_t home, size_t len, char name[32]) {
    static unsigned number;
    do snprintf(name, 32, "%0*u", (int)len, number++ % 100000000);
    while (home_of(name) != home);
}

static md_stats stats(void) {
    md_stats s;
    OK(md_stat(m.reg, &s));
    return s;
}

/* --- memory ----------------------------------------------------------------------------------- */

static long resident_kib(void) {
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Eight live at a time, of all lengths. The same lengths come again and again. */
TEST(names_without_end_need_bounded_memory) {
    enum { LIVE = 8, LENGTHS = 61 };
    static char name[MD_MAX_NAME + 1], buf[BUF];
    md_record live[LIVE] = {{0}};
    int times = rounds(200000);
    md_stats early = {0}, late;
    open_it();
    memset(name, 'n', sizeof name);
    for (int i = 0; i < times; i++) {
        md_record *r = &live[i % LIVE];
        size_t len = 10 + (size_t)(i % LENGTHS) * (MD_MAX_NAME - 10) / (LENGTHS - 1);
        snprintf(name, sizeof name, "%09d", i);
        name[9] = 'n';
        if (r->seq) OK(strike_out(m, r));
        if (!OK(md_register(m.reg, m.member, MD_DEF, MD_UNIQUE, 0, name, len, "b", 1, "w", 1, buf,
                            sizeof buf)))
            break;
        memcpy(r, buf, sizeof *r);
        if (i == times / 10) early = stats();
    }
    late = stats();
    EQ(late.names, LIVE);
    EQ(late.facts, LIVE);
    EQ(late.committed, early.committed);
    EQ(late.used, early.used);
    EQ(late.names + late.idle, early.names + early.idle);
    printf("       %d names: %llu bytes in use, %ld KiB resident; a tenth of them: %llu bytes\n",
           times, (unsigned long long)late.used, resident_kib(), (unsigned long long)early.used);
    close_main(m);
}

TEST(what_a_refused_name_had_taken_is_idle_again) {
    char buf[16];
    md_record r;
    open_it();
    OK(put(m, MD_STACK, "ended", KEY, "b", &r));
    OK(strike_out(m, &r));
    EQ(stats().names, 0);
    EQ(stats().idle, 1);
    md_stats before = stats();
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, "other", 5, "b", 1, "", 0, buf,
                   sizeof buf),
       MD_ENOBUFS);
    md_stats after = stats();
    EQ(memcmp(&before, &after, sizeof after), 0);
    check_whole(m.reg);
    OK(put(m, MD_STACK, "other", KEY, "b", NULL));
    EQ(stats().idle, 0);
    EQ(find(m.reg, "ended", KEY, NULL, 0), MD_ENOENT);
    OK(find(m.reg, "other", KEY, NULL, 0));
    close_main(m);
}

/* --- words ------------------------------------------------------------------------------------ */

static uint64_t place_of(const char *name, uint64_t *version) {
    char buf[BUF];
    size_t size;
    uint64_t node = 0;
    OK(md_list(m.reg, name, strlen(name), buf, sizeof buf, &size, version, &node));
    return node;
}

TEST(a_word_that_was_a_names_never_returns_to_a_value_that_it_had) {
    char name[32];
    const uint64_t *word;
    uint64_t version, last = 0, first_place = 0;
    md_record r;
    open_it();
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "name%d", i % 7);
        EQ(place_of(name, &version), 0);
        EQ(version, 0);
        OK(put(m, MD_STACK, name, KEY, "b", &r));
        uint64_t place = place_of(name, &version);
        if (!first_place) {
            first_place = place;
            OK(md_word(m.reg, place, &word));
        }
        EQ(place, first_place); /* it has one place, which serves all seven names */
        CHECK(version > last);
        EQ(*word, version);
        last = version;
        OK(strike_out(m, &r));
        CHECK(*word > last);
        last = *word;
        OK(md_version(m.reg, place, &version)); /* also while it has no name */
        EQ(version, last);
        OK(md_word(m.reg, place, &word));
    }
    close_main(m);
}

/* --- between any two instructions of a reader ------------------------------------------------- */

static char staying[32], going[32], coming[32];
static md_record gone, stayed;
static int rc;
static char seen[BUF];
static size_t seen_size;
static uint64_t seen_version, seen_node;

/* Its entry lies behind that of the name that goes, at the end of the array and on to its
 * beginning. */
static void open_for_three_names(void) {
    open_it();
    name_at(MASK, 8, going);
    name_at(MASK, 8, staying);
    name_at(MASK, 8, coming);
}
static void put_two_names(void) {
    OK(put(m, MD_STACK, going, KEY, "gone", &gone));
    OK(put(m, MD_STACK, staying, KEY, "stays", &stayed));
    rc = -100;
}
static void strike_all_names(void) {
    char all[BUF];
    size_t size;
    uint64_t version, node;
    md_record r;
    check_whole(m.reg);
    OK(md_list(m.reg, NULL, 0, all, sizeof all, &size, &version, &node));
    for (size_t at = 0; at < size; at += r.size) {
        memcpy(&r, all + at, sizeof r);
        OK(strike_out(m, &r));
    }
}
static void end_it(void) {
    OK(strike_out(m, &gone));
}
static void end_it_and_begin_another(void) {
    end_it();
    OK(put(m, MD_STACK, coming, KEY, "came", NULL));
}
static void find_the_one_that_stays(void) {
    rc = md_find(m.reg, MD_IMPL, KEY, staying, 8, seen, sizeof seen);
}
static int is_body(const char *body) {
    return memcmp(seen + sizeof(md_record) + 8, body, strlen(body)) == 0;
}
static void check_that_it_is_found(void) {
    OK(rc);
    CHECK(is_body("stays"));
    strike_all_names();
}
static void find_the_one_that_goes(void) {
    rc = md_find(m.reg, MD_IMPL, KEY, going, 8, seen, sizeof seen);
}
static void check_it_or_nothing(void) {
    CHECK(rc == MD_ENOENT || (rc == 0 && is_body("gone")));
    strike_all_names();
}
static void list_the_one_that_goes(void) {
    rc = md_list(m.reg, going, 8, seen, sizeof seen, &seen_size, &seen_version, &seen_node);
}
static void check_list_or_nothing(void) {
    md_record r;
    uint64_t version;
    OK(rc);
    memcpy(&r, seen, sizeof r);
    CHECK(seen_size == 0 || (r.size == seen_size && r.seq == gone.seq));
    CHECK(seen_size == 0 || memcmp(seen + sizeof r, going, 8) == 0);
    CHECK((seen_node == 0) == (seen_size == 0));
    /* Whoever remembers the place finds that its version has changed. */
    if (seen_node) OK(md_version(m.reg, seen_node, &version));
    if (seen_node && between.now >= between.at) CHECK(version > seen_version);
    strike_all_names();
}
static void list_all_of_them(void) {
    rc = md_list(m.reg, NULL, 0, seen, sizeof seen, &seen_size, &seen_version, &seen_node);
}
static void check_all_of_them(void) {
    int stays = 0;
    md_record r;
    OK(rc);
    for (size_t at = 0; at < seen_size; at += r.size) {
        memcpy(&r, seen + at, sizeof r);
        const char *name = seen + at + sizeof r, *body = name + r.name_len;
        const char *should = !memcmp(name, staying, 8) ? "stays"
                             : !memcmp(name, going, 8) ? "gone"
                                                       : "came";
        if (*should == 'c') EQ(memcmp(name, coming, 8), 0);
        EQ(memcmp(body, should, strlen(should)), 0);
        stays += *should == 's';
    }
    EQ(stays, 1);
    strike_all_names();
}

TEST(a_reader_finds_a_name_that_stays_while_its_entry_moves) {
    open_for_three_names();
    at_instructions(2, 9999, put_two_names, find_the_one_that_stays, end_it,
                    check_that_it_is_found);
    close_main(m);
}
TEST(a_reader_never_takes_the_next_name_of_a_place_for_the_one_before) {
    open_for_three_names();
    at_instructions(3, 9999, put_two_names, find_the_one_that_goes, end_it_and_begin_another,
                    check_it_or_nothing);
    at_instructions(13, 9999, put_two_names, list_the_one_that_goes, end_it_and_begin_another,
                    check_list_or_nothing);
    at_instructions(37, 9999, put_two_names, list_all_of_them, end_it_and_begin_another,
                    check_all_of_them);
    close_main(m);
}

/* The writer stands between two stores: it has struck the fact and raised the version, but has not
 * yet given the name back. Then comes a reader; and while the reader looks, the writer goes on, and
 * others begin, up to their commit, so that no later raise helps the reader. */
static struct md__node *place, *another;
static uint32_t fact_to_come;

static void strike_only(void) {
    put_two_names();
    OK(put(m, MD_STACK, coming, KEY, "came", NULL));
    OK(md__node_find(reg, going, 8, md__hash(going, 8), &place));
    OK(md__node_find(reg, coming, 8, md__hash(coming, 8), &another));
    fact_to_come = md__peek32(&another->head);
    md__node_give_back(reg, another); /* which leaves the fact of the next name, without the name */
    md__poke32(&place->head, 0);
    md__raise(&place->version);
}
static void go_on_up_to_the_next_commit(void) {
    struct md__node *node;
    bool is_new;
    md__node_give_back(reg, place);
    OK(md__node_prepare(reg, coming, 8, md__hash(coming, 8), &node, &is_new));
    EQ(md__ref(reg, node), md__ref(reg, place));
    OK(md__node_publish(reg, node));
    md__publish32(&node->head, fact_to_come);
}
static void check_that_nothing_is_found(void) {
    EQ(rc, MD_ENOENT);
    md__poke32(&place->head, 0);
    md__node_give_back(reg, place);
    md__poke32(&another->head, 0);
    OK(strike_out(m, &stayed));
}

TEST(a_version_that_was_read_before_the_name_was_given_back_does_not_serve_the_next) {
    open_for_three_names();
    at_instructions(1, 9999, strike_only, find_the_one_that_goes, go_on_up_to_the_next_commit,
                    check_that_nothing_is_found);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

/* The same where the writer stands a step further: the node is idle, and its entry is still in the
 * index. The reader must not believe it, for its version will not be raised before the next commit. */
static void make_idle_only(void) {
    strike_only();
    md__node_make_idle(place);
}
static void go_on_from_there(void) {
    struct md__header *h = md__header(reg);
    struct md__node *node;
    bool is_new;
    OK(md__index_mend(reg)); /* takes the entry of the idle node out, as the writer does next */
    md__poke64(&h->names, md__peek64(&h->names) - 1);
    md__node_put_back(h, reg, place);
    OK(md__node_prepare(reg, coming, 8, md__hash(coming, 8), &node, &is_new));
    EQ(md__ref(reg, node), md__ref(reg, place));
    OK(md__node_publish(reg, node));
    md__publish32(&node->head, fact_to_come);
}
static void check_that_nothing_was_found(void) {
    if (between.now < between.at) go_on_from_there();
    check_that_nothing_is_found();
}

TEST(a_node_that_is_idle_is_not_believed_though_it_has_the_name_and_an_entry) {
    open_for_three_names();
    at_instructions(1, 9999, make_idle_only, find_the_one_that_goes, go_on_from_there,
                    check_that_nothing_was_found);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

static struct md__index *index_now(void) {
    uint64_t word = md__peek64(&md__header(reg)->index);
    return md__at(reg, (uint32_t)(word >> 8), sizeof(struct md__index));
}
static uint32_t index_log2(void) {
    return md__peek64(&md__header(reg)->index) & 255;
}

/* A writer that takes an entry out copies a later one into the gap, and dies before it tells. The
 * next holder of the lock mends the index, and takes the copy's origin out. */
static void strike_up_to_the_gap(void) {
    put_two_names();
    OK(md__node_find(reg, going, 8, md__hash(going, 8), &place));
    md__poke32(&place->head, 0);
    md__raise(&place->version);
    md__node_make_idle(place);
}
static void copy_die_and_recover(void) {
    struct md__index *index = index_now();
    OK(md__lock(reg));
    md__publish64(&index->slots[MASK], md__peek64(&index->slots[0]));
    OK(md__rebuild(reg));
    EQ(md__peek64(&index->slots[0]), 0);
    md__unlock(reg);
}
static void check_that_it_was_found(void) {
    if (between.now < between.at) copy_die_and_recover();
    check_that_it_is_found();
}

TEST(a_reader_finds_a_name_whose_entry_a_recovery_moves_to_its_end) {
    open_for_three_names();
    at_instructions(1, 9999, strike_up_to_the_gap, find_the_one_that_stays, copy_die_and_recover,
                    check_that_it_was_found);
    close_main(m);
}

/* A holder that dies leaves one entry over at most. */
TEST(a_second_entry_that_is_left_over_and_moves_to_where_the_first_was_is_noticed) {
    enum { HOME = 100 };
    char names[2][32];
    struct md__node *nodes[2];
    open_it();
    for (int i = 0; i < 2; i++) {
        name_at(HOME, 8, names[i]);
        OK(put(m, MD_STACK, names[i], KEY, "b", NULL));
        OK(md__node_find(reg, names[i], 8, md__hash(names[i], 8), &nodes[i]));
    }
    OK(md__lock(reg));
    for (int i = 0; i < 2; i++) {
        md__poke32(&nodes[i]->head, 0);
        md__node_make_idle(nodes[i]);
    }
    EQ(md__index_mend(reg), MD_EDAMAGED);
    EQ((uint32_t)md__peek64(&index_now()->slots[HOME]), md__ref(reg, nodes[1]));
    OK(md__rebuild(reg)); /* there is one now */
    md__unlock(reg);
    EQ(stats().names, 0);
    check_whole(m.reg);
    close_main(m);
}

/* The index grows under a reader, and the memory of the old array serves something else at once. */
static uint32_t old_array;

static void put_the_one_that_stays(void) {
    OK(put(m, MD_STACK, staying, KEY, "stays", &stayed));
    rc = -100;
    old_array = 0;
}
static void grow_and_reuse(void) {
    struct md__index *old = index_now();
    OK(md__lock(reg));
    OK(md__index_create(reg, index_log2() + 1));
    OK(md__alloc(reg, old->block.size, &old_array));
    EQ(old_array, md__ref(reg, old));
    for (int i = 0; i <= MASK; i++) md__poke64(&old->slots[i], 0);
    md__unlock(reg);
}
static void check_and_shrink(void) {
    if (between.now < between.at) grow_and_reuse();
    OK(rc);
    CHECK(is_body("stays"));
    OK(md__lock(reg));
    md__free(reg, md__at(reg, old_array, sizeof(struct md__block)));
    OK(md__index_create(reg, index_log2() - 1));
    md__unlock(reg);
    strike_all_names();
}

TEST(a_reader_finds_a_name_that_is_there_while_the_index_grows) {
    open_for_three_names();
    at_instructions(1, 9999, put_the_one_that_stays, find_the_one_that_stays, grow_and_reuse,
                    check_and_shrink);
    close_main(m);
}

TEST(an_index_is_never_more_than_half_full) {
    char name[32];
    int most = (1 << MD__FIRST_INDEX_LOG2) + 1;
    open_it();
    EQ(index_log2(), MD__FIRST_INDEX_LOG2);
    for (int i = 1; i <= most && !test_failures; i++) {
        snprintf(name, sizeof name, "name%d", i);
        OK(put(m, MD_STACK, name, KEY, "b", NULL));
        EQ(index_log2(), MD__FIRST_INDEX_LOG2 + (2 * i > 1 << MD__FIRST_INDEX_LOG2) + (i == most));
    }
    check_whole(m.reg);
    close_main(m);
}

/* Entries move without rest: after some tries the reader takes the lock. */
static void move_something(void) {
    md__u32 *lock_word = md__lease_word((struct md__process *)&md__header(reg)->mutex);
    if (!md__peek32(lock_word)) md__raise(&md__header(reg)->index_moves);
}
static void find_at_once(void) {
    rc = md_find_at_once(m.reg, MD_IMPL, KEY, "?", 1, seen, sizeof seen);
}
static void find_what_is_not_there(void) {
    rc = md_find(m.reg, MD_IMPL, KEY, "?", 1, seen, sizeof seen);
}
static void list_what_is_not_there(void) {
    rc = md_list(m.reg, "?", 1, seen, sizeof seen, &seen_size, &seen_version, &seen_node);
}

TEST(a_reader_under_whom_entries_move_for_ever_takes_the_lock) {
    open_it();
    between.on = BETWEEN_WORKS;
    act_between(1, find_what_is_not_there, move_something);
    EQ(rc, MD_ENOENT);
    act_between(1, list_what_is_not_there, move_something);
    OK(rc);
    EQ(seen_node, 0);
    act_between(1, find_at_once, move_something);
    EQ(rc, BETWEEN_WORKS ? MD_ELOCK : MD_ENOENT);
    between.on = 0;
    close_main(m);
}

/* Under the lock nobody moves entries. If somebody does, the registry is damaged. */
static void do_nothing(void) {
}
static void overwrite_the_moves(void) {
    md__raise(&md__header(reg)->index_moves);
}
static void register_it(void) {
    rc = put(m, MD_STACK, "fresh", KEY, "b", NULL);
}
static void check_done_or_refused(void) {
    CHECK(rc == 0 || rc == MD_EDAMAGED);
    strike_all_names();
}

TEST(moves_that_are_overwritten_under_the_lock_are_noticed_or_do_no_harm) {
    open_it();
    at_instructions(17, 9999, do_nothing, register_it, overwrite_the_moves, check_done_or_refused);
    close_main(m);
}

/* --- beside a writer that never rests --------------------------------------------------------- */

enum { STAY = 3, READERS = 2, WAITS = 200 };

struct churn {
    char address[MD_MAX_ADDRESS];
    char stays[STAY][32];
    int64_t end;
    md__u64 looks, ends;
    md__u32 wanted; /* the number of the fact that the waiter waits for; 0: it has ended */
};

/* Until the time is up and, on a machine that is slow, until enough was done. */
static bool goes_on(struct churn *c) {
    bool enough = md__read64(&c->ends) > 100 && md__read64(&c->looks) > 10;
    return !test_failures && (md_now() < c->end || !enough);
}

/* Names of one home come and go, before and behind those that stay. */
static void churn_for_long(struct churn *c, struct main_member w) {
    char names[4][32];
    md_record live[4] = {{0}};
    uint32_t random = (uint32_t)(test_seed() + c->ends);
    for (int i = 0; i < 4; i++) name_at(MASK, 6 + (size_t)i % 2, names[i]);
    while (goes_on(c)) {
        random = random * 1103515245 + 12345;
        int i = (int)(random >> 16) % 4;
        if (live[i].seq) {
            OK(strike_out(w, &live[i]));
            live[i].seq = 0;
            atomic_fetch_add(&c->ends, 1);
        } else {
            OK(put(w, MD_STACK, names[i], KEY, names[i], &live[i]));
        }
    }
    for (int i = 0; i < 4; i++)
        if (live[i].seq) OK(strike_out(w, &live[i]));
}

/* Those that stay are always there, and no fact is that of another name. */
static void look_for_long(struct churn *c, md_registry handle) {
    char buf[BUF];
    while (goes_on(c)) {
        size_t size, stay = 0;
        uint64_t version, node;
        md_record r;
        for (int i = 0; i < STAY; i++) {
            char body[32];
            if (!OK(find(handle, c->stays[i], KEY, body, sizeof body))) return;
            CHECK(strcmp(body, c->stays[i]) == 0);
        }
        if (!OK(md_list(handle, NULL, 0, buf, sizeof buf, &size, &version, &node))) return;
        for (size_t at = 0; at < size; at += r.size) {
            memcpy(&r, buf + at, sizeof r);
            const char *name = buf + at + sizeof r;
            if (r.body_len != r.name_len) continue; /* a waiter's */
            CHECK(memcmp(name, name + r.name_len, r.name_len) == 0);
            for (int i = 0; i < STAY; i++)
                stay +=
                    r.name_len == strlen(c->stays[i]) && memcmp(name, c->stays[i], r.name_len) == 0;
        }
        EQ(stay, STAY);
        atomic_fetch_add(&c->looks, 1);
    }
}

static struct churn *churn_make(int ms) {
    struct churn *c = shared(sizeof *c);
    open_it();
    OK(md_address(m.reg, c->address, sizeof c->address));
    for (int i = 0; i < STAY; i++) {
        name_at(MASK, 8, c->stays[i]);
        OK(put(m, MD_STACK, c->stays[i], KEY, c->stays[i], NULL));
    }
    c->end = md_now() + rounds(ms) * 1000000ll;
    return c;
}

static void churn_end(struct churn *c) {
    md_stats s = stats();
    printf("       %llu ends of names, %llu rounds of looking\n", (unsigned long long)c->ends,
           (unsigned long long)c->looks);
    CHECK(s.names + s.idle < 32);
    close_main(m);
    munmap(c, sizeof *c);
}

static void *look_in_thread(void *arg) {
    look_for_long(arg, m.reg);
    return NULL;
}

static void look_in_process(void *arg) {
    struct churn *c = arg;
    struct main_member w = attach_worker(c->address);
    look_for_long(c, w.reg);
}

static void churn_in_process(void *arg) {
    struct churn *c = arg;
    struct main_member w = attach_worker(c->address);
    promote(w.reg, w.member);
    churn_for_long(c, w);
}

TEST(names_that_stay_are_always_found_beside_those_that_come_and_go) {
    struct churn *c = churn_make(800);
    pthread_t t[READERS];
    pid_t pid[READERS];
    for (int i = 0; i < READERS; i++) pid[i] = child(look_in_process, c);
    for (int i = 0; i < READERS; i++) pthread_create(&t[i], NULL, look_in_thread, c);
    churn_for_long(c, m);
    for (int i = 0; i < READERS; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < READERS; i++) EQ(reap(pid[i]), 0);
    churn_end(c);
}

/* What a killed writer left is struck, before the next one begins. */
static void strike_what_is_left(struct churn *c) {
    char all[BUF];
    size_t size;
    uint64_t version, node;
    md_record r;
    OK(md_list(m.reg, NULL, 0, all, sizeof all, &size, &version, &node));
    for (size_t at = 0; at < size; at += r.size) {
        int stays = 0;
        memcpy(&r, all + at, sizeof r);
        for (int i = 0; i < STAY; i++)
            stays |= r.name_len == strlen(c->stays[i]) &&
                     memcmp(all + at + sizeof r, c->stays[i], r.name_len) == 0;
        if (!stays) OK(strike_out(m, &r));
    }
}

TEST(names_that_stay_are_always_found_while_writers_are_killed) {
    struct churn *c = churn_make(1500);
    pid_t pid[READERS];
    uint32_t random = (uint32_t)test_seed();
    for (int i = 0; i < READERS; i++) pid[i] = child(look_in_process, c);
    while (goes_on(c)) {
        pid_t writer = child(churn_in_process, c);
        random = random * 1103515245 + 12345;
        uint64_t enough = md__read64(&c->ends) + (random >> 8) % 1000;
        while (md__read64(&c->ends) < enough && goes_on(c)) sched_yield();
        kill(writer, SIGKILL);
        reap(writer);
        strike_what_is_left(c);
        check_whole(m.reg);
    }
    for (int i = 0; i < READERS; i++) EQ(reap(pid[i]), 0);
    printf("       %llu recoveries\n", (unsigned long long)stats().recoveries);
    churn_end(c);
}

/* A waiter has no place for its name: it hears of it in whichever place it then is. */
static void wait_for_one_after_another(void *arg) {
    struct churn *c = arg;
    struct main_member w = attach_worker(c->address);
    for (uint32_t i = 1; i <= WAITS && !test_failures; i++) {
        char name[32], buf[BUF];
        md_wait_stats s = {0};
        snprintf(name, sizeof name, "w%u", i);
        md__publish32(&c->wanted, i);
        do
            rc = md_await(w.reg, w.member, MD_DEF, 0, 1, name, strlen(name), MD_FOREVER, 0, buf,
                          sizeof buf, &s);
        while (rc == MD_EINTR);
        OK(rc);
    }
    md__publish32(&c->wanted, 0);
}

TEST(waiters_hear_of_names_that_take_the_places_of_others) {
    struct churn *c = churn_make(0);
    char name[32], buf[BUF];
    md_record r = {0};
    md__publish32(&c->wanted, 1);
    pid_t pid = child(wait_for_one_after_another, c);
    uint32_t done = 0, wanted;
    while ((wanted = md__read32(&c->wanted)) && !test_failures) {
        OK(put(m, MD_STACK, "ended", KEY, "ended", &r));
        if (wanted > done) {
            OK(strike_out(m, &r));
            snprintf(name, sizeof name, "w%u", wanted);
            OK(md_register(m.reg, m.member, MD_DEF, MD_UNIQUE, 0, name, strlen(name), "b", 1, "", 0,
                           buf, sizeof buf));
            memcpy(&r, buf, sizeof r);
            while (md__read32(&c->wanted) == wanted) sched_yield();
            done = wanted;
        }
        OK(strike_out(m, &r));
    }
    EQ(reap(pid), 0);
    EQ(done, WAITS);
    EQ(stats().names, STAY);
    close_main(m);
    munmap(c, sizeof *c);
}

int main(void) {
    RUN_STEPPED(a_reader_finds_a_name_that_stays_while_its_entry_moves);
    RUN_STEPPED(a_reader_never_takes_the_next_name_of_a_place_for_the_one_before);
    RUN_STEPPED(a_version_that_was_read_before_the_name_was_given_back_does_not_serve_the_next);
    RUN_STEPPED(a_node_that_is_idle_is_not_believed_though_it_has_the_name_and_an_entry);
    RUN_STEPPED(a_reader_finds_a_name_whose_entry_a_recovery_moves_to_its_end);
    RUN_STEPPED(a_reader_finds_a_name_that_is_there_while_the_index_grows);
    RUN_STEPPED(a_reader_under_whom_entries_move_for_ever_takes_the_lock);
    RUN_STEPPED(moves_that_are_overwritten_under_the_lock_are_noticed_or_do_no_harm);
    RUN(an_index_is_never_more_than_half_full);
    RUN(a_second_entry_that_is_left_over_and_moves_to_where_the_first_was_is_noticed);
    RUN(what_a_refused_name_had_taken_is_idle_again);
    RUN(a_word_that_was_a_names_never_returns_to_a_value_that_it_had);
    RUN(names_without_end_need_bounded_memory);
    RUN(names_that_stay_are_always_found_beside_those_that_come_and_go);
    RUN(names_that_stay_are_always_found_while_writers_are_killed);
    RUN(waiters_hear_of_names_that_take_the_places_of_others);
    return test_done();
}
