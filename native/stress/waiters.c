/* waiters.c - thousands of threads wait for one name, and all must be woken, round after round.
 *
 *     waiters [--rounds N] [--threads N] [--processes N] [--seed S]
 *
 * A round is one fact. Every thread of every process waits for it by md_await. The main member
 * registers it when all threads are counted as waiting. In one round of four it already registers
 * it when a random number of them are, so that the others are still on their way to sleep. A thread
 * that has its fact waits for the next one at once. The main member strikes the facts that
 * everybody has.
 *
 * "All awake" is the time from before the registration (or, for a thread that came later, from when
 * it began to wait) to the last return of the round. With few processors most of that time is spent
 * in the queue for them. So each thread also notes how long it was ready to run and had no
 * processor (/proc/thread-self/schedstat), and the report shows that beside. A round fails when a
 * thread returned later than after a second, not counting the time in the queue, which never makes
 * a thread return sooner.
 *
 * The slice that brings every sleeper back after 0.1 s would hide a lost wake. So the program also
 * counts threads that came back only by their slice although the registration had returned, and so
 * had woken everybody. There must be none.
 */
#include <stdarg.h>

#include "../tests/test.h"

enum { ALLOWED_NS = 1000000000, HANG_S = 60, STACK = 64 << 10, CAPACITY = 4 << 20 };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MOST_THREADS = 400 }; /* a thread costs much under a sanitizer */
#else
enum { MOST_THREADS = 30000 };
#endif

static const char NAME[] = "stress::one";

static struct options {
    unsigned long rounds, threads, processes;
    uint64_t seed;
} options = {20, 10000, 4, 0};

/* One thread's last wait. Written by the thread before it counts itself as returned. */
struct seen {
    int64_t began, returned;
    uint64_t queued; /* ns without a processor since the wait began */
    md_wait_stats stats;
};

/* Shared by all processes. */
struct board {
    md__u32 returned; /* threads that have returned in this round */
    md__u32 over;     /* rounds that all have returned from; the main member sleeps on it */
    md__u32 failures;
    char words[256]; /* of the first failure */
    struct seen seen[];
};
static struct board *shown;
static md_registry reg;

/* Figures of one kind of round: one in which all waited, or one in which some were on their way. */
struct figures {
    int64_t *took, *without_queue;
    size_t rounds;
    uint64_t rung, sliced, found, queued, beyond, lost; /* waits; queued: ns; beyond: rounds */
};

__attribute__((format(printf, 1, 2))) static void fail(const char *words, ...) {
    va_list args;
    if (__atomic_fetch_add((uint32_t *)&shown->failures, 1, __ATOMIC_RELAXED)) return;
    va_start(args, words);
    vsnprintf(shown->words, sizeof shown->words, words, args);
    va_end(args);
}

/* --- a thread that waits ---------------------------------------------------------------------- */

static uint64_t queued_ns(int fd) {
    char text[128];
    unsigned long long ran, queued = 0;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = '\0';
    return sscanf(text, "%llu %llu", &ran, &queued) == 2 ? queued : 0;
}

struct place {
    uint64_t member;
    unsigned long number;
};

static void *wait_for_all_rounds(void *arg) {
    struct place place = *(struct place *)arg;
    struct seen *mine = &shown->seen[place.number];
    char buf[512];
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (schedstat < 0) fail("opening schedstat: %s", strerror(errno));
    for (unsigned long round = 0; round < options.rounds; round++) {
        struct seen now = {0};
        md_record r = {0};
        now.queued = queued_ns(schedstat);
        now.began = md_now();
        int rc = md_await(reg, place.member, MD_IMPL, (int32_t)round, 1, NAME, sizeof NAME - 1,
                          MD_FOREVER, 0, buf, sizeof buf, &now.stats);
        now.returned = md_now();
        now.queued = queued_ns(schedstat) - now.queued;
        if (rc == 0) memcpy(&r, buf, sizeof r);
        if (rc || r.key != (int32_t)round)
            fail("thread %lu in round %lu: %s, fact %d", place.number, round, md_status_text(rc),
                 r.key);
        *mine = now;
        if (atomic_fetch_add(&shown->returned, 1) + 1 < options.threads) continue;
        md__poke32(&shown->returned, 0); /* nobody else counts before the next registration */
        md__publish32(&shown->over, (uint32_t)round + 1);
        md__futex_wake(&shown->over, 1);
    }
    close(schedstat);
    return NULL;
}

/* One process: one member, and its part of the threads. */
static void be_process(void *arg) {
    unsigned long process = (unsigned long)(uintptr_t)arg;
    unsigned long first = options.threads * process / options.processes;
    unsigned long end = options.threads * (process + 1) / options.processes;
    uint64_t member = join(reg, (int64_t)process, MD_WORKER);
    pthread_t *threads = calloc(end - first, sizeof *threads);
    struct place *places = calloc(end - first, sizeof *places);
    pthread_attr_t attr;
    alarm(0);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    for (unsigned long i = first; i < end; i++) {
        places[i - first] = (struct place){member, i};
        int rc =
            pthread_create(&threads[i - first], &attr, wait_for_all_rounds, &places[i - first]);
        if (rc == 0) continue;
        fprintf(stderr, "FAILED: thread %lu: %s\n", i, strerror(rc));
        _exit(1);
    }
    for (unsigned long i = first; i < end; i++) pthread_join(threads[i - first], NULL);
    pthread_attr_destroy(&attr);
    free(threads);
    free(places);
    OK(md_leave(reg, member));
    OK(md_close(reg));
}

/* --- the main member -------------------------------------------------------------------------- */

static unsigned long below(uint64_t *random, unsigned long n) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned long)((*random >> 33) % n);
}

static void note_round(struct figures *f, int64_t committed, int64_t rung) {
    int64_t last = 0, last_without = 0;
    for (unsigned long i = 0; i < options.threads; i++) {
        const struct seen *s = &shown->seen[i];
        int64_t from = s->began > committed ? s->began : committed;
        int64_t took = s->returned > from ? s->returned - from : 0;
        int64_t without = took > (int64_t)s->queued ? took - (int64_t)s->queued : 0;
        bool only_slices = s->stats.sleeps && s->stats.wakes == 0;
        if (took > last) last = took;
        if (without > last_without) last_without = without;
        f->queued += took > (int64_t)s->queued ? s->queued : (uint64_t)took;
        f->found += s->stats.sleeps == 0;
        f->rung += s->stats.wakes > 0;
        f->sliced += only_slices;
        f->lost += only_slices && s->returned - (int64_t)s->queued > rung;
    }
    f->beyond += last > limit(ALLOWED_NS);
    if (last_without > limit(ALLOWED_NS))
        fail("a thread returned %.0f ms after its fact", (double)last_without / 1e6);
    f->took[f->rounds] = last;
    f->without_queue[f->rounds++] = last_without;
}

static void play(struct main_member m, struct figures figures[2]) {
    uint64_t dice = options.seed;
    for (unsigned long round = 0; round < options.rounds && !md__read32(&shown->failures);
         round++) {
        bool rush = below(&dice, 4) == 3;
        uint32_t over;
        md_record r;
        alarm((unsigned)limit(HANG_S));
        until_waiting(reg, (uint32_t)(rush ? below(&dice, options.threads) : options.threads));
        int64_t committed = md_now();
        OK(put(m, MD_UNIQUE, NAME, (int32_t)round, "", &r));
        int64_t rung = md_now();
        while ((over = md__read32(&shown->over)) <= round) md__futex_wait(&shown->over, over);
        note_round(&figures[rush], committed, rung);
        OK(strike_out(m, &r));
    }
    alarm(0);
}

static void on_alarm(int signal) {
    char words[128];
    (void)signal;
    int n = snprintf(words, sizeof words,
                     "FAILED: a round does not end, %u of %lu have returned, %u wait\n",
                     md__read32(&shown->returned), options.threads, waiters(reg));
    if (write(STDERR_FILENO, words, (size_t)n) < 0) _exit(4);
    _exit(3);
}

/* --- the report ------------------------------------------------------------------------------- */

static void print_figures(const char *what, struct figures *f) {
    if (!f->rounds) return;
    double waits = (double)f->rounds * (double)options.threads;
    printf("%s: %zu rounds\n", what, f->rounds);
    print_latency("all awake", f->took, f->rounds);
    print_latency("the same, less each thread's time without a processor", f->without_queue,
                  f->rounds);
    printf("       %.1f %% of waits ended by a ring, %.1f %% by the slice alone, %.1f %% did not "
           "sleep\n",
           100 * (double)f->rung / waits, 100 * (double)f->sliced / waits,
           100 * (double)f->found / waits);
    printf("       a wait was without a processor for %.2f ms on average; rounds beyond 1 s: %llu; "
           "brought back by the slice after all were woken: %llu\n",
           (double)f->queued / waits / 1e6, (unsigned long long)f->beyond,
           (unsigned long long)f->lost);
}

static void print_load(const char *when) {
    double load[3] = {0};
    if (getloadavg(load, 3) < 1) return;
    printf("load %s: %.2f, processors: %ld\n", when, load[0], sysconf(_SC_NPROCESSORS_ONLN));
    fflush(stdout);
}

static void read_options(int argc, char **argv) {
    options.seed = (uint64_t)md_now() / 1000 % 1000000;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i];
        unsigned long value = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(name, "--rounds") == 0)
            options.rounds = value;
        else if (strcmp(name, "--threads") == 0)
            options.threads = value;
        else if (strcmp(name, "--processes") == 0)
            options.processes = value;
        else if (strcmp(name, "--seed") == 0)
            options.seed = value;
        else
            argc = 0;
    }
    if (options.threads > MOST_THREADS) options.threads = MOST_THREADS;
    if (argc % 2 && options.rounds && options.processes && options.threads >= options.processes)
        return;
    fprintf(stderr, "usage: waiters [--rounds N] [--threads N] [--processes N] [--seed S]\n");
    exit(2);
}

int main(int argc, char **argv) {
    struct figures figures[2] = {0};
    read_options(argc, argv);
    for (int i = 0; i < 2; i++) {
        figures[i].took = calloc(options.rounds, sizeof(int64_t));
        figures[i].without_queue = calloc(options.rounds, sizeof(int64_t));
    }
    printf("== waiters --rounds %lu --threads %lu --processes %lu --seed %llu\n", options.rounds,
           options.threads, options.processes, (unsigned long long)options.seed);
    print_load("before");
    shown = shared(sizeof *shown + options.threads * sizeof *shown->seen);
    signal(SIGALRM, on_alarm);
    struct main_member m = open_main(NULL, CAPACITY);
    pid_t *children = calloc(options.processes, sizeof *children);
    reg = m.reg;
    for (unsigned long i = 0; i < options.processes; i++)
        children[i] = child(be_process, (void *)(uintptr_t)i);
    play(m, figures);
    bool failed = md__read32(&shown->failures) != 0;
    for (unsigned long i = 0; i < options.processes; i++) {
        if (failed) kill(children[i], SIGKILL);
        EQ(reap(children[i]), failed ? -SIGKILL : 0);
    }
    close_main(m);
    print_load("after");
    print_figures("all were waiting", &figures[0]);
    print_figures("some were on their way", &figures[1]);
    if (figures[0].lost + figures[1].lost) fail("wakes were lost");
    failed = md__read32(&shown->failures) || test_failures;
    if (failed)
        printf(
            "FAILED: %s\nagain: waiters --rounds %lu --threads %lu --processes %lu --seed %llu\n",
            shown->words, options.rounds, options.threads, options.processes,
            (unsigned long long)options.seed);
    for (int i = 0; i < 2; i++) {
        free(figures[i].took);
        free(figures[i].without_queue);
    }
    free(children);
    printf("%d passed, %d failed\n", !failed, failed);
    return failed;
}
