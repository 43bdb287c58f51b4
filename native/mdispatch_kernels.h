/* mdispatch_kernels.h - kernels in C, the libraries that bring them, and the programs that embed
 * Python and register their own.
 *
 * A KERNEL is a function of this type. It gets its arguments as boxed values, in the order of the
 * operator's schema with keyword-only ones last, and writes one value per return of the schema:
 *
 *     static int total(md_call *call, const md_value *args, size_t n_args, md_value *results,
 *                      size_t n_results) {
 *         const md_buffer *x = args[0].as.buffer;
 *         if (x->code != MD_DTYPE_FLOAT || x->bits != 64)
 *             return call->fail(call, MD_ERROR_TYPE, "float64 is wanted, not %d bits", x->bits);
 *         ...
 *         results[0] = md_of_float(sum);
 *         return 0;
 *     }
 *
 * It returns 0, or what call->fail() returns: then the caller gets an exception with that text.
 * Nothing else may leave it: no longjmp, no C++ exception.
 *
 * A LIBRARY is a shared object with one block. `ops.load_library("libshop.so")` runs it once per
 * process; every interpreter of that process can call its kernels then. It needs this header only,
 * and is not linked to anything:
 *
 *     MDISPATCH_LIBRARY(shop, m) {
 *         md_def(m, "total(Tensor x) -> float");
 *         md_impl(m, "total", MD_KEY_CPU, total);
 *     }
 *
 * A CLASS of objects in C, which interpreters share by handles, is registered with md_class().
 *
 * CAVEATS
 *
 * - Values belong to the call. What is to outlive it must be copied. Memory for results comes from
 *   call->alloc() and call->buffer(), and goes with the call.
 * - A kernel is called with the GIL of the interpreter that calls, or without one where it was
 *   registered with MD_RELEASE_GIL; interpreters with a GIL of their own, and free-threaded ones,
 *   call it at the same time in any case. It must not use the C API of Python unless it knows that
 *   the interpreter's thread state is attached.
 * - A pointer is a fact of its process. What interpreters and processes share is the kernel's label
 *   ("c:libshop.so:total"); each process has a table of its own from labels to functions. So no
 *   process can hand another one a pointer, or get one.
 * - After fork() the child has its parent's table, and the same functions at the same addresses.
 * - Libraries are never unloaded: their functions may be running.
 *
 * HOSTS
 *
 * A program that embeds Python joins as MD_HOST (mdispatch.h) before or after it starts Python, and
 * registers with md_library_open(), md_def(), md_impl() and md_class() for all its interpreters. It
 * links to libmdispatch: `python -m mdispatch.config --cflags --libs`, or pkg-config. See
 * docs/embedding.md.
 *
 * The block between the two marker lines is plain C that cffi's parser reads as it stands, after
 * that of mdispatch.h.
 */
#ifndef MDISPATCH_KERNELS_H
#define MDISPATCH_KERNELS_H

#include "mdispatch.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* kernels begin */

/* A library is refused that was made for another ABI. The minor number is raised for members that are
 * added at the end of md_call or of md_library: who uses them looks at its `minor` first. */
enum { MD_KERNEL_ABI = 1, MD_KERNEL_MINOR = 2 };

/* The dispatch keys, with their numbers. */
/* clang-format off */
typedef enum md_key {
    MD_KEY_Undefined = 0, MD_KEY_Dense = 1, MD_KEY_FPGA = 2, MD_KEY_Vulkan = 3,
    MD_KEY_Metal = 4, MD_KEY_Quantized = 5, MD_KEY_CustomRNGKeyId = 6, MD_KEY_MkldnnCPU = 7,
    MD_KEY_Sparse = 8, MD_KEY_SparseCsr = 9, MD_KEY_NestedTensor = 10,
    MD_KEY_BackendSelect = 11, MD_KEY_Fake = 12, MD_KEY_Python = 13,
    MD_KEY_FuncTorchDynamicLayerBackMode = 14, MD_KEY_Functionalize = 15, MD_KEY_Conjugate = 16,
    MD_KEY_Negative = 17, MD_KEY_ZeroTensor = 18, MD_KEY_ADInplaceOrView = 19,
    MD_KEY_AutogradOther = 20, MD_KEY_AutogradFunctionality = 21,
    MD_KEY_AutogradNestedTensor = 22, MD_KEY_Tracer = 23, MD_KEY_AutocastCPU = 24,
    MD_KEY_AutocastMTIA = 25, MD_KEY_AutocastMAIA = 26, MD_KEY_AutocastXPU = 27,
    MD_KEY_AutocastIPU = 28, MD_KEY_AutocastHPU = 29, MD_KEY_AutocastXLA = 30,
    MD_KEY_AutocastMPS = 31, MD_KEY_AutocastCUDA = 32, MD_KEY_AutocastPrivateUse1 = 33,
    MD_KEY_FuncTorchBatched = 34, MD_KEY_BatchedNestedTensor = 35,
    MD_KEY_FuncTorchVmapMode = 36, MD_KEY_Batched = 37, MD_KEY_VmapMode = 38,
    MD_KEY_FuncTorchGradWrapper = 39, MD_KEY_DeferredInit = 40, MD_KEY_PythonTLSSnapshot = 41,
    MD_KEY_FuncTorchDynamicLayerFrontMode = 42, MD_KEY_TESTING_ONLY_GenericWrapper = 43,
    MD_KEY_TESTING_ONLY_GenericMode = 44, MD_KEY_PreDispatch = 45, MD_KEY_PythonDispatcher = 46,
    MD_KEY_CPU = 49, MD_KEY_CUDA = 50, MD_KEY_HIP = 51, MD_KEY_XLA = 52, MD_KEY_MPS = 53,
    MD_KEY_IPU = 54, MD_KEY_XPU = 55, MD_KEY_HPU = 56, MD_KEY_VE = 57, MD_KEY_Lazy = 58,
    MD_KEY_MTIA = 59, MD_KEY_MAIA = 60, MD_KEY_PrivateUse1 = 61, MD_KEY_PrivateUse2 = 62,
    MD_KEY_PrivateUse3 = 63, MD_KEY_Meta = 64, MD_KEY_QuantizedCPU = 66,
    MD_KEY_QuantizedCUDA = 67, MD_KEY_QuantizedHIP = 68, MD_KEY_QuantizedXLA = 69,
    MD_KEY_QuantizedMPS = 70, MD_KEY_QuantizedIPU = 71, MD_KEY_QuantizedXPU = 72,
    MD_KEY_QuantizedHPU = 73, MD_KEY_QuantizedVE = 74, MD_KEY_QuantizedLazy = 75,
    MD_KEY_QuantizedMTIA = 76, MD_KEY_QuantizedMAIA = 77, MD_KEY_QuantizedPrivateUse1 = 78,
    MD_KEY_QuantizedPrivateUse2 = 79, MD_KEY_QuantizedPrivateUse3 = 80,
    MD_KEY_QuantizedMeta = 81, MD_KEY_SparseCPU = 83, MD_KEY_SparseCUDA = 84,
    MD_KEY_SparseHIP = 85, MD_KEY_SparseXLA = 86, MD_KEY_SparseMPS = 87, MD_KEY_SparseIPU = 88,
    MD_KEY_SparseXPU = 89, MD_KEY_SparseHPU = 90, MD_KEY_SparseVE = 91, MD_KEY_SparseLazy = 92,
    MD_KEY_SparseMTIA = 93, MD_KEY_SparseMAIA = 94, MD_KEY_SparsePrivateUse1 = 95,
    MD_KEY_SparsePrivateUse2 = 96, MD_KEY_SparsePrivateUse3 = 97, MD_KEY_SparseMeta = 98,
    MD_KEY_SparseCsrCPU = 100, MD_KEY_SparseCsrCUDA = 101, MD_KEY_SparseCsrHIP = 102,
    MD_KEY_SparseCsrXLA = 103, MD_KEY_SparseCsrMPS = 104, MD_KEY_SparseCsrIPU = 105,
    MD_KEY_SparseCsrXPU = 106, MD_KEY_SparseCsrHPU = 107, MD_KEY_SparseCsrVE = 108,
    MD_KEY_SparseCsrLazy = 109, MD_KEY_SparseCsrMTIA = 110, MD_KEY_SparseCsrMAIA = 111,
    MD_KEY_SparseCsrPrivateUse1 = 112, MD_KEY_SparseCsrPrivateUse2 = 113,
    MD_KEY_SparseCsrPrivateUse3 = 114, MD_KEY_SparseCsrMeta = 115, MD_KEY_NestedTensorCPU = 117,
    MD_KEY_NestedTensorCUDA = 118, MD_KEY_NestedTensorHIP = 119, MD_KEY_NestedTensorXLA = 120,
    MD_KEY_NestedTensorMPS = 121, MD_KEY_NestedTensorIPU = 122, MD_KEY_NestedTensorXPU = 123,
    MD_KEY_NestedTensorHPU = 124, MD_KEY_NestedTensorVE = 125, MD_KEY_NestedTensorLazy = 126,
    MD_KEY_NestedTensorMTIA = 127, MD_KEY_NestedTensorMAIA = 128,
    MD_KEY_NestedTensorPrivateUse1 = 129, MD_KEY_NestedTensorPrivateUse2 = 130,
    MD_KEY_NestedTensorPrivateUse3 = 131, MD_KEY_NestedTensorMeta = 132,
    MD_KEY_AutogradCPU = 134, MD_KEY_AutogradCUDA = 135, MD_KEY_AutogradHIP = 136,
    MD_KEY_AutogradXLA = 137, MD_KEY_AutogradMPS = 138, MD_KEY_AutogradIPU = 139,
    MD_KEY_AutogradXPU = 140, MD_KEY_AutogradHPU = 141, MD_KEY_AutogradVE = 142,
    MD_KEY_AutogradLazy = 143, MD_KEY_AutogradMTIA = 144, MD_KEY_AutogradMAIA = 145,
    MD_KEY_AutogradPrivateUse1 = 146, MD_KEY_AutogradPrivateUse2 = 147,
    MD_KEY_AutogradPrivateUse3 = 148, MD_KEY_AutogradMeta = 149, MD_KEY_Autograd = 150,
    MD_KEY_CompositeImplicitAutograd = 151, MD_KEY_FuncTorchBatchedDecomposition = 152,
    MD_KEY_CompositeImplicitAutogradNestedTensor = 153, MD_KEY_CompositeExplicitAutograd = 154,
    MD_KEY_CompositeExplicitAutogradNonFunctional = 155
} md_key;
/* clang-format on */

typedef enum md_value_kind {
    MD_NONE = 0,
    MD_BOOL = 1,   /* as.integer, 0 or 1 */
    MD_INT = 2,    /* as.integer */
    MD_FLOAT = 3,  /* as.real */
    MD_STR = 4,    /* as.text: UTF-8 */
    MD_BYTES = 5,  /* as.text */
    MD_BUFFER = 6, /* as.buffer: what a schema calls a Tensor */
    MD_LIST = 7,   /* as.list; a tuple, too */
    MD_OBJECT = 8  /* as.object: what a schema calls by the name of a class, "shop.Tokenizer" */
} md_value_kind;

/* The element types of buffers, with DLPack's numbers. */
typedef enum md_dtype {
    MD_DTYPE_INT = 0,
    MD_DTYPE_UINT = 1,
    MD_DTYPE_FLOAT = 2,
    MD_DTYPE_COMPLEX = 5,
    MD_DTYPE_BOOL = 6
} md_dtype;

enum { MD_DEVICE_CPU = 1 };                   /* the only one so far; with DLPack's number */
enum { MD_READ_ONLY = 1 };                    /* flag of a buffer */
enum { MD_MAX_NDIM = 64, MD_MAX_DEPTH = 32 }; /* dimensions of a buffer, lists in lists */

typedef struct md_buffer {
    void *data;
    const int64_t *shape;   /* ndim lengths */
    const int64_t *strides; /* ndim steps, in bytes */
    int32_t ndim;
    int32_t device;
    uint32_t code; /* md_dtype */
    uint32_t bits; /* of one element: 8 for bool, 128 for a complex of two doubles */
    uint32_t flags;
    uint32_t reserved;
} md_buffer;

typedef struct md_text {
    const char *data; /* what comes from Python is terminated, too */
    size_t size;      /* bytes */
} md_text;

/* An object that interpreters share by handles. It lasts until the last handle is gone. A kernel that
 * keeps an argument for longer than its call holds it, and lets it go once; both may be called on any
 * thread, with a GIL or without. */
typedef struct md_object md_object;
struct md_object {
    const char *class_name; /* "shop.Tokenizer"; "" for an object of no registered class */
    void *payload;          /* what call->object() was given; NULL for an object of Python */
    uint64_t number;
    void (*hold)(md_object *object);
    void (*let_go)(md_object *object);
};

typedef struct md_value md_value;

typedef struct md_items {
    md_value *items;
    size_t size;
} md_items;

typedef union md_any {
    int64_t integer;
    double real;
    md_text text;
    md_buffer *buffer;
    md_items list;
    md_object *object;
} md_any;

struct md_value {
    uint32_t kind; /* md_value_kind */
    uint32_t reserved;
    md_any as;
};

/* What is raised for a kernel that fails: a builtin exception, or mdispatch.errors.KernelError for
 * MD_ERROR_KERNEL and any other number that is not 0. */
typedef enum md_error {
    MD_ERROR_KERNEL = 1,
    MD_ERROR_VALUE = 2,
    MD_ERROR_TYPE = 3,
    MD_ERROR_INDEX = 4,
    MD_ERROR_MEMORY = 5,
    MD_ERROR_OVERFLOW = 6,
    MD_ERROR_ARITHMETIC = 7,
    MD_ERROR_NOT_IMPLEMENTED = 8,
    MD_ERROR_RAISED = 9 /* by an operator that the kernel has called: the caller gets that */
} md_error;

/* One call under way. */
typedef struct md_call md_call;
struct md_call {
    uint32_t abi;   /* MD_KERNEL_ABI of who calls */
    uint32_t minor; /* MD_KERNEL_MINOR of who calls: what is there of the members below */
    const char *op; /* the operator's full name */
    void *user;     /* what the kernel was registered with */
    /* Memory until the end of the call; NULL when there is none, with the error set. */
    void *(*alloc)(md_call *call, size_t bytes);
    /* A new buffer of zeros, in C order, to be a result: the caller gets its memory and no copy.
     * NULL for what is no buffer, or for want of memory, with the error set. */
    md_buffer *(*buffer)(md_call *call, int code, int bits, int ndim, const int64_t *shape);
    /* Notes what the caller will be told, and returns `error`. */
    int (*fail)(md_call *call, int error, const char *format, ...);
    /* From minor 1 on. */
    /* A new object of a class, "shop.Tokenizer", to be a result or an argument of call->call_op(). It
     * belongs to the call, which lets it go: hold it to keep it. `destroy` (may be NULL) is called with
     * the payload once, by whoever lets go last, on whichever thread. NULL for want of memory, with the
     * error set; then `destroy` is not called. */
    md_object *(*object)(md_call *call, const char *class_name, void *payload,
                         void (*destroy)(void *payload));
    /* See md_call_op(). */
    int (*call_op)(md_call *call, const char *op, const md_value *args, size_t n_args,
                   md_value *results, size_t n_results);
};

/* A buffer among the results is one of the arguments, which the caller gets as the object that it
 * gave, or one of call->buffer(). Results are none until they are set. */
typedef int (*md_kernel)(md_call *call, const md_value *args, size_t n_args, md_value *results,
                         size_t n_results);

enum { MD_RELEASE_GIL = 1 }; /* flag of a kernel */

/* A function with what belongs to it. `release`, where it is not NULL, is called with `user` once
 * nobody can call the kernel any more, from whichever thread notices; never where registering it
 * has failed. */
typedef struct md_kernel_spec {
    md_kernel function;
    void *user;
    void (*release)(void *user);
    uint32_t flags;
    uint32_t reserved;
} md_kernel_spec;

/* A method of a class: see MD_METHOD() below. */
typedef struct md_method {
    const char *schema; /* "find(str text) -> int": without `self`, which comes first */
    md_kernel_spec kernel;
    const char *label;
} md_method;

/* What a block registers with: see md_def() and the others below. The functions return 0 or a
 * negative md_status. After the first that fails the others do nothing: the library is refused. */
typedef struct md_library md_library;
struct md_library {
    uint32_t abi;
    uint32_t minor; /* MD_KERNEL_MINOR of who registers: what is there of the members below */
    int (*def)(md_library *m, const char *schema, const char *where);
    int (*impl)(md_library *m, const char *name, int32_t key, const md_kernel_spec *spec,
                const char *label, const char *where);
    int (*fail)(md_library *m, const char *text);
    /* From minor 2 on. See md_class(). */
    int (*add_class)(md_library *m, const char *name, const md_method *methods, size_t n_methods,
                     const char *where);
};

typedef enum md_library_kind { MD_DEF_LIBRARY = 1, MD_FRAGMENT = 2 } md_library_kind;

/* What a library exports under the name "mdispatch_library". */
typedef struct md_library_block {
    uint32_t abi;
    uint32_t kind; /* md_library_kind */
    const char *ns;
    const char *where;
    void (*run)(md_library *m);
} md_library_block;

/* Whether a program has joined as MD_HOST in this process, or in one of which it is a fork. */
int md_has_host(void);

/* For a host: opens a library that registers at once, for all interpreters of the process and, what
 * others can verify, for other processes. `ns` is its namespace, `program` a word for the labels of
 * its kernels. The member is one that registers: that of MD_HOST, say.
 *
 * Schemas are registered as they are written, so they must be in canonical form, which
 * `python -m mdispatch.config --schema TEXT` prints; Python reads them when the operator is called
 * first. MD_EEXIST when the namespace has a DEF library; else as md_register. */
int md_library_open(md_registry reg, uint64_t member, const char *ns, uint32_t kind,
                    const char *program, const char *where, md_library **out);

/* The first failure, 0 when there is none; `text` (may be NULL) receives it in words. */
int md_library_status(const md_library *m, char *text, size_t cap);

/* Strikes out what the library has registered, the newest first, and forgets its kernels; a call
 * that is under way goes on, and `release` comes after it. NULL is nothing. The status of the first
 * thing that could not be struck out; MD_ECLOSED when the registry was closed or its member had left
 * before: then nothing was left to strike out. */
int md_library_close(md_library *m);

/* The process's table, from labels to functions. An entry is put before the fact with its label is
 * registered, and dropped after that is struck out; put again, it has to be dropped again. Of
 * several with one label the newest is in effect. MD_EINVAL, MD_ESYS (no memory), MD_ECLOSED. */
int md_kernel_put(md_registry reg, const char *name, int32_t key, const char *label,
                  const md_kernel_spec *spec);

/* MD_ENOENT when it is not there. */
int md_kernel_drop(md_registry reg, const char *name, int32_t key, const char *label,
                   const md_kernel_spec *spec);

/* A kernel that is held: its function stays good until it is let go. */
typedef struct md_held_kernel md_held_kernel;
int md_kernel_hold(md_registry reg, const char *name, int32_t key, const char *label,
                   md_held_kernel **out);
const md_kernel_spec *md_kernel_spec_of(const md_held_kernel *held);
void md_kernel_let_go(md_held_kernel *held);

/* Notes a copy of the definition for which the function of a label was registered or verified, in
 * the caller's words. The label alone does not tell two builds of a library from each other, and who
 * has not loaded it asks for this: another interpreter, the child of a fork. MD_EINVAL, MD_ESYS (no
 * memory), MD_ENOENT. */
int md_kernel_bind(md_registry reg, const char *name, int32_t key, const char *label,
                   const char *definition);

/* A copy of that, to be freed; NULL where none was noted, or without memory for it. */
char *md_kernel_definition(md_registry reg, const char *name, int32_t key, const char *label);

/* One line of a block that was run. A class comes before the definitions and kernels of its methods. */
typedef struct md_loaded_item {
    uint32_t kind; /* MD_DEF, MD_IMPL or MD_CLASS */
    int32_t key;
    const char *text;  /* the schema as it was written, or the name with its namespace */
    const char *label; /* of the kernel; of a class the text of its fact; or "" */
    const char *where;
    md_kernel_spec spec;
} md_loaded_item;

typedef struct md_loaded {
    uint32_t kind; /* md_library_kind */
    uint32_t reserved;
    const char *ns;
    const char *where;
    const md_loaded_item *items;
    size_t size;
} md_loaded;

/* Loads a shared object and runs its block, if this process has not done so: nothing is registered
 * by that, `out` has what it wants to be. It stays for the life of the process. On failure nothing
 * stays, and `text` receives the reason: MD_ENOENT (it cannot be loaded), MD_EFORMAT (it has no
 * block), MD_EVERSION (made for another MD_KERNEL_ABI), MD_EINVAL (the block failed, or it
 * loads a library itself), MD_ESYS. */
int md_load(const char *path, const md_loaded **out, char *text, size_t cap);

/* kernels end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

/* --- for blocks and hosts --- */

#define MD_WORDS_OF_(x) #x
#define MD_WORDS_OF(x) MD_WORDS_OF_(x)
#define MD_HERE __FILE__ ":" MD_WORDS_OF(__LINE__)

#ifdef __cplusplus
#define MD_EXPORTED extern "C" __attribute__((visibility("default")))
#else
#define MD_EXPORTED __attribute__((visibility("default")))
#endif

/* The one block of a library, which owns its namespace; MDISPATCH_FRAGMENT adds to another's. */
#define MDISPATCH_LIBRARY(ns, m) MD_BLOCK_(MD_DEF_LIBRARY, ns, m)
#define MDISPATCH_FRAGMENT(ns, m) MD_BLOCK_(MD_FRAGMENT, ns, m)
#define MD_BLOCK_(kind, ns, m)                                                                     \
    static void mdispatch_block_of_##ns(md_library *m);                                            \
    MD_EXPORTED const md_library_block mdispatch_library;                                          \
    const md_library_block mdispatch_library = {MD_KERNEL_ABI, kind, #ns, MD_HERE,                 \
                                                mdispatch_block_of_##ns};                          \
    static void mdispatch_block_of_##ns(md_library *m)

/* Defines an operator: "total(Tensor x) -> float". */
#define md_def(m, schema) ((m)->def((m), (schema), MD_HERE))

/* A kernel at a dispatch key (md_key). */
#define md_impl(m, name, key, function)                                                            \
    md_impl_(m, name, key, function, NULL, NULL, 0, #function, MD_HERE)

/* The same with what the function finds in call->user, who frees that, and flags. */
#define md_impl_with(m, name, key, function, user, release, flags)                                 \
    md_impl_(m, name, key, function, user, release, flags, #function, MD_HERE)

/* A class whose objects md_object_new() makes: md_class(m, "Index", methods, 2) in the namespace shop
 * is the class shop.Index of schemas, and its methods are operators, shop::Index.find(shop.Index self,
 * str text) -> int, with a kernel at CompositeExplicitAutograd that finds the object in args[0]. A
 * handle of an object calls them, handle.find("x"), from any interpreter. Nothing is registered when a
 * method cannot be one. */
#define md_class(m, name, methods, n_methods) md_class_(m, name, methods, n_methods, MD_HERE)

/* One of an array of methods, as initializer. MD_METHOD_WITH() is as md_impl_with(). */
#define MD_METHOD(schema, function) MD_METHOD_WITH(schema, function, NULL, NULL, 0)
#define MD_METHOD_WITH(schema, function, user, release, flags)                                     \
    { schema, {function, user, release, flags, 0}, #function }

/* Refuses the library. */
#define md_refuse(m, text) ((m)->fail((m), (text)))

static inline int md_impl_(md_library *m, const char *name, int32_t key, md_kernel function,
                           void *user, void (*release)(void *), uint32_t flags, const char *label,
                           const char *where) {
    md_kernel_spec spec;
    memset(&spec, 0, sizeof spec);
    spec.function = function;
    spec.user = user;
    spec.release = release;
    spec.flags = flags;
    return m->impl(m, name, key, &spec, label, where);
}

static inline int md_class_(md_library *m, const char *name, const md_method *methods,
                            size_t n_methods, const char *where) {
    if (m->minor < 2) return m->fail(m, "this mdispatch has no md_class()");
    return m->add_class(m, name, methods, n_methods, where);
}

/* --- values --- */

static inline md_value md_of_none(void) {
    md_value v;
    memset(&v, 0, sizeof v);
    return v;
}
static inline md_value md_of_bool(int truth) {
    md_value v = md_of_none();
    v.kind = MD_BOOL;
    v.as.integer = truth != 0;
    return v;
}
static inline md_value md_of_int(int64_t i) {
    md_value v = md_of_none();
    v.kind = MD_INT;
    v.as.integer = i;
    return v;
}
static inline md_value md_of_float(double d) {
    md_value v = md_of_none();
    v.kind = MD_FLOAT;
    v.as.real = d;
    return v;
}
static inline md_value md_of_buffer(md_buffer *buffer) {
    md_value v = md_of_none();
    v.kind = MD_BUFFER;
    v.as.buffer = buffer;
    return v;
}
static inline md_value md_of_list(md_value *items, size_t size) {
    md_value v = md_of_none();
    v.kind = MD_LIST;
    v.as.list.items = items;
    v.as.list.size = size;
    return v;
}
static inline md_value md_of_object(md_object *object) {
    md_value v = md_of_none();
    v.kind = MD_OBJECT;
    v.as.object = object;
    return v;
}
/* The bytes must last as long as the call: constants, an argument's, or those of call->alloc(). */
static inline md_value md_of_str(const char *utf8, size_t size) {
    md_value v = md_of_none();
    v.kind = MD_STR;
    v.as.text.data = utf8;
    v.as.text.size = size;
    return v;
}
static inline md_value md_of_bytes(const char *data, size_t size) {
    md_value v = md_of_str(data, size);
    v.kind = MD_BYTES;
    return v;
}

/* --- what a kernel can do from minor 1 on --- */

/* Calls an operator by its full name, "shop::scale" or "shop::scale.out", on the kernel's own thread:
 * with the guards, modes and observers that the kernel's caller has. Arguments come by position; the
 * results belong to the kernel's call. Returns 0, or an error: the operator has raised, and a kernel
 * that returns this number passes that on. One that returns 0 has done without.
 *
 * It cannot give arguments that the schema takes by keyword only. */
static inline int md_call_op(md_call *call, const char *op, const md_value *args, size_t n_args,
                             md_value *results, size_t n_results) {
    if (call->minor < 1)
        return call->fail(call, MD_ERROR_NOT_IMPLEMENTED, "this mdispatch has no md_call_op()");
    return call->call_op(call, op, args, n_args, results, n_results);
}

/* A new object for a result: see md_call. */
static inline md_object *md_object_new(md_call *call, const char *class_name, void *payload,
                                       void (*destroy)(void *payload)) {
    if (call->minor < 1) {
        call->fail(call, MD_ERROR_NOT_IMPLEMENTED, "this mdispatch has no md_object_new()");
        return NULL;
    }
    return call->object(call, class_name, payload, destroy);
}

/* The payload of an argument that is an object of this class, made in C; else NULL. */
static inline void *md_payload(const md_value *value, const char *class_name) {
    if (value->kind != MD_OBJECT || strcmp(value->as.object->class_name, class_name) != 0) return NULL;
    return value->as.object->payload;
}

#ifdef __cplusplus
}
#endif
#endif
