/* Muon: the rule stands in optimizer.h.
 *
 * Vectors, embeddings and so on are stepped run by run, as by Adam (muon_step). Matrices are
 * stepped after them, whole, in waves that bound the memory of what is on its way (mc_muon_launch):
 *
 *   1. each rank that has elements of a matrix takes its momentum step there, which gives a part
 *      of X;
 *   2. the parts go to the matrix's owner, which has memory for all of X, unless every rank has
 *      all elements;
 *   3. the owner orthogonalizes X;
 *   4. the parts go back, or the owner's X to all ranks;
 *   5. each rank updates the elements that it has.
 *
 * The owner is one of the ranks that have elements, the one with the least work so far, so that all
 * ranks come to the same list without asking. Only it multiplies, also where all have all elements:
 * products of two devices need not be equal to the bit. */
#include <math.h>
#include "core/dist/comm_internal.h"
#include "core/optim/optimizer_internal.h"

/* The settings of a Muon optimizer. */
typedef struct mc_muon {
    mc_adam_step adam;
    float other; /* Adam's learning rate by the matrices' */
    float momentum;
    bool nesterov;
    mc_muon_scale scale;
    mc_dtype dtype; /* of X and the products */
} mc_muon;

enum { ITERATIONS = 5 };
static const double A = 3.4445, B = -4.775, C = 2.0315;
static const float LEAST_NORM = 1e-7f;

/* ---- the list of matrices -------------------------------------------------------------------- */

typedef struct matrix {
    mc_run run; /* of its elements alone */
    int64_t rows, columns;
    bool shared;               /* ranks have parts of it; else each has all */
    int first_rank, last_rank; /* those that have elements */
    int owner;
    int64_t first, count; /* elements of the bucket that this rank has */
    mc_matrix x;          /* the owner's: all of it; else the part. NULL data: none yet */
    size_t bytes;         /* of x.data */
} matrix;

typedef struct list {
    mc_optimizer *optimizer;
    const mc_muon *muon;
    mc_device *device;
    const mc_rank_group *group;
    matrix *items;
    size_t count, capacity;
} list;

static int64_t least(const matrix *m) { return m->rows < m->columns ? m->rows : m->columns; }

/* FLOP of its products. */
static double work_of(const matrix *m)
{
    double n = (double)least(m), all = (double)m->rows * (double)m->columns;
    return ITERATIONS * (4 * n * all + 2 * n * n * n);
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

/* Chooses owners: those without a choice first. */
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
    return status ? status : choose_owners(l);
}

double mc_muon_flops(mc_optimizer *o)
{
    double flops = 0;
    if (!o || !o->muon || mc_failed(o->ctx)) return 0;
    list l = {.optimizer = o, .muon = o->muon, .group = &o->ctx->mesh.shard};
    mc_optimizer_each_run(o, add_matrix, &l);
    for (size_t i = 0; i < l.count; i++) flops += work_of(&l.items[i]);
    mc_free(l.items);
    return flops;
}

/* ---- Newton-Schulz --------------------------------------------------------------------------- */

/* What is left out of X in memory: the products are taken of X / A^k after k iterations, since gemm
 * adds to what is there with a factor of 1. */
static double left_out(int iterations) { return pow(A, iterations); }

/* Buffers of an orthogonalization. */
typedef struct products {
    mc_device *device;
    int64_t rows, columns, n; /* n: the smaller of the two */
    mc_matrix x, y;           /* (rows, columns) */
    mc_matrix gram, square;   /* (n, n) */
} products;

static mc_status copy(mc_device *d, int64_t count, mc_matrix from, mc_matrix to)
{
    return d->kernels->scale(d, count, from, 1, to, false);
}

/* y = x + (b s^2 / a) Z x, Z = G + (c s^2 / b) G G, G = x x^T: of a tall x the same of x^T. */
static mc_status iterate(const products *p, double s)
{
    mc_device *d = p->device;
    const mc_kernels *k = d->kernels;
    bool tall = p->rows > p->columns;
    float square = (float)(C * s * s / B), whole = (float)(B * s * s / A);
    mc_status status =
        k->gemm(d, tall, !tall, p->n, p->n, tall ? p->rows : p->columns, 1, p->x, p->x, 0, p->gram);
    if (!status) status = copy(d, p->n * p->n, p->gram, p->square);
    if (!status)
        status = k->gemm(d, false, false, p->n, p->n, p->n, square, p->gram, p->gram, 1, p->square);
    if (!status) status = copy(d, p->rows * p->columns, p->x, p->y);
    if (!status)
        status = k->gemm(d, false, false, p->rows, p->columns, p->n, whole, tall ? p->x : p->square,
                         tall ? p->square : p->x, 1, p->y);
    return status;
}

/* x /= its norm; `stats` is device memory. */
static mc_status normalize(mc_device *d, int64_t count, mc_matrix x, mc_gradient_stats *stats)
{
    mc_status status = d->kernels->zero(d, stats, sizeof *stats);
    if (!status) status = d->kernels->gradient_stats(d, count, x, 2, 0, stats);
    return status ? status : d->kernels->muon_normalize(d, count, stats, LEAST_NORM, x);
}

/* X in place, but for the factor left_out(ITERATIONS). */
static mc_status orthogonalize(const list *l, matrix *m)
{
    mc_device *d = l->device;
    int64_t n = least(m), count = m->rows * m->columns;
    size_t size = mc_dtype_size(m->x.dtype), squares = 2 * (size_t)(n * n) * size;
    products p = {.device = d, .rows = m->rows, .columns = m->columns, .n = n};
    mc_gradient_stats *stats = d->alloc(d, sizeof *stats);
    char *memory = d->alloc(d, squares), *other = d->alloc(d, m->bytes);
    p.x = m->x;
    p.y = (mc_matrix){other, m->x.dtype, m->columns};
    p.gram = (mc_matrix){memory, m->x.dtype, n};
    p.square = (mc_matrix){memory ? memory + squares / 2 : NULL, m->x.dtype, n};
    mc_status status = stats && memory && other ? MC_OK : MC_ERR_NOMEM;
    if (status)
        mc_fail_memory(l->optimizer->ctx, d, squares + m->bytes, MC_HELP_MODEL,
                       "Muon's products of \"%s\"", m->run.matrix->name);
    if (!status) status = normalize(d, count, p.x, stats);
    for (int i = 0; i < ITERATIONS && !status; i++) {
        status = iterate(&p, left_out(i));
        mc_matrix swap = p.x;
        p.x = p.y;
        p.y = swap;
    }
    m->x = p.x;
    d->free(d, p.y.data, m->bytes);
    d->free(d, memory, squares);
    d->free(d, stats, sizeof *stats);
    return status;
}

/* ---- a wave ---------------------------------------------------------------------------------- */

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
                          .scale = (float)(scale * left_out(ITERATIONS))};
}

static mc_matrix held_x(const list *l, const matrix *m)
{
    return (mc_matrix){part_of(m, begin_of(l, m), m->first), m->x.dtype, m->count};
}

/* Allocates x where this rank takes part, and takes the momentum step of its elements. */
static mc_status begin(const list *l, matrix *m)
{
    mc_device *d = l->device;
    const mc_bucket *b = m->run.bucket;
    int64_t elements = owns(l, m) ? m->run.count : m->count;
    if (!elements) return MC_OK;
    m->bytes = (size_t)elements * mc_dtype_size(l->muon->dtype);
    m->x = (mc_matrix){d->alloc(d, m->bytes), l->muon->dtype, m->columns};
    if (!m->x.data)
        return mc_fail_memory(l->optimizer->ctx, d, m->bytes, MC_HELP_MODEL,
                              "Muon's update of \"%s\"", m->run.matrix->name);
    return d->kernels->muon_momentum(d, m->count, step_of(l, m), mc_bucket_gradient(b, m->first),
                                     mc_bucket_state_at(b, MC_STATE_M, m->first), held_x(l, m));
}

/* What a matrix's rank r, not the owner, has of it goes to the owner, or comes back. */
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

static mc_status run_wave(const list *l, matrix *items, size_t count)
{
    mc_status status = MC_OK;
    for (size_t i = 0; i < count && !status; i++) status = begin(l, &items[i]);
    if (!status) status = exchange(l, items, count, true);
    for (size_t i = 0; i < count && !status; i++)
        if (owns(l, &items[i])) status = orthogonalize(l, &items[i]);
    if (!status) status = exchange(l, items, count, false);
    for (size_t i = 0; i < count && !status; i++) status = update(l, &items[i]);
    for (size_t i = 0; i < count; i++) l->device->free(l->device, items[i].x.data, items[i].bytes);
    return status;
}

/* Matrices of the next wave: one, or of several ranks as many as keep all of them busy. */
static size_t wave_of(const list *l, size_t first)
{
    enum { ELEMENTS = 1 << 24 /* of a rank */ };
    int64_t elements = l->items[first].run.count, most = (int64_t)ELEMENTS * l->group->size;
    size_t count = 1;
    for (; l->group->comm && first + count < l->count; count++)
        if ((elements += l->items[first + count].run.count) > most) break;
    return count;
}

mc_status mc_muon_launch(mc_optimizer *o)
{
    mc_context *ctx = o->ctx;
    list l = {.optimizer = o, .muon = o->muon, .device = ctx->device, .group = &ctx->mesh.shard};
    mc_status status = list_matrices(&l);
    for (size_t i = 0, n; i < l.count && !status; i += n)
        status = run_wave(&l, &l.items[i], n = wave_of(&l, i));
    mc_free(l.items);
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

/* Of what is no matrix. */
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
    if (!mc_option_check(ctx, "muon", "lr_other", other, INFINITY) ||
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
