/* check_golden FOLDER: runs a model on a folder of config.json, model.safetensors and
 * expected.safetensors (outputs, gradients and five optimizer steps of the reference
 * implementation) and compares everything that is there.
 *
 * Exit 0: all within tolerance. 1: something is not. 2: the folder could not be used, with the
 * loader's message.
 *
 * Errors are absolute errors over the largest absolute value of the expected tensor; for gradients
 * over max(that, 1e-4 times the largest gradient value of the model), since some gradients are zero
 * but for rounding. Losses are relative. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/modelcenter.h"
#include "models/bert/bert_internal.h"

enum { STEPS = 5, OK = 0, OUT_OF_TOLERANCE = 1, UNUSABLE = 2 };

static const double output_tolerance = 1e-5, gradient_tolerance = 1e-4, loss_tolerance = 1e-4;

/* The worst error of one kind. */
typedef struct worst {
    const char *kind;
    double tolerance, error;
    char name[MC_NAME_MAX];
    int compared;
} worst;

typedef struct golden {
    mc_context *ctx;
    mc_safetensors *file;
    mc_bert *bert;
    mc_bert_config config;
    int64_t batch, width;
    int64_t *ids, *types, *mask; /* (batch, width); types may be NULL */
    bool right_padded;           /* the mask is nothing but lengths */
    bool labels_on_padding;
} golden;

static const mc_safetensors_entry *find(const golden *g, const char *prefix, const char *name)
{
    char key[MC_NAME_MAX + 16];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    return mc_safetensors_find(g->file, key);
}

static double *read_entry(const golden *g, const mc_safetensors_entry *entry)
{
    double *values = malloc(((size_t)entry->count + 1) * sizeof *values);
    if (values && mc_safetensors_read_f64(g->file, entry, 0, entry->count, values) == MC_OK)
        return values;
    free(values);
    return NULL;
}

static int64_t *read_integers(golden *g, const char *name, int64_t count)
{
    const mc_safetensors_entry *entry = find(g, "in.", name);
    if (!entry) return NULL;
    if (entry->count != count) {
        fprintf(stderr, "%s: in.%s has %lld elements, expected %lld\n", entry->file, name,
                (long long)entry->count, (long long)count);
        exit(UNUSABLE);
    }
    double *values = read_entry(g, entry);
    int64_t *out = malloc(((size_t)count + 1) * sizeof *out);
    if (!values || !out) {
        mc_print_error(g->ctx, stderr);
        exit(UNUSABLE);
    }
    for (int64_t i = 0; i < count; i++) out[i] = (int64_t)values[i];
    free(values);
    return out;
}

static void note(worst *w, double error, const char *name)
{
    w->compared++;
    if (!(error <= w->error) || w->compared == 1) {
        w->error = error;
        snprintf(w->name, sizeof w->name, "%s", name);
    }
}

/* Largest error of `got` against an expected tensor over the elements where use[i / stride] (NULL:
 * all), divided by max(its largest value, floor). Infinity where counts differ or NaN appears. */
static double compare(const golden *g, const mc_safetensors_entry *entry, const float *got,
                      int64_t count, const int64_t *use, int64_t stride, double floor_value)
{
    if (entry->count != count) return INFINITY;
    double *expected = read_entry(g, entry);
    if (!expected) return INFINITY;
    double largest = floor_value, error = 0;
    for (int64_t i = 0; i < count; i++) {
        double e = fabs((double)got[i] - expected[i]);
        if (fabs(expected[i]) > largest) largest = fabs(expected[i]);
        if (use && !use[i / stride]) continue;
        if (!(e <= error)) error = isnan(e) ? INFINITY : e;
    }
    free(expected);
    return error == 0 ? 0 : error / largest;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void look_at_mask(golden *g)
{
    g->right_padded = true;
    for (int64_t i = 0; i < g->batch; i++)
        for (int64_t k = 0; k < g->width; k++) {
            bool here = g->mask[i * g->width + k];
            if (k == 0 && !here) g->right_padded = false;
            if (k > 0 && here && !g->mask[i * g->width + k - 1]) g->right_padded = false;
        }
}

static bool read_inputs(golden *g)
{
    const mc_safetensors_entry *ids = find(g, "in.", "input_ids");
    if (!ids || ids->ndim != 2) {
        fprintf(stderr, "expected.safetensors: in.input_ids is missing or not (batch, length)\n");
        return false;
    }
    g->batch = ids->shape[0];
    g->width = ids->shape[1];
    int64_t count = g->batch * g->width;
    g->ids = read_integers(g, "input_ids", count);
    g->types = read_integers(g, "token_type_ids", count);
    g->mask = read_integers(g, "attention_mask", count);
    if (!g->mask) {
        g->mask = malloc(((size_t)count + 1) * sizeof *g->mask);
        for (int64_t i = 0; g->mask && i < count; i++) g->mask[i] = 1;
    }
    if (!g->mask) return false;
    look_at_mask(g);
    int64_t *labels = read_integers(g, "mlm_labels", count);
    for (int64_t i = 0; labels && i < count; i++)
        g->labels_on_padding |= labels[i] != -100 && !g->mask[i];
    free(labels);
    return true;
}

/* The batch on a tape: packed (padding not computed), or whole with a mask. */
static mc_bert_input make_input(golden *g, mc_tape *t, bool packed)
{
    mc_shape shape = MC_SHAPE(g->batch, g->width);
    mc_bert_input in = {.ids = mc_tape_input(t, MC_I64, shape, g->ids, false)};
    if (g->types) in.type_ids = mc_tape_input(t, MC_I64, shape, g->types, false);
    if (!packed) {
        in.mask = mc_tape_input(t, MC_I64, shape, g->mask, false);
        return in;
    }
    int32_t *lengths = calloc((size_t)g->batch + 1, sizeof *lengths);
    for (int64_t i = 0; lengths && i < g->batch * g->width; i++)
        lengths[i / g->width] += (int32_t)g->mask[i];
    if (lengths) in.lengths = mc_tape_lengths(t, lengths, (int)g->batch, 1);
    free(lengths);
    return in;
}

/* MLM labels in the layout of `hidden`: packed, or as they are. */
static mc_tensor *make_mlm_labels(golden *g, mc_tape *t, bool packed)
{
    int64_t count = g->batch * g->width, kept = 0;
    int64_t *labels = read_integers(g, "mlm_labels", count);
    if (!labels) return NULL;
    for (int64_t i = 0; i < count; i++)
        if (!packed || g->mask[i]) labels[kept++] = labels[i];
    mc_tensor *out = mc_tape_input(t, MC_I64, MC_SHAPE(kept), labels, false);
    free(labels);
    return out;
}

static mc_tensor *make_row_labels(golden *g, mc_tape *t, const char *name)
{
    int64_t *labels = read_integers(g, name, g->batch);
    mc_tensor *out = labels ? mc_tape_input(t, MC_I64, MC_SHAPE(g->batch), labels, false) : NULL;
    free(labels);
    return out;
}

/* Hugging Face's loss of the model: classification, or MLM + NSP. */
static mc_tensor *forward_loss(golden *g, mc_tape *t, bool packed)
{
    mc_bert_input in = make_input(g, t, packed);
    mc_bert_output out = mc_bert_forward(t, g->bert, &in);
    mc_bert_heads heads = mc_bert_get_heads(g->bert);
    mc_tensor *labels = heads.labels ? make_row_labels(g, t, "labels") : NULL;
    if (labels) return mc_cross_entropy(t, mc_bert_classify(t, g->bert, out.pooled), labels, NULL);
    mc_tensor *mlm_labels = heads.mlm ? make_mlm_labels(g, t, packed) : NULL;
    mc_tensor *nsp_labels = heads.nsp ? make_row_labels(g, t, "nsp_labels") : NULL;
    mc_tensor *mlm = mlm_labels ? mc_bert_mlm_loss(t, g->bert, out.last_hidden, mlm_labels) : NULL;
    mc_tensor *nsp = nsp_labels ? mc_cross_entropy(t, mc_bert_nsp_logits(t, g->bert, out.pooled),
                                                   nsp_labels, NULL)
                                : NULL;
    return mlm && nsp ? mc_loss_add(t, mlm, nsp, 1) : mlm ? mlm : nsp;
}

/* ---- comparisons ----------------------------------------------------------------------------- */

/* Compares a (packed or whole) tensor of the tape with out.<name>, at the tokens that count. */
static void check_output(golden *g, mc_tape *t, worst *w, const char *name, mc_tensor *x,
                         bool packed)
{
    const mc_safetensors_entry *entry = find(g, "out.", name);
    if (!entry) return;
    if (!x) { /* the model has no such output */
        note(w, INFINITY, entry->name);
        return;
    }
    bool tokens = mc_tensor_lengths(x);
    if (tokens) x = mc_unpack(t, x);
    /* the packed form is as long as its longest row: compare as many columns of the expected one */
    int64_t longest = tokens ? mc_tensor_size(x, 1) : 0, count = mc_tensor_count(x);
    int64_t columns = tokens ? mc_tensor_size(x, 2) : 0;
    float *got = calloc((size_t)(tokens ? g->batch * g->width * columns : count) + 1, sizeof *got);
    float *compact = malloc(((size_t)count + 1) * sizeof *compact);
    if (!got || !compact) exit(UNUSABLE);
    mc_tensor_read_f32(g->ctx, x, compact, count);
    if (tokens) {
        for (int64_t i = 0; i < g->batch; i++)
            memcpy(got + i * g->width * columns, compact + i * longest * columns,
                   (size_t)(longest * columns) * sizeof *got);
        count = g->batch * g->width * columns;
    } else {
        memcpy(got, compact, (size_t)count * sizeof *got);
    }
    note(w, compare(g, entry, got, count, packed && tokens ? g->mask : NULL, columns, 0),
         entry->name);
    free(got);
    free(compact);
}

static void check_loss(golden *g, worst *w, const char *name, double expected, double got)
{
    (void)g;
    note(w, fabs(got - expected) / fmax(fabs(expected), 1e-30), name);
    if (isnan(got)) w->error = INFINITY;
}

static void check_forward(golden *g, worst *outputs, worst *losses, bool packed)
{
    mc_tape *t = mc_tape_begin_eval(g->ctx);
    mc_bert_input in = make_input(g, t, packed);
    mc_bert_output out = mc_bert_forward(t, g->bert, &in);
    mc_bert_heads heads = mc_bert_get_heads(g->bert);
    check_output(g, t, outputs, "last_hidden", out.last_hidden, packed);
    check_output(g, t, outputs, "pooled", out.pooled, packed);
    mc_tensor *logits = heads.labels ? mc_bert_classify(t, g->bert, out.pooled) : NULL;
    mc_tensor *mlm = heads.mlm ? mc_bert_mlm_logits(t, g->bert, out.last_hidden) : NULL;
    mc_tensor *nsp = heads.nsp ? mc_bert_nsp_logits(t, g->bert, out.pooled) : NULL;
    check_output(g, t, outputs, "logits", logits, packed);
    check_output(g, t, outputs, "mlm_logits", mlm, packed);
    check_output(g, t, outputs, "nsp_logits", nsp, packed);
    const mc_safetensors_entry *entry = find(g, "out.", "loss");
    double *expected = entry ? read_entry(g, entry) : NULL;
    if (expected)
        check_loss(g, losses, "out.loss", expected[0],
                   mc_mean_loss(g->ctx, forward_loss(g, t, packed)));
    free(expected);
    mc_tape_end(t);
}

/* Expected results that nothing here is compared with are failures, not silently passed over. */
static void check_unknown(golden *g, worst *w)
{
    static const char *const known[] = {"out.last_hidden", "out.pooled",     "out.logits",
                                        "out.mlm_logits",  "out.nsp_logits", "out.loss",
                                        "train.losses"};
    for (size_t i = 0; i < mc_safetensors_count(g->file); i++) {
        const char *name = mc_safetensors_at(g->file, i)->name;
        bool found = strncmp(name, "out.", 4) != 0 && strncmp(name, "train.", 6) != 0;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
            found |= strcmp(name, known[k]) == 0;
        if (found) continue;
        fprintf(stderr, "%s: nothing to compare it with\n", name);
        note(w, INFINITY, name);
    }
}

static const mc_safetensors_entry *find_gradient(golden *g, const mc_parameter *p)
{
    char name[MC_NAME_MAX];
    int layers = (int)g->config.layers;
    for (int prefixed = 1; prefixed >= 0; prefixed--) {
        if (!mc_weight_name(&mc_bert_weight_map, layers, mc_parameter_name(p), prefixed, name))
            continue;
        const mc_safetensors_entry *entry = find(g, "grad.", name);
        if (entry) return entry;
    }
    return NULL;
}

/* The largest expected gradient value, and how many expected gradients there are. */
static double largest_gradient(golden *g, int *count)
{
    double largest = 0;
    *count = 0;
    for (size_t i = 0; i < mc_safetensors_count(g->file); i++) {
        const mc_safetensors_entry *entry = mc_safetensors_at(g->file, i);
        if (strncmp(entry->name, "grad.", 5) != 0) continue;
        if (fnmatch("grad.cls.predictions.decoder.*", entry->name, 0) == 0)
            continue; /* tied copies */
        double *values = read_entry(g, entry);
        for (int64_t k = 0; values && k < entry->count; k++)
            largest = fmax(largest, fabs(values[k]));
        free(values);
        (*count)++;
    }
    return largest;
}

static void check_gradients(golden *g, worst *w, bool packed)
{
    int expected_count, compared = 0;
    double largest = largest_gradient(g, &expected_count);
    if (!expected_count) return;
    mc_module_zero_grad(mc_bert_module(g->bert));
    mc_tape *t = mc_tape_begin(g->ctx);
    mc_tape_backward(t, forward_loss(g, t, packed), NULL);
    mc_tape_end(t);
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(mc_bert_module(g->bert), &it));) {
        const mc_safetensors_entry *entry = find_gradient(g, p);
        if (!entry) continue;
        int64_t count = mc_shape_count(mc_parameter_shape(p));
        float *got = malloc(((size_t)count + 1) * sizeof *got);
        if (!got) exit(UNUSABLE);
        mc_parameter_read_gradient(p, got);
        note(w, compare(g, entry, got, count, NULL, 1, 1e-4 * largest), entry->name);
        compared++;
        free(got);
    }
    if (compared == expected_count) return;
    fprintf(stderr, "%d of %d expected gradients belong to no parameter\n",
            expected_count - compared, expected_count);
    note(w, INFINITY, "(unknown parameters)");
}

static void check_training(golden *g, worst *w, bool packed)
{
    const mc_safetensors_entry *entry = find(g, "train.", "losses");
    if (!entry) return;
    double *expected = read_entry(g, entry);
    mc_optimizer *adam =
        mc_adam_new(g->ctx, &(mc_adam_options){.lr = 1e-3f, .weight_decay = 0.01f});
    mc_optim_manager *optim =
        mc_optim_manager_new(g->ctx, &(mc_optim_manager_options){.nonfinite = MC_NONFINITE_SKIP});
    mc_optimizer_add(adam, mc_bert_module(g->bert));
    mc_optim_manager_add(optim, adam, NULL);
    for (int64_t i = 0; expected && i < entry->count; i++) {
        char name[32];
        snprintf(name, sizeof name, "train.losses[%d]", (int)i);
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(g->ctx);
        mc_tensor *loss = forward_loss(g, t, packed);
        mc_optim_manager_backward(optim, t, loss);
        check_loss(g, w, name, expected[i], mc_mean_loss(g->ctx, loss));
        mc_optim_manager_step(optim);
        mc_tape_end(t);
    }
    free(expected);
}

static int report(const worst *w)
{
    bool good = w->error <= w->tolerance;
    if (w->compared)
        printf("%-10s %4d compared  worst %.3g (limit %.0e)  %s%s\n", w->kind, w->compared,
               w->error, w->tolerance, w->name, good ? "" : "  FAILED");
    return !good;
}

static bool load(golden *g, const char *folder)
{
    char path[MC_PATH_MAX];
    mc_path_join(&g->ctx->error, path, folder, "expected.safetensors");
    g->bert = mc_bert_from_pretrained(g->ctx, folder, NULL);
    g->file = mc_safetensors_open(g->ctx, path, NULL);
    g->config = mc_bert_get_config(g->bert);
    mc_bert_set_dropout(g->bert, 0);
    if (!mc_failed(g->ctx)) return read_inputs(g);
    mc_print_error(g->ctx, stderr);
    return false;
}

static void print_log(void *user, mc_log_level level, const char *line)
{
    (void)user;
    fprintf(stderr, "%s%s\n", level == MC_LOG_WARNING ? "warning: " : "", line);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return UNUSABLE;
    }
    golden g = {.ctx = mc_init_distributed(&(mc_init_options){.log = print_log})};
    if (!load(&g, argv[1])) {
        mc_context_free(g.ctx);
        return UNUSABLE;
    }
    worst outputs = {.kind = "outputs", .tolerance = output_tolerance};
    worst gradients = {.kind = "gradients", .tolerance = gradient_tolerance};
    worst losses = {.kind = "losses", .tolerance = loss_tolerance};
    bool packed_too = g.right_padded && !g.labels_on_padding;
    for (int packed = 0; packed <= packed_too; packed++) {
        check_forward(&g, &outputs, &losses, packed);
        check_gradients(&g, &gradients, packed);
    }
    check_training(&g, &losses, packed_too);
    check_unknown(&g, &outputs);
    int bad = report(&outputs) + report(&gradients) + report(&losses);
    bool failed = mc_failed(g.ctx);
    if (failed) mc_print_error(g.ctx, stderr);
    if (!outputs.compared && !gradients.compared && !losses.compared) {
        fprintf(stderr, "%s: nothing to compare in expected.safetensors\n", argv[1]);
        failed = true;
    }
    mc_context_free(g.ctx);
    free(g.ids);
    free(g.types);
    free(g.mask);
    printf(bad || failed ? "golden: FAILED\n" : "golden: passed\n");
    return failed ? UNUSABLE : bad ? OUT_OF_TOLERANCE : OK;
}
