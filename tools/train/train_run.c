#include "tools/train/train_run.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include "tools/options/run_file.h"
#include "tools/train/interrupt.h"

bool train_run_refuse(train_run *run, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    run->log.silent = false; /* the trouble may be this rank's alone */
    run_log_line(&run->log, "error: %s", message);
    run->refused = true;
    ranks_refuse(run->ctx, message);
    return false;
}

const char *train_run_source(const train_run *run)
{
    return run->resumed ? mc_checkpoint_folder(run->resumed) : run->o.from.model;
}

static mc_recipe recipe_of(const train_run *run)
{
    mc_recipe recipe = train_recipe(&run->o.train);
    if (recipe.fp8 != MC_FP8_AUTO) return recipe;
    if (!run->fp8_kinds) recipe.fp8 = MC_FP8_NONE;
    if (run->fp8_kinds != TRAIN_RUN_ALL_KINDS) recipe.fp8_kinds = run->fp8_kinds;
    return recipe;
}

bool train_run_choose_fp8(train_run *run, int64_t rows)
{
    mc_fp8_kind kinds[MC_FP8_KINDS];
    char line[TRAIN_FP8_LINE];
    if (run->o.train.fp8 != MC_FP8_AUTO || run->resumed) return !mc_failed(run->ctx);
    int count =
        mc_module_choose_fp8(mc_model_module(run->work.model), rows, run->work.passes, kinds);
    if (count) run->fp8_kinds = 0;
    for (int i = 0; i < count; i++) {
        if (kinds[i].chosen) run->fp8_kinds |= (uint64_t)1 << i;
        run_log_line(&run->log, "%s", train_fp8_line(&run->o.train, &kinds[i], line));
    }
    return !mc_failed(run->ctx);
}

const char *train_run_base(const train_run *run)
{
    const train_run_options *o = &run->o;
    bool named = run->resumed && lora_options_given(&o->lora); /* it may lie elsewhere now */
    return named && !o->from.base ? o->from.model : o->from.base;
}

mc_load_options train_run_load_options(const train_run *run)
{
    const train_run_options *o = &run->o;
    mc_load_options load = {.dtype = train_dtypes[o->train.dtype],
                            .recompute = train_recomputes[o->train.recompute],
                            .recipe = recipe_of(run),
                            .base = train_run_base(run)};
    if (run->resumed) return load; /* the folder has the adapter */
    load.revision = o->from.revision;
    lora_options_load(&o->lora, &load);
    return load;
}

train_work train_run_plan(const train_run *run, int passes)
{
    mc_load_options load = train_run_load_options(run);
    train_work w = {.ctx = mc_plan_context_new(run->ctx), .passes = passes};
    w.model = mc_model_new_like(w.ctx, run->work.model, &load);
    lora_quantize(w.ctx, &run->o.lora, w.model);
    train_work_optimize(&w, &run->o.train, &run->adam, run->steps);
    return w;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static bool check_options(train_run *run)
{
    const train_run_options *o = &run->o;
    char message[256];
    const char *wrong = train_check_pairs(&o->train); /* the dtype is known now */
    if (wrong) return train_run_refuse(run, "%s", wrong);
    if (!train_check_grad_dtype(&o->train, message, sizeof message))
        return train_run_refuse(run, "%s", message);
    return run->resumed || !o->from.config != !o->from.model ||
           train_run_refuse(run, "expected one of --model and --config");
}

static bool open_log(train_run *run)
{
    const train_options *o = &run->o.train;
    run_log_options options = {.steps = run->steps,
                               .steps_per_epoch = run->steps_per_epoch,
                               .resume_step = run->step,
                               .eval_due = run->eval_due && run->evaluates,
                               .jsonl = o->log_jsonl,
                               .csv = o->log_csv,
                               .log_every = o->log_every,
                               .tensorboard = o->tensorboard,
                               .silent = ranks_silent(run->ctx)};
    return run_log_init(&run->log, &options) == MC_OK ||
           train_run_refuse(run, "%s", run->log.message);
}

static void show_fp8(train_run *run)
{
    int linears = mc_module_fp8_linears(mc_model_module(run->work.model));
    const char *scaling = train_fp8_scaling_names[run->o.train.fp8_scaling];
    if (run->o.train.fp8 == MC_FP8_AUTO && !linears)
        run_log_line(&run->log, run->fp8_kinds ? "fp8: " TRAIN_NO_FP8_LAYER
                                                 ": training without 8 bits"
                                               : "fp8: no linear layer is faster in 8 bits");
    if (linears)
        run_log_line(&run->log, "fp8: %d linear layers train in 8 bits, with %s scales", linears,
                     run->o.lora.weights ? "their rows'" : scaling);
}

/* Each part needs those before it; whichever fails has said why, or the context has the error. */
static bool set_up(train_run *run)
{
    const train_kind *kind = run->kind;
    if (mc_failed(run->ctx) || !train_run_open_output(run) || !train_run_find(run)) return false;
    if (run->ended) return true;
    if (!check_options(run)) return false;
    run->work.ctx = run->ctx;
    if (!kind->prepare(run) || !train_run_check_settings(run)) return false;
    show_fp8(run);
    train_work_optimize(&run->work, &run->o.train, &run->adam, run->steps);
    if (kind->make && !kind->make(run)) return false;
    if (!train_run_restore(run)) return false;
    if (kind->look) kind->look(run);
    if (mc_failed(run->ctx) || !train_run_check_room(run)) return false;
    return run->o.train.dry_run || (open_log(run) && train_run_begin(run));
}

/* ---- the end --------------------------------------------------------------------------------- */

static int finish(train_run *run)
{
    bool done = train_run_is_done(run), interrupted = !done && interrupt_requested();
    bool saved = run->o.output && run->saved == run->step, good = true;
    const char *folder = saved && run->own ? run->o.output : NULL;
    if (!mc_failed(run->ctx)) {
        if (interrupted || !(done || run->kind->result_of_part))
            run_log_line(&run->log, "%s at step %" PRId64 "%s%s%s%s",
                         interrupted ? "interrupted" : "stopped", run->step,
                         saved ? "; go on with" : "", folder ? " --output " : "",
                         folder ? folder : "", saved ? " --resume" : "");
        else
            good = run->kind->result(run) == MC_OK;
    }
    if (run_log_release(&run->log) != MC_OK || mc_failed(run->ctx) || !good) return EXIT_RUN_FAILED;
    return interrupted ? EXIT_INTERRUPTED : EXIT_OK;
}

int train_run_command(train_run *run, const args_spec *spec)
{
    train_run_options *o = &run->o;
    int code = EXIT_RUN_FAILED;
    if (!o->train.dry_run) output_outlive_readers();
    o->train.run_file = run_file_text(spec, spec->seen);
    if (o->save_total_limit) o->keep = o->save_total_limit - 1;
    run->loss = -1;
    run->ctx = train_start(&o->train, o->seed, &run->log);
    interrupt_init();
    bool begun = set_up(run);
    if (begun && o->train.dry_run) {
        code = EXIT_OK;
    } else if (begun) {
        if (!run->ended) train_run_train(run);
        code = finish(run);
    }
    ranks_print_error(run->ctx, run->refused);
    if (begun) train_run_report_newest(run);
    interrupt_release();
    run->kind->release(run);
    code = output_leave(&run->out, run->ctx, code);
    run_file_free(o->train.run_file);
    return code;
}
