/* BERT's objective: masked tokens, and pairs of which the second part follows the first or not. */
#include <math.h>
#include <string.h>
#include "datasets/lm/objective_internal.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Tokens around a window: [CLS] A [SEP] B [SEP], or [CLS] window [SEP]. */
static int frame(const mc_objective_options *o) { return o->style.next_sentence ? 3 : 2; }

static int window(mc_context *ctx, const mc_objective_options *o)
{
    int least = frame(o) + (o->style.next_sentence ? 2 : 1);
    if (o->seq_length < least)
        return mc_objective_refuse(ctx, "seq_length is %d, expected %d or more", o->seq_length,
                                   least);
    if (!(o->mask_probability > 0 && o->mask_probability <= 1))
        return mc_objective_refuse(ctx, "mask_probability is %g, expected more than 0, at most 1",
                                   o->mask_probability);
    if (o->vocabulary < 1)
        return mc_objective_refuse(ctx, "option vocabulary is required: random tokens are below "
                                        "it");
    if (!mc_objective_has(ctx, o->tokens.mask, "mask") ||
        !mc_objective_has(ctx, o->tokens.begin, "first") ||
        !mc_objective_has(ctx, o->tokens.separator, "separating"))
        return 0;
    return o->seq_length - frame(o);
}

/* Tokens that are chosen of a window. */
static int chosen(const mc_objective_options *o)
{
    int count = (int)rint(o->mask_probability * (o->seq_length - frame(o)));
    return count < 1 ? 1 : count;
}

static int width(const mc_objective_options *o, mc_objective_field field)
{
    switch (field) {
    case MC_FIELD_IDS: return o->seq_length;
    case MC_FIELD_TARGET_ROWS:
    case MC_FIELD_TARGETS: return chosen(o);
    case MC_FIELD_TYPE_IDS: return o->style.next_sentence ? o->seq_length : 0;
    case MC_FIELD_LABELS: return o->style.next_sentence ? 1 : 0;
    default: return 0;
    }
}

/* ---- the sequence ---------------------------------------------------------------------------- */

static void lay_out_pair(const mc_objective *objective, const mc_objective_row *row, mc_draw *draw)
{
    const mc_objective_tokens *tokens = &objective->o.tokens;
    int all = objective->window, a = 1 + (int)mc_draw_below(draw, all - 1);
    size_t bytes = (size_t)all * sizeof *row->window;
    bool other = mc_draw_happens(draw, 0.5) && memcmp(row->window, row->elsewhere, bytes) != 0;
    const int32_t *b = other ? row->elsewhere : row->window;
    int32_t *ids = row->field[MC_FIELD_IDS], *types = row->field[MC_FIELD_TYPE_IDS];
    *ids++ = tokens->begin;
    memcpy(ids, row->window, (size_t)a * sizeof *ids);
    ids[a] = tokens->separator;
    memcpy(ids + a + 1, b + a, (size_t)(all - a) * sizeof *ids);
    ids[all + 1] = tokens->separator;
    for (int i = 0; i < objective->o.seq_length; i++) types[i] = i > a + 1;
    row->field[MC_FIELD_LABELS][0] = other;
}

static void lay_out_single(const mc_objective *objective, const mc_objective_row *row)
{
    int32_t *ids = row->field[MC_FIELD_IDS];
    ids[0] = objective->o.tokens.begin;
    memcpy(ids + 1, row->window, (size_t)objective->window * sizeof *ids);
    ids[objective->window + 1] = objective->o.tokens.separator;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static bool is_special(const mc_objective_tokens *tokens, int32_t id)
{
    return id == tokens->mask || id == tokens->begin || id == tokens->separator;
}

static bool continues(const mc_objective *objective, int32_t id)
{
    return objective->continues && id < objective->words_end && objective->continues[id];
}

/* Where the words of a sequence begin, as first positions and lengths by turns; without whole words
 * each token is one. Special tokens belong to none. Returns their number. */
static int find_words(const mc_objective *objective, const int32_t *ids, int32_t *words)
{
    int count = 0;
    for (int i = 1; i < objective->o.seq_length; i++) {
        if (is_special(&objective->o.tokens, ids[i])) continue;
        bool joins = count && continues(objective, ids[i]) &&
                     words[2 * count - 2] + words[2 * count - 1] == i;
        if (joins) {
            words[2 * count - 1]++;
            continue;
        }
        words[2 * count] = i;
        words[2 * count++ + 1] = 1;
    }
    return count;
}

static void swap_words(int32_t *words, int64_t a, int64_t b)
{
    int32_t kept[2] = {words[2 * a], words[2 * a + 1]};
    memcpy(words + 2 * a, words + 2 * b, sizeof kept);
    memcpy(words + 2 * b, kept, sizeof kept);
}

/* Of chosen tokens 80 % become the mask, 10 % a random token, and 10 % stay. */
static int32_t replaced(const mc_objective *objective, mc_draw *draw, int32_t id)
{
    int64_t of_ten = mc_draw_below(draw, 10);
    if (of_ten < 8) return objective->o.tokens.mask;
    return of_ten == 8 ? (int32_t)mc_draw_below(draw, objective->o.vocabulary) : id;
}

/* Words in a random order, each of which is taken if there is room for all of it. */
static void choose(const mc_objective *objective, const mc_objective_row *row, mc_draw *draw,
                   int32_t *words)
{
    int32_t *ids = row->field[MC_FIELD_IDS], *rows = row->field[MC_FIELD_TARGET_ROWS],
            *targets = row->field[MC_FIELD_TARGETS];
    int count = find_words(objective, ids, words), room = objective->width[MC_FIELD_TARGETS];
    int taken = 0;
    for (int i = 0; i < count && taken < room; i++) {
        swap_words(words, i, i + mc_draw_below(draw, count - i));
        int32_t first = words[2 * i], length = words[2 * i + 1];
        if (length > room - taken) continue;
        for (int32_t k = first; k < first + length; k++) {
            rows[taken] = row->first_row + k;
            targets[taken++] = ids[k];
            ids[k] = replaced(objective, draw, ids[k]);
        }
    }
    for (; taken < room; taken++) {
        rows[taken] = row->first_row;
        targets[taken] = -100;
    }
}

static void make(const mc_objective *objective, const mc_objective_row *row, int32_t *scratch)
{
    mc_draw draw = row->draw;
    if (objective->o.style.next_sentence)
        lay_out_pair(objective, row, &draw);
    else
        lay_out_single(objective, row);
    choose(objective, row, &draw, scratch);
}

const mc_objective_kind_table mc_objective_masked = {
    .window = window, .width = width, .make = make};
