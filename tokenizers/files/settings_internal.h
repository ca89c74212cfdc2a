/* What the configuration files beside a vocabulary say, merged as Hugging Face's transformers
 * merges them:
 *
 *     tokenizer_config.json     wins over all
 *     special_tokens_map.json   names of special tokens; only without "added_tokens_decoder" above
 *     added_tokens.json         tokens and ids; the same
 *     tokenizer.json            its added tokens, where the class takes them from there
 *     config.json               "tokenizer_class", where tokenizer_config.json names none; and
 *                               without it "model_type"
 */
#ifndef MC_TOKENIZERS_SETTINGS_INTERNAL_H
#define MC_TOKENIZERS_SETTINGS_INTERNAL_H

#include "core/base/json_internal.h"
#include "tokenizers/tokenizer_internal.h"

/* What a tokenizer class makes of the files. */
typedef enum mc_tokenizer_class {
    MC_CLASS_NONE = 0, /* no file names one */
    MC_CLASS_BERT,     /* these four have a normal form, words and special tokens of their own, */
    MC_CLASS_GPT2,     /* whatever a tokenizer.json says */
    MC_CLASS_ROBERTA,
    MC_CLASS_T5,
    MC_CLASS_LLAMA,   /* the same of BPE over characters */
    MC_CLASS_GENERIC, /* everything as tokenizer.json says */
    MC_CLASS_FILE,    /* the same, but the class could make something else of a vocabulary alone, */
    MC_CLASS_QWEN2,   /* as these do: of a vocab.json, */
    MC_CLASS_XLMR,    /* and of a SentencePiece model, whose pieces they number otherwise */
    MC_CLASS_CAMEMBERT,
    MC_CLASS_GLM,   /* its added tokens have the ids that the files name */
    MC_CLASS_OTHER, /* not known here */
    MC_CLASS_PYTHON /* its words are cut in Python: never supported */
} mc_tokenizer_class;

struct mc_settings {
    cJSON *config, *map, *added; /* the files; NULL: there is none */
    char config_path[MC_PATH_MAX], map_path[MC_PATH_MAX], added_path[MC_PATH_MAX];
    char class_path[MC_PATH_MAX]; /* the file that names the class */
    char class_name[128];         /* "" where none does */
    char *chat_template;          /* heap: of chat_template.jinja, which counts first; NULL: none */
    char template_path[MC_PATH_MAX];
    mc_tokenizer_class class;
    mc_tokenizer_class of_type; /* that config.json's "model_type" has, where none is named */
    bool has_decoder; /* "added_tokens_decoder" is there: the map and added tokens do not count */
};

/* Reads the files of a folder into tok->settings; none of them has to be there. */
mc_status mc_settings_open(mc_tokenizer *tok, mc_error *err, const char *folder);
/* The same from the text of a tokenizer_config.json alone. */
mc_status mc_settings_parse(mc_tokenizer *tok, mc_error *err, const char *path, const char *text,
                            size_t size);
void mc_settings_free(mc_settings *settings);

/* Settings that are read alike for all kinds of tokenizers: lengths, sides, decoding. */
mc_status mc_settings_read_common(mc_tokenizer *tok, mc_error *err);

/* A set of classes: MC_CLASSES(first) | MC_CLASSES(second). */
#define MC_CLASSES(class) (1u << (class))
#define MC_CLASSES_FAIRSEQ (MC_CLASSES(MC_CLASS_XLMR) | MC_CLASSES(MC_CLASS_CAMEMBERT))

/* The class that the files name; refuses those that a kind of vocabulary is not for: `file` is the
 * vocabulary's name in the error, `own` the classes that may read it. */
mc_status mc_settings_expect_class(const mc_tokenizer *tok, mc_error *err, const char *file,
                                   unsigned own);
mc_tokenizer_class mc_settings_class(const mc_tokenizer *tok);
/* Makes it that of config.json's "model_type", where no file names one and it is one of these. */
void mc_settings_fall_back(mc_tokenizer *tok, unsigned own);

/* Reads a flag of tokenizer_config.json; false only on an error. `given` may be NULL. */
bool mc_settings_flag(const mc_tokenizer *tok, mc_error *err, const char *key, bool *value,
                      bool *given);
/* A warning where tokenizer_config.json sets a flag that the class does not follow. */
void mc_settings_warn_unused(const mc_tokenizer *tok, const char *key, bool used);

/* Sets the names of special tokens that the files give; null takes away those that a tokenizer can
 * do without. */
mc_status mc_settings_read_names(mc_tokenizer *tok, mc_error *err);
/* The text of the special token that the files give for a key ("bos_token"); NULL: they do not. */
const char *mc_settings_named(const mc_tokenizer *tok, const char *key);
/* Adds the files' added tokens that have ids to those that tok->added holds from a tokenizer.json.
 * `only_these`: where "added_tokens_decoder" is there the tokenizer.json's do not count. Names have
 * been read. */
mc_status mc_settings_add_listed(mc_tokenizer *tok, mc_error *err, bool only_these);
/* Adds the special tokens that the files name, where they are not there yet. */
mc_status mc_settings_add_specials(mc_tokenizer *tok, mc_error *err);
/* Whether the files have a list of extra special tokens, be it empty. */
bool mc_settings_list_extra(const mc_tokenizer *tok);
/* Refuses "never_split", words that tokenizers in Python leave whole, but for added tokens. */
mc_status mc_settings_check_unsplit(const mc_tokenizer *tok, mc_error *err);
/* mc_settings_add_listed and mc_settings_add_specials. */
mc_status mc_settings_add_tokens(mc_tokenizer *tok, mc_error *err, bool only_these);

#endif
