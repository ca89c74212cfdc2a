/* Any bytes as a table of Chinese words, or as one of the files that it is made of. The first byte
 * says which: a table as it stands; changes to a good one, of four bytes each (part, place in two,
 * value), after which its checksum is put right; dict.txt; prob_start.py; prob_trans.py;
 * prob_emit.py. What opens has to cut texts into pieces that are the texts. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "tokenizers/cpm/jieba_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const good[MC_JIEBA_SOURCES] = {
    "我 300 r\n来到 50 v\n北京 80 ns\n清华大学 15 nt\n的 9 u\n是 9 v\n的是 1\na1 2\n",
    "P={'B': -0.25, 'E': -3.14e+100, 'M': -3.14e+100, 'S': -1.5}",
    "P={'B': {'E': -0.5, 'M': -1.0}, 'E': {'B': -0.6, 'S': -0.8}, 'M': {'E': -0.3, 'M': -1.3},"
    " 'S': {'B': -0.7, 'S': -0.7}}",
    "P={'B': {'\\u4e00': -3.0}, 'E': {'\\u4e01': -3.5}, 'M': {'\\u4e02': -2.5}, 'S': {'七': -2}}"};

static bool follow(void *user, const uint8_t *word, size_t size, size_t chars)
{
    const uint8_t **next = user;
    assert(word == *next && size && chars && chars <= size);
    *next = word + size;
    return true;
}

static void use(const mc_jieba *jieba, const uint8_t *text, size_t size)
{
    mc_jieba_scratch scratch = {0};
    const uint8_t *next = text;
    if (size > 2048) size = 2048;
    mc_status status = mc_jieba_cut(jieba, &scratch, text, size, follow, &next);
    assert(status == MC_OK && next == text + size);
    mc_jieba_scratch_release(&scratch);
}

/* Opens a table and cuts texts with it; frees it. Whether it was one. */
static bool open_table(void *image, size_t size, const uint8_t *data, size_t data_size)
{
    static const char text[] = "我来到北京清华大学，的是a1.5%一丁丂七。"
                               "的是网易C++\r\n\xe5\x8c";
    mc_error err = {0};
    mc_jieba jieba = {.image = image};
    mc_status status = mc_jieba_read(&err, "fuzz", image, size, &jieba);
    assert(status == err.status);
    if (status) {
        assert(strstr(err.message, "fuzz"));
    } else {
        use(&jieba, (const uint8_t *)text, strlen(text));
        use(&jieba, data, data_size);
    }
    mc_jieba_release(&jieba);
    mc_error_clear(&err);
    return !status;
}

/* The table of good files, but one that is the data; NULL where it is none. */
static void *build(int source, const uint8_t *data, size_t data_size, size_t *size)
{
    mc_error err = {0};
    mc_jieba_source sources[MC_JIEBA_SOURCES];
    for (int i = 0; i < MC_JIEBA_SOURCES; i++)
        sources[i] = (mc_jieba_source){"good", good[i], strlen(good[i])};
    if (source >= 0) sources[source] = (mc_jieba_source){"fuzz", (const char *)data, data_size};
    void *image = mc_jieba_build(&err, sources, size);
    assert((image == NULL) == (err.status != MC_OK));
    if (!image) assert(strstr(err.message, "fuzz"));
    mc_error_clear(&err);
    return image;
}

static void change(uint8_t *image, size_t size, const uint8_t *data, size_t data_size)
{
    mc_jieba_header h;
    memcpy(&h, image, sizeof h);
    size_t nodes =
        sizeof h + h.log_count * sizeof(double) + sizeof(double) * MC_JIEBA_STATES * h.char_count;
    size_t values = nodes + h.trie_size * sizeof(mc_trie_node);
    const size_t parts[] = {0, sizeof h, nodes, values}, ends[] = {sizeof h, nodes, values, size};
    for (; data_size >= 4; data += 4, data_size -= 4) {
        int part = data[0] % 4;
        size_t at = parts[part] + ((size_t)data[1] << 8 | data[2]) % (ends[part] - parts[part]);
        image[at] = data[3];
    }
    size_t summed = offsetof(mc_jieba_header, checksum) + sizeof h.checksum;
    h.checksum = mc_jieba_checksum(image + summed, size - summed);
    memcpy(image + offsetof(mc_jieba_header, checksum), &h.checksum, sizeof h.checksum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    int kind = *data++ % 6;
    size_t image_size = --size;
    uint8_t *image;
    if (kind == 0) {
        image = mc_malloc(size);
        if (image && size) memcpy(image, data, size);
    } else {
        image = build(kind - 2, data, size, &image_size);
    }
    if (image && kind == 1) change(image, image_size, data, size);
    if (image && !open_table(image, image_size, data, size)) assert(kind < 2);
    return 0;
}
