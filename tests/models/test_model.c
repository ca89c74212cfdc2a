/* What all families share: files there and back, batches that a family cannot use, configs that
 * make no sense, and forms that change on the way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <sys/resource.h>
#include "core/base/json_internal.h"
#include "tests/models/family_test.h"

static char log_text[8192];

static void keep_log(void *user, mc_log_level level, const char *line)
{
    (void)user, (void)level;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
}

static mc_context *logging_context(uint64_t seed)
{
    log_text[0] = '\0';
    return mc_init_distributed(&(mc_init_options){.seed = seed, .log = keep_log});
}

static void assert_same_parameters(mc_model *a, mc_model *b)
{
    int64_t of_a, of_b;
    float *x = parameter_values(mc_model_module(a), &of_a);
    float *y = parameter_values(mc_model_module(b), &of_b);
    assert_int_equal(of_a, of_b);
    assert_memory_equal(x, y, (size_t)of_a * sizeof *x);
    free(x);
    free(y);
}

/* ---- there and back -------------------------------------------------------------------------- */

static void test_save_and_load(void **state)
{
    (void)state;
    static float saved_logits[MOST_LOGITS], logits[MOST_LOGITS];
    for (int f = 0; f < TINY_FAMILIES; f++)
        for (mc_dtype dtype = MC_F32; dtype <= MC_BF16; dtype++) {
            const tiny_family *family = &tiny_families[f];
            bool own_form = mc_family_find(family->name)->own_form;
            temp_folder folder = temp_folder_new();
            mc_context *a = mc_init_distributed(&(mc_init_options){.seed = 1}),
                       *b = logging_context(99);
            mc_model *saved = tiny_model(a, family, &(mc_load_options){.dtype = dtype});
            assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
            /* ModelCenter's form does not tell bf16 */
            bool told = !(own_form && dtype == MC_BF16);
            mc_load_options o = {.saved_dtype = told, .dtype = told ? 0 : dtype};
            mc_model *loaded = mc_model_from_pretrained(b, folder.path, &o);
            assert_good(b);
            assert_string_equal(log_text, "");
            assert_string_equal(mc_model_family(loaded), family->name);
            assert_int_equal(mc_model_module(loaded)->root->dtype, dtype);
            assert_memory_equal(loaded->config, saved->config, saved->family->config_size);
            assert_same_parameters(saved, loaded);
            int64_t count = family_logits(saved, (part){LENGTHS, -1}, saved_logits);
            assert_int_equal(family_logits(loaded, (part){LENGTHS, -1}, logits), count);
            assert_memory_equal(logits, saved_logits, (size_t)count * sizeof *logits);
            mc_context_free(a);
            mc_context_free(b);
            temp_folder_free(&folder);
        }
}

/* The same ids of a text, specials and types included. */
static void assert_same_ids(const mc_tokenizer *a, const mc_tokenizer *b, const char *text)
{
    mc_encoding x = {0}, y = {0};
    assert_int_equal(mc_tokenizer_encode(a, text, strlen(text), "a", 1, 0, &x), MC_OK);
    assert_int_equal(mc_tokenizer_encode(b, text, strlen(text), "a", 1, 0, &y), MC_OK);
    assert_true(x.count > 4);
    assert_int_equal(x.count, y.count);
    assert_memory_equal(x.ids, y.ids, x.count * sizeof *x.ids);
    assert_memory_equal(x.type_ids, y.type_ids, x.count * sizeof *x.type_ids);
    mc_encoding_release(&x);
    mc_encoding_release(&y);
}

/* One call saves both, here in place of a model and a tokenizer that were there. */
static void test_save_with_tokenizer(void **state)
{
    (void)state;
    static const char quickstart[] = MC_SOURCE_DIR "/datasets/quickstart";
    static float saved_logits[MOST_LOGITS], logits[MOST_LOGITS];
    for (int f = 0; f < TINY_FAMILIES; f++) {
        temp_folder folder = temp_folder_new();
        mc_context *a = mc_init_distributed(&(mc_init_options){.seed = 1}),
                   *b = logging_context(99);
        mc_tokenizer *tok = mc_tokenizer_from_pretrained(a, quickstart);
        assert_non_null(tok);
        mc_model *before = tiny_model(a, &tiny_families[f], NULL);
        mc_model *saved = tiny_model(a, &tiny_families[f], NULL); /* other weights */
        assert_int_equal(mc_save_pretrained(before, tok, folder.path, NULL), MC_OK);
        assert_int_equal(mc_save_pretrained(saved, tok, folder.path, NULL), MC_OK);
        mc_model *loaded = mc_model_from_pretrained(b, folder.path, NULL);
        mc_tokenizer *read = mc_tokenizer_from_pretrained(b, folder.path);
        assert_good(b);
        assert_string_equal(log_text, "");
        assert_same_parameters(saved, loaded);
        int64_t count = family_logits(saved, (part){LENGTHS, -1}, saved_logits);
        assert_int_equal(family_logits(loaded, (part){LENGTHS, -1}, logits), count);
        assert_memory_equal(logits, saved_logits, (size_t)count * sizeof *logits);
        assert_same_ids(tok, read, "is THE the, in a");
        mc_context_free(a);
        mc_context_free(b);
        temp_folder_free(&folder);
    }
}

/* Saves in three ways to "new/model" with a limit of `bytes` a file; each fails. */
static void check_failed_saves(mc_context *ctx, const temp_folder *folder, rlim_t bytes)
{
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, MC_SOURCE_DIR "/datasets/quickstart");
    mc_model *model = tiny_model(ctx, &tiny_families[0], NULL);
    const char *path = temp_path(folder, "new/model");
    struct rlimit before, small;
    assert_good(ctx);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = bytes;
    signal(SIGXFSZ, SIG_IGN);
    for (int call = 0; call < 3; call++) {
        setrlimit(RLIMIT_FSIZE, &small);
        mc_status status = call == 0   ? mc_model_save(model, path)
                           : call == 1 ? mc_tokenizer_save(tok, path)
                                       : mc_save_pretrained(model, tok, path, NULL);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_int_equal(status, MC_ERR_IO);
        assert_error(ctx, MC_ERR_IO, "cannot write", "File too large");
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* It leaves no folder that it made, and each that was there. */
static void test_failed_save(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    check_failed_saves(ctx, &folder, 10);
    assert_int_equal(count_files(folder.path), 0);
    assert_int_equal(mkdir(temp_path(&folder, "new"), 0777), 0);
    check_failed_saves(ctx, &folder, 10);
    assert_int_equal(count_files(temp_path(&folder, "new")), 0);
    assert_int_equal(mkdir(temp_path(&folder, "new/model"), 0777), 0);
    check_failed_saves(ctx, &folder, 10);
    assert_int_equal(count_files(temp_path(&folder, "new/model")), 0);
    temp_folder_free(&folder);
}

/* The error names the model, the field, the sequence and the token in it. */
static void test_id_out_of_range(void **state)
{
    mc_context *ctx = *state;
    const int64_t good[] = {1, 2, 3, 4, 5, 6}, bad[] = {1, 2, 3, 4, 5, VOCABULARY};
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        char expected[128];
        bool pair = is_kind(model, MC_MODEL_ENCODER_DECODER);
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = {.ids = mc_tape_input(t, MC_I64, MC_SHAPE(2, 3), bad, false)};
        if (pair) in.decoder_ids = mc_tape_input(t, MC_I64, MC_SHAPE(2, 3), good, false);
        snprintf(expected, sizeof expected,
                 "ids of sequence 1, token 2 (from 0): %d, expected 0 to %d", VOCABULARY,
                 VOCABULARY - 1);
        assert_null(mc_model_forward(t, model, &in).last_hidden);
        assert_error(ctx, MC_ERR_ARGUMENT, expected);
        if (pair) {
            in = (mc_model_input){.ids = in.decoder_ids, .decoder_ids = in.ids};
            assert_null(mc_model_forward(t, model, &in).last_hidden);
            assert_error(ctx, MC_ERR_ARGUMENT, "decoder_ids of sequence 1, token 2");
        }
        mc_tape_end(t);
        mc_model_free(model);
    }
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* All tensors of the tape, newest first. */
static void assert_nothing_recorded(const mc_tensor *x)
{
    for (; x; x = x->previous) {
        assert_null(x->node);
        assert_null(x->gradient);
        assert_false(x->requires_grad);
        if (x->storage && mc_dtype_is_float(x->dtype)) assert_int_equal(x->storage->saves, 0);
    }
}

/* Nothing is kept for a backward pass that never comes: no node, no saved tensor, no gradient. */
static void test_evaluation_records_nothing(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 5});
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        for (int training = 0; training < 2; training++) {
            mc_tape *t = training ? mc_tape_begin(ctx) : mc_tape_begin_eval(ctx);
            mc_model_input in = input_for(t, model, (part){PACKED, -1});
            mc_model_output out = mc_model_forward(t, model, &in);
            mc_tensor *logits = mc_model_logits(t, model, out.last_hidden);
            assert_good(ctx);
            mc_tensor *last = mc_tape_input(t, MC_F32, MC_SHAPE(1), NULL, false);
            if (training)
                assert_non_null(logits->node);
            else
                assert_nothing_recorded(last);
            mc_tape_end(t);
        }
        mc_context_free(ctx);
    }
}

enum { END = 1 }; /* T5's */

static int64_t ended_id_at(int row, int column)
{
    return column + 1 == batch_lengths[row] ? END : id_at(row, column);
}

static void class_logits(mc_model *model, int labels, float *out)
{
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = input_for(t, model, (part){PACKED, -1});
    if (is_kind(model, MC_MODEL_ENCODER_DECODER)) {
        in.ids = tokens_for(t, (part){PACKED, -1}, in.lengths, WIDTH, ended_id_at);
        in.decoder_ids = mc_model_shift_right(t, model, in.ids, in.lengths);
        in.decoder_lengths = in.lengths;
    }
    mc_model_output output = mc_model_forward(t, model, &in);
    mc_tensor *x = mc_model_classify(t, model, &output);
    assert_good(ctx);
    assert_true(mc_shape_equal(x->shape, MC_SHAPE(BATCH, labels)));
    mc_tensor_read_f32(ctx, x, out, BATCH * labels);
    mc_tape_end(t);
}

/* Classifiers, their task and their labels; families that have none say so. */
static void test_classifiers(void **state)
{
    (void)state;
    enum { LABELS = 3 };
    const char *names[LABELS] = {"no", "yes", "who knows"};
    for (int f = 0; f < TINY_FAMILIES; f++) {
        const tiny_family *family = &tiny_families[f];
        mc_context *ctx = logging_context(3);
        mc_model *model = model_of(ctx, family->name, family->config, NULL,
                                   &(mc_load_options){.num_labels = LABELS});
        if (!mc_family_find(family->name)->has.labels) {
            assert_null(model);
            assert_error(ctx, MC_ERR_UNSUPPORTED, "no classification head");
            mc_context_free(ctx);
            continue;
        }
        assert_good(ctx);
        temp_folder folder = temp_folder_new();
        mc_model_set_task(model, "RTE", names);
        assert_int_equal(mc_model_save(model, folder.path), MC_OK);
        mc_model *loaded = mc_model_from_pretrained(ctx, folder.path, NULL);
        assert_good(ctx);
        assert_string_equal(log_text, "");
        assert_int_equal(mc_model_get_heads(loaded).labels, LABELS);
        assert_false(mc_model_get_heads(loaded).lm);
        assert_string_equal(mc_model_task(loaded), "RTE");
        assert_string_equal(mc_model_label_name(loaded, 2), names[2]);
        float expected[BATCH * LABELS], found[BATCH * LABELS];
        class_logits(model, LABELS, expected);
        class_logits(loaded, LABELS, found);
        assert_memory_equal(found, expected, sizeof found);
        assert_true(expected[0] != expected[LABELS]); /* sequences differ */
        mc_context_free(ctx);
        temp_folder_free(&folder);
    }
}

/* The labels of a folder that is not loaded; a new head in place of its own; rows in another
 * order. */
static void test_heads_of_folders(void **state)
{
    (void)state;
    enum { LABELS = 3 };
    const char *names[LABELS] = {"gamma", "alpha", "beta"};
    const int from[LABELS] = {1, 2, 0};
    for (int f = 0; f < TINY_FAMILIES; f++) {
        const tiny_family *family = &tiny_families[f];
        if (!mc_family_find(family->name)->has.labels) continue;
        mc_context *ctx = logging_context(3);
        temp_folder folder = temp_folder_new();
        mc_model *model = model_of(ctx, family->name, family->config, NULL,
                                   &(mc_load_options){.num_labels = LABELS});
        assert_string_equal(mc_model_label_name(model, 2), "LABEL_2");
        mc_model_set_task(model, NULL, names);
        mc_model_set_problem_type(model, "single_label_classification");
        mc_model_save(model, folder.path);
        mc_model_labels had;
        assert_int_equal(mc_model_labels_read(ctx, folder.path, NULL, &had), MC_OK);
        assert_int_equal(had.count, LABELS);
        for (int k = 0; k < LABELS; k++) assert_string_equal(had.name[k], names[k]);
        assert_string_equal(had.problem_type, "single_label_classification");
        mc_model_labels_release(&had);

        float expected[BATCH * LABELS], found[BATCH * LABELS];
        class_logits(model, LABELS, expected);
        assert_int_equal(mc_model_order_labels(model, from), MC_OK);
        class_logits(model, LABELS, found);
        for (int i = 0; i < BATCH * LABELS; i++)
            assert_float_equal(found[i], expected[i / LABELS * LABELS + from[i % LABELS]], 0);
        assert_string_equal(mc_model_label_name(model, 0), "alpha");
        assert_string_equal(mc_model_label_name(model, 2), "gamma");

        mc_load_options two = {.num_labels = 2, .new_head = true};
        mc_model *other = mc_model_from_pretrained(ctx, folder.path, &two);
        assert_good(ctx);
        assert_string_equal(log_text, "");
        assert_int_equal(mc_model_get_heads(other).labels, 2);
        assert_string_equal(mc_model_label_name(other, 1), "LABEL_1");
        class_logits(other, 2, found);
        two.new_head = false;
        assert_null(mc_model_from_pretrained(ctx, folder.path, &two));
        assert_error(ctx, MC_ERR_SHAPE, "expected (2, ");
        mc_context_free(ctx);
        temp_folder_free(&folder);
    }
}

/* Decoders' classifiers read the last token that is not padding, also where a text ends with it: as
 * GPT2ForSequenceClassification does, which reads the first of padding alone. */
static void test_classifier_past_padding(void **state)
{
    (void)state;
    enum { LABELS = 2, PAD = 7, SEQUENCES = 3, LENGTH = 4 };
    const int32_t ids[SEQUENCES * LENGTH] = {5, 9, PAD, PAD, 5, 9, 3, 4, PAD, PAD, PAD, PAD};
    const int expected[SEQUENCES] = {1, 3, 0};
    const char *families[] = {"gpt2", "gptj"};
    for (int f = 0; f < 2; f++) {
        for (int pad = -1; pad <= PAD; pad += PAD + 1) {
            mc_context *ctx = logging_context(3);
            mc_model *model = model_of(ctx, families[f], tiny(families[f])->config, NULL,
                                       &(mc_load_options){.num_labels = LABELS});
            model->shape.pad_token = pad;
            mc_tape *t = mc_tape_begin_eval(ctx);
            mc_model_input in = {
                .ids = mc_tape_input(t, MC_I32, MC_SHAPE(SEQUENCES, LENGTH), ids, false)};
            mc_model_output out = mc_model_forward(t, model, &in);
            float rows[SEQUENCES * LENGTH * LABELS], found[SEQUENCES * LABELS];
            mc_tensor_read_f32(ctx, mc_linear_forward(t, model->score, out.last_hidden), rows,
                               SEQUENCES * LENGTH * LABELS);
            mc_tensor_read_f32(ctx, mc_model_classify(t, model, &out), found, SEQUENCES * LABELS);
            assert_good(ctx);
            for (int i = 0; i < SEQUENCES * LABELS; i++) {
                int row = pad < 0 ? LENGTH - 1 : expected[i / LABELS];
                assert_float_equal(found[i],
                                   rows[(i / LABELS * LENGTH + row) * LABELS + i % LABELS], 1e-6);
            }
            mc_tape_end(t);
            mc_context_free(ctx);
        }
    }
}

/* T5's needs an end of text, as T5ForSequenceClassification does. */
static void test_classifier_without_end(void **state)
{
    (void)state;
    mc_context *ctx = logging_context(3);
    mc_model *model =
        model_of(ctx, "t5", tiny("t5")->config, NULL, &(mc_load_options){.num_labels = 2});
    mc_tape *t = mc_tape_begin_eval(ctx);
    const int32_t ids[] = {5, 9, 3};
    mc_tensor *x = mc_tape_input(t, MC_I32, MC_SHAPE(1, 3), ids, false);
    mc_model_input in = {.ids = x, .decoder_ids = mc_model_shift_right(t, model, x, NULL)};
    mc_model_output out = mc_model_forward(t, model, &in);
    assert_null(mc_model_classify(t, model, &out));
    assert_error(ctx, MC_ERR_ARGUMENT, "sequence 0 has no token that ends a text");
    mc_tape_end(t);
    mc_context_free(ctx);
}

/* ModelCenter's logits of each token: its own form keeps them, Hugging Face's has no such thing. */
static void test_token_heads(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        const tiny_family *family = &tiny_families[f];
        temp_folder folder = temp_folder_new();
        mc_model_heads heads = {.pooler = mc_family_find(family->name)->has.pooler,
                                .token_labels = 6};
        mc_model *model = model_of(ctx, family->name, family->config, &heads, NULL);
        assert_good(ctx);
        mc_model_save(model, folder.path);
        if (!model->family->own_form) {
            assert_error(ctx, MC_ERR_UNSUPPORTED, "6 units", "no Hugging Face form");
        } else {
            mc_model *loaded = mc_model_from_pretrained(ctx, folder.path, NULL);
            assert_good(ctx);
            assert_int_equal(mc_model_get_heads(loaded).token_labels, 6);
            assert_same_parameters(model, loaded);
        }
        temp_folder_free(&folder);
    }
}

/* ---- batches that the family has no use for -------------------------------------------------- */

static mc_tensor *numbers(mc_tape *t, mc_shape shape, int32_t every, int32_t last)
{
    int32_t data[64];
    int64_t count = mc_shape_count(shape);
    for (int64_t i = 0; i < count; i++) data[i] = i + 1 < count ? every : last;
    return mc_tape_input(t, MC_I32, shape, data, false);
}

#define REFUSED(model, status, ...)                               \
    do {                                                          \
        assert_null(mc_model_forward(t, model, &in).last_hidden); \
        assert_error(ctx, status, __VA_ARGS__);                   \
    } while (0)

static void test_fields_without_use(void **state)
{
    mc_context *ctx = *state;
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *ids = numbers(t, MC_SHAPE(2, 3), 1, 2);
    const mc_lengths *l = mc_tape_lengths(t, (int32_t[]){3, 2}, 2, 1);
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        const mc_family *family = model->family;
        bool two = family->kind == MC_MODEL_ENCODER_DECODER;
        const struct {
            const char *name;
            mc_model_input in;
            bool used;
        } fields[] = {
            {"type_ids", {.ids = ids, .type_ids = ids}, family->has.types},
            {"decoder_ids", {.ids = ids, .decoder_ids = ids}, two},
            {"decoder_lengths", {.ids = ids, .decoder_lengths = l}, two},
            {"context", {.ids = ids, .context = ids}, family->has.marks},
            {"span", {.ids = ids, .span = ids}, family->has.marks},
            {"global_mask", {.ids = ids, .global_mask = ids}, family->has.globals},
        };
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            mc_model_input in = fields[i].in;
            if (!fields[i].used) REFUSED(model, MC_ERR_ARGUMENT, family->title, fields[i].name);
        }
        mc_model_input in = {.decoder_ids = two ? ids : NULL};
        REFUSED(model, MC_ERR_ARGUMENT, family->title, "\"ids\" is NULL");
        in.ids = ids;
        assert_null(mc_model_forward(NULL, model, &in).last_hidden);
        assert_error(ctx, MC_ERR_ARGUMENT, "mc_model_forward: its tape is NULL");
    }
    mc_tape_end(t);
}

static void test_marks_that_do_not_fit(void **state)
{
    mc_context *ctx = *state;
    mc_model *cpm = tiny_model(ctx, tiny("cpm1"), NULL);
    mc_tape *t = mc_tape_begin(ctx);
    mc_shape shape = MC_SHAPE(2, 3), other = MC_SHAPE(3, 2);
    mc_tensor *ids = numbers(t, shape, 1, 2);
    mc_model_input in = {.ids = ids, .context = numbers(t, other, 0, 1)};
    REFUSED(cpm, MC_ERR_SHAPE, "CPM-1", "context", "(3, 2)");
    in.context = numbers(t, shape, 0, 2);
    REFUSED(cpm, MC_ERR_ARGUMENT, "CPM-1", "context 2 of token 5", "0 to 1");
    in.context = mc_tape_input(t, MC_F32, shape, NULL, false);
    REFUSED(cpm, MC_ERR_DTYPE, "context", "f32");
    in.context = NULL;
    in.span = numbers(t, shape, 0, -1);
    REFUSED(cpm, MC_ERR_ARGUMENT, "CPM-1", "span -1 of token 5", "expected 0 to");
    in.span = numbers(t, shape, 1 << 30, 0);
    REFUSED(cpm, MC_ERR_ARGUMENT, "span 1073741824 of token 0");
    in.span = numbers(t, MC_SHAPE(5), 0, 1);
    REFUSED(cpm, MC_ERR_SHAPE, "span", "(5)");
    in.span = numbers(t, shape, 0, 1);
    assert_non_null(mc_model_forward(t, cpm, &in).last_hidden);
    mc_tape_end(t);
}

static void test_decoder_input(void **state)
{
    mc_context *ctx = *state;
    static const char *const names[] = {"t5", "cpm2"};
    for (int f = 0; f < 2; f++) {
        mc_model *model = tiny_model(ctx, tiny(names[f]), NULL);
        const char *title = model->family->title;
        mc_tape *t = mc_tape_begin(ctx);
        mc_tensor *ids = numbers(t, MC_SHAPE(2, 3), 1, 2);
        mc_model_input in = {.ids = ids};
        REFUSED(model, MC_ERR_ARGUMENT, title, "decoder_ids");
        in.decoder_ids = numbers(t, MC_SHAPE(3, 3), 1, 2);
        REFUSED(model, MC_ERR_SHAPE, title, "3 sequences", "2");
        in.decoder_ids = numbers(t, MC_SHAPE(2, 2), 1, VOCABULARY);
        REFUSED(model, MC_ERR_ARGUMENT, "decoder_ids of sequence 1, token 1 (from 0): 50",
                "0 to 49");
        in.decoder_ids = numbers(t, MC_SHAPE(4), 1, 2);
        REFUSED(model, MC_ERR_SHAPE, title, "(4)", "lengths");
        in.decoder_lengths = mc_tape_lengths(t, (int32_t[]){1, 3}, 2, 1);
        assert_non_null(mc_model_forward(t, model, &in).last_hidden);
        mc_tape_end(t);
    }
}

/* ---- configs and heads that make no sense ---------------------------------------------------- */

static const struct bad_config {
    const char *family, *text;
    mc_status status;
    const char *words[3];
} bad_configs[] = {
    {"t5", "{\"num_heads\": 0}", MC_ERR_FORMAT, {"config.json: key \"num_heads\"", "from 1"}},
    {"t5", "{\"relative_attention_num_buckets\": 7}", MC_ERR_FORMAT, {"7 buckets", "even number"}},
    {"t5",
     "{\"feed_forward_proj\": \"gated-mish\"}",
     MC_ERR_UNSUPPORTED,
     {"feed_forward_proj", "gated-mish"}},
    {"t5", "{\"is_encoder_decoder\": false}", MC_ERR_UNSUPPORTED, {"is_encoder_decoder", "false"}},
    {"t5", "{\"dropout_rate\": 1}", MC_ERR_FORMAT, {"dropout_rate"}},
    {"t5", "{\"model_type\": \"umt5\"}", MC_ERR_UNSUPPORTED, {"model_type", "umt5"}},
    {"t5",
     "{\"dim_head\": 64, \"position_size\": 5}",
     MC_ERR_UNSUPPORTED,
     {"position_size", "another family than T5"}},
    {"mpnet", "{\"pad_token_id\": 0}", MC_ERR_UNSUPPORTED, {"pad_token_id", "0", "expected 1"}},
    {"mpnet",
     "{\"relative_attention_num_buckets\": 16}",
     MC_ERR_UNSUPPORTED,
     {"relative_attention_num_buckets", "16", "expected 32"}},
    {"mpnet",
     "{\"max_position_embeddings\": 2}",
     MC_ERR_FORMAT,
     {"2 rows of positions", "the first 2", "more"}},
    {"modernbert", "{\"local_attention\": 0}", MC_ERR_FORMAT, {"local_attention", "from 1"}},
    {"modernbert", "{\"attention_bias\": true}", MC_ERR_UNSUPPORTED, {"attention_bias", "false"}},
    {"modernbert",
     "{\"classifier_pooling\": \"max\"}",
     MC_ERR_FORMAT,
     {"classifier_pooling", "expected cls or mean", "max"}},
    {"modernbert",
     "{\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"longrope\"}}}",
     MC_ERR_UNSUPPORTED,
     {"sliding_attention.rope_type", "longrope", "default"}},
    {"modernbert",
     "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 2}}}",
     MC_ERR_UNSUPPORTED,
     {"full_attention", "scaled", "expected default"}},
    {"modernbert",
     "{\"num_hidden_layers\": 2, \"layer_types\": [\"sliding_attention\", \"full_attention\"]}",
     MC_ERR_UNSUPPORTED,
     {"layer_types", "sliding_attention", "full_attention for the first layer"}},
    {"modernbert", "{\"num_attention_heads\": 768}", MC_ERR_FORMAT, {"heads of 1", "even"}},
    {"longformer", "{\"attention_window\": 0}", MC_ERR_FORMAT, {"attention_window", "from 2"}},
    {"longformer", "{\"attention_window\": 7}", MC_ERR_FORMAT, {"attention_window", "even"}},
    {"longformer",
     "{\"attention_window\": [4, 6]}",
     MC_ERR_UNSUPPORTED,
     {"attention_window", "different values", "the same for each layer"}},
    {"longformer",
     "{\"attention_window\": [4, 4]}",
     MC_ERR_FORMAT,
     {"attention_window", "a list of 2", "12 layers"}},
    {"longformer", "{\"attention_mode\": \"tvm\"}", MC_ERR_UNSUPPORTED, {"attention_mode", "tvm"}},
    {"longformer",
     "{\"hidden_act\": \"mish\"}",
     MC_ERR_UNSUPPORTED,
     {"hidden_act", "mish", "gelu"}},
    {"longformer", "{\"num_attention_heads\": 5}", MC_ERR_FORMAT, {"\"num_attention_heads\"", "5"}},
    {"modernbert", "{\"num_attention_heads\": 5}", MC_ERR_FORMAT, {"\"num_attention_heads\"", "5"}},
    {"modernbert", "{\"global_attn_every_n_layers\": 0}", MC_ERR_FORMAT, {"every_n", "from 1"}},
    {"modernbert", "{\"rope_scaling\": {}}", MC_ERR_UNSUPPORTED, {"rope_scaling", "null"}},
    {"modernbert", "{\"hidden_activation\": \"mish\"}", MC_ERR_UNSUPPORTED, {"mish", "gelu"}},
    {"electra", "{\"num_attention_heads\": 5}", MC_ERR_FORMAT, {"\"num_attention_heads\"", "5"}},
    {"electra", "{\"hidden_act\": \"mish\"}", MC_ERR_UNSUPPORTED, {"hidden_act", "mish"}},
    {"mpnet", "{\"num_attention_heads\": 5}", MC_ERR_FORMAT, {"\"num_attention_heads\"", "5"}},
    {"mpnet", "{\"hidden_act\": \"mish\"}", MC_ERR_UNSUPPORTED, {"hidden_act", "mish"}},
    {"vit", "{\"num_attention_heads\": 5}", MC_ERR_FORMAT, {"\"num_attention_heads\"", "5"}},
    {"vit", "{\"patch_size\": 15}", MC_ERR_FORMAT, {"patch_size", "15", "divisor"}},
    {"vit", "{\"pooler_output_size\": 8}", MC_ERR_UNSUPPORTED, {"pooler_output_size", "8", "768"}},
    {"vit", "{\"qkv_bias\": false}", MC_ERR_UNSUPPORTED, {"qkv_bias", "expected true"}},
    {"glm", "{\"dim_model\": 30, \"num_heads\": 4}", MC_ERR_FORMAT, {"\"num_heads\"", "4 heads"}},
    {"glm", "{\"dim_head\": 64, \"sop_tok_id\": 50048}", MC_ERR_FORMAT, {"sop_tok_id", "50048"}},
    {"glm", "{\"dim_head\": 64, \"pos_bias_type\": \"rotary\"}", MC_ERR_UNSUPPORTED, {"rotary"}},
    {"electra", "{\"embedding_size\": 0}", MC_ERR_FORMAT, {"embedding_size", "from 1"}},
    {"electra", "{\"is_decoder\": true}", MC_ERR_UNSUPPORTED, {"is_decoder", "expected false"}},
    {"electra", "{\"pad_token_id\": 30522}", MC_ERR_FORMAT, {"pad_token_id 30522"}},
    {"distilbert", "{\"n_heads\": 7}", MC_ERR_FORMAT, {"\"n_heads\"", "dim 768", "7 heads"}},
    {"distilbert", "{\"activation\": \"mish\"}", MC_ERR_UNSUPPORTED, {"activation", "mish"}},
    {"distilbert", "{\"dim_model\": 64}", MC_ERR_UNSUPPORTED, {"ModelCenter's form"}},
    {"gptj", "{\"n_embd\": 30, \"n_head\": 4}", MC_ERR_FORMAT, {"dim 30", "4 heads"}},
    {"gptj",
     "{\"n_embd\": 32, \"n_head\": 4, \"rotary_dim\": 16}",
     MC_ERR_FORMAT,
     {"16 rotary columns"}},
    {"gptj",
     "{\"n_embd\": 32, \"n_head\": 4, \"rotary_dim\": 3}",
     MC_ERR_FORMAT,
     {"3 rotary columns", "even"}},
    {"gptj",
     "{\"dim_head\": 64, \"att_bias\": true}",
     MC_ERR_UNSUPPORTED,
     {"att_bias", "expected false"}},
    {"cpm1", "{\"dim_model\": \"wide\"}", MC_ERR_FORMAT, {"dim_model", "wide"}},
    {"cpm1",
     "{\"dim_head\": 64, \"position_bias_num_buckets\": 6}",
     MC_ERR_FORMAT,
     {"6 buckets", "fours"}},
    {"cpm1",
     "{\"dim_head\": 64, \"num_decoder_layers\": 6}",
     MC_ERR_UNSUPPORTED,
     {"num_decoder_layers", "CPM-1"}},
    {"cpm2", "{\"dim_head\": 64, \"norm_bias\": true}", MC_ERR_UNSUPPORTED, {"norm_bias"}},
    {"cpm2",
     "{\"dim_head\": 64, \"pos_bias_type\": \"rotary\"}",
     MC_ERR_UNSUPPORTED,
     {"pos_bias_type", "rotary"}},
    {"cpm2", "[]", MC_ERR_FORMAT, {"config.json"}},
};

static void test_bad_configs(void **state)
{
    mc_context *ctx = *state;
    for (size_t i = 0; i < sizeof bad_configs / sizeof *bad_configs; i++) {
        const struct bad_config *bad = &bad_configs[i];
        mc_model *model = model_of(ctx, bad->family, bad->text, NULL, NULL);
        if (model || mc_error_status(ctx) != bad->status)
            fail_msg("%s: %s", bad->text, mc_error_message(ctx));
        for (int w = 0; w < 3 && bad->words[w]; w++)
            if (!strstr(mc_error_message(ctx), bad->words[w]))
                fail_msg("%s: no \"%s\" in \"%s\"", bad->text, bad->words[w],
                         mc_error_message(ctx));
        mc_clear_error(ctx);
    }
    assert_null(model_of(ctx, "gpt5", "{}", NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "gpt5", "bert, gpt2, t5, gptj, cpm1, cpm2, roberta, llama");
    assert_null(mc_model_new(ctx, "t5", "t5-tiny", NULL, NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "T5", "t5-tiny", "t5-small", "google/flan-t5-xl");
    assert_null(mc_model_new(ctx, "cpm1", "gpt2", NULL, NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "CPM-1", "gpt2", "cpm1-large");
    assert_null(mc_model_from_pretrained_of(ctx, "gpt5", "gpt2", NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "gpt5", "cpm2");
    assert_int_equal(ctx->device->memory.in_use, 0);
}

/* A key that nobody knows is worth a word. */
static void test_unknown_keys(void **state)
{
    (void)state;
    mc_context *ctx = logging_context(1);
    mc_t5_config config;
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "config.json");
    write_text(path, "{\"d_model\": 32, \"use_cache\": true, \"flavour\": 3, \"taste\": null}");
    assert_int_equal(mc_t5_config_read(ctx, path, &config), MC_OK);
    assert_int_equal(config.dim, 32);
    assert_non_null(strstr(log_text, "config.json: key \"flavour\" is not known"));
    assert_null(strstr(log_text, "use_cache"));
    assert_null(strstr(log_text, "taste"));
    mc_context_free(ctx);
    temp_folder_free(&folder);
}

/* Keys of released files that change nothing give no warning. */
static void test_released_keys(void **state)
{
    (void)state;
    static const struct {
        const char *family, *keys;
    } released[] = {
        {"modernbert", "\"position_embedding_type\": \"absolute\", \"layer_norm_eps\": 1e-5, "
                       "\"gradient_checkpointing\": false"},
        {"longformer", "\"position_embedding_type\": \"absolute\", \"attention_mode\": "
                       "\"longformer\", \"ignore_attention_mask\": false"},
        {"distilbert", "\"tie_weights_\": true, \"sinusoidal_pos_embds\": false"},
        {"llama", "\"is_llama_config\": true, \"rope_interleaved\": false, \"use_mrope\": false, "
                  "\"pretraining_tp\": 1"},
        {"opt", "\"activation_dropout\": 0.0, \"layerdrop\": 0.0, \"prefix\": \"</s>\""},
    };
    mc_context *ctx = logging_context(1);
    for (size_t i = 0; i < sizeof released / sizeof *released; i++) {
        const char *plain = tiny(released[i].family)->config;
        char config[1024];
        snprintf(config, sizeof config, "{%s, %s", released[i].keys, plain + 1);
        assert_non_null(model_of(ctx, released[i].family, config, NULL, NULL));
        assert_string_equal(log_text, "");
    }
    assert_null(model_of(ctx, "llama", "{\"rope_interleaved\": true}", NULL, NULL));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "rope_interleaved", "true", "expected false");
    mc_context_free(ctx);
}

/* A classifier of tokens or choices has the names of one of texts, and is none. */
static void test_other_classifiers(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"bert", "BertForTokenClassification"},
                                           {"bert", "BertForMultipleChoice"},
                                           {"modernbert", "ModernBertForTokenClassification"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mc_context *ctx = logging_context(1);
        temp_folder folder = temp_folder_new();
        const char *path = temp_path(&folder, "config.json");
        const mc_model_heads three = {.pooler = cases[i][0][0] == 'b', .labels = 3};
        mc_model *model = model_of(ctx, cases[i][0], tiny(cases[i][0])->config, &three, NULL);
        assert_int_equal(mc_model_save(model, folder.path), MC_OK);
        mc_model_free(model);
        cJSON *json = mc_json_read_object(&ctx->error, path, 1 << 20);
        cJSON_ReplaceItemInObjectCaseSensitive(json, "architectures",
                                               cJSON_CreateStringArray(&cases[i][1], 1));
        char *changed = cJSON_Print(json);
        write_text(path, changed);
        cJSON_free(changed);
        cJSON_Delete(json);
        model = mc_model_from_pretrained(ctx, folder.path, NULL);
        assert_good(ctx);
        assert_int_equal(mc_model_get_heads(model).labels, 0);
        assert_non_null(strstr(log_text, cases[i][1]));
        mc_model_free(model);
        model = mc_model_from_pretrained(ctx, folder.path, &(mc_load_options){.num_labels = 2});
        assert_good(ctx);
        assert_int_equal(mc_model_get_heads(model).labels, 2);
        mc_context_free(ctx);
        temp_folder_free(&folder);
    }
}

static void test_heads_without_use(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        const tiny_family *family = &tiny_families[f];
        const mc_family *of = mc_family_find(family->name);
        const struct {
            const char *name;
            mc_model_heads heads;
            bool has;
        } heads[] = {
            {"pooler", {.pooler = true}, of->has.pooler},
            {"next sentence head", {.pooler = of->has.pooler, .nsp = true}, of->has.nsp},
            {"classification head", {.pooler = of->has.pooler, .labels = 2}, of->has.labels}};
        for (int i = 0; i < 3; i++) {
            mc_model *model = model_of(ctx, family->name, family->config, &heads[i].heads, NULL);
            if (heads[i].has)
                assert_good(ctx);
            else
                assert_error(ctx, MC_ERR_UNSUPPORTED, of->title, heads[i].name);
            assert_int_equal(model != NULL, heads[i].has);
        }
        assert_null(model_of(ctx, family->name, family->config,
                             &(mc_model_heads){.labels = MC_MODEL_MAX_LABELS + 1}, NULL));
        assert_error(ctx, MC_ERR_ARGUMENT, of->title, "1025 labels");
    }
}

/* Each family's loader refuses each other family's folder, by name. */
static void test_other_families_folders(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        temp_folder folder = temp_folder_new();
        mc_model *saved = tiny_model(ctx, &tiny_families[f], NULL);
        assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
        const char *name, *title = saved->family->title;
        for (int i = 0; (name = mc_family_name(i)); i++) {
            mc_model *model = mc_model_from_pretrained_of(ctx, name, folder.path, NULL);
            if (strcmp(name, tiny_families[f].name) == 0) {
                assert_good(ctx);
                mc_model_free(model);
                continue;
            }
            assert_null(model);
            assert_error(ctx, MC_ERR_UNSUPPORTED, title, mc_family_find(name)->title,
                         "config.json");
        }
        temp_folder_free(&folder);
    }
}

/* Without loading. */
static void test_family_of_folder(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        temp_folder folder = temp_folder_new();
        mc_model *saved = tiny_model(ctx, &tiny_families[f], NULL);
        const char *name = saved->family->name;
        assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
        assert_string_equal(mc_family_of_pretrained(ctx, folder.path, NULL), name);
        assert_string_equal(mc_family_of_config(ctx, folder.path), name);
        mc_model *again = mc_model_new(ctx, NULL, folder.path, NULL, NULL);
        assert_string_equal(mc_model_family(again), name);
        assert_good(ctx);
        temp_folder_free(&folder);
    }
}

/* ModelCenter's own configs say their family with the weights only. */
static void test_family_of_modelcenters_config(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new(), weights = temp_folder_new();
    mc_model *saved = tiny_model(ctx, tiny("gpt2"), NULL);
    mc_save_options form = {.form = MC_SAVE_MODELCENTER};
    assert_int_equal(mc_model_save_as(saved, weights.path, &form), MC_OK);
    assert_string_equal(mc_family_of_pretrained(ctx, weights.path, NULL), "gpt2");
    write_text(temp_path(&folder, "config.json"), "{\"dim_model\": 32, \"num_layers\": 2}");
    assert_null(mc_family_of_config(ctx, folder.path));
    assert_error(ctx, MC_ERR_UNSUPPORTED, "config.json", "model_type", "gpt2", "--family");
    temp_folder_free(&weights);
    temp_folder_free(&folder);
}

static void test_family_of_shape(void **state)
{
    mc_context *ctx = *state;
    const char *family, *names;
    for (int f = 0; (family = mc_family_name(f)); f++)
        for (int i = 0; (names = mc_family_shape_name(family, i)); i++)
            for (const char *at = names; *at; at += strcspn(at, " "), at += *at == ' ') {
                char name[128];
                snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
                assert_string_equal(mc_family_of_config(ctx, name), family);
            }
    assert_null(mc_family_of_config(ctx, "gpt9"));
    assert_error(ctx, MC_ERR_NOT_FOUND, "gpt9", "gpt2-xl", "bert-base-uncased", "t5-small");
    assert_null(mc_family_of_config(ctx, "./nowhere/config.json"));
    assert_error(ctx, MC_ERR_NOT_FOUND, "./nowhere/config.json", "", "", "");
    assert_null(mc_family_of_config(ctx, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "expected a shape's name", "", "", "");
    assert_null(mc_model_new(ctx, NULL, NULL, NULL, NULL));
    assert_error(ctx, MC_ERR_ARGUMENT, "expected one of", "bert", "", "");
    assert_null(mc_family_of_pretrained(ctx, "./nowhere", NULL));
    assert_error(ctx, MC_ERR_NOT_FOUND, "./nowhere", "", "", "");
}

/* ---- forms that change on the way ------------------------------------------------------------ */

/* Copies a weight file, with `factor` times one tensor added under another name. */
static void add_tensor(const char *path, const char *from, const char *as, float factor)
{
    enum { MOST = 128 };
    static mc_safetensors_spec specs[MOST];
    mc_context *ctx = mc_init_distributed(NULL);
    mc_tensor_file *in = mc_tensor_file_open(ctx, path, NULL);
    assert_good(ctx);
    size_t count = mc_tensor_file_count(in);
    const mc_tensor_entry *source = mc_tensor_file_find(in, from);
    assert_true(source && count < MOST);
    for (size_t i = 0; i <= count; i++) {
        const mc_tensor_entry *e = i < count ? mc_tensor_file_at(in, i) : source;
        specs[i] = (mc_safetensors_spec){.name = i < count ? e->name : as,
                                         .dtype = e->dtype,
                                         .ndim = e->ndim,
                                         .shape = e->shape};
    }
    char aside[1100], whole[1100];
    snprintf(whole, sizeof whole, "%s/model.safetensors", path);
    snprintf(aside, sizeof aside, "%s/aside", path);
    mc_safetensors_writer *out = mc_safetensors_writer_new(ctx, aside, specs, count + 1, NULL, 0);
    for (size_t i = 0; i < count; i++)
        mc_safetensors_write(out, mc_tensor_file_at(in, i)->data, mc_tensor_file_at(in, i)->size);
    float *values = malloc(source->size);
    assert_non_null(values);
    mc_tensor_file_read_f32(in, source, 0, source->count, values);
    for (int64_t i = 0; i < source->count; i++) values[i] *= factor;
    mc_safetensors_write(out, values, source->size);
    free(values);
    mc_safetensors_writer_commit(out);
    assert_good(ctx);
    mc_context_free(ctx);
    assert_int_equal(rename(aside, whole), 0);
}

/* A T5's file may have a head of its own, or the words again. */
static void test_heads_in_files(void **state)
{
    mc_context *ctx = *state;
    static float tied[MOST_LOGITS], found[MOST_LOGITS];
    for (int own = 0; own < 2; own++) {
        temp_folder folder = temp_folder_new();
        mc_model *saved = tiny_model(ctx, tiny("t5"), NULL);
        assert_int_equal(mc_model_save(saved, folder.path), MC_OK);
        add_tensor(folder.path, "shared.weight", "lm_head.weight", own ? -2 : 1);
        mc_model *loaded = mc_t5_from_pretrained(ctx, folder.path, NULL);
        assert_good(ctx);
        assert_int_equal(mc_t5_get_config(loaded).tied, !own);
        int64_t count = family_logits(saved, (part){PACKED, -1}, tied);
        family_logits(loaded, (part){PACKED, -1}, found);
        for (int64_t i = 0; i < count; i++) assert_true(found[i] == (own ? -2 : 1) * tied[i]);
        temp_folder_free(&folder);
    }
}

#define MC_T5(scale)                                                             \
    "{\"vocab_size\": 50, \"dim_model\": 16, \"dim_ff\": 40, \"num_heads\": 4, " \
    "\"dim_head\": 6, \"num_encoder_layers\": 2, \"num_decoder_layers\": 3, "    \
    "\"position_bias_num_buckets\": 8, \"position_bias_max_distance\": 20, "     \
    "\"ffn_activate_fn\": \"relu\", \"half\": false, \"scale\": " scale "}"

/* ModelCenter keeps T5's values divided; what is saved is Hugging Face's, with the same logits. */
static void test_divided_t5(void **state)
{
    mc_context *ctx = *state;
    static float divided[MOST_LOGITS], saved[MOST_LOGITS];
    temp_folder folder = temp_folder_new();
    mc_model *model = model_of(ctx, "t5", MC_T5("true"), NULL, NULL);
    assert_good(ctx);
    mc_parameter *words =
        mc_module_find_parameter(mc_model_module(model), "input_embedding.weight");
    float values[VOCABULARY * DIM], largest = 0;
    mc_parameter_read(words, values); /* so small that the norms' eps has a say */
    for (int i = 0; i < VOCABULARY * DIM; i++) values[i] *= 0.01f;
    mc_parameter_write(words, values);
    assert_int_equal(mc_model_save(model, folder.path), MC_OK);
    mc_model *loaded = mc_t5_from_pretrained(ctx, folder.path, NULL);
    assert_good(ctx);
    assert_true(mc_t5_get_config(model).divided && !mc_t5_get_config(loaded).divided);
    int64_t count = family_logits(model, (part){PACKED, -1}, divided);
    assert_int_equal(family_logits(loaded, (part){PACKED, -1}, saved), count);
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(divided[i]));
    assert_true(largest > 1e-3f);
    for (int64_t i = 0; i < count; i++) assert_near(saved[i], divided[i], 1e-4 * (double)largest);
    temp_folder_free(&folder);
    model = model_of(ctx, "t5", MC_T5("false"), NULL, NULL);
    assert_good(ctx);
    assert_int_not_equal(mc_model_save(model, folder.path), MC_OK);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "T5", "scale", "no Hugging Face form");
}

static void test_two_norms(void **state)
{
    mc_context *ctx = *state;
    temp_folder folder = temp_folder_new();
    mc_gptj_config c = mc_gptj_config_default();
    c.vocab_size = VOCABULARY;
    c.dim = DIM;
    c.dim_ff = 40;
    c.layers = 2;
    c.heads = 2;
    c.rotary_dim = 4;
    c.two_norms = true;
    mc_model *model = mc_gptj_new(ctx, &c, NULL, NULL);
    assert_good(ctx);
    mc_model_save(model, folder.path);
    assert_error(ctx, MC_ERR_UNSUPPORTED, "GPT-J", "two norms");
    temp_folder_free(&folder);
}

/* ---- padding within a text ------------------------------------------------------------------- */

enum { POSITIONS = 20, WIDE = 9 };

/* Rows of sums of a RoBERTa's three tables: of words, positions from 2 on over what is no padding
 * (1), and the only type. */
static void add_rows(mc_model *m, const int64_t *ids, int count, float *y)
{
    static float words[VOCABULARY * DIM], positions[POSITIONS * DIM], type[DIM];
    mc_module *module = mc_model_module(m);
    mc_parameter_read(mc_module_find_parameter(module, "input_embedding.weight"), words);
    mc_parameter_read(mc_module_find_parameter(module, "position_embedding.weight"), positions);
    mc_parameter_read(mc_module_find_parameter(module, "token_type_embedding.weight"), type);
    for (int i = 0, next = 2; i < count; i++) {
        int position = ids[i] == 1 ? 1 : next++;
        for (int k = 0; k < DIM; k++)
            y[i * DIM + k] = words[ids[i] * DIM + k] + positions[position * DIM + k] + type[k];
    }
}

static void expect_normalized(const float *y, const float *sums, int rows)
{
    for (int i = 0; i < rows; i++) {
        double mean = 0, square = 0;
        for (int k = 0; k < DIM; k++) mean += (double)sums[i * DIM + k] / DIM;
        for (int k = 0; k < DIM; k++) square += pow((double)sums[i * DIM + k] - mean, 2) / DIM;
        for (int k = 0; k < DIM; k++) {
            double expected = ((double)sums[i * DIM + k] - mean) / sqrt(square);
            assert_true(fabs((double)y[i * DIM + k] - expected) < 1e-4);
        }
    }
}

/* As transformers counts: a padding token within a text has no position, be the batch padded, with
 * or without a mask, or packed. */
static void test_padding_has_no_position(void **state)
{
    mc_context *ctx = *state;
    static const int64_t ids[2][WIDE] = {{0, 5, 1, 1, 7, 8, 1, 9, 2}, {1, 0, 4, 1, 2, 1, 1, 1, 1}};
    static const int32_t lengths[] = {WIDE, 5};
    float sums[2][WIDE * DIM], y[2 * WIDE * DIM];
    int64_t packed[WIDE + 5], mask[2][WIDE];
    mc_model *m =
        model_of(ctx, "roberta",
                 "{\"model_type\": \"roberta\", \"vocab_size\": 50, \"hidden_size\": 16, "
                 "\"intermediate_size\": 40, \"num_hidden_layers\": 0, \"type_vocab_size\": 1, "
                 "\"num_attention_heads\": 4, \"max_position_embeddings\": 20, "
                 "\"layer_norm_eps\": 1e-12, \"initializer_range\": 0.2}",
                 NULL, NULL);
    assert_good(ctx);
    for (int s = 0; s < 2; s++) add_rows(m, ids[s], WIDE, sums[s]);
    for (int i = 0; i < 2 * WIDE; i++) mask[i / WIDE][i % WIDE] = i % WIDE < lengths[i / WIDE];
    memcpy(packed, ids[0], sizeof ids[0]);
    memcpy(packed + WIDE, ids[1], 5 * sizeof *packed);
    for (int form = 0; form < 4; form++) { /* padded: lengths, a mask, neither; packed */
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = {
            .ids = form < 3 ? mc_tape_input(t, MC_I64, MC_SHAPE(2, WIDE), ids, false)
                            : mc_tape_input(t, MC_I64, MC_SHAPE(WIDE + 5), packed, false)};
        if (form == 0 || form == 3) in.lengths = mc_tape_lengths(t, lengths, 2, 1);
        if (form == 1) in.mask = mc_tape_input(t, MC_I64, MC_SHAPE(2, WIDE), mask, false);
        mc_model_output out = mc_model_forward(t, m, &in);
        bool whole = form == 1 || form == 2;
        mc_tensor_read_f32(ctx, out.last_hidden, y, (whole ? 2 * WIDE : WIDE + 5) * DIM);
        assert_good(ctx);
        expect_normalized(y, sums[0], WIDE);
        expect_normalized(y + WIDE * DIM, sums[1], whole ? WIDE : 5);
        mc_tape_end(t);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_save_and_load),
        TEST(test_save_with_tokenizer),
        TEST(test_evaluation_records_nothing),
        TEST(test_classifiers),
        TEST(test_heads_of_folders),
        TEST(test_classifier_past_padding),
        TEST(test_classifier_without_end),
        TEST(test_token_heads),
        TEST(test_fields_without_use),
        TEST(test_marks_that_do_not_fit),
        TEST(test_decoder_input),
        TEST(test_bad_configs),
        TEST(test_unknown_keys),
        TEST(test_released_keys),
        TEST(test_other_classifiers),
        TEST(test_heads_without_use),
        TEST(test_other_families_folders),
        TEST(test_family_of_folder),
        TEST(test_family_of_modelcenters_config),
        TEST(test_family_of_shape),
        TEST(test_heads_in_files),
        TEST(test_divided_t5),
        TEST(test_failed_save),
        TEST(test_id_out_of_range),
        TEST(test_two_norms),
        TEST(test_padding_has_no_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
