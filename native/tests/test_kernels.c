/* The process's table of kernels, and a host's registrations with it. */
#include <malloc.h>

#include "test.h"
#include "../core/contract/kernels.h"

enum { SIZE = 1 << 20 };

static int one(md_call *call, const md_value *args, size_t n_args, md_value *results,
               size_t n_results) {
    return 0;
}

static int two(md_call *call, const md_value *args, size_t n_args, md_value *results,
               size_t n_results) {
    return 1;
}

static void count(void *user) {
    __atomic_add_fetch((int *)user, 1, __ATOMIC_RELAXED);
}

static md_registry make(void) {
    md_registry reg = 0;
    OK(md_create(NULL, SIZE, &reg));
    return reg;
}

static md_kernel_spec spec(md_kernel function, void *user) {
    return (md_kernel_spec){function, user, user ? count : NULL, 0, 0};
}

static md_held_kernel *held(md_registry reg, const char *label) {
    md_held_kernel *found = NULL;
    md_kernel_hold(reg, "shop::f", 1, label, &found);
    return found;
}

static md_kernel found(md_registry reg, const char *label) {
    md_held_kernel *kernel = held(reg, label);
    md_kernel function = kernel ? md_kernel_spec_of(kernel)->function : NULL;
    if (kernel) md_kernel_let_go(kernel);
    return function;
}

/* --- the table -------------------------------------------------------------------------------- */

TEST(a_kernel_is_found_by_registry_name_key_and_label) {
    md_registry reg = make(), other = make();
    md_kernel_spec s = spec(one, NULL);
    md_held_kernel *kernel;
    OK(md_kernel_put(reg, "shop::f", 1, "c:x:one", &s));
    CHECK(found(reg, "c:x:one") == one);
    CHECK(found(reg, "c:x:two") == NULL);
    CHECK(found(other, "c:x:one") == NULL);
    EQ(md_kernel_hold(reg, "shop::f", 2, "c:x:one", &kernel), MD_ENOENT);
    EQ(md_kernel_hold(reg, "shop::g", 1, "c:x:one", &kernel), MD_ENOENT);
    CHECK(kernel == NULL);
    OK(md_kernel_drop(reg, "shop::f", 1, "c:x:one", &s));
    EQ(md_kernel_drop(reg, "shop::f", 1, "c:x:one", &s), MD_ENOENT);
    CHECK(found(reg, "c:x:one") == NULL);
    OK(md_close(reg));
    OK(md_close(other));
}

/* Whether this is the definition that the label's function was noted for. */
static bool is_for(md_registry reg, const char *label, const char *wanted) {
    char *text = md_kernel_definition(reg, "shop::f", 1, label);
    bool same = text && wanted ? strcmp(text, wanted) == 0 : !text && !wanted;
    free(text);
    return same;
}

TEST(a_function_is_for_the_definition_that_was_noted_last_until_it_is_dropped) {
    md_registry reg = make();
    md_kernel_spec s = spec(one, NULL), t = spec(two, NULL);
    EQ(md_kernel_bind(reg, "shop::f", 1, "c:x:one", "f(int x)"), MD_ENOENT);
    OK(md_kernel_put(reg, "shop::f", 1, "c:x:one", &s));
    CHECK(is_for(reg, "c:x:one", NULL));
    OK(md_kernel_bind(reg, "shop::f", 1, "c:x:one", "f(int x)"));
    CHECK(is_for(reg, "c:x:one", "f(int x)"));
    OK(md_kernel_bind(reg, "shop::f", 1, "c:x:one", "f(int by)"));
    CHECK(is_for(reg, "c:x:one", "f(int by)"));
    CHECK(is_for(reg, "c:x:two", NULL));
    OK(md_kernel_put(reg, "shop::f", 1, "c:x:one", &t)); /* another build, which is in effect */
    CHECK(is_for(reg, "c:x:one", NULL));
    OK(md_kernel_drop(reg, "shop::f", 1, "c:x:one", &t));
    CHECK(is_for(reg, "c:x:one", "f(int by)"));
    EQ(md_kernel_bind(reg, NULL, 1, "l", "d"), MD_EINVAL);
    EQ(md_kernel_bind(reg, "n", 1, NULL, "d"), MD_EINVAL);
    EQ(md_kernel_bind(reg, "n", 1, "l", NULL), MD_EINVAL);
    CHECK(md_kernel_definition(reg, NULL, 1, "l") == NULL);
    CHECK(md_kernel_definition(reg, "n", 1, NULL) == NULL);
    OK(md_close(reg));
}

TEST(what_cannot_be_a_kernel_is_refused) {
    md_registry reg = make();
    md_kernel_spec s = spec(one, NULL), none = spec(NULL, NULL);
    md_held_kernel *kernel;
    EQ(md_kernel_put(reg, NULL, 1, "l", &s), MD_EINVAL);
    EQ(md_kernel_put(reg, "n", 1, NULL, &s), MD_EINVAL);
    EQ(md_kernel_put(reg, "n", 1, "l", NULL), MD_EINVAL);
    EQ(md_kernel_put(reg, "n", 1, "l", &none), MD_EINVAL);
    EQ(md_kernel_put(0, "n", 1, "l", &s), MD_ECLOSED);
    EQ(md_kernel_put(77777, "n", 1, "l", &s), MD_ECLOSED);
    EQ(md_kernel_drop(reg, NULL, 1, "l", &s), MD_EINVAL);
    EQ(md_kernel_drop(reg, "n", 1, NULL, &s), MD_EINVAL);
    EQ(md_kernel_drop(reg, "n", 1, "l", NULL), MD_EINVAL);
    EQ(md_kernel_hold(reg, NULL, 1, "l", &kernel), MD_EINVAL);
    EQ(md_kernel_hold(reg, "n", 1, NULL, &kernel), MD_EINVAL);
    OK(md_close(reg));
    EQ(md_kernel_put(reg, "n", 1, "l", &s), MD_ECLOSED);
}

TEST(what_is_put_twice_is_dropped_twice_and_released_once) {
    md_registry reg = make();
    int released = 0;
    md_kernel_spec s = spec(one, &released);
    OK(md_kernel_put(reg, "shop::f", 1, "c", &s));
    OK(md_kernel_put(reg, "shop::f", 1, "c", &s));
    OK(md_kernel_drop(reg, "shop::f", 1, "c", &s));
    CHECK(found(reg, "c") == one);
    EQ(released, 0);
    OK(md_kernel_drop(reg, "shop::f", 1, "c", &s));
    CHECK(found(reg, "c") == NULL);
    EQ(released, 1);
    OK(md_close(reg));
}

TEST(who_holds_a_kernel_has_it_after_it_was_dropped) {
    md_registry reg = make();
    int released = 0;
    md_kernel_spec s = spec(one, &released);
    OK(md_kernel_put(reg, "shop::f", 1, "c", &s));
    md_held_kernel *first = held(reg, "c"), *second = held(reg, "c");
    OK(md_kernel_drop(reg, "shop::f", 1, "c", &s));
    CHECK(found(reg, "c") == NULL);
    CHECK(md_kernel_spec_of(first)->function == one);
    md_kernel_let_go(first);
    EQ(released, 0);
    md_kernel_let_go(second);
    EQ(released, 1);
    OK(md_close(reg));
}

TEST(of_several_with_one_label_the_newest_is_in_effect_and_the_older_returns) {
    md_registry reg = make();
    md_kernel_spec a = spec(one, NULL), b = spec(two, NULL);
    OK(md_kernel_put(reg, "shop::f", 1, "c", &a));
    OK(md_kernel_put(reg, "shop::f", 1, "c", &b));
    CHECK(found(reg, "c") == two);
    EQ(md__kernel_put(reg, "shop::f", 1, "c", &(md_kernel_spec){one, &reg, NULL, 0, 0}, true),
       MD_EEXIST);
    OK(md_kernel_drop(reg, "shop::f", 1, "c", &b));
    CHECK(found(reg, "c") == one);
    OK(md_kernel_drop(reg, "shop::f", 1, "c", &a));
    OK(md_close(reg));
}

TEST(who_takes_back_an_older_one_passes_the_others_of_its_name_by) {
    md_registry reg = make();
    md_kernel_spec a = spec(one, NULL), b = spec(two, NULL), another = spec(one, &reg);
    OK(md_kernel_put(reg, "shop::f", 1, "c", &a));
    OK(md_kernel_put(reg, "shop::f", 1, "c", &b));
    OK(md_kernel_put(reg, "shop::f", 1, "d", &b));
    EQ(md_kernel_drop(reg, "shop::f", 1, "c", &another), MD_ENOENT);
    OK(md_kernel_drop(reg, "shop::f", 1, "c", &a));
    CHECK(found(reg, "c") == two && found(reg, "d") == two);
    OK(md_kernel_drop(reg, "shop::f", 1, "c", &b));
    OK(md_kernel_drop(reg, "shop::f", 1, "d", &b));
    OK(md_close(reg));
}

TEST(the_kernels_of_closed_registries_go_as_others_come) {
    int released = 0;
    md_kernel_spec s = spec(one, &released);
    char name[32];
    for (int round = 0; round < 40; round++) {
        md_registry reg = make();
        for (int i = 0; i < 10; i++) {
            snprintf(name, sizeof name, "shop::f%d", i);
            s.user = &released;
            OK(md_kernel_put(reg, name, round, "c", &s));
        }
        OK(md_close(reg));
    }
    CHECK(released >= 400 - 130); /* at most 2 * 64 stay */
}

/* --- many threads, and fork ------------------------------------------------------------------- */

struct hammer {
    md_registry reg;
    int released, puts, stop;
};

static void *hammer(void *arg) {
    struct hammer *h = arg;
    char label[16];
    for (int i = 0; i < rounds(5000); i++) {
        snprintf(label, sizeof label, "c:%d", i % 7);
        md_kernel_spec s = spec(i % 2 ? one : two, &h->released);
        OK(md_kernel_put(h->reg, "shop::f", 1, label, &s));
        md_held_kernel *kernel = held(h->reg, label);
        OK(md_kernel_drop(h->reg, "shop::f", 1, label, &s));
        if (!kernel) continue;
        md_kernel function = md_kernel_spec_of(kernel)->function;
        CHECK(function == one || function == two);
        md_kernel_let_go(kernel);
    }
    return NULL;
}

TEST(threads_put_hold_and_drop_at_once) {
    struct hammer h = {.reg = make()};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) OK(pthread_create(&threads[i], NULL, hammer, &h));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    char label[16];
    for (int i = 0; i < 7; i++) {
        snprintf(label, sizeof label, "c:%d", i);
        CHECK(found(h.reg, label) == NULL);
    }
    CHECK(h.released > 0);
    OK(md_close(h.reg));
}

static void find_in_child(void *arg) {
    const struct hammer *h = arg;
    md_kernel_spec s = spec(one, NULL);
    CHECK(found(h->reg, "kept") == one);
    OK(md_kernel_put(h->reg, "shop::f", 1, "child", &s));
    CHECK(found(h->reg, "child") == one);
}

static void *keep_busy(void *arg) {
    struct hammer *h = arg;
    md_kernel_spec s = spec(two, NULL);
    while (!__atomic_load_n(&h->stop, __ATOMIC_RELAXED)) {
        OK(md_kernel_put(h->reg, "shop::g", 1, "busy", &s));
        OK(md_kernel_drop(h->reg, "shop::g", 1, "busy", &s));
        __atomic_add_fetch(&h->puts, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

TEST(a_child_of_fork_has_the_table_and_its_lock) {
    struct hammer h = {.reg = make()};
    md_kernel_spec s = spec(one, NULL);
    pthread_t thread;
    OK(md_kernel_put(h.reg, "shop::f", 1, "kept", &s));
    if (FORKS_BESIDE_BUSY_THREADS) OK(pthread_create(&thread, NULL, keep_busy, &h));
    for (int i = 0; i < rounds(50); i++) {
        int before = __atomic_load_n(&h.puts, __ATOMIC_RELAXED);
        EQ(reap(child(find_in_child, &h)), 0);
        while (FORKS_BESIDE_BUSY_THREADS && __atomic_load_n(&h.puts, __ATOMIC_RELAXED) == before)
            sched_yield();
    }
    __atomic_store_n(&h.stop, 1, __ATOMIC_RELAXED);
    if (FORKS_BESIDE_BUSY_THREADS) pthread_join(thread, NULL);
    OK(md_kernel_drop(h.reg, "shop::f", 1, "kept", &s));
    OK(md_close(h.reg));
}

/* --- hosts ------------------------------------------------------------------------------------ */

static md_library *open_shop(md_registry reg, uint64_t member) {
    md_library *m = NULL;
    OK(md_library_open(reg, member, "shop", MD_DEF_LIBRARY, "host", "h.c:1", &m));
    return m;
}

static uint64_t facts(md_registry reg) {
    md_stats stats;
    OK(md_stat(reg, &stats));
    return stats.facts;
}

static int body_of(md_registry reg, uint32_t kind, int32_t key, const char *name, char *body) {
    static char buf[1 << 17];
    md_record r;
    int rc = md_find(reg, kind, key, name, strlen(name), buf, sizeof buf);
    if (rc) return rc;
    memcpy(&r, buf, sizeof r);
    memcpy(body, buf + sizeof r + r.name_len, r.body_len);
    body[r.body_len] = '\0';
    return 0;
}

TEST(a_host_registers_and_its_kernels_are_there_with_the_facts) {
    md_registry reg = make();
    uint64_t host = join(reg, MD_HOST, MD_MAIN);
    md_library *m = open_shop(reg, host);
    int released = 0, other = 0;
    char body[256];
    OK(md_def(m, "f(Tensor x) -> int"));
    OK(md_impl(m, "f", 1, one));
    OK(md_impl_with(m, "shop::f", 1, one, &released, count, 0));
    OK(md_impl_with(m, "f", 1, one, &other, count, 0));
    OK(md_library_status(m, body, sizeof body));
    CHECK(strcmp(body, "") == 0);
    OK(body_of(reg, MD_DEF, 0, "shop::f", body));
    CHECK(strcmp(body, "shop::f(Tensor x) -> int") == 0);
    OK(body_of(reg, MD_IMPL, 1, "shop::f", body));
    CHECK(strcmp(body, "c:host:one#3") == 0); /* another user, so another label */
    md_held_kernel *kernel = held(reg, "c:host:one#2");
    CHECK(md_kernel_spec_of(kernel)->user == &released);
    md_kernel_let_go(kernel);
    EQ(facts(reg), 5);
    OK(md_library_close(m));
    EQ(facts(reg), 0);
    CHECK(found(reg, "c:host:one") == NULL);
    EQ(released + other, 2);
    OK(md_leave(reg, host));
    OK(md_close(reg));
}

TEST(after_the_first_failure_a_library_does_nothing_and_its_close_leaves_nothing) {
    md_registry reg = make();
    uint64_t host = join(reg, MD_HOST, MD_MAIN);
    md_library *m = open_shop(reg, host), *again;
    char text[512];
    int released = 0;
    EQ(md_library_open(reg, host, "shop", MD_DEF_LIBRARY, "host", "h.c:2", &again), MD_EEXIST);
    OK(md_def(m, "f(Tensor x) -> int"));
    EQ(md_def(m, "f(Tensor x) -> float"), MD_EEXIST);
    EQ(md_def(m, "g(Tensor x) -> float"), MD_EEXIST);
    EQ(md_impl_with(m, "f", 1, one, &released, count, 0), MD_EEXIST);
    EQ(md_refuse(m, "too late"), MD_EEXIST);
    EQ(md_library_status(m, text, sizeof text), MD_EEXIST);
    CHECK(strstr(text, "shop::f is there already, from ") && strstr(text, "test_kernels.c:"));
    EQ(facts(reg), 2);
    OK(md_library_close(m));
    EQ(facts(reg), 0);
    EQ(released, 0); /* the table never took it over */
    OK(md_library_close(NULL));
    OK(md_leave(reg, host));
    OK(md_close(reg));
}

TEST(what_a_host_cannot_register_is_refused_in_words) {
    md_registry reg = make();
    uint64_t host = join(reg, MD_HOST, MD_MAIN), worker = join(reg, 7, MD_WORKER);
    md_library *m = NULL;
    char text[512], *longest = calloc(1, MD_MAX_BODY + 64);
    int released = 0;
    EQ(md_library_open(reg, host, "no space", MD_FRAGMENT, "host", "w", &m), MD_EINVAL);
    EQ(md_library_open(reg, host, "", MD_FRAGMENT, "host", "w", &m), MD_EINVAL);
    EQ(md_library_open(reg, host, NULL, MD_FRAGMENT, "host", "w", &m), MD_EINVAL);
    EQ(md_library_open(reg, host, "shop", MD_FRAGMENT, NULL, "w", &m), MD_EINVAL);
    EQ(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", NULL, &m), MD_EINVAL);
    EQ(md_library_open(reg, host, "shop", 9, "host", "w", &m), MD_EINVAL);
    EQ(md_library_open(reg, worker, "shop", MD_DEF_LIBRARY, "host", "w", &m), MD_EROLE);
    CHECK(m == NULL);
    const struct {
        const char *schema, *words;
        int status;
    } bad[] = {
        {"f", "'f' is no schema", MD_EINVAL},
        {NULL, "'' is no schema", MD_EINVAL},
        {"f(Tensor x)", "is no schema", MD_EINVAL},
        {"1f(Tensor x) -> int", "'1f' is no name", MD_EINVAL},
        {"f.(Tensor x) -> int", "'f.' is no name", MD_EINVAL},
        {"x::f(Tensor x) -> int", "'x::f' is no name", MD_EINVAL},
        {longest, "cannot be registered: too long", MD_ETOOLONG},
    };
    memset(longest, 'x', MD_MAX_BODY + 50);
    memcpy(longest, "f(", 2);
    memcpy(longest + MD_MAX_BODY + 40, ") -> int", 8);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
        EQ(md_def(m, bad[i].schema), bad[i].status);
        EQ(md_library_status(m, text, sizeof text), bad[i].status);
        if (!CHECK(strstr(text, bad[i].words))) fprintf(stderr, "%s\n", text);
        OK(md_library_close(m));
    }
    OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
    EQ(md_impl(m, "f", 1, NULL), MD_EINVAL);
    OK(md_library_close(m));
    OK(md_library_open(reg, worker, "shop", MD_FRAGMENT, "host", "w", &m));
    EQ(md_impl_with(m, "f", 1, one, &released, count, 0), MD_EROLE);
    EQ(released, 0);
    CHECK(found(reg, "c:host:one") == NULL); /* it was taken back */
    OK(md_library_close(m));
    OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
    OK(md_leave(reg, host));
    OK(md_close(reg));
    EQ(md_impl(m, "f", 1, one), MD_ECLOSED);
    OK(md_library_close(m));
    free(longest);
}

TEST(names_are_judged_letter_by_letter) {
    char full[MD_MAX_NAME + 1], label[256], longest[600];
    const char *fine[] = {"f", "_", "Az_09", "f.x", "shop::f", "shop::f.out_1", "shopf", "shop", "shopkeeper"};
    const char *bad[] = {
        "",   ".",  "f.", ".f", "f.1",    "1f",     "f g",     "f-g",     "f@",    "f[",
        "f`", "f{", "f/", "f:", "shop:f", "shop::", "shop::1", "shoo::f", "f.x.y", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        struct md__words words = {0};
        OK(md__full_name(&words, "shop", fine[i], strlen(fine[i]), full));
        CHECK(strncmp(full, "shop::", 6) == 0 && !strstr(full + 6, "::"));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct md__words words = {0};
        EQ(md__full_name(&words, "shop", bad[i], strlen(bad[i]), full), MD_EINVAL);
        CHECK(strstr(words.text, "is no name of an operator in namespace shop"));
    }
    memset(longest, 'x', sizeof longest);
    struct md__words words = {0};
    CHECK(md__is_word(longest, 255) && !md__is_word(longest, 256));
    EQ(md__full_name(&words, "shop", longest, 500, full), MD_EINVAL);
    longest[599] = '\0';
    md__make_label(label, longest, longest, 1); /* both are cut off */
    CHECK(strncmp(label, "c:xxx", 5) == 0 && strlen(label) < 256);
    md__make_label(label, "p.so", "&ns::f [1]", 12);
    CHECK(strcmp(label, "c:p.so:nsf1#12") == 0);
    md__tell(&words, NULL, 5);
    md__tell(&words, label, 0);
    CHECK(strcmp(label, "c:p.so:nsf1#12") == 0);
}

TEST(a_library_can_be_refused_by_its_own_block) {
    md_registry reg = make();
    md_library *m = open_shop(reg, join(reg, MD_HOST, MD_MAIN));
    char text[64];
    md_kernel_spec s = spec(one, NULL);
    EQ(md_refuse(m, "not today"), MD_EINVAL);
    EQ(md_library_status(m, text, sizeof text), MD_EINVAL);
    CHECK(strcmp(text, "not today") == 0);
    OK(md_library_close(m));
    for (int i = 0; i < 4; i++) {
        OK(md_library_open(reg, join(reg, MD_HOST, MD_WORKER), "shop", MD_FRAGMENT, "p", "w", &m));
        if (i == 0) EQ(md_refuse(m, NULL), MD_EINVAL);
        if (i == 1) EQ(m->impl(m, NULL, 1, &s, "f", "w"), MD_EINVAL);
        if (i == 2) EQ(m->impl(m, "f", 1, NULL, "f", "w"), MD_EINVAL);
        if (i == 3) EQ(m->impl(m, "f", 1, &s, NULL, "w"), MD_EINVAL);
        OK(md_library_close(m));
    }
    OK(md_close(reg));
}

/* --- classes ---------------------------------------------------------------------------------- */

/* Libraries that were compiled before call what they know at its old place. */
_Static_assert(offsetof(md_library, minor) == 4 && offsetof(md_library, def) == 8 &&
                   offsetof(md_library, impl) == 8 + sizeof(void *) &&
                   offsetof(md_library, fail) == 8 + 2 * sizeof(void *) &&
                   offsetof(md_library, add_class) == 8 + 3 * sizeof(void *),
               "members are added at the end");

static const md_method methods[] = {
    MD_METHOD("find_all(str text) -> int[]", one),
    MD_METHOD("size() -> int", one),
    MD_METHOD("find( *, str text) -> int", one),
};

TEST(a_class_of_a_host_is_a_fact_and_its_methods_are_operators) {
    md_registry reg = make();
    md_library *m = open_shop(reg, join(reg, MD_HOST, MD_MAIN)), *again;
    char body[512];
    OK(md_class(m, "Index", methods, 3));
    OK(md_class(m, "Nothing", NULL, 0));
    OK(body_of(reg, MD_CLASS, 0, "shop::Index", body));
    CHECK(strcmp(body, "shop::Index.find(shop.Index self, *, str text) -> int\n"
                       "shop::Index.find_all(shop.Index self, str text) -> int[]\n"
                       "shop::Index.size(shop.Index self) -> int\n"
                       "it is made in C") == 0);
    OK(body_of(reg, MD_CLASS, 0, "shop::Nothing", body));
    CHECK(strcmp(body, "it is made in C") == 0);
    OK(body_of(reg, MD_DEF, 0, "shop::Index.size", body));
    CHECK(strcmp(body, "shop::Index.size(shop.Index self) -> int") == 0);
    OK(body_of(reg, MD_IMPL, MD_KEY_CompositeExplicitAutograd, "shop::Index.find", body));
    CHECK(strcmp(body, "c:host:one") == 0);
    EQ(facts(reg), 9);
    OK(md_library_open(reg, join(reg, MD_HOST, MD_WORKER), "shop", MD_FRAGMENT, "p", "w", &again));
    EQ(md_class(again, "Index", methods, 3), MD_EROLE);
    OK(md_library_close(again));
    OK(md_library_close(m));
    EQ(facts(reg), 0);
    CHECK(found(reg, "c:host:one") == NULL);
    OK(md_close(reg));
}

TEST(what_is_no_class_is_refused_in_words_before_anything_changed) {
    md_registry reg = make();
    uint64_t host = join(reg, MD_HOST, MD_MAIN);
    const md_method none = {"f() -> int", {NULL, NULL, NULL, 0, 0}, "f"},
                    unnamed = {"f() -> int", {one, NULL, NULL, 0, 0}, NULL},
                    close_it = MD_METHOD("close() -> int", one),
                    hidden = MD_METHOD("_f() -> int", one),
                    twice[] = {MD_METHOD("f() -> int", one), MD_METHOD("g() -> int", one),
                               MD_METHOD("f(int n) -> int", one)};
    md_method schema = MD_METHOD(NULL, one), longest = MD_METHOD(NULL, one);
    const char *wrong[] = {NULL,         "",           "f",            "f()",          "(int n) -> int",
                           "1() -> int", "f.g() -> int", "a::f() -> int", "f(int n,\nint m) -> int"};
    char *text = calloc(1, MD_MAX_BODY + 64), words[512];
    memset(text, 'x', MD_MAX_BODY + 50);
    memcpy(text, "f(", 2);
    memcpy(text + MD_MAX_BODY + 40, ") -> int", 9);
    longest.schema = text;
    const struct {
        const char *name, *words;
        const md_method *methods;
        size_t size;
        int status;
    } bad[] = {
        {NULL, "'' is no name of a class in namespace shop", NULL, 0, MD_EINVAL},
        {"2", "'2' is no name of a class in namespace shop", NULL, 0, MD_EINVAL},
        {"shop.C", "'shop.C' is no name of a class", NULL, 0, MD_EINVAL},
        {"C", "class shop.C has no array of methods", NULL, 1, MD_EINVAL},
        {"C", "the method f of class shop.C needs a function", &none, 1, MD_EINVAL},
        {"C", "the method f of class shop.C needs a function", &unnamed, 1, MD_EINVAL},
        {"C", "class shop.C cannot have the method close: ", &close_it, 1, MD_EINVAL},
        {"C", "class shop.C cannot have the method _f: ", &hidden, 1, MD_EINVAL},
        {"C", "class shop.C has the method shop::C.f twice", twice, 3, MD_EINVAL},
        {"C", "shop::C cannot be registered: too long", &longest, 1, MD_ETOOLONG},
    };
    md_library *m;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
        EQ(md_class(m, bad[i].name, bad[i].methods, bad[i].size), bad[i].status);
        EQ(md_library_status(m, words, sizeof words), bad[i].status);
        if (!CHECK(strstr(words, bad[i].words))) fprintf(stderr, "%s\n", words);
        EQ(facts(reg), 0);
        EQ(md_class(m, "C", NULL, 0), bad[i].status); /* nothing after the first failure */
        OK(md_library_close(m));
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        schema.schema = wrong[i];
        OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
        EQ(md_class(m, "C", &schema, 1), MD_EINVAL);
        md_library_status(m, words, sizeof words);
        if (!CHECK(strstr(words, "is no method of class shop.C"))) fprintf(stderr, "%s\n", words);
        EQ(facts(reg), 0);
        OK(md_library_close(m));
    }
    OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
    OK(md_def(m, "C.f(int n) -> int"));
    EQ(md_class(m, "C", twice, 2), MD_EEXIST); /* the name of a method is taken */
    OK(md_library_close(m));
    EQ(facts(reg), 0);
    OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
    OK(md_class(m, "C", twice, 2));
    EQ(md_class(m, "C", twice, 0), MD_EEXIST);
    OK(md_library_close(m));
    OK(md_library_open(reg, host, "shop", MD_FRAGMENT, "host", "w", &m));
    m->minor = 1; /* an older libmdispatch */
    EQ(md_class(m, "C", twice, 2), MD_EINVAL);
    md_library_status(m, words, sizeof words);
    CHECK(strcmp(words, "this mdispatch has no md_class()") == 0);
    OK(md_library_close(m));
    EQ(facts(reg), 0);
    free(text);
    OK(md_close(reg));
}

TEST(places_that_are_too_long_keep_their_end) {
    md_registry reg = make();
    uint64_t host = join(reg, MD_HOST, MD_MAIN);
    md_library *m = open_shop(reg, host);
    char where[MD_MAX_WHERE + 100], buf[8192];
    md_record r;
    memset(where, 'd', sizeof where);
    strcpy(where + sizeof where - 6, "/c:42");
    OK(m->def(m, "f(Tensor x) -> int", where));
    OK(md_find(reg, MD_DEF, 0, "shop::f", 7, buf, sizeof buf));
    memcpy(&r, buf, sizeof r);
    EQ(r.where_len, MD_MAX_WHERE);
    CHECK(memcmp(buf + sizeof r + r.name_len + r.body_len + MD_MAX_WHERE - 5, "/c:42", 5) == 0);
    OK(md_library_close(m));
    OK(md_close(reg));
}

TEST(host_and_main_interpreter_both_register_in_either_order) {
    for (int host_first = 0; host_first < 2; host_first++) {
        md_registry reg = make();
        uint64_t one_of = join(reg, host_first ? MD_HOST : 0, MD_MAIN);
        CHECK(md_has_host());
        uint64_t other = join(reg, host_first ? 0 : MD_HOST, MD_MAIN);
        join(reg, 0, MD_WORKER); /* a second one of each is none */
        join(reg, MD_HOST, MD_WORKER);
        join(reg, 3, MD_WORKER);
        char buf[512];
        OK(md_register(reg, one_of, MD_NAME, MD_STACK, 0, "a", 1, "", 0, "w", 1, buf, sizeof buf));
        OK(md_register(reg, other, MD_NAME, MD_STACK, 0, "b", 1, "", 0, "w", 1, buf, sizeof buf));
        OK(md_register(reg, one_of, MD_NAME, MD_STACK, 0, "c", 1, "", 0, "w", 1, buf, sizeof buf));
        /* The registrations of the first to leave go with it, and the registry goes on. */
        OK(md_leave(reg, one_of));
        EQ(facts(reg), 1);
        OK(md_find(reg, MD_NAME, 0, "b", 1, buf, sizeof buf));
        OK(md_check(reg, buf, sizeof buf));
        one_of = join(reg, host_first ? MD_HOST : 0, MD_MAIN); /* Python is started again */
        OK(md_leave(reg, other));
        EQ(facts(reg), 0);
        md_stats stats;
        OK(md_stat(reg, &stats));
        EQ(stats.main_state, 1);
        OK(md_leave(reg, one_of)); /* the last to leave closes it */
        OK(md_stat(reg, &stats));
        EQ(stats.main_state, 2);
        OK(md_close(reg));
    }
}

TEST(a_library_that_outlives_the_registry_closes_and_says_so) {
    md_registry reg = make();
    uint64_t host = join(reg, MD_HOST, MD_MAIN);
    md_library *m = open_shop(reg, host);
    int released = 0;
    OK(md_def(m, "f(Tensor x) -> int"));
    OK(md_impl_with(m, "f", 1, one, &released, count, 0));
    OK(md_leave(reg, host));
    EQ(md_library_close(m), MD_ECLOSED);
    EQ(released, 1);
    OK(md_close(reg));
}

TEST(a_library_closes_although_what_it_registered_is_gone_already) {
    md_registry reg = make();
    uint64_t host = join(reg, MD_HOST, MD_MAIN);
    md_library *m = open_shop(reg, host);
    char buf[512];
    md_record r;
    OK(md_def(m, "f(Tensor x) -> int"));
    OK(md_find(reg, MD_DEF, 0, "shop::f", 7, buf, sizeof buf));
    memcpy(&r, buf, sizeof r);
    OK(md_strike(reg, host, r.ref, r.seq));
    OK(md_library_close(m));
    EQ(facts(reg), 0);
    OK(md_close(reg));
}

TEST(a_library_that_is_closed_gives_its_memory_back) {
    struct main_member m = open_main(NULL, SIZE);
    md_library *library = NULL;
    size_t before = 0;
    for (int i = 0; i < 200; i++) {
        if (i == 100) before = mallinfo2().uordblks;
        OK(md_library_open(m.reg, m.member, "shop", MD_DEF_LIBRARY, "host", "here", &library));
        OK(md_def(library, "f() -> int"));
        OK(md_impl(library, "f", 1, one));
        OK(md_library_close(library));
    }
    CHECK(mallinfo2().uordblks < before + 100 * 64);
    OK(md_close(m.reg));
}

TEST(a_registry_that_was_closed_takes_no_kernel_while_a_last_call_is_under_way) {
    md_registry handle = make();
    md__reg *reg;
    md_kernel_spec s = spec(one, NULL);
    OK(md__enter(handle, &reg));
    OK(md_close(handle));
    EQ(md_kernel_put(handle, "shop::f", 1, "late", &s), MD_ECLOSED);
    md__exit(reg);
    EQ(md_kernel_put(handle, "shop::f", 1, "later", &s), MD_ECLOSED);
}

TEST(a_process_without_a_host_has_none) {
    md_registry reg = make();
    join(reg, 0, MD_MAIN);
    CHECK(!md_has_host());
    OK(md_close(reg));
}

int main(void) {
    RUN(a_process_without_a_host_has_none); /* the others have one */
    /* Before anything was dropped from the table. */
    RUN(the_kernels_of_closed_registries_go_as_others_come);
    RUN(a_kernel_is_found_by_registry_name_key_and_label);
    RUN(a_function_is_for_the_definition_that_was_noted_last_until_it_is_dropped);
    RUN(what_cannot_be_a_kernel_is_refused);
    RUN(what_is_put_twice_is_dropped_twice_and_released_once);
    RUN(who_holds_a_kernel_has_it_after_it_was_dropped);
    RUN(of_several_with_one_label_the_newest_is_in_effect_and_the_older_returns);
    RUN(who_takes_back_an_older_one_passes_the_others_of_its_name_by);
    RUN(threads_put_hold_and_drop_at_once);
    RUN(a_child_of_fork_has_the_table_and_its_lock);
    RUN(a_host_registers_and_its_kernels_are_there_with_the_facts);
    RUN(after_the_first_failure_a_library_does_nothing_and_its_close_leaves_nothing);
    RUN(what_a_host_cannot_register_is_refused_in_words);
    RUN(names_are_judged_letter_by_letter);
    RUN(a_library_can_be_refused_by_its_own_block);
    RUN(a_class_of_a_host_is_a_fact_and_its_methods_are_operators);
    RUN(what_is_no_class_is_refused_in_words_before_anything_changed);
    RUN(places_that_are_too_long_keep_their_end);
    RUN(host_and_main_interpreter_both_register_in_either_order);
    RUN(a_library_that_outlives_the_registry_closes_and_says_so);
    RUN(a_library_closes_although_what_it_registered_is_gone_already);
    RUN(a_library_that_is_closed_gives_its_memory_back);
    RUN(a_registry_that_was_closed_takes_no_kernel_while_a_last_call_is_under_way);
    return test_done();
}
