#include "datasets/pack_internal.h"

#include <string.h>
#include "tokenizers/tokenizer_internal.h"

enum { START_TOKENS = 1 << 16 };

int64_t mc_pack_start(const mc_pack_limits *limits)
{
    return limits->tokens < START_TOKENS ? limits->tokens : START_TOKENS;
}

int64_t mc_pack_grow(const mc_pack_limits *limits, int64_t room, int64_t wanted)
{
    int64_t grown = room < limits->tokens / 2 ? room * 2 : limits->tokens;
    return grown > wanted ? grown : wanted;
}

mc_status mc_packed_init(mc_error *err, mc_packed *p, const mc_pack_limits *limits, int choices)
{
    size_t rows = (size_t)limits->rows, sequences = rows * (size_t)choices;
    *p = (mc_packed){.room = mc_pack_start(limits)};
    p->ids = mc_calloc((size_t)p->room, sizeof *p->ids);
    p->type_ids = mc_calloc((size_t)p->room, sizeof *p->type_ids);
    p->length = mc_calloc(sequences, sizeof *p->length);
    p->offset = mc_calloc(sequences + 1, sizeof *p->offset);
    p->labels = mc_calloc(rows, sizeof *p->labels);
    p->row_index = mc_calloc(rows, sizeof *p->row_index);
    if (p->ids && p->type_ids && p->length && p->offset && p->labels && p->row_index) return MC_OK;
    mc_packed_release(p);
    return mc_error_set(err, MC_ERR_NOMEM, "out of memory for batches of %d rows", limits->rows);
}

void mc_packed_release(mc_packed *p)
{
    mc_free(p->ids);
    mc_free(p->type_ids);
    mc_free(p->length);
    mc_free(p->offset);
    mc_free(p->labels);
    mc_free(p->row_index);
    *p = (mc_packed){0};
}

/* Makes room for `wanted` tokens, keeping what is there. */
static mc_status reserve(mc_error *err, mc_packed *p, const mc_pack_limits *limits, int64_t wanted)
{
    if (wanted <= p->room) return MC_OK;
    int64_t room = mc_pack_grow(limits, p->room, wanted);
    int32_t *ids = mc_realloc(p->ids, (size_t)room * sizeof *ids);
    if (ids) p->ids = ids;
    int32_t *type_ids = mc_realloc(p->type_ids, (size_t)room * sizeof *type_ids);
    if (type_ids) p->type_ids = type_ids;
    if (!ids || !type_ids)
        return mc_error_set(err, MC_ERR_NOMEM, "out of memory for a batch of %lld tokens",
                            (long long)wanted);
    p->room = room;
    return MC_OK;
}

mc_status mc_pack_encode(mc_error *err, const mc_dataset *d, int64_t row, int choice,
                         mc_encoding *encoding)
{
    bool paired = d->task->pair[0] != NULL;
    size_t length, pair_length = 0;
    const char *text = mc_dataset_piece(d, row, paired ? choice * 2 : choice, &length);
    const char *pair = paired ? mc_dataset_piece(d, row, choice * 2 + 1, &pair_length) : NULL;
    mc_status status = mc_tokenizer_encode(d->tok, text, length, pair, pair_length,
                                           (size_t)d->max_length, encoding);
    if (status)
        return mc_error_set(err, status, "%s:%lld: cannot tokenize it: %s", d->path,
                            (long long)d->row[row].line, mc_status_text(status));
    if (!d->vocabulary ||
        mc_tokenizer_check(d->tok, err, encoding->ids, encoding->count, d->vocabulary) == MC_OK)
        return MC_OK;
    mc_error_while(err, "tokenizing %s:%lld", d->path, (long long)d->row[row].line);
    return err->status;
}

/* Appends the sequence of one text or pair. */
static mc_status add_sequence(mc_error *err, mc_packed *p, const mc_pack_limits *limits,
                              const mc_dataset *d, int64_t row, int choice, mc_encoding *encoding)
{
    mc_status status = mc_pack_encode(err, d, row, choice, encoding);
    if (status) return status;
    int64_t at = p->lengths.total, end = at + (int64_t)encoding->count;
    if (end > INT32_MAX - limits->round_to)
        return mc_error_set(err, MC_ERR_ARGUMENT, "a batch of over %lld tokens: use fewer rows",
                            (long long)at);
    status = reserve(err, p, limits, end);
    if (status) return status;
    memcpy(p->ids + at, encoding->ids, encoding->count * sizeof *p->ids);
    for (size_t i = 0; i < encoding->count; i++)
        p->type_ids[at + (int64_t)i] = encoding->type_ids[i];
    p->length[p->lengths.count] = (int32_t)encoding->count;
    p->offset[++p->lengths.count] = (int32_t)end;
    p->lengths.total = end;
    if ((int32_t)encoding->count > p->lengths.longest)
        p->lengths.longest = (int32_t)encoding->count;
    return MC_OK;
}

/* Rounds the capacity up and fills the tail. */
static mc_status add_tail(mc_error *err, mc_packed *p, const mc_pack_limits *limits)
{
    int64_t total = p->lengths.total;
    int64_t capacity = (total + limits->round_to - 1) / limits->round_to * limits->round_to;
    if (p->size.tokens) capacity = p->size.tokens;
    mc_status status = reserve(err, p, limits, capacity);
    if (status) return status;
    for (int64_t i = total; i < capacity; i++) {
        p->ids[i] = limits->pad_id;
        p->type_ids[i] = 0;
    }
    p->lengths.capacity = capacity;
    return MC_OK;
}

mc_status mc_pack(mc_error *err, mc_packed *p, const mc_pack_limits *limits, const mc_dataset *d,
                  const int32_t *row, int64_t stride, int rows, mc_encoding *encoding)
{
    p->rows = rows;
    p->lengths = (mc_lengths){.length = p->length, .offset = p->offset};
    p->offset[0] = 0;
    for (int i = rows; i < limits->rows; i++) p->labels[i] = MC_NO_LABEL;
    for (int i = 0; i < rows; i++) {
        int64_t r = row[i * stride];
        p->row_index[i] = r;
        p->labels[i] = d->row[r].label;
        for (int choice = 0; choice < d->task->choices; choice++) {
            mc_status status = add_sequence(err, p, limits, d, r, choice, encoding);
            if (status) return status;
        }
    }
    return add_tail(err, p, limits);
}
