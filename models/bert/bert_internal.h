/* What RoBERTa has of BERT: the config and its rows. */
#ifndef MC_MODELS_BERT_INTERNAL_H
#define MC_MODELS_BERT_INTERNAL_H

#include "models/bert/bert.h"
#include "models/encoder_internal.h"

#define AT(member) offsetof(mc_bert_config, member)
/* Rows that are the same for every encoder of this kind. A classifier_dropout of -1 is as
 * `dropout`: `finish` says so. */
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

/* mc_encoder_declare with what the config says. */
bool mc_bert_declare_encoder(mc_model *m, int64_t first_position, const mc_load_options *load);

#endif
