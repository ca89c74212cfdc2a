/* What a command reads, so that it never writes over it.
 *
 *     inputs in = {0};
 *     inputs_add(&in, "--data", "rows.csv");
 *     inputs_add_model(&in, ctx, "--pretrained", "bert-base-uncased", NULL);
 *     const input *hit = inputs_at_file(&in, "rows.csv");         hit->option is "--data"
 *     inputs_release(&in);
 *
 * Files and folders are compared by device and number (inode), with links followed: a path, its
 * spelling, a hard link or a bind mount make no difference. */
#ifndef MC_TOOLS_INPUTS_H
#define MC_TOOLS_INPUTS_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/options/model_options.h"

typedef struct input {
    const char *option; /* the caller's: a literal */
    char *path;
    bool model; /* of a model's folder rows (.jsonl, .csv, ...) are no part; of another folder the
                   files named after a split (train, val, dev, test) are */
} input;

/* Zero-initialised it is empty. */
typedef struct inputs {
    input *items;
    int count, room;
    bool failed; /* memory was out */
} inputs;

/* A file or a folder. NULL, "-" and what does not exist is not added; of a pattern all that match
 * it; F:0.7 is F where there is no such file, and F is F.bin and F.idx. */
void inputs_add(inputs *in, const char *option, const char *path);
void inputs_add_list(inputs *in, const char *option, const args_list *paths);
/* A model or tokenizer: a folder or file, or an identifier that the hub's cache holds (nothing is
 * downloaded), and the base of an adapter. */
void inputs_add_model(inputs *in, mc_context *ctx, const char *option, const char *identifier,
                      const char *revision);
/* --model, --base and --config. */
void inputs_add_model_options(inputs *in, mc_context *ctx, const model_options *from);
void inputs_release(inputs *in);

/* The input that a path is, or whose files it is one of; NULL: none. */
const input *inputs_at_file(const inputs *in, const char *path);
/* The input that a folder is, that lies in it, or one of whose files the folder has too, maybe by
 * another name. */
const input *inputs_in_folder(const inputs *in, const char *folder);
/* The input that a folder is, or the model whose folder it lies in; NULL: none. */
const input *inputs_around_folder(const inputs *in, const char *folder);

#endif
