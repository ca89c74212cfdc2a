/* Answers to many prompts by a batch that is kept full: when one ends, the next prompt joins. */
#ifndef MC_TOOLS_RUNNING_BATCH_H
#define MC_TOOLS_RUNNING_BATCH_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>

typedef struct running_prompt {
    const int32_t *ids;
    int count;
    mc_generate_options how;
} running_prompt;

typedef struct running_answer {
    int32_t *ids;
    float *log_probs;
    int count, room;
    float score;
    bool done;
    char *error; /* what was wrong with this prompt; NULL: it was answered */
} running_answer;

/* Called for each answer, in the order of the prompts and of the answers to each; of a prompt with
 * an error once. False stops. */
typedef bool (*running_fn)(void *user, size_t number, const running_answer *answer);

/* A generator for these prompts, which are all answered in the same way, at most so many at
 * once. */
mc_generator_options running_batch_options(const mc_model *model, const running_prompt *prompts,
                                           size_t count, int at_once);
/* Answers them with such a generator. False after an error, on stderr or on the context. */
bool running_batch_answer(mc_model *model, const running_prompt *prompts, size_t count,
                          const mc_generator_options *options, running_fn fn, void *user);

#endif
