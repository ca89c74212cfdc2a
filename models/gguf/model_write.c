#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/dist/ranks_internal.h"
#include "core/nn/module_internal.h"
#include "models/gguf/gguf_internal.h"

const char *mc_gguf_dtype_named(const char *text)
{
    static const char *const names[][2] = {
        {"f32", "F32"}, {"f16", "F16"}, {"bf16", "BF16"}, {"q8_0", "Q8_0"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], text) == 0) return names[i][1];
    return NULL;
}

/* A tensor of the file, and the parameters whose rows it is made of. */
typedef struct planned {
    char name[MC_GGUF_NAME];
    mc_parameter *from[MC_GGUF_STACKED]; /* none: the family's vector */
    const mc_gguf_dtype *dtype;
    int64_t rows, columns, heads; /* heads: whose rows become pairs; 0: none do */
    int ndim;
    double scale; /* of its numbers; 0: 1 */
} planned;

typedef struct writing {
    mc_context *ctx;
    mc_model *m;
    const mc_gguf_family *family;
    cJSON *config; /* config.json */
    mc_pooling pooling;
    const mc_gguf_dtype *dtype; /* of matrices */
    planned *tensors;
    size_t count, capacity;
    size_t used; /* parameters that have found a place */
    mc_gguf_writer out;
} writing;

/* config.json of Hugging Face's form. NULL with an error: the model has no such form, or its
 * values are divided as ModelCenter's are. */
static cJSON *config_of(mc_model *m)
{
    mc_context *ctx = m->module.ctx;
    int scaling = 0;
    cJSON *json = cJSON_CreateObject();
    void *config = mc_malloc(m->family->config_size);
    bool good = json && config;
    if (good) memcpy(config, m->config, m->family->config_size);
    good = good &&
           (!m->family->before_save || m->family->before_save(m, MC_FORM_HF, config, &scaling));
    if (!good || !mc_config_write(m->family, MC_FORM_HF, config, json)) {
        cJSON_Delete(json);
        json = NULL;
    }
    mc_free(config);
    json = mc_gguf_reread(json);
    if (!json && !mc_failed(ctx)) mc_fail_nomem(ctx, "a config");
    if (!json || !scaling) return json;
    cJSON_Delete(json);
    mc_fail(ctx, MC_ERR_UNSUPPORTED,
            "%s: its values are divided as ModelCenter's are: write it with --to hf first",
            m->family->title);
    return NULL;
}

/* ---- which tensors --------------------------------------------------------------------------- */

static const mc_gguf_dtype *dtype_of(const writing *w, const mc_gguf_row *row, const planned *t)
{
    if (t->ndim == 1 || row->plain) return mc_gguf_dtype_find("F32");
    return t->columns % w->dtype->block ? mc_gguf_dtype_find("F16") : w->dtype;
}

/* Adds the tensor of a row, a layer and a suffix, if the model has it. False when memory is out. */
static bool add_tensor(writing *w, const mc_gguf_row *row, int64_t layer, const char *suffix)
{
    char name[MC_GGUF_NAME];
    planned t = {.ndim = 0};
    for (int k = 0; mc_gguf_ours(row, k, layer, suffix, name); k++) {
        mc_parameter *p = mc_module_find_parameter(&w->m->module, name);
        if (!p) return true;
        mc_shape shape = mc_parameter_shape(p);
        t.from[k] = p;
        t.ndim = shape.ndim;
        t.rows += shape.ndim > 1 ? shape.dim[0] : 1;
        t.columns = shape.ndim > 1 ? shape.dim[1] : t.columns + shape.dim[0];
        w->used++;
    }
    if (t.ndim == 1) t.rows = 1;
    if (w->family->pairs) t.heads = mc_gguf_heads_of(row, &w->m->shape);
    mc_gguf_theirs(row, layer, suffix, t.name);
    t.dtype = dtype_of(w, row, &t);
    if (!mc_grow(&w->tensors, &w->capacity, w->count, sizeof t)) return false;
    w->tensors[w->count++] = t;
    return true;
}

static bool add_row(writing *w, const mc_gguf_row *row)
{
    int64_t layers = w->m->shape.layers > w->m->shape.decoder_layers ? w->m->shape.layers
                                                                     : w->m->shape.decoder_layers;
    int64_t first = mc_gguf_is_layered(row) ? 0 : w->m->shape.layers - 1;
    int64_t end = mc_gguf_is_layered(row) ? layers : first + 1;
    for (int64_t i = first; i < end; i++)
        if (!add_tensor(w, row, i, ".weight") || (!row->bare && !add_tensor(w, row, i, ".bias")))
            return false;
    return true;
}

static bool is_dropped(const writing *w, const char *name)
{
    for (const char *const *pattern = w->family->dropped; *pattern; pattern++)
        if (fnmatch(*pattern, name, 0) == 0) return true;
    return false;
}

/* Every parameter has a place, but for those that are dropped, with a warning. */
static bool check_places(writing *w)
{
    mc_parameter_iterator it = {0};
    size_t all = 0, dropped = 0;
    const char *example = NULL;
    for (mc_parameter *p; (p = mc_module_next_parameter(&w->m->module, &it));) {
        bool drop = is_dropped(w, mc_parameter_name(p));
        dropped += drop;
        all++;
        if (drop) example = mc_parameter_name(p);
    }
    if (w->used + dropped != all) {
        mc_fail(w->ctx, MC_ERR_UNSUPPORTED,
                "%s: %zu of its %zu parameters have no GGUF form (a head that classifies, or a "
                "layer that %s files of llama.cpp lack)",
                w->m->family->title, all - w->used - dropped, all, w->family->architecture);
        return false;
    }
    if (dropped)
        mc_log(w->ctx, MC_LOG_WARNING,
               "GGUF files have no heads of a %s: %zu tensors are left out "
               "(\"%s\")",
               w->m->family->title, dropped, example);
    return true;
}

/* The words again, as a head. */
static bool add_scaled_head(writing *w)
{
    static const mc_gguf_row row = {"output", {"input_embedding"}};
    double scale = w->family->head_scale ? w->family->head_scale(w->m, w->config) : 0;
    if (scale == 0) return true;
    const size_t used = w->used;
    if (!add_tensor(w, &row, 0, ".weight")) return false;
    w->tensors[w->count - 1].scale = scale;
    w->used = used; /* it has a place already */
    return true;
}

/* The vector that is no parameter. */
static bool add_extra(writing *w)
{
    const mc_gguf_family *f = w->family;
    planned t = {.ndim = 1, .rows = 1, .dtype = mc_gguf_dtype_find("F32")};
    if (f->extra) t.columns = f->extra_values(w->m, NULL);
    if (!t.columns) return true;
    snprintf(t.name, sizeof t.name, "%s", f->extra);
    if (!mc_grow(&w->tensors, &w->capacity, w->count, sizeof t)) return false;
    w->tensors[w->count++] = t;
    return true;
}

static bool plan_tensors(writing *w)
{
    bool good = true;
    for (const mc_gguf_row *row = w->family->rows; good && row->theirs; row++)
        good = add_row(w, row);
    good = good && add_scaled_head(w) && add_extra(w);
    if (!good) mc_fail_nomem(w->ctx, "a GGUF file's tensors");
    return good && check_places(w);
}

/* ---- the header ------------------------------------------------------------------------------ */

static void put_number(writing *w, const mc_gguf_key *row, const cJSON *config)
{
    char key[MC_GGUF_NAME];
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, row->ours);
    if (!cJSON_IsNumber(item)) return; /* null: a token that the model has not */
    snprintf(key, sizeof key, "%s.%s", w->family->architecture, row->theirs);
    if (row->is_float)
        mc_gguf_put_f32(&w->out, key, (float)item->valuedouble);
    else
        mc_gguf_put_u32(&w->out, key, (uint32_t)item->valuedouble);
}

static bool put_config(writing *w)
{
    const cJSON *config = w->config;
    mc_gguf_put_string(&w->out, "general.architecture", w->family->architecture);
    mc_gguf_put_u32(&w->out, "general.file_type", w->dtype->file_type);
    mc_gguf_put_u32(&w->out, "general.quantization_version", 2);
    for (const mc_gguf_key *row = w->family->keys; row->theirs; row++) put_number(w, row, config);
    return w->family->write(&w->out, w->m, config) &&
           mc_gguf_put_pooling(&w->out, w->m, w->family->architecture, w->pooling);
}

static void declare_tensors(writing *w)
{
    for (size_t i = 0; i < w->count; i++) {
        const planned *t = &w->tensors[i];
        const int64_t shape[] = {t->rows, t->columns};
        mc_gguf_add_tensor(&w->out, t->name, t->dtype, t->ndim, shape + 2 - t->ndim);
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static void store(const planned *t, float *values, int64_t count, mc_file_writer *file, void *room)
{
    int64_t columns = t->ndim > 1 ? t->columns : count;
    for (int64_t i = 0; t->scale != 0 && i < count; i++) values[i] *= (float)t->scale;
    mc_gguf_write(file, t->dtype, values, count / columns, columns, room);
}

/* Every rank reads, since a parameter may lie on several; rank 0 has the file. */
static bool write_parameter(writing *w, const planned *t, mc_parameter *p, mc_file_writer *file,
                            void *room)
{
    int64_t count = mc_shape_count(mc_parameter_shape(p));
    int64_t columns = t->ndim > 1 ? t->columns : 1;
    float *values = mc_malloc((size_t)count * sizeof *values);
    float *pairs = t->heads ? mc_malloc((size_t)count * sizeof *pairs) : NULL;
    if (!values || (t->heads && !pairs)) {
        mc_fail_nomem(w->ctx, "a parameter as f32");
    } else if (mc_parameter_read(p, values) == MC_OK && file) {
        if (pairs) mc_gguf_pair_rows(values, pairs, count / columns, columns, t->heads, false);
        store(t, pairs ? pairs : values, count, file, room);
    }
    mc_free(pairs);
    mc_free(values);
    return !mc_failed(w->ctx);
}

static void write_extra(writing *w, const planned *t, mc_file_writer *file, void *room)
{
    float *values = mc_malloc((size_t)t->columns * sizeof *values);
    if (!values) {
        mc_fail_nomem(w->ctx, "a vector of a GGUF file");
    } else if (file) {
        w->family->extra_values(w->m, values);
        store(t, values, t->columns, file, room);
    }
    mc_free(values);
}

static bool write_tensor(writing *w, const planned *t, mc_file_writer *file)
{
    void *room = mc_malloc((size_t)t->columns * sizeof(float));
    if (!room) mc_fail_nomem(w->ctx, "a row of a GGUF file");
    if (!mc_failed(w->ctx) && !t->from[0]) write_extra(w, t, file, room);
    for (int k = 0; !mc_failed(w->ctx) && k < MC_GGUF_STACKED && t->from[k]; k++)
        if (!write_parameter(w, t, t->from[k], file, room)) break;
    mc_free(room);
    if (file && !mc_failed(w->ctx))
        mc_gguf_end_tensor(file, mc_gguf_bytes(t->dtype, t->rows, t->columns));
    return !mc_failed(w->ctx);
}

static mc_status write_file(writing *w, const char *path)
{
    mc_file_writer file = {0};
    bool first = mc_rank(w->ctx) == 0;
    file.aside.fd = -1;
    if (first) mc_gguf_begin(&w->ctx->error, &w->out, &file, path);
    for (size_t i = 0; i < w->count && !mc_failed(w->ctx); i++)
        write_tensor(w, &w->tensors[i], first ? &file : NULL);
    if (first && !mc_failed(w->ctx)) mc_file_commit(&file);
    if (first) mc_file_writer_release(&file);
    return mc_failed(w->ctx) ? mc_error_status(w->ctx) : mc_ranks_meet(w->ctx);
}

/* ---- the whole ------------------------------------------------------------------------------- */

mc_status mc_gguf_write_model(mc_model *m, const mc_tokenizer *tok, const char *path,
                              const char *dtype, mc_pooling pooling)
{
    char known[256];
    mc_context *ctx = m->module.ctx;
    writing w = {.ctx = ctx, .m = m, .family = mc_gguf_family_of(m), .pooling = pooling};
    w.dtype = mc_gguf_dtype_find(dtype);
    if (!w.family)
        return mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s has no GGUF form here, expected one of %s",
                       m->family->title, mc_gguf_list(known, sizeof known));
    if (m->adapter)
        return mc_fail(ctx, MC_ERR_UNSUPPORTED, "an adapter has no GGUF form: merge it first");
    w.config = config_of(m);
    bool good = w.config && plan_tensors(&w) && put_config(&w);
    if (good && tok) good = mc_gguf_put_tokens(&w.out, &ctx->error, tok, &m->shape);
    if (good) {
        declare_tensors(&w);
        write_file(&w, path);
    }
    mc_gguf_writer_release(&w.out);
    cJSON_Delete(w.config);
    mc_free(w.tensors);
    return mc_error_status(ctx);
}
