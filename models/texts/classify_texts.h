/* Classifying texts: one call from texts to logits.
 *
 *     mc_text_classifier *c = mc_text_classifier_new(model, tokenizer, NULL);
 *     int labels = mc_model_get_heads(model).labels;
 *     mc_classify_texts(c, texts, NULL, count, logits);          logits (count, labels)
 *
 * Like mc_embed_texts, a call tokenizes ahead of the device, batches texts of similar length, and
 * copies logits back while the next batch runs. Pass it many texts at once.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_CLASSIFY_TEXTS_H
#define MC_MODELS_CLASSIFY_TEXTS_H

#include "models/model.h"
#include "tokenizers/tokenizer.h"

typedef struct mc_text_classifier mc_text_classifier;

typedef struct mc_text_classifier_options {
    int64_t max_length;   /* the most tokens of a text or pair, whose longer text is cut; 0: the
                             tokenizer's limit (mc_tokenizer_max_length) or the model's positions,
                             whichever is less; 512 if it has neither */
    int threads;          /* that tokenize; 0: depends on the number of cores */
    int64_t batch_tokens; /* tokens of a batch; 0: depends on the device */
} mc_text_classifier_options;

/* Creates a classifier of texts from a model of any family with a classification head
 * (mc_model_heads.labels) and its tokenizer, which must outlive it. `options` may be NULL. NULL
 * after an error: a model without such a head, a max_length beyond its positions, memory. A NULL
 * model or tokenizer gives NULL. */
MC_API mc_text_classifier *mc_text_classifier_new(mc_model *model, const mc_tokenizer *tokenizer,
                                                  const mc_text_classifier_options *options);
/* Frees it, before its context does. NULL is allowed. */
MC_API void mc_text_classifier_free(mc_text_classifier *c);

/* Writes logits (count, labels), f32, on the host: row i is for texts[i], or for the pair texts[i],
 * pairs[i] as the tokenizer encodes it (pairs NULL: single texts). Their meaning depends on the
 * model's task: for classes, softmax of a row gives probabilities; for several labels, the sigmoid
 * of each logit is the label's probability; for regression they are the values. Waits for the
 * device. Not collective: each rank passes its own texts, and needs all parameters
 * (zero_level 0 to 2). Errors, after which the logits are undefined: a text that is NULL or has no
 * token, memory, the device's; logits that are not finite (MC_ERR_STATE, names the text and the
 * dtype). */
MC_API mc_status mc_classify_texts(mc_text_classifier *c, const mc_text_span *texts,
                                   const mc_text_span *pairs, size_t count, float *logits);

#endif
