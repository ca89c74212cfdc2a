/* Where a run saves: --output, else a folder of its own under runs/, or nowhere with --no-save. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tools/options/run_file.h"
#include "tools/train/train_run.h"
#include "tools/files/whole_file.h"

void train_run_add_saving_rows(args_table *table, train_run_options *o)
{
    ARGS_ADD(table,
             {ARGS_PATH("output", &o->output, "folder to save to"),
              .default_text = "runs/NAME-DATE-TIME, for the final weights"},
             {ARGS_BYTES("max-shard-size", &o->max_shard_size,
                         "save the weights in several files of at most this size"),
              .default_text = "one file"},
             {ARGS_FLAG("resume", &o->resume,
                        "continue the run in --output, or start it if it has no checkpoint"),
              .once = true, .known_as = "resume-from-checkpoint"},
             {ARGS_INT("save-every", &o->save_every, 0, INT64_MAX,
                       "save a checkpoint every N steps; 0: only at the end, or on Ctrl-C"),
              .known_as = "save-steps,save-interval"},
             {ARGS_INT("save-total-limit", &o->save_total_limit, 1, 1000000,
                       "number of checkpoints to keep, with the newest; the best is kept besides"),
              .default_text = o->save_total_limit ? NULL : ""},
             OUTPUT_OVERWRITE_ROW(&o->train.overwrite),
             {ARGS_FLAG("no-save", &o->train.no_save, "save no model (to measure speed)")});
}

const char *train_run_check(train_run_options *o)
{
    const char *wrong = lora_options_check(&o->lora, !o->from.config);
    if (!wrong) wrong = train_check_pairs(&o->train);
    if (!wrong) wrong = train_check_optimizer(&o->train);
    if (!wrong) wrong = lora_check_fp8(&o->lora, o->train.fp8);
    if (wrong) return wrong;
    if (lora_options_given(&o->lora) && o->from.config)
        return o->lora.rank ? "--lora-rank: expected --model, which gives the base"
                            : "--virtual-tokens: expected --model, which gives the base";
    if (o->from.base && (o->from.config || lora_options_given(&o->lora)))
        return "--base: expected --model, an adapter that is trained further";
    if (o->train.no_save && o->output) return "--no-save saves nothing: expected no --output";
    if (o->resume && o->train.overwrite)
        return "--resume goes on with the run that is there, --overwrite replaces it: expected one "
               "of them";
    if (!o->output && o->resume)
        return "--resume needs --output, the folder of the run to go on with";
    if (!o->output && o->save_every) return "--save-every needs --output, the folder to save to";
    return NULL;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Whether a run has begun there that can be gone on with, or has ended. */
static bool holds_run(const char *folder)
{
    char path[OUTPUT_PATH + 16];
    if (mc_checkpoint_exists(folder)) return true;
    snprintf(path, sizeof path, "%s/finetune.json", folder);
    return access(path, F_OK) == 0;
}

static bool open_folder(train_run *run)
{
    const train_run_options *o = &run->o;
    const char *given = o->output, *name = o->from.model ? o->from.model : o->from.config;
    run->own = !given;
    if (given) {
        if (strlen(given) >= sizeof run->folder)
            mc_set_error(run->ctx, MC_ERR_ARGUMENT, "--output %.100s...: the path is too long",
                         given);
        else
            snprintf(run->folder, sizeof run->folder, "%s", given);
        return output_open_folder(&run->out, &run->log, "--output", given,
                                  o->resume && holds_run(given));
    }
    if (!output_make_run_folder(&run->out, name ? name : o->from.family, run->folder)) return false;
    return o->train.dry_run ||
           output_open_folder(&run->out, &run->log, "--output", run->folder, true);
}

bool train_run_open_output(train_run *run)
{
    train_run_options *o = &run->o;
    train_options *t = &o->train;
    inputs *in = &run->out.inputs;
    output_init(&run->out, run->ctx, t->overwrite);
    run->out.resume = o->resume;
    run->out.look = t->dry_run;
    inputs_add_model_options(in, run->ctx, &o->from);
    inputs_add_model(in, run->ctx, "--tokenizer", o->tokenizer, NULL);
    inputs_add_list(in, "--data", run->data);
    inputs_add_list(in, "--val", run->val);
    if (!output_check_logs(&run->out, t->log_jsonl, t->log_csv, t->tensorboard)) return false;
    if (!t->no_save && !open_folder(run)) return false;
    if (t->no_save || t->dry_run)
        run_log_line(&run->log, "nothing will be saved%s", t->dry_run ? "" : " (--no-save)");
    else if (run->own)
        run_log_line(&run->log, "the final weights will be saved to %s (see --output, --no-save)",
                     run->folder);
    o->output = *run->folder ? run->folder : NULL;
    if (t->dry_run) /* what it would write has been checked */
        o->output = t->log_jsonl = t->log_csv = t->tensorboard = NULL;
    return true;
}

/* ---- the room -------------------------------------------------------------------------------- */

/* Bytes of what lies beside the weights: configs and block sizes; a tensor's entry in a head; a
 * token of a tokenizer (GPT-2's files have 48 bytes a token, T5's 70). */
enum { BESIDE = 64 << 10, NAMED = 160, TOKEN = 80 };

/* Bytes of a model's folder, of an adapter its own, and of an optimizer's state: two moments, and
 * masters of what is narrower than f32. */
static void count_bytes(mc_model *model, double *weights, double *state)
{
    mc_parameter_iterator at = {0};
    bool adapter = mc_model_lora(model) || mc_model_soft_prompt(model);
    *weights = BESIDE + TOKEN * (double)mc_model_get_shape(model).vocab_size;
    *state = 0;
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_model_module(model), &at));) {
        double count = (double)mc_shape_count(mc_parameter_shape(p));
        bool trains = mc_parameter_trainable(p), narrow = mc_parameter_dtype(p) != MC_F32;
        if (trains || !adapter)
            *weights += NAMED + count * (double)mc_dtype_size(mc_parameter_dtype(p));
        if (trains) *state += count * (narrow ? 12 : 8);
    }
}

/* How many checkpoints the folder is going to hold besides those that are there. */
static int64_t checkpoints_to_come(const train_run *run)
{
    const train_run_options *o = &run->o;
    if (run->only_model) return 0;
    if (run->resumed) return 1; /* an older one goes for each that comes */
    int64_t saves = o->save_every ? (run->steps + o->save_every - 1) / o->save_every : 1;
    int64_t most = o->keep + 2 + run->keeps_best;
    return saves < most ? saves : most;
}

bool train_run_check_room(train_run *run)
{
    double weights, state;
    int64_t saved = checkpoints_to_come(run);
    if (!*run->folder || mc_failed(run->ctx)) return !mc_failed(run->ctx);
    count_bytes(run->work.model, &weights, &state);
    return output_check_room(&run->out, run->folder,
                             saved > 0 ? (double)saved * (weights + state) : weights);
}

mc_status train_run_write_options(const train_run *run, const char *folder)
{
    const char *options = run->o.train.run_file;
    char path[OUTPUT_PATH];
    if (!options || mc_failed(run->ctx)) return mc_error_status(run->ctx);
    snprintf(path, sizeof path, "%.4000s/" RUN_FILE_NAME, folder);
    return whole_file_write(run->ctx, path, options);
}
