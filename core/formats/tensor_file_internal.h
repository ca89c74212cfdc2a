/* The parts of reading tensor files: the files' dtypes, the contents of one file, and the formats.
 * Formats parse a file's bytes in memory, so that fuzz targets can call them too. */
#ifndef MC_FORMATS_TENSOR_FILE_INTERNAL_H
#define MC_FORMATS_TENSOR_FILE_INTERNAL_H

#include "core/base/error_internal.h"
#include "core/base/file_internal.h"
#include "core/formats/tensor_file.h"

/* How elements are stored, as far as the read functions distinguish it. */
typedef enum mc_file_kind {
    MC_KIND_OPAQUE, /* known size, not converted: complex numbers, floats of a byte or less */
    MC_KIND_BOOL,
    MC_KIND_SIGNED,
    MC_KIND_UNSIGNED,
    MC_KIND_FLOAT,
    MC_KIND_BFLOAT
} mc_file_kind;

typedef struct mc_file_dtype {
    const char *name;
    int bits; /* an element; not always whole bytes */
    mc_file_kind kind;
    mc_dtype dtype; /* the mc_dtype, or MC_DTYPE_DEFAULT */
} mc_file_dtype;

/* The dtype of that name, or NULL; the second function finds only dtypes of safetensors. */
const mc_file_dtype *mc_file_dtype_find(const char *name);
const mc_file_dtype *mc_safetensors_dtype_find(const char *name);
/* The file dtype of an mc_dtype. */
const mc_file_dtype *mc_file_dtype_of(mc_dtype dtype);

/* Elements and bytes of a shape. False when either overflows int64 or the bytes are not whole. */
bool mc_file_dtype_measure(const mc_file_dtype *dtype, const int64_t *shape, int ndim,
                           int64_t *count, int64_t *bytes);

/* Fills the strides of a row-major tensor. mc_file_dtype_measure must have accepted the shape. */
void mc_row_major(const int64_t *shape, int ndim, int64_t *strides);

/* A range of a file with a CRC-32: a storage, which several tensors may share. */
typedef struct mc_stored_part {
    const uint8_t *data; /* in the mapped file */
    size_t size;
    uint32_t crc;
    const char *name; /* without a NUL */
    size_t name_length;
    const char *file; /* its path */
} mc_stored_part;

typedef struct mc_file_string {
    const char *key, *value;
} mc_file_string;

/* The contents of one file. Entries are sorted by name. Their data points into the parsed buffer
 * and their `file` is the given path; both must outlive the table. */
typedef struct mc_tensor_table {
    mc_tensor_entry *entries;
    size_t count;
    mc_file_string *strings; /* metadata */
    size_t string_count;
    char *text;            /* all names, keys and values */
    int64_t *shapes;       /* all shapes and strides */
    mc_stored_part *parts; /* the storages with a CRC, each listed once */
    size_t part_count, part_capacity;
    size_t unchecked; /* number of storages without a CRC */
    const char *part; /* the key of a training checkpoint whose weights the entries are; or NULL */
    size_t left_out;  /* number of tensors outside of it */
} mc_tensor_table;

void mc_tensor_table_release(mc_tensor_table *table);
/* Sorts the entries by name; MC_ERR_FORMAT for a repeated name. */
mc_status mc_tensor_table_sort(mc_error *err, mc_tensor_table *table);

/* Parses and checks a whole file, whose `size` bytes are `data` (not NUL terminated). Errors call
 * it `path`. On failure the table is empty. */
typedef mc_status mc_tensor_parse_fn(mc_error *err, mc_tensor_table *table, const uint8_t *data,
                                     size_t size, const char *path);
mc_tensor_parse_fn mc_safetensors_parse, mc_torch_zip_parse, mc_torch_legacy_parse, mc_llmc_parse;
bool mc_llmc_is(const uint8_t *data, size_t size);
bool mc_torch_is_zip(const uint8_t *data, size_t size);
bool mc_torch_is_legacy(const uint8_t *data, size_t size);

typedef struct mc_tensor_format {
    const char *name;
    bool (*is)(const uint8_t *data, size_t size); /* by its first bytes */
    mc_tensor_parse_fn *parse;
} mc_tensor_format;

/* The format of a file with these bytes; safetensors if no other format matches. */
const mc_tensor_format *mc_tensor_format_of(const uint8_t *data, size_t size);

/* Binary search in entries sorted by name. */
const mc_tensor_entry *mc_tensor_search(const mc_tensor_entry *entries, size_t count,
                                        const char *name);

/* The place of a dense entry's bytes in its file. `fd` is open as long as the mc_tensor_file. */
typedef struct mc_bytes_place {
    int fd; /* -1: the entry is not dense, or empty */
    size_t offset;
} mc_bytes_place;
mc_bytes_place mc_tensor_file_bytes(const mc_tensor_file *file, const mc_tensor_entry *entry);
/* The same for an address in a mapped file. */
mc_bytes_place mc_tensor_file_place(const mc_tensor_file *file, const void *data);

/* Copies elements of one entry; see mc_tensor_file_read_f32, _f64 and _bytes for the rules. */
mc_status mc_tensor_copy_f32(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                             int64_t count, float *out);
mc_status mc_tensor_copy_f64(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                             int64_t count, double *out);
mc_status mc_tensor_copy_bytes(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                               int64_t count, void *out);

/* The parts of all shards with a CRC: their number, the i-th; and the number of the others. */
size_t mc_tensor_file_part_count(const mc_tensor_file *file);
const mc_stored_part *mc_tensor_file_part(const mc_tensor_file *file, size_t i);
size_t mc_tensor_file_unchecked(const mc_tensor_file *file);

/* Removes the first `by` characters of all tensors' names; a negative number restores them. */
void mc_tensor_file_shorten_names(mc_tensor_file *file, ptrdiff_t by);

mc_context *mc_tensor_file_context(const mc_tensor_file *file);

/* The file or index of a folder that mc_tensor_file_open opens (variant may be NULL). */
mc_status mc_tensor_file_choose(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                                const char *variant);

/* ---- names (tensor_names.c) ------------------------------------------------------------------ */

/* A growing text of quoted names: "a", "b". */
typedef struct mc_name_list {
    char *text;
    size_t used, capacity;
    int count;
    bool failed; /* memory ran out */
} mc_name_list;

void mc_name_list_add(mc_name_list *list, const char *name);
void mc_name_list_release(mc_name_list *list);

enum { MC_NAMES_SHOWN = 512 };

/* A list of names for an error message: the file holds "a", "b" and 26 more. Shows a sample spread
 * over the file; long names are cut. Returns `out`. */
const char *mc_tensor_names_show(const mc_tensor_entry *entries, size_t count,
                                 char out[MC_NAMES_SHOWN]);

/* Removes prefixes of wrapping modules, "_orig_mod." (torch.compile), "module." (data parallel) and
 * "model.", one after the other, while all names start with one and `fits` is false. If `fits`
 * never becomes true the names stay unchanged. Logs the removed prefixes, with `source`. */
typedef bool mc_names_fit_fn(const mc_tensor_file *file, const void *user);
void mc_tensor_file_unwrap(mc_tensor_file *file, const char *source, mc_names_fit_fn *fits,
                           const void *user);

#endif
