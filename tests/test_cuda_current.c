/* The GPU that a program has set (cudaSetDevice) is its own business: after every call into the
 * library it is what it was, whichever GPU the library works on, and so is a thread without one. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cuda_runtime_api.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/device_choice.h"
#include "tests/temp_folder.h"

enum { TOKENS = 8, WORDS = 20 };

/* A thread's current context, by the driver: NULL where it has none. */
static void *current(void)
{
    static int (*get)(void **);
    enum cudaDriverEntryPointQueryResult found;
    void *context = NULL;
    if (!get)
        cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", (void **)&get, 12000, cudaEnableDefault,
                                         &found);
    return get && !get(&context) ? context : (void *)-1;
}

/* A thread that has set a GPU and calls the library. */
typedef struct caller {
    const char *library; /* the library's device */
    int gpu;             /* -1: none was set, so that the thread has no context */
    void *context;
    char problem[512]; /* the first */
} caller;

static caller *now;

static void check(const char *call)
{
    int gpu = -1;
    cudaError_t error = cudaGetDevice(&gpu);
    bool same = !error && current() == now->context && (now->gpu < 0 || gpu == now->gpu);
    if (!same && !*now->problem)
        snprintf(now->problem, sizeof now->problem, "after %s GPU %d is current", call, gpu);
}

#define CALL(...) (__VA_ARGS__, check(#__VA_ARGS__))

/* A program's own kernel finds the library's GPU, which `user` points to. */
static mc_status custom_forward(void *user, const mc_custom_call *call)
{
    int gpu, *expected = user;
    float *y = mc_tensor_data(call->output);
    if (cudaGetDevice(&gpu) || gpu != *expected) return MC_ERR_STATE;
    size_t bytes = (size_t)mc_tensor_count(call->output) * sizeof *y;
    return cudaMemsetAsync(y, 0, bytes, mc_context_stream(call->ctx)) ? MC_ERR_DEVICE : MC_OK;
}

static const mc_custom_op_spec custom = {.name = "zeros", .forward = custom_forward};

typedef struct run {
    mc_model *gpt2;
    mc_optim_manager *optim;
} run;

static void step(mc_context *ctx, void *user)
{
    run *r = user;
    const int32_t tokens[TOKENS + 1] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    mc_tape *t;
    mc_tensor *ids, *next, *loss;
    mc_model_output out;
    CALL(mc_optim_manager_zero_grad(r->optim));
    CALL(t = mc_tape_begin(ctx));
    CALL(ids = mc_tape_input(t, MC_I32, MC_SHAPE(1, TOKENS), tokens, false));
    CALL(next = mc_tape_input(t, MC_I32, MC_SHAPE(TOKENS), tokens + 1, false));
    CALL(out = mc_model_forward(t, r->gpt2, &(mc_model_input){.ids = ids}));
    CALL(loss = mc_model_loss(t, r->gpt2, out.last_hidden, next));
    CALL(mc_optim_manager_backward(r->optim, t, loss));
    CALL(mc_tape_end(t));
    CALL(mc_optim_manager_step(r->optim));
}

static mc_model *new_model(mc_context *ctx)
{
    mc_gpt2_config c = mc_gpt2_config_default();
    c.vocab_size = WORDS;
    c.dim = c.dim_ff = 8;
    c.heads = 1;
    c.layers = 2;
    c.positions = 2 * TOKENS;
    return mc_gpt2_new(ctx, &c, NULL, NULL);
}

static void train(mc_context *ctx, mc_model *model, bool offload)
{
    run r = {.gpt2 = model};
    mc_optimizer *adam;
    mc_step_report report;
    CALL(adam = offload ? mc_adam_offload_new(ctx, NULL) : mc_adam_new(ctx, NULL));
    CALL(mc_optimizer_add(adam, mc_model_module(model)));
    CALL(r.optim = mc_optim_manager_new(ctx, &(mc_optim_manager_options){.max_grad_norm = 1}));
    CALL(mc_optim_manager_add(r.optim, adam, NULL));
    CALL(step(ctx, &r));
    for (int i = 0; i < 3; i++) CALL(mc_step_run(ctx, 1, step, &r)); /* run, recorded, replayed */
    CALL(mc_optim_manager_report(r.optim, 0, &report));
    CALL(mc_module_wait(mc_model_module(model)));
    CALL(mc_step_forget(ctx));
    CALL(mc_optim_manager_free(r.optim));
    CALL(mc_optimizer_free(adam));
}

static void use(mc_context *ctx, mc_model *model, const char *folder)
{
    int gpu = now->library[5] - '0';
    const int32_t prompt[] = {1, 2, 3};
    float values[WORDS];
    mc_tape *t;
    mc_tensor *x, *y;
    mc_model *loaded;
    mc_generation *answer;
    CALL(mc_model_save(model, folder));
    CALL(loaded = mc_model_from_pretrained(ctx, folder, NULL));
    CALL(answer = mc_model_generate(loaded, &(const int32_t *){prompt}, &(const int32_t){3}, 1,
                                    &(mc_generate_options){.max_new_tokens = 12}));
    CALL(mc_generation_free(answer));
    CALL(mc_model_free(loaded));
    CALL(x = mc_tensor_new(ctx, MC_F32, MC_SHAPE(WORDS)));
    CALL(mc_tensor_write(x, (float[WORDS]){1}, sizeof(float[WORDS])));
    CALL(t = mc_tape_begin_eval(ctx));
    CALL(y = mc_custom_op(t, &custom, &gpu, 1, &x, MC_F32, MC_SHAPE(WORDS)));
    CALL(mc_tensor_read_f32(ctx, y, values, WORDS));
    CALL(mc_tape_end(t));
    CALL(mc_tensor_free(x));
}

static void *calls(void *user)
{
    caller *c = user;
    temp_folder folder = temp_folder_new();
    mc_context *ctx;
    mc_model *model;
    if (c->gpu >= 0) cudaSetDevice(c->gpu);
    c->context = current();
    now = c;
    CALL(ctx = mc_init_distributed(&(mc_init_options){.device = c->library, .seed = 3}));
    CALL(model = new_model(ctx));
    train(ctx, model, false);
    use(ctx, model, folder.path);
    train(ctx, model, true);
    if (mc_failed(ctx)) snprintf(c->problem, sizeof c->problem, "%s", mc_error_message(ctx));
    CALL(mc_model_free(model));
    CALL(mc_context_free(ctx));
    temp_folder_free(&folder);
    return NULL;
}

static void in_thread(caller c)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, calls, &c), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(c.problem, "");
}

static void test_one(void **state)
{
    (void)state;
    mc_context *ctx = context_on("cuda:0", 1);
    if (!ctx) skip();
    mc_context_free(ctx);
    in_thread((caller){.library = "cuda:0", .gpu = -1});
    in_thread((caller){.library = "cuda:0", .gpu = 0});
}

static void test_two(void **state)
{
    (void)state;
    int count = 0;
    if (cudaGetDeviceCount(&count) || count < 2) {
        puts("SKIPPED: no CUDA device beside the first");
        skip();
    }
    in_thread((caller){.library = "cuda:0", .gpu = 1});
    in_thread((caller){.library = "cuda:1", .gpu = 0});
    in_thread((caller){.library = "cuda:1", .gpu = -1});
}

int main(void)
{
    setenv("MC_CUDA_SIM_GPUS", "2", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one), cmocka_unit_test(test_two)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
