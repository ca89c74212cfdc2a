/* What a block keeps for its backward pass, to the byte: the table of docs/memory.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "core/device/device_internal.h"
#include "core/nn/module_internal.h"
#include "tests/models/family_test.h"

enum { WIDE = 64, HEADS = 4, ROWS = 2, LONG = 32, TOKENS = ROWS * LONG, TARGET = 16 };

/* In units of the residual stream: TOKENS x WIDE elements. */
typedef struct row {
    const char *family, *config; /* of %d blocks */
    float dropout;
    int none, selective;
    int numbers; /* f32 a token: log-sum-exp of each head, mean and deviation of each norm */
} row;

#define GPT \
    "\"vocab_size\": 131, \"n_embd\": 64, \"n_layer\": %d, \"n_head\": 4, \"n_positions\": 64"
#define T5                                                                                         \
    "{\"model_type\": \"t5\", \"vocab_size\": 131, \"d_model\": 64, \"d_ff\": 256, \"d_kv\": 16, " \
    "\"num_heads\": 4, \"num_layers\": %d, \"num_decoder_layers\": 2, \"feed_forward_proj\": "
#define BERT                                                                              \
    "{\"model_type\": \"bert\", \"vocab_size\": 131, \"hidden_size\": 64, "               \
    "\"intermediate_size\": 256, \"num_hidden_layers\": %d, \"num_attention_heads\": 4, " \
    "\"max_position_embeddings\": 64}"

static const row rows[] = {
    /* two sums 2, two norms 2, qkv 3, attention 1, before GELU 4, after it 4 */
    {"gpt2", "{\"model_type\": \"gpt2\", " GPT "}", 0, 16, 10, HEADS + 4},
    {"gpt2", "{\"model_type\": \"gpt2\", " GPT "}", 0.1f, 16, 10, HEADS + 4},
    /* the second norm is the block's result, which stays */
    {"bert", BERT, 0, 16, 11, HEADS + 4},
    {"bert", BERT, 0.1f, 16, 11, HEADS + 4},
    /* one sum, one norm */
    {"gptj", "{\"model_type\": \"gptj\", \"rotary_dim\": 8, " GPT "}", 0, 14, 9, HEADS + 2},
    {"t5", T5 "\"relu\"}", 0, 16, 10, HEADS + 2},
    /* after ReLU and dropout, one pass, 4; what is before it is not needed */
    {"t5", T5 "\"relu\"}", 0.1f, 12, 10, HEADS + 2},
    /* both halves of the gate 8, their product 4, or what dropout leaves of it */
    {"t5", T5 "\"gated-gelu\"}", 0, 20, 14, HEADS + 2},
    {"t5", T5 "\"gated-gelu\"}", 0.1f, 20, 14, HEADS + 2},
};

/* Bytes that a forward pass leaves on the device. */
static size_t kept_by(const row *r, int blocks, mc_recompute recompute)
{
    static int32_t ids[TOKENS];
    char config[512];
    snprintf(config, sizeof config, r->config, blocks);
    mc_context *ctx = mc_init_distributed(&(mc_init_options){.seed = 3});
    mc_model *model = model_of(ctx, r->family, config, NULL,
                               &(mc_load_options){.dtype = MC_BF16, .recompute = recompute});
    assert_good(ctx);
    mc_model_set_dropout(model, r->dropout);
    bool two = is_kind(model, MC_MODEL_ENCODER_DECODER);
    assert_int_equal(mc_module_need_gradients(mc_model_module(model)->root, 0), MC_OK);
    mc_tape *t = mc_tape_begin(ctx);
    mc_tensor *in = mc_tape_input(t, MC_I32, MC_SHAPE(ROWS, LONG), ids, false);
    mc_tensor *out = two ? mc_tape_input(t, MC_I32, MC_SHAPE(ROWS, TARGET), ids, false) : NULL;
    size_t before = ctx->device->memory.in_use;
    mc_model_forward(t, model, &(mc_model_input){.ids = in, .decoder_ids = out});
    assert_good(ctx);
    size_t bytes = ctx->device->memory.in_use - before;
    mc_tape_end(t);
    mc_context_free(ctx);
    return bytes;
}

static void check(const row *r, mc_recompute recompute, size_t expected)
{
    size_t block = kept_by(r, 4, recompute) - kept_by(r, 3, recompute);
    if (block != expected)
        fail_msg("%s, dropout %g, recompute %d: a block keeps %zu bytes, expected %zu", r->family,
                 (double)r->dropout, (int)recompute, block, expected);
}

static void test_blocks(void **state)
{
    (void)state;
    const size_t unit = (size_t)TOKENS * WIDE * 2;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        size_t numbers = (size_t)TOKENS * (size_t)r->numbers * sizeof(float);
        check(r, MC_RECOMPUTE_NONE, (size_t)r->none * unit + numbers);
        check(r, MC_RECOMPUTE_SELECTIVE, (size_t)r->selective * unit + numbers);
        check(r, MC_RECOMPUTE_FULL, unit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
