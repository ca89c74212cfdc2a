#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/base/memory_internal.h"
#include "core/nn/module_internal.h"
#include "models/gguf/gguf_internal.h"

/* A file that is read: its bytes, what is in them, and its family. */
typedef struct opened {
    mc_file_map map;
    mc_gguf g;
    const mc_gguf_family *family;
} opened;

static void opened_release(opened *o)
{
    mc_gguf_release(&o->g);
    mc_file_map_release(&o->map);
}

static bool find_architecture(mc_error *err, opened *o)
{
    char known[256];
    size_t length = 0;
    const char *text = "";
    const mc_gguf_value *v = mc_gguf_find(&o->g, "general.architecture");
    if (v && v->kind == MC_GGUF_STRING && !v->is_array) {
        const uint8_t *at = v->data;
        text = mc_gguf_text(&at, &length);
    }
    o->family = mc_gguf_family_named(text, length);
    if (o->family) return true;
    mc_error_set(err, MC_ERR_UNSUPPORTED,
                 "%s: key \"general.architecture\": \"%.*s\": expected one of %s", o->g.path,
                 (int)(length < 100 ? length : 100), text, mc_gguf_list(known, sizeof known));
    return false;
}

/* Opens a file; on failure nothing is to be released. */
static bool open_file(mc_error *err, opened *o, const char *path)
{
    *o = (opened){.family = NULL};
    if (mc_file_map_init(err, &o->map, path)) return false;
    mc_status status = mc_gguf_parse(err, &o->g, o->map.data, o->map.size, path);
    bool good = !mc_file_check_bytes(err, o->map.data) && !status && find_architecture(err, o);
    if (!good) opened_release(o);
    return good;
}

/* ---- config ---------------------------------------------------------------------------------- */

static bool missing(mc_context *ctx, const opened *o, const char *what, const char *name)
{
    mc_fail(ctx, MC_ERR_NOT_FOUND, "%s: no %s \"%s\", which a file of a %s has", o->g.path, what,
            name, o->family->architecture);
    return false;
}

double mc_gguf_undivided(float quotient, double divisor)
{
    char text[32];
    const int most = 12;
    for (int digits = 1; digits <= most; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)quotient * divisor);
        if ((float)((double)strtof(text, NULL) / divisor) == quotient) break;
    }
    return strtod(text, NULL);
}

/* So that 1e-5 is not 9.99999974737875e-06. */
double mc_gguf_shortest(float value) { return mc_gguf_undivided(value, 1); }

double mc_gguf_number_of(const mc_gguf *g, const char *architecture, const char *key,
                         double otherwise)
{
    char name[MC_GGUF_NAME];
    double number;
    snprintf(name, sizeof name, "%s.%s", architecture, key);
    const mc_gguf_value *v = mc_gguf_find(g, name);
    if (!v || v->is_array || !mc_gguf_number(v, 0, &number)) return otherwise;
    return v->kind == MC_GGUF_FLOAT ? mc_gguf_shortest((float)number) : number;
}

static bool add_number(mc_context *ctx, const opened *o, const mc_gguf_key *row, cJSON *config)
{
    char key[MC_GGUF_NAME];
    double number;
    snprintf(key, sizeof key, "%s.%s", o->family->architecture, row->theirs);
    const mc_gguf_value *v = mc_gguf_find(&o->g, key);
    if (row->derived) return true;
    if (!v) return row->optional || missing(ctx, o, "key", key);
    if (v->is_array || !mc_gguf_number(v, 0, &number)) {
        mc_fail(ctx, MC_ERR_FORMAT, "%s: key \"%s\": expected a number", o->g.path, key);
        return false;
    }
    if (v->kind == MC_GGUF_FLOAT) number = mc_gguf_shortest((float)number);
    if (strstr(row->theirs, "block_count") && number > (double)o->g.tensor_count) {
        mc_fail(ctx, MC_ERR_FORMAT, "%s: key \"%s\": %g layers in a file of %zu tensors", o->g.path,
                key, number, o->g.tensor_count);
        return false;
    }
    return cJSON_AddNumberToObject(config, row->ours, number) != NULL;
}

static bool add_tokens(const opened *o, cJSON *config)
{
    static const char *const tokens[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                            {"tokenizer.ggml.eos_token_id", "eos_token_id"},
                                            {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    bool good = true, encoder = mc_family_find(o->family->family)->kind == MC_MODEL_ENCODER;
    for (size_t i = encoder ? 2 : 0; good && i < sizeof tokens / sizeof *tokens; i++) {
        double id;
        const mc_gguf_value *v = mc_gguf_find(&o->g, tokens[i][0]);
        if (v && !v->is_array && mc_gguf_number(v, 0, &id))
            good = cJSON_AddNumberToObject(config, tokens[i][1], id) != NULL;
    }
    return good;
}

/* What config.json would say; NULL after an error. */
static cJSON *config_of(mc_context *ctx, const opened *o)
{
    const mc_gguf_tensor *words = mc_gguf_find_tensor(&o->g, "token_embd.weight");
    const mc_gguf_family *f = o->family;
    const char *type = f->type ? f->type : mc_family_find(f->family)->model_type[0];
    cJSON *config = cJSON_CreateObject();
    bool good = words || missing(ctx, o, "tensor", "token_embd.weight");
    good = good && cJSON_AddStringToObject(config, "model_type", type) &&
           cJSON_AddNumberToObject(config, "vocab_size", (double)words->rows);
    for (const mc_gguf_key *row = o->family->keys; good && row->theirs; row++)
        good = add_number(ctx, o, row, config);
    good = good && add_tokens(o, config) && o->family->read(ctx, &o->g, config);
    if (!good) {
        cJSON_Delete(config);
        config = NULL;
    }
    config = mc_gguf_reread(config);
    if (!config && !mc_failed(ctx)) mc_fail_nomem(ctx, "a config");
    return config;
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct reading {
    mc_context *ctx;
    const opened *o;
    mc_model *m;
    bool look;           /* at the shapes alone: nothing has memory yet */
    size_t used, filled; /* tensors, and parameters */
} reading;

/* The rows of a tensor that a parameter's are, from row *row on; moves it. */
static bool fill(reading *r, const mc_gguf_tensor *t, mc_parameter *p, int64_t heads, int64_t *row)
{
    mc_shape shape = mc_parameter_shape(p);
    int64_t rows = shape.ndim > 1 ? shape.dim[0] : 1, count = mc_shape_count(shape);
    int64_t columns = count / rows;
    float *values = mc_malloc((size_t)count * sizeof *values);
    float *file = NULL; /* as the file has them, if they are not as the parameter has them */
    bool part = shape.ndim == 1 && t->columns > columns; /* one of several biases */
    bool other = part || heads;
    if (other) file = mc_malloc((size_t)(part ? t->columns : count) * sizeof *file);
    if (!values || (other && !file)) {
        mc_fail_nomem(r->ctx, "a parameter as f32");
    } else {
        mc_gguf_read(t, part ? 0 : *row, rows, other ? file : values);
        if (part)
            memcpy(values, file + *row, (size_t)columns * sizeof *values);
        else if (heads)
            mc_gguf_pair_rows(file, values, shape.dim[0], count / shape.dim[0], heads, true);
        *row += part ? columns : rows;
        if (!mc_file_check_bytes(&r->ctx->error, r->o->map.data)) mc_parameter_write(p, values);
        r->filled++;
    }
    mc_free(file);
    mc_free(values);
    return !mc_failed(r->ctx);
}

/* The shape of the parameters of a row together. */
static bool fits(reading *r, const mc_gguf_tensor *t, mc_parameter *const *from, int count)
{
    int64_t rows = 0, columns = 0;
    int ndim = 1;
    for (int k = 0; k < count; k++) {
        mc_shape shape = mc_parameter_shape(from[k]);
        ndim = shape.ndim;
        rows += ndim > 1 ? shape.dim[0] : 0;
        columns = ndim > 1 ? shape.dim[1] : columns + shape.dim[0];
    }
    if (ndim == 1) rows = 1;
    if (t->rows == rows && t->columns == columns && t->ndim == ndim) return true;
    mc_fail(r->ctx, MC_ERR_FORMAT,
            "%s: tensor \"%s\": %lld rows of %lld elements, expected %lld of %lld", r->o->g.path,
            t->name, (long long)t->rows, (long long)t->columns, (long long)rows,
            (long long)columns);
    return false;
}

static bool read_tensor(reading *r, const mc_gguf_row *row, int64_t layer, const char *suffix)
{
    char name[MC_GGUF_NAME];
    mc_parameter *from[MC_GGUF_STACKED];
    int count = 0;
    int64_t heads = r->o->family->pairs ? mc_gguf_heads_of(row, &r->m->shape) : 0, at = 0;
    for (; mc_gguf_ours(row, count, layer, suffix, name); count++)
        if (!(from[count] = mc_module_find_parameter(&r->m->module, name))) return true;
    mc_gguf_theirs(row, layer, suffix, name);
    const mc_gguf_tensor *t = mc_gguf_find_tensor(&r->o->g, name);
    if (!t) return missing(r->ctx, r->o, "tensor", name);
    r->used++;
    bool good = fits(r, t, from, count);
    if (r->look) r->filled += (size_t)count;
    for (int k = 0; good && !r->look && k < count; k++) good = fill(r, t, from[k], heads, &at);
    return good;
}

static bool read_row(reading *r, const mc_gguf_row *row)
{
    const mc_model_shape *s = &r->m->shape;
    int64_t most = s->layers > s->decoder_layers ? s->layers : s->decoder_layers;
    int64_t first = mc_gguf_is_layered(row) ? 0 : s->layers - 1;
    int64_t end = mc_gguf_is_layered(row) ? most : first + 1;
    for (int64_t i = first; i < end; i++)
        if (!read_tensor(r, row, i, ".weight") || (!row->bare && !read_tensor(r, row, i, ".bias")))
            return false;
    return true;
}

/* Every parameter has its values, and every tensor was read. */
static bool read_weights(reading *r, bool look)
{
    mc_parameter_iterator it = {0};
    size_t all = 0;
    r->look = look;
    r->used = r->filled = 0;
    const char *extra = r->o->family->extra;
    for (const mc_gguf_row *row = r->o->family->rows; row->theirs; row++)
        if (!read_row(r, row)) return false;
    r->used += extra && mc_gguf_find_tensor(&r->o->g, extra);
    while (mc_module_next_parameter(&r->m->module, &it)) all++;
    if (r->filled == all && r->used == r->o->g.tensor_count) return true;
    mc_fail(r->ctx, MC_ERR_UNSUPPORTED,
            "%s: %zu of its %zu tensors belong to a %s, and fill %zu of its %zu parameters",
            r->o->g.path, r->used, r->o->g.tensor_count, r->m->family->title, r->filled, all);
    return false;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static mc_model *new_model(mc_context *ctx, const opened *o, const mc_family *family,
                           const mc_load_options *options)
{
    cJSON *json = config_of(ctx, o);
    void *config = mc_calloc(1, family->config_size);
    mc_config_reader r = {.ctx = ctx, .json = json, .path = o->g.path, .form = MC_FORM_HF};
    mc_model_heads heads = {.lm = family->kind != MC_MODEL_ENCODER};
    mc_model *m = NULL;
    if (!config)
        mc_fail_nomem(ctx, "a config");
    else if (json && mc_config_read(family, &r, config))
        m = mc_model_from_config(ctx, family, config, &heads, options);
    mc_free(config);
    cJSON_Delete(json);
    return m;
}

mc_model *mc_gguf_open_model(mc_context *ctx, const mc_family *asked, const char *path,
                             const mc_load_options *options)
{
    opened o;
    mc_model *m = NULL;
    if (mc_failed(ctx) || !open_file(&ctx->error, &o, path)) return NULL;
    const mc_family *family = mc_family_find(o.family->family);
    if (asked && asked != family)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: the model is a %s, expected a %s", path,
                family->title, asked->title);
    else
        m = new_model(ctx, &o, family, options);
    reading r = {.ctx = ctx, .o = &o, .m = m};
    if (m && !(read_weights(&r, true) && read_weights(&r, false))) {
        mc_model_free(m);
        m = NULL;
    }
    opened_release(&o);
    return m;
}

const mc_family *mc_gguf_find_family(mc_context *ctx, const char *path)
{
    opened o;
    if (mc_failed(ctx) || !open_file(&ctx->error, &o, path)) return NULL;
    const mc_family *family = mc_family_find(o.family->family);
    opened_release(&o);
    return family;
}

mc_status mc_gguf_pooling_of(mc_error *err, const char *path, mc_pooling *out)
{
    opened o;
    *out = MC_POOLING_DEFAULT;
    if (!open_file(err, &o, path)) return err->status;
    mc_gguf_read_pooling(err, &o.g, o.family->architecture, out);
    opened_release(&o);
    return err->status;
}

mc_status mc_gguf_files_to_folder(mc_error *err, const char *path, const char *folder)
{
    opened o;
    mc_pooling pooling;
    if (!open_file(err, &o, path)) return err->status;
    const char *architecture = o.family->architecture;
    double dim = mc_gguf_number_of(&o.g, architecture, "embedding_length", 0);
    mc_gguf_write_tokens(err, &o.g, folder);
    if (!mc_error_is_set(err) && !mc_gguf_read_pooling(err, &o.g, architecture, &pooling) &&
        pooling)
        mc_gguf_write_pooling(err, folder, pooling, (int64_t)dim);
    mc_file_check_bytes(err, o.map.data);
    opened_release(&o);
    return err->status;
}
