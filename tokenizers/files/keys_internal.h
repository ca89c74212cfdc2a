/* What the JSON files of a tokenizer's folder may say, a row a key. */
#ifndef MC_TOKENIZERS_KEYS_INTERNAL_H
#define MC_TOKENIZERS_KEYS_INTERNAL_H

#include "core/base/json_keys_internal.h"

extern const mc_key_table mc_keys_tokenizer_config, mc_keys_special_tokens_map,
    mc_keys_tokenizer_json;

#endif
