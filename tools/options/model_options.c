#include "tools/options/model_options.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/log/download_bar.h"
#include "tools/options/lora_options.h"

/* "auto", and the families. */
static const char *const *choices(void)
{
    enum { MOST = 32 };
    static const char *names[MOST + 2] = {"auto"};
    for (int i = 0; i < MOST && (names[i + 1] = mc_family_name(i)); i++) continue;
    return names;
}

static bool is_family(int choice) { return choice > 0; }

static bool generates(int choice)
{
    return is_family(choice) && mc_family_kind(choices()[choice]) != MC_MODEL_ENCODER;
}

static bool is_auto_or_generates(int choice) { return !choice || generates(choice); }

static bool pretrains(int choice)
{
    return is_family(choice) && mc_family_objective(choices()[choice])->kind;
}

static bool is_auto_or_pretrains(int choice) { return !choice || pretrains(choice); }

static bool is_any(int choice) { return choice >= 0; }

static void add_old_rows(args_table *table, model_options *o, int ways)
{
    const char *now = ways & MODEL_WAY_SHAPE ? "--config SHAPE" : "--model FOLDER_OR_IDENTIFIER";
    if (ways & MODEL_WAY_OLD_FAMILY)
        ARGS_ADD(table, {ARGS_CHOICE("model", &o->choice, choices(), now),
                         .offers = ways & MODEL_WAY_GENERATES   ? generates
                                   : ways & MODEL_WAY_PRETRAINS ? pretrains
                                                                : is_family,
                         .positional = true, .old = true});
    if (ways & MODEL_WAY_OLD_MODEL)
        ARGS_ADD(table, {ARGS_PATH("model", &o->placed, now), .positional = true, .old = true});
    ARGS_ADD(table, {ARGS_PATH("pretrained", &o->model, now), .old = true});
}

void model_add_rows(args_table *table, model_options *o, int ways, const char *what)
{
    add_old_rows(table, o, ways);
    ARGS_ADD(table, {ARGS_PATH("model", &o->model, what), .value_name = "FOLDER_OR_IDENTIFIER",
                     .known_as = "model-name-or-path,load"});
    if (ways & MODEL_WAY_NEW)
        ARGS_ADD(table, {ARGS_PATH("config", &o->config,
                                   ways & MODEL_WAY_SHAPE
                                       ? "a shape's name (gpt2-xl, bert-large, t5-base), "
                                         "a config.json or its folder"
                                       : "a new model with random weights: a shape's "
                                         "name (gpt2-base, ...), a config.json or its "
                                         "folder"),
                         .value_name = "SHAPE", .known_as = "model-config"});
    if (!(ways & MODEL_WAY_ANY))
        ARGS_ADD(table, {ARGS_CHOICE("family", &o->choice, choices(),
                                     "the model's family, if its config does not say it"),
                         .value_name = "FAMILY",
                         .offers = ways & MODEL_WAY_GENERATES   ? is_auto_or_generates
                                   : ways & MODEL_WAY_PRETRAINS ? is_auto_or_pretrains
                                                                : is_any});
    ARGS_ADD(table, DOWNLOAD_REVISION_ROW(&o->revision));
    if (ways & MODEL_WAY_ADAPTER) ARGS_ADD(table, LORA_BASE_ROW(&o->base));
    if (ways & MODEL_WAY_TOKENIZER)
        ARGS_ADD(table,
                 {ARGS_PATH("tokenizer", &o->tokenizer, "folder or identifier of the tokenizer"),
                  .value_name = "FOLDER_OR_IDENTIFIER", .default_text = "the model's"});
}

int model_check(const args_spec *spec, model_options *o, int ways, bool optional)
{
    if (o->choice) o->family = choices()[o->choice];
    if (o->placed && o->model)
        return args_error(spec, "two models, %s and --model %s: expected one", o->placed, o->model);
    if (o->placed) o->model = o->placed;
    if (o->model && o->config)
        return args_error(spec, "expected one of --model and --config, not both");
    if (o->model || o->config || optional) return EXIT_OK;
    return args_error(spec, "required and missing: %s%s%s%s",
                      ways & MODEL_WAY_SHAPE ? "--config SHAPE, or --model FOLDER_OR_IDENTIFIER"
                                             : "--model FOLDER_OR_IDENTIFIER",
                      (ways & (MODEL_WAY_NEW | MODEL_WAY_SHAPE)) == MODEL_WAY_NEW
                          ? ", or --config SHAPE for a new model"
                          : "",
                      o->family ? "; a family alone names no model: " : "",
                      o->family ? o->family : "");
}

const char *model_find_family(mc_context *ctx, model_options *o)
{
    mc_load_options load = {.revision = o->revision, .base = o->base};
    if (o->family || mc_failed(ctx)) return o->family;
    o->family = o->config ? mc_family_of_config(ctx, o->config)
                          : mc_family_of_pretrained(ctx, o->model, &load);
    return o->family;
}

const char *model_config_folder(const model_options *o, char folder[MODEL_FOLDER])
{
    static const char file[] = "config.json";
    struct stat info;
    if (!o->config || stat(o->config, &info) != 0) return NULL;
    size_t length = strlen(o->config), name = sizeof file - 1;
    bool whole = S_ISDIR(info.st_mode);
    if (!whole && (length < name || strcmp(o->config + length - name, file) != 0)) return NULL;
    if (!whole && length > name && o->config[length - name - 1] != '/') return NULL;
    if (!whole) length -= name;
    if (length >= MODEL_FOLDER) return NULL;
    snprintf(folder, MODEL_FOLDER, "%.*s", length ? (int)length : 1, length ? o->config : ".");
    return folder;
}

mc_tokenizer *model_open_tokenizer(mc_context *ctx, const model_options *o)
{
    char message[1024];
    struct stat found;
    const char *from = o->tokenizer ? o->tokenizer : o->model;
    mc_tokenizer_options options = {.revision = o->tokenizer ? NULL : o->revision,
                                    .base = o->tokenizer ? NULL : o->base};
    bool before = mc_failed(ctx);
    mc_tokenizer *tok = mc_tokenizer_open(ctx, from, &options);
    if (before || o->tokenizer || mc_error_status(ctx) != MC_ERR_NOT_FOUND) return tok;
    if (stat(from, &found) != 0) return NULL; /* there is no model */
    snprintf(message, sizeof message, "%s: give one with --tokenizer FOLDER",
             mc_error_message(ctx));
    mc_clear_error(ctx);
    mc_set_error(ctx, MC_ERR_NOT_FOUND, "%s", message);
    return NULL;
}

bool model_find_folder(mc_context *ctx, const model_options *o, char *folder, size_t room)
{
    struct stat found;
    mc_hub_options options = {.revision = o->revision};
    if (mc_failed(ctx)) return false;
    if (stat(o->model, &found) == 0 && S_ISREG(found.st_mode)) /* a GGUF file, with all inside */
        return snprintf(folder, room, "%s", o->model) < (int)room;
    return mc_hub_download(ctx, o->model, &options, folder, room) == MC_OK;
}
