/* Models as GGUF files (core/formats/gguf_internal.h), under the names that llama.cpp has for them.
 *
 *   names.c     which tensors and keys a family has there
 *   write.c     a model and its tokenizer into a file      read.c    a file as a model
 *   tokens.c    a tokenizer's vocabulary to and from the file's values */
#ifndef MC_MODELS_GGUF_INTERNAL_H
#define MC_MODELS_GGUF_INTERNAL_H

#include "core/formats/gguf_internal.h"
#include "models/model_internal.h"
#include "tokenizers/tokenizer.h"

enum { MC_GGUF_STACKED = 3, MC_GGUF_NAME = 128 };

/* A tensor. Names lack ".weight" and ".bias", of which both are looked for, unless it is `bare`.
 * {i} is a layer's number; of layer 0 `first` is the name, if there is one. */
typedef struct mc_gguf_row {
    const char *theirs, *ours[MC_GGUF_STACKED]; /* several of ours: one after the other, by rows */
    const char *first;
    bool plain; /* f32 always, as llama.cpp wants it; tensors of one dimension are that anyway */
    bool bare;  /* ours is the full name, and theirs gets ".weight" */
} mc_gguf_row;

/* A number of config.json, by its key there. */
typedef struct mc_gguf_key {
    const char *theirs; /* after "ARCHITECTURE." */
    const char *ours;
    bool is_float;
    bool derived; /* it is written alone: the other keys say what it is */
} mc_gguf_key;

typedef struct mc_gguf_family {
    const char *family; /* its name here */
    const char *architecture;
    const mc_gguf_row *rows; /* theirs == NULL ends, here and below */
    const mc_gguf_key *keys;
    const char *const *dropped; /* fnmatch patterns of parameters that have no place there */
    /* Checks a config.json that is to be written, and writes what the keys do not say. */
    bool (*write)(mc_gguf_writer *w, mc_model *m, const cJSON *config);
    /* Adds what follows from the file's tensors to the config.json that is read. */
    bool (*read)(const mc_gguf *g, cJSON *config);
    /* "output.weight" is the words times this; 0: it is not. May be NULL. */
    double (*head_scale)(const mc_model *m, const cJSON *config);
} mc_gguf_family;

/* Of a family, or of an architecture; NULL: llama.cpp's files have none that is known here. */
const mc_gguf_family *mc_gguf_family_of(const mc_family *family);
const mc_gguf_family *mc_gguf_family_named(const char *architecture, size_t length);
/* The families' architectures, for errors. */
const char *mc_gguf_list(char *out, size_t size);

/* A row's name of layer `i`, theirs or one of ours (false: the row has no k-th). Of a row that is
 * not one of each layer `i` is the last layer. */
void mc_gguf_theirs(const mc_gguf_row *row, int64_t i, const char *suffix, char out[MC_GGUF_NAME]);
bool mc_gguf_ours(const mc_gguf_row *row, int k, int64_t i, const char *suffix,
                  char out[MC_GGUF_NAME]);
/* Whether the row is one of each layer. */
bool mc_gguf_is_layered(const mc_gguf_row *row);

/* Writes the model, with the tokenizer unless it is NULL. `dtype` is the name of the matrices' type
 * (mc_gguf_dtype_find); rows that Q8_0 cannot hold are F16. Ranks call it together. */
mc_status mc_gguf_write_model(mc_model *m, const mc_tokenizer *tok, const char *path,
                              const char *dtype);
/* The type's name in files, of "f32", "f16", "bf16" or "q8_0"; NULL for any other text. */
const char *mc_gguf_dtype_named(const char *text);
bool mc_gguf_path_is(const char *path); /* a file that begins as a GGUF file does */
mc_model *mc_gguf_open_model(mc_context *ctx, const mc_family *asked, const char *path,
                             const mc_load_options *options);
const mc_family *mc_gguf_find_family(mc_context *ctx, const char *path);

/* Adds the vocabulary's values; `vocabulary`: the model's rows of words. */
bool mc_gguf_put_tokens(mc_gguf_writer *w, mc_error *err, const mc_tokenizer *tok,
                        int64_t vocabulary);
/* Writes the vocabulary as a tokenizer's files into a folder; nothing if the file has none. */
mc_status mc_gguf_write_tokens(mc_error *err, const mc_gguf *g, const char *folder);
mc_status mc_gguf_tokens_to_folder(mc_error *err, const char *path, const char *folder);

#endif
