/* Prompts that join a running batch: which of those that wait, and how many of their tokens at
 * once. A prompt with more tokens than are run at once is run in pieces, between steps of the
 * others, where the model allows it (mc_batch_model_has_pieces). */
#include <stdio.h>
#include <string.h>
#include "models/generate/batch_internal.h"

/* ---- those that wait ------------------------------------------------------------------------- */

static bool refuse(struct mc_batch *b, const char *what, int value, int most)
{
    return !mc_fail(b->ctx, MC_ERR_ARGUMENT, "generation with %s: %s %d, expected at most %d",
                    b->decoder.model, what, value, most);
}

bool mc_batch_read_options(struct mc_batch *b, mc_job *j)
{
    mc_generate_options *o = &j->options;
    if (!j->own_options && mc_model_generate_options(b->m, o)) return false;
    int answers = o->num_return_sequences;
    if (answers > 1 && answers <= MC_MOST_RETURNED) j->answers = answers;
    if (j->own_options && o->eos) o->eos = j->eos;
    if (o->eos_count > MC_MOST_EOS) return refuse(b, "eos_count", o->eos_count, MC_MOST_EOS);
    mc_generate_options given = *o;
    if (!mc_generate_read_options(&b->decoder, &given, o)) return false;
    if (o->eos_count && o->eos != j->eos)
        memcpy(j->eos, o->eos, (size_t)o->eos_count * sizeof *j->eos);
    o->eos = j->eos;
    return true;
}

/* Whether the rows and the cache suffice. */
static bool check_room(struct mc_batch *b, const mc_job *j)
{
    const mc_batch_shape *shape = &b->options.shape;
    int beams = mc_job_beams(j);
    if (beams > b->rows) return refuse(b, "num_beams", beams, b->rows);
    if (beams > 1 && b->rows * shape->longest > INT32_MAX)
        return !mc_fail(b->ctx, MC_ERR_UNSUPPORTED,
                        "generation with %s: num_beams %d, with %d sequences of %lld tokens",
                        b->decoder.model, beams, b->rows, (long long)shape->longest);
    if (mc_batch_model_can(b->model, j->prompt, j->most, beams)) return true;
    return !mc_fail(b->ctx, MC_ERR_ARGUMENT,
                    "generation with %s: a prompt of %d tokens and %d new ones, num_beams %d: the "
                    "cache has room for %lld of a sequence and %lld in all",
                    b->decoder.model, j->prompt, j->most, beams, (long long)shape->longest,
                    (long long)shape->tokens);
}

/* Whether a job can ever be answered; an error on the context if not. */
static bool check_job(struct mc_batch *b, mc_job *j)
{
    const int32_t *ids = j->ids;
    if (b->options.list || j->checked) return true;
    if (!mc_batch_read_options(b, j) || !mc_check_stop_texts(&b->decoder, &j->options) ||
        !mc_check_prompts(&b->decoder, &ids, &j->prompt, 1) ||
        !mc_check_lengths(&b->decoder, &j->options, &j->prompt, 1))
        return false;
    j->most = mc_most_new(&b->decoder, &j->options, j->prompt);
    return j->checked = check_room(b, j);
}

bool mc_batch_try(struct mc_batch *b, mc_job *j, bool (*check)(struct mc_batch *b, mc_job *j))
{
    mc_error *err = &b->ctx->error;
    void (*raised)(void *user) = err->raised;
    err->raised = NULL;
    bool good = check(b, j);
    err->raised = raised;
    return good;
}

/* The first that waits; NULL: none. */
static mc_job *first_waiting(struct mc_batch *b)
{
    pthread_mutex_lock(&b->guard);
    mc_job *j = b->waiting;
    pthread_mutex_unlock(&b->guard);
    return j;
}

/* What is wrong with the first that waits is its own end: the context goes on without error. */
static void end_first(struct mc_batch *b, mc_job *j)
{
    snprintf(b->problem, sizeof b->problem, "%s", mc_error_message(b->ctx));
    mc_clear_error(b->ctx);
    pthread_mutex_lock(&b->guard);
    b->waiting = j->next;
    if (!b->waiting) b->last = &b->waiting;
    pthread_mutex_unlock(&b->guard);
    mc_batch_report_end(j, MC_ANSWER_FAILED, b->problem);
    mc_job_free(j);
}

/* The next that can be answered; NULL: none, or an error. */
static mc_job *next_job(struct mc_batch *b)
{
    mc_job *j;
    mc_error *err = &b->ctx->error;
    while ((j = first_waiting(b)) && !mc_batch_try(b, j, check_job)) {
        if (err->status == MC_ERR_NOMEM) {
            if (err->raised) err->raised(err->raised_user);
            return NULL;
        }
        end_first(b, j);
    }
    return j;
}

/* ---- those that are run together ------------------------------------------------------------- */

/* Whether an answer goes on that would wait for prompts. */
static bool anyone_goes_on(const struct mc_batch *b)
{
    for (int i = 0; i < b->rows; i++)
        if (b->job[i] && b->job[i]->launched) return true;
    return false;
}

static int64_t tokens_at_once(const struct mc_batch *b)
{
    const mc_batch_options *o = &b->options;
    return anyone_goes_on(b) && o->prompt_piece < o->prompt_tokens ? o->prompt_piece
                                                                   : o->prompt_tokens;
}

/* Free rows for a job, those of the first columns; whether they and the pages suffice. */
static bool find_rows(struct mc_batch *b, const mc_job *j)
{
    int found = 0, beams = mc_job_beams(j);
    for (int i = 0; found < beams && i < b->rows; i++)
        if (!b->job[b->row_of[i]]) b->found[found++] = b->row_of[i];
    return found == beams && mc_batch_model_has_room(b->model, j->prompt, j->most, beams);
}

/* Puts the first that wait into free rows, as many as there is room for and as run together. */
static bool collect(struct mc_batch *b, int64_t most)
{
    int64_t tokens = 0;
    while (tokens < most && b->joining_count < b->rows) {
        mc_job *j = next_job(b);
        if (mc_failed(b->ctx)) return false;
        if (!j || (b->joining_count && tokens + j->prompt > most) || !find_rows(b, j)) break;
        if (mc_job_beams(j) > 1 && !mc_batch_begin_search(b, j)) return false;
        tokens += j->prompt;
        if (!mc_batch_take_rows(b, b->found)) return false;
        b->joining[b->joining_count++] = b->found[0];
    }
    return true;
}

/* Tokens of a row's prompt that are run now: all, or the next piece of one alone. */
static int part_of(const struct mc_batch *b, const mc_job *j, int64_t most)
{
    int left = j->prompt - j->run;
    return mc_batch_model_has_pieces(b->m) && left > most ? (int)most : left;
}

static bool reserve(struct mc_batch *b, int64_t total)
{
    if (total <= b->prompt_room) return true;
    int32_t *grown = mc_realloc(b->prompt_ids, (size_t)total * sizeof *grown);
    if (!grown) return !mc_fail_nomem(b->ctx, "the prompts");
    b->prompt_ids = grown;
    b->prompt_room = total;
    return true;
}

/* The tokens to run, one prompt after the other. */
static bool pack(struct mc_batch *b, int64_t most)
{
    int64_t total = 0;
    for (int i = 0; i < b->joining_count; i++)
        total += b->prompt_lengths[i] = part_of(b, b->job[b->joining[i]], most);
    if (!reserve(b, total)) return false;
    int32_t *end = b->prompt_ids;
    for (int i = 0; i < b->joining_count; i++) {
        mc_job *j = b->job[b->joining[i]];
        memcpy(end, j->ids + j->run, (size_t)b->prompt_lengths[i] * sizeof *end);
        end += b->prompt_lengths[i];
    }
    return true;
}

/* ---- launching ------------------------------------------------------------------------------- */

/* The line of first tokens that a group of prompts has for itself while it is on its way. */
int mc_batch_first_line(int64_t number) { return MC_KEPT + (int)(number % MC_GROUPS); }

/* Those whose prompts are whole now go on with the next step. */
static int begin_answers(struct mc_batch *b)
{
    bool others = anyone_goes_on(b);
    int whole = 0;
    for (int i = 0; i < b->joining_count; i++) {
        mc_job *j = b->job[b->joining[i]];
        j->run += b->prompt_lengths[i];
        b->piecing = j->run < j->prompt ? b->joining[i] : -1;
        if (j->run < j->prompt) continue;
        whole++;
        j->joined = b->tick;
        j->group = b->group_number;
        j->launched = 1;
        if (others) mc_batch_fill_column(b, b->joining[i]);
    }
    if (whole && !others) mc_batch_move_columns(b); /* all at once */
    for (int i = 0; i < b->joining_count; i++) {
        b->joining_columns[i] = b->column_of[b->joining[i]];
        b->searched[i] = mc_batch_is_searched(b, b->joining[i]);
    }
    if (b->searches) mc_batch_send_searches(b);
    return whole;
}

/* Runs what was packed, and chooses what follows the prompts that are whole. */
static bool launch(struct mc_batch *b)
{
    int before = b->job[b->joining[0]]->run; /* others begin */
    int32_t cached = before, line = mc_batch_first_line(b->group_number);
    int whole = begin_answers(b);
    mc_chooser first = b->chooser;
    first.call.kept = 1;
    first.call.chosen += line * (int64_t)b->rows;
    const mc_prompt_pass pass = {.ids = b->prompt_ids,
                                 .lengths = b->prompt_lengths,
                                 .sequences = b->joining,
                                 .columns = b->joining_columns,
                                 .searched = b->searched,
                                 .before = before ? &cached : NULL,
                                 .count = b->joining_count,
                                 .whole = whole};
    if (!mc_batch_model_prompts(b->model, &pass, &first)) return false;
    if (whole) mc_batch_add_group(b, (mc_token_group){.prompts = true}, line, 1);
    return true;
}

bool mc_batch_launch_prompts(struct mc_batch *b)
{
    int64_t most = tokens_at_once(b);
    b->joining_count = 0;
    if (b->piecing >= 0)
        b->joining[b->joining_count++] = b->piecing;
    else if (!collect(b, most))
        return false;
    return !b->joining_count || (pack(b, most) && launch(b));
}
