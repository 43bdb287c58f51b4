/* history.c - records what threads and processes did to one registry, and the answers that they
 * got.
 *
 *     history [--ops N] [--round N] [--seed N] [--out FILE]
 *
 * Each round has a registry of its own. Two threads of the main process and one other process write
 * (that one is promoted, as in tests/test.h); two processes of two threads each read. Every thread
 * notes each call in memory that the processes share: when it began, when it returned, what it
 * answered. This program judges only what a single answer shows by itself (`bad`). check_history.py
 * reads the file: one struct round, then its ops, and so on.
 *
 * A body carries the fact's id, so that the checker knows a fact without trusting sequence numbers.
 */
#include "../tests/test.h"

enum { NAMES = 4, KEYS = 2, IDS = 24, OWN = 4, WRITERS = 3, READERS = 4, ACTORS = 7 };
enum op_kind { REGISTER = 1, STRIKE = 2, FIND = 3, LIST = 4, AWAIT = 5 };

struct op {
    int64_t begin, end;
    uint64_t seq;     /* of the record in the answer, or of the struck one */
    uint64_t version; /* LIST; like the node */
    uint64_t node;
    uint32_t id; /* REGISTER: of the new fact; STRIKE: of the struck one */
    int32_t rc;
    uint8_t kind, actor, name, key;
    uint8_t unique, bad, at_least, count;
    uint32_t slices;
    uint32_t ids[IDS]; /* the facts in the answer, oldest first */
};

struct round {
    char magic[8];
    uint64_t seed, ops, next_seq, facts;
    uint32_t damaged, names;
};

struct stage {
    char address[MD_MAX_ADDRESS];
    uint64_t seed;
    uint32_t each;  /* operations of each actor */
    uint32_t names; /* how many names they use */
    md__u32 ready, go, done;
    md__u32 used[ACTORS];
    struct op ops[]; /* ACTORS times each */
};

struct actor {
    struct stage *stage;
    struct main_member m;
    uint32_t number;
    uint64_t random;
    pthread_t thread;
};

static uint32_t draw(struct actor *a, uint32_t below) {
    a->random ^= a->random << 13;
    a->random ^= a->random >> 7;
    a->random ^= a->random << 17;
    return (uint32_t)(a->random >> 33) % below;
}

/* A body is the id and a tail whose length and bytes follow from the id, so a torn body shows. */
static int body_of(uint32_t id, char *body) {
    int n = snprintf(body, 128, "%u", id);
    for (uint32_t i = 0; i < id * 2654435761u >> 26; i++) body[n++] = (char)('a' + (id + i) % 26);
    return n;
}

static void take_record(struct op *o, const char *buf) {
    char body[128];
    md_record r;
    memcpy(&r, buf, sizeof r);
    const char *text = buf + sizeof r;
    uint32_t id = (uint32_t)strtoul(text + r.name_len, NULL, 10);
    int len = body_of(id, body);
    if (r.name_len != 2 || text[1] != '0' + o->name || (int)r.body_len != len ||
        memcmp(text + 2, body, (size_t)len) || r.where_len != 5 ||
        memcmp(text + 2 + len, "h.c:1", 5))
        o->bad = 1;
    o->seq = r.seq;
    if (o->count < IDS) o->ids[o->count++] = id;
}

struct own {
    uint32_t id;
    uint8_t name, key;
    md_record r;
};

static void write_once(struct actor *a, struct op *o, struct own *own, uint32_t *have) {
    char name[3] = "n", body[128], buf[BUF];
    bool put_one = *have == 0 || (*have < OWN && draw(a, 2));
    o->name = (uint8_t)draw(a, a->stage->names);
    o->key = (uint8_t)draw(a, KEYS);
    if (put_one) {
        name[1] = (char)('0' + o->name);
        o->kind = REGISTER;
        o->unique = draw(a, 4) == 0;
        o->id = a->number << 24 | a->stage->used[a->number];
        int len = body_of(o->id, body);
        o->begin = md_now();
        o->rc = md_register(a->m.reg, a->m.member, MD_IMPL, o->unique ? MD_UNIQUE : MD_STACK,
                            o->key, name, 2, body, (size_t)len, "h.c:1", 5, buf, sizeof buf);
        o->end = md_now();
        if (o->rc == 0 || o->rc == MD_EEXIST) take_record(o, buf);
        if (o->rc) return;
        own[*have] = (struct own){o->id, o->name, o->key, {0}};
        memcpy(&own[(*have)++].r, buf, sizeof(md_record));
    } else {
        uint32_t i = draw(a, *have);
        o->kind = STRIKE;
        o->name = own[i].name;
        o->key = own[i].key;
        o->id = own[i].id;
        o->seq = own[i].r.seq;
        o->begin = md_now();
        o->rc = md_strike(a->m.reg, a->m.member, own[i].r.ref, own[i].r.seq);
        o->end = md_now();
        own[i] = own[--*have];
    }
}

static void read_once(struct actor *a, struct op *o) {
    char name[3] = "n", buf[BUF];
    size_t size;
    md_wait_stats stats = {0};
    uint32_t what = draw(a, 64);
    o->name = (uint8_t)draw(a, a->stage->names);
    o->key = (uint8_t)draw(a, KEYS);
    name[1] = (char)('0' + o->name);
    o->kind = what < 32 ? FIND : what < 60 ? LIST : AWAIT;
    o->begin = md_now();
    if (o->kind == FIND) {
        o->rc = md_find(a->m.reg, MD_IMPL, o->key, name, 2, buf, sizeof buf);
    } else if (o->kind == AWAIT) {
        o->at_least = (uint8_t)(1 + draw(a, 2));
        o->rc = md_await(a->m.reg, a->m.member, MD_IMPL, o->key, o->at_least, name, 2,
                         o->begin + 400000000, 0, buf, sizeof buf, &stats);
        o->slices = stats.slices;
    } else {
        o->rc = md_list(a->m.reg, name, 2, buf, sizeof buf, &size, &o->version, &o->node);
    }
    o->end = md_now();
    if (o->rc) return;
    if (o->kind != LIST) {
        take_record(o, buf);
        return;
    }
    md_record r = {0};
    for (size_t at = 0; at < size; at += r.size) {
        uint64_t before = r.seq;
        memcpy(&r, buf + at, sizeof r);
        if (r.seq <= before || r.size == 0) o->bad = 1;
        if (r.size == 0) return;
        take_record(o, buf + at);
    }
}

static void *act(void *arg) {
    struct actor *a = arg;
    struct stage *s = a->stage;
    struct own own[OWN];
    uint32_t have = 0;
    md__add32(&s->ready, 1);
    while (!md__read32(&s->go)) sched_yield();
    for (uint32_t i = 0; i < s->each; i++) {
        struct op *o = &s->ops[a->number * s->each + i];
        /* readers end with the writers: nobody waits for a fact that nobody will register */
        if (a->number >= WRITERS && md__read32(&s->done) == WRITERS) break;
        o->actor = (uint8_t)a->number;
        if (a->number < WRITERS)
            write_once(a, o, own, &have);
        else
            read_once(a, o);
        md__publish32(&s->used[a->number], i + 1);
    }
    if (a->number < WRITERS) md__add32(&s->done, 1);
    return NULL;
}

static void run_actors(struct stage *s, struct main_member m, uint32_t first, uint32_t count) {
    struct actor a[2];
    for (uint32_t i = 0; i < count; i++) {
        uint64_t random = (s->seed + first + i + 1) * 0x9e3779b97f4a7c15ull;
        a[i] = (struct actor){s, m, first + i, random | 1, 0};
        pthread_create(&a[i].thread, NULL, act, &a[i]);
    }
    for (uint32_t i = 0; i < count; i++) pthread_join(a[i].thread, NULL);
}

struct part {
    struct stage *stage;
    uint32_t first, count;
};

static void be_process(void *arg) {
    struct part *p = arg;
    struct main_member m = attach_worker(p->stage->address);
    if (p->first < WRITERS) promote(m.reg, m.member);
    run_actors(p->stage, m, p->first, p->count);
    md__reg *reg; /* a member that leaves as the main member closes the registry */
    OK(md__enter(m.reg, &reg));
    md__poke32(&md__member(reg, (uint32_t)m.member)->role, MD_WORKER);
    md__exit(reg);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
}

static uint64_t record_round(uint64_t seed, uint32_t each, uint32_t names, FILE *out) {
    size_t size = sizeof(struct stage) + (size_t)each * ACTORS * sizeof(struct op);
    struct stage *s = shared(size);
    struct main_member m = open_main(NULL, 1 << 20);
    struct round head = {.magic = "history", .seed = seed, .names = names};
    struct part parts[3] = {{s, 2, 1}, {s, 3, 2}, {s, 5, 2}};
    pid_t pid[3];
    char words[4096];
    md_stats stats;
    s->seed = seed;
    s->each = each;
    s->names = names;
    OK(md_address(m.reg, s->address, sizeof s->address));
    for (int i = 0; i < 3; i++) pid[i] = child(be_process, &parts[i]);
    while (md__read32(&s->ready) < ACTORS - 2) sched_yield();
    md__publish32(&s->go, 1);
    run_actors(s, m, 0, 2);
    for (int i = 0; i < 3; i++) EQ(reap(pid[i]), 0);
    int rc = md_check(m.reg, words, sizeof words);
    if (rc) fputs(words, stderr);
    OK(md_stat(m.reg, &stats));
    head.damaged = rc != 0;
    head.next_seq = stats.next_seq;
    head.facts = stats.facts;
    for (int i = 0; i < ACTORS; i++) head.ops += md__read32(&s->used[i]);
    fwrite(&head, sizeof head, 1, out);
    for (int i = 0; i < ACTORS; i++)
        fwrite(&s->ops[(size_t)i * each], sizeof(struct op), md__read32(&s->used[i]), out);
    OK(md_leave(m.reg, m.member));
    OK(md_close(m.reg));
    munmap(s, size);
    return head.ops;
}

static uint64_t option(int argc, char **argv, const char *name, uint64_t usual) {
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0) return strtoull(argv[i + 1], NULL, 0);
    return usual;
}

int main(int argc, char **argv) {
    uint64_t ops = option(argc, argv, "--ops", 30000), each = option(argc, argv, "--round", 2000);
    uint64_t seed = option(argc, argv, "--seed", (uint64_t)md_now()), done = 0;
    const char *path = "history.bin";
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--out") == 0) path = argv[i + 1];
    FILE *out = fopen(path, "wb");
    if (!out) {
        perror(path);
        return 2;
    }
    printf("history --ops %llu --round %llu --seed %llu\n", (unsigned long long)ops,
           (unsigned long long)each, (unsigned long long)seed);
    fflush(stdout);
    /* Fifteen rounds of sixteen are short, on one name: for the search that trusts no sequence. */
    for (uint64_t i = 0; done < ops; i++)
        done += i % 16 ? record_round(seed + i, 8, 1, out)
                       : record_round(seed + i, (uint32_t)each, NAMES, out);
    if (fclose(out)) return 2;
    printf("%llu operations recorded\n", (unsigned long long)done);
    return test_failures ? 1 : 0;
}
