/* The tokenizer that training byte-level BPE makes. */
#include <string.h>
#include "tokenizers/train/train_internal.h"

static const char trained[] = "the tokenizer that was trained";

static mc_status no_memory(mc_error *err)
{
    return mc_error_set(err, MC_ERR_NOMEM, "training a tokenizer: out of memory for it");
}

static mc_status add_entries(mc_tokenizer *tok, mc_error *err, const mc_trained_bpe *bpe)
{
    for (size_t i = 0; i < bpe->tokens.count; i++) {
        const char *text = (const char *)mc_text_set_get(&bpe->tokens, i);
        if (!mc_grow(&tok->entries, &tok->entry_capacity, tok->entry_count, sizeof *tok->entries) ||
            !mc_tokenizer_store(tok, text, bpe->tokens.texts[i].length,
                                &tok->entries[tok->entry_count]))
            return no_memory(err);
        tok->entry_count++;
    }
    return mc_tokenizer_index(tok, err, trained, false);
}

static mc_status add_merges(mc_tokenizer *tok, mc_error *err, const mc_trained_bpe *bpe)
{
    for (size_t i = 0; i < bpe->merge_count; i++) {
        const mc_trained_merge *m = &bpe->merges[i];
        if (!mc_grow(&tok->bpe.merges, &tok->bpe.merge_capacity, i, sizeof *tok->bpe.merges))
            return no_memory(err);
        tok->bpe.merges[i] = (mc_bpe_merge){
            .left = m->left, .right = m->right, .result = m->result, .number = (uint32_t)i + 1};
        tok->bpe.merge_count++;
    }
    return mc_bpe_index_merges(tok, err, trained, true);
}

/* Adds a special token, and gives it the roles that its text has in GPT-2 and RoBERTa. */
static mc_status add_special(mc_tokenizer *tok, mc_error *err, const char *text)
{
    const struct {
        const char *text;
        char **names[2];
    } roles[] = {{"<|endoftext|>", {&tok->bos_token, &tok->eos_token}},
                 {"<s>", {&tok->bos_token, &tok->cls_token}},
                 {"</s>", {&tok->eos_token, &tok->sep_token}},
                 {"<pad>", {&tok->pad_token}},
                 {"<unk>", {&tok->unk_token}},
                 {"<mask>", {&tok->mask_token}}};
    mc_added_token token = {.named_id = -1, .special = true};
    if (!mc_tokenizer_store(tok, text, strlen(text), &token.entry) ||
        !mc_tokenizer_add(tok, &token))
        return no_memory(err);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        for (int n = 0; n < 2 && roles[i].names[n]; n++)
            if (strcmp(text, roles[i].text) == 0 &&
                !mc_tokenizer_set_string(roles[i].names[n], text))
                return no_memory(err);
    return MC_OK;
}

static mc_status fill(mc_tokenizer *tok, mc_error *err, const mc_trained_bpe *bpe,
                      const char *const *specials)
{
    tok->kind = MC_TOKENIZER_BYTE_BPE;
    tok->has_normalizer = false;
    tok->has_templates = true; /* nothing is put around a text */
    tok->single = tok->pair = (mc_template){.type_b = 1};
    if (add_entries(tok, err, bpe) || add_merges(tok, err, bpe)) return err->status;
    for (; *specials; specials++)
        if (add_special(tok, err, *specials)) return err->status;
    return mc_tokenizer_finish(tok, err, trained, false);
}

static mc_status save(mc_context *ctx, const char *folder, const mc_trained_bpe *bpe,
                      const char *const *specials)
{
    mc_tokenizer *tok = mc_tokenizer_new(ctx);
    if (!tok) return mc_error_status(ctx);
    mc_status status = fill(tok, &ctx->error, bpe, specials);
    if (!status) status = mc_tokenizer_save(tok, folder);
    mc_tokenizer_free(tok);
    return status;
}

static mc_status check_specials(mc_error *err, const char *const *specials, size_t vocab_size)
{
    size_t count = 0;
    for (; specials[count]; count++) {
        if (!*specials[count])
            return mc_error_set(err, MC_ERR_ARGUMENT,
                                "training a tokenizer: special token %zu is empty", count + 1);
        for (size_t i = 0; i < count; i++)
            if (strcmp(specials[i], specials[count]) == 0)
                return mc_error_set(err, MC_ERR_ARGUMENT,
                                    "training a tokenizer: special token \"%s\" is given twice",
                                    specials[i]);
    }
    if (vocab_size >= count + 256) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT,
                        "training a tokenizer: vocab_size %zu, expected at least %zu, for 256 "
                        "bytes and %zu special tokens",
                        vocab_size, count + 256, count);
}

mc_status mc_tokenizer_train_bytes(mc_context *ctx, const char *const *inputs, int count,
                                   const char *folder, const mc_train_tokenizer_options *options,
                                   size_t vocab_size)
{
    static const char *const usual[] = {"<|endoftext|>", NULL};
    const char *const *specials = options->special_tokens ? options->special_tokens : usual;
    int64_t least = options->min_frequency ? options->min_frequency : 2;
    mc_error *err = &ctx->error;
    mc_word_counts counts = {0};
    mc_trained_bpe bpe = {0};
    mc_status status = check_specials(err, specials, vocab_size);
    for (int i = 0; i < count && !status; i++) status = mc_count_words(err, &counts, inputs[i]);
    if (!status) status = mc_train_bpe(err, &counts, specials, vocab_size, least, &bpe);
    if (!status) status = save(ctx, folder, &bpe, specials);
    mc_word_counts_release(&counts);
    mc_trained_bpe_release(&bpe);
    return status;
}
