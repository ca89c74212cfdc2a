/* Laying parameters out in flat buckets, and filling them. */
#include "core/nn/module_internal.h"

#include <string.h>

static mc_device *device_of(const mc_module_root *root) { return root->ctx->device; }

/* ---- initial values -------------------------------------------------------------------------- */

/* A parameter's own seed: FNV-1a of its name, mixed with the context's seed (splitmix64's
 * finaliser, Steele et al. 2014), so that names that differ little get unrelated values. */
static uint64_t parameter_seed(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    uint64_t z = hash + seed * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A custom initialiser writes f32 on the host, a piece at a time. */
static bool fill_custom(mc_parameter *p, mc_matrix out, uint64_t seed)
{
    enum { PIECE = 1 << 14 };
    mc_module_root *root = p->module->root;
    mc_device *device = device_of(root);
    float *host = mc_malloc(PIECE * sizeof *host);
    float *staging = device->alloc(device, PIECE * sizeof *staging);
    int64_t count = mc_shape_count(p->shape);
    for (int64_t first = 0; host && staging && first < count; first += PIECE) {
        int64_t n = count - first < PIECE ? count - first : PIECE;
        p->init.fn(p->init.user, seed, first, n, host);
        device->copy_in(device, staging, host, (size_t)n * sizeof *host);
        mc_matrix to = {(char *)out.data + (size_t)first * mc_dtype_size(out.dtype), out.dtype, n};
        device->kernels->scale(device, n, (mc_matrix){staging, MC_F32, n}, 1, to, false);
    }
    bool good = host && staging;
    mc_free(host);
    device->free(device, staging, PIECE * sizeof *staging);
    if (!good) mc_fail_nomem(root->ctx, "initial values");
    return good;
}

static bool fill_parameter(mc_parameter *p)
{
    mc_module_root *root = p->module->root;
    mc_device *device = device_of(root);
    uint64_t seed = parameter_seed(root->ctx->seed, p->name);
    int64_t count = mc_shape_count(p->shape);
    mc_matrix out = {(char *)mc_stored_data(p->stored) +
                         (size_t)p->first * mc_dtype_size(root->dtype),
                     root->dtype, count};
    mc_fill fill = {.kind = MC_FILL_CONSTANT, .a = p->init.a, .b = p->init.b, .key = seed};
    switch (p->init.kind) {
    case MC_INIT_ZEROS: fill.a = 0; break;
    case MC_INIT_CONSTANT: break;
    case MC_INIT_NORMAL: fill.kind = MC_FILL_NORMAL; break;
    case MC_INIT_UNIFORM: fill.kind = MC_FILL_UNIFORM; break;
    case MC_INIT_CUSTOM: return fill_custom(p, out, seed);
    }
    mc_status status = device->kernels->fill(device, fill, 0, count, out);
    if (status) mc_fail(root->ctx, status, "initial values of \"%s\"", p->name);
    return status == MC_OK;
}

/* A parameter declared when an optimizer keeps master copies already: its own starts from its
 * initial values. */
static void fill_master(mc_parameter *p)
{
    mc_bucket *bucket = p->stored->bucket;
    float *master = bucket->state[MC_STATE_MASTER];
    mc_device *device = device_of(p->module->root);
    int64_t count = mc_shape_count(p->shape);
    if (!master) return;
    char *data =
        (char *)mc_stored_data(p->stored) + (size_t)p->first * mc_dtype_size(bucket->dtype);
    device->kernels->scale(device, count, (mc_matrix){data, bucket->dtype, count}, 1,
                           (mc_matrix){master + p->stored->offset + p->first, MC_F32, count},
                           false);
}

/* ---- layout ---------------------------------------------------------------------------------- */

void *mc_stored_data(const mc_stored *stored)
{
    return (char *)stored->bucket->data +
           (size_t)stored->offset * mc_dtype_size(stored->bucket->dtype);
}

float *mc_stored_gradient(const mc_stored *stored)
{
    return stored->bucket && stored->bucket->gradient ? stored->bucket->gradient + stored->offset
                                                      : NULL;
}

/* Zeroed device memory; sets the error when out. */
static void *zeroed(mc_module_root *root, size_t bytes, const char *what)
{
    mc_device *device = device_of(root);
    void *data = device->alloc(device, bytes);
    if (data)
        device->kernels->zero(device, data, bytes);
    else
        mc_fail(root->ctx, MC_ERR_NOMEM, "out of memory for the %s of model \"%s\" (%zu bytes)",
                what, root->module->name, bytes);
    return data;
}

/* Which bucket of the plan a stored tensor goes to, appending a new one if there is none yet. */
static mc_bucket *find_bucket(mc_module_root *root, mc_bucket *plan, int *count,
                              const mc_stored *stored)
{
    for (int i = 0; i < *count; i++)
        if (plan[i].owner == stored->owner && plan[i].trainable == stored->trainable)
            return &plan[i];
    mc_bucket *bucket = &plan[(*count)++];
    *bucket =
        (mc_bucket){.owner = stored->owner, .dtype = root->dtype, .trainable = stored->trainable};
    return bucket;
}

static int64_t aligned(int64_t count)
{
    return (count + MC_BUCKET_ALIGN - 1) / MC_BUCKET_ALIGN * MC_BUCKET_ALIGN;
}

/* What a stored tensor's place will be; applied only when all memory is there. */
typedef struct place {
    mc_bucket *bucket;
    int64_t offset;
} place;

/* In a bucket matrices come first and vectors (biases, the weights of norms) behind them: optimizers
 * often treat the two differently, and each is then one range. */
static bool comes_in_pass(const mc_stored *stored, int pass)
{
    return (stored->shape.ndim <= 1) == (pass == 1);
}

static void plan_places(mc_module_root *root, mc_bucket *plan, int *count, place *places)
{
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < root->stored_count; i++) {
            if (!comes_in_pass(root->stored[i], pass)) continue;
            mc_bucket *bucket = find_bucket(root, plan, count, root->stored[i]);
            places[i] = (place){bucket, bucket->count};
            bucket->count += aligned(root->stored[i]->count);
            bucket->stored_count++;
        }
}

static bool plan_buckets(mc_module_root *root, mc_bucket *plan, int *count, place *places)
{
    plan_places(root, plan, count, places);
    for (int i = 0; i < *count; i++) {
        plan[i].stored = mc_malloc((size_t)plan[i].stored_count * sizeof *plan[i].stored);
        plan[i].stored_count = 0;
        if (!plan[i].stored) return !mc_fail_nomem(root->ctx, "parameter buckets");
        size_t bytes = (size_t)plan[i].count * mc_dtype_size(root->dtype);
        if (!(plan[i].data = zeroed(root, bytes, "parameters"))) return false;
    }
    return true;
}

/* Gives the new bucket a flat array where one of the old buckets feeding it had one. */
static bool plan_arrays(mc_module_root *root, const place *places)
{
    for (size_t i = 0; i < root->stored_count; i++) {
        mc_bucket *old = root->stored[i]->bucket, *new = places[i].bucket;
        if (!old) continue;
        size_t bytes = (size_t) new->count * sizeof(float);
        if (new->trainable && old->gradient && !new->gradient &&
            !(new->gradient = zeroed(root, bytes, "gradients")))
            return false;
        /* state stays with a parameter while it is frozen, for when it is thawed */
        for (int k = 0; k < MC_STATE_SLOTS; k++)
            if (old->state[k] && !new->state[k] &&
                !(new->state[k] = zeroed(root, bytes, "optimizer state")))
                return false;
    }
    return true;
}

static void copy_range(mc_module_root *root, void *to_base, int64_t to, const void *from_base,
                       int64_t from, int64_t count, mc_dtype dtype)
{
    if (!to_base || !from_base) return;
    size_t size = mc_dtype_size(dtype);
    mc_matrix x = {(char *)from_base + (size_t)from * size, dtype, count};
    mc_matrix y = {(char *)to_base + (size_t)to * size, dtype, count};
    device_of(root)->kernels->scale(device_of(root), count, x, 1, y, false);
}

/* Moves a stored tensor into its new place with all it has. */
static void move_stored(mc_module_root *root, mc_stored *stored, place to)
{
    mc_bucket *old = stored->bucket, *new = to.bucket;
    if (old) {
        int64_t from = stored->offset, n = stored->count;
        copy_range(root, new->data, to.offset, old->data, from, n, root->dtype);
        copy_range(root, new->gradient, to.offset, old->gradient, from, n, MC_F32);
        for (int k = 0; k < MC_STATE_SLOTS; k++)
            copy_range(root, new->state[k], to.offset, old->state[k], from, n, MC_F32);
        /* newly thawed under an optimizer that keeps a master copy: it starts from the weights */
        if (new->state[MC_STATE_MASTER] && !old->state[MC_STATE_MASTER])
            device_of(root)->kernels->scale(
                device_of(root), n,
                (mc_matrix){(char *)new->data + (size_t)to.offset *mc_dtype_size(root->dtype),
                            root->dtype, n},
                1, (mc_matrix){new->state[MC_STATE_MASTER] + to.offset, MC_F32, n}, false);
    }
    stored->bucket = new;
    stored->offset = to.offset;
    stored->leaf = NULL;
    new->stored[new->stored_count++] = stored;
}

static mc_status lay_out(mc_module_root *root)
{
    mc_bucket *plan = mc_calloc(2 * root->stored_count + 1, sizeof *plan);
    place *places = mc_calloc(root->stored_count + 1, sizeof *places);
    int count = 0;
    bool good = plan && places;
    if (!good) mc_fail_nomem(root->ctx, "parameter buckets");
    good = good && plan_buckets(root, plan, &count, places) && plan_arrays(root, places);
    if (good) {
        for (int pass = 0; pass < 2; pass++)
            for (size_t i = 0; i < root->stored_count; i++)
                if (comes_in_pass(root->stored[i], pass))
                    move_stored(root, root->stored[i], places[i]);
        mc_buckets_free(root, root->buckets, root->bucket_count);
        root->buckets = plan;
        root->bucket_count = count;
    } else if (plan) {
        mc_buckets_free(root, plan, count);
    }
    mc_free(places);
    return mc_error_status(root->ctx);
}

mc_status mc_module_layout(mc_module_root *root)
{
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (root->layout_valid) return MC_OK;
    if (mc_is_on_open_tape(root->ctx, root))
        return mc_fail(root->ctx, MC_ERR_STATE,
                       "model \"%s\": parameters were declared, frozen or thawed while a tape is "
                       "open that uses "
                       "it: end the tape first",
                       root->module->name);
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

mc_status mc_module_need_gradients(mc_module_root *root)
{
    mc_status status = mc_module_layout(root);
    for (int i = 0; i < root->bucket_count && !status; i++) {
        mc_bucket *bucket = &root->buckets[i];
        if (!bucket->trainable || bucket->gradient) continue;
        bucket->gradient = zeroed(root, (size_t)bucket->count * sizeof(float), "gradients");
        status = mc_error_status(root->ctx);
    }
    return status;
}

float *mc_bucket_state(mc_module_root *root, mc_bucket *bucket, int slot)
{
    if (mc_failed(root->ctx)) return NULL;
    if (bucket->state[slot]) return bucket->state[slot];
    float *state = zeroed(root, (size_t)bucket->count * sizeof *state, "optimizer state");
    if (state && slot == MC_STATE_MASTER)
        device_of(root)->kernels->scale(device_of(root), bucket->count,
                                        (mc_matrix){bucket->data, bucket->dtype, bucket->count}, 1,
                                        (mc_matrix){state, MC_F32, bucket->count}, false);
    return bucket->state[slot] = state;
}

/* ---- values in and out, and onto tapes ------------------------------------------------------- */

void mc_module_zero_grad(mc_module *module)
{
    if (!module || mc_failed(module->ctx)) return;
    mc_module_root *root = module->root;
    for (int i = 0; i < root->bucket_count; i++)
        if (root->buckets[i].gradient)
            device_of(root)->kernels->zero(device_of(root), root->buckets[i].gradient,
                                           (size_t)root->buckets[i].count * sizeof(float));
}

/* Rows of a stored tensor that belong to no parameter. */
static int64_t padding_rows(const mc_stored *stored)
{
    int64_t rows = stored->shape.ndim ? stored->shape.dim[0] : 0;
    for (int i = 0; i < stored->part_count; i++)
        if (stored->shape.ndim) rows -= stored->parts[i]->shape.dim[0];
    return rows;
}

mc_tensor *mc_stored_tensor(mc_tape *tape, mc_stored *stored)
{
    mc_module_root *root = stored->owner->root;
    if (stored->leaf && stored->leaf_tape == mc_tape_id(tape) && root->layout_valid)
        return stored->leaf;
    bool wants = mc_tape_is_training(tape) && stored->trainable;
    if (wants ? mc_module_need_gradients(root) : mc_module_layout(root)) return NULL;
    if (!mc_tape_note_owner(tape, root)) return NULL;
    stored->leaf = mc_tape_leaf(tape, root->dtype, stored->shape, mc_stored_data(stored),
                                wants ? mc_stored_gradient(stored) : NULL);
    stored->leaf_tape = mc_tape_id(tape);
    if (stored->leaf) stored->leaf->zero_rows = padding_rows(stored);
    return stored->leaf;
}

static bool tape_ready(mc_tape *tape, mc_parameter *p)
{
    mc_context *ctx = mc_tape_context(tape);
    if (mc_failed(ctx)) return false;
    if (!p)
        mc_fail(ctx, MC_ERR_ARGUMENT, "parameter is NULL");
    else if (p->module->ctx != ctx)
        mc_fail(ctx, MC_ERR_ARGUMENT, "parameter \"%s\" belongs to another context", p->name);
    return !mc_failed(ctx);
}

mc_tensor *mc_parameter_whole(mc_tape *tape, mc_parameter *p)
{
    return tape_ready(tape, p) ? mc_stored_tensor(tape, p->stored) : NULL;
}

mc_tensor *mc_parameter_tensor(mc_tape *tape, mc_parameter *p)
{
    mc_tensor *whole = mc_parameter_whole(tape, p);
    if (!whole || mc_shape_equal(p->shape, p->stored->shape)) return whole;
    char *data = (char *)mc_tensor_data(whole) + (size_t)p->first * mc_dtype_size(whole->dtype);
    float *gradient = whole->gradient ? (float *)mc_tensor_data(whole->gradient) + p->first : NULL;
    return mc_tape_leaf(tape, whole->dtype, p->shape, data, gradient);
}

/* Copies between host f32 and `count` device elements of any floating dtype. */
static mc_status transfer(mc_module_root *root, mc_matrix device_side, int64_t count, float *host,
                          bool in)
{
    mc_device *device = device_of(root);
    size_t bytes = (size_t)count * sizeof(float);
    bool direct = device_side.dtype == MC_F32;
    float *staging = direct ? device_side.data : device->alloc(device, bytes);
    if (!staging) return mc_fail_nomem(root->ctx, "copying a parameter");
    mc_matrix staged = {staging, MC_F32, count};
    if (in) device->copy_in(device, staging, host, bytes);
    if (!direct && in) device->kernels->scale(device, count, staged, 1, device_side, false);
    if (!direct && !in) device->kernels->scale(device, count, device_side, 1, staged, false);
    bool good = in || device->copy_out(device, host, staging, bytes);
    if (!direct) device->free(device, staging, bytes);
    if (good) return MC_OK;
    return mc_fail(root->ctx, MC_ERR_DEVICE, "copying a parameter: %s", device->failure);
}

static mc_matrix values_of(const mc_parameter *p)
{
    mc_dtype dtype = p->module->root->dtype;
    return (mc_matrix){(char *)mc_stored_data(p->stored) + (size_t)p->first * mc_dtype_size(dtype),
                       dtype, mc_shape_count(p->shape)};
}

mc_status mc_parameter_write(mc_parameter *p, const float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    mc_module_root *root = p->module->root;
    bool was_initialized = p->initialized;
    p->initialized = true;
    mc_status status = mc_module_layout(root);
    if (status) p->initialized = was_initialized;
    if (!status)
        status = transfer(root, values_of(p), mc_shape_count(p->shape), (float *)values, true);
    mc_bucket *bucket = p->stored->bucket;
    if (!status && bucket->state[MC_STATE_MASTER]) {
        mc_matrix master = {bucket->state[MC_STATE_MASTER] + p->stored->offset + p->first, MC_F32,
                            0};
        status = transfer(root, master, mc_shape_count(p->shape), (float *)values, true);
    }
    return status;
}

mc_status mc_parameter_read(mc_parameter *p, float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    mc_module_root *root = p->module->root;
    mc_status status = mc_module_layout(root);
    return status ? status : transfer(root, values_of(p), mc_shape_count(p->shape), values, false);
}

mc_status mc_parameter_read_gradient(mc_parameter *p, float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    mc_module_root *root = p->module->root;
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    int64_t count = mc_shape_count(p->shape);
    float *gradient = mc_stored_gradient(p->stored);
    if (!gradient) {
        memset(values, 0, (size_t)count * sizeof *values);
        return MC_OK;
    }
    return transfer(root, (mc_matrix){gradient + p->first, MC_F32, count}, count, values, false);
}
