/* BERT's encoder, which RoBERTa shares. */
#ifndef MC_MODELS_BERT_INTERNAL_H
#define MC_MODELS_BERT_INTERNAL_H

#include "models/bert/bert.h"
#include "models/family_internal.h"

typedef struct mc_bert_parts {
    mc_embedding *positions, *types;
    mc_layernorm *embedding_norm, *mlm_norm;
    mc_linear *pooler, *nsp, *mlm_dense;
    mc_linear *classifier_dense, *classifier;
    int64_t first_position; /* the row of the position table that belongs to position 0 */
} mc_bert_parts;

#define AT(member) offsetof(mc_bert_config, member)
/* Rows that are the same for every encoder of this kind. A classifier_dropout of -1 is as
 * `dropout`, see mc_bert_finish. */
#define MC_BERT_COMMON_ROWS                                                                        \
    MC_ROW(SIZE, head_dim, NULL, "dim_head", "", "64", 1),                                         \
        MC_ROW(ACTIVATION, activation, "hidden_act", "ffn_activate_fn", "\"gelu\"", "\"gelu\"",    \
               0),                                                                                 \
        MC_ROW(DROPOUT, dropout, "hidden_dropout_prob", "dropout_p", "0.1", "0", 0),               \
        MC_ROW(DROPOUT, attention_dropout, "attention_probs_dropout_prob", "dropout_p", "0.1",     \
               "0", 0),                                                                            \
        MC_ROW(DROPOUT, classifier_dropout, "classifier_dropout", NULL, "-1", "-1", -1),           \
        MC_ROW(FLOAT, init_std, "initializer_range", "att_init_std", "0.02", "0.02", 0, 1e6),      \
        MC_ROW(FLOAT, embedding_std, "initializer_range", "emb_init_std", "0.02", "0.02", 0, 1e6), \
        MC_ROW(FLOAT, ffn_std, "initializer_range", "ffn_init_std", "0.02", "0.02", 0, 1e6),       \
        MC_ROW(FLAG, tied, "tie_word_embeddings", "tied", "true", "true", 0),                      \
        MC_ONLY("position_embedding_type", NULL, "\"absolute\""),                                  \
        MC_ONLY("is_decoder", NULL, "false"), MC_ONLY("add_cross_attention", NULL, "false"),       \
        MC_ONLY(NULL, "pos_bias_type", "\"none\""), MC_ONLY(NULL, "norm_bias", "true"),            \
        MC_ONLY(NULL, "att_bias", "true"), MC_ONLY(NULL, "ffn_bias", "true"),                      \
        MC_ONLY(NULL, "proj_bias", "true"), MC_ONLY(NULL, "length_scale", "false"),                \
        MC_ONLY(NULL, "attn_scale", "true"), MC_ONLY(NULL, "post_layer_norm", "true"),             \
        MC_KNOWN(NULL, "proj_init_std"), MC_ONLY_MC_ROWS

/* Names of the encoder and pooler in Hugging Face's files; `decoder`: of the language model's
 * matrix, which is the words' of a tied model. */
#define MC_BERT_BODY_RULES(decoder)                                                        \
    {"input_embedding", "embeddings.word_embeddings", .own_copy = "lm_head.decoder",       \
     .copied_with = "lm_head.decoder.bias", .tied_to = decoder},                           \
        {"position_embedding", "embeddings.position_embeddings"},                          \
        {"token_type_embedding", "embeddings.token_type_embeddings"},                      \
        {"embedding_layernorm", "embeddings.LayerNorm"}, {"pooler.dense", "pooler.dense"}, \
        {"encoder.layers.0.self_att.layernorm_before_attention", "embeddings.LayerNorm"},  \
        {"encoder.layers.{i}.self_att.layernorm_before_attention",                         \
         "encoder.layer.{i-1}.output.LayerNorm"},                                          \
        {"encoder.output_layernorm", "encoder.layer.{last}.output.LayerNorm"},             \
        {"encoder.layers.{i}.self_att.self_attention.project_q",                           \
         "encoder.layer.{i}.attention.self.query"},                                        \
        {"encoder.layers.{i}.self_att.self_attention.project_k",                           \
         "encoder.layer.{i}.attention.self.key"},                                          \
        {"encoder.layers.{i}.self_att.self_attention.project_v",                           \
         "encoder.layer.{i}.attention.self.value"},                                        \
        {"encoder.layers.{i}.self_att.self_attention.attention_out",                       \
         "encoder.layer.{i}.attention.output.dense"},                                      \
        {"encoder.layers.{i}.ffn.layernorm_before_ffn",                                    \
         "encoder.layer.{i}.attention.output.LayerNorm"},                                  \
        {"encoder.layers.{i}.ffn.ffn.w_in.w", "encoder.layer.{i}.intermediate.dense"},     \
    {                                                                                      \
        "encoder.layers.{i}.ffn.ffn.w_out", "encoder.layer.{i}.output.dense"               \
    }

/* BERT's and RoBERTa's names in PyTorch's order. */
#define MC_BERT_ORDER                                                                      \
    "weight bias bert roberta lm_head cls classifier word_embeddings position_embeddings " \
    "token_type_embeddings attention self intermediate output query key value dense "      \
    "LayerNorm layer_norm out_proj embeddings encoder pooler predictions "                 \
    "seq_relationship transform decoder"

bool mc_bert_finish(const mc_config_reader *r, void *config);
mc_model_shape mc_bert_shape(const void *config);
/* Words, positions, types, blocks, and the heads but for the classifier. */
bool mc_bert_declare_encoder(mc_model *m, const mc_load_options *o);
bool mc_bert_look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads);
mc_tensor *mc_bert_encode(mc_tape *t, mc_model *m, mc_stack_input *in);
mc_tensor *mc_bert_pool(mc_tape *t, mc_model *m, mc_tensor *hidden);
mc_tensor *mc_bert_mlm_head(mc_tape *t, mc_model *m, mc_tensor *hidden);
void mc_bert_set_dropout(mc_model *m, float p);

#endif
