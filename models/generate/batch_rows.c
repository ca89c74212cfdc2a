/* Who is where in a running batch: rows of the cache, and columns of what a step runs. */
#include <string.h>
#include "models/generate/batch_internal.h"

/* ---- rows ------------------------------------------------------------------------------------ */

/* The tokens that the rules of an answer find in its prompt. */
static void send_seen(struct mc_batch *b, const mc_job *j, int row)
{
    mc_device *d = mc_batch_device(b);
    size_t words = (size_t)mc_seen_words(b->decoder.vocab);
    int n = j->prompt;
    const int32_t *ids = mc_decoder_begins(&b->decoder, j->ids, &n);
    memset(b->seen, 0, words * sizeof *b->seen);
    for (int i = 0; i < n; i++) mc_see(b->seen, ids[i]);
    d->copy_in(d, (uint32_t *)b->chooser.seen + (size_t)row * words, b->seen,
               words * sizeof *b->seen);
}

/* A job of its own for the next answer of one that waits, which stands for several. */
static mc_job *next_answer(mc_job *j)
{
    mc_job *next = mc_job_new(j->ids, j->prompt);
    if (!next) return NULL;
    int32_t *ids = next->ids;
    *next = *j;
    next->ids = ids;
    next->next = NULL;
    next->answers = 1;
    if (j->options.eos == j->eos) next->options.eos = next->eos;
    j->answer++;
    j->answers--;
    return next;
}

/* Who gets the rows. NULL when memory is out. */
static mc_job *seat(struct mc_batch *b, const int *rows)
{
    pthread_mutex_lock(&b->guard);
    mc_job *j = b->waiting;
    if (j->answers > 1 && mc_job_beams(j) == 1) {
        j = next_answer(j);
    } else {
        b->waiting = j->next;
        if (!b->waiting) b->last = &b->waiting;
        j->next = NULL;
    }
    for (int i = 0; j && i < mc_job_beams(j); i++) {
        b->job[rows[i]] = j;
        b->beam[rows[i]] = i;
    }
    pthread_mutex_unlock(&b->guard);
    return j;
}

static bool join_search(struct mc_batch *b, mc_job *j, const int *rows)
{
    size_t beams = (size_t)mc_job_beams(j);
    j->search = mc_search_new(&j->options, b->decoder.vocab, j->number, j->most);
    j->row = mc_malloc(beams * sizeof *j->row);
    if (!j->search || !j->row) return false;
    memcpy(j->row, rows, beams * sizeof *j->row);
    for (size_t i = 1; i < beams; i++)
        mc_batch_model_join_beam(b->model, rows[i], j->prompt, j->most);
    b->searches++;
    return true;
}

static void send_rules(struct mc_batch *b, const mc_job *j, int row)
{
    mc_device *d = mc_batch_device(b);
    mc_chooser *c = &b->chooser;
    const mc_generate_options *o = &j->options;
    mc_answer_rules rules = {.how = mc_sampling_of(o),
                             .place = o->first_prompt + j->answer,
                             .eos_count = o->eos_count,
                             .most = j->most};
    d->copy_in(d, (mc_answer_rules *)c->rules + row, &rules, sizeof rules);
    if (c->call.eos_stride)
        d->copy_in(d, (int32_t *)c->eos + row * MC_MOST_EOS, j->eos, sizeof j->eos);
    if (o->repetition_penalty != 1) send_seen(b, j, row);
}

static bool join_answer(struct mc_batch *b, mc_job *j, int row)
{
    int32_t *grown = mc_realloc(j->ids, ((size_t)j->prompt + (size_t)j->most) * sizeof *grown);
    if (!grown) return false;
    j->ids = grown;
    send_rules(b, j, row);
    return true;
}

bool mc_batch_take_rows(struct mc_batch *b, const int *rows)
{
    mc_job *j = seat(b, rows);
    bool good = j && (mc_job_beams(j) > 1 ? join_search(b, j, rows) : join_answer(b, j, rows[0]));
    if (!good) return !mc_fail_nomem(b->ctx, "an answer");
    mc_batch_model_join(b->model, rows[0], j->prompt, j->most);
    return true;
}

mc_job *mc_batch_leave_row(struct mc_batch *b, int row)
{
    mc_job *j = b->job[row];
    const int *rows = j->search ? j->row : &row;
    pthread_mutex_lock(&b->guard);
    for (int i = 0; i < mc_job_beams(j); i++) b->job[rows[i]] = NULL;
    pthread_mutex_unlock(&b->guard);
    for (int i = 0; i < mc_job_beams(j); i++) mc_batch_model_leave(b->model, rows[i]);
    b->searches -= j->search != NULL;
    if (b->piecing == row) b->piecing = -1;
    return j;
}

/* ---- columns --------------------------------------------------------------------------------- */

/* Whether steps run the row: its prompt is whole, its answer goes on. */
static bool goes_on(const struct mc_batch *b, int row)
{
    const mc_job *j = b->job[row];
    if (j && j->search) return mc_batch_is_searched(b, row) && j->search->running[0].length;
    return j && j->run == j->prompt;
}

/* What a row's column has to hold before its next step; a free one has ended and sees nothing. */
static void fields_of(const struct mc_batch *b, int row, int32_t *fields)
{
    const mc_job *j = b->job[row];
    bool searched = j && j->search;
    memset(fields, 0, MC_ROW_FIELDS * sizeof *fields);
    if (searched && goes_on(b, row)) {
        mc_batch_search_fields(b, row, fields);
    } else if (goes_on(b, row)) {
        mc_batch_model_fields(b->model, row, j->ids, j->prompt, j->count, fields);
        /* choosing what follows the prompt sets the token and counts the tick up */
        fields[MC_ROW_TOKEN] = j->count ? j->ids[j->prompt + j->count - 1] : 0;
        fields[MC_ROW_TICK] = (int32_t)(b->tick - !j->count);
    }
    fields[MC_ROW_ENDED] = searched || !goes_on(b, row);
    fields[MC_ROW_ANSWER] = row;
}

void mc_batch_fill_column(struct mc_batch *b, int row)
{
    mc_device *d = mc_batch_device(b);
    int32_t fields[MC_ROW_FIELDS], *column = b->chooser.call.state + b->column_of[row];
    fields_of(b, row, fields);
    for (int f = 0; f < MC_ROW_FIELDS; f++)
        d->copy_in(d, column + f * b->rows, &fields[f], sizeof *fields);
}

void mc_batch_stop_column(struct mc_batch *b, int row)
{
    static const int fields[] = {MC_ROW_ENDED, MC_ROW_LENGTH, MC_ROW_MEMORY_LENGTH};
    mc_device *d = mc_batch_device(b);
    int32_t *column = b->chooser.call.state + b->column_of[row];
    for (int i = 0; i < 3; i++) {
        int32_t value = fields[i] == MC_ROW_ENDED;
        d->copy_in(d, column + fields[i] * b->rows, &value, sizeof value);
    }
}

int mc_batch_columns(const struct mc_batch *b)
{
    int columns = 0, size = 1;
    for (int i = 0; i < b->rows; i++)
        if (goes_on(b, i) && b->column_of[i] >= columns) columns = b->column_of[i] + 1;
    if (mc_device_is_host(mc_batch_device(b))) return columns;
    while (size < columns) size *= 2;
    return size < b->rows ? size : b->rows;
}

void mc_batch_move_columns(struct mc_batch *b)
{
    int column = 0;
    for (int free = 0; free < 2; free++)
        for (int row = 0; row < b->rows; row++) {
            if (goes_on(b, row) == free) continue;
            b->row_of[column] = row;
            b->column_of[row] = column++;
        }
    for (int i = 0; i < b->rows; i++) {
        int32_t fields[MC_ROW_FIELDS];
        fields_of(b, b->row_of[i], fields);
        for (int f = 0; f < MC_ROW_FIELDS; f++) b->state[f * b->rows + i] = fields[f];
    }
    mc_tensor_write(b->chooser.rows, b->state, (size_t)b->rows * MC_ROW_FIELDS * sizeof *b->state);
}
