/* preprocessor_config.json of a model of images: read with the model, followed by who reads images,
 * and written with it. The keys are those of transformers' ViTImageProcessor. */
#include "core/base/file_internal.h"
#include "core/base/memory_internal.h"
#include "models/files/keys_internal.h"
#include "models/model_internal.h"

static const char file_name[] = "preprocessor_config.json";

/* What ViTImageProcessor does by itself. */
static mc_image_form default_form(const mc_model *m)
{
    mc_image_form f = {.size = (int)m->family->image_size(m->config),
                       .resize = true,
                       .filter = MC_IMAGE_BILINEAR,
                       .factor = 1.0 / 255,
                       .tokens = (int)m->shape.positions};
    for (int c = 0; c < MC_IMAGE_CHANNELS; c++) f.mean[c] = f.std[c] = 0.5;
    return f;
}

typedef struct reader {
    mc_model *m;
    const char *path;
    const cJSON *json;
} reader;

static bool refuse(const reader *r, const char *key, const char *expected)
{
    return !mc_fail(r->m->module.ctx, MC_ERR_UNSUPPORTED, "%s: key \"%s\": expected %s", r->path,
                    key, expected);
}

static bool is_size(const cJSON *item, int size)
{
    return cJSON_IsNumber(item) && item->valuedouble == size;
}

/* A number, or "height" and "width": the model's, since its positions are those of that size. */
static bool read_size(const reader *r, const mc_image_form *f)
{
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(r->json, "size");
    char expected[96];
    if (!size || cJSON_IsNull(size) || is_size(size, f->size)) return true;
    if (cJSON_GetArraySize(size) == 2 &&
        is_size(cJSON_GetObjectItemCaseSensitive(size, "height"), f->size) &&
        is_size(cJSON_GetObjectItemCaseSensitive(size, "width"), f->size))
        return true;
    snprintf(expected, sizeof expected, "\"height\" and \"width\" of %d, config.json's image_size",
             f->size);
    return refuse(r, "size", expected);
}

/* A number, or one for each channel. */
static bool read_channels(const reader *r, const char *key, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(r->json, key);
    if (!item || cJSON_IsNull(item)) return true;
    for (int c = 0; c < MC_IMAGE_CHANNELS; c++) {
        const cJSON *x = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, c) : item;
        bool whole = !cJSON_IsArray(item) || cJSON_GetArraySize(item) == MC_IMAGE_CHANNELS;
        if (!whole || !cJSON_IsNumber(x)) return refuse(r, key, "a number, or three");
        out[c] = x->valuedouble;
    }
    return true;
}

static bool read_filter(const reader *r, mc_image_form *f)
{
    int64_t filter = (int64_t)f->filter;
    if (!mc_json_get_int(&r->m->module.ctx->error, r->json, r->path, "resample", MC_IMAGE_NEAREST,
                         MC_IMAGE_HAMMING, &filter))
        return false;
    f->filter = (mc_image_filter)filter;
    return true;
}

static bool read_form(const reader *r, mc_image_form *f)
{
    mc_error *err = &r->m->module.ctx->error;
    bool rescale = true, normalise = true;
    if (!mc_keys_check(r->m->module.ctx, err, r->path, r->json, &mc_keys_preprocessor_config) ||
        !mc_json_get_bool(err, r->json, r->path, "do_resize", &f->resize) ||
        !mc_json_get_bool(err, r->json, r->path, "do_rescale", &rescale) ||
        !mc_json_get_bool(err, r->json, r->path, "do_normalize", &normalise) ||
        !mc_json_get_number(err, r->json, r->path, "rescale_factor", -1e6, 1e6, &f->factor) ||
        !read_filter(r, f) || !read_size(r, f) || !read_channels(r, "image_mean", f->mean) ||
        !read_channels(r, "image_std", f->std))
        return false;
    if (!rescale) f->factor = 1;
    for (int c = 0; c < MC_IMAGE_CHANNELS; c++) {
        if (!normalise) f->mean[c] = 0;
        if (!normalise) f->std[c] = 1;
        if (f->std[c] == 0) return refuse(r, "image_std", "numbers other than 0");
    }
    return true;
}

bool mc_image_form_read(mc_model *m, const char *folder)
{
    enum { LIMIT = 1 << 20 };
    mc_context *ctx = m->module.ctx;
    char path[MC_PATH_MAX];
    if (!m->family->has.pixels) return true;
    m->image = default_form(m);
    if (mc_path_join(&ctx->error, path, folder, file_name)) return false;
    if (!mc_path_is_file(path)) {
        mc_log(ctx, MC_LOG_WARNING,
               "%s: no %s: images are resized to %d x %d, bilinear, and normalised with mean and "
               "deviation 0.5",
               folder, file_name, m->image.size, m->image.size);
        return true;
    }
    cJSON *json = mc_json_read_object(&ctx->error, path, LIMIT);
    const reader r = {m, path, json};
    if (json && read_form(&r, &m->image)) {
        char *text = cJSON_Print(json);
        if (text) m->image_text = mc_module_strdup(m->module.root, text);
        if (!text) mc_fail_nomem(ctx, file_name);
        cJSON_free(text);
    }
    cJSON_Delete(json);
    return !mc_failed(ctx);
}

void mc_image_form_begin(mc_model *m)
{
    if (m->family->has.pixels) m->image = default_form(m);
}

char *mc_image_form_text(const mc_model *m)
{
    const mc_image_form *f = &m->image;
    if (m->image_text || !f->size) return m->image_text ? mc_strdup(m->image_text) : NULL;
    cJSON *json = cJSON_CreateObject(), *size = cJSON_AddObjectToObject(json, "size");
    bool good = size && cJSON_AddNumberToObject(size, "height", f->size) &&
                cJSON_AddNumberToObject(size, "width", f->size) &&
                cJSON_AddStringToObject(json, "image_processor_type", "ViTImageProcessor") &&
                cJSON_AddBoolToObject(json, "do_resize", f->resize) &&
                cJSON_AddNumberToObject(json, "resample", (double)f->filter) &&
                cJSON_AddBoolToObject(json, "do_rescale", true) &&
                cJSON_AddNumberToObject(json, "rescale_factor", f->factor) &&
                cJSON_AddBoolToObject(json, "do_normalize", true) &&
                cJSON_AddItemToObject(json, "image_mean",
                                      cJSON_CreateDoubleArray(f->mean, MC_IMAGE_CHANNELS)) &&
                cJSON_AddItemToObject(json, "image_std",
                                      cJSON_CreateDoubleArray(f->std, MC_IMAGE_CHANNELS));
    char *printed = good ? cJSON_Print(json) : NULL, *text = printed ? mc_strdup(printed) : NULL;
    cJSON_Delete(json);
    cJSON_free(printed);
    if (!text) mc_fail_nomem(m->module.ctx, file_name);
    return text;
}
