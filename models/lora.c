/* Which layers of a model get factors, and the model with them. */
#include "models/lora_internal.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include "core/nn/adapter_internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

const char mc_lora_prefix[] = "base_model.model.";

mc_weight_map mc_lora_map(const mc_model *m)
{
    mc_weight_map map = *m->family->map;
    map.adapter_prefix = mc_lora_prefix;
    return map;
}

bool mc_lora_module_name(const mc_model *m, const mc_parameter *p, char out[MC_NAME_MAX])
{
    int layers = (int)m->shape.layers;
    if (!mc_weight_name(m->family->map, layers, p->name, mc_model_is_prefixed(m), out) &&
        (size_t)snprintf(out, MC_NAME_MAX, "%s", p->name) >= MC_NAME_MAX)
        return false;
    char *end = strrchr(out, '.');
    if (end && (strcmp(end, ".weight") == 0 || strcmp(end, ".bias") == 0)) *end = '\0';
    return true;
}

bool mc_lora_name_ends(const char *module, const char *name)
{
    size_t length = strlen(module), tail = strlen(name);
    if (!tail || tail > length || strcmp(module + length - tail, name) != 0) return false;
    return tail == length || module[length - tail - 1] == '.';
}

/* Whether a module is `name` (see mc_lora_name_ends) or within it. */
static bool is_within(const char *module, const char *name)
{
    char part[MC_NAME_MAX];
    for (size_t i = 0, length = strlen(module); i < length; i++) {
        if (module[i + 1] != '.' && module[i + 1] != '\0') continue;
        snprintf(part, sizeof part, "%.*s", (int)(i + 1), module);
        if (mc_lora_name_ends(part, name)) return true;
    }
    return false;
}

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
    bool found[MC_LORA_NAMES]; /* of the names */
    int count;                 /* layers found */
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
        if (!mc_lora_name_ends(module, t->names[i])) continue;
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
            if (!mc_lora_module_name(m, root->stored[i]->parts[k], name)) continue;
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
        if (!mc_lora_module_name(t->model, weight->parts[i], name)) return false;
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
    size_t count = root->stored_count; /* factors come behind */
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
    const char *missing = t->count ? NULL : "the pattern";
    for (int i = 0; t->names && t->names[i] && i < MC_LORA_NAMES; i++)
        if (!t->found[i]) missing = t->names[i];
    if (missing && !mc_failed(ctx))
        mc_fail(ctx, MC_ERR_NOT_FOUND,
                "LoRA: target \"%s\" is no linear layer of the %s model: expected some of %s",
                missing, t->model->family->title, list_layers(t->model, layers, sizeof layers));
}

/* A copy of a list that lives as long as the model. */
static const char *const *copy_list(mc_model *m, const char *const *list, const char *what)
{
    int count = 0;
    while (list[count]) count++;
    if (count > MC_LORA_NAMES) {
        mc_fail(m->module.ctx, MC_ERR_ARGUMENT, "LoRA: %d %s, expected %d at most", count, what,
                MC_LORA_NAMES);
        return NULL;
    }
    const char **copy = mc_module_alloc(m->module.root, ((size_t)count + 1) * sizeof *copy);
    for (int i = 0; copy && i < count; i++)
        if (!(copy[i] = mc_module_strdup(m->module.root, list[i]))) return NULL;
    return copy;
}

/* ---- modules to save ------------------------------------------------------------------------- */

/* Thaws what is within a module; false where the model has none. */
static bool thaw(mc_model *m, const char *module)
{
    mc_module_root *root = m->module.root;
    char name[MC_NAME_MAX];
    bool found = false;
    for (size_t i = 0; i < root->parameter_count && !mc_failed(root->ctx); i++) {
        mc_parameter *p = root->parameters[i];
        if (!mc_lora_module_name(m, p, name) || !is_within(name, module)) continue;
        if (p->stored->part_count > 1)
            mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                    "LoRA: module to save \"%s\": \"%s\" is stored with others and is not trained "
                    "alone",
                    module, p->name);
        p->stored->trainable = p->in_adapter = found = true;
    }
    return found;
}

/* PEFT adds "classifier" and "score" to the list of every classifier, whatever the model has. */
static bool may_be_missing(const char *module)
{
    return strcmp(module, "classifier") == 0 || strcmp(module, "score") == 0;
}

static void thaw_modules(mc_model *m, const char *const *modules)
{
    mc_context *ctx = m->module.ctx;
    for (; *modules && !mc_failed(ctx); modules++)
        if (!thaw(m, *modules) && !mc_failed(ctx) && !may_be_missing(*modules))
            mc_fail(ctx, MC_ERR_NOT_FOUND, "LoRA: the %s model has no module to save \"%s\"",
                    m->family->title, *modules);
}

/* Adds a name to those that the model's adapter lists. */
static bool list_module(mc_model *m, const char *name)
{
    const char *names[MC_LORA_NAMES + 2];
    const char *const *before = m->lora->options.modules_to_save;
    int count = 0;
    for (; before[count]; count++) names[count] = before[count];
    names[count] = name;
    names[count + 1] = NULL;
    m->lora->options.modules_to_save = copy_list(m, names, "modules to save");
    return m->lora->options.modules_to_save;
}

bool mc_lora_save_new(mc_model *m, const mc_model_file *f)
{
    mc_module_root *root = m->module.root;
    char module[MC_NAME_MAX];
    for (size_t i = 0; m->lora && i < root->parameter_count && !mc_failed(root->ctx); i++) {
        const mc_parameter *p = root->parameters[i];
        if (p->in_adapter || mc_weight_find(f->map, f->layers, f->file, p->name)) continue;
        snprintf(module, sizeof module, "%.*s", (int)strcspn(p->name, "."), p->name);
        if (thaw(m, module)) list_module(m, module);
    }
    return !mc_failed(root->ctx);
}

/* ---- options --------------------------------------------------------------------------------- */

/* The classification head's module: the first part of its matrix's name. */
static const char *const *default_modules(mc_model *m)
{
    char head[MC_NAME_MAX] = "";
    const char *list[2] = {NULL, NULL};
    const char *name = m->heads.labels ? m->family->classifier : NULL;
    if (m->token_head) name = mc_linear_module(m->token_head)->name;
    if (name) snprintf(head, sizeof head, "%.*s", (int)strcspn(name, "."), name);
    if (*head) list[0] = head;
    return copy_list(m, list, "modules to save");
}

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

/* Fills in defaults and copies. */
static bool take_options(mc_model *m, const mc_lora_options *given, mc_lora_options *o)
{
    mc_module_root *root = m->module.root;
    *o = given ? *given : (mc_lora_options){0};
    if (!o->rank) o->rank = 8;
    if (o->alpha == 0) o->alpha = 16;
    if (!check_numbers(root->ctx, o)) return false;
    if (o->targets && o->target_pattern)
        return !mc_fail(root->ctx, MC_ERR_ARGUMENT, "LoRA: both targets and a target pattern");
    if (!o->targets && !o->target_pattern) o->targets = m->family->lora_targets;
    if (o->targets) o->targets = copy_list(m, o->targets, "targets");
    if (o->target_pattern) o->target_pattern = mc_module_strdup(root, o->target_pattern);
    o->modules_to_save = o->modules_to_save ? copy_list(m, o->modules_to_save, "modules to save")
                                            : default_modules(m);
    const char *base = o->base ? o->base : m->source;
    o->base = base ? mc_module_strdup(root, base) : NULL;
    return !mc_failed(root->ctx);
}

/* ---- the calls ------------------------------------------------------------------------------- */

static bool can_have_factors(mc_model *m)
{
    mc_context *ctx = m->module.ctx;
    int scaling = 0;
    void *config = mc_malloc(m->family->config_size);
    if (!config) return !mc_fail_nomem(ctx, "a config");
    memcpy(config, m->config, m->family->config_size);
    if (m->lora) mc_fail(ctx, MC_ERR_STATE, "LoRA: the model has factors already");
    bool can = !mc_failed(ctx) && (m->family->own_form || !m->family->before_save ||
                                   m->family->before_save(m, MC_FORM_HF, config, &scaling));
    mc_free(config);
    if (can && scaling)
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "LoRA: %s in ModelCenter's divided form: convert the model to Hugging Face's form "
                "first",
                m->family->title);
    return !mc_failed(ctx);
}

static void add(mc_model *m, const mc_lora_options *o)
{
    target t = {.model = m, .names = o->targets};
    t.all = o->target_pattern && strcmp(o->target_pattern, "all-linear") == 0;
    if (o->target_pattern && !t.all && !compile(&t, o->target_pattern)) return;
    mc_module_set_trainable(&m->module, NULL, false);
    thaw_modules(m, o->modules_to_save);
    add_factors(m, &t, o);
    check_found(&t);
    if (t.has_pattern) regfree(&t.pattern);
}

mc_status mc_lora_add(mc_model *m, const mc_lora_options *options)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    mc_lora *lora = mc_module_alloc(m->module.root, sizeof *lora);
    if (lora && can_have_factors(m) && take_options(m, options, &lora->options)) {
        add(m, &lora->options);
        m->lora = lora;
    }
    return mc_error_status(ctx);
}

mc_status mc_lora_merge(mc_model *m)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_module_root *root = m->module.root;
    if (mc_failed(root->ctx)) return mc_error_status(root->ctx);
    if (!m->lora) return mc_fail(root->ctx, MC_ERR_ARGUMENT, "LoRA: the model has no factors");
    if (mc_adapters_merge(root)) return mc_error_status(root->ctx);
    for (size_t i = 0; i < root->parameter_count; i++) root->parameters[i]->in_adapter = false;
    m->lora = NULL;
    return mc_module_set_trainable(&m->module, NULL, true);
}

const mc_lora_options *mc_model_lora(const mc_model *m)
{
    return m && m->lora ? &m->lora->options : NULL;
}

int64_t mc_model_trainable_count(mc_model *m)
{
    int64_t count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(m), &it));)
        if (p->stored->trainable) count += mc_shape_count(p->shape);
    return count;
}
