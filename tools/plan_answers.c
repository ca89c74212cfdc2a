#include "tools/plan_answers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "tools/tasks/running_batch.h"
#include "tools/options/weights_option.h"

static const double GIB = 1 << 30;

void plan_answers_add_rows(args_table *table, plan_answers_options *o)
{
    ARGS_ADD(table, {ARGS_HEADING("Answers")},
             {ARGS_FLAG("generate", &o->generate,
                        "plan what `generate` takes for --batch-size prompts at once")},
             {ARGS_INT("prompt-length", &o->prompt_length, 1, 1 << 20, "tokens of each prompt"),
              .given = &o->given},
             {ARGS_INT("max-new-tokens", &o->max_new_tokens, 1, 1 << 20, "tokens of an answer"),
              .given = &o->given},
             {ARGS_INT("num-beams", &o->num_beams, 1, 1024, "number of beams; 1: no beam search"),
              .given = &o->given, .known_as = "beams"},
             {ARGS_INT("num-return-sequences", &o->num_return_sequences, 1, 65536,
                       "answers to each prompt: draws, or the best of a beam search"),
              .given = &o->given, .default_text = "1", .known_as = "n"},
             WEIGHTS_ROW_GIVEN(&o->weights, &o->given),
             {ARGS_REAL("gpu-memory", &o->gpu_memory, 0, 1e6, "GiB that are available for answers"),
              .given = &o->given, .above_low = true,
              .default_text = "what is free here, of an H200 139.8"});
}

/* ---- planning -------------------------------------------------------------------------------- */

typedef struct work {
    mc_model *model;
    running_prompt *prompts;
    int count;
    mc_generator_options options;
} work;

static bool is_answered(void *user, size_t number, const running_answer *answer)
{
    mc_context *ctx = user;
    (void)number;
    if (answer->error) mc_set_error(ctx, MC_ERR_ARGUMENT, "%s", answer->error);
    return !answer->error;
}

/* As `generate` does it: one prompt by itself, several in a batch that runs. */
static void answer(mc_context *ctx, void *user)
{
    work *w = user;
    const running_prompt *p = w->prompts;
    if (w->count > 1)
        running_batch_answer(w->model, p, (size_t)w->count, &w->options, is_answered, ctx);
    else
        mc_generation_free(mc_model_generate(w->model, &p->ids, &p->count, 1, &p->how));
}

static mc_generate_options how_to_answer(const plan_answers_options *o)
{
    bool several = o->num_return_sequences > 1;
    return (mc_generate_options){.max_new_tokens = o->max_new_tokens,
                                 .num_beams = o->num_beams,
                                 .num_return_sequences = o->num_return_sequences,
                                 .sample = several && o->num_beams == 1,
                                 .ignore_eos = true};
}

static mc_status plan_cache(const work *w, mc_cache_plan *cache)
{
    const running_prompt *p = w->prompts;
    return w->count > 1 ? mc_model_generator_plan(w->model, &w->options, cache)
                        : mc_model_generate_plan(w->model, &p->count, 1, &p->how, cache);
}

bool plan_answers_make(const plan_answers_options *o, mc_model *model, int prompts,
                       plan_answers *plan)
{
    mc_context *dry = mc_model_module(model)->ctx;
    mc_memory_plan memory;
    int32_t *ids = calloc((size_t)o->prompt_length, sizeof *ids);
    work w = {
        .model = model, .prompts = calloc((size_t)prompts, sizeof *w.prompts), .count = prompts};
    bool good = ids && w.prompts;
    for (int i = 0; good && i < prompts; i++)
        w.prompts[i] = (running_prompt){ids, (int)o->prompt_length, how_to_answer(o)};
    if (!good) mc_set_error(dry, MC_ERR_NOMEM, "out of memory for %d prompts", prompts);
    if (good) weights_apply(model, o->weights);
    if (good) w.options = running_batch_options(model, w.prompts, (size_t)prompts, prompts);
    good = good && plan_cache(&w, &plan->cache) == MC_OK &&
           mc_plan_run(dry, mc_model_module(model), answer, &w, &memory) == MC_OK;
    free(w.prompts);
    free(ids);
    if (!good) return false;
    plan->weights = memory.parameters + memory.inputs;
    plan->scratch = memory.workspace;
    plan->peak = memory.peak;
    plan->work = memory.peak - plan->weights - plan->scratch - plan->cache.bytes;
    return true;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void show_bytes(const char *name, uint64_t bytes)
{
    printf("%-22s %14" PRIu64 " bytes %10.3f GiB\n", name, bytes, (double)bytes / GIB);
}

void plan_answers_show(const plan_answers_options *o, const plan_answers *plan, uint64_t available,
                       const char *what, bool scratch_known)
{
    const mc_cache_plan *cache = &plan->cache;
    printf("memory of a rank, with weights in %s\n",
           o->weights ? weights_names[o->weights] : "the model's dtype");
    show_bytes("  weights", plan->weights);
    show_bytes("  keys and values", cache->bytes);
    printf("    of %d sequence%s, %" PRId64 " tokens\n", cache->sequences,
           cache->sequences > 1 ? "s" : "", cache->tokens);
    show_bytes("  activations, choosing", plan->work);
    if (scratch_known)
        show_bytes("  workspace", plan->scratch);
    else
        printf("%-22s not known: kernels report it only on a GPU\n", "  workspace");
    show_bytes("  peak", plan->peak);
    bool fits = plan->peak <= available;
    if (available)
        printf("%s into the %.3f GiB %s\n", fits ? "fits" : "does not fit", (double)available / GIB,
               what);
}
