/* Options that all training commands have: names on the command line, and what they stand for. */
#ifndef MC_TOOLS_TRAIN_OPTIONS_H
#define MC_TOOLS_TRAIN_OPTIONS_H

#include "core/modelcenter.h"

/* Each list of names ends in NULL; the index of a name is that of its value. */
extern const char *const train_dtype_names[]; /* f32, f16, bf16 */
extern const mc_dtype train_dtypes[];
extern const char *const train_recompute_names[]; /* none, selective, full */
extern const mc_recompute train_recomputes[];
extern const char *const train_device_names[]; /* cpu, cuda */
enum { TRAIN_CPU, TRAIN_CUDA };

/* The course of the learning rate. */
extern const char *const train_schedule_names[];
typedef enum train_schedule_kind {
    TRAIN_CONSTANT,
    TRAIN_NOAM,
    TRAIN_LINEAR,
    TRAIN_COSINE,
    TRAIN_EXPONENTIAL
} train_schedule_kind;
typedef struct train_schedule {
    int kind; /* a train_schedule_kind */
    double lr, gamma;
    int64_t warmup, steps;
} train_schedule;
mc_lr_scheduler *train_schedule_new(mc_context *ctx, const train_schedule *schedule);

/* Finds out before hours of training whether a folder (NULL: none is wanted) can be written, making
 * it if need be. If not, errno says why. */
bool train_can_save(const char *folder);

#endif
