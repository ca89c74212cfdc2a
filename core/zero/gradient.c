/* Gradients: from backward to their sums over ranks. */
#include "core/autograd/step.h"
#include "core/dist/comm_internal.h"
#include "core/zero/zero_internal.h"

static void *gradient_at(const mc_bucket *b, int64_t element)
{
    return (char *)b->gradient.data + (size_t)element * mc_dtype_size(b->gradient.dtype);
}

mc_leaf_gradient mc_bucket_leaf(mc_bucket *b, mc_span *s, int64_t first)
{
    struct mc_gradient *g = &b->gradient;
    return (mc_leaf_gradient){&g->data, s->offset + first, g->dtype, &s->blank};
}

/* ---- memory and zeros ------------------------------------------------------------------------ */

size_t mc_bucket_gradient_bytes(const mc_bucket *b)
{
    return (size_t)b->count * mc_dtype_size(b->gradient.dtype);
}

static mc_status zero_elements(mc_zero *z, mc_bucket *b, int64_t first, int64_t count)
{
    mc_device *device = z->ctx->device;
    size_t bytes = (size_t)count * mc_dtype_size(b->gradient.dtype);
    if (count <= 0) return mc_error_status(z->ctx);
    return mc_zero_fail(z, device->kernels->zero(device, gradient_at(b, first), bytes),
                        "gradients");
}

mc_status mc_bucket_blank(mc_zero *z, mc_bucket *b, int64_t first, int64_t count)
{
    const size_t size = mc_dtype_size(b->gradient.dtype);
    mc_status status = mc_error_status(z->ctx);
    int64_t end = first + count;
    for (int i = 0; i < b->span_count && !status; i++) {
        mc_span *s = &b->spans[i];
        bool inside = s->offset >= first && s->offset + s->count <= end;
        if (s->vector || !inside) continue; /* vectors are adjacent: cheap to zero */
        mc_blank_set(z->ctx, &s->blank, &b->gradient.data, (size_t)s->offset * size,
                     (size_t)s->count * size);
        status = zero_elements(z, b, first, s->offset - first);
        first = s->offset + s->count;
    }
    return status ? status : zero_elements(z, b, first, end - first);
}

mc_status mc_bucket_zero_gradient(mc_zero *z, mc_bucket *b)
{
    b->gradient.pass = 0;
    mc_sum_clear(z, b);
    mc_status status = mc_gradient_go(z, b, b->gradient.data ? MC_GRADIENT_OPEN : MC_GRADIENT_NONE);
    return status || !b->gradient.data ? status : mc_bucket_blank(z, b, 0, b->count);
}

void mc_bucket_drop_gradient(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    for (int i = 0; i < b->span_count; i++) mc_blank_take(&b->spans[i].blank);
    device->free(device, b->gradient.data, mc_bucket_gradient_bytes(b));
    b->gradient.data = NULL;
}

mc_dtype mc_bucket_travel_dtype(const mc_zero *z, const mc_bucket *b)
{
    bool rounded = z->ctx->grad_dtype == MC_GRAD_PARAMETER && !mc_bucket_has_vectors_alone(b);
    return rounded ? b->dtype : MC_F32;
}

static mc_status fail_void(mc_zero *z)
{
    return mc_fail(z->ctx, MC_ERR_STATE,
                   "%s: its gradients are lost, since a reduction failed: begin the step "
                   "again with zero_grad",
                   MC_NAMED("model", z->name));
}

/* Allocates memory for the contributions of one pass; errors name whose they are. */
static mc_status claim(mc_zero *z, mc_bucket *b, bool narrow, const char *kind, const char *name)
{
    mc_device *device = z->ctx->device;
    struct mc_gradient *g = &b->gradient;
    g->dtype = narrow && b->in_block ? mc_bucket_travel_dtype(z, b) : MC_F32;
    size_t bytes = mc_bucket_gradient_bytes(b);
    g->data = device->alloc(device, bytes);
    if (g->data) return mc_gradient_go(z, b, MC_GRADIENT_OPEN);
    return mc_fail_memory(z->ctx, device, bytes, MC_HELP_MODEL, "the gradients of %s",
                          MC_NAMED(kind, name));
}

mc_status mc_zero_need_gradients(mc_zero *z, int passes)
{
    mc_status status = mc_error_status(z->ctx);
    for (int i = 0; i < z->bucket_count && !status; i++) {
        mc_bucket *b = &z->buckets[i];
        bool shares = mc_bucket_shares_gradient(b);
        if (!b->trainable) continue;
        b->gradient.needed = true;
        if (shares ? !b->host || b->sum.data : b->gradient.data != NULL) continue;
        if (b->gradient.state == MC_GRADIENT_VOID) return fail_void(z);
        if (shares) {
            status = mc_sum_make(z, b, passes);
            continue;
        }
        b->gradient.pass = 0;
        status = claim(z, b, passes == 1, "model", z->name);
        if (!status) status = zero_elements(z, b, 0, b->count);
    }
    return status;
}

static mc_status fill_blanks(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_error_status(z->ctx);
    for (int i = 0; i < b->span_count && !status; i++)
        status = mc_blank_fill(z->ctx, &b->spans[i].blank);
    return status;
}

/* Changes a WHOLE 16-bit gradient to f32, permanently. No leaf may point at it; recordings are
 * dropped. */
static mc_status widen(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    size_t bytes = (size_t)b->count * sizeof(float);
    if (mc_bucket_shares_gradient(b) || b->gradient.dtype == MC_F32 || !b->gradient.data)
        return mc_error_status(z->ctx);
    mc_status status = mc_zero_end_reducing(z);
    if (!status) status = fill_blanks(z, b);
    if (status) return status;
    mc_matrix from = {b->gradient.data, b->gradient.dtype, b->count},
              to = {device->alloc(device, bytes), MC_F32, b->count};
    if (!to.data)
        return mc_fail_memory(z->ctx, device, bytes, MC_HELP_MODEL, "the gradients of %s as f32",
                              MC_NAMED("module", b->name));
    status =
        mc_zero_fail(z, device->kernels->scale(device, b->count, from, 1, to, false), "gradients");
    mc_bucket_drop_gradient(z, b);
    b->gradient.data = to.data;
    b->gradient.dtype = MC_F32;
    mc_step_forget(z->ctx);
    return status;
}

mc_status mc_bucket_begin_pass(mc_zero *z, mc_bucket *b, uint64_t tape, bool alone)
{
    uint64_t before = b->gradient.pass;
    b->gradient.pass = tape;
    return before && before != tape && alone ? widen(z, b) : mc_error_status(z->ctx);
}

mc_status mc_bucket_begin_gradient(mc_zero *z, mc_bucket *b)
{
    if (mc_failed(z->ctx)) return mc_error_status(z->ctx);
    if (!b->trainable) return MC_OK;
    switch (b->gradient.state) {
    case MC_GRADIENT_REDUCING:
        return mc_zero_end_reducing(z) ? mc_error_status(z->ctx) : mc_bucket_begin_gradient(z, b);
    case MC_GRADIENT_SUMMED: return mc_bucket_reopen(z, b);
    case MC_GRADIENT_OPEN: return MC_OK;
    case MC_GRADIENT_QUEUED: return mc_gradient_go(z, b, MC_GRADIENT_OPEN);
    case MC_GRADIENT_NONE:
        if (!mc_bucket_shares_gradient(b)) return MC_OK; /* the model allocates it */
        break;
    case MC_GRADIENT_VOID: return fail_void(z);
    }
    mc_status status = claim(z, b, true, "module", b->name);
    return status ? status : mc_bucket_blank(z, b, 0, b->count);
}

/* ---- between ranks --------------------------------------------------------------------------- */

/* The elements, from `from` on, in the form in which ranks exchange them. */
static mc_matrix on_the_way(const mc_bucket *b, int64_t from)
{
    if (!b->gradient.sent)
        return (mc_matrix){gradient_at(b, from), b->gradient.dtype, b->count - from};
    size_t skipped = (size_t)from * mc_dtype_size(b->dtype);
    return (mc_matrix){(char *)b->gradient.sent + skipped, b->dtype, b->count - from};
}

static void drop_sent(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    device->free(device, b->gradient.sent, (size_t)b->count * mc_dtype_size(b->dtype));
    b->gradient.sent = NULL;
}

/* A reduction has failed: the step's sum is lost. */
static mc_status lose(mc_zero *z, mc_bucket *b)
{
    drop_sent(z, b);
    if (mc_bucket_shares_gradient(b)) mc_bucket_drop_gradient(z, b);
    mc_gradient_go(z, b, MC_GRADIENT_VOID);
    return mc_error_status(z->ctx);
}

/* Passes the reduced gradient, with its memory, to the home. */
static mc_status send_home(mc_zero *z, mc_bucket *b)
{
    struct mc_gradient *g = &b->gradient;
    void *block = g->sent ? g->sent : g->data;
    mc_matrix share = on_the_way(b, b->first);
    size_t bytes = (size_t)b->count * mc_dtype_size(share.dtype);
    if (g->sent) mc_bucket_drop_gradient(z, b);
    g->sent = NULL;
    g->data = NULL;
    mc_status status = z->home->take(z, b, share, block, bytes);
    return status ? lose(z, b) : mc_gradient_go(z, b, MC_GRADIENT_NONE);
}

/* WHOLE: the sum has arrived; of a SHARE state, only this rank's part of it. */
static mc_status take_sum(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    int64_t first = mc_bucket_first(b), count = mc_bucket_held(b);
    mc_matrix to = {gradient_at(b, first), MC_F32, count};
    mc_status status = MC_OK;
    if (b->gradient.sent)
        status = device->kernels->scale(device, count, on_the_way(b, first), 1, to, false);
    if (mc_zero_fail(z, status, "gradients")) return lose(z, b);
    drop_sent(z, b);
    return mc_gradient_go(z, b, MC_GRADIENT_SUMMED);
}

/* SHARE: adds the reduced share to this rank's sum. */
static mc_status add_share(mc_zero *z, mc_bucket *b)
{
    if (mc_sum_add(z, b, on_the_way(b, b->first))) return lose(z, b);
    mc_bucket_drop_gradient(z, b);
    drop_sent(z, b);
    return mc_gradient_go(z, b, MC_GRADIENT_NONE);
}

static mc_status end_reducing(mc_zero *z, mc_bucket *b)
{
    mc_comm_request *request = b->gradient.request;
    b->gradient.request = NULL;
    if (mc_comm_wait(request)) return lose(z, b);
    if (!mc_bucket_shares_gradient(b)) return take_sum(z, b);
    return b->host ? send_home(z, b) : add_share(z, b);
}

mc_status mc_zero_end_reducing(mc_zero *z)
{
    mc_status status = mc_error_status(z->ctx);
    for (int i = 0; i < z->bucket_count; i++)
        if (z->buckets[i].gradient.state == MC_GRADIENT_REDUCING)
            status = end_reducing(z, &z->buckets[i]);
    return status;
}

/* Prepares a gradient for the exchange: fills blank buffers, and if it is exchanged in the
 * parameters' dtype rounds it to `sent`. */
static mc_status pack(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    mc_status status = fill_blanks(z, b);
    if (status || mc_bucket_travel_dtype(z, b) == b->gradient.dtype) return status;
    size_t bytes = (size_t)b->count * mc_dtype_size(b->dtype);
    mc_matrix exact = {b->gradient.data, MC_F32, b->count};
    if (!b->gradient.sent) b->gradient.sent = device->alloc(device, bytes);
    if (!b->gradient.sent)
        return mc_fail_memory(z->ctx, device, bytes, MC_HELP_MODEL,
                              "the gradients of %s on their way", MC_NAMED("module", b->name));
    status = device->kernels->scale(device, b->count, exact, 1, on_the_way(b, 0), false);
    return mc_zero_fail(z, status, "gradients");
}

/* Starts the reduction of a packed gradient. */
static mc_status send(mc_zero *z, mc_bucket *b)
{
    struct mc_comm *comm = z->group->comm;
    bool shares = mc_bucket_shares_gradient(b);
    mc_status status = mc_gradient_go(z, b, MC_GRADIENT_REDUCING);
    if (status) return status;
    if (b->gradient.sent && shares) mc_bucket_drop_gradient(z, b);
    if (!comm) return end_reducing(z, b);
    bool first = shares && !b->sum.data; /* of the step */
    if (first && mc_sum_make(z, b, z->ctx->step ? z->ctx->step->passes : 0)) return lose(z, b);
    mc_matrix whole = on_the_way(b, 0), mine = on_the_way(b, mc_bucket_first(b));
    /* if the sum is empty, the reduction writes to it directly */
    b->gradient.arrives =
        shares && !b->host && whole.dtype == b->sum.dtype && b->sum.state == MC_SUM_EMPTY;
    if (b->gradient.arrives) mine.data = b->sum.data;
    b->gradient.request = b->level->state == MC_WHOLE
                              ? mc_comm_start_all_reduce(comm, whole.data, whole.data, b->count,
                                                         whole.dtype, MC_REDUCE_SUM)
                              : mc_comm_start_reduce_scatter(comm, whole.data, mine.data, b->share,
                                                             whole.dtype, MC_REDUCE_SUM);
    return b->gradient.request ? MC_OK : lose(z, b);
}

static mc_status start_reducing(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_zero_end_reducing(z);
    if (!status) status = pack(z, b);
    return status ? status : send(z, b);
}

static mc_status send_queued(mc_zero *z)
{
    mc_status status = mc_zero_end_reducing(z);
    for (int i = 0; i < z->bucket_count && !status; i++)
        if (z->buckets[i].gradient.state == MC_GRADIENT_QUEUED) status = pack(z, &z->buckets[i]);
    for (int i = 0; i < z->bucket_count && !status; i++)
        if (z->buckets[i].gradient.state == MC_GRADIENT_QUEUED) status = send(z, &z->buckets[i]);
    return status;
}

/* A WHOLE gradient stays in place and waits until enough of them can be reduced together. A
 * collective slows concurrent products, a short one about as much as a long one (0.2 ms on four
 * H200), so there should be few. */
static mc_status queue(mc_zero *z, mc_bucket *added)
{
    size_t bytes = 0;
    mc_status status = mc_gradient_go(z, added, MC_GRADIENT_QUEUED);
    if (status) return status;
    for (int i = 0; i < z->bucket_count; i++) {
        const mc_bucket *b = &z->buckets[i];
        if (b->gradient.state == MC_GRADIENT_QUEUED)
            bytes += (size_t)b->count * mc_dtype_size(mc_bucket_travel_dtype(z, b));
    }
    return bytes < z->ctx->reduce_bytes ? mc_error_status(z->ctx) : send_queued(z);
}

mc_status mc_bucket_reduce(mc_zero *z, mc_bucket *b)
{
    bool last = z->group->comm && mc_step_in_last_pass(z->ctx);
    bool shares = mc_bucket_shares_gradient(b);
    if (!b->gradient.data || b->gradient.uses || (!shares && !last)) return mc_error_status(z->ctx);
    return shares ? start_reducing(z, b) : queue(z, b);
}

/* Whether this rank has gradients whose reduction has not begun. */
static bool is_unsummed(const mc_zero *z, const mc_bucket *b)
{
    return b->gradient.state == MC_GRADIENT_OPEN &&
           (mc_bucket_shares_gradient(b) || z->group->comm);
}

mc_status mc_zero_sum(mc_zero *z)
{
    mc_status status = mc_zero_end_reducing(z);
    for (int i = 0; !status && i < z->bucket_count; i++) {
        mc_bucket *b = &z->buckets[i];
        if (b->gradient.state == MC_GRADIENT_VOID) status = fail_void(z);
        if (!status && is_unsummed(z, b))
            status = mc_bucket_shares_gradient(b) ? start_reducing(z, b) : queue(z, b);
    }
    if (!status) status = send_queued(z);
    if (!status) status = mc_zero_end_reducing(z);
    return status ? status : mc_blank_fill_all(z->ctx);
}

mc_status mc_bucket_settle_gradient(mc_zero *z, mc_bucket *b)
{
    mc_status status = mc_zero_end_reducing(z);
    if (!status) status = widen(z, b);
    if (!status && (is_unsummed(z, b) || b->gradient.state == MC_GRADIENT_QUEUED))
        status = start_reducing(z, b);
    if (!status) status = mc_zero_end_reducing(z);
    return status ? status : fill_blanks(z, b);
}

mc_status mc_bucket_reopen(mc_zero *z, mc_bucket *b)
{
    mc_device *device = z->ctx->device;
    mc_matrix all = {b->gradient.data, b->gradient.dtype, b->count};
    int64_t end = b->first + b->share;
    if (b->gradient.state != MC_GRADIENT_SUMMED) return mc_error_status(z->ctx);
    mc_status status = mc_gradient_go(z, b, MC_GRADIENT_OPEN);
    if (!status && b->level->state == MC_WHOLE) {
        double part = 1.0 / z->group->size;
        status = device->kernels->scale(device, b->count, all, (float)part, all, false);
    } else if (!status) {
        status = zero_elements(z, b, 0, b->first);
        if (!status) status = zero_elements(z, b, end, b->count - end);
    }
    return mc_zero_fail(z, status, "gradients");
}
