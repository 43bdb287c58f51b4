/* kernels.h - what kernels.c, library.c, load.c and fork.c use of each other. */
#ifndef MD_CONTRACT_KERNELS_H
#define MD_CONTRACT_KERNELS_H

#include "../../mdispatch_kernels.h"
#include "contract.h"

/* kernels.c, for fork.c */
void md__kernels_before_fork(void);
void md__kernels_after_fork(void);

/* kernels.c, for library.c */
int md__kernel_put(md_registry reg, const char *name, int32_t key, const char *label,
                   const md_kernel_spec *spec, bool alone);
int md__kernel_drop(md_registry reg, const char *name, int32_t key, const char *label,
                    const md_kernel_spec *spec, bool release);

/* library.c. The first failure of a library, in words. */
struct md__words {
    int status;
    char text[512];
};
int md__refuse(struct md__words *words, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void md__tell(const struct md__words *words, char *text, size_t cap);
bool md__is_word(const char *text, size_t size);
int md__full_name(struct md__words *words, const char *ns, const char *name, size_t size,
                  char full[MD_MAX_NAME + 1]);
int md__schema_name(struct md__words *words, const char *ns, const char *schema,
                    char full[MD_MAX_NAME + 1], const char **rest);
void md__make_label(char label[256], const char *program, const char *function, int number);
typedef int md__publish_class(md_library *m, const char *name, const char *text, const char *where);
int md__add_class(md_library *m, struct md__words *words, const char *ns, const char *name,
                  const md_method *methods, size_t n_methods, const char *where,
                  md__publish_class *publish);

#endif
