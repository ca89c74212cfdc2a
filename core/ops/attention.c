/* Scaled dot-product attention over packed sequences. Only the log-sum-exp of each query is kept;
 * backward computes the probabilities again (Dao et al. 2022). */
#include "core/ops/ops_internal.h"

#include <math.h>

typedef struct sdpa_state {
    mc_attention_shape shape;
    mc_tensor *log_sum_exp; /* (heads, total) f32 */
} sdpa_state;

/* Column block i of three of a packed qkv matrix. */
static mc_matrix third(mc_matrix qkv, int i)
{
    int64_t width = qkv.stride / 3;
    qkv.data = (char *)qkv.data + (size_t)(i * width) * mc_dtype_size(qkv.dtype);
    return qkv;
}

static void sdpa_backward(mc_tape *t, mc_node *node)
{
    const sdpa_state *state = node->state;
    mc_tensor *qkv = node->inputs[0], *y = node->output;
    bool accumulate;
    mc_tensor *target = mc_gradient_target(t, qkv, &accumulate);
    mc_tensor *d = target && accumulate ? mc_scratch_new(t, qkv->dtype, qkv->shape) : target;
    if (!d) return;
    mc_matrix m = mc_saved_matrix(t, qkv), dm = mc_matrix_of(d);
    MC_KERNEL(t, "attention", attention_backward, &state->shape, third(m, 0), third(m, 1),
              third(m, 2), mc_saved_matrix(t, y), mc_tensor_data(state->log_sum_exp),
              mc_matrix_of(y->gradient), third(dm, 0), third(dm, 1), third(dm, 2));
    if (d == target) return;
    MC_KERNEL(t, "attention", scale, mc_tensor_count(d), mc_matrix_flat(d), 1.0f,
              mc_matrix_flat(target), true);
    mc_scratch_free(d);
}

static const mc_op sdpa_op = {.name = "attention", .backward = sdpa_backward};

static bool check(mc_tape *t, mc_tensor *qkv, const mc_sdpa_options *o)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_op_ready(t, "attention", qkv) || !mc_op_float(t, "attention", "qkv", qkv)) return false;
    if (!o)
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: its options are NULL, heads are required");
    int64_t columns = mc_tensor_columns(qkv);
    if (o->heads < 1 || columns % (3 * (int64_t)o->heads) || columns == 0)
        return !mc_fail(ctx, MC_ERR_SHAPE,
                        "attention: qkv %s, expected 3 * %d heads * head_dim columns",
                        MC_SHAPE_TEXT(qkv->shape), o->heads);
    if (!qkv->lengths || qkv->lengths->capacity != mc_tensor_rows(qkv))
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "attention: qkv %s carries no lengths of a packed batch",
                        MC_SHAPE_TEXT(qkv->shape));
    if (!(o->dropout >= 0 && o->dropout < 1))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "attention: dropout %g, expected 0 <= p < 1",
                        (double)o->dropout);
    if (!o->key_mask) return true;
    if (!mc_op_ready(t, "attention", o->key_mask)) return false;
    if (o->key_mask->dtype != MC_U8 && o->key_mask->dtype != MC_BOOL)
        return !mc_fail(ctx, MC_ERR_DTYPE, "attention: key mask of dtype %s, expected u8 or bool",
                        mc_dtype_name(o->key_mask->dtype));
    if (mc_tensor_count(o->key_mask) != qkv->lengths->total)
        return !mc_fail(ctx, MC_ERR_SHAPE, "attention: key mask %s, expected (%lld)",
                        MC_SHAPE_TEXT(o->key_mask->shape), (long long)qkv->lengths->total);
    return true;
}

mc_tensor *mc_sdpa(mc_tape *t, mc_tensor *qkv, const mc_sdpa_options *o)
{
    if (!check(t, qkv, o)) return NULL;
    const mc_lengths *lengths = qkv->lengths;
    int64_t rows = mc_tensor_rows(qkv), width = mc_tensor_columns(qkv) / 3;
    int head_dim = (int)(width / o->heads);
    sdpa_state state = {.shape = {.lengths = lengths,
                                  .device_lengths = mc_tape_device_lengths(t, lengths),
                                  .heads = o->heads,
                                  .head_dim = head_dim,
                                  .scale = o->scale != 0 ? o->scale : 1.0f / sqrtf((float)head_dim),
                                  .causal = o->causal,
                                  .key_mask = mc_tensor_data(o->key_mask),
                                  .dropout = mc_tape_dropout(t, o->dropout)}};
    bool keep = mc_tape_recording(t) && qkv->requires_grad;
    mc_tensor *y = mc_tape_tensor(t, qkv->dtype, MC_SHAPE(rows, width), qkv);
    if (keep)
        state.log_sum_exp = mc_tape_tensor(t, MC_F32, MC_SHAPE(o->heads, lengths->total), NULL);
    if (!y || (keep && !state.log_sum_exp)) return NULL;
    mc_matrix m = mc_matrix_of(qkv);
    MC_KERNEL(t, "attention", attention, &state.shape, third(m, 0), third(m, 1), third(m, 2),
              mc_matrix_of(y), mc_tensor_data(state.log_sum_exp));
    mc_node *node = mc_tape_record(t, &sdpa_op, y, sizeof state, 1, &qkv);
    if (node) {
        *(sdpa_state *)node->state = state;
        mc_node_save(node, qkv);
        mc_node_save(node, y);
        mc_node_save(node, state.log_sum_exp);
        mc_node_save(node, o->key_mask);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
