/* Folders out: config.json and weights in Hugging Face's form or ModelCenter's. */
#include <stdio.h>
#include <string.h>
#include "core/checkpoint/model_folder.h"
#include "core/checkpoint/pretrained_internal.h"
#include "models/adapters/adapter_internal.h"

/* ---- config.json ----------------------------------------------------------------------------- */

static bool add_labels(cJSON *json, const mc_model *m)
{
    if (!m->heads.labels) return true;
    cJSON *id2label = cJSON_AddObjectToObject(json, "id2label");
    cJSON *label2id = cJSON_AddObjectToObject(json, "label2id");
    for (int i = 0; i < m->heads.labels; i++) {
        char key[16];
        const char *name = m->label_names[i];
        snprintf(key, sizeof key, "%d", i);
        cJSON_DeleteItemFromObjectCaseSensitive(label2id,
                                                name); /* a repeated name: the last one's */
        if (!cJSON_AddStringToObject(id2label, key, name) ||
            !cJSON_AddNumberToObject(label2id, name, i))
            return false;
    }
    return true;
}

static bool add_eos(cJSON *json, const mc_model *m)
{
    if (m->eos_count < 2) return true; /* the table's row says it */
    cJSON *list = cJSON_CreateIntArray(m->eos, m->eos_count);
    if (list && cJSON_AddItemToObject(json, "eos_token_id", list)) return true;
    cJSON_Delete(list);
    return false;
}

static const char *class_of(const mc_model *m)
{
    const char *type = mc_config_type(m->family, m->config);
    const mc_family_classes *c = m->family->classes;
    for (const char *const *at = m->family->model_type; at[1] && strcmp(*at, type) != 0; at++) c++;
    if (m->heads.labels) return c->labels;
    if (m->heads.replaced || (m->heads.lm && m->heads.nsp)) return c->pretraining;
    if (m->heads.nsp) return c->nsp;
    return m->heads.lm || !c->base ? c->lm : c->base;
}

/* What Hugging Face's form says beside the family's table. */
static bool add_common(cJSON *json, const mc_model *m)
{
    cJSON *list = cJSON_AddArrayToObject(json, "architectures");
    return list && cJSON_AddItemToArray(list, cJSON_CreateString(class_of(m))) &&
           cJSON_AddStringToObject(json, "model_type", mc_config_type(m->family, m->config)) &&
           mc_config_add_dtype(json, m->module.root->dtype) && add_eos(json, m) &&
           add_labels(json, m) &&
           (!m->problem_type || cJSON_AddStringToObject(json, "problem_type", m->problem_type)) &&
           (!m->task || cJSON_AddStringToObject(json, "modelcenter_task", m->task));
}

static bool has_key(const mc_family *family, const char *key)
{
    for (const mc_config_row *row = family->rows; row->kind != MC_CONFIG_END; row++)
        if (row->key[MC_FORM_MC] && strcmp(row->key[MC_FORM_MC], key) == 0) return true;
    return false;
}

/* What ModelCenter's form says beside the family's table. "model_type" is ours, for CPM: by its
 * weights a CPM-2 may be a T5 as well. ModelCenter itself refuses keys that it does not know. */
static bool add_own_form(cJSON *json, const mc_model *m)
{
    bool half = m->module.root->dtype == MC_F16;
    int units = m->heads.token_labels;
    return cJSON_AddBoolToObject(json, "half", half) &&
           (!m->family->own_form ||
            cJSON_AddStringToObject(json, "model_type", m->family->model_type[0])) &&
           (!has_key(m->family, "dim_head") ||
            cJSON_AddNumberToObject(json, "dim_head", (double)m->shape.head_dim)) &&
           (!units || cJSON_AddNumberToObject(json, "cls_head", units));
}

/* The other name of a key, which the file that was read may have in its place; NULL: none. */
static const char *other_name_of(const mc_family *family, const char *key)
{
    const mc_config_row *rows = family->rows, *row = rows;
    while (row->kind != MC_CONFIG_END &&
           !(row->key[MC_FORM_HF] && strcmp(row->key[MC_FORM_HF], key) == 0))
        row++;
    for (const mc_config_row *other = rows; other->kind != MC_CONFIG_END; other++)
        if (other->other_name && other->kind == row->kind && other->member == row->member)
            return other->key[MC_FORM_HF];
    return NULL;
}

static void fail_lost(const mc_model *m, const char *key)
{
    const char *other = other_name_of(m->family, key);
    mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
            "%s: the value of \"%s\"%s%s%s has no ModelCenter form", m->family->title, key,
            other ? " (or \"" : "", other ? other : "", other ? "\")" : "");
}

/* ModelCenter's form has fewer keys: what the text says has to be the same model again. */
static bool check_own_form(mc_model *m, const char *text, const void *config)
{
    mc_context *ctx = m->module.ctx;
    const mc_family *family = m->family;
    cJSON *json = mc_json_parse_own(text);
    mc_config_reader r = {.ctx = ctx, .json = json, .path = "config.json", .form = MC_FORM_MC};
    void *again = mc_calloc(1, family->config_size);
    const char *lost = NULL;
    if (!json || !again)
        mc_fail_nomem(ctx, "a config");
    else if (mc_config_read(family, &r, again))
        lost = mc_config_lost(family, config, again);
    if (lost)
        fail_lost(m, lost);
    else if (!mc_failed(ctx) && !family->own_form && family->mc_is && !family->mc_is(json))
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: a config.json of ModelCenter's form would be taken for another family's",
                family->title);
    mc_free(again);
    cJSON_Delete(json);
    return !mc_failed(ctx);
}

/* The text of config.json (cJSON_free it). NULL when memory is out, or with an error. */
static char *print_config(mc_model *m, mc_config_form form, const void *config)
{
    cJSON *json = cJSON_CreateObject();
    bool own = form == MC_FORM_MC;
    char *text = NULL;
    if (json && (own ? add_own_form(json, m) : add_common(json, m)) &&
        mc_config_write(m->family, form, config, json) && (own || mc_config_add_others(json, m)))
        text = cJSON_Print(json);
    if (text && own && !check_own_form(m, text, config)) {
        cJSON_free(text);
        text = NULL;
    }
    cJSON_Delete(json);
    return text;
}

/* ---- saving ---------------------------------------------------------------------------------- */

bool mc_model_is_prefixed(const mc_model *m)
{
    const mc_model_heads *h = &m->heads;
    if (m->shape.kind == MC_MODEL_DECODER) return true;
    if (m->shape.kind == MC_MODEL_ENCODER_DECODER) return h->labels;
    return h->lm || h->nsp || h->labels || h->replaced;
}

/* Writes the folder; of a model with one, an adapter's. */
static void write_folder(mc_model *m, const char *folder, mc_pretrained_folder *what)
{
    mc_context *ctx = m->module.ctx;
    mc_weight_map map = mc_adapter_map(m->family, mc_virtual_tokens(m) > 0);
    char *adapter = m->adapter ? mc_adapter_config_text(m) : NULL;
    if (m->adapter) {
        what->form.map = &map;
        what->form.own_names = false; /* the map has names for all */
    }
    what->adapter = adapter;
    if (!mc_failed(ctx)) mc_pretrained_write(what, folder);
    cJSON_free(adapter);
}

static void save(mc_model *m, const char *folder, mc_config_form form, int64_t max_shard_size)
{
    mc_context *ctx = m->module.ctx;
    void *config = mc_malloc(m->family->config_size);
    if (!config) {
        mc_fail_nomem(ctx, "a config");
        return;
    }
    mc_pretrained_folder what = {.model = &m->module,
                                 .form = {.map = m->family->map,
                                          .layers = (int)m->shape.layers,
                                          .prefixed = mc_model_is_prefixed(m),
                                          .own_names = form == MC_FORM_MC,
                                          .max_shard_size = max_shard_size}};
    memcpy(config, m->config, m->family->config_size);
    if (!m->family->before_save || m->family->before_save(m, form, config, &what.form.scaling)) {
        char *text = print_config(m, form, config);
        what.config = text;
        what.generation = m->adapter ? NULL : m->generation.text; /* an adapter's is its base's */
        char *image = m->adapter ? NULL : mc_image_form_text(m);
        what.preprocessor = image;
        if (!mc_failed(ctx)) write_folder(m, folder, &what);
        mc_free(image);
        cJSON_free(text);
    }
    mc_free(config);
}

/* An adapter has one form, PEFT's, with names of ours where there are no others. */
static bool check_adapter(const mc_model *m, mc_config_form form)
{
    mc_context *ctx = m->module.ctx;
    if (!m->adapter) return true;
    if (!m->adapter->base)
        mc_fail(ctx, MC_ERR_STATE,
                "the model was not loaded from anywhere that the adapter could name as its base: "
                "save it first, or set the options' base");
    else if (form != mc_config_form_for(m->family))
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "an adapter has no ModelCenter form: merge it into its base first");
    return !mc_failed(ctx);
}

/* Whether the model can be said in a form at all. */
static bool has_form(const mc_model *m, mc_config_form form)
{
    mc_context *ctx = m->module.ctx;
    const char *title = m->family->title;
    if (form == MC_FORM_HF && m->family->own_form)
        mc_fail(
            ctx, MC_ERR_UNSUPPORTED,
            "%s has no Hugging Face form, expected ModelCenter's: transformers has no such model",
            title);
    else if (form == MC_FORM_MC && m->family->hf_only)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s has no ModelCenter form, expected Hugging Face's",
                title);
    else if (form == MC_FORM_HF && m->heads.token_labels)
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "%s: ModelCenter's head of %d units a token has no Hugging Face form", title,
                m->heads.token_labels);
    else if (form == MC_FORM_MC && m->heads.labels)
        mc_fail(
            ctx, MC_ERR_UNSUPPORTED,
            "%s: a head that classifies sequences in Hugging Face's way has no ModelCenter form",
            title);
    return !mc_failed(ctx);
}

mc_status mc_model_save(mc_model *m, const char *folder)
{
    return mc_model_save_as(m, folder, NULL);
}

mc_status mc_save_pretrained(mc_model *model, const mc_tokenizer *tokenizer, const char *folder,
                             const mc_save_options *options)
{
    char aside[MC_PATH_MAX];
    if (!model) return MC_ERR_ARGUMENT;
    mc_context *ctx = model->module.ctx;
    bool texts = !model->family->has.pixels;
    if (mc_failed(ctx) || (texts && !mc_given(ctx, tokenizer)) || !mc_given(ctx, folder))
        return mc_error_status(ctx);
    mc_status status = mc_model_folder_begin(ctx, folder, aside, sizeof aside);
    if (status) return status;
    if (!tokenizer || mc_tokenizer_save(tokenizer, aside) == MC_OK)
        mc_model_save_as(model, aside, options);
    mc_model_folder_commit(ctx, folder);
    return mc_error_status(ctx);
}

mc_status mc_model_save_as(mc_model *m, const char *folder, const mc_save_options *given)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    mc_save_options options = given ? *given : (mc_save_options){0};
    mc_config_form form = mc_config_form_for(m->family);
    if (options.form) form = options.form == MC_SAVE_HUGGING_FACE ? MC_FORM_HF : MC_FORM_MC;
    if (mc_failed(ctx) || !mc_given(ctx, folder)) return mc_error_status(ctx);
    if (mc_save_options_check(ctx, &options) && has_form(m, form) && check_adapter(m, form))
        save(m, folder, form, m->adapter ? 0 : options.max_shard_size);
    mc_error_while(&ctx->error, "saving %s to \"%s\"", m->family->title, folder);
    return mc_error_status(ctx);
}
