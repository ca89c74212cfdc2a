/* Times linear layers of few rows at the sizes of GPT-2 124M, XL and GPT-J in bf16, as a step of
 * generation runs them: a graph of products of the same shape, each with another weight, which
 * begin before the one in front of them has ended.
 *
 *     bench_cuda_skinny_gemm ROWS...                       e.g. 8 32 64
 *     MC_ROUTE=product:skinny_hopper bench_cuda_skinny_gemm ROWS...
 *                                                          by hopper/product/skinny_gemm.cu
 *
 * Each line: us a product, the least that reading its weight takes at 4.24 TB/s (an H200's memory
 * as copies measure it), and the weight's bytes a second. */
#include <stdio.h>
#include <stdlib.h>
#include "core/device/cuda/runtime/cuda_internal.h"

enum { MOST_ROWS = 64, MOST_TERMS = 16384, MOST_COLUMNS = 50400, MOST_PRODUCTS = 40, RUNS = 7 };

static const size_t WEIGHTS = (size_t)512 << 20; /* bytes: more than the L2 cache has */

static const struct {
    const char *name;
    int64_t terms, columns;
} shapes[] = {
    {"XL qkv", 1600, 4800},    {"XL out", 1600, 1600},      {"XL up", 1600, 6400},
    {"XL down", 6400, 1600},   {"XL head", 1600, 50257},    {"124M qkv", 768, 2304},
    {"124M out", 768, 768},    {"124M up", 768, 3072},      {"124M down", 3072, 768},
    {"124M head", 768, 50257}, {"GPT-J qkv", 4096, 12288},  {"GPT-J out", 4096, 4096},
    {"GPT-J up", 4096, 16384}, {"GPT-J down", 16384, 4096}, {"GPT-J head", 4096, 50400},
};

typedef struct bench {
    mc_device *d;
    char *weights, *x, *y;
} bench;

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static mc_status record(const bench *b, int64_t rows, int64_t terms, int64_t columns, int products)
{
    mc_status status = MC_OK;
    for (int i = 0; i < products && !status; i++) {
        void *weight = b->weights + (int64_t)i * terms * columns * 2;
        status = b->d->kernels->linear(b->d, &(mc_linear_call){.rows = rows,
                                                               .in = terms,
                                                               .out = columns,
                                                               .alpha = 1,
                                                               .x = {b->x, MC_BF16, terms},
                                                               .weight = {weight, MC_BF16, terms},
                                                               .y = {b->y, MC_BF16, columns}});
    }
    return status;
}

/* The median time of a graph, in us; negative: it failed. */
static double replayed(cudaGraphExec_t graph, cudaStream_t stream)
{
    float times[RUNS];
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    for (int i = -1; i < RUNS; i++) { /* the first warms up */
        cudaEventRecord(start, stream);
        cudaGraphLaunch(graph, stream);
        cudaEventRecord(stop, stream);
        cudaEventSynchronize(stop);
        cudaEventElapsedTime(&times[i < 0 ? 0 : i], start, stop);
    }
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    qsort(times, RUNS, sizeof *times, compare);
    return cudaGetLastError() ? -1 : 1e3 * times[RUNS / 2];
}

static bool measure(const bench *b, size_t shape, int64_t rows)
{
    int64_t terms = shapes[shape].terms, columns = shapes[shape].columns;
    size_t bytes = (size_t)(terms * columns) * 2;
    int products = WEIGHTS / bytes < MOST_PRODUCTS ? (int)(WEIGHTS / bytes) : MOST_PRODUCTS;
    cudaStream_t stream = mc_cuda_of(b->d)->stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    mc_list_open(b->d);
    mc_status status = record(b, rows, terms, columns, products);
    mc_status launched = mc_list_close(b->d);
    if (!status) status = launched;
    cudaStreamEndCapture(stream, &graph);
    if (!status && !cudaGraphInstantiate(&exec, graph, 0)) {
        double us = replayed(exec, stream) / products;
        printf("%-10s %2d x %5d x %5d: %7.2f us, floor %6.2f, %.2f TB/s\n", shapes[shape].name,
               (int)rows, (int)terms, (int)columns, us, (double)bytes / 4.24e6,
               (double)bytes / us * 1e-6);
        cudaGraphExecDestroy(exec);
    }
    cudaGraphDestroy(graph);
    if (status || !exec) fprintf(stderr, "%s: %s\n", shapes[shape].name, b->d->failure);
    return !status && exec;
}

int main(int argc, char **argv)
{
    mc_context *context = mc_init_distributed(NULL);
    bench b = {.d = mc_device_open(context, "cuda")};
    if (!b.d) {
        fprintf(stderr, "no CUDA device: %s\n", mc_error_message(context));
        return 1;
    }
    b.weights = b.d->alloc(b.d, WEIGHTS);
    b.x = b.d->alloc(b.d, MOST_ROWS * MOST_TERMS * 2);
    b.y = b.d->alloc(b.d, MOST_ROWS * MOST_COLUMNS * 2);
    bool good = b.weights && b.x && b.y;
    if (good) {
        cudaMemset(b.weights, 0, WEIGHTS);
        cudaMemset(b.x, 0, MOST_ROWS * MOST_TERMS * 2);
    }
    for (int i = 1; i < argc && good; i++) {
        int rows = atoi(argv[i]);
        if (rows < 1 || rows > MOST_ROWS) {
            fprintf(stderr, "%s: rows from 1 to %d\n", argv[i], MOST_ROWS);
            good = false;
        }
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes && good; s++)
            good = measure(&b, s, rows);
    }
    if (b.weights) b.d->free(b.d, b.weights, WEIGHTS);
    if (b.x) b.d->free(b.d, b.x, MOST_ROWS * MOST_TERMS * 2);
    if (b.y) b.d->free(b.d, b.y, MOST_ROWS * MOST_COLUMNS * 2);
    mc_device_close(b.d);
    mc_context_free(context);
    return !good;
}
