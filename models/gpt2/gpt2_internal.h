/* What the files of this family share. */
#ifndef MC_MODELS_GPT2_INTERNAL_H
#define MC_MODELS_GPT2_INTERNAL_H

#include "core/base/json_internal.h"
#include "core/checkpoint/weight_map_internal.h"
#include "core/nn/kv_cache_internal.h"
#include "core/nn/layers.h"
#include "core/nn/module_internal.h"
#include "models/gpt2/gpt2.h"

enum { MC_GPT2_MAX_EOS = 16 };

struct mc_gpt2 {
    mc_module module;
    mc_gpt2_config config;
    mc_embedding *words, *positions;
    mc_block_list *blocks;
    mc_layernorm *norm;
    mc_parameter *head; /* of an untied model, stored padded as the words are */
    int32_t eos[MC_GPT2_MAX_EOS];
    int eos_count;
    mc_kv_cache *cache; /* where attention keeps keys and values, during a step of generation */
};

typedef struct mc_gpt2_block {
    mc_module module;
    mc_gpt2 *gpt2;
    int number;
    mc_layernorm *attention_norm, *ffn_norm;
    mc_attention *attention;
    mc_feed_forward *ffn;
} mc_gpt2_block;

extern const mc_weight_map mc_gpt2_weight_map;

/* The forward pass of a block, for the block list. */
mc_tensor *mc_gpt2_block_forward(mc_tape *t, void *block, mc_tensor *x, mc_tensor *const *extra);
/* From token ids and positions, packed and checked, to the last hidden states. */
mc_tensor *mc_gpt2_run(mc_tape *t, mc_gpt2 *gpt2, mc_tensor *ids, mc_tensor *positions,
                       mc_tensor *key_mask);

/* Reads what config.json says. *json_out is owned by the caller (cJSON_Delete). */
cJSON *mc_gpt2_config_json(mc_error *err, const char *path, mc_gpt2_config *config);
/* The tokens that end a text: eos_token_id, a number or a list. */
mc_status mc_gpt2_read_eos(mc_gpt2 *gpt2, const cJSON *json, const char *path);
/* The text of config.json (cJSON_free it). NULL when memory is out. */
char *mc_gpt2_config_print(const mc_gpt2 *gpt2);

#endif
