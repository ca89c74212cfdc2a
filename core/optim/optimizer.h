/* Optimizers: how gradients update parameters.
 *
 *     mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){ .weight_decay = 1e-2f });
 *     mc_optimizer_add(adam, mc_model_module(bert));
 *
 * An optimizer is usually driven by an OptimManager (optim_manager.h), which adds schedules, loss
 * scaling, clipping and accumulation. Alone it works like this:
 *
 *     mc_optimizer_zero_grad(adam);
 *     mc_tape *t = mc_tape_begin(ctx);
 *     mc_tape_backward(t, my_loss(t, ...), NULL);
 *     mc_tape_end(t);
 *     mc_optimizer_step(adam);
 *
 * Arithmetic is f32 whatever the parameter's dtype. f16 and bf16 parameters have an f32 master
 * copy, which the step updates; the parameter is the master rounded to nearest even. All state is
 * f32 (Adam's moments in 8 bits with mc_adam_options.eight_bit), flat, in the layout of the
 * parameters' buckets, on the device (AdamOffload's: on the host), and unscaled: it never contains
 * a loss scale. It is allocated at the first step and freed with the module.
 *
 * Frozen parameters are skipped, and keep their state in case they are thawed. Each parameter
 * counts its own steps, so one that is thawed late starts with Adam's full bias correction. A
 * parameter that a step does not use has a gradient of zero and is stepped with it.
 *
 * Options. NULL or a zero field means the default. For an actual zero, write MC_TRUE_ZERO: `.beta1
 * = MC_TRUE_ZERO` is a beta1 of 0, while `.beta1 = 0` is the default 0.9.
 *
 * On a failed context all functions here do nothing: constructors return NULL, functions that
 * return numbers NaN, the others the status of the error. Constructors fail with MC_ERR_ARGUMENT
 * for an option out of its range (named with its value) and MC_ERR_NOMEM. Optimizers belong to
 * their context.
 *
 * Part of the promised interface (docs/api.md). */
#ifndef MC_OPTIM_OPTIMIZER_H
#define MC_OPTIM_OPTIMIZER_H

#include <stddef.h>
#include "core/device/update.h"
#include "core/nn/module.h"

typedef struct mc_optimizer mc_optimizer;

/* ---- Adam -------------------------------------------------------------------------------- */

typedef struct mc_adam_options {
    float lr;                /* without a schedule: 1e-3; >= 0 */
    float beta1, beta2;      /* decay of the moments: 0.9 and 0.999; in [0, 1) */
    float eps;               /* added to the root: 1e-8; >= 0 */
    float weight_decay;      /* of parameters whose group sets none; >= 0 */
    bool l2;                 /* weight decay as part of the gradient, instead of decoupled */
    bool no_decay_bias_norm; /* parameters of one dimension (biases, the weights of norms) do not
                                decay, unless a group gives them a weight_decay */
    float gpu_share;         /* AdamOffload: the part of the state, by elements, that stays in the
                                GPU's memory; in [0, 1] */
    bool eight_bit;          /* not AdamOffload: m and v in 8 bits, see below */
} mc_adam_options;

/* Adam (Kingma and Ba 2015) with decoupled weight decay (Loshchilov and Hutter 2019, AdamW), for
 * every dtype. With g the gradient of the mean loss and t this parameter's number of steps, this
 * one included:
 *     m = beta1 m + (1 - beta1) g
 *     v = beta2 v + (1 - beta2) g^2
 *     p = p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) - lr weight_decay p
 * where p on the right is the old value. With `l2`, g + weight_decay p replaces g and the last term
 * is dropped, as in torch.optim.Adam and in BMTrain for f32 parameters. State: exp_avg (m),
 * exp_avg_sq (v), and master for f16 and bf16.
 *
 * With `eight_bit`, m and v of matrices are stored in 8 bits (Dettmers et al. 2022), about 2 bytes
 * an element instead of 8. A parameter is divided into blocks of 256 elements. Each block stores
 * its largest magnitude, and each element the index of one of 256 numbers; the value is the product
 * of the two. The step is computed in f32. State of a matrix: exp_avg and exp_avg_sq (U8),
 * exp_avg_scale and exp_avg_sq_scale (f32, one a block). f32 state cannot be loaded into it, nor it
 * into f32 state.
 *
 * These have f32 state: vectors, embeddings, parameters of fewer than 4096 elements, and parameters
 * that are stored together, if one of them belongs to another optimizer or does not begin at a
 * multiple of 256 elements. The number of ranks changes results only through the gradients' sums.
 * Once steps were taken, adding a part of a stored tensor to another optimizer is
 * MC_ERR_UNSUPPORTED at the next step. */
MC_API mc_optimizer *mc_adam_new(mc_context *ctx, const mc_adam_options *options);

/* Adam with its state in host memory and its update computed by the host, for models whose state
 * does not fit on the GPU. The update rule, the names in checkpoints and the results (except the
 * last bits, which a CPU rounds differently) are mc_adam_new's; a checkpoint of either resumes with
 * the other.
 *
 * The unit is the bucket: a block, or the parameters outside of blocks. The host keeps m, v, a
 * master copy (of f32 parameters too) and the summed gradient: 16 bytes per element, divided among
 * all ranks. The GPU keeps the parameters. `gpu_share` is the share of the elements whose state
 * stays on the GPU, in the first buckets that fit; so does the state of a bucket that another kind
 * of optimizer shares. Gradients are copied to the host during backward, so with one micro-step the
 * GPU never holds more of them than those of a few blocks. mc_optim_manager_step returns before the
 * update is done. The update runs in parallel with the next forward pass, bucket by bucket, and the
 * use of a parameter waits only for its bucket. If ranks have whole copies (zero_level 0 to 2; a
 * bucket on the host has at least level 2), the first use after a step, also by mc_parameter_read,
 * is collective. mc_step_run runs such steps without recording them.
 *
 * Before host memory is allocated, it is compared with what the machine and the process's control
 * groups have left for the ranks of the host. If it does not fit, this fails with MC_ERR_NOMEM and
 * reports both numbers.
 *
 * On the CPU device the state is in host memory anyway; this is then mc_adam_new, with
 * bit-identical results, under the name that BMTrain's users know.
 *
 * Environment: MC_OFFLOAD=always does all of the above on the CPU device too (for tests);
 * MC_OFFLOAD_THREADS is the number of the host's threads (default: the rank's cores);
 * MC_HOST_MEMORY is the most bytes that a rank may allocate. Further errors: MC_ERR_ARGUMENT for a
 * gpu_share out of its range and, when host memory is allocated, for an MC_HOST_MEMORY that is not
 * a whole number from 1. */
MC_API mc_optimizer *mc_adam_offload_new(mc_context *ctx, const mc_adam_options *options);

/* ---- SGD --------------------------------------------------------------------------------- */

typedef struct mc_sgd_options {
    float lr;                /* without a schedule: 1e-3; >= 0 */
    float momentum;          /* 0: none, and then no state but the master; in [0, 1) */
    bool nesterov;           /* needs a momentum */
    float weight_decay;      /* as part of the gradient; >= 0 */
    bool decoupled;          /* weight decay beside the gradient instead: p - lr weight_decay p */
    bool no_decay_bias_norm; /* as Adam's */
} mc_sgd_options;

/* Gradient descent with momentum by the rules of torch.optim.SGD (no dampening):
 *     g = g + weight_decay p           (unless `decoupled`)
 *     b = g at the first step, then momentum b + g
 *     p = p - lr b                     (nesterov: p - lr (g + momentum b))
 * State: momentum_buffer (b), and master for f16 and bf16. */
MC_API mc_optimizer *mc_sgd_new(mc_context *ctx, const mc_sgd_options *options);

/* ---- Muon -------------------------------------------------------------------------------- */

/* What a matrix's update is multiplied by, beside the learning rate. */
typedef enum mc_muon_scale {
    MC_MUON_MATCH_RMS = 0, /* 0.2 sqrt(max(rows, columns)): elements as large as Adam's usually are,
                              so that its learning rates and decays fit (Liu et al. 2025) */
    MC_MUON_SHAPE          /* sqrt(max(1, rows / columns)) (Jordan et al. 2024) */
} mc_muon_scale;

typedef struct mc_muon_options {
    float lr;       /* without a schedule: 1e-3; >= 0 */
    float lr_other; /* of parameters that Adam's rule steps: lr; >= 0. A schedule changes both, and
                       their ratio stays */
    float momentum; /* 0.95; in [0, 1) */
    bool no_nesterov;
    float weight_decay; /* of parameters whose group sets none: 0.1; >= 0 */
    mc_muon_scale scale;
    bool f32;                /* Newton-Schulz in f32 instead of bf16 */
    float beta1, beta2, eps; /* of Adam's rule: as in mc_adam_options */
    bool no_decay_bias_norm; /* as Adam's */
} mc_muon_options;

/* Muon (Jordan et al. 2024) for the matrices inside blocks; AdamW, as by mc_adam_new, for all other
 * parameters: vectors, embeddings, heads, poolers. In a model without blocks the matrices are all
 * parameters of two dimensions but embeddings. A group may say otherwise (mc_param_group.muon).
 * Matrices that are stored together (query, key, value; gate and up) are stepped one by one. With
 * g the gradient of the mean loss, of a matrix W (rows, columns):
 *     m = m + (1 - momentum) (g - m)
 *     u = g + momentum (m - g)               (no_nesterov: m)
 *     X = u / max(|u|, 1e-7)                 |u|: the root of the sum of squares
 *     five times: A = X X^T, X = 3.4445 X + (-4.775 A + 2.0315 A A) X
 *     W = W - lr weight_decay W - lr scale X
 * as in torch.optim.Muon; X has singular values near 1. The products take about 4 x min(rows,
 * columns) / tokens of a step's time. State: momentum_buffer (m) of matrices, exp_avg and
 * exp_avg_sq of the others, and master for f16 and bf16.
 *
 * Ranks: where state is shared, a matrix whose elements lie on several ranks is sent to one of
 * them, which orthogonalizes it and sends the result back; at zero_level 0 each rank orthogonalizes
 * a part of the matrices. Errors: MC_ERR_ARGUMENT for an lr of zero with another lr_other, and for
 * a scale that is no mc_muon_scale. */
MC_API mc_optimizer *mc_muon_new(mc_context *ctx, const mc_muon_options *options);
/* FLOP of the products of an update, of all ranks together; 0 for other optimizers and NULL. */
MC_API double mc_muon_flops(mc_optimizer *optimizer);

/* ---- which parameters, and how ----------------------------------------------------------- */

/* Adds every parameter below a module, after waiting for launched steps. Parameters that the
 * optimizer already has stay in their groups, and those that Muon has stepped as matrices stay
 * matrices, so after declaring new parameters you can add the module again. Errors, which add
 * nothing: MC_ERR_STATE for a parameter of another optimizer, MC_ERR_ARGUMENT for NULL or a module
 * of another context. */
MC_API mc_status mc_optimizer_add(mc_optimizer *optimizer, mc_module *module);

/* By which rule mc_muon_new steps a parameter. */
typedef enum mc_muon_rule {
    MC_MUON_DEFAULT = 0,
    MC_MUON_MATRIX, /* as a matrix; parameters of two dimensions only */
    MC_MUON_ADAM    /* by Adam's rule */
} mc_muon_rule;

typedef struct mc_param_group {
    float weight_decay; /* 0: the optimizer's own; MC_TRUE_ZERO: none */
    float lr_factor;    /* factor of the learning rate; 0: 1; MC_TRUE_ZERO: only the moments are
                        updated */
    mc_muon_rule muon;  /* of mc_muon_new; others ignore it */
} mc_param_group;

/* Adds the parameters below a module whose full name matches `pattern` (fnmatch(3), where "*"
 * matches dots too; NULL: all), with their own settings.
 *
 *     mc_optimizer_add(adam, module);
 *     mc_optimizer_add_group(adam, module, "*.bias",
 *                            &(mc_param_group){ .weight_decay = MC_TRUE_ZERO });
 *
 * May be called before or after mc_optimizer_add. If several groups match a parameter, the last one
 * added wins. Parameters that are stored together (query, key and value) may be in different groups
 * and different optimizers.
 *
 * Errors: those of mc_optimizer_add; MC_ERR_ARGUMENT for a negative number, an unknown `muon`, or
 * MC_MUON_MATRIX of a parameter that is no matrix; MC_ERR_NOT_FOUND for a pattern that matches
 * nothing. */
MC_API mc_status mc_optimizer_add_group(mc_optimizer *optimizer, mc_module *module,
                                        const char *pattern, const mc_param_group *group);

/* Frees an optimizer now. Its parameters may then be added to another one, whose state starts at
 * zero except for the master copies. NULL is allowed. */
MC_API void mc_optimizer_free(mc_optimizer *optimizer);

/* ---- stepping ---------------------------------------------------------------------------- */

/* Zeros the gradients of this optimizer's parameters. */
MC_API mc_status mc_optimizer_zero_grad(mc_optimizer *optimizer);

/* Takes one step with the current gradients and the learning rate of mc_optimizer_lr. Does not
 * check for infinities or NaN. Errors: MC_ERR_NOMEM for the state, before anything has changed. */
MC_API mc_status mc_optimizer_step(mc_optimizer *optimizer);

/* The learning rate: at first the option's; with a schedule, that of the last step; NaN on a failed
 * context. Setting a rate that is negative or not finite is MC_ERR_ARGUMENT. */
MC_API double mc_optimizer_lr(const mc_optimizer *optimizer);
MC_API mc_status mc_optimizer_set_lr(mc_optimizer *optimizer, double lr);

/* Steps taken. 0 for NULL. */
MC_API int64_t mc_optimizer_step_count(const mc_optimizer *optimizer);

/* ---- an optimizer of your own ------------------------------------------------------------ */

/* Consecutive elements of one parameter, or of several neighbours, that are stepped with the same
 * settings. Pointers are to device memory. */
typedef struct mc_optimizer_range {
    int64_t count;  /* elements of each of the following */
    mc_dtype dtype; /* of the parameter: MC_F32, MC_F16, MC_BF16 */
    void *parameter;
    float *master;           /* NULL where the parameter is f32 itself */
    const float *gradient;   /* to be multiplied by update->gradient_scale */
    const void *rounded;     /* the gradient in the parameter's dtype, if it is stored so
                              (MC_GRAD_PARAMETER) and the kind reads it; `gradient` is then NULL.
                              Else NULL */
    float *state[2];         /* the kind's slots, zero before the first step; else NULL */
    const mc_update *update; /* learning rate, step, gradient scale, whether to skip */
    float lr_factor;         /* the group's factor of update->lr */
    float weight_decay;
    int64_t step_offset; /* <= 0, to be added to update->step: these parameters joined later */
} mc_optimizer_range;

typedef struct mc_optimizer_kind {
    const char *name;          /* for messages: "adam" */
    int state_count;           /* slots of state besides the master: 0, 1 or 2 */
    const char *state_name[2]; /* in checkpoints: "exp_avg", "exp_avg_sq" */
    /* Updates master (if not NULL), parameter and state in place. Called for each range of a step,
     * in no particular order. A status other than MC_OK fails the context. */
    mc_status (*step)(mc_context *ctx, const void *settings, const mc_optimizer_range *range);
    bool reads_rounded; /* `step` reads range->rounded; false: `gradient` is always set */
} mc_optimizer_kind;

typedef struct mc_optimizer_options {
    float lr; /* 0: 1e-3 */
    float weight_decay;
    bool no_decay_bias_norm;
} mc_optimizer_options;

/* Makes an optimizer of a kind, which must outlive it, with a copy of `settings_size` bytes of
 * settings for its step function. Adam, SGD and Muon are created by this function. */
MC_API mc_optimizer *mc_optimizer_new(mc_context *ctx, const mc_optimizer_kind *kind,
                                      const mc_optimizer_options *options, const void *settings,
                                      size_t settings_size);

#endif
