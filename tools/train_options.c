#include "tools/train_options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const train_dtype_names[] = {"f32", "f16", "bf16", NULL};
const mc_dtype train_dtypes[] = {MC_F32, MC_F16, MC_BF16};
const char *const train_recompute_names[] = {"none", "selective", "full", NULL};
const mc_recompute train_recomputes[] = {MC_RECOMPUTE_NONE, MC_RECOMPUTE_SELECTIVE,
                                         MC_RECOMPUTE_FULL};
const char *const train_device_names[] = {"cpu", "cuda", NULL};
const char *const train_schedule_names[] = {"constant", "noam",        "linear",
                                            "cosine",   "exponential", NULL};

mc_lr_scheduler *train_schedule_new(mc_context *ctx, const train_schedule *s)
{
    switch ((train_schedule_kind)s->kind) {
    case TRAIN_NOAM: return mc_noam_new(ctx, s->lr, s->warmup);
    case TRAIN_LINEAR: return mc_linear_decay_new(ctx, s->lr, s->warmup, s->steps);
    case TRAIN_COSINE: return mc_cosine_new(ctx, s->lr, s->warmup, s->steps);
    case TRAIN_EXPONENTIAL: return mc_exponential_new(ctx, s->lr, s->warmup, s->gamma);
    case TRAIN_CONSTANT: break;
    }
    return mc_no_decay_new(ctx, s->lr, s->warmup);
}

bool train_can_save(const char *folder)
{
    char path[PATH_MAX];
    if (!folder) return true;
    size_t length = strlen(folder);
    bool made = length < sizeof path;
    for (size_t i = 1; i <= length && made; i++) {
        if (folder[i] != '/' && folder[i] != '\0') continue;
        memcpy(path, folder, i);
        path[i] = '\0';
        made = mkdir(path, 0777) == 0 || errno == EEXIST;
    }
    return made && access(folder, W_OK | X_OK) == 0;
}
