/* ModelCenter's model names, those of mc_llama_config_named and its like for models that anybody
 * may download, and the repositories of the hub that hold them. */
#include <stdio.h>
#include <string.h>
#include "core/hub/find_internal.h"

/* A name that ends in '-' matches all names that start with it; a repository that ends in '/' is an
 * organisation that has them under the same name. NULL: no repository has them. */
static const struct {
    const char *name, *repository;
} names[] = {
    {"bert-base", "bert-base-uncased"},
    {"bert-large", "bert-large-uncased"},
    {"gpt2-base", "gpt2"},
    {"gptj-6b", "EleutherAI/gpt-j-6b"},
    {"gpt-j-6b", "EleutherAI/gpt-j-6b"},
    {"t5-v1_1-", "google/"},
    {"flan-t5-", "google/"},
    {"mt5-", "google/"},
    {"opt-", "facebook/"},
    {"electra-", "google/"},
    {"mpnet-base", "microsoft/mpnet-base"},
    {"modernbert-base", "answerdotai/ModernBERT-base"},
    {"modernbert-large", "answerdotai/ModernBERT-large"},
    {"longformer-", "allenai/"},
    {"tinyllama", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"},
    {"smollm2-135m", "HuggingFaceTB/SmolLM2-135M"},
    {"smollm2-360m", "HuggingFaceTB/SmolLM2-360M"},
    {"smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B"},
    {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B"},
    {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B"},
    {"qwen2.5-7b", "Qwen/Qwen2.5-7B"},
    {"qwen3-0.6b", "Qwen/Qwen3-0.6B"},
    {"qwen3-1.7b", "Qwen/Qwen3-1.7B"},
    {"qwen3-4b", "Qwen/Qwen3-4B"},
    {"qwen3-8b", "Qwen/Qwen3-8B"},
    {"minicpm-2b", "openbmb/MiniCPM-2B-sft-bf16"},
    {"cpm1-", NULL},
    {"cpm2-", NULL},
    {"glm-10b-zh", NULL},
    {"vit-", "google/"},
};

/* Whether the name, up to its '@' or end, matches the row. */
static bool is_row(const char *row, const char *name, size_t length)
{
    size_t have = strlen(row);
    if (row[have - 1] == '-') return length > have && strncmp(row, name, have) == 0;
    return have == length && strncmp(row, name, have) == 0;
}

const char *mc_hub_repository_of(const char *identifier, char room[2 * MC_HUB_NAME_MAX])
{
    size_t length = strcspn(identifier, "@");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *repository = names[i].repository;
        if (!is_row(names[i].name, identifier, length)) continue;
        if (!repository) return NULL;
        bool org = repository[strlen(repository) - 1] == '/';
        int written = snprintf(room, 2 * MC_HUB_NAME_MAX, "%s%s", repository,
                               identifier + (org ? 0 : length));
        return written >= 0 && written < 2 * MC_HUB_NAME_MAX ? room : identifier;
    }
    return identifier;
}
