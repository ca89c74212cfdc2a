/* tokenizer_config.json: what was read, with the settings that the tokenizer has now. */
#include <stdio.h>
#include <string.h>
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/files/save_internal.h"
#include "tokenizers/files/settings_internal.h"

/* Keys that are about the folder that was read, not about the tokenizer. */
static const char *const of_the_folder[] = {"_commit_hash",
                                            "_name_or_path",
                                            "auto_map",
                                            "fast_tokenizer_files",
                                            "merges_file",
                                            "name_or_path",
                                            "special_tokens_map_file",
                                            "device_map",
                                            "tokenizer_file",
                                            "vocab_file",
                                            "slow_tokenizer_class",
                                            "is_local",
                                            "local_files_only",
                                            NULL};

cJSON *mc_save_config_begin(const mc_tokenizer *tok)
{
    const mc_settings *s = tok->settings;
    cJSON *config = s && s->config ? cJSON_Duplicate(s->config, true) : cJSON_CreateObject();
    static const char old[] = "additional_special_tokens", extra[] = "extra_special_tokens";
    for (const char *const *key = of_the_folder; config && *key; key++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, *key);
    if (!config || !s || !s->map || s->has_decoder) return config;
    /* the map itself is not written */
    bool model = tok->kind == MC_TOKENIZER_UNIGRAM && tok->unigram.single; /* has no use for old */
    const cJSON *list =
        mc_tokenizer_part(s->map, model || mc_tokenizer_part(s->map, extra) ? extra : old);
    if (list && !cJSON_HasObjectItem(config, old) && !cJSON_HasObjectItem(config, extra))
        cJSON_AddItemToObject(config, list->string, cJSON_Duplicate(list, true));
    return config;
}

void mc_save_config_set(cJSON *config, const char *key, cJSON *item)
{
    if (!config || !item) {
        cJSON_Delete(item);
        return;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(config, key);
    cJSON_AddItemToObject(config, key, item);
}

static void set_flag(cJSON *config, const char *key, bool value)
{
    mc_save_config_set(config, key, cJSON_CreateBool(value));
}

/* A special token. An entry that is none is not named: others would make it one. `null`: that a
 * name has no token at all is written, as others would add it as a new one. */
void mc_save_config_name(const mc_tokenizer *tok, cJSON *config, const char *key, const char *token,
                         bool null)
{
    int32_t id = *token ? mc_tokenizer_token_to_id(tok, token) : -1;
    bool had = mc_tokenizer_part(config, key) != NULL;
    if (id >= 0 && tok->id_to_added[id] >= 0)
        mc_save_config_set(config, key, cJSON_CreateString(token));
    else if (id < 0 && (null || had))
        mc_save_config_set(config, key, cJSON_CreateNull());
    else
        cJSON_DeleteItemFromObjectCaseSensitive(config, key);
}

void mc_save_config_names(const mc_tokenizer *tok, cJSON *config)
{
    mc_save_config_name(tok, config, "bos_token", tok->bos_token, false);
    mc_save_config_name(tok, config, "eos_token", tok->eos_token, false);
    mc_save_config_name(tok, config, "unk_token", tok->unk_token, false);
    mc_save_config_name(tok, config, "sep_token", tok->sep_token, false);
    mc_save_config_name(tok, config, "pad_token", tok->pad_token, false);
    mc_save_config_name(tok, config, "cls_token", tok->cls_token, false);
    mc_save_config_name(tok, config, "mask_token", tok->mask_token, false);
}

static cJSON *added_token(const mc_tokenizer *tok, const mc_added_token *token)
{
    cJSON *object = cJSON_CreateObject();
    if (!object) return NULL;
    cJSON_AddStringToObject(object, "content", mc_tokenizer_text(tok, token->entry));
    set_flag(object, "single_word", token->single_word);
    set_flag(object, "lstrip", token->lstrip);
    set_flag(object, "rstrip", token->rstrip);
    set_flag(object, "normalized", token->normalized);
    set_flag(object, "special", token->special);
    return object;
}

static cJSON *added_tokens(const mc_tokenizer *tok)
{
    char id[16];
    cJSON *list = cJSON_CreateObject();
    for (size_t i = 0; i < tok->added_count && list; i++) {
        snprintf(id, sizeof id, "%d", tok->added[i].id);
        cJSON_AddItemToObject(list, id, added_token(tok, &tok->added[i]));
    }
    return list;
}

static cJSON *input_names(bool types)
{
    const char *const names[] = {"input_ids", types ? "token_type_ids" : "attention_mask",
                                 "attention_mask"};
    return cJSON_CreateStringArray(names, types ? 3 : 2);
}

/* What all kinds have: added tokens, the side that is cut, and the class, which is the one that was
 * read, or else `class`. */
static void set_common(const mc_tokenizer *tok, cJSON *config, const char *class)
{
    const mc_settings *s = tok->settings;
    bool types = tok->kind == MC_TOKENIZER_WORDPIECE && tok->pair.type_b;
    bool said = s && *s->class_name;
    const char *name = said ? s->class_name : class;
    bool bert = said ? s->class == MC_CLASS_BERT : strcmp(class, "BertTokenizer") == 0;
    mc_save_config_set(config, "added_tokens_decoder", added_tokens(tok));
    if (tok->cuts_left && !mc_tokenizer_part(config, "truncation_side"))
        mc_save_config_set(config, "truncation_side", cJSON_CreateString("left"));
    if (types != bert && tok->kind == MC_TOKENIZER_WORDPIECE &&
        !mc_tokenizer_part(config, "model_input_names"))
        mc_save_config_set(config, "model_input_names", input_names(types));
    mc_save_config_set(config, "tokenizer_class", cJSON_CreateString(name));
}

void mc_save_config_end(const mc_tokenizer *tok, mc_file_writer *w, cJSON *config,
                        const char *class)
{
    if (config) set_common(tok, config, class);
    char *text = config ? cJSON_Print(config) : NULL;
    if (text) {
        mc_save_text(w, text);
        mc_save_text(w, "\n");
    } else {
        mc_error_set(w->err, MC_ERR_NOMEM, "%s: out of memory", w->path);
    }
    cJSON_free(text);
    cJSON_Delete(config);
}
