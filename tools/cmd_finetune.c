/* `modelcenter finetune`: trains a pretrained model (or one from random weights) on a task,
 * evaluates it after each epoch, and saves it as a folder that from_pretrained reads. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/family_tasks.h"
#include "tools/train/finetune.h"
#include "tools/train/interrupt.h"
#include "tools/options/run_file.h"
#include "tools/tasks/task_labels.h"

const char *const finetune_keep_names[] = {"last", "best", NULL};

enum { WAYS = MODEL_WAY_NEW | MODEL_WAY_OLD_FAMILY };

static const finetune_options defaults = {.data = DATA_DEFAULTS,
                                          .epochs = 1,
                                          .batch_size = 32,
                                          .save_total_limit = 2,
                                          .shuffle = true,
                                          .group_by_length = true,
                                          .lora = LORA_DEFAULTS,
                                          .train = {.lr = 5e-5,
                                                    .weight_decay = 0.01,
                                                    .clip = 1,
                                                    .gamma = 0.95,
                                                    .loss_scale = 1024,
                                                    .dtype = TRAIN_UNSET,
                                                    .ranks = RANKS_DEFAULTS}};

bool finetune_refuse(finetune *f, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fprintf(stderr, "error: %s\n", message);
    f->refused = true;
    ranks_refuse(f->ctx, message);
    return false;
}

/* ---- setting up ------------------------------------------------------------------------------ */

/* What the model is loaded from; NULL: it is a new one. */
static const char *source_of(const finetune *f)
{
    return f->checkpoints.resumed ? mc_checkpoint_folder(f->checkpoints.resumed) : f->o.from.model;
}

static mc_load_options load_options(const finetune *f)
{
    const finetune_options *o = &f->o;
    mc_load_options load = {.dtype = train_dtypes[o->train.dtype],
                            .revision = o->from.revision,
                            .recompute = train_recomputes[o->train.recompute]};
    lora_options_load(&o->lora, &load);
    if (f->checkpoints.resumed) {
        load.revision = NULL;
        load.lora = NULL; /* the folder has the adapter */
        load.soft_prompt = NULL;
        if (lora_options_given(&o->lora)) load.base = o->from.model; /* wherever it lies now */
    }
    return load;
}

/* A model with a head for the rows: the one that it `had`, or a new one. */
static mc_model *open_model(finetune *f, const mc_model_labels *had)
{
    const char *family = f->o.from.family, *weights = source_of(f);
    mc_load_options load = load_options(f);
    load.num_labels = mc_dataset_outputs(f->train_rows);
    load.new_head = task_head_for(had, f->train_rows) == TASK_HEAD_NEW;
    if (load.new_head) {
        char why[3 * LABELS_TEXT];
        task_head_describe(had, weights, f->train_rows, why, sizeof why);
        if (f->checkpoints.resumed) return finetune_refuse(f, "--resume: %s", why), NULL;
        run_log_line(&f->log, "%s", why);
    }
    if (!weights) return mc_model_new(f->ctx, family, f->o.from.config, NULL, &load);
    mc_model *model = mc_model_from_pretrained_of(f->ctx, family, weights, &load);
    if (had->count && !load.new_head) task_order_labels(f->ctx, model, weights, f->train_rows);
    return model;
}

/* The rows of a step are dealt out to the passes of all ranks, as if each pass had a rank of its
 * own: what a step trains on depends on --rows-per-step only. */
static void make_train_loaders(finetune *f, int sizes)
{
    const finetune_options *o = &f->o;
    int ranks = mc_data_size(f->ctx);
    f->train = calloc((size_t)o->accumulation, sizeof *f->train);
    f->batch = calloc((size_t)o->accumulation, sizeof *f->batch);
    if (!f->train || !f->batch)
        mc_set_error(f->ctx, MC_ERR_NOMEM, "out of memory for the batches of a step");
    for (int i = 0; !mc_failed(f->ctx) && i < o->accumulation; i++)
        f->train[i] = mc_dataloader_new(
            f->train_rows,
            &(mc_dataloader_options){.batch_size = (int)o->batch_size,
                                     .shuffle = o->shuffle,
                                     .batching = o->group_by_length ? MC_BATCHING_DEFAULT
                                                                    : MC_BATCHING_IN_ORDER,
                                     .sizes = sizes,
                                     .world = (int)o->accumulation * ranks,
                                     .rank = i * ranks + mc_data_rank(f->ctx)});
}

/* The rows, and a model with a head for them. */
static bool open_data(finetune *f)
{
    const finetune_options *o = &f->o;
    const char *family = o->from.family;
    mc_model_labels had = {0};
    mc_load_options load = load_options(f);
    bool head = data_kind(&o->data, family) != MC_TASK_GENERATE && mc_family_has_classifier(family);
    if (source_of(f) && head) mc_model_labels_read(f->ctx, source_of(f), &load, &had);
    if (data_open_training(f->ctx, &o->data, family, o->seed, f->tokenizer, &had, &f->train_rows,
                           &f->val_rows))
        f->model = open_model(f, &had);
    mc_model_labels_release(&had);
    if (!f->model) return false;
    if (!f->checkpoints.resumed) lora_begin_prompt(f->ctx, &o->lora, f->model, f->tokenizer);
    int64_t positions = mc_model_get_shape(f->model).positions;
    if (positions && o->data.max_length > positions)
        run_log_line(&f->log, "the model has %lld positions: texts are cut there, not at %lld",
                     (long long)positions, (long long)o->data.max_length);
    if (mc_failed(f->ctx) ||
        !data_fit(&o->data, f->model, f->tokenizer, f->train_rows, f->val_rows))
        return false;
    int sizes = task_sizes(o->train.device, f->model, f->train_rows);
    make_train_loaders(f, sizes);
    f->val =
        mc_dataloader_new(f->val_rows, &(mc_dataloader_options){.batch_size = (int)o->batch_size,
                                                                .batching = MC_BATCHING_BY_LENGTH,
                                                                .sizes = sizes});
    f->ratio = task_ratio_new(f->ctx, f->train_rows);
    data_name(f->model, f->train_rows);
    return !mc_failed(f->ctx);
}

static void make_optimizer(finetune *f)
{
    const finetune_options *o = &f->o;
    bool scaled = train_dtypes[o->train.dtype] == MC_F16;
    mc_adam_options adam_options = {.weight_decay = (float)o->train.weight_decay,
                                    .no_decay_bias_norm = o->no_decay_bias_norm};
    mc_optim_manager_options options = {.loss_scale = scaled ? o->train.loss_scale : 0,
                                        .micro_steps = (int)o->accumulation,
                                        .max_grad_norm = o->train.clip};
    mc_optimizer *adam = train_adam_new(f->ctx, &o->train, &adam_options);
    mc_optimizer_add(adam, mc_model_module(f->model));
    f->optim = mc_optim_manager_new(f->ctx, &options);
    mc_optim_manager_add(f->optim, adam, train_schedule_new(f->ctx, &o->train, f->steps));
}

/* The tokenizer that the model was trained with, or that of the run that is resumed. */
static void open_tokenizer(finetune *f)
{
    const finetune_options *o = &f->o;
    mc_tokenizer_options options = {.revision = NULL};
    char folder[MODEL_FOLDER];
    const char *beside = model_config_folder(&o->from, folder);
    const char *source = o->from.model ? o->from.model : beside ? beside : o->from.config;
    if (o->tokenizer) source = o->tokenizer;
    if (source == o->from.model) options.revision = o->from.revision;
    if (f->checkpoints.resumed) source = mc_checkpoint_folder(f->checkpoints.resumed);
    if (f->checkpoints.resumed) options.revision = NULL;
    if (f->checkpoints.resumed && lora_options_given(&o->lora)) options.base = o->from.model;
    f->tokenizer = mc_tokenizer_open(f->ctx, source, &options);
}

static bool check_rows_per_step(finetune *f)
{
    const finetune_options *o = &f->o;
    int ranks = mc_data_size(f->ctx);
    int64_t unit = o->batch_size * ranks;
    if (o->rows_per_step != o->accumulation * unit)
        return finetune_refuse(f,
                               "--rows-per-step is %lld, expected --batch-size times "
                               "--gradient-accumulation-steps%s, a multiple of %lld x %d",
                               (long long)o->rows_per_step, ranks > 1 ? " times the ranks" : "",
                               (long long)o->batch_size, ranks);
    return true;
}

static bool check_options(finetune *f)
{
    const finetune_options *o = &f->o;
    char message[256];
    if (!train_check_grad_dtype(&o->train, message, sizeof message))
        return finetune_refuse(f, "%s", message);
    if (!f->checkpoints.resumed && !o->from.model == !o->from.config)
        return finetune_refuse(f, "expected one of --model and --config");
    return check_rows_per_step(f);
}

/* Whether --metric is one that evaluations find. */
static bool check_metric(finetune *f)
{
    const char *known = task_metrics(&f->exam), *metric = f->o.metric;
    for (const char *name = known; metric && name; name = strchr(name, ',')) {
        name += strspn(name, ", ");
        size_t length = strcspn(name, ",");
        if (strlen(metric) == length && strncmp(metric, name, length) == 0) return true;
    }
    return !metric || finetune_refuse(f, "--metric \"%s\": expected one of %s", metric, known);
}

static void count_steps(finetune *f)
{
    const finetune_options *o = &f->o;
    f->steps_per_epoch = mc_dataloader_batches(f->train[0]);
    f->steps = f->steps_per_epoch * o->epochs;
    if (o->max_steps && o->max_steps < f->steps) f->steps = o->max_steps;
}

static bool open_log(finetune *f)
{
    run_log_options log = {.steps = f->steps,
                           .steps_per_epoch = f->steps_per_epoch,
                           .resume_step = f->step,
                           .jsonl = f->o.train.log_jsonl,
                           .csv = f->o.train.log_csv,
                           .log_every = f->o.train.log_every,
                           .tensorboard = f->o.train.tensorboard,
                           .silent = ranks_silent(f->ctx)};
    return run_log_init(&f->log, &log) == MC_OK || finetune_refuse(f, "%s", f->log.message);
}

/* Of a look, whose output has been checked. */
static void write_nothing(finetune_options *o)
{
    o->output = o->train.log_jsonl = o->train.log_csv = o->train.tensorboard = NULL;
    o->train.no_save = true;
}

/* Finds where the model goes, and that nothing is lost by it. */
static bool open_output(finetune *f)
{
    finetune_options *o = &f->o;
    inputs *in = &f->target.out.inputs;
    output_init(&f->target.out, f->ctx, o->train.overwrite);
    inputs_add_model_options(in, f->ctx, &o->from);
    inputs_add_model(in, f->ctx, "--tokenizer", o->tokenizer, NULL);
    inputs_add_list(in, "--data", &o->data.files);
    inputs_add_list(in, "--val", &o->data.val_files);
    const char *name = o->from.model ? o->from.model : o->from.config;
    if (!train_output_open(&f->target, &f->log, &o->train, o->output, name ? name : o->from.family,
                           o->resume))
        return false;
    o->output = *f->target.folder ? f->target.folder : NULL;
    if (o->train.dry_run) write_nothing(o);
    return true;
}

/* Each part needs those before it; whichever fails has said why, or the context has the error. */
static bool set_up(finetune *f)
{
    const finetune_options *o = &f->o;
    if (mc_failed(f->ctx)) return false;
    if (!open_output(f)) return false;
    if (!finetune_find(f) || f->ended) return f->ended;
    finetune_take_defaults(f);
    if (!check_options(f) || !data_fits_family(f->ctx, &o->data, o->from.family, true))
        return false;
    open_tokenizer(f);
    if (mc_failed(f->ctx) || !open_data(f)) return false;
    if (o->dropout_given) mc_model_set_dropout(f->model, (float)o->dropout);
    count_steps(f);
    make_optimizer(f);
    f->exam = (task_exam){.model = f->model,
                          .loader = f->val,
                          .gpu = o->train.device != TRAIN_CPU,
                          .tokenizer = data_generates(&o->data, f->val_rows, f->tokenizer)};
    if (!mc_failed(f->ctx) && !check_metric(f)) return false;
    if (mc_failed(f->ctx) || !finetune_check_options(f) || !finetune_restore(f)) return false;
    run_log_line(
        &f->log, "%s: %lld training rows, %lld validation rows, %.1f M parameters, %lld steps",
        data_title(&o->data), (long long)mc_dataset_rows(f->train_rows),
        (long long)mc_dataset_rows(f->val_rows),
        1e-6 * (double)mc_module_parameter_count(mc_model_module(f->model)), (long long)f->steps);
    lora_tell(&f->log, f->model);
    finetune_look(f);
    if (mc_failed(f->ctx) || !finetune_check_room(f)) return false;
    return o->train.dry_run || (open_log(f) && finetune_begin(f));
}

/* ---- running --------------------------------------------------------------------------------- */

static int finish(finetune *f)
{
    int code = EXIT_OK;
    bool ended = finetune_has_ended(f), interrupted = !ended && interrupt_requested();
    bool saved = f->o.output && f->checkpoints.saved == f->step;
    const char *folder = saved && f->target.own ? f->o.output : NULL;
    if (!mc_failed(f->ctx) && !ended)
        run_log_line(&f->log, "%s at step %lld%s%s%s%s", interrupted ? "interrupted" : "stopped",
                     (long long)f->step, saved ? "; go on with" : "", folder ? " --output " : "",
                     folder ? folder : "", saved ? " --resume" : "");
    else if (!mc_failed(f->ctx) && finetune_result(f) != MC_OK)
        code = EXIT_RUN_FAILED;
    if (run_log_release(&f->log) != MC_OK) code = EXIT_RUN_FAILED;
    if (mc_print_error(f->ctx, stderr)) code = EXIT_RUN_FAILED;
    checkpoints_report_newest(&f->checkpoints);
    return code == EXIT_OK && interrupted ? EXIT_INTERRUPTED : code;
}

static int run(const finetune_options *o)
{
    finetune f = {.o = *o};
    f.ctx = train_start(&f.o.train, o->seed, &f.log);
    int code = EXIT_RUN_FAILED;
    interrupt_init();
    if (set_up(&f)) {
        if (!f.ended && !o->train.dry_run) finetune_train(&f);
        code = o->train.dry_run ? EXIT_OK : finish(&f);
    } else {
        ranks_print_error(f.ctx, f.refused);
    }
    interrupt_release();
    code = output_leave(&f.target.out, f.ctx, code);
    free(f.train);
    free(f.batch);
    return code;
}

/* ---- command line ---------------------------------------------------------------------------- */

static const char details[] =
    "With --task the folder given with --data holds train.jsonl and val.jsonl, or a folder of the "
    "task's\n"
    "name that does. Without it --data is a file of one's own, and --text, --label, --target name "
    "its\n"
    "columns; names of columns and labels are saved with the model. The last line on stdout is\n"
    "`result task=... accuracy=... f1=... val_loss=... n=... train_seconds=...`.\n\n"
    "  modelcenter finetune --model bert-base-uncased --task BoolQ --data data/boolq \\\n"
    "      --output boolq-bert --epochs 3 --lr 2e-5 --warmup 100\n"
    "  modelcenter finetune --model bert-base-uncased --data reviews.csv --text review "
    "\\\n"
    "      --label stars --output stars-bert --epochs 3 --lr 2e-5\n"
    "  modelcenter finetune --model gpt2 --data chat.jsonl --prompt question \\\n"
    "      --response answer --output chat-gpt2\n";

static void add_own_rows(args_table *table, finetune_options *o)
{
    model_add_rows(table, &o->from, WAYS, "folder or identifier of the pretrained model");
    args_table_add(
        table,
        (args_option[]){
            {ARGS_PATH("tokenizer", &o->tokenizer,
                       "folder or identifier of the tokenizer, where the model has none"),
             .default_text = "the model's"},
            {ARGS_PATH("output", &o->output, "folder to save the model to"),
             .default_text = "runs/NAME-DATE-TIME"},
            {ARGS_BYTES("max-shard-size", &o->max_shard_size,
                        "save the weights in several files of at most this size"),
             .default_text = "one file"},
            {ARGS_CHOICE("keep", &o->keep, finetune_keep_names,
                         "which model is saved: the last, or the one with the best evaluation"),
             .known_as = "load-best-model-at-end"},
            {ARGS_FLAG("resume", &o->resume,
                       "go on with the run in --output, or begin it if it has not saved yet"),
             .once = true, .known_as = "resume-from-checkpoint"},
            {ARGS_FLAG("dry-run", &o->train.dry_run,
                       "show labels, lengths, memory and time, and train and write nothing"),
             .once = true, .known_as = "dryrun,check"},
            {ARGS_INT("save-every", &o->save_every, 0, INT64_MAX,
                      "steps from checkpoint to checkpoint; 0: only at the end, with --resume"),
             .known_as = "save-steps,save-interval"},
            {ARGS_INT("save-total-limit", &o->save_total_limit, 1, 1000000,
                      "checkpoints that stay, the newest included; the best stays besides")},
            {0},
        });
}

static void add_training_rows(args_table *table, finetune_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_HEADING("Training")},
            {ARGS_INT("epochs", &o->epochs, 0, 1000000, "passes over the training rows")},
            {ARGS_INT("max-steps", &o->max_steps, 0, INT64_MAX,
                      "stop after so many steps; 0: all epochs")},
            {ARGS_INT("stop-after", &o->stop_after, 0, INT64_MAX,
                      "save and stop after this step of them; 0: at the end")},
            {ARGS_INT("batch-size", &o->batch_size, 1, 1 << 20, "rows computed at once, per rank"),
             .known_as = "per-device-train-batch-size,micro-batch-size"},
            {ARGS_INT("gradient-accumulation-steps", &o->accumulation, 0, 4096,
                      "passes of such batches that make a step"),
             .default_text = "1, or as --rows-per-step says",
             .known_as = "accumulation-steps,gradient-accumulation"},
            {ARGS_INT("rows-per-step", &o->rows_per_step, 0, (int64_t)1 << 32,
                      "rows of a step on all ranks, over several passes if need be"),
             .default_text = "those of the passes of all ranks",
             .known_as = "train-batch-size,global-batch-size,total-batch-size"},
            {0},
        });
    train_add_course_rows(table, &o->train);
    args_table_add(
        table,
        (args_option[]){
            {ARGS_FLAG("no-decay-bias-norm", &o->no_decay_bias_norm,
                       "no weight decay on biases and norms")},
            {ARGS_REAL("dropout", &o->dropout, 0, 1, "all dropout probabilities"),
             .below_high = true, .given = &o->dropout_given, .default_text = "the model's own"},
            {ARGS_INT("seed", &o->seed, 0, INT64_MAX, "of initialisation, dropout and shuffling")},
            {ARGS_FLAG_OFF("no-shuffle", &o->shuffle, "take the rows in the file's order")},
            {ARGS_FLAG_OFF(
                "no-group-by-length", &o->group_by_length,
                "shuffled rows share a batch as they come, not those of similar length")},
            {0},
        });
}

static void add_evaluation_rows(args_table *table, finetune_options *o)
{
    args_table_add(table,
                   (args_option[]){
                       {ARGS_HEADING("Evaluation")},
                       {ARGS_INT("eval-every", &o->eval_every, 0, INT64_MAX,
                                 "steps from evaluation to evaluation; 0: an epoch"),
                        .known_as = "eval-steps,eval-interval,val-every"},
                       {ARGS_TEXT("metric", &o->metric,
                                  "what makes an evaluation the best, as the result line names it"),
                        .default_text = "the task's first, but mse of a number",
                        .known_as = "metric-for-best-model"},
                       {ARGS_INT("early-stopping-patience", &o->patience, 0, INT64_MAX,
                                 "stop after so many evaluations without improvement; 0: never"),
                        .known_as = "patience"},
                       {ARGS_REAL("early-stopping-threshold", &o->threshold, 0, 1e9,
                                  "what is more than this better than the best is an improvement")},
                       {0},
                   });
}

/* Says what is wrong on the command line; EXIT_OK if nothing is. */
static int check(const args_spec *spec, finetune_options *o)
{
    const char *wrong = lora_options_check(&o->lora);
    if (wrong) return args_error(spec, "%s", wrong);
    int code = model_check(spec, &o->from, WAYS, o->resume);
    if (code != EXIT_OK) return code;
    if (lora_options_given(&o->lora) && o->from.config)
        return args_error(spec, "%s: expected --model, which gives the base",
                          o->lora.rank ? "--lora-rank" : "--virtual-tokens");
    if (!data_check(spec, &o->data, o->from.family, true)) return EXIT_USAGE;
    if (o->train.dry_run && o->resume)
        return args_error(spec, "expected --dry-run or --resume, not both");
    wrong = train_output_check(&o->train, o->output, o->resume, o->save_every);
    return wrong ? args_error(spec, "%s", wrong) : EXIT_OK;
}

int cmd_finetune(int argc, char **argv)
{
    finetune_options o = defaults;
    bool seen[ARGS_MOST_ROWS] = {false};
    args_table table = {.count = 0};
    data_options_init(&o.data, argc);
    add_own_rows(&table, &o);
    train_output_add_rows(&table, &o.train);
    data_add_rows(&table, &o.data);
    data_add_training_rows(&table, &o.data);
    add_training_rows(&table, &o);
    add_evaluation_rows(&table, &o);
    lora_add_rows(&table, &o.lora);
    train_add_machine_rows(&table, &o.train);
    train_add_rank_rows(&table, &o.train);
    train_add_log_rows(&table, &o.train);
    const args_spec spec = {.command = "finetune",
                            .summary = "Fine-tunes a model on a task.",
                            .details = family_tasks_after(details),
                            .options = table.rows,
                            .seen = seen};
    int code;
    if (args_parse(&spec, argc, argv, &code)) {
        code = check(&spec, &o);
        o.train.run_file = run_file_text(&spec, seen);
        if (code == EXIT_OK) code = run(&o);
        run_file_free(o.train.run_file);
    }
    data_options_release(&o.data);
    return code;
}
