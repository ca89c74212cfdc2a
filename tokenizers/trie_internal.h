/* A read-only map from byte strings to numbers that finds the longest key at a place in a text.
 *
 * A double array: the state after byte c in state s is `base[s] ^ c`, if that slot's `check` names
 * s as the parent. A step is one load, so a text is matched at a few cycles a byte. */
#ifndef MC_TOKENIZERS_TRIE_INTERNAL_H
#define MC_TOKENIZERS_TRIE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mc_trie_node {
    uint32_t base, check;
} mc_trie_node;

typedef struct mc_trie {
    mc_trie_node *nodes; /* (size); state 0 is the root */
    int32_t *values;     /* (size): of the key that ends in a state, -1 where none does */
    size_t size;         /* a multiple of 256 */
} mc_trie;

typedef struct mc_trie_key {
    const uint8_t *text;
    size_t length; /* at least 1 */
    int32_t value; /* at least 0 */
} mc_trie_key;

enum { MC_TRIE_ROOT = 0 };
#define MC_TRIE_NONE UINT32_MAX

/* Sorts by text, equal texts by value. */
void mc_trie_sort_keys(mc_trie_key *keys, size_t count);

/* Builds a trie of sorted keys; of equal keys the first counts. Zero keys give a trie in which
 * nothing is found. False when memory is out or there are more than 2^32 states. */
bool mc_trie_init(mc_trie *trie, const mc_trie_key *keys, size_t count);
void mc_trie_release(mc_trie *trie);

/* The state after `byte`, or MC_TRIE_NONE. */
static inline uint32_t mc_trie_step(const mc_trie *trie, uint32_t state, uint8_t byte)
{
    uint32_t next = trie->nodes[state].base ^ byte;
    return trie->nodes[next].check == state ? next : MC_TRIE_NONE;
}

/* The state after a whole string, or MC_TRIE_NONE. */
uint32_t mc_trie_walk(const mc_trie *trie, uint32_t state, const uint8_t *text, size_t length);
/* The value of exactly this key, or -1. */
int32_t mc_trie_find(const mc_trie *trie, const uint8_t *text, size_t length);
/* The longest key that `text` continues with from `state`: its value and length, or -1. */
int32_t mc_trie_longest(const mc_trie *trie, uint32_t state, const uint8_t *text, size_t length,
                        size_t *matched);

#endif
