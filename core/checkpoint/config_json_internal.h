/* Reading and writing the config.json of a model: what all families share. Keys are Hugging Face's,
 * and ModelCenter's where they differ; of two that are there Hugging Face's counts. */
#ifndef MC_CHECKPOINT_CONFIG_JSON_INTERNAL_H
#define MC_CHECKPOINT_CONFIG_JSON_INTERNAL_H

#include "core/base/json_internal.h"
#include "core/device/activation.h"
#include "core/tensor/dtype.h"

typedef struct mc_config_reader {
    mc_error *err;
    const cJSON *json;
    const char *path;
} mc_config_reader;

/* Each leaves *out alone where neither key is there (or is null), and returns false only on an
 * error, which names file and key. */
bool mc_config_size(mc_config_reader *r, const char *key, const char *other, int64_t low,
                    int64_t *out); /* a whole number from low to 2^31 */
bool mc_config_float(mc_config_reader *r, const char *key, const char *other, double low,
                     double high, float *out);
/* A probability of dropout: from 0 to less than 1. */
bool mc_config_dropout(mc_config_reader *r, const char *key, const char *other, float *out);
bool mc_config_flag(mc_config_reader *r, const char *key, const char *other, bool *out);
bool mc_config_string(mc_config_reader *r, const char *key, const char *other, const char **out);
/* gelu, gelu_new, gelu_pytorch_tanh, relu; others are unsupported. */
bool mc_config_activation(mc_config_reader *r, const char *key, const char *other,
                          mc_activation *out);
/* The dtype the model was saved in ("dtype" or "torch_dtype"; f32 where it says none). */
bool mc_config_dtype(mc_config_reader *r, mc_dtype *out);
/* Checks that a flag, if it is there, has the one value that is supported. */
bool mc_config_must_be(mc_config_reader *r, const char *key, bool expected);
/* Sets MC_ERR_UNSUPPORTED for a key's value; returns false. */
bool mc_config_unsupported(mc_config_reader *r, const char *key, const char *found,
                           const char *expected);

/* For writing: each returns false when memory is out. */
bool mc_config_add_activation(cJSON *json, const char *key, mc_activation activation);
bool mc_config_add_dtype(cJSON *json, mc_dtype dtype);
/* A float as the shortest decimal that reads back as the same float: 0.1, not 0.10000000149. */
bool mc_config_add_float(cJSON *json, const char *key, float value);

#endif
