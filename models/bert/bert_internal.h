/* What the files of this family share. */
#ifndef MC_MODELS_BERT_INTERNAL_H
#define MC_MODELS_BERT_INTERNAL_H

#include "core/base/json_internal.h"
#include "core/checkpoint/weight_map_internal.h"
#include "core/nn/layers.h"
#include "core/nn/module_internal.h"
#include "models/bert/bert.h"

struct mc_bert {
    mc_module module;
    mc_bert_config config;
    mc_bert_heads heads;
    mc_embedding *words, *positions, *types;
    mc_layernorm *embedding_norm;
    mc_block_list *blocks;
    mc_linear *pooler, *nsp, *classifier, *mlm_dense;
    mc_layernorm *mlm_norm;
    mc_parameter *mlm_bias;
    char *task;
    char **label_names; /* heads.labels of them, or NULL */
};

extern const mc_weight_map mc_bert_weight_map;

/* Reads what config.json says of shape, and of task and labels into *json_out (owned by the caller:
 * cJSON_Delete) for mc_bert_read_task. */
cJSON *mc_bert_config_json(mc_error *err, const char *path, mc_bert_config *config);
mc_status mc_bert_read_task(mc_bert *bert, const cJSON *json, const char *path);
/* The text of config.json (cJSON_free it). NULL when memory is out. */
char *mc_bert_config_print(const mc_bert *bert);

#endif
