/* CPM-1's objective: the middle of each document is given one token after the other, with what lies
 * around it as context. */
#include "datasets/lm/objective_internal.h"

enum { LEAST = 32 }; /* tokens of a document's part that counts, as in ModelCenter */

static int window(mc_context *ctx, const mc_objective_options *o)
{
    if (o->seq_length < LEAST)
        return mc_objective_refuse(ctx, "seq_length is %d, expected %d or more", o->seq_length,
                                   LEAST);
    return mc_objective_has(ctx, o->tokens.end_of_text, "end of text") ? o->seq_length : 0;
}

static int width(const mc_objective_options *o, mc_objective_field field)
{
    bool has = field == MC_FIELD_IDS || field == MC_FIELD_MARKS || field == MC_FIELD_TARGETS;
    return has ? o->seq_length : 0;
}

/* One part, of a span of its own: tokens [left, right) are to be given. */
static void make_part(const mc_objective *objective, const mc_objective_row *row, mc_draw *draw,
                      int first, int length, int span)
{
    const int32_t *ids = row->window + first;
    int32_t *marks = row->field[MC_FIELD_MARKS] + first;
    int32_t *targets = row->field[MC_FIELD_TARGETS] + first;
    int left = length, right = length;
    if (length >= LEAST) {
        int eighth = length / 8, three_quarters = length / 4 * 3;
        left = eighth + (int)mc_draw_below(draw, length / 4 - eighth + 1);
        right = three_quarters + (int)mc_draw_below(draw, length - three_quarters + 1);
        if (ids[length - 1] == objective->o.tokens.end_of_text) right = length;
    }
    for (int i = 0; i < length; i++) {
        bool given = i >= left && i < right;
        marks[i] = 2 * span + !given;
        if (i) targets[i - 1] = given ? ids[i] : -100;
    }
    targets[length - 1] = -100;
}

static void make(const mc_objective *objective, const mc_objective_row *row, int32_t *scratch)
{
    mc_draw draw = row->draw;
    int length = objective->window, first = 0, span = 0;
    (void)scratch;
    for (int i = 0; i < length; i++) {
        row->field[MC_FIELD_IDS][i] = row->window[i];
        bool ends = i + 1 == length || row->window[i] == objective->o.tokens.end_of_text;
        if (!ends) continue;
        make_part(objective, row, &draw, first, i + 1 - first, span++);
        first = i + 1;
    }
}

const mc_objective_kind_table mc_objective_context = {
    .window = window, .width = width, .make = make};
