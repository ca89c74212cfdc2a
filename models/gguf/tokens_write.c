#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "models/gguf/gguf_internal.h"
#include "tokenizers/gguf/tokens_internal.h"

#define KEY MC_GGUF_KEY
static const char phantom[] = MC_SPACE_SYMBOL; /* before each piece that begins a word */
static const float added_score = -1000;

/* ---- what all kinds have --------------------------------------------------------------------- */

typedef struct putting {
    mc_gguf_writer *w;
    mc_error *err;
    const mc_tokenizer *tok;
    const mc_model_shape *shape;
    int32_t count; /* of ids: the model's rows */
} putting;

static bool refuse(const putting *p, const char *what)
{
    mc_error_set(p->err, MC_ERR_UNSUPPORTED, "%s: has no GGUF form: %s", p->tok->path, what);
    return false;
}

static const mc_added_token *added_of(const putting *p, int32_t id)
{
    int32_t at = (size_t)id < p->tok->id_end ? p->tok->id_to_added[id] : -1;
    return at >= 0 ? &p->tok->added[at] : NULL;
}

/* The text of an id; `room` for those that only the model's padding has. */
static const char *text_of(const putting *p, int32_t id, char room[32])
{
    const char *text = mc_tokenizer_id_to_token(p->tok, id);
    if (text) return text;
    snprintf(room, 32, "[PAD%d]", id);
    return room;
}

static mc_piece_type type_of(const putting *p, int32_t id)
{
    const mc_added_token *added = added_of(p, id);
    if (added) return added->special ? MC_PIECE_CONTROL : MC_PIECE_USER_DEFINED;
    return mc_tokenizer_id_to_token(p->tok, id) ? MC_PIECE_NORMAL : MC_PIECE_UNUSED;
}

static int32_t id_of(const putting *p, const char *token)
{
    return token ? mc_tokenizer_token_to_id(p->tok, token) : -1;
}

static void put_id(const putting *p, const char *key, int32_t id)
{
    if (id >= 0) mc_gguf_put_u32(p->w, key, (uint32_t)id);
}

/* Writes the tokens at a text's ends: those that are named, or that are put there, or, so that
 * llama.cpp does not take others for them, the model's own. */
static bool put_ends(const putting *p, const char *bos, const char *eos)
{
    const mc_template *one = &p->tok->single;
    int32_t first = id_of(p, bos), last = id_of(p, eos);
    if (first < 0 && one->prefix_count) first = one->prefix[0].id;
    if (last < 0 && one->suffix_count) last = one->suffix[0].id;
    if (one->prefix_count > 1 || (one->prefix_count && one->prefix[0].id != first) ||
        one->suffix_count > 1 || (one->suffix_count && one->suffix[0].id != last))
        return refuse(p, "other tokens around a text than its first and its last");
    put_id(p, KEY("bos_token_id"), first >= 0 ? first : (int32_t)p->shape->bos_token);
    put_id(p, KEY("eos_token_id"), last >= 0 ? last : (int32_t)p->shape->eos_token);
    mc_gguf_put_bool(p->w, KEY("add_bos_token"), one->prefix_count > 0);
    mc_gguf_put_bool(p->w, KEY("add_eos_token"), one->suffix_count > 0);
    return true;
}

static bool put_common(const putting *p, const char *bos, const char *eos)
{
    put_id(p, KEY("unknown_token_id"), id_of(p, p->tok->unk_token));
    put_id(p, KEY("padding_token_id"), id_of(p, p->tok->pad_token));
    return put_ends(p, bos, eos);
}

static void put_encoder_ids(const putting *p)
{
    put_id(p, KEY("cls_token_id"), id_of(p, p->tok->cls_token));
    put_id(p, KEY("seperator_token_id"), id_of(p, p->tok->sep_token)); /* that is its spelling */
    put_id(p, KEY("mask_token_id"), id_of(p, p->tok->mask_token));
}

static void put_tokens(const putting *p)
{
    char room[32];
    mc_gguf_put_array(p->w, KEY("tokens"), MC_GGUF_STRING, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) {
        const char *text = text_of(p, i, room);
        mc_gguf_item_text(p->w, text, strlen(text));
    }
}

static void put_types(const putting *p, mc_piece_type (*type)(const putting *p, int32_t id))
{
    mc_gguf_put_array(p->w, KEY("token_type"), MC_GGUF_I32, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) mc_gguf_item_u32(p->w, type(p, i));
}

/* llama.cpp takes an added token as it stands, but for the one of id `mask`. */
static bool check_added(const putting *p, int32_t mask)
{
    for (size_t i = 0; i < p->tok->added_count; i++) {
        const mc_added_token *added = &p->tok->added[i];
        bool lstrip = added->lstrip && added->id != mask;
        if (lstrip || added->rstrip || added->single_word)
            return refuse(p, "a token that takes in spaces beside it, or stands alone");
    }
    return true;
}

/* ---- byte-level BPE -------------------------------------------------------------------------- */

/* NULL: llama.cpp has no name for it here. */
static const mc_gguf_words *words_of(const mc_tokenizer *tok)
{
    const mc_bpe *bpe = &tok->bpe;
    const mc_cut_kind kind = bpe->cut_count ? bpe->cuts[0].kind : MC_CUT_GPT2;
    for (int i = 0; i < MC_GGUF_WORDS; i++) {
        const mc_gguf_words *known = &mc_gguf_words_known[i];
        bool form =
            tok->form_count == 0 || (known->nfc && tok->form_count == 1 && tok->forms[0] == MC_NFC);
        bool ends = !known->encoder || mc_tokenizer_token_to_id(tok, tok->cls_token) >= 0;
        if (known->kind == kind && bpe->cut_count <= 1 && form && ends &&
            known->whole_words == bpe->whole_words)
            return known;
    }
    return NULL;
}

static bool put_bpe(const putting *p)
{
    const mc_tokenizer *tok = p->tok;
    const mc_gguf_words *words = words_of(tok);
    if (!words)
        return refuse(p, "expected words and normal forms of GPT-2, Llama 3, Qwen 2 "
                         "or ModernBERT");
    if (tok->bpe.add_prefix_space) return refuse(p, "a space before each text");
    const int32_t mask = words->encoder ? id_of(p, tok->mask_token) : -1;
    if (!check_added(p, mask)) return false;
    if (mask >= 0 && added_of(p, mask) && added_of(p, mask)->lstrip)
        mc_gguf_put_string(p->w, MC_GGUF_NAMED, words->pre);
    mc_gguf_put_string(p->w, KEY("model"), "gpt2");
    mc_gguf_put_string(p->w, KEY("pre"), words->pre);
    put_tokens(p);
    put_types(p, type_of);
    mc_gguf_put_array(p->w, KEY("merges"), MC_GGUF_STRING, tok->bpe.merge_count);
    for (size_t i = 0; i < tok->bpe.merge_count; i++) {
        const mc_entry left = tok->entries[tok->bpe.merges[i].left],
                       right = tok->entries[tok->bpe.merges[i].right];
        mc_bytes merge = {0};
        if (!mc_bytes_append(&merge, mc_tokenizer_text(tok, left), left.length) ||
            !mc_bytes_append(&merge, " ", 1) ||
            !mc_bytes_append(&merge, mc_tokenizer_text(tok, right), right.length))
            p->w->nomem = true;
        mc_gguf_item_text(p->w, (const char *)merge.data, merge.count);
        mc_bytes_release(&merge);
    }
    if (!words->encoder) return put_common(p, tok->bos_token, tok->eos_token);
    put_encoder_ids(p);
    return put_common(p, tok->cls_token, tok->sep_token);
}

/* ---- WordPiece ------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* What begins a word has a space's symbol before it, and what continues one has no "##". */
static bool put_piece(const putting *p, const char *text)
{
    const size_t length = strlen(text);
    mc_bytes piece = {0};
    if (begins(text, "##")) {
        if (begins(text + 2, phantom) || mc_gguf_is_bracketed(text + 2, length - 2))
            return refuse(p, "a piece that would be taken for another");
        mc_gguf_item_text(p->w, text + 2, length - 2);
        return true;
    }
    if (mc_gguf_is_bracketed(text, length)) {
        mc_gguf_item_text(p->w, text, length);
        return true;
    }
    if (!mc_bytes_append(&piece, phantom, MC_SPACE_SIZE) || !mc_bytes_append(&piece, text, length))
        p->w->nomem = true;
    mc_gguf_item_text(p->w, (const char *)piece.data, piece.count);
    mc_bytes_release(&piece);
    return true;
}

static bool put_wordpiece(const putting *p)
{
    char room[32];
    const mc_tokenizer *tok = p->tok;
    if (!tok->normalizer_options.lowercase || !tok->normalizer_options.handle_chinese_chars ||
        strcmp(tok->prefix, "##") != 0)
        return refuse(p,
                      "llama.cpp puts texts of a BERT in lower case, and words of Chinese apart");
    mc_gguf_put_string(p->w, KEY("model"), "bert");
    mc_gguf_put_array(p->w, KEY("tokens"), MC_GGUF_STRING, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++)
        if (!put_piece(p, text_of(p, i, room))) return false;
    put_types(p, type_of);
    put_encoder_ids(p);
    return put_common(p, tok->cls_token, tok->sep_token);
}

/* ---- Unigram --------------------------------------------------------------------------------- */

static void put_charsmap(const putting *p)
{
    const mc_charsmap *map = &p->tok->unigram.charsmap;
    const uint32_t size = (uint32_t)(map->unit_count * sizeof *map->units);
    if (!map->units) return;
    mc_gguf_put_array(p->w, KEY("precompiled_charsmap"), MC_GGUF_U8,
                      sizeof size + size + map->forms_size);
    mc_gguf_item_u32(p->w, size);
    mc_gguf_item_bytes(p->w, map->units, size);
    mc_gguf_item_bytes(p->w, map->forms, map->forms_size);
}

static bool put_unigram(const putting *p)
{
    const mc_unigram *u = &p->tok->unigram;
    const size_t pieces = u->count - (size_t)u->sentinels; /* <extra_id_0> is the last entry */
    if (!u->single || u->by_library)
        return refuse(p, "expected the Unigram model of a spiece.model (T5)");
    mc_gguf_put_string(p->w, KEY("model"), "t5");
    put_tokens(p);
    mc_gguf_put_array(p->w, KEY("scores"), MC_GGUF_FLOAT, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++)
        mc_gguf_item_f32(p->w, (size_t)i < pieces ? (float)u->scores[i] : added_score);
    mc_gguf_put_array(p->w, KEY("token_type"), MC_GGUF_I32, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) {
        bool own = (size_t)i < pieces;
        bool is = own || mc_tokenizer_id_to_token(p->tok, i);
        mc_gguf_item_u32(p->w, own ? u->types[i] : is ? MC_PIECE_USER_DEFINED : MC_PIECE_UNUSED);
    }
    mc_gguf_put_bool(p->w, KEY("add_space_prefix"), u->add_dummy_prefix);
    mc_gguf_put_bool(p->w, KEY("remove_extra_whitespaces"), u->remove_extra_whitespaces);
    put_charsmap(p);
    return put_common(p, NULL, p->tok->eos_token);
}

/* ---- BPE over characters: SentencePiece's ---------------------------------------------------- */

static bool is_byte(const mc_tokenizer *tok, int32_t id)
{
    for (int byte = 0; byte < 256; byte++)
        if (tok->bpe.byte_ids[byte] == id) return true;
    return false;
}

static mc_piece_type type_of_piece(const putting *p, int32_t id)
{
    const mc_unigram *u = &p->tok->unigram;
    if (id == p->tok->bpe.unk_id) return MC_PIECE_UNKNOWN;
    if (added_of(p, id) || (size_t)id >= u->count) return type_of(p, id);
    if (u->types[id] == MC_PIECE_NORMAL && is_byte(p->tok, id)) return MC_PIECE_BYTE;
    return u->types[id];
}

static bool is_piece(const mc_tokenizer *tok, int32_t id)
{
    return id >= 0 && (size_t)id < tok->unigram.count && tok->unigram.types[id] == MC_PIECE_NORMAL;
}

/* Whether any two tokens whose texts make a third one are a merge, as llama.cpp takes them to
 * be. */
static bool merges_all(const putting *p, int32_t id)
{
    const mc_tokenizer *tok = p->tok;
    const uint8_t *text = (const uint8_t *)mc_tokenizer_text(tok, tok->entries[id]);
    const size_t length = tok->entries[id].length;
    for (size_t at = 1; at < length; at++) {
        if ((text[at] & 0xC0) == 0x80) continue; /* within a character */
        int32_t left = mc_trie_find(&tok->trie, text, at);
        int32_t right = mc_trie_find(&tok->trie, text + at, length - at);
        if (is_piece(tok, left) && is_piece(tok, right) && !is_byte(tok, left) &&
            !is_byte(tok, right) && mc_bpe_rank(&tok->bpe, left, right) == MC_BPE_NONE)
            return false;
    }
    return true;
}

/* Scores of a tokenizer.json's pieces, by their first merge. NULL with an error. */
static float *scores_of_merges(const putting *p)
{
    const mc_tokenizer *tok = p->tok;
    const size_t count = tok->unigram.count, merges = tok->bpe.merge_count;
    float *scores = mc_malloc((count + 1) * sizeof *scores);
    if (!scores) {
        mc_error_set(p->err, MC_ERR_NOMEM, "%s: out of memory for its scores", tok->path);
        return NULL;
    }
    for (size_t id = 0; id < count; id++) scores[id] = added_score - (float)merges;
    for (size_t i = merges; i-- > 0;) scores[tok->bpe.merges[i].result] = -(float)i;
    bool good = merges <= 1 << 24; /* whole numbers that a float holds */
    for (size_t id = 0; id < count && good; id++)
        good = !is_piece(tok, (int32_t)id) || merges_all(p, (int32_t)id);
    if (good) return scores;
    refuse(p, "expected all pairs of tokens that make one to be merges, as in SentencePiece");
    mc_free(scores);
    return NULL;
}

/* Steps of a normalizer that put the symbols of spaces alone. */
static bool has_plain_steps(const mc_unigram *u)
{
    for (int i = 0; i < u->step_count; i++) {
        const mc_step *s = &u->steps[i];
        bool spaces = s->kind == MC_STEP_REPLACE && strcmp(s->from, " ") == 0 &&
                      strcmp(s->to, MC_SPACE_SYMBOL) == 0;
        bool prefix = s->kind == MC_STEP_PREPEND && strcmp(s->to, MC_SPACE_SYMBOL) == 0;
        if (!spaces && !prefix) return false;
    }
    return true;
}

static bool puts_prefix(const mc_unigram *u)
{
    for (int i = 0; i < u->step_count; i++)
        if (u->steps[i].kind == MC_STEP_PREPEND) return true;
    return u->single ? u->add_dummy_prefix : u->prepend != MC_PREPEND_NEVER;
}

static bool put_pieces(const putting *p)
{
    const mc_unigram *u = &p->tok->unigram;
    if (u->by_library || u->whitespace_as_suffix || p->tok->form_count)
        return refuse(p, "expected the BPE model of a Llama");
    if (u->charsmap.units || !has_plain_steps(u) ||
        (u->single && (u->remove_extra_whitespaces || !u->escape_whitespaces)))
        return refuse(p, "llama.cpp has no normalizer for BPE over characters");
    if (!p->tok->bpe.byte_fallback) return refuse(p, "expected pieces of bytes");
    if (!check_added(p, -1)) return false;
    float *made = u->single ? NULL : scores_of_merges(p);
    if (!u->single && !made) return false;
    mc_gguf_put_string(p->w, KEY("model"), "llama");
    mc_gguf_put_string(p->w, KEY("pre"), "default");
    put_tokens(p);
    mc_gguf_put_array(p->w, KEY("scores"), MC_GGUF_FLOAT, (uint64_t)p->count);
    for (int32_t i = 0; i < p->count; i++) {
        bool own = (size_t)i < u->count;
        mc_gguf_item_f32(p->w, !own ? added_score : made ? made[i] : (float)u->scores[i]);
    }
    mc_free(made);
    put_types(p, type_of_piece);
    mc_gguf_put_bool(p->w, KEY("add_space_prefix"), puts_prefix(u));
    return put_common(p, p->tok->bos_token, p->tok->eos_token);
}

bool mc_gguf_put_tokens(mc_gguf_writer *w, mc_error *err, const mc_tokenizer *tok,
                        const mc_model_shape *shape)
{
    const int64_t vocabulary = shape->vocab_size;
    const putting p = {
        .w = w, .err = err, .tok = tok, .shape = shape, .count = (int32_t)vocabulary};
    if ((int64_t)tok->id_end > vocabulary) {
        mc_error_set(err, MC_ERR_ARGUMENT,
                     "%s: %zu tokens, but the model has %lld: a GGUF file has as many of both",
                     tok->path, tok->id_end, (long long)vocabulary);
        return false;
    }
    const char *file, *template = mc_tokenizer_chat_template(tok, &file);
    if (template) mc_gguf_put_string(w, MC_GGUF_TEMPLATE, template);
    switch (tok->kind) {
    case MC_TOKENIZER_BYTE_BPE: return put_bpe(&p);
    case MC_TOKENIZER_WORDPIECE: return put_wordpiece(&p);
    case MC_TOKENIZER_UNIGRAM: return tok->unigram.bpe ? put_pieces(&p) : put_unigram(&p);
    default: return refuse(&p, "llama.cpp has no tokenizer of this kind");
    }
}
