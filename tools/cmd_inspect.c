/* `modelcenter inspect`: a table of statistics of a model's parameters, and of its activations and
 * gradients on a text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tools/options/args.h"
#include "tools/commands.h"
#include "tools/options/model_options.h"
#include "tools/ranks.h"
#include "tools/log/run_log.h"
#include "tools/files/text.h"
#include "tools/options/train_options.h"
#include "tools/options/weights_option.h"

typedef struct inspect_options {
    int device, dtype;
    model_options from;
    const char *pattern, *text, *image;
    bool json;
    ranks_options ranks;
} inspect_options;

/* ---- running it on a text -------------------------------------------------------------------- */

/* The text is the first rank's: the others run a batch of no rows. */
static int64_t rows_here(const mc_context *ctx) { return mc_data_rank(ctx) == 0; }

/* Forward and backward of the language model's loss: each token from those before it. */
static void run_decoder(mc_context *ctx, mc_model *model, const int32_t *ids, int64_t count)
{
    mc_shape shape = MC_SHAPE(rows_here(ctx), count - 1);
    mc_model_set_dropout(model, 0);
    mc_module_zero_grad(mc_model_module(model));
    mc_tape *t = mc_tape_begin(ctx);
    mc_model_input in = {.ids = mc_tape_input(t, MC_I32, shape, ids, false)};
    mc_tensor *hidden = mc_model_forward(t, model, &in).last_hidden;
    hidden = mc_record(t, hidden, "last_hidden");
    mc_tensor *next = mc_tape_input(t, MC_I32, shape, ids + 1, false);
    mc_tape_backward(t, mc_model_loss(t, model, hidden, next), NULL);
    mc_tape_end(t);
}

/* Forward: of an encoder-decoder the decoder reads the text too, after its start token. */
static void run_forward(mc_context *ctx, mc_model *model, const int32_t *ids, int64_t count)
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {.ids =
                             mc_tape_input(t, MC_I32, MC_SHAPE(rows_here(ctx), count), ids, false)};
    if (mc_model_get_shape(model).kind == MC_MODEL_ENCODER_DECODER)
        in.decoder_ids = mc_model_shift_right(t, model, in.ids, NULL);
    mc_model_output out = mc_model_forward(t, model, &in);
    mc_record(t, out.last_hidden, "last_hidden");
    if (out.encoder_last_hidden) mc_record(t, out.encoder_last_hidden, "encoder_last_hidden");
    if (out.pooled) mc_record(t, out.pooled, "pooled");
    mc_tape_end(t);
}

/* The table of activations; NULL after an error, which is on the context or was printed. */
static mc_inspection *run_text(const inspect_options *o, mc_context *ctx, mc_model *model)
{
    mc_tokenizer *tokenizer = mc_tokenizer_open(
        ctx, o->from.model,
        &(mc_tokenizer_options){.revision = o->from.revision, .base = o->from.base});
    mc_encoding e = {0};
    if (mc_failed(ctx)) return NULL;
    mc_status status = mc_tokenizer_encode(tokenizer, o->text, strlen(o->text), NULL, 0, 0, &e);
    mc_model_shape shape = mc_model_get_shape(model);
    bool predicts = shape.kind == MC_MODEL_DECODER && mc_model_get_heads(model).lm;
    size_t least = predicts ? 2 : 1;
    mc_inspection *table = NULL;
    if (status != MC_OK) {
        fprintf(stderr, "error: --text: %s\n", mc_status_text(status));
    } else if (e.count < least) {
        fprintf(stderr, "error: --text: %zu tokens, expected %zu or more\n", e.count, least);
    } else if (mc_tokenizer_check_ids(tokenizer, e.ids, e.count, shape.vocab_size) == MC_OK &&
               mc_record_begin(ctx) == MC_OK) {
        (predicts ? run_decoder : run_forward)(ctx, model, e.ids, (int64_t)e.count);
        table = mc_record_end(ctx);
    }
    mc_encoding_release(&e);
    return table;
}

/* The same of an image, in the form that the model reads. */
static mc_inspection *run_image(const inspect_options *o, mc_context *ctx, mc_model *model)
{
    mc_image_form form = mc_model_image_form(model);
    int64_t size = form.size;
    mc_shape shape = MC_SHAPE(rows_here(ctx), MC_IMAGE_CHANNELS, size, size);
    float *pixels =
        size ? malloc(MC_IMAGE_CHANNELS * (size_t)(size * size) * sizeof *pixels) : NULL;
    mc_inspection *table = NULL;
    if (!size)
        mc_set_error(ctx, MC_ERR_UNSUPPORTED, "--image: a %s reads texts, expected --text",
                     mc_model_family(model));
    else if (!pixels)
        mc_set_error(ctx, MC_ERR_NOMEM, "out of memory for an image");
    else if (mc_image_read(ctx, o->image, &form, pixels) == MC_OK &&
             mc_record_begin(ctx) == MC_OK) {
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = {.pixels = mc_tape_input(t, MC_F32, shape, pixels, false)};
        mc_record(t, mc_model_forward(t, model, &in).last_hidden, "last_hidden");
        mc_tape_end(t);
        table = mc_record_end(ctx);
    }
    free(pixels);
    return table;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void add_number(text *t, const char *key, double value)
{
    text_add(t, ",\"%s\":", key);
    text_add_json_number(t, value);
}

/* {"kind":"parameter","name":"...","shape":[768,512],"count":393216,"max":...} */
static bool print_json(const char *kind, const mc_inspect_row *row)
{
    char line[8192];
    text t = text_into(line, sizeof line);
    text_add(&t, "{\"kind\":\"%s\",\"name\":", kind);
    text_add_json_string(&t, row->name);
    text_add(&t, ",\"shape\":[");
    for (int i = 0; i < row->shape.ndim; i++)
        text_add(&t, i ? ",%lld" : "%lld", (long long)row->shape.dim[i]);
    text_add(&t, "],\"count\":%lld", (long long)row->count);
    add_number(&t, "max", row->max);
    add_number(&t, "min", row->min);
    add_number(&t, "std", row->std);
    add_number(&t, "mean", row->mean);
    add_number(&t, "grad_std", row->has_gradient ? row->grad_std : NAN);
    add_number(&t, "grad_mean", row->has_gradient ? row->grad_mean : NAN);
    text_add(&t, "}");
    if (!t.cut) puts(line);
    if (t.cut) fprintf(stderr, "error: \"%.60s...\": the name is too long\n", row->name);
    return !t.cut;
}

static bool show(const inspect_options *o, mc_context *ctx, const char *kind,
                 const mc_inspection *table)
{
    bool good = table;
    if (!o->json) return table && mc_print_inspect(ctx, table, stdout) == MC_OK;
    for (int i = 0; good && mc_rank(ctx) == 0 && i < mc_inspection_count(table); i++)
        good = print_json(kind, mc_inspection_row(table, i));
    return good;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool inspect(const inspect_options *o, mc_context *ctx)
{
    mc_load_options load = {.revision = o->from.revision, .base = o->from.base};
    saved_dtype_apply(&load, o->dtype);
    mc_model *model = mc_model_from_pretrained_of(ctx, o->from.family, o->from.model, &load);
    if (mc_failed(ctx)) return false;
    mc_module *module = mc_model_module(model);
    if (o->text && mc_model_image_form(model).size) {
        mc_set_error(ctx, MC_ERR_UNSUPPORTED, "--text: a %s reads images, expected --image",
                     mc_model_family(model));
        return false;
    }
    mc_inspection *activations = o->text    ? run_text(o, ctx, model)
                                 : o->image ? run_image(o, ctx, model)
                                            : NULL;
    if ((o->text || o->image) && !activations) return false;
    if (!show(o, ctx, "parameter", mc_inspect(module, o->pattern))) return false;
    if (!activations) return true;
    if (!o->json) mc_print_rank(ctx, 0, "\n");
    return show(o, ctx, "activation", activations);
}

static int run(const inspect_options *o)
{
    run_log log = {0};
    mc_context *ctx = ranks_start(&o->ranks, 0, train_device_of(o->device).name, &log);
    bool good = !mc_failed(ctx) && inspect(o, ctx);
    if (mc_failed(ctx)) good = false;
    ranks_print_error(ctx, false);
    return ranks_leave(ctx, good ? EXIT_OK : EXIT_RUN_FAILED);
}

static const char details[] =
    "Prints a line a parameter: name, shape, largest and smallest value, standard deviation and\n"
    "mean. With --text the model runs on the text: a second table shows the results of its\n"
    "blocks, and for decoders the columns grad_std and grad_mean hold the gradients of the loss,\n"
    "the mean over the text's tokens. With --json every line is an object.\n\n"
    "  modelcenter inspect --model bert-base-uncased --pattern '*.layernorm*'\n"
    "  modelcenter inspect --model gpt2 --text 'Once upon a time' --json\n"
    "  mpirun -np 4 modelcenter inspect --model gpt2-xl\n";

int cmd_inspect(int argc, char **argv)
{
    inspect_options o = {.ranks = RANKS_DEFAULTS};
    args_table table = {.count = 0};
    const int ways = MODEL_WAY_ADAPTER | MODEL_WAY_OLD_MODEL;
    model_add_rows(&table, &o.from, ways, "folder or identifier of the model");
    ARGS_ADD(
        &table,
        {ARGS_TEXT("pattern", &o.pattern, "which parameters: a pattern with * and ?"),
         .default_text = "all"},
        {ARGS_TEXT("text", &o.text, "a text to run the model on"), .default_text = ""},
        {ARGS_PATH("image", &o.image,
                   "for models of images: a PNG or JPEG file, in place of --text"),
         .default_text = ""},
        {ARGS_FLAG("json", &o.json, "print JSON Lines")},
        {ARGS_CHOICE("device", &o.device, train_device_names, "where to run"), .numbered = true},
        SAVED_DTYPE_ROW(&o.dtype));
    ranks_add_rows(&table, &o.ranks);
    const args_spec spec = {.command = "inspect",
                            .summary = "Shows statistics of a model's parameters.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    code = model_check(&spec, &o.from, ways, false);
    if (code != EXIT_OK) return code;
    if (o.text && o.image) return args_error(&spec, "expected one of --text and --image");
    return run(&o);
}
