/* `modelcenter finetune`: trains a pretrained model (or one from random weights) on a task,
 * evaluates it after each epoch, and saves it as a folder that from_pretrained reads. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tools/args.h"
#include "tools/classify.h"
#include "tools/commands.h"
#include "tools/download_bar.h"
#include "tools/families.h"
#include "tools/interrupt.h"
#include "tools/ranks.h"
#include "tools/train_options.h"

typedef enum keep { KEEP_LAST, KEEP_BEST } keep;

static const char *const task_names[] = {"BoolQ", "CB", "COPA", "RTE", "WiC", "WSC", NULL};
static const char *const keep_names[] = {"last", "best", NULL};

typedef struct finetune_options {
    int model, task, keep;
    const char *pretrained, *revision, *config, *tokenizer, *data, *output;
    int64_t max_shard_size;
    int64_t epochs, max_length, max_steps;
    int batch_size;
    double dropout;
    bool dropout_given, shuffle, no_decay_bias_norm;
    uint64_t seed;
    train_options train;
} finetune_options;

static const finetune_options defaults = {.epochs = 1,
                                          .batch_size = 32,
                                          .shuffle = true,
                                          .train = {.lr = 5e-5,
                                                    .weight_decay = 0.01,
                                                    .clip = 1,
                                                    .gamma = 0.95,
                                                    .loss_scale = 1024,
                                                    .dtype = TRAIN_UNSET,
                                                    .ranks = RANKS_DEFAULTS}};

enum { STEPS_KEPT = 4 };

/* All of a run. */
typedef struct finetune {
    const finetune_options *o;
    mc_context *ctx;
    run_log log;
    mc_tokenizer *tokenizer;
    mc_model *model;
    mc_dataset *train_rows, *val_rows;
    mc_dataloader *train, *val;
    const mc_batch *batch; /* of the running step */
    classify_exam exam;
    mc_optim_manager *optim;
    int64_t step, steps, shown;
    int64_t tokens[STEPS_KEPT]; /* of the last steps */
    double clock, train_seconds;
    classify_score score; /* of the model that is kept */
    bool refused;         /* it was said why not to go on */
} finetune;

/* ---- setting up ------------------------------------------------------------------------------ */

static mc_model *open_model(finetune *f, int outputs)
{
    const finetune_options *o = f->o;
    const char *family = family_names()[o->model];
    mc_load_options load = {.dtype = train_dtypes[o->train.dtype],
                            .num_labels = outputs,
                            .revision = o->revision,
                            .recompute = train_recomputes[o->train.recompute]};
    if (o->pretrained) return mc_model_from_pretrained_of(f->ctx, family, o->pretrained, &load);
    return mc_model_new(f->ctx, family, o->config, NULL, &load);
}

static void open_data(finetune *f)
{
    const finetune_options *o = f->o;
    const char *task = task_names[o->task];
    int64_t positions = mc_model_get_shape(f->model).positions;
    mc_dataset_options options = classify_rows(f->model, o->max_length);
    if (positions && o->max_length > positions)
        run_log_line(&f->log, "the model has %lld positions: texts are cut there, not at %lld",
                     (long long)positions, (long long)o->max_length);
    f->train_rows = mc_dataset_open(f->ctx, task, o->data, "train", f->tokenizer, &options);
    f->val_rows = mc_dataset_open(f->ctx, task, o->data, "val", f->tokenizer, &options);
    int sizes = classify_sizes(o->train.device, f->model);
    f->train = mc_dataloader_new(
        f->train_rows, &(mc_dataloader_options){
                           .batch_size = o->batch_size, .shuffle = o->shuffle, .sizes = sizes});
    f->val =
        mc_dataloader_new(f->val_rows, &(mc_dataloader_options){.batch_size = o->batch_size,
                                                                .batching = MC_BATCHING_BY_LENGTH,
                                                                .sizes = sizes});
}

static void make_optimizer(finetune *f)
{
    const finetune_options *o = f->o;
    bool scaled = train_dtypes[o->train.dtype] == MC_F16;
    mc_adam_options adam_options = {.weight_decay = (float)o->train.weight_decay,
                                    .no_decay_bias_norm = o->no_decay_bias_norm};
    mc_optim_manager_options options = {.loss_scale = scaled ? o->train.loss_scale : 0,
                                        .max_grad_norm = o->train.clip};
    mc_optimizer *adam = train_adam_new(f->ctx, &o->train, &adam_options);
    mc_optimizer_add(adam, mc_model_module(f->model));
    f->optim = mc_optim_manager_new(f->ctx, &options);
    mc_optim_manager_add(f->optim, adam, train_schedule_new(f->ctx, &o->train, f->steps));
}

/* Label names go with the model, so that whoever loads it can name its answers. */
static void name_labels(finetune *f)
{
    const char *names[RUN_EVAL_CLASSES];
    bool one_each = mc_dataset_outputs(f->val_rows) == mc_dataset_labels(f->val_rows);
    for (int k = 0; k < mc_dataset_labels(f->val_rows); k++)
        names[k] = mc_dataset_label_name(f->val_rows, k);
    mc_model_set_task(f->model, mc_dataset_task(f->val_rows), one_each ? names : NULL);
}

static bool refuse(finetune *f, const char *message)
{
    fprintf(stderr, "error: %s\n", message);
    f->refused = true;
    ranks_refuse(f->ctx, message);
    return false;
}

static bool set_up(finetune *f)
{
    const finetune_options *o = f->o;
    const char *source = o->pretrained ? o->pretrained : o->config;
    if (o->tokenizer) source = o->tokenizer;
    char message[1024];
    if (!train_check_grad_dtype(&o->train, message, sizeof message)) return refuse(f, message);
    if (!mc_failed(f->ctx) && !train_can_save(o->output)) {
        snprintf(message, sizeof message, "--output %s: cannot write there: %s", o->output,
                 strerror(errno));
        return refuse(f, message);
    }
    mc_tokenizer_options options = {.revision = source == o->pretrained ? o->revision : NULL};
    f->tokenizer = mc_tokenizer_open(f->ctx, source, &options);
    f->model = open_model(f, mc_task_outputs(task_names[o->task]));
    if (mc_failed(f->ctx)) return false;
    if (o->dropout_given) mc_model_set_dropout(f->model, (float)o->dropout);
    open_data(f);
    if (mc_failed(f->ctx)) return false;
    int64_t batches = mc_dataloader_batches(f->train);
    f->steps = batches * o->epochs;
    if (o->max_steps && o->max_steps < f->steps) f->steps = o->max_steps;
    make_optimizer(f);
    name_labels(f);
    f->exam =
        (classify_exam){.model = f->model, .loader = f->val, .gpu = o->train.device != TRAIN_CPU};
    if (mc_failed(f->ctx)) return false;
    run_log_line(
        &f->log, "%s: %lld training rows, %lld validation rows, %.1f M parameters, %lld steps",
        task_names[o->task], (long long)mc_dataset_rows(f->train_rows),
        (long long)mc_dataset_rows(f->val_rows),
        1e-6 * (double)mc_module_parameter_count(mc_model_module(f->model)), (long long)f->steps);
    run_log_options log = {.steps = f->steps,
                           .steps_per_epoch = batches,
                           .jsonl = o->train.log_jsonl,
                           .tensorboard = o->train.tensorboard,
                           .silent = ranks_silent(f->ctx)};
    return run_log_init(&f->log, &log) == MC_OK || refuse(f, f->log.message);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Shows the step `late` before the newest, if it has not been shown. On a device that works on its
 * own this waits for that step, while the newer ones run; its time is that since the report
 * before. */
static void report(finetune *f, int late)
{
    mc_step_report r;
    if (!mc_optim_manager_report(f->optim, late, &r) || r.step <= f->shown) return;
    double now = classify_clock(), seconds = now - f->clock;
    f->clock = now;
    f->shown = r.step;
    f->train_seconds += seconds;
    run_log_step(&f->log, &(run_step){.step = r.step,
                                      .loss = r.loss,
                                      .grad_norm = r.grad_norm,
                                      .lr = r.lr,
                                      .loss_scale = r.loss_scale,
                                      .ms = 1e3 * seconds,
                                      .tokens = f->tokens[r.step % STEPS_KEPT],
                                      .skipped = r.skipped});
}

/* What a GPU records: mc_step_run. */
static void step(mc_context *ctx, void *user)
{
    finetune *f = user;
    mc_optim_manager_zero_grad(f->optim);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *logits = classify_logits(t, f->model, f->train_rows, f->batch);
    mc_tensor *loss = logits ? mc_cross_entropy(t, logits, f->batch->labels, NULL) : NULL;
    mc_optim_manager_backward(f->optim, t, loss);
    mc_optim_manager_step(f->optim);
    mc_tape_end(t);
}

static void train_step(finetune *f)
{
    if (mc_step_run(f->ctx, f->batch->key, step, f)) return;
    f->tokens[++f->step % STEPS_KEPT] = f->batch->all_tokens;
    report(f, f->o->train.device == TRAIN_CPU ? 0 : 1);
}

static bool going_on(const finetune *f)
{
    return !ranks_stop(f->ctx, f->step, f->o->train.device != TRAIN_CPU);
}

/* The tokenizer first: when the weights are there, the folder is whole. */
static void save(finetune *f)
{
    if (!f->o->output || mc_failed(f->ctx)) return;
    run_log_line(&f->log, "saving to %s", f->o->output);
    if (mc_rank(f->ctx) == 0) mc_tokenizer_save(f->tokenizer, f->o->output);
    mc_save_options options = {.max_shard_size = f->o->max_shard_size};
    mc_model_save_as(f->model, f->o->output, &options);
}

/* Evaluates the model; its score is the run's if it is the one to keep, and the best so far is
 * saved at once, so that it cannot be lost. */
static void evaluate(finetune *f, int64_t epoch)
{
    classify_score score;
    if (!going_on(f) || !classify_evaluate(f->ctx, &f->exam, &f->log, &score)) return;
    classify_report(&f->log, f->val_rows, "val", &score, f->step, epoch);
    bool best = f->score.accuracy.count == 0 || score.accuracy.correct > f->score.accuracy.correct;
    if (f->o->keep == KEEP_BEST && !best) return;
    f->score = score;
    if (f->o->keep == KEEP_BEST) save(f);
}

static void train(finetune *f)
{
    int64_t epoch = 0;
    while (epoch < f->o->epochs && f->step < f->steps && going_on(f)) {
        f->clock = classify_clock();
        while (f->step < f->steps && going_on(f) && (f->batch = mc_dataloader_next(f->train)))
            train_step(f);
        report(f, 0);
        evaluate(f, ++epoch);
    }
    if (epoch == 0) evaluate(f, 0);
    if (f->o->keep == KEEP_LAST) save(f);
}

static int finish(finetune *f)
{
    int code = EXIT_OK;
    bool interrupted = interrupt_requested();
    if (interrupted && !mc_failed(f->ctx))
        run_log_line(&f->log, "interrupted at step %lld%s", (long long)f->step,
                     f->o->output && f->o->keep == KEEP_LAST ? "; the model so far is saved" : "");
    else if (!mc_failed(f->ctx) &&
             classify_result(&f->log, f->val_rows, &f->score, f->train_seconds) != MC_OK)
        code = EXIT_RUN_FAILED;
    if (run_log_release(&f->log) != MC_OK) code = EXIT_RUN_FAILED;
    if (mc_print_error(f->ctx, stderr)) code = EXIT_RUN_FAILED;
    return code == EXIT_OK && interrupted ? EXIT_INTERRUPTED : code;
}

static int run(finetune_options *o)
{
    finetune f = {.o = o};
    f.ctx = train_start(&o->train, o->seed, &f.log);
    int code = EXIT_RUN_FAILED;
    interrupt_init();
    if (set_up(&f)) {
        train(&f);
        code = finish(&f);
    } else {
        ranks_print_error(f.ctx, f.refused);
    }
    interrupt_release();
    return ranks_leave(f.ctx, code);
}

/* ---- command line ---------------------------------------------------------------------------- */

static const char details[] =
    "The folder given with --data holds train.jsonl and val.jsonl, or a folder of the task's name "
    "that\n"
    "does. The last line on stdout is `result task=... accuracy=... f1=... n=... "
    "train_seconds=...`.\n\n"
    "  modelcenter finetune bert --task BoolQ --pretrained bert-base-uncased --data data/boolq \\\n"
    "      --output boolq-bert --epochs 3 --lr 2e-5 --warmup 100\n";

static void add_own_rows(args_table *table, finetune_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_CHOICE("model", &o->model, family_names(), "the model's family"),
             .offers = family_classifies, .required = true, .positional = true},
            {ARGS_CHOICE("task", &o->task, task_names, "the SuperGLUE task"), .required = true},
            {ARGS_PATH("pretrained", &o->pretrained,
                       "folder or identifier of the pretrained model")},
            DOWNLOAD_REVISION_ROW(&o->revision),
            {ARGS_PATH("config", &o->config,
                       "a shape's name, a config.json or its folder: train from random weights "
                       "instead")},
            {ARGS_PATH("tokenizer", &o->tokenizer,
                       "folder or identifier of the tokenizer, where the model has none"),
             .default_text = "the model's"},
            {ARGS_PATH("data", &o->data, "folder with the task's rows"), .required = true},
            {ARGS_PATH("output", &o->output,
                       "folder to save the model to; without it nothing is saved")},
            {ARGS_BYTES("max-shard-size", &o->max_shard_size,
                        "save the weights in several files of at most this size"),
             .default_text = "one file"},
            {ARGS_CHOICE("keep", &o->keep, keep_names,
                         "which epoch's model is saved: the last, or the one with the best "
                         "accuracy"),
             .known_as = "load-best-model-at-end"},
            {0},
        });
}

static void add_training_rows(args_table *table, finetune_options *o)
{
    args_table_add(
        table, (args_option[]){
                   {ARGS_HEADING("Training")},
                   {ARGS_INT("epochs", &o->epochs, 0, 1000000, "passes over the training rows")},
                   {ARGS_INT("max-steps", &o->max_steps, 0, INT64_MAX,
                             "stop after so many steps; 0: all epochs")},
                   {ARGS_INT("batch-size", &o->batch_size, 1, 1 << 20, "rows of a step, per rank"),
                    .known_as = "per-device-train-batch-size"},
                   {0},
               });
    train_add_course_rows(table, &o->train);
    args_table_add(
        table,
        (args_option[]){
            {ARGS_FLAG("no-decay-bias-norm", &o->no_decay_bias_norm,
                       "no weight decay on biases and norms")},
            {ARGS_INT("max-length", &o->max_length, 0, 1 << 20, "tokens at most of an input"),
             .default_text = "512, or the model's positions"},
            {ARGS_REAL("dropout", &o->dropout, 0, 1, "all dropout probabilities"),
             .below_high = true, .given = &o->dropout_given, .default_text = "the model's own"},
            {ARGS_INT("seed", &o->seed, 0, INT64_MAX, "of initialisation, dropout and shuffling")},
            {ARGS_FLAG_OFF("no-shuffle", &o->shuffle, "take the rows in the file's order")},
            {0},
        });
}

int cmd_finetune(int argc, char **argv)
{
    finetune_options o = defaults;
    args_table table = {.count = 0};
    add_own_rows(&table, &o);
    add_training_rows(&table, &o);
    train_add_machine_rows(&table, &o.train);
    train_add_rank_rows(&table, &o.train);
    train_add_log_rows(&table, &o.train);
    const args_spec spec = {.command = "finetune",
                            .summary = "Fine-tunes a model on a task.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    if (!family_can(&spec, o.model, FAMILY_CLASSIFIES)) return EXIT_USAGE;
    if (o.train.dtype == TRAIN_UNSET)
        o.train.dtype = o.train.device == TRAIN_CPU ? TRAIN_F32 : TRAIN_BF16;
    if (!o.pretrained == !o.config)
        return args_error(&spec, "expected one of --pretrained and --config");
    return run(&o);
}
