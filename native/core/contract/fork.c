/* fork.c - what becomes of this process's locks and regions in a child of fork().
 *
 * This is the one place that says in which order locks are taken for a fork: first the lock of the
 * table of open regions, then that of kernels.c. Both are taken before the fork and released after
 * it. So the child finds them free, and it forgets what belongs only to its parent. The lock of
 * load.c is held while other people's code runs, so nobody waits for it here: the child gets a new
 * one.
 */
#include <stdlib.h>

#include "kernels.h"

pthread_mutex_t md__loading = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

/* In the child of a fork: we own nothing of the parent's. Its lease thread is not in the child. */
static void process_forked(md__reg *reg) {
    md__publish32(&reg->forked, 1);
    md__region_look_only(reg);
    free(reg->lease_thread);
    reg->lease_thread = NULL;
    reg->process = MD__NO_SLOT;
    reg->creator = 0;
    md__poke32(&reg->stuck, 0);
    reg->waits = NULL;
    reg->paced = 0;
    md__poke32(&reg->waiting, 0);
    pthread_mutex_init(&reg->waits_lock, NULL);
}

static void load_forked(void) {
    static const pthread_mutex_t fresh = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    memcpy(&md__loading, &fresh, sizeof md__loading);
}

void md__before_fork(void) {
    pthread_mutex_lock(&md__table_lock);
    md__kernels_before_fork();
}

void md__after_fork_parent(void) {
    md__kernels_after_fork();
    pthread_mutex_unlock(&md__table_lock);
}

/* The calls under way belong to threads that are not in the child. */
void md__after_fork_child(void) {
    md__kernels_after_fork();
    load_forked();
    md__forget_parked();
    for (int i = 0; i < MD__HANDLES; i++) {
        md__reg *reg = &md__table[i];
        if (!reg->base) continue;
        process_forked(reg);
        md__poke64(&reg->refs, md__peek64(&reg->refs) & ~(uint64_t)MD__COUNT);
        if ((uint32_t)md__peek64(&reg->refs) == 0) md__give_back(reg);
    }
    pthread_mutex_unlock(&md__table_lock);
}
