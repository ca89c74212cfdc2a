#include "tools/options/train_options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const train_dtype_names[] = {"f32", "f16", "bf16", NULL};
const mc_dtype train_dtypes[] = {MC_F32, MC_F16, MC_BF16};
const char *const train_recompute_names[] = {"none", "selective", "full", NULL};
const mc_recompute train_recomputes[] = {MC_RECOMPUTE_NONE, MC_RECOMPUTE_SELECTIVE,
                                         MC_RECOMPUTE_FULL};
const char *const train_device_names[] = {"cpu", "cuda", NULL};
const char *const train_schedule_names[] = {"constant", "noam",        "linear",
                                            "cosine",   "exponential", NULL};

/* "param" is what the parameters have; their dtype's own name says the same. */
enum { GRAD_F32, GRAD_PARAM, GRAD_F16, GRAD_BF16 };
static const char *const grad_dtype_names[] = {"f32", "param", "f16", "bf16", NULL};

/* ---- rows ------------------------------------------------------------------------------------ */

void train_add_course_rows(args_table *table, train_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_REAL("lr", &o->lr, 0, 1000, "peak learning rate"), .known_as = "learning-rate"},
            {ARGS_CHOICE("scheduler", &o->scheduler, train_schedule_names,
                         "schedule of the learning rate"),
             .known_as = "lr-scheduler-type,lr-decay-style"},
            {ARGS_INT("warmup", &o->warmup, 0, INT64_MAX, "steps of warm-up"),
             .default_text = o->warmup < 0 ? "a twentieth of the steps, at most 700" : NULL,
             .known_as = "warmup-steps,warmup-iters"},
            {ARGS_REAL("gamma", &o->gamma, 0, 1, "factor per step of the exponential schedule"),
             .above_low = true},
            {ARGS_REAL("weight-decay", &o->weight_decay, 0, 1000, "decoupled weight decay")},
            {ARGS_REAL("clip", &o->clip, 0, INFINITY,
                       "clip the gradient to this norm; 0: no clipping"),
             .known_as = "max-grad-norm,clip-grad"},
            {0},
        });
}

void train_add_machine_rows(args_table *table, train_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_HEADING("Machine")},
            {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"),
             .numbered = true},
            {ARGS_CHOICE("dtype", &o->dtype, train_dtype_names, "dtype of weights and activations"),
             .default_text = o->dtype < 0 ? "f32 on the CPU, else bf16" : NULL},
            {ARGS_REAL("loss-scale", &o->loss_scale, 1, 1e30,
                       "first loss scale, with --dtype f16")},
            {ARGS_CHOICE("recompute", &o->recompute, train_recompute_names,
                         "what backward computes again to save memory: outputs of norms and "
                         "activations, or whole blocks")},
            {ARGS_FLAG("offload", &o->offload,
                       "keep the optimizer's state in host memory, and update there"),
             .known_as = "cpu-offload,offload-optimizer"},
            {ARGS_REAL("gpu-share", &o->gpu_share, 0, 1,
                       "with --offload: the part of the state that stays on the GPU")},
            {0},
        });
}

void train_add_rank_rows(args_table *table, train_options *o)
{
    ranks_add_rows(table, &o->ranks);
    args_table_add(table, (args_option[]){
                              {ARGS_CHOICE("grad-dtype", &o->grad_dtype, grad_dtype_names,
                                           "dtype of gradients between ranks and within one pass: "
                                           "f32, or that of the parameters, by name or as param"),
                               .known_as = "reduce-dtype,grad-reduce-dtype"},
                              {0},
                          });
}

void train_add_log_rows(args_table *table, train_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_HEADING("Logs")},
            {ARGS_INT("log-every", &o->log_every, 0, INT64_MAX, "print a line every N steps"),
             .default_text = "10 on a terminal, above the bar, else 1",
             .known_as = "logging-steps,log-interval"},
            {ARGS_PATH("log-jsonl", &o->log_jsonl, "write an object a step to this file")},
            {ARGS_PATH("log-csv", &o->log_csv, "write the same as a table to this file"),
             .known_as = "csv,metrics-csv"},
            {ARGS_PATH("tensorboard", &o->tensorboard,
                       "write TensorBoard event files to this folder")},
            {0},
        });
}

/* ---- what they stand for --------------------------------------------------------------------- */

train_device train_device_of(int device)
{
    train_device d;
    if (device <= TRAIN_CUDA)
        snprintf(d.name, sizeof d.name, "%s", train_device_names[device]);
    else
        snprintf(d.name, sizeof d.name, "cuda:%d", device - TRAIN_CUDA - 1);
    return d;
}

mc_context *train_start(train_options *o, uint64_t seed, run_log *log)
{
    o->ranks.grad_dtype = o->grad_dtype == GRAD_F32 ? MC_GRAD_F32 : MC_GRAD_PARAMETER;
    return ranks_start(&o->ranks, seed, train_device_of(o->device).name, log);
}

const char *train_grad_dtype_name(const train_options *o)
{
    return o->grad_dtype == GRAD_PARAM ? train_dtype_names[o->dtype]
                                       : grad_dtype_names[o->grad_dtype];
}

bool train_check_grad_dtype(const train_options *o, char *message, size_t room)
{
    const char *name = train_grad_dtype_name(o), *own = train_dtype_names[o->dtype];
    if (o->grad_dtype == GRAD_F32 || strcmp(name, own) == 0) return true;
    snprintf(message, room, "--grad-dtype is %s, expected f32%s%s", name,
             train_dtypes[o->dtype] == MC_F32 ? "" : " or the parameters' dtype, ",
             train_dtypes[o->dtype] == MC_F32 ? ", the parameters' dtype" : own);
    return false;
}

mc_optimizer *train_adam_new(mc_context *ctx, const train_options *o, const mc_adam_options *adam)
{
    mc_adam_options shared = *adam;
    shared.gpu_share = (float)o->gpu_share;
    return o->offload ? mc_adam_offload_new(ctx, &shared) : mc_adam_new(ctx, adam);
}

mc_lr_scheduler *train_schedule_new(mc_context *ctx, const train_options *o, int64_t steps)
{
    int64_t warmup = o->warmup > 0 ? o->warmup : 0; /* not known to a plan yet */
    steps = steps > 0 ? steps : 1;                  /* neither are they */
    switch (o->scheduler) {
    case TRAIN_NOAM: return mc_noam_new(ctx, o->lr, warmup);
    case TRAIN_LINEAR: return mc_linear_decay_new(ctx, o->lr, warmup, steps);
    case TRAIN_COSINE: return mc_cosine_new(ctx, o->lr, warmup, steps);
    case TRAIN_EXPONENTIAL: return mc_exponential_new(ctx, o->lr, warmup, o->gamma);
    default: return mc_no_decay_new(ctx, o->lr, warmup);
    }
}
