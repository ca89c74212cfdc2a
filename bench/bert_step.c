/* Training steps of a BERT with a classifier (forward, backward, clipping, AdamW, dropout 0.1) on
 * random tokens.
 *
 *     bench/bert_step [BATCH [LENGTH [STEPS [DEVICE [DTYPE [base|large]]]]]]
 *     bench/bert_step 8 128 10                      on the CPU in f32
 *     bench/bert_step 64 512 100 cuda bf16 large
 *
 * On the CPU all sequences have LENGTH tokens; elsewhere lengths are uniform from a quarter of
 * it to all of it, other ones in each step; padding is not computed, but for what rounds the
 * tokens of a step up to a multiple of 512, and steps are recorded (MC_CUDA_GRAPHS=0: are not).
 * The last line is JSON: the median step in milliseconds, sequences a second and the peak of
 * memory in MiB (of the process on the CPU, of the device elsewhere). bench/bert_step.py runs it
 * beside PyTorch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "bench/bench.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>

enum { MOST_STEPS = 1000, FIRST = 40, ROUND_TO = 512 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct run {
    mc_context *ctx;
    mc_model *bert;
    mc_optim_manager *optim;
    int batch, length;
    bool on_cpu;
    int32_t *host, *length_of; /* ids and lengths of the next batch */
    /* where the steps find them */
    mc_tensor *ids, *labels;
    mc_lengths *lengths;
} run;

/* The tokens of the next batch, packed one sequence after the other. Returns their capacity. */
static int64_t fill(run *r)
{
    int least = r->length / 4 > 0 ? r->length / 4 : 1;
    int64_t tokens = 0, round_to = r->on_cpu ? 1 : ROUND_TO;
    for (int i = 0; i < r->batch; i++) {
        r->length_of[i] = r->on_cpu ? r->length : least + rand() % (r->length - least + 1);
        tokens += r->length_of[i];
    }
    int64_t capacity = (tokens + round_to - 1) / round_to * round_to;
    for (int64_t i = 0; i < capacity; i++) r->host[i] = rand() % 30000;
    mc_tensor_write(r->ids, r->host, (size_t)capacity * sizeof *r->host);
    mc_lengths_write(r->lengths, r->length_of, r->batch, capacity, r->length);
    return capacity;
}

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = {.ids = r->ids, .lengths = r->lengths};
    mc_model_output out = mc_model_forward(t, r->bert, &in);
    mc_tensor *logits = mc_model_classify(t, r->bert, &out);
    mc_optim_manager_backward(r->optim, t, mc_cross_entropy(t, logits, r->labels, NULL));
    mc_optim_manager_step(r->optim);
    mc_tape_end(t);
}

/* The model and what trains it. False after an error. */
static bool make(run *r, int argc, char **argv)
{
    const char *device = argc > 4 ? argv[4] : "cpu", *dtype = argc > 5 ? argv[5] : "f32";
    mc_load_options load = {.dtype = !strcmp(dtype, "bf16")  ? MC_BF16
                                     : !strcmp(dtype, "f16") ? MC_F16
                                                             : MC_F32};
    mc_bert_config config = mc_bert_config_default();
    if (argc > 6 && !strcmp(argv[6], "large")) {
        config.dim = 1024;
        config.dim_ff = 4096;
        config.layers = 24;
        config.heads = 16;
    }
    r->on_cpu = !strcmp(device, "cpu");
    r->ctx = mc_init_distributed(&(mc_init_options){.device = device});
    r->bert = mc_bert_new(r->ctx, &config, &(mc_model_heads){.pooler = true, .labels = 2}, &load);
    mc_optimizer *adam =
        mc_adam_new(r->ctx, &(mc_adam_options){.lr = 1e-5f, .weight_decay = 0.01f});
    r->optim = mc_optim_manager_new(
        r->ctx, &(mc_optim_manager_options){.max_grad_norm = 1,
                                            .loss_scale = load.dtype == MC_F16 ? 1024 : 0});
    mc_optimizer_add(adam, mc_model_module(r->bert));
    mc_optim_manager_add(r->optim, adam, NULL);
    int64_t room = (int64_t)r->batch * r->length + ROUND_TO;
    r->ids = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(room));
    r->labels = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(r->batch));
    r->lengths = mc_lengths_new(r->ctx, r->batch, room);
    r->host = calloc((size_t)room, sizeof *r->host);
    r->length_of = calloc((size_t)r->batch, sizeof *r->length_of);
    return !mc_failed(r->ctx) && r->host && r->length_of;
}

static double peak_mib(const run *r)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return r->on_cpu ? (double)usage.ru_maxrss / 1024 : (double)(mc_memory(r->ctx).peak >> 20);
}

int main(int argc, char **argv)
{
    run r = {.batch = argc > 1 ? atoi(argv[1]) : 8, .length = argc > 2 ? atoi(argv[2]) : 128};
    int steps = argc > 3 ? atoi(argv[3]) : 10;
    if (steps > MOST_STEPS) steps = MOST_STEPS;
    if (r.batch < 1 || r.length < 1 || steps < 1) return 2;
    if (!make(&r, argc, argv)) return mc_print_error(r.ctx, stderr);
    double ms[MOST_STEPS], last = now();
    for (int i = r.on_cpu ? -2 : -FIRST; i < steps && !mc_failed(r.ctx); i++) {
        mc_step_report report;
        mc_step_run(r.ctx, (uint64_t)fill(&r), step, &r);
        /* elsewhere the step before: this one runs while the next is prepared */
        mc_optim_manager_report(r.optim, !r.on_cpu, &report);
        double time = now();
        if (i >= 0) ms[i] = 1e3 * (time - last);
        last = time;
    }
    if (mc_failed(r.ctx)) return mc_print_error(r.ctx, stderr);
    qsort(ms, (size_t)steps, sizeof *ms, compare);
    double median = ms[steps / 2];
    printf("{\"ms\": %.3f, \"sequences_per_s\": %.1f, \"peak_mib\": %.0f}\n", median,
           1e3 * r.batch / median, peak_mib(&r));
    free(r.host);
    free(r.length_of);
    mc_context_free(r.ctx);
    return 0;
}
