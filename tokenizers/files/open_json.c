#include <stdio.h>
#include <string.h>
#include "tokenizers/files/keys_internal.h"
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/files/settings_internal.h"

/* What errors call a part of a file: "<path>: added_tokens[3]". */
typedef struct part_name {
    char text[MC_PATH_MAX + 64];
} part_name;

static part_name name_part(const char *path, const char *format, int number)
{
    part_name name;
    int used = snprintf(name.text, sizeof name.text, "%s: ", path);
    if (used > 0 && (size_t)used < sizeof name.text) {
        char part[64];
        snprintf(part, sizeof part, format, number);
        snprintf(name.text + used, sizeof name.text - (size_t)used, "%s", part);
    }
    return name;
}

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the tokenizer", path);
}

mc_status mc_tokenizer_unsupported(mc_error *err, const char *path, const char *part,
                                   const char *found, const char *expected)
{
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: %s is of type \"%.60s\", only %s is supported", path, part, found,
                        expected);
}

static cJSON *parse(mc_error *err, const char *path, const char *text, size_t size)
{
    cJSON *root = mc_json_parse(err, text, size, path, 1);
    if (!root || cJSON_IsObject(root)) return root;
    mc_error_set(err, MC_ERR_FORMAT, "%s: expected a JSON object at the top level", path);
    cJSON_Delete(root);
    return NULL;
}

const char *mc_tokenizer_part_type(const cJSON *part, const char *fallback)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
    if (!type) return fallback;
    return cJSON_IsString(type) ? type->valuestring : "?";
}

/* ---- the model ---- */

/* `transformers` writes an entry "" for a line of vocab.txt that is white space alone, as
 * bert-base-chinese has one. */
static mc_status place_entry(mc_tokenizer *tok, mc_error *err, const char *name, const cJSON *item,
                             size_t limit, bool empty)
{
    double id = item->valuedouble;
    size_t length = strlen(item->string);
    if (!cJSON_IsNumber(item) || !(id >= 0 && id < (double)limit) || id != (double)(size_t)id)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: \"%.80s\": expected an id from 0 to %zu", name,
                            item->string, limit - 1);
    if (!length && (!empty || tok->has_empty))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %s empty entry of id %.0f", name,
                            empty ? "second" : "an", id);
    mc_entry *entry = &tok->entries[(size_t)id];
    if (entry->length || (tok->has_empty && tok->empty_id == (size_t)id))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: \"%.80s\" and \"%.80s\" both have id %.0f",
                            name, entry->length ? mc_tokenizer_text(tok, *entry) : "", item->string,
                            id);
    if (!length) {
        tok->has_empty = true;
        tok->empty_id = (size_t)id;
    }
    if (!mc_tokenizer_store(tok, item->string, length, entry)) return no_memory(err, name);
    if ((size_t)id >= tok->entry_count) tok->entry_count = (size_t)id + 1;
    return MC_OK;
}

mc_status mc_tokenizer_read_entries(mc_tokenizer *tok, mc_error *err, const char *name,
                                    const cJSON *vocab, bool empty)
{
    if (!cJSON_IsObject(vocab))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected an object of entries", name);
    const cJSON *item;
    size_t count = 0;
    cJSON_ArrayForEach(item, vocab) count++;
    if (!count || count > MC_TOKENS_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: %zu entries, 1 to %d expected", name, count,
                            MC_TOKENS_MAX);
    /* ids may have gaps, but not such that a small file takes much memory */
    size_t limit = 2 * count + 65536;
    if (limit > MC_TOKENS_MAX) limit = MC_TOKENS_MAX;
    tok->entries = mc_calloc(limit, sizeof *tok->entries);
    if (!tok->entries) return no_memory(err, name);
    tok->entry_capacity = limit;
    cJSON_ArrayForEach(item, vocab)
    {
        mc_status status = place_entry(tok, err, name, item, limit, empty);
        if (status) return status;
    }
    return MC_OK;
}

static mc_status read_model(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    const cJSON *model = mc_tokenizer_part(root, "model");
    const char *unk = tok->unk_token, *prefix = tok->prefix;
    double max_chars = 100;
    if (!cJSON_IsObject(model))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected an object \"model\"", path);
    const char *type = mc_tokenizer_part_type(model, "WordPiece");
    if (strcmp(type, "WordPiece") != 0)
        return mc_tokenizer_unsupported(err, path, "model", type, "WordPiece, BPE or Unigram");
    part_name name = name_part(path, "model: \"vocab\"", 0);
    const cJSON *vocab = mc_tokenizer_part(model, "vocab");
    if (mc_tokenizer_read_entries(tok, err, name.text, vocab, true)) return err->status;
    if (mc_settings_class(tok) == MC_CLASS_BERT) return MC_OK; /* it has its own settings */
    name = name_part(path, "model", 0);
    if (!mc_json_get_string(err, model, name.text, "unk_token", &unk) ||
        !mc_json_get_string(err, model, name.text, "continuing_subword_prefix", &prefix) ||
        !mc_json_get_number(err, model, name.text, "max_input_chars_per_word", 0, 0x1p64,
                            &max_chars))
        return err->status;
    tok->max_chars = max_chars >= 0x1p63 ? (uint64_t)1 << 63 : (uint64_t)max_chars;
    if ((unk != tok->unk_token && !mc_tokenizer_set_string(&tok->unk_token, unk)) ||
        (prefix != tok->prefix && !mc_tokenizer_set_string(&tok->prefix, prefix)))
        return no_memory(err, path);
    return MC_OK;
}

/* ---- normalizer, pre-tokenizer, decoder ---- */

static mc_status read_strip_accents(mc_tokenizer *tok, mc_error *err, const char *name,
                                    const cJSON *part)
{
    bool strip = false;
    if (!mc_tokenizer_part(part, "strip_accents")) return MC_OK;
    if (!mc_json_get_bool(err, part, name, "strip_accents", &strip)) return err->status;
    tok->normalizer_options.strip_accents = strip ? MC_STRIP_YES : MC_STRIP_NO;
    return MC_OK;
}

const cJSON *mc_tokenizer_only_part(const cJSON *part, const char *list)
{
    const cJSON *parts = mc_tokenizer_part(part, list);
    if (strcmp(mc_tokenizer_part_type(part, "?"), "Sequence") != 0) return part;
    if (!cJSON_IsArray(parts)) return part;
    int count = cJSON_GetArraySize(parts);
    return count == 1 ? cJSON_GetArrayItem(parts, 0) : count ? part : NULL;
}

static mc_status read_form(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *part,
                           const cJSON **rest)
{
    mc_unicode_form form;
    const char *type = mc_tokenizer_part_type(part, "?");
    bool known = mc_unicode_form_named(type, &form);
    if (*rest || (known && tok->form_count == MC_FORMS_MAX))
        return mc_tokenizer_unsupported(err, path, "normalizer", type,
                                        "NFC, NFD, NFKC or NFKD, and one other after them,");
    if (known)
        tok->forms[tok->form_count++] = form;
    else
        *rest = part;
    return MC_OK;
}

mc_status mc_tokenizer_read_forms(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const cJSON *root, const cJSON **rest)
{
    const cJSON *part = mc_tokenizer_part(root, "normalizer"), *item;
    *rest = NULL;
    if (!part) return MC_OK;
    if (strcmp(mc_tokenizer_part_type(part, "?"), "Sequence") != 0)
        return read_form(tok, err, path, part, rest);
    const cJSON *list = mc_tokenizer_part(part, "normalizers");
    if (!cJSON_IsArray(list))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: normalizer: expected a list \"normalizers\"",
                            path);
    cJSON_ArrayForEach(item, list)
    {
        if (read_form(tok, err, path, item, rest)) return err->status;
    }
    return MC_OK;
}

static mc_status read_normalizer(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const cJSON *root)
{
    const cJSON *part;
    mc_normalizer_options *options = &tok->normalizer_options;
    if (mc_tokenizer_read_forms(tok, err, path, root, &part)) return err->status;
    tok->has_normalizer = part != NULL;
    if (!part) return MC_OK;
    const char *type = mc_tokenizer_part_type(part, "?");
    if (strcmp(type, "BertNormalizer") != 0)
        return mc_tokenizer_unsupported(err, path, "normalizer", type,
                                        "BertNormalizer, NFC, NFD, NFKC or NFKD");
    part_name name = name_part(path, "normalizer", 0);
    if (!mc_json_get_bool(err, part, name.text, "clean_text", &options->clean_text) ||
        !mc_json_get_bool(err, part, name.text, "handle_chinese_chars",
                          &options->handle_chinese_chars) ||
        !mc_json_get_bool(err, part, name.text, "lowercase", &options->lowercase))
        return err->status;
    return read_strip_accents(tok, err, name.text, part);
}

static mc_status read_decoder(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    const cJSON *pre = mc_tokenizer_only_part(mc_tokenizer_part(root, "pre_tokenizer"),
                                              "pretokenizers"),
                *given = mc_tokenizer_part(root, "decoder"),
                *decoder = mc_tokenizer_only_part(given, "decoders");
    const char *prefix = tok->decoder_prefix;
    const char *type = mc_tokenizer_part_type(pre, "?");
    tok->whole_texts = !pre;
    if (pre && strcmp(type, "BertPreTokenizer") != 0)
        return mc_tokenizer_unsupported(err, path, "pre_tokenizer", type,
                                        "BertPreTokenizer or null");
    tok->decoder = decoder ? MC_DECODER_WORDPIECE : given ? MC_DECODER_JOINED : MC_DECODER_SPACES;
    if (!decoder) return MC_OK;
    type = mc_tokenizer_part_type(decoder, "?");
    if (strcmp(type, "WordPiece") != 0)
        return mc_tokenizer_unsupported(err, path, "decoder", type, "WordPiece");
    part_name name = name_part(path, "decoder", 0);
    if (!mc_json_get_string(err, decoder, name.text, "prefix", &prefix) ||
        !mc_json_get_bool(err, decoder, name.text, "cleanup", &tok->decoder_cleanup))
        return err->status;
    if (prefix != tok->decoder_prefix && !mc_tokenizer_set_string(&tok->decoder_prefix, prefix))
        return no_memory(err, path);
    return MC_OK;
}

/* ---- added tokens ---- */

/* The flags of one added token; `content` NULL: read it from the part itself. */
mc_status mc_tokenizer_read_added(mc_tokenizer *tok, mc_error *err, const char *name,
                                  const cJSON *part, int64_t id)
{
    mc_added_token token = {0};
    const char *content = NULL;
    if (!mc_json_get_string(err, part, name, "content", &content) ||
        !mc_json_get_int(err, part, name, "id", 0, INT32_MAX, &id) ||
        !mc_json_get_bool(err, part, name, "special", &token.special))
        return err->status;
    token.named_id = (int32_t)id;
    token.normalized = !token.special;
    if (!mc_json_get_bool(err, part, name, "normalized", &token.normalized) ||
        !mc_json_get_bool(err, part, name, "single_word", &token.single_word) ||
        !mc_json_get_bool(err, part, name, "lstrip", &token.lstrip) ||
        !mc_json_get_bool(err, part, name, "rstrip", &token.rstrip))
        return err->status;
    if (!content)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected a string \"content\"", name);
    if (!*content) return MC_OK; /* Hugging Face passes over empty ones too */
    if (tok->added_count >= MC_TOKENS_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: more than %d tokens", name, MC_TOKENS_MAX);
    if (!mc_tokenizer_store(tok, content, strlen(content), &token.entry) ||
        !mc_tokenizer_add(tok, &token))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", name);
    return MC_OK;
}

static mc_status read_added_list(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const cJSON *root)
{
    const cJSON *list = mc_tokenizer_part(root, "added_tokens"), *item;
    int number = 0;
    if (list && !cJSON_IsArray(list))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected \"added_tokens\" to be a list", path);
    cJSON_ArrayForEach(item, list)
    {
        part_name name = name_part(path, "added_tokens[%d]", number++);
        mc_status status = mc_tokenizer_read_added(tok, err, name.text, item, -1);
        if (status) return status;
    }
    return MC_OK;
}

/* ---- post-processor ---- */

typedef struct template_reader {
    mc_error *err;
    const char *name;
    const cJSON *special_tokens;
} template_reader;

static mc_status bad_template(const template_reader *r, const char *what)
{
    return mc_error_set(r->err, MC_ERR_UNSUPPORTED, "%s: %s", r->name, what);
}

/* A special token of a template may stand for several ids. */
static mc_status read_template_special(const template_reader *r, const cJSON *special,
                                       mc_template_special *list, int *count)
{
    int64_t type_id = 0;
    const char *token = NULL;
    const cJSON *id;
    if (!mc_json_get_string(r->err, special, r->name, "id", &token) ||
        !mc_json_get_int(r->err, special, r->name, "type_id", 0, 255, &type_id))
        return r->err->status;
    const cJSON *known = token ? mc_tokenizer_part(r->special_tokens, token) : NULL;
    const cJSON *ids = mc_tokenizer_part(known, "ids");
    if (!cJSON_IsArray(ids))
        return bad_template(r, "a template names a token that \"special_tokens\" does not define");
    cJSON_ArrayForEach(id, ids)
    {
        double value = id->valuedouble;
        if (!cJSON_IsNumber(id) || !(value >= 0 && value < MC_TOKENS_MAX) ||
            value != (double)(int32_t)value)
            return bad_template(r, "the id of a special token is no whole number in range");
        if (*count == MC_TEMPLATE_MAX) return bad_template(r, "a template has too many tokens");
        list[(*count)++] = (mc_template_special){(int32_t)value, (uint8_t)type_id};
    }
    return MC_OK;
}

/* Reads A and B, which must come once each and in this order, and the special tokens around. */
static mc_status read_template(const template_reader *r, const cJSON *pieces, bool pair,
                               mc_template *t)
{
    const cJSON *piece;
    int sequences = 0;
    mc_template_special *lists[] = {t->prefix, pair ? t->middle : t->suffix, t->suffix};
    int *counts[] = {&t->prefix_count, pair ? &t->middle_count : &t->suffix_count,
                     &t->suffix_count};
    if (!cJSON_IsArray(pieces)) return bad_template(r, "expected lists \"single\" and \"pair\"");
    cJSON_ArrayForEach(piece, pieces)
    {
        const cJSON *special = mc_tokenizer_part(piece, "SpecialToken"),
                    *sequence = mc_tokenizer_part(piece, "Sequence");
        int64_t type_id = 0;
        const char *id = "";
        mc_status status = MC_OK;
        if (special)
            status = read_template_special(r, special, lists[sequences], counts[sequences]);
        if (status) return status;
        if (special) continue;
        if (!mc_json_get_string(r->err, sequence, r->name, "id", &id) ||
            !mc_json_get_int(r->err, sequence, r->name, "type_id", 0, 255, &type_id))
            return r->err->status;
        if (sequences == (pair ? 2 : 1) || strcmp(id, sequences ? "B" : "A") != 0)
            return bad_template(r, "a template has its sequences otherwise than A, or A and B");
        *(sequences++ ? &t->type_b : &t->type_a) = (uint8_t)type_id;
    }
    if (sequences == (pair ? 2 : 1)) return MC_OK;
    return bad_template(r, "a template lacks a sequence");
}

/* ["[SEP]", 102]: the id. */
static mc_status read_named_id(const template_reader *r, const cJSON *part, const char *key,
                               int32_t *id)
{
    const cJSON *pair = mc_tokenizer_part(part, key), *number = cJSON_GetArrayItem(pair, 1);
    if (!cJSON_IsArray(pair) || !cJSON_IsNumber(number) ||
        !(number->valuedouble >= 0 && number->valuedouble < MC_TOKENS_MAX) ||
        number->valuedouble != (double)(int32_t)number->valuedouble)
        return mc_error_set(r->err, MC_ERR_FORMAT, "%s: key \"%s\": expected [token, id]", r->name,
                            key);
    *id = (int32_t)number->valuedouble;
    return MC_OK;
}

/* A post-processor, or the only part of a Sequence that does anything to the ids; NULL: none. */
static const cJSON *find_post_processor(const mc_tokenizer *tok, const cJSON *part)
{
    const cJSON *list = mc_tokenizer_part(part, "processors"), *item, *only = NULL;
    bool bytes = tok->kind == MC_TOKENIZER_BYTE_BPE;
    if (strcmp(mc_tokenizer_part_type(part, "?"), "Sequence") != 0 || !cJSON_IsArray(list))
        return part;
    cJSON_ArrayForEach(item, list)
    {
        if (bytes && strcmp(mc_tokenizer_part_type(item, "?"), "ByteLevel") == 0) continue;
        if (only) return part;
        only = item;
    }
    return only;
}

static mc_status read_post_processor(mc_tokenizer *tok, mc_error *err, const char *path,
                                     const cJSON *root)
{
    const cJSON *part = find_post_processor(tok, mc_tokenizer_part(root, "post_processor"));
    part_name name = name_part(path, "post_processor", 0);
    template_reader r = {err, name.text, mc_tokenizer_part(part, "special_tokens")};
    tok->has_templates = true;
    tok->single = tok->pair = (mc_template){.type_b = 1};
    if (!part) return MC_OK; /* then nothing is put around the texts */
    const char *type = mc_tokenizer_part_type(part, "?");
    if (strcmp(type, "TemplateProcessing") == 0) {
        mc_status status =
            read_template(&r, mc_tokenizer_part(part, "single"), false, &tok->single);
        return status ? status
                      : read_template(&r, mc_tokenizer_part(part, "pair"), true, &tok->pair);
    }
    bool bytes = tok->kind == MC_TOKENIZER_BYTE_BPE;
    if (bytes && strcmp(type, "ByteLevel") == 0) return MC_OK;
    bool roberta = strcmp(type, "RobertaProcessing") == 0; /* of word pieces too: MPNet's */
    if (!roberta && strcmp(type, "BertProcessing") != 0)
        return mc_tokenizer_unsupported(err, path, "post_processor", type,
                                        bytes ? "ByteLevel, TemplateProcessing or RobertaProcessing"
                                              : "TemplateProcessing, BertProcessing or "
                                                "RobertaProcessing");
    int32_t cls = 0, sep = 0;
    if (read_named_id(&r, part, "cls", &cls) || read_named_id(&r, part, "sep", &sep))
        return err->status;
    (roberta ? mc_roberta_templates : mc_bert_templates)(&tok->single, &tok->pair, cls, sep);
    return MC_OK;
}

/* A class that makes other things of a vocabulary than its type of model. */
static mc_status check_class(const mc_tokenizer *tok, mc_error *err, const char *type, unsigned own)
{
    static const unsigned by_file = MC_CLASSES(MC_CLASS_LLAMA) | MC_CLASSES(MC_CLASS_FILE) |
                                    MC_CLASSES(MC_CLASS_QWEN2) | MC_CLASSES(MC_CLASS_XLMR) |
                                    MC_CLASSES(MC_CLASS_CAMEMBERT) | MC_CLASSES(MC_CLASS_OTHER);
    const mc_tokenizer_class class = mc_settings_class(tok);
    char file[128];
    snprintf(file, sizeof file, "a tokenizer.json with a model of type \"%.40s\"", type);
    if (class == MC_CLASS_OTHER)
        mc_log(tok->ctx, MC_LOG_WARNING,
               "%s: key \"tokenizer_class\": \"%s\" is not known: what tokenizer.json says holds",
               tok->settings->class_path, tok->settings->class_name);
    return by_file & MC_CLASSES(class) ? MC_OK : mc_settings_expect_class(tok, err, file, own);
}

static mc_status read_word_pieces(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const cJSON *root)
{
    mc_settings_fall_back(tok, MC_CLASSES(MC_CLASS_BERT));
    if (check_class(tok, err, "WordPiece", MC_CLASSES(MC_CLASS_BERT)) ||
        read_model(tok, err, path, root))
        return err->status;
    if (mc_settings_class(tok) == MC_CLASS_BERT) {
        const cJSON *normalizer = mc_tokenizer_part(root, "normalizer");
        return mc_json_get_bool(err, normalizer, path, "lowercase",
                                &tok->normalizer_options.lowercase)
                   ? MC_OK
                   : err->status;
    }
    mc_status status = read_normalizer(tok, err, path, root);
    return status ? status : read_decoder(tok, err, path, root);
}

static mc_status read_byte_pieces(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const cJSON *root)
{
    static const unsigned own = MC_CLASSES(MC_CLASS_GPT2) | MC_CLASSES(MC_CLASS_ROBERTA);
    mc_settings_fall_back(tok, own);
    if (check_class(tok, err, "BPE", own)) return err->status;
    if (mc_settings_class(tok) == MC_CLASS_ROBERTA &&
        (mc_roberta_names(tok, err, path) || mc_settings_read_names(tok, err)))
        return err->status;
    return mc_bpe_read_json(tok, err, path, root);
}

/* Around texts BERT's and RoBERTa's classes put their own tokens. */
static mc_status read_around(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    mc_tokenizer_class class = mc_settings_class(tok);
    tok->roberta_templates = class == MC_CLASS_ROBERTA;
    if (class == MC_CLASS_BERT || class == MC_CLASS_ROBERTA) return MC_OK;
    return read_post_processor(tok, err, path, root);
}

/* Which side truncation cuts, where tokenizer_config.json does not say it. */
static mc_status read_truncation(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const cJSON *root)
{
    const cJSON *part = mc_tokenizer_part(root, "truncation");
    const char *direction = "Right";
    if (!mc_json_get_string(err, part, path, "direction", &direction)) return err->status;
    tok->cuts_left = strcmp(direction, "Left") == 0;
    return MC_OK;
}

static mc_status read_parts(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root,
                            const char *text, size_t size)
{
    const cJSON *model = mc_tokenizer_part(root, "model");
    /* old files do not name the type */
    const char *fallback = mc_tokenizer_part(model, "merges")                 ? "BPE"
                           : cJSON_IsArray(mc_tokenizer_part(model, "vocab")) ? "Unigram"
                                                                              : "WordPiece";
    const char *type = mc_tokenizer_part_type(model, fallback);
    mc_status status;
    if (strcmp(type, "BPE") == 0 && mc_pieces_are_in(tok, root)) {
        status = check_class(tok, err, type, MC_CLASSES(MC_CLASS_LLAMA));
        if (!status) status = mc_pieces_read_json(tok, err, path, root);
        if (!status) status = mc_unigram_keep_source(tok, err, path, text, size);
    } else if (strcmp(type, "BPE") == 0) {
        status = read_byte_pieces(tok, err, path, root);
    } else if (strcmp(type, "Unigram") == 0) {
        status = check_class(tok, err, type, MC_CLASSES(MC_CLASS_T5));
        if (!status) status = mc_unigram_read_json(tok, err, path, root);
        if (!status) status = mc_unigram_keep_source(tok, err, path, text, size);
    } else {
        status = read_word_pieces(tok, err, path, root);
    }
    if (!status) status = read_around(tok, err, path, root);
    if (!status) status = read_truncation(tok, err, path, root);
    return status ? status : read_added_list(tok, err, path, root);
}

mc_status mc_tokenizer_read_json(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size)
{
    cJSON *root = parse(err, path, text, size);
    if (root && mc_keys_check(tok->ctx, err, path, root, &mc_keys_tokenizer_json))
        read_parts(tok, err, path, root, text, size);
    cJSON_Delete(root);
    return err->status;
}

/* ---- tokenizer_config.json ---- */

/* {"30522": {"content": ...}, ...}; they are numbered in the order of their keys. */
mc_status mc_tokenizer_read_added_decoder(mc_tokenizer *tok, mc_error *err, const char *path,
                                          const cJSON *root)
{
    const cJSON *list = mc_tokenizer_part(root, "added_tokens_decoder"), *item;
    size_t before = tok->added_count;
    if (list && !cJSON_IsObject(list))
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: expected \"added_tokens_decoder\" to be an object", path);
    cJSON_ArrayForEach(item, list)
    {
        int id = -1, used = 0;
        part_name name = name_part(path, "added_tokens_decoder", 0);
        if (sscanf(item->string, "%9d%n", &id, &used) != 1 || item->string[used] || id < 0)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: \"%.20s\" is no id", name.text,
                                item->string);
        mc_status status = mc_tokenizer_read_added(tok, err, name.text, item, id);
        if (status) return status;
    }
    mc_tokenizer_sort_added(tok, before);
    return MC_OK;
}
