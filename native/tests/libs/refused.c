/* Its block refuses in the middle, between two definitions. */
#include "../../mdispatch_kernels.h"

MDISPATCH_FRAGMENT(shop, m) {
    md_def(m, "fine(Tensor x) -> Tensor");
    md_refuse(m, "no such device");
    md_def(m, "late(Tensor x) -> Tensor");
}
