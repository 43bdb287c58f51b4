/* A registry whose bytes contradict each other: md_check says in words what is wrong. A process
 * that has to repair the registry gives it up if it cannot, and then every call says so. No process
 * hangs or crashes. (test_hostile.c overwrites at random; here each invariant is broken by
 * itself.) */
#include <sys/resource.h>

#include "test.h"

enum { SIZE = MD__MIN_CAPACITY + (1 << 16) };

static struct main_member m;
static md__reg *reg;
static struct md__header *h;
static md_record first, second;

static struct md__fact *fact_of(const md_record *r) {
    return md__at(reg, (uint32_t)r->ref, sizeof(struct md__fact));
}
static struct md__node *node_of(const char *name) {
    struct md__node *node = NULL;
    OK(md__node_find(reg, name, strlen(name), md__hash(name, strlen(name)), &node));
    return node;
}

/* Two facts under one key of name "n"; the rule of one of them allows more. */
static void open_it(uint64_t capacity) {
    m = open_main(NULL, capacity);
    OK(md__enter(m.reg, &reg));
    h = md__header(reg);
    OK(put(m, MD_STACK, "n", KEY, "older", &first));
    OK(put(m, MD_STACK, "n", KEY, "newer", &second));
    check_whole(m.reg);
}
static void close_it(void) {
    md__exit(reg);
    md_leave(m.reg, m.member);
    OK(md_close(m.reg));
}

/* A process dies while it holds the lock. */
static void hold_and_die(void *arg) {
    md__lock(reg);
    kill(getpid(), SIGKILL);
}
static void kill_a_holder(void) {
    EQ(reap(child(hold_and_die, NULL)), -SIGKILL);
}

/* --- what md_check finds ---------------------------------------------------------------------- */

static void lose_magic(void) {
    h->magic[0] = 'X';
}
static void end_beyond_the_memory(void) {
    md__poke64(&h->committed, md__peek64(&h->arena_top) - 8);
}
static void end_beyond_the_mapping(void) {
    md__poke64(&h->arena_top, reg->mapped + 8);
}
static void back_more_than_is_mapped(void) {
    md__poke64(&h->committed, reg->mapped + 4096);
}
static void make_a_second_unique_one(void) {
    md__poke32(&fact_of(&second)->rule, MD_UNIQUE);
}
static void break_a_unique_chain(void) {
    md__poke32(&fact_of(&second)->rule, MD_UNIQUE);
    md__poke32(&fact_of(&second)->next, 7);
}
static void lose_the_chain(void) {
    md__poke32(&node_of("n")->head, 7);
}
static void forget_the_facts(void) {
    md__poke32(&node_of("n")->head, 0);
}
static void turn_the_chain_round(void) {
    md__poke64(&fact_of(&first)->seq, md__peek64(&fact_of(&second)->seq) + 0);
}
static void belong_to_nobody(void) {
    md__poke32(&md__member(reg, 0)->process, 5000);
}
static void belong_to_a_free_slot(void) {
    md__poke32(&md__member(reg, 0)->process, 3);
}
static void have_more_members_than_slots(void) {
    md__poke32(&h->member_top, MD_MAX_MEMBERS + 1);
}
static void have_more_processes_than_slots(void) {
    md__poke32(&h->process_top, MD_MAX_PROCESSES + 1);
}
static void miscount(void) {
    md__poke64(&h->facts, 17);
}
static void lengthen_a_body(void) {
    md__poke32(&fact_of(&second)->body_len, 60000);
}
static void be_from_the_future(void) {
    md__poke64(&fact_of(&second)->seq, 1u << 30);
}
static void move_to_another_node(void) {
    md__poke32(&fact_of(&second)->node, 1);
}
static void lengthen_a_name(void) {
    node_of("n")->name_len = 1000;
}
static void change_a_hash(void) {
    node_of("n")->hash++;
}
static void mark_a_block(void) {
    md__poke32(&fact_of(&second)->block.tag, 1);
}

static void name_two_nodes_alike(void) {
    OK(put(m, MD_STACK, "o", KEY, "b", NULL));
    struct md__node *other = node_of("o");
    md__poke64(other->name, md__peek64(node_of("n")->name));
    other->hash = node_of("n")->hash;
}

static void claim_without_a_note(void) {
    md__poke32(&fact_of(&second)->kind, MD_CLAIM);
}
/* A node that had a name. */
static struct md__node *idle_node(void) {
    md_record r;
    OK(put(m, MD_STACK, "other", KEY, "b", &r));
    struct md__node *node = node_of("other");
    OK(strike_out(m, &r));
    EQ(md__peek32(&node->block.tag), MD__TAG_IDLE);
    return node;
}
static struct md__index *index_now(void) {
    return md__at(reg, (uint32_t)(md__peek64(&h->index) >> 8), 64);
}
static void name_an_idle_node(void) {
    md__poke32(&idle_node()->block.tag, MD__TAG_NODE);
}
static void hang_facts_on_an_idle_node(void) {
    md__poke32(&idle_node()->head, 7);
}
static void enter_an_idle_node(void) {
    struct md__node *node = idle_node();
    md__u64 *slot = index_now()->slots;
    while (md__peek64(slot)) slot++;
    md__poke64(slot, (uint64_t)node->hash << 32 | md__ref(reg, node));
}
static void lose_the_idle_nodes(void) {
    idle_node();
    memset(h->idle_lists, 0, sizeof h->idle_lists);
}
static void list_a_fact_as_idle(void) {
    h->idle_lists[0] = (uint32_t)first.ref;
}
static void list_idle_nodes_beyond_the_arena(void) {
    h->idle_lists[0] = UINT32_MAX;
}
static void miscount_idle_nodes(void) {
    md__poke64(&h->idle, 3);
}
static void have_no_index(void) {
    md__poke64(&h->index, 255);
}

static const struct {
    void (*spoil)(void);
    const char *words;
} SPOILT[] = {
    {lose_magic, "the magic is gone"},
    {end_beyond_the_memory, "the arena reaches beyond the memory that backs it"},
    {end_beyond_the_mapping, "the arena reaches beyond the memory that backs it"},
    {back_more_than_is_mapped, "the arena reaches beyond the memory that backs it"},
    {make_a_second_unique_one, "are both live under a rule that allows one"},
    {break_a_unique_chain, "which is no fact"},
    {lose_the_chain, "its chain leads to 7, which is no fact"},
    {forget_the_facts, "2 blocks are facts, 0 facts hang on nodes"},
    {turn_the_chain_round, "is not older than the one before it"},
    {belong_to_nobody, "member 0 belongs to process slot 5000, which is free"},
    {belong_to_a_free_slot, "member 0 belongs to process slot 3, which is free"},
    {have_more_members_than_slots, "more slots in use than there are"},
    {have_more_processes_than_slots, "more slots in use than there are"},
    {miscount, "facts: 2 by count, 17 in the header"},
    {lengthen_a_body, "is longer than its block"},
    {be_from_the_future, "has a seq that was not given out yet"},
    {move_to_another_node, "names another node than the one it hangs on"},
    {lengthen_a_name, "is longer than its block"},
    {change_a_hash, "has a wrong hash"},
    {mark_a_block, "has an unknown tag"},
    {name_two_nodes_alike, "is not found by its name"},
    {claim_without_a_note, "belongs to a member that is gone"},
    {name_an_idle_node, "has a name and no facts"},
    {hang_facts_on_an_idle_node, "has facts and no name"},
    {enter_an_idle_node, "1 nodes have names, 2 entries are in the index"},
    {lose_the_idle_nodes, "1 blocks are idle, 0 are in the idle lists"},
    {list_a_fact_as_idle, "which is no idle block of its class"},
    {list_idle_nodes_beyond_the_arena, "which is no idle block of its class"},
    {miscount_idle_nodes, "idle nodes: 0 by count, 3 in the header"},
    {have_no_index, "1 nodes have names, 0 entries are in the index"},
};

TEST(each_broken_invariant_is_told_in_words) {
    char words[4096];
    for (size_t i = 0; i < sizeof SPOILT / sizeof *SPOILT; i++) {
        open_it(SIZE);
        SPOILT[i].spoil();
        EQ(md_check(m.reg, words, sizeof words), MD_EDAMAGED);
        if (!CHECK(strstr(words, SPOILT[i].words)))
            fprintf(stderr, "    wanted: %s\n    found: %s\n", SPOILT[i].words, words);
        close_it();
    }
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MEMORY_IS_LIMITED = 0 }; /* a sanitizer has its own way with it */
#else
enum { MEMORY_IS_LIMITED = 1 };
#endif

/* Its table of the facts of one name is too large for what is left. */
static void check_without_memory(void *arg) {
    FILE *file = fopen("/proc/self/statm", "r");
    rlim_t pages = 0;
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    OK(setrlimit(RLIMIT_AS, &(struct rlimit){pages * 4096, pages * 4096}));
    OK(md_check(m.reg, NULL, 0));
}

TEST(a_check_that_has_no_memory_finds_nothing_wrong) {
    open_it(1 << 23);
    for (int i = 0; i < 20000; i++) OK(put(m, MD_STACK, "n", KEY, "b", NULL));
    make_a_second_unique_one();
    EQ(md_check(m.reg, NULL, 0), MD_EDAMAGED);
    if (MEMORY_IS_LIMITED) EQ(reap(child(check_without_memory, NULL)), 0);
    close_it();
}

TEST(the_words_are_cut_off_where_the_buffer_ends) {
    char words[64];
    open_it(SIZE);
    miscount();
    lose_the_chain();
    for (size_t cap = 0; cap < sizeof words; cap++) {
        memset(words, '#', sizeof words);
        EQ(md_check(m.reg, words, cap), MD_EDAMAGED);
        CHECK(cap == 0 || memchr(words, '\0', cap));
        CHECK(words[cap] == '#');
    }
    close_it();
}

/* --- what no recovery can repair -------------------------------------------------------------- */

static void have_a_short_block(void) {
    fact_of(&second)->block.size = 8;
}
static void have_a_long_block(void) {
    fact_of(&second)->block.size = 1u << 30;
}
static void have_a_crooked_block(void) {
    fact_of(&second)->block.size = 72;
}
/* Of no class, though it could be a step to the next block. */
static void have_an_odd_block(void) {
    fact_of(&first)->block.size = 144;
}
static void fill_the_index(void) {
    struct md__index *index = index_now();
    for (int i = 0; i < 1 << MD__FIRST_INDEX_LOG2; i++)
        md__poke64(&index->slots[i], 0xabcull << 32 | 1);
}

static void check_given_up(void) {
    char words[256] = "", buf[BUF];
    uint64_t member, now;
    uint32_t role;
    md_wait_stats w = {0};
    EQ(md_check(m.reg, words, sizeof words), MD_EDAMAGED);
    CHECK(strstr(words, "the lock cannot be had: the registry is damaged"));
    EQ(put(m, MD_STACK, "n", KEY, "third", NULL), MD_EDAMAGED);
    EQ(strike_out(m, &first), MD_EDAMAGED);
    EQ(md_join(m.reg, 1, &member, &role), MD_EDAMAGED);
    EQ(md_leave(m.reg, m.member), MD_EDAMAGED);
    EQ(md_await(m.reg, m.member, MD_IMPL, 99, 1, "n", 1, MD_FOREVER, 0, buf, sizeof buf, &w),
       MD_EDAMAGED);
    EQ(md_await_change(m.reg, m.member, UINT64_MAX, MD_FOREVER, 0, &now, &w), MD_EDAMAGED);
    md__exit(reg);
    OK(md_close(m.reg));
}

TEST(what_cannot_be_repaired_is_given_up_and_every_call_says_so) {
    static void (*const spoils[])(void) = {
        lose_magic,       end_beyond_the_mapping, have_a_short_block, have_a_crooked_block,
        have_no_index,    fill_the_index,         lengthen_a_name,    make_a_second_unique_one,
        have_an_odd_block};
    char words[256];
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
        open_it(SIZE);
        spoils[i]();
        kill_a_holder();
        EQ(md_check(m.reg, words, sizeof words), MD_EDAMAGED);
        check_given_up();
    }
}

/* Too long for any class, though it has a size that a class could have. */
TEST(a_block_that_is_larger_than_any_is_not_taken_for_one) {
    uint32_t ref;
    open_it(1ull << 31);
    OK(md__lock(reg));
    EQ(md__alloc(reg, 1ull << 30, &ref), MD_EFULL);
    md__unlock(reg);
    check_whole(m.reg);
    have_a_long_block();
    md__poke64(&h->arena_top, reg->mapped - 4096);
    md__poke64(&reg->backed, reg->mapped); /* it is not; a reader looks at the block's head only */
    kill_a_holder();
    EQ(md_check(m.reg, NULL, 0), MD_EDAMAGED);
    check_given_up();
}

TEST(a_block_of_a_size_that_no_class_has_is_not_kept_for_later) {
    static void (*const spoils[])(void) = {have_a_long_block, have_a_crooked_block};
    for (size_t k = 0; k < sizeof spoils / sizeof *spoils; k++) {
        open_it(SIZE);
        spoils[k]();
        OK(strike_out(m, &second));
        for (uint32_t i = 0; i < MD__CLASSES; i++) EQ(h->free_lists[i], 0);
        close_it();
    }
}

/* Nothing is ever entered into, or taken out of, memory that is no index. */
TEST(a_name_is_entered_and_taken_out_only_where_there_is_an_index) {
    static void (*const spoils[])(void) = {have_no_index, fill_the_index};
    for (size_t k = 0; k < sizeof spoils / sizeof *spoils; k++) {
        open_it(SIZE);
        struct md__node *node = node_of("n");
        spoils[k]();
        EQ(md__node_publish(reg, node), MD_EDAMAGED);
        md__node_give_back(reg, node);
        EQ(md__peek32(&node->block.tag), MD__TAG_IDLE);
        close_it();
    }
}

TEST(a_name_that_the_index_has_lost_can_end_all_the_same) {
    open_it(SIZE);
    struct md__node *node = node_of("n");
    struct md__index *index = index_now();
    for (int i = 0; i < 1 << MD__FIRST_INDEX_LOG2; i++) md__poke64(&index->slots[i], 0);
    OK(strike_out(m, &second));
    OK(strike_out(m, &first));
    EQ(md__peek32(&node->block.tag), MD__TAG_IDLE);
    check_whole(m.reg);
    close_it();
}

TEST(an_idle_node_that_is_none_is_not_given_a_name) {
    open_it(SIZE);
    struct md__node *node = idle_node();
    uint32_t size = node->block.size;
    md__poke32(&node->block.tag, MD__TAG_FACT);
    EQ(put(m, MD_STACK, "another", KEY, "b", NULL), MD_EDAMAGED);
    md__poke32(&node->block.tag, MD__TAG_IDLE);
    node->block.size = 2 * size;
    EQ(put(m, MD_STACK, "another", KEY, "b", NULL), MD_EDAMAGED);
    node->block.size = size;
    h->idle_lists[0] = UINT32_MAX;
    EQ(put(m, MD_STACK, "another", KEY, "b", NULL), MD_EDAMAGED);
    close_it();
}

/* A node whose size no class has, or that is larger than any, is not kept for another name. */
TEST(an_idle_node_of_a_size_that_no_class_has_is_not_kept) {
    static const uint32_t SIZES[] = {72, 1u << 30};
    for (int k = 0; k < 2; k++) {
        open_it(SIZE);
        struct md__node *node = node_of("n");
        node->block.size = SIZES[k];
        OK(strike_out(m, &second));
        OK(strike_out(m, &first));
        EQ(md__peek32(&node->block.tag), MD__TAG_IDLE);
        for (uint32_t i = 0; i < MD__CLASSES; i++) EQ(h->idle_lists[i], 0);
        close_it();
    }
}

/* --- calls on what is damaged ----------------------------------------------------------------- */

TEST(a_sleeper_is_told_that_the_registry_was_given_up) {
    struct waiter w = {0};
    open_it(SIZE);
    waiter_start(&w, m.reg, m.member, "later");
    lose_magic();
    kill_a_holder();
    EQ(md_check(m.reg, NULL, 0), MD_EDAMAGED);
    EQ(waiter_end(&w), MD_EDAMAGED);
    close_it();
}

TEST(readers_of_a_chain_that_cannot_be_true_say_so) {
    char buf[BUF];
    size_t size;
    uint64_t version, node;
    open_it(SIZE);
    turn_the_chain_round();
    EQ(md_find(m.reg, MD_IMPL, 99, "n", 1, buf, sizeof buf), MD_EDAMAGED);
    EQ(md_list(m.reg, "n", 1, buf, sizeof buf, &size, &version, &node), MD_EDAMAGED);
    md__poke32(&h->state, MD__DAMAGED); /* the second look cannot get the lock */
    EQ(md_find(m.reg, MD_IMPL, 99, "n", 1, buf, sizeof buf), MD_EDAMAGED);
    EQ(md_list(m.reg, "n", 1, buf, sizeof buf, &size, &version, &node), MD_EDAMAGED);
    close_it();
}

TEST(an_arena_that_ends_beyond_the_mapping_is_not_walked) {
    char buf[BUF];
    size_t size;
    uint64_t version, node;
    open_it(SIZE);
    uint64_t top = md__peek64(&h->arena_top);
    end_beyond_the_mapping();
    EQ(md_list(m.reg, NULL, 0, buf, sizeof buf, &size, &version, &node), MD_EDAMAGED);
    md__poke64(&h->arena_top, top);
    check_whole(m.reg);
    close_it();
}

/* Bytes that are said to be backed by memory, but are not, are not touched. */
TEST(memory_that_is_there_by_the_header_only_is_not_given_out) {
    static char body[60000];
    char buf[BUF];
    struct stat st;
    open_it(SIZE);
    uint64_t committed = md__peek64(&h->committed);
    md__poke64(&h->committed, reg->mapped);
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, "n", 1, body, sizeof body, "", 0, buf,
                   sizeof buf),
       MD_EDAMAGED);
    OK(fstat(reg->fd, &st));
    EQ(st.st_size, committed);
    OK(fallocate(reg->fd, 0, 0, (off_t)reg->mapped)); /* as if another process had grown it */
    EQ(md_register(m.reg, m.member, MD_IMPL, MD_STACK, KEY, "n", 1, body, sizeof body, "", 0, buf,
                   sizeof buf),
       MD_ENOBUFS);
    check_whole(m.reg);
    close_it();
}

/* In a file that is longer than the registry, the rest is not read. */
TEST(what_lies_behind_the_capacity_is_no_part_of_the_registry) {
    open_it(SIZE);
    OK(fallocate(reg->fd, 0, 0, (off_t)reg->mapped + 8192));
    EQ(md__region_top(reg, reg->mapped), reg->mapped);
    EQ(md__peek64(&reg->backed), reg->mapped);
    EQ(md__region_top(reg, reg->mapped + 4096), 0);
    check_whole(m.reg);
    close_it();
}

/* A full index has no empty place to end a search. */
TEST(a_search_in_a_full_index_ends) {
    open_it(SIZE);
    fill_the_index();
    EQ(find(m.reg, "n", KEY, NULL, 0), MD_ENOENT);
    EQ(put(m, MD_STACK, "other", KEY, "b", NULL), MD_EDAMAGED);
    close_it();
}

/* A name whose length reaches beyond the arena is not compared. */
TEST(a_name_that_reaches_beyond_the_arena_is_not_read) {
    char name[MD_MAX_NAME];
    memset(name, 'n', sizeof name);
    open_it(SIZE);
    struct md__index *index = index_now();
    uint32_t hash = md__hash(name, sizeof name), last = (uint32_t)second.ref;
    struct md__node *node = md__fresh(reg, last); /* the last block of the arena */
    node->name_len = sizeof name;
    md__poke32(&node->block.tag, MD__TAG_NODE);
    md__poke64(&index->slots[hash % (1 << MD__FIRST_INDEX_LOG2)], (uint64_t)hash << 32 | last);
    struct md__node *found;
    EQ(md__node_find(reg, name, sizeof name, hash, &found), MD_ENOENT);
    close_it();
}

/* The same for a name that is not looked for, but met on the way through the arena. */
TEST(a_name_that_reaches_beyond_the_arena_is_not_listed) {
    char buf[BUF];
    size_t size;
    uint64_t version, its;
    open_it(SIZE);
    struct md__node *node = md__fresh(reg, (uint32_t)second.ref);
    md__poke32(&node_of("n")->head, 0);
    md__poke32(&fact_of(&first)->node, (uint32_t)second.ref);
    node->name_len = MD_MAX_NAME;
    md__poke32(&node->head, (uint32_t)first.ref);
    md__poke32(&node->block.tag, MD__TAG_NODE);
    EQ(md_list(m.reg, NULL, 0, buf, sizeof buf, &size, &version, &its), MD_EDAMAGED);
    close_it();
}

TEST(an_arena_that_ends_before_it_begins_has_no_room) {
    uint32_t ref;
    open_it(SIZE);
    uint64_t top = md__peek64(&h->arena_top);
    md__poke64(&h->arena_top, MD__ARENA_AT - 16);
    EQ(md__alloc(reg, 64, &ref), MD_EDAMAGED);
    md__poke64(&h->arena_top, top);
    close_it();
}

static void join_and_die(void *address) {
    attach_worker(address);
    raise(SIGKILL);
}

TEST(no_more_processes_are_looked_at_than_there_are_slots) {
    char address[MD_MAX_ADDRESS];
    open_it(SIZE);
    OK(md_address(m.reg, address, sizeof address));
    EQ(reap(child(join_and_die, address)), -SIGKILL);
    EQ(md__read32(&md__process(reg, 1)->state), MD__LIVE);
    md__poke32(&h->process_top, MD_MAX_PROCESSES + 1);
    EQ(md__is_anyone_here(reg), 0);
    OK(md__lock(reg));
    md__sweep(reg);
    md__unlock(reg);
    EQ(md__read32(&md__process(reg, 1)->state), MD__FREE);
    md__poke32(&h->process_top, 2);
    check_whole(m.reg);
    close_it();
}

TEST(a_strike_of_what_hangs_nowhere_finds_nothing) {
    open_it(SIZE);
    struct md__fact *f = fact_of(&second);
    uint32_t node = md__peek32(&f->node), head = md__peek32(&node_of("n")->head);
    md__poke32(&f->node, 0);
    EQ(strike_out(m, &second), MD_ENOENT);
    md__poke32(&f->node, (uint32_t)first.ref);
    EQ(strike_out(m, &second), MD_ENOENT);
    md__poke32(&f->node, node);
    md__poke32(&node_of("n")->head, 0);
    EQ(strike_out(m, &second), MD_ENOENT);
    md__poke32(&node_of("n")->head, head);
    check_whole(m.reg);
    OK(strike_out(m, &second));
    close_it();
}

TEST(a_fact_in_the_way_that_cannot_be_true_is_not_shown) {
    open_it(SIZE);
    lengthen_a_body();
    md__poke32(&fact_of(&second)->body_len, MD_MAX_BODY + 1);
    EQ(put(m, MD_UNIQUE, "n", KEY, "third", NULL), MD_EDAMAGED);
    close_it();
}

/* --- slots ------------------------------------------------------------------------------------ */

static void attach_and_join(void *arg) {
    md_registry mine;
    uint64_t member;
    uint32_t role;
    OK(md_attach(arg, 0, &mine));
    EQ(md_join(mine, 0, &member, &role), MD_EMEMBERS);
    OK(md_close(mine));
}

/* More processes than a test wants to start: their slots are written by hand, as if they lived. */
TEST(there_is_room_for_1024_processes_and_an_error_for_one_more) {
    char address[MD_MAX_ADDRESS];
    open_it(SIZE);
    OK(md_address(m.reg, address, sizeof address));
    for (uint32_t i = 1; i < MD_MAX_PROCESSES; i++) {
        struct md__process *p = md__process(reg, i);
        md__poke32(md__lease_word(p), 1);
        md__poke32(&p->state, MD__LIVE);
    }
    md__poke32(&h->process_top, MD_MAX_PROCESSES);
    EQ(reap(child(attach_and_join, address)), 0);
    for (uint32_t i = 1; i < MD_MAX_PROCESSES; i++) {
        md__poke32(md__lease_word(md__process(reg, i)), 0);
        md__poke32(&md__process(reg, i)->state, MD__FREE);
    }
    check_whole(m.reg);
    close_it();
}

TEST(a_member_that_cannot_be_one_is_no_member) {
    open_it(SIZE);
    EQ(md_leave(m.reg, MD_MAX_MEMBERS), MD_ENOENT);
    EQ(md_leave(m.reg, UINT64_MAX), MD_ENOENT);
    EQ(md_leave(m.reg, 1), MD_ECLOSED);
    close_it();
}

int main(void) {
    RUN(each_broken_invariant_is_told_in_words);
    RUN(a_check_that_has_no_memory_finds_nothing_wrong);
    RUN(the_words_are_cut_off_where_the_buffer_ends);
    RUN(what_cannot_be_repaired_is_given_up_and_every_call_says_so);
    RUN(a_block_that_is_larger_than_any_is_not_taken_for_one);
    RUN(a_block_of_a_size_that_no_class_has_is_not_kept_for_later);
    RUN(a_name_is_entered_and_taken_out_only_where_there_is_an_index);
    RUN(a_name_that_the_index_has_lost_can_end_all_the_same);
    RUN(an_idle_node_that_is_none_is_not_given_a_name);
    RUN(an_idle_node_of_a_size_that_no_class_has_is_not_kept);
    RUN(a_sleeper_is_told_that_the_registry_was_given_up);
    RUN(readers_of_a_chain_that_cannot_be_true_say_so);
    RUN(an_arena_that_ends_beyond_the_mapping_is_not_walked);
    RUN(memory_that_is_there_by_the_header_only_is_not_given_out);
    RUN(what_lies_behind_the_capacity_is_no_part_of_the_registry);
    RUN(a_search_in_a_full_index_ends);
    RUN(a_name_that_reaches_beyond_the_arena_is_not_read);
    RUN(a_name_that_reaches_beyond_the_arena_is_not_listed);
    RUN(an_arena_that_ends_before_it_begins_has_no_room);
    RUN(no_more_processes_are_looked_at_than_there_are_slots);
    RUN(a_strike_of_what_hangs_nowhere_finds_nothing);
    RUN(a_fact_in_the_way_that_cannot_be_true_is_not_shown);
    RUN(there_is_room_for_1024_processes_and_an_error_for_one_more);
    RUN(a_member_that_cannot_be_one_is_no_member);
    return test_done();
}
