/* Vectors of texts by an encoder (BERT, RoBERTa, MPNet, ...), whose dot products are similarities.
 *
 *     mc_embedder *e = mc_embedder_open(ctx, "sentence-transformers/all-MiniLM-L6-v2", NULL);
 *     int64_t dim = mc_embedder_dim(e);
 *     float *vectors = malloc(count * dim * sizeof *vectors);
 *     mc_embed_texts(e, texts, count, vectors);
 *
 * The settings come from a folder of sentence-transformers: pooling and normalising from
 * modules.json and 1_Pooling/config.json, the longest text from sentence_bert_config.json (or
 * _roberta_, ...), prompts and the number of kept dimensions from
 * config_sentence_transformers.json. A GGUF file has a pooling alone ("bert.pooling_type"). For any
 * other encoder a text's vector is the mean of its last hidden states, not normalised.
 *
 * With load.recipe {MC_FP8_ALL, MC_FP8_STATIC} linear layers multiply in 8 bits (core/nn/recipe.h).
 * The first call then begins with a pass over its first 1,000 texts, which fixes the scales.
 *
 * A call tokenizes on background threads ahead of the device, batches texts of similar length, and
 * copies vectors back while the next batch runs. Pass it many texts at once.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_EMBED_H
#define MC_MODELS_EMBED_H

#include <stdint.h>
#include "core/checkpoint/pretrained.h"
#include "models/model.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_embedder mc_embedder;

/* How the last hidden states of a text become one vector. */
typedef enum mc_pooling {
    MC_POOLING_DEFAULT = 0, /* the folder's; without one MEAN */
    MC_POOLING_MEAN,        /* of all tokens, special ones included */
    MC_POOLING_CLS,         /* the first token's */
    MC_POOLING_MAX,         /* the largest of all tokens, for each column */
    MC_POOLING_POOLER,      /* the model's own pooler: tanh(W [CLS] + b); BERT */
} mc_pooling;

typedef enum mc_normalize {
    MC_NORMALIZE_DEFAULT = 0, /* the folder's; without one NO */
    MC_NORMALIZE_NO,
    MC_NORMALIZE_YES, /* each vector divided by its length, max(|x|, 1e-12) */
} mc_normalize;

typedef struct mc_embed_options {
    mc_load_options load;  /* of the model; its dtype is that of the computation */
    const char *tokenizer; /* mc_embedder_open: folder or identifier; NULL: the model's */
    mc_pooling pooling;
    mc_normalize normalize;
    int64_t max_length; /* the most tokens of a text, which is cut there; 0: the folder's limit,
                           else the model's positions */
    /* A prompt before each text: the prompt itself, or the name of one of the folder's ("query"),
     * not both. NULL: the folder's default prompt; prompt "": none. */
    const char *prompt, *prompt_name;
    /* Only the first truncate_dim numbers of a vector are kept, an error if it has fewer; 0: the
     * folder's truncate_dim, else all. A folder's Normalize comes before the cut, and the rest is
     * not normalised again; MC_NORMALIZE_YES of the options comes after it. */
    int64_t truncate_dim;
    int threads;          /* that tokenize; 0: depends on the number of cores */
    int64_t batch_tokens; /* tokens of a batch; 0: depends on the device */
} mc_embed_options;

/* Opens model and tokenizer from a folder or identifier, as mc_model_from_pretrained does.
 * `options` may be NULL. NULL with the context's error: those of loading; a model that is no
 * encoder, a module or pooling of the folder that is not supported, a max_length beyond the model's
 * positions, POOLER without one, a prompt that the folder does not have, several ranks with
 * MC_FP8_STATIC. */
MC_API mc_embedder *mc_embedder_open(mc_context *ctx, const char *identifier,
                                     const mc_embed_options *options);
/* mc_embedder_open for an existing model and tokenizer, which must outlive the embedder.
 * options->load, tokenizer and prompt_name are not used. */
MC_API mc_embedder *mc_embedder_new(mc_model *model, const mc_tokenizer *tokenizer,
                                    const mc_embed_options *options);
/* Frees it, with the model and tokenizer that mc_embedder_open loaded, before its context does.
 * NULL is allowed. */
MC_API void mc_embedder_free(mc_embedder *e);

MC_API int64_t mc_embedder_dim(const mc_embedder *e); /* numbers of a vector; 0 for NULL */
/* Returns the options in effect; zeros for NULL. `prompt` is NULL without a prompt. */
MC_API mc_embed_options mc_embedder_options(const mc_embedder *e);

/* vectors (count, dim), f32, on the host: row i is that of text i. Waits for the device. Not
 * collective: each rank passes its own texts, and needs all parameters (zero_level 0 to 2).
 * Errors, after which the vectors are undefined: a text that is NULL, memory, the device's; a
 * vector that is not finite (MC_ERR_STATE, names the text and the dtype). */
MC_API mc_status mc_embed_texts(mc_embedder *e, const mc_text_span *texts, size_t count,
                                float *vectors);

#endif
