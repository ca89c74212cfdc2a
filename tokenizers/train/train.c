#include "tokenizers/train.h"

#include <stdio.h>
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/unigram/sentencepiece_internal.h"
#include "tokenizers/train/train_internal.h"

enum { DEFAULT_SIZE = 8000, SMALLEST = 4, SENTINELS_MAX = 100000, LINE_MAX_SIZE = 1 << 20 };

/* The name of an option that has a value it can't have, or NULL. */
static const char *out_of_range(const mc_train_tokenizer_options *o)
{
    return o->type < MC_TOKENIZER_TYPE_UNIGRAM || o->type > MC_TOKENIZER_TYPE_BYTE_BPE ? "type"
           : o->vocab_size < 0 || o->vocab_size > MC_TOKENS_MAX ? "vocab_size"
           : o->sentinels < 0 || o->sentinels > SENTINELS_MAX   ? "sentinels"
           : o->character_coverage != 0 &&
                   !(o->character_coverage >= 0.98 && o->character_coverage <= 1)
               ? "character_coverage"
           : o->threads < 0 || o->threads > 1024 ? "threads"
           : o->max_lines < 0                    ? "max_lines"
           : o->min_frequency < 0                ? "min_frequency"
                                                 : NULL;
}

/* The name of an option that the type does not have, or NULL. */
static const char *of_another_type(const mc_train_tokenizer_options *o)
{
    if (o->type != MC_TOKENIZER_TYPE_BYTE_BPE)
        return o->min_frequency ? "min_frequency" : o->special_tokens ? "special_tokens" : NULL;
    return o->sentinels            ? "sentinels"
           : o->character_coverage ? "character_coverage"
           : o->byte_fallback      ? "byte_fallback"
           : o->lowercase          ? "lowercase"
           : o->threads > 1        ? "threads"
           : o->max_lines          ? "max_lines"
                                   : NULL;
}

static mc_status check_options(mc_error *err, const mc_train_tokenizer_options *o)
{
    const char *wrong = out_of_range(o);
    if (wrong)
        return mc_error_set(err, MC_ERR_ARGUMENT, "training a tokenizer: %s is out of range",
                            wrong);
    wrong = of_another_type(o);
    if (wrong)
        return mc_error_set(err, MC_ERR_ARGUMENT, "training a tokenizer: %s is an option of %s",
                            wrong,
                            o->type == MC_TOKENIZER_TYPE_BYTE_BPE ? "unigram and bpe alone"
                                                                  : "byte-level BPE alone");
    if (o->vocab_size && o->vocab_size - o->sentinels < SMALLEST)
        return mc_error_set(err, MC_ERR_ARGUMENT,
                            "training a tokenizer: vocab_size %d leaves no room for pieces beside "
                            "%d sentinels and three special tokens",
                            o->vocab_size, o->sentinels);
    return MC_OK;
}

static mc_status check_inputs(mc_error *err, const char *const *inputs, int count)
{
    if (!inputs || count < 1)
        return mc_error_set(err, MC_ERR_ARGUMENT, "training a tokenizer: no input");
    for (int i = 0; i < count; i++)
        if (!inputs[i] || !mc_path_is_file(inputs[i]))
            return mc_error_set(err, MC_ERR_NOT_FOUND, "training a tokenizer: %s is no file",
                                inputs[i] ? inputs[i] : "NULL");
    return MC_OK;
}

static mc_status train(mc_error *err, const char *const *inputs, int count,
                       const mc_train_tokenizer_options *o, char **model, size_t *size)
{
    char vocab_size[16], coverage[32], threads[16], lines[24], longest[16];
    int pieces = (o->vocab_size ? o->vocab_size : DEFAULT_SIZE) - o->sentinels;
    snprintf(vocab_size, sizeof vocab_size, "%d", pieces);
    snprintf(threads, sizeof threads, "%d", o->threads ? o->threads : 1);
    snprintf(lines, sizeof lines, "%lld", (long long)o->max_lines);
    snprintf(longest, sizeof longest, "%d", LINE_MAX_SIZE);
    /* by hand: the decimal point of a locale is not always one */
    int share = (int)((o->character_coverage > 0 ? o->character_coverage : 0.9995) * 1e6 + 0.5);
    snprintf(coverage, sizeof coverage, "%d.%06d", share / 1000000, share % 1000000);
    const char *options[] = {"model_type",
                             o->type == MC_TOKENIZER_TYPE_BPE ? "bpe" : "unigram",
                             "vocab_size",
                             vocab_size,
                             "pad_id",
                             "0",
                             "eos_id",
                             "1",
                             "unk_id",
                             "2",
                             "bos_id",
                             "-1",
                             "character_coverage",
                             coverage,
                             "byte_fallback",
                             o->byte_fallback ? "true" : "false",
                             "normalization_rule_name",
                             o->lowercase ? "nmt_nfkc_cf" : "nmt_nfkc",
                             "num_threads",
                             threads,
                             "input_sentence_size",
                             lines,
                             "max_sentence_length",
                             longest,
                             NULL};
    return mc_sentencepiece_train(err, inputs, (size_t)count, options, model, size);
}

static mc_status save(mc_context *ctx, const char *folder, const char *model, size_t size,
                      int sentinels)
{
    mc_tokenizer *tok = mc_tokenizer_new(ctx);
    if (!tok) return mc_error_status(ctx);
    mc_status status = mc_unigram_load_model(tok, &ctx->error, "the model that was trained", model,
                                             size, true, sentinels);
    if (!status) status = mc_tokenizer_save(tok, folder);
    mc_tokenizer_free(tok);
    return status;
}

mc_status mc_tokenizer_train(mc_context *ctx, const char *const *inputs, int count,
                             const char *folder, const mc_train_tokenizer_options *options)
{
    static const mc_train_tokenizer_options defaults = {0};
    char *model = NULL;
    size_t size = 0;
    if (!options) options = &defaults;
    if (mc_failed(ctx) || mc_rank(ctx)) return mc_error_status(ctx);
    mc_error *err = &ctx->error;
    if (!folder) return mc_error_set(err, MC_ERR_ARGUMENT, "no folder to save a tokenizer to");
    if (check_options(err, options) || check_inputs(err, inputs, count)) return err->status;
    if (options->type == MC_TOKENIZER_TYPE_BYTE_BPE)
        return mc_tokenizer_train_bytes(
            ctx, inputs, count, folder, options,
            (size_t)(options->vocab_size ? options->vocab_size : DEFAULT_SIZE));
    if (!train(err, inputs, count, options, &model, &size))
        save(ctx, folder, model, size, options->sentinels);
    mc_free(model);
    return err->status;
}
