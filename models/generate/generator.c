/* Answers that join and leave, as any thread sees them: see generator.h. */
#include "models/generate/generator.h"

#include <string.h>
#include "models/generate/batch_internal.h"

/* ---- options --------------------------------------------------------------------------------- */

enum {
    SEQUENCES = 8,
    MOST_SEQUENCES = 4096,
    LONGEST = 1024,
    PAGE = 16,
    PROMPT_TOKENS = 4096,
    PIECE = 1024,
    HOST_PIECE = 128
};

static bool bad_option(const mc_decoder *d, const char *name, int64_t value, const char *expected)
{
    return !mc_fail(d->ctx, MC_ERR_ARGUMENT, "a generator of %s: %s %lld, expected %s", d->model,
                    name, (long long)value, expected);
}

static void fill_defaults(const mc_decoder *d, mc_generator_options *o)
{
    if (!o->sequences) o->sequences = SEQUENCES;
    if (!o->longest) o->longest = d->positions < INT32_MAX ? d->positions + d->before : LONGEST;
    if (!o->page) o->page = PAGE;
    if (!o->prompt_tokens) o->prompt_tokens = PROMPT_TOKENS;
    if (!o->prompt_piece) o->prompt_piece = mc_device_is_host(d->ctx->device) ? HOST_PIECE : PIECE;
}

static bool read_options(const mc_decoder *d, const mc_generator_options *given,
                         mc_generator_options *o)
{
    *o = given ? *given : (mc_generator_options){0};
    fill_defaults(d, o);
    if (o->sequences < 1 || o->sequences > MOST_SEQUENCES)
        return bad_option(d, "sequences", o->sequences, "1 to 4096");
    if (o->longest < 1 || o->longest > INT32_MAX / 2)
        return bad_option(d, "longest", o->longest, "1 to 2^30");
    if (o->page < 1 || o->page > 1 << 20 || (o->page & (o->page - 1)))
        return bad_option(d, "page", o->page, "a power of two up to 2^20");
    if (!o->cache_tokens) /* each has whole pages */
        o->cache_tokens = (o->longest + o->page - 1) / o->page * o->page * o->sequences;
    if (o->cache_tokens < 1 || o->cache_tokens > INT32_MAX - o->page)
        return bad_option(d, "cache_tokens", o->cache_tokens, "1 to 2^31 - 1 - page");
    if (o->prompt_tokens < 1) return bad_option(d, "prompt_tokens", o->prompt_tokens, "1 or more");
    if (o->prompt_piece < 1) return bad_option(d, "prompt_piece", o->prompt_piece, "1 or more");
    return true;
}

static mc_batch_options batch_options(const mc_generator_options *o)
{
    mc_batch_options out = {.shape = {.rows = o->sequences,
                                      .longest = o->longest,
                                      .tokens = o->cache_tokens,
                                      .memory_longest = o->longest,
                                      .memory_tokens = o->cache_tokens},
                            .prompt_tokens = o->prompt_tokens,
                            .prompt_piece = o->prompt_piece};
    while (1 << out.shape.page_shift < o->page) out.shape.page_shift++;
    return out;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_generator(void *object)
{
    mc_generator *g = object;
    mc_batch_free(g->batch);
    mc_answers_free(g->answers, g->count);
    mc_free(g);
}

mc_generator *mc_generator_new(mc_context *ctx)
{
    mc_generator *g = mc_new_owned(ctx, sizeof *g, "a generator", free_generator);
    if (g) g->ctx = ctx;
    return g;
}

void mc_generator_free(mc_generator *g)
{
    if (!g) return;
    mc_disown(&g->owned);
    free_generator(g);
}

mc_generator *mc_model_generator_open(mc_model *m, const mc_generator_options *options)
{
    mc_generator_options o;
    if (!m || !mc_model_check_decodes(m)) return NULL;
    mc_decoder d = mc_model_decoder(m);
    mc_generator *g = read_options(&d, options, &o) ? mc_generator_new(d.ctx) : NULL;
    if (!g) return NULL;
    mc_batch_options given = batch_options(&o);
    if ((g->batch = mc_batch_new(m, &given))) return g;
    mc_generator_free(g);
    return NULL;
}

mc_status mc_model_generator_plan(mc_model *m, const mc_generator_options *options,
                                  mc_cache_plan *plan)
{
    mc_generator_options o;
    if (plan) *plan = (mc_cache_plan){0};
    if (!m || !mc_given(mc_model_module(m)->ctx, plan)) return MC_ERR_ARGUMENT;
    mc_decoder d = mc_model_decoder(m);
    if (!mc_model_check_decodes(m) || !read_options(&d, options, &o)) return mc_error_status(d.ctx);
    mc_batch_options given = batch_options(&o);
    *plan = mc_batch_model_plan(m, &given.shape);
    return MC_OK;
}

/* NULL for a list, too. */
static struct mc_batch *batch_of(const mc_generator *g)
{
    return g && !g->answers ? g->batch : NULL;
}

size_t mc_generator_cache_bytes(const mc_generator *g)
{
    const struct mc_batch *b = g ? g->batch : NULL;
    return b ? mc_batch_model_plan(b->m, &b->options.shape).bytes : 0;
}

/* ---- from any thread ------------------------------------------------------------------------- */

int64_t mc_generator_add(mc_generator *g, const int32_t *ids, int count,
                         const mc_generate_options *options, mc_answer_fn fn, void *user)
{
    struct mc_batch *b = batch_of(g);
    mc_job *j = b && fn ? mc_job_new(ids, count) : NULL;
    if (!j) return 0;
    j->fn = fn;
    j->user = user;
    if (options) {
        j->own_options = true;
        j->options = *options;
        bool listed = options->eos && options->eos_count > 0 && options->eos_count <= MC_MOST_EOS;
        if (listed) memcpy(j->eos, options->eos, (size_t)options->eos_count * sizeof *j->eos);
    }
    return mc_batch_add(b, j);
}

void mc_generator_cancel(mc_generator *g, int64_t id)
{
    struct mc_batch *b = batch_of(g);
    if (!b) return;
    pthread_mutex_lock(&b->guard);
    for (mc_job *j = b->waiting; j; j = j->next)
        if (j->id == id) j->cancelled = true;
    for (int i = 0; i < b->rows; i++)
        if (b->job[i] && b->job[i]->id == id) b->job[i]->cancelled = true;
    pthread_mutex_unlock(&b->guard);
}

bool mc_generator_wait(mc_generator *g)
{
    struct mc_batch *b = batch_of(g);
    if (!b || mc_failed(g->ctx)) return false;
    pthread_mutex_lock(&b->guard);
    while (!mc_batch_has_work(b) && !b->closed) pthread_cond_wait(&b->work, &b->guard);
    bool any = mc_batch_has_work(b);
    pthread_mutex_unlock(&b->guard);
    return any;
}

void mc_generator_close(mc_generator *g)
{
    struct mc_batch *b = batch_of(g);
    if (!b) return;
    pthread_mutex_lock(&b->guard);
    b->closed = true;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->guard);
}

/* ---- from the thread that runs the steps ----------------------------------------------------- */

bool mc_generator_step(mc_generator *g)
{
    struct mc_batch *b = batch_of(g);
    if (!b || mc_failed(g->ctx) || !mc_batch_step(b)) return false;
    pthread_mutex_lock(&b->guard);
    bool more = mc_batch_has_work(b);
    pthread_mutex_unlock(&b->guard);
    return more;
}
