/* Answers that join and leave: see generator.h. A job is a prompt with its answer:
 *
 *     waiting  ->  in a row  ->  ended (its function was called, it is freed)
 *        \____________________/
 *
 * `guard` protects the list of those that wait, the rows' jobs and their `cancelled`. The device
 * runs ahead of the host: a row that has ended there does nothing until the host notices and gives
 * it to another job. */
#include "models/generate/generator.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "models/generate/batch_internal.h"

enum {
    MOST_EOS = 16,
    GROUPS = 6,      /* on their way at once */
    STEP_GROUPS = 2, /* of steps */
    KEPT = STEP_GROUPS * MC_GROUP_STEPS
};

typedef struct job {
    struct job *next; /* that waits */
    int64_t id;
    mc_generate_options options;
    bool own_options; /* given with the prompt; else the model's */
    int32_t eos[MOST_EOS];
    int32_t *ids; /* prompt, then (most) the answer */
    int prompt, most, count, launched;
    bool cancelled;
    uint32_t joined; /* the first tick of its steps */
    int64_t group;   /* number of the group that its first token comes with */
    mc_answer_fn fn;
    void *user;
} job;

/* Tokens that come to the host together: first ones of prompts, or those of steps (ticks). */
typedef struct group {
    bool prompts;
    int64_t number;
    uint32_t first, end; /* ticks */
    uint64_t ticket;
} group;

struct mc_batch {
    mc_generator *g;
    mc_model *m;
    mc_decoder decoder;
    mc_generator_options options; /* with defaults filled in */
    mc_batch_model *model;
    pthread_mutex_t guard;
    pthread_cond_t work;
    /* guarded */
    job *waiting, **last;
    job **rows; /* (sequences) NULL: free */
    int64_t ids;
    bool closed;
    /* of the thread that runs the steps */
    mc_chooser chooser; /* of steps */
    mc_chosen *chosen;  /* pinned: (KEPT + GROUPS, sequences): of steps, then first tokens */
    size_t chosen_bytes;
    uint32_t *seen;       /* of one prompt */
    group groups[GROUPS]; /* the oldest first */
    int group_count;
    uint32_t tick;
    int64_t group_number;
    /* prompts that join together */
    int32_t *prompt_ids, *prompt_lengths;
    int64_t prompt_room;
    int *joining, joining_count;
    char problem[512];
};

static mc_device *device_of(const struct mc_batch *b) { return b->g->ctx->device; }

/* ---- life
 * ------------------------------------------------------------------------------------ */

static void free_job(job *j)
{
    mc_free(j->ids);
    mc_free(j);
}

void mc_batch_free(struct mc_batch *b)
{
    if (!b) return;
    mc_device *d = device_of(b);
    mc_chooser *c = &b->chooser;
    for (int i = 0; i < b->group_count; i++) d->wait(d, b->groups[i].ticket);
    for (job *j = b->waiting, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    for (int i = 0; b->rows && i < b->options.sequences; i++)
        if (b->rows[i]) free_job(b->rows[i]);
    mc_batch_model_free(b->model);
    d->free(d, c->seen, c->seen_bytes);
    d->free(d, c->rules, c->rules_bytes);
    d->free(d, c->eos, c->eos_bytes);
    d->free(d, c->chosen, c->chosen_bytes);
    if (b->chosen) d->host_free(d, b->chosen, c->chosen_bytes);
    mc_tensor_free(c->rows);
    mc_free(b->rows);
    mc_free(b->seen);
    mc_free(b->prompt_ids);
    mc_free(b->prompt_lengths);
    mc_free(b->joining);
    pthread_mutex_destroy(&b->guard);
    pthread_cond_destroy(&b->work);
    mc_free(b);
}

/* Rows that nobody has: they have ended and see nothing. */
static bool make_rows(struct mc_batch *b)
{
    int n = b->options.sequences;
    mc_chooser *c = &b->chooser;
    int32_t *idle = mc_calloc((size_t)n * MC_ROW_FIELDS, sizeof *idle);
    c->rows = mc_tensor_new_computed(b->g->ctx, MC_SHAPE(MC_ROW_FIELDS, n));
    for (int i = 0; idle && i < n; i++) {
        idle[MC_ROW_ANSWER * n + i] = i;
        idle[MC_ROW_ENDED * n + i] = 1;
    }
    bool good = idle && c->rows;
    if (good) mc_tensor_write(c->rows, idle, (size_t)n * MC_ROW_FIELDS * sizeof *idle);
    mc_free(idle);
    if (c->rows) mc_disown(&c->rows->owned); /* it goes with the batch */
    return good;
}

static bool make_chooser(struct mc_batch *b)
{
    mc_device *d = device_of(b);
    mc_chooser *c = &b->chooser;
    size_t n = (size_t)b->options.sequences, words = (size_t)mc_seen_words(b->decoder.vocab);
    c->seen_bytes = n * words * sizeof(uint32_t);
    c->rules_bytes = n * sizeof(mc_answer_rules);
    c->eos_bytes = n * MOST_EOS * sizeof(int32_t);
    c->chosen_bytes = (KEPT + GROUPS) * n * sizeof(mc_chosen);
    bool good = make_rows(b) && (c->seen = d->alloc(d, c->seen_bytes)) &&
                (c->rules = d->alloc(d, c->rules_bytes)) && (c->eos = d->alloc(d, c->eos_bytes)) &&
                (c->chosen = d->alloc(d, c->chosen_bytes)) &&
                (b->chosen = d->host_alloc(d, c->chosen_bytes));
    b->rows = mc_calloc(n, sizeof *b->rows);
    b->seen = mc_calloc(words, sizeof *b->seen);
    b->joining = mc_calloc(n, sizeof *b->joining);
    b->prompt_lengths = mc_calloc(n, sizeof *b->prompt_lengths);
    if (!good || !b->rows || !b->seen || !b->joining || !b->prompt_lengths) return false;
    c->call = (mc_choose_call){.vocab = b->decoder.vocab,
                               .state = mc_tensor_data(c->rows),
                               .stride = (int64_t)n,
                               .seen = c->seen,
                               .rules = c->rules,
                               .eos = c->eos,
                               .eos_stride = MOST_EOS,
                               .chosen = c->chosen,
                               .kept = KEPT,
                               .answers = (int64_t)n};
    return true;
}

static bool bad_option(struct mc_batch *b, const char *name, int64_t value, const char *expected)
{
    return !mc_fail(b->g->ctx, MC_ERR_ARGUMENT, "a generator of %s: %s %lld, expected %s",
                    b->decoder.model, name, (long long)value, expected);
}

static bool read_options(struct mc_batch *b, const mc_generator_options *given)
{
    enum { SEQUENCES = 8, LONGEST = 1024, PAGE = 16, PROMPT_TOKENS = 4096, MOST_ROWS = 4096 };
    mc_generator_options *o = &b->options;
    int64_t positions = b->decoder.positions;
    if (given) *o = *given;
    if (!o->sequences) o->sequences = SEQUENCES;
    if (!o->longest) o->longest = positions < INT32_MAX ? positions + b->decoder.before : LONGEST;
    if (!o->cache_tokens) o->cache_tokens = o->longest * o->sequences;
    if (!o->page) o->page = PAGE;
    if (!o->prompt_tokens) o->prompt_tokens = PROMPT_TOKENS;
    if (o->sequences < 1 || o->sequences > MOST_ROWS)
        return bad_option(b, "sequences", o->sequences, "1 to 4096");
    if (o->longest < 1 || o->longest > INT32_MAX / 2)
        return bad_option(b, "longest", o->longest, "1 to 2^30");
    if (o->page < 1 || o->page > 1 << 20 || (o->page & (o->page - 1)))
        return bad_option(b, "page", o->page, "a power of two up to 2^20");
    if (o->cache_tokens < 1 || o->cache_tokens > INT32_MAX - o->page)
        return bad_option(b, "cache_tokens", o->cache_tokens, "1 to 2^31 - 1 - page");
    if (o->prompt_tokens < 1) return bad_option(b, "prompt_tokens", o->prompt_tokens, "1 or more");
    return true;
}

static bool open_batch(struct mc_batch *b, const mc_generator_options *options)
{
    b->decoder = mc_model_decoder(b->m);
    if (!read_options(b, options)) return false;
    const mc_generator_options *o = &b->options;
    mc_batch_shape shape = {.rows = o->sequences, .longest = o->longest, .tokens = o->cache_tokens};
    while (1 << shape.page_shift < o->page) shape.page_shift++;
    if (!(b->model = mc_batch_model_new(b->m, &shape))) return false;
    return make_chooser(b) || !mc_fail_nomem(b->g->ctx, "a generator");
}

static void free_open(void *object)
{
    mc_generator *g = object;
    mc_batch_free(g->batch);
    mc_free(g);
}

mc_generator *mc_model_generator_open(mc_model *m, const mc_generator_options *options)
{
    if (!m || !mc_model_check_decodes(m)) return NULL;
    mc_context *ctx = mc_model_decoder(m).ctx;
    mc_generator *g = mc_new_owned(ctx, sizeof *g, "a generator", free_open);
    if (!g) return NULL;
    g->ctx = ctx;
    struct mc_batch *b = g->batch = mc_calloc(1, sizeof *b);
    if (b) {
        b->g = g;
        b->m = m;
        b->last = &b->waiting;
        pthread_mutex_init(&b->guard, NULL);
        pthread_cond_init(&b->work, NULL);
        if (open_batch(b, options)) return g;
    } else {
        mc_fail_nomem(ctx, "a generator");
    }
    mc_generator_free(g);
    return NULL;
}

size_t mc_generator_cache_bytes(const mc_generator *g)
{
    return g && g->batch ? mc_batch_model_bytes(g->batch->model) : 0;
}

/* ---- from any thread
 * ------------------------------------------------------------------------- */

static job *new_job(const int32_t *ids, int count, const mc_generate_options *options)
{
    job *j = mc_calloc(1, sizeof *j);
    if (!j) return NULL;
    j->prompt = ids && count > 0 ? count : 0;
    j->ids = mc_malloc(((size_t)j->prompt + 1) * sizeof *j->ids);
    if (!j->ids) {
        free_job(j);
        return NULL;
    }
    if (j->prompt) memcpy(j->ids, ids, (size_t)j->prompt * sizeof *ids);
    if (!options) return j;
    j->own_options = true;
    j->options = *options;
    bool listed = options->eos && options->eos_count > 0 && options->eos_count <= MOST_EOS;
    if (listed) memcpy(j->eos, options->eos, (size_t)options->eos_count * sizeof *j->eos);
    return j;
}

int64_t mc_generator_add(mc_generator *g, const int32_t *ids, int count,
                         const mc_generate_options *options, mc_answer_fn fn, void *user)
{
    struct mc_batch *b = g ? g->batch : NULL;
    job *j = b && fn ? new_job(ids, count, options) : NULL;
    if (!j) return 0;
    j->fn = fn;
    j->user = user;
    pthread_mutex_lock(&b->guard);
    int64_t id = j->id = ++b->ids;
    *b->last = j;
    b->last = &j->next;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->guard);
    return id;
}

void mc_generator_cancel(mc_generator *g, int64_t id)
{
    struct mc_batch *b = g ? g->batch : NULL;
    if (!b) return;
    pthread_mutex_lock(&b->guard);
    for (job *j = b->waiting; j; j = j->next)
        if (j->id == id) j->cancelled = true;
    for (int i = 0; i < b->options.sequences; i++)
        if (b->rows[i] && b->rows[i]->id == id) b->rows[i]->cancelled = true;
    pthread_mutex_unlock(&b->guard);
}

static bool has_work(const struct mc_batch *b)
{
    bool any = b->waiting;
    for (int i = 0; !any && i < b->options.sequences; i++) any = b->rows[i];
    return any;
}

bool mc_generator_wait(mc_generator *g)
{
    struct mc_batch *b = g ? g->batch : NULL;
    if (!b || mc_failed(g->ctx)) return false;
    pthread_mutex_lock(&b->guard);
    while (!has_work(b) && !b->closed) pthread_cond_wait(&b->work, &b->guard);
    bool any = has_work(b);
    pthread_mutex_unlock(&b->guard);
    return any;
}

void mc_generator_close(mc_generator *g)
{
    struct mc_batch *b = g ? g->batch : NULL;
    if (!b) return;
    pthread_mutex_lock(&b->guard);
    b->closed = true;
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->guard);
}

/* ---- ends
 * ------------------------------------------------------------------------------------ */

static void tell(const job *j, mc_answer_state state, mc_chosen chosen, const char *error)
{
    mc_answer_event event = {.id = j->id,
                             .state = state,
                             .token = chosen.token,
                             .log_probability = chosen.log_probability,
                             .error = error};
    j->fn(j->user, &event);
}

/* The job of a row leaves it. */
static job *leave_row(struct mc_batch *b, int row)
{
    pthread_mutex_lock(&b->guard);
    job *j = b->rows[row];
    b->rows[row] = NULL;
    pthread_mutex_unlock(&b->guard);
    mc_batch_model_leave(b->model, row);
    return j;
}

/* Ends a row that goes on where the device is: it sees nothing any more. */
static void stop_row(struct mc_batch *b, int row)
{
    static const int fields[] = {MC_ROW_ENDED, MC_ROW_LENGTH, MC_ROW_MEMORY_LENGTH};
    mc_device *d = device_of(b);
    for (int i = 0; i < 3; i++) {
        int32_t value = fields[i] == MC_ROW_ENDED;
        d->copy_in(d, b->chooser.call.state + fields[i] * b->options.sequences + row, &value,
                   sizeof value);
    }
}

/* Takes those out that were cancelled. */
static void end_cancelled(struct mc_batch *b)
{
    const mc_chosen nothing = {MC_CHOSEN_NOTHING, 0};
    job *gone = NULL;
    pthread_mutex_lock(&b->guard);
    for (job **at = &b->waiting; *at;) {
        job *j = *at;
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
    pthread_mutex_unlock(&b->guard);
    for (int i = 0; i < b->options.sequences; i++) {
        pthread_mutex_lock(&b->guard);
        bool cancelled = b->rows[i] && b->rows[i]->cancelled;
        pthread_mutex_unlock(&b->guard);
        if (!cancelled) continue;
        stop_row(b, i);
        job *j = leave_row(b, i);
        j->next = gone;
        gone = j;
    }
    for (job *next; gone; gone = next) {
        next = gone->next;
        tell(gone, MC_ANSWER_CANCELLED, nothing, NULL);
        free_job(gone);
    }
}

/* ---- joining
 * --------------------------------------------------------------------------------- */

static bool refuse(struct mc_batch *b, const char *what, int value)
{
    return !mc_fail(b->g->ctx, MC_ERR_ARGUMENT, "generation with %s: %s %d, expected %s",
                    b->decoder.model, what, value,
                    strcmp(what, "eos_count") == 0 ? "at most 16" : "1");
}

static bool check_options(struct mc_batch *b, job *j)
{
    mc_generate_options *o = &j->options;
    if (!j->own_options && mc_model_generate_options(b->m, o)) return false;
    if (j->own_options && o->eos) o->eos = j->eos;
    if (o->eos_count > MOST_EOS) return refuse(b, "eos_count", o->eos_count);
    mc_generate_options given = *o;
    if (!mc_generate_read_options(&b->decoder, &given, o)) return false;
    if (o->num_beams > 1) return refuse(b, "num_beams", o->num_beams);
    if (o->num_return_sequences > 1)
        return refuse(b, "num_return_sequences", o->num_return_sequences);
    if (o->eos_count && o->eos != j->eos)
        memcpy(j->eos, o->eos, (size_t)o->eos_count * sizeof *j->eos);
    o->eos = j->eos;
    return true;
}

/* Whether a job can ever be answered; an error on the context if not. */
static bool check_job(struct mc_batch *b, job *j)
{
    const int32_t *ids = j->ids;
    int length = j->prompt;
    mc_batch_model_begins_with(b->model, ids, &length);
    if (!check_options(b, j) || !mc_check_prompts(&b->decoder, &ids, &j->prompt, 1) ||
        !mc_check_lengths(&b->decoder, &j->options, &length, 1))
        return false;
    j->most = mc_most_new(&j->options, length);
    if (!mc_batch_model_can(b->model, j->prompt, j->most))
        return !mc_fail(b->g->ctx, MC_ERR_ARGUMENT,
                        "generation with %s: a prompt of %d tokens and %d new ones, the cache has "
                        "room for %lld of a sequence and %lld in all",
                        b->decoder.model, j->prompt, j->most, (long long)b->options.longest,
                        (long long)b->options.cache_tokens);
    int32_t *grown = mc_realloc(j->ids, ((size_t)j->prompt + (size_t)j->most) * sizeof *grown);
    if (!grown) return !mc_fail_nomem(b->g->ctx, "an answer");
    j->ids = grown;
    return true;
}

/* The first that waits; NULL: none. */
static job *first_waiting(struct mc_batch *b)
{
    pthread_mutex_lock(&b->guard);
    job *j = b->waiting;
    pthread_mutex_unlock(&b->guard);
    return j;
}

static void take_first(struct mc_batch *b, int row)
{
    pthread_mutex_lock(&b->guard);
    job *j = b->waiting;
    b->waiting = j->next;
    if (!b->waiting) b->last = &b->waiting;
    j->next = NULL;
    if (row >= 0) b->rows[row] = j;
    pthread_mutex_unlock(&b->guard);
}

/* What is wrong with the first that waits is its own end: the context goes on without error. */
static void end_first(struct mc_batch *b, job *j)
{
    const mc_chosen nothing = {MC_CHOSEN_NOTHING, 0};
    snprintf(b->problem, sizeof b->problem, "%s", mc_error_message(b->g->ctx));
    mc_clear_error(b->g->ctx);
    take_first(b, -1);
    tell(j, MC_ANSWER_FAILED, nothing, b->problem);
    free_job(j);
}

/* Writes what the device has to know of a job to its row. */
static void fill_row(struct mc_batch *b, const job *j, int row)
{
    mc_device *d = device_of(b);
    mc_chooser *c = &b->chooser;
    int32_t fields[MC_ROW_FIELDS] = {0};
    const mc_generate_options *o = &j->options;
    mc_answer_rules rules = {.how = mc_sampling_of(o),
                             .place = o->first_prompt,
                             .eos_count = o->eos_count,
                             .most = j->most};
    mc_batch_model_join(b->model, row, j->prompt, j->most, fields);
    fields[MC_ROW_ANSWER] = row;
    fields[MC_ROW_TICK] = (int32_t)(b->tick - 1); /* choosing after the prompt counts it up */
    for (int f = 0; f < MC_ROW_FIELDS; f++)
        d->copy_in(d, c->call.state + f * b->options.sequences + row, &fields[f], sizeof *fields);
    d->copy_in(d, (mc_answer_rules *)c->rules + row, &rules, sizeof rules);
    d->copy_in(d, (int32_t *)c->eos + row * MOST_EOS, j->eos, sizeof j->eos);
    if (o->repetition_penalty == 1) return;
    size_t words = (size_t)mc_seen_words(b->decoder.vocab);
    int n = j->prompt;
    const int32_t *ids = mc_batch_model_begins_with(b->model, j->ids, &n);
    memset(b->seen, 0, words * sizeof *b->seen);
    for (int i = 0; i < n; i++) mc_see(b->seen, ids[i]);
    d->copy_in(d, (uint32_t *)c->seen + (size_t)row * words, b->seen, words * sizeof *b->seen);
}

/* Puts the first that wait into free rows, as many as there is room for and as run together. */
static bool collect(struct mc_batch *b)
{
    int64_t tokens = 0;
    b->joining_count = 0;
    for (int row = 0; row < b->options.sequences; row++) {
        job *j = b->rows[row] ? NULL : first_waiting(b);
        for (; j && !check_job(b, j); j = first_waiting(b)) {
            if (mc_error_status(b->g->ctx) == MC_ERR_NOMEM) return false;
            end_first(b, j);
        }
        if (b->rows[row]) continue;
        bool more = b->joining_count && tokens + (j ? j->prompt : 0) > b->options.prompt_tokens;
        if (!j || more || !mc_batch_model_has_room(b->model, j->prompt, j->most)) return true;
        take_first(b, row);
        fill_row(b, j, row);
        b->joining[b->joining_count++] = row;
        tokens += j->prompt;
    }
    return true;
}

/* The prompts that join, one behind the other. */
static bool pack(struct mc_batch *b)
{
    int64_t total = 0;
    for (int i = 0; i < b->joining_count; i++) total += b->rows[b->joining[i]]->prompt;
    if (total > b->prompt_room) {
        int32_t *grown = mc_realloc(b->prompt_ids, (size_t)total * sizeof *grown);
        if (!grown) return !mc_fail_nomem(b->g->ctx, "the prompts");
        b->prompt_ids = grown;
        b->prompt_room = total;
    }
    int32_t *end = b->prompt_ids;
    for (int i = 0; i < b->joining_count; i++) {
        const job *j = b->rows[b->joining[i]];
        memcpy(end, j->ids, (size_t)j->prompt * sizeof *end);
        end += j->prompt;
        b->prompt_lengths[i] = j->prompt;
    }
    return true;
}

/* ---- launching
 * ------------------------------------------------------------------------------- */

/* Copies `count` lines of what was chosen, from line `first` on, when all before is done. */
static void add_group(struct mc_batch *b, group added, int first, int count)
{
    mc_device *d = device_of(b);
    size_t line = (size_t)b->options.sequences * sizeof *b->chosen, at = (size_t)first * line;
    added.number = b->group_number++;
    added.ticket = d->copy_out_later(d, (char *)b->chosen + at, (char *)b->chooser.chosen + at,
                                     (size_t)count * line);
    b->groups[b->group_count++] = added;
}

/* The line of first tokens that a group of prompts has for itself while it is on its way. */
static int first_line(int64_t number) { return KEPT + (int)(number % GROUPS); }

static bool launch_prompts(struct mc_batch *b)
{
    if (!collect(b)) return false;
    if (!b->joining_count) return true;
    mc_chooser first = b->chooser;
    first.call.kept = 1;
    first.call.chosen += first_line(b->group_number) * (int64_t)b->options.sequences;
    for (int i = 0; i < b->joining_count; i++) {
        job *j = b->rows[b->joining[i]];
        j->joined = b->tick;
        j->group = b->group_number;
        j->launched = 1;
    }
    if (!pack(b) || !mc_batch_model_prompts(b->model, b->prompt_ids, b->prompt_lengths, b->joining,
                                            b->joining_count, &first))
        return false;
    add_group(b, (group){.prompts = true}, first_line(b->group_number), 1);
    return true;
}

/* Steps that some answer still needs, of those up to the next whole group. */
static int steps_needed(const struct mc_batch *b)
{
    int most = 0, each = device_of(b)->is_host ? 1 : MC_GROUP_STEPS;
    int room = each - (int)(b->tick % (uint32_t)each);
    for (int i = 0; i < b->options.sequences; i++) {
        const job *j = b->rows[i];
        if (j && j->most - j->launched > most) most = j->most - j->launched;
    }
    return most < room ? most : room;
}

/* Rows up to the last one in use; on a GPU one of few numbers, each of which is recorded. */
static int rows_to_run(const struct mc_batch *b)
{
    int rows = 0, size = 1;
    for (int i = 0; i < b->options.sequences; i++)
        if (b->rows[i]) rows = i + 1;
    if (device_of(b)->is_host) return rows;
    while (size < rows) size *= 2;
    return size < b->options.sequences ? size : b->options.sequences;
}

static bool launch_steps(struct mc_batch *b)
{
    int steps = steps_needed(b), first = (int)(b->tick % KEPT);
    if (!steps) return true;
    group added = {.first = b->tick};
    b->chooser.call.rows = rows_to_run(b);
    for (int i = 0; i < steps; i++, b->tick++)
        if (!mc_batch_model_step(b->model, &b->chooser)) return false;
    added.end = b->tick;
    for (int i = 0; i < b->options.sequences; i++)
        if (b->rows[i]) b->rows[i]->launched += steps;
    add_group(b, added, first, steps);
    return true;
}

static int groups_of_steps(const struct mc_batch *b)
{
    int count = 0;
    for (int i = 0; i < b->group_count; i++) count += !b->groups[i].prompts;
    return count;
}

/* ---- taking in
 * ------------------------------------------------------------------------------- */

static bool ends(job *j)
{
    const mc_generate_options *o = &j->options;
    const int32_t *ids = j->ids + j->prompt;
    bool end = j->count == j->most;
    for (int i = 0; i < o->eos_count; i++) end = end || o->eos[i] == ids[j->count - 1];
    return end;
}

static void end_row(struct mc_batch *b, int row, mc_answer_state state, mc_chosen chosen,
                    const char *error)
{
    job *j = leave_row(b, row);
    tell(j, state, chosen, error);
    free_job(j);
}

static void take_token(struct mc_batch *b, int row, mc_chosen chosen)
{
    job *j = b->rows[row];
    if (chosen.token == MC_CHOSEN_NOT_FINITE) {
        snprintf(b->problem, sizeof b->problem,
                 "generation with %s: the logits after token %d of the prompt and its answer are "
                 "not finite",
                 b->decoder.model, j->prompt + j->count - 1);
        chosen = (mc_chosen){MC_CHOSEN_NOTHING, 0};
        end_row(b, row, MC_ANSWER_FAILED, chosen, b->problem);
        return;
    }
    j->ids[j->prompt + j->count++] = chosen.token;
    const mc_generate_options *o = &j->options;
    bool end = ends(j),
         stopped = !end && o->stop && o->stop(o->stop_user, 0, j->ids + j->prompt, j->count);
    if (stopped) stop_row(b, row);
    if (end || stopped)
        end_row(b, row, MC_ANSWER_ENDED, chosen, NULL);
    else
        tell(j, MC_ANSWER_GOES_ON, chosen, NULL);
}

/* Those that were there in a step: what other rows show is older. */
static void take_tick(struct mc_batch *b, uint32_t tick)
{
    const mc_chosen *chosen = b->chosen + tick % KEPT * (uint32_t)b->options.sequences;
    for (int i = 0; i < b->options.sequences; i++) {
        const job *j = b->rows[i];
        if (j && (int32_t)(tick - j->joined) >= 0) take_token(b, i, chosen[i]);
    }
}

static bool take_group(struct mc_batch *b)
{
    mc_device *d = device_of(b);
    group taken = b->groups[0];
    b->group_count--;
    memmove(b->groups, b->groups + 1, (size_t)b->group_count * sizeof *b->groups);
    if (!d->wait(d, taken.ticket))
        return !mc_fail(b->g->ctx, MC_ERR_DEVICE, "generation with %s: %s", b->decoder.model,
                        d->failure);
    const mc_chosen *first = b->chosen + first_line(taken.number) * b->options.sequences;
    for (int i = 0; taken.prompts && i < b->options.sequences; i++)
        if (b->rows[i] && b->rows[i]->group == taken.number) take_token(b, i, first[i]);
    for (uint32_t tick = taken.first; !taken.prompts && tick != taken.end; tick++)
        take_tick(b, tick);
    return true;
}

bool mc_generator_step(mc_generator *g)
{
    struct mc_batch *b = g ? g->batch : NULL;
    if (!b || mc_failed(g->ctx)) return false;
    int ahead = device_of(b)->is_host ? 1 : STEP_GROUPS;
    end_cancelled(b);
    while (b->group_count >= GROUPS - STEP_GROUPS)
        if (!take_group(b)) return false;
    if (!launch_prompts(b)) return false;
    while (groups_of_steps(b) < ahead && steps_needed(b))
        if (!launch_steps(b)) return false;
    if (b->group_count && !take_group(b)) return false;
    pthread_mutex_lock(&b->guard);
    bool more = has_work(b);
    pthread_mutex_unlock(&b->guard);
    return more && !mc_failed(g->ctx);
}
