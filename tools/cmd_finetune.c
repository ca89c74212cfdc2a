/* `modelcenter finetune`: trains a pretrained model (or one from random weights) on a task,
 * evaluates it after each epoch, and saves it as a folder that from_pretrained reads. */
#include <stdlib.h>
#include <string.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/family_tasks.h"
#include "tools/train/finetune.h"
#include "tools/tasks/task_labels.h"

const char *const finetune_keep_names[] = {"last", "best", NULL};

/* ---- setting up ------------------------------------------------------------------------------ */

/* A model with a head for the rows: the one that it `had`, or a new one. */
static mc_model *open_model(finetune *f, const mc_model_labels *had)
{
    train_run *run = &f->run;
    const char *family = run->o.from.family, *weights = train_run_source(run);
    mc_load_options load = train_run_load_options(run);
    load.num_labels = mc_dataset_outputs(f->train_rows);
    load.new_head = task_head_for(had, f->train_rows) == TASK_HEAD_NEW;
    if (load.new_head) {
        char why[3 * LABELS_TEXT];
        task_head_describe(had, weights, f->train_rows, why, sizeof why);
        if (run->resumed) return train_run_refuse(run, "--resume: %s", why), NULL;
        run_log_line(&run->log, "%s", why);
    }
    if (!weights) return mc_model_new(run->ctx, family, run->o.from.config, NULL, &load);
    mc_model *model = mc_model_from_pretrained_of(run->ctx, family, weights, &load);
    if (!had->count || load.new_head) return model;
    if (mc_model_get_heads(model).labels == had->count) mc_model_set_task(model, NULL, had->name);
    task_order_labels(run->ctx, model, weights, f->train_rows);
    return model;
}

/* The labels of the model's classifier, with the names that eval gives them. */
static void find_labels(train_run *run, mc_model_labels *had, task_file *saved)
{
    char folder[MODEL_FOLDER];
    mc_load_options load = train_run_load_options(run);
    if (mc_model_labels_read(run->ctx, train_run_source(run), &load, had) == MC_OK &&
        !run->resumed && /* whose checkpoint has its own names */
        model_find_folder(run->ctx, &run->o.from, folder, sizeof folder) &&
        task_file_read(run->ctx, folder, saved) == MC_OK)
        task_settle_labels(had, folder, saved, &run->log);
}

/* The rows of a step are dealt out to the passes of all ranks, as if each pass had a rank of its
 * own: what a step trains on depends on --rows-per-step only. */
static void make_train_loaders(finetune *f, int sizes)
{
    const finetune_options *o = &f->o;
    mc_context *ctx = f->run.ctx;
    int ranks = mc_data_size(ctx);
    f->train = calloc((size_t)o->accumulation, sizeof *f->train);
    f->batch = calloc((size_t)o->accumulation, sizeof *f->batch);
    if (!f->train || !f->batch)
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for the batches of a step");
    for (int i = 0; !mc_failed(ctx) && i < o->accumulation; i++)
        f->train[i] = mc_dataloader_new(
            f->train_rows,
            &(mc_dataloader_options){.batch_size = (int)f->run.o.batch_size,
                                     .shuffle = o->shuffle,
                                     .batching = o->group_by_length ? MC_BATCHING_DEFAULT
                                                                    : MC_BATCHING_IN_ORDER,
                                     .sizes = sizes,
                                     .world = (int)o->accumulation * ranks,
                                     .rank = i * ranks + mc_data_rank(ctx)});
}

static void make_loaders(finetune *f)
{
    train_run *run = &f->run;
    int sizes = task_sizes(run->o.train.device, run->work.model, f->train_rows);
    make_train_loaders(f, sizes);
    f->val = mc_dataloader_new(f->val_rows,
                               &(mc_dataloader_options){.batch_size = (int)run->o.batch_size,
                                                        .batching = MC_BATCHING_BY_LENGTH,
                                                        .sizes = sizes});
    f->ratio = task_ratio_new(run->ctx, f->train_rows);
}

/* The rows, and a model with a head for them. */
static bool open_data(finetune *f)
{
    train_run *run = &f->run;
    const data_options *data = &f->o.data;
    const char *family = run->o.from.family;
    mc_model_labels had = {0};
    task_file saved = {.kind = 0};
    bool head = data_kind(data, family) != MC_TASK_GENERATE && mc_family_has_classifier(family);
    if (train_run_source(run) && head) find_labels(run, &had, &saved);
    if (data_open_training(run->ctx, data, family, run->o.seed, run->tokenizer, &had,
                           &f->train_rows, &f->val_rows))
        run->work.model = open_model(f, &had);
    mc_model_labels_release(&had);
    task_file_release(&saved);
    mc_model *model = run->work.model;
    if (!model) return false;
    if (!run->resumed) lora_begin_prompt(run->ctx, &run->o.lora, model, run->tokenizer);
    lora_quantize(run->ctx, &run->o.lora, model);
    int64_t positions = mc_model_get_shape(model).positions;
    if (positions && data->max_length > positions)
        run_log_line(&run->log, "the model has %lld positions: texts are cut there, not at %lld",
                     (long long)positions, (long long)data->max_length);
    if (mc_failed(run->ctx) || !data_fit(data, model, run->tokenizer, f->train_rows, f->val_rows))
        return false;
    make_loaders(f);
    data_name(model, f->train_rows);
    int64_t length = positions && data->max_length > positions ? positions : data->max_length;
    return train_run_choose_fp8(run, run->o.batch_size * (length > 0 ? length : 1));
}

/* The tokenizer that the model was trained with, or that of the run that is resumed. */
static void open_tokenizer(train_run *run)
{
    const train_run_options *o = &run->o;
    mc_tokenizer_options options = {.revision = NULL};
    char folder[MODEL_FOLDER];
    const char *beside = model_config_folder(&o->from, folder);
    const char *source = o->from.model ? o->from.model : beside ? beside : o->from.config;
    if (mc_family_reads_images(o->from.family)) return;
    if (o->tokenizer) source = o->tokenizer;
    if (source == o->from.model) options.revision = o->from.revision;
    if (run->resumed) source = mc_checkpoint_folder(run->resumed);
    if (run->resumed) options.revision = NULL;
    if (source == o->from.model || run->resumed) options.base = train_run_base(run);
    run->tokenizer = mc_tokenizer_open(run->ctx, source, &options);
}

static bool take_rows(train_run *run)
{
    finetune_options *o = &((finetune *)run->user)->o;
    int64_t batch = run->o.batch_size * mc_data_size(run->ctx);
    if (!o->rows_per_step) o->rows_per_step = batch * (o->accumulation ? o->accumulation : 1);
    if (!o->accumulation) o->accumulation = o->rows_per_step / batch;
    run->work.passes = (int)o->accumulation;
    return true;
}

static bool check_rows_per_step(finetune *f)
{
    const finetune_options *o = &f->o;
    int ranks = mc_data_size(f->run.ctx);
    int64_t batch = f->run.o.batch_size, pass = batch * ranks;
    const char *times = ranks > 1 ? " times the ranks" : "";
    if (o->rows_per_step == o->accumulation * pass) return true;
    if (o->accumulation != o->rows_per_step / pass) /* it was given */
        return train_run_refuse(&f->run,
                                "--rows-per-step is %lld, expected --batch-size times "
                                "--gradient-accumulation-steps%s, %lld x %lld x %d = %lld",
                                (long long)o->rows_per_step, times, (long long)batch,
                                (long long)o->accumulation, ranks,
                                (long long)(o->accumulation * pass));
    return train_run_refuse(&f->run,
                            "--rows-per-step is %lld, expected --batch-size times "
                            "--gradient-accumulation-steps%s, a multiple of %lld x %d",
                            (long long)o->rows_per_step, times, (long long)batch, ranks);
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
    return !metric ||
           train_run_refuse(&f->run, "--metric \"%s\": expected one of %s", metric, known);
}

static void count_steps(finetune *f)
{
    train_run *run = &f->run;
    run->steps_per_epoch = mc_dataloader_batches(f->train[0]);
    run->steps = run->steps_per_epoch * f->o.epochs;
    if (f->o.max_steps && f->o.max_steps < run->steps) run->steps = f->o.max_steps;
    run->evaluates = true;
    run->eval_every = f->o.eval_every ? f->o.eval_every : run->steps_per_epoch;
    run->eval_due = !run->steps; /* the model as it is */
}

static bool prepare(train_run *run)
{
    finetune *f = run->user;
    const data_options *data = &f->o.data;
    if (!check_rows_per_step(f) || !data_fits_family(run->ctx, data, run->o.from.family, true))
        return false;
    open_tokenizer(run);
    if (mc_failed(run->ctx) || !open_data(f)) return false;
    run->work.loss = finetune_loss;
    run->work.user = f;
    run->only_model = !finetune_is_resumable(run);
    run->keeps_best = f->o.keep == FINETUNE_KEEP_BEST;
    if (f->o.dropout_given) mc_model_set_dropout(run->work.model, (float)run->o.dropout);
    count_steps(f);
    f->exam = (task_exam){.model = run->work.model,
                          .loader = f->val,
                          .gpu = run->o.train.device != TRAIN_CPU,
                          .during = f->during,
                          .tokenizer = data_generates(data, f->val_rows, run->tokenizer)};
    finetune_identify(f);
    return !mc_failed(run->ctx) && check_metric(f);
}

static void look(train_run *run)
{
    finetune *f = run->user;
    double parameters = (double)mc_module_parameter_count(mc_model_module(run->work.model));
    run_log_line(&run->log,
                 "%s: %lld training rows, %lld validation rows, %.1f M parameters, %lld steps",
                 data_title(&f->o.data), (long long)mc_dataset_rows(f->train_rows),
                 (long long)mc_dataset_rows(f->val_rows), 1e-6 * parameters, (long long)run->steps);
    lora_tell(&run->log, run->work.model);
    finetune_look(f);
}

static void release(train_run *run)
{
    finetune *f = run->user;
    free(f->train);
    free(f->batch);
}

static const train_kind kind = {.take_defaults = take_rows,
                                .find_ended = finetune_find_ended,
                                .prepare = prepare,
                                .add_options = finetune_add_options,
                                .same_data = finetune_same_data,
                                .state = finetune_state,
                                .place_state = finetune_place_state,
                                .look = look,
                                .fill = finetune_fill,
                                .evaluate = finetune_evaluate,
                                .save_beside = finetune_save_task,
                                .mark_ended = finetune_mark_ended,
                                .result = finetune_result,
                                .release = release};

/* ---- command line ---------------------------------------------------------------------------- */

static const char details[] =
    "With --task the folder given with --data holds train.jsonl and val.jsonl, or a folder of\n"
    "the task's name that does. Without it --data is your own file, and --text, --label,\n"
    "--target name its columns; names of columns and labels are saved with the model. The last\n"
    "line on stdout is\n"
    "`result task=... accuracy=... f1=... val_loss=... n=... train_seconds=...`.\n\n"
    "  modelcenter finetune --model bert-base-uncased --task BoolQ --data data/boolq \\\n"
    "      --output boolq-bert --epochs 3 --lr 2e-5 --warmup 100\n"
    "  modelcenter finetune --model bert-base-uncased --data reviews.csv --text review \\\n"
    "      --label stars --output stars-bert --epochs 3 --lr 2e-5\n"
    "  modelcenter finetune --model google/vit-base-patch16-224 --data images.csv \\\n"
    "      --image path --label name --output names-vit\n"
    "  modelcenter finetune --model gpt2 --data chat.jsonl --prompt question \\\n"
    "      --response answer --output chat-gpt2\n";

static void add_own_rows(args_table *table, finetune *f)
{
    finetune_options *o = &f->o;
    train_run_options *r = &f->run.o;
    model_add_rows(table, &r->from, TRAIN_RUN_WAYS, "folder or identifier of the pretrained model");
    ARGS_ADD(table,
             {ARGS_PATH("tokenizer", &r->tokenizer,
                        "folder or identifier of the tokenizer, if the model has none"),
              .default_text = "the model's"},
             {ARGS_CHOICE("keep", &o->keep, finetune_keep_names,
                          "save the last model, or the one with the best evaluation"),
              .known_as = "load-best-model-at-end"},
             {ARGS_FLAG("dry-run", &r->train.dry_run,
                        "show labels, lengths, memory and time; train and write nothing"),
              .once = true, .known_as = "dryrun,check"});
}

static void add_training_rows(args_table *table, finetune *f)
{
    finetune_options *o = &f->o;
    train_run_options *r = &f->run.o;
    ARGS_ADD(
        table, {ARGS_HEADING("Training")},
        {ARGS_INT("epochs", &o->epochs, 0, 1000000, "passes over the training rows")},
        {ARGS_INT("max-steps", &o->max_steps, 0, INT64_MAX,
                  "stop after this many steps; 0: all epochs")},
        {ARGS_INT("stop-after", &r->stop_after, 0, INT64_MAX,
                  "save and stop after this step; 0: at the end")},
        {ARGS_INT("batch-size", &r->batch_size, 1, 1 << 20, "rows of a batch, per rank"),
         .known_as = "per-device-train-batch-size,micro-batch-size"},
        {ARGS_INT("gradient-accumulation-steps", &o->accumulation, 0, 4096, "batches of a step"),
         .default_text = "1, or as --rows-per-step says",
         .known_as = "accumulation-steps,gradient-accumulation"},
        {ARGS_INT("rows-per-step", &o->rows_per_step, 0, (int64_t)1 << 32,
                  "rows of a step on all ranks together"),
         .default_text = "those of the passes of all ranks",
         .known_as = "train-batch-size,global-batch-size,total-batch-size"});
    train_add_optimizer_rows(table, &r->train);
    train_add_course_rows(table, &r->train);
    ARGS_ADD(
        table,
        {ARGS_FLAG("no-decay-bias-norm", &f->run.adam.no_decay_bias_norm,
                   "no weight decay on biases and norms")},
        {ARGS_REAL("dropout", &r->dropout, 0, 1, "all dropout probabilities"), .below_high = true,
         .given = &o->dropout_given, .default_text = "the model's own"},
        {ARGS_INT("seed", &r->seed, 0, INT64_MAX, "seed of initialisation, dropout and shuffling")},
        {ARGS_FLAG_OFF("no-shuffle", &o->shuffle, "take the rows in the file's order")},
        {ARGS_FLAG_OFF("no-group-by-length", &o->group_by_length,
                       "do not put shuffled rows of similar length into one batch")},
        {ARGS_HEADING("Evaluation")},
        {ARGS_INT("eval-every", &o->eval_every, 0, INT64_MAX,
                  "evaluate every N steps; 0: after each epoch"),
         .known_as = "eval-steps,eval-interval,val-every"},
        {ARGS_TEXT("metric", &o->metric,
                   "metric that decides which evaluation is the best, by its name in the "
                   "result line"),
         .default_text = "the task's first; for numbers mse", .known_as = "metric-for-best-model"},
        {ARGS_INT("early-stopping-patience", &o->patience, 0, INT64_MAX,
                  "stop after this many evaluations without improvement; 0: never"),
         .known_as = "patience"},
        {ARGS_REAL("early-stopping-threshold", &o->threshold, 0, 1e9,
                   "smallest gain that counts as an improvement")});
}

/* Says what is wrong on the command line; EXIT_OK if nothing is. */
static int check(const args_spec *spec, finetune *f)
{
    train_run_options *o = &f->run.o;
    int code = model_check(spec, &o->from, TRAIN_RUN_WAYS, o->resume);
    if (code != EXIT_OK) return code;
    const char *wrong = train_run_check(o);
    if (wrong) return args_error(spec, "%s", wrong);
    if (!data_check(spec, &f->o.data, o->from.family, true)) return EXIT_USAGE;
    if (o->train.dry_run && o->resume)
        return args_error(spec, "expected --dry-run or --resume, not both");
    return EXIT_OK;
}

static const finetune defaults = {
    .o = {.data = DATA_DEFAULTS, .epochs = 1, .shuffle = true, .group_by_length = true},
    .run = {.kind = &kind,
            .o = {.batch_size = 32,
                  .save_total_limit = 2,
                  .lora = LORA_DEFAULTS,
                  .train = {.lr = 5e-5,
                            .weight_decay = 0.01,
                            .clip = 1,
                            .gamma = 0.95,
                            .loss_scale = 1024,
                            .dtype = TRAIN_UNSET,
                            .ranks = RANKS_DEFAULTS}}}};

static void add_rows(args_table *table, finetune *f)
{
    train_options *train = &f->run.o.train;
    add_own_rows(table, f);
    train_run_add_saving_rows(table, &f->run.o);
    data_add_rows(table, &f->o.data);
    data_add_training_rows(table, &f->o.data);
    add_training_rows(table, f);
    lora_add_rows(table, &f->run.o.lora);
    train_add_machine_rows(table, train);
    train_add_rank_rows(table, train);
    train_add_log_rows(table, train);
}

int cmd_finetune(int argc, char **argv)
{
    finetune f = defaults;
    bool seen[ARGS_MOST_ROWS] = {false};
    args_table table = {.count = 0};
    f.run.user = &f;
    f.run.data = &f.o.data.files;
    f.run.val = &f.o.data.val_files;
    data_options_init(&f.o.data, argc);
    add_rows(&table, &f);
    const args_spec spec = {.command = "finetune",
                            .summary = "Fine-tunes a model on a task.",
                            .details = family_tasks_after(details),
                            .options = table.rows,
                            .seen = seen};
    int code;
    if (args_parse(&spec, argc, argv, &code)) {
        code = check(&spec, &f);
        if (code == EXIT_OK) code = train_run_command(&f.run, &spec);
    }
    data_options_release(&f.o.data);
    return code;
}
