#include "tools/tasks/running_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_room(running_answer *a)
{
    if (a->count < a->room) return true;
    int room = 2 * a->room + 16;
    int32_t *ids = realloc(a->ids, (size_t)room * sizeof *ids);
    if (ids) a->ids = ids;
    float *log_probs = realloc(a->log_probs, (size_t)room * sizeof *log_probs);
    if (log_probs) a->log_probs = log_probs;
    if (ids && log_probs) a->room = room;
    return ids && log_probs;
}

/* Without memory the answer fails, as with what is wrong with its prompt. */
static void got_token(void *user, const mc_answer_event *e)
{
    running_answer *a = (running_answer *)user + e->answer;
    bool token = e->token >= 0, kept = !token || has_room(a);
    if (token && kept) {
        a->ids[a->count] = e->token;
        a->log_probs[a->count++] = e->log_probability;
    }
    a->score = e->score;
    if (!a->error && (!kept || e->state == MC_ANSWER_FAILED))
        a->error = strdup(kept ? e->error : "out of memory");
    a->done = e->state != MC_ANSWER_GOES_ON;
}

/* Tokens of the longest sequence that the prompts may become, at most the model's. */
static int64_t longest_of(const mc_model *model, const running_prompt *prompts, size_t count)
{
    mc_model_shape shape = mc_model_get_shape(model);
    int64_t longest = 1;
    for (size_t i = 0; i < count; i++) {
        const mc_generate_options *how = &prompts[i].how;
        int64_t n = prompts[i].count, most = how->max_new_tokens;
        int64_t all = most ? n + most : how->max_length > n ? how->max_length : n;
        if (all > longest) longest = all;
    }
    const mc_soft_prompt_options *soft = mc_model_soft_prompt(model);
    if (soft) longest += soft->tokens;
    return shape.positions && longest > shape.positions ? 0 : longest;
}

/* Of the cache, in whole pages: beams share the prompt. 0: unknown. */
static int64_t tokens_of_search(const running_prompt *prompts, int64_t longest)
{
    enum { PAGE = 16 };
    const mc_generate_options *how = &prompts->how; /* of all of them */
    int64_t own = how->max_new_tokens ? how->max_new_tokens : longest;
    int64_t all = (longest + PAGE - 1) / PAGE + (how->num_beams - 1) * ((own + PAGE - 1) / PAGE);
    return longest ? all * PAGE : 0;
}

/* Answers to a prompt. */
static size_t each_of(const running_prompt *p)
{
    return p->how.num_return_sequences > 1 ? (size_t)p->how.num_return_sequences : 1;
}

/* `each` answers to a prompt, in order, as they are whole. */
static bool run(mc_generator *g, running_answer *answers, size_t count, size_t each, running_fn fn,
                void *user)
{
    size_t given = 0, all = count * each;
    bool more = true, good = true;
    while (good && given < all && more) {
        more = mc_generator_step(g);
        for (; good && given < all && answers[given].done; given++)
            if (!answers[given].error || given % each == 0)
                good = fn(user, given / each, &answers[given]);
    }
    return good && given == all;
}

mc_generator_options running_batch_options(const mc_model *model, const running_prompt *prompts,
                                           size_t count, int at_once)
{
    enum { MOST = 4096 };
    size_t beams = prompts->how.num_beams > 1 ? (size_t)prompts->how.num_beams : 0;
    size_t each = beams ? beams : each_of(prompts), most = MOST / each ? MOST / each : 1;
    size_t together = (size_t)at_once < count ? (size_t)at_once : count;
    if (together > most) together = most;
    int64_t longest = longest_of(model, prompts, count);
    int64_t cache = beams ? tokens_of_search(prompts, longest) * (int64_t)together : 0;
    return (mc_generator_options){.sequences =
                                      together * each < MOST ? (int)(together * each) : MOST,
                                  .longest = longest,
                                  .cache_tokens = cache};
}

bool running_batch_answer(mc_model *model, const running_prompt *prompts, size_t count,
                          const mc_generator_options *options, running_fn fn, void *user)
{
    size_t each = each_of(prompts);
    running_answer *answers = calloc(count * each + 1, sizeof *answers);
    mc_generator *g = answers ? mc_model_generator_open(model, options) : NULL;
    bool good = g;
    for (size_t i = 0; good && i < count; i++)
        good = mc_generator_add(g, prompts[i].ids, prompts[i].count, &prompts[i].how, got_token,
                                &answers[i * each]) > 0;
    if (!answers || (g && !good)) fputs("error: the prompts: out of memory\n", stderr);
    good = good && run(g, answers, count, each, fn, user);
    mc_generator_free(g);
    for (size_t i = 0; answers && i < count * each; i++) {
        free(answers[i].ids);
        free(answers[i].log_probs);
        free(answers[i].error);
    }
    free(answers);
    return good;
}
