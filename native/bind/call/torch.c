/* torch.c - the keys of PyTorch's tensors.
 *
 * Note [Tensors]
 * PyTorch has a function that says which keys a tensor carries (`torch._C._dispatch_keys`). It asks
 * no mode and no `__torch_function__`, so its user does not notice. Its answer is a set of
 * PyTorch's keys, whose number Python translates to ours by the names of the keys
 * (mdispatch/torch/keys.py). A dict keeps what Python has translated.
 *
 * That costs some 15 times a plain call. The number also stands in the tensor itself: the object of
 * Python points to a TensorImpl, which has it in one word. Where the pointer and the word lie
 * differs from version to version, and PyTorch does not say it. So this file finds it out, and
 * trusts nothing that PyTorch has not confirmed in this process:
 *
 *   find     For the first tensors that PyTorch's function is asked about, every word of the object
 *            is taken for a pointer, and every word behind it is compared with the answer. The
 *            kernel reads what such a pointer points to (process_vm_readv), so a word that is no
 *            pointer does no harm. A place is kept that has the answer in every one of the tensors.
 *   found    Once one place is left, for at least two different sets, it is used. With no place
 *            left, or several after many tensors, it never is. Most programs have tensors of one
 *            set only, so Python makes a tensor of another, which nobody sees: only in a thread
 *            that has no mode of PyTorch.
 *   confirm  A word is only believed if PyTorch's function gave this very number for a tensor
 *            before, in whose place the same number stood. All others are asked about. An answer
 *            that is not the word ends the use of the place, for good.
 *
 * Undefined tensors (the word is 0), and tensors that are being freed (the pointer is NULL), are
 * asked about each time. A subclass has the words of its base at the same place.
 *
 * Without a GIL nothing of this is used, nor with MDISPATCH_TENSORS=torch in the environment.
 */
#include "state.h"

#include <dlfcn.h>
#include <sys/uio.h>

enum { OPEN, FOUND, GIVEN_UP };

enum {
    MOST_OBJECT = 256,
    FIRST_WORD = 16,
    MOST_IMPL = 256,
    MOST_TRIED = 64,
    FEW_TRIED = 2,
    FEW_PLACES = 8
};

/* A function of PyTorch without arguments, by its name in C++. */
typedef bool (*asked)(void);
static asked function_at(void *library, const char *name) {
    asked found = NULL;
    void *at = library ? dlsym(library, name) : NULL;
    memcpy(&found, &at, sizeof at); /* ISO C has no cast from one to the other */
    return found;
}

int torch_is(struct state *st, PyObject *const told[TOLD]) {
    struct torch *t = &st->torch;
    if (!told[TOLD - 1]) return 0;
    const char *path = PyUnicode_AsUTF8(told[4]), *operators = PyUnicode_AsUTF8(told[5]);
    if (!path || !operators) return -1;
    lock(st);
    if (!atomic_load(&t->ask)) {
        t->known = Py_NewRef(told[1]);
        t->other = Py_NewRef(told[2]);
        t->is_watched = Py_NewRef(told[3]);
        t->writing = Py_NewRef(told[6]);
        t->record = Py_NewRef(told[7]);
        t->are_aliases = Py_NewRef(told[8]);
        t->library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        t->are_gradients_on = function_at(t->library, "_ZN3c108GradMode10is_enabledEv");
        void *library = dlopen(operators, RTLD_LAZY | RTLD_NOLOAD);
        t->is_profiled = function_at(library, "_ZN2at12hasCallbacksEv");
        t->asks_functions = function_at(library, "_ZN2at4impl27torch_function_mode_enabledEv");
        atomic_store_explicit(&t->ask, Py_NewRef(told[0]), memory_order_release);
    }
    unlock(st);
    return 0;
}

#ifndef Py_GIL_DISABLED

static uint64_t word_at(const void *base, size_t at) {
    uint64_t word;
    memcpy(&word, (const char *)base + at, sizeof word);
    return word;
}

/* Reads words that a number points to, if it points to memory; returns how many. */
static size_t read_behind(uint64_t address, uint64_t *words, size_t n) {
    struct iovec to = {words, n * sizeof *words};
    struct iovec from = {(void *)(uintptr_t)address, n * sizeof *words};
    if (!address || address % sizeof *words) return 0;
    ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    return got < 0 ? 0 : (size_t)got / sizeof *words;
}

static bool has_place(const struct torch *t, size_t in_object, size_t in_impl) {
    for (int i = 0; i < t->n_places; i++) {
        if (t->places[i].in_object == in_object && t->places[i].in_impl == in_impl) return true;
    }
    return false;
}

/* Keeps the places where this tensor, too, has PyTorch's answer. */
static void search(struct torch *t, PyObject *value, uint64_t theirs) {
    struct place kept[PLACES];
    uint64_t words[MOST_IMPL / sizeof(uint64_t)];
    size_t size = (size_t)Py_TYPE(value)->tp_basicsize, n = 0;
    if (size > MOST_OBJECT) size = MOST_OBJECT;
    for (size_t in_object = FIRST_WORD; in_object + sizeof(uint64_t) <= size; in_object += 8) {
        size_t got = read_behind(word_at(value, in_object), words, MOST_IMPL / sizeof *words);
        for (size_t i = 1; i < got; i++) {
            if (words[i] != theirs || (t->first && !has_place(t, in_object, 8 * i))) continue;
            if (n == PLACES) {
                t->search = GIVEN_UP;
                return;
            }
            kept[n++] = (struct place){(uint16_t)in_object, (uint16_t)(8 * i)};
        }
    }
    memcpy(t->places, kept, n * sizeof *kept);
    t->n_places = (uint8_t)n;
    if (n == 0 || ++t->tried > MOST_TRIED)
        t->search = GIVEN_UP;
    else if (t->first && t->first != theirs && n == 1) {
        t->in_object = kept[0].in_object;
        t->in_impl = kept[0].in_impl;
        t->search = FOUND;
    }
    if (!t->first) t->first = theirs;
}

/* Where a set stands, or would be put: one of a few places. */
static inline size_t at_set(const struct torch *t, uint64_t theirs) {
    size_t first = theirs * 0x9e3779b97f4a7c15u >> 58; /* SETS are 2 to the power of 6 */
    for (size_t i = first; i < first + FEW_PLACES; i++) {
        if (LIKELY(t->sets[i % SETS].theirs == theirs) || !t->sets[i % SETS].theirs)
            return i % SETS;
    }
    return first;
}

/* The word in the tensor; 0 when it has none. */
static inline uint64_t word_of(const struct torch *t, PyObject *value) {
    const void *impl = (const void *)(uintptr_t)word_at(value, t->in_object);
    return impl ? word_at(impl, t->in_impl) : 0;
}

/* PyTorch has said what the keys of the tensor are. `word`: what stood in it before, or 0. */
static void learn(struct torch *t, PyObject *value, uint64_t word, uint64_t theirs, uint64_t ours) {
    if (!theirs) return;
    if (t->search == OPEN) {
        search(t, value, theirs);
    } else if (t->search == FOUND && word && word != theirs) {
        t->search = GIVEN_UP;
    } else if (t->search == FOUND && word) {
        size_t at = at_set(t, theirs);
        t->sets[at].theirs = theirs;
        t->sets[at].ours = ours;
    }
}

#endif

/* Asks PyTorch: 1, with its number and what that is here; else -1. */
static int ask_torch(struct state *st, PyObject *value, uint64_t *theirs, uint64_t *raw) {
    PyObject *ask = atomic_load_explicit(&st->torch.ask, memory_order_acquire);
    PyObject *set = ask ? PyObject_CallOneArg(ask, value) : NULL;
    PyObject *number = set ? PyObject_CallMethodNoArgs(set, st->repr_name) : NULL;
    PyObject *known = number ? dict_find(st->torch.known, number) : NULL;
    int found = known && as_raw(known, raw) == 0 ? 1 : -1;
    if (found == 1 && as_raw(number, theirs)) found = -1;
    Py_XDECREF(set);
    Py_XDECREF(number);
    Py_XDECREF(known);
    return found;
}

int from_torch(struct state *st, PyObject *value, uint64_t *raw) {
    uint64_t theirs;
#ifdef Py_GIL_DISABLED
    return ask_torch(st, value, &theirs, raw);
#else
    struct torch *t = &st->torch;
    uint64_t word = 0;
    if (LIKELY(t->search == FOUND)) {
        word = word_of(t, value);
        size_t at = at_set(t, word);
        if (LIKELY(word && t->sets[at].theirs == word)) {
            *raw = t->sets[at].ours;
            return 1;
        }
    }
    int found = ask_torch(st, value, &theirs, raw);
    if (found != 1) return found;
    learn(t, value, word, theirs, *raw);
    if (UNLIKELY(t->search == OPEN && t->tried == FEW_TRIED)) {
        uint64_t ignored;
        PyObject *other = PyObject_CallNoArgs(t->other);
        if (other && other != Py_None && ask_torch(st, other, &theirs, &ignored) == 1)
            learn(t, other, 0, theirs, ignored);
        Py_XDECREF(other);
        if (PyErr_Occurred()) return -1; /* from a signal handler: it ends the call */
    }
    return 1;
#endif
}

/* --- what PyTorch wants to see -----------------------------------------------------------------
 *
 * PyTorch keeps for each thread a set of included and one of excluded keys, as they differ from those
 * that threads begin with. Modes and transforms include keys of their own; so whether PyTorch watches
 * a thread depends on these two words only. Python says it once for each pair of them. */

#ifndef Py_GIL_DISABLED

static struct words *words_of_thread(const struct torch *t) {
    static _Thread_local struct words *words;
    if (!words && t->library)
        words = dlsym(t->library, "_ZN3c104impl26raw_local_dispatch_key_setE");
    return words;
}

/* Whether this thread is one that PyTorch does not watch. */
static bool is_unwatched(struct torch *t) {
    const struct words *now = words_of_thread(t);
    if (!t->asks_functions || t->asks_functions()) return false;
    for (int i = 0; now && i < t->n_unwatched; i++) {
        const struct words *each = &t->unwatched[i];
        if (LIKELY(each->included == now->included && each->excluded == now->excluded)) return true;
    }
    struct words before = now ? *now : (struct words){0, 0};
    PyObject *answer = PyObject_CallNoArgs(t->is_watched);
    bool is = answer == Py_False;
    Py_XDECREF(answer);
    if (is && now && t->n_unwatched < UNWATCHED && now->included == before.included &&
        now->excluded == before.excluded)
        t->unwatched[t->n_unwatched++] = before;
    return is;
}

/* Whether a value is a tensor that may require a gradient, or has one. */
static bool may_require_grad(struct state *st, PyObject *value) {
    PyObject *answer = NULL;
    bool may = false;
    if (PyList_Check(value) || PyTuple_Check(value)) return true; /* Python looks into it */
    if (is_builtin(Py_TYPE(value)) || value == Py_None) return false;
    if (optional_attribute(value, st->grad_name, &answer)) may = answer != Py_False;
    Py_XDECREF(answer);
    return may;
}

bool torch_wants(struct state *st, int gate, PyObject *const *args, Py_ssize_t n) {
    const struct torch *t = &st->torch;
    if (gate == ALWAYS || gate == UNDECIDED || !is_unwatched(&st->torch)) return true;
    if (gate != GRADIENTS || (t->are_gradients_on && !t->are_gradients_on())) return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (may_require_grad(st, args[i])) return true;
    }
    return false;
}

/* --- writes ------------------------------------------------------------------------------------
 *
 * Note [Writes]
 * For an operator that writes to a tensor PyTorch's dispatcher does two things on the way to the
 * kernel: it raises the tensor's version, and it turns gradients off for the kernel's own calls,
 * by autograd's keys in the set of excluded keys. Where it has nothing else to do (nobody watches,
 * and no tensor needs a gradient), the call is made here, and does the two itself: the version by
 * PyTorch's own function, the keys in this thread's word. As with all of PyTorch's memory, the word
 * is only believed once PyTorch has named the keys that this file had written there.
 *
 * The kernels of `custom_op` never record what they do: neither in a graph that PyTorch's compiler
 * has made, nor here. Forward mode is let through: the calls of a kernel keep the tangents.
 *
 * The version is raised first: a kernel that fails may have written. A thread that excludes the key
 * at which PyTorch raises versions, and tensors without that key (those of inference mode), have no
 * version to raise. */

/* The keys that this thread excludes, as PyTorch says. */
static uint64_t told_excluded(PyObject *excluded) {
    PyObject *told = PyObject_CallNoArgs(excluded);
    uint64_t keys = told ? PyLong_AsUnsignedLongLong(told) : 0;
    Py_XDECREF(told);
    return keys;
}

static bool learn_to_write(struct torch *t) {
    struct words *now = words_of_thread(t);
    unsigned long long below, at_views, views, autograd;
    PyObject *raise, *excluded, *forward;
    if (!now || !t->writing || t->writes_refused) return false;
    if (!t->level_name && !(t->level_name = PyUnicode_InternFromString("_current_level")))
        return false;
    PyObject *told = PyObject_CallNoArgs(t->writing);
    if (told && PyArg_ParseTuple(told, "OOKKKKO", &raise, &excluded, &below, &at_views, &views,
                                 &autograd, &forward)) {
        uint64_t before = now->excluded, theirs = told_excluded(excluded);
        now->excluded = before & ~below;
        bool is_right = told_excluded(excluded) == (theirs & ~below);
        now->excluded = before | below;
        is_right = is_right && told_excluded(excluded) == (theirs | below);
        now->excluded = before;
        if (is_right && below && !PyErr_Occurred()) {
            t->below_autograd = below;
            t->at_views = at_views;
            t->views = views;
            t->autograd = autograd;
            t->forward = Py_NewRef(forward);
            t->raise_version = Py_NewRef(raise);
        }
    }
    Py_XDECREF(told);
    t->writes_refused = !t->raise_version;
    return t->raise_version != NULL;
}

int begin_below_autograd(struct state *st, uint64_t *kept) {
    struct torch *t = &st->torch;
    if (UNLIKELY(!t->raise_version) && !learn_to_write(t)) return PyErr_Occurred() ? -1 : 0;
    struct words *now = words_of_thread(t);
    PyObject *level = now ? PyObject_GetAttr(t->forward, t->level_name) : NULL;
    bool is_forward = level && PyLong_Check(level) && PyLong_AsLong(level) >= 0;
    Py_XDECREF(level);
    if (!level) return now ? -1 : 0;
    *kept = now->excluded;
    if (!is_forward) now->excluded |= t->below_autograd;
    return 1;
}

int begin_write_of_torch(struct state *st, uint64_t written, PyObject *const *values, uint64_t raw,
                         uint64_t *kept) {
    struct torch *t = &st->torch;
    if (UNLIKELY(!t->raise_version) && !learn_to_write(t)) return PyErr_Occurred() ? -1 : 0;
    struct words *now = words_of_thread(t);
    if (!now) return 0;
    for (Py_ssize_t i = 0; raw & t->views && !(now->excluded & t->at_views) && written >> i; i++) {
        uint64_t ignored;
        if (!(written >> i & 1) || how_known(st, Py_TYPE(values[i]), &ignored) != BY_TORCH)
            continue;
        PyObject *done = PyObject_CallOneArg(t->raise_version, values[i]);
        if (!done) return -1;
        Py_DECREF(done);
    }
    *kept = now->excluded;
    if (raw & t->autograd) now->excluded |= t->below_autograd;
    return 1;
}

void end_below_autograd(struct state *st, uint64_t kept) {
    struct torch *t = &st->torch;
    struct words *now = words_of_thread(t);
    uint64_t begun = t->below_autograd & ~kept; /* others may have come to stay meanwhile */
    now->excluded &= ~begun;
}

#else

int begin_write_of_torch(struct state *st, uint64_t written, PyObject *const *values, uint64_t raw,
                         uint64_t *kept) {
    return 0;
}

void end_below_autograd(struct state *st, uint64_t kept) {
}

int begin_below_autograd(struct state *st, uint64_t *kept) {
    return 0;
}

bool torch_wants(struct state *st, int gate, PyObject *const *args, Py_ssize_t n) {
    return true;
}

#endif

PyObject *begin_record(struct state *st, PyObject *self, PyObject *const *values, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple && i < n; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[i]));
    PyObject *record =
        tuple ? PyObject_CallFunctionObjArgs(st->torch.record, self, tuple, NULL) : NULL;
    Py_XDECREF(tuple);
    if (record && record != Py_None) {
        PyObject *entered = PyObject_CallMethod(record, "__enter__", NULL);
        if (!entered) Py_CLEAR(record);
        Py_XDECREF(entered);
    }
    return record;
}

int end_record(PyObject *record) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = record == Py_None
                         ? Py_NewRef(record)
                         : PyObject_CallMethod(record, "__exit__", "OOO", Py_None, Py_None,
                                               Py_None);
    Py_DECREF(record);
    Py_XDECREF(done);
    if (type) PyErr_Restore(type, value, traceback); /* drops a later one */
    return done ? 0 : -1;
}

/* place(in_object, in_impl): uses that place, as if it had been found; with (0, 0) none, for good.
 * Returns nothing. For MDISPATCH_TENSORS, and for tests. */
PyObject *torch_place(PyObject *m, PyObject *args) {
    struct torch *t = &((struct state *)PyModule_GetState(m))->torch;
    unsigned short in_object, in_impl;
    if (!PyArg_ParseTuple(args, "HH", &in_object, &in_impl)) return NULL;
    memset(t->sets, 0, sizeof t->sets);
    t->in_object = in_object;
    t->in_impl = in_impl;
    t->search = in_object ? FOUND : GIVEN_UP;
    Py_RETURN_NONE;
}

/* found(): the place that is used, as (in_object, in_impl, sets that PyTorch has confirmed); None
 * while it is looked for, False when there is none. */
PyObject *torch_found(PyObject *m, PyObject *ignored) {
    const struct torch *t = &((struct state *)PyModule_GetState(m))->torch;
    if (t->search == OPEN) Py_RETURN_NONE;
    if (t->search == GIVEN_UP) Py_RETURN_FALSE;
    int sets = 0;
    for (int i = 0; i < SETS; i++) sets += t->sets[i].theirs != 0;
    return Py_BuildValue("(iii)", t->in_object, t->in_impl, sets);
}
