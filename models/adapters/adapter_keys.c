/* The keys of adapter_config.json, of each kind of adapter. */
#include <stddef.h>
#include "models/files/keys_internal.h"

/* Of both kinds. */
#define COMMON                                                                       \
    {"peft_type", MC_KEY_FOLLOWED}, {"modules_to_save", MC_KEY_FOLLOWED},            \
        {"base_model_name_or_path", MC_KEY_FOLLOWED}, {"revision", MC_KEY_FOLLOWED}, \
        {"task_type", MC_KEY_FOLLOWED}, {"auto_mapping", MC_KEY_NO_EFFECT},          \
        {"inference_mode", MC_KEY_NO_EFFECT}, {"peft_version", MC_KEY_NO_EFFECT},    \
    {                                                                                \
        "runtime_config", MC_KEY_NO_EFFECT                                           \
    }

static const char initial[] = "others change the base's weights";

static const mc_key_row of_factors[] = {
    COMMON,
    {"r", MC_KEY_FOLLOWED},
    {"lora_alpha", MC_KEY_FOLLOWED},
    {"lora_dropout", MC_KEY_FOLLOWED},
    {"use_rslora", MC_KEY_FOLLOWED},
    {"target_modules", MC_KEY_FOLLOWED},
    {"bias", MC_KEY_ONLY, "[\"none\"]", "biases are not trained with factors"},
    {"init_lora_weights", MC_KEY_ONLY, "[true, false, \"gaussian\", \"orthogonal\", \"eva\"]",
     initial},
    {"fan_in_fan_out", MC_KEY_NO_EFFECT}, /* how the base's matrices lie, which its family says */
    /* how the factors' first values were found, and how they were trained */
    {"loftq_config", MC_KEY_NO_EFFECT},
    {"eva_config", MC_KEY_NO_EFFECT},
    {"corda_config", MC_KEY_NO_EFFECT},
    {"lora_ga_config", MC_KEY_NO_EFFECT},
    {"velora_config", MC_KEY_NO_EFFECT},
    {"megatron_core", MC_KEY_NO_EFFECT},
    {"qalora_group_size", MC_KEY_NO_EFFECT}, /* of use_qalora */
    /* which weights have factors, beside target_modules */
    {"exclude_modules", MC_KEY_ONLY, "[[]]", "list the layers in target_modules"},
    {"layers_to_transform", MC_KEY_ONLY, "[[]]", "list the layers in target_modules"},
    {"layers_pattern", MC_KEY_ONLY, "[[], \"\"]", "list the layers in target_modules"},
    {"target_parameters", MC_KEY_ONLY, "[[]]", NULL},
    {"trainable_token_indices", MC_KEY_ONLY, "[[], {}]", "single rows of a table are not trained"},
    {"layer_replication", MC_KEY_ONLY, "[[]]", "the base's layers are used once each"},
    {"megatron_config", MC_KEY_ONLY, "[{}]", NULL},
    /* factors of several ranks and scales, and what else is computed with them */
    {"rank_pattern", MC_KEY_ONLY, "[{}]", "all factors have one rank"},
    {"alpha_pattern", MC_KEY_ONLY, "[{}]", "all factors have one scale"},
    {"use_dora", MC_KEY_ONLY, "[false]", NULL},
    {"use_qalora", MC_KEY_ONLY, "[false]", NULL},
    {"use_bdlora", MC_KEY_ONLY, "[false, {}]", NULL},
    {"lora_bias", MC_KEY_ONLY, "[false]", NULL},
    {"alora_invocation_tokens", MC_KEY_ONLY, "[[]]", NULL},
    {"arrow_config", MC_KEY_ONLY, "[{}]", NULL},
    {"kasa_config", MC_KEY_ONLY, "[{}]", NULL},
    {"monteclora_config", MC_KEY_ONLY, "[{}]", NULL},
    {"ensure_weight_tying", MC_KEY_ONLY, "[false]",
     "a module to save is a table of its own, whatever it was tied to"},
    {NULL},
};
const mc_key_table mc_keys_lora_config = {"adapter_config.json", of_factors};

static const mc_key_row of_prompts[] = {
    COMMON,
    {"num_virtual_tokens", MC_KEY_FOLLOWED},
    {"num_transformer_submodules", MC_KEY_FOLLOWED},
    {"token_dim", MC_KEY_FOLLOWED},
    /* the base's shape, and what the vectors began with */
    {"num_attention_heads", MC_KEY_NO_EFFECT},
    {"num_layers", MC_KEY_NO_EFFECT},
    {"prompt_tuning_init", MC_KEY_NO_EFFECT},
    {"prompt_tuning_init_text", MC_KEY_NO_EFFECT},
    {"tokenizer_name_or_path", MC_KEY_NO_EFFECT},
    {"tokenizer_kwargs", MC_KEY_NO_EFFECT},
    {NULL},
};
const mc_key_table mc_keys_prompt_tuning_config = {"adapter_config.json", of_prompts};
