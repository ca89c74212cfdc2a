/* From a file to a model's numbers. */
#include "datasets/image/image_internal.h"

#include <stdio.h>
#include <string.h>
#include "core/base/context_internal.h"
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"

/* What Pillow refuses as a decompression bomb: twice its MAX_IMAGE_PIXELS. */
enum { MOST_PIXELS = 178956970, MOST_BYTES = 1 << 30 };

mc_status mc_pixels_new(mc_error *err, const mc_image_bytes *bytes, int64_t width, int64_t height,
                        mc_pixels *out)
{
    if (width < 1 || height < 1 || width > MOST_PIXELS || height > MOST_PIXELS / width)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: an image of %lld x %lld pixels, expected 1 to %d in all",
                            bytes->path, (long long)width, (long long)height, MOST_PIXELS);
    *out = (mc_pixels){.width = (int)width, .height = (int)height, .orientation = 1};
    out->data = mc_calloc((size_t)width * (size_t)height, MC_IMAGE_CHANNELS);
    if (out->data) return MC_OK;
    return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for %lld x %lld pixels", bytes->path,
                        (long long)width, (long long)height);
}

/* ---- orientation ----------------------------------------------------------------------------- */

static uint32_t number_at(const uint8_t *at, int bytes, bool little)
{
    uint32_t x = 0;
    for (int i = 0; i < bytes; i++) x = x << 8 | at[little ? bytes - 1 - i : i];
    return x;
}

int mc_exif_orientation(const uint8_t *data, size_t size)
{
    enum { HEADER = 8, ENTRY = 12, ORIENTATION = 0x112, SHORT = 3 };
    if (size < HEADER) return 1;
    bool little = memcmp(data, "II", 2) == 0;
    if (!little && memcmp(data, "MM", 2) != 0) return 1;
    size_t at = number_at(data + 4, 4, little);
    if (number_at(data + 2, 2, little) != 42 || at > size - 2) return 1;
    size_t count = number_at(data + at, 2, little);
    at += 2;
    for (size_t i = 0; i < count && at + ENTRY <= size; i++, at += ENTRY) {
        if (number_at(data + at, 2, little) != ORIENTATION) continue;
        uint32_t value = number_at(data + at + 8, 2, little);
        bool good = number_at(data + at + 2, 2, little) == SHORT && value >= 1 && value <= 8;
        return good ? (int)value : 1;
    }
    return 1;
}

/* Where pixel (x, y) of the upright image lies in the file's, of width w and height h: orientations
 * 5 to 8 exchange rows and columns. */
static size_t place_of(const mc_pixels *p, int x, int y)
{
    int w = p->width, h = p->height, column = x, row = y;
    if (p->orientation >= 5) {
        column = y;
        row = x;
    }
    bool right =
        p->orientation == 2 || p->orientation == 3 || p->orientation == 7 || p->orientation == 8;
    bool bottom =
        p->orientation == 3 || p->orientation == 4 || p->orientation == 6 || p->orientation == 7;
    if (right) column = w - 1 - column;
    if (bottom) row = h - 1 - row;
    return (size_t)row * (size_t)w + (size_t)column;
}

static mc_status turn(mc_error *err, const char *path, mc_pixels *p)
{
    if (p->orientation == 1) return MC_OK;
    bool exchange = p->orientation >= 5;
    mc_pixels up = {.width = exchange ? p->height : p->width,
                    .height = exchange ? p->width : p->height,
                    .orientation = 1};
    up.data = mc_malloc((size_t)up.width * (size_t)up.height * MC_IMAGE_CHANNELS);
    if (!up.data) return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory to turn it", path);
    uint8_t *to = up.data;
    for (int y = 0; y < up.height; y++)
        for (int x = 0; x < up.width; x++, to += MC_IMAGE_CHANNELS)
            memcpy(to, p->data + place_of(p, x, y) * MC_IMAGE_CHANNELS, MC_IMAGE_CHANNELS);
    mc_free(p->data);
    *p = up;
    return MC_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static mc_status decode(mc_error *err, const mc_image_bytes *b, mc_pixels *out)
{
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff};
    *out = (mc_pixels){0};
    if (b->size >= sizeof png && memcmp(b->data, png, sizeof png) == 0)
        return mc_png_decode(err, b, out);
    if (b->size >= sizeof jpeg && memcmp(b->data, jpeg, sizeof jpeg) == 0)
        return mc_jpeg_decode(err, b, out);
    return mc_error_set(err, MC_ERR_FORMAT, "%s: no image: expected a PNG or JPEG file", b->path);
}

static mc_status resize(mc_error *err, const char *path, const mc_image_form *form, mc_pixels *p)
{
    mc_pixels resized;
    int size = form->size;
    if (p->width == size && p->height == size) return MC_OK;
    if (!form->resize)
        return mc_error_set(err, MC_ERR_FORMAT,
                            "%s: an image of %d x %d pixels, expected %d x %d: the model's "
                            "preprocessor_config.json does not resize (\"do_resize\")",
                            path, p->width, p->height, size, size);
    if (mc_pixels_resize(err, p, size, size, form->filter, &resized)) return err->status;
    mc_free(p->data);
    *p = resized;
    return MC_OK;
}

/* Planes of floats, from bytes side by side. */
static void normalise(const mc_image_form *form, const mc_pixels *p, float *out)
{
    size_t count = (size_t)p->width * (size_t)p->height;
    for (int c = 0; c < MC_IMAGE_CHANNELS; c++) {
        float value[256];
        for (int v = 0; v < 256; v++)
            value[v] = (float)((v * form->factor - form->mean[c]) / form->std[c]);
        for (size_t i = 0; i < count; i++)
            out[(size_t)c * count + i] = value[p->data[i * MC_IMAGE_CHANNELS + (size_t)c]];
    }
}

mc_status mc_image_load(mc_error *err, const char *path, const mc_image_form *form, float *out)
{
    mc_pixels p;
    mc_image_bytes b = {.path = path};
    uint8_t *data = (uint8_t *)mc_file_read(err, path, MOST_BYTES, &b.size);
    if (!data) return err->status;
    b.data = data;
    mc_status status = decode(err, &b, &p);
    mc_free(data);
    if (!status) status = turn(err, path, &p);
    if (!status) status = resize(err, path, form, &p);
    if (!status) normalise(form, &p, out);
    mc_free(p.data);
    return status;
}

mc_status mc_image_path(mc_error *err, char out[MC_PATH_MAX], const char *beside, const char *path)
{
    const char *slash = beside && path[0] != '/' ? strrchr(beside, '/') : NULL;
    int folder = slash ? (int)(slash + 1 - beside) : 0;
    int size = snprintf(out, MC_PATH_MAX, "%.*s%s", folder, folder ? beside : "", path);
    if (size >= 0 && size < MC_PATH_MAX) return MC_OK;
    return mc_error_set(err, MC_ERR_ARGUMENT, "path too long: %.100s...", path);
}

mc_status mc_image_read(mc_context *ctx, const char *path, const mc_image_form *form, float *out)
{
    if (mc_failed(ctx) || !mc_given(ctx, path) || !mc_given(ctx, form) || !mc_given(ctx, out))
        return mc_error_status(ctx);
    if (form->size < 1 || form->filter < MC_IMAGE_NEAREST || form->filter > MC_IMAGE_HAMMING)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "%s: an image form of size %d, filter %d", path,
                       form->size, (int)form->filter);
    return mc_image_load(&ctx->error, path, form, out);
}
