/* Configs by their family's table of rows: reading either form, defaults, named shapes, writing. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/base/json_keys_internal.h"
#include "models/family_internal.h"

/* ---- words for values ------------------------------------------------------------------------ */

typedef struct name_value {
    const char *name;
    mc_ffn_kind value;
} name_value;

/* The first name of a value is the one that is written. Hugging Face's T5 means gelu_new by
 * "gated-gelu". */
static const name_value activations[] = {
    {"gelu", {MC_ACTIVATION_GELU, false}},
    {"gelu_new", {MC_ACTIVATION_GELU_NEW, false}},
    {"gelu_pytorch_tanh", {MC_ACTIVATION_GELU_NEW, false}},
    {"relu", {MC_ACTIVATION_RELU, false}},
    {"silu", {MC_ACTIVATION_SILU, false}},
    {"swish", {MC_ACTIVATION_SILU, false}},
    {"gated-gelu", {MC_ACTIVATION_GELU_NEW, true}},
    {"gated-gelu_new", {MC_ACTIVATION_GELU_NEW, true}},
    {"gated-relu", {MC_ACTIVATION_RELU, true}},
    {"gated-gelu_pytorch_tanh", {MC_ACTIVATION_GELU_NEW, true}},
    {"gated-silu", {MC_ACTIVATION_SILU, true}},
    {"gated-swish", {MC_ACTIVATION_SILU, true}},
    {"gated_gelu", {MC_ACTIVATION_GELU, true}},
    {"gated_gelu_new", {MC_ACTIVATION_GELU_NEW, true}},
    {"gated_relu", {MC_ACTIVATION_RELU, true}},
    {"gated_silu", {MC_ACTIVATION_SILU, true}},
    {NULL, {0}}};

/* Hugging Face's gated words have a hyphen, ModelCenter's an underscore. */
static bool is_word_of(const char *name, mc_config_form form)
{
    if (strncmp(name, "gated", 5) != 0) return true;
    return (name[5] == '-') == (form == MC_FORM_HF);
}

static const name_value *find_activation(const char *name, mc_config_form form, bool gated)
{
    for (const name_value *a = activations; a->name; a++)
        if (strcmp(a->name, name) == 0 && is_word_of(name, form) && (gated || !a->value.gated))
            return a;
    return NULL;
}

const char *mc_config_activation(mc_ffn_kind kind, mc_config_form form)
{
    for (const name_value *a = activations; a->name; a++)
        if (a->value.activation == kind.activation && a->value.gated == kind.gated &&
            is_word_of(a->name, form))
            return a->name;
    return "gated-gelu"; /* Hugging Face has no word for it, and says it by "dense_act_fn" */
}

static const struct {
    const char *name;
    mc_dtype dtype;
} dtypes[] = {{"float32", MC_F32}, {"float16", MC_F16}, {"bfloat16", MC_BF16}, {NULL, 0}};

/* ---- reading a value ------------------------------------------------------------------------- */

static bool ends(const mc_config_row *row) { return row->kind == MC_CONFIG_END; }

void *mc_config_member(const mc_family *family, void *config, const char *key)
{
    for (const mc_config_row *row = family->rows; !ends(row); row++)
        if (row->key[MC_FORM_HF] && strcmp(row->key[MC_FORM_HF], key) == 0)
            return (char *)config + row->member;
    return NULL;
}

bool mc_config_unsupported(const mc_config_reader *r, const char *key, const char *found,
                           const char *expected)
{
    mc_fail(r->ctx, MC_ERR_UNSUPPORTED, "%s: key \"%s\": %s is not supported, expected %s", r->path,
            key, found, expected);
    return false;
}

static bool fail_type(const mc_config_reader *r, const char *key, const char *expected,
                      const cJSON *item)
{
    char *found = cJSON_PrintUnformatted(item);
    mc_fail(r->ctx, MC_ERR_FORMAT, "%s: key \"%s\": expected %s, found %.60s", r->path, key,
            expected, found ? found : "something else");
    cJSON_free(found);
    return false;
}

static bool read_number(const mc_config_reader *r, const char *key, const cJSON *item, double low,
                        double high, bool whole, double *out)
{
    char expected[96];
    *out = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (*out >= low && *out <= high && (!whole || *out == floor(*out))) return true;
    snprintf(expected, sizeof expected, "a %snumber from %.9g to %.9g", whole ? "whole " : "", low,
             high);
    return fail_type(r, key, expected, item);
}

static bool read_activation(const mc_config_reader *r, const char *key, const cJSON *item,
                            bool gated, mc_ffn_kind *out)
{
    if (!cJSON_IsString(item)) return fail_type(r, key, "the name of an activation", item);
    const name_value *found = find_activation(item->valuestring, r->form, gated);
    if (!found)
        return mc_config_unsupported(r, key, item->valuestring,
                                     gated ? "relu, gelu, gelu_new or silu, gated or not"
                                           : "gelu, gelu_new, gelu_pytorch_tanh, relu or silu");
    *out = found->value;
    return true;
}

static bool read_only(const mc_config_reader *r, const char *key, const cJSON *item,
                      const char *expected)
{
    cJSON *only = mc_json_parse_own(expected);
    if (!only) return !mc_fail_nomem(r->ctx, "a config");
    bool same = cJSON_Compare(item, only, true);
    cJSON_Delete(only);
    if (same) return true;
    char *found = cJSON_PrintUnformatted(item);
    mc_config_unsupported(r, key, found ? found : "it", expected);
    cJSON_free(found);
    return false;
}

/* A token's id; null means none, and of a list the first counts. */
static bool read_token(const mc_config_reader *r, const char *key, const cJSON *item, int64_t *out)
{
    double number;
    if (cJSON_IsArray(item)) item = cJSON_GetArrayItem(item, 0);
    *out = -1;
    if (!item || cJSON_IsNull(item)) return true;
    if (!read_number(r, key, item, -1, INT32_MAX, true, &number)) return false;
    *out = (int64_t)number;
    return true;
}

/* The family's own string of a model type, which check_type has accepted. */
static bool read_type(const cJSON *item, const char **out)
{
    for (int i = 0; mc_families[i]; i++)
        for (const char *const *type = mc_families[i]->model_type; *type; type++)
            if (cJSON_IsString(item) && strcmp(*type, item->valuestring) == 0) *out = *type;
    return true;
}

/* A size that may be missing. */
static bool read_optional(const mc_config_reader *r, const char *key, const cJSON *item, double low,
                          int64_t *out)
{
    double most = 2147483648.0, number = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    char expected[96];
    bool none = cJSON_IsNull(item) || (number == -1 && r->form == MC_FORM_MC);
    *out = -1;
    if (none) return true;
    if (number >= low && number <= most && number == floor(number)) {
        *out = (int64_t)number;
        return true;
    }
    snprintf(expected, sizeof expected, "a whole number from %.9g to %.9g, or null", low, most);
    return fail_type(r, key, expected, item);
}

/* A whole number from `low` on, or a list of equal ones. */
static bool read_each(const mc_config_reader *r, const char *key, const cJSON *item, double low,
                      int64_t *out)
{
    const cJSON *first = cJSON_IsArray(item) && item->child ? item->child : item;
    double number;
    for (const cJSON *next = first; next && first != item; next = next->next)
        if (!cJSON_Compare(first, next, true))
            return mc_config_unsupported(r, key, "a list of different values",
                                         "the same for each layer");
    if (!read_number(r, key, first, low, 2147483648.0, true, &number)) return false;
    *out = (int64_t)number;
    return true;
}

/* Which of a row's words a text is. */
static bool read_word(const mc_config_reader *r, const char *key, const cJSON *item,
                      const char *const *words, int64_t *out)
{
    char expected[128] = "";
    for (int i = 0; words[i]; i++) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, words[i]) == 0) return *out = i, true;
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s%s", i ? " or " : "", words[i]);
    }
    return fail_type(r, key, expected, item);
}

static bool read_value(const mc_config_reader *r, const mc_config_row *row, const char *key,
                       const cJSON *item, void *config)
{
    void *member = (char *)config + row->member;
    double number = 0, most = row->high > 0 ? row->high : 1e30;
    mc_ffn_kind ffn = {0};
    bool good = true;
    switch (row->kind) {
    case MC_CONFIG_END: break;
    case MC_CONFIG_SIZE:
    case MC_CONFIG_LAYERS:
        most = row->kind == MC_CONFIG_LAYERS ? MC_MOST_LAYERS : 2147483648.0;
        good = read_number(r, key, item, row->low, most, true, &number);
        if (good) *(int64_t *)member = (int64_t)number;
        return good;
    case MC_CONFIG_EACH: return read_each(r, key, item, row->low, member);
    case MC_CONFIG_TOKEN: return read_token(r, key, item, member);
    case MC_CONFIG_OPTIONAL: return read_optional(r, key, item, row->low, member);
    case MC_CONFIG_ROPE: return mc_config_read_rope(r, key, item, member);
    case MC_CONFIG_DROPOUT: most = 1 - 1e-6; /* fallthrough */
    case MC_CONFIG_FLOAT:
        good = read_number(r, key, item, row->low, most, false, &number);
        if (good) *(float *)member = (float)number;
        return good;
    case MC_CONFIG_FLAG:
        if (!cJSON_IsBool(item)) return fail_type(r, key, "true or false", item);
        *(bool *)member = cJSON_IsTrue(item);
        return true;
    case MC_CONFIG_ACTIVATION:
        good = read_activation(r, key, item, false, &ffn);
        if (good) *(mc_activation *)member = ffn.activation;
        return good;
    case MC_CONFIG_FFN: return read_activation(r, key, item, true, member);
    case MC_CONFIG_WORD: return read_word(r, key, item, row->words, member);
    case MC_CONFIG_TYPE: return read_type(item, member);
    case MC_CONFIG_ONLY: return read_only(r, key, item, row->value[r->form]);
    case MC_CONFIG_KNOWN: return true;
    }
    return true;
}

/* ---- reading a config ------------------------------------------------------------------------ */

static bool is_word_in(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = words; length && (at = strstr(at, word)); at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

bool mc_config_has_row(const mc_config_row *row, const char *type)
{
    return !row->of_types || is_word_in(row->of_types, type);
}

/* Which of the family's types a file is of. */
static const char *type_of(const mc_family *family, const mc_config_reader *r)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(r->json, "model_type");
    return cJSON_IsString(type) ? type->valuestring : family->model_type[0];
}

/* The value that holds where a file does not give one. */
static bool read_default(const mc_config_reader *r, const mc_config_row *row, void *config)
{
    const char *value = row->value[r->form];
    if (row->kind == MC_CONFIG_ONLY || row->kind == MC_CONFIG_KNOWN) return true;
    if (!value) {
        const char *key = row->key[r->form];
        mc_fail(r->ctx, MC_ERR_FORMAT, "%s: key \"%s\" is missing", r->path, key ? key : "?");
        return false;
    }
    if (!*value) return true;
    cJSON *item = mc_json_parse_own(value);
    if (!item && r->ctx) mc_fail_nomem(r->ctx, "a config");
    bool good = item && read_value(r, row, row->key[r->form], item, config);
    cJSON_Delete(item);
    return good;
}

static bool read_row(const mc_config_reader *r, const mc_config_row *row, void *config)
{
    const char *key = row->key[r->form];
    const cJSON *item = key ? cJSON_GetObjectItemCaseSensitive(r->json, key) : NULL;
    bool may_be_null = row->kind == MC_CONFIG_TOKEN || row->kind == MC_CONFIG_OPTIONAL;
    bool given = item && (!cJSON_IsNull(item) || may_be_null);
    if (!given) item = key ? cJSON_GetObjectItemCaseSensitive(r->defaults, key) : NULL;
    if (!item) return read_default(r, row, config);
    return read_value(r, row, key, item, config);
}

/* Keys that every family's file may have and that change nothing of what is computed here. */
static const char *const known_everywhere[] = {
    "_name_or_path", "_num_labels", "architectures", "bad_words_ids", "begin_suppress_tokens",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "directionality", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "id2label", "is_decoder", "is_encoder_decoder",
    "label2id", "length_penalty", "max_length", "min_length", "model_type", "modelcenter_task",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "prefix",
    "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params",
    "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers_version", "typical_p", "use_bfloat16", "use_cache",
    /* ModelCenter's: how it stores, and what a mask's value is, which is always enough */
    "att_mask_value", "cls_head", "half", "int8", NULL};

static bool is_listed(const char *const *list, const char *key)
{
    for (; *list; list++)
        if (strcmp(*list, key) == 0) return true;
    return false;
}

/* type NULL: of any type. */
static bool has_row(const mc_family *family, mc_config_form form, const char *key, const char *type)
{
    for (const mc_config_row *row = family->rows; !ends(row); row++)
        if (row->key[form] && strcmp(row->key[form], key) == 0 &&
            (!type || mc_config_has_row(row, type)))
            return true;
    return false;
}

/* A key of another family's table says what this one cannot do. */
static bool is_foreign(const mc_family *family, mc_config_form form, const char *key)
{
    for (int i = 0; form == MC_FORM_MC && mc_families[i]; i++)
        if (mc_families[i] != family && has_row(mc_families[i], form, key, NULL)) return true;
    return false;
}

static bool check_keys(const mc_family *family, const mc_config_reader *r)
{
    const cJSON *item;
    const char *type = type_of(family, r);
    cJSON_ArrayForEach(item, r->json)
    {
        const char *key = item->string;
        if (has_row(family, r->form, key, type) || is_listed(known_everywhere, key)) continue;
        if (is_foreign(family, r->form, key)) {
            mc_fail(r->ctx, MC_ERR_UNSUPPORTED, "%s: key \"%s\" is of another family than %s",
                    r->path, key, family->title);
            return false;
        }
        if (!cJSON_IsNull(item)) mc_keys_warn_unknown(r->ctx, r->path, key);
    }
    return true;
}

static bool check_type(const mc_family *family, const mc_config_reader *r)
{
    if (family->hf_only && r->form == MC_FORM_MC)
        return !mc_fail(r->ctx, MC_ERR_UNSUPPORTED,
                        "%s: keys of ModelCenter's form, in which %s has none: expected Hugging "
                        "Face's",
                        r->path, family->title);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(r->json, "model_type");
    if (!cJSON_IsString(type) || is_listed(family->model_type, type->valuestring)) return true;
    return mc_config_unsupported(r, "model_type", type->valuestring, family->model_type[0]);
}

/* The defaults of the file's own model type; NULL where they are the rows', or memory is out. */
static cJSON *defaults_of_type(const mc_family *family, const mc_config_reader *r)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(r->json, "model_type");
    const mc_type_defaults *d = family->type_defaults;
    while (d && d->type && !(cJSON_IsString(type) && strcmp(d->type, type->valuestring) == 0)) d++;
    if (!d || !d->type || r->form != MC_FORM_HF) return NULL;
    cJSON *defaults = mc_json_parse_own(d->json);
    if (!defaults) mc_fail_nomem(r->ctx, "a config");
    return defaults;
}

static const char *const text_tokens[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
enum { TEXT_TOKENS = sizeof text_tokens / sizeof *text_tokens };

int64_t *mc_config_token(const mc_family *family, void *config, const char *key)
{
    for (const mc_config_row *row = family->rows; !ends(row); row++)
        if (row->kind == MC_CONFIG_TOKEN && row->key[MC_FORM_HF] &&
            strcmp(row->key[MC_FORM_HF], key) == 0)
            return (int64_t *)((char *)config + row->member);
    return NULL;
}

/* The token, where it lies beyond the vocabulary. */
static int64_t *token_beyond(const mc_family *family, void *config, const char *key)
{
    int64_t *token = mc_config_token(family, config, key);
    bool encoder = family->kind == MC_MODEL_ENCODER;
    return token && !encoder && *token >= family->shape(config).vocab_size ? token : NULL;
}

void mc_config_drop_tokens(const mc_family *family, void *config)
{
    for (int i = 0; i < TEXT_TOKENS; i++) {
        int64_t *token = token_beyond(family, config, text_tokens[i]);
        if (token) *token = -1;
    }
}

/* Of tokens that the file names: one that no model of the config could meet is an error, but for
 * weights, which transformers loads. A class's defaults go in silence. */
static bool check_tokens(const mc_family *family, const mc_config_reader *r, void *config)
{
    for (int i = 0; i < TEXT_TOKENS; i++) {
        const char *key = text_tokens[i];
        int64_t *token = token_beyond(family, config, key);
        if (!token || !cJSON_HasObjectItem(r->json, key)) continue;
        long long id = *token, size = family->shape(config).vocab_size;
        if (!r->of_weights)
            return !mc_fail(r->ctx, MC_ERR_FORMAT,
                            "%s: key \"%s\": %lld is no token of the vocabulary of %lld", r->path,
                            key, id, size);
        mc_log(r->ctx, MC_LOG_WARNING,
               "%s: key \"%s\": %lld is no token of the vocabulary of %lld: there is none", r->path,
               key, id, size);
    }
    mc_config_drop_tokens(family, config);
    return true;
}

bool mc_config_read(const mc_family *family, const mc_config_reader *r, void *config)
{
    memset(config, 0, family->config_size);
    if (!check_type(family, r)) return false;
    mc_config_reader of_type = *r;
    cJSON *defaults = defaults_of_type(family, r);
    of_type.defaults = defaults;
    bool good = !mc_failed(r->ctx);
    for (const mc_config_row *row = family->rows; good && !ends(row); row++)
        good = mc_config_has_row(row, type_of(family, r)) ? read_row(&of_type, row, config)
                                                          : read_default(r, row, config);
    cJSON_Delete(defaults);
    return good && family->finish(r, config) && check_keys(family, r) &&
           check_tokens(family, r, config);
}

mc_config_form mc_config_form_of(const cJSON *json)
{
    static const char *const keys[] = {"dim_model", "dim_head", "dim_ff", "ffn_activate_fn", NULL};
    for (const char *const *key = keys; *key; key++)
        if (cJSON_HasObjectItem(json, *key)) return MC_FORM_MC;
    return MC_FORM_HF;
}

mc_status mc_config_read_file(mc_context *ctx, const mc_family *family, const char *path,
                              void *config)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 24);
    mc_config_reader r = {.ctx = ctx, .json = json, .path = path};
    void *read = json ? mc_calloc(1, family->config_size) : NULL;
    if (json && !read) mc_fail_nomem(ctx, "a config");
    if (read) {
        r.form = mc_config_form_of(json);
        if (mc_config_read(family, &r, read)) memcpy(config, read, family->config_size);
    }
    mc_free(read);
    cJSON_Delete(json);
    return mc_error_status(ctx);
}

/* ---- defaults and names ---------------------------------------------------------------------- */

/* Reads a config of our own making: it cannot fail but for memory, and the values of rows that have
 * no default stay zero. */
static void read_own(const mc_family *family, mc_context *ctx, const char *text, void *config)
{
    cJSON *json = mc_json_parse_own(text);
    mc_config_form form = mc_config_form_of(json);
    if (family->own_form) form = MC_FORM_MC;
    mc_config_reader r = {.ctx = ctx, .json = json, .path = family->title, .form = form};
    cJSON *defaults = json ? defaults_of_type(family, &r) : NULL;
    r.defaults = defaults;
    memset(config, 0, family->config_size);
    for (const mc_config_row *row = family->rows; json && !ends(row); row++) {
        const char *key = row->key[form];
        bool given = key && cJSON_HasObjectItem(json, key);
        if (!given && !row->value[form]) continue;
        if (mc_config_has_row(row, type_of(family, &r)))
            read_row(&r, row, config);
        else
            read_default(&r, row, config);
    }
    if (json) family->finish(&r, config);
    cJSON_Delete(defaults);
    cJSON_Delete(json);
}

void mc_config_default(const mc_family *family, void *config)
{
    read_own(family, NULL, "{}", config);
}

static const mc_named_shape *find_named(const mc_family *family, const char *name)
{
    for (const mc_named_shape *n = family->named; name && n->names; n++)
        if (is_word_in(n->names, name)) return n;
    return NULL;
}

mc_status mc_config_named(mc_context *ctx, const mc_family *family, const char *name, void *config)
{
    if (mc_failed(ctx)) return mc_error_status(ctx);
    const mc_named_shape *found = find_named(family, name);
    if (found) {
        read_own(family, ctx, found->json, config);
        return mc_error_status(ctx);
    }
    char known[1024] = "";
    for (const mc_named_shape *n = family->named; n->names; n++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", n->names);
    }
    return mc_fail(ctx, MC_ERR_NOT_FOUND, "no %s config is called \"%s\", expected one of: %s",
                   family->title, name ? name : "", known);
}

const mc_family *mc_config_family_of_shape(const char *name)
{
    for (int i = 0; mc_families[i]; i++)
        if (find_named(mc_families[i], name)) return mc_families[i];
    return NULL;
}

bool mc_config_is_named(const char *name) { return mc_config_family_of_shape(name); }

mc_status mc_config_no_shape(mc_context *ctx, const char *name)
{
    char known[4096] = "";
    for (int i = 0; mc_families[i]; i++)
        for (const mc_named_shape *n = mc_families[i]->named; n->names; n++) {
            size_t used = strlen(known);
            snprintf(known + used, sizeof known - used, "%s%.*s", used ? ", " : "",
                     (int)strcspn(n->names, " "), n->names);
        }
    return mc_fail(ctx, MC_ERR_NOT_FOUND,
                   "no shape is called \"%s\", and no file or folder: expected one of %s", name,
                   known);
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

bool mc_config_dtype(const mc_config_reader *r, mc_dtype *out)
{
    if (r->form == MC_FORM_MC) {
        const cJSON *half = cJSON_GetObjectItemCaseSensitive(r->json, "half");
        *out = cJSON_IsFalse(half) ? MC_F32 : MC_F16;
        return true;
    }
    const char *name = "float32";
    mc_error *err = &r->ctx->error;
    if (!mc_json_get_string(err, r->json, r->path, "torch_dtype", &name) ||
        !mc_json_get_string(err, r->json, r->path, "dtype", &name))
        return false;
    for (int i = 0; dtypes[i].name; i++)
        if (strcmp(dtypes[i].name, name) == 0) return *out = dtypes[i].dtype, true;
    return mc_config_unsupported(r, "dtype", name, "float32, float16 or bfloat16");
}

bool mc_config_add_dtype(cJSON *json, mc_dtype dtype)
{
    for (int i = 0; dtypes[i].name; i++)
        if (dtypes[i].dtype == dtype)
            return cJSON_AddStringToObject(json, "torch_dtype", dtypes[i].name);
    return false;
}
