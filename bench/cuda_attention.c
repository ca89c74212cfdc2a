/* Times attention on the GPU, forward and backward, at the sizes of T5-base and CPM-1 among others,
 * in bf16 through the kernel table: our kernels on tensor cores with what these models ask for, and
 * at the same sizes cuDNN's without bias and marks, for comparison. With windows, and where the
 * queries end where the keys end (offset), all routes take the same call, in three turns. Calls are
 * recorded as a graph.
 *
 *     bench_cuda_attention [name]      cases whose name contains `name`; all without
 *
 * Rates count 4 H D FLOP for each pair of a query and a key that it sees, and 2.5 times that for
 * backward; cuDNN's and ours have their turns one after the other, over several sets of buffers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/cuda/runtime/routes_internal.h"

enum { MOST = 64, SETS = 3, RUNS = 15, CALLS = 12, TURNS = 3 };

/* Sequences of so many queries and keys; RAGGED ones have a quarter of that and more. CONTEXT: how
 * many tokens of a sequence are marked as context, 0: there are no marks. */
typedef struct attention_case {
    const char *name;
    int count, heads, dim, queries, keys;
    bool causal, biased, ragged, cross;
    int context;
    int left, right; /* windows */
    int group;       /* heads that share keys; 0: 1 */
    bool offset;     /* the last query stands at the last key */
} attention_case;

static const attention_case cases[] = {
    {"t5 encoder", 32, 12, 64, 512, 512, .biased = true},
    {"t5 encoder ragged", 32, 12, 64, 512, 512, .biased = true, .ragged = true},
    {"t5 decoder", 32, 12, 64, 128, 128, .causal = true, .biased = true},
    {"t5 cross", 32, 12, 64, 128, 512, .cross = true},
    {"t5 cross ragged", 32, 12, 64, 128, 512, .cross = true, .ragged = true},
    {"cpm", 8, 32, 80, 512, 512, .biased = true, .context = 128},
    {"plain 64", 64, 12, 64, 512, 512},
    {"plain 80", 16, 16, 80, 1024, 1024},
    {"plain 128", 32, 40, 128, 512, 512},
    {"plain 256", 16, 8, 256, 1024, 1024},
    {"causal 64", 64, 12, 64, 1024, 1024, .causal = true},
    {"causal xl", 16, 25, 64, 1024, 1024, .causal = true},
    {"causal 4096", 16, 12, 64, 4096, 4096, .causal = true},
    {"causal 80", 16, 16, 80, 1024, 1024, .causal = true},
    {"causal 128", 32, 40, 128, 512, 512, .causal = true},
    {"window 128", 16, 12, 64, 1024, 1024, .causal = true, .left = 128},
    {"window 128 both", 16, 12, 64, 1024, 1024, .left = 65, .right = 65},
    {"window 128 of 4096", 4, 12, 64, 4096, 4096, .left = 65, .right = 65},
    {"window 128 of 8192", 2, 12, 64, 8192, 8192, .left = 65, .right = 65},
    {"window 128 ragged", 16, 12, 64, 1024, 1024, .ragged = true, .left = 65, .right = 65},
    {"window 128 grouped", 8, 32, 128, 1024, 1024, .causal = true, .left = 128, .group = 4},
    {"window 1024 long", 2, 32, 128, 4096, 4096, .causal = true, .left = 1024},
    {"offset", 16, 12, 64, 256, 1024, .causal = true, .cross = true, .offset = true},
    {"offset ragged", 16, 12, 64, 256, 1024, true, .ragged = true, .cross = true, .offset = true},
    {"offset grouped", 8, 32, 128, 256, 2048, true, .cross = true, .group = 4, .offset = true},
};

/* A packed batch, on both sides. */
typedef struct batch {
    int32_t packed[2 * MOST + 1]; /* length, then offset */
    mc_lengths lengths;
    int32_t *on_device;
} batch;

typedef struct bench {
    mc_device *d;
    const mc_kernels *k;
    cudaEvent_t start, stop;
    attention_case c;
    batch queries, keys;
    mc_attention_shape shape;
    mc_matrix q[SETS], kv[SETS], out[SETS], dout[SETS], dq[SETS], dkv[SETS];
    float *lse, *bias, *dbias;
    int32_t *marks;
} bench;

static void *take(bench *b, const void *data, size_t bytes)
{
    void *at = b->d->alloc(b->d, bytes);
    if (!at) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    if (data) b->d->copy_in(b->d, at, data, bytes);
    return at;
}

static mc_matrix take_matrix(bench *b, int64_t rows, int64_t columns)
{
    mc_matrix m = {take(b, NULL, (size_t)(rows * columns) * 2), MC_BF16, columns};
    const mc_fill normal = {MC_FILL_NORMAL, 0, 1, (uint64_t)(uintptr_t)m.data};
    b->k->fill(b->d, normal, 0, rows * columns, m);
    return m;
}

static void make_batch(bench *b, batch *to, int length)
{
    const int count = b->c.count;
    int32_t *offset = to->packed + count, longest = 0;
    memset(to->packed, 0, sizeof to->packed);
    for (int i = 0; i < count; i++) {
        int n = b->c.ragged ? length / 4 + (int)(i * 2654435761u % (unsigned)(length * 3 / 4 + 1))
                            : length;
        to->packed[i] = n;
        offset[i + 1] = offset[i] + n;
        longest = n > longest ? n : longest;
    }
    to->lengths =
        (mc_lengths){count, to->packed, offset, offset[count], offset[count], longest, NULL};
    to->on_device = take(b, to->packed, sizeof to->packed);
}

/* Each sequence is one span. */
static void make_marks(bench *b)
{
    static int32_t marks[1 << 20];
    for (int s = 0; s < b->c.count; s++)
        for (int i = 0; i < b->queries.packed[s]; i++)
            marks[b->queries.packed[b->c.count + s] + i] = 2 + (i < b->c.context);
    b->marks = take(b, marks, (size_t)b->queries.lengths.total * sizeof *marks);
}

/* The keys that the queries of a sequence see by where they stand. */
static int64_t count_seen(const mc_attention_shape *shape, int64_t queries, int64_t keys)
{
    const int64_t place = mc_first_place(shape, queries, keys);
    int64_t pairs = 0;
    for (int64_t i = 0; i < queries; i++) {
        const mc_key_range seen = mc_keys_seen(shape, place + i, keys);
        pairs += seen.end - seen.first;
    }
    return pairs;
}

/* Of a query and a key that it sees, in one head. */
static double count_pairs(const bench *b, bool plain)
{
    double pairs = 0;
    for (int s = 0; s < b->c.count; s++) {
        const double n = b->queries.packed[s];
        const double context = plain ? 0 : b->c.context;
        if (context > 0)
            pairs += n * context + (n - context) * (n - context + 1) / 2;
        else
            pairs += (double)count_seen(&b->shape, b->queries.packed[s], b->keys.packed[s]);
    }
    return pairs;
}

static void prepare(bench *b)
{
    const attention_case *c = &b->c;
    const int64_t width = (int64_t)c->heads * c->dim, distances = 2 * (int64_t)c->keys - 1;
    make_batch(b, &b->queries, c->queries);
    make_batch(b, &b->keys, c->keys);
    make_marks(b);
    for (int i = 0; i < SETS; i++) {
        const int64_t rows = b->queries.lengths.total, others = b->keys.lengths.total;
        b->q[i] = take_matrix(b, rows, 3 * width);
        b->kv[i] = c->cross ? take_matrix(b, others, 2 * width) : b->q[i];
        b->out[i] = take_matrix(b, rows, width);
        b->dout[i] = take_matrix(b, rows, width);
        b->dq[i] = take_matrix(b, rows, 3 * width);
        b->dkv[i] = c->cross ? take_matrix(b, others, 2 * width) : b->dq[i];
    }
    b->lse = take(b, NULL, (size_t)(c->heads * b->queries.lengths.total) * sizeof(float));
    b->bias = take(b, NULL, (size_t)(c->heads * distances) * sizeof(float));
    b->dbias = take(b, NULL, (size_t)(c->heads * distances) * sizeof(float));
    b->k->fill(b->d, (mc_fill){MC_FILL_NORMAL, 0, 1, 7}, 0, c->heads * distances,
               (mc_matrix){b->bias, MC_F32, 0});
    b->k->zero(b->d, b->dbias, (size_t)(c->heads * distances) * sizeof(float));
}

static void release(bench *b)
{
    mc_device *d = b->d;
    const attention_case *c = &b->c;
    const size_t width = (size_t)c->heads * (size_t)c->dim * 2;
    const size_t rows = (size_t)b->queries.lengths.total, others = (size_t)b->keys.lengths.total;
    const size_t distances = (size_t)c->heads * (size_t)(2 * c->keys - 1) * sizeof(float);
    for (int i = 0; i < SETS; i++) {
        d->free(d, b->q[i].data, rows * 3 * width);
        d->free(d, b->dq[i].data, rows * 3 * width);
        d->free(d, b->out[i].data, rows * width);
        d->free(d, b->dout[i].data, rows * width);
        if (c->cross) d->free(d, b->kv[i].data, others * 2 * width);
        if (c->cross) d->free(d, b->dkv[i].data, others * 2 * width);
    }
    d->free(d, b->lse, (size_t)c->heads * rows * sizeof(float));
    d->free(d, b->bias, distances);
    d->free(d, b->dbias, distances);
    d->free(d, b->marks, rows * sizeof *b->marks);
    d->free(d, b->queries.on_device, sizeof b->queries.packed);
    d->free(d, b->keys.on_device, sizeof b->keys.packed);
}

/* With what the model asks for, or as plain attention. */
static void set_shape(bench *b, bool plain)
{
    const attention_case *c = &b->c;
    b->shape = (mc_attention_shape){.lengths = &b->queries.lengths,
                                    .device_lengths = b->queries.on_device,
                                    .heads = c->heads,
                                    .head_dim = c->dim,
                                    .key_heads = c->group ? c->heads / c->group : 0,
                                    .scale = 1 / sqrtf((float)c->dim),
                                    .causal = c->causal,
                                    .bottom_right = c->offset,
                                    .window_left = c->left,
                                    .window_right = c->right};
    if (c->cross) b->shape.key_lengths = &b->keys.lengths;
    if (c->cross) b->shape.device_key_lengths = b->keys.on_device;
    if (plain) return;
    if (c->biased) b->shape.position_bias = b->bias;
    if (c->biased) b->shape.dposition_bias = b->dbias;
    b->shape.position_limit = c->keys;
    if (c->context) b->shape.marks = b->marks;
}

static mc_matrix part(mc_matrix m, int64_t column)
{
    m.data = (char *)m.data + (size_t)column * 2;
    return m;
}

static mc_status run(bench *b, int set, bool backward)
{
    const int64_t width = (int64_t)b->c.heads * b->c.dim, first = b->c.cross ? 0 : width;
    const int64_t key_width = width / (b->c.group ? b->c.group : 1);
    const mc_matrix k = part(b->kv[set], first), v = part(b->kv[set], first + key_width);
    if (!backward) return b->k->attention(b->d, &b->shape, b->q[set], k, v, b->out[set], b->lse);
    return b->k->attention_backward(b->d, &b->shape, b->q[set], k, v, b->out[set], b->lse,
                                    b->dout[set], b->dq[set], part(b->dkv[set], first),
                                    part(b->dkv[set], first + key_width));
}

/* So many calls as a graph; NULL if they are not served. */
static cudaGraphExec_t record(bench *b, bool backward)
{
    const cudaStream_t stream = mc_cuda_of(b->d)->stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t recorded = NULL;
    mc_status status = MC_OK;
    for (int i = 0; i < SETS && !status; i++) status = run(b, i, backward);
    if (status || cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed)) return NULL;
    for (int i = 0; i < CALLS && !status; i++) status = run(b, i % SETS, backward);
    if (cudaStreamEndCapture(stream, &graph) || status) return NULL;
    cudaGraphInstantiate(&recorded, graph, 0);
    cudaGraphDestroy(graph);
    return recorded;
}

/* Of one call. */
static float milliseconds(const bench *b, cudaGraphExec_t calls)
{
    const cudaStream_t stream = mc_cuda_of(b->d)->stream;
    float time = 0;
    cudaEventRecord(b->start, stream);
    cudaGraphLaunch(calls, stream);
    cudaEventRecord(b->stop, stream);
    cudaEventSynchronize(b->stop);
    cudaEventElapsedTime(&time, b->start, b->stop);
    return time / CALLS;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Negative if it is not served. */
static float median(bench *b, bool backward)
{
    float times[RUNS];
    cudaGraphExec_t calls = record(b, backward);
    if (!calls) return -1;
    for (int i = 0; i < 2; i++) milliseconds(b, calls);
    for (int i = 0; i < RUNS; i++) times[i] = milliseconds(b, calls);
    cudaGraphExecDestroy(calls);
    qsort(times, RUNS, sizeof *times, by_value);
    return times[RUNS / 2];
}

static void measure(bench *b, const char *route, bool plain)
{
    mc_routes_read(b->d, route);
    set_shape(b, plain);
    const float forward = median(b, false), backward = forward < 0 ? -1 : median(b, true);
    const double flops = 4.0 * b->c.heads * b->c.dim * count_pairs(b, plain);
    if (backward < 0) {
        printf("%-20s %-16s %s\n", b->c.name, route, b->d->failure);
    } else {
        printf(
            "%-20s %-16s %-6s forward %7.4f ms %6.1f TFLOP/s   backward %7.4f ms %6.1f TFLOP/s\n",
            b->c.name, route, plain ? "plain" : "", (double)forward, flops / forward * 1e-9,
            (double)backward, 2.5 * flops / backward * 1e-9);
    }
    fflush(stdout);
}

/* Every route with the same call. */
static void measure_routes(bench *b)
{
    for (int turn = 0; turn < TURNS; turn++) {
        measure(b, "attention:cudnn", false);
        measure(b, "attention:hopper", false);
        measure(b, "attention:portable", false);
    }
}

static void measure_case(bench *b)
{
    const attention_case *c = &b->c;
    if (c->left || c->right || c->offset) {
        measure_routes(b);
        return;
    }
    if (c->biased || c->context) measure(b, "attention:hopper", false);
    measure(b, "attention:hopper", true);
    measure(b, "attention:cudnn", true);
}

int main(int argc, char **argv)
{
    mc_context *context = mc_init_distributed(NULL);
    bench b = {.d = mc_device_open(context, "cuda")};
    if (!b.d) {
        fprintf(stderr, "no CUDA device: %s\n", mc_error_message(context));
        return 1;
    }
    b.k = b.d->kernels;
    cudaEventCreate(&b.start);
    cudaEventCreate(&b.stop);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        b.c = cases[i];
        if (argc > 1 && !strstr(b.c.name, argv[1])) continue;
        prepare(&b);
        measure_case(&b);
        release(&b);
    }
    cudaEventDestroy(b.start);
    cudaEventDestroy(b.stop);
    mc_device_close(b.d);
    mc_context_free(context);
    return 0;
}
