/* 7. An objective: a T5 learns to fill blanks in rows of numbers that count up.
 *
 * Shows span corruption as `modelcenter pretrain` trains a T5, with special tokens of the program's
 * own: windows of a stream become inputs with sentinels and targets with what they stand for, in
 * batches of one shape, which steps of a GPU can be recorded with. Another family takes another
 * style (mc_family_objective("bert")) and fills other fields; nothing else changes.
 *
 *     ./pretrain_t5 [STEPS [DEVICE]]
 *     ./pretrain_t5 300 cuda
 */
#include <modelcenter.h>
#include <modelcenter/more.h>

#include <stdlib.h>

/* Tokens: the numbers, then what the objective puts in. */
enum { NUMBERS = 60, START = NUMBERS, END, FIRST_SENTINEL, SENTINELS = 8, BATCH = 8, LENGTH = 32 };

static bool count_up(void *user, int64_t first, int64_t count, int32_t *out)
{
    (void)user;
    for (int64_t i = first; i < first + count; i++) out[i - first] = (int32_t)(i % NUMBERS);
    return true;
}

static mc_objective_options span_corruption(void)
{
    mc_objective_options o = {
        .style = *mc_family_objective("t5"),
        .seq_length = LENGTH,
        .tokens = {
            .start = START, .input_end = END, .target_end = END, .sentinel_count = SENTINELS}};
    for (int i = 0; i < SENTINELS; i++) o.tokens.sentinel[i] = FIRST_SENTINEL + i;
    return o;
}

static mc_objective *open_batches(mc_context *ctx, const mc_objective_options *o)
{
    mc_token_source source = {.name = "counting", .count = 1000000, .read = count_up};
    mc_lm_loader_options options = {.batch_size = BATCH,
                                    .seq_length = mc_objective_window(ctx, o),
                                    .shuffle = true,
                                    .repeat = true};
    mc_lm_loader *loader = mc_lm_loader_new(mc_token_file_from_source(ctx, &source), &options);
    return mc_objective_new(loader, NULL, o);
}

typedef struct run {
    mc_model *model;
    mc_optim_manager *optim;
    mc_tensor *field[MC_FIELDS]; /* (BATCH, width), refilled for each step; NULL: not of T5 */
} run;

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_optim_manager_backward(r->optim, t, mc_model_pretraining_loss(t, r->model, r->field));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

static void train(mc_context *ctx, run *r, const mc_objective_options *o, long steps)
{
    mc_objective *batches = open_batches(ctx, o);
    for (long i = 1; i <= steps; i++) {
        const mc_objective_batch *b = mc_objective_next(batches);
        mc_step_report report;
        for (int f = 0; b && f < MC_FIELDS; f++)
            if (r->field[f])
                mc_tensor_write(r->field[f], b->field[f],
                                sizeof(int32_t) * BATCH * (size_t)mc_objective_width(o, f));
        if (!b || mc_step_run(ctx, 1, step, r) != MC_OK) return;
        if (i % 20 == 0 && mc_optim_manager_report(r->optim, 0, &report))
            mc_print_rank(ctx, 0, "step %ld  loss %.4f\n", i, report.loss);
    }
}

int main(int argc, char **argv)
{
    long steps = argc > 1 ? strtol(argv[1], NULL, 10) : 200;
    mc_context *ctx =
        mc_init_distributed(&(mc_init_options){.seed = 42, .device = argc > 2 ? argv[2] : "cpu"});
    mc_t5_config config = mc_t5_config_default();
    config.vocab_size = FIRST_SENTINEL + SENTINELS;
    config.dim = config.dim_ff = 64;
    config.layers = config.decoder_layers = config.heads = 2;
    config.head_dim = 32;
    run r = {.model = mc_t5_new(ctx, &config, NULL, NULL)};
    mc_model_set_dropout(r.model, 0);
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 3e-3f});
    r.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optimizer_add(adam, mc_model_module(r.model));
    mc_optim_manager_add(r.optim, adam, mc_cosine_new(ctx, 3e-3, 10, (int64_t)steps));
    mc_objective_options o = span_corruption();
    for (int f = 0; f < MC_FIELDS; f++) {
        int width = mc_objective_width(&o, f);
        if (width) r.field[f] = mc_tensor_new(ctx, MC_I32, MC_SHAPE(BATCH, width));
    }

    if (!mc_failed(ctx)) train(ctx, &r, &o, steps);
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
