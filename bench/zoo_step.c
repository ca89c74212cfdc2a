/* Training steps of any family on random tokens: milliseconds, sequences and tokens a second,
 * memory.
 *
 *     bench/zoo_step FAMILY CONFIG BATCH LENGTH [OPTION=VALUE...]
 *     bench/zoo_step t5 t5-base 32 512 target=128 device=cuda dtype=bf16 dropout=0.1
 *     bench/zoo_step t5 t5-base 32 512 target=128 device=cuda dtype=bf16 varied=1
 *     bench/zoo_step gptj gptj-6b 4 1024 device=cuda dtype=bf16 grads=param recompute=selective
 *     bench/zoo_step gptj gptj-6b 4 1024 device=cuda dtype=bf16 lora=8 targets=q_proj,v_proj
 *     bench/zoo_step cpm1 cpm1-large 8 512 device=cuda dtype=bf16 marks=1
 *     bench/zoo_step modernbert modernbert-base 32 512 least=64 device=cuda dtype=bf16
 *
 * Options: target (tokens of an encoder-decoder's targets, 128), steps (20), device (cpu), dtype
 * (f32), dropout (0), recompute (none, selective, full), grads (f32, param), varied=1 (lengths
 * uniform in LENGTH/4 .. LENGTH, and the same share of targets, packed), least (0; not for an
 * encoder-decoder: BATCH * LENGTH tokens hold packed sequences of `least` to LENGTH tokens each,
 * and tokens a second count theirs alone), marks=1 (CPM-1's context: the first half of each
 * sequence), clip (1; 0: none), lora (rank of LoRA's factors, 0: none; alpha is twice that),
 * targets (of LoRA, with commas between; those of the family), base (float, int8, fp8: of the
 * frozen layers, with lora), fp8 (none, all; with base=fp8 products of bytes), phases=1
 * (milliseconds of forward, backward and update as well: each is waited for, and no step recorded).
 *
 * Everything of a step is done: upload of new tokens, forward, the language model's loss, backward,
 * norm and clipping, AdamW, and the loss of the step before is read. Steps are timed on the host
 * from report to report; the result has the median without the first steps. Start it under mpirun
 * or torchrun for several ranks (zero=0..3). */
#include "bench/bench.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 6, ROUND_TO = 1024 };

enum { FORWARD, BACKWARD, UPDATE };

typedef struct run {
    mc_context *ctx;
    mc_model *model;
    mc_optim_manager *optim;
    int batch, length, target, steps;
    bool varied, marked;
    double *phase[UPDATE + 1]; /* milliseconds of each step, NULL unless they are timed apart */
    double last;               /* when the phase before ended */
    int at;                    /* the step */
    mc_tensor *ids, *decoder_ids, *labels, *marks;
    /* All rows of an encoder, since a recorded step can't look for those that have labels; NULL of
     * other models, and where their number varies. */
    mc_tensor *rows;
    mc_lengths *lengths, *decoder_lengths; /* NULL unless varied or packed */
    packing packed;                        /* most 0: not packed */
    int32_t *host, *host_lengths;
} run;

static int one_of(const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(text, names[i]) == 0) return i;
    return 0;
}

/* Ends a phase of the step: waits for what was launched before `of` is read. */
static void end_phase(run *r, int phase, const mc_tensor *of)
{
    if (!r->phase[phase]) return;
    float value[2];
    mc_tensor_read_f32(r->ctx, of, value, mc_tensor_count(of));
    double t = now();
    r->phase[phase][r->at] = 1e3 * (t - r->last);
    r->last = t;
}

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    r->last = now();
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = {.ids = r->ids,
                         .lengths = r->lengths,
                         .decoder_ids = r->decoder_ids,
                         .decoder_lengths = r->decoder_lengths,
                         .marks = r->marks};
    mc_model_output out = mc_model_forward(t, r->model, &in);
    mc_tensor *loss = r->rows
                          ? mc_model_loss_of_rows(t, r->model, out.last_hidden, r->rows, r->labels)
                          : mc_model_loss(t, r->model, out.last_hidden, r->labels);
    end_phase(r, FORWARD, loss);
    mc_optim_manager_backward(r->optim, t, loss);
    end_phase(r, BACKWARD, loss);
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

static void fill(run *r, mc_tensor *x, int64_t count)
{
    int64_t vocab = mc_model_get_shape(r->model).vocab_size;
    for (int64_t i = 0; i < count; i++) r->host[i] = (int32_t)(rand() % (vocab - 1));
    mc_tensor_write(x, r->host, (size_t)count * sizeof *r->host);
}

/* New lengths of one stack; their capacity, rounded up. */
static int64_t vary(run *r, mc_lengths *lengths, int longest)
{
    int64_t tokens = 0;
    int least = longest / 4;
    for (int i = 0; i < r->batch; i++) {
        r->host_lengths[i] = least + rand() % (longest - least + 1);
        tokens += r->host_lengths[i];
    }
    int64_t capacity = (tokens + ROUND_TO - 1) / ROUND_TO * ROUND_TO;
    mc_lengths_write(lengths, r->host_lengths, r->batch, capacity, longest);
    return capacity;
}

/* The next batch; gives the key of its step. */
static uint64_t next_batch(run *r)
{
    int64_t tokens = (int64_t)r->batch * r->length, targets = (int64_t)r->batch * r->target;
    const packing *p = &r->packed;
    if (p->most) {
        packing_draw(&r->packed);
        mc_lengths_write(r->lengths, p->length, p->count, p->room, p->longest);
    }
    if (r->varied) tokens = vary(r, r->lengths, r->length);
    if (r->varied && r->decoder_ids) targets = vary(r, r->decoder_lengths, r->target);
    fill(r, r->ids, tokens);
    if (r->decoder_ids) fill(r, r->decoder_ids, targets);
    fill(r, r->labels, r->decoder_ids ? targets : tokens);
    return (uint64_t)(tokens << 32 | targets);
}

static void make_inputs(run *r)
{
    bool two = mc_model_get_shape(r->model).kind == MC_MODEL_ENCODER_DECODER;
    int64_t tokens = (int64_t)r->batch * r->length, targets = (int64_t)r->batch * r->target;
    int64_t room = tokens + ROUND_TO, target_room = targets + ROUND_TO;
    r->host = calloc((size_t)(room > target_room ? room : target_room), sizeof *r->host);
    r->host_lengths = calloc((size_t)r->batch, sizeof *r->host_lengths);
    if (r->varied) {
        r->ids = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(room));
        r->lengths = mc_lengths_new(r->ctx, r->batch, room);
    } else if (r->packed.most) {
        r->ids = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(tokens));
        r->lengths = mc_lengths_new(r->ctx, r->packed.most, tokens);
    } else {
        r->ids = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(r->batch, r->length));
    }
    if (two && r->varied) {
        r->decoder_ids = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(target_room));
        r->decoder_lengths = mc_lengths_new(r->ctx, r->batch, target_room);
    } else if (two) {
        r->decoder_ids = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(r->batch, r->target));
    }
    int64_t labels = two ? targets : tokens;
    /* with lengths as many labels as the capacity of the batch are read */
    r->labels = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(r->varied ? labels + ROUND_TO : labels));
    if (mc_model_get_shape(r->model).kind == MC_MODEL_ENCODER && !r->varied) {
        r->rows = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(labels));
        for (int64_t i = 0; i < labels; i++) r->host[i] = (int32_t)i;
        mc_tensor_write(r->rows, r->host, (size_t)labels * sizeof *r->host);
    }
    if (!r->marked) return;
    r->marks = mc_tensor_new(r->ctx, MC_I32, MC_SHAPE(tokens));
    for (int64_t i = 0; i < tokens; i++) r->host[i] = i % r->length < r->length / 2;
    mc_tensor_write(r->marks, r->host, (size_t)tokens * sizeof *r->host);
}

enum { TARGETS = 16 };

/* LoRA by the options lora and targets; false: none. */
static bool read_lora(int argc, char **argv, mc_lora_options *out)
{
    static char text[256];
    static const char *names[TARGETS + 1];
    int count = 0;
    *out = (mc_lora_options){.rank = atoi(option(argc, argv, "lora", "0"))};
    out->alpha = 2 * (float)out->rank;
    snprintf(text, sizeof text, "%s", option(argc, argv, "targets", ""));
    for (char *name = strtok(text, ","); name && count < TARGETS; name = strtok(NULL, ","))
        names[count++] = name;
    if (count) out->targets = names;
    return out->rank > 0;
}

static void make(run *r, int argc, char **argv)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};
    static const mc_dtype values[] = {MC_F32, MC_F16, MC_BF16};
    static const char *const fp8_names[] = {"none", "all", NULL};
    static const mc_fp8_choice choices[] = {MC_FP8_NONE, MC_FP8_ALL};
    static const char *const recomputes[] = {"none", "selective", "full", NULL};
    static const mc_recompute kinds[] = {MC_RECOMPUTE_NONE, MC_RECOMPUTE_SELECTIVE,
                                         MC_RECOMPUTE_FULL};
    bool rounded = strcmp(option(argc, argv, "grads", "f32"), "param") == 0;
    mc_load_options load = {
        .dtype = values[one_of(option(argc, argv, "dtype", "f32"), dtypes)],
        .recompute = kinds[one_of(option(argc, argv, "recompute", "none"), recomputes)],
        .recipe.fp8 = choices[one_of(option(argc, argv, "fp8", "none"), fp8_names)]};
    mc_lora_options lora;
    if (read_lora(argc, argv, &lora)) load.lora = &lora;
    r->ctx = mc_init_distributed(&(mc_init_options){
        .seed = 42,
        .device = option(argc, argv, "device", "cpu"),
        .zero_level = (mc_zero_level)(MC_ZERO_0 + atoi(option(argc, argv, "zero", "0"))),
        .grad_dtype = rounded ? MC_GRAD_PARAMETER : MC_GRAD_F32});
    static const char *const formats[] = {"float", "int8", "fp8", NULL};
    int base = one_of(option(argc, argv, "base", "float"), formats);
    r->model = mc_model_new(r->ctx, argv[1], argv[2], &(mc_model_heads){.lm = true}, &load);
    if (base) mc_model_quantize_base(r->model, (mc_weight_format)base);
    mc_model_set_dropout(r->model, (float)atof(option(argc, argv, "dropout", "0")));
    mc_optimizer *adam =
        mc_adam_new(r->ctx, &(mc_adam_options){.lr = 1e-4f, .weight_decay = 0.01f});
    mc_optimizer_add(adam, mc_model_module(r->model));
    r->optim = mc_optim_manager_new(
        r->ctx,
        &(mc_optim_manager_options){.max_grad_norm = (float)atof(option(argc, argv, "clip", "1")),
                                    .loss_scale = load.dtype == MC_F16 ? 1024 : 0});
    mc_optim_manager_add(r->optim, adam, NULL);
    make_inputs(r);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median without the first steps; sorts the values. */
static double median_of(double *values, int steps)
{
    qsort(values + FIRST, (size_t)steps, sizeof *values, compare);
    return values[FIRST + steps / 2];
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr,
                "usage: %s FAMILY CONFIG BATCH LENGTH [device=cpu|cuda|cuda:N] [OPTION=VALUE...]\n"
                "on the CPU unless a device is given; all options: see bench/zoo_step.c\n",
                argv[0]);
        return 2;
    }
    run r = {.batch = atoi(argv[3]),
             .length = atoi(argv[4]),
             .target = atoi(option(argc, argv, "target", "128")),
             .steps = atoi(option(argc, argv, "steps", "20")),
             .varied = atoi(option(argc, argv, "varied", "0")),
             .marked = atoi(option(argc, argv, "marks", "0"))};
    r.packed =
        packing_new(atoi(option(argc, argv, "least", "0")), r.length, (int64_t)r.batch * r.length);
    int total = r.steps + FIRST;
    make(&r, argc, argv);
    double *seconds = calloc((size_t)total, sizeof *seconds), last = now();
    mc_step_report report = {0};
    bool apart = atoi(option(argc, argv, "phases", "0"));
    for (int i = 0; apart && i <= UPDATE; i++) r.phase[i] = calloc((size_t)total, sizeof(double));
    for (int i = 0; i < total && !mc_failed(r.ctx); i++) {
        r.at = i;
        uint64_t key = next_batch(&r);
        if (apart)
            step(r.ctx, &r);
        else
            mc_step_run(r.ctx, key, step, &r);
        mc_optim_manager_report(r.optim, !apart && i > 0, &report);
        double t = now();
        if (apart) r.phase[UPDATE][i] = 1e3 * (t - r.last);
        seconds[i] = t - last; /* of the step before, on a device that works on its own */
        last = t;
    }
    mc_optim_manager_report(r.optim, 0, &report);
    if (mc_print_error(r.ctx, stderr)) return 1;
    if (apart)
        mc_print_rank(r.ctx, 0, "phases forward_ms=%.3f backward_ms=%.3f update_ms=%.3f\n",
                      median_of(r.phase[FORWARD], r.steps), median_of(r.phase[BACKWARD], r.steps),
                      median_of(r.phase[UPDATE], r.steps));
    double median = median_of(seconds, r.steps), ranks = mc_data_size(r.ctx);
    double sequences = r.batch, tokens = (double)r.batch * r.length;
    if (r.packed.most) sequences = (double)r.packed.sequences / total;
    if (r.packed.most) tokens = (double)r.packed.tokens / total;
    mc_print_rank(
        r.ctx, 0,
        "result family=%s config=%s device=%s batch=%d length=%d loss=%.5f norm=%.4f ms=%.3f "
        "sequences_per_s=%.1f tokens_per_s=%.0f peak_gib=%.2f ranks=%g\n",
        argv[1], argv[2], option(argc, argv, "device", "cpu"), r.batch, r.length,
        (double)report.loss, (double)report.grad_norm, 1e3 * median, ranks * sequences / median,
        ranks * tokens / median, (double)mc_memory(r.ctx).peak / (1 << 30), ranks);
    free(seconds);
    for (int i = 0; i <= UPDATE; i++) free(r.phase[i]);
    free(r.host);
    free(r.host_lengths);
    free(r.packed.length);
    mc_context_free(r.ctx);
    return 0;
}
