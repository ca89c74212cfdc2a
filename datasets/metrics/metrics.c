#include "datasets/metrics.h"

#include <math.h>
#include <string.h>
#include "core/device/device_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/tensor/tensor_internal.h"

enum { CHUNK = 256, OTHER = MC_ACCURACY_CLASSES };

/* Copies elements [from, from + count) of an index tensor to the host as i64. */
static void read_index(const mc_tensor *x, int64_t from, int64_t count, int64_t out[CHUNK])
{
    size_t size = mc_dtype_size(x->dtype), at = (size_t)from * size;
    mc_device *device = x->ctx->device;
    const char *host = mc_tensor_host(x);
    int64_t copy[CHUNK];
    if (!host &&
        !device->copy_out(device, copy, (const char *)mc_tensor_data(x) + at, (size_t)count * size))
        mc_fail(x->ctx, MC_ERR_DEVICE, "accuracy: %s", device->failure);
    const void *data = host ? host + at : (const char *)copy;
    for (int64_t i = 0; i < count; i++)
        out[i] = x->dtype == MC_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

static int class_slot(int64_t value)
{
    return value >= 0 && value < MC_ACCURACY_CLASSES ? (int)value : OTHER;
}

static bool check(mc_context *ctx, const mc_tensor *predictions, const mc_tensor *labels)
{
    int64_t n = mc_tensor_count(labels);
    if (!mc_dtype_is_index(predictions->dtype) || !mc_dtype_is_index(labels->dtype))
        mc_fail(ctx, MC_ERR_DTYPE, "accuracy: predictions %s and labels %s, expected i32 or i64",
                mc_dtype_name(predictions->dtype), mc_dtype_name(labels->dtype));
    else if (mc_tensor_count(predictions) != n)
        mc_fail(ctx, MC_ERR_SHAPE, "accuracy: predictions %s for labels %s",
                MC_SHAPE_TEXT(predictions->shape), MC_SHAPE_TEXT(labels->shape));
    else if (n && (!mc_tensor_data(predictions) || !mc_tensor_data(labels)))
        mc_fail(ctx, MC_ERR_STATE, "accuracy: the %s were released already",
                mc_tensor_data(labels) ? "predictions" : "labels");
    else
        return true;
    return false;
}

void mc_accuracy_count(mc_accuracy *acc, int64_t prediction, int64_t label)
{
    if (!acc || label < 0) return;
    acc->count++;
    acc->correct += prediction == label;
    acc->confusion[class_slot(label)][class_slot(prediction)]++;
}

mc_status mc_accuracy_add(mc_accuracy *acc, const mc_tensor *predictions, const mc_tensor *labels)
{
    if (!acc || (!predictions && !labels)) return MC_ERR_ARGUMENT;
    mc_context *ctx = labels ? labels->ctx : predictions->ctx;
    if (mc_failed(ctx) || !mc_given(ctx, predictions) || !mc_given(ctx, labels) ||
        !check(ctx, predictions, labels))
        return mc_error_status(ctx);
    int64_t predicted[CHUNK], expected[CHUNK];
    for (int64_t from = 0, n = mc_tensor_count(labels), count; from < n; from += count) {
        count = n - from < CHUNK ? n - from : CHUNK;
        read_index(predictions, from, count, predicted);
        read_index(labels, from, count, expected);
        for (int64_t i = 0; i < count; i++) mc_accuracy_count(acc, predicted[i], expected[i]);
    }
    return MC_OK;
}

double mc_accuracy_share(const mc_accuracy *acc)
{
    return acc && acc->count ? (double)acc->correct / (double)acc->count : NAN;
}

/* All counts in one collective. */
static void sum_over_ranks(mc_context *ctx, mc_accuracy *acc)
{
    int64_t counts[2 + (OTHER + 1) * (OTHER + 1)] = {acc->count, acc->correct};
    int64_t number = (int64_t)(sizeof counts / sizeof *counts);
    memcpy(counts + 2, acc->confusion, sizeof acc->confusion);
    if (mc_ranks_reduce(ctx, &ctx->mesh.data, counts, number, MC_I64, MC_REDUCE_SUM)) return;
    acc->count = counts[0];
    acc->correct = counts[1];
    memcpy(acc->confusion, counts + 2, sizeof acc->confusion);
}

double mc_accuracy_gather(mc_context *ctx, mc_accuracy *acc)
{
    if (mc_failed(ctx) || !acc) return NAN;
    sum_over_ranks(ctx, acc);
    return mc_failed(ctx) ? NAN : mc_accuracy_share(acc);
}

typedef struct class_sums {
    int64_t labelled, predicted, right;
} class_sums;

static class_sums sum_class(const mc_accuracy *acc, int k)
{
    class_sums sums = {.right = acc->confusion[k][k]};
    for (int i = 0; i <= OTHER; i++) {
        sums.labelled += acc->confusion[k][i];
        sums.predicted += acc->confusion[i][k];
    }
    return sums;
}

int mc_accuracy_class_count(const mc_accuracy *acc)
{
    if (!acc) return 0;
    if (acc->classes > 0) return acc->classes;
    for (int k = OTHER; k > 1; k--) {
        class_sums sums = sum_class(acc, k);
        if (sums.labelled || sums.predicted) return k + 1;
    }
    return 2;
}

double mc_accuracy_f1(const mc_accuracy *acc)
{
    int classes = mc_accuracy_class_count(acc), found = 0;
    if (!acc || !acc->count || classes > MC_ACCURACY_CLASSES) return NAN;
    double total = 0;
    for (int k = classes <= 2 ? 1 : 0; k < (classes <= 2 ? 2 : classes); k++) {
        class_sums sums = sum_class(acc, k);
        int64_t both = sums.labelled + sums.predicted;
        if (!both) continue;
        found++;
        total += 2.0 * (double)sums.right / (double)both;
    }
    return found ? total / found : 0;
}

double mc_accuracy_recall(const mc_accuracy *acc, int k)
{
    if (!acc || k < 0 || k >= MC_ACCURACY_CLASSES) return NAN;
    class_sums sums = sum_class(acc, k);
    return sums.labelled ? (double)sums.right / (double)sums.labelled : NAN;
}
