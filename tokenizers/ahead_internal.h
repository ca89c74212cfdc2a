/* Many texts tokenized by several threads, ahead of who reads their ids.
 *
 *     mc_ahead *a = mc_ahead_new(&err, &options);
 *     for (const mc_ahead_text *texts; (texts = mc_ahead_next(a, &err, &count)); )
 *         ... texts[0 .. count) ...
 *     mc_ahead_free(a);
 *
 * Texts come in windows, in their order. While one window is being read the threads work on the
 * next one, and no further, so that memory is bounded. */
#ifndef MC_TOKENIZERS_AHEAD_INTERNAL_H
#define MC_TOKENIZERS_AHEAD_INTERNAL_H

#include "core/base/error_internal.h"
#include "tokenizers/tokenizer.h"

enum { MC_AHEAD_WINDOW = 8192 }; /* texts */

typedef struct mc_ahead mc_ahead;

typedef struct mc_ahead_options {
    const mc_tokenizer *tok;
    const mc_text_span *texts, *pairs; /* (count); pairs NULL: single texts */
    size_t count;
    size_t max_length;  /* as in mc_tokenizer_encode */
    const char *prefix; /* put before each text; NULL: nothing */
    int threads;        /* 0: mc_ahead_next tokenizes itself */
} mc_ahead_options;

typedef struct mc_ahead_text {
    const int32_t *ids;      /* (length) */
    const uint8_t *type_ids; /* (length) */
    int32_t length;
    size_t text; /* its number */
} mc_ahead_text;

/* Starts the threads. The options are copied; what they point to must stay. NULL on an error. */
mc_ahead *mc_ahead_new(mc_error *err, const mc_ahead_options *options);
/* The next window, *count texts in their order, valid until the next call. The caller may reorder
 * the array. NULL at the end, and on an error, which names the text. */
mc_ahead_text *mc_ahead_next(mc_ahead *a, mc_error *err, size_t *count);
/* Stops the threads at any time. NULL is allowed. */
void mc_ahead_free(mc_ahead *a);

#endif
