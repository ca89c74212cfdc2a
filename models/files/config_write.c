/* Configs by their family's table of rows: writing either form, and what a form cannot say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/number_internal.h"
#include "models/family_internal.h"

static bool ends(const mc_config_row *row) { return row->kind == MC_CONFIG_END; }

/* 0.1, not 0.10000000149. Whole numbers get a point: transformers 5 refuses 1 where it expects a
 * float. */
bool mc_config_add_float(cJSON *json, const char *key, float value)
{
    char text[MC_NUMBER_ROOM], number[MC_NUMBER_ROOM + 2];
    mc_number_print_float(text, 6, value);
    snprintf(number, sizeof number, "%s%s", text, text[strcspn(text, ".e")] ? "" : ".0");
    return cJSON_AddRawToObject(json, key, number);
}

static bool add_parsed(cJSON *json, const char *key, const char *value)
{
    cJSON *item = mc_json_parse_own(value);
    if (item && cJSON_AddItemToObject(json, key, item)) return true;
    cJSON_Delete(item);
    return false;
}

static bool write_row(const mc_config_row *row, mc_config_form form, const void *config,
                      cJSON *json)
{
    const char *key = row->key[form];
    const void *member = (const char *)config + row->member;
    switch (row->kind) {
    case MC_CONFIG_END: break;
    case MC_CONFIG_SIZE:
    case MC_CONFIG_LAYERS:
    case MC_CONFIG_EACH:
        return cJSON_AddNumberToObject(json, key, (double)*(const int64_t *)member);
    case MC_CONFIG_ROPE: return mc_config_add_rope(json, key, member);
    case MC_CONFIG_OPTIONAL:
    case MC_CONFIG_TOKEN:
        return *(const int64_t *)member < 0
                   ? cJSON_AddNullToObject(json, key)
                   : cJSON_AddNumberToObject(json, key, (double)*(const int64_t *)member);
    case MC_CONFIG_DROPOUT:
    case MC_CONFIG_FLOAT: return mc_config_add_float(json, key, *(const float *)member);
    case MC_CONFIG_WORD:
        return cJSON_AddStringToObject(json, key, row->words[*(const int64_t *)member]);
    case MC_CONFIG_FLAG: return cJSON_AddBoolToObject(json, key, *(const bool *)member);
    case MC_CONFIG_ACTIVATION: {
        mc_ffn_kind kind = {.activation = *(const mc_activation *)member};
        return cJSON_AddStringToObject(json, key, mc_config_activation(kind, form));
    }
    case MC_CONFIG_FFN:
        return cJSON_AddStringToObject(json, key,
                                       mc_config_activation(*(const mc_ffn_kind *)member, form));
    case MC_CONFIG_ONLY: return add_parsed(json, key, row->value[form]);
    case MC_CONFIG_TYPE: /* which add_common writes for every family */
    case MC_CONFIG_KNOWN: return true;
    }
    return false;
}

const char *mc_config_type(const mc_family *family, const void *config)
{
    const char *type = NULL;
    for (const mc_config_row *row = family->rows; !ends(row); row++)
        if (row->kind == MC_CONFIG_TYPE)
            type = *(const char *const *)((const char *)config + row->member);
    return type ? type : family->model_type[0];
}

mc_config_form mc_config_form_for(const mc_family *family)
{
    return family->own_form ? MC_FORM_MC : MC_FORM_HF;
}

bool mc_config_write(const mc_family *family, mc_config_form form, const void *config, cJSON *json)
{
    const char *type = mc_config_type(family, config);
    for (const mc_config_row *row = family->rows; !ends(row); row++) {
        const char *key = row->key[form];
        if (key && !row->other_name && mc_config_has_row(row, type) &&
            !cJSON_HasObjectItem(json, key) && !write_row(row, form, config, json))
            return false;
    }
    return true;
}

/* Whether a row's value in `b` computes what that in `a` does. Initial values, dropout and tokens
 * do not count; a size of 0 is no limit. */
static bool computes_same(const mc_config_row *row, const void *a, const void *b)
{
    const void *x = (const char *)a + row->member, *y = (const char *)b + row->member;
    const mc_ffn_kind *p = x, *q = y;
    switch (row->kind) {
    case MC_CONFIG_SIZE:
    case MC_CONFIG_LAYERS:
    case MC_CONFIG_EACH:
        return *(const int64_t *)x == *(const int64_t *)y || *(const int64_t *)y == 0;
    case MC_CONFIG_OPTIONAL: return *(const int64_t *)x == *(const int64_t *)y;
    case MC_CONFIG_ROPE: return memcmp(x, y, sizeof(mc_rope)) == 0;
    case MC_CONFIG_FLOAT:
        return !(strstr(row->key[MC_FORM_HF], "eps") || strstr(row->key[MC_FORM_HF], "theta")) ||
               *(const float *)x == *(const float *)y;
    case MC_CONFIG_WORD: return *(const int64_t *)x == *(const int64_t *)y;
    case MC_CONFIG_FLAG: return *(const bool *)x == *(const bool *)y;
    case MC_CONFIG_ACTIVATION: return *(const mc_activation *)x == *(const mc_activation *)y;
    case MC_CONFIG_FFN: return p->activation == q->activation && p->gated == q->gated;
    case MC_CONFIG_END:
    case MC_CONFIG_TOKEN:
    case MC_CONFIG_DROPOUT:
    case MC_CONFIG_TYPE:
    case MC_CONFIG_ONLY:
    case MC_CONFIG_KNOWN: break;
    }
    return true;
}

const char *mc_config_lost(const mc_family *family, const void *from, const void *to)
{
    for (const mc_config_row *row = family->rows; !ends(row); row++)
        if (row->key[MC_FORM_HF] && !row->other_name && !computes_same(row, from, to))
            return row->key[MC_FORM_HF];
    /* computed alike, but it would come back as another model's */
    if (strcmp(mc_config_type(family, from), mc_config_type(family, to)) != 0) return "model_type";
    return NULL;
}

/* ---- keys without a row ---------------------------------------------------------------------- */

/* What save() writes itself, or would be wrong of the model that is saved. */
static bool is_written_anyway(const mc_model *m, const char *key)
{
    static const char *const ours[] = {"_name_or_path",
                                       "_num_labels",
                                       "architectures",
                                       "dtype",
                                       "id2label",
                                       "label2id",
                                       "model_type",
                                       "modelcenter_task",
                                       "num_labels",
                                       "problem_type",
                                       "quantization_config",
                                       "torch_dtype",
                                       "transformers_version",
                                       NULL};
    for (const char *const *name = ours; *name; name++)
        if (strcmp(*name, key) == 0) return true;
    const char *type = mc_config_type(m->family, m->config);
    for (const mc_config_row *row = m->family->rows; !ends(row); row++)
        if (row->key[MC_FORM_HF] && strcmp(row->key[MC_FORM_HF], key) == 0 &&
            mc_config_has_row(row, type))
            return true;
    return false;
}

bool mc_config_keep_others(mc_model *m, const mc_config_reader *r)
{
    cJSON *others = r->form == MC_FORM_HF ? cJSON_Duplicate(r->json, true) : NULL;
    if (r->form != MC_FORM_HF) return true;
    for (cJSON *item = others ? others->child : NULL, *next; item; item = next) {
        next = item->next;
        if (is_written_anyway(m, item->string))
            cJSON_Delete(cJSON_DetachItemViaPointer(others, item));
    }
    char *text = others ? cJSON_PrintUnformatted(others) : NULL;
    if (!text)
        mc_fail_nomem(r->ctx, "a config");
    else if (others->child)
        m->other_keys = mc_module_strdup(m->module.root, text);
    cJSON_free(text);
    cJSON_Delete(others);
    return !mc_failed(r->ctx);
}

bool mc_config_add_others(cJSON *json, const mc_model *m)
{
    if (!m->other_keys) return true;
    cJSON *others = mc_json_parse_own(m->other_keys);
    bool good = others;
    for (cJSON *item = others ? others->child : NULL, *next; good && item; item = next) {
        next = item->next;
        if (cJSON_HasObjectItem(json, item->string)) continue;
        cJSON_DetachItemViaPointer(others, item);
        good = cJSON_AddItemToObject(json, item->string, item);
        if (!good) cJSON_Delete(item);
    }
    cJSON_Delete(others);
    return good;
}
