/* What generation needs of a model, and what its files share. */
#ifndef MC_MODELS_GENERATE_INTERNAL_H
#define MC_MODELS_GENERATE_INTERNAL_H

#include "core/base/context_internal.h"
#include "models/generate/generate.h"

/* A model that answers prompts, with its cache. The functions return false after an error on the
 * context. */
typedef struct mc_decoder {
    mc_context *ctx;
    const char *model; /* in errors: "GPT-2" */
    int64_t vocab, positions;
    const int32_t *eos; /* the model's own */
    int eos_count;
    void *state;
    /* Makes room for `sequences` sequences of up to `capacity` tokens; none is in use. */
    bool (*begin)(void *state, int sequences, int64_t capacity);
    /* Runs lengths[i] new tokens for sequence i < count: prompts the first time, one each later.
     * `ids` are packed. Writes the logits of what follows each sequence: (count, vocab). */
    bool (*step)(void *state, const int32_t *ids, const int32_t *lengths, int count, float *logits);
    /* Sequence i becomes what from[i] was, for i < count; the others go. */
    bool (*select)(void *state, const int32_t *from, int count);
    /* Frees all, the state too. Accepts a NULL state. */
    void (*end)(void *state);
} mc_decoder;

/* Whether prompts are there and hold ids of the vocabulary; an error if not. */
bool mc_check_prompts(const mc_decoder *decoder, const int32_t *const *prompts, const int *lengths,
                      int count);
/* Takes the decoder over, also on failure (NULL). Checks prompts and options. */
mc_generator *mc_generator_new(const mc_decoder *decoder, const int32_t *const *prompts,
                               const int *lengths, int count, const mc_generate_options *options);
mc_generation *mc_generate(const mc_decoder *decoder, const int32_t *const *prompts,
                           const int *lengths, int count, const mc_generate_options *options);

/* ---- choosing tokens ------------------------------------------------------------------------- */

/* Scratch memory for a vocabulary. */
typedef struct mc_sampler {
    int64_t vocab;
    int32_t *order;
    uint8_t *marks; /* all 0 between calls */
} mc_sampler;

bool mc_sampler_init(mc_sampler *s, int64_t vocab); /* false: out of memory */
void mc_sampler_release(mc_sampler *s);
/* The repetition penalty over the tokens seen. */
void mc_penalise(mc_sampler *s, float *logits, const int32_t *seen, int count, float penalty);
/* Temperature, top-k, top-p, in this order: what is filtered out becomes -INFINITY. */
void mc_filter(mc_sampler *s, float *logits, const mc_generate_options *o);
/* log sum exp of the logits; NaN if one is NaN or +INFINITY. */
double mc_log_sum_exp(const float *logits, int64_t vocab);
/* The first of the largest. */
int32_t mc_most_probable(const float *logits, int64_t vocab);
/* The token where the cumulative probability passes u in [0, 1). */
int32_t mc_draw(const float *logits, int64_t vocab, double log_sum, double u);
/* A uniform number in [0, 1), made of its arguments alone. */
double mc_uniform(uint64_t seed, uint64_t sequence, uint64_t step);

/* ---- answers in the making ------------------------------------------------------------------- */

typedef struct mc_answer {
    int32_t *ids; /* prompt and answer */
    int prompt, length;
    double score;
    bool done;
} mc_answer;

struct mc_generator {
    mc_owned owned;
    mc_context *ctx;
    mc_decoder decoder;
    mc_generate_options options; /* with defaults filled in */
    int count;                   /* of prompts */
    mc_answer *answers;          /* (count) */
    mc_sampler sampler;
    int32_t *row_of, *row_ids; /* (rows): the prompt of each row of the decoder, its new token */
    int32_t *row_lengths, *row_from; /* (rows) */
    int rows;                        /* in use; room for count * num_beams */
    int steps;                       /* made so far */
    float *logits;                   /* (rows, vocab) */
};

bool mc_is_eos(const mc_generator *g, int32_t token);
/* Runs the prompts (the first time) or row_ids, and fills the logits. */
bool mc_generator_run(mc_generator *g);
/* Searches with num_beams; leaves the best answers in g->answers. */
bool mc_beam_search(mc_generator *g);

#endif
