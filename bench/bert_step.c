/* bert_step [BATCH LENGTH STEPS]: time and memory of a BERT-base training step on the CPU in f32
 * (forward, backward, clipping, AdamW, dropout 0.1) on random tokens. Prints one line of JSON: the
 * median step in milliseconds and the peak resident memory in MiB. bench/bert_step.py runs it
 * beside PyTorch. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include "core/modelcenter.h"

enum { MOST_STEPS = 1000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct run {
    mc_context *ctx;
    mc_bert *bert;
    mc_optim_manager *optim;
    int batch, length;
} run;

static void step(run *r)
{
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(r->ctx);
    int32_t *ids = malloc((size_t)(r->batch * r->length) * sizeof *ids);
    int32_t *labels = calloc((size_t)r->batch, sizeof *labels);
    for (int i = 0; i < r->batch * r->length; i++) ids[i] = rand() % 30000;
    mc_bert_input in = {.ids = mc_tape_input(t, MC_I32, MC_SHAPE(r->batch, r->length), ids, false)};
    mc_tensor *target = mc_tape_input(t, MC_I32, MC_SHAPE(r->batch), labels, false);
    mc_tensor *logits = mc_bert_classify(t, r->bert, mc_bert_forward(t, r->bert, &in).pooled);
    mc_optim_manager_backward(r->optim, t, mc_cross_entropy(t, logits, target, NULL));
    mc_optim_manager_clip_grad_norm(r->optim, 1);
    mc_optim_manager_step(r->optim);
    mc_tape_end(t);
    free(ids);
    free(labels);
}

int main(int argc, char **argv)
{
    run r = {.batch = argc > 1 ? atoi(argv[1]) : 8, .length = argc > 2 ? atoi(argv[2]) : 128};
    int steps = argc > 3 ? atoi(argv[3]) : 10;
    if (steps > MOST_STEPS) steps = MOST_STEPS;
    mc_bert_config config = mc_bert_config_default();
    r.ctx = mc_init_distributed(NULL);
    r.bert = mc_bert_new(r.ctx, &config, (mc_bert_heads){.pooler = true, .labels = 2}, NULL);
    mc_optimizer *adam = mc_adam_new(r.ctx, &(mc_adam_options){.lr = 1e-5f, .weight_decay = 0.01f});
    r.optim = mc_optim_manager_new(r.ctx, NULL);
    mc_optimizer_add(adam, mc_bert_module(r.bert));
    mc_optim_manager_add(r.optim, adam, NULL);
    double ms[MOST_STEPS];
    for (int i = -2; i < steps; i++) {
        double start = now();
        step(&r);
        if (i >= 0) ms[i] = 1e3 * (now() - start);
    }
    if (mc_failed(r.ctx)) return mc_print_error(r.ctx, stderr);
    qsort(ms, (size_t)steps, sizeof *ms, compare);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"ms\": %.1f, \"peak_mib\": %.0f}\n", ms[steps / 2], (double)usage.ru_maxrss / 1024);
    mc_context_free(r.ctx);
    return 0;
}
