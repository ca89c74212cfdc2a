/* Choosing tokens: rows in parallel, each as choose_internal.h has it. */
#include "core/device/cpu/isa/convert_internal.h"

/* A row of logits as f32, then room for the order of its tokens. */
static void choose_row(const mc_choose_call *c, mc_matrix logits, int64_t row, float *scratch)
{
    int32_t *order = (int32_t *)(scratch + c->vocab);
    mc_chosen chosen = {MC_CHOSEN_NOTHING, 0};
    if (!c->state[MC_ROW_ENDED * c->stride + row]) {
        mc_convert_in(logits.data, logits.dtype, row * logits.stride, c->vocab, scratch);
        chosen = mc_choose(c, row, scratch, order);
    }
    mc_choose_note(c, row, chosen);
}

mc_status MC_K(best_tokens)(mc_device *d, const mc_best_call *c, mc_matrix logits)
{
    if (c->rows == 0) return MC_OK;
    int64_t threads = mc_min_i64(omp_get_max_threads(), c->rows);
    float *scratch = mc_scratch_new(d, c->vocab * threads);
    if (!scratch) return MC_ERR_NOMEM;
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t row = 0; row < c->rows; row++) {
        float *x = scratch + c->vocab * omp_get_thread_num();
        mc_convert_in(logits.data, logits.dtype, row * logits.stride, c->vocab, x);
        mc_find_best(c, row, x);
    }
    mc_scratch_free(d, scratch, c->vocab * threads);
    return MC_OK;
}

mc_status MC_K(choose_tokens)(mc_device *d, const mc_choose_call *c, mc_matrix logits)
{
    if (c->rows == 0) return MC_OK;
    int64_t threads = mc_min_i64(omp_get_max_threads(), c->rows), each = 2 * c->vocab;
    float *scratch = mc_scratch_new(d, each * threads);
    if (!scratch) return MC_ERR_NOMEM;
#pragma omp parallel for schedule(static) num_threads((int)threads)
    for (int64_t row = 0; row < c->rows; row++)
        choose_row(c, logits, row, scratch + each * omp_get_thread_num());
    mc_scratch_free(d, scratch, each * threads);
    return MC_OK;
}
