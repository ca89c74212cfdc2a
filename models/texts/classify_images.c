#include "models/texts/classify_images.h"

#include "core/base/memory_internal.h"
#include "datasets/image/image_internal.h"
#include "models/details.h"
#include "models/model_internal.h"

enum { MOST = 32 }; /* images of a batch */

/* Begins an error with the file and line that name the image. */
static void say_where(mc_error *err, const mc_text_span *path)
{
    if (path->file && path->line)
        mc_error_prefix(err, "%s:%lld: ", path->file, (long long)path->line);
}

static void load(mc_error *err, const mc_image_form *form, const mc_text_span *path, float *out)
{
    char whole[MC_PATH_MAX];
    if (!path->data) {
        mc_error_set(err, MC_ERR_ARGUMENT, "the path of an image is NULL");
        return;
    }
    if (mc_image_path(err, whole, path->file, path->data) || mc_image_load(err, whole, form, out))
        say_where(err, path);
}

/* Reads a batch; of several errors the first image's counts. */
static bool load_batch(mc_context *ctx, const mc_image_form *form, const mc_text_span *paths,
                       int count, float *pixels)
{
    mc_error errors[MOST] = {{0}};
    size_t size = (size_t)form->size;
#pragma omp parallel for schedule(dynamic) if (count > 1)
    for (int i = 0; i < count; i++)
        load(&errors[i], form, &paths[i], pixels + (size_t)i * MC_IMAGE_CHANNELS * size * size);
    for (int i = 0; i < count; i++) mc_error_move(&ctx->error, &errors[i]);
    return !mc_failed(ctx);
}

static bool run_batch(mc_model *m, const float *pixels, int count, float *logits)
{
    mc_context *ctx = m->module.ctx;
    int64_t size = m->image.size;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_tensor *in =
        mc_tape_input(t, MC_F32, MC_SHAPE(count, MC_IMAGE_CHANNELS, size, size), pixels, false);
    mc_model_output out = mc_model_forward(t, m, &(mc_model_input){.pixels = in});
    mc_tensor *x = mc_model_classify(t, m, &out);
    mc_tensor_read_f32(ctx, x, logits, (int64_t)count * m->heads.labels);
    mc_tape_end(t);
    return !mc_failed(ctx);
}

/* A row that is not finite is an error, as in generation. */
static bool check_batch(mc_model *m, const mc_text_span *paths, int count, const float *logits)
{
    mc_context *ctx = m->module.ctx;
    size_t labels = (size_t)m->heads.labels;
    for (int i = 0; i < count && !mc_failed(ctx); i++) {
        if (mc_all_finite(logits + (size_t)i * labels, labels)) continue;
        mc_fail(ctx, MC_ERR_STATE, "%s: the logits of the image are not finite%s", paths[i].data,
                mc_model_finite_hint(m));
        say_where(&ctx->error, &paths[i]);
    }
    return !mc_failed(ctx);
}

mc_status mc_classify_images(mc_model *m, const mc_text_span *paths, size_t count, float *logits)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    if (mc_failed(ctx) || (count && (!mc_given(ctx, paths) || !mc_given(ctx, logits))))
        return mc_error_status(ctx);
    if (!m->image.size || !m->heads.labels)
        return mc_fail(ctx, MC_ERR_UNSUPPORTED,
                       "%s: expected a model of images with a classification head",
                       m->family->title);
    size_t each = (size_t)m->image.size * (size_t)m->image.size * MC_IMAGE_CHANNELS;
    float *pixels = mc_malloc(MOST * each * sizeof *pixels);
    if (!pixels) mc_fail_nomem(ctx, "a batch of images");
    for (size_t at = 0; pixels && at < count; at += MOST) {
        int n = count - at < MOST ? (int)(count - at) : MOST;
        float *rows = logits + at * (size_t)m->heads.labels;
        if (!load_batch(ctx, &m->image, paths + at, n, pixels) || !run_batch(m, pixels, n, rows) ||
            !check_batch(m, paths + at, n, rows))
            break;
    }
    mc_free(pixels);
    return mc_error_status(ctx);
}
