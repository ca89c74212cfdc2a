/* 2. A module of your own: parameters, a list of blocks, a forward function, and its checkpoint.
 *
 * Shows how a model that the library does not know is written: a struct that begins with mc_module,
 * parameters declared by name and shape, one of them with initial values of your own, and blocks
 * with a further input, which the list recomputes, lays out in flat buckets and, over several
 * ranks, shards. It learns to tell whether the first two of its inputs have the same sign, which no
 * linear model can.
 *
 *     ./custom_module [--device cpu|cuda] [--zero-level 0|1|2|3] [OUTPUT.safetensors]
 *     mpirun -np 4 ./custom_module --zero-level 3
 *
 * The losses are the same on any number of ranks and at every level: a step's rows are dealt out to
 * the ranks, and the loss is the mean over all of them. With OUTPUT the trained parameters are
 * written to that file. Takes seconds. */
#include <modelcenter.h>
#include <modelcenter/more.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 16, BLOCKS = 3, ROWS = 64 /* of all ranks */, STEPS = 300 };

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

static mc_tensor *my_block_forward(mc_tape *t, void *block, mc_tensor *x, const mc_call *call)
{
    my_block *b = block; /* x: (tokens, dim) */
    mc_tensor *h = mc_gelu(t, mc_linear_forward(t, b->up, mc_layernorm_forward(t, b->norm, x)));
    return mc_add(t, x, mc_mul(t, call->extra[0], mc_linear_forward(t, b->down, h)));
}

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct my_model {
    mc_module module;
    mc_parameter *gate, *mix;
    mc_block_list *blocks;
    mc_linear *head;
} my_model;

/* Initial values of our own: the orthogonal matrix of a cosine transform. Elements first .. first +
 * count are asked for, on each rank those it holds, so they may depend on their number alone (and
 * on `seed`, which is the parameter's). */
static void cosines(void *user, uint64_t seed, int64_t first, int64_t count, float *out)
{
    const double pi = 3.14159265358979323846;
    (void)user, (void)seed;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / DIM, column = (first + i) % DIM;
        double length = row ? sqrt(2.0 / DIM) : sqrt(1.0 / DIM);
        out[i] = (float)(length * cos(pi * ((double)column + 0.5) * (double)row / DIM));
    }
}

static my_model *my_model_new(mc_context *ctx)
{
    my_model *m = mc_module_new(ctx, "", sizeof *m, NULL);
    if (!m) return NULL;
    m->gate = mc_parameter_new(&m->module, "gate", MC_SHAPE(DIM), mc_init_normal(1, 0.02f));
    m->mix = mc_parameter_new(&m->module, "mix", MC_SHAPE(DIM, DIM), mc_init_custom(cosines, NULL));
    m->blocks = mc_block_list_new(&m->module, "blocks", BLOCKS, my_block_new, my_block_forward,
                                  &(mc_block_options){.recompute = MC_RECOMPUTE_FULL});
    m->head = mc_linear_add(&m->module, "head", DIM, 2, NULL);
    return m;
}

/* x: (rows, DIM) to logits (rows, 2). Every block gets `scale` (DIM) as its extra input. */
static mc_tensor *my_model_forward(mc_tape *t, my_model *m, mc_tensor *x)
{
    float third[DIM];
    for (int k = 0; k < DIM; k++) third[k] = 1.0f / BLOCKS;
    mc_tensor *scale = mc_tape_input(t, MC_F32, MC_SHAPE(DIM), third, false);
    x = mc_mul(t, x, mc_parameter_tensor(t, m->gate));
    x = mc_fused_linear(t, x, mc_parameter_tensor(t, m->mix), NULL, MC_ACTIVATION_NONE);
    x = mc_block_list_forward(t, m->blocks, x, &(mc_call){.extra = {scale}});
    return mc_linear_forward(t, m->head, x);
}

/* ---- data: random numbers, and whether the first two have the same sign ---------------------- */

static float next_random(uint64_t *state) /* in [-1, 1) */
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

typedef struct batch {
    float x[ROWS][DIM];
    int32_t label[ROWS];
    int rows; /* on this rank */
} batch;

/* The next ROWS rows, of which each rank keeps every mc_world_size-th. */
static void next_batch(mc_context *ctx, uint64_t *state, batch *b)
{
    b->rows = 0;
    for (int i = 0; i < ROWS; i++) {
        float x[DIM];
        for (int k = 0; k < DIM; k++) x[k] = next_random(state);
        if (i % mc_data_size(ctx) != mc_data_rank(ctx)) continue;
        memcpy(b->x[b->rows], x, sizeof x);
        b->label[b->rows++] = (x[0] > 0) == (x[1] > 0);
    }
}

/* ---- training --------------------------------------------------------------------- */

static void train(mc_context *ctx, my_model *m)
{
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.weight_decay = 1e-2f});
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(adam, &m->module);
    mc_optim_manager_add(optim, adam, mc_cosine_new(ctx, 5e-3, 20, STEPS));

    uint64_t state = 1;
    batch b;
    for (int step = 1; step <= STEPS && !mc_failed(ctx); step++) {
        next_batch(ctx, &state, &b);
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *inputs = mc_tape_input(t, MC_F32, MC_SHAPE(b.rows, DIM), b.x, false);
        mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(b.rows), b.label, false);
        mc_tensor *loss = mc_cross_entropy(t, my_model_forward(t, m, inputs), labels, NULL);
        mc_optim_manager_backward(optim, t, loss);
        mc_optim_manager_clip_grad_norm(optim, 1.0f);
        mc_optim_manager_step(optim);
        mc_tape_end(t);
        if (step == 1 || step % 25 == 0)
            mc_print_rank(ctx, 0, "step %3d | loss %.7f\n", step,
                          mc_optim_manager_mean_loss(optim));
    }
}

static void evaluate(mc_context *ctx, my_model *m)
{
    uint64_t state = 2; /* rows that training has not seen */
    batch b;
    mc_accuracy acc = {0};
    for (int i = 0; i < 16; i++) {
        next_batch(ctx, &state, &b);
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_tensor *inputs = mc_tape_input(t, MC_F32, MC_SHAPE(b.rows, DIM), b.x, false);
        mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(b.rows), b.label, false);
        mc_accuracy_add(&acc, mc_argmax(t, my_model_forward(t, m, inputs)), labels);
        mc_tape_end(t);
    }
    double share = mc_accuracy_gather(ctx, &acc); /* all ranks take part */
    mc_print_rank(ctx, 0, "accuracy %.2f %%\n", 100 * share);
}

int main(int argc, char **argv)
{
    mc_init_options options = {.seed = 42, .threads = MC_THREADS_SHARED};
    const char *output = NULL;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--device") == 0 && *value) {
            options.device = argv[++i];
        } else if (strcmp(argv[i], "--zero-level") == 0) {
            if (strlen(value) != 1 || *value < '0' || *value > '3')
                return fprintf(stderr, "error: --zero-level %s: expected 0 to 3\n", value), 2;
            options.zero_level = (mc_zero_level)(MC_ZERO_0 + (*argv[++i] - '0'));
        } else {
            output = argv[i];
        }
    }
    mc_context *ctx = mc_init_distributed(&options);
    my_model *m = my_model_new(ctx);
    if (!mc_failed(ctx)) {
        train(ctx, m);
        evaluate(ctx, m);
        if (output) mc_module_save(&m->module, output); /* each rank writes its share */
    }
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
