/* The parts of a transformer: attention, feed-forward, norms of a residual stream, tables that are
 * heads too.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_NN_TRANSFORMER_H
#define MC_NN_TRANSFORMER_H

#include "core/nn/call.h"
#include "core/nn/layers.h"
#include "core/ops/attention.h"

/* mc_layernorm_add without the parameter "bias" (ModernBERT's): mean 0 and variance 1, times
 * weight. */
MC_API mc_layernorm *mc_layernorm_add_without_bias(mc_module *parent, const char *name, int64_t dim,
                                                   float eps);
/* LayerNorm(x + dropout(f)) for x and f of equal shape, in one pass: the end of a post-LN block.
 * `dropout` is a probability in [0, 1); on an evaluation tape nothing is dropped. */
MC_API mc_tensor *mc_layernorm_forward_residual(mc_tape *t, mc_layernorm *norm, mc_tensor *x,
                                                mc_tensor *f, float dropout);
/* For the residual stream of a pre-LN model (see mc_residual_defer): returns LayerNorm(x) and sets
 * *sum, the next residual, to x, computed in the same pass if it was deferred. So a sublayer is one
 * pass over the stream:
 *
 *     mc_tensor *s, *h = mc_layernorm_forward_stream(t, block->norm, x, &s);
 *     return mc_residual_defer(t, s, mc_feed_forward_forward_last(t, block->ffn, h), dropout); */
MC_API mc_tensor *mc_layernorm_forward_stream(mc_tape *t, mc_layernorm *norm, mc_tensor *x,
                                              mc_tensor **sum);
/* mc_embedding_add for a table that is also the head of a language model: it is stored with rows of
 * zeros after its own, up to a multiple of `align` (see mc_parameter_new_padded). */
MC_API mc_embedding *mc_embedding_add_padded(mc_module *parent, const char *name, int64_t count,
                                             int64_t dim, float init_std, int64_t align);
/* The table as a tensor, for tied heads and for sums of several tables (mc_embed). */
MC_API mc_tensor *mc_embedding_table(mc_tape *t, mc_embedding *embedding);
/* The table with its padding, for mc_linear_cross_entropy. */
MC_API mc_tensor *mc_embedding_whole(mc_tape *t, mc_embedding *embedding);
/* Its parameter, "weight". */
MC_API mc_parameter *mc_embedding_weight(mc_embedding *embedding);

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct mc_attention mc_attention;

typedef struct mc_attention_options {
    bool cross;       /* keys and values come from call->memory, not from x */
    bool causal;      /* a token attends to itself and to earlier tokens; call->marks replace it */
    int head_dim;     /* 0: dim / heads */
    int key_heads;    /* heads of keys and values, each read by heads / key_heads query heads; 0:
                         heads */
    bool no_bias;     /* projections without biases */
    bool no_out_bias; /* attention_out without one */
    /* A sliding window of self-attention: the most tokens that a token attends to, itself included,
     * on each side unless causal; 0: no limit. */
    int window;
    /* Longformer's global tokens (call->globals): all tokens attend to them whatever the window is,
     * and they attend to all tokens with projections of their own. Parameters "project_q_global",
     * "project_k_global", "project_v_global", as those of q, k and v. Not with `cross`, rotation or
     * decoding. */
    bool globals;
    /* The eps of an RMSNorm on each head of queries and keys, before rotation; 0: no norm.
     * Parameters "q_norm" and "k_norm", weight (head_dim). */
    float qk_norm_eps;
    float dropout;  /* on the attention probabilities */
    float init_std; /* 0: 0.02 */
    float q_std;    /* of project_q's weight; 0: init_std */
    /* Of attention_out's weight; 0: init_std. GPT-2 uses a smaller value here, because the residual
     * stream adds up the outputs of all layers. */
    float out_std;
    float scale; /* of the scores; 0: 1 / sqrt(head_dim) */
    /* Scales of the products with the projections' weights, before their biases; 0: 1. CPM's length
     * scale is 1 / sqrt(columns of the weight). */
    float in_scale, out_scale;
    /* Rotary positions (Su et al. 2021) of call->positions on the first rotary_dim columns of each
     * head of queries and keys; 0: none. The others are as in mc_rotary_options. */
    int rotary_dim;
    bool rotary_halves;
    float rotary_base;
    mc_rotary_scaling rotary_scaling;
} mc_attention_options;

/* Multi-head attention, projections included. Parameters "project_q", "project_k", "project_v" and
 * "attention_out", each with weight (heads * head_dim, dim), those of k and v (key_heads *
 * head_dim, dim), attention_out's (dim, heads * head_dim), and bias. Weights of one product are
 * stored as one tensor: q, k and v, or with `cross` k and v. Errors: heads below 1, heads that
 * don't divide dim without head_dim, key_heads that don't divide heads, a window below 0. */
MC_API mc_attention *mc_attention_add(mc_module *parent, const char *name, int64_t dim, int heads,
                                      const mc_attention_options *options);
MC_API void mc_attention_set_dropout(mc_attention *attention, float p);
/* x (rows, dim) of a packed batch must carry its lengths. Tokens attend within their sequence, or
 * with `cross` to the sequence of the same number in call->memory. Uses these fields of the call
 * (NULL: empty): key_mask, position_bias, marks and positions, or with `cross` memory and
 * memory_mask. During generation call->decode keeps keys and values. The result has x's shape. */
MC_API mc_tensor *mc_attention_forward(mc_tape *t, mc_attention *attention, mc_tensor *x,
                                       const mc_call *call);

/* ---- feed-forward ---------------------------------------------------------------------------- */

typedef struct mc_feed_forward mc_feed_forward;

typedef struct mc_feed_forward_options {
    mc_activation activation;
    /* activation(w_0 x) * (w_1 x) in place of activation(w x) (Shazeer 2020; T5 v1.1's). One
     * product computes both. */
    bool gated;
    bool no_bias;
    float init_std;            /* of w_in's weights; 0: 0.02 */
    float out_std;             /* of w_out's; 0: init_std (see mc_attention_options) */
    float in_scale, out_scale; /* of the products, as in mc_linear_options; 0: 1 */
    float dropout;             /* dropout on w_out's input, as in T5 */
} mc_feed_forward_options;

/* Parameters "w_in.w" (dim_ff, dim), or "w_in.w_0" and "w_in.w_1" of a gated one (stored as one),
 * and "w_out" (dim, dim_ff), each with weight and, unless no_bias, bias. `options` may be NULL.
 * NULL after an error. */
MC_API mc_feed_forward *mc_feed_forward_add(mc_module *parent, const char *name, int64_t dim,
                                            int64_t dim_ff, const mc_feed_forward_options *options);
MC_API void mc_feed_forward_set_dropout(mc_feed_forward *ffn, float p);
/* out(dropout(activation(in(x)))): x (..., dim) to (..., dim). x is cast to the weights' dtype. */
MC_API mc_tensor *mc_feed_forward_forward(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x);
/* mc_feed_forward_forward for a caller that does not read x again: x is released (mc_tape_release)
 * after the first product, which lowers peak memory. */
MC_API mc_tensor *mc_feed_forward_forward_last(mc_tape *t, mc_feed_forward *ffn, mc_tensor *x);

#endif
