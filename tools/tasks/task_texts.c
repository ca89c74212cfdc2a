/* Rows with a text to be generated: how probable it is, and what the model writes instead. */
#include <stdlib.h>
#include <string.h>
#include "tools/tasks/task_score.h"

enum { CHUNK = 512 }; /* rows whose logits exist at a time */

/* A tensor of i32 on the host, for free(); NULL with the context's error. */
static int32_t *read_ids(mc_context *ctx, const mc_tensor *tensor)
{
    int64_t count = mc_tensor_count(tensor);
    float *read = malloc(((size_t)count + 1) * sizeof *read);
    int32_t *ids = malloc(((size_t)count + 1) * sizeof *ids);
    if (read && ids) {
        mc_tensor_read_f32(ctx, tensor, read, count); /* exact: vocabularies are below 2^24 */
        for (int64_t i = 0; i < count && !mc_failed(ctx); i++) ids[i] = (int32_t)read[i];
    } else {
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a batch's tokens");
    }
    free(read);
    if (!mc_failed(ctx)) return ids;
    free(ids);
    return NULL;
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* Rows that have a target, and whose they are. */
typedef struct targets {
    int32_t *row, *label;
    int *sequence;
    int64_t count;
} targets;

/* All that a row is trained to give: where an answer ends a text, its end is part of it, or a short
 * candidate would be more probable than any that it begins. */
static bool find_targets(mc_context *ctx, const mc_lengths *lengths, const int32_t *target,
                         targets *all)
{
    size_t room = (size_t)lengths->offset[lengths->count] + 1;
    *all = (targets){.row = malloc(room * sizeof *all->row),
                     .label = malloc(room * sizeof *all->label),
                     .sequence = malloc(room * sizeof *all->sequence)};
    if (!all->row || !all->label || !all->sequence) {
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a batch's answers");
        return false;
    }
    for (int s = 0; s < lengths->count; s++)
        for (int32_t i = lengths->offset[s]; i < lengths->offset[s] + lengths->length[s]; i++) {
            if (target[i] < 0) continue;
            all->row[all->count] = i;
            all->label[all->count] = target[i];
            all->sequence[all->count++] = s;
        }
    return true;
}

static void release_targets(targets *all)
{
    free(all->row);
    free(all->label);
    free(all->sequence);
}

/* The losses of targets from the first on, at most CHUNK and perhaps none. */
static int64_t read_losses(mc_tape *t, mc_model *model, mc_tensor *hidden, const targets *all,
                           int64_t first, float loss[CHUNK])
{
    int64_t left = all->count > first ? all->count - first : 0, n = left < CHUNK ? left : CHUNK;
    const int32_t none = 0, *label = n ? all->label + first : &none;
    mc_tensor *rows = mc_gather_rows(t, hidden, n ? all->row + first : &none, n);
    mc_tensor *logits = mc_model_logits(t, model, rows);
    mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(n), label, false);
    mc_tensor *losses = logits ? mc_cross_entropy_rows(t, logits, labels, NULL) : NULL;
    if (losses) mc_tensor_read_f32(mc_tape_context(t), losses, loss, n);
    return losses ? n : 0;
}

/* The sum of each sequence's log-probabilities, and its targets. Ranks take as many turns as the
 * one with the most targets, since they may share the head's shards. */
static bool add_up(mc_tape *t, mc_model *model, mc_tensor *hidden, const targets *all, double *sum,
                   int64_t *tokens)
{
    mc_context *ctx = mc_tape_context(t);
    double most = -ranks_least(ctx, -(double)all->count);
    for (int64_t first = 0; (double)first < most && !mc_failed(ctx); first += CHUNK) {
        float loss[CHUNK];
        int64_t n = read_losses(t, model, hidden, all, first, loss);
        for (int64_t i = 0; i < n; i++) {
            sum[all->sequence[first + i]] -= loss[i];
            tokens[all->sequence[first + i]]++;
        }
    }
    return !mc_failed(ctx);
}

bool task_add_candidates(mc_tape *t, const task_exam *e, task_counts *c)
{
    const mc_batch *b = e->batch;
    const mc_lengths *lengths = b->decoder_lengths ? b->decoder_lengths : b->lengths;
    mc_tensor *hidden = task_hidden(t, e->model, b);
    size_t count = (size_t)lengths->count + 1;
    double *sum = calloc(count, sizeof *sum);
    int64_t *tokens = calloc(count, sizeof *tokens);
    int32_t *target = hidden ? read_ids(c->ctx, b->targets) : NULL;
    targets all = {0};
    if (!sum || !tokens) mc_set_error(c->ctx, MC_ERR_NOMEM, "out of memory for a batch's answers");
    bool ok = sum && tokens && target && find_targets(c->ctx, lengths, target, &all) &&
              add_up(t, e->model, hidden, &all, sum, tokens);
    for (int i = 0; ok && i < b->rows; i++) {
        float score = (float)sum[i];
        ok = task_counts_check(c, e, b->row_index[i], "log-probabilities", &score, 1);
        if (ok) mc_scorer_add_candidate(c->scorer, b->row_index[i], sum[i], tokens[i]);
    }
    release_targets(&all);
    free(sum);
    free(tokens);
    free(target);
    return ok && !mc_failed(c->ctx);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* T5's blanks say what of a benchmark's text is the answer. */
static bool has_blanks(const mc_dataset *dataset)
{
    return mc_dataset_prompt(dataset).style == MC_PROMPT_T5 && mc_dataset_task(dataset);
}

/* The prompts of a batch: ids, and where each begins. */
typedef struct prompts {
    int32_t *ids, *targets;
    const int32_t **prompt; /* (rows) */
    int *length;
    int longest;
} prompts;

static void release_prompts(prompts *p)
{
    free(p->ids);
    free(p->targets);
    free(p->prompt);
    free(p->length);
}

/* What comes before the first target; of an encoder-decoder all that the encoder reads. */
static bool find_prompts(mc_context *ctx, const mc_batch *b, prompts *p)
{
    *p = (prompts){.ids = read_ids(ctx, b->ids)};
    if (!b->decoder_ids) p->targets = read_ids(ctx, b->targets);
    p->prompt = calloc((size_t)b->rows + 1, sizeof *p->prompt);
    p->length = calloc((size_t)b->rows + 1, sizeof *p->length);
    if (!p->prompt || !p->length)
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a batch's prompts");
    if (mc_failed(ctx)) return false;
    for (int i = 0; i < b->rows; i++) {
        int32_t first = b->lengths->offset[i], length = b->lengths->length[i], n = 0;
        while (p->targets && n < length && p->targets[first + n] < 0) n++;
        p->prompt[i] = p->ids + first;
        p->length[i] = p->targets ? n + (n < length) : length;
        if (p->length[i] > p->longest) p->longest = p->length[i];
    }
    return true;
}

enum { MOST_ENDS = 32 }; /* more than a model has (16), and the two of other kinds */

/* What ends a text: the model's end tokens, T5's next blank, the end of a message. */
typedef struct text_ends {
    int32_t id[MOST_ENDS];
    int own, count;      /* the model's come first */
    const char *message; /* of a chat format; NULL: none. It may be several tokens */
} text_ends;

static void add_end(text_ends *ends, int32_t id)
{
    bool known = id < 0 || ends->count == MOST_ENDS;
    for (int i = 0; i < ends->count; i++) known = known || ends->id[i] == id;
    if (!known) ends->id[ends->count++] = id;
}

static text_ends ends_of(const task_exam *e, const mc_dataset *dataset)
{
    text_ends ends = {.count = 0};
    mc_chat_format format = mc_dataset_chat_format(dataset);
    int own;
    const int32_t *id = mc_model_end_tokens(e->model, &own);
    for (int i = 0; i < own; i++) add_end(&ends, id[i]);
    ends.own = ends.count;
    if (has_blanks(dataset)) add_end(&ends, mc_tokenizer_token_to_id(e->tokenizer, "<extra_id_1>"));
    if (format) ends.message = mc_chat_format_end(format, e->tokenizer);
    if (ends.message) add_end(&ends, mc_tokenizer_token_to_id(e->tokenizer, ends.message));
    return ends;
}

/* Up to the first token that ends a text. T5's blanks are a part of what is scored. */
static int end_of(const text_ends *ends, bool blanks, const int32_t *ids, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < (blanks ? ends->own : ends->count); k++)
            if (ids[i] == ends->id[k]) return i;
    return count;
}

static void add_text(const task_exam *e, task_counts *c, int64_t row, const text_ends *ends,
                     const int32_t *ids, int count)
{
    const bool blanks = has_blanks(c->dataset);
    count = end_of(ends, blanks, ids, count);
    char *text = mc_tokenizer_decode(e->tokenizer, ids, (size_t)count, !blanks);
    if (!text) {
        mc_set_error(c->ctx, MC_ERR_NOMEM, "out of memory for a text");
        return;
    }
    char *end = ends->message ? strstr(text, ends->message) : NULL;
    if (end) *end = '\0';
    mc_scorer_add_text(c->scorer, row, text, strlen(text));
    if (e->each_text) e->each_text(e->user, row, text);
    mc_string_free(text);
}

/* Tokens that all ranks can write after their prompts; 0 with an error. */
static int find_room(mc_context *ctx, const task_exam *e, const task_counts *c, const prompts *p)
{
    int64_t positions = mc_model_get_shape(e->model).positions;
    int64_t room = mc_dataset_max_target_length(c->dataset);
    if (!e->batch->decoder_ids && positions && positions - p->longest < room)
        room = positions - p->longest;
    room = (int64_t)ranks_least(ctx, (double)room);
    if (room >= 1) return (int)room;
    mc_set_error(ctx, MC_ERR_ARGUMENT,
                 "a prompt of %d tokens leaves no room for an answer: the model has %lld positions",
                 p->longest, (long long)positions);
    return 0;
}

/* The answers' ids, of at most `room` tokens each; T5's blanks end a benchmark's texts, too. Ranks
 * that share the weights run the model together, as many steps on each: there nothing ends a text
 * early. */
static mc_generation *write_texts(mc_context *ctx, const task_exam *e, const text_ends *ends,
                                  const prompts *p, int count, int room)
{
    bool together = mc_world_size(ctx) > 1;
    mc_generate_options options = {
        .max_new_tokens = room, .ignore_eos = together, .eos = ends->id, .eos_count = ends->count};
    return mc_model_generate(e->model, p->prompt, p->length, count, &options);
}

bool task_add_texts(mc_context *ctx, const task_exam *e, task_counts *c)
{
    static const int32_t nothing = 0; /* what a rank without rows goes on from */
    const mc_batch *b = e->batch;
    prompts p = {0};
    bool ok = find_prompts(ctx, b, &p);
    if (ok && !b->rows) {
        p.prompt[0] = &nothing;
        p.length[0] = p.longest = 1;
    }
    int room = ok ? find_room(ctx, e, c, &p) : 0, count = b->rows ? b->rows : 1;
    const text_ends ends = ends_of(e, c->dataset);
    mc_generation *g = mc_failed(ctx) ? NULL : write_texts(ctx, e, &ends, &p, count, room);
    for (int i = 0; g && i < b->rows; i++)
        add_text(e, c, b->row_index[i], &ends, g->ids[i], g->lengths[i]);
    mc_generation_free(g);
    release_prompts(&p);
    return !mc_failed(ctx);
}
