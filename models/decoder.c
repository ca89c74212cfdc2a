#include "models/decoder_internal.h"

#include <stdio.h>
#include "core/ops/fused.h"
#include "models/packing_internal.h"

typedef struct decoder_block {
    mc_module module;
    const mc_decoder_stack *stack;
    mc_layernorm *norm, *ffn_norm; /* ffn_norm NULL: one_norm */
    mc_attention *attention;
    mc_feed_forward *ffn;
} decoder_block;

static mc_layernorm *add_norm(mc_module *m, const char *name, const mc_decoder_options *o)
{
    return (o->rms_norm ? mc_rmsnorm_add : mc_layernorm_add)(m, name, o->dim, o->eps);
}

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    const mc_decoder_stack *stack = config;
    const mc_decoder_options *o = &stack->o;
    decoder_block *b = mc_module_add(list, name, sizeof *b);
    if (!b) return NULL;
    mc_module *m = &b->module;
    mc_attention_options attention = o->attention;
    attention.causal = true;
    attention.dropout = o->attention_dropout;
    attention.init_std = mc_literal(o->init_std);
    attention.scale = (float)(o->scale_by_layer ? o->scale / (index + 1) : o->scale);
    if (index < o->window_from) attention.window = 0;
    b->stack = stack;
    b->norm = add_norm(m, "self_att.layernorm_before_attention", o);
    b->attention =
        mc_attention_add(m, "self_att.self_attention", o->dim, (int)o->heads, &attention);
    if (!o->one_norm) b->ffn_norm = add_norm(m, "ffn.layernorm_before_ffn", o);
    b->ffn = mc_feed_forward_add(m, "ffn.ffn", o->dim, o->dim_ff, &o->ffn);
    return b->ffn ? b : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    decoder_block *b = object;
    float p = b->stack->o.dropout;
    x = mc_sublayer_pre_norm(t, x, b->norm, mc_attention_branch(b->attention), call, p);
    return mc_sublayer_pre_norm(t, x, b->ffn_norm, mc_feed_forward_branch(b->ffn), call, p);
}

static mc_tensor *parallel_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    decoder_block *b = object;
    return mc_sublayer_parallel(t, x, b->norm, b->ffn_norm, mc_attention_branch(b->attention),
                                mc_feed_forward_branch(b->ffn), call, b->stack->o.dropout);
}

static mc_tensor *norm_after_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    decoder_block *b = object;
    float p = b->stack->o.dropout;
    x = mc_sublayer_post_norm(t, x, mc_attention_branch(b->attention), call, p, b->norm);
    return mc_sublayer_post_norm(t, x, mc_feed_forward_branch(b->ffn), call, p, b->ffn_norm);
}

/* The blocks and what stands around them. */
static void declare_blocks(mc_model *m, mc_decoder_stack *s, const mc_load_options *load)
{
    const mc_decoder_options *o = &s->o;
    const char *list = o->list ? o->list : "encoder";
    char layers[64], norm[64];
    snprintf(layers, sizeof layers, "%s.layers", list);
    snprintf(norm, sizeof norm, "%s.output_layernorm", list);
    mc_linear_options plain = {.no_bias = true, .init_std = mc_literal(o->init_std)};
    bool apart = o->word_dim && o->word_dim != o->dim;
    if (apart) s->in = mc_linear_add(&m->module, "project_in", o->word_dim, o->dim, &plain);
    m->decoder = mc_block_list_new(&m->module, layers, (int)o->layers, new_block,
                                   o->parallel     ? parallel_forward
                                   : o->norm_after ? norm_after_forward
                                                   : block_forward,
                                   &(mc_block_options){.recompute = load->recompute, .config = s});
    if (!o->no_last_norm) s->norm = add_norm(&m->module, norm, o);
    if (apart) s->out = mc_linear_add(&m->module, "project_out", o->dim, o->word_dim, &plain);
}

bool mc_decoder_declare(mc_model *m, const mc_decoder_options *options, const mc_load_options *load)
{
    mc_decoder_stack *s = m->parts;
    const mc_decoder_options *o = &s->o;
    float std = mc_literal(options->embedding_std);
    s->o = *options;
    mc_declare_words(m, std);
    if (o->positions)
        s->positions = mc_embedding_add(&m->module, "position_embedding",
                                        o->positions + o->rows_before, o->dim, std);
    declare_blocks(m, s, load);
    mc_declare_lm_head(m, "output_projection", o->tied, o->head_bias, std);
    mc_declare_token_head_named(m, o->token_head ? o->token_head : "cls_projection",
                                !o->no_token_bias, mc_literal(o->init_std));
    mc_declare_score(m, mc_literal(o->init_std));
    return !mc_failed(m->module.ctx);
}

/* The table of positions and the row of each token. */
static void find_positions(mc_tape *t, const mc_decoder_stack *s, const mc_stack_input *in,
                           mc_embedding_options *o)
{
    int64_t before = s->o.rows_before;
    mc_tensor *table = mc_embedding_table(t, s->positions);
    bool masked = before && in->call.key_mask;
    o->others = 1;
    o->name[0] = "positions";
    o->table[0] = before && !masked ? mc_slice(t, table, 0, before, s->o.positions) : table;
    o->index[0] =
        masked ? mc_pack_seen(t, in->lengths, in->call.key_mask, (int32_t)before) : in->positions;
}

/* Words that are narrower than the blocks: projected, and then positions are added. */
static mc_tensor *embed_apart(mc_tape *t, mc_model *m, const mc_stack_input *in,
                              const mc_embedding_options *o)
{
    const mc_decoder_stack *s = m->parts;
    mc_embedding_options alone = {.scale = o->scale};
    mc_tensor *x = mc_run_embedding(t, m, in, &alone);
    x = x ? mc_linear_forward(t, s->in, x) : NULL;
    for (int i = 0; x && i < o->others; i++)
        x = mc_add(t, x, mc_embed(t, 1, &o->table[i], &o->index[i]));
    if (!x) return NULL;
    return mc_with_lengths(t, mc_dropout(t, x, o->dropout), in->lengths);
}

mc_tensor *mc_decoder_decode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    const mc_decoder_stack *s = m->parts;
    mc_embedding_options o = {.dropout = s->o.embedding_dropout, .scale = s->o.embedding_scale};
    if (s->positions) find_positions(t, s, in, &o);
    mc_tensor *x = s->in ? embed_apart(t, m, in, &o) : mc_run_embedding(t, m, in, &o);
    mc_tensor *y = mc_run_stack(t, m->decoder, x, s->norm, &in->call);
    if (!y || !s->out) return y;
    y = mc_linear_forward(t, s->out, y);
    if (in->call.hidden) in->call.hidden[mc_block_list_count(m->decoder)] = y;
    return y;
}

void mc_decoder_set_dropout(mc_model *m, float p)
{
    mc_decoder_stack *s = m->parts;
    s->o.dropout = s->o.embedding_dropout = p;
    for (int i = 0; i < mc_block_list_count(m->decoder); i++) {
        decoder_block *b = mc_block_list_at(m->decoder, i);
        mc_attention_set_dropout(b->attention, p);
    }
}

bool mc_decoder_look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads)
{
    bool *tied = mc_config_member(f->family, config, "tie_word_embeddings");
    if (heads->lm) mc_look_at_head(ctx, f, tied);
    return !mc_failed(ctx);
}
