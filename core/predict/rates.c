/* Tables of rates, and the times computed from them. */
#include <math.h>
#include "core/base/memory_internal.h"
#include "core/predict/rates_internal.h"

mc_rates *mc_rates_new(void)
{
    mc_rates *rates = mc_calloc(1, sizeof *rates);
    if (rates) rates->ranks_per_host = 1;
    if (rates) rates->sustained = 1;
    return rates;
}

void mc_rates_free(mc_rates *rates)
{
    if (!rates) return;
    mc_free(rates->rate);
    mc_free(rates);
}

bool mc_rates_add(mc_rates *rates, mc_work work, double rate)
{
    if (!mc_grow(&rates->rate, &rates->capacity, rates->count, sizeof *rates->rate)) return false;
    rates->rate[rates->count++] = (mc_rate){work, rate};
    return true;
}

/* ---- an H200 --------------------------------------------------------------------------------- */

/* One NVIDIA H200 (141 GB, NVLink), CUDA 13.0, cuBLAS 13.1, cuDNN 9.19, NCCL 2.28, measured
 * 2026-11-20: medians, random data, bf16 in and out with f32 accumulation, the fastest of the
 * algorithms that cuBLASLt proposes. Weight gradients are written in bf16 unless marked f32
 * (bench/notebook/2026-11-20-peers.md#products-by-cublaslt). */
typedef struct h200_rate {
    mc_work_kind kind;
    int64_t a, b, c;
    double rate;
} h200_rate;

#define TERA 1e12

/* clang-format off */
static const h200_rate h200_rates[] = {
    /* GPT-2 124M, 65,536 tokens: qkv (2304 x 768), projection (768 x 768), up (3072 x 768), down
     * (768 x 3072), head (50304 x 768) at 16,384 tokens a time and whole */
    {MC_WORK_PRODUCT_NT, 65536, 2304, 768, 795 * TERA},
    {MC_WORK_PRODUCT_NT, 65536, 768, 768, 737 * TERA},
    {MC_WORK_PRODUCT_NT, 65536, 3072, 768, 797 * TERA},
    {MC_WORK_PRODUCT_NT, 65536, 768, 3072, 790 * TERA},
    {MC_WORK_PRODUCT_NT, 16384, 50304, 768, 736 * TERA},
    {MC_WORK_PRODUCT_NT, 65536, 50304, 768, 665 * TERA},
    /* 1558M, 16,384 tokens: qkv, up, down, head */
    {MC_WORK_PRODUCT_NT, 16384, 4800, 1600, 796 * TERA},
    {MC_WORK_PRODUCT_NT, 16384, 6400, 1600, 725 * TERA},
    {MC_WORK_PRODUCT_NT, 16384, 1600, 6400, 714 * TERA},
    {MC_WORK_PRODUCT_NT, 16384, 50304, 1600, 762 * TERA},
    /* 13B, 16,384 tokens: qkv, up, down */
    {MC_WORK_PRODUCT_NT, 16384, 15360, 5120, 687 * TERA},
    {MC_WORK_PRODUCT_NT, 16384, 20480, 5120, 720 * TERA},
    {MC_WORK_PRODUCT_NT, 16384, 5120, 20480, 707 * TERA},
    {MC_WORK_PRODUCT_NT, 8192, 8192, 8192, 801 * TERA},
    {MC_WORK_PRODUCT_NT, 4096, 4096, 4096, 794 * TERA},
    /* gradients of inputs: 124M qkv, up, down, head; 1558M up; 13B up */
    {MC_WORK_PRODUCT_NN, 65536, 768, 2304, 772 * TERA},
    {MC_WORK_PRODUCT_NN, 65536, 768, 3072, 779 * TERA},
    {MC_WORK_PRODUCT_NN, 65536, 3072, 768, 743 * TERA},
    {MC_WORK_PRODUCT_NN, 65536, 768, 50304, 774 * TERA},
    {MC_WORK_PRODUCT_NN, 16384, 1600, 6400, 751 * TERA},
    {MC_WORK_PRODUCT_NN, 16384, 5120, 20480, 716 * TERA},
    /* gradients of weights: 124M qkv (into f32, added), projection, up, down, head; 1558M up; 13B
     * up */
    {MC_WORK_PRODUCT_TN, 2304, 768, 65536, 717 * TERA},
    {MC_WORK_PRODUCT_TN, 768, 768, 65536, 685 * TERA},
    {MC_WORK_PRODUCT_TN, 3072, 768, 65536, 809 * TERA},
    {MC_WORK_PRODUCT_TN, 768, 3072, 65536, 728 * TERA},
    {MC_WORK_PRODUCT_TN, 50304, 768, 65536, 737 * TERA},
    {MC_WORK_PRODUCT_TN, 6400, 1600, 16384, 764 * TERA},
    {MC_WORK_PRODUCT_TN, 20480, 5120, 16384, 724 * TERA},
    /* 8-bit products on the same card, 2026-11-27: forward, then gradients with exact accumulation;
     * those of weights are the last of each size */
    {MC_WORK_PRODUCT8_FAST, 65536, 2304, 768, 1314 * TERA},
    {MC_WORK_PRODUCT8_FAST, 65536, 3072, 768, 1332 * TERA},
    {MC_WORK_PRODUCT8_FAST, 16384, 4800, 1600, 1374 * TERA},
    {MC_WORK_PRODUCT8_FAST, 16384, 1600, 1600, 1209 * TERA},
    {MC_WORK_PRODUCT8_FAST, 16384, 6400, 1600, 1406 * TERA},
    {MC_WORK_PRODUCT8_FAST, 16384, 1600, 6400, 1292 * TERA},
    {MC_WORK_PRODUCT8_FAST, 8192, 12288, 4096, 1404 * TERA},
    {MC_WORK_PRODUCT8_FAST, 8192, 4096, 4096, 1381 * TERA},
    {MC_WORK_PRODUCT8_FAST, 8192, 16384, 4096, 1395 * TERA},
    {MC_WORK_PRODUCT8_FAST, 8192, 4096, 16384, 1279 * TERA},
    {MC_WORK_PRODUCT8_FAST, 8192, 28672, 4096, 1303 * TERA},
    {MC_WORK_PRODUCT8_FAST, 8192, 4096, 14336, 1394 * TERA},
    {MC_WORK_PRODUCT8, 65536, 2304, 768, 1095 * TERA},
    {MC_WORK_PRODUCT8, 65536, 3072, 768, 1013 * TERA},
    {MC_WORK_PRODUCT8, 768, 3072, 65536, 1412 * TERA},
    {MC_WORK_PRODUCT8, 16384, 4800, 1600, 1194 * TERA},
    {MC_WORK_PRODUCT8, 16384, 1600, 1600, 1100 * TERA},
    {MC_WORK_PRODUCT8, 16384, 6400, 1600, 1215 * TERA},
    {MC_WORK_PRODUCT8, 16384, 1600, 6400, 1252 * TERA},
    {MC_WORK_PRODUCT8, 1600, 6400, 16384, 1347 * TERA},
    {MC_WORK_PRODUCT8, 8192, 12288, 4096, 1213 * TERA},
    {MC_WORK_PRODUCT8, 8192, 4096, 4096, 1300 * TERA},
    {MC_WORK_PRODUCT8, 8192, 16384, 4096, 1215 * TERA},
    {MC_WORK_PRODUCT8, 8192, 4096, 16384, 1169 * TERA},
    {MC_WORK_PRODUCT8, 4096, 16384, 8192, 1173 * TERA},
    {MC_WORK_PRODUCT8, 8192, 28672, 4096, 1140 * TERA},
    {MC_WORK_PRODUCT8, 8192, 4096, 14336, 1248 * TERA},
    {MC_WORK_PRODUCT8, 4096, 28672, 8192, 1156 * TERA},
    /* causal attention by cuDNN's graphs, but backward of heads of 64 by our own kernel: B64 H12
     * T1024 d64 in 0.305 and 0.618 ms, B16 H25 T1024 d64 in 0.166 and 0.336 ms, B32 H40 T512 d128
     * in 0.240 and 0.960 ms, B16 H16 T2048 d256 at 613 and 323 TFLOP/s; backward has 2.5 times the
     * FLOP */
    {MC_WORK_ATTENTION, 1024, 64, 64 * 12, 338 * TERA},
    {MC_WORK_ATTENTION, 1024, 64, 16 * 25, 323 * TERA},
    {MC_WORK_ATTENTION, 512, 128, 32 * 40, 358 * TERA},
    {MC_WORK_ATTENTION, 2048, 256, 16 * 16, 613 * TERA},
    {MC_WORK_ATTENTION_BACKWARD, 1024, 64, 64 * 12, 417 * TERA},
    {MC_WORK_ATTENTION_BACKWARD, 1024, 64, 16 * 25, 400 * TERA},
    {MC_WORK_ATTENTION_BACKWARD, 512, 128, 32 * 40, 224 * TERA},
    {MC_WORK_ATTENTION_BACKWARD, 2048, 256, 16 * 16, 323 * TERA},
    /* device copy, bytes read and written; the other memory-bound kinds are assumed to reach it */
    {MC_WORK_COPY, 0, 0, 0, 4.24 * TERA},
    /* epilogues: the time of the product with one minus that without, of a matrix of 2-byte
     * elements: qkv with bias 0.320 against 0.292 ms, up with GELU (tanh) that also stores its
     * input 0.536 against 0.388 ms, down's input gradient with GELU's 0.541 against 0.416 ms.
     * Others are a separate pass: one matrix read and one written; two read and one written */
    {MC_WORK_BIAS, 0, 0, 0, 10.8 * TERA},
    {MC_WORK_ACTIVATION, 0, 0, MC_ACTIVATION_GELU_NEW, 2.72 * TERA},
    {MC_WORK_ACTIVATION, 0, 0, 0, 4.24 / 2 * TERA},
    {MC_WORK_ACTIVATION_BACKWARD, 0, 0, MC_ACTIVATION_GELU_NEW, 3.22 * TERA},
    {MC_WORK_ACTIVATION_BACKWARD, 0, 0, 0, 4.24 / 3 * TERA},
};

/* Four H200 of one host, NVLink, NVLS off, 2026-11-20. */
static const mc_bus_rate h200_bus[] = {
    {MC_BUS_ALL_GATHER, 512.0 * (1 << 20), 315e9},
    {MC_BUS_ALL_GATHER, 2048.0 * (1 << 20), 332e9},
    {MC_BUS_REDUCE_SCATTER, 512.0 * (1 << 20), 310e9},
    {MC_BUS_REDUCE_SCATTER, 2048.0 * (1 << 20), 330e9},
    {MC_BUS_ALL_REDUCE, 512.0 * (1 << 20), 348e9},
    {MC_BUS_ALL_REDUCE, 2048.0 * (1 << 20), 359e9},
};
/* clang-format on */

mc_rates *mc_rates_h200(void)
{
    mc_rates *rates = mc_rates_new();
    bool good = rates;
    for (size_t i = 0; good && i < sizeof h200_rates / sizeof *h200_rates; i++) {
        const h200_rate *r = &h200_rates[i];
        good = mc_rates_add(
            rates, (mc_work){.kind = r->kind, .dtype = MC_BF16, .a = r->a, .b = r->b, .c = r->c},
            r->rate);
    }
    if (!good) {
        mc_rates_free(rates);
        return NULL;
    }
    rates->bus_count = sizeof h200_bus / sizeof *h200_bus;
    for (int i = 0; i < rates->bus_count; i++) rates->bus[i] = h200_bus[i];
    /* The table's products were timed one at a time, at 1.98 GHz. In training the card runs at 700
     * W and 1.5 to 1.6 GHz: steps of 124M, 1558M and 13B took 9 to 16 % longer than predicted,
     * which gives this factor on the time of products and attention. */
    rates->sustained = 0.87;
    /* Assumed, not measured: the least time of a kernel in a replayed graph, of a collective, and
     * of a ring's step over NVLink and over InfiniBand. */
    rates->least = 2e-6;
    rates->begin = 20e-6;
    rates->hop = 1e-6;
    rates->network_hop = 5e-6;
    rates->beside = true;
    return rates;
}

mc_rates *mc_rates_here(mc_device *device)
{
    mc_rates *rates = mc_rates_new();
    if (!rates) return NULL;
    rates->device = device;
    rates->beside = !device->is_host;
    rates->begin = rates->hop = 1e-6;
    rates->network_hop = 5e-6;
    return rates;
}

/* ---- the rate of work ------------------------------------------------------------------------ */

static bool is_product(mc_work_kind kind) { return kind <= MC_WORK_PRODUCT8; }
static bool is_product8(mc_work_kind kind)
{
    return kind == MC_WORK_PRODUCT8_FAST || kind == MC_WORK_PRODUCT8;
}
static bool has_flop(mc_work_kind kind) { return kind <= MC_WORK_ATTENTION_BACKWARD; }
static bool has_activation(mc_work_kind kind) { return kind >= MC_WORK_BIAS; }

/* f16 runs like bf16; memory-bound work has the same rate in every dtype. */
static bool same_dtype(const mc_work *a, const mc_work *b)
{
    return !has_flop(a->kind) || (a->dtype == MC_F32) == (b->dtype == MC_F32);
}

/* Squared distance of two sizes, in doublings; 0 if either is unspecified. */
static double distance(int64_t a, int64_t b)
{
    double d = a > 0 && b > 0 ? log2((double)a / (double)b) : 0;
    return d * d;
}

/* The mean rate of a kind's entries, weighted by their nearness; 0 if there are none. */
static double nearest_rate(const mc_rates *rates, mc_work_kind kind, const mc_work *work)
{
    double sum = 0, weights = 0;
    bool exact = false; /* an entry has exactly this activation */
    for (size_t i = 0; i < rates->count && has_activation(kind); i++)
        exact |= rates->rate[i].work.kind == kind && rates->rate[i].work.c == work->c;
    for (size_t i = 0; i < rates->count; i++) {
        const mc_work *entry = &rates->rate[i].work;
        if (entry->kind != kind || !same_dtype(entry, work)) continue;
        if (has_activation(kind) && entry->c != (exact ? work->c : 0)) continue;
        double far = distance(entry->a, work->a) + distance(entry->b, work->b);
        if (!has_activation(kind)) far += distance(entry->c, work->c);
        double weight = 1 / (far + 1e-9);
        sum += weight * weight * rates->rate[i].rate;
        weights += weight * weight;
    }
    return weights > 0 ? sum / weights : 0;
}

static const mc_rate *find_rate(const mc_rates *rates, const mc_work *w)
{
    for (size_t i = 0; i < rates->count; i++) {
        const mc_work *e = &rates->rate[i].work;
        if (e->kind == w->kind && e->dtype == w->dtype && e->a == w->a && e->b == w->b &&
            e->c == w->c && e->dropout == w->dropout && e->causal == w->causal)
            return &rates->rate[i];
    }
    return NULL;
}

static mc_status measured_rate(mc_rates *rates, const mc_work *work, double *rate)
{
    mc_work like = mc_work_clip(rates->device, *work);
    const mc_rate *known = find_rate(rates, &like);
    *rate = known ? known->rate : 0;
    if (known) return MC_OK;
    mc_status status = mc_rates_measure(rates->device, &like, rate);
    if (!status && !mc_rates_add(rates, like, *rate)) status = MC_ERR_NOMEM;
    return status;
}

/* Seconds to read and write a product's matrices, which small products cannot beat. 0 if the table
 * has no rate of copies. */
static double least_of_product(const mc_rates *rates, const mc_work *w)
{
    double rate = nearest_rate(rates, MC_WORK_COPY, w), m = (double)w->a, n = (double)w->b,
           k = (double)w->c, size = (double)mc_dtype_size(w->dtype);
    double operands = is_product8(w->kind) ? 1 : size;
    return rate > 0 ? (operands * (m * k + k * n) + size * m * n) / rate : 0;
}

mc_status mc_rates_price(mc_rates *rates, const mc_work *work, double *seconds)
{
    double rate = 0;
    *seconds = 0;
    if (!(work->amount > 0)) return MC_OK;
    if (rates->device) {
        mc_status status = measured_rate(rates, work, &rate);
        if (status) return status;
    } else {
        rate = nearest_rate(rates, work->kind, work);
        if (has_flop(work->kind)) rate *= rates->sustained;
        if (!rate && !has_flop(work->kind)) rate = nearest_rate(rates, MC_WORK_COPY, work);
    }
    bool wide = is_product(work->kind) && !is_product8(work->kind);
    if (wide && rate > rates->best_product) rates->best_product = rate;
    double time = work->amount / rate, least = rates->least;
    if (is_product(work->kind) && !rates->device)
        least = fmax(least, least_of_product(rates, work));
    *seconds = rate > 0 ? fmax(time, least) : (double)NAN;
    return MC_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Interpolates by the logarithm of the bytes; outside, the nearest entry. 0: no entry. */
static double bus_rate(const mc_rates *rates, mc_bus_kind kind, double bytes)
{
    const mc_bus_rate *below = NULL, *above = NULL;
    for (int i = 0; i < rates->bus_count; i++) {
        const mc_bus_rate *r = &rates->bus[i];
        if (r->kind != kind) continue;
        if (r->bytes <= bytes && (!below || r->bytes > below->bytes)) below = r;
        if (r->bytes >= bytes && (!above || r->bytes < above->bytes)) above = r;
    }
    if (!below || !above || below == above) return below ? below->rate : above ? above->rate : 0;
    double at = log(bytes / below->bytes) / log(above->bytes / below->bytes);
    return below->rate + at * (above->rate - below->rate);
}

double mc_rates_collective(const mc_rates *rates, mc_bus_kind kind, int ranks, int apart,
                           double bytes)
{
    if (ranks < 2) return 0;
    int on_host = apart > 1 ? rates->ranks_per_host / apart : rates->ranks_per_host;
    if (on_host < 1) on_host = 1;
    if (on_host > ranks) on_host = ranks;
    int hosts = (ranks + on_host - 1) / on_host, fewest = ranks % on_host;
    double rate = bus_rate(rates, kind, bytes), rounds = kind == MC_BUS_ALL_REDUCE ? 2 : 1;
    if (rates->bus_most > 0) rate = rates->bus_most;
    /* The smallest host's ranks determine how many rings leave each host, each through its own
     * network port. */
    double network = rates->network * (fewest ? fewest : on_host);
    if (hosts > 1 && network < rate) rate = network;
    int over = hosts > 1 ? hosts < ranks ? hosts : ranks - 1 : 0; /* steps between hosts */
    double steps = over * rates->network_hop + (ranks - 1 - over) * rates->hop;
    return rates->begin + rounds * (steps + bytes * (ranks - 1) / ranks / rate);
}
