/* CPM-1 (Zhang et al. 2020), a decoder whose context tokens attend to each other in both
 * directions, and CPM-2 (Zhang et al. 2021), an encoder and a decoder. Both have RMSNorm, gated
 * feed-forwards, no biases, and relative positions that the layers of a stack share.
 *
 * The released models are trained in ModelCenter's parametrisation: weights of standard deviation
 * 1, products divided by the square root of the weight's columns ("length_scale"). Its class
 * defaults do not use it. Files are ModelCenter's: there is no Hugging Face form.
 *
 *     mc_model_output out = mc_model_forward(
 *         t, cpm1, &(mc_model_input){.ids = ids, .lengths = l, .context = context, .span = span});
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_CPM_H
#define MC_MODELS_CPM_H

#include "models/model.h"

/* The shape of a CPM; keys of ModelCenter's config.json in brackets. A zero is a zero, not a
 * default. */
typedef struct mc_cpm_config {
    int64_t vocab_size;       /* [vocab_size] */
    int64_t dim;              /* [dim_model] */
    int64_t dim_ff;           /* [dim_ff] */
    int64_t layers;           /* [num_layers; CPM-2: num_encoder_layers] */
    int64_t decoder_layers;   /* of CPM-2 [num_decoder_layers] */
    int64_t heads;            /* [num_heads] */
    int64_t head_dim;         /* [dim_head] */
    int64_t buckets;          /* [position_bias_num_buckets] */
    int64_t max_distance;     /* [position_bias_max_distance] */
    mc_activation activation; /* [ffn_activate_fn] */
    bool gated;               /* by the same key */
    float eps;                /* [norm_eps] */
    float dropout;            /* [dropout_p]: of each sublayer and of attention probabilities */
    float init_std;           /* [att_init_std] */
    float embedding_std;      /* [emb_init_std] */
    float ffn_std;            /* [ffn_init_std] */
    float position_std;       /* [pos_init_std] */
    float head_std;           /* [proj_init_std] */
    bool length_scale;        /* [length_scale]: products divided by sqrt(columns) */
    bool scale_attention;     /* [attn_scale]: scores divided by sqrt(head_dim) */
    bool tied;                /* [tied]: the head is the word embedding */
} mc_cpm_config;

typedef mc_cpm_config mc_cpm1_config, mc_cpm2_config;

/* ModelCenter's class defaults. */
MC_API mc_cpm1_config mc_cpm1_config_default(void);
MC_API mc_cpm2_config mc_cpm2_config_default(void);
/* cpm1-large (2.49B) and cpm2-large (11.1B). Errors: another name is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_cpm1_config_named(mc_context *ctx, const char *name, mc_cpm1_config *config);
MC_API mc_status mc_cpm2_config_named(mc_context *ctx, const char *name, mc_cpm2_config *config);
/* Reads a config.json of ModelCenter's form. Errors: for malformed and out-of-range values the
 * message names file and key; keys of other families are MC_ERR_UNSUPPORTED. */
MC_API mc_status mc_cpm1_config_read(mc_context *ctx, const char *path, mc_cpm1_config *config);
MC_API mc_status mc_cpm2_config_read(mc_context *ctx, const char *path, mc_cpm2_config *config);
/* Zeros for another family's model. */
MC_API mc_cpm1_config mc_cpm1_get_config(const mc_model *model);
MC_API mc_cpm2_config mc_cpm2_get_config(const mc_model *model);

/* Models with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_cpm1_new(mc_context *ctx, const mc_cpm1_config *config,
                             const mc_model_heads *heads, const mc_load_options *options);
MC_API mc_model *mc_cpm2_new(mc_context *ctx, const mc_cpm2_config *config,
                             const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder of one of the two. */
MC_API mc_model *mc_cpm1_from_pretrained(mc_context *ctx, const char *identifier,
                                         const mc_load_options *options);
MC_API mc_model *mc_cpm2_from_pretrained(mc_context *ctx, const char *identifier,
                                         const mc_load_options *options);

#endif
