/* A correct library. It counts how often its block runs. */
#include "../../mdispatch_kernels.h"

#include <stddef.h>

__attribute__((visibility("default"))) int runs;

static int one(md_call *call, const md_value *args, size_t n_args, md_value *results,
               size_t n_results) {
    results[0] = md_of_int(1);
    return 0;
}

static int two(md_call *call, const md_value *args, size_t n_args, md_value *results,
               size_t n_results) {
    results[0] = md_of_int(*(int *)call->user);
    return 0;
}

static int first = 10, second = 20;

static const md_method methods[] = {
    MD_METHOD("price(int n) -> int", one),
    MD_METHOD_WITH("cost() -> int", two, &first, NULL, MD_RELEASE_GIL),
};

MDISPATCH_LIBRARY(shop, m) {
    runs++;
    md_def(m, "price(Tensor x) -> int");
    md_impl(m, "price", MD_KEY_CPU, one);
    md_impl_with(m, "shop::price", MD_KEY_CUDA, two, &first, NULL, MD_RELEASE_GIL);
    md_impl_with(m, "price", MD_KEY_CUDA, &two, &second, NULL, 0);
    md_impl_with(m, "cost", MD_KEY_CUDA, two, &second, NULL, 0);
    md_impl(m, "price", MD_KEY_CUDA, one);
    md_class(m, "Cart", methods, 2);
    for (int i = 0; i < 20; i++) md_impl(m, "price", MD_KEY_Meta, one);
}
