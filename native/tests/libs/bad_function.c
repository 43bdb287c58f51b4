#include "../../mdispatch_kernels.h"

MDISPATCH_LIBRARY(shop, m) {
    md_impl(m, "name", MD_KEY_CPU, (md_kernel)0);
}
