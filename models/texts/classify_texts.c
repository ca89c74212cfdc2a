#include "models/texts/classify_texts.h"

#include "models/family_internal.h"
#include "models/texts/text_rows_internal.h"

struct mc_text_classifier {
    mc_owned owned;
    mc_text_rows *rows;
};

static mc_tensor *logits_of(mc_tape *t, mc_model *model, const mc_model_output *out, void *user)
{
    (void)user;
    return mc_model_classify(t, model, out);
}

static void free_classifier(void *object)
{
    mc_text_classifier *c = object;
    mc_text_rows_free(c->rows);
    mc_free(c);
}

void mc_text_classifier_free(mc_text_classifier *c)
{
    if (!c) return;
    mc_disown(&c->owned);
    free_classifier(c);
}

mc_text_classifier *mc_text_classifier_new(mc_model *model, const mc_tokenizer *tokenizer,
                                           const mc_text_classifier_options *options)
{
    const mc_text_classifier_options none = {.threads = 0};
    if (!model || !mc_given(model->module.ctx, tokenizer)) return NULL;
    if (!options) options = &none;
    mc_context *ctx = model->module.ctx;
    if (!mc_failed(ctx) && !model->heads.labels)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: the model has no classification head",
                model->family->title);
    if (mc_failed(ctx)) return NULL;
    mc_text_classifier *c = mc_new_owned(ctx, sizeof *c, "a classifier of texts", free_classifier);
    if (!c) return NULL;
    c->rows = mc_text_rows_new(ctx, &(mc_text_rows_options){.model = model,
                                                            .tok = tokenizer,
                                                            .max_length = options->max_length,
                                                            .width = model->heads.labels,
                                                            .what = "logits",
                                                            .head = logits_of,
                                                            .threads = options->threads,
                                                            .batch_tokens = options->batch_tokens});
    if (c->rows) return c;
    mc_text_classifier_free(c);
    return NULL;
}

mc_status mc_classify_texts(mc_text_classifier *c, const mc_text_span *texts,
                            const mc_text_span *pairs, size_t count, float *logits)
{
    return c ? mc_text_rows_run(c->rows, texts, pairs, count, logits) : MC_ERR_ARGUMENT;
}
