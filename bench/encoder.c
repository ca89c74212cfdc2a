/* Forward passes of an encoder alone, on random tokens: milliseconds and sequences a second.
 *
 *     bench/encoder FAMILY CONFIG BATCH LENGTH [OPTION=VALUE...]
 *     bench/encoder bert bert-base-uncased 256 128 device=cuda dtype=bf16
 *     bench/encoder modernbert modernbert-base 32 512 least=64 device=cuda dtype=bf16
 *     OMP_NUM_THREADS=1 bench/encoder bert bert-base 1 32
 *
 * CONFIG is a shape's name, a config.json or a folder; weights are random. Options: steps (50),
 * device (cpu), dtype (f32), least (0), fp8=1 (MC_FP8_STATIC, calibrated by the first passes). A
 * pass reads new ids, computes the last hidden states and the pooled output (of a family without a
 * pooler: the first token's), and leaves the latter in a tensor of the context; on a GPU it is a
 * recorded step. With `least` BATCH * LENGTH tokens hold packed sequences of `least` to LENGTH
 * tokens each, others in each pass, and tokens a second count theirs alone. Peers:
 * bench/encoder.py, of packed sequences bench/modernbert.py. */
#include "bench/bench.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 5 };

typedef struct run {
    mc_model *model;
    mc_tensor *ids, *pooled;
    mc_lengths *lengths; /* NULL: all of one length */
    packing packed;
    float *host; /* what `pooled` holds */
} run;

static void pass(mc_context *ctx, void *user)
{
    run *r = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {.ids = r->ids, .lengths = r->lengths};
    mc_model_output out = mc_model_forward(t, r->model, &in);
    mc_tensor_copy(r->pooled, out.pooled ? out.pooled : mc_first_tokens(t, out.last_hidden));
    mc_tape_end(t);
}

/* The next pass's lengths. */
static void draw_lengths(run *r)
{
    packing *p = &r->packed;
    if (!r->lengths) return;
    packing_draw(p);
    mc_lengths_write(r->lengths, p->length, p->count, p->room, p->longest);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Processor time, for machines that do other work. */
static double processor(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Seconds of a pass: `steps` of them are launched without waiting for each, as a server does. */
static double time_passes(mc_context *ctx, run *r, int steps)
{
    double start = now();
    for (int i = 0; i < steps; i++) {
        draw_lengths(r);
        mc_step_run(ctx, 1, pass, r);
    }
    mc_tensor_read_f32(ctx, r->pooled, r->host, mc_tensor_count(r->pooled)); /* waits for all */
    return (now() - start) / steps;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: encoder FAMILY CONFIG BATCH LENGTH [OPTION=VALUE...]\n");
        return 2;
    }
    int batch = atoi(argv[3]), length = atoi(argv[4]),
        steps = atoi(option(argc, argv, "steps", "50"));
    const char *dtype = option(argc, argv, "dtype", "f32");
    mc_dtype type = strcmp(dtype, "bf16") == 0  ? MC_BF16
                    : strcmp(dtype, "f16") == 0 ? MC_F16
                                                : MC_F32;
    mc_context *ctx = mc_init_distributed(
        &(mc_init_options){.seed = 1, .device = option(argc, argv, "device", "cpu")});
    int least = atoi(option(argc, argv, "least", "0"));
    bool pools = strcmp(argv[1], "modernbert") != 0;
    bool fp8 = atoi(option(argc, argv, "fp8", "0"));
    mc_recipe recipe = {.fp8 = fp8 ? MC_FP8_ALL : MC_FP8_NONE, .scaling = MC_FP8_STATIC};
    run r = {.model = mc_model_new(ctx, argv[1], argv[2], &(mc_model_heads){.pooler = pools},
                                   &(mc_load_options){.dtype = type, .recipe = recipe}),
             .packed = packing_new(least, length, (int64_t)batch * length)};
    int rows = r.packed.most ? r.packed.most : batch;
    if (r.packed.most) r.lengths = mc_lengths_new(ctx, rows, r.packed.room);
    int64_t vocab = mc_model_get_shape(r.model).vocab_size, count = (int64_t)batch * length;
    int32_t *ids = calloc((size_t)(count > 0 ? count : 1), sizeof *ids);
    for (int64_t i = 0; ids && i < count; i++) ids[i] = (int32_t)(rand() % (vocab > 0 ? vocab : 1));
    r.ids = mc_tensor_new(ctx, MC_I32, r.lengths ? MC_SHAPE(count) : MC_SHAPE(batch, length));
    r.pooled = mc_tensor_new(ctx, type, MC_SHAPE(rows, mc_model_dim(r.model)));
    mc_tensor_write(r.ids, ids, (size_t)count * sizeof *ids);
    r.host = calloc((size_t)mc_tensor_count(r.pooled) + 1, sizeof *r.host);
    double rounds[FIRST];
    time_passes(ctx, &r, FIRST);
    if (fp8) {
        mc_module_calibrate_fp8(mc_model_module(r.model));
        time_passes(ctx, &r, FIRST);
    }
    double busy = processor();
    r.packed.sequences = r.packed.tokens = 0;
    for (int i = 0; i < FIRST; i++) rounds[i] = time_passes(ctx, &r, steps);
    busy = (processor() - busy) / FIRST / steps;
    qsort(rounds, FIRST, sizeof *rounds, by_size);
    double median = rounds[FIRST / 2], tokens = (double)count, sequences = batch;
    if (r.lengths) tokens = (double)r.packed.tokens / FIRST / steps;
    if (r.lengths) sequences = (double)r.packed.sequences / FIRST / steps;
    if (!mc_failed(ctx))
        printf("%s %d x %d %s%s: %.3f ms (%.3f to %.3f), %.1f seq/s, %.0f tokens/s, cpu %.3f ms, "
               "peak %.1f MiB\n",
               argv[2], batch, length, dtype, fp8 ? " fp8" : "", 1e3 * median, 1e3 * rounds[0],
               1e3 * rounds[FIRST - 1], sequences / median, tokens / median, 1e3 * busy,
               (double)mc_memory(ctx).peak / (1024 * 1024));
    int bad = mc_print_error(ctx, stderr) ? 1 : 0;
    free(ids);
    free(r.packed.length);
    free(r.host);
    mc_context_free(ctx);
    return bad;
}
