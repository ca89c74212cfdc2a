/* What all objectives of pretraining share: options, buffers, batches, numbers that are drawn. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "datasets/lm/loader_internal.h"
#include "datasets/lm/objective_internal.h"
#include "datasets/order_internal.h"
#include "tokenizers/details.h"

static const mc_objective_kind_table *const kinds[] = {
    [MC_OBJECTIVE_NEXT_TOKEN] = &mc_objective_next_token,
    [MC_OBJECTIVE_MASKED] = &mc_objective_masked,
    [MC_OBJECTIVE_SPANS] = &mc_objective_spans,
    [MC_OBJECTIVE_CONTEXT] = &mc_objective_context};

static const mc_objective_kind_table *kind_of(mc_objective_kind kind)
{
    return kind >= MC_OBJECTIVE_NEXT_TOKEN && kind <= MC_OBJECTIVE_CONTEXT ? kinds[kind] : NULL;
}

/* ---- numbers --------------------------------------------------------------------------------- */

mc_draw mc_draw_of(uint64_t seed, int64_t epoch, int64_t place)
{
    enum { STREAM = 16 }; /* those of orders are 0 and 1 */
    return (mc_draw){.key = mc_order_mix(mc_order_key(seed, epoch, STREAM) + (uint64_t)place)};
}

static uint64_t draw_word(mc_draw *draw)
{
    return mc_order_mix(draw->key + ++draw->count * 0x9E3779B97F4A7C15u);
}

int64_t mc_draw_below(mc_draw *draw, int64_t n) { return (int64_t)(draw_word(draw) % (uint64_t)n); }

bool mc_draw_happens(mc_draw *draw, double probability)
{
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    return (double)(draw_word(draw) >> 11) * unit < probability;
}

/* ---- options --------------------------------------------------------------------------------- */

int mc_objective_refuse(mc_context *ctx, const char *format, ...)
{
    char message[256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    mc_fail(ctx, MC_ERR_ARGUMENT, "objective: %s", message);
    return 0;
}

bool mc_objective_has(mc_context *ctx, int32_t id, const char *what)
{
    return id >= 0 || mc_objective_refuse(ctx, "the %s token is not given", what);
}

mc_objective_options mc_objective_defaults(const mc_objective_options *given)
{
    mc_objective_options o = *given;
    if (o.mask_probability == 0) o.mask_probability = 0.15;
    if (o.noise_density == 0) o.noise_density = 0.15;
    if (o.mean_span_length == 0) o.mean_span_length = 3;
    return o;
}

int mc_objective_window(mc_context *ctx, const mc_objective_options *given)
{
    if (mc_failed(ctx)) return 0;
    const mc_objective_kind_table *kind = given ? kind_of(given->style.kind) : NULL;
    if (!kind) return mc_objective_refuse(ctx, "option style.kind is required");
    if (given->seq_length < 1)
        return mc_objective_refuse(ctx, "seq_length is %d, expected 1 or more", given->seq_length);
    mc_objective_options o = mc_objective_defaults(given);
    return kind->window(ctx, &o);
}

int mc_objective_width(const mc_objective_options *given, mc_objective_field field)
{
    const mc_objective_kind_table *kind = given ? kind_of(given->style.kind) : NULL;
    if (!kind) return 0;
    mc_objective_options o = mc_objective_defaults(given);
    return kind->width(&o, field);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int32_t find(mc_context *ctx, const mc_tokenizer *tok, const char *name)
{
    int32_t id = name ? mc_tokenizer_token_to_id(tok, name) : -1;
    if (name && id < 0)
        mc_fail(ctx, MC_ERR_NOT_FOUND, "objective: the tokenizer has no token \"%s\"", name);
    return id;
}

static int32_t need(mc_context *ctx, int32_t id, const char *use)
{
    if (id < 0)
        mc_fail(ctx, MC_ERR_NOT_FOUND, "objective: the tokenizer has no token that %s", use);
    return id;
}

static void find_sentinels(mc_context *ctx, const char *pattern, const mc_tokenizer *tok,
                           mc_objective_tokens *tokens)
{
    for (tokens->sentinel_count = 0; tokens->sentinel_count < MC_SENTINELS;) {
        char name[64];
        const char *number = strstr(pattern, "%d");
        snprintf(name, sizeof name, "%.*s%d%s", (int)(number - pattern), pattern,
                 tokens->sentinel_count, number + 2);
        int32_t id = mc_tokenizer_token_to_id(tok, name);
        if (id < 0 && tokens->sentinel_count == 0) find(ctx, tok, name);
        if (id < 0) return;
        tokens->sentinel[tokens->sentinel_count++] = id;
    }
}

mc_status mc_objective_find_tokens(mc_context *ctx, const mc_objective_style *style,
                                   const mc_tokenizer *tok, mc_objective_tokens *tokens)
{
    if (mc_failed(ctx) || !mc_given(ctx, style) || !mc_given(ctx, tokens))
        return mc_error_status(ctx);
    bool reads = style->kind == MC_OBJECTIVE_MASKED || style->kind == MC_OBJECTIVE_SPANS;
    if (reads && !mc_given(ctx, tok)) return mc_error_status(ctx); /* others go without one */
    *tokens = (mc_objective_tokens){.mask = -1,
                                    .begin = -1,
                                    .separator = -1,
                                    .start = -1,
                                    .input_end = -1,
                                    .target_end = -1,
                                    .end_of_text = mc_tokenizer_end_of_text_id(tok)};
    if (style->kind == MC_OBJECTIVE_MASKED) {
        tokens->mask = need(ctx, mc_tokenizer_mask_id(tok), "masks others");
        tokens->begin = need(ctx, mc_tokenizer_cls_id(tok), "begins a text");
        tokens->separator = need(ctx, mc_tokenizer_sep_id(tok), "ends a text");
    }
    if (style->kind == MC_OBJECTIVE_SPANS) {
        tokens->start = find(ctx, tok, style->start);
        tokens->input_end = find(ctx, tok, style->input_end);
        tokens->target_end = find(ctx, tok, style->target_end);
        find_sentinels(ctx, style->sentinel, tok, tokens);
    }
    return mc_error_status(ctx);
}

/* ---- making and freeing ---------------------------------------------------------------------- */

static void free_objective(void *object)
{
    mc_objective *o = object;
    for (int f = 0; f < MC_FIELDS; f++) mc_free(o->buffer[f]);
    mc_free(o->scratch);
    mc_free(o->continues);
    mc_free(o);
}

void mc_objective_free(mc_objective *o)
{
    if (!o) return;
    mc_disown(&o->owned);
    free_objective(o);
}

static bool make_buffers(mc_objective *o)
{
    bool good = (o->scratch = mc_malloc(2 * (size_t)o->window * sizeof *o->scratch));
    for (int f = 0; good && f < MC_FIELDS; f++) {
        o->width[f] = o->kind->width(&o->o, f);
        size_t count = (size_t)o->batch_size * (size_t)o->width[f];
        good = !count || (o->buffer[f] = mc_malloc(count * sizeof *o->buffer[f]));
    }
    return good || !mc_fail_nomem(o->ctx, "an objective's batches");
}

static bool look_up_words(mc_objective *o)
{
    const mc_tokenizer *tok = o->o.whole_words;
    if (!tok) return true;
    o->words_end = mc_tokenizer_vocab_size(tok);
    if (!(o->continues = mc_calloc((size_t)o->words_end + 1, 1)))
        return !mc_fail_nomem(o->ctx, "the words of a vocabulary");
    for (int i = 0; i < o->words_end; i++) {
        int continues = mc_tokenizer_continues(tok, i);
        if (continues < 0)
            return !mc_fail(o->ctx, MC_ERR_UNSUPPORTED,
                            "objective: whole words: this tokenizer's vocabulary does not say "
                            "which tokens continue a word");
        o->continues[i] = (uint8_t)continues;
    }
    return true;
}

static bool check_loaders(mc_context *ctx, mc_lm_loader *loader, mc_lm_loader *elsewhere,
                          const mc_objective_options *o, int window)
{
    mc_lm_position at = mc_lm_loader_position(loader), other = mc_lm_loader_position(elsewhere);
    if (at.seq_length != window)
        return mc_objective_refuse(
            ctx, "the loader has windows of %lld tokens, expected %d for sequences of %d",
            (long long)at.seq_length, window, o->seq_length);
    if (o->style.next_sentence != (elsewhere != NULL))
        return mc_objective_refuse(ctx, "a second loader is %s",
                                   elsewhere ? "of no use here" : "required");
    if (elsewhere && (other.windows != at.windows || other.fingerprint != at.fingerprint ||
                      other.seq_length != at.seq_length ||
                      mc_lm_loader_batch_size(elsewhere) != mc_lm_loader_batch_size(loader)))
        return mc_objective_refuse(ctx, "the second loader is of other data or batches");
    return !elsewhere || other.seed != at.seed ||
           mc_objective_refuse(ctx, "the second loader has the seed of the first");
}

mc_objective *mc_objective_new(mc_lm_loader *loader, mc_lm_loader *elsewhere,
                               const mc_objective_options *options)
{
    if (!loader) return NULL;
    mc_context *ctx = mc_lm_loader_context(loader);
    int window = mc_objective_window(ctx, options);
    if (!window || !check_loaders(ctx, loader, elsewhere, options, window)) return NULL;
    mc_objective *o = mc_new_owned(ctx, sizeof *o, "an objective", free_objective);
    if (!o) return NULL;
    o->ctx = ctx;
    o->loader = loader;
    o->elsewhere = elsewhere;
    o->elsewhere_seed = mc_lm_loader_position(elsewhere).seed;
    o->o = mc_objective_defaults(options);
    o->kind = kind_of(o->o.style.kind);
    o->window = window;
    o->batch_size = mc_lm_loader_batch_size(loader);
    if (make_buffers(o) && look_up_words(o)) return o;
    mc_objective_free(o);
    return NULL;
}

/* ---- batches --------------------------------------------------------------------------------- */

static void make_row(mc_objective *o, const mc_lm_batch *from, const mc_lm_batch *elsewhere,
                     uint64_t seed, int i)
{
    size_t at = (size_t)i * (size_t)o->window;
    mc_objective_row row = {.window = from->ids + at,
                            .next = from->labels + at,
                            .elsewhere = elsewhere ? elsewhere->ids + at : NULL,
                            .draw = mc_draw_of(seed, from->epoch, from->first + i),
                            .first_row = i * o->o.seq_length};
    for (int f = 0; f < MC_FIELDS; f++)
        if (o->width[f]) row.field[f] = o->buffer[f] + (size_t)i * (size_t)o->width[f];
    o->kind->make(o, &row, o->scratch);
}

static int64_t count_targets(const mc_objective *o, int rows)
{
    int64_t count = 0, all = (int64_t)rows * o->width[MC_FIELD_TARGETS];
    for (int64_t i = 0; i < all; i++) count += o->buffer[MC_FIELD_TARGETS][i] >= 0;
    return count;
}

/* Data of which nothing ever counts is not what it was taken for. */
static bool has_targets(mc_objective *o)
{
    enum { MOST = 1024 };
    o->empty = o->batch.targets ? 0 : o->empty + o->batch.batch_size;
    if (o->empty < MOST) return true;
    return mc_objective_refuse(
        o->ctx, "%lld sequences in a row have no token that counts: %s", (long long)o->empty,
        o->o.style.kind == MC_OBJECTIVE_CONTEXT
            ? "each document in them has fewer than 32 tokens before its end of text"
            : "all of theirs are special");
}

const mc_objective_batch *mc_objective_next(mc_objective *o)
{
    if (!o) return NULL;
    const mc_lm_batch *from = mc_lm_loader_next(o->loader);
    const mc_lm_batch *elsewhere = o->elsewhere ? mc_lm_loader_next(o->elsewhere) : NULL;
    if (!from || !elsewhere != !o->elsewhere) return NULL;
    uint64_t seed = mc_lm_loader_position(o->loader).seed;
    for (int i = 0; i < from->batch_size; i++) make_row(o, from, elsewhere, seed, i);
    o->batch = (mc_objective_batch){.windows = from,
                                    .batch_size = from->batch_size,
                                    .targets = count_targets(o, from->batch_size),
                                    .epoch = from->epoch,
                                    .step = from->step};
    for (int f = 0; f < MC_FIELDS; f++) o->batch.field[f] = o->buffer[f];
    return has_targets(o) ? &o->batch : NULL;
}

mc_lm_loader *mc_objective_loader(const mc_objective *o) { return o ? o->loader : NULL; }

mc_status mc_objective_seek(mc_objective *o, const mc_lm_position *position)
{
    if (!o) return MC_ERR_ARGUMENT;
    mc_status status = mc_lm_loader_seek(o->loader, position);
    if (status || !o->elsewhere) return status;
    mc_lm_position there = *position;
    there.seed = o->elsewhere_seed;
    there.shuffle = mc_lm_loader_position(o->elsewhere).shuffle;
    return mc_lm_loader_seek(o->elsewhere, &there);
}
