/* The stack that BERT and its relatives are made of: embeddings with a norm of their sum, blocks
 * whose sublayers end in norms, and the heads of an encoder. */
#ifndef MC_MODELS_ENCODER_INTERNAL_H
#define MC_MODELS_ENCODER_INTERNAL_H

#include "models/family_internal.h"

typedef struct mc_encoder_options {
    int64_t layers, dim, dim_ff, heads;
    int64_t words_dim; /* columns of the embeddings, which are projected to dim; 0: dim, as it is */
    int64_t positions; /* rows of the table of positions */
    int64_t types;     /* rows of that of token types; 0: no table */
    int64_t buckets;   /* of a relative bias that all blocks share, to distance 128; 0: none */
    /* The row of position 0. Not 0: padding has no position, as RoBERTa has it. */
    int64_t first_position;
    mc_activation activation;      /* of the feed-forwards */
    mc_activation head_activation; /* of the masked language model's head */
    float eps, dropout, attention_dropout;
    int window;           /* of attention, as in mc_attention_options; 0: none */
    bool globals;         /* attention has global tokens */
    bool whole_attention; /* nothing is dropped of what attention adds to the stream */
    float init_std, embedding_std, ffn_std;
    bool tied; /* the masked language model has the words' matrix */
} mc_encoder_options;

/* A family's `parts`, or their beginning. */
typedef struct mc_encoder {
    mc_encoder_options o;
    mc_embedding *positions, *types; /* types: NULL without a table */
    mc_layernorm *embedding_norm;
    mc_linear *projection; /* NULL: the embeddings have dim columns */
    mc_parameter *bias;    /* (buckets, heads); NULL: none */
    /* Heads; NULL: the model has none of that kind. */
    mc_layernorm *lm_norm;
    mc_linear *pooler, *nsp, *lm_dense;
    mc_linear *classifier_dense, *classifier;
} mc_encoder;

/* Options from a config that has members of these names; the other options are 0. */
#define MC_ENCODER_OF(c)                                                                    \
    (mc_encoder_options)                                                                    \
    {                                                                                       \
        .layers = (c)->layers, .dim = (c)->dim, .dim_ff = (c)->dim_ff, .heads = (c)->heads, \
        .positions = (c)->positions, .activation = (c)->activation,                         \
        .head_activation = (c)->activation, .dropout = (c)->dropout,                        \
        .attention_dropout = (c)->attention_dropout, .init_std = (c)->init_std,             \
        .embedding_std = (c)->init_std, .ffn_std = (c)->init_std, .tied = (c)->tied         \
    }

/* For `declare`: words, positions, types, projection, bias, blocks, and the heads but for the
 * classifier, in this order. False after an error. */
bool mc_encoder_declare(mc_model *m, const mc_encoder_options *options,
                        const mc_load_options *load);
/* A classifier of two layers, if the model has one: "classifier.dense" and "classifier.out_proj".
 * False after an error. */
bool mc_encoder_declare_classifier(mc_model *m);
/* Its logits: the first token's row through dropout `before`, dense, activation, dropout `between`
 * and projection. */
mc_tensor *mc_encoder_classify(mc_tape *t, mc_model *m, const mc_model_output *out, float before,
                               mc_activation activation, float between);

/* A family's `encode`, `pool`, `head`, `nsp` and `set_dropout`. */
mc_tensor *mc_encoder_encode(mc_tape *t, mc_model *m, mc_stack_input *in);
mc_tensor *mc_encoder_pool(mc_tape *t, mc_model *m, mc_tensor *hidden);
mc_tensor *mc_encoder_head(mc_tape *t, mc_model *m, mc_tensor *hidden);
mc_tensor *mc_encoder_next_sentence(mc_tape *t, mc_model *m, mc_tensor *pooled);
void mc_encoder_set_dropout(mc_model *m, float p);

/* For `finish`: whether the sizes of a config are right, the heads make up dim (`head_dim`, as in
 * mc_config_check_sizes), the padding is a token and the table of positions has more rows than the
 * `unused` first ones. */
bool mc_encoder_check(const mc_config_reader *r, const mc_model_shape *s, int64_t head_dim,
                      float eps, int64_t unused);
/* A family's `look`: unties the head whose matrix in the file is not the words', and warns where
 * the head's bias has two names whose values differ. */
bool mc_encoder_look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads);

/* What the descriptions of these families say besides. */
#define MC_ENCODER_FAMILY(f, parts)                                                                \
    MC_FAMILY_OF(f, parts), .classes = classes, .kind = MC_MODEL_ENCODER, .look = mc_encoder_look, \
                            .encode = mc_encoder_encode, .head = mc_encoder_head,                  \
                            .classify = classify, .set_dropout = mc_encoder_set_dropout

/* Rows, in Hugging Face's form alone, of a config with members of these names. */
#define MC_ENCODER_ROWS                                                                         \
    MC_ROW(SIZE, dim_ff, "intermediate_size", NULL, "3072", "", 1),                             \
        MC_ROW(LAYERS, layers, "num_hidden_layers", NULL, "12", "", 0),                         \
        MC_ROW(SIZE, heads, "num_attention_heads", NULL, "12", "", 1),                          \
        MC_ROW(SIZE, positions, "max_position_embeddings", NULL, "512", "", 1),                 \
        MC_ROW(ACTIVATION, activation, "hidden_act", NULL, "\"gelu\"", "", 0),                  \
        MC_ROW(FLOAT, eps, "layer_norm_eps", NULL, "1e-12", "", 1e-30, 1),                      \
        MC_ROW(DROPOUT, dropout, "hidden_dropout_prob", NULL, "0.1", "", 0),                    \
        MC_ROW(DROPOUT, attention_dropout, "attention_probs_dropout_prob", NULL, "0.1", "", 0), \
        MC_ROW(FLOAT, init_std, "initializer_range", NULL, "0.02", "", 0, 1e6),                 \
        MC_ROW(FLAG, tied, "tie_word_embeddings", NULL, "true", "", 0),                         \
        MC_KNOWN("bos_token_id", NULL), MC_KNOWN("eos_token_id", NULL)

/* ---- names in files of Hugging Face's, where a family has BERT's ----------------------------- */

/* Words and their head's matrix, whose name in the file is `decoder` and ours "lm_head.decoder". */
#define MC_ENCODER_WORDS_RULE(words, decoder)                                               \
    {                                                                                       \
        "input_embedding", words, .own_copy = "lm_head.decoder",                            \
                                  .copied_with = "lm_head.decoder.bias", .tied_to = decoder \
    }
/* A norm at a block's end is named after its next use: `next` is its name with {i-1}, `last` with
 * {last}, and `first` that of the embeddings. */
#define MC_ENCODER_NORM_RULES(first, next, last)                          \
    {"embedding_layernorm", first},                                       \
        {"encoder.layers.0.self_att.layernorm_before_attention", first},  \
        {"encoder.layers.{i}.self_att.layernorm_before_attention", next}, \
    {                                                                     \
        "encoder.output_layernorm", last                                  \
    }
#define MC_ENCODER_BODY_RULES(decoder)                                                        \
    MC_ENCODER_WORDS_RULE("embeddings.word_embeddings", decoder),                             \
        {"position_embedding", "embeddings.position_embeddings"},                             \
        {"token_type_embedding", "embeddings.token_type_embeddings"},                         \
        {"pooler.dense", "pooler.dense"},                                                     \
        MC_ENCODER_NORM_RULES("embeddings.LayerNorm", "encoder.layer.{i-1}.output.LayerNorm", \
                              "encoder.layer.{last}.output.LayerNorm"),                       \
        {"encoder.layers.{i}.self_att.self_attention.project_q",                              \
         "encoder.layer.{i}.attention.self.query"},                                           \
        {"encoder.layers.{i}.self_att.self_attention.project_k",                              \
         "encoder.layer.{i}.attention.self.key"},                                             \
        {"encoder.layers.{i}.self_att.self_attention.project_v",                              \
         "encoder.layer.{i}.attention.self.value"},                                           \
        {"encoder.layers.{i}.self_att.self_attention.attention_out",                          \
         "encoder.layer.{i}.attention.output.dense"},                                         \
        {"encoder.layers.{i}.ffn.layernorm_before_ffn",                                       \
         "encoder.layer.{i}.attention.output.LayerNorm"},                                     \
        {"encoder.layers.{i}.ffn.ffn.w_in.w", "encoder.layer.{i}.intermediate.dense"},        \
    {                                                                                         \
        "encoder.layers.{i}.ffn.ffn.w_out", "encoder.layer.{i}.output.dense"                  \
    }
/* The masked language model's head as RoBERTa names it. */
#define MC_ENCODER_LM_HEAD_RULES                                                              \
    {"lm_head.dense", "lm_head.dense", .head = true},                                         \
        {"lm_head.layer_norm", "lm_head.layer_norm", .head = true},                           \
        {"lm_head.decoder.weight", "lm_head.decoder.weight", .head = true},                   \
    {                                                                                         \
        "lm_head.decoder.bias", "lm_head.bias", .head = true, .copy = "lm_head.decoder.bias", \
                                                .copied_with = "lm_head.decoder.weight"       \
    }

/* These names in PyTorch's order. */
#define MC_ENCODER_ORDER                                                                   \
    "weight bias bert roberta lm_head cls classifier word_embeddings position_embeddings " \
    "token_type_embeddings attention self intermediate output query key value dense "      \
    "LayerNorm layer_norm out_proj embeddings encoder pooler predictions "                 \
    "seq_relationship transform decoder"

#endif
