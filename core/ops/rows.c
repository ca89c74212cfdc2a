/* Operations that move rows: embedding, gather, unpack, and views. */
#include "core/ops/ops_internal.h"
#include "core/ops/fused.h"

#include <inttypes.h>
#include <math.h>

enum { MAX_TABLES = 4 };

/* ---- embedding ------------------------------------------------------------------------------- */

typedef struct embed_state {
    mc_tensor *index[MAX_TABLES];
    float scale;
} embed_state;

/* dtable(index[row]) += scale * dy(row) for one input; used by gather too, where x is not a
 * parameter. */
static void scatter_rows(mc_tape *t, const char *op, mc_tensor *x, mc_tensor *index, mc_tensor *dy,
                         float scale)
{
    bool accumulate;
    mc_tensor *dx = mc_gradient_target(t, x, &accumulate);
    if (!dx) return;
    if (!accumulate) MC_KERNEL(t, op, zero, mc_tensor_data(dx), dx->storage->bytes);
    MC_KERNEL(t, op, embedding_backward, mc_tensor_count(index), mc_tensor_columns(x),
              mc_matrix_of(dy), mc_tensor_data(index), scale, mc_matrix_of(dx));
}

static void embed_backward(mc_tape *t, mc_node *node)
{
    const embed_state *state = node->state;
    for (int i = 0; i < node->input_count; i++)
        scatter_rows(t, "embed", node->inputs[i], state->index[i], node->output->gradient,
                     state->scale);
}

static const mc_op embed_op = {.name = "embed", .backward = embed_backward};

static bool check_tables(mc_tape *t, int tables, mc_tensor *const *table, float scale)
{
    if (tables < 1 || tables > MAX_TABLES) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "embed: %d tables, expected 1 to %d", tables,
                MAX_TABLES);
        return false;
    }
    if (!isfinite(scale))
        return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                        "embed: scale %g, expected a finite number", (double)scale);
    for (int i = 0; i < tables; i++) {
        if (!mc_op_ready(t, "embed", table ? table[i] : NULL) ||
            !mc_op_float(t, "embed", "table", table[i]) ||
            !mc_op_same_dtype(t, "embed", "table", table[i], table[0]->dtype))
            return false;
        mc_shape shape = MC_SHAPE(mc_tensor_size(table[i], 0), mc_tensor_columns(table[0]));
        if (!mc_op_shape(t, "embed", "table", table[i], shape)) return false;
    }
    return true;
}

mc_tensor *mc_embed_scaled(mc_tape *t, int tables, mc_tensor *const *table, mc_tensor *const *index,
                           float scale)
{
    static const char *const names[MAX_TABLES] = {"index", "second index", "third index",
                                                  "fourth index"};
    return mc_embed_named(t, "embed", tables, table, index, names, scale);
}

mc_tensor *mc_embed_named(mc_tape *t, const char *op, int tables, mc_tensor *const *table,
                          mc_tensor *const *index, const char *const *names, float scale)
{
    if (!check_tables(t, tables, table, scale) || !mc_op_ready(t, "embed", index ? index[0] : NULL))
        return NULL;
    int64_t rows = mc_tensor_count(index[0]), columns = mc_tensor_columns(table[0]);
    embed_state checked = {.scale = scale};
    mc_matrix matrix[MAX_TABLES];
    const int32_t *pointer[MAX_TABLES];
    for (int i = 0; i < tables; i++) {
        checked.index[i] =
            mc_op_indices(t, op, names[i], index[i], rows, table[i]->shape.dim[0], INT32_MIN);
        if (!checked.index[i]) return NULL;
        matrix[i] = mc_matrix_of(table[i]);
        pointer[i] = mc_tensor_data(checked.index[i]);
    }
    mc_tensor *y = mc_tape_tensor(t, table[0]->dtype, MC_SHAPE(rows, columns), index[0]);
    if (!y) return NULL;
    MC_KERNEL(t, "embed", embedding, rows, columns, tables, matrix, pointer, scale,
              mc_matrix_of(y));
    mc_node *node = mc_tape_record(t, &embed_op, y, sizeof checked, tables, table);
    if (node) {
        *(embed_state *)node->state = checked;
        for (int i = 0; i < tables; i++) mc_node_save(node, checked.index[i]);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_embed(mc_tape *t, int tables, mc_tensor *const *table, mc_tensor *const *index)
{
    return mc_embed_scaled(t, tables, table, index, 1);
}

mc_tensor *mc_token_positions(mc_tape *t, mc_tensor *ids, const mc_lengths *lengths, int64_t limit,
                              int64_t pad, int64_t first)
{
    static const char op[] = "token positions";
    if (!mc_op_ready(t, op, ids) || !mc_given(mc_tape_context(t), lengths)) return NULL;
    if (first < 1 || first > INT32_MAX - lengths->capacity || limit > INT32_MAX)
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                "%s: %lld ids from position %lld on, expected from 1 on, up to %d", op,
                (long long)limit, (long long)first, INT32_MAX);
    mc_tensor *checked = mc_op_indices(t, op, "ids", ids, lengths->capacity, limit, INT32_MIN);
    const int32_t *device_lengths = checked ? mc_tape_device_lengths(t, lengths) : NULL;
    mc_tensor *y = checked ? mc_tape_tensor(t, MC_I32, MC_SHAPE(lengths->capacity), NULL) : NULL;
    if (y && !mc_failed(mc_tape_context(t))) {
        y->storage->computed = true; /* so that no operation waits to check its values */
        MC_KERNEL(t, op, token_positions, lengths, device_lengths, mc_tensor_data(checked),
                  (int32_t)pad, (int32_t)first, mc_tensor_data(y));
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_blanks mc_find_blanks(mc_tape *t, mc_tensor *ids, const mc_lengths *lengths, int64_t limit,
                         int64_t start, int64_t mask)
{
    static const char op[] = "blanks";
    mc_blanks out = {0};
    if (!mc_op_ready(t, op, ids) || !mc_given(mc_tape_context(t), lengths)) return out;
    mc_tensor *checked = mc_op_indices(t, op, "ids", ids, lengths->capacity, limit, INT32_MIN);
    const int32_t *device_lengths = checked ? mc_tape_device_lengths(t, lengths) : NULL;
    mc_tensor **const made[] = {&out.marks, &out.positions, &out.blocks};
    for (int i = 0; i < 3 && checked && !mc_failed(mc_tape_context(t)); i++) {
        *made[i] = mc_tape_tensor(t, MC_I32, MC_SHAPE(lengths->capacity), NULL);
        if (*made[i]) (*made[i])->storage->computed = true; /* like token positions */
    }
    if (!checked || mc_failed(mc_tape_context(t))) return (mc_blanks){0};
    MC_KERNEL(t, op, find_blanks, lengths, device_lengths,
              &(mc_blanks_call){.ids = mc_tensor_data(checked),
                                .start = (int32_t)start,
                                .mask = (int32_t)mask,
                                .mark = mc_tensor_data(out.marks),
                                .position = mc_tensor_data(out.positions),
                                .block = mc_tensor_data(out.blocks)});
    return mc_failed(mc_tape_context(t)) ? (mc_blanks){0} : out;
}

/* ---- gather ---------------------------------------------------------------------------------- */

typedef struct gather_state {
    mc_tensor *index;
} gather_state;

static void gather_backward(mc_tape *t, mc_node *node)
{
    const gather_state *state = node->state;
    scatter_rows(t, "gather", node->inputs[0], state->index, node->output->gradient, 1);
}

static const mc_op gather_op = {.name = "gather", .backward = gather_backward};

/* Rows of x by checked indices (i32; negative: a row of zeros), as a tensor of `shape`. */
static mc_tensor *gather(mc_tape *t, const char *op, mc_tensor *x, mc_tensor *index, mc_shape shape)
{
    mc_tensor *y = index ? mc_tape_tensor(t, x->dtype, shape, NULL) : NULL;
    if (!y) return NULL;
    MC_KERNEL(t, op, gather_rows, mc_tensor_count(index), mc_tensor_columns(x), mc_matrix_of(x),
              mc_tensor_data(index), mc_matrix_of(y));
    mc_node *node = mc_tape_record(t, &gather_op, y, sizeof(gather_state), 1, &x);
    if (node) {
        ((gather_state *)node->state)->index = index;
        mc_node_save(node, index);
    }
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_gather_rows(mc_tape *t, mc_tensor *x, const int32_t *index, int64_t n)
{
    if (!mc_op_ready(t, "gather", x) || !mc_op_float(t, "gather", "input", x)) return NULL;
    int64_t rows = mc_tensor_rows(x);
    if (n < 0 || (n && !index)) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "gather: %lld indices%s", (long long)n,
                index ? "" : ": NULL");
        return NULL;
    }
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= rows) {
            mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                    "gather: index[%lld] = %d, expected 0 to %lld", (long long)i, index[i],
                    (long long)rows - 1);
            return NULL;
        }
    return gather(t, "gather", x, mc_tape_input(t, MC_I32, MC_SHAPE(n), index, false),
                  MC_SHAPE(n, mc_tensor_columns(x)));
}

mc_tensor *mc_first_tokens(mc_tape *t, mc_tensor *x)
{
    const mc_lengths *lengths = mc_op_lengths(t, "first tokens", x);
    if (!lengths) return NULL;
    mc_shape rows = MC_SHAPE(lengths->count);
    mc_tensor *index = NULL;
    for (int i = 0; i < lengths->count && !lengths->fixed; i++)
        if (lengths->length[i] == 0) {
            mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "first tokens: sequence %d is empty", i);
            return NULL;
        }
    if (lengths->fixed)
        index = mc_tape_view(t, lengths->fixed, rows, mc_lengths_first_at(lengths));
    else
        index = mc_tape_input(t, MC_I32, rows, lengths->offset, false);
    return gather(t, "first tokens", x, index, MC_SHAPE(lengths->count, mc_tensor_columns(x)));
}

mc_tensor *mc_unpack(mc_tape *t, mc_tensor *x)
{
    const mc_lengths *lengths = mc_op_lengths(t, "unpack", x);
    if (!lengths || !mc_op_host_lengths(t, "unpack", lengths)) return NULL;
    int64_t longest = lengths->longest, n = lengths->count * longest;
    int32_t *index = mc_tape_alloc(t, (size_t)n * sizeof *index);
    if (!index) return NULL;
    for (int64_t i = 0; i < n; i++) {
        int32_t sequence = (int32_t)(i / longest), token = (int32_t)(i % longest);
        index[i] = token < lengths->length[sequence] ? lengths->offset[sequence] + token : -1;
    }
    return gather(t, "unpack", x, mc_tape_input(t, MC_I32, MC_SHAPE(n), index, false),
                  MC_SHAPE(lengths->count, longest, mc_tensor_columns(x)));
}

/* ---- views ----------------------------------------------------------------------------------- */

static void reshape_backward(mc_tape *t, mc_node *node)
{
    mc_gradient_share(t, node->inputs[0], node->output->gradient);
}

static const mc_op reshape_op = {.name = "reshape", .backward = reshape_backward};

/* A view with another shape; `lengths` NULL: not packed. */
static mc_tensor *view_of(mc_tape *t, mc_tensor *x, mc_shape shape, const mc_lengths *lengths)
{
    mc_tensor *y = mc_tape_view(t, x, shape, 0);
    if (!y) return NULL;
    y->lengths = lengths;
    mc_tape_record(t, &reshape_op, y, 0, 1, &x);
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}

mc_tensor *mc_reshape(mc_tape *t, mc_tensor *x, mc_shape shape)
{
    if (!mc_op_ready(t, "reshape", x)) return NULL;
    size_t bytes;
    if (!mc_shape_bytes(shape, x->dtype, &bytes) || mc_shape_count(shape) != mc_tensor_count(x)) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE, "reshape: %s to %s, expected as many elements",
                MC_SHAPE_TEXT(x->shape), MC_SHAPE_TEXT(shape));
        return NULL;
    }
    mc_tensor *y = view_of(t, x, shape, NULL);
    if (y && mc_tensor_rows(y) == mc_tensor_rows(x)) y->lengths = x->lengths;
    return y;
}

mc_tensor *mc_with_lengths(mc_tape *t, mc_tensor *x, const mc_lengths *lengths)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_op_ready(t, "with lengths", x)) return NULL;
    if (!lengths)
        mc_fail(ctx, MC_ERR_ARGUMENT, "with lengths: lengths are NULL");
    else if (x->shape.ndim < 1 || x->shape.dim[0] != lengths->capacity)
        mc_fail(ctx, MC_ERR_SHAPE,
                "with lengths: x %s, expected (%" PRId64 ", ...): a row for each of the batch",
                MC_SHAPE_TEXT(x->shape), lengths->capacity);
    return mc_failed(ctx) ? NULL : view_of(t, x, x->shape, lengths);
}

mc_tensor *mc_argmax(mc_tape *t, mc_tensor *x)
{
    if (!mc_op_ready(t, "argmax", x) || !mc_op_float(t, "argmax", "input", x)) return NULL;
    if (mc_tensor_columns(x) < 1) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE, "argmax: input %s has no columns",
                MC_SHAPE_TEXT(x->shape));
        return NULL;
    }
    mc_tensor *y = mc_tape_tensor(t, MC_I32, MC_SHAPE(mc_tensor_rows(x)), NULL);
    if (y)
        MC_KERNEL(t, "argmax", argmax, mc_tensor_rows(x), mc_tensor_columns(x), mc_matrix_of(x),
                  mc_tensor_data(y));
    return mc_failed(mc_tape_context(t)) ? NULL : y;
}
