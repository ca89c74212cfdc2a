/* Answers to a fixed list of prompts: a running batch that all of them join at once, with a cache
 * of just their size. */
#include "models/generate/batch_internal.h"

/* ---- a call ---------------------------------------------------------------------------------- */

/* Fills defaults in; NULL options are those of the model's file. */
static bool read_options(mc_model *m, const mc_generate_options *options, mc_generate_call *call)
{
    mc_generate_options file;
    *call = (mc_generate_call){.model = m, .decoder = mc_model_decoder(m)};
    if (!options && mc_model_generate_options(m, &file)) return false;
    return mc_model_check_decodes(m) &&
           mc_generate_read_options(&call->decoder, options ? options : &file, &call->options);
}

static bool read_call(mc_model *m, const int32_t *const *prompts, const int *lengths, int count,
                      const mc_generate_options *options, mc_generate_call *call)
{
    if (!read_options(m, options, call)) return false;
    call->prompts = prompts;
    call->lengths = lengths;
    call->count = count;
    return mc_check_stop_texts(&call->decoder, &call->options) &&
           mc_check_prompts(&call->decoder, prompts, lengths, count) &&
           mc_check_lengths(&call->decoder, &call->options, lengths, count);
}

/* Answers to each prompt. */
static int each_of(const mc_generate_call *call) { return call->options.num_return_sequences; }

static bool too_many(const mc_generate_call *call, const char *what, int64_t count)
{
    return !mc_fail(call->decoder.ctx, MC_ERR_ARGUMENT,
                    "generation with %s: %d answers to each of %d prompts are too many: %lld %s",
                    call->decoder.model, each_of(call), call->count, (long long)count, what);
}

/* ---- the batch ------------------------------------------------------------------------------- */

/* A cache in which the answers lie one after the other. */
static bool plan_batch(const mc_generate_call *call, mc_batch_options *o)
{
    enum { PAGE_SHIFT = 4, MOST = INT32_MAX - (1 << PAGE_SHIFT) };
    mc_batch_shape *s = &o->shape;
    int beams = call->options.num_beams, draws = beams > 1 ? 1 : each_of(call);
    *o = (mc_batch_options){.shape = {.page_shift = PAGE_SHIFT, .in_line = true},
                            .prompt_tokens = INT64_MAX,
                            .prompt_piece = INT64_MAX,
                            .list = true,
                            .eos = call->options.eos,
                            .eos_count = call->options.eos_count};
    for (int i = 0; i < call->count; i++) {
        int most = mc_most_new(&call->decoder, &call->options, call->lengths[i]);
        mc_batch_shape_add(s, call->model, call->lengths[i], most, draws, beams);
        if (s->tokens > MOST || s->memory_tokens > MOST)
            return too_many(call, "tokens or more", s->tokens);
        if (beams > 1 && s->rows * s->longest > INT32_MAX)
            return too_many(call, "tokens of all beams or more", s->rows * s->longest);
    }
    return true;
}

static void got_token(void *user, const mc_answer_event *e)
{
    mc_answer *a = (mc_answer *)user + e->answer;
    if (e->token >= 0) {
        a->log_probs[a->length] = e->log_probability;
        a->ids[a->length++] = e->token;
    }
    a->score = (double)e->score;
    a->done = e->state != MC_ANSWER_GOES_ON;
}

/* The answers to a prompt. */
static bool add_answers(const mc_generate_call *call, struct mc_batch *b, int prompt, mc_answer *a)
{
    int most = mc_most_new(&call->decoder, &call->options, call->lengths[prompt]);
    for (int i = 0; i < each_of(call); i++)
        if (!mc_answer_reserve(&a[i], most)) return false;
    mc_job *j = mc_job_new(call->prompts[prompt], call->lengths[prompt]);
    if (!j) return false;
    j->options = call->options;
    j->options.eos = b->eos;
    j->options.first_prompt += (int64_t)prompt * each_of(call);
    j->answers = each_of(call);
    j->most = most;
    j->number = prompt;
    j->fn = got_token;
    j->user = a;
    mc_batch_add(b, j);
    return true;
}

static bool add_prompts(const mc_generate_call *call, mc_generator *g)
{
    mc_batch_options o;
    if (!plan_batch(call, &o) || !(g->batch = mc_batch_new(call->model, &o))) return false;
    for (int i = 0; i < call->count; i++)
        if (!add_answers(call, g->batch, i, &g->answers[i * each_of(call)]))
            return !mc_fail_nomem(g->ctx, "answers");
    return true;
}

static mc_generator *new_list(const mc_generate_call *call)
{
    if (call->count > INT32_MAX / each_of(call)) {
        too_many(call, "answers", (int64_t)call->count * each_of(call));
        return NULL;
    }
    mc_generator *g = mc_generator_new(call->decoder.ctx);
    if (!g) return NULL;
    int count = call->count * each_of(call);
    if ((g->answers = mc_answers_new(count)))
        g->count = count;
    else
        mc_fail_nomem(g->ctx, "answers");
    if (!mc_failed(g->ctx) && (!count || add_prompts(call, g))) return g;
    mc_generator_free(g);
    return NULL;
}

/* ---- token by token -------------------------------------------------------------------------- */

mc_generator *mc_model_generator_new(mc_model *m, const int32_t *const *prompts, const int *lengths,
                                     int count, const mc_generate_options *options)
{
    mc_generate_call call;
    if (!m || !read_call(m, prompts, lengths, count, options, &call)) return NULL;
    if (call.options.num_beams == 1) return new_list(&call);
    mc_fail(call.decoder.ctx, MC_ERR_ARGUMENT,
            "generation with %s: the tokens of a search with %d beams are only known at its end",
            call.decoder.model, call.options.num_beams);
    return NULL;
}

/* Whether the next step is there, of all that go on; *any: of one at least. */
static bool has_step(const mc_generator *g, bool *any)
{
    bool missing = false;
    *any = false;
    for (int i = 0; i < g->count; i++) {
        const mc_answer *a = &g->answers[i];
        if (a->length > g->given)
            *any = true;
        else if (!a->done)
            missing = true;
    }
    return !missing;
}

bool mc_generator_next(mc_generator *g, int32_t *tokens)
{
    bool any;
    if (!g || !g->answers || mc_failed(g->ctx) || !mc_given(g->ctx, tokens)) return false;
    while (!has_step(g, &any))
        if (!mc_batch_step(g->batch)) return false;
    for (int i = 0; any && i < g->count; i++) {
        const mc_answer *a = &g->answers[i];
        tokens[i] = g->given < a->length ? a->ids[g->given] : -1;
    }
    g->given += any;
    return any;
}

void mc_generator_log_probs(const mc_generator *g, float *log_probs)
{
    for (int i = 0; g && log_probs && g->given && i < g->count; i++) {
        const mc_answer *a = &g->answers[i];
        log_probs[i] = g->given <= a->length ? a->log_probs[g->given - 1] : 0;
    }
}

/* ---- all at once ----------------------------------------------------------------------------- */

static bool all_done(const mc_generator *g)
{
    bool done = true;
    for (int i = 0; done && i < g->count; i++) done = g->answers[i].done;
    return done;
}

static mc_generation *generate_list(const mc_generate_call *call)
{
    mc_generator *g = new_list(call);
    if (!g) return NULL;
    while (!all_done(g) && mc_batch_step(g->batch)) continue;
    mc_generation *out = mc_failed(g->ctx) ? NULL : mc_generation_of(g->ctx, g->answers, g->count);
    mc_generator_free(g);
    return out;
}

mc_generation *mc_model_generate(mc_model *m, const int32_t *const *prompts, const int *lengths,
                                 int count, const mc_generate_options *options)
{
    mc_generate_call call;
    if (!m || !read_call(m, prompts, lengths, count, options, &call)) return NULL;
    return generate_list(&call);
}

mc_status mc_model_generate_plan(mc_model *m, const int *lengths, int count,
                                 const mc_generate_options *options, mc_cache_plan *plan)
{
    mc_generate_call call;
    mc_batch_options o = {.list = true};
    if (plan) *plan = (mc_cache_plan){0};
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = mc_model_module(m)->ctx;
    if (mc_failed(ctx) || (count && !mc_given(ctx, lengths)) || !mc_given(ctx, plan))
        return mc_error_status(ctx);
    if (!read_options(m, options, &call)) return mc_error_status(call.decoder.ctx);
    call.lengths = lengths;
    call.count = count;
    if (!mc_check_lengths(&call.decoder, &call.options, lengths, count) || !plan_batch(&call, &o))
        return mc_error_status(call.decoder.ctx);
    *plan = mc_batch_model_plan(m, &o.shape);
    return MC_OK;
}
