/* What the tests of optimizers share: a context, small modules, and gradients written by hand.
 * Include after cmocka.h. */
#ifndef MC_TESTS_OPTIM_TEST_H
#define MC_TESTS_OPTIM_TEST_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/optim/optimizer_internal.h"
#include "tests/temp_folder.h"

static inline int set_up_context(void **state)
{
    *state = mc_init_distributed(&(mc_init_options){.seed = 7});
    return mc_failed(*state);
}

static inline int tear_down_context(void **state)
{
    mc_context_free(*state);
    return 0;
}

#define assert_good(ctx)                                           \
    do {                                                           \
        if (mc_failed(ctx)) fail_msg("%s", mc_error_message(ctx)); \
    } while (0)

/* The context has failed with this status and a message that has all these words; clears it. */
#define assert_error(ctx, wanted, ...)                                           \
    do {                                                                         \
        assert_int_equal(mc_error_status(ctx), wanted);                          \
        const char *words_[] = {__VA_ARGS__};                                    \
        for (size_t i_ = 0; i_ < sizeof words_ / sizeof *words_; i_++)           \
            if (!strstr(mc_error_message(ctx), words_[i_]))                      \
                fail_msg("no \"%s\" in: %s", words_[i_], mc_error_message(ctx)); \
        mc_clear_error(ctx);                                                     \
    } while (0)

#define assert_near(a, b, tolerance)                                                             \
    do {                                                                                         \
        double a_ = (a), b_ = (b), t_ = (tolerance);                                             \
        if (!(fabs(a_ - b_) <= t_)) fail_msg("%s:%d: %.9g != %.9g", __FILE__, __LINE__, a_, b_); \
    } while (0)

static inline mc_module *new_root(mc_context *ctx, mc_dtype dtype)
{
    return mc_module_new(ctx, "", sizeof(mc_module), &(mc_module_options){.dtype = dtype});
}

static inline float *bucket_gradient(mc_parameter *p)
{
    assert_int_equal(mc_module_need_gradients(p->module->root, 0), MC_OK);
    assert_int_equal(mc_blank_fill(p->module->ctx, &p->stored->span->blank), MC_OK);
    mc_matrix stored = mc_bucket_gradient(p->stored->bucket, p->stored->span->offset + p->first);
    assert_non_null(stored.data);
    assert_int_equal(stored.dtype, MC_F32);
    return stored.data;
}

static inline void set_gradient(mc_parameter *p, const float *values)
{
    memcpy(bucket_gradient(p), values, (size_t)mc_shape_count(p->shape) * sizeof(float));
}

static inline void fill_gradient(mc_parameter *p, float value)
{
    float *g = bucket_gradient(p);
    for (int64_t i = 0; i < mc_shape_count(p->shape); i++) g[i] = value;
}

/* Element i of a parameter. */
static inline float value_at(mc_parameter *p, int64_t i)
{
    float *values = malloc((size_t)mc_shape_count(p->shape) * sizeof *values);
    assert_non_null(values);
    assert_int_equal(mc_parameter_read(p, values), MC_OK);
    float value = values[i];
    free(values);
    return value;
}

/* A deterministic number in [-1, 1). */
static inline float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

static inline bool never_done(mc_device *d, uint64_t ticket)
{
    (void)d, (void)ticket;
    return false;
}

/* Launches a step by a new OptimManager, to which it is still running, as on a GPU. */
static inline void launch_step(mc_context *ctx, mc_optimizer *o, mc_parameter *p)
{
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    bool (*is_done)(mc_device *, uint64_t) = ctx->device->is_done;
    mc_optim_manager_add(optim, o, NULL);
    ctx->device->is_done = never_done;
    mc_optim_manager_zero_grad(optim);
    fill_gradient(p, 1);
    mc_optim_manager_step(optim);
    ctx->device->is_done = is_done;
    assert_int_equal(optim->in_flight, 1);
}

#endif
