#include "tools/train/token_data.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tools/files/text.h"

/* A path, and the weight after it: 0 without one. */
typedef struct weighted_path {
    char path[PATH_MAX];
    double weight;
} weighted_path;

static bool refuse(mc_context *ctx, const char *format, const char *what)
{
    char message[PATH_MAX + 128];
    text t = text_into(message, sizeof message);
    text_add(&t, format, what);
    mc_set_error(ctx, MC_ERR_ARGUMENT, "%s", message);
    return false;
}

/* Whether there is such a file, or Megatron's pair of that beginning. */
static bool exists(const char *path)
{
    char bin[PATH_MAX];
    text t = text_into(bin, sizeof bin);
    text_add(&t, "%s.bin", path);
    return access(path, F_OK) == 0 || (!t.cut && access(bin, F_OK) == 0);
}

static bool read_path(mc_context *ctx, const char *item, weighted_path *to)
{
    text t = text_into(to->path, sizeof to->path);
    const char *colon = strrchr(item, ':');
    to->weight = 0;
    bool weighted = colon && !exists(item) && text_parse_real(colon + 1, &to->weight);
    if (weighted && !(to->weight > 0))
        return refuse(ctx, "%s: expected a weight above 0 after the colon", item);
    text_add(&t, "%.*s", weighted ? (int)(colon - item) : INT_MAX, item);
    return !t.cut || refuse(ctx, "path too long: %.100s...", item);
}

static bool open_stream(mc_context *ctx, const args_list *paths, token_data *data)
{
    data->sources[0] = (mc_lm_source){mc_token_file_open_list(ctx, paths->items, paths->count), 1};
    data->count = 1;
    return data->sources[0].file;
}

/* The first path has a weight; the others need one too. */
static bool open_blend(mc_context *ctx, const args_list *paths, token_data *data)
{
    for (int i = 0; i < paths->count; i++) {
        weighted_path p;
        if (!read_path(ctx, paths->items[i], &p)) return false;
        if (!(p.weight > 0))
            return refuse(ctx, "%s: expected a weight after a colon, as another file has one",
                          p.path);
        data->sources[i] = (mc_lm_source){mc_token_file_open(ctx, p.path), p.weight};
        if (!data->sources[i].file) return false;
        data->count++;
    }
    return true;
}

static bool open_sources(mc_context *ctx, const args_list *paths, token_data *data)
{
    weighted_path first, other;
    if (!read_path(ctx, paths->items[0], &first)) return false;
    if (first.weight > 0) return open_blend(ctx, paths, data);
    for (int i = 1; i < paths->count; i++) {
        if (!read_path(ctx, paths->items[i], &other)) return false;
        if (other.weight > 0)
            return refuse(ctx, "%s: expected a weight after a colon, as another file has one",
                          first.path);
    }
    return open_stream(ctx, paths, data);
}

bool token_data_open(mc_context *ctx, const args_list *paths, token_data *data)
{
    *data = (token_data){.sources = calloc((size_t)paths->count, sizeof *data->sources)};
    if (!data->sources) {
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for token files");
        return false;
    }
    if (open_sources(ctx, paths, data)) return true;
    token_data_release(data);
    return false;
}

void token_data_release(token_data *data)
{
    free(data->sources);
    *data = (token_data){0};
}

int64_t token_data_tokens(const token_data *data)
{
    int64_t tokens = 0;
    for (int i = 0; i < data->count; i++) tokens += mc_token_file_count(data->sources[i].file);
    return tokens;
}

int64_t token_data_windows(const token_data *data, int64_t length)
{
    int64_t windows = 0;
    for (int i = 0; i < data->count; i++) {
        const mc_token_file *file = data->sources[i].file;
        for (int s = 0; s < mc_token_file_shards(file); s++)
            windows += (mc_token_file_shard_count(file, s) - 1) / length;
    }
    return windows;
}

const char *token_data_without_documents(const token_data *data)
{
    for (int i = 0; i < data->count; i++) {
        const mc_token_file *file = data->sources[i].file;
        for (int s = 0; s < mc_token_file_shards(file); s++)
            if (mc_token_file_format(file, s) == MC_TOKENS_LLMC) return mc_token_file_path(file, s);
    }
    return NULL;
}
