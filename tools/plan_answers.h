/* `modelcenter plan --generate`: the memory that answers take, without making them. */
#ifndef MC_TOOLS_PLAN_ANSWERS_H
#define MC_TOOLS_PLAN_ANSWERS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"

typedef struct plan_answers_options {
    bool generate, given; /* given: one of the others was */
    int weights, max_new_tokens, num_beams, num_return_sequences;
    int64_t prompt_length;
    double gpu_memory; /* GiB; 0: what is there */
} plan_answers_options;

typedef struct plan_answers {
    mc_cache_plan cache;
    /* weights as they are used; work: activations, logits, and what tokens are chosen with */
    uint64_t weights, work, scratch, peak;
} plan_answers;

#define PLAN_ANSWERS_DEFAULTS \
    (plan_answers_options) { .max_new_tokens = 50, .num_beams = 1, .prompt_length = 64 }

void plan_answers_add_rows(args_table *table, plan_answers_options *o);
/* Plans what `generate` takes for so many prompts at once, by a model of a planning context. False
 * after an error on it. */
bool plan_answers_make(const plan_answers_options *o, mc_model *model, int prompts,
                       plan_answers *plan);
/* `available`: bytes of the device of a plan, and what they are; 0: unknown. `scratch_known`: what
 * kernels take is part of it. */
void plan_answers_show(const plan_answers_options *o, const plan_answers *plan, uint64_t available,
                       const char *what, bool scratch_known);

#endif
