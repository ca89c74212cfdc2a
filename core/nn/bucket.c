/* Laying parameters out in flat buckets, and filling them. */
#include "core/nn/eight_bit_internal.h"

#include <string.h>
#include "core/autograd/step_internal.h"
#include "core/base/hash_internal.h"
#include "core/nn/stored.h"

static mc_device *device_of(const mc_module_root *root) { return root->ctx->device; }

/* ---- initial values -------------------------------------------------------------------------- */

/* A parameter's own seed: FNV-1a of its name, mixed with the context's seed (splitmix64's
 * finaliser, Steele et al. 2014), so that names that differ little get unrelated values. */
static uint64_t parameter_seed(uint64_t seed, const char *name)
{
    uint64_t z = mc_hash_text(MC_HASH_START, name) + seed * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Elements of a parameter that this rank holds. */
typedef struct held {
    int64_t first, count; /* of the parameter */
    int64_t element;      /* of the bucket, where they begin */
} held;

static held held_of(const mc_parameter *p)
{
    const mc_bucket *b = p->stored->bucket;
    int64_t begin = p->stored->offset + p->first, end = begin + mc_shape_count(p->shape);
    int64_t first = mc_bucket_first(b), last = first + mc_bucket_held(b);
    int64_t from = begin > first ? begin : first, to = end < last ? end : last;
    return (held){from - begin, to > from ? to - from : 0, from};
}

/* Elements whose values this rank has: all of them, or at level 3 those it holds. */
static held values_held(const mc_parameter *p)
{
    if (p->stored->bucket->level == 3) return held_of(p);
    return (held){0, mc_shape_count(p->shape), p->stored->offset + p->first};
}

/* A custom initialiser writes f32 on the host, a piece at a time. */
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

/* The values depend on the element's number in the whole parameter, so ranks need not meet. */
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

/* A parameter declared when an optimizer keeps master copies already: its own starts from its
 * initial values. */
static void fill_master(mc_parameter *p)
{
    mc_bucket *bucket = p->stored->bucket;
    held h = held_of(p);
    if (bucket->state[MC_STATE_MASTER] && h.count)
        mc_bucket_fill_master(p->module->root, bucket, h.element, h.count);
}

/* ---- layout ---------------------------------------------------------------------------------- */

void *mc_stored_data(const mc_stored *stored)
{
    return (char *)stored->bucket->data +
           (size_t)stored->offset * mc_dtype_size(stored->bucket->dtype);
}

/* Memory of the device, or of the host (a bucket's home); sets the error when out. */
static void *claimed(mc_module_root *root, mc_device *device, size_t bytes, const char *what)
{
    void *data = device->alloc(device, bytes);
    if (!data)
        mc_fail_memory(root->ctx, device, bytes, MC_HELP_MODEL, "the %s of model \"%s\"", what,
                       root->module->name);
    return data;
}

static void *zeroed(mc_module_root *root, mc_device *device, size_t bytes, const char *what)
{
    void *data = claimed(root, device, bytes, what);
    if (data) device->kernels->zero(device, data, bytes);
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

static int64_t aligned(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

/* What a stored tensor's place will be; applied only when all memory is there. */
typedef struct place {
    mc_bucket *bucket;
    int64_t offset;
} place;

/* In a bucket matrices come first and vectors (biases, the weights of norms) after them:
 * optimizers often treat the two differently, and each is then one range. What is in 8 bits alone
 * has no place. */
static bool comes_in_pass(const mc_stored *stored, int pass)
{
    return !stored->leaves && (stored->shape.ndim <= 1) == (pass == 1);
}

static void plan_places(mc_module_root *root, mc_bucket *plan, int *count, place *places)
{
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < root->stored_count; i++) {
            if (!comes_in_pass(root->stored[i], pass)) continue;
            mc_bucket *bucket = find_bucket(root, plan, count, root->stored[i]);
            places[i] = (place){bucket, bucket->count};
            bucket->count += aligned(root->stored[i]->count, MC_BUCKET_ALIGN);
            bucket->stored_count++;
        }
}

/* The old bucket whose values, whole and alone, become those of a planned one, such as a block that
 * is frozen: they stay where they are then. NULL: none. */
static mc_bucket *same_values(mc_module_root *root, const mc_bucket *b, const place *places)
{
    mc_bucket *same = NULL;
    for (size_t i = 0; i < root->stored_count; i++) {
        const mc_stored *stored = root->stored[i];
        if (places[i].bucket != b) continue;
        if (!stored->bucket || (same && stored->bucket != same)) return NULL;
        if (stored->offset != places[i].offset) return NULL;
        same = stored->bucket;
    }
    bool whole = same && same->count == b->count && same->stored_count == b->stored_count;
    return whole && !same->level && !same->host ? same : NULL;
}

/* Memory for the values of a planned bucket: whole, or a share at level 3. */
static bool plan_values(mc_module_root *root, mc_bucket *b, const place *places)
{
    mc_bucket *same = root->bucket_count ? same_values(root, b, places) : NULL;
    if (same) b->data = same->data;
    if (same) return true;

    size_t size = mc_dtype_size(b->dtype);
    void **to = b->level == 3 ? &b->kept : &b->data;
    size_t bytes = (size_t)(b->level == 3 ? b->share : b->count) * size;
    return (*to = zeroed(root, device_of(root), bytes, "parameters"));
}

/* Plans where everything goes. Buckets that values are moved to are whole for the time being. */
static bool plan_buckets(mc_module_root *root, mc_bucket *plan, int *count, place *places)
{
    int ranks = root->ctx->mesh.shard.size;
    plan_places(root, plan, count, places);
    for (int i = 0; i < *count; i++) {
        mc_bucket *b = &plan[i];
        b->count = aligned(b->count, (int64_t)MC_BUCKET_ALIGN * ranks);
        b->share = b->count / ranks;
        b->first = b->share * root->ctx->mesh.shard.rank;
        b->level = root->bucket_count ? 0 : mc_bucket_level(root, b, false);
        b->gradient_dtype = mc_bucket_gradient_dtype(root, b);
        b->kept_dtype = MC_F32;
        b->stored = mc_malloc((size_t)b->stored_count * sizeof *b->stored);
        if (!b->stored) return !mc_fail_nomem(root->ctx, "parameter buckets");
        if (!plan_values(root, b, places)) return false;
        b->stored_count = 0;
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
            !(new->gradient = zeroed(root, device_of(root), bytes, "gradients")))
            return false;
        if (old->host && mc_bucket_make_host(root, new)) return false;
    }
    for (size_t i = 0; i < root->stored_count; i++) {
        mc_bucket *old = root->stored[i]->bucket, *new = places[i].bucket;
        if (!old) continue;
        size_t bytes = (size_t) new->count * sizeof(float);
        /* state stays with a parameter while it is frozen, for when it is thawed */
        for (int k = 0; k < MC_STATE_SLOTS; k++)
            if (old->state[k] && !new->state[k] &&
                !(new->state[k] =
                      zeroed(root, mc_bucket_home(root, new), bytes, "optimizer state")))
                return false;
    }
    return true;
}

/* Values that two layouts share belong to one of them: to `layout`'s buckets no more. */
static void give_up_shared(mc_bucket *layout, int count, const mc_bucket *other, int other_count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; layout[i].data && k < other_count; k++)
            if (layout[i].data == other[k].data) layout[i].data = NULL;
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

static void move_state(mc_module_root *root, mc_bucket *new, int64_t to, const mc_bucket *old,
                       int64_t from, int64_t count, int slot)
{
    if (!new->state[slot] || !old->state[slot]) return;
    mc_home_copy(root, new->state[slot] + to, new->host, old->state[slot] + from, old->host, count);
}

/* Moves a stored tensor into its new place with all it has. */
static void move_stored(mc_module_root *root, mc_stored *stored, place to)
{
    mc_bucket *old = stored->bucket, *new = to.bucket;
    if (old) {
        int64_t from = stored->offset, n = stored->count;
        if (new->data != old->data)
            copy_range(root, new->data, to.offset, old->data, from, n, root->dtype);
        copy_range(root, new->gradient, to.offset, old->gradient, from, n, MC_F32);
        new->summed |= old->summed; /* so are all of them, where they are not zero */
        for (int k = 0; k < MC_STATE_SLOTS; k++) move_state(root, new, to.offset, old, from, n, k);
        /* newly thawed under an optimizer that keeps a master copy: it starts from the weights */
        if (new->state[MC_STATE_MASTER] && !old->state[MC_STATE_MASTER])
            mc_bucket_fill_master(root, new, to.offset, n);
    }
    stored->bucket = new;
    stored->offset = to.offset;
    stored->leaf = NULL;
    new->stored[new->stored_count++] = stored;
}

mc_status mc_bucket_shrink(mc_module_root *root, mc_bucket *b)
{
    mc_device *device = device_of(root);
    int64_t unit = (int64_t)MC_BUCKET_ALIGN * root->ctx->mesh.shard.size;
    int64_t count = 0, at = 0;
    size_t size = mc_dtype_size(b->dtype);
    int kept = 0;
    for (int i = 0; i < b->stored_count; i++)
        if (!b->stored[i]->leaves) count += aligned(b->stored[i]->count, MC_BUCKET_ALIGN), kept++;
    if (kept == b->stored_count) return mc_error_status(root->ctx);
    count = aligned(count ? count : 1, unit);
    void *data = zeroed(root, device, (size_t)count * size, "parameters");
    if (!data) return mc_error_status(root->ctx);
    kept = 0;
    for (int i = 0; i < b->stored_count; i++) {
        mc_stored *stored = b->stored[i];
        stored->leaf = NULL;
        if (stored->leaves) {
            stored->bucket = NULL;
            continue;
        }
        copy_range(root, data, at, b->data, stored->offset, stored->count, b->dtype);
        stored->offset = at;
        at += aligned(stored->count, MC_BUCKET_ALIGN);
        b->stored[kept++] = stored;
    }
    device->free(device, b->data, (size_t)b->count * size);
    b->data = data;
    b->stored_count = kept;
    b->count = count;
    b->share = count * MC_BUCKET_ALIGN / unit;
    b->first = b->share * root->ctx->mesh.shard.rank;
    return MC_OK;
}

/* Puts old buckets into whole ones, which every rank then has: all ranks do this together. */
static bool make_whole(mc_module_root *root)
{
    for (int i = 0; i < root->bucket_count; i++)
        if (mc_bucket_unshard(root, &root->buckets[i])) return false;
    return true;
}

static bool make_shares(mc_module_root *root)
{
    for (int i = 0; i < root->bucket_count; i++)
        if (mc_bucket_shard(root, &root->buckets[i],
                            mc_bucket_level(root, &root->buckets[i], root->buckets[i].host)))
            return false;
    return true;
}

static mc_status lay_out(mc_module_root *root)
{
    mc_bucket *plan = mc_calloc(2 * root->stored_count + 1, sizeof *plan);
    place *places = mc_calloc(root->stored_count + 1, sizeof *places);
    int count = 0;
    bool good = plan && places, again = root->bucket_count;
    if (!good) mc_fail_nomem(root->ctx, "parameter buckets");
    good = good && !mc_module_await(root) && !mc_module_rest(root) && make_whole(root) &&
           plan_buckets(root, plan, &count, places) && plan_arrays(root, places);
    if (good) {
        for (int pass = 0; pass < 2; pass++)
            for (size_t i = 0; i < root->stored_count; i++)
                if (comes_in_pass(root->stored[i], pass))
                    move_stored(root, root->stored[i], places[i]);
        give_up_shared(root->buckets, root->bucket_count, plan, count);
        mc_buckets_free(root, root->buckets, root->bucket_count);
        root->buckets = plan;
        root->bucket_count = count;
        root->placed = false;
        if (again) make_shares(root);
    } else if (plan) {
        give_up_shared(plan, count, root->buckets, root->bucket_count);
        mc_buckets_free(root, plan, count);
    }
    mc_free(places);
    return mc_error_status(root->ctx);
}

mc_status mc_module_layout(mc_module_root *root)
{
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (root->layout_valid) return MC_OK;
    if (mc_is_on_open_tape(root->ctx, root, NULL))
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

mc_status mc_module_need_gradients(mc_module_root *root, int passes)
{
    mc_status status = mc_module_layout(root);
    if (!status) status = mc_module_place(root);
    for (int i = 0; i < root->bucket_count && !status; i++) {
        mc_bucket *b = &root->buckets[i];
        if (!b->trainable || (b->level < 2 ? b->gradient != NULL : b->kept_gradient != NULL))
            continue;
        if (b->level < 2) {
            status = mc_bucket_make_gradient(root, b, passes);
            continue;
        }
        mc_device *home = mc_bucket_home(root, b);
        b->kept_dtype = mc_bucket_kept_dtype(root, b, passes);
        size_t bytes = mc_bucket_kept_bytes(b);
        /* what lies on the host is set before it is read: its pages need not exist until then */
        b->kept_gradient = claimed(root, home, bytes, "gradients");
        status = b->kept_gradient ? mc_bucket_zero_gradient(root, b) : mc_error_status(root->ctx);
    }
    return status;
}

float *mc_bucket_state(mc_module_root *root, mc_bucket *bucket, int slot)
{
    if (mc_failed(root->ctx)) return NULL;
    if (bucket->state[slot]) return bucket->state[slot];
    int64_t count = mc_bucket_held(bucket);
    size_t bytes = (size_t)count * sizeof(float);
    bucket->state[slot] = zeroed(root, mc_bucket_home(root, bucket), bytes, "optimizer state");
    if (bucket->state[slot] && slot == MC_STATE_MASTER)
        mc_bucket_fill_master(root, bucket, mc_bucket_first(bucket), count);
    return mc_failed(root->ctx) ? NULL : bucket->state[slot];
}

void mc_parameter_held(const mc_parameter *p, int64_t *element, int64_t *count)
{
    held h = held_of(p);
    *element = h.element;
    *count = h.count;
}

/* ---- leaves ---------------------------------------------------------------------------------- */

/* A bucket of no block, or of one that is not running, as a tape that uses it sees it. */
typedef struct held_bucket {
    mc_module_root *root;
    int bucket;
    bool trained, gathered;
} held_bucket;

/* Gathers it anew if a step was taken since it was. */
static mc_status refresh(mc_module_root *root, mc_bucket *b)
{
    if (!b->stale) return MC_OK;
    mc_status status = mc_bucket_gather(root, b);
    mc_bucket_release(root, b);
    return status;
}

static void before_backward(void *data)
{
    const held_bucket *use = data;
    mc_bucket *b = &use->root->buckets[use->bucket];
    mc_bucket_await(use->root, b); /* a step may have been taken since forward */
    refresh(use->root, b);
    if (!use->trained) return;
    b->backward++;
    mc_bucket_begin_gradient(use->root, b);
}

static void after_backward(void *data)
{
    const held_bucket *use = data;
    mc_bucket *b = &use->root->buckets[use->bucket];
    if (use->trained && b->backward) b->backward--;
    if (b->level < 2) return; /* those are summed by the step */
    mc_bucket_reduce(use->root, b);
    mc_module_end_reducing(use->root);
}

static void at_end(void *data)
{
    const held_bucket *use = data;
    if (use->gathered) mc_bucket_release(use->root, &use->root->buckets[use->bucket]);
}

static const mc_tape_watch hold = {before_backward, after_backward, at_end};

/* Has a bucket that its block does not gather for as long as the tape lives, with room for its
 * gradients until backward has run. */
static mc_status hold_bucket(mc_tape *tape, mc_bucket *b, bool trained)
{
    mc_module_root *root = b->owner->root;
    if (!root->ctx->mesh.shard.comm && b->level < 2) return MC_OK;
    if (b->holder == mc_tape_id(tape))
        return refresh(root, b) || !trained ? mc_error_status(root->ctx)
                                            : mc_bucket_begin_gradient(root, b);
    held_bucket *use = mc_tape_alloc(tape, sizeof *use);
    if (!use) return mc_error_status(root->ctx);
    *use = (held_bucket){root, (int)(b - root->buckets), trained, false};
    mc_status status = mc_tape_hook(tape, &hold, root, use);
    if (!status) status = mc_bucket_gather(root, b);
    if (status) return status;
    use->gathered = true;
    if (trained && mc_bucket_begin_gradient(root, b)) return mc_error_status(root->ctx);
    b->holder = mc_tape_id(tape);
    if (mc_tape_replaying(tape)) before_backward(use); /* the pass has begun already */
    return mc_error_status(root->ctx);
}

/* Rows of a stored tensor that belong to no parameter. */
static int64_t padding_rows(const mc_stored *stored)
{
    int64_t rows = stored->shape.ndim ? stored->shape.dim[0] : 0;
    for (int i = 0; i < stored->part_count; i++)
        if (stored->shape.ndim) rows -= stored->parts[i]->shape.dim[0];
    return rows;
}

/* Before a tape has its first leaf of a bucket that takes gradients. Where another tape had one
 * since they were zeroed there are going to be sums, which are made in f32: from now on, but where
 * others show what there is, tapes that are open or a recording. */
static mc_status begin_pass(mc_tape *tape, mc_bucket *b)
{
    mc_module_root *root = b->owner->root;
    uint64_t before = b->pass;
    b->pass = mc_tape_id(tape);
    bool alone = !mc_is_on_open_tape(root->ctx, root, tape) && !mc_step_is_recording(root->ctx);
    if (!before || before == b->pass || !alone) return mc_error_status(root->ctx);
    return mc_bucket_widen_gradient(root, b);
}

mc_tensor *mc_stored_tensor(mc_tape *tape, mc_stored *stored)
{
    mc_module_root *root = stored->owner->root;
    if (stored->leaves) return mc_stored_dequantized(tape, stored);
    bool known = stored->leaf && stored->leaf_tape == mc_tape_id(tape) && root->layout_valid;
    bool wants = mc_tape_is_training(tape) && stored->trainable;
    int passes = root->ctx->step ? root->ctx->step->passes : 0;
    if (!known && (wants ? mc_module_need_gradients(root, passes) : mc_module_layout(root)))
        return NULL;
    mc_bucket *bucket = stored->bucket;
    if (mc_bucket_await(root, bucket) || !mc_tape_note_owner(tape, root)) return NULL;
    if (wants && !known && begin_pass(tape, bucket)) return NULL;
    bool whole = bucket->level < 2; /* others get their gradient memory when it is needed */
    if (wants && whole && mc_bucket_begin_gradient(root, bucket)) return NULL;
    if (!bucket->running && hold_bucket(tape, bucket, wants)) return NULL;
    if (known) return stored->leaf;
    mc_leaf_gradient gradient = mc_stored_leaf_gradient(stored, 0);
    stored->leaf = mc_tape_parameter(tape, root->dtype, stored->shape, &bucket->data,
                                     wants ? &gradient : NULL, stored->offset);
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
    if (p->stored->leaves)
        return mc_tape_view(tape, whole, p->shape, (size_t)p->first * mc_dtype_size(whole->dtype));
    mc_bucket *bucket = p->stored->bucket;
    mc_leaf_gradient gradient = mc_stored_leaf_gradient(p->stored, p->first);
    return mc_tape_parameter(tape, whole->dtype, p->shape, &bucket->data,
                             whole->gradient ? &gradient : NULL, p->stored->offset + p->first);
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

/* All of a parameter, where it is there as a whole. */
static mc_matrix values_of(const mc_parameter *p)
{
    mc_dtype dtype = p->module->root->dtype;
    return (mc_matrix){(char *)mc_stored_data(p->stored) + (size_t)p->first * mc_dtype_size(dtype),
                       dtype, mc_shape_count(p->shape)};
}

mc_status mc_parameter_places(mc_parameter *p, mc_parameter_place places[MC_PARAMETER_PLACES],
                              int *count)
{
    mc_bucket *b = p->stored->bucket;
    mc_module_root *root = p->module->root;
    bool is_host = device_of(root)->is_host;
    if (p->stored->leaves)
        return mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                       "parameter \"%s\" is in 8 bits, and is not written to", p->name);
    held h = held_of(p);
    int n = 0;
    mc_status status = mc_module_rest(root);
    if (!status) status = mc_bucket_forget(root, b);
    if (!status && b->level == 3 && h.count)
        places[n++] = (mc_parameter_place){.data = mc_bucket_value_at(b, h.element),
                                           .dtype = b->dtype,
                                           .on_host = is_host,
                                           .first = h.first,
                                           .count = h.count};
    if (!status && b->data)
        places[n++] = (mc_parameter_place){.data = values_of(p).data,
                                           .dtype = root->dtype,
                                           .on_host = is_host,
                                           .count = mc_shape_count(p->shape)};
    if (!status && b->state[MC_STATE_MASTER] && h.count)
        places[n++] =
            (mc_parameter_place){.data = mc_bucket_state_at(b, MC_STATE_MASTER, h.element),
                                 .dtype = MC_F32,
                                 .on_host = is_host || b->host,
                                 .first = h.first,
                                 .count = h.count};
    *count = n;
    return status;
}

static mc_status write_place(mc_parameter *p, const mc_parameter_place *to, const float *values)
{
    mc_module_root *root = p->module->root;
    const float *from = values + to->first;
    if (to->on_host && to->dtype == MC_F32)
        return mc_home_copy(root, to->data, true, from, true, to->count);
    return transfer(root, (mc_matrix){to->data, to->dtype, 0}, to->count, (float *)(uintptr_t)from,
                    true);
}

/* The status of the context's error. */
static mc_status fail_null(const mc_parameter *p)
{
    mc_context *ctx = p->module->ctx;
    mc_fail(ctx, MC_ERR_ARGUMENT, "parameter \"%s\": its values on the host are NULL", p->name);
    return mc_error_status(ctx);
}

mc_status mc_parameter_write(mc_parameter *p, const float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    if (!values) return fail_null(p);
    mc_module_root *root = p->module->root;
    bool was_initialized = p->initialized;
    p->initialized = true;
    mc_status status = mc_module_layout(root);
    if (status) p->initialized = was_initialized;
    mc_parameter_place places[MC_PARAMETER_PLACES];
    int count = 0;
    if (!status) status = mc_parameter_places(p, places, &count);
    for (int i = 0; i < count && !status; i++) status = write_place(p, &places[i], values);
    return status;
}

mc_status mc_parameter_read(mc_parameter *p, float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    if (!values) return fail_null(p);
    mc_module_root *root = p->module->root;
    mc_status status = mc_module_layout(root);
    if (status) return status;
    if (p->stored->leaves) return mc_stored_read_eight(p, values);
    mc_bucket *bucket = p->stored->bucket;
    status = mc_bucket_gather(root, bucket);
    if (!status) status = transfer(root, values_of(p), mc_shape_count(p->shape), values, false);
    mc_bucket_release(root, bucket);
    return status;
}

mc_status mc_parameter_read_gradient(mc_parameter *p, float *values)
{
    if (!p) return MC_ERR_ARGUMENT;
    if (!values) return fail_null(p);
    mc_module_root *root = p->module->root;
    mc_bucket *bucket = p->stored->bucket;
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    int64_t count = mc_shape_count(p->shape);
    if (bucket && mc_module_sum_gradients(root)) return mc_error_status(root->ctx);
    if (bucket && (bucket->kept_gradient || (bucket->level == 1 && bucket->gradient)))
        return mc_bucket_read_gradient(root, p, values);
    if (!bucket || !bucket->gradient) {
        memset(values, 0, (size_t)count * sizeof *values);
        return MC_OK;
    }
    mc_matrix from = mc_bucket_gradient(bucket, p->stored->offset + p->first);
    return transfer(root, from, count, values, false);
}

void mc_module_zero_grad(mc_module *module)
{
    if (!module || mc_failed(module->ctx)) return;
    mc_module_root *root = module->root;
    if (mc_module_end_reducing(root)) return;
    for (int i = 0; i < root->bucket_count; i++) mc_bucket_zero_gradient(root, &root->buckets[i]);
}
