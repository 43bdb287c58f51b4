/* judge.h - checks every call of a scenario, refused or not. See run.c. */
#ifndef MD_REFUSALS_JUDGE_H
#define MD_REFUSALS_JUDGE_H

#include <dirent.h>
#include <dlfcn.h>

#include "../tests/test.h"
#include "shim.h"

/* The shim's functions, looked up in run.c. */
static struct {
    void (*arm)(long nth, int kind, int on);
    void (*disarm)(struct shim_report *report);
    void (*pause)(void);
    void (*go_on)(void);
    int (*has_refused)(void);
} shim;

/* The statuses that mdispatch.h lists for a call, one bit each. */
#define S(status) (1u << -(status))
enum { SYS = 1 };
enum {
    CREATES = SYS | S(MD_EINVAL) | S(MD_ENAME) | S(MD_EEXIST) | S(MD_EHANDLES) | S(MD_EOWNER) |
              S(MD_EFORMAT) | S(MD_EVERSION) | S(MD_ENOTFILE) | S(MD_ENAMESPACE) | S(MD_EDAMAGED) |
              S(MD_EFOLDER) | S(MD_EBOOT) | S(MD_EEDITIONS),
    ATTACHES = SYS | S(MD_EINVAL) | S(MD_ENAME) | S(MD_ENOENT) | S(MD_EINTR) | S(MD_EDIED) |
               S(MD_ECLOSED) | S(MD_EFORMAT) | S(MD_EVERSION) | S(MD_EBOOT) | S(MD_ENAMESPACE) |
               S(MD_EOWNER) | S(MD_ENOTFILE) | S(MD_EHANDLES) | S(MD_EDAMAGED) | S(MD_EFOLDER),
    LOCKS = SYS | S(MD_ECLOSED) | S(MD_EDAMAGED) | S(MD_ELOCK) | S(MD_ELOST) |
            S(MD_EREOPEN),
    JOINS = SYS | LOCKS | S(MD_EMEMBERS),
    LEAVES = LOCKS | S(MD_ENOENT),
    REGISTERS = SYS | LOCKS | S(MD_EROLE) | S(MD_EEXIST) | S(MD_EINVAL) | S(MD_ETOOLONG) |
                S(MD_EFULL) | S(MD_ENOBUFS),
    STRIKES = LOCKS | S(MD_ENOENT) | S(MD_EROLE),
    FINDS = S(MD_ENOENT) | S(MD_ECLOSED) | S(MD_ENOBUFS) | S(MD_EDAMAGED),
    LISTS = S(MD_ECLOSED) | S(MD_ENOBUFS) | S(MD_EDAMAGED),
    AWAITS = SYS | S(MD_ETIMEDOUT) | S(MD_EDIED) | S(MD_ECLOSED) | S(MD_ECANCELED) | S(MD_ENOENT) |
             S(MD_EINVAL) | S(MD_ETOOLONG) | S(MD_ENOBUFS) | S(MD_EDAMAGED),
    HANDLED = S(MD_ECLOSED),
    ELECTS = CREATES | ATTACHES,
    CLAIMS = REGISTERS,
    RELEASES = LOCKS | S(MD_ENOENT) | S(MD_EROLE) | S(MD_EINVAL) | S(MD_ETOOLONG),
    INSPECTS = SYS | S(MD_ENAME) | S(MD_ENOENT) | S(MD_EDIED) | S(MD_EFORMAT) | S(MD_EVERSION) |
               S(MD_EDAMAGED) | S(MD_EOWNER) | S(MD_ENOTFILE) | S(MD_EFOLDER) | S(MD_EBOOT) |
               S(MD_ENAMESPACE),
    ORIGINS = SYS | S(MD_ENAME) | S(MD_ENOENT) | S(MD_EFORMAT) | S(MD_EVERSION) | S(MD_EDAMAGED) |
              S(MD_EOWNER) | S(MD_ENOTFILE) | S(MD_EFOLDER) | S(MD_ENOBUFS),
    FOLDERS = SYS | S(MD_ENOENT) | S(MD_EOWNER) | S(MD_ENOBUFS) | S(MD_EFOLDER),
    REAPS = INSPECTS | S(MD_EEXIST) | S(MD_EBUSY) | S(MD_EINTR)
};

/* What a process has. It must be the same before and after a refused call, and before and after a
 * scenario. */
struct belongings {
    int descriptors, regions, threads, files;
    uint64_t facts, members, next_seq, recoveries, list_size;
    char list[1 << 18];
};

static struct belongings before_call, after_call;
static int strict;           /* nothing is refused now: every call has its usual outcome */
static char file_prefix[32]; /* of the names that this run gives to registries */

static int entries(const char *path, const char *prefix) {
    DIR *d = opendir(path);
    int n = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.' && strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    closedir(d);
    return n;
}

static void count_belongings(struct belongings *b) {
    char path[64], line[512];
    md__file_path(path, sizeof path, "");
    b->descriptors = entries("/proc/self/fd", "");
    b->threads = entries("/proc/self/task", "");
    b->files = entries(path, file_prefix);
    b->regions = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        b->regions += strstr(line, path) || strstr(line, "memfd:mdispatch");
    if (maps) fclose(maps);
}

/* The same for what the registry has. */
static void count_facts(struct belongings *b, md_registry reg) {
    md_stats s = {0};
    size_t size = 0;
    uint64_t version, node;
    shim.pause();
    md_stat(reg, &s);
    memset(b->list, 0, sizeof b->list);
    md_list(reg, NULL, 0, b->list, sizeof b->list, &size, &version, &node);
    shim.go_on();
    b->facts = s.facts;
    b->members = s.members;
    b->next_seq = s.next_seq;
    b->recoveries = s.recoveries;
    b->list_size = size;
}

static int refused_before;

static void before(md_registry reg) {
    refused_before = shim.has_refused();
    if (refused_before || strict) return;
    count_belongings(&before_call);
    count_facts(&before_call, reg);
}

/* Checks that a refused call has changed nothing. */
static void check_unchanged(md_registry reg, const char *call, int line) {
    struct belongings *a = &before_call, *b = &after_call;
    for (int64_t until = md_now() + 1000000000; md_now() < until; sched_yield()) {
        count_belongings(b);
        if (a->threads == b->threads) break; /* a joined thread is listed for a moment longer */
    }
    count_facts(b, reg);
    if (b->recoveries != a->recoveries) a->next_seq = b->next_seq; /* a recovery raises it */
    int same = a->descriptors == b->descriptors && a->regions == b->regions &&
               a->threads == b->threads && a->files == b->files && a->facts == b->facts &&
               a->members == b->members && a->next_seq == b->next_seq &&
               a->list_size == b->list_size && memcmp(a->list, b->list, sizeof a->list) == 0;
    if (same) return;
    fprintf(stderr,
            "line %d: %s was refused and yet changed something\n"
            "  descriptors %d %d, regions %d %d, threads %d %d, files %d %d, facts %d %d, "
            "members %d %d, sequence %d %d\n",
            line, call, a->descriptors, b->descriptors, a->regions, b->regions, a->threads,
            b->threads, a->files, b->files, (int)a->facts, (int)b->facts, (int)a->members,
            (int)b->members, (int)a->next_seq, (int)b->next_seq);
    test_failures++;
}

/* While nothing was refused, a call must end as it should. Afterwards it may also succeed where it
 * should have failed, or answer with a status that its description lists. */
static int judge(md_registry reg, const char *call, int line, uint32_t listed, int should, int is) {
    int known = is == should || (shim.has_refused() && !strict &&
                                 (is == 0 || (is <= MD_ESYS && listed & SYS) ||
                                  (is < 0 && is > -32 && listed & (1u << -is))));
    if (!known) {
        fprintf(stderr, "line %d: %s is %d (%s), not %d\n", line, call, is, md_status_text(is),
                should);
        test_failures++;
    }
    if (is < 0 && !refused_before && shim.has_refused() && !strict)
        check_unchanged(reg, call, line);
    return is;
}

/* CHANGE makes a call that may change something in `reg` (0: in no open registry), LOOK a call that
 * may not. */
#define CHANGE(reg, listed, should, call)                                                          \
    (before(reg), judge(reg, #call, __LINE__, listed, should, (call)))
#define LOOK(listed, should, call)                                                                 \
    (refused_before = 1, judge(0, #call, __LINE__, listed, should, (call)))

/* Checks that all invariants hold and that nobody has the lock. */
static void check_sound(md_registry reg) {
    char words[4096] = "";
    shim.pause();
    int rc = md_check(reg, words, sizeof words);
    shim.go_on();
    if (rc && !(rc == MD_ECLOSED && !strict)) {
        fprintf(stderr, "md_check is %d (%s)\n%s", rc, md_status_text(rc), words);
        test_failures++;
    }
}

#endif
