/* Texts in, a row of numbers for each out: tokenized in threads ahead of the device, batched by
 * length, run on evaluation tapes, copied back late.
 *
 * A batch is as many texts of similar length as fit a number of tokens. On a GPU, for encoders,
 * batches are rounded up to a few shapes, so that each shape's step is recorded once. Their rows
 * are copied to the host beside the next batch. */
#ifndef MC_MODELS_TEXT_ROWS_INTERNAL_H
#define MC_MODELS_TEXT_ROWS_INTERNAL_H

#include "models/model.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_text_rows mc_text_rows;

typedef struct mc_text_rows_options {
    mc_model *model;
    const mc_tokenizer *tok; /* both outlive the object */
    int64_t max_length;      /* tokens of a text or pair; 0: what the tokenizer's folder says and
                                the model has positions for; without both 512 */
    const char *prefix;      /* put before each text, copied; NULL: nothing */
    int64_t width;           /* columns of a row */
    const char *what;        /* a row is, for errors: "logits" */
    /* (texts, width) of a forward pass. */
    mc_tensor *(*head)(mc_tape *t, mc_model *model, const mc_model_output *out, void *user);
    void *user;
    int threads;          /* that tokenize; 0: by the number of cores */
    int64_t batch_tokens; /* of a batch; 0: by the device */
    bool fixed_shapes;    /* as on a GPU, on any device: for tests */
} mc_text_rows_options;

/* Freed by its owner, before the context, the model and the tokenizer. NULL after an error. */
mc_text_rows *mc_text_rows_new(mc_context *ctx, const mc_text_rows_options *options);
void mc_text_rows_free(mc_text_rows *r);                /* NULL is allowed */
int64_t mc_text_rows_max_length(const mc_text_rows *r); /* that was chosen; 0 for NULL */
/* rows (count, width): row i is of text i, or of the pair of texts[i] and pairs[i] (pairs NULL:
 * single texts). Errors, after which rows are undefined, name the text: MC_ERR_STATE for a row
 * that is not finite. */
mc_status mc_text_rows_run(mc_text_rows *r, const mc_text_span *texts, const mc_text_span *pairs,
                           size_t count, float *rows);

#endif
