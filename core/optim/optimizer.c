/* Functions shared by all optimizers: parameters, groups, state and the walks over them. */
#include <fnmatch.h>
#include <math.h>
#include <string.h>
#include "core/optim/adam_offload_internal.h"
#include "core/optim/optimizer_internal.h"

bool mc_option_check(mc_context *ctx, const char *who, const char *option, float value, float limit)
{
    if (value >= 0 && value < limit) return true;
    if (isinf(limit))
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %s is %g, expected 0 or more", who, option, value);
    else
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %s is %g, expected from 0 to below %g", who, option,
                value, limit);
    return false;
}

/* Whether a tree still exists: its owner or the context may have freed it since its parameters were
 * added. It exists if the context owns it. (If another tree has the same address, none of its
 * parameters names this optimizer, so it is skipped.) */
static bool live_root(const mc_optimizer *o, const mc_module_root *root)
{
    const mc_owned *head = &o->ctx->owned;
    for (const mc_owned *link = head->next; link != head; link = link->next)
        if (link->object == root) return true;
    return false;
}

static void drop_dead_roots(mc_optimizer *o)
{
    size_t kept = 0;
    for (size_t i = 0; i < o->root_count; i++)
        if (live_root(o, o->roots[i])) o->roots[kept++] = o->roots[i];
    o->root_count = kept;
}

size_t mc_optimizer_roots(mc_optimizer *o)
{
    drop_dead_roots(o);
    return o->root_count;
}

bool mc_optimizer_has_root(const mc_optimizer *o, const mc_module_root *root)
{
    for (size_t i = 0; i < o->root_count; i++)
        if (o->roots[i] == root) return true;
    return false;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

static void optimizer_release(void *object)
{
    mc_optimizer *o = object;
    mc_device *device = o->ctx->device;
    drop_dead_roots(o);
    mc_offload_finish(mc_offload_of(o->ctx->home)); /* it may be running a step of this optimizer */
    for (size_t i = 0; i < o->root_count; i++) {
        o->roots[i]->placed = false;
        for (size_t j = 0; j < o->roots[i]->parameter_count; j++) {
            mc_parameter *p = o->roots[i]->parameters[j];
            if (p->optimizer == o) p->optimizer = NULL;
        }
    }
    if (o->manager) mc_optim_manager_forget_optimizer(o->manager, o);
    device->free(device, o->memory, sizeof *o->memory);
    device->host_free(device, o->host_update, sizeof *o->host_update);
    mc_free(o->roots);
    mc_free(o->groups);
    mc_free(o);
}

void mc_optimizer_free(mc_optimizer *o)
{
    if (!o) return;
    mc_optim_manager_settle(o->manager);
    mc_disown(&o->owned);
    optimizer_release(o);
}

/* Appends a group; false if memory is out. */
static bool add_group(mc_optimizer *o, mc_group group)
{
    if (!mc_grow(&o->groups, &o->group_capacity, o->group_count, sizeof *o->groups)) {
        mc_fail_nomem(o->ctx, "a parameter group");
        return false;
    }
    o->groups[o->group_count++] = group;
    return true;
}

mc_optimizer *mc_optimizer_new(mc_context *ctx, const mc_optimizer_kind *kind,
                               const mc_optimizer_options *options, const void *settings,
                               size_t settings_size)
{
    if (mc_failed(ctx) || (settings_size && !mc_given(ctx, settings))) return NULL;
    if (!kind || !kind->step || kind->state_count < 0 || kind->state_count > 2) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "mc_optimizer_new: a kind needs a step function and 0 to 2 slots of state");
        return NULL;
    }
    mc_optimizer_options none = {0};
    if (!options) options = &none;
    float lr = mc_option(options->lr, 1e-3f);
    if (!mc_option_check(ctx, kind->name, "lr", lr, INFINITY) ||
        !mc_option_check(ctx, kind->name, "weight_decay", options->weight_decay, INFINITY))
        return NULL;
    mc_optimizer *o =
        mc_new_owned(ctx, sizeof *o + settings_size, "an optimizer", optimizer_release);
    if (!o) return NULL;
    o->ctx = ctx;
    o->kind = kind;
    o->lr = lr;
    o->weight_decay = options->weight_decay;
    o->no_decay_bias_norm = options->no_decay_bias_norm;
    if (settings_size) memcpy(o->settings, settings, settings_size);
    if (add_group(o, (mc_group){.weight_decay = -1, .lr_factor = 1})) return o;
    mc_optimizer_free(o);
    return NULL;
}

/* ---- adding parameters ----------------------------------------------------------------------- */

static bool matches(const mc_parameter *p, const char *pattern)
{
    return !pattern || fnmatch(pattern, p->name, 0) == 0;
}

static bool has_trainable(mc_module *module)
{
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(module, &it));)
        if (p->stored->trainable) return true;
    return false;
}

/* Whether a quantized parameter, which has no state, is skipped because others are trainable. */
static bool is_left_out(const mc_parameter *p, const char *pattern, bool others)
{
    return p->stored->leaves && !pattern && others;
}

/* Counts the parameters that match, and checks that none belongs to another optimizer. */
static mc_status check_parameters(mc_optimizer *o, mc_module *module, const char *pattern,
                                  int64_t *count)
{
    bool others = has_trainable(module);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(module, &it));) {
        if (!matches(p, pattern) || is_left_out(p, pattern, others)) continue;
        if (p->stored->leaves)
            return mc_fail(o->ctx, MC_ERR_UNSUPPORTED,
                           "optimizer %s: parameter \"%s\" is in 8 bits, and is not trained",
                           o->kind->name, p->name);
        if (p->optimizer && p->optimizer != o) {
            const mc_optimizer *other = p->optimizer;
            return mc_fail(o->ctx, MC_ERR_STATE,
                           "parameter \"%s\" cannot be added to optimizer %s: another one (%s) has "
                           "it already",
                           p->name, o->kind->name, other->kind->name);
        }
        ++*count;
    }
    return MC_OK;
}

static mc_status add_root(mc_optimizer *o, mc_module_root *root)
{
    drop_dead_roots(o);
    for (size_t i = 0; i < o->root_count; i++)
        if (o->roots[i] == root) return MC_OK;
    if (!mc_grow(&o->roots, &o->root_capacity, o->root_count, sizeof(mc_module_root *)))
        return mc_fail_nomem(o->ctx, "an optimizer's list of modules");
    o->roots[o->root_count++] = root;
    return MC_OK;
}

/* Zeros a slot of this rank's shard of a parameter. */
static void zero_state(mc_device *device, const mc_parameter *p, int slot, int64_t element,
                       int64_t count)
{
    const mc_bucket *b = p->stored->bucket;
    mc_state_form form = p->stored->span->form;
    if (form == MC_STATE_FIRST && slot == MC_STATE_V) return;
    if (form != MC_STATE_8BIT) {
        device->kernels->zero(device, mc_bucket_state_at(b, slot, element),
                              (size_t)count * sizeof(float));
        return;
    }
    mc_state8 state = mc_bucket_state8_at(b, slot, element);
    int64_t blocks = (count + MC_STATE_BLOCK - 1) / MC_STATE_BLOCK;
    device->kernels->zero(device, state.code, (size_t)count);
    device->kernels->zero(device, state.scale, (size_t)blocks * sizeof(float));
}

/* Takes over a parameter. Moments of an earlier optimizer are dropped. */
static void take(mc_optimizer *o, mc_parameter *p)
{
    p->optimizer = o;
    p->optimizer_group = 0;
    p->optimizer_steps = 0;
    p->optimizer_stepped = false;
    p->offload = o->on_host;
    p->gpu_share = o->gpu_share;
    p->eight_bit = o->eight_bit;
    p->module->root->place = mc_optimizer_place;
    p->module->root->placed = false;
    mc_bucket *bucket = p->stored->bucket;
    if (!bucket) return;
    mc_zero_rest(&p->module->root->zero);
    mc_device *device = mc_bucket_home(&p->module->root->zero, bucket);
    int64_t element, count;
    mc_parameter_held(p, &element, &count);
    for (int slot = MC_STATE_M; slot <= MC_STATE_V && count; slot++)
        if (bucket->state[slot]) zero_state(device, p, slot, element, count);
}

static bool has_blocks_in(const mc_module_root *root)
{
    for (size_t i = 0; i < root->stored_count; i++)
        if (root->stored[i]->owner != root->module) return true;
    return false;
}

/* Adds the matching parameters to `group`; with group 0, parameters already here keep theirs, and
 * the rule by which they were stepped, whatever was declared since. */
static mc_status add_parameters(mc_optimizer *o, mc_module *module, const char *pattern, int group)
{
    mc_status status = add_root(o, module->root);
    if (status) return status;
    bool has_blocks = has_blocks_in(module->root);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(module, &it));) {
        if (!matches(p, pattern) || p->stored->leaves) continue;
        if (!p->optimizer) take(o, p);
        if (group) p->optimizer_group = group;
        if (group || !p->optimizer_steps)
            p->optimizer_matrix =
                mc_muon_takes(o, p, o->groups[p->optimizer_group].muon, has_blocks);
    }
    return MC_OK;
}

/* Checks that a group's rule of Muon fits its parameters. */
static mc_status check_rule(mc_optimizer *o, mc_module *module, const char *pattern,
                            mc_muon_rule rule)
{
    if (rule != MC_MUON_DEFAULT && rule != MC_MUON_MATRIX && rule != MC_MUON_ADAM)
        return mc_fail(o->ctx, MC_ERR_ARGUMENT,
                       "parameter group: muon is %d, expected a mc_muon_rule", (int)rule);
    bool has_blocks = has_blocks_in(module->root);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; o->muon && (p = mc_module_next_parameter(module, &it));) {
        if (!matches(p, pattern)) continue;
        if (rule == MC_MUON_MATRIX && p->shape.ndim != 2)
            return mc_fail(o->ctx, MC_ERR_ARGUMENT,
                           "optimizer %s: parameter \"%s\" of shape %s is to be stepped as a "
                           "matrix, expected two dimensions",
                           o->kind->name, p->name, MC_SHAPE_TEXT(p->shape));
        if (p->optimizer == o && p->optimizer_steps &&
            mc_muon_takes(o, p, rule, has_blocks) != p->optimizer_matrix)
            return mc_fail(
                o->ctx, MC_ERR_STATE, "optimizer %s: parameter \"%s\" has been stepped %s already",
                o->kind->name, p->name, p->optimizer_matrix ? "as a matrix" : "by Adam's rule");
    }
    return MC_OK;
}

/* MC_OK if an optimizer and a module can be used together, else the error. Waits for launched
 * steps: what may change depends on how many steps a parameter has had. */
static mc_status check_add(mc_optimizer *o, mc_module *module)
{
    if (!o)
        return module ? mc_fail(module->ctx, MC_ERR_ARGUMENT, "the optimizer is NULL")
                      : MC_ERR_ARGUMENT;
    if (mc_failed(o->ctx)) return mc_error_status(o->ctx);
    if (!module)
        return mc_fail(o->ctx, MC_ERR_ARGUMENT, "optimizer %s: the module to add is NULL",
                       o->kind->name);
    if (module->ctx != o->ctx)
        return mc_fail(o->ctx, MC_ERR_ARGUMENT, "optimizer %s: %s is of another context",
                       o->kind->name, MC_NAMED("module", module->name));
    return mc_optim_manager_settle(o->manager);
}

mc_status mc_optimizer_add(mc_optimizer *o, mc_module *module)
{
    int64_t count = 0;
    mc_status status = check_add(o, module);
    if (!status) status = check_parameters(o, module, NULL, &count);
    return status ? status : add_parameters(o, module, NULL, 0);
}

mc_status mc_optimizer_add_group(mc_optimizer *o, mc_module *module, const char *pattern,
                                 const mc_param_group *group)
{
    mc_status status = check_add(o, module);
    if (status) return status;
    mc_param_group none = {0};
    if (!group) group = &none;
    mc_group settings = {mc_option(group->weight_decay, -1), mc_option(group->lr_factor, 1),
                         group->muon};
    if ((group->weight_decay != 0 && !mc_option_check(o->ctx, "parameter group", "weight_decay",
                                                      group->weight_decay, INFINITY)) ||
        !mc_option_check(o->ctx, "parameter group", "lr_factor", settings.lr_factor, INFINITY))
        return MC_ERR_ARGUMENT;
    int64_t count = 0;
    if ((status = check_parameters(o, module, pattern, &count)) ||
        (status = check_rule(o, module, pattern, settings.muon)))
        return status;
    if (!count)
        return mc_fail(o->ctx, MC_ERR_NOT_FOUND, "optimizer %s: no parameter of %s matches \"%s\"",
                       o->kind->name, MC_NAMED("module", module->name), pattern ? pattern : "*");
    if (!add_group(o, settings)) return MC_ERR_NOMEM;
    return add_parameters(o, module, pattern, (int)o->group_count - 1);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Lays out the trees that still exist. */
static mc_status lay_out(mc_optimizer *o)
{
    mc_status status = MC_OK;
    drop_dead_roots(o);
    for (size_t i = 0; i < o->root_count && !status; i++) {
        status = mc_module_place(o->roots[i]);
    }
    return status;
}

/* The optimizer's next parameter, from number *next of tree *root on (both 0 at first); NULL after
 * the last. The trees must exist. */
static mc_parameter *next_parameter(const mc_optimizer *o, size_t *root, size_t *next)
{
    for (; *root < o->root_count; ++*root, *next = 0)
        while (*next < o->roots[*root]->parameter_count) {
            mc_parameter *p = o->roots[*root]->parameters[(*next)++];
            if (p->optimizer == o && p->stored) return p;
        }
    return NULL;
}

mc_status mc_optimizer_each_parameter(mc_optimizer *o, mc_parameter_fn fn, void *user)
{
    size_t root = 0, next = 0;
    mc_status status = lay_out(o);
    for (mc_parameter *p; !status && (p = next_parameter(o, &root, &next));)
        status = fn(user, p->module->root, p);
    return status;
}

/* The run that consists of one parameter. */
static mc_run parameter_run(const mc_optimizer *o, mc_module_root *root, mc_parameter *p)
{
    mc_group group = o->groups[p->optimizer_group];
    float decay = group.weight_decay;
    if (decay < 0) decay = o->no_decay_bias_norm && p->shape.ndim <= 1 ? 0 : o->weight_decay;
    return (mc_run){.root = root,
                    .bucket = p->stored->bucket,
                    .first = p->stored->span->offset + p->first,
                    .count = mc_shape_count(p->shape),
                    .weight_decay = decay,
                    .lr_factor = group.lr_factor,
                    .steps = p->optimizer_steps,
                    .form = p->stored->span->form,
                    .matrix = p->optimizer_matrix ? p : NULL};
}

static bool continues(const mc_run *run, const mc_run *next)
{
    return run->first + run->count == next->first && run->weight_decay == next->weight_decay &&
           run->lr_factor == next->lr_factor && run->steps == next->steps &&
           run->form == next->form && !run->matrix && !next->matrix;
}

static mc_status each_run_of_bucket(mc_optimizer *o, mc_module_root *root, mc_bucket *bucket,
                                    mc_run_fn fn, void *user)
{
    mc_run run = {.count = 0};
    for (int i = 0; i < bucket->span_count; i++) {
        mc_stored *stored = mc_stored_of(&bucket->spans[i]);
        for (int j = 0; j < stored->part_count; j++) {
            if (stored->parts[j]->optimizer != o) continue;
            mc_run next = parameter_run(o, root, stored->parts[j]);
            if (run.count && continues(&run, &next)) {
                run.count += next.count;
                continue;
            }
            mc_status status = run.count ? fn(user, &run) : MC_OK;
            if (status) return status;
            run = next;
        }
    }
    return run.count ? fn(user, &run) : MC_OK;
}

typedef mc_status (*bucket_fn)(mc_optimizer *o, mc_module_root *root, mc_bucket *b, void *user);

/* Calls fn for every trainable bucket of the optimizer's trees, which must be laid out. */
static mc_status each_bucket(mc_optimizer *o, bucket_fn fn, void *user)
{
    mc_status status = lay_out(o);
    for (size_t i = 0; i < o->root_count && !status; i++) {
        mc_module_root *root = o->roots[i];
        for (int j = 0; !status && j < root->zero.bucket_count; j++)
            if (root->zero.buckets[j].trainable) status = fn(o, root, &root->zero.buckets[j], user);
    }
    return status;
}

typedef struct run_call {
    mc_run_fn fn;
    void *user;
} run_call;

static mc_status call_runs(mc_optimizer *o, mc_module_root *root, mc_bucket *b, void *user)
{
    const run_call *call = user;
    return each_run_of_bucket(o, root, b, call->fn, call->user);
}

mc_status mc_optimizer_each_run(mc_optimizer *o, mc_run_fn fn, void *user)
{
    return each_bucket(o, call_runs, &(run_call){fn, user});
}

/* ---- stepping -------------------------------------------------------------------------------- */

bool mc_run_within(mc_run *run, int64_t first, int64_t count)
{
    int64_t end = run->first + run->count, last = first + count;
    if (run->first < first) run->first = first;
    run->count = (end < last ? end : last) - run->first;
    return run->count > 0;
}

/* Whether an optimizer has all parameters of a bucket. */
static bool has_all(const mc_optimizer *o, const mc_bucket *b)
{
    for (int i = 0; i < b->span_count; i++) {
        const mc_stored *stored = mc_stored_of(&b->spans[i]);
        for (int j = 0; j < stored->part_count; j++)
            if (stored->parts[j]->optimizer != o) return false;
    }
    return true;
}

/* Zeros a part of a bucket. The elements of other optimizers stay, and may be summed over ranks
 * already. Zeros all of a gradient that backward adds to, but only this rank's shard of a sum. */
static mc_status zero_run(void *user, const mc_run *run)
{
    mc_optimizer *o = user;
    mc_device *device = o->ctx->device;
    mc_zero *z = &run->root->zero;
    mc_bucket *b = run->bucket;
    mc_run held = *run;
    mc_status status = mc_bucket_reopen(z, b);
    if (!status && b->gradient.data) /* if sharded, a forward pass left it */
        status = mc_bucket_blank(z, b, run->first, run->count);
    if (status || !mc_bucket_shares_gradient(b)) return status;
    bool any = mc_run_within(&held, b->first, b->share);
    if (b->host) return mc_host_zero(z, b, held.first, any ? held.count : 0);
    if (!b->sum.data || !any) return MC_OK;
    mc_matrix sum = mc_bucket_gradient(b, held.first);
    return device->kernels->zero(device, sum.data, (size_t)held.count * mc_dtype_size(sum.dtype));
}

static mc_status zero_bucket(mc_optimizer *o, mc_module_root *root, mc_bucket *b, void *user)
{
    (void)user;
    return has_all(o, b) ? mc_bucket_zero_gradient(&root->zero, b)
                         : each_run_of_bucket(o, root, b, zero_run, o);
}

mc_status mc_optimizer_zero_grad(mc_optimizer *o)
{
    if (!o) return MC_ERR_ARGUMENT;
    mc_status status = mc_error_status(o->ctx);
    drop_dead_roots(o);
    for (size_t i = 0; !status && i < o->root_count; i++)
        status = mc_zero_end_reducing(&o->roots[i]->zero);
    return status ? status : each_bucket(o, zero_bucket, NULL);
}

/* Backward passes per step; 0: unknown. */
static int passes_of(const mc_optimizer *o) { return o->manager ? o->manager->open.passes : 0; }

static mc_status need_state(void *user, const mc_run *run)
{
    const mc_optimizer *o = user;
    if (mc_sum_need(&run->root->zero, run->bucket, passes_of(o))) return mc_error_status(o->ctx);
    int slots = run->matrix ? 1 : o->kind->state_count;
    for (int slot = 0; slot < slots; slot++)
        if (!mc_bucket_state(&run->root->zero, run->bucket, slot)) return mc_error_status(o->ctx);
    bool master = run->bucket->dtype != MC_F32 || run->bucket->host;
    if (master && !mc_bucket_state(&run->root->zero, run->bucket, MC_STATE_MASTER))
        return mc_error_status(o->ctx);
    return MC_OK;
}

mc_status mc_optimizer_prepare(mc_optimizer *o)
{
    int passes = passes_of(o);
    drop_dead_roots(o);
    mc_device *device = o->ctx->device;
    if (!o->memory && !(o->memory = device->alloc(device, sizeof *o->memory)))
        return mc_fail_nomem(o->ctx, "an optimizer");
    if (o->on_host && !o->host_update &&
        !(o->host_update = device->host_alloc(device, sizeof *o->host_update)))
        return mc_fail_nomem(o->ctx, "an optimizer");
    for (size_t i = 0; i < o->root_count; i++) {
        mc_status status = mc_module_need_gradients(o->roots[i], passes);
        if (status) return status;
    }
    return mc_optimizer_each_run(o, need_state, o);
}

static mc_status update_on_host(const mc_optimizer *o, const mc_run *whole)
{
    mc_run run = *whole;
    mc_bucket *b = run.bucket;
    b->updating = true;
    if (!mc_run_within(&run, b->first, b->share)) return MC_OK;
    mc_adam_step step = *o->on_host;
    step.update = o->host_update;
    step.lr_factor = run.lr_factor;
    step.weight_decay = run.weight_decay;
    step.step_offset = run.steps - o->steps;
    return mc_host_update(&run.root->zero, b, run.first, run.count, &step);
}

/* Copies gradients to f32, for kinds that read only f32. */
static mc_status as_f32(mc_context *ctx, mc_matrix *gradient, int64_t count)
{
    mc_device *device = ctx->device;
    size_t bytes = (size_t)count * sizeof(float);
    mc_matrix wide = {device->alloc(device, bytes), MC_F32, gradient->stride};
    if (!wide.data) return mc_fail_memory(ctx, device, bytes, MC_HELP_MODEL, "gradients as f32");
    mc_status status = device->kernels->scale(device, count, *gradient, 1, wide, false);
    *gradient = wide;
    if (!status) return MC_OK;
    device->free(device, wide.data, bytes);
    return mc_fail(ctx, status, "gradients as f32: %s", device->failure);
}

/* What a kind's step reads and writes of a run that this rank stores, but for the state. */
static mc_optimizer_range range_of(const mc_optimizer *o, const mc_run *run, mc_matrix gradient)
{
    const mc_bucket *b = run->bucket;
    bool rounded = gradient.dtype != MC_F32, half = b->dtype != MC_F32;
    return (mc_optimizer_range){
        .count = run->count,
        .dtype = b->dtype,
        .parameter = mc_bucket_value_at(b, run->first),
        .master = half ? mc_bucket_state_at(b, MC_STATE_MASTER, run->first) : NULL,
        .gradient = rounded ? NULL : gradient.data,
        .rounded = rounded ? gradient.data : NULL,
        .update = &o->memory->update,
        .lr_factor = run->lr_factor,
        .weight_decay = run->weight_decay,
        .step_offset = run->steps - o->steps,
    };
}

static mc_status step_run(const mc_optimizer *o, const mc_run *run, mc_matrix gradient)
{
    const mc_bucket *b = run->bucket;
    mc_optimizer_range range = range_of(o, run, gradient);
    if (run->form == MC_STATE_8BIT)
        return mc_adam_range8(o->ctx, o->eight_bit, &range,
                              mc_bucket_state8_at(b, MC_STATE_M, run->first),
                              mc_bucket_state8_at(b, MC_STATE_V, run->first));
    for (int slot = 0; slot < o->kind->state_count; slot++)
        range.state[slot] = mc_bucket_state_at(b, slot, run->first);
    return o->kind->step(o->ctx, o->settings, &range);
}

static mc_status update_run(void *user, const mc_run *whole)
{
    const mc_optimizer *o = user;
    mc_device *device = o->ctx->device;
    const mc_bucket *b = whole->bucket;
    mc_run run = *whole;
    if (run.matrix) return MC_OK; /* mc_muon_launch */
    if (b->host) return update_on_host(o, whole);
    if (!mc_run_within(&run, mc_bucket_first(b), mc_bucket_held(b))) return MC_OK;
    mc_matrix gradient = mc_bucket_gradient(b, run.first);
    bool widens = gradient.dtype != MC_F32 && !o->kind->reads_rounded;
    if (widens && as_f32(o->ctx, &gradient, run.count)) return mc_error_status(o->ctx);
    mc_status status = step_run(o, &run, gradient);
    const char *why = device->failure;
    if (widens) device->free(device, gradient.data, (size_t)run.count * sizeof(float));
    return status ? mc_fail(o->ctx, status, "optimizer %s failed at step %lld%s%s", o->kind->name,
                            (long long)run.steps + 1, *why ? ": " : "", why)
                  : MC_OK;
}

mc_status mc_optimizer_reduce(mc_optimizer *o)
{
    mc_status status = MC_OK;
    drop_dead_roots(o);
    for (size_t i = 0; !status && i < o->root_count; i++) status = mc_zero_sum(&o->roots[i]->zero);
    return status;
}

static mc_status measure_run_on_host(void *user, const mc_run *run)
{
    const double *power = user;
    return run->bucket->host ? mc_host_measure_sum(&run->root->zero, run->bucket, *power) : MC_OK;
}

mc_status mc_optimizer_measure_host(mc_optimizer *o, double power)
{
    if (!o->on_host || !o->ctx->home) return mc_error_status(o->ctx);
    return mc_optimizer_each_run(o, measure_run_on_host, &power);
}

/* Publishes updated values. Those of the host are published when they are awaited. */
static mc_status publish(mc_optimizer *o, mc_module_root *root, mc_bucket *b, void *user)
{
    (void)o, (void)user;
    return b->host ? mc_error_status(root->ctx) : mc_bucket_publish(&root->zero, b);
}

static mc_status outdate(mc_optimizer *o, mc_module_root *root, mc_bucket *b, void *user)
{
    (void)o, (void)user;
    return mc_bucket_outdate(&root->zero, b);
}

mc_status mc_optimizer_launch(mc_optimizer *o)
{
    mc_offload *offload = o->on_host ? mc_offload_of(o->ctx->home) : NULL;
    mc_status status = each_bucket(o, outdate, NULL);
    for (size_t i = 0; i < o->root_count; i++) o->roots[i]->values_epoch++;
    if (!status) status = mc_offload_wait(offload, o->last_job); /* the job reads the copy */
    if (!status && offload && !mc_offload_copy_update(offload, &o->memory->update, o->host_update))
        status = mc_error_status(o->ctx);
    if (!status) status = mc_optimizer_each_run(o, update_run, o);
    if (offload) o->last_job = mc_offload_given(offload);
    if (!status && o->muon) status = mc_muon_launch(o);
    return status ? status : each_bucket(o, publish, NULL);
}

bool mc_optimizer_changes(mc_optimizer *o)
{
    size_t root = 0, next = 0;
    bool changes = false;
    drop_dead_roots(o);
    for (mc_parameter *p; !changes && (p = next_parameter(o, &root, &next));)
        changes = p->optimizer_stepped != p->stored->trainable;
    return changes;
}

void mc_optimizer_begin_step(mc_optimizer *o)
{
    size_t root = 0, next = 0;
    drop_dead_roots(o);
    for (mc_parameter *p; (p = next_parameter(o, &root, &next));)
        p->optimizer_stepped = p->stored->trainable;
}

void mc_optimizer_count_step(mc_optimizer *o, double lr)
{
    size_t root = 0, next = 0;
    o->lr = lr;
    o->steps++;
    drop_dead_roots(o);
    for (mc_parameter *p; (p = next_parameter(o, &root, &next));)
        if (p->optimizer_stepped) p->optimizer_steps++;
}

mc_status mc_optimizer_step(mc_optimizer *o)
{
    if (!o) return MC_ERR_ARGUMENT;
    mc_status status = mc_error_status(o->ctx);
    if (!status) status = mc_optim_manager_settle(o->manager);
    if (!status) status = mc_optimizer_prepare(o);
    if (!status)
        status = mc_offload_wait(mc_offload_of(o->ctx->home), o->last_job); /* it reads `update` */
    if (status) return status;
    mc_optimizer_begin_step(o);
    mc_update update = {.lr = o->lr, .step = o->steps + 1, .gradient_scale = 1};
    mc_device *device = o->ctx->device;
    device->copy_in(device, &o->memory->update, &update, sizeof update);
    status = mc_optimizer_reduce(o);
    if (!status) status = mc_optimizer_launch(o);
    if (!status) mc_optimizer_count_step(o, o->lr);
    return status;
}

double mc_optimizer_lr(const mc_optimizer *o)
{
    if (!o || mc_failed(o->ctx) || mc_optim_manager_settle(o->manager)) return NAN;
    return o->lr;
}

mc_status mc_optimizer_set_lr(mc_optimizer *o, double lr)
{
    if (!o) return MC_ERR_ARGUMENT;
    if (mc_failed(o->ctx)) return mc_error_status(o->ctx);
    if (!(lr >= 0) || isinf(lr))
        return mc_fail(o->ctx, MC_ERR_ARGUMENT,
                       "optimizer %s: learning rate %g, expected 0 or more", o->kind->name, lr);
    o->lr = lr;
    return MC_OK;
}

int64_t mc_optimizer_step_count(const mc_optimizer *o)
{
    if (!o) return 0;
    mc_optim_manager_settle(o->manager);
    return o->steps;
}
