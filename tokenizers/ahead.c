#include "tokenizers/ahead_internal.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/base/signals_internal.h"
#include "tokenizers/tokenizer_internal.h"

enum { PIECE = 64, PIECES = MC_AHEAD_WINDOW / PIECE, WINDOWS = 2, MOST_THREADS = 64 };
enum {
    FIRST_PIECES = 8
}; /* of the first window, so that reading begins soon; then 4 times those */

/* Texts that one thread tokenizes at a time. Piece p lies in slot p % slots. */
typedef struct piece {
    size_t done; /* p + 1 once piece p is tokenized here */
    mc_batch_encoding encoding;
    mc_text_span joined[PIECE]; /* texts after their prefix, in `text` */
    char *text;
    size_t text_room;
    mc_error error;
} piece;

struct mc_ahead {
    mc_ahead_options o;
    size_t pieces, slots;
    piece *slot;           /* (slots) */
    mc_ahead_text *window; /* (MC_AHEAD_WINDOW) */
    size_t read;           /* pieces of windows that were given out */
    size_t window_pieces;  /* of the next one */
    pthread_t threads[MOST_THREADS];
    int started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool lock_made, changed_made;
    /* shared, under the lock */
    size_t taken, limit; /* pieces before `limit` have a slot that is free */
    bool stop;
};

/* ---- tokenizing ------------------------------------------------------------------------------ */

/* Puts the prefix before each text. */
static const mc_text_span *join(const mc_ahead *a, piece *s, const mc_text_span *texts, size_t n)
{
    size_t before = strlen(a->o.prefix), total = 0, at = 0;
    for (size_t i = 0; i < n; i++) total += before + texts[i].size;
    if (total > s->text_room || !s->text) {
        char *grown = mc_realloc(s->text, total + 1);
        if (!grown) return NULL;
        s->text = grown;
        s->text_room = total;
    }
    for (size_t i = 0; i < n; i++) {
        s->joined[i] =
            (mc_text_span){s->text + at, before + texts[i].size, texts[i].file, texts[i].line};
        memcpy(s->text + at, a->o.prefix, before);
        if (texts[i].size) memcpy(s->text + at + before, texts[i].data, texts[i].size);
        at += before + texts[i].size;
    }
    return s->joined;
}

static void tokenize(const mc_ahead *a, size_t p)
{
    piece *s = &a->slot[p % a->slots];
    size_t first = p * PIECE, n = a->o.count - first < PIECE ? a->o.count - first : PIECE;
    const mc_text_span *texts = a->o.texts + first, *pairs = a->o.pairs;
    if (a->o.prefix) texts = join(a, s, texts, n);
    if (!texts)
        mc_error_set(&s->error, MC_ERR_NOMEM, "out of memory for texts and their prompt");
    else
        mc_encode_texts(&s->error, a->o.tok, texts, pairs ? pairs + first : NULL, n,
                        a->o.max_length, first, a->o.count, &s->encoding);
}

static void *work(void *argument)
{
    mc_ahead *a = argument;
    pthread_mutex_lock(&a->lock);
    while (!a->stop && a->taken < a->pieces) {
        if (a->taken == a->limit) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        size_t p = a->taken++;
        pthread_mutex_unlock(&a->lock);
        tokenize(a, p);
        pthread_mutex_lock(&a->lock);
        a->slot[p % a->slots].done = p + 1;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* Signals stay with the program's own threads. */
static mc_status start(mc_ahead *a, mc_error *err)
{
    int most = a->o.threads < MOST_THREADS ? a->o.threads : MOST_THREADS, failure = 0;
    if ((size_t)most >= a->pieces) most = a->pieces ? (int)a->pieces - 1 : 0; /* few texts: none */
    sigset_t before;
    mc_signals_block(&before);
    for (; a->started < most && !failure; a->started += !failure)
        failure = pthread_create(&a->threads[a->started], NULL, work, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failure) return MC_OK;
    return mc_error_set(err, MC_ERR_NOMEM, "cannot start thread %d of %d: %s", a->started + 1, most,
                        strerror(failure));
}

mc_ahead *mc_ahead_new(mc_error *err, const mc_ahead_options *options)
{
    mc_ahead *a = mc_calloc(1, sizeof *a);
    if (a) {
        a->o = *options;
        a->pieces = (options->count + PIECE - 1) / PIECE;
        a->slots = a->pieces < WINDOWS * PIECES ? a->pieces : WINDOWS * PIECES;
        a->limit = a->slots;
        a->window_pieces = FIRST_PIECES;
        a->slot = mc_calloc(a->slots + 1, sizeof *a->slot);
        a->window = mc_malloc(MC_AHEAD_WINDOW * sizeof *a->window);
        a->lock_made = pthread_mutex_init(&a->lock, NULL) == 0;
        a->changed_made = pthread_cond_init(&a->changed, NULL) == 0;
    }
    bool good = a && a->slot && a->window && a->lock_made && a->changed_made;
    if (!good)
        mc_error_set(err, MC_ERR_NOMEM, "out of memory for tokenizing %zu texts", options->count);
    if (good && start(a, err) == MC_OK) return a;
    mc_ahead_free(a);
    return NULL;
}

void mc_ahead_free(mc_ahead *a)
{
    if (!a) return;
    if (a->started) {
        pthread_mutex_lock(&a->lock);
        a->stop = true;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
    }
    for (int i = 0; i < a->started; i++) pthread_join(a->threads[i], NULL);
    for (size_t i = 0; a->slot && i < a->slots; i++) {
        mc_batch_encoding_release(&a->slot[i].encoding);
        mc_free(a->slot[i].text);
        mc_error_clear(&a->slot[i].error);
    }
    if (a->changed_made) pthread_cond_destroy(&a->changed);
    if (a->lock_made) pthread_mutex_destroy(&a->lock);
    mc_free(a->window);
    mc_free(a->slot);
    mc_free(a);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Waits for piece p, or tokenizes it where no thread does. */
static piece *wait_for(mc_ahead *a, size_t p)
{
    piece *s = &a->slot[p % a->slots];
    if (!a->started) {
        tokenize(a, p);
        return s;
    }
    pthread_mutex_lock(&a->lock);
    while (s->done != p + 1) pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    return s;
}

/* The slots of the windows that were read are free. */
static void free_slots(mc_ahead *a)
{
    pthread_mutex_lock(&a->lock);
    a->limit = a->read + a->slots < a->pieces ? a->read + a->slots : a->pieces;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

mc_ahead_text *mc_ahead_next(mc_ahead *a, mc_error *err, size_t *count)
{
    *count = 0;
    if (!a || mc_error_is_set(err) || a->read == a->pieces) return NULL;
    free_slots(a);
    size_t left = a->pieces - a->read;
    size_t end = a->read + (a->window_pieces < left ? a->window_pieces : left);
    a->window_pieces = 4 * a->window_pieces < PIECES ? 4 * a->window_pieces : PIECES;
    for (size_t p = a->read; p < end; p++) {
        piece *s = wait_for(a, p);
        const mc_batch_encoding *e = &s->encoding;
        if (mc_error_is_set(&s->error)) {
            mc_error_move(err, &s->error);
            return NULL;
        }
        for (size_t i = 0, at = 0; i < e->rows; at += (size_t)e->lengths[i++])
            a->window[(*count)++] = (mc_ahead_text){.ids = e->ids + at,
                                                    .type_ids = e->type_ids + at,
                                                    .length = e->lengths[i],
                                                    .text = p * PIECE + i};
    }
    a->read = end;
    return a->window;
}
