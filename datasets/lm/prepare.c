/* Preparing data: a ring of slots. Threads take pieces in the order of the inputs, each into the
 * next slot; the calling thread writes the slots in that order. One thread at a time cuts, which
 * means to read it and, of a .gz, to inflate it; the others tokenize meanwhile. */
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include "core/base/signals_internal.h"
#include "datasets/lm/prepare_internal.h"

enum { KEY_MAX = 63, THREADS_MAX = 1024 };

typedef enum slot_state { SLOT_EMPTY = 0, SLOT_BUSY, SLOT_FULL } slot_state;

typedef struct slot {
    slot_state state;
    mc_piece piece; /* input is NULL where cutting failed */
    mc_piece_tokens tokens;
    mc_error error;
} slot;

typedef struct job {
    mc_error *err; /* the caller's */
    const mc_tokenizer *tok;
    mc_prepare_options options;
    int32_t end_id;
    mc_prepare_result done;
    mc_token_writer writer;

    pthread_t *threads; /* (options.threads) */
    int started;
    pthread_mutex_t cutting, lock; /* cutting is taken first */
    pthread_cond_t changed;
    bool cutting_made, lock_made, changed_made;
    mc_piece_source source; /* of the thread that is cutting */
    /* shared, under the lock */
    slot *slots; /* (slot_count) */
    int slot_count;
    int64_t taken; /* pieces cut off: the next one goes to slot taken % slot_count */
    bool exhausted, stop;
} job;

/* ---- the threads ---- */

/* Waits for the next slot to be empty; NULL when there is no more to do. */
static slot *wait_for_room(job *j)
{
    slot *s;
    pthread_mutex_lock(&j->lock);
    for (;;) {
        s = j->stop || j->exhausted ? NULL : &j->slots[j->taken % j->slot_count];
        if (!s || s->state == SLOT_EMPTY) break;
        pthread_cond_wait(&j->changed, &j->lock);
    }
    pthread_mutex_unlock(&j->lock);
    return s;
}

/* Cuts off the piece for the next slot; NULL when there is no more to do. */
static slot *take_piece(job *j)
{
    pthread_mutex_lock(&j->cutting);
    slot *s = wait_for_room(j);
    if (s) {
        bool there = mc_piece_next(&s->error, &j->source, &s->piece);
        bool failed = mc_error_is_set(&s->error);
        pthread_mutex_lock(&j->lock);
        if (!there) j->exhausted = true;
        if (there || failed) {
            s->state = there ? SLOT_BUSY : SLOT_FULL; /* a failure has its place in the order too */
            j->taken++;
        }
        if (!there) s = NULL;
        pthread_cond_broadcast(&j->changed);
        pthread_mutex_unlock(&j->lock);
    }
    pthread_mutex_unlock(&j->cutting);
    return s;
}

static void *work(void *argument)
{
    job *j = argument;
    for (slot *s; (s = take_piece(j));) {
        mc_piece_encode(&s->error, &s->piece, j->tok, j->options.json_key, &s->tokens);
        pthread_mutex_lock(&j->lock);
        s->state = SLOT_FULL;
        pthread_cond_broadcast(&j->changed);
        pthread_mutex_unlock(&j->lock);
    }
    return NULL;
}

/* Signals stay with the program's own threads. */
static mc_status start_threads(job *j)
{
    int count = j->options.threads, failure = 0;
    sigset_t before;
    mc_signals_block(&before);
    for (; j->started < count && !failure; j->started += !failure)
        failure = pthread_create(&j->threads[j->started], NULL, work, j);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failure) return MC_OK;
    return mc_error_set(j->err, MC_ERR_NOMEM, "cannot start thread %d of %d: %s", j->started + 1,
                        count, strerror(failure));
}

static void stop_threads(job *j)
{
    if (!j->started) return;
    pthread_mutex_lock(&j->lock);
    j->stop = true;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    for (int i = 0; i < j->started; i++) pthread_join(j->threads[i], NULL);
    j->started = 0;
}

/* ---- writing, on the calling thread ---- */

/* Waits for the piece of that number; NULL when all are done. */
static slot *wait_for_piece(job *j, int64_t number)
{
    slot *s = &j->slots[number % j->slot_count];
    pthread_mutex_lock(&j->lock);
    while (number < j->taken ? s->state != SLOT_FULL : !j->exhausted)
        pthread_cond_wait(&j->changed, &j->lock);
    if (number >= j->taken) s = NULL;
    pthread_mutex_unlock(&j->lock);
    return s;
}

static mc_status write_end_token(job *j, mc_end_of_text where)
{
    if (j->options.end_of_text != where) return MC_OK;
    return mc_token_writer_add(&j->writer, &j->end_id, 1);
}

static mc_status write_piece(job *j, const slot *s)
{
    const mc_piece_tokens *t = &s->tokens;
    const bool lines = s->piece.input->lines;
    const size_t parts = lines ? t->count : 1; /* a text is one, or a part of one */
    mc_status status = MC_OK;
    for (size_t i = 0, at = 0; i < parts && !status; i++) {
        size_t end = i < t->count ? t->ends[i] : t->encoding.count;
        if (lines || s->piece.opens) status = write_end_token(j, MC_END_OF_TEXT_BEFORE);
        if (!status) status = mc_token_writer_add(&j->writer, t->encoding.ids + at, end - at);
        if (!status && i < t->count) {
            status = write_end_token(j, MC_END_OF_TEXT_AFTER);
            if (!status) status = mc_token_writer_end_document(&j->writer);
        }
        at = end;
    }
    return status;
}

/* Writes a finished piece and gives its slot back. */
static mc_status finish_piece(job *j, slot *s)
{
    mc_status status = s->error.status;
    if (status)
        mc_error_move(j->err, &s->error);
    else
        status = write_piece(j, s);
    j->done.documents = j->writer.documents;
    j->done.tokens = j->writer.tokens;
    j->done.bytes += (int64_t)(s->piece.end - (s->piece.opens ? 0 : s->piece.begin));
    j->done.file_bytes += s->piece.file_bytes;
    pthread_mutex_lock(&j->lock);
    mc_input_free(s->piece.input);
    s->piece = (mc_piece){0};
    s->state = SLOT_EMPTY;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    if (!status && j->options.progress && !j->options.progress(j->options.progress_user, &j->done))
        status = mc_error_set(j->err, MC_ERR_INTERRUPTED, "%s: interrupted, nothing was written",
                              j->writer.bin.path);
    return status;
}

static mc_status run(job *j)
{
    mc_status status = start_threads(j);
    slot *s;
    for (int64_t number = 0; !status && (s = wait_for_piece(j, number)); number++)
        status = finish_piece(j, s);
    stop_threads(j);
    if (!status && !j->done.tokens)
        status = mc_error_set(j->err, MC_ERR_FORMAT, "%s: no tokens in %s", j->source.paths[0],
                              j->source.count > 1 ? "this and the other inputs" : "it");
    return status ? status : mc_token_writer_commit(&j->writer);
}

/* ---- making ready ---- */

static bool same_file(const struct stat *a, const char *path)
{
    struct stat b;
    return *path && stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

/* Looks at all inputs before work begins: they are there, and are not written to. */
static mc_status check_inputs(job *j, const char *output)
{
    char bin[MC_PATH_MAX], idx[MC_PATH_MAX];
    mc_status status = mc_token_writer_paths(j->err, j->options.format, output, bin, idx);
    for (int i = 0; i < j->source.count && !status; i++) {
        const char *path = j->source.paths[i];
        struct stat info = {0};
        mc_file_map map;
        if (!path) return mc_error_set(j->err, MC_ERR_ARGUMENT, "input %d has no path", i);
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
            status = mc_file_map_init(j->err, &map, path); /* which says what is wrong with it */
            if (!status) mc_file_map_release(&map);
        }
        if (!status && (same_file(&info, bin) || same_file(&info, idx)))
            status = mc_error_set(j->err, MC_ERR_ARGUMENT, "%s: is both input and output", path);
        j->done.total_bytes += (int64_t)info.st_size;
    }
    return status;
}

static mc_status find_end_token(job *j)
{
    mc_prepare_options *o = &j->options;
    if (o->end_of_text == MC_END_OF_TEXT_DEFAULT)
        o->end_of_text =
            o->format == MC_TOKENS_MEGATRON ? MC_END_OF_TEXT_AFTER : MC_END_OF_TEXT_BEFORE;
    if (o->end_of_text == MC_END_OF_TEXT_NONE) return MC_OK;
    if (o->end_token) {
        j->end_id = mc_tokenizer_token_to_id(j->tok, o->end_token);
        if (j->end_id >= 0) return MC_OK;
        return mc_error_set(j->err, MC_ERR_NOT_FOUND,
                            "the tokenizer has no token \"%s\" to end texts with", o->end_token);
    }
    j->end_id = mc_tokenizer_end_of_text_id(j->tok);
    if (j->end_id < 0) j->end_id = mc_tokenizer_sep_id(j->tok);
    if (j->end_id >= 0) return MC_OK;
    return mc_error_set(j->err, MC_ERR_NOT_FOUND,
                        "the tokenizer has no end-of-text token: name a token, or ask for none");
}

static mc_status check_options(job *j)
{
    mc_prepare_options *o = &j->options;
    if (!o->json_key) o->json_key = "text";
    if (o->format == MC_TOKENS_DEFAULT) o->format = MC_TOKENS_LLMC;
    if (!*o->json_key || strlen(o->json_key) > KEY_MAX)
        return mc_error_set(j->err, MC_ERR_ARGUMENT, "key \"%.80s\": expected 1 to %d bytes",
                            o->json_key, KEY_MAX);
    if (o->format != MC_TOKENS_LLMC && o->format != MC_TOKENS_MEGATRON)
        return mc_error_set(j->err, MC_ERR_ARGUMENT, "format %d is none", (int)o->format);
    if ((unsigned)o->end_of_text > MC_END_OF_TEXT_AFTER)
        return mc_error_set(j->err, MC_ERR_ARGUMENT, "end_of_text %d is none", (int)o->end_of_text);
    if (o->threads == 0) o->threads = omp_get_num_procs();
    if (o->threads < 1 || o->threads > THREADS_MAX)
        return mc_error_set(j->err, MC_ERR_ARGUMENT, "%d threads, expected 1 to %d", o->threads,
                            THREADS_MAX);
    return find_end_token(j);
}

static mc_status make_ring(job *j)
{
    j->slot_count = 2 * j->options.threads;
    j->slots = mc_calloc((size_t)j->slot_count, sizeof *j->slots);
    j->threads = mc_calloc((size_t)j->options.threads, sizeof *j->threads);
    j->cutting_made = pthread_mutex_init(&j->cutting, NULL) == 0;
    j->lock_made = pthread_mutex_init(&j->lock, NULL) == 0;
    j->changed_made = pthread_cond_init(&j->changed, NULL) == 0;
    bool locks = j->cutting_made && j->lock_made && j->changed_made;
    if (j->slots && j->threads && locks) return MC_OK;
    return mc_error_set(j->err, MC_ERR_NOMEM, "out of memory for %d threads", j->options.threads);
}

static void release(job *j)
{
    for (int i = 0; j->slots && i < j->slot_count; i++) {
        mc_input_free(j->slots[i].piece.input);
        mc_piece_tokens_release(&j->slots[i].tokens);
        mc_error_clear(&j->slots[i].error);
    }
    mc_piece_source_release(&j->source);
    mc_free(j->slots);
    mc_free(j->threads);
    if (j->changed_made) pthread_cond_destroy(&j->changed);
    if (j->lock_made) pthread_mutex_destroy(&j->lock);
    if (j->cutting_made) pthread_mutex_destroy(&j->cutting);
    mc_token_writer_release(&j->writer);
}

mc_status mc_prepare_tokens(mc_context *ctx, const mc_tokenizer *tok, const char *const *inputs,
                            int count, const char *output, const mc_prepare_options *options,
                            mc_prepare_result *result)
{
    if (result) *result = (mc_prepare_result){0};
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (!tok || !inputs || count < 1 || !output || !*output)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "preparing data needs %s",
                       !tok                   ? "a tokenizer"
                       : !inputs || count < 1 ? "inputs"
                                              : "an output");
    job j = {.err = &ctx->error,
             .tok = tok,
             .source = {.paths = inputs, .count = count, .tok = tok},
             .writer = {.bin = {.aside = {.fd = -1}}, .idx = {.aside = {.fd = -1}}}};
    if (options) j.options = *options;
    mc_status status = check_options(&j);
    if (!status) status = check_inputs(&j, output);
    if (!status)
        status = mc_token_writer_init(j.err, &j.writer, j.options.format, output,
                                      mc_tokenizer_vocab_size(tok));
    if (!status) status = make_ring(&j);
    if (!status) status = run(&j);
    if (result) *result = j.done;
    release(&j);
    return status;
}
