/* What adapters of all kinds share: names, what is trained and saved whole beside them. */
#include "models/adapters/adapter_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

mc_weight_map mc_adapter_map(const mc_family *family, bool virtual_tokens)
{
    mc_weight_map map = *family->map;
    /* PEFT wraps a model once more for factors */
    map.adapter_prefix = virtual_tokens ? "base_model." : "base_model.model.";
    map.adapter_bare = "prompt_embeddings";
    return map;
}

bool mc_adapter_module_name(const mc_model *m, const mc_parameter *p, char out[MC_NAME_MAX])
{
    int layers = (int)m->shape.layers;
    if (!mc_weight_name(m->family->map, layers, p->name, mc_model_is_prefixed(m), out) &&
        (size_t)snprintf(out, MC_NAME_MAX, "%s", p->name) >= MC_NAME_MAX)
        return false;
    char *end = strrchr(out, '.');
    if (end && (strcmp(end, ".weight") == 0 || strcmp(end, ".bias") == 0)) *end = '\0';
    return true;
}

bool mc_adapter_name_ends(const char *module, const char *name)
{
    size_t length = strlen(module), tail = strlen(name);
    if (!tail || tail > length || strcmp(module + length - tail, name) != 0) return false;
    return tail == length || module[length - tail - 1] == '.';
}

bool mc_adapter_is_within(const char *module, const char *name)
{
    char part[MC_NAME_MAX];
    for (size_t i = 0, length = strlen(module); i < length; i++) {
        if (module[i + 1] != '.' && module[i + 1] != '\0') continue;
        snprintf(part, sizeof part, "%.*s", (int)(i + 1), module);
        if (mc_adapter_name_ends(part, name)) return true;
    }
    return false;
}

const char *const *mc_adapter_copy_list(mc_model *m, const char *kind, const char *const *list,
                                        const char *what)
{
    int count = 0;
    while (list[count]) count++;
    if (count > MC_ADAPTER_NAMES) {
        mc_fail(m->module.ctx, MC_ERR_ARGUMENT, "%s: %d %s, expected %d at most", kind, count, what,
                MC_ADAPTER_NAMES);
        return NULL;
    }
    const char **copy = mc_module_alloc(m->module.root, ((size_t)count + 1) * sizeof *copy);
    for (int i = 0; copy && i < count; i++)
        if (!(copy[i] = mc_module_strdup(m->module.root, list[i]))) return NULL;
    return copy;
}

/* ---- modules to save ------------------------------------------------------------------------- */

/* Thaws what is within a module; false where the model has none. */
static bool thaw(mc_model *m, const char *kind, const char *module)
{
    mc_module_root *root = m->module.root;
    char name[MC_NAME_MAX];
    bool found = false;
    for (size_t i = 0; i < root->parameter_count && !mc_failed(root->ctx); i++) {
        mc_parameter *p = root->parameters[i];
        if (!mc_adapter_module_name(m, p, name) || !mc_adapter_is_within(name, module)) continue;
        if (p->stored->part_count > 1)
            mc_fail(root->ctx, MC_ERR_UNSUPPORTED,
                    "%s: module to save \"%s\": \"%s\" is stored with others and is not trained "
                    "alone",
                    kind, module, p->name);
        if (!mc_adapter_can_train(m, kind, p)) return false;
        p->stored->trainable = p->in_adapter = found = true;
    }
    return found;
}

/* PEFT adds "classifier" and "score" to the list of every classifier, whatever the model has. */
static bool may_be_missing(const char *module)
{
    return strcmp(module, "classifier") == 0 || strcmp(module, "score") == 0;
}

static void thaw_modules(mc_model *m, const mc_model_adapter *a)
{
    mc_context *ctx = m->module.ctx;
    for (const char *const *module = a->modules; *module && !mc_failed(ctx); module++)
        if (!thaw(m, a->kind, *module) && !mc_failed(ctx) && !may_be_missing(*module))
            mc_fail(ctx, MC_ERR_NOT_FOUND, "%s: the %s model has no module to save \"%s\"", a->kind,
                    m->family->title, *module);
}

/* ---- what the base lacks --------------------------------------------------------------------- */

/* Whether a module has a parameter that is not new. */
static bool has_old(const mc_model *m, const char *module)
{
    char name[MC_NAME_MAX];
    for (size_t i = 0; i < m->module.root->parameter_count; i++) {
        const mc_parameter *p = m->module.root->parameters[i];
        if (!p->is_new && mc_adapter_module_name(m, p, name) && mc_adapter_is_within(name, module))
            return true;
    }
    return false;
}

/* The highest module that has the parameter and nothing that is not new, as `transformers` calls
 * it: "cls", or "cls.seq_relationship" where cls has an older head, too. */
static void name_new_module(const mc_model *m, const mc_parameter *p, char out[MC_NAME_MAX])
{
    char name[MC_NAME_MAX];
    if (!mc_weight_name(m->family->map, (int)m->shape.layers, p->name, false, name))
        snprintf(name, sizeof name, "%s", p->name);
    char *end = strrchr(name, '.');
    if (end) *end = '\0';
    for (size_t length = 0;; length++) {
        length += strcspn(name + length, ".");
        snprintf(out, MC_NAME_MAX, "%.*s", (int)length, name);
        if (!name[length] || !has_old(m, out)) return;
    }
}

/* Adds a name to those that the adapter lists. */
static bool list_module(mc_model *m, mc_model_adapter *a, const char *name)
{
    const char *names[MC_ADAPTER_NAMES + 2];
    int count = 0;
    for (; a->modules[count]; count++) names[count] = a->modules[count];
    names[count] = name;
    names[count + 1] = NULL;
    a->modules = mc_adapter_copy_list(m, a->kind, names, "modules to save");
    return a->modules;
}

/* PEFT requires all of a module to save, of a masked language model's head the words' table, too:
 * it gets a table of its own when the model is loaded (mc_adapter_untie), and not later. */
static bool refuse_tied(mc_model *m, const mc_model_adapter *a, const mc_parameter *p)
{
    bool tied = m->shape.kind == MC_MODEL_ENCODER && m->heads.lm && !m->head_weight;
    if (tied && strncmp(p->name, "lm_head.", strlen("lm_head.")) == 0)
        mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
                "%s: the new language model's head of %s has the words' table, which PEFT saves "
                "with it: give the adapter when the model is loaded (mc_load_options)",
                a->kind, m->family->title);
    return mc_failed(m->module.ctx);
}

/* Trains and lists what is new, as the default is for a head. */
static void save_new(mc_model *m, mc_model_adapter *a)
{
    mc_module_root *root = m->module.root;
    char module[MC_NAME_MAX];
    for (size_t i = 0; i < root->parameter_count && !mc_failed(root->ctx); i++) {
        const mc_parameter *p = root->parameters[i];
        if (!p->is_new || p->in_adapter) continue;
        if (refuse_tied(m, a, p)) return;
        name_new_module(m, p, module);
        if (thaw(m, a->kind, module)) list_module(m, a, module);
    }
}

/* The classification head's module: the first part of its matrix's name. */
static const char *const *default_modules(mc_model *m, const char *kind)
{
    char head[MC_NAME_MAX] = "";
    const char *list[2] = {NULL, NULL};
    const char *name = m->heads.labels ? m->family->classifier : NULL;
    if (m->token_head) name = mc_linear_module(m->token_head)->name;
    if (name) snprintf(head, sizeof head, "%.*s", (int)strcspn(name, "."), name);
    if (*head) list[0] = head;
    return mc_adapter_copy_list(m, kind, list, "modules to save");
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* Whether the model's values are those of its files, which an adapter is trained for. */
static bool can_have_one(mc_model *m, const char *kind)
{
    mc_context *ctx = m->module.ctx;
    int scaling = 0;
    if (m->adapter)
        return !mc_fail(ctx, MC_ERR_STATE, "%s: the model has %s already", kind,
                        m->adapter->lora.rank ? "factors" : "virtual tokens");
    void *config = mc_malloc(m->family->config_size);
    if (!config) return !mc_fail_nomem(ctx, "a config");
    memcpy(config, m->config, m->family->config_size);
    bool can = m->family->own_form || !m->family->before_save ||
               m->family->before_save(m, MC_FORM_HF, config, &scaling);
    mc_free(config);
    if (can && scaling)
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: %s in ModelCenter's divided form: convert the model to Hugging Face's form "
                "first",
                kind, m->family->title);
    return !mc_failed(ctx);
}

mc_model_adapter *mc_adapter_begin(mc_model *m, const char *kind, const char *const *modules,
                                   const char *base)
{
    mc_module_root *root = m->module.root;
    mc_model_adapter *a = mc_module_alloc(root, sizeof *a);
    if (!a || !can_have_one(m, kind)) return NULL;
    if (!base) base = m->source;
    a->kind = kind;
    a->modules = modules ? mc_adapter_copy_list(m, kind, modules, "modules to save")
                         : default_modules(m, kind);
    a->base = base ? mc_module_strdup(root, base) : NULL;
    if (mc_failed(root->ctx)) return NULL;
    mc_module_set_trainable(&m->module, NULL, false);
    thaw_modules(m, a);
    if (!mc_failed(root->ctx)) save_new(m, a);
    return mc_failed(root->ctx) ? NULL : a;
}

int64_t mc_model_trainable_count(mc_model *m)
{
    int64_t count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(m), &it));)
        if (p->stored->trainable) count += mc_shape_count(p->shape);
    return count;
}
