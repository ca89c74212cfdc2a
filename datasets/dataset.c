#include "datasets/dataset_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "datasets/order_internal.h"
#include "datasets/rows.h"

/* ---- keeping and freeing --------------------------------------------------------------------- */

void mc_dataset_ref(mc_dataset *dataset) { dataset->references++; }

static void release_store(mc_row_store *s)
{
    if (!s || --s->references) return;
    mc_paths_release(&s->files);
    mc_text_release(&s->text);
    mc_free(s->bound);
    mc_free(s->value);
    mc_text_release(&s->right);
    mc_free(s->right_at);
    mc_free(s);
}

static void free_weights(mc_row_weights *w)
{
    if (!w) return;
    pthread_mutex_destroy(&w->lock);
    mc_free(w->weight);
    mc_free(w->written);
    mc_free(w);
}

bool mc_dataset_need_weights(mc_dataset *d, bool writes)
{
    if (d->weights) return true;
    mc_row_weights *w = mc_calloc(1, sizeof *w);
    if (!w) return false;
    if (pthread_mutex_init(&w->lock, NULL)) {
        mc_free(w);
        return false;
    }
    w->weight = mc_calloc(d->rows, sizeof *w->weight);
    if (writes) w->written = mc_calloc(d->rows, sizeof *w->written);
    if (w->weight && (w->written || !writes)) {
        d->weights = w;
        return true;
    }
    free_weights(w);
    return false;
}

void mc_dataset_unref(mc_dataset *d)
{
    if (!d || --d->references) return;
    free_weights(d->weights);
    release_store(d->store);
    for (int k = 0; d->labels && k < d->labels->count; k++) mc_free(d->labels->name[k]);
    mc_free(d->labels);
    mc_free(d->answer);
    mc_free(d->row);
    mc_free(d->path);
    mc_free(d);
}

void mc_dataset_free(mc_dataset *dataset)
{
    if (!dataset) return;
    mc_disown(&dataset->owned);
    mc_dataset_unref(dataset);
}

/* ---- splitting ------------------------------------------------------------------------------- */

typedef struct draw {
    uint64_t number;
    size_t row;
} draw;

static int compare_draws(const void *a, const void *b)
{
    const draw *x = a, *y = b;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* Whether a row is of the same conversation as the one before. */
static bool goes_on(const mc_dataset *d, size_t i)
{
    return d->conversations && i > 0 && d->row[i].record == d->row[i - 1].record;
}

/* The rows that are taken: those with the smallest numbers, of conversations the first's. */
static bool draw_rows(mc_dataset *d, size_t units, size_t count, uint64_t seed, bool *taken)
{
    draw *draws = mc_malloc(units * sizeof *draws);
    if (!draws) return false;
    uint64_t key = mc_order_key(seed, 0, 2);
    for (size_t i = 0, n = 0; i < d->rows; i++)
        if (!goes_on(d, i)) {
            draws[n++] = (draw){mc_order_mix(key + (i + 1) * UINT64_C(0x9E3779B97F4A7C15)), i};
        }
    qsort(draws, units, sizeof *draws, compare_draws);
    for (size_t i = 0; i < count; i++) taken[draws[i].row] = true;
    for (size_t i = 0; i < d->rows; i++)
        if (goes_on(d, i)) taken[i] = taken[i - 1];
    mc_free(draws);
    return true;
}

static void move_rows(mc_dataset *from, mc_dataset *to, const bool *taken)
{
    size_t left = 0;
    for (size_t i = 0; i < from->rows; i++) {
        if (taken[i])
            to->row[to->rows++] = from->row[i];
        else
            from->row[left++] = from->row[i];
    }
    from->rows = left;
}

/* A dataset without rows that shares texts, of the same kind and labels. */
static mc_dataset *new_like(mc_dataset *d, size_t rows)
{
    mc_dataset_plan plan = {.name = d->path,
                            .task = d->task,
                            .kind = d->kind,
                            .choices = d->choices,
                            .images = d->images,
                            .paired = d->paired};
    mc_dataset *out = mc_dataset_new(d->ctx, &plan, d->tok, &d->options);
    for (int k = 0; out && d->labels && k < d->labels->count; k++)
        if (!mc_dataset_add_label(out, d->labels->name[k])) break;
    if (out && d->answer && (out->answer = mc_calloc((size_t)d->labels->count, sizeof(int32_t))))
        memcpy(out->answer, d->answer, (size_t)d->labels->count * sizeof *d->answer);
    if (out) out->row = mc_malloc(rows * sizeof *out->row);
    if (out && (!out->row || !out->answer != !d->answer)) mc_fail_nomem(d->ctx, "a dataset");
    if (!mc_failed(d->ctx)) {
        release_store(out->store);
        out->store = d->store;
        out->store->references++;
        out->row_capacity = rows;
        out->values = d->values;
        out->conversations = d->conversations;
        out->beside = d->beside;
        out->chat_format = d->chat_format;
        out->answers = d->answers;
        return out;
    }
    mc_dataset_free(out);
    return NULL;
}

mc_dataset *mc_dataset_split(mc_dataset *d, double fraction, uint64_t seed)
{
    if (!d || mc_failed(d->ctx)) return NULL;
    size_t units = 0;
    for (size_t i = 0; i < d->rows; i++) units += !goes_on(d, i);
    const char *why = !(fraction > 0 && fraction < 1) ? "a fraction between 0 and 1"
                      : units < 2 && d->conversations ? "at least two conversations"
                      : units < 2                     ? "at least two rows"
                      : d->references > 1             ? "a dataset that no loader has"
                      : d->balance                    ? "rows that are not repeated"
                                                      : NULL;
    if (why) {
        mc_fail(d->ctx, MC_ERR_ARGUMENT, "%s: cannot split %g of its rows off: expected %s",
                d->path, fraction, why);
        return NULL;
    }
    size_t count = (size_t)llround(fraction * (double)units);
    count = count < 1 ? 1 : count > units - 1 ? units - 1 : count;
    bool *taken = mc_calloc(d->rows, sizeof *taken);
    bool drawn = taken && draw_rows(d, units, count, seed, taken);
    size_t rows = 0;
    for (size_t i = 0; drawn && i < d->rows; i++) rows += taken[i];
    mc_dataset *out = drawn ? new_like(d, rows) : NULL;
    if (!drawn) mc_fail_nomem(d->ctx, "the split of a dataset");
    if (out) move_rows(d, out, taken);
    mc_free(taken);
    return out;
}

/* ---- what it holds --------------------------------------------------------------------------- */

static const mc_row *find_row(const mc_dataset *d, int64_t row)
{
    return d && row >= 0 && (uint64_t)row < d->rows ? &d->row[row] : NULL;
}

int mc_dataset_pieces(const mc_dataset *d)
{
    return d->choices * (d->paired ? 2 : 1) + (d->targeted ? 1 : 0);
}

const char *mc_dataset_piece(const mc_dataset *d, int64_t row, int which, size_t *length)
{
    const size_t *bound =
        d->store->bound + (size_t)d->row[row].source * (size_t)mc_dataset_pieces(d) + which;
    *length = bound[1] - bound[0] - 1;
    return d->store->text.data + bound[0];
}

int64_t mc_dataset_rows(const mc_dataset *d) { return d ? (int64_t)d->rows : 0; }
mc_task_kind mc_dataset_kind(const mc_dataset *d) { return d ? d->kind : (mc_task_kind)0; }
int mc_dataset_labels(const mc_dataset *d) { return d && d->labels ? d->labels->count : 0; }
int mc_dataset_choices(const mc_dataset *d) { return d ? d->choices : 0; }
int mc_dataset_max_length(const mc_dataset *d) { return d ? d->options.max_length : 0; }
mc_prompt mc_dataset_prompt(const mc_dataset *d) { return d ? d->options.prompt : (mc_prompt){0}; }
const int32_t *mc_dataset_answers(const mc_dataset *d) { return d ? d->answer : NULL; }
const char *mc_dataset_task(const mc_dataset *d) { return d ? d->task : NULL; }
const char *mc_dataset_path(const mc_dataset *d) { return d ? d->path : NULL; }

const char *mc_dataset_file(const mc_dataset *d, int64_t row)
{
    const mc_row *r = find_row(d, row);
    if (!r) return NULL;
    return d->store->files.count ? d->store->files.path[r->file] : d->path;
}

int mc_dataset_max_target_length(const mc_dataset *d)
{
    return d && d->targeted ? d->options.max_target_length : 0;
}

int mc_dataset_outputs(const mc_dataset *d)
{
    if (!d || d->kind == MC_TASK_ANSWER) return 0;
    if (d->kind == MC_TASK_CHOOSE || d->kind == MC_TASK_REGRESS) return 1;
    return mc_dataset_labels(d);
}

const char *mc_dataset_label_name(const mc_dataset *d, int k)
{
    return k >= 0 && k < mc_dataset_labels(d) ? d->labels->name[k] : NULL;
}

int64_t mc_dataset_line(const mc_dataset *d, int64_t row)
{
    const mc_row *r = find_row(d, row);
    return r ? r->line : 0;
}

int32_t mc_dataset_label(const mc_dataset *d, int64_t row)
{
    const mc_row *r = find_row(d, row);
    return r ? r->label : MC_NO_LABEL;
}

int64_t mc_dataset_group(const mc_dataset *d, int64_t row)
{
    const mc_row *r = find_row(d, row);
    return r ? r->group : 0;
}

mc_scoring mc_dataset_scoring(const mc_dataset *d) { return d ? d->scoring : MC_SCORING_NONE; }

const char *mc_dataset_reference(const mc_dataset *d, int64_t row, int i)
{
    const mc_row *r = find_row(d, row);
    if (!r || i < 0) return NULL;
    const mc_row_store *s = d->store;
    size_t group = (size_t)r->group;
    if (!s->rights) return i == 0 && !d->task ? mc_dataset_target(d, row) : NULL;
    if (group >= s->rights) return NULL;
    size_t at = s->right_at[group];
    size_t end = group + 1 < s->rights ? s->right_at[group + 1] : s->right.size;
    for (; at < end && i > 0; i--) at += strlen(s->right.data + at) + 1;
    return at < end ? s->right.data + at : NULL;
}

const float *mc_dataset_values(const mc_dataset *d, int64_t row)
{
    const mc_row *r = find_row(d, row);
    return r && d->values ? d->store->value + (size_t)r->source * (size_t)d->values : NULL;
}

const char *mc_dataset_text(const mc_dataset *d, int64_t row, int choice)
{
    size_t length;
    if (!find_row(d, row) || choice < 0 || choice >= d->choices) return NULL;
    return mc_dataset_piece(d, row, d->paired ? choice * 2 : choice, &length);
}

const char *mc_dataset_pair(const mc_dataset *d, int64_t row, int choice)
{
    size_t length;
    if (!find_row(d, row) || choice < 0 || choice >= d->choices || !d->paired) return NULL;
    return mc_dataset_piece(d, row, choice * 2 + 1, &length);
}

const char *mc_dataset_target(const mc_dataset *d, int64_t row)
{
    size_t length;
    if (!find_row(d, row) || !d->targeted) return NULL;
    return mc_dataset_piece(d, row, mc_dataset_pieces(d) - 1, &length);
}

mc_chat_format mc_dataset_chat_format(const mc_dataset *d) { return d ? d->chat_format : 0; }
