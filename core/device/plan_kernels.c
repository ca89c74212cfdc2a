/* The kernels of the planning device, which compute nothing: each reports its work and allocates
 * the scratch memory of the real kernel. A kernel that is added to the table must be added here. */
#include "core/device/plan_internal.h"
#include "core/device/plan_timer_internal.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Ends a kernel: its work passes, then the real kernel's scratch memory is allocated and freed. */
#define DO(d, work, kernel, ...)                                 \
    do {                                                         \
        mc_status status_ = (work);                              \
        const mc_kernels *scratch_ = mc_plan_scratch_kernels(d); \
        if (status_ || !scratch_->kernel) return status_;        \
        bool entered_ = mc_device_enter(mc_plan_like(d));        \
        status_ = scratch_->kernel((d), __VA_ARGS__);            \
        mc_device_leave(mc_plan_like(d), entered_);              \
        return status_;                                          \
    } while (0)

/* ---- work ------------------------------------------------------------------------------------ */

/* Bytes per element; 0 for a matrix without data. */
static double size_of(mc_matrix x) { return x.data ? (double)mc_dtype_size(x.dtype) : 0; }

static mc_status product(mc_device *d, mc_work_kind kind, mc_dtype dtype, int64_t m, int64_t n,
                         int64_t k)
{
    double flop = 2.0 * (double)m * (double)n * (double)k;
    return mc_plan_work(
        d, (mc_work){.kind = kind, .dtype = dtype, .a = m, .b = n, .c = k, .amount = flop});
}

/* `bytes` per element, over all matrices that are read or written. */
static mc_status moved(mc_device *d, mc_work_kind kind, mc_dtype dtype, int64_t rows,
                       int64_t columns, double bytes)
{
    return mc_plan_work(d, (mc_work){.kind = kind,
                                     .dtype = dtype,
                                     .a = rows,
                                     .b = columns,
                                     .amount = (double)rows * (double)columns * bytes});
}

static mc_status copied(mc_device *d, mc_dtype dtype, int64_t rows, int64_t columns, double bytes)
{
    return moved(d, MC_WORK_COPY, dtype, rows, columns, bytes);
}

/* The work of a bias or activation, in a product's epilogue or as a separate pass. */
static mc_status activated(mc_device *d, mc_work_kind kind, int64_t rows, int64_t columns,
                           mc_matrix x, mc_activation activation)
{
    return mc_plan_work(d, (mc_work){.kind = kind,
                                     .dtype = x.dtype,
                                     .a = rows,
                                     .b = columns,
                                     .c = (int64_t)activation,
                                     .amount = (double)rows * (double)columns * size_of(x)});
}

static mc_status biased(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, mc_matrix bias,
                        mc_activation activation)
{
    if (activation == MC_ACTIVATION_NONE && !bias.data) return MC_OK;
    bool active = activation != MC_ACTIVATION_NONE;
    return activated(d, active ? MC_WORK_ACTIVATION : MC_WORK_BIAS, rows, columns, x, activation);
}

static mc_status normed(mc_device *d, mc_work_kind kind, int64_t rows, int64_t columns, mc_matrix x,
                        mc_dropout_mask dropout, bool branch_sums, double bytes)
{
    return mc_plan_work(d, (mc_work){.kind = kind,
                                     .dtype = x.dtype,
                                     .a = rows,
                                     .b = columns,
                                     .c = branch_sums,
                                     .dropout = dropout.p > 0,
                                     .amount = (double)rows * (double)columns * bytes});
}

/* Products of queries, keys and a head's size: `products` by head_dim and `value_products` by
 * value_dim; one each forward, three and two backward. */
static mc_status attended(mc_device *d, mc_work_kind kind, const mc_attention_shape *shape,
                          mc_dtype dtype, int products, int value_products)
{
    const mc_lengths *q = shape->lengths, *k = mc_key_lengths(shape);
    int right = shape->causal ? 1 : shape->window_right;
    double scores = 0, window = shape->window_left && right ? shape->window_left + right - 1.0 : 0;
    for (int i = 0; i < q->count; i++) {
        double pairs = (double)q->length[i] * (double)k->length[i];
        if (shape->causal) pairs /= 2;
        if (shape->global_queries) pairs = (double)k->length[i]; /* assumes one global token */
        scores += window && pairs > q->length[i] * window ? q->length[i] * window : pairs;
    }
    int64_t columns = (int64_t)products * shape->head_dim + value_products * mc_value_dim(shape);
    return mc_plan_work(d,
                        (mc_work){.kind = kind,
                                  .dtype = dtype,
                                  .a = q->longest,
                                  .b = shape->head_dim,
                                  .c = (int64_t)shape->heads * q->count,
                                  .dropout = shape->dropout.p > 0,
                                  .causal = shape->causal,
                                  .amount = 2 * scores * (double)shape->heads * (double)columns});
}

/* ---- kernels --------------------------------------------------------------------------------- */

static mc_status plan_gemm(mc_device *d, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                           int64_t k, float alpha, mc_matrix a, mc_matrix b, float beta,
                           mc_matrix c)
{
    DO(d,
       product(d,
               transpose_a   ? MC_WORK_PRODUCT_TN
               : transpose_b ? MC_WORK_PRODUCT_NT
                             : MC_WORK_PRODUCT_NN,
               a.dtype, m, n, k),
       gemm, transpose_a, transpose_b, m, n, k, alpha, a, b, beta, c);
}

static mc_status plan_linear(mc_device *d, const mc_linear_call *c)
{
    mc_status status = product(d, MC_WORK_PRODUCT_NT, c->x.dtype, c->rows, c->out, c->in);
    if (!status) status = biased(d, c->rows, c->out, c->y, c->bias, c->activation);
    DO(d, status, linear, c);
}

static mc_status plan_linear_backward_input(mc_device *d, const mc_linear_backward_call *c)
{
    mc_matrix dy = c->dy, dx = c->dx;
    mc_status status = product(d, MC_WORK_PRODUCT_NN, dy.dtype, c->rows, c->in, c->out);
    if (!status && c->activation != MC_ACTIVATION_NONE)
        status = activated(d, MC_WORK_ACTIVATION_BACKWARD, c->rows, c->in, c->pre, c->activation);
    if (!status && c->sums) status = moved(d, MC_WORK_SUMS, dx.dtype, c->rows, c->in, size_of(dx));
    if (!status && c->dbias)
        status = moved(d, MC_WORK_SUMS, dy.dtype, c->rows, c->out, size_of(dy));
    DO(d, status, linear_backward_input, c);
}

static mc_status plan_bias_activation(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                      mc_matrix bias, mc_activation activation, mc_matrix y)
{
    DO(d, biased(d, rows, columns, x, bias, activation), bias_activation, rows, columns, x, bias,
       activation, y);
}

static mc_status plan_activation_backward(mc_device *d, int64_t rows, int64_t columns,
                                          mc_activation activation, mc_matrix x, float factor,
                                          mc_matrix dy, mc_matrix dx, bool accumulate)
{
    DO(d, activated(d, MC_WORK_ACTIVATION_BACKWARD, rows, columns, x, activation),
       activation_backward, rows, columns, activation, x, factor, dy, dx, accumulate);
}

static mc_status plan_activation(mc_device *d, int64_t rows, int64_t columns,
                                 mc_activation activation, mc_matrix x, mc_matrix y)
{
    DO(d, activated(d, MC_WORK_ACTIVATION, rows, columns, x, activation), activation, rows, columns,
       activation, x, y);
}

static mc_status plan_column_sums(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                  float *out)
{
    DO(d, moved(d, MC_WORK_SUMS, x.dtype, rows, columns, size_of(x)), column_sums, rows, columns, x,
       out);
}

static mc_status plan_residual_norm(mc_device *d, const mc_residual_norm_call *c)
{
    DO(d,
       normed(d, MC_WORK_NORM, c->rows, c->columns, c->x, c->dropout, false,
              size_of(c->x) + size_of(c->f) + size_of(c->s) + size_of(c->y)),
       residual_norm, c);
}

static mc_status plan_residual_norm_backward(mc_device *d, const mc_residual_norm_backward_call *c)
{
    double bytes = size_of(c->s) + size_of(c->dy) + (c->accumulate ? 2 : 1) * size_of(c->ds);
    DO(d,
       normed(d, MC_WORK_NORM_BACKWARD, c->rows, c->columns, c->s, c->dropout, c->dbranch,
              bytes + size_of(c->df)),
       residual_norm_backward, c);
}

static mc_status plan_dropout(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, bool relu,
                              mc_dropout_mask dropout, mc_matrix y, bool accumulate)
{
    DO(d, copied(d, x.dtype, rows, columns, size_of(x) + (accumulate ? 2 : 1) * size_of(y)),
       dropout, rows, columns, x, relu, dropout, y, accumulate);
}

static mc_status plan_embedding(mc_device *d, int64_t rows, int64_t columns, int tables,
                                const mc_matrix *table, const int32_t *const *index, float scale,
                                mc_matrix y)
{
    DO(d, copied(d, y.dtype, rows, columns, (tables + 1) * size_of(y)), embedding, rows, columns,
       tables, table, index, scale, y);
}

static mc_status plan_embedding_backward(mc_device *d, int64_t rows, int64_t columns, mc_matrix dy,
                                         const int32_t *index, float scale, mc_matrix dtable)
{
    DO(d, copied(d, dy.dtype, rows, columns, size_of(dy) + 2 * size_of(dtable)), embedding_backward,
       rows, columns, dy, index, scale, dtable);
}

static mc_status plan_token_positions(mc_device *d, const mc_lengths *lengths,
                                      const int32_t *device_lengths, const int32_t *ids,
                                      int32_t pad, int32_t first, int32_t *position)
{
    DO(d, copied(d, MC_F32, lengths->capacity, 1, 2 * sizeof *ids), token_positions, lengths,
       device_lengths, ids, pad, first, position);
}

static mc_status plan_find_blanks(mc_device *d, const mc_lengths *lengths,
                                  const int32_t *device_lengths, const mc_blanks_call *call)
{
    DO(d, copied(d, MC_F32, lengths->capacity, 1, 4 * sizeof *call->ids), find_blanks, lengths,
       device_lengths, call);
}

static mc_status plan_gather_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                  const int32_t *index, mc_matrix y)
{
    DO(d, copied(d, x.dtype, rows, columns, 2 * size_of(x)), gather_rows, rows, columns, x, index,
       y);
}

static mc_status plan_attention(mc_device *d, mc_attention_shape *shape, mc_matrix q, mc_matrix k,
                                mc_matrix v, mc_matrix out, float *log_sum_exp)
{
    DO(d, attended(d, MC_WORK_ATTENTION, shape, q.dtype, 1, 1), attention, shape, q, k, v, out,
       log_sum_exp);
}

static mc_status plan_attention_backward(mc_device *d, const mc_attention_shape *shape, mc_matrix q,
                                         mc_matrix k, mc_matrix v, mc_matrix out,
                                         const float *log_sum_exp, mc_matrix dout, mc_matrix dq,
                                         mc_matrix dk, mc_matrix dv)
{
    DO(d, attended(d, MC_WORK_ATTENTION_BACKWARD, shape, q.dtype, 3, 2), attention_backward, shape,
       q, k, v, out, log_sum_exp, dout, dq, dk, dv);
}

static mc_status plan_cross_entropy(mc_device *d, int64_t rows, int64_t classes, mc_matrix x,
                                    const int32_t *labels, int32_t ignore_index, float smoothing,
                                    const float *seed, float *loss, mc_matrix dx)
{
    double passes = dx.data ? 2 : 1;
    if (dx.data) mc_plan_logits(d, (size_t)(rows * x.stride) * mc_dtype_size(x.dtype));
    DO(d, moved(d, MC_WORK_CROSS_ENTROPY, x.dtype, rows, classes, passes * size_of(x)),
       cross_entropy, rows, classes, x, labels, ignore_index, smoothing, seed, loss, dx);
}

static mc_status plan_loss_add(mc_device *d, const float *a, const float *b, float factor, float *y,
                               float *k_out)
{
    return MC_OK;
}

static mc_status plan_argmax(mc_device *d, int64_t rows, int64_t columns, mc_matrix x, int32_t *out)
{
    DO(d, copied(d, x.dtype, rows, columns, size_of(x)), argmax, rows, columns, x, out);
}

static mc_status plan_add(mc_device *d, int64_t count, mc_matrix a, mc_matrix b, int64_t b_count,
                          mc_matrix y)
{
    DO(d, copied(d, a.dtype, 1, count, 2 * size_of(a) + size_of(y)), add, count, a, b, b_count, y);
}

static mc_status plan_multiply(mc_device *d, int64_t count, mc_matrix a, mc_matrix b,
                               int64_t b_count, mc_matrix y, bool accumulate)
{
    DO(d, copied(d, a.dtype, 1, count, 2 * size_of(a) + (accumulate ? 2 : 1) * size_of(y)),
       multiply, count, a, b, b_count, y, accumulate);
}

static mc_status plan_scale(mc_device *d, int64_t count, mc_matrix x, float factor, mc_matrix y,
                            bool accumulate)
{
    DO(d, copied(d, x.dtype, 1, count, size_of(x) + (accumulate ? 2 : 1) * size_of(y)), scale,
       count, x, factor, y, accumulate);
}

static mc_status plan_sum_leading(mc_device *d, int64_t count, mc_matrix x, int64_t y_count,
                                  mc_matrix y, bool accumulate)
{
    DO(d, copied(d, x.dtype, 1, count, size_of(x)), sum_leading, count, x, y_count, y, accumulate);
}

static mc_status plan_fill(mc_device *d, mc_fill fill, int64_t first, int64_t count, mc_matrix out)
{
    DO(d, copied(d, out.dtype, 1, count, size_of(out)), fill, fill, first, count, out);
}

static mc_status plan_zero(mc_device *d, void *data, size_t bytes)
{
    DO(d, copied(d, MC_F32, 1, (int64_t)(bytes / sizeof(float)), sizeof(float)), zero, data, bytes);
}

/* Bytes per element that an update moves for a parameter: reads and writes the master copy and
 * writes the parameter, or reads and writes the parameter. */
static double update_bytes(const float *master, mc_dtype dtype)
{
    return (master ? 8 : 0) + (master ? 1 : 2) * (double)mc_dtype_size(dtype);
}

static mc_status plan_adam(mc_device *d, int64_t count, mc_adam_step step, mc_matrix gradient,
                           float *m, float *v, float *master, void *parameter,
                           mc_dtype parameter_dtype)
{
    DO(d,
       moved(d, MC_WORK_ADAM, parameter_dtype, 1, count,
             16 + size_of(gradient) + update_bytes(master, parameter_dtype)),
       adam, count, step, gradient, m, v, master, parameter, parameter_dtype);
}

static mc_status plan_adam8(mc_device *d, int64_t count, mc_adam_step step, mc_matrix gradient,
                            mc_state8 m, mc_state8 v, float *master, void *parameter,
                            mc_dtype parameter_dtype)
{
    DO(d,
       moved(d, MC_WORK_ADAM, parameter_dtype, 1, count,
             4 + size_of(gradient) + update_bytes(master, parameter_dtype)),
       adam8, count, step, gradient, m, v, master, parameter, parameter_dtype);
}

static mc_status plan_sgd(mc_device *d, int64_t count, mc_sgd_step step, mc_matrix gradient,
                          float *buffer, float *master, void *parameter, mc_dtype parameter_dtype)
{
    DO(d,
       moved(d, MC_WORK_ADAM, parameter_dtype, 1, count,
             size_of(gradient) + (buffer ? 8 : 0) + update_bytes(master, parameter_dtype)),
       sgd, count, step, gradient, buffer, master, parameter, parameter_dtype);
}

static mc_status plan_muon_momentum(mc_device *d, int64_t count, mc_muon_step step,
                                    mc_matrix gradient, float *buffer, mc_matrix x)
{
    DO(d, moved(d, MC_WORK_ADAM, MC_F32, 1, count, 8 + size_of(gradient) + size_of(x)),
       muon_momentum, count, step, gradient, buffer, x);
}

static mc_status plan_muon_normalize(mc_device *d, int64_t count, const mc_gradient_stats *stats,
                                     float least, mc_matrix x)
{
    DO(d, copied(d, x.dtype, 1, count, 2 * size_of(x)), muon_normalize, count, stats, least, x);
}

static mc_status plan_muon_mirror(mc_device *d, int64_t batch, int64_t n, int64_t strip,
                                  mc_matrix x, int64_t step)
{
    double part = 1 - (double)strip / (double)(n ? n : 1); /* read, and written: half of it each */
    DO(d, copied(d, x.dtype, batch * n, n, part * size_of(x)), muon_mirror, batch, n, strip, x,
       step);
}

static mc_status plan_muon_update(mc_device *d, int64_t count, mc_muon_step step, mc_matrix x,
                                  float *master, void *parameter, mc_dtype parameter_dtype)
{
    DO(d,
       moved(d, MC_WORK_ADAM, parameter_dtype, 1, count,
             size_of(x) + update_bytes(master, parameter_dtype)),
       muon_update, count, step, x, master, parameter, parameter_dtype);
}

static mc_status plan_gradient_stats(mc_device *d, int64_t count, mc_matrix gradient, double power,
                                     int64_t first, mc_gradient_stats *stats)
{
    DO(d, moved(d, MC_WORK_STATS, gradient.dtype, 1, count, size_of(gradient)), gradient_stats,
       count, gradient, power, first, stats);
}

static mc_status plan_step_seed(mc_device *d, double nominal, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_count(mc_device *d, const float *loss, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_measure(mc_device *d, mc_step_rules rules, int ranks,
                                   const mc_step_sums *parts, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_decide(mc_device *d, mc_step_rules rules, mc_step_state *state)
{
    return MC_OK;
}

static mc_status plan_step_update(mc_device *d, const mc_step_state *state,
                                  const mc_update_guess *guess, mc_update *update)
{
    return MC_OK;
}

static mc_status plan_residual_sum(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   mc_matrix f, mc_dropout_mask dropout, mc_matrix s)
{
    DO(d, copied(d, x.dtype, rows, columns, size_of(x) + size_of(f) + size_of(s)), residual_sum,
       rows, columns, x, f, dropout, s);
}

static mc_status plan_scatter_rows(mc_device *d, int64_t rows, int64_t columns, mc_matrix x,
                                   const int32_t *index, mc_matrix y)
{
    DO(d, copied(d, x.dtype, rows, columns, 2 * size_of(x)), scatter_rows, rows, columns, x, index,
       y);
}

static mc_status plan_choose_tokens(mc_device *d, const mc_choose_call *call, mc_matrix logits)
{
    DO(d, copied(d, logits.dtype, call->rows, call->vocab, size_of(logits)), choose_tokens, call,
       logits);
}

static mc_status plan_best_tokens(mc_device *d, const mc_best_call *call, mc_matrix logits)
{
    DO(d, copied(d, logits.dtype, call->rows, call->vocab, size_of(logits)), best_tokens, call,
       logits);
}

static mc_status plan_attention_cached(mc_device *d, const mc_cached_attention *shape, mc_matrix q,
                                       mc_matrix k, mc_matrix v, mc_matrix out)
{
    int64_t columns = (int64_t)mc_cached_key_heads(shape) * shape->head_dim, rows = shape->longest;
    double both = 1 + (double)mc_cached_value_dim(shape) / shape->head_dim; /* keys and values */
    if (shape->window_left && rows > shape->window_left) rows = shape->window_left;
    DO(d, copied(d, q.dtype, shape->sequences * rows, columns, both * size_of(k)), attention_cached,
       shape, q, k, v, out);
}

static mc_status plan_gated(mc_device *d, int64_t rows, int64_t n, mc_activation activation,
                            mc_matrix x, mc_matrix y)
{
    DO(d, copied(d, x.dtype, rows, n, 2 * size_of(x) + size_of(y)), gated, rows, n, activation, x,
       y);
}

static mc_status plan_gated_backward(mc_device *d, int64_t rows, int64_t n,
                                     mc_activation activation, mc_matrix x, mc_matrix dy,
                                     mc_matrix dx, bool accumulate)
{
    double written = (accumulate ? 4 : 2) * size_of(dx);
    DO(d, copied(d, x.dtype, rows, n, 2 * size_of(x) + size_of(dy) + written), gated_backward, rows,
       n, activation, x, dy, dx, accumulate);
}

static mc_status plan_position_bias(mc_device *d, int64_t heads, int64_t distances, mc_matrix table,
                                    const int32_t *bucket, float *out)
{
    DO(d, copied(d, MC_F32, heads, distances, sizeof(float) + size_of(table)), position_bias, heads,
       distances, table, bucket, out);
}

static mc_status plan_position_bias_backward(mc_device *d, int64_t buckets, int64_t heads,
                                             int64_t distances, const float *dy,
                                             const int32_t *bucket, mc_matrix dtable,
                                             bool accumulate)
{
    DO(d, copied(d, MC_F32, heads, distances, sizeof(float)), position_bias_backward, buckets,
       heads, distances, dy, bucket, dtable, accumulate);
}

static mc_status plan_rotary(mc_device *d, int64_t rows, mc_rotation rotation,
                             const int32_t *positions, mc_matrix x)
{
    DO(d, copied(d, x.dtype, rows, (int64_t)rotation.heads * rotation.rotary_dim, 2 * size_of(x)),
       rotary, rows, rotation, positions, x);
}

static mc_status plan_tensor_stats(mc_device *d, int64_t count, mc_matrix x, mc_tensor_stats *out)
{
    DO(d, copied(d, x.dtype, 1, count, size_of(x)), tensor_stats, count, x, out);
}

/* ---- general operations ---------------------------------------------------------------------- */

static double bytes_changed(mc_matrix y, bool accumulate)
{
    return (accumulate ? 2 : 1) * size_of(y);
}

static mc_status plan_strided_copy(mc_device *d, const mc_strided_shape *shape, mc_matrix x,
                                   float factor, mc_matrix y, bool accumulate)
{
    int64_t columns = shape->size[shape->ndim - 1], rows = 1;
    for (int i = 0; i + 1 < shape->ndim; i++) rows *= shape->size[i];
    DO(d, copied(d, x.dtype, rows, columns, size_of(x) + bytes_changed(y, accumulate)),
       strided_copy, shape, x, factor, y, accumulate);
}

/* Priced as one product of all rows: the same FLOP, and a GPU also runs the batch at once. */
static mc_status plan_batched_gemm(mc_device *d, const mc_batched_gemm_call *c)
{
    DO(d,
       product(d,
               c->transpose_a   ? MC_WORK_PRODUCT_TN
               : c->transpose_b ? MC_WORK_PRODUCT_NT
                                : MC_WORK_PRODUCT_NN,
               c->a.dtype, c->batch * c->m, c->n, c->k),
       batched_gemm, c);
}

static mc_status plan_unary(mc_device *d, int64_t count, mc_unary kind, mc_matrix x, mc_matrix y)
{
    DO(d, copied(d, x.dtype, 1, count, size_of(x) + size_of(y)), unary, count, kind, x, y);
}

static mc_status plan_unary_backward(mc_device *d, int64_t count, mc_unary kind, mc_matrix x,
                                     mc_matrix dy, mc_matrix dx, bool accumulate)
{
    DO(d, copied(d, x.dtype, 1, count, size_of(x) + size_of(dy) + bytes_changed(dx, accumulate)),
       unary_backward, count, kind, x, dy, dx, accumulate);
}

static mc_status plan_binary(mc_device *d, int64_t count, mc_binary kind, mc_matrix a,
                             int64_t a_count, mc_matrix b, int64_t b_count, float factor,
                             mc_matrix y, bool accumulate)
{
    DO(d, copied(d, a.dtype, 1, count, size_of(a) + size_of(b) + bytes_changed(y, accumulate)),
       binary, count, kind, a, a_count, b, b_count, factor, y, accumulate);
}

static mc_status plan_sum_middle(mc_device *d, int64_t outer, int64_t size, int64_t inner,
                                 mc_matrix x, float factor, mc_matrix y, bool accumulate)
{
    DO(d, copied(d, x.dtype, outer * size, inner, size_of(x)), sum_middle, outer, size, inner, x,
       factor, y, accumulate);
}

static mc_status plan_row_map(mc_device *d, int64_t rows, int64_t columns, mc_row_map kind,
                              float eps, mc_matrix x, mc_matrix y)
{
    DO(d, copied(d, x.dtype, rows, columns, size_of(x) + size_of(y)), row_map, rows, columns, kind,
       eps, x, y);
}

static mc_status plan_row_map_backward(mc_device *d, int64_t rows, int64_t columns, mc_row_map kind,
                                       float eps, mc_matrix kept, mc_matrix dy, mc_matrix dx,
                                       bool accumulate)
{
    DO(d,
       copied(d, kept.dtype, rows, columns,
              size_of(kept) + size_of(dy) + bytes_changed(dx, accumulate)),
       row_map_backward, rows, columns, kind, eps, kept, dy, dx, accumulate);
}

static mc_status plan_mean_pool(mc_device *d, const mc_lengths *lengths,
                                const int32_t *device_lengths, int64_t columns, mc_matrix x,
                                mc_matrix y)
{
    DO(d, copied(d, x.dtype, lengths->total, columns, size_of(x)), mean_pool, lengths,
       device_lengths, columns, x, y);
}

static mc_status plan_mean_pool_backward(mc_device *d, const mc_lengths *lengths,
                                         const int32_t *device_lengths, int64_t columns,
                                         mc_matrix dy, mc_matrix dx, bool accumulate)
{
    DO(d, copied(d, dx.dtype, lengths->total, columns, bytes_changed(dx, accumulate)),
       mean_pool_backward, lengths, device_lengths, columns, dy, dx, accumulate);
}

static mc_status plan_max_pool(mc_device *d, const mc_lengths *lengths,
                               const int32_t *device_lengths, int64_t columns, mc_matrix x,
                               mc_matrix y)
{
    DO(d, copied(d, x.dtype, lengths->total, columns, size_of(x)), max_pool, lengths,
       device_lengths, columns, x, y);
}

static mc_status plan_max_pool_backward(mc_device *d, const mc_lengths *lengths,
                                        const int32_t *device_lengths, int64_t columns, mc_matrix x,
                                        mc_matrix y, mc_matrix dy, mc_matrix dx, bool accumulate)
{
    DO(d, copied(d, dx.dtype, lengths->total, columns, size_of(x) + bytes_changed(dx, accumulate)),
       max_pool_backward, lengths, device_lengths, columns, x, y, dy, dx, accumulate);
}

static mc_status plan_cross_entropy_rows(mc_device *d, const mc_row_loss_call *call, float *loss,
                                         float *weight)
{
    DO(d,
       moved(d, MC_WORK_CROSS_ENTROPY, call->x.dtype, call->rows, call->classes, size_of(call->x)),
       cross_entropy_rows, call, loss, weight);
}

static mc_status plan_cross_entropy_rows_backward(mc_device *d, const mc_row_loss_call *call,
                                                  const float *drows, mc_matrix dx, bool accumulate)
{
    DO(d,
       moved(d, MC_WORK_CROSS_ENTROPY, call->x.dtype, call->rows, call->classes,
             size_of(call->x) + bytes_changed(dx, accumulate)),
       cross_entropy_rows_backward, call, drows, dx, accumulate);
}

static mc_status plan_quantize(mc_device *d, mc_matrix x, mc_matrix8 q)
{
    DO(d, copied(d, x.dtype, q.rows, q.columns, 2 * size_of(x) + 1), quantize, x, q);
}

static mc_status plan_dequantize(mc_device *d, mc_matrix8 q, mc_matrix y)
{
    DO(d, copied(d, y.dtype, q.rows, q.columns, size_of(y) + 1), dequantize, q, y);
}

static mc_status plan_linear_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                       mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                       mc_matrix y)
{
    mc_status status = product(d, MC_WORK_PRODUCT_NT, x.dtype, rows, q.rows, q.columns);
    if (!status) status = biased(d, rows, q.rows, y, bias, activation);
    DO(d, status, linear_quantized, rows, alpha, x, q, bias, activation, y);
}

static mc_status plan_fp8_cast(mc_device *d, const mc_fp8_cast_call *c)
{
    double wide = !c->gated ? 1 : c->pre.data ? 0.5 : 2; /* columns of x for one of the result */
    double bytes =
        wide * size_of(c->x) + size_of(c->pre) + (c->data ? 1 : 0) + (c->transposed ? 1 : 0);
    DO(d, copied(d, c->x.dtype, c->rows, c->columns, bytes), fp8_cast, c);
}

static mc_status plan_fp8_cast_rows(mc_device *d, const mc_fp8_rows_call *c)
{
    DO(d, copied(d, c->x.dtype, c->rows, c->columns, size_of(c->x) + 1), fp8_cast_rows, c);
}

static mc_status plan_fp8_transpose(mc_device *d, int64_t rows, int64_t columns, const uint8_t *x,
                                    uint8_t *y, float *ones)
{
    DO(d, copied(d, MC_U8, rows, columns, 2), fp8_transpose, rows, columns, x, y, ones);
}

static mc_status plan_fp8_update(mc_device *d, const mc_fp8_update_call *c)
{
    DO(d, copied(d, MC_F32, c->ranks, c->count, sizeof *c->seen), fp8_update, c);
}

static mc_status plan_fp8_gemm(mc_device *d, const mc_fp8_gemm_call *c)
{
    mc_work_kind kind = c->fast ? MC_WORK_PRODUCT8_FAST : MC_WORK_PRODUCT8;
    DO(d, product(d, kind, MC_BF16, c->m, c->n, c->k), fp8_gemm, c);
}

const mc_kernels mc_plan_kernels = {
#define KERNEL(name) .name = plan_##name,
#include "core/device/kernels.def"
#undef KERNEL
};

/* Without this, a kernel that is missing in the list would be NULL. */
enum {
    LISTED = 0
#define KERNEL(name) +1
#include "core/device/kernels.def"
#undef KERNEL
};
_Static_assert(sizeof(mc_kernels) == LISTED * sizeof(void (*)(void)),
               "kernels.def lists every kernel of the table");
