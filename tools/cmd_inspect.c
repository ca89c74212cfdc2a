/* `modelcenter inspect`: a table of statistics of a model's parameters, and of its activations and
 * gradients on a text. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/ranks.h"
#include "tools/run_log.h"
#include "tools/text.h"
#include "tools/train_options.h"

typedef enum family { FAMILY_AUTO, FAMILY_BERT, FAMILY_GPT2 } family;
static const char *const family_names[] = {"auto", "bert", "gpt2", NULL};

typedef struct inspect_options {
    int family, device;
    const char *model, *pattern, *text;
    bool json;
    ranks_options ranks;
} inspect_options;

/* The model, of which one is there. */
typedef struct inspected {
    mc_bert *bert;
    mc_gpt2 *gpt2;
} inspected;

/* ---- which family ---------------------------------------------------------------------------- */

/* The contents of a file, NULL if it cannot be read. */
static char *read_file(const char *path)
{
    enum { MOST = 1 << 20 }; /* config.json has some kilobytes */
    FILE *file = fopen(path, "re");
    char *data = file ? malloc(MOST) : NULL;
    if (data) data[fread(data, 1, MOST - 1, file)] = '\0';
    if (file) fclose(file);
    return data;
}

static family family_of(const char *name)
{
    for (int i = FAMILY_BERT; name && family_names[i]; i++)
        if (strcmp(name, family_names[i]) == 0) return (family)i;
    return FAMILY_AUTO;
}

/* What the folder's config.json says; for identifiers, what their name says. AUTO: neither does. */
static family find_family(const char *model)
{
    char path[4096];
    text t = text_into(path, sizeof path);
    text_add(&t, "%s/config.json", model);
    char *data = t.cut ? NULL : read_file(path);
    cJSON *json = data ? cJSON_Parse(data) : NULL;
    family found =
        family_of(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "model_type")));
    if (!data) found = strstr(model, "bert") ? FAMILY_BERT : found;
    if (!data) found = strstr(model, "gpt2") ? FAMILY_GPT2 : found;
    cJSON_Delete(json);
    free(data);
    return found;
}

/* ---- running it on a text -------------------------------------------------------------------- */

/* The text is the first rank's: the others run a batch of no rows. */
static int64_t rows_here(const mc_context *ctx) { return mc_rank(ctx) == 0; }

/* Forward and backward of the language model's loss: each token from those before it. */
static void run_gpt2(mc_context *ctx, mc_gpt2 *gpt2, const int32_t *ids, int64_t count)
{
    mc_shape shape = MC_SHAPE(rows_here(ctx), count - 1);
    mc_gpt2_set_dropout(gpt2, 0);
    mc_module_zero_grad(mc_gpt2_module(gpt2));
    mc_tape *t = mc_tape_begin(ctx);
    mc_gpt2_input in = {.ids = mc_tape_input(t, MC_I32, shape, ids, false)};
    mc_tensor *hidden = mc_gpt2_forward(t, gpt2, &in).last_hidden;
    hidden = mc_record(t, hidden, "last_hidden");
    mc_tensor *next = mc_tape_input(t, MC_I32, shape, ids + 1, false);
    mc_tape_backward(t, mc_gpt2_loss(t, gpt2, hidden, next), NULL);
    mc_tape_end(t);
}

static void run_bert(mc_context *ctx, mc_bert *bert, const int32_t *ids, int64_t count)
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_bert_input in = {.ids =
                            mc_tape_input(t, MC_I32, MC_SHAPE(rows_here(ctx), count), ids, false)};
    mc_bert_output out = mc_bert_forward(t, bert, &in);
    mc_record(t, out.last_hidden, "last_hidden");
    if (out.pooled) mc_record(t, out.pooled, "pooled");
    mc_tape_end(t);
}

/* The table of activations; NULL after an error, which is on the context or was printed. */
static mc_inspection *run_text(const inspect_options *o, mc_context *ctx, const inspected *m)
{
    mc_tokenizer *tokenizer = mc_tokenizer_from_pretrained(ctx, o->model);
    mc_encoding e = {0};
    if (mc_failed(ctx)) return NULL;
    mc_status status = mc_tokenizer_encode(tokenizer, o->text, strlen(o->text), NULL, 0, 0, &e);
    size_t least = m->gpt2 ? 2 : 1;
    int64_t vocabulary =
        m->gpt2 ? mc_gpt2_get_config(m->gpt2).vocab_size : mc_bert_get_config(m->bert).vocab_size;
    mc_inspection *table = NULL;
    if (status != MC_OK) {
        fprintf(stderr, "error: --text: %s\n", mc_status_text(status));
    } else if (e.count < least) {
        fprintf(stderr, "error: --text: %zu tokens, expected %zu or more\n", e.count, least);
    } else if (mc_tokenizer_check_ids(tokenizer, e.ids, e.count, vocabulary) == MC_OK &&
               mc_record_begin(ctx) == MC_OK) {
        if (m->gpt2) run_gpt2(ctx, m->gpt2, e.ids, (int64_t)e.count);
        if (m->bert) run_bert(ctx, m->bert, e.ids, (int64_t)e.count);
        table = mc_record_end(ctx);
    }
    mc_encoding_release(&e);
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
    if (row->has_gradient) {
        add_number(&t, "grad_std", row->grad_std);
        add_number(&t, "grad_mean", row->grad_mean);
    }
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

static bool inspect(const inspect_options *o, mc_context *ctx, family kind)
{
    mc_load_options load = {.saved_dtype = true};
    inspected m = {0};
    if (kind == FAMILY_BERT) m.bert = mc_bert_from_pretrained(ctx, o->model, &load);
    if (kind == FAMILY_GPT2) m.gpt2 = mc_gpt2_from_pretrained(ctx, o->model, &load);
    if (mc_failed(ctx)) return false;
    mc_module *module = m.bert ? mc_bert_module(m.bert) : mc_gpt2_module(m.gpt2);
    mc_inspection *activations = o->text ? run_text(o, ctx, &m) : NULL;
    if (o->text && !activations) return false;
    if (!show(o, ctx, "parameter", mc_inspect(module, o->pattern))) return false;
    if (!activations) return true;
    if (!o->json) mc_print_rank(ctx, 0, "\n");
    return show(o, ctx, "activation", activations);
}

static int run(const inspect_options *o)
{
    run_log log = {0};
    family kind = o->family ? (family)o->family : find_family(o->model);
    if (kind == FAMILY_AUTO) {
        fprintf(
            stderr,
            "error: %s: neither its config.json (\"model_type\") nor its name tells its family: "
            "say --family bert or gpt2\n",
            o->model);
        return EXIT_RUN_FAILED;
    }
    mc_context *ctx = ranks_start(&o->ranks, 0, train_device_names[o->device], &log);
    bool good = !mc_failed(ctx) && inspect(o, ctx, kind);
    if (mc_failed(ctx)) good = false;
    ranks_print_error(ctx, false);
    return ranks_leave(ctx, good ? EXIT_OK : EXIT_RUN_FAILED);
}

static const char details[] =
    "Prints a line a parameter: name, shape, largest and smallest value, standard deviation and\n"
    "mean. With --text the model runs on the text: a second table shows the results of its "
    "blocks,\n"
    "and for gpt2 the columns grad_std and grad_mean hold the gradients of the loss, the mean "
    "over\n"
    "the text's tokens. With --json every line is an object.\n\n"
    "  modelcenter inspect bert-base-uncased --pattern '*.layernorm*'\n"
    "  modelcenter inspect gpt2 --text 'Once upon a time' --json\n"
    "  mpirun -np 4 modelcenter inspect gpt2-xl\n";

int cmd_inspect(int argc, char **argv)
{
    inspect_options o = {.ranks = RANKS_DEFAULTS};
    args_table table = {.count = 0};
    const args_option options[] = {
        {ARGS_PATH("model", &o.model, "folder or identifier of the model"), .required = true,
         .positional = true},
        {ARGS_TEXT("pattern", &o.pattern, "which parameters: a pattern with * and ?"),
         .default_text = "all"},
        {ARGS_TEXT("text", &o.text, "a text to run the model on"), .default_text = ""},
        {ARGS_FLAG("json", &o.json, "print JSON Lines")},
        {ARGS_CHOICE("family", &o.family, family_names,
                     "the model's family; auto asks its config.json")},
        {ARGS_CHOICE("device", &o.device, train_device_names, "where to run")},
        {0},
    };
    args_table_add(&table, options);
    ranks_add_rows(&table, &o.ranks);
    const args_spec spec = {.command = "inspect",
                            .summary = "Shows statistics of a model's parameters.",
                            .details = details,
                            .options = table.rows};
    int code;
    if (!args_parse(&spec, argc, argv, &code)) return code;
    return run(&o);
}
