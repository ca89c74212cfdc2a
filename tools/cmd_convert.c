/* `modelcenter convert`: a model's folder in another form, dtype or number of files. */
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/model_options.h"
#include "tools/files/output.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"
#include "tools/options/train_options.h"

typedef struct convert_options {
    model_options from;
    const char *output;
    int to, dtype;
    bool merge, overwrite;
    int64_t max_shard_size;
    ranks_options ranks;
} convert_options;

static const char *const form_names[] = {"hf", "modelcenter", NULL};
static const mc_save_form forms[] = {MC_SAVE_HUGGING_FACE, MC_SAVE_MODELCENTER};

static int run(const convert_options *o)
{
    run_log log = {0};
    mc_context *ctx = ranks_start(&o->ranks, 0, "cpu", &log);
    mc_convert_options options = {.save = {.max_shard_size = o->max_shard_size},
                                  .merge = o->merge,
                                  .family = o->from.family,
                                  .revision = o->from.revision,
                                  .base = o->from.base};
    if (o->to != TRAIN_UNSET) options.save.form = forms[o->to];
    if (o->dtype != TRAIN_UNSET) options.dtype = train_dtypes[o->dtype];
    output out;
    output_init(&out, ctx, o->overwrite);
    inputs_add_model_options(&out.inputs, ctx, &o->from);
    bool good = output_open_folder(&out, &log, "--output", o->output, false) &&
                mc_model_convert(ctx, o->from.model, o->output, &options) == MC_OK;
    ranks_print_error(ctx, false);
    return output_leave(&out, ctx, good ? EXIT_OK : EXIT_RUN_FAILED);
}

static const char details[] =
    "The model may be of any form that loads. In Hugging Face's form `transformers` loads the "
    "folder;\n"
    "CPM has no such form. ModelCenter's has its keys in config.json and its names of tensors, in\n"
    "pytorch_model.pt; T5's values are divided as ModelCenter's are. What a form cannot express\n"
    "is an error. The tokenizer's files are copied.\n\n"
    "  modelcenter convert --model ./modelcenter-t5 --output t5 --to hf\n"
    "  modelcenter convert --model gpt2-xl --output out --to modelcenter --dtype f16\n"
    "  modelcenter convert --model EleutherAI/gpt-j-6b --output out --to hf --dtype bf16 \\\n"
    "      --max-shard-size 5GB\n"
    "  modelcenter convert --model my-adapter --output merged --merge\n";

int cmd_convert(int argc, char **argv)
{
    convert_options o = {.dtype = TRAIN_UNSET, .to = TRAIN_UNSET, .ranks = RANKS_DEFAULTS};
    args_table table = {.count = 0};
    const int ways = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_MODEL;
    model_add_rows(&table, &o.from, ways, "folder or identifier of the model");
    const args_option options[] = {
        {ARGS_PATH("output", &o.output, "--output FOLDER"), .positional = true, .old = true},
        {ARGS_PATH("output", &o.output, "the folder to write")},
        {ARGS_CHOICE("to", &o.to, form_names, "the form to write"),
         .default_text = "none; with --merge the base's usual one"},
        OUTPUT_OVERWRITE_ROW(&o.overwrite),
        {ARGS_FLAG("merge", &o.merge, "write an adapter and its base as one model")},
        {ARGS_CHOICE("dtype", &o.dtype, train_dtype_names, "of the weights"),
         .default_text = "that of the files", .known_as = "torch-dtype"},
        {ARGS_BYTES("max-shard-size", &o.max_shard_size,
                    "write the weights to several files of at most this size"),
         .default_text = "one file"},
        {0},
    };
    args_table_add(&table, options);
    ranks_add_rows(&table, &o.ranks);
    const args_spec spec = {.command = "convert",
                            .summary = "Writes a model in another form.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &o.from, ways, false);
    if (code != EXIT_OK) return code;
    if (!o.output) return args_error(&spec, "required and missing: --output");
    if (o.to == TRAIN_UNSET && !o.merge) return args_error(&spec, "expected --to or --merge");
    return run(&o);
}
