/* run.c - makes every allocation and every system call of the library fail once, in turn, in each
 * of the ways in which it can fail.
 *
 *     make refusals                     # each once
 *     make refusals REFUSALS=--long     # also each, with all later calls of its name
 *     ... --only NAME --nth N --kind K  # one run again, as a failing run prints it
 *
 * A run is a scenario (scenarios.h) in a process of its own, with one call refused by the shim
 * (shim.c). It checks that
 *
 * - every call of the contract answers as usual, or with a status that its description lists;
 * - a call that was refused has changed nothing: facts, sequence, members, descriptors, mappings,
 *   threads, files;
 * - the invariants hold afterwards, and the lock is free;
 * - at the end all descriptors, mappings, threads and files are given back;
 * - the same scenario, in the same process, with nothing refused, ends as it should;
 * - nobody hangs or crashes.
 */
#include "scenarios.h"

enum { PATIENCE = 20 }; /* seconds; the longest run sleeps for one */

/* On a machine with much else to do; as in tests/support/patience.py. */
static unsigned patience(void) {
    const char *factor = getenv("MDISPATCH_TEST_PATIENCE");
    double seconds = PATIENCE * (factor && *factor ? atof(factor) : 1.0);
    return seconds < 1 ? 1 : (unsigned)seconds;
}

static int *is_done; /* shared: the run has come to its end */
static struct shim_report report;

struct which {
    const struct scenario *scenario;
    long nth;
    int kind, on;
};

static void check_given_back(const struct which *w, const struct belongings *a, const char *when) {
    static struct belongings now;
    struct belongings *b = &now;
    for (int64_t until = md_now() + 1000000000; md_now() < until; sched_yield()) {
        count_belongings(b);
        if (a->threads == b->threads) break;
    }
    int regions = w->scenario->regions_stay || a->regions == b->regions;
    /* If the library could not remove a name, the name serves the next registry. If the library
     * could not tell whose file has the name, the name stays: it may be somebody else's by now. */
    int looks = strcmp(report.call, "fstat") == 0 || strcmp(report.call, "lstat") == 0;
    int files = a->files == b->files ||
                (!strict && (strcmp(report.call, "unlink") == 0 || (w->on && looks)));
    /* Likewise a descriptor stays open if the library could not tell whose it is. */
    int more = b->descriptors - a->descriptors;
    int descriptors = more == 0 || (strcmp(report.call, "fstat") == 0 && (more == 1 || w->on));
    if (descriptors && regions && a->threads == b->threads && files) return;
    fprintf(stderr,
            "not given back %s: descriptors %d %d, regions %d %d, threads %d %d, files %d %d\n",
            when, a->descriptors, b->descriptors, a->regions, b->regions, a->threads, b->threads,
            a->files, b->files);
    test_failures++;
}

static void run_once(void *arg) {
    const struct which *w = arg;
    static struct belongings start;
    alarm(patience());
    snprintf(file_prefix, sizeof file_prefix, "refused-%llx-", (unsigned long long)md_now());
    snprintf(name, sizeof name, "%sx", file_prefix);
    w->scenario->prepare();
    count_belongings(&start);
    shim.arm(w->nth, w->kind, w->on);
    w->scenario->act();
    shim.disarm(&report);
    check_given_back(w, &start, "after a refusal");
    strict = 1;
    w->scenario->act();
    check_given_back(w, &start, "after a run without one");
    w->scenario->end();
    *is_done = 1;
}

static const char *words_for(int error) {
    return error ? strerror(error) : "less than asked for";
}

/* Runs a scenario once. Returns whether something was refused. */
static int run(const struct which *w, int *failed) {
    *is_done = 0;
    shim.arm(0, 0, 0);
    int code = reap(child(run_once, (void *)w));
    shim.disarm(&report); /* the shim's memory is shared with the child */
    if (code == 0 && *is_done) return report.refused;
    printf("FAILED %s: call %ld, %s: %s%s%s\n", w->scenario->name, w->nth, report.call,
           words_for(report.error), w->on ? ", from then on" : "",
           code == -SIGALRM ? ": hangs"
           : code < 0       ? ": crashes"
                            : "");
    printf("       again: make refusals REFUSALS=\"%s--only '%s' --nth %ld --kind %d\"\n",
           w->on ? "--on " : "", w->scenario->name, w->nth, w->kind);
    fflush(stdout);
    ++*failed;
    return report.refused;
}

/* Refuses each call of a scenario in turn. Returns in how many runs something was refused. */
static long run_all(const struct scenario *s, int on, int every_way, int *failed) {
    long runs = 0, calls = 0;
    for (long nth = 1;; nth++) {
        int kind = 0, kinds = 1, refused = 0;
        for (; kind < kinds; kind++) {
            struct which w = {s, nth, kind, on};
            refused = run(&w, failed);
            if (!refused) break;
            runs++;
            kinds = s->brief && !every_way ? 1 : report.kinds;
        }
        if (!refused && kind == 0) break;
        calls++;
    }
    printf("%-34s %4ld calls, %4ld ways%s\n", s->name, calls, runs, on ? ", from then on" : "");
    fflush(stdout);
    return runs;
}

static void find_shim(void) {
    *(void **)&shim.arm = dlsym(RTLD_DEFAULT, "shim_arm");
    *(void **)&shim.disarm = dlsym(RTLD_DEFAULT, "shim_disarm");
    *(void **)&shim.pause = dlsym(RTLD_DEFAULT, "shim_pause");
    *(void **)&shim.go_on = dlsym(RTLD_DEFAULT, "shim_go_on");
    *(void **)&shim.has_refused = dlsym(RTLD_DEFAULT, "shim_has_refused");
    if (shim.arm && shim.has_refused) return;
    fputs("nothing would be refused: run it with LD_PRELOAD=.../shim.so\n", stderr);
    exit(2);
}

int main(int argc, char **argv) {
    const char *only = NULL;
    struct which w = {0};
    int every_way = 0, failed = 0, passed = 0;
    long runs = 0;
    int64_t start = md_now();
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--long") == 0) {
            every_way = 1;
            continue;
        }
        if (strcmp(argv[i], "--on") == 0) {
            w.on = 1;
            continue;
        }
        if (strcmp(argv[i], "--only") == 0)
            only = value;
        else if (strcmp(argv[i], "--nth") == 0)
            w.nth = atol(value);
        else if (strcmp(argv[i], "--kind") == 0)
            w.kind = atoi(value);
        else
            return 2;
        i++;
    }
    find_shim();
    is_done = shared(sizeof *is_done);
    for (int i = 0; i < SCENARIO_COUNT; i++) {
        const struct scenario *s = &SCENARIOS[i];
        int before_it = failed;
        if (only && strcmp(only, s->name)) continue;
        if (w.nth) {
            w.scenario = s;
            printf("refused: %d\n", run(&w, &failed));
        } else {
            runs += run_all(s, w.on, every_way, &failed);
            if (every_way && !w.on) runs += run_all(s, 1, every_way, &failed);
        }
        passed += failed == before_it;
    }
    printf("%ld refusals in %.1f s\n", runs, (double)(md_now() - start) / 1e9);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
