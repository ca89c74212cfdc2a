/* Buckets over several ranks: each level of sharding (Rajbhandari et al. 2020, "ZeRO") is a choice
 * of what is whole and what is a share, and of when ranks exchange it. */
#include "core/autograd/step.h"
#include "core/dist/comm_internal.h"
#include "core/nn/module_internal.h"

static mc_device *device_of(const mc_module_root *root) { return root->ctx->device; }

static mc_status fail_device(mc_module_root *root, mc_status status, const char *what)
{
    const char *why = root->ctx->device->failure;
    if (!status || mc_failed(root->ctx)) return status;
    return mc_fail(root->ctx, status, "%s of model \"%s\"%s%s", what, root->module->name,
                   *why ? ": " : "", why);
}

static size_t value_bytes(const mc_bucket *b, int64_t count)
{
    return (size_t)count * mc_dtype_size(b->dtype);
}

/* ---- parameters ------------------------------------------------------------------------------ */

mc_status mc_bucket_prefetch(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (b->level < 3 || b->data || mc_bucket_is_updating(b)) return MC_OK;
    b->data = device->alloc(device, value_bytes(b, b->count));
    if (!b->data)
        return mc_fail_memory(root->ctx, device, value_bytes(b, b->count), MC_HELP_MODEL,
                              "the gathered parameters of \"%s\"", b->owner->name);
    root->gathered += b->count;
    if (root->gathered > root->most_gathered) root->most_gathered = root->gathered;
    b->gathering =
        mc_comm_start_all_gather(root->ctx->mesh.shard.comm, b->kept, b->data, b->share, b->dtype);
    return mc_error_status(root->ctx);
}

static mc_status end_gathering(mc_bucket *b)
{
    mc_comm_request *request = b->gathering;
    b->gathering = NULL;
    return mc_comm_wait(request);
}

mc_status mc_bucket_gather(mc_module_root *root, mc_bucket *b)
{
    mc_status status = mc_bucket_await(root, b);
    if (!status) status = mc_bucket_prefetch(root, b);
    if (status || b->level < 3) return status;
    b->users++;
    if (b->stale)
        b->gathering = mc_comm_start_all_gather(root->ctx->mesh.shard.comm, b->kept, b->data,
                                                b->share, b->dtype);
    b->stale = false;
    return end_gathering(b);
}

static void drop_values(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    device->free(device, b->data, value_bytes(b, b->count));
    b->data = NULL;
    b->stale = false;
    root->gathered -= b->count;
}

mc_status mc_bucket_forget(mc_module_root *root, mc_bucket *b)
{
    if (b->level < 3 || b->users || !b->data) return MC_OK;
    mc_status status = end_gathering(b);
    drop_values(root, b);
    return status;
}

mc_status mc_bucket_outdate(mc_module_root *root, mc_bucket *b)
{
    mc_status status = mc_bucket_forget(root, b);
    b->stale = b->level == 3 && b->data;
    return status;
}

void mc_bucket_release(mc_module_root *root, mc_bucket *b)
{
    if (b->level == 3 && b->users && --b->users == 0) drop_values(root, b);
}

mc_status mc_bucket_publish(mc_module_root *root, mc_bucket *b)
{
    if (!root->ctx->mesh.shard.comm || (b->level != 1 && b->level != 2))
        return mc_error_status(root->ctx);
    return mc_comm_all_gather(root->ctx->mesh.shard.comm, mc_bucket_value_at(b, b->first), b->data,
                              b->share, b->dtype);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void *gradient_at(const mc_bucket *b, int64_t element)
{
    return (char *)b->gradient + (size_t)element * mc_dtype_size(b->gradient_dtype);
}

/* Matrices come first in a bucket. */
static int64_t first_vector(const mc_bucket *b)
{
    for (int i = 0; i < b->stored_count; i++)
        if (b->stored[i]->shape.ndim < 2) return b->stored[i]->offset;
    return b->count;
}

mc_leaf_gradient mc_stored_leaf_gradient(mc_stored *s, int64_t first)
{
    mc_bucket *b = s->bucket;
    if (s->shape.ndim < 2 && b->gradient_dtype != MC_F32)
        return (mc_leaf_gradient){&b->vectors, s->offset - first_vector(b) + first, MC_F32, NULL};
    return (mc_leaf_gradient){&b->gradient, s->offset + first, b->gradient_dtype, &s->blank};
}

static mc_status zero_elements(mc_module_root *root, mc_bucket *b, int64_t first, int64_t count)
{
    mc_device *device = device_of(root);
    size_t bytes = (size_t)count * mc_dtype_size(b->gradient_dtype);
    if (count <= 0) return mc_error_status(root->ctx);
    return fail_device(root, device->kernels->zero(device, gradient_at(b, first), bytes),
                       "gradients");
}

static mc_status zero_vectors(mc_module_root *root, mc_bucket *b, int64_t first, int64_t count)
{
    mc_device *device = device_of(root);
    float *at = (float *)b->vectors + (first - first_vector(b));
    mc_status status = device->kernels->zero(device, at, (size_t)count * sizeof *at);
    return fail_device(root, status, "gradients");
}

mc_status mc_bucket_blank(mc_module_root *root, mc_bucket *b, int64_t first, int64_t count)
{
    const size_t size = mc_dtype_size(b->gradient_dtype);
    mc_status status = mc_error_status(root->ctx);
    int64_t end = first + count;
    if (b->vectors && end > first_vector(b)) {
        int64_t from = first > first_vector(b) ? first : first_vector(b);
        status = zero_vectors(root, b, from, end - from);
        end = from; /* after it `gradient` is written when they are put there */
    }
    for (int i = 0; i < b->stored_count && !status; i++) {
        mc_stored *s = b->stored[i];
        bool inside = s->offset >= first && s->offset + s->count <= end;
        if (s->shape.ndim < 2 || !inside) continue; /* vectors lie side by side: cheap to zero */
        mc_blank_set(root->ctx, &s->blank, &b->gradient, (size_t)s->offset * size,
                     (size_t)s->count * size);
        status = zero_elements(root, b, first, s->offset - first);
        first = s->offset + s->count;
    }
    return status ? status : zero_elements(root, b, first, end - first);
}

mc_status mc_bucket_zero_gradient(mc_module_root *root, mc_bucket *b)
{
    b->summed = b->waits = false;
    b->pass = 0;
    if (b->host)
        mc_bucket_forget_sum(b);
    else if (b->kept_gradient)
        mc_blank_set(root->ctx, &b->kept_blank, &b->kept_gradient, 0, mc_bucket_kept_bytes(b));
    return b->gradient ? mc_bucket_blank(root, b, 0, b->count) : mc_error_status(root->ctx);
}

static size_t vectors_bytes(const mc_bucket *b)
{
    return (size_t)(b->count - first_vector(b)) * sizeof(float);
}

static mc_status need_vectors(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    size_t bytes = vectors_bytes(b);
    if (b->gradient_dtype == MC_F32 || !bytes) return mc_error_status(root->ctx);
    b->vectors = device->alloc(device, bytes);
    if (b->vectors) return MC_OK;
    return mc_fail_memory(root->ctx, device, bytes, MC_HELP_MODEL, "the gradients of \"%s\"",
                          b->owner->name);
}

void mc_bucket_drop_vectors(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    if (!b->vectors) return;
    device->free(device, b->vectors, vectors_bytes(b));
    b->vectors = NULL;
}

/* Copies `vectors` to their place in `gradient`, or back. */
static mc_status move_vectors(mc_module_root *root, mc_bucket *b, bool back)
{
    mc_device *device = device_of(root);
    if (mc_failed(root->ctx) || !b->vectors) return mc_error_status(root->ctx);
    int64_t first = first_vector(b), count = b->count - first;
    mc_matrix own = {b->vectors, MC_F32, count},
              place = {gradient_at(b, first), b->gradient_dtype, count};
    mc_status status =
        device->kernels->scale(device, count, back ? place : own, 1, back ? own : place, false);
    return fail_device(root, status, "gradients");
}

/* Makes `gradient` whole: nothing is blank, and vectors are in it. */
static mc_status fill_gradient(mc_module_root *root, mc_bucket *b)
{
    for (int i = 0; i < b->stored_count; i++) mc_blank_fill(root->ctx, &b->stored[i]->blank);
    mc_status status = move_vectors(root, b, false);
    if (b->level >= 2) mc_bucket_drop_vectors(root, b);
    return status;
}

/* What gradients travel between ranks as. */
static mc_dtype travel_dtype(const mc_module_root *root, const mc_bucket *b)
{
    return root->ctx->grad_dtype == MC_GRAD_PARAMETER ? b->dtype : MC_F32;
}

static mc_dtype dtype_of_pass(const mc_module_root *root, const mc_bucket *b)
{
    const mc_module *parent = b->owner->parent;
    return parent && parent->holds_blocks ? travel_dtype(root, b) : MC_F32;
}

/* Blocks at levels 2 and 3 have room for gradients in one backward pass only, at whose end they
 * travel: they can have the dtype for that at once. */
mc_dtype mc_bucket_gradient_dtype(const mc_module_root *root, const mc_bucket *b)
{
    return b->level >= 2 ? dtype_of_pass(root, b) : MC_F32;
}

/* On the host's memory sums are made in f32. Recorded steps would keep the place of the narrow
 * one, but steps of several ranks are not recorded. */
mc_dtype mc_bucket_kept_dtype(const mc_module_root *root, const mc_bucket *b, int passes)
{
    return passes == 1 && root->ctx->mesh.shard.comm && !b->host ? travel_dtype(root, b) : MC_F32;
}

mc_status mc_bucket_widen_kept(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    size_t bytes = (size_t)b->share * sizeof(float);
    mc_matrix narrow = {b->kept_gradient, b->kept_dtype, b->share}, wide = {NULL, MC_F32, b->share};
    if (!b->kept_gradient || b->kept_dtype == MC_F32) return mc_error_status(root->ctx);
    mc_status status = mc_blank_fill(root->ctx, &b->kept_blank);
    if (status) return status;
    if (!(wide.data = device->alloc(device, bytes)))
        return mc_fail_memory(root->ctx, device, bytes, MC_HELP_MODEL,
                              "the gradients of \"%s\" as f32", b->owner->name);
    status = device->kernels->scale(device, b->share, narrow, 1, wide, false);
    device->free(device, b->kept_gradient, mc_bucket_kept_bytes(b));
    b->kept_gradient = wide.data;
    b->kept_dtype = MC_F32;
    return fail_device(root, status, "gradients");
}

static void drop_gradient(mc_module_root *root, mc_bucket *b)
{
    for (int i = 0; i < b->stored_count; i++) mc_blank_take(&b->stored[i]->blank);
    mc_bucket_drop_vectors(root, b);
    mc_device *device = device_of(root);
    device->free(device, b->gradient, (size_t)b->count * mc_dtype_size(b->gradient_dtype));
    b->gradient = NULL;
}

/* Memory for `gradient`, and for what is no matrix; all of it or none. "the gradients of" what. */
static mc_status claim_gradient(mc_module_root *root, mc_bucket *b, const char *kind,
                                const char *name)
{
    mc_device *device = device_of(root);
    size_t bytes = (size_t)b->count * mc_dtype_size(b->gradient_dtype);
    b->gradient = device->alloc(device, bytes);
    if (!b->gradient)
        return mc_fail_memory(root->ctx, device, bytes, MC_HELP_MODEL, "the gradients of %s\"%s\"",
                              kind, name);
    mc_status status = need_vectors(root, b);
    if (status) drop_gradient(root, b);
    return status;
}

size_t mc_bucket_gradient_bytes(const mc_bucket *b)
{
    size_t bytes = (size_t)b->count * mc_dtype_size(b->gradient_dtype);
    return bytes + (b->gradient_dtype == MC_F32 ? 0 : vectors_bytes(b));
}

mc_status mc_bucket_make_gradient(mc_module_root *root, mc_bucket *b, int passes)
{
    b->gradient_dtype = passes == 1 ? dtype_of_pass(root, b) : MC_F32;
    b->pass = 0;
    mc_status status = claim_gradient(root, b, "model ", root->module->name);
    if (status) {
        b->gradient_dtype = MC_F32;
        return status;
    }
    if (b->vectors) zero_vectors(root, b, first_vector(b), b->count - first_vector(b));
    return zero_elements(root, b, 0, b->count);
}

mc_status mc_bucket_widen_gradient(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    size_t bytes = (size_t)b->count * sizeof(float);
    if (b->level >= 2 || b->gradient_dtype == MC_F32) return mc_error_status(root->ctx);
    mc_status status = mc_module_end_reducing(root);
    for (int i = 0; i < b->stored_count && !status; i++)
        status = mc_blank_fill(root->ctx, &b->stored[i]->blank);
    if (status) return status;
    mc_bucket wide = *b;
    wide.gradient_dtype = MC_F32;
    wide.gradient = device->alloc(device, bytes);
    if (!wide.gradient)
        return mc_fail_memory(root->ctx, device, bytes, MC_HELP_MODEL,
                              "the gradients of \"%s\" as f32", b->owner->name);
    mc_matrix from = {b->gradient, b->gradient_dtype, b->count},
              to = {wide.gradient, MC_F32, b->count};
    status = fail_device(root, device->kernels->scale(device, b->count, from, 1, to, false),
                         "gradients");
    if (!status && !b->summed) status = move_vectors(root, &wide, false);
    drop_gradient(root, b);
    b->gradient = wide.gradient;
    b->gradient_dtype = MC_F32;
    mc_step_forget(root->ctx);
    return status;
}

mc_status mc_bucket_begin_gradient(mc_module_root *root, mc_bucket *b)
{
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (!b->trainable) return MC_OK;
    if (b->reducing && mc_module_end_reducing(root)) return mc_error_status(root->ctx);
    b->waits = false; /* more is going to be added */
    if (b->level < 2) return mc_bucket_reopen(root, b);
    if (b->gradient) return MC_OK;
    mc_status status = claim_gradient(root, b, "", b->owner->name);
    return status ? status : mc_bucket_blank(root, b, 0, b->count);
}

/* ---- gradients between ranks ----------------------------------------------------------------- */

/* Where gradients on their way between ranks lie, from element `from` on. */
static mc_matrix on_the_way(const mc_bucket *b, int64_t from)
{
    if (!b->sent) return (mc_matrix){gradient_at(b, from), b->gradient_dtype, b->count - from};
    return (mc_matrix){(char *)b->sent + value_bytes(b, from), b->dtype, b->count - from};
}

/* Rounds gradients that are to travel in the parameters' dtype into `sent`. */
static mc_status round_gradient(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    size_t bytes = value_bytes(b, b->count);
    if (travel_dtype(root, b) == b->gradient_dtype) return mc_error_status(root->ctx);
    mc_matrix exact = {b->gradient, MC_F32, b->count};
    if (!b->sent) b->sent = device->alloc(device, bytes);
    if (!b->sent)
        return mc_fail_memory(root->ctx, device, bytes, MC_HELP_MODEL,
                              "the gradients of \"%s\" on their way", b->owner->name);
    return fail_device(root,
                       device->kernels->scale(device, b->count, exact, 1, on_the_way(b, 0), false),
                       "gradients");
}

static void drop_sent(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    device->free(device, b->sent, value_bytes(b, b->count));
    b->sent = NULL;
}

/* Hands what was reduced to the host, memory and all. */
static mc_status send_down(mc_module_root *root, mc_bucket *b)
{
    void *block = b->sent ? b->sent : b->gradient;
    mc_matrix share = on_the_way(b, b->first);
    size_t bytes = (size_t)b->count * mc_dtype_size(share.dtype);
    if (b->sent) drop_gradient(root, b);
    b->sent = NULL;
    b->gradient = NULL;
    return mc_bucket_send(root, b, share, block, bytes);
}

/* Levels 0 and 1: the sum has arrived, at level 1 this rank's share of it. */
static mc_status take_sum(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    int64_t first = mc_bucket_first(b), count = mc_bucket_held(b);
    mc_matrix to = {gradient_at(b, first), MC_F32, count};
    mc_status status = MC_OK;
    if (b->sent) status = device->kernels->scale(device, count, on_the_way(b, first), 1, to, false);
    drop_sent(root, b);
    b->summed = !status;
    return fail_device(root, status, "gradients");
}

/* Levels 2 and 3: adds what has arrived to this rank's sums. */
static mc_status add_share(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    mc_status status = MC_OK;
    if (!b->arrives) {
        bool add = !mc_blank_take(&b->kept_blank);
        if (add) status = mc_bucket_widen_kept(root, b); /* a second pass: sums are f32 */
        mc_matrix to = {b->kept_gradient, b->kept_dtype, b->share};
        if (!status)
            status = device->kernels->scale(device, b->share, on_the_way(b, b->first), 1, to, add);
    }
    drop_gradient(root, b);
    drop_sent(root, b);
    return fail_device(root, status, "gradients");
}

static mc_status end_reducing(mc_module_root *root, mc_bucket *b)
{
    mc_comm_request *request = b->reducing;
    b->reducing = NULL;
    mc_status status = mc_comm_wait(request);
    if (status) return status;
    if (b->level < 2) return take_sum(root, b);
    return b->host ? send_down(root, b) : add_share(root, b);
}

mc_status mc_module_end_reducing(mc_module_root *root)
{
    mc_status status = mc_error_status(root->ctx);
    for (int i = 0; i < root->bucket_count; i++)
        if (root->buckets[i].reducing) status = end_reducing(root, &root->buckets[i]);
    return status;
}

/* Makes gradients as they are to travel. */
static mc_status pack_gradient(mc_module_root *root, mc_bucket *b)
{
    mc_status status = fill_gradient(root, b);
    return status ? status : round_gradient(root, b);
}

/* Sends off what is packed. */
static mc_status send_gradient(mc_module_root *root, mc_bucket *b)
{
    struct mc_comm *comm = root->ctx->mesh.shard.comm;
    b->waits = false;
    if (b->sent && b->level >= 2) drop_gradient(root, b);
    if (!comm) return end_reducing(root, b);
    mc_matrix whole = on_the_way(b, 0), mine = on_the_way(b, mc_bucket_first(b));
    /* where nothing is kept yet, the sum can arrive where it will be: from now on that is no longer
     * to be filled */
    b->arrives =
        b->level >= 2 && !b->host && whole.dtype == b->kept_dtype && mc_blank_take(&b->kept_blank);
    if (b->arrives) mine.data = b->kept_gradient;
    b->reducing = b->level == 0
                      ? mc_comm_start_all_reduce(comm, whole.data, whole.data, b->count,
                                                 whole.dtype, MC_REDUCE_SUM)
                      : mc_comm_start_reduce_scatter(comm, whole.data, mine.data, b->share,
                                                     whole.dtype, MC_REDUCE_SUM);
    return mc_error_status(root->ctx);
}

/* Begins to sum a bucket's gradients over ranks, when what was under way is done. */
static mc_status start_reducing(mc_module_root *root, mc_bucket *b)
{
    mc_status status = mc_module_end_reducing(root);
    if (!status) status = pack_gradient(root, b);
    return status ? status : send_gradient(root, b);
}

/* Begins to sum all that wait. */
static mc_status send_waiting(mc_module_root *root)
{
    mc_status status = mc_module_end_reducing(root);
    for (int i = 0; i < root->bucket_count && !status; i++)
        if (root->buckets[i].waits) status = pack_gradient(root, &root->buckets[i]);
    for (int i = 0; i < root->bucket_count && !status; i++)
        if (root->buckets[i].waits) status = send_gradient(root, &root->buckets[i]);
    return status;
}

/* Levels 0 and 1, whose gradients stay where they are: lets them wait until there are enough to
 * travel together. A collective slows the products beside it, a short one about as much as a long
 * one (0.2 ms on four H200), so that there are to be few. */
static mc_status wait_for_more(mc_module_root *root, mc_bucket *added)
{
    size_t bytes = 0;
    added->waits = true;
    for (int i = 0; i < root->bucket_count; i++) {
        const mc_bucket *b = &root->buckets[i];
        if (b->waits) bytes += (size_t)b->count * mc_dtype_size(travel_dtype(root, b));
    }
    return bytes < root->ctx->reduce_bytes ? mc_error_status(root->ctx) : send_waiting(root);
}

/* Beside the backward pass of the block before. */
mc_status mc_bucket_reduce(mc_module_root *root, mc_bucket *b)
{
    bool last = root->ctx->mesh.shard.comm && mc_step_in_last_pass(root->ctx);
    if (!b->gradient || b->backward || (b->level < 2 && !last)) return mc_error_status(root->ctx);
    return b->level < 2 ? wait_for_more(root, b) : start_reducing(root, b);
}

/* Whether there are gradients that nobody has begun to sum over all ranks. */
static bool is_unsummed(const mc_module_root *root, const mc_bucket *b)
{
    bool whole = b->level < 2; /* else what there is of `gradient` is still to be summed */
    if (!b->trainable || !b->gradient || b->reducing) return false;
    return !(whole && (!root->ctx->mesh.shard.comm || b->summed));
}

mc_status mc_module_sum_gradients(mc_module_root *root)
{
    mc_status status = mc_module_end_reducing(root);
    for (int i = 0; !status && i < root->bucket_count; i++) {
        mc_bucket *b = &root->buckets[i];
        if (!is_unsummed(root, b)) continue;
        status = b->level < 2 ? wait_for_more(root, b) : start_reducing(root, b);
    }
    if (!status) status = send_waiting(root);
    if (!status) status = mc_module_end_reducing(root);
    for (int i = 0; !status && i < root->bucket_count; i++) { /* they are about to be read */
        mc_bucket *b = &root->buckets[i];
        if (b->level < 2 && !b->summed) status = move_vectors(root, b, false);
    }
    return status ? status : mc_blank_fill_all(root->ctx);
}

/* Every rank keeps a part of the sum, so that summing again gives it once. */
mc_status mc_bucket_reopen(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    mc_matrix all = {b->gradient, b->gradient_dtype, b->count};
    int64_t end = b->first + b->share;
    if (!b->summed) return mc_error_status(root->ctx);
    b->summed = false;
    mc_status status;
    if (b->level == 0) {
        double part = 1.0 / root->ctx->mesh.shard.size;
        status = device->kernels->scale(device, b->count, all, (float)part, all, false);
    } else {
        status = zero_elements(root, b, 0, b->first);
        if (!status) status = zero_elements(root, b, end, b->count - end);
    }
    if (!status) status = move_vectors(root, b, true);
    return fail_device(root, status, "gradients");
}

/* ---- changing the level ---------------------------------------------------------------------- */

/* Moves `*array` from `count` elements to this rank's share of them, or the other way round; `home`
 * is where it lies. */
static mc_status to_share(mc_module_root *root, mc_device *home, const mc_bucket *b, void **array,
                          void **share, mc_dtype dtype)
{
    mc_device *device = home;
    size_t size = mc_dtype_size(dtype);
    if (!*array) return MC_OK;
    if (b->share == b->count) {
        *share = *array;
        *array = NULL;
        return MC_OK;
    }
    void *new = device->alloc(device, (size_t)b->share * size);
    if (!new) return mc_fail_nomem(root->ctx, "a share of a model");
    mc_matrix from = {(char *)*array + (size_t)b->first * size, dtype, b->share};
    mc_status status =
        device->kernels->scale(device, b->share, from, 1, (mc_matrix){new, dtype, b->share}, false);
    device->free(device, *array, (size_t)b->count * size);
    *array = NULL;
    *share = new;
    return fail_device(root, status, "a share");
}

/* Gathers f32 shares that lie on the host, piece by piece through the device. */
static mc_status gather_on_host(mc_module_root *root, const mc_bucket *b, const float *share,
                                float *whole)
{
    enum { PIECE = 1 << 20 };
    mc_device *device = device_of(root);
    int64_t ranks = root->ctx->mesh.shard.size, most = b->share < PIECE ? b->share : PIECE;
    size_t bytes = (size_t)((ranks + 1) * most) * sizeof(float);
    float *all = device->alloc(device, bytes);
    if (!all) return mc_fail_nomem(root->ctx, "a model's shares as a whole");
    mc_status status = mc_error_status(root->ctx);
    for (int64_t at = 0; at < b->share && !status; at += most) {
        int64_t n = b->share - at < most ? b->share - at : most;
        float *mine = all + ranks * most;
        status = mc_home_copy(root, mine, false, share + at, true, n);
        if (!status) status = mc_comm_all_gather(root->ctx->mesh.shard.comm, mine, all, n, MC_F32);
        for (int64_t r = 0; r < ranks && !status; r++)
            status = mc_home_copy(root, whole + r * b->share + at, true, all + r * n, false, n);
    }
    device->free(device, all, bytes);
    return status;
}

static mc_status to_whole(mc_module_root *root, mc_device *home, const mc_bucket *b, void **share,
                          void **array, mc_dtype dtype)
{
    mc_device *device = home;
    size_t size = mc_dtype_size(dtype);
    if (!*share) return MC_OK;
    if (b->share == b->count) {
        *array = *share;
        *share = NULL;
        return MC_OK;
    }
    void *new = device->alloc(device, (size_t)b->count * size);
    if (!new) return mc_fail_nomem(root->ctx, "a model's shares as a whole");
    mc_status status = home == device_of(root) ? mc_comm_all_gather(root->ctx->mesh.shard.comm,
                                                                    *share, new, b->share, dtype)
                                               : gather_on_host(root, b, *share, new);
    device->free(device, *share, (size_t)b->share * size);
    *share = NULL;
    *array = new;
    return status;
}

mc_status mc_bucket_shard(mc_module_root *root, mc_bucket *b, int level)
{
    mc_status status = mc_blank_fill_all(root->ctx);
    for (int k = 0; k < MC_STATE_SLOTS && !status && level; k++) {
        void *array = b->state[k], *share = NULL;
        status = to_share(root, mc_bucket_home(root, b), b, &array, &share, MC_F32);
        b->state[k] = share ? share : array;
    }
    void *gradient = b->gradient, *kept = NULL;
    if (!status && level >= 2) {
        status = to_share(root, device_of(root), b, &gradient, &kept, MC_F32);
        b->gradient = gradient;
        b->kept_gradient = kept;
        b->kept_dtype = MC_F32;
        b->summed = false;
        if (!status && kept && b->host) status = mc_bucket_take_sum(root, b);
    }
    if (!status && level == 3)
        status = to_share(root, device_of(root), b, &b->data, &b->kept, b->dtype);
    b->level = level;
    b->gradient_dtype = mc_bucket_gradient_dtype(root, b);
    return status;
}

/* Levels 0 and 1: gives every rank the whole sum of the gradients. */
static mc_status to_whole_sum(mc_module_root *root, mc_bucket *b)
{
    mc_status status = mc_module_end_reducing(root);
    if (!status) status = mc_bucket_widen_gradient(root, b);
    if (!status && is_unsummed(root, b)) status = start_reducing(root, b);
    if (!status) status = mc_module_end_reducing(root);
    if (status || !b->summed || b->level == 0) return status;
    return mc_comm_all_gather(root->ctx->mesh.shard.comm, gradient_at(b, b->first), b->gradient,
                              b->share, MC_F32);
}

mc_status mc_bucket_unshard(mc_module_root *root, mc_bucket *b)
{
    mc_status status = to_whole_sum(root, b);
    if (!status) status = mc_blank_fill_all(root->ctx);
    for (int k = 0; k < MC_STATE_SLOTS && !status && b->level; k++) {
        void *share = b->state[k], *array = NULL;
        status = to_whole(root, mc_bucket_home(root, b), b, &share, &array, MC_F32);
        b->state[k] = array ? array : share;
    }
    if (!status) status = b->host ? mc_bucket_give_sum(root, b) : mc_bucket_widen_kept(root, b);
    void *kept = b->kept_gradient, *gradient = b->gradient;
    if (!status && kept) {
        status = to_whole(root, device_of(root), b, &kept, &gradient, MC_F32);
        b->gradient = gradient;
        b->kept_gradient = kept;
    }
    if (!status && b->level == 3)
        status = to_whole(root, device_of(root), b, &b->kept, &b->data, b->dtype);
    b->summed = root->ctx->mesh.shard.comm && b->gradient;
    if (status) return status;
    b->level = 0;
    b->gradient_dtype = MC_F32;
    return MC_OK;
}

mc_status mc_bucket_read_gradient(mc_module_root *root, const mc_parameter *p, float *values)
{
    mc_bucket *b = p->stored->bucket;
    mc_device *device = device_of(root);
    size_t bytes = (size_t)b->count * sizeof(float);
    float *whole = device->alloc(device, bytes);
    if (!whole) return mc_fail_nomem(root->ctx, "reading a gradient");
    float *mine = whole + b->first;
    mc_status status = mc_module_end_reducing(root);
    if (!status && b->level < 2)
        status = device->kernels->scale(device, b->share, mc_bucket_gradient(b, b->first), 1,
                                        (mc_matrix){mine, MC_F32, b->share}, false);
    else if (!status)
        status = mc_bucket_copy_sum(root, b, mine);
    if (!status && root->ctx->mesh.shard.comm)
        status = mc_comm_all_gather(root->ctx->mesh.shard.comm, mine, whole, b->share, MC_F32);
    size_t count = (size_t)mc_shape_count(p->shape);
    if (!status && !device->copy_out(device, values, whole + p->stored->offset + p->first,
                                     count * sizeof *values))
        status = fail_device(root, MC_ERR_DEVICE, "reading a gradient");
    device->free(device, whole, bytes);
    return status;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

typedef struct block_state {
    mc_module *block;
    bool gathered; /* its parameters stay gathered from forward to backward */
} block_state;

typedef mc_status (*bucket_fn)(mc_module_root *root, mc_bucket *bucket);

static void each_bucket(mc_module *block, bucket_fn fn)
{
    mc_module_root *root = block->root;
    for (int i = 0; i < root->bucket_count && !mc_failed(root->ctx); i++)
        if (root->buckets[i].owner == block) fn(root, &root->buckets[i]);
}

static mc_status release(mc_module_root *root, mc_bucket *bucket)
{
    mc_bucket_release(root, bucket);
    return MC_OK;
}

static mc_status begin_running(mc_module_root *root, mc_bucket *bucket)
{
    bucket->running++;
    return mc_bucket_gather(root, bucket);
}

static void end_running(mc_module *block, bool needed)
{
    mc_module_root *root = block->root;
    for (int i = 0; i < root->bucket_count; i++) {
        mc_bucket *b = &root->buckets[i];
        if (b->owner != block || !b->running) continue; /* it has failed to begin */
        b->running--;
        if (!needed) mc_bucket_release(root, b);
    }
}

static mc_module *block_before(const mc_module *block)
{
    mc_module *m = block->parent->first_child;
    while (m && m->next != block) m = m->next;
    return m;
}

/* Begins to gather the block that comes next, in forward or in backward order; blocks that no
 * longer exist are NULL. */
static void prefetch(mc_module *block)
{
    if (block) each_bucket(block, mc_bucket_prefetch);
}

/* Backward comes to the end of a block first. */
static void end_backward(mc_tape *tape, mc_node *node)
{
    const block_state *state = node->state;
    (void)tape;
    if (!state->gathered) {
        each_bucket(state->block, mc_bucket_gather);
        prefetch(block_before(state->block));
    }
    each_bucket(state->block, mc_bucket_begin_gradient);
}

static void begin_backward(mc_tape *tape, mc_node *node)
{
    const block_state *state = node->state;
    (void)tape;
    each_bucket(state->block, mc_bucket_reduce);
    each_bucket(state->block, release);
}

static const mc_op begin_op = {.name = "block begins", .backward = begin_backward, .always = true};
static const mc_op end_op = {.name = "block ends", .backward = end_backward, .always = true};

static void mark(mc_tape *tape, mc_module *block, const mc_op *op)
{
    if (!mc_tape_recording(tape)) return;
    mc_node *node = mc_tape_mark(tape, op, sizeof(block_state));
    if (!node) return;
    *(block_state *)node->state =
        (block_state){.block = block, .gathered = mc_tape_replaying(tape)};
}

/* Whether something is to be done around a block: with ranks, and where buckets have their state on
 * the host. */
static bool is_sharded(const mc_module *block)
{
    const mc_module_root *root = block->root;
    return (root->ctx->mesh.shard.comm || root->offload) && block->parent &&
           block->parent->holds_blocks;
}

mc_status mc_block_begin(mc_tape *tape, mc_module *block)
{
    mc_context *ctx = block->ctx;
    if (mc_module_layout(block->root) || mc_module_place(block->root)) return mc_error_status(ctx);
    if (!is_sharded(block)) return mc_error_status(ctx);
    each_bucket(block, begin_running);
    prefetch(mc_tape_replaying(tape) ? block_before(block) : block->next);
    mark(tape, block, &begin_op);
    return mc_error_status(ctx);
}

void mc_block_end(mc_tape *tape, mc_module *block)
{
    if (!is_sharded(block)) return;
    mark(tape, block, &end_op);
    /* a block that runs again in backward is about to be needed by that */
    bool needed = mc_tape_recording(tape) && mc_tape_replaying(tape);
    end_running(block, needed);
}
