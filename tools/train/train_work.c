#include "tools/train/train_work.h"

#include <stdlib.h>

void train_work_optimize(train_work *w, const train_options *o, const mc_adam_options *adam,
                         int64_t steps)
{
    bool scaled = train_dtypes[o->dtype] == MC_F16;
    mc_optim_manager_options options = {.loss_scale = scaled ? o->loss_scale : 0,
                                        .micro_steps = w->passes,
                                        .max_grad_norm = o->clip};
    w->optimizer = train_optimizer_new(w->ctx, o, adam);
    mc_optimizer_add(w->optimizer, mc_model_module(w->model));
    w->optim = mc_optim_manager_new(w->ctx, &options);
    mc_optim_manager_add(w->optim, w->optimizer, train_schedule_new(w->ctx, o, steps));
}

void train_work_step(mc_context *ctx, void *work)
{
    train_work *w = work;
    mc_optim_manager_zero_grad(w->optim);
    for (int i = 0; i < w->passes && !mc_failed(ctx); i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_optim_manager_backward(w->optim, t, w->loss(t, w, i));
        mc_tape_end(t);
    }
    mc_optim_manager_step(w->optim);
}

static mc_tensor *dry_loss(mc_tape *t, train_work *w, int pass)
{
    const dry_batch *b = w->user;
    mc_model_input in = {.ids = b->ids, .pixels = b->pixels, .decoder_ids = b->targets};
    mc_model_output out = mc_model_forward(t, w->model, &in);
    (void)pass; /* all are alike */
    if (b->values) return mc_mse_loss(t, mc_model_classify(t, w->model, &out), b->values);
    if (mc_model_get_heads(w->model).labels)
        return mc_cross_entropy(t, mc_model_classify(t, w->model, &out), b->labels, NULL);
    return mc_model_loss(t, w->model, out.last_hidden, b->labels);
}

/* All tokens end a text: some classifiers look for one, on the host. */
static void fill_ids(const train_work *w, mc_tensor *ids)
{
    int64_t end = mc_model_get_shape(w->model).eos_token, count = mc_tensor_count(ids);
    int32_t *all = malloc((size_t)count * sizeof *all);
    for (int64_t i = 0; all && i < count; i++) all[i] = end > 0 ? (int32_t)end : 0;
    if (all) mc_tensor_write(ids, all, (size_t)count * sizeof *all);
    free(all);
}

void train_work_read_dry(train_work *w, dry_batch *batch, int64_t sequences, int64_t length,
                         int64_t target_length, bool values)
{
    int labels = mc_model_get_heads(w->model).labels;
    bool both = mc_model_get_shape(w->model).kind == MC_MODEL_ENCODER_DECODER;
    int64_t rows = sequences * (both ? target_length : length);
    int64_t size = mc_model_image_form(w->model).size;
    *batch = (dry_batch){0};
    if (size)
        batch->pixels =
            mc_tensor_new(w->ctx, MC_F32, MC_SHAPE(sequences, MC_IMAGE_CHANNELS, size, size));
    else
        batch->ids = mc_tensor_new(w->ctx, MC_I32, MC_SHAPE(sequences, length));
    if (batch->ids) fill_ids(w, batch->ids);
    if (both) batch->targets = mc_tensor_new(w->ctx, MC_I32, MC_SHAPE(sequences, target_length));
    batch->labels = mc_tensor_new(w->ctx, MC_I32, MC_SHAPE(labels ? sequences : rows));
    if (values) batch->values = mc_tensor_new(w->ctx, MC_F32, MC_SHAPE(sequences, labels));
    w->loss = dry_loss;
    w->user = batch;
}
