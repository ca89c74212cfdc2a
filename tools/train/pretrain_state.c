/* What is kept with a checkpoint of a run, and compared with one. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include "tools/train/pretrain.h"

/* Names are those of the options. */
void pretrain_add_options(settings *list, const train_run *run)
{
    const pretrain *p = run->user;
    const pretrain_options *o = &p->o;
    settings_add_model(list, run->work.model);
    settings_add_whole(list, "seq-length", o->seq_length);
    settings_add_whole(list, "tokens-per-step", o->tokens_per_step);
    settings_add_course(list, &run->o.train);
    settings_add_flag(list, "decay-bias-norm", o->decay_all);
    settings_add_real(list, "beta1", o->beta1);
    settings_add_real(list, "beta2", o->beta2);
    settings_add_real(list, "eps", o->eps);
    settings_add_real(list, "dropout", run->o.dropout);
    lora_add_settings(list, &run->o.lora);
    settings_add_whole(list, "seed", (int64_t)run->o.seed);
    settings_add_flag(list, "shuffle", o->shuffle);
    pretrain_add_objective_settings(list, p);
    settings_end_fixed(list);
    settings_add_whole(list, "batch-size", run->o.batch_size);
    settings_add_machine(list, &run->o.train);
    settings_end_rounding(list);
}

const settings_field pretrain_state[] = {
    {"val-due", SETTINGS_FLAG, offsetof(pretrain, run.eval_due)},
    {"loss", SETTINGS_REAL, offsetof(pretrain, run.loss)},
    {"val.loss", SETTINGS_REAL, offsetof(pretrain, val_loss)},
    {"data.seed", SETTINGS_U64, offsetof(pretrain, position.seed)},
    {"data.epoch", SETTINGS_WHOLE, offsetof(pretrain, position.epoch)},
    {"data.window", SETTINGS_WHOLE, offsetof(pretrain, position.window)},
    {"data.tokens", SETTINGS_WHOLE, offsetof(pretrain, position.tokens)},
    {"data.windows", SETTINGS_WHOLE, offsetof(pretrain, position.windows)},
    {"data.seq_length", SETTINGS_WHOLE, offsetof(pretrain, position.seq_length)},
    {"data.shuffle", SETTINGS_FLAG, offsetof(pretrain, position.shuffle)},
    {"data.fingerprint", SETTINGS_U64, offsetof(pretrain, position.fingerprint)},
    {"data.epoch_windows", SETTINGS_WHOLE, offsetof(pretrain, position.epoch_windows)},
    {"val.tokens", SETTINGS_WHOLE, offsetof(pretrain, val_data_of.tokens)},
    {"val.fingerprint", SETTINGS_U64, offsetof(pretrain, val_data_of.fingerprint)},
    {"val.sequences", SETTINGS_WHOLE, offsetof(pretrain, val_data_of.window)},
    {NULL},
};

/* Windows of an epoch of the run: those that fill the batches that it was begun with. Older
 * checkpoints, which do not have it, know these batches. */
static int64_t epoch_windows_of(const mc_checkpoint *then)
{
    int64_t kept = settings_whole_of(then, "data.epoch_windows");
    int64_t windows = settings_whole_of(then, "data.windows");
    int64_t batch = settings_whole_of(then, "batch-size") * settings_ranks_of(then);
    return kept || batch < 1 ? kept : windows - windows % batch;
}

/* Sequences of a validation. */
static int64_t val_sequences(const pretrain *p)
{
    int64_t most = p->val_batches * p->run.o.batch_size * mc_data_size(p->run.ctx);
    return most < p->val_start.windows ? most : p->val_start.windows;
}

void pretrain_place_state(train_run *run, bool saving)
{
    pretrain *p = run->user;
    if (saving) {
        p->position = mc_lm_loader_position(mc_objective_loader(p->train));
        if (!p->val) return; /* the validation's is that of an earlier part of the run */
        p->val_data_of = p->val_start;
        p->val_data_of.window = val_sequences(p);
    } else {
        p->position.epoch_windows = epoch_windows_of(run->resumed);
        mc_objective_seek(p->train, &p->position);
    }
}

/* A rank's share of the batch that all of them had; another number of ranks may take it in other
 * pieces, since what a step trains on is what --tokens-per-step says. */
static int64_t kept_batch(const train_run *run)
{
    int64_t batch = settings_whole_of(run->resumed, "batch-size"),
            all = batch * settings_ranks_of(run->resumed);
    int ranks = mc_data_size(run->ctx);
    return all % ranks == 0 ? all / ranks : batch;
}

bool pretrain_take_defaults(train_run *run)
{
    pretrain_options *o = &((pretrain *)run->user)->o;
    train_run_options *shared = &run->o;
    const mc_checkpoint *then = run->resumed;
    if (!then) return true;
    if (!o->batch_text || !shared->batch_size) shared->batch_size = kept_batch(run); /* or auto */
    if (!o->seq_length) o->seq_length = settings_whole_of(then, "seq-length");
    if (!o->tokens_per_step) o->tokens_per_step = settings_whole_of(then, "tokens-per-step");
    if (!o->steps) o->steps = settings_whole_of(then, "steps");
    if (shared->train.warmup == TRAIN_UNSET)
        shared->train.warmup = settings_whole_of(then, "warmup");
    return true;
}

bool pretrain_same_config(pretrain *p)
{
    train_run *run = &p->run;
    pretrain asked = {.o = p->o, .run = {.o = run->o, .ctx = run->ctx, .log = run->log}};
    mc_model *model;
    asked.run.o.from.model = NULL;
    settings *list = run->o.from.config ? settings_new(run->ctx) : NULL;
    if (!list) return !mc_failed(run->ctx);
    bool same = pretrain_find_model(&asked, &model);
    /* the run's has the tokens of its tokenizer where the config lacks them */
    if (same && run->tokenizer) mc_model_take_tokens(model, run->tokenizer, run->o.from.config);
    if (same) settings_add_model(list, model);
    settings_end_fixed(list);
    same = same && train_run_same(run, list, NULL, run->resumed);
    mc_model_free(model);
    free(list);
    return same;
}

/* "--data is not what ..." */
static bool same_tokens(train_run *run, const char *option, const mc_lm_position *here,
                        int64_t tokens, uint64_t fingerprint)
{
    return (here->fingerprint == fingerprint && here->tokens == tokens) ||
           train_run_refuse(
               run,
               "--resume: --%s is not what the run in %s was begun with (%" PRId64
               " tokens here, %" PRId64 " there, fingerprints %016" PRIx64 " and %016" PRIx64 ")",
               option, run->o.output, here->tokens, tokens, here->fingerprint, fingerprint);
}

/* A validation may end or begin with a part of a run; older checkpoints do not know theirs. */
static bool same_validation(train_run *run)
{
    const pretrain *p = run->user;
    uint64_t fingerprint = settings_u64_of(run->resumed, "val.fingerprint");
    int64_t then = settings_whole_of(run->resumed, "val.sequences");
    if (!p->val && fingerprint)
        run_log_line(&run->log, "the run was begun with --val, it goes on without validation");
    if (p->val && then && then != val_sequences(p))
        run_log_line(&run->log,
                     "a validation is of %" PRId64 " sequences from here on, it was of %" PRId64
                     ": see --val-batches",
                     val_sequences(p), then);
    return !p->val || !fingerprint ||
           same_tokens(run, "val", &p->val_start, settings_whole_of(run->resumed, "val.tokens"),
                       fingerprint);
}

/* Whether the rest of the run has the sequences that it would have had with its own batches: they
 * are the same up to the end of an epoch, and after it if batches of this size fill it too. */
static bool same_order(train_run *run)
{
    const pretrain *p = run->user;
    int64_t batch = run->o.batch_size * mc_data_size(run->ctx);
    int64_t end = epoch_windows_of(run->resumed), most = end - end % batch;
    int64_t sequences = run->steps * (p->o.tokens_per_step / p->o.seq_length);
    return end % batch == 0 || sequences <= most ||
           train_run_refuse(run,
                            "--resume: --batch-size is %" PRId64 ", but the run in %s was begun "
                            "with batches that divide an epoch's %" PRId64
                            " sequences: expected a --batch-size that on %d rank%s divides "
                            "them too",
                            run->o.batch_size, run->o.output, end, mc_data_size(run->ctx),
                            mc_data_size(run->ctx) > 1 ? "s" : "");
}

bool pretrain_same_data(train_run *run)
{
    const pretrain *p = run->user;
    mc_lm_position here = mc_lm_loader_position(mc_objective_loader(p->train));
    return same_tokens(run, "data", &here, settings_whole_of(run->resumed, "data.tokens"),
                       settings_u64_of(run->resumed, "data.fingerprint")) &&
           same_validation(run) && same_order(run);
}
