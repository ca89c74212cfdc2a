#include "models/modernbert/modernbert.h"

#include <math.h>
#include <string.h>
#include "models/encoder_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_modernbert_config, member)

static const char *const poolings[] = {"cls", "mean", NULL};

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", NULL, "50368", "", 1),
    MC_ROW(SIZE, dim, "hidden_size", NULL, "768", "", 1),
    MC_ROW(SIZE, dim_ff, "intermediate_size", NULL, "1152", "", 1),
    MC_ROW(LAYERS, layers, "num_hidden_layers", NULL, "22", "", 1),
    MC_ROW(SIZE, heads, "num_attention_heads", NULL, "12", "", 1),
    MC_ROW(SIZE, positions, "max_position_embeddings", NULL, "8192", "", 1),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", NULL, "50283", "", 0),
    MC_ROW(SIZE, global_every, "global_attn_every_n_layers", NULL, "3", "", 1),
    MC_ROW(SIZE, window, "local_attention", NULL, "128", "", 1),
    MC_ROW(FLOAT, global_theta, "global_rope_theta", NULL, "160000", "", 1e-6, 1e30),
    MC_ROW(FLOAT, local_theta, "local_rope_theta", NULL, "10000", "", 1e-6, 1e30),
    MC_ROW(ACTIVATION, activation, "hidden_activation", NULL, "\"gelu\"", "", 0),
    MC_ROW(ACTIVATION, head_activation, "classifier_activation", NULL, "\"gelu\"", "", 0),
    MC_ROW(WORD, pooling, "classifier_pooling", NULL, "\"cls\"", "", 0, .words = poolings),
    MC_ROW(FLOAT, eps, "norm_eps", NULL, "1e-5", "", 1e-30, 1),
    MC_ROW(DROPOUT, embedding_dropout, "embedding_dropout", NULL, "0", "", 0),
    MC_ROW(DROPOUT, attention_dropout, "attention_dropout", NULL, "0", "", 0),
    MC_ROW(DROPOUT, ffn_dropout, "mlp_dropout", NULL, "0", "", 0),
    MC_ROW(DROPOUT, classifier_dropout, "classifier_dropout", NULL, "0", "", 0),
    MC_ROW(FLOAT, init_std, "initializer_range", NULL, "0.02", "", 0, 1e6),
    MC_ROW(FLAG, tied, "tie_word_embeddings", NULL, "true", "", 0),
    MC_ONLY("norm_bias", NULL, "false"),
    MC_ONLY("attention_bias", NULL, "false"),
    MC_ONLY("mlp_bias", NULL, "false"),
    MC_ONLY("classifier_bias", NULL, "false"),
    MC_ONLY("decoder_bias", NULL, "true"),
    MC_KNOWN("layer_types", NULL),     /* see take_layer_types */
    MC_KNOWN("rope_parameters", NULL), /* see take_theta */
    MC_ONLY("rope_scaling", NULL, "null"),
    MC_KNOWN("position_embedding_type", NULL), /* this and the next are of released files alone */
    MC_KNOWN("layer_norm_eps", NULL),
    MC_KNOWN("initializer_cutoff_factor", NULL), /* initial values are not cut off here */
    MC_KNOWN("deterministic_flash_attn", NULL),
    MC_KNOWN("reference_compile", NULL),
    MC_KNOWN("repad_logits_with_grad", NULL),
    MC_KNOWN("sparse_prediction", NULL),
    MC_KNOWN("sparse_pred_ignore_index", NULL),
    MC_KNOWN("bos_token_id", NULL),
    MC_KNOWN("eos_token_id", NULL),
    MC_KNOWN("cls_token_id", NULL),
    {MC_CONFIG_END},
};

static const mc_named_shape named[] = {
    {"modernbert-base answerdotai/ModernBERT-base", "{\"classifier_pooling\":\"mean\"}"},
    {"modernbert-large answerdotai/ModernBERT-large",
     "{\"classifier_pooling\":\"mean\",\"hidden_size\":1024,\"intermediate_size\":2624,"
     "\"num_hidden_layers\":28,\"num_attention_heads\":16}"},
    {NULL}};

static mc_model_shape shape(const void *config)
{
    const mc_modernbert_config *c = config;
    return MC_SHAPE_OF(c);
}

/* Of a list of layers' kinds: which of them see the whole text. */
static bool take_layer_types(const mc_config_reader *r, mc_modernbert_config *c)
{
    static const char key[] = "layer_types", full[] = "full_attention";
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(r->json, key), *item;
    int64_t count = cJSON_GetArraySize(list), i = 0;
    if (!cJSON_IsArray(list)) return true;
    if (count != c->layers) return mc_config_unsupported(r, key, "a list", "a type for each layer");
    c->global_every = 0;
    for (int64_t k = 1; k < count && !c->global_every; k++) {
        const char *type = cJSON_GetStringValue(cJSON_GetArrayItem(list, (int)k));
        if (type && strcmp(type, full) == 0) c->global_every = k;
    }
    if (!c->global_every) c->global_every = count;
    cJSON_ArrayForEach(item, list)
    {
        const char *type = cJSON_IsString(item) ? item->valuestring : "?";
        const char *wanted = i++ % c->global_every ? "sliding_attention" : full;
        if (strcmp(type, wanted) != 0)
            return mc_config_unsupported(r, key, type,
                                         "full_attention for the first layer and one in every so "
                                         "many, sliding_attention for the others");
    }
    return true;
}

/* The base in a kind's object, whose angles may not be scaled. */
static bool take_theta(const mc_config_reader *r, const char *key, float *theta)
{
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(r->json, "rope_parameters");
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(all, key);
    mc_rope rope = {.theta = *theta};
    if (!item || cJSON_IsNull(item)) return true;
    if (!mc_config_read_rope(r, key, item, &rope)) return false;
    *theta = rope.theta;
    return rope.scaling.type == MC_ROTARY_DEFAULT ||
           mc_config_unsupported(r, key, "a scaled rope_type", "default");
}

static bool finish(const mc_config_reader *r, void *config)
{
    mc_modernbert_config *c = config;
    mc_model_shape s = shape(c);
    if (!mc_encoder_check(r, &s, 0, c->eps, 0)) return false;
    bool good = c->global_every > 0 && c->window > 0 && c->window <= INT32_MAX &&
                (c->pooling == 0 || c->pooling == 1) && s.head_dim % 2 == 0;
    if (!good)
        return !mc_fail(
            r->ctx, MC_ERR_FORMAT,
            "%s: a global layer in every %lld, a local_attention of %lld, pooling %lld, "
            "heads of %lld: expected positive numbers, a pooling of 0 or 1, heads of "
            "an even size",
            r->path, (long long)c->global_every, (long long)c->window, (long long)c->pooling,
            (long long)s.head_dim);
    return take_layer_types(r, c) && take_theta(r, "full_attention", &c->global_theta) &&
           take_theta(r, "sliding_attention", &c->local_theta);
}

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct modernbert_parts {
    mc_layernorm *embedding_norm, *output_norm, *head_norm;
    mc_linear *head_dense, *classifier;
} modernbert_parts;

typedef struct modernbert_block {
    mc_module module;
    const mc_modernbert_config *config;
    mc_layernorm *attention_norm, *ffn_norm; /* attention_norm NULL: the first layer */
    mc_attention *attention;
    mc_feed_forward *ffn;
} modernbert_block;

static float out_std(const mc_modernbert_config *c)
{
    return mc_literal(c->init_std / sqrtf(2 * (float)c->layers));
}

static mc_layernorm *add_norm(mc_module *m, const char *name, const mc_modernbert_config *c)
{
    return mc_layernorm_add_without_bias(m, name, c->dim, c->eps);
}

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    const mc_modernbert_config *c = config;
    modernbert_block *b = mc_module_add(list, name, sizeof *b);
    if (!b) return NULL;
    mc_module *m = &b->module;
    bool global = index % c->global_every == 0;
    mc_attention_options attention = {.no_bias = true,
                                      .dropout = c->attention_dropout,
                                      .init_std = mc_literal(c->init_std),
                                      .out_std = out_std(c),
                                      .window = global ? 0 : (int)(c->window / 2 + 1),
                                      .rotary_dim = (int)(c->dim / c->heads),
                                      .rotary_halves = true,
                                      .rotary_base = global ? c->global_theta : c->local_theta};
    mc_feed_forward_options ffn = {.activation = c->activation,
                                   .gated = true,
                                   .no_bias = true,
                                   .dropout = c->ffn_dropout,
                                   .init_std = mc_literal(c->init_std),
                                   .out_std = out_std(c)};
    b->config = c;
    if (index > 0) b->attention_norm = add_norm(m, "self_att.layernorm_before_attention", c);
    b->attention =
        mc_attention_add(m, "self_att.self_attention", c->dim, (int)c->heads, &attention);
    b->ffn_norm = add_norm(m, "ffn.layernorm_before_ffn", c);
    b->ffn = mc_feed_forward_add(m, "ffn.ffn", c->dim, c->dim_ff, &ffn);
    return b->ffn ? b : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    modernbert_block *b = object;
    x = mc_sublayer_pre_norm(t, x, b->attention_norm, mc_attention_branch(b->attention), call,
                             b->config->attention_dropout);
    return mc_sublayer_pre_norm(t, x, b->ffn_norm, mc_feed_forward_branch(b->ffn), call, 0);
}

static bool declare(mc_model *m, const mc_load_options *load)
{
    modernbert_parts *parts = m->parts;
    mc_modernbert_config *c = m->config;
    mc_module *root = &m->module;
    mc_linear_options dense = {.no_bias = true, .init_std = out_std(c)};
    mc_linear_options last = {.init_std = 1 / sqrtf((float)c->dim)};
    mc_declare_words(m, mc_literal(c->init_std));
    parts->embedding_norm = add_norm(root, "embedding_layernorm", c);
    m->encoder = mc_block_list_new(root, "encoder.layers", (int)c->layers, new_block, block_forward,
                                   &(mc_block_options){.recompute = load->recompute, .config = c});
    parts->output_norm = add_norm(root, "encoder.output_layernorm", c);
    if (m->heads.lm || m->heads.labels) {
        parts->head_dense = mc_linear_add(root, "head.dense", c->dim, c->dim, &dense);
        parts->head_norm = add_norm(root, "head.norm", c);
    }
    mc_declare_lm_head(m, "lm_head.decoder", c->tied, true, out_std(c));
    mc_declare_token_head(m, true, mc_literal(c->init_std));
    if (m->heads.labels)
        parts->classifier = mc_linear_add(root, "classifier", c->dim, m->heads.labels, &last);
    return !mc_failed(root->ctx);
}

static void set_dropout(mc_model *m, float p)
{
    for (int i = 0; i < mc_block_list_count(m->encoder); i++) {
        modernbert_block *b = mc_block_list_at(m->encoder, i);
        mc_attention_set_dropout(b->attention, p);
        mc_feed_forward_set_dropout(b->ffn, p);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *encode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    modernbert_parts *parts = m->parts;
    const mc_modernbert_config *c = m->config;
    if (c->pooling && m->heads.labels && in->call.key_mask) {
        mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                "ModernBERT: a classifier of the mean (classifier_pooling) takes lengths, not a "
                "mask");
        return NULL;
    }
    mc_embedding_options o = {.norm = parts->embedding_norm, .dropout = c->embedding_dropout};
    mc_tensor *x = mc_run_embedding(t, m, in, &o);
    return mc_run_stack(t, m->encoder, x, parts->output_norm, &in->call);
}

static mc_tensor *head(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    modernbert_parts *parts = m->parts;
    const mc_modernbert_config *c = m->config;
    mc_tensor *h = mc_linear_forward_activated(t, parts->head_dense, hidden, c->head_activation);
    return h ? mc_layernorm_forward(t, parts->head_norm, h) : NULL;
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    modernbert_parts *parts = m->parts;
    const mc_modernbert_config *c = m->config;
    mc_tensor *x =
        c->pooling ? mc_mean_pool(t, out->with_prompt) : mc_first_tokens(t, out->with_prompt);
    x = x ? head(t, m, x) : NULL;
    x = x ? mc_dropout(t, x, c->classifier_dropout) : NULL;
    return x ? mc_linear_forward(t, parts->classifier, x) : NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

#define OURS "encoder.layers.{i}."
#define ATTENTION OURS "self_att.self_attention."
static const mc_weight_rule rules[] = {
    MC_ENCODER_WORDS_RULE("embeddings.tok_embeddings", "decoder"),
    {"embedding_layernorm", "embeddings.norm"},
    {"encoder.output_layernorm", "final_norm"},
    {OURS "self_att.layernorm_before_attention", "layers.{i}.attn_norm"},
    {ATTENTION "project_q", "layers.{i}.attn.Wqkv", .part = 0, .parts = 3},
    {ATTENTION "project_k", "layers.{i}.attn.Wqkv", .part = 1, .parts = 3},
    {ATTENTION "project_v", "layers.{i}.attn.Wqkv", .part = 2, .parts = 3},
    {ATTENTION "attention_out", "layers.{i}.attn.Wo"},
    {OURS "ffn.layernorm_before_ffn", "layers.{i}.mlp_norm"},
    {OURS "ffn.ffn.w_in.w_0", "layers.{i}.mlp.Wi", .part = 0, .parts = 2},
    {OURS "ffn.ffn.w_in.w_1", "layers.{i}.mlp.Wi", .part = 1, .parts = 2},
    {OURS "ffn.ffn.w_out", "layers.{i}.mlp.Wo"},
    {"head", "head", .head = true},
    {"lm_head.decoder", "decoder", .head = true},
    {"classifier", "classifier", .head = true},
    {NULL}};

/* The decoder is the word embedding again unless the model is untied. */
static const char *const ignored[] = {"decoder.*", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "model.",
    .ignored = ignored,
    .order = "weight bias model head decoder classifier embeddings layers final_norm "
             "tok_embeddings attn_norm attn mlp_norm mlp Wqkv Wi Wo dense norm"};

static const char *const model_types[] = {"modernbert", NULL};
static const mc_family_classes classes[] = {
    {"ModernBertForSequenceClassification", "ModernBertForMaskedLM", "ModernBertModel"}};
static const char *const lora_targets[] = {"Wqkv", NULL};

const mc_family mc_family_modernbert = {
    MC_FAMILY_OF(modernbert, modernbert_parts),
    .title = "ModernBERT",
    .kind = MC_MODEL_ENCODER,
    .has = {.labels = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED},
    .hf_only = true,
    .lm_has = "lm_head.decoder.bias",
    .classifier = "classifier.weight",
    .look = mc_encoder_look,
    .encode = encode,
    .head = head,
    .classify = classify,
    .set_dropout = set_dropout,
    .classes = classes,
};

MC_DEFINE_FAMILY(modernbert)
