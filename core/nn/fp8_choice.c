/* MC_FP8_AUTO: measures kinds of layers and chooses the faster precision. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "core/device/fp8_measure_internal.h"
#include "core/device/plan_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/nn/fp8_internal.h"

enum { RUNS = 3, CALLS = 3, FIGURES = 3 /* of a kind, that ranks share */ };

/* ---- kinds ----------------------------------------------------------------------------------- */

/* The part of a name after its block's number. */
static const char *within_block(const char *name)
{
    for (const char *at = name; (at = strchr(at, '.')); at++) {
        const char *end = at + 1;
        while (isdigit((unsigned char)*end)) end++;
        if (end > at + 1 && *end == '.') return end + 1;
    }
    return name;
}

int mc_fp8_kind_of(const mc_fp8_kind *kinds, int count, const mc_stored *s)
{
    for (int i = 0; i < count && s->shape.ndim == 2; i++)
        if (kinds[i].out == s->shape.dim[0] && kinds[i].in == s->shape.dim[1]) return i;
    return -1;
}

int mc_fp8_list_kinds(const mc_module_root *root, mc_fp8_kind kinds[MC_FP8_KINDS])
{
    int count = 0;
    for (size_t i = 0; i < root->stored_count; i++) {
        const mc_stored *s = root->stored[i];
        int kind = mc_fp8_kind_of(kinds, count, s);
        if (!mc_fp8_may_take_part(s) || (kind < 0 && count == MC_FP8_KINDS)) continue;
        if (kind < 0) {
            kind = count++;
            kinds[kind] = (mc_fp8_kind){.out = s->shape.dim[0], .in = s->shape.dim[1]};
            snprintf(kinds[kind].name, sizeof kinds[kind].name, "%s",
                     within_block(s->parts[0]->name));
        }
        kinds[kind].layers++;
    }
    return count;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static bool measure(mc_module_root *root, mc_device *device, int64_t rows, int passes,
                    mc_fp8_kind *kind)
{
    mc_fp8_times times;
    mc_status status =
        mc_fp8_measure(device, root->dtype, rows, kind->out, kind->in, RUNS, CALLS, &times);
    if (status) {
        mc_fail(root->ctx, status, "fp8: measuring a layer (%lld, %lld) on %lld rows: %s",
                (long long)kind->out, (long long)kind->in, (long long)rows,
                *device->failure ? device->failure : mc_status_text(status));
        return false;
    }
    kind->plain = 1e3 * mc_fp8_products_of(times.wide);
    kind->fp8 = 1e3 * mc_fp8_products_of(times.eight);
    kind->casts = 1e3 * mc_fp8_casts_of(&times, passes);
    return true;
}

/* Replaces the figures by rank 0's. */
static bool share(mc_module_root *root, mc_fp8_kind *kinds, int count)
{
    double figures[MC_FP8_KINDS][FIGURES];
    for (int i = 0; i < count; i++) {
        figures[i][0] = kinds[i].plain;
        figures[i][1] = kinds[i].fp8;
        figures[i][2] = kinds[i].casts;
    }
    if (mc_ranks_share(root->ctx, figures, (size_t)count * sizeof *figures)) return false;
    for (int i = 0; i < count; i++) {
        kinds[i].plain = figures[i][0];
        kinds[i].fp8 = figures[i][1];
        kinds[i].casts = figures[i][2];
    }
    return true;
}

/* The recipe restricted to the kinds that are faster in 8 bits. */
static mc_recipe choose(const mc_module_root *root, mc_fp8_kind *kinds, int count)
{
    mc_recipe recipe = root->fp8->recipe;
    recipe.fp8_kinds = 0;
    for (int i = 0; i < count; i++) {
        kinds[i].chosen = kinds[i].fp8 + kinds[i].casts < kinds[i].plain;
        if (kinds[i].chosen) recipe.fp8_kinds |= (uint64_t)1 << i;
    }
    if (!recipe.fp8_kinds) recipe.fp8 = MC_FP8_NONE;
    return recipe;
}

/* How many passes use one cast of a weight: all of an update, unless ranks shard the values. */
static int passes_of_cast(const mc_module_root *root, int passes)
{
    const mc_bucket *bucket = root->fp8->weights[0]->bucket;
    return bucket && mc_bucket_shares_values(bucket) ? 1 : passes;
}

int mc_module_choose_fp8(mc_module *module, int64_t rows, int passes, mc_fp8_kind *kinds)
{
    mc_context *ctx = module ? module->ctx : NULL;
    if (!module || mc_failed(ctx) || !mc_given(ctx, kinds)) return 0;
    mc_module_root *root = module->root;
    if (rows < 1 || passes < 1) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "fp8: measuring with %lld rows and %d passes, expected 1 or more", (long long)rows,
                passes);
        return 0;
    }
    mc_device *device = mc_device_is_plan(ctx->device) ? mc_plan_like(ctx->device) : ctx->device;
    if (!root->fp8 || root->fp8->recipe.fp8 != MC_FP8_AUTO || !device->fp8_tn) return 0;
    if (root->fp8->by_rows) return 0; /* without 8 bits each product of theirs would dequantize */
    int count = mc_fp8_list_kinds(root, kinds);
    passes = passes_of_cast(root, passes);
    for (int i = 0; i < count; i++)
        if (!measure(root, device, rows, passes, &kinds[i])) return 0;
    if (!share(root, kinds, count)) return 0;
    mc_recipe recipe = choose(root, kinds, count);
    return mc_module_set_recipe(module, &recipe) ? 0 : count;
}
