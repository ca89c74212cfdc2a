#include "core/nn/adapter_internal.h"
#include "core/nn/fp8_internal.h"
#include "core/nn/quantized_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/nn/stored.h"
#include "core/ops/fused.h"

/* ---- declaring ------------------------------------------------------------------------------- */

void mc_weight_declare(mc_parameter *weight, float scale)
{
    if (weight) weight->stored->product_scale = scale;
}

bool mc_parameter_is_factor(const mc_parameter *p) { return p && p->is_factor; }

/* The name of a factor as a path from the root: "/NAME" followed by `end`. */
static char *factor_name(mc_stored *weight, const mc_adapter_site *site, const char *end)
{
    static const char tail[] = ".weight";
    const char *name = weight->parts[site->first_part]->name;
    size_t length = strlen(name), cut = sizeof tail - 1, room = length + strlen(end) + 2;
    if (length > cut && strcmp(name + length - cut, tail) == 0) length -= cut;
    char *out = mc_module_alloc(weight->owner->root, room);
    if (out) snprintf(out, room, "/%.*s%s", (int)length, name, end);
    return out;
}

static int64_t rows_of(const mc_stored *weight, const mc_adapter_site *site)
{
    int64_t rows = 0;
    for (int i = 0; i < site->parts; i++) rows += weight->parts[site->first_part + i]->shape.dim[0];
    return rows;
}

static mc_parameter *mark_factor(mc_parameter *p)
{
    if (p) p->is_factor = p->in_adapter = true;
    return p;
}

/* Stores the A factors of all sites as one tensor. */
static bool add_a(mc_stored *weight, mc_adapter *adapter, mc_module *module)
{
    float limit = (float)(1 / sqrt((double)weight->shape.dim[1]));
    mc_parameter_part parts[MC_LOW_RANK_PARTS];
    mc_parameter *made[MC_LOW_RANK_PARTS];
    for (int i = 0; i < adapter->count; i++) {
        const char *name = factor_name(weight, &adapter->site[i], ".lora_A.weight");
        if (!name) return false;
        parts[i] = (mc_parameter_part){name, adapter->rank, mc_init_uniform(-limit, limit)};
    }
    if (!mc_parameter_new_stacked(module, parts, adapter->count, MC_SHAPE(weight->shape.dim[1]),
                                  made))
        return false;
    for (int i = 0; i < adapter->count; i++) adapter->site[i].a = mark_factor(made[i]);
    return true;
}

static bool add_b(mc_stored *weight, mc_adapter *adapter, mc_module *module)
{
    for (int i = 0; i < adapter->count; i++) {
        mc_adapter_site *site = &adapter->site[i];
        const char *name = factor_name(weight, site, ".lora_B.weight");
        mc_shape shape = MC_SHAPE(rows_of(weight, site), adapter->rank);
        site->b = name ? mark_factor(mc_parameter_new(module, name, shape, mc_init_zeros())) : NULL;
        if (!site->b) return false;
    }
    return true;
}

mc_status mc_adapter_add(mc_stored *weight, const mc_adapter *given)
{
    mc_module *module = weight->parts[0]->module;
    mc_context *ctx = module->ctx;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (weight->adapter)
        return mc_fail(ctx, MC_ERR_STATE, "weight \"%s\" has an adapter already",
                       weight->parts[0]->name);
    mc_adapter *adapter = mc_module_alloc(module->root, sizeof *adapter);
    if (!adapter) return mc_error_status(ctx);
    *adapter = *given;
    if (add_a(weight, adapter, module) && add_b(weight, adapter, module)) weight->adapter = adapter;
    return mc_error_status(ctx);
}

/* ---- the product ----------------------------------------------------------------------------- */

/* x A^T for all sites in one product. */
static mc_tensor *down(mc_tape *t, const mc_adapter *adapter, mc_tensor *x)
{
    mc_tensor *dropped = mc_dropout(t, x, adapter->dropout);
    mc_tensor *a = mc_parameter_whole(t, adapter->site[0].a);
    mc_tensor *h = a ? mc_scaled_linear(t, dropped, a, NULL, MC_ACTIVATION_NONE, 1) : NULL;
    if (dropped != x) mc_tape_release(t, dropped);
    return h;
}

static mc_tensor *add_up(mc_tape *t, const mc_stored *weight, mc_tensor *y, mc_tensor *h)
{
    const mc_adapter *adapter = weight->adapter;
    mc_low_rank_part parts[MC_LOW_RANK_PARTS];
    for (int i = 0; i < adapter->count; i++) {
        const mc_adapter_site *site = &adapter->site[i];
        int64_t first = weight->parts[site->first_part]->first / weight->shape.dim[1];
        parts[i] = (mc_low_rank_part){mc_parameter_whole(t, site->b), first};
    }
    return mc_low_rank_add(t, y, h, parts, adapter->count, adapter->scale);
}

/* The product without the adapter. */
static mc_tensor *product(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_tensor *b,
                          const mc_product_form *form)
{
    mc_stored *stored = weight->stored;
    float scale = stored->product_scale;
    if (mc_stored_has_quantized(stored))
        return mc_stored_product(t, x, stored, stored->shape.dim[0], b, form->activation, scale);
    if (mc_fp8_takes(t, stored)) {
        mc_tensor *w = mc_stored_tensor_fp8(t, stored);
        return w ? mc_stored_fp8_product(t, x, stored, w, b, form) : NULL;
    }
    mc_tensor *w = mc_parameter_whole(t, weight);
    return w ? mc_scaled_linear(t, x, w, b, form->activation, scale) : NULL;
}

/* A's product comes first in forward, so that in backward the large product writes x's gradient
 * first and the small one adds to it. */
static mc_tensor *adapted_product(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_tensor *b,
                                  mc_activation activation)
{
    mc_tensor *h = down(t, weight->stored->adapter, x);
    mc_tensor *y = h ? product(t, x, weight, b, &(mc_product_form){MC_ACTIVATION_NONE}) : NULL;
    mc_tensor *sum = y ? add_up(t, weight->stored, y, h) : NULL;
    mc_tape_release(t, h);
    mc_tensor *active = sum ? mc_activate(t, sum, activation) : NULL;
    if (active != sum) mc_tape_release(t, sum);
    return active;
}

mc_tensor *mc_weight_product(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_parameter *bias,
                             mc_activation activation)
{
    mc_tensor *b = bias ? mc_parameter_whole(t, bias) : NULL;
    if (bias && !b) return NULL;
    if (!weight->stored->adapter) return product(t, x, weight, b, &(mc_product_form){activation});
    return adapted_product(t, x, weight, b, activation);
}

/* Whether the product is in 8 bits and no adapter reads its input. */
static bool casts_alone(const mc_tape *t, const mc_parameter *weight)
{
    const mc_stored *stored = weight->stored;
    return mc_fp8_takes(t, stored) && !mc_stored_has_quantized(stored) && !stored->adapter;
}

mc_tensor *mc_weight_product_for(mc_tape *t, mc_tensor *x, mc_parameter *weight, mc_parameter *bias,
                                 mc_activation activation, bool gated, const mc_parameter *next)
{
    const mc_product_form form = {activation, gated, next->stored};
    bool defers =
        activation != MC_ACTIVATION_NONE && casts_alone(t, weight) && casts_alone(t, next);
    if (!defers)
        return mc_weight_product(t, x, weight, bias, gated ? MC_ACTIVATION_NONE : activation);
    mc_tensor *b = bias ? mc_parameter_whole(t, bias) : NULL;
    return bias && !b ? NULL : product(t, x, weight, b, &form);
}

/* ---- merging --------------------------------------------------------------------------------- */

/* w (rows, in) += factor * b (rows, rank) a (rank, in). */
static void add_product(float *w, const float *b, const float *a, float factor, int64_t rows,
                        int64_t in, int64_t rank)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t r = 0; r < rank; r++) {
            float f = factor * b[i * rank + r];
            const float *row = a + r * in;
            for (int64_t k = 0; k < in; k++) w[i * in + k] += f * row[k];
        }
}

static void merge_part(mc_parameter *p, const float *b, const float *a, float factor, int64_t rank,
                       float *w)
{
    if (mc_parameter_read(p, w)) return;
    add_product(w, b, a, factor, p->shape.dim[0], p->shape.dim[1], rank);
    mc_parameter_write(p, w);
}

/* Merges one site on the host, in f32. */
static void merge_site(mc_stored *weight, const mc_adapter_site *site)
{
    mc_context *ctx = weight->owner->ctx;
    const mc_adapter *adapter = weight->adapter;
    float factor = adapter->scale / weight->product_scale;
    size_t element = sizeof(float);
    float *a = mc_malloc((size_t)mc_shape_count(site->a->shape) * element);
    float *b = mc_malloc((size_t)mc_shape_count(site->b->shape) * element), *w = NULL;
    bool good = a && b && !mc_parameter_read(site->a, a) && !mc_parameter_read(site->b, b);
    int64_t row = 0;
    for (int i = 0; good && i < site->parts; i++) {
        mc_parameter *p = weight->parts[site->first_part + i];
        float *grown = mc_realloc(w, (size_t)mc_shape_count(p->shape) * element);
        if (!(good = grown)) break;
        w = grown;
        merge_part(p, b + row * adapter->rank, a, factor, adapter->rank, w);
        row += p->shape.dim[0];
    }
    if (!good && !mc_failed(ctx)) mc_fail_nomem(ctx, "merging an adapter");
    mc_free(a);
    mc_free(b);
    mc_free(w);
}

/* Finds the first parameter that is a factor; all later parameters must be factors. */
static bool find_factors(const mc_module_root *root, size_t *first)
{
    *first = root->parameter_count;
    while (*first && root->parameters[*first - 1]->is_factor) --*first;
    for (size_t i = 0; i < *first; i++)
        if (root->parameters[i]->is_factor)
            return !mc_fail(root->ctx, MC_ERR_STATE,
                            "merging adapters: parameter \"%s\" was declared after them",
                            root->parameters[*first - 1]->name);
    return true;
}

mc_status mc_adapters_merge(mc_module_root *root)
{
    size_t first;
    if (mc_failed(root->ctx) || !find_factors(root, &first)) return mc_error_status(root->ctx);
    if (mc_module_weight_format(root))
        return mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                       "merging adapters: the weights are in 8 bits: merge before they are");
    for (size_t i = 0; i < root->stored_count && !mc_failed(root->ctx); i++) {
        mc_stored *weight = root->stored[i];
        if (!weight->adapter) continue;
        for (int k = 0; k < weight->adapter->count; k++)
            merge_site(weight, &weight->adapter->site[k]);
    }
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    for (size_t i = 0; i < root->stored_count; i++) root->stored[i]->adapter = NULL;
    return mc_module_drop_parameters(root, first);
}
