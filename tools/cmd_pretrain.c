/* `modelcenter pretrain`: trains a language model on token files, from random or given weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/train/pretrain.h"
#include "tools/files/text.h"

/* ---- setting up ------------------------------------------------------------------------------ */

static bool open_data(pretrain *p)
{
    const pretrain_options *o = &p->o;
    if (!token_data_open(p->run.ctx, &o->data, &p->data) ||
        (o->val.count && !token_data_open(p->run.ctx, &o->val, &p->val_data)) ||
        !pretrain_find_documents(p))
        return false;
    p->windows = token_data_windows(&p->data, p->window);
    if (p->windows < 1)
        return train_run_refuse(&p->run, "--data %s: %" PRId64 " tokens, expected more than %s %d",
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
    int ranks = mc_data_size(p->run.ctx);
    if (ranks > 1) snprintf(t.text, sizeof t.text, "%s%d", before, ranks);
    return t;
}

/* Before the batch is known: what a step's tokens must be a multiple of in any case. */
static bool check_tokens_per_step(pretrain *p)
{
    const pretrain_options *o = &p->o;
    int ranks = mc_data_size(p->run.ctx);
    int64_t batch = p->run.o.batch_size ? p->run.o.batch_size : 1,
            unit = batch * ranks * o->seq_length;
    if (o->tokens_per_step % unit == 0 && o->tokens_per_step / unit <= INT32_MAX) return true;
    return train_run_refuse(&p->run,
                            "--tokens-per-step is %" PRId64 ", expected a multiple of --batch-size "
                            "times --seq-length%s, %" PRId64 " x %" PRId64 "%s = %" PRId64,
                            o->tokens_per_step, ranks > 1 ? " times the ranks" : "", batch,
                            o->seq_length, of_ranks(p, " x ").text, unit);
}

/* Whatever follows from the batch. */
static void derive(pretrain *p)
{
    enum { MOST_WARMUP = 700 };
    train_run *run = &p->run;
    int64_t sequences = p->o.tokens_per_step / p->o.seq_length;
    run->steps = p->o.steps;
    if (!run->steps) run->steps = p->windows / sequences > 0 ? p->windows / sequences : 1;
    if (run->o.train.warmup == TRAIN_UNSET)
        run->o.train.warmup = run->steps / 20 < MOST_WARMUP ? run->steps / 20 : MOST_WARMUP;
}

static void make_loaders(pretrain *p)
{
    const pretrain_options *o = &p->o;
    mc_lm_loader_options options = {.batch_size = (int)p->run.o.batch_size,
                                    .seq_length = p->window,
                                    .shuffle = o->shuffle,
                                    .repeat = true,
                                    .vocabulary = p->shape.vocab_size,
                                    .separate_documents = o->separate_documents,
                                    .document_token_ends = o->document_at == 1};
    if (o->separate_documents && o->document_token >= 0)
        options.document_token = o->document_token ? o->document_token : MC_INT_ZERO;
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
    if (mc_model_lora(p->run.work.model) || mc_model_soft_prompt(p->run.work.model))
        snprintf(to, room, "%.4g FLOP a token, 4 for each frozen parameter", p->run.flops);
    else if (c->kind == MC_MODEL_DECODER)
        snprintf(to, room,
                 "(6 N + 12 L D T) FLOP a token = 6 x %" PRId64 " + 12 x %" PRId64 " x %" PRId64
                 " x %" PRId64 " = %.4g",
                 mc_module_parameter_count(mc_model_module(p->run.work.model)), c->layers,
                 c->heads * c->head_dim, p->o.seq_length, p->run.flops);
    else
        snprintf(to, room, "%.4g FLOP a token, those of its sequence's targets among them",
                 p->run.flops);
}

/* What a token costs, and what the devices could do. */
static void count_flops(pretrain *p)
{
    train_run *run = &p->run;
    int dtype = run->o.train.dtype;
    mc_sequence_work work = pretrain_sequence_work(p);
    run->flops = mc_model_sequence_flops(run->work.model, &work) / (double)p->o.seq_length;
    run->peak = p->o.peak_tflops > 0 ? 1e12 * p->o.peak_tflops
                                     : mc_device_peak_rate(run->ctx, train_dtypes[dtype]);
    run->peak *= mc_world_size(run->ctx);
    char against[96], each[160];
    if (run->peak > 0)
        snprintf(against, sizeof against, "%.1f TFLOP/s in %s", 1e-12 * run->peak,
                 train_dtype_names[dtype]);
    else
        snprintf(against, sizeof against, "a peak that is not known here (see --peak-tflops)");
    explain_flops(p, each, sizeof each);
    run_log_line(&run->log, "MFU: %s, against %s", each, against);
}

static void describe(pretrain *p)
{
    const pretrain_options *o = &p->o;
    const mc_model_shape *c = &p->shape;
    run_log_line(&p->run.log,
                 "%s: %.1f M parameters, %" PRId64 " layers of %" PRId64 ", vocabulary %" PRId64
                 ", %s",
                 mc_model_family(p->run.work.model),
                 1e-6 * (double)mc_module_parameter_count(mc_model_module(p->run.work.model)),
                 c->layers, c->dim, c->vocab_size, train_dtype_names[p->run.o.train.dtype]);
    lora_tell(&p->run.log, p->run.work.model);
    run_log_line(&p->run.log,
                 "data: %" PRId64 " tokens; %" PRId64 " steps of %" PRId64 " tokens (%" PRId64
                 " sequences of %" PRId64 ", %d times%s)",
                 token_data_tokens(&p->data), p->run.steps, o->tokens_per_step, p->run.o.batch_size,
                 o->seq_length, p->run.work.passes, of_ranks(p, ", on each rank of ").text);
    pretrain_describe_objective(p);
    count_flops(p);
}

static bool prepare(train_run *run)
{
    pretrain *p = run->user;
    char message[256];
    run->only_model = run->own;
    run->adam = (mc_adam_options){.beta1 = p->o.beta1 > 0 ? (float)p->o.beta1 : MC_TRUE_ZERO,
                                  .beta2 = p->o.beta2 > 0 ? (float)p->o.beta2 : MC_TRUE_ZERO,
                                  .eps = p->o.eps > 0 ? (float)p->o.eps : MC_TRUE_ZERO,
                                  .no_decay_bias_norm = !p->o.decay_all};
    if (!pretrain_fits_objective(p, message, sizeof message))
        return train_run_refuse(run, "%s", message);
    if (!pretrain_find_model(p, &run->work.model) || !pretrain_find_objective(p) || !open_data(p) ||
        !check_tokens_per_step(p) || !pretrain_prepare_samples(p) || !pretrain_plan(p))
        return false;
    derive(p);
    make_loaders(p);
    pretrain_keep_tokenizer(p);
    run->evaluates = p->val;
    run->eval_every = p->o.val_every;
    run->show_every = p->o.sample_every;
    return !mc_failed(run->ctx) && (!run->resumed || pretrain_same_config(p));
}

static bool make(train_run *run)
{
    pretrain *p = run->user;
    if (!pretrain_make(p)) return false;
    describe(p);
    return true;
}

static void release(train_run *run)
{
    pretrain *p = run->user;
    free(p->inputs.field);
    token_data_release(&p->data);
    token_data_release(&p->val_data);
    mc_encoding_release(&p->words);
}

static const train_kind kind = {.take_defaults = pretrain_take_defaults,
                                .prepare = prepare,
                                .add_options = pretrain_add_options,
                                .same_data = pretrain_same_data,
                                .make = make,
                                .state = pretrain_state,
                                .place_state = pretrain_place_state,
                                .fill = pretrain_fill,
                                .evaluate = pretrain_validate,
                                .show = pretrain_sample,
                                .result = pretrain_result,
                                .result_of_part = true,
                                .release = release};

/* ---- command line ---------------------------------------------------------------------------- */

static const char details[] =
    "Token files are made by `modelcenter prepare`; --data and --val take several, and patterns.\n"
    "--output is a model folder, always with the newest weights, and holds the run's checkpoints;\n"
    "the same command with --resume continues after the newest of them, to the same losses as if\n"
    "nothing had happened. The last line on stdout is\n"
    "`result model=... steps=... loss=... val_loss=... tokens_per_s=...`.\n\n"
    "  modelcenter pretrain --config gpt2-base --data train_*.bin --val val.bin \\\n"
    "      --batch-size 64 --tokens-per-step 524288 --steps 19560 --output run --device cuda\n"
    "  modelcenter pretrain --config bert-base-uncased --tokenizer bert-base-uncased \\\n"
    "      --data train.bin --seq-length 128 --steps 100000 --output run\n";

static bool read_batch(const args_spec *spec, pretrain *p, int *code)
{
    enum { MOST = 1 << 20 };
    const char *given = p->o.batch_text;
    int64_t *batch = &p->run.o.batch_size;
    if (!given) return true;
    if (strcmp(given, "auto") == 0) {
        *batch = 0;
        return true;
    }
    if (text_parse_whole(given, batch) && *batch >= 1 && *batch <= MOST) return true;
    *code = args_error(spec,
                       "--batch-size: expected a whole number from 1 to %d or auto, found "
                       "\"%s\"",
                       MOST, given);
    return false;
}

/* What the table can't say. */
static bool check(const args_spec *spec, pretrain *p, int *code)
{
    const pretrain_options *o = &p->o;
    train_run_options *shared = &p->run.o;
    char message[256];
    if (!read_batch(spec, p, code)) return false;
    *code = model_check(spec, &shared->from, TRAIN_RUN_WAYS, shared->resume);
    if (*code != EXIT_OK) return false;
    const char *wrong = train_run_check(shared);
    if (!wrong && shared->lora.virtual_tokens && o->separate_documents)
        wrong = "--separate-documents: documents of a sequence take no virtual tokens";
    if (!wrong && o->sample_every && !shared->tokenizer)
        wrong = "--sample-every needs --tokenizer, to read and write texts with";
    if (!wrong && o->prompt && !o->sample_every)
        wrong = "--prompt needs --sample-every: it is how samples begin";
    if (!wrong && shared->from.family && !pretrain_fits_objective(p, message, sizeof message))
        wrong = message;
    if (wrong) *code = args_error(spec, "%s", wrong);
    return !wrong;
}

static void add_own_rows(args_table *table, pretrain *p)
{
    pretrain_options *o = &p->o;
    train_run_options *r = &p->run.o;
    model_add_rows(table, &r->from, TRAIN_RUN_WAYS | MODEL_WAY_PRETRAINS,
                   "folder or identifier of weights to begin with");
    ARGS_ADD(
        table,
        {ARGS_PATHS("data", &o->data,
                    "token files, or patterns of them; F:0.7 G:0.3 blends them by weight"),
         .required = true, .known_as = "input-bin,train-data,dataset"},
        {ARGS_PATHS("val", &o->val, "the same to validate on; without it there is no validation"),
         .known_as = "input-val-bin,val-data"},
        {ARGS_INT("keep", &r->keep, 0, 1000000,
                  "number of older checkpoints to keep beside the newest")});
}

static void add_batch_rows(args_table *table, pretrain *p)
{
    pretrain_options *o = &p->o;
    train_run_options *r = &p->run.o;
    ARGS_ADD(table, {ARGS_HEADING("Training")},
             {ARGS_TEXT("batch-size", &o->batch_text,
                        "sequences of a batch, per rank, or auto: as many as memory holds"),
              .default_text = "4", .known_as = "micro-batch-size,per-device-train-batch-size"},
             {ARGS_TEXT("batch", &o->batch_text, "the same"), .default_text = ""},
             {ARGS_INT("seq-length", &o->seq_length, 0, 1 << 24, "tokens of a sequence"),
              .default_text = "1024, or the model's positions",
              .known_as = "sequence-length,block-size"},
             {ARGS_INT("tokens-per-step", &o->tokens_per_step, 0, (int64_t)1 << 40,
                       "tokens of a step on all ranks together"),
              .default_text = "those of one batch of each rank",
              .known_as = "total-batch-size,global-batch-size"},
             {ARGS_INT("steps", &o->steps, 0, INT64_MAX, "steps of the run; 0: once over the data"),
              .known_as = "max-steps,train-iters"},
             {ARGS_INT("stop-after", &r->stop_after, 0, INT64_MAX,
                       "save and stop after this step; 0: at the end")});
}

static void add_course_rows(args_table *table, pretrain *p)
{
    pretrain_options *o = &p->o;
    train_run_options *r = &p->run.o;
    ARGS_ADD(
        table,
        {ARGS_FLAG("decay-bias-norm", &o->decay_all, "weight decay on biases and norms too")},
        {ARGS_REAL("beta1", &o->beta1, 0, 1, "Adam: decay of the mean"), .below_high = true,
         .known_as = "adam-beta1"},
        {ARGS_REAL("beta2", &o->beta2, 0, 1, "Adam: decay of the mean square"), .below_high = true,
         .known_as = "adam-beta2"},
        {ARGS_REAL("eps", &o->eps, 0, 1, "Adam's"), .known_as = "adam-epsilon,adam-eps"},
        {ARGS_REAL("dropout", &r->dropout, 0, 1,
                   "all dropout probabilities; the config's are ignored"),
         .below_high = true},
        {ARGS_FLAG("shuffle", &o->shuffle, "sequences in a new order each epoch, not the file's")},
        {ARGS_INT("seed", &r->seed, 0, INT64_MAX, "seed of initialisation, dropout and shuffling")},
        {ARGS_HEADING("Validation and samples")},
        {ARGS_INT("val-every", &o->val_every, 0, INT64_MAX,
                  "validate every N steps; 0: only at the end"),
         .known_as = "val-loss-every,eval-interval,eval-steps"},
        {ARGS_INT("val-batches", &o->val_batches, 0, INT64_MAX, "batches of a validation; 0: all"),
         .known_as = "val-max-steps,eval-iters"},
        {ARGS_INT("sample-every", &o->sample_every, 0, INT64_MAX,
                  "write a sample of the model's text every N steps; 0: never")},
        {ARGS_INT("sample-length", &o->sample_length, 1, 1 << 24, "tokens of a sample")},
        {ARGS_TEXT("prompt", &o->prompt, "how samples begin"), .default_text = "a new text"},
        {ARGS_PATH("tokenizer", &r->tokenizer,
                   "folder or identifier, for samples and for the tokens that an objective "
                   "puts in; it is saved with the model"),
         .default_text = "that in the folder of --model or --config"});
}

static void add_memory_rows(args_table *table, pretrain_options *o)
{
    ARGS_ADD(table,
             {ARGS_REAL("memory", &o->memory, 0, 1e9,
                        "GiB of tensors that --batch-size auto may plan with; 0: what is free, "
                        "less 3 % and 4 MiB")},
             {ARGS_REAL("peak-tflops", &o->peak_tflops, 0, 1e9,
                        "peak that MFU is counted against; 0: the device's, where it is "
                        "known")});
}

static const pretrain defaults = {.o = {.val_every = 250,
                                        .val_batches = 20,
                                        .sample_length = 64,
                                        .document_token = -1,
                                        .beta1 = 0.9,
                                        .beta2 = 0.95,
                                        .eps = 1e-8},
                                  .val_loss = -1,
                                  .run = {.kind = &kind,
                                          .o = {.batch_size = 4,
                                                .keep = 1,
                                                .lora = LORA_DEFAULTS,
                                                .train = {.scheduler = TRAIN_COSINE,
                                                          .dtype = TRAIN_UNSET,
                                                          .warmup = TRAIN_UNSET,
                                                          .lr = 6e-4,
                                                          .gamma = 0.95,
                                                          .weight_decay = 0.1,
                                                          .clip = 1,
                                                          .loss_scale = 65536,
                                                          .ranks = RANKS_DEFAULTS}}}};

static void add_rows(args_table *table, pretrain *p)
{
    train_options *train = &p->run.o.train;
    add_own_rows(table, p);
    train_run_add_saving_rows(table, &p->run.o);
    pretrain_add_objective_rows(table, p);
    add_batch_rows(table, p);
    train_add_optimizer_rows(table, train);
    train_add_course_rows(table, train);
    add_course_rows(table, p);
    lora_add_rows(table, &p->run.o.lora);
    train_add_machine_rows(table, train);
    add_memory_rows(table, &p->o);
    train_add_rank_rows(table, train);
    train_add_log_rows(table, train);
}

int cmd_pretrain(int argc, char **argv)
{
    pretrain p = defaults;
    args_list *data = &p.o.data, *val = &p.o.val;
    bool seen[ARGS_MOST_ROWS] = {false};
    args_table table = {.count = 0};
    p.run.user = &p;
    p.run.data = data;
    p.run.val = val;
    *data = args_list_new(argc);
    *val = args_list_new(argc);
    add_rows(&table, &p);
    const args_spec spec = {.command = "pretrain",
                            .summary = "Trains a model on token files, by its family's objective.",
                            .details = details,
                            .options = table.rows,
                            .seen = seen};
    int code;
    if (args_parse(&spec, argc, argv, &code) && check(&spec, &p, &code))
        code = train_run_command(&p.run, &spec);
    free(data->items);
    free(val->items);
    return code;
}
