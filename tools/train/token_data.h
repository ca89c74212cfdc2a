/* What --data and --val name: token files as one stream, or a blend of them by weight. */
#ifndef MC_TOOLS_TOKEN_DATA_H
#define MC_TOOLS_TOKEN_DATA_H

#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"

typedef struct token_data {
    mc_lm_source *sources; /* (count); the files belong to the context */
    int count;             /* 0: not opened */
} token_data;

/* Opens paths and patterns. Without weights they are shards of one stream. With "F:WEIGHT" each is
 * a source of its own, and all need a weight; what exists under its whole name is a path, whatever
 * colons are in it. False after an error of the context, which names what is wrong. */
bool token_data_open(mc_context *ctx, const args_list *paths, token_data *data);
void token_data_release(token_data *data);

int64_t token_data_tokens(const token_data *data);
/* Windows of `length` tokens and a label; the shards of a file stand alone. */
int64_t token_data_windows(const token_data *data, int64_t length);
/* The first file that does not say where its documents begin; NULL: all do. */
const char *token_data_without_documents(const token_data *data);

#endif
