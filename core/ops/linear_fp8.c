#include "core/ops/fp8_internal.h"

#include "core/dist/comm.h"

enum { SEEN_WORDS = sizeof(mc_fp8_seen) / 8 };

/* ---- scales ---------------------------------------------------------------------------------- */

mc_status mc_fp8_find_scale(mc_context *ctx, const mc_rank_group *group,
                            const mc_fp8_cast_call *what, mc_fp8_role role, int margin,
                            mc_fp8_seen *seen, mc_fp8_scale *to)
{
    mc_device *device = ctx->device;
    struct mc_comm *comm = group ? group->comm : NULL;
    mc_fp8_seen *own = seen + (comm ? group->rank : 0);
    mc_fp8_cast_call look = *what;
    mc_fp8_update_call update = {.count = 1,
                                 .ranks = comm ? group->size : 1,
                                 .first_role = role,
                                 .current = true,
                                 .margin = margin,
                                 .seen = seen,
                                 .scales = to};
    look.scale = NULL;
    look.data = look.transposed = NULL;
    look.seen = own;
    mc_status status = device->kernels->zero(device, own, sizeof *own);
    if (!status && look.rows) status = device->kernels->fp8_cast(device, &look);
    if (!status && comm) status = mc_comm_all_gather(comm, own, seen, SEEN_WORDS, MC_I64);
    return status ? status : device->kernels->fp8_update(device, &update);
}

const mc_fp8_scale *mc_fp8_scale_for(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role,
                                     const mc_fp8_source *x, mc_fp8_scale *to)
{
    mc_context *ctx = mc_tape_context(t);
    if (!use->current) return &use->scales[role];
    /* weights are equal on all ranks */
    const mc_rank_group *group = role == MC_FP8_WEIGHT ? NULL : &ctx->mesh.shard;
    mc_tensor *seen = mc_scratch_new(t, MC_I64, MC_SHAPE((group ? group->size : 1) * SEEN_WORDS));
    if (!seen) return NULL;
    mc_fp8_cast_call what = {.rows = x->rows,
                             .columns = x->columns,
                             .x = x->x,
                             .activation = x->activation,
                             .gated = x->gated,
                             .pre = x->pre};
    mc_status status =
        mc_fp8_find_scale(ctx, group, &what, role, use->margin, mc_tensor_data(seen), to);
    mc_scratch_free(seen);
    return mc_op_ok(t, "linear in 8 bits", status) ? to : NULL;
}

/* Memory for a scale outside of use->scales; NULL without an error if none is needed. */
static mc_tensor *own_scale(mc_tape *t, const mc_fp8_use *use)
{
    if (!use->current) return NULL;
    return mc_tape_tensor(t, MC_F32, MC_SHAPE((int64_t)(sizeof(mc_fp8_scale) / sizeof(float))),
                          NULL);
}

/* ---- casts ----------------------------------------------------------------------------------- */

mc_fp8_forms mc_fp8_forms_of(mc_tape *t, bool data, bool transposed)
{
    if (mc_tape_device(t)->fp8_tn) return (mc_fp8_forms){.data = data, .transposed = transposed};
    return (mc_fp8_forms){.data = data || transposed};
}

size_t mc_fp8_data_bytes(const mc_fp8_operand *x) { return (size_t)(x->rows * x->columns); }
size_t mc_fp8_transposed_bytes(const mc_fp8_operand *x) { return (size_t)(x->padded * x->columns); }

bool mc_fp8_cast_into(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role, const mc_fp8_source *x,
                      const mc_fp8_scale *scale, bool noted, mc_fp8_operand *out)
{
    mc_fp8_cast_call call = {.rows = out->rows,
                             .columns = out->columns,
                             .padded = out->padded,
                             .x = x->x,
                             .activation = x->activation,
                             .gated = x->gated,
                             .pre = x->pre,
                             .sums = x->sums,
                             .format = mc_fp8_format_of(role),
                             .scale = &scale->scale,
                             .seen = noted && use->seen ? &use->seen[role] : NULL,
                             .data = (uint8_t *)(uintptr_t)out->data,
                             .transposed = (uint8_t *)(uintptr_t)out->transposed};
    out->format = call.format;
    out->inverse = &scale->inverse;
    return MC_KERNEL(t, "linear in 8 bits", fp8_cast, &call);
}

bool mc_fp8_cast_new(mc_tape *t, const mc_fp8_use *use, mc_fp8_role role, const mc_fp8_source *x,
                     const mc_fp8_scale *scale, mc_fp8_forms forms, mc_fp8_operand *out)
{
    int64_t rows = x->rows, columns = x->columns;
    *out = (mc_fp8_operand){.rows = rows, .columns = columns, .padded = mc_fp8_padded(rows)};
    if (!scale) return false;
    if (forms.data) {
        out->held[0] = mc_scratch_new(t, MC_U8, MC_SHAPE(rows, columns));
        if (!out->held[0]) return false;
        out->data = mc_tensor_data(out->held[0]);
    }
    if (forms.transposed) {
        out->held[1] = mc_scratch_new(t, MC_U8, MC_SHAPE(columns, out->padded));
        if (!out->held[1]) return false;
        out->transposed = mc_tensor_data(out->held[1]);
    }
    return mc_fp8_cast_into(t, use, role, x, scale, forms.noted, out);
}

void mc_fp8_release(mc_fp8_operand *x)
{
    for (int i = 0; i < 3; i++)
        if (x->held[i]) mc_scratch_free(x->held[i]);
    *x = (mc_fp8_operand){0};
}

/* ---- products -------------------------------------------------------------------------------- */

/* C = alpha op(A) op(B) + beta C + bias, where op(A) is (m, k). */
static bool multiply(mc_tape *t, mc_fp8_gemm_call call, const mc_fp8_operand *a,
                     const mc_fp8_operand *b)
{
    bool tn = mc_tape_device(t)->fp8_tn, turn_a = tn && call.transpose_a,
         turn_b = tn && !call.transpose_b;
    call.a = (mc_fp8_matrix){turn_a ? a->transposed : a->data, turn_a ? a->padded : a->columns,
                             a->format, a->inverse};
    call.b = (mc_fp8_matrix){turn_b ? b->transposed : b->data, turn_b ? b->padded : b->columns,
                             b->format, b->inverse};
    if (turn_a) call.k = a->padded; /* zeros after the rows */
    if (tn) call.transpose_a = false, call.transpose_b = true;
    return MC_KERNEL(t, "linear in 8 bits", fp8_gemm, &call);
}

/* Takes the form for backward out of an operand. */
static mc_tensor *keep(mc_tape *t, mc_fp8_operand *x)
{
    int form = mc_tape_device(t)->fp8_tn;
    mc_tensor *kept = x->held[form];
    x->held[form] = NULL;
    return kept;
}

/* A linear's input (rows, in), of the tensor passed for it. */
static mc_fp8_source input_source(int64_t rows, int64_t in, mc_matrix x, const mc_fp8_x *how)
{
    return (mc_fp8_source){
        .rows = rows, .columns = in, .x = x, .activation = how->activation, .gated = how->gated};
}

/* The input of forward in 8 bits: cast, unless it is bytes. */
static bool x_operand(mc_tape *t, const mc_fp8_use *use, const mc_linear_call *c, mc_fp8_x *how,
                      mc_fp8_operand *x)
{
    if (c->x.dtype == MC_U8) {
        *x = (mc_fp8_operand){.rows = c->rows,
                              .columns = c->in,
                              .format = mc_fp8_format_of(MC_FP8_X),
                              .inverse = &use->scales[MC_FP8_X].inverse,
                              .data = c->x.data};
        return true;
    }
    mc_fp8_source source = input_source(c->rows, c->in, c->x, how);
    mc_fp8_forms forms = mc_fp8_forms_of(t, true, how->keeps);
    forms.noted = !mc_tape_replaying(t);
    how->scale = own_scale(t, use);
    if (use->current && !how->scale) return false;
    const mc_fp8_scale *scale =
        mc_fp8_scale_for(t, use, MC_FP8_X, &source, how->scale ? mc_tensor_data(how->scale) : NULL);
    return mc_fp8_cast_new(t, use, MC_FP8_X, &source, scale, forms, x);
}

void mc_fp8_linear(mc_tape *t, const mc_fp8_use *use, const mc_linear_call *c, mc_fp8_x *how,
                   mc_tensor *weight)
{
    bool active = c->activation != MC_ACTIVATION_NONE, to_bytes = c->y.dtype == MC_U8;
    mc_matrix to = active && c->pre.data ? c->pre : c->y;
    mc_fp8_operand x = {0}, w = {0};
    bool good = x_operand(t, use, c, how, &x) && use->weight(t, use, weight, false, &w);
    mc_fp8_gemm_call call = {.transpose_b = true,
                             .fast = true,
                             .m = c->rows,
                             .n = c->out,
                             .k = c->in,
                             .alpha = c->alpha,
                             .bias = c->bias,
                             .c = to,
                             .activation = to_bytes ? c->activation : MC_ACTIVATION_NONE,
                             .scale = use->result};
    if (good) good = multiply(t, call, &x, &w);
    if (good && active && c->y.data && !to_bytes)
        MC_KERNEL(t, "linear in 8 bits", activation, c->rows, c->out, c->activation, to, c->y);
    if (how->keeps) how->kept = keep(t, &x);
    mc_fp8_release(&x);
    mc_fp8_release(&w);
}

bool mc_fp8_cast_dy(mc_tape *t, const mc_fp8_use *use, const mc_fp8_source *dy, bool for_input,
                    bool for_weight, mc_fp8_operand *out)
{
    mc_fp8_forms forms = mc_fp8_forms_of(t, for_input, for_weight);
    forms.noted = true;
    mc_tensor *own = own_scale(t, use);
    if (use->current && !own) return false;
    const mc_fp8_scale *scale =
        mc_fp8_scale_for(t, use, MC_FP8_DY, dy, own ? mc_tensor_data(own) : NULL);
    bool good = mc_fp8_cast_new(t, use, MC_FP8_DY, dy, scale, forms, out);
    out->held[2] = own;
    return good;
}

/* x in the form for the weight's gradient: kept, which it takes over, or cast again. */
static bool x_again(mc_tape *t, const mc_fp8_use *use, const mc_fp8_source *x, mc_fp8_x *how,
                    mc_fp8_operand *out)
{
    const mc_fp8_scale *scale = how->scale ? mc_saved_data(t, how->scale) : &use->scales[MC_FP8_X];
    if (!how->kept)
        return mc_fp8_cast_new(t, use, MC_FP8_X, x, scale, mc_fp8_forms_of(t, false, true), out);
    *out = (mc_fp8_operand){.rows = x->rows,
                            .columns = x->columns,
                            .padded = mc_fp8_padded(x->rows),
                            .format = mc_fp8_format_of(MC_FP8_X),
                            .data = mc_saved_data(t, how->kept),
                            .held = {how->kept}};
    how->kept = NULL;
    if (!out->data || !scale) return false;
    out->inverse = &scale->inverse;
    if (mc_tape_device(t)->fp8_tn) out->transposed = out->data;
    return true;
}

void mc_fp8_weight_gradient(mc_tape *t, const mc_fp8_use *use, const mc_fp8_operand *dy,
                            mc_matrix x, int64_t in, mc_fp8_x *how, float alpha, float beta,
                            mc_matrix dweight)
{
    mc_fp8_source source = input_source(dy->rows, in, x, how);
    mc_fp8_operand x8 = {0};
    mc_fp8_gemm_call call = {.transpose_a = true,
                             .m = dy->columns,
                             .n = in,
                             .k = dy->rows,
                             .alpha = alpha,
                             .beta = beta,
                             .c = dweight};
    if (x_again(t, use, &source, how, &x8)) multiply(t, call, dy, &x8);
    mc_fp8_release(&x8);
}

/* Applies the slope of the activation before, and sums dx for its bias. */
static bool finish_input_gradient(mc_tape *t, const mc_linear_backward_call *c,
                                  const mc_fp8_before *before)
{
    bool active = c->activation != MC_ACTIVATION_NONE;
    if (active && before) {
        bool gated = before->use->gated;
        mc_fp8_source source = {
            c->rows, gated ? 2 * c->in : c->in, c->dx, c->activation, gated, c->pre, c->sums};
        return mc_fp8_cast_dy(t, before->use, &source, before->for_input, before->for_weight,
                              before->dy);
    }
    if (active && !MC_KERNEL(t, "linear in 8 bits", activation_backward, c->rows, c->in,
                             c->activation, c->pre, 1, c->dx, c->dx, false))
        return false;
    return !c->sums ||
           MC_KERNEL(t, "linear in 8 bits", column_sums, c->rows, c->in, c->dx, c->sums);
}

void mc_fp8_input_gradient(mc_tape *t, const mc_fp8_use *use, mc_fp8_operand *dy,
                           const mc_linear_backward_call *c, mc_tensor *weight,
                           const mc_fp8_before *before)
{
    mc_fp8_operand w = {0};
    mc_fp8_gemm_call call = {
        .m = c->rows, .n = c->in, .k = c->out, .alpha = c->alpha, .beta = c->beta, .c = c->dx};
    bool good = use->weight(t, use, weight, true, &w) && multiply(t, call, dy, &w);
    mc_fp8_release(&w);
    mc_fp8_release(dy);
    if (good) good = finish_input_gradient(t, c, before);
    if (good && c->dbias)
        MC_KERNEL(t, "linear in 8 bits", column_sums, c->rows, c->out, c->dy, c->dbias);
}
