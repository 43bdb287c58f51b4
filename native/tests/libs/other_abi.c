/* Made with a header of another time. */
#include "../../mdispatch_kernels.h"

static void block(md_library *m) {
    m->fail(m, "nobody may run this");
}
MD_EXPORTED const md_library_block mdispatch_library;
const md_library_block mdispatch_library = {MD_KERNEL_ABI + 1, MD_DEF_LIBRARY, "shop", "x:1",
                                            block};
