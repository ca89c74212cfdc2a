/* A model whose sequences join and leave a running batch: what models/generate/generator.c drives.
 * Functions return false after an error on the context. */
#ifndef MC_MODELS_BATCH_INTERNAL_H
#define MC_MODELS_BATCH_INTERNAL_H

#include "models/generate/generate_internal.h"

typedef struct mc_batch_model mc_batch_model;
struct mc_model;

/* The model as generation describes it: no functions and no state. */
mc_decoder mc_model_decoder(struct mc_model *model);
/* Whether it decodes; an error if not. */
bool mc_model_check_decodes(struct mc_model *model);

typedef struct mc_batch_shape {
    int rows;        /* sequences at once */
    int64_t longest; /* tokens of one in the cache */
    int64_t tokens;  /* of all */
    int page_shift;
} mc_batch_shape;

/* Memory of cache and tables. NULL after an error. */
mc_batch_model *mc_batch_model_new(struct mc_model *model, const mc_batch_shape *shape);
void mc_batch_model_free(mc_batch_model *batch);          /* NULL allowed */
size_t mc_batch_model_bytes(const mc_batch_model *batch); /* of keys and values */
/* What the decoder begins with for a prompt of *count ids, and its length in *count: the prompt,
 * or the start token where an encoder reads it. */
const int32_t *mc_batch_model_begins_with(const mc_batch_model *batch, const int32_t *ids,
                                          int *count);
/* Whether a prompt whose answer gets `most` tokens could ever be there, and whether it can be
 * now. */
bool mc_batch_model_can(const mc_batch_model *batch, int prompt, int most);
bool mc_batch_model_has_room(const mc_batch_model *batch, int prompt, int most);
/* The prompt takes a row's pages and fields (MC_ROW_FIELDS), all but the answer's number. */
void mc_batch_model_join(mc_batch_model *batch, int row, int prompt, int most, int32_t *fields);
void mc_batch_model_leave(mc_batch_model *batch, int row);
/* Runs whole prompts, packed, of rows that joined, and chooses what follows each. Does not
 * wait. */
bool mc_batch_model_prompts(mc_batch_model *batch, const int32_t *ids, const int32_t *lengths,
                            const int *rows, int count, const mc_chooser *chooser);
/* Runs the chooser's first call.rows rows and chooses again. Does not wait. */
bool mc_batch_model_step(mc_batch_model *batch, const mc_chooser *chooser);

#endif
