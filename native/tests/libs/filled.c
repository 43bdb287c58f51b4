/* What a test puts in here is what the library brings. */
#include "../../mdispatch_kernels.h"

MD_EXPORTED md_library_block mdispatch_library;
md_library_block mdispatch_library;
