/* BERT: pretraining heads and classifiers. */
#include <stdlib.h>
#include "models/bert/bert_internal.h"
#include "tests/golden/golden.h"

/* The batch on a tape: packed (padding not computed), or whole with a mask. */
static mc_bert_input make_input(golden *g, mc_tape *t, bool packed)
{
    mc_bert_input in = {.ids = golden_batch(g, t, g->ids)};
    if (g->types) in.type_ids = golden_batch(g, t, g->types);
    if (packed)
        in.lengths = golden_lengths(g, t);
    else
        in.mask = golden_batch(g, t, g->mask);
    return in;
}

/* MLM labels in the layout of `hidden`: packed, or as they are. */
static mc_tensor *make_mlm_labels(golden *g, mc_tape *t, bool packed)
{
    int64_t count = g->batch * g->width, kept = 0;
    int64_t *labels = golden_integers(g, "in.", "mlm_labels", count);
    if (!labels) return NULL;
    for (int64_t i = 0; i < count; i++)
        if (!packed || g->mask[i]) labels[kept++] = labels[i];
    mc_tensor *out = mc_tape_input(t, MC_I64, MC_SHAPE(kept), labels, false);
    free(labels);
    return out;
}

static mc_tensor *make_row_labels(golden *g, mc_tape *t, const char *name)
{
    int64_t *labels = golden_integers(g, "in.", name, g->batch);
    mc_tensor *out = labels ? mc_tape_input(t, MC_I64, MC_SHAPE(g->batch), labels, false) : NULL;
    free(labels);
    return out;
}

/* Classification, or MLM + NSP. */
static mc_tensor *forward_loss(golden *g, mc_tape *t, bool packed)
{
    mc_bert *bert = g->model;
    mc_bert_input in = make_input(g, t, packed);
    mc_bert_output out = mc_bert_forward(t, bert, &in);
    mc_bert_heads heads = mc_bert_get_heads(bert);
    mc_tensor *labels = heads.labels ? make_row_labels(g, t, "labels") : NULL;
    if (labels) return mc_cross_entropy(t, mc_bert_classify(t, bert, out.pooled), labels, NULL);
    mc_tensor *mlm_labels = heads.mlm ? make_mlm_labels(g, t, packed) : NULL;
    mc_tensor *nsp_labels = heads.nsp ? make_row_labels(g, t, "nsp_labels") : NULL;
    mc_tensor *mlm = mlm_labels ? mc_bert_mlm_loss(t, bert, out.last_hidden, mlm_labels) : NULL;
    mc_tensor *nsp =
        nsp_labels ? mc_cross_entropy(t, mc_bert_nsp_logits(t, bert, out.pooled), nsp_labels, NULL)
                   : NULL;
    return mlm && nsp ? mc_loss_add(t, mlm, nsp, 1) : mlm ? mlm : nsp;
}

static void check_outputs(golden *g, mc_tape *t, worst *w, bool packed)
{
    mc_bert *bert = g->model;
    mc_bert_input in = make_input(g, t, packed);
    mc_bert_output out = mc_bert_forward(t, bert, &in);
    mc_bert_heads heads = mc_bert_get_heads(bert);
    mc_tensor *logits = heads.labels ? mc_bert_classify(t, bert, out.pooled) : NULL;
    mc_tensor *mlm = heads.mlm ? mc_bert_mlm_logits(t, bert, out.last_hidden) : NULL;
    mc_tensor *nsp = heads.nsp ? mc_bert_nsp_logits(t, bert, out.pooled) : NULL;
    golden_check_output(g, t, w, "last_hidden", out.last_hidden, packed);
    golden_check_output(g, t, w, "pooled", out.pooled, packed);
    golden_check_output(g, t, w, "logits", logits, packed);
    golden_check_output(g, t, w, "mlm_logits", mlm, packed);
    golden_check_output(g, t, w, "nsp_logits", nsp, packed);
}

static bool load(golden *g, const char *folder, const mc_load_options *options)
{
    mc_bert *bert = g->model = mc_bert_from_pretrained(g->ctx, folder, options);
    mc_bert_set_dropout(bert, 0);
    g->module = mc_bert_module(bert);
    g->layers = (int)mc_bert_get_config(bert).layers;
    return bert;
}

static const char *const outputs[] = {"last_hidden", "pooled",     "logits",
                                      "mlm_logits",  "nsp_logits", NULL};

const golden_family golden_bert = {.model_type = "bert",
                                   .map = &mc_bert_weight_map,
                                   .outputs = outputs,
                                   .load = load,
                                   .loss = forward_loss,
                                   .check_outputs = check_outputs};
