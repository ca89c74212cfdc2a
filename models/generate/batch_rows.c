/* Who is where in a running batch: rows of the cache, and columns of what a step runs. */
#include <string.h>
#include "models/generate/run_internal.h"

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

void mc_batch_take_row(struct mc_batch *b, int row)
{
    mc_device *d = mc_batch_device(b);
    mc_chooser *c = &b->chooser;
    pthread_mutex_lock(&b->guard);
    mc_job *j = b->waiting;
    b->waiting = j->next;
    if (!b->waiting) b->last = &b->waiting;
    j->next = NULL;
    b->job[row] = j;
    pthread_mutex_unlock(&b->guard);
    const mc_generate_options *o = &j->options;
    mc_answer_rules rules = {.how = mc_sampling_of(o),
                             .place = o->first_prompt,
                             .eos_count = o->eos_count,
                             .most = j->most};
    mc_batch_model_join(b->model, row, j->prompt, j->most);
    d->copy_in(d, (mc_answer_rules *)c->rules + row, &rules, sizeof rules);
    if (c->call.eos_stride)
        d->copy_in(d, (int32_t *)c->eos + row * MC_MOST_EOS, j->eos, sizeof j->eos);
    if (o->repetition_penalty != 1) send_seen(b, j, row);
}

mc_job *mc_batch_leave_row(struct mc_batch *b, int row)
{
    pthread_mutex_lock(&b->guard);
    mc_job *j = b->job[row];
    b->job[row] = NULL;
    pthread_mutex_unlock(&b->guard);
    mc_batch_model_leave(b->model, row);
    if (b->piecing == row) b->piecing = -1;
    return j;
}

/* ---- columns --------------------------------------------------------------------------------- */

/* Whether steps run the row: its prompt is whole, its answer goes on. */
static bool goes_on(const struct mc_batch *b, int row)
{
    return b->job[row] && b->job[row]->run == b->job[row]->prompt;
}

/* What a row's column has to hold before its next step; a free one has ended and sees nothing. */
static void fields_of(const struct mc_batch *b, int row, int32_t *fields)
{
    const mc_job *j = b->job[row];
    memset(fields, 0, MC_ROW_FIELDS * sizeof *fields);
    if (goes_on(b, row)) {
        mc_batch_model_fields(b->model, row, j->prompt, j->count, fields);
        /* choosing what follows the prompt sets the token and counts the tick up */
        fields[MC_ROW_TOKEN] = j->count ? j->ids[j->prompt + j->count - 1] : 0;
        fields[MC_ROW_TICK] = (int32_t)(b->tick - !j->count);
    }
    fields[MC_ROW_ENDED] = !goes_on(b, row);
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
    if (mc_batch_device(b)->is_host) return columns;
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
