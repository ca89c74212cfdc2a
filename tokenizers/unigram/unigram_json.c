/* A Unigram model in a tokenizer.json, with the parts that Hugging Face's converters put around
 * one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/files/settings_internal.h"

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the model", path);
}

/* A part of a Unigram model's file that is of a type which is not read. */
static mc_status unsupported(mc_error *err, const char *path, const char *part, const char *found,
                             const char *expected)
{
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: a model of pieces with a %s of type \"%.60s\", only %s is supported",
                        path, part, found, expected);
}

/* ---- the model ---- */

/* 10 to the power of `exponent`, rounded. */
static double power_of_ten(int exponent)
{
    double power = 1;
    char text[16];
    if (exponent > 22) { /* those below are exact */
        snprintf(text, sizeof text, "1e%d", exponent);
        return strtod(text, NULL);
    }
    while (exponent-- > 0) power *= 10;
    return power;
}

/* The number as Hugging Face's tokenizers read it: their JSON reader (serde_json) divides the
 * digits by a power of ten, which is off in the last bit for one score in four and decides between
 * pieces of equal sums. The digits are taken to be the fewest that stand for the number, as all
 * writers of these files give them. */
static double read_as_serde(double number)
{
    char text[40];
    int digits = 14, exponent = 0;
    uint64_t significand = 0;
    do snprintf(text, sizeof text, "%.*e", digits, number);
    while (strtod(text, NULL) != number && ++digits < 17);
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') significand = significand * 10 + (uint64_t)(*p - '0');
    if (*p) exponent = (int)strtol(p + 1, NULL, 10) - digits;
    for (; significand && significand % 10 == 0; exponent++) significand /= 10;
    if (exponent < -300 || exponent > 300) return number;
    double value = exponent < 0 ? (double)significand / power_of_ten(-exponent)
                                : (double)significand * power_of_ten(exponent);
    return number < 0 ? -value : value;
}

static mc_status read_entry(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *item,
                            size_t id)
{
    const cJSON *text = cJSON_GetArrayItem(item, 0), *score = cJSON_GetArrayItem(item, 1);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !cJSON_IsString(text) ||
        !cJSON_IsNumber(score) || !isfinite(score->valuedouble) || !*text->valuestring)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: model: vocab[%zu]: expected [piece, score], the piece not empty",
                            path, id);
    tok->unigram.types[id] = MC_PIECE_NORMAL;
    tok->unigram.scores[id] = read_as_serde(score->valuedouble);
    if (mc_tokenizer_store(tok, text->valuestring, strlen(text->valuestring), &tok->entries[id]))
        return MC_OK;
    return no_memory(err, path);
}

static mc_status read_vocab(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *vocab)
{
    const cJSON *item;
    size_t count = 0;
    if (!cJSON_IsArray(vocab))
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: model: expected \"vocab\" to be a list of "
                            "pieces and scores",
                            path);
    cJSON_ArrayForEach(item, vocab) count++;
    if (!count || count > MC_TOKENS_MAX)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: model: \"vocab\" has %zu pieces, 1 to %d expected", path, count,
                            MC_TOKENS_MAX);
    tok->entries = mc_calloc(count, sizeof *tok->entries);
    if (!tok->entries) return no_memory(err, path);
    tok->entry_capacity = tok->entry_count = count;
    if (mc_unigram_reserve(&tok->unigram, err, path, count)) return err->status;
    count = 0;
    cJSON_ArrayForEach(item, vocab)
    {
        if (read_entry(tok, err, path, item, count++)) return err->status;
    }
    return MC_OK;
}

static mc_status read_model(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *model)
{
    bool fallback = false;
    int64_t unk = -1;
    if (read_vocab(tok, err, path, mc_tokenizer_part(model, "vocab"))) return err->status;
    if (!mc_json_get_int(err, model, path, "unk_id", 0, (int64_t)tok->entry_count - 1, &unk) ||
        !mc_json_get_bool(err, model, path, "byte_fallback", &fallback))
        return err->status;
    if (fallback)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: a Unigram model with \"byte_fallback\" is supported from a .model "
                            "file only",
                            path);
    if (unk < 0)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: a Unigram model without \"unk_id\" is not supported", path);
    tok->unigram.unk_id = (int32_t)unk;
    return MC_OK;
}

/* ---- the normalizer ---- */

static bool is_text(const cJSON *object, const char *key, const char *text)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

/* Of the replacements the one that such files hold: two spaces or more become one. */
static mc_status read_replace(mc_error *err, const char *path, const cJSON *part, mc_step *step)
{
    step->kind = MC_STEP_SPACES;
    step->symbol = is_text(part, "content", MC_SPACE_SYMBOL);
    if (is_text(mc_tokenizer_part(part, "pattern"), "Regex", " {2,}") &&
        (step->symbol || is_text(part, "content", " ")))
        return MC_OK;
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: a Unigram model with a normalizer of type \"Replace\": only that of "
                        "\" {2,}\" by a space is supported",
                        path);
}

/* A short text of a step. */
static mc_status read_step_text(mc_error *err, const char *path, const cJSON *part, const char *key,
                                char text[MC_STEP_TEXT])
{
    const char *value = "";
    if (!mc_json_get_string(err, part, path, key, &value)) return err->status;
    if (strlen(value) >= MC_STEP_TEXT)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: normalizer: \"%s\" is \"%.40s\", expected less than %d bytes",
                            path, key, value, MC_STEP_TEXT);
    snprintf(text, MC_STEP_TEXT, "%s", value);
    return MC_OK;
}

/* One text by another. */
static mc_status read_string_replace(mc_error *err, const char *path, const cJSON *part,
                                     mc_step *step)
{
    step->kind = MC_STEP_REPLACE;
    if (read_step_text(err, path, part, "content", step->to) ||
        read_step_text(err, path, mc_tokenizer_part(part, "pattern"), "String", step->from))
        return err->status;
    if (*step->from) return MC_OK;
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: a BPE model with a normalizer of type \"Replace\": only a \"pattern\" "
                        "of type String is supported",
                        path);
}

static mc_status read_step(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *part)
{
    mc_unigram *u = &tok->unigram;
    const char *type = mc_tokenizer_part_type(part, "?"), *table = NULL;
    mc_step step = {.left = true, .right = true};
    mc_unicode_form form;
    mc_status status = MC_OK;
    if (u->step_count == MC_STEPS_MAX)
        return mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: normalizer: more than %d steps", path,
                            MC_STEPS_MAX);
    if (strcmp(type, "Precompiled") == 0) {
        step.kind = MC_STEP_CHARSMAP;
        if (!mc_json_get_string(err, part, path, "precompiled_charsmap", &table))
            return err->status;
        if (u->charsmap.units)
            return mc_error_set(err, MC_ERR_UNSUPPORTED, "%s: normalizer: a second Precompiled",
                                path);
        if (!table || !*table) return MC_OK; /* it changes nothing */
        status = mc_charsmap_init_base64(err, &u->charsmap, path, table);
    } else if (strcmp(type, "Strip") == 0) {
        step.kind = MC_STEP_STRIP;
        if (!mc_json_get_bool(err, part, path, "strip_left", &step.left) ||
            !mc_json_get_bool(err, part, path, "strip_right", &step.right))
            return err->status;
    } else if (strcmp(type, "Replace") == 0) {
        status = (u->bpe ? read_string_replace : read_replace)(err, path, part, &step);
    } else if (u->bpe && strcmp(type, "Prepend") == 0) {
        step.kind = MC_STEP_PREPEND;
        status = read_step_text(err, path, part, "prepend", step.to);
    } else if (mc_unicode_form_named(type, &form)) {
        step.kind = MC_STEP_FORM;
        step.form = form;
    } else {
        return unsupported(err, path, "normalizer", type,
                           "Precompiled, Strip, Replace, NFC, NFD, NFKC or NFKD");
    }
    u->steps[u->step_count++] = step;
    return status;
}

static mc_status read_normalizer(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const cJSON *part)
{
    const cJSON *list = mc_tokenizer_part(part, "normalizers"), *item;
    if (!part) return MC_OK;
    if (strcmp(mc_tokenizer_part_type(part, "?"), "Sequence") != 0)
        return read_step(tok, err, path, part);
    if (!cJSON_IsArray(list))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: normalizer: expected \"normalizers\"", path);
    cJSON_ArrayForEach(item, list)
    {
        if (read_step(tok, err, path, item)) return err->status;
    }
    return MC_OK;
}

/* ---- pre-tokenizer and decoder ---- */

static mc_status read_metaspace(mc_error *err, const char *path, const char *name,
                                const cJSON *part, mc_prepend *prepend, bool *split)
{
    const char *symbol = MC_SPACE_SYMBOL, *scheme = NULL;
    bool prefix = true;
    *split = true;
    if (!mc_json_get_string(err, part, path, "replacement", &symbol) ||
        !mc_json_get_string(err, part, path, "prepend_scheme", &scheme) ||
        !mc_json_get_bool(err, part, path, "add_prefix_space", &prefix) ||
        !mc_json_get_bool(err, part, path, "split", split))
        return err->status;
    if (!scheme) scheme = prefix ? "always" : "never";
    if (strcmp(symbol, MC_SPACE_SYMBOL) != 0)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: %s: a \"replacement\" other than U+2581 is not supported", path,
                            name);
    if (strcmp(scheme, "always") == 0)
        *prepend = MC_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        *prepend = MC_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        *prepend = MC_PREPEND_NEVER;
    else
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: %s: \"prepend_scheme\" is \"%.20s\", expected "
                            "always, first or never",
                            path, name, scheme);
    return MC_OK;
}

/* Metaspace, or WhitespaceSplit and Metaspace. */
static mc_status read_pre_tokenizer(mc_tokenizer *tok, mc_error *err, const char *path,
                                    const cJSON *part)
{
    static const char expected[] = "null, Metaspace, or WhitespaceSplit and Metaspace,";
    mc_unigram *u = &tok->unigram;
    u->plain = !mc_tokenizer_only_part(part, "pretokenizers");
    if (u->plain) return MC_OK;
    const char *type = mc_tokenizer_part_type(part, "?");
    if (strcmp(type, "Sequence") == 0) {
        const cJSON *list = mc_tokenizer_part(part, "pretokenizers");
        const cJSON *first = cJSON_GetArrayItem(list, 0), *second = cJSON_GetArrayItem(list, 1);
        type = mc_tokenizer_part_type(first, "?");
        u->split_white = strcmp(type, "WhitespaceSplit") == 0;
        part = u->split_white ? second : first;
        if (cJSON_GetArraySize(list) != (u->split_white ? 2 : 1))
            return unsupported(err, path, "pre-tokenizer", "Sequence", expected);
        type = mc_tokenizer_part_type(part, "?");
    }
    if (strcmp(type, "Metaspace") != 0)
        return unsupported(err, path, "pre-tokenizer", type, expected);
    mc_status status =
        read_metaspace(err, path, "pre_tokenizer", part, &u->prepend, &u->split_symbols);
    if (!status && u->split_white && u->prepend == MC_PREPEND_FIRST)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: a Unigram model with a pre-tokenizer WhitespaceSplit whose "
                            "Metaspace has \"prepend_scheme\" \"first\" is not supported",
                            path);
    return status;
}

static mc_status read_decoder(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *part)
{
    bool split;
    tok->unigram.joins_spaces = !part;
    part = mc_tokenizer_only_part(part, "decoders");
    tok->unigram.joins_plain = !part && !tok->unigram.joins_spaces;
    if (!part) return MC_OK;
    const char *type = mc_tokenizer_part_type(part, "?");
    if (strcmp(type, "Metaspace") != 0) return unsupported(err, path, "decoder", type, "Metaspace");
    return read_metaspace(err, path, "decoder", part, &tok->unigram.decoder_prepend, &split);
}

/* Names that tokenizer_config.json has not given. */
static mc_status set_names(mc_tokenizer *tok, mc_error *err, const char *path)
{
    int32_t id = tok->unigram.unk_id;
    const char *unk = id >= 0 ? mc_tokenizer_text(tok, tok->entries[id]) : "<unk>";
    if ((strcmp(tok->eos_token, "<|endoftext|>") == 0 &&
         !mc_tokenizer_set_string(&tok->eos_token, "</s>")) ||
        (strcmp(tok->pad_token, "[PAD]") == 0 &&
         !mc_tokenizer_set_string(&tok->pad_token, "<pad>")) ||
        !mc_tokenizer_set_string(&tok->unk_token, unk))
        return no_memory(err, path);
    return MC_OK;
}

mc_status mc_unigram_read_json(mc_tokenizer *tok, mc_error *err, const char *path,
                               const cJSON *root)
{
    tok->kind = MC_TOKENIZER_UNIGRAM;
    tok->has_normalizer = false;
    if (read_model(tok, err, path, mc_tokenizer_part(root, "model")) ||
        read_normalizer(tok, err, path, mc_tokenizer_part(root, "normalizer")) ||
        read_pre_tokenizer(tok, err, path, mc_tokenizer_part(root, "pre_tokenizer")) ||
        read_decoder(tok, err, path, mc_tokenizer_part(root, "decoder")))
        return err->status;
    return set_names(tok, err, path);
}

/* ---- BPE over characters ---- */

static bool is_part(const cJSON *part, const char *type)
{
    return strcmp(mc_tokenizer_part_type(part, "?"), type) == 0;
}

/* Whether a part, or one of a Sequence's, is of a type. */
static bool has_part(const cJSON *part, const char *list, const char *type)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, mc_tokenizer_part(part, list))
    {
        if (is_part(item, type)) return true;
    }
    return is_part(part, type);
}

bool mc_pieces_are_in(const mc_tokenizer *tok, const cJSON *root)
{
    const cJSON *words = mc_tokenizer_part(root, "pre_tokenizer");
    const cJSON *decoder = mc_tokenizer_part(root, "decoder");
    const cJSON *normalizer = mc_tokenizer_part(root, "normalizer");
    if (has_part(words, "pretokenizers", "ByteLevel") || has_part(decoder, "decoders", "ByteLevel"))
        return false;
    return mc_settings_class(tok) == MC_CLASS_LLAMA ||
           has_part(words, "pretokenizers", "Metaspace") ||
           has_part(decoder, "decoders", "ByteFallback") ||
           has_part(decoder, "decoders", "Metaspace") ||
           has_part(normalizer, "normalizers", "Prepend");
}

/* One step of a decoder: symbols to spaces, bytes to characters, tokens to a text, and spaces off
 * its start, in this order. */
static mc_status read_decoder_step(mc_unigram *u, mc_error *err, const char *path,
                                   const cJSON *part, bool *fused)
{
    int64_t stop = 0;
    const char *content = " ";
    if (is_part(part, "Replace") && is_text(part, "content", " ") &&
        is_text(mc_tokenizer_part(part, "pattern"), "String", MC_SPACE_SYMBOL)) {
        u->fuses = true;
        return MC_OK;
    }
    if (is_part(part, "ByteFallback")) {
        u->joins_bytes = true;
        return MC_OK;
    }
    if (is_part(part, "Fuse")) {
        *fused = true;
        return MC_OK;
    }
    if (!is_part(part, "Strip") || !*fused)
        return unsupported(err, path, "decoder", mc_tokenizer_part_type(part, "?"),
                           "Replace of U+2581, ByteFallback, Fuse, and Strip after it,");
    if (!mc_json_get_string(err, part, path, "content", &content) ||
        !mc_json_get_int(err, part, path, "start", 0, INT32_MAX, &u->strips) ||
        !mc_json_get_int(err, part, path, "stop", 0, INT32_MAX, &stop))
        return err->status;
    if (stop || strcmp(content, " ") != 0)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: decoder: Strip: only of spaces at a text's start is supported",
                            path);
    return MC_OK;
}

static mc_status read_pieces_decoder(mc_tokenizer *tok, mc_error *err, const char *path,
                                     const cJSON *part)
{
    const cJSON *list = mc_tokenizer_part(part, "decoders"), *item;
    bool fused = false;
    if (!is_part(part, "Sequence") || !list || !list->child)
        return read_decoder(tok, err, path, part);
    cJSON_ArrayForEach(item, list)
    {
        if (read_decoder_step(&tok->unigram, err, path, item, &fused)) return err->status;
    }
    if (tok->unigram.fuses) return MC_OK;
    return mc_error_set(
        err, MC_ERR_UNSUPPORTED,
        "%s: a BPE model with a decoder that has no Replace of U+2581 by a space is "
        "not supported",
        path);
}

/* Llama's class does not look at a tokenizer.json's normalizer, pre-tokenizer and decoder. */
static mc_status set_llama(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    mc_unigram *u = &tok->unigram;
    bool legacy = false, prefix = true;
    const cJSON *normalizer = mc_tokenizer_part(root, "normalizer");
    if (!mc_settings_flag(tok, err, "legacy", &legacy, NULL) ||
        !mc_settings_flag(tok, err, "add_prefix_space", &prefix, NULL))
        return err->status;
    u->prepend = !prefix ? MC_PREPEND_NEVER : legacy ? MC_PREPEND_ALWAYS : MC_PREPEND_FIRST;
    u->fuses = u->joins_bytes = true;
    u->strips = prefix;
    if (!legacy && has_part(normalizer, "normalizers", "Prepend"))
        mc_log(
            tok->ctx, MC_LOG_WARNING,
            "%s: says to put a space after special tokens too, but the class LlamaTokenizer puts "
            "one at a text's start alone unless \"legacy\" in tokenizer_config.json is true, as "
            "in transformers",
            path);
    return MC_OK;
}

mc_status mc_pieces_read_json(mc_tokenizer *tok, mc_error *err, const char *path, const cJSON *root)
{
    mc_unigram *u = &tok->unigram;
    tok->kind = MC_TOKENIZER_UNIGRAM;
    tok->has_normalizer = false;
    u->bpe = true;
    bool llama = mc_settings_class(tok) == MC_CLASS_LLAMA;
    if (llama && mc_llama_names(tok, err, path)) return err->status;
    if (mc_bpe_read_model(tok, err, path, mc_tokenizer_part(root, "model"), true))
        return err->status;
    if (mc_unigram_reserve(u, err, path, tok->entry_count)) return err->status;
    memset(u->types, MC_PIECE_NORMAL, u->count);
    u->unk_id = tok->bpe.unk_id;
    if (llama) {
        tok->bpe.fuse_unk = tok->bpe.byte_fallback = true;
        if (set_llama(tok, err, path, root)) return err->status;
    } else if (read_normalizer(tok, err, path, mc_tokenizer_part(root, "normalizer")) ||
               read_pre_tokenizer(tok, err, path, mc_tokenizer_part(root, "pre_tokenizer")) ||
               read_pieces_decoder(tok, err, path, mc_tokenizer_part(root, "decoder"))) {
        return err->status;
    }
    return set_names(tok, err, path);
}

/* What saving writes. */
mc_status mc_unigram_keep_source(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size)
{
    mc_free(tok->unigram.source);
    tok->unigram.source = mc_malloc(size);
    if (!tok->unigram.source) return no_memory(err, path);
    memcpy(tok->unigram.source, text, size);
    tok->unigram.source_size = size;
    return MC_OK;
}
