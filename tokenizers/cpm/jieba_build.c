#include "tokenizers/cpm/jieba_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"

enum { SOURCE_MAX = 1 << 29 };

typedef struct emission {
    uint32_t c;
    int state;
    double value;
} emission;

/* What the table is made of. */
typedef struct builder {
    mc_jieba_header header;
    mc_jieba_words words; /* sorted, each once and with a frequency */
    uint64_t total;
    double *logs;   /* heap (log_count) */
    emission *read; /* heap (read_count): as they stand in the file */
    size_t read_count, read_capacity;
    double (*emissions)[MC_JIEBA_STATES]; /* heap (char_count) */
    mc_trie trie;
} builder;

static mc_status no_memory(mc_error *err, const char *path)
{
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for jieba's table", path);
}

/* ---- The dictionary -------------------------------------------------------------------------- */

static int compare_words(const void *left, const void *right)
{
    const mc_jieba_word *a = left, *b = right;
    int order = memcmp(a->text, b->text, a->length < b->length ? a->length : b->length);
    if (order) return order;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return (a->line > b->line) - (a->line < b->line);
}

/* jieba's rules: of a word that comes twice the last line counts, but both add to the total. A
 * frequency of 0 is none. */
static mc_status sort_words(builder *b, mc_error *err, const char *path)
{
    mc_jieba_word *words = b->words.items;
    size_t count = b->words.count, kept = 0;
    for (size_t i = 0; i < count; i++) {
        b->total += words[i].frequency;
        if (b->total > UINT64_C(1) << 53)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: frequencies add up to more than 2^53",
                                path);
    }
    qsort(words, count, sizeof *words, compare_words);
    for (size_t i = 0; i < count; i++) {
        const mc_jieba_word *next = i + 1 < count ? &words[i + 1] : NULL;
        bool last = !next || next->length != words[i].length ||
                    memcmp(next->text, words[i].text, words[i].length) != 0;
        if (!last || !words[i].frequency) continue;
        words[kept++] = words[i];
        if (words[i].length > b->header.longest) b->header.longest = words[i].length;
    }
    b->words.count = kept;
    if (kept) return MC_OK;
    return mc_error_set(err, MC_ERR_FORMAT, "%s: no word has a frequency", path);
}

static int compare_frequencies(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The logarithms of all frequencies that there are, in the place of the sorted frequencies. */
static mc_status take_logs(builder *b, mc_error *err, const char *path, uint64_t *frequencies)
{
    double log_of_total = log((double)b->total);
    size_t count = 0;
    for (size_t i = 0; i < b->words.count; i++) frequencies[i] = b->words.items[i].frequency;
    qsort(frequencies, b->words.count, sizeof *frequencies, compare_frequencies);
    for (size_t i = 0; i < b->words.count; i++)
        if (!count || frequencies[count - 1] != frequencies[i])
            frequencies[count++] = frequencies[i];
    b->logs = mc_malloc(count * sizeof *b->logs);
    if (!b->logs) return no_memory(err, path);
    for (size_t i = 0; i < count; i++) b->logs[i] = log((double)frequencies[i]) - log_of_total;
    b->header.log_count = (uint32_t)count;
    b->header.unknown = 0.0 - log_of_total;
    return MC_OK;
}

static int32_t find_frequency(const uint64_t *frequencies, size_t count, uint64_t frequency)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (frequencies[middle] < frequency)
            low = middle + 1;
        else
            high = middle;
    }
    return (int32_t)low;
}

static mc_status make_trie(builder *b, mc_error *err, const char *path)
{
    size_t count = b->words.count;
    uint64_t *frequencies = mc_malloc(count * sizeof *frequencies);
    mc_trie_key *keys = mc_malloc(count * sizeof *keys);
    mc_status status = frequencies && keys ? MC_OK : no_memory(err, path);
    if (!status) status = take_logs(b, err, path, frequencies);
    for (size_t i = 0; i < count && !status; i++) {
        const mc_jieba_word *word = &b->words.items[i];
        keys[i] = (mc_trie_key){(const uint8_t *)word->text, word->length,
                                find_frequency(frequencies, b->header.log_count, word->frequency)};
    }
    if (!status && (!mc_trie_init(&b->trie, keys, count) || b->trie.size > UINT32_MAX))
        status = no_memory(err, path);
    b->header.trie_size = (uint32_t)b->trie.size;
    mc_free(keys);
    mc_free(frequencies);
    return status;
}

/* ---- Probabilities --------------------------------------------------------------------------- */

/* A file of probabilities as it is read. */
typedef struct reading {
    builder *b;
    uint32_t seen; /* bits: of which keys there was a probability already */
} reading;

/* Notes that a key has come; an error if it has before. */
static mc_status see(reading *r, int key)
{
    uint32_t bit = UINT32_C(1) << key, before = r->seen;
    r->seen |= bit;
    return before & bit ? MC_ERR_FORMAT : MC_OK;
}

static mc_status take_start(void *user, int state, uint32_t key, double value)
{
    reading *r = user;
    (void)key;
    r->b->header.start[state] = value;
    return see(r, state);
}

static mc_status take_transition(void *user, int state, uint32_t key, double value)
{
    static const char names[] = "BEMS";
    reading *r = user;
    const char *to = key && key < 128 ? strchr(names, (int)key) : NULL;
    if (!to) return MC_ERR_FORMAT;
    r->b->header.transitions[state][to - names] = value;
    return see(r, 4 * state + (int)(to - names));
}

/* The model is asked for Chinese characters only; jieba's file holds one mark besides. */
static mc_status take_emission(void *user, int state, uint32_t key, double value)
{
    reading *r = user;
    if (key < MC_JIEBA_FIRST || key > MC_JIEBA_LAST) return MC_OK;
    builder *b = r->b;
    if (!mc_grow(&b->read, &b->read_capacity, b->read_count, sizeof *b->read)) return MC_ERR_NOMEM;
    b->read[b->read_count++] = (emission){key, state, value};
    return MC_OK;
}

/* Puts the emissions in their places. */
static mc_status order_emissions(builder *b, mc_error *err, const char *path)
{
    uint32_t first = MC_JIEBA_LAST, last = MC_JIEBA_FIRST;
    for (size_t i = 0; i < b->read_count; i++) {
        first = b->read[i].c < first ? b->read[i].c : first;
        last = b->read[i].c > last ? b->read[i].c : last;
    }
    b->header.first_char = first;
    b->header.char_count = b->read_count ? last - first + 1 : 0;
    b->emissions = mc_malloc(b->header.char_count * sizeof *b->emissions);
    if (!b->emissions) return no_memory(err, path);
    for (size_t i = 0; i < b->header.char_count; i++)
        for (int j = 0; j < MC_JIEBA_STATES; j++) b->emissions[i][j] = MC_JIEBA_NEVER;
    for (size_t i = 0; i < b->read_count; i++) {
        double *place = &b->emissions[b->read[i].c - first][b->read[i].state];
        if (*place != MC_JIEBA_NEVER)
            return mc_error_set(err, MC_ERR_FORMAT, "%s: U+%04X has two probabilities in %c", path,
                                b->read[i].c, "BEMS"[b->read[i].state]);
        *place = b->read[i].value;
    }
    return MC_OK;
}

static mc_status read_model(builder *b, mc_error *err, const mc_jieba_source *sources)
{
    reading starts = {.b = b}, transitions = {.b = b}, emissions = {.b = b};
    for (int i = 0; i < MC_JIEBA_STATES; i++)
        for (int j = 0; j < MC_JIEBA_STATES; j++) b->header.transitions[i][j] = MC_JIEBA_NEVER;
    const mc_jieba_source *start = &sources[MC_JIEBA_START_P];
    if (mc_jieba_parse_p(err, start, false, take_start, &starts)) return err->status;
    if (starts.seen != 15)
        return mc_error_set(err, MC_ERR_FORMAT, "%s: expected all of B, E, M and S", start->path);
    mc_jieba_parse_p(err, &sources[MC_JIEBA_TRANS_P], true, take_transition, &transitions);
    if (!mc_error_is_set(err))
        mc_jieba_parse_p(err, &sources[MC_JIEBA_EMIT_P], true, take_emission, &emissions);
    return err->status ? err->status : order_emissions(b, err, sources[MC_JIEBA_EMIT_P].path);
}

/* ---- The table ------------------------------------------------------------------------------- */

static void *append(void *at, const void *data, size_t size)
{
    memcpy(at, data, size);
    return (uint8_t *)at + size;
}

static void *write_image(builder *b, size_t *size)
{
    mc_jieba_header *h = &b->header;
    size_t logs = h->log_count * sizeof *b->logs, emissions = h->char_count * sizeof *b->emissions;
    size_t nodes = b->trie.size * sizeof *b->trie.nodes;
    size_t values = b->trie.size * sizeof *b->trie.values;
    *size = sizeof *h + logs + emissions + nodes + values;
    uint8_t *image = mc_malloc(*size);
    if (!image) return NULL;
    memcpy(h->magic, MC_JIEBA_MAGIC, sizeof h->magic);
    h->version = MC_JIEBA_VERSION;
    h->byte_order = 0x01020304;
    h->size = *size;
    void *at = append(image, h, sizeof *h);
    at = append(at, b->logs, logs);
    at = append(at, b->emissions, emissions);
    at = append(at, b->trie.nodes, nodes);
    append(at, b->trie.values, values);
    size_t summed = offsetof(mc_jieba_header, checksum) + sizeof h->checksum;
    h->checksum = mc_jieba_checksum(image + summed, *size - summed);
    memcpy(image, h, sizeof *h);
    return image;
}

void *mc_jieba_build(mc_error *err, const mc_jieba_source sources[MC_JIEBA_SOURCES], size_t *size)
{
    builder b = {0};
    void *image = NULL;
    const char *path = sources[MC_JIEBA_DICT].path;
    if (read_model(&b, err, sources) == MC_OK &&
        mc_jieba_parse_dict(err, &sources[MC_JIEBA_DICT], &b.words) == MC_OK &&
        sort_words(&b, err, path) == MC_OK && make_trie(&b, err, path) == MC_OK) {
        image = write_image(&b, size);
        if (!image) no_memory(err, path);
    }
    mc_free(b.words.items);
    mc_free(b.logs);
    mc_free(b.read);
    mc_free(b.emissions);
    mc_trie_release(&b.trie);
    return image;
}

void *mc_jieba_build_folder(mc_error *err, const char *folder, size_t *size)
{
    static const char *const names[MC_JIEBA_SOURCES] = {
        "dict.txt", "finalseg/prob_start.py", "finalseg/prob_trans.py", "finalseg/prob_emit.py"};
    char paths[MC_JIEBA_SOURCES][MC_PATH_MAX];
    char *texts[MC_JIEBA_SOURCES] = {0};
    mc_jieba_source sources[MC_JIEBA_SOURCES];
    void *image = NULL;
    for (int i = 0; i < MC_JIEBA_SOURCES && !mc_error_is_set(err); i++) {
        sources[i].path = paths[i];
        if (mc_path_join(err, paths[i], folder, names[i])) break;
        sources[i].text = texts[i] = mc_file_read(err, paths[i], SOURCE_MAX, &sources[i].size);
    }
    if (!mc_error_is_set(err)) image = mc_jieba_build(err, sources, size);
    for (int i = 0; i < MC_JIEBA_SOURCES; i++) mc_free(texts[i]);
    return image;
}
