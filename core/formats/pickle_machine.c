/* Functions that the opcodes use: memory, the pickle's bytes, the stack. */
#include "core/formats/pickle_internal.h"

#include <string.h>
#include "core/base/memory_internal.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* A pickle of torch.save takes about 6 times its size in memory. */
enum { BUDGET_TIMES = 32, BUDGET_LEAST = 1 << 16 };

void mc_pickle_init(mc_pickle *p, mc_error *err, const char *where, const uint8_t *data,
                    size_t size)
{
    *p = (mc_pickle){.err = err, .where = where, .data = data, .size = size};
    p->budget = size < (SIZE_MAX - BUDGET_LEAST) / BUDGET_TIMES ? size * BUDGET_TIMES + BUDGET_LEAST
                                                                : SIZE_MAX;
}

void mc_pickle_release(mc_pickle *p)
{
    mc_arena_release(&p->arena);
    mc_free(p->stack);
    mc_free(p->memo);
    mc_free(p->marks);
    *p = (mc_pickle){0};
}

static bool count_memory(mc_pickle *p, size_t bytes)
{
    p->memory += bytes;
    return p->memory <= p->budget ||
           mc_pickle_error(p, "its values take more than %zu bytes, %d times what it has",
                           p->budget, BUDGET_TIMES);
}

static bool out_of_memory(mc_pickle *p)
{
    mc_error_set(p->err, MC_ERR_NOMEM, "%s: out of memory for its values", p->where);
    return false;
}

void *mc_pickle_alloc(mc_pickle *p, size_t bytes)
{
    if (!count_memory(p, bytes)) return NULL;
    void *memory = mc_arena_alloc(&p->arena, bytes);
    if (!memory) out_of_memory(p);
    return memory;
}

bool mc_pickle_grow(mc_pickle *p, void *array, size_t *capacity, size_t count, size_t element)
{
    size_t before = *capacity;
    if (!mc_grow(array, capacity, count, element)) return out_of_memory(p);
    return count_memory(p, (*capacity - before) * element);
}

const char *mc_pickle_show(char out[MC_PICKLE_SHOWN + 1], const char *text, size_t length)
{
    if (length > MC_PICKLE_SHOWN) length = MC_PICKLE_SHOWN;
    for (size_t i = 0; i < length; i++) out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    out[length] = '\0';
    return out;
}

/* ---- bytes, stack, containers ---------------------------------------------------------------- */

const uint8_t *mc_pickle_take(mc_pickle *p, uint64_t size)
{
    if (size > p->size - p->at) {
        mc_pickle_error(p, "%s of %llu bytes, but %zu are left", mc_pickle_op_name(p),
                        (unsigned long long)size, p->size - p->at);
        return NULL;
    }
    const uint8_t *taken = p->data + p->at;
    p->at += (size_t)size;
    return taken;
}

bool mc_pickle_take_number(mc_pickle *p, int bytes, uint64_t *out)
{
    const uint8_t *from = mc_pickle_take(p, (uint64_t)bytes);
    *out = 0;
    for (int i = bytes - 1; from && i >= 0; i--) *out = *out << 8 | from[i];
    return from != NULL;
}

bool mc_pickle_take_line(mc_pickle *p, const char **text, size_t *length)
{
    const uint8_t *from = p->data + p->at, *end = memchr(from, '\n', p->size - p->at);
    if (!end) return mc_pickle_error(p, "%s without the end of its line", mc_pickle_op_name(p));
    *text = (const char *)from;
    *length = (size_t)(end - from);
    p->at += *length + 1;
    return true;
}

bool mc_pickle_push(mc_pickle *p, mc_pickle_value value)
{
    if (!mc_pickle_grow(p, &p->stack, &p->capacity, p->count, sizeof *p->stack)) return false;
    p->stack[p->count++] = value;
    return true;
}

const mc_pickle_value *mc_pickle_pop(mc_pickle *p, size_t count)
{
    size_t base = p->mark_count ? p->marks[p->mark_count - 1] : 0;
    if (p->count - base < count) {
        mc_pickle_error(p, "%s finds too few values on the stack", mc_pickle_op_name(p));
        return NULL;
    }
    p->count -= count;
    return p->stack + p->count;
}

const mc_pickle_value *mc_pickle_pop_mark(mc_pickle *p, size_t *count)
{
    if (!p->mark_count) {
        mc_pickle_error(p, "%s finds no mark on the stack", mc_pickle_op_name(p));
        return NULL;
    }
    size_t base = p->marks[--p->mark_count];
    *count = p->count - base;
    p->count = base;
    return p->stack + base;
}

bool mc_pickle_extend(mc_pickle *p, mc_pickle_node *node, const mc_pickle_value *items,
                      size_t count)
{
    if (count > node->capacity - node->count) {
        size_t capacity =
            2 * node->capacity > node->count + count ? 2 * node->capacity : node->count + count;
        mc_pickle_value *grown = mc_pickle_alloc(p, capacity * sizeof *grown);
        if (!grown) return false;
        if (node->count) memcpy(grown, node->items, node->count * sizeof *grown);
        node->items = grown;
        node->capacity = capacity;
    }
    if (count) memcpy(node->items + node->count, items, count * sizeof *items);
    node->count += count;
    return true;
}

bool mc_pickle_container(mc_pickle *p, mc_pickle_kind kind, const mc_pickle_value *items,
                         size_t count, mc_pickle_value *out)
{
    mc_pickle_node *node = mc_pickle_alloc(p, sizeof *node);
    if (!node || !mc_pickle_extend(p, node, items, count)) return false;
    *out = (mc_pickle_value){.kind = kind, .node = node};
    return true;
}

bool mc_pickle_push_container(mc_pickle *p, mc_pickle_kind kind, const mc_pickle_value *items,
                              size_t count)
{
    mc_pickle_value made;
    return mc_pickle_container(p, kind, items, count, &made) && mc_pickle_push(p, made);
}
