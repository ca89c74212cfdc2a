/* The best pieces of one word, or of a text whose words depend on one another.
 *
 * One pass from left to right: at each place the best sum of pieces that end there is known, and
 * each piece that begins there offers its own to the place where it ends. A character that is no
 * piece by itself may be unknown. Ties go to the offer that came first, the longest piece. Sums are
 * rounded and begun anew as SentencePiece 0.2.2 and later do it, since they decide between pieces
 * of equal scores. */
#include <math.h>
#include "tokenizers/tokenizer_internal.h"

/* Beyond this a sum is taken off all that are being compared. */
static const double SUM_LIMIT = 100000;

#define NOT_REACHED UINT32_MAX

/* How many bytes a first byte says that its character has. */
static size_t character_size(uint8_t byte)
{
    return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

static inline double add(const mc_unigram *u, double a, double b)
{
    return u->single ? (double)((float)a + (float)b) : a + b;
}

static inline void offer(mc_unigram_node *node, double sum, size_t start, int32_t id)
{
    if (node->start == NOT_REACHED) {
        *node = (mc_unigram_node){sum, INFINITY, (uint32_t)start, id};
    } else if (sum > node->best) {
        *node = (mc_unigram_node){sum, (float)(sum - node->best), (uint32_t)start, id};
    } else if (!(node->best - sum > (double)node->gap)) {
        node->gap = (float)(node->best - sum);
    }
}

static bool make_nodes(mc_unigram_scratch *s, size_t count)
{
    if (count > s->node_capacity) {
        size_t capacity = count < 256 ? 256 : count + count / 2;
        mc_unigram_node *nodes = mc_malloc(capacity * sizeof *nodes);
        if (!nodes) return false;
        mc_free(s->nodes);
        s->nodes = nodes;
        s->node_capacity = capacity;
    }
    for (size_t i = 0; i < count; i++) s->nodes[i].start = NOT_REACHED;
    return true;
}

static void begin_anew(mc_unigram_node *nodes, size_t at, size_t last)
{
    double offset = nodes[at].best;
    for (size_t i = at; i <= last; i++)
        if (i == at || nodes[i].start != NOT_REACHED)
            nodes[i].best = (double)((float)nodes[i].best - (float)offset);
}

/* Offers of all pieces that begin at `at`; the last place that one of them reached. */
static size_t offer_pieces(const mc_tokenizer *tok, mc_unigram_node *nodes, const uint8_t *text,
                           size_t size, size_t at)
{
    const mc_unigram *u = &tok->unigram;
    const mc_trie *trie = &tok->trie;
    uint32_t state = MC_TRIE_ROOT;
    size_t step = character_size(text[at]), last = at;
    double here = nodes[at].best;
    bool known = false;
    if (step > size - at) step = size - at;
    for (size_t i = at; i < size; i++) {
        state = mc_trie_step(trie, state, text[i]);
        if (state == MC_TRIE_NONE) break;
        int32_t id = trie->values[state];
        if (id < 0 || u->weights[id] == -(double)INFINITY) continue;
        offer(&nodes[i + 1], add(u, u->weights[id], here), at, id);
        known = known || i + 1 == at + step;
        last = i + 1;
    }
    if (known) return last;
    offer(&nodes[at + step], add(u, u->unknown, here), at, u->unk_id);
    return last > at + step ? last : at + step;
}

/* Turns the way back from the end round; returns where its first piece ends. Each `start` on the
 * way then is where the next piece ends. */
static size_t turn_round(mc_unigram_node *nodes, size_t size, mc_unigram_path *path)
{
    size_t next = 0;
    for (size_t at = size; at > 0;) {
        size_t start = nodes[at].start;
        if (nodes[at].gap < path->gap) path->gap = nodes[at].gap;
        nodes[at].start = (uint32_t)next;
        next = at;
        at = start;
    }
    return next;
}

size_t mc_unigram_find_path(const mc_tokenizer *tok, mc_unigram_scratch *s, const uint8_t *text,
                            size_t size, double *sum, mc_unigram_path *path)
{
    *path = (mc_unigram_path){.gap = INFINITY};
    if (!make_nodes(s, size + 1)) return 0;
    mc_unigram_node *nodes = s->nodes;
    size_t last = 0;
    nodes[0] = (mc_unigram_node){.best = *sum, .start = NOT_REACHED};
    for (size_t at = 0, step; at < size; at += step) {
        double here = nodes[at].best;
        if (tok->unigram.single && fabs(here) > SUM_LIMIT) begin_anew(nodes, at, last);
        if (here < (double)path->lowest) path->lowest = (float)here;
        size_t reached = offer_pieces(tok, nodes, text, size, at);
        if (reached > last) last = reached;
        step = character_size(text[at]);
    }
    *sum = nodes[size].best;
    return turn_round(nodes, size, path);
}
