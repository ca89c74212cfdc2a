/* Generating text with a language model: what all families share.
 *
 * Prompts of any lengths are batched without padding. A cache keeps keys and values of earlier
 * tokens, so a step computes one token per sequence. Greedy and beam search give the tokens of
 * Hugging Face's generate(). Sampling filters the distribution as generate() does and in its order
 * (repetition penalty, temperature, top-k, top-p) and draws with random numbers of our own, which
 * depend on the seed, the prompt's place in the batch and the step alone.
 *
 *     mc_generate_options o = {.max_new_tokens = 50};
 *     const int32_t *prompts[] = {ids};
 *     mc_generator *g = mc_model_generator_new(model, prompts, &count, 1, &o);
 *     for (int32_t token; mc_generator_next(g, &token);) ...     one token a prompt and step
 *     mc_generator_free(g);
 */
#ifndef MC_MODELS_GENERATE_H
#define MC_MODELS_GENERATE_H

#include <stdbool.h>
#include <stdint.h>
#include "models/model.h"

/* When the beam search of a prompt ends, once num_beams hypotheses have ended: as generate() does
 * with early_stopping False, True and "never". */
typedef enum mc_early_stopping {
    MC_EARLY_STOPPING_LIKELY = 0, /* when no better one is likely to come: when the best that runs
                                     has no better score at its present length */
    MC_EARLY_STOPPING_AT_ONCE,    /* at once; `true` is this */
    MC_EARLY_STOPPING_NEVER       /* when no better one can come: with a length penalty above 0 when
                                     the best that runs would have no better score even at the
                                     largest length */
} mc_early_stopping;

/* How tokens are chosen. Zero fields mean the defaults, which are those of generate() but for
 * top_k. */
typedef struct mc_generate_options {
    int max_new_tokens; /* an answer; 0: by max_length */
    /* Tokens of prompt and answer together, of an encoder-decoder those of its decoder, start token
     * included. Counts where max_new_tokens is 0, for each prompt by itself; 0: 20 new tokens. */
    int max_length;
    /* Number of answers to each prompt: independent samples, which depend on the seed and the
     * answer's place, or the best of a beam search (at most num_beams). 0: 1. Greedy search returns
     * one. */
    int num_return_sequences;
    /* Draw from the distribution, instead of taking the most probable token. */
    bool sample;
    float temperature; /* logits are divided by it; 0: 1. Without effect unless `sample` */
    int top_k;         /* keep the k most probable tokens; 0: all. Without effect unless `sample` */
    /* Keep the most probable tokens that together have at least this probability; 0: 1, all.
     * Without effect unless `sample`. */
    float top_p;
    /* Logits of tokens that prompt or answer hold already are divided by it where they are
     * positive, multiplied where negative (Keskar et al. 2019); 0: 1, none. */
    float repetition_penalty;
    int num_beams; /* 0 or 1: no beam search. More than 1 excludes `sample` */
    /* The sum of a hypothesis' log-probabilities is divided by (its new tokens, the end included)
     * to this power, in beam search; 0: 1. MC_TRUE_ZERO: not divided. */
    float length_penalty;
    mc_early_stopping early_stopping; /* of beam search */
    uint64_t seed;                    /* of sampling */
    /* Counted onto the place of each prompt, for prompts that are generated in several calls: the
     * numbers drawn for answer k to prompt i are those of place
     * (first_prompt + i) * num_return_sequences + k. */
    int64_t first_prompt;
    /* Tokens that end an answer (eos_count of them; copied). NULL: the model's own. */
    const int32_t *eos;
    int eos_count;
    bool ignore_eos; /* no token ends an answer */
    /* Asked after each new token whether the answer to a prompt ends with it; in a beam search of
     * each candidate, which then ends as with an end token. `ids` are the `count` new tokens so
     * far. On the caller's thread; NULL: never. For texts: models/generate/stop.h. */
    bool (*stop)(void *user, int prompt, const int32_t *ids, int count);
    void *stop_user;
    /* Texts that end an answer (stop_strings of the model's generation_config.json). Only `stop`,
     * with mc_stop.texts and a tokenizer, can detect them. Generating with texts but without `stop`
     * is MC_ERR_UNSUPPORTED, so that no stop text is ignored. */
    const char *const *stop_texts;
    int stop_text_count;
} mc_generate_options;
enum { MC_TOP_K_USUAL = 50 }; /* default top_k of generate() */

/* ---- token by token -------------------------------------------------------------------------- */

/* Answers being generated, one per prompt. Owned by the model's context; use it before the model is
 * freed. */
typedef struct mc_generator mc_generator;

/* Runs one step: writes the next token of each answer to `tokens` (num_return_sequences answers to
 * each prompt, in the order of the prompts), -1 for those that have ended. The token that ends an
 * answer is given too, as its last. False, with nothing written, when all have ended, after an
 * error, and for NULL. */
MC_API bool mc_generator_next(mc_generator *generator, int32_t *tokens);
/* The log-probabilities of the tokens that mc_generator_next gave last, one an answer, under the
 * distribution they were chosen from; 0 where it gave -1. */
MC_API void mc_generator_log_probs(const mc_generator *generator, float *log_probs);
/* Frees it before its context does. NULL is allowed. */
MC_API void mc_generator_free(mc_generator *generator);

/* ---- all at once ----------------------------------------------------------------------------- */

/* Finished answers: num_return_sequences to each prompt, in the order of the prompts, of a beam
 * search the best first. Owned by the model's context. */
typedef struct mc_generation {
    int count;     /* of answers */
    int32_t **ids; /* new tokens of each, without the prompt, with the end token if one came */
    int *lengths;  /* their numbers; 0 with a score of -INFINITY where a search has found fewer */
    /* The log-probability of each token under the distribution it was chosen from, which is that
     * of the tokens that the filters leave; of a beam search that of all. */
    float **log_probs;
    /* Beam search: the hypothesis' log-probability over its length penalty; else the answer's
     * log-probability under the distribution it was chosen from. */
    float *scores;
} mc_generation;

/* Frees it before its context does. NULL is allowed. */
MC_API void mc_generation_free(mc_generation *generation);

/* ---- memory ---------------------------------------------------------------------------------- */

/* What a cache of keys and values takes: mc_model_generate_plan, mc_model_generator_plan. */
typedef struct mc_cache_plan {
    int sequences;  /* at once */
    int64_t tokens; /* of all of them, an encoder's inputs included; in whole pages */
    size_t bytes;
} mc_cache_plan;

/* ---- answers to a list of prompts ------------------------------------------------------------ */

/* Returns the options of the model's generation_config.json, if it has one, which the caller may
 * then change. Keys read: do_sample, temperature, top_k, top_p, repetition_penalty, num_beams,
 * length_penalty, early_stopping, stop_strings, max_new_tokens, max_length, num_return_sequences. A
 * missing key is zero, the default, except top_k with do_sample: 50, as in transformers. Its
 * eos_token_id (a token or a list of them; null or no key: no token ends an answer, whatever
 * config.json says) and decoder_start_token_id hold for all answers, whether these options are used
 * or not. Errors name the key: a value of a wrong type or range, or an unsupported setting (for
 * example no_repeat_ngram_size 3). Unknown keys are warnings. */
MC_API mc_status mc_model_generate_options(mc_model *model, mc_generate_options *options);

/* Begins answers to `count` prompts: prompts[i] is lengths[i] >= 1 ids, which an encoder-decoder
 * encodes and a decoder continues. `options` NULL: those of mc_model_generate_options. The prompts
 * are run with the first mc_generator_next. Errors: a family that does not decode, an id out of
 * range, an empty prompt, a prompt and answer longer than the positions, an option out of range;
 * num_beams over 1, since the tokens of a beam search are only known at its end: use
 * mc_model_generate. */
MC_API mc_generator *mc_model_generator_new(mc_model *model, const int32_t *const *prompts,
                                            const int *lengths, int count,
                                            const mc_generate_options *options);
/* The answers as a whole, beam search included. NULL after an error. */
MC_API mc_generation *mc_model_generate(mc_model *model, const int32_t *const *prompts,
                                        const int *lengths, int count,
                                        const mc_generate_options *options);
/* Computes the size of the cache that either of them would allocate. Errors: theirs, except those
 * of ids. */
MC_API mc_status mc_model_generate_plan(mc_model *model, const int *lengths, int count,
                                        const mc_generate_options *options, mc_cache_plan *plan);

/* ---- answers of a running batch (generator.h) ------------------------------------------------ */

/* How an answer stands after a token. */
typedef enum mc_answer_state {
    MC_ANSWER_GOES_ON,
    MC_ANSWER_ENDED,     /* by an end token, its length, or mc_generate_options.stop */
    MC_ANSWER_CANCELLED, /* no token comes with it */
    MC_ANSWER_FAILED     /* the same; see `error` */
} mc_answer_state;

typedef struct mc_answer_event {
    int64_t id;
    int answer; /* which of the num_return_sequences answers to the prompt, from 0 */
    mc_answer_state state;
    int32_t token;         /* -1: none */
    float log_probability; /* of the token under the distribution it was chosen from */
    float score;           /* with MC_ANSWER_ENDED that of mc_generation.scores; else 0 */
    const char *error;     /* what was wrong with this prompt alone, until the call returns */
} mc_answer_event;

/* Called by the thread that runs the steps, once for each token and once for an end without one.
 * Each of the num_return_sequences answers ends separately and exactly once; if that number is out
 * of range, one answer fails. The callback may add and cancel prompts. */
typedef void (*mc_answer_fn)(void *user, const mc_answer_event *event);

#endif
