#include "core/device/fp8_measure_internal.h"

#include <math.h>
#include <time.h>

/* A layer's matrices, in the model's dtype and in 8 bits. */
typedef struct probe {
    mc_device *d;
    int64_t rows, out, in, padded;
    mc_dtype dtype;
    mc_matrix x, weight, dy, y, dx, dweight;
    uint8_t *x8, *x8t, *dy8, *dy8t, *weight8, *weight8t;
    mc_fp8_scale *scale;
    mc_fp8_seen *seen;
} probe;

/* ---- kernels --------------------------------------------------------------------------------- */

static mc_status forward(const probe *p)
{
    return p->d->kernels->gemm(p->d, false, true, p->rows, p->out, p->in, 1, p->x, p->weight, 0,
                               p->y);
}
static mc_status input_gradient(const probe *p)
{
    return p->d->kernels->gemm(p->d, false, false, p->rows, p->in, p->out, 1, p->dy, p->weight, 0,
                               p->dx);
}
static mc_status weight_gradient(const probe *p)
{
    return p->d->kernels->gemm(p->d, true, false, p->out, p->in, p->rows, 1, p->dy, p->x, 1,
                               p->dweight);
}

static mc_fp8_matrix bytes(const probe *p, const uint8_t *data, int64_t stride, mc_fp8_role role)
{
    return (mc_fp8_matrix){data, stride, mc_fp8_format_of((int)role), &p->scale[role].inverse};
}

static mc_status forward8(const probe *p)
{
    mc_fp8_gemm_call c = {.transpose_b = true,
                          .fast = true,
                          .m = p->rows,
                          .n = p->out,
                          .k = p->in,
                          .alpha = 1,
                          .a = bytes(p, p->x8, p->in, MC_FP8_X),
                          .b = bytes(p, p->weight8, p->in, MC_FP8_WEIGHT),
                          .c = p->y};
    return p->d->kernels->fp8_gemm(p->d, &c);
}
static mc_status input_gradient8(const probe *p)
{
    bool tn = p->d->fp8_tn;
    mc_fp8_gemm_call c = {.transpose_b = tn,
                          .m = p->rows,
                          .n = p->in,
                          .k = p->out,
                          .alpha = 1,
                          .a = bytes(p, p->dy8, p->out, MC_FP8_DY),
                          .b = tn ? bytes(p, p->weight8t, p->out, MC_FP8_WEIGHT)
                                  : bytes(p, p->weight8, p->in, MC_FP8_WEIGHT),
                          .c = p->dx};
    return p->d->kernels->fp8_gemm(p->d, &c);
}
static mc_status weight_gradient8(const probe *p)
{
    bool tn = p->d->fp8_tn;
    mc_fp8_gemm_call c = {
        .transpose_a = !tn,
        .transpose_b = tn,
        .m = p->out,
        .n = p->in,
        .k = tn ? p->padded : p->rows,
        .alpha = 1,
        .beta = 1,
        .a = tn ? bytes(p, p->dy8t, p->padded, MC_FP8_DY) : bytes(p, p->dy8, p->out, MC_FP8_DY),
        .b = tn ? bytes(p, p->x8t, p->padded, MC_FP8_X) : bytes(p, p->x8, p->in, MC_FP8_X),
        .c = p->dweight};
    return p->d->kernels->fp8_gemm(p->d, &c);
}

/* `transposed` is written only if products need it. */
static mc_status cast(const probe *p, mc_fp8_role role, mc_matrix x, int64_t rows, uint8_t *data,
                      uint8_t *transposed)
{
    mc_fp8_cast_call c = {.rows = rows,
                          .columns = x.stride,
                          .padded = mc_fp8_padded(rows),
                          .x = x,
                          .format = mc_fp8_format_of((int)role),
                          .scale = &p->scale[role].scale,
                          .seen = &p->seen[role],
                          .data = data,
                          .transposed = p->d->fp8_tn ? transposed : NULL};
    return p->d->kernels->fp8_cast(p->d, &c);
}
static mc_status cast_x(const probe *p) { return cast(p, MC_FP8_X, p->x, p->rows, p->x8, NULL); }
static mc_status cast_x_again(const probe *p)
{
    return cast(p, MC_FP8_X, p->x, p->rows, p->d->fp8_tn ? NULL : p->x8, p->x8t);
}
static mc_status cast_dy(const probe *p)
{
    return cast(p, MC_FP8_DY, p->dy, p->rows, p->dy8, p->dy8t);
}
static mc_status cast_weight(const probe *p)
{
    return cast(p, MC_FP8_WEIGHT, p->weight, p->out, p->weight8, p->weight8t);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* One of the matrices: its pointer, and its size. */
typedef struct buffer {
    void **data;
    size_t bytes;
} buffer;
enum { BUFFERS = 14 };

static void list_buffers(probe *p, buffer list[BUFFERS])
{
    size_t x = (size_t)(p->rows * p->in), y = (size_t)(p->rows * p->out),
           w = (size_t)(p->out * p->in), xt = (size_t)(p->padded * p->in),
           yt = (size_t)(p->padded * p->out), size = mc_dtype_size(p->dtype);
    const buffer all[BUFFERS] = {
        {&p->x.data, size * x},
        {&p->dx.data, size * x},
        {&p->y.data, size * y},
        {&p->dy.data, size * y},
        {&p->weight.data, size * w},
        {&p->dweight.data, 4 * w},
        {(void **)&p->x8, x},
        {(void **)&p->x8t, xt},
        {(void **)&p->dy8, y},
        {(void **)&p->dy8t, yt},
        {(void **)&p->weight8, w},
        {(void **)&p->weight8t, w},
        {(void **)&p->scale, MC_FP8_ROLES * sizeof *p->scale},
        {(void **)&p->seen, MC_FP8_ROLES * sizeof *p->seen},
    };
    for (int i = 0; i < BUFFERS; i++) list[i] = all[i];
}

/* Random numbers of many magnitudes: a processor's power and clock depend on them. */
static mc_status fill(const probe *p, mc_matrix m, int64_t rows, float std, uint64_t key)
{
    mc_fill fill = {.kind = MC_FILL_NORMAL, .b = std, .key = key};
    return p->d->kernels->fill(p->d, fill, 0, rows * m.stride, m);
}

static mc_status fill_all(const probe *p)
{
    const mc_fp8_scale scale[MC_FP8_ROLES] = {{.scale = 64, .inverse = 1 / 64.0f},
                                              {.scale = 2048, .inverse = 1 / 2048.0f},
                                              {.scale = 0x1p24f, .inverse = 0x1p-24f}};
    const mc_kernels *k = p->d->kernels;
    mc_status status = fill(p, p->x, p->rows, 1, 1);
    p->d->copy_in(p->d, p->scale, scale, sizeof scale);
    if (!status) status = fill(p, p->weight, p->out, 0.02f, 2);
    if (!status) status = fill(p, p->dy, p->rows, 1e-4f, 3);
    if (!status) status = k->zero(p->d, p->seen, MC_FP8_ROLES * sizeof *p->seen);
    if (!status) status = k->zero(p->d, p->dweight.data, 4 * (size_t)(p->out * p->in));
    return status;
}

static mc_status probe_init(probe *p, mc_device *d, mc_dtype dtype, int64_t rows, int64_t out,
                            int64_t in)
{
    buffer list[BUFFERS];
    *p = (probe){.d = d,
                 .rows = rows,
                 .out = out,
                 .in = in,
                 .dtype = dtype,
                 .padded = mc_fp8_padded(rows),
                 .x = {NULL, dtype, in},
                 .dx = {NULL, dtype, in},
                 .y = {NULL, dtype, out},
                 .dy = {NULL, dtype, out},
                 .weight = {NULL, dtype, in},
                 .dweight = {NULL, MC_F32, in}};
    list_buffers(p, list);
    for (int i = 0; i < BUFFERS; i++)
        if (!(*list[i].data = d->alloc(d, list[i].bytes))) return MC_ERR_NOMEM;
    return fill_all(p);
}

static void probe_release(probe *p)
{
    buffer list[BUFFERS];
    list_buffers(p, list);
    for (int i = BUFFERS - 1; i >= 0; i--)
        if (*list[i].data) p->d->free(p->d, *list[i].data, list[i].bytes);
}

/* ---- time ------------------------------------------------------------------------------------ */

static double clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds per call, from `calls` calls in a row. Waits for a GPU before and after. */
static mc_status time_calls(const probe *p, mc_status (*kernel)(const probe *), int calls,
                            double *seconds)
{
    mc_fp8_scale scale;
    if (!p->d->copy_out(p->d, &scale, p->scale, sizeof scale)) return MC_ERR_DEVICE;
    double start = clock_now();
    mc_status status = MC_OK;
    for (int i = 0; i < calls && !status; i++) status = kernel(p);
    if (!status && !p->d->copy_out(p->d, &scale, p->scale, sizeof scale)) status = MC_ERR_DEVICE;
    *seconds = (clock_now() - start) / calls;
    return status;
}

static mc_status least_time(const probe *p, mc_status (*kernel)(const probe *), int runs, int calls,
                            double *least)
{
    double seconds;
    mc_status status = time_calls(p, kernel, 1, &seconds); /* tunes */
    *least = INFINITY;
    for (int i = 0; i < runs && !status; i++) {
        status = time_calls(p, kernel, calls, &seconds);
        *least = fmin(*least, seconds);
    }
    return status;
}

mc_status mc_fp8_measure(mc_device *d, mc_dtype dtype, int64_t rows, int64_t out, int64_t in,
                         int runs, int calls, mc_fp8_times *times)
{
    const struct {
        mc_status (*kernel)(const probe *);
        double *seconds;
    } all[] = {
        {forward, &times->wide[MC_FP8_FORWARD]},
        {input_gradient, &times->wide[MC_FP8_INPUT_GRADIENT]},
        {weight_gradient, &times->wide[MC_FP8_WEIGHT_GRADIENT]},
        /* casts before the products that use them */
        {cast_x, &times->cast_x},
        {cast_weight, &times->cast_weight},
        {forward8, &times->eight[MC_FP8_FORWARD]},
        {cast_dy, &times->cast_dy},
        {input_gradient8, &times->eight[MC_FP8_INPUT_GRADIENT]},
        {cast_x_again, &times->cast_x_again},
        {weight_gradient8, &times->eight[MC_FP8_WEIGHT_GRADIENT]},
    };
    probe p;
    size_t peak = d->memory.peak;
    mc_status status = probe_init(&p, d, dtype, rows, out, in);
    for (size_t i = 0; i < sizeof all / sizeof *all && !status; i++)
        status = least_time(&p, all[i].kernel, runs, calls, all[i].seconds);
    probe_release(&p);
    d->memory.peak = peak; /* the peak of training */
    return status;
}

double mc_fp8_products_of(const double products[MC_FP8_PRODUCTS])
{
    return products[MC_FP8_FORWARD] + products[MC_FP8_INPUT_GRADIENT] +
           products[MC_FP8_WEIGHT_GRADIENT];
}

double mc_fp8_casts_of(const mc_fp8_times *t, int passes)
{
    return t->cast_x + t->cast_x_again + t->cast_dy + t->cast_weight / passes;
}
