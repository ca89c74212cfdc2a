/* Dtypes of tensor files, the table of a file's tensors, and the list of formats. */
#include "core/formats/tensor_file_internal.h"

#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/formats/gguf_internal.h"

/* ---- Dtypes ---------------------------------------------------------------------------------- */

static const mc_file_dtype dtypes[] = {
    {"F32", 32, MC_KIND_FLOAT, MC_F32},
    {"F16", 16, MC_KIND_FLOAT, MC_F16},
    {"BF16", 16, MC_KIND_BFLOAT, MC_BF16},
    {"I64", 64, MC_KIND_SIGNED, MC_I64},
    {"I32", 32, MC_KIND_SIGNED, MC_I32},
    {"U8", 8, MC_KIND_UNSIGNED, MC_U8},
    {"BOOL", 8, MC_KIND_BOOL, MC_BOOL},
    {"F64", 64, MC_KIND_FLOAT, MC_DTYPE_DEFAULT},
    {"I16", 16, MC_KIND_SIGNED, MC_DTYPE_DEFAULT},
    {"I8", 8, MC_KIND_SIGNED, MC_DTYPE_DEFAULT},
    {"U64", 64, MC_KIND_UNSIGNED, MC_DTYPE_DEFAULT},
    {"U32", 32, MC_KIND_UNSIGNED, MC_DTYPE_DEFAULT},
    {"U16", 16, MC_KIND_UNSIGNED, MC_DTYPE_DEFAULT},
    {"C64", 64, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E4M3", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E5M2", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E8M0", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E4M3FNUZ", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F8_E5M2FNUZ", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F6_E2M3", 6, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F6_E3M2", 6, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F4", 4, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    /* PyTorch's own, which safetensors has no name for */
    {"C32", 32, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"C128", 128, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"F4_X2", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT}, /* two of F4 */
    {"BITS8", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"BITS16", 16, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"BITS1X8", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"BITS2X4", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
    {"BITS4X2", 8, MC_KIND_OPAQUE, MC_DTYPE_DEFAULT},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof *dtypes, SAFETENSORS_COUNT = 22 };

const mc_file_dtype *mc_file_dtype_find(const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

const mc_file_dtype *mc_safetensors_dtype_find(const char *name)
{
    const mc_file_dtype *found = mc_file_dtype_find(name);
    return found && found - dtypes < SAFETENSORS_COUNT ? found : NULL;
}

const mc_file_dtype *mc_file_dtype_of(mc_dtype dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

bool mc_file_dtype_measure(const mc_file_dtype *dtype, const int64_t *shape, int ndim,
                           int64_t *count, int64_t *bytes)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (n > 0 && shape[i] > INT64_MAX / n) return false;
        n *= shape[i];
    }
    if (n > INT64_MAX / dtype->bits || n * dtype->bits % 8 != 0) return false;
    *count = n;
    *bytes = n * dtype->bits / 8;
    return true;
}

void mc_row_major(const int64_t *shape, int ndim, int64_t *strides)
{
    int64_t step = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = step;
        if (shape[i] > 1) step *= shape[i];
    }
}

/* ---- Tables ---------------------------------------------------------------------------------- */

const mc_tensor_entry *mc_tensor_search(const mc_tensor_entry *entries, size_t count,
                                        const char *name)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(entries[middle].name, name);
        if (order == 0) return &entries[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

void mc_tensor_table_release(mc_tensor_table *table)
{
    mc_free(table->entries);
    mc_free(table->strings);
    mc_free(table->text);
    mc_free(table->shapes);
    mc_free(table->parts);
    *table = (mc_tensor_table){0};
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const mc_tensor_entry *)a)->name, ((const mc_tensor_entry *)b)->name);
}

mc_status mc_tensor_table_sort(mc_error *err, mc_tensor_table *table)
{
    mc_tensor_entry *entries = table->entries;
    if (table->count) qsort(entries, table->count, sizeof *entries, compare_names);
    for (size_t i = 1; i < table->count; i++)
        if (strcmp(entries[i - 1].name, entries[i].name) == 0)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: tensor \"%.200s\" stands there twice",
                                entries[i].file, entries[i].name);
    return MC_OK;
}

/* ---- Formats --------------------------------------------------------------------------------- */

/* Checks the header's length, whose high bytes are 0, and the header's brace. A length may look
 * like the start of another format, so this test comes first. */
static bool is_safetensors(const uint8_t *data, size_t size)
{
    return size > 8 && !data[4] && !data[5] && !data[6] && !data[7] && data[8] == '{';
}

/* The last one takes every file that no other format recognises. */
static const mc_tensor_format formats[] = {
    {"safetensors", is_safetensors, mc_safetensors_parse},
    {"PyTorch zip", mc_torch_is_zip, mc_torch_zip_parse},
    {"PyTorch legacy", mc_torch_is_legacy, mc_torch_legacy_parse},
    {"llm.c", mc_llmc_is, mc_llmc_parse},
    {"GGUF", mc_gguf_is, mc_gguf_refuse},
    {"safetensors", NULL, mc_safetensors_parse},
};

const mc_tensor_format *mc_tensor_format_of(const uint8_t *data, size_t size)
{
    const mc_tensor_format *format = formats;
    while (format->is && !format->is(data, size)) format++;
    return format;
}
