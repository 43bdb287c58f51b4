/* Linked into what is measured: the counters of all processes are one.
 *
 * counters.ld puts what gcc counts in (and nothing else) on pages of its own. Here they are made
 * shared memory before anything runs, so a child's counts are its parent's: also those of a child
 * that is killed or ends by _exit(). Whoever ends by exit() writes them out.
 */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

extern char md_counters_begin[] __attribute__((visibility("hidden")));
extern char md_counters_end[] __attribute__((visibility("hidden")));

__attribute__((constructor(101))) static void share_counters(void) {
    size_t size = (size_t)(md_counters_end - md_counters_begin);
    void *p = mmap(md_counters_begin, size, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (p != md_counters_begin) abort();
}
