/* What the files of generation share. */
#ifndef MC_MODELS_GENERATE_INTERNAL_H
#define MC_MODELS_GENERATE_INTERNAL_H

#include "core/base/context_internal.h"
#include "core/device/plan_internal.h"
#include "core/tensor/tensor_internal.h"
#include "models/generate/generate.h"

/* What generation has to know of a model. */
typedef struct mc_decoder {
    mc_context *ctx;
    const char *model;  /* in errors: "GPT-2" */
    const mc_model *of; /* itself */
    int64_t vocab, positions;
    int32_t start;      /* what answers go on from where an encoder reads the prompt; -1: from it */
    int32_t before;     /* tokens of the model's own in the cache before every sequence's */
    const int32_t *eos; /* the model's own */
    int eos_count;
} mc_decoder;

mc_decoder mc_model_decoder(mc_model *model);
/* Whether it decodes; an error if not. */
bool mc_model_check_decodes(mc_model *model);

/* ---- options and prompts --------------------------------------------------------------------- */

enum { MC_MOST_RETURNED = 65536 };
/* Fills defaults in; an error for options that make no sense. */
bool mc_generate_read_options(const mc_decoder *decoder, const mc_generate_options *given,
                              mc_generate_options *options);
/* Whether something looks for the texts that end answers; an error otherwise. */
bool mc_check_stop_texts(const mc_decoder *decoder, const mc_generate_options *options);
mc_sampling mc_sampling_of(const mc_generate_options *options);
/* What the decoder begins with for a prompt of *count ids, and its length in *count: the prompt,
 * or the start token where an encoder reads it. */
const int32_t *mc_decoder_begins(const mc_decoder *decoder, const int32_t *ids, int *count);
/* New tokens at most of an answer to a prompt of `length` ids. */
int mc_most_new(const mc_decoder *decoder, const mc_generate_options *options, int length);
/* Whether prompts are there and hold ids of the vocabulary; an error if not. */
bool mc_check_prompts(const mc_decoder *decoder, const int32_t *const *prompts, const int *lengths,
                      int count);
/* That their answers have room, too. */
bool mc_check_lengths(const mc_decoder *decoder, const mc_generate_options *options,
                      const int *lengths, int count);

/* ---- answers in the making ------------------------------------------------------------------- */

typedef struct mc_answer {
    int32_t *ids;     /* (most) the new tokens */
    float *log_probs; /* (most) theirs */
    int length, most;
    double score;
    bool done;
} mc_answer;

/* NULL when memory is out, without an error. */
mc_answer *mc_answers_new(int count);
bool mc_answer_reserve(mc_answer *answer, int most);
void mc_answers_free(mc_answer *answers, int count);
/* As the caller gets them. NULL after an error. */
mc_generation *mc_generation_of(mc_context *ctx, const mc_answer *answers, int count);

/* What a call of generation is given, checked, with defaults filled in. */
typedef struct mc_generate_call {
    mc_model *model;
    mc_decoder decoder;
    mc_generate_options options;
    const int32_t *const *prompts; /* (count) */
    const int *lengths;
    int count;
} mc_generate_call;

/* ---- tokens chosen on the device ------------------------------------------------------------- */

/* What chooses tokens on the device, and keeps what the next step needs there. */
typedef struct mc_chooser {
    mc_choose_call call; /* its pointers are to device memory */
    mc_tensor *rows;     /* i32 (MC_ROW_FIELDS, stride): call.state */
    void *seen, *rules, *eos, *chosen;
    float *penalty; /* best.penalty and best.seen, as they are written */
    uint32_t *marks;
    size_t seen_bytes, rules_bytes, eos_bytes, chosen_bytes;
    /* Where rows belong to beam searches: the candidates of these, which have ended for `call`.
     * Rows 0: none do. */
    mc_best_call best;
} mc_chooser;

/* ---- generators ------------------------------------------------------------------------------ */

struct mc_generator {
    mc_owned owned;
    mc_context *ctx;
    struct mc_batch *batch; /* batch_internal.h; NULL: a list without prompts */
    /* Of a fixed list of prompts; NULL else. */
    mc_answer *answers; /* (count) */
    int count;
    int given; /* steps that the caller has got */
};
/* An empty one; NULL after an error. */
mc_generator *mc_generator_new(mc_context *ctx);

#endif
