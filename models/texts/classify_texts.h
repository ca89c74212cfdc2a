/* Classifying texts: one call from texts to logits.
 *
 *     mc_text_classifier *c = mc_text_classifier_new(model, tokenizer, NULL);
 *     int labels = mc_model_get_heads(model).labels;
 *     mc_classify_texts(c, texts, NULL, count, logits);          logits (count, labels)
 *
 * As mc_embed_texts it tokenizes ahead of the device, batches by length and copies
 * back late: give it many texts at once. */
#ifndef MC_MODELS_CLASSIFY_TEXTS_H
#define MC_MODELS_CLASSIFY_TEXTS_H

#include "models/model.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_text_classifier mc_text_classifier;

typedef struct mc_text_classifier_options {
    int64_t max_length;   /* tokens of a text or pair, whose longer text is cut; 0: what the
                             tokenizer's folder says (mc_tokenizer_max_length) and the model has
                             positions for; without both 512 */
    int threads;          /* that tokenize; 0: by the number of cores */
    int64_t batch_tokens; /* tokens of a batch; 0: by the device */
} mc_text_classifier_options;

/* Of a model with a classifier (mc_model_heads.labels), of any family, and its tokenizer; they must
 * outlive it. `options` may be NULL. NULL with the context's error: a model without a classifier, a
 * max_length beyond its positions, memory. NULL without one where model or tokenizer is NULL. */
MC_API mc_text_classifier *mc_text_classifier_new(mc_model *model, const mc_tokenizer *tokenizer,
                                                  const mc_text_classifier_options *options);
/* Frees it, before its context does. NULL is allowed. */
MC_API void mc_text_classifier_free(mc_text_classifier *c);

/* logits (count, labels), f32, on the host: row i is of texts[i], or of the pair of texts[i] and
 * pairs[i] (pairs NULL: single texts), put as the tokenizer puts them. Their meaning depends on the
 * model's task: for classes, softmax of a row gives probabilities; for several labels, the sigmoid
 * of each logit is the label's probability; for regression they are the values. Waits for the
 * device. Not collective: each rank gives texts of its own (with parameters on each rank,
 * zero_level 0 to 2). Errors, after which the logits are undefined: a text that is NULL or has no
 * token, memory, the device's. */
MC_API mc_status mc_classify_texts(mc_text_classifier *c, const mc_text_span *texts,
                                   const mc_text_span *pairs, size_t count, float *logits);

#endif
