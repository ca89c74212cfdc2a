/* Resizing as Pillow does it: a filter whose support grows with the ratio, weights that add up to
 * one as integers of 22 bits after the point, first along rows and then along columns, with bytes
 * between the two passes. */
#include <math.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "datasets/image/image_internal.h"

enum { POINT = 22, CHANNELS = MC_IMAGE_CHANNELS };

static const double pi = 3.14159265358979323846;

static double sinc(double x) { return x == 0 ? 1 : sin(pi * x) / (pi * x); }

static double weight_of(mc_image_filter filter, double x)
{
    double d = fabs(x);
    switch (filter) {
    case MC_IMAGE_BOX: return x > -0.5 && x <= 0.5;
    case MC_IMAGE_BILINEAR: return d < 1 ? 1 - d : 0;
    case MC_IMAGE_HAMMING: return d < 1 ? sinc(x) * (0.54 + 0.46 * cos(pi * x)) : 0;
    case MC_IMAGE_LANCZOS: return d < 3 ? sinc(x) * sinc(x / 3) : 0;
    default: /* the cubic of Keys with a = -0.5 */
        if (d < 1) return (1.5 * d - 2.5) * d * d + 1;
        return d < 2 ? ((-0.5 * d + 2.5) * d - 4) * d + 2 : 0;
    }
}

static double support_of(mc_image_filter filter)
{
    static const double supports[] = {[MC_IMAGE_LANCZOS] = 3,
                                      [MC_IMAGE_BILINEAR] = 1,
                                      [MC_IMAGE_BICUBIC] = 2,
                                      [MC_IMAGE_BOX] = 0.5,
                                      [MC_IMAGE_HAMMING] = 1};
    return supports[filter];
}

/* Which elements of a line go into each element of the result, and how much they count. */
typedef struct weights {
    int from, to; /* elements of the line, and of the result */
    int most;     /* weights of an element */
    int *first, *count;
    int32_t *weight; /* (to, most) */
    double *scratch; /* (most) */
} weights;

static void release(weights *w)
{
    mc_free(w->first);
    mc_free(w->count);
    mc_free(w->weight);
    mc_free(w->scratch);
}

/* Of element i of the result. */
static void fill(weights *w, mc_image_filter filter, int i)
{
    double ratio = (double)w->from / w->to, scale = ratio < 1 ? 1 : ratio;
    double support = support_of(filter) * scale, center = (i + 0.5) * ratio, sum = 0;
    int first = (int)(center - support + 0.5), end = (int)(center + support + 0.5);
    if (first < 0) first = 0;
    if (end > w->from) end = w->from;
    w->first[i] = first;
    w->count[i] = end - first;
    for (int k = first; k < end; k++)
        sum += w->scratch[k - first] = weight_of(filter, (k - center + 0.5) / scale);
    for (int k = 0; k < end - first; k++) {
        double x = (sum == 0 ? w->scratch[k] : w->scratch[k] / sum) * (1 << POINT);
        w->weight[(size_t)i * (size_t)w->most + (size_t)k] = (int32_t)(x < 0 ? x - 0.5 : x + 0.5);
    }
}

static bool make(weights *w, mc_image_filter filter, int from, int to)
{
    double ratio = (double)from / to;
    int most = (int)ceil(support_of(filter) * (ratio < 1 ? 1 : ratio)) * 2 + 1;
    *w = (weights){.from = from, .to = to, .most = most};
    w->first = mc_malloc((size_t)to * sizeof *w->first);
    w->count = mc_malloc((size_t)to * sizeof *w->count);
    w->weight = mc_malloc((size_t)to * (size_t)most * sizeof *w->weight);
    w->scratch = mc_malloc((size_t)most * sizeof *w->scratch);
    bool good = w->first && w->count && w->weight && w->scratch;
    for (int i = 0; good && i < to; i++) fill(w, filter, i);
    if (!good) release(w);
    return good;
}

static uint8_t clipped(int64_t sum)
{
    int64_t x = sum >> POINT;
    return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
}

/* One element of a line whose elements are `stride` bytes apart. */
static void combine(const weights *w, int i, const uint8_t *line, size_t stride, uint8_t *to)
{
    const int32_t *weight = w->weight + (size_t)i * (size_t)w->most;
    int64_t sum[CHANNELS];
    for (int c = 0; c < CHANNELS; c++) sum[c] = 1 << (POINT - 1);
    line += (size_t)w->first[i] * stride;
    for (int k = 0; k < w->count[i]; k++, line += stride)
        for (int c = 0; c < CHANNELS; c++) sum[c] += (int64_t)line[c] * weight[k];
    for (int c = 0; c < CHANNELS; c++) to[c] = clipped(sum[c]);
}

/* Places are sums of steps, as Pillow's are: a product may come out on the other side of a pixel's
 * edge. */
static void nearest(const mc_pixels *from, mc_pixels *out)
{
    double down = (double)from->height / out->height, right = (double)from->width / out->width;
    double row = down * 0.5;
    uint8_t *to = out->data;
    for (int y = 0; y < out->height; y++, row += down) {
        double column = right * 0.5;
        for (int x = 0; x < out->width; x++, column += right, to += CHANNELS)
            memcpy(to, from->data + ((size_t)row * (size_t)from->width + (size_t)column) * CHANNELS,
                   CHANNELS);
    }
}

/* `middle` has room for the rows of the source with the columns of the result. */
static void convolve(const mc_pixels *from, const weights *columns, const weights *rows,
                     uint8_t *middle, mc_pixels *out)
{
    size_t line = (size_t)out->width * CHANNELS;
    for (int y = 0; y < from->height; y++)
        for (int x = 0; x < out->width; x++)
            combine(columns, x, from->data + (size_t)y * (size_t)from->width * CHANNELS, CHANNELS,
                    middle + (size_t)y * line + (size_t)x * CHANNELS);
    for (int y = 0; y < out->height; y++)
        for (int x = 0; x < out->width; x++)
            combine(rows, y, middle + (size_t)x * CHANNELS, line,
                    out->data + (size_t)y * line + (size_t)x * CHANNELS);
}

mc_status mc_pixels_resize(mc_error *err, const mc_pixels *from, int width, int height,
                           mc_image_filter filter, mc_pixels *out)
{
    bool same = from->width == width && from->height == height;
    weights columns = {0}, rows = {0};
    uint8_t *middle = NULL;
    *out = (mc_pixels){.width = width, .height = height, .orientation = 1};
    out->data = mc_malloc((size_t)width * (size_t)height * CHANNELS);
    bool good = out->data;
    if (good && same) {
        memcpy(out->data, from->data, (size_t)width * (size_t)height * CHANNELS);
    } else if (good && filter == MC_IMAGE_NEAREST) {
        nearest(from, out);
    } else if (good) {
        middle = mc_malloc((size_t)width * (size_t)from->height * CHANNELS);
        good = middle && make(&columns, filter, from->width, width) &&
               make(&rows, filter, from->height, height);
        if (good) convolve(from, &columns, &rows, middle, out);
        release(&columns);
        release(&rows);
    }
    mc_free(middle);
    if (good) return MC_OK;
    mc_free(out->data);
    *out = (mc_pixels){0};
    return mc_error_set(err, MC_ERR_NOMEM, "out of memory to resize an image");
}
