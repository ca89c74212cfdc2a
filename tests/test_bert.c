/* BERT as a whole, on small random models: ways to give a batch, recompute, training in every
 * dtype, files written and read, and every complaint about input that does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "models/bert/bert_internal.h"
#include "tests/models/model_test.h"

enum { POSITIONS = 20, LABELS = 3 };

static mc_bert_config small_config(void)
{
    mc_bert_config c = mc_bert_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = DIM;
    c.dim_ff = 40;
    c.layers = 3;
    c.heads = 4;
    c.positions = POSITIONS;
    c.types = 2;
    c.init_std = c.embedding_std = c.ffn_std = 0.2f;
    return c;
}

static const mc_model_heads all_heads = {.pooler = true, .lm = true, .nsp = true};
static const mc_model_heads classifier = {.pooler = true, .labels = LABELS};

static mc_model *new_bert(mc_context *ctx, mc_model_heads heads, mc_dtype dtype,
                          mc_recompute recompute)
{
    mc_bert_config config = small_config();
    return mc_bert_new(ctx, &config, &heads,
                       &(mc_load_options){.dtype = dtype, .recompute = recompute});
}

/* ---- a batch --------------------------------------------------------------------------------- */

static mc_model_input make_batch(mc_tape *t, way how)
{
    model_batch in = batch_for(t, how);
    return (mc_model_input){
        .ids = in.ids, .type_ids = in.type_ids, .mask = in.mask, .lengths = in.lengths};
}

static void test_ways_to_give_a_batch(void **state)
{
    mc_context *ctx = *state;
    mc_model *bert = new_bert(ctx, all_heads, MC_F32, 0);
    float hidden[WAYS][BATCH * WIDTH * DIM], pooled[WAYS][BATCH * DIM];
    for (way how = LENGTHS; how < WAYS; how++) {
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = make_batch(t, how);
        mc_model_output out = mc_model_forward(t, bert, &in);
        assert_good(ctx);
        read_valid(ctx, t, out.last_hidden, hidden[how]);
        mc_tensor_read_f32(ctx, out.pooled, pooled[how], BATCH * DIM);
        int64_t rows = how == MASK ? BATCH * WIDTH : how == PACKED_WIDE ? 32 : 20;
        assert_int_equal(mc_tensor_size(out.last_hidden, 0), rows);
        mc_tape_end(t);
        for (int i = 0; i < BATCH * WIDTH * DIM; i++)
            assert_near(hidden[how][i], hidden[0][i], 2e-5);
        for (int i = 0; i < BATCH * DIM; i++) assert_near(pooled[how][i], pooled[0][i], 2e-5);
    }
    mc_tape *t = mc_tape_begin_eval(ctx); /* the types are not for nothing */
    mc_model_input in = make_batch(t, LENGTHS);
    in.type_ids = NULL;
    float other[BATCH * WIDTH * DIM], difference = 0;
    read_valid(ctx, t, mc_model_forward(t, bert, &in).last_hidden, other);
    for (int i = 0; i < BATCH * WIDTH * DIM; i++) difference += fabsf(other[i] - hidden[0][i]);
    assert_true(difference > 1);
    mc_tape_end(t);
}

/* Each sequence alone gives what it gives in a batch; single tokens among them. */
static void test_rows_are_independent(void **state)
{
    mc_context *ctx = *state;
    mc_model *bert = new_bert(ctx, all_heads, MC_F32, 0);
    float together[BATCH * DIM], alone[DIM];
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = make_batch(t, PACKED);
    mc_tensor_read_f32(ctx, mc_model_forward(t, bert, &in).pooled, together, BATCH * DIM);
    for (int r = 0; r < BATCH; r++) {
        int32_t ids[WIDTH], types[WIDTH];
        for (int c = 0; c < batch_lengths[r]; c++) {
            ids[c] = (int32_t)id_at(r, c);
            types[c] = (int32_t)type_at(r, c);
        }
        mc_shape shape = MC_SHAPE(1, batch_lengths[r]);
        mc_model_input one = {.ids = mc_tape_input(t, MC_I32, shape, ids, false),
                              .type_ids = mc_tape_input(t, MC_I32, shape, types, false)};
        mc_tensor_read_f32(ctx, mc_model_forward(t, bert, &one).pooled, alone, DIM);
        assert_good(ctx);
        for (int i = 0; i < DIM; i++) assert_near(alone[i], together[r * DIM + i], 2e-5);
    }
    mc_tape_end(t);
}

/* ---- training -------------------------------------------------------------------------------- */

static mc_tensor *classify_loss(mc_tape *t, mc_model *bert, way how)
{
    mc_model_input in = make_batch(t, how);
    mc_model_output out = mc_model_forward(t, bert, &in);
    mc_tensor *logits = mc_model_classify(t, bert, &out);
    int64_t labels[BATCH] = {2, 0, 1, 1};
    return mc_cross_entropy(t, logits, mc_tape_input(t, MC_I64, MC_SHAPE(BATCH), labels, false),
                            NULL);
}

/* Labels for every second token, in the layout of packed hidden states. */
static mc_tensor *pretraining_loss(mc_tape *t, mc_model *bert)
{
    mc_model_input in = make_batch(t, PACKED);
    mc_model_output out = mc_model_forward(t, bert, &in);
    int32_t labels[BATCH * WIDTH], next[BATCH] = {0, 1, 1, 0};
    int n = (int)mc_tensor_size(out.last_hidden, 0);
    for (int i = 0; i < n; i++) labels[i] = i % 2 ? i % VOCABULARY : -100;
    mc_tensor *mlm = mc_model_loss(t, bert, out.last_hidden,
                                   mc_tape_input(t, MC_I32, MC_SHAPE(n), labels, false));
    mc_tensor *nsp = mc_cross_entropy(t, mc_model_nsp_logits(t, bert, out.pooled),
                                      mc_tape_input(t, MC_I32, MC_SHAPE(BATCH), next, false), NULL);
    return mc_loss_add(t, mlm, nsp, 1);
}

/* A batch of no rows, as a rank gets where the data runs out: loss 0, no gradient, no error. */
static void test_no_rows(void **state)
{
    mc_context *ctx = *state;
    mc_model *bert = new_bert(ctx, classifier, MC_F32, 0);
    for (int with_lengths = 0; with_lengths < 2; with_lengths++) {
        mc_tape *t = mc_tape_begin(ctx);
        mc_shape shape = with_lengths ? MC_SHAPE(0) : MC_SHAPE(0, 5);
        mc_model_input in = {.ids = mc_tape_input(t, MC_I64, shape, NULL, false)};
        if (with_lengths) in.lengths = mc_tape_lengths(t, NULL, 0, 8);
        mc_model_output out = mc_model_forward(t, bert, &in);
        assert_good(ctx);
        assert_true(mc_shape_equal(out.pooled->shape, MC_SHAPE(0, DIM)));
        mc_tensor *none = mc_tape_input(t, MC_I64, MC_SHAPE(0), NULL, false);
        mc_tensor *loss = mc_cross_entropy(t, mc_model_classify(t, bert, &out), none, NULL);
        assert_leaves_nothing(t, mc_model_module(bert), loss);
        mc_tape_end(t);
    }
}

/* Loss and all gradients of a step with dropout. */
static float *step_values(mc_recompute recompute, mc_dtype dtype, bool pretraining, int64_t *count)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 11});
    mc_model *bert = new_bert(ctx, pretraining ? all_heads : classifier, dtype, recompute);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *loss = pretraining ? pretraining_loss(t, bert) : classify_loss(t, bert, MASK);
    float *values = loss_and_gradients(t, mc_model_module(bert), loss, count);
    mc_context_free(ctx);
    return values;
}

static void test_recompute_is_exact(void **state)
{
    (void)state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16};
    for (int d = 0; d < 2; d++)
        for (int pretraining = 0; pretraining < 2; pretraining++) {
            int64_t count, n;
            float *kept = step_values(MC_RECOMPUTE_NONE, dtypes[d], pretraining, &count);
            for (mc_recompute r = MC_RECOMPUTE_SELECTIVE; r <= MC_RECOMPUTE_FULL; r++) {
                float *again = step_values(r, dtypes[d], pretraining, &n);
                assert_int_equal(n, count);
                assert_memory_equal(again, kept, (size_t)n * sizeof *kept);
                free(again);
            }
            free(kept);
        }
}

static void test_training(void **state)
{
    (void)state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16, MC_F16};
    for (int d = 0; d < 3; d++)
        for (int pretraining = 0; pretraining < 2; pretraining++) {
            mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 2});
            mc_model *bert = new_bert(ctx, pretraining ? all_heads : classifier, dtypes[d], 0);
            mc_model_set_dropout(bert, 0);
            mc_optimizer *adam = mc_adam_new(ctx, &(mc_adam_options){.lr = 5e-3f});
            double scale = dtypes[d] == MC_F16 ? 256 : 0;
            mc_optim_manager *optim =
                mc_optim_manager_new(ctx, &(mc_optim_manager_options){.loss_scale = scale});
            mc_optimizer_add(adam, mc_model_module(bert));
            mc_optim_manager_add(optim, adam, NULL);
            float first = 0, last = 0;
            for (int step = 0; step < 25; step++) {
                mc_optim_manager_zero_grad(optim);
                mc_tape *t = mc_tape_begin(ctx);
                mc_tensor *loss =
                    pretraining ? pretraining_loss(t, bert) : classify_loss(t, bert, LENGTHS);
                mc_optim_manager_backward(optim, t, loss);
                mc_optim_manager_clip_grad_norm(optim, 5);
                mc_optim_manager_step(optim);
                last = mc_mean_loss(ctx, loss);
                if (step == 0) first = last;
                mc_tape_end(t);
            }
            assert_good(ctx);
            if (!(last < 0.5f * first))
                fail_msg("%s: loss %g after 25 steps, %g at first", mc_dtype_name(dtypes[d]),
                         (double)last, (double)first);
            mc_context_free(ctx);
        }
}

/* ---- files ----------------------------------------------------------------------------------- */

static char log_text[8192];

static void keep_log(void *user, mc_log_level level, const char *line)
{
    (void)user;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s%s\n",
             level == MC_LOG_WARNING ? "warning: " : "", line);
}

static mc_context *logging_context(uint64_t seed)
{
    log_text[0] = '\0';
    return mc_init_distributed(&(mc_init_options){.seed = seed, .log = keep_log});
}

#define assert_logged(...)                                                  \
    do {                                                                    \
        const char *words_[] = {__VA_ARGS__};                               \
        for (size_t i_ = 0; i_ < sizeof words_ / sizeof *words_; i_++)      \
            if (!strstr(log_text, words_[i_]))                              \
                fail_msg("no \"%s\" in the log: %s", words_[i_], log_text); \
    } while (0)

/* What a changed copy of a weight file is to have different. */
typedef struct edit {
    const char *drop[4];          /* tensors left out */
    const char *from[2], *to[2];  /* replaced in all names */
    const char *prefix;           /* put before all names */
    const char *strip;            /* taken from their beginning */
    const char *flat;             /* a tensor whose shape becomes (count) */
    const char *not_finite[2];    /* tensors that get a NaN, an infinity */
    const char *again, *again_as; /* a tensor that is written a second time, under this name */
    bool changed;                 /* one value of it other than the first's */
    bool spare;                   /* "spare.weight" is added */
} edit;

static bool is_one_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count && names[i]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static void edit_name(const edit *e, const char *name, char out[256])
{
    if (e->strip && strncmp(name, e->strip, strlen(e->strip)) == 0) name += strlen(e->strip);
    snprintf(out, 256, "%s%s", e->prefix ? e->prefix : "", name);
    for (int i = 0; i < 2 && e->from[i]; i++) {
        char *at = strstr(out, e->from[i]), rest[256];
        if (!at) continue;
        snprintf(rest, sizeof rest, "%s", at + strlen(e->from[i]));
        snprintf(at, 256 - (size_t)(at - out), "%s%s", e->to[i], rest);
    }
}

static void edit_weights(const char *from, const char *to, const edit *e)
{
    enum { MOST = 128 };
    static mc_safetensors_spec specs[MOST];
    static char names[MOST][256];
    static const mc_tensor_entry *entries[MOST];
    size_t count = 0;
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tensor_file *in = mc_tensor_file_open(ctx, from, NULL);
    for (size_t i = 0; i < mc_tensor_file_count(in); i++) {
        const mc_tensor_entry *entry = mc_tensor_file_at(in, i);
        if (is_one_of(entry->name, e->drop, 4)) continue;
        edit_name(e, entry->name, names[count]);
        bool flat = e->flat && strcmp(e->flat, entry->name) == 0;
        specs[count] = (mc_safetensors_spec){.name = names[count],
                                             .dtype = entry->dtype,
                                             .ndim = flat ? 1 : entry->ndim,
                                             .shape = flat ? &entry->count : entry->shape};
        entries[count++] = entry;
    }
    size_t last = count;
    for (size_t i = 0; e->again && i < last; i++) {
        if (strcmp(e->again, entries[i]->name) != 0) continue;
        specs[count] = specs[i];
        specs[count].name = e->again_as;
        entries[count++] = entries[i];
    }
    static const int64_t two[] = {2};
    if (e->spare)
        specs[count] =
            (mc_safetensors_spec){.name = "spare.weight", .dtype = MC_F32, .ndim = 1, .shape = two};
    mc_safetensors_writer *out =
        mc_safetensors_writer_new(ctx, to, specs, count + e->spare, NULL, 0);
    for (size_t i = 0; i < count; i++) {
        float *values = malloc(entries[i]->size + sizeof *values);
        assert_non_null(values);
        memcpy(values, entries[i]->data, entries[i]->size);
        if (is_one_of(entries[i]->name, e->not_finite, 1)) values[entries[i]->count / 2] = NAN;
        if (e->not_finite[0] && is_one_of(entries[i]->name, e->not_finite + 1, 1))
            values[0] = -INFINITY;
        if (i >= last && e->changed) values[entries[i]->count - 1] += 1;
        mc_safetensors_write(out, values, entries[i]->size);
        free(values);
    }
    if (e->spare) mc_safetensors_write(out, (float[]){1, 2}, 8);
    mc_safetensors_writer_commit(out);
    assert_good(ctx);
    mc_context_free(ctx);
}

/* A saved model, and a folder with its config for a changed copy of its weights. */
typedef struct files {
    temp_folder saved, edited;
} files;

static void copy_file(const char *from, const char *to)
{
    size_t size;
    mc_error err = {0};
    char *text = mc_file_read(&err, from, 1 << 26, &size);
    assert_non_null(text);
    write_bytes(to, text, size);
    mc_free(text);
}

static files new_files(mc_model_heads heads)
{
    files f = {temp_folder_new(), temp_folder_new()};
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 21});
    mc_model_save(new_bert(ctx, heads, MC_F32, 0), f.saved.path);
    assert_good(ctx);
    mc_context_free(ctx);
    copy_file(temp_path(&f.saved, "config.json"), temp_path(&f.edited, "config.json"));
    return f;
}

static void free_files(files *f)
{
    temp_folder_free(&f->saved);
    temp_folder_free(&f->edited);
}

static void edit_files(files *f, const edit *e)
{
    edit_weights(temp_path(&f->saved, "model.safetensors"),
                 temp_path(&f->edited, "model.safetensors"), e);
}

/* Pooled outputs and, with heads, logits of the batch. */
static void outputs(mc_context *ctx, mc_model *bert, float out[BATCH * DIM + BATCH * LABELS])
{
    memset(out, 0, (BATCH * DIM + BATCH * LABELS) * sizeof *out);
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = make_batch(t, LENGTHS);
    mc_model_output o = mc_model_forward(t, bert, &in);
    mc_tensor_read_f32(ctx, o.pooled, out, BATCH * DIM);
    mc_model_heads heads = mc_model_get_heads(bert);
    if (heads.labels)
        mc_tensor_read_f32(ctx, mc_model_classify(t, bert, &o), out + BATCH * DIM,
                           BATCH * heads.labels);
    if (heads.nsp)
        mc_tensor_read_f32(ctx, mc_model_nsp_logits(t, bert, o.pooled), out + BATCH * DIM,
                           BATCH * 2);
    assert_good(ctx);
    mc_tape_end(t);
}

static void assert_same_outputs(mc_context *ctx, mc_model *a, mc_context *ctx_b, mc_model *b)
{
    float of_a[BATCH * DIM + BATCH * LABELS], of_b[BATCH * DIM + BATCH * LABELS];
    outputs(ctx, a, of_a);
    outputs(ctx_b, b, of_b);
    assert_memory_equal(of_a, of_b, sizeof of_a);
}

static bool same_config(const mc_bert_config *a, const mc_bert_config *b)
{
    return a->vocab_size == b->vocab_size && a->dim == b->dim && a->dim_ff == b->dim_ff &&
           a->layers == b->layers && a->heads == b->heads && a->positions == b->positions &&
           a->types == b->types && a->pad_token_id == b->pad_token_id &&
           a->activation == b->activation && a->eps == b->eps && a->dropout == b->dropout &&
           a->attention_dropout == b->attention_dropout &&
           a->classifier_dropout == b->classifier_dropout && a->init_std == b->init_std &&
           a->embedding_std == b->embedding_std && a->ffn_std == b->ffn_std && a->tied == b->tied;
}

static void test_save_and_load(void **state)
{
    (void)state;
    static const mc_dtype dtypes[] = {MC_F32, MC_BF16, MC_F16};
    const mc_model_heads heads[] = {
        {.pooler = true}, all_heads, classifier, {.pooler = true, .lm = true}};
    for (int d = 0; d < 3; d++)
        for (int h = 0; h < 4; h++) {
            temp_folder folder = temp_folder_new();
            mc_context *a = mc_init_distributed(&(mc_init_options){.seed = 1}),
                       *b = logging_context(99);
            mc_bert_config config = small_config();
            config.activation = h % 2 ? MC_ACTIVATION_GELU_NEW : MC_ACTIVATION_RELU;
            config.eps = 3e-7f;
            config.dropout = 0.3f;
            config.classifier_dropout = 0;
            config.pad_token_id = 7;
            mc_model *saved =
                mc_bert_new(a, &config, &heads[h], &(mc_load_options){.dtype = dtypes[d]});
            const char *names[] = {"no", "maybe", "\"yes\" \xc3\xa9"};
            if (heads[h].labels) mc_model_set_task(saved, "BoolQ", names);
            assert_int_equal(mc_model_save(saved, temp_path(&folder, "new/model")), MC_OK);
            assert_int_equal(mc_model_save(saved, temp_path(&folder, "new/model")),
                             MC_OK); /* and over it */
            mc_model *loaded = mc_bert_from_pretrained(b, temp_path(&folder, "new/model"),
                                                       &(mc_load_options){.dtype = dtypes[d]});
            assert_good(b);
            assert_string_equal(log_text, "");
            assert_same_outputs(a, saved, b, loaded);
            mc_bert_config read = mc_bert_get_config(loaded);
            assert_true(same_config(&read, &config));
            mc_model_heads found = mc_model_get_heads(loaded);
            assert_int_equal(found.labels, heads[h].labels);
            assert_int_equal(found.lm, heads[h].lm);
            assert_int_equal(found.nsp, heads[h].nsp);
            if (heads[h].labels) {
                assert_string_equal(mc_model_task(loaded), "BoolQ");
                for (int i = 0; i < LABELS; i++)
                    assert_string_equal(mc_model_label_name(loaded, i), names[i]);
                assert_null(mc_model_label_name(loaded, LABELS));
            }
            assert_int_equal(count_files(temp_path(&folder, "new/model")), 2);
            mc_context_free(a);
            mc_context_free(b);
            temp_folder_free(&folder);
        }
}

/* f16 and bf16 models come out of f32 files, rounded. */
static void test_load_as_other_dtype(void **state)
{
    (void)state;
    files f = new_files(classifier);
    for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
        mc_context *ctx = logging_context(3);
        mc_model *bert =
            mc_bert_from_pretrained(ctx, f.saved.path, &(mc_load_options){.dtype = dtype});
        float exact[BATCH * DIM + BATCH * LABELS], rounded[BATCH * DIM + BATCH * LABELS];
        mc_model *reference = mc_bert_from_pretrained(ctx, f.saved.path, NULL);
        assert_good(ctx);
        assert_int_equal(mc_parameter_dtype(mc_module_find_parameter(mc_model_module(bert),
                                                                     "pooler.dense.weight")),
                         dtype);
        outputs(ctx, bert, rounded);
        outputs(ctx, reference, exact);
        for (int i = 0; i < BATCH * DIM + BATCH * LABELS; i++)
            assert_near(rounded[i], exact[i],
                        dtype == MC_F32   ? 0
                        : dtype == MC_F16 ? 2e-2
                                          : 1.5e-1);
        mc_context_free(ctx);
    }
    free_files(&f);
}

/* Names that other programs write: old LayerNorms, with and without "bert.". */
static void test_other_names(void **state)
{
    (void)state;
    static const edit edits[] = {
        {.from = {"LayerNorm.weight", "LayerNorm.bias"},
         .to = {"LayerNorm.gamma", "LayerNorm.beta"}},
        {.strip = "bert."},
        {.strip = "bert.",
         .from = {"LayerNorm.weight", "LayerNorm.bias"},
         .to = {"LayerNorm.gamma", "LayerNorm.beta"}},
    };
    for (int h = 0; h < 2; h++) {
        files f = new_files(h ? all_heads : classifier);
        mc_context *ctx = logging_context(1);
        mc_model *reference = mc_bert_from_pretrained(ctx, f.saved.path, NULL);
        for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
            edit_files(&f, &edits[i]);
            mc_model *bert = mc_bert_from_pretrained(ctx, f.edited.path, NULL);
            assert_good(ctx);
            assert_string_equal(log_text, "");
            assert_same_outputs(ctx, reference, ctx, bert);
        }
        mc_context_free(ctx);
        free_files(&f);
    }
    files f =
        new_files((mc_model_heads){.pooler = true}); /* a base model with the prefix of a head's */
    mc_context *ctx = logging_context(1);
    mc_model *reference = mc_bert_from_pretrained(ctx, f.saved.path, NULL);
    edit_files(&f, &(edit){.prefix = "bert."});
    mc_model *bert = mc_bert_from_pretrained(ctx, f.edited.path, NULL);
    assert_good(ctx);
    assert_string_equal(log_text, "");
    assert_same_outputs(ctx, reference, ctx, bert);
    mc_context_free(ctx);
    free_files(&f);
}

static mc_model *load_edited(mc_context *ctx, files *f, const edit *e, const mc_load_options *o)
{
    log_text[0] = '\0';
    edit_files(f, e);
    return mc_bert_from_pretrained(ctx, f->edited.path, o);
}

static void test_files_that_do_not_fit(void **state)
{
    (void)state;
    files f = new_files(classifier);
    mc_context *ctx = logging_context(1);
    edit missing = {.drop = {"bert.embeddings.word_embeddings.weight",
                             "bert.encoder.layer.1.output.LayerNorm.bias",
                             "bert.encoder.layer.2.attention.self.key.weight"}};
    assert_null(load_edited(ctx, &f, &missing, NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "3 tensors are missing",
                 "embeddings.word_embeddings.weight", "encoder.layer.1.output.LayerNorm.bias",
                 "encoder.layer.2.attention.self.key.weight", f.edited.path);
    edit wrong = {.flat = "bert.encoder.layer.0.intermediate.dense.weight"};
    assert_null(load_edited(ctx, &f, &wrong, NULL));
    assert_error(ctx, MC_ERR_SHAPE, "model.safetensors",
                 "bert.encoder.layer.0.intermediate.dense.weight", "(640)", "(40, 16)");
    edit spare = {.spare = true};
    assert_non_null(load_edited(ctx, &f, &spare, NULL));
    assert_logged("warning", "\"spare.weight\"", "1 tensor is not used");
    edit bad = {.not_finite = {"bert.pooler.dense.weight", "bert.embeddings.LayerNorm.bias"}};
    assert_non_null(load_edited(ctx, &f, &bad, NULL));
    assert_logged("warning", "2 tensors hold NaN", "\"bert.pooler.dense.weight\"",
                  "\"bert.embeddings.LayerNorm.bias\"");
    assert_good(ctx);
    edit no_pooler = {.drop = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}};
    assert_non_null(load_edited(ctx, &f, &no_pooler, NULL));
    assert_logged("newly initialised", "pooler.dense.weight", "pooler.dense.bias");
    assert_null(mc_bert_from_pretrained(ctx, f.saved.path, &(mc_load_options){.num_labels = 5}));
    assert_error(ctx, MC_ERR_SHAPE, "classifier.weight", "(3, 16)", "(5, 16)");
    mc_context_free(ctx);
    free_files(&f);
}

/* Logits of the masked language model for the batch. */
static void mlm_logits(mc_context *ctx, mc_model *bert, float out[BATCH * WIDTH * VOCABULARY])
{
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = make_batch(t, MASK);
    mc_tensor *x = mc_model_logits(t, bert, mc_model_forward(t, bert, &in).last_hidden);
    mc_tensor_read_f32(ctx, x, out, BATCH * WIDTH * VOCABULARY);
    assert_good(ctx);
    mc_tape_end(t);
}

/* With the last value of the head's matrix 1 larger, logits of the last word alone differ. */
static void assert_last_word_differs(const float *logits, const float *reference)
{
    float difference = 0;
    for (int i = 0; i < BATCH * WIDTH * VOCABULARY; i++) {
        if (i % VOCABULARY == VOCABULARY - 1)
            difference += fabsf(logits[i] - reference[i]);
        else
            assert_near(logits[i], reference[i], 1e-5);
    }
    assert_true(difference > 1);
}

/* A masked language model whose matrix is its own is computed with that, and saved with it. If the
 * copy of its bias beside the matrix differs, the copy counts, as in transformers, and the log
 * says so. */
static void test_untied_head(void **state)
{
    (void)state;
    static const char weight[] = "cls.predictions.decoder.weight";
    static const struct {
        edit edit;
        bool own, two_biases;
    } cases[] = {
        {{.again = "bert.embeddings.word_embeddings.weight", .again_as = weight}, false},
        {{.again = "bert.embeddings.word_embeddings.weight", .again_as = weight, .changed = true},
         true},
        {{.again = "bert.embeddings.word_embeddings.weight",
          .again_as = weight,
          .changed = true,
          .strip = "bert."},
         true},
        {{.again = "cls.predictions.bias", .again_as = "cls.predictions.decoder.bias"}, false},
        {{.again = "cls.predictions.bias",
          .again_as = "cls.predictions.decoder.bias",
          .changed = true},
         false,
         true},
    };
    static float tied[BATCH * WIDTH * VOCABULARY], found[BATCH * WIDTH * VOCABULARY];
    files f = new_files(all_heads);
    temp_folder again = temp_folder_new();
    mc_context *ctx = logging_context(1);
    mc_model *reference = mc_bert_from_pretrained(ctx, f.saved.path, NULL);
    mlm_logits(ctx, reference, tied);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mc_model *bert = load_edited(ctx, &f, &cases[i].edit, NULL);
        assert_good(ctx);
        assert_true(cases[i].two_biases == (strstr(log_text, "differ: the first counts") != NULL));
        assert_true(cases[i].two_biases || !*log_text);
        assert_true(mc_model_get_heads(bert).lm);
        assert_int_equal(mc_bert_get_config(bert).tied, !cases[i].own);
        assert_same_outputs(ctx, reference, ctx, bert);
        mlm_logits(ctx, bert, found);
        if (!cases[i].own && !cases[i].two_biases) {
            assert_memory_equal(found, tied, sizeof found);
            continue;
        }
        assert_last_word_differs(found, tied);
        mc_model_save(bert, again.path);
        mlm_logits(ctx, mc_bert_from_pretrained(ctx, again.path, NULL), tied);
        assert_memory_equal(found, tied, sizeof found);
        mlm_logits(ctx, reference, tied);
    }
    mc_context_free(ctx);
    temp_folder_free(&again);
    free_files(&f);
}

static void test_new_classifier(void **state)
{
    (void)state;
    files f = new_files(all_heads);
    mc_context *ctx = logging_context(1);
    mc_model *bert =
        mc_bert_from_pretrained(ctx, f.saved.path, &(mc_load_options){.num_labels = LABELS});
    assert_good(ctx);
    assert_logged("newly initialised", "classifier.weight", "classifier.bias");
    mc_model_heads heads = mc_model_get_heads(bert);
    assert_int_equal(heads.labels, LABELS);
    assert_false(heads.lm || heads.nsp);
    float values[LABELS * DIM];
    mc_parameter_read(mc_module_find_parameter(mc_model_module(bert), "classifier.weight"), values);
    float sum = 0;
    for (int i = 0; i < LABELS * DIM; i++) sum += fabsf(values[i]);
    assert_in_range((int)(100 * sum / (LABELS * DIM)), 8, 30); /* normal with a deviation of 0.2 */
    mc_parameter_read(mc_module_find_parameter(mc_model_module(bert), "classifier.bias"), values);
    for (int i = 0; i < LABELS; i++) assert_true(values[i] == 0);
    mc_context_free(ctx);
    free_files(&f);
}

typedef struct bad_config {
    const char *text;
    mc_status status;
    const char *words[3];
} bad_config;

static void test_bad_configs(void **state)
{
    (void)state;
    static const bad_config bad[] = {
        {"{\"hidden_size\": 30, \"num_attention_heads\": 4}", MC_ERR_FORMAT, {"30", "4"}},
        {"{\"hidden_size\": \"many\"}", MC_ERR_FORMAT, {"hidden_size", "many"}},
        {"{\"hidden_size\": -16}", MC_ERR_FORMAT, {"hidden_size", "-16"}},
        {"{\"vocab_size\": 0}", MC_ERR_FORMAT, {"vocab_size"}},
        {"{\"hidden_dropout_prob\": 1}", MC_ERR_FORMAT, {"hidden_dropout_prob"}},
        {"{\"layer_norm_eps\": 0}", MC_ERR_FORMAT, {"layer_norm_eps"}},
        {"{\"model_type\": \"gpt2\"}", MC_ERR_UNSUPPORTED, {"GPT-2", "expected a BERT"}},
        {"{\"hidden_act\": \"mish\"}", MC_ERR_UNSUPPORTED, {"hidden_act", "mish"}},
        {"{\"position_embedding_type\": \"relative_key\"}", MC_ERR_UNSUPPORTED, {"relative_key"}},
        {"{\"is_decoder\": true}", MC_ERR_UNSUPPORTED, {"is_decoder"}},
        {"{\"hidden_size\": 16", MC_ERR_FORMAT, {"config.json"}},
        {"[]", MC_ERR_FORMAT, {"config.json"}},
        {"", MC_ERR_FORMAT, {"config.json"}},
    };
    files f = new_files(classifier);
    mc_context *ctx = logging_context(1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(temp_path(&f.saved, "config.json"), bad[i].text);
        if (mc_bert_from_pretrained(ctx, f.saved.path, NULL) ||
            mc_error_status(ctx) != bad[i].status)
            fail_msg("%s: \"%s\"", bad[i].text, mc_error_message(ctx));
        for (int w = 0; w < 3 && bad[i].words[w]; w++)
            if (!strstr(mc_error_message(ctx), bad[i].words[w]))
                fail_msg("%s: no \"%s\" in \"%s\"", bad[i].text, bad[i].words[w],
                         mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    assert_null(mc_bert_from_pretrained(ctx, temp_path(&f.saved, "nothing"), NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "nothing");
    unlink(temp_path(&f.saved, "config.json"));
    assert_null(mc_bert_from_pretrained(ctx, f.saved.path, NULL));
    assert_true(mc_failed(ctx) && strstr(mc_error_message(ctx), "config.json"));
    mc_context_free(ctx);
    free_files(&f);
}

/* ModelCenter's form of a config. */
static void test_other_config(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "config.json");
    write_text(
        path,
        "{\"dim_model\": 24, \"num_heads\": 3, \"dim_head\": 8, \"dim_ff\": 48, \"num_layers\": 2, "
        "\"vocab_size\": 60,"
        "\"position_size\": 33, \"type_size\": 4, \"norm_eps\": 1e-6, \"dropout_p\": 0.2,"
        "\"ffn_activate_fn\": \"relu\", \"att_init_std\": 0.05}");
    mc_bert_config c;
    assert_int_equal(mc_bert_config_read(ctx, path, &c), MC_OK);
    assert_int_equal(c.dim, 24);
    assert_int_equal(c.heads, 3);
    assert_int_equal(c.dim_ff, 48);
    assert_int_equal(c.layers, 2);
    assert_int_equal(c.vocab_size, 60);
    assert_int_equal(c.positions, 33);
    assert_int_equal(c.types, 4);
    assert_int_equal(c.activation, MC_ACTIVATION_RELU);
    assert_true(c.eps == 1e-6f && c.dropout == 0.2f && c.attention_dropout == 0.2f &&
                c.classifier_dropout == 0.2f);
    assert_true(c.init_std == 0.05f);
    temp_folder_free(&folder);
}

/* ---- input that does not fit ----------------------------------------------------------------- */

static mc_tensor *forward_ids(mc_tape *t, mc_model *bert, mc_shape shape, const int64_t *ids,
                              const mc_lengths *l)
{
    mc_model_input in = {.ids = mc_tape_input(t, MC_I64, shape, ids, false), .lengths = l};
    return mc_model_forward(t, bert, &in).last_hidden;
}

static void test_wrong_input(void **state)
{
    mc_context *ctx = *state;
    mc_model *bert = new_bert(ctx, classifier, MC_F32, 0);
    mc_tape *t = mc_tape_begin(ctx);
    int64_t ids[64] = {1, 2, 3, VOCABULARY, 5, 6};
    assert_null(forward_ids(t, bert, MC_SHAPE(2, 3), ids, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT,
                 "BERT: ids of sequence 1, token 0 (from 0): 50, expected 0 to 49");
    ids[3] = -1;
    assert_null(forward_ids(t, bert, MC_SHAPE(2, 3), ids, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "ids of sequence 1, token 0 (from 0): -1");
    ids[3] = (int64_t)1 << 32; /* must not wrap around to 0 */
    assert_null(forward_ids(t, bert, MC_SHAPE(2, 3), ids, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "ids of sequence 1, token 0 (from 0)");
    ids[3] = 3;
    assert_null(forward_ids(t, bert, MC_SHAPE(1, 21), ids, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "21 tokens", "20 positions");
    assert_null(forward_ids(t, bert, MC_SHAPE(6), ids, NULL));
    assert_error(ctx, MC_ERR_SHAPE, "ids", "(6)", "lengths");
    assert_null(
        forward_ids(t, bert, MC_SHAPE(2, 3), ids, mc_tape_lengths(t, (int32_t[]){3}, 1, 1)));
    assert_error(ctx, MC_ERR_SHAPE, "ids", "(2, 3)");
    assert_null(
        forward_ids(t, bert, MC_SHAPE(2, 3), ids, mc_tape_lengths(t, (int32_t[]){3, 4}, 2, 1)));
    assert_error(ctx, MC_ERR_SHAPE, "ids", "(2, 3)");
    assert_null(
        forward_ids(t, bert, MC_SHAPE(2, 3), ids, mc_tape_lengths(t, (int32_t[]){3, 0}, 2, 1)));
    assert_error(ctx, MC_ERR_ARGUMENT, "sequence 1 is empty");
    assert_null(mc_model_forward(t, bert, &(mc_model_input){0}).last_hidden);
    assert_error(ctx, MC_ERR_ARGUMENT, "BERT", "NULL");
    mc_tensor *good = mc_tape_input(t, MC_I64, MC_SHAPE(2, 3), ids, false);
    mc_tensor *types = mc_tape_input(t, MC_I64, MC_SHAPE(2, 2), ids, false);
    assert_null(
        mc_model_forward(t, bert, &(mc_model_input){.ids = good, .type_ids = types}).pooled);
    assert_error(ctx, MC_ERR_SHAPE, "type_ids", "(2, 2)");
    assert_null(mc_model_forward(t, bert, &(mc_model_input){.ids = good, .type_ids = good}).pooled);
    assert_error(ctx, MC_ERR_ARGUMENT,
                 "BERT: type_ids of sequence 0, token 1 (from 0): 2, expected 0 to 1");
    mc_model_input shorter = {
        .ids = good, .type_ids = good, .lengths = mc_tape_lengths(t, (int32_t[]){1, 2}, 2, 1)};
    assert_null(mc_model_forward(t, bert, &shorter).pooled); /* 1, and 3 and 5 of the other */
    assert_error(ctx, MC_ERR_ARGUMENT,
                 "BERT: type_ids of sequence 1, token 0 (from 0): 3, expected 0 to 1");
    assert_null(mc_model_forward(t, bert, &(mc_model_input){.ids = good, .mask = types}).pooled);
    assert_error(ctx, MC_ERR_SHAPE, "mask", "(2, 2)");
    mc_tensor *f = mc_tape_input(t, MC_F32, MC_SHAPE(2, 3), NULL, false);
    assert_null(mc_model_forward(t, bert, &(mc_model_input){.ids = f}).pooled);
    assert_error(ctx, MC_ERR_DTYPE, "ids", "f32", "i32 or i64");
    assert_null(mc_model_nsp_logits(t, bert, f));
    assert_error(ctx, MC_ERR_STATE, "next sentence");
    assert_null(mc_model_logits(t, bert, f));
    assert_error(ctx, MC_ERR_STATE, "language model");
    assert_null(mc_model_classify(t, bert, NULL));
    mc_clear_error(ctx);
    assert_non_null(mc_model_forward(t, bert, &(mc_model_input){.ids = good}).pooled);
    mc_tape_end(t);
    assert_null(mc_model_forward(NULL, bert, NULL).pooled);
    assert_null(mc_model_module(NULL));
    mc_model_free(NULL);
}

static void test_wrong_heads(void **state)
{
    mc_context *ctx = *state;
    assert_null(new_bert(ctx, (mc_model_heads){.labels = 2}, MC_F32, 0));
    assert_error(ctx, MC_ERR_ARGUMENT, "pooler");
    assert_null(new_bert(ctx, (mc_model_heads){.pooler = true, .labels = -1}, MC_F32, 0));
    assert_error(ctx, MC_ERR_ARGUMENT, "-1 labels");
    assert_null(new_bert(ctx, classifier, MC_I32, 0));
    assert_error(ctx, MC_ERR_DTYPE, "i32");
    mc_bert_config config = small_config();
    config.heads = 3;
    assert_null(mc_bert_new(ctx, &config, &classifier, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "BERT config", "3 heads", "dim 16");
    assert_int_equal(ctx->device->memory.in_use, 0);
    config = small_config();
    config.layers = 100000000;
    assert_null(mc_bert_new(ctx, &config, &classifier, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "100000000 layers", "at most 4096 layers");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ways_to_give_a_batch),
        TEST(test_rows_are_independent),
        TEST(test_no_rows),
        TEST(test_recompute_is_exact),
        TEST(test_training),
        TEST(test_save_and_load),
        TEST(test_load_as_other_dtype),
        TEST(test_other_names),
        TEST(test_files_that_do_not_fit),
        TEST(test_untied_head),
        TEST(test_new_classifier),
        TEST(test_bad_configs),
        TEST(test_other_config),
        TEST(test_wrong_input),
        TEST(test_wrong_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
