/* 5. Pretraining: a GPT-2 from random weights learns token files, on one GPU or many.
 *
 * Shows a training loop at full speed: batches of windows of a token file, steps that a GPU records
 * and runs again (mc_step_run), gradients clipped on the device, and reports that are read one step
 * late, so that nothing waits. At the end it writes some text.
 *
 *     modelcenter prepare --tokenizer gpt2 --input book.txt --output train.bin
 *     ./pretrain_gpt2 train.bin [CONFIG [STEPS [DEVICE]]]
 *     ./pretrain_gpt2 train.bin gpt2-base 1000 cuda
 *     torchrun --no-python --nproc-per-node 4 ./pretrain_gpt2 train.bin gpt2-base 1000 cuda
 *
 * CONFIG is a name or a config.json. `modelcenter pretrain` does the same with validation,
 * checkpoints, exact resume and a plan of its memory. */
#include <modelcenter.h>

#include <stdlib.h>
#include <string.h>

enum { BATCH = 4, LENGTH = 64 };

/* What a step uses; its tensors belong to the context, and are refilled before each run. */
typedef struct run {
    mc_model *model;
    mc_optim_manager *optim;
    mc_tensor *ids, *next; /* (BATCH, LENGTH): tokens, and those that follow them */
} run;

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_output out = mc_model_forward(t, r->model, &(mc_model_input){.ids = r->ids});
    mc_optim_manager_backward(r->optim, t, mc_model_loss(t, r->model, out.last_hidden, r->next));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

static void train(mc_context *ctx, run *r, mc_lm_loader *loader, long steps)
{
    for (long i = 0; i < steps; i++) {
        const mc_lm_batch *b = mc_lm_loader_next(loader);
        if (!b) return; /* after an error; the loader begins anew at the data's end */
        mc_tensor_write(r->ids, b->ids, BATCH * LENGTH * sizeof(int32_t));
        mc_tensor_write(r->next, b->labels, BATCH * LENGTH * sizeof(int32_t));
        mc_step_run(ctx, 1, step, r);
        mc_step_report report;
        if (mc_optim_manager_report(r->optim, i > 0, &report))
            mc_print_rank(ctx, 0, "step %lld  loss %.4f  norm %.3f\n", (long long)report.step,
                          report.loss, report.grad_norm);
    }
}

static void write_some(mc_context *ctx, mc_model *model)
{
    int32_t start = 0;
    const int32_t *prompts[] = {&start};
    mc_generation *g = mc_model_generate(model, prompts, (int[]){1}, 1,
                                         &(mc_generate_options){.max_new_tokens = 16});
    for (int i = 0; g && i < g->lengths[0]; i++) mc_print_rank(ctx, 0, " %d", g->ids[0][i]);
    mc_print_rank(ctx, 0, "\n");
}

int main(int argc, char **argv)
{
    const char *data = argc > 1 ? argv[1] : "train.bin", *config = argc > 2 ? argv[2] : "gpt2-base";
    long steps = argc > 3 ? strtol(argv[3], NULL, 10) : 100;
    const char *device = argc > 4 ? argv[4] : "cpu";

    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 42, .device = device});
    mc_load_options load = {.dtype = strcmp(device, "cpu") == 0 ? MC_F32 : MC_BF16};
    run r = {.model = mc_model_new(ctx, "gpt2", config, NULL, &load)};
    mc_model_set_dropout(r.model, 0);
    mc_token_file *file = mc_token_file_open(ctx, data);
    mc_lm_loader *loader = mc_lm_loader_new(
        file, &(mc_lm_loader_options){.batch_size = BATCH,
                                      .seq_length = LENGTH,
                                      .shuffle = true,
                                      .repeat = true,
                                      .vocabulary = mc_model_get_shape(r.model).vocab_size});
    mc_optimizer *adam = mc_adam_new(
        ctx, &(mc_adam_options){.lr = 6e-4f, .weight_decay = 0.1f, .no_decay_bias_norm = true});
    r.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optimizer_add(adam, mc_model_module(r.model));
    mc_optim_manager_add(r.optim, adam, mc_cosine_new(ctx, 6e-4, 10, (int64_t)steps));
    r.ids = mc_tensor_new(ctx, MC_I32, MC_SHAPE(BATCH, LENGTH));
    r.next = mc_tensor_new(ctx, MC_I32, MC_SHAPE(BATCH, LENGTH));

    if (!mc_failed(ctx)) train(ctx, &r, loader, steps);
    if (!mc_failed(ctx)) write_some(ctx, r.model);
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
