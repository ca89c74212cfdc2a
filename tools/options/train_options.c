#include "tools/options/train_options.h"

#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const train_dtype_names[] = {"f32", "f16", "bf16", NULL};
const mc_dtype train_dtypes[] = {MC_F32, MC_F16, MC_BF16};
const char *const train_recompute_names[] = {"none", "selective", "full", NULL};
const mc_recompute train_recomputes[] = {MC_RECOMPUTE_NONE, MC_RECOMPUTE_SELECTIVE,
                                         MC_RECOMPUTE_FULL};
const char *const train_fp8_names[] = {"none", "auto", "all", NULL};
const char *const train_fp8_scaling_names[] = {"delayed", "current", NULL};
const char *const train_device_names[] = {"cpu", "cuda", NULL};
const char *const train_schedule_names[] = {"constant", "noam",        "linear",
                                            "cosine",   "exponential", NULL};

const char *const train_optimizer_names[] = {"adam", "muon", NULL};
const char *const train_state_names[] = {"f32", "8bit", NULL};
const char *const train_muon_scale_names[] = {"match-rms", "shape", NULL};
static const mc_muon_scale muon_scales[] = {MC_MUON_MATCH_RMS, MC_MUON_SHAPE};
const char *const train_muon_dtype_names[] = {"bf16", "f32", NULL};
enum { MUON_BF16, MUON_F32 };

/* "param" is what the parameters have; their dtype's own name says the same. */
enum { GRAD_F32, GRAD_PARAM, GRAD_F16, GRAD_BF16 };
static const char *const grad_dtype_names[] = {"f32", "param", "f16", "bf16", NULL};

/* ---- rows ------------------------------------------------------------------------------------ */

void train_add_course_rows(args_table *table, train_options *o)
{
    ARGS_ADD(
        table,
        {ARGS_REAL("lr", &o->lr, 0, 1000, "peak learning rate; of noam lr / sqrt(warmup)"),
         .known_as = "learning-rate"},
        {ARGS_CHOICE("scheduler", &o->scheduler, train_schedule_names,
                     "schedule of the learning rate"),
         .known_as = "lr-scheduler-type,lr-decay-style"},
        {ARGS_INT("warmup", &o->warmup, 0, INT64_MAX, "steps of warm-up"),
         .default_text = o->warmup < 0 ? "a twentieth of the steps, at most 700" : NULL,
         .known_as = "warmup-steps,warmup-iters"},
        {ARGS_REAL("gamma", &o->gamma, 0, 1, "factor per step of the exponential schedule"),
         .above_low = true, .given = &o->gamma_given},
        {ARGS_REAL("weight-decay", &o->weight_decay, 0, 1000, "decoupled weight decay")},
        {ARGS_REAL("lr-other", &o->lr_other, 0, 1000,
                   "with --optimizer muon: peak learning rate of embeddings, heads and vectors"),
         .given = &o->lr_other_given, .default_text = "that of --lr"},
        {ARGS_REAL("clip", &o->clip, 0, INFINITY, "clip the gradient to this norm; 0: no clipping"),
         .known_as = "max-grad-norm,clip-grad"});
}

void train_add_optimizer_rows(args_table *table, train_options *o)
{
    ARGS_ADD(
        table,
        {ARGS_CHOICE("optimizer", &o->optimizer, train_optimizer_names,
                     "AdamW, or Muon for the matrices of blocks and AdamW for the rest"),
         .known_as = "optim"},
        {ARGS_CHOICE("optimizer-state", &o->optimizer_state, train_state_names,
                     "dtype of Adam's moments of matrices; 8bit takes a quarter of the memory"),
         .known_as = "optim-bits"},
        {ARGS_CHOICE("muon-scale", &o->muon_scale, train_muon_scale_names,
                     "factor of Muon's updates: 0.2 sqrt(max(rows, columns)), or "
                     "sqrt(max(1, rows / columns))"),
         .given = &o->muon_scale_given},
        {ARGS_CHOICE("muon-dtype", &o->muon_dtype, train_muon_dtype_names,
                     "dtype of the products that Muon orthogonalizes with"),
         .given = &o->muon_dtype_given});
}

const char *train_check_optimizer(const train_options *o)
{
    bool eight_bit = o->optimizer_state == TRAIN_STATE_8BIT;
    if (eight_bit && o->offload)
        return "--optimizer-state 8bit: --offload keeps f32 state, expected one without the other";
    if (o->optimizer == TRAIN_MUON) {
        if (eight_bit)
            return "--optimizer-state 8bit needs --optimizer adam: Muon's momentum is f32";
        if (o->offload)
            return "--offload: the host updates for --optimizer adam alone, expected one without "
                   "the other";
        if (o->lr_other_given && o->lr == 0 && o->lr_other > 0)
            return "--lr-other: expected an --lr above 0, whose schedule it follows";
        return NULL;
    }
    if (o->lr_other_given) return "--lr-other needs --optimizer muon";
    if (o->muon_scale_given) return "--muon-scale needs --optimizer muon";
    if (o->muon_dtype_given) return "--muon-dtype needs --optimizer muon";
    return NULL;
}

const char *train_check_pairs(const train_options *o)
{
    bool known = o->dtype != TRAIN_UNSET, f16 = known && train_dtypes[o->dtype] == MC_F16;
    if (o->fp8 && f16) return "--fp8 with --dtype f16: expected --dtype bf16 or f32";
    if (!o->fp8 && o->fp8_scaling_given) return "--fp8-scaling needs --fp8 auto or all";
    if (known && !f16 && o->loss_scale_given) return "--loss-scale needs --dtype f16";
    if (!o->offload && o->gpu_share_given) return "--gpu-share needs --offload";
    if (o->scheduler != TRAIN_EXPONENTIAL && o->gamma_given)
        return "--gamma needs --scheduler exponential";
    return NULL;
}

void train_add_machine_rows(args_table *table, train_options *o)
{
    ARGS_ADD(
        table, {ARGS_HEADING("Machine")},
        {ARGS_CHOICE("device", &o->device, train_device_names, "where to run"), .numbered = true},
        {ARGS_CHOICE("dtype", &o->dtype, train_dtype_names, "dtype of weights and activations"),
         .default_text = o->dtype < 0 ? "f32 on the CPU, else bf16" : NULL},
        {ARGS_REAL("loss-scale", &o->loss_scale, 1, 1e30, "first loss scale, with --dtype f16"),
         .given = &o->loss_scale_given},
        {ARGS_CHOICE("recompute", &o->recompute, train_recompute_names,
                     "what backward computes again to save memory: outputs of norms and "
                     "activations, or whole blocks")},
        {ARGS_CHOICE("fp8", &o->fp8, train_fp8_names,
                     "linear layers that multiply in 8 bits in training: auto, those that "
                     "are measured to become faster (all, without a GPU of compute "
                     "capability 9.0), or all")},
        {ARGS_CHOICE(
             "fp8-scaling", &o->fp8_scaling, train_fp8_scaling_names,
             "with --fp8: a tensor's scale follows from its last 16 updates, or from itself"),
         .given = &o->fp8_scaling_given},
        {ARGS_FLAG("offload", &o->offload,
                   "keep the optimizer's state in host memory, and update there"),
         .known_as = "cpu-offload,offload-optimizer"},
        {ARGS_REAL("gpu-share", &o->gpu_share, 0, 1,
                   "with --offload: the part of the state that stays on the GPU"),
         .given = &o->gpu_share_given});
}

void train_add_rank_rows(args_table *table, train_options *o)
{
    ranks_add_rows(table, &o->ranks);
    ARGS_ADD(table, {ARGS_CHOICE("grad-dtype", &o->grad_dtype, grad_dtype_names,
                                 "dtype of gradients between ranks and within one pass: "
                                 "f32, or that of the parameters, by name or as param"),
                     .known_as = "reduce-dtype,grad-reduce-dtype"});
}

void train_add_log_rows(args_table *table, train_options *o)
{
    ARGS_ADD(table, {ARGS_HEADING("Logs")},
             {ARGS_INT("log-every", &o->log_every, 0, INT64_MAX, "print a line every N steps"),
              .default_text = "10 on a terminal, above the bar, else 1",
              .known_as = "logging-steps,log-interval"},
             {ARGS_PATH("log-jsonl", &o->log_jsonl, "write an object a step to this file")},
             {ARGS_PATH("log-csv", &o->log_csv, "write the same as a table to this file"),
              .known_as = "csv,metrics-csv"},
             {ARGS_PATH("tensorboard", &o->tensorboard,
                        "write TensorBoard event files to this folder")});
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

mc_recipe train_recipe(const train_options *o)
{
    return (mc_recipe){.fp8 = (mc_fp8_choice)o->fp8, .scaling = (mc_fp8_scaling)o->fp8_scaling};
}

const char *train_fp8_line(const train_options *o, const mc_fp8_kind *kind,
                           char line[TRAIN_FP8_LINE])
{
    snprintf(line, TRAIN_FP8_LINE,
             "fp8: %s (%" PRId64 " x %" PRId64 ", %d layers): %s %.3f ms, fp8 %.3f ms, casts %.3f "
             "ms: %s",
             kind->name, kind->out, kind->in, kind->layers, train_dtype_names[o->dtype],
             kind->plain, kind->fp8, kind->casts, kind->chosen ? "in 8 bits" : "not in 8 bits");
    return line;
}

/* For the library, where 0 means the default. */
static float literal(double value) { return value > 0 ? (float)value : MC_TRUE_ZERO; }

mc_optimizer *train_optimizer_new(mc_context *ctx, const train_options *o,
                                  const mc_adam_options *adam)
{
    mc_adam_options shared = *adam;
    shared.weight_decay = (float)o->weight_decay;
    shared.eight_bit = o->optimizer_state == TRAIN_STATE_8BIT;
    if (o->optimizer == TRAIN_MUON)
        return mc_muon_new(
            ctx, &(mc_muon_options){.lr = literal(o->lr),
                                    .lr_other = o->lr_other_given ? literal(o->lr_other) : 0,
                                    .weight_decay = literal(o->weight_decay),
                                    .scale = muon_scales[o->muon_scale],
                                    .f32 = o->muon_dtype == MUON_F32,
                                    .beta1 = adam->beta1,
                                    .beta2 = adam->beta2,
                                    .eps = adam->eps,
                                    .no_decay_bias_norm = adam->no_decay_bias_norm});
    shared.gpu_share = (float)o->gpu_share;
    return o->offload ? mc_adam_offload_new(ctx, &shared) : mc_adam_new(ctx, &shared);
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
