#include "tokenizers/trie_internal.h"

#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"

/* Slots come in blocks of 256, and the children of a state lie in one block, since they are
 * `base ^ byte`. Only the free slots of the newest OPEN_BLOCKS blocks are tried for a new state, so
 * building takes time linear in the number of states. */
enum { BLOCK = 256, OPEN_BLOCKS = 16 };
#define SLOT_FREE UINT32_MAX       /* `check` of a slot without a state */
#define SLOT_ROOT (UINT32_MAX - 1) /* `check` of the root, which is no state's child */

/* A state whose children are still to be placed: the keys [first, last) go through it and agree in
 * their first `depth` bytes. */
typedef struct pending {
    size_t first, last, depth;
    uint32_t state;
} pending;

typedef struct builder {
    mc_trie *trie;
    const mc_trie_key *keys;
    struct {
        uint32_t next, previous;
    } * links;          /* (size): circular list of the free slots that are tried */
    size_t capacity;    /* of the trie's arrays and links */
    uint32_t free_head; /* a slot of the list, SLOT_FREE when it is empty */
    pending *stack;
    size_t stack_count, stack_capacity;
} builder;

static int compare_keys(const void *left, const void *right)
{
    const mc_trie_key *a = left, *b = right;
    size_t shorter = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->text, b->text, shorter);
    if (order) return order;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return (a->value > b->value) - (a->value < b->value);
}

void mc_trie_sort_keys(mc_trie_key *keys, size_t count)
{
    if (count) qsort(keys, count, sizeof *keys, compare_keys);
}

static bool reserve(builder *b, size_t size)
{
    if (size <= b->capacity) return true;
    size_t wanted = b->capacity ? b->capacity * 2 : 16 * BLOCK;
    if (wanted > SLOT_ROOT) return false;
    void *nodes = mc_realloc(b->trie->nodes, wanted * sizeof *b->trie->nodes);
    if (nodes) b->trie->nodes = nodes;
    void *values = mc_realloc(b->trie->values, wanted * sizeof *b->trie->values);
    if (values) b->trie->values = values;
    void *links = mc_realloc(b->links, wanted * sizeof *b->links);
    if (links) b->links = links;
    if (!nodes || !values || !links) return false;
    b->capacity = wanted;
    return true;
}

static void unlink_slot(builder *b, uint32_t slot)
{
    uint32_t next = b->links[slot].next, previous = b->links[slot].previous;
    b->links[previous].next = next;
    b->links[next].previous = previous;
    if (b->free_head == slot) b->free_head = next == slot ? SLOT_FREE : next;
}

static void link_slot(builder *b, uint32_t slot)
{
    if (b->free_head == SLOT_FREE) {
        b->links[slot].next = b->links[slot].previous = slot;
        b->free_head = slot;
        return;
    }
    uint32_t head = b->free_head, tail = b->links[head].previous;
    b->links[slot].next = head;
    b->links[slot].previous = tail;
    b->links[tail].next = b->links[head].previous = slot;
}

/* Adds a block of free slots, and stops trying those of the block OPEN_BLOCKS back. */
static bool add_block(builder *b)
{
    mc_trie *trie = b->trie;
    if (!reserve(b, trie->size + BLOCK)) return false;
    if (trie->size >= OPEN_BLOCKS * BLOCK) {
        uint32_t old = (uint32_t)(trie->size - OPEN_BLOCKS * BLOCK);
        for (uint32_t slot = old; slot < old + BLOCK; slot++)
            if (trie->nodes[slot].check == SLOT_FREE) unlink_slot(b, slot);
    }
    for (uint32_t slot = (uint32_t)trie->size; slot < trie->size + BLOCK; slot++) {
        trie->nodes[slot] = (mc_trie_node){.check = SLOT_FREE};
        trie->values[slot] = -1;
        link_slot(b, slot);
    }
    trie->size += BLOCK;
    return true;
}

static void take_slot(builder *b, uint32_t slot, uint32_t parent)
{
    unlink_slot(b, slot);
    b->trie->nodes[slot].check = parent;
}

/* Finds a base under which the slots of all `count` bytes are free. */
static bool find_base(builder *b, const uint8_t *bytes, int count, uint32_t *base)
{
    const mc_trie_node *nodes = b->trie->nodes;
    uint32_t slot = b->free_head;
    if (slot != SLOT_FREE) {
        do {
            int i = 1;
            *base = slot ^ bytes[0];
            while (i < count && nodes[*base ^ bytes[i]].check == SLOT_FREE) i++;
            if (i == count) return true;
            slot = b->links[slot].next;
        } while (slot != b->free_head);
    }
    *base = (uint32_t)b->trie->size;
    return add_block(b);
}

static bool push(builder *b, pending item)
{
    if (!mc_grow(&b->stack, &b->stack_capacity, b->stack_count, sizeof *b->stack)) return false;
    b->stack[b->stack_count++] = item;
    return true;
}

/* Gives a state its value and its children. */
static bool place_children(builder *b, pending at)
{
    uint8_t bytes[BLOCK];
    size_t starts[BLOCK + 1];
    int count = 0;
    size_t i = at.first;
    if (b->keys[i].length == at.depth) b->trie->values[at.state] = b->keys[i].value;
    while (i < at.last && b->keys[i].length == at.depth) i++;
    for (; i < at.last; i++) {
        uint8_t byte = b->keys[i].text[at.depth];
        if (count && bytes[count - 1] == byte) continue;
        bytes[count] = byte;
        starts[count++] = i;
    }
    if (!count) return true;
    uint32_t base;
    if (!find_base(b, bytes, count, &base)) return false;
    starts[count] = at.last;
    b->trie->nodes[at.state].base = base;
    for (int k = 0; k < count; k++) take_slot(b, base ^ bytes[k], at.state);
    for (int k = count - 1; k >= 0; k--)
        if (!push(b, (pending){starts[k], starts[k + 1], at.depth + 1, base ^ bytes[k]}))
            return false;
    return true;
}

bool mc_trie_init(mc_trie *trie, const mc_trie_key *keys, size_t count)
{
    *trie = (mc_trie){0};
    builder b = {.trie = trie, .keys = keys, .free_head = SLOT_FREE};
    bool ok = add_block(&b);
    if (ok) take_slot(&b, MC_TRIE_ROOT, SLOT_ROOT);
    if (ok && count) ok = push(&b, (pending){0, count, 0, MC_TRIE_ROOT});
    while (ok && b.stack_count) ok = place_children(&b, b.stack[--b.stack_count]);
    mc_free(b.links);
    mc_free(b.stack);
    if (!ok) mc_trie_release(trie);
    return ok;
}

void mc_trie_release(mc_trie *trie)
{
    mc_free(trie->nodes);
    mc_free(trie->values);
    *trie = (mc_trie){0};
}

uint32_t mc_trie_walk(const mc_trie *trie, uint32_t state, const uint8_t *text, size_t length)
{
    for (size_t i = 0; i < length && state != MC_TRIE_NONE; i++)
        state = mc_trie_step(trie, state, text[i]);
    return state;
}

int32_t mc_trie_find(const mc_trie *trie, const uint8_t *text, size_t length)
{
    uint32_t state = mc_trie_walk(trie, MC_TRIE_ROOT, text, length);
    return state == MC_TRIE_NONE || !length ? -1 : trie->values[state];
}

int32_t mc_trie_longest(const mc_trie *trie, uint32_t state, const uint8_t *text, size_t length,
                        size_t *matched)
{
    int32_t found = -1;
    for (size_t i = 0; i < length; i++) {
        state = mc_trie_step(trie, state, text[i]);
        if (state == MC_TRIE_NONE) break;
        if (trie->values[state] < 0) continue;
        found = trie->values[state];
        *matched = i + 1;
    }
    return found;
}
