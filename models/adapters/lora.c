/* Which layers of a model get factors, and the model with them. */
#include "models/adapters/adapter_internal.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include "core/nn/adapter_internal.h"

/* The last part of a module's name: what one would call it by. */
static const char *last_part(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

/* ---- targets --------------------------------------------------------------------------------- */

/* What is asked for: a list, a pattern, or all linear layers. */
typedef struct target {
    const mc_model *model;
    const char *const *names;
    regex_t pattern;
    bool has_pattern, all;
    bool found[MC_ADAPTER_NAMES]; /* of the names */
    int count;                    /* layers found */
} target;

static bool compile(target *t, const char *pattern)
{
    mc_context *ctx = t->model->module.ctx;
    char whole[1024];
    bool fits = (size_t)snprintf(whole, sizeof whole, "^(%s)$", pattern) < sizeof whole;
    /* Python's that POSIX reads otherwise */
    bool known = !strstr(pattern, "(?") && !strstr(pattern, "\\d") && !strstr(pattern, "*?");
    if (fits && known && regcomp(&t->pattern, whole, REG_EXTENDED | REG_NOSUB) == 0)
        return t->has_pattern = true;
    return !mc_fail(ctx, MC_ERR_UNSUPPORTED,
                    "LoRA: target pattern \"%.200s\": expected \"all-linear\" or a POSIX extended "
                    "regular expression",
                    pattern);
}

static bool matches(target *t, const char *module)
{
    bool any = t->all || (t->has_pattern && regexec(&t->pattern, module, 0, NULL, 0) == 0);
    for (int i = 0; t->names && t->names[i]; i++) {
        if (!mc_adapter_name_ends(module, t->names[i])) continue;
        any = t->found[i] = true;
    }
    t->count += any;
    return any;
}

/* The names of the model's linear layers, each once. */
static const char *list_layers(const mc_model *m, char *out, size_t room)
{
    const mc_module_root *root = m->module.root;
    char name[MC_NAME_MAX], quoted[MC_NAME_MAX + 4];
    out[0] = '\0';
    for (size_t i = 0; i < root->stored_count; i++)
        for (int k = 0; root->stored[i]->product_scale != 0 && k < root->stored[i]->part_count;
             k++) {
            if (!mc_adapter_module_name(m, root->stored[i]->parts[k], name)) continue;
            size_t used = strlen(out);
            snprintf(quoted, sizeof quoted, "\"%s\"", last_part(name));
            if (!strstr(out, quoted))
                snprintf(out + used, room - used, "%s%s", used ? ", " : "", quoted);
        }
    return out;
}

/* Parameters side by side in a stored weight that `transformers` has as one matrix are one site.
 * What is trained whole gets no factors. */
static bool find_sites(target *t, mc_stored *weight, mc_adapter *adapter)
{
    char name[MC_NAME_MAX], before[MC_NAME_MAX] = "";
    bool matched = false;
    adapter->count = 0;
    for (int i = 0; i < weight->part_count; i++) {
        if (!mc_adapter_module_name(t->model, weight->parts[i], name)) return false;
        bool same = i > 0 && strcmp(name, before) == 0;
        if (same && matched) adapter->site[adapter->count - 1].parts++;
        memcpy(before, name, sizeof before);
        if (same) continue;
        matched = matches(t, name) && !weight->parts[i]->in_adapter;
        if (matched && adapter->count == MC_LOW_RANK_PARTS) return false;
        if (matched)
            adapter->site[adapter->count++] = (mc_adapter_site){.first_part = i, .parts = 1};
    }
    return adapter->count > 0;
}

static void add_factors(mc_model *m, target *t, const mc_lora_options *o)
{
    mc_module_root *root = m->module.root;
    float divisor = o->rslora ? sqrtf((float)o->rank) : (float)o->rank;
    mc_adapter adapter = {.rank = o->rank, .scale = o->alpha / divisor, .dropout = o->dropout};
    size_t count = root->stored_count; /* factors come after */
    for (size_t i = 0; i < count && !mc_failed(root->ctx); i++) {
        mc_stored *weight = root->stored[i];
        if (weight->product_scale == 0 || !find_sites(t, weight, &adapter)) continue;
        mc_adapter_add(weight, &adapter);
    }
}

/* Every name has to be that of some layer. */
static void check_found(const target *t)
{
    mc_context *ctx = t->model->module.ctx;
    char layers[1024];
    const char *missing = t->count ? NULL : t->has_pattern ? "the pattern" : "(none given)";
    for (int i = 0; t->names && t->names[i] && i < MC_ADAPTER_NAMES; i++)
        if (!t->found[i]) missing = t->names[i];
    if (missing && !mc_failed(ctx))
        mc_fail(ctx, MC_ERR_NOT_FOUND,
                "LoRA: target \"%s\" is no linear layer of the %s model: expected some of %s",
                missing, t->model->family->title, list_layers(t->model, layers, sizeof layers));
}

/* ---- options --------------------------------------------------------------------------------- */

static bool check_numbers(mc_context *ctx, const mc_lora_options *o)
{
    if (o->rank < 1 || o->rank > 1 << 16)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "LoRA: rank %d, expected 1 to %d", o->rank, 1 << 16);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "LoRA: dropout %g, expected 0 to less than 1",
                        (double)o->dropout);
    if (isfinite(o->alpha)) return true;
    return !mc_fail(ctx, MC_ERR_ARGUMENT, "LoRA: alpha %g, expected a finite number",
                    (double)o->alpha);
}

/* Fills in defaults. */
static bool read_options(mc_model *m, const mc_lora_options *given, mc_lora_options *o)
{
    mc_context *ctx = m->module.ctx;
    *o = given ? *given : (mc_lora_options){0};
    if (!o->rank) o->rank = 8;
    if (o->alpha == 0) o->alpha = 16;
    if (!check_numbers(ctx, o)) return false;
    if (o->targets && o->target_pattern)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "LoRA: both targets and a target pattern");
    if (!o->targets && !o->target_pattern) o->targets = m->family->lora_targets;
    return true;
}

/* Copies what they point to. */
static bool keep_options(mc_model *m, const mc_model_adapter *a, mc_lora_options *o)
{
    mc_module_root *root = m->module.root;
    if (o->targets) o->targets = mc_adapter_copy_list(m, a->kind, o->targets, "targets");
    if (o->target_pattern) o->target_pattern = mc_module_strdup(root, o->target_pattern);
    o->modules_to_save = a->modules;
    o->base = a->base;
    return !mc_failed(root->ctx);
}

/* ---- the calls ------------------------------------------------------------------------------- */

static void add(mc_model *m, const mc_lora_options *o)
{
    target t = {.model = m, .names = o->targets};
    t.all = o->target_pattern && strcmp(o->target_pattern, "all-linear") == 0;
    if (o->target_pattern && !t.all && !compile(&t, o->target_pattern)) return;
    add_factors(m, &t, o);
    check_found(&t);
    if (t.has_pattern) regfree(&t.pattern);
}

mc_status mc_lora_add(mc_model *m, const mc_lora_options *options)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    mc_lora_options o;
    if (mc_failed(ctx) || !read_options(m, options, &o)) return mc_error_status(ctx);
    mc_model_adapter *a = mc_adapter_begin(m, "LoRA", o.modules_to_save, o.base);
    if (a && keep_options(m, a, &o)) {
        a->lora = o;
        add(m, &o);
        m->adapter = a;
    }
    return mc_error_status(ctx);
}

mc_status mc_lora_merge(mc_model *m)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_module_root *root = m->module.root;
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (m->adapter && m->adapter->prompt.tokens)
        return mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                       "virtual tokens cannot be merged into a model: no weight does what they do");
    if (!m->adapter) return mc_fail(root->ctx, MC_ERR_ARGUMENT, "LoRA: the model has no factors");
    if (mc_adapters_merge(root)) return mc_error_status(root->ctx);
    for (size_t i = 0; i < root->parameter_count; i++) root->parameters[i]->in_adapter = false;
    m->adapter = NULL;
    return mc_module_set_trainable(&m->module, NULL, true);
}

const mc_lora_options *mc_model_lora(const mc_model *m)
{
    return m && m->adapter && m->adapter->lora.rank ? &m->adapter->lora : NULL;
}
