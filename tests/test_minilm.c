/* The real MiniLM-L6 weights: the sentences of the reference data give the reference's vectors,
 * alone and together in one packed batch, on the device of MC_TEST_DEVICE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "core/modelcenter.h"
#include <modelcenter/more.h>
#include "tests/device_choice.h"
#include "tests/temp_folder.h"

enum { SENTENCES = 4, LONGEST = 64, DIM = 384 };

typedef struct reference {
    int32_t length;
    int64_t ids[LONGEST];
    float *hidden, *pooled; /* (length, DIM), (DIM) */
} reference;

/* Skips the test where it is not there: to be called before anything is open. */
static const char *folder(const char *name)
{
    static char paths[2][1024];
    static int turn;
    const char *shared = shared_folder();
    if (!shared) skip();
    char *path = paths[turn = 1 - turn];
    snprintf(path, sizeof paths[0], "%s/%s", shared, name);
    if (access(path, R_OK) == 0) return path;
    printf("SKIPPED: no %s\n", path);
    skip();
    return NULL;
}

static float *read_floats(mc_tensor_file *file, int k, const char *name, int64_t count)
{
    char key[64];
    snprintf(key, sizeof key, "%d.%s", k, name);
    const mc_tensor_entry *entry = mc_tensor_file_find(file, key);
    assert_non_null(entry);
    assert_int_equal(entry->count, count);
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    assert_int_equal(mc_tensor_file_read_f32(file, entry, 0, count, values), MC_OK);
    return values;
}

static void read_references(mc_context *ctx, const char *path, reference r[SENTENCES])
{
    mc_tensor_file *file = mc_tensor_file_open(ctx, path, NULL);
    assert_non_null(file);
    for (int k = 0; k < SENTENCES; k++) {
        char key[64];
        snprintf(key, sizeof key, "%d.ids", k);
        const mc_tensor_entry *ids = mc_tensor_file_find(file, key);
        assert_true(ids && ids->count <= LONGEST);
        r[k].length = (int32_t)ids->count;
        double values[LONGEST];
        mc_tensor_file_read_f64(file, ids, 0, ids->count, values);
        for (int i = 0; i < r[k].length; i++) r[k].ids[i] = (int64_t)values[i];
        r[k].hidden = read_floats(file, k, "last_hidden", (int64_t)r[k].length * DIM);
        r[k].pooled = read_floats(file, k, "pooled", DIM);
    }
    mc_tensor_file_free(file);
}

/* The largest error over the largest expected value. */
static double error_of(const float *got, const float *expected, int64_t n)
{
    double error = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - (double)expected[i]);
        if (!(e <= error)) error = isnan(e) ? INFINITY : e;
        largest = fmax(largest, fabs((double)expected[i]));
    }
    return error / largest;
}

static void check(mc_context *ctx, const mc_model_output *out, const reference *r, int count)
{
    if (mc_failed(ctx)) fail_msg("%s", mc_error_message(ctx));
    int64_t rows = mc_tensor_size(out->last_hidden, 0), at = 0;
    float *hidden = malloc((size_t)(rows * DIM) * sizeof *hidden), pooled[SENTENCES * DIM];
    assert_non_null(hidden);
    mc_tensor_read_f32(ctx, out->last_hidden, hidden, rows * DIM);
    mc_tensor_read_f32(ctx, out->pooled, pooled, (int64_t)count * DIM);
    for (int k = 0; k < count; at += r[k].length, k++) {
        double h = error_of(hidden + at * DIM, r[k].hidden, (int64_t)r[k].length * DIM);
        double p = error_of(pooled + (int64_t)k * DIM, r[k].pooled, DIM);
        printf("sentence %d of %d: last_hidden %.2e, pooled %.2e\n", k, count, h, p);
        assert_true(h <= 1e-5 && p <= 1e-5);
    }
    free(hidden);
}

static void test_sentences(void **state)
{
    (void)state;
    const char *expected = folder("goldens/minilm/expected.safetensors");
    const char *pretrained = folder("data/minilm-l6");
    mc_context *ctx = test_context(0);
    reference r[SENTENCES];
    read_references(ctx, expected, r);
    mc_model *bert = mc_bert_from_pretrained(ctx, pretrained, NULL);
    if (mc_failed(ctx)) fail_msg("%s", mc_error_message(ctx));
    assert_int_equal(mc_model_dim(bert), DIM);
    int32_t lengths[SENTENCES];
    int64_t packed[SENTENCES * LONGEST], total = 0;
    mc_tape *t = mc_tape_begin_eval(ctx);
    for (int k = 0; k < SENTENCES; k++) {
        mc_tensor *ids = mc_tape_input(t, MC_I64, MC_SHAPE(1, r[k].length), r[k].ids, false);
        mc_model_output out = mc_model_forward(t, bert, &(mc_model_input){.ids = ids});
        check(ctx, &out, &r[k], 1);
        lengths[k] = r[k].length;
        memcpy(packed + total, r[k].ids, (size_t)r[k].length * sizeof *packed);
        total += r[k].length;
    }
    mc_tensor *ids = mc_tape_input(t, MC_I64, MC_SHAPE(total), packed, false);
    const mc_lengths *l = mc_tape_lengths(t, lengths, SENTENCES, 1);
    mc_model_output out = mc_model_forward(t, bert, &(mc_model_input){.ids = ids, .lengths = l});
    check(ctx, &out, r, SENTENCES);
    mc_tape_end(t);
    for (int k = 0; k < SENTENCES; k++) {
        free(r[k].hidden);
        free(r[k].pooled);
    }
    mc_context_free(ctx);
}

/* From text to vector: those that the ids decode to. */
static void test_vectors(void **state)
{
    (void)state;
    const char *expected = folder("goldens/minilm/expected.safetensors");
    const char *pretrained = folder("data/minilm-l6");
    mc_context *ctx = test_context(0);
    reference r[SENTENCES];
    read_references(ctx, expected, r);
    mc_tokenizer *tok = mc_tokenizer_from_pretrained(ctx, pretrained);
    mc_embedder *e = mc_embedder_open(ctx, pretrained, NULL);
    mc_text_span texts[SENTENCES];
    float got[SENTENCES * DIM];
    for (int k = 0; k < SENTENCES; k++) {
        int32_t ids[LONGEST];
        size_t size;
        mc_encoding again = {0};
        for (int i = 0; i < r[k].length; i++) ids[i] = (int32_t)r[k].ids[i];
        texts[k].data = mc_tokenizer_decode_sized(
            tok, ids, (size_t)r[k].length, &(mc_decode_options){.skip_special = true}, &size);
        texts[k].size = size;
        assert_int_equal(mc_tokenizer_encode(tok, texts[k].data, size, NULL, 0, 0, &again), MC_OK);
        assert_int_equal(again.count, r[k].length);
        assert_memory_equal(again.ids, ids, again.count * sizeof *ids);
        mc_encoding_release(&again);
    }
    if (mc_embed_texts(e, texts, SENTENCES, got)) fail_msg("%s", mc_error_message(ctx));
    for (int k = 0; k < SENTENCES; k++) {
        float mean[DIM];
        for (int c = 0; c < DIM; c++) {
            double sum = 0;
            for (int i = 0; i < r[k].length; i++) sum += (double)r[k].hidden[i * DIM + c];
            mean[c] = (float)(sum / r[k].length);
        }
        double error = error_of(got + (ptrdiff_t)k * DIM, mean, DIM);
        printf("sentence %d: mean %.2e\n", k, error);
        assert_true(error <= 1e-5);
        mc_string_free((char *)texts[k].data);
        free(r[k].hidden);
        free(r[k].pooled);
    }
    mc_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sentences),
                                       cmocka_unit_test(test_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
