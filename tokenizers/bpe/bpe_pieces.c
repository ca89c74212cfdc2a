/* BPE over characters, as SentencePiece trains it: characters are pieces to begin with, a space is
 * the symbol U+2581, and characters without a piece are their bytes' pieces or unknown.
 *
 * A tokenizer.json lists the merges. A SentencePiece model does not: two neighbours merge where
 * both together are a piece, the piece of the highest score first. Such merges come in groups, a
 * group for each score, and within a group the leftmost is first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizers/tokenizer_internal.h"

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the merges", path);
}

/* ---- the merges of a SentencePiece model ---- */

static const uint8_t *text_of(const mc_tokenizer *tok, int32_t id)
{
    return tok->pool.data + tok->entries[id].offset;
}

static bool is_normal(const mc_tokenizer *tok, int32_t id)
{
    return id >= 0 && (size_t)id < tok->unigram.count && tok->unigram.types[id] == MC_PIECE_NORMAL;
}

static size_t character_size(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

typedef struct ranked {
    double score;
    int32_t id;
} ranked;

static int compare_ranked(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    return (a->id > b->id) - (a->id < b->id);
}

/* The normal pieces of two characters and more, the highest score first. */
static ranked *rank_pieces(const mc_tokenizer *tok, size_t *count)
{
    ranked *list = mc_calloc(tok->entry_count + 1, sizeof *list);
    *count = 0;
    for (size_t i = 0; list && i < tok->unigram.count; i++) {
        mc_entry entry = tok->entries[i];
        if (is_normal(tok, (int32_t)i) && entry.length &&
            entry.length > character_size(*text_of(tok, (int32_t)i)))
            list[(*count)++] = (ranked){tok->unigram.scores[i], (int32_t)i};
    }
    if (list && *count) qsort(list, *count, sizeof *list, compare_ranked);
    return list;
}

/* Whether every character of a piece is a piece too: others would have to merge without an id. */
static bool has_characters(const mc_tokenizer *tok, int32_t id)
{
    const uint8_t *p = text_of(tok, id), *end = p + tok->entries[id].length;
    for (size_t size; p < end; p += size) {
        size = character_size(*p);
        if (!is_normal(tok, mc_trie_find(&tok->trie, p, size))) return false;
    }
    return true;
}

/* Whether the pieces' merges can be listed: the library splits unused pieces again, and a character
 * that is no piece would have to merge without an id. */
static bool can_list(const mc_tokenizer *tok, const ranked *list, size_t count)
{
    for (size_t i = 0; i < tok->unigram.count; i++)
        if (tok->unigram.types[i] == MC_PIECE_UNUSED && tok->entries[i].length) return false;
    for (size_t i = 0; i < count; i++)
        if (!has_characters(tok, list[i].id)) return false;
    return true;
}

/* Adds all pairs that make a piece. */
static bool add_splits(mc_tokenizer *tok, int32_t id, uint32_t group, size_t *groups_room)
{
    mc_bpe *bpe = &tok->bpe;
    const uint8_t *text = text_of(tok, id);
    size_t length = tok->entries[id].length;
    for (size_t at = character_size(*text); at < length; at += character_size(text[at])) {
        int32_t left = mc_trie_find(&tok->trie, text, at);
        int32_t right = mc_trie_find(&tok->trie, text + at, length - at);
        if (!is_normal(tok, left) || !is_normal(tok, right)) continue;
        if (!mc_grow(&bpe->merges, &bpe->merge_capacity, bpe->merge_count, sizeof *bpe->merges) ||
            !mc_grow(&bpe->groups, groups_room, bpe->merge_count, sizeof *bpe->groups))
            return false;
        bpe->groups[bpe->merge_count] = group;
        bpe->merges[bpe->merge_count++] =
            (mc_bpe_merge){.left = left, .right = right, .result = id};
    }
    return true;
}

/* Adds the merges of all pieces, those of one score as a group. */
static bool add_groups(mc_tokenizer *tok, const ranked *list, size_t count)
{
    mc_bpe *bpe = &tok->bpe;
    size_t room = 0;
    uint32_t group = 0;
    bpe->results = mc_calloc(count + 1, sizeof *bpe->results);
    bool ok = bpe->results;
    for (size_t i = 0; i < count && ok; i++) {
        bool same = i && list[i].score == list[i - 1].score;
        group += i && !same;
        bpe->results[group] = same ? -1 : list[i].id;
        ok = add_splits(tok, list[i].id, group, &room);
    }
    return ok;
}

mc_status mc_bpe_merges_of_pieces(mc_tokenizer *tok, mc_error *err, const char *path,
                                  bool *possible)
{
    mc_bpe *bpe = &tok->bpe;
    size_t count;
    ranked *list = rank_pieces(tok, &count);
    *possible = list && can_list(tok, list, count);
    bool ok = list && (!*possible || add_groups(tok, list, count));
    mc_free(list);
    if (!ok) return no_memory(err, path);
    if (!*possible) return MC_OK;
    uint32_t *groups = bpe->groups; /* while merges are indexed each is its own */
    bpe->groups = NULL;
    mc_status status = mc_bpe_index_merges(tok, err, path, false);
    bpe->groups = groups;
    return status;
}

/* ---- the rest of a tokenizer's making ---- */

/* To SentencePiece all bytes have a piece. */
static mc_status find_fallback(mc_tokenizer *tok, mc_error *err, const char *path)
{
    for (int byte = 0; byte < 256; byte++) {
        char piece[8];
        snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)byte);
        int32_t id = mc_trie_find(&tok->trie, (const uint8_t *)piece, strlen(piece));
        if (id < 0 && tok->unigram.single)
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: there is no piece \"%s\" although bytes stand for unknown "
                                "characters",
                                path, piece);
        tok->bpe.byte_ids[byte] = id;
    }
    return MC_OK;
}

/* Whether a space's symbol stands in no merge's token after anything else, so that words, each
 * beginning with such symbols, do not depend on one another. */
static bool has_front_spaces(const mc_tokenizer *tok)
{
    for (size_t i = 0; i < tok->bpe.merge_count; i++) {
        int32_t id = tok->bpe.merges[i].result;
        const uint8_t *p = text_of(tok, id), *end = p + tok->entries[id].length;
        while ((size_t)(end - p) >= MC_SPACE_SIZE && !memcmp(p, MC_SPACE_SYMBOL, MC_SPACE_SIZE))
            p += MC_SPACE_SIZE;
        if (memmem(p, (size_t)(end - p), MC_SPACE_SYMBOL, MC_SPACE_SIZE)) return false;
    }
    return true;
}

mc_status mc_bpe_finish_pieces(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_bpe *bpe = &tok->bpe;
    bpe->characters = true;
    bpe->trie = &tok->trie;
    if (bpe->byte_fallback && find_fallback(tok, err, path)) return err->status;
    bpe->front_spaces = has_front_spaces(tok);
    for (size_t i = 0; i < tok->entry_count; i++)
        if (tok->entries[i].length > bpe->longest) bpe->longest = tok->entries[i].length;
    return mc_bpe_finish_merges(tok, err, path);
}

/* ---- encoding ---- */

static bool begins_with_space(const uint8_t *p, const uint8_t *end)
{
    return (size_t)(end - p) >= MC_SPACE_SIZE && !memcmp(p, MC_SPACE_SYMBOL, MC_SPACE_SIZE);
}

/* The end of the symbols of spaces and what stands before the next of them. */
static const uint8_t *word_end(const uint8_t *p, const uint8_t *end)
{
    while (begins_with_space(p, end)) p += MC_SPACE_SIZE;
    while (p < end) {
        p = memchr(p, MC_SPACE_SYMBOL[0], (size_t)(end - p));
        if (!p) return end;
        if (begins_with_space(p, end)) return p;
        p++;
    }
    return end;
}

void mc_bpe_encode_pieces(mc_encoder *e, const uint8_t *text, size_t size)
{
    const mc_bpe *bpe = &e->tok->bpe;
    const uint8_t *end = text + size;
    size_t begun = e->out->count;
    if (!mc_bpe_take_scratch(e)) return;
    for (const uint8_t *stop; text < end && !e->stopped; text = stop) {
        size_t before = e->out->count;
        stop = bpe->front_spaces ? word_end(text, end) : end;
        mc_bpe_encode_word(e, text, (size_t)(stop - text), end);
        const int32_t *ids = e->out->ids;
        if (bpe->fuse_unk && bpe->has_unk && before > begun && e->out->count > before &&
            ids[before] == bpe->unk_id && ids[before - 1] == bpe->unk_id) {
            e->out->count--; /* unknown characters in a row are one */
            memmove(e->out->ids + before, ids + before + 1, (e->out->count - before) * sizeof *ids);
        }
        if (e->out->count >= e->limit) e->stopped = true;
    }
}
