#include "models/texts/text_rows_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "core/autograd/step.h"
#include "core/base/memory_internal.h"
#include "core/device/device_internal.h"
#include "core/tensor/tensor_internal.h"
#include "models/adapters/adapter.h"
#include "models/details.h"
#include "tokenizers/ahead_internal.h"
#include "tokenizers/details.h"

/* Tokens of a batch: enough to fill a GPU; on a CPU what its caches like. */
enum { GPU_TOKENS = 16384, CPU_TOKENS = 2048 };
/* Shapes: the longest text of a batch is one of 32, 64, 128, ... and its tokens a quarter of the
 * largest batch's, two, three or all four of them, or a sixteenth. */
enum { SHORTEST = 32, CLASSES = 16, QUARTERS = 4 };
enum { FLIGHTS = 2, MOST_THREADS = 8, DEFAULT_LENGTH = 512 };

/* The rows of a batch on their way to the host. */
typedef struct flight {
    float *host;  /* (most_rows, width) */
    size_t *text; /* (most_rows): whose they are */
    int count;    /* 0: none is under way */
    uint64_t ticket;
} flight;

struct mc_text_rows {
    const mc_text_span *texts; /* of the running call */
    mc_context *ctx;
    mc_text_rows_options o;
    char *prefix;
    bool fixed, ran;
    int64_t tokens; /* of a batch */
    int most_rows;
    flight flights[FLIGHTS];
    int turn;

    /* the batch that is being made, and where its step finds it */
    int32_t *host_ids, *host_types, *length; /* (tokens), (tokens), (most_rows) */
    int count, longest_class;
    int64_t used, capacity;
    bool paired;
    mc_tensor *ids, *types, *rows;
    mc_lengths *lengths[CLASSES]; /* one a class, made when needed */
};

/* ---- making ---------------------------------------------------------------------------------- */

void mc_text_rows_free(mc_text_rows *r)
{
    if (!r) return;
    mc_device *d = r->ctx->device;
    if (r->ran) mc_step_forget(r->ctx); /* recordings read its tensors */
    size_t bytes = (size_t)r->most_rows * (size_t)r->o.width * sizeof(float);
    for (int i = 0; i < FLIGHTS; i++) {
        if (r->flights[i].host) d->host_free(d, r->flights[i].host, bytes);
        mc_free(r->flights[i].text);
    }
    for (int i = 0; i < CLASSES; i++) mc_lengths_free(r->lengths[i]);
    mc_tensor_free(r->ids);
    mc_tensor_free(r->types);
    mc_tensor_free(r->rows);
    mc_free(r->host_ids);
    mc_free(r->host_types);
    mc_free(r->length);
    mc_free(r->prefix);
    mc_free(r);
}

static mc_tensor *own_tensor(mc_context *ctx, mc_dtype dtype, mc_shape shape)
{
    mc_tensor *x = mc_tensor_new(ctx, dtype, shape);
    if (x) mc_disown(&x->owned);
    return x;
}

static bool make_buffers(mc_text_rows *r)
{
    mc_context *ctx = r->ctx;
    mc_device *d = ctx->device;
    size_t tokens = (size_t)r->tokens, rows = (size_t)r->most_rows;
    size_t bytes = rows * (size_t)r->o.width * sizeof(float);
    r->host_ids = mc_calloc(tokens, sizeof *r->host_ids);
    r->host_types = mc_calloc(tokens, sizeof *r->host_types);
    r->length = mc_calloc(rows, sizeof *r->length);
    r->prefix = mc_strdup(r->o.prefix ? r->o.prefix : "");
    bool good = r->host_ids && r->host_types && r->length && r->prefix;
    for (int i = 0; i < FLIGHTS; i++) {
        r->flights[i].text = mc_malloc(rows * sizeof *r->flights[i].text);
        good = good && r->flights[i].text;
    }
    if (!good) return !mc_fail_nomem(ctx, "batches of texts");
    for (int i = 0; i < FLIGHTS; i++)
        if (!(r->flights[i].host = d->host_alloc(d, bytes)))
            return !mc_fail(ctx, MC_ERR_NOMEM, "no pinned memory for rows of texts (%zu bytes)%s%s",
                            bytes, *d->failure ? ": " : "", d->failure);
    r->rows = own_tensor(ctx, MC_F32, MC_SHAPE(r->most_rows, r->o.width));
    if (r->fixed) r->ids = own_tensor(ctx, MC_I32, MC_SHAPE(r->tokens));
    if (r->fixed) r->types = own_tensor(ctx, MC_I32, MC_SHAPE(r->tokens));
    return !mc_failed(ctx);
}

static int cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* On a CPU tokenizing is a small part of the work, and all cores are busy with the rest. */
static int choose_threads(const mc_text_rows *r)
{
    int n = r->ctx->device->is_host ? cores() / 4 : cores() - 1;
    if (r->o.threads) n = r->o.threads;
    return n < MOST_THREADS ? n : MOST_THREADS;
}

/* What the tokenizer's folder says, as far as the model has positions. */
static int64_t default_length(const mc_tokenizer *tok, int64_t positions)
{
    int64_t said = mc_tokenizer_max_length(tok);
    if (said && (!positions || said < positions)) return said;
    return positions ? positions : DEFAULT_LENGTH;
}

static bool check(mc_text_rows *r)
{
    const mc_text_rows_options *o = &r->o;
    mc_model_shape shape = mc_model_get_shape(o->model);
    int64_t limit = shape.positions ? shape.positions : INT32_MAX / 4;
    if (!r->o.max_length) r->o.max_length = default_length(o->tok, shape.positions);
    if (r->o.max_length < 1 || r->o.max_length > limit)
        return !mc_fail(r->ctx, MC_ERR_ARGUMENT,
                        "texts of up to %lld tokens: the model %s has %lld positions",
                        (long long)o->max_length, mc_model_family(o->model), (long long)limit);
    if (r->ctx->mesh.shard.size > 1 && r->ctx->zero_level == MC_ZERO_3)
        return !mc_fail(r->ctx, MC_ERR_UNSUPPORTED,
                        "ranks run texts of their own, one rank more than another: expected all "
                        "parameters on each rank (zero_level 0 to 2)");
    return true;
}

mc_text_rows *mc_text_rows_new(mc_context *ctx, const mc_text_rows_options *options)
{
    if (mc_failed(ctx) || !options->model || !options->tok) return NULL;
    if (mc_model_image_form(options->model).size) {
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: the model reads images, not texts",
                mc_model_family(options->model));
        return NULL;
    }
    mc_text_rows *r = mc_calloc(1, sizeof *r);
    if (!r) {
        mc_fail_nomem(ctx, "batches of texts");
        return NULL;
    }
    r->ctx = ctx;
    r->o = *options;
    bool encoder = mc_model_get_shape(options->model).kind == MC_MODEL_ENCODER;
    /* virtual tokens come before lengths that the host knows */
    r->fixed = encoder && !mc_model_soft_prompt(options->model) &&
               (ctx->device->record_begin || options->fixed_shapes);
    if (check(r)) {
        int64_t most = ctx->device->is_host ? CPU_TOKENS : GPU_TOKENS, step = QUARTERS * SHORTEST;
        if (r->o.batch_tokens) most = r->o.batch_tokens;
        if (most < r->o.max_length) most = r->o.max_length;
        r->tokens = (most + step - 1) / step * step;
        r->most_rows = (int)(2 * r->tokens / SHORTEST);
        r->o.threads = choose_threads(r);
        if (make_buffers(r)) return r;
    }
    mc_text_rows_free(r);
    return NULL;
}

int64_t mc_text_rows_max_length(const mc_text_rows *r) { return r ? r->o.max_length : 0; }

/* ---- a batch --------------------------------------------------------------------------------- */

/* Number k of the longest texts 32 * 2^k, the last one being max_length. */
static int class_of(const mc_text_rows *r, int32_t length)
{
    int k = 0;
    while ((SHORTEST << k) < length && (SHORTEST << k) < r->o.max_length) k++;
    return k;
}

static int32_t longest_of(const mc_text_rows *r, int k)
{
    return (SHORTEST << k) < r->o.max_length ? SHORTEST << k : (int32_t)r->o.max_length;
}

/* Texts of a batch: those that fill it where each has more than half of the longest. */
static int rows_of(const mc_text_rows *r, int k)
{
    int64_t rows = 2 * r->tokens / (SHORTEST << k);
    return rows > 1 ? (int)rows : 1;
}

static int64_t capacity_for(const mc_text_rows *r, int64_t used)
{
    int64_t quarter = r->tokens / QUARTERS, sixteenth = quarter / 4;
    if (!r->fixed) return used;
    return used <= sixteenth ? sixteenth : (used + quarter - 1) / quarter * quarter;
}

/* What a GPU records. */
static void step(mc_context *ctx, void *user)
{
    mc_text_rows *r = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_shape packed = MC_SHAPE(r->used);
    mc_model_shape shape = mc_model_get_shape(r->o.model);
    mc_model_input in = {.ids = r->fixed ? r->ids
                                         : mc_tape_input(t, MC_I32, packed, r->host_ids, false),
                         .lengths = r->fixed ? r->lengths[r->longest_class]
                                             : mc_tape_lengths(t, r->length, r->count, 1)};
    if (r->paired && shape.types)
        in.type_ids = r->fixed ? r->types : mc_tape_input(t, MC_I32, packed, r->host_types, false);
    if (shape.kind == MC_MODEL_ENCODER_DECODER) {
        in.decoder_ids = mc_model_shift_right(t, r->o.model, in.ids, in.lengths);
        in.decoder_lengths = in.lengths;
    }
    mc_model_output out = mc_model_forward(t, r->o.model, &in);
    mc_tensor_copy(r->rows, r->o.head(t, r->o.model, &out, r->o.user));
    mc_tape_end(t);
}

/* Writes the batch to where the recorded step reads it. */
static void fill_fixed(mc_text_rows *r)
{
    int k = r->longest_class;
    if (!r->lengths[k]) {
        r->lengths[k] = mc_lengths_new(r->ctx, rows_of(r, k), r->tokens);
        if (!r->lengths[k]) return;
        mc_lengths_disown(r->lengths[k]);
    }
    size_t bytes = (size_t)r->capacity * sizeof *r->host_ids,
           rest = (size_t)(r->capacity - r->used);
    memset(r->host_ids + r->used, 0, rest * sizeof *r->host_ids);
    mc_tensor_write(r->ids, r->host_ids, bytes);
    if (r->paired) {
        memset(r->host_types + r->used, 0, rest * sizeof *r->host_types);
        mc_tensor_write(r->types, r->host_types, bytes);
    }
    mc_lengths_write(r->lengths[k], r->length, r->count, r->capacity, longest_of(r, k));
}

/* A row that is not finite is an error, as in generation. */
static mc_status check_row(mc_text_rows *r, size_t text, const float *row)
{
    const mc_text_span *span = &r->texts[text];
    if (mc_all_finite(row, (size_t)r->o.width)) return MC_OK;
    const char *hint = mc_model_finite_hint(r->o.model);
    if (span->file)
        return mc_fail(r->ctx, MC_ERR_STATE, "%s:%lld: the %s of the text are not finite%s",
                       span->file, (long long)span->line, r->o.what, hint);
    return mc_fail(r->ctx, MC_ERR_STATE, "the %s of text %zu are not finite%s", r->o.what, text,
                   hint);
}

/* Rows that have arrived go to their places. */
static mc_status land(mc_text_rows *r, flight *f, float *rows)
{
    mc_device *d = r->ctx->device;
    size_t width = (size_t)r->o.width;
    int count = f->count;
    f->count = 0;
    if (!count || mc_failed(r->ctx)) return mc_error_status(r->ctx);
    if (!d->wait(d, f->ticket))
        return mc_fail(r->ctx, MC_ERR_DEVICE, "reading the rows of texts: %s", d->failure);
    for (int i = 0; i < count; i++) {
        const float *row = f->host + (size_t)i * width;
        if (check_row(r, f->text[i], row)) break;
        memcpy(rows + f->text[i] * width, row, width * sizeof *rows);
    }
    return mc_error_status(r->ctx);
}

/* Runs the batch; the one before it lands meanwhile. */
static mc_status launch(mc_text_rows *r, float *rows)
{
    mc_context *ctx = r->ctx;
    mc_device *d = ctx->device;
    flight *f = &r->flights[r->turn];
    if (!r->count) return mc_error_status(ctx);
    r->capacity = capacity_for(r, r->used);
    if (r->fixed) fill_fixed(r);
    uint64_t key = (uint64_t)r->capacity << 8 | (uint64_t)(r->longest_class << 1) | r->paired;
    r->ran = r->fixed;
    if (r->fixed)
        mc_step_run(ctx, key, step, r);
    else if (!mc_failed(ctx))
        step(ctx, r);
    if (mc_failed(ctx)) return mc_error_status(ctx);
    f->count = r->count;
    f->ticket = d->copy_out_later(d, f->host, mc_tensor_data(r->rows),
                                  (size_t)r->count * (size_t)r->o.width * sizeof(float));
    r->turn = (r->turn + 1) % FLIGHTS;
    r->count = 0;
    r->used = 0;
    return land(r, &r->flights[r->turn], rows);
}

/* ---- many texts ------------------------------------------------------------------------------ */

/* Longest first, so that memory is greatest at once; equal ones in their order. */
static int by_length(const void *a, const void *b)
{
    const mc_ahead_text *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? 1 : -1;
    return x->text < y->text ? -1 : x->text > y->text;
}

static mc_status add(mc_text_rows *r, const mc_ahead_text *text, float *rows)
{
    size_t n = (size_t)text->length;
    bool full = r->used + text->length > r->tokens ||
                (r->count && r->count == rows_of(r, r->longest_class));
    if (full && launch(r, rows)) return mc_error_status(r->ctx);
    if (!r->count) r->longest_class = class_of(r, text->length);
    memcpy(r->host_ids + r->used, text->ids, n * sizeof *text->ids);
    for (size_t i = 0; r->paired && i < n; i++)
        r->host_types[(size_t)r->used + i] = text->type_ids[i];
    r->flights[r->turn].text[r->count] = text->text;
    r->length[r->count++] = text->length;
    r->used += text->length;
    return MC_OK;
}

/* Whether the model knows all ids, and no text is empty. */
static mc_status check_texts(mc_text_rows *r, const mc_ahead_text *texts, size_t count)
{
    int64_t vocabulary = mc_model_get_shape(r->o.model).vocab_size;
    bool more = mc_tokenizer_vocab_size(r->o.tok) > vocabulary;
    for (size_t i = 0; i < count; i++) {
        const mc_ahead_text *x = &texts[i];
        const mc_text_span *text = &r->texts[x->text];
        if (!x->length && text->file)
            return mc_fail(r->ctx, MC_ERR_FORMAT,
                           "%s:%lld: the text has no tokens, expected one at least", text->file,
                           (long long)text->line);
        if (!x->length)
            return mc_fail(r->ctx, MC_ERR_ARGUMENT, "text %zu has no token: expected one at least",
                           x->text);
        if (more && mc_tokenizer_check_ids(r->o.tok, x->ids, (size_t)x->length, vocabulary))
            return mc_error_status(r->ctx);
    }
    return MC_OK;
}

static mc_status run_windows(mc_text_rows *r, mc_ahead *a, float *rows)
{
    size_t count;
    for (mc_ahead_text *texts; (texts = mc_ahead_next(a, &r->ctx->error, &count));) {
        if (check_texts(r, texts, count)) break;
        qsort(texts, count, sizeof *texts, by_length);
        for (size_t i = 0; i < count; i++)
            if (add(r, &texts[i], rows)) break;
        launch(r, rows);
    }
    for (int i = 0; i < FLIGHTS; i++, r->turn = (r->turn + 1) % FLIGHTS)
        land(r, &r->flights[r->turn], rows);
    return mc_error_status(r->ctx);
}

mc_status mc_text_rows_run(mc_text_rows *r, const mc_text_span *texts, const mc_text_span *pairs,
                           size_t count, float *rows)
{
    if (!r) return MC_ERR_ARGUMENT;
    if (mc_failed(r->ctx)) return mc_error_status(r->ctx);
    if (count && (!texts || !rows))
        return mc_fail(r->ctx, MC_ERR_ARGUMENT, "%zu texts: %s is NULL", count,
                       texts ? "the memory for their rows" : "the array of texts");
    r->texts = texts;
    r->paired = pairs;
    r->count = 0;
    r->used = 0;
    mc_ahead *a =
        mc_ahead_new(&r->ctx->error, &(mc_ahead_options){.tok = r->o.tok,
                                                         .texts = texts,
                                                         .pairs = pairs,
                                                         .count = count,
                                                         .max_length = (size_t)r->o.max_length,
                                                         .prefix = *r->prefix ? r->prefix : NULL,
                                                         .threads = r->o.threads});
    mc_status status = a ? run_windows(r, a, rows) : mc_error_status(r->ctx);
    mc_ahead_free(a);
    return status;
}
