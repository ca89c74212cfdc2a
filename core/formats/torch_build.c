/* All names and calls that torch.save's pickles may contain. */
#include <string.h>
#include "core/formats/pickle_internal.h"

/* What calling a global does. */
typedef enum call_kind {
    NOT_CALLED,   /* a dtype, a storage's or a tensor's type */
    ORDERED_DICT, /* (), or (pairs) */
    COUNTER,      /* (), or (dict) */
    SIZE,         /* (tuple) -> tuple */
    SET,          /* (list) */
    PLAIN,        /* anything -> an ignored value */
    TENSOR,       /* (storage, offset, shape, strides, ...) */
    TENSOR_V3,    /* (storage, offset, shape, strides, requires_grad, hooks, dtype, ...) */
    PARAMETER,    /* (tensor, ...) -> tensor */
    SUBCLASS      /* (function, type, args, attributes) -> function(*args) */
} call_kind;

typedef struct global {
    const char *module, *name;
    call_kind made;
    const char *dtype; /* of a dtype or storage, by its name for mc_file_dtype_find */
} global;

#define STORAGE(name, dtype)                       \
    {                                              \
        "torch", name "Storage", NOT_CALLED, dtype \
    }
#define DTYPE(name, dtype)               \
    {                                    \
        "torch", name, NOT_CALLED, dtype \
    }

static const global globals[] = {
    {"collections", "OrderedDict", ORDERED_DICT, NULL},
    {"collections", "Counter", COUNTER, NULL},
    {"torch", "Size", SIZE, NULL},
    {"torch", "device", PLAIN, NULL},
    {"_codecs", "encode", PLAIN, NULL},
    {"builtins", "bytearray", PLAIN, NULL},
    {"__builtin__", "bytearray", PLAIN, NULL},
    {"builtins", "complex", PLAIN, NULL},
    {"__builtin__", "complex", PLAIN, NULL},
    {"builtins", "set", SET, NULL},
    {"__builtin__", "set", SET, NULL},
    {"builtins", "frozenset", SET, NULL},
    {"__builtin__", "frozenset", SET, NULL},
    {"torch._utils", "_rebuild_tensor", TENSOR, NULL},
    {"torch._utils", "_rebuild_tensor_v2", TENSOR, NULL},
    {"torch._utils", "_rebuild_tensor_v3", TENSOR_V3, NULL},
    {"torch._utils", "_rebuild_parameter", PARAMETER, NULL},
    {"torch._utils", "_rebuild_parameter_with_state", PARAMETER, NULL},
    {"torch._tensor", "_rebuild_from_type_v2", SUBCLASS, NULL},
    {"torch", "Tensor", NOT_CALLED, NULL},
    {"torch.nn.parameter", "Parameter", NOT_CALLED, NULL},
    STORAGE("Float", "F32"),
    STORAGE("Half", "F16"),
    STORAGE("BFloat16", "BF16"),
    STORAGE("Double", "F64"),
    STORAGE("Long", "I64"),
    STORAGE("Int", "I32"),
    STORAGE("Short", "I16"),
    STORAGE("Char", "I8"),
    STORAGE("Byte", "U8"),
    STORAGE("Bool", "BOOL"),
    STORAGE("ComplexFloat", "C64"),
    STORAGE("ComplexDouble", "C128"),
    {"torch", "UntypedStorage", NOT_CALLED, "U8"},
    {"torch.storage", "UntypedStorage", NOT_CALLED, "U8"},
    DTYPE("float32", "F32"),
    DTYPE("float16", "F16"),
    DTYPE("bfloat16", "BF16"),
    DTYPE("float64", "F64"),
    DTYPE("int64", "I64"),
    DTYPE("int32", "I32"),
    DTYPE("int16", "I16"),
    DTYPE("int8", "I8"),
    DTYPE("uint64", "U64"),
    DTYPE("uint32", "U32"),
    DTYPE("uint16", "U16"),
    DTYPE("uint8", "U8"),
    DTYPE("bool", "BOOL"),
    DTYPE("complex32", "C32"),
    DTYPE("complex64", "C64"),
    DTYPE("complex128", "C128"),
    DTYPE("float8_e4m3fn", "F8_E4M3"),
    DTYPE("float8_e5m2", "F8_E5M2"),
    DTYPE("float8_e8m0fnu", "F8_E8M0"),
    DTYPE("float8_e4m3fnuz", "F8_E4M3FNUZ"),
    DTYPE("float8_e5m2fnuz", "F8_E5M2FNUZ"),
    DTYPE("float4_e2m1fn_x2", "F4_X2"),
    DTYPE("bits8", "BITS8"),
    DTYPE("bits16", "BITS16"),
    DTYPE("bits1x8", "BITS1X8"),
    DTYPE("bits2x4", "BITS2X4"),
    DTYPE("bits4x2", "BITS4X2"),
};
enum { GLOBAL_COUNT = sizeof globals / sizeof *globals };

const char *mc_torch_name_of(const char *dtype, bool storage)
{
    for (int i = 0; i < GLOBAL_COUNT; i++) {
        const char *name = globals[i].name, *end = strstr(name, "Storage");
        if (globals[i].dtype && strcmp(globals[i].dtype, dtype) == 0 && (end != NULL) == storage &&
            strcmp(name, "UntypedStorage") != 0)
            return name;
    }
    return NULL;
}

static bool is_text(const char *text, size_t length, const char *expected)
{
    return strlen(expected) == length && memcmp(text, expected, length) == 0;
}

bool mc_torch_global(mc_pickle *p, const char *module, size_t module_length, const char *name,
                     size_t name_length, mc_pickle_value *out)
{
    char shown[2][MC_PICKLE_SHOWN + 1];
    for (int i = 0; i < GLOBAL_COUNT; i++) {
        if (!is_text(name, name_length, globals[i].name) ||
            !is_text(module, module_length, globals[i].module))
            continue;
        *out = (mc_pickle_value){.kind = MC_PICKLE_GLOBAL, .number = i};
        return true;
    }
    return mc_pickle_error(p,
                           "the global \"%s.%s\" is refused: only what tensors and plain "
                           "containers are made of is read",
                           mc_pickle_show(shown[0], module, module_length),
                           mc_pickle_show(shown[1], name, name_length));
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* The dtype of a global that is a dtype or a storage type; NULL for other values. */
static const mc_file_dtype *dtype_of(const mc_pickle_value *value)
{
    if (value->kind != MC_PICKLE_GLOBAL || !globals[value->number].dtype) return NULL;
    return mc_file_dtype_find(globals[value->number].dtype);
}

/* A tuple or list of whole numbers; NULL after an error. */
static int64_t *read_numbers(mc_pickle *p, const mc_pickle_value *list, size_t *count)
{
    bool good = list->kind == MC_PICKLE_TUPLE || list->kind == MC_PICKLE_LIST;
    for (size_t i = 0; good && i < list->node->count; i++)
        good = list->node->items[i].kind == MC_PICKLE_INT;
    if (!good) {
        mc_pickle_error(p, "a tensor's shape or strides: expected %s", "a tuple of whole numbers");
        return NULL;
    }
    *count = list->node->count;
    int64_t *numbers = mc_pickle_alloc(p, (*count + 1) * sizeof *numbers);
    for (size_t i = 0; numbers && i < *count; i++) numbers[i] = list->node->items[i].number;
    return numbers;
}

/* Refuses an argument that changes how values are read, such as {"conj": True}. */
static bool check_metadata(mc_pickle *p, const mc_pickle_node *args, size_t at)
{
    const mc_pickle_value *metadata = at < args->count ? &args->items[at] : NULL;
    bool none = !metadata || metadata->kind == MC_PICKLE_NONE ||
                (metadata->kind == MC_PICKLE_DICT && metadata->node->count == 0);
    return none || mc_pickle_error(p, "a tensor with metadata (%s), which are not read",
                                   "conjugate, negative");
}

static bool build_tensor(mc_pickle *p, const mc_pickle_node *args, bool v3, mc_pickle_value *out)
{
    enum { DIMS_MAX = 64 };
    const mc_pickle_value *a = args->items;
    if (args->count < (v3 ? 7 : 4) || a[0].kind != MC_PICKLE_STORAGE || a[1].kind != MC_PICKLE_INT)
        return mc_pickle_error(p,
                               "a tensor of %zu arguments: expected storage, offset, shape, "
                               "strides, ...",
                               args->count);
    const mc_file_dtype *dtype = v3 ? dtype_of(&a[6]) : a[0].storage->dtype;
    if (!dtype) return mc_pickle_error(p, "a tensor of no %s", "dtype");
    size_t ndim, stride_count;
    int64_t *shape = read_numbers(p, &a[2], &ndim);
    int64_t *strides = shape ? read_numbers(p, &a[3], &stride_count) : NULL;
    if (!strides || !check_metadata(p, args, v3 ? 7 : 6)) return false;
    if (ndim != stride_count || ndim > DIMS_MAX)
        return mc_pickle_error(p, "a tensor of %zu dimensions and %zu strides (at most %d)", ndim,
                               stride_count, DIMS_MAX);
    mc_torch_tensor *tensor = mc_pickle_alloc(p, sizeof *tensor);
    if (!tensor) return false;
    *tensor = (mc_torch_tensor){.storage = a[0].storage,
                                .dtype = dtype,
                                .offset = a[1].number,
                                .ndim = (int)ndim,
                                .shape = shape,
                                .strides = strides};
    *out = (mc_pickle_value){.kind = MC_PICKLE_TENSOR, .tensor = tensor};
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* OrderedDict's argument: a list of pairs, as Python 2 writes it. */
static bool build_ordered(mc_pickle *p, const mc_pickle_node *args, mc_pickle_value *out)
{
    if (!mc_pickle_container(p, MC_PICKLE_DICT, NULL, 0, out)) return false;
    out->node->ordered = true;
    if (args->count == 0) return true;
    const mc_pickle_value *pairs = &args->items[0];
    bool good = args->count == 1 && pairs->kind == MC_PICKLE_LIST;
    for (size_t i = 0; good && i < pairs->node->count; i++) {
        const mc_pickle_value *pair = &pairs->node->items[i];
        good = (pair->kind == MC_PICKLE_LIST || pair->kind == MC_PICKLE_TUPLE) &&
               pair->node->count == 2;
        if (good && !mc_pickle_extend(p, out->node, pair->node->items, 2)) return false;
    }
    return good ||
           mc_pickle_error(p, "OrderedDict of %zu arguments: expected none, or pairs", args->count);
}

/* A container built from another one, or an empty one. */
static bool build_container(mc_pickle *p, const mc_pickle_node *args, call_kind made,
                            mc_pickle_value *out)
{
    mc_pickle_kind from = made == COUNTER ? MC_PICKLE_DICT
                          : made == SIZE  ? MC_PICKLE_TUPLE
                                          : MC_PICKLE_LIST;
    if (args->count == 1 && args->items[0].kind == from) {
        *out = args->items[0];
        if (made == SET) out->kind = MC_PICKLE_SET;
        return true;
    }
    if (args->count) return mc_pickle_error(p, "a container of %zu arguments", args->count);
    return mc_pickle_container(p, made == SET ? MC_PICKLE_SET : from, NULL, 0, out);
}

static bool is_rebuild(const mc_pickle_value *value)
{
    if (value->kind != MC_PICKLE_GLOBAL) return false;
    call_kind made = globals[value->number].made;
    return made == TENSOR || made == TENSOR_V3 || made == PARAMETER;
}

bool mc_torch_call(mc_pickle *p, const mc_pickle_value *callable, const mc_pickle_value *args,
                   mc_pickle_value *out)
{
    if (callable->kind != MC_PICKLE_GLOBAL || args->kind != MC_PICKLE_TUPLE)
        return mc_pickle_error(p, "%s of what is no function with a tuple", mc_pickle_op_name(p));
    const global *g = &globals[callable->number];
    const mc_pickle_node *given = args->node;
    switch (g->made) {
    case ORDERED_DICT: return build_ordered(p, given, out);
    case COUNTER:
    case SIZE:
    case SET: return build_container(p, given, g->made, out);
    case PLAIN: *out = (mc_pickle_value){.kind = MC_PICKLE_OTHER}; return true;
    case TENSOR:
    case TENSOR_V3: return build_tensor(p, given, g->made == TENSOR_V3, out);
    case PARAMETER:
        if (given->count < 1 || given->items[0].kind != MC_PICKLE_TENSOR) break;
        *out = given->items[0];
        return true;
    case SUBCLASS: /* no recursion beyond one level: the called function is never SUBCLASS */
        if (given->count < 3 || !is_rebuild(&given->items[0]) ||
            given->items[1].kind != MC_PICKLE_GLOBAL)
            break;
        return mc_torch_call(p, &given->items[0], &given->items[2], out);
    case NOT_CALLED: break;
    }
    return mc_pickle_error(p, "%s calls \"%s.%s\" with %zu arguments that it doesn't take",
                           mc_pickle_op_name(p), g->module, g->name, given->count);
}

/* ---- storages -------------------------------------------------------------------------------- */

static bool is_int(const mc_pickle_value *value)
{
    return value->kind == MC_PICKLE_INT && value->number >= 0;
}

/* A view's (key, first, count), which follows the storage in legacy files. */
static bool read_view(mc_pickle *p, mc_torch_storage *s, const mc_pickle_value *view)
{
    if (view->kind == MC_PICKLE_NONE) return true;
    const mc_pickle_value *v = view->kind == MC_PICKLE_TUPLE ? view->node->items : NULL;
    if (!v || view->node->count != 3 || !is_int(&v[1]) || !is_int(&v[2]) ||
        v[1].number > s->whole || v[2].number > s->whole - v[1].number)
        return mc_pickle_error(p, "a view of a storage of %lld elements that doesn't fit it",
                               (long long)s->whole);
    s->first = v[1].number;
    s->count = v[2].number;
    return true;
}

bool mc_torch_persistent(mc_pickle *p, const mc_pickle_value *id, mc_pickle_value *out)
{
    char shown[MC_PICKLE_SHOWN + 1];
    const mc_pickle_value *v = id->kind == MC_PICKLE_TUPLE ? id->node->items : NULL;
    size_t count = v ? id->node->count : 0;
    if (!count || v[0].kind != MC_PICKLE_TEXT || !is_text(v[0].text, v[0].length, "storage")) {
        bool named = count && v[0].kind == MC_PICKLE_TEXT;
        return mc_pickle_error(p, "the persistent id \"%s\" is refused: expected \"storage\"",
                               named ? mc_pickle_show(shown, v[0].text, v[0].length) : "?");
    }
    const mc_file_dtype *dtype = count >= 5 ? dtype_of(&v[1]) : NULL;
    if (!dtype || v[2].kind != MC_PICKLE_TEXT || !is_int(&v[4]))
        return mc_pickle_error(p, "a storage of %zu values: expected type, key, device and size",
                               count);
    mc_torch_storage *s = mc_pickle_alloc(p, sizeof *s);
    if (!s) return false;
    *s = (mc_torch_storage){.key = v[2].text,
                            .key_length = v[2].length,
                            .dtype = dtype,
                            .whole = v[4].number,
                            .count = v[4].number};
    s->next = p->storages;
    p->storages = s;
    p->storage_count++;
    *out = (mc_pickle_value){.kind = MC_PICKLE_STORAGE, .storage = s};
    return count < 6 || read_view(p, s, &v[5]);
}
