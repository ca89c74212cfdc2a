/* Images as models read them: PNG and JPEG files to pixels, resized and normalised as by Hugging
 * Face's image processors.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_DATASETS_IMAGE_H
#define MC_DATASETS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/base/context.h"

/* How an image is resized: Pillow's filters, with Pillow's numbers ("resample"). */
typedef enum mc_image_filter {
    MC_IMAGE_NEAREST = 0,
    MC_IMAGE_LANCZOS = 1,
    MC_IMAGE_BILINEAR = 2,
    MC_IMAGE_BICUBIC = 3,
    MC_IMAGE_BOX = 4,
    MC_IMAGE_HAMMING = 5,
} mc_image_filter;

enum { MC_IMAGE_CHANNELS = 3 };

/* How a model reads an image: the settings of its folder's preprocessor_config.json. */
typedef struct mc_image_form {
    int size;    /* rows and columns of the result; 0: no form */
    bool resize; /* else images must have this size ("do_resize") */
    mc_image_filter filter;
    /* Values are v * factor, with v from 0 to 255 ("do_rescale", "rescale_factor"; 1: not
     * rescaled), and then (x - mean) / std by channel ("do_normalize", "image_mean", "image_std";
     * 0 and 1: not normalised). */
    double factor;
    double mean[MC_IMAGE_CHANNELS], std[MC_IMAGE_CHANNELS];
    int tokens; /* tokens that a model makes of an image, for lengths and counts */
} mc_image_form;

/* Reads a PNG or JPEG file (its first bytes decide which) into `out`: f32 (3, size, size), channels
 * red, green, blue.
 *
 * Every kind of image becomes RGB as by Pillow's convert("RGB"): greys, palettes, CMYK.
 * Transparency is dropped. Of 16-bit channels the upper byte is used; 16-bit greys are clamped to
 * 255 instead, as in Pillow. An EXIF orientation is applied, as in transformers' load_image.
 * Bilinear resizing differs from Pillow's by at most 1 of 255.
 *
 * Errors name the file: no such file, not an image, a damaged or truncated image, more than
 * 178,956,970 pixels (Pillow's limit), a format whose library is not in this build. */
MC_API mc_status mc_image_read(mc_context *ctx, const char *path, const mc_image_form *form,
                               float *out);

#endif
