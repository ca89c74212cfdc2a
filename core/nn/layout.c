/* Laying out parameters in flat buckets, and initialising them. */
#include "core/base/hash_internal.h"
#include "core/nn/module_internal.h"

static mc_device *device_of(const mc_module_root *root) { return root->ctx->device; }

/* ---- initial values -------------------------------------------------------------------------- */

/* A parameter's own seed: FNV-1a of its name, mixed with the context's seed by splitmix64's
 * finaliser (Steele et al. 2014), so that similar names get unrelated values. */
static uint64_t parameter_seed(uint64_t seed, const char *name)
{
    uint64_t z = mc_hash_text(MC_HASH_START, name) + seed * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* This rank's shard of a parameter. */
typedef struct held {
    int64_t first, count; /* of the parameter */
    int64_t element;      /* index of the first one in the bucket */
} held;

static held held_of(const mc_parameter *p)
{
    int64_t begin = p->stored->span->offset + p->first, count;
    int64_t from = mc_bucket_held_of(p->stored->bucket, begin, mc_shape_count(p->shape), &count);
    return (held){from - begin, count, from};
}

static held values_held(const mc_parameter *p)
{
    if (mc_bucket_shares_values(p->stored->bucket)) return held_of(p);
    return (held){0, mc_shape_count(p->shape), p->stored->span->offset + p->first};
}

/* Runs a custom initialiser, which writes f32 on the host, piece by piece. */
static bool fill_custom(mc_parameter *p, held h, mc_matrix out, uint64_t seed)
{
    enum { PIECE = 1 << 14 };
    mc_module_root *root = p->module->root;
    mc_device *device = device_of(root);
    float *host = mc_malloc(PIECE * sizeof *host);
    float *staging = device->alloc(device, PIECE * sizeof *staging);
    for (int64_t at = 0; host && staging && at < h.count; at += PIECE) {
        int64_t n = h.count - at < PIECE ? h.count - at : PIECE;
        p->init.fn(p->init.user, seed, h.first + at, n, host);
        device->copy_in(device, staging, host, (size_t)n * sizeof *host);
        mc_matrix to = {(char *)out.data + (size_t)at * mc_dtype_size(out.dtype), out.dtype, n};
        device->kernels->scale(device, n, (mc_matrix){staging, MC_F32, n}, 1, to, false);
    }
    bool good = host && staging;
    mc_free(host);
    device->free(device, staging, PIECE * sizeof *staging);
    if (!good) mc_fail_nomem(root->ctx, "initial values");
    return good;
}

/* The values depend on the element's index in the whole parameter: no communication is needed. */
static bool fill_parameter(mc_parameter *p)
{
    mc_module_root *root = p->module->root;
    mc_device *device = device_of(root);
    uint64_t seed = parameter_seed(root->ctx->seed, p->name);
    held h = values_held(p);
    if (!h.count) return true;
    mc_matrix out = {mc_bucket_value_at(p->stored->bucket, h.element), root->dtype, h.count};
    mc_fill fill = {.kind = MC_FILL_CONSTANT, .a = p->init.a, .b = p->init.b, .key = seed};
    switch (p->init.kind) {
    case MC_INIT_ZEROS: fill.a = 0; break;
    case MC_INIT_CONSTANT: break;
    case MC_INIT_NORMAL: fill.kind = MC_FILL_NORMAL; break;
    case MC_INIT_UNIFORM: fill.kind = MC_FILL_UNIFORM; break;
    case MC_INIT_CUSTOM: return fill_custom(p, h, out, seed);
    }
    mc_status status = device->kernels->fill(device, fill, h.first, h.count, out);
    if (status) mc_fail(root->ctx, status, "initial values of \"%s\"", p->name);
    return status == MC_OK;
}

/* If an optimizer already has master copies, a new parameter's copy starts from its initial
 * values. */
static void fill_master(mc_parameter *p)
{
    mc_bucket *bucket = p->stored->bucket;
    held h = held_of(p);
    if (bucket->state[MC_STATE_MASTER] && h.count)
        mc_bucket_fill_master(&p->module->root->zero, bucket, h.element, h.count);
}

/* ---- layout ---------------------------------------------------------------------------------- */

void *mc_stored_data(const mc_stored *stored)
{
    return (char *)stored->bucket->values.data +
           (size_t)stored->span->offset * mc_dtype_size(stored->bucket->dtype);
}

const mc_level *mc_module_level(const mc_module_root *root, const mc_bucket *b, bool on_host)
{
    const mc_module *owner = b->owner;
    int level = owner->zero_level ? owner->zero_level - MC_ZERO_0 : root->ctx->zero_level;
    if (owner->holds_blocks && level > 1) level = 1; /* small, and used throughout the step */
    if (!root->ctx->mesh.shard.comm) level = 0;
    if (on_host && b->trainable && level < 2) level = 2;
    /* of a frozen bucket only values can be sharded */
    return &mc_levels[b->trainable || mc_levels[level].values == MC_SHARE ? level : 0];
}

/* Whether it is a vector: a bias, or the weight of a norm. */
static bool is_vector(const mc_stored *stored) { return stored->shape.ndim <= 1; }

static bool is_in_block(const mc_stored *stored)
{
    const mc_module *parent = stored->owner->parent;
    return parent && parent->holds_blocks;
}

/* The planned bucket of a stored tensor; a new one if it does not exist yet. The vectors of all
 * blocks of a list share one bucket, the list's. */
static mc_bucket *find_bucket(mc_module_root *root, mc_bucket *plan, int *count,
                              const mc_stored *stored)
{
    bool of_list = is_in_block(stored) && is_vector(stored);
    mc_module *owner = of_list ? stored->owner->parent : stored->owner;
    for (int i = 0; i < *count; i++)
        if (plan[i].owner == owner && plan[i].trainable == stored->trainable) return &plan[i];
    mc_bucket *bucket = &plan[(*count)++];
    *bucket = (mc_bucket){.owner = owner,
                          .name = owner->name,
                          .dtype = root->dtype,
                          .trainable = stored->trainable,
                          .in_block = is_in_block(stored) && !of_list,
                          .level = &mc_levels[0]};
    return bucket;
}

/* The order of stored tensors: vectors of blocks first, because the first block waits for their
 * update; then matrices; then the other vectors. */
static int turn_of(const mc_stored *stored)
{
    return !is_vector(stored) ? 1 : is_in_block(stored) ? 0 : 2;
}

/* Plans the buckets. In a bucket vectors come after matrices, so that each kind is one range,
 * because optimizers often treat them differently. Tensors that exist only in 8 bits get no place.
 * A bucket that takes over a tensor from one on the host is on the host too. */
static mc_status plan_buckets(mc_module_root *root, mc_bucket *plan, int *count, bool *on_host)
{
    mc_status status = MC_OK;
    for (int turn = 0; turn < 3; turn++)
        for (size_t i = 0; i < root->stored_count && !status; i++) {
            mc_stored *stored = root->stored[i];
            bool vector = is_vector(stored);
            if (stored->leaves || turn_of(stored) != turn) continue;
            mc_bucket *bucket = find_bucket(root, plan, count, stored);
            status = mc_bucket_add_span(&root->zero, bucket, stored, stored->count, vector);
            if (!status) mc_bucket_set_form(bucket, stored->form);
            if (stored->bucket && stored->bucket->host) on_host[bucket - plan] = true;
        }
    for (int i = 0; i < *count; i++)
        mc_bucket_set_level(&root->zero, &plan[i], mc_module_level(root, &plan[i], on_host[i]));
    return status;
}

/* Sets the places of the buckets' stored tensors. */
static void find_places(mc_bucket *buckets, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < buckets[i].span_count; k++) {
            mc_stored *stored = mc_stored_of(&buckets[i].spans[k]);
            stored->bucket = &buckets[i];
            stored->span = &buckets[i].spans[k];
            stored->leaf = NULL;
        }
}

mc_status mc_module_move_bucket(mc_module_root *root, mc_bucket *b, mc_bucket *description,
                                bool on_host)
{
    mc_status status = mc_bucket_move(&root->zero, b, description, on_host);
    if (!status) find_places(b, 1);
    return status;
}

static mc_status lay_out(mc_module_root *root)
{
    mc_zero *z = &root->zero;
    mc_bucket *plan = mc_calloc(2 * root->stored_count + 1, sizeof *plan);
    bool *on_host = mc_calloc(2 * root->stored_count + 1, sizeof *on_host);
    int count = 0;
    if (!plan || !on_host) mc_fail_nomem(root->ctx, "parameter buckets");
    mc_status status = mc_error_status(root->ctx);
    if (!status) status = mc_zero_await(z);
    if (!status) status = plan_buckets(root, plan, &count, on_host);
    if (!status) status = mc_zero_move(z, z->buckets, z->bucket_count, plan, count, on_host);
    mc_free(on_host);
    if (status) {
        mc_zero_free(z, plan, count);
        return status;
    }
    find_places(plan, count);
    mc_zero_free(z, z->buckets, z->bucket_count);
    z->buckets = plan;
    z->bucket_count = count;
    root->placed = false;
    return MC_OK;
}

mc_status mc_module_layout(mc_module_root *root)
{
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (root->layout_valid) return MC_OK;
    if (mc_is_on_open_tape(root->ctx, root, NULL))
        return mc_fail(root->ctx, MC_ERR_STATE,
                       "%s: parameters were declared, frozen or thawed while a tape is open that "
                       "uses it: end the tape first",
                       MC_NAMED("model", root->module->name));
    mc_status status = lay_out(root);
    if (status) return status;
    for (size_t i = 0; i < root->parameter_count; i++) {
        mc_parameter *p = root->parameters[i];
        if (p->initialized || !p->stored) continue;
        if (!fill_parameter(p)) return mc_error_status(root->ctx);
        fill_master(p);
        p->initialized = true;
    }
    root->layout_valid = true;
    return MC_OK;
}

mc_status mc_module_place(mc_module_root *root)
{
    mc_status status = mc_module_layout(root);
    if (status || !root->place || root->placed || mc_is_on_open_tape(root->ctx, root, NULL))
        return status;
    status = root->place(root);
    root->placed = !status;
    return status;
}

mc_status mc_module_need_gradients(mc_module_root *root, int passes)
{
    mc_status status = mc_module_place(root);
    return status ? status : mc_zero_need_gradients(&root->zero, passes);
}

void mc_parameter_held(const mc_parameter *p, int64_t *element, int64_t *count)
{
    held h = held_of(p);
    *element = h.element;
    *count = h.count;
}

void mc_parameter_values_held(const mc_parameter *p, int64_t *element, int64_t *count)
{
    held h = values_held(p);
    *element = h.element;
    *count = h.count;
}
