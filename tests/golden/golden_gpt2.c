/* GPT-2: the language model's logits and loss, and what it generates. */
#include <math.h>
#include <stdlib.h>
#include "models/gpt2/gpt2_internal.h"
#include "tests/golden/golden.h"

static mc_tensor *run(golden *g, mc_tape *t, bool packed)
{
    mc_gpt2_input in = {.ids = golden_batch(g, t, g->ids)};
    if (packed)
        in.lengths = golden_lengths(g, t);
    else
        in.mask = golden_batch(g, t, g->mask);
    return mc_gpt2_forward(t, g->model, &in).last_hidden;
}

/* Labels are the ids themselves where none are given. */
static mc_tensor *forward_loss(golden *g, mc_tape *t, bool packed)
{
    mc_tensor *hidden = run(g, t, packed);
    int64_t *given = golden_integers(g, "in.", "labels", g->batch * g->width);
    mc_tensor *labels = golden_batch(g, t, given ? given : g->ids);
    free(given);
    return mc_gpt2_loss(t, g->model, hidden, mc_gpt2_shift_labels(t, hidden, labels));
}

static void check_outputs(golden *g, mc_tape *t, worst *w, bool packed)
{
    mc_tensor *hidden = run(g, t, packed);
    golden_check_output(g, t, w, "last_hidden", hidden, packed);
    golden_check_output(g, t, w, "logits", mc_gpt2_logits(t, g->model, hidden), packed);
}

static bool load(golden *g, const char *folder, const mc_load_options *options)
{
    mc_gpt2 *gpt2 = g->model = mc_gpt2_from_pretrained(g->ctx, folder, options);
    mc_gpt2_set_dropout(gpt2, 0);
    g->module = mc_gpt2_module(gpt2);
    g->layers = (int)mc_gpt2_get_config(gpt2).layers;
    return gpt2;
}

/* ---- generation ------------------------------------------------------------------------------ */

/* An expected answer: the ids of prompt and answer. */
typedef struct answer {
    const int32_t *ids;
    int prompt, length; /* without the padding behind the end */
} answer;

/* How much less probable, as a mean over its tokens, the expected answer is to our model than the
 * one it gave, over the size of its logits: what rounding may cost where two answers are close. */
static double disadvantage(golden *g, const answer *a, bool greedy, double our_score)
{
    int64_t vocab = mc_gpt2_get_config(g->model).vocab_size;
    float *x = malloc((size_t)(a->length * vocab) * sizeof *x);
    mc_tape *t = mc_tape_begin_eval(g->ctx);
    mc_gpt2_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, a->length), a->ids, false)};
    mc_tensor *hidden = mc_gpt2_forward(t, g->model, &in).last_hidden;
    mc_tensor_read_f32(g->ctx, mc_gpt2_logits(t, g->model, hidden), x, a->length * vocab);
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
    mc_tape_end(t);
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

static void check_generation(golden *g, worst *w, const char *name, int beams)
{
    const mc_safetensors_entry *entry = golden_find(g, "gen.", name);
    const mc_safetensors_entry *prompt = golden_find(g, "gen.", "prompt");
    if (!entry || !prompt || entry->ndim != 2 || prompt->ndim != 2) return;
    int rows = (int)prompt->shape[0], prompt_length = (int)prompt->shape[1];
    int width = (int)entry->shape[1];
    int64_t *wide = golden_integers(g, "gen.", name, (int64_t)rows * width);
    int32_t *ids = malloc((size_t)(rows * width) * sizeof *ids);
    const int32_t **prompts = calloc((size_t)rows, sizeof *prompts);
    int *lengths = calloc((size_t)rows, sizeof *lengths);
    for (int i = 0; i < rows * width; i++) ids[i] = (int32_t)wide[i];
    for (int i = 0; i < rows; i++) {
        prompts[i] = ids + i * width;
        lengths[i] = prompt_length;
    }
    mc_generate_options o = {.max_new_tokens = width - prompt_length, .num_beams = beams};
    mc_generation *got = mc_gpt2_generate(g->model, prompts, lengths, rows, &o);
    int64_t eos = mc_gpt2_get_config(g->model).eos_token_id;
    for (int i = 0; got && i < rows; i++) {
        answer a = {prompts[i], prompt_length, prompt_length};
        while (a.length < width && (a.length == prompt_length || a.ids[a.length - 1] != eos))
            a.length++;
        golden_note(w, compare_answer(g, &a, got, i, beams == 1), entry->name);
    }
    if (!got) golden_note(w, INFINITY, entry->name);
    mc_generation_free(got);
    free(wide);
    free(ids);
    free(prompts);
    free(lengths);
}

static void check_generated(golden *g, worst *w)
{
    check_generation(g, w, "greedy", 1);
    check_generation(g, w, "beam4", 4);
}

static const char *const outputs[] = {"last_hidden", "logits", NULL};
static const char *const generated[] = {"prompt", "greedy", "beam4", NULL};

const golden_family golden_gpt2 = {.model_type = "gpt2",
                                   .map = &mc_gpt2_weight_map,
                                   .outputs = outputs,
                                   .generated = generated,
                                   .load = load,
                                   .loss = forward_loss,
                                   .check_outputs = check_outputs,
                                   .check_generated = check_generated};
