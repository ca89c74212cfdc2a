/* `modelcenter pretrain`: trains a language model on token files, from random or given weights. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/train/interrupt.h"
#include "tools/train/pretrain.h"
#include "tools/options/run_file.h"
#include "tools/files/text.h"

enum { WAYS = MODEL_WAY_NEW | MODEL_WAY_OLD_FAMILY };

static const pretrain_options defaults = {.batch_size = 4,
                                          .val_every = 250,
                                          .val_batches = 20,
                                          .sample_length = 64,
                                          .keep = 1,
                                          .document_token = -1,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .lora = LORA_DEFAULTS,
                                          .train = {.scheduler = TRAIN_COSINE,
                                                    .dtype = TRAIN_UNSET,
                                                    .warmup = TRAIN_UNSET,
                                                    .lr = 6e-4,
                                                    .gamma = 0.95,
                                                    .weight_decay = 0.1,
                                                    .clip = 1,
                                                    .loss_scale = 65536,
                                                    .ranks = RANKS_DEFAULTS}};

bool pretrain_refuse(pretrain *p, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    p->log.silent = false; /* the trouble may be this rank's alone */
    run_log_line(&p->log, "error: %s", message);
    p->refused = true;
    ranks_refuse(p->ctx, message);
    return false;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static bool open_data(pretrain *p)
{
    const pretrain_options *o = &p->o;
    if (!token_data_open(p->ctx, &o->data, &p->data) ||
        (o->val.count && !token_data_open(p->ctx, &o->val, &p->val_data)) ||
        !pretrain_find_documents(p))
        return false;
    p->windows = token_data_windows(&p->data, p->window);
    if (p->windows < 1)
        return pretrain_refuse(p, "--data %s: %" PRId64 " tokens, expected more than %s %d",
                               o->data.items[0], token_data_tokens(&p->data),
                               p->window == o->seq_length ? "--seq-length"
                                                          : "those that a sequence takes,",
                               p->window);
    return true;
}

/* "<before>4" with 4 ranks, "" with one. */
typedef struct ranks_text {
    char text[32];
} ranks_text;
static ranks_text of_ranks(const pretrain *p, const char *before)
{
    ranks_text t = {""};
    int ranks = mc_data_size(p->ctx);
    if (ranks > 1) snprintf(t.text, sizeof t.text, "%s%d", before, ranks);
    return t;
}

/* Before the batch is known: what a step's tokens must be a multiple of in any case. */
static bool check_tokens_per_step(pretrain *p)
{
    const pretrain_options *o = &p->o;
    int ranks = mc_data_size(p->ctx);
    int64_t batch = o->batch_size ? o->batch_size : 1, unit = batch * ranks * o->seq_length;
    if (o->tokens_per_step % unit == 0 && o->tokens_per_step / unit <= INT32_MAX) return true;
    return pretrain_refuse(p,
                           "--tokens-per-step is %" PRId64 ", expected a multiple of --batch-size "
                           "times --seq-length%s, %" PRId64 " x %" PRId64 "%s = %" PRId64,
                           o->tokens_per_step, ranks > 1 ? " times the ranks" : "", batch,
                           o->seq_length, of_ranks(p, " x ").text, unit);
}

/* Whatever follows from the batch. */
static void derive(pretrain *p)
{
    enum { MOST_WARMUP = 700 };
    pretrain_options *o = &p->o;
    int64_t sequences = o->tokens_per_step / o->seq_length;
    if (!o->steps) o->steps = p->windows / sequences > 0 ? p->windows / sequences : 1;
    if (o->train.warmup == TRAIN_UNSET)
        o->train.warmup = o->steps / 20 < MOST_WARMUP ? o->steps / 20 : MOST_WARMUP;
}

static void make_loaders(pretrain *p)
{
    const pretrain_options *o = &p->o;
    mc_lm_loader_options options = {.batch_size = (int)o->batch_size,
                                    .seq_length = p->window,
                                    .shuffle = o->shuffle,
                                    .repeat = true,
                                    .vocabulary = p->shape.vocab_size,
                                    .separate_documents = o->separate_documents,
                                    .document_token_ends = o->document_at == 1};
    if (o->separate_documents && o->document_token >= 0)
        options.document_token = o->document_token ? o->document_token : MC_LM_TOKEN_0;
    p->train = pretrain_open_batches(p, &p->data, &options);
    if (!p->val_data.count) return;
    options.keep_last = true;
    options.shuffle = options.repeat = false;
    p->val = pretrain_open_batches(p, &p->val_data, &options);
    p->val_start = mc_lm_loader_position(mc_objective_loader(p->val));
    p->val_batches = mc_lm_loader_batches(mc_objective_loader(p->val));
    if (o->val_batches && o->val_batches < p->val_batches) p->val_batches = o->val_batches;
}

/* "(6 N + 12 L D T) FLOP a token = ..." of a decoder, of others the number alone. */
static void explain_flops(const pretrain *p, char *to, size_t room)
{
    const mc_model_shape *c = &p->shape;
    if (mc_model_lora(p->work.model) || mc_model_soft_prompt(p->work.model))
        snprintf(to, room, "%.4g FLOP a token, 4 for each frozen parameter", p->flops);
    else if (c->kind == MC_MODEL_DECODER)
        snprintf(to, room,
                 "(6 N + 12 L D T) FLOP a token = 6 x %" PRId64 " + 12 x %" PRId64 " x %" PRId64
                 " x %" PRId64 " = %.4g",
                 mc_module_parameter_count(mc_model_module(p->work.model)), c->layers,
                 c->heads * c->head_dim, p->o.seq_length, p->flops);
    else
        snprintf(to, room, "%.4g FLOP a token, those of its sequence's targets among them",
                 p->flops);
}

/* What a token costs, and what the device could do. */
static void count_flops(pretrain *p)
{
    const char *dtype = train_dtype_names[p->o.train.dtype];
    mc_sequence_work work = pretrain_sequence_work(p);
    p->flops = mc_model_sequence_flops(p->work.model, &work) / (double)p->o.seq_length;
    p->peak = p->o.peak_tflops > 0 ? 1e12 * p->o.peak_tflops
                                   : mc_device_peak_rate(p->ctx, train_dtypes[p->o.train.dtype]);
    p->peak *= mc_world_size(p->ctx);
    char against[96], each[160];
    if (p->peak > 0)
        snprintf(against, sizeof against, "%.1f TFLOP/s in %s", 1e-12 * p->peak, dtype);
    else
        snprintf(against, sizeof against, "a peak that is not known here (see --peak-tflops)");
    explain_flops(p, each, sizeof each);
    run_log_line(&p->log, "MFU: %s, against %s", each, against);
}

static void describe(pretrain *p)
{
    const pretrain_options *o = &p->o;
    const mc_model_shape *c = &p->shape;
    run_log_line(&p->log,
                 "%s: %.1f M parameters, %" PRId64 " layers of %" PRId64 ", vocabulary %" PRId64
                 ", %s",
                 mc_model_family(p->work.model),
                 1e-6 * (double)mc_module_parameter_count(mc_model_module(p->work.model)),
                 c->layers, c->dim, c->vocab_size, train_dtype_names[o->train.dtype]);
    lora_tell(&p->log, p->work.model);
    run_log_line(&p->log,
                 "data: %" PRId64 " tokens; %" PRId64 " steps of %" PRId64 " tokens (%" PRId64
                 " sequences of %" PRId64 ", %d times%s)",
                 token_data_tokens(&p->data), o->steps, o->tokens_per_step, o->batch_size,
                 o->seq_length, p->work.micro_steps, of_ranks(p, ", on each rank of ").text);
    pretrain_describe_objective(p);
    count_flops(p);
}

static bool open_log(pretrain *p)
{
    run_log_options options = {.steps = p->o.steps,
                               .resume_step = p->step,
                               .jsonl = p->o.train.log_jsonl,
                               .csv = p->o.train.log_csv,
                               .log_every = p->o.train.log_every,
                               .tensorboard = p->o.train.tensorboard,
                               .silent = ranks_silent(p->ctx)};
    return run_log_init(&p->log, &options) == MC_OK || pretrain_refuse(p, "%s", p->log.message);
}

/* Of the model, the new one, or the run that is resumed; it has a use for the options. */
static bool find_family(pretrain *p)
{
    char message[256];
    model_options *from = &p->o.from;
    if (p->resumed && !from->family)
        from->family = mc_family_of_pretrained(p->ctx, mc_checkpoint_folder(p->resumed), NULL);
    else
        model_find_family(p->ctx, from);
    if (mc_failed(p->ctx)) return false;
    return pretrain_fits_objective(&p->o, message, sizeof message) ||
           pretrain_refuse(p, "%s", message);
}

/* Finds where the model goes, and that nothing is lost by it. */
static bool open_output(pretrain *p)
{
    pretrain_options *o = &p->o;
    inputs *in = &p->target.out.inputs;
    output_init(&p->target.out, p->ctx, o->train.overwrite);
    inputs_add_model_options(in, p->ctx, &o->from);
    inputs_add_model(in, p->ctx, "--tokenizer", o->tokenizer, NULL);
    inputs_add_list(in, "--data", &o->data);
    inputs_add_list(in, "--val", &o->val);
    const char *name = o->from.model ? o->from.model : o->from.config;
    if (!train_output_open(&p->target, &p->log, &o->train, o->output, name ? name : o->from.family,
                           o->resume))
        return false;
    o->output = *p->target.folder ? p->target.folder : NULL;
    return true;
}

/* Each part needs those before it; whichever fails has said why, or the context has the error. */
static bool set_up(pretrain *p)
{
    char message[256];
    if (mc_failed(p->ctx)) return false;
    if (!open_output(p) || !pretrain_find_checkpoint(p)) return false;
    pretrain_take_defaults(p);
    if (!train_check_grad_dtype(&p->o.train, message, sizeof message))
        return pretrain_refuse(p, "%s", message);
    if (!p->resumed && !p->o.from.config == !p->o.from.model)
        return pretrain_refuse(p, "expected one of --model and --config");
    if (!find_family(p)) return false;
    if (!pretrain_find_model(p) || !pretrain_find_objective(p) || !open_data(p) ||
        !check_tokens_per_step(p) || !pretrain_prepare_samples(p) || !pretrain_plan(p))
        return false;
    derive(p);
    make_loaders(p);
    pretrain_keep_tokenizer(p);
    if (mc_failed(p->ctx) || !pretrain_check_options(p) || !pretrain_make(p)) return false;
    describe(p);
    return pretrain_restore(p) && pretrain_check_room(p) && open_log(p) && pretrain_begin(p);
}

/* ---- running --------------------------------------------------------------------------------- */

static int finish(pretrain *p)
{
    int code = EXIT_OK;
    bool interrupted = interrupt_requested() && p->step < p->stop;
    bool saved = p->checkpoints.saved == p->step && p->o.output;
    const char *folder = saved && p->target.own ? p->o.output : NULL;
    if (interrupted && !mc_failed(p->ctx))
        run_log_line(&p->log, "interrupted at step %" PRId64 "%s%s%s%s", p->step,
                     saved ? "; go on with" : "", folder ? " --output " : "", folder ? folder : "",
                     saved ? " --resume" : "");
    else if (!mc_failed(p->ctx) && pretrain_result(p) != MC_OK)
        code = EXIT_RUN_FAILED;
    if (run_log_release(&p->log) != MC_OK) code = EXIT_RUN_FAILED;
    if (mc_failed(p->ctx)) code = EXIT_RUN_FAILED;
    return code == EXIT_OK && interrupted ? EXIT_INTERRUPTED : code;
}

static int run(const pretrain_options *o)
{
    pretrain p = {.o = *o, .loss = -1, .val_loss = -1};
    p.ctx = train_start(&p.o.train, o->seed, &p.log);
    int code = EXIT_RUN_FAILED;
    interrupt_init();
    if (set_up(&p)) {
        pretrain_train(&p);
        code = finish(&p);
    }
    ranks_print_error(p.ctx, p.refused);
    if (p.step) checkpoints_report_newest(&p.checkpoints); /* it had begun */
    interrupt_release();
    pretrain_work_release(&p.work);
    token_data_release(&p.data);
    token_data_release(&p.val_data);
    free(p.prompt);
    return output_leave(&p.target.out, p.ctx, code);
}

/* ---- command line ---------------------------------------------------------------------------- */

static const char details[] =
    "Token files are made by `modelcenter prepare`; --data and --val take several, and patterns.\n"
    "--output is a model folder, always with the newest weights, and holds the run's checkpoints;\n"
    "the same command with --resume goes on after the newest of them, to the same losses as if\n"
    "nothing had happened. The last line on stdout is\n"
    "`result model=... steps=... loss=... val_loss=... tokens_per_s=...`.\n\n"
    "  modelcenter pretrain --config gpt2-base --data train_*.bin --val val.bin \\\n"
    "      --batch-size 64 --tokens-per-step 524288 --steps 19560 --output run --device cuda\n"
    "  modelcenter pretrain --config bert-base-uncased --tokenizer bert-base-uncased \\\n"
    "      --data train.bin --seq-length 128 --steps 100000 --output run\n";

static bool read_batch(const args_spec *spec, pretrain_options *o, int *code)
{
    const char *given = o->batch_text;
    if (!given) return true;
    if (strcmp(given, "auto") == 0) {
        o->batch_size = 0;
        return true;
    }
    if (text_parse_whole(given, &o->batch_size) && o->batch_size >= 1 && o->batch_size <= 1 << 20)
        return true;
    *code = args_error(spec,
                       "--batch-size: expected a whole number from 1 to %d or auto, found "
                       "\"%s\"",
                       1 << 20, given);
    return false;
}

/* What the table can't say. */
static bool check(const args_spec *spec, pretrain_options *o, int *code)
{
    char message[256];
    if (!read_batch(spec, o, code)) return false;
    *code = model_check(spec, &o->from, WAYS, o->resume);
    if (*code != EXIT_OK) return false;
    const char *wrong = NULL, *lora = lora_options_check(&o->lora);
    if (lora)
        wrong = lora;
    else if (lora_options_given(&o->lora) && o->from.config)
        wrong = "--lora-rank, --virtual-tokens: expected --model, which gives the base";
    else if (o->lora.virtual_tokens && o->separate_documents)
        wrong = "--separate-documents: documents of a sequence take no virtual tokens";
    else if (train_output_check(&o->train, o->output, o->resume, o->save_every))
        wrong = train_output_check(&o->train, o->output, o->resume, o->save_every);
    else if (o->sample_every && !o->tokenizer)
        wrong = "--sample-every needs --tokenizer, to read and write texts with";
    else if (o->prompt && !o->sample_every)
        wrong = "--prompt needs --sample-every: it is how samples begin";
    if (!wrong && o->from.family && !pretrain_fits_objective(o, message, sizeof message))
        wrong = message;
    if (wrong) *code = args_error(spec, "%s", wrong);
    return !wrong;
}

static void add_own_rows(args_table *table, pretrain_options *o)
{
    model_add_rows(table, &o->from, WAYS, "folder or identifier of weights to begin with");
    args_table_add(
        table,
        (args_option[]){
            {ARGS_PATHS("data", &o->data,
                        "token files, or patterns of them; F:0.7 G:0.3 blends them by weight"),
             .required = true, .known_as = "input-bin,train-data,dataset"},
            {ARGS_PATHS("val", &o->val,
                        "the same to validate on; without it there is no validation"),
             .known_as = "input-val-bin,val-data"},
            {ARGS_PATH("output", &o->output, "folder to save to"),
             .default_text = "runs/NAME-DATE-TIME, for the final weights"},
            {ARGS_FLAG("resume", &o->resume,
                       "go on with the run in --output, or begin it if it has not saved yet"),
             .once = true, .known_as = "resume-from-checkpoint"},
            {ARGS_INT("save-every", &o->save_every, 0, INT64_MAX,
                      "steps from checkpoint to checkpoint; 0: only at the end, or on Ctrl-C"),
             .known_as = "save-steps,save-interval"},
            {ARGS_INT("keep", &o->keep, 0, 1000000,
                      "older checkpoints that stay beside the newest")},
            {ARGS_INT("save-total-limit", &o->save_total_limit, 1, 1000000,
                      "the same, the newest included"),
             .default_text = ""},
            {ARGS_BYTES("max-shard-size", &o->max_shard_size,
                        "save the weights in several files of at most this size"),
             .default_text = "one file"},
            {0},
        });
}

static void add_batch_rows(args_table *table, pretrain_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_HEADING("Training")},
            {ARGS_TEXT("batch-size", &o->batch_text,
                       "sequences computed at once, per rank, or auto: as many as memory holds"),
             .default_text = "4", .known_as = "micro-batch-size,per-device-train-batch-size"},
            {ARGS_TEXT("batch", &o->batch_text, "the same"), .default_text = ""},
            {ARGS_INT("seq-length", &o->seq_length, 0, 1 << 24, "tokens of a sequence"),
             .default_text = "1024, or the model's positions",
             .known_as = "sequence-length,block-size"},
            {ARGS_INT("tokens-per-step", &o->tokens_per_step, 0, (int64_t)1 << 40,
                      "tokens of a step on all ranks, over several passes if need be"),
             .default_text = "those of one batch of each rank",
             .known_as = "total-batch-size,global-batch-size"},
            {ARGS_INT("steps", &o->steps, 0, INT64_MAX, "steps of the run; 0: once over the data"),
             .known_as = "max-steps,train-iters"},
            {ARGS_INT("stop-after", &o->stop_after, 0, INT64_MAX,
                      "save and stop after this step of them; 0: at the end")},
            {0},
        });
}

static void add_adam_rows(args_table *table, pretrain_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_FLAG("decay-bias-norm", &o->decay_all, "weight decay on biases and norms too")},
            {ARGS_REAL("beta1", &o->beta1, 0, 1, "Adam's, of the mean"), .below_high = true,
             .known_as = "adam-beta1"},
            {ARGS_REAL("beta2", &o->beta2, 0, 1, "Adam's, of the square"), .below_high = true,
             .known_as = "adam-beta2"},
            {ARGS_REAL("eps", &o->eps, 0, 1, "Adam's"), .known_as = "adam-epsilon,adam-eps"},
            {ARGS_REAL("dropout", &o->dropout, 0, 1,
                       "all dropout probabilities, whatever the config says"),
             .below_high = true},
            {ARGS_FLAG("shuffle", &o->shuffle,
                       "sequences in a new order each epoch, not the file's")},
            {ARGS_INT("seed", &o->seed, 0, INT64_MAX, "of initialisation, dropout and shuffling")},
            {0},
        });
}

static void add_sample_rows(args_table *table, pretrain_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_HEADING("Validation and samples")},
            {ARGS_INT("val-every", &o->val_every, 0, INT64_MAX,
                      "steps from validation to validation; 0: only at the end"),
             .known_as = "val-loss-every,eval-interval,eval-steps"},
            {ARGS_INT("val-batches", &o->val_batches, 0, INT64_MAX, "batches of one; 0: all"),
             .known_as = "val-max-steps,eval-iters"},
            {ARGS_INT("sample-every", &o->sample_every, 0, INT64_MAX,
                      "steps from sample to sample of the model's text; 0: none")},
            {ARGS_INT("sample-length", &o->sample_length, 1, 1 << 24, "tokens of a sample")},
            {ARGS_TEXT("prompt", &o->prompt, "how samples begin"), .default_text = "a new text"},
            {ARGS_PATH("tokenizer", &o->tokenizer,
                       "folder or identifier, for samples and for the tokens that an objective "
                       "puts in; it is saved with the model"),
             .default_text = "that in the folder of --model or --config"},
            {0},
        });
}

static void add_memory_rows(args_table *table, pretrain_options *o)
{
    args_table_add(
        table,
        (args_option[]){
            {ARGS_REAL("memory", &o->memory, 0, 1e9,
                       "GiB of tensors that --batch-size auto may plan with; 0: what is free, "
                       "less 3 % and 4 MiB")},
            {ARGS_REAL("peak-tflops", &o->peak_tflops, 0, 1e9,
                       "peak that MFU is counted against; 0: the device's, where it is "
                       "known")},
            {0},
        });
}

static int parse_and_run(pretrain_options o, int argc, char **argv)
{
    args_table table = {.count = 0};
    bool seen[ARGS_MOST_ROWS] = {false};
    add_own_rows(&table, &o);
    train_output_add_rows(&table, &o.train);
    pretrain_add_objective_rows(&table, &o);
    add_batch_rows(&table, &o);
    train_add_course_rows(&table, &o.train);
    add_adam_rows(&table, &o);
    add_sample_rows(&table, &o);
    lora_add_rows(&table, &o.lora);
    train_add_machine_rows(&table, &o.train);
    add_memory_rows(&table, &o);
    train_add_rank_rows(&table, &o.train);
    train_add_log_rows(&table, &o.train);
    const args_spec spec = {.command = "pretrain",
                            .summary = "Trains a model on token files, by its family's objective.",
                            .details = details,
                            .options = table.rows,
                            .seen = seen};
    int code;
    if (!args_parse(&spec, argc, argv, &code) || !check(&spec, &o, &code)) return code;
    o.train.run_file = run_file_text(&spec, seen);
    if (o.save_total_limit) o.keep = o.save_total_limit - 1;
    code = run(&o);
    run_file_free(o.train.run_file);
    return code;
}

int cmd_pretrain(int argc, char **argv)
{
    pretrain_options o = defaults;
    o.data.items = calloc((size_t)argc, sizeof *o.data.items);
    o.val.items = calloc((size_t)argc, sizeof *o.val.items);
    o.data.room = o.data.items ? argc : 0;
    o.val.room = o.val.items ? argc : 0;
    int code = parse_and_run(o, argc, argv);
    free(o.data.items);
    free(o.val.items);
    return code;
}
