/* What the tests of all families share: a tiny model of each, and the batch of model_test.h with
 * all that the family has a use for. Include after cmocka.h. */
#ifndef MC_TESTS_FAMILY_TEST_H
#define MC_TESTS_FAMILY_TEST_H

#include "models/cpm/cpm.h"
#include "models/family_internal.h"
#include "models/gptj/gptj.h"
#include "models/llama/llama.h"
#include "models/t5/t5.h"
#include "tests/models/model_test.h"

typedef struct tiny_family {
    const char *name, *config;
} tiny_family;

static const tiny_family tiny_families[] = {
    {"bert", "{\"model_type\": \"bert\", \"vocab_size\": 50, \"hidden_size\": 16, "
             "\"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
             "\"max_position_embeddings\": 24, \"initializer_range\": 0.2}"},
    {"roberta", "{\"model_type\": \"roberta\", \"vocab_size\": 50, \"hidden_size\": 16, "
                "\"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                "\"max_position_embeddings\": 26, \"initializer_range\": 0.2}"},
    {"distilbert", "{\"model_type\": \"distilbert\", \"vocab_size\": 50, \"dim\": 16, "
                   "\"hidden_dim\": 40, \"n_layers\": 2, \"n_heads\": 4, "
                   "\"max_position_embeddings\": 24, \"initializer_range\": 0.2}"},
    {"electra", "{\"model_type\": \"electra\", \"vocab_size\": 50, \"embedding_size\": 12, "
                "\"hidden_size\": 16, \"intermediate_size\": 40, \"num_hidden_layers\": 2, "
                "\"num_attention_heads\": 4, \"max_position_embeddings\": 24, "
                "\"initializer_range\": 0.2}"},
    {"mpnet", "{\"model_type\": \"mpnet\", \"vocab_size\": 50, \"hidden_size\": 16, "
              "\"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
              "\"max_position_embeddings\": 26, "
              "\"initializer_range\": 0.2}"},
    {"modernbert", "{\"model_type\": \"modernbert\", \"vocab_size\": 50, \"hidden_size\": 16, "
                   "\"intermediate_size\": 24, \"num_hidden_layers\": 3, "
                   "\"num_attention_heads\": 2, \"max_position_embeddings\": 24, "
                   "\"global_attn_every_n_layers\": 2, \"local_attention\": 4, "
                   "\"initializer_range\": 0.2, \"pad_token_id\": 0}"},
    {"longformer", "{\"model_type\": \"longformer\", \"vocab_size\": 50, \"hidden_size\": 16, "
                   "\"intermediate_size\": 40, \"num_hidden_layers\": 2, "
                   "\"num_attention_heads\": 4, \"max_position_embeddings\": 26, "
                   "\"attention_window\": 4, \"type_vocab_size\": 2, "
                   "\"initializer_range\": 0.2}"},
    {"gpt2", "{\"model_type\": \"gpt2\", \"vocab_size\": 50, \"n_embd\": 16, \"n_inner\": 40, "
             "\"n_layer\": 2, \"n_head\": 4, \"n_positions\": 24, \"initializer_range\": 0.2, "
             "\"bos_token_id\": 0, \"eos_token_id\": 1}"},
    {"gptj", "{\"model_type\": \"gptj\", \"vocab_size\": 50, \"n_embd\": 16, \"n_inner\": 40, "
             "\"n_layer\": 2, \"n_head\": 2, \"n_positions\": 24, \"rotary_dim\": 4, "
             "\"initializer_range\": 0.2, \"bos_token_id\": 0, \"eos_token_id\": 1}"},
    {"t5", "{\"model_type\": \"t5\", \"vocab_size\": 50, \"d_model\": 16, \"d_ff\": 40, "
           "\"d_kv\": 6, \"num_heads\": 4, \"num_layers\": 2, \"num_decoder_layers\": 3, "
           "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 20}"},
    {"t5", "{\"model_type\": \"t5\", \"vocab_size\": 50, \"d_model\": 16, \"d_ff\": 24, "
           "\"d_kv\": 4, \"num_heads\": 4, \"num_layers\": 2, "
           "\"relative_attention_num_buckets\": 8, \"feed_forward_proj\": \"gated-gelu\", "
           "\"tie_word_embeddings\": false}"},
    {"cpm1", "{\"vocab_size\": 50, \"dim_model\": 16, \"dim_ff\": 40, \"num_heads\": 4, "
             "\"dim_head\": 6, \"num_layers\": 2, \"position_bias_num_buckets\": 8, "
             "\"position_bias_max_distance\": 20, \"emb_init_std\": 1, \"att_init_std\": 1, "
             "\"ffn_init_std\": 1, \"length_scale\": true, \"attn_scale\": true, \"tied\": true, "
             "\"half\": false}"},
    {"cpm2", "{\"vocab_size\": 50, \"dim_model\": 16, \"dim_ff\": 24, \"num_heads\": 4, "
             "\"dim_head\": 4, \"num_encoder_layers\": 2, \"num_decoder_layers\": 3, "
             "\"position_bias_num_buckets\": 8, \"position_bias_max_distance\": 20, "
             "\"emb_init_std\": 0.3, \"att_init_std\": 0.3, \"ffn_init_std\": 0.3, "
             "\"proj_init_std\": 0.3, \"half\": false}"},
    {"llama", "{\"model_type\": \"qwen3\", \"vocab_size\": 50, \"hidden_size\": 16, "
              "\"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
              "\"num_key_value_heads\": 2, \"head_dim\": 6, \"max_position_embeddings\": 24, "
              "\"use_sliding_window\": true, \"sliding_window\": 3, \"max_window_layers\": 1, "
              "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, "
              "\"original_max_position_embeddings\": 12}, \"attention_bias\": true, "
              "\"initializer_range\": 0.2, \"bos_token_id\": 0, \"eos_token_id\": 1}"},
    {"llama", "{\"model_type\": \"minicpm\", \"vocab_size\": 50, \"hidden_size\": 16, "
              "\"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
              "\"max_position_embeddings\": 24, \"scale_emb\": 3, \"scale_depth\": 1.4, "
              "\"dim_model_base\": 8, \"initializer_range\": 0.2, \"bos_token_id\": 0, "
              "\"eos_token_id\": 1}"},
    {"opt", "{\"model_type\": \"opt\", \"vocab_size\": 50, \"hidden_size\": 16, "
            "\"ffn_dim\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
            "\"max_position_embeddings\": 24, \"init_std\": 0.2, \"bos_token_id\": 0, "
            "\"eos_token_id\": 1}"},
    {"opt", "{\"model_type\": \"opt\", \"vocab_size\": 50, \"hidden_size\": 24, "
            "\"ffn_dim\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
            "\"word_embed_proj_dim\": 16, \"do_layer_norm_before\": false, "
            "\"max_position_embeddings\": 24, \"init_std\": 0.2, \"bos_token_id\": 0, "
            "\"eos_token_id\": 1}"},
};
enum { TINY_FAMILIES = sizeof tiny_families / sizeof *tiny_families };

/* Families that the tests of all do not run on: prompts of the one need a blank, the other reads
 * images. They have tests of their own. */
static const tiny_family tiny_others[] = {
    {"glm", "{\"vocab_size\": 50, \"dim_model\": 16, \"dim_ff\": 40, \"num_heads\": 4, "
            "\"dim_head\": 4, \"num_layers\": 2, \"position_size\": 33, \"dropout_p\": 0, "
            "\"emb_init_std\": 0.3, \"att_init_std\": 0.3, \"ffn_init_std\": 0.3, "
            "\"sop_tok_id\": 47, \"eop_tok_id\": 48, \"mask_tok_id\": 49, \"half\": false}"},
    {"vit", "{\"model_type\": \"vit\", \"hidden_size\": 16, \"num_hidden_layers\": 2, "
            "\"num_attention_heads\": 4, \"intermediate_size\": 40, \"image_size\": 6, "
            "\"patch_size\": 2, \"initializer_range\": 0.2}"},
};

/* The row with a family's (first) model. */
static inline const tiny_family *tiny(const char *name)
{
    for (int i = 0; i < 2; i++)
        if (strcmp(tiny_others[i].name, name) == 0) return &tiny_others[i];
    for (int i = 0; i < TINY_FAMILIES; i++)
        if (strncmp(tiny_families[i].name, name, strlen(name) + 1) == 0) return &tiny_families[i];
    fail_msg("no tiny model of \"%s\"", name);
    return NULL;
}

/* Soft prompts: CPM and GLM, which transformers does not have, have none, nor has an ELECTRA whose
 * words are projected. */
static inline bool has_prompts(const tiny_family *f)
{
    return strncmp(f->name, "cpm", 3) != 0 && strncmp(f->name, "electra", 8) != 0 &&
           strncmp(f->name, "glm", 4) != 0;
}

/* A model from a text of config.json. NULL after an error. */
static inline mc_model *model_of(mc_context *ctx, const char *family, const char *config,
                                 const mc_model_heads *heads, const mc_load_options *options)
{
    temp_folder folder = temp_folder_new();
    const char *path = temp_path(&folder, "config.json");
    write_text(path, config);
    mc_model *model = mc_model_new(ctx, family, path, heads, options);
    temp_folder_free(&folder);
    return model;
}

static inline mc_model *tiny_model(mc_context *ctx, const tiny_family *f,
                                   const mc_load_options *options)
{
    mc_model *model = model_of(ctx, f->name, f->config, NULL, options);
    assert_good(ctx);
    return model;
}

static inline bool is_kind(const mc_model *model, mc_model_kind kind)
{
    return mc_model_get_shape(model).kind == kind;
}

/* ---- a batch --------------------------------------------------------------------------------- */

enum { ANSWER_WIDTH = 5 };
static const int32_t answer_lengths[BATCH] = {3, 5, 1, 4};

static inline int64_t answer_at(int row, int column)
{
    return (row * 7 + column * 11 + 3) % VOCABULARY;
}
/* Two spans, of which the first begins with context. */
static inline int64_t span_at(int row, int column) { return column * 3 > batch_lengths[row] * 2; }
static inline int64_t context_at(int row, int column) { return column * 3 < batch_lengths[row]; }
/* Of every third token. */
static inline int64_t label_at(int row, int column)
{
    return (row + column) % 3 ? -100 : (row * 5 + column * 13) % VOCABULARY;
}

/* Sequences of a batch: one alone; -1: all; or `rows` from this one on. */
typedef struct part {
    way how; /* LENGTHS, PACKED, PACKED_WIDE */
    int row, rows;
} part;

static inline const mc_lengths *part_lengths(mc_tape *t, const int32_t *lengths, part p)
{
    int first = p.row < 0 ? 0 : p.row, count = p.row < 0 ? BATCH : p.rows ? p.rows : 1;
    return mc_tape_lengths(t, lengths + first, count, p.how == PACKED_WIDE ? 16 : 1);
}

/* A number for each token, i32 of the ids' shape; numbers where there is no token are `none`. */
static inline mc_tensor *numbers_for(mc_tape *t, part p, const mc_lengths *l, int width,
                                     int64_t (*value)(int row, int column), int32_t none)
{
    int32_t data[2 * BATCH * WIDTH];
    int n = 0, first = p.row < 0 ? 0 : p.row;
    bool packed = p.how >= PACKED;
    if (!l) return NULL; /* the context has failed */
    for (int i = 0; i < 2 * BATCH * WIDTH; i++) data[i] = none;
    for (int i = 0; i < l->count; i++)
        for (int c = 0; c < (packed ? l->length[i] : width); c++)
            data[n++] = c < l->length[i] ? (int32_t)value(first + i, c) : none;
    mc_shape shape = packed ? MC_SHAPE(l->capacity) : MC_SHAPE(l->count, width);
    return mc_tape_input(t, MC_I32, shape, data, false);
}

static inline mc_tensor *tokens_for(mc_tape *t, part p, const mc_lengths *l, int width,
                                    int64_t (*value)(int row, int column))
{
    return numbers_for(t, p, l, width, value, 0);
}

/* All that the model has a use for. */
static inline mc_model_input input_for(mc_tape *t, const mc_model *model, part p)
{
    const mc_lengths *l = part_lengths(t, batch_lengths, p);
    mc_model_input in = {.ids = tokens_for(t, p, l, WIDTH, id_at), .lengths = l};
    if (model->family->has.types) in.type_ids = tokens_for(t, p, l, WIDTH, type_at);
    if (model->family->has.marks) {
        in.span = tokens_for(t, p, l, WIDTH, span_at);
        in.context = tokens_for(t, p, l, WIDTH, context_at);
    }
    if (model->family->has.globals) in.global_mask = tokens_for(t, p, l, WIDTH, context_at);
    if (is_kind(model, MC_MODEL_ENCODER_DECODER)) {
        in.decoder_lengths = l = part_lengths(t, answer_lengths, p);
        in.decoder_ids = tokens_for(t, p, l, ANSWER_WIDTH, answer_at);
    }
    return in;
}

/* The language model's loss of the batch: of tokens that follow, or of every third token. */
static inline mc_tensor *family_loss(mc_tape *t, mc_model *model, part p)
{
    mc_model_input in = input_for(t, model, p);
    mc_tensor *hidden = mc_model_forward(t, model, &in).last_hidden;
    mc_tensor *ids = in.decoder_ids ? in.decoder_ids : in.ids, *labels;
    if (!hidden) return NULL;
    if (p.how == LENGTHS) p.how = PACKED; /* as hidden states always are */
    if (is_kind(model, MC_MODEL_ENCODER))
        labels = numbers_for(t, p, hidden->lengths, WIDTH, label_at, -100);
    else
        labels = mc_model_shift_labels(t, hidden, ids);
    return mc_model_loss(t, model, hidden, labels);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Steps of Adam on the batch. */
static inline void train_steps(mc_context *ctx, mc_model *model, const mc_adam_options *options,
                               int steps)
{
    mc_optimizer *adam = mc_adam_new(ctx, options);
    mc_optim_manager *optim = mc_optim_manager_new(ctx, NULL);
    mc_optimizer_add(adam, mc_model_module(model));
    mc_optim_manager_add(optim, adam, NULL);
    for (int i = 0; i < steps; i++) {
        mc_optim_manager_zero_grad(optim);
        mc_tape *t = mc_tape_begin(ctx);
        mc_optim_manager_backward(optim, t, family_loss(t, model, (part){PACKED, -1}));
        mc_tape_end(t);
        mc_optim_manager_step(optim);
    }
    assert_good(ctx);
    mc_optim_manager_free(optim);
    mc_optimizer_free(adam);
}

/* ---- what it gives --------------------------------------------------------------------------- */

enum { MOST_LOGITS = BATCH * WIDTH * VOCABULARY };

/* Logits (sequences, width, vocabulary) of the language model for the batch, 0 where there is no
 * token; how many there are. */
static inline int64_t family_logits(mc_model *model, part p, float out[MOST_LOGITS])
{
    mc_context *ctx = mc_model_module(model)->ctx;
    mc_tape *t = mc_tape_begin_eval(ctx);
    mc_model_input in = input_for(t, model, p);
    mc_tensor *hidden = mc_model_forward(t, model, &in).last_hidden;
    const mc_lengths *l = hidden ? hidden->lengths : NULL;
    mc_tensor *x = mc_model_logits(t, model, hidden);
    if (x) x->lengths = l; /* logits' rows are the hidden states' */
    x = x ? mc_unpack(t, x) : NULL;
    assert_good(ctx);
    int64_t count = mc_tensor_count(x), width = mc_tensor_size(x, 1);
    assert_true(count <= MOST_LOGITS);
    mc_tensor_read_f32(ctx, x, out, count);
    for (int64_t i = 0; i < count; i++)
        if (i / VOCABULARY % width >= l->length[i / VOCABULARY / width]) out[i] = 0;
    assert_good(ctx);
    mc_tape_end(t);
    return count;
}

/* Values of all parameters; how many. To be freed. */
static inline float *parameter_values(mc_module *m, int64_t *count)
{
    float *values = malloc((size_t)(mc_module_parameter_count(m) + 1) * sizeof *values);
    assert_non_null(values);
    *count = 0;
    mc_parameter_iterator it = {0};
    for (mc_parameter *p; (p = mc_module_next_parameter(m, &it));
         *count += mc_shape_count(p->shape))
        assert_int_equal(mc_parameter_read(p, values + *count), MC_OK);
    return values;
}

#endif
