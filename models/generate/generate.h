/* Generating text with a language model: what all families share.
 *
 * Prompts of any lengths are batched without padding. A cache keeps keys and values of earlier
 * tokens, so a step computes one token per sequence. Greedy and beam search give the tokens of
 * Hugging Face's generate(). Sampling filters the distribution as generate() does and in its order
 * (repetition penalty, temperature, top-k, top-p) and draws with random numbers of our own, which
 * depend on the seed, the prompt's place in the batch and the step alone.
 *
 *     mc_encoding e = {0};
 *     mc_tokenizer_encode(tok, text, strlen(text), NULL, 0, 0, &e);
 *     const int32_t *prompts[] = {e.ids};
 *     int length = (int)e.count;
 *     mc_generate_options o = {.max_new_tokens = 50};
 *     mc_generation *g = mc_model_generate(model, prompts, &length, 1, &o);
 *     if (g) puts(mc_tokenizer_decode(tok, g->ids[0], (size_t)g->lengths[0], true));
 *
 * or token by token:
 *
 *     mc_generator *g = mc_model_generator_new(model, prompts, &length, 1, &o);
 *     for (int32_t token; mc_generator_next(g, &token);) ...     one token a prompt and step
 *     mc_generator_free(g);
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_GENERATE_H
#define MC_MODELS_GENERATE_H

#include <stdbool.h>
#include <stdint.h>
#include "models/model.h"

/* When the beam search of a prompt ends, after num_beams hypotheses have ended: generate()'s
 * early_stopping False, True and "never". */
typedef enum mc_early_stopping {
    /* False: when a better hypothesis is unlikely, because the best unfinished one, at its present
     * length, scores no better than the finished ones. */
    MC_EARLY_STOPPING_LIKELY = 0,
    MC_EARLY_STOPPING_AT_ONCE, /* True: at once */
    /* "never": when a better hypothesis is impossible. With a length penalty above 0, this is when
     * the best unfinished one would score no better even at the largest length. */
    MC_EARLY_STOPPING_NEVER
} mc_early_stopping;

/* How tokens are chosen. Zero fields mean the defaults, which are those of generate() except for
 * top_k. */
typedef struct mc_generate_options {
    int max_new_tokens; /* the most tokens of an answer; 0: max_length limits it */
    /* The most tokens of a prompt and its answer together; for an encoder-decoder, the most tokens
     * of its decoder, start token included. Used only if max_new_tokens is 0. 0: 20 new tokens. */
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
    /* Makes repetition less likely (Keskar et al. 2019): for each token that is already in the
     * prompt or the answer, a positive logit is divided by it, a negative one multiplied. 0: 1, no
     * penalty. */
    float repetition_penalty;
    int num_beams; /* 0 or 1: no beam search. More than 1 excludes `sample` */
    /* Beam search: a hypothesis' score is the sum of its log-probabilities divided by n to this
     * power, where n is the number of its new tokens, the end token included. 0: 1; MC_TRUE_ZERO:
     * not divided. */
    float length_penalty;
    mc_early_stopping early_stopping; /* of beam search */
    uint64_t seed;                    /* of sampling */
    /* The number of the first prompt, for a list of prompts that is generated in several calls.
     * Answer k to prompt i is sampled with the random numbers of place
     * (first_prompt + i) * num_return_sequences + k, so the calls give what one call would. */
    int64_t first_prompt;
    /* Tokens that end an answer (eos_count of them; copied). NULL: the model's own. */
    const int32_t *eos;
    int eos_count;
    bool ignore_eos; /* no token ends an answer */
    /* Returns whether the answer to a prompt ends with its newest token. `ids` are the `count` new
     * tokens so far. Called after each new token, on the caller's thread; in a beam search for each
     * candidate. NULL: no answer ends this way. For texts: models/generate/stop.h. */
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
 * each prompt, in the order of the prompts), -1 for those that have ended. The last token of an
 * answer is the one that ends it. Returns false, and writes nothing, when all have ended, after an
 * error, and for NULL. */
MC_API bool mc_generator_next(mc_generator *generator, int32_t *tokens);
/* The log-probabilities of the tokens that mc_generator_next wrote last, one for each answer, under
 * the distribution from which they were chosen; 0 where it wrote -1. */
MC_API void mc_generator_log_probs(const mc_generator *generator, float *log_probs);
/* Frees it before its context does. NULL is allowed. */
MC_API void mc_generator_free(mc_generator *generator);

/* ---- all at once ----------------------------------------------------------------------------- */

/* Finished answers: num_return_sequences to each prompt, in the order of the prompts. In a beam
 * search the best answer comes first. Owned by the model's context. */
typedef struct mc_generation {
    int count;     /* of answers */
    int32_t **ids; /* new tokens of each, without the prompt, with the end token if one came */
    int *lengths;  /* number of tokens of each; if a search has found fewer answers, the rest have
                      length 0 and a score of -INFINITY */
    /* The log-probability of each token under the distribution from which it was chosen: over the
     * tokens that the filters keep; in a beam search over all tokens. */
    float **log_probs;
    /* Beam search: the hypothesis' score (see length_penalty). Else the sum of log_probs. */
    float *scores;
} mc_generation;

/* Frees it before its context does. NULL is allowed. */
MC_API void mc_generation_free(mc_generation *generation);

/* ---- memory ---------------------------------------------------------------------------------- */

/* The size of a cache of keys and values: mc_model_generate_plan, mc_model_generator_plan. */
typedef struct mc_cache_plan {
    int sequences;  /* that it holds at once */
    int64_t tokens; /* of all sequences, an encoder's inputs included; in whole pages */
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
 * num_beams over 1 (the tokens of a beam search are known only at its end: use
 * mc_model_generate). */
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

/* The state of an answer after an event. */
typedef enum mc_answer_state {
    MC_ANSWER_GOES_ON,
    MC_ANSWER_ENDED,     /* by an end token, its length, or mc_generate_options.stop */
    MC_ANSWER_CANCELLED, /* the event has no token */
    MC_ANSWER_FAILED     /* the event has no token; `error` gives the reason */
} mc_answer_state;

typedef struct mc_answer_event {
    int64_t id;
    int answer; /* which of the num_return_sequences answers to the prompt, from 0 */
    mc_answer_state state;
    int32_t token;         /* -1: none */
    float log_probability; /* of the token: see mc_generation.log_probs */
    float score;           /* with MC_ANSWER_ENDED: see mc_generation.scores; else 0 */
    const char *error;     /* the reason, which concerns this prompt alone; valid during the call */
} mc_answer_event;

/* Called by the thread that runs the steps, once for each token and once for an end without one.
 * Each of the num_return_sequences answers ends separately and exactly once; if that number is out
 * of range, one answer fails. The callback may add and cancel prompts. */
typedef void (*mc_answer_fn)(void *user, const mc_answer_event *event);

#endif
