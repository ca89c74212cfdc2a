/* The files of a run's folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/base/file_reader_internal.h"
#include "core/base/memory_internal.h"
#include "core/checkpoint/model_folder_internal.h"
#include "core/checkpoint/shards_internal.h"
#include "core/checkpoint/training_internal.h"
#include "core/checkpoint/training_state.h"

/* ---- checksums ------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

/* A running checksum, which every changed bit changes. Four words at a time: it costs no more time
 * than reading. */
typedef struct sum {
    uint64_t lane[4];
} sum;

/* `size` is a multiple of 32. */
static void sum_words(sum *s, const uint8_t *data, size_t size)
{
    uint64_t lane[4], word[4];
    memcpy(lane, s->lane, sizeof lane);
    for (size_t at = 0; at < size; at += sizeof word) {
        memcpy(word, data + at, sizeof word);
        for (int i = 0; i < 4; i++) lane[i] = mixed(lane[i], word[i]);
    }
    memcpy(s->lane, lane, sizeof lane);
}

/* `data` are the last `left` bytes, after the last whole words, of a file of `size`. */
static uint64_t sum_end(const sum *s, const uint8_t *data, size_t left, size_t size)
{
    const uint64_t *lane = s->lane;
    size_t at = 0;
    uint64_t h = mixed(mixed(mixed(lane[0], lane[1]), lane[2]), lane[3]);
    for (; at < left; at++) h = mixed(h, data[at]);
    return mixed(h, size);
}

mc_status mc_file_print_of(mc_error *err, const char *path, mc_tick_fn tick, void *user,
                           mc_file_print *print)
{
    enum { WORDS = 32, PIECE = 1 << 20, TICK = 64 }; /* a tick: one per this many pieces */
    mc_file_reader reader;
    mc_status status = mc_file_reader_init(err, &reader, path);
    uint8_t *buffer = status ? NULL : mc_malloc(PIECE);
    if (!status && !buffer) status = mc_error_set(err, MC_ERR_NOMEM, "%s: out of memory", path);
    sum s = {{1, 2, 3, 4}};
    size_t size = 0, left = 0, got = PIECE;
    for (int i = 1; got == PIECE && !status; i++) {
        got = mc_file_read_plain(&reader, buffer, PIECE);
        left = got % WORDS; /* 0 except for the last piece */
        sum_words(&s, buffer, got - left);
        size += got;
        status = err->status;
        if (tick && i % TICK == 0 && !status) status = tick(user);
    }
    if (!status) *print = (mc_file_print){size, sum_end(&s, buffer + got - left, left, size)};
    mc_file_reader_release(&reader);
    mc_free(buffer);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------- */

mc_status mc_checkpoint_path(mc_error *err, char path[MC_PATH_MAX], const char *folder,
                             int64_t step, const char *suffix)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld%s", (long long)step, suffix);
    return mc_path_join(err, path, folder, name);
}

/* The step in a checkpoint's name, -1 if it is not one. */
static int64_t step_of(const char *name)
{
    static const char start[] = "checkpoint-";
    if (strncmp(name, start, sizeof start - 1) != 0) return -1;
    const char *digits = name + sizeof start - 1;
    size_t length = strspn(digits, "0123456789");
    if (!length || length > 18 || digits[length] || digits[0] == '0') return -1;
    return strtoll(digits, NULL, 10);
}

typedef struct step_list {
    mc_error *err;
    int64_t *steps;
    size_t count, capacity;
} step_list;

static mc_status add_step(void *user, const char *name)
{
    step_list *list = user;
    int64_t step = step_of(name);
    if (step < 0) return MC_OK;
    if (!mc_grow(&list->steps, &list->capacity, list->count, sizeof *list->steps))
        return mc_error_set(list->err, MC_ERR_NOMEM, "out of memory for a list of checkpoints");
    list->steps[list->count++] = step;
    return MC_OK;
}

static int falling(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

mc_status mc_checkpoint_steps(mc_error *err, const char *folder, int64_t **steps, size_t *count)
{
    step_list list = {.err = err};
    mc_status status = mc_folder_each(err, folder, add_step, &list);
    if (list.count) qsort(list.steps, list.count, sizeof *list.steps, falling);
    *steps = list.steps;
    *count = list.count;
    return status;
}

/* ---- the run's weights ----------------------------------------------------------------------- */

typedef struct publishing {
    mc_error *err;
    const char *folder, *checkpoint;
    size_t shards; /* of the weights; 0: one file */
} publishing;

/* Replaces a file atomically by a link: links aside, then renames. */
static mc_status publish_file(void *user, const char *name)
{
    const publishing *p = user;
    char from[MC_PATH_MAX], to[MC_PATH_MAX], aside[MC_PATH_MAX + 8];
    if (strcmp(name, MC_TRAINING_JSON) == 0 || strcmp(name, MC_TRAINING_OPTIMIZER) == 0)
        return MC_OK;
    mc_status status = mc_path_join(p->err, from, p->checkpoint, name);
    if (!status) status = mc_path_join(p->err, to, p->folder, name);
    if (status) return status;
    snprintf(aside, sizeof aside, "%s" MC_TRAINING_ASIDE, to);
    unlink(aside);
    bool linked = link(from, aside) == 0 && rename(aside, to) == 0;
    unlink(aside); /* rename does nothing if both are links to one file */
    return linked ? MC_OK : mc_file_copy(p->err, from, to);
}

/* ---- weights in one or several files --------------------------------------------------------- */

static const char weights_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static mc_status publish_other(void *user, const char *name)
{
    bool weights = strcmp(name, weights_name) == 0 || strcmp(name, index_name) == 0 ||
                   mc_shard_count_of(name, weights_name);
    return weights ? MC_OK : publish_file(user, name);
}

static mc_status publish_shard(void *user, const char *name)
{
    return mc_shard_count_of(name, weights_name) ? publish_file(user, name) : MC_OK;
}

static mc_status shard_in_checkpoint(void *user, size_t number, char out[MC_PATH_MAX])
{
    const publishing *p = user;
    char single[MC_PATH_MAX];
    mc_status status = mc_path_join(p->err, single, p->checkpoint, weights_name);
    return status ? status : mc_shard_path(p->err, out, single, number, p->shards);
}

/* The index never describes a mixture of old and new files. */
static mc_status publish_shards(publishing *p, const char *single, const char *index_path)
{
    enum { INDEX_SIZE_MAX = 100 << 20 };
    cJSON *index = mc_json_read_object(p->err, index_path, INDEX_SIZE_MAX);
    if (!index) return p->err->status;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map");
    if (cJSON_IsObject(map) && cJSON_IsString(map->child))
        p->shards = mc_shard_count_of(map->child->valuestring, weights_name);
    mc_status status = p->shards ? MC_OK
                                 : mc_error_set(p->err, MC_ERR_FORMAT,
                                                "%s: key \"weight_map\": expected names like "
                                                "model-00001-of-00002.safetensors",
                                                index_path);
    mc_shard_set set = {.err = p->err,
                        .path = single,
                        .index = index,
                        .count = p->shards,
                        .source = shard_in_checkpoint,
                        .user = p};
    if (!status) status = mc_shards_bridge(&set);
    if (!status) status = mc_folder_each(p->err, p->checkpoint, publish_shard, p);
    if (!status) status = publish_file(p, index_name);
    cJSON_Delete(index);
    return status;
}

static mc_status publish(mc_error *err, const char *folder, const char *checkpoint, bool replaces)
{
    publishing p = {.err = err, .folder = folder, .checkpoint = checkpoint};
    char single[MC_PATH_MAX], from[MC_PATH_MAX], index_path[MC_PATH_MAX];
    mc_status status = mc_model_folder_make_way(err, checkpoint, folder, replaces);
    if (!status) status = mc_folder_each(err, checkpoint, publish_other, &p);
    if (!status) status = mc_path_join(err, single, folder, weights_name);
    if (!status) status = mc_path_join(err, from, checkpoint, weights_name);
    if (!status) status = mc_path_join(err, index_path, checkpoint, index_name);
    if (status) return status;
    if (mc_path_is_file(index_path))
        status = publish_shards(&p, single, index_path);
    else if (mc_path_is_file(from))
        status = publish_file(&p, weights_name);
    else
        return MC_OK; /* the program saves weights in a form of its own */
    return status ? status : mc_shards_clean(err, single, p.shards);
}

mc_status mc_checkpoint_publish(mc_error *err, const char *folder, int64_t step, int64_t best,
                                bool replaces)
{
    char path[MC_PATH_MAX];
    if (best == MC_CHECKPOINT_BEST_BESIDE) return MC_OK;
    mc_status status = mc_checkpoint_path(err, path, folder, best ? best : step, "");
    return status ? status : publish(err, folder, path, replaces);
}
