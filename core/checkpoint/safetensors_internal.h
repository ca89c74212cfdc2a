/* The parts that safetensors reading is made of: the format's dtypes, and the header of one file,
 * parsed from memory (which is also what the fuzz target feeds). */
#ifndef MC_CHECKPOINT_SAFETENSORS_INTERNAL_H
#define MC_CHECKPOINT_SAFETENSORS_INTERNAL_H

#include <stdbool.h>
#include "core/base/error_internal.h"
#include "core/checkpoint/safetensors.h"

/* The format's own bound on a header, in bytes. */
#define MC_SAFETENSORS_HEADER_MAX 100000000

/* How elements are stored, as far as the read functions care. */
typedef enum mc_safetensors_kind {
    MC_KIND_OPAQUE, /* sized, but not converted: complex numbers and floats of a byte or less */
    MC_KIND_BOOL,
    MC_KIND_SIGNED,
    MC_KIND_UNSIGNED,
    MC_KIND_FLOAT,
    MC_KIND_BFLOAT
} mc_safetensors_kind;

typedef struct mc_safetensors_dtype {
    const char *name;
    int bits; /* an element; not always whole bytes */
    mc_safetensors_kind kind;
    mc_dtype dtype; /* ours, or MC_DTYPE_DEFAULT */
} mc_safetensors_dtype;

/* The dtype of that name, or NULL. */
const mc_safetensors_dtype *mc_safetensors_dtype_find(const char *name);
/* The format's dtype that stores ours. */
const mc_safetensors_dtype *mc_safetensors_dtype_of(mc_dtype dtype);

/* Elements and bytes of a shape. False when either overflows int64 or the bytes are not whole. */
bool mc_safetensors_measure(const mc_safetensors_dtype *dtype, const int64_t *shape, int ndim,
                            int64_t *count, int64_t *bytes);

/* The checked header of one file. Entries are sorted by name; their data points into the buffer
 * that was parsed and their `file` is the path given, so both must outlive it. */
typedef struct mc_safetensors_header {
    mc_safetensors_entry *entries;
    size_t count;
    mc_safetensors_string *strings; /* __metadata__ */
    size_t string_count;
    char *text;      /* all names, keys and values */
    int64_t *shapes; /* all shapes */
} mc_safetensors_header;

/* Parses and checks the whole file in `data` (size bytes, not NUL terminated). `path` is what
 * errors call it. On failure the header is empty. */
mc_status mc_safetensors_header_init(mc_error *err, mc_safetensors_header *header,
                                     const uint8_t *data, size_t size, const char *path);
void mc_safetensors_header_release(mc_safetensors_header *header);

/* A file that all ranks of the job write together, as one that they all see: each writes bytes of
 * the tensors' data at offsets from its beginning, each byte once. Making it, syncing and renaming
 * are collective then; on an error of any rank nothing takes the file's name. With one rank it is
 * an ordinary writer. */
mc_safetensors_writer *mc_safetensors_writer_new_shared(mc_context *ctx, const char *path,
                                                        const mc_safetensors_spec *specs,
                                                        size_t count);
/* The file's path until it is renamed. */
const char *mc_safetensors_writer_aside(const mc_safetensors_writer *writer);
/* MC_ERR_ARGUMENT for bytes that were not declared. */
mc_status mc_safetensors_write_at(mc_safetensors_writer *writer, uint64_t offset, const void *data,
                                  size_t size);

/* Binary search in entries sorted by name. */
const mc_safetensors_entry *mc_safetensors_search(const mc_safetensors_entry *entries, size_t count,
                                                  const char *name);

/* Copies elements of one entry; see mc_safetensors_read_f32 and _f64 for the rules. */
mc_status mc_safetensors_copy_f32(mc_error *err, const mc_safetensors_entry *entry, int64_t first,
                                  int64_t count, float *out);
mc_status mc_safetensors_copy_f64(mc_error *err, const mc_safetensors_entry *entry, int64_t first,
                                  int64_t count, double *out);

#endif
