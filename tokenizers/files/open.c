#include <stdio.h>
#include <string.h>
#include "core/hub/find_internal.h"
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/files/settings_internal.h"
#include "tokenizers/gguf/tokens_internal.h"

static int line_of(const char *text, const char *at)
{
    int line = 1;
    for (; text < at; text++) line += *text == '\n';
    return line;
}

static mc_status check_utf8(mc_error *err, const char *path, const char *text, size_t size)
{
    const uint8_t *start = (const uint8_t *)text;
    const uint8_t *bad = mc_utf8_find_invalid(start, start + size);
    if (!bad) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s:%d: byte 0x%02x is not valid UTF-8", path,
                        line_of(text, (const char *)bad), *bad);
}

/* Hugging Face drops white space at the end of a line; what is left of white space alone, or of an
 * empty line, is an entry of no characters, as bert-base-chinese has one. Of several the last one
 * counts. */
static mc_status read_line(mc_tokenizer *tok, mc_error *err, const char *path, int line,
                           const char *text, size_t length)
{
    if (line > MC_TOKENS_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%d: more than %d entries", path, line,
                            MC_TOKENS_MAX);
    if (length && text[length - 1] == '\r') length--;
    length = mc_length_without_space(text, length);
    if (memchr(text, '\0', length) || memchr(text, '\r', length))
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%d: entry holds a NUL or a carriage return",
                            path, line);
    if (!length) {
        tok->has_empty = true;
        tok->empty_id = tok->entry_count;
    }
    if (!mc_grow(&tok->entries, &tok->entry_capacity, tok->entry_count, sizeof *tok->entries) ||
        !mc_tokenizer_store(tok, text, length, &tok->entries[tok->entry_count]))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the vocabulary", path);
    tok->entry_count++;
    return MC_OK;
}

static mc_status read_lines(mc_tokenizer *tok, mc_error *err, const char *path, const char *text,
                            size_t size)
{
    const char *end = text + size;
    mc_status status = check_utf8(err, path, text, size);
    if (!status && !size) status = mc_error_set(err, MC_ERR_FORMAT, "%s: empty file", path);
    for (int line = 1; text < end && !status; line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((stop ? stop : end) - text);
        status = read_line(tok, err, path, line, text, length);
        text += length + 1;
    }
    return status;
}

/* The special tokens that BERT's class has: those of its five names that are entries. */
static mc_status add_bert_specials(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const char *names[] = {tok->unk_token, tok->sep_token, tok->pad_token, tok->cls_token,
                           tok->mask_token};
    bool named = mc_settings_class(tok) == MC_CLASS_BERT;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        bool there = false;
        for (size_t i = 0; i < tok->entry_count && !there && *names[n]; i++)
            there = strcmp(mc_tokenizer_text(tok, tok->entries[i]), names[n]) == 0;
        /* a class that was named has a mask, whether it is an entry or not */
        there = there || (named && names[n] == tok->mask_token);
        if (there && mc_tokenizer_add_special(tok, err, path, names[n])) return err->status;
    }
    return MC_OK;
}

/* The settings of BERT's normal form that tokenizer_config.json gives; *lowercase is set where it
 * says anything about it. */
static mc_status read_bert_settings(mc_tokenizer *tok, mc_error *err, mc_lowercase *lowercase)
{
    mc_normalizer_options *options = &tok->normalizer_options;
    bool lower = false, strip = false, given;
    if (!mc_settings_flag(tok, err, "tokenize_chinese_chars", &options->handle_chinese_chars,
                          NULL) ||
        !mc_settings_flag(tok, err, "strip_accents", &strip, &given))
        return err->status;
    if (given) options->strip_accents = strip ? MC_STRIP_YES : MC_STRIP_NO;
    if (!mc_settings_flag(tok, err, "do_lower_case", &lower, &given)) return err->status;
    if (given) *lowercase = lower ? MC_LOWERCASE_YES : MC_LOWERCASE_NO;
    return MC_OK;
}

/* Whether a vocab.txt is of lowercased text where no setting says it: BERT's class takes that to be
 * so, and where no class is named the entries decide. */
static bool guess_lowercase(const mc_tokenizer *tok, const char *path)
{
    if (mc_settings_class(tok) == MC_CLASS_BERT || !mc_tokenizer_looks_cased(tok)) return true;
    mc_log(
        tok->ctx, MC_LOG_WARNING,
        "%s: has entries with capitals, so text is not lowercased; no tokenizer_config.json says "
        "it (\"do_lower_case\")",
        path);
    return false;
}

mc_status mc_tokenizer_load_vocab(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const char *text, size_t size, mc_lowercase lowercase)
{
    mc_lowercase said = MC_LOWERCASE_DEFAULT;
    if (read_lines(tok, err, path, text, size)) return err->status;
    if (mc_cpm_is(tok)) return mc_cpm_load(tok, err, path);
    if (mc_settings_expect_class(tok, err, "a vocab.txt", MC_CLASSES(MC_CLASS_BERT)) ||
        mc_settings_read_names(tok, err) || mc_settings_read_common(tok, err) ||
        read_bert_settings(tok, err, &said))
        return err->status;
    if (!lowercase) lowercase = said;
    tok->normalizer_options.lowercase =
        lowercase ? lowercase == MC_LOWERCASE_YES : guess_lowercase(tok, path);
    if (mc_settings_add_tokens(tok, err, true) || add_bert_specials(tok, err, path) ||
        mc_settings_check_unsplit(tok, err))
        return err->status;
    return mc_tokenizer_finish(tok, err, path, true);
}

/* What tokenizer_config.json says about a WordPiece model of a tokenizer.json, whose own settings
 * have been read. BERT's class does not look at these; where no class is named the two are
 * joined. */
static mc_status join_bert_settings(mc_tokenizer *tok, mc_error *err, const char *path,
                                    mc_lowercase asked)
{
    mc_normalizer_options *options = &tok->normalizer_options;
    mc_tokenizer_class class = mc_settings_class(tok);
    mc_lowercase lowercase = MC_LOWERCASE_DEFAULT;
    bool lowered = !tok->has_normalizer || options->lowercase;
    if (class == MC_CLASS_BERT) {
        *options = (mc_normalizer_options){
            .clean_text = true, .handle_chinese_chars = true, .lowercase = true};
        tok->has_normalizer = true;
    }
    if (class == MC_CLASS_BERT || (class == MC_CLASS_NONE && tok->has_normalizer)) {
        if (read_bert_settings(tok, err, &lowercase)) return err->status;
        if (lowercase) options->lowercase = lowercase == MC_LOWERCASE_YES;
    } else {
        mc_settings_warn_unused(tok, "do_lower_case", options->lowercase);
        mc_settings_warn_unused(tok, "tokenize_chinese_chars", options->handle_chinese_chars);
    }
    if (asked) options->lowercase = asked == MC_LOWERCASE_YES;
    if (!asked && !lowercase && !lowered && options->lowercase)
        mc_log(tok->ctx, MC_LOG_WARNING,
               "%s: says not to lowercase, but the class is BERT's, and without \"do_lower_case\" "
               "in a "
               "tokenizer_config.json it does, as in transformers",
               path);
    return MC_OK;
}

/* The special tokens that a class has by itself, where they are entries. */
static mc_status add_own_specials(mc_tokenizer *tok, mc_error *err, const char *path,
                                  mc_tokenizer_class class)
{
    const char *names[] = {tok->bos_token, tok->eos_token,  tok->cls_token, tok->sep_token,
                           tok->pad_token, tok->mask_token, tok->unk_token};
    size_t count = class == MC_CLASS_ROBERTA ? sizeof names / sizeof *names : 2;
    if (class == MC_CLASS_BERT) return add_bert_specials(tok, err, path);
    for (size_t n = 0; n < count; n++) {
        const uint8_t *text = (const uint8_t *)names[n];
        if (*text && mc_trie_find(&tok->trie, text, strlen(names[n])) >= 0 &&
            mc_tokenizer_add_special(tok, err, path, names[n]))
            return err->status;
    }
    return MC_OK;
}

/* Where tokenizer_config.json says whether a first or last token is put around texts, that counts
 * instead of the post-processor; a token that has no name is none. Some classes have their own. */
static mc_status read_ends(mc_tokenizer *tok, mc_error *err, mc_tokenizer_class class)
{
    bool bos = false, eos = false, bos_given, eos_given;
    bool named = class == MC_CLASS_LLAMA;
    if (!mc_settings_flag(tok, err, "add_bos_token", &bos, &bos_given) ||
        !mc_settings_flag(tok, err, "add_eos_token", &eos, &eos_given))
        return err->status;
    if (class == MC_CLASS_BERT || class == MC_CLASS_GPT2 || class == MC_CLASS_ROBERTA ||
        class == MC_CLASS_T5 || tok->kind == MC_TOKENIZER_WORDPIECE)
        return MC_OK;
    tok->ends_templates = bos_given || eos_given;
    tok->puts_bos = bos && *tok->bos_token && (named || mc_settings_named(tok, "bos_token"));
    tok->puts_eos = eos && *tok->eos_token && (named || mc_settings_named(tok, "eos_token"));
    return MC_OK;
}

mc_status mc_tokenizer_load_json(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size, mc_lowercase lowercase)
{
    if (mc_settings_read_names(tok, err) || mc_tokenizer_read_json(tok, err, path, text, size) ||
        mc_settings_read_common(tok, err))
        return err->status;
    mc_tokenizer_class class = mc_settings_class(tok);
    bool own = class == MC_CLASS_BERT || class == MC_CLASS_GPT2 || class == MC_CLASS_ROBERTA;
    bool pieces = tok->kind == MC_TOKENIZER_WORDPIECE;
    if (pieces && join_bert_settings(tok, err, path, lowercase)) return err->status;
    if (read_ends(tok, err, class)) return err->status;
    if (mc_settings_add_tokens(tok, err, own)) return err->status;
    if (own && add_own_specials(tok, err, path, class)) return err->status;
    if (mc_settings_check_unsplit(tok, err)) return err->status;
    return mc_tokenizer_finish(tok, err, path, false);
}

typedef struct folder_files {
    char vocab[MC_PATH_MAX], json[MC_PATH_MAX];
    char vocab_json[MC_PATH_MAX], merges[MC_PATH_MAX]; /* of byte-level BPE */
    char model[MC_PATH_MAX]; /* SentencePiece's, by the name that is there; "": none */
    bool t5;                 /* it has the name that T5's has, */
    bool fairseq;            /* or the one of models whose pieces fairseq numbers */
} folder_files;

const char *const mc_model_names[MC_MODEL_NAMES] = {
    "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model",
    "vocab.model",  "cog-pretrain.model"};

static mc_status find_model(mc_error *err, folder_files *files, const char *folder,
                            const mc_inside *inside)
{
    for (size_t i = 0; i < MC_MODEL_NAMES; i++) {
        if (mc_path_join(err, files->model, folder, mc_model_names[i])) return err->status;
        files->t5 = i == 0;
        files->fairseq = i == 1;
        if (mc_inside_is_file(inside, files->model)) return MC_OK;
    }
    files->model[0] = 0;
    return MC_OK;
}

static mc_status name_files(mc_error *err, folder_files *files, const char *folder,
                            const mc_inside *inside)
{
    const struct {
        char *path;
        const char *name;
    } all[] = {{files->vocab, "vocab.txt"},
               {files->json, "tokenizer.json"},
               {files->vocab_json, "vocab.json"},
               {files->merges, "merges.txt"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (mc_path_join(err, all[i].path, folder, all[i].name)) return err->status;
    return find_model(err, files, folder, inside);
}

static mc_status load_model(mc_tokenizer *tok, mc_error *err, const folder_files *files)
{
    size_t size;
    if (files->fairseq && mc_settings_class(tok) == MC_CLASS_NONE)
        return mc_error_set(err, MC_ERR_UNSUPPORTED,
                            "%s: how its pieces are numbered depends on the class, and no file "
                            "names one: expected \"tokenizer_class\" in a tokenizer_config.json, "
                            "XLMRobertaTokenizer or CamembertTokenizer",
                            files->model);
    char *bytes = mc_inside_read(tok->inside, err, files->model, MC_TOKENIZER_FILE_MAX, &size);
    if (!bytes) return err->status;
    mc_status status = mc_unigram_load_model(tok, err, files->model, bytes, size, files->t5, -1);
    mc_free(bytes);
    return status;
}

static mc_status load(mc_tokenizer *tok, mc_error *err, const folder_files *files,
                      const char *folder, const mc_tokenizer_options *options)
{
    const mc_inside *inside = tok->inside;
    bool json = mc_inside_is_file(inside, files->json);
    const char *path = json ? files->json : files->vocab;
    mc_lowercase asked = options ? options->lowercase : MC_LOWERCASE_DEFAULT;
    size_t size;
    if (mc_settings_open(tok, err, folder)) return err->status;
    /* the .model counts, but where the class numbers pieces otherwise and a tokenizer.json too */
    if (files->model[0]) mc_settings_fall_back(tok, MC_CLASSES_FAIRSEQ);
    bool unclear = files->fairseq && mc_settings_class(tok) == MC_CLASS_NONE;
    if (files->model[0] && (!json || (mc_unigram_has_model_ids(tok) && !unclear)))
        return load_model(tok, err, files);
    if (!json && !mc_inside_is_file(inside, path) && mc_inside_is_file(inside, files->vocab_json))
        return mc_bpe_load_files(tok, err, files->vocab_json, files->merges);
    if (!json && !mc_inside_is_file(inside, path))
        return mc_error_set(err, MC_ERR_NOT_FOUND,
                            "%s: holds neither tokenizer.json nor vocab.txt, vocab.json or a model "
                            "of SentencePiece (spiece.model, sentencepiece.bpe.model, "
                            "tokenizer.model)",
                            folder);
    char *text = mc_inside_read(inside, err, path, MC_TOKENIZER_FILE_MAX, &size);
    if (!text) return err->status;
    mc_status status = json ? mc_tokenizer_load_json(tok, err, path, text, size, asked)
                            : mc_tokenizer_load_vocab(tok, err, path, text, size, asked);
    mc_free(text);
    return status;
}

static mc_status check_options(const mc_tokenizer *tok, mc_error *err,
                               const mc_tokenizer_options *options)
{
    int asked = options ? (int)options->lowercase : 0;
    bool lower = asked == MC_LOWERCASE_YES;
    if (asked < MC_LOWERCASE_DEFAULT || asked > MC_LOWERCASE_YES)
        return mc_error_set(err, MC_ERR_ARGUMENT, "lowercase is %d, expected an mc_lowercase",
                            asked);
    if (!lower || tok->kind == MC_TOKENIZER_WORDPIECE) return MC_OK;
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "a tokenizer of this kind does not lowercase, as was asked for");
}

static bool has_tokenizer(const folder_files *files)
{
    return files->model[0] || mc_path_is_file(files->vocab) || mc_path_is_file(files->json) ||
           mc_path_is_file(files->vocab_json);
}

/* The folder of the tokenizer; of an adapter without one its base's. */
static mc_status find_files(mc_context *ctx, const char *identifier, mc_hub_request *request,
                            const char *base, char folder[MC_PATH_MAX], folder_files *files)
{
    char named[MC_PATH_MAX], adapter[MC_PATH_MAX];
    mc_error *err = &ctx->error;
    if (mc_hub_find(ctx, identifier, request, folder) || name_files(err, files, folder, NULL))
        return err->status;
    if (has_tokenizer(files) || !mc_hub_is_adapter(folder)) return MC_OK;
    request->revision = NULL;
    if (!base && mc_hub_adapter_base(err, folder, named)) return err->status;
    snprintf(adapter, sizeof adapter, "%s", folder);
    if (mc_hub_find(ctx, base ? base : named, request, folder)) {
        mc_hub_say_base(err, adapter, base);
        return err->status;
    }
    return name_files(err, files, folder, NULL);
}

/* With the files that were found, or that lie in memory. */
static mc_tokenizer *open_files(mc_context *ctx, const folder_files *files, const char *folder,
                                const mc_inside *inside, const mc_tokenizer_options *options)
{
    mc_error *err = &ctx->error;
    mc_tokenizer *tok = mc_tokenizer_new(ctx);
    if (!tok) return NULL;
    tok->inside = inside;
    bool good = load(tok, err, files, folder, options) == MC_OK &&
                check_options(tok, err, options) == MC_OK;
    tok->inside = NULL;
    if (good) return tok;
    mc_tokenizer_free(tok);
    return NULL;
}

static mc_tokenizer *open_gguf(mc_context *ctx, const char *path,
                               const mc_tokenizer_options *options)
{
    folder_files files;
    mc_inside inside = {.count = 0};
    mc_tokenizer *tok = NULL;
    mc_error *err = &ctx->error;
    if (mc_gguf_read_tokens_of(err, path, &inside) == MC_OK &&
        name_files(err, &files, path, &inside) == MC_OK)
        tok = open_files(ctx, &files, path, &inside, options);
    mc_inside_release(&inside);
    if (!tok) mc_error_while(err, "opening the tokenizer in a GGUF file");
    return tok;
}

mc_tokenizer *mc_tokenizer_open(mc_context *ctx, const char *identifier,
                                const mc_tokenizer_options *options)
{
    char folder[MC_PATH_MAX];
    folder_files files;
    mc_hub_request request = {.needs = {.kind = MC_HUB_TOKENIZER},
                              .revision = options ? options->revision : NULL,
                              .cache_dir = options ? options->cache_dir : NULL,
                              .local_files_only = options && options->local_files_only};
    if (mc_failed(ctx)) return NULL;
    if (identifier && mc_gguf_path_is(identifier)) return open_gguf(ctx, identifier, options);
    mc_error *err = &ctx->error;
    if (find_files(ctx, identifier, &request, options ? options->base : NULL, folder, &files)) {
        mc_error_while(err, "opening a tokenizer");
        return NULL;
    }
    mc_tokenizer *tok = open_files(ctx, &files, folder, NULL, options);
    if (tok) return tok;
    mc_hub_say_hidden(err, identifier, &request.needs);
    mc_error_while(err, "opening the tokenizer \"%s\"", identifier);
    return NULL;
}

mc_tokenizer *mc_tokenizer_from_pretrained(mc_context *ctx, const char *identifier)
{
    return mc_tokenizer_open(ctx, identifier, NULL);
}
