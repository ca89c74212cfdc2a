/* Next tokens: the stream as it is. */
#include <string.h>
#include "datasets/lm/objective_internal.h"

static int window(mc_context *ctx, const mc_objective_options *o)
{
    (void)ctx;
    return o->seq_length;
}

static int width(const mc_objective_options *o, mc_objective_field field)
{
    return field == MC_FIELD_IDS || field == MC_FIELD_TARGETS ? o->seq_length : 0;
}

static void make(const mc_objective *objective, const mc_objective_row *row, int32_t *scratch)
{
    size_t bytes = (size_t)objective->window * sizeof(int32_t);
    (void)scratch;
    memcpy(row->field[MC_FIELD_IDS], row->window, bytes);
    memcpy(row->field[MC_FIELD_TARGETS], row->next, bytes);
}

const mc_objective_kind_table mc_objective_next_token = {
    .window = window, .width = width, .make = make};
