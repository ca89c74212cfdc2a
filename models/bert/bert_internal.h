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

/* Keys of which encoders of this kind support one value. */
#define MC_BERT_ONLY_ROWS                                                                     \
    MC_ONLY("position_embedding_type", NULL, "\"absolute\""), MC_ONLY("is_decoder", NULL, "false"), \
        MC_ONLY("add_cross_attention", NULL, "false"), MC_ONLY(NULL, "pos_bias_type", "\"none\""), \
        MC_ONLY(NULL, "norm_bias", "true"), MC_ONLY(NULL, "att_bias", "true"),                \
        MC_ONLY(NULL, "ffn_bias", "true"), MC_ONLY(NULL, "proj_bias", "true"),                \
        MC_ONLY(NULL, "length_scale", "false"), MC_ONLY(NULL, "attn_scale", "true"),          \
        MC_ONLY(NULL, "post_layer_norm", "true"), {MC_CONFIG_KNOWN, 0, {NULL, "proj_init_std"}}, \
        MC_ONLY_MC_ROWS

/* Names of a layer in Hugging Face's files. */
#define MC_BERT_LAYER_RULES                                                                   \
    {"encoder.layers.0.self_att.layernorm_before_attention", "embeddings.LayerNorm"},         \
        {"encoder.layers.{i}.self_att.layernorm_before_attention",                            \
         "encoder.layer.{i-1}.output.LayerNorm"},                                             \
        {"encoder.output_layernorm", "encoder.layer.{last}.output.LayerNorm"},                \
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
        {"encoder.layers.{i}.ffn.ffn.w_out", "encoder.layer.{i}.output.dense"}

bool mc_bert_finish(const mc_config_reader *r, void *config);
mc_model_shape mc_bert_shape(const void *config);
/* Words, positions, types, blocks, and the heads but for the classifier. */
bool mc_bert_declare_encoder(mc_model *m, const mc_load_options *o);
mc_tensor *mc_bert_encode(mc_tape *t, mc_model *m, mc_stack_input *in);
mc_tensor *mc_bert_pool(mc_tape *t, mc_model *m, mc_tensor *hidden);
mc_tensor *mc_bert_mlm_head(mc_tape *t, mc_model *m, mc_tensor *hidden);
void mc_bert_set_dropout(mc_model *m, float p);

#endif
