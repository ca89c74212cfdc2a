/* The keys that JSON files of a model's folder may have, but for config.json, whose keys are those
 * of its family, and the tokenizer's files. */
#ifndef MC_MODELS_KEYS_INTERNAL_H
#define MC_MODELS_KEYS_INTERNAL_H

#include "core/base/json_keys_internal.h"

extern const mc_key_table mc_keys_generation_config;   /* generation_config.json */
extern const mc_key_table mc_keys_preprocessor_config; /* of images: preprocessor_config.json */
/* sentence-transformers' files: of the model (sentence_bert_config.json and its other names), of a
 * Pooling (1_Pooling/config.json), of the whole (config_sentence_transformers.json) */
extern const mc_key_table mc_keys_sentence_bert_config;
extern const mc_key_table mc_keys_pooling_config;
extern const mc_key_table mc_keys_sentence_transformers_config;
/* adapter_config.json of factors, and of virtual tokens */
extern const mc_key_table mc_keys_lora_config;
extern const mc_key_table mc_keys_prompt_tuning_config;

#endif
