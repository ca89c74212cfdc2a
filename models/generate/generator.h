/* Answers that join and leave a running batch: any thread adds prompts and cancels answers while
 * one thread runs the steps, with one copy of the weights for all.
 *
 *     mc_generator *g = mc_model_generator_open(model, &(mc_generator_options){.sequences = 32});
 *     int64_t id = mc_generator_add(g, ids, count, &options, got_token, user);     any thread
 *     mc_generator_cancel(g, id);                                                  any thread
 *     while (mc_generator_step(g)) continue;                                       one thread
 *     mc_generator_free(g);
 *
 * The cache consists of pages of keys and values, which sequences of all lengths share. A sequence
 * joins when a row and all pages that its prompt and its longest answer need are free; until then
 * it waits, in the order of adding. So a full cache never ends an answer. Several prompts run at
 * once, without padding, between steps of the other sequences. A long prompt runs in pieces, so
 * that the others' tokens do not wait for it. Prompts of CPM-1 and of encoder-decoders, whose
 * tokens attend to later ones, run as a whole.
 *
 * An answer's tokens do not depend on its neighbours, or on when they come and go; sampled ones
 * depend on the seed, mc_generate_options.first_prompt and the step alone. In f32 they
 * are those of mc_model_generate.
 *
 * Several sampled answers to one prompt take a row each; mc_answer_event.answer distinguishes their
 * events. A beam search starts when enough rows are free: it takes one row per beam, and pages for
 * one prompt and the new tokens of each beam. Its tokens are known at its end, when the
 * num_return_sequences best answers are delivered as a whole, the best first. While a search runs
 * on a GPU, steps are launched one by one instead of recorded, so other answers are slower.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_MODELS_GENERATOR_H
#define MC_MODELS_GENERATOR_H

#include <stddef.h>
#include "models/generate/generate.h"

/* Zero fields mean the defaults. */
typedef struct mc_generator_options {
    int sequences; /* rows: answers at once, where each beam counts as one; 0: 8 */
    /* The most tokens of a prompt and its answer together; for an encoder-decoder, of each of the
     * two. Soft prompts count. 0: the model's positions, or 1024 if it has no limit. */
    int64_t longest;
    int64_t cache_tokens;  /* of all sequences together; 0: sequences * longest */
    int page;              /* tokens of a page, a power of two; 0: 16 */
    int64_t prompt_tokens; /* of prompts that run at once; 0: 4096 */
    /* The same while answers are running, which wait for the prompts; at most prompt_tokens. 0:
     * 1024, or 128 on a CPU. */
    int64_t prompt_piece;
} mc_generator_options;

/* Creates a running batch: allocates the cache and everything that a step needs on the device.
 * `options` may be NULL. Owned by the model's context. NULL after an error: a model that does not
 * decode, an option out of range, memory. */
MC_API mc_generator *mc_model_generator_open(mc_model *model, const mc_generator_options *options);
/* Computes the size of the cache that mc_model_generator_open would allocate. Same errors. */
MC_API mc_status mc_model_generator_plan(mc_model *model, const mc_generator_options *options,
                                         mc_cache_plan *plan);
/* Adds a prompt of `count` ids. Ids and `options` (NULL: those of mc_model_generate_options) are
 * copied, but not what stop_user points to. Returns the prompt's number, from 1; 0 when memory is
 * out. An error in a prompt or its options (an id out of range, too long for the model or the
 * cache, more beams than `sequences`, over 16 end tokens) ends only its own answers, with
 * MC_ANSWER_FAILED. Any thread. */
MC_API int64_t mc_generator_add(mc_generator *generator, const int32_t *ids, int count,
                                const mc_generate_options *options, mc_answer_fn fn, void *user);
/* Ends the answers to the prompt of this number before their next tokens; ended answers are not
 * affected. Any thread. */
MC_API void mc_generator_cancel(mc_generator *generator, int64_t id);
/* Applies additions and cancellations, runs prompts and a few steps of all running answers, and
 * calls their functions. Returns false when no answer is left, and after an error on the context,
 * which ends all answers. Call it from the context's thread. */
MC_API bool mc_generator_step(mc_generator *generator);
/* Waits until there is something to do (true) or mc_generator_close was called (false): the loop
 * of a server is while (mc_generator_wait(g)) mc_generator_step(g). */
MC_API bool mc_generator_wait(mc_generator *generator);
/* mc_generator_wait returns false once all answers have ended. Any thread. */
MC_API void mc_generator_close(mc_generator *generator);
/* Bytes of the cache's keys and values, which are allocated when a generator is created (by
 * mc_model_generator_new too). */
MC_API size_t mc_generator_cache_bytes(const mc_generator *generator);

#endif
