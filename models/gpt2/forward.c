#include "core/ops/ops_internal.h"
#include "models/common/packing_internal.h"
#include "models/gpt2/gpt2_internal.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The residual stream comes in and goes out with its last sum not made yet: the next norm makes
 * it. */
mc_tensor *mc_gpt2_block_forward(mc_tape *t, void *object, mc_tensor *x, mc_tensor *const *extra)
{
    mc_gpt2_block *block = object;
    const mc_gpt2 *gpt2 = block->gpt2;
    mc_tensor *s, *h = mc_layernorm_forward_stream(t, block->attention_norm, x, &s);
    mc_tensor *f = gpt2->cache ? mc_attention_forward_cached(t, block->attention, h, gpt2->cache,
                                                             block->number)
                               : mc_attention_forward(t, block->attention, h, extra[0]);
    mc_tape_release(t, h);
    x = mc_residual_defer(t, s, f, gpt2->config.dropout);
    h = mc_layernorm_forward_stream(t, block->ffn_norm, x, &s);
    mc_tape_release(t, f);
    f = mc_feed_forward_forward_last(t, block->ffn, h);
    return mc_residual_defer(t, s, f, gpt2->config.dropout);
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *embed(mc_tape *t, mc_gpt2 *gpt2, mc_tensor *ids, mc_tensor *positions)
{
    mc_tensor *tables[] = {mc_embedding_table(t, gpt2->words),
                           mc_embedding_table(t, gpt2->positions)};
    mc_tensor *indices[] = {ids, positions};
    if (mc_failed(mc_tape_context(t))) return NULL;
    mc_scope scope = mc_scope_begin(t, false);
    mc_tensor *sum = mc_embed(t, 2, tables, indices);
    mc_tensor *x = sum ? mc_dropout(t, sum, gpt2->config.embedding_dropout) : NULL;
    mc_scope_end(t, scope, x);
    return x;
}

mc_tensor *mc_gpt2_run(mc_tape *t, mc_gpt2 *gpt2, mc_tensor *ids, mc_tensor *positions,
                       mc_tensor *key_mask)
{
    mc_tensor *x = embed(t, gpt2, ids, positions);
    mc_tensor *s = x ? mc_block_list_forward(t, gpt2->blocks, x, &key_mask) : NULL;
    if (!s) return NULL;
    if (s != x) mc_tape_release(t, x);
    mc_scope scope = mc_scope_begin(t, false);
    mc_tensor *last, *hidden = mc_layernorm_forward_stream(t, gpt2->norm, s, &last);
    mc_scope_end(t, scope, hidden);
    if (hidden) mc_tape_release(t, s);
    return mc_failed(mc_tape_context(t)) ? NULL : hidden;
}

mc_gpt2_output mc_gpt2_forward(mc_tape *t, mc_gpt2 *gpt2, const mc_gpt2_input *input)
{
    mc_packed p;
    if (!gpt2 || !input ||
        !mc_pack_batch(t, "GPT-2", input->ids, input->lengths, input->mask, gpt2->config.positions,
                       &p))
        return (mc_gpt2_output){0};
    return (mc_gpt2_output){.last_hidden = mc_gpt2_run(t, gpt2, p.ids, p.positions, p.key_mask)};
}

/* ---- head ------------------------------------------------------------------------------------ */

mc_tensor *mc_gpt2_logits(mc_tape *t, mc_gpt2 *gpt2, mc_tensor *hidden)
{
    if (!gpt2 || !mc_op_ready(t, "GPT-2 logits", hidden)) return NULL;
    mc_tensor *head =
        gpt2->head ? mc_parameter_tensor(t, gpt2->head) : mc_embedding_table(t, gpt2->words);
    return mc_fused_linear(t, hidden, head, NULL, MC_ACTIVATION_NONE);
}

mc_tensor *mc_gpt2_loss(mc_tape *t, mc_gpt2 *gpt2, mc_tensor *hidden, mc_tensor *labels)
{
    if (!gpt2 || !mc_op_ready(t, "GPT-2 loss", hidden)) return NULL;
    mc_tensor *head =
        gpt2->head ? mc_parameter_whole(t, gpt2->head) : mc_embedding_whole(t, gpt2->words);
    return mc_linear_cross_entropy(t, hidden, head, NULL, gpt2->config.vocab_size, labels, NULL);
}

mc_tensor *mc_gpt2_shift_labels(mc_tape *t, mc_tensor *hidden, mc_tensor *labels)
{
    static const char op[] = "GPT-2 labels";
    if (!mc_op_ready(t, op, hidden) || !mc_op_ready(t, op, labels)) return NULL;
    const mc_lengths *l = hidden->lengths;
    if (!l)
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: hidden states %s carry no lengths", op,
                MC_SHAPE_TEXT(hidden->shape));
    if (!l || !mc_pack_check(t, op, "labels", labels, l) || !mc_op_host_lengths(t, op, l))
        return NULL;
    const void *data = mc_op_host(t, op, labels);
    int32_t *next = mc_tape_alloc(t, ((size_t)l->capacity + 1) * sizeof *next);
    if (!data || !next) return NULL;
    for (int64_t i = 0; i < l->capacity; i++) next[i] = -100;
    for (int i = 0; i < l->count; i++)
        for (int32_t k = 0; k + 1 < l->length[i]; k++) {
            int64_t first = labels->shape.ndim == 2 ? i * labels->shape.dim[1] : l->offset[i];
            int64_t value = mc_integer_at(labels->dtype, data, first + k + 1);
            /* what no i32 can hold must not become a label or ignored */
            next[l->offset[i] + k] = value < INT32_MIN || value > INT32_MAX ? -1 : (int32_t)value;
        }
    return mc_tape_input(t, MC_I32, MC_SHAPE(l->capacity), next, false);
}
