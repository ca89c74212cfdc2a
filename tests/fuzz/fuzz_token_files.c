/* Any bytes as a token file: refused with a message, or all of it readable. The first byte says
 * whether they are a shard of llm.c's or Megatron's index; in that case the next two are the size
 * of the .bin. */
#include <assert.h>
#include <stdint.h>
#include <string.h>
#include "datasets/lm/token_file_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_shard(const uint8_t *data, size_t size)
{
    mc_error err = {0};
    mc_token_shard shard = {0};
    mc_status status = mc_llmc_read(&err, "fuzz", data, size, &shard);
    assert(status == err.status);
    if (status) assert(strstr(err.message, "fuzz"));
    char name[] = "fuzz";
    shard.path = name;
    int32_t tokens[64];
    for (int64_t at = 0; !status && at < shard.count; at += 64) {
        int64_t some = shard.count - at < 64 ? shard.count - at : 64;
        mc_status read = mc_token_shard_read(&err, &shard, at, some, 50257, tokens);
        assert(read == err.status);
        for (int64_t i = 0; !read && i < some; i++) assert(tokens[i] >= 0 && tokens[i] < 50257);
        mc_error_clear(&err);
    }
    mc_error_clear(&err);
}

static void read_index(const uint8_t *data, size_t size, uint64_t bin_size)
{
    mc_error err = {0};
    mc_token_index index = {0};
    mc_status status = mc_token_index_init(&err, "fuzz", data, size, bin_size, &index);
    assert(status == err.status);
    if (status) {
        assert(strstr(err.message, "fuzz"));
    } else {
        int64_t tokens = (int64_t)(bin_size / mc_token_width(index.type)), before = 0, begin = 0;
        for (int64_t i = 0; i <= index.documents; i++) {
            status = mc_token_index_document(&err, &index, i, &begin);
            assert(status == MC_OK); /* an index as small as these was checked whole */
            assert(begin >= before && begin <= tokens && (i || begin == 0));
            before = begin;
        }
        assert(before == tokens);
    }
    mc_token_index_release(&index);
    mc_error_clear(&err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    uint16_t bin_size;
    memcpy(&bin_size, data + 1, sizeof bin_size);
    if (data[0] % 2)
        read_shard(data + 1, size - 1);
    else
        read_index(data + 3, size - 3, bin_size);
    return 0;
}
