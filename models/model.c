/* A model of any family: construction, what it is, and the forward pass up to the heads. */
#include "models/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "core/autograd/step_internal.h"
#include "core/ops/ops_internal.h"
#include "models/adapters/adapter_internal.h"
#include "core/nn/stored.h"
#include "core/ops/fused.h"

static const char *const problem_types[] = {"single_label_classification",
                                            "multi_label_classification", "regression"};

/* ---- construction ---------------------------------------------------------------------------- */

mc_model_heads mc_default_heads(const mc_family *family, const mc_load_options *options)
{
    mc_model_heads heads = {.labels = options->num_labels};
    heads.pooler = family->has.pooler && family->has.nsp;
    heads.lm = !heads.labels && !family->has.pixels;
    return heads;
}

static bool refuse_head(mc_context *ctx, const mc_family *family, const char *head)
{
    return !mc_fail(ctx, MC_ERR_UNSUPPORTED, "%s: the family has no %s", family->title, head);
}

static bool check_heads(mc_context *ctx, const mc_family *family, const mc_model_heads *h)
{
    if (h->labels < 0 || h->labels > MC_MODEL_MAX_LABELS || h->token_labels < 0)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "%s: %d labels, expected 0 to %d", family->title,
                        h->labels, MC_MODEL_MAX_LABELS);
    if (h->pooler && !family->has.pooler) return refuse_head(ctx, family, "pooler");
    if (h->nsp && !family->has.nsp) return refuse_head(ctx, family, "next sentence head");
    if (h->lm && family->has.pixels) return refuse_head(ctx, family, "language model head");
    if (h->token_labels && family->has.pixels) return refuse_head(ctx, family, "head of tokens");
    if (h->labels && !family->has.labels) return refuse_head(ctx, family, "classification head");
    if (h->replaced && !family->has.replaced)
        return refuse_head(ctx, family, "replaced token head");
    if (h->replaced && (h->lm || h->token_labels))
        return !mc_fail(ctx, MC_ERR_ARGUMENT,
                        "%s: a replaced token head takes the language model's place: expected one "
                        "of them",
                        family->title);
    if (h->nsp && !h->pooler)
        return !mc_fail(ctx, MC_ERR_ARGUMENT, "%s: a next sentence head needs the pooler",
                        family->title);
    return true;
}

/* Checks a config that did not come from a file, as if it had; but it is an argument then. */
static bool check_config(mc_context *ctx, const mc_family *family, void *config)
{
    char name[64];
    snprintf(name, sizeof name, "%s config", family->title);
    mc_config_reader r = {.ctx = ctx, .path = name};
    if (family->finish(&r, config)) return true;
    if (ctx->error.status == MC_ERR_FORMAT) ctx->error.status = MC_ERR_ARGUMENT;
    return false;
}

/* The root with all that does not depend on the family. */
static mc_model *new_root(mc_context *ctx, const mc_family *family, const void *config,
                          const mc_load_options *options)
{
    mc_model *m = mc_module_new(ctx, "", sizeof *m, &(mc_module_options){.dtype = options->dtype});
    if (!m) return NULL;
    m->family = family;
    m->config = mc_module_alloc(m->module.root, family->config_size);
    m->parts = mc_module_alloc(m->module.root, family->parts_size);
    if (!m->config || !m->parts) return m; /* the context has failed */
    memcpy(m->config, config, family->config_size);
    m->head_scale = 1;
    m->generation.start = -1;
    return m;
}

mc_model *mc_model_from_config(mc_context *ctx, const mc_family *family, const void *config,
                               const mc_model_heads *heads, const mc_load_options *options)
{
    return mc_model_from_config_for(ctx, family, config, heads, options, NULL);
}

mc_model *mc_model_from_config_for(mc_context *ctx, const mc_family *family, const void *config,
                                   const mc_model_heads *heads, const mc_load_options *options,
                                   const mc_model_file *f)
{
    const mc_load_options none = {0};
    if (!options) options = &none;
    mc_model_heads chosen = heads ? *heads : mc_default_heads(family, options);
    if (mc_failed(ctx) || !check_heads(ctx, family, &chosen)) return NULL;
    mc_model *m = new_root(ctx, family, config, options);
    if (!m) return NULL;
    m->heads = chosen;
    if (!mc_failed(ctx) && check_config(ctx, family, m->config)) {
        mc_config_drop_tokens(family, m->config);
        m->shape = family->shape(m->config);
        m->shape.kind = family->kind;
        if (mc_adapter_untie(m, options, f)) m->shape = family->shape(m->config);
        m->shape.kind = family->kind;
        mc_image_form_begin(m);
        if (m->shape.eos_token >= 0) m->eos[m->eos_count++] = (int32_t)m->shape.eos_token;
        if (options->base) m->source = mc_module_strdup(m->module.root, options->base);
        bool declared = (!m->heads.labels || mc_labels_name(m)) && family->declare(m, options);
        if (declared && f) mc_heads_mark_new(m, f, options);
        if (declared && options->lora) mc_lora_add(m, options->lora);
        if (declared && options->soft_prompt) mc_soft_prompt_add(m, options->soft_prompt);
        if (declared && options->recipe.fp8) mc_module_set_recipe(&m->module, &options->recipe);
        if (!mc_failed(ctx)) return m;
    }
    mc_module_free(&m->module);
    return NULL;
}

mc_model *mc_model_new_like(mc_context *ctx, const mc_model *other, const mc_load_options *options)
{
    if (mc_failed(ctx) || !mc_given(ctx, other)) return NULL;
    mc_load_options like = options ? *options : (mc_load_options){0};
    like.lora = mc_model_lora(other);
    like.soft_prompt = mc_model_soft_prompt(other);
    return mc_model_from_config(ctx, other->family, other->config, &other->heads, &like);
}

void mc_model_free(mc_model *m)
{
    if (m) mc_module_free(&m->module);
}

/* ---- what it is ------------------------------------------------------------------------------ */

const char *mc_model_family(const mc_model *m) { return m ? m->family->name : NULL; }
mc_model_shape mc_model_get_shape(const mc_model *m) { return m ? m->shape : (mc_model_shape){0}; }
mc_model_heads mc_model_get_heads(const mc_model *m) { return m ? m->heads : (mc_model_heads){0}; }
int64_t mc_model_dim(const mc_model *m) { return m ? m->shape.dim : 0; }

mc_prompt mc_model_prompt(const mc_model *m)
{
    if (!m) return (mc_prompt){0};
    return (mc_prompt){.style = m->family->prompt, .start_token = (int32_t)m->shape.start_token};
}
mc_module *mc_model_module(mc_model *m) { return m ? &m->module : NULL; }

bool mc_model_config_text(const mc_model *m, char *out, size_t room)
{
    cJSON *json = m && out ? cJSON_CreateObject() : NULL;
    bool good = json && mc_config_write(m->family, mc_config_form_for(m->family), m->config, json);
    for (const mc_config_row *row = m ? m->family->rows : NULL; row && row->kind; row++)
        for (int form = 0; row->kind == MC_CONFIG_DROPOUT && form < MC_FORMS; form++)
            if (row->key[form]) cJSON_DeleteItemFromObject(json, row->key[form]);
    char *text = good ? cJSON_PrintUnformatted(json) : NULL;
    good = text && (size_t)snprintf(out, room, "%s", text) < room;
    if (!text && out && room) *out = '\0';
    cJSON_free(text);
    cJSON_Delete(json);
    return good;
}

const void *mc_model_config(const mc_model *m, const mc_family *family)
{
    return m && m->family == family ? m->config : NULL;
}

double mc_model_flops(mc_model *m, int64_t length)
{
    if (!m) return 0;
    const mc_model_shape *s = &m->shape;
    double width = (double)(s->heads * s->head_dim),
           layers = (double)(s->layers + s->decoder_layers);
    double all = (double)mc_module_parameter_count(&m->module);
    return 4.0 * all + 2.0 * (double)mc_model_trainable_count(m) +
           12.0 * layers * width * (double)length;
}

mc_status mc_model_set_dropout(mc_model *m, float p)
{
    if (!m) return MC_ERR_ARGUMENT;
    if (!(p >= 0 && p < 1))
        return mc_fail(m->module.ctx, MC_ERR_ARGUMENT,
                       "mc_model_set_dropout: p is %g, expected 0 <= p < 1", (double)p);
    for (const mc_config_row *row = m->family->rows; row->kind; row++)
        if (row->kind == MC_CONFIG_DROPOUT) *(float *)((char *)m->config + row->member) = p;
    m->family->set_dropout(m, p);
    return MC_OK;
}

mc_status mc_model_set_recompute(mc_model *m, mc_recompute recompute)
{
    if (!m) return MC_ERR_ARGUMENT;
    if (m->encoder) mc_block_list_set_recompute(m->encoder, recompute);
    if (m->decoder) mc_block_list_set_recompute(m->decoder, recompute);
    return mc_error_status(m->module.ctx);
}

mc_status mc_model_set_task(mc_model *m, const char *task, const char *const *label_names)
{
    if (!m) return MC_ERR_ARGUMENT;
    mc_context *ctx = m->module.ctx;
    mc_module_root *root = m->module.root;
    if (mc_failed(ctx)) return mc_error_status(ctx);
    if (task) m->task = mc_module_strdup(root, task);
    if (!label_names) return mc_error_status(ctx);
    char **names = mc_module_alloc(root, ((size_t)m->heads.labels + 1) * sizeof *names);
    for (int i = 0; names && i < m->heads.labels; i++)
        if (!(names[i] = mc_module_strdup(root, label_names[i]))) return mc_error_status(ctx);
    m->label_names = names;
    return mc_error_status(ctx);
}

const char *mc_model_task(const mc_model *m) { return m ? m->task : NULL; }

const char *mc_problem_type_of(const char *name)
{
    for (int i = 0; name && i < 3; i++)
        if (strcmp(name, problem_types[i]) == 0) return problem_types[i];
    return NULL;
}

mc_status mc_model_set_problem_type(mc_model *m, const char *type)
{
    if (!m) return MC_ERR_ARGUMENT;
    if (mc_failed(m->module.ctx)) return mc_error_status(m->module.ctx);
    m->problem_type = mc_problem_type_of(type);
    if (!type || m->problem_type) return MC_OK;
    return mc_fail(m->module.ctx, MC_ERR_ARGUMENT, "problem type \"%s\": expected %s, %s or %s",
                   type, problem_types[0], problem_types[1], problem_types[2]);
}

mc_image_form mc_model_image_form(const mc_model *m)
{
    return m ? m->image : (mc_image_form){.size = 0};
}

const char *mc_model_finite_hint(const mc_model *m)
{
    switch (m ? m->module.root->dtype : MC_DTYPE_DEFAULT) {
    case MC_F16: return ": computed in f16, whose largest number is 65504; bf16 and f32 have room";
    case MC_BF16: return ": computed in bf16; `modelcenter inspect` reports weights that are NaN";
    case MC_F32: return ": computed in f32; `modelcenter inspect` reports weights that are NaN";
    default: return "";
    }
}

bool mc_all_finite(const float *values, size_t count)
{
    bool finite = values != NULL;
    for (size_t i = 0; i < count; i++) finite = finite && isfinite(values[i]);
    return finite;
}

const char *mc_model_problem_type(const mc_model *m) { return m ? m->problem_type : NULL; }

const char *mc_model_label_name(const mc_model *m, int label)
{
    if (!m || !m->label_names || label < 0 || label >= m->heads.labels) return NULL;
    return m->label_names[label];
}

/* ---- parts that families share --------------------------------------------------------------- */

static int64_t words_dim(const mc_model *m) { return m->words_dim ? m->words_dim : m->shape.dim; }

mc_embedding *mc_declare_words(mc_model *m, float init_std)
{
    return m->words = mc_embedding_add_padded(&m->module, "input_embedding", m->shape.vocab_size,
                                              words_dim(m), init_std, MC_VOCAB_ALIGN);
}

void mc_declare_lm_head(mc_model *m, const char *name, bool tied, bool bias, float init_std)
{
    int64_t vocab = m->shape.vocab_size;
    int64_t rows = (vocab + MC_VOCAB_ALIGN - 1) / MC_VOCAB_ALIGN * MC_VOCAB_ALIGN;
    char weight_name[64], bias_name[64];
    snprintf(weight_name, sizeof weight_name, "%s.weight", name);
    snprintf(bias_name, sizeof bias_name, "%s.bias", name);
    if (!m->heads.lm) return;
    if (!tied)
        m->head_weight =
            mc_parameter_new_padded(&m->module, weight_name, MC_SHAPE(vocab, words_dim(m)), rows,
                                    mc_init_normal(0, init_std));
    if (bias)
        m->head_bias =
            mc_parameter_new_padded(&m->module, bias_name, MC_SHAPE(vocab), rows, mc_init_zeros());
}

void mc_declare_token_head(mc_model *m, bool bias, float init_std)
{
    mc_declare_token_head_named(m, "cls_projection", bias, init_std);
}

void mc_declare_token_head_named(mc_model *m, const char *name, bool bias, float init_std)
{
    mc_linear_options options = {.no_bias = !bias, .init_std = init_std};
    if (m->heads.token_labels)
        m->token_head =
            mc_linear_add(&m->module, name, m->shape.dim, m->heads.token_labels, &options);
}

void mc_declare_score(mc_model *m, float init_std)
{
    mc_linear_options options = {.no_bias = true, .init_std = init_std};
    if (m->heads.labels)
        m->score = mc_linear_add(&m->module, "score", m->shape.dim, m->heads.labels, &options);
}

/* The virtual tokens' vectors, and after them those of the input's words. */
static mc_tensor *words_with_prompt(mc_tape *t, mc_model *m, const mc_stack_input *in)
{
    static const char *const name = "ids";
    mc_tensor *table = mc_embedding_table(t, m->words);
    mc_tensor *parts[] = {mc_virtual_tokens_table(t, m),
                          mc_embed_named(t, m->family->title, 1, &table, &in->ids, &name, 1)};
    mc_tensor *both = parts[0] && parts[1] ? mc_concat(t, 2, parts, 0) : NULL;
    mc_tape_release(t, parts[1]);
    return both;
}

mc_tensor *mc_run_embedding(mc_tape *t, mc_model *m, const mc_stack_input *in,
                            const mc_embedding_options *o)
{
    mc_tensor *tables[MC_EMBEDDING_OTHERS + 1];
    mc_tensor *indices[MC_EMBEDDING_OTHERS + 1] = {in->rows ? in->rows : in->ids};
    const char *names[MC_EMBEDDING_OTHERS + 1] = {in->call.memory ? "decoder_ids" : "ids"};
    if (mc_failed(mc_tape_context(t))) return NULL;
    for (int i = 0; i < o->others; i++) {
        tables[i + 1] = o->table[i];
        indices[i + 1] = o->index[i];
        names[i + 1] = o->name[i];
    }
    mc_scope scope = mc_scope_begin(t, false);
    tables[0] = in->rows ? words_with_prompt(t, m, in) : mc_embedding_table(t, m->words);
    mc_tensor *x = mc_embed_named(t, m->family->title, o->others + 1, tables, indices, names,
                                  o->scale ? o->scale : 1);
    if (o->norm) x = mc_layernorm_forward(t, o->norm, x);
    x = mc_dropout(t, x, o->dropout);
    mc_scope_end(t, scope, x);
    return x;
}

mc_tensor *mc_run_stack(mc_tape *t, mc_block_list *blocks, mc_tensor *x, mc_layernorm *norm,
                        const mc_call *call)
{
    mc_tensor *s = x ? mc_block_list_forward(t, blocks, x, call) : NULL;
    if (!s) return NULL;
    if (s != x && !call->hidden) mc_tape_release(t, x);
    mc_tensor *hidden = s;
    if (norm) {
        mc_scope scope = mc_scope_begin(t, false);
        mc_tensor *last;
        hidden = mc_layernorm_forward_stream(t, norm, s, &last);
        mc_scope_end(t, scope, hidden);
        if (hidden) mc_tape_release(t, s);
    } else {
        hidden = mc_residual_sum(t, s); /* which the last block may have left to a norm */
    }
    if (call->hidden) call->hidden[mc_block_list_count(blocks)] = hidden;
    return mc_failed(mc_tape_context(t)) ? NULL : hidden;
}

/* A token that is looked for, or skipped. */
typedef struct last_token {
    int64_t token;
    bool wanted;
} last_token;

/* Where in `count` ids the last token of that kind is. As in `transformers`, the first stands for
 * ids that are all skipped; -1: none is wanted. */
static int32_t find_last(const mc_tensor *ids, const void *data, int64_t first, int32_t count,
                         const last_token *which)
{
    for (int32_t k = count; k-- > 0;)
        if ((mc_integer_at(ids->dtype, data, first + k) == which->token) == which->wanted) return k;
    return which->wanted ? -1 : 0;
}

/* A row of each sequence: its last, or that of a token of `ids`, which are as many. */
static mc_tensor *last_rows(mc_tape *t, mc_tensor *hidden, mc_tensor *ids, const last_token *which)
{
    const mc_lengths *l = hidden->lengths;
    int32_t *index = mc_tape_alloc(t, ((size_t)l->count + 1) * sizeof *index);
    const void *data = ids ? mc_op_host(t, "last tokens", ids) : NULL;
    if (!index || (ids && !data)) return NULL;
    for (int i = 0; i < l->count; i++) {
        int32_t length = l->length[i];
        int32_t at = which ? find_last(ids, data, l->offset[i], length, which) : length - 1;
        index[i] = l->offset[i] + at;
        if (at >= 0 && at < length) continue;
        mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "last tokens: sequence %d %s", i,
                length ? "has no token that ends a text, which its classifier reads" : "is empty");
        return NULL;
    }
    return mc_gather_rows(t, hidden, index, l->count);
}

mc_tensor *mc_last_tokens(mc_tape *t, mc_tensor *hidden)
{
    const mc_lengths *l = hidden ? hidden->lengths : NULL;
    if (!l || !mc_op_host_lengths(t, "last tokens", l)) return NULL;
    if (l->total == l->count && l->longest == 1) return hidden;
    return last_rows(t, hidden, NULL, NULL);
}

mc_tensor *mc_last_token_of(mc_tape *t, const mc_model_output *out, int64_t token, bool wanted)
{
    const mc_lengths *l = out->last_hidden ? out->last_hidden->lengths : NULL;
    if (!l || !mc_op_host_lengths(t, "last tokens", l)) return NULL;
    return last_rows(t, out->last_hidden, out->ids, &(last_token){token, wanted});
}

mc_tensor *mc_score_last(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    int64_t pad = m->shape.pad_token;
    bool plain = pad < 0 || mc_virtual_tokens(m) > 0;
    mc_tensor *last =
        plain ? mc_last_tokens(t, out->last_hidden) : mc_last_token_of(t, out, pad, false);
    return last ? mc_linear_forward(t, m->score, last) : NULL;
}

int64_t mc_position_limit(const mc_stack_input *in)
{
    const int64_t step = 64;
    return in->longest < step ? step : (in->longest + step - 1) / step * step;
}

/* ---- forward --------------------------------------------------------------------------------- */

static bool refuse_field(mc_tape *t, const mc_model *m, const char *field)
{
    return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                    "%s: input field \"%s\" is given, but the family has no use for it",
                    m->family->title, field);
}

/* Of a family of images. */
static bool check_pixels_alone(mc_tape *t, const mc_model *m, const mc_model_input *in)
{
    if (in->ids) return refuse_field(t, m, "ids");
    if (in->lengths) return refuse_field(t, m, "lengths");
    if (in->mask) return refuse_field(t, m, "mask");
    return in->pixels || !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                                  "%s: input field \"pixels\" is NULL", m->family->title);
}

static bool check_fields(mc_tape *t, const mc_model *m, const mc_model_input *in)
{
    const mc_family *f = m->family;
    bool two = f->kind == MC_MODEL_ENCODER_DECODER;
    if (in->pixels && !f->has.pixels) return refuse_field(t, m, "pixels");
    if (in->type_ids && !f->has.types) return refuse_field(t, m, "type_ids");
    if (in->decoder_ids && !two) return refuse_field(t, m, "decoder_ids");
    if (in->decoder_lengths && !two) return refuse_field(t, m, "decoder_lengths");
    if (in->context && !f->has.marks) return refuse_field(t, m, "context");
    if (in->span && !f->has.marks) return refuse_field(t, m, "span");
    if (in->marks && !f->has.marks) return refuse_field(t, m, "marks");
    if (in->global_mask && !f->has.globals) return refuse_field(t, m, "global_mask");
    if (f->has.pixels && !check_pixels_alone(t, m, in)) return false;
    if (!in->ids && !f->has.pixels)
        return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: input field \"ids\" is NULL",
                        f->title);
    if (two && !in->decoder_ids)
        return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                        "%s: input field \"decoder_ids\" is NULL, an encoder-decoder requires it",
                        f->title);
    if (in->attentions && mc_tape_is_training(t))
        return !mc_fail(mc_tape_context(t), MC_ERR_UNSUPPORTED,
                        "%s: attention probabilities are given on evaluation tapes only", f->title);
    return true;
}

static mc_tensor *given_marks(mc_tape *t, const mc_model *m, const mc_model_input *in,
                              const mc_lengths *l)
{
    mc_context *ctx = mc_tape_context(t);
    const mc_tensor *marks = in->marks;
    if (in->span || in->context)
        mc_fail(ctx, MC_ERR_ARGUMENT, "%s: marks are given beside context or span",
                m->family->title);
    else if (marks->dtype != MC_I32 || mc_tensor_count(marks) < l->capacity)
        mc_fail(ctx, MC_ERR_SHAPE, "%s: marks %s %s, expected i32 (%lld)", m->family->title,
                mc_dtype_name(marks->dtype), MC_SHAPE_TEXT(marks->shape), (long long)l->capacity);
    return mc_failed(ctx) ? NULL : in->marks;
}

/* 2 * span + context of each token; NULL, without an error, where neither is given. */
static mc_tensor *make_marks(mc_tape *t, const mc_model *m, const mc_model_input *in,
                             const mc_lengths *l)
{
    enum { MOST_SPANS = 1 << 29 };
    static const char *const names[] = {"span", "context"};
    mc_tensor *given[] = {in->span, in->context};
    if (in->marks) return given_marks(t, m, in, l);
    if (!in->span && !in->context) return NULL;
    if (mc_step_is_recording(mc_tape_context(t))) {
        mc_fail(mc_tape_context(t), MC_ERR_STATE,
                "%s: a step that is recorded takes marks, not context and span, which are read on "
                "the host",
                m->family->title);
        return NULL;
    }
    int32_t *marks = mc_tape_alloc(t, ((size_t)l->capacity + 1) * sizeof *marks);
    for (int k = 0; marks && k < 2; k++) {
        mc_tensor *x = given[k] ? mc_pack_tokens(t, m->family->title, names[k], given[k], l) : NULL;
        const void *data = x ? mc_op_host(t, m->family->title, x) : NULL;
        if (given[k] && !data) return NULL;
        for (int64_t i = 0; data && i < l->total; i++) {
            int64_t value = mc_integer_at(x->dtype, data, i), most = k ? 1 : MOST_SPANS;
            if (value < 0 || value > most) {
                mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT,
                        "%s: %s %lld of token %lld, expected 0 to %lld", m->family->title, names[k],
                        (long long)value, (long long)i, (long long)most);
                return NULL;
            }
            marks[i] += (int32_t)(k ? value : 2 * value);
        }
    }
    return marks ? mc_tape_input(t, MC_I32, MC_SHAPE(l->capacity), marks, false) : NULL;
}

/* mc_call.globals of the input: its global_mask, or the first tokens, whose positions are 0. A
 * token that the mask hides is not global, and attends to none. NULL, without an error, where no
 * token is global. */
static mc_tensor *find_globals(mc_tape *t, const mc_model *m, const mc_model_input *in,
                               const mc_stack_input *stack)
{
    const char *title = m->family->title;
    const mc_lengths *l = stack->lengths;
    mc_tensor *given = stack->positions, *mask = stack->call.key_mask;
    if (!m->family->has.globals || (!in->global_mask && !m->heads.labels)) return NULL;
    if (!in->global_mask && !mask) return given;
    if (mc_step_is_recording(mc_tape_context(t))) {
        mc_fail(mc_tape_context(t), MC_ERR_STATE,
                "%s: a step that is recorded takes neither mask nor global_mask, which are read on "
                "the host",
                title);
        return NULL;
    }
    if (in->global_mask) given = mc_pack_tokens(t, title, "global_mask", in->global_mask, l);
    const void *data = given ? mc_op_host(t, title, given) : NULL;
    const uint8_t *seen = mask ? mc_op_host(t, title, mask) : NULL;
    int32_t *out = mc_tape_alloc(t, ((size_t)l->capacity + 1) * sizeof *out);
    if (!data || !out || (mask && !seen)) return NULL;
    for (int64_t i = 0; i < l->total; i++) {
        bool marked = mc_integer_at(given->dtype, data, i) != 0;
        out[i] = seen && !seen[i] ? -1 : marked != (in->global_mask != NULL);
    }
    return mc_tape_input(t, MC_I32, MC_SHAPE(l->capacity), out, false);
}

/* Packs ids and lengths for one stack. */
static bool pack(mc_tape *t, const mc_model *m, mc_tensor *ids, const mc_lengths *lengths,
                 mc_tensor *mask, mc_stack_input *out)
{
    mc_packed p;
    int64_t limit = m->shape.positions ? m->shape.positions : INT32_MAX;
    if (!mc_pack_batch(t, m->family->title, ids, lengths, mask, limit, &p)) return false;
    *out = (mc_stack_input){.ids = p.ids,
                            .positions = p.positions,
                            .lengths = p.lengths,
                            .longest = p.lengths->longest,
                            .call = {.key_mask = p.key_mask, .positions = p.positions}};
    return true;
}

/* Room for what the caller wants of every layer. */
static bool keep_layers(mc_tape *t, const mc_model_input *in, int64_t layers, mc_call *call)
{
    size_t bytes = ((size_t)layers + 1) * sizeof(mc_tensor *);
    if (in->hidden_states && !(call->hidden = mc_tape_alloc(t, bytes))) return false;
    if (in->attentions && !(call->attentions = mc_tape_alloc(t, bytes))) return false;
    return !in->attentions || (call->cross_attentions = mc_tape_alloc(t, bytes));
}

/* Every image has all of the positions. */
static bool prepare_images(mc_tape *t, const mc_model *m, const mc_model_input *in,
                           mc_stack_input *stack)
{
    if (!mc_op_ready(t, m->family->title, in->pixels)) return false;
    int64_t count = in->pixels->shape.ndim ? in->pixels->shape.dim[0] : 0;
    if (count < 0 || count > INT32_MAX / m->shape.positions)
        return !mc_fail(mc_tape_context(t), MC_ERR_ARGUMENT, "%s: a batch of %lld images",
                        m->family->title, (long long)count);
    int32_t *lengths = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *lengths);
    for (int64_t i = 0; lengths && i < count; i++) lengths[i] = (int32_t)m->shape.positions;
    const mc_lengths *l = lengths ? mc_tape_lengths(t, lengths, (int)count, 1) : NULL;
    if (!l) return false;
    *stack = (mc_stack_input){.pixels = in->pixels, .lengths = l, .longest = l->longest};
    stack->positions = stack->call.positions = mc_pack_positions(t, l, NULL);
    return stack->positions && keep_layers(t, in, m->shape.layers, &stack->call);
}

static bool prepare(mc_tape *t, mc_model *m, const mc_model_input *in, mc_stack_input *stack)
{
    if (m->family->has.pixels) return prepare_images(t, m, in, stack);
    if (!pack(t, m, in->ids, in->lengths, in->mask, stack) ||
        !keep_layers(t, in, m->shape.layers, &stack->call))
        return false;
    int64_t capacity = stack->lengths->capacity;
    if (m->family->has.types)
        stack->types = in->type_ids ? mc_pack_tokens(t, m->family->title, "type_ids", in->type_ids,
                                                     stack->lengths)
                                    : mc_tape_input(t, MC_I32, MC_SHAPE(capacity), NULL, false);
    stack->call.marks = make_marks(t, m, in, stack->lengths);
    stack->call.globals = find_globals(t, m, in, stack);
    return mc_virtual_tokens_prepend(t, m, stack);
}

/* The decoder of an encoder-decoder on the encoder's result. */
static mc_tensor *decode(mc_tape *t, mc_model *m, const mc_model_input *in,
                         const mc_stack_input *encoder, mc_model_output *out)
{
    mc_stack_input d;
    if (!pack(t, m, in->decoder_ids, in->decoder_lengths, NULL, &d) ||
        !keep_layers(t, in, m->shape.decoder_layers, &d.call))
        return NULL;
    if (d.lengths->count != encoder->lengths->count) {
        mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                "%s: decoder_ids of %d sequences, expected as many as ids has, %d",
                m->family->title, d.lengths->count, encoder->lengths->count);
        return NULL;
    }
    d.call.memory = out->encoder_last_hidden;
    d.call.memory_mask = encoder->call.key_mask;
    mc_tensor *hidden = m->family->decode(t, m, &d);
    out->decoder_hidden_states = d.call.hidden;
    out->decoder_attentions = d.call.attentions;
    out->cross_attentions = d.call.cross_attentions;
    return hidden;
}

bool mc_model_ready(mc_tape *t, const mc_model *m, const char *op)
{
    mc_context *ctx = mc_tape_context(t);
    return mc_tape_given(t, op, m ? m->module.ctx : NULL) && !mc_failed(ctx) &&
           mc_given_at(ctx, m, op, "model", __FILE__, __LINE__);
}

mc_model_output mc_model_forward(mc_tape *t, mc_model *m, const mc_model_input *in)
{
    mc_model_output out = {0};
    mc_stack_input stack;
    mc_context *ctx = mc_tape_context(t);
    if (!mc_model_ready(t, m, __func__) || !mc_given_as(ctx, in, "input") ||
        !check_fields(t, m, in) || !prepare(t, m, in, &stack))
        return out;
    const mc_family *f = m->family;
    mc_tensor *hidden = f->encode ? f->encode(t, m, &stack) : f->decode(t, m, &stack);
    out.ids = stack.ids;
    out.hidden_states = stack.call.hidden;
    out.attentions = stack.call.attentions;
    if (hidden && f->kind == MC_MODEL_ENCODER_DECODER) {
        out.encoder_last_hidden = hidden;
        hidden = decode(t, m, in, &stack, &out);
    } else {
        out.with_prompt = hidden;
    }
    out.last_hidden = out.with_prompt ? mc_virtual_tokens_drop(t, hidden, &stack) : hidden;
    if (hidden && m->heads.pooler && f->pool) out.pooled = f->pool(t, m, hidden);
    return mc_failed(ctx) ? (mc_model_output){0} : out;
}
