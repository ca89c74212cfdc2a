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

enum { TO_HF, TO_MODELCENTER, TO_GGUF };
static const char *const form_names[] = {"hf", "modelcenter", "gguf", NULL};
static const mc_save_form forms[] = {MC_SAVE_HUGGING_FACE, MC_SAVE_MODELCENTER};
enum { DTYPE_F16 = 1, DTYPE_Q8 = 3 }; /* the others are train_dtypes */
static const char *const dtype_names[] = {"f32", "f16", "bf16", "q8_0", NULL};

static int run(const convert_options *o)
{
    run_log log = {0};
    mc_context *ctx = ranks_start(&o->ranks, 0, "cpu", &log);
    mc_convert_options options = {.save = {.max_shard_size = o->max_shard_size},
                                  .merge = o->merge,
                                  .family = o->from.family,
                                  .revision = o->from.revision,
                                  .base = o->from.base};
    bool gguf = o->to == TO_GGUF;
    if (gguf)
        options.gguf = dtype_names[o->dtype == TRAIN_UNSET ? DTYPE_F16 : o->dtype];
    else if (o->dtype != TRAIN_UNSET)
        options.dtype = train_dtypes[o->dtype];
    if (!gguf && o->to != TRAIN_UNSET) options.save.form = forms[o->to];
    output out;
    output_init(&out, ctx, o->overwrite);
    inputs_add_model_options(&out.inputs, ctx, &o->from);
    bool good = (gguf ? output_check_file(&out, "--output", o->output)
                      : output_open_folder(&out, &log, "--output", o->output, false)) &&
                mc_model_convert(ctx, o->from.model, o->output, &options) == MC_OK;
    ranks_print_error(ctx, false);
    return output_leave(&out, ctx, good ? EXIT_OK : EXIT_RUN_FAILED);
}

static const char details[] =
    "The model may have any form that can be loaded. A model that the other form cannot express\n"
    "is an error. The tokenizer's files are copied.\n\n"
    "  hf           a folder for `transformers`. CPM has no such form\n"
    "  modelcenter  ModelCenter's keys in config.json, and its names of tensors in\n"
    "               pytorch_model.pt; T5's values are divided as ModelCenter's are\n"
    "  gguf         llama.cpp's form: one file of weights, config and tokenizer, of GPT-2,\n"
    "               BERT and ModernBERT (without heads), T5 and the LLaMA family. Commands\n"
    "               read it as --model. --dtype is the type of the matrices; q8_0 stores 32\n"
    "               numbers of a row in 34 bytes, and rows of another length as f16\n\n"
    "  modelcenter convert --model ./modelcenter-t5 --output t5 --to hf\n"
    "  modelcenter convert --model gpt2-xl --output out --to modelcenter --dtype f16\n"
    "  modelcenter convert --model EleutherAI/gpt-j-6b --output out --to hf --dtype bf16 \\\n"
    "      --max-shard-size 5GB\n"
    "  modelcenter convert --model gpt2 --output gpt2.gguf --to gguf --dtype q8_0\n"
    "  modelcenter convert --model gpt2.gguf --output gpt2 --to hf\n"
    "  modelcenter convert --model my-adapter --output merged --merge\n";

int cmd_convert(int argc, char **argv)
{
    convert_options o = {.dtype = TRAIN_UNSET, .to = TRAIN_UNSET, .ranks = RANKS_DEFAULTS};
    args_table table = {.count = 0};
    const int ways = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_MODEL;
    model_add_rows(&table, &o.from, ways, "folder or identifier of the model");
    ARGS_ADD(
        &table,
        {ARGS_PATH("output", &o.output, "--output FOLDER"), .positional = true, .old = true},
        {ARGS_PATH("output", &o.output, "the folder to write, or with --to gguf the file")},
        {ARGS_CHOICE("to", &o.to, form_names, "the form to write"),
         .default_text = "none; with --merge the base's usual one"},
        OUTPUT_OVERWRITE_ROW(&o.overwrite),
        {ARGS_FLAG("merge", &o.merge, "write an adapter and its base as one model")},
        {ARGS_CHOICE("dtype", &o.dtype, dtype_names, "of the weights; q8_0 with --to gguf alone"),
         .default_text = "that of the files; with --to gguf f16", .known_as = "torch-dtype"},
        {ARGS_BYTES("max-shard-size", &o.max_shard_size,
                    "write the weights to several files of at most this size"),
         .default_text = "one file"});
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
    if (o.dtype == DTYPE_Q8 && o.to != TO_GGUF)
        return args_error(&spec, "--dtype q8_0: expected --to gguf");
    if (o.max_shard_size && o.to == TO_GGUF)
        return args_error(&spec, "--max-shard-size: expected a --to other than gguf, which is one "
                                 "file");
    return run(&o);
}
