#include "datasets/pack_internal.h"
#include "datasets/image/image_internal.h"
#include "datasets/rows.h"

#include <string.h>

enum { START_TOKENS = 1 << 16 };

int64_t mc_pack_start(int64_t most) { return most < START_TOKENS ? most : START_TOKENS; }

int64_t mc_pack_grow(int64_t most, int64_t room, int64_t wanted)
{
    int64_t grown = room < most / 2 ? room * 2 : most;
    return grown > wanted ? grown : wanted;
}

static bool init_stack(mc_packed_stack *s, size_t sequences, int64_t most)
{
    s->room = mc_pack_start(most);
    s->length = mc_calloc(sequences, sizeof *s->length);
    s->offset = mc_calloc(sequences + 1, sizeof *s->offset);
    bool ok = s->length && s->offset;
    for (int lane = 0; lane < MC_LANES; lane++)
        if (s->lanes & 1u << lane) {
            s->lane[lane] = mc_calloc((size_t)s->room, sizeof *s->lane[lane]);
            ok = ok && s->lane[lane];
        }
    return ok;
}

size_t mc_pixels_of(const mc_dataset *d)
{
    size_t size = (size_t)d->options.image.size;
    return MC_IMAGE_CHANNELS * size * size;
}

mc_status mc_packed_init(mc_error *err, mc_packed *p, const mc_pack_limits *limits,
                         const mc_dataset *d)
{
    size_t rows = (size_t)limits->rows, sequences = rows * (size_t)d->choices;
    bool ok = true;
    *p = (mc_packed){0};
    for (int i = 0; i < MC_STACKS; i++) {
        p->stack[i].lanes = mc_example_lanes(d, i);
        if (p->stack[i].lanes) ok = init_stack(&p->stack[i], sequences, limits->tokens[i]) && ok;
    }
    p->labels = mc_calloc(rows, sizeof *p->labels);
    p->answer_rows = mc_calloc(sequences, sizeof *p->answer_rows);
    p->row_index = mc_calloc(rows, sizeof *p->row_index);
    if (d->values) p->values = mc_calloc(rows * (size_t)d->values, sizeof *p->values);
    if (d->images) p->pixels = mc_calloc(rows * mc_pixels_of(d), sizeof *p->pixels);
    if (ok && p->labels && p->answer_rows && p->row_index && (p->values || !d->values) &&
        (p->pixels || !d->images))
        return MC_OK;
    mc_packed_release(p);
    return mc_error_set(err, MC_ERR_NOMEM, "out of memory for batches of %d rows", limits->rows);
}

void mc_packed_release(mc_packed *p)
{
    for (int i = 0; i < MC_STACKS; i++) {
        for (int lane = 0; lane < MC_LANES; lane++) mc_free(p->stack[i].lane[lane]);
        mc_free(p->stack[i].length);
        mc_free(p->stack[i].offset);
    }
    mc_free(p->labels);
    mc_free(p->answer_rows);
    mc_free(p->values);
    mc_free(p->pixels);
    mc_free(p->row_index);
    *p = (mc_packed){0};
}

/* Makes room for `wanted` tokens, keeping what is there. */
static mc_status reserve(mc_error *err, mc_packed_stack *s, int64_t most, int64_t wanted)
{
    if (wanted <= s->room) return MC_OK;
    int64_t room = mc_pack_grow(most, s->room, wanted);
    for (int lane = 0; lane < MC_LANES; lane++) {
        if (!(s->lanes & 1u << lane)) continue;
        int32_t *grown = mc_realloc(s->lane[lane], (size_t)room * sizeof *grown);
        if (!grown)
            return mc_error_set(err, MC_ERR_NOMEM, "out of memory for a batch of %lld tokens",
                                (long long)wanted);
        s->lane[lane] = grown;
    }
    s->room = room;
    return MC_OK;
}

/* Appends one sequence. */
static mc_status add_tokens(mc_error *err, mc_packed_stack *s, const mc_tokens *tokens,
                            int64_t most, int round_to)
{
    int64_t at = s->lengths.total, end = at + (int64_t)tokens->count;
    if (end > INT32_MAX - round_to)
        return mc_error_set(err, MC_ERR_ARGUMENT, "a batch of over %lld tokens: use fewer rows",
                            (long long)at);
    mc_status status = reserve(err, s, most, end);
    if (status) return status;
    for (int lane = 0; lane < MC_LANES; lane++)
        if (s->lanes & 1u << lane && tokens->count)
            memcpy(s->lane[lane] + at, tokens->lane[lane], tokens->count * sizeof **s->lane);
    s->length[s->lengths.count] = (int32_t)tokens->count;
    s->offset[++s->lengths.count] = (int32_t)end;
    s->lengths.total = end;
    if ((int32_t)tokens->count > s->lengths.longest) s->lengths.longest = (int32_t)tokens->count;
    return MC_OK;
}

static mc_status add_input(mc_error *err, mc_packed *p, const mc_pack_limits *limits,
                           const mc_dataset *d, int64_t row, int choice, mc_example *example)
{
    mc_status status = mc_example_make(err, example, d, row, choice);
    if (status) return status;
    mc_packed_stack *last = &p->stack[p->stack[MC_WRITER].lanes ? MC_WRITER : MC_READER];
    p->answer_rows[last->lengths.count] = (int32_t)last->lengths.total + example->answer_row;
    for (int i = 0; i < MC_STACKS && !status; i++)
        if (p->stack[i].lanes)
            status = add_tokens(err, &p->stack[i], &example->stack[i], limits->tokens[i],
                                limits->round_to);
    return status;
}

/* Rounds the capacity up and fills the tail. */
static mc_status add_tail(mc_error *err, mc_packed_stack *s, const mc_pack_limits *limits,
                          int64_t most)
{
    const int32_t filler[MC_LANES] = {
        [MC_LANE_IDS] = limits->pad_id, [MC_LANE_TARGETS] = MC_NO_LABEL};
    int64_t total = s->lengths.total;
    int64_t capacity = (total + limits->round_to - 1) / limits->round_to * limits->round_to;
    if (s->size.tokens) capacity = s->size.tokens;
    mc_status status = reserve(err, s, most, capacity);
    if (status) return status;
    for (int lane = 0; lane < MC_LANES; lane++)
        for (int64_t i = total; s->lanes & 1u << lane && i < capacity; i++)
            s->lane[lane][i] = filler[lane];
    s->lengths.capacity = capacity;
    return MC_OK;
}

/* What belongs to row `r`, the i-th of the batch, but its tokens. */
static void set_row(mc_packed *p, const mc_dataset *d, int i, int64_t r)
{
    p->row_index[i] = r;
    p->labels[i] = d->row[r].label;
    size_t values = (size_t)d->values;
    if (values)
        memcpy(p->values + (size_t)i * values, mc_dataset_values(d, r), values * sizeof *p->values);
}

/* Reads the image of row `r`, the i-th of the batch. */
static mc_status add_image(mc_error *err, mc_packed *p, const mc_dataset *d, int i, int64_t r)
{
    char path[MC_PATH_MAX];
    size_t size;
    const char *name = mc_dataset_piece(d, r, 0, &size);
    mc_status status = mc_image_path(err, path, d->beside ? mc_dataset_file(d, r) : NULL, name);
    if (!status)
        status =
            mc_image_load(err, path, &d->options.image, p->pixels + (size_t)i * mc_pixels_of(d));
    if (status) mc_error_prefix(err, "%s:%lld: ", mc_dataset_file(d, r), (long long)d->row[r].line);
    return status;
}

mc_status mc_pack(mc_error *err, mc_packed *p, const mc_pack_limits *limits, const mc_dataset *d,
                  const int32_t *row, int64_t stride, int rows, mc_example *example)
{
    mc_status status = MC_OK;
    p->rows = rows;
    for (int i = 0; i < MC_STACKS; i++) {
        mc_packed_stack *s = &p->stack[i];
        s->lengths = (mc_lengths){.length = s->length, .offset = s->offset};
        if (s->offset) s->offset[0] = 0;
    }
    for (int i = rows; i < limits->rows; i++) p->labels[i] = MC_NO_LABEL;
    size_t values = (size_t)d->values, past = (size_t)(limits->rows - rows) * values;
    if (past) memset(p->values + (size_t)rows * values, 0, past * sizeof *p->values);
    size_t unused = d->images ? (size_t)(limits->rows - rows) * mc_pixels_of(d) : 0;
    if (unused) memset(p->pixels + (size_t)rows * mc_pixels_of(d), 0, unused * sizeof *p->pixels);
    for (int i = rows * d->choices; i < limits->rows * d->choices; i++) p->answer_rows[i] = 0;
    for (int i = 0; i < rows && !status; i++) {
        set_row(p, d, i, row[i * stride]);
        if (d->images) status = add_image(err, p, d, i, row[i * stride]);
        for (int choice = 0; !d->images && choice < d->choices && !status; choice++)
            status = add_input(err, p, limits, d, row[i * stride], choice, example);
    }
    for (int i = 0; i < MC_STACKS && !status; i++)
        if (p->stack[i].lanes) status = add_tail(err, &p->stack[i], limits, limits->tokens[i]);
    return status;
}
