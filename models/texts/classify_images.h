/* Classifying images: one call from files to logits.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_MODELS_CLASSIFY_IMAGES_H
#define MC_MODELS_CLASSIFY_IMAGES_H

#include "models/model.h"
#include "tokenizers/tokenizer.h"

/* Classifies the images at `paths` with a model of images that has a classifier. `logits` is f32
 * (count, labels) on the host; row i is for paths[i]. A path is relative to the folder of
 * paths[i].file, or to the current folder if that is NULL. Images are read as the model requires
 * (mc_model_image_form), by all threads. Waits for the device. Not collective, like
 * mc_classify_texts. Errors, after which the logits are undefined: those of mc_image_read, with the
 * file and line that name the image; a model of texts, or one without a classifier; logits
 * that are not finite (MC_ERR_STATE, names the image and the dtype). */
MC_API mc_status mc_classify_images(mc_model *model, const mc_text_span *paths, size_t count,
                                    float *logits);

#endif
