#include "models/encoder_internal.h"
#include "core/ops/fused.h"

#include <stdio.h>

/* ---- construction ---------------------------------------------------------------------------- */

/* A block ends with a layer norm (post-LN), so that one fused kernel does sum and norm. ModelCenter
 * names that norm after the place where it is used next: the following layer's first norm, or the
 * encoder's output norm. */
typedef struct encoder_block {
    mc_module module;
    const mc_encoder_options *o;
    mc_attention *attention;
    mc_layernorm *attention_norm, *output_norm;
    mc_feed_forward *ffn;
} encoder_block;

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    const mc_encoder_options *o = config;
    encoder_block *b = mc_module_add(list, name, sizeof *b);
    if (!b) return NULL;
    char output_name[96] = "/encoder.output_layernorm";
    if (index + 1 < o->layers)
        snprintf(output_name, sizeof output_name,
                 "/encoder.layers.%d.self_att.layernorm_before_attention", index + 1);
    mc_module *m = &b->module;
    mc_attention_options attention = {.dropout = o->attention_dropout,
                                      .window = o->window,
                                      .globals = o->globals,
                                      .init_std = mc_literal(o->init_std)};
    mc_feed_forward_options ffn = {.activation = o->activation, .init_std = mc_literal(o->ffn_std)};
    b->o = o;
    b->attention =
        mc_attention_add(m, "self_att.self_attention", o->dim, (int)o->heads, &attention);
    b->attention_norm = mc_layernorm_add(m, "ffn.layernorm_before_ffn", o->dim, o->eps);
    b->ffn = mc_feed_forward_add(m, "ffn.ffn", o->dim, o->dim_ff, &ffn);
    b->output_norm = mc_layernorm_add(m, output_name, o->dim, o->eps);
    return b->output_norm ? b : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    encoder_block *b = object;
    float p = b->o->dropout, of_attention = b->o->whole_attention ? 0 : p;
    x = mc_sublayer_post_norm(t, x, mc_attention_branch(b->attention), call, of_attention,
                              b->attention_norm);
    return mc_sublayer_post_norm(t, x, mc_feed_forward_branch(b->ffn), call, p, b->output_norm);
}

static int64_t words_dim(const mc_encoder_options *o)
{
    return o->words_dim ? o->words_dim : o->dim;
}

static void declare_heads(mc_model *m)
{
    mc_encoder *e = m->parts;
    const mc_encoder_options *o = &e->o;
    mc_linear_options linear = {.init_std = mc_literal(o->init_std)};
    if (m->heads.pooler)
        e->pooler = mc_linear_add(&m->module, "pooler.dense", o->dim, o->dim, &linear);
    if (m->heads.lm) {
        e->lm_dense = mc_linear_add(&m->module, "lm_head.dense", o->dim, words_dim(o), &linear);
        e->lm_norm = mc_layernorm_add(&m->module, "lm_head.layer_norm", words_dim(o), o->eps);
    }
    mc_declare_lm_head(m, "lm_head.decoder", o->tied, true, mc_literal(o->embedding_std));
    if (m->heads.nsp) e->nsp = mc_linear_add(&m->module, "nsp_head", o->dim, 2, &linear);
    mc_declare_token_head(m, true, mc_literal(o->init_std));
}

static void declare_embeddings(mc_model *m)
{
    mc_encoder *e = m->parts;
    const mc_encoder_options *o = &e->o;
    float std = mc_literal(o->embedding_std);
    int64_t dim = words_dim(o);
    m->words_dim = dim != o->dim ? dim : 0;
    mc_declare_words(m, std);
    e->positions = mc_embedding_add(&m->module, "position_embedding", o->positions, dim, std);
    if (o->types)
        e->types = mc_embedding_add(&m->module, "token_type_embedding", o->types, dim, std);
    bool apart = !o->layers || dim != o->dim;
    const char *norm =
        apart ? "embedding_layernorm" : "encoder.layers.0.self_att.layernorm_before_attention";
    e->embedding_norm = mc_layernorm_add(&m->module, norm, dim, o->eps);
    if (dim != o->dim)
        e->projection = mc_linear_add(&m->module, "embedding_projection", dim, o->dim,
                                      &(mc_linear_options){.init_std = mc_literal(o->init_std)});
    if (o->buckets)
        e->bias =
            mc_parameter_new(&m->module, "encoder.relative_attention_bias",
                             MC_SHAPE(o->buckets, o->heads), mc_init_normal(0, o->embedding_std));
}

bool mc_encoder_declare(mc_model *m, const mc_encoder_options *options, const mc_load_options *load)
{
    mc_encoder *e = m->parts;
    e->o = *options;
    declare_embeddings(m);
    m->encoder =
        mc_block_list_new(&m->module, "encoder.layers", (int)e->o.layers, new_block, block_forward,
                          &(mc_block_options){.recompute = load->recompute, .config = &e->o});
    declare_heads(m);
    return m->encoder;
}

bool mc_encoder_declare_classifier(mc_model *m)
{
    mc_encoder *e = m->parts;
    mc_linear_options o = {.init_std = mc_literal(e->o.init_std)};
    if (!m->heads.labels) return true;
    e->classifier_dense = mc_linear_add(&m->module, "classifier.dense", e->o.dim, e->o.dim, &o);
    e->classifier = mc_linear_add(&m->module, "classifier.out_proj", e->o.dim, m->heads.labels, &o);
    return e->classifier;
}

void mc_encoder_set_dropout(mc_model *m, float p)
{
    mc_encoder *e = m->parts;
    e->o.dropout = e->o.attention_dropout = p;
    for (int i = 0; i < mc_block_list_count(m->encoder); i++) {
        encoder_block *b = mc_block_list_at(m->encoder, i);
        mc_attention_set_dropout(b->attention, p);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

static mc_tensor *embed(mc_tape *t, mc_model *m, const mc_stack_input *in)
{
    mc_encoder *e = m->parts;
    int64_t first = e->o.first_position;
    mc_tensor *positions = mc_embedding_table(t, e->positions), *rows = in->positions;
    if (first && in->rows) /* after a soft prompt each token has a position, as in transformers */
        positions = mc_slice(t, positions, 0, first, e->o.positions - first);
    else if (first)
        rows = mc_token_positions(t, in->ids, in->lengths, m->shape.vocab_size, m->shape.pad_token,
                                  first);
    mc_embedding_options o = {
        .others = e->types ? 2 : 1,
        .table = {positions, e->types ? mc_embedding_table(t, e->types) : NULL},
        .index = {rows, in->types},
        .name = {"positions", "type_ids"},
        .norm = e->embedding_norm,
        .dropout = e->o.dropout};
    return mc_run_embedding(t, m, in, &o);
}

mc_tensor *mc_encoder_encode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    mc_encoder *e = m->parts;
    mc_tensor *x = embed(t, m, in);
    if (x && e->projection) x = mc_linear_forward(t, e->projection, x);
    if (x && e->bias)
        in->call.position_bias = mc_position_bias(
            t, mc_parameter_tensor(t, e->bias),
            &(mc_position_bias_options){.length = mc_position_limit(in), .bidirectional = true});
    return mc_run_stack(t, m->encoder, x, NULL, &in->call);
}

mc_tensor *mc_encoder_pool(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    mc_encoder *e = m->parts;
    mc_tensor *first = mc_first_tokens(t, hidden);
    return first ? mc_linear_forward_activated(t, e->pooler, first, MC_ACTIVATION_TANH) : NULL;
}

/* dense, activation, layer norm: what comes before the product with the vocabulary. */
mc_tensor *mc_encoder_head(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    mc_encoder *e = m->parts;
    mc_tensor *h = mc_linear_forward_activated(t, e->lm_dense, hidden, e->o.head_activation);
    return h ? mc_layernorm_forward(t, e->lm_norm, h) : NULL;
}

mc_tensor *mc_encoder_classify(mc_tape *t, mc_model *m, const mc_model_output *out, float before,
                               mc_activation activation, float between)
{
    mc_encoder *e = m->parts;
    mc_tensor *x = mc_first_tokens(t, out->with_prompt);
    x = x ? mc_dropout(t, x, before) : NULL;
    x = x ? mc_linear_forward_activated(t, e->classifier_dense, x, activation) : NULL;
    x = x ? mc_dropout(t, x, between) : NULL;
    return x ? mc_linear_forward(t, e->classifier, x) : NULL;
}

mc_tensor *mc_encoder_next_sentence(mc_tape *t, mc_model *m, mc_tensor *pooled)
{
    mc_encoder *e = m->parts;
    return mc_linear_forward(t, e->nsp, pooled);
}

/* ---- configs and files ----------------------------------------------------------------------- */

bool mc_encoder_check(const mc_config_reader *r, const mc_model_shape *s, int64_t head_dim,
                      float eps, int64_t unused)
{
    if (s->pad_token >= s->vocab_size)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: pad_token_id %lld is no token of the vocabulary of %lld", r->path,
                        (long long)s->pad_token, (long long)s->vocab_size);
    if (!mc_config_check_sizes(r, s, head_dim, eps) ||
        !mc_config_check_rows(r, "positions", s->positions))
        return false;
    if (s->positions > unused) return true;
    return !mc_fail(r->ctx, MC_ERR_FORMAT,
                    "%s: %lld rows of positions, the first %lld of which are not used: expected "
                    "more",
                    r->path, (long long)s->positions, (long long)unused);
}

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

bool mc_encoder_look(mc_context *ctx, const mc_model_file *f, void *config, mc_model_heads *heads)
{
    bool *tied = mc_config_member(f->family, config, "tie_word_embeddings");
    if (!heads->lm) return true;
    warn_biases(ctx, f);
    if (f->form == MC_FORM_HF &&
        mc_file_has_own_head(f, "lm_head.decoder.weight", "input_embedding.weight"))
        *tied = false;
    return true;
}
