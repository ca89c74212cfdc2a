/* The model under test on the inputs of a folder. */
#include <stdlib.h>
#include <string.h>
#include "tests/golden/golden.h"

/* ---- inputs ---------------------------------------------------------------------------------- */

static void look_at_mask(golden_rows *r)
{
    r->right_padded = true;
    for (int64_t i = 0; i < r->batch; i++)
        for (int64_t k = 0; k < r->width; k++) {
            bool here = r->mask[i * r->width + k];
            if (k == 0 && !here) r->right_padded = false;
            if (k > 0 && here && !r->mask[i * r->width + k - 1]) r->right_padded = false;
        }
}

/* ids, and what counts of them: a mask, lengths, or all. */
static bool read_rows(golden *g, golden_rows *r, const char *ids, const char *mask,
                      const char *length)
{
    const mc_tensor_entry *entry = golden_find(g, "in.", ids);
    if (!entry || entry->ndim != 2) {
        fprintf(stderr, "expected.safetensors: in.%s is missing or not (batch, length)\n", ids);
        return false;
    }
    r->batch = entry->shape[0];
    r->width = entry->shape[1];
    int64_t count = r->batch * r->width;
    r->ids = golden_integers(g, "in.", ids, count);
    r->mask = mask ? golden_integers(g, "in.", mask, count) : NULL;
    int64_t *lengths = golden_integers(g, "in.", length, r->batch);
    if (!r->mask) {
        r->mask = malloc(((size_t)count + 1) * sizeof *r->mask);
        for (int64_t i = 0; r->mask && i < count; i++)
            r->mask[i] = !lengths || i % r->width < lengths[i / r->width];
    }
    free(lengths);
    if (!r->ids || !r->mask) return false;
    look_at_mask(r);
    return true;
}

/* Decoder ids that are not given are made of the labels, as Hugging Face's T5 does. */
static bool make_decoder_rows(golden *g)
{
    golden_rows *r = &g->decoder;
    const mc_tensor_entry *labels = golden_find(g, "in.", "labels");
    if (golden_find(g, "in.", "decoder_input_ids"))
        return read_rows(g, r, "decoder_input_ids", NULL, "decoder_length");
    if (!labels || labels->ndim != 2) {
        fprintf(stderr, "expected.safetensors: neither in.decoder_input_ids nor in.labels\n");
        return false;
    }
    r->batch = labels->shape[0];
    r->width = labels->shape[1];
    int64_t count = r->batch * r->width;
    int64_t *values = golden_integers(g, "in.", "labels", count);
    mc_tape *t = mc_tape_begin_eval(g->ctx);
    mc_tensor *given = mc_tape_input(t, MC_I64, MC_SHAPE(r->batch, r->width), values, false);
    mc_tensor *ids = mc_model_shift_right(t, g->model, given, NULL);
    float *shifted = calloc((size_t)count + 1, sizeof *shifted);
    r->ids = calloc((size_t)count + 1, sizeof *r->ids);
    r->mask = calloc((size_t)count + 1, sizeof *r->mask);
    mc_tensor_read_f32(g->ctx, ids, shifted, count);
    for (int64_t i = 0; i < count; i++) {
        r->ids[i] = (int64_t)shifted[i];
        r->mask[i] = 1;
    }
    r->right_padded = true;
    mc_tape_end(t);
    free(shifted);
    free(values);
    return !mc_failed(g->ctx);
}

static void read_labels(golden *g)
{
    const mc_tensor_entry *entry = golden_find(g, "in.", "labels");
    const golden_rows *rows = g->decoder.ids ? &g->decoder : &g->encoder;
    g->labels = golden_integers(g, "in.", "labels", -1);
    if (!g->labels) g->labels = golden_integers(g, "in.", "mlm_labels", -1);
    if (!g->labels) return;
    g->label_count = entry ? entry->count : rows->batch * rows->width;
    if (g->label_count != rows->batch * rows->width) return;
    for (int64_t i = 0; i < g->label_count; i++)
        g->labels_on_padding |= g->labels[i] != -100 && !rows->mask[i];
}

/* Images, of which the first dimension says how many. */
static bool read_pixels(golden *g, const mc_tensor_entry *entry)
{
    double *values = golden_read(g, entry);
    g->pixels = malloc(((size_t)entry->count + 1) * sizeof *g->pixels);
    if (!values || !g->pixels || entry->ndim != 4) return false;
    for (int64_t i = 0; i < entry->count; i++) g->pixels[i] = (float)values[i];
    g->pixels_shape = MC_SHAPE(entry->shape[0], entry->shape[1], entry->shape[2], entry->shape[3]);
    g->encoder.batch = entry->shape[0];
    free(values);
    read_labels(g);
    return true;
}

bool golden_read_inputs(golden *g)
{
    const mc_tensor_entry *pixels = golden_find(g, "in.", "pixel_values");
    if (pixels) return read_pixels(g, pixels);
    if (!read_rows(g, &g->encoder, "input_ids", "attention_mask", "length")) return false;
    if (mc_model_get_shape(g->model).kind == MC_MODEL_ENCODER_DECODER && !make_decoder_rows(g))
        return false;
    int64_t count = g->encoder.batch * g->encoder.width;
    g->types = golden_integers(g, "in.", "token_type_ids", count);
    g->context = golden_integers(g, "in.", "context", count);
    g->span = golden_integers(g, "in.", "span", count);
    g->globals = golden_integers(g, "in.", "global_attention_mask", count);
    read_labels(g);
    return true;
}

void golden_release_inputs(golden *g)
{
    golden_rows *rows[] = {&g->encoder, &g->decoder};
    for (int i = 0; i < 2; i++) {
        free(rows[i]->ids);
        free(rows[i]->mask);
    }
    free(g->types);
    free(g->context);
    free(g->span);
    free(g->globals);
    free(g->pixels);
    free(g->labels);
}

/* ---- running --------------------------------------------------------------------------------- */

static mc_tensor *batch(mc_tape *t, const golden_rows *r, const int64_t *values)
{
    if (!values) return NULL;
    return mc_tape_input(t, MC_I64, MC_SHAPE(r->batch, r->width), values, false);
}

static const mc_lengths *lengths_of(mc_tape *t, const golden_rows *r)
{
    int32_t *lengths = calloc((size_t)r->batch + 1, sizeof *lengths);
    for (int64_t i = 0; lengths && i < r->batch * r->width; i++)
        lengths[i / r->width] += (int32_t)r->mask[i];
    const mc_lengths *out = lengths ? mc_tape_lengths(t, lengths, (int)r->batch, 1) : NULL;
    free(lengths);
    return out;
}

static mc_model_output run(golden *g, mc_tape *t, bool packed)
{
    if (g->pixels) {
        mc_tensor *pixels = mc_tape_input(t, MC_F32, g->pixels_shape, g->pixels, false);
        return mc_model_forward(t, g->model, &(mc_model_input){.pixels = pixels});
    }
    mc_model_input in = {.ids = batch(t, &g->encoder, g->encoder.ids),
                         .type_ids = batch(t, &g->encoder, g->types),
                         .context = batch(t, &g->encoder, g->context),
                         .span = batch(t, &g->encoder, g->span),
                         .global_mask = batch(t, &g->encoder, g->globals)};
    if (packed)
        in.lengths = lengths_of(t, &g->encoder);
    else
        in.mask = batch(t, &g->encoder, g->encoder.mask);
    if (g->decoder.ids) {
        in.decoder_ids = batch(t, &g->decoder, g->decoder.ids);
        in.decoder_lengths = lengths_of(t, &g->decoder);
    }
    return mc_model_forward(t, g->model, &in);
}

/* Values (batch, width) in the layout of the hidden states: those of tokens that were computed. */
static mc_tensor *in_layout(mc_tape *t, const golden_rows *r, const int64_t *values,
                            const mc_tensor *hidden)
{
    int64_t count = r->batch * r->width, kept = 0;
    bool all = mc_tensor_size(hidden, 0) == count;
    int64_t *out = malloc(((size_t)count + 1) * sizeof *out);
    for (int64_t i = 0; out && i < count; i++)
        if (all || r->mask[i]) out[kept++] = values[i];
    mc_tensor *x = out ? mc_tape_input(t, MC_I64, MC_SHAPE(kept), out, false) : NULL;
    free(out);
    return x;
}

static mc_tensor *row_labels(golden *g, mc_tape *t, const char *name)
{
    int64_t *labels = golden_integers(g, "in.", name, g->encoder.batch);
    mc_tensor *out =
        labels ? mc_tape_input(t, MC_I64, MC_SHAPE(g->encoder.batch), labels, false) : NULL;
    free(labels);
    return out;
}

/* The language model's loss: of a decoder of Hugging Face's the labels are the ids themselves. */
static mc_tensor *lm_loss(golden *g, mc_tape *t, const mc_model_output *out)
{
    const golden_rows *r = g->decoder.ids ? &g->decoder : &g->encoder;
    bool shifted = mc_model_get_shape(g->model).kind == MC_MODEL_DECODER && !g->mc_form;
    if (!out->last_hidden || (!g->labels && !shifted)) return NULL;
    const int64_t *labels = g->labels ? g->labels : r->ids;
    if (shifted)
        return mc_model_loss(t, g->model, out->last_hidden,
                             mc_model_shift_labels(t, out->last_hidden, batch(t, r, labels)));
    return mc_model_loss(t, g->model, out->last_hidden, in_layout(t, r, labels, out->last_hidden));
}

mc_tensor *golden_loss(golden *g, mc_tape *t, bool packed)
{
    mc_model_output out = run(g, t, packed);
    mc_model_heads heads = mc_model_get_heads(g->model);
    if (heads.labels)
        return mc_cross_entropy(t, mc_model_classify(t, g->model, &out), row_labels(g, t, "labels"),
                                NULL);
    mc_tensor *lm = heads.lm || heads.replaced ? lm_loss(g, t, &out) : NULL;
    mc_tensor *nsp_labels = heads.nsp ? row_labels(g, t, "nsp_labels") : NULL;
    if (!nsp_labels) return lm;
    mc_tensor *nsp =
        mc_cross_entropy(t, mc_model_nsp_logits(t, g->model, out.pooled), nsp_labels, NULL);
    return lm ? mc_loss_add(t, lm, nsp, 1) : nsp;
}

const char *const golden_outputs[] = {
    "last_hidden", "pooled", "logits", "mlm_logits", "nsp_logits", "encoder_last_hidden", NULL};

static bool has_windows(const golden *g)
{
    const char *family = mc_model_family(g->model);
    return strcmp(family, "modernbert") == 0 || strcmp(family, "longformer") == 0;
}

void golden_check_outputs(golden *g, mc_tape *t, worst *w, bool packed)
{
    mc_model_output out = run(g, t, packed);
    mc_model_heads heads = mc_model_get_heads(g->model);
    const golden_rows *last = g->decoder.ids ? &g->decoder : &g->encoder;
    /* ModelCenter computes padding without keys, which we do not; of padding whose window holds no
     * key transformers' attention functions differ from one another */
    bool valid = packed || g->mc_form || has_windows(g);
    bool of_tokens = heads.lm || heads.replaced;
    mc_tensor *lm = of_tokens ? mc_model_logits(t, g->model, out.last_hidden) : NULL;
    mc_tensor *nsp = heads.nsp ? mc_model_nsp_logits(t, g->model, out.pooled) : NULL;
    golden_check_output(g, t, w, "last_hidden", out.last_hidden, last, valid);
    golden_check_output(g, t, w, "encoder_last_hidden", out.encoder_last_hidden, &g->encoder,
                        valid);
    golden_check_output(g, t, w, "pooled", out.pooled, NULL, false);
    golden_check_output(g, t, w, "mlm_logits", lm, last, valid);
    golden_check_output(g, t, w, "nsp_logits", nsp, NULL, false);
    if (heads.labels)
        golden_check_output(g, t, w, "logits", mc_model_classify(t, g->model, &out), NULL, false);
    else
        golden_check_output(g, t, w, "logits", lm, last, valid);
}
