#include "core/checkpoint/weight_map_internal.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/dist/ranks_internal.h"
#include "core/formats/tensor_file_internal.h"
#include "core/nn/module_internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* Matches `pattern` (with at most one {i}) as a prefix of `name`. Returns the rest of the name, and
 * the number; a match must end at the end of the name, or before a '.'. */
static const char *match_prefix(const char *pattern, const char *name, int *number)
{
    while (*pattern) {
        if (strncmp(pattern, "{i}", 3) == 0) {
            char *end;
            if (!isdigit((unsigned char)*name)) return NULL;
            *number = (int)strtol(name, &end, 10);
            name = end;
            pattern += 3;
        } else if (*pattern++ != *name++) {
            return NULL;
        }
    }
    return *name == '\0' || *name == '.' ? name : NULL;
}

/* Appends text to out and expands the number patterns; false if it does not fit. */
static bool expand(char out[MC_NAME_MAX], const char *text, int number, int layers)
{
    size_t used = strlen(out);
    while (*text && used + 12 < MC_NAME_MAX) {
        int value = -1;
        size_t skip = 0;
        if (strncmp(text, "{i}", 3) == 0)
            value = number, skip = 3;
        else if (strncmp(text, "{i-1}", 5) == 0)
            value = number - 1, skip = 5;
        else if (strncmp(text, "{last}", 6) == 0)
            value = layers - 1, skip = 6;
        if (skip) {
            used += (size_t)snprintf(out + used, MC_NAME_MAX - used, "%d", value);
            text += skip;
        } else {
            out[used++] = *text++;
        }
    }
    out[used] = '\0';
    return !*text;
}

/* The rule for a parameter, with the layer's number and the rest of the name after the rule's
 * `ours`; NULL: no rule. */
static const mc_weight_rule *find_rule(const mc_weight_map *map, const char *ours, int *number,
                                       const char **rest)
{
    *number = 0;
    for (const mc_weight_rule *rule = map->rules; rule->ours; rule++)
        if ((*rest = match_prefix(rule->ours, ours, number))) return rule;
    return NULL;
}

bool mc_weight_name(const mc_weight_map *map, int layers, const char *ours, bool prefixed,
                    char out[MC_NAME_MAX])
{
    int number;
    const char *rest;
    const mc_weight_rule *rule = find_rule(map, ours, &number, &rest);
    out[0] = '\0';
    bool bare = map->adapter_bare && strcmp(ours, map->adapter_bare) == 0;
    if (map->adapter_prefix && !bare && !expand(out, map->adapter_prefix, 0, 0)) return false;
    if (!rule) return map->adapter_prefix && expand(out, ours, 0, 0);
    return (!prefixed || rule->head || expand(out, map->base_prefix, 0, 0)) &&
           expand(out, rule->theirs, number, layers) && expand(out, rest, 0, 0);
}

bool mc_weight_is_held(const mc_weight_map *map, const mc_parameter *p)
{
    return map->adapter_prefix ? p->in_adapter : map->with_factors || !p->is_factor;
}

bool mc_weight_copy(const mc_weight_map *map, const char *ours, char out[MC_NAME_MAX])
{
    int number;
    const char *rest;
    const mc_weight_rule *rule = find_rule(map, ours, &number, &rest);
    out[0] = '\0';
    return rule && rule->copy && (!map->adapter_prefix || expand(out, map->adapter_prefix, 0, 0)) &&
           expand(out, rule->copy, number, 0) && expand(out, rest, 0, 0);
}

bool mc_weight_written_copy(mc_module *model, const mc_weight_map *map, bool own_names,
                            const char *ours, char out[MC_NAME_MAX])
{
    int number;
    const char *rest;
    const mc_weight_rule *rule = find_rule(map, ours, &number, &rest);
    out[0] = '\0';
    if (!rule || (rule->copied_with && !mc_module_find_parameter(model, rule->copied_with)))
        return false;
    if (!own_names) return mc_weight_copy(map, ours, out);
    return rule->own_copy && expand(out, rule->own_copy, number, 0) && expand(out, rest, 0, 0) &&
           !mc_module_find_parameter(model, out); /* a parameter of the model, not a copy */
}

/* Replaces a final "LayerNorm.weight" or ".bias" by its name in old TensorFlow conversions. */
static bool old_norm_name(char name[MC_NAME_MAX])
{
    static const char *const pairs[][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                           {"LayerNorm.bias", "LayerNorm.beta"}};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(name), tail = strlen(pairs[i][0]);
        if (length < tail || strcmp(name + length - tail, pairs[i][0]) != 0) continue;
        memcpy(name + length - tail, pairs[i][1], strlen(pairs[i][1]) + 1); /* never longer */
        return true;
    }
    return false;
}

mc_weight_place mc_weight_place_of(const mc_weight_map *map, const char *ours)
{
    int number;
    const char *rest;
    const mc_weight_rule *rule = find_rule(map, ours, &number, &rest);
    bool factor = rule && strncmp(rest, ".lora_", strlen(".lora_")) == 0;
    if (!rule || factor) return (mc_weight_place){.parts = 1, .factor = 1};
    return (mc_weight_place){rule->transpose, rule->part, rule->parts ? rule->parts : 1,
                             rule->factor != 0 ? rule->factor : 1};
}

mc_shape mc_weight_file_shape(mc_weight_place place, mc_shape shape)
{
    if (shape.ndim) shape.dim[0] *= place.parts;
    if (place.transpose && shape.ndim == 2) shape = MC_SHAPE(shape.dim[1], shape.dim[0]);
    return shape;
}

/* The tensor `base` (a prefix) + `stem` + `rest` of a file. */
static const mc_tensor_entry *find_parts(const mc_weight_map *map, const mc_tensor_file *file,
                                         const char *base, const char *stem, const char *rest)
{
    char name[MC_NAME_MAX] = "";
    bool fits = (!map->adapter_prefix || expand(name, map->adapter_prefix, 0, 0)) &&
                expand(name, base, 0, 0) && expand(name, stem, 0, 0) && expand(name, rest, 0, 0);
    return fits ? mc_tensor_file_find(file, name) : NULL;
}

/* The tensor `stem` + `rest`, with or without the base's prefix. */
static const mc_tensor_entry *find_stem(const mc_weight_map *map, const mc_tensor_file *file,
                                        const char *stem, const char *rest)
{
    const mc_tensor_entry *entry = find_parts(map, file, map->base_prefix, stem, rest);
    return entry ? entry : find_parts(map, file, "", stem, rest);
}

/* The tied head, whose name never has the base's prefix. */
static const mc_tensor_entry *find_tied(const mc_weight_map *map, const mc_tensor_file *file,
                                        const mc_weight_rule *rule, const char *rest)
{
    return find_parts(map, file, "", rule->tied_to, rest);
}

/* A parameter's tensor under one of its other names; the head's name is tried last. */
static const mc_tensor_entry *find_other_name(const mc_weight_map *map, const mc_tensor_file *file,
                                              const char *ours, mc_weight_place *place)
{
    int number;
    const char *rest;
    const mc_weight_rule *rule = find_rule(map, ours, &number, &rest);
    const mc_tensor_entry *entry = NULL;
    for (const char *const *also = rule ? rule->also : NULL; also && *also && !entry; also++)
        entry = find_stem(map, file, *also, rest);
    bool tied = map->tied && rule && rule->tied_to;
    if (!entry && tied) entry = find_tied(map, file, rule, rest);
    if (entry) *place = mc_weight_place_of(map, ours);
    if (entry || !tied || !rule->own_copy) return entry;
    *place = (mc_weight_place){.parts = 1, .factor = 1};
    return find_stem(map, file, rule->own_copy, rest);
}

/* The word embeddings, for a head that was tied to them. */
static const mc_tensor_entry *find_words(const mc_weight_map *map, int layers,
                                         const mc_tensor_file *file, const char *ours,
                                         mc_weight_place *place)
{
    int number;
    const char *rest;
    char name[MC_NAME_MAX] = "";
    const mc_weight_rule *head = map->untied ? find_rule(map, ours, &number, &rest) : NULL;
    for (const mc_weight_rule *rule = map->rules; head && rule->ours; rule++) {
        size_t length = rule->tied_to ? strlen(rule->tied_to) : 0;
        const char *tail = head->theirs + length; /* "" or ".weight" */
        if (length && strncmp(rule->tied_to, head->theirs, length) == 0 &&
            (!*tail || *tail == '.') && expand(name, rule->ours, 0, 0) &&
            expand(name, tail, 0, 0) && expand(name, rest, 0, 0))
            return mc_weight_locate(map, layers, file, name, place);
    }
    return NULL;
}

const mc_tensor_entry *mc_weight_find(const mc_weight_map *map, int layers,
                                      const mc_tensor_file *file, const char *ours)
{
    mc_weight_place place;
    return mc_weight_locate(map, layers, file, ours, &place);
}

const mc_tensor_entry *mc_weight_locate(const mc_weight_map *map, int layers,
                                        const mc_tensor_file *file, const char *ours,
                                        mc_weight_place *place)
{
    char name[MC_NAME_MAX];
    *place = mc_weight_place_of(map, ours);
    if (mc_weight_copy(map, ours, name)) {
        const mc_tensor_entry *copy = mc_tensor_file_find(file, name);
        if (copy) return copy;
    }
    for (int prefixed = 1; prefixed >= 0; prefixed--) {
        if (!mc_weight_name(map, layers, ours, prefixed, name)) continue;
        const mc_tensor_entry *entry = mc_tensor_file_find(file, name);
        if (!entry && old_norm_name(name)) entry = mc_tensor_file_find(file, name);
        if (entry) return entry;
    }
    const mc_tensor_entry *own = mc_tensor_file_find(file, ours);
    const mc_tensor_entry *other = own ? NULL : find_other_name(map, file, ours, place);
    if (!own && !other) other = find_words(map, layers, file, ours, place);
    if (!other) *place = (mc_weight_place){.parts = 1, .factor = 1};
    return other ? other : own;
}

static bool matches_any(const char *const *patterns, const char *name)
{
    for (; patterns && *patterns; patterns++)
        if (fnmatch(*patterns, name, 0) == 0) return true;
    return false;
}

/* ---- loading --------------------------------------------------------------------------------- */

typedef struct load {
    mc_context *ctx;
    const mc_weight_map *map;
    int layers;
    mc_tensor_file *file;
    const char *source;
    mc_weight_source *sources; /* one per parameter; without an entry it stays new */
    size_t count;
} load;

static bool same_shape(const mc_tensor_entry *entry, mc_shape shape)
{
    if (entry->ndim != shape.ndim) return false;
    for (int i = 0; i < shape.ndim; i++)
        if (entry->shape[i] != shape.dim[i]) return false;
    return true;
}

static bool check_entry(load *l, const mc_parameter *p, const mc_tensor_entry *entry,
                        mc_weight_place place)
{
    mc_shape expected = mc_weight_file_shape(place, p->shape);
    mc_shape found = {.ndim = entry->ndim};
    for (int i = 0; i < entry->ndim && i < MC_MAX_DIMS; i++) found.dim[i] = entry->shape[i];
    if (found.ndim > MC_MAX_DIMS) found.ndim = MC_MAX_DIMS;
    if (!same_shape(entry, expected))
        return !mc_fail(l->ctx, MC_ERR_SHAPE, "%s: tensor \"%s\": shape %s, expected %s",
                        entry->file, entry->name, MC_SHAPE_TEXT(found), MC_SHAPE_TEXT(expected));
    if (!mc_dtype_is_float(entry->dtype) && strcmp(entry->dtype_name, "F64") != 0)
        return !mc_fail(l->ctx, MC_ERR_DTYPE,
                        "%s: tensor \"%s\": dtype %s, expected F64, F32, F16 or BF16", entry->file,
                        entry->name, entry->dtype_name);
    return true;
}

/* Whether all tensors of a parameter in the file, under its several names, have the same values. */
static bool tables_agree(load *l, const mc_parameter *p, const mc_tensor_entry *entry)
{
    int number;
    const char *rest;
    const mc_weight_rule *rule = find_rule(l->map, p->name, &number, &rest);
    for (const char *const *also = rule ? rule->also : NULL; also && *also; also++) {
        const mc_tensor_entry *other = find_stem(l->map, l->file, *also, rest);
        if (other == entry || !mc_weights_differ(l->file, entry, other)) continue;
        return !mc_fail(l->ctx, MC_ERR_UNSUPPORTED,
                        "%s: tensors \"%s\" and \"%s\" differ, expected the same table under both "
                        "names",
                        l->source, entry->name, other->name);
    }
    return !mc_failed(l->ctx);
}

/* Whether a parameter is not read: a weight in left_new, or the bias of its module. */
static bool is_left_new(const mc_weight_map *map, const char *name)
{
    for (const char *const *weight = map->left_new; *weight; weight++) {
        size_t module = (size_t)(strrchr(*weight, '.') + 1 - *weight);
        if (strncmp(name, *weight, module) != 0) continue;
        if (strcmp(name, *weight) == 0 || strcmp(name + module, "bias") == 0) return true;
    }
    return false;
}

/* Finds and checks the entry of every parameter; collects missing and newly initialised ones. */
static bool find_entries(load *l, mc_module *model, const char *const *may_be_new)
{
    char held[MC_NAMES_SHOWN];
    mc_name_list missing = {0}, new = {0};
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; !mc_failed(l->ctx) && (p = mc_module_next_parameter(model, &it));) {
        if (!mc_weight_is_held(l->map, p) || is_left_new(l->map, p->name)) continue;
        mc_weight_source *source = &l->sources[l->count++];
        source->to = p;
        source->entry = mc_weight_locate(l->map, l->layers, l->file, p->name, &source->place);
        if (source->entry) {
            if (check_entry(l, p, source->entry, source->place)) tables_agree(l, p, source->entry);
        } else if (mc_weight_place_of(l->map, p->name).part == 0) { /* one name for all parts */
            char name[MC_NAME_MAX];
            bool mapped = mc_weight_name(l->map, l->layers, p->name, false, name);
            bool can_be_new = matches_any(may_be_new, p->name);
            if (can_be_new && l->map->adapter_follows && p->in_adapter) continue;
            mc_name_list_add(can_be_new ? &new : &missing, mapped ? name : p->name);
        }
    }
    if (missing.failed || new.failed) mc_fail_nomem(l->ctx, "the list of missing tensors");
    if (missing.count)
        mc_fail(l->ctx, MC_ERR_NOT_FOUND, "%s: %d tensor%s missing: %s; %s", l->source,
                missing.count, missing.count > 1 ? "s are" : " is", missing.text,
                mc_tensor_names_show(mc_tensor_file_at(l->file, 0), mc_tensor_file_count(l->file),
                                     held));
    if (new.count && !mc_failed(l->ctx))
        mc_log(l->ctx, MC_LOG_INFO, "%s: not in the file and newly initialised: %s", l->source,
               new.text);
    mc_name_list_release(&missing);
    mc_name_list_release(&new);
    return !mc_failed(l->ctx);
}

static void warn_not_finite(load *l, const uint8_t *not_finite)
{
    mc_name_list list = {0};
    for (size_t i = 0; i < l->count; i++)
        if (not_finite[i]) mc_name_list_add(&list, l->sources[i].entry->name);
    if (list.failed) mc_fail_nomem(l->ctx, "the list of tensors that are not finite");
    if (list.count && !mc_failed(l->ctx))
        mc_log(l->ctx, MC_LOG_WARNING, "%s: %d tensor%s NaN or infinite values: %s", l->source,
               list.count, list.count > 1 ? "s hold" : " holds", list.text);
    mc_name_list_release(&list);
}

static void fill_parameters(load *l)
{
    uint8_t *not_finite = mc_calloc(l->count + 1, sizeof *not_finite);
    if (!not_finite) mc_fail_nomem(l->ctx, "reading weights");
    if (not_finite) mc_weights_fill(l->ctx, l->file, l->sources, l->count, not_finite);
    if (mc_ranks_any(l->ctx, not_finite, l->count + 1) == MC_OK) warn_not_finite(l, not_finite);
    mc_free(not_finite);
}

static int compare_entries(const void *a, const void *b)
{
    const mc_weight_source *x = a, *y = b;
    return x->entry < y->entry ? -1 : x->entry > y->entry;
}

/* Whether an entry of an adapter, under the tied head's name, repeats the word embeddings. */
static bool is_words_again(load *l, const mc_tensor_entry *entry)
{
    const mc_weight_map *map = l->map;
    for (const mc_weight_rule *rule = map->rules; map->tied && rule->ours; rule++) {
        if (!rule->tied_to || find_tied(map, l->file, rule, ".weight") != entry) continue;
        const mc_tensor_entry *words = find_stem(map, l->file, rule->theirs, ".weight");
        if (words && !mc_weights_differ(l->file, words, entry)) return true;
    }
    return false;
}

/* Whether an entry is a value of an adapter that its file has under a second name, too. */
static bool is_copy(load *l, const mc_tensor_entry *entry)
{
    const mc_weight_map *map = l->map;
    for (const mc_weight_rule *rule = map->rules; map->adapter_prefix && rule->ours; rule++) {
        if (!rule->copy || find_parts(map, l->file, "", rule->theirs, "") != entry) continue;
        const mc_tensor_entry *copy = find_parts(map, l->file, "", rule->copy, "");
        if (copy && !mc_weights_differ(l->file, copy, entry)) return true;
    }
    return false;
}

/* Tensors without a parameter are logged, or an error. Sorts the sources. */
static void report_spare(load *l, mc_module *model)
{
    mc_name_list spare = {0};
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(model, &it));)
        if (is_left_new(l->map, p->name))
            l->sources[l->count++].entry = mc_weight_find(l->map, l->layers, l->file, p->name);
    qsort(l->sources, l->count, sizeof *l->sources, compare_entries);
    for (size_t i = 0; i < mc_tensor_file_count(l->file); i++) {
        const mc_tensor_entry *entry = mc_tensor_file_at(l->file, i);
        mc_weight_source key = {.entry = entry};
        bool used = bsearch(&key, l->sources, l->count, sizeof key, compare_entries);
        if (!used && !matches_any(l->map->ignored, entry->name) && !is_words_again(l, entry) &&
            !is_copy(l, entry))
            mc_name_list_add(&spare, entry->name);
    }
    if (spare.failed) mc_fail_nomem(l->ctx, "the list of spare tensors");
    if (spare.count && !mc_failed(l->ctx) && l->map->all_used)
        mc_fail(l->ctx, MC_ERR_UNSUPPORTED, "%s: %d tensor%s no place in the model: %s", l->source,
                spare.count, spare.count > 1 ? "s have" : " has", spare.text);
    if (spare.count && !mc_failed(l->ctx))
        mc_log(l->ctx, MC_LOG_WARNING, "%s: %d tensor%s not used: %s", l->source, spare.count,
               spare.count > 1 ? "s are" : " is", spare.text);
    mc_name_list_release(&spare);
}

mc_status mc_weights_load(mc_module *model, const mc_weight_map *map, int layers,
                          mc_tensor_file *file, const char *source, const char *const *may_be_new)
{
    if (!model) return MC_ERR_ARGUMENT;
    mc_module_root *root = model->root;
    load l = {.ctx = model->ctx, .map = map, .layers = layers, .file = file, .source = source};
    if (mc_failed(l.ctx)) return mc_error_status(l.ctx);
    l.sources = mc_calloc(root->parameter_count + 1, sizeof *l.sources);
    if (!l.sources)
        mc_fail_nomem(l.ctx, "loading weights");
    else if (find_entries(&l, model, may_be_new)) {
        for (size_t i = 0; i < l.count; i++)
            if (l.sources[i].entry) mc_parameter_mark_loaded(l.sources[i].to);
        if (mc_module_layout(root) == MC_OK) fill_parameters(&l);
        if (!mc_failed(l.ctx)) report_spare(&l, model);
    }
    mc_free(l.sources);
    return mc_error_status(l.ctx);
}

/* What a file must hold. */
typedef struct wanted {
    const mc_weight_map *map;
    const char *ours;
} wanted;

static bool is_held(const mc_tensor_file *file, const void *user)
{
    const wanted *w = user;
    return mc_weight_find(w->map, 0, file, w->ours);
}

void mc_weights_unwrap(const mc_weight_map *map, const char *ours, mc_tensor_file *file,
                       const char *source)
{
    mc_weight_map tied = *map;
    tied.tied = true;
    if (ours) mc_tensor_file_unwrap(file, source, is_held, &(wanted){&tied, ours});
}

bool mc_weights_differ(mc_tensor_file *file, const mc_tensor_entry *a, const mc_tensor_entry *b)
{
    enum { CUT = 4096 };
    float x[CUT], y[CUT];
    if (!a || !b || a == b) return false;
    if (a->count != b->count) return true;
    if (a->data == b->data && a->dense && b->dense && a->dtype == b->dtype) return false;
    for (int64_t at = 0; at < a->count; at += CUT) {
        int64_t n = a->count - at < CUT ? a->count - at : CUT;
        if (mc_tensor_file_read_f32(file, a, at, n, x) ||
            mc_tensor_file_read_f32(file, b, at, n, y))
            return false;
        if (memcmp(x, y, (size_t)n * sizeof *x) != 0) return true;
    }
    return false;
}
