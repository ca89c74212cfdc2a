/* Labels of classifiers: their names, their order, and those of a folder that is not loaded. */
#include <stdio.h>
#include <string.h>
#include "core/hub/find_internal.h"
#include "models/adapters/adapter_internal.h"

enum { NAME_ROOM = 32 };

/* ---- names ----------------------------------------------------------------------------------- */

static void number_name(char out[NAME_ROOM], int k) { snprintf(out, NAME_ROOM, "LABEL_%d", k); }

bool mc_labels_name(mc_model *m)
{
    mc_module_root *root = m->module.root;
    char name[NAME_ROOM];
    m->label_names = mc_module_alloc(root, ((size_t)m->heads.labels + 1) * sizeof(char *));
    for (int k = 0; m->label_names && k < m->heads.labels; k++) {
        number_name(name, k);
        m->label_names[k] = mc_module_strdup(root, name);
    }
    return !mc_failed(root->ctx);
}

bool mc_labels_in_config(const cJSON *config, int count, const char **names)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, "id2label");
    if (!cJSON_IsObject(list) || cJSON_GetArraySize(list) != count) return false;
    for (int k = 0; k < count; k++) {
        char key[NAME_ROOM];
        snprintf(key, sizeof key, "%d", k);
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(list, key);
        if (!cJSON_IsString(name)) return false;
        names[k] = name->valuestring;
    }
    return count > 0;
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Row from[i] of a parameter of `rows` rows becomes row i. */
static bool move_rows(mc_parameter *p, const int *from, int rows)
{
    int64_t count = mc_shape_count(p->shape), width = count / rows;
    float *values = mc_malloc(2 * (size_t)count * sizeof *values), *moved = values + count;
    if (!values) return !mc_fail_nomem(p->module->ctx, "the rows of a classifier");
    bool good = !mc_parameter_read(p, values);
    for (int i = 0; good && i < rows; i++)
        memcpy(moved + i * width, values + from[i] * width, (size_t)width * sizeof *values);
    good = good && !mc_parameter_write(p, moved);
    mc_free(values);
    return good;
}

/* Whether each number is there once. */
static bool is_order(const int *from, int count)
{
    bool taken[MC_MODEL_MAX_LABELS] = {false};
    for (int i = 0; i < count; i++) {
        if (from[i] < 0 || from[i] >= count || taken[from[i]]) return false;
        taken[from[i]] = true;
    }
    return true;
}

mc_status mc_model_order_labels(mc_model *m, const int *from)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    int labels = m->heads.labels;
    char *names[MC_MODEL_MAX_LABELS], bias[MC_NAME_MAX];
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!labels || !from || !is_order(from, labels))
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       "%s: an order of its %d labels, expected 0 to %d each once",
                       m->family->title, labels, labels - 1);
    const char *weight = m->family->classifier;
    snprintf(bias, sizeof bias, "%.*sbias", (int)(strrchr(weight, '.') + 1 - weight), weight);
    mc_parameter *both[] = {mc_module_find_parameter(&m->module, weight),
                            mc_module_find_parameter(&m->module, bias)};
    for (int i = 0; i < 2; i++)
        if (both[i] && !move_rows(both[i], from, labels)) return mc_error_status(ctx);
    for (int k = 0; k < labels; k++) names[k] = m->label_names[from[k]];
    memcpy(m->label_names, names, (size_t)labels * sizeof *names);
    return mc_error_status(ctx);
}

/* ---- of a folder ----------------------------------------------------------------------------- */

static const mc_family *family_of(const cJSON *config)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(config, "model_type");
    return cJSON_IsString(type) ? mc_family_of_type(type->valuestring) : NULL;
}

/* What is read of a folder, and of the adapter's that it is the base of. */
typedef struct found {
    cJSON *config, *own; /* the model's, and what the adapter's folder says in its place */
    int count;
} found;

static cJSON *read_config(mc_context *ctx, const char *folder)
{
    char path[MC_PATH_MAX];
    if (mc_path_join(&ctx->error, path, folder, "config.json") || !mc_path_is_file(path))
        return NULL;
    return mc_json_read_object(&ctx->error, path, 1 << 24);
}

static void look_at_model(mc_context *ctx, const char *folder, const mc_load_options *o, found *f)
{
    f->config = read_config(ctx, folder);
    const mc_family *family = f->config ? family_of(f->config) : NULL;
    if (mc_failed(ctx) || !family || !family->classifier) return;
    mc_tensor_file *file =
        mc_tensor_file_open(ctx, folder, &(mc_tensor_file_options){.variant = o->variant});
    if (file) mc_weights_unwrap(family->map, "input_embedding.weight", file, folder);
    if (file) f->count = mc_classes_in_file(family->map, file, family->classifier);
    mc_tensor_file_free(file);
}

static void look_at_adapter(mc_context *ctx, const char *folder, const mc_load_options *given,
                            found *f)
{
    mc_load_options options = *given;
    mc_adapter_file adapter;
    char base[MC_PATH_MAX];
    if (mc_adapter_file_open(ctx, folder, &adapter)) {
        const char *name = mc_adapter_file_base(&adapter, &options);
        if (name && !mc_model_find_folder(ctx, name, &options, base))
            look_at_model(ctx, base, &options, f);
        else if (name)
            mc_hub_say_base(&ctx->error, folder, given->base);
        const mc_family *family = f->config ? family_of(f->config) : NULL;
        int count = family ? mc_adapter_file_classes(&adapter, family) : 0;
        if (count) f->count = count;
        f->own = read_config(ctx, folder);
    }
    mc_adapter_file_release(&adapter);
}

/* The names in memory of their own. */
static bool copy_names(const found *f, mc_model_labels *out)
{
    const char *names[MC_MODEL_MAX_LABELS];
    bool named = mc_labels_in_config(f->own, f->count, names) ||
                 mc_labels_in_config(f->config, f->count, names);
    size_t room = (size_t)f->count * sizeof(char *), size = room + 1;
    for (int k = 0; k < f->count; k++) size += named ? strlen(names[k]) + 1 : NAME_ROOM;
    char *memory = mc_malloc(size), *at = memory + room;
    if (!memory) return false;
    out->memory = out->name = (void *)memory;
    for (int k = 0; k < f->count; k++) {
        out->name[k] = at;
        if (named)
            memcpy(at, names[k], strlen(names[k]) + 1);
        else
            number_name(at, k);
        at += strlen(at) + 1;
    }
    out->count = f->count;
    return true;
}

mc_status mc_model_labels_read(mc_context *ctx, const char *identifier,
                               const mc_load_options *options, mc_model_labels *out)
{
    const mc_load_options none = {0};
    char folder[MC_PATH_MAX];
    const char *type = NULL;
    found f = {0};
    if (!mc_given(ctx, out)) return MC_ERR_ARGUMENT;
    *out = (mc_model_labels){0};
    if (!options) options = &none;
    if (mc_failed(ctx) || (identifier && mc_path_is_file(identifier))) return mc_error_status(ctx);
    if (mc_model_find_folder(ctx, identifier, options, folder)) return mc_error_status(ctx);
    if (mc_hub_is_adapter(folder))
        look_at_adapter(ctx, folder, options, &f);
    else
        look_at_model(ctx, folder, options, &f);
    const cJSON *says = f.own ? f.own : f.config;
    if (says && !mc_failed(ctx))
        mc_json_get_string(&ctx->error, says, "config.json", "problem_type", &type);
    out->problem_type = mc_problem_type_of(type);
    if (!mc_failed(ctx) && !copy_names(&f, out)) mc_fail_nomem(ctx, "the names of labels");
    cJSON_Delete(f.config);
    cJSON_Delete(f.own);
    return mc_error_status(ctx);
}

void mc_model_labels_release(mc_model_labels *labels)
{
    if (!labels) return;
    mc_free(labels->memory);
    *labels = (mc_model_labels){0};
}
