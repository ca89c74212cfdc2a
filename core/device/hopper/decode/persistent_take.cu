/* Makes steps of a list of the kernel table's calls that its kernel can run: see
 * persistent_internal.h. */
#include <math.h>
#include "core/device/hopper/decode/persistent_plan_internal.h"
#include "core/device/cuda/runtime/kernels.cuh"

namespace
{

constexpr int MOST_HEAD = 256, MOST_NORM = 5 * MC_PERSISTENT_THREADS * 4;

bool is_half(mc_dtype dtype) { return dtype == MC_F16 || dtype == MC_BF16; }

/* Whether rows can be loaded 16 bytes at a time. */
bool is_whole(mc_matrix m, int64_t rows)
{
    return mc_is(m.data, 16) && (rows <= 1 || (m.stride % 8 == 0 && m.stride < INT32_MAX));
}

bool is_dense(mc_matrix m, int64_t rows, int64_t columns)
{
    return !m.data || (mc_is(m.data, 16) && (rows <= 1 || m.stride == columns));
}

mc_persistent_step step_of(mc_persistent_kind kind, int64_t rows, mc_dtype dtype)
{
    mc_persistent_step s = {};
    s.kind = kind;
    s.rows = (uint8_t)rows;
    s.dtype = (uint8_t)dtype;
    return s;
}

/* What linears with 16-bit and 8-bit weights have in common. */
bool take_linear(mc_device *d, const mc_linear_call *c, mc_persistent_step *step)
{
    mc_dtype dtype = mc_common_dtype(c->y, c->x, c->bias);
    if (!is_half(dtype) || c->in < 64 || c->in > MC_PERSISTENT_LONGEST || c->in % 8 != 0 ||
        c->out < 1 || c->out / mc_cuda_of(d)->multiprocessors >= UINT16_MAX ||
        !is_whole(c->x, c->rows) || c->y.stride >= INT32_MAX)
        return false;
    *step = step_of(MC_PERSISTENT_LINEAR, c->rows, dtype);
    step->activation = (uint8_t)c->activation;
    mc_persistent_linear *l = &step->linear;
    l->x = c->x.data, l->y = c->y.data, l->bias = c->bias.data;
    l->in = (uint16_t)c->in, l->out = (int32_t)c->out, l->alpha = c->alpha;
    l->x_stride = (int32_t)(c->rows > 1 ? c->x.stride : c->in);
    l->y_stride = (int32_t)(c->rows > 1 ? c->y.stride : c->out);
    return true;
}

bool take_norm(int64_t rows, int64_t columns, mc_matrix x, mc_matrix f, mc_dropout_mask dropout,
               mc_matrix s, mc_persistent_step *step)
{
    mc_dtype dtype = mc_common_dtype(x, f, s);
    if (!is_half(dtype) || columns % 4 != 0 || columns > MOST_NORM || dropout.p > 0.0f ||
        !is_dense(x, rows, columns) || !is_dense(f, rows, columns) || !is_dense(s, rows, columns))
        return false;
    *step = step_of(MC_PERSISTENT_NORM, rows, dtype);
    mc_persistent_norm *n = &step->norm;
    n->x = x.data, n->f = f.data, n->s = s.data;
    n->columns = (int32_t)columns;
    return true;
}

/* The shape's place in the list; -1: the list has no room for another. */
int shape_of(mc_persistent_list *list, const mc_persistent_shape *h)
{
    for (int i = 0; i < list->shapes; i++)
        if (memcmp(&list->shape[i], h, sizeof *h) == 0) return i;
    if (list->shapes == MC_PERSISTENT_SHAPES) return -1;
    list->shape[list->shapes] = *h;
    return list->shapes++;
}

bool heads_fit(const mc_cached_attention *c, mc_matrix q, mc_matrix k, mc_matrix v, mc_matrix out)
{
    mc_dtype dtype = mc_common_dtype(q, k, v, out, c->new_k, c->new_v);
    int64_t rows = c->sequences;
    return mc_cached_value_dim(c) == c->head_dim && is_half(dtype) && c->head_dim % 8 == 0 &&
           c->head_dim <= MOST_HEAD && (int64_t)c->heads * c->head_dim <= MC_PERSISTENT_WIDEST &&
           is_whole(q, rows) && is_whole(k, 2) && is_whole(v, 2) && is_whole(out, rows) &&
           (!c->new_k.data == !c->new_v.data) && (!c->new_k.data || is_whole(c->new_k, rows)) &&
           (!c->new_v.data || is_whole(c->new_v, rows));
}

} // namespace

extern "C" bool mc_persistent_usable(mc_device *d) { return mc_cuda_of(d)->capability == 90; }

extern "C" bool mc_persistent_take_linear(mc_device *d, const mc_linear_call *c,
                                          mc_persistent_step *step)
{
    bool keeps = c->pre.data && c->activation != MC_ACTIVATION_NONE;
    if (keeps || c->weight.dtype != c->y.dtype || !mc_is(c->weight.data, 16) ||
        c->weight.stride != c->in || !take_linear(d, c, step))
        return false;
    step->linear.weight = c->weight.data;
    return true;
}

extern "C" bool mc_persistent_take_quantized(mc_device *d, int64_t rows, float alpha, mc_matrix x,
                                             mc_matrix8 q, mc_matrix bias, mc_activation activation,
                                             mc_matrix y, mc_persistent_step *step)
{
    const mc_linear_call c = {rows, q.columns, q.rows, alpha, x, {}, bias, activation, {}, y};
    if (q.columns % 16 != 0 || !mc_is(q.data, 16) || !take_linear(d, &c, step)) return false;
    step->format = (uint8_t)q.format;
    step->linear.weight = q.data;
    step->linear.scale = q.scale;
    return true;
}

extern "C" bool mc_persistent_take_norm(const mc_residual_norm_call *c, mc_persistent_step *step)
{
    if (c->mean || c->rstd || !c->weight.data || !mc_is(c->weight.data, 16) ||
        mc_common_dtype(c->x, c->weight, c->bias, c->y) != c->x.dtype || !mc_is(c->bias.data, 16) ||
        !is_dense(c->y, c->rows, c->columns) || (!c->f.data && c->s.data) ||
        !take_norm(c->rows, c->columns, c->x, c->f, c->dropout, c->s, step))
        return false;
    step->norm.weight = c->weight.data, step->norm.bias = c->bias.data;
    step->norm.y = c->y.data, step->norm.eps = c->eps;
    return true;
}

extern "C" bool mc_persistent_take_sum(mc_device *, int64_t rows, int64_t columns, mc_matrix x,
                                       mc_matrix f, mc_dropout_mask dropout, mc_matrix s,
                                       mc_persistent_step *step)
{
    return f.data && s.data && s.data != x.data && s.data != f.data &&
           take_norm(rows, columns, x, f, dropout, s, step);
}

extern "C" bool mc_persistent_take_gated(mc_device *, int64_t rows, int64_t n,
                                         mc_activation activation, mc_matrix x, mc_matrix y,
                                         mc_persistent_step *step)
{
    mc_dtype dtype = mc_common_dtype(x, y);
    if (!is_half(dtype) || n % 8 != 0 || n > MC_PERSISTENT_LONGEST || !is_whole(x, rows) ||
        !is_whole(y, rows))
        return false;
    *step = step_of(MC_PERSISTENT_GATED, rows, dtype);
    step->activation = (uint8_t)activation;
    step->gated.x = x.data, step->gated.y = y.data, step->gated.n = (int32_t)n;
    step->gated.x_stride = (int32_t)(rows > 1 ? x.stride : 2 * n);
    step->gated.y_stride = (int32_t)(rows > 1 ? y.stride : n);
    return true;
}

extern "C" bool mc_persistent_take_rotary(mc_device *, int64_t rows, mc_rotation rotation,
                                          const int32_t *positions, mc_matrix x,
                                          mc_persistent_step *step)
{
    if (!is_half(x.dtype) || !is_whole(x, rows) ||
        rotation.rotary_dim / 2 > MC_PERSISTENT_THREADS || rotation.head_dim % 8 != 0 ||
        rotation.heads > INT16_MAX || rotation.head_dim > INT16_MAX)
        return false;
    *step = step_of(MC_PERSISTENT_ROTARY, rows, x.dtype);
    mc_persistent_rotary *r = &step->rotary;
    r->x = x.data, r->positions = positions;
    r->log2_base = log2((double)rotation.base);
    r->heads = (int16_t)rotation.heads, r->head_dim = (int16_t)rotation.head_dim;
    r->pairs = (int16_t)(rotation.rotary_dim / 2);
    r->x_stride = (int32_t)(rows > 1 ? x.stride : 0);
    r->sign = rotation.inverse ? -1.0f : 1.0f;
    r->halves = rotation.halves;
    r->magnitude = mc_rotary_magnitude(&rotation), r->factor = rotation.factor;
    for (int i = 0; i < 3; i++) r->keep[i] = (float)rotation.keep[i];
    return true;
}

extern "C" bool mc_persistent_take_attention(mc_device *, mc_persistent_list *list,
                                             const mc_cached_attention *c, mc_matrix q, mc_matrix k,
                                             mc_matrix v, mc_matrix out, mc_persistent_step *step)
{
    if (!heads_fit(c, q, k, v, out)) return false;
    auto stride = [=](mc_matrix m) { return (int32_t)(c->sequences > 1 ? m.stride : 0); };
    mc_persistent_shape h;
    memset(&h, 0, sizeof h);
    h.lengths = c->lengths, h.first = c->first, h.pages = c->pages, h.bias = c->position_bias;
    h.capacity = c->capacity, h.longest = c->longest;
    h.limit = c->position_bias ? c->position_limit : 0;
    h.heads = c->heads, h.head_dim = c->head_dim, h.page_shift = c->page_shift;
    h.sharing = c->heads / mc_cached_key_heads(c), h.window = c->window_left;
    h.scale = c->scale;
    h.q_stride = stride(q), h.out_stride = stride(out);
    h.new_k_stride = c->new_k.data ? stride(c->new_k) : 0;
    h.new_v_stride = c->new_v.data ? stride(c->new_v) : 0;
    h.k_stride = (int32_t)k.stride, h.v_stride = (int32_t)v.stride;
    int index = shape_of(list, &h);
    if (index < 0) return false;
    *step = step_of(MC_PERSISTENT_ATTENTION, c->sequences, q.dtype);
    mc_persistent_attention *a = &step->attention;
    a->q = q.data, a->k = k.data, a->v = v.data, a->out = out.data;
    a->new_k = c->new_k.data, a->new_v = c->new_v.data;
    a->shape = (int16_t)index;
    return true;
}

extern "C" mc_status mc_persistent_run(mc_device *d, mc_persistent_list *list)
{
    int together = 0;
    cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, mc_cuda_of(d)->ordinal);
    for (int i = 1; i < list->count; i++)
        if (list->step[i].dtype != list->step[0].dtype)
            return mc_cuda_fail(d, MC_ERR_UNSUPPORTED, "steps of different dtypes in one list");
    if (!list->count) return MC_OK;
    mc_persistent_plan(list, mc_cuda_of(d)->multiprocessors, together != 0);
    return mc_persistent_launch(d, list, together != 0);
}
