/* library.c - lets a program register operators for all interpreters of its process, without
 * Python.
 *
 * A library of a host registers at once. Each definition and each kernel is a fact, made by the
 * host's own member. A kernel is entered in the process's table before its fact is published. The
 * library keeps a list of what it has registered, and ends all of it in reverse order.
 *
 * Locking: none. One thread at a time uses a library. What the library calls is safe from any
 * thread.
 *
 * The blocks of load.c also use the words of the first failure, the checks of names, and classes.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"

/* One fact of a library. */
struct entry {
    struct entry *before;
    uint64_t ref, seq;
    md_kernel_spec spec; /* if it has no function, the fact is no kernel */
    int32_t key;
    char label[256];
    char name[MD_MAX_NAME + 1];
};

struct library {
    md_library pub; /* first: what blocks see */
    md_registry reg;
    uint64_t member;
    struct entry *newest;
    struct md__words words;
    char ns[256];
    char program[64];
};

int md__refuse(struct md__words *words, int status, const char *format, ...) {
    va_list args;
    if (words->status) return words->status;
    va_start(args, format);
    vsnprintf(words->text, sizeof words->text, format, args);
    va_end(args);
    words->status = status;
    return status;
}

void md__tell(const struct md__words *words, char *text, size_t cap) {
    if (text && cap) snprintf(text, cap, "%s", words->text);
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* An identifier of at most 255 letters. */
bool md__is_word(const char *text, size_t size) {
    if (size == 0 || size > 255 || !is_letter(*text)) return false;
    for (size_t i = 1; i < size; i++) {
        if (!is_letter(text[i]) && !is_digit(text[i])) return false;
    }
    return true;
}

/* Makes "ns::name.overload" from that or from "name.overload". */
int md__full_name(struct md__words *words, const char *ns, const char *name, size_t size,
                  char full[MD_MAX_NAME + 1]) {
    size_t prefix = strlen(ns);
    if (size > prefix + 2 && memcmp(name, ns, prefix) == 0 && memcmp(name + prefix, "::", 2) == 0) {
        name += prefix + 2;
        size -= prefix + 2;
    }
    const char *dot = memchr(name, '.', size);
    size_t base = dot ? (size_t)(dot - name) : size;
    if (!md__is_word(name, base) || (dot && !md__is_word(dot + 1, size - base - 1)))
        return md__refuse(words, MD_EINVAL, "'%.*s' is no name of an operator in namespace %s",
                          (int)(size < 200 ? size : 200), name, ns);
    snprintf(full, MD_MAX_NAME + 1, "%s::%.*s", ns, (int)size, name);
    return 0;
}

/* The full name in a schema; `rest` begins at its first parenthesis. */
int md__schema_name(struct md__words *words, const char *ns, const char *schema,
                    char full[MD_MAX_NAME + 1], const char **rest) {
    *rest = schema ? strchr(schema, '(') : NULL;
    if (!*rest || !strstr(*rest, ") -> "))
        return md__refuse(words, MD_EINVAL,
                          "'%.200s' is no schema: write it as \"name(Tensor x) -> Tensor\"",
                          schema ? schema : "");
    return md__full_name(words, ns, schema, (size_t)(*rest - schema), full);
}

/* Makes "c:PROGRAM:FUNCTION", followed by a number from the second one on. It keeps only the
 * letters and digits of the function, which may have been written as an expression. */
void md__make_label(char label[256], const char *program, const char *function, int number) {
    int n = snprintf(label, 128, "c:%.100s:", program), last = n + 100;
    for (; *function && n < last; function++) {
        if (is_letter(*function) || is_digit(*function)) label[n++] = *function;
    }
    label[n] = '\0';
    if (number > 1) snprintf(label + n, 16, "#%d", number);
}

/* --- classes ---------------------------------------------------------------------------------- */

/* A method, with its schema as an operator. */
struct line {
    char *schema;
    const md_method *method;
};

/* '(' comes before all letters of names, so methods of one name are neighbours. */
static int order(const void *a, const void *b) {
    return strcmp(((const struct line *)a)->schema, ((const struct line *)b)->schema);
}

/* What handles have for themselves (mdispatch/across/sharing.py, ObjectHandle) cannot be the name
 * of a method, and what begins with an underscore they do not pass on. */
static bool is_of_handles(const char *method, size_t size) {
    static const char *const names[] = {"call_at_home", "class_name", "close",
                                        "home",         "is_home",    "keys",
                                        "open",         "to_outside", "type_name"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == size && memcmp(names[i], method, size) == 0) return true;
    }
    return *method == '_';
}

/* Makes "shop::Index.find(shop.Index self, str text) -> int" of "find(str text) -> int". */
static int make_line(struct md__words *words, const char *ns, const char *name,
                     const md_method *method, struct line *out) {
    const char *schema = method->schema ? method->schema : "", *rest = strchr(schema, '(');
    size_t word = rest ? (size_t)(rest - schema) : 0;
    if (!md__is_word(schema, word) || !strstr(rest, ") -> ") || strchr(rest, '\n'))
        return md__refuse(words, MD_EINVAL,
                          "'%.200s' is no method of class %s.%s: write it without `self`, as "
                          "\"find(str text) -> int\"",
                          schema, ns, name);
    if (is_of_handles(schema, word))
        return md__refuse(words, MD_EINVAL,
                          "class %s.%s cannot have the method %.*s: a handle has such a name of "
                          "its own, or does not pass it on",
                          ns, name, (int)word, schema);
    if (!method->kernel.function || !method->label)
        return md__refuse(words, MD_EINVAL, "the method %.*s of class %s.%s needs a function",
                          (int)word, schema, ns, name);
    const char *inner = rest + 1;
    while (*inner == ' ') inner++;
    size_t size = 2 * (strlen(ns) + strlen(name)) + strlen(schema) + 16;
    out->method = method;
    out->schema = malloc(size);
    if (!out->schema) return md__refuse(words, MD_ESYS - ENOMEM, "no memory");
    snprintf(out->schema, size, "%s::%s.%.*s(%s.%s self%s%s", ns, name, (int)word, schema, ns, name,
             *inner == ')' ? "" : ", ", inner);
    return 0;
}

/* The sorted schemas, and the line by which the class is told from one of Python
 * (mdispatch/across/class_facts.py). */
static char *class_text(struct md__words *words, const struct line *lines, size_t n) {
    static const char end[] = "it is made in C";
    size_t size = sizeof end;
    for (size_t i = 0; i < n; i++) size += strlen(lines[i].schema) + 1;
    char *text = malloc(size), *at = text;
    if (!text) md__refuse(words, MD_ESYS - ENOMEM, "no memory");
    for (size_t i = 0; text && i < n; i++) {
        size_t length = strlen(lines[i].schema);
        memcpy(at, lines[i].schema, length);
        at[length] = '\n';
        at += length + 1;
    }
    if (text) memcpy(at, end, sizeof end);
    return text;
}

static int add_method(md_library *m, struct md__words *words, const char *ns,
                      const struct line *line, const char *where) {
    char full[MD_MAX_NAME + 1];
    const char *rest;
    int rc = md__schema_name(words, ns, line->schema, full, &rest);
    if (rc == 0) rc = m->def(m, line->schema, where); /* coverage: one-sided, make_line made it */
    if (rc == 0)
        rc = m->impl(m, full, MD_KEY_CompositeExplicitAutograd, &line->method->kernel,
                     line->method->label, where);
    return rc;
}

/* Adds a class and its methods to a library. Before the first step everything is checked. */
int md__add_class(md_library *m, struct md__words *words, const char *ns, const char *name,
                  const md_method *methods, size_t n_methods, const char *where,
                  md__publish_class *publish) {
    char full[MD_MAX_NAME + 1];
    char *text = NULL;
    if (words->status) return words->status;
    if (!name || !md__is_word(name, strlen(name)))
        return md__refuse(words, MD_EINVAL, "'%.200s' is no name of a class in namespace %s",
                          name ? name : "", ns);
    if (n_methods && !methods)
        return md__refuse(words, MD_EINVAL, "class %s.%s has no array of methods", ns, name);
    struct line *lines = calloc(n_methods + 1, sizeof *lines);
    int rc = lines ? 0 : md__refuse(words, MD_ESYS - ENOMEM, "no memory");
    for (size_t i = 0; rc == 0 && i < n_methods; i++)
        rc = make_line(words, ns, name, &methods[i], &lines[i]);
    if (rc == 0) qsort(lines, n_methods, sizeof *lines, order);
    for (size_t i = 1; rc == 0 && i < n_methods; i++) {
        int length = (int)(strchr(lines[i].schema, '(') - lines[i].schema) + 1;
        if (strncmp(lines[i - 1].schema, lines[i].schema, (size_t)length) == 0)
            rc = md__refuse(words, MD_EINVAL, "class %s.%s has the method %.*s twice", ns, name,
                            length - 1, lines[i].schema);
    }
    if (rc == 0) {
        snprintf(full, sizeof full, "%s::%s", ns, name);
        text = class_text(words, lines, n_methods);
        rc = text ? publish(m, full, text, where) : words->status;
    }
    for (size_t i = 0; rc == 0 && i < n_methods; i++)
        rc = add_method(m, words, ns, &lines[i], where);
    for (size_t i = 0; lines && i < n_methods; i++) free(lines[i].schema);
    free(lines);
    free(text);
    return rc;
}

/* --- registering ------------------------------------------------------------------------------ */

/* Says in words why a fact was refused. */
static int refuse(struct library *m, int rc, const char *what, const char *packed) {
    md_record r;
    if (rc == MD_EEXIST) {
        memcpy(&r, packed, sizeof r);
        const char *where = packed + sizeof r + r.name_len + r.body_len;
        const char *end = memchr(where, '\n', r.where_len); /* Python adds the module's name */
        return md__refuse(&m->words, rc, "%s is there already, from %.*s", what,
                          end ? (int)(end - where) : (int)r.where_len, where);
    }
    return md__refuse(&m->words, rc, "%s cannot be registered: %s", what, md_status_text(rc));
}

/* Registers a fact and keeps what is needed to end it. The buffer has room for any fact: ours, or
 * the one that is in the way. */
static int add(struct library *m, struct entry *made, uint32_t kind, uint32_t rule,
               const char *body, const char *where) {
    const size_t cap = sizeof(md_record) + MD_MAX_NAME + MD_MAX_BODY + MD_MAX_WHERE + 8;
    size_t where_len = strlen(where), cut = where_len > MD_MAX_WHERE ? where_len - MD_MAX_WHERE : 0;
    char *buf = malloc(cap);
    if (!buf) return md__refuse(&m->words, MD_ESYS - ENOMEM, "no memory");
    int rc = md_register(m->reg, m->member, kind, rule, made->key, made->name, strlen(made->name),
                         body, strlen(body), where + cut, where_len - cut, buf, cap);
    if (rc == 0) {
        md_record r;
        memcpy(&r, buf, sizeof r);
        made->ref = r.ref;
        made->seq = r.seq;
        made->before = m->newest;
        m->newest = made;
    } else {
        refuse(m, rc, made->name, buf);
    }
    free(buf);
    return rc;
}

static struct entry *new_entry(struct library *m, int32_t key) {
    struct entry *made = calloc(1, sizeof *made);
    if (made)
        made->key = key;
    else
        md__refuse(&m->words, MD_ESYS - ENOMEM, "no memory");
    return made;
}

static int host_def(md_library *pub, const char *schema, const char *where) {
    struct library *m = (struct library *)pub;
    const char *rest;
    struct entry *made = m->words.status ? NULL : new_entry(m, 0);
    char *body = NULL;
    if (!made) return m->words.status;
    int rc = md__schema_name(&m->words, m->ns, schema, made->name, &rest);
    if (rc == 0) {
        size_t size = strlen(made->name) + strlen(rest) + 1;
        body = malloc(size);
        if (body)
            snprintf(body, size, "%s%s", made->name, rest);
        else
            rc = md__refuse(&m->words, MD_ESYS - ENOMEM, "no memory");
    }
    if (rc == 0) rc = add(m, made, MD_DEF, MD_UNIQUE, body, where);
    free(body);
    if (rc) free(made);
    return rc;
}

static int host_impl(md_library *pub, const char *name, int32_t key, const md_kernel_spec *spec,
                     const char *label, const char *where) {
    struct library *m = (struct library *)pub;
    struct entry *made = m->words.status ? NULL : new_entry(m, key);
    if (!made) return m->words.status;
    int rc = name && spec && spec->function && label
                 ? md__full_name(&m->words, m->ns, name, strlen(name), made->name)
                 : md__refuse(&m->words, MD_EINVAL, "a kernel needs a name and a function");
    bool is_put = false;
    for (int number = 1; rc == 0 && !is_put; number++) {
        made->spec = *spec;
        md__make_label(made->label, m->program, label, number);
        rc = md__kernel_put(m->reg, made->name, key, made->label, spec, true);
        is_put = rc == 0;
        if (rc == MD_EEXIST) rc = 0;
        if (rc) refuse(m, rc, made->name, NULL);
    }
    if (rc == 0) rc = add(m, made, MD_IMPL, MD_STACK, made->label, where);
    if (rc && is_put) md__kernel_drop(m->reg, made->name, key, made->label, spec, false);
    if (rc) free(made);
    return rc;
}

static int publish_class(md_library *pub, const char *name, const char *text, const char *where) {
    struct library *m = (struct library *)pub;
    struct entry *made = new_entry(m, 0);
    if (!made) return m->words.status;
    snprintf(made->name, sizeof made->name, "%s", name);
    int rc = add(m, made, MD_CLASS, MD_UNIQUE, text, where);
    if (rc) free(made);
    return rc;
}

static int host_add_class(md_library *pub, const char *name, const md_method *methods,
                          size_t n_methods, const char *where) {
    struct library *m = (struct library *)pub;
    return md__add_class(pub, &m->words, m->ns, name, methods, n_methods, where, publish_class);
}

static int host_fail(md_library *pub, const char *text) {
    return md__refuse(&((struct library *)pub)->words, MD_EINVAL, "%.500s", text ? text : "");
}

int md_library_open(md_registry reg, uint64_t member, const char *ns, uint32_t kind,
                    const char *program, const char *where, md_library **out) {
    *out = NULL;
    if (!ns || !program || !where || !md__is_word(ns, strlen(ns))) return MD_EINVAL;
    if (kind != MD_DEF_LIBRARY && kind != MD_FRAGMENT) return MD_EINVAL;
    struct library *m = calloc(1, sizeof *m);
    if (!m) return MD_ESYS - ENOMEM;
    m->pub = (md_library){MD_KERNEL_ABI, MD_KERNEL_MINOR, host_def,
                          host_impl,     host_fail,       host_add_class};
    m->reg = reg;
    m->member = member;
    snprintf(m->ns, sizeof m->ns, "%s", ns);
    snprintf(m->program, sizeof m->program, "%s", program);
    int rc = 0;
    if (kind == MD_DEF_LIBRARY) {
        struct entry *made = new_entry(m, 0);
        rc = m->words.status;
        if (made) {
            snprintf(made->name, sizeof made->name, "%s", ns);
            rc = add(m, made, MD_LIBRARY, MD_UNIQUE, "", where);
            if (rc) free(made);
        }
    }
    if (rc)
        free(m);
    else
        *out = &m->pub;
    return rc;
}

int md_library_status(const md_library *pub, char *text, size_t cap) {
    const struct library *m = (const struct library *)pub;
    md__tell(&m->words, text, cap);
    return m->words.status;
}

int md_library_close(md_library *pub) {
    struct library *m = (struct library *)pub;
    int first = 0;
    while (m && m->newest) {
        struct entry *e = m->newest;
        m->newest = e->before;
        int rc = md_strike(m->reg, m->member, e->ref, e->seq);
        if (rc && rc != MD_ENOENT && first == 0) first = rc;
        if (e->spec.function) md_kernel_drop(m->reg, e->name, e->key, e->label, &e->spec);
        free(e);
    }
    free(m);
    return first;
}
