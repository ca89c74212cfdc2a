/* What training in 8 bits costs and saves: an update of each kind of linear layer of a transformer,
 * products in bf16 against products of bytes with their casts, through the kernel table.
 *
 *     bench/fp8 [ROWS [DIM [DIM_FF [DEVICE]]]]      tokens of a pass, sizes of the blocks
 *     bench/fp8 16384 1600 6400 cuda                GPT-2 1558M, B=16, T=1024
 *     bench/fp8 8192 4096 14336 cuda
 *
 * A line a layer, in milliseconds: forward, the input's gradient and the weight's gradient in bf16;
 * the same of bytes; casts of x (forward, and transposed in backward), of dy (both forms) and of
 * the weight (both forms, once an update); and how many times faster all of it is. The least of
 * several runs (core/device/fp8_measure.c, which --fp8 auto chooses by). */
#include <stdio.h>
#include <stdlib.h>
#include "core/device/fp8_measure_internal.h"

typedef struct layer {
    const char *name;
    int64_t out, in;
} layer;

static bool run_layer(mc_device *d, int64_t rows, const layer *l)
{
    mc_fp8_times t;
    mc_status status = mc_fp8_measure(d, MC_BF16, rows, l->out, l->in, 5, d->is_host ? 1 : 20, &t);
    if (status) {
        fprintf(stderr, "failed: %s %s\n", mc_status_text(status), d->failure);
        return false;
    }
    double wide = mc_fp8_products_of(t.wide), eight = mc_fp8_products_of(t.eight),
           casts = mc_fp8_casts_of(&t, 1);
    printf(
        "%-10s %6lld x %-6lld  bf16 %7.3f %7.3f %7.3f  fp8 %7.3f %7.3f %7.3f (%.2f times)  casts "
        "x %6.3f + %6.3f dy %6.3f w %6.3f  all %.2f times\n",
        l->name, (long long)l->out, (long long)l->in, 1e3 * t.wide[0], 1e3 * t.wide[1],
        1e3 * t.wide[2], 1e3 * t.eight[0], 1e3 * t.eight[1], 1e3 * t.eight[2], wide / eight,
        1e3 * t.cast_x, 1e3 * t.cast_x_again, 1e3 * t.cast_dy, 1e3 * t.cast_weight,
        wide / (eight + casts));
    fflush(stdout);
    return true;
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 1 ? atoll(argv[1]) : 512, dim = argc > 2 ? atoll(argv[2]) : 256;
    int64_t wide = argc > 3 ? atoll(argv[3]) : 4 * dim;
    mc_context *ctx = mc_context_new(&(mc_init_options){.device = argc > 4 ? argv[4] : "cpu"});
    const layer layers[] = {{"qkv", 3 * dim, dim},
                            {"attention", dim, dim},
                            {"ffn in", wide, dim},
                            {"ffn out", dim, wide}};
    if (rows % MC_FP8_UNIT || dim % MC_FP8_UNIT || wide % MC_FP8_UNIT) {
        fprintf(stderr, "expected multiples of %d\n", MC_FP8_UNIT);
        return 2;
    }
    if (mc_print_error(ctx, stderr)) return 1;
    printf("%lld rows, milliseconds: forward, input's gradient, weight's gradient\n",
           (long long)rows);
    bool good = true;
    for (size_t i = 0; good && i < sizeof layers / sizeof *layers; i++)
        good = run_layer(ctx->device, rows, &layers[i]);
    mc_context_free(ctx);
    return !good;
}
