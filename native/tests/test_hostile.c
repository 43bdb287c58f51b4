/* The core trusts no index and no offset in a region: whatever words are overwritten, every call
 * returns a status, or a result that looked right; none crashes, hangs or reads outside. Seeded:
 * MD_SEED replays a run. */
#include "test.h"

enum { SIZE = MD__MIN_CAPACITY + (1 << 18), FACTS = 60 };

static char name[64], path[160];
static char *good;
static size_t good_size, good_top;

static uint64_t seed;
static uint32_t draw(void) { /* splitmix64 */
    uint64_t z = (seed += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(z >> 32);
}

static struct main_member take_model(void) {
    struct main_member m = open_main(NULL, SIZE);
    md_record r[FACTS];
    md__reg *reg;
    struct stat st;
    for (int i = 0; i < FACTS; i++) {
        char fact_name[16], body[64];
        snprintf(fact_name, sizeof fact_name, "n%d", i % 7);
        snprintf(body, sizeof body, "%*d", i % 50 + 1, i);
        OK(put(m, i % 3 ? MD_STACK : MD_UNIQUE, fact_name, i, body, &r[i]));
    }
    for (int i = 0; i < FACTS; i += 4) OK(strike_out(m, &r[i]));
    OK(md__enter(m.reg, &reg));
    if (fstat(reg->fd, &st)) abort();
    good_size = (size_t)st.st_size;
    good_top = (size_t)md__read64(&md__header(reg)->arena_top);
    good = malloc(good_size);
    EQ(pread(reg->fd, good, good_size, 0), good_size);
    md__exit(reg);
    return m;
}

/* Mutexes that a process may hold. The C library trusts their content, so a process that writes
 * there writes into the holder's memory: docs/security.md says what that means. */
static bool is_of_a_lock(size_t at) {
    size_t lock = offsetof(struct md__header, mutex);
    if (at >= MD__PROCESSES_AT && at < MD__MEMBERS_AT)
        return (at - MD__PROCESSES_AT) % sizeof(struct md__process) < sizeof(pthread_mutex_t);
    return at >= lock && at < lock + sizeof(pthread_mutex_t);
}

/* A place whose content a reader has to doubt. */
static size_t draw_place(void) {
    size_t at;
    do {
        switch (draw() % 8) {
        case 0:
            at = offsetof(struct md__header, committed) + draw() % (sizeof(struct md__header) - 64);
            break;
        case 1:
            at = MD__EVENTS_AT + draw() % 65536;
            break;
        case 2:
            at = MD__MEMBERS_AT + draw() % 1024;
            break;
        default:
            at = MD__ARENA_AT + draw() % (good_top - MD__ARENA_AT);
        }
        at &= ~(size_t)3;
    } while (is_of_a_lock(at));
    return at;
}

static uint32_t draw_value(const char *bytes) {
    uint32_t v;
    switch (draw() % 7) {
    case 0:
        return 0;
    case 5: /* mapped, but perhaps not backed by memory */
        return (uint32_t)(MD__ARENA_AT + draw() % (SIZE - MD__ARENA_AT)) & ~15u;
    case 1:
        return UINT32_MAX - draw() % 3;
    case 2:
        return draw();
    case 3:
        return draw() % 300;
    case 4:
        return (uint32_t)(MD__ARENA_AT + draw() % (good_top - MD__ARENA_AT)) / 8;
    default:
        memcpy(&v, bytes + draw_place(), 4);
        return v;
    }
}

static void lay_down(const char *bytes) {
    unlink(path);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    EQ(write(fd, bytes, good_size), good_size);
    close(fd);
}

static void lay_down_spoiled(void) {
    char *copy = malloc(good_size);
    memcpy(copy, good, good_size);
    for (uint32_t n = 1 + draw() % 6; n; n--) {
        size_t at = draw_place();
        uint32_t v = draw_value(copy);
        memcpy(copy + at, &v, 4);
    }
    lay_down(copy);
    free(copy);
}

/* The words that all walks follow: the arena's end, and the sizes and lengths of a node. */
static size_t draw_way_mark(void) {
    size_t at = MD__ARENA_AT, hops = draw() % 20;
    struct md__node node;
    switch (draw() % 4) {
    case 0:
        return offsetof(struct md__header, arena_top);
    case 1:
        return offsetof(struct md__header, committed);
    default:
        do {
            memcpy(&node, good + at, sizeof node);
            if (at + node.block.size >= good_top) break;
            at += node.block.size;
        } while (hops-- || md__peek32(&node.block.tag) != MD__TAG_NODE);
        return at + (draw() % 2 ? 0 : offsetof(struct md__node, name_len));
    }
}

/* Overwrites words of the file and restores them, for ever: a call may find other values than it
 * has just checked. */
static void intrude(void *ready) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    char *base = mmap(NULL, good_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) abort();
    step_give(*(struct step *)ready);
    for (;;) {
        size_t at = draw() % 2 ? draw_place() : draw_way_mark();
        volatile uint32_t *word = (volatile uint32_t *)(base + at);
        uint32_t value = draw_value(good), was;
        memcpy(&was, good + at, 4);
        for (uint32_t n = draw() % 5000; n; n--) {
            *word = value;
            *word = was;
        }
    }
}

static void check_answer(int rc) {
    CHECK(rc <= 0);
}

/* Makes every call once, first those that only read. */
static void use_all(void *arg) {
    (void)arg;
    static char buf[1 << 20];
    md_registry reg;
    struct main_member w;
    md_member_info info[64];
    md_stats stats;
    md_record r[8];
    size_t size;
    uint64_t version, node;
    uint32_t role;
    alarm((unsigned)limit(5));
    if (md_attach(name, 0, &reg)) return; /* it is refused, which is fine */
    check_answer(md_list(reg, NULL, 0, buf, sizeof buf, &size, &version, &node));
    check_answer(md_list_since(reg, MD_IMPL, 9, buf, sizeof buf, &size, &version));
    check_answer(md_stat(reg, &stats));
    check_answer(md_members(reg, info, 64, &size));
    for (int i = 0; i < 8; i++) {
        char fact_name[4] = {'n', (char)('0' + i)};
        check_answer(md_find(reg, MD_IMPL, i, fact_name, 2, buf, sizeof buf));
        check_answer(md_list(reg, fact_name, 2, buf, sizeof buf, &size, &version, &node));
        check_answer(md_version(reg, draw() % 65536, &version));
    }
    check_answer(md_check(reg, buf, 4096));
    w.reg = reg;
    if (md_join(reg, 0, &w.member, &role)) return;
    md_wait_stats s;
    check_answer(await_fact(reg, w.member, "n1", 100, md_now() + 100000, 0, &s));
    check_answer(md_await_change(reg, w.member, 0, md_now() + 100000, 0, &version, &s));
    check_answer(md_await_change(reg, w.member, version, md_now() + 100000, 0, &version, &s));
    promote(reg, w.member);
    for (int i = 0; i < 8; i++) {
        char fact_name[4] = {'n', (char)('0' + i)};
        memset(&r[i], 0, sizeof r[i]);
        check_answer(
            put(w, i % 2 ? MD_UNIQUE : MD_STACK | MD_RAISE_ALL, fact_name, 1000 + i, "new", &r[i]));
        check_answer(md_strike(reg, w.member, draw() % 65536, draw() % 100));
    }
    for (int i = 0; i < 8; i++) check_answer(strike_out(w, &r[i]));
    check_answer(md_check(reg, buf, 4096));
    md__reg *inside; /* and the call that follows a death */
    if (md__enter(reg, &inside)) return;
    if (md__lock(inside) == 0) {
        check_answer(md__rebuild(inside));
        md__check(inside, buf, 4096);
        md__unlock(inside);
    }
    md__exit(inside);
    check_answer(md_leave(reg, w.member));
    check_answer(md_close(reg));
}

static struct main_member set_up(uint64_t *start) {
    struct main_member model = take_model();
    *start = test_seed();
    snprintf(name, sizeof name, "hostile-%d", (int)getpid());
    md__file_path(path, sizeof path, name);
    md_registry none; /* this makes the folder */
    EQ(md_attach(name, 0, &none), MD_ENOENT);
    return model;
}

TEST(with_any_words_overwritten_every_call_returns) {
    uint64_t start;
    int times = rounds(1500);
    struct main_member model = set_up(&start);
    for (int i = 0; i < times; i++) {
        seed = start + (uint64_t)i;
        lay_down_spoiled();
        if (!EQ(reap(child(use_all, NULL)), 0))
            fprintf(stderr, "    MD_SEED=%llu MD_ROUNDS=0.0001\n", (unsigned long long)start + i);
    }
    unlink(path);
    close_main(model);
    free(good);
}

static void use_all_often(void *arg) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < 40; i++) {
        EQ(pwrite(fd, good, good_size, 0), good_size); /* the last use closed it */
        use_all(arg);
    }
}

TEST(while_somebody_writes_into_it_every_call_returns) {
    uint64_t start;
    int times = rounds(25);
    struct main_member model = set_up(&start);
    for (int i = 0; i < times; i++) {
        struct step ready = step_make();
        seed = start + (uint64_t)i;
        lay_down(good);
        pid_t intruder = child(intrude, &ready);
        CHECK(step_take(ready));
        step_free(ready);
        if (!EQ(reap(child(use_all_often, NULL)), 0))
            fprintf(stderr, "    MD_SEED=%llu MD_ROUNDS=0.0001\n", (unsigned long long)start + i);
        kill_now(intruder);
    }
    unlink(path);
    close_main(model);
    free(good);
}

/* --- a lock that was written over ----------------------------------------------------------- */

struct lock_noise {
    size_t word;
    uint32_t value;
    int rc; /* of the call that takes the lock */
    int64_t took;
};

static void lock_it(void *arg) {
    struct lock_noise *noise = arg;
    char words[4096];
    md_registry reg;
    alarm((unsigned)limit(5));
    OK(md_attach(name, 0, &reg));
    noise->took = md_now();
    noise->rc = md_check(reg, words, sizeof words);
    noise->took = md_now() - noise->took;
    OK(md_close(reg));
}

static void try_lock_noise(struct lock_noise *noise, size_t word, uint32_t value) {
    char *copy = malloc(good_size);
    memcpy(copy, good, good_size);
    memcpy(copy + offsetof(struct md__header, mutex) + 4 * word, &value, 4);
    lay_down(copy);
    free(copy);
    if (!EQ(reap(child(lock_it, noise)), 0))
        fprintf(stderr, "    word %zu of the mutex is %#x\n", word, value);
}

/* The time is the shortest of three tries, since a busy machine adds to it. */
TEST(a_lock_that_was_written_over_is_an_error_and_no_crash) {
    enum { WORDS = sizeof(pthread_mutex_t) / 4, NOBODY = 0x3ffffff0 };
    static const uint32_t values[] = {1,          2,          3,          0x10,       0x20,
                                      0x40,       0x80,       0x90,       0xb0,       0xd0,
                                      0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, NOBODY};
    uint64_t start;
    struct main_member model = set_up(&start);
    struct lock_noise *noise = shared(sizeof *noise);
    size_t lock_word = (size_t)((char *)md__mutex_word((pthread_mutex_t *)good) - good) / 4;
    for (size_t word = 0; word < WORDS; word++) {
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            if (word == lock_word && values[i] < 1000) continue; /* the id of some process */
            int64_t least = INT64_MAX;
            for (int try = 0; try < 3 && least > limit(100000000); try++) {
                try_lock_noise(noise, word, values[i]);
                if (noise->took < least) least = noise->took;
            }
            CHECK(least <= limit(100000000));
            CHECK(noise->rc == 0 || noise->rc == MD_EDAMAGED);
        }
    }
    try_lock_noise(noise, lock_word, NOBODY);
    EQ(noise->rc, MD_EDAMAGED);
    munmap(noise, sizeof *noise);
    unlink(path);
    close_main(model);
    free(good);
}

int main(void) {
    RUN(with_any_words_overwritten_every_call_returns);
    RUN(while_somebody_writes_into_it_every_call_returns);
    RUN(a_lock_that_was_written_over_is_an_error_and_no_crash);
    return test_done();
}
