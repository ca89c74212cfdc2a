/* Speed of the tokenizer:  bench_tokenizer MODEL_FOLDER TEXT REPEATS [LINES]
 *
 * Encodes the file's texts one at a time on one thread, REPEATS times over, and prints one line a
 * repeat: `<MB/s> <ids>`. A text is one non-empty line, or, given LINES, that many lines joined. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "tokenizers/tokenizer.h"

typedef struct span {
    const char *text;
    size_t length;
} span;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Cuts the file at every `lines`-th newline; the texts keep the newlines inside them. */
static span *cut(const char *text, size_t size, long lines, size_t *count)
{
    size_t capacity = 0;
    span *spans = NULL;
    const char *end = text + size;
    for (*count = 0; text < end;) {
        const char *stop = text, *newline = NULL;
        for (long l = 0; l < lines && stop < end; l++) {
            newline = memchr(stop, '\n', (size_t)(end - stop));
            stop = newline ? newline + 1 : end;
        }
        size_t length = (size_t)(stop - text) - (newline && stop == newline + 1);
        if (length) {
            if (!mc_grow(&spans, &capacity, *count, sizeof *spans)) exit(2);
            spans[(*count)++] = (span){text, length};
        }
        text = stop;
    }
    return spans;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("usage: bench_tokenizer MODEL_FOLDER TEXT REPEATS [LINES]\n", stderr);
        return 2;
    }
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, argv[1]);
    size_t size = 0, count = 0, bytes = 0;
    char *text = tok ? mc_file_read(&ctx->error, argv[2], (size_t)1 << 32, &size) : NULL;
    if (mc_failed(ctx)) return 1 + mc_print_error(ctx, stderr);
    span *spans = cut(text, size, argc > 4 ? atol(argv[4]) : 1, &count);
    mc_encoding encoding = {0};
    for (size_t i = 0; i < count; i++) bytes += spans[i].length;
    for (long repeat = atol(argv[3]); repeat > 0; repeat--) {
        size_t ids = 0;
        double start = now();
        for (size_t i = 0; i < count; i++) {
            if (mc_tokenizer_encode(tok, spans[i].text, spans[i].length, NULL, 0, 0, &encoding))
                return 2;
            ids += encoding.count;
        }
        printf("%.1f %zu\n", (double)bytes / 1e6 / (now() - start), ids);
        fflush(stdout);
    }
    mc_encoding_release(&encoding);
    mc_free(spans);
    mc_free(text);
    mc_context_free(ctx);
    return 0;
}
