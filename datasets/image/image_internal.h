/* What the files of the image reader share. */
#ifndef MC_DATASETS_IMAGE_INTERNAL_H
#define MC_DATASETS_IMAGE_INTERNAL_H

#include "core/base/error_internal.h"
#include "core/base/file_internal.h"
#include "datasets/image/image.h"

/* Three bytes a pixel, row by row. */
typedef struct mc_pixels {
    int width, height;
    uint8_t *data;   /* (height, width, 3); mc_free */
    int orientation; /* EXIF's, 1 to 8; 1: as it is */
} mc_pixels;

/* Where an image comes from. */
typedef struct mc_image_bytes {
    const char *path; /* for errors */
    const uint8_t *data;
    size_t size;
} mc_image_bytes;

/* mc_image_read on any thread. */
mc_status mc_image_load(mc_error *err, const char *path, const mc_image_form *form, float *out);

/* The path of an image that a file names: relative ones are relative to that file's folder (NULL:
 * to the current one). */
mc_status mc_image_path(mc_error *err, char out[MC_PATH_MAX], const char *beside, const char *path);

/* Decode a file's bytes. Pixels are zeros after an error. */
mc_status mc_png_decode(mc_error *err, const mc_image_bytes *bytes, mc_pixels *out);
mc_status mc_jpeg_decode(mc_error *err, const mc_image_bytes *bytes, mc_pixels *out);
/* Checks a size that a file's header gives, and makes room. */
mc_status mc_pixels_new(mc_error *err, const mc_image_bytes *bytes, int64_t width, int64_t height,
                        mc_pixels *out);
/* The orientation of EXIF data, which begins with a TIFF header; 1 where it has none. */
int mc_exif_orientation(const uint8_t *data, size_t size);
/* Resizes to width x height into new pixels. The only error is MC_ERR_NOMEM. */
mc_status mc_pixels_resize(mc_error *err, const mc_pixels *from, int width, int height,
                           mc_image_filter filter, mc_pixels *out);

#endif
