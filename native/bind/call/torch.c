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

int torch_is(struct state *st, PyObject *const told[5]) {
    struct torch *t = &st->torch;
    if (!told[4]) return 0;
    const char *path = PyUnicode_AsUTF8(told[4]);
    if (!path) return -1;
    lock(st);
    if (!atomic_load(&t->ask)) {
        t->known = Py_NewRef(told[1]);
        t->other = Py_NewRef(told[2]);
        t->is_watched = Py_NewRef(told[3]);
        t->library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
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

static const struct words *words_of_thread(const struct torch *t) {
    static _Thread_local const struct words *words;
    if (!words && t->library)
        words = dlsym(t->library, "_ZN3c104impl26raw_local_dispatch_key_setE");
    return words;
}

/* Whether this thread is one that PyTorch does not watch. */
static bool is_unwatched(struct torch *t) {
    const struct words *now = words_of_thread(t);
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
    if (gate == ALWAYS || !is_unwatched(&st->torch)) return true;
    for (Py_ssize_t i = 0; gate == GRADIENTS && i < n; i++) {
        if (may_require_grad(st, args[i])) return true;
    }
    return false;
}

#else

bool torch_wants(struct state *st, int gate, PyObject *const *args, Py_ssize_t n) {
    return true;
}

#endif

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
