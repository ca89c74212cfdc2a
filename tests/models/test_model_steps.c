/* Every family's forward pass and training step: ways to give a batch, recompute, hidden states and
 * attention probabilities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/models/family_test.h"

/* ---- a batch in all its forms ---------------------------------------------------------------- */

/* Packed, packed with room after, and each sequence alone, as padded. */
static void test_ways_to_give_a_batch(void **state)
{
    mc_context *ctx = *state;
    static float padded[MOST_LOGITS], other[MOST_LOGITS];
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        int64_t count = family_logits(model, (part){LENGTHS, -1}, padded);
        float largest = 0;
        for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(padded[i]));
        assert_true(largest > 0.1f);
        float limit =
            2e-5f * fmaxf(largest, 1); /* products of other shapes add up in other orders */
        for (way how = PACKED; how < WAYS; how++) {
            assert_int_equal(family_logits(model, (part){how, -1}, other), count);
            for (int64_t i = 0; i < count; i++) assert_near(other[i], padded[i], limit);
        }
        for (int r = 0; r < BATCH; r++) {
            bool two = is_kind(model, MC_MODEL_ENCODER_DECODER);
            int64_t one = (two ? answer_lengths : batch_lengths)[r] * VOCABULARY;
            assert_int_equal(family_logits(model, (part){PACKED, r}, other), one);
            const float *expected = padded + count / BATCH * r;
            for (int64_t i = 0; i < one; i++) assert_near(other[i], expected[i], limit);
        }
        mc_model_free(model);
    }
}

/* CPM-1's marks: nobody sees another span, and context sees no answer. */
static void test_marks_matter(void **state)
{
    mc_context *ctx = *state;
    mc_model *model = tiny_model(ctx, tiny("cpm1"), NULL);
    static float hidden[2][BATCH * WIDTH * DIM];
    for (int way_to_mark = 0; way_to_mark < 4; way_to_mark++) {
        float difference = 0;
        for (int changed = 0; changed < 2; changed++) {
            mc_tape *t = mc_tape_begin_eval(ctx);
            int32_t ids[6] = {3, 4, 5, 6, 7, 8}, span[6] = {0, 0, 0, 1, 1, 1};
            int32_t context[6] = {1, 1, 0, 1, 1, 0};
            ids[way_to_mark < 2 ? 4 : 2] += changed; /* of the second span; an answer's */
            mc_shape shape = MC_SHAPE(1, 6);
            mc_model_input in = {.ids = mc_tape_input(t, MC_I32, shape, ids, false),
                                 .context = mc_tape_input(t, MC_I32, shape, context, false)};
            if (way_to_mark != 1) in.span = mc_tape_input(t, MC_I32, shape, span, false);
            if (way_to_mark == 3) in.context = NULL;
            mc_tensor *x = mc_model_forward(t, model, &in).last_hidden;
            mc_tensor_read_f32(ctx, x, hidden[changed], 6 * DIM);
            assert_good(ctx);
            mc_tape_end(t);
        }
        for (int i = 0; i < 2 * DIM; i++) difference += fabsf(hidden[0][i] - hidden[1][i]);
        /* the first two tokens: context of span 0 */
        bool sees = way_to_mark == 1; /* context of its own, only, span */
        assert_true(sees ? difference > 1e-3f : difference == 0);
    }
    mc_model_free(model);
}

/* ---- recompute ------------------------------------------------------------------------------- */

static float *step_values(const tiny_family *f, mc_recompute recompute, float dropout,
                          int64_t *count)
{
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 11});
    mc_model *model = tiny_model(ctx, f, NULL);
    mc_model_set_dropout(model, dropout);
    mc_model_set_recompute(model, recompute);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *loss = family_loss(t, model, (part){PACKED_WIDE, -1});
    float *values = loss_and_gradients(t, mc_model_module(model), loss, count);
    mc_context_free(ctx);
    return values;
}

/* Bit-equal, but for what several blocks use (position biases, an encoder's result): blocks that
 * are run again add up their own parts first. */
static void test_recompute(void **state)
{
    (void)state;
    for (int f = 0; f < TINY_FAMILIES; f++)
        for (int d = 0; d < 2; d++) {
            const tiny_family *family = &tiny_families[f];
            float dropout = d ? 0.1f : 0, largest = 0;
            int64_t count, n;
            float *kept = step_values(family, MC_RECOMPUTE_NONE, dropout, &count);
            for (int64_t i = 2; i < count; i++) largest = fmaxf(largest, fabsf(kept[i]));
            assert_true(kept[0] > 0 && kept[1] > 4 && largest > 1e-3f);
            float *again = step_values(family, MC_RECOMPUTE_SELECTIVE, dropout, &n);
            assert_int_equal(n, count);
            assert_memory_equal(again, kept, (size_t)n * sizeof *kept);
            free(again);
            again = step_values(family, MC_RECOMPUTE_FULL, dropout, &n);
            assert_int_equal(n, count);
            assert_memory_equal(again, kept, 2 * sizeof *kept);
            bool shares = !strstr(family->name, "bert") && !strstr(family->name, "gpt");
            for (int64_t i = 0; i < n; i++)
                assert_near(again[i], kept[i], shares ? 2e-6f * largest : 0);
            free(again);
            free(kept);
        }
}

/* ---- hidden states and attention probabilities ----------------------------------------------- */

static void assert_same_values(mc_context *ctx, mc_tensor *a, mc_tensor *b)
{
    float of_a[2 * BATCH * WIDTH * DIM], of_b[2 * BATCH * WIDTH * DIM];
    assert_true(a && b && mc_shape_equal(a->shape, b->shape));
    mc_tensor_read_f32(ctx, a, of_a, mc_tensor_count(a));
    mc_tensor_read_f32(ctx, b, of_b, mc_tensor_count(b));
    assert_good(ctx);
    assert_memory_equal(of_a, of_b, (size_t)mc_tensor_count(a) * sizeof *of_a);
}

/* All are there, differ from each other, and the last is `last`. Those before may be wider. */
static void check_hidden(mc_context *ctx, mc_tensor **hidden, int64_t layers, mc_tensor *last)
{
    float before[4 * BATCH * WIDTH * DIM], after[4 * BATCH * WIDTH * DIM];
    assert_non_null(hidden);
    for (int64_t i = 0; i <= layers; i++) {
        assert_true(hidden[i] && mc_tensor_rows(hidden[i]) == mc_tensor_rows(last));
        int64_t count = mc_tensor_count(hidden[i]);
        assert_true(count <= 4 * BATCH * WIDTH * DIM);
        mc_tensor_read_f32(ctx, hidden[i], after, count);
        assert_good(ctx);
        if (i) assert_memory_not_equal(before, after, (size_t)count * sizeof *after);
        memcpy(before, after, sizeof before);
    }
    assert_same_values(ctx, hidden[layers], last);
}

/* Probabilities of each query add up to 1 over the sequence's keys, are 0 for others, with
 * `causal` for keys after the query, and for those beyond a window (0: none) too. */
static void check_attention(mc_context *ctx, mc_tensor *x, int heads, const int32_t *queries,
                            const int32_t *keys, bool causal, int window)
{
    static float p[BATCH * 4 * WIDTH * WIDTH];
    assert_non_null(x);
    int64_t most_queries = mc_tensor_size(x, 2), most_keys = mc_tensor_size(x, 3);
    assert_int_equal(mc_tensor_size(x, 0), BATCH);
    assert_int_equal(mc_tensor_size(x, 1), heads);
    mc_tensor_read_f32(ctx, x, p, mc_tensor_count(x));
    assert_good(ctx);
    for (int r = 0; r < BATCH * heads; r++)
        for (int q = 0; q < queries[r / heads]; q++) {
            const float *row = p + (r * most_queries + q) * most_keys;
            double sum = 0;
            for (int k = 0; k < most_keys; k++) {
                bool seen =
                    k < keys[r / heads] && !(causal && k > q) && !(window && abs(q - k) >= window);
                assert_true(seen ? row[k] > 0 : row[k] == 0);
                sum += (double)row[k];
            }
            assert_near(sum, 1, 1e-5);
        }
}

/* Of a LLaMA's, a ModernBERT's or a Longformer's layer. */
static int window_of(const mc_model *model, int64_t layer)
{
    mc_modernbert_config local = mc_modernbert_get_config(model);
    if (local.global_every) return layer % local.global_every ? (int)local.window / 2 + 1 : 0;
    mc_llama_config c = mc_llama_get_config(model);
    mc_longformer_config all = mc_longformer_get_config(model);
    if (all.window) return (int)all.window / 2 + 1;
    return c.use_window && layer >= c.window_from ? (int)c.window : 0;
}

static void test_hidden_states_and_attentions(void **state)
{
    mc_context *ctx = *state;
    for (int f = 0; f < TINY_FAMILIES; f++) {
        mc_model *model = tiny_model(ctx, &tiny_families[f], NULL);
        mc_model_shape s = mc_model_get_shape(model);
        mc_tape *t = mc_tape_begin_eval(ctx);
        mc_model_input in = input_for(t, model, (part){PACKED, -1});
        in.span = in.context = in.global_mask = NULL; /* causal, then */
        in.hidden_states = in.attentions = true;
        mc_model_output out = mc_model_forward(t, model, &in);
        assert_good(ctx);
        bool two = s.kind == MC_MODEL_ENCODER_DECODER;
        check_hidden(ctx, out.hidden_states, s.layers,
                     two ? out.encoder_last_hidden : out.last_hidden);
        for (int64_t i = 0; i < s.layers; i++)
            check_attention(ctx, out.attentions[i], (int)s.heads, batch_lengths, batch_lengths,
                            s.kind == MC_MODEL_DECODER, window_of(model, i));
        if (two) check_hidden(ctx, out.decoder_hidden_states, s.decoder_layers, out.last_hidden);
        for (int64_t i = 0; i < s.decoder_layers; i++) {
            check_attention(ctx, out.decoder_attentions[i], (int)s.heads, answer_lengths,
                            answer_lengths, true, 0);
            check_attention(ctx, out.cross_attentions[i], (int)s.heads, answer_lengths,
                            batch_lengths, false, 0);
        }
        assert_true(two || (!out.decoder_hidden_states && !out.cross_attentions));
        mc_model_input plain = input_for(t, model, (part){PACKED, -1});
        plain.span = plain.context = plain.global_mask = NULL;
        mc_model_output without = mc_model_forward(t, model, &plain);
        assert_same_values(ctx, without.last_hidden, out.last_hidden);
        assert_true(!without.hidden_states && !without.attentions);
        mc_tape_end(t);
        t = mc_tape_begin(ctx);
        in = input_for(t, model, (part){PACKED, -1});
        in.attentions = true;
        assert_null(mc_model_forward(t, model, &in).last_hidden);
        assert_error(ctx, MC_ERR_UNSUPPORTED, "attention probabilities", "evaluation");
        mc_tape_end(t);
        mc_model_free(model);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_context, tear_down_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ways_to_give_a_batch),
        TEST(test_marks_matter),
        TEST(test_recompute),
        TEST(test_hidden_states_and_attentions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
