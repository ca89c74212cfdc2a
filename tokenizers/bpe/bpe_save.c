#include <string.h>
#include "tokenizers/files/save_internal.h"

static void write_entries(const mc_tokenizer *tok, mc_file_writer *w, const char *between)
{
    mc_save_text(w, "{");
    for (size_t i = 0; i < tok->entry_count; i++) {
        mc_save_text(w, i ? "," : "");
        mc_save_text(w, between);
        mc_save_string(w, mc_tokenizer_text(tok, tok->entries[i]));
        mc_save_format(w, ": %zu", i);
    }
    mc_save_text(w, "}");
}

static void write_vocab(const mc_tokenizer *tok, mc_file_writer *w)
{
    write_entries(tok, w, "\n");
    mc_save_text(w, "\n");
}

static const char *text_of(const mc_tokenizer *tok, int32_t id)
{
    return mc_tokenizer_text(tok, tok->entries[id]);
}

static void write_merges(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, "#version: 0.2\n");
    for (size_t i = 0; i < tok->bpe.merge_count; i++) {
        mc_save_text(w, text_of(tok, tok->bpe.merges[i].left));
        mc_save_text(w, " ");
        mc_save_text(w, text_of(tok, tok->bpe.merges[i].right));
        mc_save_text(w, "\n");
    }
}

static void write_model(const mc_tokenizer *tok, mc_file_writer *w)
{
    mc_save_text(w, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    if (tok->bpe.has_unk)
        mc_save_string(w, tok->unk_token);
    else
        mc_save_text(w, "null");
    mc_save_format(w,
                   ", \"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", "
                   "\"fuse_unk\": %s, \"byte_fallback\": false, \"ignore_merges\": %s,\n",
                   mc_save_bool(tok->bpe.fuse_unk), mc_save_bool(tok->bpe.whole_words));
    mc_save_text(w, "  \"vocab\": ");
    write_entries(tok, w, "\n    ");
    mc_save_text(w, ",\n  \"merges\": [");
    for (size_t i = 0; i < tok->bpe.merge_count; i++) {
        mc_save_text(w, i ? ",\n    [" : "\n    [");
        mc_save_string(w, text_of(tok, tok->bpe.merges[i].left));
        mc_save_text(w, ", ");
        mc_save_string(w, text_of(tok, tok->bpe.merges[i].right));
        mc_save_text(w, "]");
    }
    mc_save_text(w, "]}\n");
}

static void write_json(const mc_tokenizer *tok, mc_file_writer *w)
{
    const char *spaced = mc_save_bool(tok->bpe.add_prefix_space);
    mc_save_text(w, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    mc_save_added(tok, w);
    mc_save_normalizer(tok, w, NULL);
    if (tok->bpe.cuts_json) {
        mc_save_text(w, "  \"pre_tokenizer\": ");
        mc_save_text(w, tok->bpe.cuts_json);
        mc_save_text(w, ",\n");
    } else {
        mc_save_format(w,
                       "  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": %s, "
                       "\"trim_offsets\": true, \"use_regex\": true},\n",
                       spaced);
    }
    mc_save_post_processor(tok, w);
    mc_save_text(w, "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
                    "\"trim_offsets\": true, \"use_regex\": true},\n");
    write_model(tok, w);
    mc_save_text(w, "}\n");
}

/* A tokenizer that puts tokens around texts is none of GPT-2's class, which has its own way. */
static bool is_plain_gpt2(const mc_tokenizer *tok)
{
    const mc_template *one = &tok->single, *two = &tok->pair;
    return !tok->bpe.has_unk && !tok->bpe.cuts_json && !tok->bpe.whole_words &&
           one->prefix_count + one->suffix_count == 0 &&
           two->prefix_count + two->middle_count + two->suffix_count == 0;
}

static void write_config(const mc_tokenizer *tok, mc_file_writer *w)
{
    cJSON *config = mc_save_config_begin(tok);
    mc_save_config_set(config, "add_prefix_space", cJSON_CreateBool(tok->bpe.add_prefix_space));
    mc_save_config_names(tok, config);
    mc_save_config_end(tok, w, config,
                       is_plain_gpt2(tok) ? "GPT2Tokenizer" : "PreTrainedTokenizerFast");
}

/* Whether a line of merges.txt can hold every merge. */
static bool merges_fit_lines(const mc_tokenizer *tok)
{
    for (size_t i = 0; i < tok->bpe.merge_count; i++) {
        const mc_bpe_merge *merge = &tok->bpe.merges[i];
        const char *left = text_of(tok, merge->left), *right = text_of(tok, merge->right);
        if (strpbrk(left, " \r\n") || strpbrk(right, " \r\n")) return false;
        if (strncmp(left, "#version", 8) == 0) return false; /* would be taken for the first line */
    }
    return true;
}

void mc_bpe_choose_files(const mc_tokenizer *tok, mc_save_file *files)
{
    enum { VOCAB, MERGES, JSON, CONFIG };
    /* a vocab.json has no normalizer, and its pre-tokenizer is GPT-2's */
    bool fit =
        merges_fit_lines(tok) && !tok->form_count && !tok->bpe.cuts_json && !tok->bpe.whole_words;
    files[VOCAB].write = fit ? write_vocab : NULL;
    files[MERGES].write = fit ? write_merges : NULL;
    files[JSON].write = write_json;
    files[CONFIG].write = write_config;
}
