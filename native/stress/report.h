/* report.h - what a run of the killer reports: on a process that hangs, and on itself at the end.
 */
#ifndef MD_STRESS_REPORT_H
#define MD_STRESS_REPORT_H

#include <dirent.h>

#include "board.h"

static struct options {
    double seconds;
    unsigned long rounds, kills;
    uint64_t seed;
    const char *roles;
} options = {5, 0, 0, 0, ""};

static struct totals {
    unsigned long kills, rounds, killed[ROLES], inside[ROLES], started[ROLES], recoveries,
        committed;
} total;

/* Returns whether it understood all options. */
static bool read_options(int argc, char **argv) {
    options.seed = (uint64_t)md_now() / 1000 % 1000000;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--seconds") == 0)
            options.seconds = atof(value);
        else if (strcmp(name, "--rounds") == 0)
            options.rounds = strtoul(value, NULL, 10);
        else if (strcmp(name, "--kills") == 0)
            options.kills = strtoul(value, NULL, 10);
        else if (strcmp(name, "--seed") == 0)
            options.seed = strtoull(value, NULL, 10);
        else if (strcmp(name, "--roles") == 0)
            options.roles = value;
        else
            return false;
    }
    return argc % 2 == 1;
}

static void show_file(pid_t pid, const char *tid, const char *what) {
    char path[128], text[2048];
    snprintf(path, sizeof path, "/proc/%d/task/%s/%s", (int)pid, tid, what);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n > 0)
        fprintf(stderr, "    %s: %.*s%s", what, (int)n, text, text[n - 1] == '\n' ? "" : "\n");
}

static void show_process(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *e; tasks && (e = readdir(tasks));) {
        if (e->d_name[0] == '.') continue;
        fprintf(stderr, "  thread %s of pid %d\n", e->d_name, (int)pid);
        show_file(pid, e->d_name, "stat");
        show_file(pid, e->d_name, "wchan");
        show_file(pid, e->d_name, "syscall");
        show_file(pid, e->d_name, "stack");
    }
    if (tasks) closedir(tasks);
}

static inline void print_waits(void) {
    printf("\nfrom the outcome to the waiter's return, numbers of waits (columns: at most so many "
           "us)\n%-12s",
           "");
    for (size_t c = 0; c < COLUMNS - 1; c++) printf(" %7d", BOUNDS[c]);
    printf("  beyond    worst ms\n");
    for (int o = 0; o < OUTCOMES; o++) {
        printf("%-12s", OUTCOME_NAMES[o]);
        for (size_t c = 0; c < COLUMNS; c++)
            printf(" %7llu", (unsigned long long)md__peek64(&shown->times[o][c]));
        printf(" %11.2f\n", (double)md__peek64(&shown->worst[o]) / 1e6);
    }
    printf("%llu waits returned after more than %lld ms, %llu of them for want of a processor\n",
           (unsigned long long)md__peek64(&shown->beyond), (long long)limit(ALLOWED_NS) / 1000000,
           (unsigned long long)md__peek64(&shown->queued));
}

static inline int print_report(double seconds) {
    uint32_t failures = md__read32(&shown->failures);
    printf("%-10s %9s %9s %14s %12s\n", "role", "started", "killed", "inside a call", "calls");
    for (int r = 0; r < ROLES; r++)
        printf("%-10s %9lu %9lu %14lu %12llu\n", ROLE_NAMES[r], total.started[r], total.killed[r],
               total.inside[r], (unsigned long long)md__peek64(&shown->deeds[r]));
    print_waits();
    printf("\nseed %llu: %lu kills in %.1f s (%.0f a second), %lu rounds, %lu recoveries of the "
           "lock,\n%llu acknowledged registrations, %llu places compared, at most %lu KiB of "
           "memory\n",
           (unsigned long long)options.seed, total.kills, seconds, (double)total.kills / seconds,
           total.rounds, total.recoveries, (unsigned long long)md__peek64(&shown->acknowledged),
           (unsigned long long)md__peek64(&shown->looked_up), total.committed / 1024);
    if (failures) {
        printf("FAILED (%u): %s\nagain: kill --seed %llu --seconds %.0f --rounds %lu --kills %lu",
               failures, shown->words, (unsigned long long)options.seed, options.seconds,
               options.rounds, options.kills);
        if (*options.roles) printf(" --roles %s", options.roles);
        printf("\n");
    }
    printf("%d passed, %d failed\n", failures ? 0 : 1, failures ? 1 : 0);
    return failures ? 1 : 0;
}

#endif
