/* GLM (Du et al. 2022), in ModelCenter's form: a decoder that fills in blanks of a text. glm-10b-zh
 * is the released model.
 *
 * A sequence is a text with a [MASK], then a piece: the token sop, the words in place of the mask,
 * and eop. All tokens attend to the text; tokens of the piece also attend to those before them.
 * A token has two positions, each with a table of its own:
 *
 *                 first table             second table
 *   in the text   its index               0
 *   in the piece  the index of the mask   its index in the piece, from 1 on
 *
 * Both follow from the ids (mc_find_blanks in core/ops/fused.h).
 *
 *     mc_model *glm = mc_glm_from_pretrained(ctx, "glm-10b-zh", NULL);
 *     mc_generation *piece = mc_model_generate(glm, &ids, &count, 1, NULL);   ids: text [MASK] sop
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_GLM_H
#define MC_MODELS_GLM_H

#include "models/model.h"

/* The shape of a GLM; keys of ModelCenter's config.json. A zero is a zero, not a default. */
typedef struct mc_glm_config {
    int64_t vocab_size;       /* vocab_size */
    int64_t dim;              /* dim_model */
    int64_t dim_ff;           /* dim_ff */
    int64_t layers;           /* num_layers */
    int64_t heads;            /* num_heads */
    int64_t head_dim;         /* dim_head; 0: dim / heads, and nothing else is supported */
    int64_t positions;        /* position_size: rows of both tables; a sequence has fewer tokens */
    mc_activation activation; /* ffn_activate_fn */
    float eps;                /* norm_eps */
    float dropout;            /* dropout_p */
    float init_std;           /* att_init_std */
    float embedding_std;      /* emb_init_std */
    float ffn_std;            /* ffn_init_std */
    float head_std;           /* proj_init_std, of ModelCenter's cls_head */
    bool head_bias;           /* proj_bias, of the same */
    int64_t sop_token_id;     /* sop_tok_id, begins a piece */
    int64_t eop_token_id;     /* eop_tok_id, ends one */
    int64_t mask_token_id;    /* mask_tok_id */
} mc_glm_config;

/* The defaults of ModelCenter's GLMConfig: GLM-large's shape. */
MC_API mc_glm_config mc_glm_config_default(void);
/* A shape by name: glm-10b-zh. Errors: another name is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_glm_config_named(mc_context *ctx, const char *name, mc_glm_config *config);
/* Reads a config.json of ModelCenter's form. Errors: for malformed and out-of-range values the
 * message names file and key. */
MC_API mc_status mc_glm_config_read(mc_context *ctx, const char *path, mc_glm_config *config);
MC_API mc_glm_config mc_glm_get_config(const mc_model *model); /* zeros for another family's */

/* A GLM with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_glm_new(mc_context *ctx, const mc_glm_config *config,
                            const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a GLM's. */
MC_API mc_model *mc_glm_from_pretrained(mc_context *ctx, const char *identifier,
                                        const mc_load_options *options);

#endif
