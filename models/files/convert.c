#include "models/files/convert.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/base/json_internal.h"
#include "core/checkpoint/model_folder_internal.h"
#include "core/checkpoint/pretrained_internal.h"
#include "core/formats/tensor_file.h"
#include "core/hub/find_internal.h"
#include "models/adapters/adapter.h"
#include "models/gguf/gguf_internal.h"
#include "models/texts/embed_internal.h"
#include "models/model_internal.h"

/* ---- what comes along ------------------------------------------------------------------------ */

typedef struct carried {
    mc_error *err;
    const char *from, *to;
    bool whole; /* all files, not those of a model alone */
} carried;

static mc_status carry_file(void *user, const char *name)
{
    const carried *c = user;
    char source[MC_PATH_MAX], target[MC_PATH_MAX];
    bool own = strcmp(name, "finetune.json") == 0; /* of the run that made the folder */
    if (own || (!c->whole && !mc_model_folder_is_beside(name))) return MC_OK;
    mc_status status = mc_path_join(c->err, source, c->from, name);
    if (!status) status = mc_path_join(c->err, target, c->to, name);
    if (!status && mc_path_is_file(source)) status = mc_file_copy(c->err, source, target);
    return status;
}

/* The folder of a module beside the model's own, "1_Pooling". */
static mc_status carry_module(mc_error *err, const char *from, const char *to, const cJSON *module)
{
    char source[MC_PATH_MAX], target[MC_PATH_MAX];
    const char *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(module, "path"));
    carried c = {.err = err, .from = source, .to = target, .whole = true};
    if (!path || !*path || *path == '.' || strchr(path, '/')) return MC_OK;
    mc_status status = mc_path_join(err, source, from, path);
    if (!status) status = mc_path_join(err, target, to, path);
    if (status || !mc_path_is_folder(source)) return status;
    status = mc_make_folders(err, target);
    return status ? status : mc_folder_each(err, source, carry_file, &c);
}

/* The folders that modules.json of a sentence-transformers folder names. */
static mc_status carry_modules(mc_error *err, const char *from, const char *to)
{
    enum { LIMIT = 1 << 20 };
    char path[MC_PATH_MAX];
    size_t size;
    mc_status status = mc_path_join(err, path, from, "modules.json");
    if (status || !mc_path_is_file(path)) return status;
    char *text = mc_file_read(err, path, LIMIT, &size);
    cJSON *list = text ? mc_json_parse(err, text, size, path, 1) : NULL;
    const cJSON *module;
    status = err->status;
    cJSON_ArrayForEach(module, list) if (!status) status = carry_module(err, from, to, module);
    cJSON_Delete(list);
    mc_free(text);
    return status;
}

static mc_status carry(mc_error *err, const char *from, const char *to)
{
    carried c = {.err = err, .from = from, .to = to};
    mc_status status = mc_folder_each(err, from, carry_file, &c);
    return status ? status : carry_modules(err, from, to);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The narrowest of ours that holds every number of a file: f16 or bf16 where all floats are
 * that. */
static mc_dtype dtype_of(mc_context *ctx, const char *folder)
{
    mc_tensor_file *file = mc_tensor_file_open(ctx, folder, NULL);
    mc_dtype found = MC_DTYPE_DEFAULT;
    for (size_t i = 0; i < mc_tensor_file_count(file); i++) {
        const mc_tensor_entry *e = mc_tensor_file_at(file, i);
        bool wide = strcmp(e->dtype_name, "F64") == 0;
        if (!wide && !mc_dtype_is_float(e->dtype)) continue; /* a buffer */
        mc_dtype own = wide ? MC_F32 : e->dtype;
        found = found == MC_DTYPE_DEFAULT || found == own ? own : MC_F32;
    }
    mc_tensor_file_free(file);
    return found;
}

static bool is_same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static mc_status remove_safetensors(void *user, const char *name)
{
    const carried *c = user;
    char path[MC_PATH_MAX];
    if (!mc_model_folder_is_weights(name) || strstr(name, ".safetensors") == NULL) return MC_OK;
    mc_status status = mc_path_join(c->err, path, c->from, name);
    if (status || unlink(path) == 0) return status;
    return mc_error_set(c->err, MC_ERR_IO, "%s: cannot remove it: %s", path, strerror(errno));
}

/* ModelCenter itself reads pytorch_model.pt alone, which takes the place of the safetensors
 * files. */
static void become_torch_file(mc_context *ctx, const char *folder)
{
    char path[MC_PATH_MAX];
    carried c = {.err = &ctx->error, .from = folder};
    if (!mc_failed(ctx)) mc_path_join(&ctx->error, path, folder, "pytorch_model.pt");
    if (!mc_torch_file_from(ctx, folder, path) && !ctx->mesh.world.rank)
        mc_folder_each(&ctx->error, folder, remove_safetensors, &c);
}

/* Where a model's files lie: its folder or file, and of an adapter its base's folder ("": no
 * adapter). */
typedef struct source {
    char folder[MC_PATH_MAX], base[MC_PATH_MAX];
    bool file; /* which has nothing beside it */
    bool gguf; /* that is one with a tokenizer in it */
} source;

static mc_status find_base(mc_context *ctx, const mc_convert_options *options, source *s)
{
    char name[MC_PATH_MAX];
    bool adapter = !s->file && mc_hub_is_adapter(s->folder);
    if (adapter != options->merge)
        return mc_fail(ctx, MC_ERR_ARGUMENT,
                       adapter ? "%s: is an adapter: expected merge, which writes base and adapter "
                                 "as one model"
                               : "%s: is no adapter that could be merged into its base",
                       s->folder);
    if (!adapter) return MC_OK;
    if (!options->base && mc_hub_adapter_base(&ctx->error, s->folder, name))
        return mc_error_status(ctx);
    if (mc_model_find_folder(ctx, options->base ? options->base : name, NULL, s->base))
        mc_hub_say_base(&ctx->error, s->folder, options->base);
    return mc_error_status(ctx);
}

static mc_status find_source(mc_context *ctx, const char *identifier,
                             const mc_convert_options *options, source *s)
{
    mc_load_options load = {.saved_heads = true, .revision = options->revision};
    s->base[0] = '\0';
    s->file = identifier && mc_path_is_file(identifier);
    s->gguf = s->file && mc_gguf_path_is(identifier);
    mc_status status = s->file ? mc_path_join(&ctx->error, s->folder, "", identifier)
                               : mc_model_find_folder(ctx, identifier, &load, s->folder);
    return status ? status : find_base(ctx, options, s);
}

static mc_model *open_model(mc_context *ctx, const source *s, const mc_convert_options *options)
{
    mc_load_options load = {.dtype = options->dtype, .saved_heads = true, .base = options->base};
    if (!load.dtype && !s->gguf) load.dtype = dtype_of(ctx, *s->base ? s->base : s->folder);
    mc_model *m = mc_model_from_pretrained_of(ctx, options->family, s->folder, &load);
    if (m && *s->base) mc_lora_merge(m);
    return m;
}

static void write_model(mc_context *ctx, const source *s, const char *folder,
                        const mc_convert_options *options)
{
    mc_model *m = open_model(ctx, s, options);
    mc_model_save_as(m, folder, &options->save);
    mc_model_free(m);
}

static bool has_tokenizer(const char *folder)
{
    static const char *const names[] = {"tokenizer.json",    "vocab.json",      "vocab.txt",
                                        "spiece.model",      "tokenizer.model", "vocab.model",
                                        "cog-pretrain.model"};
    char path[MC_PATH_MAX];
    mc_error err = {0};
    bool has = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        has = has || (mc_path_join(&err, path, folder, names[i]) == MC_OK && mc_path_is_file(path));
    mc_error_clear(&err);
    return has;
}

/* What the folder of an encoder says about vectors of texts. */
static mc_pooling pooling_of(mc_context *ctx, const source *s, const mc_model *m)
{
    mc_sentence_config c;
    if (s->file || m->shape.kind != MC_MODEL_ENCODER) return MC_POOLING_DEFAULT;
    mc_status status = mc_sentence_config_read(ctx, s->folder, NULL, &c);
    if (!status && (c.normalize || c.prompt || c.truncate_dim))
        mc_log(ctx, MC_LOG_WARNING,
               "%s: GGUF files have no keys for its module Normalize, its prompt or its "
               "truncate_dim: who makes vectors of texts has to ask for them",
               s->folder);
    mc_sentence_config_release(&c);
    return status ? MC_POOLING_DEFAULT : c.pooling;
}

/* The weights may have any dtype: the file has its own. */
static mc_status write_gguf(mc_context *ctx, const source *s, const char *path,
                            const mc_convert_options *options)
{
    const char *dtype = mc_gguf_dtype_named(options->gguf);
    if (!dtype)
        return mc_fail(ctx, MC_ERR_ARGUMENT, "a GGUF file of %s: expected f32, f16, bf16 or q8_0",
                       options->gguf);
    if (s->gguf)
        return mc_fail(ctx, MC_ERR_UNSUPPORTED,
                       "%s: is a GGUF file: write it as a folder first, which becomes another one",
                       s->folder);
    mc_tokenizer *tok = NULL;
    const char *folder = !*s->base || has_tokenizer(s->folder) ? s->folder : s->base;
    if (s->file || !has_tokenizer(folder))
        mc_log(ctx, MC_LOG_WARNING, "%s: has no tokenizer, and neither will %s have one", s->folder,
               path);
    else
        tok = mc_tokenizer_open(ctx, folder, NULL);
    mc_model *m = mc_failed(ctx) ? NULL : open_model(ctx, s, options);
    mc_pooling pooling = m ? pooling_of(ctx, s, m) : MC_POOLING_DEFAULT;
    if (m && !mc_failed(ctx)) mc_gguf_write_model(m, tok, path, dtype, pooling);
    mc_model_free(m);
    mc_tokenizer_free(tok);
    return mc_error_status(ctx);
}

mc_status mc_model_convert(mc_context *ctx, const char *identifier, const char *folder,
                           const mc_convert_options *given)
{
    mc_convert_options options = given ? *given : (mc_convert_options){.dtype = MC_DTYPE_DEFAULT};
    char aside[MC_PATH_MAX];
    source from;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    mc_status status = find_source(ctx, identifier, &options, &from);
    if (status) return status;
    if (!folder || is_same_folder(from.folder, folder) ||
        (*from.base && is_same_folder(from.base, folder)))
        return mc_fail(ctx, MC_ERR_ARGUMENT, "%s: expected another folder than the model's own",
                       folder ? folder : "the folder to write is NULL");
    if (options.gguf) return write_gguf(ctx, &from, folder, &options);
    if (mc_model_folder_begin(ctx, folder, aside, sizeof aside)) return mc_error_status(ctx);
    write_model(ctx, &from, aside, &options);
    mc_hub_say_hidden(&ctx->error, identifier, &(mc_hub_needs){.kind = MC_HUB_MODEL});
    if (options.save.form == MC_SAVE_MODELCENTER) become_torch_file(ctx, aside);
    bool carries = !mc_failed(ctx) && !ctx->mesh.world.rank && !from.file;
    if (from.gguf && !mc_failed(ctx) && !ctx->mesh.world.rank)
        mc_gguf_files_to_folder(&ctx->error, from.folder, aside);
    if (carries && *from.base) carry(&ctx->error, from.base, aside);
    if (carries && !mc_failed(ctx)) carry(&ctx->error, from.folder, aside);
    return mc_model_folder_commit(ctx, folder);
}
