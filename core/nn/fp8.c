#include "core/nn/fp8_internal.h"

#include "core/autograd/step_internal.h"
#include "core/dist/comm.h"
#include "core/dist/ranks_internal.h"

_Static_assert(sizeof(mc_fp8_scale) % 16 == 0, "every scale of an array is aligned");

/* ---- setting --------------------------------------------------------------------------------- */

static mc_device *device_of(const mc_module_root *root) { return root->ctx->device; }

static size_t slots(const mc_fp8_state *f) { return (size_t)f->count * MC_FP8_ROLES; }

static void free_bytes(mc_stored *s)
{
    mc_device *device = s->owner->ctx->device;
    if (s->fp8_data) device->free(device, s->fp8_data, (size_t)s->count);
    if (s->fp8_transposed) device->free(device, s->fp8_transposed, (size_t)s->count);
    s->fp8_data = s->fp8_transposed = NULL;
    s->fp8_epoch = s->fp8_seen = 0;
}

void mc_fp8_free(mc_module_root *root)
{
    mc_fp8_state *f = root->fp8;
    mc_device *device = device_of(root);
    if (!f) return;
    for (int i = 0; i < f->count; i++) free_bytes(f->weights[i]);
    for (size_t i = 0; i < root->stored_count; i++)
        root->stored[i]->fp8 = root->stored[i]->fp8_reader = 0;
    size_t bytes = slots(f) * sizeof *f->seen;
    device->free(device, f->scales, slots(f) * sizeof *f->scales);
    device->free(device, f->seen, bytes);
    if (f->inputs) device->free(device, f->inputs, (size_t)f->count * sizeof *f->inputs);
    if (f->parts) device->free(device, f->parts, bytes * (size_t)root->ctx->mesh.shard.size);
    mc_free(f->weights);
    mc_free(f);
    root->fp8 = NULL;
}

/* A linear weight of a block. */
static bool is_linear(const mc_stored *s)
{
    const mc_module *parent = s->owner->parent;
    return parent && parent->holds_blocks && s->product_scale != 0 && s->shape.ndim == 2;
}

static bool is_suitable(const mc_stored *s)
{
    return is_linear(s) && s->shape.dim[0] % MC_FP8_UNIT == 0 && s->shape.dim[1] % MC_FP8_UNIT == 0;
}

bool mc_fp8_may_take_part(const mc_stored *s) { return is_suitable(s) && !s->quantized.data; }

/* Numbers the layers that the recipe selects. */
static void find_layers(mc_module_root *root, mc_fp8_state *f)
{
    mc_fp8_kind kinds[MC_FP8_KINDS];
    uint64_t only = f->recipe.fp8 == MC_FP8_AUTO ? f->recipe.fp8_kinds : 0;
    int count = only ? mc_fp8_list_kinds(root, kinds) : 0;
    for (size_t i = 0; i < root->stored_count; i++) {
        mc_stored *s = root->stored[i];
        if (is_suitable(s) && s->quantized.data) {
            s->fp8 = MC_FP8_BY_ROWS;
            f->by_rows++;
            continue;
        }
        int kind = only ? mc_fp8_kind_of(kinds, count, s) : 0;
        if (!mc_fp8_may_take_part(s) || (only && (kind < 0 || !(only >> kind & 1)))) continue;
        f->weights[f->count++] = s;
        s->fp8 = f->count;
    }
}

/* No layer takes part: an error that says why, unless the recipe takes what becomes faster. */
static void check_none(const mc_module_root *root, const mc_recipe *recipe)
{
    mc_fp8_kind kinds[MC_FP8_KINDS];
    mc_named_text model = mc_named_print("model", root->module->name);
    const mc_stored *first = NULL;
    int count = mc_fp8_list_kinds(root, kinds);
    for (size_t i = 0; i < root->stored_count && !first; i++)
        if (is_linear(root->stored[i])) first = root->stored[i];
    if (count)
        mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                "fp8: a recipe's fp8_kinds is 0x%llx, which selects none of the %d kinds of layers "
                "of %s, expected some of the lowest %d bits",
                (unsigned long long)recipe->fp8_kinds, count, model.text, count);
    else if (recipe->fp8 == MC_FP8_AUTO)
        return;
    else if (!first)
        mc_fail(root->ctx, MC_ERR_UNSUPPORTED, "fp8: %s has no linear layer in a block",
                model.text);
    else
        mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                "fp8: %s has no linear layer in a block with sizes that are multiples of %d: the "
                "first, \"%s\"%s, is %s",
                model.text, MC_FP8_UNIT, first->parts[0]->name,
                first->part_count > 1 ? " and what is stored with it" : "",
                MC_SHAPE_TEXT(first->shape));
}

static bool is_within(mc_context *ctx, const char *field, int value, int least, int most)
{
    if (value >= least && value <= most) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT, "a recipe's %s is %d, expected %d to %d", field, value,
                    least, most);
}

bool mc_fp8_allows(mc_context *ctx, const mc_recipe *r, mc_weight_format format, const char *what)
{
    if (r->fp8 && r->scaling == MC_FP8_STATIC)
        return !mc_fail(ctx, MC_ERR_UNSUPPORTED,
                        "fp8: %s in 8 bits with a recipe of fixed scales (MC_FP8_STATIC), expected "
                        "MC_FP8_DELAYED or MC_FP8_CURRENT",
                        what);
    if (r->fp8 && format != MC_WEIGHTS_FP8)
        return !mc_fail(ctx, MC_ERR_UNSUPPORTED,
                        "fp8: %s in int8 with a recipe, expected MC_WEIGHTS_FP8 or the model's "
                        "dtype",
                        what);
    return true;
}

static bool check_quantized(const mc_module_root *root, const mc_recipe *r)
{
    bool good = true;
    for (size_t i = 0; i < root->stored_count && good; i++) {
        const mc_stored *s = root->stored[i];
        if (s->quantized.data)
            good = mc_fp8_allows(root->ctx, r, s->quantized.format,
                                 MC_NAMED("weight", s->parts[0]->name));
    }
    return good;
}

static bool check_recipe(mc_module_root *root, const mc_recipe *r)
{
    mc_context *ctx = root->ctx;
    if (!is_within(ctx, "fp8", (int)r->fp8, MC_FP8_NONE, MC_FP8_ALL) ||
        !is_within(ctx, "scaling", (int)r->scaling, MC_FP8_DELAYED, MC_FP8_STATIC) ||
        !is_within(ctx, "fp8_margin", r->fp8_margin, -32, 32) || !check_quantized(root, r))
        return false;
    if (root->dtype != MC_F16) return true;
    return !mc_fail(ctx, MC_ERR_DTYPE, "fp8: the model is f16, expected bf16 or f32");
}

/* Scales of 1, without history. */
static bool reset_scales(mc_module_root *root, mc_fp8_state *f)
{
    mc_fp8_scale *ones = mc_calloc(slots(f), sizeof *ones);
    if (!ones) return false;
    for (size_t i = 0; i < slots(f); i++) ones[i].scale = ones[i].inverse = 1;
    device_of(root)->copy_in(device_of(root), f->scales, ones, slots(f) * sizeof *ones);
    mc_free(ones);
    return true;
}

/* Allocates the state: zeros, and scales of 1. */
static bool make_state(mc_module_root *root, mc_fp8_state *f)
{
    mc_device *device = device_of(root);
    const mc_rank_group *group = &root->ctx->mesh.shard;
    size_t bytes = slots(f) * sizeof *f->seen;
    if (!f->count) return true;
    f->scales = device->alloc(device, slots(f) * sizeof *f->scales);
    f->seen = device->alloc(device, bytes);
    if (group->comm) f->parts = device->alloc(device, bytes * (size_t)group->size);
    if (!f->scales || !f->seen || (!f->parts && group->comm)) return false;
    return reset_scales(root, f) && !device->kernels->zero(device, f->seen, bytes);
}

/* No open tape uses the tree; else an error. */
static bool is_free(const mc_module_root *root)
{
    if (!mc_is_on_open_tape(root->ctx, root, NULL)) return true;
    return !mc_fail(root->ctx, MC_ERR_STATE, "fp8: a tape is open that uses %s: end the tape first",
                    MC_NAMED("model", root->module->name));
}

mc_status mc_module_set_recipe(mc_module *module, const mc_recipe *recipe)
{
    if (!module) return MC_ERR_ARGUMENT;
    mc_module_root *root = module->root;
    mc_context *ctx = root->ctx;
    if (mc_failed(ctx) || (recipe && !check_recipe(root, recipe))) return mc_error_status(ctx);
    if (!is_free(root)) return mc_error_status(ctx);
    mc_step_forget(ctx); /* recordings multiply as before, with memory that is freed here */
    mc_fp8_free(root);
    if (!recipe || !recipe->fp8) return MC_OK;
    mc_fp8_state *f = root->fp8 = mc_calloc(1, sizeof *f);
    if (f) f->weights = mc_calloc(root->stored_count + 1, sizeof(mc_stored *));
    if (!f || !f->weights) {
        mc_free(f);
        root->fp8 = NULL;
        return mc_fail_nomem(ctx, "fp8");
    }
    f->recipe = *recipe;
    root->zero.cast = mc_fp8_cast_share;
    find_layers(root, f);
    bool none = !f->count && !f->by_rows;
    if (none)
        check_none(root, recipe);
    else if (!make_state(root, f))
        mc_fail_nomem(ctx, "fp8");
    if (none || mc_failed(ctx)) mc_fp8_free(root);
    return mc_error_status(ctx);
}

int mc_module_fp8_linears(const mc_module *module)
{
    const mc_fp8_state *f = module ? module->root->fp8 : NULL;
    return f ? f->count + f->by_rows : 0;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Scales are those of mc_module_calibrate_fp8. */
static bool is_fixed(const mc_fp8_state *f) { return f->epoch != 0; }

bool mc_fp8_takes(const mc_tape *t, const mc_stored *s)
{
    if (!s->fp8) return false;
    bool infers = s->owner->root->fp8->recipe.scaling == MC_FP8_STATIC;
    return mc_tape_is_training(t) != infers;
}

/* Casts into existing memory. */
static bool cast(mc_tape *t, const mc_fp8_use *use, mc_tensor *weight, bool noted,
                 mc_fp8_operand *out)
{
    mc_fp8_scale *own = &use->scales[MC_FP8_WEIGHT];
    mc_fp8_source w = {.rows = out->rows, .columns = out->columns, .x = mc_saved_matrix(t, weight)};
    const mc_fp8_scale *scale = mc_fp8_scale_for(t, use, MC_FP8_WEIGHT, &w, own);
    return scale && mc_fp8_cast_into(t, use, MC_FP8_WEIGHT, &w, scale, noted, out);
}

static bool has_memory(mc_stored *s)
{
    mc_context *ctx = s->owner->ctx;
    mc_device *device = ctx->device;
    size_t bytes = (size_t)s->count;
    bool twice = device->fp8_tn && s->owner->root->fp8->recipe.scaling != MC_FP8_STATIC;
    if (!s->fp8_data) s->fp8_data = device->alloc(device, bytes);
    if (twice && !s->fp8_transposed) s->fp8_transposed = device->alloc(device, bytes);
    if (s->fp8_data && (s->fp8_transposed || !twice)) return true;
    mc_fail_memory(ctx, device, bytes, MC_HELP_MODEL, "\"%s\" in 8 bits", s->parts[0]->name);
    return false;
}

uint64_t mc_fp8_kept_bytes(const mc_module_root *root)
{
    uint64_t bytes = 0;
    for (int i = 0; root->fp8 && i < root->fp8->count; i++) {
        const mc_stored *s = root->fp8->weights[i];
        bytes += (uint64_t)s->count * ((s->fp8_data ? 1 : 0) + (s->fp8_transposed ? 1 : 0));
    }
    return bytes;
}

bool mc_fp8_begin_weight_cast(mc_stored *s, bool share)
{
    const mc_module_root *root = s->owner->root;
    bool first = s->fp8_seen != root->values_epoch || mc_step_is_recording(root->ctx);
    s->fp8_seen = root->values_epoch;
    return first && (share || root->ctx->mesh.shard.rank == 0);
}

/* Uses the weight's kept bytes, which are valid until its values change. A recorded step must
 * contain its own cast, because it runs again after the values have changed. With fixed scales
 * they may not change. */
static bool kept(mc_tape *t, const mc_fp8_use *use, mc_tensor *weight, mc_fp8_operand *out)
{
    mc_stored *s = use->owner;
    const mc_module_root *root = s->owner->root;
    const uint64_t recorded = (uint64_t)1 << 63;
    bool once = mc_step_is_recording(root->ctx) && !is_fixed(root->fp8);
    uint64_t epoch = once ? recorded | mc_tape_id(t) : root->values_epoch;
    if (!has_memory(s)) return false;
    out->data = s->fp8_data;
    out->transposed = s->fp8_transposed;
    out->format = mc_fp8_format_of(MC_FP8_WEIGHT);
    out->inverse = &use->scales[MC_FP8_WEIGHT].inverse;
    if (s->fp8_epoch == epoch) return true;
    s->fp8_epoch = 0;
    if (!cast(t, use, weight, mc_fp8_begin_weight_cast(s, false), out)) return false;
    s->fp8_epoch = epoch;
    return true;
}

/* If ranks shard the values, the bytes are those that the block has gathered; outside of a block
 * they are cast for each use. */
static bool weight_operand(mc_tape *t, const mc_fp8_use *use, mc_tensor *weight, bool transposed,
                           mc_fp8_operand *out)
{
    mc_stored *s = use->owner;
    int64_t rows = s->shape.dim[0], columns = s->shape.dim[1];
    *out = (mc_fp8_operand){.rows = rows, .columns = columns, .padded = rows};
    if (!mc_bucket_shares_values(s->bucket)) return kept(t, use, weight, out);
    if (s->bucket->bytes.users) return mc_fp8_gathered(t, use, transposed, out);
    mc_fp8_forms forms = mc_fp8_forms_of(t, !transposed, transposed);
    forms.noted = mc_fp8_begin_weight_cast(s, false);
    mc_fp8_source w = {.rows = rows, .columns = columns, .x = mc_saved_matrix(t, weight)};
    const mc_fp8_scale *scale =
        mc_fp8_scale_for(t, use, MC_FP8_WEIGHT, &w, &use->scales[MC_FP8_WEIGHT]);
    return mc_fp8_cast_new(t, use, MC_FP8_WEIGHT, &w, scale, forms, out);
}

/* ---- products -------------------------------------------------------------------------------- */

const float *mc_fp8_norm_scale(const mc_tape *t, const mc_stored *norm)
{
    const mc_fp8_state *f = norm->owner->root->fp8;
    bool writes = f && is_fixed(f) && norm->fp8_reader && !mc_tape_is_training(t);
    return writes ? &f->inputs[norm->fp8_reader - 1].scale : NULL;
}

mc_tensor *mc_stored_fp8_product(mc_tape *t, mc_tensor *x, mc_stored *s, mc_tensor *weight,
                                 mc_tensor *bias, const mc_product_form *form)
{
    const mc_module_root *root = s->owner->root;
    const mc_fp8_state *f = root->fp8;
    if (is_fixed(f) && f->epoch != root->values_epoch) {
        mc_fail(root->ctx, MC_ERR_STATE,
                "fp8: weights of %s have changed since its scales were fixed: set the recipe and "
                "calibrate again",
                MC_NAMED("model", root->module->name));
        return NULL;
    }
    int first = (s->fp8 - 1) * MC_FP8_ROLES;
    bool apart = form->gated && is_fixed(f);
    mc_activation activation = apart ? MC_ACTIVATION_NONE : form->activation;
    const mc_stored *next = apart ? NULL : form->next;
    if (!is_fixed(f) && x && x->norm && x->norm->owner->root == root) x->norm->fp8_reader = s->fp8;
    mc_fp8_use use = {.scales = f->scales + first,
                      .seen = is_fixed(f) ? NULL : f->seen + first,
                      .current = mc_fp8_is_current(f),
                      .defers = next && !is_fixed(f),
                      .gated = form->gated,
                      .result = next && is_fixed(f) ? &f->inputs[next->fp8 - 1].scale : NULL,
                      .input = is_fixed(f) ? &f->inputs[s->fp8 - 1].scale : NULL,
                      .margin = f->recipe.fp8_margin,
                      .weight = weight_operand,
                      .owner = s};
    /* the form that a product can compute as it writes; a byte has 3 bits of mantissa */
    if (use.result && activation == MC_ACTIVATION_GELU) activation = MC_ACTIVATION_GELU_NEW;
    return mc_scaled_linear_fp8(t, x, weight, bias, activation, s->product_scale, &use);
}

/* ---- updates --------------------------------------------------------------------------------- */

static mc_status advance(mc_module_root *root, mc_fp8_total *total)
{
    mc_fp8_state *f = root->fp8;
    const mc_rank_group *group = &root->ctx->mesh.shard;
    mc_device *device = device_of(root);
    mc_fp8_update_call call = {.count = (int)slots(f),
                               .ranks = group->comm ? group->size : 1,
                               .margin = f->recipe.fp8_margin,
                               .seen = group->comm ? f->parts : f->seen,
                               .scales = f->scales,
                               .clear = f->seen,
                               .total = total};
    mc_status status = mc_error_status(root->ctx);
    if (!status && group->comm)
        status = mc_comm_all_gather(group->comm, f->seen, f->parts,
                                    (int64_t)(slots(f) * sizeof *f->seen), MC_U8);
    if (!status) status = device->kernels->fp8_update(device, &call);
    f->advanced |= !status;
    return mc_zero_fail(&root->zero, status, "computing the scales of fp8");
}

static bool trains(const mc_module_root *root)
{
    const mc_fp8_state *f = root->fp8;
    return f && f->count && f->recipe.scaling != MC_FP8_STATIC;
}

mc_status mc_fp8_advance_scales(mc_module_root *root, mc_fp8_total *total)
{
    return trains(root) ? advance(root, total) : mc_error_status(root->ctx);
}

mc_status mc_fp8_restart_scales(mc_module_root *root)
{
    if (!root->fp8 || !trains(root)) return MC_OK;
    root->fp8->advanced = false;
    if (mc_is_on_open_tape(root->ctx, root, NULL)) return MC_OK; /* its casts have these scales */
    root->values_epoch++; /* and so have the weights' bytes */
    return reset_scales(root, root->fp8) ? MC_OK : mc_fail_nomem(root->ctx, "fp8");
}

/* Whether a scale follows an earlier update: a checkpoint may be older than the first update with
 * the recipe. */
static bool has_history(mc_module_root *root, const mc_fp8_state *f)
{
    mc_device *device = device_of(root);
    size_t bytes = slots(f) * sizeof *f->scales;
    mc_fp8_scale *scales = mc_malloc(bytes);
    bool found = false;
    if (!scales)
        mc_fail_nomem(root->ctx, "fp8");
    else if (!device->copy_out(device, scales, f->scales, bytes))
        mc_fail(root->ctx, MC_ERR_DEVICE, "fp8: reading scales: %s", device->failure);
    for (size_t i = 0; i < slots(f) * MC_FP8_HISTORY && !mc_failed(root->ctx); i++)
        found |= scales[i / MC_FP8_HISTORY].history[i % MC_FP8_HISTORY] > 0;
    mc_free(scales);
    return found;
}

mc_status mc_fp8_restored(mc_module_root *root)
{
    root->values_epoch++;
    if (trains(root)) root->fp8->advanced = has_history(root, root->fp8);
    return mc_error_status(root->ctx);
}

/* ---- fixed scales ---------------------------------------------------------------------------- */

/* Finds which layers have had input on any rank: one without rows has observed nothing. */
static void find_used(const mc_module_root *root, uint8_t *used)
{
    const mc_fp8_state *f = root->fp8;
    mc_context *ctx = root->ctx;
    size_t bytes = slots(f) * sizeof *f->seen;
    mc_fp8_seen *seen = mc_malloc(bytes);
    if (!seen)
        mc_fail_nomem(ctx, "fp8");
    else if (!ctx->device->copy_out(ctx->device, seen, f->seen, bytes))
        mc_fail(ctx, MC_ERR_DEVICE, "fp8: reading magnitudes: %s", ctx->device->failure);
    for (int i = 0; i < f->count && !mc_failed(ctx); i++)
        used[i] = seen[i * MC_FP8_ROLES + MC_FP8_X].elements > 0;
    mc_free(seen);
    mc_ranks_reduce(ctx, &ctx->mesh.shard, used, f->count, MC_U8, MC_REDUCE_MAX);
}

/* Every layer has had input. */
static bool check_used(const mc_module_root *root)
{
    const mc_fp8_state *f = root->fp8;
    mc_context *ctx = root->ctx;
    uint8_t *used = mc_calloc((size_t)f->count, sizeof *used);
    if (!used) return !mc_fail_nomem(ctx, "fp8");
    find_used(root, used);
    for (int i = 0; i < f->count && !mc_failed(ctx); i++)
        if (!used[i])
            mc_fail(ctx, MC_ERR_STATE,
                    "fp8: no pass on an evaluation tape has used \"%s\", expected some on typical "
                    "input before its scales are fixed",
                    f->weights[i]->parts[0]->name);
    mc_free(used);
    return !mc_failed(ctx);
}

/* Computes the scales and copies those of inputs into f->inputs. Allocates first: without memory
 * what was observed stays, and the caller may try again. */
static bool fix_inputs(mc_module_root *root, mc_fp8_state *f)
{
    mc_context *ctx = root->ctx;
    mc_device *device = device_of(root);
    size_t bytes = slots(f) * sizeof *f->scales, fixed_bytes = (size_t)f->count * sizeof *f->inputs;
    mc_fp8_scale *scales = mc_malloc(bytes);
    mc_fp8_fixed *fixed = mc_calloc((size_t)f->count, sizeof *fixed);
    if (!f->inputs) f->inputs = device->alloc(device, fixed_bytes);
    if (!scales || !fixed || !f->inputs)
        mc_fail_nomem(ctx, "fp8");
    else if (!advance(root, NULL) && !device->copy_out(device, scales, f->scales, bytes))
        mc_fail(ctx, MC_ERR_DEVICE, "fp8: reading scales: %s", device->failure);
    for (int i = 0; i < f->count && !mc_failed(ctx); i++)
        fixed[i].scale = scales[i * MC_FP8_ROLES + MC_FP8_X].scale;
    if (!mc_failed(ctx)) device->copy_in(device, f->inputs, fixed, fixed_bytes);
    mc_free(scales);
    mc_free(fixed);
    return !mc_failed(ctx);
}

mc_status mc_module_calibrate_fp8(mc_module *module)
{
    if (!module) return MC_ERR_ARGUMENT;
    mc_module_root *root = module->root;
    mc_context *ctx = root->ctx;
    mc_fp8_state *f = root->fp8;
    mc_named_text model = mc_named_print("model", root->module->name);
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!f || f->recipe.scaling != MC_FP8_STATIC)
        return mc_fail(ctx, MC_ERR_STATE,
                       "fp8: %s has no recipe with MC_FP8_STATIC to be calibrated", model.text);
    if (is_fixed(f))
        return mc_fail(ctx, MC_ERR_STATE,
                       "fp8: %s is calibrated already: set its recipe again before", model.text);
    if (!is_free(root) || !check_used(root) || !fix_inputs(root, f)) return mc_error_status(ctx);
    mc_step_forget(ctx); /* its recordings scale each tensor by itself */
    for (int i = 0; i < f->count; i++)
        f->weights[i]->fp8_epoch = 0; /* kept casts may have had other scales */
    f->epoch = root->values_epoch;
    return MC_OK;
}
