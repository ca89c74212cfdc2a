#include "core/checkpoint/config_json_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct name_value {
    const char *name;
    int value;
} name_value;

static const name_value activations[] = {{"gelu", MC_ACTIVATION_GELU},
                                         {"gelu_new", MC_ACTIVATION_GELU_NEW},
                                         {"gelu_pytorch_tanh", MC_ACTIVATION_GELU_NEW},
                                         {"relu", MC_ACTIVATION_RELU},
                                         {NULL, 0}};

static const name_value dtypes[] = {
    {"float32", MC_F32}, {"float16", MC_F16}, {"bfloat16", MC_BF16}, {NULL, 0}};

static const name_value *find_name(const name_value *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

static const char *name_of(const name_value *table, int value)
{
    for (; table->name; table++)
        if (table->value == value) return table->name;
    return "";
}

/* ---- reading --------------------------------------------------------------------------------- */

bool mc_config_size(mc_config_reader *r, const char *key, const char *other, int64_t low,
                    int64_t *out)
{
    const int64_t high = (int64_t)1 << 31;
    return mc_json_get_int(r->err, r->json, r->path, other, low, high, out) &&
           mc_json_get_int(r->err, r->json, r->path, key, low, high, out);
}

bool mc_config_float(mc_config_reader *r, const char *key, const char *other, double low,
                     double high, float *out)
{
    double value = (double)*out;
    bool good = mc_json_get_number(r->err, r->json, r->path, other, low, high, &value) &&
                mc_json_get_number(r->err, r->json, r->path, key, low, high, &value);
    *out = (float)value;
    return good;
}

bool mc_config_dropout(mc_config_reader *r, const char *key, const char *other, float *out)
{
    return mc_config_float(r, key, other, 0, 1 - 1e-6, out);
}

bool mc_config_flag(mc_config_reader *r, const char *key, const char *other, bool *out)
{
    return mc_json_get_bool(r->err, r->json, r->path, other, out) &&
           mc_json_get_bool(r->err, r->json, r->path, key, out);
}

bool mc_config_string(mc_config_reader *r, const char *key, const char *other, const char **out)
{
    return mc_json_get_string(r->err, r->json, r->path, other, out) &&
           mc_json_get_string(r->err, r->json, r->path, key, out);
}

bool mc_config_activation(mc_config_reader *r, const char *key, const char *other,
                          mc_activation *out)
{
    const char *name = NULL;
    if (!mc_config_string(r, key, other, &name)) return false;
    if (!name) return true;
    const name_value *found = find_name(activations, name);
    if (!found)
        return mc_config_unsupported(r, key, name, "gelu, gelu_new, gelu_pytorch_tanh or relu");
    *out = (mc_activation)found->value;
    return true;
}

bool mc_config_dtype(mc_config_reader *r, mc_dtype *out)
{
    const char *name = "float32";
    if (!mc_config_string(r, "dtype", "torch_dtype", &name)) return false;
    const name_value *found = find_name(dtypes, name);
    if (!found) return mc_config_unsupported(r, "dtype", name, "float32, float16 or bfloat16");
    *out = (mc_dtype)found->value;
    return true;
}

bool mc_config_must_be(mc_config_reader *r, const char *key, bool expected)
{
    bool found = expected;
    if (!mc_json_get_bool(r->err, r->json, r->path, key, &found)) return false;
    return found == expected ||
           mc_config_unsupported(r, key, expected ? "false" : "true", expected ? "true" : "false");
}

bool mc_config_unsupported(mc_config_reader *r, const char *key, const char *found,
                           const char *expected)
{
    mc_error_set(r->err, MC_ERR_UNSUPPORTED, "%s: key \"%s\": \"%s\" is not supported, expected %s",
                 r->path, key, found, expected);
    return false;
}

/* ---- writing --------------------------------------------------------------------------------- */

bool mc_config_add_activation(cJSON *json, const char *key, mc_activation activation)
{
    return cJSON_AddStringToObject(json, key, name_of(activations, (int)activation));
}

bool mc_config_add_dtype(cJSON *json, mc_dtype dtype)
{
    return cJSON_AddStringToObject(json, "torch_dtype", name_of(dtypes, (int)dtype));
}

bool mc_config_add_float(cJSON *json, const char *key, float value)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return cJSON_AddRawToObject(json, key, text);
}
