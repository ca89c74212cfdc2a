/* Which model a command works with, said in one way everywhere:
 *
 *     --model FOLDER_OR_IDENTIFIER   weights; the family is read from its config
 *     --config SHAPE                 a new model: a shape's name (gpt2-base), a config.json, or the
 *                                    folder of one; the family follows from it
 *     --family FAMILY                where neither says it (ModelCenter's configs)
 *
 * Older forms work through 0.x, with a notice on a terminal: the family or the model by its place
 * (`finetune bert`, `predict FOLDER`), and --pretrained for --model. */
#ifndef MC_TOOLS_MODEL_OPTIONS_H
#define MC_TOOLS_MODEL_OPTIONS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"

typedef enum model_ways {
    MODEL_WAY_NEW = 1,         /* --config is there too */
    MODEL_WAY_ADAPTER = 2,     /* an adapter's folder may be the model: --base */
    MODEL_WAY_OLD_FAMILY = 4,  /* older forms begin with the family */
    MODEL_WAY_OLD_MODEL = 8,   /* older forms begin with the model */
    MODEL_WAY_SHAPE = 16,      /* the weights do not count, --config is the usual way */
    MODEL_WAY_ANY = 32,        /* of whatever family it is: no --family */
    MODEL_WAY_GENERATES = 64,  /* help names families that generate text only */
    MODEL_WAY_PRETRAINS = 256, /* help names families that are pretrained only */
    MODEL_WAY_TOKENIZER = 128, /* another tokenizer than the model's: --tokenizer */
} model_ways;

/* All zero: nothing is given. */
typedef struct model_options {
    const char *model, *config, *revision, *base, *tokenizer;
    const char *placed; /* the model by its place */
    int choice;         /* of --family: 0 is auto */
    const char *family; /* the name, once known: model_check, model_find_family */
} model_options;

/* Rows of a command's table; `what` is the help of --model. */
void model_add_rows(args_table *table, model_options *o, int ways, const char *what);

/* Whether exactly one model is named, or none where `optional` (a run that is resumed has one).
 * EXIT_OK with the family if it was given, else EXIT_USAGE after an error. */
int model_check(const args_spec *spec, model_options *o, int ways, bool optional);

/* The family of the model or the new one, on all ranks; NULL with the context's error. */
const char *model_find_family(mc_context *ctx, model_options *o);

/* The folder that --config is, or whose config.json it is, copied to `folder`: a tokenizer may lie
 * there too. NULL of another file, of a shape's name, and where it is not given. */
enum { MODEL_FOLDER = 4096 };
const char *model_config_folder(const model_options *o, char folder[MODEL_FOLDER]);

/* The tokenizer that was given, or the model's; NULL with the context's error, which names the
 * option where the model's folder has none. */
mc_tokenizer *model_open_tokenizer(mc_context *ctx, const model_options *o);

/* The folder that holds the model's files, or the one file that has all of them inside. False with
 * the context's error. */
bool model_find_folder(mc_context *ctx, const model_options *o, char *folder, size_t room);

#endif
