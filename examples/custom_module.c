/* 2. A module of your own: parameters, a list of blocks, a forward function, and its checkpoint.
 *
 * Shows how a model that the library does not know is written: a struct that begins with mc_module,
 * a parameter declared by name and shape, and blocks that the list recomputes, lays out in flat
 * buckets and (over several GPUs) shards. It learns to tell whether the first two of its inputs
 * have the same sign, which no linear model can.
 *
 *     ./custom_module [OUTPUT.safetensors]
 *
 * With OUTPUT the trained parameters are written to that file. Takes seconds. */
#include <modelcenter.h>

#include <stdlib.h>

enum { DIM = 16, BLOCKS = 3, ROWS = 64, STEPS = 300 };

/* ---- a block: x + scale * down(gelu(up(norm(x)))) -------------------------------------------- */

typedef struct my_block {
    mc_module module;
    mc_layernorm *norm;
    mc_linear *up, *down;
} my_block;

static void *my_block_new(mc_module *list, const char *name, int index, void *config)
{
    (void)index, (void)config;
    my_block *b = mc_module_add(list, name, sizeof *b);
    if (!b) return NULL;
    mc_linear_options options = {.init_std = 0.2f};
    b->norm = mc_layernorm_add(&b->module, "norm", DIM, 0);
    b->up = mc_linear_add(&b->module, "up", DIM, 4 * DIM, &options);
    b->down = mc_linear_add(&b->module, "down", 4 * DIM, DIM, &options);
    return b->down ? b : NULL;
}

static mc_tensor *my_block_forward(mc_tape *t, void *block, mc_tensor *x, mc_tensor *const *extra)
{
    my_block *b = block; /* x: (tokens, dim) */
    mc_tensor *h = mc_gelu(t, mc_linear_forward(t, b->up, mc_layernorm_forward(t, b->norm, x)));
    return mc_add(t, x, mc_mul(t, extra[0], mc_linear_forward(t, b->down, h)));
}

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct my_model {
    mc_module module;
    mc_parameter *gate;
    mc_block_list *blocks;
    mc_linear *head;
} my_model;

static my_model *my_model_new(mc_context *ctx)
{
    my_model *m = mc_module_new(ctx, "", sizeof *m, NULL);
    if (!m) return NULL;
    m->gate = mc_parameter_new(&m->module, "gate", MC_SHAPE(DIM), mc_init_normal(1, 0.02f));
    m->blocks = mc_block_list_new(
        &m->module, "blocks", BLOCKS, my_block_new, my_block_forward,
        &(mc_block_options){.zero_level = MC_ZERO_3, .recompute = MC_RECOMPUTE_FULL});
    m->head = mc_linear_add(&m->module, "head", DIM, 2, NULL);
    return m;
}

/* x: (rows, DIM) to logits (rows, 2). Every block gets `scale` (DIM) as its extra input. */
static mc_tensor *my_model_forward(mc_tape *t, my_model *m, mc_tensor *x)
{
    float third[DIM];
    for (int k = 0; k < DIM; k++) third[k] = 1.0f / BLOCKS;
    mc_tensor *scale = mc_tape_input(t, MC_F32, MC_SHAPE(DIM), third, false);
    x = mc_block_list_forward(t, m->blocks, mc_mul(t, x, mc_parameter_tensor(t, m->gate)),
                              (mc_tensor *[]){scale});
    return mc_linear_forward(t, m->head, x);
}

/* ---- data: random numbers, and whether the first two have the same sign ---------------------- */

static float next_random(uint64_t *state) /* in [-1, 1) */
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

static void fill(uint64_t *state, float x[ROWS][DIM], int32_t label[ROWS])
{
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < DIM; k++) x[i][k] = next_random(state);
        label[i] = (x[i][0] > 0) == (x[i][1] > 0);
    }
}

/* ---- training and saving --------------------------------------------------------------------- */

static void train(mc_context *ctx, my_model *m)
{
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.weight_decay = 1e-2f});
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(adam, &m->module);
    mc_optim_manager_add(optim, adam, mc_cosine_new(ctx, 5e-3, 20, STEPS));

    uint64_t state = 1;
    float x[ROWS][DIM];
    int32_t label[ROWS];
    for (int step = 1; step <= STEPS && !mc_failed(ctx); step++) {
        fill(&state, x, label);
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *inputs = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, DIM), x, false);
        mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(ROWS), label, false);
        mc_tensor *loss = mc_cross_entropy(t, my_model_forward(t, m, inputs), labels, NULL);
        mc_optim_manager_backward(optim, t, loss);
        mc_optim_manager_clip_grad_norm(optim, 1.0f);
        mc_optim_manager_step(optim);
        if (step % 50 == 0)
            mc_print_rank(ctx, 0, "step %3d | loss %.4f\n", step, (double)mc_mean_loss(ctx, loss));
        mc_tape_end(t);
    }
}

static void evaluate(mc_context *ctx, my_model *m)
{
    uint64_t state = 2; /* rows that training has not seen */
    float x[ROWS][DIM];
    int32_t label[ROWS];
    mc_accuracy acc = {0};
    for (int batch = 0; batch < 16; batch++) {
        fill(&state, x, label);
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *inputs = mc_tape_input(t, MC_F32, MC_SHAPE(ROWS, DIM), x, false);
        mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(ROWS), label, false);
        mc_accuracy_add(&acc, mc_argmax(t, my_model_forward(t, m, inputs)), labels);
        mc_tape_end(t);
    }
    mc_print_rank(ctx, 0, "accuracy %.2f %%\n", 100 * mc_accuracy_gather(ctx, &acc));
}

/* Writes every parameter, by name and in order, as safetensors. */
static void save(mc_context *ctx, my_model *m, const char *path)
{
    enum { MOST = 32 };
    mc_safetensors_spec specs[MOST];
    mc_shape shapes[MOST];
    mc_parameter *parameters[MOST];
    size_t count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; count < MOST && (p = mc_module_next_parameter(&m->module, &it));
         count++) {
        parameters[count] = p;
        shapes[count] = mc_parameter_shape(p);
        specs[count] = (mc_safetensors_spec){.name = mc_parameter_name(p),
                                             .dtype = MC_F32,
                                             .ndim = shapes[count].ndim,
                                             .shape = shapes[count].dim};
    }
    mc_safetensors_writer *file = mc_safetensors_writer_new(ctx, path, specs, count, NULL, 0);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = (size_t)mc_shape_count(shapes[i]) * sizeof(float);
        float *values = malloc(bytes);
        if (values && mc_parameter_read(parameters[i], values) == MC_OK)
            mc_safetensors_write(file, values, bytes);
        free(values);
    }
    mc_safetensors_writer_commit(file); /* fails if a parameter is missing */
    mc_safetensors_writer_free(file);
}

int main(int argc, char **argv)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 42});
    my_model *m = my_model_new(ctx);
    if (!mc_failed(ctx)) {
        train(ctx, m);
        evaluate(ctx, m);
        if (argc > 1) save(ctx, m, argv[1]);
    }
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
