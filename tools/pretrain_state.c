/* Checkpoints of a run, and going on from one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tools/classify.h"
#include "tools/pretrain.h"
#include "tools/text.h"

/* ---- settings: what is kept with a checkpoint ------------------------------------------------ */

enum { SETTING_TEXT = 2048, SETTINGS = 40 };

typedef struct setting_list {
    mc_checkpoint_setting items[SETTINGS];
    char text[SETTINGS][SETTING_TEXT];
    int count;
    int options; /* the first so many are options that a resumed run must have too, */
    int told;    /* and the next, up to here, may round differently */
} setting_list;

static void add(setting_list *list, const char *name, const char *value)
{
    char *to = list->text[list->count];
    snprintf(to, SETTING_TEXT, "%s", value);
    list->items[list->count++] = (mc_checkpoint_setting){name, to};
}

static void add_whole(setting_list *list, const char *name, int64_t value)
{
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, value);
    add(list, name, number);
}

static void add_real(setting_list *list, const char *name, double value)
{
    char number[64];
    text t = text_into(number, sizeof number);
    text_add_number(&t, value);
    add(list, name, number);
}

/* Family and config as a text; dropout is an option of its own, and set by the model's too. */
static void add_config(setting_list *list, const mc_model *model)
{
    char config[SETTING_TEXT];
    text t = text_into(config, sizeof config);
    text_add(&t, "%s ", mc_model_family(model));
    mc_model_config_text(model, config + t.used, sizeof config - t.used);
    add(list, "config", config);
}

/* What decides the course of a run. Names are those of the options. */
static void add_options(setting_list *list, const pretrain *p)
{
    const pretrain_options *o = &p->o;
    add_config(list, p->work.model);
    add_whole(list, "batch-size", o->batch_size);
    add_whole(list, "seq-length", o->seq_length);
    add_whole(list, "tokens-per-step", o->tokens_per_step);
    add_real(list, "lr", o->train.lr);
    add(list, "scheduler", train_schedule_names[o->train.scheduler]);
    add_whole(list, "warmup", o->train.warmup);
    add_real(list, "gamma", o->train.gamma);
    add_real(list, "weight-decay", o->train.weight_decay);
    add(list, "decay-bias-norm", o->decay_all ? "true" : "false");
    add_real(list, "beta1", o->beta1);
    add_real(list, "beta2", o->beta2);
    add_real(list, "eps", o->eps);
    add_real(list, "clip", o->train.clip);
    add_real(list, "dropout", o->dropout);
    add_whole(list, "seed", (int64_t)o->seed);
    add(list, "shuffle", o->shuffle ? "true" : "false");
    add(list, "dtype", train_dtype_names[o->train.dtype]);
    add(list, "grad-dtype", train_grad_dtype_name(&o->train));
    if (train_dtypes[o->train.dtype] == MC_F16) add_real(list, "loss-scale", o->train.loss_scale);
    list->options = list->count;
    add(list, "device", train_device_of(o->train.device).name);
    add(list, "offload", o->train.offload ? "true" : "false");
    add_whole(list, "zero-level", o->train.ranks.zero_level);
    list->told = list->count;
    add_whole(list, "steps", o->steps);
    add_whole(list, "ranks", mc_world_size(p->ctx));
    add(list, "val-due", p->val_due ? "true" : "false");
}

static void add_position(setting_list *list, const mc_lm_position *at)
{
    char number[32];
    snprintf(number, sizeof number, "%" PRIu64, at->seed);
    add(list, "data.seed", number);
    add_whole(list, "data.epoch", at->epoch);
    add_whole(list, "data.window", at->window);
    add_whole(list, "data.tokens", at->tokens);
    add_whole(list, "data.windows", at->windows);
    add_whole(list, "data.seq_length", at->seq_length);
    add(list, "data.shuffle", at->shuffle ? "true" : "false");
    snprintf(number, sizeof number, "%" PRIu64, at->fingerprint);
    add(list, "data.fingerprint", number);
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The tokenizer first: when the weights are there, the folder is whole. */
static mc_status save_files(void *user, const char *folder)
{
    pretrain *p = user;
    bool first = mc_rank(p->ctx) == 0;
    mc_status status = p->tokenizer && first ? mc_tokenizer_save(p->tokenizer, folder) : MC_OK;
    mc_save_options options = {.max_shard_size = p->o.max_shard_size};
    return status ? status : mc_model_save_as(p->work.model, folder, &options);
}

void pretrain_tell_saved(pretrain *p)
{
    int64_t step;
    if (mc_checkpoint_poll(p->ctx, &step) != MC_OK || step <= p->told) return;
    p->told = step;
    run_log_line(&p->log, "saved step %" PRId64 " to %s (training paused for %.0f ms)", step,
                 p->o.output, 1e3 * p->pause);
}

void pretrain_end_save(pretrain *p)
{
    mc_checkpoint_wait(p->ctx);
    pretrain_tell_saved(p);
}

void pretrain_save(pretrain *p)
{
    double start = classify_clock();
    if (!p->o.output || mc_failed(p->ctx) || p->saved == p->step) return;
    setting_list *list = calloc(1, sizeof *list);
    if (!list) {
        mc_set_error(p->ctx, MC_ERR_NOMEM, "out of memory for a checkpoint");
        return;
    }
    pretrain_end_save(p); /* of the one before */
    mc_lm_position at = mc_lm_loader_position(p->train);
    add_options(list, p);
    add_position(list, &at);
    mc_checkpoint_options options = {.step = p->step,
                                     .keep = p->o.keep,
                                     .optim = p->work.optim,
                                     .save_files = save_files,
                                     .user = p,
                                     .settings = list->items,
                                     .setting_count = list->count,
                                     .background = true};
    if (mc_checkpoint_save(p->ctx, p->o.output, &options) == MC_OK) p->saved = p->step;
    p->pause = classify_clock() - start;
    free(list);
}

/* ---- resuming -------------------------------------------------------------------------------- */

static bool holds(const char *folder, const char *name)
{
    char path[4200];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &info) == 0;
}

bool pretrain_find_checkpoint(pretrain *p)
{
    const pretrain_options *o = &p->o;
    if (!o->output) return true;
    if (o->resume) {
        p->resumed = mc_checkpoint_open(p->ctx, o->output);
        if (mc_failed(p->ctx)) return false;
        if (p->resumed) return true;
    } else if (mc_checkpoint_exists(o->output)) {
        return pretrain_refuse(p,
                               "--output %s holds a checkpoint of a run: go on with --resume, or "
                               "choose another folder",
                               o->output);
    }
    if (holds(o->output, "model.safetensors") || holds(o->output, "model.safetensors.index.json") ||
        holds(o->output, "config.json"))
        return pretrain_refuse(p, "--output %s holds a model, which is not overwritten", o->output);
    if (o->resume) run_log_line(&p->log, "no checkpoint in %s yet: the run begins", o->output);
    return true;
}

static const char *kept(const pretrain *p, const char *name)
{
    const char *value = mc_checkpoint_setting_of(p->resumed, name);
    return value ? value : "";
}

/* A whole number of the checkpoint; 0 where there is none. */
static int64_t kept_whole(const pretrain *p, const char *name)
{
    int64_t value = 0;
    text_parse_whole(kept(p, name), &value);
    return value;
}

static uint64_t kept_u64(const pretrain *p, const char *name)
{
    return strtoull(kept(p, name), NULL, 10);
}

static mc_lm_position kept_position(const pretrain *p)
{
    return (mc_lm_position){.seed = kept_u64(p, "data.seed"),
                            .epoch = kept_whole(p, "data.epoch"),
                            .window = kept_whole(p, "data.window"),
                            .tokens = kept_whole(p, "data.tokens"),
                            .windows = kept_whole(p, "data.windows"),
                            .seq_length = kept_whole(p, "data.seq_length"),
                            .shuffle = strcmp(kept(p, "data.shuffle"), "true") == 0,
                            .fingerprint = kept_u64(p, "data.fingerprint")};
}

/* The index of a name, `otherwise` where it is none of them. */
static int index_of(const char *const *names, const char *name, int otherwise)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) return i;
    return otherwise;
}

static int kept_ranks(const pretrain *p)
{
    int64_t ranks = kept_whole(p, "ranks");
    return ranks > 1 ? (int)ranks : 1;
}

/* A rank's share of the batch that all of them had; another number of ranks may take it in other
 * pieces, since what a step trains on is what --tokens-per-step says. */
static int64_t kept_batch(const pretrain *p)
{
    int64_t batch = kept_whole(p, "batch-size"), all = batch * kept_ranks(p);
    int ranks = mc_world_size(p->ctx);
    return all % ranks == 0 ? all / ranks : batch;
}

void pretrain_take_defaults(pretrain *p)
{
    pretrain_options *o = &p->o;
    if (p->resumed) {
        if (!o->batch_text) o->batch_size = kept_batch(p);
        if (!o->seq_length) o->seq_length = kept_whole(p, "seq-length");
        if (!o->tokens_per_step) o->tokens_per_step = kept_whole(p, "tokens-per-step");
        if (!o->batch_size) o->batch_size = kept_batch(p); /* auto */
        if (!o->steps) o->steps = kept_whole(p, "steps");
        if (o->train.warmup == TRAIN_UNSET) o->train.warmup = kept_whole(p, "warmup");
        if (o->train.dtype == TRAIN_UNSET)
            o->train.dtype = index_of(train_dtype_names, kept(p, "dtype"), TRAIN_UNSET);
    }
    if (o->train.dtype == TRAIN_UNSET)
        o->train.dtype =
            index_of(train_dtype_names, o->train.device == TRAIN_CPU ? "f32" : "bf16", 0);
}

/* Where the first part, from comma to comma, begins in which two values differ. */
static size_t first_difference(const char *a, const char *b)
{
    size_t begin = 0;
    for (size_t i = 0; a[i] && a[i] == b[i]; i++)
        if (a[i] == ',') begin = i + 1;
    return begin;
}

static bool same_options(pretrain *p, const setting_list *list)
{
    for (int i = 0; i < list->options; i++) {
        const char *name = list->items[i].name, *now = list->items[i].value, *then = kept(p, name);
        bool other_ranks = kept_ranks(p) != mc_world_size(p->ctx);
        if (strcmp(name, "batch-size") == 0 && other_ranks) continue;
        if (strcmp(now, then) == 0) continue;
        size_t begin = first_difference(now, then);
        now += begin;
        then = *then ? then + begin : "none";
        return pretrain_refuse(p, "--resume: --%s is %.*s, but the run in %s was begun with %.*s",
                               name, (int)strcspn(now, ","), now, p->o.output,
                               (int)strcspn(then, ","), then);
    }
    return true;
}

/* The shape that --config asks for, to be compared with the checkpoint's. */
static bool same_config(pretrain *p)
{
    pretrain asked = {.o = p->o, .ctx = p->ctx, .log = p->log};
    asked.o.pretrained = NULL;
    setting_list *list = p->o.config ? calloc(1, sizeof *list) : NULL;
    if (!list) return true;
    if (!pretrain_find_model(&asked)) {
        free(list);
        return false;
    }
    add_config(list, asked.work.model);
    list->options = list->count;
    bool same = same_options(p, list);
    mc_model_free(asked.work.model);
    free(list);
    return same;
}

/* What is not refused but may change the last bits. */
static void tell_changes(pretrain *p, const setting_list *list)
{
    for (int i = list->options; i < list->told; i++) {
        const char *name = list->items[i].name, *now = list->items[i].value, *then = kept(p, name);
        if (*then && strcmp(now, then) != 0)
            run_log_line(
                &p->log,
                "the run was begun with %s %s, it goes on with %s: the same up to rounding", name,
                then, now);
    }
    if (kept_ranks(p) != mc_world_size(p->ctx))
        run_log_line(&p->log, "the run was begun on %d rank%s, it goes on on %d", kept_ranks(p),
                     kept_ranks(p) == 1 ? "" : "s", mc_world_size(p->ctx));
    int64_t steps = kept_whole(p, "steps");
    if (steps != p->o.steps)
        run_log_line(&p->log,
                     "the run was begun for %" PRId64 " steps, it goes on to %" PRId64 "%s", steps,
                     p->o.steps,
                     p->o.train.scheduler == TRAIN_LINEAR || p->o.train.scheduler == TRAIN_COSINE
                         ? ": the learning rate takes another course from here on"
                         : "");
}

bool pretrain_check_options(pretrain *p)
{
    if (!p->resumed) return true;
    setting_list *list = calloc(1, sizeof *list);
    if (!list) return pretrain_refuse(p, "out of memory for a checkpoint's options");
    add_options(list, p);
    mc_lm_position here = mc_lm_loader_position(p->train), then = kept_position(p);
    bool same = same_config(p) && same_options(p, list);
    bool same_data = here.fingerprint == then.fingerprint && here.tokens == then.tokens;
    if (same && same_data) tell_changes(p, list);
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
    if (!p->resumed) return true;
    mc_lm_position at = kept_position(p);
    mc_lm_loader_seek(p->train, &at);
    mc_checkpoint_restore(p->resumed, p->work.optim);
    if (mc_failed(p->ctx)) return false;
    p->step = p->saved = p->told = mc_checkpoint_step(p->resumed);
    p->val_due = strcmp(kept(p, "val-due"), "true") == 0;
    run_log_line(&p->log, "resumed behind step %" PRId64 " from %s", p->step,
                 mc_checkpoint_folder(p->resumed));
    return true;
}
