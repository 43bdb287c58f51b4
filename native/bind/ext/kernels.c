/* kernels.c - the binding of the process's table of kernels, and of the loading of libraries with
 * kernels. Plain values in and out, no logic. An address is valid in this process and never leaves
 * it. */
#include "boxed.h"

#include <dlfcn.h>
#include <stdio.h>

static PyObject *address(const void *p) {
    return PyLong_FromVoidPtr((void *)p);
}

static PyObject *item_tuple(const md_loaded_item *item) {
    return Py_BuildValue("(Iisss(NNNI))", item->kind, (int)item->key, item->text, item->label,
                         item->where, address((const void *)(uintptr_t)item->spec.function),
                         address(item->spec.user),
                         address((const void *)(uintptr_t)item->spec.release), item->spec.flags);
}

/* (status, text, None or (number, namespace, kind, where, items)) */
PyObject *ext_load(PyObject *self, PyObject *args) {
    const char *path;
    char text[1024] = "";
    const md_loaded *loaded;
    int status;
    if (!PyArg_ParseTuple(args, "y", &path)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_load(path, &loaded, text, sizeof text);
    Py_END_ALLOW_THREADS PyObject *words =
        PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (!words || status) return words ? Py_BuildValue("(iNO)", status, words, Py_None) : NULL;
    PyObject *items = PyList_New(0);
    for (size_t i = 0; items && i < loaded->size; i++) {
        PyObject *item = item_tuple(&loaded->items[i]);
        if (!item || PyList_Append(items, item)) Py_CLEAR(items);
        Py_XDECREF(item);
    }
    if (!items) {
        Py_DECREF(words);
        return NULL;
    }
    return Py_BuildValue("(iN(NsIsN))", status, words, address(loaded), loaded->ns, loaded->kind,
                         loaded->where, items);
}

/* The arguments of kernel_put() and kernel_drop(): registry, name, key, label, (function, user,
 * release, flags). */
static int parse_entry(PyObject *args, unsigned long long *reg, const char **name, int *key,
                       const char **label, md_kernel_spec *spec) {
    PyObject *function, *user, *release;
    unsigned int flags;
    if (!PyArg_ParseTuple(args, "Ksis(OOOI)", reg, name, key, label, &function, &user, &release,
                          &flags))
        return -1;
    memset(spec, 0, sizeof *spec);
    spec->function = (md_kernel)(uintptr_t)PyLong_AsVoidPtr(function);
    spec->user = PyLong_AsVoidPtr(user);
    spec->release = (void (*)(void *))(uintptr_t)PyLong_AsVoidPtr(release);
    spec->flags = flags;
    return PyErr_Occurred() ? -1 : 0;
}

PyObject *ext_kernel_put(PyObject *self, PyObject *args) {
    unsigned long long reg;
    const char *name, *label;
    md_kernel_spec spec;
    int key;
    if (parse_entry(args, &reg, &name, &key, &label, &spec)) return NULL;
    return PyLong_FromLong(md_kernel_put(reg, name, key, label, &spec));
}

PyObject *ext_kernel_drop(PyObject *self, PyObject *args) {
    unsigned long long reg;
    const char *name, *label;
    md_kernel_spec spec;
    int key, status;
    if (parse_entry(args, &reg, &name, &key, &label, &spec)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = md_kernel_drop(reg, name, key, label, &spec);
    Py_END_ALLOW_THREADS return PyLong_FromLong(status);
}

/* (registry, name, key, label, definition) -> status */
PyObject *ext_kernel_bind(PyObject *self, PyObject *args) {
    unsigned long long reg;
    const char *name, *label, *definition;
    int key;
    if (!PyArg_ParseTuple(args, "Ksiss", &reg, &name, &key, &label, &definition)) return NULL;
    return PyLong_FromLong(md_kernel_bind(reg, name, key, label, definition));
}

/* (registry, name, key, label) -> the definition that was noted, or None */
PyObject *ext_kernel_definition(PyObject *self, PyObject *args) {
    unsigned long long reg;
    const char *name, *label;
    int key;
    if (!PyArg_ParseTuple(args, "Ksis", &reg, &name, &key, &label)) return NULL;
    char *found = md_kernel_definition(reg, name, key, label);
    if (!found) Py_RETURN_NONE;
    PyObject *text = PyUnicode_DecodeUTF8(found, (Py_ssize_t)strlen(found), "replace");
    free(found);
    return text;
}

/* (registry, name, key, label, flags of each argument, names of the keyword-only ones, number of
 * returns, KernelError, BoxingError, find(name) for the operators that it calls) -> the builtin, or
 * None when this process has no such kernel. The collector does not see what the builtin holds. */
PyObject *ext_kernel_function(PyObject *self, PyObject *args) {
    unsigned long long reg;
    const char *flags;
    Py_ssize_t size, returns;
    PyObject *name, *label, *names, *kernel_error, *boxing_error, *find;
    int key;
    if (!PyArg_ParseTuple(args, "KUiUy#O!nOOO", &reg, &name, &key, &label, &flags, &size,
                          &PyTuple_Type, &names, &returns, &kernel_error, &boxing_error, &find))
        return NULL;
    const char *name_utf8 = PyUnicode_AsUTF8(name), *label_utf8 = PyUnicode_AsUTF8(label);
    if (!name_utf8 || !label_utf8) return NULL;
    if (returns < 0 || PyTuple_GET_SIZE(names) > size) {
        PyErr_SetString(PyExc_ValueError, "no kernel has so few arguments");
        return NULL;
    }
    md_held_kernel *held;
    if (md_kernel_hold(reg, name_utf8, key, label_utf8, &held)) Py_RETURN_NONE;
    struct boxed_kernel *k = PyMem_Calloc(1, sizeof *k);
    unsigned char *copy = k ? PyMem_Malloc((size_t)size + 1) : NULL;
    PyObject *type = copy ? PyObject_GetAttrString(self, "Buffer") : NULL;
    if (!type) {
        PyMem_Free(copy);
        PyMem_Free(k);
        md_kernel_let_go(held);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    memcpy(copy, flags, (size_t)size);
    *k = (struct boxed_kernel){
        .held = held,
        .op = Py_NewRef(name),
        .label = Py_NewRef(label),
        .names = Py_NewRef(names),
        .find = Py_NewRef(find),
        .buffer_type = type,
        .kernel_error = Py_NewRef(kernel_error),
        .boxing_error = Py_NewRef(boxing_error),
        .op_utf8 = name_utf8,
        .positional = size - PyTuple_GET_SIZE(names),
        .returns = returns,
        .flags = copy,
    };
    return boxed_builtin(k);
}

PyObject *ext_has_host(PyObject *self, PyObject *args) {
    return PyBool_FromLong(md_has_host());
}

/* A label for a function of which only the address is known: the name of its file, and the
 * function's name or its offset in the file. It is the same in every process that loads the
 * file. */
PyObject *ext_kernel_label(PyObject *self, PyObject *args) {
    PyObject *function;
    Dl_info info;
    if (!PyArg_ParseTuple(args, "O", &function)) return NULL;
    void *p = PyLong_AsVoidPtr(function);
    if (!p && PyErr_Occurred()) return NULL;
    if (!p || !dladdr(p, &info) || !info.dli_fname) Py_RETURN_NONE;
    const char *slash = strrchr(info.dli_fname, '/'), *file = slash ? slash + 1 : info.dli_fname;
    if (info.dli_sname && info.dli_saddr == p)
        return PyUnicode_FromFormat("c:%s:%s", file, info.dli_sname);
    return PyUnicode_FromFormat("c:%s:%zd", file, (char *)p - (char *)info.dli_fbase);
}
