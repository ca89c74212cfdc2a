/* Checkpoints of a run, and going on from one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/train/pretrain.h"

/* ---- settings: what is kept with a checkpoint ------------------------------------------------ */

/* What decides the course of a run. Names are those of the options. */
static void add_options(settings *list, const pretrain *p)
{
    const pretrain_options *o = &p->o;
    settings_add_model(list, p->work.model);
    settings_add_whole(list, "batch-size", o->batch_size);
    settings_add_whole(list, "seq-length", o->seq_length);
    settings_add_whole(list, "tokens-per-step", o->tokens_per_step);
    settings_add_course(list, &o->train);
    settings_add_flag(list, "decay-bias-norm", o->decay_all);
    settings_add_real(list, "beta1", o->beta1);
    settings_add_real(list, "beta2", o->beta2);
    settings_add_real(list, "eps", o->eps);
    settings_add_real(list, "dropout", o->dropout);
    lora_add_settings(list, &o->lora);
    settings_add_whole(list, "seed", (int64_t)o->seed);
    settings_add_flag(list, "shuffle", o->shuffle);
    pretrain_add_objective_settings(list, p);
    settings_end_fixed(list);
    settings_add_machine(list, &o->train);
    settings_end_rounding(list);
    settings_add_whole(list, "steps", o->steps);
    settings_add_whole(list, "ranks", mc_data_size(p->ctx));
    settings_add_flag(list, "val-due", p->val_due);
}

static void add_position(settings *list, const mc_lm_position *at)
{
    settings_add_u64(list, "data.seed", at->seed);
    settings_add_whole(list, "data.epoch", at->epoch);
    settings_add_whole(list, "data.window", at->window);
    settings_add_whole(list, "data.tokens", at->tokens);
    settings_add_whole(list, "data.windows", at->windows);
    settings_add_whole(list, "data.seq_length", at->seq_length);
    settings_add_flag(list, "data.shuffle", at->shuffle);
    settings_add_u64(list, "data.fingerprint", at->fingerprint);
}

/* ---- saving ---------------------------------------------------------------------------------- */

void pretrain_save(pretrain *p)
{
    if (!p->o.output || p->checkpoints.saved == p->step) return;
    if (p->target.own && p->step >= p->o.steps) {
        checkpoints_save_model(&p->checkpoints);
        p->checkpoints.saved = p->step;
        return;
    }
    settings *list = settings_new(p->ctx);
    if (!list) return;
    mc_lm_position at = mc_lm_loader_position(mc_objective_loader(p->train));
    add_options(list, p);
    add_position(list, &at);
    checkpoints_save(&p->checkpoints, p->step, 0, list);
    free(list);
}

/* ---- resuming -------------------------------------------------------------------------------- */

static mc_status save_options(void *user, const char *folder)
{
    const pretrain *p = user;
    return train_output_write_options(p->ctx, &p->o.train, folder);
}

bool pretrain_find_checkpoint(pretrain *p)
{
    const pretrain_options *o = &p->o;
    char message[1024];
    if (!o->output) return true;
    p->checkpoints = (checkpoints){.ctx = p->ctx,
                                   .log = &p->log,
                                   .folder = o->output,
                                   .save_beside = save_options,
                                   .user = p,
                                   .replace = o->train.overwrite,
                                   .keep = o->keep,
                                   .max_shard_size = o->max_shard_size};
    if (!checkpoints_find(&p->checkpoints, o->resume, message, sizeof message))
        return *message && pretrain_refuse(p, "%s", message);
    p->resumed = p->checkpoints.resumed;
    if (p->resumed) return true;
    if (o->resume) run_log_line(&p->log, "no checkpoint in %s yet: the run begins", o->output);
    return true;
}

static mc_lm_position kept_position(const pretrain *p)
{
    return (mc_lm_position){.seed = settings_u64_of(p->resumed, "data.seed"),
                            .epoch = settings_whole_of(p->resumed, "data.epoch"),
                            .window = settings_whole_of(p->resumed, "data.window"),
                            .tokens = settings_whole_of(p->resumed, "data.tokens"),
                            .windows = settings_whole_of(p->resumed, "data.windows"),
                            .seq_length = settings_whole_of(p->resumed, "data.seq_length"),
                            .shuffle = settings_flag_of(p->resumed, "data.shuffle"),
                            .fingerprint = settings_u64_of(p->resumed, "data.fingerprint")};
}

/* A rank's share of the batch that all of them had; another number of ranks may take it in other
 * pieces, since what a step trains on is what --tokens-per-step says. */
static int64_t kept_batch(const pretrain *p)
{
    int64_t batch = settings_whole_of(p->resumed, "batch-size"),
            all = batch * settings_ranks_of(p->resumed);
    int ranks = mc_data_size(p->ctx);
    return all % ranks == 0 ? all / ranks : batch;
}

void pretrain_take_defaults(pretrain *p)
{
    pretrain_options *o = &p->o;
    if (p->resumed) {
        if (!o->batch_text) o->batch_size = kept_batch(p);
        if (!o->seq_length) o->seq_length = settings_whole_of(p->resumed, "seq-length");
        if (!o->tokens_per_step)
            o->tokens_per_step = settings_whole_of(p->resumed, "tokens-per-step");
        if (!o->batch_size) o->batch_size = kept_batch(p); /* auto */
        if (!o->steps) o->steps = settings_whole_of(p->resumed, "steps");
        if (o->train.warmup == TRAIN_UNSET)
            o->train.warmup = settings_whole_of(p->resumed, "warmup");
        if (o->train.dtype == TRAIN_UNSET)
            o->train.dtype =
                settings_choice_of(p->resumed, "dtype", train_dtype_names, TRAIN_UNSET);
    }
    if (o->train.dtype == TRAIN_UNSET)
        o->train.dtype = o->train.device == TRAIN_CPU ? TRAIN_F32 : TRAIN_BF16;
}

static bool same_options(pretrain *p, const settings *list)
{
    char message[1024];
    bool other_ranks = settings_ranks_of(p->resumed) != mc_data_size(p->ctx);
    return settings_same(list, NULL, p->resumed, p->o.output, other_ranks ? "batch-size" : NULL,
                         message, sizeof message) ||
           pretrain_refuse(p, "%s", message);
}

/* The shape that --config asks for, to be compared with the checkpoint's. */
static bool same_config(pretrain *p)
{
    pretrain asked = {.o = p->o, .ctx = p->ctx, .log = p->log};
    asked.o.from.model = NULL;
    settings *list = p->o.from.config ? settings_new(p->ctx) : NULL;
    if (!list) return !mc_failed(p->ctx);
    if (!pretrain_find_model(&asked)) {
        free(list);
        return false;
    }
    /* the run's has the tokens of its tokenizer where the config lacks them */
    const mc_tokenizer *tok = p->tokenizer ? p->tokenizer : p->kept;
    if (tok) mc_model_take_tokens(asked.work.model, tok, p->o.from.config);
    settings_add_model(list, asked.work.model);
    settings_end_fixed(list);
    bool same = same_options(p, list);
    mc_model_free(asked.work.model);
    free(list);
    return same;
}

bool pretrain_check_options(pretrain *p)
{
    if (!p->resumed) return true;
    settings *list = settings_new(p->ctx);
    if (!list) return false;
    add_options(list, p);
    mc_lm_position here = mc_lm_loader_position(mc_objective_loader(p->train)),
                   then = kept_position(p);
    bool same = same_config(p) && same_options(p, list);
    bool same_data = here.fingerprint == then.fingerprint && here.tokens == then.tokens;
    if (same && same_data) {
        settings_tell_changes(list, p->resumed, p->ctx, &p->log);
        settings_tell_steps(p->resumed, p->o.steps, &p->o.train, &p->log);
    }
    free(list);
    return same &&
           (same_data ||
            pretrain_refuse(
                p,
                "--resume: --data is not what the run in %s was begun with (%" PRId64
                " tokens here, %" PRId64 " there, fingerprints %016" PRIx64 " and %016" PRIx64 ")",
                p->o.output, here.tokens, then.tokens, here.fingerprint, then.fingerprint));
}

bool pretrain_restore(pretrain *p)
{
    p->checkpoints.model = p->work.model;
    p->checkpoints.tokenizer = p->tokenizer ? p->tokenizer : p->kept;
    p->checkpoints.optim = p->work.optim;
    if (!p->resumed) return true;
    mc_lm_position at = kept_position(p);
    mc_objective_seek(p->train, &at);
    mc_checkpoint_restore(p->resumed, p->work.optim);
    if (mc_failed(p->ctx)) return false;
    p->step = mc_checkpoint_step(p->resumed);
    p->val_due = settings_flag_of(p->resumed, "val-due");
    checkpoints_restored(&p->checkpoints);
    return true;
}

/* How many checkpoints the folder is going to hold besides those that are there. */
static int64_t checkpoints_to_come(const pretrain *p)
{
    const pretrain_options *o = &p->o;
    if (p->target.own) return 0;
    if (p->resumed) return 1; /* an older one goes for each that comes */
    int64_t saves = o->save_every ? (o->steps + o->save_every - 1) / o->save_every : 1;
    return saves < o->keep + 2 ? saves : o->keep + 2;
}

bool pretrain_check_room(pretrain *p)
{
    return train_output_check_room(&p->target, p->work.model, checkpoints_to_come(p));
}

bool pretrain_begin(pretrain *p) { return checkpoints_begin(&p->checkpoints); }
