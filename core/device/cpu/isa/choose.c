/* Choosing tokens: rows in parallel, each as in choose_internal.h. */
#include "core/device/cpu/isa/convert_internal.h"

/* scratch: a row of logits as f32, then the order of its tokens. */
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

typedef struct rows_call {
    const void *call; /* mc_choose_call or mc_best_call */
    mc_matrix logits;
    int64_t each; /* floats of a thread's scratch memory */
    float *scratch;
} rows_call;

static mc_status run_rows(mc_device *d, int64_t rows, rows_call k, mc_item_work work)
{
    if (rows == 0) return MC_OK;
    int64_t threads = mc_min_i64(mc_threads_for(rows * k.each), rows);
    k.scratch = mc_scratch_new(d, k.each * threads);
    if (!k.scratch) return MC_ERR_NOMEM;
    mc_run(d, rows, (int)threads, rows, work, &k);
    mc_scratch_free(d, k.scratch, k.each * threads);
    return MC_OK;
}

static void best_item(void *call, int64_t row, int thread)
{
    const rows_call *k = call;
    const mc_best_call *c = k->call;
    float *x = k->scratch + k->each * thread;
    mc_convert_in(k->logits.data, k->logits.dtype, row * k->logits.stride, c->vocab, x);
    mc_find_best(c, row, x);
}

mc_status MC_K(best_tokens)(mc_device *d, const mc_best_call *c, mc_matrix logits)
{
    return run_rows(d, c->rows, (rows_call){c, logits, c->vocab, NULL}, best_item);
}

static void choose_item(void *call, int64_t row, int thread)
{
    const rows_call *k = call;
    choose_row(k->call, k->logits, row, k->scratch + k->each * thread);
}

mc_status MC_K(choose_tokens)(mc_device *d, const mc_choose_call *c, mc_matrix logits)
{
    return run_rows(d, c->rows, (rows_call){c, logits, 2 * c->vocab, NULL}, choose_item);
}
