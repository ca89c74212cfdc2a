/* A model whose sequences join and leave a running batch: what the drivers of generation run.
 * Functions return false after an error on the context. */
#ifndef MC_MODELS_BATCH_MODEL_INTERNAL_H
#define MC_MODELS_BATCH_MODEL_INTERNAL_H

#include "models/generate/kv_pages_internal.h"
#include "models/generate/generate_internal.h"

typedef struct mc_batch_model mc_batch_model;

typedef struct mc_batch_shape {
    int rows;                              /* sequences at once */
    int64_t longest, tokens;               /* in the cache: of one, and of all */
    int64_t memory_longest, memory_tokens; /* the same of an encoder's inputs */
    int page_shift;                        /* pages of 2^page_shift tokens */
    bool in_line;                          /* mc_kv_pages.in_line */
} mc_batch_shape;

/* Prompts, or pieces of them, that are run together. */
typedef struct mc_prompt_pass {
    const int32_t *ids, *lengths; /* packed; (count) */
    const int *sequences;         /* (count) each one's pages */
    const int *columns;           /* (count) its column of the chooser's rows */
    const bool *searched;         /* (count) candidates are found in place of a choice */
    const int32_t *before;        /* (count) tokens that were run before; NULL: none of any */
    int count, whole;             /* the first `whole` of them are run to their end */
} mc_prompt_pass;

/* Adds room for `answers` of up to `most` tokens to one prompt, in whole pages. Each has so many
 * beams (1: no search), which share what lies before their own tokens. */
void mc_batch_shape_add(mc_batch_shape *shape, mc_model *model, int prompt, int most, int answers,
                        int beams);
/* Memory of cache and tables. NULL after an error. */
mc_batch_model *mc_batch_model_new(mc_model *model, const mc_batch_shape *shape);
void mc_batch_model_free(mc_batch_model *batch); /* NULL allowed */
/* What its cache takes, or would take. */
mc_cache_plan mc_batch_model_plan(const mc_model *model, const mc_batch_shape *shape);
/* Whether prompts can be run in pieces: where no token sees those after it. */
bool mc_batch_model_has_pieces(const mc_model *model);
/* Whether a prompt whose answer gets `most` tokens could ever be there, and whether it can be
 * now. */
bool mc_batch_model_can(const mc_batch_model *batch, int prompt, int most, int beams);
bool mc_batch_model_has_room(const mc_batch_model *batch, int prompt, int most, int beams);
/* A sequence takes its pages, as a beam after the first those of its own tokens, and gives them
 * back. */
void mc_batch_model_join(mc_batch_model *batch, int sequence, int prompt, int most);
void mc_batch_model_join_beam(mc_batch_model *batch, int sequence, int prompt, int most);
void mc_batch_model_leave(mc_batch_model *batch, int sequence);
/* What was recorded is not run again: the chooser's memory is another. */
void mc_batch_model_forget(mc_batch_model *batch);
/* What stands in a column (MC_ROW_FIELDS) of a sequence with so many tokens of an answer to a
 * prompt (`ids`, of `prompt` tokens) that is in the cache, but for MC_ROW_TOKEN, _ANSWER and _TICK,
 * which are 0. */
void mc_batch_model_fields(const mc_batch_model *batch, int sequence, const int32_t *ids,
                           int prompt, int count, int32_t *fields);
/* The cache's pages, for beams that follow others. */
mc_kv_pages *mc_batch_model_pages(mc_batch_model *batch);
/* Runs prompts of sequences that joined, and chooses what follows each that is whole. Does not
 * wait. */
bool mc_batch_model_prompts(mc_batch_model *batch, const mc_prompt_pass *pass,
                            const mc_chooser *chooser);
/* Runs the chooser's first call.rows columns and chooses again, and finds the candidates of
 * best.rows, none or as many. Does not wait. */
bool mc_batch_model_step(mc_batch_model *batch, const mc_chooser *chooser);

#endif
