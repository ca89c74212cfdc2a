/* The SentencePiece library (github.com/google/sentencepiece) behind a C interface. It encodes with
 * models of types that this library does not know itself (BPE, characters, words), and trains. In a
 * build without it (MC_ENABLE_SENTENCEPIECE) every call is MC_ERR_UNSUPPORTED and says so. */
#ifndef MC_TOKENIZERS_SENTENCEPIECE_INTERNAL_H
#define MC_TOKENIZERS_SENTENCEPIECE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include "core/base/error_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mc_sentencepiece mc_sentencepiece;

/* Reads a model from its file's bytes; `path` is what errors call it. NULL with an error. */
mc_sentencepiece *mc_sentencepiece_new(mc_error *err, const char *path, const void *model,
                                       size_t size);
/* NULL is allowed. */
void mc_sentencepiece_free(mc_sentencepiece *library);

/* The ids of a text, on the heap (mc_free). MC_ERR_NOMEM or MC_ERR_FORMAT; touches no error. May
 * be called by several threads at a time. */
mc_status mc_sentencepiece_encode(const mc_sentencepiece *library, const char *text, size_t size,
                                  int32_t **ids, size_t *count);
/* The text of ids, on the heap (mc_free). For tests. */
mc_status mc_sentencepiece_decode(const mc_sentencepiece *library, const int32_t *ids, size_t count,
                                  char **text, size_t *size);

/* Trains a model on the lines of files and gives its file's bytes on the heap (mc_free). `options`
 * are names of the library's TrainerSpec and NormalizerSpec ("vocab_size") and values in turn, NULL
 * after the last. */
mc_status mc_sentencepiece_train(mc_error *err, const char *const *inputs, size_t input_count,
                                 const char *const *options, char **model, size_t *size);

#ifdef __cplusplus
}
#endif

#endif
