#include "models/texts/embed.h"

#include <stdio.h>
#include "core/base/memory_internal.h"
#include "core/hub/find_internal.h"
#include "core/ops/general.h"
#include "models/family_internal.h"
#include "models/gguf/gguf_internal.h"
#include "models/texts/embed_internal.h"
#include "models/texts/text_rows_internal.h"

struct mc_embedder {
    mc_owned owned;
    mc_context *ctx;
    mc_embed_options o;
    char *prompt;
    bool calibrates; /* at the next call */
    bool cut_last;   /* after normalising: as a folder of sentence-transformers asks for both */
    mc_model *model;
    mc_text_rows *rows;
    mc_model *own_model; /* loaded here; NULL: somebody else's */
    mc_tokenizer *own_tokenizer;
};

/* ---- the vectors ----------------------------------------------------------------------------- */

static mc_tensor *pool(mc_tape *t, const mc_embedder *e, const mc_model_output *out)
{
    switch (e->o.pooling) {
    case MC_POOLING_CLS: return mc_first_tokens(t, out->with_prompt);
    case MC_POOLING_MAX: return mc_max_pool(t, out->with_prompt);
    case MC_POOLING_POOLER: return out->pooled;
    default: return mc_mean_pool(t, out->with_prompt);
    }
}

static mc_tensor *vectors_of(mc_tape *t, mc_model *model, const mc_model_output *out, void *user)
{
    const mc_embedder *e = user;
    (void)model;
    mc_tensor *x = out->with_prompt ? pool(t, e, out) : NULL;
    x = x ? mc_cast(t, x, MC_F32) : NULL;
    bool normalize = e->o.normalize == MC_NORMALIZE_YES;
    if (x && normalize && e->cut_last) x = mc_normalize_rows(t, x, 0);
    if (x && mc_embedder_dim(e) < mc_model_dim(model)) x = mc_slice(t, x, 1, 0, mc_embedder_dim(e));
    return x && normalize && !e->cut_last ? mc_normalize_rows(t, x, 0) : x;
}

/* ---- making ---------------------------------------------------------------------------------- */

static void free_embedder(void *object)
{
    mc_embedder *e = object;
    mc_text_rows_free(e->rows);
    mc_model_free(e->own_model);
    mc_tokenizer_free(e->own_tokenizer);
    mc_free(e->prompt);
    mc_free(e);
}

void mc_embedder_free(mc_embedder *e)
{
    if (!e) return;
    mc_disown(&e->owned);
    free_embedder(e);
}

/* Whether a family reads texts and has vectors of them. */
static bool check_family(mc_context *ctx, const char *family)
{
    if (!family) return false;
    if (mc_family_kind(family) == MC_MODEL_ENCODER && !mc_family_reads_images(family)) return true;
    return !mc_fail(ctx, MC_ERR_UNSUPPORTED,
                    "vectors of texts: a model of %s, expected an encoder of texts", family);
}

static bool check(mc_context *ctx, const mc_model *model, const mc_embed_options *o)
{
    if (o->prompt && o->prompt_name)
        mc_fail(ctx, MC_ERR_ARGUMENT, "vectors of texts: expected a prompt or its name, not both");
    else if (o->pooling < MC_POOLING_DEFAULT || o->pooling > MC_POOLING_POOLER)
        mc_fail(ctx, MC_ERR_ARGUMENT, "vectors of texts: pooling %d, expected 0 to %d",
                (int)o->pooling, (int)MC_POOLING_POOLER);
    else if (!check_family(ctx, mc_model_family(model)))
        return false;
    else if (o->truncate_dim < 0)
        mc_fail(ctx, MC_ERR_ARGUMENT, "vectors of texts: truncate_dim %lld, expected at least 0",
                (long long)o->truncate_dim);
    else if (o->truncate_dim > mc_model_dim(model))
        mc_fail(ctx, MC_ERR_ARGUMENT,
                "vectors of texts: truncate_dim %lld, the model's vectors have %lld numbers",
                (long long)o->truncate_dim, (long long)mc_model_dim(model));
    else if (o->pooling == MC_POOLING_POOLER && !mc_model_get_heads(model).pooler)
        mc_fail(ctx, MC_ERR_UNSUPPORTED, "vectors of texts: the model has no pooler");
    return !mc_failed(ctx);
}

mc_embedder *mc_embedder_new(mc_model *model, const mc_tokenizer *tokenizer,
                             const mc_embed_options *options)
{
    const mc_embed_options none = {.threads = 0};
    if (!model || !mc_given(model->module.ctx, tokenizer)) return NULL;
    if (!options) options = &none;
    mc_context *ctx = model->module.ctx;
    if (mc_failed(ctx) || !check(ctx, model, options)) return NULL;
    mc_embedder *e = mc_new_owned(ctx, sizeof *e, "an embedder", free_embedder);
    if (!e) return NULL;
    e->ctx = ctx;
    e->o = *options;
    e->model = model;
    if (!e->o.pooling) e->o.pooling = MC_POOLING_MEAN;
    if (!e->o.normalize) e->o.normalize = MC_NORMALIZE_NO;
    e->o.prompt = NULL;
    if (options->prompt && *options->prompt) {
        e->o.prompt = e->prompt = mc_strdup(options->prompt);
        if (!e->prompt) mc_fail_nomem(ctx, "a prompt");
    }
    e->rows = mc_text_rows_new(ctx, &(mc_text_rows_options){.model = model,
                                                            .tok = tokenizer,
                                                            .max_length = e->o.max_length,
                                                            .prefix = e->prompt,
                                                            .width = mc_embedder_dim(e),
                                                            .what = "numbers of the vector",
                                                            .head = vectors_of,
                                                            .user = e,
                                                            .threads = e->o.threads,
                                                            .batch_tokens = e->o.batch_tokens});
    e->o.max_length = mc_text_rows_max_length(e->rows);
    if (!mc_failed(ctx)) return e;
    mc_embedder_free(e);
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* What the folder says, where the options say nothing. */
static bool merge(mc_context *ctx, const char *folder, const mc_sentence_config *c,
                  mc_embed_options *o)
{
    if (!o->pooling) o->pooling = c->pooling;
    if (!o->normalize && c->normalize) o->normalize = MC_NORMALIZE_YES;
    if (!o->prompt) o->prompt = c->prompt;
    o->prompt_name = NULL;
    if (c->prompt_counts || !o->prompt || !*o->prompt) return true;
    return !mc_fail(ctx, MC_ERR_UNSUPPORTED,
                    "%s: its pooling leaves out the prompt (\"include_prompt\" false), which is "
                    "not supported: expected no prompt",
                    folder);
}

/* The length that the folder says, as far as the model has positions, and the numbers to keep: like
 * sentence-transformers, all of them if the folder says more than there are. */
static void merge_sizes(const mc_sentence_config *c, const mc_model *model, mc_embed_options *o)
{
    int64_t positions = mc_model_get_shape(model).positions;
    if (!o->max_length)
        o->max_length = positions && c->max_length > positions ? positions : c->max_length;
    if (!o->truncate_dim && c->truncate_dim < mc_model_dim(model))
        o->truncate_dim = c->truncate_dim;
}

/* A GGUF file says its pooling alone. */
static mc_status read_config(mc_context *ctx, const char *folder, const mc_embed_options *o,
                             mc_sentence_config *c)
{
    if (!mc_gguf_path_is(folder))
        return mc_sentence_config_read(ctx, folder, o->prompt ? NULL : o->prompt_name, c);
    *c = (mc_sentence_config){.prompt_counts = true};
    snprintf(c->model, sizeof c->model, "%s", folder);
    if (!o->prompt_name) return mc_gguf_pooling_of(&ctx->error, folder, &c->pooling);
    return mc_fail(ctx, MC_ERR_NOT_FOUND,
                   "%s: no prompt is called \"%.100s\": a GGUF file has none", folder,
                   o->prompt_name);
}

static mc_embedder *open_folder(mc_context *ctx, const char *folder, mc_embed_options *o)
{
    mc_sentence_config c;
    mc_embedder *e = NULL;
    bool asked = o->normalize != MC_NORMALIZE_DEFAULT; /* by the options */
    if (read_config(ctx, folder, o, &c) == MC_OK && merge(ctx, folder, &c, o) &&
        check_family(ctx, mc_family_of_pretrained(ctx, c.model, &o->load))) {
        const mc_tokenizer_options own = {.base = o->load.base};
        mc_tokenizer *tokenizer = o->tokenizer ? mc_tokenizer_from_pretrained(ctx, o->tokenizer)
                                               : mc_tokenizer_open(ctx, c.model, &own);
        mc_model *model = mc_model_from_pretrained(ctx, c.model, &o->load);
        merge_sizes(&c, model, o);
        e = mc_embedder_new(model, tokenizer, o);
        if (e) {
            e->cut_last = !asked;
            e->calibrates = o->load.recipe.fp8 && o->load.recipe.scaling == MC_FP8_STATIC;
            e->own_model = model;
            e->own_tokenizer = tokenizer;
        } else {
            mc_model_free(model);
            mc_tokenizer_free(tokenizer);
        }
    }
    mc_sentence_config_release(&c);
    return e;
}

mc_embedder *mc_embedder_open(mc_context *ctx, const char *identifier,
                              const mc_embed_options *options)
{
    char folder[MC_PATH_MAX];
    mc_embed_options o = options ? *options : (mc_embed_options){.threads = 0};
    if (mc_failed(ctx)) return NULL;
    if (o.load.recipe.scaling == MC_FP8_STATIC && mc_world_size(ctx) > 1) {
        mc_fail(ctx, MC_ERR_UNSUPPORTED,
                "vectors of texts in 8 bits: %d ranks, expected one, whose texts fix the scales",
                mc_world_size(ctx));
        return NULL;
    }
    if (o.prompt && o.prompt_name) {
        mc_fail(ctx, MC_ERR_ARGUMENT, "vectors of texts: expected a prompt or its name, not both");
        return NULL;
    }
    mc_hub_request request = {.needs = {.kind = MC_HUB_SENTENCE, .variant = o.load.variant},
                              .revision = o.load.revision,
                              .cache_dir = o.load.cache_dir,
                              .local_files_only = o.load.local_files_only,
                              .together = true};
    bool file = identifier && mc_gguf_path_is(identifier);
    if (file ? mc_path_join(&ctx->error, folder, "", identifier)
             : mc_hub_find(ctx, identifier, &request, folder))
        return NULL;
    o.load.revision = o.load.cache_dir = NULL; /* the folder has been found */
    o.load.saved_heads = true;
    mc_embedder *e = open_folder(ctx, folder, &o);
    request.needs.kind = MC_HUB_MODEL; /* what sentence-transformers adds need not be there */
    mc_hub_say_hidden(&ctx->error, identifier, &request.needs);
    mc_error_while(&ctx->error, "opening \"%s\" for vectors of texts", identifier);
    return e;
}

/* ---- what it is, and its work ---------------------------------------------------------------- */

int64_t mc_embedder_dim(const mc_embedder *e)
{
    int64_t dim = e ? mc_model_dim(e->model) : 0, kept = e ? e->o.truncate_dim : 0;
    return kept ? kept : dim;
}

mc_embed_options mc_embedder_options(const mc_embedder *e)
{
    return e ? e->o : (mc_embed_options){.threads = 0};
}

mc_status mc_embed_texts(mc_embedder *e, const mc_text_span *texts, size_t count, float *vectors)
{
    enum { FIRST = 1000 };
    if (!e) return MC_ERR_ARGUMENT;
    if (e->calibrates && count) {
        mc_status status =
            mc_text_rows_run(e->rows, texts, NULL, count < FIRST ? count : FIRST, vectors);
        if (!status) status = mc_module_calibrate_fp8(mc_model_module(e->model));
        if (status) return status;
        e->calibrates = false;
    }
    return mc_text_rows_run(e->rows, texts, NULL, count, vectors);
}
