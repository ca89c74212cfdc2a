#include <math.h>
#include <stdio.h>
#include <string.h>
#include "models/gguf/gguf_internal.h"

/* ---- what several families share ------------------------------------------------------------- */

bool mc_gguf_refuse_key(mc_model *m, const char *key, const char *expected)
{
    mc_fail(m->module.ctx, MC_ERR_UNSUPPORTED,
            "%s: the config's \"%s\" has no GGUF form, expected %s", m->family->title, key,
            expected);
    return false;
}

cJSON *mc_gguf_reread(cJSON *config)
{
    char *text = config ? cJSON_PrintUnformatted(config) : NULL;
    cJSON *read = text ? mc_json_parse_own(text) : NULL;
    cJSON_free(text);
    cJSON_Delete(config);
    return read;
}

bool mc_gguf_is_text(const cJSON *config, const char *key, const char *value)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, key));
    return text && strcmp(text, value) == 0;
}

static bool is_number(const cJSON *config, const char *key, double value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsNumber(item) && item->valuedouble == value;
}

static bool is_true(const cJSON *config, const char *key)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(config, key));
}

#define LAYER "encoder.layers.{i}."
#define ATTENTION "self_att.self_attention."

/* ---- GPT-2 ----------------------------------------------------------------------------------- */

static const mc_gguf_row gpt2_rows[] = {
    {"token_embd", {"input_embedding"}},
    {"position_embd", {"position_embedding"}, .plain = true},
    {"blk.{i}.attn_norm", {LAYER "self_att.layernorm_before_attention"}},
    {"blk.{i}.attn_qkv",
     {LAYER ATTENTION "project_q", LAYER ATTENTION "project_k", LAYER ATTENTION "project_v"}},
    {"blk.{i}.attn_output", {LAYER ATTENTION "attention_out"}},
    {"blk.{i}.ffn_norm", {LAYER "ffn.layernorm_before_ffn"}},
    {"blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w"}},
    {"blk.{i}.ffn_down", {LAYER "ffn.ffn.w_out"}},
    {"output_norm", {"encoder.output_layernorm"}},
    {"output", {"output_projection"}},
    {NULL}};

static const mc_gguf_key gpt2_keys[] = {
    {"context_length", "n_positions"},
    {"embedding_length", "n_embd"},
    {"feed_forward_length", "n_inner"},
    {"block_count", "n_layer"},
    {"attention.head_count", "n_head"},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", .is_float = true},
    {NULL}};

static bool gpt2_write(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    (void)w;
    if (!mc_gguf_is_text(config, "activation_function", "gelu_new"))
        return mc_gguf_refuse_key(m, "activation_function", "gelu_new");
    if (!is_true(config, "scale_attn_weights"))
        return mc_gguf_refuse_key(m, "scale_attn_weights", "true");
    if (is_true(config, "scale_attn_by_inverse_layer_idx"))
        return mc_gguf_refuse_key(m, "scale_attn_by_inverse_layer_idx", "false");
    return true;
}

bool mc_gguf_read_tied(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    (void)ctx;
    return cJSON_AddBoolToObject(config, "tie_word_embeddings",
                                 !mc_gguf_find_tensor(g, "output.weight"));
}

/* ---- BERT ------------------------------------------------------------------------------------ */

static const mc_gguf_row bert_rows[] = {
    {"token_embd", {"input_embedding"}},
    {"position_embd", {"position_embedding"}, .plain = true},
    {"token_types", {"token_type_embedding"}, .plain = true},
    {"blk.{i-1}.layer_output_norm",
     {LAYER "self_att.layernorm_before_attention"},
     .first = "token_embd_norm"},
    {"blk.{last}.layer_output_norm", {"encoder.output_layernorm"}},
    {"blk.{i}.attn_q", {LAYER ATTENTION "project_q"}},
    {"blk.{i}.attn_k", {LAYER ATTENTION "project_k"}},
    {"blk.{i}.attn_v", {LAYER ATTENTION "project_v"}},
    {"blk.{i}.attn_output", {LAYER ATTENTION "attention_out"}},
    {"blk.{i}.attn_output_norm", {LAYER "ffn.layernorm_before_ffn"}},
    {"blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w"}},
    {"blk.{i}.ffn_down", {LAYER "ffn.ffn.w_out"}},
    {NULL}};

static const mc_gguf_key bert_keys[] = {
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"block_count", "num_hidden_layers"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.layer_norm_epsilon", "layer_norm_eps", .is_float = true},
    {NULL}};

/* Their vectors are of the whole text; the heads are for training. */
static const char *const bert_dropped[] = {"pooler.*", "lm_head.*", "nsp_head.*", NULL};

static bool bert_write(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    if (!mc_gguf_is_text(config, "hidden_act", "gelu"))
        return mc_gguf_refuse_key(m, "hidden_act", "gelu");
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(config, "type_vocab_size");
    mc_gguf_put_bool(w, "bert.attention.causal", false);
    mc_gguf_put_u32(w, "tokenizer.ggml.token_type_count", (uint32_t)cJSON_GetNumberValue(types));
    return true;
}

static bool bert_read(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    (void)ctx;
    const mc_gguf_tensor *types = mc_gguf_find_tensor(g, "token_types.weight");
    return !types || cJSON_AddNumberToObject(config, "type_vocab_size", (double)types->rows);
}

/* ---- ModernBERT ------------------------------------------------------------------------------ */

static const mc_gguf_row modernbert_rows[] = {
    {"token_embd", {"input_embedding"}},
    {"token_embd_norm", {"embedding_layernorm"}},
    {"blk.{i}.attn_norm", {LAYER "self_att.layernorm_before_attention"}},
    {"blk.{i}.attn_qkv",
     {LAYER ATTENTION "project_q", LAYER ATTENTION "project_k", LAYER ATTENTION "project_v"}},
    {"blk.{i}.attn_output", {LAYER ATTENTION "attention_out"}},
    {"blk.{i}.ffn_norm", {LAYER "ffn.layernorm_before_ffn"}},
    {"blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w_0", LAYER "ffn.ffn.w_in.w_1"}},
    {"blk.{i}.ffn_down", {LAYER "ffn.ffn.w_out"}},
    {"output_norm", {"encoder.output_layernorm"}},
    {NULL}};

static const mc_gguf_key modernbert_keys[] = {
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"block_count", "num_hidden_layers"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.layer_norm_epsilon", "norm_eps", .is_float = true},
    {"attention.sliding_window", "local_attention", .optional = true},
    {"attention.sliding_window_pattern", "global_attn_every_n_layers", .optional = true},
    {"rope.freq_base", "global_rope_theta", .is_float = true},
    {"rope.freq_base_swa", "local_rope_theta", .is_float = true},
    {"vocab_size", "vocab_size", .derived = true},
    {NULL}};

/* Of a classifier too, which then has no place. */
static const char *const modernbert_dropped[] = {"head.*", "lm_head.*", NULL};
static const char *const modernbert_activations[] = {"gelu", "silu"};
static const char activation_key[] = "modern-bert.hidden_activation";

static bool modernbert_write(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    const char *found = NULL;
    for (int i = 0; i < 2; i++)
        if (mc_gguf_is_text(config, "hidden_activation", modernbert_activations[i]))
            found = modernbert_activations[i];
    if (!found) return mc_gguf_refuse_key(m, "hidden_activation", "gelu or silu");
    mc_gguf_put_string(w, activation_key, found);
    mc_gguf_put_string(w, "modern-bert.rope.scaling.type", "none");
    mc_gguf_put_bool(w, "modern-bert.attention.causal", false);
    return true;
}

static bool read_activation(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    size_t length = 0;
    const mc_gguf_value *v = mc_gguf_find(g, activation_key);
    const uint8_t *at = v && v->kind == MC_GGUF_STRING && !v->is_array ? v->data : NULL;
    const char *name = at ? mc_gguf_text(&at, &length) : "";
    if (!v) return true; /* older files are of the default, GELU */
    for (int i = 0; i < 2; i++) {
        const char *known = modernbert_activations[i];
        if (strlen(known) == length && memcmp(known, name, length) == 0)
            return cJSON_AddStringToObject(config, "hidden_activation", known);
    }
    return !mc_fail(ctx, MC_ERR_UNSUPPORTED,
                    "%s: key \"%s\": \"%.*s\" is not supported, expected gelu or silu", g->path,
                    activation_key, (int)(length < 100 ? length : 100), name);
}

/* Without a window all layers see the whole text. */
static bool modernbert_read(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    static const char every[] = "global_attn_every_n_layers", window[] = "local_attention";
    if (!read_activation(ctx, g, config)) return false;
    if (mc_gguf_number_of(g, "modern-bert", "attention.sliding_window", 0) >= 1) return true;
    cJSON_DeleteItemFromObjectCaseSensitive(config, every);
    cJSON_DeleteItemFromObjectCaseSensitive(config, window);
    return cJSON_AddNumberToObject(config, every, 1);
}

/* ---- T5 -------------------------------------------------------------------------------------- */

#define D "decoder.layers.{i}."
#define CROSS "cross_att.self_attention."
static const mc_gguf_row t5_rows[] = {
    {"token_embd", {"input_embedding"}},
    {"enc.blk.0.attn_rel_b",
     {"position_bias_enc.relative_attention_bias"},
     .plain = true,
     .bare = true},
    {"enc.blk.{i}.attn_norm", {LAYER "self_att.layernorm_before_attention"}},
    {"enc.blk.{i}.attn_q", {LAYER ATTENTION "project_q"}},
    {"enc.blk.{i}.attn_k", {LAYER ATTENTION "project_k"}},
    {"enc.blk.{i}.attn_v", {LAYER ATTENTION "project_v"}},
    {"enc.blk.{i}.attn_o", {LAYER ATTENTION "attention_out"}},
    {"enc.blk.{i}.ffn_norm", {LAYER "ffn.layernorm_before_ffn"}},
    {"enc.blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w"}},
    {"enc.blk.{i}.ffn_gate", {LAYER "ffn.ffn.w_in.w_0"}},
    {"enc.blk.{i}.ffn_up", {LAYER "ffn.ffn.w_in.w_1"}},
    {"enc.blk.{i}.ffn_down", {LAYER "ffn.ffn.w_out"}},
    {"enc.output_norm", {"encoder.output_layernorm"}},
    {"dec.blk.0.attn_rel_b",
     {"position_bias_dec.relative_attention_bias"},
     .plain = true,
     .bare = true},
    {"dec.blk.{i}.attn_norm", {D "self_att.layernorm_before_attention"}},
    {"dec.blk.{i}.attn_q", {D ATTENTION "project_q"}},
    {"dec.blk.{i}.attn_k", {D ATTENTION "project_k"}},
    {"dec.blk.{i}.attn_v", {D ATTENTION "project_v"}},
    {"dec.blk.{i}.attn_o", {D ATTENTION "attention_out"}},
    {"dec.blk.{i}.cross_attn_norm", {D "cross_att.layernorm_before_attention"}},
    {"dec.blk.{i}.cross_attn_q", {D CROSS "project_q"}},
    {"dec.blk.{i}.cross_attn_k", {D CROSS "project_k"}},
    {"dec.blk.{i}.cross_attn_v", {D CROSS "project_v"}},
    {"dec.blk.{i}.cross_attn_o", {D CROSS "attention_out"}},
    {"dec.blk.{i}.ffn_norm", {D "ffn.layernorm_before_ffn"}},
    {"dec.blk.{i}.ffn_up", {D "ffn.ffn.w_in.w"}},
    {"dec.blk.{i}.ffn_gate", {D "ffn.ffn.w_in.w_0"}},
    {"dec.blk.{i}.ffn_up", {D "ffn.ffn.w_in.w_1"}},
    {"dec.blk.{i}.ffn_down", {D "ffn.ffn.w_out"}},
    {"dec.output_norm", {"decoder.output_layernorm"}},
    {"output", {"output_projection"}},
    {NULL}};

static const mc_gguf_key t5_keys[] = {
    {"embedding_length", "d_model"},
    {"feed_forward_length", "d_ff"},
    {"block_count", "num_layers"},
    {"decoder_block_count", "num_decoder_layers"},
    {"attention.head_count", "num_heads"},
    {"attention.key_length", "d_kv"},
    {"attention.value_length", "d_kv", .derived = true},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", .is_float = true},
    {"attention.layer_norm_rms_epsilon", "layer_norm_epsilon", .is_float = true, .derived = true},
    {"attention.relative_buckets_count", "relative_attention_num_buckets"},
    {"decoder_start_token_id", "decoder_start_token_id"},
    {NULL}};

/* T5 1.0 scales the logits of a head that is the words'. llama.cpp has no key for that, so the file
 * has a head of its own. */
static double t5_head_scale(const mc_model *m, const cJSON *config)
{
    bool scaled =
        is_true(config, "tie_word_embeddings") && is_true(config, "scale_decoder_outputs");
    return scaled && m->heads.lm ? 1 / sqrt((double)m->shape.dim) : 0;
}

/* llama.cpp has no key for the largest distance. */
static bool t5_write(mc_gguf_writer *w, mc_model *m, const cJSON *config)
{
    enum { CONTEXT = 512, DISTANCE = 128 };
    bool gated = is_true(config, "is_gated_act");
    if (!mc_gguf_is_text(config, "dense_act_fn", gated ? "gelu_new" : "relu"))
        return mc_gguf_refuse_key(m, "feed_forward_proj", "relu or gated-gelu");
    if (!is_number(config, "relative_attention_max_distance", DISTANCE))
        return mc_gguf_refuse_key(m, "relative_attention_max_distance", "128");
    mc_gguf_put_u32(w, "t5.context_length", CONTEXT);
    return true;
}

static bool t5_read(mc_context *ctx, const mc_gguf *g, cJSON *config)
{
    bool gated = mc_gguf_find_tensor(g, "enc.blk.0.ffn_gate.weight");
    return mc_gguf_read_tied(ctx, g, config) &&
           cJSON_AddBoolToObject(config, "scale_decoder_outputs", false) &&
           cJSON_AddStringToObject(config, "feed_forward_proj", gated ? "gated-gelu" : "relu") &&
           cJSON_AddBoolToObject(config, "is_encoder_decoder", true);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const char *const none[] = {NULL};

static const mc_gguf_family families[] = {
    {"gpt2", NULL, "gpt2", gpt2_rows, gpt2_keys, none, gpt2_write, mc_gguf_read_tied},
    {"bert", NULL, "bert", bert_rows, bert_keys, bert_dropped, bert_write, bert_read},
    {"modernbert", NULL, "modern-bert", modernbert_rows, modernbert_keys, modernbert_dropped,
     modernbert_write, modernbert_read},
    {"t5", NULL, "t5", t5_rows, t5_keys, none, t5_write, t5_read, t5_head_scale},
};
enum { OWN = sizeof families / sizeof *families, FAMILIES = OWN + MC_GGUF_LLAMA_FAMILIES };

static const mc_gguf_family *family_at(int i)
{
    return i < OWN ? &families[i] : &mc_gguf_llama_families[i - OWN];
}

const mc_gguf_family *mc_gguf_family_of(const mc_model *m)
{
    const char *type = mc_config_type(m->family, m->config);
    for (int i = 0; i < FAMILIES; i++) {
        const mc_gguf_family *f = family_at(i);
        bool is_family = strcmp(f->family, m->family->name) == 0;
        if (is_family && (!f->type || strcmp(f->type, type) == 0)) return f;
    }
    return NULL;
}

const mc_gguf_family *mc_gguf_family_named(const char *architecture, size_t length)
{
    for (int i = 0; i < FAMILIES; i++)
        if (strlen(family_at(i)->architecture) == length &&
            memcmp(family_at(i)->architecture, architecture, length) == 0)
            return family_at(i);
    return NULL;
}

const char *mc_gguf_list(char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < FAMILIES && used < size; i++) {
        const char *name = family_at(i)->architecture;
        if (mc_gguf_family_named(name, strlen(name)) == family_at(i)) /* not listed yet */
            used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", name);
    }
    return out;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The pattern with {i}, {i-1} or {last} replaced by the number i or, for {i-1}, i - 1. */
static void expand(const char *pattern, int64_t i, const char *suffix, char out[MC_GGUF_NAME])
{
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!close) {
        snprintf(out, MC_GGUF_NAME, "%s%s", pattern, suffix);
        return;
    }
    bool before = strncmp(open, "{i-1}", 5) == 0;
    snprintf(out, MC_GGUF_NAME, "%.*s%lld%s%s", (int)(open - pattern), pattern,
             (long long)(before ? i - 1 : i), close + 1, suffix);
}

bool mc_gguf_is_layered(const mc_gguf_row *row) { return strchr(row->ours[0], '{') != NULL; }

void mc_gguf_theirs(const mc_gguf_row *row, int64_t i, const char *suffix, char out[MC_GGUF_NAME])
{
    expand(i == 0 && row->first ? row->first : row->theirs, i, suffix, out);
}

bool mc_gguf_ours(const mc_gguf_row *row, int k, int64_t i, const char *suffix,
                  char out[MC_GGUF_NAME])
{
    if (k >= MC_GGUF_STACKED || !row->ours[k]) return false;
    expand(row->ours[k], i, row->bare ? "" : suffix, out);
    return true;
}

/* ---- rows ------------------------------------------------------------------------------------ */

int64_t mc_gguf_heads_of(const mc_gguf_row *row, const mc_model_shape *shape)
{
    if (row->heads == MC_GGUF_NOT_ROTATED) return 0;
    return row->heads == MC_GGUF_KEYS && shape->key_heads ? shape->key_heads : shape->heads;
}

void mc_gguf_pair_rows(const float *from, float *to, int64_t rows, int64_t columns, int64_t heads,
                       bool back)
{
    const int64_t of_head = rows / heads, half = of_head / 2;
    for (int64_t row = 0; row < rows; row++) {
        int64_t in_head = row % of_head;
        int64_t pair = in_head % half * 2 + in_head / half + row - in_head;
        memcpy(to + (back ? row : pair) * columns, from + (back ? pair : row) * columns,
               (size_t)columns * sizeof *to);
    }
}
