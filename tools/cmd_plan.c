/* `modelcenter plan`: what a training step will take, of memory and of communication, for one rank
 * or for thousands, without having them. */
#include <inttypes.h>
#include <stdio.h>
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/train_options.h"

static const char *const model_names[] = {"gpt2", NULL};
static const char *const level_names[] = {"0", "1", "2", "3", NULL};

typedef struct plan_options {
    int model, dtype, recompute, level, device;
    const char *config;
    int64_t ranks, batch_size, seq_length, micro_steps;
} plan_options;

/* The step that is planned. */
typedef struct plan_work {
    const plan_options *o;
    mc_gpt2 *gpt2;
    mc_optim_manager *optim;
    mc_tensor *ids, *next;
} plan_work;

static void plan_step(mc_context *ctx, void *user)
{
    plan_work *w = user;
    mc_optim_manager_zero_grad(w->optim);
    for (int64_t i = 0; i < w->o->micro_steps && !mc_failed(ctx); i++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_gpt2_output out = mc_gpt2_forward(t, w->gpt2, &(mc_gpt2_input){.ids = w->ids});
        mc_optim_manager_backward(w->optim, t, mc_gpt2_loss(t, w->gpt2, out.last_hidden, w->next));
        mc_tape_end(t);
    }
    mc_optim_manager_step(w->optim);
}

static bool read_config(mc_context *ctx, const plan_options *o, mc_gpt2_config *config)
{
    FILE *file = fopen(o->config, "r");
    if (!file) return mc_gpt2_config_named(ctx, o->config, config) == MC_OK;
    fclose(file);
    return mc_gpt2_config_read(ctx, o->config, config) == MC_OK;
}

static void make_work(mc_context *dry, plan_work *w, const mc_gpt2_config *config)
{
    const plan_options *o = w->o;
    mc_load_options load = {.dtype = train_dtypes[o->dtype],
                            .recompute = train_recomputes[o->recompute]};
    w->gpt2 = mc_gpt2_new(dry, config, &load);
    mc_optimizer *adam = mc_adam_new(dry, &(mc_adam_options){.no_decay_bias_norm = true});
    mc_optimizer_add(adam, mc_gpt2_module(w->gpt2));
    w->optim = mc_optim_manager_new(
        dry, &(mc_optim_manager_options){.micro_steps = (int)o->micro_steps, .max_grad_norm = 1});
    mc_optim_manager_add(w->optim, adam, NULL);
    w->ids = mc_tensor_new(dry, MC_I32, MC_SHAPE(o->batch_size, o->seq_length));
    w->next = mc_tensor_new(dry, MC_I32, MC_SHAPE(o->batch_size * o->seq_length));
}

static void show(const char *name, uint64_t bytes)
{
    printf("%-16s %14" PRIu64 " bytes %10.3f GiB\n", name, bytes, (double)bytes / (1 << 30));
}

static void report(const plan_options *o, const plan_work *w, const mc_memory_plan *plan)
{
    show("parameters", plan->parameters);
    show("gradients", plan->gradients);
    show("optimizer state", plan->optimizer);
    show("inputs", plan->inputs);
    show("activations", plan->activations);
    show("logits", plan->logits);
    show("workspace", plan->workspace);
    show("peak", plan->peak);
    show("sent in a step", plan->sent);
    printf("result ranks=%" PRId64 " zero_level=%s parameters=%" PRId64 " tokens_per_step=%" PRId64
           " peak_bytes=%" PRIu64 " sent_bytes=%" PRIu64 " collectives=%" PRIu64 "\n",
           o->ranks, level_names[o->level], mc_module_parameter_count(mc_gpt2_module(w->gpt2)),
           o->ranks * o->batch_size * o->seq_length * o->micro_steps, plan->peak, plan->sent,
           plan->collectives);
}

static int run(const plan_options *o)
{
    mc_init_options init = {.device = train_device_names[o->device], .single = true};
    mc_context *ctx = mc_init_distributed(&init), *dry = NULL;
    mc_gpt2_config config;
    mc_memory_plan plan;
    plan_work w = {.o = o};
    bool good = !mc_failed(ctx) && read_config(ctx, o, &config);
    if (good)
        dry = mc_plan_context_new_ranks(ctx, (int)o->ranks, (mc_zero_level)(MC_ZERO_0 + o->level));
    good = good && dry;
    if (good) make_work(dry, &w, &config);
    good = good && mc_plan_run(dry, mc_gpt2_module(w.gpt2), plan_step, &w, &plan) == MC_OK;
    if (good) report(o, &w, &plan);
    mc_print_error(ctx, stderr);
    if (dry) mc_print_error(dry, stderr);
    mc_context_free(dry);
    mc_context_free(ctx);
    return good ? EXIT_OK : EXIT_RUN_FAILED;
}

static const char details[] =
    "Memory is that of one rank, found out by running two steps on a device that computes "
    "nothing;\n"
    "scratch memory is what the kernels of --device take. Sent is what a rank sends to others, by "
    "the\n"
    "least that any algorithm needs. Times are not told yet.\n\n"
    "  modelcenter plan gpt2 --config gpt2-xl --ranks 4 --zero-level 3 --batch-size 16\n";

int cmd_plan(int argc, char **argv)
{
    plan_options o = {
        .dtype = 2, .level = 3, .ranks = 1, .batch_size = 1, .seq_length = 1024, .micro_steps = 1};
    const args_option options[] = {
        {ARGS_CHOICE("model", &o.model, model_names, "the model's family"), .required = true,
         .positional = true},
        {ARGS_TEXT("config", &o.config, "a config.json, or gpt2-base, -medium, -large, -xl"),
         .required = true},
        {ARGS_INT("ranks", &o.ranks, 1, 65536, "ranks of the job"), .known_as = "gpus"},
        {ARGS_CHOICE("zero-level", &o.level, level_names, "how much is sharded over ranks")},
        {ARGS_INT("batch-size", &o.batch_size, 1, 1 << 20, "sequences of a pass, per rank"),
         .known_as = "batch"},
        {ARGS_INT("seq-length", &o.seq_length, 1, 1 << 20, "tokens of a sequence")},
        {ARGS_INT("micro-steps", &o.micro_steps, 1, 1 << 20, "passes a step")},
        {ARGS_CHOICE("dtype", &o.dtype, train_dtype_names, "of the parameters")},
        {ARGS_CHOICE("recompute", &o.recompute, train_recompute_names,
                     "what of the blocks is computed again in backward")},
        {ARGS_CHOICE("device", &o.device, train_device_names, "whose kernels are asked")},
        {0},
    };
    const args_spec spec = {.command = "plan",
                            .summary = "Tells what a training step will take.",
                            .details = details,
                            .options = options};
    int code;
    return args_parse(&spec, argc, argv, &code) ? run(&o) : code;
}
