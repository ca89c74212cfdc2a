#include "models/bert/bert_internal.h"

#include <stdio.h>

/* ---- config ---------------------------------------------------------------------------------- */

static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, vocab_size, "vocab_size", "vocab_size", "30522", "119547", 1),
    MC_ROW(SIZE, dim, "hidden_size", "dim_model", "768", "768", 1),
    MC_ROW(SIZE, dim_ff, "intermediate_size", "dim_ff", "3072", "3072", 1),
    MC_ROW(SIZE, layers, "num_hidden_layers", "num_layers", "12", "12", 0),
    MC_ROW(SIZE, heads, "num_attention_heads", "num_heads", "12", "12", 1),
    MC_ROW(SIZE, positions, "max_position_embeddings", "position_size", "512", "512", 1),
    MC_ROW(SIZE, types, "type_vocab_size", "type_size", "2", "2", 1),
    MC_ROW(TOKEN, pad_token_id, "pad_token_id", "pad_token_id", "0", "0", 0),
    MC_ROW(FLOAT, eps, "layer_norm_eps", "norm_eps", "1e-12", "1e-12", 1e-30, 1),
    MC_BERT_COMMON_ROWS,
    {0},
};

static const mc_named_shape named[] = {
    {"bert-base-uncased bert-base", "{}"},
    {"bert-large-uncased bert-large",
     "{\"hidden_size\":1024,\"intermediate_size\":4096,\"num_hidden_layers\":24,"
     "\"num_attention_heads\":16}"},
    {"bert-base-cased", "{\"vocab_size\":28996}"},
    {"bert-large-cased", "{\"vocab_size\":28996,\"hidden_size\":1024,\"intermediate_size\":4096,"
                         "\"num_hidden_layers\":24,\"num_attention_heads\":16}"},
    {"bert-base-chinese", "{\"vocab_size\":21128}"},
    {"bert-base-multilingual-cased", "{\"vocab_size\":119547}"},
    {NULL}};

mc_model_shape mc_bert_shape(const void *config)
{
    const mc_bert_config *c = config;
    mc_model_shape s = MC_SHAPE_OF(c);
    s.types = c->types;
    return s;
}

bool mc_bert_finish(const mc_config_reader *r, void *config)
{
    mc_bert_config *c = config;
    if (c->classifier_dropout < 0) c->classifier_dropout = c->dropout;
    mc_model_shape s = mc_bert_shape(c);
    if (c->pad_token_id >= c->vocab_size)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: pad_token_id %lld is no token of the vocabulary of %lld", r->path,
                        (long long)c->pad_token_id, (long long)c->vocab_size);
    return mc_config_check_sizes(r, &s, c->head_dim, c->eps) &&
           mc_config_check_rows(r, "positions", c->positions) &&
           mc_config_check_rows(r, "types", c->types);
}

/* ---- construction ---------------------------------------------------------------------------- */

/* A block ends with a layer norm (post-LN), so that one fused kernel does sum and norm. ModelCenter
 * names that norm after the place where it is used next: the following layer's first norm, or the
 * encoder's output norm. */
typedef struct bert_block {
    mc_module module;
    const mc_bert_config *config;
    mc_attention *attention;
    mc_layernorm *attention_norm, *output_norm;
    mc_feed_forward *ffn;
} bert_block;

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    const mc_bert_config *c = config;
    bert_block *b = mc_module_add(list, name, sizeof *b);
    if (!b) return NULL;
    char output_name[96] = "/encoder.output_layernorm";
    if (index + 1 < c->layers)
        snprintf(output_name, sizeof output_name,
                 "/encoder.layers.%d.self_att.layernorm_before_attention", index + 1);
    mc_module *m = &b->module;
    mc_attention_options attention = {.dropout = c->attention_dropout,
                                      .init_std = mc_literal(c->init_std)};
    mc_feed_forward_options ffn = {.activation = c->activation, .init_std = mc_literal(c->ffn_std)};
    b->config = c;
    b->attention =
        mc_attention_add(m, "self_att.self_attention", c->dim, (int)c->heads, &attention);
    b->attention_norm = mc_layernorm_add(m, "ffn.layernorm_before_ffn", c->dim, c->eps);
    b->ffn = mc_feed_forward_add(m, "ffn.ffn", c->dim, c->dim_ff, &ffn);
    b->output_norm = mc_layernorm_add(m, output_name, c->dim, c->eps);
    return b->output_norm ? b : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    bert_block *b = object;
    float p = b->config->dropout;
    x = mc_sublayer_post_norm(t, x, mc_attention_branch(b->attention), call, p, b->attention_norm);
    return mc_sublayer_post_norm(t, x, mc_feed_forward_branch(b->ffn), call, p, b->output_norm);
}

static void declare_heads(mc_model *m)
{
    mc_bert_parts *parts = m->parts;
    const mc_bert_config *c = m->config;
    mc_linear_options o = {.init_std = mc_literal(c->init_std)};
    if (m->heads.pooler)
        parts->pooler = mc_linear_add(&m->module, "pooler.dense", c->dim, c->dim, &o);
    if (m->heads.lm) {
        parts->mlm_dense = mc_linear_add(&m->module, "lm_head.dense", c->dim, c->dim, &o);
        parts->mlm_norm = mc_layernorm_add(&m->module, "lm_head.layer_norm", c->dim, c->eps);
    }
    mc_declare_lm_head(m, "lm_head.decoder", c->tied, true, mc_literal(c->embedding_std));
    if (m->heads.nsp) parts->nsp = mc_linear_add(&m->module, "nsp_head", c->dim, 2, &o);
    mc_declare_token_head(m, true, mc_literal(c->init_std));
}

bool mc_bert_declare_encoder(mc_model *m, const mc_load_options *o)
{
    mc_bert_parts *parts = m->parts;
    mc_bert_config *c = m->config;
    float std = mc_literal(c->embedding_std);
    mc_declare_words(m, std);
    parts->positions =
        mc_embedding_add(&m->module, "position_embedding", c->positions, c->dim, std);
    parts->types = mc_embedding_add(&m->module, "token_type_embedding", c->types, c->dim, std);
    const char *norm =
        c->layers ? "encoder.layers.0.self_att.layernorm_before_attention" : "embedding_layernorm";
    parts->embedding_norm = mc_layernorm_add(&m->module, norm, c->dim, c->eps);
    m->encoder =
        mc_block_list_new(&m->module, "encoder.layers", (int)c->layers, new_block, block_forward,
                          &(mc_block_options){.recompute = o->recompute, .config = c});
    declare_heads(m);
    return m->encoder;
}

static bool declare(mc_model *m, const mc_load_options *o)
{
    mc_bert_parts *parts = m->parts;
    const mc_bert_config *c = m->config;
    if (m->heads.labels && !m->heads.pooler)
        return !mc_fail(m->module.ctx, MC_ERR_ARGUMENT, "BERT: a classifier needs the pooler");
    mc_linear_options options = {.init_std = mc_literal(c->init_std)};
    if (!mc_bert_declare_encoder(m, o)) return false;
    if (m->heads.labels)
        parts->classifier =
            mc_linear_add(&m->module, "classifier", c->dim, m->heads.labels, &options);
    return true;
}

void mc_bert_set_dropout(mc_model *m, float p)
{
    for (int i = 0; i < mc_block_list_count(m->encoder); i++) {
        bert_block *b = mc_block_list_at(m->encoder, i);
        mc_attention_set_dropout(b->attention, p);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *embed(mc_tape *t, mc_model *m, const mc_stack_input *in)
{
    mc_bert_parts *parts = m->parts;
    const mc_bert_config *c = m->config;
    mc_tensor *positions = mc_embedding_table(t, parts->positions);
    /* RoBERTa's padding has no position. Behind a prompt every token has one, as in transformers */
    bool by_ids = parts->first_position && !in->rows;
    mc_tensor *rows = !by_ids ? in->positions
                              : mc_token_positions(t, in->ids, in->lengths, m->shape.vocab_size,
                                                   m->shape.pad_token, parts->first_position);
    if (parts->first_position && !by_ids)
        positions =
            mc_slice(t, positions, 0, parts->first_position, c->positions - parts->first_position);
    mc_embedding_options o = {.others = 2,
                              .table = {positions, mc_embedding_table(t, parts->types)},
                              .index = {rows, in->types},
                              .norm = parts->embedding_norm,
                              .dropout = c->dropout};
    return mc_run_embedding(t, m, in, &o);
}

mc_tensor *mc_bert_encode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    return mc_run_stack(t, m->encoder, embed(t, m, in), NULL, &in->call);
}

mc_tensor *mc_bert_pool(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    mc_bert_parts *parts = m->parts;
    mc_tensor *first = mc_first_tokens(t, hidden);
    return first ? mc_linear_forward_activated(t, parts->pooler, first, MC_ACTIVATION_TANH) : NULL;
}

/* dense, activation, layer norm: what comes before the product with the vocabulary. */
mc_tensor *mc_bert_mlm_head(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    mc_bert_parts *parts = m->parts;
    const mc_bert_config *c = m->config;
    mc_tensor *h = mc_linear_forward_activated(t, parts->mlm_dense, hidden, c->activation);
    return h ? mc_layernorm_forward(t, parts->mlm_norm, h) : NULL;
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    mc_bert_parts *parts = m->parts;
    const mc_bert_config *c = m->config;
    mc_tensor *x = mc_dropout(t, out->pooled, c->classifier_dropout);
    return mc_linear_forward(t, parts->classifier, x);
}

static mc_tensor *next_sentence(mc_tape *t, mc_model *m, mc_tensor *pooled)
{
    mc_bert_parts *parts = m->parts;
    return mc_linear_forward(t, parts->nsp, pooled);
}

/* ---- files ----------------------------------------------------------------------------------- */

static const mc_weight_rule rules[] = {
    MC_BERT_BODY_RULES("cls.predictions.decoder"),
    {"lm_head.dense", "cls.predictions.transform.dense", .head = true},
    {"lm_head.layer_norm", "cls.predictions.transform.LayerNorm", .head = true},
    {"lm_head.decoder.weight", "cls.predictions.decoder.weight", .head = true},
    {"lm_head.decoder.bias", "cls.predictions.bias", .head = true,
     .copy = "cls.predictions.decoder.bias", .copied_with = "lm_head.decoder.weight"},
    {"nsp_head", "cls.seq_relationship", .head = true},
    {"classifier", "classifier", .head = true},
    {NULL}};

/* Position ids are a buffer; the decoder's weight is the word embedding again unless the model is
 * untied, and its bias is cls.predictions.bias again. */
static const char *const ignored[] = {"*embeddings.position_ids",  "*embeddings.token_type_ids",
                                      "cls.predictions.decoder.*", "cls.predictions.bias",
                                      "lm_head.decoder.weight",    NULL};

static const mc_weight_map map = {
    .rules = rules, .base_prefix = "bert.", .ignored = ignored, .order = MC_BERT_ORDER};

/* The bias has two names, of which a file may have both; transformers computes with the decoder's
 * (version 5 does not tie what differs; before, it was loaded last). */
static void warn_biases(mc_context *ctx, const mc_model_file *f)
{
    static const char own[] = "lm_head.decoder.bias";
    char name[MC_NAME_MAX], copy[MC_NAME_MAX];
    if (!mc_weight_copy(f->map, own, copy) || !mc_weight_name(f->map, f->layers, own, false, name))
        return;
    if (mc_weights_differ(f->file, mc_tensor_file_find(f->file, copy),
                          mc_tensor_file_find(f->file, name)))
        mc_log(ctx, MC_LOG_WARNING, "%s: tensors \"%s\" and \"%s\" differ: the first counts",
               f->folder, copy, name);
}

/* A file may have a matrix of its own although config.json does not say so. */
bool mc_bert_look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads)
{
    mc_bert_config *c = config;
    if (heads->lm) warn_biases(ctx, f);
    if (heads->lm && f->form == MC_FORM_HF &&
        mc_file_has_own_head(f, "lm_head.decoder.weight", "input_embedding.weight"))
        c->tied = false;
    return true;
}

static const char *architecture(const mc_model *m)
{
    if (m->heads.labels) return "BertForSequenceClassification";
    if (m->heads.lm) return m->heads.nsp ? "BertForPreTraining" : "BertForMaskedLM";
    return m->heads.nsp ? "BertForNextSentencePrediction" : "BertModel";
}

static bool is_mc(const cJSON *json)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(json, "type_size");
    return !cJSON_IsNumber(types) || types->valueint > 1; /* a RoBERTa has one type */
}

static const char *const model_types[] = {"bert", NULL}, *const none[] = {NULL};
static const char *const mc_has[] = {"token_type_embedding.weight", NULL};

static const char *const lora_targets[] = {"query", "value", NULL};

const mc_family mc_family_bert = {
    .name = "bert",
    .title = "BERT",
    .model_type = model_types,
    .kind = MC_MODEL_ENCODER,
    .has = {.types = true, .pooler = true, .nsp = true, .labels = true},
    .objective = {.kind = MC_OBJECTIVE_MASKED, .next_sentence = true},
    .config_size = sizeof(mc_bert_config),
    .parts_size = sizeof(mc_bert_parts),
    .rows = config_rows,
    .named = named,
    .map = &map,
    .lora_targets = lora_targets,
    .mc_has = mc_has,
    .mc_lacks = none,
    .mc_is = is_mc,
    .classifier = "classifier.weight",
    .finish = mc_bert_finish,
    .shape = mc_bert_shape,
    .look = mc_bert_look,
    .declare = declare,
    .encode = mc_bert_encode,
    .pool = mc_bert_pool,
    .head = mc_bert_mlm_head,
    .classify = classify,
    .nsp = next_sentence,
    .set_dropout = mc_bert_set_dropout,
    .architecture = architecture};

MC_DEFINE_FAMILY(bert)
