#include "models/convert.h"

#include <string.h>
#include <sys/stat.h>
#include "core/checkpoint/model_folder.h"
#include "core/checkpoint/ranks_internal.h"
#include "core/checkpoint/tensor_file.h"
#include "core/checkpoint/torch_writer_internal.h"
#include "core/hub/find_internal.h"
#include "models/lora.h"
#include "models/model_internal.h"

/* What a folder may hold beside config.json and weights that every form has. */
static const char *const carried[] = {"vocab.txt",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "spiece.model",
                                      "sentencepiece.bpe.model",
                                      "tokenizer.model",
                                      "vocab.model",
                                      "generation_config.json",
                                      NULL};

static mc_status carry(mc_error *err, const char *from, const char *to)
{
    char source[MC_PATH_MAX], target[MC_PATH_MAX];
    mc_status status = MC_OK;
    for (int i = 0; carried[i] && !status; i++) {
        status = mc_path_join(err, source, from, carried[i]);
        if (!status) status = mc_path_join(err, target, to, carried[i]);
        if (!status && mc_path_is_file(source)) status = mc_file_copy(err, source, target);
    }
    return status;
}

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

/* ModelCenter itself reads pytorch_model.pt alone. By rank 0, while the others wait. */
static mc_status add_torch_file(mc_context *ctx, const char *folder)
{
    mc_ranks_work work;
    char path[MC_PATH_MAX];
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (ctx->rank) return mc_ranks_work_wait(ctx);
    mc_ranks_work_begin(&work, ctx);
    mc_tensor_file *file = mc_tensor_file_open(ctx, folder, NULL);
    mc_status status = mc_path_join(&ctx->error, path, folder, "pytorch_model.pt");
    if (!status) status = mc_torch_write_file_ticking(file, path, mc_ranks_work_tick, &work);
    mc_tensor_file_free(file);
    return status ? status : mc_ranks_work_end(&work);
}

/* Where a model's files lie: its folder or file, and of an adapter its base's folder ("": no
 * adapter). */
typedef struct source {
    char folder[MC_PATH_MAX], base[MC_PATH_MAX];
    bool file; /* which has nothing beside it */
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
    return mc_model_find_folder(ctx, options->base ? options->base : name, NULL, s->base);
}

static mc_status find_source(mc_context *ctx, const char *identifier,
                             const mc_convert_options *options, source *s)
{
    mc_load_options load = {.saved_heads = true, .revision = options->revision};
    s->base[0] = '\0';
    s->file = identifier && mc_path_is_file(identifier);
    mc_status status = s->file ? mc_path_join(&ctx->error, s->folder, "", identifier)
                               : mc_model_find_folder(ctx, identifier, &load, s->folder);
    return status ? status : find_base(ctx, options, s);
}

static void write_model(mc_context *ctx, const source *s, const char *folder,
                        const mc_convert_options *options)
{
    mc_load_options load = {.dtype = options->dtype, .saved_heads = true, .base = options->base};
    if (!load.dtype) load.dtype = dtype_of(ctx, *s->base ? s->base : s->folder);
    mc_model *m = mc_model_from_pretrained_of(ctx, options->family, s->folder, &load);
    if (m && *s->base) mc_lora_merge(m);
    mc_model_save_as(m, folder, &options->save);
    mc_model_free(m);
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
    if (mc_model_folder_begin(ctx, folder, aside, sizeof aside)) return mc_error_status(ctx);
    write_model(ctx, &from, aside, &options);
    if (options.save.form == MC_SAVE_MODELCENTER) add_torch_file(ctx, aside);
    bool carries = !mc_failed(ctx) && !ctx->rank && !from.file;
    if (carries && *from.base) carry(&ctx->error, from.base, aside);
    if (carries && !mc_failed(ctx)) carry(&ctx->error, from.folder, aside);
    return mc_model_folder_commit(ctx, folder);
}
