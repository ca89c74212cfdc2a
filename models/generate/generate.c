/* Answers to a fixed list of prompts: a running batch that all of them join at once, with a cache
 * of just their size. */
#include "models/generate/run_internal.h"

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
    return mc_check_prompts(&call->decoder, prompts, lengths, count) &&
           mc_check_lengths(&call->decoder, &call->options, lengths, count);
}

/* Answers to each prompt that are drawn by themselves. */
static int draws_of(const mc_generate_call *call)
{
    return call->options.sample ? call->options.num_return_sequences : 1;
}

static bool too_many(const mc_generate_call *call, const char *what, int64_t count)
{
    return !mc_fail(call->decoder.ctx, MC_ERR_ARGUMENT,
                    "generation with %s: %d answers to each of %d prompts are too many: %lld %s",
                    call->decoder.model, draws_of(call), call->count, (long long)count, what);
}

/* ---- the batch ------------------------------------------------------------------------------- */

/* A cache in which the answers lie one behind the other. */
static bool plan_batch(const mc_generate_call *call, mc_batch_options *o)
{
    enum { PAGE_SHIFT = 4, MOST = INT32_MAX - (1 << PAGE_SHIFT) };
    mc_batch_shape *s = &o->shape;
    int draws = draws_of(call);
    *o = (mc_batch_options){.shape = {.page_shift = PAGE_SHIFT, .in_line = true},
                            .prompt_tokens = INT64_MAX,
                            .prompt_piece = INT64_MAX,
                            .list = true,
                            .eos = call->options.eos,
                            .eos_count = call->options.eos_count};
    for (int i = 0; i < call->count; i++) {
        int most = mc_most_new(&call->decoder, &call->options, call->lengths[i]);
        mc_batch_shape_add(s, call->model, call->lengths[i], most, draws, draws);
        if (s->tokens > MOST || s->memory_tokens > MOST)
            return too_many(call, "tokens or more", s->tokens);
    }
    return true;
}

static void got_token(void *user, const mc_answer_event *e)
{
    mc_answer *a = user;
    if (e->token >= 0) {
        a->log_probs[a->length] = e->log_probability;
        a->ids[a->length++] = e->token;
        a->score += (double)e->log_probability;
    }
    a->done = e->state != MC_ANSWER_GOES_ON;
}

static bool add_answer(const mc_generate_call *call, struct mc_batch *b, int number, mc_answer *a)
{
    int prompt = number / draws_of(call), length = call->lengths[prompt];
    mc_job *j = mc_job_new(call->prompts[prompt], length);
    if (!j) return false;
    int32_t *grown = NULL;
    int most = mc_most_new(&call->decoder, &call->options, length);
    if (mc_answer_reserve(a, most))
        grown = mc_realloc(j->ids, ((size_t)length + (size_t)most) * sizeof *grown);
    if (!grown) {
        mc_job_free(j);
        return false;
    }
    j->ids = grown;
    j->options = call->options;
    j->options.eos = b->eos;
    j->options.first_prompt += number;
    j->most = most;
    j->number = prompt;
    j->fn = got_token;
    j->user = a;
    mc_batch_add(b, j);
    return true;
}

static bool add_answers(const mc_generate_call *call, mc_generator *g)
{
    mc_batch_options o;
    if (!plan_batch(call, &o) || !(g->batch = mc_batch_new(call->model, &o))) return false;
    for (int i = 0; i < g->count; i++)
        if (!add_answer(call, g->batch, i, &g->answers[i]))
            return !mc_fail_nomem(g->ctx, "answers");
    return true;
}

static mc_generator *new_list(const mc_generate_call *call)
{
    if (call->count > INT32_MAX / draws_of(call)) {
        too_many(call, "answers", (int64_t)call->count * draws_of(call));
        return NULL;
    }
    mc_generator *g = mc_generator_new(call->decoder.ctx);
    if (!g) return NULL;
    int count = call->count * draws_of(call);
    if ((g->answers = mc_answers_new(count)))
        g->count = count;
    else
        mc_fail_nomem(g->ctx, "answers");
    if (!mc_failed(g->ctx) && (!count || add_answers(call, g))) return g;
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
    if (!g || !g->answers || mc_failed(g->ctx)) return false;
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
    for (int i = 0; g && g->given && i < g->count; i++) {
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

static mc_generation *search_beams(const mc_generate_call *call)
{
    int count = call->count * call->options.num_return_sequences;
    mc_answer *answers = mc_beam_search(call);
    mc_generation *out = answers ? mc_generation_of(call->decoder.ctx, answers, count) : NULL;
    mc_answers_free(answers, count);
    return out;
}

mc_generation *mc_model_generate(mc_model *m, const int32_t *const *prompts, const int *lengths,
                                 int count, const mc_generate_options *options)
{
    mc_generate_call call;
    if (!m || !read_call(m, prompts, lengths, count, options, &call)) return NULL;
    return call.options.num_beams > 1 ? search_beams(&call) : generate_list(&call);
}

mc_status mc_model_generate_plan(mc_model *m, const int *lengths, int count,
                                 const mc_generate_options *options, mc_cache_plan *plan)
{
    mc_generate_call call;
    mc_batch_options o = {.list = true};
    *plan = (mc_cache_plan){0};
    if (!m) return MC_ERR_ARGUMENT;
    if (!read_options(m, options, &call)) return mc_error_status(call.decoder.ctx);
    call.lengths = lengths;
    call.count = count;
    if (!mc_check_lengths(&call.decoder, &call.options, lengths, count) ||
        !(call.options.num_beams > 1 ? mc_beam_shape(&call, &o.shape) : plan_batch(&call, &o)))
        return mc_error_status(call.decoder.ctx);
    *plan = mc_batch_model_plan(m, &o.shape);
    return MC_OK;
}
