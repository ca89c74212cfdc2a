/* Writing token files. Counts are known only at the end: llm.c's header is patched then, Megatron's
 * index is written then, from the lengths of the documents. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "datasets/lm/prepare_internal.h"

enum {
    LLMC_VOCABULARY = 1 << 16,
    MEGATRON_U16_VOCABULARY = 65500, /* below it Megatron's own tool chooses u16 */
    CHUNK = 4096,                    /* tokens or numbers converted at a time */
};

mc_status mc_token_writer_paths(mc_error *err, mc_token_format format, const char *output,
                                char bin[MC_PATH_MAX], char idx[MC_PATH_MAX])
{
    size_t length = strlen(output), stem = length;
    idx[0] = '\0';
    bool megatron = format == MC_TOKENS_MEGATRON;
    if (megatron && length > 4 && strcmp(output + length - 4, ".bin") == 0) stem -= 4;
    if (length + 5 > MC_PATH_MAX)
        return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", output);
    snprintf(bin, MC_PATH_MAX, "%.*s%s", (int)stem, output, megatron ? ".bin" : "");
    if (megatron) snprintf(idx, MC_PATH_MAX, "%.*s.idx", (int)stem, output);
    return MC_OK;
}

static mc_status check_vocabulary(mc_error *err, const mc_token_writer *w, const char *output,
                                  int vocabulary)
{
    if (w->format != MC_TOKENS_LLMC || vocabulary <= LLMC_VOCABULARY) return MC_OK;
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: a vocabulary of %d does not fit the 16 bits of a token in llm.c's "
                        "format (at most %d): use the format megatron",
                        output, vocabulary, LLMC_VOCABULARY);
}

/* A finished file takes the place of what is there. Of a link that is what it points to. */
static mc_status find_place(mc_error *err, char path[MC_PATH_MAX])
{
    struct stat info;
    char real[PATH_MAX];
    if (realpath(path, real)) snprintf(path, MC_PATH_MAX, "%s", real);
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT, "%s: is %s, expected a file to write", path,
                        S_ISDIR(info.st_mode) ? "a folder" : "no regular file");
}

mc_status mc_token_writer_init(mc_error *err, mc_token_writer *w, mc_token_format format,
                               const char *output, int vocabulary)
{
    static const uint8_t no_header[MC_LLMC_HEADER];
    char bin[MC_PATH_MAX], idx[MC_PATH_MAX];
    bool megatron = format == MC_TOKENS_MEGATRON;
    *w = (mc_token_writer){.err = err, .bin = {.aside = {.fd = -1}}, .idx = {.aside = {.fd = -1}}};
    w->format = megatron ? MC_TOKENS_MEGATRON : MC_TOKENS_LLMC;
    w->type = megatron && vocabulary >= MEGATRON_U16_VOCABULARY ? MC_TOKEN_I32 : MC_TOKEN_U16;
    mc_status status = check_vocabulary(err, w, output, vocabulary);
    if (!status) status = mc_token_writer_paths(err, w->format, output, bin, idx);
    if (!status) status = find_place(err, bin);
    if (!status && megatron) status = find_place(err, idx);
    if (!status) status = mc_file_writer_init(err, &w->bin, bin);
    if (!status && megatron) status = mc_file_writer_init(err, &w->idx, idx);
    if (!status && !megatron) status = mc_file_write(&w->bin, no_header, sizeof no_header);
    return status;
}

static mc_status write_u16(mc_file_writer *file, const int32_t *tokens, size_t count)
{
    uint16_t narrow[CHUNK];
    mc_status status = MC_OK;
    while (count && !status) {
        size_t some = count < CHUNK ? count : CHUNK;
        for (size_t i = 0; i < some; i++) narrow[i] = (uint16_t)tokens[i];
        status = mc_file_write(file, narrow, some * sizeof *narrow);
        tokens += some;
        count -= some;
    }
    return status;
}

mc_status mc_token_writer_add(mc_token_writer *w, const int32_t *tokens, size_t count)
{
    if (w->format == MC_TOKENS_LLMC && count > (size_t)(INT32_MAX - w->tokens))
        return mc_error_set(w->err, MC_ERR_UNSUPPORTED,
                            "%s: more than %d tokens, the most in a shard of llm.c's format: give "
                            "it fewer inputs, or use the format megatron",
                            w->bin.path, INT32_MAX);
    w->tokens += (int64_t)count;
    if (w->type == MC_TOKEN_U16) return write_u16(&w->bin, tokens, count);
    return mc_file_write(&w->bin, tokens, count * sizeof *tokens);
}

mc_status mc_token_writer_end_document(mc_token_writer *w)
{
    int64_t length = w->tokens - w->ended;
    if (w->format == MC_TOKENS_MEGATRON) {
        if (length > INT32_MAX)
            return mc_error_set(w->err, MC_ERR_UNSUPPORTED,
                                "%s: document %" PRId64 " has %" PRId64 " tokens, at most %d fit",
                                w->bin.path, w->documents, length, INT32_MAX);
        if (!mc_grow(&w->lengths, &w->capacity, (size_t)w->documents, sizeof *w->lengths))
            return mc_error_set(w->err, MC_ERR_NOMEM, "%s: out of memory for its index",
                                w->bin.path);
        w->lengths[w->documents] = (int32_t)length;
    }
    w->ended = w->tokens;
    w->documents++;
    return MC_OK;
}

static mc_status patch_header(mc_token_writer *w)
{
    const int32_t header[3] = {MC_LLMC_MAGIC, MC_LLMC_VERSION, (int32_t)w->tokens};
    return mc_file_patch(&w->bin, 0, header, sizeof header);
}

/* Writes an array of i64 whose element i is the sum of `step` * (lengths, or 1) before i. */
static mc_status write_sums(mc_token_writer *w, int64_t count, const int32_t *lengths, int64_t step)
{
    int64_t sums[CHUNK], sum = 0;
    mc_status status = MC_OK;
    for (int64_t i = 0; i < count && !status;) {
        size_t some = 0;
        for (; some < CHUNK && i < count; i++) {
            sums[some++] = sum;
            sum += step * (!lengths ? 1 : i < w->documents ? lengths[i] : 0);
        }
        status = mc_file_write(&w->idx, sums, some * sizeof *sums);
    }
    return status;
}

static mc_status write_index(mc_token_writer *w)
{
    uint8_t header[MC_MEGATRON_HEADER] = MC_MEGATRON_MAGIC;
    uint64_t version = MC_MEGATRON_VERSION, sequences = (uint64_t)w->documents,
             bounds = sequences + 1;
    memcpy(header + 9, &version, 8);
    header[17] = (uint8_t)w->type;
    memcpy(header + 18, &sequences, 8);
    memcpy(header + 26, &bounds, 8);
    mc_status status = mc_file_write(&w->idx, header, sizeof header);
    if (!status)
        status = mc_file_write(&w->idx, w->lengths, (size_t)w->documents * sizeof *w->lengths);
    if (!status) status = write_sums(w, w->documents, w->lengths, (int64_t)mc_token_width(w->type));
    if (!status) status = write_sums(w, w->documents + 1, NULL, 1);
    return status;
}

mc_status mc_token_writer_commit(mc_token_writer *w)
{
    bool megatron = w->format == MC_TOKENS_MEGATRON;
    mc_status status = megatron ? write_index(w) : patch_header(w);
    if (!status) status = mc_file_sync(&w->bin);
    if (!status && megatron) status = mc_file_sync(&w->idx);
    if (!status) status = mc_file_rename(&w->bin);
    if (!status && megatron) status = mc_file_rename(&w->idx);
    return status;
}

void mc_token_writer_release(mc_token_writer *w)
{
    mc_file_writer_release(&w->bin);
    mc_file_writer_release(&w->idx);
    mc_free(w->lengths);
    *w = (mc_token_writer){.bin = {.aside = {.fd = -1}}, .idx = {.aside = {.fd = -1}}};
}
