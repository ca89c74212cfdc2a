/* Stands in for sentencepiece.cc where the build has no SentencePiece library. */
#include "tokenizers/unigram/sentencepiece_internal.h"

static const char off[] = "which takes the SentencePiece library, and this build has none: build "
                          "with libsentencepiece-dev and MC_ENABLE_SENTENCEPIECE";

mc_sentencepiece *mc_sentencepiece_new(mc_error *err, const char *path, const void *model,
                                       size_t size)
{
    (void)model;
    (void)size;
    mc_error_set(err, MC_ERR_UNSUPPORTED,
                 "%s: a SentencePiece model of another type than Unigram, %s", path, off);
    return NULL;
}

void mc_sentencepiece_free(mc_sentencepiece *library) { (void)library; }

mc_status mc_sentencepiece_encode(const mc_sentencepiece *library, const char *text, size_t size,
                                  int32_t **ids, size_t *count)
{
    (void)library;
    (void)text;
    (void)size;
    *ids = NULL;
    *count = 0;
    return MC_ERR_UNSUPPORTED;
}

mc_status mc_sentencepiece_decode(const mc_sentencepiece *library, const int32_t *ids, size_t count,
                                  char **text, size_t *size)
{
    (void)library;
    (void)ids;
    (void)count;
    *text = NULL;
    *size = 0;
    return MC_ERR_UNSUPPORTED;
}

mc_status mc_sentencepiece_train(mc_error *err, const char *const *inputs, size_t input_count,
                                 const char *const *options, char **model, size_t *size)
{
    (void)inputs;
    (void)input_count;
    (void)options;
    *model = NULL;
    *size = 0;
    return mc_error_set(err, MC_ERR_UNSUPPORTED, "training a tokenizer, %s", off);
}
