/* Answers that join and leave a running batch: any thread adds prompts and cancels answers while
 * one thread runs the steps, with one copy of the weights for all.
 *
 *     mc_generator *g = mc_model_generator_open(model, &(mc_generator_options){.sequences = 32});
 *     int64_t id = mc_generator_add(g, ids, count, &options, got_token, user);     any thread
 *     mc_generator_cancel(g, id);                                                  any thread
 *     while (mc_generator_step(g)) continue;                                       one thread
 *     mc_generator_free(g);
 *
 * Keys and values lie in pages, so that sequences of any lengths share the cache. A sequence joins
 * once there are a row and all pages that its prompt and its longest answer need; until then it
 * waits, in the order of adding. So an answer under way is never ended by a full cache. Prompts
 * are run several at once without padding, between steps of the others. A long one is run in
 * pieces, so that the others' tokens don't wait for it; of CPM-1 and of encoder-decoders, where
 * tokens of a prompt see those after them, as a whole.
 *
 * An answer's tokens do not depend on its neighbours, or on when they come and go; sampled ones
 * depend on the seed, mc_generate_options.first_prompt and the step alone. In f32 they
 * are those of mc_model_generate.
 *
 * Several answers that are drawn to one prompt take a row each and come side by side, distinguished
 * by mc_answer_event.answer. A beam search takes one row per beam, once enough rows are free, and
 * pages for one prompt and the new tokens of each beam. Its tokens are known at its end: then come
 * the num_return_sequences best answers, the best first, each whole. While a search is under way,
 * steps of all are launched one by one, so that on a GPU others get their tokens more slowly beside
 * it.
 *
 * Not part of the promised interface: it may change in any release (docs/api.md). */
#ifndef MC_MODELS_GENERATOR_H
#define MC_MODELS_GENERATOR_H

#include <stddef.h>
#include "models/generate/generate.h"

/* Zero fields mean the defaults. */
typedef struct mc_generator_options {
    int sequences; /* answered at once, a beam counts as one; 0: 8 */
    /* Tokens of prompt and answer together at most, of an encoder-decoder of each of the two;
     * 0: the model's positions, 1024 without. Soft prompts count. */
    int64_t longest;
    int64_t cache_tokens;  /* of all sequences together; 0: that of `sequences` of the longest */
    int page;              /* tokens of a page, a power of two; 0: 16 */
    int64_t prompt_tokens; /* of prompts that are run at once; 0: 4096 */
    /* The same while answers are under way, which wait for them; 0: 1024, on a CPU 128. At most
     * prompt_tokens count. */
    int64_t prompt_piece;
} mc_generator_options;

/* Room for a batch: the cache, and all that a step needs on the device. `options` may be NULL.
 * Owned by the model's context. NULL after an error: a model that does not decode, an option out
 * of range, memory. */
MC_API mc_generator *mc_model_generator_open(mc_model *model, const mc_generator_options *options);
/* The cache that mc_model_generator_open would take. With its errors. */
MC_API mc_status mc_model_generator_plan(mc_model *model, const mc_generator_options *options,
                                         mc_cache_plan *plan);
/* Adds a prompt of `count` ids, which are copied, as is `options` (NULL: those of
 * mc_model_generate_options) but for what its pointer stop_user points to. Its number, from 1; 0
 * when memory is out. What is wrong with a prompt or its options (an id out of range, too long for
 * the model or the cache, more beams than `sequences`, over 16 end tokens) is the end of its
 * answers alone: MC_ANSWER_FAILED. Any thread. */
MC_API int64_t mc_generator_add(mc_generator *generator, const int32_t *ids, int count,
                                const mc_generate_options *options, mc_answer_fn fn, void *user);
/* Ends the answers of this number before their next tokens; nothing for those that have ended. Any
 * thread. */
MC_API void mc_generator_cancel(mc_generator *generator, int64_t id);
/* Takes in what was added and cancelled, runs prompts and some steps of all running answers, and
 * calls their functions. False when no answer is left, and after an error on the context, which
 * ends all. One thread at a time, that of the context. */
MC_API bool mc_generator_step(mc_generator *generator);
/* Waits until there is something to do (true) or mc_generator_close was called (false): the loop
 * of a server is while (mc_generator_wait(g)) mc_generator_step(g). */
MC_API bool mc_generator_wait(mc_generator *generator);
/* mc_generator_wait returns false once all answers have ended. Any thread. */
MC_API void mc_generator_close(mc_generator *generator);
/* Bytes of the cache's keys and values, all of which are taken when the generator is made; of that
 * of mc_model_generator_new too. */
MC_API size_t mc_generator_cache_bytes(const mc_generator *generator);

#endif
