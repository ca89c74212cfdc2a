#include "core/optim/offload_internal.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "core/device/plan_internal.h"
#include "core/device/plan_timer_internal.h"
#include "core/dist/world_internal.h"

enum {
    CHUNK = 4 << 20, /* f32 elements of a slot, the unit of work */
    SLOTS = 2,       /* pinned buffers of each lane */
    FENCES = 4,      /* for gradients in flight */
    LOANS = 2,       /* device buffers lent until they are copied */
    ENDS = 1 << 14   /* of a plan: jobs whose end is kept */
};

typedef enum job_kind { GRADIENT, UPDATE, COPY_UPDATE } job_kind;

typedef struct copy_job {
    const mc_update *update;
    mc_update *host_update;
} copy_job;

typedef struct offload_job {
    job_kind kind;
    mc_fence *ready; /* device work to wait for; NULL: none */
    union {
        mc_gradient_job gradient;
        mc_update_job update;
        copy_job copy;
    };
} offload_job;

/* A pinned buffer of one chunk, and a fence after the last copy from or to it. */
typedef struct offload_slot {
    void *data;
    mc_fence *copied;
} offload_slot;

typedef struct offload_lane {
    mc_lane *lane;
    offload_slot slot[SLOTS];
    int next;
} offload_lane;

typedef struct offload_loan {
    uint64_t number;
    void *data;
    size_t bytes;
} offload_loan;

struct mc_offload {
    mc_home home; /* first: mc_offload_of */
    mc_context *ctx;
    mc_device *device;
    size_t home_before; /* in_use of the host before this engine */
    mc_device *crew;    /* the host's kernels, for the engine's thread */
    bool plans;         /* a plan: no thread, nothing is computed */
    bool unpinnable;    /* memory could not be pinned */
    double *ends;       /* of a plan: the end of job n at n % ENDS; else NULL */
    int users;
    int sharing, sharer; /* number of ranks on these cores, and this one's number */
    int64_t chunk;
    offload_lane down, up;
    mc_fence *ready[FENCES];
    offload_loan loans[LOANS]; /* oldest first */
    int loan_count;
    /* the queue: jobs `done` + 1 to `given`, job n at jobs[n % capacity]; `guard` guards it, the
     * two numbers and the error */
    offload_job *jobs;
    uint64_t capacity, given, done;
    mc_error error;
    bool stop, has_thread;
    pthread_t thread;
    pthread_mutex_t guard;
    pthread_cond_t work, rest;
};

static size_t slot_bytes(const mc_offload *e) { return (size_t)e->chunk * sizeof(float); }

/* ---- the thread's work ----------------------------------------------------------------------- */

/* Turns a lane's error message into the thread's error. */
static bool good(mc_offload *e, const char *complaint, const char *what)
{
    if (!complaint) return true;
    pthread_mutex_lock(&e->guard);
    mc_error_set(&e->error, MC_ERR_DEVICE, "AdamOffload: %s: %s", what, complaint);
    pthread_mutex_unlock(&e->guard);
    return false;
}

static bool computed(mc_offload *e, mc_status status, const char *what)
{
    if (!status) return true;
    pthread_mutex_lock(&e->guard);
    mc_error_set(&e->error, status, "AdamOffload: %s: %s", what, mc_status_text(status));
    pthread_mutex_unlock(&e->guard);
    return false;
}

/* Waits until the last copy from or to the slot is done. */
static bool wait_for_copy(mc_offload *e, const offload_slot *slot)
{
    mc_range_begin(e->device, "AdamOffload: wait for a copy");
    const char *complaint = e->device->lanes->wait(e->device, slot->copied);
    mc_range_end(e->device);
    return good(e, complaint, "waiting for a copy");
}

/* The next free slot of a lane; NULL on failure. */
static offload_slot *take_slot(mc_offload *e, offload_lane *lane)
{
    offload_slot *slot = &lane->slot[lane->next];
    lane->next = (lane->next + 1) % SLOTS;
    return wait_for_copy(e, slot) ? slot : NULL;
}

static int64_t chunk_at(const mc_offload *e, int64_t at, int64_t count)
{
    return count - at < e->chunk ? count - at : e->chunk;
}

static mc_matrix sums_at(const mc_gradient_job *j, int64_t at)
{
    return (mc_matrix){(char *)j->sum + (size_t)at * mc_dtype_size(j->is), j->is, 0};
}

/* Adds statistics of elements at .. at + n of the sums. */
static bool measure_chunk(mc_offload *e, const mc_gradient_job *j, int64_t at, int64_t n)
{
    for (int i = 0; i < j->part_count; i++) {
        mc_host_part *p = &j->parts[i];
        int64_t from = p->first > at ? p->first : at, end = p->first + p->count;
        int64_t to = end < at + n ? end : at + n;
        if (to <= from) continue;
        mc_status status = e->crew->kernels->gradient_stats(e->crew, to - from, sums_at(j, from),
                                                            j->power, from - p->first, &p->stats);
        if (!computed(e, status, "measuring gradients")) return false;
    }
    return true;
}

/* Adds elements at .. at + n from `slot` (NULL: none), unless they were copied directly;
 * measures. */
static bool absorb(mc_offload *e, const mc_gradient_job *j, int64_t at, int64_t n,
                   offload_slot *slot)
{
    mc_status status = MC_OK;
    if (slot && !j->direct) {
        mc_matrix from = {slot->data, j->dtype, n};
        status = e->crew->kernels->scale(e->crew, n, from, 1, sums_at(j, at), !j->set);
    } else if (j->set && !slot) {
        status =
            e->crew->kernels->zero(e->crew, sums_at(j, at).data, (size_t)n * mc_dtype_size(j->is));
    }
    if (!computed(e, status, "adding gradients up")) return false;
    return !j->parts || measure_chunk(e, j, at, n);
}

/* Starts the copy of a chunk; NULL on failure. */
static offload_slot *fetch(mc_offload *e, const mc_gradient_job *j, int64_t at, int64_t n)
{
    const mc_lanes *lanes = e->device->lanes;
    size_t size = mc_dtype_size(j->dtype);
    offload_slot *slot = take_slot(e, &e->down);
    if (!slot) return NULL;
    void *to = j->direct ? sums_at(j, at).data : slot->data;
    const char *complaint = lanes->copy_out(
        e->device, e->down.lane, to, (const char *)j->from + (size_t)at * size, (size_t)n * size);
    if (!complaint) complaint = lanes->fence_set(e->device, slot->copied, e->down.lane);
    return good(e, complaint, "a gradient") ? slot : NULL;
}

/* Widens 16-bit sums to f32 in place, from the end, through a slot. */
static bool widen(mc_offload *e, const mc_gradient_job *j)
{
    const mc_kernels *k = e->crew->kernels;
    mc_status status = MC_OK;
    for (int64_t at = (j->count - 1) / e->chunk * e->chunk; at >= 0 && !status; at -= e->chunk) {
        int64_t n = chunk_at(e, at, j->count);
        mc_matrix narrow = {(char *)j->sum + (size_t)at * mc_dtype_size(j->was), j->was, 0};
        offload_slot *slot = take_slot(e, &e->down);
        if (!slot) return false;
        mc_matrix aside = {slot->data, j->was, 0};
        status = k->scale(e->crew, n, narrow, 1, aside, false);
        if (!status) status = k->scale(e->crew, n, aside, 1, sums_at(j, at), false);
    }
    return computed(e, status, "adding gradients up");
}

/* Adds each chunk while the next one is being copied. */
static void run_gradient(mc_offload *e, const mc_gradient_job *j)
{
    offload_slot *now = NULL, *next = NULL;
    if (!j->set && j->was != j->is && !widen(e, j)) return;
    for (int i = 0; j->parts && i < j->part_count; i++) j->parts[i].stats = (mc_gradient_stats){0};
    if (j->from && j->count && !(now = fetch(e, j, 0, chunk_at(e, 0, j->count)))) return;
    for (int64_t at = 0; at < j->count; at += e->chunk, now = next) {
        int64_t behind = at + e->chunk;
        if (j->from && behind < j->count &&
            !(next = fetch(e, j, behind, chunk_at(e, behind, j->count))))
            return;
        if (now && !wait_for_copy(e, now)) return;
        mc_range_begin(e->device, "AdamOffload: sum gradients");
        bool absorbed = absorb(e, j, at, chunk_at(e, at, j->count), now);
        mc_range_end(e->device);
        if (!absorbed) return;
    }
}

/* Updates a chunk into a slot and starts its copy to the device. */
static bool update_chunk(mc_offload *e, const mc_update_job *j, int64_t at, int64_t n)
{
    const mc_lanes *lanes = e->device->lanes;
    size_t size = mc_dtype_size(j->dtype);
    offload_slot *slot = take_slot(e, &e->up);
    if (!slot) return false;
    mc_range_begin(e->device, "AdamOffload: update");
    mc_matrix gradient = j->gradient;
    gradient.data = (char *)gradient.data + (size_t)at * mc_dtype_size(gradient.dtype);
    mc_status status = e->crew->kernels->adam(e->crew, n, j->step, gradient, j->m + at, j->v + at,
                                              j->master + at, slot->data, j->dtype);
    mc_range_end(e->device);
    if (!computed(e, status, "an update")) return false;
    const char *complaint =
        lanes->copy_in(e->device, e->up.lane, (char *)j->parameter + (size_t)at * size, slot->data,
                       (size_t)n * size);
    if (!complaint) complaint = lanes->fence_set(e->device, slot->copied, e->up.lane);
    return good(e, complaint, "sending parameters");
}

static void run_update(mc_offload *e, const mc_update_job *j)
{
    int64_t chunk = (int64_t)(slot_bytes(e) / mc_dtype_size(j->dtype));
    if (j->step.update->skip) return;
    for (int64_t at = 0; at < j->count; at += chunk) {
        int64_t n = j->count - at < chunk ? j->count - at : chunk;
        if (!update_chunk(e, j, at, n)) return;
    }
    good(e, e->device->lanes->fence_set(e->device, j->uploaded, e->up.lane), "sending parameters");
}

static void run_copy(mc_offload *e, const copy_job *j)
{
    const mc_lanes *lanes = e->device->lanes;
    mc_fence *copied = e->down.slot[0].copied; /* unused now: its last copy was waited for */
    const char *complaint =
        lanes->copy_out(e->device, e->down.lane, j->host_update, j->update, sizeof *j->host_update);
    if (!complaint) complaint = lanes->fence_set(e->device, copied, e->down.lane);
    if (!complaint) complaint = lanes->wait(e->device, copied);
    good(e, complaint, "what a step decided");
}

static void run_job(mc_offload *e, const offload_job *job)
{
    if (job->ready &&
        !good(e, e->device->lanes->after(e->device, e->down.lane, job->ready), "a gradient"))
        return;
    switch (job->kind) {
    case GRADIENT: run_gradient(e, &job->gradient); break;
    case UPDATE: run_update(e, &job->update); break;
    case COPY_UPDATE: run_copy(e, &job->copy); break;
    }
}

static void *work(void *argument)
{
    mc_offload *e = argument;
    omp_set_num_threads(mc_world_take_cores(e->sharing, e->sharer));
    pthread_mutex_lock(&e->guard);
    for (;;) {
        while (e->done == e->given && !e->stop) pthread_cond_wait(&e->work, &e->guard);
        if (e->done == e->given) break;
        offload_job job = e->jobs[(e->done + 1) % e->capacity];
        bool failed = mc_error_is_set(&e->error);
        pthread_mutex_unlock(&e->guard);
        if (!failed) run_job(e, &job);
        pthread_mutex_lock(&e->guard);
        e->done++;
        pthread_cond_broadcast(&e->rest);
    }
    pthread_mutex_unlock(&e->guard);
    return NULL;
}

/* ---- giving jobs, and waiting ---------------------------------------------------------------- */

/* Makes room for one more job. */
static bool make_room(mc_offload *e)
{
    if (e->given - e->done < e->capacity) return true;
    uint64_t capacity = e->capacity ? 2 * e->capacity : 64;
    offload_job *jobs = mc_malloc(capacity * sizeof *jobs);
    if (!jobs) return false;
    for (uint64_t n = e->done + 1; n <= e->given; n++)
        jobs[n % capacity] = e->jobs[n % e->capacity];
    mc_free(e->jobs);
    e->jobs = jobs;
    e->capacity = capacity;
    return true;
}

/* The end of a planned job: copies of chunks overlap with additions and updates. */
static double planned_end(mc_offload *e, const offload_job *job)
{
    const mc_gradient_job *g = &job->gradient;
    const mc_update_job *u = &job->update;
    if (job->kind == COPY_UPDATE) return mc_plan_host_work(e->device, 0, 0, true);
    if (job->kind == UPDATE) { /* Adam reads and writes m, v, master; reads the gradient */
        double count = (double)u->count, size = (double)mc_dtype_size(u->dtype);
        double touched = 24 + (double)mc_dtype_size(u->gradient.dtype) + size;
        return mc_plan_host_work(e->device, count * size, count * touched, false);
    }
    double size = g->from ? (double)mc_dtype_size(g->dtype) : 0, count = (double)g->count;
    double sum = (double)mc_dtype_size(g->is);
    double touched = size + (g->parts ? sum : 0);
    if (!g->direct) touched += g->set ? sum : g->from ? 2 * sum : 0;
    return mc_plan_host_work(e->device, count * size, count * touched, g->from);
}

static uint64_t give(mc_offload *e, const offload_job *job)
{
    if (mc_failed(e->ctx)) return 0;
    pthread_mutex_lock(&e->guard);
    bool room = make_room(e);
    uint64_t number = room ? ++e->given : 0;
    if (room) e->jobs[number % e->capacity] = *job;
    if (e->plans) e->done = e->given;
    if (e->plans && number) e->ends[number % ENDS] = planned_end(e, job);
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->guard);
    if (!room) mc_fail_nomem(e->ctx, "AdamOffload's jobs");
    return number;
}

/* Sets a fence after everything launched so far. Reusing a fence is harmless: a newer one only
 * waits for more. */
static bool mark_launched(mc_offload *e, mc_fence **ready)
{
    *ready = NULL;
    if (e->plans) return true;
    *ready = e->ready[e->given % FENCES];
    const char *complaint = e->device->lanes->fence_set(e->device, *ready, NULL);
    if (complaint) mc_fail(e->ctx, MC_ERR_DEVICE, "AdamOffload: a gradient: %s", complaint);
    return !complaint;
}

uint64_t mc_offload_gradient(mc_offload *e, const mc_gradient_job *gradient)
{
    offload_job job = {.kind = GRADIENT, .gradient = *gradient};
    if (gradient->from && !mark_launched(e, &job.ready)) return 0;
    return give(e, &job);
}

uint64_t mc_offload_update(mc_offload *e, const mc_update_job *update)
{
    return give(e, &(offload_job){.kind = UPDATE, .update = *update});
}

uint64_t mc_offload_copy_update(mc_offload *e, const mc_update *update, mc_update *host_update)
{
    offload_job job = {.kind = COPY_UPDATE, .copy = {update, host_update}};
    return mark_launched(e, &job.ready) ? give(e, &job) : 0;
}

bool mc_offload_pin(mc_offload *e, void *host, size_t bytes)
{
    if (e->plans || e->unpinnable) return e->plans;
    const char *complaint = e->device->lanes->pin(e->device, host, bytes);
    e->unpinnable = complaint != NULL;
    if (complaint)
        mc_log(e->ctx, MC_LOG_WARNING,
               "AdamOffload: gradients go by way of buffers, as memory cannot be pinned: %s",
               complaint);
    return !complaint;
}

void mc_offload_unpin(mc_offload *e, void *host)
{
    if (e->plans) return;
    for (int i = 0; i < SLOTS; i++) /* a failed job may have left a running copy */
        e->device->lanes->wait(e->device, e->down.slot[i].copied);
    e->device->lanes->unpin(e->device, host);
}

uint64_t mc_offload_given(const mc_offload *e) { return e->given; }

/* Waits for a job, whatever the context's state. */
static void wait_for(mc_offload *e, uint64_t number)
{
    mc_range_begin(e->device, "wait for AdamOffload");
    pthread_mutex_lock(&e->guard);
    while (e->done < number) pthread_cond_wait(&e->rest, &e->guard);
    pthread_mutex_unlock(&e->guard);
    mc_range_end(e->device);
}

/* Frees memory lent to finished jobs, and waits for the oldest until at most `most` are left. */
static void take_back(mc_offload *e, int most)
{
    pthread_mutex_lock(&e->guard);
    uint64_t done = e->plans ? 0 : e->done; /* a plan assumes the worst */
    pthread_mutex_unlock(&e->guard);
    while (e->loan_count && (e->loans[0].number <= done || e->loan_count > most)) {
        wait_for(e, e->loans[0].number);
        e->device->free(e->device, e->loans[0].data, e->loans[0].bytes);
        memmove(&e->loans[0], &e->loans[1], (size_t)--e->loan_count * sizeof e->loans[0]);
    }
}

void mc_offload_lend(mc_offload *e, uint64_t number, void *data, size_t bytes)
{
    take_back(e, LOANS - 1);
    e->loans[e->loan_count++] = (offload_loan){number, data, bytes};
}

mc_status mc_offload_wait(mc_offload *e, uint64_t number)
{
    if (!e) return MC_OK;
    if (number > e->given) number = e->given;
    wait_for(e, number);
    if (e->plans && number && e->given - number < ENDS)
        mc_plan_wait_host(e->device, e->ends[number % ENDS]);
    take_back(e, LOANS);
    pthread_mutex_lock(&e->guard);
    if (mc_error_is_set(&e->error)) mc_error_move(&e->ctx->error, &e->error);
    pthread_mutex_unlock(&e->guard);
    return mc_error_status(e->ctx);
}

mc_status mc_offload_finish(mc_offload *e)
{
    if (!e) return MC_OK;
    mc_status status = mc_offload_wait(e, e->given);
    take_back(e, 0);
    return status;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

bool mc_offload_is_wanted(const mc_context *ctx)
{
    const char *setting = getenv("MC_OFFLOAD");
    mc_device *device = ctx->device;
    return !mc_device_is_host(device) || (setting && strcmp(setting, "always") == 0);
}

static uint64_t pinned_bytes(int64_t chunk) { return 2 * SLOTS * (uint64_t)chunk * sizeof(float); }

mc_offload *mc_offload_of(const mc_home *home) { return (mc_offload *)(void *)(uintptr_t)home; }

static uint64_t host_bytes(const mc_home *home)
{
    const mc_offload *e = mc_offload_of(home);
    return home->device->memory.in_use - e->home_before + pinned_bytes(e->chunk);
}

static const char *make_lane(mc_offload *e, offload_lane *lane)
{
    mc_device *d = e->device;
    const char *complaint = d->lanes->lane_new(d, &lane->lane);
    for (int i = 0; i < SLOTS && !complaint; i++) {
        complaint = d->lanes->fence_new(d, &lane->slot[i].copied);
        if (complaint) break;
        lane->slot[i].data = d->host_alloc(d, slot_bytes(e));
        if (!lane->slot[i].data) complaint = "out of memory";
    }
    return complaint;
}

static void free_lane(mc_offload *e, offload_lane *lane)
{
    mc_device *d = e->device;
    d->lanes->lane_free(d, lane->lane);
    for (int i = 0; i < SLOTS; i++) {
        d->lanes->fence_free(d, lane->slot[i].copied);
        d->host_free(d, lane->slot[i].data, slot_bytes(e));
    }
}

static void free_engine(mc_offload *e)
{
    if (e->has_thread) {
        pthread_mutex_lock(&e->guard);
        e->stop = true;
        pthread_cond_signal(&e->work);
        pthread_mutex_unlock(&e->guard);
        pthread_join(e->thread, NULL);
    }
    take_back(e, 0);
    if (!e->plans) {
        free_lane(e, &e->down);
        free_lane(e, &e->up);
        for (int i = 0; i < FENCES; i++) e->device->lanes->fence_free(e->device, e->ready[i]);
    }
    mc_device_close(e->home.device);
    mc_device_close(e->crew);
    mc_error_clear(&e->error);
    pthread_cond_destroy(&e->rest);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->guard);
    mc_free(e->jobs);
    mc_free(e->ends);
    mc_free(e);
}

/* Creates lanes, fences and the thread. Returns NULL, or an error message. */
static const char *make_parts(mc_offload *e)
{
    const char *complaint = make_lane(e, &e->down);
    if (!complaint) complaint = make_lane(e, &e->up);
    for (int i = 0; i < FENCES && !complaint; i++)
        complaint = e->device->lanes->fence_new(e->device, &e->ready[i]);
    if (complaint) return complaint;
    e->has_thread = pthread_create(&e->thread, NULL, work, e) == 0;
    return e->has_thread ? NULL : "the system gives no thread";
}

/* Elements per chunk; tests set fewer. */
static int64_t chunk_size(void)
{
    const char *setting = getenv("MC_OFFLOAD_CHUNK");
    long long value = setting ? strtoll(setting, NULL, 10) : 0;
    return value > 0 && value < CHUNK ? value : CHUNK;
}

uint64_t mc_offload_pinned_needed(const mc_context *ctx)
{
    return ctx->home ? 0 : pinned_bytes(chunk_size());
}

static mc_offload *new_engine(mc_context *ctx, const mc_home *functions)
{
    mc_offload *e = mc_calloc(1, sizeof *e);
    if (!e) {
        mc_fail_nomem(ctx, "AdamOffload");
        return NULL;
    }
    *e = (mc_offload){.home = *functions, .ctx = ctx, .device = ctx->device, .chunk = chunk_size()};
    e->home.bytes = host_bytes;
    pthread_mutex_init(&e->guard, NULL);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->rest, NULL);
    e->plans = mc_device_is_plan(ctx->device);
    e->home.device =
        e->plans ? mc_plan_open(mc_plan_like(ctx->device)) : mc_device_open(ctx, "cpu");
    if (e->home.device && !e->plans) e->crew = mc_device_open(ctx, "cpu");
    if (e->plans) e->ends = mc_calloc(ENDS, sizeof *e->ends);
    bool made = e->home.device && (e->plans ? e->ends != NULL : e->crew != NULL);
    const char *complaint = made ? NULL : "out of memory";
    if (!e->plans) e->sharing = mc_world_sharing_cores(ctx, &e->sharer);
    if (!complaint && !e->plans) complaint = make_parts(e);
    if (!complaint) {
        e->home_before = e->home.device->memory.in_use;
        return e;
    }
    bool memory = strcmp(complaint, "out of memory") == 0;
    mc_fail(ctx, memory ? MC_ERR_NOMEM : MC_ERR_DEVICE, "AdamOffload: %s", complaint);
    free_engine(e);
    return NULL;
}

const mc_home *mc_offload_open(mc_context *ctx, const mc_home *functions)
{
    if (mc_failed(ctx)) return NULL;
    mc_offload *e = ctx->home ? mc_offload_of(ctx->home) : new_engine(ctx, functions);
    if (!e) return NULL;
    ctx->home = &e->home;
    e->users++;
    return ctx->home;
}

void mc_offload_close(mc_offload *e)
{
    if (!e || --e->users) return;
    e->ctx->home = NULL;
    wait_for(e, e->given);
    free_engine(e);
}
