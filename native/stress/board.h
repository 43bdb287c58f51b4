/* board.h - what the killer and its victims share beside the registry: who does what, what was
 * acknowledged, how long waits took, what went wrong.
 *
 * The board lies in shared memory. Processes write it with plain atomic words, and every word keeps
 * its meaning when its writer is killed after any store:
 *
 * - A place is one fact that may be there. Its word says how it stands (EMPTY, PUTTING, LIVE,
 *   STRIKING), whose turn it is and how often it has changed. The word changes by compare-and-swap,
 *   so one process at a time changes the fact. LIVE and EMPTY are acknowledged: the call has
 *   returned MD_OK. A place that a dead process left at PUTTING or STRIKING is settled by the
 *   killer, who looks which of the two states it reached.
 * - A fact's body says when its registration began. So a process that hears of a fact knows its own
 *   delay, counted from before the commit, even if the registrar is dead by now.
 * - A cell is one worker: which call it is in and since when, for the watchdog.
 */
#ifndef MD_STRESS_BOARD_H
#define MD_STRESS_BOARD_H

#include <stdarg.h>

#include "../tests/test.h"

enum {
    HOT = 40,     /* places whose facts share a few names and change all the time */
    PLACES = 340, /* the others have a name each, so that the index grows amid the killing */
    NEVER = 999,  /* no place: nothing of this number is registered */
    HOT_NAMES = 5,
    CELLS = 24,
    NOBODY = 63,
    FILLER = 600, /* the longest body, beyond its three words */
    ALLOWED_NS = 300 * 1000 * 1000,
    CAPACITY = MD__MIN_CAPACITY + (2 << 20),
};

enum { EMPTY, PUTTING, LIVE, STRIKING };

typedef struct place {
    md__u64 word; /* turns << 8 | owner << 2 | how it stands */
    md__u64 since, ref, seq;
} place;

enum role {
    MAIN,
    REGISTRAR,
    CLOSER,
    WAITER,
    READER,
    SWEEPER,
    JOINER,
    ATTACHER,
    LISTENER,
    ROLES,
    PEER = ROLES
};
static const char *const ROLE_NAMES[ROLES + 1] = {"main",     "registrar", "closer", "waiter",
                                                  "reader",   "sweeper",   "joiner", "attacher",
                                                  "listener", "peer" /* elect.c's */};

enum op {
    NOTHING,
    CREATE,
    ATTACH,
    JOIN,
    LEAVE,
    CLOSE,
    PUT,
    STRIKE,
    FIND,
    LIST,
    WAIT,
    LISTEN,
    LOOK
};
static const char *const OP_NAMES[] = {"between calls",
                                       "md_create",
                                       "md_attach",
                                       "md_join",
                                       "md_leave",
                                       "md_close",
                                       "md_register",
                                       "md_strike",
                                       "md_find",
                                       "md_list",
                                       "md_await",
                                       "md_await_change",
                                       "md_check and md_members"};

/* The outcomes of a wait. */
enum outcome { FACT, CHANGE, DEADLINE, CANCEL, MAIN_DIED, MAIN_LEFT, OUTCOMES };
static const char *const OUTCOME_NAMES[OUTCOMES] = {"fact there", "any change",  "deadline",
                                                    "cancelled",  "main killed", "main left"};

/* Upper bounds of the histogram's columns, in microseconds; the last column has none. */
static const int BOUNDS[] = {20,   50,    100,   200,   500,    1000,   2000,
                             5000, 10000, 20000, 50000, 100000, 200000, 300000};
enum { COLUMNS = sizeof BOUNDS / sizeof *BOUNDS + 1 };

typedef struct cell {
    _Alignas(64) md__u32 op; /* enum op */
    md__u32 role;
    md__u64 since;   /* when that op began; never 0 */
    md__u32 awaited; /* the place that a wait without a deadline waits for, plus 1 */
    md__u32 deeds;
    pid_t pid; /* only for the killer, like all below */
    uint32_t started;
} cell;

typedef struct board {
    char name[MD_MAX_REGISTRY_NAME];
    md__u64 main_gone; /* when the main member was killed or began to leave; 0: it is there */
    md__u32 leave;     /* asks the main member to leave */
    place places[PLACES];
    cell cells[CELLS];
    md__u64 times[OUTCOMES][COLUMNS];
    md__u64 worst[OUTCOMES];
    md__u64 beyond; /* waits that returned later than allowed... */
    md__u64 queued; /* ...of these: late only because they had to wait for a processor */
    md__u64 deeds[ROLES + 1];
    md__u64 acknowledged; /* registrations that returned MD_OK */
    md__u64 looked_up;    /* places that somebody compared with the registry */
    md__u32 failures;
    char words[4096]; /* of the first failure */
} board;

static board *shown; /* mapped before the first fork */
static cell *self;

static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static inline uint32_t below(uint64_t *state, uint32_t limit) {
    return (uint32_t)(next_random(state) >> 32) % limit;
}

/* Keeps the first failure: the later ones are mostly its consequences. */
__attribute__((format(printf, 1, 2))) static void fail(const char *words, ...) {
    uint32_t none = 0;
    va_list args;
    if (!md__swap_if32(&shown->failures, &none, 1)) {
        md__add32(&shown->failures, 1);
        return;
    }
    int n = self ? snprintf(shown->words, sizeof shown->words,
                            "%s (pid %d), inside %s: ", ROLE_NAMES[md__peek32(&self->role)],
                            (int)getpid(), OP_NAMES[md__peek32(&self->op)])
                 : 0;
    va_start(args, words);
    vsnprintf(shown->words + n, sizeof shown->words - (size_t)n, words, args);
    va_end(args);
}

static inline void count(md__u64 *n) {
    atomic_fetch_add(n, 1);
}
static inline void inside(enum op op) {
    md__poke64(&self->since, (uint64_t)md_now());
    md__publish32(&self->op, op);
}
static inline void outside(void) {
    md__publish32(&self->op, NOTHING);
    md__add32(&self->deeds, 1);
    count(&shown->deeds[md__peek32(&self->role)]);
}

/* --- places ----------------------------------------------------------------------------------- */

static inline uint32_t standing(uint64_t word) {
    return word & 3;
}
static inline uint32_t owner_of(uint64_t word) {
    return word >> 2 & 63;
}
static inline uint64_t next_word(uint64_t word, uint32_t how, uint32_t owner) {
    return ((word >> 8) + 1) << 8 | owner << 2 | how;
}
/* Takes the place for a change, if it stands at `how`: then nobody else has it. */
static inline bool claim(place *p, uint32_t how, uint32_t becomes, uint64_t *word) {
    *word = md__read64(&p->word);
    if (standing(*word) != how) return false;
    uint64_t mine = next_word(*word, becomes, (uint32_t)(self - shown->cells));
    if (!md__swap_if64(&p->word, word, mine)) return false;
    *word = mine;
    return true;
}
static inline void settle(place *p, uint64_t word, const md_record *r) {
    if (r) {
        md__poke64(&p->ref, r->ref);
        md__poke64(&p->seq, r->seq);
    }
    md__poke64(&p->since, (uint64_t)md_now());
    md__publish64(&p->word, next_word(word, r ? LIVE : EMPTY, NOBODY));
}
static inline void name_of(uint32_t number, char name[16]) {
    if (number < HOT)
        snprintf(name, 16, "hot%u", number % HOT_NAMES);
    else
        snprintf(name, 16, "f%u", number);
}

struct body {
    uint64_t number, began, filler;
    unsigned char bytes[FILLER];
};
enum { BODY_HEAD = 24 };

static inline size_t make_body(struct body *b, uint32_t number, uint32_t filler) {
    b->number = number;
    b->filler = filler;
    for (uint32_t i = 0; i < filler; i++) b->bytes[i] = (unsigned char)(number * 31 + i);
    b->began = (uint64_t)md_now();
    return BODY_HEAD + filler;
}
/* When the registration of this packed record began. Returns 0 and notes a failure when nobody
 * registered these bytes. */
static inline uint64_t read_body(const char *packed, uint32_t number) {
    md_record r;
    struct body b;
    memcpy(&r, packed, sizeof r);
    const char *body = packed + sizeof r + r.name_len;
    bool good = r.body_len >= BODY_HEAD && r.body_len <= sizeof b && r.where_len == 8 &&
                memcmp(body + r.body_len, "kill.c:1", 8) == 0;
    if (good) memcpy(&b, body, r.body_len);
    good = good && b.number == (uint64_t)(uint32_t)r.key && b.filler == r.body_len - BODY_HEAD &&
           (number == PLACES || b.number == number);
    for (uint64_t i = 0; good && i < b.filler; i++)
        good = b.bytes[i] == (unsigned char)(b.number * 31 + i);
    if (good) return b.began;
    fail("fact %llu of place %u (key %d): its bytes were never registered",
         (unsigned long long)r.seq, number, r.key);
    return 0;
}

/* Looks up a place's fact, without the lock. */
static inline int find_place(md_registry reg, uint32_t number, char buf[BUF]) {
    char name[16];
    name_of(number, name);
    return md_find(reg, MD_IMPL, (int32_t)number, name, strlen(name), buf, BUF);
}

/* An acknowledged fact must be there, and a struck one must not. A place that changes meanwhile
 * proves nothing. */
static inline void verify_place(md_registry reg, uint32_t number) {
    place *p = &shown->places[number];
    uint64_t word = md__read64(&p->word), seq = md__read64(&p->seq);
    char buf[BUF];
    md_record r;
    uint32_t how = standing(word);
    if (how != EMPTY && how != LIVE) return;
    int rc = find_place(reg, number, buf);
    if (md__read64(&p->word) != word) return;
    count(&shown->looked_up);
    if (rc == 0) memcpy(&r, buf, sizeof r);
    if (how == LIVE && rc)
        fail("the acknowledged fact %llu of place %u is lost: %s", (unsigned long long)seq, number,
             md_status_text(rc));
    else if (how == LIVE && r.seq != seq)
        fail("place %u holds fact %llu; acknowledged was %llu", number, (unsigned long long)r.seq,
             (unsigned long long)seq);
    else if (how == LIVE)
        read_body(buf, number);
    else if (rc != MD_ENOENT)
        fail("place %u was struck out; a look-up gives %d", number, rc);
}

/* --- waits ------------------------------------------------------------------------------------ */

/* For how many nanoseconds this thread was ready to run and had no processor. */
static inline uint64_t queued_ns(void) {
    char text[128];
    unsigned long long ran, queued = 0;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    return sscanf(text, "%llu %llu", &ran, &queued) == 2 ? queued : 0;
}

/* Notes a wait that has returned. `came` is the earliest time at which its outcome was there,
 * `queued` is how long its thread waited for a processor since the wait began. */
static inline void note_wait_time(enum outcome o, uint64_t came, uint64_t returned,
                                  uint64_t queued) {
    uint64_t took = returned > came ? returned - came : 0, worst = md__peek64(&shown->worst[o]);
    size_t column = 0;
    while (column < COLUMNS - 1 && took > (uint64_t)BOUNDS[column] * 1000) column++;
    count(&shown->times[o][column]);
    while (took > worst && !md__swap_if64(&shown->worst[o], &worst, took)) {}
    if (took <= (uint64_t)limit(ALLOWED_NS)) return;
    count(&shown->beyond);
    if (took - (queued < took ? queued : took) <= (uint64_t)limit(ALLOWED_NS))
        count(&shown->queued);
    else
        fail("a wait (%s) returned %.1f ms after its outcome, %.1f ms of them without a processor",
             OUTCOME_NAMES[o], (double)took / 1e6, (double)queued / 1e6);
}

#endif
