/* The stack that T5 and CPM are made of: pre-norm blocks with RMSNorm, without biases, whose
 * attention adds a bias of relative positions that the blocks share. */
#ifndef MC_MODELS_RELATIVE_INTERNAL_H
#define MC_MODELS_RELATIVE_INTERNAL_H

#include "models/family_internal.h"

typedef struct mc_relative_options {
    const char *name;      /* "encoder": its parameters are "encoder.layers.0. ..." */
    const char *bias_name; /* of the table of (buckets, heads) */
    int64_t layers, dim, dim_ff, heads, buckets, max_distance;
    bool causal, cross; /* cross: blocks attend to the encoder's memory too */
    bool both_ways;     /* positions before and after have buckets of their own */
    float eps, dropout, bias_std;
    mc_attention_options attention; /* of all attention layers; causal and cross are set here */
    mc_feed_forward_options ffn;
} mc_relative_options;

/* A part of a family's `parts`. */
typedef struct mc_relative_stack {
    mc_relative_options o;
    mc_parameter *bias;
    mc_block_list *blocks;
    mc_layernorm *norm; /* after the last block */
} mc_relative_stack;

/* Declares bias, blocks and norm, in this order. False after an error. */
bool mc_relative_stack_add(mc_model *m, mc_relative_stack *s, const mc_relative_options *options,
                           const mc_load_options *load);
/* From ids to the norm's result. The words are multiplied by `scale`; `dropout` is of the sum. */
mc_tensor *mc_relative_stack_run(mc_tape *t, mc_model *m, mc_relative_stack *s, mc_stack_input *in,
                                 float scale, float dropout);
/* Of sublayers and attention probabilities, and with `inner` of the feed-forwards' inside. */
void mc_relative_stack_set_dropout(mc_relative_stack *s, float p, bool inner);

#endif
