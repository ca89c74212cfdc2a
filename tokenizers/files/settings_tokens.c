/* The special and other added tokens that the configuration files name. */
#include <string.h>
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/files/settings_internal.h"

static const mc_settings none;

static const mc_settings *settings_of(const mc_tokenizer *tok)
{
    return tok->settings ? tok->settings : &none;
}

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the added tokens", path);
}

/* Whether the vocabulary is a SentencePiece model. */
static bool is_model(const mc_tokenizer *tok)
{
    return tok->kind == MC_TOKENIZER_UNIGRAM && tok->unigram.single;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The keys that name special tokens, in the order in which transformers adds these. */
static const char *const seven[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

typedef struct special_name {
    const char *key;
    char **name;
    bool may_lack; /* null takes it away */
} special_name;

enum { NAMES = 7 };

static void list_names(mc_tokenizer *tok, special_name names[NAMES])
{
    const special_name all[NAMES] = {
        {"bos_token", &tok->bos_token, true},  {"eos_token", &tok->eos_token, true},
        {"unk_token", &tok->unk_token, false}, {"sep_token", &tok->sep_token, false},
        {"pad_token", &tok->pad_token, false}, {"cls_token", &tok->cls_token, false},
        {"mask_token", &tok->mask_token, true}};
    memcpy(names, all, sizeof all);
}

/* The value of a key, and the file that gives it: the map's, unless tokenizer_config.json has a
 * list of its added tokens. */
static const cJSON *find_value(const mc_settings *s, const char *key, const char **path)
{
    const cJSON *item = s->has_decoder ? NULL : cJSON_GetObjectItemCaseSensitive(s->map, key);
    *path = item ? s->map_path : s->config_path;
    return item ? item : cJSON_GetObjectItemCaseSensitive(s->config, key);
}

/* A token's text: a string, or an object's "content". */
static const char *text_of(const cJSON *item)
{
    const cJSON *content = cJSON_IsObject(item) ? mc_tokenizer_part(item, "content") : item;
    return cJSON_IsString(content) ? content->valuestring : NULL;
}

static mc_status bad_token(mc_error *err, const char *path, const char *key)
{
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: key \"%s\": expected a token, a string or an object with \"content\"",
                        path, key);
}

const char *mc_settings_named(const mc_tokenizer *tok, const char *key)
{
    const char *path;
    return text_of(find_value(settings_of(tok), key, &path));
}

mc_status mc_settings_read_names(mc_tokenizer *tok, mc_error *err)
{
    special_name names[NAMES];
    list_names(tok, names);
    for (int i = 0; i < NAMES; i++) {
        const char *path, *key = names[i].key;
        const cJSON *item = find_value(settings_of(tok), key, &path);
        const char *text = text_of(item);
        if (cJSON_IsNull(item) && names[i].may_lack) text = "";
        if (item && !cJSON_IsNull(item) && !text) return bad_token(err, path, key);
        if (text && !mc_tokenizer_set_string(names[i].name, text)) return no_memory(err, path);
    }
    return MC_OK;
}

/* ---- the list of added tokens ---------------------------------------------------------------- */

static mc_added_token *find_added(const mc_tokenizer *tok, const char *text, size_t from)
{
    for (size_t i = from; i < tok->added_count; i++)
        if (strcmp(mc_tokenizer_text(tok, tok->added[i].entry), text) == 0) return &tok->added[i];
    return NULL;
}

/* A token of `text` with the settings of `token`, which replace those of an earlier one. */
static mc_status put_token(mc_tokenizer *tok, mc_error *err, const char *path, const char *text,
                           mc_added_token token)
{
    mc_added_token *known = find_added(tok, text, 0);
    if (!*text) return MC_OK; /* transformers passes over empty ones too */
    if (known) {
        token.entry = known->entry;
        token.named_id = known->named_id;
        token.named_in = known->named_in;
        *known = token;
        return MC_OK;
    }
    if (tok->added_count >= MC_TOKENS_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: more than %d tokens", path, MC_TOKENS_MAX);
    return mc_tokenizer_store(tok, text, strlen(text), &token.entry) &&
                   mc_tokenizer_add(tok, &token)
               ? MC_OK
               : no_memory(err, path);
}

/* Adds a special token by name unless it is an added token already, which then is special. */
static mc_status add_special(mc_tokenizer *tok, mc_error *err, const char *path, const char *key,
                             const cJSON *item, bool named)
{
    const char *text = text_of(item);
    mc_added_token token = {.named_id = -1, .special = true};
    if (!text) return bad_token(err, path, key);
    mc_added_token *known = find_added(tok, text, 0);
    if (known) {
        known->special = known->special || named;
        return MC_OK;
    }
    if (cJSON_IsObject(item)) {
        if (!mc_json_get_bool(err, item, path, "special", &token.special)) return err->status;
        token.special = token.special || named;
        if (!mc_json_get_bool(err, item, path, "normalized", &token.normalized) ||
            !mc_json_get_bool(err, item, path, "single_word", &token.single_word) ||
            !mc_json_get_bool(err, item, path, "lstrip", &token.lstrip) ||
            !mc_json_get_bool(err, item, path, "rstrip", &token.rstrip))
            return err->status;
    }
    return put_token(tok, err, path, text, token);
}

static bool ends_with_token(const char *key)
{
    size_t length = strlen(key);
    return length > 6 && strcmp(key + length - 6, "_token") == 0;
}

/* Whether T5's class has a token by this key even if no file names it. */
static bool is_own_of_t5(const mc_tokenizer *tok, const char *key)
{
    static const char *const own[] = {"eos_token", "unk_token", "pad_token"};
    bool found = false;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) found = found || strcmp(own[i], key) == 0;
    return found && is_model(tok) && tok->unigram.t5;
}

static mc_status add_named(mc_tokenizer *tok, mc_error *err)
{
    special_name names[NAMES];
    const mc_settings *s = settings_of(tok);
    const char *path;
    list_names(tok, names);
    for (int i = 0; i < NAMES; i++) {
        const cJSON *item = find_value(s, names[i].key, &path);
        if (item && !cJSON_IsNull(item) && add_special(tok, err, path, names[i].key, item, true))
            return err->status;
        if (!item && is_own_of_t5(tok, names[i].key) &&
            mc_tokenizer_add_special(tok, err, tok->settings ? s->config_path : "", *names[i].name))
            return err->status;
    }
    return MC_OK;
}

static bool is_one_of_seven(const char *key)
{
    for (size_t i = 0; i < sizeof seven / sizeof *seven; i++)
        if (strcmp(seven[i], key) == 0) return true;
    return false;
}

/* Tokens that a model has beside the seven: "image_token", and those of an object of names. */
static mc_status add_own(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *object,
                         bool by_end)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        bool token = cJSON_IsString(item) || cJSON_IsObject(item);
        if (by_end && (!token || !ends_with_token(item->string) || is_one_of_seven(item->string)))
            continue;
        if (add_special(tok, err, path, item->string, item, true)) return err->status;
    }
    return MC_OK;
}

static mc_status add_list(mc_tokenizer *tok, mc_error *err, const char *path, const char *key,
                          const cJSON *list)
{
    const cJSON *item;
    if (cJSON_IsObject(list)) return add_own(tok, err, path, list, false);
    if (list && !cJSON_IsNull(list) && !cJSON_IsArray(list))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected \"%s\" to be a list or an object",
                            path, key);
    cJSON_ArrayForEach(item, list)
    {
        if (add_special(tok, err, path, key, item, false)) return err->status;
    }
    return MC_OK;
}

/* Whether the files list extra special tokens, be it none: to transformers' classes of a
 * SentencePiece model those are then all. */
bool mc_settings_list_extra(const mc_tokenizer *tok)
{
    static const char extra[] = "extra_special_tokens";
    const mc_settings *s = settings_of(tok);
    return cJSON_HasObjectItem(s->config, extra) ||
           cJSON_HasObjectItem(s->config, "additional_special_tokens") ||
           (!s->has_decoder && cJSON_HasObjectItem(s->map, extra));
}

/* "extra_special_tokens", or by their old name "additional_special_tokens"; the map's come to the
 * former, and stand in for the latter. */
static mc_status add_extra(mc_tokenizer *tok, mc_error *err)
{
    static const char extra[] = "extra_special_tokens", old[] = "additional_special_tokens";
    const mc_settings *s = settings_of(tok);
    const cJSON *map = s->has_decoder ? NULL : s->map;
    const cJSON *more = cJSON_GetObjectItemCaseSensitive(map, extra);
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(s->config, extra);
    const cJSON *by_old_name = cJSON_GetObjectItemCaseSensitive(s->config, old);
    const char *key = extra, *path = s->config_path;
    if (by_old_name && !(own && own->child)) {
        own = by_old_name;
        by_old_name = NULL;
        key = old;
    }
    if (add_list(tok, err, s->config_path, key, own) ||
        add_list(tok, err, s->map_path, extra, more))
        return err->status;
    /* of a list and tokens by the old name the list counts; an object is none. A SentencePiece
     * model's pieces take the place of those by the old name. */
    if (is_model(tok) || (own && !cJSON_IsObject(own)) || cJSON_IsArray(more)) return MC_OK;
    if (cJSON_HasObjectItem(map, old)) {
        by_old_name = cJSON_GetObjectItemCaseSensitive(map, old);
        path = s->map_path;
    }
    return add_list(tok, err, path, old, by_old_name);
}

/* ---- added_tokens.json ----------------------------------------------------------------------- */

static bool lists_token(const cJSON *list, const char *text)
{
    const cJSON *item;
    if (!cJSON_IsArray(list)) return false;
    cJSON_ArrayForEach(item, list)
    {
        const char *one = text_of(item);
        if (one && strcmp(one, text) == 0) return true;
    }
    return false;
}

/* Whether the files name the token as one of the seven, or list it. */
static bool names_special(const mc_tokenizer *tok, const char *text)
{
    static const char extra[] = "extra_special_tokens";
    const mc_settings *s = settings_of(tok);
    const cJSON *list = mc_tokenizer_part(s->config, extra);
    if (!list || !list->child) list = mc_tokenizer_part(s->config, "additional_special_tokens");
    for (size_t i = 0; i < sizeof seven / sizeof *seven; i++) {
        const char *path, *one = text_of(find_value(s, seven[i], &path));
        if (one && strcmp(one, text) == 0) return true;
    }
    return lists_token(list, text) || lists_token(mc_tokenizer_part(s->map, extra), text);
}

/* {"token": id, ...}, in the order of the ids. A tokenizer.json's token of the same id counts. */
static mc_status read_added_file(mc_tokenizer *tok, mc_error *err, size_t of_json)
{
    const mc_settings *s = settings_of(tok);
    const cJSON *item;
    size_t before = tok->added_count;
    cJSON_ArrayForEach(item, s->added)
    {
        bool special = names_special(tok, item->string), taken = false;
        mc_added_token token = {.named_id = item->valueint,
                                .named_in = s->added_path,
                                .special = special,
                                .normalized = !special};
        if (!cJSON_IsNumber(item) || item->valuedouble != (double)item->valueint ||
            item->valueint < 0 || !*item->string)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: \"%.80s\": expected a token and its id",
                                s->added_path, item->string);
        for (size_t i = 0; i < of_json; i++)
            taken = taken || tok->added[i].named_id == token.named_id;
        if (!taken && !find_added(tok, item->string, 0) &&
            put_token(tok, err, s->added_path, item->string, token))
            return err->status;
    }
    mc_tokenizer_sort_added(tok, before);
    return MC_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Reads "added_tokens_decoder" after those that are there; of the same text the new one counts. */
static mc_status read_decoder(mc_tokenizer *tok, mc_error *err)
{
    const mc_settings *s = settings_of(tok);
    size_t before = tok->added_count, kept = before;
    if (mc_tokenizer_read_added_decoder(tok, err, s->config_path, s->config)) return err->status;
    for (size_t i = before; i < tok->added_count; i++) {
        mc_added_token token = tok->added[i];
        const char *text = mc_tokenizer_text(tok, token.entry);
        token.named_in = s->config_path;
        bool again = false;
        for (size_t k = 0; k < kept && !again; k++) {
            again = strcmp(mc_tokenizer_text(tok, tok->added[k].entry), text) == 0;
            if (again) tok->added[k] = token;
        }
        if (!again) tok->added[kept++] = token;
    }
    tok->added_count = kept;
    return MC_OK;
}

/* Added tokens are whole anyway. */
mc_status mc_settings_check_unsplit(const mc_tokenizer *tok, mc_error *err)
{
    const mc_settings *s = settings_of(tok);
    const cJSON *list = mc_tokenizer_part(s->config, "never_split"), *item;
    cJSON_ArrayForEach(item, list)
    {
        const char *text = text_of(item);
        if (text && find_added(tok, text, 0)) continue;
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: key \"never_split\": \"%.80s\" is not supported, expected added "
                            "tokens alone: other words are split",
                            s->config_path, text ? text : "?");
    }
    return MC_OK;
}

mc_status mc_settings_add_listed(mc_tokenizer *tok, mc_error *err, bool only_these)
{
    const mc_settings *s = settings_of(tok);
    if (s->has_decoder) {
        if (only_these) tok->added_count = 0;
        if (read_decoder(tok, err)) return err->status;
    } else if (read_added_file(tok, err, tok->added_count)) {
        return err->status;
    }
    if (only_these) mc_tokenizer_sort_added(tok, 0);
    return MC_OK;
}

mc_status mc_settings_add_specials(mc_tokenizer *tok, mc_error *err)
{
    const mc_settings *s = settings_of(tok);
    if (add_named(tok, err) || add_own(tok, err, s->config_path, s->config, true) ||
        add_own(tok, err, s->config_path,
                mc_tokenizer_part(s->config, "model_specific_special_tokens"), false) ||
        add_own(tok, err, s->map_path, s->has_decoder ? NULL : s->map, true) || add_extra(tok, err))
        return err->status;
    return MC_OK;
}

mc_status mc_settings_add_tokens(mc_tokenizer *tok, mc_error *err, bool only_these)
{
    mc_status status = mc_settings_add_listed(tok, err, only_these);
    return status ? status : mc_settings_add_specials(tok, err);
}
