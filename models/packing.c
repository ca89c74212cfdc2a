#include "models/packing_internal.h"

#include "core/ops/ops_internal.h"

int64_t mc_integer_at(mc_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case MC_I64: return ((const int64_t *)data)[i];
    case MC_I32: return ((const int32_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

static bool fail_input(mc_tape *t, const char *model, const char *what, const mc_tensor *x,
                       mc_status status, const char *expected)
{
    mc_fail(mc_tape_context(t), status, "%s: %s %s %s, expected %s", model, what,
            mc_dtype_name(x->dtype), MC_SHAPE_TEXT(x->shape), expected);
    return false;
}

/* The lengths a call means: given, carried by the ids, or whole rows of (batch, longest). */
static const mc_lengths *choose_lengths(mc_tape *t, const char *model, mc_tensor *ids,
                                        const mc_lengths *given)
{
    if (given) return given;
    if (ids->lengths) return ids->lengths;
    if (ids->shape.ndim != 2) {
        fail_input(t, model, "ids", ids, MC_ERR_SHAPE,
                   "(batch, longest), or packed ids with lengths");
        return NULL;
    }
    int count = (int)ids->shape.dim[0];
    int32_t *lengths = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *lengths);
    for (int i = 0; lengths && i < count; i++) lengths[i] = (int32_t)ids->shape.dim[1];
    return lengths ? mc_tape_lengths(t, lengths, count, 1) : NULL;
}

bool mc_pack_check(mc_tape *t, const char *model, const char *what, const mc_tensor *x,
                   const mc_lengths *lengths)
{
    if (!mc_dtype_is_index(x->dtype))
        return fail_input(t, model, what, x, MC_ERR_DTYPE, "i32 or i64");
    bool fits =
        x->shape.ndim == 2 && !lengths->fixed
            ? x->shape.dim[0] == lengths->count && x->shape.dim[1] >= lengths->longest
            : x->shape.ndim == 1 && (x->shape.dim[0] == lengths->capacity ||
                                     (lengths->fixed && x->shape.dim[0] > lengths->capacity));
    return fits || fail_input(t, model, what, x, MC_ERR_SHAPE, "the shape that the lengths give");
}

mc_tensor *mc_pack_tokens(mc_tape *t, const char *model, const char *what, mc_tensor *x,
                          const mc_lengths *lengths)
{
    if (!mc_op_ready(t, model, x) || !mc_pack_check(t, model, what, x, lengths)) return NULL;
    bool padded = x->shape.ndim == 2;
    int64_t width = padded ? x->shape.dim[1] : 0, capacity = lengths->capacity;
    bool full = !padded || lengths->total == lengths->count * width;
    mc_tensor *out = NULL;
    if (full && lengths->total == capacity) {
        out = mc_tape_view(t, x, MC_SHAPE(capacity), 0);
    } else {
        const void *data = mc_op_host(t, model, x);
        int32_t *to = mc_tape_alloc(t, ((size_t)capacity + 1) * sizeof *to);
        for (int i = 0; data && to && i < lengths->count; i++)
            for (int32_t k = 0; k < lengths->length[i]; k++) {
                int64_t from = padded ? i * width + k : lengths->offset[i] + k;
                int64_t value = mc_integer_at(x->dtype, data, from);
                /* ids beyond 32 bits stay out of range of every table */
                to[lengths->offset[i] + k] = value < 0 || value > INT32_MAX ? -1 : (int32_t)value;
            }
        if (data && to) out = mc_tape_input(t, MC_I32, MC_SHAPE(capacity), to, false);
    }
    if (out) out->lengths = lengths;
    return out;
}

mc_tensor *mc_pack_positions(mc_tape *t, const mc_lengths *lengths, const int32_t *first)
{
    if (lengths->fixed && !first)
        return mc_tape_view(t, lengths->fixed, MC_SHAPE(lengths->capacity),
                            mc_lengths_position_at(lengths));
    int32_t *position = mc_tape_alloc(t, ((size_t)lengths->capacity + 1) * sizeof *position);
    if (!position || !mc_op_host_lengths(t, "positions", lengths)) return NULL;
    for (int i = 0; i < lengths->count; i++)
        for (int32_t k = 0; k < lengths->length[i]; k++)
            position[lengths->offset[i] + k] = (first ? first[i] : 0) + k;
    return mc_tape_input(t, MC_I32, MC_SHAPE(lengths->capacity), position, false);
}

mc_tensor *mc_pack_seen(mc_tape *t, const mc_lengths *l, mc_tensor *key_mask, int32_t first)
{
    static const char op[] = "positions";
    int32_t *position = mc_tape_alloc(t, ((size_t)l->capacity + 1) * sizeof *position);
    const uint8_t *mask = mc_op_host(t, op, key_mask);
    if (!position || !mask || !mc_op_host_lengths(t, op, l)) return NULL;
    for (int i = 0; i < l->count; i++) {
        int32_t seen = first - 1;
        for (int32_t k = 0, at = l->offset[i]; k < l->length[i]; k++, at++)
            position[at] = mask[at] ? ++seen : first - 1;
    }
    return mc_tape_input(t, MC_I32, MC_SHAPE(l->capacity), position, false);
}

static mc_tensor *make_key_mask(mc_tape *t, const char *model, mc_tensor *mask,
                                const mc_lengths *lengths)
{
    const void *data = mc_op_ready(t, model, mask) ? mc_op_host(t, model, mask) : NULL;
    uint8_t *bytes = mc_tape_alloc(t, (size_t)lengths->total + 1);
    if (!data || !bytes) return NULL;
    for (int64_t i = 0; i < lengths->total; i++)
        bytes[i] = mc_integer_at(mask->dtype, data, i) != 0;
    return mc_tape_input(t, MC_U8, MC_SHAPE(lengths->total), bytes, false);
}

bool mc_pack_batch(mc_tape *t, const char *model, mc_tensor *ids, const mc_lengths *given,
                   mc_tensor *mask, int64_t limit, mc_packed *out)
{
    *out = (mc_packed){0};
    if (!mc_op_ready(t, model, ids) || !(out->lengths = choose_lengths(t, model, ids, given)))
        return false;
    if (out->lengths->longest > limit) {
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                "%s: a sequence of %d tokens, the model has %lld positions", model,
                out->lengths->longest, (long long)limit);
        return false;
    }
    if (mask && (given || ids->lengths || !mc_shape_equal(mask->shape, ids->shape) ||
                 mc_dtype_is_float(mask->dtype)))
        return fail_input(t, model, "mask", mask,
                          mc_dtype_is_float(mask->dtype) ? MC_ERR_DTYPE : MC_ERR_SHAPE,
                          "integers of the ids' shape (batch, longest), without lengths");
    out->ids = mc_pack_tokens(t, model, "ids", ids, out->lengths);
    out->positions = out->ids ? mc_pack_positions(t, out->lengths, NULL) : NULL;
    if (out->positions && mask) out->key_mask = make_key_mask(t, model, mask, out->lengths);
    return !mc_failed(mc_tape_context(t));
}
