/* What a sentence-transformers folder says about vectors of texts: modules.json and the files that
 * it names (sentence-transformers 2 to 5). */
#ifndef MC_MODELS_EMBED_INTERNAL_H
#define MC_MODELS_EMBED_INTERNAL_H

#include "core/base/file_internal.h"
#include "models/texts/embed.h"

typedef struct mc_sentence_config {
    bool found;              /* the folder has a modules.json; else all below is zero */
    char model[MC_PATH_MAX]; /* the folder of the model itself */
    mc_pooling pooling;
    bool normalize;
    bool prompt_counts;   /* tokens of the prompt take part in pooling */
    int64_t max_length;   /* of its own files; 0: these do not say it, the tokenizer may */
    int64_t truncate_dim; /* 0: all numbers of a vector */
    char *prompt;         /* of the name asked for, or the default one; NULL: none */
} mc_sentence_config;

/* Reads the folder. `prompt_name` NULL: the default one. Errors name file and key: what is not
 * supported, a prompt that there is not (MC_ERR_NOT_FOUND, with those that there are). Keys that
 * are not known are warnings. */
mc_status mc_sentence_config_read(mc_context *ctx, const char *folder, const char *prompt_name,
                                  mc_sentence_config *out);
void mc_sentence_config_release(mc_sentence_config *config);

#endif
