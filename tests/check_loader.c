/* check_loader FILE EXPECTED.safetensors: compares the tensors of a file, of any format that
 * mc_tensor_file_open reads, with those of a safetensors file, bit for bit.
 *
 * Exit 0: every expected tensor is there with the same dtype, shape and bytes. 1: one is not. 2: a
 * file could not be read. Each failure is a line "error: ...". Tensors that are not expected are
 * counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/formats/tensor_file.h"

enum { EQUAL = 0, UNEQUAL = 1, UNREADABLE = 2, PIECE = 1 << 16 };

static bool same_shape(const mc_tensor_entry *a, const mc_tensor_entry *b)
{
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

/* Compares bytes, a piece at a time; sets the context's error where they cannot be read. */
static bool same_bytes(mc_tensor_file *file, const mc_tensor_entry *found, mc_tensor_file *expected,
                       const mc_tensor_entry *wanted)
{
    static uint8_t x[PIECE], y[PIECE];
    int64_t element = wanted->count ? (int64_t)wanted->size / wanted->count : 1;
    int64_t most = PIECE / (element ? element : 1);
    for (int64_t at = 0, n; at < wanted->count; at += n) {
        n = wanted->count - at < most ? wanted->count - at : most;
        if (mc_tensor_file_read_bytes(file, found, at, n, x) ||
            mc_tensor_file_read_bytes(expected, wanted, at, n, y))
            return false;
        if (memcmp(x, y, (size_t)(n * element)) != 0) return false;
    }
    return true;
}

/* Says what is wrong with one expected tensor; true if nothing is. */
static bool compare(mc_tensor_file *file, mc_tensor_file *expected, const mc_tensor_entry *wanted)
{
    const mc_tensor_entry *found = mc_tensor_file_find(file, wanted->name);
    const char *wrong = NULL;
    if (!found)
        wrong = "missing";
    else if (strcmp(found->dtype_name, wanted->dtype_name) != 0)
        wrong = "another dtype";
    else if (!same_shape(found, wanted))
        wrong = "another shape";
    else if (!same_bytes(file, found, expected, wanted))
        wrong = "other values";
    if (wrong) fprintf(stderr, "error: tensor \"%s\": %s\n", wanted->name, wrong);
    return !wrong;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s FILE EXPECTED.safetensors\n", argv[0]);
        return UNREADABLE;
    }
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tensor_file *file = mc_tensor_file_open(ctx, argv[1], NULL);
    mc_tensor_file *expected = mc_tensor_file_open(ctx, argv[2], NULL);
    size_t count = mc_tensor_file_count(expected), unequal = 0;
    for (size_t i = 0; i < count && !mc_failed(ctx); i++)
        unequal += !compare(file, expected, mc_tensor_file_at(expected, i));
    int result = unequal ? UNEQUAL : EQUAL;
    if (mc_failed(ctx)) {
        fprintf(stderr, "error: %s\n", mc_error_message(ctx));
        result = UNREADABLE;
    } else if (!unequal) {
        printf("%zu tensors are equal, %zu more are in the file (%s)\n", count,
               mc_tensor_file_count(file) - count, mc_tensor_file_format(file));
    }
    mc_context_free(ctx);
    return result;
}
