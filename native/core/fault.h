/* fault.h - mistakes that can be compiled in, one at a time, by -DMD_FAULT=n, to see whether the
 * tests notice. In every other build MD_FAULT_IS is 0, and no code comes of it. stress/faults.py
 * has the list in words.
 */
#ifndef MD_CORE_FAULT_H
#define MD_CORE_FAULT_H

#ifdef MD_FAULT
#define MD_FAULT_IS(n) (MD_FAULT == (n))
#else
#define MD_FAULT_IS(n) 0
#endif

#endif
