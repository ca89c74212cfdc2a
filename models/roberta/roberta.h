/* RoBERTa (Liu et al. 2019): BERT's encoder with byte-level BPE, positions that begin at
 * pad_token_id + 1, and no next sentence head. XLM-RoBERTa (Conneau et al. 2020) and CamemBERT
 * (Martin et al. 2020) are the same model with a SentencePiece vocabulary.
 *
 * Numerics are Hugging Face's RobertaForMaskedLM and RobertaForSequenceClassification: with a mask
 * that lengths cannot express, pad tokens have no position.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_ROBERTA_H
#define MC_MODELS_ROBERTA_H

#include "models/bert/bert.h"

/* Members and keys are BERT's. pad_token_id is 1, types 1; positions is the number of the table's
 * rows, of which the first pad_token_id + 1 are unused. */
typedef mc_bert_config mc_roberta_config;

/* roberta-base's shape. */
MC_API mc_roberta_config mc_roberta_config_default(void);
/* A shape by name: roberta-base, roberta-large, xlm-roberta-base, xlm-roberta-large,
 * camembert-base, camembert-large. Errors: another name is MC_ERR_NOT_FOUND. */
MC_API mc_status mc_roberta_config_named(mc_context *ctx, const char *name,
                                         mc_roberta_config *config);
/* See mc_bert_config_read. */
MC_API mc_status mc_roberta_config_read(mc_context *ctx, const char *path,
                                        mc_roberta_config *config);
/* Zeros for another family's model. */
MC_API mc_roberta_config mc_roberta_get_config(const mc_model *model);

/* A RoBERTa with initial weights; see mc_model_new for heads and options, which may be NULL. */
MC_API mc_model *mc_roberta_new(mc_context *ctx, const mc_roberta_config *config,
                                const mc_model_heads *heads, const mc_load_options *options);
/* mc_model_from_pretrained for a folder that is a RoBERTa's, an XLM-RoBERTa's or a CamemBERT's,
 * such as roberta-base, xlm-roberta-large, intfloat/multilingual-e5-base, BAAI/bge-m3. */
MC_API mc_model *mc_roberta_from_pretrained(mc_context *ctx, const char *identifier,
                                            const mc_load_options *options);

#endif
