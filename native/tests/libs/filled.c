/* The library brings what a test puts in here. */
#include "../../mdispatch_kernels.h"

MD_EXPORTED md_library_block mdispatch_library;
md_library_block mdispatch_library;
