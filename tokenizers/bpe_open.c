/* Reading byte-level BPE: vocab.json with merges.txt, and a tokenizer.json's parts. */
#include <stdio.h>
#include <string.h>
#include "tokenizers/open_internal.h"

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the merges", path);
}

/* ---- merges ---- */

/* Where a merge stands, for errors. */
typedef struct merge_place {
    const char *path;
    uint32_t number;
    bool line;
} merge_place;

static mc_status bad_merge(mc_error *err, const merge_place *place, const char *format, ...)
    MC_PRINTF(3, 4);
static mc_status bad_merge(mc_error *err, const merge_place *place, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return mc_error_set(err, MC_ERR_FORMAT, place->line ? "%s:%u: %s" : "%s: model: merges[%u]: %s",
                        place->path, place->number, what);
}

static mc_status find_part(const mc_tokenizer *tok, mc_error *err, const merge_place *place,
                           const char *text, size_t length, int32_t *id)
{
    *id = length ? mc_trie_find(&tok->trie, (const uint8_t *)text, length) : -1;
    if (*id >= 0) return MC_OK;
    return bad_merge(err, place, "the vocabulary has no entry \"%.*s\"",
                     (int)(length < 80 ? length : 80), text);
}

static mc_status add_merge(mc_tokenizer *tok, mc_error *err, const merge_place *place,
                           const char *left, size_t left_length, const char *right,
                           size_t right_length, mc_bytes *both)
{
    mc_bpe *bpe = &tok->bpe;
    mc_bpe_merge merge = {.number = place->number};
    if (bpe->merge_count >= MC_TOKENS_MAX)
        return bad_merge(err, place, "more than %d merges", MC_TOKENS_MAX);
    both->count = 0;
    if (!mc_bytes_append(both, left, left_length) || !mc_bytes_append(both, right, right_length) ||
        !mc_grow(&bpe->merges, &bpe->merge_capacity, bpe->merge_count, sizeof *bpe->merges))
        return no_memory(err, place->path);
    if (find_part(tok, err, place, left, left_length, &merge.left) ||
        find_part(tok, err, place, right, right_length, &merge.right) ||
        find_part(tok, err, place, (const char *)both->data, both->count, &merge.result))
        return err->status;
    bpe->merges[bpe->merge_count++] = merge;
    return MC_OK;
}

/* "a b" */
static mc_status add_spaced_merge(mc_tokenizer *tok, mc_error *err, const merge_place *place,
                                  const char *text, size_t length, mc_bytes *both)
{
    const char *space = memchr(text, ' ', length);
    size_t left = space ? (size_t)(space - text) : 0;
    if (!left || left + 1 == length || memchr(space + 1, ' ', length - left - 1))
        return bad_merge(err, place, "expected two tokens with a space between, found \"%.*s\"",
                         (int)(length < 80 ? length : 80), text);
    return add_merge(tok, err, place, text, left, space + 1, length - left - 1, both);
}

mc_status mc_bpe_read_merges(mc_tokenizer *tok, mc_error *err, const char *path, const char *text,
                             size_t size)
{
    static const char version[] = "#version";
    mc_bytes both = {0};
    mc_status status = MC_OK;
    merge_place place = {.path = path, .line = true};
    while (size && (text[size - 1] == '\n' || text[size - 1] == '\r')) size--;
    for (const char *end = text + size, *stop; text < end && !status; text = stop + 1) {
        stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        size_t length = (size_t)(stop - text);
        place.number++;
        if (length >= sizeof version - 1 && memcmp(text, version, sizeof version - 1) == 0)
            continue;
        if (length && text[length - 1] == '\r') length--;
        status = add_spaced_merge(tok, err, &place, text, length, &both);
    }
    mc_bytes_release(&both);
    return status ? status : mc_bpe_index_merges(tok, err, path, true);
}

/* "a b" or ["a", "b"] */
static mc_status read_merge(mc_tokenizer *tok, mc_error *err, const merge_place *place,
                            const cJSON *item, mc_bytes *both)
{
    if (cJSON_IsString(item))
        return add_spaced_merge(tok, err, place, item->valuestring, strlen(item->valuestring),
                                both);
    const cJSON *left = cJSON_GetArrayItem(item, 0), *right = cJSON_GetArrayItem(item, 1);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !cJSON_IsString(left) ||
        !cJSON_IsString(right))
        return bad_merge(err, place, "expected \"a b\" or [\"a\", \"b\"]");
    return add_merge(tok, err, place, left->valuestring, strlen(left->valuestring),
                     right->valuestring, strlen(right->valuestring), both);
}

static mc_status read_merge_list(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const cJSON *list)
{
    const cJSON *item;
    mc_bytes both = {0};
    mc_status status = MC_OK;
    merge_place place = {.path = path};
    if (!cJSON_IsArray(list))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: model: expected \"merges\" to be a list",
                            path);
    cJSON_ArrayForEach(item, list)
    {
        status = read_merge(tok, err, &place, item, &both);
        if (status) break;
        place.number++;
    }
    mc_bytes_release(&both);
    return status ? status : mc_bpe_index_merges(tok, err, path, false);
}

/* ---- tokenizer.json ---- */

static mc_status not_supported(mc_error *err, const char *path, const char *what)
{
    return mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: %s is not supported", path, what);
}

/* The settings of a model that change what it does, and that GPT-2's leaves alone. */
static mc_status check_model(mc_error *err, const char *path, const cJSON *model)
{
    double dropout = 0;
    const char *prefix = "", *suffix = "";
    bool fallback = false, whole = false;
    if (!mc_json_get_number(err, model, path, "dropout", 0, 1, &dropout) ||
        !mc_json_get_string(err, model, path, "continuing_subword_prefix", &prefix) ||
        !mc_json_get_string(err, model, path, "end_of_word_suffix", &suffix) ||
        !mc_json_get_bool(err, model, path, "byte_fallback", &fallback) ||
        !mc_json_get_bool(err, model, path, "ignore_merges", &whole))
        return err->status;
    if (dropout > 0) return not_supported(err, path, "model: \"dropout\"");
    if (*prefix) return not_supported(err, path, "model: a \"continuing_subword_prefix\"");
    if (*suffix) return not_supported(err, path, "model: an \"end_of_word_suffix\"");
    if (fallback) return not_supported(err, path, "model: \"byte_fallback\"");
    return whole ? not_supported(err, path, "model: \"ignore_merges\"") : MC_OK;
}

static mc_status read_model(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *model)
{
    char name[MC_PATH_MAX + 32];
    const char *unk = NULL;
    if (check_model(err, path, model) || !mc_json_get_string(err, model, path, "unk_token", &unk) ||
        !mc_json_get_bool(err, model, path, "fuse_unk", &tok->bpe.fuse_unk))
        return err->status;
    tok->bpe.has_unk = unk != NULL;
    if (unk && !mc_tokenizer_set_string(&tok->unk_token, unk)) return no_memory(err, path);
    snprintf(name, sizeof name, "%s: model: \"vocab\"", path);
    mc_status status =
        mc_tokenizer_read_entries(tok, err, name, mc_tokenizer_part(model, "vocab"), false);
    if (!status) status = mc_tokenizer_index(tok, err, path, false);
    return status ? status : read_merge_list(tok, err, path, mc_tokenizer_part(model, "merges"));
}

static mc_status expect_byte_level(mc_error *err, const char *path, const cJSON *root,
                                   const char *key)
{
    const cJSON *part = mc_tokenizer_part(root, key);
    const char *type = part ? mc_tokenizer_part_type(part, "?") : "null";
    if (strcmp(type, "ByteLevel") == 0) return MC_OK;
    return mc_tokenizer_unsupported(err, path, key, type, "ByteLevel");
}

mc_status mc_bpe_read_json(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    const cJSON *normalizer = mc_tokenizer_part(root, "normalizer");
    const cJSON *words = mc_tokenizer_part(root, "pre_tokenizer");
    bool regex = true;
    tok->kind = MC_TOKENIZER_BYTE_BPE;
    tok->has_normalizer = false;
    if (normalizer)
        return mc_tokenizer_unsupported(err, path, "normalizer",
                                        mc_tokenizer_part_type(normalizer, "?"), "null");
    if (expect_byte_level(err, path, root, "pre_tokenizer") ||
        expect_byte_level(err, path, root, "decoder"))
        return err->status;
    if (!mc_tokenizer_part(words, "add_prefix_space"))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: pre_tokenizer: expected \"add_prefix_space\"",
                            path);
    if (!mc_json_get_bool(err, words, path, "add_prefix_space", &tok->bpe.add_prefix_space) ||
        !mc_json_get_bool(err, words, path, "use_regex", &regex))
        return err->status;
    if (!regex) return not_supported(err, path, "pre_tokenizer: \"use_regex\" false");
    return read_model(tok, err, path, mc_tokenizer_part(root, "model"));
}

/* ---- vocab.json, merges.txt and what lies beside them ---- */

static cJSON *read_optional(mc_error *err, const char *path)
{
    return mc_path_is_file(path) ? mc_json_read_object(err, path, MC_TOKENIZER_FILE_MAX) : NULL;
}

static mc_added_token *find_added(const mc_tokenizer *tok, const char *text)
{
    for (size_t i = 0; i < tok->added_count; i++)
        if (strcmp(mc_tokenizer_text(tok, tok->added[i].entry), text) == 0) return &tok->added[i];
    return NULL;
}

/* Makes a text a special token, as it is where it is an added token already. */
static mc_status add_special(mc_tokenizer *tok, mc_error *err, const char *path, const char *text)
{
    mc_added_token *known = find_added(tok, text);
    mc_added_token token = {.named_id = -1, .special = true};
    if (known) {
        known->special = true;
        return MC_OK;
    }
    if (!*text) return MC_OK;
    if (!mc_tokenizer_store(tok, text, strlen(text), &token.entry) ||
        !mc_tokenizer_add(tok, &token))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the tokenizer", path);
    return MC_OK;
}

/* A special token: its text, or an object with its settings too. */
static mc_status read_special(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *item)
{
    const char *text = NULL;
    if (cJSON_IsString(item)) return add_special(tok, err, path, item->valuestring);
    if (!mc_json_get_string(err, item, path, "content", &text)) return err->status;
    if (!text)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected a special token's \"content\"", path);
    if (!find_added(tok, text) && mc_tokenizer_read_added(tok, err, path, item, -1))
        return err->status;
    return add_special(tok, err, path, text);
}

static mc_status read_specials(mc_tokenizer *tok, mc_error *err, const char *path,
                               const cJSON *root)
{
    mc_special_name names[MC_SPECIAL_NAMES];
    const cJSON *more, *item;
    mc_tokenizer_special_names(tok, names);
    for (int i = 0; i < MC_SPECIAL_NAMES; i++) {
        item = mc_tokenizer_part(root, names[i].key);
        if (item && (read_special(tok, err, path, item) ||
                     mc_tokenizer_read_name(err, path, root, names[i].key, names[i].name)))
            return err->status;
    }
    if (mc_tokenizer_more_specials(err, path, root, &more)) return err->status;
    cJSON_ArrayForEach(item, more)
    {
        if (read_special(tok, err, path, item)) return err->status;
    }
    return MC_OK;
}

/* Tokenizers of other classes have the same files and another way with them. */
static mc_status check_class(mc_error *err, const char *path, const cJSON *root)
{
    static const char *const known[] = {
        "GPT2Tokenizer",     "GPT2TokenizerFast",       "CodeGenTokenizer", "CodeGenTokenizerFast",
        "TokenizersBackend", "PreTrainedTokenizerFast", "RobertaTokenizer", "RobertaTokenizerFast"};
    const char *name = known[0];
    bool bos = false, eos = false, found = false;
    if (!mc_json_get_string(err, root, path, "tokenizer_class", &name) ||
        !mc_json_get_bool(err, root, path, "add_bos_token", &bos) ||
        !mc_json_get_bool(err, root, path, "add_eos_token", &eos))
        return err->status;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        found = found || strcmp(name, known[i]) == 0;
    if (!found) return mc_tokenizer_unsupported(err, path, "tokenizer_class", name, known[0]);
    return bos || eos ? not_supported(err, path, "\"add_bos_token\" or \"add_eos_token\"") : MC_OK;
}

/* {"token": id, ...}, in the order of the ids. */
static mc_status read_added_file(mc_tokenizer *tok, mc_error *err, const char *path)
{
    cJSON *root = read_optional(err, path);
    const cJSON *item;
    size_t before = tok->added_count;
    mc_status status = err->status;
    cJSON_ArrayForEach(item, root)
    {
        mc_added_token token = {.normalized = true, .named_id = item->valueint};
        size_t length = strlen(item->string);
        if (!cJSON_IsNumber(item) || item->valuedouble != (double)item->valueint ||
            item->valueint < 0 || !length)
            status = mc_error_set(err, MC_ERR_FORMAT, "%s: \"%.80s\": expected a token and its id",
                                  path, item->string);
        else if (!mc_tokenizer_store(tok, item->string, length, &token.entry) ||
                 !mc_tokenizer_add(tok, &token))
            status = no_memory(err, path);
        if (status) break;
    }
    mc_tokenizer_sort_added(tok, before);
    cJSON_Delete(root);
    return status;
}

static bool holds(const mc_tokenizer *tok, const char *text)
{
    return mc_trie_find(&tok->trie, (const uint8_t *)text, strlen(text)) >= 0;
}

/* Whether it is RoBERTa's, which puts <s> and </s> around texts: by the class or, where there is
 * none, by the vocabulary. */
static bool is_roberta(const mc_tokenizer *tok, const cJSON *config)
{
    const cJSON *name = mc_tokenizer_part(config, "tokenizer_class");
    if (cJSON_IsString(name)) return strncmp(name->valuestring, "RobertaTokenizer", 16) == 0;
    return holds(tok, "<s>") && holds(tok, "</s>") && holds(tok, "<mask>");
}

/* RoBERTa's special tokens, of which <mask> takes in the space before it. */
static mc_status add_roberta(mc_tokenizer *tok, mc_error *err, const char *path)
{
    static const char mask[] = "<mask>";
    const char *const names[] = {"<s>", "<pad>", "</s>", "<unk>"};
    mc_added_token token = {.named_id = -1, .special = true, .lstrip = true};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (add_special(tok, err, path, names[i])) return err->status;
    if (!find_added(tok, mask) && (!mc_tokenizer_store(tok, mask, sizeof mask - 1, &token.entry) ||
                                   !mc_tokenizer_add(tok, &token)))
        return no_memory(err, path);
    char **all[] = {&tok->cls_token, &tok->bos_token, &tok->sep_token, &tok->eos_token,
                    &tok->pad_token, &tok->unk_token, &tok->mask_token};
    const char *const values[] = {"<s>", "<s>", "</s>", "</s>", "<pad>", "<unk>", mask};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!mc_tokenizer_set_string(all[i], values[i])) return no_memory(err, path);
    int32_t cls = mc_trie_find(&tok->trie, (const uint8_t *)"<s>", 3);
    int32_t sep = mc_trie_find(&tok->trie, (const uint8_t *)"</s>", 4);
    if (cls < 0 || sep < 0)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: the vocabulary has no entry \"%s\"", path,
                            cls < 0 ? "<s>" : "</s>");
    mc_roberta_templates(&tok->single, &tok->pair, cls, sep);
    return MC_OK;
}

static mc_status read_settings(mc_tokenizer *tok, mc_error *err, const mc_bpe_files *files)
{
    cJSON *config = read_optional(err, files->config);
    cJSON *specials = err->status ? NULL : read_optional(err, files->specials);
    mc_status status = err->status;
    if (!status && config) status = check_class(err, files->config, config);
    if (!status && config &&
        !mc_json_get_bool(err, config, files->config, "add_prefix_space",
                          &tok->bpe.add_prefix_space))
        status = err->status;
    if (!status && config)
        status = mc_tokenizer_read_added_decoder(tok, err, files->config, config);
    if (!status && !mc_tokenizer_part(config, "added_tokens_decoder"))
        status = read_added_file(tok, err, files->added);
    if (!status && is_roberta(tok, config)) status = add_roberta(tok, err, files->vocab);
    /* what the configuration says comes last and counts */
    if (!status) status = read_specials(tok, err, files->specials, specials);
    if (!status) status = read_specials(tok, err, files->config, config);
    cJSON_Delete(config);
    cJSON_Delete(specials);
    return status;
}

static mc_status read_vocab(mc_tokenizer *tok, mc_error *err, const char *path)
{
    cJSON *root = mc_json_read_object(err, path, MC_TOKENIZER_FILE_MAX);
    if (!root) return err->status;
    mc_status status = mc_tokenizer_read_entries(tok, err, path, root, false);
    cJSON_Delete(root);
    return status ? status : mc_tokenizer_index(tok, err, path, false);
}

static mc_status read_merges_file(mc_tokenizer *tok, mc_error *err, const char *path)
{
    size_t size;
    char *text = mc_file_read(err, path, MC_TOKENIZER_FILE_MAX, &size);
    if (!text) return err->status;
    mc_status status = mc_bpe_read_merges(tok, err, path, text, size);
    mc_free(text);
    return status;
}

mc_status mc_bpe_load_files(mc_tokenizer *tok, mc_error *err, const mc_bpe_files *files)
{
    static const char end_of_text[] = "<|endoftext|>";
    tok->kind = MC_TOKENIZER_BYTE_BPE;
    tok->has_normalizer = false;
    tok->has_templates = true; /* they put nothing around a text */
    tok->single = tok->pair = (mc_template){.type_b = 1};
    if (read_vocab(tok, err, files->vocab) || read_merges_file(tok, err, files->merges) ||
        read_settings(tok, err, files))
        return err->status;
    if (mc_trie_find(&tok->trie, (const uint8_t *)end_of_text, sizeof end_of_text - 1) >= 0 &&
        add_special(tok, err, files->vocab, end_of_text))
        return err->status;
    return mc_tokenizer_finish(tok, err, files->vocab, false);
}
