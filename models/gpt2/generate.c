/* GPT-2 as generation sees it. */
#include "models/common/packing_internal.h"
#include "models/generate/generate_internal.h"
#include "models/gpt2/gpt2_internal.h"

typedef struct gpt2_decoder {
    mc_gpt2 *gpt2;
    mc_kv_cache *cache;
} gpt2_decoder;

static bool begin(void *state, int sequences, int64_t capacity)
{
    gpt2_decoder *d = state;
    mc_gpt2 *gpt2 = d->gpt2;
    mc_kv_shape shape = {.dtype = gpt2->module.root->dtype,
                         .layers = (int)gpt2->config.layers,
                         .width = gpt2->config.dim,
                         .sequences = sequences,
                         .capacity = capacity};
    d->cache = mc_kv_cache_new(gpt2->module.ctx, shape);
    return d->cache;
}

/* The hidden state of each sequence's last token. */
static mc_tensor *last_rows(mc_tape *t, mc_tensor *hidden, const mc_lengths *l)
{
    if (!hidden || l->total == l->count) return hidden;
    int32_t *index = mc_tape_alloc(t, ((size_t)l->count + 1) * sizeof *index);
    for (int i = 0; index && i < l->count; i++) index[i] = l->offset[i + 1] - 1;
    return index ? mc_gather_rows(t, hidden, index, l->count) : NULL;
}

static mc_tensor *run(mc_tape *t, gpt2_decoder *d, const int32_t *ids, const int32_t *lengths,
                      int count)
{
    mc_gpt2 *gpt2 = d->gpt2;
    const mc_lengths *l = mc_tape_lengths(t, lengths, count, 1);
    if (!l || !mc_kv_cache_begin(d->cache, t, l)) return NULL;
    mc_tensor *tokens = mc_tape_input(t, MC_I32, MC_SHAPE(l->total), ids, false);
    mc_tensor *positions = mc_pack_positions(t, l, d->cache->first ? NULL : d->cache->length);
    if (!tokens || !positions) return NULL;
    tokens->lengths = l;
    gpt2->cache = d->cache;
    mc_tensor *hidden = mc_gpt2_run(t, gpt2, tokens, positions, NULL);
    gpt2->cache = NULL;
    mc_kv_cache_end(d->cache);
    return last_rows(t, hidden, l);
}

static bool step(void *state, const int32_t *ids, const int32_t *lengths, int count, float *logits)
{
    gpt2_decoder *d = state;
    mc_context *ctx = d->gpt2->module.ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *last = t ? run(t, d, ids, lengths, count) : NULL;
    mc_tensor *x = last ? mc_gpt2_logits(t, d->gpt2, last) : NULL;
    if (x) mc_tensor_read_f32(ctx, x, logits, count * d->gpt2->config.vocab_size);
    mc_tape_end(t);
    return !mc_failed(ctx);
}

static bool select_sequences(void *state, const int32_t *from, int count)
{
    gpt2_decoder *d = state;
    return mc_kv_cache_select(d->cache, from, count);
}

static void end(void *state)
{
    gpt2_decoder *d = state;
    if (d) mc_kv_cache_free(d->cache);
    mc_free(d);
}

static mc_decoder new_decoder(mc_gpt2 *gpt2)
{
    mc_decoder d = {.ctx = gpt2->module.ctx,
                    .model = "GPT-2",
                    .vocab = gpt2->config.vocab_size,
                    .positions = gpt2->config.positions,
                    .eos = gpt2->eos,
                    .eos_count = gpt2->eos_count,
                    .begin = begin,
                    .step = step,
                    .select = select_sequences,
                    .end = end};
    gpt2_decoder *state = mc_failed(d.ctx) ? NULL : mc_calloc(1, sizeof *state);
    if (state)
        state->gpt2 = gpt2;
    else
        mc_fail_nomem(d.ctx, "a decoder"); /* no effect where an error is set */
    d.state = state;
    return d;
}

mc_generator *mc_gpt2_generator_new(mc_gpt2 *gpt2, const int32_t *const *prompts,
                                    const int *lengths, int count,
                                    const mc_generate_options *options)
{
    if (!gpt2) return NULL;
    mc_decoder decoder = new_decoder(gpt2);
    return mc_generator_new(&decoder, prompts, lengths, count, options);
}

mc_generation *mc_gpt2_generate(mc_gpt2 *gpt2, const int32_t *const *prompts, const int *lengths,
                                int count, const mc_generate_options *options)
{
    if (!gpt2) return NULL;
    mc_decoder decoder = new_decoder(gpt2);
    return mc_generate(&decoder, prompts, lengths, count, options);
}
