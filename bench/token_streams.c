/* How long token files take to open and to go on from the middle:
 *
 *     token_streams PATTERN [DOCUMENT_TOKEN [HOLLOW]]
 *
 * Opens the files as a shuffled loader of windows of 1,024 tokens, 8 a batch, with documents kept
 * apart; seeks to the middle of the third epoch, and reads batches there. Files that are not in the
 * page cache are those to measure (posix_fadvise, POSIX_FADV_DONTNEED). With HOLLOW, a number of
 * documents, it first writes PATTERN.bin, sparse, and PATTERN.idx, of documents of 1 to 1,999
 * tokens. */
#include <modelcenter.h>
#include <modelcenter/more.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* ---- an index to measure with ---- */

static int32_t length_of(int64_t i) { return (int32_t)((uint64_t)i * 2654435761u % 1999) + 1; }

/* Writes `count` numbers of 64 bits: where documents begin, or which sequence each begins with. */
static int64_t write_numbers(FILE *file, int64_t count, bool places)
{
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t number = places ? 2 * at : i;
        fwrite(&number, sizeof number, 1, file);
        at += length_of(i);
    }
    return at;
}

static bool write_hollow(const char *stem, int64_t documents)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.idx", stem);
    FILE *idx = fopen(path, "wb");
    snprintf(path, sizeof path, "%s.bin", stem);
    FILE *bin = fopen(path, "wb");
    if (!idx || !bin) return false;
    uint8_t header[34] = "MMIDIDX\0";
    int64_t counts[2] = {documents, documents + 1};
    header[9] = 1;
    header[17] = 8;
    memcpy(header + 18, counts, sizeof counts);
    fwrite(header, sizeof header, 1, idx);
    for (int64_t i = 0; i < documents; i++) {
        int32_t length = length_of(i);
        fwrite(&length, sizeof length, 1, idx);
    }
    int64_t tokens = write_numbers(idx, documents, true);
    write_numbers(idx, documents + 1, false);
    bool good = ftruncate(fileno(bin), 2 * tokens) == 0 && fclose(idx) == 0;
    return fclose(bin) == 0 && good;
}

/* ---- measuring ---- */

static void measure(mc_context *ctx, const char *pattern, int32_t document_token)
{
    enum { BATCHES = 100 };
    double start = now_ms();
    mc_token_file *file = mc_token_file_open(ctx, pattern);
    mc_lm_loader *loader =
        mc_lm_loader_new(file, &(mc_lm_loader_options){.batch_size = 8,
                                                       .seq_length = 1024,
                                                       .shuffle = true,
                                                       .repeat = true,
                                                       .separate_documents = true,
                                                       .document_token = document_token});
    double opened = now_ms();
    mc_lm_position place = mc_lm_loader_position(loader);
    place.epoch = 2;
    place.window = place.windows / 2;
    mc_lm_loader_seek(loader, &place);
    const mc_lm_batch *batch = mc_lm_loader_next(loader);
    double resumed = now_ms();
    for (int i = 0; batch && i < BATCHES; i++) batch = mc_lm_loader_next(loader);
    double end = now_ms();
    if (batch)
        printf("%" PRId64 " tokens, %d shards, %" PRId64 " documents: open %.1f ms, resume %.1f "
               "ms, then %.3f ms a batch\n",
               mc_token_file_count(file), mc_token_file_shards(file), mc_token_file_documents(file),
               opened - start, resumed - opened, (end - resumed) / BATCHES);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: token_streams PATTERN [DOCUMENT_TOKEN [HOLLOW]]\n");
        return 2;
    }
    int64_t hollow = argc > 3 ? strtoll(argv[3], NULL, 10) : 0;
    if (hollow > 0 && !write_hollow(argv[1], hollow)) {
        perror(argv[1]);
        return 1;
    }
    mc_context *ctx = mc_init_distributed(NULL);
    measure(ctx, argv[1], argc > 2 ? (int32_t)strtol(argv[2], NULL, 10) : 0);
    int bad = mc_failed(ctx) ? mc_print_error(ctx, stderr) : 0;
    mc_context_free(ctx);
    return bad;
}
