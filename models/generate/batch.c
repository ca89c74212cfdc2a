/* The life of a running batch: its memory, here and on the device, and the jobs that wait. */
#include <string.h>
#include "models/generate/batch_internal.h"

/* ---- jobs ------------------------------------------------------------------------------------ */

mc_job *mc_job_new(const int32_t *ids, int count)
{
    mc_job *j = mc_calloc(1, sizeof *j);
    if (!j) return NULL;
    j->group = -1;
    j->answers = 1;
    j->prompt = ids && count > 0 ? count : 0;
    j->ids = mc_malloc(((size_t)j->prompt + 1) * sizeof *j->ids);
    if (!j->ids) {
        mc_job_free(j);
        return NULL;
    }
    if (j->prompt) memcpy(j->ids, ids, (size_t)j->prompt * sizeof *ids);
    return j;
}

void mc_job_free(mc_job *j)
{
    mc_search_free(j->search);
    mc_free(j->row);
    mc_free(j->ids);
    mc_free(j);
}

int64_t mc_batch_add(struct mc_batch *b, mc_job *j)
{
    pthread_mutex_lock(&b->guard);
    int64_t id = j->id = ++b->ids;
    *b->last = j;
    b->last = &j->next;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->guard);
    return id;
}

bool mc_batch_has_work(const struct mc_batch *b)
{
    bool any = b->waiting;
    for (int i = 0; !any && i < b->rows; i++) any = b->job[i];
    return any;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void free_jobs(struct mc_batch *b)
{
    for (mc_job *j = b->waiting, *next; j; j = next) {
        next = j->next;
        mc_job_free(j);
    }
    for (int i = 0; b->job && b->beam && i < b->rows; i++)
        if (mc_batch_is_first(b, i)) mc_job_free(b->job[i]);
}

static void free_chooser(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    mc_chooser *c = &b->chooser;
    d->free(d, c->seen, c->seen_bytes);
    d->free(d, c->rules, c->rules_bytes);
    d->free(d, c->eos, c->eos_bytes);
    d->free(d, c->chosen, c->chosen_bytes);
    if (b->chosen) d->host_free(d, b->chosen, c->chosen_bytes);
    mc_tensor_free(c->rows);
}

void mc_batch_free(struct mc_batch *b)
{
    if (!b) return;
    mc_device *d = mc_batch_device(b);
    for (int i = 0; i < b->group_count; i++) d->wait(d, b->group[i].ticket); /* chosen is written */
    free_jobs(b);
    mc_batch_model_free(b->model);
    mc_batch_free_searches(b);
    free_chooser(b);
    void *const memory[] = {
        b->job,   b->beam,       b->column_of,     b->row_of,   b->state,
        b->eos,   b->seen,       b->joining,       b->searched, b->joining_columns,
        b->found, b->prompt_ids, b->prompt_lengths};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) mc_free(memory[i]);
    pthread_mutex_destroy(&b->guard);
    pthread_cond_destroy(&b->work);
    mc_free(b);
}

static bool make_rows(struct mc_batch *b)
{
    size_t n = (size_t)b->rows;
    b->job = mc_calloc(n, sizeof *b->job);
    b->beam = mc_calloc(n, sizeof *b->beam);
    b->column_of = mc_calloc(n, sizeof *b->column_of);
    b->row_of = mc_calloc(n, sizeof *b->row_of);
    b->state = mc_calloc(n * MC_ROW_FIELDS, sizeof *b->state);
    b->joining = mc_calloc(n, sizeof *b->joining);
    b->joining_columns = mc_calloc(n, sizeof *b->joining_columns);
    b->searched = mc_calloc(n, sizeof *b->searched);
    b->found = mc_calloc(n, sizeof *b->found);
    b->prompt_lengths = mc_calloc(n, sizeof *b->prompt_lengths);
    b->seen = mc_calloc((size_t)mc_seen_words(b->decoder.vocab), sizeof *b->seen);
    b->chooser.rows = mc_tensor_new_computed(b->ctx, MC_SHAPE(MC_ROW_FIELDS, b->rows));
    if (b->chooser.rows) mc_disown(&b->chooser.rows->owned); /* it goes with the batch */
    bool good = b->job && b->beam && b->column_of && b->row_of && b->state && b->joining &&
                b->joining_columns && b->searched && b->found && b->prompt_lengths && b->seen &&
                b->chooser.rows;
    for (int i = 0; good && i < b->rows; i++) b->column_of[i] = b->row_of[i] = i;
    if (good) mc_batch_move_columns(b);
    return good;
}

/* End tokens: those of a list here and there, or room for each row's own. */
static bool make_eos(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    mc_chooser *c = &b->chooser;
    size_t list = (size_t)b->options.eos_count * sizeof *b->eos;
    c->eos_bytes = b->options.list ? list : (size_t)b->rows * MC_MOST_EOS * sizeof *b->eos;
    c->call.eos_stride = b->options.list ? 0 : MC_MOST_EOS;
    if (!(c->eos = d->alloc(d, c->eos_bytes)) || !b->options.list) return c->eos;
    if (!(b->eos = mc_malloc(list + 1))) return false;
    if (list) memcpy(b->eos, b->options.eos, list);
    if (list) d->copy_in(d, c->eos, b->eos, list);
    return true;
}

static bool make_chooser(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    mc_chooser *c = &b->chooser;
    size_t n = (size_t)b->rows;
    c->seen_bytes = n * (size_t)mc_seen_words(b->decoder.vocab) * sizeof(uint32_t);
    c->rules_bytes = n * sizeof(mc_answer_rules);
    c->chosen_bytes = (MC_KEPT + MC_GROUPS) * n * sizeof(mc_chosen);
    bool good = make_eos(b) && (c->seen = d->alloc(d, c->seen_bytes)) &&
                (c->rules = d->alloc(d, c->rules_bytes)) &&
                (c->chosen = d->alloc(d, c->chosen_bytes)) &&
                (b->chosen = d->host_alloc(d, c->chosen_bytes));
    if (!good) return false;
    c->call.vocab = b->decoder.vocab;
    c->call.state = mc_tensor_data(c->rows);
    c->call.stride = c->call.answers = b->rows;
    c->call.seen = c->seen;
    c->call.rules = c->rules;
    c->call.eos = c->eos;
    c->call.chosen = c->chosen;
    c->call.kept = MC_KEPT;
    return true;
}

struct mc_batch *mc_batch_new(mc_model *m, const mc_batch_options *options)
{
    mc_context *ctx = mc_model_module(m)->ctx;
    struct mc_batch *b = mc_calloc(1, sizeof *b);
    if (!b) {
        mc_fail_nomem(ctx, "a running batch");
        return NULL;
    }
    *b = (struct mc_batch){.ctx = ctx,
                           .m = m,
                           .decoder = mc_model_decoder(m),
                           .options = *options,
                           .rows = options->shape.rows,
                           .piecing = -1};
    b->last = &b->waiting;
    pthread_mutex_init(&b->guard, NULL);
    pthread_cond_init(&b->work, NULL);
    if ((b->model = mc_batch_model_new(m, &options->shape)) && !(make_rows(b) && make_chooser(b)))
        mc_fail_nomem(ctx, "a running batch");
    if (!mc_failed(ctx)) return b;
    mc_batch_free(b);
    return NULL;
}
