/* Beam searches in a running batch. The device finds the most probable continuations of every beam;
 * the host reads these few alone and decides, a step at a time. Where a beam goes on with another's
 * tokens no key or value moves: sequences have a table of rows meanwhile, and a beam gets its
 * parent's part of it. A token is written to a row of its own sequence, where nothing else is
 * written at that position. */
#include <string.h>
#include "models/generate/batch_internal.h"

/* ---- memory ---------------------------------------------------------------------------------- */

static void free_best(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    mc_best_call *c = &b->chooser.best;
    d->free(d, c->best, b->best_bytes);
    if (b->best) d->host_free(d, b->best, b->best_bytes);
    c->best = b->best = NULL;
    c->count = 0;
}

static bool make_best(struct mc_batch *b, int32_t count)
{
    mc_device *d = mc_batch_device(b);
    mc_best_call *c = &b->chooser.best;
    free_best(b);
    b->best_bytes = (size_t)b->rows * (size_t)count * sizeof *b->best;
    c->best = d->alloc(d, b->best_bytes);
    b->best = d->host_alloc(d, b->best_bytes);
    if (!c->best || !b->best) return false;
    c->count = count;
    mc_batch_model_forget(b->model);
    return true;
}

static size_t mark_bytes(const struct mc_batch *b)
{
    return (size_t)(b->rows * mc_seen_words(b->decoder.vocab)) * sizeof *b->marks;
}

static size_t penalty_bytes(const struct mc_batch *b)
{
    return (size_t)b->rows * sizeof *b->penalty;
}

static bool make_marks(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    mc_chooser *c = &b->chooser;
    c->best.vocab = b->decoder.vocab;
    if (!b->penalty) b->penalty = mc_calloc((size_t)b->rows, sizeof *b->penalty);
    if (!b->marks) b->marks = mc_calloc(1, mark_bytes(b));
    if (!c->penalty) c->best.penalty = c->penalty = d->alloc(d, penalty_bytes(b));
    if (!c->marks) c->best.seen = c->marks = d->alloc(d, mark_bytes(b));
    return b->penalty && b->marks && c->penalty && c->marks;
}

void mc_batch_free_searches(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    free_best(b);
    d->free(d, b->chooser.penalty, penalty_bytes(b));
    d->free(d, b->chooser.marks, mark_bytes(b));
    mc_free(b->penalty);
    mc_free(b->marks);
}

/* ---- the first and the last ------------------------------------------------------------------ */

bool mc_batch_begin_search(struct mc_batch *b, const mc_job *j)
{
    int64_t looks = mc_search_looks(&j->options, b->decoder.vocab), vocab = b->decoder.vocab;
    int32_t count = (int32_t)(looks < vocab ? looks : vocab);
    if (b->searches && count <= b->chooser.best.count) return true;
    if (!mc_batch_take_in(b)) return false;
    bool good = make_marks(b) && (count <= b->chooser.best.count || make_best(b, count));
    if (!good) return !mc_fail_nomem(b->ctx, "beam search");
    return mc_kv_pages_by_rows(mc_batch_model_pages(b->model), true);
}

bool mc_batch_end_searches(struct mc_batch *b)
{
    mc_kv_pages *pages = mc_batch_model_pages(b->model);
    if (b->searches || !pages->by_rows) return true;
    if (!mc_batch_take_in(b) || !mc_kv_pages_by_rows(pages, false)) return false;
    mc_batch_move_columns(b);
    return true;
}

/* ---- a step ---------------------------------------------------------------------------------- */

bool mc_batch_is_searched(const struct mc_batch *b, int row)
{
    const mc_job *j = b->job[row];
    return j && j->search && j->run == j->prompt && b->beam[row] < j->search->running_count;
}

void mc_batch_search_fields(const struct mc_batch *b, int row, int32_t *fields)
{
    const mc_job *j = b->job[row];
    const mc_beam *beam = &j->search->running[b->beam[row]];
    mc_batch_model_fields(b->model, j->row[0], j->ids, j->prompt, beam->length, fields);
    fields[MC_ROW_FIRST] = mc_kv_pages_first(mc_batch_model_pages(b->model), row);
    fields[MC_ROW_TOKEN] = beam->ids[beam->length - 1];
}

/* The tokens of a beam and its prompt. */
static void mark_tokens(const struct mc_batch *b, int row, uint32_t *marks)
{
    const mc_job *j = b->job[row];
    const mc_beam *beam = &j->search->running[b->beam[row]];
    int count = j->prompt;
    const int32_t *ids = mc_decoder_begins(&b->decoder, j->ids, &count);
    memset(marks, 0, (size_t)mc_seen_words(b->decoder.vocab) * sizeof *marks);
    for (int i = 0; i < count; i++) mc_see(marks, ids[i]);
    for (int i = 0; i < beam->length; i++) mc_see(marks, beam->ids[i]);
}

void mc_batch_send_searches(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    int64_t words = mc_seen_words(b->decoder.vocab), marked = 0;
    for (int column = 0; column < b->rows; column++) {
        int row = b->row_of[column];
        bool searched = mc_batch_is_searched(b, row);
        float penalty = searched ? b->job[row]->options.repetition_penalty : 0;
        b->penalty[column] = penalty;
        if (!searched || penalty == 1) continue;
        mark_tokens(b, row, b->marks + column * words);
        marked = column + 1;
    }
    d->copy_in(d, b->chooser.penalty, b->penalty, penalty_bytes(b));
    d->copy_in(d, b->chooser.marks, b->marks, (size_t)(marked * words) * sizeof *b->marks);
    mc_kv_pages_send_moved(mc_batch_model_pages(b->model));
}

uint64_t mc_batch_copy_best(struct mc_batch *b, int columns)
{
    mc_device *d = mc_batch_device(b);
    size_t bytes = (size_t)columns * (size_t)b->chooser.best.count * sizeof *b->best;
    return d->copy_out_later(d, b->best, b->chooser.best.best, bytes);
}

bool mc_batch_advance(struct mc_batch *b, mc_job *j)
{
    mc_search *s = j->search;
    int32_t count = b->chooser.best.count, fields[MC_ROW_FIELDS];
    mc_search_begin(s);
    for (int i = 0; i < s->running_count; i++)
        if (!mc_search_offer(s, i, b->best + (int64_t)b->column_of[j->row[i]] * count, count))
            return false;
    mc_search_advance(s);
    mc_batch_model_fields(b->model, j->row[0], j->ids, j->prompt, s->running[0].length - 1, fields);
    mc_kv_pages_follow(mc_batch_model_pages(b->model), j->row, s->parents, s->running_count,
                       fields[MC_ROW_LENGTH]);
    return true;
}
