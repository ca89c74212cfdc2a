/* What a rank holds: at level 3 its share and at most three blocks, at every level what was
 * planned, and sums of gradients from their first reduction to zero_grad. Run by mpirun. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/dist/comm.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/nn/module_internal.h"
#include "tests/dist/ranks_test.h"

enum { BATCH = 3, LENGTH = 32, LAYERS = 8 };

typedef struct work {
    mc_model *gpt2;
    mc_optim_manager *optim;
    mc_tensor *ids, *labels;
} work;

static void step(mc_context *ctx, void *user)
{
    work *w = user;
    mc_optim_manager_zero_grad(w->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_output out = mc_model_forward(t, w->gpt2, &(mc_model_input){.ids = w->ids});
    mc_optim_manager_backward(w->optim, t, mc_model_loss(t, w->gpt2, out.last_hidden, w->labels));
    mc_tape_end(t);
    mc_optim_manager_step(w->optim);
}

static work make_work(mc_context *ctx, mc_recompute recompute, mc_dtype dtype, mc_fp8_choice fp8)
{
    static int32_t zeros[BATCH * LENGTH];
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = 300;
    c.dim = 96;
    c.dim_ff = 384;
    c.layers = LAYERS;
    c.heads = 4;
    c.positions = LENGTH;
    c.dropout = c.embedding_dropout = c.attention_dropout = 0;
    mc_load_options load = {.recompute = recompute, .dtype = dtype, .recipe = {.fp8 = fp8}};
    work w = {.gpt2 = mc_gpt2_new(ctx, &c, NULL, &load)};
    mc_optimizer *adam = mc_adam_new(ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(w.gpt2));
    w.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optim_manager_add(w.optim, adam, NULL);
    w.ids = mc_tensor_from(ctx, MC_I32, MC_SHAPE(BATCH, LENGTH), zeros);
    w.labels = mc_tensor_from(ctx, MC_I32, MC_SHAPE(BATCH * LENGTH), zeros);
    return w;
}

/* Elements of a block, and of what lies outside of blocks. */
static void measure(const mc_module_root *root, int64_t *block, int64_t *outside)
{
    *block = *outside = 0;
    for (int i = 0; i < root->zero.bucket_count; i++) {
        const mc_bucket *b = &root->zero.buckets[i];
        bool of_block = b->in_block;
        if (of_block && b->count > *block) *block = b->count;
        if (!of_block) *outside += b->count;
    }
}

/* Bytes of the gradients that ranks keep at levels 2 and 3: of a step of one pass in the dtype that
 * they travel in. */
static uint64_t kept_bytes(const mc_module_root *root, mc_dtype dtype)
{
    uint64_t bytes = 0;
    for (int i = 0; i < root->zero.bucket_count; i++)
        if (mc_bucket_shares_gradient(&root->zero.buckets[i]))
            bytes += (uint64_t)root->zero.buckets[i].share * mc_dtype_size(dtype);
    return bytes;
}

/* Bytes of the sums that there is memory for. */
static uint64_t claimed_bytes(const mc_module_root *root)
{
    uint64_t bytes = 0;
    for (int i = 0; i < root->zero.bucket_count; i++)
        if (root->zero.buckets[i].sum.data) bytes += mc_sum_bytes(&root->zero.buckets[i]);
    return bytes;
}

/* Of buckets that are not shared, those of the blocks' vectors. */
static uint64_t whole_bytes(const mc_module_root *root)
{
    uint64_t bytes = 0;
    for (int i = 0; i < root->zero.bucket_count; i++)
        if (!mc_bucket_shares_gradient(&root->zero.buckets[i]))
            bytes += mc_bucket_gradient_bytes(&root->zero.buckets[i]);
    return bytes;
}

/* All shares are there after a step, none after zero_grad, and at the peak, which is early in
 * backward where much is stored for it, few. */
static bool check_sums(work *w, mc_recompute recompute, mc_dtype dtype, const mc_memory_plan *plan)
{
    const mc_module_root *root = mc_model_module(w->gpt2)->root;
    uint64_t kept = kept_bytes(root, dtype), whole = whole_bytes(root),
             most = recompute == MC_RECOMPUTE_NONE ? kept / 2 : kept;
    bool good =
        claimed_bytes(root) == kept && plan->gradients >= whole && plan->gradients <= whole + most;
    mc_optim_manager_zero_grad(w->optim);
    return good && claimed_bytes(root) == 0;
}

static bool run_case(mc_context *ctx, int level, mc_recompute recompute, mc_grad_dtype grad_dtype,
                     mc_fp8_choice fp8)
{
    ctx->zero_level = level;
    ctx->grad_dtype = grad_dtype;
    mc_dtype dtype = grad_dtype == MC_GRAD_PARAMETER ? MC_BF16 : MC_F32;
    mc_context *dry = mc_plan_context_new(ctx);
    size_t before = ctx->device->memory.peak = ctx->device->memory.in_use;
    mc_memory_plan plan = {0};
    work planned = make_work(dry, recompute, dtype, fp8),
         real = make_work(ctx, recompute, dtype, fp8);
    mc_plan_run(dry, mc_model_module(planned.gpt2), step, &planned, &plan);
    for (int i = 0; i < 3; i++) step(ctx, &real);
    int64_t block = 0, outside = 0, most = 0;
    if (!mc_failed(ctx)) {
        const mc_module_root *root = mc_model_module(real.gpt2)->root;
        measure(root, &block, &outside);
        most = root->zero.most_gathered;
    }
    double peak = (double)(mc_memory(ctx).peak - before),
           error = fabs((double)plan.peak / peak - 1);
    bool ranks = mc_world_size(ctx) > 1;
    bool within = level == 3 && ranks ? most > block && most <= 3 * block + outside : most == 0;
    if (level >= 2 && ranks && !mc_failed(ctx))
        within = check_sums(&real, recompute, dtype, &plan) && within;
    bool failed = mc_print_error(ctx, stdout) || mc_print_error(dry, stdout);
    bool good = !failed && within && error < 0.02;
    printf("%s rank %d level %d recompute %d%s%s: peak %.0f, planned %.2f %% off; gathered %.2f "
           "blocks\n",
           good ? "ok" : "FAILED", mc_rank(ctx), level, (int)recompute,
           dtype == MC_BF16 ? " bf16" : "", fp8 ? " fp8" : "", peak, 100 * error,
           most > outside ? (double)(most - outside) / (double)block : 0);
    mc_context_free(dry);
    mc_optim_manager_free(real.optim);
    mc_model_free(real.gpt2);
    mc_tensor_free(real.ids);
    mc_tensor_free(real.labels);
    return good;
}

int main(void)
{
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 1, .device = ranks_device(), .comm_timeout = 60});
    bool good = true;
    for (int level = 0; level <= 3; level++)
        for (mc_recompute r = MC_RECOMPUTE_NONE; r <= MC_RECOMPUTE_FULL; r++)
            for (mc_grad_dtype d = MC_GRAD_F32; d <= MC_GRAD_PARAMETER; d++)
                good &= run_case(ctx, level, r, d, MC_FP8_NONE);
    for (mc_recompute r = MC_RECOMPUTE_NONE; r <= MC_RECOMPUTE_FULL; r++)
        good &= run_case(ctx, 3, r, MC_GRAD_PARAMETER, MC_FP8_ALL);
    mc_context_free(ctx);
    return !good;
}
