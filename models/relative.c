#include "models/relative_internal.h"

#include <stdio.h>
#include "models/generate/kv_cache_internal.h"

typedef struct relative_block {
    mc_module module;
    const mc_relative_stack *stack;
    mc_layernorm *attention_norm, *cross_norm, *ffn_norm;
    mc_attention *attention, *cross; /* cross: NULL without */
    mc_feed_forward *ffn;
} relative_block;

static mc_attention *add_attention(mc_module *m, const char *name, const mc_relative_options *o,
                                   bool cross)
{
    mc_attention_options options = o->attention;
    options.causal = o->causal && !cross;
    options.cross = cross;
    options.dropout = o->dropout;
    return mc_attention_add(m, name, o->dim, (int)o->heads, &options);
}

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    const mc_relative_stack *stack = config;
    const mc_relative_options *o = &stack->o;
    relative_block *b = mc_module_add(list, name, sizeof *b);
    (void)index;
    if (!b) return NULL;
    mc_module *m = &b->module;
    b->stack = stack;
    b->attention_norm = mc_rmsnorm_add(m, "self_att.layernorm_before_attention", o->dim, o->eps);
    b->attention = add_attention(m, "self_att.self_attention", o, false);
    if (o->cross) {
        b->cross_norm = mc_rmsnorm_add(m, "cross_att.layernorm_before_attention", o->dim, o->eps);
        b->cross = add_attention(m, "cross_att.self_attention", o, true);
    }
    b->ffn_norm = mc_rmsnorm_add(m, "ffn.layernorm_before_ffn", o->dim, o->eps);
    b->ffn = mc_feed_forward_add(m, "ffn.ffn", o->dim, o->dim_ff, &o->ffn);
    return b->ffn ? b : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    relative_block *b = object;
    float p = b->stack->o.dropout;
    x = mc_sublayer_pre_norm(t, x, b->attention_norm, mc_attention_branch(b->attention), call, p);
    if (b->cross)
        x = mc_sublayer_pre_norm(t, x, b->cross_norm, mc_attention_branch(b->cross), call, p);
    return mc_sublayer_pre_norm(t, x, b->ffn_norm, mc_feed_forward_branch(b->ffn), call, p);
}

bool mc_relative_stack_add(mc_model *m, mc_relative_stack *s, const mc_relative_options *options,
                           const mc_load_options *load)
{
    char layers[64], norm[64];
    mc_module *root = &m->module;
    const mc_relative_options *o = &s->o;
    s->o = *options;
    snprintf(layers, sizeof layers, "%s.layers", o->name);
    snprintf(norm, sizeof norm, "%s.output_layernorm", o->name);
    s->bias = mc_parameter_new(root, o->bias_name, MC_SHAPE(o->buckets, o->heads),
                               mc_init_normal(0, o->bias_std));
    s->blocks = mc_block_list_new(root, layers, (int)o->layers, new_block, block_forward,
                                  &(mc_block_options){.recompute = load->recompute, .config = s});
    s->norm = mc_rmsnorm_add(root, norm, o->dim, o->eps);
    return s->norm;
}

/* Generation makes it once, for all of its steps. */
static mc_tensor *position_bias(mc_tape *t, mc_relative_stack *s, const mc_stack_input *in)
{
    mc_kv_cache *cache = in->call.decode ? in->call.decode->cache : NULL;
    if (cache && cache->position_bias) return cache->position_bias;
    mc_position_bias_options positions = {.length = mc_position_limit(in),
                                          .max_distance = (int)s->o.max_distance,
                                          .bidirectional = s->o.both_ways};
    mc_tensor *bias = mc_position_bias(t, mc_parameter_tensor(t, s->bias), &positions);
    if (cache) mc_kv_cache_keep_bias(cache, bias);
    return bias;
}

mc_tensor *mc_relative_stack_run(mc_tape *t, mc_model *m, mc_relative_stack *s, mc_stack_input *in,
                                 float scale, float dropout)
{
    in->call.position_bias = position_bias(t, s, in);
    mc_tensor *x =
        mc_run_embedding(t, m, in, &(mc_embedding_options){.scale = scale, .dropout = dropout});
    return mc_run_stack(t, s->blocks, x, s->norm, &in->call);
}

void mc_relative_stack_set_dropout(mc_relative_stack *s, float p, bool inner)
{
    s->o.dropout = p;
    for (int i = 0; i < mc_block_list_count(s->blocks); i++) {
        relative_block *b = mc_block_list_at(s->blocks, i);
        mc_attention_set_dropout(b->attention, p);
        mc_attention_set_dropout(b->cross, p);
        if (inner) mc_feed_forward_set_dropout(b->ffn, p);
    }
}
