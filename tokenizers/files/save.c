#include "tokenizers/files/save_internal.h"
#include "tokenizers/files/settings_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool entries_fit_lines(const mc_tokenizer *tok)
{
    for (size_t i = 0; i < tok->entry_count; i++) {
        const char *text = mc_tokenizer_text(tok, tok->entries[i]);
        size_t length = tok->entries[i].length;
        if (!mc_tokenizer_holds(tok, i) || strpbrk(text, "\r\n") ||
            mc_length_without_space(text, length) < length)
            return false;
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
    return entries_fit_lines(tok) && tok->has_normalizer && !tok->form_count &&
           tok->normalizer_options.clean_text && strcmp(tok->prefix, "##") == 0 &&
           tok->max_chars == 100 && !tok->whole_texts && tok->decoder == MC_DECODER_WORDPIECE &&
           strcmp(tok->decoder_prefix, "##") == 0 && tok->decoder_cleanup &&
           has_bert_templates(tok) && has_bert_added(tok);
}

/* ---- writing ---- */

void mc_save_text(mc_file_writer *w, const char *text) { mc_file_write(w, text, strlen(text)); }

void mc_save_format(mc_file_writer *w, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    mc_save_text(w, text);
}

void mc_save_string(mc_file_writer *w, const char *text)
{
    mc_save_text(w, "\"");
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < ' ' || c == 0x7F)
            mc_save_format(w, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            mc_save_format(w, "\\%c", c);
        else
            mc_file_write(w, p, 1);
    }
    mc_save_text(w, "\"");
}

const char *mc_save_bool(bool value) { return value ? "true" : "false"; }

static const char *json_strip(const mc_tokenizer *tok)
{
    mc_strip_accents strip = tok->normalizer_options.strip_accents;
    return strip == MC_STRIP_AS_LOWERCASE ? "null" : mc_save_bool(strip == MC_STRIP_YES);
}

static void write_vocab(const mc_tokenizer *tok, mc_file_writer *w)
{
    for (size_t i = 0; i < tok->entry_count; i++) {
        bool empty = tok->entries[i].length == 0; /* its line is white space */
        mc_save_text(w, empty ? " " : mc_tokenizer_text(tok, tok->entries[i]));
        mc_save_text(w, "\n");
    }
}

static cJSON *strip_flag(const mc_tokenizer *tok)
{
    mc_strip_accents strip = tok->normalizer_options.strip_accents;
    return strip == MC_STRIP_AS_LOWERCASE ? cJSON_CreateNull()
                                          : cJSON_CreateBool(strip == MC_STRIP_YES);
}

static void write_config(const mc_tokenizer *tok, mc_file_writer *w, bool plain)
{
    cJSON *config = mc_save_config_begin(tok);
    const mc_normalizer_options *options = &tok->normalizer_options;
    mc_save_config_set(config, "do_lower_case", cJSON_CreateBool(options->lowercase));
    mc_save_config_set(config, "strip_accents", strip_flag(tok));
    mc_save_config_set(config, "tokenize_chinese_chars",
                       cJSON_CreateBool(options->handle_chinese_chars));
    mc_save_config_names(tok, config);
    /* a name that is no token would be added after the vocabulary by other readers */
    mc_save_config_name(tok, config, "mask_token", tok->mask_token, true);
    mc_save_config_end(tok, w, config, plain ? "BertTokenizer" : "PreTrainedTokenizerFast");
}

static void write_bert_config(const mc_tokenizer *tok, mc_file_writer *w)
{
    write_config(tok, w, true);
}

static void write_fast_config(const mc_tokenizer *tok, mc_file_writer *w)
{
    write_config(tok, w, false);
}

/* The keys of an added token, without its id. */
static void write_settings(const mc_tokenizer *tok, mc_file_writer *w, const mc_added_token *token)
{
    mc_save_text(w, "\"content\": ");
    mc_save_string(w, mc_tokenizer_text(tok, token->entry));
    mc_save_format(w, ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, ",
                   mc_save_bool(token->single_word), mc_save_bool(token->lstrip),
                   mc_save_bool(token->rstrip));
    mc_save_format(w, "\"normalized\": %s, \"special\": %s", mc_save_bool(token->normalized),
                   mc_save_bool(token->special));
}

void mc_save_added(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, "  \"added_tokens\": [");
    for (size_t i = 0; i < tok->added_count; i++) {
        const mc_added_token *token = &tok->added[i];
        mc_save_format(w, "%s\n    {\"id\": %d, ", i ? "," : "", token->id);
        write_settings(tok, w, token);
        mc_save_text(w, "}");
    }
    mc_save_text(w, "\n  ],\n");
}

static void write_bert_normalizer(const mc_tokenizer *tok, mc_file_writer *w)
{
    const mc_normalizer_options *options = &tok->normalizer_options;
    mc_save_format(w, "{\"type\": \"BertNormalizer\", \"clean_text\": %s, ",
                   mc_save_bool(options->clean_text));
    mc_save_format(w, "\"handle_chinese_chars\": %s, \"strip_accents\": %s, \"lowercase\": %s}",
                   mc_save_bool(options->handle_chinese_chars), json_strip(tok),
                   mc_save_bool(options->lowercase));
}

void mc_save_normalizer(const mc_tokenizer *tok, mc_file_writer *w,
                        void (*rest)(const mc_tokenizer *tok, mc_file_writer *w))
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    bool several = tok->form_count + (rest != NULL) > 1;
    mc_save_text(w, "  \"normalizer\": ");
    if (several) mc_save_text(w, "{\"type\": \"Sequence\", \"normalizers\": [");
    for (int i = 0; i < tok->form_count; i++)
        mc_save_format(w, "%s{\"type\": \"%s\"}", i ? ", " : "", names[tok->forms[i]]);
    if (rest && tok->form_count) mc_save_text(w, ", ");
    if (rest) rest(tok, w);
    if (!rest && !tok->form_count) mc_save_text(w, "null");
    mc_save_text(w, several ? "]},\n" : ",\n");
}

static void write_specials(const mc_tokenizer *tok, mc_file_writer *w,
                           const mc_template_special *specials, int count, bool leading)
{
    for (int i = 0; i < count; i++) {
        mc_save_text(w,
                     leading ? "{\"SpecialToken\": {\"id\": " : ", {\"SpecialToken\": {\"id\": ");
        mc_save_string(w, mc_tokenizer_id_to_token(tok, specials[i].id));
        mc_save_format(w, ", \"type_id\": %d}}%s", specials[i].type_id, leading ? ", " : "");
    }
}

static void write_template(const mc_tokenizer *tok, mc_file_writer *w, const mc_template *t,
                           bool pair)
{
    mc_save_text(w, "[");
    write_specials(tok, w, t->prefix, t->prefix_count, true);
    mc_save_format(w, "{\"Sequence\": {\"id\": \"A\", \"type_id\": %d}}", t->type_a);
    write_specials(tok, w, t->middle, t->middle_count, false);
    if (pair) mc_save_format(w, ", {\"Sequence\": {\"id\": \"B\", \"type_id\": %d}}", t->type_b);
    write_specials(tok, w, t->suffix, t->suffix_count, false);
    mc_save_text(w, "]");
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
                mc_save_text(w, seen_count ? ", " : "");
                seen[seen_count++] = id;
                const char *text = mc_tokenizer_id_to_token(tok, id);
                mc_save_string(w, text);
                mc_save_text(w, ": {\"id\": ");
                mc_save_string(w, text);
                mc_save_format(w, ", \"ids\": [%d], \"tokens\": [", id);
                mc_save_string(w, text);
                mc_save_text(w, "]}");
            }
        }
    }
}

void mc_save_post_processor(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, "  \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ");
    write_template(tok, w, &tok->single, false);
    mc_save_text(w, ", \"pair\": ");
    write_template(tok, w, &tok->pair, true);
    mc_save_text(w, ", \"special_tokens\": {");
    write_template_tokens(tok, w);
    mc_save_text(w, "}},\n");
}

static void write_model(const mc_tokenizer *tok, mc_file_writer *w)
{
    bool first = true;
    mc_save_text(w, "  \"model\": {\"type\": \"WordPiece\", \"unk_token\": ");
    mc_save_string(w, tok->unk_token);
    mc_save_text(w, ", \"continuing_subword_prefix\": ");
    mc_save_string(w, tok->prefix);
    mc_save_format(w, ", \"max_input_chars_per_word\": %" PRIu64 ", \"vocab\": {", tok->max_chars);
    for (size_t i = 0; i < tok->entry_count; i++) {
        if (!mc_tokenizer_holds(tok, i)) continue;
        mc_save_text(w, first ? "\n    " : ",\n    ");
        mc_save_string(w, mc_tokenizer_text(tok, tok->entries[i]));
        mc_save_format(w, ": %zu", i);
        first = false;
    }
    mc_save_text(w, "\n  }}\n}\n");
}

static void write_json(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    mc_save_added(tok, w);
    mc_save_normalizer(tok, w, tok->has_normalizer ? write_bert_normalizer : NULL);
    mc_save_text(w, tok->whole_texts ? "  \"pre_tokenizer\": null,\n"
                                     : "  \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"},\n");
    mc_save_post_processor(tok, w);
    if (tok->decoder == MC_DECODER_SPACES) {
        mc_save_text(w, "  \"decoder\": null,\n");
    } else if (tok->decoder == MC_DECODER_JOINED) {
        mc_save_text(w, "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": []},\n");
    } else {
        mc_save_text(w, "  \"decoder\": {\"type\": \"WordPiece\", \"prefix\": ");
        mc_save_string(w, tok->decoder_prefix);
        mc_save_format(w, ", \"cleanup\": %s},\n", mc_save_bool(tok->decoder_cleanup));
    }
    write_model(tok, w);
}

/* Of CPM's, whose folders hold vocab.txt alone. */
static void choose_cpm_files(const mc_tokenizer *tok, mc_error *err, mc_save_file *files)
{
    files[0].write = write_vocab;
    if (mc_path_is_file(files[1].path))
        mc_error_set(err, MC_ERR_ARGUMENT, "%s: would be read instead of the vocab.txt of %s",
                     files[1].path, tok->path);
}

static void write_chat_template(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, tok->settings->chat_template);
}

/* The chat template that has a file of its own, which counts before tokenizer_config.json's. */
static mc_status choose_chat_template(const mc_tokenizer *tok, mc_error *err, const char *folder,
                                      mc_save_file *file)
{
    if (err->status || mc_path_join(err, file->path, folder, "chat_template.jinja"))
        return err->status;
    if (tok->settings && tok->settings->chat_template)
        file->write = write_chat_template;
    else if (mc_path_is_file(file->path))
        mc_error_set(err, MC_ERR_ARGUMENT,
                     "%s lies there already and would be read as the chat template of %s",
                     file->path, tok->path);
    return err->status;
}

/* Writes all files aside before the first of them is renamed into place. */
static mc_status save_files(const mc_tokenizer *tok, mc_error *err, const mc_save_file *files)
{
    mc_file_writer writers[MC_SAVE_FILES];
    int count = 0;
    for (int i = 0; i < MC_SAVE_FILES && !mc_error_is_set(err); i++) {
        if (!files[i].write) continue;
        mc_file_writer *w = &writers[count++];
        if (mc_file_writer_init(err, w, files[i].path)) break;
        files[i].write(tok, w);
        mc_file_sync(w);
    }
    for (int i = 0; i < count && !mc_error_is_set(err); i++) mc_file_rename(&writers[i]);
    for (int i = 0; i < count; i++) mc_file_writer_release(&writers[i]);
    return err->status;
}

/* Which files, in the order in which they are renamed. */
static void choose_files(const mc_tokenizer *tok, mc_save_file *files)
{
    enum { VOCAB, JSON, CONFIG };
    /* one that lies there from before would be read instead of the vocabulary */
    bool with_json = !is_plain_bert(tok) || mc_path_is_file(files[JSON].path);
    files[VOCAB].write = entries_fit_lines(tok) ? write_vocab : NULL;
    files[JSON].write = with_json ? write_json : NULL;
    files[CONFIG].write = with_json ? write_fast_config : write_bert_config;
}

mc_status mc_tokenizer_save(const mc_tokenizer *tok, const char *folder)
{
    static const char *const names[] = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"};
    static const char *const bpe_names[] = {"vocab.json", "merges.txt", "tokenizer.json",
                                            "tokenizer_config.json"};
    mc_save_file files[MC_SAVE_FILES] = {0};
    size_t made;
    if (!tok) return MC_ERR_ARGUMENT;
    if (mc_failed(tok->ctx) || mc_rank(tok->ctx)) return mc_error_status(tok->ctx);
    bool bpe = tok->kind == MC_TOKENIZER_BYTE_BPE, unigram = tok->kind == MC_TOKENIZER_UNIGRAM;
    mc_error *err = &tok->ctx->error;
    if (!folder) return mc_error_set(err, MC_ERR_ARGUMENT, "no folder to save a tokenizer to");
    for (int i = 0; i < (unigram ? 0 : bpe ? 4 : 3); i++)
        if (mc_path_join(err, files[i].path, folder, bpe ? bpe_names[i] : names[i]))
            return err->status;
    if (mc_make_new_folders(err, folder, &made)) return err->status;
    if (unigram)
        mc_unigram_choose_files(tok, err, folder, files);
    else if (bpe)
        mc_bpe_choose_files(tok, files);
    else if (tok->kind == MC_TOKENIZER_CPM)
        choose_cpm_files(tok, err, files);
    else
        choose_files(tok, files);
    if (choose_chat_template(tok, err, folder, &files[MC_SAVE_FILES - 1]) == MC_OK)
        save_files(tok, err, files);
    if (err->status) mc_remove_new_folders(folder, made);
    mc_error_while(err, "saving a tokenizer to %s", folder);
    return err->status;
}
