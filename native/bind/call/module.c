/* module.c - the module: making and freeing its state, and the functions by which Python tells
 * calls what has changed. */
#include "state.h"

/* changed(): makes every plan of this interpreter out of date. */
static PyObject *call_changed(PyObject *m, PyObject *ignored) {
    struct state *st = PyModule_GetState(m);
    atomic_fetch_add(&st->epoch, 1);
    Py_RETURN_NONE;
}

/* Note [Locks that nobody has]
 * Without a GIL each object has a lock. When a lock is released while a thread waits for it,
 * CPython may hand it to the waiter, which is still asleep. CPython's fork stops all threads first,
 * and it can come before the waiter has woken up. The child does not have the waiter, so there the
 * lock is taken for ever: the first change of a dict with such a lock, or look into such a set,
 * would never come back. No thread was in the middle of a change, since a thread that changes an
 * object stops only after the change. So the child, which has one thread, frees these locks. It
 * frees those of our own objects only. It could not look for others, because the lock of the
 * garbage collector can be taken for ever in the same way. */
static PyObject *call_unlock(PyObject *m, PyObject *const *objects, Py_ssize_t n) {
    unlock_in_child(PyModule_GetState(m), objects, n);
    Py_RETURN_NONE;
}

/* types_changed(): a type was registered. */
static PyObject *call_types_changed(PyObject *m, PyObject *ignored) {
    types_changed(PyModule_GetState(m));
    Py_RETURN_NONE;
}

/* turn(off): whether all calls go through Python. */
static PyObject *call_turn(PyObject *m, PyObject *truth) {
    struct state *st = PyModule_GetState(m);
    int off = PyObject_IsTrue(truth);
    if (off < 0) return NULL;
    atomic_store(&st->off, (uint64_t)off);
    return call_changed(m, NULL);
}

/* callable(type): calls of its instances use vectorcall, not its __call__. From 3.12 on CPython
 * does this by itself. */
static PyObject *call_callable(PyObject *m, PyObject *type) {
    if (!PyType_Check(type) || ((PyTypeObject *)type)->tp_call != PyVectorcall_Call) {
        PyErr_SetString(PyExc_TypeError, "a class with a __call__ of its own");
        return NULL;
    }
    if (PY_VERSION_HEX < 0x030c0000) {
        ((PyTypeObject *)type)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
        PyType_Modified((PyTypeObject *)type);
    }
    return Py_NewRef(type);
}

/* shows_as_call(type, function): what those find who read the type's `__call__` instead of calling.
 * Calls do not use it. For PyTorch's compiler, which traces a function where there is one. */
static PyObject *call_shows_as_call(PyObject *m, PyObject *args) {
    PyTypeObject *type;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &type, &function)) return NULL;
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *dict = PyType_GetDict(type);
#else
    PyObject *dict = Py_XNewRef(type->tp_dict);
#endif
    int failed = !dict || PyDict_SetItemString(dict, "__call__", function);
    Py_XDECREF(dict);
    if (failed) return NULL;
    PyType_Modified(type);
    Py_RETURN_NONE;
}

/* contexts(): how many there are, see state.h; for tests. */
static PyObject *call_contexts(PyObject *m, PyObject *ignored) {
    struct state *st = PyModule_GetState(m);
    return PyLong_FromUnsignedLongLong(peek(&st->contexts));
}

/* keys(offsets, per_backend, special, wrapped): the order of the keys, from keys/numbers.py, those
 * whose calls Python makes, and those of tensors that PyTorch has wrapped. */
static PyObject *call_keys(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyObject *offsets;
    unsigned long long per_backend, special, wrapped;
    if (!PyArg_ParseTuple(args, "O!KKK", &PyTuple_Type, &offsets, &per_backend, &special, &wrapped))
        return NULL;
    for (int i = 0; i < FUNCTIONALITIES && i < PyTuple_GET_SIZE(offsets); i++) {
        long offset = PyLong_AsLong(PyTuple_GET_ITEM(offsets, i));
        if (offset < 0 || offset + BACKENDS >= ENTRIES)
            return PyErr_Format(PyExc_ValueError, "no such offset");
        st->offset[i] = (uint8_t)offset;
    }
    st->per_backend = per_backend;
    st->special = special;
    st->wrapped = wrapped;
    Py_RETURN_NONE;
}

static void set(PyObject **place, PyObject *value) {
    PyObject *before = *place;
    *place = Py_XNewRef(value);
    Py_XDECREF(before);
}

/* raw_of(value): the bits of the keys that a call in C takes a value to have; None for one that is
 * no tensor, False for one that is left to Python. For tests. */
static PyObject *call_raw_of(PyObject *m, PyObject *value) {
    uint64_t raw = 0;
    int found = carries(PyModule_GetState(m), value, &raw);
    if (found > 0) return PyLong_FromUnsignedLongLong(raw & ~(FROM_TORCH | WITH_FUNCTION));
    if (PyErr_Occurred()) return NULL;
    return Py_NewRef(found == 0 ? Py_None : Py_False);
}

/* values(how_of_type, raw_of, DispatchKeySet, MdispatchError, devices): what
 * keys.c and call.c need of Python to find a call's keys. devices: (DLPack's number, keys), ... */
static PyObject *call_values(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyObject *how_of_type, *raw_of, *key_set_type, *own_errors, *devices;
    if (!PyArg_ParseTuple(args, "OOO!OO!", &how_of_type, &raw_of, &PyType_Type, &key_set_type,
                          &own_errors, &PyTuple_Type, &devices))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(devices); i++) {
        unsigned int number;
        unsigned long long keys;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(devices, i), "IK", &number, &keys)) return NULL;
        if (number >= DEVICES) return PyErr_Format(PyExc_ValueError, "no such device");
        st->devices[number] = keys;
    }
    PyObject *member = PyObject_GetAttrString(key_set_type, "_raw");
    if (!member) return NULL;
    if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) {
        Py_DECREF(member);
        return PyErr_Format(PyExc_TypeError, "a DispatchKeySet has its bits in a slot");
    }
    st->raw_at = ((PyMemberDescrObject *)member)->d_member->offset;
    Py_DECREF(member);
    Py_ssize_t met = slot_at(key_set_type, "_met"), meet = slot_at(key_set_type, "_meet");
    if (met < 0 || meet < 0) return NULL;
    key_sets_install((PyTypeObject *)key_set_type, st->raw_at, met, meet);
    set(&st->how_of_type, how_of_type);
    set(&st->raw_of, raw_of);
    set(&st->key_set_type, key_set_type);
    set(&st->own_errors, own_errors);
    Py_RETURN_NONE;
}

/* paths(call, redispatch, renew, target, check, call_packet, renew_packet, for_types): the functions of Python
 * that make what C leaves to it. */
static PyObject *call_paths(PyObject *m, PyObject *args) {
    struct state *st = PyModule_GetState(m);
    PyObject *p[8];
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &p[0], &p[1], &p[2], &p[3], &p[4], &p[5], &p[6], &p[7]))
        return NULL;
    PyObject **places[8] = {&st->call,  &st->redispatch,  &st->renew,        &st->target,
                            &st->check, &st->call_packet, &st->renew_packet, &st->for_types};
    for (int i = 0; i < 8; i++) set(places[i], p[i]);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"arrived", (PyCFunction)(void (*)(void))arrived, METH_FASTCALL, NULL},
    {"callable", call_callable, METH_O, NULL},
    {"change", guards_change, METH_VARARGS, NULL},
    {"changed", call_changed, METH_NOARGS, NULL},
    {"changed_sets", guards_changed_sets, METH_NOARGS, NULL},
    {"contexts", call_contexts, METH_NOARGS, NULL},
    {"handlers", handlers_start, METH_VARARGS, NULL},
    {"keys", call_keys, METH_VARARGS, NULL},
    {"noted", (PyCFunction)(void (*)(void))noted, METH_FASTCALL, NULL},
    {"now", guards_now, METH_NOARGS, NULL},
    {"number", observers_number, METH_NOARGS, NULL},
    {"observers", observers_set, METH_O, NULL},
    {"observing", observers_start, METH_VARARGS, NULL},
    {"paths", call_paths, METH_VARARGS, NULL},
    {"quick", guards_quick, METH_VARARGS, NULL},
    {"raw_of", call_raw_of, METH_O, NULL},
    {"sets", guards_sets, METH_NOARGS, NULL},
    {"shows_as_call", call_shows_as_call, METH_VARARGS, NULL},
    {"start", guards_start, METH_VARARGS, NULL},
    {"surely", (PyCFunction)(void (*)(void))surely, METH_FASTCALL, NULL},
    {"tags", guards_tags, METH_NOARGS, NULL},
    {"torch_found", torch_found, METH_NOARGS, NULL},
    {"torch_place", torch_place, METH_VARARGS, NULL},
    {"turn", call_turn, METH_O, NULL},
    {"types_changed", call_types_changed, METH_NOARGS, NULL},
    {"unlock", (PyCFunction)(void (*)(void))call_unlock, METH_FASTCALL, NULL},
    {"values", call_values, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* clang-format off */
#define EACH_OBJECT(DO) \
    DO(st->operator_type); DO(st->packet_type); DO(st->route_type); DO(st->names_type); \
    DO(st->shape_type); DO(st->view_type); DO(st->plan_type); DO(st->cell_type); \
    DO(st->sets_type); DO(st->guard_type); DO(st->stack_type); DO(st->forward_type); \
    DO(st->unshared_type); DO(st->steps_type); DO(st->cuda_name); DO(st->array_name); DO(st->base_name); \
    DO(st->guards_name); DO(st->python_fallback); \
    DO(st->snapshot_fallback); DO(st->mode_type); DO(st->entry_type); DO(st->answered); \
    DO(st->declined); DO(st->handler_name); DO(st->call); DO(st->redispatch); DO(st->renew); DO(st->target); \
    DO(st->check); DO(st->call_packet); DO(st->renew_packet); DO(st->for_types); DO(st->how_of_type); \
    DO(st->raw_of); DO(st->key_type); DO(st->key_set_type); DO(st->own_errors); \
    DO(st->raw_by_name); DO(st->raw_by_sharding); DO(st->torch.known); DO(st->torch.other); DO(st->torch.is_watched); DO(st->raw_by_key); \
    DO(st->torch.writing); DO(st->torch.record); DO(st->torch.are_aliases); DO(st->torch.raise_version); \
    DO(st->torch.forward); DO(st->torch.level_name); \
    DO(st->end_name); DO(st->not_entered_name); \
    DO(st->keys_name); DO(st->device_name); DO(st->sharding_name); DO(st->repr_name); DO(st->grad_name); DO(st->missing_name); \
    DO(st->dynamic_name); DO(st->object_name); DO(st->class_name); DO(st->abstract); DO(st->abstract_token); DO(st->observed_type); DO(st->handle_type); DO(st->runtime_keys); DO(st->said); \
    DO(st->observer_failed); DO(st->observer_succeeded); DO(st->observed_ended); DO(st->by_call); DO(st->by_redispatch);
/* clang-format on */

static int module_traverse(PyObject *m, visitproc visit, void *arg) {
    struct state *st = PyModule_GetState(m);
    EACH_OBJECT(Py_VISIT)
    for (int i = 0; i < QUICK; i++) {
        Py_VISIT(st->quick[i].type);
        Py_VISIT(st->quick[i].given);
    }
    Py_VISIT(atomic_load(&st->torch.ask));
    Py_VISIT(atomic_load(&st->observers));
    return 0;
}

/* The interpreter ends: from now on calls, which only finalizers can make, are refused. */
static int module_clear(PyObject *m) {
    struct state *st = PyModule_GetState(m);
    atomic_store(&st->off, UINT64_MAX);
    atomic_fetch_add(&st->epoch, 1);
    types_changed(st);
    EACH_OBJECT(Py_CLEAR)
    for (int i = 0; i < QUICK; i++) {
        Py_CLEAR(st->quick[i].type);
        Py_CLEAR(st->quick[i].given);
    }
    Py_XDECREF(atomic_exchange(&st->torch.ask, NULL));
    Py_XDECREF(atomic_exchange(&st->observers, NULL));
    return 0;
}

static void module_free(void *m) {
    module_clear(m);
    readers_free(PyModule_GetState(m));
}

static int add_type(PyObject *m, PyTypeObject **place, PyType_Spec *spec, int is_public) {
    *place = (PyTypeObject *)PyType_FromModuleAndSpec(m, spec, NULL);
    return *place ? is_public ? PyModule_AddType(m, *place) : 0 : -1;
}

static int module_exec(PyObject *m) {
    struct state *st = PyModule_GetState(m);
    if (readers_make(st)) return -1;
    if (add_type(m, &st->operator_type, &operator_spec, 1) ||
        add_type(m, &st->packet_type, &packet_spec, 1) ||
        add_type(m, &st->route_type, &route_spec, 0) ||
        add_type(m, &st->names_type, &names_spec, 1) ||
        add_type(m, &st->shape_type, &shape_spec, 1) ||
        add_type(m, &st->view_type, &view_spec, 1) || add_type(m, &st->plan_type, &plan_spec, 0) ||
        add_type(m, &st->cell_type, &cell_spec, 1) || add_type(m, &st->sets_type, &sets_spec, 0) ||
        add_type(m, &st->guard_type, &guard_spec, 1) ||
        add_type(m, &st->stack_type, &stack_spec, 1) || handlers_add_local(m) ||
        add_type(m, &st->forward_type, &forward_spec, 1) ||
        add_type(m, &st->unshared_type, &unshared_spec, 1) ||
        add_type(m, &st->steps_type, &steps_spec, 1))
        return -1;
    st->types_epoch = 2; /* nothing was remembered under 0 */
    st->end_name = PyUnicode_InternFromString("end");
    st->cuda_name = PyUnicode_InternFromString("__cuda_array_interface__");
    st->array_name = PyUnicode_InternFromString("__array_interface__");
    st->base_name = PyUnicode_InternFromString("base");
    st->guards_name = PyUnicode_InternFromString("_guards");
    st->handler_name = PyUnicode_InternFromString("__md_dispatch__");
    st->not_entered_name = PyUnicode_InternFromString("_not_entered");
    st->keys_name = PyUnicode_InternFromString("__dispatch_keys__");
    st->device_name = PyUnicode_InternFromString("__dlpack_device__");
    st->sharding_name = PyUnicode_InternFromString("sharding");
    st->raw_by_sharding = PyDict_New();
    st->repr_name = PyUnicode_InternFromString("raw_repr");
    st->grad_name = PyUnicode_InternFromString("requires_grad");
    st->missing_name = PyUnicode_InternFromString("__missing__");
    st->dynamic_name = PyUnicode_InternFromString("is_dynamic_size");
    st->object_name = PyUnicode_InternFromString("__md_object__");
    st->class_name = PyUnicode_InternFromString("__class__");
    st->by_call = PyUnicode_InternFromString("call");
    st->by_redispatch = PyUnicode_InternFromString("redispatch");
    st->raw_by_name = PyDict_New();
    st->raw_by_key = PyDict_New();
    if (!(st->dynamic_name && st->missing_name && st->end_name && st->handler_name &&
          st->cuda_name && st->array_name && st->base_name && st->guards_name &&
          st->not_entered_name && st->raw_by_key && st->keys_name && st->device_name && st->sharding_name && st->raw_by_sharding &&
          st->repr_name && st->grad_name && st->by_call && st->by_redispatch && st->raw_by_name &&
          st->object_name && st->class_name))
        return -1;
    PyObject *abc = PyImport_ImportModule("abc");
    st->abstract = abc ? (PyTypeObject *)PyObject_GetAttrString(abc, "ABCMeta") : NULL;
    st->abstract_token = st->abstract ? PyObject_GetAttrString(abc, "get_cache_token") : NULL;
    Py_XDECREF(abc);
    return st->abstract_token ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_MOD_PER_INTERPRETER_GIL_SUPPORTED
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

struct PyModuleDef call_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mdispatch.facts.native._call",
    .m_doc = "Calls of operators, and what they are kept in. Use mdispatch, not this.",
    .m_size = sizeof(struct state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__call(void) {
    return PyModuleDef_Init(&call_module);
}
