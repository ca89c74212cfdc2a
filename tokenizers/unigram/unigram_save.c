/* A Unigram tokenizer's files: the one that it was read from, as it was, and the configuration. */
#include <string.h>
#include "tokenizers/files/save_internal.h"
#include "tokenizers/files/settings_internal.h"

static void write_source(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_file_write(w, tok->unigram.source, tok->unigram.source_size);
}

/* The class where no file names one. */
static const char *class_name(const mc_tokenizer *tok)
{
    const mc_unigram *u = &tok->unigram;
    if (u->fairseq)
        return mc_settings_class(tok) == MC_CLASS_XLMR ? "XLMRobertaTokenizer"
                                                       : "CamembertTokenizer";
    return u->single && u->t5 && !mc_sentencepiece_has_json(tok) ? "T5Tokenizer"
                                                                 : "PreTrainedTokenizerFast";
}

static void write_config(const mc_tokenizer *tok, mc_file_writer *w)
{
    const mc_unigram *u = &tok->unigram;
    cJSON *config = mc_save_config_begin(tok);
    if (u->single && !u->fairseq && mc_settings_class(tok) != MC_CLASS_GLM) {
        bool bos = tok->single.prefix_count > 0, eos = tok->single.suffix_count > 0;
        mc_save_config_set(config, "extra_ids", cJSON_CreateNumber((double)u->sentinels));
        mc_save_config_set(config, "add_bos_token", cJSON_CreateBool(bos));
        mc_save_config_set(config, "add_eos_token", cJSON_CreateBool(eos));
    }
    mc_save_config_names(tok, config);
    mc_save_config_end(tok, w, config, class_name(tok));
}

/* The name of the file that the tokenizer came from. */
static const char *source_name(const mc_tokenizer *tok)
{
    const char *slash = strrchr(tok->path, '/'), *name = slash ? slash + 1 : tok->path;
    if (!tok->unigram.single) return "tokenizer.json";
    for (size_t i = 0; i < MC_MODEL_NAMES; i++)
        if (strcmp(name, mc_model_names[i]) == 0) return name;
    return mc_model_names[0];
}

mc_status mc_unigram_choose_files(const mc_tokenizer *tok, mc_error *err, const char *folder,
                                  mc_save_file *files)
{
    const char *name = source_name(tok);
    char other[MC_PATH_MAX];
    for (size_t i = 0; i < MC_MODEL_NAMES; i++) {
        if (mc_path_join(err, other, folder, mc_model_names[i])) return err->status;
        if (strcmp(name, mc_model_names[i]) != 0 && mc_path_is_file(other))
            return mc_error_set(err, MC_ERR_ARGUMENT,
                                "%s lies there already and would be read instead of %s", other,
                                name);
    }
    if (mc_path_join(err, files[0].path, folder, name) ||
        mc_path_join(err, files[1].path, folder, "tokenizer_config.json"))
        return err->status;
    files[0].write = write_source;
    files[1].write = write_config;
    if (!tok->unigram.single || !mc_sentencepiece_has_json(tok)) return MC_OK;
    if (mc_path_join(err, files[2].path, folder, "tokenizer.json")) return err->status;
    files[2].write = mc_sentencepiece_write_json;
    return MC_OK;
}
