#include "models/t5/t5.h"

#include <math.h>
#include <string.h>
#include "models/relative_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_t5_config, member)
static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "32128", "32128", 1),
    MC_ROW(SIZE, dim, "d_model", "dim_model", "512", "768", 1),
    MC_ROW(SIZE, dim_ff, "d_ff", "dim_ff", "2048", "3072", 1),
    MC_ROW(LAYERS, layers, "num_layers", "num_encoder_layers", "6", "12", 1),
    MC_ROW(LAYERS, decoder_layers, "num_decoder_layers", "num_decoder_layers", "", "12", 1),
    MC_ROW(SIZE, heads, "num_heads", "num_heads", "8", "12", 1),
    MC_ROW(SIZE, head_dim, "d_kv", "dim_head", "64", "64", 1),
    MC_ROW(SIZE, buckets, "relative_attention_num_buckets", "position_bias_num_buckets", "32", "32",
           4),
    MC_ROW(SIZE, max_distance, "relative_attention_max_distance", "position_bias_max_distance",
           "128", "128", 1),
    MC_ROW(FFN, activation, "feed_forward_proj", "ffn_activate_fn", "\"relu\"", "\"relu\"", 0),
    /* which overrule the row above: transformers writes all three */
    MC_ROW(ACTIVATION, activation, "dense_act_fn", NULL, "", "", 0),
    MC_ROW(FLAG, gated, "is_gated_act", NULL, "", "", 0),
    MC_ROW(FLOAT, eps, "layer_norm_epsilon", "norm_eps", "1e-6", "1e-6", 1e-30, 1),
    MC_ROW(DROPOUT, dropout, "dropout_rate", "dropout_p", "0.1", "0", 0),
    MC_ROW(DROPOUT, classifier_dropout, "classifier_dropout", NULL, "0", "0", 0),
    MC_ROW(FLOAT, init_factor, "initializer_factor", NULL, "1", "1", 0, 1e6),
    MC_ROW(FLAG, tied, "tie_word_embeddings", "tied", "true", "true", 0),
    /* where absent as `tied`, which stands above */
    MC_ROW(FLAG, scale_head, "tie_word_embeddings", NULL, "true", "false", 0),
    MC_ROW(FLAG, scale_head, "scale_decoder_outputs", "scale", "", "false", 0),
    MC_ROW(FLAG, divided, NULL, NULL, "false", "true", 0),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "0", "0", 0),
    MC_ROW(TOKEN, eos_token_id, "eos_token_id", NULL, "1", "1", 0),
    MC_ROW(TOKEN, decoder_start_token_id, "decoder_start_token_id", NULL, "0", "0", 0),
    MC_OTHER_NAME(SIZE, dim, "hidden_size", 1),
    MC_OTHER_NAME(LAYERS, layers, "num_hidden_layers", 1),
    MC_OTHER_NAME(SIZE, heads, "num_attention_heads", 1),
    MC_OTHER_NAME(SIZE, head_dim, "head_dim", 1),
    MC_ONLY("is_encoder_decoder", NULL, "true"),
    MC_ONLY(NULL, "pos_bias_type", "\"relative\""),
    MC_ONLY(NULL, "norm_bias", "false"),
    MC_ONLY(NULL, "att_bias", "false"),
    MC_ONLY(NULL, "ffn_bias", "false"),
    MC_ONLY(NULL, "length_scale", "false"),
    MC_ONLY(NULL, "attn_scale", "false"),
    MC_ONLY(NULL, "pos_init_mean", "0"),
    MC_ONLY_MC_ROWS,
    MC_KNOWN("n_positions", "proj_bias"),
    MC_KNOWN(NULL, "emb_init_std"),
    MC_KNOWN(NULL, "pos_init_std"),
    MC_KNOWN(NULL, "att_init_std"),
    MC_KNOWN(NULL, "ffn_init_std"),
    MC_KNOWN(NULL, "proj_init_std"),
    {0},
};

#define V1(names, d, ff, n, h, kv)                                                            \
    {                                                                                         \
        names, "{\"d_model\":" #d ",\"d_ff\":" #ff ",\"num_layers\":" #n ",\"num_heads\":" #h \
               ",\"d_kv\":" #kv "}"                                                           \
    }
#define GATED(names, vocab, d, ff, n, h)                                                           \
    {                                                                                              \
        names, "{\"vocab_size\":" #vocab ",\"d_model\":" #d ",\"d_ff\":" #ff ",\"num_layers\":" #n \
               ",\"num_heads\":" #h ",\"feed_forward_proj\":\"gated-gelu\","                       \
               "\"tie_word_embeddings\":false}"                                                    \
    }
static const mc_named_shape named[] = {
    V1("t5-small google-t5/t5-small", 512, 2048, 6, 8, 64),
    V1("t5-base google-t5/t5-base", 768, 3072, 12, 12, 64),
    V1("t5-large google-t5/t5-large", 1024, 4096, 24, 16, 64),
    V1("t5-3b google-t5/t5-3b", 1024, 16384, 24, 32, 128),
    V1("t5-11b google-t5/t5-11b", 1024, 65536, 24, 128, 128),
    GATED("google/t5-v1_1-small google/flan-t5-small t5-v1_1-small flan-t5-small", 32128, 512, 1024,
          8, 6),
    GATED("google/t5-v1_1-base google/flan-t5-base t5-v1_1-base flan-t5-base", 32128, 768, 2048, 12,
          12),
    GATED("google/t5-v1_1-large google/flan-t5-large t5-v1_1-large flan-t5-large", 32128, 1024,
          2816, 24, 16),
    GATED("google/t5-v1_1-xl google/flan-t5-xl t5-v1_1-xl flan-t5-xl", 32128, 2048, 5120, 24, 32),
    GATED("google/t5-v1_1-xxl google/flan-t5-xxl t5-v1_1-xxl flan-t5-xxl", 32128, 4096, 10240, 24,
          64),
    GATED("google/mt5-small mt5-small", 250112, 512, 1024, 8, 6),
    GATED("google/mt5-base mt5-base", 250112, 768, 2048, 12, 12),
    GATED("google/mt5-large mt5-large", 250112, 1024, 2816, 24, 16),
    GATED("google/mt5-xl mt5-xl", 250112, 2048, 5120, 24, 32),
    GATED("google/mt5-xxl mt5-xxl", 250112, 4096, 10240, 24, 64),
    {NULL}};

static bool finish(const mc_config_reader *r, void *config)
{
    mc_t5_config *c = config;
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(r->json, "model_type");
    if (!c->decoder_layers) c->decoder_layers = c->layers;
    if (cJSON_IsString(type) && strcmp(type->valuestring, "mt5") == 0)
        c->scale_head = false; /* transformers scales no mT5's, whatever the config says */
    if (c->divided && !c->tied) c->scale_head = false; /* "scale" is of the words as head */
    bool good = c->dim > 0 && c->heads > 0 && c->head_dim > 0 && c->vocab_size > 0 &&
                c->dim_ff > 0 && c->layers > 0 && c->layers <= MC_MOST_LAYERS &&
                c->decoder_layers > 0 && c->decoder_layers <= MC_MOST_LAYERS && c->eps > 0;
    if (good && c->buckets >= 4 && c->buckets % 2 == 0 && c->max_distance > c->buckets / 2)
        return true;
    return !mc_fail(r->ctx, MC_ERR_FORMAT,
                    "%s: dim %lld, %lld heads of %lld, dim_ff %lld, %lld and %lld layers, "
                    "vocabulary %lld, %lld buckets up to distance %lld, eps %g: expected positive "
                    "sizes, at most %d layers, an even number of buckets and a distance above half "
                    "of it",
                    r->path, (long long)c->dim, (long long)c->heads, (long long)c->head_dim,
                    (long long)c->dim_ff, (long long)c->layers, (long long)c->decoder_layers,
                    (long long)c->vocab_size, (long long)c->buckets, (long long)c->max_distance,
                    (double)c->eps, MC_MOST_LAYERS);
}

static mc_model_shape shape(const void *config)
{
    const mc_t5_config *c = config;
    return (mc_model_shape){.vocab_size = c->vocab_size,
                            .dim = c->dim,
                            .dim_ff = c->dim_ff,
                            .heads = c->heads,
                            .head_dim = c->head_dim,
                            .layers = c->layers,
                            .decoder_layers = c->decoder_layers,
                            .pad_token = c->pad_token_id,
                            .bos_token = -1,
                            .eos_token = c->eos_token_id,
                            .start_token = c->decoder_start_token_id};
}

/* ---- construction ---------------------------------------------------------------------------- */

typedef struct t5_parts {
    mc_relative_stack encoder, decoder;
    mc_linear *classifier_dense, *classifier;
} t5_parts;

/* T5 scales no scores: what does is in the initial weights of q (Mesh TensorFlow's). */
static mc_relative_options stack_options(const mc_t5_config *c, bool decoder)
{
    float over_dim = c->init_factor / sqrtf((float)c->dim);
    mc_relative_options o = {.name = decoder ? "decoder" : "encoder",
                             .bias_name = decoder ? "position_bias_dec.relative_attention_bias"
                                                  : "position_bias_enc.relative_attention_bias",
                             .layers = decoder ? c->decoder_layers : c->layers,
                             .dim = c->dim,
                             .dim_ff = c->dim_ff,
                             .heads = c->heads,
                             .buckets = c->buckets,
                             .max_distance = c->max_distance,
                             .causal = decoder,
                             .cross = decoder,
                             .both_ways = !decoder,
                             .eps = c->eps,
                             .dropout = c->dropout,
                             .bias_std = over_dim};
    o.attention = (mc_attention_options){
        .head_dim = (int)c->head_dim,
        .no_bias = true,
        .scale = 1,
        .init_std = mc_literal(over_dim),
        .q_std = mc_literal(over_dim / sqrtf((float)c->head_dim)),
        .out_std = mc_literal(c->init_factor / sqrtf((float)(c->heads * c->head_dim)))};
    o.ffn =
        (mc_feed_forward_options){.activation = c->activation,
                                  .gated = c->gated,
                                  .no_bias = true,
                                  .dropout = c->dropout,
                                  .init_std = mc_literal(over_dim),
                                  .out_std = mc_literal(c->init_factor / sqrtf((float)c->dim_ff))};
    return o;
}

static void declare_classifier(mc_model *m)
{
    t5_parts *parts = m->parts;
    const mc_t5_config *c = m->config;
    mc_linear_options o = {.init_std = mc_literal(c->init_factor / sqrtf((float)c->dim))};
    if (!m->heads.labels) return;
    parts->classifier_dense =
        mc_linear_add(&m->module, "classification_head.dense", c->dim, c->dim, &o);
    parts->classifier =
        mc_linear_add(&m->module, "classification_head.out_proj", c->dim, m->heads.labels, &o);
}

static bool declare(mc_model *m, const mc_load_options *o)
{
    t5_parts *parts = m->parts;
    const mc_t5_config *c = m->config;
    mc_relative_options encoder = stack_options(c, false), decoder = stack_options(c, true);
    mc_declare_words(m, mc_literal(c->init_factor));
    if (!mc_relative_stack_add(m, &parts->encoder, &encoder, o) ||
        !mc_relative_stack_add(m, &parts->decoder, &decoder, o))
        return false;
    m->encoder = parts->encoder.blocks;
    m->decoder = parts->decoder.blocks;
    mc_declare_lm_head(m, "output_projection", c->tied, false, c->init_factor);
    mc_declare_token_head(m, false, 0);
    declare_classifier(m);
    if (c->scale_head) m->head_scale = (c->divided ? 100 : 1) / sqrtf((float)c->dim);
    return true;
}

static void set_dropout(mc_model *m, float p)
{
    t5_parts *parts = m->parts;
    mc_relative_stack_set_dropout(&parts->encoder, p, true);
    mc_relative_stack_set_dropout(&parts->decoder, p, true);
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *run(mc_tape *t, mc_model *m, mc_relative_stack *stack, mc_stack_input *in)
{
    const mc_t5_config *c = m->config;
    mc_tensor *x = mc_relative_stack_run(t, m, stack, in, 1, c->dropout);
    return x ? mc_dropout(t, x, c->dropout) : NULL;
}

static mc_tensor *encode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    t5_parts *parts = m->parts;
    return run(t, m, &parts->encoder, in);
}

static mc_tensor *decode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    t5_parts *parts = m->parts;
    return run(t, m, &parts->decoder, in);
}

/* From the decoder's token where the text's last end is. */
static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    t5_parts *parts = m->parts;
    const mc_t5_config *c = m->config;
    mc_tensor *x = mc_last_token_of(t, out, m->shape.eos_token, true);
    x = x ? mc_dropout(t, x, c->classifier_dropout) : NULL;
    x = x ? mc_linear_forward_activated(t, parts->classifier_dense, x, MC_ACTIVATION_TANH) : NULL;
    x = x ? mc_dropout(t, x, c->classifier_dropout) : NULL;
    return x ? mc_linear_forward(t, parts->classifier, x) : NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The factors are those that ModelCenter divides Hugging Face's values by. */
#define E "encoder.layers.{i}."
#define D "decoder.layers.{i}."
static const char *const tables[] = {"encoder.embed_tokens", "decoder.embed_tokens", NULL};
static const mc_weight_rule rules[] = {
    {"input_embedding", "shared", .factor = 100, .also = tables, .tied_to = "lm_head"},
    {"position_bias_enc.relative_attention_bias",
     "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
    {"position_bias_dec.relative_attention_bias",
     "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"},
    {E "self_att.layernorm_before_attention", "encoder.block.{i}.layer.0.layer_norm"},
    {E "self_att.self_attention.project_q", "encoder.block.{i}.layer.0.SelfAttention.q"},
    {E "self_att.self_attention.project_k", "encoder.block.{i}.layer.0.SelfAttention.k"},
    {E "self_att.self_attention.project_v", "encoder.block.{i}.layer.0.SelfAttention.v"},
    {E "self_att.self_attention.attention_out", "encoder.block.{i}.layer.0.SelfAttention.o",
     .factor = 100},
    {E "ffn.layernorm_before_ffn", "encoder.block.{i}.layer.1.layer_norm"},
    {E "ffn.ffn.w_in.w", "encoder.block.{i}.layer.1.DenseReluDense.wi", .factor = 10},
    {E "ffn.ffn.w_in.w_0", "encoder.block.{i}.layer.1.DenseReluDense.wi_0"},
    {E "ffn.ffn.w_in.w_1", "encoder.block.{i}.layer.1.DenseReluDense.wi_1", .factor = 10},
    {E "ffn.ffn.w_out", "encoder.block.{i}.layer.1.DenseReluDense.wo", .factor = 10},
    {"encoder.output_layernorm", "encoder.final_layer_norm"},
    {D "self_att.layernorm_before_attention", "decoder.block.{i}.layer.0.layer_norm"},
    {D "self_att.self_attention.project_q", "decoder.block.{i}.layer.0.SelfAttention.q"},
    {D "self_att.self_attention.project_k", "decoder.block.{i}.layer.0.SelfAttention.k"},
    {D "self_att.self_attention.project_v", "decoder.block.{i}.layer.0.SelfAttention.v"},
    {D "self_att.self_attention.attention_out", "decoder.block.{i}.layer.0.SelfAttention.o",
     .factor = 100},
    {D "cross_att.layernorm_before_attention", "decoder.block.{i}.layer.1.layer_norm"},
    {D "cross_att.self_attention.project_q", "decoder.block.{i}.layer.1.EncDecAttention.q"},
    {D "cross_att.self_attention.project_k", "decoder.block.{i}.layer.1.EncDecAttention.k"},
    {D "cross_att.self_attention.project_v", "decoder.block.{i}.layer.1.EncDecAttention.v"},
    {D "cross_att.self_attention.attention_out", "decoder.block.{i}.layer.1.EncDecAttention.o",
     .factor = 100},
    {D "ffn.layernorm_before_ffn", "decoder.block.{i}.layer.2.layer_norm"},
    {D "ffn.ffn.w_in.w", "decoder.block.{i}.layer.2.DenseReluDense.wi", .factor = 10},
    {D "ffn.ffn.w_in.w_0", "decoder.block.{i}.layer.2.DenseReluDense.wi_0"},
    {D "ffn.ffn.w_in.w_1", "decoder.block.{i}.layer.2.DenseReluDense.wi_1", .factor = 10},
    {D "ffn.ffn.w_out", "decoder.block.{i}.layer.2.DenseReluDense.wo", .factor = 10},
    {"decoder.output_layernorm", "decoder.final_layer_norm"},
    {"output_projection", "lm_head", .head = true},
    {"classification_head", "classification_head", .head = true},
    {NULL}};

/* Copies of the words, and a table that early files hold in vain. */
static const char *const ignored[] = {
    "*encoder.embed_tokens.weight", "*decoder.embed_tokens.weight", "lm_head.weight",
    "*decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "transformer.",
    .ignored = ignored,
    .order = "weight bias transformer shared encoder decoder lm_head classification_head block "
             "final_layer_norm SelfAttention EncDecAttention DenseReluDense layer_norm q k v o "
             "relative_attention_bias wi wi_0 wi_1 wo dense out_proj"};

/* A head that differs from the words is the head, and any other is the words again, whatever
 * Hugging Face's config says: it is scaled or not as `scale_head` says. */
static bool look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads)
{
    mc_t5_config *c = config;
    bool own = mc_file_has_own_head(f, "output_projection.weight", "input_embedding.weight");
    if (heads->lm && (own || f->form == MC_FORM_HF)) c->tied = !own;
    return !mc_failed(ctx);
}

/* ModelCenter's "scale" is of divided words as head. Without it words are written as they are, as
 * FLAN-T5's were; where blocks end in norms, that is the same model. */
static bool before_save_mc(mc_model *m, mc_t5_config *c, int *scaling)
{
    if (!c->tied && c->scale_head)
        return !mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
                        "T5: a scaled head that is not the words has no ModelCenter form");
    c->divided = true;
    if (c->tied && !c->scale_head) return true;
    *scaling = -1;
    c->eps *= 1e-4f; /* of a mean of squares that is 1e4 times smaller */
    return true;
}

static bool before_save(mc_model *m, mc_config_form form, void *config, int *scaling)
{
    mc_t5_config *c = config;
    if (form == MC_FORM_MC) return c->divided || before_save_mc(m, c, scaling);
    if (!c->divided) return true;
    if (c->tied && !c->scale_head)
        return !mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
                        "T5: logits of ModelCenter's scale (\"scale\" is not true) have no Hugging "
                        "Face form");
    *scaling = 1;
    c->eps *= 1e4f; /* what a mean of squares that is 1e4 times larger needs to give the same */
    return true;
}

/* The other encoder-decoder of ModelCenter's is CPM-2. */
static bool is_mc(const cJSON *json)
{
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(json, "length_scale");
    const cJSON *fn = cJSON_GetObjectItemCaseSensitive(json, "ffn_activate_fn");
    return cJSON_IsFalse(scale) ||
           (cJSON_IsString(fn) && (strcmp(fn->valuestring, "relu") == 0 ||
                                   strcmp(fn->valuestring, "gated_gelu_new") == 0));
}

static const char *const model_types[] = {"t5", "mt5", NULL}, *const none[] = {NULL};
static const mc_family_classes classes[] = {
    {"T5ForSequenceClassification", "T5ForConditionalGeneration"},
    {"T5ForSequenceClassification", "T5ForConditionalGeneration"}};
static const mc_type_defaults mt5[] = {
    {"mt5", "{\"vocab_size\":250112,\"d_ff\":1024,\"num_layers\":8,\"num_heads\":6,"
            "\"feed_forward_proj\":\"gated-gelu\"}"},
    {NULL}};
static const char *const mc_has[] = {"position_bias_enc.relative_attention_bias", NULL};

static const char *const lora_targets[] = {"q", "v", NULL};

const mc_family mc_family_t5 = {
    MC_FAMILY_OF(t5, t5_parts),
    .title = "T5",
    .type_defaults = mt5,
    .kind = MC_MODEL_ENCODER_DECODER,
    .prompt = MC_PROMPT_T5,
    .has = {.labels = true},
    .objective = {.kind = MC_OBJECTIVE_SPANS,
                  .sentinel = "<extra_id_%d>",
                  .input_end = "</s>",
                  .target_end = "</s>"},
    .mc_has = mc_has,
    .mc_lacks = none,
    .mc_is = is_mc,
    .classifier = "classification_head.out_proj.weight",
    .look = look,
    .encode = encode,
    .decode = decode,
    .classify = classify,
    .set_dropout = set_dropout,
    .before_save = before_save,
    .classes = classes,
};

MC_DEFINE_FAMILY(t5)
