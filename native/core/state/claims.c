/* claims.c - decides whose turn it is: namespaces, their claims and their registrars. Where there is
 * no main member, the registrar of a namespace registers in it.
 *
 * Locking: claims end under the region's lock. A queue is read under it or, by md__queue_once,
 * without it: see Note [Readers take no lock] in chain.c.
 *
 * Note [Claims]
 * A claim is a fact of kind MD_CLAIM under the name of a namespace, and it names its member. The
 * facts of a name form a chain in the order of their numbers, so the claims of a namespace are a
 * queue. The member of the oldest claim is the registrar. Claims are made and ended under the lock,
 * and a member that registers or strikes compares itself with the oldest claim under that same
 * lock. So at no instant can two members pass for the registrar of one namespace.
 *
 * A claim ends when its member releases it or leaves, or when a sweep finds its member dead. The
 * last claim of a namespace ends after all facts of the namespace, never before. If the process
 * that ends them is killed in between, it leaves a claim of a dead member, by which the next sweep
 * finds what remains to be done. (A claim that is not the last ends alone: the facts now belong to
 * the next claimant.)
 *
 * In the registry of a host of a cluster (MD_POLICY_BRIDGE) one queue serves for all names: that of
 * MD__BRIDGES, in which only bridges stand. Its registrar is the host's bridge. All that it has
 * registered stays when its claim ends, with the last claim, too: the next bridge goes on with it.
 * It is compared under the same lock, so at no instant can two bridges pass for the host's.
 *
 * Where there is a main member, it alone registers in namespaces. There a claim says only whose turn
 * it is to work out what all members will agree on (MD_AGREED). No facts end with it, and those of
 * members that are gone end with their own facts (md__strike_own in chain.c).
 *
 * After any claim has ended, all event words are rung, because one of the waiters may be the
 * registrar now. Such a wait (md_await_or_elect, in await.c) prepares its event word, and then
 * looks for the registrar and for the fact. No wake is lost, by Note [Event words], if "publishes
 * its fact" is read as "links past the claim". A member can also become the registrar by a claim of
 * its own while another of its threads waits. The words of that member's waits are rung after the
 * commit, so the same argument holds. A waiter learns of the registrar's death from the lease of
 * the registrar's process, on which it sleeps as well, or else after a slice.
 */
#include "state.h"

/* The length of a name's namespace: the part before the first "::", or the whole name. */
size_t md__space_len(const char *name, size_t len) {
    for (size_t i = 0; i + 1 < len; i++)
        if (name[i] == ':' && name[i + 1] == ':') return i;
    return len;
}

/* Counts the claims on a name's namespace. MD_ENOENT when there is none, MD__AGAIN when a writer has
 * outrun the caller. */
int md__queue_once(const md__reg *reg, const char *name, size_t len, struct md__queue *q) {
    struct md__node *node;
    uint64_t before, seq = UINT64_MAX;
    size_t space = md__space_len(name, len);
    int rc = md__node_seek(reg, name, space, md__hash(name, space), &node, &before);
    if (rc) return rc;
    q->claims = 0;
    for (uint32_t ref = md__read32(&node->head); ref;) {
        struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return MD__AGAIN;
        if (md__peek32(&f->kind) == MD_CLAIM) {
            q->claims++;
            q->registrar = md__peek64(&f->member);
            q->first = f;
        }
        ref = md__read32(&f->next);
    }
    if (md__version_after(&node->version) != before) return MD__AGAIN;
    return q->claims ? 0 : MD_ENOENT;
}

/* The same under the lock, where no writer can outrun it. */
int md__queue_now(md__reg *reg, const char *name, size_t len, struct md__queue *q) {
    int rc = md__queue_once(reg, name, len, q);
    return rc == MD__AGAIN ? MD_EDAMAGED : rc;
}

/* --- the end of claims, under the lock -------------------------------------------------------- */

/* Copies a node's name and returns its length, or 0 when it cannot be a name. */
static size_t name_of(const struct md__node *node, char name[MD_MAX_NAME + 1]) {
    size_t n = md__peek32(&node->name_len);
    if (n > MD_MAX_NAME || sizeof *node + n > node->block.size) return 0;
    md__load_words(name, node->name, n);
    return n;
}

struct space {
    const char *name;
    size_t len;
};

static bool is_in(const md__reg *reg, const struct md__node *node, const void *arg) {
    const struct space *space = arg;
    char name[MD_MAX_NAME + 1];
    size_t n = name_of(node, name);
    return n >= space->len && memcmp(name, space->name, space->len) == 0 &&
           md__space_len(name, n) == space->len;
}

/* Whether a fact ends with its namespace. */
static bool is_of_space(const md__reg *reg, const struct md__fact *f, const void *arg) {
    uint32_t kind = md__peek32(&f->kind);
    return kind != MD_CLAIM && !md__is_anyones(kind);
}

/* A claim on the namespace of this name. */
int md__end_claim(md__reg *reg, const struct md__fact *claim, const char *name, size_t len) {
    struct md__queue q;
    struct space whole = {name, len};
    uint64_t struck = 0;
    int rc = md__queue_now(reg, name, len, &q);
    if (rc == 0 && q.claims == 1 && md__is_elect(reg))
        rc = md__strike_many(reg, is_in, is_of_space, &whole, &struck);
    return rc ? rc : md__strike(reg, md__ref(reg, claim), md__peek64(&claim->seq));
}

/* Whether a fact is a claim of a member that is gone. */
static bool is_over(const md__reg *reg, const struct md__fact *f, const void *arg) {
    const struct md__gone *gone = arg;
    uint64_t whose = md__peek64(&f->member);
    if (md__peek32(&f->kind) != MD_CLAIM) return false;
    if (gone->member != MD__NOBODY) return whose == gone->member;
    return (uint32_t)whose < MD_MAX_MEMBERS &&
           md__is_gone(gone, md__peek32(&md__member(reg, (uint32_t)whose)->process));
}

/* Whether a name is in a namespace that has claims, all of members that are gone. */
static bool is_ending(const md__reg *reg, const struct md__node *node, const void *arg) {
    char name[MD_MAX_NAME + 1];
    uint64_t seq = UINT64_MAX;
    bool claimed = false;
    struct md__node *space;
    size_t len = md__space_len(name, name_of(node, name));
    if (!len || md__node_find(reg, name, len, md__hash(name, len), &space)) return false;
    for (uint32_t ref = md__peek32(&space->head); ref;) {
        const struct md__fact *f = md__older_at(reg, ref, &seq);
        if (!f) return false;
        bool is_claim = md__peek32(&f->kind) == MD_CLAIM;
        if (is_claim && !is_over(reg, f, arg)) return false;
        claimed |= is_claim;
        ref = md__peek32(&f->next);
    }
    return claimed;
}

static bool is_whole(const md__reg *reg, const struct md__node *node, const void *arg) {
    char name[MD_MAX_NAME + 1];
    return name_of(node, name) != 0;
}

/* Ends the claims of members that are gone, before their slots are freed. Two walks serve all
 * claims, see Note [Striking many] in chain.c: the first strikes the facts of the namespaces that
 * end, the second strikes the claims. */
void md__end_claims(md__reg *reg, const struct md__gone *gone) {
    uint64_t struck = 0;
    if (!md__is_elect(reg)) return;
    if (md__strike_many(reg, is_ending, is_of_space, gone, &struck) == 0)
        md__strike_many(reg, is_whole, is_over, gone, &struck);
    if (struck) md__event_ring_all(reg);
}
