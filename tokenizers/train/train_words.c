#include <string.h>
#include "core/base/file_reader_internal.h"
#include "core/base/hash_internal.h"
#include "tokenizers/train/train_internal.h"

enum { FIRST_SLOTS = 1 << 12, READ_SIZE = 1 << 20 };

/* ---- sets of texts ---- */

static uint32_t *slot_of(const mc_text_set *set, const void *text, size_t length)
{
    size_t at = (size_t)mc_hash(MC_HASH_START, text, length);
    for (;; at++) {
        uint32_t *slot = &set->slots[at & (set->slot_count - 1)];
        if (!*slot) return slot;
        mc_entry known = set->texts[*slot - 1];
        if (known.length == length && memcmp(set->pool.data + known.offset, text, length) == 0)
            return slot;
    }
}

static bool grow_slots(mc_text_set *set)
{
    size_t room = set->slot_count ? 2 * set->slot_count : FIRST_SLOTS;
    uint32_t *slots = mc_calloc(room, sizeof *slots);
    if (!slots) return false;
    mc_free(set->slots);
    set->slots = slots;
    set->slot_count = room;
    for (size_t i = 0; i < set->count; i++)
        *slot_of(set, mc_text_set_get(set, i), set->texts[i].length) = (uint32_t)(i + 1);
    return true;
}

int64_t mc_text_set_add(mc_text_set *set, const void *text, size_t length)
{
    if (2 * (set->count + 1) > set->slot_count && !grow_slots(set)) return -1;
    uint32_t *slot = slot_of(set, text, length);
    if (*slot) return *slot - 1;
    if (set->count >= UINT32_MAX / 2 || length > UINT32_MAX ||
        !mc_grow(&set->texts, &set->capacity, set->count, sizeof *set->texts))
        return -1;
    mc_entry entry = {.offset = set->pool.count, .length = (uint32_t)length};
    if (!mc_bytes_append(&set->pool, text, length) || !mc_bytes_append(&set->pool, "", 1))
        return -1;
    set->texts[set->count++] = entry;
    *slot = (uint32_t)set->count;
    return (int64_t)set->count - 1;
}

void mc_text_set_release(mc_text_set *set)
{
    mc_bytes_release(&set->pool);
    mc_free(set->texts);
    mc_free(set->slots);
    *set = (mc_text_set){0};
}

/* ---- counting ---- */

typedef struct word_reader {
    mc_error *err;
    mc_word_counts *counts;
    const char *path;
    int64_t line;  /* number of the line that is read, from 1 */
    mc_bytes rest; /* the start of a line whose end has not been read yet */
} word_reader;

static mc_status no_memory(const word_reader *r)
{
    return mc_error_set(r->err, MC_ERR_NOMEM, "%s: out of memory for its words", r->path);
}

static mc_status count_word(word_reader *r, const uint8_t *word, size_t length)
{
    mc_word_counts *c = r->counts;
    size_t before = c->words.count;
    int64_t number = mc_text_set_add(&c->words, word, length);
    if (number < 0) return no_memory(r);
    if ((size_t)number == before) {
        if (!mc_grow(&c->counts, &c->count_capacity, before, sizeof *c->counts))
            return no_memory(r);
        c->counts[number] = 0;
    }
    c->counts[number]++;
    return MC_OK;
}

static mc_status count_line(word_reader *r, const uint8_t *line, const uint8_t *end)
{
    const uint8_t *bad = mc_utf8_find_invalid(line, end);
    if (bad)
        return mc_error_set(r->err, MC_ERR_FORMAT, "%s:%lld: byte 0x%02x is not valid UTF-8",
                            r->path, (long long)r->line, *bad);
    mc_status status = MC_OK;
    for (const uint8_t *stop; line < end && !status; line = stop) {
        stop = mc_bpe_word_end(MC_CUT_GPT2, line, end);
        status = count_word(r, line, (size_t)(stop - line));
    }
    r->line++;
    return status;
}

/* Counts the lines that end in `chunk`, and keeps the rest. */
static mc_status take_chunk(word_reader *r, const uint8_t *chunk, size_t size)
{
    const uint8_t *end = chunk + size, *stop;
    mc_status status = MC_OK;
    while (!status && chunk < end && (stop = memchr(chunk, '\n', (size_t)(end - chunk)))) {
        size_t length = (size_t)(++stop - chunk);
        if (r->rest.count) {
            if (!mc_bytes_append(&r->rest, chunk, length)) return no_memory(r);
            status = count_line(r, r->rest.data, r->rest.data + r->rest.count);
            r->rest.count = 0;
        } else {
            status = count_line(r, chunk, stop);
        }
        chunk = stop;
    }
    if (!status && chunk < end && !mc_bytes_append(&r->rest, chunk, (size_t)(end - chunk)))
        return no_memory(r);
    return status;
}

mc_status mc_count_words(mc_error *err, mc_word_counts *counts, const char *path)
{
    word_reader r = {.err = err, .counts = counts, .path = path, .line = 1};
    mc_file_reader file;
    uint8_t *buffer = mc_malloc(READ_SIZE);
    mc_status status = mc_file_reader_init(err, &file, path);
    if (!status && !buffer) status = no_memory(&r);
    for (size_t got; !status && (got = mc_file_read_next(&file, buffer, READ_SIZE));)
        status = take_chunk(&r, buffer, got);
    if (!status) status = err->status;
    if (!status && r.rest.count) status = count_line(&r, r.rest.data, r.rest.data + r.rest.count);
    mc_file_reader_release(&file);
    mc_bytes_release(&r.rest);
    mc_free(buffer);
    return status;
}

void mc_word_counts_release(mc_word_counts *counts)
{
    mc_text_set_release(&counts->words);
    mc_free(counts->counts);
    *counts = (mc_word_counts){0};
}
