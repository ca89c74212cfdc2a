/* Products of a few dozen rows, such as an encoder's single sentence.
 *
 * The libraries make three passes: they copy B and A into panels and multiply those. Here a thread
 * transposes MC_PANEL rows of B at a time, up to DEPTH elements of each, into a panel that stays in
 * its L2 cache, and multiplies all rows of A with it, in place. During the first of these rows it
 * prefetches the rows of B for the next panel. */
#include "core/device/cpu/isa/panel_internal.h"
#include "core/device/cpu/isa/rows_internal.h"

/* An AVX-512 panel has 48 KiB. A multiple of MC_LANES; sums are added in parts of this many
 * products, which limits rounding errors. */
enum { DEPTH = 384 };

/* panel (depth, MC_PANEL) = B's rows j .. and elements p .. p + depth, transposed. Anything but
 * whole f32 vectors is converted first. */
static void pack(const mc_rows_product *s, int64_t j, int64_t p, int64_t depth, float *panel)
{
    float converted[MC_PANEL * DEPTH];
    int64_t rows = mc_min_i64(MC_PANEL, s->n - j), wide = mc_round_up(depth, MC_LANES);
    int64_t at = p * mc_stored_size(s->stored);
    if (s->stored == MC_STORED_F32 && wide == depth) {
        const float *b = (const float *)(const void *)(mc_stored_row(s, j) + at);
        mc_pack_transposed(b, s->ldb, rows, depth, panel);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        float *to = converted + i * wide;
        mc_load_stored(s->stored, mc_stored_row(s, j + i) + at, depth, to);
        for (int64_t q = depth; q < wide; q++) to[q] = 0;
    }
    mc_pack_transposed(converted, wide, rows, wide, panel);
}

/* The rows of the next panel, to prefetch; none after the last. */
static mc_ahead rows_after(const mc_rows_product *s, int64_t j, int64_t p)
{
    int64_t size = mc_stored_size(s->stored);
    p += DEPTH;
    if (p >= s->k) {
        p = 0;
        j += MC_PANEL;
    }
    if (j + MC_PANEL > s->n) return (mc_ahead){0};
    return (mc_ahead){mc_stored_row(s, j) + p * size, s->ldb * size, MC_PANEL * size};
}

/* C's rows i .. i + rows and columns j .. [+]= factor * sums. */
static void add_sums(const mc_rows_product *s, int64_t i, int rows, int64_t j, bool is_first,
                     float sums[][MC_PANEL])
{
    int64_t columns = mc_min_i64(MC_PANEL, s->n - j);
    float factor[MC_PANEL], beta = is_first ? s->beta : 1;
    for (int64_t q = 0; q < columns; q++) factor[q] = mc_column_factor(s, j + q);
    for (int r = 0; r < rows; r++) {
        float *c = s->c + (i + r) * s->ldc + j;
        if (beta == 0)
            for (int64_t q = 0; q < columns; q++) c[q] = factor[q] * sums[r][q];
        else
            for (int64_t q = 0; q < columns; q++) c[q] = factor[q] * sums[r][q] + beta * c[q];
    }
}

/* C's columns from j on, from the panel of elements p .. p + depth of B's rows. */
static void multiply_panel(const mc_rows_product *s, int64_t j, int64_t p, int64_t depth,
                           const float *panel)
{
    float sums[MC_TILE_ROWS][MC_PANEL];
    for (int64_t i = 0; i < s->m; i += MC_TILE_ROWS) {
        int rows = (int)mc_min_i64(MC_TILE_ROWS, s->m - i);
        mc_tile_rows(rows, false, false, depth, s->a + i * s->lda + p, s->lda, panel, MC_PANEL,
                     sums[0], MC_PANEL, i == 0 ? rows_after(s, j, p) : (mc_ahead){0});
        add_sums(s, i, rows, j, p == 0, sums);
    }
}

/* MC_PANEL columns of C. The panel is on the stack, because batched_gemm's threads call this too,
 * and must not allocate from the device. */
static void multiply_item(void *call, int64_t item, int thread)
{
    const mc_rows_product *s = call;
    _Alignas(64) float panel[MC_PANEL * DEPTH];
    (void)thread;
    for (int64_t p = 0; p < s->k; p += DEPTH) {
        int64_t depth = mc_min_i64(DEPTH, s->k - p);
        pack(s, item * MC_PANEL, p, depth, panel);
        multiply_panel(s, item * MC_PANEL, p, depth, panel);
    }
}

void MC_K(skinny_gemm)(mc_device *d, const mc_rows_product *p)
{
    mc_run(d, p->m, mc_threads_for(p->m * p->n * p->k), (p->n + MC_PANEL - 1) / MC_PANEL,
           multiply_item, (void *)p);
}
