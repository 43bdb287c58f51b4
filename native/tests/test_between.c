/* Races that are lost at every instruction: between any two instructions of a call, another thread
 * or process does the thing that disturbs the call most. */
#include <linux/futex.h>

#include "between.h"

enum { SIZE = MD__MIN_CAPACITY };

static struct main_member m;
static md__reg *reg;
static int rc, other_rc;

static void open_it(void) {
    m = open_main(NULL, SIZE);
    OK(md__enter(m.reg, &reg));
    md__exit(reg);
    rc = other_rc = -100;
}

/* --- event words ------------------------------------------------------------------------------ */

static md__u32 word;
static uint32_t seen, word_before;

static void clear_word(void) {
    md__poke32(&word, word_before);
    seen = 0;
}
static void prepare_it(void) {
    seen = md__event_prepare(&word);
}
static void ring_it(void) {
    md__event_ring(&word);
}
/* A waiter that has prepared sleeps while the word equals `seen`: so only if no ring came since. */
static void check_prepared(void) {
    EQ(seen & 1, 1);
    EQ(md__read32(&word) & ~1u, (word_before & ~1u) + (between.now >= between.at ? 2 : 0));
    CHECK(md__read32(&word) == seen || seen == (word_before | 1) || !(md__read32(&word) & 1));
}

TEST(who_prepares_while_the_word_is_rung_notices_or_is_woken) {
    for (word_before = 4; word_before < 6; word_before++)
        at_instructions(1, 9999, clear_word, prepare_it, ring_it, check_prepared);
}

static void check_rung(void) {
    uint32_t now = md__read32(&word);
    EQ(now & ~1u, (word_before & ~1u) + 2);
    /* Prepared before the ring, the word has changed; prepared after it, the bit is set. */
    if (between.now >= between.at) CHECK(now != seen || (now & 1));
}

TEST(a_ring_is_heard_by_whoever_prepares_meanwhile) {
    for (word_before = 4; word_before < 6; word_before++)
        at_instructions(1, 9999, clear_word, ring_it, prepare_it, check_rung);
}

/* --- handles ---------------------------------------------------------------------------------- */

static md_registry again;

static void open_twice(void) {
    char address[MD_MAX_ADDRESS];
    open_it();
    OK(md_address(m.reg, address, sizeof address));
    OK(md_attach(address, 0, &again));
    EQ(again, m.reg);
}
static void close_it(void) {
    rc = md_close(m.reg);
}
static void close_it_too(void) {
    other_rc = md_close(m.reg);
}
/* Everything is given back, and the place in the table can be used again. */
static void check_closed(void) {
    md_stats s;
    EQ(md_stat(m.reg, &s), MD_ECLOSED);
    struct main_member next = open_main(NULL, SIZE);
    CHECK((next.reg & 255) == (m.reg & 255) && next.reg != m.reg);
    close_main(next);
}
static void check_closed_once(void) {
    if (between.now < between.at) other_rc = MD_ECLOSED;
    CHECK((rc == 0 && other_rc == MD_ECLOSED) || (rc == MD_ECLOSED && other_rc == 0));
    check_closed();
}
static void check_closed_twice(void) {
    OK(rc);
    if (between.now < between.at) close_it_too();
    OK(other_rc);
    check_closed();
}

TEST(of_two_who_close_the_last_opening_one_does) {
    at_instructions(1, 300, open_it, close_it, close_it_too, check_closed_once);
}

TEST(two_openings_are_given_back_by_two_closes_at_a_time) {
    at_instructions(1, 300, open_twice, close_it, close_it_too, check_closed_twice);
}

static void look_at_it(void) {
    md_stats s;
    rc = md_stat(m.reg, &s);
}
static md__reg *entered;
static void enter_it(void) {
    if (md__enter(m.reg, &entered)) entered = NULL;
}
static void check_calls(void) {
    OK(rc);
    if (between.now >= between.at) md__exit(entered);
    EQ((uint32_t)md__read64(&reg->refs), 1 << 16);
    close_main(m);
}

TEST(calls_that_begin_and_end_together_are_all_counted) {
    at_instructions(1, 9999, open_it, look_at_it, enter_it, check_calls);
}

/* A call that ends while another one changes the counts. */
static void enter_first(void) {
    open_it();
    enter_it();
}
static void exit_it(void) {
    md__exit(entered);
    rc = 0;
}
static md__reg *entered_too;
static void enter_too(void) {
    OK(md__enter(m.reg, &entered_too));
}
static void check_exits(void) {
    if (between.now >= between.at) md__exit(entered_too);
    EQ((uint32_t)md__read64(&reg->refs), 1 << 16);
    close_main(m);
}

TEST(a_call_that_ends_while_another_begins_takes_only_itself_away) {
    at_instructions(1, 9999, enter_first, exit_it, enter_too, check_exits);
}

static char address[MD_MAX_ADDRESS];
static md_registry found;

static void open_named(void) {
    open_it();
    OK(md_address(m.reg, address, sizeof address));
    found = 0;
}
static void find_it(void) {
    rc = md_attach(address, 0, &found);
}
/* The thread that looks holds the table's lock; the last close needs it. */
static void close_if_inside(void) {
    other_rc = -100;
    if (md__read64(&reg->refs) & 0xffff) close_it_too();
}
static void check_found(void) {
    if (other_rc == 0 && rc == 0) {
        OK(md_close(found));
    } else if (other_rc == 0) {
        CHECK(rc == MD_ENOENT || rc == MD_EDIED || rc == MD_ECLOSED);
        check_closed();
    } else {
        OK(rc);
        EQ(found, m.reg);
        OK(md_close(found));
        close_main(m);
    }
}

/* The last opening ends while another thread takes one: it gets the registry, or it does not. */
TEST(a_registry_can_be_closed_while_it_is_found_again) {
    int inside = 0;
    for (long at = 1; BETWEEN_WORKS; at += 11) {
        open_named();
        int more = act_between(at, find_it, close_if_inside), was_inside = inside;
        inside += other_rc == 0;
        check_found();
        if (!more || (inside && inside == was_inside)) break;
    }
    CHECK(inside || !BETWEEN_WORKS);
}

static void open_the_default(void) {
    OK(md_open_default(NULL, &m.reg));
    m.member = join(m.reg, 0, MD_MAIN);
    OK(md__enter(m.reg, &reg));
    md__exit(reg);
    rc = other_rc = -100;
    found = 0;
}
static void find_the_default(void) {
    rc = md_open_default(NULL, &found);
}
/* If it was closed, the next registry is another one in the same place of the table. */
static void check_default(void) {
    OK(rc);
    if (found != m.reg) EQ(other_rc, 0);
    OK(md_close(found));
    if (other_rc != 0) close_main(m);
}

TEST(the_default_can_be_closed_while_it_is_found_again) {
    int inside = 0;
    for (long at = 1; BETWEEN_WORKS; at += 3) {
        open_the_default();
        int more = act_between(at, find_the_default, close_if_inside), was_inside = inside;
        inside += other_rc == 0;
        check_default();
        if (!more || (inside && inside == was_inside)) break;
    }
    CHECK(inside || !BETWEEN_WORKS);
}

/* --- the index -------------------------------------------------------------------------------- */

static uint64_t index_words[2];

static uint64_t copy_of_index(uint32_t *ref) {
    struct md__header *h = md__header(reg);
    uint64_t is = md__peek64(&h->index);
    const struct md__index *from = md__at(reg, (uint32_t)(is >> 8), 64);
    OK(md__alloc(reg, from->block.size, ref));
    struct md__index *to = md__fresh(reg, *ref);
    memcpy((void *)to->slots, (const void *)from->slots, sizeof(md__u64) << (is & 255));
    md__poke32(&to->block.tag, MD__TAG_INDEX);
    return (uint64_t)*ref << 8 | (is & 255);
}
static void first_index(void) {
    md__publish64(&md__header(reg)->index, index_words[0]);
    rc = -100;
}
static void other_index(void) {
    md__publish64(&md__header(reg)->index, index_words[1]);
    md__raise(&md__header(reg)->index_moves);
}
/* The memory of the one that was replaced serves something else at once: nothing is found there. */
static void other_index_and_reuse(void) {
    other_index();
    struct md__index *old = md__at(reg, (uint32_t)(index_words[0] >> 8), 64);
    memset((void *)old->slots, 0, sizeof(md__u64) << (index_words[0] & 255));
}
static void first_index_again(void) {
    struct md__index *old = md__at(reg, (uint32_t)(index_words[0] >> 8), 64);
    const struct md__index *copy = md__at(reg, (uint32_t)(index_words[1] >> 8), 64);
    memcpy((void *)old->slots, (const void *)copy->slots,
           sizeof(md__u64) << (index_words[0] & 255));
    first_index();
}
static void find_what_is_not_there(void) {
    rc = find(m.reg, "?", KEY, NULL, 0);
}
static void check_not_found(void) {
    EQ(rc, MD_ENOENT);
}
static void find_what_is_there(void) {
    rc = find(m.reg, "n", KEY, NULL, 0);
}
static void check_is_found(void) {
    OK(rc);
}

TEST(a_reader_under_whom_the_index_is_replaced_starts_over) {
    uint32_t ref;
    open_it();
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(md__lock(reg));
    index_words[0] = md__peek64(&md__header(reg)->index);
    index_words[1] = copy_of_index(&ref);
    md__unlock(reg);
    at_instructions(5, 9999, first_index, find_what_is_not_there, other_index, check_not_found);
    at_instructions(5, 9999, first_index, find_what_is_there, other_index, check_is_found);
    at_instructions(1, 9999, first_index_again, find_what_is_there, other_index_and_reuse,
                    check_is_found);
    first_index_again();
    OK(md__lock(reg));
    md__free(reg, md__at(reg, ref, 64));
    md__unlock(reg);
    close_main(m);
}

/* --- writers without rest --------------------------------------------------------------------- */

static struct md__node *node;

/* As a writer would do it after each instruction of the reader, if there were no lock. */
static void change_it(void) {
    md__u32 *lock_word = md__lease_word((struct md__process *)&md__header(reg)->mutex);
    if (!md__peek32(lock_word)) md__raise(&node->version);
}

TEST(a_reader_that_is_outrun_for_ever_takes_the_lock) {
    open_it();
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(md__node_find(reg, "n", 1, md__hash("n", 1), &node));
    between.on = BETWEEN_WORKS;
    act_between(1, find_what_is_there, change_it);
    between.on = 0;
    OK(rc);
    close_main(m);
}

static void find_at_once(void) {
    char buf[BUF];
    rc = md_find_at_once(m.reg, MD_IMPL, KEY, "n", 1, buf, sizeof buf);
}

TEST(a_reader_that_must_not_wait_says_that_it_is_outrun) {
    open_it();
    find_at_once();
    EQ(rc, MD_ENOENT);
    OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    OK(md__node_find(reg, "n", 1, md__hash("n", 1), &node));
    find_at_once();
    OK(rc);
    between.on = BETWEEN_WORKS;
    act_between(1, find_at_once, change_it);
    between.on = 0;
    EQ(rc, BETWEEN_WORKS ? MD_ELOCK : 0);
    close_main(m);
    find_at_once();
    EQ(rc, MD_ECLOSED);
    EQ(md_find_at_once(m.reg, MD_IMPL, KEY, "", 0, NULL, 0), MD_EINVAL);
}

static uint64_t peer;
static void open_a_team(void) {
    char buf[BUF];
    m = (struct main_member){0};
    OK(md_elect(NULL, SIZE, &m.reg));
    peer = m.member = join(m.reg, 0, MD_PEER);
    OK(md_claim(m.reg, peer, "n", 1, "", 0, buf, sizeof buf));
    OK(put(m, MD_STACK, "n::f", KEY, "b", NULL));
    OK(md__enter(m.reg, &reg));
    md__exit(reg);
    OK(md__node_find(reg, "n", 1, md__hash("n", 1), &node));
    rc = other_rc = -100;
}
static void close_the_team(void) {
    OK(md_leave(m.reg, peer));
    OK(md_close(m.reg));
}
static struct md__queue queue;
static void read_the_queue(void) {
    rc = md__look_queue(reg, "n::f", 4, &queue);
}
static void forget_the_queue(void) {
    memset(&queue, 0, sizeof queue);
}
static void check_the_queue(void) {
    OK(rc);
    EQ(queue.claims, 1);
    EQ(queue.registrar, peer);
}

TEST(who_reads_a_queue_that_changes_looks_again_or_takes_the_lock) {
    open_a_team();
    at_instructions(7, 9999, forget_the_queue, read_the_queue, change_it, check_the_queue);
    forget_the_queue();
    between.on = BETWEEN_WORKS;
    act_between(1, read_the_queue, change_it);
    between.on = 0;
    check_the_queue();
    close_the_team();
}

/* And if the reader cannot get the lock, the call says so. */
static void give_it_up(void) {
    change_it();
    md__poke32(&md__header(reg)->state, MD__DAMAGED);
}

TEST(who_is_outrun_for_ever_and_cannot_have_the_lock_says_so) {
    open_a_team();
    between.on = BETWEEN_WORKS;
    act_between(1, read_the_queue, give_it_up);
    between.on = 0;
    if (BETWEEN_WORKS) EQ(rc, MD_EDAMAGED);
    md__poke32(&md__header(reg)->state, MD__OPEN);
    close_the_team();
}

/* --- a member that writes where it must not --------------------------------------------------- */

static void register_it(void) {
    rc = put(m, MD_UNIQUE, "fresh", KEY, "b", NULL);
}
static uint64_t good_index;
static void open_and_note_index(void) {
    open_it();
    good_index = md__peek64(&md__header(reg)->index);
}
static void spoil_index(void) {
    md__publish64(&md__header(reg)->index, 255);
}
static struct md__node *made;
static void open_and_lock(void) {
    open_and_note_index();
    OK(md__lock(reg));
}
static void make_name(void) {
    bool is_new;
    rc = md__node_prepare(reg, "x", 1, md__hash("x", 1), &made, &is_new);
    if (rc == 0) rc = md__node_publish(reg, made);
}
static void check_name(void) {
    CHECK(rc == 0 || rc == MD_EDAMAGED);
    md__publish64(&md__header(reg)->index, good_index);
    md__unlock(reg);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

TEST(an_index_that_is_overwritten_while_a_name_is_entered_is_noticed_or_does_no_harm) {
    at_instructions(3, 9999, open_and_lock, make_name, spoil_index, check_name);
}

static void check_refused_or_done(void) {
    CHECK(rc == 0 || rc == MD_EDAMAGED);
    md__publish64(&md__header(reg)->index, good_index);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

/* Others fill a larger index while a writer is making it. */
static void make_larger_index(void) {
    rc = md__index_create(reg, MD__FIRST_INDEX_LOG2 + 1);
}
static void fill_the_last_block(void) {
    uint64_t top = md__peek64(&md__header(reg)->arena_top);
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__index *last = (struct md__index *)(reg->base + at);
        uint32_t size = last->block.size;
        if (!md__is_step(size, top - at)) return;
        at += size;
        if (at < top || size < 16ull << MD__FIRST_INDEX_LOG2) continue;
        for (size_t i = 0; i < (size - sizeof *last) / 8; i++) md__poke64(&last->slots[i], 1);
    }
}

static void open_lock_and_name(void) {
    open_and_lock();
    make_name();
    OK(rc);
}

TEST(an_index_that_is_overwritten_while_a_larger_one_is_made_is_noticed_or_does_no_harm) {
    at_instructions(997, 99999, open_lock_and_name, make_larger_index, fill_the_last_block,
                    check_name);
    open_and_lock();
    spoil_index();
    make_larger_index();
    EQ(rc, MD_EDAMAGED);
    check_name();
}

static void release_it(void) {
    rc = md_release(m.reg, peer, "n", 1);
}
static uint64_t good_top;
static void open_and_note_top(void) {
    open_a_team();
    good_top = md__peek64(&md__header(reg)->arena_top);
}
static void spoil_top(void) {
    md__poke64(&md__header(reg)->arena_top, reg->mapped + 16);
}
static void check_released_or_not(void) {
    CHECK(rc == 0 || rc == MD_EDAMAGED || rc == MD_ENOENT);
    md__poke64(&md__header(reg)->arena_top, good_top);
    close_the_team();
}

TEST(an_end_of_the_arena_that_is_overwritten_while_a_claim_ends_is_noticed_or_does_no_harm) {
    at_instructions(101, 9999, open_and_note_top, release_it, spoil_top, check_released_or_not);
}

/* A recovery reads the blocks twice. */
static struct md__fact *last_fact;
static void open_and_recover(void) {
    md_record r;
    open_and_note_index();
    OK(put(m, MD_STACK, "n", KEY, "b", &r));
    OK(md__lock(reg));
    last_fact = md__at(reg, (uint32_t)r.ref, sizeof *last_fact);
}
static void rebuild_it(void) {
    rc = md__rebuild(reg);
}
static void shorten_a_block(void) {
    last_fact->block.size = 8;
}
static void check_rebuilt_or_not(void) {
    CHECK(rc == 0 || rc == MD_EDAMAGED);
    md__unlock(reg);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

TEST(a_block_that_is_overwritten_while_all_is_computed_again_is_noticed_or_does_no_harm) {
    at_instructions(29, 9999, open_and_recover, rebuild_it, shorten_a_block, check_rebuilt_or_not);
}

/* A check follows each chain twice. */
static md__u32 *chain;
static uint32_t uncut;
static void open_with_two_of_a_name(void) {
    struct md__node *node = NULL;
    open_it();
    OK(put(m, MD_STACK, "n", KEY, "older", NULL));
    OK(put(m, MD_STACK, "n", KEY, "newer", NULL));
    OK(md__node_find(reg, "n", 1, md__hash("n", 1), &node));
    chain = &node->head;
    uncut = md__peek32(chain);
}
static void check_it(void) {
    rc = md_check(m.reg, NULL, 0);
}
static void cut_the_chain(void) {
    md__poke32(chain, 7);
}
static void check_noticed_or_not(void) {
    CHECK(rc == 0 || rc == MD_EDAMAGED);
    md__poke32(chain, uncut);
    check_whole(m.reg);
    close_main(m);
}

TEST(a_chain_that_is_cut_while_it_is_checked_is_noticed_or_does_no_harm) {
    at_instructions(97, 99999, open_with_two_of_a_name, check_it, cut_the_chain,
                    check_noticed_or_not);
}

/* Another waiter arms the lease meanwhile. */
static md__u32 *lease;
static void open_and_disarm(void) {
    open_it();
    lease = md__lease_word(md__process(reg, 0));
    md__poke32(lease, md__peek32(lease) & FUTEX_TID_MASK);
}
static void look_once(void) {
    md_wait_stats stats = {0};
    uint64_t now;
    rc = md_await_change(m.reg, m.member, md__peek64(&md__header(reg)->next_seq), 0, 1, &now,
                         &stats);
}
static void arm_it(void) {
    md__poke32(lease, md__peek32(lease) | FUTEX_WAITERS);
}
static void check_armed(void) {
    EQ(rc, MD_ETIMEDOUT);
    CHECK(md__peek32(lease) & FUTEX_WAITERS);
    EQ(md__peek32(lease) & FUTEX_TID_MASK, getpid());
    close_main(m);
}

static long armed_at;
static void note_when(void) {
    if (!armed_at && md__peek32(lease) & FUTEX_WAITERS) armed_at = between.now;
}

/* The instructions before the lease is armed, once they are known. */
TEST(of_two_who_arm_the_lease_at_once_both_have_armed_it) {
    armed_at = 0;
    open_and_disarm();
    between.on = BETWEEN_WORKS;
    act_between(1, look_once, note_when);
    between.on = 0;
    check_armed();
    CHECK(armed_at || !BETWEEN_WORKS);
    for (long at = armed_at > 60 ? armed_at - 60 : 1; at <= armed_at; at++) {
        if (!in_sample((uint64_t)at, BETWEEN_SAMPLE)) continue;
        open_and_disarm();
        act_between(at, look_once, arm_it);
        check_armed();
    }
}

static void spoil_names(void) {
    uint64_t top = md__peek64(&md__header(reg)->arena_top);
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__node *node = (struct md__node *)(reg->base + at);
        if (md__peek32(&node->block.tag) == MD__TAG_NODE) node->name_len = 70000;
        if (!node->block.size) break;
        at += node->block.size;
    }
}

TEST(a_name_that_is_overwritten_at_any_moment_of_a_registration_is_noticed_or_does_no_harm) {
    at_instructions(97, 9999, open_and_note_index, register_it, spoil_names, check_refused_or_done);
}

/* The new fact's tag is the last thing that is written before its record is packed. */
static void open_with_one(void) {
    open_it();
    OK(put(m, MD_STACK, "n", KEY, "older", NULL));
    OK(md__node_find(reg, "n", 1, md__hash("n", 1), &node));
}
static void register_another(void) {
    rc = put(m, MD_STACK, "n", KEY, "newer", NULL);
}
static void spoil_the_name_once_the_fact_is_written(void) {
    uint64_t top = md__peek64(&md__header(reg)->arena_top);
    for (uint64_t at = MD__ARENA_AT; at < top;) {
        struct md__fact *f = (struct md__fact *)(reg->base + at);
        if (!md__is_step(f->block.size, top - at)) return;
        if (md__peek32(&f->block.tag) == MD__TAG_FACT &&
            md__peek64(&f->seq) == md__peek64(&md__header(reg)->next_seq))
            md__poke32(&node->name_len, MD_MAX_NAME + 1);
        at += f->block.size;
    }
}

TEST(a_name_that_is_overwritten_before_the_record_is_packed_refuses_the_fact) {
    char buf[BUF];
    open_with_one();
    uint64_t facts = md__peek64(&md__header(reg)->facts);
    between.on = BETWEEN_WORKS;
    act_between(1, register_another, spoil_the_name_once_the_fact_is_written);
    between.on = 0;
    md__poke32(&node->name_len, 1);
    EQ(rc, BETWEEN_WORKS ? MD_EDAMAGED : 0);
    EQ(md__peek64(&md__header(reg)->facts), facts + !BETWEEN_WORKS);
    OK(find(m.reg, "n", KEY, buf, sizeof buf));
    check_whole(m.reg);
    register_another();
    OK(rc);
    close_main(m);
}

/* --- holds ------------------------------------------------------------------------------------ */

/* The interrupted thread may be in malloc(), so another thread makes the hold. That one has set
 * aside the memory that it needs. */
static md_held *ours, *theirs;
static md__u32 asked, done;
static uint32_t turn; /* of `asked`; the last is UINT32_MAX */

static void *hold_when_asked(void *unused) {
    for (uint32_t next = 1;; next++) {
        void *volatile spare = malloc(24); /* otherwise the compiler leaves both out */
        free(spare);
        md__publish32(&done, next - 1);
        while (md__read32(&asked) < next) sched_yield();
        if (md__read32(&asked) == UINT32_MAX) return NULL;
        OK(md_hold(m.reg, &theirs));
    }
}
/* The registry is another process's, and this one does not join: whoever joins makes the count. */
struct host {
    char address[MD_MAX_ADDRESS];
    struct step ready, go;
};
static struct host *host;
static void be_host(void *unused) {
    struct main_member its = open_main(NULL, SIZE);
    OK(md_address(its.reg, host->address, sizeof host->address));
    step_give(host->ready);
    step_take(host->go);
    close_main(its);
}
static void attach_only(void) {
    OK(md_attach(host->address, 0, &m.reg));
    OK(md__enter(m.reg, &reg));
    md__exit(reg);
}
static void hold_it(void) {
    rc = md_hold(m.reg, &ours);
}
static void hold_it_too(void) {
    md__publish32(&asked, ++turn);
    while (md__read32(&done) < turn) sched_yield();
}
static void check_held(void) {
    unsigned char there;
    char *base = reg->base;
    OK(rc);
    if (between.now < between.at) hold_it_too();
    CHECK(ours == theirs);
    OK(md_close(m.reg));
    md_let_go(ours);
    CHECK(mincore(base, 4096, &there) == 0);
    md_let_go(theirs);
    CHECK(mincore(base, 4096, &there) < 0);
}

TEST(of_two_who_hold_first_one_makes_the_count_and_both_are_counted) {
    pthread_t thread;
    host = shared(sizeof *host);
    host->ready = step_make();
    host->go = step_make();
    pid_t pid = child(be_host, NULL);
    CHECK(step_take(host->ready));
    OK(pthread_create(&thread, NULL, hold_when_asked, NULL));
    at_instructions(1, 9999, attach_only, hold_it, hold_it_too, check_held);
    md__publish32(&asked, UINT32_MAX);
    pthread_join(thread, NULL);
    step_give(host->go);
    EQ(reap(pid), 0);
    step_free(host->ready);
    step_free(host->go);
    munmap(host, sizeof *host);
}

/* --- leases that only the main thread can release --------------------------------------------- */

static struct md_held stranger; /* of another region that is closed at the same time */
static pthread_mutex_t its_lease = PTHREAD_MUTEX_INITIALIZER;
static long parked_at;

static void *close_there(void *at) {
    act_between(*(long *)at, close_it, between.deed);
    return NULL;
}
static void close_in_thread(long at, void (*deed)(void)) {
    pthread_t thread;
    between.deed = deed;
    OK(pthread_create(&thread, NULL, close_there, &at));
    pthread_join(thread, NULL);
    OK(rc);
}
static void park_another(void) {
    stranger.next = (struct md_held *)(uintptr_t)md__read64(&md__parked);
    md__publish64(&md__parked, (uintptr_t)&stranger);
}
static void note_when_parked(void) {
    if (!parked_at && md__peek64(&md__parked)) parked_at = between.now;
}
static void open_beside_another(void) {
    open_it();
    stranger = (struct md_held){.holds = 2, .lease = &its_lease};
    OK(pthread_mutex_lock(&its_lease));
}
static void open_and_park(void) {
    open_beside_another();
    close_in_thread(1, note_when_parked);
}
static void check_all_released(void) {
    if (between.now < between.at) park_another();
    md__unpark();
    EQ(md__peek64(&md__parked), 0);
    EQ(md__peek64(&stranger.holds), 1);
    OK(pthread_mutex_trylock(&its_lease));
    OK(pthread_mutex_unlock(&its_lease));
}

TEST(of_two_leases_that_are_parked_at_once_both_are_released) {
    parked_at = 0;
    open_beside_another();
    between.on = BETWEEN_WORKS;
    close_in_thread(1, note_when_parked);
    between.on = 0;
    park_another();
    between.at = between.now;
    check_all_released();
    CHECK(parked_at || !BETWEEN_WORKS);
    for (long at = parked_at > 60 ? parked_at - 60 : 1; at <= parked_at; at++) {
        if (!in_sample((uint64_t)at, BETWEEN_SAMPLE)) continue;
        open_beside_another();
        close_in_thread(at, park_another);
        check_all_released();
    }
}
TEST(a_lease_that_is_parked_while_others_are_released_is_released_too) {
    at_instructions(1, 9999, open_and_park, md__unpark, park_another, check_all_released);
}

int main(void) {
    RUN(who_prepares_while_the_word_is_rung_notices_or_is_woken);
    RUN(a_ring_is_heard_by_whoever_prepares_meanwhile);
    RUN(of_two_who_close_the_last_opening_one_does);
    RUN(two_openings_are_given_back_by_two_closes_at_a_time);
    RUN(calls_that_begin_and_end_together_are_all_counted);
    RUN(a_call_that_ends_while_another_begins_takes_only_itself_away);
    RUN(a_registry_can_be_closed_while_it_is_found_again);
    RUN(the_default_can_be_closed_while_it_is_found_again);
    RUN(a_reader_under_whom_the_index_is_replaced_starts_over);
    RUN(a_reader_that_is_outrun_for_ever_takes_the_lock);
    RUN(a_reader_that_must_not_wait_says_that_it_is_outrun);
    RUN(who_reads_a_queue_that_changes_looks_again_or_takes_the_lock);
    RUN(who_is_outrun_for_ever_and_cannot_have_the_lock_says_so);
    RUN(an_index_that_is_overwritten_while_a_name_is_entered_is_noticed_or_does_no_harm);
    RUN(an_index_that_is_overwritten_while_a_larger_one_is_made_is_noticed_or_does_no_harm);
    RUN(a_block_that_is_overwritten_while_all_is_computed_again_is_noticed_or_does_no_harm);
    RUN(a_chain_that_is_cut_while_it_is_checked_is_noticed_or_does_no_harm);
    RUN(of_two_who_arm_the_lease_at_once_both_have_armed_it);
    RUN(an_end_of_the_arena_that_is_overwritten_while_a_claim_ends_is_noticed_or_does_no_harm);
    RUN(a_name_that_is_overwritten_at_any_moment_of_a_registration_is_noticed_or_does_no_harm);
    RUN(a_name_that_is_overwritten_before_the_record_is_packed_refuses_the_fact);
    RUN(of_two_who_hold_first_one_makes_the_count_and_both_are_counted);
    RUN(of_two_leases_that_are_parked_at_once_both_are_released);
    RUN(a_lease_that_is_parked_while_others_are_released_is_released_too);
    return test_done();
}
