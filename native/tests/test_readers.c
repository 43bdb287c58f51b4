/* Readers beside a writer that never rests: every record is one that a writer has written as a
 * whole, and every list was true at one moment. There are few names and many lengths, so that
 * blocks are struck and used again while readers read them. */
#include "trace.h"

enum { SIZE = MD__MIN_CAPACITY + (1 << 20), NAMES = 3, DEEP = 6, READERS = 3 };
enum { MOST = DEEP + 2 }; /* a killed writer leaves some */

static const char *const names[NAMES] = {"ns::a", "ns::bb", "ns::with_a_longer_name"};

struct play {
    char address[MD_MAX_ADDRESS];
    struct main_member m; /* for threads */
    int64_t end;
    md__u64 reads, writes, empty, bad;
};

/* A body that describes itself: its length, its name, a number, and bytes that follow from the
 * number. */
static size_t write_body(char *body, int name, uint32_t number) {
    size_t len = 8 + number * 2654435761u % 300;
    memcpy(body, &number, 4);
    uint32_t seal = number * 31 + (uint32_t)name * 7 + (uint32_t)len;
    memcpy(body + 4, &seal, 4);
    for (size_t i = 8; i < len; i++) body[i] = (char)(number + i * 13);
    return len;
}

static int is_whole(const char *packed, const md_record *r, int name) {
    char body[512];
    uint32_t number;
    const char *there = packed + sizeof *r + r->name_len;
    if (r->name_len != strlen(names[name]) || memcmp(packed + sizeof *r, names[name], r->name_len))
        return 0;
    if (r->kind != MD_IMPL || r->body_len < 8 || r->body_len > 308 || r->where_len != 3) return 0;
    memcpy(&number, there, 4);
    size_t len = write_body(body, name, number);
    return r->body_len == len && r->key == (int32_t)(number % 2) && !memcmp(there, body, len) &&
           !memcmp(there + len, "w:1", 3);
}

/* Until the time is over, and as much has been read and written as play_end asks. */
static int goes_on(struct play *p) {
    return !test_failures && (md_now() < p->end || p->writes <= 100 || p->reads <= 10);
}

/* Facts come and go at both ends and in the middle. Each name always has one under key 0 or 1. */
static void write_for_long(struct play *p, struct main_member m) {
    md_record live[NAMES][DEEP];
    int depth[NAMES] = {0};
    uint32_t number = 0, random = (uint32_t)(test_seed() + p->writes);
    while (goes_on(p)) {
        char body[512], buf[1024];
        random = random * 1103515245 + 12345;
        int n = (int)(random >> 16) % NAMES;
        if (depth[n] == DEEP || (depth[n] > 1 && random >> 31)) {
            int i = (int)(random >> 8) % depth[n];
            OK(strike_out(m, &live[n][i]));
            live[n][i] = live[n][--depth[n]];
        } else {
            number++;
            size_t len = write_body(body, n, number);
            OK(md_register(m.reg, m.member, MD_IMPL, MD_STACK, (int32_t)(number % 2), names[n],
                           strlen(names[n]), body, len, "w:1", 3, buf, sizeof buf));
            memcpy(&live[n][depth[n]++], buf, sizeof(md_record));
        }
        atomic_fetch_add(&p->writes, 1);
    }
}

static void read_one(struct play *p, md_registry reg, int n, int key) {
    char buf[1024];
    md_record r;
    int rc = md_find(reg, MD_IMPL, key, names[n], strlen(names[n]), buf, sizeof buf);
    if (rc == MD_ENOENT) {
        atomic_fetch_add(&p->empty, 1);
        return;
    }
    if (!OK(rc)) return;
    memcpy(&r, buf, sizeof r);
    CHECK(is_whole(buf, &r, n) && r.key == key);
}

static void read_list(md_registry reg, int n, int must_have_some) {
    char buf[MOST * 512];
    size_t size, count = 0;
    uint64_t version, node, seq = 0;
    md_record r;
    if (!OK(md_list(reg, names[n], strlen(names[n]), buf, sizeof buf, &size, &version, &node)))
        return;
    for (size_t at = 0; at < size; at += r.size, count++) {
        memcpy(&r, buf + at, sizeof r);
        if (!CHECK(r.seq > seq && is_whole(buf + at, &r, n))) return;
        seq = r.seq;
    }
    CHECK(count <= MOST && (count >= 1 || !must_have_some));
}

static void read_all(md_registry reg) {
    char buf[NAMES * MOST * 512];
    size_t size;
    uint64_t version, node;
    md_record r;
    if (!OK(md_list(reg, NULL, 0, buf, sizeof buf, &size, &version, &node))) return;
    for (size_t at = 0; at < size; at += r.size) {
        memcpy(&r, buf + at, sizeof r);
        int n = 0;
        while (n < NAMES && strlen(names[n]) != r.name_len) n++;
        if (!CHECK(n < NAMES && is_whole(buf + at, &r, n))) return;
    }
}

static void read_for_long(struct play *p, md_registry reg) {
    for (int n = 0; n < NAMES;
         n++) { /* until each name has appeared once: from then on it always exists */
        size_t size = 0;
        uint64_t version, node;
        while (size == 0 && goes_on(p))
            md_list(reg, names[n], strlen(names[n]), NULL, 0, &size, &version, &node);
    }
    for (uint32_t i = 0; goes_on(p); i++) {
        int n = (int)(i % NAMES);
        read_one(p, reg, n, (int)(i / NAMES % 2));
        read_list(reg, n, 1);
        if (i % 16 == 0) read_all(reg);
        atomic_fetch_add(&p->reads, 1);
    }
}

static void reader_process(void *arg) {
    struct play *p = arg;
    struct main_member w = attach_worker(p->address);
    read_for_long(p, w.reg);
}

static void writer_process(void *arg) {
    struct play *p = arg;
    struct main_member w = attach_worker(p->address);
    promote(w.reg, w.member);
    write_for_long(p, w);
}

static void *reader_thread(void *arg) {
    struct play *p = arg;
    read_for_long(p, p->m.reg);
    return NULL;
}

static struct play *play_make(void) {
    struct play *p = shared(sizeof *p);
    p->m = open_main(NULL, SIZE);
    OK(md_address(p->m.reg, p->address, sizeof p->address));
    p->end = md_now() + limit(rounds(tries_all() ? 1500 : 500) * 1000000ll);
    return p;
}

static void play_end(struct play *p) {
    md_stats s;
    printf("       %llu writes, %llu rounds of reading\n", (unsigned long long)p->writes,
           (unsigned long long)p->reads);
    CHECK(p->writes > 100 && p->reads > 10);
    OK(md_stat(p->m.reg, &s));
    EQ(s.names, NAMES);
    CHECK(s.committed < SIZE);
    OK(md_leave(p->m.reg, join(p->m.reg, 1, MD_WORKER)));
    close_main(p->m);
    munmap(p, sizeof *p);
}

TEST(readers_in_other_processes_see_only_what_was_written_whole) {
    struct play *p = play_make();
    pid_t pid[READERS];
    for (int i = 0; i < READERS; i++) pid[i] = child(reader_process, p);
    write_for_long(p, p->m);
    for (int i = 0; i < READERS; i++) EQ(reap(pid[i]), 0);
    play_end(p);
}

TEST(readers_in_other_threads_see_only_what_was_written_whole) {
    struct play *p = play_make();
    pthread_t t[READERS];
    for (int i = 0; i < READERS; i++) pthread_create(&t[i], NULL, reader_thread, p);
    write_for_long(p, p->m);
    for (int i = 0; i < READERS; i++) pthread_join(t[i], NULL);
    play_end(p);
}

/* Writers that are killed, and others after them: readers read during recoveries, too. */
TEST(readers_see_only_what_was_written_whole_while_writers_are_killed) {
    struct play *p = play_make();
    pid_t pid[2];
    md_stats s;
    uint32_t random = (uint32_t)test_seed();
    for (int i = 0; i < 2; i++) pid[i] = child(reader_process, p);
    while (goes_on(p)) {
        pid_t writer = child(writer_process, p);
        uint64_t before = md__read64(&p->writes), enough;
        random = random * 1103515245 + 12345;
        enough = before + (random >> 8) % 3000;
        while (md__read64(&p->writes) < enough && goes_on(p)) sched_yield();
        kill(writer, SIGKILL);
        reap(writer);
        char all[NAMES * 64 * 512]; /* strikes its facts, except the newest of each name */
        md_record r[64];
        for (int n = 0; n < NAMES; n++) {
            size_t size, count = 0;
            uint64_t version, node;
            OK(md_list(p->m.reg, names[n], strlen(names[n]), all, sizeof all, &size, &version,
                       &node));
            for (size_t at = 0; at < size; at += r[count++].size)
                memcpy(&r[count], all + at, sizeof *r);
            for (size_t i = 0; i + 1 < count; i++) OK(strike_out(p->m, &r[i]));
        }
        check_whole(p->m.reg);
    }
    for (int i = 0; i < 2; i++) EQ(reap(pid[i]), 0);
    OK(md_stat(p->m.reg, &s));
    printf("       %llu recoveries\n", (unsigned long long)s.recoveries);
    play_end(p);
}

/* --- a reader that stands still in the middle of its reading ---------------------------------- */

enum { FIND, LIST, LIST_ALL };

struct slow_reader {
    md_registry reg;
    int how;
};

/* The bodies of name "n" are A, B, C. B may go meanwhile, but the reader sees A and C, and no
 * other. */
static void read_slowly(void *arg) {
    struct slow_reader *s = arg;
    char buf[4096];
    size_t size = 0;
    uint64_t version, node;
    md_record r;
    be_traced();
    if (s->how == FIND) {
        OK(md_find(s->reg, MD_IMPL, KEY, "n", 1, buf, sizeof buf));
        be_traced_no_more();
        memcpy(&r, buf, sizeof r);
        CHECK(buf[sizeof r] == 'n' && r.name_len == 1 && r.body_len == 100);
        CHECK(buf[sizeof r + 1] == 'A' || buf[sizeof r + 1] == 'B');
        for (int i = 0; i < 100; i++) EQ(buf[sizeof r + 1 + (size_t)i], buf[sizeof r + 1]);
        return;
    }
    OK(md_list(s->reg, s->how == LIST ? "n" : NULL, 1, buf, sizeof buf, &size, &version, &node));
    be_traced_no_more();
    char seen[16] = "";
    for (size_t at = 0; at < size; at += r.size) {
        memcpy(&r, buf + at, sizeof r);
        const char *fact_name = buf + at + sizeof r, *body = fact_name + r.name_len;
        CHECK(r.body_len == 100);
        for (int i = 0; i < 100; i++) EQ(body[i], body[0]);
        if (fact_name[0] == 'n') strncat(seen, body, 1);
        if (fact_name[0] == 'n') CHECK(body[0] != 'X');
        if (fact_name[0] == 'o') CHECK(body[0] == 'X');
    }
    CHECK(strcmp(seen, "ABC") == 0 || strcmp(seen, "AC") == 0);
}

static int put_100(struct main_member m, const char *fact_name, int key, char letter,
                   md_record *r) {
    char body[101];
    memset(body, letter, 100);
    body[100] = '\0';
    return put(m, MD_STACK, fact_name, key, body, r);
}

/* Stops the reader after `at` instructions, reuses the block that it may be reading for another
 * name, and lets it go on. */
static long disturb_reader(int how, long at) {
    struct slow_reader s = {.how = how};
    struct main_member m = open_main(NULL, MD__MIN_CAPACITY);
    md_record a, b, c;
    OK(put_100(m, "o", 0, 'X', &a)); /* the other name exists already */
    OK(put_100(m, "n", KEY, 'A', &a));
    OK(put_100(m, "n", KEY, 'B', &b));
    OK(put_100(m, "n", KEY + 1, 'C', &c));
    s.reg = m.reg;
    pid_t pid = child(read_slowly, &s);
    long took = step(pid, at);
    if (took == at) { /* otherwise it had finished */
        OK(strike_out(m, &b));
        OK(put_100(m, "o", 1, 'X', &c)); /* in B's block, since it has its size */
        EQ(c.ref, b.ref);
    }
    EQ(let_run(pid), 0);
    close_main(m);
    return took;
}

TEST(a_reader_that_stood_still_at_any_instruction_does_not_take_anothers_fact_for_its_own) {
    cpu_set_t before = share_one_processor();
    for (int how = FIND; how <= LIST_ALL; how++) {
        long total = disturb_reader(how, 1L << 30), stride = total / rounds(tries_all() ? 40 : 10);
        if (stride < 1) stride = 1;
        for (long at = first_point(stride); at < total && !test_failures; at += stride)
            disturb_reader(how, at);
    }
    sched_setaffinity(0, sizeof before, &before);
}

int main(void) {
    RUN_STEPPED(a_reader_that_stood_still_at_any_instruction_does_not_take_anothers_fact_for_its_own);
    RUN(readers_in_other_processes_see_only_what_was_written_whole);
    RUN(readers_in_other_threads_see_only_what_was_written_whole);
    RUN(readers_see_only_what_was_written_whole_while_writers_are_killed);
    return test_done();
}
