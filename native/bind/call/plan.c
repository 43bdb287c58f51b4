/* plan.c - the types behind the hot path: they keep for the next call what one call has found out.
 *
 *   Shape   what calls need of a schema: which values its arguments and results take as they are
 *   View    keeps a registry's memory mapped
 *   Plan    what calls need of one version of an operator's facts: shape, masks, targets
 *   Cell    holds an operator's plan; all handles of the operator share it
 *
 * A plan is current while three numbers are unchanged: the operator's version in the registry, the
 * epoch of the interpreter (raised by fallbacks, by observers and when a registry is closed), and
 * the generation of the handle. A change of one operator's callables clears its cell. A plan is
 * never changed: only targets are added to it, each when a call first reaches it.
 */
#include "state.h"

static int fail(const char *what) {
    PyErr_SetString(PyExc_TypeError, what);
    return -1;
}

/* --- Shape ------------------------------------------------------------------------------------ */

static void take_free(struct take *t) {
    for (Py_ssize_t i = 0; i < t->inners; i++) take_free(&t->inner[i]);
    PyMem_Free(t->inner);
    Py_XDECREF(t->exact);
    Py_XDECREF(t->values);
}

static int take_traverse(const struct take *t, visitproc visit, void *arg) {
    Py_VISIT(t->exact);
    Py_VISIT(t->values);
    for (Py_ssize_t i = 0; i < t->inners; i++) {
        int stop = take_traverse(&t->inner[i], visit, arg);
        if (stop) return stop;
    }
    return 0;
}

/* (kind, the class, the values of LITERAL or None, None fits, size, (inner takes)) */
static int take_from(struct take *t, PyObject *tuple) {
    PyObject *exact, *inner;
    int kind, none_fits;
    Py_ssize_t size;
    if (!PyTuple_Check(tuple)) return fail("a tuple is needed");
    if (!PyArg_ParseTuple(tuple, "iOpnO!", &kind, &exact, &none_fits, &size, &PyTuple_Type, &inner))
        return -1;
    Py_ssize_t inners = PyTuple_GET_SIZE(inner);
    bool is_exact = kind == EXACT || kind == SIZE;
    if (kind < OTHER || kind > ONE_OF || size < 0 || (kind == LIST && inners != 1) ||
        (kind == DICT && inners != 2) || (is_exact || kind == CLASS) != PyType_Check(exact) ||
        (kind == LITERAL) != PyTuple_Check(exact))
        return fail("no such kind");
    t->kind = (uint8_t)kind;
    t->none_fits = (uint8_t)none_fits;
    t->size = size;
    t->counts = UINT64_MAX;
    if (is_exact) t->exact = (PyTypeObject *)Py_NewRef(exact);
    if (kind == CLASS || kind == LITERAL) t->values = Py_NewRef(exact);
    t->inner = PyMem_Calloc((size_t)inners + 1, sizeof *t->inner);
    if (!t->inner) {
        PyErr_NoMemory();
        return -1;
    }
    for (; t->inners < inners; t->inners++) {
        if (take_from(&t->inner[t->inners], PyTuple_GET_ITEM(inner, t->inners))) {
            take_free(&t->inner[t->inners]); /* what it has got already */
            t->inner[t->inners] = (struct take){0};
            return -1;
        }
    }
    return 0;
}

/* (name, take, dispatches, has a default, default, the default is a list) */
static int argument_from(struct argument *a, PyObject *tuple) {
    PyObject *name, *take, *value;
    int dispatches, has_default, is_list;
    if (!PyTuple_Check(tuple)) return fail("a tuple is needed");
    if (!PyArg_ParseTuple(tuple, "UOppOp", &name, &take, &dispatches, &has_default, &value,
                          &is_list))
        return -1;
    if (is_list && !PyTuple_CheckExact(value)) return fail("the default of a list is a tuple");
    if (take_from(&a->take, take)) return -1;
    a->take.counts = dispatches ? UINT64_MAX : 0;
    a->is_list = (uint8_t)is_list;
    a->name = Py_NewRef(name);
    PyUnicode_InternInPlace(&a->name); /* as the names in calls are */
    if (has_default) a->value = Py_NewRef(value);
    return 0;
}

/* Shape(arguments, number of positional ones, results). With -1 of them Python makes all calls. */
static PyObject *shape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *arguments, *results;
    Py_ssize_t positional;
    if (!PyArg_ParseTuple(args, "O!nO!", &PyTuple_Type, &arguments, &positional, &PyTuple_Type,
                          &results))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(arguments), returns = PyTuple_GET_SIZE(results);
    if (positional < -1 || positional > n || n > MOST_ARGUMENTS) {
        fail("too many arguments");
        return NULL;
    }
    Shape *self = (Shape *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->arguments = PyMem_Calloc((size_t)n + 1, sizeof *self->arguments);
    self->results = PyMem_Calloc((size_t)returns + 1, sizeof *self->results);
    if (!self->arguments || !self->results) {
        PyErr_NoMemory();
        goto failed;
    }
    self->positional = positional;
    self->keyword_only = positional < 0 ? 0 : n - positional;
    self->returns = returns;
    self->is_plain = n == positional;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (argument_from(&self->arguments[i], PyTuple_GET_ITEM(arguments, i))) goto failed;
        if (is_composed(&self->arguments[i].take)) self->is_plain = 0;
    }
    for (Py_ssize_t i = 0; i < returns; i++) {
        if (take_from(&self->results[i], PyTuple_GET_ITEM(results, i))) goto failed;
    }
    if (self->keyword_only) {
        self->keywords = PyTuple_New(self->keyword_only);
        if (!self->keywords) goto failed;
        for (Py_ssize_t i = positional; i < n; i++)
            PyTuple_SET_ITEM(self->keywords, i - positional, Py_NewRef(self->arguments[i].name));
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static int shape_traverse(Shape *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (Py_ssize_t i = 0; self->arguments && i < self->positional + self->keyword_only; i++) {
        int stop = take_traverse(&self->arguments[i].take, visit, arg);
        if (stop) return stop;
        Py_VISIT(self->arguments[i].value);
    }
    for (Py_ssize_t i = 0; self->results && i < self->returns; i++) {
        int stop = take_traverse(&self->results[i], visit, arg);
        if (stop) return stop;
    }
    return 0;
}

static void shape_dealloc(Shape *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; self->arguments && i < self->positional + self->keyword_only; i++) {
        take_free(&self->arguments[i].take);
        Py_XDECREF(self->arguments[i].name);
        Py_XDECREF(self->arguments[i].value);
    }
    for (Py_ssize_t i = 0; self->results && i < self->returns; i++) take_free(&self->results[i]);
    PyMem_Free(self->arguments);
    PyMem_Free(self->results);
    Py_XDECREF(self->keywords);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject *shape_positional(const Shape *shape, PyObject *const *values) {
    PyObject *made = PyTuple_New(shape->positional);
    for (Py_ssize_t i = 0; made && i < shape->positional; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(values[i]));
    return made;
}

PyObject *shape_keywords(const Shape *shape, PyObject *const *values) {
    PyObject *made = PyDict_New();
    for (Py_ssize_t i = 0; made && i < shape->keyword_only; i++) {
        if (PyDict_SetItem(made, PyTuple_GET_ITEM(shape->keywords, i),
                           values[shape->positional + i]))
            Py_CLEAR(made);
    }
    return made;
}

static PyType_Slot shape_slots[] = {
    {Py_tp_new, shape_new},
    {Py_tp_traverse, shape_traverse},
    {Py_tp_dealloc, shape_dealloc},
    {0, NULL},
};
PyType_Spec shape_spec = {"mdispatch.facts.native._call.Shape", sizeof(Shape), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, shape_slots};

/* --- View ------------------------------------------------------------------------------------- */

/* View(handle). Raises ValueError when the registry is closed. */
static PyObject *view_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    unsigned long long registry;
    struct state *st = state_of(type);
    if (!st || !PyArg_ParseTuple(args, "K", &registry)) return NULL;
    View *self = (View *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->state = st;
    self->registry = registry;
    int status = md_hold(registry, &self->held);
    if (status == 0) return (PyObject *)self;
    Py_DECREF(self);
    PyErr_SetString(status == MD_ESYS - ENOMEM ? PyExc_MemoryError : PyExc_ValueError,
                    md_status_text(status));
    return NULL;
}

static void view_dealloc(View *self) {
    PyTypeObject *type = Py_TYPE(self);
    md_let_go(self->held);
    type->tp_free(self);
    Py_DECREF(type);
}

/* This interpreter has learned of, or forgotten, an overload of the registry. */
static PyObject *view_touch(View *self, PyObject *ignored) {
    atomic_fetch_add(&self->touched, 1);
    Py_RETURN_NONE;
}

static PyMethodDef view_methods[] = {
    {"touch", (PyCFunction)view_touch, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot view_slots[] = {
    {Py_tp_new, view_new},
    {Py_tp_dealloc, view_dealloc},
    {Py_tp_methods, view_methods},
    {0, NULL},
};
PyType_Spec view_spec = {"mdispatch.facts.native._call.View", sizeof(View), 0, Py_TPFLAGS_DEFAULT,
                         view_slots};

/* --- Plan ------------------------------------------------------------------------------------- */

void choice_free(struct choice *choice) {
    if (choice) Py_XDECREF(choice->plan);
    PyMem_Free(choice);
}

static struct choices *choices_make(const Shape *shape) {
    struct choices *c = PyMem_Calloc(1, sizeof *c);
    if (!c) return NULL;
    int lists = 0;
    for (Py_ssize_t i = 0; i < shape->positional + shape->keyword_only; i++) {
        const struct take *take = &shape->arguments[i].take;
        if (take->counts && (take->kind == TENSOR || take->kind == LIST)) {
            c->tensors[c->n_tensors++] = (uint8_t)i;
            lists += take->kind == LIST;
        } else if (take->counts) { /* of an operator without tensors */
            c->tensors[c->n_tensors++] = (uint8_t)i;
            c->is_plain = 1;
        }
    }
    c->are_few = !lists && (c->n_tensors == 1 || c->n_tensors == 2);
    return c;
}

static int choices_traverse(const struct choices *c, visitproc visit, void *arg) {
    for (int i = 0; c && i < PLACES_OF_CHOICES; i++) {
        struct choice *choice = atomic_load_explicit(&c->at[i], memory_order_relaxed);
        if (choice) Py_VISIT(choice->plan);
    }
    return 0;
}

static void choices_free(struct choices *c) {
    for (int i = 0; c && i < PLACES_OF_CHOICES; i++)
        choice_free(atomic_load_explicit(&c->at[i], memory_order_relaxed));
    PyMem_Free(c);
}

static int plan_traverse(Plan *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->view);
    Py_VISIT(self->shape);
    Py_VISIT(self->table);
    Py_VISIT(self->torch);
    Py_VISIT(self->signature);
    int found = choices_traverse(self->choices, visit, arg);
    if (found) return found;
    for (int i = 0; i < self->used; i++) {
        Py_VISIT(self->targets[i].function);
        Py_VISIT(self->targets[i].kernel);
        Py_VISIT(self->targets[i].key_set);
        Py_VISIT(atomic_load_explicit(&self->targets[i].said, memory_order_relaxed));
    }
    return 0;
}

static void plan_dealloc(Plan *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < self->used; i++) {
        Py_XDECREF(self->targets[i].function);
        Py_XDECREF(self->targets[i].kernel);
        Py_XDECREF(self->targets[i].key_set);
        Py_XDECREF(atomic_load_explicit(&self->targets[i].said, memory_order_relaxed));
    }
    Py_XDECREF(self->view);
    Py_XDECREF(self->shape);
    Py_XDECREF(self->table);
    Py_XDECREF(self->torch);
    Py_XDECREF(self->signature);
    PyMem_Free(self->masks);
    choices_free(self->choices);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot plan_slots[] = {
    {Py_tp_traverse, plan_traverse},
    {Py_tp_dealloc, plan_dealloc},
    {0, NULL},
};
/* Without tp_clear, since calls use plans: the garbage collector breaks cycles at the cell. */
PyType_Spec plan_spec = {
    "mdispatch.facts.native._call.Plan", offsetof(Plan, targets), sizeof(struct target),
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, plan_slots};

/* Asks Python for the target of an entry of the table; NULL, perhaps with an error, when Python has
 * to make the call. */
static struct target *target_ask(struct state *st, Plan *plan, unsigned index) {
    PyObject *number = PyLong_FromLong((long)index), *function, *kernel, *answer = NULL;
    int with_operator, with_key_set;
    struct target *found = NULL;
    if (number) answer = PyObject_CallFunctionObjArgs(st->target, plan->table, number, NULL);
    Py_XDECREF(number);
    if (answer && PyTuple_CheckExact(answer) &&
        PyArg_ParseTuple(answer, "OOpp", &function, &kernel, &with_operator, &with_key_set)) {
        lock(st);
        int at = atomic_load(&plan->at[index]);
        if (at) { /* another thread or a finalizer has added it meanwhile */
            found = at == NO_TARGET ? NULL : &plan->targets[at - 1];
        } else if (plan->used < plan->most) {
            found = &plan->targets[plan->used++];
            *found = (struct target){.function = Py_NewRef(function),
                                     .kernel = Py_NewRef(kernel),
                                     .with_operator = (uint8_t)with_operator,
                                     .with_key_set = (uint8_t)with_key_set};
            atomic_store_explicit(&plan->at[index], plan->used, memory_order_release);
        }
        unlock(st);
    } else if (answer) {
        atomic_store_explicit(&plan->at[index], NO_TARGET, memory_order_relaxed);
    }
    Py_XDECREF(answer);
    forget_own(st);
    return found;
}

struct target *target_find(struct state *st, Plan *plan, unsigned index) {
    return atomic_load_explicit(&plan->at[index], memory_order_acquire) == NO_TARGET
               ? NULL
               : target_ask(st, plan, index);
}

/* --- Cell ------------------------------------------------------------------------------------- */

static PyObject *cell_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    struct state *st = state_of(type);
    Cell *self = st ? (Cell *)type->tp_alloc(type, 0) : NULL;
    if (self) self->state = st;
    return (PyObject *)self;
}

static int cell_traverse(Cell *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Plan *plan = atomic_load_explicit(&self->plan, memory_order_relaxed);
    Py_VISIT(plan);
    return 0;
}

static int cell_tp_clear(Cell *self) {
    retire(self->state, (PyObject *)atomic_exchange(&self->plan, NULL));
    return 0;
}

static void cell_dealloc(Cell *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(atomic_exchange(&self->plan, NULL)); /* without handles there are no calls */
    type->tp_free(self);
    Py_DECREF(type);
}

void cell_drop(Cell *self) {
    atomic_fetch_add(&self->changes, 1);
    cell_tp_clear(self);
}

/* Drops the plan. A plan that was begun before this is not kept, either. */
static PyObject *cell_clear(Cell *self, PyObject *ignored) {
    cell_drop(self);
    Py_RETURN_NONE;
}

/* ruled(): the operator has got a rule for a class. From now on Python makes the calls that modes
 * and types answer. */
static PyObject *cell_ruled(Cell *self, PyObject *ignored) {
    atomic_store(&self->has_rules, 1);
    Py_RETURN_NONE;
}

/* begin(): what install() has to be given. Python calls it before it reads the facts. */
static PyObject *cell_begin(Cell *self, PyObject *ignored) {
    return Py_BuildValue("(KK)", (unsigned long long)peek(&self->changes),
                         (unsigned long long)peek(&self->state->epoch));
}

/* masks: None, or one int per backend */
static int masks_from(Plan *plan, PyObject *masks) {
    if (masks == Py_None) return 0;
    if (!PyTuple_CheckExact(masks) || PyTuple_GET_SIZE(masks) != BACKENDS)
        return fail("one mask per backend is needed");
    plan->masks = PyMem_Malloc(BACKENDS * sizeof *plan->masks);
    if (!plan->masks) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < BACKENDS; i++) {
        plan->masks[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(masks, i));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

Plan *plan_narrowed(struct state *st, const Plan *from, PyObject *table, uint64_t mask,
                    PyObject *masks, int most) {
    if (most < 0 || most >= NO_TARGET) return NULL;
    Plan *plan = (Plan *)st->plan_type->tp_alloc(st->plan_type, most);
    if (!plan) return NULL;
    plan->word = from->word;
    plan->version = from->version;
    plan->epoch = from->epoch;
    plan->generation = from->generation;
    plan->mask = mask;
    plan->view = (View *)Py_NewRef(from->view);
    plan->shape = (Shape *)Py_NewRef(from->shape);
    plan->table = Py_NewRef(table);
    plan->signature = Py_NewRef(from->signature);
    plan->most = (uint8_t)most;
    if (masks_from(plan, masks)) Py_CLEAR(plan);
    return plan;
}

/* install(begun, view, node, version, generation, mask, masks, shape, table, signature, most,
 * gate, written, is by type, PyTorch's operator or None) */
static PyObject *cell_install(Cell *self, PyObject *args) {
    unsigned long long changes, epoch, node, version, generation, mask, written;
    PyObject *view, *masks, *shape, *table, *signature, *torch;
    struct state *st = self->state;
    const uint64_t *word;
    int most, gate, is_by_type;
    if (!PyArg_ParseTuple(args, "(KK)O!KKKKOO!OOiiKpO", &changes, &epoch, st->view_type, &view, &node,
                          &version, &generation, &mask, &masks, st->shape_type, &shape, &table,
                          &signature, &most, &gate, &written, &is_by_type, &torch))
        return NULL;
    if (most < 0 || most >= NO_TARGET || md_word(((View *)view)->registry, node, &word))
        Py_RETURN_NONE; /* the registry was closed meanwhile */
    /* Calls may be turned off at any time. If that came before this line, it is seen here; if it
     * comes later, it raises the epoch above the one that the plan was begun with. */
    if (atomic_load(&st->off)) Py_RETURN_NONE;
    Plan *plan = (Plan *)st->plan_type->tp_alloc(st->plan_type, most);
    if (!plan) return NULL;
    plan->word = (const a64 *)word;
    plan->version = version;
    plan->epoch = epoch;
    plan->generation = generation;
    plan->mask = mask;
    plan->view = (View *)Py_NewRef(view);
    plan->shape = (Shape *)Py_NewRef(shape);
    plan->table = Py_NewRef(table);
    plan->signature = Py_NewRef(signature);
    plan->most = (uint8_t)most;
    plan->gate = (uint8_t)gate;
    plan->written = written;
    plan->torch = torch == Py_None ? NULL : Py_NewRef(torch);
    Py_ssize_t positional = plan->shape->positional;
    int is_too_long = plan->shape->keyword_only || positional > REMEMBERED;
    plan->remembered = is_too_long ? -1 : positional;
    if (is_by_type) plan->choices = choices_make(plan->shape);
    if (is_by_type && !plan->choices) PyErr_NoMemory();
    if (PyErr_Occurred() || masks_from(plan, masks)) {
        Py_DECREF(plan);
        return NULL;
    }
    Plan *before = atomic_exchange(&self->plan, plan);
    /* If the cell was cleared meanwhile, the plan may be out of date without a sign of it. */
    if (peek(&self->changes) != changes) cell_tp_clear(self);
    retire(st, (PyObject *)before);
    Py_RETURN_NONE;
}

static PyMethodDef cell_methods[] = {
    {"begin", (PyCFunction)cell_begin, METH_NOARGS, NULL},
    {"clear", (PyCFunction)cell_clear, METH_NOARGS, NULL},
    {"install", (PyCFunction)cell_install, METH_VARARGS, NULL},
    {"ruled", (PyCFunction)cell_ruled, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot cell_slots[] = {
    {Py_tp_new, cell_new},         {Py_tp_traverse, cell_traverse}, {Py_tp_clear, cell_tp_clear},
    {Py_tp_dealloc, cell_dealloc}, {Py_tp_methods, cell_methods},   {0, NULL},
};
PyType_Spec cell_spec = {"mdispatch.facts.native._call.Cell", sizeof(Cell), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, cell_slots};
