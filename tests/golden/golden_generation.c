/* What the model generates: greedily, and with beams. */
#include <math.h>
#include <stdlib.h>
#include "tests/golden/golden.h"

/* An expected answer. Of an encoder-decoder `prompt` ids are the start token's. */
typedef struct answer {
    const int32_t *ids;
    int prompt, length;    /* without the padding after the end */
    const int32_t *source; /* what the encoder gets */
    int source_length;
} answer;

/* Logits (length, vocabulary) of an answer's ids. */
static float *logits_of(golden *g, const answer *a)
{
    int64_t count = a->length * mc_model_get_shape(g->model).vocab_size;
    float *x = malloc((size_t)count * sizeof *x);
    mc_tape *t = mc_tape_begin_eval(g->ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, a->length), a->ids, false);
    mc_model_input in = {.ids = ids};
    if (a->source) {
        in.ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, a->source_length), a->source, false);
        in.decoder_ids = ids;
    }
    mc_tensor *hidden = mc_model_forward(t, g->model, &in).last_hidden;
    mc_tensor_read_f32(g->ctx, mc_model_logits(t, g->model, hidden), x, count);
    mc_tape_end(t);
    return x;
}

/* How much less probable, as a mean over its tokens, the expected answer is to our model than the
 * one it gave, over the size of its logits: what rounding may cost where two answers are close. */
static double disadvantage(golden *g, const answer *a, bool greedy, double our_score)
{
    int64_t vocab = mc_model_get_shape(g->model).vocab_size;
    float *x = logits_of(g, a);
    double worst_gap = 0, largest = 0, score = 0;
    for (int i = a->prompt - 1; i + 1 < a->length; i++) {
        const float *row = x + i * vocab;
        double best = -INFINITY, sum = 0, chosen = (double)row[a->ids[i + 1]];
        for (int64_t k = 0; k < vocab; k++) {
            best = fmax(best, (double)row[k]);
            largest = fmax(largest, fabs((double)row[k]));
        }
        for (int64_t k = 0; k < vocab; k++) sum += exp((double)row[k] - best);
        score += chosen - best - log(sum);
        worst_gap = fmax(worst_gap, best - chosen);
    }
    free(x);
    score /= a->length - a->prompt;
    return (greedy ? worst_gap : fmax(our_score - score, 0)) / largest;
}

/* The error of one answer: with f32 the number of tokens that differ. */
static double compare_answer(golden *g, const answer *expected, const mc_generation *got, int row,
                             bool greedy)
{
    int different = got->lengths[row] != expected->length - expected->prompt;
    for (int i = 0; i < got->lengths[row] && expected->prompt + i < expected->length; i++)
        different += got->ids[row][i] != expected->ids[expected->prompt + i];
    if (different == 0 || g->dtype == MC_F32) return different;
    return disadvantage(g, expected, greedy, (double)got->scores[row]);
}

/* The prompts: gen.prompt, or of an encoder-decoder in.input_ids. */
typedef struct prompts {
    int rows;
    int32_t *ids;
    const int32_t **row;
    int *lengths;
} prompts;

static bool read_prompts(golden *g, prompts *p)
{
    const mc_tensor_entry *entry = golden_find(g, "gen.", "prompt");
    bool encoded = g->decoder.ids;
    if (!encoded && (!entry || entry->ndim != 2)) return false;
    p->rows = (int)(encoded ? g->encoder.batch : entry->shape[0]);
    int width = (int)(encoded ? g->encoder.width : entry->shape[1]);
    int64_t *given = encoded ? g->encoder.ids : golden_integers(g, "gen.", "prompt", -1);
    p->ids = malloc((size_t)(p->rows * width) * sizeof *p->ids);
    p->row = calloc((size_t)p->rows, sizeof *p->row);
    p->lengths = calloc((size_t)p->rows, sizeof *p->lengths);
    for (int i = 0; i < p->rows; i++) {
        p->row[i] = p->ids + i * width;
        for (int k = 0; k < width; k++) {
            p->ids[i * width + k] = (int32_t)given[i * width + k];
            p->lengths[i] += encoded ? (int)g->encoder.mask[i * width + k] : 1;
        }
    }
    if (!encoded) free(given);
    return true;
}

static void check(golden *g, worst *w, const prompts *p, const char *name, int beams)
{
    const mc_tensor_entry *entry = golden_find(g, "gen.", name);
    if (!entry || entry->ndim != 2 || entry->shape[0] != p->rows) return;
    int width = (int)entry->shape[1];
    bool encoded = g->decoder.ids;
    int64_t eos = mc_model_get_shape(g->model).eos_token;
    int64_t *wide = golden_integers(g, "gen.", name, (int64_t)p->rows * width);
    int32_t *ids = malloc((size_t)(p->rows * width) * sizeof *ids);
    for (int i = 0; i < p->rows * width; i++) ids[i] = (int32_t)wide[i];
    int prompt = encoded ? 1 : p->lengths[0];
    mc_generate_options o = {.max_new_tokens = width - prompt, .num_beams = beams};
    mc_generation *got = mc_model_generate(g->model, p->row, p->lengths, p->rows, &o);
    for (int i = 0; got && i < p->rows; i++) {
        answer a = {ids + i * width, prompt, prompt, encoded ? p->row[i] : NULL, p->lengths[i]};
        while (a.length < width && (a.length == prompt || a.ids[a.length - 1] != eos)) a.length++;
        golden_note(w, compare_answer(g, &a, got, i, beams == 1), entry->name);
    }
    if (!got) golden_note(w, INFINITY, entry->name);
    mc_generation_free(got);
    free(wide);
    free(ids);
}

const char *const golden_generated[] = {"prompt", "greedy", "beam4", NULL};

void golden_check_generated(golden *g, worst *w)
{
    prompts p = {0};
    if (!read_prompts(g, &p)) return;
    check(g, w, &p, "greedy", 1);
    check(g, w, &p, "beam4", 4);
    free(p.ids);
    free(p.row);
    free(p.lengths);
}
