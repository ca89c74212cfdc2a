/* Folders in and out: which family, which heads, weights, config.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "core/formats/tensor_file_internal.h"
#include "core/hub/find_internal.h"
#include "models/adapters/adapter_internal.h"
#include "models/gguf/gguf_internal.h"
#include "tokenizers/tokenizer_internal.h"

/* ---- which family ---------------------------------------------------------------------------- */

const mc_family *mc_family_of_type(const char *type)
{
    for (int i = 0; mc_families[i]; i++)
        for (const char *const *known = mc_families[i]->model_type; *known; known++)
            if (strcmp(*known, type) == 0) return mc_families[i];
    return NULL;
}

/* Whether a file of ModelCenter's form can be of the family, by its tensors. */
static bool can_be(const mc_family *family, const mc_tensor_file *file)
{
    if (family->hf_only) return false;
    for (const char *const *name = family->mc_has; *name; name++)
        if (!mc_tensor_file_find(file, *name)) return false;
    for (const char *const *name = family->mc_lacks; *name; name++)
        if (mc_tensor_file_find(file, *name)) return false;
    return true;
}

/* The family of a file of ModelCenter's form: `asked` (NULL: any) if it can be, else the first that
 * config.json says no more against. */
static const mc_family *family_of_file(const mc_tensor_file *file, const cJSON *json,
                                       const mc_family *asked)
{
    if (asked && can_be(asked, file)) return asked;
    for (int i = 0; mc_families[i]; i++)
        if (can_be(mc_families[i], file) && (!mc_families[i]->mc_is || mc_families[i]->mc_is(json)))
            return mc_families[i];
    return NULL;
}

/* The families' names, for an error. */
static const char *list_families(char *out, size_t size)
{
    out[0] = '\0';
    for (int i = 0; mc_families[i]; i++) {
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s", i ? ", " : "", mc_families[i]->name);
    }
    return out;
}

/* The family that the config names; where it names none `asked` (NULL: any) if the weights can be
 * its, else that of the weights. */
static const mc_family *choose_family(const mc_config_reader *r, const mc_tensor_file *file,
                                      const mc_family *asked)
{
    char known[256], held[MC_NAMES_SHOWN];
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(r->json, "model_type");
    const mc_family *found = NULL;
    if (cJSON_IsString(type)) {
        found = mc_family_of_type(type->valuestring);
        if (!found) {
            mc_config_unsupported(r, "model_type", type->valuestring,
                                  list_families(known, sizeof known));
            return NULL;
        }
    } else if (r->form == MC_FORM_MC) {
        found = family_of_file(file, r->json, asked);
    }
    if (!found && !asked)
        mc_fail(r->ctx, MC_ERR_UNSUPPORTED,
                "%s: neither key \"model_type\" nor the weights say of which family the model is: "
                "name one of %s (--family)%s%s",
                r->path, list_families(known, sizeof known), file ? "; " : "",
                file ? mc_tensor_names_show(mc_tensor_file_at(file, 0), mc_tensor_file_count(file),
                                            held)
                     : "");
    if (found && asked && found != asked) {
        mc_fail(r->ctx, MC_ERR_UNSUPPORTED, "%s: the model is a %s, expected a %s", r->path,
                found->title, asked->title);
        return NULL;
    }
    return found ? found : asked;
}

/* ---- heads and tokens ------------------------------------------------------------------------ */

static bool has_tensor(const mc_model_file *f, const char *ours)
{
    return ours && mc_weight_find(f->map, f->layers, f->file, ours);
}

int mc_classes_in_file(const mc_weight_map *map, const mc_tensor_file *file, const char *ours)
{
    const mc_tensor_entry *e = ours ? mc_weight_find(map, 0, file, ours) : NULL;
    bool good = e && e->ndim == 2 && e->shape[0] <= MC_MODEL_MAX_LABELS;
    return good ? (int)e->shape[0] : 0;
}

/* Heads of pretraining that are asked for, which the file may lack. */
static void add_heads(const mc_family *family, const mc_model_heads *asked, mc_model_heads *heads)
{
    if (asked->lm) {
        heads->lm = true;
        heads->labels = heads->token_labels = 0; /* which take its place */
        heads->replaced = false;
    }
    heads->nsp = heads->nsp || (asked->nsp && family->has.nsp);
    if (asked->replaced && !heads->lm) heads->replaced = true;
    heads->pooler = heads->pooler || ((asked->pooler || asked->nsp) && family->has.pooler);
}

/* Heads of pretraining that an adapter's file holds whole: the base may lack them. */
static void add_adapter_heads(const mc_family *family, const mc_adapter_file *adapter,
                              mc_model_heads *heads)
{
    mc_model_heads saved = mc_adapter_file_heads(adapter, family);
    if (saved.replaced) heads->lm = false;
    add_heads(family, &saved, heads);
}

/* The class of a file whose classifier has the names of one of texts, and is of tokens or choices;
 * NULL: it is of texts, or there is none. */
static const char *other_classifier(const mc_config_reader *r)
{
    static const char *const ends[] = {"ForTokenClassification", "ForMultipleChoice"};
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(r->json, "architectures");
    const char *class = cJSON_GetStringValue(cJSON_IsArray(list) ? list->child : NULL);
    for (int i = 0; i < 2 && class; i++) {
        size_t length = strlen(class), end = strlen(ends[i]);
        if (length > end && strcmp(class + length - end, ends[i]) == 0) return class;
    }
    return NULL;
}

/* The heads a file holds, and those asked for. Other heads are not kept where a classifier is asked
 * for: a fine-tune has no use for them. */
static mc_model_heads find_heads(const mc_family *family, const mc_model_file *f,
                                 const mc_config_reader *r, const mc_adapter_file *adapter,
                                 const mc_load_options *options)
{
    mc_model_heads heads = {.labels = options->num_labels};
    bool is_number =
        cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(r->json, "cls_head")); /* or false */
    int64_t units = 0;
    bool encoder = family->kind == MC_MODEL_ENCODER;
    bool adapts = options->lora || options->soft_prompt; /* whose file a pooler would be in */
    bool always = family->has.nsp && (options->num_labels || !(options->saved_heads || adapts));
    heads.pooler = family->has.pooler && (always || has_tensor(f, "pooler.dense.weight"));
    if (heads.labels) return heads;
    bool texts = !adapter || mc_adapter_file_classifies(adapter);
    if (family->has.labels && texts && !other_classifier(r))
        heads.labels = mc_classes_in_file(f->map, f->file, family->classifier);
    if (r->form == MC_FORM_MC && is_number &&
        mc_json_get_int(&r->ctx->error, r->json, r->path, "cls_head", 0, INT32_MAX, &units))
        heads.token_labels = (int)units;
    heads.nsp = family->has.nsp && has_tensor(f, "nsp_head.weight");
    heads.lm =
        encoder ? has_tensor(f, mc_family_lm_has(family)) : !heads.labels && !heads.token_labels;
    heads.replaced =
        family->has.replaced && !heads.lm && has_tensor(f, "replaced_head.dense.weight");
    if (adapter) add_adapter_heads(family, adapter, &heads);
    if (options->heads) add_heads(family, options->heads, &heads);
    return heads;
}

/* All tokens that end a text, where the file lists several. */
static bool read_eos(mc_model *m, const mc_config_reader *r)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(r->json, "eos_token_id"), *item;
    if (!cJSON_IsArray(list)) return true;
    m->eos_count = 0;
    m->shape.eos_token = -1;
    cJSON_ArrayForEach(item, list)
    {
        bool good = cJSON_IsNumber(item) && item->valuedouble >= 0 &&
                    item->valuedouble <= INT32_MAX && m->eos_count < MC_MODEL_MAX_EOS &&
                    item->valuedouble == (double)(int32_t)item->valuedouble;
        if (!good)
            return !mc_fail(r->ctx, MC_ERR_FORMAT,
                            "%s: key \"eos_token_id\": expected a token or up to %d of them",
                            r->path, MC_MODEL_MAX_EOS);
        if (item->valuedouble < (double)m->shape.vocab_size)
            m->eos[m->eos_count++] = (int32_t)item->valuedouble;
        else if (item != list->child) /* the first has been named */
            mc_log(r->ctx, MC_LOG_WARNING,
                   "%s: key \"eos_token_id\": %d is no token of the vocabulary of %lld", r->path,
                   item->valueint, (long long)m->shape.vocab_size);
    }
    if (m->eos_count) m->shape.eos_token = m->eos[0];
    int64_t *first = mc_config_token(m->family, m->config, "eos_token_id");
    if (first) *first = m->shape.eos_token;
    return true;
}

/* Names that no label gets. */
static void warn_of_names(const mc_model *m, const mc_config_reader *r)
{
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(r->json, "id2label");
    if (!names || cJSON_IsNull(names) || !m->heads.labels) return;
    mc_log(
        r->ctx, MC_LOG_WARNING,
        "%s: key \"id2label\": expected a name for each output of the classifier, 0 to %d: it has "
        "no effect, they are LABEL_0 to LABEL_%d",
        r->path, m->heads.labels - 1, m->heads.labels - 1);
}

/* Task and problem type; the names of labels, unless the head is not the config's. */
static bool read_task(mc_model *m, const mc_config_reader *r, bool new_head, bool has_adapter)
{
    const char *task = NULL, *type = NULL, *names[MC_MODEL_MAX_LABELS];
    if (!mc_json_get_string(&r->ctx->error, r->json, r->path, "modelcenter_task", &task) ||
        !mc_json_get_string(&r->ctx->error, r->json, r->path, "problem_type", &type) ||
        mc_model_set_problem_type(m, type))
        return false;
    bool named = !new_head && mc_labels_in_config(r->json, m->heads.labels, names);
    if (!named && !new_head && !has_adapter) warn_of_names(m, r);
    return mc_model_set_task(m, task, named ? names : NULL) == MC_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

bool mc_file_has_own_head(const mc_model_file *f, const char *head, const char *words)
{
    return mc_weights_differ(f->file, mc_weight_find(f->map, f->layers, f->file, head),
                             mc_weight_find(f->map, f->layers, f->file, words));
}

void mc_look_at_head(mc_context *ctx, const mc_model_file *f, bool *tied)
{
    if (!*tied || !mc_file_has_own_head(f, "output_projection.weight", "input_embedding.weight"))
        return;
    *tied = false;
    mc_log(ctx, MC_LOG_WARNING,
           "%s: lm_head.weight is not the word embedding again, though config.json does not say "
           "\"tie_word_embeddings\": false: it is taken as a head of its own",
           f->folder);
}

/* What of the file's weights is not read: what an adapter's tables replace, and a head that is new
 * or the adapter's. */
static void leave(mc_weight_map *map, const mc_family *family, const mc_adapter_tables *tables,
                  bool new_head)
{
    int count = 0;
    if (new_head) map->left_new[count++] = family->classifier;
    if (tables->words) map->left_new[count++] = MC_WORDS_WEIGHT;
    if (tables->head) map->left_new[count++] = MC_HEAD_WEIGHT(family);
}

/* Parameters that are initialised where a file has none of them, by the module that they are in. */
static const struct new_head {
    const char *pattern;
    size_t length;     /* of the pattern without its '*' */
    const char *title; /* of one that is only made for options.heads; NULL: of any */
} new_heads[] = {
    {"pooler.*", sizeof "pooler.*" - 2, NULL},
    {"head.*", sizeof "head.*" - 2, NULL},
    {"classifier.*", sizeof "classifier.*" - 2, NULL},
    {"score.*", sizeof "score.*" - 2, NULL},
    {"classification_head.*", sizeof "classification_head.*" - 2, NULL},
    {"lm_head.*", sizeof "lm_head.*" - 2, "language model"},
    {"output_projection.*", sizeof "output_projection.*" - 2, "language model"},
    {"nsp_head.*", sizeof "nsp_head.*" - 2, "next sentence"},
    {"replaced_head.*", sizeof "replaced_head.*" - 2, "replaced token"},
};
enum { NEW_HEADS = sizeof new_heads / sizeof *new_heads };

/* Whether the model has such a head, and the file nothing of it but what is left (NULL: none). */
static bool lacks_head(const mc_model *m, const mc_model_file *f, const struct new_head *head,
                       const char *left)
{
    const mc_module_root *root = m->module.root;
    size_t count = 0, module = left ? (size_t)(strrchr(left, '.') + 1 - left) : 0;
    for (size_t i = 0; i < root->parameter_count; i++) {
        const mc_parameter *p = root->parameters[i];
        if (p->is_factor || strncmp(p->name, head->pattern, head->length) != 0) continue;
        if (m->untied && p == m->head_weight) continue; /* the file has the words */
        if (!(left && strncmp(p->name, left, module) == 0) && has_tensor(f, p->name)) return false;
        count++;
    }
    return count > 0;
}

/* What a new classifier takes the place of in the file; NULL: nothing. */
static const char *left_of(const mc_family *family, const mc_load_options *o)
{
    return o->new_head && o->num_labels ? family->classifier : NULL;
}

void mc_heads_mark_new(mc_model *m, const mc_model_file *f, const mc_load_options *o)
{
    const char *left = left_of(m->family, o);
    size_t module = left ? (size_t)(strrchr(left, '.') + 1 - left) : 0;
    for (int i = 0; i < NEW_HEADS; i++) {
        const struct new_head *head = &new_heads[i];
        bool lacks = lacks_head(m, f, head, left);
        for (size_t k = 0; k < m->module.root->parameter_count; k++) {
            mc_parameter *p = m->module.root->parameters[k];
            if (strncmp(p->name, head->pattern, head->length) == 0)
                p->is_new = lacks || (left && strncmp(p->name, left, module) == 0);
        }
    }
}

/* The patterns of heads that the file lacks altogether, which may be new or in the adapter's file
 * (NULL: none); one that it has in part may not. */
static void list_new(const mc_model *m, const mc_model_file *f, const mc_adapter_file *adapter,
                     const mc_load_options *options, const char *left,
                     const char *patterns[NEW_HEADS + 1])
{
    int count = 0;
    for (int i = 0; i < NEW_HEADS; i++) {
        const struct new_head *head = &new_heads[i];
        if ((head->title && !options->heads && !adapter) || !lacks_head(m, f, head, left)) continue;
        patterns[count++] = head->pattern;
        if (head->title && !adapter)
            mc_log(m->module.ctx, MC_LOG_WARNING,
                   "%s: the model has no %s head: a new one is made, which has to be trained",
                   f->folder, head->title);
    }
    patterns[count] = NULL;
}

/* The base's weights, but for what an adapter's file has in their place. */
static void load_weights(mc_model *m, const mc_model_file *f, const mc_adapter_file *adapter,
                         mc_adapter_tables *tables, const mc_load_options *options)
{
    const char *may_be_new[NEW_HEADS + 1];
    mc_weight_map map = *f->map;
    const bool *tied = mc_config_member(m->family, m->config, "tie_word_embeddings");
    map.adapter_follows = adapter;
    map.tied = tied && *tied;
    map.untied = m->untied;
    mc_adapter_tables_take(tables, m);
    bool classes = adapter && mc_adapter_file_classes(adapter, m->family);
    classes = classes || (options->new_head && options->num_labels);
    leave(&map, m->family, tables, classes);
    list_new(m, f, adapter, options, classes ? m->family->classifier : NULL, may_be_new);
    mc_weights_load(&m->module, &map, f->layers, f->file, f->folder, may_be_new);
}

/* A model of the family from an opened folder; with an adapter whose file is read next, or NULL. */
static mc_model *build(const mc_family *family, const mc_config_reader *r, mc_tensor_file *file,
                       const char *folder, const mc_adapter_file *adapter,
                       const mc_load_options *options)
{
    void *config = mc_calloc(1, family->config_size);
    mc_model *m = NULL;
    mc_adapter_tables tables = {0};
    if (!config) mc_fail_nomem(r->ctx, "a config");
    mc_config_reader own = *r;
    mc_load_options wanted = *options;
    const char *class = other_classifier(r);
    own.of_weights = true;
    if (class) {
        wanted.new_head = true;
        mc_log(r->ctx, MC_LOG_WARNING, "%s: a %s, whose classifier is not of texts: it is left out",
               folder, class);
    }
    options = &wanted;
    if (config && mc_config_read(family, &own, config)) {
        mc_model_file f = {.family = family,
                           .file = file,
                           .folder = folder,
                           .form = r->form,
                           .map = family->map,
                           .layers = (int)family->shape(config).layers};
        mc_model_heads heads = find_heads(family, &f, r, adapter, options);
        if ((!adapter || mc_adapter_file_accepts(adapter, &heads)) &&
            (!family->look || family->look(r->ctx, &f, config, &heads)) &&
            (!adapter || mc_adapter_tables_find(adapter, family, config, &tables)))
            m = mc_model_from_config_for(r->ctx, family, config, &heads, options, &f);
        if (m && read_eos(m, r) && mc_config_keep_others(m, r) &&
            read_task(m, r, options->new_head, adapter) && mc_generation_config_read(m, folder) &&
            mc_image_form_read(m, folder))
            load_weights(m, &f, adapter, &tables, options);
    }
    mc_free(config);
    return m;
}

/* Takes a wrapper's prefix off names that are of no use with it: of the family that the config
 * names or that is asked for, else of any (NULL) in ModelCenter's names, which all share. */
static void unwrap(const mc_config_reader *r, mc_tensor_file *file, const char *path,
                   const mc_family *asked)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(r->json, "model_type");
    const mc_family *family = cJSON_IsString(type) ? mc_family_of_type(type->valuestring) : asked;
    if (!family) family = mc_families[0];
    mc_weights_unwrap(family->map, "input_embedding.weight", file, path);
}

/* A model from an opened file of weights and what a config.json says about it. */
static mc_model *open_weights(const mc_config_reader *r, const mc_family *asked,
                              mc_tensor_file *file, const char *path,
                              const mc_adapter_file *adapter, const mc_load_options *given)
{
    if (file) unwrap(r, file, path, asked);
    const mc_family *family = file ? choose_family(r, file, asked) : NULL;
    mc_load_options options = *given;
    if (family && adapter && !mc_adapter_file_fits(adapter, family)) return NULL;
    if (family && adapter && !options.num_labels)
        options.num_labels = mc_adapter_file_classes(adapter, family);
    return family ? build(family, r, file, path, adapter, &options) : NULL;
}

static mc_model *open_folder(mc_context *ctx, const mc_family *asked, const char *folder,
                             const mc_adapter_file *adapter, const mc_load_options *given)
{
    mc_load_options options = *given;
    char path[MC_PATH_MAX];
    if (mc_path_join(&ctx->error, path, folder, "config.json")) return NULL;
    cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 24);
    mc_config_reader r = {.ctx = ctx, .json = json, .path = path};
    mc_tensor_file *file = NULL;
    if (json) r.form = mc_config_form_of(json);
    if (json && (!options.saved_dtype || options.dtype || mc_config_dtype(&r, &options.dtype)))
        file =
            mc_tensor_file_open(ctx, folder, &(mc_tensor_file_options){.variant = options.variant});
    mc_model *m = open_weights(&r, asked, file, folder, adapter, &options);
    mc_tensor_file_free(file);
    cJSON_Delete(json);
    return m;
}

/* The config that a file says itself, in its strings: text or whole numbers. NULL when memory is
 * out. */
static cJSON *config_of_file(const mc_tensor_file *file)
{
    cJSON *json = cJSON_CreateObject();
    for (size_t i = 0; json && i < mc_tensor_file_metadata_count(file); i++) {
        const char *key = mc_tensor_file_metadata_key(file, i);
        const char *value = mc_tensor_file_metadata_value(file, i);
        bool number = value[0] >= '0' && value[0] <= '9';
        if (number ? cJSON_AddNumberToObject(json, key, (double)strtoll(value, NULL, 10))
                   : cJSON_AddStringToObject(json, key, value))
            continue;
        cJSON_Delete(json);
        json = NULL;
    }
    return json;
}

/* A file alone: llm.c's, which says what shape its model has. */
static mc_model *open_file(mc_context *ctx, const mc_family *asked, const char *path,
                           const mc_load_options *given)
{
    mc_load_options options = *given;
    if (mc_gguf_path_is(path)) return mc_gguf_open_model(ctx, asked, path, given);
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    cJSON *json = NULL;
    mc_model *m = NULL;
    const char *format = mc_tensor_file_format(file);
    if (file && strcmp(format, "llm.c") != 0)
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "%s: is a file (%s) without a config, expected the folder that holds the model",
                path, format);
    else if (file && !(json = config_of_file(file)))
        mc_fail_nomem(ctx, "a config");
    mc_config_reader r = {.ctx = ctx, .json = json, .path = path};
    if (json) r.form = mc_config_form_of(json);
    if (json && (!options.saved_dtype || options.dtype || mc_config_dtype(&r, &options.dtype)))
        m = open_weights(&r, asked, file, path, NULL, &options);
    mc_tensor_file_free(file);
    cJSON_Delete(json);
    return m;
}

mc_status mc_model_find_folder(mc_context *ctx, const char *identifier,
                               const mc_load_options *options, char folder[MC_PATH_MAX])
{
    mc_load_options o = options ? *options : (mc_load_options){0};
    mc_hub_request request = {.needs = {.kind = MC_HUB_MODEL, .variant = o.variant},
                              .revision = o.revision,
                              .cache_dir = o.cache_dir,
                              .local_files_only = o.local_files_only,
                              .together = true};
    return mc_hub_find(ctx, identifier, &request, folder);
}

/* ---- adapters -------------------------------------------------------------------------------- */

const char *mc_adapter_file_base(const mc_adapter_file *adapter, mc_load_options *options)
{
    mc_context *ctx = adapter->ctx;
    if (!options->base) options->revision = adapter->revision;
    const char *base = options->base ? options->base : adapter->base;
    if (!base || !*base)
        mc_fail(ctx, MC_ERR_NOT_FOUND,
                "%s: key \"base_model_name_or_path\" names no base: give one (--base, or "
                "mc_load_options.base)",
                adapter->path);
    return mc_failed(ctx) ? NULL : base;
}

/* Task and names of labels, where the folder says them itself. */
static void read_own_config(mc_model *m, const char *folder, bool new_head)
{
    char path[MC_PATH_MAX];
    mc_context *ctx = m->module.ctx;
    if (mc_path_join(&ctx->error, path, folder, "config.json") || !mc_path_is_file(path)) return;
    cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 24);
    mc_config_reader r = {.ctx = ctx, .json = json, .path = path};
    if (json) read_task(m, &r, new_head, false);
    cJSON_Delete(json);
}

static mc_model *open_base(const mc_family *asked, const char *folder,
                           const mc_adapter_file *adapter, mc_load_options *options)
{
    char base[MC_PATH_MAX];
    mc_context *ctx = adapter->ctx;
    bool given = options->base;
    options->base = mc_adapter_file_base(adapter, options);
    if (!options->base) return NULL;
    if (mc_model_find_folder(ctx, options->base, options, base)) {
        mc_hub_say_base(&ctx->error, folder, given);
        return NULL;
    }
    if (mc_hub_is_adapter(base)) {
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: the base %s is an adapter itself, expected a model",
                folder, base);
        return NULL;
    }
    mc_model *m = open_folder(ctx, asked, base, adapter, options);
    if (m && !mc_failed(ctx) && mc_adapter_file_load(adapter, m, folder, options->new_head))
        read_own_config(m, folder, options->new_head);
    return m;
}

/* The base that a folder of an adapter names, with the adapter's factors. */
static mc_model *open_adapter(mc_context *ctx, const mc_family *asked, const char *folder,
                              const mc_load_options *given)
{
    mc_load_options options = *given;
    mc_adapter_file adapter;
    mc_model *m = NULL;
    bool good = mc_adapter_file_open(ctx, folder, &adapter);
    if (good && (given->lora || given->soft_prompt))
        good = !mc_fail(ctx, MC_ERR_ARGUMENT, "%s: the folder is an adapter, which has %s already",
                        adapter.path, adapter.virtual_tokens ? "virtual tokens" : "factors");
    if (adapter.virtual_tokens)
        options.soft_prompt = &adapter.prompt;
    else
        options.lora = &adapter.lora;
    if (good) m = open_base(asked, folder, &adapter, &options);
    mc_adapter_file_release(&adapter);
    return m;
}

/* What an adapter of the model names as its base: a folder wherever one is. */
static void name_source(const char *identifier, mc_load_options *options, char path[MC_PATH_MAX])
{
    options->base = mc_path_is_folder(identifier) && realpath(identifier, path) ? path : identifier;
}

static mc_model *open_any(mc_context *ctx, const mc_family *asked, const char *identifier,
                          const mc_load_options *given)
{
    char folder[MC_PATH_MAX], path[MC_PATH_MAX];
    mc_load_options options = given ? *given : (mc_load_options){0};
    if (!identifier || !mc_path_is_file(identifier)) {
        if (mc_model_find_folder(ctx, identifier, &options, folder)) return NULL;
        if (mc_hub_is_adapter(folder)) return open_adapter(ctx, asked, folder, &options);
    }
    if (options.base)
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: is no adapter, but its base is given", identifier);
    if (mc_failed(ctx)) return NULL;
    name_source(identifier, &options, path);
    if (mc_path_is_file(identifier)) return open_file(ctx, asked, identifier, &options);
    return open_folder(ctx, asked, folder, NULL, &options);
}

mc_model *mc_model_from_pretrained_of(mc_context *ctx, const char *name, const char *identifier,
                                      const mc_load_options *options)
{
    char known[256];
    const mc_family *asked = mc_family_find(name);
    if (mc_failed(ctx)) return NULL;
    if (name && !asked) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "no family is called \"%s\", expected one of %s", name,
                list_families(known, sizeof known));
        return NULL;
    }
    mc_model *m = open_any(ctx, asked, identifier, options);
    mc_hub_needs needs = {.kind = MC_HUB_MODEL, .variant = options ? options->variant : NULL};
    mc_hub_say_hidden(&ctx->error, identifier, &needs);
    mc_error_while(&ctx->error, "loading %s \"%s\"", asked ? asked->title : "the model",
                   identifier ? identifier : "");
    if (!mc_failed(ctx)) return m;
    mc_model_free(m);
    return NULL;
}

mc_model *mc_model_from_pretrained(mc_context *ctx, const char *identifier,
                                   const mc_load_options *options)
{
    return mc_model_from_pretrained_of(ctx, NULL, identifier, options);
}

/* ---- which family, without loading ----------------------------------------------------------- */

static const mc_family *family_of_folder(mc_context *ctx, const char *folder)
{
    char path[MC_PATH_MAX];
    const mc_family *family = NULL;
    if (mc_path_join(&ctx->error, path, folder, "config.json")) return NULL;
    cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 24);
    mc_config_reader r = {.ctx = ctx, .json = json, .path = path};
    if (json) r.form = mc_config_form_of(json);
    bool by_weights = json && r.form == MC_FORM_MC && !cJSON_HasObjectItem(json, "model_type");
    mc_tensor_file *file = by_weights ? mc_tensor_file_open(ctx, folder, NULL) : NULL;
    if (file) unwrap(&r, file, folder, NULL);
    if (json && (file || !by_weights)) family = choose_family(&r, file, NULL);
    mc_tensor_file_free(file);
    cJSON_Delete(json);
    return family;
}

static const mc_family *family_of_adapter(mc_context *ctx, const char *folder,
                                          const mc_load_options *given)
{
    char base[MC_PATH_MAX];
    mc_load_options options = *given;
    mc_adapter_file adapter;
    const mc_family *family = NULL;
    if (mc_adapter_file_open(ctx, folder, &adapter) &&
        (options.base = mc_adapter_file_base(&adapter, &options))) {
        if (mc_model_find_folder(ctx, options.base, &options, base) == MC_OK)
            family = family_of_folder(ctx, base);
        else
            mc_hub_say_base(&ctx->error, folder, given->base);
    }
    mc_adapter_file_release(&adapter);
    return family;
}

/* Of a file alone: llm.c's. */
static const mc_family *family_of_lone_file(mc_context *ctx, const char *path)
{
    if (mc_gguf_path_is(path)) return mc_gguf_find_family(ctx, path);
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    cJSON *json = file ? config_of_file(file) : NULL;
    mc_config_reader r = {.ctx = ctx, .json = json, .path = path};
    const mc_family *family = json ? choose_family(&r, file, NULL) : NULL;
    mc_tensor_file_free(file);
    cJSON_Delete(json);
    return family;
}

const char *mc_family_of_pretrained(mc_context *ctx, const char *identifier,
                                    const mc_load_options *options)
{
    char folder[MC_PATH_MAX];
    mc_load_options given = options ? *options : (mc_load_options){0};
    const mc_family *family = NULL;
    if (mc_failed(ctx)) return NULL;
    if (identifier && mc_path_is_file(identifier))
        family = family_of_lone_file(ctx, identifier);
    else if (mc_model_find_folder(ctx, identifier, &given, folder) == MC_OK)
        family = mc_hub_is_adapter(folder) ? family_of_adapter(ctx, folder, &given)
                                           : family_of_folder(ctx, folder);
    return family ? family->name : NULL;
}

/* ---- from a config --------------------------------------------------------------------------- */

/* Whether `config` is the name of a shape; else `path` becomes that of the file that it is. */
static bool is_shape_name(const char *config, char path[MC_PATH_MAX])
{
    struct stat info;
    bool exists = stat(config, &info) == 0;
    size_t length = strlen(config);
    bool is_path = strchr(config, '/') || (length > 5 && strcmp(config + length - 5, ".json") == 0);
    snprintf(path, MC_PATH_MAX, "%s%s", config,
             exists && S_ISDIR(info.st_mode) ? "/config.json" : "");
    return !exists && (!is_path || mc_config_is_named(config));
}

/* A file, a folder with config.json, or the name of a shape. */
static mc_status read_any_config(mc_context *ctx, const mc_family *family, const char *config,
                                 void *out)
{
    char path[MC_PATH_MAX];
    return is_shape_name(config, path) ? mc_config_named(ctx, family, config, out)
                                       : mc_config_read_file(ctx, family, path, out);
}

const char *mc_family_of_config(mc_context *ctx, const char *config)
{
    char path[MC_PATH_MAX];
    const mc_family *family = NULL;
    if (mc_failed(ctx)) return NULL;
    if (!config) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "the family of a config: expected a shape's name or a path");
    } else if (is_shape_name(config, path)) {
        family = mc_config_family_of_shape(config);
        if (!family) mc_config_no_shape(ctx, config);
    } else {
        cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 24);
        mc_config_reader r = {.ctx = ctx, .json = json, .path = path, .form = MC_FORM_HF};
        if (json) family = choose_family(&r, NULL, NULL);
        cJSON_Delete(json);
    }
    return family ? family->name : NULL;
}

/* Whether a config says anything of a key; a shape's name does not. */
static bool config_has(mc_context *ctx, const char *config, const char *key)
{
    char path[MC_PATH_MAX];
    if (is_shape_name(config, path)) return false;
    cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 24);
    bool has = cJSON_HasObjectItem(json, key);
    cJSON_Delete(json);
    return has;
}

mc_status mc_model_take_tokens(mc_model *m, const mc_tokenizer *tok, const char *config)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (mc_failed(ctx) || !mc_given_as(ctx, tok, "tokenizer") ||
        !mc_given_as(ctx, config, "config"))
        return mc_error_status(ctx);
    const struct {
        const char *key;
        int32_t id;
    } tokens[] = {{"bos_token_id", mc_tokenizer_token_to_id(tok, tok->bos_token)},
                  {"eos_token_id", mc_tokenizer_end_of_text_id(tok)},
                  {"pad_token_id", mc_tokenizer_pad_id(tok)}};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        int64_t *token = mc_config_token(m->family, m->config, tokens[i].key);
        bool open = token && m->family->kind != MC_MODEL_ENCODER && tokens[i].id >= 0 &&
                    tokens[i].id < m->shape.vocab_size;
        if (open && !config_has(ctx, config, tokens[i].key)) *token = tokens[i].id;
        if (mc_failed(ctx)) return mc_error_status(ctx);
    }
    m->shape = m->family->shape(m->config);
    m->shape.kind = m->family->kind;
    m->eos_count = 0;
    if (m->shape.eos_token >= 0) m->eos[m->eos_count++] = (int32_t)m->shape.eos_token;
    return MC_OK;
}

mc_model *mc_model_new(mc_context *ctx, const char *name, const char *config,
                       const mc_model_heads *heads, const mc_load_options *options)
{
    char known[256];
    if (mc_failed(ctx)) return NULL;
    if (!name && config && !(name = mc_family_of_config(ctx, config))) return NULL;
    const mc_family *family = mc_family_find(name);
    if (!family || !config) {
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "a new model: family \"%s\", config \"%s\": expected one of %s", name ? name : "",
                config ? config : "", list_families(known, sizeof known));
        return NULL;
    }
    void *read = mc_calloc(1, family->config_size);
    mc_model *m = NULL;
    if (!read)
        mc_fail_nomem(ctx, "a config");
    else if (read_any_config(ctx, family, config, read) == MC_OK)
        m = mc_model_from_config(ctx, family, read, heads, options);
    mc_free(read);
    return m;
}
