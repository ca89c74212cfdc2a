#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tokenizers/unigram/sentencepiece_internal.h"
#include "tokenizers/tokenizer_internal.h"
#include "tokenizers/bpe/word_key_internal.h"

/* What an unknown character scores below the worst piece. */
static const double UNKNOWN_PENALTY = 10;

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the pieces", path);
}

mc_status mc_unigram_reserve(mc_unigram *u, mc_error *err, const char *path, size_t count)
{
    double *scores = mc_realloc(u->scores, count * sizeof *scores);
    if (scores) u->scores = scores;
    uint8_t *types = mc_realloc(u->types, count * sizeof *types);
    if (types) u->types = types;
    if (!scores || !types) return no_memory(err, path);
    for (; u->count < count; u->count++) {
        scores[u->count] = 0;
        types[u->count] = 0;
    }
    return MC_OK;
}

void mc_unigram_release(mc_unigram *u)
{
    mc_sentencepiece_free(u->library);
    mc_charsmap_release(&u->charsmap);
    mc_trie_release(&u->symbols);
    mc_free(u->scores);
    mc_free(u->types);
    mc_free(u->weights);
    mc_free(u->source);
    mc_free(u->unk_surface);
    *u = (mc_unigram){0};
}

static const uint8_t *text_of(const mc_tokenizer *tok, size_t id)
{
    return (const uint8_t *)mc_tokenizer_text(tok, tok->entries[id]);
}

static bool is_in_texts(const mc_unigram *u, size_t id)
{
    return u->types[id] == MC_PIECE_NORMAL || u->types[id] == MC_PIECE_USER_DEFINED;
}

/* What each piece adds to a sum. SentencePiece gives user-defined pieces more than any other. */
static mc_status weigh(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_unigram *u = &tok->unigram;
    double lowest = u->single ? (double)FLT_MAX : (double)INFINITY, most = 0, least = 0;
    u->weights = mc_calloc(u->count, sizeof *u->weights);
    if (!u->weights) return no_memory(err, path);
    for (size_t i = 0; i < u->count; i++) {
        u->weights[i] = -(double)INFINITY;
        if (!mc_tokenizer_holds(tok, i)) continue;
        if (u->types[i] == MC_PIECE_NORMAL && u->scores[i] < lowest) lowest = u->scores[i];
        if (!is_in_texts(u, i)) continue;
        u->weights[i] = u->scores[i];
        if (u->single && u->types[i] == MC_PIECE_USER_DEFINED)
            u->weights[i] = (double)(float)(0.1 * (double)(tok->entries[i].length - 1));
        if (u->weights[i] > most) most = u->weights[i];
        if (u->weights[i] < least) least = u->weights[i];
    }
    u->unknown =
        u->single ? (double)((float)lowest - (float)UNKNOWN_PENALTY) : lowest - UNKNOWN_PENALTY;
    u->highest = (MC_WORD_KEY_SIZE + 1) * most;
    u->cacheable = !u->single || (most < 1000 && least > -1000);
    return MC_OK;
}

static mc_status index_symbols(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_unigram *u = &tok->unigram;
    size_t count = 0;
    mc_trie_key *keys = mc_calloc(u->count, sizeof *keys);
    if (!keys) return no_memory(err, path);
    for (size_t i = 0; i < u->count && u->single; i++)
        if (u->types[i] == MC_PIECE_USER_DEFINED)
            keys[count++] = (mc_trie_key){text_of(tok, i), tok->entries[i].length, (int32_t)i};
    mc_trie_sort_keys(keys, count);
    u->has_symbols = count > 0;
    bool ok = mc_trie_init(&u->symbols, keys, count);
    mc_free(keys);
    return ok ? MC_OK : no_memory(err, path);
}

/* Whether pieces have the space's symbol at their front or not at all. */
static bool has_front_spaces(const mc_tokenizer *tok)
{
    for (size_t i = 0; i < tok->unigram.count; i++) {
        const uint8_t *text = text_of(tok, i);
        size_t length = tok->entries[i].length;
        if (is_in_texts(&tok->unigram, i) && length > 1 &&
            memmem(text + 1, length - 1, MC_SPACE_SYMBOL, MC_SPACE_SIZE))
            return false;
    }
    return true;
}

static uint8_t class_of(const mc_unigram *u, uint8_t byte)
{
    char own[2];
    uint8_t first[1] = {byte};
    const char *form = mc_charsmap_ascii(&u->charsmap, byte, own);
    if (!form ||
        (u->has_symbols && mc_trie_walk(&u->symbols, MC_TRIE_ROOT, first, 1) != MC_TRIE_NONE))
        return MC_UNIGRAM_SLOW;
    if (strlen(form) != 1) return MC_UNIGRAM_SLOW;
    bool white =
        u->single ? *form == ' ' : (mc_unicode_get((uint8_t)*form).flags & MC_UNICODE_WHITE) != 0;
    if (white) return MC_UNIGRAM_SPACE;
    return (uint8_t)*form == byte ? MC_UNIGRAM_PLAIN : MC_UNIGRAM_SLOW;
}

/* Finds out whether texts can be cut at spaces: where each space begins a word, and no rule of the
 * normaliser reaches over one. */
static mc_status find_cuts(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_unigram *u = &tok->unigram;
    bool spaces[128] = {false}, inside = false;
    for (int byte = 0; byte < 128; byte++) {
        u->bytes[byte] = class_of(u, (uint8_t)byte);
        spaces[byte] = u->bytes[byte] == MC_UNIGRAM_SPACE;
    }
    if (!mc_charsmap_holds_inside(&u->charsmap, spaces, &inside)) return no_memory(err, path);
    for (size_t i = 0; i < u->count && u->has_symbols && !inside; i++)
        for (size_t k = 0; k < tok->entries[i].length && u->types[i] == MC_PIECE_USER_DEFINED; k++)
            inside = inside || (text_of(tok, i)[k] < 128 && spaces[text_of(tok, i)[k]]);
    if (u->single) {
        u->separable = has_front_spaces(tok) && u->escape_whitespaces && !u->whitespace_as_suffix;
        u->fast = u->separable && u->add_dummy_prefix && u->remove_extra_whitespaces && !inside;
        return MC_OK;
    }
    bool plain = u->step_count == 0 || (u->step_count == 1 && u->steps[0].kind == MC_STEP_CHARSMAP);
    u->separable = u->split_symbols;
    u->fast = u->separable && plain && u->split_white && u->prepend == MC_PREPEND_ALWAYS && !inside;
    return MC_OK;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ p[i]) * 0x100000001B3u;
    return hash;
}

static uint64_t fingerprint(const mc_tokenizer *tok)
{
    const mc_unigram *u = &tok->unigram;
    bool settings[] = {u->single, u->byte_fallback, u->separable};
    uint64_t hash = hash_bytes(0xCBF29CE484222325u, settings, sizeof settings);
    for (size_t i = 0; i < u->count; i++) {
        hash = hash_bytes(hash, text_of(tok, i), tok->entries[i].length + 1);
        hash = hash_bytes(hash, &u->weights[i], sizeof u->weights[i]);
    }
    return hash ? hash : 1;
}

static mc_status find_bytes(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_unigram *u = &tok->unigram;
    for (int byte = 0; byte < 256 && u->byte_fallback; byte++) {
        char piece[8];
        snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)byte);
        int32_t id = mc_trie_find(&tok->trie, (const uint8_t *)piece, strlen(piece));
        if (id < 0 || u->types[id] != MC_PIECE_BYTE)
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: there is no piece \"%s\" although bytes stand for unknown "
                                "characters",
                                path, piece);
        u->byte_ids[byte] = id;
    }
    return MC_OK;
}

mc_status mc_unigram_finish(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_unigram *u = &tok->unigram;
    tok->unk_id = u->unk_id;
    for (size_t i = 0; i < u->count; i++)
        if (tok->entries[i].length >= MC_PIECE_MAX)
            return mc_error_set(err, MC_ERR_UNSUPPORTED,
                                "%s: piece %zu has %u bytes, expected less than %d", path, i,
                                tok->entries[i].length, MC_PIECE_MAX);
    if (weigh(tok, err, path) || index_symbols(tok, err, path)) return err->status;
    bool merged = u->bpe && !u->by_library;
    if ((merged ? mc_bpe_finish_pieces : find_bytes)(tok, err, path) || find_cuts(tok, err, path))
        return err->status;
    u->fingerprint = fingerprint(tok);
    return MC_OK;
}

/* By SentencePiece's rules unknown pieces of two words in a row are one. */
bool mc_unigram_allows_cuts(const mc_tokenizer *tok)
{
    const mc_unigram *u = &tok->unigram;
    int32_t space = mc_trie_find(&tok->trie, (const uint8_t *)MC_SPACE_SYMBOL, MC_SPACE_SIZE);
    return u->fast && (!u->single || (space >= 0 && is_in_texts(u, (size_t)space)));
}

bool mc_tokenizer_puts_spaces(const mc_tokenizer *tok)
{
    const mc_unigram *u = &tok->unigram;
    if (tok->kind != MC_TOKENIZER_UNIGRAM) return false;
    if (u->single) return u->add_dummy_prefix && !u->prefix_first;
    bool puts = !u->plain && u->prepend == MC_PREPEND_ALWAYS;
    for (int i = 0; i < u->step_count; i++) puts = puts || u->steps[i].kind == MC_STEP_PREPEND;
    return puts;
}
