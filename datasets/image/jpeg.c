/* JPEG files, by libjpeg-turbo. */
#include "datasets/image/image_internal.h"

#ifdef MC_HAVE_JPEG

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <jpeglib.h>
#include <jerror.h>
#include "core/base/memory_internal.h"

/* A file that is being read; libjpeg's errors jump out of it. */
typedef struct reading {
    struct jpeg_error_mgr errors; /* the first: libjpeg has a pointer to it */
    jmp_buf out;
    char message[JMSG_LENGTH_MAX];
    JSAMPLE *line; /* of a format that has not three bytes a pixel */
} reading;

static void fail(j_common_ptr jpeg)
{
    reading *r = (reading *)jpeg->err;
    r->errors.format_message(jpeg, r->message);
    longjmp(r->out, 1);
}

/* libjpeg goes on with grey where data end; damage within it does not count, as for Pillow. */
static void note(j_common_ptr jpeg, int level)
{
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) {
        reading *r = (reading *)jpeg->err;
        snprintf(r->message, sizeof r->message, "it is truncated");
        longjmp(r->out, 1);
    }
}

static int orientation_of(const struct jpeg_decompress_struct *jpeg)
{
    static const char header[] = "Exif\0"; /* and the NUL of the literal */
    for (jpeg_saved_marker_ptr m = jpeg->marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > sizeof header &&
            memcmp(m->data, header, sizeof header) == 0)
            return mc_exif_orientation(m->data + sizeof header, m->data_length - sizeof header);
    return 1;
}

/* a * b / 255, rounded. */
static int share(int a, int b)
{
    int x = a * b + 128;
    return ((x >> 8) + x) >> 8;
}

/* A line of four bytes a pixel. Files hold inks inverted, as Adobe writes them and Pillow takes
 * them to be: what they hold is light. */
static void from_cmyk(const JSAMPLE *line, int width, uint8_t *to)
{
    for (int x = 0; x < width; x++, line += 4, to += MC_IMAGE_CHANNELS)
        for (int c = 0; c < MC_IMAGE_CHANNELS; c++) {
            int left = line[3] - share(255 - line[c], line[3]);
            to[c] = (uint8_t)(left < 0 ? 0 : left);
        }
}

static void read_lines(struct jpeg_decompress_struct *jpeg, reading *r, mc_pixels *out)
{
    bool cmyk = jpeg->out_color_space == JCS_CMYK;
    while (jpeg->output_scanline < jpeg->output_height) {
        uint8_t *to =
            out->data + (size_t)jpeg->output_scanline * (size_t)out->width * MC_IMAGE_CHANNELS;
        JSAMPROW row = cmyk ? r->line : to;
        if (!jpeg_read_scanlines(jpeg, &row, 1)) ERREXIT(jpeg, JERR_INPUT_EMPTY);
        if (cmyk) from_cmyk(r->line, out->width, to);
    }
}

static mc_status decode(mc_error *err, struct jpeg_decompress_struct *jpeg,
                        const mc_image_bytes *bytes, reading *r, mc_pixels *out)
{
    if (setjmp(r->out))
        return mc_error_set(err, MC_ERR_FORMAT, "%s: a damaged JPEG image: %s", bytes->path,
                            r->message);
    jpeg_create_decompress(jpeg);
    jpeg_mem_src(jpeg, bytes->data, bytes->size);
    jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(jpeg, TRUE);
    if (mc_pixels_new(err, bytes, jpeg->image_width, jpeg->image_height, out)) return err->status;
    bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
    jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    r->line = cmyk ? mc_malloc((size_t)out->width * 4) : NULL;
    if (cmyk && !r->line)
        return mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory for it", bytes->path);
    jpeg_start_decompress(jpeg);
    read_lines(jpeg, r, out);
    out->orientation = orientation_of(jpeg);
    jpeg_finish_decompress(jpeg);
    return MC_OK;
}

mc_status mc_jpeg_decode(mc_error *err, const mc_image_bytes *bytes, mc_pixels *out)
{
    struct jpeg_decompress_struct jpeg = {0};
    reading r = {.line = NULL};
    *out = (mc_pixels){0};
    jpeg.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = fail;
    r.errors.emit_message = note;
    mc_status status = decode(err, &jpeg, bytes, &r, out);
    jpeg_destroy_decompress(&jpeg);
    mc_free(r.line);
    if (status) {
        mc_free(out->data);
        *out = (mc_pixels){0};
    }
    return status;
}

#else

mc_status mc_jpeg_decode(mc_error *err, const mc_image_bytes *bytes, mc_pixels *out)
{
    *out = (mc_pixels){0};
    return mc_error_set(err, MC_ERR_UNSUPPORTED,
                        "%s: a JPEG image: this build has no libjpeg-turbo, which reads them",
                        bytes->path);
}

#endif
