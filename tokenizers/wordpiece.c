#include "tokenizers/tokenizer_internal.h"

/* A word in normal form: its longest pieces from the left, or [UNK] if that leaves a rest. */
static void encode_word(mc_encoder *e, const uint8_t *word, size_t length, size_t chars)
{
    const mc_tokenizer *tok = e->tok;
    size_t before = e->out->count, matched = 0;
    uint32_t state = MC_TRIE_ROOT;
    if (chars > tok->max_chars) {
        mc_encoder_push(e, tok->unk_id);
        return;
    }
    for (; length; word += matched, length -= matched) {
        int32_t id = -1;
        if (state != MC_TRIE_NONE) id = mc_trie_longest(&tok->trie, state, word, length, &matched);
        if (id < 0) {
            e->out->count = before;
            mc_encoder_push(e, tok->unk_id);
            return;
        }
        mc_encoder_push(e, id);
        state = tok->continuing;
    }
}

/* To be called after each word: whether there are enough ids now. */
static bool stop_here(mc_encoder *e)
{
    if (e->out->count >= e->limit) e->stopped = true;
    return e->stopped;
}

/* Cuts text in normal form at white space and around punctuation. */
static void encode_normal(mc_encoder *e, const uint8_t *text, const uint8_t *end)
{
    const uint8_t *word = text;
    size_t chars = 0;
    while (text < end) {
        uint32_t c;
        const uint8_t *here = text;
        text += mc_utf8_decode(text, end, &c);
        uint16_t flags = mc_unicode_get(c).flags;
        if (!(flags & (MC_UNICODE_SPACE | MC_UNICODE_PUNCT))) {
            chars++;
            continue;
        }
        if (chars) {
            encode_word(e, word, (size_t)(here - word), chars);
            if (stop_here(e)) return;
        }
        if (flags & MC_UNICODE_PUNCT) {
            encode_word(e, here, (size_t)(text - here), 1);
            if (stop_here(e)) return;
        }
        word = text;
        chars = 0;
    }
    if (!chars) return;
    encode_word(e, word, (size_t)(end - word), chars);
    stop_here(e);
}

/* Text from the start of a word on that is more than ASCII letters: the part of it up to ASCII
 * white space or punctuation, which ends words in any case, goes the general way. Returns where
 * that is. */
static const uint8_t *encode_general(mc_encoder *e, const mc_normalizer *normalizer,
                                     const uint8_t *text, const uint8_t *end)
{
    const uint8_t *stop = text;
    while (stop < end && normalizer->bytes[*stop] >= MC_BYTE_OTHER) stop++;
    if (normalizer->identity) {
        encode_normal(e, text, stop);
        return stop;
    }
    struct mc_encode_scratch *scratch = e->out->scratch;
    scratch->text.count = 0;
    if (!mc_normalizer_run(normalizer, text, (size_t)(stop - text), &scratch->text,
                           &scratch->spare)) {
        e->status = MC_ERR_NOMEM;
        e->stopped = true;
        return end;
    }
    encode_normal(e, scratch->text.data, scratch->text.data + scratch->text.count);
    return stop;
}

/* A word of ASCII letters that is no entry as a whole. */
static void encode_ascii_word(mc_encoder *e, const mc_normalizer *normalizer, const uint8_t *word,
                              size_t length)
{
    enum { ROOM = 256 };
    uint8_t lowered[ROOM];
    if (length > e->tok->max_chars) {
        mc_encoder_push(e, e->tok->unk_id);
        return;
    }
    if (length > ROOM) { /* only with settings unlike BERT's */
        encode_general(e, normalizer, word, word + length);
        return;
    }
    for (size_t i = 0; i < length; i++) lowered[i] = normalizer->bytes[word[i]];
    encode_word(e, lowered, length, length);
}

/* A text that no pre-tokenizer cuts is one word. */
static void encode_whole(mc_encoder *e, const mc_normalizer *normalizer, const uint8_t *text,
                         size_t size)
{
    struct mc_encode_scratch *scratch = e->out->scratch;
    size_t chars = 0;
    scratch->word.count = 0;
    if (!normalizer->identity) {
        if (!mc_normalizer_run(normalizer, text, size, &scratch->word, &scratch->spare)) {
            mc_encoder_stop(e, MC_ERR_NOMEM);
            return;
        }
        text = scratch->word.data;
        size = scratch->word.count;
    }
    for (const uint8_t *p = text, *end = text + size; p < end; chars++) {
        uint32_t c;
        p += mc_utf8_decode(p, end, &c);
    }
    if (size) encode_word(e, text, size, chars);
    stop_here(e);
}

/* The common case is one walk through the trie, which ends at the word's end in a state that has a
 * value. Where it fails the word's end is looked for without it. */
void mc_wordpiece_encode(mc_encoder *e, const mc_normalizer *normalizer, const uint8_t *text,
                         size_t size)
{
    const mc_tokenizer *tok = e->tok;
    const uint8_t *p = text, *end = text + size, *bytes = normalizer->bytes;
    const mc_trie_node *nodes = tok->trie.nodes;
    if (tok->whole_texts) {
        encode_whole(e, normalizer, text, size);
        return;
    }
    while (p < end) {
        uint8_t byte = bytes[*p];
        if (byte == MC_BYTE_SPACE) {
            p++;
            continue;
        }
        if (byte == MC_BYTE_PUNCT) {
            mc_encoder_push(e, tok->ascii_ids[*p++]);
            if (stop_here(e)) return;
            continue;
        }
        const uint8_t *word = p;
        uint32_t state = MC_TRIE_ROOT;
        while (byte >= MC_BYTE_WORD) {
            uint32_t next = nodes[state].base ^ byte;
            if (nodes[next].check != state) break;
            state = next;
            byte = ++p < end ? bytes[*p] : MC_BYTE_SPACE;
        }
        bool whole = byte < MC_BYTE_WORD;
        while (byte >= MC_BYTE_WORD) byte = ++p < end ? bytes[*p] : MC_BYTE_SPACE;
        size_t length = (size_t)(p - word);
        if (byte == MC_BYTE_OTHER) {
            p = encode_general(e, normalizer, word, end);
            if (e->stopped) return; /* there may have been no word in it */
            continue;
        }
        if (whole && tok->trie.values[state] >= 0 && length <= tok->max_chars)
            mc_encoder_push(e, tok->trie.values[state]);
        else
            encode_ascii_word(e, normalizer, word, length);
        if (stop_here(e)) return;
    }
}
