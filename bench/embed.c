/* Vectors and classes of texts against the forward pass alone: what tokenizing, batching and
 * copying cost.
 *
 *     bench/embed [FOLDER|base [TEXTS [LENGTH [DEVICE [DTYPE [ROUNDS [SAVE]]]]]]]
 *     OMP_NUM_THREADS=1 bench/embed ../shared/data/minilm-l6 64 128
 *     bench/embed base 65536 128 cuda bf16
 *
 * Texts are of LENGTH tokens each (random words of the vocabulary). `base` is BERT-base of random
 * weights with the vocabulary of the quick start: start it in the repository's folder. They take
 * turns for ROUNDS, after one to warm up:
 *
 *     forward   batches of ids that are on the device already, of one shape, as fast as it can
 *     embed     mc_embed_texts, texts to vectors in host memory
 *     classify  mc_classify_texts, texts to logits in host memory
 *
 * The environment's BATCH is the texts of a forward pass; else it has 16384 tokens, or 2048 on a
 * CPU, where the time is that of the process: with one thread, a core's. The last line is JSON:
 * medians in texts a second, and of their ratios to the forward pass.
 *
 * SAVE is a folder for model and texts, to measure the commands with, files and all; their result
 * lines say rows a second without the time to load the model. Kernels are chosen in a first run:
 *
 *     modelcenter embed --model SAVE --data SAVE/texts.jsonl --output SAVE/v.npy --device cuda
 *     modelcenter predict --model SAVE --data SAVE/texts.jsonl --output SAVE/p.jsonl \\
 *         --device cuda */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>

enum { MOST_ROUNDS = 101 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct bench {
    mc_context *ctx;
    mc_model *model;
    mc_tokenizer *tok;
    mc_embedder *embedder;
    mc_text_classifier *classifier;
    size_t texts;
    int length, batch; /* tokens of a text, texts of a forward pass */
    bool on_cpu;
    mc_text_span *spans;
    float *vectors;
    mc_tensor *ids, *out;
    mc_lengths *lengths;
} bench;

/* Of the CPU, the time that this process had a core: others may be busy there. */
static double now(const bench *b)
{
    struct timespec t;
    clock_gettime(b->on_cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static bool is_word(const char *token)
{
    size_t length = strlen(token);
    for (size_t i = 0; i < length; i++)
        if (token[i] < 'a' || token[i] > 'z') return false;
    return length > 1;
}

/* A text of exactly that many tokens, [CLS] and [SEP] included. */
static char *make_text(const bench *b)
{
    int vocabulary = mc_tokenizer_vocab_size(b->tok);
    char *text = malloc((size_t)b->length * 32 + 1), *at = text;
    for (int i = 0; text && i < b->length - 2;) {
        const char *word = mc_tokenizer_id_to_token(b->tok, rand() % vocabulary);
        if (!word || !is_word(word) || strlen(word) > 30) continue;
        at += sprintf(at, "%s%s", i++ ? " " : "", word);
    }
    return text;
}

static bool make_texts(bench *b)
{
    mc_encoding e = {0};
    b->spans = calloc(b->texts, sizeof *b->spans);
    b->vectors = malloc(b->texts * (size_t)mc_model_dim(b->model) * sizeof *b->vectors);
    bool good = b->spans && b->vectors;
    for (size_t i = 0; good && i < b->texts; i++) {
        char *text = make_text(b);
        if (!(good = text)) break;
        b->spans[i] = (mc_text_span){.data = text, .size = strlen(text)};
    }
    good = good && !mc_tokenizer_encode(b->tok, b->spans[0].data, b->spans[0].size, NULL, 0, 0, &e);
    if (good) fprintf(stderr, "%zu texts of %zu tokens\n", b->texts, e.count);
    mc_encoding_release(&e);
    return good;
}

/* ---- the forward pass alone ------------------------------------------------------------------ */

static void forward_step(mc_context *ctx, void *user)
{
    bench *b = user;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {.ids = b->ids, .lengths = b->lengths};
    mc_tensor_copy(b->out, mc_mean_pool(t, mc_model_forward(t, b->model, &in).last_hidden));
    mc_tape_end(t);
}

static bool make_forward(bench *b)
{
    int64_t tokens = (int64_t)b->batch * b->length;
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    int32_t *length = malloc((size_t)b->batch * sizeof *length);
    if (!ids || !length) return false;
    for (int64_t i = 0; i < tokens; i++) ids[i] = rand() % 300;
    for (int i = 0; i < b->batch; i++) length[i] = b->length;
    b->ids = mc_tensor_from(b->ctx, MC_I32, MC_SHAPE(tokens), ids);
    b->lengths = mc_lengths_new(b->ctx, b->batch, tokens);
    mc_lengths_write(b->lengths, length, b->batch, tokens, b->length);
    b->out = mc_tensor_new(b->ctx, MC_F32, MC_SHAPE(b->batch, mc_model_dim(b->model)));
    free(ids);
    free(length);
    return !mc_failed(b->ctx);
}

/* Texts a second. */
static double run_forward(bench *b)
{
    size_t batches = b->texts / (size_t)b->batch;
    int64_t count = mc_tensor_count(b->out);
    double start = now(b);
    for (size_t i = 0; i < batches; i++) mc_step_run(b->ctx, 1, forward_step, b);
    mc_tensor_read_f32(b->ctx, b->out, b->vectors, count);
    return (double)(batches * (size_t)b->batch) / (now(b) - start);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static double run_embed(bench *b)
{
    double start = now(b);
    mc_embed_texts(b->embedder, b->spans, b->texts, b->vectors);
    return (double)b->texts / (now(b) - start);
}

static double run_classify(bench *b)
{
    double start = now(b);
    mc_classify_texts(b->classifier, b->spans, NULL, b->texts, b->vectors);
    return (double)b->texts / (now(b) - start);
}

static bool save(const bench *b, const char *folder)
{
    char path[4096];
    mc_model_save(b->model, folder);
    mc_tokenizer_save(b->tok, folder);
    snprintf(path, sizeof path, "%s/texts.jsonl", folder);
    FILE *file = fopen(path, "w");
    for (size_t i = 0; file && i < b->texts; i++)
        fprintf(file, "{\"text\": \"%s\"}\n", b->spans[i].data);
    return file && fclose(file) == 0 && !mc_failed(b->ctx);
}

static bool open_models(bench *b, const char *folder, const char *device, mc_load_options load)
{
    bool base = strcmp(folder, "base") == 0;
    mc_bert_config config = mc_bert_config_default();
    b->ctx = mc_context_new(&(mc_init_options){.device = device});
    b->tok = mc_tokenizer_from_pretrained(b->ctx, base ? "datasets/quickstart" : folder);
    load.num_labels = 2;
    b->model = base ? mc_bert_new(b->ctx, &config, NULL, &load)
                    : mc_model_from_pretrained(b->ctx, folder, &load);
    b->embedder = mc_embedder_new(b->model, b->tok, NULL);
    b->classifier = mc_text_classifier_new(b->model, b->tok, NULL);
    return !mc_failed(b->ctx);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static void measure(bench *b, int rounds)
{
    static double rate[3][MOST_ROUNDS], ratio[3][MOST_ROUNDS];
    static double (*const run[3])(bench *) = {run_forward, run_embed, run_classify};
    for (int i = -1; i < rounds && !mc_failed(b->ctx); i++) {
        int at = i < 0 ? 0 : i;
        for (int k = 0; k < 3; k++) {
            rate[k][at] = run[k](b);
            ratio[k][at] = rate[k][at] / rate[0][at];
        }
        fprintf(stderr, "forward %.1f, embed %.1f, classify %.1f texts/s%s\n", rate[0][at],
                rate[1][at], rate[2][at], i < 0 ? " (to warm up)" : "");
    }
    printf("{\"forward_texts_per_s\": %.1f, \"embed_texts_per_s\": %.1f, "
           "\"classify_texts_per_s\": %.1f, \"embed_ratio\": %.4f, \"classify_ratio\": %.4f}\n",
           median(rate[0], rounds), median(rate[1], rounds), median(rate[2], rounds),
           median(ratio[1], rounds), median(ratio[2], rounds));
}

int main(int argc, char **argv)
{
    const char *dtype = argc > 5 ? argv[5] : "f32", *device = argc > 4 ? argv[4] : "cpu";
    bench b = {.texts = argc > 2 ? strtoul(argv[2], NULL, 10) : 64,
               .length = argc > 3 ? atoi(argv[3]) : 128,
               .on_cpu = strcmp(device, "cpu") == 0};
    int rounds = argc > 6 ? atoi(argv[6]) : 5;
    mc_load_options load = {.dtype = strcmp(dtype, "bf16") == 0  ? MC_BF16
                                     : strcmp(dtype, "f16") == 0 ? MC_F16
                                                                 : MC_F32};
    if (!b.texts || b.length < 4 || rounds < 1 || rounds > MOST_ROUNDS) return 2;
    b.batch = (b.on_cpu ? 2048 : 16384) / b.length;
    const char *batch = getenv("BATCH");
    if (batch) b.batch = atoi(batch);
    if (b.batch < 1) b.batch = 1;
    if ((size_t)b.batch > b.texts) b.batch = (int)b.texts;
    bool good = open_models(&b, argc > 1 ? argv[1] : "base", device, load) && make_texts(&b) &&
                make_forward(&b) && (argc < 8 || save(&b, argv[7]));
    if (good) measure(&b, rounds);
    int bad = mc_print_error(b.ctx, stderr) || !good;
    for (size_t i = 0; b.spans && i < b.texts; i++) free((char *)b.spans[i].data);
    free(b.spans);
    free(b.vectors);
    mc_context_free(b.ctx);
    return bad;
}
