/* Nothing in a region is trusted as an index or an offset: with any words of it overwritten, every
 * call returns, with a status or with what looked right, and none crashes, hangs or reaches
 * outside. Seeded: MD_SEED replays a run. */
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

/* A place whose content is worth doubting. Not the lock's and the lease's: what those say is the
 * kernel's business. */
static size_t draw_place(void) {
    size_t lock = offsetof(struct md__header, mutex), slot = MD__PROCESSES_AT, at;
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
    } while ((at >= lock && at < lock + sizeof(pthread_mutex_t)) ||
             (at >= slot && at < slot + sizeof(pthread_mutex_t)));
    return at;
}

static uint32_t draw_value(const char *bytes) {
    uint32_t v;
    switch (draw() % 6) {
    case 0:
        return 0;
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

static void lay_down_spoiled(void) {
    char *copy = malloc(good_size);
    memcpy(copy, good, good_size);
    for (uint32_t n = 1 + draw() % 6; n; n--) {
        size_t at = draw_place();
        uint32_t v = draw_value(copy);
        memcpy(copy + at, &v, 4);
    }
    unlink(path);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    EQ(write(fd, copy, good_size), good_size);
    close(fd);
    free(copy);
}

static void check_answer(int rc) {
    CHECK(rc <= 0);
}

/* Every call once, first those that only look. */
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
    alarm(5);
    if (md_attach(name, 0, &reg)) return; /* refused: fine */
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
    md__reg *inside; /* and what the next one does after a death */
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

TEST(with_any_words_overwritten_every_call_returns) {
    struct main_member model = take_model();
    const char *again = getenv("MD_SEED");
    uint64_t start = again ? strtoull(again, NULL, 0) : (uint64_t)md_now();
    int times = again ? 1 : rounds(1500);
    snprintf(name, sizeof name, "hostile-%d", (int)getpid());
    snprintf(path, sizeof path, "/dev/shm/mdispatch-%u/%s", (unsigned)geteuid(), name);
    md_registry none; /* makes the folder */
    EQ(md_attach(name, 0, &none), MD_ENOENT);
    for (int i = 0; i < times; i++) {
        seed = start + (uint64_t)i;
        lay_down_spoiled();
        if (!EQ(reap(child(use_all, NULL)), 0))
            fprintf(stderr, "    MD_SEED=%llu\n", (unsigned long long)start + i);
    }
    unlink(path);
    close_main(model);
    free(good);
}

int main(void) {
    RUN(with_any_words_overwritten_every_call_returns);
    return test_done();
}
