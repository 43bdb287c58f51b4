/* kernels.c - this process's C functions for the kernels that registries know by label.
 *
 * A registry holds facts only. Beside it each process has this table of pointers. Its key is
 * registry, name, dispatch key and label; the label is the body of the fact. An entry does not note
 * the number of a fact. So a function that a process has loaded serves a fact that is registered
 * again just as it served the first one, both in the process that registers and in those that
 * verify. And an entry can be put before its fact is published, so whoever finds a fact finds its
 * function, without waiting.
 *
 * Locking: `lock` guards the table and the counts of its entries. It is held for moments, never
 * while other people's code runs. It is also held across fork(), and taken after the lock of
 * handles.c. No other lock is taken under it: md__is_open, which is called under it, takes none.
 *
 * An entry counts its puts and its holds. Without a put it is not in the table. Without either it
 * is freed, and its `release` is called, outside the lock.
 *
 * An entry notes for which definition its function was registered or verified, in whatever words
 * the binding has for that. An interpreter that has loaded no library, and the child of a fork, ask
 * for it: the label alone does not tell one build of a library from the next.
 */
#include <errno.h>
#include <stdlib.h>

#include "kernels.h"

enum { BUCKETS = 256, FIRST_SWEEP = 64 };

struct md_held_kernel {
    struct md_held_kernel *next;
    md_kernel_spec spec; /* set once; `release` under lock */
    md_registry reg;     /* set once */
    char *definition;    /* under lock, like the counts; NULL until it is known */
    uint32_t puts;       /* under lock, like `holds` */
    uint32_t holds;
    int32_t key;     /* set once, like the texts */
    size_t label_at; /* in `text`: the name comes first, both are terminated */
    char text[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct md_held_kernel
    *buckets[BUCKETS]; /* under lock, like the counts below; the newest entry first */
static size_t entries, next_sweep = FIRST_SWEEP;

void md__kernels_before_fork(void) {
    pthread_mutex_lock(&lock);
}

void md__kernels_after_fork(void) {
    pthread_mutex_unlock(&lock);
}

static struct md_held_kernel **bucket_of(const char *name) {
    return &buckets[md__hash(name, strlen(name)) % BUCKETS];
}

static bool is_same(const struct md_held_kernel *e, md_registry reg, const char *name, int32_t key,
                    const char *label) {
    return e->reg == reg && e->key == key && strcmp(e->text, name) == 0 &&
           strcmp(e->text + e->label_at, label) == 0;
}

static bool is_spec(const struct md_held_kernel *e, const md_kernel_spec *spec) {
    return e->spec.function == spec->function && e->spec.user == spec->user;
}

/* Called outside the lock. */
static void free_all(struct md_held_kernel *gone) {
    while (gone) {
        struct md_held_kernel *next = gone->next;
        if (gone->spec.release) gone->spec.release(gone->spec.user);
        free(gone->definition);
        free(gone);
        gone = next;
    }
}

/* Under the lock: takes an entry out of the table, onto `gone` if nobody holds it. */
static void take_out(struct md_held_kernel **link, struct md_held_kernel **gone) {
    struct md_held_kernel *e = *link;
    *link = e->next;
    entries--;
    e->next = NULL;
    e->puts = 0;
    if (e->holds) return;
    e->next = *gone;
    *gone = e;
}

/* Under the lock: takes out the entries of closed registries. It does so when the number of entries
 * has doubled, so that it costs each put a constant. */
static void sweep(struct md_held_kernel **gone) {
    if (entries < next_sweep) return;
    for (int i = 0; i < BUCKETS; i++) {
        for (struct md_held_kernel **link = &buckets[i]; *link;) {
            if (md__is_open((*link)->reg))
                link = &(*link)->next;
            else
                take_out(link, gone);
        }
    }
    next_sweep = entries * 2 > FIRST_SWEEP ? entries * 2 : FIRST_SWEEP;
}

static struct md_held_kernel *make(md_registry reg, const char *name, int32_t key,
                                   const char *label, const md_kernel_spec *spec) {
    size_t name_size = strlen(name) + 1, label_size = strlen(label) + 1;
    struct md_held_kernel *e = calloc(1, sizeof *e + name_size + label_size);
    if (!e) return NULL;
    e->spec = *spec;
    e->reg = reg;
    e->puts = 1;
    e->key = key;
    e->label_at = name_size;
    memcpy(e->text, name, name_size);
    memcpy(e->text + name_size, label, label_size);
    return e;
}

/* With `alone` it returns MD_EEXIST when the label stands for another function. */
int md__kernel_put(md_registry reg, const char *name, int32_t key, const char *label,
                   const md_kernel_spec *spec, bool alone) {
    struct md_held_kernel *gone = NULL, *found;
    int rc = 0;
    if (!name || !label || !spec || !spec->function) return MD_EINVAL;
    if (!md__is_open(reg)) return MD_ECLOSED;
    struct md_held_kernel *made = make(reg, name, key, label, spec);
    if (!made) return MD_ESYS - ENOMEM;
    pthread_mutex_lock(&lock);
    sweep(&gone);
    struct md_held_kernel **bucket = bucket_of(name);
    for (found = *bucket; found; found = found->next) {
        if (!is_same(found, reg, name, key, label)) continue;
        if (is_spec(found, spec)) break;
        if (alone) rc = MD_EEXIST;
    }
    if (found) {
        found->puts++;
        rc = 0;
    } else if (rc == 0) {
        made->next = *bucket;
        *bucket = made;
        entries++;
    }
    pthread_mutex_unlock(&lock);
    if (found || rc) free(made); /* no `release`: `user` belongs to `found` or to the caller */
    free_all(gone);
    return rc;
}

int md_kernel_put(md_registry reg, const char *name, int32_t key, const char *label,
                  const md_kernel_spec *spec) {
    return md__kernel_put(reg, name, key, label, spec, false);
}

/* Without `release` it takes back the caller's last put: `user` stays the caller's. */
int md__kernel_drop(md_registry reg, const char *name, int32_t key, const char *label,
                    const md_kernel_spec *spec, bool release) {
    struct md_held_kernel *gone = NULL;
    int rc = MD_ENOENT;
    if (!name || !label || !spec) return MD_EINVAL;
    pthread_mutex_lock(&lock);
    for (struct md_held_kernel **link = bucket_of(name); *link; link = &(*link)->next) {
        struct md_held_kernel *e = *link;
        if (!is_same(e, reg, name, key, label) || !is_spec(e, spec)) continue;
        if (--e->puts == 0) {
            if (!release) e->spec.release = NULL;
            take_out(link, &gone);
        }
        rc = 0;
        break;
    }
    pthread_mutex_unlock(&lock);
    free_all(gone);
    return rc;
}

int md_kernel_drop(md_registry reg, const char *name, int32_t key, const char *label,
                   const md_kernel_spec *spec) {
    return md__kernel_drop(reg, name, key, label, spec, true);
}

/* Under the lock: the function that a label stands for. */
static struct md_held_kernel *entry_of(md_registry reg, const char *name, int32_t key,
                                       const char *label) {
    struct md_held_kernel *e = *bucket_of(name);
    while (e && !is_same(e, reg, name, key, label)) e = e->next;
    return e;
}

int md_kernel_hold(md_registry reg, const char *name, int32_t key, const char *label,
                   md_held_kernel **out) {
    *out = NULL;
    if (!name || !label) return MD_EINVAL;
    pthread_mutex_lock(&lock);
    *out = entry_of(reg, name, key, label);
    if (*out) (*out)->holds++;
    pthread_mutex_unlock(&lock);
    return *out ? 0 : MD_ENOENT;
}

static char *copied(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

int md_kernel_bind(md_registry reg, const char *name, int32_t key, const char *label,
                    const char *definition) {
    if (!name || !label || !definition) return MD_EINVAL;
    char *copy = copied(definition);
    if (!copy) return MD_ESYS - ENOMEM;
    pthread_mutex_lock(&lock);
    struct md_held_kernel *e = entry_of(reg, name, key, label);
    char *before = copy; /* freed, unless there is an entry that takes it */
    if (e) {
        before = e->definition;
        e->definition = copy;
    }
    pthread_mutex_unlock(&lock);
    free(before);
    return e ? 0 : MD_ENOENT;
}

char *md_kernel_definition(md_registry reg, const char *name, int32_t key, const char *label) {
    if (!name || !label) return NULL;
    pthread_mutex_lock(&lock);
    struct md_held_kernel *e = entry_of(reg, name, key, label);
    char *copy = e && e->definition ? copied(e->definition) : NULL;
    pthread_mutex_unlock(&lock);
    return copy;
}

const md_kernel_spec *md_kernel_spec_of(const md_held_kernel *held) {
    return &held->spec;
}

void md_kernel_let_go(md_held_kernel *held) {
    struct md_held_kernel *gone = NULL;
    pthread_mutex_lock(&lock);
    if (--held->holds == 0 && held->puts == 0) gone = held;
    pthread_mutex_unlock(&lock);
    free_all(gone);
}
