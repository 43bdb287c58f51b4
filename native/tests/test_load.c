/* Shared objects with a block: loaded once, run once, refused with a reason. */
#include "test.h"
#include "../core/contract/kernels.h"

#include <dlfcn.h>
#include <limits.h>

static char folder[PATH_MAX], text[1024];

static const char *lib(const char *name) {
    static _Thread_local char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/libs/%s.so", folder, name);
    return path;
}

static int load(const char *path, const md_loaded **out) {
    memset(text, 0, sizeof text);
    return md_load(path, out, text, sizeof text);
}

/* A library of which nothing stays. */
static void refused(const char *name, int status, const char *words) {
    const md_loaded *loaded;
    for (int i = 0; i < 2; i++) {
        EQ(load(lib(name), &loaded), status);
        CHECK(loaded == NULL);
        if (!CHECK(strstr(text, words))) fprintf(stderr, "%s\n", text);
    }
    void *handle = dlopen(lib(name), RTLD_NOW | RTLD_NOLOAD);
    CHECK(handle == NULL); /* it is not even in memory */
}

static int runs(void) {
    void *handle = dlopen(lib("good"), RTLD_NOW);
    const int *count = dlsym(handle, "runs");
    int n = *count;
    dlclose(handle);
    return n;
}

TEST(what_is_no_library_is_refused_with_the_reason) {
    const md_loaded *loaded;
    EQ(load("/nowhere/libx.so", &loaded), MD_ENOENT);
    CHECK(strstr(text, "/nowhere/libx.so"));
    EQ(load("/proc/self/status", &loaded), MD_ENOENT);
    CHECK(strstr(text, "/proc/self/status"));
    EQ(load("", &loaded), MD_EINVAL);
    EQ(load(NULL, &loaded), MD_EINVAL);
    EQ(md_load(NULL, &loaded, NULL, 0), MD_EINVAL);
}

/* The handle of a library has a map, except in this test. */
static int has_no_map;
int dlinfo(void *handle, int request, void *out) {
    static __typeof__(&dlinfo) real;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "dlinfo");
    return has_no_map ? -1 : real(handle, request, out);
}

TEST(a_library_without_a_block_is_refused_also_when_one_that_it_needs_has_one) {
    const md_loaded *loaded;
    EQ(load("libc.so.6", &loaded), MD_EFORMAT);
    CHECK(strstr(text, "libc.so.6 has no MDISPATCH_LIBRARY block"));
    refused("needs_good", MD_EFORMAT, "needs_good.so has no MDISPATCH_LIBRARY block");
    refused("absolute", MD_EFORMAT, "absolute.so has no MDISPATCH_LIBRARY block");
    has_no_map = 1;
    refused("filled", MD_EFORMAT, "filled.so has no MDISPATCH_LIBRARY block");
    has_no_map = 0;
}

/* --- blocks that fail ------------------------------------------------------------------------- */

static void is_refused(md_library_block block, int status, const char *words) {
    void *handle = dlopen(lib("filled"), RTLD_NOW);
    *(md_library_block *)dlsym(handle, "mdispatch_library") = block;
    const md_loaded *loaded;
    EQ(load(lib("filled"), &loaded), status);
    CHECK(loaded == NULL);
    if (!CHECK(strstr(text, words))) fprintf(stderr, "%s\n", text);
    dlclose(handle);
    CHECK(dlopen(lib("filled"), RTLD_NOW | RTLD_NOLOAD) == NULL); /* nothing of it stays */
}

static void not_run(md_library *m) {
    CHECK(!"nobody may run this");
}

TEST(a_block_of_another_abi_or_that_says_nothing_is_refused_and_not_run) {
    const md_library_block fine = {MD_KERNEL_ABI, MD_DEF_LIBRARY, "shop", "x:1", not_run};
    md_library_block block = fine;
    block.abi++;
    is_refused(block, MD_EVERSION, "version 2 of kernels, this mdispatch has version 1");
    for (int i = 0; i < 6; i++) {
        block = fine;
        if (i == 0) block.ns = NULL;
        if (i == 1) block.ns = "no space";
        if (i == 2) block.where = NULL;
        if (i == 3) block.run = NULL;
        if (i == 4) block.kind = 0;
        if (i == 5) block.kind = MD_FRAGMENT + 1;
        is_refused(block, MD_EFORMAT, "filled.so has a block that says nothing");
    }
}

static int kernel(md_call *call, const md_value *args, size_t n_args, md_value *results,
                  size_t n_results) {
    return 0;
}
static const md_kernel_spec spec = {.function = kernel};

static void bad_schema(md_library *m) {
    EQ(md_def(m, "no schema"), MD_EINVAL);
    EQ(md_refuse(m, "only the first failure is told"), MD_EINVAL);
}
static void bad_name(md_library *m) {
    EQ(md_impl(m, "other::name", MD_KEY_CPU, kernel), MD_EINVAL);
}
static void no_name(md_library *m) {
    EQ(md_impl(m, NULL, MD_KEY_CPU, kernel), MD_EINVAL);
}
static void no_spec(md_library *m) {
    EQ(m->impl(m, "f", MD_KEY_CPU, NULL, "f", "x:1"), MD_EINVAL);
}
static void no_function(md_library *m) {
    EQ(md_impl(m, "f", MD_KEY_CPU, NULL), MD_EINVAL);
}
static void no_label(md_library *m) {
    EQ(m->impl(m, "f", MD_KEY_CPU, &spec, NULL, "x:1"), MD_EINVAL);
}
static void no_reason(md_library *m) {
    EQ(md_refuse(m, NULL), MD_EINVAL);
}
static void no_class(md_library *m) {
    EQ(md_class(m, "a class", NULL, 0), MD_EINVAL);
}
static void loads_another(md_library *m) {
    const md_loaded *loaded;
    char words[256];
    EQ(md_load("/anything.so", &loaded, words, sizeof words), MD_EINVAL);
    EQ(md_refuse(m, words), MD_EINVAL);
}

TEST(a_block_that_fails_is_refused_with_its_first_failure) {
    const char *incomplete = "a kernel needs a name and a function";
    const struct {
        void (*run)(md_library *m);
        const char *words;
    } bad[] = {
        {bad_schema, "'no schema' is no schema"},
        {bad_name, "'other::name' is no name of an operator in namespace shop"},
        {no_name, incomplete},
        {no_spec, incomplete},
        {no_function, incomplete},
        {no_label, incomplete},
        {no_reason, ""},
        {no_class, "'a class' is no name of a class in namespace shop"},
        {loads_another, "the block of a library cannot load another one"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        md_library_block block = {MD_KERNEL_ABI, MD_DEF_LIBRARY, "shop", "x:1", bad[i].run};
        is_refused(block, MD_EINVAL, bad[i].words);
    }
}

TEST(a_block_that_fails_half_way_leaves_nothing) {
    refused("refused", MD_EINVAL, "no such device");
}

TEST(a_block_says_what_it_brings) {
    const md_loaded *loaded;
    OK(load(lib("good"), &loaded));
    EQ(loaded->kind, MD_DEF_LIBRARY);
    CHECK(strcmp(loaded->ns, "shop") == 0);
    CHECK(strstr(loaded->where, "good.c:"));
    if (!EQ(loaded->size, 31)) return;
    const md_loaded_item *item = loaded->items;
    EQ(item[0].kind, MD_DEF);
    CHECK(strcmp(item[0].text, "price(Tensor x) -> int") == 0);
    EQ(item[1].kind, MD_IMPL);
    EQ(item[1].key, MD_KEY_CPU);
    CHECK(strcmp(item[1].text, "shop::price") == 0);
    CHECK(strcmp(item[1].label, "c:good.so:one") == 0);
    CHECK(strcmp(item[2].label, "c:good.so:two") == 0);
    EQ(item[2].spec.flags, MD_RELEASE_GIL);
    CHECK(strcmp(item[3].label, "c:good.so:two#2") == 0); /* with another user */
    CHECK(strcmp(item[4].text, "shop::cost") == 0);
    CHECK(strcmp(item[4].label, "c:good.so:two") == 0); /* for another name */
    CHECK(strcmp(item[5].label, "c:good.so:one") == 0); /* another function, in the place of `two` */
    CHECK(strcmp(item[30].label, "c:good.so:one") == 0); /* the same function is the same */
    EQ(item[6].kind, MD_CLASS);
    CHECK(strcmp(item[6].text, "shop::Cart") == 0);
    CHECK(strcmp(item[6].label, "shop::Cart.cost(shop.Cart self) -> int\n"
                                "shop::Cart.price(shop.Cart self, int n) -> int\n"
                                "it is made in C") == 0);
    CHECK(strcmp(item[7].text, "shop::Cart.cost(shop.Cart self) -> int") == 0);
    CHECK(strcmp(item[8].text, "shop::Cart.cost") == 0);
    CHECK(strcmp(item[8].label, "c:good.so:two") == 0);
    EQ(item[8].spec.flags, MD_RELEASE_GIL);
    md_value result = md_of_none();
    md_call call = {.user = item[3].spec.user};
    OK(item[3].spec.function(&call, NULL, 0, &result, 1));
    EQ(result.as.integer, 20);
}

TEST(a_library_is_asked_once_whatever_it_is_called) {
    const md_loaded *one, *two;
    char link[] = "/tmp/mdispatch-test-load-XXXXXX";
    OK(load(lib("good"), &one));
    OK(load(lib("good"), &two));
    CHECK(one == two);
    int fd = mkstemp(link);
    unlink(link);
    OK(symlink(lib("good"), link));
    OK(load(link, &two));
    CHECK(one == two);
    unlink(link);
    close(fd);
    EQ(runs(), 1);
}

static void *load_good(void *out) {
    const md_loaded *loaded;
    char words[64];
    OK(md_load(lib("good"), &loaded, words, sizeof words));
    *(const md_loaded **)out = loaded;
    return NULL;
}

static void load_at_once(void *unused) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    const md_loaded *found[THREADS];
    for (int i = 0; i < THREADS; i++) OK(pthread_create(&threads[i], NULL, load_good, &found[i]));
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(found[i] == found[0]);
    }
    EQ(runs(), 1);
}

TEST(threads_that_load_it_at_once_run_its_block_once) {
    EQ(reap(child(load_at_once, NULL)), 0);
}

static void load_again(void *expected) {
    const md_loaded *loaded;
    OK(load(lib("good"), &loaded));
    CHECK(loaded == expected);
    EQ(runs(), 1);
    EQ(load(lib("refused"), &loaded), MD_EINVAL);
}

TEST(a_child_of_fork_has_what_its_parent_loaded) {
    const md_loaded *loaded;
    OK(load(lib("good"), &loaded));
    EQ(reap(child(load_again, (void *)loaded)), 0);
}

int main(void) {
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n < 0) return 1;
    *strrchr(folder, '/') = '\0';
    RUN(threads_that_load_it_at_once_run_its_block_once); /* before it was ever loaded */
    RUN(what_is_no_library_is_refused_with_the_reason);
    RUN(a_library_without_a_block_is_refused_also_when_one_that_it_needs_has_one);
    RUN(a_block_of_another_abi_or_that_says_nothing_is_refused_and_not_run);
    RUN(a_block_that_fails_is_refused_with_its_first_failure);
    RUN(a_block_that_fails_half_way_leaves_nothing);
    RUN(a_block_says_what_it_brings);
    RUN(a_library_is_asked_once_whatever_it_is_called);
    RUN(a_child_of_fork_has_what_its_parent_loaded);
    return test_done();
}
