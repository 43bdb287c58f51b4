/* gate.h - see gate.c. */
#ifndef MD_EXT_GATE_H
#define MD_EXT_GATE_H

void gate_come_back(PyThreadState *thread);

#endif
