/* PNG files, by libpng. */
#include "datasets/image/image_internal.h"

#ifdef MC_HAVE_PNG

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"

/* A file that is being read; libpng's errors jump out of it. */
typedef struct reading {
    const mc_image_bytes *bytes;
    size_t at;
    char message[160]; /* what libpng says is wrong */
    png_bytep *row;
    uint8_t *wide; /* of 16 bits; else NULL */
} reading;

static void read_bytes(png_structp png, png_bytep to, size_t count)
{
    reading *r = png_get_io_ptr(png);
    if (count > r->bytes->size - r->at) png_error(png, "it is truncated");
    memcpy(to, r->bytes->data + r->at, count);
    r->at += count;
}

static void fail(png_structp png, png_const_charp message)
{
    reading *r = png_get_error_ptr(png);
    snprintf(r->message, sizeof r->message, "%s", message);
    png_longjmp(png, 1);
}

static void warn(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static int orientation_of(png_structp png, png_infop info)
{
#ifdef PNG_eXIf_SUPPORTED
    png_bytep exif = NULL;
    png_uint_32 size = 0;
    if (png_get_eXIf_1(png, info, &size, &exif) && exif) return mc_exif_orientation(exif, size);
#else
    (void)png;
    (void)info;
#endif
    return 1;
}

/* Grey of 16 bits, of which Pillow's convert("RGB") cuts off what is above 255. */
static bool is_wide_grey(png_structp png, png_infop info)
{
    return png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY &&
           png_get_bit_depth(png, info) == 16;
}

/* Asks for three bytes a pixel, of such a grey for two of each of three channels. */
static void set_transforms(png_structp png, png_infop info)
{
    int type = png_get_color_type(png, info);
    if (!is_wide_grey(png, info)) png_set_strip_16(png);
    png_set_strip_alpha(png);
    if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
    if (!(type & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
}

/* All of it between two jumps. */
static mc_status decode(mc_error *err, png_structp png, png_infop info, reading *r, mc_pixels *out)
{
    if (setjmp(png_jmpbuf(png)))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: a damaged PNG image: %s", r->bytes->path,
                            r->message);
    png_read_info(png, info);
    if (mc_pixels_new(err, r->bytes, png_get_image_width(png, info),
                      png_get_image_height(png, info), out))
        return err->status;
    set_transforms(png, info);
    png_read_update_info(png, info);
    size_t count = (size_t)out->width * (size_t)out->height * MC_IMAGE_CHANNELS;
    size_t line = png_get_rowbytes(png, info);
    bool wide = png_get_bit_depth(png, info) == 16;
    if (line * (size_t)out->height != count << wide) png_error(png, "its rows have another size");
    if (wide) r->wide = mc_malloc(count << wide);
    r->row = mc_malloc((size_t)out->height * sizeof *r->row);
    if (!r->row || (wide && !r->wide))
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for it", r->bytes->path);
    for (int y = 0; y < out->height; y++)
        r->row[y] = (wide ? r->wide : out->data) + (size_t)y * line;
    png_read_image(png, r->row);
    png_read_end(png, info);
    for (size_t i = 0; wide && i < count; i++)
        out->data[i] = r->wide[2 * i] ? 255 : r->wide[2 * i + 1]; /* the upper byte comes first */
    out->orientation = orientation_of(png, info);
    return MC_OK;
}

mc_status mc_png_decode(mc_error *err, const mc_image_bytes *bytes, mc_pixels *out)
{
    reading r = {.bytes = bytes};
    *out = (mc_pixels){0};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, fail, warn);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    mc_status status = MC_ERR_NOMEM;
    if (info) {
        png_set_read_fn(png, &r, read_bytes);
        png_set_user_limits(png, 0x7fffffff, 0x7fffffff); /* mc_pixels_new has the limit */
        status = decode(err, png, info, &r, out);
    } else {
        mc_error_set(err, status, "%s: out of memory for it", bytes->path);
    }
    if (png) png_destroy_read_struct(&png, &info, NULL);
    mc_free(r.row);
    mc_free(r.wide);
    if (status) {
        mc_free(out->data);
        *out = (mc_pixels){0};
    }
    return status;
}

#else

mc_status mc_png_decode(mc_error *err, const mc_image_bytes *bytes, mc_pixels *out)
{
    *out = (mc_pixels){0};
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: a PNG image: this build has no libpng, which reads them", bytes->path);
}

#endif
