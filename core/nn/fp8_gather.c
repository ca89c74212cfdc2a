/* Weights that ranks share, gathered in 8 bits (mc_bucket.bytes): each rank casts its share. */
#include "core/nn/fp8_internal.h"

struct mc_values *mc_fp8_values_for(const mc_tape *t, mc_bucket *b)
{
    bool narrow = mc_bucket_shares_values(b) && b->span_count;
    for (int i = 0; i < b->span_count && narrow; i++)
        narrow = mc_fp8_takes(t, mc_stored_of(&b->spans[i]));
    return narrow ? &b->bytes : &b->values;
}

/* ---- casting --------------------------------------------------------------------------------- */

/* The cast of this rank's part of a span, in rows of MC_BUCKET_ALIGN elements; no rows: it has
 * none. */
static mc_fp8_cast_call part_of(const mc_bucket *b, const mc_span *s)
{
    int64_t held, first = mc_bucket_held_of(b, s->offset, s->count, &held);
    mc_fp8_cast_call call = {.columns = MC_BUCKET_ALIGN, .format = mc_fp8_format_of(MC_FP8_WEIGHT)};
    if (!held) return call;
    call.rows = held / MC_BUCKET_ALIGN;
    call.x = (mc_matrix){mc_bucket_value_at(b, first), b->dtype, MC_BUCKET_ALIGN};
    call.data = (uint8_t *)b->bytes.data + first;
    return call;
}

/* Casts this rank's part of a weight. */
static mc_status cast_span(mc_zero *z, mc_bucket *b, const mc_span *span)
{
    mc_device *device = z->ctx->device;
    mc_stored *s = mc_stored_of(span);
    const mc_fp8_state *f = s->owner->root->fp8;
    int slot = (s->fp8 - 1) * MC_FP8_ROLES + MC_FP8_WEIGHT;
    mc_fp8_cast_call part = part_of(b, span);
    mc_status status = MC_OK;
    if (mc_fp8_is_current(f))
        status = mc_fp8_find_scale(z->ctx, z->group, &part, MC_FP8_WEIGHT, f->recipe.fp8_margin,
                                   f->parts, &f->scales[slot]);
    if (status || !part.rows) return status;
    part.scale = &f->scales[slot].scale;
    if (mc_fp8_begin_weight_cast(s, true)) part.seen = &f->seen[slot];
    return device->kernels->fp8_cast(device, &part);
}

mc_status mc_fp8_cast_share(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_error_status(z->ctx);
    for (int i = 0; i < b->span_count && !status; i++) status = cast_span(z, b, &b->spans[i]);
    return mc_zero_fail(z, status, "casting the weights");
}

/* ---- using ----------------------------------------------------------------------------------- */

bool mc_fp8_gathered(mc_tape *t, const mc_fp8_use *use, bool transposed, mc_fp8_operand *out)
{
    mc_stored *s = use->owner;
    mc_zero *z = &s->owner->root->zero;
    int64_t rows = out->rows, columns = out->columns;
    if (mc_bucket_refresh(z, s->bucket, &s->bucket->bytes)) return false;
    out->format = mc_fp8_format_of(MC_FP8_WEIGHT);
    out->inverse = &use->scales[MC_FP8_WEIGHT].inverse;
    out->data = (uint8_t *)s->bucket->bytes.data + s->span->offset;
    if (!mc_fp8_forms_of(t, !transposed, transposed).transposed) return true;
    out->held[1] = mc_scratch_new(t, MC_U8, MC_SHAPE(columns, rows));
    if (!out->held[1]) return false;
    uint8_t *turned = mc_tensor_data(out->held[1]);
    out->transposed = turned;
    return MC_KERNEL(t, "linear in 8 bits", fp8_transpose, rows, columns, out->data, turned, NULL);
}
