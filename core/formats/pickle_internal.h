/* A restricted reader of Python's pickles, for what torch.save writes.
 *
 * A pickle is a program for a machine with a stack and a memo. This machine has only the opcodes
 * that build plain containers, text and numbers, and makes only the calls in torch_build.c's table.
 * Each of these creates a tensor's description, a container, or a value that is ignored. Nothing is
 * imported or executed; any other name is an error that names it. Integers are kept; other plain
 * values (floats, bytes, devices) become MC_PICKLE_OTHER.
 *
 * Memory is bounded by a small multiple of the pickle's size, and no value is ever copied: a
 * container that occurs a thousand times is one node. */
#ifndef MC_FORMATS_PICKLE_INTERNAL_H
#define MC_FORMATS_PICKLE_INTERNAL_H

#include "core/base/arena_internal.h"
#include "core/formats/tensor_file_internal.h"

typedef enum mc_pickle_kind {
    MC_PICKLE_OTHER, /* a plain value that is ignored */
    MC_PICKLE_NONE,
    MC_PICKLE_INT,    /* and booleans */
    MC_PICKLE_TEXT,   /* text, length */
    MC_PICKLE_TUPLE,  /* node: items */
    MC_PICKLE_LIST,   /* node: items */
    MC_PICKLE_SET,    /* node: items */
    MC_PICKLE_DICT,   /* node: items, key and value in turn */
    MC_PICKLE_GLOBAL, /* number: the row in torch_build.c's table */
    MC_PICKLE_STORAGE,
    MC_PICKLE_TENSOR
} mc_pickle_kind;

typedef struct mc_pickle_value {
    mc_pickle_kind kind;
    uint32_t length; /* of text */
    union {
        int64_t number;
        const char *text; /* in the pickle, not NUL-terminated, unchecked */
        struct mc_pickle_node *node;
        struct mc_torch_storage *storage;
        struct mc_torch_tensor *tensor;
    };
} mc_pickle_value;

typedef struct mc_pickle_node {
    mc_pickle_value *items;
    size_t count, capacity; /* of items */
    bool ordered;           /* an OrderedDict */
} mc_pickle_node;

/* The memory of a tensor's elements, or a view of a part of it. */
typedef struct mc_torch_storage {
    const char *key; /* the file's name for it */
    uint32_t key_length;
    const mc_file_dtype *dtype;
    int64_t whole;                 /* its elements */
    int64_t first, count;          /* the elements used: all, or those of the view */
    struct mc_torch_storage *next; /* the storage named before this one */
} mc_torch_storage;

/* A tensor as written in the file; only the types are checked, not the ranges. */
typedef struct mc_torch_tensor {
    const mc_torch_storage *storage;
    const mc_file_dtype *dtype;
    int64_t offset; /* elements */
    int ndim;
    const int64_t *shape, *strides;
} mc_torch_tensor;

typedef struct mc_pickle {
    mc_error *err;
    const char *where; /* the file, or the file and its entry, for messages */
    const uint8_t *data;
    size_t size, at, begin; /* at: the next byte; begin: start of the current opcode */
    mc_arena arena;         /* of all values */
    size_t memory, budget;  /* bytes allocated, and their limit */
    mc_pickle_value *stack, *memo;
    size_t count, capacity, memo_count, memo_capacity;
    size_t *marks; /* stack height at each mark */
    size_t mark_count, mark_capacity;
    mc_torch_storage *storages; /* newest first; one storage may be listed many times */
    size_t storage_count;
} mc_pickle;

/* `data` has to outlive the machine and its values. */
void mc_pickle_init(mc_pickle *p, mc_error *err, const char *where, const uint8_t *data,
                    size_t size);
/* Runs one pickle and stops after its end, where another may follow. */
mc_status mc_pickle_run(mc_pickle *p, mc_pickle_value *result);
void mc_pickle_release(mc_pickle *p); /* and all values */

/* ---- for opcodes (pickle_machine.c); NULL and false mean that the error is set --------------- */

/* The name of the current opcode. */
const char *mc_pickle_op_name(const mc_pickle *p);
/* The next `size` bytes of the pickle. */
const uint8_t *mc_pickle_take(mc_pickle *p, uint64_t size);
/* A whole number of up to 8 bytes, little-endian. */
bool mc_pickle_take_number(mc_pickle *p, int bytes, uint64_t *out);
/* The text up to the end of the line. */
bool mc_pickle_take_line(mc_pickle *p, const char **text, size_t *length);
/* mc_grow, counted against the budget. */
bool mc_pickle_grow(mc_pickle *p, void *array, size_t *capacity, size_t count, size_t element);
bool mc_pickle_push(mc_pickle *p, mc_pickle_value value);
/* Pops the last `count` values above the newest mark. They stay readable until the next push. */
const mc_pickle_value *mc_pickle_pop(mc_pickle *p, size_t count);
/* Pops the newest mark and all values above it. */
const mc_pickle_value *mc_pickle_pop_mark(mc_pickle *p, size_t *count);
/* Puts items at the end of a container. */
bool mc_pickle_extend(mc_pickle *p, mc_pickle_node *node, const mc_pickle_value *items,
                      size_t count);
bool mc_pickle_push_container(mc_pickle *p, mc_pickle_kind kind, const mc_pickle_value *items,
                              size_t count);

/* ---- for torch_build.c ----------------------------------------------------------------------- */

/* Sets an error at the current opcode; returns false. */
#define mc_pickle_error(p, text, ...)                                                        \
    mc_pickle_false(mc_error_set((p)->err, MC_ERR_FORMAT, "%s: byte %zu: " text, (p)->where, \
                                 (p)->begin, __VA_ARGS__))
static inline bool mc_pickle_false(mc_status status) { return status == MC_OK; }

/* Zeroed memory that lives as long as the machine; NULL after an error. */
void *mc_pickle_alloc(mc_pickle *p, size_t bytes);
/* A new container of `count` items. */
bool mc_pickle_container(mc_pickle *p, mc_pickle_kind kind, const mc_pickle_value *items,
                         size_t count, mc_pickle_value *out);

enum { MC_PICKLE_SHOWN = 100 };
/* Untrusted text for a message: its beginning, with '?' for all but printable ASCII. */
const char *mc_pickle_show(char out[MC_PICKLE_SHOWN + 1], const char *text, size_t length);

/* The value of a global's name; an error if the name is not in the table. */
bool mc_torch_global(mc_pickle *p, const char *module, size_t module_length, const char *name,
                     size_t name_length, mc_pickle_value *out);
/* The result of calling `callable` with `args`. */
bool mc_torch_call(mc_pickle *p, const mc_pickle_value *callable, const mc_pickle_value *args,
                   mc_pickle_value *out);
/* PyTorch's name for a dtype ("uint16") or for the storage of its elements ("FloatStorage"); NULL
 * if it has none. */
const char *mc_torch_name_of(const char *dtype, bool storage);
/* The storage of a persistent id. */
bool mc_torch_persistent(mc_pickle *p, const mc_pickle_value *id, mc_pickle_value *out);

#endif
