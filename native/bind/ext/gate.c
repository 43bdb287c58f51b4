/* gate.c - the way back from a wait to the GIL: one thread of an interpreter at a time.
 *
 * A registration may wake thousands of threads at once. If all went for the GIL together, each would
 * look every 5 ms whether its holder still runs, and ask it to let go: then the processors are busy
 * with that, and whoever has the GIL loses it before it is done (4,000 threads took 20 s). Behind the
 * gate they sleep, and one of them goes for the GIL.
 *
 * Locking: an interpreter's gate is taken without its GIL, and kept until the GIL is had. Nobody waits
 * for a gate with a GIL, and who is in a gate waits for nothing but that GIL, for which those behind
 * it would wait as well. So the gate closes no circle. It has a limit all the same: interpreters
 * whose numbers are GATES apart share a gate, and one may keep its GIL for long. Whoever has waited
 * behind the gate for PATIENCE_NS, and nobody has come through meanwhile, goes on without it.
 *
 * The child of a fork has none of the threads that were in the gates: it opens them all.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "../../mdispatch.h"
#include "gate.h"

enum { GATES = 256 };
static const int64_t PATIENCE_NS = 1000000000;

static struct {
    pthread_mutex_t mutex;
    _Atomic uint32_t passed; /* how many have come through; only whether it changes counts */
} gates[GATES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_all(void) {
    for (int i = 0; i < GATES; i++) pthread_mutex_init(&gates[i].mutex, NULL);
}

static void set_up(void) {
    open_all();
    pthread_atfork(NULL, NULL, open_all); /* without memory for it: PATIENCE_NS in children */
}

/* Instead of PyEval_RestoreThread. */
void gate_come_back(PyThreadState *thread) {
    uint64_t id = (uint64_t)PyInterpreterState_GetID(PyThreadState_GetInterpreter(thread)) % GATES;
    int closed;
    uint32_t before;
    pthread_once(&once, set_up);
    do {
        int64_t until = md_now() + PATIENCE_NS;
        struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        before = atomic_load_explicit(&gates[id].passed, memory_order_relaxed);
        closed = pthread_mutex_clocklock(&gates[id].mutex, CLOCK_MONOTONIC, &t);
    } while (closed == ETIMEDOUT &&
             atomic_load_explicit(&gates[id].passed, memory_order_relaxed) != before);
    PyEval_RestoreThread(thread);
    atomic_fetch_add_explicit(&gates[id].passed, 1, memory_order_relaxed);
    if (!closed) pthread_mutex_unlock(&gates[id].mutex);
}
