/* Pretraining steps of GPT-2 on random tokens: milliseconds, tokens a second and memory.
 *
 *     bench/gpt2_step [CONFIG [BATCH [LENGTH [STEPS [DEVICE [DTYPE [GRADIENTS [RECIPE]]]]]]]]
 *     bench/gpt2_step gpt2-base 64 1024 50 cuda bf16
 *     bench/gpt2_step gpt2-xl 16 1024 50 cuda bf16 param fp8
 *
 * GRADIENTS: f32, or param for blocks that write them in DTYPE (MC_GRAD_PARAMETER). RECIPE: fp8, or
 * fp8-current for scales of the tensors themselves (core/nn/recipe.h).
 *
 * Everything of a step is done: upload of new tokens, forward, loss, backward, norm and clipping,
 * AdamW, and the loss of the step before is read. Steps are timed on the host from report to
 * report; the result has the median and the mean without the first five. */
#include "bench/bench.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "core/device/device_internal.h"

typedef struct run {
    mc_model *gpt2;
    mc_optim_manager *optim;
    mc_tensor *ids, *labels;
} run;

/* Seconds since the process began, most of which went into loading libraries; 0 where unknown. */
static double age(void)
{
    char line[1024] = "";
    struct timespec t;
    FILE *file = fopen("/proc/self/stat", "r");
    if (!file) return 0;
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    const char *at = strrchr(line, ')'); /* after it are the third field and those after */
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    if (!read || !at) return 0;
    clock_gettime(CLOCK_BOOTTIME, &t);
    double began = strtod(at, NULL) / (double)sysconf(_SC_CLK_TCK);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - began;
}

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_output out = mc_model_forward(t, r->gpt2, &(mc_model_input){.ids = r->ids});
    mc_tensor *loss = mc_model_loss(t, r->gpt2, out.last_hidden, r->labels);
    mc_optim_manager_backward(r->optim, t, loss);
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

/* Tokens that a model can learn something of: a noisy walk over a small vocabulary. */
static void fill(int32_t *ids, int32_t *labels, int64_t count)
{
    static uint64_t state = 1;
    int32_t token = 0;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = token;
        bool follows = (state >> 33) % 4;
        token = follows ? (token * 7 + 3) % 50257 : (int32_t)((state >> 35) % 50257);
        labels[i] = token;
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The model, its optimizer and room for a batch. Errors are the context's. */
static run make_run(mc_context *ctx, const char *name, const mc_load_options *load, int64_t batch,
                    int64_t length)
{
    run r = {0};
    mc_gpt2_config config;
    if (!mc_gpt2_config_named(ctx, name, &config)) {
        config.dropout = config.embedding_dropout = config.attention_dropout = 0;
        r.gpt2 = mc_gpt2_new(ctx, &config, NULL, load);
    }
    mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 3e-4f, .weight_decay = 0.1f});
    mc_optimizer_add(adam, mc_model_module(r.gpt2));
    r.optim = mc_optim_manager_new(
        ctx, &(mc_optim_manager_options){.max_grad_norm = 1,
                                         .loss_scale = load->dtype == MC_F16 ? 1024 : 0});
    mc_optim_manager_add(r.optim, adam, NULL);
    r.ids = mc_tensor_new(ctx, MC_I32, MC_SHAPE(batch, length));
    r.labels = mc_tensor_new(ctx, MC_I32, MC_SHAPE(batch * length));
    return r;
}

int main(int argc, char **argv)
{
    enum { FIRST = 5 }; /* not counted */
    const char *name = argc > 1 ? argv[1] : "gpt2-base";
    int64_t batch = argc > 2 ? atoi(argv[2]) : 4, length = argc > 3 ? atoi(argv[3]) : 64;
    int steps = argc > 4 ? atoi(argv[4]) : 10;
    if (steps < FIRST + 2) steps = FIRST + 2;
    const char *device = argc > 5 ? argv[5] : "cpu", *dtype = argc > 6 ? argv[6] : "f32";
    mc_load_options load = {.dtype = !strcmp(dtype, "bf16")  ? MC_BF16
                                     : !strcmp(dtype, "f16") ? MC_F16
                                                             : MC_F32};
    bool rounded = argc > 7 && !strcmp(argv[7], "param");
    if (argc > 8 && !strncmp(argv[8], "fp8", 3)) load.recipe.fp8 = MC_FP8_ALL;
    if (argc > 8 && !strcmp(argv[8], "fp8-current")) load.recipe.scaling = MC_FP8_CURRENT;
    double start = now() - age();
    mc_context *ctx = mc_init_distributed(&(mc_init_options){
        .seed = 42, .device = device, .grad_dtype = rounded ? MC_GRAD_PARAMETER : MC_GRAD_F32});
    double opened = now();
    run r = make_run(ctx, name, &load, batch, length);
    int64_t tokens = batch * length;
    int32_t *ids = malloc((size_t)tokens * sizeof *ids),
            *labels = malloc((size_t)tokens * sizeof *labels);
    double made = now(), last = made, sum = 0, *seconds = malloc((size_t)steps * sizeof *seconds);
    for (int i = 0; i < steps && !mc_failed(ctx); i++) {
        fill(ids, labels, tokens);
        mc_tensor_write(r.ids, ids, (size_t)tokens * sizeof *ids);
        mc_tensor_write(r.labels, labels, (size_t)tokens * sizeof *labels);
        mc_step_run(ctx, 1, step, &r);
        mc_step_report report;
        bool told = mc_optim_manager_report(r.optim, i > 0, &report);
        double t = now();
        if (told && (i < 8 || i % 10 == 0))
            printf("step %lld  loss %.4f  norm %.4f  %.2f ms\n", (long long)report.step,
                   report.loss, report.grad_norm, 1e3 * (t - last));
        if (i == 0)
            printf("start to the end of the first step: %.2f s (device %.2f, model %.2f)\n",
                   t - start, opened - start, made - opened);
        seconds[i] = t - last; /* of the step before, on a device that works on its own */
        if (i > FIRST) sum += seconds[i];
        last = t;
    }
    mc_step_report report;
    mc_optim_manager_report(r.optim, 0, &report);
    if (mc_print_error(ctx, stderr)) return 1;
    int counted = steps - FIRST - 1;
    qsort(seconds + FIRST + 1, (size_t)counted, sizeof *seconds, compare);
    double median = seconds[FIRST + 1 + counted / 2], each = sum / counted;
    mc_device_memory m = ctx->device->memory;
    printf(
        "result config=%s batch=%lld length=%lld loss=%.5f ms=%.3f mean_ms=%.3f tokens_per_s=%.0f "
        "peak_mib=%zu reserved_mib=%zu system_calls=%llu waits=%llu\n",
        name, (long long)batch, (long long)length, report.loss, 1e3 * median, 1e3 * each,
        (double)tokens / median, m.peak >> 20, m.reserved >> 20, (unsigned long long)m.system_calls,
        (unsigned long long)ctx->device->waits);
    free(seconds);
    free(ids);
    free(labels);
    mc_context_free(ctx);
    return 0;
}
