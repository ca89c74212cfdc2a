/* y + scale * h B^T, in place: the contribution of a low-rank adapter to a product (Hu et al.
 * 2021). y's columns may belong to several products side by side, each with its own B and its own
 * columns of h. */
#include "core/ops/ops_internal.h"

static const char op[] = "low rank";

typedef struct low_rank_state {
    float scale;
    int64_t rank;
    int64_t first[MC_LOW_RANK_PARTS]; /* the first column of y for each part */
} low_rank_state;

enum { Y, H, FIRST_B };

static mc_matrix columns_from(mc_matrix m, int64_t column)
{
    if (m.data) m.data = (char *)m.data + (size_t)column * mc_dtype_size(m.dtype);
    return m;
}

/* dh = scale * dy B and dB = scale * dy^T h of one part. */
static void part_backward(mc_tape *t, mc_node *node, int part, mc_tensor *dh, bool accumulate_h)
{
    const low_rank_state *state = node->state;
    mc_tensor *b = node->inputs[FIRST_B + part];
    int64_t rows = mc_tensor_rows(node->output), out = mc_tensor_size(b, 0), rank = state->rank;
    mc_matrix dy = columns_from(mc_matrix_of(node->output->gradient), state->first[part]);
    bool accumulate;
    mc_tensor *db = mc_gradient_target(t, b, &accumulate);
    if (db)
        MC_KERNEL(t, op, gemm, true, false, out, rank, rows, state->scale, dy,
                  columns_from(mc_saved_matrix(t, node->inputs[H]), part * rank),
                  accumulate ? 1.0f : 0.0f, mc_matrix_of(db));
    if (dh)
        MC_KERNEL(t, op, gemm, false, false, rows, rank, out, state->scale, dy,
                  mc_saved_matrix(t, b), accumulate_h ? 1.0f : 0.0f,
                  columns_from(mc_matrix_of(dh), part * rank));
}

static void low_rank_backward(mc_tape *t, mc_node *node)
{
    bool accumulate;
    mc_tensor *dh = mc_gradient_target(t, node->inputs[H], &accumulate);
    for (int i = 0; i < node->input_count - FIRST_B; i++) part_backward(t, node, i, dh, accumulate);
    mc_gradient_share(t, node->inputs[Y], node->output->gradient);
}

static const mc_op low_rank_op = {.name = "low rank", .backward = low_rank_backward};

static bool check_part(mc_tape *t, const mc_tensor *y, const mc_low_rank_part *part, int64_t rank)
{
    mc_tensor *b = part->b;
    if (!mc_op_ready(t, op, b) || !mc_op_same_dtype(t, op, "factor", b, y->dtype)) return false;
    bool good = b->shape.ndim == 2 && b->shape.dim[1] == rank && part->first >= 0 &&
                part->first + b->shape.dim[0] <= mc_tensor_columns(y);
    return good || !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                            "%s: factor %s at column %lld of %s, expected (out, %lld) within it",
                            op, MC_SHAPE_TEXT(b->shape), (long long)part->first,
                            MC_SHAPE_TEXT(y->shape), (long long)rank);
}

static bool check(mc_tape *t, mc_tensor *y, mc_tensor *h, const mc_low_rank_part *parts, int count)
{
    if (!mc_op_ready(t, op, y) || !mc_op_float(t, op, "input", y) || !mc_op_ready(t, op, h) ||
        !mc_op_same_dtype(t, op, "low-rank input", h, y->dtype))
        return false;
    bool good = count >= 1 && count <= MC_LOW_RANK_PARTS &&
                mc_tensor_rows(h) == mc_tensor_rows(y) && mc_tensor_columns(h) % count == 0;
    if (!good)
        return !mc_fail(
            mc_tape_context(t), MC_ERR_SHAPE,
            "%s: input %s and low-rank input %s of %d parts, expected as many rows, and "
            "columns that %d parts (1 to %d) share equally",
            op, MC_SHAPE_TEXT(y->shape), MC_SHAPE_TEXT(h->shape), count, count, MC_LOW_RANK_PARTS);
    for (int i = 0; i < count && good; i++)
        good = check_part(t, y, &parts[i], mc_tensor_columns(h) / count);
    return good;
}

mc_tensor *mc_low_rank_add(mc_tape *t, mc_tensor *y, mc_tensor *h, const mc_low_rank_part *parts,
                           int count, float scale)
{
    if (!check(t, y, h, parts, count)) return NULL;
    mc_tensor *inputs[FIRST_B + MC_LOW_RANK_PARTS] = {y, h}, *sum = mc_op_take(t, op, y);
    low_rank_state state = {.scale = scale, .rank = mc_tensor_columns(h) / count};
    if (!sum) return NULL;
    for (int i = 0; i < count; i++) {
        mc_tensor *b = inputs[FIRST_B + i] = parts[i].b;
        state.first[i] = parts[i].first;
        MC_KERNEL(t, op, gemm, false, true, mc_tensor_rows(y), mc_tensor_size(b, 0), state.rank,
                  scale, columns_from(mc_matrix_of(h), i * state.rank), mc_matrix_of(b), 1.0f,
                  columns_from(mc_matrix_of(sum), parts[i].first));
    }
    mc_node *node = mc_tape_record(t, &low_rank_op, sum, sizeof state, FIRST_B + count, inputs);
    if (node) {
        *(low_rank_state *)node->state = state;
        mc_node_save(node, h);
        for (int i = 0; i < count; i++) mc_node_save(node, parts[i].b);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : sum;
}
