/* probes.h - the probes mdispatch:operator_start(name) and mdispatch:operator_end(name, raised), for
 * those who look on from outside of the process: bpftrace, SystemTap, perf, gdb.
 *
 * They are there when sys/sdt.h is at build time (Debian: systemtap-sdt-dev). A probe is a nop, and the
 * two have a word that is above 0 while somebody is attached: a call looks at it, and at nothing else.
 * Elsewhere the compiler finds that nobody ever is.
 */
#ifndef MD_BIND_PROBES_H
#define MD_BIND_PROBES_H

#include "call.h"

#if __has_include(<sys/sdt.h>)

#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

/* Raised by who attaches, at the place that the notes of the probes name: one for both. */
unsigned short mdispatch_operator_start_semaphore
    __attribute__((section(".probes"), used, visibility("hidden")));
extern unsigned short mdispatch_operator_end_semaphore
    __attribute__((alias("mdispatch_operator_start_semaphore"), used, visibility("hidden")));

static inline int probes_are_wanted(void) {
    return mdispatch_operator_start_semaphore;
}
static inline void probe_start(const char *name) {
    STAP_PROBE1(mdispatch, operator_start, name);
}
static inline void probe_end(const char *name, int raised) {
    STAP_PROBE2(mdispatch, operator_end, name, raised);
}

#else

static inline int probes_are_wanted(void) {
    return 0;
}
static inline void probe_start(const char *name) {
    (void)name;
}
static inline void probe_end(const char *name, int raised) {
    (void)name, (void)raised;
}

#endif

/* A call that somebody looks on at. */
static __attribute__((noinline, cold)) PyObject *
probed(vectorcallfunc run, PyObject *self, PyObject *const *args, size_t n, PyObject *kwnames) {
    PyObject *name = PyObject_GetAttrString(self, "__name__");
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (!text) PyErr_Clear(), text = "?";
    probe_start(text);
    PyObject *result = run(self, args, n, kwnames);
    probe_end(text, !result);
    Py_XDECREF(name);
    return result;
}

#endif
