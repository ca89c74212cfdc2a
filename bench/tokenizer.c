/* Speed of the tokenizer:  bench_tokenizer MODEL_FOLDER TEXT REPEATS [LINES [THREADS]]
 *
 * Encodes the file's texts one at a time, REPEATS times over, and prints one line a repeat: `<MB/s>
 * <ids>`. A text is one non-empty line, or, given LINES, that many lines joined. LINES 0 takes the
 * file as a stream that is cut where it can be, as for a token file. Each of THREADS (1) takes
 * every THREADS-th text. The first repeat meets all words for the first time. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench/bench.h"
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/details.h"

enum { THREADS_MAX = 256 };

typedef struct span {
    const char *text;
    size_t length;
} span;

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

/* Cuts the file where its ids do not change, every MiB or so. */
static span *cut_stream(const mc_tokenizer *tok, const char *text, size_t size, size_t *count)
{
    size_t capacity = 0;
    span *spans = NULL;
    *count = 0;
    for (size_t at = 0, next; at < size; at = next) {
        next = at + mc_tokenizer_cut(tok, text + at, size - at, 1 << 20);
        if (!mc_grow(&spans, &capacity, *count, sizeof *spans)) exit(2);
        spans[(*count)++] = (span){text + at, next - at};
    }
    return spans;
}

typedef struct worker {
    const mc_tokenizer *tok;
    const span *spans;
    size_t first, step, count, ids;
    bool stream;
    mc_encoding encoding;
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    w->ids = 0;
    for (size_t i = w->first; i < w->count; i += w->step) {
        span s = w->spans[i];
        w->encoding.count = 0;
        if (w->stream ? mc_tokenizer_append(w->tok, s.text, s.length, &w->encoding)
                      : mc_tokenizer_encode(w->tok, s.text, s.length, NULL, 0, 0, &w->encoding))
            exit(2);
        w->ids += w->encoding.count;
    }
    return NULL;
}

/* One repeat; the number of ids. */
static size_t encode_all(worker *workers, size_t threads)
{
    pthread_t handles[THREADS_MAX];
    size_t ids = 0;
    for (size_t i = 1; i < threads; i++)
        if (pthread_create(&handles[i], NULL, work, &workers[i])) exit(2);
    work(&workers[0]);
    for (size_t i = 1; i < threads; i++) pthread_join(handles[i], NULL);
    for (size_t i = 0; i < threads; i++) ids += workers[i].ids;
    return ids;
}

int main(int argc, char **argv)
{
    static worker workers[THREADS_MAX];
    if (argc < 4) {
        fputs("usage: bench_tokenizer MODEL_FOLDER TEXT REPEATS [LINES [THREADS]]\n", stderr);
        return 2;
    }
    long lines = argc > 4 ? atol(argv[4]) : 1, threads = argc > 5 ? atol(argv[5]) : 1;
    if (threads < 1 || threads > THREADS_MAX) return 2;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, argv[1]);
    size_t size = 0, count = 0, bytes = 0;
    char *text = tok ? mc_file_read(&ctx->error, argv[2], (size_t)1 << 32, &size) : NULL;
    if (mc_failed(ctx)) return 1 + mc_print_error(ctx, stderr);
    span *spans = lines ? cut(text, size, lines, &count) : cut_stream(tok, text, size, &count);
    for (size_t i = 0; i < count; i++) bytes += spans[i].length;
    for (long i = 0; i < threads; i++)
        workers[i] = (worker){.tok = tok,
                              .spans = spans,
                              .first = (size_t)i,
                              .step = (size_t)threads,
                              .count = count,
                              .stream = lines == 0};
    for (long repeat = atol(argv[3]); repeat > 0; repeat--) {
        double start = now();
        size_t ids = encode_all(workers, (size_t)threads);
        printf("%.1f %zu\n", (double)bytes / 1e6 / (now() - start), ids);
        fflush(stdout);
    }
    for (long i = 0; i < threads; i++) mc_encoding_release(&workers[i].encoding);
    mc_free(spans);
    mc_free(text);
    mc_context_free(ctx);
    return 0;
}
