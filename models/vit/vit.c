#include "models/vit/vit.h"

#include "core/ops/fused.h"
#include "models/family_internal.h"

/* ---- config ---------------------------------------------------------------------------------- */

#define AT(member) offsetof(mc_vit_config, member)
static const mc_config_row config_rows[] = {
    MC_ROW(SIZE, dim, "hidden_size", NULL, "768", "", 1),
    MC_ROW(LAYERS, layers, "num_hidden_layers", NULL, "12", "", 0),
    MC_ROW(SIZE, heads, "num_attention_heads", NULL, "12", "", 1),
    MC_ROW(SIZE, dim_ff, "intermediate_size", NULL, "3072", "", 1),
    MC_ROW(SIZE, image_size, "image_size", NULL, "224", "", 1),
    MC_ROW(SIZE, patch_size, "patch_size", NULL, "16", "", 1),
    MC_ROW(SIZE, channels, "num_channels", NULL, "3", "", 1),
    MC_ROW(ACTIVATION, activation, "hidden_act", NULL, "\"gelu\"", "", 0),
    MC_ROW(DROPOUT, dropout, "hidden_dropout_prob", NULL, "0", "", 0),
    MC_ROW(DROPOUT, attention_dropout, "attention_probs_dropout_prob", NULL, "0", "", 0),
    MC_ROW(FLOAT, init_std, "initializer_range", NULL, "0.02", "", 0, 1e6),
    MC_ROW(FLOAT, eps, "layer_norm_eps", NULL, "1e-12", "", 1e-30, 1),
    MC_ROW(OPTIONAL, pooler_dim, "pooler_output_size", NULL, "null", "", 1),
    MC_ONLY("pooler_act", NULL, "\"tanh\""),
    MC_ONLY("qkv_bias", NULL, "true"),
    MC_KNOWN("encoder_stride", NULL), /* of a head that draws images */
    {MC_CONFIG_END},
};

#define LARGE                                                                    \
    "{\"hidden_size\":1024,\"num_hidden_layers\":24,\"num_attention_heads\":16," \
    "\"intermediate_size\":4096"
static const mc_named_shape named[] = {
    {"vit-base-patch16-224 google/vit-base-patch16-224 google/vit-base-patch16-224-in21k", "{}"},
    {"vit-base-patch16-384 google/vit-base-patch16-384", "{\"image_size\":384}"},
    {"vit-base-patch32-224-in21k google/vit-base-patch32-224-in21k", "{\"patch_size\":32}"},
    {"vit-base-patch32-384 google/vit-base-patch32-384", "{\"image_size\":384,\"patch_size\":32}"},
    {"vit-large-patch16-224 google/vit-large-patch16-224 google/vit-large-patch16-224-in21k",
     LARGE "}"},
    {"vit-large-patch16-384 google/vit-large-patch16-384", LARGE ",\"image_size\":384}"},
    {"vit-large-patch32-384 google/vit-large-patch32-384",
     LARGE ",\"image_size\":384,\"patch_size\":32}"},
    {"vit-huge-patch14-224-in21k google/vit-huge-patch14-224-in21k",
     "{\"hidden_size\":1280,\"num_hidden_layers\":32,\"num_attention_heads\":16,"
     "\"intermediate_size\":5120,\"patch_size\":14}"},
    {NULL}};

static int64_t patches_of(const mc_vit_config *c)
{
    int64_t side = c->patch_size > 0 ? c->image_size / c->patch_size : 0;
    return side * side;
}

/* Positions are those of all tokens of an image, and an image has them all. */
static mc_model_shape shape(const void *config)
{
    const mc_vit_config *c = config;
    return (mc_model_shape){.dim = c->dim,
                            .dim_ff = c->dim_ff,
                            .heads = c->heads,
                            .head_dim = c->heads > 0 ? c->dim / c->heads : 0,
                            .layers = c->layers,
                            .positions = patches_of(c) + 1,
                            .pad_token = -1,
                            .bos_token = -1,
                            .eos_token = -1,
                            .start_token = -1};
}

static int64_t image_size(const void *config)
{
    const mc_vit_config *c = config;
    return c->image_size;
}

static bool finish(const mc_config_reader *r, void *config)
{
    enum { MOST_SIZE = 1 << 14 };
    mc_vit_config *c = config;
    mc_model_shape s = shape(c);
    s.vocab_size = 1; /* which images have none of */
    if (c->pooler_dim < 0) c->pooler_dim = c->dim;
    if (c->pooler_dim != c->dim)
        return !mc_fail(r->ctx, MC_ERR_UNSUPPORTED,
                        "%s: key \"pooler_output_size\": %lld, expected \"hidden_size\", %lld",
                        r->path, (long long)c->pooler_dim, (long long)c->dim);
    if (c->patch_size < 1 || c->image_size < 1 || c->image_size > MOST_SIZE ||
        c->image_size % c->patch_size || c->channels != MC_IMAGE_CHANNELS)
        return !mc_fail(r->ctx, MC_ERR_FORMAT,
                        "%s: \"image_size\" %lld, \"patch_size\" %lld, \"num_channels\" %lld: "
                        "expected up to %d, a divisor of it, and %d",
                        r->path, (long long)c->image_size, (long long)c->patch_size,
                        (long long)c->channels, MOST_SIZE, MC_IMAGE_CHANNELS);
    return mc_config_check_sizes(r, &s, 0, c->eps);
}

/* ---- modules --------------------------------------------------------------------------------- */

typedef struct vit_parts {
    mc_parameter *patch, *patch_bias; /* (dim, channels, patch, patch), (dim) */
    mc_parameter *first;              /* (1, 1, dim): the token before the patches */
    mc_parameter *positions;          /* (1, tokens, dim) */
    mc_layernorm *norm;
    mc_linear *pooler, *classifier; /* NULL: none */
    float dropout;
} vit_parts;

typedef struct vit_block {
    mc_module module;
    const vit_parts *parts;
    mc_layernorm *norm, *ffn_norm;
    mc_attention *attention;
    mc_feed_forward *ffn;
} vit_block;

static void *new_block(mc_module *list, const char *name, int index, void *config)
{
    const mc_model *model = config;
    const mc_vit_config *c = model->config;
    vit_block *b = mc_module_add(list, name, sizeof *b);
    (void)index;
    if (!b) return NULL;
    mc_module *m = &b->module;
    mc_attention_options attention = {.dropout = c->attention_dropout,
                                      .init_std = mc_literal(c->init_std)};
    mc_feed_forward_options ffn = {.activation = c->activation,
                                   .init_std = mc_literal(c->init_std)};
    b->parts = model->parts;
    b->norm = mc_layernorm_add(m, "self_att.layernorm_before_attention", c->dim, c->eps);
    b->attention =
        mc_attention_add(m, "self_att.self_attention", c->dim, (int)c->heads, &attention);
    b->ffn_norm = mc_layernorm_add(m, "ffn.layernorm_before_ffn", c->dim, c->eps);
    b->ffn = mc_feed_forward_add(m, "ffn.ffn", c->dim, c->dim_ff, &ffn);
    return b->ffn ? b : NULL;
}

static mc_tensor *block_forward(mc_tape *t, void *object, mc_tensor *x, const mc_call *call)
{
    vit_block *b = object;
    float p = b->parts->dropout;
    x = mc_sublayer_pre_norm(t, x, b->norm, mc_attention_branch(b->attention), call, p);
    return mc_sublayer_pre_norm(t, x, b->ffn_norm, mc_feed_forward_branch(b->ffn), call, p);
}

static bool declare(mc_model *m, const mc_load_options *load)
{
    vit_parts *v = m->parts;
    const mc_vit_config *c = m->config;
    mc_module *root = &m->module;
    mc_initializer normal = mc_init_normal(0, c->init_std);
    mc_linear_options linear = {.init_std = mc_literal(c->init_std)};
    v->dropout = c->dropout;
    v->first = mc_parameter_new(root, "patch_embed.cls_token", MC_SHAPE(1, 1, c->dim), normal);
    v->positions = mc_parameter_new(root, "patch_embed.pos_embed",
                                    MC_SHAPE(1, m->shape.positions, c->dim), normal);
    v->patch =
        mc_parameter_new(root, "patch_embed.proj.weight",
                         MC_SHAPE(c->dim, c->channels, c->patch_size, c->patch_size), normal);
    v->patch_bias =
        mc_parameter_new(root, "patch_embed.proj.bias", MC_SHAPE(c->dim), mc_init_zeros());
    m->encoder = mc_block_list_new(root, "encoder.layers", (int)c->layers, new_block, block_forward,
                                   &(mc_block_options){.recompute = load->recompute, .config = m});
    v->norm = mc_layernorm_add(root, "encoder.output_layernorm", c->dim, c->eps);
    if (m->heads.pooler) v->pooler = mc_linear_add(root, "pooler.dense", c->dim, c->dim, &linear);
    if (m->heads.labels)
        v->classifier = mc_linear_add(root, "classifier", c->dim, m->heads.labels, &linear);
    return !mc_failed(m->module.ctx);
}

static void set_dropout(mc_model *m, float p)
{
    vit_parts *v = m->parts;
    v->dropout = p;
    for (int i = 0; i < mc_block_list_count(m->encoder); i++) {
        vit_block *b = mc_block_list_at(m->encoder, i);
        mc_attention_set_dropout(b->attention, p);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The pixels of each patch in a row: (batch * patches, channels * patch * patch). */
static mc_tensor *cut(mc_tape *t, const mc_vit_config *c, mc_tensor *pixels)
{
    int64_t batch = mc_tensor_size(pixels, 0), side = c->image_size / c->patch_size;
    int64_t p = c->patch_size;
    mc_tensor *x = mc_reshape(t, pixels, MC_SHAPE(batch, c->channels, side, p, side, p));
    x = x ? mc_transpose(t, x, 1, 2) : NULL; /* (batch, side, channels, p, side, p) */
    x = x ? mc_transpose(t, x, 2, 4) : NULL; /* (batch, side, side, p, channels, p) */
    x = x ? mc_transpose(t, x, 3, 4) : NULL; /* (batch, side, side, channels, p, p) */
    return x ? mc_reshape(t, x, MC_SHAPE(batch * side * side, c->channels * p * p)) : NULL;
}

/* Tokens of all images: a product for all patches, and the first token before those of each. */
static mc_tensor *embed(mc_tape *t, mc_model *m, const mc_stack_input *in)
{
    const vit_parts *v = m->parts;
    const mc_vit_config *c = m->config;
    int64_t tokens = m->shape.positions, count = in->lengths->capacity;
    int32_t *index = mc_tape_alloc(t, ((size_t)count + 1) * sizeof *index);
    mc_tensor *weight = mc_parameter_tensor(t, v->patch);
    mc_tensor *first = mc_parameter_tensor(t, v->first);
    mc_tensor *positions = mc_parameter_tensor(t, v->positions);
    mc_tensor *patches = cut(t, c, mc_cast(t, in->pixels, m->module.root->dtype));
    if (!index || !weight || !first || !positions || !patches) return NULL;
    for (int64_t i = 0; i < count; i++)
        index[i] = i % tokens ? (int32_t)(i - i / tokens) : 0; /* row 0 is the first token */
    weight = mc_reshape(t, weight, MC_SHAPE(c->dim, mc_tensor_size(patches, 1)));
    first = mc_reshape(t, first, MC_SHAPE(1, c->dim));
    positions = mc_reshape(t, positions, MC_SHAPE(tokens, c->dim));
    mc_tensor *x = mc_fused_linear(t, patches, weight, mc_parameter_tensor(t, v->patch_bias),
                                   MC_ACTIVATION_NONE);
    mc_tensor *all = first && x ? mc_concat(t, 2, (mc_tensor *[]){first, x}, 0) : NULL;
    mc_tensor *tables[] = {all, positions};
    mc_tensor *rows[] = {mc_tape_input(t, MC_I32, MC_SHAPE(count), index, false), in->positions};
    if (!all || !positions || !rows[0]) return NULL;
    x = mc_dropout(t, mc_embed(t, 2, tables, rows), v->dropout);
    return mc_with_lengths(t, x, in->lengths);
}

static bool check_pixels(mc_tape *t, const mc_model *m, const mc_tensor *x)
{
    const mc_vit_config *c = m->config;
    mc_shape s = x->shape;
    if (s.ndim == 4 && s.dim[1] == c->channels && s.dim[2] == c->image_size &&
        s.dim[3] == c->image_size && mc_dtype_is_float(x->dtype))
        return true;
    return !mc_fail(mc_tape_context(t), MC_ERR_SHAPE,
                    "ViT: pixels %s %s, expected floats (batch, %lld, %lld, %lld)",
                    mc_dtype_name(x->dtype), MC_SHAPE_TEXT(s), (long long)c->channels,
                    (long long)c->image_size, (long long)c->image_size);
}

static mc_tensor *encode(mc_tape *t, mc_model *m, mc_stack_input *in)
{
    const vit_parts *v = m->parts;
    if (!check_pixels(t, m, in->pixels)) return NULL;
    mc_scope scope = mc_scope_begin(t, false);
    mc_tensor *x = embed(t, m, in);
    mc_scope_end(t, scope, x);
    return mc_run_stack(t, m->encoder, x, v->norm, &in->call);
}

static mc_tensor *pool(mc_tape *t, mc_model *m, mc_tensor *hidden)
{
    const vit_parts *v = m->parts;
    mc_tensor *first = mc_first_tokens(t, hidden);
    return first ? mc_linear_forward_activated(t, v->pooler, first, MC_ACTIVATION_TANH) : NULL;
}

static mc_tensor *classify(mc_tape *t, mc_model *m, const mc_model_output *out)
{
    const vit_parts *v = m->parts;
    mc_tensor *first = mc_first_tokens(t, out->last_hidden);
    return first ? mc_linear_forward(t, v->classifier, first) : NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

#define OURS "encoder.layers.{i}."
#define THEIRS "encoder.layer.{i}."
static const mc_weight_rule rules[] = {
    {"patch_embed.cls_token", "embeddings.cls_token"},
    {"patch_embed.pos_embed", "embeddings.position_embeddings"},
    {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
    {OURS "self_att.layernorm_before_attention", THEIRS "layernorm_before"},
    {OURS "self_att.self_attention.project_q", THEIRS "attention.attention.query"},
    {OURS "self_att.self_attention.project_k", THEIRS "attention.attention.key"},
    {OURS "self_att.self_attention.project_v", THEIRS "attention.attention.value"},
    {OURS "self_att.self_attention.attention_out", THEIRS "attention.output.dense"},
    {OURS "ffn.layernorm_before_ffn", THEIRS "layernorm_after"},
    {OURS "ffn.ffn.w_in.w", THEIRS "intermediate.dense"},
    {OURS "ffn.ffn.w_out", THEIRS "output.dense"},
    {"encoder.output_layernorm", "layernorm"},
    {"pooler", "pooler"},
    {"classifier", "classifier", .head = true},
    {NULL}};

/* The head that draws images, and what it puts in place of patches. */
static const char *const ignored[] = {"*embeddings.mask_token", "decoder.*", NULL};

static const mc_weight_map map = {
    .rules = rules,
    .base_prefix = "vit.",
    .ignored = ignored,
    .order = "weight bias cls_token position_embeddings vit classifier embeddings patch_embeddings "
             "projection encoder layer attention query key value intermediate output dense "
             "layernorm_before layernorm_after layernorm pooler"};

static const char *const model_types[] = {"vit", NULL};
static const mc_family_classes classes[] = {{"ViTForImageClassification", .base = "ViTModel"}};
static const char *const lora_targets[] = {"query", "value", NULL};

const mc_family mc_family_vit = {
    MC_FAMILY_OF(vit, vit_parts),
    .title = "ViT",
    .kind = MC_MODEL_ENCODER,
    .has = {.labels = true, .pooler = true, .pixels = true},
    .hf_only = true,
    .classifier = "classifier.weight",
    .image_size = image_size,
    .encode = encode,
    .pool = pool,
    .classify = classify,
    .set_dropout = set_dropout,
    .classes = classes,
};

MC_DEFINE_FAMILY(vit)
