/* The same training at any number of ranks: run by mpirun, each rank also trains alone on all rows,
 * and what the ranks do together has to be the same.
 *
 *     mpirun -np 4 ranks_train        every level, recompute, accumulation, optimizer
 *
 * Prints a line for each case that differs; exits with 0 if there is none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/dist/comm.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/dist/ranks_test.h"

enum { STEPS = 20, ROWS = 11, LENGTH = 9, VOCABULARY = 61 };

typedef struct setting {
    int level, micro;
    mc_recompute recompute;
    bool sgd, muon, eight_bit;
    mc_dtype dtype;
    mc_grad_dtype wire;
    bool two;    /* optimizers, of which each has a part of every bucket */
    bool twice;  /* a step has more backward passes than were told of, gradients are measured in the
                   middle of it too, and once they are dropped */
    bool silent; /* of all passes but one nobody was told */
    bool thaw;   /* a block is thawed in the middle of a step, which lays everything out anew */
} setting;

typedef struct batch {
    int32_t ids[ROWS][LENGTH], labels[ROWS][LENGTH], lengths[ROWS];
} batch;

typedef struct curve {
    double loss[STEPS], norm[STEPS];
} curve;

/* The same for everybody: rows of unequal lengths whose labels count unequally often. */
static void make_batch(batch *b, int micro)
{
    uint64_t state = (uint64_t)(micro + 1) * 77777;
    for (int r = 0; r < ROWS; r++) {
        b->lengths[r] = 2 + below(&state, LENGTH - 1);
        int token = below(&state, VOCABULARY), stride = 1 + r % 3;
        for (int k = 0; k < LENGTH; k++) {
            b->ids[r][k] = token;
            token = (token + stride) % VOCABULARY;
            bool counts = k + 1 < b->lengths[r] && below(&state, ROWS + 2) > r;
            b->labels[r][k] = counts ? token : -100;
        }
    }
}

static mc_model *make_model(mc_context *ctx, const setting *s)
{
    mc_gpt2_config c = small_gpt2_config(32, 3, VOCABULARY, LENGTH);
    mc_model *gpt2 = mc_gpt2_new(ctx, &c, NULL,
                                 &(mc_load_options){.dtype = s->dtype, .recompute = s->recompute});
    mc_module_set_trainable(mc_model_module(gpt2), "*.layers.1.*", false);
    return gpt2;
}

/* SGD's rate is one at which training converges: where it swings, the order of sums grows into
 * differences of 1e-5 within these steps. */
static mc_optim_manager *make_manager(mc_context *ctx, mc_model *gpt2, const setting *s)
{
    mc_optimizer *o = s->sgd    ? mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.05f, .momentum = 0.9f})
                      : s->muon ? mc_muon_new(ctx, &(mc_muon_options){.lr = 1e-2f, .f32 = true})
                                : mc_adam_new(ctx, &(mc_adam_options){.lr = 1e-2f,
                                                                      .weight_decay = 0.01f,
                                                                      .no_decay_bias_norm = true,
                                                                      .eight_bit = s->eight_bit});
    int told = s->silent ? 1 : s->twice ? 2 : s->micro;
    mc_optim_manager *optim =
        mc_optim_manager_new(ctx, &(mc_optim_manager_options){.micro_steps = told});
    if (s->two) {
        mc_optimizer *biases = mc_sgd_new(ctx, &(mc_sgd_options){.lr = 0.1f});
        mc_optimizer_add_group(biases, mc_model_module(gpt2), "*.bias", NULL);
        mc_optimizer_add_group(o, mc_model_module(gpt2), "*.weight", NULL);
        mc_optim_manager_add(optim, biases, NULL);
    } else {
        mc_optimizer_add(o, mc_model_module(gpt2));
    }
    mc_optim_manager_add(optim, o, NULL);
    return optim;
}

/* Forward and backward over rows first, first + step, ... of a batch. */
static void backward(mc_context *ctx, mc_model *gpt2, mc_optim_manager *optim, const batch *b,
                     int first, int step)
{
    int32_t ids[ROWS * LENGTH], labels[ROWS * LENGTH], lengths[ROWS];
    int rows = 0, tokens = 0;
    for (int r = first; r < ROWS; r += step) {
        lengths[rows++] = b->lengths[r];
        for (int k = 0; k < b->lengths[r]; k++, tokens++) {
            ids[tokens] = b->ids[r][k];
            labels[tokens] = b->labels[r][k];
        }
    }
    mc_tape *t = mc_tape_begin(ctx);
    const mc_lengths *packed = mc_tape_lengths(t, lengths, rows, 1);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), ids, false),
                         .lengths = packed};
    mc_model_output out = mc_model_forward(t, gpt2, &in);
    mc_tensor *target = mc_tape_input(t, MC_I32, MC_SHAPE(tokens), labels, false);
    mc_optim_manager_backward(optim, t, mc_model_loss(t, gpt2, out.last_hidden, target));
    mc_tape_end(t);
}

static void train(mc_context *ctx, const setting *s, int rank, int ranks, curve *c, float *initial,
                  float *final)
{
    mc_model *gpt2 = make_model(ctx, s);
    mc_optim_manager *optim = make_manager(ctx, gpt2, s);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(gpt2), &it));) {
        mc_parameter_read(p, initial);
        initial += mc_shape_count(mc_parameter_shape(p));
    }
    const mc_step_plan plan = {.nominal_rows =
                                   (int64_t)ROWS * LENGTH}; /* ranks have unequal rows */
    bool dropped = false;
    for (int step = 0; step < STEPS && !mc_failed(ctx); step++) {
        mc_optim_manager_zero_grad_plan(optim, &plan);
        for (int micro = 0; micro < s->micro; micro++) {
            batch b;
            make_batch(&b, micro);
            backward(ctx, gpt2, optim, &b, rank, ranks);
            if (s->twice && micro == 2 && !dropped) {
                mc_optim_manager_zero_grad_plan(optim, &plan);
                dropped = true;
                micro = -1;
            }
            if (s->twice && micro == 1) mc_optim_manager_clip_grad_norm(optim, 1.0f);
            if (s->thaw && micro == 1 && step == 2)
                mc_module_set_trainable(mc_model_module(gpt2), "*.layers.1.*", true);
        }
        mc_optim_manager_clip_grad_norm(optim, 2.0f);
        mc_optim_manager_step(optim);
        c->loss[step] = mc_optim_manager_mean_loss(optim);
        c->norm[step] = mc_optim_manager_grad_norm(optim);
    }
    it = (mc_parameter_iterator){0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(gpt2), &it));) {
        mc_parameter_read(p, final);
        final += mc_shape_count(mc_parameter_shape(p));
    }
    mc_optim_manager_free(optim);
    mc_model_free(gpt2);
}

static double worst_of(const double *a, const double *b, int steps)
{
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        double error = fabs(a[i] - b[i]) / fabs(b[i]);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

/* Under sanitizers, which look for wrong accesses, a setting has two of the levels: one of those
 * that share out gradients, and one of those that don't. */
static bool is_spared(const setting *s)
{
#ifdef MC_TEST_SANITIZED
    static int asked[4];
    return (asked[s->level]++ + s->level) % 2;
#else
    (void)s;
    return false;
#endif
}

static bool run_case(mc_context *ctx, mc_context *alone, const setting *s)
{
    if (is_spared(s)) return true;
    enum { MOST = 1 << 17 };
    static float initial[2][MOST], final[2][MOST];
    curve together, single;
    ctx->zero_level = s->level;
    ctx->grad_dtype = s->wire;
    /* buckets of levels 0 and 1 travel each alone, in twos and threes, or all together */
    ctx->reduce_bytes = s->sgd ? 1 : s->two ? 60000 : s->micro > 1 ? 100000 : (size_t)64 << 20;
    memset(initial, 0, sizeof initial);
    train(alone, s, 0, 1, &single, initial[0], final[0]);
    train(ctx, s, mc_rank(ctx), mc_world_size(ctx), &together, initial[1], final[1]);
    if (mc_print_error(alone, stdout) || mc_print_error(ctx, stdout)) return false;
    /* of gradients that are rounded to bf16 the first step's norm is off by their rounding, 2^-8 at
     * most; what follows from it later grows as it likes */
    bool rounded = s->wire == MC_GRAD_PARAMETER && s->dtype != MC_F32;
    double limit = s->dtype == MC_F32 ? 1e-5 : 5e-2;
    double loss = worst_of(together.loss, single.loss, STEPS);
    double norm = worst_of(together.norm, single.norm, rounded ? 1 : STEPS);
    double norm_limit = rounded ? 1.0 / 256 : limit;
    bool same = memcmp(initial[0], initial[1], sizeof initial[0]) == 0;
    bool moved = single.loss[STEPS - 1] < 0.5 * single.loss[0];
    bool good = same && moved && loss <= limit && norm <= norm_limit;
    if (mc_rank(ctx) == 0 || !good)
        printf(
            "%s rank %d: level %d recompute %d micro %d %s %s%s%s%s%s%s: loss %.1e norm %.1e%s%s\n",
            good ? "ok" : "FAILED", mc_rank(ctx), s->level, (int)s->recompute, s->micro,
            s->sgd    ? "sgd"
            : s->muon ? "muon"
                      : "adam",
            s->dtype == MC_F32 ? "f32" : "bf16", s->wire == MC_GRAD_PARAMETER ? " rounded" : "",
            s->two ? " two optimizers" : "", s->twice ? " measured twice" : "",
            s->silent ? " not told" : "", s->thaw ? " thawed" : "", loss, norm,
            same ? "" : " (initial weights differ)", moved ? "" : " (it does not learn)");
    return good;
}

/* What ranks have summed is kept in the dtype that it travels in while a step has one pass, and
 * becomes f32 should another follow: to the bit what sums in f32 from the start give. */
static bool run_kept(mc_context *ctx, int level, int passes)
{
    enum { MOST = 1 << 17 };
    static float initial[MOST], final[2][MOST];
    setting s = {.level = level, .micro = passes, .wire = MC_GRAD_PARAMETER, .dtype = MC_BF16};
    setting told[2] = {s, s};
    told[0].silent = true;
    told[1].twice = true; /* of two passes */
    curve c[2];
    ctx->zero_level = level;
    ctx->grad_dtype = s.wire;
    memset(final, 0, sizeof final);
    for (int i = 0; i < 2; i++)
        train(ctx, &told[i], mc_rank(ctx), mc_world_size(ctx), &c[i], initial, final[i]);
    if (mc_print_error(ctx, stdout)) return false;
    bool good = memcmp(final[0], final[1], sizeof final[0]) == 0;
    if (mc_rank(ctx) == 0 || !good)
        printf("%s rank %d: level %d, %d passes, kept rounded and as f32\n", good ? "ok" : "FAILED",
               mc_rank(ctx), level, passes);
    return good;
}

/* State in 8 bits: blocks are the same whether ranks share state or not, and stay where they are
 * when a block is thawed. To the bit, of levels that sum gradients in the same order: with one pass
 * all of them, with several the first two and the others. */
static bool run_eight_bit(mc_context *ctx, mc_dtype dtype, bool thaw)
{
    enum { MOST = 1 << 17 };
    static float initial[MOST], final[4][MOST];
    bool good = true;
    curve c;
    memset(final, 0, sizeof final);
    for (int level = 0; level <= 3; level++) {
        setting s = {
            .level = level, .micro = thaw ? 2 : 1, .dtype = dtype, .thaw = thaw, .eight_bit = true};
        ctx->zero_level = level;
        ctx->grad_dtype = MC_GRAD_F32;
        train(ctx, &s, mc_rank(ctx), mc_world_size(ctx), &c, initial, final[level]);
        int like = thaw ? level / 2 * 2 : 0;
        good &= memcmp(final[like], final[level], sizeof final[0]) == 0;
    }
    good &= c.loss[STEPS - 1] < 0.5 * c.loss[0];
    if (mc_print_error(ctx, stdout)) return false;
    if (mc_rank(ctx) == 0 || !good)
        printf("%s rank %d: state in 8 bits, %s%s, at all levels\n", good ? "ok" : "FAILED",
               mc_rank(ctx), dtype == MC_F32 ? "f32" : "bf16", thaw ? ", thawed" : "");
    return good;
}

int main(void)
{
    ranks_compare_bits();
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 5, .device = ranks_device(), .comm_timeout = 60});
    mc_context *alone = mc_context_new(&(mc_init_options){.seed = 5, .device = ranks_device()});
    if (mc_print_error(ctx, stderr) || mc_print_error(alone, stderr)) return 2;
    bool good = true;
    for (int level = 0; level <= 3; level++)
        for (int full = 0; full < 2; full++)
            for (int micro = 1; micro <= 4; micro += 3)
                for (int sgd = 0; sgd < 2; sgd++)
                    good &= run_case(
                        ctx, alone,
                        &(setting){.level = level,
                                   .micro = micro,
                                   .recompute = full ? MC_RECOMPUTE_FULL : MC_RECOMPUTE_NONE,
                                   .sgd = sgd,
                                   .dtype = MC_F32});
    for (int level = 0; level <= 3; level++) {
        setting muon = {.level = level, .micro = 1, .muon = true, .dtype = MC_F32};
        good &= run_case(ctx, alone, &muon);
        muon.two = true; /* which leaves Muon matrices alone */
        good &= run_case(ctx, alone, &muon);
        good &= run_case(ctx, alone, &(setting){.level = level, .micro = 1, .dtype = MC_BF16});
        setting rounded = {.level = level, .micro = 4, .wire = MC_GRAD_PARAMETER, .dtype = MC_BF16};
        good &= run_case(ctx, alone, &rounded);
        rounded.micro = 1; /* at levels 0 and 1 blocks write them so too */
        rounded.recompute = MC_RECOMPUTE_FULL;
        good &= run_case(ctx, alone, &rounded);
        rounded.sgd = true;
        good &= run_case(ctx, alone, &rounded);
        rounded.sgd = false;
        rounded.two = true;
        good &= run_case(ctx, alone, &rounded);
        rounded.two = false;
        rounded.micro = 3;
        rounded.silent = rounded.thaw = true;
        good &= run_case(ctx, alone, &rounded);
        rounded.thaw = rounded.silent = false;
        rounded.dtype = MC_F32; /* which changes nothing */
        good &= run_case(ctx, alone, &rounded);
        good &= run_case(ctx, alone,
                         &(setting){.level = level, .micro = 1, .dtype = MC_F32, .two = true});
        setting unusual = {.level = level, .micro = 4, .dtype = MC_F32, .thaw = true};
        good &= run_case(ctx, alone, &unusual);
        unusual.twice = true;
        good &= run_case(ctx, alone, &unusual);
    }
    for (int thaw = 0; thaw < 2; thaw++) {
        good &= run_eight_bit(ctx, MC_F32, thaw);
        good &= run_eight_bit(ctx, MC_BF16, thaw);
    }
    bool several = mc_world_size(ctx) > 1; /* one rank sums nothing, and rounds only where it is
                                              told of one pass */
    for (int level = 2; several && level <= 3; level++)
        for (int passes = 1; passes <= 2; passes++) good &= run_kept(ctx, level, passes);
    mc_context_free(ctx);
    mc_context_free(alone);
    printf(good ? "" : "some cases FAILED\n");
    return !good;
}
