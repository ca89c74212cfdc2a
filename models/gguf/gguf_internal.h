/* Models as GGUF files (core/formats/gguf_internal.h), under the names that llama.cpp has for them.
 *
 *   names.c     which tensors and keys a family has there
 *   llama.c     those of the LLaMA family                  rope.c    its rotary positions
 *   model_write.c   a model and its tokenizer into a file   model_read.c   a file as a model
 *   pooling.c       how an encoder's vectors are made of its last hidden states
 *   tokens_write.c  a tokenizer's vocabulary as the file's values; tokenizers/gguf reads them */
#ifndef MC_MODELS_GGUF_INTERNAL_H
#define MC_MODELS_GGUF_INTERNAL_H

#include "core/formats/gguf_internal.h"
#include "core/ops/rope.h"
#include "models/model_internal.h"
#include "models/texts/embed.h"
#include "tokenizers/gguf/tokens_internal.h"

enum { MC_GGUF_STACKED = 3, MC_GGUF_NAME = 128 };

/* Whose heads the rows of a tensor are that get rotary positions. */
typedef enum mc_gguf_heads { MC_GGUF_NOT_ROTATED, MC_GGUF_QUERIES, MC_GGUF_KEYS } mc_gguf_heads;

/* A tensor. Names lack ".weight" and ".bias", of which both are looked for, unless it is `bare`.
 * {i} is a layer's number; of layer 0 `first` is the name, if there is one. */
typedef struct mc_gguf_row {
    const char *theirs, *ours[MC_GGUF_STACKED]; /* several of ours: one after the other, by rows */
    const char *first;
    bool plain; /* f32 always, as llama.cpp wants it; tensors of one dimension are that anyway */
    bool bare;  /* ours is the full name, and theirs gets ".weight" */
    mc_gguf_heads heads;
} mc_gguf_row;

/* A number of config.json, by its key there. */
typedef struct mc_gguf_key {
    const char *theirs; /* after "ARCHITECTURE." */
    const char *ours;
    bool is_float;
    bool derived;  /* it is written alone: the other keys say what it is */
    bool optional; /* a file without it has config.json's default */
} mc_gguf_key;

typedef struct mc_gguf_family {
    const char *family; /* its name here */
    const char *type;   /* model_type, where the family has several; NULL: any */
    const char *architecture;
    const mc_gguf_row *rows; /* theirs == NULL ends, here and below */
    const mc_gguf_key *keys;
    const char *const *dropped; /* fnmatch patterns of parameters that have no place there */
    /* Checks a config.json that is to be written, and writes what the keys do not say. */
    bool (*write)(mc_gguf_writer *w, mc_model *m, const cJSON *config);
    /* Adds what the keys do not say to the config.json that is read. False: memory is out, or an
     * error is set. */
    bool (*read)(mc_context *ctx, const mc_gguf *g, cJSON *config);
    /* "output.weight" is the words times this; 0: it is not. May be NULL. */
    double (*head_scale)(const mc_model *m, const cJSON *config);
    /* Rotary positions rotate neighbours, not a head's first half with its second: the rows of
     * queries and keys stand in that order. */
    bool pairs;
    /* A vector that is no parameter, which `read` looks at: its name; and its length, 0 if the
     * model has none, with the numbers written to `out` unless that is NULL. May be NULL. */
    const char *extra;
    int64_t (*extra_values)(const mc_model *m, float *out);
} mc_gguf_family;

/* Of a model, or of an architecture; NULL: llama.cpp's files have none that is known here. */
const mc_gguf_family *mc_gguf_family_of(const mc_model *m);
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

/* How many heads the row's tensor has that are rotated; 0: none. */
int64_t mc_gguf_heads_of(const mc_gguf_row *row, const mc_model_shape *shape);
/* Puts the rows of each head, its first half and then its second, in pairs of one of each; or
 * back. */
void mc_gguf_pair_rows(const float *from, float *to, int64_t rows, int64_t columns, int64_t heads,
                       bool back);

/* ---- llama.c, rope.c ---- */

enum { MC_GGUF_LLAMA_FAMILIES = 5 };
extern const mc_gguf_family mc_gguf_llama_families[MC_GGUF_LLAMA_FAMILIES];
extern const char mc_gguf_rope_tensor[]; /* of llama3's scaling */

/* What several families share: the error that the config's key has no GGUF form; whether a key of
 * config.json is this text; and a read of mc_gguf_family. */
bool mc_gguf_refuse_key(mc_model *m, const char *key, const char *expected);
bool mc_gguf_is_text(const cJSON *config, const char *key, const char *value);
bool mc_gguf_read_tied(mc_context *ctx, const mc_gguf *g, cJSON *config);
/* A config as it is read from its text, where some numbers are written as text alone. Frees the
 * config; NULL when memory is out. */
cJSON *mc_gguf_reread(cJSON *config);
/* The shortest decimal that is this f32. */
double mc_gguf_shortest(float value);
/* The shortest decimal that, divided by `divisor`, is this f32. */
double mc_gguf_undivided(float quotient, double divisor);
/* A number of the file under an architecture's key; `otherwise` if it has none. */
double mc_gguf_number_of(const mc_gguf *g, const char *architecture, const char *key,
                         double otherwise);

/* Writes the keys of rotary positions. llama3's scaling is a tensor instead, which takes llama's
 * architecture. False with an error: they have no GGUF form. */
bool mc_gguf_put_rope(mc_gguf_writer *w, mc_model *m, const char *architecture, const mc_rope *rope,
                      bool takes_tensor);
/* What the angle of each pair is divided by, of llama3's scaling: head_dim / 2 numbers. */
void mc_gguf_rope_divisors(const mc_rope *rope, int64_t head_dim, float *out);
/* Adds rope_theta and rope_scaling to a config.json. */
bool mc_gguf_read_rope(mc_context *ctx, const mc_gguf *g, const char *architecture,
                       int64_t head_dim, cJSON *config);

/* Writes the model, with the tokenizer unless it is NULL. `dtype` is the name of the matrices' type
 * (mc_gguf_dtype_find); rows that Q8_0 cannot hold are F16. `pooling` is an encoder's; DEFAULT:
 * nothing says it. Ranks call it together. */
mc_status mc_gguf_write_model(mc_model *m, const mc_tokenizer *tok, const char *path,
                              const char *dtype, mc_pooling pooling);
/* The type's name in files, of "f32", "f16", "bf16" or "q8_0"; NULL for any other text. */
const char *mc_gguf_dtype_named(const char *text);
mc_model *mc_gguf_open_model(mc_context *ctx, const mc_family *asked, const char *path,
                             const mc_load_options *options);
const mc_family *mc_gguf_find_family(mc_context *ctx, const char *path);

/* Adds the vocabulary's values, one for each of the model's rows of words. */
bool mc_gguf_put_tokens(mc_gguf_writer *w, mc_error *err, const mc_tokenizer *tok,
                        const mc_model_shape *shape);
/* Writes what a file has beside its weights into a folder: its tokenizer's files, and of an encoder
 * with a pooling those of sentence-transformers. */
mc_status mc_gguf_files_to_folder(mc_error *err, const char *path, const char *folder);

/* ---- pooling.c ---- */

/* Writes "ARCHITECTURE.pooling_type". False with an error: llama.cpp has no number for it. */
bool mc_gguf_put_pooling(mc_gguf_writer *w, mc_model *m, const char *architecture,
                         mc_pooling pooling);
/* DEFAULT: the file does not say it. Errors name file and key. */
mc_status mc_gguf_read_pooling(mc_error *err, const mc_gguf *g, const char *architecture,
                               mc_pooling *out);
/* The same of a path. */
mc_status mc_gguf_pooling_of(mc_error *err, const char *path, mc_pooling *out);
/* Writes modules.json and 1_Pooling/config.json, of vectors of `dim` numbers. */
mc_status mc_gguf_write_pooling(mc_error *err, const char *folder, mc_pooling pooling, int64_t dim);

#endif
