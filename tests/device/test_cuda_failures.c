/* Memory, streams, events and recordings that the GPU does not give: each ends in an error, leaves
 * nothing after, and does not reach the next context of the process. On the simulator, which fails
 * when told to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/device_choice.h"

/* The simulator's. */
void mc_sim_fail_at(long n) __attribute__((weak));
long mc_sim_tries(void) __attribute__((weak));

enum { TOKENS = 8, WORDS = 20 };

typedef struct run {
    mc_model *gpt2;
    mc_optim_manager *optim;
} run;

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    const int32_t tokens[TOKENS + 1] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    mc_optim_manager_zero_grad(r->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, TOKENS), tokens, false);
    mc_tensor *next = mc_tape_input(t, MC_I32, MC_SHAPE(TOKENS), tokens + 1, false);
    mc_model_output out = mc_model_forward(t, r->gpt2, &(mc_model_input){.ids = ids});
    mc_optim_manager_backward(r->optim, t, mc_model_loss(t, r->gpt2, out.last_hidden, next));
    mc_tape_end(t);
    mc_optim_manager_step(r->optim);
}

/* Trains a model for some steps, of which the second is recorded. */
static mc_status train(int steps, bool offload)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.device = "cuda", .seed = 3});
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = WORDS;
    c.dim = c.dim_ff = 8;
    c.heads = c.layers = 1;
    c.positions = TOKENS;
    run r = {.gpt2 = mc_gpt2_new(ctx, &c, NULL, NULL)};
    mc_optimizer *adam = offload ? mc_adam_offload_new(ctx, NULL) : mc_adam_new(ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(r.gpt2));
    r.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1});
    mc_optim_manager_add(r.optim, adam, NULL);
    for (int i = 0; i < steps; i++) mc_step_run(ctx, 1, step, &r);
    mc_status status = mc_error_status(ctx);
    if (status) assert_true(strlen(mc_error_message(ctx)) > 0);
    mc_context_free(ctx);
    return status;
}

static void test_failures(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cuda", 1);
    if (!ctx || !mc_sim_fail_at) skip();
    mc_context_free(ctx);
    for (int offload = 0; offload < 2; offload++) {
        int failures = 0;
        for (long n = 1;; n++) {
            mc_sim_fail_at(n);
            mc_status status = train(3, offload);
            bool reached = mc_sim_tries() >= n;
            mc_sim_fail_at(0);
            assert_true(status == MC_OK || status == MC_ERR_DEVICE || status == MC_ERR_NOMEM);
            if (!reached) break;
            failures += status != MC_OK;
            if (status) assert_int_equal(train(1, false), MC_OK);
        }
        assert_true(failures > 70);
    }
}

/* "cuda:N" is the GPU of that number. */
static void test_numbers(void **state)
{
    static const struct {
        const char *device, *error;
    } rows[] = {{"cuda:0", ""},
                {"cuda:1000", "device \"cuda:1000\": there are "},
                {"cuda:99999999999999999999", "there are "},
                {"cuda:", "device \"cuda:\": this build has \"cpu\", \"cuda\" and \"cuda:N\""},
                {"cuda:-1", "device \"cuda:-1\": this build has"},
                {"cuda:0x", "device \"cuda:0x\": this build has"},
                {"cuda0", "device \"cuda0\": this build has"}};
    (void)state;
    mc_context *ctx = context_on("cuda", 1);
    if (!ctx) skip();
    mc_context_free(ctx);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ctx = mc_init_distributed(&(mc_init_options){.device = rows[i].device});
        const char *message = mc_error_message(ctx);
        if (*rows[i].error ? !strstr(message, rows[i].error) : *message)
            fail_msg("%s: \"%s\", expected \"%s\"", rows[i].device, message, rows[i].error);
        mc_context_free(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_failures),
                                       cmocka_unit_test(test_numbers)};
#ifdef MC_HAVE_HOPPER
    setenv("MC_ROUTE", "decode:persistent?", 1); /* which takes memory too */
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
