/* Reading byte-level BPE: vocab.json with merges.txt, and a tokenizer.json's parts. */
#include <stdio.h>
#include <string.h>
#include "tokenizers/gguf/inside_internal.h"
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/files/settings_internal.h"

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
static mc_status check_model(mc_bpe *bpe, mc_error *err, const char *path, const cJSON *model)
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
    if (fallback && !bpe->characters) return not_supported(err, path, "model: \"byte_fallback\"");
    bpe->byte_fallback = fallback;
    bpe->whole_words = whole;
    return MC_OK;
}

static mc_status read_model_settings(mc_tokenizer *tok, mc_error *err, const char *path,
                                     const cJSON *model)
{
    const char *unk = NULL;
    if (check_model(&tok->bpe, err, path, model) ||
        !mc_json_get_string(err, model, path, "unk_token", &unk) ||
        !mc_json_get_bool(err, model, path, "fuse_unk", &tok->bpe.fuse_unk))
        return err->status;
    tok->bpe.has_unk = unk != NULL;
    return unk && !mc_tokenizer_set_string(&tok->unk_token, unk) ? no_memory(err, path) : MC_OK;
}

static mc_status read_entries(mc_tokenizer *tok, mc_error *err, const char *path,
                              const cJSON *model)
{
    char name[MC_PATH_MAX + 32];
    snprintf(name, sizeof name, "%s: model: \"vocab\"", path);
    mc_status status =
        mc_tokenizer_read_entries(tok, err, name, mc_tokenizer_part(model, "vocab"), false);
    if (!status) status = mc_tokenizer_index(tok, err, path, false);
    return status ? status : read_merge_list(tok, err, path, mc_tokenizer_part(model, "merges"));
}

/* Whether a space is put before texts: tokenizer_config.json's word counts, and without it the
 * classes put none. Others, of no name, leave it to the file. */
static mc_status read_prefix_space(mc_tokenizer *tok, mc_error *err, const char *path)
{
    bool in_file = tok->bpe.add_prefix_space, given;
    if (mc_settings_class(tok) != MC_CLASS_NONE) tok->bpe.add_prefix_space = false;
    if (!mc_settings_flag(tok, err, "add_prefix_space", &tok->bpe.add_prefix_space, &given))
        return err->status;
    if (!given && in_file != tok->bpe.add_prefix_space)
        mc_log(tok->ctx, MC_LOG_WARNING,
               "%s: says to put a space before texts, but the class is GPT-2's or RoBERTa's, and "
               "without \"add_prefix_space\" in a tokenizer_config.json it puts none, as in "
               "transformers",
               path);
    return MC_OK;
}

static mc_status read_words(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    const cJSON *rest;
    if (mc_tokenizer_read_forms(tok, err, path, root, &rest)) return err->status;
    if (rest)
        return mc_tokenizer_unsupported(err, path, "normalizer", mc_tokenizer_part_type(rest, "?"),
                                        "NFC, NFD, NFKC, NFKD or null");
    if (mc_bpe_read_cuts(tok, err, path, mc_tokenizer_part(root, "pre_tokenizer")))
        return err->status;
    const cJSON *decoder = mc_tokenizer_part(root, "decoder");
    const char *type = decoder ? mc_tokenizer_part_type(decoder, "?") : "null";
    if (strcmp(type, "ByteLevel") != 0)
        return mc_tokenizer_unsupported(err, path, "decoder", type, "ByteLevel");
    return MC_OK;
}

/* Of GPT-2's and RoBERTa's classes the model alone counts. */
static mc_status pass_over_words(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const cJSON *root)
{
    const cJSON *words = mc_tokenizer_part(root, "pre_tokenizer");
    bool other = strcmp(mc_tokenizer_part_type(words, "?"), "ByteLevel") != 0;
    if (mc_tokenizer_part(root, "normalizer") || other)
        mc_log(
            tok->ctx, MC_LOG_WARNING,
            "%s: its %s is not used: the class is GPT-2's or RoBERTa's, which has its own, as in "
            "transformers",
            path, other ? "pre_tokenizer" : "normalizer");
    mc_json_get_bool(err, other ? NULL : words, path, "add_prefix_space",
                     &tok->bpe.add_prefix_space);
    return err->status;
}

mc_status mc_bpe_read_model(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *model,
                            bool characters)
{
    tok->bpe.characters = characters;
    if (read_model_settings(tok, err, path, model) || read_entries(tok, err, path, model))
        return err->status;
    mc_bpe *bpe = &tok->bpe;
    const char *unk = tok->unk_token;
    bpe->unk_id = bpe->has_unk ? mc_trie_find(&tok->trie, (const uint8_t *)unk, strlen(unk)) : -1;
    if (!bpe->has_unk || bpe->unk_id >= 0) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: the vocabulary has no entry \"%.80s\"", path, unk);
}

mc_status mc_bpe_read_json(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    mc_tokenizer_class class = mc_settings_class(tok);
    const cJSON *model = mc_tokenizer_part(root, "model");
    bool own = class == MC_CLASS_GPT2 || class == MC_CLASS_ROBERTA;
    tok->kind = MC_TOKENIZER_BYTE_BPE;
    tok->has_normalizer = false;
    if (own ? pass_over_words(tok, err, path, root) : read_words(tok, err, path, root))
        return err->status;
    if (!own && read_model_settings(tok, err, path, model)) return err->status;
    if (own || class == MC_CLASS_NONE)
        read_prefix_space(tok, err, path);
    else
        mc_settings_warn_unused(tok, "add_prefix_space", tok->bpe.add_prefix_space);
    return err->status ? err->status : read_entries(tok, err, path, model);
}

/* ---- vocab.json, merges.txt and what lies beside them ---- */

static const char end_of_text[] = "<|endoftext|>";

static mc_added_token *find_added(const mc_tokenizer *tok, const char *text)
{
    for (size_t i = 0; i < tok->added_count; i++)
        if (strcmp(mc_tokenizer_text(tok, tok->added[i].entry), text) == 0) return &tok->added[i];
    return NULL;
}

mc_status mc_tokenizer_add_special(mc_tokenizer *tok, mc_error *err, const char *path,
                                   const char *text)
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

static bool holds(const mc_tokenizer *tok, const char *text)
{
    return mc_trie_find(&tok->trie, (const uint8_t *)text, strlen(text)) >= 0;
}

/* Whether it is RoBERTa's, which puts <s> and </s> around texts: by the class or, where there is
 * none, by the vocabulary. */
static bool is_roberta(const mc_tokenizer *tok)
{
    mc_tokenizer_class class = mc_settings_class(tok);
    if (class != MC_CLASS_NONE) return class == MC_CLASS_ROBERTA;
    return holds(tok, "<s>") && holds(tok, "</s>") && holds(tok, "<mask>");
}

mc_status mc_llama_names(mc_tokenizer *tok, mc_error *err, const char *path)
{
    return mc_tokenizer_set_string(&tok->bos_token, "<s>") &&
                   mc_tokenizer_set_string(&tok->eos_token, "</s>") &&
                   mc_tokenizer_set_string(&tok->unk_token, "<unk>")
               ? MC_OK
               : no_memory(err, path);
}

mc_status mc_roberta_names(mc_tokenizer *tok, mc_error *err, const char *path)
{
    char **all[] = {&tok->cls_token, &tok->bos_token, &tok->sep_token, &tok->eos_token,
                    &tok->pad_token, &tok->unk_token, &tok->mask_token};
    const char *const values[] = {"<s>", "<s>", "</s>", "</s>", "<pad>", "<unk>", "<mask>"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!mc_tokenizer_set_string(all[i], values[i])) return no_memory(err, path);
    return MC_OK;
}

/* RoBERTa's special tokens, of which <mask> takes in the space before it. */
static mc_status add_roberta(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const char *const names[] = {tok->cls_token, tok->pad_token, tok->sep_token, tok->unk_token};
    mc_added_token token = {.named_id = -1, .special = true, .lstrip = true};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mc_tokenizer_add_special(tok, err, path, names[i])) return err->status;
    const char *mask = tok->mask_token;
    if (*mask && !find_added(tok, mask) &&
        (!mc_tokenizer_store(tok, mask, strlen(mask), &token.entry) ||
         !mc_tokenizer_add(tok, &token)))
        return no_memory(err, path);
    tok->has_templates = false;
    tok->roberta_templates = true;
    return MC_OK;
}

/* GPT-2's class can put its first and last token around texts: around each of a pair. */
static mc_status read_ends(mc_tokenizer *tok, mc_error *err, const char *path)
{
    bool bos = false, eos = false;
    mc_template *one = &tok->single, *two = &tok->pair;
    if (!mc_settings_flag(tok, err, "add_bos_token", &bos, NULL) ||
        !mc_settings_flag(tok, err, "add_eos_token", &eos, NULL))
        return err->status;
    const char *first = tok->bos_token, *last = tok->eos_token;
    mc_template_special begin = {mc_trie_find(&tok->trie, (const uint8_t *)first, strlen(first)),
                                 0};
    mc_template_special end = {mc_trie_find(&tok->trie, (const uint8_t *)last, strlen(last)), 0};
    if ((bos && *first && begin.id < 0) || (eos && *last && end.id < 0))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: the vocabulary has no entry \"%.80s\"", path,
                            bos && begin.id < 0 ? first : last);
    bos = bos && *first;
    eos = eos && *last;
    if (bos) one->prefix[one->prefix_count++] = two->prefix[two->prefix_count++] = begin;
    if (eos) one->suffix[one->suffix_count++] = two->middle[two->middle_count++] = end;
    begin.type_id = end.type_id = 1;
    if (bos) two->middle[two->middle_count++] = begin;
    if (eos) two->suffix[two->suffix_count++] = end;
    return MC_OK;
}

/* Qwen2's class: text in NFC, words of its own, and one token for three purposes unless the files
 * name others. */
static mc_status set_qwen2(mc_tokenizer *tok, mc_error *err, const char *path)
{
    static const char words[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": "
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
        "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}";
    char **const names[] = {&tok->unk_token, &tok->eos_token, &tok->pad_token};
    tok->forms[tok->form_count++] = MC_NFC;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!mc_tokenizer_set_string(names[i], end_of_text)) return no_memory(err, path);
    cJSON *part = mc_json_parse(err, words, sizeof words - 1, path, 1);
    mc_status status = part ? mc_bpe_read_cuts(tok, err, path, part) : err->status;
    cJSON_Delete(part);
    return status;
}

/* The tokens of these names are special, and come after the vocabulary if they are no entries, as
 * in transformers. */
static mc_status add_qwen2(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const char *const names[] = {tok->bos_token, tok->eos_token, tok->unk_token, tok->pad_token};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mc_tokenizer_add_special(tok, err, path, names[i])) return err->status;
    return read_ends(tok, err, path);
}

static mc_status read_settings(mc_tokenizer *tok, mc_error *err, const char *path)
{
    static const unsigned own =
        MC_CLASSES(MC_CLASS_GPT2) | MC_CLASSES(MC_CLASS_ROBERTA) | MC_CLASSES(MC_CLASS_QWEN2);
    mc_settings_fall_back(tok, own);
    bool roberta = is_roberta(tok), qwen2 = mc_settings_class(tok) == MC_CLASS_QWEN2;
    if (mc_settings_expect_class(tok, err, "a vocab.json", own) ||
        (qwen2 && set_qwen2(tok, err, path)) || (roberta && mc_roberta_names(tok, err, path)) ||
        mc_settings_read_names(tok, err) || mc_settings_read_common(tok, err) ||
        read_prefix_space(tok, err, path) || mc_settings_add_tokens(tok, err, false))
        return err->status;
    if (qwen2) return add_qwen2(tok, err, path);
    return roberta ? add_roberta(tok, err, path) : read_ends(tok, err, path);
}

static mc_status read_vocab(mc_tokenizer *tok, mc_error *err, const char *path)
{
    cJSON *root = mc_inside_read_object(tok->inside, err, path, MC_TOKENIZER_FILE_MAX);
    if (!root) return err->status;
    mc_status status = mc_tokenizer_read_entries(tok, err, path, root, false);
    cJSON_Delete(root);
    return status ? status : mc_tokenizer_index(tok, err, path, false);
}

static mc_status read_merges_file(mc_tokenizer *tok, mc_error *err, const char *path)
{
    size_t size;
    char *text = mc_inside_read(tok->inside, err, path, MC_TOKENIZER_FILE_MAX, &size);
    if (!text) return err->status;
    mc_status status = mc_bpe_read_merges(tok, err, path, text, size);
    mc_free(text);
    return status;
}

mc_status mc_bpe_load_files(mc_tokenizer *tok, mc_error *err, const char *vocab, const char *merges)
{
    tok->kind = MC_TOKENIZER_BYTE_BPE;
    tok->has_normalizer = false;
    tok->has_templates = true; /* they put nothing around a text */
    tok->single = tok->pair = (mc_template){.type_b = 1};
    if (read_vocab(tok, err, vocab) || read_merges_file(tok, err, merges) ||
        read_settings(tok, err, vocab))
        return err->status;
    if (holds(tok, end_of_text) && mc_tokenizer_add_special(tok, err, vocab, end_of_text))
        return err->status;
    return mc_tokenizer_finish(tok, err, vocab, false);
}
