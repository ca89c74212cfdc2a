/* Generation with random weights and prompts: new tokens a second, and what the memory allows.
 *
 *     bench/generate FAMILY CONFIG BATCH PROMPT NEW [OPTION=VALUE...]
 *     bench/generate gpt2 gpt2 32 64 512 device=cuda dtype=bf16
 *     bench/generate t5 t5-base 1 512 128 device=cuda dtype=bf16
 *
 *     OMP_NUM_THREADS=2 bench/generate gpt2 gpt2 1 64 64 triad=1
 *
 * Options: device (cpu), dtype (f32), weights (int8 or fp8: those of linear layers), rounds (3),
 * sample=1 (draws, top_k=40), beams (1), bandwidth (bytes a second that the limit is computed with;
 * 4.24e12, an H200's as measured by copies), triad=1.
 *
 * The rate is that of the steps alone: answers of NEW tokens and of NEW / 4 are timed by turns, and
 * the difference of the medians belongs to the difference in tokens. The limit reads, in each step,
 * the weights of the decoder and its head once, and the keys and values of every sequence, at their
 * mean length between the two; what an encoder computes once is not in it. With beams the rate is
 * that of rows, each a beam's token.
 *
 * triad=1 is for CPUs: each round times the triad of bench/triad.h, too, whose median is the
 * bandwidth, and every step by itself, from token to token of the first answer; `share` is of the
 * median step. */
#include "bench/triad.h"
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 16, TRIAD = 8 << 20 /* doubles of an array: 64 MiB */ };

/* What triad=1 measures. */
typedef struct steps {
    double *arrays[3];               /* of the triad */
    double rate[3][3 * MOST_ROUNDS]; /* bytes a second of triad, triad past the caches, reading */
    double *seconds, last;           /* from token to token */
    int count;
} steps;

typedef struct work {
    mc_context *ctx;
    mc_model *model;
    int batch, prompt, tokens, fewer; /* new tokens: of long and of short answers */
    int rows;                         /* of a step: batch * beams */
    int32_t **prompts;
    int *lengths;
    mc_generate_options options;
} work;

static mc_dtype dtype_of(const char *name)
{
    return strcmp(name, "bf16") == 0 ? MC_BF16 : strcmp(name, "f16") == 0 ? MC_F16 : MC_F32;
}

static mc_weight_format format_of(const char *name)
{
    return strcmp(name, "int8") == 0  ? MC_WEIGHTS_INT8
           : strcmp(name, "fp8") == 0 ? MC_WEIGHTS_FP8
                                      : MC_WEIGHTS_FLOAT;
}

/* Columns of a layer's keys. */
static double keys_of(mc_model_shape s)
{
    return (double)((s.key_heads ? s.key_heads : s.heads) * s.head_dim);
}

/* Elements of the decoder's matrices that a step reads. */
static double weights_of(const mc_model *model)
{
    mc_model_shape s = mc_model_get_shape(model);
    bool two = s.kind == MC_MODEL_ENCODER_DECODER;
    double inner = (double)(s.heads * s.head_dim), dim = (double)s.dim,
           layers = (double)(two ? s.decoder_layers : s.layers);
    double attention = dim * (2 * inner + 2 * keys_of(s));
    if (two) attention += 2 * dim * inner; /* across: queries and output */
    int in_feed_forward = strcmp(mc_model_family(model), "llama") == 0 ? 3 : 2;
    return layers * (attention + in_feed_forward * dim * (double)s.dim_ff) +
           dim * (double)s.vocab_size;
}

/* Elements of keys and values that a step reads. */
static double cache_of(mc_model_shape s, const work *w)
{
    bool two = s.kind == MC_MODEL_ENCODER_DECODER;
    double layers = (double)(two ? s.decoder_layers : s.layers),
           mean = w->prompt + 0.5 * (w->tokens + w->fewer);
    return 2 * layers * keys_of(s) * mean * w->rows;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

/* Called with each token of an answer. */
static bool time_step(void *user, int prompt, const int32_t *ids, int count)
{
    steps *s = user;
    double time = now();
    (void)ids;
    if (prompt > 0) return false;
    /* the first is taken in when the second has been launched */
    if (count > 2) s->seconds[s->count++] = time - s->last;
    s->last = time;
    return false;
}

static bool make_steps(steps *s, work *w, int rounds)
{
    s->seconds = malloc((size_t)rounds * 2 * (size_t)w->tokens * sizeof *s->seconds);
    for (int i = 0; i < 3; i++)
        if ((s->arrays[i] = aligned_alloc(64, TRIAD * sizeof(double))))
            for (int k = 0; k < TRIAD; k++) s->arrays[i][k] = i;
    if (!s->seconds || !s->arrays[0] || !s->arrays[1] || !s->arrays[2]) return false;
    w->options.stop = time_step;
    w->options.stop_user = s;
    return true;
}

/* Three times each, by turns. */
static void time_memory(steps *s, int round)
{
    void (*const pass[3])(int64_t, double *, const double *,
                          const double *) = {triad_plain, triad_past, read_alone};
    const double bytes[3] = {24, 24, 8};
    for (int i = 3 * round; i < 3 * round + 3; i++)
        for (int k = 0; k < 3; k++)
            s->rate[k][i] =
                triad_rate(pass[k], TRIAD, s->arrays[0], s->arrays[1], s->arrays[2], bytes[k]);
}

/* Seconds for answers of so many tokens. */
static double timed(work *w, int tokens)
{
    w->options.max_new_tokens = tokens;
    double start = now();
    mc_generation *out = mc_model_generate(w->model, (const int32_t *const *)w->prompts, w->lengths,
                                           w->batch, &w->options);
    double seconds = now() - start;
    mc_generation_free(out);
    return seconds;
}

static void make(work *w, int argc, char **argv)
{
    mc_load_options load = {.dtype = dtype_of(option(argc, argv, "dtype", "f32"))};
    w->ctx = mc_init_distributed(
        &(mc_init_options){.seed = 42, .device = option(argc, argv, "device", "cpu")});
    w->model = mc_model_new(w->ctx, argv[1], argv[2], &(mc_model_heads){.lm = true}, &load);
    mc_weight_format format = format_of(option(argc, argv, "weights", ""));
    if (format) mc_model_quantize(w->model, format);
    w->prompts = calloc((size_t)w->batch, sizeof *w->prompts);
    w->lengths = calloc((size_t)w->batch, sizeof *w->lengths);
    int64_t vocab = mc_model_get_shape(w->model).vocab_size;
    for (int i = 0; i < w->batch && vocab; i++) {
        w->prompts[i] = calloc((size_t)w->prompt, sizeof **w->prompts);
        for (int k = 0; k < w->prompt; k++) w->prompts[i][k] = (int32_t)(rand() % vocab);
        w->lengths[i] = w->prompt;
    }
}

/* Seconds of long and of short answers, a median of each; with `s` triads beside them. */
static void measure(work *w, steps *s, int rounds, double *seconds)
{
    double longer[MOST_ROUNDS] = {0}, shorter[MOST_ROUNDS] = {0};
    timed(w, w->fewer); /* products are tuned */
    if (s) s->count = 0;
    for (int i = 0; i < rounds && !mc_failed(w->ctx); i++) {
        longer[i] = timed(w, w->tokens);
        shorter[i] = timed(w, w->fewer);
        if (s) time_memory(s, i);
    }
    seconds[0] = median(longer, rounds);
    seconds[1] = median(shorter, rounds);
}

static void report(work *w, steps *s, int rounds, const double *seconds, int argc, char **argv)
{
    const char *weights = option(argc, argv, "weights", ""),
               *dtype = option(argc, argv, "dtype", "f32");
    mc_model_shape shape = mc_model_get_shape(w->model);
    double size = dtype_of(dtype) == MC_F32 ? 4 : 2;
    double bytes =
        size * cache_of(shape, w) + (format_of(weights) ? 1 : size) * weights_of(w->model);
    double bandwidth =
        s ? median(s->rate[0], 3 * rounds) : atof(option(argc, argv, "bandwidth", "4.24e12"));
    double limit = w->rows * bandwidth / bytes;
    double rate = w->rows * (w->tokens - w->fewer) / (seconds[0] - seconds[1]);
    printf("result family=%s config=%s batch=%d prompt=%d new=%d weights=%s ms_a_step=%.4f "
           "tokens_per_s=%.1f "
           "limit=%.0f share=%.3f gb_a_step=%.3f peak_gib=%.2f model_gib=%.2f\n",
           argv[1], argv[2], w->batch, w->prompt, w->tokens, format_of(weights) ? weights : dtype,
           1e3 * w->rows / rate, rate, limit, rate / limit, 1e-9 * bytes,
           (double)mc_memory(w->ctx).peak / (1 << 30),
           (double)mc_memory(w->ctx).in_use / (1 << 30));
    if (!s) return;
    double middle = median(s->seconds, s->count), best = s->seconds[0];
    printf("steps count=%d best_ms=%.3f median_ms=%.3f gb_per_s=%.1f triad=%.1f past_caches=%.1f "
           "reading=%.1f share=%.3f\n",
           s->count, 1e3 * best, 1e3 * middle, 1e-9 * bytes / middle, 1e-9 * bandwidth,
           1e-9 * median(s->rate[1], 3 * rounds), 1e-9 * median(s->rate[2], 3 * rounds),
           bytes / middle / bandwidth);
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: %s FAMILY CONFIG BATCH PROMPT NEW [OPTION=VALUE...]\n", argv[0]);
        return 2;
    }
    work w = {.batch = atoi(argv[3]), .prompt = atoi(argv[4]), .tokens = atoi(argv[5])};
    int rounds = atoi(option(argc, argv, "rounds", "3"));
    if (w.batch < 1 || w.prompt < 1 || w.tokens < 8 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "%s: BATCH, PROMPT from 1, NEW from 8, rounds 1 to %d\n", argv[0],
                MOST_ROUNDS);
        return 2;
    }
    w.fewer = w.tokens / 4;
    w.options = (mc_generate_options){.ignore_eos = true,
                                      .sample = atoi(option(argc, argv, "sample", "0")),
                                      .num_beams = atoi(option(argc, argv, "beams", "1"))};
    if (w.options.sample) w.options.top_k = 40;
    w.rows = w.batch * (w.options.num_beams > 1 ? w.options.num_beams : 1);
    steps memory = {0}, *s = atoi(option(argc, argv, "triad", "0")) ? &memory : NULL;
    if (s && !make_steps(s, &w, rounds)) return fprintf(stderr, "out of memory\n"), 1;
    make(&w, argc, argv);
    double seconds[2];
    measure(&w, s, rounds, seconds);
    if (mc_print_error(w.ctx, stderr)) return 1;
    report(&w, s, rounds, seconds, argc, argv);
    for (int i = 0; i < 3; i++) free(memory.arrays[i]);
    free(memory.seconds);
    for (int i = 0; i < w.batch; i++) free(w.prompts[i]);
    free(w.prompts);
    free(w.lengths);
    mc_context_free(w.ctx);
    return 0;
}
