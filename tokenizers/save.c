#include "tokenizers/tokenizer_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool entries_fit_lines(const mc_tokenizer *tok)
{
    for (size_t i = 0; i < tok->entry_count; i++) {
        mc_entry entry = tok->entries[i];
        if (!entry.length || strpbrk(mc_tokenizer_text(tok, entry), "\r\n")) return false;
    }
    return true;
}

static bool same_specials(const mc_template_special *a, const mc_template_special *b, int count)
{
    for (int i = 0; i < count; i++)
        if (a[i].id != b[i].id || a[i].type_id != b[i].type_id) return false;
    return true;
}

static bool same_template(const mc_template *a, const mc_template *b)
{
    return a->prefix_count == b->prefix_count && a->middle_count == b->middle_count &&
           a->suffix_count == b->suffix_count && a->type_a == b->type_a && a->type_b == b->type_b &&
           same_specials(a->prefix, b->prefix, a->prefix_count) &&
           same_specials(a->middle, b->middle, a->middle_count) &&
           same_specials(a->suffix, b->suffix, a->suffix_count);
}

static bool has_bert_templates(const mc_tokenizer *tok)
{
    mc_template single, pair;
    mc_bert_templates(&single, &pair, tok->cls_id, tok->sep_id);
    return same_template(&single, &tok->single) && same_template(&pair, &tok->pair);
}

/* Whether the added tokens are those that a bare vocabulary gets: its special ones, each plain. */
static bool has_bert_added(const mc_tokenizer *tok)
{
    const char *names[] = {tok->unk_token, tok->sep_token, tok->pad_token, tok->cls_token,
                           tok->mask_token};
    enum { NAMES = sizeof names / sizeof *names };
    size_t known = 0;
    for (size_t n = 0; n < NAMES; n++) {
        bool again = false, in_vocabulary;
        for (size_t m = 0; m < n; m++) again = again || strcmp(names[n], names[m]) == 0;
        size_t length = strlen(names[n]);
        in_vocabulary = mc_trie_find(&tok->trie, (const uint8_t *)names[n], length) >= 0;
        known += !again && in_vocabulary;
    }
    for (size_t i = 0; i < tok->added_count; i++) {
        const mc_added_token *token = &tok->added[i];
        bool named = false;
        for (size_t n = 0; n < NAMES; n++)
            named = named || strcmp(mc_tokenizer_text(tok, token->entry), names[n]) == 0;
        if (!named || (size_t)token->id >= tok->entry_count) return false;
        if (!token->special || token->normalized || token->single_word || token->lstrip ||
            token->rstrip)
            return false;
    }
    return known == tok->added_count;
}

/* Whether vocab.txt and tokenizer_config.json say all there is to say. */
static bool is_plain_bert(const mc_tokenizer *tok)
{
    return entries_fit_lines(tok) && tok->has_normalizer && tok->normalizer_options.clean_text &&
           strcmp(tok->prefix, "##") == 0 && tok->max_chars == 100 &&
           tok->decoder == MC_DECODER_WORDPIECE && strcmp(tok->decoder_prefix, "##") == 0 &&
           tok->decoder_cleanup && has_bert_templates(tok) && has_bert_added(tok);
}

/* ---- writing ---- */

static void put(mc_file_writer *w, const char *text) { mc_file_write(w, text, strlen(text)); }

static void putf(mc_file_writer *w, const char *format, ...) MC_PRINTF(2, 3);
static void putf(mc_file_writer *w, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(w, text);
}

static void put_string(mc_file_writer *w, const char *text)
{
    put(w, "\"");
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < ' ' || c == 0x7F)
            putf(w, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            putf(w, "\\%c", c);
        else
            mc_file_write(w, p, 1);
    }
    put(w, "\"");
}

static void put_pair(mc_file_writer *w, const char *key, const char *value)
{
    putf(w, "  \"%s\": ", key);
    put_string(w, value);
    put(w, ",\n");
}

static const char *json_bool(bool value) { return value ? "true" : "false"; }

static const char *json_strip(const mc_tokenizer *tok)
{
    mc_strip_accents strip = tok->normalizer_options.strip_accents;
    return strip == MC_STRIP_AS_LOWERCASE ? "null" : json_bool(strip == MC_STRIP_YES);
}

static void write_vocab(const mc_tokenizer *tok, mc_file_writer *w)
{
    for (size_t i = 0; i < tok->entry_count; i++) {
        put(w, mc_tokenizer_text(tok, tok->entries[i]));
        put(w, "\n");
    }
}

static void write_config(const mc_tokenizer *tok, mc_file_writer *w, bool plain)
{
    put(w, "{\n");
    putf(w, "  \"do_lower_case\": %s,\n", json_bool(tok->normalizer_options.lowercase));
    putf(w, "  \"strip_accents\": %s,\n", json_strip(tok));
    putf(w, "  \"tokenize_chinese_chars\": %s,\n",
         json_bool(tok->normalizer_options.handle_chinese_chars));
    put_pair(w, "unk_token", tok->unk_token);
    put_pair(w, "cls_token", tok->cls_token);
    put_pair(w, "sep_token", tok->sep_token);
    put_pair(w, "pad_token", tok->pad_token);
    /* a name that is no token would be added behind the vocabulary by other readers */
    if (mc_tokenizer_token_to_id(tok, tok->mask_token) >= 0)
        put_pair(w, "mask_token", tok->mask_token);
    else
        put(w, "  \"mask_token\": null,\n");
    putf(w, "  \"tokenizer_class\": \"%s\"\n}\n",
         plain ? "BertTokenizer" : "PreTrainedTokenizerFast");
}

static void write_added(const mc_tokenizer *tok, mc_file_writer *w)
{
    put(w, "  \"added_tokens\": [");
    for (size_t i = 0; i < tok->added_count; i++) {
        const mc_added_token *token = &tok->added[i];
        putf(w, "%s\n    {\"id\": %d, \"content\": ", i ? "," : "", token->id);
        put_string(w, mc_tokenizer_text(tok, token->entry));
        putf(w, ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, ",
             json_bool(token->single_word), json_bool(token->lstrip), json_bool(token->rstrip));
        putf(w, "\"normalized\": %s, \"special\": %s}", json_bool(token->normalized),
             json_bool(token->special));
    }
    put(w, "\n  ],\n");
}

static void write_normalizer(const mc_tokenizer *tok, mc_file_writer *w)
{
    const mc_normalizer_options *options = &tok->normalizer_options;
    if (!tok->has_normalizer) {
        put(w, "  \"normalizer\": null,\n");
        return;
    }
    putf(w, "  \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": %s, ",
         json_bool(options->clean_text));
    putf(w, "\"handle_chinese_chars\": %s, \"strip_accents\": %s, \"lowercase\": %s},\n",
         json_bool(options->handle_chinese_chars), json_strip(tok), json_bool(options->lowercase));
}

static void write_specials(const mc_tokenizer *tok, mc_file_writer *w,
                           const mc_template_special *specials, int count, bool leading)
{
    for (int i = 0; i < count; i++) {
        put(w, leading ? "{\"SpecialToken\": {\"id\": " : ", {\"SpecialToken\": {\"id\": ");
        put_string(w, mc_tokenizer_id_to_token(tok, specials[i].id));
        putf(w, ", \"type_id\": %d}}%s", specials[i].type_id, leading ? ", " : "");
    }
}

static void write_template(const mc_tokenizer *tok, mc_file_writer *w, const mc_template *t,
                           bool pair)
{
    put(w, "[");
    write_specials(tok, w, t->prefix, t->prefix_count, true);
    putf(w, "{\"Sequence\": {\"id\": \"A\", \"type_id\": %d}}", t->type_a);
    write_specials(tok, w, t->middle, t->middle_count, false);
    if (pair) putf(w, ", {\"Sequence\": {\"id\": \"B\", \"type_id\": %d}}", t->type_b);
    write_specials(tok, w, t->suffix, t->suffix_count, false);
    put(w, "]");
}

/* The special tokens of both templates, each once. */
static void write_template_tokens(const mc_tokenizer *tok, mc_file_writer *w)
{
    const mc_template *templates[] = {&tok->single, &tok->pair};
    int32_t seen[6 * MC_TEMPLATE_MAX];
    int seen_count = 0;
    for (int t = 0; t < 2; t++) {
        const mc_template *from = templates[t];
        const mc_template_special *lists[] = {from->prefix, from->middle, from->suffix};
        const int counts[] = {from->prefix_count, from->middle_count, from->suffix_count};
        for (int l = 0; l < 3; l++) {
            for (int i = 0; i < counts[l]; i++) {
                int32_t id = lists[l][i].id;
                int s = 0;
                while (s < seen_count && seen[s] != id) s++;
                if (s < seen_count) continue;
                put(w, seen_count ? ", " : "");
                seen[seen_count++] = id;
                const char *text = mc_tokenizer_id_to_token(tok, id);
                put_string(w, text);
                put(w, ": {\"id\": ");
                put_string(w, text);
                putf(w, ", \"ids\": [%d], \"tokens\": [", id);
                put_string(w, text);
                put(w, "]}");
            }
        }
    }
}

static void write_post_processor(const mc_tokenizer *tok, mc_file_writer *w)
{
    put(w, "  \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ");
    write_template(tok, w, &tok->single, false);
    put(w, ", \"pair\": ");
    write_template(tok, w, &tok->pair, true);
    put(w, ", \"special_tokens\": {");
    write_template_tokens(tok, w);
    put(w, "}},\n");
}

static void write_model(const mc_tokenizer *tok, mc_file_writer *w)
{
    bool first = true;
    put(w, "  \"model\": {\"type\": \"WordPiece\", \"unk_token\": ");
    put_string(w, tok->unk_token);
    put(w, ", \"continuing_subword_prefix\": ");
    put_string(w, tok->prefix);
    putf(w, ", \"max_input_chars_per_word\": %" PRIu64 ", \"vocab\": {", tok->max_chars);
    for (size_t i = 0; i < tok->entry_count; i++) {
        if (!tok->entries[i].length) continue;
        put(w, first ? "\n    " : ",\n    ");
        put_string(w, mc_tokenizer_text(tok, tok->entries[i]));
        putf(w, ": %zu", i);
        first = false;
    }
    put(w, "\n  }}\n}\n");
}

static void write_json(const mc_tokenizer *tok, mc_file_writer *w)
{
    put(w, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    write_added(tok, w);
    write_normalizer(tok, w);
    put(w, "  \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},\n");
    write_post_processor(tok, w);
    if (tok->decoder == MC_DECODER_SPACES) {
        put(w, "  \"decoder\": null,\n");
    } else {
        put(w, "  \"decoder\": {\"type\": \"WordPiece\", \"prefix\": ");
        put_string(w, tok->decoder_prefix);
        putf(w, ", \"cleanup\": %s},\n", json_bool(tok->decoder_cleanup));
    }
    write_model(tok, w);
}

/* Writes all files aside before the first of them is renamed into place. */
static mc_status save_files(const mc_tokenizer *tok, mc_error *err, const char *vocab,
                            const char *config, const char *json)
{
    mc_file_writer writers[3];
    const char *paths[3] = {vocab, json, config};
    int count = 0;
    for (int i = 0; i < 3 && !mc_error_is_set(err); i++) {
        if (!paths[i]) continue;
        mc_file_writer *w = &writers[count++];
        if (mc_file_writer_init(err, w, paths[i])) break;
        if (i == 0)
            write_vocab(tok, w);
        else if (i == 1)
            write_json(tok, w);
        else
            write_config(tok, w, json == NULL);
        mc_file_sync(w);
    }
    for (int i = 0; i < count && !mc_error_is_set(err); i++) mc_file_rename(&writers[i]);
    for (int i = 0; i < count; i++) mc_file_writer_release(&writers[i]);
    return err->status;
}

mc_status mc_tokenizer_save(const mc_tokenizer *tok, const char *folder)
{
    char vocab[MC_PATH_MAX], config[MC_PATH_MAX], json[MC_PATH_MAX];
    if (!tok) return MC_ERR_ARGUMENT;
    if (mc_failed(tok->ctx)) return mc_error_status(tok->ctx);
    mc_error *err = &tok->ctx->error;
    if (!folder) return mc_error_set(err, MC_ERR_ARGUMENT, "no folder to save a tokenizer to");
    if (mc_make_folders(err, folder) || mc_path_join(err, vocab, folder, "vocab.txt") ||
        mc_path_join(err, config, folder, "tokenizer_config.json") ||
        mc_path_join(err, json, folder, "tokenizer.json"))
        return err->status;
    /* one that lies there from before would be read instead of the vocabulary */
    bool plain = is_plain_bert(tok), with_json = !plain || mc_path_is_file(json);
    save_files(tok, err, entries_fit_lines(tok) ? vocab : NULL, config, with_json ? json : NULL);
    mc_error_while(err, "saving a tokenizer to %s", folder);
    return err->status;
}
