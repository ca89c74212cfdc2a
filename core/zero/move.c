/* Optimizer state, and moving buckets to another level, home, dtype or layout. */
#include "core/zero/zero_internal.h"

#include <string.h>
#include "core/device/plan_internal.h"
#include "core/dist/comm_internal.h"

enum { PIECE = 1 << 20 /* elements per copy between a home and the device */ };

/* ---- copies ---------------------------------------------------------------------------------- */

static mc_status fail_copy(mc_zero *z)
{
    return mc_fail(z->ctx, MC_ERR_DEVICE, "optimizer state of %s: %s", MC_NAMED("model", z->name),
                   z->ctx->device->failure);
}

mc_status mc_home_copy(mc_zero *z, float *to, bool to_host, const float *from, bool from_host,
                       int64_t count)
{
    mc_device *device = z->ctx->device;
    size_t bytes = (size_t)count * sizeof *to;
    if (mc_device_is_plan(device) || !count) return MC_OK;
    if (to_host && from_host)
        memcpy(to, from, bytes);
    else if (to_host)
        return device->copy_out(device, to, from, bytes) ? MC_OK : fail_copy(z);
    else if (from_host)
        device->copy_in(device, to, from, bytes);
    else
        return device->kernels->scale(device, count,
                                      (mc_matrix){(void *)(uintptr_t)from, MC_F32, 0}, 1,
                                      (mc_matrix){to, MC_F32, 0}, false);
    return MC_OK;
}

mc_status mc_bucket_fill_master(mc_zero *z, mc_bucket *b, int64_t element, int64_t count)
{
    mc_device *device = z->ctx->device, *home = mc_bucket_home(z, b);
    size_t size = mc_dtype_size(b->dtype);
    float *master = mc_bucket_state_at(b, MC_STATE_MASTER, element);
    char *values = mc_bucket_value_at(b, element);
    if (!b->host)
        return device->kernels->scale(device, count, (mc_matrix){values, b->dtype, count}, 1,
                                      (mc_matrix){master, MC_F32, count}, false);
    void *piece = home->alloc(home, PIECE * size);
    if (!piece) return mc_fail_nomem(z->ctx, "a master copy");
    mc_status status = MC_OK;
    for (int64_t at = 0; at < count && !status && !mc_device_is_plan(device); at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        if (!device->copy_out(device, piece, values + (size_t)at * size, (size_t)n * size))
            status = fail_copy(z);
        else
            home->kernels->scale(home, n, (mc_matrix){piece, b->dtype, n}, 1,
                                 (mc_matrix){master + at, MC_F32, n}, false);
    }
    home->free(home, piece, PIECE * size);
    return status;
}

static void *alloc_zeros(mc_zero *z, mc_device *home, size_t bytes, const char *what)
{
    void *data = mc_zero_alloc(z, home, bytes, what);
    if (data) home->kernels->zero(home, data, bytes);
    return data;
}

float *mc_bucket_state(mc_zero *z, mc_bucket *b, int slot)
{
    if (mc_failed(z->ctx)) return NULL;
    if (b->state[slot]) return b->state[slot];
    size_t bytes = mc_bucket_state_bytes(b, slot);
    b->state[slot] = alloc_zeros(z, mc_bucket_home(z, b), bytes, "optimizer state");
    if (b->state[slot] && slot == MC_STATE_MASTER)
        mc_bucket_fill_master(z, b, mc_bucket_first(b), mc_bucket_held(b));
    return mc_failed(z->ctx) ? NULL : b->state[slot];
}

/* ---- descriptions ---------------------------------------------------------------------------- */

static int64_t aligned(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

static int64_t unit_of(const mc_zero *z)
{
    return z->align > MC_BUCKET_ALIGN ? z->align : MC_BUCKET_ALIGN;
}

mc_status mc_bucket_add_span(mc_zero *z, mc_bucket *b, void *owner, int64_t count, bool vector)
{
    int n = b->span_count;
    if ((n & (n - 1)) == 0) {
        mc_span *spans = mc_realloc(b->spans, (size_t)(n ? 2 * n : 1) * sizeof *spans);
        if (!spans) return mc_fail_nomem(z->ctx, "parameter buckets");
        b->spans = spans;
    }
    b->spans[b->span_count++] =
        (mc_span){.owner = owner, .offset = b->count, .count = count, .vector = vector};
    b->count += aligned(count, unit_of(z));
    return MC_OK;
}

void mc_bucket_set_level(mc_zero *z, mc_bucket *b, const mc_level *level)
{
    int ranks = z->group->size;
    b->level = level;
    b->count = aligned(b->count ? b->count : 1, unit_of(z) * ranks);
    b->share = b->count / ranks;
    b->first = b->share * z->group->rank;
    b->values.state = mc_bucket_shares_values(b) ? MC_VALUES_RESTING : MC_VALUES_READY;
    bool narrow = mc_bucket_shares_gradient(b) && b->in_block;
    b->gradient.dtype = narrow ? mc_bucket_travel_dtype(z, b) : MC_F32;
    b->sum.dtype = MC_F32;
}

mc_status mc_bucket_describe(mc_zero *z, const mc_bucket *b, mc_bucket *description,
                             bool (*stays)(const mc_span *span))
{
    *description = (mc_bucket){.owner = b->owner,
                               .name = b->name,
                               .dtype = b->dtype,
                               .trainable = b->trainable,
                               .in_block = b->in_block};
    mc_status status = MC_OK;
    for (int i = 0; i < b->span_count && !status; i++) {
        const mc_span *s = &b->spans[i];
        if (!stays || stays(s))
            status = mc_bucket_add_span(z, description, s->owner, s->count, s->vector);
        if (!status && (!stays || stays(s))) mc_bucket_set_form(description, s->form);
    }
    mc_bucket_set_level(z, description, b->level);
    return status;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

enum { VALUES, SUM, STATE, ARRAYS = STATE + MC_STATE_SLOTS };

/* A bucket's array: elements first .. first + count. */
typedef struct array {
    void **place; /* the bucket's pointer to it */
    char *data;   /* of element `first` */
    int64_t first, count;
    mc_dtype dtype;
    bool at_home;
} array;

static array array_of(mc_bucket *b, int kind)
{
    bool home = b->host;
    if (kind == VALUES) {
        bool share = mc_bucket_shares_values(b);
        void **place = share ? &b->values_share : &b->values.data;
        return (array){place,    *place, share ? b->first : 0, share ? b->share : b->count,
                       b->dtype, false};
    }
    if (kind == SUM && mc_bucket_shares_gradient(b))
        return (array){&b->sum.data, b->sum.data, b->first, b->share, b->sum.dtype, home};
    if (kind == SUM)
        return (array){&b->gradient.data, b->gradient.data, 0, b->count, b->gradient.dtype, false};
    void **place = (void **)(void *)&b->state[kind - STATE];
    return (array){place, *place, mc_bucket_first(b), mc_bucket_held(b), MC_F32, home};
}

/* The part of an old array that can be moved: of a summed WHOLE gradient with SHARE state, this
 * rank's part. */
static array source_of(const mc_bucket *b, int kind)
{
    array a = array_of((mc_bucket *)(uintptr_t)b, kind);
    bool part = kind == SUM && !mc_bucket_shares_gradient(b) &&
                b->gradient.state == MC_GRADIENT_SUMMED && b->level->state == MC_SHARE;
    if (part && a.data) {
        a.data += (size_t)b->first * mc_dtype_size(a.dtype);
        a.first = b->first;
        a.count = b->share;
    }
    return a;
}

static bool has(const mc_bucket *b, int kind)
{
    bool lost = b->gradient.state == MC_GRADIENT_VOID;
    bool zeros = mc_bucket_shares_gradient(b) && b->sum.state == MC_SUM_EMPTY;
    if (kind == SUM && (lost || zeros)) return false;
    return source_of(b, kind).data;
}

static mc_status copy_elements(mc_zero *z, const array *to, const array *from, int64_t at,
                               int64_t source, int64_t count)
{
    mc_device *device = z->ctx->device;
    size_t size = mc_dtype_size(to->dtype);
    char *x = from->data + (size_t)(source - from->first) * size;
    char *y = to->data + (size_t)(at - to->first) * size;
    if (to->at_home || from->at_home)
        return mc_home_copy(z, (float *)(void *)y, to->at_home, (float *)(void *)x, from->at_home,
                            count);
    return device->kernels->scale(device, count, (mc_matrix){x, from->dtype, count}, 1,
                                  (mc_matrix){y, to->dtype, count}, false);
}

/* Gathers f32 shares that are in a home, piece by piece through the device. */
static mc_status gather_at_home(mc_zero *z, int64_t share, const float *from, float *whole)
{
    mc_device *device = z->ctx->device;
    int64_t ranks = z->group->size, most = share < PIECE ? share : PIECE;
    size_t bytes = (size_t)((ranks + 1) * most) * sizeof(float);
    float *all = mc_zero_alloc(z, device, bytes, "gathered shares");
    mc_status status = mc_error_status(z->ctx);
    for (int64_t at = 0; at < share && !status; at += most) {
        int64_t n = share - at < most ? share - at : most;
        float *mine = all + ranks * most;
        status = mc_home_copy(z, mine, false, from + at, true, n);
        if (!status) status = mc_comm_all_gather(z->group->comm, mine, all, n, MC_F32);
        for (int64_t r = 0; r < ranks && !status; r++)
            status = mc_home_copy(z, whole + r * share + at, true, all + r * n, false, n);
    }
    device->free(device, all, bytes);
    return status;
}

/* Gathers a share into separate memory, which the caller frees. */
static mc_status gather(mc_zero *z, const mc_bucket *b, array *a)
{
    mc_device *home = a->at_home ? z->home->device : z->ctx->device;
    size_t bytes = (size_t)b->count * mc_dtype_size(a->dtype);
    void *whole = mc_zero_alloc(z, home, bytes, "gathered shares");
    if (!whole) return mc_error_status(z->ctx);
    mc_status status = a->at_home
                           ? gather_at_home(z, b->share, (float *)(void *)a->data, whole)
                           : mc_comm_all_gather(z->group->comm, a->data, whole, b->share, a->dtype);
    *a = (array){NULL, whole, 0, b->count, a->dtype, a->at_home};
    if (!status) return status;
    home->free(home, whole, bytes);
    return status;
}

/* ---- a move ---------------------------------------------------------------------------------- */

typedef struct move {
    mc_zero *zero;
    mc_bucket *old, *new;
    int old_count, new_count;
    mc_bucket *(*handed)[ARRAYS]; /* (new_count): from whom it takes over arrays; NULL: nobody */
} move;

static const mc_span *span_of(const mc_bucket *b, const void *owner)
{
    for (int i = 0; i < b->span_count; i++)
        if (b->spans[i].owner == owner) return &b->spans[i];
    return NULL;
}

/* Whether an old bucket has an array of which a new bucket needs a part. */
static bool gives(const mc_bucket *old, const mc_bucket *new, int kind)
{
    bool any = false;
    for (int i = 0; i < new->span_count && !any; i++) any = span_of(old, new->spans[i].owner);
    return any && has(old, kind);
}

static bool same_layout(const mc_bucket *a, const mc_bucket *b)
{
    bool same = a->count == b->count && a->span_count == b->span_count;
    for (int i = 0; same && i < a->span_count; i++)
        same = a->spans[i].owner == b->spans[i].owner && a->spans[i].offset == b->spans[i].offset &&
               a->spans[i].form == b->spans[i].form;
    return same;
}

/* Copies an old bucket's elements of a new array. */
static mc_status copy_array(move *m, mc_bucket *new, const mc_bucket *old, int kind)
{
    mc_zero *z = m->zero;
    array to = array_of(new, kind), from = source_of(old, kind);
    bool enough = from.count == old->count ||
                  (same_layout(new, old) && to.first == from.first && to.count == from.count);
    bool formed = kind >= STATE && kind != STATE + MC_STATE_MASTER && (new->formed || old->formed);
    if (formed) return mc_state_copy(z, new, old, kind - STATE, !enough);
    mc_status status = enough ? MC_OK : gather(z, old, &from);
    if (status) return status;
    for (int i = 0; i < new->span_count && !status; i++) {
        const mc_span *s = &new->spans[i], *was = span_of(old, s->owner);
        if (!was) continue;
        int64_t end = s->offset + s->count, last = to.first + to.count;
        int64_t at = s->offset > to.first ? s->offset : to.first;
        int64_t count = (end < last ? end : last) - at;
        if (count > 0)
            status = copy_elements(z, &to, &from, at, was->offset + at - s->offset, count);
    }
    mc_device *home = from.at_home ? z->home->device : z->ctx->device;
    if (!enough) home->free(home, from.data, (size_t)old->count * mc_dtype_size(from.dtype));
    return mc_zero_fail(z, status, "moving parameters");
}

/* The old bucket whose array a new one takes over unchanged, such as the values of a block that is
 * being frozen. */
static mc_bucket *giver(const move *m, mc_bucket *new, int kind)
{
    for (int i = 0; i < m->old_count; i++) {
        mc_bucket *old = &m->old[i];
        if (!same_layout(new, old) || !has(old, kind)) continue;
        array a = array_of(new, kind), b = array_of(old, kind);
        bool same = a.first == b.first && a.count == b.count && a.at_home == b.at_home;
        return same && a.dtype == b.dtype && (kind != SUM || new->level == old->level) ? old : NULL;
    }
    return NULL;
}

/* Whether a new bucket needs an array. */
static bool wants(const move *m, const mc_bucket *new, int kind)
{
    if (kind == VALUES) return true;
    if (kind == SUM && !new->trainable) return false;
    /* f32 values are their own master copy, except with a home */
    if (kind == STATE + MC_STATE_MASTER && new->dtype == MC_F32 && !new->host) return false;
    for (int i = 0; i < m->old_count; i++) /* frozen spans keep their state for a thaw */
        if (gives(&m->old[i], new, kind)) return true;
    return false;
}

static mc_status build_array(move *m, int n, int kind)
{
    static const char *const WHAT[] = {"parameters", "gradients"};
    mc_zero *z = m->zero;
    mc_bucket *new = &m->new[n], *old = giver(m, new, kind);
    if (!wants(m, new, kind)) return mc_error_status(z->ctx);
    array a = array_of(new, kind);
    m->handed[n][kind] = old;
    if (old) *a.place = *array_of(old, kind).place;
    if (old) return MC_OK;
    mc_device *home = a.at_home ? z->home->device : z->ctx->device;
    size_t bytes = kind < STATE ? (size_t)a.count * mc_dtype_size(a.dtype)
                                : mc_bucket_state_bytes(new, kind - STATE);
    *a.place = alloc_zeros(z, home, bytes, kind < STATE ? WHAT[kind] : "optimizer state");
    mc_status status = mc_error_status(z->ctx);
    for (int i = 0; i < m->old_count && !status; i++)
        if (gives(&m->old[i], new, kind)) status = copy_array(m, new, &m->old[i], kind);
    return status;
}

/* Initialises the master copies of thawed spans from their values. */
static mc_status fill_masters(move *m, mc_bucket *new)
{
    mc_status status = mc_error_status(m->zero->ctx);
    for (int i = 0; new->state[MC_STATE_MASTER] && i < new->span_count && !status; i++) {
        const mc_span *s = &new->spans[i];
        int64_t count, at = mc_bucket_held_of(new, s->offset, s->count, &count);
        bool bare = false;
        for (int k = 0; k < m->old_count; k++)
            bare |= !m->old[k].state[MC_STATE_MASTER] && span_of(&m->old[k], s->owner);
        if (bare && count) status = mc_bucket_fill_master(m->zero, new, at, count);
    }
    return status;
}

static mc_status build(move *m, int n, bool at_home)
{
    mc_bucket *new = &m->new[n];
    mc_status status = at_home ? m->zero->home->enter(m->zero, new) : MC_OK;
    bool lost = false;
    for (int kind = 0; kind < ARRAYS && !status; kind++) status = build_array(m, n, kind);
    if (!status) status = fill_masters(m, new);
    for (int i = 0; i < m->old_count && new->trainable; i++) {
        const mc_bucket *old = &m->old[i];
        if (!gives(old, new, VALUES)) continue;
        lost |= old->gradient.state == MC_GRADIENT_VOID;
        new->gradient.needed |= old->gradient.needed;
    }
    if (lost) {
        new->gradient.state = MC_GRADIENT_VOID;
    } else if (mc_bucket_shares_gradient(new)) {
        new->sum.state = new->sum.data ? MC_SUM_WIDE : MC_SUM_EMPTY;
    } else if (new->gradient.data) {
        new->gradient.state = m->zero->group->comm ? MC_GRADIENT_SUMMED : MC_GRADIENT_OPEN;
    }
    return status;
}

/* Brings the old buckets into states whose arrays can be copied. */
static mc_status settle(move *m)
{
    mc_zero *z = m->zero;
    mc_status status = mc_zero_rest(z);
    for (int i = 0; i < m->old_count && !status; i++) {
        mc_bucket *b = &m->old[i];
        status = mc_bucket_await(z, b);
        if (!status) status = mc_bucket_forget(z, b);
        if (!status) status = mc_bucket_settle_gradient(z, b);
        if (!status) status = mc_sum_widen(z, b);
    }
    return status ? status : mc_zero_rest(z);
}

/* Leaves each taken-over array to one owner: the new bucket after a commit, else the old one. */
static void part(const move *m, bool commit)
{
    for (int n = 0; n < m->new_count; n++)
        for (int kind = 0; kind < ARRAYS; kind++) {
            mc_bucket *old = m->handed[n][kind];
            if (old) *array_of(commit ? old : &m->new[n], kind).place = NULL;
        }
}

mc_status mc_zero_move(mc_zero *z, mc_bucket *old, int old_count, mc_bucket *new, int new_count,
                       const bool *at_home)
{
    move m = {z,         old,       new,
              old_count, new_count, mc_calloc((size_t)new_count + 1, sizeof *m.handed)};
    if (!m.handed) return mc_fail_nomem(z->ctx, "parameter buckets");
    mc_status status = settle(&m);
    for (int n = 0; n < new_count && !status; n++) status = build(&m, n, at_home[n]);
    part(&m, !status);
    mc_free(m.handed);
    return status;
}

mc_status mc_bucket_move(mc_zero *z, mc_bucket *b, mc_bucket *description, bool at_home)
{
    mc_status status = mc_zero_move(z, b, 1, description, 1, &at_home);
    mc_bucket_end(z, status ? description : b);
    if (!status) *b = *description;
    return status;
}
