#include "tools/train/perplexity.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/files/read_file.h"
#include "tools/ranks.h"
#include "tools/tasks/task_run.h"

enum { DEFAULT_LENGTH = 1024, PIECE = 1 << 20, NOT_COUNTED = -100 };

typedef struct measure {
    mc_context *ctx;
    mc_model *model;
    const mc_tokenizer *tok;
    const perplexity_options *o;
    mc_token_file *tokens; /* as they lie in a file, or made of texts */
    int32_t *made;         /* (count) of texts */
    int64_t room;
    int64_t count, length, stride, windows;
    /* a batch */
    int32_t *ids, *next, *lengths;
    double loss; /* sums over all ranks */
    int64_t predicted;
} measure;

void perplexity_add_rows(args_table *table, perplexity_options *o)
{
    ARGS_ADD(table, {ARGS_HEADING("Perplexity of a decoder on text")},
             {ARGS_INT("seq-length", &o->seq_length, 0, 1 << 24, "window, in tokens"),
              .default_text = "the model's positions", .known_as = "sequence-length,block-size"},
             {ARGS_INT("stride", &o->stride, 0, 1 << 24, "distance between windows, in tokens"),
              .default_text = "half a window"});
}

static bool ends_in(const char *path, const char *ending)
{
    size_t length = strlen(path), n = strlen(ending);
    return length >= n && strcmp(path + length - n, ending) == 0;
}

bool perplexity_has_tokens(const args_list *files)
{
    static const char *const others[] = {".txt",   ".csv",    ".tsv",  ".tab",
                                         ".jsonl", ".ndjson", ".json", ".gz"};
    const char *data = files->items[0];
    if (ends_in(data, ".bin") || ends_in(data, ".idx")) return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (ends_in(data, others[i])) return false;
    return strpbrk(data, "*?[");
}

bool perplexity_has_text(const args_list *files) { return ends_in(files->items[0], ".txt"); }

static bool fail(measure *m, mc_status status, const char *what)
{
    mc_set_error(m->ctx, status, "%s: %s", m->o->files->items[0], what);
    return false;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool add_ids(measure *m, const int32_t *ids, size_t n)
{
    int64_t wanted = m->count + (int64_t)n;
    if (mc_tokenizer_check_ids(m->tok, ids, n, mc_model_get_shape(m->model).vocab_size))
        return false;
    if (wanted > m->room) {
        int32_t *grown = realloc(m->made, 2 * (size_t)wanted * sizeof *grown);
        if (!grown) return fail(m, MC_ERR_NOMEM, "out of memory for its tokens");
        m->made = grown;
        m->room = 2 * wanted;
    }
    if (n) memcpy(m->made + m->count, ids, n * sizeof *ids);
    m->count = wanted;
    return true;
}

/* Appends the ids of a text, a piece at a time. */
static bool add_text(measure *m, const char *text, size_t size, mc_encoding *e)
{
    for (size_t at = 0, next; at < size; at = next) {
        next = at + mc_tokenizer_cut(m->tok, text + at, size - at, PIECE);
        e->count = 0;
        mc_status status = mc_tokenizer_append(m->tok, text + at, next - at, e);
        if (status) return fail(m, status, mc_status_text(status));
        if (!add_ids(m, e->ids, e->count)) return false;
    }
    return true;
}

static bool read_text(measure *m, const char *path, mc_encoding *e)
{
    size_t size;
    char *text = read_file(path, SIZE_MAX, &size);
    if (!text)
        mc_set_error(m->ctx, errno == ENOMEM ? MC_ERR_NOMEM : MC_ERR_IO, "%s: %s", path,
                     strerror(errno));
    bool good = text && add_text(m, text, size, e);
    free(text);
    return good;
}

/* Each file, or all that match a pattern, one after the other. */
static bool read_texts(measure *m, mc_encoding *e)
{
    bool good = true;
    for (int i = 0; good && i < m->o->files->count; i++) {
        glob_t found = {0};
        const char *path = m->o->files->items[i];
        bool plain = access(path, F_OK) == 0 || glob(path, 0, NULL, &found) != 0;
        if (plain) good = read_text(m, path, e);
        for (size_t k = 0; good && k < found.gl_pathc; k++)
            good = read_text(m, found.gl_pathv[k], e);
        globfree(&found);
    }
    return good;
}

/* Texts of a table, an end of text before each as data for pretraining have it. */
static bool read_table(measure *m, mc_encoding *e)
{
    int32_t end = mc_tokenizer_end_of_text_id(m->tok);
    mc_table *table = mc_table_open_list(m->ctx, m->o->files->items, m->o->files->count, NULL);
    bool only = mc_table_columns(table) == 1 && !m->o->text;
    int column = !table ? -1 : only ? 0 : mc_table_column(table, m->o->text ? m->o->text : "text");
    bool good = column >= 0;
    while (good && mc_table_next(table)) {
        size_t size;
        const char *text = mc_table_text(table, column, &size);
        good = text && add_ids(m, &end, end >= 0) && add_text(m, text, size, e);
    }
    mc_table_free(table);
    return good && !mc_failed(m->ctx);
}

static bool open_tokens(measure *m)
{
    const args_list *files = m->o->files;
    if (perplexity_has_tokens(files)) {
        m->tokens = mc_token_file_open_list(m->ctx, files->items, files->count);
    } else {
        mc_encoding e = {0};
        bool good = perplexity_has_text(files) ? read_texts(m, &e) : read_table(m, &e);
        const int32_t *made = m->made;
        if (good) m->tokens = mc_token_file_from_arrays(m->ctx, &made, &m->count, 1);
        mc_encoding_release(&e);
    }
    m->count = mc_token_file_count(m->tokens);
    if (m->tokens && m->count < 2) return fail(m, MC_ERR_ARGUMENT, "expected two tokens at least");
    return m->tokens;
}

/* ---- windows --------------------------------------------------------------------------------- */

static bool choose_windows(measure *m)
{
    int64_t positions = mc_model_get_shape(m->model).positions, most = positions;
    m->length = m->o->seq_length ? m->o->seq_length : positions ? positions : DEFAULT_LENGTH;
    if (!positions) most = INT32_MAX;
    m->stride = m->o->stride ? m->o->stride : (m->length + 1) / 2;
    if (m->length < 2 || m->length > most || m->stride > m->length) {
        mc_set_error(m->ctx, MC_ERR_ARGUMENT,
                     "windows of %" PRId64 " tokens, %" PRId64
                     " from one to the next: expected 2 to the model's %" PRId64
                     " positions, and a stride of that many at most",
                     m->length, m->stride, most);
        return false;
    }
    int64_t more = m->count - m->length;
    m->windows = more > 0 ? 1 + (more + m->stride - 1) / m->stride : 1;
    size_t tokens = (size_t)(m->o->batch_size * m->length);
    m->ids = malloc(tokens * sizeof *m->ids);
    m->next = malloc(tokens * sizeof *m->next);
    m->lengths = malloc((size_t)m->o->batch_size * sizeof *m->lengths);
    return (m->ids && m->next && m->lengths) || fail(m, MC_ERR_NOMEM, "out of memory for windows");
}

/* Puts a window after the batch's `used` tokens, and which of its tokens are predicted: those that
 * no window before it holds, and of the first all but the first. A window past the last predicts
 * nothing, so that ranks do the same number of passes. Returns its tokens, or -1. */
static int64_t add_window(measure *m, int64_t window, int64_t used, int64_t *predicted)
{
    bool counts = window < m->windows;
    int64_t begin = counts ? window * m->stride : 0;
    int64_t end = begin + m->length < m->count ? begin + m->length : m->count;
    int64_t before = window ? (window - 1) * m->stride + m->length : 1; /* predicted already */
    int32_t *ids = m->ids + used, *next = m->next + used;
    int64_t vocabulary = mc_model_get_shape(m->model).vocab_size;
    if (mc_token_file_read_within(m->tokens, begin, end - begin, vocabulary, ids)) return -1;
    for (int64_t i = begin; i < end; i++) {
        bool here = counts && i + 1 < end && i + 1 >= before;
        next[i - begin] = here ? ids[i + 1 - begin] : NOT_COUNTED;
        *predicted += here;
    }
    return end - begin;
}

/* The loss of the batch's predicted tokens, and their hidden states. The error names the window. */
static bool check_loss(measure *m, mc_tape *t, int64_t first, mc_tensor *hidden, double loss)
{
    if (mc_failed(m->ctx) || isfinite(loss)) return !mc_failed(m->ctx);
    int bad = task_find_not_finite(t, m->model, hidden, m->next);
    int64_t window = first + (bad < 0 ? 0 : bad) * mc_data_size(m->ctx) + mc_data_rank(m->ctx);
    mc_set_error(m->ctx, MC_ERR_STATE,
                 "%s: the losses of %s from token %" PRId64 " on are not finite%s",
                 m->o->files->items[0], bad < 0 ? "a batch of windows" : "the window",
                 window * m->stride, mc_model_finite_hint(m->model));
    return false;
}

static bool run_batch(measure *m, int64_t first)
{
    int64_t used = 0, predicted = 0, ranks = mc_data_size(m->ctx);
    int count = (int)m->o->batch_size;
    for (int i = 0; i < count; i++) {
        int64_t window = first + i * ranks + mc_data_rank(m->ctx);
        int64_t n = add_window(m, window, used, &predicted);
        if (n < 0) return false;
        m->lengths[i] = (int32_t)n;
        used += n;
    }
    mc_tape *t = mc_tape_begin_eval(m->ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(used), m->ids, false);
    mc_tensor *next = mc_tape_input(t, MC_I32, MC_SHAPE(used), m->next, false);
    mc_model_input in = {.ids = ids, .lengths = mc_tape_lengths(t, m->lengths, count, 1)};
    mc_model_output out = mc_model_forward(t, m->model, &in);
    mc_tensor *loss = mc_model_loss(t, m->model, out.last_hidden, next);
    double mean = mc_mean_loss(m->ctx, loss);
    m->loss += mean * (double)predicted;
    m->predicted += predicted;
    bool good = check_loss(m, t, first, out.last_hidden, predicted ? mean : 0);
    mc_tape_end(t);
    return good;
}

/* Sums of all ranks. */
static bool gather(measure *m)
{
    double sums[2] = {m->loss, (double)m->predicted};
    mc_sum_numbers(m->ctx, sums, 2);
    m->loss = sums[0];
    m->predicted = (int64_t)sums[1];
    return !mc_failed(m->ctx);
}

static bool run(measure *m, run_log *log)
{
    int64_t step = m->o->batch_size * mc_data_size(m->ctx), n = 0;
    for (int64_t w = 0; w < m->windows; w += step) {
        if (ranks_stop(m->ctx, n++, m->o->gpu) || !run_batch(m, w)) return false;
        int64_t done = w + step < m->windows ? w + step : m->windows;
        run_log_progress(log, "eval", "window", done, m->windows);
    }
    return gather(m);
}

bool perplexity_evaluate(mc_context *ctx, mc_model *model, const mc_tokenizer *tok,
                         const perplexity_options *o, run_log *log)
{
    measure m = {.ctx = ctx, .model = model, .tok = tok, .o = o};
    double start = progress_bar_now();
    bool good = !mc_failed(ctx) && open_tokens(&m) && choose_windows(&m) && run(&m, log);
    free(m.made);
    free(m.ids);
    free(m.next);
    free(m.lengths);
    if (!good) return false;
    double loss = m.loss / (double)m.predicted;
    run_log_validation(log, &(run_validation){.loss = loss,
                                              .tokens = m.predicted,
                                              .seconds = progress_bar_now() - start});
    return run_log_result_line(log, "result model=%s perplexity=%.6g loss=%.6f tokens=%" PRId64,
                               mc_model_family(model), exp(loss), loss, m.predicted) == MC_OK;
}
