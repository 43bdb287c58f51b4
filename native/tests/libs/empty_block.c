#include "../../mdispatch_kernels.h"

MD_EXPORTED const md_library_block mdispatch_library;
const md_library_block mdispatch_library = {MD_KERNEL_ABI, 0, "no space", "x:1", 0};
