/* AdamOffload over ranks: run by mpirun, they train with its state on the host (MC_OFFLOAD=always),
 * and losses, norms and parameters have to be those of Adam on one rank that has all rows. Half way
 * one of the two hands over to the other through a file.
 *
 *     mpirun -np 4 ranks_offload      every level, recompute, accumulation, part of the GPU's
 *     mpirun -np 2 ranks_offload short   one rank has too little memory
 *
 * Prints a line for each case that differs; exits with 0 if there is none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/checkpoint/optim_state.h"
#include "core/dist/comm.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/dist/ranks_test.h"

enum { STEPS = 16, ROWS = 7, LENGTH = 9, VOCABULARY = 61, MOST = 1 << 17 };

typedef struct setting {
    int level, micro;
    bool full, frozen;
    float gpu_share;
    mc_dtype dtype;
    mc_grad_dtype wire;
    bool hand_over; /* to Adam on the device, half way */
} setting;

typedef struct curve {
    double loss[STEPS], norm[STEPS];
    float final[MOST];
} curve;

static const char *state_path;
static mc_model *make_model(mc_context *ctx, const setting *s)
{
    mc_gpt2_config c = small_gpt2_config(32, 3, VOCABULARY, LENGTH);
    mc_recompute recompute = s->full ? MC_RECOMPUTE_FULL : MC_RECOMPUTE_NONE;
    mc_model *gpt2 =
        mc_gpt2_new(ctx, &c, NULL, &(mc_load_options){.dtype = s->dtype, .recompute = recompute});
    if (s->frozen) mc_module_set_trainable(mc_model_module(gpt2), "*.layers.1.*", false);
    return gpt2;
}

static mc_optim_manager *make_manager(mc_context *ctx, mc_model *gpt2, const setting *s,
                                      bool offload)
{
    mc_adam_options options = {
        .lr = 7e-3f, .weight_decay = 0.01f, .no_decay_bias_norm = true, .gpu_share = s->gpu_share};
    mc_optimizer *o = offload ? mc_adam_offload_new(ctx, &options) : mc_adam_new(ctx, &options);
    mc_optimizer_add(o, mc_model_module(gpt2));
    mc_optim_manager *optim = mc_optim_manager_new(
        ctx, &(mc_optim_manager_options){.micro_steps = s->micro, .max_grad_norm = 2});
    mc_optim_manager_add(optim, o, NULL);
    return optim;
}

/* Forward and backward over rows first, first + step, ... of a batch that all know. Their lengths
 * and how many of their labels count differ. */
static void backward(mc_context *ctx, mc_model *gpt2, mc_optim_manager *optim, int micro, int first,
                     int step)
{
    int32_t ids[ROWS * LENGTH], labels[ROWS * LENGTH], lengths[ROWS];
    int rows = 0, tokens = 0;
    uint64_t state = (uint64_t)(micro + 1) * 77777;
    for (int r = 0; r < ROWS; r++) {
        int length = 2 + below(&state, LENGTH - 1), token = below(&state, VOCABULARY);
        bool mine = r % step == first;
        if (mine) lengths[rows++] = length;
        for (int k = 0; k < length; k++) {
            int next = (token + 1 + r % 3) % VOCABULARY;
            bool counts = k + 1 < length && below(&state, ROWS + 2) > r;
            if (mine) ids[tokens] = token;
            if (mine) labels[tokens++] = counts ? next : -100;
            token = next;
        }
    }
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), ids, false),
                         .lengths = mc_tape_lengths(t, lengths, rows, 1)};
    mc_model_output out = mc_model_forward(t, gpt2, &in);
    mc_tensor *target = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), labels, false);
    mc_optim_manager_backward(optim, t, mc_model_loss(t, gpt2, out.last_hidden, target));
    mc_tape_end(t);
}

/* Goes on with another optimizer, to which the state goes through a file. */
static void hand_over(mc_context *ctx, mc_model *gpt2, const setting *s, bool offload,
                      mc_optim_manager **optim)
{
    mc_optim_manager_save(*optim, state_path);
    mc_optimizer *old = NULL;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(gpt2), &it));)
        old = p->optimizer;
    mc_optim_manager_free(*optim);
    mc_optimizer_free(old);
    *optim = make_manager(ctx, gpt2, s, offload);
    mc_optim_manager_load(*optim, state_path);
}

static bool is_on_host(mc_model *gpt2)
{
    const mc_module_root *root = mc_model_module(gpt2)->root;
    bool any = false;
    for (int i = 0; i < root->zero.bucket_count; i++) any |= root->zero.buckets[i].host != NULL;
    return any;
}

static bool train(mc_context *ctx, const setting *s, bool offload, int rank, int ranks, curve *c)
{
    mc_model *gpt2 = make_model(ctx, s);
    mc_optim_manager *optim = make_manager(ctx, gpt2, s, offload);
    float *final = c->final;
    bool right = true;
    for (int step = 0; step < STEPS && !mc_failed(ctx); step++) {
        if (s->hand_over && offload && step == STEPS / 3) hand_over(ctx, gpt2, s, false, &optim);
        if (s->hand_over && offload && step == 2 * STEPS / 3) hand_over(ctx, gpt2, s, true, &optim);
        mc_optim_manager_zero_grad_plan(optim, &(mc_step_plan){.nominal_rows = ROWS * LENGTH});
        for (int micro = 0; micro < s->micro; micro++)
            backward(ctx, gpt2, optim, micro, rank, ranks);
        mc_optim_manager_step(optim);
        bool now = offload && !(s->hand_over && step >= STEPS / 3 && step < 2 * STEPS / 3);
        right &= is_on_host(gpt2) == now;
        c->loss[step] = mc_optim_manager_mean_loss(optim);
        c->norm[step] = mc_optim_manager_grad_norm(optim);
    }
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(gpt2), &it));) {
        mc_parameter_read(p, final);
        final += mc_shape_count(mc_parameter_shape(p));
    }
    mc_optim_manager_free(optim);
    mc_model_free(gpt2);
    return right;
}

static double worst_of(const double *a, const double *b)
{
    double worst = 0;
    for (int i = 0; i < STEPS; i++) {
        double error = fabs(a[i] - b[i]) / fabs(b[i]);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static bool run_case(mc_context *ctx, mc_context *alone, const setting *s)
{
    static curve together, single;
    ctx->zero_level = s->level;
    ctx->grad_dtype = s->wire;
    bool right = train(alone, s, false, 0, 1, &single);
    right &= train(ctx, s, true, mc_rank(ctx), mc_world_size(ctx), &together);
    if (mc_print_error(alone, stdout) || mc_print_error(ctx, stdout)) return false;
    double loss = worst_of(together.loss, single.loss), norm = worst_of(together.norm, single.norm);
    double limit = s->dtype == MC_F32 ? 1e-5 : 5e-2;
    bool moved = single.loss[STEPS - 1] < 0.5 * single.loss[0];
    bool good = right && moved && loss <= limit && norm <= (s->dtype == MC_F32 ? limit : 0.2);
    if (mc_rank(ctx) == 0 || !good)
        printf("%s rank %d: level %d micro %d %s%s%s%s%s share %g: loss %.1e norm %.1e%s%s\n",
               good ? "ok" : "FAILED", mc_rank(ctx), s->level, s->micro,
               s->dtype == MC_F32 ? "f32" : "bf16", s->full ? " recomputed" : "",
               s->frozen ? " frozen" : "", s->wire ? " rounded" : "",
               s->hand_over ? " handed over" : "", (double)s->gpu_share, loss, norm,
               right ? "" : " (state lies elsewhere)", moved ? "" : " (it does not learn)");
    return good;
}

static bool run_level(mc_context *ctx, mc_context *alone, int level)
{
    bool good = true;
    for (int micro = 1; micro <= 4; micro += 3)
        for (int kind = 0; kind < 4; kind++)
            good &= run_case(ctx, alone,
                             &(setting){.level = level,
                                        .micro = micro,
                                        .full = kind == 1,
                                        .frozen = kind == 1,
                                        .gpu_share = kind == 2 ? 0.5f : 0,
                                        .hand_over = kind == 3,
                                        .dtype = MC_F32});
    setting half = {.level = level, .micro = 1, .dtype = MC_BF16};
    good &= run_case(ctx, alone, &half);
    half.wire = MC_GRAD_PARAMETER;
    return run_case(ctx, alone, &half) && good;
}

/* One rank has too little memory: all are told, before any has taken it. Ends the job. */
static bool run_short(mc_context *ctx)
{
    const setting s = {.micro = 1, .dtype = MC_F32};
    mc_model *gpt2 = make_model(ctx, &s);
    mc_optim_manager *optim = make_manager(ctx, gpt2, &s, true);
    if (mc_rank(ctx) == mc_world_size(ctx) - 1) setenv("MC_HOST_MEMORY", "1000", 1);
    mc_optim_manager_prepare(optim);
    bool good = mc_error_status(ctx) == MC_ERR_NOMEM && !is_on_host(gpt2) &&
                strstr(mc_error_message(ctx), "host memory");
    printf("%s rank %d: %s\n", good ? "told" : "FAILED", mc_rank(ctx), mc_error_message(ctx));
    return good;
}

int main(int argc, char **argv)
{
    setenv("MC_OFFLOAD", "always", 1);
    setenv("MC_OFFLOAD_CHUNK", "700", 1);
    setenv("MC_OFFLOAD_THREADS", "1", 1);
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 5, .device = ranks_device(), .comm_timeout = 60});
    mc_context *alone = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    if (mc_print_error(ctx, stderr) || mc_print_error(alone, stderr)) return 2;
    if (argc > 1 && strcmp(argv[1], "short") == 0) {
        bool told = run_short(ctx);
        mc_context_free(ctx);
        mc_context_free(alone);
        return !told;
    }
    char path[256];
    const char *folder = getenv("TMPDIR"), *port = getenv("MC_MASTER_PORT");
    snprintf(path, sizeof path, "%s/mc-ranks-offload-%s-%d", folder ? folder : P_tmpdir,
             port ? port : "0", mc_world_size(ctx));
    state_path = path;
    bool good = true;
    for (int level = 0; level <= 3; level++) good &= run_level(ctx, alone, level);
    if (mc_rank(ctx) == 0) unlink(path);
    mc_context_free(ctx);
    mc_context_free(alone);
    printf(good ? "" : "some cases FAILED\n");
    return !good;
}
