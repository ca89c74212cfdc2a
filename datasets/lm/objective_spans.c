/* T5's span corruption, and CPM-2's. */
#include <math.h>
#include <string.h>
#include "datasets/lm/objective_internal.h"

/* How many tokens of a window lie in spans, and in how many of these. */
typedef struct span_counts {
    int noise, spans;
} span_counts;

/* Rounded as in the T5 code, ties to even. */
static span_counts count_spans(const mc_objective_options *o, int tokens)
{
    int noise = (int)rint(tokens * o->noise_density);
    if (noise < 1) noise = 1;
    if (noise > tokens - 1) noise = tokens - 1;
    int spans = (int)rint(noise / o->mean_span_length);
    return (span_counts){.noise = noise, .spans = spans < 1 ? 1 : spans};
}

static int input_length(const mc_objective_options *o, int tokens)
{
    span_counts c = count_spans(o, tokens);
    return tokens - c.noise + c.spans + (o->tokens.input_end >= 0);
}

/* The largest window whose input is of seq_length tokens: one token more makes an input at most one
 * longer. */
static int window_of(const mc_objective_options *o)
{
    int tokens = 2;
    while (input_length(o, tokens + 1) <= o->seq_length) tokens++;
    return tokens;
}

/* ---- options --------------------------------------------------------------------------------- */

static bool in_range(mc_context *ctx, const mc_objective_options *o)
{
    if (!(o->noise_density > 0 && o->noise_density <= 0.9))
        return mc_objective_refuse(ctx, "noise_density is %g, expected more than 0, at most 0.9",
                                   o->noise_density);
    int least = 2 + (o->tokens.input_end >= 0); /* a token and a sentinel */
    if (o->seq_length < least)
        return mc_objective_refuse(ctx, "seq_length is %d, expected %d or more", o->seq_length,
                                   least);
    return (o->mean_span_length >= 1 && o->mean_span_length <= o->seq_length) ||
           mc_objective_refuse(ctx, "mean_span_length is %g, expected 1 to %d", o->mean_span_length,
                               o->seq_length);
}

static int window(mc_context *ctx, const mc_objective_options *o)
{
    if (!mc_objective_has(ctx, o->tokens.start, "decoder's first") || !in_range(ctx, o)) return 0;
    int tokens = window_of(o);
    span_counts c = count_spans(o, tokens);
    if (c.spans > tokens - c.noise)
        return mc_objective_refuse(ctx,
                                   "noise_density %g in spans of %g leaves %d tokens between %d "
                                   "spans, expected one or more each",
                                   o->noise_density, o->mean_span_length, tokens - c.noise,
                                   c.spans);
    int needed = c.spans + (o->tokens.target_end < 0);
    if (needed > o->tokens.sentinel_count)
        return mc_objective_refuse(
            ctx,
            "a sequence of %d has %d sentinels, the tokenizer only %d: choose a shorter one, "
            "or longer spans",
            o->seq_length, needed, o->tokens.sentinel_count);
    return tokens;
}

static int width(const mc_objective_options *o, mc_objective_field field)
{
    span_counts c = count_spans(o, window_of(o));
    switch (field) {
    case MC_FIELD_IDS: return o->seq_length;
    case MC_FIELD_DECODER_IDS:
    case MC_FIELD_TARGETS: return c.noise + c.spans + 1;
    default: return 0;
    }
}

/* ---- a sequence ------------------------------------------------------------------------------ */

/* Cuts `items` into `parts` that have one each, all ways of doing it being equally likely. */
static void cut(mc_draw *draw, int items, int parts, int32_t *lengths)
{
    int part = 0, begin = 0, left = parts - 1;
    for (int i = 1; i < items; i++) {
        if (mc_draw_below(draw, items - i) >= left) continue; /* no part begins here */
        lengths[part++] = i - begin;
        begin = i;
        left--;
    }
    lengths[part] = items - begin;
}

static int32_t *append(int32_t *to, const int32_t *from, int32_t count)
{
    memcpy(to, from, (size_t)count * sizeof *to);
    return to + count;
}

static void make(const mc_objective *objective, const mc_objective_row *row, int32_t *scratch)
{
    const mc_objective_tokens *tokens = &objective->o.tokens;
    span_counts c = count_spans(&objective->o, objective->window);
    int32_t *noise = scratch, *between = scratch + c.spans;
    const int32_t *from = row->window;
    int32_t *input = row->field[MC_FIELD_IDS], *target = row->field[MC_FIELD_TARGETS];
    mc_draw draw = row->draw;
    cut(&draw, c.noise, c.spans, noise);
    cut(&draw, objective->window - c.noise, c.spans, between);
    for (int i = 0; i < c.spans; i++) {
        input = append(input, from, between[i]);
        *input++ = *target++ = tokens->sentinel[i];
        target = append(target, from + between[i], noise[i]);
        from += between[i] + noise[i];
    }
    if (tokens->input_end >= 0) *input = tokens->input_end;
    *target = tokens->target_end >= 0 ? tokens->target_end : tokens->sentinel[c.spans];
    int32_t *decoder = row->field[MC_FIELD_DECODER_IDS];
    decoder[0] = tokens->start;
    append(decoder + 1, row->field[MC_FIELD_TARGETS], objective->width[MC_FIELD_TARGETS] - 1);
}

const mc_objective_kind_table mc_objective_spans = {.window = window, .width = width, .make = make};
