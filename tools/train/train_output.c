#include "tools/train/train_output.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tools/options/run_file.h"
#include "tools/files/whole_file.h"

void train_output_add_rows(args_table *table, train_options *o)
{
    args_table_add(table,
                   (args_option[]){
                       OUTPUT_OVERWRITE_ROW(&o->overwrite),
                       {ARGS_FLAG("no-save", &o->no_save, "save no model, as speed is measured")},
                       {0},
                   });
}

const char *train_output_check(const train_options *o, const char *given, bool resume,
                               int64_t save_every)
{
    if (o->no_save && given) return "--no-save saves nothing: expected no --output";
    if (resume && o->overwrite)
        return "--resume goes on with the run that is there, --overwrite replaces it: expected one "
               "of them";
    if (!given && resume) return "--resume needs --output, the folder of the run to go on with";
    if (!given && save_every) return "--save-every needs --output, the folder to save to";
    return NULL;
}

/* Whether a run has begun there that can be gone on with, or has ended. */
static bool holds_run(const char *folder)
{
    char path[OUTPUT_PATH + 16];
    if (mc_checkpoint_exists(folder)) return true;
    snprintf(path, sizeof path, "%s/finetune.json", folder);
    return access(path, F_OK) == 0;
}

static bool open_folder(train_output *t, run_log *log, const char *given, const char *name,
                        bool resume)
{
    t->own = !given;
    if (given) {
        if (strlen(given) >= sizeof t->folder)
            mc_set_error(t->out.ctx, MC_ERR_ARGUMENT, "--output %.100s...: the path is too long",
                         given);
        else
            snprintf(t->folder, sizeof t->folder, "%s", given);
        return output_open_folder(&t->out, log, "--output", given, resume && holds_run(given));
    }
    if (!output_make_run_folder(&t->out, name, t->folder) || t->out.look)
        return !mc_failed(t->out.ctx);
    return output_open_folder(&t->out, log, "--output", t->folder, true);
}

bool train_output_open(train_output *t, run_log *log, const train_options *o, const char *given,
                       const char *name, bool resume)
{
    t->folder[0] = '\0';
    t->out.resume = resume;
    t->out.look = o->dry_run;
    if (!output_check_logs(&t->out, o->log_jsonl, o->log_csv, o->tensorboard)) return false;
    if (!o->no_save && !open_folder(t, log, given, name, resume)) return false;
    if (o->no_save || o->dry_run)
        run_log_line(log, "nothing will be saved%s", o->dry_run ? "" : " (--no-save)");
    else if (!given)
        run_log_line(log, "the final weights will be saved to %s (see --output, --no-save)",
                     t->folder);
    return true;
}

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

bool train_output_check_room(train_output *t, mc_model *model, int64_t saved)
{
    double weights, state;
    if (!*t->folder || mc_failed(t->out.ctx)) return !mc_failed(t->out.ctx);
    count_bytes(model, &weights, &state);
    return output_check_room(&t->out, t->folder,
                             saved > 0 ? (double)saved * (weights + state) : weights);
}

mc_status train_output_write_options(mc_context *ctx, const train_options *o, const char *folder)
{
    char path[OUTPUT_PATH];
    if (!o->run_file || mc_failed(ctx)) return mc_error_status(ctx);
    snprintf(path, sizeof path, "%.4000s/" RUN_FILE_NAME, folder);
    return whole_file_write(ctx, path, o->run_file);
}
