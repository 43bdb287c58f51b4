/* Loads another library while it is loaded itself. md_load is the program's. */
#include "../../mdispatch_kernels.h"

MDISPATCH_LIBRARY(nested, m) {
    const md_loaded *loaded;
    char text[256];
    if (md_load("/anything.so", &loaded, text, sizeof text)) md_refuse(m, text);
}
