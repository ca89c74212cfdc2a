/* Rows with a text to be generated: how probable it is, and what the model writes instead. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tools/task_score.h"

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
    int32_t row[CHUNK], label[CHUNK];
    int sequence[CHUNK];
    int count;
} targets;

/* Takes the log-probabilities of some rows' targets off their sequences' sums. */
static bool add_chunk(mc_tape *t, mc_model *model, mc_tensor *hidden, const targets *some,
                      double *sum)
{
    float loss[CHUNK];
    mc_tensor *rows = mc_gather_rows(t, hidden, some->row, some->count);
    mc_tensor *logits = mc_model_logits(t, model, rows);
    mc_tensor *labels = mc_tape_input(t, MC_I32, MC_SHAPE(some->count), some->label, false);
    mc_tensor *losses = logits ? mc_cross_entropy_rows(t, logits, labels, NULL) : NULL;
    if (!losses) return false;
    mc_tensor_read_f32(mc_tape_context(t), losses, loss, some->count);
    for (int i = 0; i < some->count; i++) sum[some->sequence[i]] -= loss[i];
    return true;
}

/* The sum of each sequence's log-probabilities, and its targets. */
static bool add_up(mc_tape *t, mc_model *model, mc_tensor *hidden, const mc_lengths *lengths,
                   const int32_t *target, double *sum, int64_t *tokens)
{
    targets some = {.count = 0};
    bool ok = true;
    for (int s = 0; s < lengths->count; s++)
        for (int32_t i = lengths->offset[s]; ok && i < lengths->offset[s] + lengths->length[s];
             i++) {
            if (target[i] < 0) continue;
            some.row[some.count] = i;
            some.label[some.count] = target[i];
            some.sequence[some.count++] = s;
            tokens[s]++;
            if (some.count < CHUNK) continue;
            ok = add_chunk(t, model, hidden, &some, sum);
            some.count = 0;
        }
    return ok && (!some.count || add_chunk(t, model, hidden, &some, sum));
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
    if (!sum || !tokens) mc_set_error(c->ctx, MC_ERR_NOMEM, "out of memory for a batch's answers");
    bool ok = sum && tokens && target && add_up(t, e->model, hidden, lengths, target, sum, tokens);
    for (int i = 0; ok && i < b->rows; i++)
        mc_scorer_add_candidate(c->scorer, b->row_index[i], sum[i], tokens[i]);
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

/* The prompts of a batch on all ranks, in their order. Each rank writes the texts of all, since
 * parameters may be spread over the ranks, which then have to take their steps together. */
typedef struct prompts {
    int32_t *ids, *length;  /* packed; (count) */
    const int32_t **prompt; /* (count) */
    int64_t count, first;   /* the first of this rank's */
    int longest;
} prompts;

static void release_prompts(prompts *p)
{
    free(p->ids);
    free(p->length);
    free(p->prompt);
}

/* Replaces numbers of this rank, for free(), by those of all, and counts them. */
static void gather(mc_context *ctx, int32_t **numbers, int64_t *count)
{
    mc_tensor *mine = mc_tensor_from(ctx, MC_I32, MC_SHAPE(*count), *numbers);
    mc_tensor *all = mine ? mc_gather_result(ctx, mine) : NULL;
    free(*numbers);
    *numbers = all ? read_ids(ctx, all) : NULL;
    *count = all ? mc_tensor_count(all) : 0;
    mc_tensor_free(mine);
    mc_tensor_free(all);
}

/* The prompts of this rank: of a decoder what comes before the first target, of an encoder-decoder
 * all that the encoder reads. Returns their tokens. */
static int64_t list_prompts(mc_context *ctx, const mc_batch *b, prompts *p)
{
    int32_t *target = b->decoder_ids ? NULL : read_ids(ctx, b->targets);
    int64_t tokens = 0;
    p->ids = read_ids(ctx, b->ids);
    p->length = calloc((size_t)b->rows + 1, sizeof *p->length);
    if (!p->length) mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a batch's prompts");
    for (int i = 0; i < b->rows && !mc_failed(ctx); i++) {
        int32_t first = b->lengths->offset[i], length = b->lengths->length[i], n = 0;
        while (target && n < length && target[first + n] < 0) n++;
        p->length[i] = target ? n + (n < length) : length;
        memmove(p->ids + tokens, p->ids + first, (size_t)p->length[i] * sizeof *p->ids);
        tokens += p->length[i];
    }
    free(target);
    return tokens;
}

static bool find_prompts(mc_context *ctx, const mc_batch *b, prompts *p)
{
    double mine = b->rows, *rows = malloc((size_t)mc_world_size(ctx) * sizeof *rows);
    int64_t tokens = list_prompts(ctx, b, p);
    p->count = b->rows;
    gather(ctx, &p->ids, &tokens);
    gather(ctx, &p->length, &p->count);
    p->prompt = malloc(((size_t)p->count + 1) * sizeof *p->prompt);
    if (!rows || !p->prompt)
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for a batch's prompts");
    else if (mc_gather_numbers(ctx, &mine, 1, rows) == MC_OK)
        for (int r = 0; r < mc_rank(ctx); r++) p->first += (int64_t)rows[r];
    free(rows);
    const int32_t *at = p->ids;
    for (int64_t i = 0; i < p->count && !mc_failed(ctx); at += p->length[i++]) {
        p->prompt[i] = at;
        if (p->length[i] > p->longest) p->longest = p->length[i];
    }
    return !mc_failed(ctx);
}

/* The answers' ids, of at most `room` tokens each; T5's blanks end a benchmark's texts, too. */
static mc_generation *write_texts(const task_exam *e, const prompts *p, int room)
{
    int32_t ends[] = {(int32_t)mc_model_get_shape(e->model).eos_token,
                      mc_tokenizer_token_to_id(e->tokenizer, "<extra_id_1>")};
    bool blanks = ends[1] >= 0 && has_blanks(mc_dataloader_dataset(e->loader));
    mc_generate_options options = {
        .max_new_tokens = room, .eos = blanks ? ends : NULL, .eos_count = blanks ? 2 : 0};
    return mc_model_generate(e->model, p->prompt, p->length, (int)p->count, &options);
}

static void add_text(const task_exam *e, task_counts *c, int64_t row, const int32_t *ids, int count)
{
    if (count && ids[count - 1] == mc_model_get_shape(e->model).eos_token) count--;
    char *text = mc_tokenizer_decode(e->tokenizer, ids, (size_t)count, !has_blanks(c->dataset));
    if (!text) {
        mc_set_error(c->ctx, MC_ERR_NOMEM, "out of memory for a text");
        return;
    }
    mc_scorer_add_text(c->scorer, row, text, strlen(text));
    if (e->each_text) e->each_text(e->user, row, text);
    mc_string_free(text);
}

bool task_add_texts(mc_context *ctx, const task_exam *e, task_counts *c)
{
    const mc_batch *b = e->batch;
    mc_model_shape shape = mc_model_get_shape(e->model);
    prompts p = {0};
    int room = mc_dataset_max_target_length(c->dataset);
    bool ok = find_prompts(ctx, b, &p);
    if (ok && !b->decoder_ids && shape.positions && shape.positions - p.longest < room)
        room = (int)(shape.positions - p.longest);
    if (ok && room < 1)
        mc_set_error(ctx, MC_ERR_ARGUMENT,
                     "a prompt of %d tokens leaves no room for an answer: the model has %lld "
                     "positions",
                     p.longest, (long long)shape.positions);
    mc_generation *g = mc_failed(ctx) || !p.count ? NULL : write_texts(e, &p, room);
    for (int i = 0; g && i < b->rows; i++)
        add_text(e, c, b->row_index[i], g->ids[p.first + i], g->lengths[p.first + i]);
    mc_generation_free(g);
    release_prompts(&p);
    return !mc_failed(ctx);
}
