/* Steps of a running batch: launched in groups ahead of the host, whose tokens come to it late. */
#include <stdio.h>
#include <string.h>
#include "models/details.h"
#include "models/generate/batch_internal.h"

/* ---- launching ------------------------------------------------------------------------------- */

void mc_batch_add_group(struct mc_batch *b, mc_token_group added, int first, int count)
{
    mc_device *d = mc_batch_device(b);
    size_t line = (size_t)b->rows * sizeof *b->chosen, at = (size_t)first * line;
    added.number = b->group_number++;
    added.ticket = d->copy_out_later(d, (char *)b->chosen + at, (char *)b->chooser.chosen + at,
                                     (size_t)count * line);
    int columns = added.prompts ? b->rows : (int)b->chooser.best.rows;
    if (b->searches) added.ticket = mc_batch_copy_best(b, columns);
    b->group[b->group_count++] = added;
}

/* Steps that some answer still needs, of those up to the next whole group. */
static int steps_needed(const struct mc_batch *b)
{
    int most = 0, each = mc_device_is_host(mc_batch_device(b)) ? 1 : MC_GROUP_STEPS;
    int room = each - (int)(b->tick % (uint32_t)each);
    for (int i = 0; i < b->rows; i++) {
        const mc_job *j = b->job[i];
        if (j && j->launched && j->most - j->launched > most) most = j->most - j->launched;
    }
    return most < room ? most : room;
}

static bool launch_steps(struct mc_batch *b, int steps)
{
    int first = (int)(b->tick % MC_KEPT);
    mc_token_group added = {.first = b->tick};
    b->chooser.call.rows = mc_batch_columns(b);
    b->chooser.best.rows = b->searches ? b->chooser.call.rows : 0;
    for (int i = 0; i < steps; i++, b->tick++)
        if (!mc_batch_model_step(b->model, &b->chooser)) return false;
    added.end = b->tick;
    for (int i = 0; i < b->rows; i++)
        if (mc_batch_is_first(b, i) && b->job[i]->launched) b->job[i]->launched += steps;
    mc_batch_add_group(b, added, first, steps);
    return true;
}

static int groups_of_steps(const struct mc_batch *b)
{
    int count = 0;
    for (int i = 0; i < b->group_count; i++) count += !b->group[i].prompts;
    return count;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Without a token. */
static void end_row(struct mc_batch *b, int row, mc_answer_state state, const char *error)
{
    mc_job *j = mc_batch_leave_row(b, row);
    mc_batch_report_end(j, state, error);
    mc_job_free(j);
}

/* Those that wait and were cancelled, in a list of their own. */
static mc_job *take_cancelled(struct mc_batch *b)
{
    mc_job *gone = NULL;
    for (mc_job **at = &b->waiting; *at;) {
        mc_job *j = *at;
        if (!j->cancelled) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        j->next = gone;
        gone = j;
    }
    b->last = &b->waiting;
    while (*b->last) b->last = &(*b->last)->next;
    return gone;
}

static void end_cancelled(struct mc_batch *b)
{
    pthread_mutex_lock(&b->guard);
    mc_job *gone = take_cancelled(b);
    pthread_mutex_unlock(&b->guard);
    for (mc_job *next; gone; gone = next) {
        next = gone->next;
        if (!gone->checked && !mc_batch_try(b, gone, mc_batch_read_options)) mc_clear_error(b->ctx);
        mc_batch_report_end(gone, MC_ANSWER_CANCELLED, NULL);
        mc_job_free(gone);
    }
    for (int i = 0; i < b->rows; i++) {
        pthread_mutex_lock(&b->guard);
        bool cancelled = mc_batch_is_first(b, i) && b->job[i]->cancelled;
        pthread_mutex_unlock(&b->guard);
        if (!cancelled) continue;
        mc_batch_stop_column(b, i);
        end_row(b, i, MC_ANSWER_CANCELLED, NULL);
    }
}

/* ---- taking in ------------------------------------------------------------------------------- */

static bool ends(const mc_job *j)
{
    const mc_generate_options *o = &j->options;
    bool end = j->count == j->most;
    for (int i = 0; i < o->eos_count; i++)
        end = end || o->eos[i] == j->ids[j->prompt + j->count - 1];
    return end;
}

/* Logits that are no numbers are the end of an answer, and of a list. */
static bool end_not_finite(struct mc_batch *b, int row)
{
    const mc_job *j = b->job[row];
    int token = j->prompt;
    mc_decoder_begins(&b->decoder, j->ids, &token);
    long long number = j->answers == 1 ? j->options.first_prompt : j->number;
    token += (j->search ? j->search->running[0].length : j->count) - 1;
    if (b->options.list)
        return !mc_fail(b->ctx, MC_ERR_STATE,
                        "generation with %s: the logits after token %d of prompt %lld are not "
                        "finite%s",
                        b->decoder.model, token, number, mc_model_finite_hint(b->decoder.of));
    snprintf(b->problem, sizeof b->problem,
             "generation with %s: the logits after token %d of the prompt and its answer are not "
             "finite%s",
             b->decoder.model, token, mc_model_finite_hint(b->decoder.of));
    end_row(b, row, MC_ANSWER_FAILED, b->problem);
    return true;
}

static bool take_candidates(struct mc_batch *b, int row)
{
    if (!mc_batch_advance(b, b->job[row])) return end_not_finite(b, row);
    if (!b->job[row]->search->over) return true;
    mc_job *j = mc_batch_leave_row(b, row);
    mc_batch_report_beams(j);
    mc_job_free(j);
    return true;
}

static bool take_token(struct mc_batch *b, int row, mc_chosen chosen)
{
    mc_job *j = b->job[row];
    if (j->search) return take_candidates(b, row);
    if (chosen.token == MC_CHOSEN_NOT_FINITE) return end_not_finite(b, row);
    j->ids[j->prompt + j->count++] = chosen.token;
    j->score += (double)chosen.log_probability;
    const mc_generate_options *o = &j->options;
    bool end = ends(j), stopped = !end && o->stop &&
                                  o->stop(o->stop_user, j->number, j->ids + j->prompt, j->count);
    if (stopped) mc_batch_stop_column(b, row);
    if (end || stopped) mc_batch_leave_row(b, row);
    mc_batch_report_token(j, end || stopped ? MC_ANSWER_ENDED : MC_ANSWER_GOES_ON, chosen);
    if (end || stopped) mc_job_free(j);
    return true;
}

/* Those that were there in a step: what other rows show is older. */
static bool take_tick(struct mc_batch *b, uint32_t tick)
{
    const mc_chosen *chosen = b->chosen + tick % MC_KEPT * (uint32_t)b->rows;
    for (int i = 0; i < b->rows; i++) {
        const mc_job *j = b->job[i];
        bool first = mc_batch_is_first(b, i);
        bool there = first && j->launched && (int32_t)(tick - j->joined) >= 0;
        if (there && !take_token(b, i, chosen[i])) return false;
    }
    return true;
}

static bool take_first_tokens(struct mc_batch *b, int64_t number)
{
    const mc_chosen *chosen = b->chosen + mc_batch_first_line(number) * b->rows;
    for (int i = 0; i < b->rows; i++)
        if (mc_batch_is_first(b, i) && b->job[i]->group == number && !take_token(b, i, chosen[i]))
            return false;
    return true;
}

static bool take_group(struct mc_batch *b)
{
    mc_device *d = mc_batch_device(b);
    mc_token_group taken = b->group[0];
    b->group_count--;
    memmove(b->group, b->group + 1, (size_t)b->group_count * sizeof *b->group);
    if (!d->wait(d, taken.ticket))
        return !mc_fail(b->ctx, MC_ERR_DEVICE, "generation with %s: %s", b->decoder.model,
                        d->failure);
    if (taken.prompts) return take_first_tokens(b, taken.number);
    for (uint32_t tick = taken.first; tick != taken.end; tick++)
        if (!take_tick(b, tick)) return false;
    return true;
}

static bool take_groups(struct mc_batch *b, int left)
{
    while (b->group_count > left)
        if (!take_group(b)) return false;
    return true;
}

bool mc_batch_take_in(struct mc_batch *b) { return take_groups(b, 0); }

/* ---- a round --------------------------------------------------------------------------------- */

/* Moves columns together where many that are run have ended and nobody waits to have them: at once
 * where the host computes, else when half have, for what is on its way is waited for. */
static bool close_up(struct mc_batch *b)
{
    if (b->searches) return true; /* each step's columns are sent */
    int used = 0, columns = mc_batch_columns(b);
    pthread_mutex_lock(&b->guard);
    bool waiting = b->waiting;
    pthread_mutex_unlock(&b->guard);
    for (int i = 0; i < b->rows; i++) used += b->job[i] && b->job[i]->launched;
    bool close = mc_device_is_host(mc_batch_device(b)) ? used < columns : 2 * used <= columns;
    if (waiting || !used || used == columns || !close) return true;
    if (!take_groups(b, 0)) return false;
    mc_batch_move_columns(b);
    return true;
}

static bool launch_ahead(struct mc_batch *b)
{
    int ahead = mc_device_is_host(mc_batch_device(b)) ? 1 : MC_STEP_GROUPS;
    for (int steps; groups_of_steps(b) < ahead && (steps = steps_needed(b));)
        if (!launch_steps(b, steps)) return false;
    return true;
}

static bool run_ahead(struct mc_batch *b)
{
    return launch_ahead(b) && (!b->group_count || take_group(b));
}

/* With searches the host decides between two steps. */
static bool run_one(struct mc_batch *b)
{
    if (!mc_batch_take_in(b)) return false;
    mc_batch_move_columns(b);
    if (!b->searches || !mc_batch_columns(b)) return true;
    mc_batch_send_searches(b);
    return launch_steps(b, 1) && mc_batch_take_in(b);
}

bool mc_batch_step(struct mc_batch *b)
{
    end_cancelled(b);
    if (!take_groups(b, MC_GROUPS - MC_STEP_GROUPS - 1) || !close_up(b) ||
        !mc_batch_launch_prompts(b) || !mc_batch_end_searches(b))
        return false;
    return (b->searches ? run_one(b) : run_ahead(b)) && !mc_failed(b->ctx);
}
