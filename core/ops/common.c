#include "core/ops/ops_internal.h"

#include "core/autograd/step_internal.h"

mc_matrix mc_saved_matrix(mc_tape *t, mc_tensor *x)
{
    void *data = mc_saved_data(t, x);
    return (mc_matrix){data, x->dtype, mc_tensor_columns(x)};
}

/* Whether kernels can add to the gradient directly. */
static bool is_f32_leaf(const mc_tensor *x) { return x->is_leaf && x->gradient->dtype == MC_F32; }

float *mc_vector_gradient_begin(mc_tape *t, mc_tensor *x)
{
    if (!x || !x->requires_grad || mc_failed(mc_tape_context(t))) return NULL;
    if (is_f32_leaf(x))
        return mc_blank_fill(mc_tape_context(t), x->blank) ? NULL : mc_tensor_data(x->gradient);
    size_t bytes = (size_t)mc_tensor_count(x) * sizeof(float);
    mc_device *device = mc_tape_device(t);
    float *scratch = device->alloc(device, bytes);
    if (!scratch)
        mc_fail_nomem(mc_tape_context(t), "the gradient of a vector");
    else
        device->kernels->zero(device, scratch, bytes);
    return scratch;
}

void mc_vector_gradient_end(mc_tape *t, mc_tensor *x, float *gradient)
{
    if (!gradient || is_f32_leaf(x)) return;
    mc_device *device = mc_tape_device(t);
    int64_t count = mc_tensor_count(x);
    bool accumulate;
    mc_tensor *target = mc_gradient_target(t, x, &accumulate);
    if (target)
        device->kernels->scale(device, count, (mc_matrix){gradient, MC_F32, count}, 1.0f,
                               mc_matrix_flat(target), accumulate);
    device->free(device, gradient, (size_t)count * sizeof(float));
}

mc_tensor *mc_op_copy_of(mc_tape *t, const char *op, mc_tensor *x)
{
    mc_tensor *y = mc_tape_tensor(t, x->dtype, x->shape, x);
    if (y)
        MC_KERNEL(t, op, scale, mc_tensor_count(x), mc_matrix_flat(x), 1.0f, mc_matrix_flat(y),
                  false);
    return y;
}

mc_tensor *mc_op_take(mc_tape *t, const char *op, mc_tensor *x)
{
    mc_tensor *y = mc_tape_take(t, x);
    return y ? y : mc_op_copy_of(t, op, x);
}

bool mc_op_float(mc_tape *t, const char *op, const char *what, const mc_tensor *x)
{
    if (mc_dtype_is_float(x->dtype)) return true;
    mc_fail(mc_tape_context(t), MC_ERR_DTYPE, "%s: %s has dtype %s, expected f32, f16 or bf16", op,
            what, mc_dtype_name(x->dtype));
    return false;
}

bool mc_op_same_dtype(mc_tape *t, const char *op, const char *what, const mc_tensor *x,
                      mc_dtype dtype)
{
    if (x->dtype == dtype) return true;
    mc_fail(mc_tape_context(t), MC_ERR_DTYPE, "%s: %s has dtype %s, expected %s", op, what,
            mc_dtype_name(x->dtype), mc_dtype_name(dtype));
    return false;
}

bool mc_op_shape(mc_tape *t, const char *op, const char *what, const mc_tensor *x,
                 mc_shape expected)
{
    if (mc_shape_equal(x->shape, expected)) return true;
    mc_fail(mc_tape_context(t), MC_ERR_SHAPE, "%s: %s has shape %s, expected %s", op, what,
            MC_SHAPE_TEXT(x->shape), MC_SHAPE_TEXT(expected));
    return false;
}

bool mc_op_activation(mc_tape *t, const char *op, mc_activation activation)
{
    if ((int)activation >= MC_ACTIVATION_NONE && activation <= MC_ACTIVATION_SILU) return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                    "%s: activation %d, expected an mc_activation", op, (int)activation);
}

/* Whether the contents may differ in each run of a recording: true for tensors of the context. */
static bool is_refilled(mc_tape *t, const mc_tensor *x)
{
    return mc_step_is_recording(mc_tape_context(t)) && !x->storage->source;
}

static const void *host_contents(mc_tape *t, const char *op, const mc_tensor *x)
{
    const void *host = mc_tensor_host(x);
    mc_device *device = mc_tape_device(t);
    size_t bytes = (size_t)mc_tensor_count(x) * mc_dtype_size(x->dtype);
    if (host || mc_failed(mc_tape_context(t))) return host;
    void *copy = mc_tape_alloc(t, bytes + 1);
    if (!copy || !bytes || device->copy_out(device, copy, mc_tensor_data(x), bytes)) return copy;
    mc_fail(mc_tape_context(t), MC_ERR_DEVICE, "%s: %s", op, device->failure);
    return NULL;
}

const void *mc_op_host(mc_tape *t, const char *op, const mc_tensor *x)
{
    if (is_refilled(t, x)) {
        mc_fail(mc_tape_context(t), MC_ERR_STATE,
                "%s: reads a tensor %s on the host, which a recorded step would not do again", op,
                MC_SHAPE_TEXT(x->shape));
        return NULL;
    }
    return host_contents(t, op, x);
}

bool mc_op_host_lengths(mc_tape *t, const char *op, const mc_lengths *lengths)
{
    if (!lengths->fixed || !is_refilled(t, lengths->fixed)) return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_STATE,
                    "%s: reads lengths on the host, which a recorded step would not do again", op);
}

static int64_t index_at(const void *data, mc_dtype dtype, int64_t i)
{
    return dtype == MC_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

/* Indices to check. */
typedef struct index_check {
    const char *op, *what;
    const void *data;
    mc_dtype dtype;
    int64_t count, limit;
    int32_t ignored;
    const mc_lengths *lengths; /* NULL: not known */
} index_check;

/* The sequence that an element is of; -1: not known. */
static int sequence_of(const mc_lengths *l, int64_t element)
{
    for (int i = 0; l && i < l->count; i++)
        if (element >= l->offset[i] && element < l->offset[i] + l->length[i]) return i;
    return -1;
}

/* Sets an error that names the first index out of range. */
static mc_status check_indices(mc_context *ctx, void *data)
{
    const index_check *c = data;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t value = index_at(c->data, c->dtype, i);
        if ((value >= 0 && value < c->limit) || value == c->ignored) continue;
        int sequence = sequence_of(c->lengths, i);
        if (sequence >= 0)
            return mc_fail(ctx, MC_ERR_ARGUMENT,
                           "%s: %s of sequence %d, token %lld (from 0): %lld, expected 0 to %lld",
                           c->op, c->what, sequence, (long long)i - c->lengths->offset[sequence],
                           (long long)value, (long long)c->limit - 1);
        return mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %s[%lld] = %lld, expected 0 to %lld", c->op,
                       c->what, (long long)i, (long long)value, (long long)c->limit - 1);
    }
    return MC_OK;
}

mc_tensor *mc_op_indices(mc_tape *t, const char *op, const char *what, mc_tensor *x, int64_t count,
                         int64_t limit, int32_t ignored)
{
    mc_context *ctx = mc_tape_context(t);
    if (!mc_op_ready(t, op, x)) return NULL;
    if (!mc_dtype_is_index(x->dtype)) {
        mc_fail(ctx, MC_ERR_DTYPE, "%s: %s has dtype %s, expected i32 or i64", op, what,
                mc_dtype_name(x->dtype));
        return NULL;
    }
    if (mc_tensor_count(x) != count) {
        mc_fail(ctx, MC_ERR_SHAPE, "%s: %s has shape %s, expected %lld elements", op, what,
                MC_SHAPE_TEXT(x->shape), (long long)count);
        return NULL;
    }
    if (x->storage->computed) return mc_tape_view(t, x, MC_SHAPE(count), 0);
    index_check check = {op, what, host_contents(t, op, x), x->dtype, count, limit, ignored, NULL};
    if (x->lengths && !x->lengths->fixed) check.lengths = x->lengths;
    if (!check.data || check_indices(ctx, &check)) return NULL;
    if (x->dtype == MC_I32) {
        check.lengths = NULL; /* the tape's */
        if (is_refilled(t, x) && mc_step_before(ctx, check_indices, &check, sizeof check))
            return NULL;
        return mc_tape_view(t, x, MC_SHAPE(count), 0);
    }
    const void *data = mc_op_host(t, op, x);
    if (!data) return NULL;
    int32_t *narrow = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *narrow);
    if (!narrow) return NULL;
    for (int64_t i = 0; i < count; i++) narrow[i] = (int32_t)((const int64_t *)data)[i];
    return mc_tape_input(t, MC_I32, MC_SHAPE(count), narrow, false);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

bool mc_shape_is_end(mc_shape shape, mc_shape end)
{
    if (end.ndim > shape.ndim) return false;
    for (int i = 1; i <= end.ndim; i++)
        if (shape.dim[shape.ndim - i] != end.dim[end.ndim - i]) return false;
    return true;
}

void mc_gradient_sum_leading(mc_tape *t, const char *op, mc_tensor *b, mc_tensor *g)
{
    bool accumulate;
    mc_tensor *db = mc_gradient_target(t, b, &accumulate);
    if (db)
        MC_KERNEL(t, op, sum_leading, mc_tensor_count(g), mc_matrix_flat(g), mc_tensor_count(b),
                  mc_matrix_flat(db), accumulate);
}

bool mc_op_around(mc_tape *t, const char *op, const mc_tensor *x, int dim, mc_around *out)
{
    int ndim = x->shape.ndim, at = dim < 0 ? dim + ndim : dim;
    if (at < 0 || at >= ndim) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                "%s: dimension %d of input %s, expected %d to %d", op, dim, MC_SHAPE_TEXT(x->shape),
                -ndim, ndim - 1);
        return false;
    }
    *out = (mc_around){.dim = at, .outer = 1, .size = x->shape.dim[at], .inner = 1};
    for (int i = 0; i < at; i++) out->outer *= x->shape.dim[i];
    for (int i = at + 1; i < ndim; i++) out->inner *= x->shape.dim[i];
    return true;
}

static mc_matrix flat_from(const mc_tensor *x, int64_t first)
{
    mc_matrix m = mc_matrix_flat(x);
    if (m.data) m.data = (char *)m.data + (size_t)first * mc_dtype_size(m.dtype);
    return m;
}

/* Merges neighbouring dimensions that are contiguous, and drops those of size 1. */
static mc_strided_shape joined(mc_strided_shape s)
{
    mc_strided_shape out = {.ndim = 0};
    for (int i = 0; i < s.ndim; i++) {
        int last = out.ndim - 1;
        if (s.size[i] == 1) continue;
        if (last >= 0 && out.x[last] == s.size[i] * s.x[i] && out.y[last] == s.size[i] * s.y[i]) {
            out.size[last] *= s.size[i];
        } else {
            last = out.ndim++;
            out.size[last] = s.size[i];
        }
        out.x[last] = s.x[i];
        out.y[last] = s.y[i];
    }
    if (out.ndim) return out;
    return (mc_strided_shape){.ndim = 1, .size = {1}, .x = {1}, .y = {1}};
}

void mc_op_copy(mc_tape *t, const char *op, mc_strided_shape shape, const mc_tensor *x,
                int64_t x_first, float factor, mc_tensor *y, int64_t y_first, bool accumulate)
{
    for (int i = 0; i < shape.ndim; i++)
        if (shape.size[i] == 0) return;
    shape = joined(shape);
    MC_KERNEL(t, op, strided_copy, &shape, flat_from(x, x_first), factor, flat_from(y, y_first),
              accumulate);
}

const mc_lengths *mc_op_lengths(mc_tape *t, const char *op, mc_tensor *x)
{
    if (!mc_op_ready(t, op, x) || !mc_op_float(t, op, "input", x)) return NULL;
    if (!x->lengths || x->lengths->capacity != mc_tensor_rows(x))
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                "%s: input %s carries no lengths of a packed batch", op, MC_SHAPE_TEXT(x->shape));
    return mc_failed(mc_tape_context(t)) ? NULL : x->lengths;
}
