/* ground.h - the lowest layer: the format, words that processes share, mutexes, the clock.
 *
 * The core has four layers: ground, store, state, contract. A file includes the header of its own
 * layer, which includes the headers of the layers below. It calls nothing on a higher layer, and no
 * files call each other in a circle. native/layers.py checks both. No file of this layer knows of
 * an open region.
 */
#ifndef MD_GROUND_H
#define MD_GROUND_H

#include "fault.h"
#include "layout.h"

/* status.c */
int md__sys(void);

/* hash.c */
uint32_t md__hash(const char *name, size_t len);

/* eventcount.c */
uint32_t md__event_prepare(md__u32 *word);
void md__event_ring(md__u32 *word);
enum { MD__SLICE_NS = 100 * 1000 * 1000 };
enum { MD__SLEPT_RUNG = 0, MD__SLEPT_SLICE = 1, MD__SLEPT_SIGNAL = 2 };
int md__sleep(md__u32 *event, uint32_t seen, md__u32 *lease, uint32_t lease_seen, int64_t until_ns,
              int64_t slice_ns);
void md__futex_wake(md__u32 *word, int count);
void md__futex_wait(md__u32 *word, uint32_t seen);

/* mutex.c */
int md__mutex_init(pthread_mutex_t *m);
bool md__is_of_our_type(const pthread_mutex_t *m);
int md__lease_probe(void);
md__u32 *md__mutex_word(pthread_mutex_t *m);
uint32_t md__mutex_owner(const pthread_mutex_t *m, int *died);
bool md__is_held_by_nobody(pthread_mutex_t *m);

#endif
