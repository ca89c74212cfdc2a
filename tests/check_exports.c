/* The library's side of check_exports.py, which compares with `transformers`, and of
 * check_adapters.py, which compares with `peft`:
 *
 *     check_exports make FAMILY CONFIG HEADS FOLDER SHARD_BYTES
 *         saves a model of random parameters. CONFIG is a config.json; HEADS words of "lm", "nsp",
 *         "pooler", "replaced" and "labels=N" with commas between; SHARD_BYTES 0 for one file.
 *     check_exports convert FOLDER OUT hf|modelcenter
 *         writes a model in a form, with mc_model_convert.
 *     check_exports adapt FOLDER OUT RANK PATTERN [MODULES]
 *         saves an adapter of a model, all of whose values are random; PATTERN "-": by default;
 *         MODULES, with commas between, are saved whole, in place of the head of a classifier.
 *     check_exports prompt FOLDER OUT TOKENS
 *         saves virtual tokens of a model, all of whose values are random.
 *     check_exports merge FOLDER OUT
 *         writes base and adapter as one model, with mc_model_convert.
 *     check_exports run FOLDER INPUT OUTPUT
 *         loads a model and writes what it gives for a batch. INPUT is a safetensors file with
 *         "ids" and "lengths", and "decoder_ids" and "decoder_lengths" for encoder-decoders; or
 *         "pixels" for models of images.
 *         OUTPUT gets "logits" (sequences, longest, vocabulary), "classes" (sequences, labels),
 *         "nsp" (sequences, 2) and "hidden" (sequences, longest, dim), those that the model has,
 *         all f32 and 0 where there is no token.
 *     check_exports generate FOLDER INPUT OUTPUT TOKENS
 *         the most probable next tokens of each sequence, up to TOKENS of them and the end token:
 *         OUTPUT gets "tokens" (sequences, TOKENS), f32, -1 if there is none.
 *
 * Exit 0, or 1 with an error. */
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "core/tensor/tensor_internal.h"

enum { FAILED = 1, MOST_OUTPUTS = 4, MOST_MODULES = 8 };

static int fail(const char *what)
{
    fprintf(stderr, "error: %s\n", what);
    return FAILED;
}

/* ---- make ------------------------------------------------------------------------------------ */

static mc_model_heads heads_of(const char *words)
{
    const char *labels = strstr(words, "labels=");
    return (mc_model_heads){.lm = strstr(words, "lm"),
                            .nsp = strstr(words, "nsp"),
                            .pooler = strstr(words, "pooler"),
                            .replaced = strstr(words, "replaced"),
                            .labels = labels ? (int)strtol(labels + 7, NULL, 10) : 0};
}

/* Uniform in -0.3 to 0.3: enough that a parameter in the wrong place shows. */
static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return 0.6f * ((float)(*state >> 40) / 16777216.0f - 0.5f);
}

/* Initial values and noise, so that no bias is 0 and no norm's weight 1, in what is trained. */
static void disturb(mc_module *m)
{
    uint64_t state = 1;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it));) {
        if (!mc_parameter_trainable(p)) continue;
        int64_t count = mc_shape_count(mc_parameter_shape(p));
        float *values = malloc((size_t)count * sizeof *values);
        if (values && mc_parameter_read(p, values) == MC_OK) {
            for (int64_t i = 0; i < count; i++) values[i] += noise(&state);
            mc_parameter_write(p, values);
        }
        free(values);
    }
}

static int make(mc_context *ctx, char **argv)
{
    mc_model_heads heads = heads_of(argv[2]);
    mc_model *m = mc_model_new(ctx, argv[0], argv[1], &heads, NULL);
    if (!m) return FAILED;
    disturb(mc_model_module(m));
    mc_save_options save = {.max_shard_size = strtoll(argv[4], NULL, 10)};
    return mc_model_save_as(m, argv[3], &save) == MC_OK ? 0 : FAILED;
}

static int adapt(mc_context *ctx, char **argv)
{
    const char *modules[MOST_MODULES + 1] = {NULL};
    bool given = strcmp(argv[3], "-") != 0;
    int count = 0;
    for (char *name = argv[4] ? strtok(argv[4], ",") : NULL; name && count < MOST_MODULES;
         name = strtok(NULL, ","))
        modules[count++] = name;
    mc_lora_options lora = {.rank = (int)strtol(argv[2], NULL, 10),
                            .target_pattern = given ? argv[3] : NULL,
                            .modules_to_save = count ? modules : NULL};
    mc_load_options load = {.lora = &lora, .saved_heads = true};
    mc_model *m = mc_model_from_pretrained(ctx, argv[0], &load);
    if (!m) return FAILED;
    disturb(mc_model_module(m));
    return mc_model_save(m, argv[1]) == MC_OK ? 0 : FAILED;
}

static int prompt(mc_context *ctx, char **argv)
{
    mc_soft_prompt_options prompt = {.tokens = (int)strtol(argv[2], NULL, 10)};
    mc_load_options load = {.soft_prompt = &prompt, .saved_heads = true};
    mc_model *m = mc_model_from_pretrained(ctx, argv[0], &load);
    if (!m) return FAILED;
    disturb(mc_model_module(m));
    return mc_model_save(m, argv[1]) == MC_OK ? 0 : FAILED;
}

static int merge(mc_context *ctx, char **argv)
{
    mc_convert_options o = {.merge = true};
    return mc_model_convert(ctx, argv[0], argv[1], &o) == MC_OK ? 0 : FAILED;
}

static int convert(mc_context *ctx, char **argv)
{
    bool hf = strcmp(argv[2], "hf") == 0;
    mc_convert_options o = {.save = {.form = hf ? MC_SAVE_HUGGING_FACE : MC_SAVE_MODELCENTER}};
    return mc_model_convert(ctx, argv[0], argv[1], &o) == MC_OK ? 0 : FAILED;
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Tokens of a batch and their lengths. */
static mc_tensor *read_ids(mc_tape *t, mc_tensor_file *file, const char *ids_name,
                           const char *lengths_name, const mc_lengths **lengths)
{
    const mc_tensor_entry *ids = mc_tensor_file_find(file, ids_name);
    const mc_tensor_entry *given = mc_tensor_file_find(file, lengths_name);
    if (!ids || !given || ids->ndim != 2 || ids->shape[0] != given->count) return NULL;
    float *values = malloc((size_t)(ids->count + given->count + 1) * sizeof *values);
    int32_t *numbers = malloc((size_t)(ids->count + given->count + 1) * sizeof *numbers);
    mc_tensor *x = NULL;
    if (values && numbers && mc_tensor_file_read_f32(file, ids, 0, ids->count, values) == MC_OK &&
        mc_tensor_file_read_f32(file, given, 0, given->count, values + ids->count) == MC_OK) {
        for (int64_t i = 0; i < ids->count + given->count; i++) numbers[i] = (int32_t)values[i];
        *lengths = mc_tape_lengths(t, numbers + ids->count, (int)given->count, 1);
        x = mc_tape_input(t, MC_I32, MC_SHAPE(ids->shape[0], ids->shape[1]), numbers, false);
    }
    free(values);
    free(numbers);
    return x;
}

/* (images, channels, rows, columns); NULL: the input has no images. */
static mc_tensor *read_pixels(mc_tape *t, mc_tensor_file *file)
{
    const mc_tensor_entry *e = mc_tensor_file_find(file, "pixels");
    float *values = e && e->ndim == 4 ? malloc(((size_t)e->count + 1) * sizeof *values) : NULL;
    mc_tensor *x = NULL;
    if (values && mc_tensor_file_read_f32(file, e, 0, e->count, values) == MC_OK)
        x = mc_tape_input(t, MC_F32, MC_SHAPE(e->shape[0], e->shape[1], e->shape[2], e->shape[3]),
                          values, false);
    free(values);
    return x;
}

typedef struct outputs {
    mc_tensor *tensor[MOST_OUTPUTS];
    mc_safetensors_spec spec[MOST_OUTPUTS];
    size_t count;
} outputs;

/* Adds a tensor; rows of tokens become (sequences, longest, width). */
static void add(mc_tape *t, outputs *o, const char *name, mc_tensor *x, const mc_lengths *lengths)
{
    if (!x) return;
    if (lengths) {
        x->lengths = lengths;
        x = mc_unpack(t, x);
        if (!x) return;
    }
    o->tensor[o->count] = x;
    o->spec[o->count++] =
        (mc_safetensors_spec){.name = name, .ndim = x->shape.ndim, .shape = x->shape.dim};
}

static void write_outputs(mc_context *ctx, const outputs *o, const char *path)
{
    mc_safetensors_writer *w = mc_safetensors_writer_new(ctx, path, o->spec, o->count, NULL, 0);
    for (size_t i = 0; i < o->count; i++) {
        int64_t count = mc_tensor_count(o->tensor[i]);
        float *values = malloc((size_t)count * sizeof *values);
        if (values) mc_tensor_read_f32(ctx, o->tensor[i], values, count);
        if (values && !mc_failed(ctx))
            mc_safetensors_write(w, values, (size_t)count * sizeof *values);
        free(values);
    }
    mc_safetensors_writer_commit(w);
    mc_safetensors_writer_free(w);
}

static int run(mc_context *ctx, char **argv)
{
    mc_model *m = mc_model_from_pretrained(ctx, argv[0], NULL);
    mc_tensor_file *file = mc_tensor_file_open(ctx, argv[1], NULL);
    if (!m || !file) return FAILED;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = {0};
    in.pixels = read_pixels(t, file);
    if (!in.pixels) in.ids = read_ids(t, file, "ids", "lengths", &in.lengths);
    if (mc_model_get_shape(m).kind == MC_MODEL_ENCODER_DECODER)
        in.decoder_ids = read_ids(t, file, "decoder_ids", "decoder_lengths", &in.decoder_lengths);
    if (!in.ids && !in.pixels)
        return fail("the input lacks ids (batch, length) and lengths (batch)");
    mc_model_output out = mc_model_forward(t, m, &in);
    mc_model_heads heads = mc_model_get_heads(m);
    const mc_lengths *lengths = out.last_hidden ? out.last_hidden->lengths : NULL;
    outputs o = {.count = 0};
    add(t, &o, "hidden", out.last_hidden, lengths);
    if (in.pixels) add(t, &o, "pooled", out.pooled, NULL);
    if (heads.lm || heads.replaced)
        add(t, &o, "logits", mc_model_logits(t, m, out.last_hidden), lengths);
    if (heads.labels) add(t, &o, "classes", mc_model_classify(t, m, &out), NULL);
    if (heads.nsp) add(t, &o, "nsp", mc_model_nsp_logits(t, m, out.pooled), NULL);
    write_outputs(ctx, &o, argv[2]);
    return mc_failed(ctx) ? FAILED : 0;
}

/* ---- generate -------------------------------------------------------------------------------- */

/* (sequences, most) of the answers to rows of ids. */
static mc_tensor *answers(mc_tape *t, mc_model *m, mc_tensor *ids, const mc_lengths *lengths,
                          int most)
{
    int width = (int)ids->shape.dim[1];
    const int32_t *rows[64], *data = mc_tensor_data(ids);
    float values[64 * 64];
    if (lengths->count > 64 || most > 64) return NULL;
    for (int i = 0; i < lengths->count; i++) rows[i] = data + (size_t)i * (size_t)width;
    mc_generation *out = mc_model_generate(m, rows, lengths->length, lengths->count,
                                           &(mc_generate_options){.max_new_tokens = most});
    for (int i = 0; out && i < lengths->count * most; i++)
        values[i] = i % most < out->lengths[i / most] ? (float)out->ids[i / most][i % most] : -1;
    mc_tensor *x =
        out ? mc_tape_input(t, MC_F32, MC_SHAPE(lengths->count, most), values, false) : NULL;
    mc_generation_free(out);
    return x;
}

static int generate(mc_context *ctx, char **argv)
{
    mc_model *m = mc_model_from_pretrained(ctx, argv[0], NULL);
    mc_tensor_file *file = mc_tensor_file_open(ctx, argv[1], NULL);
    if (!m || !file) return FAILED;
    mc_tape *t = mc_tape_begin_eval(ctx);
    const mc_lengths *lengths = NULL;
    mc_tensor *ids = read_ids(t, file, "ids", "lengths", &lengths);
    outputs o = {.count = 0};
    if (ids)
        add(t, &o, "tokens", answers(t, m, ids, lengths, (int)strtol(argv[3], NULL, 10)), NULL);
    if (!o.count) return FAILED;
    write_outputs(ctx, &o, argv[2]);
    return mc_failed(ctx) ? FAILED : 0;
}

static void print_line(void *user, mc_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "%s%s\n", level == MC_LOG_WARNING ? "warning: " : "", line);
}

int main(int argc, char **argv)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.log = print_line});
    int code = FAILED;
    if (argc == 7 && strcmp(argv[1], "make") == 0)
        code = make(ctx, argv + 2);
    else if (argc == 5 && strcmp(argv[1], "convert") == 0)
        code = convert(ctx, argv + 2);
    else if (argc == 5 && strcmp(argv[1], "run") == 0)
        code = run(ctx, argv + 2);
    else if ((argc == 6 || argc == 7) && strcmp(argv[1], "adapt") == 0)
        code = adapt(ctx, argv + 2);
    else if (argc == 5 && strcmp(argv[1], "prompt") == 0)
        code = prompt(ctx, argv + 2);
    else if (argc == 6 && strcmp(argv[1], "generate") == 0)
        code = generate(ctx, argv + 2);
    else if (argc == 4 && strcmp(argv[1], "merge") == 0)
        code = merge(ctx, argv + 2);
    else
        fail("expected: make FAMILY CONFIG HEADS FOLDER SHARD_BYTES, convert FOLDER OUT FORM, "
             "adapt FOLDER OUT RANK PATTERN [MODULES], prompt FOLDER OUT TOKENS, merge FOLDER OUT, "
             "run FOLDER "
             "INPUT OUTPUT, or generate FOLDER INPUT OUTPUT TOKENS");
    if (mc_failed(ctx)) mc_print_error(ctx, stderr);
    mc_context_free(ctx);
    return code;
}
