/* A look before training: the labels and what is odd about them, how long the texts are, the first
 * row as the model reads it, memory, steps and time. A run's head has the first lines of it,
 * --dry-run has all. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/train/finetune.h"
#include "tools/train/memory_room.h"
#include "tools/files/text.h"

enum {
    LINE = 4096,
    LABELS_SHOWN = 12,
    TOKENS_SHOWN = 64,
    HEAD_ROWS = 1000, /* that a run's head looks at the lengths of */
};

/* ---- labels ---------------------------------------------------------------------------------- */

/* The rows of each class, or that have each of several labels. */
static void count_labels(const mc_dataset *rows, int64_t *counts, int labels)
{
    for (int64_t row = 0; row < mc_dataset_rows(rows); row++) {
        const float *values = mc_dataset_values(rows, row);
        int32_t label = mc_dataset_label(rows, row);
        for (int k = 0; values && k < labels; k++) counts[k] += values[k] > 0;
        if (!values && label >= 0 && label < labels) counts[label]++;
    }
}

/* "yes", of "Yes", "yes " and "yes.": letters as small ones, without what stands around them. */
static void plain(const char *name, char *to, size_t room)
{
    size_t used = 0;
    for (; *name && !isalnum((unsigned char)*name) && !(*name & 0x80); name++) continue;
    for (; *name && used + 1 < room; name++) to[used++] = (char)tolower((unsigned char)*name);
    while (used && !isalnum((unsigned char)to[used - 1]) && !(to[used - 1] & 0x80)) used--;
    to[used] = '\0';
}

static void warn_near_names(finetune *f, int labels)
{
    char a[256], b[256];
    for (int i = 0; i < labels; i++)
        for (int k = 0; k < i; k++) {
            plain(mc_dataset_label_name(f->train_rows, i), a, sizeof a);
            plain(mc_dataset_label_name(f->train_rows, k), b, sizeof b);
            if (!*a || strcmp(a, b) != 0) continue;
            run_log_line(
                &f->run.log, "warning: labels \"%s\" and \"%s\" are nearly equal: one label?",
                mc_dataset_label_name(f->train_rows, k), mc_dataset_label_name(f->train_rows, i));
        }
}

static bool are_numbers(const mc_dataset *rows, int labels)
{
    double value;
    int numbers = 0;
    for (int k = 0; k < labels; k++)
        numbers += text_parse_real(mc_dataset_label_name(rows, k), &value);
    return numbers == labels;
}

/* Of the user's files; a benchmark's are what they are. */
static void warn_labels(finetune *f, int labels)
{
    enum { FEW = 2 }; /* rows a label */
    int64_t rows = mc_dataset_rows(f->train_rows);
    if (mc_dataset_task(f->train_rows)) return;
    warn_near_names(f, labels);
    if (labels > 2 && rows < (int64_t)FEW * labels)
        run_log_line(&f->run.log,
                     "warning: %d labels of %" PRId64 " rows: is --label the right column?", labels,
                     rows);
    if (labels > 2 && mc_dataset_kind(f->train_rows) == MC_TASK_CLASSIFY &&
        are_numbers(f->train_rows, labels))
        run_log_line(&f->run.log,
                     "warning: all %d labels are numbers: --regression predicts them as numbers",
                     labels);
}

static void show_labels(finetune *f, bool all)
{
    char line[LINE];
    text t = text_into(line, sizeof line);
    int labels = mc_dataset_labels(f->train_rows);
    mc_task_kind kind = mc_dataset_kind(f->train_rows);
    if (!labels || kind == MC_TASK_GENERATE || kind == MC_TASK_REGRESS) return;
    int64_t *counts = calloc((size_t)labels, sizeof *counts);
    if (!counts) return;
    count_labels(f->train_rows, counts, labels);
    text_add(&t, "labels:");
    for (int k = 0; k < labels && (all || k < LABELS_SHOWN); k++)
        text_add(&t, "%s %s %" PRId64, k ? "," : "", mc_dataset_label_name(f->train_rows, k),
                 counts[k]);
    if (!all && labels > LABELS_SHOWN) text_add(&t, ", ... %d in all", labels);
    free(counts);
    run_log_line(&f->run.log, "%s", line);
    warn_labels(f, labels);
}

static void show_values(finetune *f)
{
    double low = INFINITY, high = -INFINITY, sum = 0;
    int64_t rows = mc_dataset_rows(f->train_rows), n = 0;
    if (mc_dataset_kind(f->train_rows) != MC_TASK_REGRESS) return;
    for (int64_t row = 0; row < rows; row++) {
        const float *value = mc_dataset_values(f->train_rows, row);
        if (!value || isnan(*value)) continue;
        low = fmin(low, (double)*value);
        high = fmax(high, (double)*value);
        sum += (double)*value;
        n++;
    }
    if (n) run_log_line(&f->run.log, "values: %g to %g, mean %g", low, high, sum / (double)n);
}

/* ---- lengths --------------------------------------------------------------------------------- */

typedef struct lengths {
    int64_t *tokens;          /* (count), sorted */
    int64_t count, cut, rows; /* cut: longer than `most` */
    int64_t most;
    double mean; /* as they are read */
} lengths;

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t length_of(const finetune *f, const char *string, const char *pair)
{
    mc_encoding e = {0};
    if (!string) return -1;
    mc_status status = mc_tokenizer_encode(f->run.tokenizer, string, strlen(string), pair,
                                           pair ? strlen(pair) : 0, 0, &e);
    int64_t count = status == MC_OK ? (int64_t)e.count : -1;
    mc_encoding_release(&e);
    return count;
}

static void add_length(lengths *l, int64_t tokens)
{
    if (tokens < 0) return;
    l->tokens[l->count++] = tokens;
    l->cut += tokens > l->most;
    l->mean += (double)(tokens < l->most ? tokens : l->most);
}

/* Of every `stride`-th row's text, or of its target. */
static bool measure(finetune *f, bool targets, int64_t stride, lengths *l)
{
    const mc_dataset *d = f->train_rows;
    int choices = targets ? 1 : mc_dataset_choices(d);
    int64_t rows = mc_dataset_rows(d);
    *l = (lengths){.most = targets ? mc_dataset_max_target_length(d) : mc_dataset_max_length(d)};
    l->tokens = calloc((size_t)(rows / stride + 1) * (size_t)choices, sizeof *l->tokens);
    for (int64_t row = 0; l->tokens && row < rows; row += stride, l->rows++)
        for (int choice = 0; choice < choices; choice++)
            add_length(l, targets ? length_of(f, mc_dataset_target(d, row), NULL)
                                  : length_of(f, mc_dataset_text(d, row, choice),
                                              mc_dataset_pair(d, row, choice)));
    if (l->count) {
        qsort(l->tokens, (size_t)l->count, sizeof *l->tokens, compare);
        l->mean /= (double)l->count;
    }
    return l->count;
}

static void show_lengths(finetune *f, const char *what, const lengths *l)
{
    char of[64] = "";
    if (l->rows < mc_dataset_rows(f->train_rows))
        snprintf(of, sizeof of, " (of %" PRId64 " rows)", l->rows);
    run_log_line(&f->run.log,
                 "%s: %" PRId64 " to %" PRId64 " tokens, median %" PRId64 ", 95 %% up to %" PRId64
                 "; %" PRId64 " of %" PRId64 " are cut at %" PRId64 "%s",
                 what, l->tokens[0], l->tokens[l->count - 1], l->tokens[l->count / 2],
                 l->tokens[(l->count - 1) * 95 / 100], l->cut, l->count, l->most, of);
}

/* The longest that is read. */
static int64_t longest(const lengths *l)
{
    int64_t most = l->count ? l->tokens[l->count - 1] : 1;
    return most < l->most ? most : l->most;
}

/* ---- the first row --------------------------------------------------------------------------- */

static void show_row(finetune *f)
{
    char line[LINE];
    text t = text_into(line, sizeof line);
    mc_dataloader *loader = mc_dataloader_new(
        f->train_rows,
        &(mc_dataloader_options){.batch_size = 1, .batching = MC_BATCHING_IN_ORDER, .world = 1});
    mc_batch *batch = mc_dataloader_next(loader);
    int64_t room = batch ? mc_tensor_count(batch->ids) : 0;
    int64_t count = batch ? batch->lengths->total : 0;
    float *ids = room ? calloc((size_t)room, sizeof *ids) : NULL;
    if (ids) mc_tensor_read_f32(f->run.ctx, batch->ids, ids, room);
    if (ids && !mc_failed(f->run.ctx)) {
        text_add(&t, "first row: %" PRId64 " tokens:", count);
        for (int64_t i = 0; i < count && i < TOKENS_SHOWN; i++) {
            const char *token = mc_tokenizer_id_to_token(f->run.tokenizer, (int32_t)ids[i]);
            text_add(&t, " %s", token ? token : "?");
        }
        if (count > TOKENS_SHOWN) text_add(&t, " ...");
        run_log_line(&f->run.log, "%s", line);
    }
    free(ids);
    mc_dataloader_free(loader);
}

/* ---- memory and time ------------------------------------------------------------------------- */

/* Of a step with a batch whose texts are all as long as the longest. `seconds` may be NULL. */
static bool plan(finetune *f, int64_t length, int64_t target_length, mc_memory_plan *memory,
                 double *seconds)
{
    mc_task_kind kind = mc_dataset_kind(f->train_rows);
    int64_t rows = f->run.o.batch_size, most = mc_dataset_rows(f->train_rows);
    if (rows > most) rows = most;
    train_work w = train_run_plan(&f->run, f->run.work.passes);
    dry_batch batch;
    bool timed = seconds && mc_plan_time(w.ctx, NULL) == MC_OK;
    train_work_read_dry(&w, &batch, rows * mc_dataset_choices(f->train_rows), length, target_length,
                        kind == MC_TASK_REGRESS || kind == MC_TASK_MULTI_LABEL);
    bool good = w.model &&
                mc_plan_run(w.ctx, mc_model_module(w.model), train_work_step, &w, memory) == MC_OK;
    if (seconds) *seconds = good && timed ? mc_plan_seconds(w.ctx).total : NAN;
    if (w.ctx && mc_failed(w.ctx))
        mc_set_error(f->run.ctx, mc_error_status(w.ctx), "%s", mc_error_message(w.ctx));
    mc_context_free(w.ctx);
    return good;
}

static void add_time(text *t, double seconds)
{
    if (seconds < 120)
        text_add(t, "%.1f s", seconds);
    else if (seconds < 7200)
        text_add(t, "%.1f min", seconds / 60);
    else
        text_add(t, "%.1f h", seconds / 3600);
}

/* The planned step has texts as long as the longest; others take less. A run's head shows only
 * that it does not fit. */
static void show_plan(finetune *f, const lengths *l, const lengths *targets, bool all)
{
    mc_memory_plan memory = {0};
    if (mc_device_prepare(f->run.ctx)) return; /* what it takes is not free */
    mc_memory_use use = mc_memory(f->run.ctx);
    char line[256];
    text t = text_into(line, sizeof line);
    double step = NAN;
    int64_t target_length = targets->count ? longest(targets) : 1;
    if (!plan(f, longest(l), target_length, &memory, all ? &step : NULL)) return;
    memory_warn(f->run.ctx, &f->run.log, f->run.o.batch_size, &memory,
                "a smaller --batch-size with --gradient-accumulation-steps takes less");
    if (!all) return;
    text_add(&t, "memory of a step, planned: %.1f MiB at most", (double)memory.peak / (1 << 20));
    if (use.available)
        text_add(&t, ", %.1f MiB are free", (double)(use.available + use.touched) / (1 << 20));
    run_log_line(&f->run.log, "%s", line);
    t = text_into(line, sizeof line);
    text_add(&t, "steps: %" PRId64 " of %" PRId64 " rows", f->run.steps, f->o.rows_per_step);
    double whole = step * (double)f->run.steps * l->mean / (double)longest(l);
    if (isfinite(whole)) {
        text_add(&t, "; about ");
        add_time(&t, whole);
        text_add(&t, ", predicted, without evaluations");
    }
    run_log_line(&f->run.log, "%s", line);
    run_log_result_line(&f->run.log,
                        "result dry_run=true rows=%" PRId64 " steps=%" PRId64 " cut=%" PRId64
                        " peak_bytes=%" PRIu64 " seconds=%.4g",
                        mc_dataset_rows(f->train_rows), f->run.steps, l->cut, memory.peak, whole);
}

/* Images are all of one size, and what the first is made of cannot be shown. */
static void look_at_images(finetune *f, bool all)
{
    int64_t tokens = mc_model_get_shape(f->run.work.model).positions, one = 1;
    lengths l = {.tokens = &tokens, .count = 1, .most = tokens, .mean = (double)tokens};
    const lengths none = {.tokens = &one, .count = 0, .most = 1};
    mc_image_form form = mc_model_image_form(f->run.work.model);
    run_log_line(&f->run.log, "images: %d x %d pixels, %" PRId64 " tokens", form.size, form.size,
                 tokens);
    if (!mc_failed(f->run.ctx)) show_plan(f, &l, &none, all);
}

/* ---- the look -------------------------------------------------------------------------------- */

void finetune_look(finetune *f)
{
    bool all = f->run.o.train.dry_run;
    int64_t rows = mc_dataset_rows(f->train_rows);
    int64_t stride = all || rows <= HEAD_ROWS ? 1 : rows / HEAD_ROWS;
    lengths l = {0}, targets = {0};
    if (mc_failed(f->run.ctx) || (!all && ranks_silent(f->run.ctx))) return;
    show_labels(f, all);
    show_values(f);
    if (!f->run.tokenizer) {
        look_at_images(f, all);
        return;
    }
    if (measure(f, false, stride, &l)) show_lengths(f, "texts", &l);
    if (mc_dataset_kind(f->train_rows) == MC_TASK_GENERATE && measure(f, true, stride, &targets) &&
        all)
        show_lengths(f, "targets", &targets);
    if (all) show_row(f);
    if (l.count && !mc_failed(f->run.ctx)) show_plan(f, &l, &targets, all);
    free(l.tokens);
    free(targets.tokens);
}
