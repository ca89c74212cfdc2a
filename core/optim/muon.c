/* Muon: the rule stands in optimizer.h.
 *
 * Vectors, embeddings and so on are stepped run by run, as by Adam (muon_step). Matrices are
 * stepped after them, whole, in waves of one shape that bound the memory of what is on its way
 * (mc_muon_launch):
 *
 *   1. each rank that has elements of a matrix takes its momentum step there, which gives a part
 *      of X;
 *   2. the parts go to the matrix's owner, which has memory for all of X, unless every rank has
 *      all elements;
 *   3. the owner orthogonalizes all X that it has in the wave, as one batch (newton_schulz.c);
 *   4. the parts go back, or the owner's X to all ranks;
 *   5. each rank updates the elements that it has.
 *
 * The owner is one of the ranks that have elements, the one with the least work so far, so that all
 * ranks come to the same list without asking. Only it multiplies, also where all have all elements:
 * products of two devices need not be equal to the bit. */
#include <math.h>
#include <stdlib.h>
#include "core/dist/comm_internal.h"
#include "core/optim/newton_schulz_internal.h"
#include "core/optim/optimizer_internal.h"

/* The settings of a Muon optimizer. */
typedef struct mc_muon {
    mc_adam_step adam;
    float other; /* Adam's learning rate, divided by that of matrices */
    float momentum;
    bool nesterov;
    mc_muon_scale scale;
    mc_dtype dtype; /* of X and the products */
} mc_muon;

/* ---- the list of matrices -------------------------------------------------------------------- */

typedef struct matrix {
    mc_run run;   /* of its elements alone */
    size_t order; /* of the list before it was sorted */
    int64_t rows, columns;
    bool shared;               /* ranks have parts of it; else each has all */
    int first_rank, last_rank; /* those that have elements */
    int owner;
    int64_t first, count; /* elements of the bucket that this rank has */
    mc_matrix x;          /* the owner's: all of it; else the part. NULL data: none yet */
    size_t bytes;         /* of x.data; 0 of an owner's, which lies in the wave's */
} matrix;

typedef struct list {
    mc_optimizer *optimizer;
    const mc_muon *muon;
    mc_device *device;
    const mc_rank_group *group;
    matrix *items; /* those of a shape together */
    size_t count, capacity;
    int64_t *owned; /* matrices of each rank in a wave */
} list;

/* FLOP of its products. */
static double work_of(const matrix *m)
{
    mc_newton_schulz one = mc_newton_schulz_of(1, m->rows, m->columns);
    return mc_newton_schulz_flops(&one);
}

static mc_status add_matrix(void *user, const mc_run *run)
{
    list *l = user;
    const mc_bucket *b = run->bucket;
    if (!run->matrix) return MC_OK;
    if (!mc_grow(&l->items, &l->capacity, l->count, sizeof *l->items))
        return mc_fail_nomem(l->optimizer->ctx, "Muon's list of matrices");
    matrix *m = &l->items[l->count++];
    *m = (matrix){.run = *run,
                  .order = l->count,
                  .rows = run->matrix->shape.dim[0],
                  .columns = run->matrix->shape.dim[1],
                  .shared = b->level->state == MC_SHARE,
                  .last_rank = l->group->size - 1};
    if (m->shared) {
        m->first_rank = (int)(run->first / b->share);
        m->last_rank = (int)((run->first + run->count - 1) / b->share);
    }
    mc_run mine = *run;
    if (mc_run_within(&mine, mc_bucket_first(b), mc_bucket_held(b))) {
        m->first = mine.first;
        m->count = mine.count;
    }
    return MC_OK;
}

static int compare(const void *x, const void *y)
{
    const matrix *a = x, *b = y;
    if (a->rows != b->rows) return a->rows < b->rows ? -1 : 1;
    if (a->columns != b->columns) return a->columns < b->columns ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

/* Chooses owners; first for matrices that only one rank can own. */
static mc_status choose_owners(list *l)
{
    double *load = mc_calloc((size_t)l->group->size, sizeof *load);
    if (!load) return mc_fail_nomem(l->optimizer->ctx, "Muon's list of matrices");
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < l->count; i++) {
            matrix *m = &l->items[i];
            if ((m->first_rank == m->last_rank) != (pass == 0)) continue;
            m->owner = m->first_rank;
            for (int r = m->first_rank; r <= m->last_rank; r++)
                if (load[r] < load[m->owner]) m->owner = r;
            load[m->owner] += work_of(m);
        }
    mc_free(load);
    return MC_OK;
}

static mc_status list_matrices(list *l)
{
    mc_status status = mc_optimizer_each_run(l->optimizer, add_matrix, l);
    if (status) return status;
    if (l->count) qsort(l->items, l->count, sizeof *l->items, compare);
    l->owned = mc_calloc((size_t)l->group->size, sizeof *l->owned);
    if (!l->owned) return mc_fail_nomem(l->optimizer->ctx, "Muon's list of matrices");
    return choose_owners(l);
}

double mc_muon_flops(mc_optimizer *o)
{
    double flops = 0;
    if (!o) return 0;
    if (mc_failed(o->ctx)) return NAN;
    if (!o->muon) return 0;
    list l = {.optimizer = o, .muon = o->muon, .group = &o->ctx->mesh.shard};
    mc_status status = mc_optimizer_each_run(o, add_matrix, &l);
    for (size_t i = 0; i < l.count; i++) flops += work_of(&l.items[i]);
    mc_free(l.items);
    return status ? NAN : flops;
}

/* ---- a wave ---------------------------------------------------------------------------------- */

/* Matrices of one shape. */
typedef struct wave {
    matrix *items;
    size_t count;
    mc_newton_schulz own; /* those that this rank owns */
    mc_matrix x;          /* theirs, one after another */
    size_t bytes;         /* of x.data */
} wave;

static bool owns(const list *l, const matrix *m) { return m->owner == l->group->rank; }

/* Elements first .. first + count of the bucket in x, `from` being the first that x has. */
static void *part_of(const matrix *m, int64_t from, int64_t first)
{
    return (char *)m->x.data + (size_t)(first - from) * mc_dtype_size(m->x.dtype);
}

/* The first element of the bucket that a rank's x has. */
static int64_t begin_of(const list *l, const matrix *m)
{
    return owns(l, m) ? m->run.first : m->first;
}

static mc_muon_step step_of(const list *l, const matrix *m)
{
    double larger = (double)(m->rows > m->columns ? m->rows : m->columns);
    double shape = (double)m->rows / (double)m->columns;
    double scale =
        l->muon->scale == MC_MUON_MATCH_RMS ? 0.2 * sqrt(larger) : sqrt(shape > 1 ? shape : 1);
    return (mc_muon_step){.update = &l->optimizer->memory->update,
                          .momentum = l->muon->momentum,
                          .nesterov = l->muon->nesterov,
                          .lr_factor = m->run.lr_factor,
                          .weight_decay = m->run.weight_decay,
                          .scale = (float)(scale * mc_newton_schulz_factor())};
}

static mc_matrix held_x(const list *l, const matrix *m)
{
    return (mc_matrix){part_of(m, begin_of(l, m), m->first), m->x.dtype, m->count};
}

/* Sets x of the matrices that this rank owns. */
static void place_own(const list *l, const wave *w)
{
    char *next = w->x.data;
    for (size_t i = 0; i < w->count; i++) {
        matrix *m = &w->items[i];
        if (!owns(l, m)) continue;
        m->x = (mc_matrix){next, w->x.dtype, m->columns};
        next += (size_t)m->run.count * mc_dtype_size(w->x.dtype);
    }
}

static mc_status allocate_own(const list *l, wave *w)
{
    const matrix *m = w->items;
    int64_t count = 0;
    for (size_t i = 0; i < w->count; i++) count += owns(l, &m[i]);
    w->own = mc_newton_schulz_of(count, m->rows, m->columns);
    w->bytes = (size_t)(count * m->rows * m->columns) * mc_dtype_size(l->muon->dtype);
    w->x = (mc_matrix){NULL, l->muon->dtype, m->columns};
    if (!w->bytes) return MC_OK;
    if (!(w->x.data = l->device->alloc(l->device, w->bytes)))
        return mc_fail_memory(l->optimizer->ctx, l->device, w->bytes, MC_HELP_MODEL,
                              "Muon's updates of \"%s\" and others", m->run.matrix->name);
    place_own(l, w);
    return MC_OK;
}

/* Allocates a part that this rank has of another's matrix, and takes the momentum step of its
 * elements. */
static mc_status begin(const list *l, matrix *m)
{
    mc_device *d = l->device;
    const mc_bucket *b = m->run.bucket;
    if (!owns(l, m) && m->count) {
        m->bytes = (size_t)m->count * mc_dtype_size(l->muon->dtype);
        m->x = (mc_matrix){d->alloc(d, m->bytes), l->muon->dtype, m->columns};
        if (!m->x.data)
            return mc_fail_memory(l->optimizer->ctx, d, m->bytes, MC_HELP_MODEL,
                                  "Muon's update of \"%s\"", m->run.matrix->name);
    }
    if (!m->x.data) return MC_OK;
    return d->kernels->muon_momentum(d, m->count, step_of(l, m), mc_bucket_gradient(b, m->first),
                                     mc_bucket_state_at(b, MC_STATE_M, m->first), held_x(l, m));
}

static mc_status orthogonalize(const list *l, wave *w)
{
    if (!w->own.count) return MC_OK;
    mc_status status = mc_newton_schulz_run(l->device, &w->own, &w->x);
    place_own(l, w);
    if (status != MC_ERR_NOMEM) return status;
    return mc_fail_memory(l->optimizer->ctx, l->device, mc_newton_schulz_bytes(&w->own, w->x.dtype),
                          MC_HELP_MODEL, "Muon's products of \"%s\" and others",
                          w->items->run.matrix->name);
}

/* Sends the part of rank r, which is not the owner, to the owner (`gather`), or back. */
static mc_status pass_part(const list *l, const matrix *m, int r, bool gather)
{
    mc_run part = m->run;
    int64_t share = m->run.bucket->share;
    int me = l->group->rank;
    if ((me != r && me != m->owner) || !mc_run_within(&part, share * r, share)) return MC_OK;
    void *data = part_of(m, begin_of(l, m), part.first);
    bool sends = (me == r) == gather;
    return sends
               ? mc_comm_send(l->group->comm, data, part.count, m->x.dtype, me == r ? m->owner : r)
               : mc_comm_recv(l->group->comm, data, part.count, m->x.dtype, me == r ? m->owner : r);
}

static mc_status exchange(const list *l, matrix *items, size_t count, bool gather)
{
    struct mc_comm *comm = l->group->comm;
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any |= items[i].shared ? items[i].first_rank < items[i].last_rank : !gather;
    if (!comm || !any) return MC_OK;
    mc_status status = mc_comm_group_start(comm);
    for (size_t i = 0; i < count && !status; i++) {
        const matrix *m = &items[i];
        if (!m->shared && !gather)
            status =
                mc_comm_broadcast(comm, m->x.data, m->x.data, m->run.count, m->x.dtype, m->owner);
        for (int r = m->first_rank; m->shared && r <= m->last_rank && !status; r++)
            if (r != m->owner) status = pass_part(l, m, r, gather);
    }
    mc_status end = mc_comm_group_end(comm);
    return status ? status : end;
}

static mc_status update(const list *l, const matrix *m)
{
    mc_device *d = l->device;
    const mc_bucket *b = m->run.bucket;
    if (!m->count) return MC_OK;
    return d->kernels->muon_update(
        d, m->count, step_of(l, m), held_x(l, m),
        b->dtype == MC_F32 ? NULL : mc_bucket_state_at(b, MC_STATE_MASTER, m->first),
        mc_bucket_value_at(b, m->first), b->dtype);
}

static mc_status run_wave(const list *l, wave *w)
{
    matrix *items = w->items;
    mc_device *d = l->device;
    mc_status status = allocate_own(l, w);
    for (size_t i = 0; i < w->count && !status; i++) status = begin(l, &items[i]);
    if (!status) status = exchange(l, items, w->count, true);
    if (!status) status = orthogonalize(l, w);
    if (!status) status = exchange(l, items, w->count, false);
    for (size_t i = 0; i < w->count && !status; i++) status = update(l, &items[i]);
    for (size_t i = 0; i < w->count; i++)
        if (items[i].bytes) d->free(d, items[i].x.data, items[i].bytes);
    d->free(d, w->x.data, w->bytes);
    return status;
}

/* Counts those of `items` that each rank owns, until one owns more than `limit`, and how many these
 * are. Returns the most of a rank. */
static int64_t count_owned(const list *l, const matrix *items, size_t count, int64_t limit,
                           size_t *counted)
{
    int64_t most = 0;
    for (int r = 0; r < l->group->size; r++) l->owned[r] = 0;
    for (*counted = 0; *counted < count; ++*counted) {
        int64_t n = ++l->owned[items[*counted].owner];
        if (n > limit) break;
        if (n > most) most = n;
    }
    return most;
}

/* The next wave. An owner has one matrix, or as many as fill a GPU: in bf16 128 MiB of X, and 3
 * times as much for the products at most. Waves of a shape are of about one size, so that none is
 * too small and few kinds of products are tuned. */
static wave wave_from(const list *l, size_t first)
{
    enum { ELEMENTS = 1 << 26 };
    wave w = {.items = &l->items[first]};
    const matrix *m = w.items;
    int64_t fit = ELEMENTS / (m->rows * m->columns);
    size_t same = 1;
    while (first + same < l->count && m[same].rows == m->rows && m[same].columns == m->columns)
        same++;
    int64_t most = count_owned(l, m, same, INT64_MAX, &w.count);
    int64_t waves = fit > 1 ? (most + fit - 1) / fit : most;
    count_owned(l, m, same, (most + waves - 1) / waves, &w.count);
    return w;
}

mc_status mc_muon_launch(mc_optimizer *o)
{
    mc_context *ctx = o->ctx;
    list l = {.optimizer = o, .muon = o->muon, .device = ctx->device, .group = &ctx->mesh.shard};
    mc_status status = list_matrices(&l);
    for (size_t i = 0; i < l.count && !status;) {
        wave w = wave_from(&l, i);
        status = run_wave(&l, &w);
        i += w.count;
    }
    mc_free(l.items);
    mc_free(l.owned);
    const char *why = l.device->failure;
    if (!status || mc_failed(ctx)) return status;
    return mc_fail(ctx, status, "optimizer muon failed at step %lld%s%s", (long long)o->steps + 1,
                   *why ? ": " : "", why);
}

/* ---- the optimizer --------------------------------------------------------------------------- */

bool mc_muon_takes(const mc_optimizer *o, const mc_parameter *p, mc_muon_rule rule, bool has_blocks)
{
    if (!o->muon || p->shape.ndim != 2 || rule == MC_MUON_ADAM) return false;
    bool in_block = p->stored->owner != p->module->root->module;
    return rule == MC_MUON_MATRIX || (!p->is_table && (in_block || !has_blocks));
}

/* Steps parameters that are not matrices. */
static mc_status muon_step(mc_context *ctx, const void *settings, const mc_optimizer_range *range)
{
    const mc_muon *muon = settings;
    mc_optimizer_range other = *range;
    other.lr_factor *= muon->other;
    return mc_adam_range(ctx, &muon->adam, &other);
}

static const mc_optimizer_kind MUON = {
    .name = "muon",
    .state_count = 2,
    .state_name = {"exp_avg", "exp_avg_sq"},
    .reads_rounded = true,
    .step = muon_step,
};

static bool fill_in(mc_context *ctx, const mc_muon_options *options, mc_muon *muon, float *lr)
{
    *lr = mc_option(options->lr, 1e-3f);
    float other = mc_option(options->lr_other, *lr);
    *muon = (mc_muon){.momentum = mc_option(options->momentum, 0.95f),
                      .nesterov = !options->no_nesterov,
                      .scale = options->scale,
                      .dtype = options->f32 ? MC_F32 : MC_BF16};
    if (!mc_option_check(ctx, "muon", "lr", *lr, INFINITY) || /* first: lr_other may be the same */
        !mc_option_check(ctx, "muon", "lr_other", other, INFINITY) ||
        !mc_option_check(ctx, "muon", "momentum", muon->momentum, 1) ||
        !mc_adam_settings(ctx, "muon", options->beta1, options->beta2, options->eps, &muon->adam))
        return false;
    muon->other = other == *lr ? 1 : other / *lr;
    if (options->scale != MC_MUON_MATCH_RMS && options->scale != MC_MUON_SHAPE)
        mc_fail(ctx, MC_ERR_ARGUMENT, "muon: scale is %d, expected a mc_muon_scale",
                (int)options->scale);
    else if (!isfinite(muon->other))
        mc_fail(ctx, MC_ERR_ARGUMENT, "muon: lr is %g and lr_other %g, expected an lr above 0",
                (double)*lr, (double)other);
    return !mc_failed(ctx);
}

mc_optimizer *mc_muon_new(mc_context *ctx, const mc_muon_options *options)
{
    if (mc_failed(ctx)) return NULL;
    mc_muon_options none = {0};
    if (!options) options = &none;
    mc_muon muon;
    float lr;
    if (!fill_in(ctx, options, &muon, &lr)) return NULL;
    mc_optimizer_options common = {.lr = options->lr,
                                   .weight_decay = mc_option(options->weight_decay, 0.1f),
                                   .no_decay_bias_norm = options->no_decay_bias_norm};
    mc_optimizer *o = mc_optimizer_new(ctx, &MUON, &common, &muon, sizeof muon);
    if (o) o->muon = (const mc_muon *)(const void *)o->settings;
    return o;
}
