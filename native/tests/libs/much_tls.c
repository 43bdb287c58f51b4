/* Static TLS, as C++ programs, profilers and allocators have it: every thread's stack holds a copy. */
#include <stddef.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC __thread char much_tls[200 * 1024];
PUBLIC size_t much_tls_size = sizeof much_tls;
