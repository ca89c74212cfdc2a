/* A folder with a SentencePiece model: the model, and what tokenizer_config.json adds to it. */
#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "tokenizers/files/parts_internal.h"
#include "tokenizers/unigram/sentencepiece_internal.h"
#include "tokenizers/files/settings_internal.h"

enum { T5_SENTINELS = 100, SENTINELS_MAX = 100000 };

/* T5's tokenizers end texts with </s> and have sentinels after the vocabulary. */
typedef struct conventions {
    bool t5, bos, eos;
    bool glm;          /* GLMChineseTokenizer: [CLS] and the end around a text */
    int64_t sentinels; /* -1: as many as the family has */
} conventions;

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the tokenizer", path);
}

bool mc_unigram_has_model_ids(const mc_tokenizer *tok)
{
    mc_tokenizer_class class = mc_settings_class(tok);
    return class == MC_CLASS_T5 || class == MC_CLASS_GENERIC || class == MC_CLASS_NONE;
}

enum { SENTINEL_SIZE = 40 };

static void sentinel_name(char name[SENTINEL_SIZE], int64_t number)
{
    snprintf(name, SENTINEL_SIZE, "<extra_id_%lld>", (long long)number);
}

static int64_t find_entry(const mc_tokenizer *tok, const char *text)
{
    for (size_t id = 0; id < tok->entry_count; id++)
        if (strcmp(mc_tokenizer_text(tok, tok->entries[id]), text) == 0) return (int64_t)id;
    return -1;
}

static bool has_own_sentinels(const mc_tokenizer *tok)
{
    return find_entry(tok, "<extra_id_0>") >= 0 ||
           find_entry(tok, MC_SPACE_SYMBOL "<extra_id_0>") >= 0;
}

/* A piece of score 0 after the others. */
static mc_status append_piece(mc_tokenizer *tok, mc_error *err, const char *path, const char *text)
{
    mc_unigram *u = &tok->unigram;
    u->types[tok->entry_count] = u->by_library || u->bpe ? MC_PIECE_UNUSED : MC_PIECE_NORMAL;
    if (!mc_grow(&tok->entries, &tok->entry_capacity, tok->entry_count, sizeof *tok->entries) ||
        !mc_tokenizer_store(tok, text, strlen(text), &tok->entries[tok->entry_count]))
        return no_memory(err, path);
    tok->entry_count++;
    return MC_OK;
}

/* The tokens that GLM has after its pieces, by ModelCenter's names for those that it uses. The
 * released vocabulary's are 50000 to 50008. */
static mc_status append_glm(mc_tokenizer *tok, mc_error *err, const char *path)
{
    static const char *const names[] = {"<|endoftext|>", "[SEP]",      "[CLS]",
                                        "<unused_3>",    "<unused_4>", "<unused_5>",
                                        "[S]",           "[E]",        "[MASK]"};
    enum { NAMES = sizeof names / sizeof *names };
    if (mc_unigram_reserve(&tok->unigram, err, path, tok->entry_count + NAMES)) return err->status;
    for (int i = 0; i < NAMES; i++)
        if (append_piece(tok, err, path, names[i])) return err->status;
    return MC_OK;
}

static bool is_glm(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, mc_model_names[MC_MODEL_OF_GLM]) == 0;
}

/* How many ids there are with those that files name for added tokens; 0 with an error. */
static size_t count_named(const mc_tokenizer *tok, mc_error *err, const char *path)
{
    enum { MOST = 1000 }; /* ids after the pieces */
    size_t count = tok->entry_count;
    for (size_t i = 0; i < tok->added_count; i++) {
        const mc_added_token *added = &tok->added[i];
        if (added->named_id >= (int64_t)(tok->entry_count + MOST)) {
            mc_error_set(err, MC_ERR_FORMAT,
                         "%s: \"%.80s\": id %d, expected one of the %d after the %zu pieces",
                         added->named_in ? added->named_in : path,
                         mc_tokenizer_text(tok, added->entry), added->named_id, MOST,
                         tok->entry_count);
            return 0;
        }
        if (added->named_id >= (int64_t)count) count = (size_t)added->named_id + 1;
    }
    return count;
}

/* Puts the added tokens of GLM's class at the ids that the files name, after the pieces; ids that
 * none of them has are unused. */
static mc_status append_named(mc_tokenizer *tok, mc_error *err, const char *path)
{
    const size_t pieces = tok->entry_count, count = count_named(tok, err, path);
    char unused[32];
    if (!count || mc_unigram_reserve(&tok->unigram, err, path, count)) return err->status;
    for (size_t i = 0; i < tok->added_count; i++) { /* in the order of their ids */
        const mc_added_token *added = &tok->added[i];
        if (added->named_id < (int64_t)tok->entry_count) continue; /* a piece has it */
        while (tok->entry_count < (size_t)added->named_id) {
            snprintf(unused, sizeof unused, "<unused_%zu>", tok->entry_count - pieces);
            if (append_piece(tok, err, path, unused)) return err->status;
        }
        char *text = mc_strdup(mc_tokenizer_text(tok, added->entry)); /* the store may move */
        mc_status status = text ? append_piece(tok, err, path, text) : no_memory(err, path);
        mc_free(text);
        if (status) return status;
    }
    return MC_OK;
}

/* Puts sentinels after the pieces, the last one first, as pieces of score 0, before any other added
 * token gets its id. Of a piece that has the text of a sentinel already the later one counts. */
static mc_status append_sentinels(mc_tokenizer *tok, mc_error *err, const char *path,
                                  int64_t sentinels, bool own)
{
    mc_unigram *u = &tok->unigram;
    if (!sentinels) return MC_OK;
    if (mc_unigram_reserve(u, err, path, tok->entry_count + (size_t)sentinels)) return err->status;
    for (int64_t k = sentinels - 1; k >= 0; k--) {
        char text[SENTINEL_SIZE];
        sentinel_name(text, k);
        int64_t same = own ? find_entry(tok, text) : -1;
        if (same >= 0) {
            tok->entries[same].length = 0;
            u->types[same] = MC_PIECE_UNUSED;
        }
        if (append_piece(tok, err, path, text)) return err->status;
    }
    return MC_OK;
}

/* Adds the control pieces, the unknown one and the sentinels from id `first` on, where the
 * configuration has not. */
static mc_status add_specials(mc_tokenizer *tok, mc_error *err, const char *path, size_t first)
{
    size_t count = tok->entry_count;
    bool *there = mc_calloc(count, sizeof *there);
    mc_status status = there ? MC_OK : no_memory(err, path);
    for (size_t i = 0; i < tok->added_count && there; i++) {
        mc_entry entry = tok->added[i].entry;
        const char *text = mc_tokenizer_text(tok, entry);
        int32_t id = mc_trie_find(&tok->trie, (const uint8_t *)text, entry.length);
        if (id >= 0) there[id] = true;
    }
    for (size_t id = 0; id < count && !status; id++) {
        bool special = tok->unigram.types[id] == MC_PIECE_CONTROL ||
                       tok->unigram.types[id] == MC_PIECE_UNKNOWN || id >= first;
        mc_added_token token = {.entry = tok->entries[id],
                                .named_id = -1,
                                .special = true,
                                .lstrip = tok->unigram.fairseq && id + 1 == count};
        if (special && !there[id] && !mc_tokenizer_add(tok, &token)) status = no_memory(err, path);
    }
    mc_free(there);
    return status;
}

/* The settings, once the model's own names have been read. */
static mc_status read_settings(mc_tokenizer *tok, mc_error *err, const char *path, conventions *c)
{
    const mc_settings *s = tok->settings;
    if (!s) return MC_OK;
    bool legacy = s->class != MC_CLASS_LLAMA; /* as that class takes it to be */
    bool fairseq = MC_CLASSES_FAIRSEQ & MC_CLASSES(s->class);
    if (mc_settings_expect_class(tok, err, "a SentencePiece model",
                                 MC_CLASSES(MC_CLASS_T5) | MC_CLASSES(MC_CLASS_LLAMA) |
                                     MC_CLASSES(MC_CLASS_GLM) | MC_CLASSES_FAIRSEQ) ||
        !mc_settings_flag(tok, err, "legacy", &legacy, NULL) ||
        !mc_json_get_int(err, s->config, s->config_path, "extra_ids", 0, SENTINELS_MAX,
                         &c->sentinels) ||
        !mc_settings_flag(tok, err, "add_bos_token", &c->bos, NULL) ||
        !mc_settings_flag(tok, err, "add_eos_token", &c->eos, NULL))
        return err->status;
    c->t5 = (c->t5 && !fairseq) || s->class == MC_CLASS_T5;
    c->glm = s->class == MC_CLASS_GLM;
    if (fairseq && mc_roberta_names(tok, err, path)) return err->status;
    tok->unigram.prefix_first = tok->unigram.bpe && !legacy;
    if (mc_settings_read_names(tok, err) || mc_settings_read_common(tok, err) ||
        (fairseq && mc_fairseq_number(tok, err, path)))
        return err->status;
    return mc_settings_add_listed(tok, err, true);
}

static mc_status put_special(const mc_tokenizer *tok, mc_error *err, const char *path,
                             const char *token, mc_template_special *list, int *count)
{
    int32_t id = mc_trie_find(&tok->trie, (const uint8_t *)token, strlen(token));
    if (id < 0)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: there is no piece \"%.80s\" to put around texts", path, token);
    list[(*count)++] = (mc_template_special){id, 0};
    return MC_OK;
}

static mc_status make_templates(mc_tokenizer *tok, mc_error *err, const char *path,
                                const conventions *c)
{
    mc_template *one = &tok->single, *two = &tok->pair;
    tok->has_templates = !tok->unigram.fairseq;
    tok->roberta_templates = tok->unigram.fairseq;
    if (tok->unigram.fairseq) return MC_OK;
    *one = *two = (mc_template){.type_b = 0};
    if (c->glm && (put_special(tok, err, path, tok->cls_token, one->prefix, &one->prefix_count) ||
                   put_special(tok, err, path, tok->cls_token, two->prefix, &two->prefix_count)))
        return err->status;
    if (c->bos && (put_special(tok, err, path, tok->bos_token, one->prefix, &one->prefix_count) ||
                   put_special(tok, err, path, tok->bos_token, two->prefix, &two->prefix_count)))
        return err->status;
    if (c->eos && (put_special(tok, err, path, tok->eos_token, one->suffix, &one->suffix_count) ||
                   put_special(tok, err, path, tok->eos_token, two->middle, &two->middle_count) ||
                   put_special(tok, err, path, tok->eos_token, two->suffix, &two->suffix_count)))
        return err->status;
    return MC_OK;
}

/* BPE is merged here where the model's pieces say all, else by the SentencePiece library. */
static mc_status make_merges(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_unigram *u = &tok->unigram;
    mc_bpe *bpe = &tok->bpe;
    bool possible = false;
    if (!u->bpe) return MC_OK;
    bpe->has_unk = bpe->fuse_unk = true;
    bpe->unk_id = u->unk_id;
    bpe->byte_fallback = u->byte_fallback;
    if (!u->whitespace_as_suffix && mc_bpe_merges_of_pieces(tok, err, path, &possible))
        return err->status;
    if (possible) return MC_OK;
    u->by_library = true;
    u->library = mc_sentencepiece_new(err, path, u->source, u->source_size);
    return err->status;
}

mc_status mc_unigram_load_model(mc_tokenizer *tok, mc_error *err, const char *path,
                                const char *bytes, size_t size, bool t5, int64_t sentinels)
{
    conventions c = {.t5 = t5, .sentinels = sentinels};
    if (mc_unigram_read_model(tok, err, path, bytes, size)) return err->status;
    if (read_settings(tok, err, path, &c)) return err->status;
    bool own = has_own_sentinels(tok), listed = mc_settings_list_extra(tok);
    size_t pieces = tok->entry_count;
    if (c.sentinels < 0) c.sentinels = c.t5 && !own ? T5_SENTINELS : 0;
    c.bos = c.bos && !c.glm;
    c.eos = c.eos || c.t5 || c.glm;
    tok->unigram.t5 = c.t5;
    tok->unigram.sentinels = c.sentinels;
    if (append_sentinels(tok, err, path, c.sentinels, own) ||
        (is_glm(path) && append_glm(tok, err, path)) || (c.glm && append_named(tok, err, path)) ||
        mc_tokenizer_index(tok, err, path, false) || make_merges(tok, err, path) ||
        add_specials(tok, err, path, listed ? tok->entry_count : pieces) ||
        mc_settings_add_specials(tok, err) || make_templates(tok, err, path, &c))
        return err->status;
    for (size_t i = 0; i < tok->added_count; i++)
        tok->added[i].normalized = false; /* SentencePiece's normal form is of whole texts */
    return mc_tokenizer_finish(tok, err, path, false);
}
