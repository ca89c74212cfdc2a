/* An error value: the first failure, with the trace of what was being done.
 *
 * Code that may run on any thread (file readers, tokenizers, the loader's worker) takes an
 * `mc_error *`; code bound to a context fails into `ctx->error` through mc_fail(). The first error
 * wins: setting a second one on top is a no-op, so callers need no care about ordering. */
#ifndef MC_BASE_ERROR_INTERNAL_H
#define MC_BASE_ERROR_INTERNAL_H

#include <stdbool.h>
#include <stdarg.h>
#include "core/base/status.h"

typedef struct mc_error {
    mc_status status;
    char *message;    /* heap, or == fallback when even the message could not be allocated */
    const char *file; /* where in our source it was raised */
    int line;
    char fallback[256];
    char trace[512];            /* "; while loading X; while ..." innermost first */
    void (*raised)(void *user); /* called when an error is set; NULL: no call */
    void *raised_user;
} mc_error;

/* Sets *err if it holds no error yet; returns `status` either way, so that
 * `return mc_error_set(err, MC_ERR_IO, "...")` reads well. */
#define mc_error_set(err, status, ...) \
    mc_error_set_at((err), (status), __FILE__, __LINE__, __VA_ARGS__)
mc_status mc_error_set_at(mc_error *err, mc_status status, const char *file, int line,
                          const char *format, ...) MC_PRINTF(5, 6);
mc_status mc_error_vset_at(mc_error *err, mc_status status, const char *file, int line,
                           const char *format, va_list args);

/* Adds "; while <what>" to the trace of a set error; does nothing when there is none. */
void mc_error_while(mc_error *err, const char *format, ...) MC_PRINTF(2, 3);

/* Puts text before the message of a set error; does nothing without one, or when memory is out. */
void mc_error_prefix(mc_error *err, const char *format, ...) MC_PRINTF(2, 3);

static inline bool mc_error_is_set(const mc_error *err) { return err->status != MC_OK; }

/* Moves an error from a worker thread's value into `to` (first error wins) and clears `from`. */
void mc_error_move(mc_error *to, mc_error *from);

/* For messages: `model "bert"`, or `the model` of one without a name. */
typedef struct mc_named_text {
    char text[192];
} mc_named_text;
mc_named_text mc_named_print(const char *kind, const char *name);
#define MC_NAMED(kind, name) (mc_named_print((kind), (name)).text)

/* Frees the message and returns to MC_OK. */
void mc_error_clear(mc_error *err);

#endif
