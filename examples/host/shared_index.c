/* shared_index.c - a program whose interpreters share one object.
 *
 *     cc -std=c11 -pthread -o shared_index shared_index.c \
 *         $(python -m mdispatch.config --cflags --libs --embed)
 *     ./shared_index $(which python) 8 20000
 *
 * It registers the class shelf.Index in C and makes one object of it. Every interpreter, each with
 * a thread of its own, gets the object's handle from an operator, and calls its methods while the
 * others do. At the end every call has counted, and the object is destroyed once, by the last
 * handle: that of the main interpreter.
 */
#include <Python.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "mdispatch_kernels.h"

enum { MOST = 64 };

static int interpreters, rounds;
static atomic_int failed, destroyed;
static pthread_barrier_t ready;

static void need(int status, const char *what) {
    if (status == 0) return;
    fprintf(stderr, "shared_index: %s: %s\n", what, md_status_text(status));
    exit(1);
}

/* --- the class -------------------------------------------------------------------------------- */

/* How often each word was added. Interpreters call at the same time, so it has a lock. */
struct index {
    pthread_mutex_t lock;
    struct {
        char word[32];
        int64_t count;
    } words[MOST + 1];
};

static void destroy(void *payload) {
    struct index *index = payload;
    pthread_mutex_destroy(&index->lock);
    free(index);
    destroyed++;
}

/* Adds so much to the count of args[1]; the result is the count. */
static int count(md_call *call, const md_value *args, md_value *results, int64_t more) {
    struct index *index = md_payload(&args[0], "shelf.Index");
    const md_text *word = &args[1].as.text;
    int64_t now = -1;
    if (!index) return call->fail(call, MD_ERROR_TYPE, "this object is not from here");
    if (!word->size || word->size >= sizeof index->words->word)
        return call->fail(call, MD_ERROR_VALUE, "a word has 1 to 31 bytes");
    pthread_mutex_lock(&index->lock);
    for (int i = 0; i <= MOST && now < 0; i++) {
        char *here = index->words[i].word;
        if (!*here) memcpy(here, word->data, word->size);
        if (strlen(here) == word->size && memcmp(here, word->data, word->size) == 0)
            now = index->words[i].count += more;
    }
    pthread_mutex_unlock(&index->lock);
    if (now < 0) return call->fail(call, MD_ERROR_INDEX, "the index is full");
    results[0] = md_of_int(now);
    return 0;
}

static int add(md_call *call, const md_value *args, size_t n_args, md_value *results,
               size_t n_results) {
    (void)n_args, (void)n_results;
    return count(call, args, results, 1);
}

static int look(md_call *call, const md_value *args, size_t n_args, md_value *results,
                size_t n_results) {
    (void)n_args, (void)n_results;
    return count(call, args, results, 0);
}

/* Who calls first makes the one object, and holds it for this program. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static md_object *the_index;

static int get_index(md_call *call, const md_value *args, size_t n_args, md_value *results,
                     size_t n_results) {
    (void)args, (void)n_args, (void)n_results;
    pthread_mutex_lock(&making);
    if (!the_index) {
        struct index *index = calloc(1, sizeof *index);
        if (index) pthread_mutex_init(&index->lock, NULL);
        the_index = index ? md_object_new(call, "shelf.Index", index, destroy) : NULL;
        if (the_index)
            the_index->hold(the_index);
        else
            free(index);
    }
    pthread_mutex_unlock(&making);
    if (!the_index) return MD_ERROR_MEMORY;
    results[0] = md_of_object(the_index);
    return 0;
}

static md_library *open_shelf(md_registry registry, uint64_t host) {
    static const md_method methods[] = {
        MD_METHOD("add(str word) -> int", add),
        MD_METHOD("count(str word) -> int", look),
    };
    char text[512];
    md_library *m;
    need(md_library_open(registry, host, "shelf", MD_DEF_LIBRARY, "host", MD_HERE, &m), "shelf");
    md_class(m, "Index", methods, 2);
    md_def(m, "shelf::index() -> shelf.Index");
    md_impl(m, "index", MD_KEY_CompositeExplicitAutograd, get_index);
    if (md_library_status(m, text, sizeof text)) {
        fprintf(stderr, "shared_index: %s\n", text);
        exit(1);
    }
    return m;
}

/* --- interpreters ----------------------------------------------------------------------------- */

static const char GET[] = "import mdispatch as md\n"
                          "index = md.ops.shelf.index()\n";

static void *interpret(void *number) {
    PyThreadState *outer = PyThreadState_New(PyInterpreterState_Main()), *inner = NULL;
    PyEval_RestoreThread(outer);
#if PY_VERSION_HEX >= 0x030c0000
    PyInterpreterConfig config = {
        .allow_threads = 1, .check_multi_interp_extensions = 1, .gil = PyInterpreterConfig_OWN_GIL};
    if (PyStatus_Exception(Py_NewInterpreterFromConfig(&inner, &config))) exit(1);
#else
    inner = Py_NewInterpreter(); /* they share one GIL */
#endif
    char code[256];
    snprintf(code, sizeof code,
             "for _ in range(%d):\n"
             "    index.add('all')\n"
             "    index.add('interpreter %d')\n",
             rounds, *(int *)number);
    int rc = PyRun_SimpleString(GET);
    PyThreadState *state = PyEval_SaveThread(); /* who waits has no GIL */
    pthread_barrier_wait(&ready);
    PyEval_RestoreThread(state);
    if (rc || PyRun_SimpleString(code)) failed = 1;
    Py_EndInterpreter(inner); /* its handle counts no more */
#if PY_VERSION_HEX >= 0x030c0000
    PyEval_RestoreThread(outer);
#else
    PyThreadState_Swap(outer);
#endif
    PyThreadState_Clear(outer);
    PyThreadState_DeleteCurrent();
    return NULL;
}

/* --- the program ------------------------------------------------------------------------------ */

int main(int argc, char **argv) {
    md_registry registry;
    uint64_t host;
    uint32_t role;
    pthread_t threads[MOST];
    int numbers[MOST];
    interpreters = argc > 2 ? atoi(argv[2]) : 4;
    rounds = argc > 3 ? atoi(argv[3]) : 10000;
    if (argc < 2 || interpreters < 1 || interpreters > MOST || rounds < 1) {
        fprintf(stderr, "usage: shared_index PYTHON [INTERPRETERS (1..%d) [ROUNDS]]\n", MOST);
        return 2;
    }
    need(md_open_default(getenv("MDISPATCH_REGISTRY"), &registry), "the registry");
    need(md_join(registry, MD_HOST, &host, &role), "joining");
    md_library *shelf = open_shelf(registry, host);

    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    PyConfig_SetBytesString(&config, &config.program_name, argv[1]);
    if (PyStatus_Exception(Py_InitializeFromConfig(&config))) return 1;
    PyConfig_Clear(&config);
    if (PyRun_SimpleString(GET)) return 1;
    PyThreadState *main_state = PyEval_SaveThread();

    pthread_barrier_init(&ready, NULL, (unsigned)interpreters);
    for (int i = 0; i < interpreters; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, interpret, &numbers[i]);
    }
    for (int i = 0; i < interpreters; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&ready);
    the_index->let_go(the_index); /* the main interpreter has its handle still */

    PyEval_RestoreThread(main_state);
    char check[256];
    snprintf(check, sizeof check,
             "assert index.count('all') == %d * %d, index.count('all')\n"
             "for number in range(%d):\n"
             "    assert index.count(f'interpreter {number}') == %d, number\n",
             interpreters, rounds, interpreters, rounds);
    if (PyRun_SimpleString(check) || destroyed) failed = 1;
    if (Py_FinalizeEx() || destroyed != 1) failed = 1;
    need(md_library_close(shelf), "closing the library");
    need(md_leave(registry, host), "leaving");
    need(md_close(registry), "closing the registry");
    printf("%d interpreters made %d calls of one object, which was destroyed %d times: %s\n",
           interpreters, 2 * interpreters * rounds, destroyed, failed ? "FAILED" : "all counted");
    return failed;
}
