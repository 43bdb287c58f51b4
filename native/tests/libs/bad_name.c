#include "../../mdispatch_kernels.h"

static int one(md_call *call, const md_value *args, size_t n_args, md_value *results,
               size_t n_results) {
    return 0;
}

MDISPATCH_LIBRARY(shop, m) {
    md_impl(m, "other::name", MD_KEY_CPU, one);
}
