#include <string.h>
#include "core/hub/find_internal.h"
#include "tokenizers/keys_internal.h"
#include "tokenizers/open_internal.h"

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

/* Hugging Face drops white space at the end of a line; what is left of white space alone is an
 * entry of no characters, as bert-base-chinese has one. */
static mc_status read_line(mc_tokenizer *tok, mc_error *err, const char *path, int line,
                           const char *text, size_t length)
{
    if (line > MC_TOKENS_MAX)
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%d: more than %d entries", path, line,
                            MC_TOKENS_MAX);
    if (length && text[length - 1] == '\r') length--;
    if (!length) return mc_error_set(err, MC_ERR_FORMAT, "%s:%d: empty entry", path, line);
    length = mc_length_without_space(text, length);
    if (memchr(text, '\0', length) || memchr(text, '\r', length))
        return mc_error_set(err, MC_ERR_FORMAT, "%s:%d: entry holds a NUL or a carriage return",
                            path, line);
    if (!length && tok->has_empty)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s:%d: white space alone, as line %zu is: a second empty entry", path,
                            line, tok->empty_id + 1);
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

/* The special tokens that a bare vocabulary has: those of BERT's five names that it holds. */
static mc_status add_bert_specials(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const char *names[] = {tok->unk_token, tok->sep_token, tok->pad_token, tok->cls_token,
                           tok->mask_token};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        mc_added_token token = {.named_id = -1, .special = true};
        bool there = false;
        for (size_t i = 0; i < tok->added_count && !there; i++)
            there = strcmp(mc_tokenizer_text(tok, tok->added[i].entry), names[n]) == 0;
        for (size_t i = 0; i < tok->entry_count && !there; i++) {
            if (strcmp(mc_tokenizer_text(tok, tok->entries[i]), names[n]) != 0) continue;
            token.entry = tok->entries[i];
            if (!mc_tokenizer_add(tok, &token))
                return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the vocabulary",
                                    path);
            break;
        }
    }
    return MC_OK;
}

mc_status mc_tokenizer_load_vocab(mc_tokenizer *tok, mc_error *err, const char *path,
                                  const char *text, size_t size, mc_lowercase lowercase)
{
    mc_status status = read_lines(tok, err, path, text, size);
    if (status) return status;
    if (mc_cpm_is(tok)) return mc_cpm_load(tok, err, path);
    bool lower = lowercase ? lowercase == MC_LOWERCASE_YES : !mc_tokenizer_looks_cased(tok);
    tok->normalizer_options.lowercase = lower;
    status = add_bert_specials(tok, err, path);
    return status ? status : mc_tokenizer_finish(tok, err, path, true);
}

mc_status mc_tokenizer_load_json(mc_tokenizer *tok, mc_error *err, const char *path,
                                 const char *text, size_t size, mc_lowercase lowercase)
{
    mc_status status = mc_tokenizer_read_json(tok, err, path, text, size);
    if (lowercase) tok->normalizer_options.lowercase = lowercase == MC_LOWERCASE_YES;
    return status ? status : mc_tokenizer_finish(tok, err, path, false);
}

typedef struct folder_files {
    char vocab[MC_PATH_MAX], json[MC_PATH_MAX];
    char model[MC_PATH_MAX]; /* SentencePiece's, by the name that is there; "": none */
    bool t5;                 /* it has the name that T5's has */
    mc_bpe_files bpe;        /* its config is that of all kinds */
} folder_files;

const char *const mc_model_names[MC_MODEL_NAMES] = {"spiece.model", "sentencepiece.bpe.model",
                                                    "sentencepiece.model", "tokenizer.model"};

static mc_status find_model(mc_error *err, folder_files *files, const char *folder)
{
    for (size_t i = 0; i < MC_MODEL_NAMES; i++) {
        if (mc_path_join(err, files->model, folder, mc_model_names[i])) return err->status;
        files->t5 = i == 0;
        if (mc_path_is_file(files->model)) return MC_OK;
    }
    files->model[0] = 0;
    return MC_OK;
}

static mc_status name_files(mc_error *err, folder_files *files, const char *folder)
{
    const struct {
        char *path;
        const char *name;
    } all[] = {{files->vocab, "vocab.txt"},
               {files->json, "tokenizer.json"},
               {files->bpe.vocab, "vocab.json"},
               {files->bpe.merges, "merges.txt"},
               {files->bpe.config, "tokenizer_config.json"},
               {files->bpe.specials, "special_tokens_map.json"},
               {files->bpe.added, "added_tokens.json"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (mc_path_join(err, all[i].path, folder, all[i].name)) return err->status;
    return find_model(err, files, folder);
}

static mc_status read_config(mc_tokenizer *tok, mc_error *err, const char *path, bool all,
                             mc_lowercase *lowercase)
{
    size_t size;
    if (!mc_path_is_file(path)) return MC_OK;
    char *text = mc_file_read(err, path, MC_TOKENIZER_FILE_MAX, &size);
    if (!text) return err->status;
    mc_status status = mc_tokenizer_read_config(tok, err, path, text, size, all, lowercase);
    mc_free(text);
    return status;
}

static mc_status load_model(mc_tokenizer *tok, mc_error *err, const folder_files *files)
{
    size_t size;
    char *bytes = mc_file_read(err, files->model, MC_TOKENIZER_FILE_MAX, &size);
    if (!bytes) return err->status;
    mc_status status = mc_unigram_load_model(tok, err, files->model, files->bpe.config, bytes, size,
                                             files->t5, -1);
    mc_free(bytes);
    return status;
}

/* Whether the .model counts: always, but where a tokenizer.json is there and the class is one that
 * numbers pieces otherwise (XLM-R's). */
static mc_status choose_model(mc_error *err, const folder_files *files, bool *model)
{
    bool known = true;
    *model = files->model[0] != 0;
    if (!*model || !mc_path_is_file(files->json)) return MC_OK;
    if (mc_unigram_check_class(err, files->bpe.config, &known)) return err->status;
    *model = known;
    return MC_OK;
}

/* Looks at the keys of a configuration file, which need not be there. */
static mc_status check_keys(const mc_tokenizer *tok, mc_error *err, const char *path,
                            const mc_key_table *table)
{
    if (!mc_path_is_file(path)) return MC_OK;
    cJSON *root = mc_json_read_object(err, path, MC_TOKENIZER_FILE_MAX);
    if (root) mc_keys_check(tok->ctx, err, path, root, table);
    cJSON_Delete(root);
    return err->status;
}

static mc_status load(mc_tokenizer *tok, mc_error *err, const folder_files *files,
                      const char *folder, const mc_tokenizer_options *options)
{
    bool json = mc_path_is_file(files->json);
    const char *path = json ? files->json : files->vocab;
    mc_lowercase asked = options ? options->lowercase : MC_LOWERCASE_DEFAULT, lowercase = asked;
    size_t size;
    bool model;
    if (check_keys(tok, err, files->bpe.config, &mc_keys_tokenizer_config) ||
        check_keys(tok, err, files->bpe.specials, &mc_keys_special_tokens_map) ||
        choose_model(err, files, &model))
        return err->status;
    if (model) return load_model(tok, err, files);
    if (!json && !mc_path_is_file(path) && mc_path_is_file(files->bpe.vocab))
        return mc_bpe_load_files(tok, err, &files->bpe);
    if (!json && !mc_path_is_file(path))
        return mc_error_set(err, MC_ERR_NOT_FOUND,
                            "%s: holds neither tokenizer.json nor vocab.txt, vocab.json or "
                            "spiece.model",
                            folder);
    /* a tokenizer.json has all settings itself, but does not say which token pads */
    if (read_config(tok, err, files->bpe.config, !json, &lowercase)) return err->status;
    if (json || asked) lowercase = asked;
    char *text = mc_file_read(err, path, MC_TOKENIZER_FILE_MAX, &size);
    if (!text) return err->status;
    mc_status status = json ? mc_tokenizer_load_json(tok, err, path, text, size, lowercase)
                            : mc_tokenizer_load_vocab(tok, err, path, text, size, lowercase);
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
           mc_path_is_file(files->bpe.vocab);
}

/* The folder of the tokenizer; of an adapter without one its base's. */
static mc_status find_files(mc_context *ctx, const char *identifier, mc_hub_request *request,
                            const char *base, char folder[MC_PATH_MAX], folder_files *files)
{
    char named[MC_PATH_MAX];
    mc_error *err = &ctx->error;
    if (mc_hub_find(ctx, identifier, request, folder) || name_files(err, files, folder))
        return err->status;
    if (has_tokenizer(files) || !mc_hub_is_adapter(folder)) return MC_OK;
    request->revision = NULL;
    if (!base && mc_hub_adapter_base(err, folder, named)) return err->status;
    if (mc_hub_find(ctx, base ? base : named, request, folder)) return err->status;
    return name_files(err, files, folder);
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
    mc_error *err = &ctx->error;
    if (find_files(ctx, identifier, &request, options ? options->base : NULL, folder, &files)) {
        mc_error_while(err, "opening a tokenizer");
        return NULL;
    }
    mc_tokenizer *tok = mc_tokenizer_new(ctx);
    if (!tok || (load(tok, err, &files, folder, options) == MC_OK &&
                 check_options(tok, err, options) == MC_OK))
        return tok;
    mc_error_while(err, "opening the tokenizer \"%s\"", identifier);
    mc_tokenizer_free(tok);
    return NULL;
}

mc_tokenizer *mc_tokenizer_from_pretrained(mc_context *ctx, const char *identifier)
{
    return mc_tokenizer_open(ctx, identifier, NULL);
}
