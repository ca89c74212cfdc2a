/* The parts that reading files of tensors is made of: the dtypes that files have, what is in one
 * file, and the formats, which find that out from the file's bytes in memory (which is also what
 * the fuzz targets feed). */
#ifndef MC_FORMATS_TENSOR_FILE_INTERNAL_H
#define MC_FORMATS_TENSOR_FILE_INTERNAL_H

#include "core/base/error_internal.h"
#include "core/base/file_internal.h"
#include "core/formats/tensor_file.h"

/* How elements are stored, as far as the read functions care. */
typedef enum mc_file_kind {
    MC_KIND_OPAQUE, /* sized, but not converted: complex numbers and floats of a byte or less */
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
    mc_dtype dtype; /* ours, or MC_DTYPE_DEFAULT */
} mc_file_dtype;

/* The dtype of that name, or NULL; of those, one that safetensors has. */
const mc_file_dtype *mc_file_dtype_find(const char *name);
const mc_file_dtype *mc_safetensors_dtype_find(const char *name);
/* The dtype that stores ours. */
const mc_file_dtype *mc_file_dtype_of(mc_dtype dtype);

/* Elements and bytes of a shape. False when either overflows int64 or the bytes are not whole. */
bool mc_file_dtype_measure(const mc_file_dtype *dtype, const int64_t *shape, int ndim,
                           int64_t *count, int64_t *bytes);

/* Fills the strides of a row-major tensor. The shape is one that mc_file_dtype_measure accepts. */
void mc_row_major(const int64_t *shape, int ndim, int64_t *strides);

/* Bytes of a file that it has a CRC-32 of: a storage, which several tensors may share. */
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

/* What one file holds. Entries are sorted by name; their data points into the buffer that was
 * parsed and their `file` is the path given, so both must outlive it. */
typedef struct mc_tensor_table {
    mc_tensor_entry *entries;
    size_t count;
    mc_file_string *strings; /* metadata */
    size_t string_count;
    char *text;            /* all names, keys and values */
    int64_t *shapes;       /* all shapes and strides */
    mc_stored_part *parts; /* what the entries lie in, each once, where the file has its CRC */
    size_t part_count, part_capacity;
    size_t unchecked; /* and how many parts it has none of */
    const char *part; /* the entries are what a training checkpoint has under this key; NULL: all */
    size_t left_out;  /* tensors beside that */
} mc_tensor_table;

void mc_tensor_table_release(mc_tensor_table *table);
/* Sorts the entries by name; MC_ERR_FORMAT for a name that stands there twice. */
mc_status mc_tensor_table_sort(mc_error *err, mc_tensor_table *table);

/* Finds out what is in the file whose `size` bytes are `data` (not NUL terminated), and checks all
 * of it. `path` is what errors call it. On failure the table is empty. */
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

/* The format of a file with these bytes: safetensors where it is none of the others. */
const mc_tensor_format *mc_tensor_format_of(const uint8_t *data, size_t size);

/* Binary search in entries sorted by name. */
const mc_tensor_entry *mc_tensor_search(const mc_tensor_entry *entries, size_t count,
                                        const char *name);

/* Where a dense entry's bytes lie in its file, which stays open as long as the mc_tensor_file. */
typedef struct mc_bytes_place {
    int fd; /* -1: the entry is not dense, or empty */
    size_t offset;
} mc_bytes_place;
mc_bytes_place mc_tensor_file_bytes(const mc_tensor_file *file, const mc_tensor_entry *entry);
/* The same of a place in a mapped file. */
mc_bytes_place mc_tensor_file_place(const mc_tensor_file *file, const void *data);

/* Copies elements of one entry; see mc_tensor_file_read_f32, _f64 and _bytes for the rules. */
mc_status mc_tensor_copy_f32(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                             int64_t count, float *out);
mc_status mc_tensor_copy_f64(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                             int64_t count, double *out);
mc_status mc_tensor_copy_bytes(mc_error *err, const mc_tensor_entry *entry, int64_t first,
                               int64_t count, void *out);

/* The parts of all shards that have a CRC: how many, the i-th; and how many have none. */
size_t mc_tensor_file_part_count(const mc_tensor_file *file);
const mc_stored_part *mc_tensor_file_part(const mc_tensor_file *file, size_t i);
size_t mc_tensor_file_unchecked(const mc_tensor_file *file);

/* All tensors' names begin so many characters later, or, with a negative number, earlier. */
void mc_tensor_file_shorten_names(mc_tensor_file *file, ptrdiff_t by);

mc_context *mc_tensor_file_context(const mc_tensor_file *file);

/* The file or index of weights in a folder, as mc_tensor_file_open takes it (variant may be
 * NULL). */
mc_status mc_tensor_file_choose(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                                const char *variant);

/* ---- names (tensor_names.c) ------------------------------------------------------------------ */

/* A growing text of quoted names: "a", "b". */
typedef struct mc_name_list {
    char *text;
    size_t used, capacity;
    int count;
    bool failed; /* memory was out */
} mc_name_list;

void mc_name_list_add(mc_name_list *list, const char *name);
void mc_name_list_release(mc_name_list *list);

enum { MC_NAMES_SHOWN = 512 };

/* Says for an error about names which ones there are: the file holds "a", "b" and 26 more. Some of
 * all, spread over the file; long names are cut. Returns `out`. */
const char *mc_tensor_names_show(const mc_tensor_entry *entries, size_t count,
                                 char out[MC_NAMES_SHOWN]);

/* Takes prefixes of wrapping modules off: "_orig_mod." (torch.compile), "module." (data parallel)
 * and "model.", each in turn, as long as all tensors' names have it and `fits` does not hold. Names
 * for which it never holds stay as they were. What was taken off is logged, with `source`. */
typedef bool mc_names_fit_fn(const mc_tensor_file *file, const void *user);
void mc_tensor_file_unwrap(mc_tensor_file *file, const char *source, mc_names_fit_fn *fits,
                           const void *user);

#endif
