/* Rotary positions in config.json: how angles are scaled for long sequences. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/base/json_keys_internal.h"
#include "models/family_internal.h"

/* What of an object is read, for errors. */
typedef struct rope_reader {
    const mc_config_reader *r;
    const char *key; /* of the object */
    const cJSON *object;
} rope_reader;

static const struct {
    const char *name;
    mc_rotary_type type;
} types[] = {{"default", MC_ROTARY_DEFAULT},
             {"linear", MC_ROTARY_LINEAR},
             {"llama3", MC_ROTARY_LLAMA3},
             {"yarn", MC_ROTARY_YARN}};
enum { TYPES = sizeof types / sizeof *types };

static bool fail_key(const rope_reader *p, const char *key, const char *expected)
{
    char *found = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(p->object, key));
    mc_fail(p->r->ctx, MC_ERR_FORMAT, "%s: key \"%s.%s\": expected %s, found %.60s", p->r->path,
            p->key, key, expected, found ? found : "nothing");
    cJSON_free(found);
    return false;
}

/* A number above 0; `none` where it is missing or null, which is an error of a NaN. */
static bool read_positive(const rope_reader *p, const char *key, double none, float *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(p->object, key);
    double number = item && !cJSON_IsNull(item) ? item->valuedouble : none;
    bool good = !item || cJSON_IsNull(item) || cJSON_IsNumber(item);
    if (!good || !(number > 0 && number < 1e30)) return fail_key(p, key, "a number above 0");
    *out = (float)number;
    return true;
}

static bool read_type(const rope_reader *p, mc_rotary_type *out)
{
    const char *key = "rope_type";
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(p->object, key);
    if (!item) item = cJSON_GetObjectItemCaseSensitive(p->object, key = "type");
    *out = MC_ROTARY_DEFAULT;
    if (!item) return true;
    if (!cJSON_IsString(item)) return fail_key(p, key, "the name of a type");
    for (int i = 0; i < TYPES; i++)
        if (strcmp(types[i].name, item->valuestring) == 0) return *out = types[i].type, true;
    char name[64];
    snprintf(name, sizeof name, "%s.%s", p->key, key);
    return mc_config_unsupported(p->r, name, item->valuestring, "default, linear, llama3 or yarn");
}

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* Positions of the first training: beside the object they count before those in it. */
static bool read_original(const rope_reader *p, float *out)
{
    static const char key[] = "original_max_position_embeddings";
    double beside = number_of(p->r->json, key);
    if (!read_positive(p, key, number_of(p->r->json, "max_position_embeddings"), out)) return false;
    if (beside > 0) *out = (float)beside;
    return true;
}

static double yarn_scale(double factor, double m)
{
    return factor > 1 ? 0.1 * m * log(factor) + 1 : 1;
}

/* Whether there is a number other than 0. */
static bool has_number(const rope_reader *p, const char *key)
{
    double number = number_of(p->object, key);
    return number < 0 || number > 0;
}

/* Of YaRN: given, or from "mscale" and "mscale_all_dim", or from the factor alone. */
static bool read_attention_factor(const rope_reader *p, mc_rotary_scaling *s)
{
    float m = 1, all = 0;
    double factor = (double)s->factor;
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(p->object, "attention_factor");
    if (given && !cJSON_IsNull(given))
        return read_positive(p, "attention_factor", NAN, &s->attention_factor);
    if (has_number(p, "mscale") && has_number(p, "mscale_all_dim") &&
        !(read_positive(p, "mscale", NAN, &m) && read_positive(p, "mscale_all_dim", NAN, &all)))
        return false;
    s->attention_factor = (float)(yarn_scale(factor, (double)m) / yarn_scale(factor, (double)all));
    return true;
}

static bool read_yarn(const rope_reader *p, mc_rotary_scaling *s)
{
    const cJSON *truncate = cJSON_GetObjectItemCaseSensitive(p->object, "truncate");
    double ratio = number_of(p->r->json, "max_position_embeddings") / (double)s->original;
    bool exists = cJSON_HasObjectItem(p->object, "factor"); /* null: as the positions say */
    if (truncate && !cJSON_IsBool(truncate)) return fail_key(p, "truncate", "true or false");
    s->exact_range = cJSON_IsFalse(truncate);
    if (!read_positive(p, "factor", exists ? ratio : NAN, &s->factor) ||
        !read_positive(p, "beta_fast", 32, &s->high) || !read_positive(p, "beta_slow", 1, &s->low))
        return false;
    return s->low < s->high ? read_attention_factor(p, s)
                            : fail_key(p, "beta_fast", "more than \"beta_slow\"");
}

static bool read_llama3(const rope_reader *p, mc_rotary_scaling *s)
{
    if (!read_positive(p, "factor", NAN, &s->factor) ||
        !read_positive(p, "low_freq_factor", NAN, &s->low) ||
        !read_positive(p, "high_freq_factor", NAN, &s->high))
        return false;
    return s->low < s->high || fail_key(p, "high_freq_factor", "more than \"low_freq_factor\"");
}

static void warn_unknown(const rope_reader *p)
{
    static const char known[] = " rope_theta rope_type type factor beta_fast beta_slow truncate "
                                "attention_factor mscale mscale_all_dim low_freq_factor "
                                "high_freq_factor original_max_position_embeddings "
                                "partial_rotary_factor ";
    const cJSON *item;
    cJSON_ArrayForEach(item, p->object)
    {
        char word[96];
        snprintf(word, sizeof word, " %s ", item->string);
        if (!strstr(known, word)) mc_keys_warn_unknown(p->r->ctx, p->r->path, item->string);
    }
}

/* transformers 5 reads "rope_scaling" in place of all of "rope_parameters", the base included. Who
 * adds a scaling to a file does not mean that. */
static void warn_base(const rope_reader *p, float base)
{
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(p->r->json, "rope_parameters");
    if (strcmp(p->key, "rope_scaling") != 0 || cJSON_HasObjectItem(p->object, "rope_theta") ||
        !cJSON_HasObjectItem(all, "rope_theta"))
        return;
    mc_log(p->r->ctx, MC_LOG_WARNING,
           "%s: \"rope_scaling\" beside \"rope_parameters\": the base stays %g, but transformers 5 "
           "takes its default; give \"rope_scaling\" a \"rope_theta\"",
           p->r->path, (double)base);
}

bool mc_config_read_rope(const mc_config_reader *r, const char *key, const cJSON *item,
                         mc_rope *out)
{
    const rope_reader p = {r, key, item};
    mc_rotary_scaling *s = &out->scaling;
    const cJSON *part = cJSON_GetObjectItemCaseSensitive(item, "partial_rotary_factor");
    if (!cJSON_IsObject(item))
        return !mc_fail(r->ctx, MC_ERR_FORMAT, "%s: key \"%s\": expected an object", r->path, key);
    if (part && !cJSON_IsNull(part) && number_of(item, part->string) != 1)
        return fail_key(&p, part->string, "1: part of a head is not rotated alone");
    *s = (mc_rotary_scaling){0};
    if (!read_positive(&p, "rope_theta", (double)out->theta, &out->theta) ||
        !read_type(&p, &s->type))
        return false;
    warn_unknown(&p);
    warn_base(&p, out->theta);
    switch (s->type) {
    case MC_ROTARY_DEFAULT: return true;
    case MC_ROTARY_LINEAR: return read_positive(&p, "factor", NAN, &s->factor);
    case MC_ROTARY_LLAMA3: return read_original(&p, &s->original) && read_llama3(&p, s);
    case MC_ROTARY_YARN: return read_original(&p, &s->original) && read_yarn(&p, s);
    }
    return false;
}

bool mc_config_add_rope(cJSON *json, const char *key, const mc_rope *rope)
{
    const mc_rotary_scaling *s = &rope->scaling;
    if (s->type == MC_ROTARY_DEFAULT) return cJSON_AddNullToObject(json, key);
    cJSON *o = cJSON_AddObjectToObject(json, key);
    bool llama3 = s->type == MC_ROTARY_LLAMA3, yarn = s->type == MC_ROTARY_YARN;
    bool good = o && cJSON_AddStringToObject(o, "rope_type", types[s->type].name) &&
                mc_config_add_float(o, "factor", s->factor);
    if (llama3)
        good = good && mc_config_add_float(o, "low_freq_factor", s->low) &&
               mc_config_add_float(o, "high_freq_factor", s->high);
    if (yarn)
        good = good && mc_config_add_float(o, "beta_fast", s->high) &&
               mc_config_add_float(o, "beta_slow", s->low) &&
               mc_config_add_float(o, "attention_factor", s->attention_factor) &&
               cJSON_AddBoolToObject(o, "truncate", !s->exact_range);
    if (llama3 || yarn)
        good = good &&
               cJSON_AddNumberToObject(o, "original_max_position_embeddings", (double)s->original);
    return good;
}
