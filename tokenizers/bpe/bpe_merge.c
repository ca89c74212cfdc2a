#include "tokenizers/bpe/bpe_internal.h"

#include <string.h>
#include "core/base/memory_internal.h"
#include "tokenizers/trie_internal.h"
#include "tokenizers/unicode/unicode_internal.h"

/* Words up to this size are merged by looking at all neighbours each time. */
enum { SHORT = 96 };

/* The same of characters. */
static size_t first_characters(const mc_bpe *bpe, const uint8_t *word, size_t size, int32_t *ids)
{
    size_t count = 0, length;
    bool unk_before = false;
    for (size_t i = 0; i < size; i += length) {
        uint32_t c;
        length = mc_utf8_decode(word + i, word + size, &c);
        int32_t id = mc_trie_find(bpe->trie, word + i, length);
        bool unk = id < 0 && !bpe->byte_fallback;
        for (size_t k = 0; id < 0 && k < length; k++) unk = unk || bpe->byte_ids[word[i + k]] < 0;
        for (size_t k = 0; id < 0 && !unk && k < length; k++)
            ids[count++] = bpe->byte_ids[word[i + k]];
        if (id >= 0)
            ids[count++] = id;
        else if (unk && bpe->has_unk && !(unk_before && bpe->fuse_unk))
            ids[count++] = bpe->unk_id;
        unk_before = unk && bpe->has_unk;
    }
    return count;
}

/* The tokens that a word's bytes are to begin with; returns how many. */
static size_t first_ids(const mc_bpe *bpe, const uint8_t *word, size_t size, int32_t *ids)
{
    if (bpe->characters) return first_characters(bpe, word, size, ids);
    size_t count = 0;
    bool unk_before = false;
    for (size_t i = 0; i < size; i++) {
        int32_t id = bpe->byte_ids[word[i]];
        bool unk = id < 0;
        if (unk && (!bpe->has_unk || (unk_before && bpe->fuse_unk))) continue;
        ids[count++] = unk ? bpe->unk_id : id;
        unk_before = unk;
    }
    return count;
}

/* ---- short words ---- */

/* What one short word is merged in. A key is rank << 8 | place, so that the smallest one is the
 * leftmost of the first rank; NO_KEY: no merge begins at this place. */
typedef struct short_word {
    uint32_t keys[SHORT];
    int32_t ids[SHORT];
    uint8_t previous[SHORT + 1], next[SHORT + 1];
} short_word;

#define NO_KEY UINT32_MAX

static inline uint32_t make_key(uint32_t rank, size_t at)
{
    return rank == MC_BPE_NONE ? NO_KEY : rank << 8 | (uint32_t)at;
}

static inline uint32_t key_of(const mc_bpe *bpe, const short_word *w, size_t at, size_t next)
{
    return make_key(mc_bpe_rank(bpe, w->ids[at], w->ids[next]), at);
}

/* Four at a time, one by one: vectors would have to wait for the single keys just written. */
static inline uint32_t smallest(const uint32_t *keys, size_t count)
{
    uint32_t a = NO_KEY, b = NO_KEY, c = NO_KEY, d = NO_KEY;
    for (size_t i = 0; i < count; i += 4) {
        a = keys[i] < a ? keys[i] : a;
        b = keys[i + 1] < b ? keys[i + 1] : b;
        c = keys[i + 2] < c ? keys[i + 2] : c;
        d = keys[i + 3] < d ? keys[i + 3] : d;
    }
    a = a < b ? a : b;
    c = c < d ? c : d;
    return a < c ? a : c;
}

static void link_short(const mc_bpe *bpe, short_word *w, const uint8_t *word, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        w->previous[i] = (uint8_t)(i - 1);
        w->next[i] = (uint8_t)(i + 1);
    }
    if (bpe->all_bytes)
        for (size_t i = 0; i + 1 < count; i++)
            w->keys[i] = make_key(bpe->byte_ranks[word[i] << 8 | word[i + 1]], i);
    else
        for (size_t i = 0; i + 1 < count; i++) w->keys[i] = key_of(bpe, w, i, i + 1);
    for (size_t i = count - 1; i % 4; i++) w->keys[i] = NO_KEY;
}

static size_t merge_short(const mc_bpe *bpe, const uint8_t *word, size_t size, int32_t *out)
{
    short_word w;
    size_t count = first_ids(bpe, word, size, w.ids), found = 0;
    if (count) link_short(bpe, &w, word, count);
    for (uint32_t key; count > 1 && (key = smallest(w.keys, count - 1)) != NO_KEY;) {
        size_t at = key & 0xFF, gone = w.next[at], next = w.next[gone];
        w.ids[at] = mc_bpe_result(bpe, key >> 8, w.ids[at], w.ids[gone]);
        w.next[at] = (uint8_t)next;
        w.previous[next] = (uint8_t)at;
        w.keys[gone] = NO_KEY;
        w.keys[at] = next < count ? key_of(bpe, &w, at, next) : NO_KEY;
        if (at) w.keys[w.previous[at]] = key_of(bpe, &w, w.previous[at], at);
    }
    for (size_t at = 0; at < count; at = w.next[at]) out[found++] = w.ids[at];
    return found;
}

/* ---- long words: what is waiting to be merged ---- */

typedef struct long_word {
    const mc_bpe *bpe;
    mc_bpe_scratch *s;
    mc_bpe_node *nodes;
} long_word;

static void mark(mc_bpe_scratch *s, uint32_t rank)
{
    for (int l = 0; l < s->level_count; l++, rank /= 64) {
        uint64_t *bits = &s->levels[l][rank / 64], before = *bits;
        *bits |= (uint64_t)1 << rank % 64;
        if (before) return;
    }
}

static void unmark(mc_bpe_scratch *s, uint32_t rank)
{
    for (int l = 0; l < s->level_count; l++, rank /= 64) {
        uint64_t *bits = &s->levels[l][rank / 64];
        *bits &= ~((uint64_t)1 << rank % 64);
        if (*bits) return;
    }
}

/* The first rank that has tokens waiting, or MC_BPE_NONE. */
static uint32_t first_marked(const mc_bpe_scratch *s)
{
    uint32_t at = 0;
    for (int l = s->level_count - 1; l >= 0; l--) {
        uint64_t bits = s->levels[l][at];
        if (!bits) return MC_BPE_NONE;
        at = at * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return at;
}

static void heap_put(mc_bpe_scratch *s, uint64_t item)
{
    size_t at = s->heap_count++;
    for (; at && s->heap[(at - 1) / 2] > item; at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = item;
}

static uint64_t heap_take(mc_bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < s->heap_count) {
        if (child + 1 < s->heap_count && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

static void leave_list(long_word *w, mc_bpe_node *node)
{
    if (node->after != MC_BPE_NONE) w->nodes[node->after].before = node->before;
    if (node->before != MC_BPE_NONE)
        w->nodes[node->before].after = node->after;
    else if ((w->s->heads[node->rank] = node->after) == MC_BPE_NONE)
        unmark(w->s, node->rank);
}

static void join_list(long_word *w, uint32_t at)
{
    mc_bpe_node *node = &w->nodes[at];
    uint32_t *head = &w->s->heads[node->rank];
    node->before = MC_BPE_NONE;
    node->after = *head;
    if (*head != MC_BPE_NONE)
        w->nodes[*head].before = at;
    else
        mark(w->s, node->rank);
    *head = at;
}

/* Says anew which merge begins with a token. What the heap held of it before is skipped when it
 * comes up. */
static void set_rank(long_word *w, uint32_t at, uint32_t rank)
{
    mc_bpe_node *node = &w->nodes[at];
    if (node->rank == rank) return;
    if (w->bpe->ordered && node->rank != MC_BPE_NONE) leave_list(w, node);
    node->rank = rank;
    if (rank == MC_BPE_NONE) return;
    if (w->bpe->ordered)
        join_list(w, at);
    else
        heap_put(w->s, (uint64_t)rank << 32 | at);
}

/* ---- long words: merging ---- */

static uint32_t rank_at(const long_word *w, uint32_t at)
{
    uint32_t next = w->nodes[at].next;
    return next == MC_BPE_NONE ? MC_BPE_NONE
                               : mc_bpe_rank(w->bpe, w->nodes[at].id, w->nodes[next].id);
}

/* Makes one token of that at `at` and the next. */
static void merge_at(long_word *w, uint32_t at, int32_t result)
{
    mc_bpe_node *node = &w->nodes[at];
    uint32_t gone = node->next, next = w->nodes[gone].next;
    set_rank(w, gone, MC_BPE_NONE);
    set_rank(w, at, MC_BPE_NONE); /* its next merge may have the same rank, and waits anew */
    node->id = result;
    node->next = next;
    if (next != MC_BPE_NONE) w->nodes[next].previous = at;
    set_rank(w, at, rank_at(w, at));
    if (node->previous != MC_BPE_NONE) set_rank(w, node->previous, rank_at(w, node->previous));
}

/* Merges a run of one token from its beginning on, two and two. */
static void merge_run(long_word *w, uint32_t at, const mc_bpe_merge *merge)
{
    const mc_bpe_node *nodes = w->nodes;
    while (nodes[at].previous != MC_BPE_NONE && nodes[nodes[at].previous].id == merge->left)
        at = nodes[at].previous;
    while (at != MC_BPE_NONE && nodes[at].id == merge->left) {
        uint32_t next = nodes[at].next;
        if (next == MC_BPE_NONE || nodes[next].id != merge->right) return;
        merge_at(w, at, merge->result);
        at = nodes[at].next;
    }
}

/* Where every merge comes after those that make its parts, a merge of rank r brings up later ranks
 * only. So all of rank r can be done in any order, unless they overlap: those of a token with
 * itself. Each step takes constant time, and each but those along a run removes a token. */
static void merge_ordered(long_word *w)
{
    for (uint32_t rank; (rank = first_marked(w->s)) != MC_BPE_NONE;) {
        const mc_bpe_merge *merge = &w->bpe->merges[rank];
        if (merge->left == merge->right)
            merge_run(w, w->s->heads[rank], merge);
        else
            merge_at(w, w->s->heads[rank], merge->result);
    }
}

static void merge_unordered(long_word *w)
{
    while (w->s->heap_count) {
        uint64_t item = heap_take(w->s);
        uint32_t at = (uint32_t)item, rank = (uint32_t)(item >> 32);
        const mc_bpe_node *node = &w->nodes[at];
        if (node->rank == rank)
            merge_at(w, at, mc_bpe_result(w->bpe, rank, node->id, w->nodes[node->next].id));
    }
}

static bool reserve(void *array_pointer, size_t *capacity, size_t wanted, size_t size)
{
    if (*capacity >= wanted) return true;
    void **array = array_pointer;
    size_t doubled = *capacity * 2;
    if (wanted < doubled) wanted = doubled;
    if (wanted > SIZE_MAX / size) return false;
    void *bigger = mc_malloc(wanted * size);
    if (!bigger) return false;
    mc_free(*array);
    *array = bigger;
    *capacity = wanted;
    return true;
}

/* The lists of waiting tokens, all empty; so they are again when a word is done. */
static bool make_lists(const mc_bpe *bpe, mc_bpe_scratch *s)
{
    if (s->heads) return true;
    size_t words[MC_BPE_LEVELS], total = 0, left = bpe->merge_count;
    s->level_count = 0;
    do {
        left = (left + 63) / 64;
        words[s->level_count++] = left;
        total += left;
    } while (left > 1);
    mc_free(s->bits);
    s->bits = mc_calloc(total, sizeof *s->bits);
    if (!s->bits) return false;
    uint64_t *bits = s->bits;
    for (int l = 0; l < s->level_count; bits += words[l++]) s->levels[l] = bits;
    s->heads = mc_malloc(bpe->merge_count * sizeof *s->heads);
    if (!s->heads) return false;
    memset(s->heads, 0xFF, bpe->merge_count * sizeof *s->heads);
    return true;
}

static bool make_room(const mc_bpe *bpe, mc_bpe_scratch *s, size_t count)
{
    /* each token is put into the heap once, and each merge puts two at most */
    s->heap_count = 0;
    return reserve(&s->nodes, &s->node_capacity, count, sizeof *s->nodes) &&
           (bpe->ordered ? make_lists(bpe, s)
                         : reserve(&s->heap, &s->heap_capacity, 3 * count, sizeof *s->heap));
}

static bool merge_long(const mc_bpe *bpe, mc_bpe_scratch *s, int32_t *ids, size_t *count)
{
    size_t n = *count, found = 0;
    if (!make_room(bpe, s, n)) return false;
    long_word w = {bpe, s, s->nodes};
    for (size_t i = 0; i < n; i++)
        w.nodes[i] = (mc_bpe_node){.id = ids[i],
                                   .previous = i ? (uint32_t)i - 1 : MC_BPE_NONE,
                                   .next = i + 1 < n ? (uint32_t)i + 1 : MC_BPE_NONE,
                                   .rank = MC_BPE_NONE};
    for (size_t i = 0; i + 1 < n; i++) set_rank(&w, (uint32_t)i, rank_at(&w, (uint32_t)i));
    if (bpe->ordered)
        merge_ordered(&w);
    else
        merge_unordered(&w);
    for (uint32_t at = 0; at != MC_BPE_NONE; at = w.nodes[at].next) ids[found++] = w.nodes[at].id;
    *count = found;
    return true;
}

bool mc_bpe_merge_word(const mc_bpe *bpe, mc_bpe_scratch *scratch, const uint8_t *word, size_t size,
                       int32_t *out, size_t *count)
{
    if (size <= SHORT) {
        *count = merge_short(bpe, word, size, out);
        return true;
    }
    *count = first_ids(bpe, word, size, out);
    return *count < 2 || !bpe->merge_count || merge_long(bpe, scratch, out, count);
}

void mc_bpe_scratch_release(mc_bpe_scratch *scratch)
{
    void *arrays[] = {scratch->words, scratch->nodes, scratch->heads, scratch->bits, scratch->heap};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) mc_free(arrays[i]);
    mc_regex_release_data(scratch->regex_data);
    *scratch = (mc_bpe_scratch){0};
}
