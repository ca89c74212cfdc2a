#include "datasets/example_internal.h"

#include <stdlib.h>
#include <string.h>
#include "tokenizers/tokenizer_internal.h"
#include "datasets/blank_prompt_internal.h"
#include "datasets/rows.h"
#include "tokenizers/details.h"

enum {
    IDS = 1 << MC_LANE_IDS,
    TYPES = 1 << MC_LANE_TYPES,
    MARKS = 1 << MC_LANE_MARKS,
    TARGETS = 1 << MC_LANE_TARGETS
};

static bool has_two_stacks(const mc_dataset *d)
{
    mc_prompt_style style = d->options.prompt.style;
    return style == MC_PROMPT_T5 || style == MC_PROMPT_CPM2;
}

static bool is_prompted(const mc_dataset *d)
{
    return d->kind == MC_TASK_GENERATE || d->kind == MC_TASK_ANSWER;
}

unsigned mc_example_lanes(const mc_dataset *d, int stack)
{
    if (d->images) return 0;
    if (!is_prompted(d)) return stack == MC_READER ? IDS | TYPES : 0;
    if (has_two_stacks(d)) {
        bool target = stack == MC_WRITER && d->kind == MC_TASK_GENERATE;
        return IDS | (target ? TARGETS : 0);
    }
    if (stack == MC_WRITER) return 0;
    if (d->options.prompt.style != MC_PROMPT_CPM1) return IDS | TARGETS;
    return IDS | MARKS | (d->kind == MC_TASK_GENERATE ? TARGETS : 0);
}

int mc_example_limit(const mc_dataset *d, int stack)
{
    if (stack == MC_READER) return d->options.max_length;
    return d->kind == MC_TASK_GENERATE ? d->options.max_target_length : 2;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Makes room for `count` tokens. */
static mc_status reserve(mc_error *err, mc_tokens *t, size_t count)
{
    if (count <= t->capacity) return MC_OK;
    for (int lane = 0; lane < MC_LANES; lane++) {
        int32_t *grown = mc_realloc(t->lane[lane], 2 * count * sizeof *grown);
        if (!grown) return mc_error_set(err, MC_ERR_NOMEM, "out of memory for %zu tokens", count);
        t->lane[lane] = grown;
    }
    t->capacity = 2 * count;
    return MC_OK;
}

/* Sets lanes to those of `count` tokens of which nothing is known but their ids. */
static mc_status begin(mc_error *err, mc_tokens *t, const int32_t *ids, size_t count)
{
    mc_status status = reserve(err, t, count + 1);
    if (status) return status;
    if (count) memcpy(t->lane[MC_LANE_IDS], ids, count * sizeof *ids);
    t->count = count;
    for (size_t i = 0; i < count; i++) {
        t->lane[MC_LANE_TYPES][i] = t->lane[MC_LANE_MARKS][i] = 0;
        t->lane[MC_LANE_TARGETS][i] = MC_NO_LABEL;
    }
    return MC_OK;
}

static mc_status add(mc_error *err, mc_tokens *t, int32_t id, int32_t mark)
{
    mc_status status = reserve(err, t, t->count + 1);
    if (status) return status;
    t->lane[MC_LANE_IDS][t->count] = id;
    t->lane[MC_LANE_TYPES][t->count] = 0;
    t->lane[MC_LANE_MARKS][t->count] = mark;
    t->lane[MC_LANE_TARGETS][t->count++] = MC_NO_LABEL;
    return MC_OK;
}

static mc_status add_all(mc_error *err, mc_tokens *t, const int32_t *ids, size_t count,
                         int32_t mark)
{
    mc_status status = MC_OK;
    for (size_t i = 0; i < count && !status; i++) status = add(err, t, ids[i], mark);
    return status;
}

/* ---- the forms ------------------------------------------------------------------------------- */

typedef struct making {
    mc_error *err;
    mc_example *e;
    const mc_dataset *d;
    int64_t row;
    int choice;
} making;

static mc_status refuse(making *m, mc_status status)
{
    return mc_error_set(m->err, status, "%s:%lld: cannot tokenize it: %s",
                        mc_dataset_file(m->d, m->row), (long long)m->d->row[m->row].line,
                        mc_status_text(status));
}

/* The ids of a text without special tokens. */
static mc_status append(making *m, int which, mc_encoding *encoding)
{
    size_t length;
    const char *text = mc_dataset_piece(m->d, m->row, which, &length);
    encoding->count = 0;
    mc_status status = mc_tokenizer_append(m->d->tok, text, length, encoding);
    return status ? refuse(m, status) : MC_OK;
}

/* The ids of a text, or pair, with special tokens and cut to `limit`; 0: not cut. */
static mc_status encode(making *m, int which, bool paired, size_t limit, mc_encoding *encoding)
{
    size_t length, pair_length = 0;
    const char *text = mc_dataset_piece(m->d, m->row, which, &length);
    const char *pair = paired ? mc_dataset_piece(m->d, m->row, which + 1, &pair_length) : NULL;
    mc_status status =
        mc_tokenizer_encode(m->d->tok, text, length, pair, pair_length, limit, encoding);
    return status ? refuse(m, status) : MC_OK;
}

static int target_piece(const mc_dataset *d) { return mc_dataset_pieces(d) - 1; }

/* Texts and pairs between special tokens. */
static mc_status make_text(making *m)
{
    const mc_dataset *d = m->d;
    mc_encoding *text = &m->e->text;
    mc_tokens *out = &m->e->stack[MC_READER];
    int which = m->choice * (d->paired ? 2 : 1);
    mc_status status = encode(m, which, d->paired, (size_t)d->options.max_length, text);
    if (!status) status = begin(m->err, out, text->ids, text->count);
    for (size_t i = 0; i < text->count && !status; i++)
        out->lane[MC_LANE_TYPES][i] = text->type_ids[i];
    return status;
}

/* The last `room` of the ids. */
static mc_status add_end_of(making *m, mc_tokens *out, const mc_encoding *ids, size_t room,
                            int32_t mark)
{
    size_t count = ids->count < room ? ids->count : room;
    return add_all(m->err, out, ids->ids + (ids->count - count), count, mark);
}

/* A prompt and the answer after it, in one stack. */
static mc_status make_response(making *m)
{
    const mc_dataset *d = m->d;
    mc_encoding *prompt = &m->e->text, *response = &m->e->second;
    mc_tokens *out = &m->e->stack[MC_READER];
    bool cpm = d->options.prompt.style == MC_PROMPT_CPM1;
    size_t most = (size_t)d->options.max_length - (cpm ? 1 : 0);
    mc_status status = append(m, 0, prompt);
    if (!status) status = append(m, target_piece(d), response);
    if (!status) status = begin(m->err, out, &d->begin, cpm ? 1 : 0);
    if (status) return status;
    if (cpm) out->lane[MC_LANE_MARKS][0] = 1;
    /* targets of the answer: its tokens and the end; the last of them is read by no row */
    size_t targets = response->count + !d->open_end, limit = (size_t)d->options.max_target_length;
    if (!targets) return refuse(m, MC_ERR_ARGUMENT);
    size_t kept = prompt->count > 0; /* one token of the prompt at least */
    if (limit > most - kept + 1) limit = most - kept + 1;
    if (targets > limit) targets = limit;
    status = add_end_of(m, out, prompt, most - (targets - 1), cpm ? 1 : 0);
    size_t first = out->count;
    if (!status) status = add_all(m->err, out, response->ids, targets - 1, 0);
    for (size_t i = 0; i < targets && !status; i++)
        if (first + i > 0)
            out->lane[MC_LANE_TARGETS][first + i - 1] =
                i < response->count ? response->ids[i] : d->end_of_text;
    return status;
}

/* A prompt with a blank, and the answer that fills it in. Rows of the answer follow the token that
 * begins it. */
static mc_status make_piece(making *m)
{
    const mc_dataset *d = m->d;
    mc_encoding *prompt = &m->e->text, *response = &m->e->second;
    mc_tokens *out = &m->e->stack[MC_READER];
    size_t length, most = (size_t)d->options.max_length;
    const char *text = mc_dataset_piece(d, m->row, 0, &length);
    mc_status status = append(m, target_piece(d), response);
    size_t targets = response->count + 1, limit = (size_t)d->options.max_target_length;
    if (limit > most / 2) limit = most / 2; /* which leaves room for a text */
    if (targets > limit) targets = limit;
    prompt->count = 0;
    if (!status && mc_blank_prompt(m->err, d->tok, text, length, most - targets + 1, prompt)) {
        mc_error_prefix(m->err, "%s:%lld: ", mc_dataset_file(d, m->row),
                        (long long)d->row[m->row].line);
        status = m->err->status;
    }
    if (!status) status = begin(m->err, out, prompt->ids, prompt->count);
    size_t first = out->count;
    if (!status) status = add_all(m->err, out, response->ids, targets - 1, 0);
    for (size_t i = 0; i < targets && !status; i++)
        out->lane[MC_LANE_TARGETS][first + i - 1] =
            i < response->count ? response->ids[i] : d->end_of_piece;
    return status;
}

/* How many of a conversation's tokens its first `size` bytes alone give: where both differ, a token
 * reaches over the border. */
static mc_status count_before(making *m, const char *text, size_t size, size_t *count)
{
    mc_encoding *whole = &m->e->text, *part = &m->e->second;
    part->count = *count = 0;
    mc_status status = mc_tokenizer_append(m->d->tok, text, size, part);
    if (status) return refuse(m, status);
    while (*count < part->count && *count < whole->count && part->ids[*count] == whole->ids[*count])
        ++*count;
    return MC_OK;
}

/* A whole conversation: what the assistant says is to be given, by the token before each. One that
 * is too long loses its beginning. */
static mc_status make_conversation(making *m)
{
    const mc_dataset *d = m->d;
    mc_tokens *out = &m->e->stack[MC_READER];
    size_t size, length, most = (size_t)d->options.max_length, targets = 0;
    const char *text = mc_dataset_piece(d, m->row, 0, &size);
    const char *spans = mc_dataset_piece(d, m->row, target_piece(d), &length);
    mc_status status = append(m, 0, &m->e->text);
    size_t count = m->e->text.count, dropped = count > most ? count - most : 0;
    if (!status) status = begin(m->err, out, m->e->text.ids + dropped, count - dropped);
    for (char *next; !status && *spans; spans = next + 1) {
        size_t start = strtoul(spans, &next, 10), end = strtoul(next, &next, 10), first, last;
        status = count_before(m, text, start, &first);
        if (!status) status = count_before(m, text, end, &last);
        for (size_t i = first; !status && i < last; i++) {
            if (i <= dropped) continue; /* no token stands before it */
            out->lane[MC_LANE_TARGETS][i - dropped - 1] = m->e->text.ids[i];
            targets++;
        }
    }
    return status || targets ? status : refuse(m, MC_ERR_ARGUMENT);
}

/* The decoder's ids and targets for an answer: the start token, and the answer but for its last. */
static mc_status make_written(making *m, const int32_t *targets, size_t count)
{
    mc_tokens *out = &m->e->stack[MC_WRITER];
    mc_status status = begin(m->err, out, &m->d->options.prompt.start_token, 1);
    for (size_t i = 0; i + 1 < count && !status; i++) status = add(m->err, out, targets[i], 0);
    for (size_t i = 0; i < count && !status; i++) out->lane[MC_LANE_TARGETS][i] = targets[i];
    return status;
}

static mc_status make_t5_target(making *m)
{
    const mc_dataset *d = m->d;
    mc_encoding *source = &m->e->text, *target = &m->e->second;
    size_t room = (size_t)d->options.max_length;
    mc_status status = encode(m, 0, false, d->keep_end ? 0 : room, source);
    if (!status)
        status = encode(m, target_piece(d), false, (size_t)d->options.max_target_length, target);
    if (!status) status = begin(m->err, &m->e->stack[MC_READER], NULL, 0);
    if (!status) status = add_end_of(m, &m->e->stack[MC_READER], source, room, 0);
    return status ? status : make_written(m, target->ids, target->count);
}

/* What CPM-2's encoder reads. */
static mc_status make_cpm2_source(making *m)
{
    mc_tokens *out = &m->e->stack[MC_READER];
    mc_status status = append(m, 0, &m->e->text);
    if (!status) status = begin(m->err, out, NULL, 0);
    size_t room = (size_t)m->d->options.max_length - 1;
    if (!status) status = add_end_of(m, out, &m->e->text, room, 0);
    return status ? status : add(m->err, out, m->d->sentinel, 0);
}

static mc_status make_cpm2_target(making *m)
{
    const mc_dataset *d = m->d;
    mc_encoding *target = &m->e->second;
    mc_tokens *out = &m->e->stack[MC_WRITER];
    mc_status status = make_cpm2_source(m);
    if (!status) status = append(m, target_piece(d), target);
    if (status) return status;
    size_t count = target->count + 1, limit = (size_t)d->options.max_target_length;
    bool cut = count > limit;
    if (cut) count = limit;
    status = make_written(m, target->ids, count - !cut);
    if (status || cut) return status;
    if (target->count) status = add(m->err, out, target->ids[target->count - 1], 0);
    if (!status) out->lane[MC_LANE_TARGETS][out->count - 1] = d->end_of_text;
    return status;
}

/* ---- answers in a prompt --------------------------------------------------------------------- */

static mc_status make_decoder_answer(making *m)
{
    const mc_dataset *d = m->d;
    mc_tokens *out = &m->e->stack[MC_READER];
    mc_status status = append(m, 0, &m->e->text);
    if (!status) status = begin(m->err, out, NULL, 0);
    if (!status) status = add_end_of(m, out, &m->e->text, (size_t)d->options.max_length, 0);
    if (!status && !out->count) return refuse(m, MC_ERR_ARGUMENT);
    for (size_t i = 0; i + 1 < out->count && !status; i++)
        out->lane[MC_LANE_TARGETS][i] = out->lane[MC_LANE_IDS][i + 1];
    m->e->answer_row = (int32_t)out->count - 1;
    return status;
}

static mc_status make_t5_answer(making *m)
{
    const mc_dataset *d = m->d;
    mc_tokens *out = &m->e->stack[MC_READER], *written = &m->e->stack[MC_WRITER];
    mc_status status = encode(m, 0, false, 0, &m->e->text);
    if (!status) status = begin(m->err, out, NULL, 0);
    if (!status) status = add_end_of(m, out, &m->e->text, (size_t)d->options.max_length, 0);
    if (!status) status = begin(m->err, written, &d->options.prompt.start_token, 1);
    m->e->answer_row = 1;
    return status ? status : add(m->err, written, d->sentinel, 0);
}

/* <s> left blank right: all but the blank is context. The left text loses its beginning. */
static mc_status make_cpm1_answer(making *m)
{
    const mc_dataset *d = m->d;
    mc_encoding *left = &m->e->text, *right = &m->e->second;
    mc_tokens *out = &m->e->stack[MC_READER];
    mc_status status = append(m, 0, left);
    right->count = 0;
    if (!status && d->paired) status = append(m, 1, right);
    size_t rest = right->count + 2, most = (size_t)d->options.max_length;
    if (!status && rest > most) return refuse(m, MC_ERR_ARGUMENT);
    if (!status) status = begin(m->err, out, NULL, 0);
    if (!status) status = add(m->err, out, d->begin, 1);
    if (!status) status = add_end_of(m, out, left, most - rest, 1);
    m->e->answer_row = (int32_t)out->count - 1;
    if (!status) status = add(m->err, out, 0, 0);
    return status ? status : add_all(m->err, out, right->ids, right->count, 1);
}

static mc_status make_cpm2_answer(making *m)
{
    mc_status status = make_cpm2_source(m);
    m->e->answer_row = 0;
    if (!status)
        status = begin(m->err, &m->e->stack[MC_WRITER], &m->d->options.prompt.start_token, 1);
    return status;
}

static mc_status make(making *m)
{
    bool generate = m->d->kind == MC_TASK_GENERATE;
    if (!is_prompted(m->d)) return make_text(m);
    if (m->d->chat_format && !m->d->answers) return make_conversation(m);
    switch (m->d->options.prompt.style) {
    case MC_PROMPT_T5: return generate ? make_t5_target(m) : make_t5_answer(m);
    case MC_PROMPT_CPM2: return generate ? make_cpm2_target(m) : make_cpm2_answer(m);
    case MC_PROMPT_GLM: return make_piece(m);
    case MC_PROMPT_CPM1: return generate ? make_response(m) : make_cpm1_answer(m);
    default: return generate ? make_response(m) : make_decoder_answer(m);
    }
}

mc_status mc_example_make(mc_error *err, mc_example *e, const mc_dataset *d, int64_t row,
                          int choice)
{
    making m = {.err = err, .e = e, .d = d, .row = row, .choice = choice};
    e->stack[MC_WRITER].count = 0;
    mc_status status = make(&m);
    if (!status && !e->stack[MC_READER].count)
        status = mc_error_set(err, MC_ERR_FORMAT,
                              "%s:%lld: the text has no tokens, expected one at least",
                              mc_dataset_file(d, row), (long long)d->row[row].line);
    if (status || !d->options.vocabulary) return status;
    for (int i = 0; i < MC_STACKS && !status; i++)
        status = mc_tokenizer_check(d->tok, err, e->stack[i].lane[MC_LANE_IDS], e->stack[i].count,
                                    d->options.vocabulary);
    if (status)
        mc_error_while(err, "tokenizing %s:%lld", mc_dataset_file(d, row),
                       (long long)d->row[row].line);
    return status;
}

void mc_example_release(mc_example *e)
{
    for (int i = 0; i < MC_STACKS; i++)
        for (int lane = 0; lane < MC_LANES; lane++) mc_free(e->stack[i].lane[lane]);
    mc_encoding_release(&e->text);
    mc_encoding_release(&e->second);
    *e = (mc_example){0};
}
