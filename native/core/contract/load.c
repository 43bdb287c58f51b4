/* load.c - loads shared objects with a block, and runs each block once per process.
 *
 * A block runs with a library that only notes what the block registers. So a block that fails half
 * way has changed nothing, and another interpreter or another registry finds the notes without
 * running other people's code a second time. The caller decides what becomes of the notes: it
 * registers or verifies them (mdispatch/registry/load_library.py).
 *
 * Locking: `md__loading` is held while a shared object is loaded and its block runs, so that this
 * happens once. It is other people's code and may take its time. A block that loads a library
 * itself would wait for itself; it is refused instead. The lock is not held across fork(): a child
 * gets a new one. It finds the list whole, because one store adds an entry. Entries never change
 * and are never removed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

struct loaded {
    md_loaded pub;
    void *handle;
    struct loaded *next;
};

struct block {
    md_library pub; /* first: what the block sees */
    struct md__words words;
    const md_library_block *info;
    const char *file;
    md_loaded_item *items;
    size_t size, room;
};

static struct loaded *all; /* under `md__loading` */

/* --- the library that a block gets ------------------------------------------------------------ */

static void free_items(struct block *b) {
    for (size_t i = 0; i < b->size; i++) free((char *)b->items[i].text);
    free(b->items);
}

/* The texts of an item stand one after the other in one allocation, which `text` begins. */
static int note(struct block *b, uint32_t kind, int32_t key, const char *text, const char *label,
                const char *where, const md_kernel_spec *spec) {
    size_t text_size = strlen(text) + 1, label_size = strlen(label) + 1,
           where_size = strlen(where) + 1;
    if (b->size == b->room) {
        size_t room = b->room ? b->room * 2 : 16;
        md_loaded_item *more = malloc(room * sizeof *more);
        if (!more) return md__refuse(&b->words, MD_ESYS - ENOMEM, "no memory");
        if (b->size) memcpy(more, b->items, b->size * sizeof *more);
        free(b->items);
        b->items = more;
        b->room = room;
    }
    char *copy = malloc(text_size + label_size + where_size);
    if (!copy) return md__refuse(&b->words, MD_ESYS - ENOMEM, "no memory");
    memcpy(copy, text, text_size);
    memcpy(copy + text_size, label, label_size);
    memcpy(copy + text_size + label_size, where, where_size);
    md_loaded_item *item = &b->items[b->size++];
    memset(item, 0, sizeof *item);
    item->kind = kind;
    item->key = key;
    item->text = copy;
    item->label = copy + text_size;
    item->where = copy + text_size + label_size;
    if (spec) item->spec = *spec;
    return 0;
}

static int block_def(md_library *pub, const char *schema, const char *where) {
    struct block *b = (struct block *)pub;
    char full[MD_MAX_NAME + 1];
    const char *rest;
    if (b->words.status || md__schema_name(&b->words, b->info->ns, schema, full, &rest))
        return b->words.status;
    return note(b, MD_DEF, 0, schema, "", where, NULL);
}

/* Whether another function of the block already has this label, for the same name and key. */
static bool is_taken(const struct block *b, const char *name, int32_t key, const char *label,
                     const md_kernel_spec *spec) {
    for (size_t i = 0; i < b->size; i++) {
        const md_loaded_item *item = &b->items[i];
        if (item->kind != MD_IMPL || item->key != key || strcmp(item->text, name)) continue;
        bool same = item->spec.function == spec->function && item->spec.user == spec->user;
        if (!same && strcmp(item->label, label) == 0) return true;
    }
    return false;
}

static int block_impl(md_library *pub, const char *name, int32_t key, const md_kernel_spec *spec,
                      const char *function, const char *where) {
    struct block *b = (struct block *)pub;
    char full[MD_MAX_NAME + 1], label[256];
    int number = 1;
    if (b->words.status) return b->words.status;
    if (!name || !spec || !spec->function || !function)
        return md__refuse(&b->words, MD_EINVAL, "a kernel needs a name and a function");
    if (md__full_name(&b->words, b->info->ns, name, strlen(name), full)) return b->words.status;
    do md__make_label(label, b->file, function, number++);
    while (is_taken(b, full, key, label, spec));
    return note(b, MD_IMPL, key, full, label, where, spec);
}

static int note_class(md_library *pub, const char *name, const char *text, const char *where) {
    return note((struct block *)pub, MD_CLASS, 0, name, text, where, NULL);
}

static int block_add_class(md_library *pub, const char *name, const md_method *methods,
                           size_t n_methods, const char *where) {
    struct block *b = (struct block *)pub;
    return md__add_class(pub, &b->words, b->info->ns, name, methods, n_methods, where, note_class);
}

static int block_fail(md_library *pub, const char *text) {
    return md__refuse(&((struct block *)pub)->words, MD_EINVAL, "%.500s", text ? text : "");
}

/* --- loading ---------------------------------------------------------------------------------- */

/* The block of this very object, and not of another object on which it depends. */
static const md_library_block *find_block(void *handle) {
    const md_library_block *info = dlsym(handle, "mdispatch_library");
    struct link_map *map = NULL;
    Dl_info found;
    if (!info || dlinfo(handle, RTLD_DI_LINKMAP, &map) || !dladdr(info, &found)) return NULL;
    return found.dli_fbase == (void *)map->l_addr ? info : NULL;
}

static int run(struct block *b, struct loaded **out) {
    const md_library_block *info = b->info;
    if (!info)
        return md__refuse(&b->words, MD_EFORMAT, "%s has no MDISPATCH_LIBRARY block", b->file);
    if (info->abi != MD_KERNEL_ABI)
        return md__refuse(
            &b->words, MD_EVERSION,
            "%s was compiled for version %u of kernels, this mdispatch has version %d", b->file,
            info->abi, MD_KERNEL_ABI);
    if (!info->ns || !info->where || !info->run || !md__is_word(info->ns, strlen(info->ns)) ||
        (info->kind != MD_DEF_LIBRARY && info->kind != MD_FRAGMENT))
        return md__refuse(&b->words, MD_EFORMAT, "%s has a block that says nothing", b->file);
    info->run(&b->pub);
    if (b->words.status) return b->words.status;
    *out = calloc(1, sizeof **out);
    return *out ? 0 : md__refuse(&b->words, MD_ESYS - ENOMEM, "no memory");
}

static struct loaded *find(void *handle) {
    struct loaded *each = all;
    while (each && each->handle != handle) each = each->next;
    return each;
}

/* Under the lock. */
static int load(struct block *b, const char *path, const md_loaded **out) {
    struct loaded *made = NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return md__refuse(&b->words, MD_ENOENT, "%s", dlerror());
    struct loaded *known = find(handle);
    if (known) {
        dlclose(handle); /* dlopen counted it once more */
        *out = &known->pub;
        return 0;
    }
    b->info = find_block(handle);
    int rc = run(b, &made);
    if (rc) {
        free_items(b);
        dlclose(handle);
        return rc;
    }
    made->pub = (md_loaded){b->info->kind, 0, b->info->ns, b->info->where, b->items, b->size};
    made->handle = handle;
    made->next = all;
    all = made;
    *out = &made->pub;
    return 0;
}

int md_load(const char *path, const md_loaded **out, char *text, size_t cap) {
    struct block b = {.pub = {MD_KERNEL_ABI, MD_KERNEL_MINOR, block_def, block_impl, block_fail,
                              block_add_class}};
    *out = NULL;
    int rc = md__set_up(); /* installs the fork handlers */
    if (rc == 0 && (!path || !*path)) rc = MD_EINVAL;
    if (rc) {
        md__refuse(&b.words, rc, "%s", md_status_text(rc));
    } else if (pthread_mutex_lock(&md__loading)) {
        rc = md__refuse(&b.words, MD_EINVAL, "the block of a library cannot load another one");
    } else {
        const char *slash = strrchr(path, '/');
        b.file = slash ? slash + 1 : path;
        rc = load(&b, path, out);
        pthread_mutex_unlock(&md__loading);
    }
    md__tell(&b.words, text, cap);
    return rc;
}
