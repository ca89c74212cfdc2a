#include "tokenizers/bpe/bpe_internal.h"

#include <string.h>
#include "tokenizers/tokenizer_internal.h"

/* GPT-2's alphabet: a byte that prints in Latin-1 is its own letter; the others, in turn, are the
 * code points from 256 on. */
enum { SPACES = 33, DELETE = 127, LATIN = 161, HYPHEN = 173, MOVED = 256 };
enum { MOVED_DELETE = MOVED + SPACES, MOVED_HYPHEN = MOVED_DELETE + LATIN - DELETE };

uint32_t mc_bpe_letter_of(uint8_t byte)
{
    if (byte < SPACES) return MOVED + byte;
    if (byte >= DELETE && byte < LATIN) return (uint32_t)(MOVED_DELETE + byte - DELETE);
    return byte == HYPHEN ? MOVED_HYPHEN : byte;
}

int mc_bpe_byte_of(uint32_t letter)
{
    if (letter == MOVED_HYPHEN) return HYPHEN;
    if (letter > MOVED_HYPHEN) return -1;
    if (letter >= MOVED_DELETE) return (int)letter - MOVED_DELETE + DELETE;
    if (letter >= MOVED) return (int)letter - MOVED;
    bool moved = letter < SPACES || (letter >= DELETE && letter < LATIN) || letter == HYPHEN;
    return moved ? -1 : (int)letter;
}

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for the merges", path);
}

static mc_status check_dense(const mc_tokenizer *tok, mc_error *err, const char *path)
{
    for (size_t i = 0; i < tok->entry_count; i++)
        if (!tok->entries[i].length)
            return mc_error_set(err, MC_ERR_FORMAT,
                                "%s: no entry has id %zu, though there are ids to %zu", path, i,
                                tok->entry_count - 1);
    return MC_OK;
}

static mc_status index_bytes(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_bpe *bpe = &tok->bpe;
    bpe->all_bytes = true;
    for (int byte = 0; byte < 256; byte++) {
        uint8_t text[4];
        size_t length = mc_utf8_encode(mc_bpe_letter_of((uint8_t)byte), text);
        bpe->byte_ids[byte] = mc_trie_find(&tok->trie, text, length);
        if (bpe->byte_ids[byte] < 0) bpe->all_bytes = false;
    }
    if (!bpe->has_unk) return MC_OK;
    bpe->unk_id = mc_trie_find(&tok->trie, (const uint8_t *)tok->unk_token, strlen(tok->unk_token));
    if (bpe->unk_id >= 0) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: the vocabulary has no entry \"%.80s\"", path,
                        tok->unk_token);
}

static void put_slot(mc_bpe *bpe, size_t rank)
{
    uint64_t hash = mc_bpe_hash(bpe->merges[rank].left, bpe->merges[rank].right);
    size_t at = (size_t)hash & bpe->slot_mask;
    while (bpe->slots[at].rank != MC_BPE_NONE) at = (at + 1) & bpe->slot_mask;
    bpe->slots[at] = (mc_bpe_slot){(uint32_t)(hash >> 32), (uint32_t)rank};
    bpe->followers[bpe->merges[rank].left] |= mc_bpe_follower_bit(bpe->merges[rank].right);
}

static mc_status repeated_merge(const mc_tokenizer *tok, mc_error *err, const char *path,
                                bool lines, const mc_bpe_merge *first, const mc_bpe_merge *again)
{
    const char *left = mc_tokenizer_text(tok, tok->entries[first->left]);
    const char *right = mc_tokenizer_text(tok, tok->entries[first->right]);
    if (lines)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s:%u: merge \"%.80s %.80s\" stands on line %u already", path,
                            again->number, left, right, first->number);
    return mc_error_set(err, MC_ERR_FORMAT,
                        "%s: model: merges[%u]: \"%.80s %.80s\" is merges[%u] already", path,
                        again->number, left, right, first->number);
}

mc_status mc_bpe_index_merges(mc_tokenizer *tok, mc_error *err, const char *path, bool lines)
{
    mc_bpe *bpe = &tok->bpe;
    size_t count = 64;
    while (count < 2 * bpe->merge_count) count *= 2;
    bpe->slots = mc_malloc(count * sizeof *bpe->slots);
    bpe->followers = mc_calloc(tok->entry_count, sizeof *bpe->followers);
    if (!bpe->slots || !bpe->followers) return no_memory(err, path);
    memset(bpe->slots, 0xFF, count * sizeof *bpe->slots);
    bpe->slot_mask = count - 1;
    for (size_t i = 0; i < bpe->merge_count; i++) {
        const mc_bpe_merge *merge = &bpe->merges[i];
        uint32_t same = mc_bpe_rank(bpe, merge->left, merge->right);
        if (same != MC_BPE_NONE)
            return repeated_merge(tok, err, path, lines, &bpe->merges[same], merge);
        put_slot(bpe, i);
    }
    return MC_OK;
}

static mc_status index_byte_pairs(mc_bpe *bpe, mc_error *err, const char *path)
{
    if (!bpe->all_bytes) return MC_OK;
    bpe->byte_ranks = mc_malloc((size_t)256 * 256 * sizeof *bpe->byte_ranks);
    if (!bpe->byte_ranks) return no_memory(err, path);
    for (size_t pair = 0; pair < (size_t)256 * 256; pair++)
        bpe->byte_ranks[pair] =
            mc_bpe_rank(bpe, bpe->byte_ids[pair / 256], bpe->byte_ids[pair % 256]);
    return MC_OK;
}

/* Whether every merge comes after all those that make its parts, as training writes them. */
static mc_status check_order(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_bpe *bpe = &tok->bpe;
    uint32_t *behind = mc_calloc(tok->entry_count, sizeof *behind); /* 1 + the last rank */
    if (!behind) return no_memory(err, path);
    for (size_t i = 0; i < bpe->merge_count; i++) behind[bpe->merges[i].result] = (uint32_t)i + 1;
    bpe->ordered = !bpe->groups; /* merges of a group may overlap */
    for (size_t i = 0; i < bpe->merge_count; i++)
        if (behind[bpe->merges[i].left] > i || behind[bpe->merges[i].right] > i)
            bpe->ordered = false;
    mc_free(behind);
    return MC_OK;
}

static void mix(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * 0x9E3779B97F4A7C15u;
    *hash ^= *hash >> 29;
}

static void take_fingerprint(mc_bpe *bpe)
{
    uint64_t hash = 1;
    for (size_t i = 0; i < bpe->merge_count; i++) {
        mix(&hash, (uint64_t)(uint32_t)bpe->merges[i].left << 32 | (uint32_t)bpe->merges[i].right);
        mix(&hash, (uint32_t)bpe->merges[i].result);
    }
    for (int i = 0; i < 256; i++) mix(&hash, (uint32_t)bpe->byte_ids[i]);
    mix(&hash, bpe->has_unk ? (uint64_t)bpe->unk_id + 1 : 0);
    mix(&hash, bpe->fuse_unk);
    mix(&hash, bpe->whole_words);
    mix(&hash, bpe->characters);
    for (size_t i = 0; bpe->groups && i < bpe->merge_count; i++) mix(&hash, bpe->groups[i]);
    bpe->fingerprint = hash | 1; /* 0 is nobody's */
}

/* The bytes that a token's letters stand for, or, where one of them is no letter of the alphabet,
 * its text as it is. */
static bool token_bytes(const char *text, size_t size, mc_bytes *bytes)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + size;
    bytes->count = 0;
    if (!mc_bytes_reserve(bytes, size)) return false;
    while (p < end) {
        uint32_t c;
        p += mc_utf8_decode(p, end, &c);
        int byte = mc_bpe_byte_of(c);
        if (byte < 0) {
            bytes->count = 0;
            return mc_bytes_append(bytes, text, size);
        }
        bytes->data[bytes->count++] = (uint8_t)byte;
    }
    return true;
}

static mc_status store_bytes(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_bytes bytes = {0};
    bool ok = true;
    tok->bpe.bytes = mc_calloc(tok->id_end, sizeof *tok->bpe.bytes);
    if (!tok->bpe.bytes) return no_memory(err, path);
    for (size_t id = 0; id < tok->id_end && ok; id++) {
        const char *text = mc_tokenizer_id_to_token(tok, (int32_t)id);
        ok = !text ||
             (token_bytes(text, strlen(text), &bytes) &&
              mc_tokenizer_store(tok, (const char *)bytes.data, bytes.count, &tok->bpe.bytes[id]));
    }
    mc_bytes_release(&bytes);
    return ok ? MC_OK : no_memory(err, path);
}

mc_status mc_bpe_finish(mc_tokenizer *tok, mc_error *err, const char *path)
{
    mc_bpe *bpe = &tok->bpe;
    if (!bpe->has_cuts) bpe->cut_count = 1; /* GPT-2's is the first kind */
    for (size_t i = 0; i < tok->entry_count; i++)
        if (tok->entries[i].length > bpe->longest) bpe->longest = tok->entries[i].length;
    if (check_dense(tok, err, path) || index_bytes(tok, err, path) ||
        index_byte_pairs(bpe, err, path) || check_order(tok, err, path) ||
        store_bytes(tok, err, path))
        return err->status;
    take_fingerprint(bpe);
    return MC_OK;
}

mc_status mc_bpe_finish_merges(mc_tokenizer *tok, mc_error *err, const char *path)
{
    if (check_order(tok, err, path)) return err->status;
    take_fingerprint(&tok->bpe);
    return MC_OK;
}

void mc_bpe_release(mc_bpe *bpe)
{
    mc_free(bpe->groups);
    mc_free(bpe->results);
    mc_free(bpe->merges);
    mc_free(bpe->slots);
    mc_free(bpe->followers);
    mc_free(bpe->byte_ranks);
    mc_free(bpe->bytes);
    mc_free(bpe->cuts_json);
    for (int i = 0; i < bpe->cut_count; i++) mc_regex_free(bpe->cuts[i].regex);
}
