/* host.c - a program that embeds several Pythons, which share its operators.
 *
 *     cc -std=c11 -pthread -o host host.c $(python -m mdispatch.config --cflags --libs --embed)
 *     ./host --interpreters 8 --seconds 60 --python $(which python)
 *
 * It registers an operator in C before there is any Python, starts the main interpreter, which
 * registers the operators of meter_ops.py, then interpreters with one thread each, which verify
 * them. All call at once, while this program registers and closes other operators, and listens to
 * what changes. At the end everything goes in the order of docs/embedding.md, and the calls per
 * second are printed as a ratio to those of one interpreter alone.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <libgen.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "mdispatch_kernels.h"

enum { MOST = 64, BATCH = 50 };

static const char *python = "python3", *modules = ".";
static int interpreters = 2;
static double seconds = 2;

static md_registry registry;
static uint64_t host; /* this program's membership */
static atomic_int stop, failed;

static _Noreturn void give_up(const char *what, const char *why) {
    fprintf(stderr, "host: %s: %s\n", what, why);
    exit(1);
}

static void need(int status, const char *what) {
    if (status) give_up(what, md_status_text(status));
}

static double now(void) {
    return (double)md_now() / 1e9;
}

/* --- operators in C --------------------------------------------------------------------------- */

static int energy(md_call *call, const md_value *args, size_t n_args, md_value *results,
                  size_t n_results) {
    const md_buffer *x = args[0].as.buffer;
    (void)n_args, (void)n_results;
    if (x->code != MD_DTYPE_FLOAT || x->bits != 64 || x->ndim != 1)
        return call->fail(call, MD_ERROR_TYPE, "a signal is one line of float64");
    double sum = 0;
    for (int64_t i = 0; i < x->shape[0]; i++) {
        double value = *(double *)((char *)x->data + i * x->strides[0]);
        sum += value * value;
    }
    results[0] = md_of_float(sum);
    return 0;
}

static int count_it(md_call *call, const md_value *args, size_t n_args, md_value *results,
                    size_t n_results) {
    (void)args, (void)n_args, (void)n_results;
    results[0] = md_of_int(++*(int64_t *)call->user);
    return 0;
}

static md_library *open_meter(void) {
    char text[512];
    md_library *m;
    need(md_library_open(registry, host, "meter", MD_DEF_LIBRARY, "host", MD_HERE, &m), "meter");
    md_def(m, "meter::energy(Tensor x) -> float");
    md_impl(m, "energy", MD_KEY_CPU, energy);
    if (md_library_status(m, text, sizeof text)) give_up("meter", text);
    return m;
}

/* Registers operators and closes them again, about a thousand times a second. */
static void *come_and_go(void *out) {
    int64_t *rounds = out;
    const struct timespec pace = {0, 1000000};
    while (!stop) {
        char schema[64], text[512];
        int64_t *calls = calloc(1, sizeof *calls);
        md_library *m;
        snprintf(schema, sizeof schema, "meter::visitor%d() -> int", (int)(*rounds % 16));
        need(md_library_open(registry, host, "meter", MD_FRAGMENT, "host", MD_HERE, &m), schema);
        md_def(m, schema);
        *strchr(schema, '(') = '\0';
        md_impl_with(m, schema, MD_KEY_CompositeExplicitAutograd, count_it, calls, free, 0);
        if (md_library_status(m, text, sizeof text)) give_up(schema, text);
        need(md_library_close(m), schema);
        ++*rounds;
        nanosleep(&pace, NULL);
    }
    return NULL;
}

/* Hears of every change, until the program's membership ends. */
static void *listen_to_changes(void *out) {
    int64_t *heard = out;
    md_wait_stats stats = {0, 0, 0, 0, 0};
    uint64_t seq = 0;
    int status;
    while ((status = md_await_change(registry, host, seq, MD_FOREVER, 1, &seq, &stats)) == 0 ||
           status == MD_EINTR)
        ++*heard;
    if (status != MD_ECANCELED) give_up("listening", md_status_text(status));
    return NULL;
}

/* --- interpreters ----------------------------------------------------------------------------- */

struct worker {
    pthread_t thread;
    int64_t calls;
    double began, ended;
};

static pthread_barrier_t ready;

static int run(const char *code) {
    PyObject *globals = PyDict_New(), *done = NULL;
    if (globals && PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) == 0) {
        PyObject *folder = PyUnicode_DecodeFSDefault(modules);
        if (folder && PyDict_SetItemString(globals, "FOLDER", folder) == 0)
            done = PyRun_String(code, Py_file_input, globals, globals);
        Py_XDECREF(folder);
    }
    if (!done) PyErr_Print();
    Py_XDECREF(done);
    Py_XDECREF(globals);
    return done ? 0 : -1;
}

static const char WARM_UP[] = "import sys\n"
                              "sys.path.insert(0, FOLDER)\n"
                              "import mdispatch\n"
                              "mdispatch.warm_up(['meter_ops'])\n";

static int64_t work(int rounds) {
    PyObject *module = PyImport_ImportModule("meter_ops");
    PyObject *calls = module ? PyObject_CallMethod(module, "work", "i", rounds) : NULL;
    int64_t count = calls ? PyLong_AsLongLong(calls) : -1;
    if (PyErr_Occurred()) PyErr_Print();
    Py_XDECREF(calls);
    Py_XDECREF(module);
    return count;
}

/* In a new interpreter, whose thread state is the current one then. */
static PyThreadState *new_interpreter(void) {
#if PY_VERSION_HEX >= 0x030c0000
    PyThreadState *made = NULL;
    PyInterpreterConfig config = {
        .allow_threads = 1, .check_multi_interp_extensions = 1, .gil = PyInterpreterConfig_OWN_GIL};
    PyStatus status = Py_NewInterpreterFromConfig(&made, &config);
    if (PyStatus_Exception(status)) give_up("a new interpreter", status.err_msg);
    return made;
#else
    return Py_NewInterpreter(); /* they share one GIL */
#endif
}

static void *interpret(void *arg) {
    struct worker *w = arg;
    /* A state for the main interpreter first: whoever makes an interpreter is in one. */
    PyThreadState *outer = PyThreadState_New(PyInterpreterState_Main());
    PyEval_RestoreThread(outer);
    PyThreadState *inner = new_interpreter();
    if (!inner) give_up("a new interpreter", "none could be made");
    int fine = run(WARM_UP) == 0 && work(1) > 0;
    Py_BEGIN_ALLOW_THREADS pthread_barrier_wait(&ready);
    Py_END_ALLOW_THREADS w->began = now();
    while (fine && !stop) {
        int64_t calls = work(BATCH);
        fine = calls > 0;
        w->calls += fine ? calls : 0;
    }
    w->ended = now();
    if (!fine) failed = 1;
    Py_BEGIN_ALLOW_THREADS pthread_barrier_wait(&ready); /* nobody measures with one less */
    Py_END_ALLOW_THREADS Py_EndInterpreter(inner);       /* leaves the registry, by atexit */
#if PY_VERSION_HEX >= 0x030c0000
    PyEval_RestoreThread(outer);
#else
    PyThreadState_Swap(outer);  /* the GIL is the same one, and still held */
#endif
    PyThreadState_Clear(outer);
    PyThreadState_DeleteCurrent();
    return NULL;
}

/* Calls per second of so many interpreters, for so long. */
static double measure(int count, double length) {
    static struct worker workers[MOST];
    double rate = 0;
    int64_t visits = 0, deadline;
    pthread_t visitor;
    memset(workers, 0, sizeof workers);
    stop = 0;
    pthread_barrier_init(&ready, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++)
        pthread_create(&workers[i].thread, NULL, interpret, &workers[i]);
    pthread_barrier_wait(&ready);
    pthread_create(&visitor, NULL, come_and_go, &visits);
    /* Waits for an operator that never comes: that is what a wait with a deadline is. */
    char packed[256];
    md_wait_stats stats = {0, 0, 0, 0, 0};
    deadline = md_now() + (int64_t)(length * 1e9);
    while (md_await(registry, host, MD_DEF, 0, 1, "meter::never", 12, deadline, 2, packed,
                    sizeof packed, &stats) == MD_EINTR) {}
    stop = 1;
    pthread_join(visitor, NULL);
    pthread_barrier_wait(&ready);
    for (int i = 0; i < count; i++) {
        struct worker *w = &workers[i];
        pthread_join(w->thread, NULL);
        if (w->calls) rate += (double)w->calls / (w->ended - w->began);
    }
    pthread_barrier_destroy(&ready);
    printf("%d interpreter%s: %.0f calls/s, %lld operators came and went\n", count,
           count > 1 ? "s" : "", rate, (long long)visits);
    fflush(stdout);
    return rate;
}

/* --- the program ------------------------------------------------------------------------------ */

static void start_python(void) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0; /* they are the program's */
    /* By its name Python finds the virtual environment that it belongs to. */
    PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, python);
    if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status)) give_up("starting Python", status.err_msg);
}

static void read_arguments(int argc, char **argv) {
    static char self[4096];
    if (readlink("/proc/self/exe", self, sizeof self - 1) > 0) modules = dirname(self);
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && strcmp(argv[i], "--interpreters") == 0)
            interpreters = atoi(value);
        else if (value && strcmp(argv[i], "--seconds") == 0)
            seconds = atof(value);
        else if (value && strcmp(argv[i], "--python") == 0)
            python = value;
        else if (value && strcmp(argv[i], "--modules") == 0)
            modules = value;
        else
            interpreters = 0;
    }
    if (interpreters < 1 || interpreters > MOST || !(seconds > 0)) {
        fprintf(stderr,
                "usage: host [--interpreters 1..%d] [--seconds S] [--python PATH] "
                "[--modules FOLDER]\n",
                MOST);
        exit(2);
    }
}

int main(int argc, char **argv) {
    uint32_t role;
    int64_t heard = 0;
    pthread_t listener;
    read_arguments(argc, argv);

    /* 1. The registry, and what is this program's. */
    if (md_abi() != MD_ABI) give_up("libmdispatch", "it is of another version");
    need(md_open_default(getenv("MDISPATCH_REGISTRY"), &registry), "the registry");
    need(md_join(registry, MD_HOST, &host, &role), "joining");
    if (role != MD_MAIN) give_up("joining", "the registry is another process's");
    md_library *meter = open_meter();
    pthread_create(&listener, NULL, listen_to_changes, &heard);

    /* 2. The main interpreter, which registers; then the others, which verify. */
    start_python();
    if (run(WARM_UP) || work(1) < 0) give_up("the main interpreter", "see above");
    PyThreadState *main_state = PyEval_SaveThread(); /* lets the GIL go */
    double alone = measure(1, interpreters > 1 ? seconds / 4 : seconds);
    double together = interpreters > 1 ? measure(interpreters, seconds * 3 / 4) : alone;

    /* 3. The end, in reverse: interpreters have gone, the main one, this program's part. */
    PyEval_RestoreThread(main_state);
    if (Py_FinalizeEx()) give_up("ending Python", "it could not write its output");
    need(md_library_close(meter), "closing the library");
    md_stats stats;
    need(md_stat(registry, &stats), "looking");
    if (stats.facts) {
        fprintf(stderr, "host: %llu facts are left\n", (unsigned long long)stats.facts);
        failed = 1;
    }
    need(md_cancel(registry, host, 1), "ending the listener");
    pthread_join(listener, NULL);
    need(md_leave(registry, host), "leaving");
    need(md_close(registry), "closing the registry");
    printf("%d interpreters make %.2f times the calls of one; %lld changes heard; %s\n",
           interpreters, together / alone, (long long)heard, failed ? "FAILED" : "no errors");
    return failed;
}
