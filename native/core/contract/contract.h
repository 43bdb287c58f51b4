/* contract.h - the functions of mdispatch.h, and what they need from each other.
 *
 * Such a function enters the region by its handle, checks its arguments, takes the lock if it
 * changes facts, and exits. Only files of this layer enter a handle; besides them only recover.c
 * takes the lock.
 */
#ifndef MD_CONTRACT_H
#define MD_CONTRACT_H

#include "../state/state.h"

/* handles.c: the table of open regions, under its lock. */
enum { MD__HANDLES = 64 };
/* The parts of md__reg.refs below the generation. */
enum { MD__CALL = 1, MD__OPENING = 1 << 16, MD__COUNT = 0xffff };
extern md__reg md__table[MD__HANDLES];
extern pthread_mutex_t md__table_lock;
void md__process_leave(md__reg *reg);
void md__vacate(md__reg *reg);
void md__give_back(md__reg *reg);
md_registry md__handle_of(const md__reg *reg, uint32_t generation);
int md__count_up(md_registry handle, uint64_t one, md__reg **out);
bool md__count_down(md__reg *reg);

int md__enter(md_registry handle, md__reg **out);
void md__exit(md__reg *reg);
bool md__exit_locked(md__reg *reg);
/* Whether a handle has an opening; takes no lock. */
bool md__is_open(md_registry handle);
/* For a call under way: whether the last opening was given back. */
int md__is_closed(const md__reg *reg);

/* fork.c */
extern pthread_mutex_t md__loading;
void md__before_fork(void);
void md__after_fork_parent(void);
void md__after_fork_child(void);

/* attach.c */
int md__open_named(md__reg *reg, int folder, const char *name, bool to_replace);
int md__region_attach(md__reg *reg, const char *address, int64_t deadline_ns);

/* create.c */
int md__region_create(md__reg *reg, const char *name, uint64_t capacity, uint32_t policy);

/* open.c */
int md__set_up(void);

/* read.c */
int md__look(md__reg *reg, const struct md__query *q, struct md__sink *out);
int md__look_queue(md__reg *reg, const char *name, size_t len, struct md__queue *q);

/* stat.c */
void md__stat(const md__reg *reg, md_stats *out);
void md__members(md__reg *reg, md_member_info *infos, size_t cap, size_t *count);

#endif
