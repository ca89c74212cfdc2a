/* The merges of byte-level BPE, most frequent pair first (Sennrich, Haddow and Birch 2016, over
 * bytes as GPT-2 has them), in the order and with the ties of Hugging Face's BpeTrainer.
 *
 * Each word is its tokens and its count. A heap holds the pairs of neighbours with the words that
 * hold them. A pair's count changes while the pair lies in the heap: an entry whose count is out of
 * date goes back with the right one when it comes to the top. */
#include <string.h>
#include "tokenizers/train/train_internal.h"

/* Two neighbours. `words` are those in which it has become a pair since it was last queued. */
typedef struct pair_state {
    int32_t left, right;
    int64_t count;
    uint32_t *words;
    size_t word_count, word_capacity;
} pair_state;

typedef struct heap_entry {
    int64_t count;
    uint32_t pair;
    uint32_t *words; /* (word_count), the entry's own */
    size_t word_count;
} heap_entry;

typedef struct word_state {
    size_t start; /* of its tokens */
    uint32_t length;
} word_state;

typedef struct trainer {
    mc_error *err;
    const mc_word_counts *counts;
    mc_trained_bpe *bpe;
    word_state *words; /* (counts->words.count) */
    int32_t *tokens;
    pair_state *pairs;
    size_t pair_count, pair_capacity;
    uint32_t *slots; /* (slot_count), a power of two: number of a pair + 1, 0: free */
    size_t slot_count;
    uint32_t *touched; /* pairs with words that are not in the heap yet */
    size_t touched_count, touched_capacity;
    heap_entry *heap;
    size_t heap_count, heap_capacity;
    mc_bytes text; /* working memory */
} trainer;

static mc_status no_memory(const trainer *t)
{
    return mc_error_set(t->err, MC_ERR_NOMEM, "training a tokenizer: out of memory for its merges");
}

/* ---- pairs ---- */

static uint32_t *slot_of(const trainer *t, int32_t left, int32_t right)
{
    size_t at = (size_t)(mc_bpe_hash(left, right) >> 8);
    for (;; at++) {
        uint32_t *slot = &t->slots[at & (t->slot_count - 1)];
        if (!*slot) return slot;
        const pair_state *p = &t->pairs[*slot - 1];
        if (p->left == left && p->right == right) return slot;
    }
}

static bool grow_slots(trainer *t)
{
    size_t room = t->slot_count ? 2 * t->slot_count : 1 << 12;
    uint32_t *slots = mc_calloc(room, sizeof *slots);
    if (!slots) return false;
    mc_free(t->slots);
    t->slots = slots;
    t->slot_count = room;
    for (size_t i = 0; i < t->pair_count; i++)
        *slot_of(t, t->pairs[i].left, t->pairs[i].right) = (uint32_t)(i + 1);
    return true;
}

static pair_state *find_pair(trainer *t, int32_t left, int32_t right)
{
    if (2 * (t->pair_count + 1) > t->slot_count && !grow_slots(t)) return NULL;
    uint32_t *slot = slot_of(t, left, right);
    if (*slot) return &t->pairs[*slot - 1];
    if (t->pair_count >= UINT32_MAX / 2 ||
        !mc_grow(&t->pairs, &t->pair_capacity, t->pair_count, sizeof *t->pairs))
        return NULL;
    t->pairs[t->pair_count++] = (pair_state){.left = left, .right = right};
    *slot = (uint32_t)t->pair_count;
    return &t->pairs[t->pair_count - 1];
}

/* Word `word` has `more` pairs (left, right) more, or fewer. */
static mc_status change_pair(trainer *t, size_t word, int32_t left, int32_t right, int more)
{
    pair_state *p = find_pair(t, left, right);
    if (!p) return no_memory(t);
    p->count += more * t->counts->counts[word];
    if (more < 0 || (p->word_count && p->words[p->word_count - 1] == word)) return MC_OK;
    if (!mc_grow(&p->words, &p->word_capacity, p->word_count, sizeof *p->words))
        return no_memory(t);
    p->words[p->word_count++] = (uint32_t)word;
    if (p->word_count > 1) return MC_OK;
    if (!mc_grow(&t->touched, &t->touched_capacity, t->touched_count, sizeof *t->touched))
        return no_memory(t);
    t->touched[t->touched_count++] = (uint32_t)(p - t->pairs);
    return MC_OK;
}

/* ---- the heap: the largest count on top, of equals the smaller ids ---- */

static bool comes_before(const trainer *t, const heap_entry *a, const heap_entry *b)
{
    const pair_state *p = &t->pairs[a->pair], *q = &t->pairs[b->pair];
    if (a->count != b->count) return a->count > b->count;
    return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static mc_status heap_put(trainer *t, heap_entry entry)
{
    if (!mc_grow(&t->heap, &t->heap_capacity, t->heap_count, sizeof *t->heap)) {
        mc_free(entry.words);
        return no_memory(t);
    }
    size_t at = t->heap_count++;
    for (; at && comes_before(t, &entry, &t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = entry;
    return MC_OK;
}

static heap_entry heap_take(trainer *t)
{
    heap_entry top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0, child;
    for (; (child = 2 * at + 1) < t->heap_count; at = child) {
        if (child + 1 < t->heap_count && comes_before(t, &t->heap[child + 1], &t->heap[child]))
            child++;
        if (!comes_before(t, &t->heap[child], &last)) break;
        t->heap[at] = t->heap[child];
    }
    t->heap[at] = last;
    return top;
}

/* Queues the pairs that have come up, each with its words. */
static mc_status queue_touched(trainer *t)
{
    mc_status status = MC_OK;
    for (size_t i = 0; i < t->touched_count && !status; i++) {
        pair_state *p = &t->pairs[t->touched[i]];
        heap_entry entry = {.count = p->count,
                            .pair = t->touched[i],
                            .words = p->words,
                            .word_count = p->word_count};
        p->words = NULL;
        p->word_count = p->word_capacity = 0;
        if (entry.count > 0)
            status = heap_put(t, entry);
        else
            mc_free(entry.words);
    }
    t->touched_count = 0;
    return status;
}

/* ---- the start ---- */

static mc_status add_token(trainer *t, const void *text, size_t length, int32_t *id)
{
    int64_t number = mc_text_set_add(&t->bpe->tokens, text, length);
    *id = (int32_t)number;
    return number < 0 ? no_memory(t) : MC_OK;
}

/* The special tokens, and the letters of all bytes by code point; ids[byte] is the byte's. */
static mc_status add_alphabet(trainer *t, const char *const *specials, int32_t ids[256])
{
    int32_t id;
    for (; specials && *specials; specials++)
        if (add_token(t, *specials, strlen(*specials), &id)) return t->err->status;
    for (uint32_t letter = 0, found = 0; found < 256; letter++) {
        int byte = mc_bpe_byte_of(letter);
        if (byte < 0) continue;
        uint8_t utf8[4];
        size_t length = mc_utf8_encode(letter, utf8);
        if (add_token(t, utf8, length, &ids[byte])) return t->err->status;
        found++;
    }
    return MC_OK;
}

static mc_status split_words(trainer *t, const int32_t ids[256])
{
    const mc_text_set *words = &t->counts->words;
    size_t used = 0;
    t->words = mc_calloc(words->count + 1, sizeof *t->words);
    t->tokens = mc_malloc((words->pool.count + 1) * sizeof *t->tokens);
    if (!t->words || !t->tokens) return no_memory(t);
    for (size_t w = 0; w < words->count; w++) {
        const uint8_t *text = mc_text_set_get(words, w);
        t->words[w] = (word_state){.start = used, .length = words->texts[w].length};
        for (uint32_t i = 0; i < words->texts[w].length; i++) t->tokens[used++] = ids[text[i]];
    }
    return MC_OK;
}

static mc_status count_pairs(trainer *t)
{
    mc_status status = MC_OK;
    for (size_t w = 0; w < t->counts->words.count && !status; w++) {
        const int32_t *tokens = t->tokens + t->words[w].start;
        for (uint32_t i = 0; i + 1 < t->words[w].length && !status; i++)
            status = change_pair(t, w, tokens[i], tokens[i + 1], 1);
    }
    return status ? status : queue_touched(t);
}

/* ---- merging ---- */

/* Joins (left, right) to `both` in one word. */
static mc_status merge_word(trainer *t, size_t word, int32_t left, int32_t right, int32_t both)
{
    int32_t *tokens = t->tokens + t->words[word].start;
    uint32_t length = t->words[word].length, out = 0;
    mc_status status = MC_OK;
    for (uint32_t i = 0; i < length && !status; i++) {
        if (tokens[i] != left || i + 1 >= length || tokens[i + 1] != right) {
            tokens[out++] = tokens[i];
            continue;
        }
        if (out) status = change_pair(t, word, tokens[out - 1], left, -1);
        if (out && !status) status = change_pair(t, word, tokens[out - 1], both, 1);
        if (++i + 1 < length && !status) status = change_pair(t, word, right, tokens[i + 1], -1);
        if (i + 1 < length && !status) status = change_pair(t, word, both, tokens[i + 1], 1);
        tokens[out++] = both;
    }
    t->words[word].length = out;
    return status;
}

static mc_status join_texts(trainer *t, int32_t left, int32_t right, int32_t *both)
{
    const mc_text_set *tokens = &t->bpe->tokens;
    t->text.count = 0;
    if (!mc_bytes_append(&t->text, mc_text_set_get(tokens, (size_t)left),
                         tokens->texts[left].length) ||
        !mc_bytes_append(&t->text, mc_text_set_get(tokens, (size_t)right),
                         tokens->texts[right].length))
        return no_memory(t);
    return add_token(t, t->text.data, t->text.count, both);
}

/* Merges a pair in all words. It never comes up again: tokens between two boundaries follow from
 * the text between them, so that a token always comes from the same pair. */
static mc_status merge_pair(trainer *t, const heap_entry *entry)
{
    mc_trained_bpe *bpe = t->bpe;
    int32_t left = t->pairs[entry->pair].left, right = t->pairs[entry->pair].right, both = -1;
    mc_status status = join_texts(t, left, right, &both);
    if (!status &&
        !mc_grow(&bpe->merges, &bpe->merge_capacity, bpe->merge_count, sizeof *bpe->merges))
        status = no_memory(t);
    if (!status) bpe->merges[bpe->merge_count++] = (mc_trained_merge){left, right, both};
    for (size_t i = 0; i < entry->word_count && !status; i++)
        status = merge_word(t, entry->words[i], left, right, both);
    return status ? status : queue_touched(t);
}

static mc_status merge_all(trainer *t, size_t size, int64_t least)
{
    mc_status status = MC_OK;
    while (!status && t->heap_count && t->bpe->tokens.count < size) {
        heap_entry top = heap_take(t);
        int64_t count = t->pairs[top.pair].count;
        if (top.count != count) {
            top.count = count;
            status = heap_put(t, top);
            continue;
        }
        bool enough = top.count >= 1 && top.count >= least;
        if (enough) status = merge_pair(t, &top);
        mc_free(top.words);
        if (!enough) break;
    }
    return status;
}

static void release(trainer *t)
{
    for (size_t i = 0; i < t->pair_count; i++) mc_free(t->pairs[i].words);
    for (size_t i = 0; i < t->heap_count; i++) mc_free(t->heap[i].words);
    mc_free(t->words);
    mc_free(t->tokens);
    mc_free(t->pairs);
    mc_free(t->slots);
    mc_free(t->touched);
    mc_free(t->heap);
    mc_bytes_release(&t->text);
}

mc_status mc_train_bpe(mc_error *err, const mc_word_counts *counts, const char *const *specials,
                       size_t size, int64_t least, mc_trained_bpe *bpe)
{
    trainer t = {.err = err, .counts = counts, .bpe = bpe};
    int32_t ids[256];
    mc_status status = add_alphabet(&t, specials, ids);
    if (!status) status = split_words(&t, ids);
    if (!status) status = count_pairs(&t);
    if (!status) status = merge_all(&t, size, least);
    release(&t);
    return status;
}

void mc_trained_bpe_release(mc_trained_bpe *bpe)
{
    mc_text_set_release(&bpe->tokens);
    mc_free(bpe->merges);
    *bpe = (mc_trained_bpe){0};
}
