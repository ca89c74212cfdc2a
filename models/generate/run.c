/* Steps of generation whose tokens the device chooses. The host launches groups of steps ahead and
 * takes in their tokens late. Rows of answers that have ended go on without effect, until the host
 * takes them out: at once where it computes itself, else when half of them have ended. */
#include <string.h>
#include "models/generate/generate_internal.h"

static mc_device *device_of(const mc_generator *g) { return g->ctx->device; }

static int group_steps(const mc_generator *g) { return device_of(g)->is_host ? 1 : MC_GROUP_STEPS; }

/* ---- rows ------------------------------------------------------------------------------------ */

/* What the next step needs of an answer: its last token, unless only the prompt is there, which is
 * run as a whole and of which that is the last token, too. */
static void set_row(mc_generator *g, int row, int answer)
{
    const mc_answer *a = &g->answers[answer];
    int64_t stride = g->count;
    int32_t *at = g->row_state + row, last = a->length - 1;
    g->decoder.place(g->decoder.state, answer, at, stride);
    at[MC_ROW_TOKEN * stride] = a->ids[last];
    at[MC_ROW_POSITION * stride] = last + g->decoder.before;
    at[MC_ROW_LENGTH * stride] = a->length + g->decoder.before;
    at[MC_ROW_ANSWER * stride] = answer;
    at[MC_ROW_STEP * stride] = at[MC_ROW_TICK * stride] = g->steps;
    at[MC_ROW_ENDED * stride] = 0;
}

/* Rows for the answers that go on. */
static void set_rows(mc_generator *g)
{
    g->rows = 0;
    for (int i = 0; i < g->count; i++)
        if (!g->answers[i].done) set_row(g, g->rows++, i);
    g->chooser.call.rows = g->rows;
    mc_tensor_write(g->chooser.rows, g->row_state,
                    (size_t)g->count * MC_ROW_FIELDS * sizeof *g->row_state);
}

/* ---- life ------------------------------------------------------------------------------------ */

mc_sampling mc_sampling_of(const mc_generate_options *o)
{
    return (mc_sampling){.sample = o->sample,
                         .temperature = o->temperature,
                         .top_p = o->top_p,
                         .top_k = o->top_k,
                         .repetition_penalty = o->repetition_penalty,
                         .seed = o->seed};
}

/* Device memory with a copy of `data`. */
static void *upload(mc_generator *g, const void *data, size_t bytes)
{
    mc_device *d = device_of(g);
    void *at = d->alloc(d, bytes);
    if (at && data) d->copy_in(d, at, data, bytes);
    return at;
}

/* The sets of tokens in the prompts. */
static bool make_seen(mc_generator *g)
{
    mc_chooser *c = &g->chooser;
    if (g->options.repetition_penalty == 1) return true;
    size_t words = (size_t)mc_seen_words(g->decoder.vocab);
    uint32_t *seen = mc_calloc((size_t)g->count, words * sizeof *seen);
    if (!seen) return false;
    for (int i = 0; i < g->count; i++)
        for (int k = 0; k < g->answers[i].prompt; k++)
            mc_see(seen + (size_t)i * words, g->answers[i].ids[k]);
    c->seen_bytes = (size_t)g->count * words * sizeof *seen;
    c->seen = upload(g, seen, c->seen_bytes);
    mc_free(seen);
    return c->seen;
}

static bool make_rules(mc_generator *g)
{
    mc_chooser *c = &g->chooser;
    mc_answer_rules *rules = mc_calloc((size_t)g->count, sizeof *rules);
    for (int i = 0; rules && i < g->count; i++)
        rules[i] = (mc_answer_rules){.how = mc_sampling_of(&g->options),
                                     .place = g->options.first_prompt + i,
                                     .eos_count = g->options.eos_count,
                                     .most = g->options.max_new_tokens};
    c->rules_bytes = (size_t)g->count * sizeof *rules;
    if (rules) c->rules = upload(g, rules, c->rules_bytes);
    mc_free(rules);
    return c->rules;
}

static bool make_chooser(mc_generator *g)
{
    mc_chooser *c = &g->chooser;
    mc_device *d = device_of(g);
    c->call = (mc_choose_call){.vocab = g->decoder.vocab,
                               .stride = g->count,
                               .kept = MC_GROUPS * group_steps(g),
                               .answers = g->count};
    c->eos_bytes = (size_t)g->options.eos_count * sizeof *g->options.eos;
    c->chosen_bytes = (size_t)(c->call.kept * g->count) * sizeof *g->chosen;
    bool good = make_seen(g) && make_rules(g) &&
                (c->eos = upload(g, g->options.eos, c->eos_bytes)) &&
                (c->chosen = upload(g, NULL, c->chosen_bytes)) &&
                (g->chosen = d->host_alloc(d, c->chosen_bytes)) &&
                (g->row_state = mc_calloc((size_t)g->count * MC_ROW_FIELDS, sizeof(int32_t)));
    if (!good) return false;
    c->rows = mc_tensor_new_computed(g->ctx, MC_SHAPE(MC_ROW_FIELDS, g->count));
    c->call.state = mc_tensor_data(c->rows);
    c->call.seen = c->seen;
    c->call.rules = c->rules;
    c->call.eos = c->eos;
    c->call.chosen = c->chosen;
    return true;
}

bool mc_run_init(mc_generator *g)
{
    if (!make_chooser(g)) mc_fail_nomem(g->ctx, "the tokens that are chosen");
    if (!mc_failed(g->ctx)) set_rows(g);
    return !mc_failed(g->ctx);
}

void mc_run_release(mc_generator *g)
{
    mc_chooser *c = &g->chooser;
    mc_device *d = device_of(g);
    for (int i = 0; i < g->groups; i++) d->wait(d, g->group[i].ticket); /* g->chosen is written */
    if (c->seen) d->free(d, c->seen, c->seen_bytes);
    if (c->rules) d->free(d, c->rules, c->rules_bytes);
    if (c->eos) d->free(d, c->eos, c->eos_bytes);
    if (c->chosen) d->free(d, c->chosen, c->chosen_bytes);
    if (g->chosen) d->host_free(d, g->chosen, c->chosen_bytes);
    mc_tensor_free(c->rows);
    mc_free(g->row_state);
}

/* ---- launching ------------------------------------------------------------------------------- */

static bool launch_step(mc_generator *g)
{
    if (g->steps) return g->decoder.choose_next(g->decoder.state, &g->chooser);
    int32_t *prompts = mc_pack_prompts(g);
    bool good = prompts &&
                g->decoder.choose(g->decoder.state, prompts, g->row_lengths, g->count, &g->chooser);
    mc_free(prompts);
    return good;
}

/* The prompts alone, so that the first tokens come early; then up to the next whole group, whose
 * tokens lie one behind the other. */
static bool launch_group(mc_generator *g)
{
    mc_device *d = device_of(g);
    int each = group_steps(g), end = g->steps ? (g->steps / each + 1) * each : 1;
    mc_step_group *group = &g->group[g->groups];
    if (end > g->options.max_new_tokens) end = g->options.max_new_tokens;
    for (group->first = g->steps; g->steps < end; g->steps++)
        if (!launch_step(g)) return false;
    group->end = g->steps;
    size_t width = (size_t)g->count * sizeof *g->chosen,
           at = (size_t)(group->first % g->chooser.call.kept) * width;
    group->ticket = d->copy_out_later(d, (char *)g->chosen + at, (char *)g->chooser.chosen + at,
                                      (size_t)(group->end - group->first) * width);
    g->groups++;
    return true;
}

/* ---- taking in ------------------------------------------------------------------------------- */

static bool take_token(mc_generator *g, int number, mc_chosen chosen)
{
    mc_answer *a = &g->answers[number];
    if (chosen.token == MC_CHOSEN_NOT_FINITE)
        return !mc_fail(g->ctx, MC_ERR_STATE,
                        "generation with %s: the logits after token %d of prompt %d are not finite",
                        g->decoder.model, a->length - 1, mc_prompt_of(g, number));
    a->log_probs[a->length - a->prompt] = chosen.log_probability;
    a->ids[a->length++] = chosen.token;
    a->score += (double)chosen.log_probability;
    a->done = mc_answer_ends(g, number, a->ids + a->prompt, a->length - a->prompt);
    return true;
}

static bool take_group(mc_generator *g)
{
    mc_device *d = device_of(g);
    mc_step_group group = g->group[0];
    g->groups--;
    memmove(g->group, g->group + 1, (size_t)g->groups * sizeof *g->group);
    if (!d->wait(d, group.ticket))
        return !mc_fail(g->ctx, MC_ERR_DEVICE, "generation with %s: %s", g->decoder.model,
                        d->failure);
    for (int step = group.first; step < group.end; step++) {
        const mc_chosen *chosen = g->chosen + step % g->chooser.call.kept * g->count;
        bool any = false;
        for (int i = 0; i < g->count; i++) {
            if (g->answers[i].done) continue;
            any = true;
            if (!take_token(g, i, chosen[i])) return false;
        }
        g->read += any; /* what was launched behind the end is no step */
    }
    return true;
}

static int going_on(const mc_generator *g)
{
    int count = 0;
    for (int i = 0; i < g->count; i++) count += !g->answers[i].done;
    return count;
}

/* Takes rows out whose answers have ended, if they are many: what is on its way comes in first. */
static bool drop_ended(mc_generator *g)
{
    int left = going_on(g);
    if (!left || left == g->rows || (!device_of(g)->is_host && 2 * left > g->rows)) return true;
    while (g->groups)
        if (!take_group(g)) return false;
    set_rows(g);
    return !mc_failed(g->ctx);
}

bool mc_run_more(mc_generator *g)
{
    int before = g->read, ahead = device_of(g)->is_host ? 1 : MC_GROUPS;
    while (g->read == before && !mc_failed(g->ctx)) {
        if (!going_on(g)) return false;
        while (g->groups < ahead && g->steps < g->options.max_new_tokens)
            if (!launch_group(g)) return false;
        if (!take_group(g) || !drop_ended(g)) return false;
    }
    return !mc_failed(g->ctx);
}
