/* Words to ids, with a cache of words whose ids are known. */
#include <string.h>
#include "tokenizers/tokenizer_internal.h"
#include "tokenizers/bpe/word_key_internal.h"

enum { CACHED = MC_WORD_KEY_SIZE, CACHE_LAST = 1 << 16 };

/* ---- the cache ---- */

static inline mc_bpe_word *place_of(const mc_bpe_scratch *s, const uint64_t key[2], size_t size)
{
    return &s->words[(size_t)(mc_word_hash(key, size) >> 40) & (s->word_count - 1)];
}

static bool grow_cache(mc_bpe_scratch *s)
{
    mc_bpe_word *words = mc_word_cache_grow(s->words, &s->word_count, &s->words_put, sizeof *words);
    if (words) s->words = words;
    return words;
}

/* Makes the scratch this vocabulary's. */
static bool take_scratch(const mc_bpe *bpe, mc_bpe_scratch *s)
{
    if (s->owner == bpe->fingerprint) return true;
    mc_bpe_scratch_release(s);
    if (!grow_cache(s)) return false;
    s->owner = bpe->fingerprint;
    return true;
}

static void remember(mc_bpe_scratch *s, const uint64_t key[2], size_t size, const int32_t *ids,
                     size_t count)
{
    mc_bpe_word *word = place_of(s, key, size);
    if (count > sizeof word->ids / sizeof *word->ids) return;
    *word =
        (mc_bpe_word){.key = {key[0], key[1]}, .length = (uint8_t)size, .count = (uint8_t)count};
    memcpy(word->ids, ids, count * sizeof *ids);
    s->words_put++;
}

/* ---- encoding ---- */

/* Appends the entry that is the whole word, if there is one. */
static bool push_entry(mc_encoder *e, const uint8_t *word, size_t size)
{
    mc_bytes *letters = &e->out->scratch->before;
    const mc_tokenizer *tok = e->tok;
    int32_t id = -1;
    if (size > tok->bpe.longest) return false;
    if (tok->bpe.characters) {
        id = mc_trie_find(&tok->trie, word, size);
        if (id >= 0) mc_encoder_push(e, id);
        return id >= 0;
    }
    letters->count = 0;
    if (!mc_bytes_reserve(letters, 2 * size)) {
        mc_encoder_stop(e, MC_ERR_NOMEM);
        return false;
    }
    for (size_t i = 0; i < size; i++)
        letters->count += mc_utf8_encode(mc_bpe_letter_of(word[i]), letters->data + letters->count);
    id = mc_trie_find(&tok->trie, letters->data, letters->count);
    if (id >= 0) mc_encoder_push(e, id);
    return id >= 0;
}

static void encode_new_word(mc_encoder *e, const uint8_t *word, size_t size)
{
    mc_encoding *out = e->out;
    size_t count;
    if (size > INT32_MAX) {
        mc_encoder_stop(e, MC_ERR_UNSUPPORTED);
        return;
    }
    if (!mc_encoder_reserve(e, size)) return;
    if (e->tok->bpe.whole_words && push_entry(e, word, size)) return;
    if (mc_bpe_merge_word(&e->tok->bpe, &out->scratch->bpe, word, size, out->ids + out->count,
                          &count))
        out->count += count;
    else
        mc_encoder_stop(e, MC_ERR_NOMEM);
}

void mc_bpe_encode_word(mc_encoder *e, const uint8_t *word, size_t size, const uint8_t *end)
{
    mc_bpe_scratch *s = &e->out->scratch->bpe;
    mc_encoding *out = e->out;
    uint64_t key[2];
    if (size > CACHED) {
        encode_new_word(e, word, size);
        return;
    }
    mc_word_key(word, size, end, key);
    const mc_bpe_word *known = place_of(s, key, size);
    if (known->key[0] == key[0] && known->key[1] == key[1] && known->length == size) {
        if (out->capacity - out->count < 3 && !mc_encoder_reserve(e, 3)) return;
        memcpy(out->ids + out->count, known->ids, sizeof known->ids);
        out->count += known->count;
        return;
    }
    size_t before = out->count;
    encode_new_word(e, word, size);
    if (e->stopped) return;
    if (s->words_put > s->word_count && s->word_count < CACHE_LAST && !grow_cache(s))
        mc_encoder_stop(e, MC_ERR_NOMEM);
    else
        remember(s, key, size, out->ids + before, out->count - before);
}

bool mc_bpe_take_scratch(mc_encoder *e)
{
    if (take_scratch(&e->tok->bpe, &e->out->scratch->bpe)) return true;
    mc_encoder_stop(e, MC_ERR_NOMEM);
    return false;
}

static void encode_words(mc_encoder *e, const uint8_t *text, size_t size)
{
    if (mc_bpe_take_scratch(e)) mc_bpe_cut_words(e, text, size);
}

void mc_bpe_encode(mc_encoder *e, const uint8_t *text, size_t size)
{
    mc_bytes *spaced = &e->out->scratch->word; /* the text may lie in scratch->text */
    if (!e->tok->bpe.add_prefix_space || !size || *text == ' ') {
        encode_words(e, text, size);
        return;
    }
    spaced->count = 0;
    if (mc_bytes_append(spaced, " ", 1) && mc_bytes_append(spaced, text, size))
        encode_words(e, spaced->data, spaced->count);
    else
        mc_encoder_stop(e, MC_ERR_NOMEM);
}
