/* T5's relative position bias (Raffel et al. 2020): a learned number for each head and bucket of
 * distances, expanded to all distances. */
#include "core/ops/ops_internal.h"
#include "core/ops/attention.h"

#include <inttypes.h>
#include <math.h>

static const char op[] = "position bias";

typedef struct bias_state {
    mc_tensor *bucket; /* i32 (distances) */
} bias_state;

static void bias_backward(mc_tape *t, mc_node *node)
{
    const bias_state *state = node->state;
    mc_tensor *table = node->inputs[0], *dy = node->output->gradient;
    bool accumulate;
    mc_tensor *dtable = mc_gradient_target(t, table, &accumulate);
    if (dtable)
        MC_KERNEL(t, op, position_bias_backward, table->shape.dim[0], table->shape.dim[1],
                  mc_tensor_columns(dy), mc_tensor_data(dy), mc_tensor_data(state->bucket),
                  mc_matrix_of(dtable), accumulate);
}

static const mc_op bias_op = {.name = "position bias", .backward = bias_backward};

/* ---- buckets --------------------------------------------------------------------------------- */

/* Half of the buckets of a direction hold one distance each. The others grow by a constant factor
 * up to max_distance, and the last one also holds all larger distances. */
static int32_t bucket_of_distance(int64_t distance, int64_t buckets, double max_distance)
{
    int64_t exact = buckets / 2, rest = buckets - exact;
    if (distance < exact) return (int32_t)distance;
    double share = log((double)distance / (double)exact) / log(max_distance / (double)exact);
    /* If a bucket starts at a whole distance, the logarithm may be one rounding too small. The
     * tolerance is smaller than the difference to the next distance by many orders of magnitude. */
    double place = floor((double)rest * share + 1e-9);
    return (int32_t)(exact + (place < (double)rest ? (int64_t)place : rest - 1));
}

/* The buckets of key - query = -(length - 1) ... length - 1. */
static mc_tensor *find_buckets(mc_tape *t, int64_t buckets, const mc_position_bias_options *o)
{
    int64_t each = o->bidirectional ? buckets / 2 : buckets, n = 2 * o->length - 1;
    double max_distance = o->max_distance ? o->max_distance : 128;
    int32_t *bucket = mc_tape_alloc(t, (size_t)n * sizeof *bucket);
    if (!bucket) return NULL;
    for (int64_t i = 0; i < n; i++) {
        int64_t ahead = i - (o->length - 1); /* position of the key minus that of the query */
        bucket[i] = bucket_of_distance(ahead > 0 ? ahead : -ahead, each, max_distance);
        if (ahead > 0) bucket[i] = o->bidirectional ? bucket[i] + (int32_t)each : 0;
    }
    return mc_tape_input(t, MC_I32, MC_SHAPE(n), bucket, false);
}

/* ---- the operation --------------------------------------------------------------------------- */

static bool check_table(mc_tape *t, const mc_tensor *table, const mc_position_bias_options *o)
{
    mc_context *ctx = mc_tape_context(t);
    int64_t least = o->bidirectional ? 4 : 2, buckets = mc_tensor_size(table, 0);
    if (table->shape.ndim != 2 || buckets < least || buckets > INT32_MAX)
        return !mc_fail(ctx, MC_ERR_SHAPE,
                        "position bias: table %s, expected (buckets, heads) with %" PRId64
                        " buckets or more",
                        MC_SHAPE_TEXT(table->shape), least);
    if (o->bidirectional && buckets % 2)
        return !mc_fail(ctx, MC_ERR_SHAPE,
                        "position bias: table %s, expected an even number of buckets: half of them "
                        "for each direction",
                        MC_SHAPE_TEXT(table->shape));
    int64_t exact = (o->bidirectional ? buckets / 2 : buckets) / 2;
    if (o->max_distance == 0 || o->max_distance > exact) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT,
                    "position bias: max_distance %d, expected more than %" PRId64
                    ", which have a bucket each",
                    o->max_distance, exact);
}

static bool check(mc_tape *t, mc_tensor *table, const mc_position_bias_options *o)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_op_ready(t, op, table) || !mc_op_float(t, op, "table", table)) return false;
    if (!o)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "position bias: its options are NULL, a length is required");
    if (o->length < 1 || o->length > INT32_MAX / 2)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "position bias: length %" PRId64 ", expected 1 to %d",
                        o->length, INT32_MAX / 2);
    return check_table(t, table, o);
}

mc_tensor *mc_position_bias(mc_tape *t, mc_tensor *table, const mc_position_bias_options *o)
{
    if (!check(t, table, o)) return NULL;
    int64_t heads = table->shape.dim[1], distances = 2 * o->length - 1;
    mc_tensor *bucket = find_buckets(t, table->shape.dim[0], o);
    mc_tensor *y = bucket ? mc_tape_tensor(t, MC_F32, MC_SHAPE(heads, distances), NULL) : NULL;
    if (!y) return NULL;
    MC_KERNEL(t, op, position_bias, heads, distances, mc_matrix_of(table), mc_tensor_data(bucket),
              mc_tensor_data(y));
    mc_node *node = mc_tape_record(t, &bias_op, y, sizeof(bias_state), 1, &table);
    if (node) {
        ((bias_state *)node->state)->bucket = bucket;
        mc_node_save(node, bucket);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
