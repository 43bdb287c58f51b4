/* probes.h - the probes mdispatch:operator_start(name) and mdispatch:operator_end(name, raised),
 * for tools that watch the process from outside: bpftrace, SystemTap, perf, gdb.
 *
 * They exist when the build finds sys/sdt.h (Debian: systemtap-sdt-dev). A probe is a nop. The two
 * share a semaphore that is above 0 while a tool is attached, and a call looks at nothing else.
 * Without sys/sdt.h the compiler knows that no tool is ever attached.
 */
#ifndef MD_CALL_PROBES_H
#define MD_CALL_PROBES_H

#include "state.h"

#if __has_include(<sys/sdt.h>)

#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

/* A tool raises it when it attaches; the ELF notes of both probes name its address. */
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

/* A call while a tool is attached. */
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
